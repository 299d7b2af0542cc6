//! Running and failed fetches of large files.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use farwater_api::Digest;
use tokio::{sync::Semaphore, time::Instant};

use crate::resources::Name;

/// Maximum fetches of all sources together. A host has fewer, so that none takes all of them.
const AT_ONCE: usize = 16;

/// Running and failed fetches, by source and content.
pub struct LargeFetches {
    state: Mutex<HashMap<(String, Digest), Fetch>>,
    pub places: Semaphore,
}

pub enum Fetch {
    /// With the services that wait for it.
    Running(BTreeSet<Name>),
    Failed {
        message: String,
        until: Instant,
    },
}

impl Default for LargeFetches {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            places: Semaphore::new(AT_ONCE),
        }
    }
}

impl LargeFetches {
    pub fn state(&self) -> MutexGuard<'_, HashMap<(String, Digest), Fetch>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
