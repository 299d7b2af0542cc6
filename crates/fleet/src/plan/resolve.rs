//! From manifests to the exact objects to send: scope, namespace, ownership marks, ceilings, order.

mod manifest;

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{Digest, apply_options::ApplyOptions, objects::ObjectRef, protocol::Ceiling};
use serde_json::Value;

use super::{
    GroupVersionKind, ObjectKey, Refusal, Render, RenderedObject, Scope, Skip, SkipReason, Stage, Wait,
    hooks::{ResolvedHook, resolve_hooks, skip_hook, take_hooks},
    ignored::Ignores,
    options::{BadOption, ObjectOptions, read_wave},
    veil::Veil,
    waves,
};
use crate::{
    health::has_time_to_live,
    placement::allows_namespace,
    prune::{Generated, generated},
};

pub(super) use manifest::finish;
pub use manifest::{is_aggregated, settle};

/// The kinds that the cluster serves.
pub type Scopes = BTreeMap<GroupVersionKind, Scope>;

/// The objects to send.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub target_namespace: String,
    /// Sorted by wave, stage and name.
    pub objects: Vec<ResolvedObject>,
    pub skipped: Vec<Skip>,
    /// Objects that run at certain points and are not kept. Sorted by wave and name.
    pub hooks: Vec<ResolvedHook>,
    /// Whether the render is complete. What is missing from an incomplete one proves nothing.
    pub complete: bool,
    /// Secret values in the objects, which are shown to no person.
    pub veil: Veil,
    /// Whether the objects contain values of Secrets of the cluster, which may change without a newer entry.
    pub reads_cluster: bool,
    /// Whether a chart or another renderer was given whether this is the first version.
    pub sees_occasion: bool,
    /// The same files rendered once more, where charts make values up.
    pub again: Option<Again>,
    /// Every name that the source states, also of skipped objects; where a kind's scope is unknown, both that it could
    /// have.
    stated: Vec<ObjectKey>,
    count: usize,
}

impl Resolved {
    /// Number of objects that the source states.
    pub fn stated(&self) -> usize {
        self.count
    }

    /// Number of objects with names that Kustomize generates.
    pub fn generated(&self) -> Generated {
        let mut all = Generated::new();
        for name in self.objects.iter().filter_map(|object| generated(&object.object)) {
            *all.entry(name).or_default() += 1;
        }
        all
    }

    pub fn stated_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.stated.iter()
    }
}

/// Manifests of another render of the same files. What differs is made up: a password, a certificate, a name.
#[derive(Clone, Debug)]
pub struct Again {
    bodies: BTreeMap<ObjectKey, Vec<u8>>,
    hooks: BTreeSet<ObjectKey>,
}

impl Again {
    pub fn of(resolved: Resolved) -> Self {
        let hooks = resolved.hooks.iter().map(ResolvedHook::key).collect();
        let bodies = resolved
            .objects
            .into_iter()
            .map(|object| (object.key(), object.body))
            .collect();
        Self { bodies, hooks }
    }

    /// As it was stated the other time.
    pub fn body(&self, key: &ObjectKey) -> Option<&[u8]> {
        self.bodies.get(key).map(Vec::as_slice)
    }

    /// Whether an object or a hook has a name that it had not the other time.
    pub fn names_otherwise(&self, key: &ObjectKey) -> bool {
        !self.bodies.contains_key(key) && !self.hooks.contains(key)
    }
}

#[derive(Clone, Debug)]
pub struct ResolvedObject {
    pub object: ObjectRef,
    /// The manifest as sent, with our label and annotation, as JSON: a tree of values takes five times its memory, and
    /// a service may hold thousands.
    pub body: Vec<u8>,
    /// Hash of the manifest as sent.
    pub hash: Digest,
    pub wave: i32,
    pub stage: Stage,
    pub options: ObjectOptions,
    /// Objects of the same source that must be applied first: its namespace, its definition.
    pub needs: Vec<ObjectKey>,
    /// A Job that the cluster deletes some time after its end.
    pub goes_by_itself: bool,
}

impl ResolvedObject {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::from(&self.object)
    }
}

/// What a service asks for besides its manifests, and what its grant allows.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    pub target_namespace: &'a str,
    pub ceiling: &'a Ceiling,
    pub options: &'a ApplyOptions,
}

/// Resolves a render for one service. Objects that break a rule are skipped, each with its reason; the others are
/// resolved.
pub fn resolve(mut render: Render, service_uid: &str, terms: Terms<'_>, served: &Scopes) -> Resolved {
    let complete = render.errors.is_empty();
    let hooks = take_hooks(&mut render.objects);
    let (hooks, skipped) = resolve_hooks(hooks, service_uid, terms, served);
    let out = Resolved {
        target_namespace: terms.target_namespace.to_owned(),
        objects: Vec::new(),
        skipped,
        hooks,
        complete,
        veil: Veil::default(),
        reads_cluster: false,
        sees_occasion: false,
        again: None,
        stated: Vec::new(),
        count: render.objects.len(),
    };

    let mut work = Work {
        service_uid,
        terms,
        served,
        defined: defined_kinds(&render.objects),
        ignores: Ignores::compile(&terms.options.ignore_differences),
        seen: BTreeMap::new(),
        duplicates: Vec::new(),
        definitions: BTreeMap::new(),
        out,
    };
    for rendered in render.objects {
        work.take(rendered);
    }
    work.finish()
}

/// A resolution under way.
struct Work<'a> {
    service_uid: &'a str,
    terms: Terms<'a>,
    served: &'a Scopes,
    defined: BTreeMap<GroupVersionKind, Definition>,
    ignores: Ignores<'a>,
    /// Index in the resolved objects, and the origin, by key.
    seen: BTreeMap<ObjectKey, (usize, String)>,
    /// Indices of resolved objects that are stated again.
    duplicates: Vec<usize>,
    /// The definition of an object's kind, for kinds that this render defines.
    definitions: BTreeMap<ObjectKey, ObjectKey>,
    out: Resolved,
}

impl Work<'_> {
    fn take(&mut self, rendered: RenderedObject) {
        let wave = read_wave(&rendered.manifest["metadata"]);
        // If the object's own wave is invalid, that is the error to report.
        let at = wave.as_ref().copied().unwrap_or_default();
        let Some(mut object) = object_ref(&rendered.manifest) else {
            let reason = Refusal::Malformed(format!("{}: no apiVersion, kind or name", rendered.origin));
            self.skip(nameless(&rendered.manifest), at, SkipReason::Refused(reason));
            self.out.complete = false;
            return;
        };

        let gvk = GroupVersionKind::from(&object);
        let definition = self.defined.get(&gvk);
        let is_served = self.served.contains_key(&gvk);
        let scope = self.served.get(&gvk).copied().or(definition.map(|d| d.scope));
        let definition = definition.map(|d| d.object.clone());
        let Some(scope) = scope else {
            self.skip_unknown_kind(object, at);
            return;
        };
        self.place(&mut object, scope);

        let key = ObjectKey::from(&object);
        self.out.stated.push(key.clone());
        if let Some((first, origin)) = self.seen.get(&key) {
            let refusal = Refusal::Duplicate {
                first: origin.clone(),
                second: rendered.origin,
            };
            self.duplicates.push(*first);
            self.skip(object, at, SkipReason::Refused(refusal));
            return;
        }
        let (manifest, options) = match self.write(rendered.manifest, &object, &key, wave) {
            Ok(written) => written,
            Err(refusal) => {
                self.skip(object, at, SkipReason::Refused(refusal));
                return;
            }
        };

        self.seen.insert(key.clone(), (self.out.objects.len(), rendered.origin));
        if let Some(definition) = &definition {
            self.definitions.insert(key, definition.clone());
        }
        self.out.objects.push(ResolvedObject {
            hash: Digest::of_json(&manifest),
            wave: at,
            stage: stage_of(&object),
            options,
            goes_by_itself: has_time_to_live(&manifest),
            body: serde_json::to_vec(&manifest).expect("a manifest is plain JSON"),
            object,
            needs: definition.filter(|_| !is_served).into_iter().collect(),
        });
    }

    fn skip(&mut self, object: ObjectRef, wave: i32, reason: SkipReason) {
        self.out.skipped.push(Skip { object, wave, reason });
    }

    /// Without its kind, the scope of an object is unknown, so each namespace that it may be in counts as stated.
    fn skip_unknown_kind(&mut self, object: ObjectRef, wave: i32) {
        for namespace in ["", self.terms.target_namespace, object.namespace.as_str()] {
            let key = ObjectKey::new(&object.group, &object.kind, namespace, &object.name);
            self.out.stated.push(key);
        }
        self.skip(object, wave, SkipReason::Waiting(Wait::Kind));
    }

    fn place(&self, object: &mut ObjectRef, scope: Scope) {
        match scope {
            Scope::Cluster => object.namespace.clear(),
            Scope::Namespaced if object.namespace.is_empty() => {
                self.terms.target_namespace.clone_into(&mut object.namespace);
            }
            Scope::Namespaced => {}
        }
    }

    /// The manifest as sent, if the grant allows the object and all of its options are valid.
    fn write(
        &mut self,
        manifest: Value,
        object: &ObjectRef,
        key: &ObjectKey,
        wave: Result<i32, BadOption>,
    ) -> Result<(Value, ObjectOptions), Refusal> {
        if let Some(refusal) = check_ceiling(self.terms.ceiling, object) {
            return Err(refusal);
        }
        let service = (self.terms.options, &mut self.ignores);
        let finished = finish(manifest, object, self.service_uid, key, service).map_err(Refusal::BadOption)?;
        wave.map_err(Refusal::BadOption)?;
        Ok(finished)
    }

    fn finish(mut self) -> Resolved {
        // Which of two duplicates is meant is unknown, so neither is applied. The second one's message stands for both.
        self.duplicates.sort_unstable();
        self.duplicates.dedup();
        for index in self.duplicates.into_iter().rev() {
            self.out.objects.remove(index);
        }

        let mut out = self.out;
        refuse_doubles(&mut out, &self.seen);
        add_namespace_needs(&mut out.objects);
        waves::pull_forward(&mut out.objects, &self.definitions);
        out.objects
            .sort_by(|a, b| (a.wave, a.stage, &a.object).cmp(&(b.wave, b.stage, &b.object)));
        out
    }
}

/// Refuses names that are stated as a hook and as an object: it can only be one of them.
fn refuse_doubles(out: &mut Resolved, objects: &BTreeMap<ObjectKey, (usize, String)>) {
    for hook in out.hooks.extract_if(.., |hook| objects.contains_key(&hook.key())) {
        let refusal = Refusal::Malformed("stated as a hook and as an object".to_owned());
        out.skipped
            .push(skip_hook(hook.object, SkipReason::Refused(refusal), &hook.steps));
    }
}

struct Definition {
    object: ObjectKey,
    scope: Scope,
}

/// The kinds that definitions in this render add.
fn defined_kinds(objects: &[RenderedObject]) -> BTreeMap<GroupVersionKind, Definition> {
    let mut defined = BTreeMap::new();
    for rendered in objects {
        let manifest = &rendered.manifest;
        let Some(object) = object_ref(manifest).filter(is_definition) else {
            continue;
        };
        let spec = &manifest["spec"];
        let (Some(group), Some(kind)) = (spec["group"].as_str(), spec["names"]["kind"].as_str()) else {
            continue;
        };
        let scope = if spec["scope"] == "Cluster" {
            Scope::Cluster
        } else {
            Scope::Namespaced
        };
        for version in spec["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| v["name"].as_str())
        {
            let gvk = GroupVersionKind {
                group: group.into(),
                version: version.into(),
                kind: kind.into(),
            };
            defined.insert(
                gvk,
                Definition {
                    object: ObjectKey::from(&object),
                    scope,
                },
            );
        }
    }
    defined
}

fn is_definition(object: &ObjectRef) -> bool {
    object.group == "apiextensions.k8s.io" && object.kind == "CustomResourceDefinition"
}

pub(super) fn object_ref(manifest: &Value) -> Option<ObjectRef> {
    let text = |value: &Value| value.as_str().filter(|s| !s.is_empty()).map(str::to_owned);
    let api_version = text(&manifest["apiVersion"])?;
    let (group, version) = match api_version.split_once('/') {
        Some((group, version)) => (group.to_owned(), version.to_owned()),
        None => (String::new(), api_version),
    };
    Some(ObjectRef {
        group,
        version,
        kind: text(&manifest["kind"])?,
        namespace: text(&manifest["metadata"]["namespace"]).unwrap_or_default(),
        name: text(&manifest["metadata"]["name"])?,
    })
}

pub(super) fn nameless(manifest: &Value) -> ObjectRef {
    let text = |value: &Value| value.as_str().unwrap_or("?").chars().take(64).collect::<String>();
    ObjectRef {
        group: String::new(),
        version: text(&manifest["apiVersion"]),
        kind: text(&manifest["kind"]),
        namespace: String::new(),
        name: text(&manifest["metadata"]["name"]),
    }
}

/// Checks the grant's limits. The RBAC of the service account in the cluster decides on everything else.
pub fn check_ceiling(ceiling: &Ceiling, object: &ObjectRef) -> Option<Refusal> {
    let names_kind = |patterns: &[String]| {
        patterns.iter().any(|p| match p.split_once('.') {
            Some((kind, group)) => kind == object.kind && group == object.group,
            None => *p == object.kind,
        })
    };
    if ceiling.denied_kinds.as_deref().is_some_and(names_kind) {
        return Some(Refusal::KindDenied);
    }
    if ceiling
        .allowed_kinds
        .as_deref()
        .is_some_and(|allowed| !names_kind(allowed))
    {
        return Some(Refusal::KindNotAllowed);
    }
    let namespace = match (object.group.as_str(), object.kind.as_str()) {
        ("", "Namespace") => &object.name,
        _ => &object.namespace,
    };
    let allowed = ceiling.target_namespaces.as_deref()?;
    let is_allowed = allowed.iter().any(|pattern| allows_namespace(pattern, namespace));
    (!namespace.is_empty() && !is_allowed).then(|| Refusal::NamespaceNotAllowed {
        namespace: namespace.clone(),
        allowed: allowed.to_vec(),
    })
}

fn add_namespace_needs(objects: &mut [ResolvedObject]) {
    let namespaces: Vec<ObjectKey> = objects
        .iter()
        .filter(|o| o.stage == Stage::Namespaces)
        .map(ResolvedObject::key)
        .collect();
    for object in objects.iter_mut() {
        let namespace = &object.object.namespace;
        if let Some(needed) = namespaces
            .iter()
            .find(|n| !namespace.is_empty() && n.name() == *namespace)
        {
            object.needs.push(needed.clone());
        }
    }
}

/// The stage of a kind.
pub fn stage_of(object: &ObjectRef) -> Stage {
    match (object.group.as_str(), object.kind.as_str()) {
        ("", "Namespace") => Stage::Namespaces,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => Stage::Definitions,
        (
            "",
            "ServiceAccount"
            | "Secret"
            | "ConfigMap"
            | "LimitRange"
            | "ResourceQuota"
            | "PersistentVolume"
            | "PersistentVolumeClaim",
        )
        | ("rbac.authorization.k8s.io" | "storage.k8s.io" | "scheduling.k8s.io" | "node.k8s.io", _)
        | ("networking.k8s.io", "NetworkPolicy" | "IngressClass") => Stage::Foundations,
        ("", "Pod" | "ReplicationController")
        | ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("batch", "Job" | "CronJob") => Stage::Workloads,
        ("admissionregistration.k8s.io" | "apiregistration.k8s.io", _) => Stage::Interceptors,
        _ => Stage::Rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_stage() {
        let check = |stage: Stage, kinds: &[&str]| {
            for name in kinds {
                let (kind, group) = name.split_once('.').unwrap_or((name, ""));
                let object = ObjectRef {
                    group: group.to_owned(),
                    version: "v1".to_owned(),
                    kind: kind.to_owned(),
                    namespace: String::new(),
                    name: "a".to_owned(),
                };
                assert_eq!(stage_of(&object), stage, "{name}");
            }
        };
        check(Stage::Namespaces, &["Namespace"]);
        check(Stage::Definitions, &["CustomResourceDefinition.apiextensions.k8s.io"]);
        check(
            Stage::Foundations,
            &["ServiceAccount", "Secret", "ConfigMap", "LimitRange", "ResourceQuota"],
        );
        check(
            Stage::Foundations,
            &[
                "PersistentVolume",
                "PersistentVolumeClaim",
                "StorageClass.storage.k8s.io",
            ],
        );
        check(
            Stage::Foundations,
            &[
                "Role.rbac.authorization.k8s.io",
                "ClusterRoleBinding.rbac.authorization.k8s.io",
            ],
        );
        check(
            Stage::Foundations,
            &["PriorityClass.scheduling.k8s.io", "RuntimeClass.node.k8s.io"],
        );
        check(
            Stage::Foundations,
            &["NetworkPolicy.networking.k8s.io", "IngressClass.networking.k8s.io"],
        );
        check(
            Stage::Workloads,
            &["Pod", "ReplicationController", "Job.batch", "CronJob.batch"],
        );
        check(
            Stage::Workloads,
            &[
                "Deployment.apps",
                "StatefulSet.apps",
                "DaemonSet.apps",
                "ReplicaSet.apps",
            ],
        );
        check(
            Stage::Rest,
            &[
                "Service",
                "Ingress.networking.k8s.io",
                "HorizontalPodAutoscaler.autoscaling",
            ],
        );
        check(
            Stage::Rest,
            &[
                "PodDisruptionBudget.policy",
                "Boat.example.com",
                "Deployment.example.com",
            ],
        );
        check(
            Stage::Interceptors,
            &["ValidatingWebhookConfiguration.admissionregistration.k8s.io"],
        );
        check(Stage::Interceptors, &["APIService.apiregistration.k8s.io"]);
        let in_order = [
            Stage::Namespaces,
            Stage::Definitions,
            Stage::Foundations,
            Stage::Workloads,
            Stage::Rest,
            Stage::Interceptors,
        ];
        assert!(in_order.is_sorted());
    }
}
