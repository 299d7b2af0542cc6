//! What a service's digest is made of: the answer of `GET servicedeployments/NAME/digest`.

use serde::{Deserialize, Serialize};

use crate::Digest;

/// Of the entry that the service's agent is given now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DigestReport {
    /// Over all inputs: what an agent's report speaks of.
    pub entry: Digest,
    /// Over the files' paths, modes and contents, before anything is packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_id: Option<Digest>,
    /// By their names.
    pub inputs: Vec<DigestInput>,
    /// What the bundle is made of, the service's own source first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<DigestSource>,
}

/// A field of the entry. Where it is another one, so is the entry's digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestInput {
    /// As the entry names it: `targetNamespace`.
    pub name: String,
    /// Of the field alone.
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
    /// Where it lies among the files.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_path: String,
    /// Some chart among the files depends on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dependency: bool,
}
