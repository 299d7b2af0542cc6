//! Notices when somebody else keeps changing an object back, and slows down instead of fighting.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use farwater_fleet::plan::ObjectKey;
use tokio::time::Instant;

/// Repairs within about a minute that make a fight: one or two are an accident or a person.
const HOT: f64 = 5.0;
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Heat per object: each repair adds one, and it cools by a factor e per minute (as Config Sync's detector does).
#[derive(Default)]
pub struct Fights {
    objects: BTreeMap<ObjectKey, Heat>,
}

struct Heat {
    heat: f64,
    last: Instant,
    pause: Duration,
    until: Option<Instant>,
}

impl Fights {
    /// Records that an object was found changed by others.
    pub fn note(&mut self, key: &ObjectKey, now: Instant) {
        let object =
            self.objects.entry(key.clone()).or_insert(Heat { heat: 0.0, last: now, pause: FIRST_PAUSE, until: None });
        let minutes = now.duration_since(object.last).as_secs_f64() / 60.0;
        object.heat = object.heat * (-minutes).exp() + 1.0;
        object.last = now;
        if object.heat >= HOT && object.until.is_none_or(|until| until <= now) {
            object.until = Some(now + object.pause);
            object.pause = (object.pause * 2).min(LONGEST_PAUSE);
            object.heat = HOT - 1.0;
        }
        // Bounded: what has cooled down is forgotten.
        self.objects.retain(|_, o| o.until.is_some_and(|u| u > now) || now.duration_since(o.last) < LONGEST_PAUSE * 2);
    }

    /// Objects that are left alone for now.
    pub fn cooling(&self, now: Instant) -> BTreeSet<ObjectKey> {
        let hot = self.objects.iter().filter(|(_, o)| o.until.is_some_and(|until| until > now));
        hot.map(|(key, _)| key.clone()).collect()
    }

    /// When the next object may be repaired again.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.objects.values().filter_map(|o| o.until).filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fifth_repair_within_a_minute_starts_a_pause() {
        let key = ObjectKey { group: String::new(), kind: "ConfigMap".into(), namespace: "a".into(), name: "b".into() };
        let mut fights = Fights::default();
        let mut now = Instant::now();
        for _ in 0..4 {
            fights.note(&key, now);
            assert!(fights.cooling(now).is_empty());
            now += Duration::from_millis(500);
        }
        fights.note(&key, now);
        fights.note(&key, now);
        assert!(fights.cooling(now).contains(&key));
        assert!(fights.cooling(now + FIRST_PAUSE).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_repair_every_five_minutes_is_no_fight() {
        let key = ObjectKey { group: String::new(), kind: "ConfigMap".into(), namespace: "a".into(), name: "b".into() };
        let mut fights = Fights::default();
        let mut now = Instant::now();
        for _ in 0..50 {
            fights.note(&key, now);
            now += Duration::from_secs(300);
            assert!(fights.cooling(now).is_empty());
        }
    }
}
