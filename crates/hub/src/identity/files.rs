//! Private files: written completely or not at all, readable only by the owner.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_store::Location;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::config::database::ELSEWHERE;

/// Maximum bytes of a file of keys: a chain of certificates is a few KiB, and 400 successions are 200.
const MAX_KEY_BYTES: u64 = 512 << 10;

#[derive(Debug, Error)]
#[error("{action} {}", .path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    pub(super) fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

#[derive(Debug, Error)]
pub enum DataDirError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("lock the data directory {}: another hub is running on it", .path.display())]
    Locked { path: PathBuf },
}

/// The data directory of a hub, locked against a second hub for as long as this lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    established: bool,
    _lock: File,
}

impl DataDir {
    /// Creates what is missing and takes the lock. The lock is the kernel's, so it ends with the process in any case.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        make_private_directory(path)?;
        let lock_path = path.join("hub.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(FileError::of("open", &lock_path))?;
        match farwater_store::lock_file(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DataDirError::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(FileError::of("lock", &lock_path)(source).into()),
        }
        make_private_directory(&path.join("keys"))?;
        let path = path.to_owned();
        let established = path.join("hub.db").exists() || path.join(ELSEWHERE).exists();
        Ok(Self {
            path,
            established,
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn keys(&self) -> PathBuf {
        self.path.join("keys")
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.path.join("admin.kubeconfig")
    }

    /// Notes that the hub's database is on a server: from now on, missing keys are never created.
    pub fn remember_database(&self, location: &Location) -> Result<(), FileError> {
        match location {
            Location::File(_) => Ok(()),
            Location::Postgres(url) => write_private(&self.path.join(ELSEWHERE), format!("{url}\n").as_bytes()),
        }
    }

    /// Whether there was a database, here or on a server, when the directory was opened.
    pub fn is_established(&self) -> bool {
        self.established
    }
}

/// Creates a directory of mode 0700, or removes the rights of group and others from an existing one.
fn make_private_directory(path: &Path) -> Result<(), FileError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(FileError::of("make the directory", path))?;
    match fs::set_permissions(path, fs::Permissions::from_mode(0o700)) {
        // A volume that the node created, owned by root and our group. The files in it are private themselves.
        Err(refused) if refused.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other.map_err(FileError::of("set the mode of", path)),
    }
}

/// The file's text; None: there is no such file.
pub(super) fn read_private(path: &Path) -> Result<Option<Zeroizing<String>>, FileError> {
    let read = || {
        let size = fs::metadata(path)?.len();
        if size > MAX_KEY_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("{size} bytes are no key"),
            ));
        }
        // Bytes that are not UTF-8 are no key either; the parser reports them with the file's name.
        Ok(Zeroizing::new(
            String::from_utf8_lossy(&Zeroizing::new(fs::read(path)?)).into_owned(),
        ))
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::of("read", path)(error)),
    }
}

/// Writes a file of mode 0600, so that a crash leaves the old content or the new, never a part.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let write = || {
        // A crash may have left it. A newly created file gets the requested mode.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(FileError::of("write", path))
}

/// Replaces a file by another one, so that a crash leaves one of the two in place.
pub(super) fn replace(from: &Path, to: &Path) -> Result<(), FileError> {
    let directory = to.parent().unwrap_or_else(|| Path::new("."));
    let replaced = fs::rename(from, to).and_then(|()| File::open(directory)?.sync_all());
    replaced.map_err(FileError::of("replace", to))
}

/// Removes a file that may be missing.
pub(super) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::of("remove", path)(error)),
        _ => Ok(()),
    }
}

pub(super) fn to_pem(label: &str, der: &[u8]) -> String {
    let body = BASE64.encode(der);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap_or_default())
        .collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// The bytes of the first PEM block with this label.
pub(super) fn from_pem(label: &str, text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let compact = Zeroizing::new(body.split_whitespace().collect::<String>());
    BASE64.decode(compact.as_bytes()).ok().map(Zeroizing::new)
}
