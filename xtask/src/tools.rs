//! `cargo xtask tools`: the pinned programs that tests and the demo need.

use std::process::ExitCode;

use anyhow::Result;
use farwater_testkit::{Tools, packages};

/// Build Kubernetes, kwok and kubectl from their Go modules, unless they are there; print where they are
#[derive(clap::Args)]
pub struct Arguments {}

pub fn run(_: &Arguments) -> Result<ExitCode> {
    packages::require(&[packages::GIT])?;
    println!("{}", Tools::build()?.dir().display());
    Ok(ExitCode::SUCCESS)
}
