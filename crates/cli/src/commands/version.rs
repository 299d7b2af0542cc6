//! `farwater version`: shows the version of this program and of the hub, and the user's name there.

use http::Method;
use serde_json::json;

use crate::{
    connection::{ConnectArgs, Session},
    exit,
    failure::Result,
    format::{self, Answer},
    program::Program,
    terminal::{print, say},
    text,
};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, clap::Args)]
pub struct VersionArgs {
    /// Shows only this program's version.
    #[arg(long)]
    client: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

pub async fn run(args: VersionArgs, connect: &ConnectArgs, program: Program) -> Result<u8> {
    let mut answer = json!({"client": VERSION});
    let mut code = exit::YES;
    if !args.client {
        match ask(connect, program).await {
            Ok(hub) => answer["hub"] = hub,
            Err(failure) => {
                code = failure.code;
                say(failure.render(program.name()).trim_end());
            }
        }
    }
    match args.output {
        Answer::Json => print(&format::json(&answer)?)?,
        Answer::Yaml => print(&format::yaml(&answer)?)?,
        Answer::Text => {
            let mut lines = format!("client  {VERSION}\n");
            for (label, key) in [("hub", "version"), ("server", "server"), ("user", "user")] {
                if let Some(value) = answer["hub"][key].as_str() {
                    lines += &format!("{label:<8}{}\n", text::plain(&describe(value)));
                }
            }
            print(&lines)?;
        }
    }
    Ok(code)
}

/// Splits a hub's version, such as `v1.33.0+farwater.0.1.0`, into its two parts. Any other text is kept as it is.
fn describe(value: &str) -> String {
    match value.split_once("+farwater.") {
        Some((kubernetes, own)) => format!("{own} (serves the API of Kubernetes {kubernetes})"),
        None => value.to_owned(),
    }
}

async fn ask(connect: &ConnectArgs, program: Program) -> Result<serde_json::Value> {
    let session = Session::open(connect, program).await?;
    let version = session.read("ask the hub's version", "/version").await?;
    let user = who_am_i(&session).await.ok();
    Ok(json!({"version": version["gitVersion"], "server": session.server, "user": user}))
}

/// The name of the user that the hub sees for this session's credentials.
pub async fn who_am_i(session: &Session) -> Result<String> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = session
        .ask("ask who you are", Method::POST, path, "application/json", Some(&review))
        .await?;
    Ok(answer["status"]["userInfo"]["username"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}
