//! One request on its way through the API server.

use std::sync::Arc;

use farwater_store::{Key, Resource, StoreError};
use http::HeaderMap;
use jiff::Timestamp;

use super::{
    request::{Query, RequestInfo},
    respond::Form,
};
use crate::{
    Hub,
    auth::User,
    kinds::{ResourceKind, status::ApiError},
};

pub struct Call {
    pub hub: Arc<Hub>,
    pub user: User,
    pub info: RequestInfo,
    pub kind: &'static ResourceKind,
    pub query: Query,
    pub headers: HeaderMap,
    pub form: Form,
    pub now: Timestamp,
}

impl Call {
    pub fn key(&self, name: &str) -> Key {
        self.key_in(self.kind, name)
    }

    pub fn key_in(&self, kind: &ResourceKind, name: &str) -> Key {
        let namespace = if kind.namespaced {
            self.info.namespace.clone()
        } else {
            String::new()
        };
        Key {
            kind: kind.store.clone(),
            namespace,
            name: name.to_owned(),
        }
    }

    pub fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(&self.kind.group, &self.kind.plural, name)
    }

    pub fn forbidden(&self, name: &str, why: &str) -> ApiError {
        ApiError::forbidden(&self.kind.group, &self.kind.plural, name, why)
    }

    pub async fn load(&self, name: &str) -> Result<Resource, ApiError> {
        let found = self.hub.store.get(&self.key(name)).await.map_err(store_failed)?;
        found.ok_or_else(|| self.not_found(name))
    }
}

/// A failing store is not the client's fault and never "not found".
pub fn store_failed(error: StoreError) -> ApiError {
    if let StoreError::TooLarge { max, .. } = error {
        let message = format!(
            "the list is larger than {} MB; ask for it in pages, with limit and continue",
            max >> 20
        );
        return ApiError::new(413, "RequestEntityTooLarge", message);
    }
    tracing::error!(error = &error as &dyn std::error::Error, "the store failed a request");
    match error {
        // Not 503: clients repeat such a request, and the write may have been committed.
        StoreError::Unknown { .. } => ApiError::outcome_unknown(error.to_string()),
        StoreError::Closed | StoreError::Taken { .. } => ApiError::unavailable(error.to_string()),
        error if error.retry() => ApiError::unavailable(error.to_string()),
        error => ApiError::internal(error),
    }
}

#[cfg(test)]
mod tests {
    use farwater_store::Kind;

    use super::*;

    #[test]
    fn a_list_that_is_too_large_is_told_what_to_do() {
        let error = store_failed(StoreError::TooLarge {
            kind: Kind::from("configmaps"),
            max: 64 << 20,
        });
        assert_eq!((error.code, error.reason), (413, "RequestEntityTooLarge"));
        assert_eq!(
            error.message,
            "the list is larger than 64 MB; ask for it in pages, with limit and continue"
        );
    }
}
