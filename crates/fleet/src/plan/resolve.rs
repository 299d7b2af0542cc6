//! From manifests to the exact objects to send: scope, namespace, ownership marks, ceilings, order.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Digest, OWNER_ANNOTATION, SERVICE_LABEL, apply_options::ApplyOptions, objects::ObjectRef, protocol::Ceiling,
};
use serde_json::{Map, Value};

use super::{
    GroupVersionKind, ObjectKey, Refusal, Render, RenderedObject, Scope, Skip, SkipReason, Stage, Wait,
    hooks::{ResolvedHook, resolve_hooks, skip_hook, take_hooks},
    ignored::Ignores,
    options::{BadOption, ObjectOptions, read_options, read_wave},
    veil::Veil,
    waves,
};
use crate::{
    health::has_time_to_live,
    ownership::{owner_annotation, service_label},
    placement::allows_namespace,
    prune::{Generated, generated},
};

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
    let Terms {
        target_namespace,
        ceiling,
        options,
    } = terms;
    let complete = render.errors.is_empty();
    let hooks = take_hooks(&mut render.objects);
    let (hooks, skipped) = resolve_hooks(hooks, service_uid, terms, served);
    let defined = defined_kinds(&render.objects);
    let mut ignores = Ignores::compile(&options.ignore_differences);
    let mut out = Resolved {
        target_namespace: target_namespace.to_owned(),
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

    let mut seen: BTreeMap<ObjectKey, (usize, String)> = BTreeMap::new();
    let mut duplicates: Vec<usize> = Vec::new();
    let mut definitions: BTreeMap<ObjectKey, ObjectKey> = BTreeMap::new();
    for rendered in render.objects {
        let wave = read_wave(&rendered.manifest["metadata"]);
        // If the object's own wave is invalid, that is the error to report.
        let at = wave.as_ref().copied().unwrap_or_default();
        let skip = |object, reason| Skip {
            object,
            wave: at,
            reason,
        };
        let Some(mut object) = object_ref(&rendered.manifest) else {
            let reason = Refusal::Malformed(format!("{}: no apiVersion, kind or name", rendered.origin));
            out.skipped
                .push(skip(nameless(&rendered.manifest), SkipReason::Refused(reason)));
            out.complete = false;
            continue;
        };
        let gvk = GroupVersionKind::from(&object);
        let definition = defined.get(&gvk);
        let Some(scope) = served.get(&gvk).copied().or(definition.map(|d| d.scope)) else {
            for namespace in ["", target_namespace, object.namespace.as_str()] {
                out.stated
                    .push(ObjectKey::new(&object.group, &object.kind, namespace, &object.name));
            }
            out.skipped.push(skip(object, SkipReason::Waiting(Wait::Kind)));
            continue;
        };
        match scope {
            Scope::Cluster => object.namespace.clear(),
            Scope::Namespaced if object.namespace.is_empty() => target_namespace.clone_into(&mut object.namespace),
            Scope::Namespaced => {}
        }
        let key = ObjectKey::from(&object);
        out.stated.push(key.clone());
        if let Some((first, origin)) = seen.get(&key) {
            let refusal = Refusal::Duplicate {
                first: origin.clone(),
                second: rendered.origin,
            };
            duplicates.push(*first);
            out.skipped.push(skip(object, SkipReason::Refused(refusal)));
            continue;
        }
        let finished = check_ceiling(ceiling, &object).map_or(Ok(()), Err).and_then(|()| {
            finish(rendered.manifest, &object, service_uid, &key, (options, &mut ignores))
                .and_then(|finished| wave.clone().map(|_| finished))
                .map_err(Refusal::BadOption)
        });
        let (manifest, options) = match finished {
            Ok(finished) => finished,
            Err(refusal) => {
                out.skipped.push(skip(object, SkipReason::Refused(refusal)));
                continue;
            }
        };
        seen.insert(key.clone(), (out.objects.len(), rendered.origin));
        if let Some(definition) = definition {
            definitions.insert(key, definition.object.clone());
        }
        let needs = definition
            .filter(|_| !served.contains_key(&gvk))
            .map(|d| d.object.clone())
            .into_iter()
            .collect();
        out.objects.push(ResolvedObject {
            hash: Digest::of_json(&manifest),
            wave: at,
            stage: stage_of(&object),
            options,
            goes_by_itself: has_time_to_live(&manifest),
            body: serde_json::to_vec(&manifest).expect("a manifest is plain JSON"),
            object,
            needs,
        });
    }

    // Which of two duplicates is meant is unknown, so neither is applied. The second one's message stands for both.
    duplicates.sort_unstable();
    duplicates.dedup();
    for index in duplicates.into_iter().rev() {
        out.objects.remove(index);
    }

    refuse_doubles(&mut out, &seen);
    add_namespace_needs(&mut out.objects);
    waves::pull_forward(&mut out.objects, &definitions);
    out.objects
        .sort_by(|a, b| (a.wave, a.stage, &a.object).cmp(&(b.wave, b.stage, &b.object)));
    out
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

/// Writes `stringData` of a Secret as the API server stores it. Otherwise we would own fields under a name that no
/// stored field has: a key that leaves the source would stay, and changes by others would not be noticed. A value that
/// the API server refuses is left as it is.
fn fold_string_data(manifest: &mut Value) {
    let is_text = |texts: &Value| {
        texts
            .as_object()
            .is_some_and(|texts| texts.values().all(Value::is_string))
    };
    if !manifest.get("stringData").is_some_and(is_text) || !matches!(manifest["data"], Value::Null | Value::Object(_)) {
        return;
    }
    let Some(Value::Object(texts)) = manifest.as_object_mut().and_then(|map| map.remove("stringData")) else {
        return;
    };
    let data = entry_object(manifest, "data");
    for (name, text) in texts {
        data.insert(name, BASE64.encode(text.as_str().unwrap_or_default()).into());
    }
}

/// Replaces fields that the API server or a controller of Kubernetes turns into others.
pub fn settle(manifest: &mut Value, object: &ObjectRef) {
    match (object.group.as_str(), object.kind.as_str()) {
        ("", "Secret") => fold_string_data(manifest),
        ("rbac.authorization.k8s.io", "ClusterRole") if is_aggregated(manifest) => drop_rules(manifest),
        _ => {}
    }
}

/// Whether a ClusterRole gets its rules from other roles.
pub fn is_aggregated(role: &Value) -> bool {
    role["aggregationRule"].is_object()
}

/// Removes the rules of an aggregated ClusterRole, which a controller of Kubernetes always overwrites. An apply of the
/// usual `rules: []` would take these rights away for a moment.
fn drop_rules(role: &mut Value) {
    if let Some(role) = role.as_object_mut() {
        role.remove("rules");
    }
}

/// Adds the namespace and our marks, and removes what an export of a live object contains and an apply must not.
pub(super) fn finish(
    mut manifest: Value,
    object: &ObjectRef,
    service_uid: &str,
    key: &ObjectKey,
    (service, ignores): (&ApplyOptions, &mut Ignores<'_>),
) -> Result<(Value, ObjectOptions), BadOption> {
    settle(&mut manifest, object);
    let metadata = entry_object(&mut manifest, "metadata");
    for server_side in [
        "managedFields",
        "resourceVersion",
        "uid",
        "creationTimestamp",
        "generation",
        "selfLink",
    ] {
        metadata.remove(server_side);
    }
    if object.namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".into(), object.namespace.clone().into());
    }

    let ignored = ignores.of(&manifest, object)?;
    let metadata = entry_object(&mut manifest, "metadata");
    let marks = [
        ("labels", SERVICE_LABEL, service_label(service_uid)),
        ("annotations", OWNER_ANNOTATION, owner_annotation(service_uid, key)),
    ];
    let annotations = ignored
        .annotations
        .into_iter()
        .map(|(name, value)| ("annotations", name, value));
    for (field, name, value) in marks.into_iter().chain(annotations) {
        let value = Value::from(value);
        match metadata.get_mut(field).and_then(Value::as_object_mut) {
            Some(map) => {
                map.insert(name.into(), value);
            }
            None => {
                metadata.insert(field.into(), Value::Object(Map::from_iter([(name.to_owned(), value)])));
            }
        }
    }

    let options = read_options(&manifest, object, service)?;
    Ok((
        manifest,
        ObjectOptions {
            unanswered: ignored.unanswered,
            ..options
        },
    ))
}

fn entry_object<'a>(value: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = &mut value[field];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made an object above")
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
