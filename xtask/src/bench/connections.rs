//! What a connected agent costs its hub: agents join, poll once, and hang up; then each opens its connection and keeps silent.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use farwater_agent::wire::{Caller, HubClient, HubError, Identity, Keys, Presence, Socket, Trust, join_request};
use farwater_api::ADMIN_NAMESPACE;
use farwater_testkit::{Hub, Launch, farwater::JoinToken, temporary_folder};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::{Figure, usage};

const AGENTS: usize = 5_000;
/// Kilobytes of a thousand bytes.
const GOAL: f64 = 20.0;
const AT_ONCE: usize = 32;
/// Of the whole fleet, in which the hub answers pings and nothing else.
const REST: Duration = Duration::from_secs(120);
const KUBERNETES: &str = "v1.36.0";
/// A cluster that has just joined is told when its state was computed.
const COMPUTED: Duration = Duration::from_secs(60);

struct Agent {
    identity: Identity,
    trust: Trust,
}

impl Agent {
    async fn join(hub: &Hub, n: usize) -> Result<Self> {
        let JoinToken { token, ca_pin, hub: url } = hub.join_token(ADMIN_NAMESPACE, &format!("cluster-{n}")).await?;
        let keys = Keys::generate()?;
        let pin = ca_pin.parse().context("the pin of the hub's authority")?;
        let trust = Trust::pinned(pin);
        let client = HubClient::new(&url, trust.clone())?;
        let cluster_id = format!("connections-{n}");
        let request = join_request(&token.parse()?, &keys, KUBERNETES, &cluster_id)?;
        let answer = patiently(|| client.join(&request)).await.with_context(|| format!("cluster-{n} joins"))?;
        let agent = Self { identity: Identity::new(&url, Some(pin), &cluster_id, keys, answer), trust };
        let presence = Presence::default();
        let caller = agent.caller(&presence);
        patiently(|| client.poll(&caller, None)).await.with_context(|| format!("cluster-{n} polls"))?;
        Ok(agent)
    }

    fn caller<'a>(&'a self, presence: &'a Presence) -> Caller<'a> {
        Caller { identity: &self.identity, kubernetes_version: KUBERNETES, presence }
    }

    /// What it asked for its token by is closed then.
    async fn connect(&self, hub: &Hub) -> Result<Socket> {
        let client = HubClient::new(&hub.url(), self.trust.clone())?;
        Ok(client.connect(&self.caller(&Presence::default())).await?)
    }
}

/// Asks as agents do: again, where the hub has not got to a new cluster yet.
async fn patiently<T, F: Future<Output = Result<T, HubError>>>(ask: impl Fn() -> F) -> Result<T> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Err(_) if begun.elapsed() < COMPUTED => tokio::time::sleep(Duration::from_millis(50)).await,
            other => return Ok(other?),
        }
    }
}

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let agents = if quick { AGENTS / 10 } else { AGENTS };
    let rest = if quick { REST / 20 } else { REST };
    allow_files()?;
    let dir = temporary_folder("farwater-bench-")?;
    let mut hub = Hub::launch(dir.path(), Launch::default()).await?;
    eprintln!("{agents} agents join");
    let joined: Vec<Agent> =
        stream::iter(0..agents).map(|n| Agent::join(&hub, n)).buffer_unordered(AT_ONCE).try_collect().await?;
    // Until what the joins have left to do is done, and connections that they left are closed.
    tokio::time::sleep(rest).await;
    let process = hub.process().id();
    let before = usage::memory(process)?;

    eprintln!("they connect");
    let begun = Instant::now();
    let sockets: Vec<Socket> =
        stream::iter(&joined).map(|agent| agent.connect(&hub)).buffer_unordered(AT_ONCE).try_collect().await?;
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

    let workload = format!("{agents} connections over TLS to one hub, at rest for {} s", rest.as_secs());
    let figure = |metric: &str, value: f64, unit| Figure::new(metric, &workload, (value * 100.0).round() / 100.0, unit);
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1_000.0 / agents as f64;
    let share = busy.as_secs_f64() / rest.as_secs_f64();
    Ok(vec![
        figure("memory_per_connected_agent", each(before.resident, after.resident), "KB").at_most(GOAL),
        figure("heap_per_connected_agent", each(before.anonymous, after.anonymous), "KB"),
        figure("hub_resident", usage::megabytes(after.resident), "MB"),
        figure("processor_time_per_1000_connected_agents", share * 1_000.0 * 1_000.0 / agents as f64, "mCPU"),
        figure("connections_opened", agents as f64 / connecting.as_secs_f64(), "1/s"),
    ])
}

/// Answers pings.
async fn listen(mut socket: Socket) {
    while let Some(Ok(_)) = socket.next().await {}
}

/// Each connection is a file, here and in the hub, which inherits this.
fn allow_files() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raise the limit of open files")
}
