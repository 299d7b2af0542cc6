//! The seal key is exchanged while reads, writes and watches go on. If the process stops at any point, nothing is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use farwater_store::{
    Key, Kind, OpenError, OpenOptions, Resealing, Store,
    archive::{Allow, ArchiveError, backup, restore_from},
    fsck, read_data_keys,
};
use serde_json::{Value, json};

use crate::setup::{Place, create, delete, next, replace};

on_both_engines!(
    the_seal_key_is_exchanged_while_reads_writes_and_watches_go_on,
    an_exchange_that_is_stopped_anywhere_goes_on_at_the_next_start,
    rows_of_a_store_without_data_keys_are_sealed_with_one,
    a_backup_of_before_an_exchange_is_restored_with_the_key_of_then,
    what_was_read_of_backends_is_kept_sealed,
);

const OLD: [u8; 32] = [7; 32];
const NEW: [u8; 32] = [9; 32];
const CANARY: &str = "canary-5e1d77";

fn secret_key(name: &str) -> Key {
    Key {
        kind: Kind::new("secrets", ""),
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

fn secret(name: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"tier": text}},
        "data": {"password": text},
        "status": {"note": text},
    })
}

async fn fill(store: &Store, count: usize) {
    let writes = (0..count).map(|n| {
        let name = format!("s{n:04}");
        async move {
            store
                .write(create(&secret_key(&name), secret(&name, CANARY)))
                .await
                .unwrap()
        }
    });
    futures::future::join_all(writes).await;
}

async fn reseal(store: &Store) -> u64 {
    let (mut place, mut steps) = (Resealing::default(), 0);
    while store.reseal(&mut place).await.unwrap() {
        steps += 1;
        assert!(steps < 1_000, "it never ends");
    }
    steps
}

/// The data keys, each with whether it is in use and its number of rows.
async fn keys(place: &Place) -> Vec<(i16, bool, u64)> {
    let rows = read_data_keys(&place.location()).await.unwrap();
    rows.into_iter()
        .map(|key| (key.number, key.is_in_use, key.rows))
        .collect()
}

fn options(place: &Place, key: [u8; 32], next: Option<[u8; 32]>) -> OpenOptions {
    OpenOptions {
        next_seal_key: next,
        ..OpenOptions::new(place.location(), key)
    }
}

async fn check(place: &Place, key: &[u8; 32]) {
    let report = fsck::fsck(&place.location(), key).await.unwrap();
    assert_eq!(report.findings, Vec::new());
}

async fn the_seal_key_is_exchanged_while_reads_writes_and_watches_go_on(place: Place) {
    let store = Arc::new(place.open().await);
    fill(&store, 250).await;
    let from = store.position();
    let (ends, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (store, ends, written) = (Arc::clone(&store), Arc::clone(&ends), Arc::clone(&written));
        tokio::spawn(async move {
            let mut number = 0;
            while !ends.load(Ordering::Relaxed) {
                let name = format!("s{:04}", number % 250);
                let current = store.get(&secret_key(&name)).await.unwrap().unwrap();
                if number % 7 == 3 {
                    store.write(delete(&current)).await.unwrap();
                    store
                        .write(create(&secret_key(&name), secret(&name, CANARY)))
                        .await
                        .unwrap();
                } else {
                    store
                        .write(replace(&current, secret(&name, &format!("{CANARY}-{number}"))))
                        .await
                        .unwrap();
                }
                number += 1;
                written.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    while written.load(Ordering::Relaxed) < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.rotate_seal_key(&NEW).await.unwrap();
    assert!(store.is_sealed_with(&NEW) && !store.is_sealed_with(&OLD));
    let between = keys(&place).await;
    assert_eq!(
        between
            .iter()
            .map(|(number, used, _)| (*number, *used))
            .collect::<Vec<_>>(),
        [(1, false), (2, true)]
    );
    assert!(between[0].2 > 0, "nothing was sealed anew yet");
    check(&place, &NEW).await;
    assert!(reseal(&store).await > 2);
    let before = written.load(Ordering::Relaxed);
    while written.load(Ordering::Relaxed) < before + 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ends.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    assert_eq!(keys(&place).await, [(2, true, 250)]);
    check(&place, &NEW).await;
    assert_eq!(place.parts_with(CANARY).await, Vec::<String>::new());
    // No event is lost, and resealing causes none.
    let mut watch = store.watch(Some(Kind::new("secrets", "")), from).unwrap();
    let mut version = from;
    while version < store.position() {
        let event = next(&mut watch).await;
        assert_eq!(event.version, version + 1);
        version = event.version;
    }
    store.close().await;
    drop(store);

    assert!(matches!(
        Store::open(options(&place, OLD, None)).await,
        Err(OpenError::WrongKey { .. })
    ));
    let store = Store::open(options(&place, NEW, None)).await.unwrap();
    // The log can be opened too.
    let mut watch = store.watch(Some(Kind::new("secrets", "")), from).unwrap();
    assert!(
        next(&mut watch).await.object["data"]["password"]
            .as_str()
            .unwrap()
            .starts_with(CANARY)
    );
    assert!(store.get(&secret_key("s0001")).await.unwrap().is_some());
}

async fn an_exchange_that_is_stopped_anywhere_goes_on_at_the_next_start(place: Place) {
    // The next key was created, but the database doesn't know it yet.
    let store = Store::open(options(&place, OLD, Some(NEW))).await.unwrap();
    fill(&store, 250).await;
    assert!(store.is_sealed_with(&OLD));
    store.rotate_seal_key(&NEW).await.unwrap();
    store.close().await;
    drop(store);
    // The database knows the key, but the files were not exchanged yet.
    let store = Store::open(options(&place, OLD, Some(NEW))).await.unwrap();
    assert!(store.is_sealed_with(&NEW));
    assert!(store.get(&secret_key("s0000")).await.unwrap().is_some());
    // A part of the rows is resealed.
    assert!(store.reseal(&mut Resealing::default()).await.unwrap());
    store.close().await;
    drop(store);
    let store = Store::open(options(&place, NEW, None)).await.unwrap();
    assert!(keys(&place).await[0].2 < 250);
    check(&place, &NEW).await;
    // Another exchange begins before the first has ended.
    store.rotate_seal_key(&OLD).await.unwrap();
    assert_eq!(keys(&place).await.len(), 3);
    reseal(&store).await;
    assert_eq!(keys(&place).await, [(3, true, 250)]);
    check(&place, &OLD).await;
    assert_eq!(
        store.get(&secret_key("s0249")).await.unwrap().unwrap().object["data"]["password"],
        CANARY
    );
}

async fn rows_of_a_store_without_data_keys_are_sealed_with_one(place: Place) {
    let store = place.open().await;
    // The state of an older version, whose rows are sealed with the seal key itself.
    let forget = store.transact(|tx| {
        Box::pin(async move {
            sqlx::query("DELETE FROM data_keys").execute(&mut **tx).await?;
            Ok(())
        })
    });
    forget.await.unwrap();
    fill(&store, 3).await;
    let context = Key {
        kind: Kind::new("servicecontexts", "farwater.dev"),
        ..secret_key("shared")
    };
    let mut object = secret("shared", CANARY);
    (object["apiVersion"], object["kind"]) = (json!("farwater.dev/v1alpha1"), json!("ServiceContext"));
    store.write(create(&context, object)).await.unwrap();
    store.close().await;
    drop(store);
    check(&place, &OLD).await;
    let store = place.open().await;
    assert_eq!(keys(&place).await, [(1, false, 4), (2, true, 0)]);
    assert_eq!(
        store.get(&secret_key("s0001")).await.unwrap().unwrap().object["data"]["password"],
        CANARY
    );
    reseal(&store).await;
    assert_eq!(keys(&place).await, [(2, true, 4)]);
    assert_eq!(
        store.get(&context).await.unwrap().unwrap().object["data"]["password"],
        CANARY
    );
    check(&place, &OLD).await;
}

async fn a_backup_of_before_an_exchange_is_restored_with_the_key_of_then(place: Place) {
    let store = place.open().await;
    fill(&store, 3).await;
    let file = place.path().with_file_name("backup.farwater");
    backup(&place.location(), &file, false).await.unwrap();
    store.rotate_seal_key(&NEW).await.unwrap();
    store.close().await;
    drop(store);
    let target = place.clone_empty().await;
    let refused = restore_from(&file, &target.location(), &NEW, &[], Allow::default()).await;
    assert!(matches!(refused, Err(ArchiveError::WrongKey { .. })));
    let earlier = [[1; 32], OLD];
    restore_from(&file, &target.location(), &NEW, &earlier, Allow::default())
        .await
        .unwrap();
    assert!(matches!(
        Store::open(options(&target, OLD, None)).await,
        Err(OpenError::WrongKey { .. })
    ));
    let store = Store::open(options(&target, NEW, None)).await.unwrap();
    assert_eq!(
        store.get(&secret_key("s0001")).await.unwrap().unwrap().object["data"]["password"],
        CANARY
    );
    check(&target, &NEW).await;
}

async fn what_was_read_of_backends_is_kept_sealed(place: Place) {
    let store = place.open().await;
    assert!(store.load_kept("a").await.unwrap().is_none());
    let keep = store.transact(|tx| {
        Box::pin(async move {
            for (id, text) in [("a", "first"), ("a", CANARY), ("b", CANARY)] {
                tx.save_kept(id, 5, text.as_bytes()).await?;
            }
            Ok(())
        })
    });
    keep.await.unwrap();
    assert_eq!(store.kept_ids().await.unwrap(), ["a", "b"]);
    let (read, value) = store.load_kept("a").await.unwrap().unwrap();
    assert_eq!((read, value.as_slice()), (5, CANARY.as_bytes()));
    assert_eq!(place.parts_with(CANARY).await, Vec::<String>::new());
    store.rotate_seal_key(&NEW).await.unwrap();
    reseal(&store).await;
    assert_eq!(keys(&place).await, [(2, true, 2)]);
    check(&place, &NEW).await;
    store.transact(|tx| Box::pin(tx.remove_kept("b"))).await.unwrap();
    assert!(store.load_kept("b").await.unwrap().is_none());
    // A value under the id of another one can't be opened.
    let swap = store.transact(|tx| {
        Box::pin(async move {
            sqlx::query("UPDATE kept_values SET id = 'c'")
                .execute(&mut **tx)
                .await?;
            Ok(())
        })
    });
    swap.await.unwrap();
    assert!(store.load_kept("c").await.is_err());
    let report = fsck::fsck(&place.location(), &NEW).await.unwrap();
    assert!(report.is_damaged && report.findings[0].table == "kept_values");
}
