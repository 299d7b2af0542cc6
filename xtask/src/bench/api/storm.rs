//! What a storm of lists does to agents' polls.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use farwater_agent::wire::{Caller, HubClient, Identity, Keys, join_request};
use farwater_api::protocol::DesiredState;
use farwater_testkit::Hub;
use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{
    collection, fetch,
    fill::{cluster_of, namespace_of},
};

const AGENTS: usize = 20;
/// Of each agent: as many polls a second as some thousands of agents make.
const POLL: Duration = Duration::from_millis(50);
pub const POLLS_A_SECOND: u128 = AGENTS as u128 * 1_000 / POLL.as_millis();
const QUIET: Duration = Duration::from_secs(20);
/// Lists that are under way at one time; each asks for the next as soon as it has been answered.
const LISTS_AT_ONCE: usize = 64;
const LIST: usize = 50;
const KUBERNETES: &str = "v1.36.0";

pub struct Storm {
    pub quiet: Vec<Duration>,
    pub stormy: Vec<Duration>,
    /// Lists per second.
    pub lists: f64,
}

struct Agent {
    hub: HubClient,
    identity: Identity,
}

/// Polls without and with `count` lists.
pub async fn storm(hub: &Hub, count: usize) -> Result<Storm> {
    let agents: Vec<Arc<Agent>> = stream::iter(0..AGENTS).then(|n| join(hub, n)).map_ok(Arc::new).try_collect().await?;
    let (end, ended) = watch::channel(false);
    let polling = tokio::spawn(polls(agents.clone(), ended));
    tokio::time::sleep(QUIET).await;
    end.send_replace(true);
    let quiet = polling.await??;

    let (end, ended) = watch::channel(false);
    let polling = tokio::spawn(polls(agents, ended));
    let kubeconfig = hub.kubeconfig();
    let begun = Instant::now();
    let load = std::thread::spawn(move || lists(&kubeconfig, count));
    tokio::task::spawn_blocking(move || load.join()).await?.map_err(|_| anyhow!("the load panicked"))??;
    let lists = count as f64 / begun.elapsed().as_secs_f64();
    end.send_replace(true);
    Ok(Storm { quiet, stormy: polling.await??, lists })
}

async fn join(hub: &Hub, n: usize) -> Result<Agent> {
    let invitation = hub.join_token(&namespace_of(n), &cluster_of(0)).await?;
    let keys = Keys::generate()?;
    let token = invitation.token.parse()?;
    let pin = invitation.ca_pin.parse().context("the pin of the hub's authority")?;
    let client = HubClient::new(&hub.url(), pin)?;
    let cluster_id = format!("storm-{n}");
    let answer = client.join(&join_request(&token, &keys, KUBERNETES, &cluster_id)?).await?;
    let identity = Identity::new(&hub.url(), pin, &cluster_id, keys, answer);
    Ok(Agent { hub: client, identity })
}

async fn polls(agents: Vec<Arc<Agent>>, ended: watch::Receiver<bool>) -> Result<Vec<Duration>> {
    let polling = agents.into_iter().enumerate().map(|(n, agent)| {
        let ended = ended.clone();
        tokio::spawn(async move {
            // Not all at one moment.
            tokio::time::sleep(POLL.mul_f64(n as f64 / AGENTS as f64)).await;
            let mut beat = interval(POLL);
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let (mut times, mut etag) = (Vec::new(), None);
            while !*ended.borrow() {
                beat.tick().await;
                let caller = Caller { identity: &agent.identity, kubernetes_version: KUBERNETES };
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
    ensure!(!all.is_empty(), "nobody polled");
    Ok(all)
}

/// In a thread of its own that gives way to the hub and to those who are measured, as clients on other machines do.
fn lists(kubeconfig: &Path, count: usize) -> Result<()> {
    // On Linux: of this thread.
    rustix::process::setpriority_process(None, 10).context("lower the priority of the load")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let client = farwater_testkit::kube::client(kubeconfig, None).await?;
        let client = &client;
        let list = async |n| fetch(client, &format!("{}?limit={LIST}", collection(n))).await.map(drop);
        stream::iter(0..count).map(list).buffer_unordered(LISTS_AT_ONCE).try_collect().await
    })
}
