//! Order under load: three replicas on one PostgreSQL database write at the same time, commits wait for random times,
//! and 50 watchers go from replica to replica. None may miss a change, see one twice, or see an older one after a newer
//! one.

mod watcher;

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use farwater_store::{CompactAfter, Key, Kind, ListQuery, Sharing, Store, Write};
use farwater_testkit::postgres;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use crate::setup::{Place, create, delete, replace};
use watcher::{History, Picture, Watcher};

const REPLICAS: usize = 3;
/// Writers per replica. While a batch is committed, their waiting writes form the next one.
const WRITERS: usize = 64;
const NAMES: usize = 4;
const WATCHERS: usize = 50;

/// Variable with the number of events in a campaign. Without it, the test's default counts.
const EVENTS: &str = "FARWATER_ORDER_EVENTS";
const SEED: &str = "FARWATER_ORDER_SEED";

pub fn kinds() -> [Kind; 3] {
    [
        Kind::from("configmaps"),
        Kind::from("clusters.farwater.dev"),
        Kind::from("secrets"),
    ]
}

/// State that all tasks share.
pub struct Load {
    pub replicas: Vec<Store>,
    /// The last version that watchers have to reach, once it is known.
    pub end: AtomicU64,
    /// Most events that a watcher sees before it goes to another replica. Small enough that watchers move often,
    /// however few events there are.
    pub stay: u64,
}

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// Delays commits, which hold the counter's lock. A trigger at the commit does it, so that the product is unchanged.
const DELAYS: &str = "
    CREATE FUNCTION delay() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF random() < 0.1 THEN PERFORM pg_sleep(random() * 0.005); END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER delay AFTER UPDATE ON counter DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION delay();";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_of_three_replicas_miss_nothing_and_see_nothing_twice() {
    let (events, seed) = (number(EVENTS, 5_000), number(SEED, 1));
    let place = Place::database().await;
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(open(&place).await);
    }
    let load = Arc::new(Load {
        replicas,
        end: AtomicU64::new(u64::MAX),
        stay: (events / 20).clamp(2, 5_000),
    });
    postgres::shared()
        .await
        .unwrap()
        .execute(&place.database_name(), DELAYS)
        .await
        .unwrap();

    let start = Instant::now();
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|n| tokio::spawn(Watcher::new(n, seed, Arc::clone(&load)).run()))
        .collect();
    let writers = (0..REPLICAS * WRITERS).map(|n| tokio::spawn(write(Arc::clone(&load), n, seed, events)));
    let writers: Vec<_> = writers.collect();
    futures::future::try_join_all(writers).await.unwrap();
    let wrote = start.elapsed();
    let end = load.replicas.iter().map(Store::position).max().unwrap();
    load.end.store(end, Relaxed);
    let watchers = futures::future::try_join_all(watchers).await.unwrap();

    let history = history(&place, end).await;
    let tables = tables(&load.replicas[0]).await;
    let mut faults = Vec::new();
    for watcher in &watchers {
        faults.extend(watcher.faults.iter().cloned());
        faults.extend(watcher.compare(&history, &tables));
    }
    let sum = |count: fn(&Watcher) -> u64| watchers.iter().map(count).sum::<u64>();
    let outcome = json!({
        "events": end,
        "delivered": sum(|watcher| watcher.delivered),
        "reconnects": sum(|watcher| watcher.reconnects),
        "relists": sum(|watcher| watcher.relists),
        "writesPerSecond": end as f64 / wrote.as_secs_f64(),
        "faults": faults,
    });
    println!("\nwatch-order: {outcome}");
    assert!(faults.is_empty(), "{outcome}");
    assert!(
        end >= events && sum(|watcher| watcher.reconnects) >= WATCHERS as u64,
        "{outcome}"
    );
}

async fn open(place: &Place) -> Store {
    let mut options = place.options();
    options.sharing = Sharing::Replicas;
    // Keeps the whole log, because the watchers are compared with it.
    options.compact_after = CompactAfter {
        versions: u64::MAX >> 1,
        age: Duration::MAX,
    };
    Store::open(options).await.unwrap()
}

/// Writes to names of its own, so that it knows the state of each.
async fn write(load: Arc<Load>, number: usize, seed: u64, events: u64) {
    let store = &load.replicas[number % REPLICAS];
    let mut random = StdRng::seed_from_u64(seed << 32 | number as u64);
    let mut known: Vec<_> = (0..NAMES).map(|_| None).collect();
    for serial in 0_u64.. {
        if store.position() >= events {
            return;
        }
        let name = random.random_range(0..NAMES);
        let kind = kinds()[name % 3].clone();
        let key = Key {
            kind,
            namespace: "load".to_owned(),
            name: format!("w{number}-{name}"),
        };
        let write: Write = match known[name].take() {
            None => create(&key, object(&key, serial)),
            Some(current) if random.random_bool(0.2) => delete(&current),
            Some(current) => replace(&current, object(&key, serial)),
        };
        let is_delete = matches!(write.change, farwater_store::Change::Delete { .. });
        let written = store.write(write).await.unwrap();
        assert!(
            store.position() >= written.version,
            "an answered write is behind the position"
        );
        known[name] = (!is_delete).then_some(written);
    }
}

fn object(key: &Key, serial: u64) -> Value {
    json!({
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": format!("uid-{}", key.name)},
        "data": serial,
    })
}

/// All changes according to the database.
async fn history(place: &Place, end: u64) -> History {
    let sql = "SELECT version, kind, name, operation FROM changes ORDER BY version";
    let text = postgres::shared()
        .await
        .unwrap()
        .execute(&place.database_name(), sql)
        .await
        .unwrap();
    let history = History::read(&text);
    assert_eq!(history.versions().count() as u64, end);
    assert!(history.versions().eq(1..=end), "the log has gaps");
    history
}

/// The final versions of all objects.
async fn tables(store: &Store) -> Picture {
    let mut picture = Picture::new();
    for kind in kinds() {
        let query = ListQuery::all(kind.clone());
        for item in store.list(&query).await.unwrap().items {
            picture.insert((kind.clone(), item.key.name), item.version);
        }
    }
    picture
}
