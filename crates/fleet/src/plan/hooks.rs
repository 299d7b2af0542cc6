//! Hooks of a source: which objects are hooks, when they run and when they are deleted. Read from our annotations,
//! those of Argo CD and those of Helm; the first that an object has counts.

use farwater_api::{
    Digest,
    apply_options::{ApplyOptions, WAVE},
    hooks::{ARGO_HOOK, HELM_HOOK, HOOK, HOOK_DELETE_POLICY, HookPhase, TEST, is_hook, name_generated},
    objects::ObjectRef,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    GroupVersionKind, ObjectKey, Refusal, RenderedObject, Scope, Scopes, Skip, SkipReason, Terms, Wait,
    ignored::Ignores,
    options::BadOption,
    resolve::{check_ceiling, finish, nameless, object_ref},
};

const ARGO_DELETE_POLICY: &str = "argocd.argoproj.io/hook-delete-policy";
const ARGO_WAVE: &str = "argocd.argoproj.io/sync-wave";
const HELM_DELETE_POLICY: &str = "helm.sh/hook-delete-policy";
const HELM_WEIGHT: &str = "helm.sh/hook-weight";
/// Most bytes of manifests of deletion hooks. They are stored in the cluster with the inventory, where a Secret holds
/// one megabyte.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// Whether a version is a service's first one. Helm charts have hooks for both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Occasion {
    Install,
    Upgrade,
}

/// When a hook runs: in a phase, always or only on an occasion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub phase: HookPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Occasion>,
}

/// Whether a hook is deleted when it has ended. It is always deleted before it runs again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletePolicy {
    pub succeeded: bool,
    pub failed: bool,
}

/// A hook, ready to be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedHook {
    #[serde(flatten)]
    pub object: ObjectRef,
    /// The manifest with our label and annotation, as JSON.
    pub body: String,
    pub hash: Digest,
    pub steps: Vec<Step>,
    pub wave: i32,
    #[serde(default)]
    pub delete: DeletePolicy,
    /// Name of the test in the service's `tests` that it implements. None: it is no test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
}

impl ResolvedHook {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::from(&self.object)
    }

    pub fn runs_in(&self, phase: HookPhase, occasion: Occasion) -> bool {
        self.steps
            .iter()
            .any(|step| step.phase == phase && step.only.is_none_or(|only| only == occasion))
    }
}

/// The hook options from an object's annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HookOptions {
    steps: Vec<Step>,
    wave: i32,
    delete: DeletePolicy,
}

/// Removes the hooks from a render and returns them.
pub(super) fn take_hooks(objects: &mut Vec<RenderedObject>) -> Vec<RenderedObject> {
    let is_hook = |object: &mut RenderedObject| is_hook(&object.manifest["metadata"]["annotations"]);
    objects.extract_if(.., is_hook).collect()
}

fn list(words: &str) -> impl Iterator<Item = &str> {
    words.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// Resolves hooks. A hook that breaks a rule is skipped, and holds the phases after it.
pub(super) fn resolve_hooks(
    rendered: Vec<RenderedObject>,
    service_uid: &str,
    terms: Terms<'_>,
    served: &Scopes,
) -> (Vec<ResolvedHook>, Vec<Skip>) {
    let (mut hooks, mut skipped) = (Vec::<ResolvedHook>::new(), Vec::new());
    let mut kept_bytes = 0;
    for mut one in rendered {
        name_generated(&mut one.manifest);
        let Some(mut object) = object_ref(&one.manifest) else {
            let refusal = Refusal::Malformed(format!("{}: no apiVersion, kind or name", one.origin));
            skipped.push(skip_hook(nameless(&one.manifest), SkipReason::Refused(refusal), &[]));
            continue;
        };
        let options = match read_hook(&one.manifest["metadata"]["annotations"]) {
            Ok(options) => options,
            Err(bad) => {
                skipped.push(skip_hook(object, SkipReason::Refused(Refusal::BadOption(bad)), &[]));
                continue;
            }
        };
        // Argo CD's `Skip`, and hooks for phases that don't exist here.
        if options.steps.is_empty() {
            continue;
        }
        match served.get(&GroupVersionKind::from(&object)) {
            None => {
                skipped.push(skip_hook(object, SkipReason::Waiting(Wait::Kind), &options.steps));
                continue;
            }
            Some(Scope::Cluster) => object.namespace.clear(),
            Some(Scope::Namespaced) if object.namespace.is_empty() => {
                terms.target_namespace.clone_into(&mut object.namespace);
            }
            Some(Scope::Namespaced) => {}
        }
        let steps = options.steps.clone();
        let resolved = resolve_hook(one, &object, options, service_uid, terms).and_then(|hook| {
            let twice = hooks.iter().any(|other| other.key() == hook.key());
            let is_kept = steps.iter().any(|step| is_of_deletion(step.phase));
            kept_bytes += if is_kept { hook.body.len() } else { 0 };
            match () {
                () if twice => Err(Refusal::Malformed(format!("{object} is stated twice"))),
                () if kept_bytes > MAX_KEPT_BYTES => Err(Refusal::Malformed(format!(
                    "hooks of a deletion may have {MAX_KEPT_BYTES} bytes together"
                ))),
                () => Ok(hook),
            }
        });
        match resolved {
            Ok(hook) => hooks.push(hook),
            Err(refusal) => skipped.push(skip_hook(object, SkipReason::Refused(refusal), &steps)),
        }
    }

    hooks.sort_by(|a, b| (a.wave, &a.object).cmp(&(b.wave, &b.object)));
    (hooks, skipped)
}

fn resolve_hook(
    one: RenderedObject,
    object: &ObjectRef,
    options: HookOptions,
    service_uid: &str,
    terms: Terms<'_>,
) -> Result<ResolvedHook, Refusal> {
    if let Some(refusal) = check_ceiling(terms.ceiling, object) {
        return Err(refusal);
    }
    let test = one.manifest["metadata"]["annotations"][TEST]
        .as_str()
        .map(str::to_owned);
    // Drift of a hook's fields is not watched, so nothing is ignored.
    let unignored = (&ApplyOptions::default(), &mut Ignores::compile(&[]));
    let finished = finish(one.manifest, object, service_uid, &ObjectKey::from(object), unignored);
    let (manifest, _) = finished.map_err(Refusal::BadOption)?;
    Ok(ResolvedHook {
        object: object.clone(),
        hash: Digest::of_json(&manifest),
        body: manifest.to_string(),
        steps: options.steps,
        wave: options.wave,
        delete: options.delete,
        test,
    })
}

/// A skipped hook. Before or during the sync it holds every object; after the objects it holds only later steps.
pub(super) fn skip_hook(object: ObjectRef, reason: SkipReason, steps: &[Step]) -> Skip {
    let comes_late = !steps.is_empty()
        && !steps
            .iter()
            .any(|step| matches!(step.phase, HookPhase::PreSync | HookPhase::Sync));
    Skip {
        object,
        wave: if comes_late { i32::MAX - 1 } else { i32::MIN },
        reason,
    }
}

pub fn is_of_deletion(phase: HookPhase) -> bool {
    matches!(phase, HookPhase::PreDelete | HookPhase::PostDelete)
}

fn read_hook(annotations: &Value) -> Result<HookOptions, BadOption> {
    let text = |name: &str| annotations[name].as_str();
    let steps = match (text(HOOK), text(ARGO_HOOK), text(HELM_HOOK)) {
        (Some(words), ..) => read_words(HOOK, words, our_steps)?,
        (None, Some(words), _) => read_words(ARGO_HOOK, words, our_steps)?,
        (None, None, Some(words)) => helm_steps(read_words(HELM_HOOK, words, helm_phase)?),
        (None, None, None) => Vec::new(),
    };
    let delete = match (
        text(HOOK_DELETE_POLICY),
        text(ARGO_DELETE_POLICY),
        text(HELM_DELETE_POLICY),
    ) {
        (Some(words), ..) => read_words(HOOK_DELETE_POLICY, words, delete_policy)?,
        (None, Some(words), _) => read_words(ARGO_DELETE_POLICY, words, delete_policy)?,
        (None, None, Some(words)) => read_words(HELM_DELETE_POLICY, words, helm_delete_policy)?,
        (None, None, None) => Vec::new(),
    };
    let delete = DeletePolicy {
        succeeded: delete.iter().any(|policy| policy.succeeded),
        failed: delete.iter().any(|policy| policy.failed),
    };
    Ok(HookOptions {
        steps,
        wave: read_hook_wave(annotations)?,
        delete,
    })
}

/// Reads a wave or Helm's weight; among hooks both mean the same.
fn read_hook_wave(annotations: &Value) -> Result<i32, BadOption> {
    for name in [WAVE, ARGO_WAVE, HELM_WEIGHT] {
        if let Some(value) = annotations[name].as_str() {
            return value
                .trim()
                .parse()
                .map_err(|_| BadOption::new(name, value, "an integer"));
        }
    }
    Ok(0)
}

/// Reads a list of words; the error says which words are expected.
fn read_words<T>(name: &str, words: &str, read: fn(&str) -> Result<Vec<T>, &'static str>) -> Result<Vec<T>, BadOption> {
    let mut all = Vec::new();
    for word in list(words) {
        all.extend(read(word).map_err(|expected| BadOption::new(name, word, expected))?);
    }
    Ok(all)
}

fn our_steps(word: &str) -> Result<Vec<Step>, &'static str> {
    let phase = match word {
        "Skip" => return Ok(Vec::new()),
        "PreSync" => HookPhase::PreSync,
        "Sync" => HookPhase::Sync,
        "PostSync" => HookPhase::PostSync,
        "Test" => HookPhase::Test,
        "SyncFail" => HookPhase::SyncFail,
        "PreDelete" => HookPhase::PreDelete,
        "PostDelete" => HookPhase::PostDelete,
        _ => return Err("PreSync, Sync, PostSync, Test, SyncFail, PreDelete, PostDelete or Skip"),
    };
    Ok(vec![Step { phase, only: None }])
}

fn helm_phase(word: &str) -> Result<Vec<Step>, &'static str> {
    let (phase, only) = match word {
        "pre-install" => (HookPhase::PreSync, Some(Occasion::Install)),
        "pre-upgrade" => (HookPhase::PreSync, Some(Occasion::Upgrade)),
        "post-install" => (HookPhase::PostSync, Some(Occasion::Install)),
        "post-upgrade" => (HookPhase::PostSync, Some(Occasion::Upgrade)),
        "pre-delete" => (HookPhase::PreDelete, None),
        "post-delete" => (HookPhase::PostDelete, None),
        "test" | "test-success" => (HookPhase::Test, None),
        // A rollback is a version like any other, so it runs as an upgrade.
        "pre-rollback" | "post-rollback" | "crd-install" => return Ok(Vec::new()),
        _ => {
            return Err(
                "pre-install, pre-upgrade, post-install, post-upgrade, pre-delete, post-delete, pre-rollback, \
                        post-rollback or test",
            );
        }
    };
    Ok(vec![Step { phase, only }])
}

/// Merges steps: a hook for both occasions runs always.
fn helm_steps(steps: Vec<Step>) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::new();
    for step in steps {
        match all.iter_mut().find(|other| other.phase == step.phase) {
            Some(other) if other.only != step.only => other.only = None,
            Some(_) => {}
            None => all.push(step),
        }
    }
    all
}

fn delete_policy(word: &str) -> Result<Vec<DeletePolicy>, &'static str> {
    match word {
        "HookSucceeded" => Ok(vec![DeletePolicy {
            succeeded: true,
            failed: false,
        }]),
        "HookFailed" => Ok(vec![DeletePolicy {
            succeeded: false,
            failed: true,
        }]),
        "BeforeHookCreation" => Ok(Vec::new()),
        _ => Err("HookSucceeded, HookFailed or BeforeHookCreation"),
    }
}

fn helm_delete_policy(word: &str) -> Result<Vec<DeletePolicy>, &'static str> {
    match word {
        "hook-succeeded" => delete_policy("HookSucceeded"),
        "hook-failed" => delete_policy("HookFailed"),
        "before-hook-creation" => Ok(Vec::new()),
        _ => Err("hook-succeeded, hook-failed or before-hook-creation"),
    }
}

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;
