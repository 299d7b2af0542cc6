//! Assignment: which revision of its source a service runs.
//!
//! A changed source produces *candidates*. [`decide`] alone turns a candidate into an *assignment*, so pins, freezes,
//! rollouts and approvals change this decision and nothing else. [`resolve_action`] says what the agent gets as its
//! action for the service.

use std::collections::BTreeMap;

use farwater_api::{
    Digest, SourceKind,
    apply_options::ApplyOptions,
    health_rule::HealthRuleSpec,
    protocol::{Action, Ceiling, Deployment},
    renderer::{Patch, Renderer},
    service_deployment::{DeletionPolicy, ServiceDeploymentSpec},
    service_sources::{ChartReference, placed_url},
    service_test::ServiceTest,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{placement::Denied, windows::Closed};

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
    /// URL that it came from. A pinned candidate is checked against the grants for this source, whatever the service
    /// names now.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The first commit of the revision's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Author of the commit, as the commit states it. Empty: it states none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// What was read of the commit besides its own files: `submodules`, `lfs`. Empty: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reads: String,
    /// Folders with a renderer of their own. The dependencies of their charts are in the bundle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rendered: Vec<String>,
    /// The parts, if there is more than one folder of a repository: the service's own source first. Empty: only that
    /// folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// Artifacts of registries that were read. One manifest gives several if it has several layers, or is read in
    /// several ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Digest>,
    /// Texts that a pipeline has promoted with the revision, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
}

#[cfg(test)]
impl Candidate {
    /// A commit at the root of a repository, with no other fields set.
    pub(crate) fn of_commit(commit: &str) -> Self {
        Self {
            revision: format!("main@sha1:{commit}"),
            content_id: Digest::of(commit),
            bundle: Digest::of(commit),
            bundle_bytes: 1,
            path: String::new(),
            source: String::new(),
            origin: None,
            author: String::new(),
            reads: String::new(),
            rendered: Vec::new(),
            parts: Vec::new(),
            artifacts: Vec::new(),
            configuration: BTreeMap::new(),
        }
    }
}

/// One of the parts that a service's files are assembled from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    pub kind: SourceKind,
    /// Name of the source. Empty for a repository that a chart or a kustomization names only by its address.
    pub name: String,
    pub source_uid: String,
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<ChartReference>,
    /// As in the source's status; for a chart `<version>@sha256:<digest>`.
    pub revision: String,
    /// Folder inside the source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// As [`Candidate::reads`], for a repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reads: String,
    /// Where it is mounted among the service's files. Empty: at their root.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_path: String,
    /// A chart or a kustomization names it, not the service itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dependency: bool,
}

impl Part {
    /// The address that grants are checked against.
    pub fn placed_url(&self) -> String {
        placed_url(&self.url, self.chart.as_ref().map(|chart| chart.name.as_str()))
    }

    /// `HelmRepository charts, chart web 1.2.3@sha256:…`
    pub fn describe(&self) -> String {
        let source = if self.name.is_empty() {
            self.url.clone()
        } else {
            format!("{} {}", self.kind, self.name)
        };
        match &self.chart {
            Some(chart) => format!("{source}, chart {} {}", chart.name, self.revision),
            None => format!("{source} {}", self.revision),
        }
    }
}

impl Candidate {
    /// The addresses of all parts.
    pub fn urls(&self) -> Vec<String> {
        let mut urls: Vec<String> = match self.parts.as_slice() {
            [] => vec![self.source.clone()],
            parts => parts.iter().map(Part::placed_url).collect(),
        };
        urls.retain(|url| !url.is_empty());
        urls
    }

    /// Whether two candidates are the same to an agent, e.g. two revisions with the same content.
    pub fn is_same_content(&self, other: &Self) -> bool {
        self.bundle == other.bundle && self.path == other.path && self.configuration == other.configuration
    }
}

/// Why there is no candidate for what a service asks for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Trouble {
    #[error("{message}")]
    ClusterMissing { message: String },
    #[error("{kind} {name} does not exist")]
    SourceMissing {
        #[serde(default)]
        kind: SourceKind,
        name: String,
    },
    /// The source exists, but was never fetched.
    #[error("{kind} {name} has no revision yet")]
    SourceEmpty {
        #[serde(default)]
        kind: SourceKind,
        name: String,
    },
    /// A chart, or a kustomization's base, that was not found yet.
    #[error("{message}")]
    ChartPending { message: String },
    /// A chart that its repository does not have, or that can't be used.
    #[error("{message}")]
    ChartMissing { message: String },
    /// The service's files can't be gathered. The message names file and line.
    #[error("{message}")]
    Bundle { revision: String, message: String },
    /// The service's files are being fetched, or can't be fetched now.
    #[error("{message}")]
    Files { revision: String, message: String },
    /// A Secret that the service names is missing or can't be sent.
    #[error("{message}")]
    Secret { message: String },
    /// A parameter of the service is missing or wrong.
    #[error("{message}")]
    Parameters { message: String },
    /// The pinned revision is not available.
    #[error("{message}")]
    Pin { message: String },
    /// Services depend on one another in a cycle.
    #[error("it depends on itself: {cycle}")]
    Cycle { cycle: String },
}

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
}

/// Whether a service is suspended at time `now`.
pub fn is_suspended(spec: &ServiceDeploymentSpec, now: Timestamp) -> bool {
    spec.suspend && suspension_end(spec).is_none_or(|until| now < until)
}

/// When a suspension ends by itself. None: it does not.
pub fn suspension_end(spec: &ServiceDeploymentSpec) -> Option<Timestamp> {
    spec.suspension
        .as_ref()
        .filter(|_| spec.suspend)?
        .until
        .as_ref()
        .map(|until| until.0)
}

/// `the service is suspended until … : reason`
pub fn describe_suspension(spec: &ServiceDeploymentSpec) -> String {
    let until = suspension_end(spec)
        .map(|until| format!(" until {until}"))
        .unwrap_or_default();
    let reason = spec
        .suspension
        .as_ref()
        .and_then(|suspension| suspension.reason.as_deref());
    format!(
        "the service is suspended{until}{}",
        reason.map(|reason| format!(": {reason}")).unwrap_or_default()
    )
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
        apply_options::{AdoptPolicy, ConflictPolicy, DriftMode, ImmutablePolicy},
        protocol::ServiceAccount,
    };

    use super::*;

    fn candidate(commit: &str, bundle: &str) -> Candidate {
        Candidate {
            content_id: Digest::of(bundle),
            bundle: Digest::of(bundle),
            bundle_bytes: 10,
            path: "apps/web".to_owned(),
            ..Candidate::of_commit(commit)
        }
    }

    fn ceiling() -> Ceiling {
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

    fn denied() -> Denied {
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
    fn a_suspension_counts_until_its_end_and_without_one_for_good() {
        let spec = |suspend, suspension| ServiceDeploymentSpec {
            suspend,
            suspension: serde_json::from_value(suspension).unwrap(),
            ..ServiceDeploymentSpec::default()
        };
        let at = |time: &str| time.parse::<Timestamp>().unwrap();
        let until = spec(
            true,
            serde_json::json!({"until": "2026-01-01T12:00:00Z", "reason": "a move"}),
        );
        assert!(is_suspended(&until, at("2026-01-01T11:59:59Z")) && !is_suspended(&until, at("2026-01-01T12:00:00Z")));
        assert_eq!(
            describe_suspension(&until),
            "the service is suspended until 2026-01-01T12:00:00Z: a move"
        );
        assert!(is_suspended(
            &spec(true, serde_json::Value::Null),
            at("2026-01-01T12:00:00Z")
        ));
        assert_eq!(
            describe_suspension(&spec(true, serde_json::Value::Null)),
            "the service is suspended"
        );
        // `suspend` decides; the other fields only say why and how long.
        assert!(!is_suspended(
            &spec(false, serde_json::json!({"reason": "x"})),
            at("2026-01-01T12:00:00Z")
        ));
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
                turn: 0
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
            };
            let text = serde_json::to_string(&decided).unwrap();
            assert_eq!(read(&text), decided);
            assert_eq!(serde_json::from_str::<Why>(&text).unwrap(), why);
        }
    }
}
