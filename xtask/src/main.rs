//! Repository tasks: `cargo xtask <command>`. One file per command.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod codegen;
mod invariants;
mod test;
mod tools;
mod waits;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{deny, lab, machine, page, repository, step};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Tasks of this repository")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Test(test::Arguments),
    /// Show a commit become running objects: two Kubernetes control planes, a Git server, a hub and two agents
    Demo(lab::Arguments),
    Tools(tools::Arguments),
    /// Run a long test campaign; a record under docs/campaigns is resumed while commit and seed stay the same
    Campaign(lab::Arguments),
    /// Run a benchmark; print one JSON object per metric and line
    Bench(lab::Arguments),
    /// Write the generated files: CRDs and JSON schemas under deploy, the reference under docs, the page's types,
    /// deny.toml
    Codegen(lab::Arguments),
    Deny(deny::Arguments),
    /// Build OCI images of hub and agent, as layouts and tar files, without a container engine
    Image(lab::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
        Command::Demo(arguments) => lab::run("demo", &arguments),
        Command::Tools(arguments) => tools::run(&arguments),
        Command::Campaign(arguments) => lab::run("campaign", &arguments),
        Command::Bench(arguments) => lab::run("bench", &arguments),
        Command::Codegen(arguments) => lab::run("codegen", &arguments),
        Command::Deny(arguments) => deny::run(&arguments),
        Command::Image(arguments) => lab::run("image", &arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
