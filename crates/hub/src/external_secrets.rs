//! Secrets of other places than the hub's own database, as its configuration names them: files, variables, Vault, programs.
//!
//! What was read last lies in the database, sealed, and stays in use while its place is away.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use farwater_secrets::{
    Backends, Changed, Condition, Config, ConfigError, Keeper, Kept, Known, ReadError, Reference, Shelf, ShelfError,
};
use farwater_store::Store;
use tokio::sync::watch;

/// Longest configuration that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    #[error("read the configuration of backends {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("read the configuration of backends {}: it is longer than {MAX_FILE_BYTES} bytes", .path.display())]
    TooLong { path: PathBuf },
    #[error("parse the configuration of backends {}: {message}", .path.display())]
    Parse { path: PathBuf, message: String },
    #[error("use the configuration of backends {}", .path.display())]
    Config { path: PathBuf, source: ConfigError },
}

/// None of them where the hub's configuration names no file.
#[derive(Default)]
pub struct ExternalSecrets(Option<Keeper<Database>>);

impl ExternalSecrets {
    /// Nothing is asked yet.
    pub fn open(path: Option<&Path>, store: &Store) -> Result<Self, ExternalError> {
        let Some(path) = path else { return Ok(Self(None)) };
        let config = read(path)?;
        let backends = Backends::new(&config);
        let backends = backends.map_err(|source| ExternalError::Config { path: path.to_owned(), source })?;
        let names: Vec<&str> = backends.names().collect();
        tracing::info!(backends = names.join(", "), "secrets of other places can be referred to");
        Ok(Self(Some(Keeper::new(backends, config.refresh(), Database(store.clone())))))
    }

    /// The values of one place, for objects of a namespace.
    pub async fn get(&self, namespace: &str, backend: &str, path: &str) -> Result<Known, ReadError> {
        let keeper = self.0.as_ref().ok_or_else(|| ReadError::Unknown(backend.to_owned()))?;
        let reference = Reference { namespace: namespace.to_owned(), path: path.to_owned(), ..Reference::default() };
        keeper.get(backend, &reference).await
    }

    /// What is in use is read again, for ever.
    pub async fn run(&self) {
        match &self.0 {
            Some(keeper) => keeper.run().await,
            None => std::future::pending().await,
        }
    }

    /// Wakes whoever asks [`Self::take_changed`]; none where nothing can change.
    pub fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.0.as_ref().map(Keeper::changes)
    }

    pub fn take_changed(&self) -> Vec<Changed> {
        self.0.as_ref().map(Keeper::take_changed).unwrap_or_default()
    }

    pub fn conditions(&self) -> Vec<Condition> {
        self.0.as_ref().map(Keeper::conditions).unwrap_or_default()
    }
}

fn read(path: &Path) -> Result<Config, ExternalError> {
    let failed = |source| ExternalError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_FILE_BYTES {
        return Err(ExternalError::TooLong { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let parsed = serde_saphyr::from_str(&text);
    parsed.map_err(|error| ExternalError::Parse { path: path.to_owned(), message: error.to_string() })
}

/// What was read last, in the hub's database.
struct Database(Store);

fn failed(error: farwater_store::StoreError) -> ShelfError {
    ShelfError(Box::new(error))
}

#[async_trait]
impl Shelf for Database {
    async fn load(&self, id: &str) -> Result<Option<Kept>, ShelfError> {
        let kept = self.0.load_kept(id).await.map_err(failed)?;
        Ok(kept.map(|(read, values)| Kept { read, values }))
    }

    async fn save(&self, id: &str, kept: Kept) -> Result<(), ShelfError> {
        self.0.save_kept(id, kept.read, kept.values).await.map_err(failed)
    }

    async fn remove(&self, id: &str) -> Result<(), ShelfError> {
        self.0.remove_kept(id).await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use farwater_store::OpenOptions;

    use super::*;

    const CANARY: &str = "canary-8d21f0";

    #[tokio::test]
    async fn what_was_read_outlives_its_place_and_the_hub_and_is_plain_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (data, files) = (folder.path().join("data"), folder.path().join("files"));
        std::fs::create_dir_all(files.join("team-a/web")).unwrap();
        std::fs::create_dir(&data).unwrap();
        std::fs::write(files.join("team-a/web/password"), CANARY).unwrap();
        let config = folder.path().join("backends.yaml");
        let text = format!(
            "backends:\n- name: mounted\n  files: {{folder: {}}}\n  \
             allow: [{{namespaces: ['team-*'], paths: ['{{namespace}}']}}]\n",
            files.display()
        );
        std::fs::write(&config, text).unwrap();
        let open = async || Store::open(OpenOptions::new(data.join("hub.db"), [7; 32])).await.unwrap();
        let store = open().await;
        let secrets = ExternalSecrets::open(Some(&config), &store).unwrap();
        let known = secrets.get("team-a", "mounted", "team-a/web").await.unwrap();
        assert_eq!((known.values[0].0.as_str(), known.values[0].1.expose()), ("password", CANARY.as_bytes()));
        let refused = secrets.get("team-b", "mounted", "team-a/web").await.unwrap_err().to_string();
        assert!(refused.contains("namespace team-b may not read team-a/web"), "{refused}");
        store.close().await;
        drop((secrets, store));

        std::fs::remove_dir_all(&files).unwrap();
        let store = open().await;
        let secrets = ExternalSecrets::open(Some(&config), &store).unwrap();
        let known = secrets.get("team-a", "mounted", "team-a/web").await.unwrap();
        assert_eq!(known.values[0].1.expose(), CANARY.as_bytes());
        assert!(!format!("{known:?}").contains(CANARY));
        store.close().await;
        for file in std::fs::read_dir(&data).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            assert!(!bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()));
        }
    }

    #[tokio::test]
    async fn a_configuration_that_is_wrong_is_told_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(OpenOptions::new(folder.path().join("hub.db"), [7; 32])).await.unwrap();
        let check = |text: &str, expected: &str| {
            let path = folder.path().join("backends.yaml");
            std::fs::write(&path, text).unwrap();
            let error = ExternalSecrets::open(Some(&path), &store).err().unwrap();
            let error = crate::controllers::chain(&error);
            assert!(error.contains(expected), "{error}");
        };
        check("backends: [", "parse the configuration");
        check("backends: [{name: a}]", "it is of 0 kinds");
        check("backends: [{name: a, files: {folder: relative}}]", "backend a: folder relative is not absolute");
        check(
            "backends: [{name: a, vault: {address: 'http://vault.example.com', mounts: {kv: 2}, auth: {token: {file: /t}}}}]",
            "has no TLS",
        );
    }
}
