//! `cargo xtask tools`: builds the pinned programs that tests and the demo need.

use std::process::ExitCode;

use anyhow::Result;
use farwater_testkit::{Tools, packages};

/// Build missing tools (Kubernetes, kwok, kubectl and other clients) from their Go modules, and print their paths
#[derive(clap::Args)]
pub struct Arguments {}

pub fn run(_: &Arguments) -> Result<ExitCode> {
    packages::require(&[packages::GIT])?;
    let tools = Tools::build_all()?;
    for folder in tools.folders()? {
        println!("{}", folder.display());
    }
    Ok(ExitCode::SUCCESS)
}
