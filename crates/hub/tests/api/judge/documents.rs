//! Discovery and `kubectl explain`: what clients read of the kinds before they use them.

use std::collections::BTreeMap;

use farwater_testkit::kube::shared;
use serde_json::{Value, json};

use crate::support::Served;

use super::court::*;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The groups that a hub serves, as they lie under `/openapi/v3/`.
pub const GROUPS: [&str; 7] = [
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
        .map(|member| {
            (
                member
                    .pointer(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned(),
                member.clone(),
            )
        })
        .collect()
}

/// Every member of `ours` must be as in `real`.
fn compare_members(place: &str, ours: &Value, real: &Value, name: &str, differences: &mut Vec<String>) {
    let real = by_name(real, name);
    for (member, ours) in by_name(ours, name) {
        match real.get(&member) {
            // No CustomResourceDefinition can state a kind that is computed when it is read.
            None if member == "grantedclusters" => {}
            Some(real) if *real == ours => {}
            Some(real) => differences.push(format!("{place} {member}\n  real: {real}\n  ours: {ours}")),
            None => differences.push(format!("{place} {member}: only ours has it")),
        }
    }
}

/// Subresources that only we have.
const OWN: [&str; 13] = [
    "approve",
    "bundle",
    "digest",
    "history",
    "hooks",
    "impact",
    "join",
    "members",
    "objects",
    "parameters",
    "plan",
    "rollout",
    "versions",
];

/// Without what says how the real server stores, and without what only we have.
fn comparable(mut resource: Value) -> Value {
    if let Some(map) = resource.as_object_mut() {
        map.remove("storageVersionHash");
    }
    // So that `kubectl get all` shows what a tenant works with; a CRD's categories are said in the CRD.
    if let Some(categories) = resource.get_mut("categories").and_then(Value::as_array_mut) {
        categories.retain(|category| category != "all");
    }
    if let Some(list) = resource.get_mut("subresources").and_then(Value::as_array_mut) {
        list.retain(|sub| !OWN.contains(&sub["subresource"].as_str().unwrap_or_default()));
    }
    if resource["subresources"] == json!([]) {
        resource.as_object_mut().unwrap().remove("subresources");
    }
    resource
}

fn comparable_list(list: &Value) -> Value {
    let list = list.as_array().into_iter().flatten();
    let own = |name: &str| {
        name.split_once('/')
            .is_some_and(|(_, subresource)| OWN.contains(&subresource))
    };
    list.filter(|resource| !own(resource["name"].as_str().unwrap_or_default()))
        .cloned()
        .map(comparable)
        .collect()
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
                    version["resources"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .cloned()
                        .map(comparable)
                        .collect::<Value>()
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
                differences.push(format!(
                    "kubectl {}\n--- real\n{real}\n--- ours\n{ours}",
                    args.join(" ")
                ));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differ\n{}",
        differences.len(),
        differences.join("\n")
    );
    court.sentence();
    served.stop().await;
}
