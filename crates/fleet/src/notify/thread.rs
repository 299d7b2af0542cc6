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

/// What is to be done with something new of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is known, or nobody has heard of the thread.
    Nothing,
    /// It takes the place of what waits.
    Wait,
    /// It was told: what waits has come to nothing.
    Settle,
    /// Nobody was told that something had begun which is over.
    Forget,
}

/// `known`: what waits and what was told last, empty where there is none; of a thread that nobody knows it is none. `begins`: it
/// may be the first of a thread. `ends`: it says no more than that something is over.
pub fn put(known: Option<(&str, &str)>, next: &str, (begins, ends): (bool, bool)) -> Put {
    match known {
        None if begins => Put::Wait,
        None => Put::Nothing,
        Some((waiting, _)) if waiting == next => Put::Nothing,
        Some(("", told)) if told == next => Put::Nothing,
        Some((_, told)) if told == next => Put::Settle,
        Some((_, "")) if ends => Put::Forget,
        Some(_) => Put::Wait,
    }
}
