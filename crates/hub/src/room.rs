//! Memory that clients use, in total and per client.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::turns::Shares;

/// Room is granted in pieces of this many bytes.
pub const PIECE: usize = 4 << 10;

/// Limits the bytes that clients use at a time.
#[derive(Clone)]
pub struct Room {
    pieces: usize,
    /// Pieces for one client.
    share: usize,
    all: Arc<Semaphore>,
    shares: Arc<Shares>,
}

/// Room for one thing, counted for all clients and for its client. It is released when this is dropped.
#[derive(Default)]
pub struct Held(Option<[OwnedSemaphorePermit; 2]>);

impl Room {
    /// One client may use one of `parts` equal parts.
    pub fn new(bytes: usize, parts: usize) -> Self {
        let (pieces, share) = (bytes / PIECE, bytes / PIECE / parts);
        Self {
            pieces,
            share,
            all: Arc::new(Semaphore::new(pieces)),
            shares: Arc::new(Shares::new(share)),
        }
    }

    /// Grows a client's held room to this many bytes, or to its share, as soon as there is room. Requests are served in
    /// order.
    pub async fn grow(&self, held: &mut Held, client: &str, bytes: usize) -> Result<(), AcquireError> {
        if let Some(lacking) = self.lacking(held, bytes) {
            let share = self.shares.of(client).acquire_many_owned(lacking).await?;
            held.add([Arc::clone(&self.all).acquire_many_owned(lacking).await?, share]);
        }
        Ok(())
    }

    /// The same, if there is room now.
    pub fn try_grow(&self, held: &mut Held, client: &str, bytes: usize) -> bool {
        let Some(lacking) = self.lacking(held, bytes) else {
            return true;
        };
        let share = self.shares.of(client).try_acquire_many_owned(lacking);
        let (Ok(share), Ok(all)) = (share, Arc::clone(&self.all).try_acquire_many_owned(lacking)) else {
            return false;
        };
        held.add([all, share]);
        true
    }

    fn lacking(&self, held: &Held, bytes: usize) -> Option<u32> {
        let lacking = bytes.div_ceil(PIECE).min(self.share).saturating_sub(held.pieces());
        u32::try_from(lacking).ok().filter(|lacking| *lacking > 0)
    }

    /// Whether the client, or all clients together, use more than half of their room.
    pub fn is_short(&self, client: &str) -> bool {
        self.all.available_permits() < self.pieces / 2 || self.shares.of(client).available_permits() < self.share / 2
    }
}

impl Held {
    fn pieces(&self) -> usize {
        self.0.as_ref().map_or(0, |[all, _]| all.num_permits())
    }

    fn add(&mut self, more: [OwnedSemaphorePermit; 2]) {
        match &mut self.0 {
            Some(held) => held.iter_mut().zip(more).for_each(|(held, more)| held.merge(more)),
            none => *none = Some(more),
        }
    }

    /// Takes room for this many bytes, or all of it if less is held.
    pub fn split(&mut self, bytes: usize) -> Self {
        let pieces = bytes.div_ceil(PIECE).min(self.pieces());
        Self(
            self.0
                .as_mut()
                .and_then(|[all, share]| Some([all.split(pieces)?, share.split(pieces)?])),
        )
    }

    /// The bytes, which keep their room until they are sent.
    pub fn with(self, bytes: Bytes) -> Bytes {
        self.watched(bytes).0
    }

    /// The same, with a receiver that ends when they are sent or dropped.
    pub fn watched(self, bytes: Bytes) -> (Bytes, oneshot::Receiver<()>) {
        let (unsent, sent) = oneshot::channel();
        (
            Bytes::from_owner(Answer {
                bytes,
                _held: self,
                _unsent: unsent,
            }),
            sent,
        )
    }
}

struct Answer {
    bytes: Bytes,
    _held: Held,
    _unsent: oneshot::Sender<()>,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_have_their_room_until_they_are_sent_and_a_client_has_no_more_than_its_share() {
        let room = Room::new(16 * PIECE, 4);
        let mut held = Held::default();
        assert!(room.try_grow(&mut held, "a", 3 * PIECE) && !room.is_short("b"));
        let part = held.split(PIECE).with(Bytes::from_static(b"a"));
        let copy = part.slice(..1);
        drop((held, part));
        assert!(
            !room.try_grow(&mut Held::default(), "a", 4 * PIECE),
            "one piece is still to be sent"
        );
        drop(copy);
        let mut all = Held::default();
        assert!(room.try_grow(&mut all, "a", 100 * PIECE), "no more than its share");
        assert!(room.is_short("a") && !room.try_grow(&mut Held::default(), "a", 1) && !room.is_short("b"));
        assert!(room.grow(&mut Held::default(), "b", PIECE).await.is_ok());
    }
}
