//! What services state of their rendering, written with kubectl, and the files that are shown to who renders elsewhere.

use farwater_api::ADMIN_NAMESPACE;
use serde_json::{Value, json};

use crate::support::Served;

fn service(more: &Value) -> String {
    let mut object = json!({
        "apiVersion": "farwater.dev/v1alpha1",
        "kind": "ServiceDeployment",
        "metadata": {"name": "shop", "namespace": ADMIN_NAMESPACE},
        "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "shop", "sourceRef": {"name": "infra"}, "path": "shop"},
    });
    for (field, value) in more.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object.to_string()
}

fn renderers(stated: &Value) -> String {
    service(&json!({"renderers": stated}))
}

#[tokio::test(flavor = "multi_thread")]
async fn renderers_and_patches_are_kept_as_they_are_written() {
    let served = Served::start().await;
    let kubectl = served.newest();
    let stated = json!({
        "renderers": [
            {"path": "chart", "helm": {
                "releaseName": "r", "valuesFiles": ["a.yaml", "/b.yaml"], "ignoreMissingValuesFiles": true,
                "values": {"n": 1, "deep": {"null": null, "list": [1, "two", 3.5]}}, "skipCrds": true, "skipTests": true,
                "skipSchemaValidation": true, "lookup": true,
                "postRenderers": [{"kustomize": {"patches": [{"target": {"kind": "Deployment"}, "patch": "[]"}]}}],
            }},
            {"path": "overlay", "kustomize": {
                "namePrefix": "p-", "images": [{"name": "nginx", "newTag": "2"}], "components": ["c"],
                "loadRestrictor": "LoadRestrictionsNone",
            }},
            {"path": "code", "type": "Plugin", "plugin": "jsonnet"},
            {"type": "Raw"},
        ],
        "patches": [{"patch": "- {op: remove, path: /data}", "target": {"kind": "ConfigMap", "labelSelector": "a=b"}}],
    });
    // On the server: kubectl itself leaves out what is null, which takes a chart's own value away.
    kubectl
        .feed(&["apply", "--server-side", "-f", "-"], &service(&stated))
        .await;
    let read = async || -> Value {
        let text = kubectl
            .run(&["get", "servicedeployment", "shop", "-n", ADMIN_NAMESPACE, "-o", "json"])
            .await;
        serde_json::from_str::<Value>(&text).unwrap()["spec"].take()
    };
    let kept = read().await;
    assert_eq!(
        (&kept["renderers"], &kept["patches"]),
        (&stated["renderers"], &stated["patches"])
    );
    // A list is replaced as a whole, also by who applies on the server.
    kubectl
        .feed(
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            &renderers(&json!([{"path": "x"}])),
        )
        .await;
    assert_eq!(read().await["renderers"], json!([{"path": "x"}]));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_nobody_would_read_are_refused_with_their_place() {
    let served = Served::start().await;
    let kubectl = served.newest();
    for (stated, expected) in [
        (
            json!([{}, {"type": "Raw", "helm": {}}]),
            "spec.renderers[1].helm: Invalid value",
        ),
        (
            json!([{"type": "Helm", "kustomize": {}}]),
            "spec.renderers[0].kustomize: Invalid value",
        ),
        (json!([{"type": "Plugin"}]), "spec.renderers[0].plugin: Invalid value"),
        (json!([{"path": "../other"}]), "spec.renderers[0].path: Invalid value"),
        (
            json!([{"helm": {"postRenderers": [{"kustomize": {}}]}}]),
            "has either a path, or patches and images",
        ),
        (json!([{"type": "Jsonnet"}]), "spec.renderers[0].type"),
        (json!([{"helm": {"valueFiles": ["a"]}}]), "valueFiles"),
        (
            json!([{"helm": {"values": {"a": "x".repeat(70_000)}}}]),
            "spec.renderers: Too long",
        ),
        (json!(vec![json!({"path": "a"}); 17]), "spec.renderers: Too many"),
    ] {
        let said = kubectl.refuse(&["create", "-f", "-"], &renderers(&stated)).await;
        assert!(said.contains(expected), "{expected}: {said:.500}");
    }
    served.stop().await;
}

/// Files of a service hold what its source's readers may read: that is a right of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_services_files_are_shown_to_who_may_see_them() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["create", "-f", "-"], &service(&json!({}))).await;
    let path = format!("/apis/farwater.dev/v1alpha1/namespaces/{ADMIN_NAMESPACE}/servicedeployments/shop/bundle");
    let said = kubectl.refuse(&["get", "--raw", &path], "").await;
    assert!(said.contains("no revision is assigned to the service yet"), "{said}");
    let role = [
        "create",
        "role",
        "reader",
        "-n",
        ADMIN_NAMESPACE,
        "--verb=get",
        "--resource=servicedeployments.farwater.dev",
    ];
    kubectl.run(&role).await;
    kubectl
        .run(&[
            "create",
            "rolebinding",
            "reader",
            "-n",
            ADMIN_NAMESPACE,
            "--role=reader",
            "--user=reader",
        ])
        .await;
    kubectl
        .run(&["get", "servicedeployment", "shop", "-n", ADMIN_NAMESPACE, "--as=reader"])
        .await;
    let said = kubectl.refuse(&["get", "--raw", &path, "--as=reader"], "").await;
    assert!(
        said.contains("cannot get resource \"servicedeployments/bundle\""),
        "{said}"
    );
    served.stop().await;
}
