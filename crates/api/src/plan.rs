//! Plans: what an agent would do for a service, and the requests for them.
//!
//! `POST servicedeployments/NAME/plan` with a [`PlanQuery`] starts a plan. `GET servicedeployments/NAME/plan?id=ID`
//! returns a [`PlanAnswer`]. The hub stores neither.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    held_prune::HeldPrune,
    hooks::HookPhase,
    objects::{ObjectRef, SyncState},
    renderer::LocalFiles,
};

/// Kind of the query and the answer.
pub const PLAN_KIND: &str = "ServicePlan";
/// Maximum size of the compressed archive of a local folder. In base64 and with its envelope, it fits a request to the
/// API.
pub const MAX_LOCAL_ARCHIVE: usize = 2 << 20;
/// Maximum size of all its files together, uncompressed: half of the limit for a source's bundle.
pub const MAX_LOCAL_BYTES: u64 = 32 << 20;
/// Maximum size of a plan, in bytes of JSON.
pub const MAX_PLAN_BYTES: usize = 4 << 20;
/// Maximum number of listed changes, deletes, hooks and left-out objects, each.
pub const MAX_PLANNED_OBJECTS: usize = 2_000;
/// Maximum number of listed fields of one object.
pub const MAX_PLANNED_FIELDS: usize = 64;
/// Maximum size of a field's value, and of a path, in bytes.
pub const MAX_SHOWN_VALUE: usize = 256;

/// Version to plan. Empty: the desired one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanQuery {
    /// A branch, a tag or a commit of the service's own source.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Files that replace those of the source. They never become the desired state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalFiles>,
}

/// Progress of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanAnswer {
    pub id: String,
    pub phase: PlanPhase,
    /// One word for programs, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<PlanProblem>,
    /// For people: what the plan waits for, or what went wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The cluster. Empty: not known yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Revision of the planned content.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// A [`ServicePlan`], as the agent wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanPhase {
    /// The hub prepares the files to plan.
    Preparing,
    /// The agent has not fetched the request yet.
    Waiting,
    /// The agent makes the plan.
    Planning,
    Done,
    Failed,
    /// Phase from a newer hub.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanProblem {
    /// The source has no such branch, tag or commit.
    RefMissing,
    /// The source, its files or the service cannot be planned.
    Refused,
    /// The agent sees that requests exist and fetches none: it is of an older version.
    AgentTooOld,
    /// The agent could not make a plan.
    AgentFailed,
    /// A temporary problem.
    Unavailable,
    #[serde(other)]
    Unknown,
}

/// Changes that an agent would make. Values of Secrets are keyed hashes; the key never leaves the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePlan {
    /// Why the agent would only keep what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Parts of the source that cannot be read. If there are any, nothing is deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Target namespace, if the agent would create it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_namespace: Option<String>,
    /// Changes, in the order of execution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<PlannedChange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletes: Vec<PlannedDelete>,
    /// Why the deletes wait for an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_prune: Option<HeldPrune>,
    /// Hooks and tests that would run, are running, or hold later ones by their failure. Those that succeeded do not
    /// run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<PlannedHook>,
    /// Objects of the source or the inventory that are neither changed nor deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Number of objects that match the desired state.
    #[serde(default)]
    pub unchanged: u32,
    /// Number of objects that leave the inventory because they are gone, or belong to another service.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub forgotten: u32,
    /// Number of differences between source and cluster that an apply would leave: defaults, normalised values, fields
    /// of others, and fields that the API server keeps.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub hidden: u32,
    /// Number of objects that are not listed because there are too many.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub unlisted: u32,
}

impl ServicePlan {
    /// Whether nothing would change and nothing waits.
    pub fn is_quiet(&self) -> bool {
        let left = |one: &LeftOut| one.sync == SyncState::Refused || one.sync == SyncState::Waiting;
        let idle = |change: &PlannedChange| change.effect == Effect::Nothing;
        let rests = |hook: &PlannedHook| hook.effect == HookEffect::RunOnFailure;
        self.held.is_none()
            && self.create_namespace.is_none()
            && self.errors.is_empty()
            && self.deletes.is_empty()
            && self.unlisted == 0
            && self.changes.iter().all(idle)
            && self.hooks.iter().all(rests)
            && !self.left_out.iter().any(left)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChange {
    #[serde(flatten)]
    pub object: ObjectRef,
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub wave: i32,
    pub cause: PlannedCause,
    pub effect: Effect,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
    /// Number of changed fields that are not listed.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub more_fields: u32,
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub hidden: u32,
    /// For people: owners of fields that it takes, why it would be refused, or why it could not be tried.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Another render of the same files gives it another name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made_up: bool,
}

impl PlannedChange {
    /// Whether nothing changes but what a chart only makes up.
    pub fn is_made_up(&self) -> bool {
        let all = !self.fields.is_empty() && self.fields.iter().all(|field| field.made_up);
        self.effect == Effect::Change && all && self.more_fields == 0
    }
}

/// Why an object is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlannedCause {
    Create,
    /// Others deleted the object.
    Restore,
    /// The source differs from what was applied last.
    Update,
    /// The cluster differs from what was applied last.
    Drift,
    /// The object exists, and belongs to no service.
    Adopt,
    #[serde(other)]
    Unknown,
}

/// Result of applying the object, as the API server's dry run reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    Create,
    Change,
    /// The object is applied and stays as it is.
    Nothing,
    /// The object is deleted and recreated, because a changed field is immutable.
    Recreate,
    /// The API server refuses the object.
    Refused,
    /// A dry run is impossible before other objects exist.
    Untried,
    #[serde(other)]
    Unknown,
}

/// One field with three values: in the cluster, planned, and last applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// Path of the field. List elements are named by their key, if they have one:
    /// `spec.template.spec.containers[name=web].image`.
    pub path: String,
    /// Value as JSON, or a keyed hash. Absent: the field does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<String>,
    pub origin: FieldOrigin,
    /// Another render of the same files has another value: a chart makes it up, and it comes with each new version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made_up: bool,
}

/// Origin of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldOrigin {
    /// The source has changed since it was applied.
    Source,
    /// Others changed the field in the cluster.
    Cluster,
    Both,
    /// The last applied value is not known, or none was applied.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedDelete {
    #[serde(flatten)]
    pub object: ObjectRef,
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub wave: i32,
    /// Whether the deletion waits for the approval that [`ServicePlan::held_prune`] names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// A hook. It is no change: creating its object would run it, so the agent does not try it in a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedHook {
    #[serde(flatten)]
    pub object: ObjectRef,
    pub phase: HookPhase,
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub wave: i32,
    /// Name of the test in `spec.tests`, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    pub effect: HookEffect,
    /// For people: its progress, how it failed, or what it waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What would happen to a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookEffect {
    /// The hook runs when its turn comes.
    Run,
    /// The hook runs if something fails.
    RunOnFailure,
    /// The hook should run, and is held.
    Held,
    /// The hook is running.
    Running,
    /// The hook has failed. Later steps do not start.
    Failed,
    /// The hook runs for the previous version, and is ended.
    End,
    /// The hook is left from the previous version, and is deleted.
    Remove,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    #[serde(flatten)]
    pub object: ObjectRef,
    /// State as in a report: refused, waiting or drifted; synced if the object left the source and stays.
    pub sync: SyncState,
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> ObjectRef {
        serde_json::from_value(json!({"version": "v1", "kind": "ConfigMap", "namespace": "web", "name": "a"})).unwrap()
    }

    #[test]
    fn a_plan_is_quiet_if_nothing_is_done_and_nothing_waits() {
        let plan = ServicePlan {
            unchanged: 3,
            hidden: 9,
            forgotten: 1,
            ..ServicePlan::default()
        };
        assert!(plan.is_quiet());
        assert!(
            !ServicePlan {
                held: Some("the service is suspended".to_owned()),
                ..plan.clone()
            }
            .is_quiet()
        );
        let left = |sync| LeftOut {
            object: object(),
            sync,
            reason: String::new(),
        };
        assert!(
            ServicePlan {
                left_out: vec![left(SyncState::Drifted)],
                ..plan.clone()
            }
            .is_quiet()
        );
        assert!(
            !ServicePlan {
                left_out: vec![left(SyncState::Refused)],
                ..plan.clone()
            }
            .is_quiet()
        );
        let delete = PlannedDelete {
            object: object(),
            wave: 0,
            held: true,
        };
        assert!(
            !ServicePlan {
                deletes: vec![delete],
                ..plan.clone()
            }
            .is_quiet()
        );
        let change = |effect| PlannedChange {
            object: object(),
            wave: 0,
            cause: PlannedCause::Update,
            effect,
            fields: Vec::new(),
            more_fields: 0,
            hidden: 0,
            message: String::new(),
            made_up: false,
        };
        assert!(
            ServicePlan {
                changes: vec![change(Effect::Nothing)],
                ..plan.clone()
            }
            .is_quiet()
        );
        assert!(
            !ServicePlan {
                changes: vec![change(Effect::Change)],
                ..plan.clone()
            }
            .is_quiet()
        );
        let hook = |effect| PlannedHook {
            object: object(),
            phase: HookPhase::PostSync,
            wave: 0,
            test: None,
            effect,
            message: String::new(),
        };
        assert!(
            ServicePlan {
                hooks: vec![hook(HookEffect::RunOnFailure)],
                ..plan.clone()
            }
            .is_quiet()
        );
        assert!(
            !ServicePlan {
                hooks: vec![hook(HookEffect::Run)],
                ..plan.clone()
            }
            .is_quiet()
        );
        assert!(
            !ServicePlan {
                hooks: vec![hook(HookEffect::Failed)],
                ..plan
            }
            .is_quiet()
        );
    }

    #[test]
    fn what_a_newer_agent_plans_is_read_as_far_as_it_is_known() {
        let text = json!({
            "changes": [{"version": "v1", "kind": "ConfigMap", "name": "a", "cause": "Borrow", "effect": "Split", "colour": 1}],
            "hooks": [{"version": "v1", "kind": "Pod", "name": "c", "phase": "Dusk", "effect": "Ponder"}],
            "leftOut": [{"version": "v1", "kind": "ConfigMap", "name": "b", "sync": "Parked", "reason": "x"}],
        });
        let plan: ServicePlan = serde_json::from_value(text).unwrap();
        assert_eq!(
            (plan.changes[0].cause, plan.changes[0].effect),
            (PlannedCause::Unknown, Effect::Unknown)
        );
        assert_eq!(
            (plan.hooks[0].phase, plan.hooks[0].effect),
            (HookPhase::Unknown, HookEffect::Unknown)
        );
        assert_eq!(plan.left_out[0].sync, SyncState::Unknown);
        assert!(serde_json::from_value::<PlanQuery>(json!({"branch": "main"})).is_err());
    }
}
