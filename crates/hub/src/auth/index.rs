//! The roles and bindings in memory, kept up to date by the store's watch.

use std::{
    sync::{Arc, RwLock},
    time::Duration,
};

use farwater_fleet::access::{Policy, PolicyKind, RBAC_GROUP};
use farwater_store::{Kind, ListQuery, Operation, Store, StoreError, Watch, WatchEvent};
use futures::{StreamExt as _, stream::ReadyChunks};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::AccessError;

/// How long a request waits for the index. It is behind by microseconds unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the store is read again after a failure.
const PAUSE: Duration = Duration::from_millis(500);
/// Changes that are applied under one lock.
const BATCH: usize = 256;

/// The store's version up to which the policy is complete; None: it is not following.
type Position = Option<u64>;

#[derive(Clone)]
pub(super) struct Index {
    policy: Arc<RwLock<Policy>>,
    position: watch::Receiver<Position>,
}

impl Index {
    pub(super) async fn start(store: Store, shutdown: CancellationToken) -> Result<Self, StoreError> {
        let (policy, version) = load_policy(&store).await?;
        let policy = Arc::new(RwLock::new(policy));
        let (sender, position) = watch::channel(Some(version));
        let feed = Feed {
            store,
            policy: Arc::clone(&policy),
            position: sender,
        };
        tokio::spawn(shutdown.run_until_cancelled_owned(feed.run(version)));
        Ok(Self { policy, position })
    }

    /// Waits until every change up to `version` is in the policy.
    pub(super) async fn reach(&self, version: u64) -> Result<(), AccessError> {
        let mut position = self.position.clone();
        let reached = position.wait_for(|position| position.is_some_and(|position| position >= version));
        match timeout(PATIENCE, reached).await {
            Ok(Ok(_)) => Ok(()),
            // The feed has ended or is too slow, so the policy may be incomplete.
            Ok(Err(_)) | Err(_) => Err(AccessError::Behind),
        }
    }

    pub(super) fn read<T>(&self, decide: impl FnOnce(&Policy) -> T) -> Result<T, AccessError> {
        // A poisoned lock means that the policy was left half changed.
        let policy = self.policy.read().map_err(|_| AccessError::Behind)?;
        Ok(decide(&policy))
    }

    pub(super) fn is_following(&self) -> bool {
        self.position.borrow().is_some() && self.position.has_changed().is_ok() && !self.policy.is_poisoned()
    }
}

struct Feed {
    store: Store,
    policy: Arc<RwLock<Policy>>,
    position: watch::Sender<Position>,
}

impl Feed {
    /// Follows until the store is closed. A watch that ends is started again from a new list.
    async fn run(self, mut version: u64) {
        loop {
            match self.store.watch(None, version) {
                Ok(watch) => self.follow(watch.ready_chunks(BATCH)).await,
                Err(error) => tracing::warn!(%error, "the index of roles and bindings has to be read again"),
            }
            self.position.send_replace(None);
            match self.reload().await {
                Some(reached) => version = reached,
                None => return,
            }
        }
    }

    async fn follow(&self, mut changes: ReadyChunks<Watch>) {
        while let Some(batch) = changes.next().await {
            let mut reached = None;
            {
                let Ok(mut policy) = self.policy.write() else { return };
                for change in batch {
                    match change {
                        Ok(event) => {
                            take_in(&mut policy, &event);
                            reached = Some(event.version);
                        }
                        Err(error) => {
                            tracing::warn!(%error, "the index of roles and bindings has to be read again");
                            return;
                        }
                    }
                }
            }
            if reached.is_some() {
                self.position.send_replace(reached);
            }
        }
    }

    /// Reads the policy again and returns its version; None: the store is closed.
    async fn reload(&self) -> Option<u64> {
        loop {
            match load_policy(&self.store).await {
                Ok((policy, version)) => {
                    if let Ok(mut current) = self.policy.write() {
                        *current = policy;
                    }
                    self.position.send_replace(Some(version));
                    return Some(version);
                }
                Err(StoreError::Closed) => return None,
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "roles and bindings can't be read"
                    );
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

fn store_kind(kind: PolicyKind) -> Kind {
    Kind::new(kind.plural(), RBAC_GROUP)
}

/// Every role and binding, and a version from which to follow. The four lists are from different moments; the version
/// is the first one's. Changes after it that a later list already contains are applied again, which has no effect.
async fn load_policy(store: &Store) -> Result<(Policy, u64), StoreError> {
    let mut policy = Policy::default();
    let mut version = None;
    for kind in PolicyKind::ALL {
        let query = ListQuery::all(store_kind(kind));
        let page = store.list(&query).await?;
        version.get_or_insert(page.version);
        for resource in page.items {
            policy.apply(
                kind,
                &resource.key.namespace,
                &resource.key.name,
                Some(&resource.object),
            );
        }
    }
    Ok((policy, version.unwrap_or_default()))
}

fn take_in(policy: &mut Policy, event: &WatchEvent) {
    let Some(kind) = PolicyKind::ALL.into_iter().find(|kind| is_kind(&event.key.kind, *kind)) else {
        return;
    };
    let object = match event.operation {
        Operation::Created | Operation::Updated => Some(&*event.object),
        Operation::Deleted => None,
    };
    policy.apply(kind, &event.key.namespace, &event.key.name, object);
}

/// Compares without building the name, because this is called for every change in the hub.
fn is_kind(stored: &Kind, kind: PolicyKind) -> bool {
    let rest = stored
        .as_str()
        .strip_prefix(kind.plural())
        .and_then(|rest| rest.strip_prefix('.'));
    rest == Some(RBAC_GROUP)
}
