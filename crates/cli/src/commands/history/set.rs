//! The rollouts of a set: the change, people's orders, and the result.

use farwater_api::{
    ServiceSet,
    service_set::{SetOrder, SetVersion},
};
use farwater_fleet::why::ago;
use jiff::Timestamp;

use crate::{
    commands::rollout,
    connection::Session,
    exit,
    failure::Result,
    format::{self, Format},
    table::{Column, Table},
    terminal::{Terminal, print, say},
    text,
};

pub async fn run((namespace, name): (&str, &str), output: Format, session: &Session) -> Result<u8> {
    session.get::<ServiceSet>(namespace, name).await?;
    let versions = rollout::versions(session, (namespace, name)).await?;
    match output {
        Format::Json => print(&format::json(&versions)?)?,
        Format::Yaml => print(&format::yaml(&versions)?)?,
        Format::Name => print(
            &versions
                .iter()
                .map(|version| format!("{}\n", version.number))
                .collect::<String>(),
        )?,
        Format::Table | Format::Wide if versions.is_empty() => say(&format!(
            "nothing was rolled out yet; next: {} rollout status {name} -n {namespace}",
            session.program.name()
        )),
        Format::Table | Format::Wide => print(&table(&versions, Timestamp::now()).render(Terminal::detect()))?,
    }
    Ok(exit::YES)
}

fn table(versions: &[SetVersion], now: Timestamp) -> Table {
    let mut table = Table::new(vec![
        Column::fixed("Version"),
        Column::fixed("Began"),
        Column::fixed("Phase"),
        Column::fixed("Good"),
        Column::fixed("Revision"),
        Column::elastic("Said"),
    ]);
    for version in versions {
        let halted = version.halted_by.as_ref().map(|by| format!("halted by {by}"));
        let said: Vec<String> = halted.into_iter().chain(version.orders.iter().map(describe)).collect();
        table.push([
            version.number.to_string(),
            format!("{} ago", ago(version.began.0, now)),
            if version.is_superseded() {
                "Superseded".to_owned()
            } else {
                version.phase.to_string()
            },
            if version.good { "yes" } else { "no" }.to_owned(),
            text::short_revision(&version.revision),
            said.join("; "),
        ]);
    }
    table
}

fn describe(order: &SetOrder) -> String {
    let by = if order.by.is_empty() {
        String::new()
    } else {
        format!(" by {}", order.by)
    };
    let reason = if order.reason.is_empty() {
        String::new()
    } else {
        format!(": {}", order.reason)
    };
    format!("{}{by}{reason}", order.what)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_rollout_is_told_with_who_said_what_of_it() {
        let versions = json!([
            {"number": 4, "began": "2026-01-01T11:59:00Z", "phase": "Progressing", "revision": "main@sha1:b", "pin": 1, "orders": [
                {"at": "2026-01-01T11:59:00Z", "by": "ann", "what": "roll back to 1", "reason": "checkout is slow"},
            ]},
            {"number": 3, "began": "2026-01-01T11:50:00Z", "ended": "2026-01-01T11:59:00Z", "phase": "Halted",
             "revision": "main@sha1:b", "haltedBy": "farwater-admin/east", "orders": [
                {"at": "2026-01-01T11:51:00Z", "by": "bob", "what": "pause", "reason": "lunch"},
                {"at": "2026-01-01T11:55:00Z", "by": "bob", "what": "resume"},
            ]},
            {"number": 2, "began": "2026-01-01T11:00:00Z", "ended": "2026-01-01T11:50:00Z", "phase": "Progressing", "revision": "main@sha1:c"},
            {"number": 1, "began": "2026-01-01T10:00:00Z", "ended": "2026-01-01T10:10:00Z", "phase": "Complete", "good": true,
             "revision": "main@sha1:a"},
        ]);
        let versions: Vec<SetVersion> = serde_json::from_value(versions).unwrap();
        let shown = table(&versions, "2026-01-01T12:00:00Z".parse().unwrap()).render(Terminal::default());
        let expected = "\
VERSION   BEGAN     PHASE         GOOD   REVISION      SAID
4         60s ago   Progressing   no     main@sha1:b   roll back to 1 by ann: checkout is slow
3         10m ago   Halted        no     main@sha1:b   halted by farwater-admin/east; pause by bob: lunch; resume by bob
2         60m ago   Superseded    no     main@sha1:c
1         2h ago    Complete      yes    main@sha1:a
";
        assert_eq!(shown, expected);
    }
}
