//! Cost of a connected agent for the hub. Agents join, poll once and disconnect. Then each opens its connection and
//! stays silent.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use farwater_agent::wire::Socket;
use farwater_fleetsim::{Agent, allow_files};
use farwater_testkit::{Hub, Launch, temporary_folder};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{Figure, usage};

const AGENTS: usize = 5_000;
/// Limit in kilobytes (1,000 bytes).
const GOAL: f64 = 20.0;
const AT_ONCE: usize = 32;
/// Measuring time for the whole fleet, in which the hub only answers pings.
const REST: Duration = Duration::from_secs(120);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let agents = if quick { AGENTS / 10 } else { AGENTS };
    let rest = if quick { REST / 20 } else { REST };
    allow_files()?;
    let dir = temporary_folder("farwater-bench-")?;
    let mut hub = Hub::launch(dir.path(), Launch::default()).await?;
    eprintln!("{agents} agents join");
    let names: Vec<String> = (0..agents).map(|n| format!("cluster-{n}")).collect();
    let joined: Vec<Agent> = stream::iter(&names)
        .map(|name| Agent::join(&hub, name))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    // Wait until the work of the joins is done and their connections are closed.
    tokio::time::sleep(rest).await;
    let process = hub.process().id();
    let before = usage::memory(process)?;

    eprintln!("they connect");
    let begun = Instant::now();
    let sockets: Vec<Socket> = stream::iter(&joined)
        .map(|agent| agent.connect())
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let connecting = begun.elapsed();
    let listening: Vec<_> = sockets.into_iter().map(|socket| tokio::spawn(listen(socket))).collect();
    tokio::time::sleep(rest).await;
    let after = usage::memory(process)?;
    let busy = usage::processor_time(process)?;
    tokio::time::sleep(rest).await;
    let busy = usage::processor_time(process)?.saturating_sub(busy);
    let lost = listening.iter().filter(|task| task.is_finished()).count();
    listening.iter().for_each(tokio::task::JoinHandle::abort);
    if lost > 0 {
        bail!("{lost} of {agents} connections were lost\n{}", hub.log_tail());
    }

    let workload = format!(
        "{agents} connections over TLS to one hub, at rest for {} s",
        rest.as_secs()
    );
    let figure = |metric: &str, value: f64, unit| Figure::new(metric, &workload, (value * 100.0).round() / 100.0, unit);
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1_000.0 / agents as f64;
    let share = busy.as_secs_f64() / rest.as_secs_f64();
    Ok(vec![
        figure(
            "memory_per_connected_agent",
            each(before.resident, after.resident),
            "KB",
        )
        .at_most(GOAL),
        figure(
            "heap_per_connected_agent",
            each(before.anonymous, after.anonymous),
            "KB",
        ),
        figure("hub_resident", usage::megabytes(after.resident), "MB"),
        figure(
            "processor_time_per_1000_connected_agents",
            share * 1_000.0 * 1_000.0 / agents as f64,
            "mCPU",
        ),
        figure("connections_opened", agents as f64 / connecting.as_secs_f64(), "1/s"),
    ])
}

/// Answers pings until the connection ends.
async fn listen(mut socket: Socket) {
    while let Some(Ok(_)) = socket.next().await {}
}
