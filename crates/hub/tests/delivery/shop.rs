//! Charts and artifacts to be delivered, from real servers, and what of them an agent gets.

use std::{collections::BTreeMap, path::Path};

use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    protocol::{Deployment, Entry},
};
use farwater_bundle::{Archive, Limits};
use farwater_testkit::{
    Helm, Origin, Tools,
    helm::{borrowed, chart},
};
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{agent::Agent, delivering::applied, rig::Rig};

/// A Helm repository served as files.
pub struct Repository {
    pub helm: Helm,
    pub folder: tempfile::TempDir,
    pub origin: Origin,
}

impl Repository {
    pub async fn start(charts: &[(&str, &str)]) -> Self {
        let helm = Helm::new(&Tools::build_helm().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let origin = Origin::of_folder(folder.path(), None).await.unwrap();
        let repository = Self { helm, folder, origin };
        repository.add(charts);
        repository
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn add(&self, charts: &[(&str, &str)]) {
        for (name, version) in charts {
            self.helm
                .package(&borrowed(&chart(name, version)), self.path())
                .unwrap();
        }
        self.helm.index(self.path(), None).unwrap();
    }

    pub fn remove(&self, name: &str, version: &str) {
        std::fs::remove_file(self.path().join(format!("{name}-{version}.tgz"))).unwrap();
        std::fs::remove_file(self.path().join("index.yaml")).unwrap();
        self.helm.index(self.path(), None).unwrap();
    }
}

pub async fn start() -> Rig {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig
}

pub async fn source(rig: &Rig, kind: &str, name: &str, spec: Value) -> String {
    rig.create(kind, ADMIN_NAMESPACE, name, json!({"spec": spec})).await
}

/// A source as people write it, with a long interval: it is asked when a test asks.
pub async fn helm_repository(rig: &Rig, name: &str, url: &str) -> String {
    source(
        rig,
        "HelmRepository",
        name,
        json!({"url": url, "interval": "1h", "insecure": url.starts_with("oci://")}),
    )
    .await
}

pub async fn oci_repository(rig: &Rig, name: &str, url: &str) -> String {
    source(
        rig,
        "OCIRepository",
        name,
        json!({"url": url, "interval": "1h", "insecure": true}),
    )
    .await
}

/// Has a source asked now; returns when it is acknowledged.
pub async fn ask(rig: &Rig, kind: &str, name: &str) -> Value {
    ask_in(rig, kind, ADMIN_NAMESPACE, name).await
}

pub async fn ask_in(rig: &Rig, kind: &str, namespace: &str, name: &str) -> Value {
    let requested = Timestamp::now().to_string();
    rig.edit(kind, namespace, name, |object| {
        object["metadata"]["annotations"]["farwater.dev/requestedAt"] = requested.clone().into();
    })
    .await;
    let handled = |object: &Value| object["status"]["lastHandledReconcileAt"] == requested.as_str();
    rig.wait_for(kind, namespace, name, handled).await
}

/// A service of whatever its spec says, on the cluster `east`.
pub async fn service(rig: &Rig, name: &str, spec: Value) -> String {
    let mut full = json!({"clusterRef": {"name": "east"}, "targetNamespace": name, "deletionPolicy": "Delete"});
    for (field, value) in spec.as_object().unwrap() {
        full[field] = value.clone();
    }
    rig.create("ServiceDeployment", ADMIN_NAMESPACE, name, json!({"spec": full}))
        .await
}

pub async fn wait_service(rig: &Rig, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, holds).await
}

pub fn bundle(entry: &Entry) -> Option<Digest> {
    applied(entry).map(|deployment| deployment.bundle)
}

/// The files that an agent gets, by path.
pub async fn files(rig: &Rig, agent: &Agent, deployment: &Deployment) -> BTreeMap<String, String> {
    let answer = agent.bundle(rig, &deployment.bundle).await;
    assert_eq!(answer.status, StatusCode::OK);
    let archive = Archive::open(&answer.body, &deployment.bundle, &Limits::default()).unwrap();
    archive
        .files()
        .map(|(path, bytes)| (path.to_string(), String::from_utf8_lossy(bytes).into_owned()))
        .collect()
}

/// What an agent gets once it is given something that fits.
pub async fn wait_files(
    rig: &Rig,
    agent: &Agent,
    uid: &str,
    fits: impl Fn(&Entry) -> bool,
) -> (Entry, BTreeMap<String, String>) {
    let (_, entry) = agent
        .wait_entry(rig, uid, |entry| applied(entry).is_some() && fits(entry))
        .await;
    let files = files(rig, agent, applied(&entry).unwrap()).await;
    (entry, files)
}
