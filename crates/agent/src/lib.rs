//! The agent of one cluster: joins, polls, verifies, plans, applies, watches, reports.
//!
//! Data flows one way: the hub's signed desired state → one task per service → plan → API server → report. Nothing that
//! fails on the way is ever taken for "nothing desired" or "gone".

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bundles;
mod children;
mod clock;
mod cluster_secrets;
mod connection;
mod execute;
mod fights;
mod handed;
mod health;
mod hub;
mod identity;
mod inventory;
mod join;
mod judge;
mod kinds;
mod kubernetes;
mod lease;
mod limits;
mod live;
mod lookup;
mod messages;
mod metrics;
mod options;
mod pause;
mod plans;
mod poll;
mod preview;
mod proxy;
mod render;
mod reports;
mod sealed;
mod secrets;
mod service;
mod sops;
mod state;
mod succeed;
mod supervise;
mod sync;
mod tls;
mod tombstones;
mod update;
mod watches;
#[cfg(test)]
mod wire_tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use farwater_api::{
    Digest,
    change_window::Windows,
    health_rule::HealthRules,
    protocol::{AcceptedStatement, Verbatim},
};
use farwater_fleet::{health::rules::HubRules, plan::ObjectKey, windows::Handed};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

pub use judge::Limits as HealthLimits;
pub use options::{JoinToken, LogFormat, Options};
pub use watches::Limits as WatchLimits;

/// An agent's side of the protocol without the agent, for load tests of a hub.
pub mod wire {
    pub use crate::{
        hub::{Caller, HubClient, HubError, Poll, Socket},
        identity::{Identity, Keys, Presence},
        join::join_request,
        options::JoinToken,
        tls::Trust,
    };
}

use crate::{
    bundles::Bundles,
    connection::Connection,
    health::Health,
    hub::{Caller, HubClient},
    identity::{Identity, Presence},
    join::Joined,
    kinds::Kinds,
    kubernetes::Kubernetes,
    lease::Lease,
    metrics::Metrics,
    plans::Plans,
    render::{Renderers, kept::KeptRenders},
    reports::Reports,
    sealed::Sealed,
    service::{Claims, Leaving, rollout::LastPoll},
    supervise::Supervisor,
    sync::lock,
    watches::Watches,
};

/// The agent's version, as it reports it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Most concurrent looks at the children of objects: however many services are unhealthy, the API server gets few of
/// these requests.
const LOOKS: usize = 4;

/// State shared by all tasks.
pub(crate) struct Agent {
    kubernetes: Arc<Kubernetes>,
    kubernetes_version: String,
    kinds: Kinds,
    health_limits: HealthLimits,
    hub: HubClient,
    connection: Connection,
    /// Replaced as a whole when keys change.
    identity: RwLock<Arc<Identity>>,
    presence: Presence,
    bundles: Bundles,
    sealed: Sealed,
    renderers: Renderers,
    kept_renders: KeptRenders,
    reports: Arc<Reports>,
    metrics: Arc<Metrics>,
    last_poll: LastPoll,
    watches: Arc<Watches>,
    claims: Claims,
    leaving: Leaving,
    plans: Plans,
    listed_tombstones: tombstones::Listed,
    /// The hub's health rules.
    health_rules: RwLock<Arc<HubRules>>,
    /// The change windows, with the digest of the received document.
    windows: RwLock<(Option<Digest>, Arc<Handed>)>,
    /// The bundle of the last begun version, by service uid.
    running: Mutex<BTreeMap<String, Digest>>,
    /// Limits the concurrent looks at objects.
    looks: Semaphore,
    /// Services on this cluster: uid → `namespace/name`.
    services: Mutex<BTreeMap<String, String>>,
}

impl Agent {
    /// An agent that knows no desired state yet.
    fn new(
        options: &Options,
        kubernetes: &Arc<Kubernetes>,
        joined: Joined,
        bundles: Bundles,
        metrics: Arc<Metrics>,
    ) -> Result<Self, RunError> {
        let renderers = Renderers::new(options)?;
        let reports = Arc::new(Reports::default());
        metrics.follow(&reports);
        Ok(Self {
            watches: Arc::new(Watches::new(kubernetes.clone(), options.watches)),
            kubernetes: kubernetes.clone(),
            kubernetes_version: joined.kubernetes_version,
            kinds: Kinds::new(options.health.unseen),
            health_limits: options.health,
            hub: joined.hub,
            connection: Connection::default(),
            identity: RwLock::new(Arc::new(joined.identity)),
            presence: joined.presence,
            bundles,
            sealed: Sealed::new(options.state_dir.join("sealed")),
            renderers,
            kept_renders: KeptRenders::default(),
            reports,
            metrics,
            last_poll: LastPoll::default(),
            claims: Claims::default(),
            leaving: Leaving::default(),
            plans: Plans::default(),
            listed_tombstones: tombstones::Listed::default(),
            health_rules: RwLock::default(),
            windows: RwLock::default(),
            running: Mutex::default(),
            looks: Semaphore::new(LOOKS),
            services: Mutex::default(),
        })
    }

    fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.identity.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_identity(&self, identity: Identity) {
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(identity);
    }

    fn health_rules(&self) -> Arc<HubRules> {
        Arc::clone(&self.health_rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the health rules of a newly accepted state. Services whose rules have changed judge their objects again.
    fn set_health_rules(&self, rules: Option<&HealthRules>) {
        let rules = rules.map(|rules| rules.rules.clone()).unwrap_or_default();
        if self.health_rules().named == rules {
            return;
        }
        tracing::info!(rules = rules.len(), "rules of health have changed");
        let rules = Arc::new(HubRules::compile(rules));
        *self.health_rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        for mailbox in self.watches.mailboxes() {
            mailbox.tell_of_rules();
        }
    }

    fn windows(&self) -> Arc<Handed> {
        Arc::clone(&self.windows.read().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Sets the windows of a newly accepted state, and wakes services that wait for one.
    fn set_windows(&self, windows: Option<&Verbatim<Windows>>) {
        let digest = windows.map(Verbatim::digest);
        if self.windows.read().unwrap_or_else(PoisonError::into_inner).0 == digest {
            return;
        }
        let read = windows.map(|windows| Handed::read(windows)).unwrap_or_default();
        *self.windows.write().unwrap_or_else(PoisonError::into_inner) = (digest, Arc::new(read));
        for mailbox in self.watches.mailboxes() {
            mailbox.tell_of_rules();
        }
    }

    /// By the hub's clock once it was heard, otherwise by this machine's.
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_second(self.hub.clock.now()).unwrap_or_default()
    }

    fn caller<'a>(&'a self, identity: &'a Identity) -> Caller<'a> {
        Caller {
            identity,
            kubernetes_version: &self.kubernetes_version,
            presence: &self.presence,
        }
    }

    fn service_names(&self) -> BTreeMap<String, String> {
        lock(&self.services).clone()
    }

    /// Requeues services.
    fn retry(&self, uids: &BTreeSet<String>) {
        for uid in uids {
            if let Some(mailbox) = self.watches.mailbox(&farwater_fleet::ownership::service_label(uid)) {
                mailbox.retry();
            }
        }
    }

    fn claims_on(&self, owner: &str) -> BTreeMap<ObjectKey, String> {
        self.claims.on(owner)
    }

    fn set_claims(&self, uid: &str, name: &str, claims: BTreeMap<String, BTreeSet<ObjectKey>>) -> Vec<String> {
        self.claims.set(uid, name, claims)
    }
}

/// Why the agent can't start. Once it runs, only a signal ends it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Connect(#[from] kubernetes::ConnectError),
    #[error(transparent)]
    Listen(#[from] health::ListenError),
    #[error(transparent)]
    State(#[from] state::StateError),
    #[error(transparent)]
    Token(#[from] options::TokenFileError),
    #[error(transparent)]
    Lost(#[from] lease::Lost),
    #[error(transparent)]
    Join(#[from] join::JoinError),
    #[error(transparent)]
    Inventory(#[from] inventory::InventoryError),
    #[error(transparent)]
    Renderer(#[from] render::RendererError),
}

impl RunError {
    /// The error with its causes in one line.
    pub fn text(&self) -> String {
        hub::chain(self)
    }
}

/// Time for the API server to release the Lease: a pod has 30 s to end.
const RELEASE: Duration = Duration::from_secs(3);

/// Runs until `shutdown`. Stopping at any moment is safe: what was begun is completed after the next start.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), RunError> {
    let kubernetes = Arc::new(Kubernetes::connect_within(
        options.kubeconfig.as_deref(),
        Arc::new(options.limits()),
    )?);
    let lease = Lease::new(Lease::holder(options.kubeconfig.is_none(), &options.state_dir));
    let result = tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        result = start(&options, &kubernetes, &lease) => result.map(|never| match never {}),
    };
    // A new version that stands by needn't wait until the Lease expires.
    let _ = tokio::time::timeout(RELEASE, lease.release(&kubernetes)).await;
    result
}

async fn start(
    options: &Options,
    kubernetes: &Arc<Kubernetes>,
    lease: &Lease,
) -> Result<std::convert::Infallible, RunError> {
    let metrics = Metrics::start();
    let health = Health::new(Arc::clone(&metrics));
    if let Some(address) = options.health_listen {
        tokio::spawn(health::serve(health::listen(address).await?, health.clone()));
    }
    let store = state::StateStore {
        dir: &options.state_dir,
        kubernetes,
    };
    let _only = store.prepare()?;
    let mut ground = join::Ground::read(&store, options.token()?.as_ref()).await?;
    join::stand_by(options, &store, &mut ground, lease, &health).await?;
    tokio::select! {
        result = act(options, kubernetes, &store, ground, lease, Told { health: &health, metrics }) => result,
        lost = lease.keep(kubernetes) => Err(lost.into()),
    }
}

/// Data for the node's requests.
struct Told<'a> {
    health: &'a Health,
    metrics: Arc<Metrics>,
}

/// Runs as the acting agent of the cluster.
async fn act(
    options: &Options,
    kubernetes: &Arc<Kubernetes>,
    store: &state::StateStore<'_>,
    ground: join::Ground,
    lease: &Lease,
    Told { health, metrics }: Told<'_>,
) -> Result<std::convert::Infallible, RunError> {
    let joined = join::join(options, store, ground, lease.name()).await?;
    let identity = &joined.identity;
    let accepted = retry("read the last accepted state", || store.load_desired(identity)).await;
    let inventories = retry("read inventories", || inventory::load_all(kubernetes)).await;
    let bundles = Bundles::new(options.state_dir.join("bundles"));
    bundles.load_cluster_copies(kubernetes).await;

    tracing::info!(
        cluster = format!("{}/{}", identity.cluster.namespace, identity.cluster.name),
        kubernetes = joined.kubernetes_version,
        services = accepted.as_ref().map_or(0, |s| s.entries.len()),
        "started"
    );

    let agent = Arc::new(Agent::new(options, kubernetes, joined, bundles, metrics)?);
    let mut supervisor = Supervisor::new(agent.clone(), inventories);
    if let Some(state) = &accepted {
        agent.set_health_rules(state.health.as_deref());
        agent.set_windows(state.windows.as_ref());
        supervisor.assign(state);
    }
    let own = update::Own::new(options);
    let (wanted, settings) = watch::channel(accepted.as_ref().and_then(|state| state.agent.clone()));
    let accepted = accepted.map(|state| AcceptedStatement {
        statement: state.statement,
        signature: state.signature,
    });

    tokio::join!(
        poll::run(
            &agent,
            store,
            accepted,
            poll::Listeners {
                supervisor: &mut supervisor,
                health,
                wanted
            }
        ),
        connection::run(&agent),
        plans::run(&agent),
        agent.reports.run(&agent),
        own.run(&agent, settings),
    );
    unreachable!("polling never ends")
}

/// Retries what the start depends on, until it succeeds.
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
