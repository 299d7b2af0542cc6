//! Several stores on one PostgreSQL database: one order, and who may write.

use std::time::Duration;

use farwater_store::{OpenError, Sharing, Store, StoreError, WatchError, WriteError};
use farwater_testkit::postgres;
use serde_json::json;

use crate::setup::{Place, next, next_result, put};

async fn open_replica(place: &Place) -> Store {
    let mut options = place.options();
    options.sharing = Sharing::Replicas;
    Store::open(options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_replicas_show_all_writes_in_one_order() {
    const WRITERS: u64 = 16;
    const WRITES: u64 = 20;
    let place = Place::database().await;
    let stores = [
        open_replica(&place).await,
        open_replica(&place).await,
        open_replica(&place).await,
    ];
    let all = 3 * WRITERS * WRITES;
    let watchers = stores.iter().map(|store| {
        let mut watch = store.watch(None, 0).unwrap();
        tokio::spawn(async move {
            let mut seen = Vec::new();
            for version in 1..=all {
                let event = next(&mut watch).await;
                assert_eq!(event.version, version);
                seen.push((event.key.name.clone(), event.object["data"].clone()));
            }
            seen
        })
    });
    let watchers: Vec<_> = watchers.collect();
    let writers = stores.iter().enumerate().flat_map(|(n, store)| {
        (0..WRITERS).map(move |writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for serial in 0..WRITES {
                    let name = format!("r{n}-w{writer}");
                    let written = put(&store, &name, json!({"serial": serial})).await.unwrap();
                    assert!(
                        store.position() >= written.version,
                        "an answered write is behind the position"
                    );
                }
            })
        })
    });
    futures::future::try_join_all(writers.collect::<Vec<_>>())
        .await
        .unwrap();
    let seen = futures::future::try_join_all(watchers).await.unwrap();
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

#[tokio::test]
async fn a_write_reaches_the_watchers_of_another_replica_soon() {
    let place = Place::database().await;
    let (one, two) = (open_replica(&place).await, open_replica(&place).await);
    let mut watch = two.watch(None, 0).unwrap();
    for n in 0..5 {
        let written = put(&one, "a", json!({"n": n})).await.unwrap();
        assert!(two.wait_for(written.version, Duration::from_secs(20)).await);
        assert_eq!(next(&mut watch).await.version, written.version);
    }
}

#[tokio::test]
async fn whoever_is_too_far_behind_is_told() {
    let place = Place::database().await;
    let mut options = place.options();
    (options.sharing, options.ring) = (Sharing::Replicas, 10);
    let (one, two) = (open_replica(&place).await, Store::open(options).await.unwrap());
    let mut watch = two.watch(None, 0).unwrap();
    let writes = (0..100).map(|n| {
        let one = one.clone();
        async move { put(&one, &format!("n{n}"), json!({})).await.unwrap() }
    });
    futures::future::join_all(writes).await;
    assert!(two.wait_for(100, Duration::from_secs(20)).await);
    // The watch was not read meanwhile, so most of the events have left this replica's memory.
    let error = next_result(&mut watch).await.unwrap_err();
    assert!(matches!(error, WatchError::Lagged { oldest: 90.., .. }), "{error:?}");
    assert!(two.watch(None, 89).is_err());
    assert_eq!(next(&mut two.watch(None, 95).unwrap()).await.version, 96);
}

#[tokio::test]
async fn one_that_is_alone_is_refused_beside_others() {
    let place = Place::database().await;
    let replica = open_replica(&place).await;
    let Err(error) = Store::open(place.options()).await else {
        panic!("it was opened")
    };
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("lock {}: another hub is using the database", place.location())
    );
    replica.close().await;
    let alone = place.open().await;
    let mut options = place.options();
    options.sharing = Sharing::Replicas;
    assert!(matches!(Store::open(options).await, Err(OpenError::Locked { .. })));
    put(&alone, "a", json!({})).await.unwrap();
}

#[tokio::test]
async fn a_file_is_not_shared() {
    let place = Place::file();
    let mut options = place.options();
    options.sharing = Sharing::Replicas;
    assert!(matches!(Store::open(options).await, Err(OpenError::NotShared { .. })));
}

#[tokio::test]
async fn lost_connections_are_made_again() {
    let place = Place::database().await;
    let store = place.open().await;
    put(&store, "a", json!({})).await.unwrap();
    let mut watch = store.watch(None, 1).unwrap();
    for n in 0..3 {
        disconnect_all(&place).await;
        let written = put(&store, "a", json!({"n": n})).await.unwrap();
        assert_eq!(next(&mut watch).await.version, written.version);
        assert!(store.meta("none").await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_store_whose_database_was_taken_over_never_writes_again() {
    let place = Place::database().await;
    let first = place.open().await;
    put(&first, "a", json!({})).await.unwrap();
    disconnect_all(&place).await;
    let second = place.open().await;
    put(&second, "a", json!({"by": "second"})).await.unwrap();
    second.close().await;
    let refused = put(&first, "b", json!({})).await;
    assert!(
        matches!(refused, Err(WriteError::Store(StoreError::Taken { .. }))),
        "{refused:?}"
    );
    first.taken().await;
    assert!(put(&first, "b", json!({})).await.is_err());
}

#[tokio::test]
async fn a_database_that_went_back_shows_nobody_the_past() {
    let place = Place::database().await;
    let store = place.open().await;
    for n in 0..5 {
        put(&store, "a", json!({"n": n})).await.unwrap();
    }
    let mut watch = store.watch(None, 5).unwrap();
    // The state of a standby that lagged when its primary was lost.
    let sql = "DELETE FROM changes WHERE version > 3; UPDATE resources SET version = 3; UPDATE counter SET value = 3";
    postgres::shared()
        .await
        .unwrap()
        .execute(&place.database_name(), sql)
        .await
        .unwrap();
    let written = put(&store, "b", json!({})).await.unwrap();
    assert!(written.version > 5, "{}", written.version);
    assert!(matches!(next_result(&mut watch).await, Err(WatchError::Lagged { .. })));
    assert_eq!(store.list(&crate::setup::all()).await.unwrap().version, written.version);
}

#[tokio::test]
async fn no_error_tells_the_password() {
    let place = Place::database().await;
    let url = postgres::shared().await.unwrap().url("no_such_database");
    let nowhere = url.replace("127.0.0.1:", "127.0.0.1:1");
    let other = url.replace(postgres::PASSWORD, "canary-other-password");
    for url in [&url, &nowhere, &other] {
        let Ok(parsed) = farwater_store::PostgresUrl::parse(url) else {
            continue;
        };
        let mut options = place.options();
        options.location = parsed.into();
        let Err(error) = Store::open(options).await else {
            panic!("it was opened")
        };
        let mut text = format!("{error:?}\n{error}");
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            text.push_str(&format!("\n{error}\n{error:?}"));
            source = error.source();
        }
        assert!(!text.contains("canary"), "{text}");
    }
}

/// Ends all connections to the database, like a restart of the server.
async fn disconnect_all(place: &Place) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    postgres::shared()
        .await
        .unwrap()
        .execute(&place.database_name(), sql)
        .await
        .unwrap();
}
