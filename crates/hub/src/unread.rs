//! The unread rest of a request's body when its answer is ready.
//!
//! An answer that is ready before the whole body was read, mostly a refusal, ends its HTTP/2 stream with a reset. On
//! HTTP/1.1 the unread bytes reset the connection. Clients that are still sending (e.g. curl 7.88 of Debian 12) then
//! lose the answer. So a limited rest of the body is read first.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::timeout;

/// Bytes that are read and dropped: more than the longest body of any endpoint, a webhook's.
const BYTES: usize = 32 << 20;
/// Time limit for reading them.
const TIME: Duration = Duration::from_secs(1);

/// A body that its request's handler reads. The rest can be read after the handler ends.
pub struct Read<B>(Arc<Mutex<B>>);

/// The rest of a body.
pub struct Rest<B>(Arc<Mutex<B>>);

pub fn split<B>(body: B) -> (Read<B>, Rest<B>) {
    let body = Arc::new(Mutex::new(body));
    (Read(Arc::clone(&body)), Rest(body))
}

impl<B: Body + Unpin> Body for Read<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Rest<B> {
    /// Reads and drops up to [`BYTES`], for up to [`TIME`]; nothing while a handler still reads.
    pub async fn drain(self) {
        let Ok(body) = Arc::try_unwrap(self.0) else { return };
        let mut body = body.into_inner().unwrap_or_else(PoisonError::into_inner);
        let reading = async {
            let mut left = BYTES;
            while !body.is_end_stream()
                && let Some(Ok(frame)) = body.frame().await
                && let Some(after) = left.checked_sub(frame.data_ref().map_or(0, |data| data.remaining()))
            {
                left = after;
            }
        };
        let _ = timeout(TIME, reading).await;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};
    use tokio::time::Instant;

    use super::*;

    /// Pieces of a MiB, one per `pause`, and how many of them were read.
    fn body(pieces: usize, pause: Duration) -> (axum::body::Body, Arc<Mutex<usize>>) {
        let taken = Arc::new(Mutex::new(0));
        let count = Arc::clone(&taken);
        let piece = move |_| {
            let count = Arc::clone(&count);
            async move {
                tokio::time::sleep(pause).await;
                *count.lock().unwrap() += 1;
                Ok::<_, Infallible>(Bytes::from(vec![b'x'; 1 << 20]))
            }
        };
        (
            axum::body::Body::from_stream(stream::iter(0..pieces).then(piece)),
            taken,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_bounded_rest_is_read_and_nothing_while_a_handler_reads() {
        let begun = Instant::now();
        for (pieces, pause, expected) in [(3, 0, 3), (100, 0, 33), (100, 400, 2), (0, 0, 0)] {
            let (body, taken) = body(pieces, Duration::from_millis(pause));
            let (read, rest) = split(body);
            drop(read);
            rest.drain().await;
            assert_eq!(*taken.lock().unwrap(), expected);
        }
        assert_eq!(begun.elapsed(), TIME, "only the slow one is waited for");
        let (body, taken) = body(3, Duration::ZERO);
        let (mut read, rest) = split(body);
        read.frame().await.unwrap().unwrap();
        rest.drain().await;
        assert_eq!(*taken.lock().unwrap(), 1);
    }
}
