//! Whether the checked-in generated files are fresh. Lab makes them, of the crates that they describe.

use anyhow::Result;

use crate::{lab, repository, step};

/// Fails with the names of the files that differ from what the code says now.
pub fn check() -> Result<()> {
    let log = repository::log("codegen-check")?;
    let mut command = lab::command(&log)?;
    command.args(["codegen", "--check"]);
    step::run("cargo xtask codegen --check", command, &log)
}
