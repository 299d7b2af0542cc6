//! How the agent applies the objects of a service: policies that a service has and single objects override by annotation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Annotation on an object of a source: its wave, an integer; 0 without it. A wave begins when what is before it is healthy.
pub const WAVE: &str = "farwater.dev/wave";
/// Annotation on an object: `disabled` keeps it where it would be deleted, `confirm` has its deletion approved first.
pub const PRUNE: &str = "farwater.dev/prune";
/// Annotation on an object of a source: `Apply`, or `Replace` to write the object as a whole.
pub const METHOD: &str = "farwater.dev/method";
/// Annotation on an object of a source, as `spec.apply.adopt` of a ServiceDeployment.
pub const ADOPT: &str = "farwater.dev/adopt";
/// Annotation on an object of a source, as `spec.apply.conflicts` of a ServiceDeployment.
pub const CONFLICTS: &str = "farwater.dev/conflicts";
/// Annotation on an object of a source, as `spec.apply.drift` of a ServiceDeployment.
pub const DRIFT: &str = "farwater.dev/drift";
/// Annotation on an object of a source, as `spec.apply.immutable` of a ServiceDeployment.
pub const IMMUTABLE: &str = "farwater.dev/immutable";
/// Annotation on an object of a source: JSON pointers of fields that others may change, separated by commas.
pub const IGNORE_DIFFERENCES: &str = "farwater.dev/ignore-differences";
/// Annotation on an object of a source: a CEL expression that is true of the fields that others may change.
pub const IGNORE_EXPRESSION: &str = "farwater.dev/ignore-expression";
/// Annotation on an object of a source: field managers whose fields are theirs, separated by commas.
pub const IGNORE_MANAGERS: &str = "farwater.dev/ignore-managers";

/// How the objects of a service are applied. An object's own annotations come before these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyOptions {
    /// Whether objects that exist already and belong to no service become this service's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub adopt: AdoptPolicy,
    /// What becomes of fields that another field manager owns with another value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub conflicts: ConflictPolicy,
    /// What becomes of objects that others changed or deleted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drift: DriftMode,
    /// What becomes of an object whose change the API server refuses because a field of it can't be changed. Kinds that hold data or
    /// other objects are made anew only where their own annotation says so.
    #[serde(default, skip_serializing_if = "is_default")]
    pub immutable: ImmutablePolicy,
    /// Fields that others may change: no drift, and left as they are when the object is applied again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ignore_differences: Vec<IgnoreDifference>,
}

impl ApplyOptions {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AdoptPolicy {
    /// They become the service's as the source states them.
    #[default]
    Always,
    /// Only where applying changes nothing but our marks.
    IfNoDifference,
    /// They are refused and stay as they are.
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// The source wins; the object's report names who had the field.
    #[default]
    Force,
    /// The object is not applied, and its report names the other manager.
    Report,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftMode {
    /// Put back at once.
    #[default]
    Correct,
    /// Left as it is, and told.
    Report,
    /// Left as it is. Not called «Off», which YAML takes for a boolean.
    Ignore,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImmutablePolicy {
    /// It stays as it is, and the refusal is told.
    #[default]
    Report,
    /// It is deleted and recreated.
    Recreate,
}

/// Fields of some objects, named as in Argo CD. What is left out of `group`, `kind`, `namespace` and `name` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IgnoreDifference {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON pointers (RFC 6901) through maps: `/spec/replicas`. A list is named as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024), regex(pattern = "^/")))]
    pub json_pointers: Vec<String>,
    /// Field managers: what one of them owns is its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 128)))]
    pub managed_fields_managers: Vec<String>,
    /// CEL, asked about each field that the source states: true of those that others may change. `field` is its JSON pointer, as in
    /// `jsonPointers`, and `self` the object as the source states it; of a Secret its metadata alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub expression: Option<String>,
}
