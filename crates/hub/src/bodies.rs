//! Bodies of requests are read before the request takes a turn, so that a slow client delays only itself.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::time::{Instant, timeout, timeout_at};

use crate::room::{Held, Room};

/// Bytes per second. The largest object of the API takes less than two minutes at this rate.
const RATE: usize = 32 << 10;
/// Maximum wait for room. It does not count as the client's time.
const ROOM: Duration = Duration::from_secs(10);

/// Room for the bodies of one class of requests.
#[derive(Clone)]
pub struct Bodies {
    room: Room,
    grace: Duration,
}

/// A complete body. Its room is released when this is dropped.
pub struct Whole {
    pub bytes: Bytes,
    _room: Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is longer than {0} bytes")]
    TooLarge(usize),
    #[error("the body came too slowly: it takes {} s at most, and a second more for each {} KiB", .0.as_secs(), RATE >> 10)]
    Slow(Duration),
    #[error("the body ended before its end")]
    Broken,
    #[error("too many bodies are being read; try again")]
    NoRoom,
}

impl Bodies {
    /// `bytes`: room for all bodies that are read or handled at the same time; one client may use a quarter. A body may
    /// take `grace`, and a second more for each [`RATE`] bytes received.
    pub fn new(bytes: usize, grace: Duration) -> Self {
        Self {
            room: Room::new(bytes, 4),
            grace,
        }
    }

    /// Reads a body of up to `limit` bytes to its end.
    pub async fn read(&self, client: &str, mut body: Body, limit: usize) -> Result<Whole, BodyError> {
        let mut begun = Instant::now();
        if usize::try_from(body.size_hint().lower()).map_or(true, |least| least > limit) {
            return Err(BodyError::TooLarge(limit));
        }
        let (mut bytes, mut held) = (BytesMut::new(), Held::default());
        loop {
            let end = begun + self.grace + Duration::from_secs((bytes.len() / RATE) as u64);
            let frame = timeout_at(end, body.frame())
                .await
                .map_err(|_| BodyError::Slow(self.grace))?;
            let Some(frame) = frame else { break };
            let Ok(piece) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
                continue;
            };
            if bytes.len() + piece.len() > limit {
                return Err(BodyError::TooLarge(limit));
            }
            let asked = Instant::now();
            let grown = timeout(ROOM, self.room.grow(&mut held, client, bytes.len() + piece.len())).await;
            grown.ok().and_then(Result::ok).ok_or(BodyError::NoRoom)?;
            begun += asked.elapsed();
            bytes.extend_from_slice(&piece);
        }
        Ok(Whole {
            bytes: bytes.freeze(),
            _room: held,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};

    use super::*;
    use crate::room::PIECE;

    const GRACE: Duration = Duration::from_secs(10);

    /// Pieces of `size` bytes, one per `pause`.
    fn body(pieces: usize, size: usize, pause: Duration) -> Body {
        let piece = move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; size]))
        };
        Body::from_stream(stream::iter(0..pieces).then(piece))
    }

    async fn length(bodies: &Bodies, body: Body, limit: usize) -> Result<usize, BodyError> {
        bodies.read("a", body, limit).await.map(|whole| whole.bytes.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_in_ends_and_one_that_comes_steadily_does_not() {
        let bodies = Bodies::new(8 << 20, GRACE);
        let second = Duration::from_secs(1);
        assert_eq!(length(&bodies, Body::empty(), 10).await, Ok(0));
        assert_eq!(
            length(&bodies, body(1000, 1, second), 1000).await,
            Err(BodyError::Slow(GRACE))
        );
        assert_eq!(length(&bodies, body(30, RATE, second), 1 << 20).await, Ok(30 * RATE));
        assert_eq!(
            length(&bodies, body(30, 100, Duration::ZERO), 1000).await,
            Err(BodyError::TooLarge(1000))
        );
        assert_eq!(
            length(&bodies, Body::from(vec![0; 1001]), 1000).await,
            Err(BodyError::TooLarge(1000))
        );
        assert!(!bodies.room.is_short("a"), "room is given back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_a_share_of_the_room_and_what_finds_none_is_refused_in_time() {
        let bodies = Bodies::new(8 * PIECE, GRACE);
        let full = async |client: &str| bodies.read(client, body(2, PIECE, Duration::ZERO), 1 << 20).await;
        let first = full("a").await.unwrap();
        assert_eq!(
            length(&bodies, body(1, 1, Duration::ZERO), 10).await,
            Err(BodyError::NoRoom),
            "its share"
        );
        let others = [
            full("b").await.unwrap(),
            full("c").await.unwrap(),
            full("d").await.unwrap(),
        ];
        assert_eq!(full("e").await.err(), Some(BodyError::NoRoom), "all of it");
        drop(first);
        assert_eq!(length(&bodies, body(1, 1, Duration::ZERO), 10).await, Ok(1));
        drop(others);
    }
}
