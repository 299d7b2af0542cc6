//! Cost of a changed parameter for the hub. 10,000 services share one context, and different numbers of them use each
//! key.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use farwater_api::{ADMIN_NAMESPACE, Cluster, GitRepository, ServiceContext, ServiceDeployment};
use farwater_testkit::{Hub, git::GitServer};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Figure, milliseconds, usage};

/// Services per cluster, as in large fleets. The users of a key are spread over all clusters, the most expensive case.
const OF_CLUSTER: usize = 20;
const WRITERS: usize = 64;
/// Maximum time until all services are assigned and resolved for the first time.
const FILLED: Duration = Duration::from_secs(900);
const SETTLED: Duration = Duration::from_secs(120);
/// Time without changes of the counters after which the hub counts as idle.
const QUIET: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;
/// Limit in milliseconds for a change that affects no service. It is one write, however many services share the
/// context.
const OF_NOBODY: f64 = 50.0;
/// Maximum ratio that shows that the cost grows with the users of the key, and not with their square.
const SHARE: f64 = 2.0;

const FILES: &[(&str, &str)] = &[("app/a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")];

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let services = if quick { 1_000 } else { 10_000 };
    let handed: Vec<usize> = [0, 1, 10, 100, 1_000, 10_000]
        .into_iter()
        .filter(|count| *count <= services)
        .collect();
    let dir = tempfile::tempdir()?;
    let mut hub = Hub::start(dir.path()).await?;
    let client = hub.client().await?;
    let git = GitServer::start().await?;
    git.create("infra")?.commit("main", FILES)?;
    eprintln!("creating {services} services");
    fill(&client, &git.url("infra"), services, &handed).await?;
    until(&client, "all services to be resolved", FILLED, |counted| {
        counted.resolved >= services as u64
    })
    .await?;
    settle(&client).await?;

    let process = hub.process().id();
    let workload = format!(
        "{services} services on {} clusters share one context of {} keys",
        clusters(services),
        handed.len()
    );
    let mut figures = Vec::new();
    let mut each = Vec::new();
    for count in &handed {
        let (mut busy, mut took) = (Duration::ZERO, Duration::ZERO);
        for round in 0..ROUNDS {
            let (before, begun) = (usage::processor_time(process)?, Instant::now());
            let counted = settle(&client).await?;
            let idle =
                (usage::processor_time(process)?.saturating_sub(before)).as_secs_f64() / begun.elapsed().as_secs_f64();
            let (before, begun) = (usage::processor_time(process)?, Instant::now());
            change(&client, *count, round).await?;
            let wanted = counted.resolved + *count as u64;
            until(&client, "the change to arrive", SETTLED, |now| now.resolved >= wanted).await?;
            took += begun.elapsed();
            let after = settle(&client).await?;
            ensure!(
                after.resolved == wanted,
                "{} services were resolved for a key that {count} use",
                after.resolved - counted.resolved
            );
            let rest = Duration::from_secs_f64(idle * begun.elapsed().as_secs_f64());
            busy += usage::processor_time(process)?
                .saturating_sub(before)
                .saturating_sub(rest);
        }
        let rounds = u32::try_from(ROUNDS)?;
        let (busy, took) = (busy / rounds, took / rounds);
        eprintln!("a key of {count} services: {busy:?} of processor time, {took:?} until all are resolved");
        let workload = format!("{workload}; the changed key is handed to {count}");
        let figure = Figure::new("processor_time_per_change", &workload, milliseconds(busy), "ms");
        figures.push(if *count == 0 { figure.at_most(OF_NOBODY) } else { figure });
        figures.push(Figure::new("resolved_after", &workload, milliseconds(took), "ms"));
        each.push((*count, busy));
    }
    // An unused key costs only its write. With ten times as many users, the cost per user must not grow.
    if let [(_, none), .., (fewer, some), (most, all)] = each.as_slice() {
        let of_one = |count: usize, busy: &Duration| {
            let of_all = busy.saturating_sub(*none).as_secs_f64();
            (of_all / count.max(1) as f64 * 100_000_000.0).round() / 100.0
        };
        let figure = Figure::new(
            "processor_time_per_service_that_is_handed_it",
            &workload,
            of_one(*most, all),
            "us",
        );
        figures.push(figure.at_most_of(&format!("of {fewer} services"), of_one(*fewer, some), SHARE));
    }
    Ok(figures)
}

fn clusters(services: usize) -> usize {
    services.div_ceil(OF_CLUSTER)
}

fn key(count: usize) -> String {
    format!("of{count}")
}

async fn fill(client: &Client, url: &str, services: usize, handed: &[usize]) -> Result<()> {
    let repository = GitRepository::new("infra", serde_json::from_value(json!({"url": url}))?);
    create(client, repository).await?;
    let configuration: serde_json::Map<String, Value> =
        handed.iter().map(|count| (key(*count), json!("as it was"))).collect();
    let context = ServiceContext::new(
        "shared",
        serde_json::from_value(json!({"configuration": configuration}))?,
    );
    create(client, context).await?;
    let all: Vec<Cluster> = (0..clusters(services))
        .map(|n| {
            Ok(Cluster::new(
                &format!("cluster-{n:04}"),
                serde_json::from_value(json!({}))?,
            ))
        })
        .collect::<Result<_>>()?;
    create_all(client, all).await?;
    let all: Vec<ServiceDeployment> = (0..services)
        .map(|n| {
            let keys: Vec<String> = handed.iter().filter(|count| n < **count).map(|count| key(*count)).collect();
            let spec = json!({
                "clusterRef": {"name": format!("cluster-{:04}", n % clusters(services))}, "targetNamespace": format!("s{n:05}"),
                "sourceRef": {"name": "infra"}, "path": "app",
                "configuration": {"host": format!("s{n:05}.example.com")},
                "parameters": [{"from": {"context": "shared"}, "keys": keys}],
            });
            let mut service = ServiceDeployment::new(&format!("service-{n:05}"), serde_json::from_value(spec)?);
            // Without a list of keys, the service would get all of them.
            service.spec.parameters.retain(|parameter| !parameter.keys.is_empty());
            Ok(service)
        })
        .collect::<Result<_>>()?;
    create_all(client, all).await
}

async fn create_all<K>(client: &Client, objects: Vec<K>) -> Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    stream::iter(objects)
        .map(|object| create(client, object))
        .buffer_unordered(WRITERS)
        .try_for_each(|()| async { Ok(()) })
        .await
}

async fn create<K>(client: &Client, object: K) -> Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), ADMIN_NAMESPACE);
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// Changes the value of the key that so many services use.
async fn change(client: &Client, count: usize, round: usize) -> Result<()> {
    let contexts: Api<ServiceContext> = Api::namespaced(client.clone(), ADMIN_NAMESPACE);
    let patch = json!({"spec": {"configuration": {key(count): format!("round {round}")}}});
    contexts
        .patch("shared", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    resolved: u64,
    published: u64,
    reconciled: u64,
}

async fn count(client: &Client) -> Result<Counted> {
    let metrics = client
        .request_text(http::Request::get("/metrics").body(Vec::new())?)
        .await?;
    let sum = |name: &str| -> Result<u64> {
        let lines = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        let mut sum = None;
        for (_, value) in lines {
            sum = Some(sum.unwrap_or(0) + value.parse::<u64>()?);
        }
        sum.with_context(|| format!("the hub has no metric {name}"))
    };
    Ok(Counted {
        resolved: sum("farwater_parameters_resolved_total")?,
        published: sum("farwater_desired_published_total")?,
        reconciled: sum("farwater_reconciles_total")?,
    })
}

async fn until(client: &Client, what: &str, patience: Duration, holds: impl Fn(&Counted) -> bool) -> Result<Counted> {
    let begun = Instant::now();
    loop {
        let counted = count(client).await?;
        if holds(&counted) {
            return Ok(counted);
        }
        if begun.elapsed() > patience {
            bail!("timed out waiting for {what}: {counted:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the hub is idle.
async fn settle(client: &Client) -> Result<Counted> {
    let begun = Instant::now();
    let mut last = count(client).await?;
    loop {
        tokio::time::sleep(QUIET).await;
        let now = count(client).await?;
        if now == last {
            return Ok(now);
        }
        if begun.elapsed() > FILLED {
            bail!("the hub does not become idle: {now:?}");
        }
        last = now;
    }
}
