//! How the agent applies the objects of a service. The service sets policies; annotations override them for single
//! objects.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Annotation on an object of a source: its wave, an integer; 0 without it. A wave begins when the waves before it are
/// healthy.
pub const WAVE: &str = "farwater.dev/wave";
/// Annotation on an object: `disabled` keeps the object where it would be deleted; `confirm` requires an approval of
/// its deletion.
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
/// Annotation on an object of a source: a CEL expression that is true for fields that others may change.
pub const IGNORE_EXPRESSION: &str = "farwater.dev/ignore-expression";
/// Annotation on an object of a source: names of field managers that keep the fields they own, separated by commas.
pub const IGNORE_MANAGERS: &str = "farwater.dev/ignore-managers";

/// How the agent applies the objects of a service. An object's own annotations take precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyOptions {
    /// Whether the service takes over existing objects that belong to no service.
    #[serde(default, skip_serializing_if = "is_default")]
    pub adopt: AdoptPolicy,
    /// What happens to a field that another field manager owns with another value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub conflicts: ConflictPolicy,
    /// What happens to objects that others changed or deleted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drift: DriftMode,
    /// What happens when the API server refuses a change because a field is immutable. Kinds that hold data or other
    /// objects are recreated only if their own annotation says so.
    #[serde(default, skip_serializing_if = "is_default")]
    pub immutable: ImmutablePolicy,
    /// Fields that others may change. They are not drift, and keep their values when the object is applied again.
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
    /// The service takes the object over and applies it as the source has it.
    #[default]
    Always,
    /// The service takes the object over only if applying it changes nothing but our ownership marks.
    IfNoDifference,
    /// The agent refuses the object and leaves it as it is.
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// The source wins. The object's report names the previous owner of the field.
    #[default]
    Force,
    /// The agent does not apply the object. The object's report names the other manager.
    Report,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftMode {
    /// The agent restores the object at once.
    #[default]
    Correct,
    /// The agent leaves the object as it is, and reports the drift.
    Report,
    /// The agent leaves the object as it is. Not called `Off`, which YAML reads as a boolean.
    Ignore,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImmutablePolicy {
    /// The object stays as it is, and the agent reports the refusal.
    #[default]
    Report,
    /// The agent deletes the object and recreates it.
    Recreate,
}

/// Fields of some objects, named as in Argo CD. An empty `group`, `kind`, `namespace` or `name` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IgnoreDifference {
    /// API group of the objects. Empty: any group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind of the objects. Empty: any kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Namespace of the objects. Empty: any namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the object. Empty: any name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON pointers (RFC 6901) through maps, such as `/spec/replicas`. A pointer can name a list only as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024), regex(pattern = "^/")))]
    pub json_pointers: Vec<String>,
    /// Names of field managers. Fields owned by one of them keep that manager's values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 128)))]
    pub managed_fields_managers: Vec<String>,
    /// CEL expression that is evaluated for each field that the source sets, and is true for fields that others may
    /// change. `field` is the field's JSON pointer, as in `jsonPointers`. `self` is the object in the source; for a
    /// Secret, only its metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub expression: Option<String>,
}
