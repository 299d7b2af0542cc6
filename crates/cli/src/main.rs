//! `farwater`: the command line. Standard output is for data, standard error for messages, and the exit codes are in
//! [`exit`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod commands;
mod connection;
#[cfg(test)]
mod effects;
mod exit;
mod failure;
mod forest;
mod format;
mod granted;
mod help;
mod installed_hub;
mod kinds;
mod local;
mod pods;
mod program;
mod scope;
mod service;
mod table;
mod target;
mod terminal;
mod text;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{
    commands::{
        admin, approve, cluster, completion, convert, delete, deploy, doctor, explain, freeze, get, history, hooks,
        hub, impact, install, login, notify, objects, pipeline, plan, render, resume, rollback, rollout, suspend,
        tenant, tree, undo, version, wait, why,
    },
    connection::{ConnectArgs, Session},
    failure::{Failure, Result},
    program::Program,
};

/// Continuous deployment for fleets of Kubernetes clusters.
#[derive(Debug, Parser)]
#[command(name = "farwater", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the hub.
    Hub(farwater_hub::HubArgs),
    /// Backs up, restores, checks and copies a hub's database.
    Admin(admin::AdminArgs),
    #[command(flatten)]
    Ask(Ask),
    /// Renders a folder or a service to objects, without a cluster.
    Render(render::RenderArgs),
    /// Prints a shell's completion script.
    Completion(completion::CompletionArgs),
    /// Converts other tools' resources to Farwater's.
    Convert(convert::ConvertArgs),
}

/// Commands that need a hub.
#[derive(Debug, Subcommand)]
enum Ask {
    /// Installs a hub in a cluster and signs in.
    Install(install::InstallArgs),
    /// Signs in to a hub.
    Login(login::LoginArgs),
    /// Joins clusters to the hub and removes them.
    Cluster(cluster::ClusterArgs),
    /// Prepares clusters for a tenant's services.
    Tenant(tenant::TenantArgs),
    /// Deploys a folder of a Git repository to a cluster.
    Deploy(deploy::DeployArgs),
    /// Lists resources of the hub.
    Get(get::GetArgs),
    /// Deletes services, sets, sources and other resources.
    Delete(delete::DeleteArgs),
    /// Shows clusters, services and objects with their health.
    Tree(tree::TreeArgs),
    /// Explains why a service, set, cluster or source is not healthy.
    Why(why::WhyArgs),
    /// Waits until services, sets, clusters or sources are healthy.
    Wait(wait::WaitArgs),
    /// Previews the changes of a service or a set.
    Plan(plan::PlanArgs),
    /// Previews the changes of a branch, tag or commit in the fleet.
    Impact(impact::ImpactArgs),
    /// Restores the objects of a service's last deletion.
    Undo(undo::UndoArgs),
    /// Lists the objects of a service.
    Objects(objects::ObjectsArgs),
    /// Shows the versions of a service or a set and their results.
    History(history::HistoryArgs),
    /// Shows a service's hooks and tests, with logs and JUnit files.
    Hooks(hooks::HooksArgs),
    /// Shows the parameters and the digest of a service.
    Explain(explain::ExplainArgs),
    /// Rolls a service or a set back to an earlier version, or unpins it.
    Rollback(rollback::RollbackArgs),
    /// Shows and controls a set's rollout.
    Rollout(rollout::RolloutArgs),
    /// Shows the stages of a pipeline and what they wait for.
    Pipeline(pipeline::PipelineArgs),
    /// Approves a pipeline's stage, or the held deletions of a service.
    Approve(approve::ApproveArgs),
    /// Tests notification providers.
    Notify(notify::NotifyArgs),
    /// Suspends a service for a limited time, with a reason.
    Suspend(suspend::SuspendArgs),
    /// Freezes changes to the fleet, or part of it, until a given time.
    Freeze(freeze::FreezeArgs),
    /// Ends a freeze.
    Unfreeze(freeze::UnfreezeArgs),
    /// Resumes a suspended service.
    Resume(resume::ResumeArgs),
    /// Checks this machine, the hub and a cluster, and names remedies.
    Doctor(doctor::DoctorArgs),
    /// Shows the versions of this program and of the hub.
    Version(version::VersionArgs),
}

fn main() -> ExitCode {
    let program = Program::from_argv0(std::env::args_os().next().as_deref());
    let cli = match parse(program) {
        Ok(cli) => cli,
        Err(error) => {
            // Requested help goes to standard output and is a success.
            let code = if error.use_stderr() { exit::USAGE } else { exit::YES };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match start(cli, program) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            terminal::say(failure.render(program.name()).trim_end());
            ExitCode::from(failure.code)
        }
    }
}

fn command(program: Program) -> clap::Command {
    help::grouped(Cli::command().bin_name(program.name()))
}

fn parse(program: Program) -> Result<Cli, clap::Error> {
    let matches = command(program).try_get_matches_from(arguments(program))?;
    Cli::from_arg_matches(&matches)
}

/// The arguments, with the program's name first, as usage lines show it.
fn arguments(program: Program) -> impl Iterator<Item = std::ffi::OsString> {
    std::iter::once(program.name().into()).chain(std::env::args_os().skip(1))
}

fn start(cli: Cli, program: Program) -> Result<u8> {
    let Cli {
        connect,
        command: asked,
    } = cli;
    match asked {
        Command::Completion(args) => completion::run(&args, command(program)),
        Command::Convert(args) => convert::run(&args),
        Command::Hub(args) => hub::run(args),
        Command::Admin(args) => block_on(admin::run(args, &connect)),
        Command::Ask(asked) => block_on(ask(asked, &connect, program)),
        Command::Render(args) => block_on(render::run(args, &connect, program)),
    }
}

fn block_on(work: impl Future<Output = Result<u8>>) -> Result<u8> {
    // One thread starts in well under a millisecond and is enough for a client.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::INTERNAL, "can't start").evidence(error.to_string()))?;
    runtime.block_on(work)
}

async fn ask(asked: Ask, connect: &ConnectArgs, program: Program) -> Result<u8> {
    let open = || Session::open(connect, program);
    match asked {
        Ask::Install(args) => install::run(args, connect).await,
        Ask::Login(args) => login::run(args, program).await,
        Ask::Cluster(args) => cluster::run(args, connect, program).await,
        Ask::Tenant(args) => tenant::run(args, connect, program).await,
        Ask::Deploy(args) => deploy::run(args, connect, program).await,
        Ask::Get(args) => get::run(args, &open().await?).await,
        Ask::Delete(args) => delete::run(args, &open().await?).await,
        Ask::Tree(args) => tree::run(args, &open().await?).await,
        Ask::Why(args) => why::run(args, &open().await?).await,
        Ask::Wait(args) => wait::run(args, &open().await?).await,
        Ask::Plan(args) => plan::run(args, &open().await?).await,
        Ask::Impact(args) => impact::run(args, &open().await?).await,
        Ask::Undo(args) => undo::run(args, &open().await?).await,
        Ask::Objects(args) => objects::run(args, &open().await?).await,
        Ask::History(args) => history::run(args, &open().await?).await,
        Ask::Hooks(args) => hooks::run(args, &open().await?).await,
        Ask::Explain(args) => explain::run(args, &open().await?).await,
        Ask::Rollback(args) => rollback::run(args, &open().await?).await,
        Ask::Rollout(args) => rollout::run(args, &open().await?).await,
        Ask::Pipeline(args) => pipeline::run(args, &open().await?).await,
        Ask::Approve(args) => approve::run(args, &open().await?).await,
        Ask::Notify(args) => notify::run(args, &open().await?).await,
        Ask::Suspend(args) => suspend::run(args, &open().await?).await,
        Ask::Freeze(args) => freeze::run(args, &open().await?).await,
        Ask::Unfreeze(args) => freeze::end(args, &open().await?).await,
        Ask::Resume(args) => resume::run(args, &open().await?).await,
        Ask::Doctor(args) => doctor::run(args, connect, program).await,
        Ask::Version(args) => version::run(args, connect, program).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands of a page after `$ farwater`, each up to a pipe, a redirection or a comment.
    fn shown(page: &str) -> impl Iterator<Item = Vec<&str>> {
        let commands = page.lines().filter_map(|line| line.strip_prefix("$ farwater "));
        commands.map(|line| {
            line.split_whitespace()
                .take_while(|word| !["|", ">", "#"].contains(word))
                .collect()
        })
    }

    #[test]
    fn commands_of_the_pages_are_understood() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let mut count = 0;
        for folder in [docs.clone(), docs.join("kinds")] {
            for page in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let Ok(text) = std::fs::read_to_string(&page) else {
                    continue;
                };
                for words in shown(&text) {
                    let given = std::iter::once("farwater").chain(words.iter().copied());
                    if let Err(error) = command(Program::Farwater).try_get_matches_from(given) {
                        panic!("{}: farwater {}: {error}", page.display(), words.join(" "));
                    }
                    count += 1;
                }
            }
        }
        assert!(count > 20, "{count} commands were found");
    }

    /// A default of the program and another one in the text would both be shown.
    #[test]
    fn help_names_one_default() {
        fn check(command: &clap::Command) {
            for option in command.get_arguments() {
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                let is_shown = !option.get_default_values().is_empty() && !option.is_hide_default_value_set();
                assert!(
                    !(is_shown && help.contains("[default: ")),
                    "{} {}: {help}",
                    command.get_name(),
                    option.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&command(Program::Farwater));
    }

    #[test]
    fn the_command_line_is_consistent() {
        command(Program::Farwater).debug_assert();
    }

    #[test]
    fn what_the_page_prints_is_what_the_program_takes() {
        for line in include_str!("../../../web/src/fleet/commands.txt").lines() {
            let words = line.replace("'say why'", "why");
            if let Err(error) = command(Program::Farwater).try_get_matches_from(words.split(' ')) {
                panic!("{line}: {error}");
            }
        }
    }
}
