//! Converts an ApplicationSet: each item of its lists becomes a service, its clusters become a ServiceSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use super::{
    super::{Converted, Fields, NotConverted, Place, Told, fields::malformed, name_of, namespace_of},
    Input, SECRET_TYPE,
    application::{self, Given},
    template::{self, Unknown},
};

/// Maximum number of services from one ApplicationSet. A larger number counts as a mistake.
const MAX_VARIANTS: usize = 1000;
/// Advice if folders or files of a repository determine the Applications.
const GENERATE: &str = "which Applications there are is said by files that are not known here; give the Applications themselves, which `kubectl get \
     applications -A -o yaml` has and `argocd appset generate` prints";
/// Values that a cluster generator sets for each cluster.
const OF_A_CLUSTER: [&str; 5] = ["name", "nameNormalized", "server", "metadata", "project"];

/// Input for one Application, or for one per cluster.
#[derive(Clone, Default)]
struct Variant {
    parameters: Map<String, Value>,
    clusters: Option<LabelSelector>,
}

pub(super) fn convert(object: &Value, input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    let mut told = Told::default();
    let mut spec = Fields::new("spec", object["spec"].clone())?;
    let go = spec.flag("goTemplate")?;
    spec.take("goTemplateOptions");
    let generators = spec.maps("generators")?;
    let variants = generators
        .into_iter()
        .map(|generator| read_generator(generator, go, &mut told))
        .collect::<Result<Vec<_>, _>>()?
        .concat();
    let template = spec.take("template");
    if spec.text("templatePatch")?.is_some() {
        let why = "is text with a template's logic in it; give the Applications themselves, which `argocd appset generate` prints";
        return Err(NotConverted::impossible("spec.templatePatch", why));
    }
    policies(&mut spec, &mut told)?;
    spec.finish(&mut told);
    if variants.is_empty() {
        return Err(NotConverted::impossible("spec.generators", "they make no Application"));
    }
    if variants.len() > MAX_VARIANTS {
        return Err(NotConverted::impossible(
            "spec.generators",
            format!("they make more than {MAX_VARIANTS} Applications"),
        ));
    }

    let mut objects: Vec<Value> = Vec::new();
    let is_only = variants.len() == 1;
    for variant in variants {
        for made in build(object, template.clone(), variant, (go, is_only), input, &mut told)? {
            if !objects.contains(&made) {
                objects.push(made);
            }
        }
    }
    Ok(told.with(objects))
}

fn policies(spec: &mut Fields, told: &mut Told) -> Result<(), NotConverted> {
    let mut policy = spec.map("syncPolicy")?;
    policy.take("preserveResourcesOnDeletion");
    policy.pass(&["applicationsSync"], "no counterpart: services follow their set", told);
    policy.finish(told);
    spec.pass(
        &["strategy"],
        "is stated otherwise: a set has its own rollout, one cluster first and then a tenth at a time",
        told,
    );
    spec.pass(
        &[
            "ignoreApplicationDifferences",
            "preservedFields",
            "applyNestedSelectors",
        ],
        "no counterpart: suspend and pin of one service are free, all else is the set's",
        told,
    );
    Ok(())
}

fn read_generator(mut generator: Fields, go: bool, told: &mut Told) -> Result<Vec<Variant>, NotConverted> {
    let path = generator.path.clone();
    if !generator.map("selector")?.is_empty() {
        return Err(NotConverted::impossible(format!("{path}.selector"), GENERATE));
    }
    let (list, clusters, matrix) = (
        generator.take("list"),
        generator.take("clusters"),
        generator.take("matrix"),
    );
    let (has_list, has_clusters, has_matrix) = (!list.is_null(), !clusters.is_null(), !matrix.is_null());
    let variants = match (has_list, has_clusters, has_matrix) {
        (true, false, false) => read_list(Fields::new(format!("{path}.list"), list)?, told)?,
        (false, true, false) => vec![read_clusters(
            Fields::new(format!("{path}.clusters"), clusters)?,
            go,
            told,
        )?],
        (false, false, true) => read_matrix(Fields::new(format!("{path}.matrix"), matrix)?, go, told)?,
        _ => {
            return Err(NotConverted::impossible(path, GENERATE));
        }
    };
    if !generator.is_empty() {
        return Err(NotConverted::impossible(path, GENERATE));
    }
    Ok(variants)
}

fn read_list(mut list: Fields, told: &mut Told) -> Result<Vec<Variant>, NotConverted> {
    refuse_own_template(&mut list)?;
    if list.text("elementsYaml")?.is_some() {
        return Err(NotConverted::impossible(list.at("elementsYaml"), GENERATE));
    }
    let path = list.at("elements");
    let read = |element: Value| match element {
        Value::Object(parameters) => Ok(Variant {
            parameters,
            clusters: None,
        }),
        _ => Err(malformed(&path, "a list of maps")),
    };
    let variants = list.list("elements")?.into_iter().map(read).collect();
    list.finish(told);
    variants
}

/// Selects clusters by the labels of their Secrets. Our Clusters have labels of their own.
fn read_clusters(mut clusters: Fields, go: bool, told: &mut Told) -> Result<Variant, NotConverted> {
    refuse_own_template(&mut clusters)?;
    let path = clusters.at("selector");
    let selector = clusters.take("selector");
    let mut selector: LabelSelector = serde_json::from_value(if selector.is_null() { json!({}) } else { selector })
        .map_err(|_| malformed(&path, "a label selector"))?;
    if let Some(labels) = &mut selector.match_labels {
        labels.remove(SECRET_TYPE);
    }
    let is_empty = selector.match_labels.as_ref().is_none_or(|labels| labels.is_empty())
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    if is_empty {
        told.lose(
            &path,
            "it is every cluster that Argo CD knows, and here every one that the set's namespace may deploy to; select them by a label",
        );
    } else {
        told.note(
            &path,
            "labels are those of Clusters of the hub: give them the labels that Argo CD's cluster Secrets have",
        );
    }
    clusters.pass(&["flatList"], "no counterpart", told);
    let mut parameters = Map::new();
    let values = clusters.take("values");
    if values.is_object() {
        let mut filled = values.clone();
        let none = json!({});
        template::fill_all(&mut filled, go, &none, &clusters.at("values")).map_err(|unknown| differs(&unknown))?;
        for (name, value) in filled.as_object().into_iter().flatten() {
            parameters.insert(format!("values.{name}"), value.clone());
        }
        parameters.insert("values".to_owned(), filled);
    }
    clusters.finish(told);
    Ok(Variant {
        parameters,
        clusters: Some(selector),
    })
}

/// Combines each item of the first generator with each of the second. At most one of them selects clusters.
fn read_matrix(mut matrix: Fields, go: bool, told: &mut Told) -> Result<Vec<Variant>, NotConverted> {
    refuse_own_template(&mut matrix)?;
    let path = matrix.path.clone();
    let inner = matrix.maps("generators")?;
    matrix.finish(told);
    let mut all = vec![Variant::default()];
    for generator in inner {
        let next = read_generator(generator, go, told)?;
        let mut joined = Vec::new();
        for (first, second) in all
            .iter()
            .flat_map(|first| next.iter().map(move |second| (first, second)))
        {
            if first.clusters.is_some() && second.clusters.is_some() {
                return Err(NotConverted::impossible(path, GENERATE));
            }
            joined.push(Variant {
                parameters: template::join(&first.parameters, &second.parameters),
                clusters: first.clusters.clone().or_else(|| second.clusters.clone()),
            });
            if joined.len() > MAX_VARIANTS {
                return Err(NotConverted::impossible(
                    path,
                    format!("they make more than {MAX_VARIANTS} Applications"),
                ));
            }
        }
        all = joined;
    }
    Ok(all)
}

fn refuse_own_template(generator: &mut Fields) -> Result<(), NotConverted> {
    let path = generator.at("template");
    let template = generator.take("template");
    // Exports contain an empty one.
    let says_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(fields) => fields.values().all(|field| match field {
            Value::Object(fields) => fields.values().all(|field| *field == json!({}) || *field == json!("")),
            field => *field == json!({}) || *field == json!(""),
        }),
        _ => false,
    };
    if says_nothing(&template) {
        return Ok(());
    }
    Err(NotConverted::impossible(
        path,
        "a generator's own template has no counterpart; write an ApplicationSet of its own for it",
    ))
}

fn differs((path, Unknown(placeholder)): &(String, Unknown)) -> NotConverted {
    let first = placeholder
        .trim_start_matches('.')
        .split(['.', ' '])
        .next()
        .unwrap_or_default();
    let why = if OF_A_CLUSTER.contains(&first) {
        format!(
            "{{{{{placeholder}}}}} differs by cluster, and the template of a set is one for all: let files differ by parameters of the set, or make \
             one set for each value, with overrides"
        )
    } else {
        format!("{{{{{placeholder}}}}} has no value here; {GENERATE}")
    };
    NotConverted::impossible(path, why)
}

fn build(
    object: &Value,
    template: Value,
    variant: Variant,
    (go, is_only): (bool, bool),
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Vec<Value>, NotConverted> {
    let mut template = Fields::new("spec.template", template)?;
    let mut meta = template.take("metadata");
    let mut spec = template.take("spec");
    template.finish(told);
    let parameters = Value::from(variant.parameters);
    let stated = meta["name"].as_str().unwrap_or_default().to_owned();
    let place = variant.clusters.map(Place::Clusters);
    let name = if place.is_some() {
        place_each(&mut spec, go, told)?;
        let rest = without_cluster(&stated, go);
        if is_only {
            name_of(object).to_owned()
        } else {
            set_name(&rest, go, &parameters, name_of(object))?
        }
    } else {
        template::fill(&stated, go, &parameters)
            .map_err(|unknown| differs(&("spec.template.metadata.name".to_owned(), unknown)))?
    };
    let release = place.is_none().then(|| name.clone());
    meta["name"] = name.clone().into();
    template::fill_all(&mut spec, go, &parameters, "spec.template.spec").map_err(|unknown| differs(&unknown))?;
    fill_metadata(&mut meta, go, &parameters, told);
    let shown = format!("ApplicationSet {}/{}", namespace_of(object), name_of(object));
    let shown = if is_only { shown } else { format!("{shown}, {name}") };
    let given = Given {
        path: "spec.template.spec",
        shown,
        name,
        release,
        place,
    };
    application::build(&meta, spec, given, input, told)
}

/// Removes the generator's cluster from the destination, because the set names it. The other fields are the same on all
/// clusters.
fn place_each(spec: &mut Value, go: bool, told: &mut Told) -> Result<(), NotConverted> {
    let mut destination = Fields::new("spec.template.spec.destination", spec["destination"].take())?;
    let to = [destination.text("name")?, destination.text("server")?];
    let is_each = to
        .iter()
        .flatten()
        .all(|text| is_whole(text, go, &["name", "nameNormalized", "server"]));
    if !is_each || to.iter().flatten().count() != 1 {
        let why =
            "the clusters of the generator are not where the Applications go; a set's services go to its clusters";
        return Err(NotConverted::impossible(destination.path, why));
    }
    spec["destination"] = json!({"namespace": destination.text("namespace")?});
    destination.finish(told);
    Ok(())
}

/// Fills labels and annotations. Those that differ by cluster are no loss, because a service names its cluster.
fn fill_metadata(meta: &mut Value, go: bool, parameters: &Value, told: &mut Told) {
    for field in ["labels", "annotations"] {
        let Some(texts) = meta[field].as_object_mut() else {
            continue;
        };
        texts.retain(|name, text| {
            let filled = template::fill_all(text, go, parameters, name).is_ok() && !name.contains("{{");
            if !filled {
                told.note(
                    &format!("spec.template.metadata.{field}"),
                    format!("{} differs by cluster and is left out", super::short(name)),
                );
            }
            filled
        });
    }
}

/// Whether a text is exactly one of these placeholders.
fn is_whole(text: &str, go: bool, names: &[&str]) -> bool {
    let inner = text
        .trim()
        .strip_prefix("{{")
        .and_then(|text| text.strip_suffix("}}"))
        .map(str::trim);
    let name = inner.and_then(|inner| if go { inner.strip_prefix('.') } else { Some(inner) });
    name.is_some_and(|name| names.contains(&name))
}

/// A name without the parts that differ by cluster, with its other placeholders.
fn without_cluster(text: &str, go: bool) -> String {
    let mut left = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((inner, after)) = after.split_once("}}") else {
            break;
        };
        left.push_str(before);
        let placeholder = format!("{{{{{inner}}}}}");
        if !is_whole(&placeholder, go, &["name", "nameNormalized", "server"]) {
            left.push_str(&placeholder);
        }
        rest = after;
    }
    left.push_str(rest);
    left.replace("--", "-").trim_matches(['-', '.']).to_owned()
}

fn set_name(stated: &str, go: bool, parameters: &Value, set: &str) -> Result<String, NotConverted> {
    let name = template::fill(stated, go, parameters)
        .map_err(|unknown| differs(&("spec.template.metadata.name".to_owned(), unknown)))?;
    Ok(if name.is_empty() { set.to_owned() } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_called_as_its_applications_without_their_cluster() {
        for (text, go, name) in [
            ("{{name}}-guestbook", false, "guestbook"),
            ("guestbook-{{ .name }}-{{ .env }}", true, "guestbook-{{ .env }}"),
            ("{{name}}", false, ""),
        ] {
            assert_eq!(without_cluster(text, go), name, "{text}");
        }
    }
}
