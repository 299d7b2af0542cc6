//! Flux's sources as ours, field by field of Flux's definitions. No field is dropped without a message, and the hub
//! accepts the result.

use std::{collections::BTreeSet, fs};

use farwater_api::convert::{NotConverted, flux::convert};
use farwater_testkit::Tools;
use serde_json::{Value, json};

/// A spec with the required fields only.
fn base(kind: &str) -> Value {
    match kind {
        "GitRepository" => json!({"url": "https://git.example.com/apps", "interval": "1m", "ref": {"branch": "main"}}),
        "HelmRepository" => json!({"url": "https://charts.example.com", "interval": "1m"}),
        _ => json!({"url": "oci://registry.example.com/apps", "interval": "1m"}),
    }
}

/// Values that a field can have. For a text without rules: a meaningful one.
pub fn samples(path: &str, schema: &Value) -> Vec<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return values.clone();
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => vec![json!(true)],
        "object" => vec![filled(path, schema, &|_| true)],
        "array" => vec![json!([samples(&format!("{path}[]"), &schema["items"]).remove(0)])],
        _ => vec![json!(match path {
            "url" => return vec![],
            "interval" => "5m",
            "timeout" => "30s",
            "ref.commit" => "0123456789012345678901234567890123456789",
            "ref.name" => "refs/heads/main",
            "ref.semver" => "1.x",
            "ref.digest" => "sha256:0123456789012345678901234567890123456789012345678901234567890123",
            _ => "text",
        })],
    }
}

/// An object of a schema with the wanted and the required properties.
pub fn filled(path: &str, schema: &Value, is_wanted: &dyn Fn(&str) -> bool) -> Value {
    let required = |name: &str| {
        schema["required"]
            .as_array()
            .is_some_and(|names| names.contains(&json!(name)))
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    let chosen = properties.filter(|(name, _)| required(name) || is_wanted(name));
    chosen
        .map(|(name, schema)| (name.clone(), samples(&format!("{path}.{name}"), schema).remove(0)))
        .collect()
}

/// Collects each field below a schema: its path, and the whole spec with only this field added.
pub fn cases(prefix: &str, schema: &Value, lay: &dyn Fn(Value) -> Value, found: &mut Vec<(String, Value)>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        let around = |value: Value| {
            let mut object = if prefix.is_empty() {
                json!({})
            } else {
                filled(prefix, schema, &|_| false)
            };
            object[name] = value;
            lay(object)
        };
        if field["properties"].is_object() {
            cases(&path, field, &around, found);
        } else {
            found.extend(
                samples(&path, field)
                    .into_iter()
                    .map(|value| (path.clone(), around(value))),
            );
        }
    }
}

pub fn laid_over(mut spec: Value, over: &Value) -> Value {
    for (name, value) in over.as_object().unwrap() {
        spec[name] = value.clone();
    }
    spec
}

#[test]
fn each_field_of_fluxs_sources_is_kept_or_told() {
    let (mut seen, mut lost) = (BTreeSet::new(), BTreeSet::new());
    for path in Tools::find_all().unwrap().flux_crds() {
        let definition: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        if !["GitRepository", "HelmRepository", "OCIRepository"].contains(&kind) {
            continue;
        }
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let name = version["name"].as_str().unwrap();
            let schema = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            let mut found = Vec::new();
            cases("", schema, &|object| laid_over(base(kind), &object), &mut found);
            for (path, spec) in found {
                seen.insert(format!("{kind} {path}"));
                let case = format!("{kind} {name} {path}: {spec}");
                let pointer = format!("/spec/{}", path.replace('.', "/"));
                let object = json!({
                    "apiVersion": format!("source.toolkit.fluxcd.io/{name}"), "kind": kind,
                    "metadata": {"name": "apps", "namespace": "team-a"}, "spec": spec,
                });
                let converted = match convert(&object) {
                    Ok(converted) => converted,
                    // This is reported as an error, and nothing is converted.
                    Err(NotConverted::Verification { .. }) if path.starts_with("verify") => continue,
                    Err(other) => panic!("{case}: {other}"),
                };
                assert_eq!(
                    farwater_hub::apiserver::problems(&converted.objects[0]),
                    Vec::<String>::new(),
                    "{case}"
                );
                let about = |said: &String| said.starts_with(&format!("spec.{path}:"));
                let above = |said: &String| {
                    path.split_once('.')
                        .is_some_and(|(top, _)| said.starts_with(&format!("spec.{top}:")))
                };
                let told = |all: &[String]| all.iter().any(|said| about(said) || above(said));
                let kept = converted.objects[0].pointer(&pointer);
                let was = object.pointer(&pointer);
                // An old spelling, and the value that Flux uses if the field is missing.
                let means_the_same =
                    (path == "verify.mode" && was == Some(&json!("head")) && kept == Some(&json!("HEAD")))
                        || (path == "provider" && was == Some(&json!("generic")));
                assert!(
                    kept == was || means_the_same || told(&converted.notes) || told(&converted.losses),
                    "{case} is dropped in silence: {converted:?}"
                );
                if told(&converted.losses) {
                    lost.insert(format!("{kind} {path}"));
                }
            }
        }
    }
    assert!(seen.len() > 40, "{seen:?}");
    // Fields that decide what is applied.
    for decisive in [
        "GitRepository ignore",
        "GitRepository include",
        "GitRepository sparseCheckout",
        "OCIRepository ignore",
    ] {
        assert!(lost.contains(decisive), "{decisive}: {lost:?}");
    }
    // Alone, the filter chooses nothing; with a range it does.
    let filtered = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "OCIRepository", "metadata": {"name": "apps"},
        "spec": laid_over(base("OCIRepository"), &json!({"ref": {"semver": "1.x", "semverFilter": ".*-rc"}})),
    });
    assert!(convert(&filtered).unwrap().losses[0].starts_with("spec.ref.semverFilter:"));
}
