//! Decrypts SOPS files with the key of a cluster: <https://getsops.io/docs/>.
//!
//! Supports the formats of repositories: YAML, JSON, dotenv and binary files, encrypted to age recipients of type
//! X25519 (<https://c2sp.org/age>), with the MAC over all values. The value itself shows whether it is encrypted. The
//! rules of a file (`encrypted_regex` and others) only say which values to encrypt when it is written, and a later
//! change of a value changes the MAC.
//!
//! The result is written from the verified values, and never from the file's text, so that later readers can't see
//! other values in it. It has no comments and not the file's layout.
//!
//! Pure: no files, sockets or clocks. An error names the position in the file and never a value.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod age;
mod bech32;
mod dotenv;
mod gcm;
mod json;
mod metadata;
mod scalar;
mod value;
mod yaml;

use zeroize::Zeroizing;

pub use age::{Identity, IdentityError};
pub use bech32::recipient;

use metadata::Metadata;
use value::{Map, Value, Walk, get};

/// Maximum size of a file, in bytes: room for a few Secrets, each of at most 1 MiB, in base64.
pub const MAX_FILE_BYTES: usize = 8 << 20;
/// Annotation of an object that stays encrypted, because another program of the cluster decrypts it.
pub const KEEP_ANNOTATION: &str = "farwater.dev/sops";
/// The only value of the annotation.
pub const KEEP: &str = "Keep";
/// Prefix of each encrypted value.
pub const ENCRYPTED: &str = "ENC[AES256_GCM,";

/// Format of a file. SOPS derives it from the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Yaml,
    Json,
    Dotenv,
    Ini,
    /// Any other file, in an envelope of JSON.
    Binary,
}

impl Format {
    fn of(name: &str) -> Self {
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
        match () {
            () if ends(&[".yaml", ".yml"]) => Self::Yaml,
            () if ends(&[".json"]) => Self::Json,
            () if ends(&[".env"]) => Self::Dotenv,
            () if ends(&[".ini"]) => Self::Ini,
            () => Self::Binary,
        }
    }

    fn suspects(self, bytes: &[u8]) -> bool {
        let line = |start: &str| begins_a_line(bytes, start.as_bytes());
        let begun = match self {
            Self::Yaml => line("sops:") || line("\"sops\":") || (starts_with_brace(bytes) && has(bytes, b"\"sops\"")),
            Self::Json | Self::Binary => starts_with_brace(bytes) && has(bytes, b"\"sops\""),
            Self::Dotenv => line("sops_mac="),
            Self::Ini => line("[sops]"),
        };
        begun && has(bytes, ENCRYPTED.as_bytes())
    }
}

fn has(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

fn begins_a_line(bytes: &[u8], what: &[u8]) -> bool {
    bytes.split(|byte| *byte == b'\n').any(|line| line.starts_with(what))
}

fn starts_with_brace(bytes: &[u8]) -> bool {
    bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// Why a SOPS file can't be decrypted. Errors have only positions and recipients, which the file has unencrypted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SopsError {
    #[error("the file has {0} bytes; the maximum is {MAX_FILE_BYTES}")]
    TooLarge(usize),
    #[error(
        "it is encrypted to {}, and to no key of this cluster: add the cluster's recipient and run `sops updatekeys`",
        listed(.0)
    )]
    NotOurs(Vec<String>),
    #[error(
        "it has no age recipient ({0}); only age keys are supported: add the cluster's recipient and run `sops updatekeys`"
    )]
    NoAge(String),
    #[error("it needs keys of several key groups (Shamir), which one cluster does not have: encrypt it with one group")]
    KeyGroups,
    #[error("its data key can't be decrypted ({0}): it was altered, or is from another file; run `sops updatekeys`")]
    DataKey(&'static str),
    #[error("its metadata has no usable {0}: encrypt the file with SOPS again")]
    Metadata(&'static str),
    #[error("{path} can't be decrypted: it was altered, or moved from another place or file")]
    Value { path: String },
    #[error("{path} {problem}")]
    Unusable { path: String, problem: &'static str },
    #[error(
        "its MAC does not match its values: the file was altered after its encryption; restore it, and change it with `sops edit`"
    )]
    Mac,
    #[error("it can't be read as {format}: {problem}")]
    Syntax { format: &'static str, problem: String },
    #[error("is an INI file, which is not supported; use YAML, JSON, dotenv or binary")]
    Ini,
}

impl SopsError {
    /// Whether the file is for other clusters. This is no error by itself, because a repository may have files for
    /// several clusters.
    pub fn is_for_others(&self) -> bool {
        matches!(self, Self::NotOurs(_) | Self::NoAge(_))
    }
}

fn listed(recipients: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = recipients
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if recipients.len() > SHOWN {
        text.push_str(&format!(" and {} more", recipients.len() - SHOWN));
    }
    text
}

/// A decrypted file.
pub struct Decrypted {
    pub bytes: Zeroizing<Vec<u8>>,
    /// The decrypted values as text. They must not leave the cluster.
    pub secrets: Vec<Zeroizing<String>>,
    /// The recipient whose key decrypted the file.
    pub recipient: String,
}

impl std::fmt::Debug for Decrypted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decrypted")
            .field("recipient", &self.recipient)
            .finish_non_exhaustive()
    }
}

/// Whether a file may be a SOPS file, by its name and its text. Cheap, because it runs for each file.
pub fn suspects(name: &str, bytes: &[u8]) -> bool {
    Format::of(name).suspects(bytes)
}

/// Decrypts a file. None: it is no SOPS file, or an annotation says that it stays encrypted.
///
/// `identities`: keys of one cluster, the present one first.
pub fn decrypt(name: &str, bytes: &[u8], identities: &[Identity]) -> Result<Option<Decrypted>, SopsError> {
    let format = Format::of(name);
    if !format.suspects(bytes) {
        return Ok(None);
    }
    if bytes.len() > MAX_FILE_BYTES {
        return Err(SopsError::TooLarge(bytes.len()));
    }
    let mut documents = match format {
        Format::Yaml => yaml::parse(text(bytes, "YAML")?)?,
        Format::Json => vec![json::parse(bytes)?],
        // A text may begin with a brace and be no JSON.
        Format::Binary => match json::parse(bytes) {
            Ok(map) => vec![map],
            Err(_) => return Ok(None),
        },
        Format::Dotenv => vec![dotenv::parse(bytes)?],
        Format::Ini => return Err(SopsError::Ini),
    };
    let metadata = match format {
        Format::Dotenv => metadata::take_flat(&mut documents),
        _ => metadata::take(&mut documents)?,
    };
    let Some(metadata) = metadata else { return Ok(None) };
    if documents.first().is_some_and(is_kept) {
        return Ok(None);
    }
    let metadata = Metadata::read(metadata)?;
    let (key, recipient) = metadata.open(identities)?;
    let mut walk = Walk::new(&key, metadata.mac_only_encrypted);
    let documents = documents
        .into_iter()
        .map(|map| walk.map(map))
        .collect::<Result<Vec<_>, _>>()?;
    let (mac, secrets) = walk.finish();
    if metadata.open_mac(&key)? != mac {
        return Err(SopsError::Mac);
    }
    let bytes = match format {
        Format::Yaml => yaml::write(&documents)?,
        Format::Json => json::write(&documents)?,
        Format::Dotenv => dotenv::write(&documents)?,
        Format::Binary => binary(documents)?,
        Format::Ini => return Err(SopsError::Ini),
    };
    Ok(Some(Decrypted {
        bytes,
        secrets,
        recipient,
    }))
}

fn text<'a>(bytes: &'a [u8], format: &'static str) -> Result<&'a str, SopsError> {
    let problem = |_| SopsError::Syntax {
        format,
        problem: "it is not UTF-8 text".to_owned(),
    };
    std::str::from_utf8(bytes).map_err(problem)
}

/// Whether the object says that it stays encrypted.
fn is_kept(document: &Map) -> bool {
    let Some(Value::Map(metadata)) = get(document, "metadata") else {
        return false;
    };
    let Some(Value::Map(annotations)) = get(metadata, "annotations") else {
        return false;
    };
    matches!(get(annotations, KEEP_ANNOTATION), Some(Value::Text(text)) if text.as_slice() == KEEP.as_bytes())
}

/// The value of an envelope.
fn binary(documents: Vec<Map>) -> Result<Zeroizing<Vec<u8>>, SopsError> {
    let data = documents.into_iter().flatten().find(|(key, _)| key == "data");
    match data {
        Some((_, Value::Text(bytes))) => Ok(bytes),
        _ => Err(SopsError::Unusable {
            path: "data".to_owned(),
            problem: "is not the text of a binary file",
        }),
    }
}
