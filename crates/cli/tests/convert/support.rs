//! Inputs and outputs as YAML.

use std::collections::BTreeMap;

use farwater_api::{
    convert::{Converted, NotConverted, Place, Terms},
    service_deployment::ClusterReference,
};
use farwater_bundle::yaml::{self, Budget};
use serde_json::Value;

pub fn documents(text: &str) -> Vec<Value> {
    let nodes = yaml::parse(text, &Budget::default()).unwrap();
    nodes.into_iter().map(|node| node.into_json().unwrap()).collect()
}

fn read_yaml(text: &str) -> Result<Value, String> {
    Ok(yaml::parse(text, &Budget::default())
        .map_err(|error| error.to_string())?
        .remove(0)
        .into_json()
        .unwrap())
}

/// Terms that send everything to `east`, with unchanged namespaces.
pub fn terms() -> Terms {
    Terms {
        place: Some(Place::Cluster(cluster("east"))),
        clusters: BTreeMap::new(),
        namespace: None,
        name_suffix: String::new(),
        service_account: "farwater".to_owned(),
        allow_losses: false,
        yaml: read_yaml,
    }
}

pub fn cluster(name: &str) -> ClusterReference {
    ClusterReference {
        name: name.to_owned(),
        namespace: None,
    }
}

/// The results of one conversion, one per object of the input.
#[derive(Debug)]
pub struct Outcome {
    pub results: Vec<Result<Converted, NotConverted>>,
}

impl Outcome {
    /// All converted objects without duplicates. The hub must accept each of them.
    #[track_caller]
    pub fn objects(&self) -> Vec<Value> {
        let mut objects: Vec<Value> = Vec::new();
        for object in self.results.iter().flatten().flat_map(|converted| &converted.objects) {
            assert_eq!(
                farwater_hub::apiserver::problems(object),
                Vec::<String>::new(),
                "{object}"
            );
            if !objects.contains(object) {
                objects.push(object.clone());
            }
        }
        objects
    }

    /// The spec of the last object of a kind.
    #[track_caller]
    pub fn spec(&self, kind: &str) -> Value {
        let objects = self.objects();
        let found = objects.iter().rfind(|object| object["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind}: {self:?}"))["spec"].clone()
    }

    pub fn losses(&self) -> Vec<&str> {
        self.results
            .iter()
            .flatten()
            .flat_map(|converted| &converted.losses)
            .map(String::as_str)
            .collect()
    }

    /// Checks that a note or a loss names a field.
    #[track_caller]
    pub fn assert_told(&self, text: &str) {
        let notes = self
            .results
            .iter()
            .flatten()
            .flat_map(|converted| converted.notes.iter().chain(&converted.losses));
        assert!(
            notes.into_iter().any(|note| note.contains(text)),
            "nothing of {text:?}: {self:#?}"
        );
    }

    /// The reason why the last object is not converted.
    #[track_caller]
    pub fn refusal(&self) -> String {
        self.results.last().unwrap().as_ref().unwrap_err().to_string()
    }
}
