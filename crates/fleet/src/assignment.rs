//! Assignment: which of its source's revisions a service runs.
//!
//! A source that moves makes *candidates*; [`decide`] alone turns a candidate into an *assignment*, so that pins, freezes,
//! rollouts and approvals change this decision and nothing else. [`resolve_action`] says what an agent is told about it.

use farwater_api::{
    Digest,
    protocol::{Action, Ceiling, Deployment},
    service_deployment::DeletionPolicy,
};
use serde::{Deserialize, Serialize};

use crate::placement::Denied;

/// What a service would run: the bundle of its path at one revision of its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// As in the source's status: `main@sha1:<commit>`.
    pub revision: String,
    pub content_id: Digest,
    pub bundle: Digest,
    /// Bytes of the uncompressed archive.
    pub bundle_bytes: u64,
    /// Folder inside the bundle.
    pub path: String,
    /// The first commit of the history that the revision is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// Why there is no candidate for what a service asks for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Trouble {
    #[error("{message}")]
    ClusterMissing { message: String },
    #[error("GitRepository {name} does not exist")]
    SourceMissing { name: String },
    /// The source exists, but nothing of it was ever fetched.
    #[error("GitRepository {name} has no revision yet")]
    SourceEmpty { name: String },
    /// The files that the service needs can't be gathered; the message names file and line.
    #[error("{message}")]
    Bundle { revision: String, message: String },
    /// A Secret that the service names is missing or can't be sent.
    #[error("{message}")]
    Secret { message: String },
}

#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// By the service or by its cluster.
    pub suspended: bool,
    pub candidate: Result<&'a Candidate, &'a Trouble>,
    pub ceiling: Result<&'a Ceiling, &'a Denied>,
    pub assigned: Option<&'a Candidate>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Assign(Candidate),
    Keep(Why),
}

/// Why the assignment stays what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "detail")]
pub enum Why {
    /// The candidate is what is assigned.
    Current,
    Suspended,
    /// The right to deploy is missing or was lost.
    NotGranted(String),
    Trouble(Trouble),
}

/// Whether a candidate becomes the assignment. Nothing that is missing or broken takes an assignment away.
pub fn decide(inputs: Inputs<'_>) -> Decision {
    let candidate = match inputs.candidate {
        Err(trouble) => return Decision::Keep(Why::Trouble(trouble.clone())),
        Ok(candidate) => candidate,
    };
    if inputs.assigned == Some(candidate) {
        return Decision::Keep(match inputs.ceiling {
            Err(denied) => Why::NotGranted(denied.to_string()),
            Ok(_) if inputs.suspended => Why::Suspended,
            Ok(_) => Why::Current,
        });
    }
    if let Err(denied) = inputs.ceiling {
        return Decision::Keep(Why::NotGranted(denied.to_string()));
    }
    if inputs.suspended {
        return Decision::Keep(Why::Suspended);
    }
    Decision::Assign(candidate.clone())
}

/// What decides about one service's entry in its cluster's desired state.
#[derive(Clone, Copy, Debug)]
pub struct EntryInputs<'a> {
    pub deleting: bool,
    pub deletion_policy: DeletionPolicy,
    pub suspended: bool,
    pub cluster_suspended: bool,
    /// The hub came back from a backup older than what the cluster's agent has seen, and nobody has confirmed it yet.
    pub restored: bool,
    pub assigned: Option<&'a Candidate>,
    pub why: &'a Why,
    pub ceiling: Result<&'a Ceiling, &'a Denied>,
    pub target_namespace: &'a str,
    pub prune: bool,
    /// MAC of the service's Secrets, or which one is missing or unusable.
    pub secrets: Result<Option<Digest>, &'a str>,
    pub approved_prune: Option<Digest>,
    /// Why every prune waits for an approval.
    pub hold_prune: Option<&'a str>,
    /// A request to bring back what a deletion took.
    pub undo: Option<&'a str>,
}

/// What the agent is told about a service. Every service is always listed: what can't be applied is held.
pub fn resolve_action(inputs: EntryInputs<'_>) -> Action {
    let hold = |reason: String| Action::Hold { reason };
    if inputs.cluster_suspended {
        return hold("the cluster is suspended".to_owned());
    }
    if inputs.deleting {
        return resolve_removal(inputs);
    }
    let ceiling = match inputs.ceiling {
        Ok(ceiling) => ceiling,
        Err(denied) => return hold(denied.to_string()),
    };
    if inputs.suspended {
        return hold("the service is suspended".to_owned());
    }
    let Some(assigned) = inputs.assigned else {
        return hold(match inputs.why {
            Why::Trouble(trouble) => trouble.to_string(),
            _ => "no revision is assigned yet".to_owned(),
        });
    };
    // Without its Secrets the service would not be what was asked for, and those of before would be pruned.
    let secrets = match inputs.secrets {
        Ok(secrets) => secrets,
        Err(problem) => return hold(problem.to_owned()),
    };
    let prune = inputs.prune && !inputs.restored;
    Action::Apply(Deployment {
        bundle: assigned.bundle,
        bundle_bytes: assigned.bundle_bytes,
        path: assigned.path.clone(),
        target_namespace: inputs.target_namespace.to_owned(),
        prune: prune && inputs.hold_prune.is_none(),
        ceiling: ceiling.clone(),
        secrets,
        approved_prune: inputs.approved_prune,
        hold_prune: inputs.hold_prune.filter(|_| prune).map(str::to_owned),
        origin: assigned.origin.clone(),
        undo: inputs.undo.map(str::to_owned),
    })
}

fn resolve_removal(inputs: EntryInputs<'_>) -> Action {
    let policy = match inputs.deletion_policy {
        // What a backup calls deleted may have been made again since.
        DeletionPolicy::Delete if inputs.restored => {
            return Action::Hold {
                reason: "the hub was restored from a backup; nothing is deleted until confirmed".to_owned(),
            };
        }
        // Who has no right on the cluster deletes nothing there, and isn't kept from deleting the resource.
        DeletionPolicy::Delete if inputs.ceiling.is_err() => DeletionPolicy::Orphan,
        policy => policy,
    };
    Action::Remove { policy, approved_prune: inputs.approved_prune }
}

#[cfg(test)]
mod tests {
    use farwater_api::protocol::ServiceAccount;

    use super::*;

    fn candidate(commit: &str, bundle: &str) -> Candidate {
        Candidate {
            revision: format!("main@sha1:{commit}"),
            content_id: Digest::of(bundle),
            bundle: Digest::of(bundle),
            bundle_bytes: 10,
            path: "apps/web".to_owned(),
            origin: None,
        }
    }

    fn ceiling() -> Ceiling {
        Ceiling {
            service_account: ServiceAccount { namespace: "web".to_owned(), name: "deployer".to_owned() },
            target_namespaces: None,
            allowed_kinds: None,
            denied_kinds: None,
        }
    }

    fn denied() -> Denied {
        Denied::NoGrant { namespace: "team-a".to_owned(), cluster: "east".to_owned() }
    }

    #[test]
    fn a_candidate_is_assigned_unless_something_keeps_the_old_one() {
        let (old, new) = (candidate("1", "a"), candidate("2", "b"));
        let (ceiling, denied) = (ceiling(), denied());
        let trouble = Trouble::SourceMissing { name: "infra".to_owned() };
        let check = |suspended, candidate, ceiling, assigned, expected| {
            assert_eq!(decide(Inputs { suspended, candidate, ceiling, assigned }), expected);
        };
        check(false, Ok(&new), Ok(&ceiling), None, Decision::Assign(new.clone()));
        check(false, Ok(&new), Ok(&ceiling), Some(&old), Decision::Assign(new.clone()));
        check(false, Ok(&old), Ok(&ceiling), Some(&old), Decision::Keep(Why::Current));
        check(true, Ok(&new), Ok(&ceiling), Some(&old), Decision::Keep(Why::Suspended));
        check(true, Ok(&new), Ok(&ceiling), None, Decision::Keep(Why::Suspended));
        check(false, Ok(&new), Err(&denied), Some(&old), Decision::Keep(Why::NotGranted(denied.to_string())));
        check(false, Err(&trouble), Ok(&ceiling), Some(&old), Decision::Keep(Why::Trouble(trouble.clone())));
        check(false, Err(&trouble), Ok(&ceiling), None, Decision::Keep(Why::Trouble(trouble.clone())));
    }

    fn inputs<'a>(assigned: &'a Candidate, ceiling: &'a Ceiling) -> EntryInputs<'a> {
        EntryInputs {
            deleting: false,
            deletion_policy: DeletionPolicy::Delete,
            suspended: false,
            cluster_suspended: false,
            restored: false,
            assigned: Some(assigned),
            why: &Why::Current,
            ceiling: Ok(ceiling),
            target_namespace: "web",
            prune: true,
            secrets: Ok(None),
            approved_prune: None,
            hold_prune: None,
            undo: None,
        }
    }

    #[track_caller]
    fn check_action(inputs: EntryInputs<'_>, expected: &str) {
        let action = match resolve_action(inputs) {
            Action::Apply(deployment) => {
                let held = deployment.hold_prune.map(|reason| format!(" held: {reason}")).unwrap_or_default();
                format!("apply {} prune={}{held}", deployment.bundle.short(), deployment.prune)
            }
            Action::Hold { reason } => format!("hold: {reason}"),
            Action::Remove { policy, .. } => format!("remove {policy:?}"),
            Action::Unreadable(_) => panic!("a hub reads what it makes"),
        };
        assert_eq!(action, expected);
    }

    #[test]
    fn every_service_is_listed_and_only_a_deleted_one_is_removed() {
        let (assigned, ceiling, denied) = (candidate("1", "a"), ceiling(), denied());
        let base = inputs(&assigned, &ceiling);
        let apply = format!("apply {}", assigned.bundle.short());
        check_action(base, &format!("{apply} prune=true"));
        check_action(EntryInputs { prune: false, ..base }, &format!("{apply} prune=false"));
        check_action(EntryInputs { restored: true, ..base }, &format!("{apply} prune=false"));
        check_action(
            EntryInputs { hold_prune: Some("swapped"), ..base },
            &format!("{apply} prune=false held: swapped"),
        );
        let off = EntryInputs { hold_prune: Some("swapped"), prune: false, ..base };
        check_action(off, &format!("{apply} prune=false"));
        check_action(EntryInputs { suspended: true, ..base }, "hold: the service is suspended");
        check_action(EntryInputs { ceiling: Err(&denied), ..base }, &format!("hold: {denied}"));
        check_action(EntryInputs { assigned: None, ..base }, "hold: no revision is assigned yet");
        let why = Why::Trouble(Trouble::SourceEmpty { name: "infra".to_owned() });
        check_action(
            EntryInputs { assigned: None, why: &why, ..base },
            "hold: GitRepository infra has no revision yet",
        );
        check_action(EntryInputs { why: &why, ..base }, &format!("{apply} prune=true"));
        let no_secret = Err("Secret database does not exist");
        check_action(EntryInputs { secrets: no_secret, ..base }, "hold: Secret database does not exist");

        let deleting = EntryInputs { deleting: true, ..base };
        check_action(deleting, "remove Delete");
        check_action(EntryInputs { secrets: no_secret, ..deleting }, "remove Delete");
        check_action(EntryInputs { suspended: true, ..deleting }, "remove Delete");
        check_action(EntryInputs { cluster_suspended: true, ..deleting }, "hold: the cluster is suspended");
        check_action(EntryInputs { ceiling: Err(&denied), ..deleting }, "remove Orphan");
        check_action(
            EntryInputs { restored: true, ..deleting },
            "hold: the hub was restored from a backup; nothing is deleted until confirmed",
        );
        let orphan = EntryInputs { deletion_policy: DeletionPolicy::Orphan, restored: true, ..deleting };
        check_action(orphan, "remove Orphan");
    }
}
