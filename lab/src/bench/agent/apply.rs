//! M7: how fast 4,000 objects are created, changed, and found unchanged.
//!
//! All clients use the same API server. The bare client sends what the agent sends, including its labels and
//! annotations, whose cost is also measured. The agent and bare clients take turns, and the medians of their rounds are
//! compared. kubectl and Flux take minutes and run once. The figures also show the API server's processor time: on a
//! machine with two cores, a client's own work takes time from the server.

mod ours;
mod peers;
mod timing;

use std::time::Duration;

use anyhow::{Context as _, Result};
use farwater_testkit::PlaneOptions;

use self::timing::Run;
use super::maps::{PER_FILE, PHASES, Phase};
use crate::bench::{Figure, ground::Ground, median};

/// The shortest poll interval that the hub allows.
const POLL: &str = "1s";
/// Numbers of requests in flight of the bare client. The agent has 64.
const IN_FLIGHT: [usize; 2] = [32, 64];
/// Requests in flight of the bare client that sends objects as in the source.
const UNMARKED: usize = 64;
/// Maximum time of a phase: less than the 290 s after which a watch ends.
const LONGEST: Duration = Duration::from_secs(280);
/// Minimum share of the bare client's rate, including the agent's work before the first object.
const OF_BARE: f64 = 0.85;
const OF_KUBECTL: f64 = 1.0;
const OF_FLUX: f64 = 10.0;
const KUBECTL: &str = "kubectl apply --server-side";
const FLUX: &str = "Flux's kustomize-controller, 20 at a time";
/// Objects for warming up connections, caches and programs.
const WARM_UP: usize = 40;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (count, rounds) = if quick { (200, 1) } else { (4_000, 3) };
    let files = [("README.md".to_owned(), "services\n".to_owned())];
    let mut ground = Ground::start(PlaneOptions::without_nodes(), POLL, &files).await?;
    ours::run(&mut ground, "warm-up", WARM_UP, 1).await?;
    peers::bare(&mut ground.plane, "bare-warm-up", WARM_UP, WARM_UP, true).await?;

    let (mut agent, mut unmarked) = (Vec::new(), Vec::new());
    let mut bare: [Vec<Vec<Run>>; IN_FLIGHT.len()] = Default::default();
    for round in 1..=rounds {
        agent.push(told(
            "the agent",
            ours::run(&mut ground, &format!("agent-{round}"), count, 1).await?,
        ));
        for (in_flight, runs) in IN_FLIGHT.into_iter().zip(&mut bare) {
            let name = format!("bare-{in_flight}-{round}");
            let run = peers::bare(&mut ground.plane, &name, count, in_flight, true).await?;
            runs.push(told(&format!("a bare client, {in_flight} in flight"), run));
        }
        let run = peers::bare(&mut ground.plane, &format!("unmarked-{round}"), count, UNMARKED, false).await?;
        unmarked.push(told("a bare client without labels and annotations", run));
    }
    let kubectl = told("kubectl", peers::kubectl(&mut ground.plane, "kubectl", count).await?);
    let services = count / PER_FILE;
    let small = told(
        "the agent, small services",
        ours::run(&mut ground, "small", count, services).await?,
    );
    let stated = ours::run_while_stated(&mut ground, "stated", count, services).await?;
    eprintln!("the agent, small services, applied while they are created in the hub: {stated}");
    let flux = told("Flux", peers::flux(&mut ground.plane, "flux", count).await?);

    let mut figures = Vec::new();
    for phase in PHASES {
        let workload = format!(
            "{count} ConfigMaps in one service, {phase}; median of {rounds}, each in a fresh namespace; kubectl once"
        );
        let best = best_of(&bare, phase)?;
        figures.extend(in_one_service(
            phase,
            &workload,
            middle(&agent, phase),
            best,
            kubectl[phase as usize],
        ));
        let figure = Figure::new(
            &format!("agent_{phase}_beside_unmarked"),
            &workload,
            rate_of(&agent, phase),
            "objects/s",
        );
        figures.push(figure.compared(
            &format!("the same without label and annotation, {UNMARKED} in flight"),
            rate_of(&unmarked, phase),
        ));
        let workload = format!("{count} ConfigMaps in {services} services, or Kustomizations, of {PER_FILE}, {phase}");
        figures.extend(in_small_services(
            phase,
            &workload,
            small[phase as usize],
            flux[phase as usize],
        ));
    }
    let workload =
        format!("{count} ConfigMaps in {services} services, created while the hub is told of them and decides");
    let figure = Figure::new(
        "small_services_stated_and_created",
        &workload,
        stated.rate.round(),
        "objects/s",
    );
    figures.push(figure.compared(FLUX, flux[Phase::Created as usize].rate.round()));
    Ok(figures)
}

fn rate_of(rounds: &[Vec<Run>], phase: Phase) -> f64 {
    middle(rounds, phase).rate.round()
}

fn told(who: &str, runs: Vec<Run>) -> Vec<Run> {
    for (phase, run) in PHASES.into_iter().zip(&runs) {
        eprintln!("{who}, {phase}: {run}");
    }
    runs
}

/// Medians of several rounds.
fn middle(rounds: &[Vec<Run>], phase: Phase) -> Run {
    let runs = || rounds.iter().map(move |runs| runs[phase as usize]);
    Run {
        rate: median(runs().map(|run| run.rate).collect()),
        sustained: runs().map(|run| run.sustained).collect::<Option<_>>().map(median),
        server: median(runs().map(|run| run.server).collect()),
        own: runs().map(|run| run.own).collect::<Option<_>>().map(median),
    }
}

/// The bare client with its best number of requests in flight.
fn best_of(bare: &[Vec<Vec<Run>>], phase: Phase) -> Result<(usize, Run)> {
    let candidates = IN_FLIGHT
        .into_iter()
        .zip(bare.iter().map(|rounds| middle(rounds, phase)));
    candidates
        .max_by(|(_, one), (_, other)| one.rate.total_cmp(&other.rate))
        .context("no bare client ran")
}

fn in_one_service(
    phase: Phase,
    workload: &str,
    agent: Run,
    (in_flight, bare): (usize, Run),
    kubectl: Run,
) -> Vec<Figure> {
    let peer = format!("bare server-side apply client (kube), {in_flight} in flight: the best of {IN_FLIGHT:?}");
    let figure = |metric: &str, value, unit| Figure::new(&format!("agent_{phase}{metric}"), workload, value, unit);
    let rate = |metric: &str, value: f64| figure(metric, value.round(), "objects/s");
    let time = |metric: &str, value| figure(metric, rounded(value), "ms/object");
    let mut figures = vec![
        rate("", agent.rate).beside(peer.clone(), bare.rate.round(), OF_BARE),
        rate("_beside_kubectl", agent.rate).beside(KUBECTL.to_owned(), kubectl.rate.round(), OF_KUBECTL),
        time("_server_processor_time", agent.server).compared(&peer, rounded(bare.server)),
    ];
    figures.extend(agent.own.map(|own| time("_processor_time", own)));
    if let (Some(value), Some(peer_value)) = (agent.sustained, bare.sustained) {
        figures.push(rate("_first_to_last", value).compared(&peer, peer_value.round()));
    }
    figures
}

fn in_small_services(phase: Phase, workload: &str, agent: Run, flux: Run) -> Vec<Figure> {
    let name = |metric: &str| format!("small_services_{phase}{metric}");
    let figure = |metric: &str, value, unit| Figure::new(&name(metric), workload, value, unit);
    let time = |metric: &str, own, flux| figure(metric, rounded(own), "ms/object").compared(FLUX, rounded(flux));
    let rate = figure("", agent.rate.round(), "objects/s");
    let mut figures = vec![
        rate.beside(FLUX.to_owned(), flux.rate.round(), OF_FLUX),
        time("_server_processor_time", agent.server, flux.server),
    ];
    figures.extend(
        agent
            .own
            .zip(flux.own)
            .map(|(own, peer)| time("_processor_time", own, peer)),
    );
    figures
}

fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1000.0).round() / 1000.0
}
