//! Secrets from other places than the hub's own database, as its configuration names them: files, variables, Vault,
//! programs.
//!
//! The values that were read last are in the database, sealed, and stay in use while their place is unreachable.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use farwater_secrets::{Backends, Config, ConfigError, Keeper, Kept, Shelf, ShelfError};
use farwater_store::Store;

/// Maximum bytes of the configuration.
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

/// Opens the backends of a configuration file. No backend is contacted yet.
pub fn open(path: &Path, store: &Store) -> Result<ExternalSecrets, ExternalError> {
    let config = read(path)?;
    let backends = Backends::new(&config);
    let backends = backends.map_err(|source| ExternalError::Config {
        path: path.to_owned(),
        source,
    })?;
    let names: Vec<&str> = backends.names().collect();
    tracing::info!(
        backends = names.join(", "),
        "secrets of other places can be referred to"
    );
    Ok(Keeper::new(backends, config.refresh(), Database(store.clone())))
}

pub type ExternalSecrets = Keeper<Database>;

fn read(path: &Path) -> Result<Config, ExternalError> {
    let failed = |source| ExternalError::Read {
        path: path.to_owned(),
        source,
    };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_FILE_BYTES {
        return Err(ExternalError::TooLong { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let parsed = serde_saphyr::from_str(&text);
    parsed.map_err(|error| ExternalError::Parse {
        path: path.to_owned(),
        message: error.to_string(),
    })
}

/// The values that were read last, in the hub's database.
pub struct Database(Store);

#[async_trait]
impl Shelf for Database {
    async fn load(&self, id: &str) -> Result<Option<Kept>, ShelfError> {
        let kept = self
            .0
            .load_kept(id)
            .await
            .map_err(|error| ShelfError(Box::new(error)))?;
        Ok(kept.map(|(read, values)| Kept { read, values }))
    }
}

#[cfg(test)]
mod tests {
    use farwater_store::OpenOptions;

    use super::*;

    #[tokio::test]
    async fn a_configuration_that_is_wrong_is_told_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(OpenOptions::new(folder.path().join("hub.db"), [7; 32]))
            .await
            .unwrap();
        let check = |text: &str, expected: &str| {
            let path = folder.path().join("backends.yaml");
            std::fs::write(&path, text).unwrap();
            let error = open(&path, &store).err().unwrap();
            let error = crate::errors::chain(&error);
            assert!(error.contains(expected), "{error}");
        };
        check("backends: [", "parse the configuration");
        check("backends: [{name: a}]", "it has 0 kinds");
        check(
            "backends: [{name: a, files: {folder: relative}}]",
            "backend a: folder relative is not absolute",
        );
        check(
            "backends: [{name: a, vault: {address: 'http://vault.example.com', mounts: {kv: 2}, auth: {token: {file: /t}}}}]",
            "has no TLS",
        );
    }
}
