//! CoreDNS, for the names of Services. Pods query it at the node's own address.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::namespaces::Namespaces;
use crate::{
    Plane, Process, Tools,
    process::{bare_command, within},
};

pub const DOMAIN: &str = "cluster.local";

pub fn start(tools: &Tools, dir: &Path, namespaces: &Namespaces, plane: &Plane) -> Result<Process> {
    let file = dir.join("Corefile");
    let kubeconfig = plane.kubeconfig();
    let configuration = format!(
        ".:53 {{\n    errors\n    kubernetes {DOMAIN} {{\n        kubeconfig {}\n    }}\n}}\n",
        kubeconfig.display()
    );
    fs::write(&file, configuration).context("write the configuration of CoreDNS")?;
    let mut command = bare_command(tools.coredns());
    command.arg("-conf").arg(&file).env("HOME", dir);
    Process::spawn(
        "coredns",
        within(namespaces.process, &["--net"], &command),
        &dir.join("coredns.log"),
    )
}
