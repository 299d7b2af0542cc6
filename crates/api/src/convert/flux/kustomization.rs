//! Converts Flux's Kustomization to a service.

use serde_json::{Map, Value, json};

use super::{
    super::{Converted, Fields, NotConverted, Told, clean_path, name_of, namespace_of, patches, service::Service},
    Input, workload,
};

/// Namespace for objects that name none. Flux refuses them.
const NO_NAMESPACE: &str = "default";

pub(super) fn convert(object: &Value, input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    let mut told = Told::default();
    let mut spec = Fields::new("spec", object["spec"].clone())?;
    if (namespace_of(object), name_of(object)) == ("flux-system", "flux-system") {
        told.lose(
            "spec.path",
            "this is what Flux itself is installed by, with its own objects; convert what those apply, and leave this one behind",
        );
    }
    // `commonMetadata` comes last, as in Flux.
    let mut service = workload::begin(object, &mut spec, input, &mut told)?;
    let last = std::mem::take(&mut service.patches);

    let reference = workload::source(spec.map("sourceRef")?, object, &service, input, &mut told)?;
    service.set("sourceRef", reference.to_json());
    let path = spec.text("path")?.unwrap_or_default();
    let Some(path) = clean_path(&path) else {
        return Err(NotConverted::impossible(
            spec.at("path"),
            "it leads out of the repository",
        ));
    };
    service.set("path", path);
    workload::depends_on(&mut spec, object, &mut service, input, &mut told)?;

    rendering(&mut spec, &mut service, &mut told)?;
    namespace(&mut spec, &mut service, &mut told)?;
    service.patches.extend(last);
    substitutions(&mut spec, &mut service, &mut told)?;
    applying(&mut spec, &mut service, &mut told)?;
    health(&mut spec, &mut told)?;
    decryption(spec.map("decryption")?, &mut told)?;
    spec.finish(&mut told);

    let mut objects = reference.copy;
    objects.push(service.into_object()?);
    Ok(told.with(objects))
}

/// Fields that change the rendered objects.
fn rendering(spec: &mut Fields, service: &mut Service, told: &mut Told) -> Result<(), NotConverted> {
    service.patches.extend(patches::convert_older(spec, told)?);
    service.patches.extend(patches::convert(spec, told)?);
    let mut options = Map::new();
    for field in ["namePrefix", "nameSuffix"] {
        if let Some(text) = spec.text(field)? {
            options.insert(field.to_owned(), text.into());
        }
    }
    for (field, items) in [
        ("images", patches::images(spec, told)?),
        (
            "components",
            spec.texts("components")?.into_iter().map(Value::from).collect(),
        ),
    ] {
        if !items.is_empty() {
            options.insert(field.to_owned(), items.into());
        }
    }
    spec.pass(
        &["ignoreMissingComponents"],
        "no counterpart: a component that is missing is an error",
        told,
    );
    if !options.is_empty() {
        let stated: Vec<String> = options.keys().map(|name| spec.at(name)).collect();
        told.note(
            &stated.join(", "),
            "need a kustomization.yaml in the folder; without one nothing is applied, and the service says so",
        );
        service.set("renderers", json!([{"kustomize": options}]));
    }
    Ok(())
}

/// Flux moves all objects into `targetNamespace`. Ours moves only objects that name no namespace.
fn namespace(spec: &mut Fields, service: &mut Service, told: &mut Told) -> Result<(), NotConverted> {
    let path = spec.at("targetNamespace");
    match spec.text("targetNamespace")? {
        Some(namespace) => {
            service.patches.push(patches::of_namespace(&namespace));
            told.note(
                &path,
                "a patch puts objects that name another namespace there too; accounts that bindings name, and Namespaces of the folder, stay \
                 as they are",
            );
            service.set("targetNamespace", namespace);
        }
        None => {
            told.note(
                &path,
                format!("{NO_NAMESPACE} is stated, for objects that name no namespace; Flux refuses those"),
            );
            service.set("targetNamespace", NO_NAMESPACE);
        }
    }
    Ok(())
}

/// Substitution in files. Our templates have their own syntax; only the values are converted for them.
fn substitutions(spec: &mut Fields, service: &mut Service, told: &mut Told) -> Result<(), NotConverted> {
    let mut build = spec.map("postBuild")?;
    if build.is_empty() {
        return Ok(());
    }
    told.lose(
        &build.path,
        "${...} in files is not replaced here; make templates of these files, as docs/templates.md says: configuration and \
         parameters of the service have the values",
    );
    let substitute = build.take("substitute");
    if substitute.as_object().is_some_and(|texts| !texts.is_empty()) {
        service.set("configuration", substitute);
    }
    let mut parameters = Vec::new();
    for mut from in build.maps("substituteFrom")? {
        let kind = from.text("kind")?.unwrap_or_default();
        let name = from.text("name")?.unwrap_or_default();
        let field = if kind == "Secret" { "secret" } else { "configMap" };
        told.note(
            &from.path,
            format!("{kind} {name} has to be in namespace {} of the hub", service.namespace),
        );
        from.pass(
            &["optional"],
            "no counterpart: without the object the service is held as it is",
            told,
        );
        from.finish(told);
        parameters.push(json!({"from": {field: name}}));
    }
    build.finish(told);
    if !parameters.is_empty() {
        service.set("parameters", parameters);
    }
    Ok(())
}

fn applying(spec: &mut Fields, service: &mut Service, told: &mut Told) -> Result<(), NotConverted> {
    service.set("prune", spec.flag("prune")?);
    let path = spec.at("deletionPolicy");
    if spec.text("deletionPolicy")?.as_deref() != Some("Orphan") {
        told.note(&path, workload::DELETION);
    }
    if spec.flag("force")? {
        service.apply.insert("immutable".to_owned(), "Recreate".into());
        told.note(
            &spec.at("force"),
            "objects that hold data or other objects are recreated only by their own annotation",
        );
    }
    let rules = spec.maps("driftIgnoreRules")?;
    workload::ignored(rules, service, told, |path, told| {
        told.lose(path, "can't be said here, and the fields would be put back; name objects without expressions, and fields through maps");
    })?;
    spec.pass(&["validation"], "no counterpart: the API server validates", told);
    Ok(())
}

fn health(spec: &mut Fields, told: &mut Told) -> Result<(), NotConverted> {
    spec.pass(
        &["healthChecks", "wait"],
        "no counterpart is needed: the health of every object counts",
        told,
    );
    spec.pass(
        &["healthCheckExprs"],
        "have other names than ours; state them in spec.health of the service, with `self.status` for `status`",
        told,
    );
    Ok(())
}

fn decryption(mut decryption: Fields, told: &mut Told) -> Result<(), NotConverted> {
    if decryption.is_empty() {
        return Ok(());
    }
    let path = decryption.path.clone();
    decryption.take("secretRef");
    decryption.take("serviceAccountName");
    match decryption.text("provider")?.as_deref() {
        None | Some("sops") => told.note(
            &path,
            "files have to be encrypted to the cluster's own key too, which `farwater cluster age-key` prints; one that it doesn't open is \
             an error of the service",
        ),
        Some(_) => return Err(NotConverted::impossible(path, "only files of SOPS are opened")),
    }
    decryption.finish(told);
    Ok(())
}
