//! Architectures that images are built for.

use std::{env::consts::ARCH, process::Command};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use farwater_testkit::packages::{self, Package};
use xtask::repository;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// Architecture of this machine.
    pub fn own() -> Result<Self> {
        let own = Self::value_variants().iter().find(|architecture| architecture.is_own());
        own.copied()
            .with_context(|| format!("images can't be built for {ARCH}"))
    }

    /// Name in Go, Debian and OCI.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's target. Static programs link its C library, glibc. Since 2.34 its name service needs no other files.
    pub fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Folders that Debian's dynamic linker searches.
    pub fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"],
            Self::Arm64 => &["lib", "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"],
        }
    }

    /// Linker options for smaller programs, if Rust's own linker is used. Relocations take a fiftieth of the space, and
    /// functions with the same code are merged.
    pub fn small(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["-Clink-arg=-Wl,-z,pack-relative-relocs", "-Clink-arg=-Wl,--icf=all"],
            // The GNU linker of Debian 12 supports neither option.
            Self::Arm64 => &[],
        }
    }

    fn is_own(self) -> bool {
        self.target().split('-').next() == Some(ARCH)
    }

    /// The C compiler, which also links, and the C library.
    fn toolchain(self) -> [Package; 2] {
        let [compiler, library] = match self {
            Self::Amd64 => [
                ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
                ("/usr/x86_64-linux-gnu/lib/libc.a", "libc6-dev-amd64-cross"),
            ],
            Self::Arm64 => [
                ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
                ("/usr/aarch64-linux-gnu/lib/libc.a", "libc6-dev-arm64-cross"),
            ],
        };
        [compiler, library].map(|(program, debian)| Package { program, debian })
    }

    /// Installs the tools for another architecture than this machine's, and passes them to cargo.
    pub fn prepare(self, cargo: &mut Command) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let toolchain = self.toolchain();
        packages::require(&toolchain)?;
        let target = self.target();
        let command = format!("rustup target add {target}");
        let status = Command::new("rustup")
            .args(["target", "add", target])
            .current_dir(repository::root()?)
            .status();
        let status = status.with_context(|| format!("{command}: it installs Rust's standard library for {target}"))?;
        ensure!(status.success(), "{command}: {status}");
        let name = target.replace('-', "_");
        // The cc crate finds the compiler itself, by the same name.
        cargo.env(
            format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()),
            toolchain[0].program,
        );
        Ok(())
    }
}
