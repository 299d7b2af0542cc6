//! Static programs, built reproducibly: the same bytes on every machine.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use farwater_testkit::tools::renderer_flags;
use xtask::{page, repository, step};

use super::Architecture;

pub struct Programs {
    pub hub: PathBuf,
    pub agent: PathBuf,
    /// The renderer, which the agent starts as a child.
    pub renderer: PathBuf,
}

pub fn build(architecture: Architecture) -> Result<Programs> {
    let triple = architecture.target();
    let target = repository::target_directory()?.join("image");
    let log = repository::log("image-build")?;
    page::build_if_stale(&log)?;
    let build = |profile: &str, package: &str, program: &str, flags: &[&str]| -> Result<PathBuf> {
        let mut cargo = repository::cargo()?;
        cargo.args([
            "build",
            "--locked",
            "--profile",
            profile,
            "-p",
            package,
            "--bin",
            program,
            "--target",
            triple,
        ]);
        cargo.arg("--target-dir").arg(&target);
        // The program must not contain paths of this machine.
        let prefixes = [
            (repository::root()?, "/farwater"),
            (cargo_home()?, "/cargo"),
            (target.clone(), "/target"),
        ];
        let mut rust = vec!["-Ctarget-feature=+crt-static".to_owned()];
        let mut c = Vec::new();
        for (from, to) in &prefixes {
            rust.push(format!("--remap-path-prefix={}={to}", from.display()));
            c.push(format!("-ffile-prefix-map={}={to}", from.display()));
        }
        rust.extend(flags.iter().map(|flag| (*flag).to_owned()));
        cargo.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f"));
        cargo
            .env(format!("CFLAGS_{}", triple.replace('-', "_")), c.join(" "))
            .env("SOURCE_DATE_EPOCH", "0");
        architecture.prepare(&mut cargo)?;
        step::run(
            &format!("cargo build -p {package}, static, for {}", architecture.name()),
            cargo,
            &log,
        )?;
        Ok(target.join(triple).join(profile).join(program))
    };
    Ok(Programs {
        agent: build("agent", "farwater-agent", "farwater-agent", architecture.small())?,
        hub: build("release", "farwater-cli", "farwater", &[])?,
        renderer: build_renderer(architecture, &target.join(triple), &log)?,
    })
}

/// Builds the renderer in Go, without cgo, and without the path and time of the build.
fn build_renderer(architecture: Architecture, target: &Path, log: &Path) -> Result<PathBuf> {
    let module = repository::root()?.join("render-helper");
    let program = target.join("farwater-render");
    let flags = format!("-buildid= {}", renderer_flags(env!("CARGO_PKG_VERSION"))?);
    let mut go = Command::new("go");
    go.current_dir(&module)
        .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
        .arg(&program)
        .arg(".");
    go.env("CGO_ENABLED", "0")
        .env("GOOS", "linux")
        .env("GOARCH", architecture.name());
    go.env("GOFLAGS", "-mod=readonly -buildvcs=false").env("GOWORK", "off");
    step::run(
        &format!("go build farwater-render for {}", architecture.name()),
        go,
        log,
    )?;
    Ok(program)
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cargo"))
}
