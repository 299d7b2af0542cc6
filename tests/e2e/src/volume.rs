//! A volume that is soon full.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{Node, process::bare_command};

/// Larger than any volume here.
const BALLAST: usize = 64 << 20;

/// A small file system, unmounted when dropped.
pub struct Volume(PathBuf);

impl Volume {
    /// # Errors
    ///
    /// As `mount` says; only root may.
    pub fn mount(place: &Path, size: &str) -> Result<Self> {
        fs::create_dir_all(place)?;
        run(mount(place, size))?;
        Ok(Self(place.to_owned()))
    }

    /// Leaves no room, until the file that it names is deleted.
    pub fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        // As much as fits: the error is the point.
        let _ = fs::write(&ballast, vec![0; BALLAST]);
        ballast
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Lazily: a killed program may still hold it for a moment.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The same on a node, whose mounts nobody else sees and end with it.
pub struct NodeVolume<'a> {
    node: &'a Node,
    ballast: PathBuf,
}

impl<'a> NodeVolume<'a> {
    /// Over a folder of the node.
    pub fn mount(node: &'a Node, place: &Path, size: &str) -> Result<Self> {
        run(node.command(&mount(place, size)))?;
        Ok(Self { node, ballast: place.join("ballast") })
    }

    /// Leaves no room.
    pub fn fill(&self) -> Result<()> {
        let mut fill = bare_command("dd");
        fill.arg("if=/dev/zero").arg(format!("of={}", self.ballast.display()));
        fill.args(["bs=1M", &format!("count={}", BALLAST >> 20)]);
        // As much as fits: the error is the point.
        let output = self.node.command(&fill).output().context("run dd")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(said.contains("No space left on device"), "the volume is not full: {said}");
        Ok(())
    }

    /// Makes room again.
    pub fn empty(&self) -> Result<()> {
        let mut remove = bare_command("rm");
        remove.arg(&self.ballast);
        run(self.node.command(&remove))
    }
}

fn mount(place: &Path, size: &str) -> Command {
    let mut mount = bare_command("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(place);
    mount
}

fn run(mut command: Command) -> Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
