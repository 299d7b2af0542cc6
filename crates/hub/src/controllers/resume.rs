//! The work that is left when the hub stops, so that the next start continues there and does not reconcile everything
//! again.
//!
//! Only an orderly stop saves it, and it is used once. After a crash, and if another program or other keys decide now,
//! everything is reconciled.

use std::sync::atomic::Ordering;

use farwater_store::{Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::{identity::Identity, replica::Replica, resources::Name};

/// The meta entry that has it.
const ENTRY: &str = "resume";
/// Maximum number of keys. With more, starting over costs no more.
const MOST: usize = 10_000;

#[derive(Debug, Serialize, Deserialize)]
pub struct Resume {
    decider: Decider,
    /// Every change up to this version has been routed.
    pub routed: u64,
    pub services: Vec<Name>,
    pub summaries: Vec<Name>,
    /// Names of ServiceSets.
    #[serde(default)]
    pub sets: Vec<Name>,
}

/// The program and keys whose decisions are stored; others may decide differently.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Decider {
    version: String,
    /// Length of the program's file, and its last change in nanoseconds since 1970.
    file: (u64, u128),
    key: String,
}

impl Decider {
    fn own(identity: &Identity) -> std::io::Result<Self> {
        let file = std::env::current_exe()?.metadata()?;
        let changed = file
            .modified()?
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        let (version, key) = (env!("CARGO_PKG_VERSION").to_owned(), identity.key_id().to_owned());
        Ok(Self {
            version,
            file: (file.len(), changed),
            key,
        })
    }
}

/// Takes what the last hub left, if it is usable; it can be taken once. Call this before there is anything new to do.
pub async fn take_left(store: &Store, identity: &Identity) -> Result<Option<Resume>, StoreError> {
    let left = store
        .transact(|tx| Box::pin(async move { tx.take_meta(ENTRY).await }))
        .await?;
    let Some(text) = left else { return Ok(None) };
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        tracing::warn!(
            error,
            "can't use the pending work that the last hub saved; reconciling everything"
        );
        None
    };
    let left: Resume = match serde_json::from_str(&text) {
        Ok(left) => left,
        Err(error) => return Ok(unusable(&error)),
    };
    match Decider::own(identity) {
        Ok(own) => Ok((own == left.decider).then_some(left)),
        Err(error) => Ok(unusable(&error)),
    }
}

/// Call this when all workers have ended and no request adds to the queues any more.
pub async fn leave(replica: &Replica) -> Result<(), StoreError> {
    let routed = replica.signals.routed.load(Ordering::Acquire);
    let (mut services, summaries) = (replica.queues.services.waiting(), replica.queues.summaries.waiting());
    let sets = replica.memory.sets.queue.waiting();
    // Requests are known in memory only, so the service has to make them again.
    services.extend(replica.memory.checks.requests.services());
    let decider = Decider::own(&replica.identity).map_err(StoreError::abort)?;
    if routed == 0 || services.len() + summaries.len() + sets.len() > MOST {
        return Ok(());
    }
    let left = Resume {
        decider,
        routed,
        services,
        summaries,
        sets,
    };
    replica
        .store
        .put_meta(ENTRY, &serde_json::to_string(&left).map_err(StoreError::abort)?)
        .await
}
