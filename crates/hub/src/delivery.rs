//! Delivery: the endpoints of agents, and the memory from which agents are answered.
//!
//! ```text
//! route_changes ─► fetch_sources ─► assign_revisions ─► compute_desired ─► (etag in memory) ◄─ poll
//!                                        ▲                                                     │
//!                                        └──────────── summarize_reports ◄──── reports ◄─ status
//! ```

pub mod admission;
mod answer;
pub mod bundles;
pub mod clock;
pub mod clusters;
mod connection;
pub mod connections;
mod counters;
pub mod desired;
pub mod join;
pub mod keys;
pub mod parameters;
pub mod plans;
pub mod secrets;
pub mod status;
pub mod token;

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    response::{IntoResponse as _, Response},
};
use farwater_api::protocol::{MAX_STATUS_BYTES, PROTOCOL, PROTOCOL_HEADER};
use farwater_store::{Store, StoreError, delivery::assignments_of_cluster};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    bodies::BodyError,
    controllers::{
        WorkQueue,
        fetch_sources::Checks,
        follow_windows::Windows,
        freeze_prunes::Freeze,
        git::{Mirrors, SourceSettings},
        large_files::LargeFetches,
        pipelines::Pipelines,
        resources::Name,
        seen::Seen,
        sets::Sets,
        source_access::SharedCredentials,
        sources::SourceName,
        surveys::Surveys,
        trace_deliveries::Timeline,
    },
    endpoint::Endpoint,
    identity::Identity,
    notify::Notifications,
    receivers::Receivers,
    secret_backends::SecretBackends,
};
use answer::Refusal;
use clock::SteadyClock;
use clusters::Clusters;
use connections::Connections;
use counters::Counters;
pub use counters::{DeliveryResult, FetchResult};
use plans::Plans;

/// Maximum length of a join request or an assertion, in bytes.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Maximum length of the body of any agent's request, in bytes.
pub const MAX_AGENT_BODY: usize =
    if MAX_STATUS_BYTES > plans::MAX_REPORT_BYTES { MAX_STATUS_BYTES } else { plans::MAX_REPORT_BYTES };

/// The state that controllers and endpoints share: keys, tags and times, never objects.
pub struct Delivery {
    pub store: Store,
    pub identity: Arc<Identity>,
    /// URL at which agents reach the hub.
    pub url: String,
    /// Lowest epoch under which desired states are published.
    pub epoch: u64,
    /// Polls from before the clock was steady don't count as heard.
    pub clock: SteadyClock,
    pub clusters: Clusters,
    pub connections: Connections,
    pub plans: Plans,
    pub secret_backends: Arc<SecretBackends>,
    pub mirrors: Mirrors,
    pub large_fetches: LargeFetches,
    /// Credentials that serve the sources below a prefix.
    pub shared: SharedCredentials,
    pub served: bundles::Served,
    pub checks: Checks,
    pub sources: Arc<WorkQueue<SourceName>>,
    pub services: Arc<WorkQueue<Name>>,
    pub summaries: Arc<WorkQueue<Name>>,
    /// Uids of clusters.
    pub cluster_work: Arc<WorkQueue<String>>,
    pub receivers: Receivers,
    pub receiver_work: Arc<WorkQueue<Name>>,
    /// Receivers with deliveries that are to be handled.
    pub inboxes: Arc<WorkQueue<Name>>,
    pub sets: Sets,
    /// Names of ManagedNamespaces.
    pub namespaces: Arc<WorkQueue<Name>>,
    pub surveys: Surveys,
    pub notifications: Notifications,
    pub pipelines: Pipelines,
    /// Clusters, services, sources and grants as they were acted upon.
    pub seen: Seen,
    /// Whether deletions are frozen in the fleet.
    pub freeze: Freeze,
    /// Whether changes may start.
    pub windows: Windows,
    pub counters: Counters,
    pub timeline: Timeline,
    /// Notified when clusters were marked dirty.
    pub dirty: Notify,
    /// Notified when an AgentPolicy, or what an agent reports about itself, has changed.
    pub agents: Notify,
    /// Notified when a mirror may have become unused.
    pub collect: Notify,
    /// Every change up to this version was routed to the queues; 0: not everything is loaded yet.
    pub routed: AtomicU64,
}

impl Delivery {
    /// `data`: the hub's data directory, for mirrors and bundles.
    pub async fn open(
        store: Store,
        identity: Arc<Identity>,
        data: PathBuf,
        url: String,
        connections: Connections,
        sources: SourceSettings,
    ) -> Result<Self, OpenError> {
        let started = Timestamp::now().as_second();
        // Higher than every epoch of an earlier installation with the same keys, even if its database is lost.
        let epoch = store.init_meta("epoch", &started.to_string()).await?;
        let epoch = epoch.parse().map_err(|_| OpenError::Epoch(epoch))?;
        Ok(Self {
            secret_backends: Arc::new(SecretBackends::new(store.clone())),
            store,
            identity,
            url,
            epoch,
            clock: SteadyClock::start(),
            clusters: Clusters::default(),
            connections,
            plans: Plans::default(),
            mirrors: Mirrors::open(&data, sources)?,
            large_fetches: LargeFetches::default(),
            shared: SharedCredentials::default(),
            served: bundles::Served::default(),
            checks: Checks::default(),
            sources: Arc::default(),
            services: Arc::default(),
            summaries: Arc::default(),
            cluster_work: Arc::default(),
            receivers: Receivers::new(),
            receiver_work: Arc::default(),
            inboxes: Arc::default(),
            sets: Sets::default(),
            namespaces: Arc::default(),
            surveys: Surveys::default(),
            notifications: Notifications::default(),
            pipelines: Pipelines::default(),
            seen: Seen::default(),
            freeze: Freeze::default(),
            windows: Windows::default(),
            counters: Counters::default(),
            timeline: Timeline::default(),
            dirty: Notify::new(),
            agents: Notify::new(),
            collect: Notify::new(),
            routed: AtomicU64::new(0),
        })
    }

    /// Requeues a Cluster, because something about it has changed.
    pub fn check_cluster(&self, uid: &str) {
        if let Some(state) = self.clusters.get(uid) {
            state.settle(false);
            state.wake();
        }
        self.cluster_work.add(uid.to_owned());
    }

    /// A cluster that is not loaded may still exist, so agents have to wait until loading is done.
    fn check_loaded(&self) -> Result<(), Refusal> {
        if self.clusters.is_loaded() { Ok(()) } else { Err(Refusal::Unavailable("the hub is starting".to_owned())) }
    }

    async fn wake_after_join(&self, uid: &str) -> Result<(), StoreError> {
        self.check_cluster(uid);
        self.agents.notify_one();
        self.note_new_entries(uid).await
    }

    /// The entries of a marked cluster may change: wakes the computation of its state, and requeues the summaries of
    /// its services, which compare reports with entries. That is also needed if the entries return to those that the
    /// agent has reported on, because then it sends nothing.
    pub async fn note_new_entries(&self, uid: &str) -> Result<(), StoreError> {
        self.dirty.notify_one();
        for row in assignments_of_cluster(&mut *self.store.tables().await?, uid).await? {
            self.summaries.add(Name { namespace: row.namespace, name: row.name });
        }
        Ok(())
    }

    /// Sets `status.lastHeardTime` and `status.connected` of a Cluster that is being read. They are kept outside the
    /// resource, so that a poll or a broken connection wakes no watch.
    pub fn merge_last_heard(&self, cluster: &mut Value) {
        let Some(uid) = cluster["metadata"]["uid"].as_str() else { return };
        let Some(state) = self.clusters.get(uid) else { return };
        if state.connection().is_some() {
            cluster["status"]["connected"] = true.into();
        }
        let Some(heard) = state.heard() else { return };
        if let Ok(time) = Timestamp::from_second(heard) {
            cluster["status"]["lastHeardTime"] = time.to_string().into();
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("read the installation's epoch: {0:?} is no number")]
    Epoch(String),
    #[error("make the directory of mirrors or bundles")]
    Directory(#[from] std::io::Error),
}

/// The endpoints of agents: `/agent/v1/…`, as `farwater_api::protocol` describes them.
pub fn router<S: Clone + Send + Sync + 'static>(delivery: Arc<Delivery>) -> Router<S> {
    Endpoint::router(endpoints()).with_state(delivery).layer(middleware::map_response(name_protocol))
}

/// Every answer names the hub's protocol, refusals too: an agent that can't read the rest then knows why.
async fn name_protocol(mut response: Response) -> Response {
    response.headers_mut().insert(HeaderName::from_static(PROTOCOL_HEADER), HeaderValue::from(PROTOCOL));
    response
}

/// The answer to an agent's request whose body could not be read.
pub fn refuse_body(error: BodyError, headers: &HeaderMap) -> Response {
    match error {
        // An agent whose token expired may send a long report: the report is fine, and the agent needs a new token.
        BodyError::TooLarge(MAX_REQUEST_BYTES) if headers.contains_key(header::AUTHORIZATION) => {
            Refusal::AccessTokenUnknown
        }
        BodyError::TooLarge(_) => Refusal::TooLarge,
        // The agent sends it again.
        BodyError::Slow(_) | BodyError::Broken => Refusal::Unavailable(error.to_string()),
        BodyError::NoRoom => Refusal::Unavailable("too many bodies are being read".to_owned()),
    }
    .into_response()
}

pub(crate) fn endpoints() -> Vec<Endpoint<Arc<Delivery>>> {
    let small = || DefaultBodyLimit::max(MAX_REQUEST_BYTES);
    let status = DefaultBodyLimit::max(MAX_STATUS_BYTES);
    let plan = DefaultBodyLimit::max(plans::MAX_REPORT_BYTES);
    vec![
        Endpoint::post("/agent/v1/join", join::post_join).map(|handler| handler.layer(small())),
        Endpoint::post("/agent/v1/token", token::post_token).map(|handler| handler.layer(small())),
        Endpoint::get("/agent/v1/desired", desired::get_desired),
        Endpoint::get("/agent/v1/connection", connection::get_connection),
        Endpoint::get("/agent/v1/bundles/{digest}", bundles::get_bundle),
        Endpoint::get("/agent/v1/secrets/{service}/{mac}", secrets::get_secrets),
        Endpoint::get("/agent/v1/parameters/{service}/{mac}", parameters::get_parameters),
        Endpoint::get("/agent/v1/plans", plans::get_plan),
        Endpoint::post("/agent/v1/plans/{id}", plans::post_plan).map(|handler| handler.layer(plan)),
        Endpoint::post("/agent/v1/status", status::post_status).map(|handler| handler.layer(status)),
        Endpoint::get("/agent/v1/successions/{sequence}", keys::get_successions),
        Endpoint::post("/agent/v1/keys", keys::post_keys).map(|handler| handler.layer(small())),
        Endpoint::any("/agent/{*path}", answer::unknown_path),
    ]
}
