//! Backups, restores, copies between the engines, and fsck.

use std::{
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use farwater_store::{
    ApiToken, Key, Kind, OpenError, Resource, Store, WatchError,
    archive::{
        Allow, ArchiveError, Destination, Enclosed, FileError, backup, backup_to, copy_store, enclosed, restore, verify,
    },
    delivery::{self, Agent, Assignment, Desired, load_agent, load_desired, load_dirty},
    fsck::{Severity, fsck},
};
use serde_json::json;

use crate::setup::{Place, all, create, key, labelled, next, object, put, replace};

on_both_engines!(
    a_backup_brings_everything_back_into_either_engine,
    a_copy_goes_on_where_the_original_was,
    a_restore_replaces_by_force_only_and_only_what_nobody_uses,
    a_damaged_backup_is_refused_before_anything_is_touched,
    a_backup_of_damaged_rows_takes_no_place_unless_that_is_allowed,
    a_stream_encloses_files_and_is_a_backup,
    a_backup_of_a_busy_store_is_of_one_moment,
    fsck_finds_what_was_never_written,
);

const KEY: [u8; 32] = [7; 32];
const REPLACE: Allow = Allow {
    replace: true,
    damage: false,
};

/// An empty place of the other engine.
async fn other(place: &Place) -> Place {
    if place.url().is_some() {
        Place::file()
    } else {
        Place::database().await
    }
}

fn file(place: &Place) -> PathBuf {
    place.path().with_file_name("backup.farwater")
}

fn secret() -> Key {
    Key {
        kind: Kind::from("secrets"),
        ..key("secret")
    }
}

/// Writes something into every table.
async fn fill(store: &Store) {
    for n in 0..450 {
        put(
            store,
            &format!("n{n:03}"),
            json!({"n": n, "text": "b:not base64 \u{1F600} \n"}),
        )
        .await
        .unwrap();
    }
    store
        .write(create(&secret(), object(&secret(), json!({"password": "canary"}))))
        .await
        .unwrap();
    let mut with_all = labelled(&key("all"), json!({"app": "web"}));
    with_all["status"] = json!({"ready": true});
    with_all["metadata"]["ownerReferences"] = json!([{"uid": "uid-n001"}]);
    store.write(create(&key("all"), with_all)).await.unwrap();
    for (kind, name) in [
        ("clusters.farwater.dev", "east"),
        ("servicedeployments.farwater.dev", "web"),
    ] {
        let key = Key {
            kind: Kind::from(kind),
            ..key(name)
        };
        store.write(create(&key, object(&key, json!({})))).await.unwrap();
    }
    store.put_meta("epoch", "100").await.unwrap();
    let token = ApiToken {
        hash: [3; 32],
        user: "someone".to_owned(),
        uid: String::new(),
        groups: vec![],
        bound: None,
        created: 1,
        expires: None,
    };
    store.insert_token(token).await.unwrap();
    store
        .transact(|tx| Box::pin(async move { fill_delivery(tx).await }))
        .await
        .unwrap();
}

async fn fill_delivery(tx: &mut farwater_store::Tx) -> Result<(), farwater_store::StoreError> {
    let text = str::to_owned;
    let agent = Agent {
        cluster_uid: text("uid-east"),
        public_key: vec![1; 32],
        sealing_key: vec![0, 255],
        cluster_id: text("kube-system"),
        agent_version: text("1"),
        kubernetes_version: text("1.36"),
        joined: 5,
        report_sequence: 7,
        restored_epoch: 0,
    };
    delivery::save_agent(tx, &agent).await?;
    let desired = Desired {
        cluster_uid: text("uid-east"),
        epoch: 100,
        generation: 3,
        tag: farwater_api::Digest::of(b"tag"),
        key_id: text("k"),
        signature: text("signed"),
        body: vec![9; 100],
        bundles: vec![],
    };
    delivery::save_desired(tx, &desired).await?;
    let assignment = Assignment {
        service_uid: text("uid-web"),
        namespace: text("default"),
        name: text("web"),
        cluster_uid: text("uid-east"),
        source_uid: String::new(),
        generation: 1,
        stamp: text("s"),
        candidate: None,
        assigned: Some(text("{}")),
        why: text("{}"),
    };
    delivery::save_assignment(tx, &assignment).await
}

async fn everything(store: &Store) -> Vec<(Key, u64, serde_json::Value)> {
    let mut found = Vec::new();
    for kind in [
        "configmaps",
        "secrets",
        "clusters.farwater.dev",
        "servicedeployments.farwater.dev",
    ] {
        let query = farwater_store::ListQuery {
            kind: Kind::from(kind),
            ..all()
        };
        let items = store.list(&query).await.unwrap().items;
        found.extend(items.into_iter().map(
            |Resource {
                 key, version, object, ..
             }| (key, version, (*object).clone()),
        ));
    }
    found
}

async fn a_backup_brings_everything_back_into_either_engine(place: Place) {
    let store = place.open().await;
    fill(&store).await;
    let copied = backup(&place.location(), &file(&place), false).await.unwrap();
    assert_eq!(copied.counter, store.position());
    assert_eq!(verify(&file(&place)).unwrap(), copied);
    let whole = fs::read(file(&place)).unwrap();
    assert!(
        zstd::decode_all(&*whole)
            .unwrap()
            .windows(6)
            .all(|window| window != b"canary"),
        "sealed rows stay sealed"
    );
    // A write after the backup is not in the backup.
    put(&store, "n000", json!({"n": "later"})).await.unwrap();
    let later = store.position();
    let before: Vec<_> = everything(&store)
        .await
        .into_iter()
        .filter(|(key, ..)| key.name != "n000")
        .collect();
    store.close().await;

    for target in [place.clone_empty().await, other(&place).await] {
        let restored = restore(&file(&place), &target.location(), &KEY, Allow::default())
            .await
            .unwrap();
        assert!(restored.counter > later + 1_000_000_000, "no number is used again");
        let report = fsck(&target.location(), &KEY).await.unwrap();
        assert_eq!((report.findings, report.changes), (vec![], 0));
        let store = target.open().await;
        let after: Vec<_> = everything(&store)
            .await
            .into_iter()
            .filter(|(key, ..)| key.name != "n000")
            .collect();
        assert_eq!(after, before);
        let old = store.get(&key("n000")).await.unwrap().unwrap();
        assert_eq!(old.object["data"]["n"], 0);
        // A watch from before has to list again, and goes on from there.
        let refused = store.watch(None, later);
        assert!(matches!(refused, Err(WatchError::Compacted { oldest, .. }) if oldest == restored.counter));
        let mut watch = store.watch(None, store.list(&all()).await.unwrap().version).unwrap();
        let written = store
            .write(replace(&old, object(&key("n000"), json!({"n": "new"}))))
            .await
            .unwrap();
        assert_eq!(
            (next(&mut watch).await.version, written.version),
            (restored.counter + 1, restored.counter + 1)
        );

        // The new epoch makes agents ask before they act on the restored state.
        assert!(restored.epoch > 100);
        let mut tables = store.tables().await.unwrap();
        let agent = load_agent(&mut tables, "uid-east").await.unwrap().unwrap();
        assert_eq!(
            (agent.restored_epoch.unsigned_abs(), agent.report_sequence),
            (restored.epoch, 7)
        );
        let desired = load_desired(&mut tables, "uid-east").await.unwrap().unwrap();
        assert_eq!(
            (desired.epoch, desired.generation, &*desired.signature),
            (restored.epoch, 3, "")
        );
        assert_eq!(load_dirty(&mut tables, 10).await.unwrap().len(), 1);
        assert_eq!(store.meta("epoch").await.unwrap(), Some(restored.epoch.to_string()));
        assert!(store.find_token(&[3; 32], 0).await.unwrap().is_some());
        drop(tables);
        store.close().await;
    }
}

async fn a_copy_goes_on_where_the_original_was(place: Place) {
    let store = place.open().await;
    fill(&store).await;
    let target = other(&place).await;
    let in_use = copy_store(&place.location(), &target.location(), false).await;
    assert!(
        matches!(in_use, Err(ArchiveError::Open(OpenError::Locked { .. }))),
        "{in_use:?}"
    );
    let (position, before) = (store.position(), everything(&store).await);
    store.close().await;
    copy_store(&place.location(), &target.location(), false).await.unwrap();
    assert_eq!(fsck(&target.location(), &KEY).await.unwrap().findings, []);

    let store = target.open().await;
    assert_eq!((store.position(), everything(&store).await), (position, before));
    // A watch goes on across the copy.
    let mut watch = store.watch(None, position - 3).unwrap();
    put(&store, "after", json!({})).await.unwrap();
    for version in position - 2..=position + 1 {
        assert_eq!(next(&mut watch).await.version, version);
    }
    let mut tables = store.tables().await.unwrap();
    assert_eq!(
        load_agent(&mut tables, "uid-east")
            .await
            .unwrap()
            .unwrap()
            .restored_epoch,
        0
    );
    assert_eq!(
        load_desired(&mut tables, "uid-east").await.unwrap().unwrap().signature,
        "signed"
    );
}

async fn a_restore_replaces_by_force_only_and_only_what_nobody_uses(place: Place) {
    let store = place.open().await;
    put(&store, "a", json!({"n": 1})).await.unwrap();
    backup(&place.location(), &file(&place), false).await.unwrap();
    let again = backup(&place.location(), &file(&place), false).await;
    assert!(
        matches!(again, Err(ArchiveError::File(FileError::Exists { .. }))),
        "{again:?}"
    );
    for n in 0..9 {
        put(&store, "a", json!({"n": n})).await.unwrap();
    }
    let in_use = restore(&file(&place), &place.location(), &KEY, REPLACE).await;
    assert!(
        matches!(in_use, Err(ArchiveError::Open(OpenError::Locked { .. }))),
        "{in_use:?}"
    );
    store.close().await;
    let occupied = restore(&file(&place), &place.location(), &KEY, Allow::default()).await;
    assert!(matches!(occupied, Err(ArchiveError::Occupied { .. })), "{occupied:?}");
    let wrong = restore(&file(&place), &place.location(), &[8; 32], REPLACE).await;
    assert!(matches!(wrong, Err(ArchiveError::WrongKey { .. })), "{wrong:?}");
    let store = place.open().await;
    assert_eq!(store.position(), 10, "nothing was touched");
    store.close().await;

    let restored = restore(&file(&place), &place.location(), &KEY, REPLACE).await.unwrap();
    assert_eq!(restored.copied.counter, 1);
    assert!(restored.counter > 10);
    let store = place.open().await;
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().object["data"]["n"], 1);
}

async fn a_damaged_backup_is_refused_before_anything_is_touched(place: Place) {
    let store = place.open().await;
    fill(&store).await;
    backup(&place.location(), &file(&place), false).await.unwrap();
    store.close().await;
    let whole = fs::read(file(&place)).unwrap();
    let text = zstd::decode_all(&*whole).unwrap();
    let edited = String::from_utf8(text).unwrap().replacen("uid-n001", "uid-n0x1", 1);
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for bytes in [
        whole[..whole.len() / 2].to_vec(),
        flipped,
        zstd::encode_all(edited.as_bytes(), 3).unwrap(),
        b"not a backup".to_vec(),
        vec![],
    ] {
        fs::write(file(&place), bytes).unwrap();
        let refused = restore(&file(&place), &place.location(), &KEY, REPLACE).await;
        assert!(
            matches!(
                refused,
                Err(ArchiveError::File(FileError::Damaged { .. } | FileError::Format { .. }))
            ),
            "{refused:?}"
        );
    }
    let store = place.open().await;
    assert_eq!(store.list(&all()).await.unwrap().items.len(), 451);
}

async fn a_backup_of_damaged_rows_takes_no_place_unless_that_is_allowed(place: Place) {
    let store = place.open().await;
    fill(&store).await;
    let damage = "UPDATE resources SET labels = '{}' WHERE name = 'all'";
    store
        .transact(move |tx| {
            Box::pin(async move { Ok(sqlx::raw_sql(damage).execute(&mut **tx).await?.rows_affected()) })
        })
        .await
        .unwrap();
    store.close().await;
    backup(&place.location(), &file(&place), false).await.unwrap();

    let target = other(&place).await;
    let store = target.open().await;
    put(&store, "kept", json!({"n": 1})).await.unwrap();
    store.close().await;
    let refused = restore(&file(&place), &target.location(), &KEY, REPLACE).await;
    assert!(
        matches!(&refused, Err(ArchiveError::Damaged { first, .. }) if first.contains("labels")),
        "{refused:?}"
    );
    assert!(
        !target.path().with_file_name("hub.db.restoring").exists(),
        "and nothing is left that takes room"
    );
    let store = target.open().await;
    assert_eq!(
        store.get(&key("kept")).await.unwrap().unwrap().object["data"]["n"],
        1,
        "nothing was touched"
    );
    store.close().await;
    restore(
        &file(&place),
        &target.location(),
        &KEY,
        Allow {
            damage: true,
            ..REPLACE
        },
    )
    .await
    .unwrap();
    assert!(fsck(&target.location(), &KEY).await.unwrap().is_damaged);
}

/// A stream that can be read back after it was written.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn a_stream_encloses_files_and_is_a_backup(place: Place) {
    let store = place.open().await;
    fill(&store).await;
    let files = ["keys/seal.key", "keys/ca.crt"].map(|name| Enclosed {
        name: name.to_owned(),
        content: name.as_bytes().to_vec().into(),
    });
    let sink = Sink::default();
    let copied = backup_to(&place.location(), Destination::Stream(Box::new(sink.clone())), &files)
        .await
        .unwrap();
    store.close().await;
    let whole = sink.0.lock().unwrap().clone();
    fs::write(file(&place), &whole).unwrap();
    assert_eq!(verify(&file(&place)).unwrap(), copied);
    assert_eq!(enclosed(&file(&place)).unwrap(), files);
    assert!(!format!("{files:?}").contains("107, 101"), "its content is not printed");
    let target = place.clone_empty().await;
    let restored = restore(&file(&place), &target.location(), &KEY, Allow::default())
        .await
        .unwrap();
    assert_eq!(restored.copied.counter, copied.counter);

    fs::write(file(&place), &whole[..whole.len() - 1]).unwrap();
    let cut = verify(&file(&place));
    assert!(
        matches!(cut, Err(ArchiveError::File(FileError::Damaged { .. }))),
        "{cut:?}"
    );
}

async fn a_backup_of_a_busy_store_is_of_one_moment(place: Place) {
    let store = place.open().await;
    fill(&store).await;
    let writing = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0.. {
                // Two writes in one transaction.
                let write = store.transact(move |tx| {
                    Box::pin(async move {
                        for name in ["first", "second"] {
                            let object = object(&key(name), json!({"n": n}));
                            match tx.get(&key(name)).await? {
                                Some(current) => tx.write(replace(&current, object)).await?,
                                None => tx.write(create(&key(name), object)).await?,
                            };
                        }
                        Ok(())
                    })
                });
                if write.await.is_err() {
                    return;
                }
            }
        })
    };
    let target = place.clone_empty().await;
    for _ in 0..3 {
        backup(&place.location(), &file(&place), true).await.unwrap();
        restore(&file(&place), &target.location(), &KEY, REPLACE).await.unwrap();
        assert_eq!(fsck(&target.location(), &KEY).await.unwrap().findings, []);
        let restored = target.open().await;
        let n = async |name: &str| {
            restored
                .get(&key(name))
                .await
                .unwrap()
                .map(|found| found.object["data"]["n"].clone())
        };
        assert_eq!(n("first").await, n("second").await);
        restored.close().await;
    }
    store.close().await;
    writing.await.unwrap();
}

async fn fsck_finds_what_was_never_written(place: Place) {
    let store = place.open().await;
    fill(&store).await;
    assert_eq!(
        fsck(&place.location(), &KEY).await.unwrap().findings,
        [],
        "while it runs"
    );
    let wrong = fsck(&place.location(), &[8; 32]).await;
    assert!(matches!(wrong, Err(OpenError::WrongKey { .. })), "{wrong:?}");
    let check = async |sql: &'static str, table: &str, row: &str, problem: &str, severity: Severity| {
        let undo = store.position();
        store
            .transact(move |tx| {
                Box::pin(async move { Ok(sqlx::raw_sql(sql).execute(&mut **tx).await?.rows_affected()) })
            })
            .await
            .unwrap();
        let report = fsck(&place.location(), &KEY).await.unwrap();
        let found = report
            .findings
            .iter()
            .find(|finding| finding.table == table && finding.row.contains(row));
        let found = found.unwrap_or_else(|| panic!("{sql}: {:?}", report.findings));
        assert!(found.problem.contains(problem), "{found}");
        assert_eq!(found.severity, severity);
        assert_eq!(store.position(), undo);
    };
    use Severity::{Damage, Leftover};
    check(
        "UPDATE resources SET labels = '{}' WHERE name = 'all'",
        "resources",
        "all",
        "labels",
        Damage,
    )
    .await;
    check(
        "UPDATE resources SET version = 999999 WHERE name = 'n001'",
        "resources",
        "n001",
        "above",
        Damage,
    )
    .await;
    check(
        "UPDATE resources SET uid = 'other' WHERE name = 'n002'",
        "resources",
        "n002",
        "another name",
        Damage,
    )
    .await;
    check(
        "DELETE FROM resources WHERE name = 'n003'",
        "resources",
        "n003",
        "the log's last version",
        Damage,
    )
    .await;
    check(
        "UPDATE resources SET name = 'moved' WHERE name = 'secret'",
        "resources",
        "moved",
        "sealed with",
        Damage,
    )
    .await;
    check(
        "UPDATE changes SET operation = 9 WHERE version = 5",
        "changes",
        "5",
        "operation",
        Damage,
    )
    .await;
    check(
        "DELETE FROM resources WHERE name = 'east'",
        "agents",
        "uid-east",
        "no cluster",
        Leftover,
    )
    .await;
    check(
        "DELETE FROM resources WHERE name = 'web'",
        "assignments",
        "uid-web",
        "no service",
        Leftover,
    )
    .await;
    check(
        "UPDATE meta SET value = '99999' WHERE name = 'compacted'",
        "resources",
        "all",
        "labels",
        Damage,
    )
    .await;
}
