//! A store at a place of its own, and short functions for writes.

use std::{path::PathBuf, time::Duration};

use farwater_store::{
    Change, Key, Kind, ListQuery, Location, OpenOptions, PostgresUrl, Resource, Store, Watch, WatchError, WatchEvent,
    Write, WriteError,
};
use farwater_testkit::postgres;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Makes two tests of each function: one with a file, and one with a PostgreSQL database.
macro_rules! on_both_engines {
    ($($test:ident),* $(,)?) => {
        $(mod $test {
            use crate::setup::Place;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$test(Place::file()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                super::$test(Place::database().await).await;
            }
        })*
    };
}

/// The place of one test's store.
pub struct Place {
    folder: TempDir,
    database: Option<String>,
}

impl Place {
    pub fn file() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            database: None,
        }
    }

    /// An empty database on the shared server.
    pub async fn database() -> Self {
        Self::of(postgres::shared().await.unwrap().create_database().await.unwrap())
    }

    pub fn of(database: String) -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            database: Some(database),
        }
    }

    /// Another, empty place of the same engine.
    pub async fn clone_empty(&self) -> Self {
        if self.database.is_some() {
            Self::database().await
        } else {
            Self::file()
        }
    }

    /// The path of the file, even if it doesn't exist.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("hub.db")
    }

    pub fn url(&self) -> Option<&str> {
        self.database.as_deref()
    }

    pub fn database_name(&self) -> String {
        let (_, name) = self.database.as_deref().and_then(|url| url.rsplit_once('/')).unwrap();
        name.to_owned()
    }

    pub fn location(&self) -> Location {
        match &self.database {
            None => self.path().into(),
            Some(url) => PostgresUrl::parse(url).unwrap().into(),
        }
    }

    pub fn options(&self) -> OpenOptions {
        OpenOptions::new(self.location(), [7; 32])
    }

    pub async fn open(&self) -> Store {
        Store::open(self.options()).await.unwrap()
    }

    /// The files or tables that contain `text` unsealed.
    pub async fn parts_with(&self, text: &str) -> Vec<String> {
        if self.database.is_none() {
            return self.files_with(text);
        }
        let server = postgres::shared().await.unwrap();
        let mut parts = Vec::new();
        for table in ["resources", "changes", "meta", "api_tokens", "data_keys", "kept_values"] {
            // Bytes are dumped as hexadecimal digits, so the digits of the text are searched too.
            let dump = server
                .execute(&self.database_name(), &format!("SELECT t.* FROM {table} t"))
                .await
                .unwrap();
            let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
            if dump.contains(text) || dump.contains(&digits) {
                parts.push(table.to_owned());
            }
        }
        parts
    }

    fn files_with(&self, text: &str) -> Vec<String> {
        let has = |path: &std::path::Path| {
            let bytes = std::fs::read(path).unwrap();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        };
        let files = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|file| file.unwrap().path());
        files
            .filter(|path| has(path))
            .map(|path| path.display().to_string())
            .collect()
    }
}

pub fn config_maps() -> Kind {
    Kind::new("configmaps", "")
}

pub fn all() -> ListQuery {
    ListQuery::all(config_maps())
}

pub fn key(name: &str) -> Key {
    Key {
        kind: config_maps(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
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
    Write {
        key: key.clone(),
        change: Change::Create(object),
    }
}

pub fn replace(current: &Resource, object: Value) -> Write {
    let (uid, version) = (current.uid.clone(), current.version);
    Write {
        key: current.key.clone(),
        change: Change::Replace { uid, version, object },
    }
}

pub fn delete(current: &Resource) -> Write {
    let (uid, version) = (current.uid.clone(), current.version);
    Write {
        key: current.key.clone(),
        change: Change::Delete { uid, version },
    }
}

pub async fn put(store: &Store, name: &str, data: Value) -> Result<Resource, WriteError> {
    let key = key(name);
    match store.get(&key).await? {
        Some(current) => store.write(replace(&current, object(&key, data))).await,
        None => store.write(create(&key, object(&key, data))).await,
    }
}

/// Checks that a list as JSON equals the parsed list.
pub async fn assert_same_as_json(store: &Store, query: &ListQuery) {
    let (parsed, json) = (store.list(query).await.unwrap(), store.list_json(query).await.unwrap());
    assert_eq!(
        (parsed.version, &parsed.next, parsed.items.len()),
        (json.version, &json.next, json.items.len())
    );
    for (parsed, json) in parsed.items.iter().zip(&json.items) {
        assert_eq!((&parsed.key, parsed.version), (&json.key, json.version));
        assert_eq!(*parsed.object, serde_json::from_slice::<Value>(&json.json).unwrap());
    }
}

/// The next event, which must arrive soon.
pub async fn next(watch: &mut Watch) -> WatchEvent {
    next_result(watch).await.unwrap()
}

pub async fn next_result(watch: &mut Watch) -> Result<WatchEvent, WatchError> {
    tokio::time::timeout(Duration::from_secs(20), watch.next())
        .await
        .expect("no event came")
        .expect("the watch ended")
}
