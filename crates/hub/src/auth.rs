//! Authentication by bearer tokens, and authorization by RBAC over an index in memory.
//!
//! The decision itself is [`farwater_fleet::access`], a function of data. This module feeds it: every change of a role
//! or binding reaches the index through the store's watch. A request is decided only when the index has reached the
//! store's position at the request's arrival. So a client's own change counts for its next request. An index that can't
//! follow denies with [`AccessError::Behind`] and never allows.

mod impersonation;
mod index;
mod tokens;

use farwater_store::{Store, StoreError};
use serde_json::Value;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

pub use farwater_fleet::access::{Attributes, Decision, Rule, User, escalation::Escalation};
pub use impersonation::{ImpersonationError, wanted_name};
pub use tokens::{IssuedToken, TokenError, TokenOwner, Unauthenticated};

use index::Index;

/// Authentication and authorization. Clones share one index.
#[derive(Clone)]
pub struct Access {
    store: Store,
    index: Index,
}

/// Why a decision could not be made. Always answered with 503, never with permission.
#[derive(Debug, Error)]
pub enum AccessError {
    #[error("the index of roles and bindings is behind the store; try again")]
    Behind,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a role or binding was refused.
#[derive(Debug, Error)]
pub enum EscalationError {
    #[error(transparent)]
    Refused(#[from] Escalation),
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl Access {
    /// Reads every role and binding, and follows them until `end`.
    pub async fn start(store: Store, end: CancellationToken) -> Result<Self, StoreError> {
        let index = Index::start(store.clone(), end).await?;
        Ok(Self { store, index })
    }

    pub async fn authorize(&self, user: &User, request: &Attributes) -> Result<Decision, AccessError> {
        self.index.reach(self.store.position()).await?;
        self.index.read(|policy| policy.authorize(user, request))
    }

    /// Everything that a user may do in a namespace, as `kubectl auth can-i --list` shows it.
    pub async fn rules(&self, user: &User, namespace: &str) -> Result<Vec<Rule>, AccessError> {
        self.index.reach(self.store.position()).await?;
        self.index.read(|policy| policy.rules(user, namespace))
    }

    /// Whether a user may write this object without granting more than they hold. Only roles and bindings can be
    /// refused; the object must be complete, with kind, name and namespace.
    pub async fn check_escalation(&self, user: &User, object: &Value) -> Result<(), EscalationError> {
        self.index.reach(self.store.position()).await?;
        Ok(self.index.read(|policy| policy.check_escalation(user, object))??)
    }

    /// Whether decisions can be made now.
    pub fn is_ready(&self) -> bool {
        self.index.is_following()
    }
}

#[cfg(test)]
mod tests;
