//! Results of a receiver's deliveries, kept in memory and written to its status from time to time.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use farwater_api::ReceiverStatus;
use farwater_fleet::conditions::{Verdict, whole_seconds};
use jiff::Timestamp;

use super::{Live, signature};
use crate::memory::counters::DeliveryResult;

/// A status with a new result is written this soon, and not more often than [`OFTEN`].
const SOON: Duration = Duration::from_secs(1);
const OFTEN: Duration = Duration::from_secs(3);
/// Interval of writing a status that only has a newer time.
const SELDOM: Duration = Duration::from_secs(60);

/// The condition's type.
const DELIVERED: &str = "Delivered";

/// Why a delivery was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    SignatureMissing,
    SignatureWrong,
    /// Its signature is right, but its payload is not JSON.
    Unreadable,
    TooLarge,
    TooSlow,
    /// It ended too early.
    Broken,
}

impl Refused {
    pub fn counted(self) -> DeliveryResult {
        match self {
            Self::SignatureMissing | Self::SignatureWrong => DeliveryResult::Unsigned,
            Self::Unreadable | Self::Broken => DeliveryResult::Unreadable,
            Self::TooLarge => DeliveryResult::TooLarge,
            Self::TooSlow => DeliveryResult::TooSlow,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::SignatureMissing => "SignatureMissing",
            Self::SignatureWrong => "SignatureWrong",
            Self::Unreadable => "PayloadUnreadable",
            Self::TooLarge => "PayloadTooLarge",
            Self::TooSlow => "PayloadTooSlow",
            Self::Broken => "PayloadBroken",
        }
    }

    fn explain(self, receiver: &Live) -> String {
        let (header, secret) = (signature::header(receiver.spec.r#type), &receiver.spec.secret_ref.name);
        match self {
            Self::SignatureMissing => format!("it has no {header}: give the webhook the token of Secret {secret}"),
            Self::SignatureWrong => {
                format!("its {header} is not by the token of Secret {secret}: give it to the webhook")
            }
            Self::Unreadable => "its payload is no JSON object: set the webhook's content type to JSON".to_owned(),
            Self::TooLarge => "its payload is longer than 25 MiB".to_owned(),
            Self::TooSlow => "its payload took longer than 10 s".to_owned(),
            Self::Broken => "its payload broke off".to_owned(),
        }
    }
}

/// Result of the last delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryNote {
    Taken {
        event: String,
    },
    /// An event that the receiver does not handle.
    Ignored {
        event: String,
    },
    /// It names a repository that is none of the receiver's sources.
    Foreign {
        repository: String,
    },
    Refused(Refused),
}

impl DeliveryNote {
    fn reason(&self) -> &'static str {
        match self {
            Self::Taken { .. } => "Taken",
            Self::Ignored { .. } => "EventIgnored",
            Self::Foreign { .. } => "RepositoryUnknown",
            Self::Refused(refused) => refused.reason(),
        }
    }
}

/// A receiver's last deliveries.
#[derive(Default)]
pub struct Log(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    last: Option<(Timestamp, DeliveryNote)>,
    /// The last delivery with a valid signature, and the last that was refused.
    right: Option<Timestamp>,
    refused: Option<Timestamp>,
    /// The result in the status, and since when it is there.
    written: Option<(&'static str, Instant)>,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the result of a delivery. Returns when the status should be written.
    pub fn note_delivery(&self, said: DeliveryNote, time: Timestamp, now: Instant) -> Duration {
        let mut noted = self.lock();
        match &said {
            DeliveryNote::Refused(_) => noted.refused = Some(time),
            _ => noted.right = Some(time),
        }
        let wait = match noted.written {
            Some((reason, _)) if reason == said.reason() => SELDOM,
            Some((_, at)) => (at + OFTEN).saturating_duration_since(now).max(SOON),
            None => SOON,
        };
        noted.last = Some((time, said));
        wait
    }

    /// Adds the noted results to a status that is about to be written.
    pub fn complete_status(
        &self,
        receiver: &Live,
        status: &mut ReceiverStatus,
        verdicts: &mut Vec<Verdict>,
        now: Instant,
    ) {
        let mut noted = self.lock();
        if let Some(time) = noted.right {
            status.last_delivery_time = Some(whole_seconds(time));
        }
        if let Some(time) = noted.refused {
            status.last_refusal_time = Some(whole_seconds(time));
        }

        let Some((time, said)) = &noted.last else { return };
        let time = whole_seconds(*time).0;
        let verdict = match said {
            DeliveryNote::Taken { event } if event.is_empty() => (true, format!("delivered at {time}")),
            DeliveryNote::Taken { event } => (true, format!("{event:?} was delivered at {time}")),
            DeliveryNote::Ignored { event } => (
                true,
                format!("{event:?} was delivered at {time}, an event that this receiver does not act upon"),
            ),
            DeliveryNote::Foreign { repository } => (
                false,
                format!("the delivery at {time} is about {repository}, which is none of this receiver's sources"),
            ),
            DeliveryNote::Refused(refused) => {
                let why = refused.explain(receiver);
                let before = noted
                    .right
                    .map(|time| format!("; the last right one came at {}", whole_seconds(time).0));
                (
                    false,
                    format!(
                        "the delivery at {time} was refused: {why}{}",
                        before.unwrap_or_default()
                    ),
                )
            }
        };

        verdicts.push(Verdict::new(DELIVERED, Some(verdict.0), said.reason(), verdict.1));
        noted.written = Some((said.reason(), now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_written_soon_where_it_says_something_new_and_seldom_else() {
        let (log, start, time) = (Log::default(), Instant::now(), Timestamp::UNIX_EPOCH);
        let written = |reason: &'static str, at: Instant| log.lock().written = Some((reason, at));
        let taken = || DeliveryNote::Taken {
            event: "push".to_owned(),
        };
        assert_eq!(log.note_delivery(taken(), time, start), SOON);
        written("Taken", start);
        assert_eq!(log.note_delivery(taken(), time, start), SELDOM);
        let refused = || DeliveryNote::Refused(Refused::SignatureWrong);
        assert_eq!(log.note_delivery(refused(), time, start), OFTEN);
        assert_eq!(log.note_delivery(refused(), time, start + OFTEN), SOON);
        written("SignatureWrong", start + OFTEN);
        assert_eq!(log.note_delivery(refused(), time, start + OFTEN), SELDOM);
    }
}
