//! What a ManagedNamespace becomes: a ServiceSet whose services get their files from the hub itself.
//!
//! The files never change: they are one template, and its content is in each service's `configuration`. So another
//! label or quota is another template of the set, and is rolled out like any other.

use std::collections::BTreeMap;

use farwater_api::{
    ManagedNamespaceSpec, ServiceSetSpec, SourceKind,
    apply_options::PRUNE,
    managed_namespace::{OBJECT_NAME, set_name},
    parameters::MAX_CONFIGURATION_BYTES,
    service_set::{ServiceTemplate, TemplateMetadata, TemplateSpec},
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};

use crate::stamping::SpecProblem;

/// The only file of a ManagedNamespace's services. It must never change, because no service would be reconciled for it.
pub const FILE: (&str, &str) = ("objects.yaml.liquid", "{{ configuration.objects }}\n");
/// Name of the objects in `configuration`.
const OBJECTS: &str = "objects";
/// Prefix of labels and annotations that direct the agent, and are not allowed on a namespace.
const OURS: &str = "farwater.dev/";
/// The API server sets this label and accepts no other value.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// What a quota may limit without a group, as in Kubernetes: amounts, and things counted in whole numbers.
const MEASURED: [&str; 11] = [
    "cpu",
    "memory",
    "storage",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
const COUNTED: [&str; 9] = [
    "pods",
    "services",
    "services.nodeports",
    "services.loadbalancers",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
];

/// The name and spec of the set for a ManagedNamespace of this name.
pub fn plan_set(name: &str, spec: &ManagedNamespaceSpec) -> (String, ServiceSetSpec) {
    let mut template = Map::new();
    template.insert("targetNamespace".to_owned(), spec.namespace(name).into());
    template.insert(
        "sourceRef".to_owned(),
        json!({"kind": SourceKind::ManagedNamespace, "name": name}),
    );
    template.insert("configuration".to_owned(), json!({OBJECTS: write_objects(name, spec)}));
    if !spec.pull_secrets.is_empty() {
        template.insert("secrets".to_owned(), json!(spec.pull_secrets));
    }
    let set = ServiceSetSpec {
        cluster_selector: spec.cluster_selector.clone(),
        template: ServiceTemplate {
            metadata: TemplateMetadata::default(),
            spec: TemplateSpec(template),
        },
        rollout: spec.rollout.clone(),
        deletion_policy: spec.deletion_policy,
        ..ServiceSetSpec::default()
    };
    (set_name(name), set)
}

/// The ManagedNamespace that a set or a service belongs to, from its own spec. Only the hub can state such a source.
pub fn maker_of(spec: &Value) -> Option<&str> {
    let source = match spec.get("template") {
        Some(template) => &template["spec"]["sourceRef"],
        None => &spec["sourceRef"],
    };
    (source["kind"] == SourceKind::ManagedNamespace.as_str())
        .then(|| source["name"].as_str())
        .flatten()
}

/// The objects as consecutive YAML documents in JSON, whose values can't be misread.
fn write_objects(name: &str, spec: &ManagedNamespaceSpec) -> String {
    let objects = objects(spec.namespace(name), spec);
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

fn objects(namespace: &str, spec: &ManagedNamespaceSpec) -> Vec<Value> {
    let mut metadata = json!({"name": namespace});
    for (field, texts) in [("labels", &spec.labels), ("annotations", &spec.annotations)] {
        if !texts.is_empty() {
            metadata[field] = json!(texts);
        }
    }

    // The account is always there, so that Secrets that are no longer named are removed from it. It is never deleted,
    // because the tokens of all pods would go with it.
    let mut account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": namespace, "annotations": {PRUNE: "disabled"}},
    });
    if !spec.pull_secrets.is_empty() {
        account["imagePullSecrets"] = json!(spec.pull_secrets);
    }
    let own = |kind: &str, spec: Value| {
        let metadata = json!({"name": OBJECT_NAME, "namespace": namespace});
        json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})
    };

    let mut all = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}),
        account,
    ];
    all.extend(
        spec.resource_quota
            .as_ref()
            .map(|quota| own("ResourceQuota", json!(quota))),
    );
    all.extend(spec.limit_range.as_ref().map(|limits| own("LimitRange", json!(limits))));
    for object in &mut all[2..] {
        write_quantities(&mut object["spec"]);
    }
    all
}

/// Writes quantities as text, as the API server stores them; otherwise it would return others than were applied.
fn write_quantities(value: &mut Value) {
    match value {
        Value::Number(number) => *value = number.to_string().into(),
        Value::Array(items) => items.iter_mut().for_each(write_quantities),
        Value::Object(fields) => fields.values_mut().for_each(write_quantities),
        _ => {}
    }
}

/// What clusters would refuse and no schema checks. Fields are below `spec`.
pub fn check(name: &str, spec: &ManagedNamespaceSpec) -> Vec<SpecProblem> {
    let mut problems = check_marks(name, spec);
    problems.extend(check_quota(spec));
    problems.extend(check_limits(spec));

    let configuration = json!({OBJECTS: write_objects(name, spec)}).to_string().len();
    if configuration > MAX_CONFIGURATION_BYTES {
        let why = format!(
            "labels, annotations, quota and limits are {configuration} bytes as the agent gets them, and at most \
             {MAX_CONFIGURATION_BYTES} are taken; shorten the annotations"
        );
        problems.push(refuse("annotations", why));
    }
    problems
}

fn refuse(field: impl Into<String>, why: impl Into<String>) -> SpecProblem {
    SpecProblem {
        field: field.into(),
        why: why.into(),
    }
}

/// Labels and annotations that the agent or Kubernetes set.
fn check_marks(name: &str, spec: &ManagedNamespaceSpec) -> Vec<SpecProblem> {
    let mut problems = Vec::new();
    for (field, texts) in [("labels", &spec.labels), ("annotations", &spec.annotations)] {
        for key in texts.keys().filter(|key| key.starts_with(OURS)) {
            let why = format!("{key:?} begins with {OURS}, which is for the agent; leave it out");
            problems.push(refuse(field, why));
        }
    }
    if let Some(other) = spec
        .labels
        .get(NAME_LABEL)
        .filter(|value| *value != spec.namespace(name))
    {
        let why = format!("{NAME_LABEL} is {other:?}: Kubernetes sets it to the namespace's name; leave it out");
        problems.push(refuse("labels", why));
    }
    problems
}

fn check_quota(spec: &ManagedNamespaceSpec) -> Vec<SpecProblem> {
    let mut problems = Vec::new();
    let Some(quota) = &spec.resource_quota else {
        return problems;
    };
    if quota.hard.is_empty() {
        problems.push(refuse(
            "resourceQuota.hard",
            "state a limit, such as pods, or leave out the quota",
        ));
    }
    for (resource, amount) in &quota.hard {
        if let Err(why) = check_resource(resource).and_then(|()| check_amount(resource, amount)) {
            problems.push(refuse(format!("resourceQuota.hard[{resource}]"), why));
        }
    }
    problems
}

fn check_limits(spec: &ManagedNamespaceSpec) -> Vec<SpecProblem> {
    let mut problems = Vec::new();
    for (n, item) in spec.limit_range.iter().flat_map(|range| &range.limits).enumerate() {
        let maps: [(&str, &BTreeMap<String, IntOrString>); 5] = [
            ("default", &item.default),
            ("defaultRequest", &item.default_request),
            ("max", &item.max),
            ("min", &item.min),
            ("maxLimitRequestRatio", &item.max_limit_request_ratio),
        ];
        if maps.iter().all(|(_, map)| map.is_empty()) {
            problems.push(refuse(
                format!("limitRange.limits[{n}]"),
                "it limits nothing; leave it out",
            ));
        }
        for (name, map) in maps {
            for (resource, amount) in map {
                if let Err(why) = parse_quantity(amount) {
                    problems.push(refuse(format!("limitRange.limits[{n}].{name}[{resource}]"), why));
                }
            }
        }
    }
    problems
}

fn check_resource(name: &str) -> Result<(), String> {
    if name.contains('/')
        || MEASURED.contains(&name)
        || COUNTED.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
    {
        return Ok(());
    }
    Err(format!(
        "{name:?} is nothing that a quota is of: write {}, or count/PLURAL.GROUP",
        [&MEASURED[..], &COUNTED].concat().join(", ")
    ))
}

/// Checks an amount. Counted things need a whole number.
fn check_amount(resource: &str, amount: &IntOrString) -> Result<(), String> {
    parse_quantity(amount)?;
    let is_count = COUNTED.contains(&resource) || resource.starts_with("count/");
    match amount {
        IntOrString::String(text) if is_count && !text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(format!("{text:?} is no whole number, by which {resource} are counted"))
        }
        _ => Ok(()),
    }
}

/// Accepts what `resource.ParseQuantity` of Kubernetes accepts, except negative amounts.
fn parse_quantity(amount: &IntOrString) -> Result<(), String> {
    let text = match amount {
        IntOrString::Int(number) if *number >= 0 => return Ok(()),
        IntOrString::Int(number) => return Err(format!("{number} is below 0")),
        IntOrString::String(text) => text,
    };
    let wrong = || {
        format!(
            "{text:?} is no quantity: write a number with or without one of m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, such as 500m or 2Gi"
        )
    };
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &text[..text.len() - digits.len()];
    let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    let exponent = digits
        .strip_prefix(['e', 'E'])
        .map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest));
    let is_exponent = exponent.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
    const SUFFIXES: [&str; 16] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    if is_number && (SUFFIXES.contains(&digits) || is_exponent) {
        Ok(())
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
#[path = "namespaces_tests.rs"]
mod tests;
