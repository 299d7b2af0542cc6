//! The identity of this hub: its installation id, certificate authority, signing key and secret keys.
//!
//! They are created at the first start, under `keys/` of the data directory. Once the database exists, a missing or
//! unreadable key is an error and is never replaced: agents pin the authority and the signing key, and sealed rows
//! can't be read without the seal key. An administrator can have the authority, the signing key and the seal key
//! replaced (ADR 10, 25).

mod certificates;
mod enclosed;
mod files;
mod list;
mod mounted;
mod rotate;
mod seal;
mod trust;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::{hmac, rand::SystemRandom, signature::Ed25519KeyPair};
use farwater_api::{
    Digest,
    protocol::SigningKey,
    succession::{Position, SignedSuccession, Trusted},
};
use farwater_store::{Store, StoreError};
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use thiserror::Error;
use zeroize::Zeroizing;

pub use certificates::{CertificateError, ServerNames, certificate_end};
pub use enclosed::{EnclosedError, RestoredKeys, StagedKeys, read_keys};
pub use files::{DataDir, DataDirError, FileError, write_private};
pub use list::{KeyList, KeyRow};
pub use mounted::{Mounted, MountedError, MountedFiles, end_of, is_valid_for, pins_of_file};
pub use rotate::{Change, request_change};
pub use seal::{finish_seal_key, is_seal_key_wanted, request_seal_key, stage_seal_key};
pub use trust::{Request, Standing};

use rotate::Material;

const SECRET_BYTES: usize = 32;

/// 32 secret bytes that cannot be printed and are wiped when dropped.
pub struct SecretKey(Zeroizing<[u8; SECRET_BYTES]>);

impl SecretKey {
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

/// The hub's keys. Shared by all code that signs, seals or proves.
pub struct Identity {
    installation: String,
    material: Material,
    /// PEM of another authority that issued the served certificate; None: our own did.
    mounted_authority: Option<String>,
    seal: SecretKey,
    next_seal: Option<SecretKey>,
    mac: hmac::Key,
    directory: PathBuf,
}

#[derive(Debug, Error)]
pub enum IdentityError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "load the hub's keys: {} is missing though the database exists. Restore it from a backup of the data directory; \
         a new one would lock out every agent or lose every sealed secret",
        .path.display()
    )]
    Missing { path: PathBuf },
    #[error("load the hub's keys: {} {problem}. Restore it from a backup of the data directory", .path.display())]
    Corrupt { path: PathBuf, problem: &'static str },
    #[error("make the hub's keys: the system's random source failed")]
    Random,
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("read the request for the hub's keys: {} can't be read; remove it and repeat the request", .path.display())]
    Request { path: PathBuf },
    #[error("change the hub's keys: {0}")]
    Refused(String),
    #[error("read the hub's keys: there are none in {}, or none that this version has used; start the hub first", .path.display())]
    NotStarted { path: PathBuf },
    #[error(
        "load the hub's keys: the database was served with newer ones (succession {known}) than {} holds (succession {found}): it          is an older copy. Restore the newest copy; agents take nothing from this one",
        .path.display()
    )]
    Older { path: PathBuf, known: u64, found: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The meta entry that says how far agents may have followed the successions.
const POSITION: &str = "succession";

/// Reads only the key of sealed rows, of a hub that may be running. It must exist.
pub fn read_seal_key(data_dir: &Path) -> Result<SecretKey, IdentityError> {
    seal::read_current(&data_dir.join("keys"))
}

/// Reads a seal key from another file, e.g. an earlier one.
pub fn read_seal_key_file(path: &Path) -> Result<SecretKey, IdentityError> {
    let text = files::read_private(path)?.ok_or_else(|| IdentityError::Missing { path: path.to_owned() })?;
    parse_secret(&text).map_err(|problem| IdentityError::Corrupt {
        path: path.to_owned(),
        problem,
    })
}

/// Reads the key beside it during an exchange; the database says which of the two counts.
pub fn read_next_seal_key(data_dir: &Path) -> Result<Option<SecretKey>, IdentityError> {
    seal::read_next(&data_dir.join("keys"))
}

impl Identity {
    /// Loads the keys, or creates missing ones if there is no database yet. `mounted`: the certificate that the hub is
    /// served with, if another authority issued it.
    pub fn open(data: &DataDir, mounted: Option<&Mounted>, now: Timestamp) -> Result<Self, IdentityError> {
        let keys = Keys {
            directory: data.keys(),
            established: data.is_established(),
        };
        let installation = keys.load(
            "installation",
            || Ok(uuid::Uuid::new_v4().to_string()),
            parse_installation,
        )?;
        let material = Material::open(&keys, &installation, mounted.map(Mounted::pin), now)?;
        let seal = keys.load(seal::SEAL, make_secret, parse_secret)?;
        let next_seal = seal::read_next(&keys.directory)?;
        let mac = keys.load("mac.key", make_secret, parse_secret)?;
        let mac = hmac::Key::new(hmac::HMAC_SHA256, mac.bytes());
        let mounted_authority = mounted.map(Mounted::authority_pem);
        Ok(Self {
            installation,
            material,
            mounted_authority,
            seal,
            next_seal,
            mac,
            directory: keys.directory,
        })
    }

    /// Distinguishes this hub's statements from those of every other hub.
    pub fn installation(&self) -> &str {
        &self.installation
    }

    /// The authority that clients trust: our own, or that of a mounted certificate. As PEM.
    pub fn ca_pem(&self) -> &str {
        self.mounted_authority
            .as_deref()
            .unwrap_or_else(|| self.material.authority.pem())
    }

    /// That authority's certificate, as DER.
    fn authority_der(&self) -> Vec<u8> {
        let mounted = self
            .mounted_authority
            .as_deref()
            .and_then(|pem| files::from_pem("CERTIFICATE", pem));
        mounted.map_or_else(|| self.material.authority.der().to_vec(), |der| der.to_vec())
    }

    /// When that authority ends, in seconds since 1970.
    pub fn authority_end(&self) -> Option<i64> {
        certificate_end(&self.authority_der())
    }

    /// `sha256:<hex>` of that authority, as agents pin it.
    pub fn ca_pin(&self) -> String {
        Digest::of(self.authority_der()).to_string()
    }

    /// Signs with Ed25519.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.material.signing.sign(message).as_ref().to_vec()
    }

    /// The key that [`Self::sign`] uses: the `keyId` of a statement.
    pub fn key_id(&self) -> &str {
        &self.trusted().signing_key.id
    }

    /// The keys that agents should trust now.
    pub fn trusted(&self) -> &Trusted {
        self.material.trust.head()
    }

    /// The key with this id, current or former: some agent may still present a signature of it.
    pub fn signing_key(&self, id: &str) -> Option<&SigningKey> {
        self.material
            .trust
            .signing_keys()
            .into_iter()
            .map(|(key, _)| key)
            .find(|key| key.id == id)
    }

    /// The standing of an agent that has followed the successions up to this position.
    pub fn standing(&self, position: &Position) -> Standing {
        self.material.trust.standing(position)
    }

    /// The successions after a number; None: those that lead there were revoked.
    pub fn successions_after(&self, sequence: u64) -> Option<&[SignedSuccession]> {
        self.material.trust.after(sequence)
    }

    /// Saves in the database how far agents may follow these keys. Fails if the keys are an older copy of what was
    /// saved, because agents that use the newer keys accept nothing from them.
    pub async fn note_successions(&self, store: &Store) -> Result<(), IdentityError> {
        let head = self.trusted().position;
        let known: Position = match store.meta(POSITION).await? {
            Some(text) => serde_json::from_str(&text).unwrap_or_default(),
            None => Position::default(),
        };
        if self.standing(&known) == Standing::Foreign {
            return Err(IdentityError::Older {
                path: self.directory.clone(),
                known: known.sequence,
                found: head.sequence,
            });
        }
        if known != head {
            store
                .put_meta(POSITION, &serde_json::to_string(&head).map_err(StoreError::abort)?)
                .await?;
        }
        Ok(())
    }

    /// The seal key at the hub's start.
    pub fn seal_key(&self) -> &SecretKey {
        &self.seal
    }

    /// The seal key that a stopped exchange has left; None: there is none.
    pub fn next_seal_key(&self) -> Option<&SecretKey> {
        self.next_seal.as_ref()
    }

    /// The directory of the keys.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// HMAC-SHA256 with the installation's key. `purpose` separates the values of different uses.
    pub fn mac(&self, purpose: &str, message: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.mac);
        context.update(&(purpose.len() as u64).to_be_bytes());
        context.update(purpose.as_bytes());
        context.update(message);
        let mut value = [0; 32];
        value.copy_from_slice(context.sign().as_ref());
        value
    }

    /// Whether a value equals [`Self::mac`], in constant time.
    pub fn verify_mac(&self, purpose: &str, message: &[u8], value: &[u8]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.mac(purpose, message), value).is_ok()
    }

    /// The server's certificate with its chain. A new one is issued if there is none, it ends soon, or it isn't valid
    /// for these names; see [`certificates`].
    pub fn server_certificate(&self, names: &ServerNames, now: Timestamp) -> Result<Arc<CertifiedKey>, IdentityError> {
        let Material { authority, trust, .. } = &self.material;
        Ok(authority.server_certificate(&self.directory, trust.between(), names, now)?)
    }
}

/// The directory of the keys, and whether keys may still be created.
struct Keys {
    directory: PathBuf,
    established: bool,
}

impl Keys {
    /// Reads a key. A missing key is created first, if that is still allowed.
    fn load<T>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<String, IdentityError>,
        parse: impl FnOnce(&str) -> Result<T, &'static str>,
    ) -> Result<T, IdentityError> {
        let path = self.directory.join(name);
        let text = match files::read_private(&path)? {
            Some(text) => text,
            None if self.established => return Err(IdentityError::Missing { path }),
            None => {
                let text = Zeroizing::new(make()?);
                files::write_private(&path, text.as_bytes())?;
                text
            }
        };
        parse(&text).map_err(|problem| IdentityError::Corrupt { path, problem })
    }

    /// For creating keys that are not in use yet.
    fn for_next(&self) -> Self {
        Self {
            directory: self.directory.clone(),
            established: false,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn exists(&self, name: &str) -> bool {
        Path::exists(&self.path(name))
    }
}

fn parse_installation(text: &str) -> Result<String, &'static str> {
    uuid::Uuid::parse_str(text.trim())
        .map(|id| id.to_string())
        .map_err(|_| "is no UUID")
}

fn make_signing_key() -> Result<String, IdentityError> {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| IdentityError::Random)?;
    Ok(files::to_pem("PRIVATE KEY", document.as_ref()))
}

fn parse_signing_key(text: &str) -> Result<Ed25519KeyPair, &'static str> {
    let der = files::from_pem("PRIVATE KEY", text).ok_or("is no PEM private key")?;
    Ed25519KeyPair::from_pkcs8(&der).map_err(|_| "is no Ed25519 key")
}

fn make_secret() -> Result<String, IdentityError> {
    let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
    aws_lc_rs::rand::fill(&mut *bytes).map_err(|_| IdentityError::Random)?;
    Ok(hex::encode(*bytes) + "\n")
}

fn parse_secret(text: &str) -> Result<SecretKey, &'static str> {
    let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
    hex::decode_to_slice(text.trim(), &mut *bytes).map_err(|_| "is not 64 hex digits")?;
    Ok(SecretKey(bytes))
}

#[cfg(test)]
mod tests;
