//! The collector on a real store, without a hub around it.

use farwater_store::{Kind, ListQuery, OpenOptions};
use rand::RngExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::kinds::removal;

const DEPENDENTS: usize = 120;

fn key(name: &str) -> Key {
    Key {
        kind: Kind::new("configmaps", ""),
        namespace: "ns".into(),
        name: name.into(),
    }
}

async fn open(folder: &TempDir) -> Store {
    Store::open(OpenOptions::new(folder.path().join("hub.db"), [7; 32]))
        .await
        .unwrap()
}

fn collector(store: &Store) -> Collector {
    Collector {
        store: store.clone(),
        waiting: HashMap::new(),
    }
}

/// A ConfigMap whose uid is its name.
async fn make(store: &Store, name: &str, owners: &[&str]) -> Resource {
    let owners: Vec<Value> = owners
        .iter()
        .map(
            |uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid, "blockOwnerDeletion": true}),
        )
        .collect();
    let metadata = json!({"name": name, "namespace": "ns", "uid": name, "ownerReferences": owners});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    store
        .write(Write {
            key: key(name),
            change: Change::Create(object),
        })
        .await
        .unwrap()
}

async fn delete(store: &Store, resource: &Resource, policy: removal::Propagation) {
    let kind = kind_of(&resource.key).unwrap();
    let removal = removal::plan_removal(&resource.object, kind, policy.into(), Timestamp::now());
    let change = removal::change_of(removal, resource).unwrap();
    store
        .write(Write {
            key: resource.key.clone(),
            change,
        })
        .await
        .unwrap();
}

async fn names(store: &Store) -> Vec<String> {
    let query = ListQuery::all(Kind::new("configmaps", ""));
    store
        .list(&query)
        .await
        .unwrap()
        .items
        .into_iter()
        .map(|resource| resource.key.name)
        .collect()
}

async fn marks(store: &Store) -> usize {
    load_garbage(&mut store.tables().await.unwrap(), "", 1000)
        .await
        .unwrap()
        .len()
}

/// Runs passes until no mark is left.
async fn settle(store: &Store) {
    let mut collector = collector(store);
    for _ in 0..20 {
        collector.pass().await.unwrap();
        if marks(store).await == 0 {
            return;
        }
    }
    panic!("{} marks are left", marks(store).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_stopped_anywhere_is_taken_up_by_the_next() {
    for policy in [
        removal::Propagation::Background,
        removal::Propagation::Foreground,
        removal::Propagation::Orphan,
    ] {
        let folder = TempDir::new().unwrap();
        let mut store = open(&folder).await;
        let owner = make(&store, "owner", &[]).await;
        make(&store, "kept", &[]).await;
        for n in 0..DEPENDENTS {
            let owners: &[&str] = if n % 10 == 0 { &["owner", "kept"] } else { &["owner"] };
            make(&store, &format!("d{n:03}"), owners).await;
        }
        delete(&store, &owner, policy).await;
        for _ in 0..10 {
            // Dropped at any point, like by a kill.
            let limit = Duration::from_millis(rand::rng().random_range(1..20));
            let _ = tokio::time::timeout(limit, collector(&store).pass()).await;
            store.close().await;
            store = open(&folder).await;
        }
        settle(&store).await;
        let left = names(&store).await;
        let expected = if policy == removal::Propagation::Orphan {
            DEPENDENTS
        } else {
            DEPENDENTS / 10
        };
        assert_eq!(left.len(), expected + 1, "{policy:?}: {left:?}");
        assert!(left.contains(&"kept".to_owned()) && !left.contains(&"owner".to_owned()));
        let shared = store.get(&key("d000")).await.unwrap().unwrap();
        assert_eq!(references(&shared.object).len(), 1, "{policy:?}");
        store.close().await;
    }
}

/// Overwrites the owner's row without the store's knowledge.
async fn damage(store: &Store, bytes: &'static [u8]) {
    let damaged = store.transact(move |tx| {
        Box::pin(async move {
            let update = sqlx::query("UPDATE resources SET body = $1 WHERE name = 'owner'").bind(bytes);
            update.execute(&mut **tx).await?;
            Ok(())
        })
    });
    damaged.await.unwrap();
}

#[tokio::test]
async fn an_owner_that_can_not_be_read_is_not_absent() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    make(&store, "owner", &[]).await;
    make(&store, "dependent", &["owner"]).await;
    damage(&store, b"not JSON").await;
    // Until it is closed, the store has the object in its cache.
    store.close().await;
    let store = open(&folder).await;
    let mut collector = collector(&store);
    for _ in 0..3 {
        assert!(matches!(collector.pass().await, Err(StoreError::Row { .. })));
        assert!(store.get(&key("dependent")).await.unwrap().is_some());
        assert_eq!(marks(&store).await, 1);
    }
    let whole = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"owner","namespace":"ns","uid":"owner"}}"#;
    damage(&store, whole).await;
    settle(&store).await;
    assert!(store.get(&key("dependent")).await.unwrap().is_some());
}

#[tokio::test]
async fn an_owner_that_appears_between_two_looks_saves_its_dependent() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    make(&store, "dependent", &["owner"]).await;
    // As after a first decision that found no owner.
    make(&store, "owner", &[]).await;
    let dependents = Dependents::default();
    store
        .transact(move |tx| Box::pin(judge_again(tx, key("dependent"), dependents)))
        .await
        .unwrap();
    assert_eq!(names(&store).await, ["dependent", "owner"]);
}

#[tokio::test]
async fn an_owner_waits_without_being_looked_at_again() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let owner = make(&store, "owner", &[]).await;
    let dependent = make(&store, "dependent", &["owner"]).await;
    let mut held = (*dependent.object).clone();
    held["metadata"]["finalizers"] = json!(["example.com/x"]);
    let change = Change::Replace {
        uid: dependent.uid.clone(),
        version: dependent.version,
        object: held,
    };
    store
        .write(Write {
            key: dependent.key,
            change,
        })
        .await
        .unwrap();
    delete(&store, &owner, removal::Propagation::Foreground).await;
    let mut collector = collector(&store);
    collector.pass().await.unwrap();
    collector.pass().await.unwrap();
    let before = store.position();
    collector.pass().await.unwrap();
    assert_eq!((store.position(), marks(&store).await), (before, 1));
    let dependent = store.get(&key("dependent")).await.unwrap().unwrap();
    let change = Change::Delete {
        uid: dependent.uid,
        version: dependent.version,
    };
    store
        .write(Write {
            key: dependent.key,
            change,
        })
        .await
        .unwrap();
    settle(&store).await;
    assert_eq!(names(&store).await, [""; 0]);
}
