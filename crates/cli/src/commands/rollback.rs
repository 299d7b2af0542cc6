//! `farwater rollback`: pins a service, or a whole set, to a version of its history, or removes the pin.

mod set;

use farwater_api::{ServiceDeployment, history::HistoryEntry};
use farwater_fleet::{
    history::{Refusal, choose},
    words::{listed, verb},
};
use serde_json::json;

use crate::{
    commands::wait::{self, Goal, Wanted},
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::{NamespaceArgs, service_name, set_name},
    service,
    terminal::{print, say},
};

/// Most versions that a failure lists.
const SHOWN: usize = 5;

#[derive(Debug, clap::Args)]
pub struct RollbackArgs {
    /// The service: NAME or NAMESPACE/NAME; or a set: serviceset/NAME or serviceset/NAMESPACE/NAME.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// The version: a number of `history`, or for a service the beginning of a commit [default: the last healthy
    /// version before the current one].
    #[arg(long, value_name = "VERSION", conflicts_with = "clear")]
    to: Option<String>,
    /// The reason, for later readers.
    #[arg(long, value_name = "TEXT", conflicts_with = "clear")]
    reason: Option<String>,
    /// Removes the pin. The latest revision of the source comes next.
    #[arg(long, visible_alias = "unpin")]
    clear: bool,
    /// Waits until every object is healthy; of a set, until all its clusters are done. Exits with 6 at the time limit.
    #[arg(long)]
    wait: bool,
    /// Time limit of --wait.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = wait::parse_duration)]
    timeout: std::time::Duration,
}

pub async fn run(args: RollbackArgs, session: &Session) -> Result<u8> {
    if let Some(named) = set_name(&args.service, args.namespace.or_default(session)) {
        return set::run(named?.names(), &args, session).await;
    }
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let told = match args.clear {
        true => clear(session, namespace, name).await?,
        false => pin(session, namespace, name, &args).await?,
    };
    print(&format!("{} {told}\n", service::qualified(name)))?;
    if args.wait {
        let wanted = Wanted {
            namespace: namespace.to_owned(),
            names: vec![name.to_owned()],
            newest: false,
        };
        return wait::until(session, &wanted, Goal::Healthy, args.timeout).await;
    }
    say(&format!("next: {} wait {name} -n {namespace}", session.program.name()));
    Ok(exit::YES)
}

async fn pin(session: &Session, namespace: &str, name: &str, args: &RollbackArgs) -> Result<String> {
    let history: Vec<HistoryEntry> = service::items(session, namespace, name, "history").await?;
    let to = args.to.as_deref();
    let target = choose(&history, to).map_err(|refusal| refused((namespace, name), &history, to, &refusal))?;
    let pin = json!({"bundle": target.bundle, "reason": args.reason});
    let changed = service::change(session, namespace, name, "pin", json!({"pin": pin})).await?;
    warn_of_suspension(&changed);
    Ok(format!("pinned to version {}: {}", target.number, target.revision))
}

async fn clear(session: &Session, namespace: &str, name: &str) -> Result<String> {
    let before: ServiceDeployment = session.get(namespace, name).await?;
    if before.spec.pin.is_none() {
        return Ok("unchanged: it is not pinned".to_owned());
    }
    let changed = service::change(session, namespace, name, "unpin", json!({"pin": null})).await?;
    warn_of_suspension(&changed);
    // A pin that a freeze held was never in effect, so nothing comes next.
    let pin = before.spec.pin.map(|pin| pin.bundle);
    let status = before.status.filter(|status| status.bundle_digest == pin);
    let held = status.and_then(|status| status.held_revision);
    Ok(held.map_or_else(|| "unpinned".to_owned(), |held| format!("unpinned: {held} is next")))
}

fn warn_of_suspension(service: &ServiceDeployment) {
    if service.spec.suspend {
        say("the service is suspended: nothing changes before it is resumed");
    }
}

fn refused((namespace, name): (&str, &str), history: &[HistoryEntry], to: Option<&str>, refusal: &Refusal) -> Failure {
    let code = match refusal {
        Refusal::Ambiguous { .. } => exit::USAGE,
        Refusal::Missing(_) => exit::MISSING,
        Refusal::Empty if to.is_some() => exit::MISSING,
        Refusal::Empty | Refusal::NoneHealthy(_) => exit::CONFLICT,
    };
    let failure = Failure::new(code, format!("{namespace}/{name} can't be rolled back: {refusal}"))
        .next(format!("{{program}} history {name} -n {namespace}"));
    match refusal {
        Refusal::Missing(_) => failure.evidence(list_versions(history.iter().map(|entry| entry.number))),
        _ => failure,
    }
}

/// `it has versions 12, 11, 10, 9, 8 and 7 more`
fn list_versions(numbers: impl Iterator<Item = u64>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    let noun = verb(&numbers.len(), "version", "versions");
    format!(
        "it has {noun} {}",
        listed(&numbers[..numbers.len().min(SHOWN)], numbers.len())
    )
}

#[cfg(test)]
mod tests {
    use farwater_api::Digest;

    use super::*;

    #[test]
    fn a_version_that_does_not_exist_is_missing_and_those_that_exist_are_named() {
        let entry = |number: u64| -> HistoryEntry {
            let written = json!({"number": number, "revision": format!("main@sha1:{number}"), "bundle": Digest::of(number.to_string()),
                                 "path": "apps/web", "cause": "Commit", "result": "Pending", "assigned": "2026-01-01T00:00:00Z"});
            serde_json::from_value(written).unwrap()
        };
        let refused = |history: &[HistoryEntry], to: Option<&str>| {
            refused(("team-a", "web"), history, to, &choose(history, to).unwrap_err())
        };
        let history: Vec<HistoryEntry> = (1..=7).rev().map(entry).collect();
        let missing = refused(&history, Some("99"));
        assert_eq!(
            missing.render("farwater"),
            "farwater: team-a/web can't be rolled back: its history has no version \"99\"\n  \
             it has versions 7, 6, 5, 4, 3 and 2 more\n  next: farwater history web -n team-a\n"
        );
        assert_eq!(missing.code, exit::MISSING);
        assert_eq!(refused(&[], Some("99")).code, exit::MISSING);
        // No version was named, so the state of the service is the reason.
        assert_eq!(refused(&history, None).code, exit::CONFLICT);
        assert_eq!(refused(&[], None).code, exit::CONFLICT);
    }
}
