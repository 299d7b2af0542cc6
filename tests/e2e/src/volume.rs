//! A volume that is soon full.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};

/// Larger than any [`Volume`].
const BALLAST: usize = 64 << 20;

/// A small file system, unmounted when dropped.
pub struct Volume(PathBuf);

impl Volume {
    /// # Errors
    ///
    /// As `mount` says; only root may.
    pub fn mount(place: &Path, size: &str) -> Result<Self> {
        fs::create_dir_all(place)?;
        let size = format!("size={size}");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(place).status()?;
        ensure!(status.success(), "mount: {status}");
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
