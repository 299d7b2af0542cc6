//! The seal key, and its exchange while the hub runs.
//!
//! The next key is created beside the current one. The transaction that seals the database's data keys with it puts it
//! into use and is the only moment that counts; then its file replaces the other. After a crash, the database says
//! which of the two counts.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::{
    IdentityError, Keys, SecretKey,
    files::{read_private, remove, replace, write_private},
    make_secret, parse_secret,
};

pub(super) const SEAL: &str = "seal.key";
pub(super) const NEXT: &str = "seal.next.key";
/// Contains the id of the key to replace, so that a repeated request replaces it once.
pub(super) const WANTED: &str = "seal.wanted";

impl SecretKey {
    /// Identifies the key without revealing anything of it.
    pub fn id(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"farwater-seal-key-id\0");
        hash.update(self.bytes());
        hex::encode(&hash.finalize()[..8])
    }
}

fn keys(directory: &Path) -> Keys {
    Keys {
        directory: directory.to_owned(),
        established: true,
    }
}

fn read(directory: &Path, name: &str) -> Result<Option<SecretKey>, IdentityError> {
    let path = directory.join(name);
    let Some(text) = read_private(&path)? else {
        return Ok(None);
    };
    parse_secret(&text)
        .map(Some)
        .map_err(|problem| IdentityError::Corrupt { path, problem })
}

/// The key beside the current one, which may be the one that counts.
pub(super) fn read_next(directory: &Path) -> Result<Option<SecretKey>, IdentityError> {
    read(directory, NEXT)
}

/// The current key of a hub that may be running; it must exist.
pub(super) fn read_current(directory: &Path) -> Result<SecretKey, IdentityError> {
    read(directory, SEAL)?.ok_or_else(|| IdentityError::Missing {
        path: directory.join(SEAL),
    })
}

/// Replaces the current key's file by the next key's, after the database says that the next key counts.
pub fn finish_seal_key(directory: &Path) -> Result<(), IdentityError> {
    Ok(replace(&directory.join(NEXT), &directory.join(SEAL))?)
}

/// Requests another seal key. A running hub exchanges it at once, a stopped one at its start. Returns the current key.
pub fn request_seal_key(data_dir: &Path) -> Result<SecretKey, IdentityError> {
    let directory = data_dir.join("keys");
    let current = match read_current(&directory) {
        Err(IdentityError::Missing { .. }) => {
            return Err(IdentityError::NotStarted {
                path: data_dir.to_owned(),
            });
        }
        current => current?,
    };
    write_private(&directory.join(WANTED), current.id().as_bytes())?;
    Ok(current)
}

/// Whether another key than the current one is requested.
pub fn is_seal_key_wanted(directory: &Path) -> Result<bool, IdentityError> {
    let Some(wanted) = read_private(&directory.join(WANTED))? else {
        return Ok(false);
    };
    if wanted.trim() == read_current(directory)?.id() {
        return Ok(true);
    }
    // That key was replaced already.
    remove(&directory.join(WANTED))?;
    Ok(false)
}

/// The next key: the one that a stopped exchange has left, or a new one.
pub fn stage_seal_key(directory: &Path) -> Result<SecretKey, IdentityError> {
    keys(directory).for_next().load(NEXT, make_secret, parse_secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{DataDir, Identity};

    #[test]
    fn a_key_that_is_asked_for_twice_is_exchanged_once() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::open(folder.path()).unwrap();
        assert!(matches!(
            request_seal_key(folder.path()),
            Err(IdentityError::NotStarted { .. })
        ));
        let first = Identity::open(&data, None, jiff::Timestamp::now()).unwrap();
        let directory = data.keys();
        assert!(!is_seal_key_wanted(&directory).unwrap());
        assert_eq!(request_seal_key(folder.path()).unwrap().id(), first.seal_key().id());
        request_seal_key(folder.path()).unwrap();
        assert!(is_seal_key_wanted(&directory).unwrap());
        let next = stage_seal_key(&directory).unwrap();
        assert_eq!(
            stage_seal_key(&directory).unwrap().id(),
            next.id(),
            "what was begun is gone on with"
        );
        assert_eq!(read_next(&directory).unwrap().unwrap().id(), next.id());
        finish_seal_key(&directory).unwrap();
        assert!(!is_seal_key_wanted(&directory).unwrap() && !directory.join(WANTED).exists());
        assert_eq!(read_current(&directory).unwrap().id(), next.id());
        assert!(read_next(&directory).unwrap().is_none());
        assert!(!format!("{next:?}").contains(&hex::encode(next.bytes())));
    }
}
