//! Flux's sources as ours. Fields have Flux's names where they mean the same, so a field goes over if ours has it, and what does not
//! is named.

use std::sync::LazyLock;

use kube_core::CustomResourceExt as _;
use serde_json::{Map, Value, json};

use crate::{GROUP, GitRepository, HelmRepository, OCIRepository, SourceKind, VERSION};

/// The group of Flux's sources, in whatever version.
pub const FLUX_GROUP: &str = "source.toolkit.fluxcd.io";
/// What Flux says by leaving it out.
const DEFAULT_PROVIDER: &str = "generic";
/// Labels and annotations that say who keeps an object, which is another one now.
const OF_KEEPERS: [&str; 4] =
    ["kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", "reconcile.fluxcd.io/", "kubectl.kubernetes.io/"];

/// One of ours, and what it does not say any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    pub object: Value,
    /// A sentence each, beginning with the field.
    pub notes: Vec<String>,
}

/// Why an object is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotConverted {
    #[error("it is none of Flux's sources")]
    NotFlux,
    #[error("{kind} has no counterpart: {why}")]
    NoCounterpart { kind: String, why: &'static str },
    /// What was verified would not be.
    #[error("spec.verify: {why}; without it, what nobody has signed would be served")]
    Verification { why: &'static str },
    #[error("it is not what its kind says: {0}")]
    Malformed(String),
}

/// Whether an object is one of Flux's sources, convertible or not.
pub fn is_flux_source(object: &Value) -> bool {
    object["apiVersion"].as_str().is_some_and(|version| version.split('/').next() == Some(FLUX_GROUP))
}

/// A GitRepository, HelmRepository or OCIRepository of Flux as ours.
pub fn convert(object: &Value) -> Result<Converted, NotConverted> {
    if !is_flux_source(object) {
        return Err(NotConverted::NotFlux);
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    let no_counterpart = |why| NotConverted::NoCounterpart { kind: kind.chars().take(64).collect(), why };
    let known = SourceKind::ALL.into_iter().find(|known| known.as_str() == kind).ok_or_else(|| {
        no_counterpart(match kind {
            "HelmChart" => "a chart is named by the service that needs it, in spec.chart",
            "Bucket" => "files come from Git, Helm or a registry",
            _ => "only repositories are sources",
        })
    })?;
    let mut notes = Vec::new();
    let mut spec = object["spec"].clone();
    check_verification(known, &spec)?;
    prepare(known, &mut spec, &mut notes);
    let schema = schema(known);
    let spec = keep(&spec, &schema, "spec", &mut notes);
    let converted = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind,
        "metadata": metadata(&object["metadata"], &mut notes),
        "spec": spec,
    });
    read(known, &converted).map_err(|error| NotConverted::Malformed(error.to_string()))?;
    note_secrets(&converted["spec"], &mut notes);
    Ok(Converted { object: converted, notes })
}

/// What ours can't verify is not converted at all.
fn check_verification(kind: SourceKind, spec: &Value) -> Result<(), NotConverted> {
    let verify = &spec["verify"];
    if verify.is_null() {
        return Ok(());
    }
    if schema(kind)["properties"]["verify"].is_null() {
        return Err(NotConverted::Verification { why: "signatures of this kind are not verified" });
    }
    if kind == SourceKind::OciRepository {
        if verify["provider"].as_str().unwrap_or("cosign") != "cosign" {
            return Err(NotConverted::Verification { why: "only cosign's signatures are verified" });
        }
        if verify["secretRef"].is_null() {
            return Err(NotConverted::Verification { why: "signatures are verified with given keys only" });
        }
    }
    Ok(())
}

/// What means the same in another form.
fn prepare(kind: SourceKind, spec: &mut Value, notes: &mut Vec<String>) {
    if let Some(fields) = spec.as_object_mut() {
        match fields.remove("provider") {
            None => {}
            Some(Value::String(provider)) if provider == DEFAULT_PROVIDER => {}
            Some(provider) => {
                notes.push(format!(
                    "spec.provider: {provider} has no counterpart; name a Secret with credentials in spec.secretRef"
                ));
            }
        }
    }
    // As it was written before Flux's first version.
    if kind == SourceKind::GitRepository && spec["verify"]["mode"] == "head" {
        spec["verify"]["mode"] = "HEAD".into();
    }
    // Flux takes the first of several.
    let order: &[&str] = match kind {
        SourceKind::GitRepository => &["commit", "name", "semver", "tag", "branch"],
        SourceKind::OciRepository => &["digest", "semver", "tag"],
        SourceKind::HelmRepository => return,
    };
    let Some(fields) = spec["ref"].as_object_mut() else { return };
    fields.retain(|_, value| value.as_str().is_none_or(|text| !text.is_empty()));
    if let Some(first) = order.iter().find(|name| fields.contains_key(**name)) {
        for other in order.iter().filter(|other| *other != first) {
            if fields.remove(*other).is_some() {
                notes.push(format!("spec.ref.{other}: left out, since {first} comes before it"));
            }
        }
    }
}

fn metadata(from: &Value, notes: &mut Vec<String>) -> Value {
    let mut metadata = Map::new();
    for field in ["name", "namespace"] {
        if let Some(value) = from.get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    for field in ["labels", "annotations"] {
        let all = from[field].as_object().into_iter().flatten();
        let (gone, kept): (Vec<_>, Vec<_>) =
            all.partition(|(name, _)| OF_KEEPERS.iter().any(|keeper| name.starts_with(keeper)));
        for (name, _) in gone {
            notes.push(format!("metadata.{field}: {name} is left out: it says who kept the object of Flux"));
        }
        let kept: Map<String, Value> = kept.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        if !kept.is_empty() {
            metadata.insert(field.to_owned(), kept.into());
        }
    }
    metadata.into()
}

/// The fields that a schema has.
fn keep(value: &Value, schema: &Value, path: &str, notes: &mut Vec<String>) -> Value {
    let (Value::Object(fields), Some(properties)) = (value, schema["properties"].as_object()) else {
        return value.clone();
    };
    let mut kept = Map::new();
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let path = format!("{path}.{name}");
        match properties.get(name) {
            Some(schema) => drop(kept.insert(name.clone(), keep(value, schema, &path, notes))),
            None => notes.push(format!("{path}: has no counterpart and is left out")),
        }
    }
    kept.into()
}

fn note_secrets(spec: &Value, notes: &mut Vec<String>) {
    for (field, path) in [
        ("secretRef", "/secretRef/name"),
        ("certSecretRef", "/certSecretRef/name"),
        ("proxySecretRef", "/proxySecretRef/name"),
        ("verify.secretRef", "/verify/secretRef/name"),
    ] {
        if let Some(name) = spec.pointer(path).and_then(Value::as_str) {
            notes.push(format!("spec.{field}: Secret {name} has to be in the same namespace of the hub"));
        }
    }
}

/// The schema of a kind's spec.
fn schema(kind: SourceKind) -> &'static Value {
    static SCHEMAS: LazyLock<[Value; 3]> = LazyLock::new(|| {
        [GitRepository::crd(), HelmRepository::crd(), OCIRepository::crd()].map(|crd| {
            let schema = crd.spec.versions.into_iter().next().and_then(|version| version.schema);
            let schema = serde_json::to_value(schema).unwrap_or_default();
            schema["openAPIV3Schema"]["properties"]["spec"].clone()
        })
    });
    &SCHEMAS[kind as usize]
}

fn read(kind: SourceKind, object: &Value) -> Result<(), serde_json::Error> {
    match kind {
        SourceKind::GitRepository => serde_json::from_value::<GitRepository>(object.clone()).map(drop),
        SourceKind::HelmRepository => serde_json::from_value::<HelmRepository>(object.clone()).map(drop),
        SourceKind::OciRepository => serde_json::from_value::<OCIRepository>(object.clone()).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flux(kind: &str, spec: Value) -> Value {
        json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": kind,
            "metadata": {
                "name": "apps", "namespace": "team-a", "uid": "u", "resourceVersion": "1",
                "labels": {"team": "a", "kustomize.toolkit.fluxcd.io/name": "flux-system"},
            },
            "spec": spec,
            "status": {"artifact": {}},
        })
    }

    fn check(kind: &str, spec: Value, expected: Value, notes: &[&str]) {
        let converted = convert(&flux(kind, spec)).unwrap();
        assert_eq!(converted.object["spec"], expected);
        assert_eq!(converted.object["apiVersion"], "farwater.dev/v1alpha1");
        assert_eq!(
            converted.object["metadata"],
            json!({"name": "apps", "namespace": "team-a", "labels": {"team": "a"}})
        );
        let first =
            "metadata.labels: kustomize.toolkit.fluxcd.io/name is left out: it says who kept the object of Flux";
        let notes: Vec<_> = std::iter::once(first).chain(notes.iter().copied()).collect();
        let mut said = converted.notes.clone();
        said.sort();
        let mut notes: Vec<_> = notes.into_iter().map(str::to_owned).collect();
        notes.sort();
        assert_eq!(said, notes);
    }

    #[test]
    fn sources_go_over_with_the_fields_that_ours_have() {
        check(
            "GitRepository",
            json!({"url": "https://git.example.com/a.git", "interval": "1m0s", "ref": {"branch": "main", "commit": "abc"},
                   "secretRef": {"name": "git"}, "suspend": true, "provider": "generic", "sparseCheckout": ["a"]}),
            json!({"url": "https://git.example.com/a.git", "interval": "1m0s", "ref": {"commit": "abc"},
                   "secretRef": {"name": "git"}, "suspend": true}),
            &[
                "spec.ref.branch: left out, since commit comes before it",
                "spec.sparseCheckout: has no counterpart and is left out",
                "spec.secretRef: Secret git has to be in the same namespace of the hub",
            ],
        );
        check(
            "GitRepository",
            json!({"url": "ssh://git@git.example.com/a", "ref": {"name": "refs/pull/1/head"}, "recurseSubmodules": true,
                   "proxySecretRef": {"name": "proxy"}, "verify": {"mode": "head", "secretRef": {"name": "signers"}}}),
            json!({"url": "ssh://git@git.example.com/a", "ref": {"name": "refs/pull/1/head"}, "recurseSubmodules": true,
                   "proxySecretRef": {"name": "proxy"}, "verify": {"mode": "HEAD", "secretRef": {"name": "signers"}}}),
            &[
                "spec.proxySecretRef: Secret proxy has to be in the same namespace of the hub",
                "spec.verify.secretRef: Secret signers has to be in the same namespace of the hub",
            ],
        );
        check(
            "HelmRepository",
            json!({"url": "oci://ghcr.io/charts", "type": "oci", "interval": "10m", "passCredentials": true, "provider": "aws",
                   "accessFrom": {"namespaceSelectors": []}, "timeout": null}),
            json!({"url": "oci://ghcr.io/charts", "type": "oci", "interval": "10m", "passCredentials": true}),
            &[
                "spec.provider: \"aws\" has no counterpart; name a Secret with credentials in spec.secretRef",
                "spec.accessFrom: has no counterpart and is left out",
            ],
        );
        let oci = json!({"url": "oci://ghcr.io/apps", "interval": "5m", "ref": {"tag": "latest", "semver": "1.x", "semverFilter": ".*-rc"},
            "layerSelector": {"mediaType": "application/x", "operation": "copy"}, "insecure": true,
            "verify": {"provider": "cosign", "secretRef": {"name": "keys"}}});
        check(
            "OCIRepository",
            oci,
            json!({"url": "oci://ghcr.io/apps", "interval": "5m", "ref": {"semver": "1.x"},
                   "layerSelector": {"mediaType": "application/x", "operation": "copy"}, "insecure": true,
                   "verify": {"provider": "cosign", "secretRef": {"name": "keys"}}}),
            &[
                "spec.ref.tag: left out, since semver comes before it",
                "spec.ref.semverFilter: has no counterpart and is left out",
                "spec.verify.secretRef: Secret keys has to be in the same namespace of the hub",
            ],
        );
    }

    #[test]
    fn what_would_not_be_verified_any_more_is_not_converted() {
        for verify in [
            json!({"provider": "notation", "secretRef": {"name": "x"}}),
            json!({"provider": "cosign", "matchOIDCIdentity": []}),
        ] {
            let object = flux("OCIRepository", json!({"url": "oci://h/a", "verify": verify}));
            assert!(matches!(convert(&object), Err(NotConverted::Verification { .. })), "{object}");
        }
    }

    #[test]
    fn other_objects_are_named() {
        assert_eq!(convert(&json!({"apiVersion": "v1", "kind": "Secret"})), Err(NotConverted::NotFlux));
        assert_eq!(convert(&json!("x")), Err(NotConverted::NotFlux));
        for kind in ["HelmChart", "Bucket", "ExternalArtifact"] {
            assert!(matches!(convert(&flux(kind, json!({}))), Err(NotConverted::NoCounterpart { .. })), "{kind}");
        }
        assert!(matches!(convert(&flux("GitRepository", json!({"url": 1}))), Err(NotConverted::Malformed(_))));
        assert!(matches!(convert(&flux("HelmRepository", json!({}))), Err(NotConverted::Malformed(_))));
    }
}
