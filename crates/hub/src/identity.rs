//! What makes this hub this hub: its installation id, certificate authority, signing key and secret keys.
//!
//! Made at the first start, under `keys/` of the data directory. Once the database exists, a missing or unreadable key
//! is an error and never replaced: agents pin the authority and the signing key, and what the seal key sealed can't be
//! read without it.

mod certificates;
mod files;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::protocol::SigningKey;
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

pub use certificates::{CertificateError, ServerNames};
pub use files::{DataDir, DataDirError, FileError, write_private};

use certificates::Authority;

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

/// The hub's keys. Shared by everything that signs, seals or proves.
pub struct Identity {
    installation: String,
    authority: Authority,
    signing: Ed25519KeyPair,
    key_id: String,
    seal: SecretKey,
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
}

/// The key of sealed rows alone, of a hub that may be running. It must be there.
pub fn read_seal_key(data_dir: &Path) -> Result<SecretKey, IdentityError> {
    let path = data_dir.join("keys/seal.key");
    let text = files::read_private(&path)?.ok_or_else(|| IdentityError::Missing { path: path.clone() })?;
    parse_secret(&text).map_err(|problem| IdentityError::Corrupt { path, problem })
}

impl Identity {
    /// Loads the keys, or makes those that are missing where there is no database yet.
    pub fn open(data: &DataDir, now: Timestamp) -> Result<Self, IdentityError> {
        let keys = Keys { directory: data.keys(), established: data.is_established() };
        let installation = keys.load("installation", || Ok(uuid::Uuid::new_v4().to_string()), parse_installation)?;
        let authority = Authority::open(&keys, now)?;
        let signing = keys.load("signing.key", make_signing_key, parse_signing_key)?;
        let seal = keys.load("seal.key", make_secret, parse_secret)?;
        let mac = keys.load("mac.key", make_secret, parse_secret)?;
        let key_id = key_id(signing.public_key().as_ref());
        let mac = hmac::Key::new(hmac::HMAC_SHA256, mac.bytes());
        Ok(Self { installation, authority, signing, key_id, seal, mac, directory: keys.directory })
    }

    /// Tells this hub's statements from every other hub's.
    pub fn installation(&self) -> &str {
        &self.installation
    }

    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// `sha256:<hex>` of the authority's certificate, as agents pin it.
    pub fn ca_pin(&self) -> String {
        format!("sha256:{}", hex::encode(Sha256::digest(self.authority.der())))
    }

    /// Ed25519.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.signing.sign(message).as_ref().to_vec()
    }

    /// Which key [`Self::sign`] uses: what a statement's `keyId` says.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The keys that agents pin.
    pub fn signing_keys(&self) -> Vec<SigningKey> {
        let public_key = BASE64.encode(self.signing.public_key().as_ref());
        vec![SigningKey { id: self.key_id.clone(), public_key }]
    }

    pub fn seal_key(&self) -> &SecretKey {
        &self.seal
    }

    /// HMAC-SHA256 under the installation's key. `purpose` keeps one use's values from being another's.
    pub fn mac(&self, purpose: &str, message: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.mac);
        context.update(&(purpose.len() as u64).to_be_bytes());
        context.update(purpose.as_bytes());
        context.update(message);
        let mut value = [0; 32];
        value.copy_from_slice(context.sign().as_ref());
        value
    }

    /// Whether a value is the one that [`Self::mac`] makes, in constant time.
    pub fn verify_mac(&self, purpose: &str, message: &[u8], value: &[u8]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.mac(purpose, message), value).is_ok()
    }

    /// The server's certificate with its chain. A new one is issued where there is none, it ends soon, or it isn't
    /// valid for these names; [`certificates`] says when that is.
    pub fn server_certificate(&self, names: &ServerNames, now: Timestamp) -> Result<Arc<CertifiedKey>, IdentityError> {
        Ok(self.authority.server_certificate(&self.directory, names, now)?)
    }
}

/// The first 16 hex digits of a public key's sha256.
fn key_id(public_key: &[u8]) -> String {
    let mut id = hex::encode(Sha256::digest(public_key));
    id.truncate(16);
    id
}

/// The directory of the keys, and whether keys may still be made.
struct Keys {
    directory: PathBuf,
    established: bool,
}

impl Keys {
    /// Reads a key; makes it first where it is missing and may be made.
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

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn exists(&self, name: &str) -> bool {
        Path::exists(&self.path(name))
    }
}

fn parse_installation(text: &str) -> Result<String, &'static str> {
    uuid::Uuid::parse_str(text.trim()).map(|id| id.to_string()).map_err(|_| "is no UUID")
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
