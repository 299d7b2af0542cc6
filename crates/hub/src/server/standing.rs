//! What a connection does now: whether it rests, and how many requests are on it.

use std::{
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Instant,
};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;

use crate::server::KnownClient;

/// One connection, as the others see it.
pub(super) struct Standing {
    pub(super) peer: IpAddr,
    /// Number of running requests, until their answers are sent.
    pub(super) requests: AtomicUsize,
    /// When a request began or ended last, or the connection was opened.
    pub(super) moved: Mutex<Instant>,
    pub(super) is_known: AtomicBool,
    /// Whether it was chosen to close.
    pub(super) is_leaving: AtomicBool,
    /// Notified to close it when its current requests end.
    pub(super) leaves: Notify,
}

impl Standing {
    pub(super) fn begin(self: &Arc<Self>) -> Request {
        self.touch();
        self.requests.fetch_add(1, Ordering::AcqRel);
        Request(Arc::clone(self))
    }

    pub(super) fn note_response(&self, response: &http::Response<Body>) {
        if response.extensions().get::<KnownClient>().is_some() {
            self.is_known.store(true, Ordering::Relaxed);
        }
    }

    /// Since when it has been idle; None: a request is running.
    pub(super) fn rests_since(&self) -> Option<Instant> {
        (self.requests.load(Ordering::Acquire) == 0).then(|| self.last_moved())
    }

    pub(super) fn close(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.leaves.notify_one();
    }

    /// When a request began or ended last.
    pub(super) fn last_moved(&self) -> Instant {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn touch(&self) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// In each request's extensions: closes the request's connection.
#[derive(Clone)]
pub struct Closer(pub(super) Arc<Standing>);

impl Closer {
    /// Running requests have [`LAST_WORDS`] to end.
    pub fn close(&self) {
        self.0.close();
    }
}

/// A running request, until its answer is sent.
pub(super) struct Request(pub(super) Arc<Standing>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An answer's body. The request counts as running until its end.
pub(super) struct Answer {
    pub(super) body: Body,
    pub(super) _under_way: Request,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
