//! Consequences of a deletion for the clusters, in sentences. Pure.

use farwater_api::{
    ManagedNamespace, ServiceDeployment, ServiceSet,
    objects::ObjectReport,
    service_deployment::{DeletionPolicy, DependencyKind, DependencyReference},
    service_sources::SourceReference,
};
use farwater_fleet::{
    placement::cluster_candidates,
    prune::is_protected,
    why::ClusterEvidence,
    words::{counted, listed, verb},
};
use kube::ResourceExt;
use serde_json::Value;

/// Facts about a service that is to be deleted.
#[derive(Clone, Copy)]
pub struct Looked<'a> {
    pub service: &'a ServiceDeployment,
    /// None: it is missing or may not be read.
    pub cluster: Option<&'a ClusterEvidence>,
    /// Objects as the agent reported them. Err: why they can't be listed.
    pub objects: Result<&'a [ObjectReport], &'a str>,
    /// Services of the same namespace. Err: why they can't be listed.
    pub others: Result<&'a [ServiceDeployment], &'a str>,
}

/// `a, b, c, d, e and 3 more`
pub fn list(names: &[String]) -> String {
    listed(&names[..names.len().min(5)], names.len())
}

pub fn of_service(looked: &Looked<'_>) -> Vec<String> {
    let policy = looked.service.spec.deletion_policy;
    let is_empty = looked.objects.is_ok_and(<[_]>::is_empty);
    let mut told = of_known_objects(looked);
    if policy == DeletionPolicy::Delete {
        told.extend(of_protected(looked));
    }
    if !is_empty {
        told.extend(of_held_prune(looked.service));
    }
    told.extend(of_dependents(looked));
    let waits = policy == DeletionPolicy::Delete && !is_empty;
    if waits && looked.cluster.is_some_and(|cluster| !cluster.is_ready) {
        let cluster = &looked.service.spec.cluster_ref.name;
        told.push(format!(
            "the agent of cluster {cluster} is silent: the service stays until it is heard"
        ));
    }
    told
}

/// The effect on the service's objects. Objects that can't be listed are not taken for none.
fn of_known_objects(looked: &Looked<'_>) -> Vec<String> {
    let policy = looked.service.spec.deletion_policy;
    let cluster = &looked.service.spec.cluster_ref.name;
    match looked.objects {
        Ok([]) => vec![format!("no object of it is known in cluster {cluster}")],
        Ok(objects) => vec![of_objects(
            policy,
            &counted(objects.len(), "object"),
            objects.len(),
            cluster,
        )],
        Err(why) => vec![
            of_objects(policy, "all its objects", 2, cluster),
            format!("these objects can't be listed: {why}"),
        ],
    }
}

/// Names the objects whose deletion needs an approval. None: there are none.
fn of_protected(looked: &Looked<'_>) -> Option<String> {
    let protected = looked
        .objects
        .unwrap_or_default()
        .iter()
        .filter(|one| is_protected(&one.object));
    let protected: Vec<String> = protected.map(|one| one.object.to_string()).collect();
    let (name, namespace) = (
        looked.service.name_any(),
        looked.service.namespace().unwrap_or_default(),
    );
    (!protected.is_empty()).then(|| {
        format!(
            "nothing is deleted before you approve it, because others go with {}: farwater approve {name} -n {namespace}",
            list(&protected)
        )
    })
}

/// The effect on the prune that waits for an approval. None: there is none.
fn of_held_prune(service: &ServiceDeployment) -> Option<String> {
    let held = service.status.as_ref()?.held_prune.as_ref()?;
    let count = counted(usize::try_from(held.count).unwrap_or_default(), "object");
    Some(match service.spec.deletion_policy {
        DeletionPolicy::Orphan => format!("the prune that waits for an approval is dropped: {count} stay too"),
        DeletionPolicy::Delete => format!("the prune of {count} that waits for an approval becomes part of it"),
    })
}

/// Names the services that depend on it, or why they can't be listed. None: there are none.
fn of_dependents(looked: &Looked<'_>) -> Option<String> {
    let others = match looked.others {
        Ok(others) => others,
        Err(why) => return Some(format!("services that depend on it can't be listed: {why}")),
    };
    let name = looked.service.name_any();
    let needs = |other: &&ServiceDeployment| {
        let is_it = |one: &DependencyReference| one.kind == DependencyKind::ServiceDeployment && one.name == name;
        other.name_any() != name && other.spec.depends_on.iter().any(is_it)
    };
    let dependents: Vec<String> = others.iter().filter(needs).map(ResourceExt::name_any).collect();
    if dependents.is_empty() {
        return None;
    }
    Some(match looked.service.spec.deletion_policy {
        DeletionPolicy::Delete => format!("it is deleted after {}, which depend on it", list(&dependents)),
        DeletionPolicy::Orphan => {
            format!(
                "newer versions of {} wait for a service of this name",
                list(&dependents)
            )
        }
    })
}

/// `objects`: `2 objects`
fn of_objects(policy: DeletionPolicy, objects: &str, count: usize, cluster: &str) -> String {
    match policy {
        DeletionPolicy::Orphan => {
            let stay = verb(&count, "stays as it is", "stay as they are");
            let them = verb(&count, "it", "them");
            format!(
                "deletionPolicy Orphan: {objects} in cluster {cluster} {stay}, and no service manages {them} any more"
            )
        }
        DeletionPolicy::Delete => {
            format!(
                "deletionPolicy Delete: {objects} in cluster {cluster} {} deleted",
                verb(&count, "is", "are")
            )
        }
    }
}

pub fn of_set(set: &ServiceSet) -> Vec<String> {
    let matched = set
        .status
        .as_ref()
        .map(|status| status.clusters.matched)
        .unwrap_or_default();
    let services = counted(usize::try_from(matched).unwrap_or_default(), "service");
    let objects = match set.spec.deletion_policy {
        DeletionPolicy::Orphan => "deletionPolicy Orphan: their objects stay, and no service manages them any more",
        DeletionPolicy::Delete => {
            "deletionPolicy Delete: their objects are deleted in every cluster; kinds that hold others wait for your approval"
        }
    };
    vec![
        format!("the {services} that it makes are deleted with it"),
        objects.to_owned(),
    ]
}

pub fn of_managed_namespace(managed: &ManagedNamespace) -> Vec<String> {
    vec![
        match managed.spec.deletion_policy {
            DeletionPolicy::Orphan => "deletionPolicy Orphan: the namespaces stay in the clusters, with all that is in them",
            DeletionPolicy::Delete => {
                "deletionPolicy Delete: each namespace is deleted with all that is in it, once that is approved on its cluster"
            }
        }
        .to_owned(),
    ]
}

/// Whether a service runs on a cluster. `is_there`: whether there is a cluster of this namespace and name.
pub fn is_on(service: &ServiceDeployment, cluster: (&str, &str), is_there: impl Fn((&str, &str)) -> bool) -> bool {
    let namespace = service.namespace().unwrap_or_default();
    let mut candidates = cluster_candidates(&service.spec.cluster_ref, &namespace).into_iter();
    candidates.find(|candidate| *candidate == cluster || is_there(*candidate)) == Some(cluster)
}

/// `services`: those that run on it, as `NAMESPACE/NAME`, and how many of them sets have made; an error: why they can't be listed.
pub fn of_cluster(name: &str, services: Result<(&[String], usize), &str>) -> Vec<String> {
    let told = match services {
        Err(why) => format!("the services on it can't be listed: {why}"),
        Ok(([], _)) => "no service is on it".to_owned(),
        Ok((services, of_sets)) => {
            let (count, are) = (counted(services.len(), "service"), verb(&services.len(), "is", "are"));
            let rest = match of_sets {
                0 => "they wait for a cluster of this name".to_owned(),
                all if all == services.len() => "their sets release them".to_owned(),
                some => format!("their sets release {some}, and the others wait for a cluster of this name"),
            };
            format!("{count} {are} on it: {}; {rest}", list(services))
        }
    };
    vec![
        told,
        "no workload is deleted: the objects that its agent applied stay, and the hub refuses the agent from then on"
            .to_owned(),
        format!("to take the agent out as well: farwater cluster leave {name} --context CONTEXT"),
    ]
}

/// `users`: services and sets.
pub fn of_source(url: &str, users: &[String]) -> Vec<String> {
    let mut told = vec![format!("nothing is fetched from {url} any more")];
    if !users.is_empty() {
        told.push(format!(
            "used by {}: they keep their versions and get no updates",
            list(users)
        ));
    }
    told
}

pub fn of_other(plural: &str) -> Vec<String> {
    let told = match plural {
        "changewindows" => "changes that wait for it begin, unless another window holds them",
        "clustergrants" => "services that only this grant allows keep their versions and get no updates",
        "servicecontexts" => "services with parameters from it keep their versions and get no updates",
        "pipelines" => "promotion ends; each stage keeps its revision",
        "notificationproviders" | "notificationrules" => "messages that need it are no longer sent",
        "receivers" => "webhooks that are sent to it are refused",
        "agentpolicies" => "agents that it changes stay at the version that they have",
        "healthrules" => "the health of the objects that it judges is judged by the built-in rules",
        _ => return Vec::new(),
    };
    vec![told.to_owned()]
}

/// Whether services of a set are made of that source.
pub fn set_uses(set: &ServiceSet, source: &SourceReference) -> bool {
    let of_overrides = set.spec.overrides.iter().map(|one| &one.patch);
    std::iter::once(&set.spec.template.spec.0)
        .chain(of_overrides)
        .any(|spec| states(&Value::Object(spec.clone()), source))
}

fn states(spec: &Value, source: &SourceReference) -> bool {
    let own = std::iter::once(&spec["sourceRef"]);
    let more = spec["sources"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|source| &source["sourceRef"]);
    own.chain(more)
        .any(|one| serde_json::from_value::<SourceReference>(one.clone()).is_ok_and(|one| one == *source))
}

#[cfg(test)]
mod tests {
    use farwater_api::{Cluster, SourceKind};
    use serde_json::json;

    use super::*;

    fn service(name: &str, more: Value) -> ServiceDeployment {
        let mut object = json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment", "metadata": {"name": name, "namespace": "team-a"},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}},
        });
        object["spec"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn object(group: &str, kind: &str, name: &str) -> ObjectReport {
        let object = json!({"group": group, "version": "v1", "kind": kind, "namespace": "web", "name": name,
                            "sync": "Synced", "health": "Current", "message": ""});
        serde_json::from_value(object).unwrap()
    }

    fn cluster(ready: &str) -> Cluster {
        let condition = json!({"type": "Ready", "status": ready, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let object = json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "east"}, "spec": {},
            "status": {"conditions": [condition]},
        });
        serde_json::from_value(object).unwrap()
    }

    fn check(more: Value, objects: &[ObjectReport], ready: &str, expected: &[&str]) {
        let others = [
            service("api", json!({"dependsOn": [{"name": "web"}]})),
            service("web", json!({})),
        ];
        let web = service("web", more);
        let looked = Looked {
            service: &web,
            cluster: Some(&(&cluster(ready)).into()),
            objects: Ok(objects),
            others: Ok(&others),
        };
        assert_eq!(of_service(&looked), expected);
    }

    #[test]
    fn what_becomes_of_the_objects_of_a_service_is_said() {
        let two = [object("apps", "Deployment", "web"), object("", "Service", "web")];
        let waits = "newer versions of api wait for a service of this name";
        let stay =
            "deletionPolicy Orphan: 2 objects in cluster east stay as they are, and no service manages them any more";
        check(json!({}), &two, "False", &[stay, waits]);
        check(
            json!({}),
            &[],
            "True",
            &["no object of it is known in cluster east", waits],
        );
        let deleted = "deletionPolicy Delete: 2 objects in cluster east are deleted";
        let after = "it is deleted after api, which depend on it";
        check(json!({"deletionPolicy": "Delete"}), &two, "True", &[deleted, after]);
        let silent = "the agent of cluster east is silent: the service stays until it is heard";
        check(
            json!({"deletionPolicy": "Delete"}),
            &two,
            "False",
            &[deleted, after, silent],
        );
        let claim = [object("", "PersistentVolumeClaim", "data")];
        check(
            json!({"deletionPolicy": "Delete"}),
            &claim,
            "True",
            &[
                "deletionPolicy Delete: 1 object in cluster east is deleted",
                "nothing is deleted before you approve it, because others go with PersistentVolumeClaim web/data: farwater approve web -n \
                 team-a",
                after,
            ],
        );
    }

    #[test]
    fn the_services_of_a_cluster_are_counted_and_the_first_are_named() {
        let web = service("web", json!({}));
        let none = |_: (&str, &str)| false;
        assert!(is_on(&web, ("team-a", "east"), none) && is_on(&web, ("farwater-admin", "east"), none));
        // Its own namespace has one of that name.
        assert!(!is_on(&web, ("farwater-admin", "east"), |cluster| cluster
            == ("team-a", "east")));
        assert!(!is_on(&web, ("team-a", "west"), none) && !is_on(&web, ("team-b", "east"), none));

        let names: Vec<String> = (0..7).map(|n| format!("team-a/s{n}")).collect();
        let first = |services| of_cluster("east", services)[0].clone();
        assert_eq!(first(Ok((&[], 0))), "no service is on it");
        assert_eq!(
            first(Ok((&names[..1], 1))),
            "1 service is on it: team-a/s0; their sets release them"
        );
        assert_eq!(
            first(Ok((&names, 2))),
            "7 services are on it: team-a/s0, team-a/s1, team-a/s2, team-a/s3, team-a/s4 and 2 more; their sets release 2, and the \
             others wait for a cluster of this name"
        );
        assert_eq!(first(Err("forbidden")), "the services on it can't be listed: forbidden");
    }

    #[test]
    fn objects_and_dependents_that_cannot_be_listed_are_not_taken_for_none() {
        let web = service("web", json!({"deletionPolicy": "Delete"}));
        let looked = Looked {
            service: &web,
            cluster: None,
            objects: Err("forbidden"),
            others: Err("too slow"),
        };
        let expected = [
            "deletionPolicy Delete: all its objects in cluster east are deleted",
            "these objects can't be listed: forbidden",
            "services that depend on it can't be listed: too slow",
        ];
        assert_eq!(of_service(&looked), expected);
    }

    #[test]
    fn who_uses_a_source_is_found_in_services_and_templates() {
        let mounted =
            json!({"sources": [{"sourceRef": {"kind": "HelmRepository", "name": "charts"}, "mountPath": "charts"}]});
        let web = service("web", mounted.clone());
        let source = |kind, name: &str| SourceReference {
            kind,
            name: name.to_owned(),
        };
        let (infra, charts) = (
            source(SourceKind::GitRepository, "infra"),
            source(SourceKind::HelmRepository, "charts"),
        );
        assert!(web.spec.uses(&infra) && web.spec.uses(&charts));
        assert!(!web.spec.uses(&source(SourceKind::HelmRepository, "infra")));
        assert!(states(&mounted, &charts) && !states(&mounted, &infra));
        assert!(states(&json!({"sourceRef": {"name": "infra"}}), &infra));
        let names: Vec<String> = (0..7).map(|n| format!("s{n}")).collect();
        assert_eq!(list(&names), "s0, s1, s2, s3, s4 and 2 more");
        assert_eq!(
            of_source("u", &names[..1])[1],
            "used by s0: they keep their versions and get no updates"
        );
    }
}
