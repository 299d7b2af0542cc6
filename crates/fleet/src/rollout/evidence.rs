//! What the hub knows of a member: what its agent reports about the published entry, and whether the agent is heard.

use farwater_api::{
    Digest,
    history::VersionResult,
    objects::{Outcome, ServiceReport},
    test_container::ServiceTest,
};
use serde::{Deserialize, Serialize};

use super::ChangeId;
use crate::{conditions::cut, history::judge_report};

const MAX_MESSAGE_BYTES: usize = 256;

/// The entry of the desired state that a member's agent is given, and the change that it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    pub entry: Digest,
    pub change: ChangeId,
}

/// The agent's last report on one entry. It counts while that entry is published: the next entry has no evidence until
/// a report names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    entry: Digest,
    change: ChangeId,
    said: Said,
    /// When the agent began to report this, in seconds.
    since: i64,
    /// Since when the change is healthy, in seconds. It is kept when another entry for the same change is published,
    /// e.g. after a renewed Secret: otherwise a service whose Secrets are renewed often would never finish its soak. A
    /// failure ends it. None: not healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    healthy_since: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "message")]
pub enum Said {
    Progressing,
    /// All objects are healthy, and every test was run.
    Healthy,
    Failed(String),
}

impl Evidence {
    /// Stores a report and returns whether it is news. A report on another entry than the published one never is.
    pub fn note(
        known: &mut Option<Self>,
        published: Option<Published>,
        report: &ServiceReport,
        tests: &[ServiceTest],
        now: i64,
    ) -> bool {
        let Some(Published { entry, change }) = published.filter(|published| published.entry == report.entry) else {
            return false;
        };
        // The agent has not begun to apply this entry.
        if report.outcome == Outcome::Superseded {
            return false;
        }

        let before = known.take().filter(|before| before.change == change);
        let is_same = before.as_ref().is_some_and(|before| before.entry == entry);
        let said = match judge_report(report, tests) {
            Some((result, _)) if result.is_good() => Said::Healthy,
            Some((VersionResult::Failed, message)) => Said::Failed(cut(&message, MAX_MESSAGE_BYTES)),
            Some(_) => Said::Progressing,
            // The agent has begun to apply the entry. For a change that was already judged this says nothing new.
            None if is_same => {
                *known = before;
                return false;
            }
            None => Said::Progressing,
        };

        // A change that fell back by itself has to soak again.
        let outlasts = |before: &&Self| !is_same || said == Said::Healthy || before.said != Said::Healthy;
        let kept = before.as_ref().filter(outlasts).and_then(|before| before.healthy_since);
        let healthy_since = match said {
            Said::Healthy => Some(kept.unwrap_or(now)),
            Said::Progressing => kept,
            Said::Failed(_) => None,
        };

        let goes_on = before.as_ref().filter(|before| is_same && is_like(&before.said, &said));
        let since = goes_on.map_or(now, |before| before.since);
        let next = Self {
            entry,
            change,
            said,
            since,
            healthy_since,
        };
        let is_news = before.as_ref() != Some(&next);
        *known = Some(next);
        is_news
    }

    /// This evidence, if it is about the entry that is published now.
    pub(super) fn on(&self, published: Option<Published>) -> Option<&Self> {
        published
            .is_some_and(|published| published.entry == self.entry)
            .then_some(self)
    }

    pub fn said(&self) -> &Said {
        &self.said
    }

    pub(super) fn change(&self) -> ChangeId {
        self.change
    }

    pub(super) fn since(&self) -> i64 {
        self.since
    }

    /// Since when the change is healthy, in seconds. None: it is not healthy.
    pub fn healthy_since(&self) -> Option<i64> {
        self.healthy_since.filter(|_| self.said == Said::Healthy)
    }
}

fn is_like(one: &Said, other: &Said) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Whether the member's cluster is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Heard {
        /// Time of the last poll, in seconds.
        at: i64,
    },
    /// The hub was away, and has not heard the cluster since it started. It has not waited long enough to call it
    /// silent.
    NotYet,
    Silent {
        /// Time of the last poll, in seconds.
        since: i64,
        /// Whether the cluster has polled since the present entry was published.
        has_entry: bool,
    },
}

#[cfg(test)]
mod tests {
    use farwater_api::objects::{Health, ObjectRef, ObjectReport, SyncState};

    use super::*;
    use crate::rollout::tests::id;

    fn report(entry: &str, outcome: Outcome, health: Health) -> ServiceReport {
        let [group, namespace, name] = ["", "web", "web"].map(str::to_owned);
        let object = ObjectRef {
            group,
            version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace,
            name,
        };
        let object = ObjectReport {
            object,
            sync: SyncState::Synced,
            health,
            message: "crashes".to_owned(),
            waits_for: None,
        };
        ServiceReport {
            entry: Digest::of(entry),
            outcome,
            message: String::new(),
            held_prune: None,
            deletion: None,
            hooks: Vec::new(),
            objects: vec![object],
        }
    }

    fn published(entry: &str, change: &str) -> Option<Published> {
        Some(Published {
            entry: Digest::of(entry),
            change: id(change),
        })
    }

    /// Feeds reports `(published entry, its change, reported entry, health)` at seconds 1, 2 …, and returns the final
    /// evidence.
    fn after(reports: &[(&str, &str, &str, Health)]) -> Option<(Said, i64, Option<i64>)> {
        let mut known = None;
        for (second, (entry, change, reported, health)) in (1..).zip(reports) {
            let report = report(reported, Outcome::Applied, *health);
            Evidence::note(&mut known, published(entry, change), &report, &[], second);
        }
        known.map(|known| (known.said, known.since, known.healthy_since))
    }

    #[test]
    fn a_report_of_another_entry_says_nothing() {
        use Health::{Current, Failed};
        assert_eq!(after(&[("1", "a", "0", Current)]), None);
        assert_eq!(
            after(&[("1", "a", "1", Current), ("2", "a", "1", Failed)]),
            Some((Said::Healthy, 1, Some(1)))
        );
        let mut known = None;
        Evidence::note(
            &mut known,
            published("1", "a"),
            &report("1", Outcome::Applied, Current),
            &[],
            1,
        );
        let known = known.unwrap();
        assert!(known.on(published("1", "a")).is_some());
        assert!(known.on(published("2", "a")).is_none() && known.on(None).is_none());
    }

    #[test]
    fn what_was_healthy_goes_on_over_an_entry_for_the_same_change() {
        use Health::{Current, Failed, InProgress};
        let renewed = [
            ("1", "a", "1", Current),
            ("2", "a", "2", InProgress),
            ("2", "a", "2", Current),
        ];
        assert_eq!(after(&renewed), Some((Said::Healthy, 3, Some(1))));
        let other = [("1", "a", "1", Current), ("2", "b", "2", Current)];
        assert_eq!(after(&other), Some((Said::Healthy, 2, Some(2))));
        let failed = [
            ("1", "a", "1", Current),
            ("2", "a", "2", Failed),
            ("2", "a", "2", Current),
        ];
        assert_eq!(after(&failed), Some((Said::Healthy, 3, Some(3))));
    }

    #[test]
    fn what_falls_back_by_itself_soaks_again() {
        use Health::{Current, InProgress};
        let flaps = [
            ("1", "a", "1", Current),
            ("1", "a", "1", InProgress),
            ("1", "a", "1", Current),
        ];
        assert_eq!(after(&flaps), Some((Said::Healthy, 3, Some(3))));
        let twice = [("1", "a", "1", Current), ("1", "a", "1", Current)];
        assert_eq!(after(&twice), Some((Said::Healthy, 1, Some(1))));
    }

    #[test]
    fn what_has_begun_is_on_its_way_and_what_begins_again_is_no_news() {
        let mut known = None;
        let mut note = |outcome, second| {
            let report = report("1", outcome, Health::Current);
            let news = Evidence::note(&mut known, published("1", "a"), &report, &[], second);
            (news, known.as_ref().map(|known| known.said.clone()))
        };
        assert_eq!(note(Outcome::Applying, 1), (true, Some(Said::Progressing)));
        assert_eq!(note(Outcome::Applied, 2), (true, Some(Said::Healthy)));
        assert_eq!(note(Outcome::Applying, 3), (false, Some(Said::Healthy)));
        assert_eq!(note(Outcome::Applied, 4), (false, Some(Said::Healthy)));
    }
}
