//! PostgreSQL with problems: killed, hanging, full, read-only. The errors are clear, no acknowledged write is lost, and
//! the store recovers by itself.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use farwater_store::{Store, StoreError, Watch, WriteError};
use farwater_testkit::{Postgres, wait_for};
use futures::{FutureExt as _, StreamExt as _};
use serde_json::json;

use crate::setup::{Place, all, key, next, put};

/// Limit for a recovery of the store.
const PATIENCE: Duration = Duration::from_secs(60);

async fn private() -> (Postgres, Place) {
    let server = Postgres::start().await.unwrap();
    let place = Place::of(server.create_database().await.unwrap());
    (server, place)
}

/// Writes until a write succeeds, and returns the errors before that.
async fn put_at_last(store: &Store, name: &str) -> Vec<StoreError> {
    let (start, mut refusals) = (Instant::now(), Vec::new());
    loop {
        match put(store, name, json!({})).await {
            Ok(_) => return refusals,
            Err(WriteError::Store(error)) => refusals.push(error),
            Err(error) => panic!("{error:?}"),
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", refusals.last());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Checks that the watch shows every change up to the stored state.
async fn check_watch(store: &Store, mut watch: Watch) {
    let mut shown = Vec::new();
    while watch.position() < store.position() || shown.is_empty() {
        shown.push(next(&mut watch).await.version);
    }
    assert!(watch.next().now_or_never().is_none());
    assert!(shown.is_sorted_by(|a, b| *b == a + 1), "{shown:?}");
    let newest = store
        .list(&all())
        .await
        .unwrap()
        .items
        .into_iter()
        .map(|item| item.version)
        .max();
    assert_eq!(shown.last().copied(), newest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing_that_was_answered() {
    let (mut server, place) = private().await;
    let mut options = place.options();
    options.patience = Duration::from_secs(8);
    let store = Store::open(options).await.unwrap();
    let watch = store.watch(None, 0).unwrap();
    let mut acknowledged = Vec::new();
    let answered = Arc::new(AtomicUsize::new(0));
    for round in 1..=3 {
        let writers = (0..16).map(|writer| {
            let (store, answered) = (store.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                let mut written = Vec::new();
                for n in 0.. {
                    let name = format!("r{round}-w{writer}-{n}");
                    match put(&store, &name, json!({})).await {
                        Ok(_) => {
                            written.push(name);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(WriteError::Store(error)) => return (written, error),
                        Err(error) => panic!("{error:?}"),
                    }
                }
                unreachable!()
            })
        });
        let writers: Vec<_> = writers.collect();
        wait_for("writes to be under way", Duration::from_secs(60), || async {
            Ok((answered.load(Ordering::Relaxed) >= round * 50).then_some(()))
        })
        .await
        .unwrap();
        server.kill9().await.unwrap();
        for writer in writers {
            let (written, error) = writer.await.unwrap();
            assert!(
                matches!(error, StoreError::Unavailable { .. } | StoreError::Unknown { .. }),
                "{error:?}"
            );
            acknowledged.extend(written);
        }
        let read = store.get(&key("any")).await.unwrap_err();
        assert!(
            matches!(read, StoreError::Unavailable { .. } | StoreError::Timeout { .. }),
            "{read:?}"
        );
        server.restart().await.unwrap();
        put_at_last(&store, "after").await;
    }
    for name in &acknowledged {
        assert!(
            store.get(&key(name)).await.unwrap().is_some(),
            "{name} was answered and is gone"
        );
    }
    check_watch(&store, watch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_not_waited_for_for_ever() {
    let (mut server, place) = private().await;
    let mut options = place.options();
    options.patience = Duration::from_secs(1);
    let store = Store::open(options).await.unwrap();
    let watch = store.watch(None, 0).unwrap();
    put(&store, "a", json!({})).await.unwrap();
    server.pause().unwrap();
    let start = Instant::now();
    assert!(
        store.get(&key("a")).await.unwrap().is_some(),
        "what was just written is at hand"
    );
    let c = key("c");
    let (written, read, checked) = tokio::join!(put(&store, "b", json!({})), store.get(&c), store.check());
    for error in [
        StoreError::from(written.unwrap_err()),
        read.unwrap_err(),
        checked.unwrap_err(),
    ] {
        let known = matches!(error, StoreError::Timeout { .. } | StoreError::Unavailable { .. });
        assert!(known && error.retry(), "{error:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    server.resume().unwrap();
    put_at_last(&store, "b").await;
    check_watch(&store, watch).await;
}

#[tokio::test]
async fn a_read_only_database_is_read_and_named() {
    let (server, place) = private().await;
    let store = place.open().await;
    put(&store, "a", json!({})).await.unwrap();
    let name = place.database_name();
    server.set_read_only(&name, true).await.unwrap();
    let error = StoreError::from(put(&store, "b", json!({})).await.unwrap_err());
    assert!(
        matches!(error, StoreError::ReadOnly { .. }) && error.retry(),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        format!("write to {}: the database is read-only", place.location())
    );
    assert!(store.get(&key("a")).await.unwrap().is_some());
    server.set_read_only(&name, false).await.unwrap();
    put_at_last(&store, "b").await;
}

/// The data is on a small file system and the server's log elsewhere. Without room for its log, the server ends at
/// once, which is another test.
#[tokio::test]
async fn a_full_disk_of_the_server_loses_nothing_and_recovers() {
    let server = Postgres::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path()) else {
        eprintln!("skipped: only root can mount a small file system");
        return;
    };
    server.own_folder(&disk.0).unwrap();
    let tablespace = format!("CREATE TABLESPACE small LOCATION '{}'", disk.0.display());
    server.execute("postgres", &tablespace).await.unwrap();
    server
        .execute("postgres", "CREATE DATABASE small TABLESPACE small")
        .await
        .unwrap();
    let place = Place::of(server.url("small"));
    let store = place.open().await;
    let watch = store.watch(None, 0).unwrap();
    // Text that doesn't compress, so that it fills pages.
    let text = |n: usize| {
        let digits =
            (0..40_000_u64).map(|i| format!("{:x}", (i + n as u64 * 40_000).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        json!({"text": digits.collect::<String>()})
    };
    let mut written = Vec::new();
    let error = loop {
        match put(&store, &format!("n{}", written.len()), text(written.len())).await {
            Ok(resource) => written.push(resource),
            Err(error) => break StoreError::from(error),
        }
        assert!(written.len() < 200, "the disk isn't small");
    };
    assert!(
        matches!(error, StoreError::DiskFull { .. }) && error.retry(),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .starts_with(&format!("write to {}: the disk is full", place.location()))
    );
    assert!(store.get(&written[0].key).await.unwrap().is_some(), "reading goes on");
    disk.grow();
    put_at_last(&store, "after").await;
    for resource in &written {
        assert_eq!(
            store.get(&resource.key).await.unwrap().unwrap().version,
            resource.version
        );
    }
    check_watch(&store, watch).await;
    store.close().await;
    drop(server);
}

/// A file system in memory, which is removed when this is dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(folder: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=24m,mode=0700", "farwater-test"])
            .arg(folder);
        mount
            .output()
            .is_ok_and(|output| output.status.success())
            .then(|| Self(folder.to_owned()))
    }

    fn grow(&self) {
        let mounted = Command::new("mount")
            .args(["-o", "remount,size=200m"])
            .arg(&self.0)
            .status()
            .unwrap();
        assert!(mounted.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
