//! `farwater explain digest`: the inputs of a service's digest.

use farwater_api::{
    ServiceDeployment,
    digest_report::{DigestReport, DigestSource},
};

use crate::{
    connection::Session,
    exit,
    failure::Result,
    format::{self, Answer},
    scope::{NamespaceArgs, service_name},
    service,
    table::{Column, Table},
    terminal::{Terminal, print},
    text,
};

#[derive(Debug, clap::Args)]
pub struct DigestArgs {
    /// The service: NAME or NAMESPACE/NAME.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

pub async fn run(args: DigestArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let answer = match service::below(session, (namespace, name), "digest", "").await {
        // The typed lookup suggests similar names.
        Err(failure) if failure.is_missing() => {
            session.get::<ServiceDeployment>(namespace, name).await?;
            return Err(failure);
        }
        other => other?,
    };
    let report: DigestReport = serde_json::from_value(answer)
        .map_err(|error| session.failure("read the digest's inputs", &kube::Error::SerdeError(error)))?;
    match args.output {
        Answer::Json => print(&format::json(&report)?)?,
        Answer::Yaml => print(&format::yaml(&report)?)?,
        Answer::Text => print(&render(&report, Terminal::detect()))?,
    }
    Ok(exit::YES)
}

fn render(report: &DigestReport, terminal: Terminal) -> String {
    let mut told = format!("entry {}\n", report.entry);
    if let Some(content) = &report.content_id {
        told += &format!("content {content}\n");
    }
    for source in &report.sources {
        told += &format!("  {}\n", text::plain(&describe(source)));
    }
    let mut table = Table::new(vec![
        Column::fixed("Input"),
        Column::fixed("Digest"),
        Column::elastic("Value"),
    ]);
    for input in &report.inputs {
        table.push(vec![input.name.clone(), input.digest.short(), input.value.clone()]);
    }
    told + &table.render(terminal)
}

/// `GitRepository infra main@sha1:…, folder apps/web, at values`
fn describe(source: &DigestSource) -> String {
    let mut told = format!("{} {}", source.source, source.revision);
    if !source.path.is_empty() {
        told += &format!(", folder {}", source.path);
    }
    if !source.mount_path.is_empty() {
        told += &format!(", at {}", source.mount_path);
    }
    if source.dependency {
        told += ", which a chart depends on";
    }
    told
}

#[cfg(test)]
mod tests {
    use farwater_api::{Digest, digest_report::DigestInput};

    use super::*;

    #[test]
    fn a_digest_is_told_with_its_sources_and_inputs() {
        let source = |mount: &str, dependency| DigestSource {
            source: "GitRepository infra".into(),
            revision: "main@sha1:a".into(),
            path: "apps/web".into(),
            mount_path: mount.into(),
            dependency,
        };
        assert_eq!(
            describe(&source("", false)),
            "GitRepository infra main@sha1:a, folder apps/web"
        );
        assert_eq!(
            describe(&source("charts/x", true)),
            "GitRepository infra main@sha1:a, folder apps/web, at charts/x, which a chart depends on"
        );
        let report = DigestReport {
            entry: Digest::of("e"),
            content_id: Some(Digest::of("c")),
            inputs: vec![DigestInput {
                name: "prune".into(),
                digest: Digest::of("true"),
                value: "true".into(),
            }],
            sources: vec![source("", false)],
        };
        let told = render(&report, Terminal::default());
        assert!(
            told.starts_with(&format!(
                "entry {}\ncontent {}\n  GitRepository infra",
                Digest::of("e"),
                Digest::of("c")
            )),
            "{told}"
        );
        assert!(
            told.contains("prune") && told.contains(&Digest::of("true").short()),
            "{told}"
        );
    }
}
