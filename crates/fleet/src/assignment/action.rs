//! The action that the agent gets for a service: apply, hold or remove.

use farwater_api::{
    Digest,
    apply_options::ApplyOptions,
    health_rule::HealthRuleSpec,
    protocol::{Action, Ceiling, Deployment},
    renderer::{Patch, Renderer},
    service_deployment::DeletionPolicy,
    test_container::ServiceTest,
};

use super::candidate::Candidate;
use crate::{assignment::Why, placement::Denied};

/// The inputs for one service's entry in its cluster's desired state.
#[derive(Clone, Copy, Debug)]
pub struct EntryInputs<'a> {
    pub deleting: bool,
    pub deletion_policy: DeletionPolicy,
    /// Services that depend on it. It is not deleted while they are on the cluster.
    pub dependents: &'a [String],
    /// Why the service is suspended. None: it is not.
    pub suspended: Option<&'a str>,
    pub cluster_suspended: bool,
    /// The hub was restored from a backup older than the state that the cluster's agent has seen, and no person has
    /// confirmed it yet.
    pub restored: bool,
    /// Why all deletions of the fleet are stopped. Approvals of prunes don't count then either. None: deletions are
    /// allowed.
    pub frozen: Option<&'a str>,
    pub assigned: Option<&'a Candidate>,
    pub why: &'a Why,
    pub ceiling: Result<&'a Ceiling, &'a Denied>,
    pub target_namespace: &'a str,
    pub renderers: &'a [Renderer],
    pub patches: &'a [Patch],
    pub prune: bool,
    pub options: &'a ApplyOptions,
    /// MAC of the service's Secrets, or the one that is missing or unusable.
    pub secrets: Result<Option<Digest>, &'a str>,
    /// MAC of the service's parameters, or what is wrong with them.
    pub parameters: Result<Option<Digest>, &'a str>,
    pub approved_prune: Option<Digest>,
    /// Why every prune waits for an approval. None: only unusual ones do.
    pub hold_prune: Option<&'a str>,
    /// Id of a request to restore what a deletion took.
    pub undo: Option<&'a str>,
    /// The run of a hook that is to run again.
    pub retry_hook: Option<Digest>,
    pub turn: u64,
    pub tests: &'a [ServiceTest],
    pub health: &'a [HealthRuleSpec],
}

/// The agent's action for a service. Every service is always listed; one that can't be applied is held.
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

    if let Some(suspension) = inputs.suspended {
        return hold(suspension.to_owned());
    }
    let Some(assigned) = inputs.assigned else {
        return hold(match inputs.why {
            Why::Trouble(trouble) => trouble.to_string(),
            Why::Waiting(reason) | Why::NotGranted(reason) => reason.clone(),
            Why::Frozen(closed) => closed.to_string(),
            _ => "no revision is assigned yet".to_owned(),
        });
    };

    // Without its Secrets the service would be incomplete, and the Secrets it had would be pruned.
    let secrets = match inputs.secrets {
        Ok(secrets) => secrets,
        Err(problem) => return hold(problem.to_owned()),
    };
    let parameters = match inputs.parameters {
        Ok(parameters) => parameters,
        Err(problem) => return hold(problem.to_owned()),
    };

    let prune = inputs.prune && !inputs.restored;
    let hold_prune = inputs.frozen.or(inputs.hold_prune);
    Action::Apply(Deployment {
        bundle: assigned.bundle,
        bundle_bytes: assigned.bundle_bytes,
        path: assigned.path.clone(),
        renderers: inputs.renderers.to_vec(),
        patches: inputs.patches.to_vec(),
        target_namespace: inputs.target_namespace.to_owned(),
        prune: prune && hold_prune.is_none(),
        ceiling: ceiling.clone(),
        secrets,
        parameters,
        configuration: assigned.configuration.clone(),
        approved_prune: inputs.approved_prune.filter(|_| inputs.frozen.is_none()),
        options: inputs.options.clone(),
        hold_prune: hold_prune.filter(|_| prune).map(str::to_owned),
        origin: assigned.origin.clone(),
        undo: inputs.undo.map(str::to_owned),
        retry_hook: inputs.retry_hook,
        turn: inputs.turn,
        tests: inputs.tests.to_vec(),
        health: inputs.health.to_vec(),
    })
}

fn resolve_removal(inputs: EntryInputs<'_>) -> Action {
    let policy = match inputs.deletion_policy {
        // An object that the backup calls deleted may have been recreated since.
        DeletionPolicy::Delete if inputs.restored => {
            return Action::Hold {
                reason: "the hub was restored from a backup; nothing is deleted until confirmed".to_owned(),
            };
        }
        DeletionPolicy::Delete if !inputs.dependents.is_empty() => {
            let names = inputs.dependents.join(", ");
            return Action::Hold {
                reason: format!("{names} depends on it and goes first"),
            };
        }
        // A service without a right on the cluster deletes nothing there; its resource can still be deleted.
        DeletionPolicy::Delete if inputs.ceiling.is_err() => DeletionPolicy::Orphan,
        DeletionPolicy::Delete if inputs.frozen.is_some() => {
            return Action::Hold {
                reason: inputs.frozen.unwrap_or_default().to_owned(),
            };
        }
        policy => policy,
    };
    Action::Remove {
        policy,
        approved_prune: inputs.approved_prune,
    }
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        SourceKind,
        apply_options::{AdoptPolicy, ConflictPolicy, DriftMode, ImmutablePolicy},
    };

    use super::*;
    use crate::assignment::{
        Candidate, Trouble,
        tests::{candidate, ceiling, denied},
    };

    fn inputs<'a>(assigned: &'a Candidate, ceiling: &'a Ceiling) -> EntryInputs<'a> {
        const DEFAULTS: &ApplyOptions = &ApplyOptions {
            adopt: AdoptPolicy::Always,
            conflicts: ConflictPolicy::Force,
            drift: DriftMode::Correct,
            immutable: ImmutablePolicy::Report,
            ignore_differences: Vec::new(),
        };
        EntryInputs {
            deleting: false,
            deletion_policy: DeletionPolicy::Delete,
            dependents: &[],
            suspended: None,
            cluster_suspended: false,
            restored: false,
            frozen: None,
            assigned: Some(assigned),
            why: &Why::Current,
            ceiling: Ok(ceiling),
            target_namespace: "web",
            renderers: &[],
            patches: &[],
            prune: true,
            options: DEFAULTS,
            secrets: Ok(None),
            parameters: Ok(None),
            approved_prune: None,
            hold_prune: None,
            undo: None,
            retry_hook: None,
            turn: 0,
            tests: &[],
            health: &[],
        }
    }

    #[track_caller]
    fn check_action(inputs: EntryInputs<'_>, expected: &str) {
        let action = match resolve_action(inputs) {
            Action::Apply(deployment) => {
                let held = deployment
                    .hold_prune
                    .map(|reason| format!(" held: {reason}"))
                    .unwrap_or_default();
                let approved = if deployment.approved_prune.is_some() {
                    " approved"
                } else {
                    ""
                };
                format!(
                    "apply {} prune={}{held}{approved}",
                    deployment.bundle.short(),
                    deployment.prune
                )
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
            EntryInputs {
                hold_prune: Some("swapped"),
                ..base
            },
            &format!("{apply} prune=false held: swapped"),
        );
        let off = EntryInputs {
            hold_prune: Some("swapped"),
            prune: false,
            ..base
        };
        check_action(off, &format!("{apply} prune=false"));
        let approved = EntryInputs {
            approved_prune: Some(Digest::of("plan")),
            ..base
        };
        check_action(approved, &format!("{apply} prune=true approved"));
        let frozen = Some("frozen");
        let stopped = format!("{apply} prune=false held: frozen");
        check_action(
            EntryInputs {
                frozen,
                hold_prune: Some("swapped"),
                ..approved
            },
            &stopped,
        );
        check_action(
            EntryInputs {
                frozen,
                prune: false,
                ..base
            },
            &format!("{apply} prune=false"),
        );
        let suspended = Some("the service is suspended");
        check_action(EntryInputs { suspended, ..base }, "hold: the service is suspended");
        check_action(
            EntryInputs {
                ceiling: Err(&denied),
                ..base
            },
            &format!("hold: {denied}"),
        );
        check_action(
            EntryInputs { assigned: None, ..base },
            "hold: no revision is assigned yet",
        );
        // The grant may lack a source of its charts, which only the maker of the candidate knows.
        let why = Why::NotGranted(denied.to_string());
        check_action(
            EntryInputs {
                assigned: None,
                why: &why,
                ..base
            },
            &format!("hold: {denied}"),
        );
        let why = Why::Trouble(Trouble::SourceEmpty {
            kind: SourceKind::GitRepository,
            name: "infra".to_owned(),
        });
        check_action(
            EntryInputs {
                assigned: None,
                why: &why,
                ..base
            },
            "hold: GitRepository infra has no revision yet",
        );
        check_action(EntryInputs { why: &why, ..base }, &format!("{apply} prune=true"));
        let no_secret = Err("Secret database does not exist");
        check_action(
            EntryInputs {
                secrets: no_secret,
                ..base
            },
            "hold: Secret database does not exist",
        );
        let no_key = Err("ConfigMap sizes has no key cpu");
        check_action(
            EntryInputs {
                parameters: no_key,
                ..base
            },
            "hold: ConfigMap sizes has no key cpu",
        );

        let deleting = EntryInputs { deleting: true, ..base };
        check_action(deleting, "remove Delete");
        check_action(
            EntryInputs {
                secrets: no_secret,
                parameters: no_key,
                ..deleting
            },
            "remove Delete",
        );
        check_action(EntryInputs { suspended, ..deleting }, "remove Delete");
        check_action(
            EntryInputs {
                cluster_suspended: true,
                ..deleting
            },
            "hold: the cluster is suspended",
        );
        check_action(
            EntryInputs {
                ceiling: Err(&denied),
                ..deleting
            },
            "remove Orphan",
        );
        check_action(
            EntryInputs {
                restored: true,
                ..deleting
            },
            "hold: the hub was restored from a backup; nothing is deleted until confirmed",
        );
        let orphan = EntryInputs {
            deletion_policy: DeletionPolicy::Orphan,
            restored: true,
            ..deleting
        };
        check_action(orphan, "remove Orphan");
        check_action(EntryInputs { frozen, ..deleting }, "hold: frozen");
        check_action(
            EntryInputs {
                frozen,
                ceiling: Err(&denied),
                ..deleting
            },
            "remove Orphan",
        );
        check_action(EntryInputs { frozen, ..orphan }, "remove Orphan");

        let dependents = &["web".to_owned(), "api".to_owned()];
        check_action(
            EntryInputs { dependents, ..deleting },
            "hold: web, api depends on it and goes first",
        );
        check_action(EntryInputs { dependents, ..base }, &format!("{apply} prune=true"));
        // A service that orphans its objects takes nothing from its dependents.
        check_action(EntryInputs { dependents, ..orphan }, "remove Orphan");
    }
}
