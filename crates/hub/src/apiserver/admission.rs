//! Checks beyond an object's own schema before it is written, and the fields that are merged in when it is read.

use std::{borrow::Cow, collections::BTreeSet};

use farwater_api::{
    APPROVE_PRUNE, Cluster, ClusterGrantSpec, OVERRIDE_FREEZE, PROPOSE_OVERRIDE, PROPOSE_PRUNE, RETRY_HOOK,
    ServiceDeployment, ServiceDeploymentSpec, refusal,
};
use farwater_fleet::{
    conditions::cut,
    placement::{Denied, selects},
};
use farwater_store::{Key, Kind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{
    call::{Call, store_failed},
    managed_namespaces, second_person,
    service_admission::{Inadmissible, check_dependencies, check_pin, check_service},
    sets,
};
use crate::{
    Hub,
    auth::{Attributes, Escalation, EscalationError},
    kinds::{
        ResourceKind,
        meta::{self, timestamp},
        status::{ApiError, FieldError},
        views,
    },
    resources::{
        APPROVED_AT, APPROVED_BY, CHANGED_BY, HOOK_RETRIED_AT, HOOK_RETRIED_BY, Name, OVERRIDDEN_AT, OVERRIDDEN_BY,
        OVERRIDE_PROPOSED_AT, OVERRIDE_PROPOSED_BY, PINNED_BY, PRUNE_PROPOSED_AT, PRUNE_PROPOSED_BY, SUSPENDED_BY,
        list_pages,
    },
};

/// Refuses a write for which the sender has no right, although the sender may write this kind.
pub async fn admit(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if call.kind.group == "rbac.authorization.k8s.io" {
        return check_escalation(call, object, old).await;
    }
    if call.kind.group == farwater_api::GROUP {
        check_named(call, object, old).await?;
        second_person::check(call, object, old).await?;
        if let Some(old) = old {
            sets::check_change(call, object, old).await?;
        }
        if managed_namespaces::is_managed(call) {
            return Ok(());
        }
        if sets::is_set(call) {
            sets::check_spec(call, object, old)?;
            sets::check_dependencies(call, object, old).await?;
            return sets::check_pin(call, object, old).await;
        }
        if is_service(call) {
            return check_placement(call, object, old).await;
        }
    }
    Ok(())
}

/// A user who names an object must be allowed to read it, because a source's host and a cluster both reveal it. Objects
/// that were named before and go to the same place may stay.
async fn check_named(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    // A service's cluster can't change; the target namespace decides who reads the object there. These fields also say
    // where credentials go and how. Files of the source name its submodules, which may be anywhere.
    const ROUTE: [&str; 10] = [
        "url",
        "targetNamespace",
        "passCredentials",
        "insecure",
        "type",
        "recurseSubmodules",
        "clusterSelector",
        "address",
        "email",
        "stages",
    ];

    let route = |object: &Value| ROUTE.map(|field| object["spec"][field].clone());
    let parts = |object: &Value| match managed_namespaces::is_managed(call) {
        true => crate::kinds::strategy::set_of(object)
            .as_ref()
            .map(sets::variants)
            .unwrap_or_default(),
        false if sets::is_set(call) => sets::variants(object),
        false => vec![object.clone()],
    };

    let (old, new) = (old.map(parts).unwrap_or_default(), parts(object));
    let is_elsewhere = !old.iter().map(route).eq(new.iter().map(route));
    let before = if is_elsewhere {
        BTreeSet::new()
    } else {
        old.iter().flat_map(named).collect()
    };

    let mut asked = BTreeSet::new();
    let now: BTreeSet<Named<'_>> = new.iter().flat_map(named).collect();
    for Named { kind, name, .. } in now.difference(&before) {
        let was_whole = before.contains(&Named {
            kind: *kind,
            name,
            key: None,
        });
        if was_whole || !asked.insert((*kind, *name)) {
            continue;
        }
        if !may_get(call, *kind, meta::text(object, "namespace"), name).await? {
            let why = format!("it names {} {name}, which {} may not get", kind.word(), call.user.name);
            return Err(call.forbidden(meta::text(object, "name"), &why));
        }
    }

    Ok(())
}

/// Whether the sender of the request may read an object.
pub async fn may_get(call: &Call, kind: NamedKind, namespace: &str, name: &str) -> Result<bool, ApiError> {
    let (group, version, resource) = kind.resource();
    let read = Attributes {
        verb: "get".to_owned(),
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Attributes::default()
    };
    let decision = call.hub.access.authorize(&call.user, &read).await;
    Ok(decision
        .map_err(|error| ApiError::unavailable(error.to_string()))?
        .is_allowed())
}

/// Kinds of objects that our kinds send somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedKind {
    Secret,
    ConfigMap,
    ServiceContext,
    Cluster,
    ServiceDeployment,
}

impl NamedKind {
    fn word(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::ServiceContext => "ServiceContext",
            Self::Cluster => "Cluster",
            Self::ServiceDeployment => "ServiceDeployment",
        }
    }

    /// The kind with this word; None: there is none.
    pub fn of(word: &str) -> Option<Self> {
        [
            Self::Secret,
            Self::ConfigMap,
            Self::ServiceContext,
            Self::Cluster,
            Self::ServiceDeployment,
        ]
        .into_iter()
        .find(|kind| kind.word() == word)
    }

    fn resource(self) -> (&'static str, &'static str, &'static str) {
        const OURS: (&str, &str) = (farwater_api::GROUP, farwater_api::VERSION);
        match self {
            Self::Secret => ("", "v1", "secrets"),
            Self::ConfigMap => ("", "v1", "configmaps"),
            Self::ServiceContext => (OURS.0, OURS.1, "servicecontexts"),
            Self::Cluster => (OURS.0, OURS.1, "clusters"),
            Self::ServiceDeployment => (OURS.0, OURS.1, "servicedeployments"),
        }
    }
}

/// An object of the same namespace that an object of ours sends somewhere.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named<'a> {
    kind: NamedKind,
    name: &'a str,
    /// None: the whole object. A right to send one key is no right to send another.
    key: Option<&'a str>,
}

fn named(object: &Value) -> BTreeSet<Named<'_>> {
    let spec = &object["spec"];
    let listed = spec["secrets"].as_array().into_iter().flatten();
    let fields = ["secretRef", "certSecretRef", "proxySecretRef"].map(|field| &spec[field]);

    // A pipeline's Secrets: those for pushing, and those that its gates use.
    let stages = || spec["stages"].as_array().into_iter().flatten();
    let gates = stages().flat_map(|stage| stage["gates"].as_array().into_iter().flatten());
    let asking = gates.flat_map(|gate| [&gate["secretRef"], &gate["certSecretRef"]]);
    let pushing = stages().map(|stage| &stage["pullRequest"]["secretRef"]);
    let whole = listed
        .chain(fields)
        .chain([&spec["verify"]["secretRef"]])
        .chain(asking)
        .chain(pushing);
    let whole = whole.filter_map(|reference| {
        Some(Named {
            kind: NamedKind::Secret,
            name: reference["name"].as_str()?,
            key: None,
        })
    });
    let mut named: BTreeSet<Named<'_>> = whole.collect();

    // The hub's configuration decides who may read another backend's secrets.
    let of_hub = |reference: &&Value| reference["backend"].is_null();
    for reference in spec["secretRefs"].as_array().into_iter().flatten().filter(of_hub) {
        named.extend(name_keys(NamedKind::Secret, &reference["name"], reference));
    }
    for parameter in spec["parameters"].as_array().into_iter().flatten() {
        let from = &parameter["from"];
        if from["backend"].is_null() {
            named.extend(name_keys(NamedKind::Secret, &from["secret"], parameter));
        }
        named.extend(name_keys(NamedKind::ConfigMap, &from["configMap"], parameter));
        named.extend(name_keys(NamedKind::ServiceContext, &from["context"], parameter));
    }

    named
}

/// Each key by itself, or the whole object if no keys are named.
fn name_keys<'a>(kind: NamedKind, name: &'a Value, reference: &'a Value) -> Vec<Named<'a>> {
    let Some(name) = name.as_str() else { return Vec::new() };
    let keys: Vec<&str> = reference["keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if keys.is_empty() {
        return vec![Named { kind, name, key: None }];
    }
    keys.into_iter()
        .map(|key| Named {
            kind,
            name,
            key: Some(key),
        })
        .collect()
}

/// A service may only be placed where a grant of its namespace allows it, and never moves to another cluster.
async fn check_placement(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let name = meta::text(object, "name");
    let spec: ServiceDeploymentSpec =
        serde_json::from_value(object["spec"].clone()).map_err(|error| ApiError::bad_request(error.to_string()))?;
    // An unreadable old service is checked as if the new one were created.
    let old = old.and_then(|old| serde_json::from_value::<ServiceDeployment>(old.clone()).ok());
    let checked = check_all(call, object, &spec, old.as_ref()).await;
    let invalid = |field: &str, value: &Value, why: &Inadmissible| {
        let cause = FieldError::invalid(format!("spec.{field}"), value, &why.to_string());
        ApiError::invalid(&call.kind.group, &call.kind.kind, name, vec![cause])
    };
    let spec = &object["spec"];
    checked.map_err(|error| match error {
        Inadmissible::Denied(why) => refuse_placement(call, object, &why),
        Inadmissible::ClusterChanged => invalid("clusterRef", &spec["clusterRef"], &error),
        Inadmissible::Pin(_) => invalid("pin.bundle", &spec["pin"]["bundle"], &error),
        Inadmissible::DependsOn(_) => invalid("dependsOn", &spec["dependsOn"], &error),
        Inadmissible::Sources { ref field, .. } => invalid(field, &at_path(spec, field), &error),
        Inadmissible::Tests { ref field, .. } => invalid(&format!("tests{field}"), &tests_value(spec, field), &error),
        Inadmissible::Store(error) => store_failed(error),
    })
}

/// The value at `sources[1].chart`.
fn at_path(spec: &Value, path: &str) -> Value {
    let pointer = path.replace('[', ".").replace(']', "").replace('.', "/");
    spec.pointer(&format!("/{pointer}")).cloned().unwrap_or_default()
}

/// The wrong value of one test; all tests together would be too long.
fn tests_value(spec: &Value, field: &str) -> Value {
    let of_one = field.strip_prefix('[').and_then(|rest| rest.split_once("]."));
    let found = of_one.and_then(|(index, name)| Some(spec["tests"][index.parse::<usize>().ok()?][name].clone()));
    found.unwrap_or_default()
}

async fn check_all(
    call: &Call,
    object: &Value,
    spec: &ServiceDeploymentSpec,
    old: Option<&ServiceDeployment>,
) -> Result<(), Inadmissible> {
    let (hub, namespace) = (&call.hub, meta::text(object, "namespace"));
    check_service(&hub.store, namespace, spec, old).await?;
    check_dependencies(&hub.store, &Name::new(namespace, meta::text(object, "name")), spec, old).await?;
    check_pin(&hub.replica, namespace, meta::text(object, "uid"), spec, old).await
}

fn refuse_placement(call: &Call, object: &Value, denied: &Denied) -> ApiError {
    let error = call.forbidden(meta::text(object, "name"), &denied.to_string());
    match denied {
        Denied::NoGrant { namespace, .. } => error.because(refusal::NOT_GRANTED, namespace),
        Denied::Source { grant, .. } | Denied::TargetNamespace { grant, .. } | Denied::ServiceAccount { grant, .. } => {
            error.because(refusal::GRANT_EXCEEDED, grant)
        }
        Denied::AgentNamespace => error,
    }
}

/// Records the author of what a service runs, of its pin, suspension, prune approval and override, and of proposals.
/// Users can't record other users.
pub fn sign(call: &Call, object: &mut Value, old: Option<&Value>) {
    let (author, time) = (Value::from(author(call)), timestamp(call.now));
    if managed_namespaces::is_managed(call) {
        return sign_field(&author, object, old, CHANGED_BY, |namespace| namespace["spec"].clone());
    }
    let is_service = is_service(call);
    if !is_service && !sets::is_set(call) {
        return;
    }

    let pin = |object: &Value| object["spec"].get("pin").cloned().unwrap_or(Value::Bool(false));
    sign_field(&author, object, old, PINNED_BY, pin);
    let sign_annotation = |object: &mut Value, name: &str, by: &str, at: &str| {
        let stated = |object: &Value| {
            object["metadata"]["annotations"]
                .get(name)
                .cloned()
                .unwrap_or(Value::Bool(false))
        };
        sign_field(&author, object, old, by, stated);
        sign_field(&time, object, old, at, stated);
    };
    sign_annotation(object, OVERRIDE_FREEZE, OVERRIDDEN_BY, OVERRIDDEN_AT);
    sign_annotation(object, PROPOSE_OVERRIDE, OVERRIDE_PROPOSED_BY, OVERRIDE_PROPOSED_AT);
    end_proposal(object, old, OVERRIDE_FREEZE, OVERRIDE_PROPOSED_AT);

    if !is_service {
        return sign_field(&author, object, old, CHANGED_BY, |set| set["spec"].clone());
    }
    sign_annotation(object, APPROVE_PRUNE, APPROVED_BY, APPROVED_AT);
    sign_annotation(object, PROPOSE_PRUNE, PRUNE_PROPOSED_BY, PRUNE_PROPOSED_AT);
    sign_annotation(object, RETRY_HOOK, HOOK_RETRIED_BY, HOOK_RETRIED_AT);
    end_proposal(object, old, APPROVE_PRUNE, PRUNE_PROPOSED_AT);

    let suspension = |object: &Value| match object["spec"]["suspend"].as_bool() {
        Some(true) => object["spec"].get("suspension").cloned().unwrap_or_default(),
        // Differs from any suspension that can be stated.
        _ => Value::Bool(false),
    };
    let version = |object: &Value| {
        let spec = &object["spec"];
        serde_json::json!([
            spec["sourceRef"],
            spec["path"],
            spec["pin"],
            spec["chart"],
            spec["sources"]
        ])
    };

    sign_field(&author, object, old, CHANGED_BY, version);
    sign_field(&author, object, old, SUSPENDED_BY, suspension);
}

/// A proposal is valid for one spec and one approval, and ends when either changes. Removing its
/// time ends it.
fn end_proposal(object: &mut Value, old: Option<&Value>, approval: &str, at: &str) {
    let Some(old) = old else { return };
    let stated = |object: &Value| object["metadata"]["annotations"][approval].clone();
    let is_used = stated(object) != stated(old) && !stated(object).is_null();
    let is_new = old["status"][at] != object["status"][at];
    if (is_used || old["spec"] != object["spec"])
        && !is_new
        && let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
    {
        status.remove(at);
    }
}

/// The name that is recorded for the sender. It is cut, because a status is small and names of users are not limited.
pub fn author(call: &Call) -> String {
    const LONGEST: usize = 128;
    cut(&call.user.name, LONGEST)
}

pub fn is_service(call: &Call) -> bool {
    call.kind.group == farwater_api::GROUP && call.kind.plural == "servicedeployments"
}

/// Sets a field to `said` if `stated` returns something else than before. Removes the field if nothing is stated.
fn sign_field(said: &Value, object: &mut Value, old: Option<&Value>, field: &str, stated: impl Fn(&Value) -> Value) {
    let now = stated(object);
    if old.map_or(Value::Bool(false), &stated) == now {
        return;
    }
    if now != Value::Bool(false) {
        object["status"][field] = said.clone();
    } else if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove(field);
    }
}

/// Refuses to grant rights that the sender doesn't hold. Bookkeeping of the garbage collector may change: otherwise an
/// object that is stuck would keep its grant.
async fn check_escalation(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if old.is_some_and(|old| without_bookkeeping(old) == without_bookkeeping(object)) {
        return Ok(());
    }
    call.hub
        .access
        .check_escalation(&call.user, object)
        .await
        .map_err(|error| match error {
            EscalationError::Refused(Escalation::RoleMissing { role }) => call.not_found(role.name()),
            EscalationError::Refused(why) => call.forbidden(meta::text(object, "name"), &why.to_string()),
            EscalationError::Access(error) => ApiError::unavailable(error.to_string()),
        })
}

fn without_bookkeeping(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| {
            !["ownerReferences", "finalizers", "managedFields", "resourceVersion"].contains(&field.as_str())
        });
    }
    object
}

/// Oddities of an object that are no reason to refuse it, for `Warning` headers.
pub async fn advise(call: &Call, object: &Value, old: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let changed = old.is_none_or(|old| old["spec"] != object["spec"]);
    if !changed || call.kind.group != farwater_api::GROUP || call.kind.plural != "clustergrants" {
        return Ok(Vec::new());
    }
    // An unreadable grant is about to be refused with a better message.
    let Ok(grant) = serde_json::from_value::<ClusterGrantSpec>(object["spec"].clone()) else {
        return Ok(Vec::new());
    };
    advise_on_grant(call, &grant).await
}

/// A grant may be written before the objects that it names. A misspelt name or label looks the same, so this warns.
async fn advise_on_grant(call: &Call, grant: &ClusterGrantSpec) -> Result<Vec<String>, ApiError> {
    let mut warnings = Vec::new();
    for name in &grant.namespaces {
        let key = Key {
            kind: Kind::new("namespaces", ""),
            namespace: String::new(),
            name: name.clone(),
        };
        if call.hub.store.get(&key).await.map_err(store_failed)?.is_none() {
            warnings.push(format!(
                "spec.namespaces: namespace {name:?} does not exist; the grant has no effect on it"
            ));
        }
    }
    // The empty selector means every cluster, now and later.
    if grant.cluster_selector != LabelSelector::default() {
        let mut selected = false;
        let each = |cluster: farwater_store::Resource| {
            selected |= selects(&grant.cluster_selector, &meta::labels(&cluster.object));
        };
        list_pages::<Cluster>(&call.hub.store, None, each)
            .await
            .map_err(store_failed)?;
        if !selected {
            warnings.push("spec.clusterSelector: no cluster has these labels; the grant has no effect".to_owned());
        }
    }
    Ok(warnings)
}

/// Whether objects of a kind are read as they are stored.
pub fn is_read_as_stored(kind: &ResourceKind) -> bool {
    kind.view.is_none() && !is_cluster(kind)
}

fn is_cluster(kind: &ResourceKind) -> bool {
    kind.group == farwater_api::GROUP && kind.plural == "clusters"
}

/// An object as it is read, with the fields that are kept outside it.
pub fn decorated<'a>(hub: &Hub, kind: &ResourceKind, object: &'a Value) -> Cow<'a, Value> {
    if !is_cluster(kind) {
        return views::show(kind, object);
    }
    let mut cluster = object.clone();
    hub.replica.merge_last_heard(&mut cluster);
    Cow::Owned(cluster)
}
