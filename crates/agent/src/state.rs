//! The last accepted desired state, stored for a restart in the state directory and in the cluster.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use farwater_api::{
    IDENTITY_SECRET,
    protocol::{DesiredState, MAX_DESIRED_BYTES},
};

use crate::{
    identity::{Identity, write_private},
    kubernetes::{ApiError, Kubernetes},
    secrets::{self, Held},
};

const IDENTITY_FILE: &str = "identity.json";
const STATE_FILE: &str = "state.json";
const LOCK_FILE: &str = "lock";
const STATE_SECRET: &str = "farwater-agent-state";

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{what} Secret {name}")]
    Cluster {
        what: &'static str,
        name: &'static str,
        source: Box<ApiError>,
    },
    #[error("read {place}: its content is damaged")]
    Damaged { place: String, source: serde_json::Error },
    #[error("start: another agent uses the state directory {}", dir.display())]
    InUse { dir: PathBuf },
    #[error("compress the desired state")]
    Compress(#[source] io::Error),
    #[error("write Secret {name}: {bytes} bytes are too many for a Secret; give the agent a volume")]
    TooLarge { name: &'static str, bytes: usize },
}

/// Both places.
pub struct StateStore<'a> {
    pub dir: &'a Path,
    pub kubernetes: &'a Kubernetes,
}

impl StateStore<'_> {
    /// Creates what is missing. Only the owner may read the folders, because bundles may contain Secrets. No other
    /// agent may write there as long as the returned file is open.
    pub fn prepare(&self) -> Result<File, StateError> {
        make_private_folder(self.dir)?;
        make_private_folder(&self.dir.join("bundles"))?;
        make_private_folder(&self.dir.join("sealed"))?;
        let path = self.dir.join(LOCK_FILE);
        let error = |source| StateError::File {
            what: "open",
            path: path.clone(),
            source,
        };
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .map_err(error)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(StateError::InUse {
                dir: self.dir.to_owned(),
            }),
            Err(TryLockError::Error(source)) => Err(StateError::File {
                what: "lock",
                path,
                source,
            }),
        }
    }

    /// Loads the identity from the state directory, otherwise from the cluster.
    pub async fn load_identity(&self) -> Result<Option<Identity>, StateError> {
        let path = self.dir.join(IDENTITY_FILE);
        let bytes = match read_file(&path)? {
            Some(bytes) => Some((path.display().to_string(), bytes)),
            None => self
                .load_secret(IDENTITY_SECRET)
                .await?
                .map(|bytes| (format!("Secret {IDENTITY_SECRET}"), bytes)),
        };
        let Some((place, bytes)) = bytes else { return Ok(None) };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| StateError::Damaged { place, source })
    }

    /// The identity of the agent that last joined in this cluster, whatever the state directory says.
    pub async fn load_cluster_identity(&self) -> Result<Option<Identity>, StateError> {
        let Some(bytes) = self.load_secret(IDENTITY_SECRET).await? else {
            return Ok(None);
        };
        let place = format!("Secret {IDENTITY_SECRET}");
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| StateError::Damaged { place, source })
    }

    /// Writes the identity to both places. One of them is enough to continue after a restart, so a full disk or a
    /// refused Secret is a warning; an error means that neither has it.
    pub async fn save_identity(&self, identity: &Identity) -> Result<(), StateError> {
        let bytes = serde_json::to_vec_pretty(identity).expect("an identity is plain JSON");
        let folder = self.save_identity_file(&bytes);
        let cluster = self.save_identity_secret(&bytes).await;
        one_of("identity", folder, cluster)
    }

    /// Writes it to both places, or fails: keys that the hub will ask for must not be lost with one of them.
    pub async fn save_identity_twice(&self, identity: &Identity) -> Result<(), StateError> {
        let bytes = serde_json::to_vec_pretty(identity).expect("an identity is plain JSON");
        // The file is written last: if that fails the file is removed, so the Secret must be written by then.
        self.save_identity_secret(&bytes).await?;
        self.save_identity_file(&bytes)
    }

    fn save_identity_file(&self, bytes: &[u8]) -> Result<(), StateError> {
        let path = self.dir.join(IDENTITY_FILE);
        if read_file(&path)?.as_deref() == Some(bytes) {
            return Ok(());
        }
        // A stale file would be used as the right one; without a file the Secret is read.
        write_file(&path, bytes).inspect_err(|_| drop(fs::remove_file(&path)))
    }

    async fn save_identity_secret(&self, bytes: &[u8]) -> Result<(), StateError> {
        if self.load_secret(IDENTITY_SECRET).await?.as_deref() == Some(bytes) {
            return Ok(());
        }
        self.save_secret("identity", IDENTITY_SECRET, bytes).await
    }

    /// The newest desired state in both places that is signed for this agent. A damaged copy is ignored, because the
    /// other place or the hub has one.
    pub async fn load_desired(&self, identity: &Identity) -> Result<Option<DesiredState>, StateError> {
        let mut copies = Vec::new();
        if let Some(bytes) = read_file(&self.dir.join(STATE_FILE))? {
            copies.push(("state directory", bytes));
        }
        if let Some(compressed) = self.load_secret(STATE_SECRET).await?
            && let Ok(bytes) = zstd::bulk::decompress(&compressed, MAX_DESIRED_BYTES)
        {
            copies.push(("cluster", bytes));
        }

        let mut newest: Option<DesiredState> = None;
        for (place, bytes) in copies {
            let state = match serde_json::from_slice::<DesiredState>(&bytes) {
                Ok(state) => state,
                Err(error) => {
                    tracing::warn!(place, %error, "stored desired state is damaged");
                    continue;
                }
            };
            match identity.verify_stored(&state) {
                Ok(()) => {
                    let version = |s: &DesiredState| (s.statement.epoch, s.statement.generation);
                    if newest.as_ref().is_none_or(|n| version(n) < version(&state)) {
                        newest = Some(state);
                    }
                }
                Err(error) => tracing::warn!(place, %error, "stored desired state is not for this agent"),
            }
        }
        Ok(newest)
    }

    /// Stores an accepted state, as received, in both places. One of them is enough to recognize an older state after a
    /// restart, so a full disk or a refused Secret is a warning; an error means that neither has it.
    pub async fn save_desired(&self, bytes: &[u8]) -> Result<(), StateError> {
        let folder = write_file(&self.dir.join(STATE_FILE), bytes);
        let cluster = self.save_desired_secret(bytes).await;
        one_of("accepted state", folder, cluster)
    }

    async fn save_desired_secret(&self, bytes: &[u8]) -> Result<(), StateError> {
        let compressed = secrets::compress(bytes).map_err(StateError::Compress)?;
        if compressed.len() > secrets::MAX_BYTES {
            return Err(StateError::TooLarge {
                name: STATE_SECRET,
                bytes: compressed.len(),
            });
        }
        self.save_secret("state", STATE_SECRET, &compressed).await
    }

    async fn load_secret(&self, name: &'static str) -> Result<Option<Vec<u8>>, StateError> {
        let error = |source| StateError::Cluster {
            what: "read",
            name,
            source: Box::new(source),
        };
        secrets::load(self.kubernetes, name).await.map_err(error)
    }

    async fn save_secret(&self, purpose: &str, name: &'static str, bytes: &[u8]) -> Result<(), StateError> {
        let error = |source| StateError::Cluster {
            what: "write",
            name,
            source: Box::new(source),
        };
        secrets::save(self.kubernetes, purpose, name, bytes, Held::Already)
            .await
            .map_err(error)
    }
}

/// One of both places must have it.
fn one_of(what: &str, folder: Result<(), StateError>, cluster: Result<(), StateError>) -> Result<(), StateError> {
    match (folder, cluster) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(error), Ok(())) | (Ok(()), Err(error)) => {
            tracing::warn!(
                error = crate::hub::chain(&error),
                "the {what} is stored in one place only"
            );
            Ok(())
        }
        (Err(folder), Err(cluster)) => {
            tracing::warn!(
                error = crate::hub::chain(&cluster),
                "can't store the {what} in the cluster"
            );
            Err(folder)
        }
    }
}

/// Creates a folder with mode 0700, or removes the rights of group and others from an existing one.
fn make_private_folder(path: &Path) -> Result<(), StateError> {
    let error = |what| {
        move |source| StateError::File {
            what,
            path: path.to_owned(),
            source,
        }
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(error("make folder"))?;
    let mode = fs::metadata(path)
        .map_err(error("read the mode of"))?
        .permissions()
        .mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    match fs::set_permissions(path, fs::Permissions::from_mode(0o700)) {
        // A volume that the node created for us. The files that we put into it are private themselves.
        Err(refused) if refused.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other.map_err(error("set the mode of")),
    }
}

fn read_file(path: &Path) -> Result<Option<Vec<u8>>, StateError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StateError::File {
            what: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    write_private(path, bytes).map_err(|source| StateError::File {
        what: "write",
        path: path.to_owned(),
        source,
    })
}
