//! Assignment: which revision of its source a service runs.
//!
//! A changed source produces *candidates*. [`decide`] alone turns a candidate into an *assignment*, so pins, freezes,
//! rollouts and approvals change this decision and nothing else. [`resolve_action`] says what the agent gets as its
//! action for the service.

mod action;
mod candidate;
mod held;
mod suspension;

use farwater_api::protocol::Ceiling;
use serde::{Deserialize, Serialize};

use crate::{placement::Denied, windows::Closed};

pub use action::{EntryInputs, resolve_action};
pub use candidate::{Candidate, Part, Trouble};
pub use held::held_version;
pub use suspension::{describe_suspension, is_suspended, suspension_end};

#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Suspended by the service or by its cluster.
    pub suspended: bool,
    /// The candidate that the service is pinned to, which replaces `candidate`. None: not pinned.
    pub pinned: Option<Result<&'a Candidate, &'a Trouble>>,
    pub candidate: Result<&'a Candidate, &'a Trouble>,
    /// What other services lack that a newer bundle of this one depends on. A pin doesn't wait, because it is the way
    /// back.
    pub waits: &'a [String],
    pub ceiling: Result<&'a Ceiling, &'a Denied>,
    pub assigned: Option<&'a Candidate>,
    /// The rollout of its set has not released this candidate and spec for it yet.
    pub held: bool,
    /// The closed window that forbids every change now, also that of a pin.
    pub closed: Option<&'a Closed>,
    /// The spec in effect is an overriding one, not the service's own.
    pub restated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Assign(Box<Candidate>),
    Keep(Why),
}

/// Why the assignment stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "detail")]
pub enum Why {
    /// The candidate is already assigned.
    Current,
    Suspended,
    /// Services that it depends on are not ready: their names, and what they lack.
    Waiting(String),
    /// The rollout of its set has not released it.
    Rollout,
    /// No change may begin now.
    Frozen(Closed),
    /// The right to deploy is missing or was lost.
    NotGranted(String),
    Trouble(Trouble),
}

/// The last decision, as a row stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    #[serde(flatten)]
    pub why: Why,
    /// Whether the service's own suspension was in force at the decision. Its end changes the agent's action without
    /// any write, so this is how the change is noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// Whether no source had the name that the spec gives. The service is reconciled when one is created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sourceless: bool,
    /// As in [`Deployment::turn`].
    #[serde(default, skip_serializing_if = "farwater_api::is_zero")]
    pub turn: u64,
    /// Revision that is held back, as [`held_version`] decides. None: nothing is held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

/// Decides whether a candidate becomes the assignment. Missing or broken inputs never remove an assignment.
pub fn decide(inputs: Inputs<'_>) -> Decision {
    let candidate = match inputs.pinned.unwrap_or(inputs.candidate) {
        Err(trouble) => return Decision::Keep(Why::Trouble(trouble.clone())),
        Ok(candidate) => candidate,
    };
    if inputs.assigned == Some(candidate) {
        return Decision::Keep(match inputs.ceiling {
            Err(denied) => Why::NotGranted(denied.to_string()),
            Ok(_) if inputs.suspended => Why::Suspended,
            Ok(_) if inputs.held && inputs.pinned.is_none() => Why::Rollout,
            Ok(_) => match inputs.closed.filter(|_| inputs.restated) {
                Some(closed) => Why::Frozen(closed.clone()),
                None => Why::Current,
            },
        });
    }

    if let Err(denied) = inputs.ceiling {
        return Decision::Keep(Why::NotGranted(denied.to_string()));
    }
    if inputs.suspended {
        return Decision::Keep(Why::Suspended);
    }
    // A pin doesn't wait for the rollout: a person decided about this service alone.
    if inputs.held && inputs.pinned.is_none() {
        return Decision::Keep(Why::Rollout);
    }

    let is_news = inputs
        .assigned
        .is_none_or(|assigned| !assigned.is_same_content(candidate));
    if let Some(closed) = inputs.closed.filter(|_| is_news || inputs.restated) {
        return Decision::Keep(Why::Frozen(closed.clone()));
    }
    if is_news && inputs.pinned.is_none() && !inputs.waits.is_empty() {
        return Decision::Keep(Why::Waiting(inputs.waits.join("; ")));
    }
    Decision::Assign(Box::new(candidate.clone()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use farwater_api::{Digest, SourceKind, protocol::ServiceAccount};
    use jiff::Timestamp;

    use super::*;

    pub(super) fn candidate(commit: &str, bundle: &str) -> Candidate {
        Candidate {
            content_id: Digest::of(bundle),
            bundle: Digest::of(bundle),
            bundle_bytes: 10,
            path: "apps/web".to_owned(),
            ..Candidate::of_commit(commit)
        }
    }

    pub(super) fn ceiling() -> Ceiling {
        Ceiling {
            service_account: ServiceAccount {
                namespace: "web".to_owned(),
                name: "deployer".to_owned(),
            },
            target_namespaces: None,
            allowed_kinds: None,
            denied_kinds: None,
        }
    }

    pub(super) fn denied() -> Denied {
        Denied::NoGrant {
            namespace: "team-a".to_owned(),
            cluster: "east".to_owned(),
        }
    }

    #[test]
    fn a_candidate_is_assigned_unless_something_keeps_the_old_one() {
        let (old, new) = (candidate("1", "a"), candidate("2", "b"));
        let (ceiling, denied) = (ceiling(), denied());
        let trouble = Trouble::SourceMissing {
            kind: SourceKind::GitRepository,
            name: "infra".to_owned(),
        };
        let check = |suspended, candidate, ceiling, assigned, expected| {
            let (closed, restated, held) = (None, false, false);
            let inputs = Inputs {
                suspended,
                pinned: None,
                candidate,
                waits: &[],
                ceiling,
                assigned,
                held,
                closed,
                restated,
            };
            assert_eq!(decide(inputs), expected);
        };
        check(
            false,
            Ok(&new),
            Ok(&ceiling),
            None,
            Decision::Assign(new.clone().into()),
        );
        check(
            false,
            Ok(&new),
            Ok(&ceiling),
            Some(&old),
            Decision::Assign(new.clone().into()),
        );
        check(false, Ok(&old), Ok(&ceiling), Some(&old), Decision::Keep(Why::Current));
        check(true, Ok(&new), Ok(&ceiling), Some(&old), Decision::Keep(Why::Suspended));
        check(true, Ok(&new), Ok(&ceiling), None, Decision::Keep(Why::Suspended));
        check(
            false,
            Ok(&new),
            Err(&denied),
            Some(&old),
            Decision::Keep(Why::NotGranted(denied.to_string())),
        );
        check(
            false,
            Err(&trouble),
            Ok(&ceiling),
            Some(&old),
            Decision::Keep(Why::Trouble(trouble.clone())),
        );
        check(
            false,
            Err(&trouble),
            Ok(&ceiling),
            None,
            Decision::Keep(Why::Trouble(trouble.clone())),
        );
    }

    #[test]
    fn a_pin_stands_in_for_the_source_under_the_same_grants() {
        let (old, new) = (candidate("1", "a"), candidate("2", "b"));
        let (ceiling, denied) = (ceiling(), denied());
        let gone = Trouble::SourceMissing {
            kind: SourceKind::GitRepository,
            name: "infra".to_owned(),
        };
        let lost = Trouble::Pin {
            message: "not in the history".to_owned(),
        };
        let waits = ["database is failing".to_owned()];
        let base = Inputs {
            suspended: false,
            pinned: Some(Ok(&old)),
            candidate: Ok(&new),
            waits: &waits,
            ceiling: Ok(&ceiling),
            assigned: Some(&new),
            held: true,
            closed: None,
            restated: false,
        };
        assert_eq!(decide(base), Decision::Assign(old.clone().into()));
        assert_eq!(
            decide(Inputs {
                candidate: Err(&gone),
                ..base
            }),
            Decision::Assign(old.clone().into())
        );
        assert_eq!(
            decide(Inputs {
                assigned: Some(&old),
                ..base
            }),
            Decision::Keep(Why::Current)
        );
        assert_eq!(
            decide(Inputs {
                suspended: true,
                ..base
            }),
            Decision::Keep(Why::Suspended)
        );
        let refused = Decision::Keep(Why::NotGranted(denied.to_string()));
        assert_eq!(
            decide(Inputs {
                ceiling: Err(&denied),
                ..base
            }),
            refused
        );
        assert_eq!(
            decide(Inputs {
                pinned: Some(Err(&lost)),
                ..base
            }),
            Decision::Keep(Why::Trouble(lost))
        );
    }

    #[test]
    fn what_its_rollout_has_not_come_to_stays_as_it_is() {
        let (old, new, ceiling) = (candidate("1", "a"), candidate("2", "b"), ceiling());
        let check = |held, assigned, expected| {
            let (candidate, ceiling) = (Ok(&new), Ok(&ceiling));
            let (suspended, closed, restated) = (false, None, false);
            let inputs = Inputs {
                suspended,
                pinned: None,
                candidate,
                waits: &[],
                ceiling,
                assigned,
                held,
                closed,
                restated,
            };
            assert_eq!(decide(inputs), expected);
        };
        check(true, Some(&old), Decision::Keep(Why::Rollout));
        check(true, None, Decision::Keep(Why::Rollout));
        // The content is the same, but the template is not.
        check(true, Some(&new), Decision::Keep(Why::Rollout));
        check(false, Some(&old), Decision::Assign(new.clone().into()));
    }

    #[test]
    fn nothing_begins_while_no_change_may() {
        let (old, new, ceiling) = (candidate("1", "a"), candidate("2", "b"), ceiling());
        let same = Candidate {
            revision: "main@sha1:3".to_owned(),
            ..old.clone()
        };
        let closed = Closed {
            by: "ops/holidays".to_owned(),
            reason: "holidays".to_owned(),
            until: None,
        };
        let base = Inputs {
            suspended: false,
            pinned: None,
            candidate: Ok(&new),
            waits: &[],
            ceiling: Ok(&ceiling),
            assigned: Some(&old),
            held: false,
            closed: Some(&closed),
            restated: false,
        };
        let frozen = Decision::Keep(Why::Frozen(closed.clone()));
        assert_eq!(decide(base), frozen);
        assert_eq!(
            decide(Inputs { assigned: None, ..base }),
            frozen,
            "a first version is one too"
        );
        assert_eq!(
            decide(Inputs {
                pinned: Some(Ok(&new)),
                ..base
            }),
            frozen,
            "so is the way back"
        );
        assert_eq!(
            decide(Inputs {
                candidate: Ok(&old),
                ..base
            }),
            Decision::Keep(Why::Current)
        );
        assert_eq!(
            decide(Inputs {
                candidate: Ok(&same),
                ..base
            }),
            Decision::Assign(same.clone().into())
        );
        // Promoted texts are part of the content.
        let configuration = BTreeMap::from([("imageTag".to_owned(), "2".to_owned())]);
        let promoted = Candidate {
            configuration,
            ..same.clone()
        };
        assert_eq!(
            decide(Inputs {
                candidate: Ok(&promoted),
                ..base
            }),
            frozen
        );
        // The content is the same, but another spec would change the service.
        for candidate in [&old, &same] {
            assert_eq!(
                decide(Inputs {
                    candidate: Ok(candidate),
                    restated: true,
                    ..base
                }),
                frozen
            );
        }
        assert_eq!(
            decide(Inputs {
                suspended: true,
                ..base
            }),
            Decision::Keep(Why::Suspended)
        );
        // For a member whose turn has not come, the reason is its rollout.
        assert_eq!(decide(Inputs { held: true, ..base }), Decision::Keep(Why::Rollout));
        assert_eq!(
            decide(Inputs {
                closed: None,
                restated: true,
                ..base
            }),
            Decision::Assign(new.clone().into())
        );
    }

    #[test]
    fn a_newer_bundle_waits_for_dependencies_and_another_revision_of_the_same_does_not() {
        let (old, new) = (candidate("1", "a"), candidate("2", "b"));
        let same = Candidate {
            revision: "main@sha1:3".to_owned(),
            ..old.clone()
        };
        let ceiling = ceiling();
        let waits = ["database is failing".to_owned(), "cache does not exist".to_owned()];
        let check = |candidate, waits, assigned, expected| {
            let inputs = Inputs {
                suspended: false,
                pinned: None,
                candidate: Ok(candidate),
                waits,
                ceiling: Ok(&ceiling),
                assigned,
                held: false,
                closed: None,
                restated: false,
            };
            assert_eq!(decide(inputs), expected);
        };
        let waiting = Decision::Keep(Why::Waiting("database is failing; cache does not exist".to_owned()));
        check(&new, &waits[..], Some(&old), waiting.clone());
        check(&new, &waits[..], None, waiting);
        check(&same, &waits[..], Some(&old), Decision::Assign(same.clone().into()));
        check(&old, &waits[..], Some(&old), Decision::Keep(Why::Current));
        check(&new, &[], Some(&old), Decision::Assign(new.clone().into()));
    }

    #[test]
    fn rows_of_older_hubs_say_nothing_of_suspensions() {
        let read = |text: &str| serde_json::from_str::<Decided>(text).unwrap();
        assert_eq!(
            read(r#"{"type":"Current"}"#),
            Decided {
                why: Why::Current,
                suspended: None,
                sourceless: false,
                turn: 0,
                held: None
            }
        );
        let closed = Closed {
            by: "ops/nights".to_owned(),
            reason: "z".to_owned(),
            until: Some(Timestamp::UNIX_EPOCH),
        };
        for why in [
            Why::Suspended,
            Why::Waiting("x".to_owned()),
            Why::Frozen(closed),
            Why::Trouble(Trouble::Pin {
                message: "y".to_owned(),
            }),
        ] {
            let decided = Decided {
                why: why.clone(),
                suspended: Some(true),
                sourceless: true,
                turn: 2,
                held: Some("main@sha1:2".to_owned()),
            };
            let text = serde_json::to_string(&decided).unwrap();
            assert_eq!(read(&text), decided);
            assert_eq!(serde_json::from_str::<Why>(&text).unwrap(), why);
        }
    }
}
