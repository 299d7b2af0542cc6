//! A plane that all tests share, for one agent at a time. What earlier tests left is removed first.

use anyhow::Result;
use farwater_api::AGENT_NAMESPACE;
use farwater_testkit::{
    Plane,
    kube::{plane_variable, unique_name},
    shared,
};
use futures::future::try_join_all;
use kube::{
    Client,
    api::{DeleteParams, ListParams},
};
use tokio::sync::{Mutex, MutexGuard};

use super::api;

/// Part of the names of all cluster-scoped objects that tests make, and of their namespaces.
const MARK: &str = "fwtest";

/// Cluster-scoped kinds that tests make. Definitions stay: no test reuses one, and the API server takes seconds to
/// delete one with objects.
const KINDS: [(&str, &str); 10] = [
    ("", "Namespace"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("", "Node"),
    ("storage.k8s.io", "StorageClass"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"),
];

/// Its holder starts the plane's only agent, and ends it before this is dropped.
pub struct Turn {
    pub plane: &'static Plane,
    _guard: MutexGuard<'static, ()>,
}

/// Locks of the shared planes 1 and 2.
static TURNS: [Mutex<()>; 2] = [Mutex::const_new(()), Mutex::const_new(())];
/// Whether a world has plane 1. It keeps it as long as the process runs.
static HAS_WORLD: Mutex<bool> = Mutex::const_new(false);

impl Turn {
    /// A turn for one test: plane 1, or plane 2 if all tests run in one process and its world has plane 1.
    pub async fn take() -> Self {
        let has_world = HAS_WORLD.lock().await;
        if !*has_world {
            return Self::of(1).await;
        }
        let planes = [1, 2].map(|number| std::env::var_os(plane_variable(number)));
        // The reset would delete the namespaces of the tests that use the world.
        assert!(
            planes[0].is_none() || planes[0] != planes[1],
            "the process has one plane, and a world uses it: give this test a rule of its own in xtask/tests.toml"
        );
        Self::of(2).await
    }

    /// The turn for all tests of this process that share an agent: plane 1.
    pub async fn take_for_world() -> Self {
        let mut has_world = HAS_WORLD.lock().await;
        *has_world = true;
        Self::of(1).await
    }

    async fn of(number: usize) -> Self {
        let guard = TURNS[number - 1].lock().await;
        let plane = shared(number).await.unwrap();
        reset(plane).await.unwrap();
        Self { plane, _guard: guard }
    }
}

/// A unique part for names, by which [`reset`] recognizes what tests have made.
pub fn mark() -> String {
    unique_name(MARK)
}

/// Cleans up so that the next agent finds a new cluster. Namespaces of earlier tests may still be in deletion
/// afterwards, because no other test uses their names.
async fn reset(plane: &Plane) -> Result<()> {
    let client = plane.client().await?;
    // Identity, inventories, tombstones, and other things that agents keep.
    let kept = [("", "Secret"), ("", "ConfigMap"), ("coordination.k8s.io", "Lease")];
    let but = ListParams::default().fields("metadata.name!=kube-root-ca.crt");
    let own = kept.map(|(group, kind)| api(&client, group, "v1", kind, AGENT_NAMESPACE));
    let delete = DeleteParams::default();
    let kept_gone = try_join_all(own.iter().map(|api| api.delete_collection(&delete, &but)));
    let made_gone = try_join_all(KINDS.map(|(group, kind)| delete_marked(&client, group, kind)));
    let (kept_gone, made_gone) = futures::join!(kept_gone, made_gone);
    kept_gone?;
    made_gone?;
    Ok(())
}

async fn delete_marked(client: &Client, group: &str, kind: &str) -> Result<()> {
    let api = api(client, group, "v1", kind, "");
    for object in api.list_metadata(&ListParams::default()).await? {
        let name = object.metadata.name.unwrap_or_default();
        if name.contains(MARK) && object.metadata.deletion_timestamp.is_none() {
            let deleted = api.delete(&name, &DeleteParams::background()).await;
            if let Err(error) = deleted.map(drop)
                && !matches!(&error, kube::Error::Api(status) if status.is_not_found())
            {
                return Err(error.into());
            }
        }
    }
    Ok(())
}
