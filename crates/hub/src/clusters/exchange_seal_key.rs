//! exchange_seal_key: a request for a new seal key → the new key; after that, everything sealed before is sealed again.
//!
//! Nothing is suspended meanwhile. A killed exchange continues at the next start: the database says which key counts,
//! and which rows are left to seal.

use std::{path::PathBuf, time::Duration};

use farwater_store::{Resealing, Store};

use crate::{
    errors::chain,
    identity::{IdentityError, finish_seal_key, is_seal_key_wanted, stage_seal_key},
};

/// How soon a request is noticed. It is a file, so looking costs nothing.
const LOOK: Duration = Duration::from_secs(5);
/// Pause after each step of 100 rows: 2,000 rows a second, which leaves most of the time to other writers.
const PAUSE: Duration = Duration::from_millis(50);

pub async fn run(store: Store, directory: PathBuf) {
    // An earlier process may have left rows to seal.
    let mut is_open = true;
    loop {
        match exchange(&store, &directory).await {
            Ok(exchanged) => is_open |= exchanged,
            Err(error) => tracing::error!(error = %chain(&error), "exchange the seal key"),
        }
        if is_open {
            is_open = !reseal(&store).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn exchange(store: &Store, directory: &std::path::Path) -> Result<bool, IdentityError> {
    if !is_seal_key_wanted(directory)? {
        return Ok(false);
    }
    let next = stage_seal_key(directory)?;
    store.rotate_seal_key(next.bytes()).await?;
    finish_seal_key(directory)?;
    is_seal_key_wanted(directory)?;
    tracing::info!(
        key = next.id(),
        "the seal key was rotated; back up keys/ now. Older Secrets are sealed again"
    );
    Ok(true)
}

/// `true`: nothing is sealed with an earlier key any more.
async fn reseal(store: &Store) -> bool {
    match store.data_keys().await {
        Ok(keys) if keys.len() <= 1 => return true,
        _ => {}
    }
    let (mut place, mut steps) = (Resealing::default(), 0_u64);
    loop {
        match store.reseal(&mut place).await {
            Ok(true) => steps += 1,
            Ok(false) => {
                tracing::info!(
                    steps,
                    "all that is sealed is sealed with the newest key; those before are gone"
                );
                return true;
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "sealing continues later");
                return false;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
