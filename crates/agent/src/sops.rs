//! Files of a bundle that are encrypted with SOPS, decrypted with the agent's own keys before anything else reads the
//! bundle.
//!
//! A file that can't be decrypted stays as it is, and nothing made from it is applied. A file that is encrypted for
//! other clusters is no error by itself: a repository may contain one for each, and state elsewhere which belongs to
//! which.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_bundle::{Archive, ArchiveError, Limits, RelPath};
use farwater_fleet::plan::{Render, RenderedObject, veil::Veil};
use farwater_sops::{ENCRYPTED, KEEP, KEEP_ANNOTATION, decrypt, suspects};
use serde_json::Value;

use crate::{
    identity::{Identity, KeyError},
    messages::shorten,
};

/// `ENC[AES256_GCM,` in base64, as a Secret's data would hold it.
const ENCRYPTED_BASE64: &str = "RU5DW0FFUzI1Nl9HQ00s";

/// Why a bundle's files can't be decrypted.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("put decrypted files into the bundle")]
    Archive(#[source] ArchiveError),
}

/// A decrypted bundle.
pub struct Opened {
    pub archive: Archive,
    /// Whether any of its files was encrypted.
    pub is_decrypted: bool,
    /// The decrypted values.
    pub veil: Veil,
    /// Why some files are not decrypted; the service's errors.
    pub errors: Vec<String>,
    /// Files that stay encrypted, with the reason: those in `errors`, and those for other clusters.
    closed: BTreeMap<RelPath, String>,
}

/// Decrypts the files for this cluster.
pub fn open(archive: Archive, identity: &Identity) -> Result<Opened, OpenError> {
    let mut opened = Opened {
        archive,
        is_decrypted: false,
        veil: Veil::default(),
        errors: Vec::new(),
        closed: BTreeMap::new(),
    };
    let (mut contents, mut keys) = (BTreeMap::new(), None);
    for (path, bytes) in opened.archive.files() {
        if !suspects(path.file_name(), bytes) {
            continue;
        }
        let keys = match &mut keys {
            Some(keys) => keys,
            none => none.insert(identity.sops_keys()?),
        };
        match decrypt(path.file_name(), bytes, keys) {
            Ok(None) => {}
            Ok(Some(decrypted)) => {
                decrypted.secrets.iter().for_each(|secret| opened.veil.add(secret));
                contents.insert(path.clone(), decrypted.bytes.to_vec());
            }
            Err(error) => {
                let reason = shorten(&format!("{path} is encrypted with SOPS: {error}"));
                if !error.is_for_others() {
                    opened.errors.push(reason.clone());
                }
                opened.closed.insert(path.clone(), reason);
            }
        }
    }

    if !contents.is_empty() {
        let replaced = opened.archive.replace(&BTreeSet::new(), &contents, &Limits::default());
        opened.archive = replaced.map_err(OpenError::Archive)?;
        opened.is_decrypted = true;
    }
    Ok(opened)
}

impl Opened {
    /// Removes objects that contain an encrypted value from a render, with an error: applied, the ciphertext would be
    /// used as a password.
    pub fn check(&self, render: &mut Render) {
        render.errors.extend(self.errors.iter().cloned());
        let mut told = Vec::new();
        render.objects.retain(|object| {
            let manifest = &object.manifest;
            let found = find_encrypted(manifest).or_else(|| find_in_data(manifest));
            let Some(place) = found.filter(|_| !is_kept(manifest)) else {
                return true;
            };
            told.push(self.explain(object, &place));
            false
        });
        told.retain(|reason| !render.errors.contains(reason));
        render.errors.extend(told);
    }

    fn explain(&self, object: &RenderedObject, place: &str) -> String {
        let is_of = |path: &RelPath| {
            object
                .origin
                .strip_prefix(path.as_str())
                .is_some_and(|rest| rest.starts_with(':'))
        };
        let of_file = self
            .closed
            .iter()
            .find(|(path, _)| is_of(path))
            .map(|(_, reason)| reason);
        if let Some(reason) = of_file {
            return reason.clone();
        }
        let others: Vec<&str> = self.closed.keys().map(RelPath::as_str).take(3).collect();
        let hint = match others.is_empty() {
            true => String::new(),
            false => format!(" (of this bundle these files do not open here: {})", others.join(", ")),
        };
        shorten(&format!(
            "{}: {place} is still encrypted by SOPS{hint}; if another program of the cluster decrypts it, annotate the object with \
             {KEEP_ANNOTATION}: {KEEP}",
            object.origin
        ))
    }
}

fn is_kept(manifest: &Value) -> bool {
    manifest["metadata"]["annotations"][KEEP_ANNOTATION] == KEEP
}

/// Path of the first encrypted value, alone or inside a text.
fn find_encrypted(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => (holds_encrypted(text) || text.starts_with(ENCRYPTED_BASE64)).then(String::new),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(n, item)| Some(format!("[{n}]{}", find_encrypted(item)?))),
        Value::Object(map) => map
            .iter()
            .find_map(|(key, value)| Some(format!(".{key}{}", find_encrypted(value)?))),
        _ => None,
    }
}

/// Whether a text is an encrypted value, or contains all parts of one. A text that only mentions one does not.
fn holds_encrypted(text: &str) -> bool {
    let within = || text.find(ENCRYPTED).map(|at| &text[at..]);
    text.starts_with(ENCRYPTED) || within().is_some_and(|rest| rest.contains(",iv:") && rest.contains(",tag:"))
}

/// The same for a Secret's data, which may contain whole files, as generators put them there.
fn find_in_data(manifest: &Value) -> Option<String> {
    let data = manifest["data"].as_object().filter(|_| manifest["kind"] == "Secret")?;
    let is_encrypted = |value: &Value| {
        let bytes = value
            .as_str()
            .and_then(|text| STANDARD.decode(text).ok())
            .unwrap_or_default();
        holds_encrypted(&String::from_utf8_lossy(&bytes))
    };
    data.iter()
        .find_map(|(key, value)| is_encrypted(value).then(|| format!(".data.{key}")))
}

#[cfg(test)]
#[path = "sops_tests.rs"]
mod tests;
