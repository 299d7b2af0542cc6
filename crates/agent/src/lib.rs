//! The agent of one cluster: joins, polls, verifies, plans, applies, watches, reports.
//!
//! Data flows one way: the hub's signed desired state → one task per service → plan → API server → report. Nothing that
//! fails on the way is ever taken for "nothing desired" or "gone".

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bundles;
mod clock;
mod execute;
mod fights;
mod hub;
mod identity;
mod inventory;
mod join;
mod kinds;
mod kubernetes;
mod live;
mod lookup;
mod messages;
mod options;
mod poll;
mod render;
mod reports;
mod sealed;
mod secrets;
mod service;
mod state;
mod supervise;
mod sync;
mod tls;
mod watches;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use farwater_fleet::plan::ObjectKey;
use tokio_util::sync::CancellationToken;

pub use options::{JoinToken, LogFormat, Options};

/// An agent's side of the protocol without the agent: for load on a hub.
pub mod wire {
    pub use crate::{
        hub::{Caller, HubClient, HubError, Poll},
        identity::{Identity, Keys},
        join::join_request,
        options::JoinToken,
    };
}

use crate::{
    bundles::Bundles,
    hub::{Caller, HubClient},
    identity::Identity,
    join::Joined,
    kinds::Kinds,
    kubernetes::Kubernetes,
    reports::Reports,
    sealed::Sealed,
    service::Claims,
    supervise::Supervisor,
    sync::lock,
    watches::Watches,
};

/// The agent's version, as it reports it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What all tasks share.
pub(crate) struct Agent {
    kubernetes: Arc<Kubernetes>,
    kubernetes_version: String,
    kinds: Kinds,
    hub: HubClient,
    identity: Identity,
    bundles: Bundles,
    sealed: Sealed,
    reports: Reports,
    watches: Arc<Watches>,
    claims: Claims,
    /// Services that live on this cluster: uid → `namespace/name`.
    services: Mutex<BTreeMap<String, String>>,
}

impl Agent {
    fn caller(&self) -> Caller<'_> {
        Caller { identity: &self.identity, kubernetes_version: &self.kubernetes_version }
    }

    fn service_names(&self) -> BTreeMap<String, String> {
        lock(&self.services).clone()
    }

    fn claims_on(&self, owner: &str) -> BTreeMap<ObjectKey, String> {
        self.claims.on(owner)
    }

    fn set_claims(&self, uid: &str, name: &str, claims: BTreeMap<String, BTreeSet<ObjectKey>>) -> Vec<String> {
        self.claims.set(uid, name, claims)
    }
}

/// Why the agent can't run. While it runs, nothing but a signal ends it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Connect(#[from] kubernetes::ConnectError),
    #[error(transparent)]
    State(#[from] state::StateError),
    #[error(transparent)]
    Join(#[from] join::JoinError),
    #[error(transparent)]
    Inventory(#[from] inventory::InventoryError),
}

impl RunError {
    /// The error with its causes, in one line.
    pub fn text(&self) -> String {
        hub::chain(self)
    }
}

/// Runs until `shutdown`. Stopping at any moment is safe: what was begun is finished after the next start.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), RunError> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        result = start(options) => result.map(|never| match never {}),
    }
}

async fn start(options: Options) -> Result<std::convert::Infallible, RunError> {
    let kubernetes = Arc::new(Kubernetes::connect(options.kubeconfig.as_deref()).await?);
    let Joined { hub, identity, kubernetes_version } = join::join(&options, &kubernetes).await?;
    let store = state::StateStore { dir: &options.state_dir, kubernetes: &kubernetes };
    let accepted = retry("read the last accepted state", || store.load_desired(&identity)).await;
    let inventories = retry("read inventories", || inventory::load_all(&kubernetes)).await;
    let bundles = Bundles::new(options.state_dir.join("bundles"));
    bundles.load_cluster_copies(&kubernetes).await;
    tracing::info!(
        cluster = format!("{}/{}", identity.cluster.namespace, identity.cluster.name),
        kubernetes = kubernetes_version,
        services = accepted.as_ref().map_or(0, |s| s.entries.len()),
        "started"
    );
    let agent = Arc::new(Agent {
        watches: Arc::new(Watches::new(kubernetes.clone())),
        kubernetes: kubernetes.clone(),
        kubernetes_version,
        kinds: Kinds::default(),
        hub,
        identity,
        bundles,
        sealed: Sealed::new(options.state_dir.join("sealed")),
        reports: Reports::default(),
        claims: Claims::default(),
        services: Mutex::default(),
    });
    let mut supervisor = Supervisor::new(agent.clone(), inventories);
    if let Some(state) = &accepted {
        supervisor.assign(state);
    }
    let store = state::StateStore { dir: &options.state_dir, kubernetes: &kubernetes };
    tokio::join!(poll::run(&agent, &store, accepted, &mut supervisor), agent.reports.run(&agent.hub, agent.caller()));
    unreachable!("polling never ends")
}

/// Repeats what the start can't do without, until it works.
async fn retry<T, E: std::error::Error, F: Future<Output = Result<T, E>>>(what: &str, act: impl Fn() -> F) -> T {
    let mut backoff = sync::Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    loop {
        match act().await {
            Ok(value) => return value,
            Err(error) => {
                tracing::warn!(error = hub::chain(&error), "can't {what}; trying again");
                tokio::time::sleep(backoff.advance()).await;
            }
        }
    }
}
