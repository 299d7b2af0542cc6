//! `farwater history`: what was assigned to a service, why, by whom and with which result; and the rollouts of a set.

mod set;

use farwater_api::{
    ServiceDeployment,
    history::{Cause, HistoryEntry, VersionResult},
};
use farwater_fleet::why::ago;
use jiff::Timestamp;

use crate::{
    connection::Session,
    exit,
    failure::Result,
    format::{self, Format},
    scope::{NamespaceArgs, service_name, set_name},
    service,
    table::{Column, Table},
    terminal::{Terminal, print, say},
};

#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    /// The service: NAME or NAMESPACE/NAME; or a set: serviceset/NAME or serviceset/NAMESPACE/NAME.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub async fn run(args: HistoryArgs, session: &Session) -> Result<u8> {
    if let Some(named) = set_name(&args.service, args.namespace.or_default(session)) {
        return set::run(named?.names(), args.output, session).await;
    }
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let entries: Vec<HistoryEntry> = service::items(session, namespace, name, "history").await?;
    match args.output {
        Format::Json => print(&format::json(&entries)?)?,
        Format::Yaml => print(&format::yaml(&entries)?)?,
        Format::Name => print(
            &entries
                .iter()
                .map(|entry| format!("{}\n", entry.number))
                .collect::<String>(),
        )?,
        Format::Table | Format::Wide if entries.is_empty() => say(&format!(
            "nothing was assigned to {name} yet; next: {} why {name} -n {namespace}",
            session.program.name()
        )),
        Format::Table | Format::Wide => {
            let service: ServiceDeployment = session.get(namespace, name).await?;
            let table = table(&entries, &service, Timestamp::now(), args.output == Format::Wide);
            print(&{ table }.render(Terminal::detect()))?;
        }
    }
    Ok(exit::YES)
}

/// The table. The current version is marked.
fn table(entries: &[HistoryEntry], service: &ServiceDeployment, now: Timestamp, wide: bool) -> Table {
    let mut columns = vec![
        Column::fixed("Version"),
        Column::fixed("Assigned"),
        Column::fixed("Result"),
        Column::fixed("Revision"),
        Column::fixed("Why"),
        Column::fixed("Who"),
        Column::elastic("Message"),
    ];
    if wide {
        columns.insert(4, Column::fixed("Bundle"));
    }

    let mut table = Table::new(columns);
    let standing = service.status.as_ref().and_then(|status| status.bundle_digest);
    for (i, entry) in entries.iter().enumerate() {
        let stands = i == 0 && standing == Some(entry.bundle);
        let mut row = vec![
            format!("{}{}", entry.number, if stands { " *" } else { "" }),
            format!("{} ago", ago(entry.assigned.0, now)),
            result(entry.result).to_owned(),
            entry.revision.clone(),
            cause(entry.cause).to_owned(),
            who(entry),
            entry
                .reason
                .iter()
                .chain(Some(&entry.message))
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(" ")
                .trim()
                .to_owned(),
        ];
        if wide {
            row.insert(4, entry.bundle.to_string());
        }
        table.push(row);
    }
    table
}

fn result(result: VersionResult) -> &'static str {
    match result {
        VersionResult::Pending => "Pending",
        VersionResult::Applied => "Applied",
        VersionResult::Healthy => "Healthy",
        VersionResult::PruneHeld => "PruneHeld",
        VersionResult::Failed => "Failed",
        VersionResult::Superseded => "Superseded",
        VersionResult::Unknown => "Unknown",
    }
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Created => "created",
        Cause::Commit => "commit",
        Cause::Spec => "spec",
        Cause::Pinned => "pinned",
        Cause::Unpinned => "unpinned",
        Cause::Parameters => "parameters",
        Cause::RolledBack => "rolled back",
        Cause::Unknown => "unknown",
    }
}

/// The API user who requested it; for a commit its author's name.
fn who(entry: &HistoryEntry) -> String {
    match (entry.cause, &entry.by, &entry.author) {
        (Cause::Pinned, Some(by), _) => format!("rollback by {by}"),
        (_, Some(by), _) => by.clone(),
        (Cause::Commit, None, Some(author)) => name_of(author).to_owned(),
        _ => String::new(),
    }
}

/// The name in `Name <address>`.
fn name_of(author: &str) -> &str {
    match author.split_once('<') {
        Some((name, _)) if !name.trim().is_empty() => name.trim(),
        _ => author,
    }
}

#[cfg(test)]
mod tests {
    use farwater_api::Digest;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_stands_is_marked_and_who_wanted_it_is_named() {
        let entry = |number: u64, bundle: &str, cause: &str, result: &str, more: serde_json::Value| {
            let mut entry = json!({
                "number": number, "revision": format!("main@sha1:{bundle}"), "bundle": Digest::of(bundle), "path": "apps/web",
                "cause": cause, "assigned": "2026-01-01T11:55:00Z", "result": result,
            });
            entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<HistoryEntry>(entry).unwrap()
        };
        let entries = [
            entry(
                5,
                "a",
                "Spec",
                "Pending",
                json!({"by": "eve", "author": "Bob Example <bob@example.com>"}),
            ),
            entry(4, "c", "Commit", "Superseded", json!({"author": "<bot@example.com>"})),
            entry(
                3,
                "a",
                "Pinned",
                "Superseded",
                json!({"by": "ann", "reason": "b crashes"}),
            ),
            entry(
                2,
                "b",
                "Commit",
                "Failed",
                json!({"message": "CrashLoopBackOff", "author": "Bob Example <bob@example.com>"}),
            ),
            entry(1, "a", "Created", "Healthy", json!({})),
        ];
        let service = serde_json::from_value(json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment", "metadata": {"name": "web"},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}},
            "status": {"bundleDigest": Digest::of("a")},
        }));
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let text = table(&entries, &service.unwrap(), now, false).render(Terminal::default());
        let expected = "\
VERSION   ASSIGNED   RESULT       REVISION      WHY       WHO                 MESSAGE
5 *       5m ago     Pending      main@sha1:a   spec      eve
4         5m ago     Superseded   main@sha1:c   commit    <bot@example.com>
3         5m ago     Superseded   main@sha1:a   pinned    rollback by ann     b crashes
2         5m ago     Failed       main@sha1:b   commit    Bob Example         CrashLoopBackOff
1         5m ago     Healthy      main@sha1:a   created
";
        assert_eq!(text, expected);
    }
}
