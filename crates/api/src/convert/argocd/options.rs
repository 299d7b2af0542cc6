//! Rendering options of an Application: Helm, Kustomize and folders of manifests.

use serde_json::{Map, Value, json};

use super::{
    super::{Fields, NotConverted, Told, clean_path, fields::malformed, merge_values, mounts::Mounts, patches},
    Input,
    origin::Origin,
};
use crate::path_pattern::alternatives;

/// Variables that Argo CD replaces in options.
const BUILD_VARIABLE: [&str; 2] = ["$ARGOCD_", "${ARGOCD_"];
/// Kinds to which a number of replicas applies.
const SCALED: &str = "Deployment|ReplicaSet|ReplicationController|StatefulSet";

/// Fields of one source other than its origin.
pub(super) struct Rendering {
    /// Renderer without its path. Empty: the folder determines it.
    pub renderer: Map<String, Value>,
    /// Patches for all rendered objects.
    pub patches: Vec<Value>,
}

/// Context of the options.
pub(super) struct Around<'a> {
    pub input: &'a Input<'a>,
    /// All sources of the Application.
    pub origins: &'a [Origin],
    /// The source with these options.
    pub origin: &'a Origin,
    /// The Application's name, which Helm uses for the release.
    pub release: Option<&'a str>,
    pub mounts: &'a mut Mounts,
}

pub(super) fn convert(
    fields: &mut Fields,
    around: &mut Around<'_>,
    told: &mut Told,
) -> Result<Rendering, NotConverted> {
    let mut rendering = Rendering {
        renderer: Map::new(),
        patches: Vec::new(),
    };
    let (helm, kustomize, directory) = (fields.map("helm")?, fields.map("kustomize")?, fields.map("directory")?);
    if !fields.map("plugin")?.is_empty() {
        let why = "a plugin is a program of Argo CD; install it for agents, as docs/renderers.md says, and name it in spec.renderers";
        return Err(NotConverted::impossible(fields.at("plugin"), why));
    }
    let is_chart = around.origin.chart.is_some();
    if is_chart || !helm.is_empty() {
        let options = of_helm(helm, around, told)?;
        rendering.renderer.insert("type".to_owned(), "Helm".into());
        rendering.renderer.insert("helm".to_owned(), options.into());
    } else if !kustomize.is_empty() {
        let options = of_kustomize(kustomize, &mut rendering.patches, told)?;
        rendering.renderer.insert("type".to_owned(), "Kustomize".into());
        if !options.is_empty() {
            rendering.renderer.insert("kustomize".to_owned(), options.into());
        }
    } else {
        of_directory(directory, &mut rendering.renderer, told)?;
    }
    Ok(rendering)
}

/// Options for plain manifests. Whether the folder holds any is not known here.
fn of_directory(mut directory: Fields, renderer: &mut Map<String, Value>, told: &mut Told) -> Result<(), NotConverted> {
    let path = directory.at("recurse");
    let is_stated = !directory.is_empty();
    let recurse = directory.flag("recurse")?;
    let mut options = Map::new();
    for field in ["include", "exclude"] {
        let Some(glob) = directory.text(field)?.filter(|glob| !glob.is_empty()) else {
            continue;
        };
        match patterns(&glob, recurse) {
            Some(patterns) => drop(options.insert(field.to_owned(), patterns.into())),
            None => told.lose(
                &directory.at(field),
                "is written as no pattern of .gitignore that fits the same files; state such ones in spec.renderers[].raw",
            ),
        }
    }
    let jsonnet = directory.map("jsonnet")?;
    if !jsonnet.is_empty() {
        told.lose(
            &jsonnet.path,
            "Jsonnet is rendered by a plugin of the agent, as docs/renderers.md says",
        );
    }
    directory.finish(told);
    if !is_stated {
        told.note(
            &path,
            "if the folder holds plain manifests, those of its subfolders are applied too; `farwater plan` shows it",
        );
        return Ok(());
    }
    renderer.insert("type".to_owned(), "Raw".into());
    if !recurse {
        options.insert("recurse".to_owned(), false.into());
    }
    if !options.is_empty() {
        renderer.insert("raw".to_owned(), options.into());
    }
    Ok(())
}

/// Patterns of `.gitignore` that match the same files as Argo CD's glob, in which `*` also matches slashes. None: there
/// are none, or none is known.
fn patterns(glob: &str, recurse: bool) -> Option<Vec<String>> {
    let one = |glob: &String| {
        if glob.is_empty() || glob.starts_with('/') || glob.contains(['[', ']', '?', '!', '#', '\\', ' ']) {
            return None;
        }
        let stars = glob.matches('*').count();
        let rooted = || Some(format!("/{glob}"));
        match stars {
            0 => rooted(),
            // Any file with this ending, at any depth.
            1 if glob.starts_with('*') && !glob.contains('/') => Some(glob.clone()),
            // All files of a folder.
            1 if glob.ends_with("/*") => rooted(),
            1 if !recurse && !glob.contains('/') => rooted(),
            _ => None,
        }
    };
    alternatives(glob).ok()?.iter().map(one).collect()
}

fn of_helm(mut helm: Fields, around: &mut Around<'_>, told: &mut Told) -> Result<Map<String, Value>, NotConverted> {
    let mut options = Map::new();
    match helm.text("releaseName")?.as_deref().or(around.release) {
        Some(name) => drop(options.insert("releaseName".to_owned(), name.into())),
        None => {
            let why = "the release is named after the Application, and has another name on each cluster; state one name for all";
            return Err(NotConverted::impossible(helm.at("releaseName"), why));
        }
    }
    let files = values_files(&mut helm, around, told)?;
    if !files.is_empty() {
        options.insert("valuesFiles".to_owned(), files.into());
    }
    let values = values(&mut helm, around, told)?;
    if !values.is_empty() {
        options.insert("values".to_owned(), values.into());
    }
    for (theirs, ours) in [
        ("ignoreMissingValueFiles", "ignoreMissingValuesFiles"),
        ("skipCrds", "skipCrds"),
        ("skipTests", "skipTests"),
        ("skipSchemaValidation", "skipSchemaValidation"),
    ] {
        if helm.flag(theirs)? {
            options.insert(ours.to_owned(), true.into());
        }
    }
    helm.pass(&["version"], "no counterpart: charts are rendered by Helm 4", told);
    helm.pass(
        &["passCredentials"],
        "is said by spec.passCredentials of the HelmRepository",
        told,
    );
    helm.lose(
        &["fileParameters"],
        "has no counterpart; state the file's content in a values file",
        told,
    );
    helm.lose(
        &["kubeVersion", "apiVersions"],
        "has no counterpart: charts see what the cluster has",
        told,
    );
    helm.lose(
        &["namespace"],
        "has no counterpart: charts see the service's target namespace",
        told,
    );
    helm.finish(told);
    Ok(options)
}

/// Values files of the chart, of its repository, and of other sources by their `ref`.
fn values_files(helm: &mut Fields, around: &mut Around<'_>, told: &mut Told) -> Result<Vec<Value>, NotConverted> {
    let path = helm.at("valueFiles");
    let mut files = Vec::new();
    for file in helm.texts("valueFiles")? {
        if has_variable(&file) || file.contains("://") || file.contains('*') {
            told.lose(
                &path,
                format!("{} is no file of a source by its name; name one", super::short(&file)),
            );
            continue;
        }
        let (origin, file) = match file.strip_prefix('$') {
            None => (around.origin, place(&around.origin.path, &file)),
            Some(named) => {
                let (name, file) = named.split_once('/').unwrap_or((named, ""));
                let origin = around
                    .origins
                    .iter()
                    .find(|origin| origin.name.as_deref() == Some(name))
                    .ok_or_else(|| {
                        NotConverted::impossible(&path, format!("${} is no ref of another source", super::short(name)))
                    })?;
                (origin, clean_path(file))
            }
        };
        let file = file.ok_or_else(|| NotConverted::impossible(&path, "one of them leads out of the repository"))?;
        // A chart's own files, and those of its folder.
        let own = &around.origin;
        let is_own = origin.reference == own.reference && origin.chart == own.chart;
        let below = if own.path.is_empty() {
            Some(file.as_str())
        } else {
            file.strip_prefix(own.path.as_str())
                .and_then(|rest| rest.strip_prefix('/'))
        };
        files.push(match below.filter(|_| is_own) {
            Some(below) => below.into(),
            None => around.mounts.file(&origin.reference, &file).into(),
        });
    }
    Ok(files)
}

/// Path relative to the folder or, with a leading `/`, to the root.
fn place(folder: &str, file: &str) -> Option<String> {
    if file.starts_with('/') {
        clean_path(file)
    } else {
        clean_path(&format!("{folder}/{file}"))
    }
}

/// Values in order of precedence, the highest last: a YAML text, a map, and single parameters.
fn values(helm: &mut Fields, around: &Around<'_>, told: &mut Told) -> Result<Map<String, Value>, NotConverted> {
    let mut values = Map::new();
    let path = helm.at("values");
    let text = helm.text("values")?;
    let object = helm.take("valuesObject");
    if let Some(text) = text.filter(|_| object.is_null()) {
        match (around.input.terms.yaml)(&text) {
            Ok(Value::Object(stated)) => values = stated,
            Ok(Value::Null) => {}
            Ok(_) => return Err(malformed(&path, "a map")),
            Err(why) => return Err(NotConverted::Malformed(format!("{path} can't be read: {why}"))),
        }
    }
    if let Value::Object(object) = object {
        values = object;
    }
    for mut parameter in helm.maps("parameters")? {
        let path = parameter.path.clone();
        let name = parameter.text("name")?.unwrap_or_default();
        let value = match parameter.take("value") {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let is_text = parameter.flag("forceString")?;
        parameter.finish(told);
        match set_parameter(&name, &value, is_text).filter(|_| !has_variable(&value)) {
            Some(one) => merge_values(&mut values, one),
            None => told.lose(
                &path,
                "names lists, or what Argo CD alone knows; state the values in values",
            ),
        }
    }
    Ok(values)
}

/// Helm's `--set name=value` as values. None: it addresses lists.
fn set_parameter(name: &str, value: &str, is_text: bool) -> Option<Map<String, Value>> {
    let mut keys: Vec<String> = vec![String::new()];
    let mut characters = name.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => keys.last_mut()?.push(characters.next()?),
            '.' => keys.push(String::new()),
            '[' | ']' | '{' | '}' | ',' | '=' => return None,
            c => keys.last_mut()?.push(c),
        }
    }
    if keys.iter().any(String::is_empty) || value.starts_with('{') {
        return None;
    }
    // As Helm parses the value of `--set`.
    let is_number = value == "0" || (!value.starts_with('0') && value.parse::<i64>().is_ok());
    let read = match value {
        text if is_text => json!(text),
        "true" => json!(true),
        "false" => json!(false),
        "null" => Value::Null,
        text if is_number => json!(text.parse::<i64>().ok()?),
        text => json!(text.replace("\\,", ",")),
    };
    let nested = keys
        .into_iter()
        .rev()
        .fold(read, |value, key| Value::from(Map::from_iter([(key, value)])));
    match nested {
        Value::Object(values) => Some(values),
        _ => None,
    }
}

fn has_variable(text: &str) -> bool {
    BUILD_VARIABLE.iter().any(|variable| text.contains(variable))
}

fn of_kustomize(
    mut kustomize: Fields,
    changes: &mut Vec<Value>,
    told: &mut Told,
) -> Result<Map<String, Value>, NotConverted> {
    let mut options = Map::new();
    for field in ["namePrefix", "nameSuffix"] {
        if let Some(text) = kustomize.text(field)? {
            options.insert(field.to_owned(), text.into());
        }
    }
    let images_path = kustomize.at("images");
    let mut images = Vec::new();
    for image in kustomize.texts("images")? {
        match read_image(&image).filter(|_| !has_variable(&image)) {
            Some(read) => images.push(read),
            None => told.lose(&images_path, format!("{} names no other image", super::short(&image))),
        }
    }
    let components = kustomize.texts("components")?;
    for (field, items) in [
        ("images", images),
        ("components", components.into_iter().map(Value::from).collect()),
    ] {
        if !items.is_empty() {
            options.insert(field.to_owned(), items.into());
        }
    }
    changes.extend(patches::convert(&mut kustomize, told)?);
    replicas(&mut kustomize, &options, changes, told)?;
    if let Some(namespace) = kustomize.text("namespace")? {
        changes.push(patches::of_namespace(&namespace));
        told.note(
            &kustomize.at("namespace"),
            "a patch puts objects there; accounts that bindings name, and Namespaces of the folder, stay as they are",
        );
    }
    common(&mut kustomize, changes, told)?;
    kustomize.pass(
        &["ignoreMissingComponents"],
        "no counterpart: a component that is missing is an error",
        told,
    );
    kustomize.pass(&["version"], "no counterpart: folders are built by Kustomize 5.8", told);
    kustomize.lose(
        &["kubeVersion", "apiVersions"],
        "has no counterpart: charts see what the cluster has",
        told,
    );
    kustomize.finish(told);
    Ok(options)
}

fn replicas(
    kustomize: &mut Fields,
    options: &Map<String, Value>,
    changes: &mut Vec<Value>,
    told: &mut Told,
) -> Result<(), NotConverted> {
    let affix = |name: &str| options.get(name).and_then(Value::as_str).unwrap_or_default();
    for mut replica in kustomize.maps("replicas")? {
        let path = replica.path.clone();
        let name = replica.text("name")?.unwrap_or_default();
        let count = match replica.take("count") {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        replica.finish(told);
        let Some(count) = count else {
            return Err(malformed(&format!("{path}.count"), "a number"));
        };
        let patch = json!([{"op": "add", "path": "/spec/replicas", "value": count}]).to_string();
        let name = format!("{}{name}{}", affix("namePrefix"), affix("nameSuffix")).replace('.', "\\.");
        changes.push(json!({"target": {"kind": SCALED, "name": name}, "patch": patch}));
        told.note(
            &path,
            "becomes a patch of the rendered objects: its target needs the rendered name",
        );
    }
    Ok(())
}

/// Labels and annotations of all objects. Those that also change selectors and pods cannot be expressed.
fn common(kustomize: &mut Fields, changes: &mut Vec<Value>, told: &mut Told) -> Result<(), NotConverted> {
    let mut texts = |name: &str| match kustomize.take(name) {
        Value::Object(texts) => texts,
        _ => Map::new(),
    };
    let (labels, annotations) = (texts("commonLabels"), texts("commonAnnotations"));
    let leaves_selectors = kustomize.flag("labelWithoutSelector")?;
    let reaches_templates = kustomize.flag("labelIncludeTemplates")?;
    let labels = if labels.is_empty() || (leaves_selectors && !reaches_templates) {
        labels
    } else {
        told.lose(
            &kustomize.at("commonLabels"),
            "changes selectors and pods too, which no patch of all objects does; state it in the kustomization",
        );
        Map::new()
    };
    if !annotations.is_empty() {
        told.lose(
            &kustomize.at("commonAnnotations"),
            "changes pods too, which no patch of all objects does; state it in the kustomization",
        );
    }
    kustomize.pass(
        &[
            "forceCommonLabels",
            "forceCommonAnnotations",
            "commonAnnotationsEnvsubst",
        ],
        "no counterpart",
        told,
    );
    changes.extend(patches::of_metadata(labels, Map::new()));
    Ok(())
}

/// `NAME=OTHER:TAG`, `NAME:TAG` or `NAME@DIGEST`, the formats of `kustomize edit set image`.
fn read_image(text: &str) -> Option<Value> {
    let (name, new) = match text.split_once('=') {
        Some((name, new)) => (Some(name), new),
        None => (None, text),
    };
    let (new, digest) = match new.split_once('@') {
        Some((new, digest)) => (new, Some(digest)),
        None => (new, None),
    };
    let (new, tag) = match new.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
        Some((new, tag)) => (new, Some(tag)),
        None => (new, None),
    };
    let mut image = Map::from_iter([("name".to_owned(), json!(name.unwrap_or(new)))]);
    if name.is_some_and(|name| name != new) {
        image.insert("newName".to_owned(), new.into());
    }
    if let Some(tag) = tag {
        image.insert("newTag".to_owned(), tag.into());
    }
    if let Some(digest) = digest {
        image.insert("digest".to_owned(), digest.into());
    }
    (image.len() > 1 && !new.is_empty()).then(|| image.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_helm_reads_them() {
        let check = |name: &str, value: &str, is_text: bool, expected: Value| {
            assert_eq!(
                set_parameter(name, value, is_text).map(Value::from).unwrap_or_default(),
                expected,
                "{name}={value}"
            );
        };
        check("image.tag", "1.2", false, json!({"image": {"tag": "1.2"}}));
        check("a\\.b/c.d", "true", false, json!({"a.b/c": {"d": true}}));
        check("a", "true", true, json!({"a": "true"}));
        check("a", "3", false, json!({"a": 3}));
        check("a", "0", false, json!({"a": 0}));
        check("a", "007", false, json!({"a": "007"}));
        check("a", "null", false, json!({"a": null}));
        check("a", "x\\,y", false, json!({"a": "x,y"}));
        for (name, value) in [("a[0].b", "x"), ("a", "{x,y}"), ("a..b", "x"), ("", "x"), ("a,b", "x")] {
            check(name, value, false, Value::Null);
        }
    }

    #[test]
    fn images_are_read_as_kustomize_reads_them() {
        for (text, image) in [
            ("nginx:1.27", json!({"name": "nginx", "newTag": "1.27"})),
            (
                "r.example.com:5000/a/b:2",
                json!({"name": "r.example.com:5000/a/b", "newTag": "2"}),
            ),
            (
                "nginx=r.example.com/nginx:1",
                json!({"name": "nginx", "newName": "r.example.com/nginx", "newTag": "1"}),
            ),
            (
                "nginx=r.example.com:5000/nginx",
                json!({"name": "nginx", "newName": "r.example.com:5000/nginx"}),
            ),
            ("nginx@sha256:ab", json!({"name": "nginx", "digest": "sha256:ab"})),
        ] {
            assert_eq!(read_image(text), Some(image), "{text}");
        }
        for text in ["nginx", "", "r.example.com:5000/a"] {
            assert_eq!(read_image(text), None, "{text}");
        }
    }
}
