//! Converts objects of Flux and Argo CD to ours.
//!
//! A converter takes each field of an object by its name ([`Fields`]). A field that no code takes becomes a loss, so no
//! field is dropped in silence. This includes fields that a later version of Flux or Argo CD adds.

pub mod argocd;
mod drift;
mod fields;
pub mod flux;
mod mounts;
mod patches;
mod service;
mod taken;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use crate::{ADMIN_NAMESPACE, GROUP, VERSION, names::is_object_name, service_deployment::ClusterReference};

use fields::Fields;

/// Input of the converters besides the objects: the user's options.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The objects' own cluster in the hub: the one that Flux or Argo CD runs in. None: not given.
    pub place: Option<Place>,
    /// Clusters of the hub by their names in the objects: kubeconfig Secrets of Flux, names and addresses of Argo CD's
    /// destinations.
    pub clusters: BTreeMap<String, ClusterReference>,
    /// Namespace of the hub for all results. None: the objects' own, or their project's.
    pub namespace: Option<String>,
    /// Suffix of each service's name.
    pub name_suffix: String,
    /// Service account of the cluster for ClusterGrants.
    pub service_account: String,
    /// Whether objects with losses count as converted.
    pub allow_losses: bool,
    /// Reads one document of YAML. The error is a sentence.
    pub yaml: fn(&str) -> Result<Value, String>,
}

/// Target of a service.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    Cluster(ClusterReference),
    /// All of these clusters, as a ServiceSet.
    Clusters(LabelSelector),
}

/// Objects of Farwater, with the fields that were left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// Objects, each after the ones it needs. Several conversions may need the same object.
    pub objects: Vec<Value>,
    /// Notes, one sentence each, that begins with the field.
    pub notes: Vec<String>,
    /// One sentence for each field whose loss changes what is applied.
    pub losses: Vec<String>,
}

/// Why an object is not converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotConverted {
    #[error("it is none of {0}'s objects")]
    Foreign(&'static str),
    /// Another object of the input covers it.
    #[error("{0}")]
    Covered(String),
    #[error("{kind} has no counterpart: {why}")]
    NoCounterpart { kind: String, why: &'static str },
    /// The result would skip a verification.
    #[error("spec.verify: {why}; without it, unsigned content would be served")]
    Verification { why: &'static str },
    /// A field that cannot be left out.
    #[error("{path}: {why}")]
    Impossible { path: String, why: String },
    #[error("it is not what its kind says: {0}")]
    Malformed(String),
}

impl NotConverted {
    /// Whether the object needs no replacement in Farwater.
    pub fn is_left_alone(&self) -> bool {
        matches!(self, Self::Foreign(_) | Self::Covered(_))
    }

    fn impossible(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Impossible {
            path: path.into(),
            why: why.into(),
        }
    }
}

/// Notes and losses of one object.
#[derive(Debug, Default)]
struct Told {
    notes: Vec<String>,
    losses: Vec<String>,
}

impl Told {
    fn note(&mut self, path: &str, what: impl AsRef<str>) {
        push_once(&mut self.notes, format!("{path}: {}", what.as_ref()));
    }

    fn lose(&mut self, path: &str, what: impl AsRef<str>) {
        push_once(&mut self.losses, format!("{path}: {}", what.as_ref()));
    }

    fn with(self, objects: Vec<Value>) -> Converted {
        Converted {
            objects,
            notes: self.notes,
            losses: self.losses,
        }
    }
}

fn push_once(all: &mut Vec<String>, told: String) {
    if !all.contains(&told) {
        all.push(told);
    }
}

/// Finds an object of the input by its name.
fn find<'a>(objects: &'a [Value], group: &str, kind: &str, namespace: &str, name: &str) -> Option<&'a Value> {
    objects.iter().find(|object| {
        object["kind"] == kind
            && group_of(object) == group
            && object["metadata"]["name"] == name
            && object["metadata"]["namespace"].as_str().unwrap_or_default() == namespace
    })
}

/// API group; empty for the core group.
fn group_of(object: &Value) -> &str {
    object["apiVersion"]
        .as_str()
        .and_then(|version| version.split_once('/'))
        .map_or("", |(group, _)| group)
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Shortens a text for messages: texts from a file may have any length.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

fn ours(kind: &str, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": metadata, "spec": spec})
}

/// Name, namespace, labels and annotations. Those with one of the prefixes are left out, for the reason `why`.
fn metadata(from: &Value, keepers: &[&str], why: &str, told: &mut Told) -> Map<String, Value> {
    let mut metadata = Map::new();
    for field in ["name", "namespace"] {
        if let Some(value) = from.get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    for field in ["labels", "annotations"] {
        let all = from[field].as_object().into_iter().flatten();
        let (gone, kept): (Vec<_>, Vec<_>) =
            all.partition(|(name, _)| keepers.iter().any(|keeper| name.starts_with(keeper)));
        for (name, _) in gone {
            told.note(&format!("metadata.{field}"), format!("{name} is left out: {why}"));
        }
        let kept: Map<String, Value> = kept
            .into_iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !kept.is_empty() {
            metadata.insert(field.to_owned(), kept.into());
        }
    }
    metadata
}

/// Normalises a path below the root of a repository: without `.`, `..` and empty parts. None: it leads outside.
fn clean_path(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Merges the values of `over` into those of `under`. Maps are merged, and other values replaced.
fn merge_values(under: &mut Map<String, Value>, over: Map<String, Value>) {
    for (name, value) in over {
        match (under.get_mut(&name), value) {
            (Some(Value::Object(under)), Value::Object(over)) => merge_values(under, over),
            (_, value) => drop(under.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_and_none_leads_outside() {
        for (path, clean) in [
            ("./apps//web/", "apps/web"),
            ("", ""),
            (".", ""),
            ("a/../b", "b"),
            ("/a", "a"),
        ] {
            assert_eq!(clean_path(path).as_deref(), Some(clean), "{path}");
        }
        assert_eq!(clean_path("a/../../b"), None);
    }

    #[test]
    fn values_are_merged_as_helm_does() {
        let mut under = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1}).as_object().unwrap().clone();
        merge_values(
            &mut under,
            json!({"a": {"c": [3]}, "d": {"e": null}}).as_object().unwrap().clone(),
        );
        assert_eq!(Value::from(under), json!({"a": {"b": 1, "c": [3]}, "d": {"e": null}}));
    }
}
