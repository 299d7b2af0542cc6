//! Many services, put into the hub's database while it is stopped.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use farwater_store::{Change, Key, Kind, OpenOptions, Store, Write};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::Client;
use serde_json::{Value, json};

pub const NAMESPACES: usize = 20;
const CLUSTERS: usize = 10;
/// Enough that the combiner's batches are full.
const IN_FLIGHT: usize = 512;

pub fn namespace_of(n: usize) -> String {
    format!("team-{:02}", n % NAMESPACES)
}

pub fn name_of(n: usize) -> String {
    format!("service-{n:07}")
}

/// Some 3 KB, most of it annotations as tools leave them.
pub fn service(n: usize) -> Value {
    let note: String =
        (0..40).map(|line| format!("{n:07} {line:02} what is stated is what runs, and nothing else ")).collect();
    json!({
        "apiVersion": "farwater.dev/v1alpha1",
        "kind": "ServiceDeployment",
        "metadata": {
            "name": name_of(n), "namespace": namespace_of(n), "labels": {"app": format!("app-{}", n % 1000)},
            "annotations": {"example.com/notes": note},
        },
        "spec": {
            "clusterRef": {"name": format!("cluster-{}", n % CLUSTERS)},
            "targetNamespace": name_of(n),
            "sourceRef": {"kind": "GitRepository", "name": "infra"},
            "path": format!("apps/{n:07}"),
            "prune": true,
            "deletionPolicy": "Orphan",
        },
    })
}

/// Namespaces, each with its clusters and a grant of them.
pub async fn clusters(client: &Client) -> Result<()> {
    let own = "/apis/farwater.dev/v1alpha1";
    let grant = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "ClusterGrant", "metadata": {"name": "all"},
        "spec": {
            "clusterSelector": {}, "namespaces": (0..NAMESPACES).map(namespace_of).collect::<Vec<_>>(),
            "verbs": ["deploy"], "serviceAccountName": "deployer",
        },
    });
    post(client, &format!("{own}/clustergrants"), &grant).await?;
    for namespace in (0..NAMESPACES).map(namespace_of) {
        post(client, "/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await?;
        for n in 0..CLUSTERS {
            let name = json!({"name": format!("cluster-{n}")});
            let cluster =
                json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster", "metadata": name, "spec": {}});
            post(client, &format!("{own}/namespaces/{namespace}/clusters"), &cluster).await?;
        }
    }
    Ok(())
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path).header("content-type", "application/json");
    let _: Value =
        client.request(request.body(object.to_string().into_bytes())?).await.with_context(|| path.to_owned())?;
    Ok(())
}

/// As the API server would have written them.
pub async fn services(data: &Path, count: usize) -> Result<()> {
    let text = fs::read_to_string(data.join("keys/seal.key")).context("read the hub's seal key")?;
    let mut key = [0; 32];
    hex::decode_to_slice(text.trim(), &mut key).context("the seal key is not 32 bytes in hex")?;
    let store = Store::open(OpenOptions::new(data.join("hub.db"), key)).await?;
    let kind = Kind::new("servicedeployments", "farwater.dev");
    stream::iter(0..count)
        .map(|n| {
            let mut object = service(n);
            object["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{n:012}"));
            object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            object["metadata"]["generation"] = json!(1);
            let key = Key { kind: kind.clone(), namespace: namespace_of(n), name: name_of(n) };
            store.write(Write { key, change: Change::Create(object) })
        })
        .buffered(IN_FLIGHT)
        .try_fold(0_usize, |written, _| async move {
            if (written + 1).is_multiple_of(100_000) {
                eprintln!("  {} of {count} services written", written + 1);
            }
            Ok(written + 1)
        })
        .await?;
    store.close().await;
    Ok(())
}
