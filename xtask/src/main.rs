//! Repository tasks: `cargo xtask <command>`. One file per command.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
mod campaign;
mod codegen;
mod demo;
mod deny;
mod image;
mod invariants;
mod machine;
mod page;
mod repository;
mod step;
mod test;
mod tools;
mod waits;

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
    Demo(demo::Arguments),
    Tools(tools::Arguments),
    Campaign(campaign::Arguments),
    Bench(bench::Arguments),
    Codegen(codegen::Arguments),
    Deny(deny::Arguments),
    Image(image::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Tools(arguments) => tools::run(&arguments),
        Command::Campaign(arguments) => campaign::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Codegen(arguments) => codegen::run(&arguments),
        Command::Deny(arguments) => deny::run(&arguments),
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
