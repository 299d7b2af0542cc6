//! The commands `demo`, `campaign`, `bench`, `codegen` and `image` of `cargo xtask`. They link the crates of hub and
//! agent. They are not in xtask itself, because xtask is built first and would have to wait for those crates. One file
//! per command.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
mod campaign;
mod codegen;
mod demo;
mod image;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The command line, under the name that users type.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Tasks of this repository that need its crates"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Campaign(campaign::Arguments),
    Bench(bench::Arguments),
    Codegen(codegen::Arguments),
    Image(image::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Campaign(arguments) => campaign::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Codegen(arguments) => codegen::run(&arguments),
        Command::Image(arguments) => image::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
