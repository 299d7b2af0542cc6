//! Repository tasks: `cargo xtask <command>`. One file per command.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod codegen;
mod deny;
mod repository;
mod step;
mod test;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Tasks of this repository")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Test(test::Arguments),
    Tools(tools::Arguments),
    Codegen(codegen::Arguments),
    Deny(deny::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
        Command::Tools(arguments) => tools::run(&arguments),
        Command::Codegen(arguments) => codegen::run(&arguments),
        Command::Deny(arguments) => deny::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
