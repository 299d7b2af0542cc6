//! Builds and tests the page in `web`. The hub's build embeds it.

use std::{fs, path::Path, process::Command, time::SystemTime};

use anyhow::{Context as _, Result};
use walkdir::WalkDir;

use crate::{repository, step};

const BUILT: &str = "web/dist/index.html";
/// Folders of `web` that are not sources.
const MADE: [&str; 2] = ["dist", "node_modules"];

/// Builds the page from its pinned packages, so that a commit gives the same files on every machine.
pub fn build(log: &Path) -> Result<()> {
    let root = repository::root()?;
    let first = !root.join(BUILT).exists();
    npm(&["ci", "--no-audit", "--no-fund"], log).context("building the page needs npm and Node 20 or newer")?;
    npm(&["run", "build"], log)?;
    if first {
        // Cargo can't watch a folder that did not exist when it last built the hub, so touch the build script.
        fs::File::open(root.join("crates/hub/build.rs"))?.set_modified(SystemTime::now())?;
    }
    Ok(())
}

/// Builds the page if it is missing or older than its sources. Each build makes cargo rebuild the hub, which takes
/// minutes with optimizations.
pub fn build_if_stale(log: &Path) -> Result<()> {
    let root = repository::root()?;
    let Ok(built) = root.join(BUILT).metadata().and_then(|metadata| metadata.modified()) else {
        return build(log);
    };
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

/// Runs the page's unit tests.
pub fn test(log: &Path) -> Result<()> {
    npm(&["test"], log)
}

fn npm(arguments: &[&str], log: &Path) -> Result<()> {
    let mut command = Command::new("npm");
    command.current_dir(repository::root()?.join("web")).args(arguments);
    step::run(&format!("npm {}", arguments.join(" ")), command, log)
}
