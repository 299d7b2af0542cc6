//! The program `lab`, which does the commands that need the crates of hub and agent. Those take minutes to build, and the other commands
//! of xtask are needed before that.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result};

use crate::{repository, step};

/// A variable that lab gets: the seconds that it took to build it. The demo adds them to its own.
pub const BUILD_SECONDS: &str = "XTASK_BUILD_SECONDS";

// All that follows the command's name, `--help` too: lab reads it. No doc comment: it would be each command's help.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    all: Vec<OsString>,
}

/// Becomes lab with the command of this name: terminal, signals and exit code are lab's.
pub fn run(name: &str, arguments: &Arguments) -> Result<ExitCode> {
    let start = Instant::now();
    let mut lab = command(&repository::log("lab-build")?)?;
    let seconds = start.elapsed().as_secs_f64().to_string();
    lab.arg(name).args(&arguments.all).env(BUILD_SECONDS, seconds);
    Err(lab.exec()).with_context(|| format!("start {}", lab.get_program().display()))
}

/// The program, built unless it is: a build of the whole workspace has built it too.
pub fn command(log: &Path) -> Result<Command> {
    let mut cargo = repository::cargo()?;
    // For the whole workspace: a selection of packages has other features, and would build much of it twice.
    cargo.args(["build", "--locked", "--workspace", "--bin", "lab"]);
    step::run("cargo build --bin lab", cargo, log)?;
    Ok(Command::new(repository::target_directory()?.join("debug/lab")))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    #[test]
    fn options_and_a_call_for_help_are_left_to_lab() {
        let command = Arguments::augment_args(clap::Command::new("bench"));
        let matches = command.try_get_matches_from(["bench", "--help", "agent", "--quick"]).unwrap();
        assert_eq!(Arguments::from_arg_matches(&matches).unwrap().all, ["--help", "agent", "--quick"]);
    }
}
