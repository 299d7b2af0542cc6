//! Watches: order, no gaps and no duplicates, across restarts, and how they end.

use std::{collections::HashMap, time::Duration};

use farwater_store::{CompactAfter, Kind, Operation, Store, WatchError};
use futures::{FutureExt as _, StreamExt as _};
use serde_json::json;

use crate::setup::{Place, config_maps, create, delete, key, labelled, next, next_result, put, replace};

on_both_engines!(
    every_watcher_sees_every_write_once_and_in_order,
    a_watch_resumes_across_a_restart,
    a_change_tells_the_labels_before_and_after,
    a_watch_of_another_kind_moves_its_bookmark_only,
    a_watcher_that_lags_is_told_and_ends,
    the_ring_is_bounded_in_bytes_too,
    compacted_changes_stay_gone_after_a_restart,
    waiting_for_a_version_is_bounded,
);

async fn every_watcher_sees_every_write_once_and_in_order(place: Place) {
    const WRITERS: u64 = 64;
    const WRITES: u64 = 20;
    let store = place.open().await;
    let watchers: Vec<_> = (0..4)
        .map(|n| {
            let mut watch = store.watch((n % 2 == 0).then(config_maps), 0).unwrap();
            tokio::spawn(async move {
                let mut seen = HashMap::new();
                for version in 1..=WRITERS * WRITES {
                    let event = next(&mut watch).await;
                    assert_eq!(event.version, version);
                    assert_eq!(event.object["metadata"]["resourceVersion"], version.to_string());
                    seen.insert(version, event.object["data"].clone());
                }
                assert!(watch.next().now_or_never().is_none());
                seen
            })
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut written = Vec::new();
                for n in 0..WRITES {
                    let data = json!({"writer": writer, "n": n});
                    let resource = put(&store, &format!("w{writer}"), data.clone()).await.unwrap();
                    assert!(
                        store.position() >= resource.version,
                        "an answered write is behind the position"
                    );
                    written.push((resource.version, data));
                }
                assert!(written.is_sorted_by_key(|(version, _)| *version));
                written
            })
        })
        .collect();
    let written: HashMap<_, _> = futures::future::join_all(writers)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(written.len() as u64, WRITERS * WRITES, "no number is taken twice");
    for watcher in watchers {
        assert_eq!(watcher.await.unwrap(), written);
    }
}

async fn a_watch_resumes_across_a_restart(place: Place) {
    let store = place.open().await;
    for n in 0..5 {
        put(&store, &format!("n{n}"), json!({})).await.unwrap();
    }
    let mut watch = store.watch(None, 0).unwrap();
    assert_eq!(next(&mut watch).await.version, 1);
    store.close().await;
    assert!(
        !place.path().with_extension("db-wal").exists(),
        "a closed file has no log beside it"
    );
    let rest: Vec<u64> = watch.map(|event| event.unwrap().version).collect().await;
    assert_eq!(
        rest,
        [2, 3, 4, 5],
        "a closing store shows what it has, then ends the watch"
    );

    let store = place.open().await;
    assert_eq!(store.position(), 5);
    let mut watch = store.watch(None, 2).unwrap();
    put(&store, "n5", json!({})).await.unwrap();
    for version in 3..=6 {
        assert_eq!(next(&mut watch).await.version, version);
    }
}

async fn a_change_tells_the_labels_before_and_after(place: Place) {
    let store = place.open().await;
    let mut watch = store.watch(Some(config_maps()), 0).unwrap();
    let red = store
        .write(create(&key("a"), labelled(&key("a"), json!({"colour": "red"}))))
        .await
        .unwrap();
    let blue = store
        .write(replace(&red, labelled(&key("a"), json!({"colour": "blue"}))))
        .await
        .unwrap();
    store.write(delete(&blue)).await.unwrap();
    let colour = |labels: &std::collections::BTreeMap<String, String>| labels.get("colour").cloned();
    let created = next(&mut watch).await;
    assert_eq!(
        (created.operation, colour(&created.old_labels)),
        (Operation::Created, None)
    );
    let updated = next(&mut watch).await;
    assert_eq!(
        (updated.operation, colour(&updated.old_labels).as_deref()),
        (Operation::Updated, Some("red"))
    );
    assert_eq!(updated.object["metadata"]["labels"]["colour"], "blue");
    let deleted = next(&mut watch).await;
    assert_eq!(
        (deleted.operation, colour(&deleted.old_labels).as_deref()),
        (Operation::Deleted, Some("blue"))
    );
    assert_eq!(deleted.object["metadata"]["resourceVersion"], "3");
}

async fn a_watch_of_another_kind_moves_its_bookmark_only(place: Place) {
    let store = place.open().await;
    let mut watch = store.watch(Some(Kind::new("clusters", "farwater.dev")), 0).unwrap();
    let mut own = store.watch(Some(config_maps()), 0).unwrap();
    put(&store, "a", json!({})).await.unwrap();
    put(&store, "b", json!({})).await.unwrap();
    assert!(watch.next().now_or_never().is_none());
    assert_eq!(watch.position(), 2);
    assert_eq!(own.position(), 0, "nothing was handed out yet");
    next(&mut own).await;
    assert_eq!(own.position(), 1);
}

async fn a_watcher_that_lags_is_told_and_ends(place: Place) {
    let mut options = place.options();
    options.ring = 10;
    let store = Store::open(options).await.unwrap();
    let mut watch = store.watch(None, 0).unwrap();
    for n in 0..20 {
        put(&store, "a", json!({"n": n})).await.unwrap();
    }
    assert_eq!(
        next_result(&mut watch).await.unwrap_err(),
        WatchError::Lagged { seen: 0, oldest: 10 }
    );
    assert!(watch.next().await.is_none());
    assert!(matches!(
        store.watch(None, 9),
        Err(WatchError::Compacted { from: 9, oldest: 10 })
    ));
    assert_eq!(next(&mut store.watch(None, 10).unwrap()).await.version, 11);
}

async fn the_ring_is_bounded_in_bytes_too(place: Place) {
    let mut options = place.options();
    options.ring_bytes = 10_000;
    let store = Store::open(options).await.unwrap();
    for n in 0..10 {
        put(&store, "a", json!({"n": n, "text": "x".repeat(3_000)}))
            .await
            .unwrap();
    }
    assert!(matches!(
        store.watch(None, 6),
        Err(WatchError::Compacted { oldest: 7, .. })
    ));
    store.close().await;
    let mut options = place.options();
    options.ring_bytes = 10_000;
    let store = Store::open(options).await.unwrap();
    assert!(matches!(
        store.watch(None, 6),
        Err(WatchError::Compacted { oldest: 7, .. })
    ));
    assert_eq!(next(&mut store.watch(None, 7).unwrap()).await.version, 8);
}

async fn compacted_changes_stay_gone_after_a_restart(place: Place) {
    let mut options = place.options();
    options.compact_after = CompactAfter {
        versions: 10,
        age: Duration::ZERO,
    };
    let store = Store::open(options).await.unwrap();
    for n in 0..50 {
        put(&store, "a", json!({"n": n})).await.unwrap();
    }
    assert!(store.watch(None, 0).is_ok(), "the ring still has them");
    store.close().await;

    let store = place.open().await;
    let Err(WatchError::Compacted { oldest, .. }) = store.watch(None, 0) else {
        panic!("not compacted")
    };
    assert!((25..=40).contains(&oldest), "changes up to {oldest} are gone");
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM changes")
        .fetch_one(&mut *store.tables().await.unwrap())
        .await
        .unwrap();
    assert_eq!(kept as u64, 50 - oldest);
    assert_eq!(next(&mut store.watch(None, oldest).unwrap()).await.version, oldest + 1);
}

async fn waiting_for_a_version_is_bounded(place: Place) {
    let store = place.open().await;
    assert!(!store.wait_for(1, Duration::from_millis(20)).await);
    let waiting = store.clone();
    let waited = tokio::spawn(async move { waiting.wait_for(1, Duration::from_secs(20)).await });
    put(&store, "a", json!({})).await.unwrap();
    assert!(waited.await.unwrap());
}
