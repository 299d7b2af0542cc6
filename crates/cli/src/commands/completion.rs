//! `farwater completion`: the completion script for a shell.

use clap_complete::Shell;

use crate::{failure::Result, terminal::print};

#[derive(Debug, clap::Args)]
pub struct CompletionArgs {
    /// For example: `source <(farwater completion bash)`.
    shell: Shell,
}

pub fn run(args: &CompletionArgs, mut command: clap::Command) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "farwater", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(crate::exit::YES)
}
