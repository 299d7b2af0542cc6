//! ManagedNamespaces as people write them, with kubectl.

use serde_json::Value;

use crate::support::Served;

const GROUND: &str = "
apiVersion: farwater.dev/v1alpha1
kind: Cluster
metadata: {name: east, namespace: farwater-admin, labels: {env: prod}}
spec: {}
---
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: Secret
metadata: {name: registry, namespace: team-a}
stringData: {password: hunter2}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: writer, namespace: team-a}
rules:
- {apiGroups: [farwater.dev], resources: [managednamespaces], verbs: [get, create, update, patch]}
";

const SHOP: &str = "
apiVersion: farwater.dev/v1alpha1
kind: ManagedNamespace
metadata: {name: shop, namespace: farwater-admin}
spec:
  clusterSelector: {matchLabels: {env: prod}}
  labels: {team: a}
  resourceQuota: {hard: {pods: 20}}
";

#[tokio::test(flavor = "multi_thread")]
async fn what_a_managed_namespace_has_made_is_read_only_and_goes_with_it() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["apply", "-f", "-"], GROUND).await;
    kubectl.feed(&["apply", "-f", "-"], SHOP).await;
    let names = |kind: &'static str| {
        [
            "get",
            kind,
            "-n",
            "farwater-admin",
            "-o",
            "jsonpath={.items[*].metadata.name}",
        ]
    };
    kubectl.wait(&names("sd"), "namespace-shop-east").await;
    let set = |patch: &'static str| {
        [
            "patch",
            "sds",
            "namespace-shop",
            "-n",
            "farwater-admin",
            "--type",
            "merge",
            "-p",
            patch,
        ]
    };
    let service = |patch: &'static str| {
        [
            "patch",
            "sd",
            "namespace-shop-east",
            "-n",
            "farwater-admin",
            "--type",
            "merge",
            "-p",
            patch,
        ]
    };
    for refused in [
        &set(r#"{"spec": {"deletionPolicy": "Delete"}}"#)[..],
        &set(r#"{"spec": {"pin": {"version": 1}}}"#),
        &set(r#"{"metadata": {"ownerReferences": null}}"#),
        &["delete", "sds", "namespace-shop", "-n", "farwater-admin"],
        &service(r#"{"spec": {"configuration": {"objects": ""}}}"#),
        &[
            "label",
            "sd",
            "namespace-shop-east",
            "-n",
            "farwater-admin",
            "team=mine",
        ],
        &["delete", "sd", "namespace-shop-east", "-n", "farwater-admin"],
    ] {
        let told = kubectl.refuse(refused, "").await;
        assert!(
            told.contains("ManagedNamespace shop has made it: change that") && told.contains("forbidden"),
            "{refused:?}: {told}"
        );
    }
    kubectl.run(&service(r#"{"spec": {"suspend": true}}"#)).await;
    kubectl
        .run(&["annotate", "sds", "namespace-shop", "-n", "farwater-admin", "note=x"])
        .await;
    // Nobody else states such a source.
    let stated = "
apiVersion: farwater.dev/v1alpha1
kind: ServiceDeployment
metadata: {name: mine, namespace: farwater-admin}
spec: {clusterRef: {name: east}, targetNamespace: web, sourceRef: {kind: ManagedNamespace, name: shop}}
";
    let words = "only the hub makes services of it; state a ManagedNamespace";
    let told = kubectl.refuse(&["create", "-f", "-"], stated).await;
    assert!(told.contains(words), "{told}");
    let stated = stated
        .replace("ServiceDeployment", "ServiceSet")
        .replace("spec: {clusterRef: {name: east}, ", "spec: {template: {spec: {");
    let told = kubectl
        .refuse(
            &["create", "-f", "-"],
            &stated.replace("name: shop}}", "name: shop}}}}"),
        )
        .await;
    assert!(told.contains(words), "{told}");

    let path = "/apis/farwater.dev/v1alpha1/namespaces/farwater-admin/managednamespaces/shop/plan";
    let plan: Value = serde_json::from_str(&kubectl.run(&["get", "--raw", path]).await).unwrap();
    assert_eq!(plan["status"]["counts"]["unchanged"], 1, "{plan}");
    let proposed = served.file(
        "plan.json",
        &serde_json::to_string(&serde_json::json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ManagedNamespace", "metadata": {"name": "shop"},
            "spec": {"clusterSelector": {"matchLabels": {"env": "prod"}}, "labels": {"team": "b"}},
        }))
        .unwrap(),
    );
    let plan: Value = serde_json::from_str(&kubectl.run(&["create", "--raw", path, "-f", &proposed]).await).unwrap();
    let changed = serde_json::json!({"cluster": "farwater-admin/east", "fields": ["configuration"]});
    assert_eq!(plan["status"]["changed"][0], changed, "{plan}");

    // A change says who has made it, down to the services.
    kubectl
        .feed(&["apply", "-f", "-"], &SHOP.replace("team: a", "team: b"))
        .await;
    let author = [
        "get",
        "sd",
        "namespace-shop-east",
        "-n",
        "farwater-admin",
        "-o",
        "jsonpath={.metadata.generation} {.status.changedBy}",
    ];
    kubectl.wait(&author, "3 farwater-admin").await;
    let columns = kubectl.run(&["get", "fwmn", "-n", "farwater-admin"]).await;
    assert!(
        columns.contains("CLUSTERS") && columns.contains("healthy on 0 of 1"),
        "{columns}"
    );

    // It goes, and all that was made of it with it.
    kubectl.run(&["delete", "fwmn", "shop", "-n", "farwater-admin"]).await;
    kubectl.wait(&names("sd"), "").await;
    kubectl.wait(&names("sds"), "").await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_no_cluster_would_take_is_refused_with_the_place_and_the_reason() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["apply", "-f", "-"], GROUND).await;
    kubectl.feed(&["apply", "-f", "-"], SHOP).await;
    for (change, expected) in [
        (
            ("{pods: 20}", "{pods: few}"),
            "spec.resourceQuota.hard[pods]: Invalid value: \"few\" is no quantity",
        ),
        (
            ("{pods: 20}", "{pod: 20}"),
            "spec.resourceQuota.hard[pod]: Invalid value: \"pod\" is nothing that a quota is of",
        ),
        (("{team: a}", "{team: a b}"), "spec.labels: Invalid value: \"a b\""),
        (
            ("{team: a}", "{farwater.dev/x: a}"),
            "begins with farwater.dev/, which is for the agent",
        ),
        (
            ("  labels: {team: a}", "  annotations: {'a b': x}"),
            "spec.annotations: Invalid value: \"a b\"",
        ),
        (
            ("  labels: {team: a}", "  namespace: other"),
            "spec.namespace: Invalid value: \"other\": field is immutable",
        ),
        (
            ("  labels: {team: a}", "  rollout: {maxUnavailable: none}"),
            "spec.rollout.maxUnavailable",
        ),
        (
            ("  labels: {team: a}", "  limitRange: {limits: [{type: Node}]}"),
            "spec.limitRange.limits[0].type",
        ),
    ] {
        let manifest = SHOP.replace(change.0, change.1);
        assert_ne!(manifest, SHOP);
        let told = kubectl.refuse(&["apply", "-f", "-"], &manifest).await;
        assert!(told.contains(expected), "{change:?}: {told}");
    }
    // Whoever has a Secret sent to clusters must be allowed to read it.
    kubectl
        .run(&[
            "create",
            "rolebinding",
            "eve",
            "-n",
            "team-a",
            "--role=writer",
            "--user=eve",
        ])
        .await;
    let sent = SHOP
        .replace("farwater-admin", "team-a")
        .replace("labels: {team: a}", "pullSecrets: [{name: registry}]");
    let told = kubectl.refuse(&["create", "--as=eve", "-f", "-"], &sent).await;
    assert!(
        told.contains("it names Secret registry, which eve may not get"),
        "{told}"
    );
    served.stop().await;
}
