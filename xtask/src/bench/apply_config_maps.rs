//! How fast the agent applies 1,000 new ConfigMaps, beside a client that does nothing but send them.
//!
//! Both are timed to the moment when a watch has seen the last one. The agent's clock starts when it has accepted the
//! desired state that asks for them, so everything is in it: reading the bundle, looking up what is there, the plan,
//! the inventory that is written before the first object, and the namespace. The bare client's starts at its first
//! request, into a namespace that is there; it is tried with several numbers of requests in flight, and its best is the
//! peer. A second figure leaves the preparation out: from the first object that was seen to the last.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use farwater_testkit::{Plane, PlaneOptions};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
};

use super::{Figure, config_map, ground::Ground, median};

const COUNT: usize = 1000;
/// The hub's shortest.
const POLL: &str = "1s";
/// Of the bare client. The agent has 64 in flight.
const IN_FLIGHT: [usize; 3] = [8, 32, 64];
const LONGEST: Duration = Duration::from_secs(180);
/// Shares of the bare client's speed, with what the agent does before its first object and without.
const GOAL: f64 = 0.6;
const SUSTAINED_GOAL: f64 = 0.85;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let rounds = if quick { 1 } else { 5 };
    let count = COUNT;
    let files: Vec<_> = (0..count).map(|n| (format!("apps/maps/{n}.yaml"), config_map(n))).collect();
    let mut ground = Ground::start(PlaneOptions::without_nodes(), POLL, &files).await?;
    let mut agent = Vec::new();
    let mut bare: [Vec<Speed>; IN_FLIGHT.len()] = Default::default();
    // The first round warms up: connections, caches of the API server, and the bundle.
    for round in 0..=rounds {
        let speed = agent_round(&mut ground, round, count).await?;
        if round > 0 {
            agent.push(speed);
        }
        eprintln!("round {round} of {rounds}: the agent {speed}");
        for (in_flight, speeds) in IN_FLIGHT.into_iter().zip(&mut bare) {
            let speed = bare_round(&ground.plane, &format!("bare-{in_flight}-{round}"), count, in_flight).await?;
            if round > 0 {
                speeds.push(speed);
            }
            eprintln!("round {round} of {rounds}: {in_flight} in flight {speed}");
        }
    }
    let workload =
        format!("{count} new ConfigMaps in one service, median of {rounds} rounds, each in a fresh namespace");
    let figure = |metric, of: fn(&Speed) -> f64, goal| {
        let medians = bare.iter().map(|speeds| median(speeds.iter().map(of).collect()));
        let (in_flight, best) = IN_FLIGHT
            .into_iter()
            .zip(medians)
            .max_by(|(_, one), (_, other)| one.total_cmp(other))
            .context("no bare client ran")?;
        let peer = format!("bare server-side apply client (kube), {in_flight} in flight: the best of {IN_FLIGHT:?}");
        let value = median(agent.iter().map(of).collect()).round();
        anyhow::Ok(Figure::new(metric, &workload, value, "objects/s").beside(peer, best.round(), goal))
    };
    Ok(vec![
        figure("agent_apply", |speed| speed.whole, GOAL)?,
        figure("agent_apply_first_to_last", |speed| speed.sustained, SUSTAINED_GOAL)?,
    ])
}

/// Objects per second.
#[derive(Clone, Copy)]
struct Speed {
    /// From the beginning.
    whole: f64,
    /// From the first object that was seen.
    sustained: f64,
}

impl Speed {
    fn new(count: usize, began: Timestamp, seen: &Seen) -> Result<Self> {
        let since = |start: Timestamp| Duration::try_from(seen.last.duration_since(start)).map(|d| d.as_secs_f64());
        Ok(Self { whole: count as f64 / since(began)?, sustained: (count - 1) as f64 / since(seen.first)? })
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} objects/s, from first to last {:.0}", self.whole, self.sustained)
    }
}

/// A service of its own for each round: every object is new.
async fn agent_round(ground: &mut Ground, round: usize, count: usize) -> Result<Speed> {
    let namespace = format!("agent-{round}");
    let seen = watch_all(ground.plane.client().await?, &namespace, count).await?;
    let asked = Timestamp::now();
    ground.deploy(&namespace, "apps/maps").await?;
    let seen = tokio::time::timeout(LONGEST, seen).await.with_context(|| ground.agent().log_tail())??;
    ground.healthy(&namespace).await?;
    let began = accepted_between(&ground.agent().process().output(), asked, seen.first)?;
    Speed::new(count, began, &seen)
}

async fn bare_round(plane: &Plane, namespace: &str, count: usize, in_flight: usize) -> Result<Speed> {
    let namespace = plane.namespace(namespace).await?;
    let seen = tokio::spawn(watch_all(plane.client().await?, &namespace, count).await?);
    let maps = (0..count).map(|n| serde_saphyr::from_str(&config_map(n)).map(Patch::Apply));
    let maps = maps.collect::<Result<Vec<Patch<ConfigMap>>, _>>()?;
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    let parameters = PatchParams::apply("bare-client").force();
    let (began, start) = (Timestamp::now(), Instant::now());
    let sends = maps.iter().enumerate().map(|(n, map)| {
        let (api, parameters) = (&api, &parameters);
        async move { api.patch(&format!("map-{n}"), parameters, map).await }
    });
    let mut answers = stream::iter(sends).buffer_unordered(in_flight);
    while answers.try_next().await?.is_some() {}
    let seen = tokio::time::timeout(LONGEST.saturating_sub(start.elapsed()), seen).await???;
    Speed::new(count, began, &seen)
}

struct Seen {
    first: Timestamp,
    last: Timestamp,
}

/// Ends when `count` of our ConfigMaps are in the namespace; the watch stands when this returns.
async fn watch_all(
    client: Client,
    namespace: &str,
    count: usize,
) -> Result<impl Future<Output = Result<Seen>> + Send + use<>> {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let version = api.list_metadata(&Default::default()).await?.metadata.resource_version.unwrap_or_default();
    let mut events = api.watch_metadata(&WatchParams::default(), &version).await?.boxed();
    Ok(async move {
        let mut first = None;
        let mut seen = 0;
        while let Some(event) = events.try_next().await? {
            if matches!(&event, WatchEvent::Added(object) if is_ours(object)) {
                let now = Timestamp::now();
                seen += 1;
                let first = *first.get_or_insert(now);
                if seen == count {
                    return Ok(Seen { first, last: now });
                }
            }
        }
        bail!("the watch ended after {seen} of {count} ConfigMaps")
    })
}

/// The control plane puts a ConfigMap of its own into every namespace.
fn is_ours(object: &PartialObjectMeta<ConfigMap>) -> bool {
    object.metadata.name.as_deref().is_some_and(|name| name.starts_with("map-"))
}

/// When the agent accepted the desired state from which the first object came: the last time in its log between the
/// two others.
fn accepted_between(log: &str, asked: Timestamp, first_seen: Timestamp) -> Result<Timestamp> {
    let mut accepted = log.lines().filter(|line| line.contains(" accepted epoch=")).filter_map(|line| {
        let time: Timestamp = line.split_whitespace().next()?.parse().ok()?;
        (asked < time && time < first_seen).then_some(time)
    });
    accepted.next_back().context("the agent's log does not say when it accepted the service")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_timed_from_what_it_accepted_last_before_its_first_object() {
        let log = "2026-01-01T00:00:01.5Z  INFO farwater_agent::poll: accepted epoch=1 generation=1 services=1\n\
                   2026-01-01T00:00:03.5Z  INFO farwater_agent::poll: accepted epoch=1 generation=2 services=2\n\
                   2026-01-01T00:00:05Z  INFO farwater_agent::service::apply: applied service=a/b\n\
                   2026-01-01T00:00:09.5Z  INFO farwater_agent::poll: accepted epoch=1 generation=3 services=2\n";
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let accepted = accepted_between(log, at("2026-01-01T00:00:03Z"), at("2026-01-01T00:00:04Z")).unwrap();
        assert_eq!(accepted, at("2026-01-01T00:00:03.5Z"));
        assert!(accepted_between(log, at("2026-01-01T00:00:06Z"), at("2026-01-01T00:00:07Z")).is_err());
    }
}
