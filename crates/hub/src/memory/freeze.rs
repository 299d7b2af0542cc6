//! Whether deletions are frozen in the whole fleet.

use std::sync::{Arc, Mutex, PoisonError};

/// Why nothing is deleted in the whole fleet, from the last read of the Namespace; None: deletions are allowed.
#[derive(Debug, Default)]
pub struct Freeze(Mutex<Option<Arc<str>>>);

impl Freeze {
    pub fn reason(&self) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, reason: Option<Arc<str>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}
