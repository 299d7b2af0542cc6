//! Inputs of a service's digest, as `GET servicedeployments/NAME/digest` returns them.

use serde::{Deserialize, Serialize};

use crate::Digest;

/// Digests of the entry that the service's agent receives now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DigestReport {
    /// Digest of all inputs. The agent's reports name it.
    pub entry: Digest,
    /// Digest of the files' paths, modes and contents, before they are packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_id: Option<Digest>,
    /// Inputs, sorted by name.
    pub inputs: Vec<DigestInput>,
    /// Sources of the bundle, the service's own first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<DigestSource>,
}

/// A field of the entry. If it changes, the entry's digest changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestInput {
    /// Name in the entry, such as `targetNamespace`.
    pub name: String,
    /// Digest of the field alone.
    pub digest: Digest,
    /// For people: the value, or its beginning.
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DigestSource {
    /// `GitRepository infra`, `HelmRepository charts, chart web`, or the address of a repository that a chart names.
    pub source: String,
    pub revision: String,
    /// Folder of the source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Path at which the folder appears among the files.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_path: String,
    /// Whether a chart among the files depends on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dependency: bool,
}
