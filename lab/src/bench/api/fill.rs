//! Writes many services into the database of a stopped hub.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use farwater_store::{Change, Key, Kind, OpenOptions, Store, Write};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::Client;
use serde_json::{Value, json};

pub const NAMESPACES: usize = 20;
/// Services per cluster, as in large fleets.
const SERVICES_OF_CLUSTER: usize = 50;
/// Number of writers: enough to fill the combiner's batches.
const IN_FLIGHT: usize = 512;

pub fn namespace_of(n: usize) -> String {
    format!("team-{:02}", n % NAMESPACES)
}

pub fn cluster_of(n: usize) -> String {
    format!("cluster-{n:05}")
}

pub fn name_of(n: usize) -> String {
    format!("service-{n:07}")
}

/// An object of some 3 KB, mostly annotations as tools write them.
pub fn service(n: usize) -> Value {
    let note: String = (0..40)
        .map(|line| format!("{n:07} {line:02} what is stated is what runs, and nothing else "))
        .collect();
    json!({
        "apiVersion": "farwater.dev/v1alpha1",
        "kind": "ServiceDeployment",
        "metadata": {
            "name": name_of(n), "namespace": namespace_of(n), "labels": {"app": format!("app-{}", n % 1000)},
            "annotations": {"example.com/notes": note},
        },
        "spec": {
            "clusterRef": {"name": cluster_of(n / NAMESPACES / SERVICES_OF_CLUSTER)},
            "targetNamespace": name_of(n),
            "sourceRef": {"kind": "GitRepository", "name": "infra"},
            "path": format!("apps/{n:07}"),
            "prune": true,
            "deletionPolicy": "Orphan",
        },
    })
}

/// Creates namespaces, and a grant for their clusters.
pub async fn namespaces(client: &Client) -> Result<()> {
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
    }
    Ok(())
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path).header("content-type", "application/json");
    let _: Value = client
        .request(request.body(object.to_string().into_bytes())?)
        .await
        .with_context(|| path.to_owned())?;
    Ok(())
}

/// Writes clusters and their services as the API server would.
pub async fn services(data: &Path, count: usize) -> Result<()> {
    let text = fs::read_to_string(data.join("keys/seal.key")).context("read the hub's seal key")?;
    let mut key = [0; 32];
    hex::decode_to_slice(text.trim(), &mut key).context("the seal key is not 32 bytes in hex")?;
    let store = Store::open(OpenOptions::new(data.join("hub.db"), key)).await?;
    let clusters = NAMESPACES * count.div_ceil(NAMESPACES * SERVICES_OF_CLUSTER);
    write(&store, "clusters", clusters, cluster).await?;
    write(&store, "servicedeployments", count, service).await?;
    store.close().await;
    Ok(())
}

fn cluster(n: usize) -> Value {
    json!({
        "apiVersion": "farwater.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": cluster_of(n / NAMESPACES), "namespace": namespace_of(n)},
        "spec": {},
    })
}

async fn write(store: &Store, plural: &str, count: usize, object: fn(usize) -> Value) -> Result<()> {
    let kind = Kind::new(plural, "farwater.dev");
    stream::iter(0..count)
        .map(|n| {
            let mut object = object(n);
            let metadata = &mut object["metadata"];
            metadata["uid"] = json!(format!("{plural:.8}-0000-4000-8000-{n:012}"));
            metadata["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            metadata["generation"] = json!(1);
            let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
            let key = Key {
                kind: kind.clone(),
                namespace: text("namespace"),
                name: text("name"),
            };
            store.write(Write {
                key,
                change: Change::Create(object),
            })
        })
        .buffered(IN_FLIGHT)
        .try_fold(0_usize, |written, _| async move {
            if (written + 1).is_multiple_of(100_000) {
                eprintln!("  {} of {count} {plural} written", written + 1);
            }
            Ok(written + 1)
        })
        .await?;
    Ok(())
}
