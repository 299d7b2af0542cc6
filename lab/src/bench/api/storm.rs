//! Effect of a storm of lists on agents' polls.

use std::{
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use farwater_agent::wire::{Caller, HubClient, Identity, Keys, Presence, Trust, join_request};
use farwater_api::protocol::DesiredState;
use farwater_testkit::Hub;
use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{
    super::percentile,
    collection, fetch,
    fill::{cluster_of, namespace_of},
};

const AGENTS: usize = 20;
/// Poll interval of each agent. Together they poll as often as some thousands of agents.
const POLL: Duration = Duration::from_millis(50);
pub const POLLS_A_SECOND: u128 = AGENTS as u128 * 1_000 / POLL.as_millis();
/// Rounds alternate between quiet and storm, so that other load of the machine affects both.
pub const ROUNDS: usize = 9;
const QUIET: Duration = Duration::from_secs(5);
/// Number of concurrent lists. Each client sends the next one as soon as it has the answer.
const LISTS_AT_ONCE: usize = 64;
const LIST: usize = 50;
const KUBERNETES: &str = "v1.36.0";

/// Durations of polls, without and with concurrent lists.
pub struct Round {
    pub quiet: Vec<Duration>,
    pub stormy: Vec<Duration>,
    /// Lists per second.
    pub lists: f64,
}

struct Agent {
    hub: HubClient,
    identity: Identity,
}

impl Round {
    /// Ratio by which lists raise the polls' 99th percentile.
    pub fn ratio(&mut self) -> f64 {
        let (quiet, stormy) = (percentile(&mut self.quiet, 0.99), percentile(&mut self.stormy, 0.99));
        (stormy.div_duration_f64(quiet) * 100.0).round() / 100.0
    }
}

/// Runs `count` lists in total.
pub async fn storm(hub: &Hub, count: usize) -> Result<Vec<Round>> {
    let agents: Vec<Arc<Agent>> = stream::iter(0..AGENTS)
        .then(|n| join(hub, n))
        .map_ok(Arc::new)
        .try_collect()
        .await?;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for n in 1..=ROUNDS {
        let quiet = polls_during(&agents, async {
            tokio::time::sleep(QUIET).await;
            Ok(())
        });
        let quiet = quiet.await?;
        let (kubeconfig, lists_now) = (hub.kubeconfig(), count / ROUNDS);
        let begun = Instant::now();
        let stormy = polls_during(&agents, async {
            let load = std::thread::spawn(move || lists(&kubeconfig, lists_now));
            tokio::task::spawn_blocking(move || load.join())
                .await?
                .map_err(|_| anyhow!("the thread with the load panicked"))?
        });
        let stormy = stormy.await?;
        eprintln!("  round {n} of {ROUNDS}");
        rounds.push(Round {
            quiet,
            stormy,
            lists: lists_now as f64 / begun.elapsed().as_secs_f64(),
        });
    }
    Ok(rounds)
}

/// Durations of the polls while `work` runs.
async fn polls_during(agents: &[Arc<Agent>], work: impl Future<Output = Result<()>>) -> Result<Vec<Duration>> {
    let (end, ended) = watch::channel(false);
    let polling = tokio::spawn(polls(agents.to_vec(), ended));
    let worked = work.await;
    end.send_replace(true);
    let times = polling.await??;
    worked.map(|()| times)
}

async fn join(hub: &Hub, n: usize) -> Result<Agent> {
    let invitation = hub.join_token(&namespace_of(n), &cluster_of(0)).await?;
    let keys = Keys::generate()?;
    let token = invitation.token.parse()?;
    let pin = invitation.ca_pin.parse().context("the pin of the hub's authority")?;
    let client = HubClient::new(&hub.url(), Trust::pinned(pin))?;
    let cluster_id = format!("storm-{n}");
    let answer = client
        .join(&join_request(&token, &keys, KUBERNETES, &cluster_id)?)
        .await?;
    let identity = Identity::new(&hub.url(), Some(pin), &cluster_id, keys, answer);
    Ok(Agent { hub: client, identity })
}

async fn polls(agents: Vec<Arc<Agent>>, ended: watch::Receiver<bool>) -> Result<Vec<Duration>> {
    let polling = agents.into_iter().enumerate().map(|(n, agent)| {
        let ended = ended.clone();
        tokio::spawn(async move {
            // Spread the polls over time.
            tokio::time::sleep(POLL.mul_f64(n as f64 / AGENTS as f64)).await;
            let mut beat = interval(POLL);
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let (mut times, mut etag) = (Vec::new(), None);
            let presence = Presence::default();
            while !*ended.borrow() {
                beat.tick().await;
                let (identity, presence) = (&agent.identity, &presence);
                let caller = Caller {
                    identity,
                    kubernetes_version: KUBERNETES,
                    presence,
                };
                let begun = Instant::now();
                let poll = agent.hub.poll(&caller, etag.as_deref()).await?;
                times.push(begun.elapsed());
                if let Some(body) = poll.body {
                    etag = Some(serde_json::from_slice::<DesiredState>(&body)?.statement.etag());
                }
            }
            anyhow::Ok(times)
        })
    });
    let mut all = Vec::new();
    for times in try_join_all(polling).await? {
        all.extend(times?);
    }
    ensure!(!all.is_empty(), "no agent polled");
    Ok(all)
}

/// Runs the load in a thread with idle priority, so that it only uses processor time that the hub and the measured
/// clients leave. Real clients run on other machines.
fn lists(kubeconfig: &Path, count: usize) -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let lowered = Command::new("chrt")
        .args(["--idle", "--pid", "0", &thread])
        .status()
        .context("run chrt")?;
    ensure!(
        lowered.success(),
        "the load's thread can't be made idle: chrt: {lowered}"
    );
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let client = farwater_testkit::kube::client(kubeconfig, None).await?;
            let client = &client;
            let list = async |n| {
                fetch(client, &format!("{}?limit={LIST}", collection(n)))
                    .await
                    .map(drop)
            };
            stream::iter(0..count)
                .map(list)
                .buffer_unordered(LISTS_AT_ONCE)
                .try_collect()
                .await
        })
}
