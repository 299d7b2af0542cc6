//! M9: usage of an idle agent with 200 and 2,000 objects of 20 kinds, and with 5,000 objects beside 100,000 others.

use std::time::Duration;

use anyhow::{Result, ensure};
use farwater_testkit::PlaneOptions;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use super::maps::{self, PER_FILE, Phase};
use crate::bench::{Figure, ground::Ground, many_kinds, usage};

/// Default poll interval of a cluster.
const POLL: &str = "30s";
/// Limits in megabytes, from the issues.
const SMALL: f64 = 12.0;
const LARGE: f64 = 25.0;
const CROWDED: f64 = 60.0;
/// Limit in thousandths of a core.
const PROCESSOR: f64 = 1.0;
/// Part of the figure's text, because the allocator decides the result. Change it with the allocator.
const ALLOCATOR: &str = "system allocator (glibc malloc)";
const AGENT: &str = include_str!("../../../../crates/agent/src/main.rs");
/// Services in the crowded cluster. Each has its own namespace, and the other objects are spread evenly over them.
const CROWDED_SERVICES: usize = 5;
const CROWDED_NAMESPACES: usize = 100;
/// Requests in flight of the client that creates the other objects.
const IN_FLIGHT: usize = 64;

/// An idle agent.
struct Row {
    ground: Ground,
    content: String,
    /// Memory in megabytes.
    memory: f64,
    /// Processor usage in thousandths of a core.
    processor: Option<f64>,
}

/// Measures three agents on three planes at the same time. Idle agents don't disturb each other.
pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    ensure!(
        !AGENT.contains("global_allocator"),
        "the agent's allocator differs from ALLOCATOR in this bench"
    );
    let rest = Duration::from_secs(if quick { 10 } else { 600 });
    let (definitions, large) = if quick {
        (40, 20)
    } else {
        (many_kinds::DEFINITIONS, 100)
    };
    let (ours, others) = if quick { (200, 2_000) } else { (5_000, 100_000) };
    let (small, large, (crowded, since)) = tokio::try_join!(
        with_kinds(definitions, many_kinds::SERVICES, SMALL),
        with_kinds(definitions, large, LARGE),
        beside_others(ours, others),
    )?;
    eprintln!("measuring idle agents for {rest:?}");
    let mut rows = [small, large, crowded];
    let mut before = Vec::new();
    for row in &mut rows {
        before.push(usage::processor_time(row.ground.agent().process().id())?);
    }
    tokio::time::sleep(rest).await;
    let mut figures = Vec::new();
    for (row, before) in rows.iter_mut().zip(before) {
        figures.extend(row.figures(before, rest)?);
    }
    let [_, _, crowded] = &rows;
    figures.push(unfiltered_lists(crowded, since, rest)?);
    Ok(figures)
}

impl Row {
    fn figures(&mut self, before: Duration, rest: Duration) -> Result<Vec<Figure>> {
        let process = self.ground.agent().process().id();
        let used = usage::processor_time(process)?.saturating_sub(before);
        let memory = usage::memory(process)?;
        let workload = self.workload(rest);
        let figure = |metric, bytes| Figure::new(metric, &workload, usage::megabytes(bytes), "MB");
        let processor = Figure::new("agent_processor", &workload, usage::millicores(used, rest), "mCPU");
        Ok(vec![
            figure("agent_resident", memory.resident).at_most(self.memory),
            figure("agent_peak", memory.peak),
            figure("agent_proportional", memory.proportional),
            figure("agent_anonymous", memory.anonymous),
            match self.processor {
                Some(goal) => processor.at_most(goal),
                None => processor,
            },
        ])
    }

    fn workload(&self, rest: Duration) -> String {
        let content = &self.content;
        format!(
            "{content}, healthy, {} s at rest, poll {POLL}, {ALLOCATOR}, one thread",
            rest.as_secs()
        )
    }
}

async fn with_kinds(definitions: usize, services: usize, memory: f64) -> Result<Row> {
    let ground = Ground::start(PlaneOptions::default(), POLL, &many_kinds::files(services)).await?;
    many_kinds::define(&ground.plane.client().await?, definitions).await?;
    let names: Vec<String> = (0..services).map(many_kinds::service).collect();
    for (n, name) in names.iter().enumerate() {
        ground.deploy(name, &many_kinds::folder(n)).await?;
    }
    ground.healthy(&names).await?;
    let content = many_kinds::workload(definitions, services);
    eprintln!("{content}: healthy");
    Ok(Row {
        ground,
        content,
        memory,
        processor: Some(PROCESSOR),
    })
}

/// Objects of services among many other objects of the same kind, measured after the agent's start. Some objects change
/// after that.
async fn beside_others(ours: usize, others: usize) -> Result<(Row, Timestamp)> {
    let names: Vec<String> = (0..CROWDED_SERVICES).map(crowded_namespace).collect();
    let files = |count, phase| -> Vec<_> { names.iter().flat_map(|name| maps::files(name, count, phase)).collect() };
    let options = PlaneOptions::without_nodes().audited();
    let ground = Ground::start(options, POLL, &files(ours / CROWDED_SERVICES, Phase::Created)).await?;
    make_others(&ground.plane.client().await?, others).await?;
    for name in &names {
        ground.deploy(name, name).await?;
    }
    ground.healthy(&names).await?;
    let since = Timestamp::now();
    let commit = ground.commit(&files(PER_FILE, Phase::Changed)).await?;
    ground.applied(&names, &commit).await?;
    let content = format!("{ours} ConfigMaps in {CROWDED_SERVICES} services beside {others} others");
    eprintln!("{content}: healthy");
    Ok((
        Row {
            ground,
            content,
            memory: CROWDED,
            processor: None,
        },
        since,
    ))
}

fn crowded_namespace(n: usize) -> String {
    format!("crowd-{n}")
}

async fn make_others(client: &Client, count: usize) -> Result<()> {
    eprintln!("creating {count} other objects");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for n in 0..CROWDED_NAMESPACES {
        let namespace = serde_json::from_value(json!({"metadata": {"name": crowded_namespace(n)}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
    }
    stream::iter(0..count)
        .map(|n| make_other(client, n))
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await
}

async fn make_other(client: &Client, n: usize) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &crowded_namespace(n % CROWDED_NAMESPACES));
    let data = json!({"HOST": format!("host-{n}.example.com"), "LEVEL": "info", "MOTTO": "not ours"});
    let map = serde_json::from_value(json!({"metadata": {"name": format!("other-{n}")}, "data": data}))?;
    maps.create(&PostParams::default(), &map).await?;
    if (n + 1).is_multiple_of(20_000) {
        eprintln!("  {} made", n + 1);
    }
    Ok(())
}

fn unfiltered_lists(row: &Row, since: Timestamp, rest: Duration) -> Result<Figure> {
    let requests = row.ground.plane.requests(since)?;
    let lists: Vec<_> = requests.iter().filter(|request| request.is_unfiltered_list()).collect();
    for list in &lists {
        eprintln!("a list without a label selector: {}", list.uri);
    }
    let figure = Figure::new(
        "agent_unfiltered_lists",
        &row.workload(rest),
        lists.len() as f64,
        "requests",
    );
    Ok(figure.at_most(0.0))
}
