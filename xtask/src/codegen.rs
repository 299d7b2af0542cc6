//! Checks that the checked-in generated files are up to date. Lab generates them from the crates that they describe.

use anyhow::Result;

use crate::{lab, repository, step};

/// Fails with the names of outdated files.
pub fn check() -> Result<()> {
    let log = repository::log("codegen-check")?;
    let mut command = lab::command(&log)?;
    command.args(["codegen", "--check"]);
    step::run("cargo xtask codegen --check", command, &log)
}
