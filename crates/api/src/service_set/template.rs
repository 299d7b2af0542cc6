//! The template of a set, and what differs between its clusters.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    ServiceDeploymentSpec, schemas,
    service_deployment::{ClusterReference, DeletionPolicy},
};

/// Fields of a service that the set determines, not the template: its cluster, its end, and actions of people on single
/// services.
pub(super) const OWN_FIELDS: [&str; 5] = ["clusterRef", "deletionPolicy", "suspend", "suspension", "pin"];

/// Template of a ServiceDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceTemplate {
    /// Metadata of each ServiceDeployment.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// The spec of each ServiceDeployment.
    pub spec: TemplateSpec,
}

/// Metadata of each ServiceDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels, in addition to `farwater.dev/set` with the set's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl TemplateMetadata {
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// The spec of a ServiceDeployment without the fields that the set determines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TemplateSpec(pub Map<String, Value>);

impl TemplateSpec {
    /// Applies an override's patch as a JSON merge patch (RFC 7396).
    pub fn patched(&self, patch: &Map<String, Value>) -> Self {
        let mut spec = self.clone();
        merge(&mut spec.0, patch);
        spec
    }

    /// The spec of the ServiceDeployment on one cluster.
    pub fn on(&self, cluster: &ClusterReference, policy: DeletionPolicy) -> Map<String, Value> {
        let mut spec = self.0.clone();
        spec.insert("clusterRef".to_owned(), json!(cluster));
        spec.insert("deletionPolicy".to_owned(), json!(policy));
        spec
    }
}

fn merge(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (field, change) in patch {
        match (change, target.get_mut(field)) {
            (Value::Null, _) => drop(target.remove(field)),
            (Value::Object(change), Some(Value::Object(known))) => merge(known, change),
            (Value::Object(change), _) => {
                let mut made = Map::new();
                merge(&mut made, change);
                target.insert(field.clone(), made.into());
            }
            (change, _) => drop(target.insert(field.clone(), change.clone())),
        }
    }
}

impl JsonSchema for TemplateSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ServiceTemplateSpec".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = ServiceDeploymentSpec::json_schema(generator);
        schema.insert("description".to_owned(), "The spec of each ServiceDeployment.".into());
        if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            fields.retain(|field, _| !OWN_FIELDS.contains(&field.as_str()));
        }
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|field| !OWN_FIELDS.iter().any(|own| field == own));
        }
        schema
    }
}

/// A value for each cluster: constant, from a label, or computed. Exactly one of `value`, `fromLabel` and `expression`
/// is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetParameter {
    /// Name in `configuration`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Constant value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub value: Option<String>,
    /// Key of a label of the Cluster whose value is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub from_label: Option<String>,
    /// CEL expression over `self`, the Cluster with `name`, `namespace`, `labels`, `annotations`, `metadata` and, once
    /// its agent has joined, `version`. Its value is a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub expression: Option<String>,
    /// Value if the cluster has no such label, or the expression has no value. Absent: such a cluster is an error and
    /// keeps the service that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub default: Option<String>,
}

/// A change of the template for some clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    /// Label selector for clusters. Empty: every cluster.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// JSON merge patch of `template.spec`: a null removes a field, and a list is replaced.
    #[schemars(schema_with = "schemas::free_form")]
    pub patch: Map<String, Value>,
}
