//! Reads for explanations, which nothing waits for: bounded in size, and not retried.

use http::Method;
use serde_json::Value;

use super::{ApiError, As, JSON, Kubernetes, METADATA_LIST, list, not_json, parse};

/// Largest answer that is read.
const MAX_LOOK: usize = 4 << 20;

impl Kubernetes {
    pub async fn look(&self, who: As<'_>, path: &str) -> Result<Value, ApiError> {
        parse(&self.call_once(who, Method::GET, path, JSON, None, MAX_LOOK).await?)
    }

    /// One page of a list.
    pub async fn look_at_list(
        &self,
        who: As<'_>,
        path: &str,
        metadata_only: bool,
        mut each: impl FnMut(Value),
    ) -> Result<(), ApiError> {
        let accept = if metadata_only { METADATA_LIST } else { JSON };
        let body = self.call_once(who, Method::GET, path, accept, None, MAX_LOOK).await?;
        list::read(&body, &mut each).map(drop).map_err(|error| not_json(&error))
    }
}
