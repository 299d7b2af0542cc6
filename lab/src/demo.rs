//! `cargo xtask demo`: shows live in the terminal how two real control planes follow a Git repository.

mod keys;
mod picture;
mod progress;
pub mod scene;
mod screen;
pub mod times;

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use farwater_testkit::{Tools, packages};
use xtask::{lab, page, repository, step};

use progress::Fleet;
use scene::Scene;
use screen::Screen;
use times::{Phase, Times};

/// Maximum time until the fleet is healthy. It takes some ten seconds, and longer on a busy machine.
const HEALTHY: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(400);

/// Show a commit become running objects: two Kubernetes control planes, a Git server, a hub and two agents
#[derive(clap::Args)]
pub struct Arguments {
    /// Stop with exit code 0 when everything is healthy and a second commit has arrived
    #[arg(long)]
    once: bool,
    /// Seconds that the build of this program took
    #[arg(long, hide = true, env = lab::BUILD_SECONDS, default_value_t = 0.0)]
    build_seconds: f64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut times = Times::start();
    times.add(
        Phase::Lab,
        Duration::try_from_secs_f64(arguments.build_seconds).unwrap_or_default(),
    );
    packages::require(&[packages::GIT])?;
    Tools::build()?;
    times.end(Phase::Tools);
    build_programs(&mut times)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(show(arguments, times))
}

fn build_programs(times: &mut Times) -> Result<()> {
    let log = repository::log("demo-build")?;
    screen::say("building the page, farwater and farwater-agent");
    page::build_if_stale(&log)?;
    times.end(Phase::Page);
    let mut cargo = repository::cargo()?;
    // Build with the features of the whole workspace. A selection of packages has other features, so cargo would build
    // most dependencies twice.
    cargo.args([
        "build",
        "--locked",
        "--workspace",
        "--bin",
        "farwater",
        "--bin",
        "farwater-agent",
    ]);
    step::run("cargo build", cargo, &log)?;
    times.end(Phase::Programs);
    Ok(())
}

async fn show(arguments: &Arguments, mut times: Times) -> Result<ExitCode> {
    let interactive = !arguments.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let mut screen = Screen::new(interactive);
    let mut scene = Scene::start(&[], &mut times).await?;

    let first = scene.head()?;
    follow(&scene, &mut screen, "the fleet is healthy", Fleet::is_healthy).await?;
    times.end(Phase::Healthy);
    screen.note(format!("everything is healthy at commit {}", short(&first)));

    if interactive {
        keys::play(&mut scene, &mut screen).await?;
        println!("\n{times}");
        return Ok(ExitCode::SUCCESS);
    }
    screen::say(&scene.how_to_reach()?);
    if arguments.once {
        arrive(&mut scene, &mut screen).await?;
        times.end(Phase::Commit);
        println!("\n{times}");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}\n{times}", scene.tree().await?);
    screen::say("no interactive terminal: the demo runs until you interrupt it");
    tokio::signal::ctrl_c().await?;
    Ok(ExitCode::SUCCESS)
}

/// Pushes a second commit and waits until it has arrived.
async fn arrive(scene: &mut Scene, screen: &mut Screen) -> Result<()> {
    scene.strict();
    let second = scene.change_greeting("hello again")?;
    screen.note(format!(
        "committed {} (a new greeting in apps/web/settings.yaml)",
        short(&second)
    ));
    scene.ask_now().await?;
    let arrived = |fleet: &Fleet| fleet.is_healthy() && fleet.web_is_at(&second);
    follow(scene, screen, "the second commit has arrived", arrived).await?;
    scene.check_greeting("hello again").await?;
    screen.note(format!(
        "both clusters run commit {}, as their own API servers confirm",
        short(&second)
    ));
    println!("{}", scene.tree().await?);
    Ok(())
}

/// Runs the demo with `--once` in plain lines, for campaigns. Uses the programs that the testkit is set to.
pub async fn follow_a_commit() -> Result<()> {
    let mut scene = Scene::start(&[], &mut Times::start()).await?;
    wait_until_healthy(&scene).await?;
    arrive(&mut scene, &mut Screen::quiet()).await
}

/// Shows the fleet until `wanted` holds.
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

/// Waits until the fleet is healthy, without output. For other users of the scene.
pub async fn wait_until_healthy(scene: &Scene) -> Result<()> {
    follow(scene, &mut Screen::quiet(), "the fleet is healthy", Fleet::is_healthy).await
}

fn short(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}
