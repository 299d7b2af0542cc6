//! Numbers of resources by state: every transaction updates them, and other rules have all resources counted again.

use farwater_store::{Classes, OpenOptions, Store, StoreError};
use rand::RngExt as _;
use serde_json::{Value, json};

use crate::setup::{Place, all, create, delete, key, object, put, replace};

on_both_engines!(
    the_numbers_are_those_of_the_resources_whatever_is_written,
    what_is_taken_back_is_not_counted,
    other_rules_have_everything_counted_anew,
);

/// The states for a value of `status.mood`.
fn states(_: &str, status: Option<&[u8]>) -> Vec<&'static str> {
    let status: Value = status
        .map(|json| serde_json::from_slice(json).unwrap())
        .unwrap_or_default();
    match status["mood"].as_str() {
        Some("good") => vec!["good"],
        Some("mixed") => vec!["good", "bad"],
        Some(_) => vec!["bad"],
        None => vec!["none"],
    }
}

const CLASSES: Classes = Classes {
    version: "1",
    kinds: &["configmaps"],
    states,
};

fn options(place: &Place) -> OpenOptions {
    let mut options = place.options();
    options.classes = Some(CLASSES);
    options
}

async fn numbers(store: &Store) -> Vec<(String, u64)> {
    let tallies = store.tallies().await.unwrap();
    assert!(tallies.iter().all(|tally| tally.kind == "configmaps"), "{tallies:?}");
    tallies
        .into_iter()
        .filter(|tally| tally.number > 0)
        .map(|tally| (tally.state, tally.number))
        .collect()
}

/// The same numbers, counted from the resources themselves.
async fn counted(store: &Store) -> Vec<(String, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for resource in store.list(&all()).await.unwrap().items {
        let status = resource.object.get("status").map(Value::to_string);
        for state in states("configmaps", status.as_deref().map(str::as_bytes)) {
            *counts.entry(state.to_owned()).or_default() += 1;
        }
    }
    counts.into_iter().collect()
}

async fn the_numbers_are_those_of_the_resources_whatever_is_written(place: Place) {
    let store = Store::open(options(&place)).await.unwrap();
    let mut random = rand::rng();
    for _ in 0..300 {
        let key = key(&format!("n{}", random.random_range(0..12)));
        let mut wanted = object(&key, json!({"n": random.random_range(0..3)}));
        if let Some(mood) = [None, Some("good"), Some("bad"), Some("mixed")][random.random_range(0..4)] {
            wanted["status"] = json!({"mood": mood});
        }
        let current = store.get(&key).await.unwrap();
        let write = match (&current, random.random_range(0..4)) {
            (None, _) => create(&key, wanted),
            (Some(current), 0) => delete(current),
            (Some(current), 1) => {
                // A write that is refused.
                let mut old = current.clone();
                old.version -= 1;
                replace(&old, wanted)
            }
            (Some(current), _) => replace(current, wanted),
        };
        let _ = store.write(write).await;
    }
    assert_eq!(numbers(&store).await, counted(&store).await);
    assert!(!counted(&store).await.is_empty());
    // Several writes in one transaction.
    let names: Vec<String> = (0..40).map(|n| format!("many-{n}")).collect();
    futures::future::join_all(names.iter().map(|name| put(&store, name, json!({})))).await;
    assert_eq!(numbers(&store).await, counted(&store).await);
}

async fn what_is_taken_back_is_not_counted(place: Place) {
    let store = Store::open(options(&place)).await.unwrap();
    put(&store, "a", json!({})).await.unwrap();
    let refused: Result<(), _> = store
        .transact(|tx| {
            Box::pin(async move {
                tx.write(create(&key("b"), object(&key("b"), json!({})))).await?;
                Err(StoreError::abort("no more wanted"))
            })
        })
        .await;
    assert!(refused.is_err());
    assert_eq!(numbers(&store).await, [("none".to_owned(), 1)]);
}

async fn other_rules_have_everything_counted_anew(place: Place) {
    // The state that an older program left: nothing was counted.
    let store = place.open().await;
    for n in 0..2_100 {
        put(&store, &format!("n{n:04}"), json!({})).await.unwrap();
    }
    assert!(store.tallies().await.unwrap().is_empty());
    store.close().await;
    let store = Store::open(options(&place)).await.unwrap();
    assert_eq!(numbers(&store).await, [("none".to_owned(), 2_100)]);
    store.close().await;
    let mut other = options(&place);
    other.classes = Some(Classes {
        version: "2",
        states: |_, _| vec!["any"],
        ..CLASSES
    });
    let store = Store::open(other).await.unwrap();
    assert_eq!(numbers(&store).await, [("any".to_owned(), 2_100)]);
    store.close().await;
}
