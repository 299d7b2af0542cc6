//! `cargo xtask demo`: two real control planes follow a Git repository, live in the terminal.

mod keys;
mod picture;
mod progress;
pub mod scene;
mod screen;

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use farwater_testkit::{Tools, packages};

use xtask::{page, repository, step};

use progress::Fleet;
use scene::Scene;
use screen::Screen;

/// From nothing to healthy takes some ten seconds; on a machine that also compiles, longer.
const HEALTHY: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(400);

/// Show a commit become running objects: two Kubernetes control planes, a Git server, a hub and two agents
#[derive(clap::Args)]
pub struct Arguments {
    /// Stop, with exit code 0, when everything is healthy and a further commit has arrived
    #[arg(long)]
    once: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    packages::require(&[packages::GIT])?;
    Tools::build()?;
    build_programs()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(show(arguments))
}

fn build_programs() -> Result<()> {
    let logs = repository::target_directory()?.join("xtask/logs");
    std::fs::create_dir_all(&logs)?;
    screen::say("building the page, farwater and farwater-agent");
    page::build_if_stale(&logs.join("demo-build.log"))?;
    let mut cargo = repository::cargo()?;
    // For the whole workspace: a selection of packages has other features, and would build much of it twice.
    cargo.args(["build", "--locked", "--workspace", "--bin", "farwater", "--bin", "farwater-agent"]);
    step::run("cargo build", cargo, &logs.join("demo-build.log"))
}

async fn show(arguments: &Arguments) -> Result<ExitCode> {
    let interactive = !arguments.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let mut screen = Screen::new(interactive);
    let mut scene = Scene::start().await?;

    let first = scene.head()?;
    follow(&scene, &mut screen, "the fleet is healthy", Fleet::is_healthy).await?;
    screen.note(format!("everything is healthy at commit {}", short(&first)));

    if arguments.once {
        return arrive(&mut scene, &mut screen).await.map(|()| ExitCode::SUCCESS);
    }
    if !interactive {
        println!("{}", scene.tree().await?);
        screen::say(&scene.how_to_reach()?);
        screen::say("this is no terminal: going on until interrupted");
        tokio::signal::ctrl_c().await?;
        return Ok(ExitCode::SUCCESS);
    }
    keys::play(&mut scene, &mut screen).await?;
    Ok(ExitCode::SUCCESS)
}

/// A further commit, until it has arrived.
async fn arrive(scene: &mut Scene, screen: &mut Screen) -> Result<()> {
    scene.strict();
    let second = scene.change_greeting("hello again")?;
    screen.note(format!("committed {} (a new greeting in apps/web/settings.yaml)", short(&second)));
    scene.ask_now().await?;
    let arrived = |fleet: &Fleet| fleet.is_healthy() && fleet.web_is_at(&second);
    follow(scene, screen, "the second commit has arrived", arrived).await?;
    scene.check_greeting("hello again").await?;
    screen.note(format!("both clusters run commit {}; read from their own API servers", short(&second)));
    println!("{}", scene.tree().await?);
    Ok(())
}

/// For others: the demo with `--once`, in plain lines, of whatever programs the testkit uses.
pub async fn follow_a_commit() -> Result<()> {
    let mut scene = Scene::start().await?;
    wait_until_healthy(&scene).await?;
    arrive(&mut scene, &mut Screen::quiet()).await
}

/// Shows the fleet until it is as wanted.
async fn follow(scene: &Scene, screen: &mut Screen, what: &str, wanted: impl Fn(&Fleet) -> bool) -> Result<()> {
    let start = std::time::Instant::now();
    loop {
        let fleet = Fleet::load(&scene.client).await?;
        screen.show(scene, &fleet).await;
        if wanted(&fleet) {
            return Ok(());
        }
        if start.elapsed() > HEALTHY {
            let logs = scene.logs();
            let state = fleet.lines().join("\n");
            return Err(anyhow::anyhow!("{state}\n{logs}")).with_context(|| format!("waited {HEALTHY:?} until {what}"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// For others who use the scene: the same wait, in plain lines.
pub async fn wait_until_healthy(scene: &Scene) -> Result<()> {
    follow(scene, &mut Screen::quiet(), "the fleet is healthy", Fleet::is_healthy).await
}

fn short(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}
