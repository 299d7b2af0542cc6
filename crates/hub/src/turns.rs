//! Turns: how many requests of one class are worked on at once.

use std::{sync::Arc, time::Duration};

use axum::response::Response;
use http::StatusCode;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::status::try_later;

/// How long a request waits for its turn before it is told to come again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Agents and the API have turns of their own: a storm of lists must not make agents late.
#[derive(Clone)]
pub struct Turns {
    permits: Arc<Semaphore>,
    patience: Duration,
    refusal: StatusCode,
    reason: &'static str,
}

/// One request's turn. It ends when this is dropped.
pub struct Turn {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// For what costs nothing and is never refused.
    pub fn free() -> Self {
        Self { _permit: None }
    }
}

impl Turns {
    pub fn of_api(limit: usize) -> Self {
        Self::new(limit, StatusCode::TOO_MANY_REQUESTS, "TooManyRequests")
    }

    pub fn of_agents(limit: usize) -> Self {
        Self::new(limit, StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
    }

    fn new(limit: usize, refusal: StatusCode, reason: &'static str) -> Self {
        Self { permits: Arc::new(Semaphore::new(limit)), patience: PATIENCE, refusal, reason }
    }

    /// A new request's turn, or its refusal: answered soon, it can go to another replica or come again.
    pub async fn begin(&self) -> Result<Turn, Response> {
        match timeout(self.patience, self.next()).await {
            Ok(turn) => Ok(turn),
            Err(_) => {
                let message = "the server has too many requests to work on; try again";
                Err(try_later(self.refusal, self.reason, message))
            }
        }
    }

    /// A further turn of a request that was begun: it waits as long as it takes. Turns come in the order of asking.
    pub async fn next(&self) -> Turn {
        // Nobody closes the semaphore; if somebody did, working on would be better than an answer that breaks off.
        Turn { _permit: Arc::clone(&self.permits).acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    #[tokio::test]
    async fn a_storm_of_lists_makes_no_agent_late() {
        let api = Turns { patience: Duration::from_millis(50), ..Turns::of_api(1) };
        let agents = Turns::of_agents(1);
        let list = api.begin().await.unwrap();
        let refused = api.begin().await.err().unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
        assert!(agents.begin().await.is_ok());
        drop(list);
        assert!(api.begin().await.is_ok());
    }
}
