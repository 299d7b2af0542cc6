//! Full and read-only disks and damaged files: the errors name the file, no acknowledged write is lost, and the store
//! recovers.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use farwater_store::{Store, StoreError, WriteError};
use serde_json::json;

use crate::setup::{Place, all, create, key, next, object, put};

on_both_engines!(opening_reads_no_objects,);

/// Limits the file of the writing connection to this many more pages of 4 KiB.
async fn leave_room(store: &Store, pages: i64) {
    store
        .transact(move |tx| {
            Box::pin(async move {
                let count: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(&mut **tx).await?;
                let limit = format!("PRAGMA max_page_count = {}", count + pages);
                sqlx::query(sqlx::AssertSqlSafe(limit)).execute(&mut **tx).await?;
                Ok(())
            })
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_recovers() {
    let place = Place::file();
    let store = place.open().await;
    let mut watch = store.watch(None, 0).unwrap();
    leave_room(&store, 20).await;
    let (mut written, mut failures) = (Vec::new(), Vec::new());
    for n in 0..60 {
        match put(&store, &format!("n{n}"), json!({"text": "x".repeat(3_000)})).await {
            Ok(resource) => written.push(resource),
            Err(error) => failures.push(error),
        }
    }
    assert!(
        !written.is_empty() && failures.len() > 30,
        "{} written, {} failed",
        written.len(),
        failures.len()
    );
    for failure in &failures {
        let WriteError::Store(error @ StoreError::DiskFull { .. }) = failure else {
            panic!("{failure:?}")
        };
        assert!(error.retry());
        assert!(
            error
                .to_string()
                .starts_with(&format!("write to {}: the disk is full", place.path().display()))
        );
    }
    let failed: Result<(), _> = store
        .transact(|tx| {
            Box::pin(async move {
                let large = "x".repeat(1 << 20);
                tx.put_meta("large", &large).await
            })
        })
        .await;
    assert!(matches!(failed, Err(StoreError::DiskFull { .. })), "{failed:?}");
    assert!(store.list(&all()).await.is_ok(), "reading goes on");

    leave_room(&store, 100_000).await;
    written.push(put(&store, "after", json!({})).await.unwrap());
    for resource in &written {
        assert_eq!(
            store.get(&resource.key).await.unwrap().unwrap().version,
            resource.version
        );
        assert_eq!(
            next(&mut watch).await.version,
            resource.version,
            "watchers see what was acknowledged, no more"
        );
    }
    assert_eq!(store.list(&all()).await.unwrap().items.len(), written.len());
    store.close().await;
    let store = place.open().await;
    assert_eq!(store.list(&all()).await.unwrap().items.len(), written.len());
}

#[tokio::test]
async fn all_that_waited_for_a_failed_transaction_are_told() {
    let place = Place::file();
    let store = place.open().await;
    leave_room(&store, 0).await;
    let large = json!({"text": "x".repeat(50_000)});
    let writes = (0..40).map(|n| {
        let (store, large) = (store.clone(), large.clone());
        async move { put(&store, &format!("n{n}"), large).await }
    });
    for result in futures::future::join_all(writes).await {
        assert!(
            matches!(result, Err(WriteError::Store(StoreError::DiskFull { .. }))),
            "{result:?}"
        );
    }
    assert!(store.list(&all()).await.unwrap().items.is_empty());
    assert_eq!(store.position(), 0);
}

#[tokio::test]
async fn a_read_only_file_is_named_and_recovers() {
    let place = Place::file();
    let store = place.open().await;
    put(&store, "a", json!({})).await.unwrap();
    let refused = store
        .transact(|tx| {
            Box::pin(async move {
                sqlx::query("PRAGMA query_only = 1").execute(&mut **tx).await?;
                Ok(tx.write(create(&key("b"), object(&key("b"), json!({})))).await?)
            })
        })
        .await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { location, .. }) if location == place.location()));
    // The connection stays read-only, so the store opens another one.
    assert_eq!(put(&store, "b", json!({})).await.unwrap().version, 2);
}

#[tokio::test]
async fn a_damaged_page_is_an_error_with_the_files_name() {
    let place = Place::file();
    let store = place.open().await;
    for n in 0..200 {
        put(&store, &format!("n{n:03}"), json!({"text": "x".repeat(500)}))
            .await
            .unwrap();
    }
    store.close().await;
    let file = std::fs::File::options().write(true).open(place.path()).unwrap();
    let length = file.metadata().unwrap().len();
    // Damages all pages but the first ones, which hold the schema.
    for page in 16..length / 4096 {
        file.write_all_at(&[0xa5; 4096], page * 4096).unwrap();
    }
    let error = match Store::open(place.options()).await {
        Err(error) => error.to_string(),
        Ok(store) => store.list(&all()).await.unwrap_err().to_string(),
    };
    assert!(error.contains("hub.db: the file is damaged"), "{error}");
}

#[tokio::test]
async fn the_file_is_readable_by_its_owner_only() {
    let place = Place::file();
    let store = place.open().await;
    put(&store, "a", json!({})).await.unwrap();
    for file in std::fs::read_dir(place.path().parent().unwrap()).unwrap() {
        let file = file.unwrap();
        assert_eq!(
            file.metadata().unwrap().permissions().mode() & 0o077,
            0,
            "{:?}",
            file.path()
        );
    }
}

/// A database opens at once, however large it is. All objects but one are damaged, so that reading any of them would
/// fail.
async fn opening_reads_no_objects(place: Place) {
    let store = place.open().await;
    put(&store, "first", json!({"text": "x".repeat(500)})).await.unwrap();
    store
        .transact(|tx| {
            Box::pin(async move {
                let copy = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) \
                            INSERT INTO resources (kind, namespace, name, uid, version, sealed, labels, body, status) \
                            SELECT kind, namespace, 'copy-' || i, uid, version, sealed, labels, \
                                   CASE WHEN i = 1000 THEN body ELSE substr(body, 1, 3) END, status \
                            FROM resources, n WHERE name = 'first'";
                sqlx::query(copy).execute(&mut **tx).await?;
                Ok(())
            })
        })
        .await
        .unwrap();
    store.close().await;
    let store = place.open().await;
    assert!(store.get(&key("copy-1000")).await.unwrap().is_some());
    assert!(store.get(&key("copy-999")).await.is_err());
}
