//! Bodies of requests, read before the request takes a turn: a client that sends slowly keeps only itself waiting.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

/// A body may take this long, and a second more for each [`RATE`] bytes that have come.
const GRACE: Duration = Duration::from_secs(10);
/// Bytes a second. The largest object of the API takes less than two minutes at this rate.
const RATE: usize = 32 << 10;
/// Room is given in pieces of this many bytes.
const PIECE: usize = 16 << 10;

/// Room for the bodies of one class of requests.
#[derive(Clone)]
pub struct Bodies {
    room: Arc<Semaphore>,
    grace: Duration,
}

/// A whole body. Its room is given back when this is dropped.
pub struct Whole {
    pub bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is longer than {0} bytes")]
    TooLarge(usize),
    #[error("the body came too slowly; it has to come within {} s, and a second more for each {} KiB", GRACE.as_secs(), RATE >> 10)]
    Slow,
    #[error("the body ended before its end")]
    Broken,
    #[error("too many bodies are being read; try again")]
    NoRoom,
}

impl Bodies {
    /// `bytes`: of all bodies that are read or worked on at the same time.
    pub fn new(bytes: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(bytes / PIECE)), grace: GRACE }
    }

    /// Reads a body of up to `limit` bytes to its end.
    pub async fn read(&self, mut body: Body, limit: usize) -> Result<Whole, BodyError> {
        let begun = Instant::now();
        if usize::try_from(body.size_hint().lower()).map_or(true, |least| least > limit) {
            return Err(BodyError::TooLarge(limit));
        }
        let (mut bytes, mut held) = (BytesMut::new(), None);
        loop {
            let end = begun + self.grace + Duration::from_secs((bytes.len() / RATE) as u64);
            let Some(frame) = timeout_at(end, body.frame()).await.map_err(|_| BodyError::Slow)? else { break };
            let Ok(piece) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
            if bytes.len() + piece.len() > limit {
                return Err(BodyError::TooLarge(limit));
            }
            self.grow(&mut held, bytes.len() + piece.len(), end).await?;
            bytes.extend_from_slice(&piece);
        }
        Ok(Whole { bytes: bytes.freeze(), _room: held })
    }

    /// Takes room for so many bytes in all.
    async fn grow(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize, end: Instant) -> Result<(), BodyError> {
        let lacking = bytes.div_ceil(PIECE).saturating_sub(held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        let Some(lacking) = u32::try_from(lacking).ok().filter(|lacking| *lacking > 0) else { return Ok(()) };
        let more = timeout_at(end, Arc::clone(&self.room).acquire_many_owned(lacking)).await;
        let more = more.ok().and_then(Result::ok).ok_or(BodyError::NoRoom)?;
        match held {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};

    use super::*;

    /// Pieces of so many bytes, one each `pause`.
    fn body(pieces: usize, size: usize, pause: Duration) -> Body {
        let piece = move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; size]))
        };
        Body::from_stream(stream::iter(0..pieces).then(piece))
    }

    async fn length(bodies: &Bodies, body: Body, limit: usize) -> Result<usize, BodyError> {
        bodies.read(body, limit).await.map(|whole| whole.bytes.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_in_ends_and_one_that_comes_steadily_does_not() {
        let bodies = Bodies::new(1 << 20);
        let second = Duration::from_secs(1);
        assert_eq!(length(&bodies, Body::empty(), 10).await, Ok(0));
        assert_eq!(length(&bodies, body(1000, 1, second), 1000).await, Err(BodyError::Slow));
        assert_eq!(length(&bodies, body(30, RATE, second), 1 << 20).await, Ok(30 * RATE));
        assert_eq!(length(&bodies, body(30, 100, Duration::ZERO), 1000).await, Err(BodyError::TooLarge(1000)));
        assert_eq!(length(&bodies, Body::from(vec![0; 1001]), 1000).await, Err(BodyError::TooLarge(1000)));
        assert_eq!(bodies.room.available_permits(), (1 << 20) / PIECE, "room is given back");
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_no_room_is_refused_in_time() {
        let bodies = Bodies::new(2 * PIECE);
        let held = bodies.read(body(2, PIECE, Duration::ZERO), 1 << 20).await.unwrap();
        assert_eq!(length(&bodies, body(1, 1, Duration::ZERO), 10).await, Err(BodyError::NoRoom));
        drop(held);
        assert_eq!(length(&bodies, body(1, 1, Duration::ZERO), 10).await, Ok(1));
    }
}
