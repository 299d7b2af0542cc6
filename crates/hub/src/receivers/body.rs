//! Bodies of deliveries. All of a body is hashed, but only the beginning of a long one is kept, so that many slow or
//! large bodies take neither memory nor places from others.

use std::sync::Arc;

use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum length of a body: GitHub sends none that is longer.
pub const MAX_BODY: u64 = 25 << 20;
/// Bytes that are kept of a body. The needed fields are in the first few kilobytes; a push of twenty commits is a tenth
/// of this.
const KEPT: usize = 256 << 10;
/// Bytes that are kept of all bodies being read: a quarter of the memory of a hub with a few clusters.
const KEPT_OF_ALL: usize = 64 << 20;
/// Room is granted in pieces of this many bytes.
const PIECE: usize = 16 << 10;

/// Room for the kept parts of bodies until they were handled.
#[derive(Clone)]
pub struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(KEPT_OF_ALL / PIECE)))
    }
}

/// The beginning of a body.
pub struct Kept {
    pub bytes: Vec<u8>,
    pub is_whole: bool,
    room: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum BodyError {
    TooLarge,
    /// It ended too early.
    Broken,
}

impl Kept {
    /// Keeps a piece, as long as there is room.
    fn push(&mut self, piece: &[u8], room: &Room) {
        if !self.is_whole || self.bytes.len() + piece.len() > KEPT {
            self.is_whole = false;
            return;
        }
        let length = self.bytes.len() + piece.len();
        let held = self.room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let lacking = length.div_ceil(PIECE).saturating_sub(held);
        if lacking > 0 {
            let Ok(lacking) = u32::try_from(lacking) else { return };
            let Ok(permit) = Arc::clone(&room.0).try_acquire_many_owned(lacking) else {
                self.is_whole = false;
                return;
            };
            match &mut self.room {
                Some(held) => held.merge(permit),
                none => *none = Some(permit),
            }
        }
        self.bytes.extend_from_slice(piece);
    }
}

/// Reads a body to its end. `each` gets every piece, also those that are not kept.
pub async fn read(mut body: Body, room: &Room, mut each: impl FnMut(&[u8])) -> Result<Kept, BodyError> {
    if body.size_hint().lower() > MAX_BODY {
        return Err(BodyError::TooLarge);
    }
    let (mut kept, mut length) = (
        Kept {
            bytes: Vec::new(),
            is_whole: true,
            room: None,
        },
        0,
    );
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
            continue;
        };
        length += piece.len() as u64;
        if length > MAX_BODY {
            return Err(BodyError::TooLarge);
        }
        each(&piece);
        kept.push(&piece, room);
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::stream;

    use super::*;

    fn body(pieces: usize, size: usize) -> Body {
        Body::from_stream(stream::iter(
            (0..pieces).map(move |_| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; size]))),
        ))
    }

    async fn outcome(body: Body, room: &Room) -> (Result<(usize, bool), BodyError>, usize) {
        let mut seen = 0;
        let kept = read(body, room, |piece| seen += piece.len()).await;
        (kept.map(|kept| (kept.bytes.len(), kept.is_whole)), seen)
    }

    #[tokio::test]
    async fn all_is_hashed_and_the_beginning_is_kept() {
        let room = Room::default();
        assert_eq!(outcome(Body::empty(), &room).await, (Ok((0, true)), 0));
        assert_eq!(outcome(body(3, 10_000), &room).await, (Ok((30_000, true)), 30_000));
        let long = outcome(body(400, 10_000), &room).await;
        assert_eq!(long, (Ok((260_000, false)), 4_000_000));
        assert_eq!(room.0.available_permits(), KEPT_OF_ALL / PIECE, "room is given back");
    }

    #[tokio::test]
    async fn a_body_without_end_is_refused() {
        let room = Room::default();
        assert_eq!(outcome(body(30, 1 << 20), &room).await.0, Err(BodyError::TooLarge));
        assert_eq!(
            outcome(Body::from(vec![0; 26 << 20]), &room).await,
            (Err(BodyError::TooLarge), 0),
            "by its length"
        );
        let broken = Body::from_stream(stream::iter([Ok(Bytes::from("a")), Err(std::io::Error::other("cut"))]));
        assert_eq!(outcome(broken, &room).await.0, Err(BodyError::Broken));
    }

    #[tokio::test]
    async fn without_room_a_body_is_hashed_all_the_same() {
        let room = Room(Arc::new(Semaphore::new(2)));
        assert_eq!(outcome(body(4, 10_000), &room).await, (Ok((30_000, false)), 40_000));
        let other = Arc::clone(&room.0).try_acquire_many_owned(2).unwrap();
        assert_eq!(outcome(body(1, 10), &room).await, (Ok((0, false)), 10));
        drop(other);
    }
}
