//! Namespaces for network, mounts and processes, separate from the machine's.

use std::{
    fs,
    net::Ipv4Addr,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    Process,
    process::{bare_command, within},
};

/// The first process of the namespaces. It waits for all orphaned children, and everything in the namespaces ends with
/// it. `/run` and `/var/log` are private, because other nodes use the same paths there: a kubelet removes the logs of
/// pods that it doesn't know.
const INIT: &str = "mount -t tmpfs tmpfs /run && mkdir /run/lock && mount -t tmpfs tmpfs /var/log && echo ready && \
                    while :; do sleep 3600 & wait $!; done";

#[derive(Debug)]
pub struct Namespaces {
    /// Process whose namespaces they are.
    pub process: u32,
    /// Addresses of the node, and of this machine as the node reaches it.
    pub address: Ipv4Addr,
    pub machine: Ipv4Addr,
    _init: Process,
}

impl Namespaces {
    pub fn make(dir: &Path) -> Result<Self> {
        let mut command = bare_command("unshare");
        command.args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ]);
        command.args(["--", "sh", "-c", INIT]);
        let init = Process::spawn("the node's first process", command, &dir.join("init.log"))?;
        let process = child_of(&init)?;
        let (machine, address) = addresses();
        let link = format!("fw{:x}", u32::from(address) & 0xffff);
        let network = || -> Result<()> {
            ip(&[
                "link",
                "add",
                &link,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                &process.to_string(),
            ])?;
            ip(&["address", "add", &format!("{machine}/30"), "dev", &link])?;
            ip(&["link", "set", &link, "up"])?;
            for arguments in [
                &["link", "set", "lo", "up"][..],
                &["address", "add", &format!("{address}/30"), "dev", "eth0"],
                &["link", "set", "eth0", "up"],
                &["route", "add", "default", "via", &machine.to_string()],
            ] {
                let mut inside = Command::new("ip");
                inside.args(arguments);
                run(within(process, &["--net"], &inside))?;
            }
            let mut forward = Command::new("sh");
            forward.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
            run(within(process, &["--net", "--mount", "--pid"], &forward))
        };
        network().context("make the node's network")?;
        Ok(Self {
            process,
            address,
            machine,
            _init: init,
        })
    }
}

/// A pair of addresses that no other node of any test run has: 10.213.0.0/16 in blocks of four.
fn addresses() -> (Ipv4Addr, Ipv4Addr) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let piece = (std::process::id().wrapping_mul(4) + NEXT.fetch_add(1, Ordering::Relaxed)) % (1 << 14);
    let first = u32::from(Ipv4Addr::new(10, 213, 0, 0)) + piece * 4;
    (Ipv4Addr::from(first + 1), Ipv4Addr::from(first + 2))
}

/// The process that `unshare` created in the new namespaces, once it is ready.
fn child_of(init: &Process) -> Result<u32> {
    let start = Instant::now();
    let path = format!("/proc/{0}/task/{0}/children", init.id());
    while start.elapsed() < Duration::from_secs(10) {
        if init.output().contains("ready") {
            let children = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
            let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
            return child.with_context(|| format!("{path} names no process: {children:?}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("can't create the namespaces:\n{}", init.tail())
}

fn ip(arguments: &[&str]) -> Result<()> {
    let mut command = bare_command("ip");
    command.args(arguments);
    run(command)
}

/// Runs a command that only prints errors.
pub fn run(mut command: Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("run {}", command.get_program().display()))?;
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        let text = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} {}: {}\n{text}",
            command.get_program().display(),
            arguments.join(" "),
            output.status
        );
    }
    Ok(())
}
