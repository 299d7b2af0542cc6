//! Builds a ServiceDeployment or ServiceSet.

use serde_json::{Map, Value, json};

use super::{NotConverted, Place, is_object_name, ours, short};

/// One service, for any target.
pub(super) struct Service {
    pub name: String,
    /// Namespace of the hub.
    pub namespace: String,
    pub metadata: Map<String, Value>,
    pub place: Place,
    /// The spec of a ServiceDeployment without `clusterRef` and `suspend`.
    pub spec: Map<String, Value>,
    /// Patches for all rendered objects, in order.
    pub patches: Vec<Value>,
    pub apply: Map<String, Value>,
    /// Why the service is suspended, and the field that says so. None if it is not.
    pub suspended: Option<(String, &'static str)>,
}

impl Service {
    pub fn new(metadata: Map<String, Value>, name: String, namespace: String, place: Place) -> Self {
        let (spec, apply) = (Map::new(), Map::new());
        Self {
            name,
            namespace,
            metadata,
            place,
            spec,
            patches: Vec::new(),
            apply,
            suspended: None,
        }
    }

    pub fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.spec.insert(field.to_owned(), value.into());
    }

    pub fn into_object(mut self) -> Result<Value, NotConverted> {
        if !self.patches.is_empty() {
            self.spec.insert("patches".to_owned(), self.patches.into());
        }
        if !self.apply.is_empty() {
            self.spec.insert("apply".to_owned(), self.apply.into());
        }
        let mut metadata = self.metadata;
        if !is_object_name(&self.name) {
            return Err(NotConverted::impossible(
                "metadata.name",
                format!("{} is no name of an object", short(&self.name)),
            ));
        }
        metadata.insert("name".to_owned(), self.name.into());
        metadata.insert("namespace".to_owned(), self.namespace.into());
        let mut spec = self.spec;
        match self.place {
            Place::Cluster(cluster) => {
                spec.insert("clusterRef".to_owned(), json!(cluster));
                if let Some((_, why)) = self.suspended {
                    spec.insert("suspend".to_owned(), true.into());
                    spec.insert("suspension".to_owned(), json!({"reason": why}));
                }
                Ok(ours("ServiceDeployment", metadata.into(), spec.into()))
            }
            Place::Clusters(selector) => {
                if let Some((path, _)) = self.suspended {
                    let why = "a ServiceSet can't be suspended as a whole, and would begin to deploy; convert it for one cluster";
                    return Err(NotConverted::impossible(path, why));
                }
                let mut template = Map::from_iter([("spec".to_owned(), spec.into())]);
                if let Some(labels) = metadata.get("labels") {
                    template.insert("metadata".to_owned(), json!({"labels": labels}));
                }
                Ok(ours(
                    "ServiceSet",
                    metadata.into(),
                    json!({"clusterSelector": selector, "template": template}),
                ))
            }
        }
    }
}
