//! Paths in this clone.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

pub use farwater_testkit::tools::repository_root as root;

/// The target folder. Cargo reports it, so that `CARGO_TARGET_DIR` and configuration files are respected.
pub fn target_directory() -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let answer = cargo_output(&["metadata", "--format-version", "1", "--no-deps"])?;
    let metadata: Metadata = serde_json::from_str(&answer).context("read the answer of cargo metadata")?;
    Ok(metadata.target_directory)
}

/// Path for a command's log, without the file extension.
pub fn log(name: &str) -> Result<PathBuf> {
    let folder = target_directory()?.join("xtask/logs");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder.join(format!("{name}.log")))
}

/// Standard output of cargo. Its standard error goes to the terminal.
pub fn cargo_output(arguments: &[&str]) -> Result<String> {
    let output = cargo()?.args(arguments).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("run cargo {}", arguments.join(" ")))?;
    if !output.status.success() {
        bail!("cargo {}: {}", arguments.join(" "), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("read the answer of cargo {}", arguments.join(" ")))
}

/// The cargo that started us, run in the root of the repository.
pub fn cargo() -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()?);
    // `cargo run` sets variables about our own crate, which must not reach the builds of other crates.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_BIN_NAME" {
            command.env_remove(name);
        }
    }
    Ok(command)
}
