//! Which waiting messages are sent.

use std::time::Duration;

/// A message that could not be sent for this long is dropped.
pub const GIVE_UP: Duration = Duration::from_secs(24 * 3600);

const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Pause before the next attempt after so many failures in a row. `asked`: pause that the other side requested.
pub fn wait_after(failures: u32, asked: Option<Duration>) -> Duration {
    let wait = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16));
    wait.max(asked.unwrap_or_default()).min(LONGEST_WAIT)
}

/// Whether a new message of a thread is stored in place of the waiting one. `known`: the waiting and the last sent
/// message, each empty if there is none; none if the thread is unknown. `begins`: the message may be the first of a
/// thread.
pub fn is_news(known: Option<(&str, &str)>, next: &str, begins: bool) -> bool {
    match known {
        None => begins,
        Some((waiting, _)) if waiting == next => false,
        Some(("", told)) if told == next => false,
        Some(_) => true,
    }
}

/// Whether a waiting message has become pointless: it was sent before, or it ends a thread whose beginning was never
/// sent. This is checked when it is about to be sent, because while an earlier message is on its way its delivery is
/// unknown. `ends`: the message only says that something is over.
pub fn has_lapsed((waiting, told): (&str, &str), ends: bool) -> bool {
    waiting == told || (told.is_empty() && ends)
}
