//! Custom kinds, whose controllers the tests play.

use farwater_testkit::wait_for;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{PATIENCE, api, config_map};

pub async fn create(
    client: &Client,
    group: &str,
    version: &str,
    kind: &str,
    namespace: &str,
    mut object: Value,
) -> DynamicObject {
    let api_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    (object["apiVersion"], object["kind"]) = (json!(api_version), json!(kind));
    let object = serde_json::from_value(object).unwrap();
    api(client, group, version, kind, namespace)
        .create(&PostParams::default(), &object)
        .await
        .unwrap()
}

pub async fn set_status(api: &Api<DynamicObject>, name: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Defines a kind with a status subresource, which controllers write separately.
pub async fn define(client: &Client, group: &str, kind: &str) {
    let plural = format!("{}s", kind.to_lowercase());
    let definition = json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    create(
        client,
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "",
        definition,
    )
    .await;
    wait_for("the kind to be served", PATIENCE, || async {
        Ok(api(client, group, "v1", kind, "default")
            .list(&Default::default())
            .await
            .is_ok()
            .then_some(()))
    })
    .await
    .unwrap();
}

pub fn custom(group: &str, kind: &str, name: &str) -> String {
    format!("apiVersion: {group}/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{size: 1}}\n")
}

/// A ConfigMap that waits until everything before it is healthy.
pub fn in_next_wave(name: &str) -> String {
    config_map(name, "1").replace(
        &format!("{{name: {name}}}"),
        &format!("{{name: {name}, annotations: {{farwater.dev/wave: '1'}}}}"),
    )
}
