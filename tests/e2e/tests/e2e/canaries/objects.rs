//! Resources of the hub, by the names of their kinds.

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{ADMIN_NAMESPACE, GROUP, REQUESTED_AT, VERSION};
use farwater_e2e::Fleet;
use http::{Request, header};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

use super::canary::Marks;

fn path(kind: &str) -> String {
    let word = kind.to_lowercase();
    let plural = word
        .strip_suffix('y')
        .map_or(format!("{word}s"), |stem| format!("{stem}ies"));
    format!("/apis/{GROUP}/{VERSION}/namespaces/{ADMIN_NAMESPACE}/{plural}")
}

pub async fn create(fleet: &Fleet, kind: &str, name: &str, spec: Value) -> Result<()> {
    let metadata = json!({"name": name});
    let object = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": metadata, "spec": spec});
    let request = Request::post(path(kind)).header(header::CONTENT_TYPE, "application/json");
    let made: Result<Value, _> = fleet
        .client
        .request(request.body(object.to_string().into_bytes())?)
        .await;
    made.map(drop).with_context(|| format!("make {kind} {name}"))
}

pub async fn get(fleet: &Fleet, kind: &str, name: &str) -> Result<Value> {
    let found = fleet
        .client
        .request(Request::get(format!("{}/{name}", path(kind))).body(Vec::new())?)
        .await;
    found.with_context(|| format!("get {kind} {name}"))
}

/// Requests a reconcile now.
pub async fn reconcile(fleet: &Fleet, kind: &str, name: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {REQUESTED_AT: jiff::Timestamp::now().to_string()}}});
    let request = Request::patch(format!("{}/{name}", path(kind)));
    let request = request.header(header::CONTENT_TYPE, "application/merge-patch+json");
    let made: Result<Value, _> = fleet
        .client
        .request(request.body(patch.to_string().into_bytes())?)
        .await;
    made.map(drop).with_context(|| format!("ask for {kind} {name}"))
}

/// Waits until the condition `Ready` is `STATUS/REASON`, with this message only.
pub async fn until(fleet: &Fleet, marks: &Marks, kind: &str, name: &str, expected: &str) -> Result<()> {
    let what = format!("{kind} {name} to be {expected}");
    let ended = fleet.until(&what, || async {
        let found = get(fleet, kind, name).await?;
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_so = |one: &Value| one["type"] == "Ready" && expected == state(one);
        Ok(conditions.iter().any(is_so).then_some(found))
    });
    match ended.await {
        Ok(found) => marks.check(&format!("{kind} {name}"), &found.to_string()),
        Err(error) => {
            let status = get(fleet, kind, name).await?["status"].clone();
            Err(error.context(format!("its status is {status:#}")))
        }
    }
}

fn state(condition: &Value) -> String {
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("status"), text("reason"))
}

pub async fn create_secret(client: &Client, namespace: &str, object: Value) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    secrets
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(())
}

/// A Secret of the hub with these texts.
pub async fn put_secret(fleet: &Fleet, name: &str, texts: &Value) -> Result<()> {
    create_secret(
        &fleet.client,
        ADMIN_NAMESPACE,
        json!({"metadata": {"name": name}, "stringData": texts}),
    )
    .await
}

/// Replaces its texts.
pub async fn change_secret(fleet: &Fleet, name: &str, texts: &Value) -> Result<()> {
    let texts = texts.as_object().context("texts by their keys")?;
    let encode = |text: &Value| STANDARD.encode(text.as_str().unwrap_or_default());
    let data: Map<String, Value> = texts
        .iter()
        .map(|(key, text)| (key.clone(), encode(text).into()))
        .collect();
    let patch = Patch::Merge(json!({"data": data}));
    fleet
        .api::<Secret>()
        .patch(name, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}
