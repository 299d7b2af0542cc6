//! What becomes of what waits.

use std::time::Duration;

/// What could not be sent for so long is not sent any more.
pub const GIVE_UP: Duration = Duration::from_secs(24 * 3600);

const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// How long nobody is told anything after so many failures in a row; `asked`: what the other side has asked for.
pub fn wait_after(failures: u32, asked: Option<Duration>) -> Duration {
    let wait = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16));
    wait.max(asked.unwrap_or_default()).min(LONGEST_WAIT)
}

/// Whether something new of a thread waits from now on, in the place of what waited. `known`: what waits and what was told last, empty
/// where there is none; of a thread that nobody knows it is none. `begins`: it may be the first of a thread.
pub fn is_news(known: Option<(&str, &str)>, next: &str, begins: bool) -> bool {
    match known {
        None => begins,
        Some((waiting, _)) if waiting == next => false,
        Some(("", told)) if told == next => false,
        Some(_) => true,
    }
}

/// Whether what waits has come to nothing: it was told before, or is the end of what nobody was told the beginning of. That is known when
/// it would be sent and not before: as long as a message is on its way nobody knows what was told. `ends`: it says no more than that
/// something is over.
pub fn has_lapsed((waiting, told): (&str, &str), ends: bool) -> bool {
    waiting == told || (told.is_empty() && ends)
}
