//! The page, `web`: what the hub embeds when it is built.

use std::{fs, path::Path, process::Command, time::SystemTime};

use anyhow::{Context as _, Result};

use crate::{repository, step};

const BUILT: &str = "web/dist/index.html";

/// Builds the page from its pinned packages, so that the same commit gives the same files on every machine.
pub fn build(log: &Path) -> Result<()> {
    let root = repository::root()?;
    let first = !root.join(BUILT).exists();
    npm(&["ci", "--no-audit", "--no-fund"], log).context("npm and Node 20 or newer build the page")?;
    npm(&["run", "build"], log)?;
    if first {
        // Cargo can't watch for a folder that was not there when it last built the hub.
        fs::File::open(root.join("crates/hub/build.rs"))?.set_modified(SystemTime::now())?;
    }
    Ok(())
}

/// Builds the page where there is none yet.
pub fn build_once(log: &Path) -> Result<()> {
    if repository::root()?.join(BUILT).exists() { Ok(()) } else { build(log) }
}

/// The page's unit tests.
pub fn test(log: &Path) -> Result<()> {
    npm(&["test"], log)
}

fn npm(arguments: &[&str], log: &Path) -> Result<()> {
    let mut command = Command::new("npm");
    command.current_dir(repository::root()?.join("web")).args(arguments);
    step::run(&format!("npm {}", arguments.join(" ")), command, log)
}
