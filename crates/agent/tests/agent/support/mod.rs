//! A hub that speaks the agent's protocol with real keys and signatures, and the real agent against a real API server.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod custom;
pub mod fake_hub;
pub mod faulty;
pub mod ground;
pub mod local;
pub mod pods;
pub mod turn;
pub mod world;

use std::{path::Path, process::Command, time::Duration};

use farwater_api::{
    Digest,
    objects::{ObjectReport, Outcome, ServiceReport, SyncState},
    protocol::{Action, Ceiling, Deployment, Entry, ServiceAccount, ServiceIdentity},
    service_deployment::DeletionPolicy,
};
use farwater_bundle::{Limits, MemoryTree, RelPath, archive, closure};
use farwater_testkit::{Process, Tools, process::bare_command, wait_for};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};

pub use fake_hub::FakeHub;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A bundle of manifests at `app/`, with an empty file, so that the folder exists even without others.
pub fn bundle(files: &[(&str, &str)]) -> (Digest, u64, Vec<u8>) {
    let mut tree = MemoryTree::default();
    let files: Vec<(String, &str)> = files
        .iter()
        .map(|(name, text)| (format!("app/{name}"), *text))
        .collect();
    let root = tree.add_files(
        files
            .iter()
            .map(|(name, text)| (name.as_str(), *text))
            .chain([("app/none.yaml", "")]),
    );
    let limits = Limits::default();
    let closure = closure(&tree, &root, &RelPath::parse_folder("app").unwrap(), &limits).unwrap();
    let bytes = archive::pack(&tree, &closure, &limits).unwrap();
    (
        Digest::of(&bytes),
        bytes.len() as u64,
        archive::compress(&bytes).unwrap(),
    )
}

pub fn administrator() -> ServiceAccount {
    ServiceAccount {
        namespace: "farwater-system".into(),
        name: "farwater-administrator".into(),
    }
}

/// A service of the fake hub, applied as the administrators' account unless changed.
#[derive(Clone)]
pub struct Service {
    pub identity: ServiceIdentity,
    pub deployment: Deployment,
}

impl Service {
    /// A service with a target namespace that no other test uses, the [`FakeHub::place`] of its name.
    pub fn new(hub: &FakeHub, name: &str, files: &[(&str, &str)]) -> Self {
        let place = hub.place(name);
        let identity = ServiceIdentity {
            uid: format!("uid-{place}"),
            namespace: "team".into(),
            name: name.to_owned(),
        };
        let (digest, bytes, compressed) = bundle(files);
        hub.add_bundle(digest, compressed);
        let deployment = Deployment {
            bundle: digest,
            bundle_bytes: bytes,
            path: "app".into(),
            renderers: Vec::new(),
            patches: Vec::new(),
            target_namespace: place,
            prune: true,
            ceiling: Ceiling {
                service_account: administrator(),
                target_namespaces: None,
                allowed_kinds: None,
                denied_kinds: None,
            },
            secrets: None,
            parameters: None,
            approved_prune: None,
            options: Default::default(),
            hold_prune: None,
            configuration: Default::default(),
            origin: None,
            undo: None,
            retry_hook: None,
            turn: 0,
            tests: Vec::new(),
            health: Vec::new(),
        };
        Self { identity, deployment }
    }

    pub fn with(&self, hub: &FakeHub, files: &[(&str, &str)]) -> Self {
        let mut next = Self::new(hub, &self.identity.name, files);
        next.deployment = Deployment {
            bundle: next.deployment.bundle,
            bundle_bytes: next.deployment.bundle_bytes,
            ..self.deployment.clone()
        };
        next
    }

    pub fn entry(&self) -> Entry {
        Entry {
            service: self.identity.clone(),
            action: Action::Apply(self.deployment.clone()),
        }
    }

    /// The removal of the service with this policy.
    pub fn removal(&self, policy: DeletionPolicy, approved_prune: Option<Digest>) -> Entry {
        Entry {
            service: self.identity.clone(),
            action: Action::Remove { policy, approved_prune },
        }
    }

    pub fn uid(&self) -> &str {
        &self.identity.uid
    }
}

pub fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{value: \"{value}\"}}\n")
}

/// The plugins that an administrator has configured.
const PLUGINS: &str = "plugins: [{name: greet, command: [/bin/sh, -c, 'sed s/WORLD/cluster/ greeting.txt']}]\n";

/// Starts the agent's program.
pub fn agent(hub: &FakeHub, kubeconfig: &Path, state_dir: &Path, log: &Path, token: bool) -> Process {
    let mut command: Command = bare_command(env!("CARGO_BIN_EXE_farwater-agent"));
    command.args(["--hub", &hub.url(), "--ca-pin", &hub.ca_pin()]);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--state-dir")
        .arg(state_dir);
    command
        .arg("--renderer")
        .arg(Tools::find_renderers().unwrap().renderer());
    let plugins = state_dir.with_file_name("plugins.yaml");
    std::fs::write(&plugins, PLUGINS).unwrap();
    command.arg("--plugins").arg(plugins);
    if token {
        command.env("FARWATER_JOIN_TOKEN", fake_hub::TOKEN);
    }
    Process::spawn("farwater-agent", command, log).unwrap()
}

/// Waits for a report of exactly this entry with this outcome, and returns the newest.
pub async fn outcome(hub: &FakeHub, entry: &Entry, outcome: Outcome) -> ServiceReport {
    report(hub, entry, |report| report.outcome == outcome).await
}

pub async fn report(hub: &FakeHub, entry: &Entry, accept: impl Fn(&ServiceReport) -> bool) -> ServiceReport {
    let digest = entry.digest();
    let uid = entry.service.uid.clone();
    let waited = wait_for(&format!("a report of {uid}"), PATIENCE, || async {
        Ok(hub.report(&uid).filter(|r| r.entry == digest && accept(r)))
    })
    .await;
    waited.unwrap_or_else(|e| panic!("{e:#}; last report: {:#?}", hub.report(&uid)))
}

pub fn object<'a>(report: &'a ServiceReport, kind: &str, name: &str) -> &'a ObjectReport {
    let found = report
        .objects
        .iter()
        .find(|o| o.object.kind == kind && o.object.name == name);
    found.unwrap_or_else(|| panic!("no {kind} {name} in {report:#?}"))
}

pub fn states(report: &ServiceReport, state: SyncState) -> Vec<String> {
    report
        .objects
        .iter()
        .filter(|o| o.sync == state)
        .map(|o| o.object.name.clone())
        .collect()
}

pub fn api(client: &Client, group: &str, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}

pub fn config_maps(client: &Client, namespace: &str) -> Api<DynamicObject> {
    api(client, "", "v1", "ConfigMap", namespace)
}

pub async fn gone(api: &Api<DynamicObject>, name: &str) {
    wait_for(&format!("{name} to be gone"), PATIENCE, || async {
        Ok(api.get_opt(name).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}

pub async fn value(api: &Api<DynamicObject>, name: &str, expected: &str) {
    wait_for(&format!("{name} to have value {expected}"), PATIENCE, || async {
        let object = api.get_opt(name).await?;
        Ok(object.filter(|o| o.data["data"]["value"] == expected).map(drop))
    })
    .await
    .unwrap();
}
