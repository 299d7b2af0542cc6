//! Pins a set to one of its versions, on all its clusters.

use farwater_api::{ServiceSet, service_set::SetVersion};
use serde_json::json;

use super::RollbackArgs;
use crate::{
    commands::rollout,
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::NamedSet,
    terminal::{print, say},
};

pub async fn run((namespace, name): (&str, &str), args: &RollbackArgs, session: &Session) -> Result<u8> {
    if args.wait {
        return Err(Failure::usage("--wait goes with a service")
            .next(format!("{{program}} rollout status {name} -n {namespace} --watch")));
    }

    let set: ServiceSet = session.get(namespace, name).await?;
    let pinned = set.spec.pin.as_ref().map(|pin| pin.version);
    let told = match (args.clear, pinned) {
        (true, None) => "unchanged: it is at no earlier version".to_owned(),
        (true, Some(_)) => {
            rollout::change(session, &NamedSet::plain(namespace, name), json!({"pin": null})).await?;
            "unpinned; it will roll out the latest revision".to_owned()
        }
        (false, _) => {
            let versions = rollout::versions(session, (namespace, name)).await?;
            let target = choose(&versions, args.to.as_deref(), pinned).map_err(|why| {
                Failure::new(
                    exit::CONFLICT,
                    format!("{namespace}/{name} can't be rolled back: {why}"),
                )
                .next(format!("{{program}} history serviceset/{namespace}/{name}"))
            })?;
            let pin = json!({"version": target.number, "reason": args.reason});
            rollout::change(session, &NamedSet::plain(namespace, name), json!({"pin": pin})).await?;
            format!("rolls back to version {}: {}", target.number, target.revision)
        }
    };

    print(&format!("serviceset.farwater.dev/{name} {told}\n"))?;
    say(&format!(
        "next: {} rollout status {name} -n {namespace} --watch",
        session.program.name()
    ));
    Ok(exit::YES)
}

/// The version to pin. `versions`: the newest first. `wanted`: the number that was asked for; None: the last good one.
fn choose<'a>(versions: &'a [SetVersion], wanted: Option<&str>, pinned: Option<u64>) -> Result<&'a SetVersion, String> {
    let current = versions.first().ok_or("nothing of it was ever rolled out")?;
    let Some(wanted) = wanted else {
        if let Some(pinned) = pinned {
            return Err(format!("it is at version {pinned} already; say --to which other"));
        }
        let good = versions
            .iter()
            .find(|version| version.good && version.number < current.number);
        return good.ok_or_else(|| format!("no version before {} was good on all clusters", current.number));
    };
    let found = versions.iter().find(|version| wanted.parse() == Ok(version.number));
    found.ok_or_else(|| format!("it has no version {wanted:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u64, good: bool) -> SetVersion {
        let written = json!({"number": number, "began": "2026-01-01T00:00:00Z", "good": good});
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn the_last_version_that_was_good_everywhere_is_meant_unless_another_one_is_named() {
        let versions = [version(5, false), version(4, false), version(3, true), version(2, true)];
        let chosen = |wanted, pinned| choose(&versions, wanted, pinned).map(|version| version.number);
        assert_eq!(chosen(None, None), Ok(3));
        assert_eq!(chosen(Some("2"), None), Ok(2));
        assert_eq!(chosen(Some("4"), Some(3)), Ok(4));
        assert_eq!(
            chosen(None, Some(3)),
            Err("it is at version 3 already; say --to which other".to_owned())
        );
        assert_eq!(chosen(Some("9"), None), Err("it has no version \"9\"".to_owned()));
        assert_eq!(
            choose(&versions[..2], None, None).map(|version| version.number),
            Err("no version before 5 was good on all clusters".to_owned())
        );
        assert_eq!(
            choose(&[], None, None).unwrap_err(),
            "nothing of it was ever rolled out"
        );
        // The newest good version is the one that runs already.
        assert_eq!(choose(&versions[2..], None, None).map(|version| version.number), Ok(2));
    }
}
