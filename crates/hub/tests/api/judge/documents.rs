//! Discovery, OpenAPI and `kubectl explain`: what clients read of the kinds before they use them.

use std::collections::BTreeMap;

use farwater_testkit::kube::shared;
use serde_json::{Map, Value, json};

use crate::support::Served;

use super::court::*;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The groups that a hub serves, as they lie under `/openapi/v3/`.
const GROUPS: [&str; 7] = [
    "api/v1",
    "apis/authentication.k8s.io/v1",
    "apis/authorization.k8s.io/v1",
    "apis/coordination.k8s.io/v1",
    "apis/events.k8s.io/v1",
    "apis/farwater.dev/v1alpha1",
    "apis/rbac.authorization.k8s.io/v1",
];

/// Of lists whose members have names, those that are in both, by name; what isn't in both has to be asked for by name.
fn by_name(list: &Value, name: &str) -> BTreeMap<String, Value> {
    let members = list.as_array().into_iter().flatten();
    members
        .map(|member| (member.pointer(name).and_then(Value::as_str).unwrap_or_default().to_owned(), member.clone()))
        .collect()
}

/// Every member of `ours` must be as in `real`.
fn compare_members(place: &str, ours: &Value, real: &Value, name: &str, differences: &mut Vec<String>) {
    let real = by_name(real, name);
    for (member, ours) in by_name(ours, name) {
        match real.get(&member) {
            Some(real) if *real == ours => {}
            Some(real) => differences.push(format!("{place} {member}\n  real: {real}\n  ours: {ours}")),
            None => differences.push(format!("{place} {member}: only ours has it")),
        }
    }
}

/// Without what says how the real server stores, and without subresources that only we have.
fn comparable(mut resource: Value) -> Value {
    if let Some(map) = resource.as_object_mut() {
        map.remove("storageVersionHash");
    }
    // So that `kubectl get all` shows what a tenant works with; a CRD's categories are said in the CRD.
    if let Some(categories) = resource.get_mut("categories").and_then(Value::as_array_mut) {
        categories.retain(|category| category != "all");
    }
    if let Some(list) = resource.get_mut("subresources").and_then(Value::as_array_mut) {
        list.retain(|sub| !matches!(sub["subresource"].as_str(), Some("objects" | "join")));
    }
    if resource["subresources"] == json!([]) {
        resource.as_object_mut().unwrap().remove("subresources");
    }
    resource
}

fn comparable_list(list: &Value) -> Value {
    let list = list.as_array().into_iter().flatten();
    let own = |name: &str| name.ends_with("/objects") || name.ends_with("/join");
    list.filter(|resource| !own(resource["name"].as_str().unwrap_or_default())).cloned().map(comparable).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_says_what_kubernetes_says_of_each_kind() {
    let served = Served::start().await;
    let court = Court::sit(&served).await;
    let mut differences = Vec::new();
    for path in ["/api", "/apis"] {
        let step = Step::get(path).accept(AGGREGATED);
        let (real, ours) = (court.real.ask(&step).await, court.ours.ask(&step).await);
        assert_eq!(ours.value["kind"], real.value["kind"]);
        let real_groups = by_name(&real.value["items"], "/metadata/name");
        for (group, ours) in by_name(&ours.value["items"], "/metadata/name") {
            let real_versions = by_name(&real_groups[&group]["versions"], "/version");
            for (version, ours) in by_name(&ours["versions"], "/version") {
                let real = &real_versions[&version];
                assert_eq!(ours["freshness"], real["freshness"]);
                let place = format!("{path} {group}/{version}");
                let all = |version: &Value| {
                    version["resources"].as_array().unwrap().iter().cloned().map(comparable).collect::<Value>()
                };
                compare_members(&place, &all(&ours), &all(real), "/resource", &mut differences);
            }
        }
    }
    for group in GROUPS {
        let step = Step::get(&format!("/{group}")).accept(JSON);
        let (real, ours) = (court.real.ask(&step).await.value, court.ours.ask(&step).await.value);
        assert_eq!(ours["groupVersion"], real["groupVersion"]);
        let (real, ours) = (comparable_list(&real["resources"]), comparable_list(&ours["resources"]));
        compare_members(group, &ours, &real, "/name", &mut differences);
        // A group of one version, which is the preferred one.
        if let Some(group) = group.strip_prefix("apis/").and_then(|group| group.split_once('/')) {
            let step = Step::get(&format!("/apis/{}", group.0)).accept(JSON);
            let (real, ours) = (court.real.ask(&step).await.value, court.ours.ask(&step).await.value);
            if real != ours {
                differences.push(format!("{}\n  real: {real}\n  ours: {ours}", group.0));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    court.sentence();
    served.stop().await;
}

/// What a client reads of a schema; references are followed.
const KEYWORDS: [&str; 22] = [
    "type",
    "format",
    "enum",
    "pattern",
    "required",
    "nullable",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-group-version-kind",
    "x-kubernetes-unions",
    "x-kubernetes-embedded-resource",
];

struct Schemas<'a>(&'a Map<String, Value>);

impl<'a> Schemas<'a> {
    /// The schema behind references, which stand alone or in an `allOf` of one.
    fn resolve(&self, mut schema: &'a Value) -> &'a Value {
        loop {
            let one = schema["allOf"].as_array().filter(|all| all.len() == 1).map(|all| &all[0]);
            let inner = one.unwrap_or(schema);
            match inner["$ref"].as_str() {
                Some(reference) => {
                    let name = reference.rsplit('/').next().unwrap();
                    schema = self.0.get(name).unwrap_or_else(|| panic!("no schema {name}"));
                }
                None => return inner,
            }
        }
    }
}

fn compare_schemas(
    place: &str,
    ours: (&Schemas<'_>, &Value),
    real: (&Schemas<'_>, &Value),
    differences: &mut Vec<String>,
) {
    if place.matches('.').count() > 12 {
        return;
    }
    let (ours_in, real_in) = (ours.0, real.0);
    let (ours, real) = (ours_in.resolve(ours.1), real_in.resolve(real.1));
    for keyword in KEYWORDS {
        let (mut a, mut b) = (ours[keyword].clone(), real[keyword].clone());
        if keyword == "x-kubernetes-group-version-kind" || keyword == "required" {
            // Of types that many groups share, such as DeleteOptions, Kubernetes names all.
            for list in [&mut a, &mut b] {
                if let Some(list) = list.as_array_mut() {
                    list.sort_by_key(ToString::to_string);
                }
            }
        }
        if a != b {
            differences.push(format!("{place}: {keyword}\n  real: {b}\n  ours: {a}"));
        }
    }
    let names = |schema: &Value| {
        schema["properties"].as_object().into_iter().flatten().map(|(n, _)| n.clone()).collect::<Vec<_>>()
    };
    let (a, b) = (names(ours), names(real));
    if a != b {
        let only = |a: &[String], b: &[String]| a.iter().filter(|n| !b.contains(n)).cloned().collect::<Vec<_>>();
        differences.push(format!("{place}: properties; only real: {:?}, only ours: {:?}", only(&b, &a), only(&a, &b)));
    }
    for name in a.iter().filter(|name| b.contains(name)) {
        let (a, b) = (&ours["properties"][name], &real["properties"][name]);
        compare_schemas(&format!("{place}.{name}"), (ours_in, a), (real_in, b), differences);
    }
    for part in ["items", "additionalProperties"] {
        match (ours.get(part).filter(|s| s.is_object()), real.get(part).filter(|s| s.is_object())) {
            (Some(a), Some(b)) => compare_schemas(&format!("{place}.{part}"), (ours_in, a), (real_in, b), differences),
            (None, None) => {}
            (a, b) => differences.push(format!("{place}: {part}: real {}, ours {}", b.is_some(), a.is_some())),
        }
    }
}

/// What clients read of an operation: what it is for, its parameters and the types of its body.
fn read_operation(path: &Value, operation: &Value) -> Value {
    let lists = [&path["parameters"], &operation["parameters"]];
    let parameters = lists.into_iter().filter_map(Value::as_array).flatten();
    let mut parameters: Vec<&str> = parameters.filter_map(|p| p["name"].as_str()).collect();
    parameters.sort_unstable();
    parameters.dedup();
    let body: Vec<&String> =
        operation["requestBody"]["content"].as_object().into_iter().flatten().map(|(t, _)| t).collect();
    json!({
        "action": operation["x-kubernetes-action"], "gvk": operation["x-kubernetes-group-version-kind"],
        "parameters": parameters, "body": body,
    })
}

fn compare_paths(group: &str, ours: &Value, real: &Value, differences: &mut Vec<String>) {
    for (path, ours) in ours["paths"].as_object().unwrap() {
        if path.ends_with("/objects") || path.ends_with("/join") {
            continue;
        }
        let Some(real) = real["paths"].get(path) else {
            differences.push(format!("{group} {path}: only ours has it"));
            continue;
        };
        for method in ["get", "put", "post", "patch", "delete"] {
            let (mut a, mut b) =
                (ours.get(method).map(|o| read_operation(ours, o)), real.get(method).map(|o| read_operation(real, o)));
            // Kubernetes takes anything as a body and reads its type from the header; it also takes CBOR.
            for operation in [&mut a, &mut b].into_iter().flatten() {
                if method != "patch" {
                    operation.as_object_mut().unwrap().remove("body");
                } else if let Some(types) = operation["body"].as_array_mut() {
                    types.retain(|t| !t.as_str().unwrap().contains("cbor"));
                }
                if let Some(parameters) = operation["parameters"].as_array_mut() {
                    // What is refused here is not offered.
                    let refused = ["shardSelector", "pretty", "ignoreStoreReadErrorWithClusterBreakingPotential"];
                    parameters.retain(|p| !refused.contains(&p.as_str().unwrap()));
                }
                // Of custom resources the real document names those of a watch.
                if group.contains("farwater") && operation["action"] == "deletecollection" {
                    operation.as_object_mut().unwrap().remove("parameters");
                }
            }
            if a != b {
                let shown = |v: &Option<Value>| v.as_ref().map(ToString::to_string).unwrap_or_default();
                differences.push(format!("{group} {method} {path}\n  real: {}\n  ours: {}", shown(&b), shown(&a)));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_describes_each_kind_as_kubernetes_does() {
    let served = Served::start().await;
    let court = Court::sit(&served).await;
    let mut differences = Vec::new();
    for group in GROUPS {
        let step = Step::get(&format!("/openapi/v3/{group}")).accept(JSON);
        // Of custom resources it is published some time after they are.
        court.wait_until(step.clone(), |answer| answer.code == 200).await;
        let (real, ours) = (court.real.ask(&step).await.value, court.ours.ask(&step).await.value);
        let schemas = |document: &Value| document["components"]["schemas"].as_object().cloned().unwrap_or_default();
        let (real_all, our_all) = (schemas(&real), schemas(&ours));
        for (name, schema) in &our_all {
            if schema.get("x-kubernetes-group-version-kind").is_none() {
                continue;
            }
            match real_all.get(name) {
                Some(other) => compare_schemas(
                    name.rsplit('.').next().unwrap(),
                    (&Schemas(&our_all), schema),
                    (&Schemas(&real_all), other),
                    &mut differences,
                ),
                None => differences.push(format!("{group}: only ours has the schema {name}")),
            }
        }
        compare_paths(group, &ours, &real, &mut differences);
    }
    differences.sort();
    differences.dedup();
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_each_kind_as_of_kubernetes() {
    let served = Served::start().await;
    let court = Court::sit(&served).await;
    let kubectl = served.newest();
    let mut differences = Vec::new();
    let newer = "--api-version=events.k8s.io/v1";
    let kinds = [
        &["configmaps"][..],
        &["namespaces"],
        &["secrets"],
        &["serviceaccounts"],
        &["events"],
        &["events", newer],
        &["leases"],
        &["roles"],
        &["rolebindings"],
        &["clusterroles"],
        &["clusterrolebindings"],
        &["gitrepositories.farwater.dev"],
        &["clusters.farwater.dev"],
        &["clustergrants.farwater.dev"],
        &["servicedeployments.farwater.dev"],
        &["configmaps.metadata.ownerReferences"],
    ];
    for kind in kinds {
        for more in [&[][..], &["--recursive"]] {
            let args = [&["explain"], kind, more].concat();
            let ours = kubectl.run(&args).await;
            let mut command = tokio::process::Command::from(shared(1).await.unwrap().kubectl().unwrap());
            let real = command.args(&args).output().await.unwrap();
            let real = String::from_utf8_lossy(&real.stdout).into_owned();
            if real != ours {
                differences.push(format!("kubectl {}\n--- real\n{real}\n--- ours\n{ours}", args.join(" ")));
            }
        }
    }
    assert!(differences.is_empty(), "{} differ\n{}", differences.len(), differences.join("\n"));
    court.sentence();
    served.stop().await;
}
