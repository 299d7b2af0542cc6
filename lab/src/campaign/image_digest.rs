//! Builds the same images in a clone in another folder, without earlier downloads or builds.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use farwater_image::Image;
use serde_json::json;
use xtask::{machine, repository, step};

use super::Round;
use crate::image::{self, Architecture};

const REPOSITORY: &str = "localhost/farwater";

/// Counts clones.
pub fn round(seed: u64) -> Result<Round> {
    let commit = machine::commit()?;
    ensure!(
        !commit.ends_with("-dirty"),
        "a clone would not have the uncommitted changes: commit them first"
    );
    let dir = tempfile::Builder::new().prefix(&format!("clone-{seed}-")).tempdir()?;
    let log = dir.path().join("image.log");
    let theirs = digests_of_clone(dir.path(), &log, &commit)?;
    let name = |image: &str| format!("{REPOSITORY}/{image}:{}", env!("CARGO_PKG_VERSION"));
    let made = image::make(Architecture::own()?, &name("hub"), &name("agent"), false)?;
    let differs = |image: &&Image| !theirs.contains(&image.digest);
    let ours = [&made.agent, &made.hub];
    let failures = ours.into_iter().filter(differs).map(|image| {
        format!(
            "{} is {} here, but a clone built\n{theirs}",
            image.reference, image.digest
        )
    });
    Ok(Round {
        count: 1,
        failures: failures.collect(),
        figures: json!({"seed": seed, "hub": made.hub.digest, "agent": made.agent.digest}),
    })
}

/// Output of `cargo xtask image` in a clone with its own folders for downloads and builds.
fn digests_of_clone(dir: &Path, log: &Path, commit: &str) -> Result<String> {
    let clone = dir.join("farwater");
    let mut git = std::process::Command::new("git");
    git.args(["clone", "--quiet", "--no-hardlinks"])
        .arg(repository::root()?)
        .arg(&clone);
    step::run("git clone", git, log)?;
    let mut git = std::process::Command::new("git");
    git.args(["checkout", "--quiet", commit]).current_dir(&clone);
    step::run("git checkout", git, log)?;
    let mut cargo = repository::cargo()?;
    let name = Architecture::own()?.name();
    cargo.args(["run", "--quiet", "--locked", "--bin", "xtask", "--", "image"]);
    cargo.args(["--repository", REPOSITORY, "--arch", name]);
    cargo
        .current_dir(&clone)
        .env("CARGO_HOME", dir.join("crates"))
        .env("CARGO_TARGET_DIR", dir.join("build"));
    cargo
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env("npm_config_cache", dir.join("npm"));
    let before = fs::metadata(log)?.len();
    step::run("cargo xtask image, in a clone without downloads or builds", cargo, log)?;
    step::read_from(log, before)
}
