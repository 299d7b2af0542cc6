//! A real node: kubelet, containerd, runc, kube-proxy and CoreDNS beside a control plane. Pods are containers here, and images are
//! tar files that we make.
//!
//! All of it runs in namespaces of its own (network, mounts, processes), so that rules, mounts and containers of a node concern
//! nobody else on the machine and go with it, however it ends. Needs root.
//!
//! ```text
//!  this machine ── 10.213.x.y/30 ── node ── 10.244.0.0/24 ── pods
//! ```

mod containerd;
mod dns;
mod kubelet;
mod namespaces;

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node as KubernetesNode, PersistentVolume};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use crate::{
    Plane, PlaneOptions, Process, Tools,
    kube::{flags::Place, node_is_ready},
    packages::{self, is_root},
    process::within,
    temporary_folder, wait_for,
};
pub use containerd::PAUSE;
use namespaces::Namespaces;

const READY: Duration = Duration::from_secs(120);
/// Its name, and the only one of its cluster.
pub const NAME: &str = "node";

/// One node with its control plane. Fields are dropped in order: what runs in the namespaces, then these, then the folder.
#[derive(Debug)]
pub struct Node {
    kubelet: Process,
    proxy: Process,
    dns: Process,
    containerd: Process,
    plane: Plane,
    namespaces: Namespaces,
    dir: tempfile::TempDir,
}

impl Node {
    /// `images`: tar files of [`crate::images`] or of `cargo xtask image`.
    pub async fn start(images: &[&Path]) -> Result<Self> {
        ensure!(is_root(), "a real node needs root: it makes namespaces and mounts");
        packages::require(&packages::NODE)?;
        let tools = Tools::find_all()?;
        // The paths of sockets must be short.
        let dir = temporary_folder("fw-node-")?;
        let namespaces = Namespaces::make(dir.path())?;
        let containerd = containerd::start(dir.path(), &namespaces).await?;
        for image in images {
            containerd::import(dir.path(), &namespaces, image)?;
        }
        let place = Place { address: namespaces.address, network_of: Some(namespaces.process) };
        let plane = Plane::start_at(PlaneOptions { scheduler: true, ..PlaneOptions::without_nodes() }, place).await?;
        let kubelet = kubelet::start(&tools, dir.path(), &namespaces, &plane)?;
        let proxy = kubelet::start_proxy(&tools, dir.path(), &namespaces, &plane)?;
        let dns = dns::start(&tools, dir.path(), &namespaces, &plane)?;
        let mut node = Self { kubelet, proxy, dns, containerd, plane, namespaces, dir };
        node.ready().await?;
        Ok(node)
    }

    async fn ready(&mut self) -> Result<()> {
        let api: Api<KubernetesNode> = Api::all(self.plane.client().await?);
        let ready = wait_for("the node to be ready", READY, || async {
            Ok(api.get_opt(NAME).await?.filter(node_is_ready).map(drop))
        });
        ready.await.with_context(|| {
            let parts = [&self.containerd, &self.kubelet, &self.proxy, &self.dns];
            parts.map(|part| format!("---\n{}", part.tail())).join("\n")
        })
    }

    /// Makes an image known that was not there at the start.
    pub fn import(&self, image: &Path) -> Result<()> {
        containerd::import(self.dir.path(), &self.namespaces, image)
    }

    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    pub async fn client(&self) -> Result<Client> {
        self.plane.client().await
    }

    /// Where this machine reaches what listens on the node, NodePorts too.
    pub fn address(&self) -> Ipv4Addr {
        self.namespaces.address
    }

    /// Where pods reach what listens on this machine.
    pub fn machine(&self) -> Ipv4Addr {
        self.namespaces.machine
    }

    /// A folder on the node for a volume of a pod.
    pub fn volume(&self, name: &str) -> Result<PathBuf> {
        let folder = self.dir.path().join("volumes").join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Makes a volume of 10 GiB that a claim can have, as a provisioner would; its folder on the node.
    pub async fn provide(&self, name: &str) -> Result<PathBuf> {
        let folder = self.volume(name)?;
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
                "local": {"path": &folder},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}]},
                ]}},
            },
        }))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client().await?);
        volumes.create(&PostParams::default(), &volume).await.with_context(|| format!("create volume {name}"))?;
        Ok(folder)
    }

    /// A command on the node: in its network, with its mounts and processes.
    pub fn command(&self, command: &Command) -> Command {
        within(self.namespaces.process, &["--net", "--mount", "--pid"], command)
    }
}
