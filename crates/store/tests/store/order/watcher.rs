//! One watcher. It continues from what it has seen on any replica, and keeps a picture of the current state.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use farwater_store::{Kind, ListQuery, Operation, Store, Watch, WatchEvent};
use futures::StreamExt as _;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::timeout;

use super::{Load, kinds};

/// The current state: the version of each (kind, name).
pub type Picture = BTreeMap<(Kind, String), u64>;

/// Far longer than a replica lags behind.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most faults that are recorded; more would only repeat the first.
const FAULTS: usize = 5;

/// All changes, by version.
pub struct History(Vec<(u64, Kind, String, Operation)>);

impl History {
    /// Reads lines of `version|kind|name|operation`.
    pub fn read(text: &str) -> Self {
        let line = |line: &str| {
            let fields: Vec<&str> = line.split('|').collect();
            let operation = match fields[3] {
                "1" => Operation::Created,
                "2" => Operation::Updated,
                _ => Operation::Deleted,
            };
            (
                fields[0].parse().unwrap(),
                Kind::from(fields[1]),
                fields[2].to_owned(),
                operation,
            )
        };
        Self(text.lines().map(line).collect())
    }

    pub fn versions(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|(version, ..)| *version)
    }
}

pub struct Watcher {
    name: String,
    kind: Option<Kind>,
    load: Arc<Load>,
    random: StdRng,
    /// All versions up to this one have been shown.
    seen: u64,
    picture: Picture,
    /// Hash of everything that was shown since `since`.
    shown: DefaultHasher,
    since: u64,
    pub delivered: u64,
    pub reconnects: u64,
    pub relists: u64,
    pub faults: Vec<String>,
}

impl Watcher {
    pub fn new(number: usize, seed: u64, load: Arc<Load>) -> Self {
        Self {
            name: format!("watcher {number}"),
            // Every other watcher sees all kinds.
            kind: (number % 2 == 1).then(|| kinds()[number / 2 % 3].clone()),
            load,
            random: StdRng::seed_from_u64(!seed << 32 | number as u64),
            seen: 0,
            picture: Picture::new(),
            shown: DefaultHasher::new(),
            since: 0,
            delivered: 0,
            reconnects: 0,
            relists: 0,
            faults: Vec::new(),
        }
    }

    pub async fn run(mut self) -> Self {
        while self.seen < self.load.end.load(Relaxed) && self.faults.len() < FAULTS {
            let replica = self.random.random_range(0..self.load.replicas.len());
            let store = self.load.replicas[replica].clone();
            // A request for a version that the replica doesn't have yet waits.
            if !store.wait_for(self.seen, PATIENCE).await {
                self.fault(format!("replica {replica} never reached {}", self.seen));
                break;
            }
            match store.watch(self.kind.clone(), self.seen) {
                Ok(watch) => self.follow(watch).await,
                Err(_) => self.list(&store).await,
            }
            self.reconnects += 1;
        }
        self
    }

    /// Follows the watch for a random number of events.
    async fn follow(&mut self, mut watch: Watch) {
        let events = self.random.random_range(1..self.load.stay);
        for _ in 0..events {
            match timeout(Duration::from_millis(200), watch.next()).await {
                Ok(Some(Ok(event))) => self.take(&event),
                // The watch is too far behind. The next start reports that again, and lists.
                Ok(Some(Err(_)) | None) => return,
                Err(_) if self.load.end.load(Relaxed) != u64::MAX => break,
                Err(_) => {}
            }
        }
        // The position works like a bookmark: all events up to it have arrived.
        let position = watch.position();
        if position < self.seen {
            self.fault(format!("a bookmark says {position} after {}", self.seen));
        }
        self.seen = self.seen.max(position);
    }

    fn take(&mut self, event: &WatchEvent) {
        self.delivered += 1;
        if event.version <= self.seen {
            self.fault(format!("was shown {} after {}", event.version, self.seen));
        }
        if self.kind.is_none() && event.version != self.seen + 1 {
            self.fault(format!("was shown {} after {}: a gap", event.version, self.seen));
        }
        if self.kind.as_ref().is_some_and(|kind| *kind != event.key.kind) {
            self.fault(format!("was shown a {}", event.key.kind));
        }
        if event.object["metadata"]["resourceVersion"].as_str() != Some(&*event.version.to_string()) {
            self.fault(format!("event {} has another object", event.version));
        }
        self.seen = event.version;
        hash(
            &mut self.shown,
            event.version,
            &event.key.kind,
            &event.key.name,
            event.operation,
        );
        let key = (event.key.kind.clone(), event.key.name.clone());
        let had = match event.operation {
            Operation::Deleted => self.picture.remove(&key).is_some(),
            _ => self.picture.insert(key, event.version).is_some(),
        };
        if had == (event.operation == Operation::Created) {
            self.fault(format!(
                "{:?} of {} at {} makes no sense",
                event.operation, event.key.name, event.version
            ));
        }
    }

    async fn list(&mut self, store: &Store) {
        self.relists += 1;
        let mut picture = Picture::new();
        let kinds = self.kind.clone().map_or_else(|| kinds().to_vec(), |kind| vec![kind]);
        // The lists of several kinds are from different moments. Changes in between are shown again, so only one kind
        // gives an exact picture.
        let mut oldest = u64::MAX;
        for kind in kinds {
            let query = ListQuery::all(kind.clone());
            let page = store.list(&query).await.unwrap();
            oldest = oldest.min(page.version);
            picture.extend(
                page.items
                    .into_iter()
                    .map(|item| ((kind.clone(), item.key.name), item.version)),
            );
        }
        if oldest < self.seen {
            self.fault(format!("a list says {oldest} after {}", self.seen));
        }
        if picture.values().all(|version| *version <= oldest) {
            (self.picture, self.seen, self.since) = (picture, oldest, oldest);
            self.shown = DefaultHasher::new();
        }
    }

    fn fault(&mut self, what: String) {
        if self.faults.len() < FAULTS {
            self.faults.push(format!("{} {what}", self.name));
        }
    }

    /// Compares what was shown, and the picture, with the database.
    pub fn compare(&self, history: &History, tables: &Picture) -> Vec<String> {
        let concerns = |kind: &Kind| self.kind.as_ref().is_none_or(|wanted| wanted == kind);
        let mut expected = DefaultHasher::new();
        for (version, kind, name, operation) in &history.0 {
            if *version > self.since && concerns(kind) {
                hash(&mut expected, *version, kind, name, *operation);
            }
        }
        let mut faults = Vec::new();
        if expected.finish() != self.shown.finish() {
            faults.push(format!("{} was not shown what happened", self.name));
        }
        let there: Picture = tables
            .iter()
            .filter(|((kind, _), _)| concerns(kind))
            .map(|(k, v)| (k.clone(), *v))
            .collect();
        if there != self.picture {
            faults.push(format!("{} believes in something else than what is there", self.name));
        }
        faults
    }
}

fn hash(hasher: &mut DefaultHasher, version: u64, kind: &Kind, name: &str, operation: Operation) {
    (version, kind.as_str(), name, operation as u8).hash(hasher);
}
