//! The agent's side of the protocol without a cluster, to put load on a hub.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use farwater_agent::wire::{Caller, HubClient, HubError, Identity, Keys, Presence, Socket, Trust, join_request};
use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    protocol::{Action, DesiredState, Entry, StatusReport, Verbatim},
};
use farwater_testkit::{Hub, farwater::JoinToken};
use rustix::process::{Resource, getrlimit, setrlimit};

pub(crate) const KUBERNETES: &str = "v1.36.0";
/// Maximum time until the hub has computed the state of a new cluster.
const COMPUTED: Duration = Duration::from_secs(60);
/// Maximum size of a compressed bundle.
const MAX_BUNDLE: usize = 64 << 20;

/// An agent. Its cluster has its name, and is created first. It keeps no connection.
pub struct Agent {
    identity: Identity,
    trust: Trust,
    presence: Presence,
}

impl Agent {
    pub async fn join(hub: &Hub, cluster: &str) -> Result<Self> {
        let JoinToken {
            token,
            ca_pin,
            hub: url,
        } = hub.join_token(ADMIN_NAMESPACE, cluster).await?;
        let keys = Keys::generate()?;
        let pin = ca_pin.parse().context("the pin of the hub's authority")?;
        let trust = Trust::pinned(pin);
        let client = HubClient::new(&url, trust.clone())?;
        let cluster_id = format!("simulated-{cluster}");
        let request = join_request(&token.parse()?, &keys, KUBERNETES, &cluster_id)?;
        let answer = patiently(|| client.join(&request))
            .await
            .with_context(|| format!("{cluster} joins"))?;
        let identity = Identity::new(&url, Some(pin), &cluster_id, keys, answer);
        let agent = Self {
            identity,
            trust,
            presence: Presence::default(),
        };
        let caller = agent.caller();
        patiently(|| client.poll(&caller, None))
            .await
            .with_context(|| format!("{cluster} polls"))?;
        Ok(agent)
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            identity: &self.identity,
            kubernetes_version: KUBERNETES,
            presence: &self.presence,
        }
    }

    fn client(&self) -> Result<HubClient> {
        Ok(HubClient::new(&self.identity.hub, self.trust.clone())?)
    }

    /// Opens a connection for hints. The connection that it used for its token is closed before.
    pub async fn connect(&self) -> Result<Socket> {
        Ok(self.client()?.connect(&self.caller()).await?)
    }
}

/// An agent that polls over one persistent connection.
pub struct Poller {
    agent: Agent,
    client: HubClient,
    etag: Option<String>,
}

impl Poller {
    pub async fn join(hub: &Hub, cluster: &str) -> Result<Self> {
        let agent = Agent::join(hub, cluster).await?;
        Ok(Self {
            client: agent.client()?,
            agent,
            etag: None,
        })
    }

    /// Changes since the last poll.
    pub async fn poll(&mut self) -> Result<Option<DesiredState>> {
        let polled = self.client.poll(&self.agent.caller(), self.etag.as_deref()).await?;
        let Some(body) = polled.body else { return Ok(None) };
        let desired: DesiredState = serde_json::from_slice(&body).context("read a desired state")?;
        self.etag = Some(desired.statement.etag());
        Ok(Some(desired))
    }

    /// Makes the next poll return the whole state, even if nothing changed.
    pub fn forget(&mut self) {
        self.etag = None;
    }

    /// The whole state, even if nothing changed.
    pub async fn desired(&mut self) -> Result<DesiredState> {
        self.forget();
        self.poll().await?.context("a poll without a condition had no answer")
    }

    pub async fn download(&self, bundle: Digest, path: &Path) -> Result<()> {
        Ok(self
            .client
            .download(&self.agent.caller(), bundle, path, MAX_BUNDLE)
            .await?)
    }

    pub async fn report(&self, report: &StatusReport) -> Result<(), HubError> {
        self.client.report(&self.agent.caller(), report).await.map(drop)
    }

    /// The access token, for other requests.
    pub async fn token(&self) -> Result<String> {
        Ok(self
            .client
            .ask_token(&self.agent.caller(), &self.agent.identity.keys)
            .await?)
    }
}

/// Bundles of services to apply, by service name.
pub fn bundles(desired: &DesiredState) -> BTreeMap<String, Digest> {
    let named = |entry: &Verbatim<Entry>| match &entry.action {
        Action::Apply(deployment) => Some((entry.service.name.clone(), deployment.bundle)),
        _ => None,
    };
    desired.entries.iter().filter_map(named).collect()
}

/// Digests of the services' entries by name. A changed digest makes an agent act.
pub fn digests(desired: &DesiredState) -> BTreeMap<String, Digest> {
    desired
        .entries
        .iter()
        .map(|entry| (entry.service.name.clone(), entry.digest()))
        .collect()
}

/// Retries like an agent if the hub has not processed a new cluster yet.
async fn patiently<T, F: Future<Output = Result<T, HubError>>>(ask: impl Fn() -> F) -> Result<T> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Err(_) if begun.elapsed() < COMPUTED => tokio::time::sleep(Duration::from_millis(50)).await,
            other => return Ok(other?),
        }
    }
}

/// Raises the limit of open files. Each connection is a file here and in the hub, which inherits the limit.
pub fn allow_files() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raise the limit of open files")
}
