//! Programs of the operating system that tests need.

use std::{fs::File, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

/// A program, by its name or its path, and the Debian package that holds it.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    pub program: &'static str,
    pub debian: &'static str,
}

pub const GIT: Package = Package { program: "git", debian: "git" };
/// For the page's tests.
pub const CHROMIUM: Package = Package { program: "chromium", debian: "chromium" };

/// For a real node. busybox is what its pods run where they only have to be there.
pub const NODE: [Package; 9] = [
    Package { program: "containerd", debian: "containerd" },
    Package { program: "ctr", debian: "containerd" },
    Package { program: "runc", debian: "runc" },
    Package { program: "/usr/lib/cni/ptp", debian: "containernetworking-plugins" },
    Package { program: "iptables", debian: "iptables" },
    Package { program: "ip", debian: "iproute2" },
    Package { program: "unshare", debian: "util-linux" },
    Package { program: "nsenter", debian: "util-linux" },
    Package { program: "/bin/busybox", debian: "busybox-static" },
];

/// Makes sure that the programs are there. As root on Debian the missing packages are installed, after saying which;
/// anywhere else the command to run is the error.
pub fn require(packages: &[Package]) -> Result<()> {
    if missing(packages).is_empty() {
        return Ok(());
    }
    // Of two that install at once, one takes away the archives that the other has fetched. Ends with the file.
    let lock =
        File::create(std::env::temp_dir().join("farwater-packages.lock")).context("make the lock of packages")?;
    lock.lock().context("wait for another one that installs packages")?;
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    let mut names: Vec<_> = missing.iter().map(|package| package.debian).collect();
    names.dedup();
    let command = format!("apt-get install --no-install-recommends {}", names.join(" "));
    if !is_root() || !Path::new("/etc/debian_version").exists() {
        let programs: Vec<_> = missing.iter().map(|package| package.program).collect();
        bail!("programs are missing: {}. On Debian: sudo {command}", programs.join(", "));
    }
    eprintln!("installing Debian packages: {}", names.join(" "));
    apt_get(&["update"])?;
    // A fresh `apt-get install` of a server would start it: none of ours may run as a service.
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(names);
    apt_get(&install)
}

fn missing(packages: &[Package]) -> Vec<&Package> {
    packages.iter().filter(|package| !on_path(package.program)).collect()
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("RUNLEVEL", "1")
        .output()
        .context("run apt-get")?;
    if !output.status.success() {
        bail!("apt-get {}: {}\n{}", arguments.join(" "), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn on_path(program: &str) -> bool {
    // A path stays what it is when it is joined to a folder.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
