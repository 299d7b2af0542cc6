//! The agent, as it is shipped. Its clock starts when it has accepted the desired state that asks for the objects, so that
//! everything is in it: reading the bundle, looking up what is there, the plan, the inventory that is written before the
//! first object, and the namespace.
//!
//! Of many new services the hub has decided before, as it has of one and as somebody has made the artifact for Flux's
//! kustomize-controller. How fast it goes while the hub is told of them and decides is measured beside it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;

use super::{
    LONGEST,
    timing::{Meter, Run, Span},
};
use crate::bench::{
    agent::maps::{self, PHASES, Phase},
    ground::Ground,
};

/// Of requests to the hub.
const IN_FLIGHT: usize = 32;
/// What was decided is in a signed state by then.
const PUBLISHED: Duration = Duration::from_secs(2);

/// Has so many objects applied by so many services, all in the namespace `name`, phase by phase.
pub async fn run(ground: &mut Ground, name: &str, count: usize, services: usize) -> Result<Vec<Run>> {
    run_phases(ground, name, (count, services), &PHASES, services > 1).await
}

/// The same objects created while the hub is told of the services, one after the other.
pub async fn run_while_stated(ground: &mut Ground, name: &str, count: usize, services: usize) -> Result<Run> {
    let runs = run_phases(ground, name, (count, services), &[Phase::Created], false).await?;
    runs.first().copied().context("one phase was measured")
}

/// `is_away`: the agent comes when the hub has decided of all new services.
async fn run_phases(
    ground: &mut Ground,
    name: &str,
    (count, services): (usize, usize),
    phases: &[Phase],
    is_away: bool,
) -> Result<Vec<Run>> {
    let (names, paths): (Vec<String>, Vec<String>) = match services {
        1 => (vec![name.to_owned()], vec![name.to_owned()]),
        _ => (0..services).map(|n| (format!("{name}-{n:04}"), maps::folder(name, n))).unzip(),
    };
    let mut runs = Vec::new();
    for phase in phases.iter().copied() {
        let files = maps::files(name, count, phase);
        let seen = match phase {
            Phase::Unchanged => None,
            _ => Some(tokio::spawn(maps::watch(ground.plane.client().await?, name, count).await?)),
        };
        // What a new service is about is there before it is stated.
        let prepared = if phase == Phase::Created { Some(ground.commit(&files).await?) } else { None };
        let mut asked = Timestamp::now();
        if let Some(commit) = prepared.as_ref().filter(|_| is_away) {
            ground.agent().stop()?;
            deploy(ground, &names, &paths, name).await?;
            ground.assigned(&names, commit).await?;
            tokio::time::sleep(PUBLISHED).await;
            asked = Timestamp::now();
            ground.agent().restart()?;
        }
        let process = ground.agent().process().id();
        let meter = Meter::start(&mut ground.plane, Some(process))?;
        let commit = match prepared {
            Some(commit) if is_away => commit,
            Some(commit) => {
                deploy(ground, &names, &paths, name).await?;
                commit
            }
            None => ground.commit(&files).await?,
        };
        let seen = match seen {
            Some(seen) => Some(tokio::time::timeout(LONGEST, seen).await.with_context(|| ground.agent().log_tail())???),
            None => None,
        };
        if seen.is_none() {
            ground.applied(&names, &commit).await?;
        }
        let until = seen.as_ref().map_or_else(Timestamp::now, |seen| seen.first);
        let log = ground.agent().process().output();
        // Many services come with several desired states, and the first of them counts.
        let mut accepted = accepted(&log, asked, until);
        let began = if services == 1 { accepted.last() } else { accepted.next() };
        let began = began.context("the agent's log does not say when it accepted the objects")?;
        let span = seen.map_or(Span::until(began, until), |seen| Span::seen(began, &seen));
        runs.push(meter.stop(&mut ground.plane, count, &span)?);
        ground.applied(&names, &commit).await?;
    }
    Ok(runs)
}

async fn deploy(ground: &Ground, names: &[String], paths: &[String], namespace: &str) -> Result<()> {
    stream::iter(names.iter().zip(paths))
        .map(|(name, path)| ground.deploy_into(name, path, namespace))
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await
}

/// When the agent accepted desired states between these two times, by its log.
fn accepted(log: &str, asked: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> {
    log.lines().filter(|line| line.contains(" accepted epoch=")).filter_map(move |line| {
        let time: Timestamp = line.split_whitespace().next()?.parse().ok()?;
        (asked < time && time < until).then_some(time)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_timed_from_what_it_accepted_before_its_first_object() {
        let log = "2026-01-01T00:00:01.5Z  INFO farwater_agent::poll: accepted epoch=1 generation=1 services=1\n\
                   2026-01-01T00:00:03.5Z  INFO farwater_agent::poll: accepted epoch=1 generation=2 services=2\n\
                   2026-01-01T00:00:05Z  INFO farwater_agent::service::apply: applied service=a/b\n\
                   2026-01-01T00:00:09.5Z  INFO farwater_agent::poll: accepted epoch=1 generation=3 services=2\n";
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let between = |asked: &str, until: &str| accepted(log, at(asked), at(until)).collect::<Vec<_>>();
        assert_eq!(between("2026-01-01T00:00:03Z", "2026-01-01T00:00:04Z"), [at("2026-01-01T00:00:03.5Z")]);
        assert_eq!(between("2026-01-01T00:00:01Z", "2026-01-01T00:00:04Z").len(), 2);
        assert!(between("2026-01-01T00:00:06Z", "2026-01-01T00:00:07Z").is_empty());
    }
}
