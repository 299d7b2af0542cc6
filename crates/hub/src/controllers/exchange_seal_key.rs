//! exchange_seal_key: a wish for another seal key → another one, and behind it all that was sealed before is sealed anew.
//!
//! Nothing stops meanwhile. Whatever is killed goes on at the next start: which key counts the database says, and what is
//! left to be sealed anew is found there.

use std::{path::PathBuf, time::Duration};

use farwater_store::{Resealing, Store};

use crate::{
    controllers::chain,
    identity::{IdentityError, finish_seal_key, is_seal_key_wanted, stage_seal_key},
};

/// How soon a wish is seen. It is a file: looking costs nothing.
const LOOK: Duration = Duration::from_secs(5);
/// After each step, of 100 rows: 2,000 rows a second, and writers have most of the time.
const PAUSE: Duration = Duration::from_millis(50);

pub async fn run(store: Store, directory: PathBuf) {
    // What an earlier start has left to do.
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
    tracing::info!(key = next.id(), "the seal key was rotated; back up keys/ now. Older Secrets are sealed again");
    Ok(true)
}

/// `true`: nothing is sealed with keys of before any more.
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
                tracing::info!(steps, "all that is sealed is sealed with the newest key; those before are gone");
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
