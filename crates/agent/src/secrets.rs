//! The agent's own Secrets in its namespace, for data that must survive a lost state directory.

use std::{collections::BTreeMap, io};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{ADMIN_SERVICE_ACCOUNT, AGENT_NAMESPACE, SECRET_CONTENT};
use serde_json::{Value, json};
use zstd::{bulk::Compressor, zstd_safe::CParameter};

use crate::kubernetes::{ApiError, Kubernetes, Propagation, Resource, TRIES};

/// A Secret holds at most 1 MiB; base64 and metadata need room.
pub const MAX_BYTES: usize = 700 << 10;
/// Label with the purpose of a Secret: `identity`, `state`, `inventory`, `bundle`, `sealed`, `tombstone`, `rendered`.
pub const PURPOSE_LABEL: &str = "farwater.dev/agent";

const ZSTD_LEVEL: i32 = 3;
/// 16 KiB. It determines the compressor's memory: 0.6 MB at the level's usual window, which would be the largest part
/// of the agent's peak. The documents repeat themselves every few hundred bytes.
const ZSTD_WINDOW_LOG: u32 = 14;

/// Makes the agent's own documents small enough for a Secret.
pub fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = Compressor::new(ZSTD_LEVEL)?;
    compressor.set_parameter(CParameter::WindowLog(ZSTD_WINDOW_LOG))?;
    compressor.compress(bytes)
}

fn resource() -> Resource {
    Resource {
        group: String::new(),
        version: "v1".into(),
        kind: "Secret".into(),
        plural: "secrets".into(),
        namespaced: true,
    }
}

/// Reads a Secret. None: it does not exist.
pub async fn load(kubernetes: &Kubernetes, name: &str) -> Result<Option<Vec<u8>>, ApiError> {
    match kubernetes
        .get(None, &resource().path(AGENT_NAMESPACE, name), false)
        .await
    {
        Ok(secret) => content(&secret).map(Some),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// All Secrets of one purpose, by name.
pub async fn load_all(
    kubernetes: &Kubernetes,
    purpose: &str,
) -> Result<BTreeMap<String, Result<Vec<u8>, ApiError>>, ApiError> {
    let mut found = BTreeMap::new();
    let selector = format!("{PURPOSE_LABEL}={purpose}");
    kubernetes
        .list(
            None,
            &resource().collection(AGENT_NAMESPACE),
            &selector,
            false,
            |secret| {
                if let Some(name) = secret["metadata"]["name"].as_str() {
                    found.insert(name.to_owned(), content(&secret));
                }
            },
        )
        .await?;
    Ok(found)
}

/// The names of all Secrets of one purpose.
pub async fn names(kubernetes: &Kubernetes, purpose: &str) -> Result<Vec<String>, ApiError> {
    let mut found = Vec::new();
    let selector = format!("{PURPOSE_LABEL}={purpose}");
    kubernetes
        .list(
            None,
            &resource().collection(AGENT_NAMESPACE),
            &selector,
            true,
            |secret| {
                found.extend(secret["metadata"]["name"].as_str().map(str::to_owned));
            },
        )
        .await?;
    Ok(found)
}

/// Whether a Secret to be saved is believed to exist. A wrong guess costs another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Already,
    NotYet,
}

/// Creates or updates a Secret. Not by an apply, because the API server reads those as YAML, which takes several times
/// as long.
pub async fn save(
    kubernetes: &Kubernetes,
    purpose: &str,
    name: &str,
    bytes: &[u8],
    mut held: Held,
) -> Result<(), ApiError> {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": AGENT_NAMESPACE, "labels": {PURPOSE_LABEL: purpose}},
        "type": "farwater.dev/agent",
        "data": {SECRET_CONTENT: STANDARD.encode(bytes)},
    });
    let (path, collection) = (
        resource().path(AGENT_NAMESPACE, name),
        resource().collection(AGENT_NAMESPACE),
    );
    let mut tries = 1;
    loop {
        let saved = match held {
            Held::Already => kubernetes.patch(None, &path, &secret).await,
            Held::NotYet => kubernetes.create(None, &collection, &secret).await,
        };
        match saved {
            Ok(_) => return Ok(()),
            Err(error) if tries < TRIES && held == Held::Already && error.is_not_found() => held = Held::NotYet,
            Err(error) if tries < TRIES && held == Held::NotYet && error.code() == 409 => held = Held::Already,
            Err(error) => return Err(error),
        }
        tries += 1;
    }
}

pub async fn remove(kubernetes: &Kubernetes, name: &str) -> Result<(), ApiError> {
    let path = resource().path(AGENT_NAMESPACE, name);
    kubernetes
        .delete(None, &path, None, Propagation::Background)
        .await
        .map(drop)
}

fn content(secret: &Value) -> Result<Vec<u8>, ApiError> {
    let damaged = || {
        let name = secret["metadata"]["name"].as_str().unwrap_or("?");
        ApiError::Unusable(format!("Secret {AGENT_NAMESPACE}/{name} is damaged"))
    };
    STANDARD
        .decode(secret["data"][SECRET_CONTENT].as_str().ok_or_else(damaged)?)
        .map_err(|_| damaged())
}

/// Creates what the agent needs, if missing: its namespace, and the account for the administrators' services.
pub async fn ensure_ground(kubernetes: &Kubernetes) -> Result<(), ApiError> {
    let binding = "farwater-administrator";
    // `join` and `leave` treat objects with this label as theirs.
    let ours = json!({"app.kubernetes.io/part-of": "farwater"});
    let objects = [
        (
            "/api/v1/namespaces".to_owned(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": AGENT_NAMESPACE}}),
        ),
        (
            format!("/api/v1/namespaces/{AGENT_NAMESPACE}/serviceaccounts"),
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": ADMIN_SERVICE_ACCOUNT, "namespace": AGENT_NAMESPACE, "labels": ours},
            }),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": binding, "labels": ours},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": ADMIN_SERVICE_ACCOUNT, "namespace": AGENT_NAMESPACE}],
            }),
        ),
    ];

    for (collection, object) in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match kubernetes.get(None, &format!("{collection}/{name}"), true).await {
            Ok(_) => continue,
            Err(e) if e.is_not_found() => {}
            // In a pod the agent has no rights on these objects: whatever created the pod has created them too.
            Err(e) if e.is_forbidden() => continue,
            Err(e) => return Err(e),
        }
        match kubernetes.create(None, &collection, &object).await {
            Ok(_) => tracing::info!(kind = object["kind"].as_str(), name, "created"),
            Err(e) if e.code() == 409 => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
