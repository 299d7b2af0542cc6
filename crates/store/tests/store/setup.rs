//! A store in a folder of its own, and short words for writes.

use std::{path::PathBuf, time::Duration};

use farwater_store::{
    Change, Key, Kind, OpenOptions, Resource, Store, Watch, WatchError, WatchEvent, Write, WriteError,
};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;

pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub fn file(&self) -> PathBuf {
        self.0.path().join("hub.db")
    }

    pub fn options(&self) -> OpenOptions {
        OpenOptions::new(self.file(), [7; 32])
    }

    pub async fn open(&self) -> Store {
        Store::open(self.options()).await.unwrap()
    }
}

pub fn config_maps() -> Kind {
    Kind::new("configmaps", "")
}

pub fn key(name: &str) -> Key {
    Key { kind: config_maps(), namespace: "default".to_owned(), name: name.to_owned() }
}

/// An object for `key` with `data` as its content.
pub fn object(key: &Key, data: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": format!("uid-{}", key.name)},
        "data": data,
    })
}

pub fn labelled(key: &Key, labels: Value) -> Value {
    let mut object = object(key, json!({}));
    object["metadata"]["labels"] = labels;
    object
}

pub fn create(key: &Key, object: Value) -> Write {
    Write { key: key.clone(), change: Change::Create(object) }
}

pub fn replace(current: &Resource, object: Value) -> Write {
    let (uid, version) = (current.uid.clone(), current.version);
    Write { key: current.key.clone(), change: Change::Replace { uid, version, object } }
}

pub fn delete(current: &Resource) -> Write {
    let (uid, version) = (current.uid.clone(), current.version);
    Write { key: current.key.clone(), change: Change::Delete { uid, version } }
}

pub async fn put(store: &Store, name: &str, data: Value) -> Result<Resource, WriteError> {
    let key = key(name);
    match store.get(&key).await? {
        Some(current) => store.write(replace(&current, object(&key, data))).await,
        None => store.write(create(&key, object(&key, data))).await,
    }
}

/// The next event, which must come soon.
pub async fn next(watch: &mut Watch) -> WatchEvent {
    next_result(watch).await.unwrap()
}

pub async fn next_result(watch: &mut Watch) -> Result<WatchEvent, WatchError> {
    tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("no event came").expect("the watch ended")
}
