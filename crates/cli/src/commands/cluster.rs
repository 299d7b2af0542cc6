//! `farwater cluster join`: the one command that a new cluster's agent is started with.

use http::Method;
use serde_json::{Value, json};

use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result},
    format::{self, Answer},
    scope::{NamespaceArgs, is_label, is_name},
    terminal::{print, say},
    text,
};

#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Prints the one-time command that joins a cluster; makes the Cluster if it is missing.
    Join(JoinArgs),
}

#[derive(Debug, clap::Args)]
struct JoinArgs {
    /// The cluster's name in the hub.
    name: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Labels for a Cluster that is made now, for example `env=prod,region=eu`.
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = parse_label, value_delimiter = ',')]
    labels: Vec<(String, String)>,
    /// What the output looks like: the command alone, or the hub's whole answer.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

pub async fn run(args: ClusterArgs, session: &Session) -> Result<u8> {
    let Action::Join(args) = args.action;
    join(&args, session).await
}

async fn join(args: &JoinArgs, session: &Session) -> Result<u8> {
    let namespace = args.namespace.or_default(session);
    let name = &args.name;
    if !is_name(name) || !is_label(namespace) {
        return Err(Failure::usage(format!("{namespace}/{name} can't name a cluster"))
            .evidence("names are lower-case letters, digits, '-' and '.'"));
    }
    let clusters = format!("/apis/{}/{}/namespaces/{namespace}/clusters", farwater_api::GROUP, farwater_api::VERSION);
    let existing = session.read(&format!("read Cluster {namespace}/{name}"), &format!("{clusters}/{name}")).await;
    match existing {
        Ok(cluster) => warn_if_joined(name, &cluster),
        Err(failure) if failure.is_missing() => create(args, session, namespace, &clusters).await?,
        Err(failure) => return Err(failure),
    }
    let attempt = format!("make a join token for {namespace}/{name}");
    let path = format!("{clusters}/{name}/join");
    let answer = session.ask(&attempt, Method::POST, &path, "application/json", Some(&json!({}))).await?;
    match args.output {
        Answer::Json => print(&format::json(&answer)?)?,
        Answer::Yaml => print(&format::yaml(&answer)?)?,
        Answer::Text => {
            let command = answer["command"].as_str().ok_or_else(|| {
                Failure::new(exit::UNREACHABLE, format!("can't {attempt}: the hub's answer holds no command"))
            })?;
            let expires = answer["expiresAt"].as_str().unwrap_or("soon");
            say(&format!(
                "Run this once where {name}'s API server can be reached, within its time (until {}).\n\
                 The token in it works once; --kubeconfig FILE and --state-dir DIR may be added.",
                text::plain(expires)
            ));
            print(&format!("{}\n", text::plain(command)))?;
            say(&format!("then: {} get clusters {name} -n {namespace} -w", session.program.name()));
        }
    }
    Ok(exit::YES)
}

async fn create(args: &JoinArgs, session: &Session, namespace: &str, clusters: &str) -> Result<()> {
    let labels: serde_json::Map<String, Value> =
        args.labels.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let cluster = json!({
        "apiVersion": format!("{}/{}", farwater_api::GROUP, farwater_api::VERSION),
        "kind": "Cluster",
        "metadata": {"name": args.name, "namespace": namespace, "labels": labels},
        "spec": {},
    });
    let attempt = format!("make Cluster {namespace}/{}", args.name);
    let path = format!("{clusters}?fieldManager=farwater-cli&fieldValidation=Strict");
    session.ask(&attempt, Method::POST, &path, "application/json", Some(&cluster)).await?;
    say(&format!("made Cluster {namespace}/{}", args.name));
    Ok(())
}

fn warn_if_joined(name: &str, cluster: &Value) {
    if let Some(version) = cluster["status"]["agentVersion"].as_str() {
        say(&format!(
            "note: {name} has joined already (agent {}); whoever joins with the new token takes its place",
            text::plain(version)
        ));
    }
}
