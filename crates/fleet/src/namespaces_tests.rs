use serde_json::json;

use super::*;

fn spec(spec: Value) -> ManagedNamespaceSpec {
    serde_json::from_value(spec).unwrap()
}

fn rendered(set: &ServiceSetSpec) -> Vec<Value> {
    let text = set.template.spec.0["configuration"]["objects"].as_str().unwrap();
    text.split("---\n")
        .skip(1)
        .map(|object| serde_json::from_str(object).unwrap())
        .collect()
}

#[test]
fn a_namespace_is_a_set_of_what_belongs_to_it() {
    let (name, set) = plan_set(
        "team-a",
        &spec(json!({
            "clusterSelector": {"matchLabels": {"env": "prod"}}, "labels": {"team": "a"}, "annotations": {"note": "{{ x }}\n---"},
            "pullSecrets": [{"name": "registry"}],
            "resourceQuota": {"hard": {"pods": 20, "requests.cpu": "4"}},
            "limitRange": {"limits": [{"type": "Container", "default": {"cpu": "500m"}}]},
            "rollout": {"soak": "5s"}, "deletionPolicy": "Delete",
        })),
    );
    assert_eq!(name, "namespace-team-a");
    let template = &set.template.spec.0;
    assert_eq!(
        (&template["targetNamespace"], &template["secrets"]),
        (&json!("team-a"), &json!([{"name": "registry"}]))
    );
    assert_eq!(
        template["sourceRef"],
        json!({"kind": "ManagedNamespace", "name": "team-a"})
    );
    assert_eq!(
        (set.rollout.soak.as_str(), json!(set.deletion_policy)),
        ("5s", json!("Delete"))
    );
    let metadata = json!({"name": "farwater", "namespace": "team-a"});
    assert_eq!(
        rendered(&set),
        [
            json!({"apiVersion": "v1", "kind": "Namespace",
                   "metadata": {"name": "team-a", "labels": {"team": "a"}, "annotations": {"note": "{{ x }}\n---"}}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "imagePullSecrets": [{"name": "registry"}],
                   "metadata": {"name": "default", "namespace": "team-a", "annotations": {"farwater.dev/prune": "disabled"}}}),
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata,
                   "spec": {"hard": {"pods": "20", "requests.cpu": "4"}}}),
            json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata,
                   "spec": {"limits": [{"type": "Container", "default": {"cpu": "500m"}}]}}),
        ]
    );
    assert_eq!(maker_of(&json!(set)), Some("team-a"));
    assert_eq!(maker_of(&json!(template)), Some("team-a"));
    assert_eq!(maker_of(&json!({"sourceRef": {"name": "infra"}})), None);
}

#[test]
fn an_account_is_left_without_secrets_that_are_named_no_more() {
    let (_, set) = plan_set("team-a", &spec(json!({"namespace": "a"})));
    let objects = rendered(&set);
    assert_eq!((objects.len(), &objects[0]["metadata"]["name"]), (2, &json!("a")));
    assert!(objects[1].get("imagePullSecrets").is_none());
}

#[test]
fn what_no_cluster_would_take_is_named_with_its_field() {
    let check = |stated: Value, expected: &[(&str, &str)]| {
        let problems = check("team-a", &spec(stated.clone()));
        assert_eq!(problems.len(), expected.len(), "{stated}: {problems:?}");
        for (problem, (field, why)) in problems.iter().zip(expected) {
            assert_eq!(problem.field, *field);
            assert!(problem.why.contains(why), "{problem:?}");
        }
    };
    let quota = |hard: Value| json!({"resourceQuota": {"hard": hard}});
    check(
        quota(json!({"pods": 5, "cpu": "1.5", "limits.memory": "2Gi", "count/deployments.apps": "3", "memory": "1e3"})),
        &[],
    );
    check(
        quota(json!({"request.cpu": "1"})),
        &[("resourceQuota.hard[request.cpu]", "nothing that a quota is of")],
    );
    check(
        quota(json!({"cpu": "2 Gi"})),
        &[("resourceQuota.hard[cpu]", "no quantity")],
    );
    check(
        quota(json!({"cpu": "."})),
        &[("resourceQuota.hard[cpu]", "no quantity")],
    );
    check(
        quota(json!({"pods": "500m"})),
        &[("resourceQuota.hard[pods]", "no whole number")],
    );
    check(quota(json!({"pods": -1})), &[("resourceQuota.hard[pods]", "below 0")]);
    check(quota(json!({})), &[("resourceQuota.hard", "state a limit")]);
    check(
        json!({"limitRange": {"limits": [{"type": "Pod"}, {"type": "Container", "max": {"cpu": "much"}}]}}),
        &[
            ("limitRange.limits[0]", "limits nothing"),
            ("limitRange.limits[1].max[cpu]", "no quantity"),
        ],
    );
    check(
        json!({"annotations": {"farwater.dev/prune": "confirm"}}),
        &[("annotations", "for the agent")],
    );
    check(
        json!({"labels": {"kubernetes.io/metadata.name": "other"}}),
        &[("labels", "Kubernetes sets it")],
    );
    check(
        json!({"annotations": {"long": "\"".repeat(20_000)}}),
        &[("annotations", "shorten the annotations")],
    );
}
