//! The machine and the commit of a measurement.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::repository;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
}

pub fn describe() -> Machine {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        line.and_then(|line| line.split_once(':').map(|(_, value)| value.trim().to_owned()))
            .unwrap_or_default()
    };
    let kilobytes: u64 = field("/proc/meminfo", "MemTotal")
        .trim_end_matches(" kB")
        .parse()
        .unwrap_or(0);
    Machine {
        processor: field("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_gib: kilobytes.div_ceil(1 << 20),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned(),
    }
}

/// The checked-out commit, with `-dirty` if files other than documentation differ from it.
pub fn commit() -> Result<String> {
    let changed = !git(&["status", "--porcelain", "--", ".", ":(exclude)docs"])?.is_empty();
    Ok(format!(
        "{}{}",
        git(&["rev-parse", "HEAD"])?,
        if changed { "-dirty" } else { "" }
    ))
}

/// Output of git, run in the repository's root, without the last line break.
pub fn git(arguments: &[&str]) -> Result<String> {
    let output = std::process::Command::new("git")
        .current_dir(repository::root()?)
        .args(arguments)
        .output();
    let output = output.context("run git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "git {}: {}: {}",
        arguments.join(" "),
        output.status,
        error.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
