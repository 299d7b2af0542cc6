//! Detects that another writer keeps changing an object back, and slows down instead of fighting.

use std::{collections::BTreeMap, time::Duration};

use farwater_fleet::plan::{Cooling, ObjectKey, Writer};
use tokio::time::Instant;

/// Heat at which repairs count as a fight: one or two repairs are an accident or a person.
const HOT: f64 = 5.0;
/// Heat falls by a factor e in this time, so a writer with period P reaches 1 / (1 - e^(-P / COOLS)) at most. A writer
/// of every second or every 15 s, like an autoscaler, is found at the sixth repair, one of every 60 s at the ninth, and
/// one of more than 80 s never: each of its writes costs one repair, which is no load.
const COOLS: Duration = Duration::from_secs(360);
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Heat per object: each repair adds one, and it cools down over time (as in Config Sync's detector).
#[derive(Default)]
pub struct Fights {
    objects: BTreeMap<ObjectKey, Heat>,
}

struct Heat {
    heat: f64,
    /// Time from which it cools down.
    last: Instant,
    pause: Duration,
    until: Option<Instant>,
    /// The last other writer. None: unknown.
    writer: Option<Box<Writer>>,
}

impl Fights {
    /// Records that an object was found changed by others.
    pub fn note(&mut self, key: &ObjectKey, now: Instant, writer: Option<Box<Writer>>) {
        let cold = Heat {
            heat: 0.0,
            last: now,
            pause: FIRST_PAUSE,
            until: None,
            writer: None,
        };
        let object = self.objects.entry(key.clone()).or_insert(cold);
        let cooled = now.duration_since(object.last).as_secs_f64() / COOLS.as_secs_f64();
        object.heat = object.heat * (-cooled).exp() + 1.0;
        object.last = now;
        // Our apply removes the writer's entry, so keep the writer that was known.
        object.writer = writer.or(object.writer.take());
        if object.heat >= HOT && object.until.is_none_or(|until| until <= now) {
            let until = now + object.pause;
            object.until = Some(until);
            object.pause = (object.pause * 2).min(LONGEST_PAUSE);
            // It stays hot through the pause: a writer that changes it back afterwards has not stopped.
            (object.heat, object.last) = (HOT, until);
        }
        // Bounded: objects that have cooled down are removed.
        self.objects
            .retain(|_, o| o.until.is_some_and(|u| u > now) || now.duration_since(o.last) < LONGEST_PAUSE * 2);
    }

    /// Objects that are left alone for now, with their writers.
    pub fn cooling(&self, now: Instant) -> Cooling {
        let hot = self
            .objects
            .iter()
            .filter(|(_, o)| o.until.is_some_and(|until| until > now));
        hot.map(|(key, o)| (key.clone(), o.writer.clone())).collect()
    }

    /// When the next object may be repaired again. None: all may be.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.objects
            .values()
            .filter_map(|o| o.until)
            .filter(|until| *until > now)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::new("", "ConfigMap", "a", "b")
    }

    /// The repair (of 200) at which a writer with this period in seconds is found.
    fn found_at(period: u64) -> Option<usize> {
        let mut fights = Fights::default();
        let mut now = Instant::now();
        for repair in 1..=200 {
            fights.note(&key(), now, None);
            if fights.cooling(now).contains_key(&key()) {
                return Some(repair);
            }
            now += Duration::from_secs(period);
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_writes_every_minute_or_more_often_is_found_soon_and_rare_writes_are_no_fight() {
        for (period, repair) in [(1, Some(6)), (15, Some(6)), (60, Some(9)), (300, None)] {
            assert_eq!(found_at(period), repair, "every {period} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_repairs_at_once_are_no_fight() {
        let mut fights = Fights::default();
        let now = Instant::now();
        for _ in 0..4 {
            fights.note(&key(), now, None);
        }
        assert!(fights.cooling(now).is_empty() && fights.next(now).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fight_that_goes_on_has_longer_pauses_and_one_repair_between_two_of_them() {
        let mut fights = Fights::default();
        let mut now = Instant::now();
        for _ in 0..9 {
            now += Duration::from_secs(60);
            fights.note(&key(), now, None);
        }
        for pause in [30, 60, 120, 240, 480, 600, 600] {
            let until = fights.next(now).unwrap();
            assert_eq!(until, now + Duration::from_secs(pause));
            assert!(fights.cooling(until).is_empty());
            now = until + Duration::from_secs(60);
            fights.note(&key(), now, None);
        }
        // The writer has stopped: a later accident is repaired.
        now = fights.next(now).unwrap() + Duration::from_secs(300);
        fights.note(&key(), now, None);
        assert!(fights.cooling(now).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_one_who_changed_it_is_named() {
        let writer = |manager: &str| {
            let writer = Writer {
                manager: manager.into(),
                operation: "Update".into(),
                subresource: None,
                time: None,
            };
            Some(Box::new(writer))
        };
        let mut fights = Fights::default();
        let now = Instant::now();
        for _ in 0..5 {
            fights.note(&key(), now, writer("one"));
        }
        assert_eq!(fights.cooling(now)[&key()], writer("one"));
        fights.note(&key(), now, writer("other"));
        fights.note(&key(), now, None);
        assert_eq!(fights.cooling(now)[&key()], writer("other"));
    }
}
