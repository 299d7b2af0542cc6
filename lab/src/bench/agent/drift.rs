//! M8: cost of drift correction for a cluster, and how soon a change by others is undone.
//!
//! There are three planes with the same objects: one with the agent, one with Flux, and one without either. The API
//! server of the last one shows the base cost, and the difference is the cost of agent and Flux. On each plane one
//! object is changed every minute and watched. Each API server writes an audit log.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::ready,
    pin::pin,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use farwater_e2e::flux::Flux;
use farwater_testkit::{
    Plane, PlaneOptions,
    kube::{
        AUDITED,
        audit::{Object, Request},
    },
};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::maps::{self, Phase};
use crate::bench::{Figure, ground::Ground, milliseconds, percentile, usage};

/// Name of the namespace, service, folder and Kustomization.
const NAME: &str = "settings";
/// Default poll interval of a cluster.
const POLL: &str = "30s";
/// Limit in milliseconds, from the issue.
const HEALED: f64 = 2_000.0;
/// Maximum share of Flux's cost.
const OF_FLUX: f64 = 0.05;
const FLUX: &str = "Flux's kustomize-controller";
const COMMIT: &str = "1111111111111111111111111111111111111111";
/// Maximum time for thousands of objects on two busy cores.
const APPLIED: Duration = Duration::from_secs(180);
/// Value that a change by hand writes.
const TAMPERED: &str = "tampered";

#[derive(Clone, Copy)]
struct Terms {
    objects: usize,
    /// Time after the first apply in which its follow-up work ends.
    settle: Duration,
    rest: Duration,
    /// Time between two changes.
    each: Duration,
}

impl Terms {
    /// Flux's interval, so that it reconciles twice. It has no default. Its documentation uses 5 and 10 minutes.
    fn interval(&self) -> u64 {
        self.rest.as_secs() / 2
    }

    fn describe(&self) -> String {
        format!(
            "{} ConfigMaps at rest for {} s, one changed by others every {} s; Flux with one Kustomization every {} s",
            self.objects,
            self.rest.as_secs(),
            self.each.as_secs(),
            self.interval()
        )
    }
}

/// Fields are dropped in this order, so that clients end before their servers.
struct Peer {
    flux: Flux,
    plane: Plane,
    namespace: String,
}

/// The plane without agent or Flux.
struct Idle {
    plane: Plane,
    namespace: String,
}

/// Processor time that each client and server took.
struct Taken {
    agent: Duration,
    flux: Duration,
    /// Processor time of the API servers with their databases: the agent's, Flux's, and the one without either.
    servers: [Duration; 3],
}

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let seconds = Duration::from_secs;
    let terms = if quick {
        Terms {
            objects: 200,
            settle: seconds(3),
            rest: seconds(20),
            each: seconds(5),
        }
    } else {
        Terms {
            objects: 1_000,
            settle: seconds(10),
            rest: seconds(600),
            each: seconds(60),
        }
    };
    let (mut ours, mut peer, mut idle) = tokio::try_join!(start_ours(terms), start_flux(terms), start_idle(terms))?;
    sleep(terms.settle).await;

    let since = Timestamp::now();
    let before = taken(&mut ours, &mut peer, &mut idle)?;
    let (end, tampered, healing) = tamper_all(terms, &ours, &peer, &idle).await?;
    sleep_until(end).await;
    let after = taken(&mut ours, &mut peer, &mut idle)?;
    let mut healed = [Vec::new(), Vec::new(), Vec::new()];
    for (times, tasks) in healed.iter_mut().zip(healing) {
        for task in tasks {
            times.push(task.await??);
        }
    }
    let asked = [ours.plane.requests(since)?, peer.plane.requests(since)?];
    let workload = terms.describe();
    let mut figures = times(&workload, &mut healed);
    figures.extend(requests(&workload, &asked, &tampered));
    figures.extend(processor_time(&workload, &before, &after, terms.rest));
    Ok(figures)
}

async fn start_ours(terms: Terms) -> Result<Ground> {
    let files = maps::files(NAME, terms.objects, Phase::Created);
    let ground = Ground::start(PlaneOptions::without_nodes().audited(), POLL, &files).await?;
    ground.deploy(NAME, NAME).await?;
    ground.healthy(&[NAME.to_owned()]).await?;
    eprintln!("the agent has applied {} objects", terms.objects);
    Ok(ground)
}

async fn start_flux(terms: Terms) -> Result<Peer> {
    let plane = Plane::start_with(PlaneOptions::without_nodes().audited()).await?;
    let (client, namespace) = (plane.client().await?, plane.namespace(NAME).await?);
    let flux = Flux::start(&client, &plane.kubeconfig_of(AUDITED)?, "flux-system", &[]).await?;
    let files = maps::files(NAME, terms.objects, Phase::Created);
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.clone())).collect();
    flux.publish(COMMIT, &files).await?;
    let kustomization = json!({
        "interval": format!("{}s", terms.interval()), "retryInterval": "5s", "timeout": "4m", "prune": true,
        "wait": false, "path": format!("./{NAME}"), "targetNamespace": namespace,
    });
    flux.add(NAME, kustomization).await?;
    flux.until_applied(COMMIT, APPLIED).await?;
    eprintln!("Flux has applied {} objects", terms.objects);
    Ok(Peer { flux, plane, namespace })
}

async fn start_idle(terms: Terms) -> Result<Idle> {
    let plane = Plane::start_with(PlaneOptions::without_nodes().audited()).await?;
    let namespace = plane.namespace(NAME).await?;
    let objects = maps::objects(terms.objects, Phase::Created)?;
    maps::apply(plane.client().await?, &namespace, &objects, 8).await?;
    Ok(Idle { plane, namespace })
}

fn taken(ours: &mut Ground, peer: &mut Peer, idle: &mut Idle) -> Result<Taken> {
    Ok(Taken {
        agent: usage::processor_time(ours.agent().process().id())?,
        flux: usage::processor_time(peer.flux.process().id())?,
        servers: [
            usage::server_time(&mut ours.plane)?,
            usage::server_time(&mut peer.plane)?,
            usage::server_time(&mut idle.plane)?,
        ],
    })
}

/// Time until each change was undone: by the agent, by Flux, and on the plane without either.
type Healing = [Vec<JoinHandle<Result<Duration>>>; 3];

/// Changes one object after the other on each plane. Returns when the measurement ends, and the changed objects.
async fn tamper_all(
    terms: Terms,
    ours: &Ground,
    peer: &Peer,
    idle: &Idle,
) -> Result<(Instant, BTreeSet<String>, Healing)> {
    let (start, mut healing, mut tampered) = (Instant::now(), Healing::default(), BTreeSet::new());
    let end = start + terms.rest;
    let ours: Api<ConfigMap> = Api::namespaced(ours.plane.client().await?, NAME);
    let theirs: Api<ConfigMap> = Api::namespaced(peer.plane.client().await?, &peer.namespace);
    let nobodys: Api<ConfigMap> = Api::namespaced(idle.plane.client().await?, &idle.namespace);
    let count = terms.rest.as_secs() / terms.each.as_secs();
    let mut at = start + terms.each / 2;
    for n in 1..=count {
        sleep_until(at).await;
        at += terms.each;
        let name = format!("map-{n}");
        // On all three planes, so that the requests of the measurement are the same.
        for (healing, maps) in healing.iter_mut().zip([&ours, &theirs, &nobodys]) {
            healing.push(tokio::spawn(tamper(maps.clone(), name.clone(), end)));
        }
        tampered.insert(name);
        eprintln!("{n} of {count} objects changed");
    }
    Ok((end, tampered, healing))
}

/// Changes an object as a person would, and returns how long the change lasted: at most until the end.
async fn tamper(maps: Api<ConfigMap>, name: String, end: Instant) -> Result<Duration> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let versions = watcher(maps.clone(), config).default_backoff().applied_objects();
    let mut versions = versions.filter_map(|version| ready(version.ok())).boxed();
    versions
        .next()
        .await
        .with_context(|| format!("{name} does not exist"))?;
    let begun = Instant::now();
    let somebody = PatchParams {
        field_manager: Some("somebody".to_owned()),
        ..PatchParams::default()
    };
    let patch = json!({"data": {"LEVEL": TAMPERED}});
    maps.patch(&name, &somebody, &Patch::Merge(patch))
        .await
        .with_context(|| format!("change {name}"))?;
    let is_changed = |map: &ConfigMap| {
        map.data
            .as_ref()
            .and_then(|data| data.get("LEVEL"))
            .is_some_and(|l| l == TAMPERED)
    };
    let changed = versions.skip_while(|map| ready(!is_changed(map)));
    let mut undone = pin!(changed.skip_while(|map| ready(is_changed(map))));
    match timeout_at(end, undone.next()).await {
        Ok(None) => bail!("the watch of {name} ended"),
        Ok(Some(_)) | Err(_) => Ok(begun.elapsed()),
    }
}

fn times(workload: &str, [ours, theirs, _]: &mut [Vec<Duration>; 3]) -> Vec<Figure> {
    let figure = |metric: &str, value| Figure::new(metric, workload, milliseconds(value), "ms");
    vec![
        figure("drift_healed_p50", percentile(ours, 0.5)).compared(FLUX, milliseconds(percentile(theirs, 0.5))),
        figure("drift_healed_p99", percentile(ours, 0.99)).at_most(HEALED),
    ]
}

/// Requests of agent and Flux by verb and kind, and the agent's requests that were not for a changed object.
fn requests(workload: &str, asked: &[Vec<Request>; 2], tampered: &BTreeSet<String>) -> Vec<Figure> {
    let figure = |metric: &str, value: usize| Figure::new(metric, workload, value as f64, "requests");
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for (side, requests) in asked.iter().enumerate() {
        for request in requests {
            counts.entry(name_of(request)).or_default()[side] += 1;
        }
    }
    let mut figures = Vec::new();
    for (name, [ours, theirs]) in counts {
        figures.push(figure(&format!("requests_{name}"), ours).compared(FLUX, theirs as f64));
    }
    let is_asked = |object: &Object| object.resource == "leases" || tampered.contains(&object.name);
    let unasked: Vec<&Request> = asked[0].iter().filter(|request| !is_asked(&request.object)).collect();
    for request in &unasked {
        eprintln!("not for a changed object: {} {}", request.verb, request.uri);
    }
    figures.push(figure("requests", asked[0].len()).at_most_of(FLUX, asked[1].len() as f64, OF_FLUX));
    figures.push(figure("requests_for_nothing_that_changed_but_the_lease", unasked.len()).at_most(0.0));
    figures
}

/// Name of a request: `patch_configmaps`, `patch_kustomizations_status`, or `get_paths` for a non-resource path.
fn name_of(request: &Request) -> String {
    let object = &request.object;
    let kind = if object.resource.is_empty() {
        "paths"
    } else {
        &object.resource
    };
    let of = if object.subresource.is_empty() { "" } else { "_" };
    format!("{}_{kind}{of}{}", request.verb, object.subresource)
}

fn processor_time(workload: &str, before: &Taken, after: &Taken, rest: Duration) -> Vec<Figure> {
    let figure = |metric: &str, value| Figure::new(metric, workload, value, "mCPU");
    let of = |before: Duration, after: Duration| usage::millicores(after.saturating_sub(before), rest);
    let server = |side: usize| of(before.servers[side], after.servers[side]);
    let (ours, theirs, idle) = (server(0), server(1), server(2));
    let added = |value: f64| ((value - idle) * 100.0).round() / 100.0;
    vec![
        figure("server_processor", ours).compared(FLUX, theirs),
        figure("server_processor_of_a_plane_that_nobody_looks_after", idle),
        figure("server_processor_added", added(ours)).at_most_of(FLUX, added(theirs), OF_FLUX),
        figure("agent_processor", of(before.agent, after.agent)).compared(FLUX, of(before.flux, after.flux)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(verb: &str, resource: &str, subresource: &str, name: &str) -> Request {
        let object = Object {
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: NAME.to_owned(),
            name: name.to_owned(),
        };
        Request {
            at: Timestamp::UNIX_EPOCH,
            verb: verb.to_owned(),
            uri: "/".to_owned(),
            object,
        }
    }

    #[test]
    fn requests_are_for_what_was_changed_for_the_lease_or_for_nothing() {
        let ours = vec![
            request("patch", "leases", "", "farwater-agent"),
            request("patch", "configmaps", "", "map-1"),
            request("get", "configmaps", "", "map-2"),
        ];
        let theirs = vec![request("patch", "kustomizations", "status", NAME); 100];
        let figures = requests("w", &[ours, theirs], &BTreeSet::from(["map-1".to_owned()]));
        let told: Vec<_> = figures
            .iter()
            .map(|figure| (figure.metric.as_str(), figure.value, figure.holds))
            .collect();
        let expected = [
            ("requests_get_configmaps", 1.0, None),
            ("requests_patch_configmaps", 1.0, None),
            ("requests_patch_kustomizations_status", 0.0, None),
            ("requests_patch_leases", 1.0, None),
            ("requests", 3.0, Some(true)),
            ("requests_for_nothing_that_changed_but_the_lease", 1.0, Some(false)),
        ];
        assert_eq!(told, expected);
    }
}
