//! Converts Flux's sources to ours. Fields with the same meaning have the same names, so a field is copied if ours has
//! it. The others are reported.

use std::sync::LazyLock;

use kube_core::CustomResourceExt as _;
use serde_json::{Map, Value, json};

use super::{
    super::{Converted, NotConverted, Told, metadata, name_of, namespace_of, ours},
    Input, KEEPERS, KEPT,
};
use crate::{GitRepository, HelmRepository, OCIRepository, SourceKind};

/// API group of Flux's sources, in all versions.
pub const FLUX_GROUP: &str = "source.toolkit.fluxcd.io";
/// Flux's default provider.
const DEFAULT_PROVIDER: &str = "generic";
/// Flux's default branch; ours is another one.
const DEFAULT_BRANCH: &str = "master";
/// Fields that ours lack and that select no file: how a source is fetched, and who else may use it. Losing any other
/// field changes what is applied, or could.
const OF_THE_WAY: [&str; 5] = [
    "spec.accessFrom",
    "spec.certSecretRef",
    "spec.proxySecretRef",
    "spec.serviceAccountName",
    // With keys, Flux does not check an identity.
    "spec.verify.matchOIDCIdentity",
];
/// Advice for fields that ours lack.
const INSTEAD: [(&str, &str); 4] = [
    ("spec.ignore", "let services name folders with only their own files"),
    (
        "spec.include",
        "name the other repository in spec.sources of the services",
    ),
    (
        "spec.ref.semverFilter",
        "state a range that leaves out the other versions",
    ),
    ("spec.sparseCheckout", "let services name these folders"),
];
/// Whether an object is one of Flux's sources, convertible or not.
pub fn is_flux_source(object: &Value) -> bool {
    object["apiVersion"]
        .as_str()
        .is_some_and(|version| version.split('/').next() == Some(FLUX_GROUP))
}

/// Converts a GitRepository, HelmRepository or OCIRepository of Flux.
pub fn convert(object: &Value) -> Result<Converted, NotConverted> {
    if !is_flux_source(object) {
        return Err(NotConverted::Foreign("Flux"));
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    let no_counterpart = |why| NotConverted::NoCounterpart {
        kind: kind.chars().take(64).collect(),
        why,
    };
    let known = SourceKind::ALL
        .into_iter()
        .find(|known| known.as_str() == kind)
        .ok_or_else(|| {
            no_counterpart(match kind {
                "HelmChart" => "a chart is named by the service that needs it, in spec.chart",
                "Bucket" => "files come from Git, Helm or a registry",
                _ => "only repositories are sources",
            })
        })?;
    let mut told = Told::default();
    let mut spec = object["spec"].clone();
    check_verification(known, &spec)?;
    prepare(known, &mut spec, &mut told.notes);
    let schema = schema(known);
    let spec = keep(&spec, schema, "spec", &mut |path: &str| match is_decisive(path) {
        true => told.losses.push(lost(path)),
        false => told.notes.push(format!("{path}: has no counterpart and is left out")),
    });
    let metadata = metadata(&object["metadata"], &KEEPERS, KEPT, &mut told);
    let converted = ours(kind, metadata.into(), spec);
    read(known, &converted).map_err(|error| NotConverted::Malformed(error.to_string()))?;
    note_secrets(&converted["spec"], &mut told.notes);
    Ok(told.with(vec![converted]))
}

/// Converts a source of the input under its name in the hub.
pub(super) fn place(object: &Value, input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    let namespace = input.namespace(namespace_of(object)).to_owned();
    place_in(&namespace, object, input)
}

/// The same for a given namespace of the hub: that of a service that names the source.
pub(super) fn place_in(namespace: &str, object: &Value, input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    let mut converted = convert(object)?;
    for one in &mut converted.objects {
        if !namespace.is_empty() {
            one["metadata"]["namespace"] = namespace.into();
        }
        let kind = one["kind"].as_str().unwrap_or_default();
        let shown = format!("{kind} {}/{}", namespace_of(object), name_of(object));
        // Equal repositories of several namespaces become one.
        input
            .taken
            .claim((kind, namespace, name_of(one)), &one["spec"].to_string(), &shown)?;
    }
    Ok(converted)
}

/// A source with a verification that ours lack is not converted at all.
fn check_verification(kind: SourceKind, spec: &Value) -> Result<(), NotConverted> {
    let verify = &spec["verify"];
    if verify.is_null() {
        return Ok(());
    }
    if schema(kind)["properties"]["verify"].is_null() {
        return Err(NotConverted::Verification {
            why: "signatures of this kind are not verified",
        });
    }
    if kind == SourceKind::OciRepository {
        if verify["provider"].as_str().unwrap_or("cosign") != "cosign" {
            return Err(NotConverted::Verification {
                why: "only cosign's signatures are verified",
            });
        }
        if verify["secretRef"].is_null() {
            return Err(NotConverted::Verification {
                why: "signatures are verified with given keys only",
            });
        }
    }
    Ok(())
}

/// Rewrites fields that have another form here.
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
    // Flux's form before its first stable version.
    if kind == SourceKind::GitRepository && spec["verify"]["mode"] == "head" {
        spec["verify"]["mode"] = "HEAD".into();
    }
    // Flux uses the first of several.
    let order: &[&str] = match kind {
        SourceKind::GitRepository => &["commit", "name", "semver", "tag", "branch"],
        SourceKind::OciRepository => &["digest", "semver", "tag"],
        SourceKind::HelmRepository | SourceKind::ManagedNamespace => return,
    };
    let Some(stated) = spec.as_object_mut() else { return };
    let stated = stated.entry("ref").or_insert(Value::Null);
    if let Some(fields) = stated.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && value.as_str().is_none_or(|text| !text.is_empty()));
    }
    if kind == SourceKind::GitRepository && (stated.is_null() || *stated == json!({})) {
        *stated = json!({"branch": DEFAULT_BRANCH});
        notes.push(format!(
            "spec.ref.branch: {DEFAULT_BRANCH} is stated, as Flux follows it unasked"
        ));
    }
    let Some(fields) = stated.as_object_mut() else { return };
    if let Some(first) = order.iter().find(|name| fields.contains_key(**name)) {
        for other in order.iter().filter(|other| *other != first) {
            if fields.remove(*other).is_some() {
                notes.push(format!("spec.ref.{other}: left out, since {first} comes before it"));
            }
        }
    }
    if !fields.contains_key("semver") && fields.remove("semverFilter").is_some() {
        notes.push("spec.ref.semverFilter: left out, since no range is followed".to_owned());
    }
    if fields.is_empty() {
        *stated = Value::Null;
    }
}

fn is_decisive(path: &str) -> bool {
    !OF_THE_WAY.contains(&path)
}

fn lost(path: &str) -> String {
    let instead = INSTEAD.iter().find(|(field, _)| *field == path);
    let instead = instead.map(|(_, instead)| format!("; {instead}")).unwrap_or_default();
    format!("{path}: has no counterpart, and without it something else would be applied{instead}")
}

/// Keeps the fields that a schema has. The others become losses.
fn keep(value: &Value, schema: &Value, path: &str, tell: &mut impl FnMut(&str)) -> Value {
    let (Value::Object(fields), Some(properties)) = (value, schema["properties"].as_object()) else {
        return value.clone();
    };
    let mut kept = Map::new();
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let path = format!("{path}.{name}");
        match properties.get(name) {
            Some(schema) => drop(kept.insert(name.clone(), keep(value, schema, &path, tell))),
            None => tell(&path),
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
            notes.push(format!(
                "spec.{field}: Secret {name} has to be in the same namespace of the hub"
            ));
        }
    }
}

/// Schema of a kind's spec.
fn schema(kind: SourceKind) -> &'static Value {
    static SCHEMAS: LazyLock<[Value; 3]> = LazyLock::new(|| {
        [GitRepository::crd(), HelmRepository::crd(), OCIRepository::crd()].map(|crd| {
            let schema = crd.spec.versions.into_iter().next().and_then(|version| version.schema);
            let schema = serde_json::to_value(schema).unwrap_or_default();
            schema["openAPIV3Schema"]["properties"]["spec"].clone()
        })
    });
    SCHEMAS.get(kind as usize).unwrap_or(&Value::Null)
}

fn read(kind: SourceKind, object: &Value) -> Result<(), serde_json::Error> {
    match kind {
        SourceKind::GitRepository => serde_json::from_value::<GitRepository>(object.clone()).map(drop),
        SourceKind::HelmRepository => serde_json::from_value::<HelmRepository>(object.clone()).map(drop),
        SourceKind::OciRepository => serde_json::from_value::<OCIRepository>(object.clone()).map(drop),
        // Flux has no such kind.
        SourceKind::ManagedNamespace => Ok(()),
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

    fn check(kind: &str, spec: Value, expected: Value, notes: &[&str], losses: &[&str]) {
        let converted = convert(&flux(kind, spec)).unwrap();
        assert_eq!(converted.losses, losses);
        assert_eq!(converted.objects[0]["spec"], expected);
        assert_eq!(converted.objects[0]["apiVersion"], "farwater.dev/v1alpha1");
        assert_eq!(
            converted.objects[0]["metadata"],
            json!({"name": "apps", "namespace": "team-a", "labels": {"team": "a"}})
        );
        let first = "metadata.labels: kustomize.toolkit.fluxcd.io/name is left out: it names Flux's field managers";
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
                "spec.secretRef: Secret git has to be in the same namespace of the hub",
            ],
            &[
                "spec.sparseCheckout: has no counterpart, and without it something else would be applied; \
               let services name these folders",
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
            &[],
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
            &[],
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
                "spec.verify.secretRef: Secret keys has to be in the same namespace of the hub",
            ],
            &[
                "spec.ref.semverFilter: has no counterpart, and without it something else would be applied; \
               state a range that leaves out the other versions",
            ],
        );
    }

    #[test]
    fn what_flux_takes_for_granted_is_stated_and_what_it_ignores_is_no_loss() {
        for spec in [
            json!({"url": "https://h/a"}),
            json!({"url": "https://h/a", "ref": {"branch": ""}}),
        ] {
            let stated = json!({"url": "https://h/a", "ref": {"branch": "master"}});
            let note = "spec.ref.branch: master is stated, as Flux follows it unasked";
            check("GitRepository", spec, stated, &[note], &[]);
        }
        check(
            "OCIRepository",
            json!({"url": "oci://h/a", "ref": {"tag": "v1", "semverFilter": ".*"}}),
            json!({"url": "oci://h/a", "ref": {"tag": "v1"}}),
            &["spec.ref.semverFilter: left out, since no range is followed"],
            &[],
        );
        for spec in [
            json!({"url": "oci://h/a"}),
            json!({"url": "oci://h/a", "ref": {"tag": ""}}),
        ] {
            check("OCIRepository", spec, json!({"url": "oci://h/a"}), &[], &[]);
        }
        // A field that is unknown here.
        let converted = convert(&flux("HelmRepository", json!({"url": "https://h", "new": {"a": 1}}))).unwrap();
        assert!(
            converted.losses[0].starts_with("spec.new: has no counterpart"),
            "{converted:?}"
        );
    }

    #[test]
    fn what_would_not_be_verified_any_more_is_not_converted() {
        for verify in [
            json!({"provider": "notation", "secretRef": {"name": "x"}}),
            json!({"provider": "cosign", "matchOIDCIdentity": []}),
        ] {
            let object = flux("OCIRepository", json!({"url": "oci://h/a", "verify": verify}));
            assert!(
                matches!(convert(&object), Err(NotConverted::Verification { .. })),
                "{object}"
            );
        }
    }

    #[test]
    fn other_objects_are_named() {
        assert_eq!(
            convert(&json!({"apiVersion": "v1", "kind": "Secret"})),
            Err(NotConverted::Foreign("Flux"))
        );
        assert_eq!(convert(&json!("x")), Err(NotConverted::Foreign("Flux")));
        for kind in ["HelmChart", "Bucket", "ExternalArtifact"] {
            assert!(
                matches!(convert(&flux(kind, json!({}))), Err(NotConverted::NoCounterpart { .. })),
                "{kind}"
            );
        }
        assert!(matches!(
            convert(&flux("GitRepository", json!({"url": 1}))),
            Err(NotConverted::Malformed(_))
        ));
        assert!(matches!(
            convert(&flux("HelmRepository", json!({}))),
            Err(NotConverted::Malformed(_))
        ));
    }
}
