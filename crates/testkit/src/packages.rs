//! Programs of the operating system that tests need.

use std::{fs::File, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

/// A program, by name or path, and the Debian package that contains it.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    pub program: &'static str,
    pub debian: &'static str,
}

pub const GIT: Package = Package {
    program: "git",
    debian: "git",
};
/// For the tests of the page.
pub const CHROMIUM: Package = Package {
    program: "chromium",
    debian: "chromium",
};

/// For a real node. Its idle pods run busybox.
pub const NODE: [Package; 9] = [
    Package {
        program: "containerd",
        debian: "containerd",
    },
    Package {
        program: "ctr",
        debian: "containerd",
    },
    Package {
        program: "runc",
        debian: "runc",
    },
    Package {
        program: "/usr/lib/cni/ptp",
        debian: "containernetworking-plugins",
    },
    Package {
        program: "iptables",
        debian: "iptables",
    },
    Package {
        program: "ip",
        debian: "iproute2",
    },
    Package {
        program: "unshare",
        debian: "util-linux",
    },
    Package {
        program: "nsenter",
        debian: "util-linux",
    },
    Package {
        program: "/bin/busybox",
        debian: "busybox-static",
    },
];

/// Makes sure that the programs exist. As root on Debian it installs missing packages and says which. Otherwise the
/// error contains the command to run.
pub fn require(packages: &[Package]) -> Result<()> {
    if missing(packages).is_empty() {
        return Ok(());
    }
    // Take a lock: of two concurrent installs, one would remove the archives that the other has downloaded. It ends
    // with the file.
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
        bail!(
            "programs are missing: {}. On Debian: sudo {command}",
            programs.join(", ")
        );
    }
    eprintln!("installing Debian packages: {}", names.join(" "));
    apt_get(&["update"])?;
    // Installing a server would start it as a service, which we don't want.
    let mut install = vec![
        "install",
        "--yes",
        "--no-install-recommends",
        "-o",
        "DPkg::Lock::Timeout=300",
    ];
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
        bail!(
            "apt-get {}: {}\n{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

fn on_path(program: &str) -> bool {
    // A path stays unchanged when it is joined to a folder.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

pub(crate) fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
