//! Threads that work on the API's requests and give way to all others: a storm of lists must not make agents late.
//!
//! Connections stay where they are, so what a client costs there is a request's head and the sending of its answer.

use std::{io, panic::resume_unwind};

use axum::response::Response;
use http::StatusCode;
use tokio::runtime::{Builder, Runtime};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::status::try_later;

pub struct ApiThreads(Option<Runtime>);

impl ApiThreads {
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().thread_name("api").enable_all().on_thread_start(give_way).build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a request there. It ends with whoever waits for it.
    pub async fn run(&self, work: impl Future<Output = Response> + Send + 'static) -> Response {
        let Some(runtime) = &self.0 else { return ending() };
        match AbortOnDropHandle::new(runtime.spawn(work.in_current_span())).await {
            Ok(response) => response,
            Err(error) => error.try_into_panic().map_or_else(|_| ending(), |panic| resume_unwind(panic)),
        }
    }
}

fn ending() -> Response {
    try_later(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "the hub is stopping")
}

impl Drop for ApiThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // The last to use it may be one of its own threads.
            runtime.shutdown_background();
        }
    }
}

fn give_way() {
    // Where threads compete, one that isn't nice gets three times the time of one that is this nice.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 5) {
        tracing::debug!(%error, "requests to the API don't give way to agents");
    }
}
