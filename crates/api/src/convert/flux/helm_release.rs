//! Converts Flux's HelmRelease to a service.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    super::{
        Converted, Fields, NotConverted, Told, clean_path, find, merge_values, mounts::Mounts, name_of, namespace_of,
        patches, service::Service,
    },
    Input, source,
    workload::{self, Reference},
};

/// Maximum length of a release name.
const MAX_RELEASE: usize = 53;

pub(super) fn convert(object: &Value, input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    let mut told = Told::default();
    let mut spec = Fields::new("spec", object["spec"].clone())?;
    let mut service = workload::begin(object, &mut spec, input, &mut told)?;
    let mut helm = Map::new();

    let reference = chart(&mut spec, object, &mut service, &mut helm, input, &mut told)?;
    workload::depends_on(&mut spec, object, &mut service, input, &mut told)?;
    let target = spec.text("targetNamespace")?;
    helm.insert(
        "releaseName".to_owned(),
        release_name(&mut spec, object, target.as_deref())?.into(),
    );
    service.set(
        "targetNamespace",
        target.unwrap_or_else(|| namespace_of(object).to_owned()),
    );
    values(&mut spec, object, &mut helm, input, &mut told)?;
    post_renderers(&mut spec, &mut helm, &mut told)?;

    drift(spec.map("driftDetection")?, &mut service, &mut told)?;
    actions(&mut spec, &mut service, &mut helm, &mut told)?;
    service.set("prune", true);
    told.note("spec.uninstall", workload::DELETION);
    spec.finish(&mut told);

    service.set("renderers", json!([{"type": "Helm", "helm": helm}]));
    let mut objects = reference.copy;
    objects.push(service.into_object()?);
    Ok(told.with(objects))
}

/// `chart.spec`, or the target of `chartRef`.
fn chart(
    spec: &mut Fields,
    object: &Value,
    service: &mut Service,
    helm: &mut Map<String, Value>,
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Reference, NotConverted> {
    let mut reference = spec.map("chartRef")?;
    let mut template = spec.map("chart")?;
    if reference.is_empty() {
        // Metadata of the HelmChart that Flux creates.
        template.take("metadata");
        let stated = template.map("spec")?;
        template.finish(told);
        return named_chart(stated, object, service, helm, input, told);
    }
    let kind = reference.text("kind")?.unwrap_or_default();
    let name = reference.text("name")?.unwrap_or_default();
    let namespace = reference
        .text("namespace")?
        .unwrap_or_else(|| namespace_of(object).to_owned());
    let path = reference.path.clone();
    reference.take("apiVersion");
    reference.finish(told);
    if kind == "HelmChart" {
        let Some(chart) = find(input.objects, source::FLUX_GROUP, "HelmChart", &namespace, &name) else {
            let why = format!("HelmChart {namespace}/{name} is not in the input, and names the chart; add it");
            return Err(NotConverted::impossible(path, why));
        };
        // The chart names its source in its own namespace.
        let chart = chart.clone();
        let stated = Fields::new(format!("{path}: spec"), chart["spec"].clone())?;
        return named_chart(stated, &chart, service, helm, input, told);
    }
    let stated = json!({"kind": kind, "name": name, "namespace": namespace});
    let reference = workload::source(Fields::new(path, stated)?, object, service, input, told)?;
    service.set("sourceRef", reference.to_json());
    Ok(reference)
}

fn named_chart(
    mut stated: Fields,
    object: &Value,
    service: &mut Service,
    helm: &mut Map<String, Value>,
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Reference, NotConverted> {
    if !stated.map("verify")?.is_empty() {
        return Err(NotConverted::Verification {
            why: "signatures of charts are not verified",
        });
    }
    let reference = workload::source(stated.map("sourceRef")?, object, service, input, told)?;
    service.set("sourceRef", reference.to_json());
    let chart = stated.text("chart")?.unwrap_or_default();
    let version = stated.text("version")?;
    let strategy = stated.text("reconcileStrategy")?;
    let folder = if reference.kind == "HelmRepository" {
        let version = version.unwrap_or_else(|| "*".to_owned());
        service.set("chart", json!({"name": chart, "version": version}));
        String::new()
    } else {
        let Some(folder) = clean_path(&chart) else {
            return Err(NotConverted::impossible(
                stated.at("chart"),
                "it leads out of the repository",
            ));
        };
        if strategy.as_deref() != Some("Revision") {
            let path = stated.at("reconcileStrategy");
            told.note(
                &path,
                "each change of the chart's files is delivered, also one without another version of the chart",
            );
        }
        service.set("path", folder.clone());
        folder
    };
    values_files(&mut stated, &folder, service, helm, told)?;
    stated.pass(
        &["interval", "suspend"],
        "no counterpart: the source has the interval",
        told,
    );
    stated.finish(told);
    Ok(reference)
}

/// In Flux, these files replace the chart's own `values.yaml`. Here they are added to it.
fn values_files(
    stated: &mut Fields,
    folder: &str,
    service: &mut Service,
    helm: &mut Map<String, Value>,
    told: &mut Told,
) -> Result<(), NotConverted> {
    let path = stated.at("valuesFiles");
    let mut files: Vec<String> = stated.text("valuesFile")?.into_iter().collect();
    files.extend(stated.texts("valuesFiles")?);
    if stated.flag("ignoreMissingValuesFiles")? {
        helm.insert("ignoreMissingValuesFiles".to_owned(), true.into());
    }
    if files.is_empty() {
        return Ok(());
    }
    let outside = || NotConverted::impossible(&path, "one of them leads out of the repository");
    let mut clean = files
        .iter()
        .map(|file| clean_path(file).ok_or_else(outside))
        .collect::<Result<Vec<_>, _>>()?;
    let own = if folder.is_empty() {
        "values.yaml".to_owned()
    } else {
        format!("{folder}/values.yaml")
    };
    if clean.first() == Some(&own) {
        clean.remove(0);
    } else {
        told.lose(
            &path,
            "come on top of the chart's own values.yaml here, and replace it in Flux; name that first",
        );
    }
    let mut mounts = Mounts::default();
    let reference = service.spec["sourceRef"].clone();
    let mut place = |file: &String| match below(file, folder) {
        Some(below) => Value::from(below),
        None => mounts.file(&reference, file).into(),
    };
    let named: Vec<Value> = clean.iter().map(&mut place).collect();
    let mounted = mounts.into_sources();
    if !mounted.is_empty() {
        service.set("sources", mounted);
    }
    if !named.is_empty() {
        helm.insert("valuesFiles".to_owned(), named.into());
    }
    Ok(())
}

/// Path of a file relative to a folder that contains it.
fn below<'a>(file: &'a str, folder: &str) -> Option<&'a str> {
    if folder.is_empty() {
        Some(file)
    } else {
        file.strip_prefix(folder)?.strip_prefix('/')
    }
}

/// Release name as Flux composes it: `[TARGET-]NAME`, cut with a hash at the end if it is too long.
fn release_name(spec: &mut Fields, object: &Value, target: Option<&str>) -> Result<String, NotConverted> {
    if let Some(name) = spec.text("releaseName")? {
        return Ok(name);
    }
    let name = match target {
        Some(namespace) => format!("{namespace}-{}", name_of(object)),
        None => name_of(object).to_owned(),
    };
    let hash = hex::encode(Sha256::digest(&name));
    Ok(match name.get(..MAX_RELEASE - 13) {
        Some(start) if name.len() > MAX_RELEASE => format!("{start}-{}", &hash[..12]),
        _ => name,
    })
}

/// Values of ConfigMaps in the input. The inline values take precedence.
fn values(
    spec: &mut Fields,
    object: &Value,
    helm: &mut Map<String, Value>,
    input: &Input<'_>,
    told: &mut Told,
) -> Result<(), NotConverted> {
    let mut values = Map::new();
    for mut from in spec.maps("valuesFrom")? {
        let path = from.path.clone();
        let kind = from.text("kind")?.unwrap_or_default();
        let name = from.text("name")?.unwrap_or_default();
        let key = from.text("valuesKey")?.unwrap_or_else(|| "values.yaml".to_owned());
        let is_placed = from.text("targetPath")?.is_some();
        from.take("optional");
        from.take("literal");
        from.finish(told);
        let map = if kind == "ConfigMap" && !is_placed {
            find(input.objects, "", "ConfigMap", namespace_of(object), &name)
        } else {
            None
        };
        match map.and_then(|map| map["data"][&key].as_str()) {
            Some(text) => match (input.terms.yaml)(text) {
                Ok(Value::Object(more)) => {
                    merge_values(&mut values, more);
                    told.note(&path, format!("values of ConfigMap {name} are stated as the input has them; later changes of it don't count"));
                }
                Ok(Value::Null) => {}
                Ok(_) => return Err(NotConverted::impossible(path, format!("{key} of ConfigMap {name} is no map"))),
                Err(why) => return Err(NotConverted::impossible(path, format!("{key} of ConfigMap {name} can't be read: {why}"))),
            },
            None => told.lose(
                &path,
                format!(
                    "values of {kind} {name} get into a chart by a values file that is a template, and spec.parameters of the service, as \
                     docs/helm.md says; those of a ConfigMap without targetPath also if it is in the input"
                ),
            ),
        }
    }
    if let Value::Object(inline) = spec.take("values") {
        merge_values(&mut values, inline);
    }
    if !values.is_empty() {
        helm.insert("values".to_owned(), values.into());
    }
    Ok(())
}

fn post_renderers(spec: &mut Fields, helm: &mut Map<String, Value>, told: &mut Told) -> Result<(), NotConverted> {
    let mut made = Vec::new();
    for mut renderer in spec.maps("postRenderers")? {
        let mut kustomize = renderer.map("kustomize")?;
        renderer.finish(told);
        let mut changes = patches::convert_older(&mut kustomize, told)?;
        changes.extend(patches::convert(&mut kustomize, told)?);
        let images = patches::images(&mut kustomize, told)?;
        kustomize.finish(told);
        let mut options = Map::new();
        for (field, items) in [("patches", changes), ("images", images)] {
            if !items.is_empty() {
                options.insert(field.to_owned(), items.into());
            }
        }
        if !options.is_empty() {
            made.push(json!({"kustomize": options}));
        }
    }
    if !made.is_empty() {
        helm.insert("postRenderers".to_owned(), made.into());
    }
    Ok(())
}

/// By default, Flux does not detect drift of releases.
fn drift(mut detection: Fields, service: &mut Service, told: &mut Told) -> Result<(), NotConverted> {
    let path = detection.path.clone();
    let mut mode = match detection.text("mode")?.as_deref() {
        Some("enabled") => "Correct",
        Some("warn") => "Report",
        _ => "Ignore",
    };
    let rules = detection.maps("ignore")?;
    detection.finish(told);
    let mut is_whole = true;
    workload::ignored(rules, service, told, |_, _| is_whole = false)?;
    if !is_whole {
        if mode == "Correct" {
            mode = "Report";
        }
        told.note(
            &format!("{path}.ignore"),
            "names fields that can't be ignored here: drift is reported, and not corrected, until spec.apply.drift says otherwise",
        );
    }
    if service.apply.contains_key("ignoreDifferences") {
        told.note(
            &format!("{path}.ignore"),
            "these fields are left as they are when a newer version is applied, too",
        );
    }
    // By default, changes by others are reverted.
    if mode != "Correct" {
        service.apply.insert("drift".to_owned(), mode.into());
    }
    Ok(())
}

/// Options for install, upgrade, test, rollback and uninstall.
fn actions(
    spec: &mut Fields,
    service: &mut Service,
    helm: &mut Map<String, Value>,
    told: &mut Told,
) -> Result<(), NotConverted> {
    let (mut install, mut upgrade) = (spec.map("install")?, spec.map("upgrade")?);
    decide_crds(&mut install, &mut upgrade, helm, told)?;
    for action in [&mut install, &mut upgrade] {
        if action.flag("disableSchemaValidation")? {
            helm.insert("skipSchemaValidation".to_owned(), true.into());
        }
    }
    if upgrade.flag("force")? {
        service.apply.insert("immutable".to_owned(), "Recreate".into());
        told.note(
            "spec.upgrade.force",
            "an object is recreated only where it can't be changed",
        );
    }
    upgrade.lose(
        &["preserveValues"],
        "values of an earlier release are nowhere kept; state all of them in values",
        told,
    );
    finish_action(install, told);
    finish_action(upgrade, told);

    decide_tests(spec.map("test")?, helm, told)?;
    spec.pass(
        &[
            "rollback",
            "uninstall",
            "maxHistory",
            "storageNamespace",
            "persistentClient",
            "waitStrategy",
        ],
        "no counterpart: no release is kept in the cluster, and the hub keeps the last 20 versions",
        told,
    );
    Ok(())
}

/// What becomes of the chart's definitions, for which Flux has a policy for each action and services have one flag.
fn decide_crds(
    install: &mut Fields,
    upgrade: &mut Fields,
    helm: &mut Map<String, Value>,
    told: &mut Told,
) -> Result<(), NotConverted> {
    let (on_install, on_upgrade) = (definitions(install)?, definitions(upgrade)?);
    match (on_install.as_str(), on_upgrade.as_str()) {
        ("Skip", "Skip" | "") => drop(helm.insert("skipCrds".to_owned(), true.into())),
        (_, "CreateReplace") => {}
        _ => told.note(
            "spec.upgrade.crds",
            "definitions of the chart's crds/ are upgraded with the chart; renderers[].helm.skipCrds leaves them out",
        ),
    }
    Ok(())
}

/// Reports the other options of `install` or `upgrade`, none of which has a counterpart.
fn finish_action(mut action: Fields, told: &mut Told) {
    action.lose(&["disableHooks"], "has no counterpart: hooks of charts run", told);
    action.pass(
        &["remediation", "strategy"],
        "no counterpart: a version that fails stays until another comes; `farwater rollback` goes back",
        told,
    );
    action.pass(
        &[
            "cleanupOnFail",
            "createNamespace",
            "disableOpenAPIValidation",
            "disableTakeOwnership",
            "disableWait",
            "disableWaitForJobs",
            "replace",
            "serverSideApply",
            "timeout",
        ],
        "no counterpart is needed: health is watched, failures are tried again, and namespaces are made",
        told,
    );
    action.finish(told);
}

/// Whether the chart's tests run.
fn decide_tests(mut test: Fields, helm: &mut Map<String, Value>, told: &mut Told) -> Result<(), NotConverted> {
    let filters = test.list("filters")?;
    if !test.flag("enable")? || !filters.is_empty() {
        helm.insert("skipTests".to_owned(), true.into());
    }
    if !filters.is_empty() {
        told.note(
            "spec.test.filters",
            "has no counterpart: no test of the chart runs, rather than all; spec.tests of the service can name some",
        );
    }
    test.pass(
        &["ignoreFailures"],
        "no counterpart: a test that fails fails the version",
        told,
    );
    test.pass(&["timeout"], "no counterpart", told);
    test.finish(told);
    Ok(())
}

/// `crds`, or the older flag for the same.
fn definitions(action: &mut Fields) -> Result<String, NotConverted> {
    let skips = action.flag("skipCRDs")?;
    let stated = action.text("crds")?;
    Ok(stated.unwrap_or_else(|| if skips { "Skip".to_owned() } else { String::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_called_as_flux_calls_them() {
        let named = |name: &str, spec: Value, target: Option<&str>| {
            let object = json!({"metadata": {"name": name}});
            release_name(&mut Fields::new("spec", spec).unwrap(), &object, target).unwrap()
        };
        assert_eq!(named("web", json!({}), None), "web");
        assert_eq!(named("web", json!({}), Some("shop")), "shop-web");
        assert_eq!(named("web", json!({"releaseName": "x"}), Some("shop")), "x");
        let long = named(&"a".repeat(60), json!({}), None);
        assert_eq!(long.len(), MAX_RELEASE);
        assert!(long.starts_with(&format!("{}-", "a".repeat(40))), "{long}");
    }
}
