//! Converts Argo CD's objects to ours.

mod application;
mod application_set;
mod options;
mod origin;
mod project;
mod template;

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use serde_json::Value;

use super::{
    Converted, NotConverted, Place, Terms, group_of, is_object_name, name_of, namespace_of, short, taken::Taken,
};
use crate::service_deployment::ClusterReference;

/// API group of Argo CD.
const GROUP: &str = "argoproj.io";
/// Argo CD's names for the cluster that it runs in.
const IN_CLUSTER: [&str; 2] = ["in-cluster", "https://kubernetes.default.svc"];
/// Label with the purpose of an Argo CD Secret.
const SECRET_TYPE: &str = "argocd.argoproj.io/secret-type";
/// Labels and annotations that Argo CD reads.
const KEEPERS: [&str; 4] = [
    "argocd.argoproj.io/",
    "notifications.argoproj.io/",
    "argocd-image-updater.argoproj.io/",
    "kubectl.kubernetes.io/",
];
const KEPT: &str = "only Argo CD reads it";

/// Converts each object of the input by itself, in order. An object may need others, wherever they are in the input.
pub fn convert_all(objects: &[Value], terms: &Terms) -> Vec<Result<Converted, NotConverted>> {
    let mut input = Input {
        objects,
        terms,
        taken: Taken::default(),
    };
    // An Application that a set generated is converted by itself only if the set is not converted.
    let is_set = |object: &Value| is_kind(object, "ApplicationSet");
    let sets: Vec<_> = objects
        .iter()
        .map(|object| is_set(object).then(|| application_set::convert(object, &mut input)))
        .collect();
    let covered: Vec<(&str, &str)> = objects
        .iter()
        .zip(&sets)
        .filter(|(_, set)| set.as_ref().is_some_and(|set| goes_over(set, terms)))
        .map(|(object, _)| (namespace_of(object), name_of(object)))
        .collect();
    let each = objects.iter().zip(sets);
    each.map(|(object, set)| set.unwrap_or_else(|| convert_other(object, &covered, &mut input)))
        .collect()
}

fn goes_over(converted: &Result<Converted, NotConverted>, terms: &Terms) -> bool {
    converted
        .as_ref()
        .is_ok_and(|one| one.losses.is_empty() || terms.allow_losses)
}

fn convert_other(object: &Value, covered: &[(&str, &str)], input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    let kind = object["kind"].as_str().unwrap_or_default();
    if group_of(object) != GROUP {
        return Err(match object["metadata"]["labels"][SECRET_TYPE].as_str() {
            Some("cluster") => NotConverted::Covered(
                "clusters join the hub by `farwater cluster join`; its address is known now".to_owned(),
            ),
            Some(_) => NotConverted::Covered(
                "credentials have to be brought over; a source names them in spec.secretRef".to_owned(),
            ),
            None => NotConverted::Foreign("Argo CD"),
        });
    }
    match kind {
        "Application" => {
            if let Some(set) = owner(object).filter(|set| covered.contains(&(namespace_of(object), set))) {
                return Err(NotConverted::Covered(format!(
                    "ApplicationSet {set} has made it, and is converted"
                )));
            }
            application::convert(object, input)
        }
        "AppProject" => project::convert(object, input),
        // Workflows, events and rollouts share the group, and belong to other programs.
        _ => Err(NotConverted::Foreign("Argo CD")),
    }
}

fn owner(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["kind"] == "ApplicationSet")?["name"].as_str()
}

fn is_kind(object: &Value, kind: &str) -> bool {
    group_of(object) == GROUP && object["kind"] == kind
}

/// All objects, and the results so far.
struct Input<'a> {
    objects: &'a [Value],
    terms: &'a Terms,
    taken: Taken,
}

impl Input<'_> {
    /// Namespace of the hub for a project: a project becomes a tenant.
    fn namespace(&self, project: &str) -> String {
        self.terms.namespace.clone().unwrap_or_else(|| project.to_owned())
    }

    /// Cluster of the hub by name or address. The error says what to do.
    fn cluster(&self, destination: &str) -> Result<Place, String> {
        if let Some(cluster) = self.terms.clusters.get(destination) {
            return Ok(Place::Cluster(cluster.clone()));
        }
        if IN_CLUSTER.contains(&destination.trim_end_matches('/')) {
            return self.terms.place.clone().ok_or_else(|| {
                "it is the cluster that Argo CD runs in, and which one that is in the hub is not known; name it with --cluster".to_owned()
            });
        }
        let unknown = || {
            format!(
                "which cluster of the hub {destination} is is not known; say it with --destination {destination}=CLUSTER"
            )
        };
        let name = if destination.contains("://") {
            self.name_of_server(destination)
        } else {
            Some(destination.to_owned())
        };
        match name {
            Some(name) if self.terms.clusters.contains_key(&name) => self.cluster(&name),
            Some(name) if is_object_name(&name) => Ok(Place::Cluster(ClusterReference { name, namespace: None })),
            _ => Err(unknown()),
        }
    }

    /// Argo CD's name of the cluster with this address.
    fn name_of_server(&self, server: &str) -> Option<String> {
        let is_it = |secret: &&Value| {
            secret["metadata"]["labels"][SECRET_TYPE] == "cluster" && field(secret, "server").as_deref() == Some(server)
        };
        field(self.objects.iter().find(is_it)?, "name")
    }

    /// Argo CD's Secret with the credentials of a repository.
    fn credentials(&self, url: &str) -> Option<&str> {
        let fits = |secret: &&Value| {
            let known = field(secret, "url").unwrap_or_default();
            let signs_in = ["password", "bearerToken", "sshPrivateKey", "githubAppPrivateKey"];
            let has_any = signs_in.iter().any(|name| field(secret, name).is_some());
            has_any
                && !known.is_empty()
                && match secret["metadata"]["labels"][SECRET_TYPE].as_str() {
                    Some("repository") => known.trim_end_matches(".git") == url.trim_end_matches(".git"),
                    Some("repo-creds") => url.starts_with(&known),
                    _ => false,
                }
        };
        self.objects.iter().find(fits).map(name_of)
    }
}

/// A value of a Secret as text.
fn field(secret: &Value, name: &str) -> Option<String> {
    if let Some(text) = secret["stringData"][name].as_str() {
        return Some(text.to_owned());
    }
    String::from_utf8(BASE64.decode(secret["data"][name].as_str()?).ok()?).ok()
}
