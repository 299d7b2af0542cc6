//! Chooses the version that a rollback returns to.

use farwater_api::history::HistoryEntry;

/// A shorter prefix of a commit's id would be a guess.
const LEAST_COMMIT: usize = 4;

/// Why no version can be rolled back to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("nothing was ever assigned to it")]
    Empty,
    #[error("no version before {0} was healthy")]
    NoneHealthy(u64),
    #[error("its history has no version {0:?}")]
    Missing(String),
    #[error("{text:?} may be {}", numbers.iter().map(|number| format!("version {number}")).collect::<Vec<_>>().join(" or "))]
    Ambiguous { text: String, numbers: Vec<u64> },
}

/// The wanted version, from a history with the newest first: by number, digest, revision or a prefix of its commit.
pub fn choose<'a>(history: &'a [HistoryEntry], wanted: Option<&str>) -> Result<&'a HistoryEntry, Refusal> {
    let current = history.first().ok_or(Refusal::Empty)?;
    let Some(wanted) = wanted else {
        return choose_previous(history, current);
    };
    if let Some(found) = history.iter().find(|entry| wanted.parse() == Ok(entry.number)) {
        return Ok(found);
    }
    let mut found: Vec<&HistoryEntry> = history.iter().filter(|entry| is_named(entry, wanted)).collect();
    // Of versions with the same content only the newest counts.
    let mut seen = Vec::new();
    found.retain(|entry| {
        !seen.contains(&entry.bundle) && {
            seen.push(entry.bundle);
            true
        }
    });
    match found.as_slice() {
        [] => Err(Refusal::Missing(wanted.to_owned())),
        [one] => Ok(one),
        several => Err(Refusal::Ambiguous {
            text: wanted.to_owned(),
            numbers: several.iter().map(|entry| entry.number).collect(),
        }),
    }
}

fn is_named(entry: &HistoryEntry, wanted: &str) -> bool {
    let commit = entry.revision.rsplit(':').next().unwrap_or_default();
    entry.revision == wanted
        || entry.bundle.to_string() == wanted
        || (wanted.len() >= LEAST_COMMIT && commit.starts_with(wanted))
}

/// The newest healthy version with other content before the current one. If the current one is a rollback: before its
/// first appearance.
fn choose_previous<'a>(history: &'a [HistoryEntry], current: &HistoryEntry) -> Result<&'a HistoryEntry, Refusal> {
    let same = |entry: &&HistoryEntry| current.cause.is_return() && entry.bundle == current.bundle;
    let origin = history.iter().rfind(same).unwrap_or(current);
    let earlier = history
        .iter()
        .filter(|entry| entry.number < origin.number && entry.bundle != current.bundle);
    let mut healthy = earlier.filter(|entry| entry.result.is_good());
    healthy.next().ok_or(Refusal::NoneHealthy(origin.number))
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        Digest,
        history::{Cause, VersionResult},
        service_deployment::Pin,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::history::{
        Stated, Version,
        tests::{at, candidate, pinned},
    };

    fn history(versions: &[(&str, bool, bool)]) -> Vec<HistoryEntry> {
        let mut all: Vec<Version> = Vec::new();
        for (i, (bundle, healthy, is_pinned)) in versions.iter().enumerate() {
            let candidate = candidate(&format!("abc{i}"), bundle);
            let pin = Pin {
                bundle: candidate.bundle,
                reason: None,
            };
            let stated = if *is_pinned {
                pinned(&pin, "ann")
            } else {
                Stated::default()
            };
            let mut next = Version::new(all.last(), &candidate, stated, at(100));
            if *healthy {
                next.settle(VersionResult::Healthy, "", at(101));
            }
            all.push(next);
        }
        all.into_iter().rev().map(|version| version.told).collect()
    }

    #[test]
    fn a_rollback_goes_to_the_last_healthy_version_before() {
        let check = |versions: &[(&str, bool, bool)], expected: Result<u64, Refusal>| {
            let history = history(versions);
            assert_eq!(choose(&history, None).map(|entry| entry.number), expected);
        };
        check(&[], Err(Refusal::Empty));
        check(&[("a", true, false)], Err(Refusal::NoneHealthy(1)));
        check(&[("a", true, false), ("b", false, false)], Ok(1));
        check(&[("a", true, false), ("b", false, false), ("c", false, false)], Ok(1));
        check(&[("a", false, false), ("b", true, false)], Err(Refusal::NoneHealthy(2)));
        // A second rollback: from where the version first appeared, not from the version that was rolled back.
        let twice = [
            ("a", true, false),
            ("b", true, false),
            ("c", true, false),
            ("b", true, true),
        ];
        check(&twice, Ok(1));
        // The same content again is no other version.
        check(&[("a", true, false), ("b", true, false), ("a", true, false)], Ok(2));
    }

    #[test]
    fn versions_are_named_by_number_commit_revision_or_digest() {
        let history = history(&[("a", true, false), ("b", true, false), ("a", true, true)]);
        let choose = |text: &str| choose(&history, Some(text)).map(|entry| entry.number);
        assert_eq!(choose("1"), Ok(1));
        assert_eq!(choose("abc1"), Ok(2));
        assert_eq!(choose("main@sha1:abc0"), Ok(1));
        assert_eq!(choose(&Digest::of("a").to_string()), Ok(3));
        assert_eq!(choose("9"), Err(Refusal::Missing("9".to_owned())));
        assert_eq!(choose("abc"), Err(Refusal::Missing("abc".to_owned())));
        let long = self::history(&[("a", true, false); 12].map(|_| ("x", true, false)));
        assert_eq!(super::choose(&long, Some("abc1")).map(|entry| entry.number), Ok(12));
        let two = Refusal::Ambiguous {
            text: "abc1".to_owned(),
            numbers: vec![12, 11, 2],
        };
        let names: Vec<String> = (0..12).map(|n| n.to_string()).collect();
        let versions: Vec<_> = names.iter().map(|name| (name.as_str(), true, false)).collect();
        assert_eq!(
            super::choose(&self::history(&versions), Some("abc1")).map(|entry| entry.number),
            Err(two)
        );
    }

    proptest! {
        /// For any assignments: a rollback never chooses the current version nor one that was never healthy, and
        /// repeated rollbacks go further back until none is left.
        #[test]
        fn rollbacks_end(courses in prop::collection::vec((0..4u8, any::<bool>()), 1..20)) {
            let names: Vec<String> = courses.iter().map(|(bundle, _)| bundle.to_string()).collect();
            let versions: Vec<_> =
                names.iter().zip(&courses).map(|(name, (_, healthy))| (name.as_str(), *healthy, false)).collect();
            let mut all = history(&versions);
            let mut least = u64::MAX;
            for _ in 0..versions.len() {
                let current = all[0].clone();
                let Ok(target) = choose(&all, None) else { return Ok(()) };
                prop_assert!(target.bundle != current.bundle && target.result == VersionResult::Healthy);
                prop_assert!(target.number < least);
                least = target.number;
                let mut next = target.clone();
                next.number = current.number + 1;
                next.cause = Cause::Pinned;
                all.insert(0, next);
            }
            prop_assert!(choose(&all, None).is_err());
        }
    }
}
