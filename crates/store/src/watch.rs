//! One watcher: the changes of one kind, or of all, after a version.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::Stream;

use crate::{
    Kind, WatchError, WatchEvent,
    ring::{Reading, Ring},
};

/// Committed changes in order of version, without gaps or duplicates. Ends after an error, and when the store is
/// closed.
pub struct Watch {
    ring: Arc<Ring>,
    kind: Option<Kind>,
    /// Everything up to this version was read from the ring.
    read: u64,
    /// Everything up to this version was returned.
    seen: u64,
    buffer: VecDeque<WatchEvent>,
    number: u64,
    ended: bool,
}

impl Watch {
    pub(crate) fn start(ring: Arc<Ring>, kind: Option<Kind>, from: u64) -> Result<Self, WatchError> {
        let oldest = ring.floor();
        if from < oldest {
            return Err(WatchError::Compacted { from, oldest });
        }
        let number = ring.enter();
        Ok(Self {
            ring,
            kind,
            read: from,
            seen: from,
            buffer: VecDeque::new(),
            number,
            ended: false,
        })
    }

    /// The version of a bookmark: every change of this watch up to it was returned.
    pub fn position(&mut self) -> u64 {
        if self.buffer.is_empty() && !self.ended {
            self.fill(None);
        }
        self.seen
    }

    /// Reads further in the ring. None: there is nothing, and the waker was stored.
    fn fill(&mut self, context: Option<&Context<'_>>) -> Option<Result<(), WatchError>> {
        let waiting = context.map(|context| (self.number, context.waker()));
        match self.ring.read(self.kind.as_ref(), self.read, waiting) {
            Reading::Events(events) => {
                self.read = events.last().map_or(self.read, |event| event.version);
                self.buffer.extend(events);
                Some(Ok(()))
            }
            Reading::Nothing { position } => {
                // A watch may start ahead of this replica; its position never goes back.
                self.read = self.read.max(position);
                self.seen = self.read;
                None
            }
            Reading::Gone { floor } => Some(Err(WatchError::Lagged {
                seen: self.seen,
                oldest: floor,
            })),
            Reading::Closed => {
                self.ended = true;
                None
            }
        }
    }
}

impl Stream for Watch {
    type Item = Result<WatchEvent, WatchError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        loop {
            if let Some(event) = watch.buffer.pop_front() {
                watch.seen = event.version;
                return Poll::Ready(Some(Ok(event)));
            }
            if watch.ended {
                return Poll::Ready(None);
            }
            match watch.fill(Some(context)) {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    watch.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None if watch.ended => {}
                None => return Poll::Pending,
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ring.leave(self.number);
    }
}
