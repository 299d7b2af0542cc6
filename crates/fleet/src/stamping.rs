//! The service that a ServiceSet's template gives for one cluster.
//!
//! A cluster that lacks the input of a parameter gives a [`StampProblem`], never an empty text: its service stays as it
//! is.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{
    ADMIN_NAMESPACE, Digest, SET_LABEL, ServiceSetSpec,
    service_deployment::{ClusterReference, DeletionPolicy},
    service_set::{SetParameter, TemplateSpec},
};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    health::expression::{EvaluationError, Expression, Subject},
    parameters::ClusterInput,
    placement::selects,
};

/// Fields of a stamped service that people may change.
pub const FREE_FIELDS: [&str; 3] = ["suspend", "suspension", "pin"];
/// Kubernetes' limits for names of objects, and for values of labels.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
/// Most bytes of a parameter's text.
const MAX_TEXT: usize = 4096;
/// Hexadecimal digits of the hash that replaces a cut-off end.
const HASH: usize = 8;

/// An invalid field of a set's spec, whatever its clusters are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecProblem {
    /// Path below `spec`.
    pub field: String,
    pub why: String,
}

/// Why a set has no service for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StampProblem {
    #[error("parameter {parameter}: the cluster has no label {label}; label it, or state a default")]
    NoLabel { parameter: String, label: String },
    #[error("parameter {parameter}: its expression has no value here: {error}")]
    Expression { parameter: String, error: EvaluationError },
    #[error("parameter {parameter}: its text of {bytes} bytes is longer than {MAX_TEXT}")]
    TooLong { parameter: String, bytes: usize },
}

/// A parsed set, ready for many clusters.
pub struct Template<'s> {
    name: &'s str,
    spec: &'s ServiceSetSpec,
    parameters: Vec<(&'s SetParameter, From<'s>)>,
}

enum From<'s> {
    Value(&'s str),
    Label(&'s str),
    Expression(Expression),
}

/// The ServiceDeployment for one cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Stamped {
    pub name: String,
    /// The complete labels.
    pub labels: BTreeMap<String, String>,
    pub spec: Map<String, Value>,
}

impl<'s> Template<'s> {
    /// Parses a set. `name`: name of the set.
    pub fn read(name: &'s str, spec: &'s ServiceSetSpec) -> Result<Self, Vec<SpecProblem>> {
        let (mut parameters, mut problems, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (n, parameter) in spec.parameters.iter().enumerate() {
            let mut refuse = |field: &str, why: String| {
                problems.push(SpecProblem {
                    field: format!("parameters[{n}]{field}"),
                    why,
                });
            };
            if !names.insert(&parameter.name) {
                refuse(".name", format!("{:?} is stated twice", parameter.name));
            }
            match (&parameter.value, &parameter.from_label, &parameter.expression) {
                (Some(value), None, None) if parameter.default.is_none() => {
                    parameters.push((parameter, From::Value(value)));
                }
                (Some(_), None, None) => refuse(".default", "a value that is stated needs none".to_owned()),
                (None, Some(label), None) => parameters.push((parameter, From::Label(label))),
                (None, None, Some(text)) => match Expression::compile(text) {
                    Ok(expression) => parameters.push((parameter, From::Expression(expression))),
                    Err(error) => refuse(".expression", error.to_string()),
                },
                _ => refuse("", "state one of value, fromLabel and expression".to_owned()),
            }
        }
        if problems.is_empty() {
            Ok(Self { name, spec, parameters })
        } else {
            Err(problems)
        }
    }

    /// Labels of each of the set's services.
    pub fn labels(name: &str, spec: &ServiceSetSpec) -> BTreeMap<String, String> {
        let mut labels = spec.template.metadata.labels.clone();
        labels.insert(SET_LABEL.to_owned(), set_label(name));
        labels
    }

    /// Whether the set selects a cluster with these labels.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        selects(&self.spec.cluster_selector, labels)
    }

    pub fn stamp(&self, cluster: ClusterInput<'_>) -> Result<Stamped, StampProblem> {
        let variant = self
            .spec
            .overrides
            .iter()
            .find(|one| selects(&one.cluster_selector, cluster.labels));
        let template = &self.spec.template;
        let body = variant.map_or_else(|| template.spec.clone(), |one| template.spec.patched(&one.patch));
        let reference = ClusterReference {
            name: cluster.name.to_owned(),
            namespace: Some(cluster.namespace.to_owned()),
        };
        let mut spec = body.on(&reference, self.spec.deletion_policy);
        self.add_texts(&mut spec, cluster)?;
        let labels = Self::labels(self.name, self.spec);
        Ok(Stamped {
            name: service_name(self.name, cluster.name),
            labels,
            spec,
        })
    }

    fn add_texts(&self, spec: &mut Map<String, Value>, cluster: ClusterInput<'_>) -> Result<(), StampProblem> {
        if self.parameters.is_empty() {
            return Ok(());
        }
        let mut texts = spec
            .get("configuration")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        let seen = see(cluster);
        let subject = Subject::new(&seen);
        for (parameter, from) in &self.parameters {
            let found = match from {
                From::Value(value) => Ok((*value).to_owned()),
                From::Label(label) => cluster
                    .labels
                    .get(*label)
                    .cloned()
                    .ok_or_else(|| StampProblem::NoLabel {
                        parameter: parameter.name.clone(),
                        label: (*label).to_owned(),
                    }),
                From::Expression(expression) => expression.text(&subject).map_err(|error| StampProblem::Expression {
                    parameter: parameter.name.clone(),
                    error,
                }),
            };
            let text = found.or_else(|problem| parameter.default.clone().ok_or(problem))?;
            if text.len() > MAX_TEXT {
                return Err(StampProblem::TooLong {
                    parameter: parameter.name.clone(),
                    bytes: text.len(),
                });
            }
            texts.insert(parameter.name.clone(), text.into());
        }
        spec.insert("configuration".to_owned(), texts.into());
        Ok(())
    }

    /// The template and its variants by override, each with its path below `spec`.
    pub fn variants(spec: &ServiceSetSpec) -> impl Iterator<Item = (String, TemplateSpec)> {
        let plain = ("template.spec".to_owned(), spec.template.spec.clone());
        let others = spec.overrides.iter().enumerate();
        let others = others.map(|(n, one)| (format!("overrides[{n}].patch"), spec.template.spec.patched(&one.patch)));
        std::iter::once(plain).chain(others)
    }
}

/// A cluster as expressions see it.
fn see(cluster: ClusterInput<'_>) -> Value {
    let mut seen = json!({
        "name": cluster.name, "namespace": cluster.namespace, "labels": cluster.labels,
        "annotations": cluster.annotations, "metadata": cluster.metadata,
    });
    if let Some(version) = cluster.version {
        seen["version"] = version.into();
    }
    seen
}

/// The part of a service's spec that its set states: without the fields that people may change.
pub fn template_of(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|field, _| !FREE_FIELDS.contains(&field.as_str()));
    }
    spec
}

/// Digest of what a rollout delivers: [`template_of`] without the deletion policy, which takes effect at once.
pub fn template_digest(spec: &Value) -> Digest {
    let mut template = template_of(spec);
    if let Some(fields) = template.as_object_mut() {
        fields.insert("deletionPolicy".to_owned(), json!(DeletionPolicy::default()));
    }
    Digest::of_json(&template)
}

/// Value of the label [`SET_LABEL`] on a set's services.
pub fn set_label(set: &str) -> String {
    fit(set, MAX_LABEL)
}

/// Name of a set's service on a cluster.
pub fn service_name(set: &str, cluster: &str) -> String {
    fit(&format!("{set}-{cluster}"), MAX_NAME)
}

/// Cuts a name that is too long, and appends a hash of the whole.
fn fit(name: &str, limit: usize) -> String {
    if name.len() <= limit {
        return name.to_owned();
    }
    let hash = hex::encode(Sha256::digest(name));
    // Names are ASCII, and no dot or hyphen may precede the hyphen of the hash.
    let kept = name[..limit - HASH - 1].trim_end_matches(['.', '-']);
    format!("{kept}-{}", &hash[..HASH])
}

/// Namespaces in which clusters of a set may be: the set's own, and that of the administrators.
pub fn cluster_namespaces(set_namespace: &str) -> Vec<&str> {
    if set_namespace == ADMIN_NAMESPACE {
        vec![ADMIN_NAMESPACE]
    } else {
        vec![set_namespace, ADMIN_NAMESPACE]
    }
}

#[cfg(test)]
#[path = "stamping_tests.rs"]
mod tests;
