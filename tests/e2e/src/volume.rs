//! A volume that gets full.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{Node, process::bare_command};

/// Larger than any volume in the tests.
const BALLAST: usize = 64 << 20;

/// A small file system, unmounted when dropped.
pub struct Volume(PathBuf);

impl Volume {
    /// # Errors
    ///
    /// Those of `mount`, which only root may run.
    pub fn mount(place: &Path, size: &str) -> Result<Self> {
        fs::create_dir_all(place)?;
        run(mount(place, size))?;
        Ok(Self(place.to_owned()))
    }

    /// Fills the file system, until the returned file is deleted.
    pub fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        // Write as much as fits. The error is expected.
        let _ = fs::write(&ballast, vec![0; BALLAST]);
        ballast
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Unmount lazily, because a killed program may still hold it for a moment.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A small file system on a node. Its mount is only visible there and ends with the node.
pub struct NodeVolume<'a> {
    node: &'a Node,
    ballast: PathBuf,
}

impl<'a> NodeVolume<'a> {
    /// Mounts it over a folder of the node.
    pub fn mount(node: &'a Node, place: &Path, size: &str) -> Result<Self> {
        run(node.command(&mount(place, size)))?;
        Ok(Self {
            node,
            ballast: place.join("ballast"),
        })
    }

    /// Fills the file system.
    pub fn fill(&self) -> Result<()> {
        let mut fill = bare_command("dd");
        fill.arg("if=/dev/zero").arg(format!("of={}", self.ballast.display()));
        fill.args(["bs=1M", &format!("count={}", BALLAST >> 20)]);
        // Write as much as fits. The error is expected.
        let output = self.node.command(&fill).output().context("run dd")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            said.contains("No space left on device"),
            "the volume is not full: {said}"
        );
        Ok(())
    }

    /// Frees the space again.
    pub fn empty(&self) -> Result<()> {
        let mut remove = bare_command("rm");
        remove.arg(&self.ballast);
        run(self.node.command(&remove))
    }
}

fn mount(place: &Path, size: &str) -> Command {
    let mut mount = bare_command("mount");
    mount
        .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
        .arg(place);
    mount
}

fn run(mut command: Command) -> Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
