//! Processors that images are made for.

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
    /// This machine's.
    pub fn own() -> Result<Self> {
        let own = Self::value_variants().iter().find(|architecture| architecture.is_own());
        own.copied().with_context(|| format!("no images are made for {ARCH}"))
    }

    /// As Go, Debian and OCI call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's target. Static programs are made with the C library of it: since 2.34 its name service needs no other files.
    pub fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Folders that Debian's dynamic linker looks into.
    pub fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"],
            Self::Arm64 => &["lib", "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"],
        }
    }

    /// What makes a program smaller, where Rust's own linker makes it: addresses that the start fills in take a fiftieth of the
    /// space, all of which it reads; functions with the same code are one.
    pub fn small(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["-Clink-arg=-Wl,-z,pack-relative-relocs", "-Clink-arg=-Wl,--icf=all"],
            // The GNU linker of Debian 12 knows neither.
            Self::Arm64 => &[],
        }
    }

    fn is_own(self) -> bool {
        self.target().split('-').next() == Some(ARCH)
    }

    /// C's compiler, which links too, and its library.
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

    /// What builds for another machine than this one is installed, and told to a cargo.
    pub fn prepare(self, cargo: &mut Command) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let toolchain = self.toolchain();
        packages::require(&toolchain)?;
        let target = self.target();
        let command = format!("rustup target add {target}");
        let status = Command::new("rustup").args(["target", "add", target]).current_dir(repository::root()?).status();
        let status = status.with_context(|| format!("{command}: Rust's own library for {target} is needed"))?;
        ensure!(status.success(), "{command}: {status}");
        let name = target.replace('-', "_");
        // What cc runs it finds itself, by the same name.
        cargo.env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), toolchain[0].program);
        Ok(())
    }
}
