//! History: what a service was assigned, why, and with which result; and which version a rollback returns to.

mod choose;

use std::collections::BTreeMap;

use farwater_api::{
    Digest,
    history::{Cause, HistoryEntry, VersionResult},
    objects::{Outcome, ServiceReport},
    service_deployment::Pin,
    test_container::ServiceTest,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    assignment::{Candidate, Part},
    conditions::{cut, whole_seconds},
    summary,
    words::signed,
};
pub use choose::{Refusal, choose};

/// Versions kept of each service: some weeks of a busy one, while a million services add little to a database.
pub const KEPT: usize = 20;
const MAX_MESSAGE_BYTES: usize = 256;

/// A version, with what is needed to assign it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    #[serde(flatten)]
    pub told: HistoryEntry,
    pub content_id: Digest,
    pub bundle_bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Name of the source in the service's spec. Empty for a version that an older hub recorded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source_name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Number of the rollout of its set that released it. 0: the service has no set, or the version is older than this
    /// field.
    #[serde(default, skip_serializing_if = "farwater_api::is_zero")]
    pub rollout: u64,
    /// Number of the last healthy version before this one. 0: none is known.
    #[serde(default, skip_serializing_if = "farwater_api::is_zero")]
    pub good_before: u64,
    /// MAC of the parameters that it last got. None: it has none, or they were not recorded yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Digest>,
}

/// The effect of parameters on the newest version.
#[derive(Clone, Debug, PartialEq)]
pub enum Handed {
    Same,
    /// The same version, with its parameters recorded.
    Noted(Box<Version>),
    /// A new version. It replaces the newest one if that is a change of parameters too, and not the only healthy one of
    /// its content. So changes of parameters don't push the versions that a rollback needs out of the history.
    Next(Box<Version>),
}

/// What a service's spec states about the version to run, and who stated it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stated<'a> {
    pub source_name: &'a str,
    pub pin: Option<&'a Pin>,
    pub pinned_by: Option<&'a str>,
    /// Who last named the source or the path, set the pin or removed it.
    pub changed_by: Option<&'a str>,
    /// Number of its set's rollout. 0: it has no set.
    pub rollout: u64,
    /// Its set is pinned, or the rollout of its set goes back.
    pub goes_back: bool,
}

impl Version {
    /// The version that follows `last`.
    pub fn new(last: Option<&Self>, candidate: &Candidate, stated: Stated<'_>, now: Timestamp) -> Self {
        let pin = stated.pin.filter(|pin| pin.bundle == candidate.bundle);
        let cause = find_cause((pin, stated.goes_back), last, candidate);
        let by = find_author(cause, last, candidate, stated);

        let told = HistoryEntry {
            number: last.map_or(1, |last| last.told.number + 1),
            revision: candidate.revision.clone(),
            bundle: candidate.bundle,
            path: candidate.path.clone(),
            cause,
            by: by.map(str::to_owned),
            author: Some(candidate.author.clone()).filter(|author| !author.is_empty()),
            reason: pin.and_then(|pin| pin.reason.clone()),
            assigned: whole_seconds(now),
            result: VersionResult::Pending,
            message: String::new(),
            settled: None,
        };

        let Candidate {
            content_id,
            bundle_bytes,
            ref source,
            ref origin,
            ..
        } = *candidate;
        let source_name = stated.source_name.to_owned();
        let (parts, configuration) = (candidate.parts.clone(), candidate.configuration.clone());
        let (source, origin, rollout) = (source.clone(), origin.clone(), stated.rollout);
        let good_before = last.map_or(0, Self::good);
        Self {
            told,
            content_id,
            bundle_bytes,
            source,
            origin,
            source_name,
            parts,
            configuration,
            rollout,
            good_before,
            parameters: None,
        }
    }

    /// Applies the parameters that the service gets now to the newest version. A pinned version keeps the pin as its
    /// cause. `others`: the versions before it.
    pub fn hand(&self, parameters: Option<Digest>, others: &[Self], now: Timestamp) -> Handed {
        if self.parameters == parameters {
            return Handed::Same;
        }

        let mut next = Self {
            parameters,
            ..self.clone()
        };
        if self.parameters.is_none() || parameters.is_none() || self.told.cause == Cause::Pinned {
            return Handed::Noted(Box::new(next));
        }

        let is_healthy = |version: &Self| version.told.result.is_good();
        let is_same = |other: &&Self| other.told.bundle == self.told.bundle && other.told.number != self.told.number;
        let is_only_good = is_healthy(self) && !others.iter().filter(is_same).any(is_healthy);
        if self.told.cause != Cause::Parameters || is_only_good {
            next.told.number += 1;
            next.good_before = self.good();
        }

        next.told = HistoryEntry {
            cause: Cause::Parameters,
            by: None,
            author: None,
            reason: None,
            assigned: whole_seconds(now),
            result: VersionResult::Pending,
            message: String::new(),
            settled: None,
            ..next.told
        };
        Handed::Next(Box::new(next))
    }

    /// Number of the last healthy version up to this one.
    fn good(&self) -> u64 {
        if self.told.result.is_good() {
            self.told.number
        } else {
            self.good_before
        }
    }

    pub fn candidate(&self) -> Candidate {
        Candidate {
            revision: self.told.revision.clone(),
            content_id: self.content_id,
            bundle: self.told.bundle,
            bundle_bytes: self.bundle_bytes,
            path: self.told.path.clone(),
            source: self.source.clone(),
            origin: self.origin.clone(),
            author: self.told.author.clone().unwrap_or_default(),
            reads: String::new(),
            rendered: Vec::new(),
            parts: self.parts.clone(),
            // Rolling back to a version reads no artifact again.
            artifacts: Vec::new(),
            configuration: self.configuration.clone(),
        }
    }

    /// Records an agent's report about it. Returns whether that is news.
    pub fn note_report(&mut self, report: &ServiceReport, tests: &[ServiceTest], now: Timestamp) -> bool {
        let Some((result, message)) = judge_report(report, tests) else {
            return false;
        };
        let is_same_prune = result != VersionResult::PruneHeld || cut(&message, MAX_MESSAGE_BYTES) == self.told.message;
        let is_known = result == self.told.result && is_same_prune;
        // A version that was healthy stays so. A prune may be held for a while.
        if is_known || (self.told.result.is_good() && !result.is_good()) {
            return false;
        }
        self.settle(result, &message, now);
        true
    }

    /// Records that the next version came. Returns whether that changes this one's result.
    pub fn supersede(&mut self, now: Timestamp) -> bool {
        match self.told.result {
            VersionResult::Pending => self.settle(VersionResult::Superseded, "", now),
            VersionResult::Applied => {
                self.settle(VersionResult::Superseded, "it was applied and not healthy yet", now);
            }
            _ => return false,
        }
        true
    }

    fn settle(&mut self, result: VersionResult, message: &str, now: Timestamp) {
        self.told.result = result;
        self.told.message = cut(message, MAX_MESSAGE_BYTES);
        self.told.settled = Some(whole_seconds(now));
    }
}

fn find_cause((pin, goes_back): (Option<&Pin>, bool), last: Option<&Version>, candidate: &Candidate) -> Cause {
    match (pin, last) {
        (Some(_), _) => Cause::Pinned,
        (None, None) => Cause::Created,
        (None, Some(_)) if goes_back => Cause::RolledBack,
        (None, Some(last)) if last.told.cause == Cause::Pinned => Cause::Unpinned,
        (None, Some(last)) if last.told.path != candidate.path || last.source != candidate.source => Cause::Spec,
        (None, Some(_)) => Cause::Commit,
    }
}

/// The person that caused a version. None: no person did.
fn find_author<'a>(cause: Cause, last: Option<&Version>, candidate: &Candidate, stated: Stated<'a>) -> Option<&'a str> {
    // A change of the source's address or branch is not a change of the service by a person.
    let is_restated = last.is_some_and(|last| {
        let renamed = !last.source_name.is_empty() && last.source_name != stated.source_name;
        renamed || last.told.path != candidate.path
    });
    match cause {
        Cause::Pinned => stated.pinned_by,
        Cause::Created | Cause::Unpinned => stated.changed_by,
        Cause::Spec if is_restated => stated.changed_by,
        Cause::Spec | Cause::Commit | Cause::Parameters | Cause::RolledBack | Cause::Unknown => None,
    }
}

/// None: the report does not show the version's result.
pub(crate) fn judge_report(report: &ServiceReport, tests: &[ServiceTest]) -> Option<(VersionResult, String)> {
    let counts = summary::count(&report.objects);
    let first = || summary::first_message(&report.objects);
    match report.outcome {
        Outcome::Failed if report.message.is_empty() => Some((VersionResult::Failed, first())),
        Outcome::Failed => Some((VersionResult::Failed, report.message.clone())),
        Outcome::Applied if counts.failed > 0 => Some((VersionResult::Failed, first())),
        Outcome::Applied if counts.healthy < counts.total => Some((VersionResult::Applied, String::new())),
        Outcome::Applied => match summary::missing_test(report, tests) {
            Some(test) => Some((
                VersionResult::Applied,
                format!("test {test} was not run: its agent runs no tests"),
            )),
            None => Some(match &report.held_prune {
                Some(held) => (VersionResult::PruneHeld, summary::describe_held(held)),
                None => (VersionResult::Healthy, String::new()),
            }),
        },
        Outcome::Applying | Outcome::Superseded | Outcome::Removed | Outcome::Unknown => None,
    }
}

/// How the newest version of a history came back: ` again, rolled back from main@sha1:def by ann: def crashes`. None: it
/// is no rollback, or it was applied before.
pub fn describe_return(history: &[HistoryEntry]) -> Option<String> {
    let newest = history.first().filter(|newest| newest.cause.is_return())?;
    if newest.result == VersionResult::Applied || newest.result.is_good() {
        return None;
    }
    let left = history.iter().find(|entry| entry.bundle != newest.bundle)?;
    let by = match newest.cause {
        Cause::RolledBack => Some("the rollout of its set"),
        _ => newest.by.as_deref(),
    };
    let signed = signed(by, newest.reason.as_deref());
    Some(format!(" again, rolled back from {}{signed}", left.revision))
}

/// The version of a set's service at the end of a rollout, from a history with the newest first. A version that a
/// person pinned belongs to no rollout.
pub fn version_at(history: &[Version], rollout: u64) -> Option<&Version> {
    history
        .iter()
        .find(|version| version.rollout <= rollout && version.told.cause != Cause::Pinned)
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        objects::{Health, ObjectRef, ObjectReport, SyncState},
        service_deployment::HeldPrune,
    };

    use super::*;

    pub(super) fn candidate(commit: &str, bundle: &str) -> Candidate {
        Candidate {
            content_id: Digest::of(bundle),
            bundle: Digest::of(bundle),
            bundle_bytes: 10,
            path: "apps/web".to_owned(),
            source: "https://git.example.com/infra.git".to_owned(),
            author: "Bob <bob@example.com>".to_owned(),
            ..Candidate::of_commit(commit)
        }
    }

    pub(super) fn pinned<'a>(pin: &'a Pin, by: &'a str) -> Stated<'a> {
        Stated {
            pin: Some(pin),
            pinned_by: Some(by),
            changed_by: Some(by),
            source_name: "infra",
            ..Stated::default()
        }
    }

    fn changed(by: &str) -> Stated<'_> {
        Stated {
            changed_by: Some(by),
            source_name: "infra",
            ..Stated::default()
        }
    }

    pub(super) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn report(outcome: Outcome, health: Health) -> ServiceReport {
        let object = ObjectRef {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: "web".to_owned(),
            name: "web".to_owned(),
        };
        let message = "crashes".to_owned();
        let object = ObjectReport {
            object,
            sync: SyncState::Synced,
            health,
            message,
            waits_for: None,
        };
        ServiceReport {
            entry: Digest::of("entry"),
            outcome,
            message: String::new(),
            held_prune: None,
            deletion: None,
            hooks: Vec::new(),
            objects: vec![object],
        }
    }

    #[test]
    fn a_version_says_why_it_was_assigned() {
        let first = Version::new(None, &candidate("1", "a"), changed("maker"), at(1));
        let second = Version::new(Some(&first), &candidate("2", "b"), changed("maker"), at(2));
        let pin = Pin {
            bundle: Digest::of("a"),
            reason: Some("b crashes".to_owned()),
        };
        let third = Version::new(Some(&second), &candidate("1", "a"), pinned(&pin, "ann"), at(3));
        let fourth = Version::new(Some(&third), &candidate("3", "c"), changed("eve"), at(4));
        let moved = Candidate {
            path: "other".to_owned(),
            ..candidate("3", "d")
        };
        let fifth = Version::new(Some(&fourth), &moved, changed("mallory"), at(5));
        // The source has another address, which no person stated in the service; then the service names another source.
        let elsewhere = |bundle| Candidate {
            path: "other".to_owned(),
            source: "elsewhere".to_owned(),
            ..candidate("4", bundle)
        };
        let sixth = Version::new(Some(&fifth), &elsewhere("e"), changed("mallory"), at(6));
        let renamed = Stated {
            source_name: "apps",
            ..changed("zoe")
        };
        let back = Candidate {
            path: "other".to_owned(),
            ..candidate("5", "f")
        };
        let seventh = Version::new(Some(&sixth), &back, renamed, at(7));
        let all = [&first, &second, &third, &fourth, &fifth, &sixth, &seventh];
        let told = [
            (Cause::Created, Some("maker")),
            (Cause::Commit, None),
            (Cause::Pinned, Some("ann")),
            (Cause::Unpinned, Some("eve")),
            (Cause::Spec, Some("mallory")),
            (Cause::Spec, None),
            (Cause::Spec, Some("zoe")),
        ];
        assert_eq!(
            all.map(|version| (version.told.cause, version.told.by.as_deref())),
            told
        );
        assert_eq!(all.map(|version| version.told.number), [1, 2, 3, 4, 5, 6, 7]);
        assert!(
            all.iter()
                .all(|version| version.told.author.as_deref() == Some("Bob <bob@example.com>"))
        );
        assert_eq!(third.told.reason.as_deref(), Some("b crashes"));
        assert_eq!(third.candidate(), candidate("1", "a"));
        let text = serde_json::to_string(&third).unwrap();
        assert_eq!(serde_json::from_str::<Version>(&text).unwrap(), third);
        // A pin that is not in effect yet is not the cause of a version in between.
        let meanwhile = Version::new(Some(&first), &candidate("2", "b"), pinned(&pin, "ann"), at(8));
        assert_eq!((meanwhile.told.cause, meanwhile.told.by), (Cause::Commit, None));
    }

    #[test]
    fn a_rollback_says_what_it_left_until_it_is_applied() {
        let first = Version::new(None, &candidate("1", "a"), changed("maker"), at(1));
        let second = Version::new(Some(&first), &candidate("2", "b"), changed("maker"), at(2));
        let pin = Pin {
            bundle: Digest::of("a"),
            reason: Some("b crashes".to_owned()),
        };
        let check = |stated: Stated<'_>, expected: Option<&str>| {
            let mut third = Version::new(Some(&second), &candidate("1", "a"), stated, at(3));
            let told = |third: &Version| {
                let history = [third, &second, &first].map(|version| version.told.clone());
                describe_return(&history)
            };
            assert_eq!(told(&third).as_deref(), expected);
            // Another spec of the same version is no rollback.
            third.settle(VersionResult::Healthy, "", at(4));
            assert_eq!(told(&third), None);
        };
        let by_ann = " again, rolled back from main@sha1:2 by ann: b crashes";
        check(pinned(&pin, "ann"), Some(by_ann));
        let of_set = Stated {
            goes_back: true,
            ..changed("maker")
        };
        let by_set = " again, rolled back from main@sha1:2 by the rollout of its set";
        check(of_set, Some(by_set));
        check(changed("maker"), None);
    }

    #[test]
    fn a_version_with_a_held_prune_says_so_until_the_prune_is_done() {
        let mut version = Version::new(None, &candidate("1", "a"), Stated::default(), at(1));
        let mut said = report(Outcome::Applied, Health::Current);
        said.held_prune = Some(HeldPrune {
            digest: Digest::of("plan"),
            reason: "nothing would be left".to_owned(),
            count: 3,
            objects: Vec::new(),
            contents: Vec::new(),
            until_applied: false,
            earlier: Vec::new(),
        });
        assert!(version.note_report(&said, &[], at(2)) && !version.note_report(&said, &[], at(3)));
        assert_eq!(
            (version.told.result, version.told.message.as_str(), version.good()),
            (
                VersionResult::PruneHeld,
                "3 objects wait to be pruned: nothing would be left",
                1
            )
        );
        said.held_prune = None;
        assert!(version.note_report(&said, &[], at(4)));
        assert_eq!(
            (version.told.result, version.told.message.as_str()),
            (VersionResult::Healthy, "")
        );
    }

    #[test]
    fn a_version_is_healthy_once_and_for_all_and_failed_until_it_is() {
        let mut version = Version::new(None, &candidate("1", "a"), Stated::default(), at(1));
        let mut note = |outcome, health, second| {
            let news = version.note_report(&report(outcome, health), &[], at(second));
            (
                news,
                version.told.result,
                version.told.settled.as_ref().map_or(0, |time| time.0.as_second()),
            )
        };
        assert_eq!(
            note(Outcome::Applying, Health::Unknown, 2),
            (false, VersionResult::Pending, 0)
        );
        assert_eq!(
            note(Outcome::Applied, Health::InProgress, 3),
            (true, VersionResult::Applied, 3)
        );
        assert_eq!(
            note(Outcome::Applied, Health::Failed, 4),
            (true, VersionResult::Failed, 4)
        );
        assert_eq!(
            note(Outcome::Applied, Health::Failed, 5),
            (false, VersionResult::Failed, 4)
        );
        assert_eq!(
            note(Outcome::Applied, Health::Current, 6),
            (true, VersionResult::Healthy, 6)
        );
        assert_eq!(
            note(Outcome::Failed, Health::Current, 7),
            (false, VersionResult::Healthy, 6)
        );
        assert!(!version.supersede(at(8)));
        let mut pending = Version::new(None, &candidate("1", "a"), Stated::default(), at(1));
        assert!(pending.supersede(at(2)) && pending.told.result == VersionResult::Superseded);
    }

    #[test]
    fn changed_parameters_are_a_version_and_leave_others_in_the_history() {
        let mac = |text: &str| Some(Digest::of(text));
        let mut first = Version::new(None, &candidate("1", "a"), Stated::default(), at(1));
        first.settle(VersionResult::Healthy, "", at(2));
        let Handed::Noted(noted) = first.hand(mac("x"), &[], at(3)) else {
            panic!("its first are no change")
        };
        assert_eq!((noted.hand(mac("x"), &[], at(4)), noted.told.number), (Handed::Same, 1));
        let Handed::Next(second) = noted.hand(mac("y"), &[], at(5)) else {
            panic!("a change")
        };
        assert_eq!(
            (second.told.number, second.told.cause, second.good_before),
            (2, Cause::Parameters, 1)
        );
        assert_eq!(
            (second.told.result, second.candidate()),
            (
                VersionResult::Pending,
                Candidate {
                    author: String::new(),
                    ..candidate("1", "a")
                }
            )
        );
        let Handed::Next(third) = second.hand(mac("z"), &[], at(6)) else {
            panic!("another change")
        };
        assert_eq!((third.told.number, third.told.assigned.0), (2, at(6)), "in its place");
        assert!(matches!(third.hand(None, &[], at(7)), Handed::Noted(_)));
        // The only version that shows that its content was healthy stays.
        let mut good = *third;
        good.settle(VersionResult::Healthy, "", at(7));
        let number = |others: &[Version]| match good.hand(mac("v"), others, at(8)) {
            Handed::Next(next) => next.told.number,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (number(&[good.clone()]), number(&[first.clone(), good.clone()])),
            (3, 2)
        );
        let pin = Pin {
            bundle: Digest::of("a"),
            reason: None,
        };
        let pinned = Version {
            parameters: mac("x"),
            ..Version::new(Some(&first), &candidate("1", "a"), pinned(&pin, "ann"), at(8))
        };
        assert!(matches!(pinned.hand(mac("y"), &[], at(9)), Handed::Noted(_)));
    }
}
