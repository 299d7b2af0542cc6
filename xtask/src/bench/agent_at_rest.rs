//! What an agent takes while nothing happens: memory and processor time, with ten services of 200 objects kept.

use std::time::Duration;

use anyhow::{Result, ensure};
use farwater_testkit::PlaneOptions;

use super::{Figure, ground::Ground, many_kinds, usage};

/// What the hub asks for unless a cluster says otherwise.
const POLL: &str = "30s";
/// Megabytes, from the issue that asked for it.
const GOAL: f64 = 12.0;
/// Thousandths of a core.
const PROCESSOR_GOAL: f64 = 1.0;
/// Names in the figure what decides it: a change of the allocator must change this text.
const ALLOCATOR: &str = "system allocator (glibc malloc)";
const AGENT: &str = include_str!("../../../crates/agent/src/main.rs");

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    ensure!(!AGENT.contains("global_allocator"), "the agent has another allocator than this bench says");
    let rest = Duration::from_secs(if quick { 10 } else { 600 });
    let mut ground = Ground::start(PlaneOptions::default(), POLL, &many_kinds::files()).await?;
    many_kinds::define(&ground.plane.client().await?).await?;
    for n in 0..many_kinds::SERVICES {
        ground.deploy(&many_kinds::service(n), &many_kinds::folder(n)).await?;
    }
    for n in 0..many_kinds::SERVICES {
        ground.healthy(&many_kinds::service(n)).await?;
    }
    eprintln!("200 objects are healthy; at rest for {rest:?}");
    let process = ground.agent().process().id();
    let before = usage::processor_time(process)?;
    tokio::time::sleep(rest).await;
    let used = usage::processor_time(process)?.saturating_sub(before);
    let memory = usage::memory(process)?;
    let workload = format!(
        "{}, healthy, {} s at rest, poll {POLL}, {ALLOCATOR}, one thread",
        many_kinds::WORKLOAD,
        rest.as_secs()
    );
    let figure = |metric, bytes| Figure::new(metric, &workload, usage::megabytes(bytes), "MB");
    let processor = used.as_secs_f64() / rest.as_secs_f64() * 1000.0;
    Ok(vec![
        figure("agent_resident", memory.resident).at_most(GOAL),
        figure("agent_proportional", memory.proportional),
        figure("agent_anonymous", memory.anonymous),
        Figure::new("agent_processor", &workload, (processor * 100.0).round() / 100.0, "mCPU").at_most(PROCESSOR_GOAL),
    ])
}
