//! Runs programs with a time other than the machine's.

use std::{
    env::consts::ARCH,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::packages::{self, Package};

const X86: Package = Package {
    program: "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    debian: "libfaketime",
};
const ARM: Package = Package {
    program: "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    debian: "libfaketime",
};

/// The library for this machine's architecture.
pub fn library() -> Result<Package> {
    let library = [("x86_64", X86), ("aarch64", ARM)]
        .into_iter()
        .find(|(arch, _)| *arch == ARCH);
    library
        .map(|(_, library)| library)
        .with_context(|| format!("the path of libfaketime on {ARCH} is unknown"))
}

/// Variables for a program whose clock is off by `offset`, in libfaketime's format: `-1d`, `+90m`. Timers and file
/// times don't change.
pub fn environment(offset: &str) -> Result<Vec<(String, String)>> {
    preloaded(&[("FAKETIME", offset)])
}

fn preloaded(more: &[(&str, &str)]) -> Result<Vec<(String, String)>> {
    let library = library()?;
    packages::require(&[library])?;
    let all = [
        ("LD_PRELOAD", library.program),
        ("DONT_FAKE_MONOTONIC", "1"),
        ("NO_FAKE_STAT", "1"),
    ];
    Ok(all
        .iter()
        .chain(more)
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect())
}

/// A clock that can be set while programs use it. It is correct at first.
#[derive(Debug)]
pub struct Clock {
    file: PathBuf,
}

impl Clock {
    /// `file` must outlive the programs.
    pub fn new(file: &Path) -> Result<Self> {
        let clock = Self { file: file.to_owned() };
        clock.set(0)?;
        Ok(clock)
    }

    /// Variables for a program that uses this clock.
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        let file = self
            .file
            .to_str()
            .context("the path of the clock's file is not valid UTF-8")?;
        preloaded(&[("FAKETIME_TIMESTAMP_FILE", file), ("FAKETIME_CACHE_DURATION", "1")])
    }

    /// Sets the clock off by so many seconds. Programs notice within two seconds.
    pub fn set(&self, seconds: i64) -> Result<()> {
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{seconds:+}\n")).with_context(|| format!("write {}", next.display()))?;
        fs::rename(&next, &self.file).with_context(|| format!("rename {}", next.display()))
    }
}
