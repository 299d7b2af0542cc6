//! Sealed kinds: nothing plain in the file, and nothing that opens in another place.

use farwater_store::{Key, Kind, LabelRequirement, ListQuery, OpenError, OpenOptions, Selector, Store, StoreError};
use serde_json::{Value, json};

use crate::setup::{Folder, create, delete, next, put, replace};

const CANARY: &str = "canary-3f9a1c";

fn secret_key(name: &str) -> Key {
    Key { kind: Kind::new("secrets", ""), namespace: "default".to_owned(), name: name.to_owned() }
}

/// As `kubectl apply` sends it: the data once more in an annotation.
fn secret(name: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "labels": {"tier": text},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": format!("{{\"stringData\":\"{text}\"}}")},
        },
        "data": {"password": text},
        "status": {"note": text},
    })
}

/// Which files of the store have `text` in them.
fn files_with(folder: &Folder, text: &str) -> Vec<String> {
    let files = std::fs::read_dir(folder.file().parent().unwrap()).unwrap();
    let has = |path: &std::path::Path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    files.map(|file| file.unwrap().path()).filter(|path| has(path)).map(|path| path.display().to_string()).collect()
}

#[tokio::test]
async fn a_secret_is_plain_nowhere_in_the_file() {
    let folder = Folder::new();
    let store = folder.open().await;
    let first = store.write(create(&secret_key("a"), secret("a", CANARY))).await.unwrap();
    let second = format!("{CANARY}-2");
    let updated = store.write(replace(&first, secret("a", &second))).await.unwrap();
    store.write(create(&secret_key("gone"), secret("gone", CANARY))).await.unwrap();
    let gone = store.get(&secret_key("gone")).await.unwrap().unwrap();
    store.write(delete(&gone)).await.unwrap();
    put(&store, "plain", json!({"text": "visible-text"})).await.unwrap();

    assert!(!files_with(&folder, "visible-text").is_empty(), "the search finds what is plain");
    assert_eq!(files_with(&folder, CANARY), Vec::<String>::new());
    assert_eq!(updated.object["data"]["password"], second);
    store.close().await;
    assert_eq!(files_with(&folder, CANARY), Vec::<String>::new());

    let store = folder.open().await;
    assert_eq!(store.get(&secret_key("a")).await.unwrap().unwrap().object, updated.object);
    let mut watch = store.watch(Some(Kind::new("secrets", "")), 0).unwrap();
    assert_eq!(next(&mut watch).await.object["data"]["password"], CANARY);
    assert_eq!(next(&mut watch).await.old_labels["tier"], CANARY);
    let labels = Selector(vec![LabelRequirement::In("tier".to_owned(), vec![second])]);
    let (kind, namespace, name, limit, after) = (Kind::new("secrets", ""), None, None, 0, None);
    let page = store.list(&ListQuery { kind, namespace, name, labels, limit, after }).await.unwrap();
    assert_eq!(page.items.len(), 1, "selectors read sealed labels");
}

#[tokio::test]
async fn an_equal_secret_is_not_written() {
    let folder = Folder::new();
    let store = folder.open().await;
    let first = store.write(create(&secret_key("a"), secret("a", CANARY))).await.unwrap();
    assert_eq!(store.write(replace(&first, secret("a", CANARY))).await.unwrap().version, first.version);
}

#[tokio::test]
async fn another_seal_key_is_refused_at_the_start() {
    let folder = Folder::new();
    folder.open().await.close().await;
    let other = Store::open(OpenOptions::new(folder.file(), [8; 32])).await;
    assert!(matches!(other, Err(OpenError::WrongKey { path }) if path == folder.file()));
    assert!(Store::open(folder.options()).await.is_ok());
}

#[tokio::test]
async fn a_sealed_row_opens_only_in_its_own_place() {
    let folder = Folder::new();
    let store = folder.open().await;
    store.write(create(&secret_key("a"), secret("a", "one"))).await.unwrap();
    store.write(create(&secret_key("b"), secret("b", "two"))).await.unwrap();
    store
        .transact(|tx| {
            Box::pin(async move {
                let swap = "UPDATE resources SET body = (SELECT body FROM resources WHERE name = 'a') WHERE name = 'b'";
                sqlx::query(swap).execute(&mut **tx).await?;
                Ok(())
            })
        })
        .await
        .unwrap();
    assert!(matches!(store.get(&secret_key("b")).await, Err(StoreError::Row { .. })));
    assert_eq!(store.get(&secret_key("a")).await.unwrap().unwrap().object["data"]["password"], "one");
}

#[tokio::test]
async fn a_kind_that_becomes_sealed_is_sealed_by_its_next_write() {
    let folder = Folder::new();
    let mut options = folder.options();
    options.sealed_kinds = vec![];
    let store = Store::open(options).await.unwrap();
    let first = store.write(create(&secret_key("a"), secret("a", CANARY))).await.unwrap();
    store.close().await;
    let store = folder.open().await;
    assert_eq!(store.get(&secret_key("a")).await.unwrap().unwrap().object, first.object);
    let again = store.write(replace(&first, secret("a", CANARY))).await.unwrap();
    assert_eq!(again.version, 2);
    let sealed: bool = sqlx::query_scalar("SELECT sealed FROM resources").fetch_one(store.reader()).await.unwrap();
    assert!(sealed);
}
