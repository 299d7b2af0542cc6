//! containerd with runc, and the network of its pods.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::namespaces::{Namespaces, run};
use crate::{
    Process,
    process::{bare_command, wait_ready, within},
};

const READY: Duration = Duration::from_secs(30);
/// The pause image, which holds a pod's namespaces. It is one of [`crate::images`].
pub const PAUSE: &str = "localhost/farwater/pause:1";

pub fn socket(dir: &Path) -> std::path::PathBuf {
    dir.join("containerd.sock")
}

pub async fn start(dir: &Path, namespaces: &Namespaces) -> Result<Process> {
    let file = dir.join("containerd.toml");
    fs::write(&file, configuration(dir)).context("write containerd's configuration")?;
    let network = dir.join("cni");
    fs::create_dir_all(&network)?;
    fs::write(network.join("pods.conflist"), pods_network(dir).to_string())?;
    let mut command = bare_command("containerd");
    command.arg("--config").arg(&file);
    let command = within(namespaces.process, &["--net", "--mount", "--pid"], &command);
    let mut process = Process::spawn("containerd", command, &dir.join("containerd.log"))?;
    wait_ready(&mut [&mut process], READY, || async {
        run(ctr(dir, namespaces, &["version"]))
    })
    .await?;
    Ok(process)
}

/// Imports the image of a tar file.
pub fn import(dir: &Path, namespaces: &Namespaces, image: &Path) -> Result<()> {
    let path = image.to_str().context("the image's path is plain text")?;
    run(ctr(
        dir,
        namespaces,
        &["--namespace", "k8s.io", "images", "import", path],
    ))
    .with_context(|| format!("import {path}"))
}

fn ctr(dir: &Path, namespaces: &Namespaces, arguments: &[&str]) -> Command {
    let mut command = bare_command("ctr");
    command.arg("--address").arg(socket(dir)).args(arguments);
    within(namespaces.process, &["--net", "--mount", "--pid"], &command)
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"version = 2
root = "{dir}/containerd"
state = "{dir}/state"
[grpc]
address = "{dir}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{dir}/cni"
"#
    )
}

fn pods_network(dir: &Path) -> serde_json::Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            // This machine has no route to pods.
            "ipMasq": true,
            "ipam": {
                "type": "host-local",
                "dataDir": dir.join("addresses"),
                "ranges": [[{"subnet": "10.244.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}
