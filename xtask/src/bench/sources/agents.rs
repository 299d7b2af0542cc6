//! Agents that poll and do nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use farwater_agent::wire::{Caller, HubClient, Identity, Keys, Presence, Trust, join_request};
use farwater_api::{
    ADMIN_NAMESPACE,
    protocol::{DesiredState, Statement},
};
use farwater_testkit::{Hub, farwater::JoinToken};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::task::AbortHandle;

use super::cluster_of;

const AT_ONCE: usize = 32;
const KUBERNETES: &str = "v1.36.0";
/// A cluster that has just joined is told when its state was computed.
const COMPUTED: Duration = Duration::from_secs(60);

pub struct Agent {
    hub: HubClient,
    identity: Identity,
    keys: Keys,
    presence: Presence,
}

impl Agent {
    /// Joins the cluster with this number, which is made if it is missing.
    pub async fn join(hub: &Hub, n: usize) -> Result<Self> {
        let JoinToken { token, ca_pin, hub: url } = hub.join_token(ADMIN_NAMESPACE, &cluster_of(n)).await?;
        let keys = Keys::generate()?;
        let pin = ca_pin.parse().context("the pin of the hub's authority")?;
        let client = HubClient::new(&url, Trust::pinned(pin))?;
        let cluster_id = format!("sources-{n}");
        let answer = client.join(&join_request(&token.parse()?, &keys, KUBERNETES, &cluster_id)?).await?;
        let identity = Identity::new(&url, Some(pin), &cluster_id, keys.clone(), answer);
        let agent = Self { hub: client, identity, keys, presence: Presence::default() };
        let begun = Instant::now();
        while let Err(error) = agent.hub.poll(&agent.caller(), None).await {
            if begun.elapsed() > COMPUTED {
                bail!("{}: {}", cluster_of(n), error.text());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(agent)
    }

    fn caller(&self) -> Caller<'_> {
        Caller { identity: &self.identity, kubernetes_version: KUBERNETES, presence: &self.presence }
    }

    /// The desired state, if it is another one than that with `etag`.
    pub async fn poll(&self, etag: Option<&str>) -> Result<Option<DesiredState>> {
        let poll = self.hub.poll(&self.caller(), etag).await?;
        Ok(poll.body.map(|body| serde_json::from_slice(&body)).transpose()?)
    }

    /// An access token of its own.
    pub async fn token(&self) -> Result<String> {
        Ok(self.hub.ask_token(&self.caller(), &self.keys).await?)
    }
}

/// Many agents that poll at an interval, until dropped.
pub struct Fleet {
    tasks: Vec<AbortHandle>,
    failed: Arc<AtomicU64>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Fleet {
    pub async fn join(hub: &Hub, first: usize, count: usize, interval: Duration) -> Result<Self> {
        let joined: Vec<Agent> = stream::iter(first..first + count)
            .map(|n| Agent::join(hub, n))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let failed = Arc::new(AtomicU64::new(0));
        let tasks = joined.into_iter().enumerate().map(|(n, agent)| {
            let failed = Arc::clone(&failed);
            let polling = async move {
                // Not all at one moment.
                tokio::time::sleep(interval.mul_f64(n as f64 / count as f64)).await;
                let mut etag = None;
                loop {
                    match agent.poll(etag.as_deref()).await {
                        Ok(Some(state)) => etag = Some(Statement::etag(&state.statement)),
                        Ok(None) => {}
                        Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                    }
                    tokio::time::sleep(interval).await;
                }
            };
            tokio::spawn(polling).abort_handle()
        });
        Ok(Self { tasks: tasks.collect(), failed })
    }

    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}
