//! A prune that waits for an approval.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, object_ref::ObjectRef};

/// A prune that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldPrune {
    /// Digest of the plan. An approval must name it.
    pub digest: Digest,
    /// Why the prune waits, in one sentence.
    pub reason: String,
    /// Number of objects that the prune deletes.
    pub count: u32,
    /// The first ten objects that the prune deletes.
    pub objects: Vec<ObjectRef>,
    /// Contents of the namespaces and definitions among the objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Contents>,
    /// Whether the prune waits only for objects of the source that are not applied yet, and needs no approval.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub until_applied: bool,
    /// Digests of earlier plans with all these objects, newest last. Their approvals and proposals stay valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Digest>,
}

/// Objects that are deleted together with another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Contents {
    /// The namespace or definition.
    pub object: ObjectRef,
    /// Numbers by kind, the largest first. Only kinds that the service's account may list.
    pub counts: Vec<KindCount>,
    /// Number of kinds that could not be counted.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub unknown: u32,
}

/// Number of objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KindCount {
    /// Kind, as `Kind.group`.
    pub kind: String,
    /// Number of objects.
    pub count: u32,
}
