//! The files of a Helm repository or a registry on disk: the charts in its index, and the archives that services need.
//! Each source has one folder, as a Git source has its mirror.

use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use farwater_api::Digest;
use farwater_bundle::{Limits, Members, MembersError, Shape, members};
use serde::{Deserialize, Serialize};

use crate::heavy;

/// Unused archives that are kept, newest first, because services that are being reconciled may still name them.
const KEPT: usize = 8;
const TEMPORARY: &str = "tmp-";

/// A source's folder. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Artifacts(Arc<PathBuf>);

/// Description of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Label {
    /// Digest of the file's bytes.
    pub file: Digest,
    pub holds: Holds,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Holds {
    /// An archive of files.
    Files,
    /// The archive of a chart, whose folder becomes the root.
    Chart,
    /// A single file with this name.
    File(String),
}

#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    #[error("{what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// It is missing or damaged, and must be fetched again.
    #[error("artifact {0} is not on the disk")]
    Missing(Digest),
    #[error(transparent)]
    Members(#[from] MembersError),
    #[error("the work was stopped")]
    Stopped,
}

impl Artifacts {
    /// The folder is created when something is written to it.
    pub fn at(folder: &Path) -> Self {
        Self(Arc::new(folder.to_owned()))
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A temporary file that is deleted when dropped.
    pub(crate) fn temporary(&self) -> Result<tempfile::NamedTempFile, ArtifactError> {
        fs::create_dir_all(self.folder()).map_err(io_error("make", self.folder()))?;
        let made = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(self.folder());
        made.map_err(io_error("make a file in", self.folder()))
    }

    /// Gives a temporary file its name, so that it exists completely or not at all.
    pub(crate) fn persist(&self, file: tempfile::NamedTempFile, name: &str) -> Result<(), ArtifactError> {
        let path = self.path(name);
        file.as_file().sync_all().map_err(io_error("write", &path))?;
        file.persist(&path)
            .map_err(|error| io_error("name", &path)(error.error))?;
        let synced = fs::File::open(self.folder()).and_then(|folder| folder.sync_all());
        synced.map_err(io_error("sync", self.folder()))
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ArtifactError> {
        let mut file = self.temporary()?;
        file.write_all(bytes).map_err(io_error("write", &self.path(name)))?;
        self.persist(file, name)
    }

    /// Whether an artifact is on disk. `key`: digest of its manifest, or its own if it has no manifest.
    pub fn contains(&self, key: &Digest) -> bool {
        self.label(key)
            .is_some_and(|label| self.path(&archive_name(&label.file)).is_file())
    }

    fn label(&self, key: &Digest) -> Option<Label> {
        serde_json::from_slice(&fs::read(self.path(&label_name(key))).ok()?).ok()
    }

    /// Stores a downloaded archive after checking it. Blocking work, limited to few at a time.
    pub(crate) async fn admit(
        &self,
        key: Digest,
        label: Label,
        file: tempfile::NamedTempFile,
        check: impl FnOnce(&Members) -> Result<(), String> + Send + 'static,
    ) -> Result<Result<(), String>, ArtifactError> {
        let artifacts = self.clone();
        blocking(move || {
            let bytes = fs::read(file.path()).map_err(io_error("read", file.path()))?;
            match read_members(&bytes, &label.holds) {
                Err(error) => return Ok(Err(error.to_string())),
                Ok(members) => {
                    if let Err(problem) = check(&members) {
                        return Ok(Err(problem));
                    }
                }
            }
            artifacts.persist(file, &archive_name(&label.file))?;
            // Written last, so that an artifact with a label is complete.
            let text =
                serde_json::to_vec(&label).map_err(|error| io_error("write", artifacts.folder())(error.into()))?;
            artifacts.write(&label_name(&key), &text)?;
            Ok(Ok(()))
        })
        .await
    }

    /// The files of an artifact. Blocking. A damaged one counts as missing.
    pub fn open(&self, key: &Digest) -> Result<Members, ArtifactError> {
        let missing = || ArtifactError::Missing(*key);
        let label = self.label(key).ok_or_else(missing)?;
        let path = self.path(&archive_name(&label.file));
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        if Digest::of(&bytes) != label.file {
            // Remove the label too, so that it is fetched again.
            let label = self.path(&label_name(key));
            fs::remove_file(&label).map_err(io_error("remove", &label))?;
            return Err(missing());
        }
        Ok(read_members(&bytes, &label.holds)?)
    }

    /// Deletes artifacts that no service names, except the last few, and the remains of killed downloads.
    pub async fn tidy(&self, kept: Vec<Digest>) -> Result<(), ArtifactError> {
        let artifacts = self.clone();
        blocking(move || artifacts.tidy_now(&kept)).await
    }

    fn tidy_now(&self, kept: &[Digest]) -> Result<(), ArtifactError> {
        let list = match fs::read_dir(self.folder()) {
            Ok(list) => list,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error("list", self.folder())(error)),
        };

        let (mut old, mut files) = (Vec::new(), Vec::new());
        for entry in list {
            let entry = entry.map_err(io_error("list", self.folder()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(TEMPORARY) {
                remove(&entry.path())?;
            } else if let Some(key) = digest_of(&name, LABEL) {
                let time = entry.metadata().and_then(|metadata| metadata.modified()).ok();
                if !kept.contains(&key) {
                    old.push((time, key));
                }
            } else if let Some(file) = digest_of(&name, ARCHIVE) {
                files.push(file);
            }
        }

        old.sort_unstable();
        let gone = old.len().saturating_sub(KEPT);
        let (gone, stays) = old.split_at(gone);
        for (_, key) in gone {
            remove(&self.path(&label_name(key)))?;
        }

        let named: Vec<_> = kept
            .iter()
            .chain(stays.iter().map(|(_, key)| key))
            .filter_map(|key| Some(self.label(key)?.file))
            .collect();
        for file in files.into_iter().filter(|file| !named.contains(file)) {
            remove(&self.path(&archive_name(&file)))?;
        }
        Ok(())
    }
}

const LABEL: &str = ".json";
const ARCHIVE: &str = ".archive";

fn label_name(key: &Digest) -> String {
    format!("{}{LABEL}", key.to_hex())
}

fn archive_name(file: &Digest) -> String {
    format!("{}{ARCHIVE}", file.to_hex())
}

fn digest_of(name: &str, suffix: &str) -> Option<Digest> {
    format!("sha256:{}", name.strip_suffix(suffix)?).parse().ok()
}

fn remove(path: &Path) -> Result<(), ArtifactError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

fn read_members(bytes: &[u8], holds: &Holds) -> Result<Members, MembersError> {
    let limits = Limits::default();
    match holds {
        Holds::Files => members::read(bytes, Shape::Plain, &limits),
        Holds::Chart => members::read(bytes, Shape::OneFolder, &limits),
        Holds::File(name) => members::single(name, bytes, &limits),
    }
}

pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ArtifactError {
    let path = path.to_owned();
    move |source| ArtifactError::Io { what, path, source }
}

/// Runs work that needs memory and a core on another thread, so that nothing waits behind it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArtifactError> + Send + 'static,
) -> Result<T, ArtifactError> {
    let _place = heavy::place().await;
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ArtifactError::Stopped),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(name: &str, content: &[u8]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, content).unwrap();
        builder.into_inner().unwrap()
    }

    async fn put(artifacts: &Artifacts, name: &str) -> Digest {
        let bytes = tar(name, name.as_bytes());
        let mut file = artifacts.temporary().unwrap();
        file.write_all(&bytes).unwrap();
        let (key, file_digest) = (Digest::of(format!("manifest of {name}")), Digest::of(&bytes));
        artifacts
            .admit(
                key,
                Label {
                    file: file_digest,
                    holds: Holds::Files,
                },
                file,
                |_| Ok(()),
            )
            .await
            .unwrap()
            .unwrap();
        key
    }

    #[tokio::test]
    async fn what_was_admitted_is_opened_and_what_was_changed_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::at(&folder.path().join("uid"));
        let key = put(&artifacts, "a.yaml").await;
        assert!(artifacts.contains(&key) && !artifacts.contains(&Digest::of("other")));
        assert_eq!(artifacts.open(&key).unwrap().file("a.yaml", 100).unwrap(), b"a.yaml");
        let archive = fs::read_dir(artifacts.folder())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let archive = archive
            .into_iter()
            .find(|path| path.extension().is_some_and(|end| end == "archive"))
            .unwrap();
        fs::write(archive, "other").unwrap();
        assert!(matches!(artifacts.open(&key), Err(ArtifactError::Missing(_))));
        assert!(!artifacts.contains(&key));
    }

    #[tokio::test]
    async fn what_is_no_archive_is_not_admitted() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::at(folder.path());
        for (bytes, holds) in [
            (b"x".to_vec(), Holds::Files),
            (tar("a", b"x"), Holds::Chart),
            (tar("a", b"x"), Holds::File("../a".into())),
        ] {
            let mut file = artifacts.temporary().unwrap();
            file.write_all(&bytes).unwrap();
            let key = Digest::of(&bytes);
            assert!(
                artifacts
                    .admit(key, Label { file: key, holds }, file, |_| Ok(()))
                    .await
                    .unwrap()
                    .is_err()
            );
        }
        let bytes = tar("a", b"x");
        let mut file = artifacts.temporary().unwrap();
        file.write_all(&bytes).unwrap();
        let label = Label {
            file: Digest::of(&bytes),
            holds: Holds::Files,
        };
        let refused = artifacts
            .admit(label.file, label, file, |_| Err("no".to_owned()))
            .await
            .unwrap();
        assert_eq!(refused, Err("no".to_owned()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }

    #[tokio::test]
    async fn the_newest_and_the_named_stay() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::at(folder.path());
        let mut keys = Vec::new();
        for n in 0..12 {
            let key = put(&artifacts, &format!("{n}.yaml")).await;
            let time = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(n));
            let label = fs::File::options()
                .write(true)
                .open(artifacts.path(&label_name(&key)))
                .unwrap();
            label.set_times(time).unwrap();
            keys.push(key);
        }
        fs::write(artifacts.path("tmp-left"), "half").unwrap();
        fs::write(artifacts.path("index.jsonl"), "x").unwrap();
        artifacts.tidy(vec![keys[0]]).await.unwrap();
        let here: Vec<_> = keys.iter().map(|key| artifacts.contains(key)).collect();
        assert_eq!(
            here,
            [
                true, false, false, false, true, true, true, true, true, true, true, true
            ]
        );
        assert!(artifacts.open(&keys[1]).is_err() && artifacts.open(&keys[0]).is_ok());
        assert!(!artifacts.path("tmp-left").exists() && artifacts.path("index.jsonl").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2 * 9 + 1);
    }
}
