use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    backend::{Backend, BackendError},
    config::Allow,
};

const REFRESH: Duration = Duration::from_secs(300);

/// A backend with answers that the test sets.
#[derive(Default)]
struct Scripted {
    asked: AtomicUsize,
    now: Mutex<Vec<Instant>>,
    value: Mutex<Option<String>>,
    error: Mutex<Option<BackendError>>,
}

impl Scripted {
    fn set(&self, value: &str) {
        *lock(&self.value) = Some(value.to_owned());
        *lock(&self.error) = None;
    }

    fn fail(&self, error: BackendError) {
        *lock(&self.error) = Some(error);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Backend for Scripted {
    async fn read(&self, _: &Reference) -> Result<Values, BackendError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        lock(&self.now).push(Instant::now());
        if let Some(error) = lock(&self.error).clone() {
            return Err(error);
        }
        let value = lock(&self.value).clone().unwrap_or_default();
        Ok(vec![("password".to_owned(), SecretBytes::new(value))])
    }
}

/// A shelf in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<BTreeMap<String, Kept>>>);

#[async_trait]
impl Shelf for Memory {
    async fn load(&self, id: &str) -> Result<Option<Kept>, ShelfError> {
        Ok(lock(&self.0).get(id).cloned())
    }
}

impl Memory {
    /// Stores changes, as the hub does.
    fn save(&self, changed: &[Changed]) {
        for changed in changed {
            let kept = changed
                .kept
                .clone()
                .map(|kept| (changed.reference.id(&changed.backend), kept));
            lock(&self.0).extend(kept);
        }
    }
}

fn keeper(backend: &Arc<Scripted>, shelf: &Memory) -> Arc<Keeper<Memory>> {
    let mut backends = Backends::default();
    let allow = Allow {
        namespaces: vec!["team".to_owned()],
        paths: vec![String::new()],
    };
    backends.add("b", Arc::clone(backend) as Arc<dyn Backend>, vec![allow]);
    let keeper = Arc::new(Keeper::new(backends, REFRESH, shelf.clone()));
    let runs = Arc::clone(&keeper);
    tokio::spawn(async move { runs.run().await });
    keeper
}

fn reference(path: &str) -> Reference {
    Reference {
        namespace: "team".into(),
        path: path.into(),
    }
}

/// Waits for the first known state.
async fn known<S: Shelf>(keeper: &Keeper<S>, backend: &str, path: &str) -> Known {
    loop {
        let known = keeper.get(backend, &reference(path)).await.unwrap();
        if !matches!(known.values, Err(ReadError::Unread(_))) {
            return known;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn text(known: &Known) -> String {
    String::from_utf8(known.values.as_ref().unwrap()[0].1.expose().to_vec()).unwrap()
}

async fn value(keeper: &Keeper<Memory>, path: &str) -> (String, bool) {
    let known = known(keeper, "b", path).await;
    (text(&known), known.stale.is_some())
}

#[tokio::test(start_paused = true)]
async fn what_was_read_is_known_at_once_and_follows_its_changes() {
    let (backend, shelf) = (Arc::new(Scripted::default()), Memory::default());
    let keeper = keeper(&backend, &shelf);
    let mut changes = keeper.changes();
    backend.set("one");
    for _ in 0..100 {
        assert_eq!(value(&keeper, "web").await, ("one".to_owned(), false));
    }
    assert_eq!(backend.asked(), 1);
    let first = keeper.take_changed();
    assert!(
        matches!(
            &first[..],
            [Changed {
                keys: None,
                is_age: false,
                kept: Some(_),
                ..
            }]
        ),
        "{first:?}"
    );
    let turn = known(&keeper, "b", "web").await.turn;
    changes.mark_unchanged();
    backend.set("two");
    changes.changed().await.unwrap();
    assert_eq!(value(&keeper, "web").await.0, "two");
    assert!(keeper.peek("b", &reference("web")).unwrap().turn > turn);
    let changed = keeper.take_changed();
    let [
        Changed {
            keys: Some(keys),
            is_age: false,
            kept: Some(_),
            ..
        },
    ] = &changed[..]
    else {
        panic!("{changed:?}")
    };
    assert_eq!(keys, &["password"]);
    assert!(keeper.take_changed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_backend_and_many_that_ask_ask_it_once() {
    let backend = Arc::new(Scripted::default());
    let keeper = keeper(&backend, &Memory::default());
    backend.set("one");
    let before = Instant::now();
    let answer = keeper.get("b", &reference("web")).await.unwrap();
    assert_eq!(
        (answer.values.unwrap_err().to_string(), before),
        ("backend b has not answered yet".to_owned(), Instant::now())
    );
    futures::future::join_all((0..50).map(|_| value(&keeper, "web"))).await;
    assert_eq!(backend.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn why_nothing_was_ever_read_is_told_and_what_comes_then() {
    let backend = Arc::new(Scripted::default());
    let keeper = keeper(&backend, &Memory::default());
    let mut changes = keeper.changes();
    for (error, expected) in [
        (
            BackendError::passing("connection refused"),
            "backend b: connection refused",
        ),
        (
            BackendError::lasting("Vault has nothing at web"),
            "backend b: Vault has nothing at web",
        ),
    ] {
        backend.fail(error);
        known(&keeper, "b", "web").await;
        changes.changed().await.unwrap();
        assert_eq!(
            known(&keeper, "b", "web").await.values.unwrap_err().to_string(),
            expected
        );
        let changed = keeper.take_changed();
        assert!(
            matches!(
                &changed[..],
                [Changed {
                    keys: None,
                    kept: None,
                    ..
                }]
            ),
            "{changed:?}"
        );
    }
    backend.set("one");
    changes.changed().await.unwrap();
    let changed = keeper.take_changed();
    assert!(
        matches!(
            &changed[..],
            [Changed {
                keys: None,
                kept: Some(_),
                ..
            }]
        ),
        "{changed:?}"
    );
    assert_eq!(value(&keeper, "web").await, ("one".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_away_costs_no_value_and_its_return_makes_no_storm() {
    let (backend, shelf) = (Arc::new(Scripted::default()), Memory::default());
    let keeper = keeper(&backend, &shelf);
    backend.set("one");
    for n in 0..500 {
        keeper.get("b", &reference(&n.to_string())).await.unwrap();
    }
    for n in 0..500 {
        value(&keeper, &n.to_string()).await;
    }
    shelf.save(&keeper.take_changed());
    backend.fail(BackendError::passing("connection refused"));
    tokio::time::sleep(REFRESH * 4).await;
    let before = backend.asked();
    assert!(before < 500 + 40, "{before}");
    let oldest = keeper.get("b", &reference("0")).await.unwrap();
    let stale = oldest.stale.expect("it could not be read for 20 minutes");
    assert!(stale.error.to_string().contains("backend b: connection refused") && stale.error.is_passing());
    assert!(matches!(&keeper.conditions()[..], [found] if found.is_away && found.stale > 0 && found.kept == 500));
    // A new reference has no earlier value.
    assert!(known(&keeper, "b", "new").await.values.unwrap_err().is_passing());
    // After a restart while the backend is unavailable, the values come from the shelf.
    let restarted = self::keeper(&backend, &shelf);
    assert_eq!(value(&restarted, "7").await.0, "one");
    drop(restarted);

    lock(&backend.now).clear();
    backend.set("two");
    tokio::time::sleep(REFRESH * 3).await;
    for n in 0..500 {
        assert_eq!(value(&keeper, &n.to_string()).await, ("two".to_owned(), false), "{n}");
    }
    let asked = lock(&backend.now).clone();
    let busiest = asked.iter().map(|at| {
        asked
            .iter()
            .filter(|other| **other >= *at && **other < *at + Duration::from_secs(1))
            .count()
    });
    let busiest = busiest.max().unwrap();
    assert!(busiest <= 25, "{busiest} in one second");
}

#[tokio::test(start_paused = true)]
async fn what_was_old_for_the_process_before_is_told_to_be_old_no_more() {
    let (backend, shelf) = (Arc::new(Scripted::default()), Memory::default());
    let before = keeper(&backend, &shelf);
    backend.set("one");
    value(&before, "web").await;
    shelf.save(&before.take_changed());
    let restarted = keeper(&backend, &shelf);
    assert_eq!(value(&restarted, "web").await, ("one".to_owned(), false));
    restarted.changes().changed().await.unwrap();
    let told = restarted.take_changed();
    let [
        Changed {
            keys: Some(keys),
            is_age: true,
            kept: None,
            ..
        },
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert!(keys.is_empty());
    tokio::time::sleep(REFRESH * 3).await;
    assert!(restarted.take_changed().is_empty(), "and that once");
}

#[tokio::test(start_paused = true)]
async fn a_value_that_was_removed_stays_and_is_told() {
    let backend = Arc::new(Scripted::default());
    let keeper = keeper(&backend, &Memory::default());
    backend.set("one");
    value(&keeper, "web").await;
    keeper.take_changed();
    backend.fail(BackendError::lasting("Vault has nothing at web"));
    keeper.changes().changed().await.unwrap();
    let known = keeper.get("b", &reference("web")).await.unwrap();
    assert_eq!(text(&known), "one");
    assert!(known.stale.unwrap().error.to_string().contains("nothing at web"));
    // The backend is back, so the keeper reports the change.
    backend.set("one");
    keeper.changes().changed().await.unwrap();
    assert_eq!(value(&keeper, "web").await, ("one".to_owned(), false));
    let told = keeper.take_changed();
    assert_eq!(told.len(), 2);
    assert!(
        told.iter()
            .all(|changed| changed.is_age && changed.keys.as_ref().is_some_and(Vec::is_empty))
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_backend_holds_up_no_other() {
    struct Silent;
    #[async_trait]
    impl Backend for Silent {
        async fn read(&self, _: &Reference) -> Result<Values, BackendError> {
            std::future::pending().await
        }
    }
    let (quick, shelf) = (Arc::new(Scripted::default()), Memory::default());
    quick.set("one");
    let allow = || {
        vec![Allow {
            namespaces: vec!["team".to_owned()],
            paths: vec![String::new()],
        }]
    };
    let mut backends = Backends::default();
    backends.add("quick", Arc::clone(&quick) as Arc<dyn Backend>, allow());
    backends.add("silent", Arc::new(Silent), allow());
    let keeper = Arc::new(Keeper::new(backends, REFRESH, shelf));
    let runs = Arc::clone(&keeper);
    tokio::spawn(async move { runs.run().await });
    for n in 0..50 {
        keeper.get("silent", &reference(&n.to_string())).await.unwrap();
    }
    let start = Instant::now();
    assert_eq!(text(&known(&keeper, "quick", "web").await), "one");
    assert!(start.elapsed() < Duration::from_secs(5));
    quick.set("two");
    while text(&known(&keeper, "quick", "web").await) != "two" {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(start.elapsed() < REFRESH * 2);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_is_kept_than_fits_into_memory() {
    struct Large;
    #[async_trait]
    impl Backend for Large {
        async fn read(&self, _: &Reference) -> Result<Values, BackendError> {
            Ok(vec![("a".to_owned(), SecretBytes::new(vec![7; 300 << 10]))])
        }
    }
    let allow = vec![Allow {
        namespaces: vec!["team".to_owned()],
        paths: vec![String::new()],
    }];
    let mut backends = Backends::default();
    backends.add("large", Arc::new(Large), allow);
    let keeper = Arc::new(Keeper::new(backends, REFRESH, Memory::default()));
    let runs = Arc::clone(&keeper);
    tokio::spawn(async move { runs.run().await });
    let mut count = 0;
    while keeper.get("large", &reference(&count.to_string())).await.is_ok() {
        known(&keeper, "large", &count.to_string()).await;
        // The receiver of a change also holds the values for a moment.
        keeper.take_changed();
        count += 1;
    }
    assert_eq!(count, MAX_KEPT_BYTES.div_ceil((300 << 10) + 1));
    assert!(matches!(
        keeper.get("large", &reference("more")).await,
        Err(ReadError::TooMuch)
    ));
    tokio::time::sleep(REFRESH * 3).await;
    assert!(
        keeper.get("large", &reference("0")).await.unwrap().values.is_ok(),
        "those of before are read on"
    );
    keeper.retain(&HashSet::new());
    assert_eq!(keeper.items().bytes, 0);
    assert!(keeper.get("large", &reference("more")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_uses_is_forgotten_and_what_is_not_allowed_is_not_given() {
    let (backend, shelf) = (Arc::new(Scripted::default()), Memory::default());
    let keeper = keeper(&backend, &shelf);
    backend.set("one");
    value(&keeper, "web").await;
    let foreign = Reference {
        namespace: "other".into(),
        ..reference("web")
    };
    let error = keeper.get("b", &foreign).await.unwrap_err().to_string();
    assert!(
        error.contains("namespace other may not read web of backend b"),
        "{error}"
    );
    assert!(keeper.get("absent", &reference("web")).await.is_err());
    for path in ["../web", "/web", "a/./b"] {
        assert!(
            matches!(
                keeper.get("b", &reference(path)).await,
                Err(ReadError::Forbidden { .. })
            ),
            "{path}"
        );
    }
    // Not at once, because the caller has not saved yet that it uses the reference.
    keeper.retain(&HashSet::new());
    tokio::time::sleep(REFRESH * 2).await;
    keeper.retain(&HashSet::from([reference("web").id("b")]));
    assert!(keeper.has(&reference("web").id("b")));
    keeper.retain(&HashSet::new());
    assert!(keeper.items().all.is_empty());
}

#[test]
fn values_are_read_back_from_the_shelf() {
    let values = vec![
        ("a".to_owned(), SecretBytes::new([0, 255])),
        (String::new(), SecretBytes::new("")),
    ];
    assert_eq!(decode_values(&encode_values(&values)).unwrap(), values);
    let bytes = encode_values(&values);
    assert!(decode_values(&bytes[..bytes.len() - 1]).is_none());
    assert!(decode_values(&u64::MAX.to_be_bytes()).is_none());
}
