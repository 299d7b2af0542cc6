//! Patches and images of Kustomize.

use serde_json::{Map, Value, json};

use super::{Fields, NotConverted, Told};

const OF_A_TARGET: [&str; 7] = [
    "group",
    "version",
    "kind",
    "name",
    "namespace",
    "labelSelector",
    "annotationSelector",
];
/// A note for patches with a target: here, patches are the last step of rendering.
const NAMES_ARE_FINAL: &str =
    "are applied to the rendered objects: a target needs the rendered name, with prefixes and suffixes";

/// Inline `patches` of a kustomization.
pub(super) fn convert(fields: &mut Fields, told: &mut Told) -> Result<Vec<Value>, NotConverted> {
    let path = fields.at("patches");
    let mut patches = Vec::new();
    let mut is_by_name = false;
    for mut patch in fields.maps("patches")? {
        let mut made = Map::new();
        match patch.text("patch")? {
            Some(text) => drop(made.insert("patch".to_owned(), text.into())),
            None => {
                let why = "a patch in a file has no counterpart; state it in place of its path";
                return Err(NotConverted::impossible(patch.at("patch"), why));
            }
        }
        let target = target(patch.map("target")?, told)?;
        is_by_name |= target.get("name").is_some() || target.is_empty();
        if !target.is_empty() {
            made.insert("target".to_owned(), target.into());
        }
        patch.finish(told);
        patches.push(made.into());
    }
    if is_by_name {
        told.note(&path, NAMES_ARE_FINAL);
    }
    Ok(patches)
}

/// Fields of kustomizations that are older than `patches`: objects, and operations with a target.
pub(super) fn convert_older(fields: &mut Fields, told: &mut Told) -> Result<Vec<Value>, NotConverted> {
    let path = fields.at("patchesStrategicMerge");
    let mut patches = Vec::new();
    for patch in fields.list("patchesStrategicMerge")? {
        match patch {
            Value::Object(_) => patches.push(json!({"patch": patch.to_string()})),
            _ => {
                return Err(NotConverted::impossible(
                    &path,
                    "a patch in a file has no counterpart; state it in patches",
                ));
            }
        }
    }
    for name in ["patchesJson6902", "patchesJSON6902"] {
        for mut patch in fields.maps(name)? {
            let operations = patch.list("patch")?;
            let target = target(patch.map("target")?, told)?;
            patch.finish(told);
            patches.push(json!({"patch": Value::from(operations).to_string(), "target": target}));
        }
    }
    if !patches.is_empty() {
        told.note(&path, NAMES_ARE_FINAL);
    }
    Ok(patches)
}

fn target(mut fields: Fields, told: &mut Told) -> Result<Map<String, Value>, NotConverted> {
    let mut target = Map::new();
    for name in OF_A_TARGET {
        if let Some(text) = fields.text(name)? {
            target.insert(name.to_owned(), text.into());
        }
    }
    fields.finish(told);
    Ok(target)
}

/// A patch that sets labels and annotations of all objects.
pub(super) fn of_metadata(labels: Map<String, Value>, annotations: Map<String, Value>) -> Option<Value> {
    let mut metadata = Map::from_iter([("name".to_owned(), "any".into())]);
    for (field, texts) in [("labels", labels), ("annotations", annotations)] {
        if !texts.is_empty() {
            metadata.insert(field.to_owned(), texts.into());
        }
    }
    // With a target, name and kind do not identify an object.
    (metadata.len() > 1).then(|| {
        let patch = json!({"kind": "any", "metadata": metadata});
        json!({"target": {"kind": ".*"}, "patch": patch.to_string()})
    })
}

/// Sets the namespace of all namespaced objects, like a kustomization's field `namespace`. For Kustomize, a
/// cluster-scoped object has a namespace that begins with an underscore.
pub(super) fn of_namespace(namespace: &str) -> Value {
    let patch = json!([{"op": "add", "path": "/metadata/namespace", "value": namespace}]);
    json!({"target": {"namespace": "[a-z0-9].*"}, "patch": patch.to_string()})
}

/// `{name, newName, newTag, digest}`.
pub(super) fn images(fields: &mut Fields, told: &mut Told) -> Result<Vec<Value>, NotConverted> {
    let mut images = Vec::new();
    for mut image in fields.maps("images")? {
        let mut made = Map::new();
        for name in ["name", "newName", "newTag", "digest"] {
            if let Some(text) = image.text(name)? {
                made.insert(name.to_owned(), text.into());
            }
        }
        image.finish(told);
        images.push(made.into());
    }
    Ok(images)
}
