//! A real node: kubelet, containerd, runc, kube-proxy and CoreDNS beside a control plane. Its pods are containers, and
//! its images are tar files that we build.
//!
//! Everything runs in its own namespaces (network, mounts, processes). Rules, mounts and containers of a node therefore
//! don't affect the machine, and disappear with the node however it ends. Needs root.
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
/// Name of the only node of its cluster.
pub const NAME: &str = "node";

/// A node with its control plane. Fields are dropped in this order: programs in the namespaces, the namespaces, then
/// the folder.
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
        ensure!(
            is_root(),
            "a real node needs root, because it creates namespaces and mounts"
        );
        packages::require(&packages::NODE)?;
        let tools = Tools::find_all()?;
        // Paths of sockets must be short.
        let dir = temporary_folder("fw-node-")?;
        let namespaces = Namespaces::make(dir.path())?;
        let containerd = containerd::start(dir.path(), &namespaces).await?;
        for image in images {
            containerd::import(dir.path(), &namespaces, image)?;
        }
        let place = Place {
            address: namespaces.address,
            network_of: Some(namespaces.process),
        };
        let plane = Plane::start_at(
            PlaneOptions {
                scheduler: true,
                ..PlaneOptions::without_nodes()
            },
            place,
        )
        .await?;
        let kubelet = kubelet::start(&tools, dir.path(), &namespaces, &plane)?;
        let proxy = kubelet::start_proxy(&tools, dir.path(), &namespaces, &plane)?;
        let dns = dns::start(&tools, dir.path(), &namespaces, &plane)?;
        let mut node = Self {
            kubelet,
            proxy,
            dns,
            containerd,
            plane,
            namespaces,
            dir,
        };
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

    /// Imports an image into a running node.
    pub fn import(&self, image: &Path) -> Result<()> {
        containerd::import(self.dir.path(), &self.namespaces, image)
    }

    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    pub async fn client(&self) -> Result<Client> {
        self.plane.client().await
    }

    /// Address at which this machine reaches servers on the node, including NodePorts.
    pub fn address(&self) -> Ipv4Addr {
        self.namespaces.address
    }

    /// Address at which pods reach servers on this machine.
    pub fn machine(&self) -> Ipv4Addr {
        self.namespaces.machine
    }

    /// Creates a folder on the node for a volume of a pod.
    pub fn volume(&self, name: &str) -> Result<PathBuf> {
        let folder = self.dir.path().join("volumes").join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Creates a volume of 10 GiB for a claim, like a provisioner. Returns its folder on the node.
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
        volumes
            .create(&PostParams::default(), &volume)
            .await
            .with_context(|| format!("create volume {name}"))?;
        Ok(folder)
    }

    /// A command on the node, with its network, mounts and processes.
    pub fn command(&self, command: &Command) -> Command {
        within(self.namespaces.process, &["--net", "--mount", "--pid"], command)
    }
}
