//! Converts Flux's objects to ours.

mod helm_release;
mod kustomization;
mod source;
mod workload;

use serde_json::Value;

use super::{Converted, NotConverted, Terms, group_of, short, taken::Taken};

pub use source::{convert, is_flux_source};

const KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io";
const HELM: &str = "helm.toolkit.fluxcd.io";
/// Labels and annotations that name the owner of an object. The owner changes with the conversion.
const KEEPERS: [&str; 4] = [
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
    "reconcile.fluxcd.io/",
    "kubectl.kubernetes.io/",
];
const KEPT: &str = "it names Flux's field managers";

/// Converts each object of the input by itself, in order. An object may need others, wherever they are in the input.
pub fn convert_all(objects: &[Value], terms: &Terms) -> Vec<Result<Converted, NotConverted>> {
    let mut input = Input {
        objects,
        terms,
        taken: Taken::default(),
    };
    // Sources get their names first, because services refer to them.
    let sources: Vec<_> = objects
        .iter()
        .map(|object| is_flux_source(object).then(|| source::place(object, &mut input)))
        .collect();
    let each = objects.iter().zip(sources);
    each.map(|(object, source)| source.unwrap_or_else(|| convert_workload(object, &mut input)))
        .collect()
}

/// All objects, and the results so far.
struct Input<'a> {
    objects: &'a [Value],
    terms: &'a Terms,
    taken: Taken,
}

impl Input<'_> {
    /// Namespace of the hub for a namespace of the cluster.
    fn namespace<'n>(&'n self, theirs: &'n str) -> &'n str {
        self.terms.namespace.as_deref().unwrap_or(theirs)
    }
}

fn convert_workload(object: &Value, input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    match (group_of(object), object["kind"].as_str().unwrap_or_default()) {
        (KUSTOMIZE, "Kustomization") => kustomization::convert(object, input),
        (HELM, "HelmRelease") => helm_release::convert(object, input),
        (group, kind) if group.ends_with(".fluxcd.io") => Err(NotConverted::NoCounterpart {
            kind: short(kind),
            why: instead(group),
        }),
        _ => Err(NotConverted::Foreign("Flux")),
    }
}

fn instead(group: &str) -> &'static str {
    match group {
        "notification.toolkit.fluxcd.io" => {
            "NotificationProviders, NotificationRules and Receivers are stated otherwise"
        }
        "image.toolkit.fluxcd.io" => "images are updated in Git by other programs",
        _ => "it is none of Flux's sources, Kustomizations and HelmReleases",
    }
}
