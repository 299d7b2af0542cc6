//! The state of one hub process that its controllers and endpoints share. Everything durable is in the store; after a
//! restart the rest is built from it.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
};

use farwater_store::{Store, StoreError};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    identity::Identity,
    memory::{
        Memory,
        clock::SteadyClock,
        connections::Connections,
        credentials::SharedCredentials,
        large_fetches::LargeFetches,
        mirrors::{Mirrors, SourceSettings},
    },
    notify::Notifications,
    queue::WorkQueue,
    receivers::Receivers,
    resources::{Name, SourceName},
    secret_backends::SecretBackends,
};

/// One process of the hub. Functions that need only a part take that part.
pub struct Replica {
    pub store: Store,
    pub identity: Arc<Identity>,
    /// URL at which agents reach the hub.
    pub url: String,
    /// Lowest epoch under which desired states are published.
    pub epoch: u64,
    /// Polls from before the clock was steady don't count as heard.
    pub clock: SteadyClock,
    pub memory: Memory,
    pub queues: Queues,
    pub signals: Signals,
    pub access: SourceAccess,
    pub secret_backends: Arc<SecretBackends>,
    pub notifications: Notifications,
    pub receivers: Receivers,
}

/// Keys that controllers have to reconcile. The queues of sets, pipelines and notifications lie beside the state that
/// decides what is queued: in [`Memory`] and [`Notifications`].
#[derive(Default)]
pub struct Queues {
    pub sources: Arc<WorkQueue<SourceName>>,
    pub services: Arc<WorkQueue<Name>>,
    /// Services whose reports are to be summarized.
    pub summaries: Arc<WorkQueue<Name>>,
    /// Uids of clusters.
    pub clusters: Arc<WorkQueue<String>>,
    pub receivers: Arc<WorkQueue<Name>>,
    /// Receivers with deliveries that are to be handled.
    pub inboxes: Arc<WorkQueue<Name>>,
    /// ManagedNamespaces.
    pub namespaces: Arc<WorkQueue<Name>>,
}

/// Wakes controllers that have no queue.
#[derive(Default)]
pub struct Signals {
    /// Notified when clusters were marked dirty.
    pub dirty: Notify,
    /// Notified when an AgentPolicy, or what an agent reports about itself, has changed.
    pub agents: Notify,
    /// Notified when a mirror may have become unused.
    pub collect: Notify,
    /// Every change up to this version was routed to the queues; 0: not everything is loaded yet.
    pub routed: AtomicU64,
}

/// How sources are reached, and where their files are kept.
pub struct SourceAccess {
    pub mirrors: Mirrors,
    pub large_fetches: LargeFetches,
    /// Credentials that serve the sources below a prefix.
    pub credentials: SharedCredentials,
}

impl Replica {
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

        let access = SourceAccess {
            mirrors: Mirrors::open(&data, sources)?,
            large_fetches: LargeFetches::default(),
            credentials: SharedCredentials::default(),
        };
        Ok(Self {
            secret_backends: Arc::new(SecretBackends::new(store.clone())),
            store,
            identity,
            url,
            epoch,
            clock: SteadyClock::start(),
            memory: Memory::new(connections),
            queues: Queues::default(),
            signals: Signals::default(),
            access,
            notifications: Notifications::default(),
            receivers: Receivers::new(),
        })
    }

    /// Sets `status.lastHeardTime` and `status.connected` of a Cluster that is being read. They are kept outside the
    /// resource, so that a poll or a broken connection wakes no watch.
    pub fn merge_last_heard(&self, cluster: &mut Value) {
        let Some(uid) = cluster["metadata"]["uid"].as_str() else {
            return;
        };
        let Some(state) = self.memory.clusters.get(uid) else {
            return;
        };
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
    Directory(#[from] io::Error),
}
