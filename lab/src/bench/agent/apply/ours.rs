//! The agent as shipped. The time starts when the agent has accepted the desired state. It includes all of its work:
//! reading the bundle, looking up existing objects, the plan, the inventory before the first object, and the namespace.
//!
//! The hub has made its decisions before the measurement, even for many new services, as Flux's kustomize-controller
//! gets a finished artifact. A further figure includes the hub's decisions about new services.

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

/// Number of concurrent requests to the hub.
const IN_FLIGHT: usize = 32;
/// Time in which the hub's decisions get into a signed state.
const PUBLISHED: Duration = Duration::from_secs(2);

/// Measures each phase of so many objects in so many services, all in the namespace `name`.
pub async fn run(ground: &mut Ground, name: &str, count: usize, services: usize) -> Result<Vec<Run>> {
    run_phases(ground, name, (count, services), &PHASES, services > 1).await
}

/// Measures the creation of the same objects while the services are created in the hub, one after the other.
pub async fn run_while_stated(ground: &mut Ground, name: &str, count: usize, services: usize) -> Result<Run> {
    let runs = run_phases(ground, name, (count, services), &[Phase::Created], false).await?;
    runs.first().copied().context("no phase was measured")
}

/// `is_away`: the agent starts after the hub has decided on all new services.
async fn run_phases(
    ground: &mut Ground,
    name: &str,
    (count, services): (usize, usize),
    phases: &[Phase],
    is_away: bool,
) -> Result<Vec<Run>> {
    let (names, paths): (Vec<String>, Vec<String>) = match services {
        1 => (vec![name.to_owned()], vec![name.to_owned()]),
        _ => (0..services)
            .map(|n| (format!("{name}-{n:04}"), maps::folder(name, n)))
            .unzip(),
    };
    let mut runs = Vec::new();
    for phase in phases.iter().copied() {
        let files = maps::files(name, count, phase);
        let seen = match phase {
            Phase::Unchanged => None,
            _ => Some(tokio::spawn(
                maps::watch(ground.plane.client().await?, name, count).await?,
            )),
        };
        // Push the files of a new service before the service is created.
        let prepared = if phase == Phase::Created {
            Some(ground.commit(&files).await?)
        } else {
            None
        };
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
            Some(seen) => Some(
                tokio::time::timeout(LONGEST, seen)
                    .await
                    .with_context(|| ground.agent().log_tail())???,
            ),
            None => None,
        };
        if seen.is_none() {
            ground.applied(&names, &commit).await?;
        }
        let until = seen.as_ref().map_or_else(Timestamp::now, |seen| seen.first);
        let log = ground.agent().process().output();
        // Many services arrive in several desired states. The time starts with the first one.
        let mut accepted = accepted(&log, asked, until);
        let began = if services == 1 {
            accepted.last()
        } else {
            accepted.next()
        };
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

/// Times between these two at which the agent accepted desired states, from its log.
fn accepted(log: &str, asked: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> {
    log.lines()
        .filter(|line| line.contains(" accepted epoch="))
        .filter_map(move |line| {
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
        assert_eq!(
            between("2026-01-01T00:00:03Z", "2026-01-01T00:00:04Z"),
            [at("2026-01-01T00:00:03.5Z")]
        );
        assert_eq!(between("2026-01-01T00:00:01Z", "2026-01-01T00:00:04Z").len(), 2);
        assert!(between("2026-01-01T00:00:06Z", "2026-01-01T00:00:07Z").is_empty());
    }
}
