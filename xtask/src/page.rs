//! The page, `web`: what the hub embeds when it is built.

use std::{fs, path::Path, process::Command, time::SystemTime};

use anyhow::{Context as _, Result};
use walkdir::WalkDir;

use crate::{repository, step};

const BUILT: &str = "web/dist/index.html";
/// Folders of `web` that are not its sources.
const MADE: [&str; 2] = ["dist", "node_modules"];

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

/// The same where what it is made of is newer. Each build has the hub built anew, which takes minutes when it is optimized.
pub fn build_if_stale(log: &Path) -> Result<()> {
    let root = repository::root()?;
    let Ok(built) = root.join(BUILT).metadata().and_then(|metadata| metadata.modified()) else { return build(log) };
    let sources = WalkDir::new(root.join("web"))
        .min_depth(1)
        .into_iter()
        .filter_entry(|entry| !MADE.iter().any(|name| entry.file_name() == *name));
    for source in sources {
        if source?.metadata()?.modified()? > built {
            return build(log);
        }
    }
    Ok(())
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
