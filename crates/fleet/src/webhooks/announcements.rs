//! Announcements: when a source is fetched because of deliveries, and whether deliveries are proven to arrive.
//!
//! Deliveries are proven by the one thing that a forged, duplicate or replayed delivery can't cause: the remote had
//! moved when it was checked. The proof ends when a poll finds a move that no delivery announced.

use std::time::{Duration, Instant};

/// A poll may run between a push and its delivery. A delivery within this time after the poll still counts for that
/// push.
const LATE: Duration = Duration::from_secs(60);
/// Pause after an announced check that found nothing; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Factor by which polls become rarer while deliveries are proven: at 2 minutes, 6 polls an hour remain of 30.
const STRETCH: u32 = 5;
/// Longest stretched interval: an unannounced move is noticed after this time at the latest.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);

/// The result of checking a source's remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Moved,
    Nothing,
    /// The remote did not answer.
    Failed,
    /// Nothing was known of it before, so the check proves nothing.
    First,
}

/// The announcements of one source.
#[derive(Clone, Debug, Default)]
pub struct Announcements {
    /// A delivery arrived, and no check has begun since.
    is_pending: bool,
    /// The check for a delivery has failed.
    is_owed: bool,
    is_proven: bool,
    /// When a check found an unannounced move.
    missed: Option<Instant>,
    /// Number of announced checks in a row that found nothing.
    fruitless: u32,
    /// Earliest time of the next announced check. None: at once.
    not_before: Option<Instant>,
}

impl Announcements {
    /// Records a delivery that says the source has moved. Returns how long to wait before it is checked.
    pub fn deliver(&mut self, now: Instant) -> Duration {
        self.confirm(now);
        self.is_pending = true;
        if self.not_before.is_some_and(|time| now > time + LONGEST_PAUSE) {
            self.fruitless = 0;
        }
        self.pause(now)
    }

    /// Records a delivery that announces a known state.
    pub fn confirm(&mut self, now: Instant) {
        if self.missed.take_if(|missed| now <= *missed + LATE).is_some() {
            self.is_proven = true;
        }
    }

    fn pause(&self, now: Instant) -> Duration {
        self.not_before
            .map_or(Duration::ZERO, |time| time.saturating_duration_since(now))
    }

    /// Time until the source is checked because of a delivery. None: no delivery waits.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        self.is_pending.then(|| self.pause(now))
    }

    /// Whether a check begins now because of deliveries. Later deliveries count for the next check.
    pub fn begin(&mut self, now: Instant) -> bool {
        let begins = self.wait(now) == Some(Duration::ZERO);
        self.is_pending &= !begins;
        begins
    }

    /// Restores the delivery if its check did not begin.
    pub fn put_back(&mut self) {
        self.is_pending = true;
    }

    /// Records the end of a check, whatever caused it. `announced`: what [`Self::begin`] returned for it.
    pub fn finish(&mut self, announced: bool, found: Found, now: Instant) {
        let is_owed = std::mem::take(&mut self.is_owed);
        match found {
            // A delivery that arrived during the check announced the same move.
            Found::Moved if announced || is_owed || self.is_pending => {
                *self = Self {
                    is_pending: self.is_pending,
                    is_proven: true,
                    ..Self::default()
                };
            }
            Found::Moved => (self.is_proven, self.missed) = (false, Some(now)),
            Found::Nothing if announced => {
                let pause = PAUSE.saturating_mul(1 << self.fruitless.min(16)).min(LONGEST_PAUSE);
                self.fruitless = self.fruitless.saturating_add(1);
                self.not_before = Some(now + pause);
            }
            Found::Failed => self.is_owed = announced || is_owed,
            Found::Nothing | Found::First => {}
        }
    }

    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Interval of polls in addition to announced checks.
    pub fn stretch(&self, interval: Duration) -> Duration {
        let longer = interval.saturating_mul(STRETCH).min(LONGEST_INTERVAL);
        if self.is_proven { interval.max(longer) } else { interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn proven(now: Instant) -> Announcements {
        let mut known = Announcements::default();
        assert_eq!(known.deliver(now), Duration::ZERO);
        assert!(known.begin(now));
        known.finish(true, Found::Moved, now);
        assert!(known.is_proven());
        known
    }

    #[test]
    fn a_delivery_is_proven_by_the_move_that_it_announced() {
        let now = Instant::now();
        let mut known = Announcements::default();
        known.deliver(now);
        assert!(known.begin(now) && !known.begin(now));
        known.finish(true, Found::Nothing, now);
        assert!(!known.is_proven(), "a delivery alone proves nothing");
        let mut known = Announcements::default();
        known.deliver(now);
        assert!(known.begin(now));
        known.finish(true, Found::First, now);
        assert!(!known.is_proven(), "what is new is found by anybody");
        assert_eq!(proven(now).stretch(2 * MINUTE), 10 * MINUTE);
    }

    #[test]
    fn a_poll_that_finds_what_nobody_announced_ends_it() {
        let now = Instant::now();
        let mut known = proven(now);
        known.finish(false, Found::Nothing, now);
        assert!(known.is_proven());
        known.finish(false, Found::Moved, now);
        assert_eq!((known.is_proven(), known.stretch(MINUTE)), (false, MINUTE));
        // Much later it is the delivery of another push.
        known.deliver(now + 2 * LATE);
        assert!(!known.is_proven());
    }

    #[test]
    fn a_poll_that_is_a_little_faster_than_the_delivery_ends_nothing() {
        let now = Instant::now();
        // While the check ran.
        let mut known = proven(now);
        assert!(!known.begin(now));
        known.deliver(now);
        known.finish(false, Found::Moved, now);
        assert!(known.is_proven());
        // A moment after it had ended. A state that is already known is not checked again.
        let mut known = proven(now);
        known.finish(false, Found::Moved, now);
        known.confirm(now + LATE / 2);
        assert!(known.is_proven() && known.wait(now + LATE / 2).is_none());
    }

    #[test]
    fn a_check_that_failed_is_owed_to_the_delivery() {
        let now = Instant::now();
        let mut known = Announcements::default();
        known.deliver(now);
        assert!(known.begin(now));
        known.finish(true, Found::Failed, now);
        assert_eq!(known.wait(now), None, "it is tried again like any that failed");
        known.finish(false, Found::Failed, now);
        known.finish(false, Found::Moved, now);
        assert!(known.is_proven());
    }

    #[test]
    fn deliveries_that_announce_nothing_cause_ever_fewer_checks() {
        let (start, mut known, mut checks) = (Instant::now(), Announcements::default(), Vec::new());
        for second in 0..3600 {
            let now = start + Duration::from_secs(second);
            known.deliver(now);
            if known.begin(now) {
                known.finish(true, Found::Nothing, now);
                checks.push(second);
            }
        }
        assert_eq!(checks[..8], [0, 5, 15, 35, 75, 155, 315, 615]);
        assert_eq!(checks.len(), 17);
        // A true announcement is acted on at once again, and so is the first one after a pause.
        let now = start + Duration::from_secs(4000);
        known.deliver(now);
        assert!(known.begin(now));
        known.finish(true, Found::Moved, now);
        assert_eq!(known.deliver(now), Duration::ZERO);
        known.begin(now);
        known.finish(true, Found::Nothing, now);
        known.begin(now + PAUSE);
        let rested = now + PAUSE + 2 * LONGEST_PAUSE;
        known.deliver(rested);
        assert!(known.begin(rested));
        known.finish(true, Found::Nothing, rested);
        assert_eq!(known.deliver(rested), PAUSE);
    }

    #[test]
    fn intervals_are_stretched_and_never_shortened() {
        let known = proven(Instant::now());
        let check = |interval: u64, stretched: u64| {
            assert_eq!(
                known.stretch(Duration::from_secs(interval)),
                Duration::from_secs(stretched)
            );
        };
        check(10, 50);
        check(120, 600);
        check(1_800, 3_600);
        check(86_400, 86_400);
    }
}
