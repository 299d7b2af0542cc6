//! The hub's keys in a backup, and how they are restored.
//!
//! A restored hub keeps its own keys: they are newer than the backup's, and agents know them. Only the keys of another
//! installation are replaced, all of them at once: a new hub that replaces a lost one has created its own.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use farwater_store::archive::Enclosed;
use thiserror::Error;
use zeroize::Zeroizing;

use super::{
    IdentityError, SecretKey,
    files::{DataDir, FileError, write_private},
    parse_installation, parse_secret, read_seal_key,
    seal::{NEXT, SEAL, WANTED},
};

const FOLDER: &str = "keys";
/// Identifies an installation.
const INSTALLATION: &str = "installation";
/// Maximum number of files. A hub has about ten keys; a folder with more is not a folder of keys.
const MAX_FILES: usize = 100;
/// Maximum bytes of a file, as for keys that are read at the start.
const MAX_BYTES: u64 = 64 << 10;

#[derive(Debug, Error)]
pub enum EnclosedError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("read the hub's keys: {} is missing", path.display())]
    Lacking { path: PathBuf },
    #[error("read the hub's keys: {} {problem}", path.display())]
    Strange { path: PathBuf, problem: &'static str },
    #[error("take the backup's keys: {name:?} {problem}")]
    Backup { name: String, problem: &'static str },
}

/// Reads all of `keys/`, for a backup.
pub fn read_keys(data_dir: &Path) -> Result<Vec<Enclosed>, EnclosedError> {
    let folder = data_dir.join(FOLDER);
    let files = read_folder(&folder)?;
    for name in [INSTALLATION, SEAL] {
        if !files.contains_key(name) {
            return Err(EnclosedError::Lacking {
                path: folder.join(name),
            });
        }
    }
    Ok(files
        .into_iter()
        .map(|(name, content)| Enclosed {
            name: format!("{FOLDER}/{name}"),
            content,
        })
        .collect())
}

type Files = BTreeMap<String, Zeroizing<Vec<u8>>>;

fn read_folder(folder: &Path) -> Result<Files, EnclosedError> {
    let mut files = Files::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
        entries => entries.map_err(FileError::of("read", folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(FileError::of("read", folder))?;
        let path = entry.path();
        let strange = |problem| EnclosedError::Strange {
            path: path.clone(),
            problem,
        };
        let metadata = entry.metadata().map_err(FileError::of("read", &path))?;
        let name = entry
            .file_name()
            .into_string()
            .map_err(|_| strange("has a name that is no text"))?;
        // A crash may leave a file that was being written.
        if !metadata.is_file() || name.ends_with(".tmp") {
            continue;
        }
        if metadata.len() > MAX_BYTES {
            return Err(strange("is too long for a key"));
        }
        if files.len() == MAX_FILES {
            return Err(strange("is one file too many"));
        }
        files.insert(
            name,
            Zeroizing::new(fs::read(&path).map_err(FileError::of("read", &path))?),
        );
    }
    Ok(files)
}

/// A backup's files by their name in `keys/`. Names must be plain, because they become paths.
fn named(enclosed: &[Enclosed]) -> Result<Files, EnclosedError> {
    let mut files = Files::new();
    for file in enclosed {
        let wrong = |problem| EnclosedError::Backup {
            name: file.name.clone(),
            problem,
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let name = file
            .name
            .strip_prefix(FOLDER)
            .and_then(|name| name.strip_prefix('/'))
            .filter(|name| !name.is_empty() && !name.starts_with('.') && name.len() <= 100 && name.bytes().all(plain))
            .ok_or_else(|| wrong("is no file of keys/"))?;
        files.insert(name.to_owned(), file.content.clone());
    }
    for name in [INSTALLATION, SEAL] {
        if !files.contains_key(name) {
            return Err(EnclosedError::Backup {
                name: name.to_owned(),
                problem: "is not among them",
            });
        }
    }
    Ok(files)
}

/// The effect of a restore on the existing keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoredKeys {
    /// All of them are kept.
    Kept,
    /// They are kept, and these missing ones are restored.
    Completed(Vec<String>),
    /// There were none, or another installation's; they were replaced by the backup's.
    Replaced,
}

fn decide(present: &Files, backup: &Files) -> RestoredKeys {
    let installation = |files: &Files| {
        let text = files
            .get(INSTALLATION)
            .map(|text| String::from_utf8_lossy(text).into_owned())?;
        parse_installation(&text).ok()
    };
    let ours = installation(present);
    if ours.is_none() || ours != installation(backup) {
        return RestoredKeys::Replaced;
    }
    // An exchange that was running when the backup was made is over.
    let is_lasting = |name: &&String| !matches!(name.as_str(), NEXT | WANTED);
    let missing: Vec<String> = backup
        .keys()
        .filter(is_lasting)
        .filter(|name| !present.contains_key(*name))
        .cloned()
        .collect();
    if missing.is_empty() {
        RestoredKeys::Kept
    } else {
        RestoredKeys::Completed(missing)
    }
}

/// A backup's keys on the disk, beside the existing ones. Nothing is changed until [`StagedKeys::take_place`].
pub struct StagedKeys {
    data_dir: PathBuf,
    keys: RestoredKeys,
    backup: Files,
}

impl StagedKeys {
    /// `data` is locked, so no hub is running on these keys.
    pub fn stage(data: &DataDir, enclosed: &[Enclosed]) -> Result<Self, EnclosedError> {
        let backup = named(enclosed)?;
        let data_dir = data.path().to_owned();
        let keys = decide(&read_folder(&data.keys())?, &backup);
        let staged = Self { data_dir, keys, backup };
        if staged.keys == RestoredKeys::Replaced {
            let folder = staged.folder("restoring");
            remove_folder(&folder)?;
            DirBuilder::new()
                .mode(0o700)
                .create(&folder)
                .map_err(FileError::of("make the directory", &folder))?;
            for (name, content) in &staged.backup {
                write_private(&folder.join(name), content)?;
            }
        }
        Ok(staged)
    }

    /// The key that opens sealed rows after [`StagedKeys::take_place`].
    pub fn seal_key(&self) -> Result<SecretKey, EnclosedError> {
        let is_ours = match &self.keys {
            RestoredKeys::Kept => true,
            RestoredKeys::Completed(names) => !names.iter().any(|name| name == SEAL),
            RestoredKeys::Replaced => false,
        };
        if is_ours {
            return Ok(read_seal_key(&self.data_dir)?);
        }
        let text = self
            .backup
            .get(SEAL)
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .unwrap_or_default();
        parse_secret(&text).map_err(|problem| EnclosedError::Backup {
            name: SEAL.to_owned(),
            problem,
        })
    }

    /// The keys that the backup's rows may need, also if the hub keeps its own keys: its seal key may have been
    /// replaced since the backup.
    pub fn seal_keys_of_backup(&self) -> Vec<SecretKey> {
        let read = |name: &str| parse_secret(&String::from_utf8_lossy(self.backup.get(name)?)).ok();
        [SEAL, NEXT].into_iter().filter_map(read).collect()
    }

    /// Puts the keys in place. Call this after the rows are restored. A crash in between leaves rows that the old keys
    /// don't open: the hub then doesn't start, and repeating the restore fixes it. Replaced keys are kept in
    /// `keys.replaced`.
    pub fn take_place(self) -> Result<RestoredKeys, EnclosedError> {
        let keys = self.data_dir.join(FOLDER);
        match &self.keys {
            RestoredKeys::Kept => {}
            RestoredKeys::Completed(names) => {
                for name in names {
                    write_private(
                        &keys.join(name),
                        self.backup.get(name).map_or(&[][..], |content| content.as_slice()),
                    )?;
                }
            }
            RestoredKeys::Replaced => {
                // An empty folder is not kept, so that keys put aside by an earlier attempt stay.
                if fs::remove_dir(&keys).is_err() && keys.exists() {
                    let aside = self.folder("replaced");
                    remove_folder(&aside)?;
                    fs::rename(&keys, &aside).map_err(FileError::of("put aside", &keys))?;
                }
                let restoring = self.folder("restoring");
                fs::rename(&restoring, &keys).map_err(FileError::of("put into its place", &restoring))?;
                let synced = File::open(&self.data_dir).and_then(|folder| folder.sync_all());
                synced.map_err(FileError::of("write", &self.data_dir))?;
            }
        }
        Ok(self.keys.clone())
    }

    fn folder(&self, suffix: &str) -> PathBuf {
        self.data_dir.join(format!("{FOLDER}.{suffix}"))
    }
}

fn remove_folder(folder: &Path) -> Result<(), EnclosedError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::of("remove", folder)(error).into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;

    fn enclosed(name: &str, content: &str) -> Enclosed {
        Enclosed {
            name: name.to_owned(),
            content: content.as_bytes().to_vec().into(),
        }
    }

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        /// A data directory with keys of its own.
        fn make() -> Self {
            let place = Self {
                folder: tempfile::tempdir().unwrap(),
            };
            place.identity();
            place
        }

        fn data(&self) -> DataDir {
            DataDir::open(self.folder.path()).unwrap()
        }

        fn identity(&self) -> Identity {
            Identity::open(&self.data(), None, jiff::Timestamp::now()).unwrap()
        }

        fn keys(&self) -> Vec<Enclosed> {
            read_keys(self.folder.path()).unwrap()
        }

        fn restore(&self, enclosed: &[Enclosed]) -> RestoredKeys {
            StagedKeys::stage(&self.data(), enclosed).unwrap().take_place().unwrap()
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }
    }

    #[test]
    fn a_lost_hub_comes_back_with_its_keys_and_puts_a_new_ones_aside() {
        let (lost, new) = (Place::make(), Place::make());
        let (was, made) = (lost.identity(), new.identity());
        let backup = lost.keys();
        let staged = StagedKeys::stage(&new.data(), &backup).unwrap();
        assert_eq!(staged.seal_key().unwrap().bytes(), was.seal_key().bytes());
        assert_eq!(
            new.identity().installation(),
            made.installation(),
            "nothing is changed yet"
        );
        drop(staged);

        assert_eq!(new.restore(&backup), RestoredKeys::Replaced);
        let is = new.identity();
        assert_eq!(
            (is.installation(), is.key_id(), is.ca_pin()),
            (was.installation(), was.key_id(), was.ca_pin())
        );
        assert_eq!(
            fs::read_to_string(new.path("keys.replaced/installation"))
                .unwrap()
                .trim(),
            made.installation()
        );
        assert!(!new.path("keys.restoring").exists());
        // Once more: the keys are its own now.
        assert_eq!(new.restore(&backup), RestoredKeys::Kept);
    }

    #[test]
    fn a_hubs_own_keys_stay_and_a_missing_one_comes_back() {
        let place = Place::make();
        let mut backup = place.keys();
        for file in &mut backup {
            if file.name == "keys/signing.key" {
                *file = enclosed("keys/signing.key", "an older one");
            }
        }
        let before = place.identity();
        fs::remove_file(place.path("keys/mac.key")).unwrap();
        assert_eq!(
            place.restore(&backup),
            RestoredKeys::Completed(vec!["mac.key".to_owned()])
        );
        let after = place.identity();
        assert_eq!(after.key_id(), before.key_id());
        assert_eq!(after.mac("test", b"message"), before.mac("test", b"message"));
        // Also without the key that opens sealed rows.
        fs::remove_file(place.path("keys/seal.key")).unwrap();
        let staged = StagedKeys::stage(&place.data(), &backup).unwrap();
        assert_eq!(staged.seal_key().unwrap().bytes(), before.seal_key().bytes());
    }

    #[test]
    fn an_empty_directory_gets_all_of_them_and_a_killed_attempt_is_mended() {
        let (lost, empty) = (
            Place::make(),
            Place {
                folder: tempfile::tempdir().unwrap(),
            },
        );
        let backup = lost.keys();
        // Killed during the write, and between the two renames.
        fs::create_dir(empty.path("keys.restoring")).unwrap();
        fs::write(empty.path("keys.restoring/half"), "x").unwrap();
        fs::create_dir(empty.path("keys.replaced")).unwrap();
        fs::write(empty.path("keys.replaced/installation"), "put aside").unwrap();
        assert_eq!(empty.restore(&backup), RestoredKeys::Replaced);
        assert_eq!(empty.identity().installation(), lost.identity().installation());
        assert!(!empty.path("keys/half").exists());
        assert_eq!(
            fs::read_to_string(empty.path("keys.replaced/installation")).unwrap(),
            "put aside"
        );
    }

    #[test]
    fn files_that_are_no_keys_are_refused() {
        let place = Place::make();
        let check = |name: &str, problem: &str| {
            let mut files = place.keys();
            files.push(enclosed(name, ""));
            let error = StagedKeys::stage(&place.data(), &files).err().unwrap().to_string();
            assert!(error.contains(problem), "{name}: {error}");
        };
        for name in [
            "hub.db",
            "keys/../hub.db",
            "keys/",
            "keys/.hidden",
            "keysx/a",
            "keys/a/b",
            "/etc/passwd",
        ] {
            check(name, "is no file of keys/");
        }
        let lacking = [enclosed("keys/seal.key", "")];
        let error = StagedKeys::stage(&place.data(), &lacking).err().unwrap().to_string();
        assert!(error.contains("\"installation\" is not among them"), "{error}");
    }
}
