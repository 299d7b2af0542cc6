//! The kubelet, and kube-proxy, which Services need.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{NAME, containerd, dns, namespaces::Namespaces};
use crate::{
    Plane, Process, Tools, ports,
    process::{bare_command, within},
};

pub fn start(tools: &Tools, dir: &Path, namespaces: &Namespaces, plane: &Plane) -> Result<Process> {
    let file = dir.join("kubelet.json");
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": namespaces.address,
        "port": ports::free()?,
        "healthzPort": 0,
        // The node is thrown away, and only this machine reaches its network.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": format!("unix://{}", containerd::socket(dir).display()),
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        // The machine's disk may be fuller than the kubelet allows.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": "",
        "clusterDomain": dns::DOMAIN,
        "clusterDNS": [namespaces.address],
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "5s",
        "volumePluginDir": dir.join("plugins"),
    });
    fs::write(&file, configuration.to_string()).context("write the kubelet's configuration")?;
    let mut command = bare_command(tools.kubelet());
    command
        .arg("--config")
        .arg(&file)
        .arg("--kubeconfig")
        .arg(plane.kubeconfig());
    command
        .arg("--root-dir")
        .arg(dir.join("kubelet"))
        .arg("--cert-dir")
        .arg(dir.join("kubelet-certs"));
    command.args([
        "--hostname-override",
        NAME,
        "--node-ip",
        &namespaces.address.to_string(),
    ]);
    command.env("HOME", dir);
    let command = within(namespaces.process, &["--net", "--mount", "--pid"], &command);
    Process::spawn("kubelet", command, &dir.join("kubelet.log"))
}

pub fn start_proxy(tools: &Tools, dir: &Path, namespaces: &Namespaces, plane: &Plane) -> Result<Process> {
    let mut command = bare_command(tools.kube_proxy());
    command.arg("--kubeconfig").arg(plane.kubeconfig());
    command.args([
        "--proxy-mode",
        "iptables",
        "--cluster-cidr",
        "10.244.0.0/16",
        "--hostname-override",
        NAME,
    ]);
    // Don't change the machine's own connection tracking.
    command.args([
        "--conntrack-max-per-core",
        "0",
        "--conntrack-tcp-timeout-established",
        "0s",
    ]);
    command.args([
        "--conntrack-tcp-timeout-close-wait",
        "0s",
        "--healthz-bind-address",
        "",
        "--metrics-bind-address",
        "",
    ]);
    command.env("HOME", dir);
    let command = within(namespaces.process, &["--net", "--mount", "--pid"], &command);
    Process::spawn("kube-proxy", command, &dir.join("kube-proxy.log"))
}
