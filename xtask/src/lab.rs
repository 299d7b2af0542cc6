//! Runs the program `lab`, which has the commands that need the crates of hub and agent. These crates take minutes to
//! build, and the other commands of xtask must work before that.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result};

use crate::{repository, step};

/// Environment variable for lab: the seconds that its build took. The demo adds them to its own time.
pub const BUILD_SECONDS: &str = "XTASK_BUILD_SECONDS";

// All arguments after the command's name, including `--help`, are for lab. This is no doc comment, because clap would
// show it as the help of each command.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    all: Vec<OsString>,
}

/// Replaces this process with lab, which runs the command of this name. Lab gets the terminal and signals, and its exit
/// code is the result.
pub fn run(name: &str, arguments: &Arguments) -> Result<ExitCode> {
    let start = Instant::now();
    let mut lab = command(&repository::log("lab-build")?)?;
    let seconds = start.elapsed().as_secs_f64().to_string();
    lab.arg(name).args(&arguments.all).env(BUILD_SECONDS, seconds);
    Err(lab.exec()).with_context(|| format!("start {}", lab.get_program().display()))
}

/// Command that runs lab. Builds the program first, unless a build of the whole workspace has already done so.
pub fn command(log: &Path) -> Result<Command> {
    let mut cargo = repository::cargo()?;
    // Build with the features of the whole workspace. A selection of packages has other features, so cargo would build
    // most dependencies twice.
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
        let matches = command
            .try_get_matches_from(["bench", "--help", "agent", "--quick"])
            .unwrap();
        assert_eq!(
            Arguments::from_arg_matches(&matches).unwrap().all,
            ["--help", "agent", "--quick"]
        );
    }
}
