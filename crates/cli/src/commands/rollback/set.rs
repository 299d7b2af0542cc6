//! Pins a set to one of its versions, on all its clusters.

use farwater_api::{ServiceSet, service_set::SetVersion};
use serde_json::json;

use super::{RollbackArgs, list_versions};
use crate::{
    commands::{rollout, wait},
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::NamedSet,
    terminal::{print, say},
};

pub async fn run((namespace, name): (&str, &str), args: &RollbackArgs, session: &Session) -> Result<u8> {
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
            let target = choose(&versions, args.to.as_deref(), pinned)
                .map_err(|refusal| refused((namespace, name), &versions, &refusal))?;
            let pin = json!({"version": target.number, "reason": args.reason});
            rollout::change(session, &NamedSet::plain(namespace, name), json!({"pin": pin})).await?;
            format!("rolls back to version {}: {}", target.number, target.revision)
        }
    };

    print(&format!("serviceset.farwater.dev/{name} {told}\n"))?;
    if args.wait {
        return wait::until_set((namespace, name), args.timeout, session).await;
    }
    say(&format!(
        "next: {} rollout status {name} -n {namespace} --watch",
        session.program.name()
    ));
    Ok(exit::YES)
}

/// Why no version can be pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("nothing of it was ever rolled out")]
    Empty,
    #[error("it is at version {0} already; say --to which other")]
    Pinned(u64),
    #[error("no version before {0} was good on all clusters")]
    NoneGood(u64),
    #[error("it has no version {0:?}")]
    Missing(String),
}

/// The version to pin. `versions`: the newest first. `wanted`: the number that was asked for; None: the last good one.
fn choose<'a>(
    versions: &'a [SetVersion],
    wanted: Option<&str>,
    pinned: Option<u64>,
) -> Result<&'a SetVersion, Refusal> {
    if let Some(wanted) = wanted {
        let found = versions.iter().find(|version| wanted.parse() == Ok(version.number));
        return found.ok_or_else(|| Refusal::Missing(wanted.to_owned()));
    }
    let current = versions.first().ok_or(Refusal::Empty)?;
    if let Some(pinned) = pinned {
        return Err(Refusal::Pinned(pinned));
    }
    let good = versions
        .iter()
        .find(|version| version.good && version.number < current.number);
    good.ok_or(Refusal::NoneGood(current.number))
}

fn refused((namespace, name): (&str, &str), versions: &[SetVersion], refusal: &Refusal) -> Failure {
    let code = match refusal {
        Refusal::Missing(_) => exit::MISSING,
        Refusal::Empty | Refusal::Pinned(_) | Refusal::NoneGood(_) => exit::CONFLICT,
    };
    let failure = Failure::new(code, format!("{namespace}/{name} can't be rolled back: {refusal}"))
        .next(format!("{{program}} history serviceset/{namespace}/{name}"));
    match refusal {
        Refusal::Missing(_) if versions.is_empty() => failure.evidence(Refusal::Empty.to_string()),
        Refusal::Missing(_) => failure.evidence(list_versions(versions.iter().map(|version| version.number))),
        _ => failure,
    }
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
        assert_eq!(chosen(None, Some(3)), Err(Refusal::Pinned(3)));
        assert_eq!(chosen(Some("9"), None), Err(Refusal::Missing("9".to_owned())));
        assert_eq!(
            choose(&versions[..2], None, None).map(|version| version.number),
            Err(Refusal::NoneGood(5))
        );
        assert_eq!(choose(&[], None, None).unwrap_err(), Refusal::Empty);
        // The newest good version is the one that runs already.
        assert_eq!(choose(&versions[2..], None, None).map(|version| version.number), Ok(2));
    }
    #[test]
    fn a_version_that_does_not_exist_is_missing_and_those_that_exist_are_named() {
        let refused = |versions: &[SetVersion]| {
            let failure = refused(
                ("team-a", "site"),
                versions,
                &choose(versions, Some("9"), None).unwrap_err(),
            );
            (failure.code, failure.evidence.unwrap())
        };
        assert_eq!(
            refused(&[version(2, true), version(1, true)]),
            (exit::MISSING, "it has versions 2, 1".to_owned())
        );
        assert_eq!(
            refused(&[]),
            (exit::MISSING, "nothing of it was ever rolled out".to_owned())
        );
    }
}
