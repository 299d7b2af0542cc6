//! What an agent would do for a service, as it says it before it does it; and how somebody asks for that.
//!
//! `POST servicedeployments/NAME/plan` with a [`PlanQuery`] asks, `GET servicedeployments/NAME/plan?id=ID` answers with a
//! [`PlanAnswer`]. Nothing of it is stored.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Digest,
    hooks::HookPhase,
    objects::{ObjectRef, SyncState},
    service_deployment::HeldPrune,
};

/// The kind that query and answer are sent as.
pub const PLAN_KIND: &str = "ServicePlan";
/// Largest archive of a local folder, compressed: in base64 and with what is around it, it fits a request to the API.
pub const MAX_LOCAL_ARCHIVE: usize = 2 << 20;
/// All of its files together, uncompressed: half of what a source's bundle may be.
pub const MAX_LOCAL_BYTES: u64 = 32 << 20;
/// Longest plan, as JSON.
pub const MAX_PLAN_BYTES: usize = 4 << 20;
/// Changes, deletes, hooks and objects that are left out, of each so many at most are listed.
pub const MAX_PLANNED_OBJECTS: usize = 2_000;
/// Fields of one object that are listed.
pub const MAX_PLANNED_FIELDS: usize = 64;
/// Longest value of a field, and longest path, in bytes.
pub const MAX_SHOWN_VALUE: usize = 256;

/// What shall be planned. Without anything: what is desired now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanQuery {
    /// A branch, a tag or a commit of the service's own source.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Files that take the place of the source's. They never become what is desired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalFiles>,
}

/// A canonical archive of somebody's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalFiles {
    /// Of the uncompressed archive.
    pub digest: Digest,
    /// Folder inside the archive.
    pub path: String,
    /// zstd, base64.
    pub archive: String,
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanAnswer {
    pub id: String,
    pub phase: PlanPhase,
    /// One word for programs, where it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<PlanProblem>,
    /// For people: what is waited for, or what went wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The cluster, and whose content it is the plan of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// A [`ServicePlan`], as the agent wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanPhase {
    /// The hub looks for what is to be planned.
    Preparing,
    /// The agent has not asked for it yet.
    Waiting,
    /// The agent works on it.
    Planning,
    Done,
    Failed,
    /// Of a newer hub.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanProblem {
    /// The source has no such branch, tag or commit.
    RefMissing,
    /// The source, its files or the service can't be planned.
    Refused,
    /// The agent hears of requests and asks for none: it is of an older version.
    AgentTooOld,
    /// The agent could not make a plan.
    AgentFailed,
    /// Something that passes.
    Unavailable,
    #[serde(other)]
    Unknown,
}

/// What an agent would do. Values of Secrets are keyed hashes, made with a key that never leaves the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePlan {
    /// Why the agent would only go on keeping what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// What of the source can't be read; nothing is deleted then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// The target namespace, where it is made first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_namespace: Option<String>,
    /// In the order in which they are made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<PlannedChange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletes: Vec<PlannedDelete>,
    /// Why the deletes wait for an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_prune: Option<HeldPrune>,
    /// Hooks and tests that would run, that run, or whose failure holds what follows. Those that have succeeded run no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<PlannedHook>,
    /// What the source states or the inventory has, and is neither changed nor deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// As desired already.
    #[serde(default)]
    pub unchanged: u32,
    /// Objects that go out of the inventory: they are gone, or another's.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub forgotten: u32,
    /// Differences between the source and the cluster that an apply would leave: defaults, normalised values, fields of others, and
    /// what the API server keeps.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub hidden: u32,
    /// Objects that are not listed, because they are too many.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub unlisted: u32,
}

impl ServicePlan {
    /// Whether there is nothing to do and nothing that waits.
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
    /// Fields that change and are not listed.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub more_fields: u32,
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub hidden: u32,
    /// For people: whose fields it takes, why it would be refused, why it could not be tried.
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

/// Why an object is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlannedCause {
    Create,
    /// Others deleted it.
    Restore,
    /// The source differs from what was applied last.
    Update,
    /// The cluster differs from what was applied last.
    Drift,
    /// It exists, and belongs to no service.
    Adopt,
    #[serde(other)]
    Unknown,
}

/// What sending it would do, as the API server said when it was asked without doing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    Create,
    Change,
    /// It is sent, and stays as it is.
    Nothing,
    /// It is deleted and made anew: what changes can't be changed.
    Recreate,
    /// The API server refuses it.
    Refused,
    /// It can't be tried before others are there.
    Untried,
    #[serde(other)]
    Unknown,
}

/// One field, three ways: in the cluster, as it would be, and as it was applied last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// Elements of lists by their key, where they have one: `spec.template.spec.containers[name=web].image`.
    pub path: String,
    /// JSON, or a keyed hash; absent: it is not there.
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

/// Where a difference comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldOrigin {
    /// The source was changed since it was applied.
    Source,
    /// Somebody changed it in the cluster.
    Cluster,
    Both,
    /// What was applied last is not known, or nothing was.
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
    /// It waits for the approval that [`ServicePlan::held_prune`] names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// A hook, which is no change: making its object is running it, so it is not even tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedHook {
    #[serde(flatten)]
    pub object: ObjectRef,
    pub phase: HookPhase,
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub wave: i32,
    /// The test of `spec.tests` that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    pub effect: HookEffect,
    /// For people: how far it is, how it failed, or what it waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What would become of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookEffect {
    /// It runs when its turn comes.
    Run,
    /// It runs if something fails.
    RunOnFailure,
    /// It is to run, and is held back.
    Held,
    /// It runs already.
    Running,
    /// It has failed: what comes after it is not begun.
    Failed,
    /// It runs for the version before, and is ended.
    End,
    /// The version before left it, and it is deleted.
    Remove,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    #[serde(flatten)]
    pub object: ObjectRef,
    /// As a report would say: refused, waiting, drifted and left so; synced where it left the source and stays.
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
        let plan = ServicePlan { unchanged: 3, hidden: 9, forgotten: 1, ..ServicePlan::default() };
        assert!(plan.is_quiet());
        assert!(!ServicePlan { held: Some("the service is suspended".to_owned()), ..plan.clone() }.is_quiet());
        let left = |sync| LeftOut { object: object(), sync, reason: String::new() };
        assert!(ServicePlan { left_out: vec![left(SyncState::Drifted)], ..plan.clone() }.is_quiet());
        assert!(!ServicePlan { left_out: vec![left(SyncState::Refused)], ..plan.clone() }.is_quiet());
        let delete = PlannedDelete { object: object(), wave: 0, held: true };
        assert!(!ServicePlan { deletes: vec![delete], ..plan.clone() }.is_quiet());
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
        assert!(ServicePlan { changes: vec![change(Effect::Nothing)], ..plan.clone() }.is_quiet());
        assert!(!ServicePlan { changes: vec![change(Effect::Change)], ..plan.clone() }.is_quiet());
        let hook = |effect| PlannedHook {
            object: object(),
            phase: HookPhase::PostSync,
            wave: 0,
            test: None,
            effect,
            message: String::new(),
        };
        assert!(ServicePlan { hooks: vec![hook(HookEffect::RunOnFailure)], ..plan.clone() }.is_quiet());
        assert!(!ServicePlan { hooks: vec![hook(HookEffect::Run)], ..plan.clone() }.is_quiet());
        assert!(!ServicePlan { hooks: vec![hook(HookEffect::Failed)], ..plan }.is_quiet());
    }

    #[test]
    fn what_a_newer_agent_plans_is_read_as_far_as_it_is_known() {
        let text = json!({
            "changes": [{"version": "v1", "kind": "ConfigMap", "name": "a", "cause": "Borrow", "effect": "Split", "colour": 1}],
            "hooks": [{"version": "v1", "kind": "Pod", "name": "c", "phase": "Dusk", "effect": "Ponder"}],
            "leftOut": [{"version": "v1", "kind": "ConfigMap", "name": "b", "sync": "Parked", "reason": "x"}],
        });
        let plan: ServicePlan = serde_json::from_value(text).unwrap();
        assert_eq!((plan.changes[0].cause, plan.changes[0].effect), (PlannedCause::Unknown, Effect::Unknown));
        assert_eq!((plan.hooks[0].phase, plan.hooks[0].effect), (HookPhase::Unknown, HookEffect::Unknown));
        assert_eq!(plan.left_out[0].sync, SyncState::Unknown);
        assert!(serde_json::from_value::<PlanQuery>(json!({"branch": "main"})).is_err());
    }
}
