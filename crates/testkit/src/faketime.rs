//! Programs with another time than the machine's.

use std::env::consts::ARCH;

use anyhow::{Context as _, Result};

use crate::packages::{self, Package};

const X86: Package = Package { program: "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", debian: "libfaketime" };
const ARM: Package = Package { program: "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1", debian: "libfaketime" };

/// The library of this machine's architecture.
pub fn library() -> Result<Package> {
    let library = [("x86_64", X86), ("aarch64", ARM)].into_iter().find(|(arch, _)| *arch == ARCH);
    library.map(|(_, library)| library).with_context(|| format!("where libfaketime lies on {ARCH} is not known"))
}

/// Variables of a program whose clock is off by `offset`, as libfaketime writes it: `-1d`, `+90m`. Timers and the times of files
/// stay as they are.
pub fn environment(offset: &str) -> Result<Vec<(String, String)>> {
    let library = library()?;
    packages::require(&[library])?;
    let variables =
        [("LD_PRELOAD", library.program), ("FAKETIME", offset), ("DONT_FAKE_MONOTONIC", "1"), ("NO_FAKE_STAT", "1")];
    Ok(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
}
