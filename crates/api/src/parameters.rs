//! Parameters: the values that a service's templates see, and where they come from.
//!
//! Templates see one document of four maps. The document travels like Secrets: sealed to the cluster's agent,
//! and named by a MAC.
//!
//! | name | contents |
//! |---|---|
//! | `configuration` | texts of the service's own `spec.configuration`, and of the ConfigMaps and Secrets that it names |
//! | `cluster` | `id`, `name`, `handle`, `namespace`, and the requested [`ClusterPart`]s |
//! | `contexts` | values of each ServiceContext that the service names, by its name |
//! | `service` | `name`, `namespace` (that of its objects) and `id` |

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum size of a service's whole document, in bytes of JSON. With the data that an agent keeps beside it, it fits
/// one Secret.
pub const MAX_PARAMETERS_BYTES: usize = 256 << 10;
/// Maximum size of all objects that a service takes values from, in bytes: the hub reads them whole.
pub const MAX_SOURCE_BYTES: usize = 16 << 20;
/// Maximum size of a service's own `spec.configuration`, in bytes of JSON: every list of services contains it.
pub const MAX_CONFIGURATION_BYTES: usize = 32 << 10;
/// Maximum number of names in a free-form map, and in a service's own configuration.
pub const MAX_NAMES: usize = 512;
/// Maximum depth of lists and maps in a free-form map.
pub const MAX_DEPTH: usize = 16;
/// Maximum size of a Cluster's `spec.metadata`, in bytes of JSON.
pub const MAX_METADATA_BYTES: usize = 32 << 10;

/// Values of one object that a service receives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Parameter {
    /// Object with the values.
    pub from: ParameterSource,
    /// Keys to receive. Empty: all keys, so that a change of any key changes the service's parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 316)))]
    pub keys: Vec<String>,
    /// Prefix for the names of a ConfigMap's or Secret's keys. Empty: no prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub prefix: Option<String>,
}

/// Object with values. Exactly one field is set; `backend` may be added to `secret`. Objects are in the service's own
/// namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParameterSource {
    /// Name of a ServiceContext. Templates see its values as `contexts.NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub context: Option<String>,
    /// Name of a ConfigMap. Templates see its keys in `configuration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub config_map: Option<String>,
    /// Name of a Secret. Templates see its keys in `configuration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub secret: Option<String>,
    /// With `secret`: name of the backend that holds it, from the hub's configuration. Empty: it is a Secret of the
    /// hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub backend: Option<String>,
    /// Name of a Secret in the cluster itself, in the service's target namespace. The agent reads it with the service's
    /// rights. `keys` is required, and templates see the keys in `configuration`. The hub never sees a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cluster_secret: Option<String>,
    /// Part of the service's own Cluster. Templates see it in `cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterPart>,
}

/// Parts of a Cluster that services can receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClusterPart {
    /// Its labels, as `cluster.labels` and `cluster.tags`.
    Labels,
    /// Its annotations, selected by `keys`.
    Annotations,
    /// Its `spec.metadata`.
    Metadata,
    /// Its Kubernetes version, as `cluster.version` and `cluster.currentVersion`.
    Version,
}

/// A Secret, or some of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Name of the Secret in the same namespace, or its name in the backend.
    #[schemars(length(min = 1, max = 1024))]
    pub name: String,
    /// Name of the backend that holds it, from the hub's configuration. Empty: it is a Secret of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub backend: Option<String>,
    /// Keys of the Secret. Empty: all keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)))]
    pub keys: Vec<String>,
}

/// Parameters that an agent receives, sealed to it: the plaintext behind the MAC of an entry.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// The document that templates see.
    pub values: Map<String, Value>,
    /// JSON pointers (RFC 6901) into `values` of the secret values, which no output shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret: Vec<String>,
    /// Values that the agent adds to `configuration` before it renders anything. They are secret too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_cluster: Vec<FromCluster>,
}

/// A key of a Secret in the cluster, in the service's target namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FromCluster {
    pub secret: String,
    pub key: String,
    /// Name in `configuration`.
    pub name: String,
}

impl Parameters {
    /// Adds a value from the cluster.
    pub fn fill(&mut self, name: &str, text: String) {
        let configuration = self.values.entry("configuration").or_insert_with(|| Map::new().into());
        if let Some(configuration) = configuration.as_object_mut() {
            configuration.insert(name.to_owned(), text.into());
        }
        self.secret.push(pointer(&["configuration", name]));
    }

    /// Replaces `configuration` values with promoted ones. An entry contains them, so they are not secret.
    pub fn promote(&mut self, texts: &BTreeMap<String, String>) {
        if texts.is_empty() {
            return;
        }
        let configuration = self.values.entry("configuration").or_insert_with(|| Map::new().into());
        let Some(configuration) = configuration.as_object_mut() else {
            return;
        };
        for (name, text) in texts {
            configuration.insert(name.clone(), text.clone().into());
            let at = pointer(&["configuration", name]);
            self.secret.retain(|secret| *secret != at);
        }
    }

    /// The values that are secret.
    pub fn secrets(&self) -> impl Iterator<Item = &Value> {
        self.secret.iter().filter_map(|pointer| {
            let name = pointer.strip_prefix('/')?.split('/').next()?;
            self.values.get(name)?.pointer(&pointer[1 + name.len()..])
        })
    }
}

/// A JSON pointer (RFC 6901).
pub fn pointer(path: &[&str]) -> String {
    path.iter()
        .map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1")))
        .collect()
}

/// Never printed, and never stored in plain text.
impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parameters").finish_non_exhaustive()
    }
}

/// Kind of the answer of `servicedeployments/NAME/parameters`.
pub const PARAMETERS_KIND: &str = "ServiceParameters";

/// Parameters of a service, as `servicedeployments/NAME/parameters` returns them: the origin of each value, and the
/// values that are not secret and that the caller may read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParametersAnswer {
    /// Problems because of which the service keeps its previous values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Size of the whole document in bytes.
    pub bytes: usize,
    /// Values, sorted by name.
    pub values: Vec<ParameterValue>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParameterValue {
    /// Name in templates: `configuration.host`, `contexts.network.domain`.
    pub name: String,
    pub origin: Origin,
    /// Whether the value is secret. It is set, and never shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secret: bool,
    /// The value. Absent: it is secret, or the caller may not read its object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Other objects with this name, whose values this one replaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instead_of: Vec<Origin>,
}

/// `kind` of the origin of a value from a Secret in the cluster.
pub const CLUSTER_SECRET: &str = "ClusterSecret";

/// Origin of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// `ServiceDeployment`, `ServiceContext`, `ConfigMap`, `Secret`, `Cluster`, [`CLUSTER_SECRET`], or `GitRepository`
    /// for promoted values.
    pub kind: String,
    pub name: String,
    /// Backend of a secret, if it is not the hub itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Key in the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// ServiceContext that names the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        if let Some(backend) = &self.backend {
            write!(f, " of backend {backend}")?;
        }
        if !self.key.is_empty() {
            write!(f, ", {}", self.key)?;
        }
        match &self.through {
            Some(context) => write!(f, ", by ServiceContext {context}"),
            None => Ok(()),
        }
    }
}

/// Keys of an object that differ between two of its states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedKeys {
    /// All keys, or unknown ones.
    Any,
    /// These keys. Empty: no key that a service can receive.
    Some(BTreeSet<String>),
}

/// Changed keys of an object of `kind` (`servicecontexts.farwater.dev`, `configmaps`, `secrets`,
/// `clusters.farwater.dev`). Services receive values of no other kind. Keys are those that [`Parameter::keys`] may
/// name. For a Cluster, the part comes first: `Labels/region`, and `Labels/*` for the whole part.
pub fn changed_keys(kind: &str, before: &Value, after: &Value) -> ChangedKeys {
    let (Some(before), Some(after)) = (content(kind, before), content(kind, after)) else {
        return ChangedKeys::Some(BTreeSet::new());
    };
    if before.whole != after.whole {
        return ChangedKeys::Any;
    }
    let differs = |key: &&String| before.keys.get(*key) != after.keys.get(*key);
    let mut changed: BTreeSet<String> = before
        .keys
        .keys()
        .chain(after.keys.keys())
        .filter(differs)
        .cloned()
        .collect();
    if kind == "clusters.farwater.dev" {
        let parts: Vec<String> = changed
            .iter()
            .filter_map(|key| Some(format!("{}/*", key.split_once('/')?.0)))
            .collect();
        changed.extend(parts);
    }
    ChangedKeys::Some(changed)
}

/// Values of an object that services can receive.
struct Content<'a> {
    /// Values that affect every key.
    whole: Vec<&'a Value>,
    keys: BTreeMap<String, Vec<&'a Value>>,
}

fn content<'a>(kind: &str, object: &'a Value) -> Option<Content<'a>> {
    let mut content = Content {
        whole: Vec::new(),
        keys: BTreeMap::new(),
    };
    let mut add = |prefix: &str, map: &'a Value| {
        for (key, value) in map.as_object().into_iter().flatten() {
            content.keys.entry(format!("{prefix}{key}")).or_default().push(value);
        }
    };
    match kind {
        "secrets" => add("", &object["data"]),
        "configmaps" => {
            add("", &object["data"]);
            add("", &object["binaryData"]);
        }
        "clusters.farwater.dev" => {
            add("Labels/", &object["metadata"]["labels"]);
            add("Annotations/", &object["metadata"]["annotations"]);
            add("Metadata/", &object["spec"]["metadata"]);
            content
                .keys
                .insert("Version/*".to_owned(), vec![&object["status"]["kubernetesVersion"]]);
        }
        "servicecontexts.farwater.dev" => {
            let spec = &object["spec"];
            add("", &spec["configuration"]);
            content.whole.push(&spec["sensitive"]);
            for reference in spec["secretRefs"].as_array().into_iter().flatten() {
                let picked: Vec<&str> = reference["keys"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                if picked.is_empty() {
                    content.whole.push(reference);
                }
                for key in picked {
                    content
                        .keys
                        .entry(key.to_owned())
                        .or_default()
                        .extend([&reference["name"], &reference["backend"]]);
                }
            }
        }
        _ => return None,
    }
    Some(content)
}

/// Depth of lists and maps.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Whether a name has a control character: terminals interpret them, and PostgreSQL stores no text with a NUL.
pub fn has_control(name: &str) -> bool {
    name.chars().any(char::is_control)
}

/// Describes what is wrong with a free-form map of at most `bytes` bytes, without quoting a value.
pub fn check_free_form(map: &Map<String, Value>, bytes: usize) -> Result<(), String> {
    if map.len() > MAX_NAMES {
        return Err(format!("has {} names; at most {MAX_NAMES} are taken", map.len()));
    }
    if map.keys().any(|name| has_control(name)) {
        return Err("has a name with a control character in it".to_owned());
    }
    let levels = 1 + map.values().map(depth).max().unwrap_or(0);
    if levels > MAX_DEPTH {
        return Err(format!("has {levels} levels; at most {MAX_DEPTH} are taken"));
    }
    let length = serde_json::to_vec(map).map_or(usize::MAX, |json| json.len());
    if length > bytes {
        return Err(format!("has {length} bytes as JSON; at most {bytes} are taken"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(kind: &str, before: Value, after: Value, expected: &[&str]) {
        let expected = match expected {
            ["*"] => ChangedKeys::Any,
            keys => ChangedKeys::Some(keys.iter().map(ToString::to_string).collect()),
        };
        assert_eq!(changed_keys(kind, &before, &after), expected, "{before} {after}");
    }

    #[test]
    fn keys_change_with_their_values_and_with_nothing_else() {
        let data = |data: Value| json!({"metadata": {"labels": data}, "data": data, "binaryData": {"z": "AA=="}});
        check(
            "secrets",
            data(json!({"a": "1", "b": "2"})),
            data(json!({"a": "1", "b": "3", "c": "4"})),
            &["b", "c"],
        );
        check("configmaps", data(json!({"a": "1"})), data(json!({})), &["a"]);
        check(
            "configmaps",
            json!({"data": {"a": "YQ=="}}),
            json!({"binaryData": {"a": "YQ=="}}),
            &[],
        );
        check(
            "secrets",
            json!({"data": {"a": "1"}}),
            json!({"data": {"a": "1"}, "type": "x"}),
            &[],
        );
        check("secrets", json!({}), json!({"data": {"a": null}}), &["a"]);
        check("roles", json!({"data": {"a": "1"}}), json!({}), &[]);
    }

    #[test]
    fn a_clusters_keys_have_their_part_before_them() {
        let before = json!({
            "metadata": {"labels": {"region": "eu"}, "annotations": {"region": "x"}}, "spec": {"metadata": {"vpc": 1}, "suspend": false},
            "status": {"kubernetesVersion": "v1.36.0", "agentVersion": "1"},
        });
        let mut after = before.clone();
        after["metadata"]["labels"]["region"] = json!("us");
        check(
            "clusters.farwater.dev",
            before.clone(),
            after.clone(),
            &["Labels/*", "Labels/region"],
        );
        after["spec"] = json!({"suspend": true});
        after["status"] = json!({"kubernetesVersion": "v1.36.1"});
        let expected = ["Labels/*", "Labels/region", "Metadata/*", "Metadata/vpc", "Version/*"];
        check("clusters.farwater.dev", before.clone(), after, &expected);
        let mut heard = before.clone();
        heard["status"]["agentVersion"] = json!("2");
        check("clusters.farwater.dev", before, heard, &[]);
    }

    #[test]
    fn a_context_changes_with_what_its_keys_come_from() {
        let context = |spec: Value| json!({"spec": spec});
        let kind = "servicecontexts.farwater.dev";
        let plain = context(json!({"configuration": {"a": {"b": [1]}, "c": 1}}));
        check(
            kind,
            plain.clone(),
            context(json!({"configuration": {"a": {"b": [2]}, "c": 1}})),
            &["a"],
        );
        let picked = |name: &str| {
            let picks = json!([{"name": name, "keys": ["x", "y"]}]);
            context(json!({"configuration": {"a": {"b": [1]}, "c": 1}, "secretRefs": picks}))
        };
        check(kind, plain.clone(), picked("one"), &["x", "y"]);
        check(kind, picked("one"), picked("two"), &["x", "y"]);
        // A reference to a whole Secret does not list its keys.
        let whole = context(json!({"configuration": {"a": {"b": [1]}, "c": 1}, "secretRefs": [{"name": "one"}]}));
        check(kind, plain.clone(), whole, &["*"]);
        let sensitive = context(json!({"configuration": {"a": {"b": [1]}, "c": 1}, "sensitive": true}));
        check(kind, plain, sensitive, &["*"]);
    }

    #[test]
    fn nothing_secret_is_printed() {
        let values = json!({"configuration": {"a": "hunter2", "b/c": "d"}})
            .as_object()
            .unwrap()
            .clone();
        let secret = vec!["/configuration/b~1c".to_owned()];
        let mut parameters = Parameters {
            values,
            secret,
            ..Parameters::default()
        };
        parameters.fill("e/f", "g".to_owned());
        assert_eq!(parameters.secrets().collect::<Vec<_>>(), ["d", "g"]);
        assert_eq!(format!("{parameters:?}"), "Parameters { .. }");
        let context: crate::ServiceContextSpec =
            serde_json::from_value(json!({"configuration": {"a": "hunter2"}})).unwrap();
        assert!(!format!("{context:?}").contains("hunter2"));
    }

    #[test]
    fn free_form_maps_are_bounded_and_their_values_not_quoted() {
        let map = |value: Value| value.as_object().unwrap().clone();
        assert_eq!(check_free_form(&map(json!({"a": {"b": [1, "x"]}})), 100), Ok(()));
        let mut deep = json!("hunter2");
        for _ in 0..MAX_DEPTH {
            deep = json!({"a": deep});
        }
        assert_eq!(check_free_form(&map(deep.clone()), 1000), Ok(()));
        let control = check_free_form(&map(json!({"a\u{0}": 1})), 1000).unwrap_err();
        assert_eq!(control, "has a name with a control character in it");
        let deep = check_free_form(&map(json!({"a": deep})), 1000).unwrap_err();
        assert_eq!(deep, "has 17 levels; at most 16 are taken");
        assert_eq!(
            check_free_form(&map(json!({"a": "hunter2"})), 5).unwrap_err(),
            "has 15 bytes as JSON; at most 5 are taken"
        );
        let many: Map<String, Value> = (0..=MAX_NAMES).map(|n| (n.to_string(), Value::Null)).collect();
        assert_eq!(
            check_free_form(&many, 1 << 20).unwrap_err(),
            "has 513 names; at most 512 are taken"
        );
    }
}
