//! Whether `farwater deploy` may change an existing service of the same name.

use farwater_api::{ServiceDeployment, SourceKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use crate::deletion;

/// Field manager of the command line.
pub const CLI_MANAGER: &str = "farwater-cli";

/// An existing service, and the command that would change it.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    pub service: &'a ServiceDeployment,
    /// Address of its GitRepository. None: it has another kind of source, or the GitRepository does not exist.
    pub url: Option<&'a str>,
    /// Whether that is the command's repository, in any spelling of the address.
    pub is_same_repository: bool,
    /// The command's folder. `.`: the root.
    pub path: &'a str,
    /// Whether the command would change any field of the spec.
    pub changes: bool,
}

/// Why the service stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is being deleted. `held_by`: finalizers that hold it; empty: none.
    Deleting { held_by: String },
    /// A controller made it, and would revert a change.
    Owned { by: String },
    /// It is another deployment, which this describes.
    Other(String),
}

/// Decides whether the service is another deployment. None: it is the same one, perhaps with other options.
pub fn judge(present: &Present<'_>) -> Option<Refusal> {
    let Present { service, .. } = present;
    let metadata = &service.metadata;
    if metadata.deletion_timestamp.is_some() {
        return Some(Refusal::Deleting {
            held_by: deletion::holders(metadata.finalizers.as_deref().unwrap_or_default()),
        });
    }
    let mut owners = metadata.owner_references.iter().flatten();
    if let Some(owner) = owners.find(|owner| owner.controller == Some(true)) {
        return Some(Refusal::Owned {
            by: format!("{} {}", owner.kind, owner.name),
        });
    }
    if let Some(what) = describe_other(present) {
        return Some(Refusal::Other(what));
    }
    let makers = makers(metadata.managed_fields.as_deref().unwrap_or_default());
    let is_ours = makers.is_empty() || makers.contains(&CLI_MANAGER);
    (present.changes && !is_ours).then(|| Refusal::Other(format!("{} made it", makers.join(", "))))
}

/// Describes what the service deploys. None: the command deploys the same.
fn describe_other(present: &Present<'_>) -> Option<String> {
    let spec = &present.service.spec;
    let reference = &spec.source_ref;
    let of_path = if spec.path.is_empty() { "." } else { &spec.path };
    if reference.kind != SourceKind::GitRepository {
        let chart = spec
            .chart
            .as_ref()
            .map(|chart| format!("chart {} of ", chart.name))
            .unwrap_or_default();
        return Some(format!("it deploys {chart}{} {}", reference.kind, reference.name));
    }
    // Without its GitRepository only the folder can be compared.
    let is_same = present.url.is_none_or(|_| present.is_same_repository);
    let (theirs, ours) = (plain_folder(of_path), plain_folder(present.path));
    if is_same && theirs == ours && spec.sources.is_empty() {
        return None;
    }
    let from = present
        .url
        .map_or_else(|| format!("GitRepository {}", reference.name), str::to_owned);
    let more = match spec.sources.len() {
        0 => String::new(),
        count => format!(" and {count} more of its sources"),
    };
    Some(format!("it deploys folder {theirs} of {from}{more}"))
}

/// One spelling for each folder: `./apps/web/` is `apps/web`, and the root is `.`.
pub fn plain_folder(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.is_empty() {
        ".".to_owned()
    } else {
        parts.join("/")
    }
}

/// Field managers of the service's source reference.
fn makers(entries: &[ManagedFieldsEntry]) -> Vec<&str> {
    let states_source = |entry: &&ManagedFieldsEntry| {
        entry
            .fields_v1
            .as_ref()
            .is_some_and(|fields| fields.0["f:spec"]["f:sourceRef"].is_object())
    };
    entries
        .iter()
        .filter(states_source)
        .filter_map(|entry| entry.manager.as_deref())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const URL: &str = "https://git.example.com/infra.git";

    fn service(metadata: Value, spec: Value) -> ServiceDeployment {
        let mut service = json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": "web", "namespace": "team-a", "managedFields": [
                {"manager": "farwater-cli", "operation": "Update", "fieldsV1": {"f:spec": {"f:sourceRef": {"f:name": {}}}}}]},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "apps/web/"},
        });
        for (part, more) in [("metadata", metadata), ("spec", spec)] {
            service[part]
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
        }
        serde_json::from_value(service).unwrap()
    }

    fn check(service: &ServiceDeployment, (url, is_same): (Option<&str>, bool), changes: bool, expected: Option<&str>) {
        let present = Present {
            service,
            url,
            is_same_repository: is_same,
            path: "apps/web",
            changes,
        };
        let told = judge(&present).map(|refusal| match refusal {
            Refusal::Deleting { held_by } => format!("is being deleted: {held_by}"),
            Refusal::Owned { by } => format!("is owned by {by}"),
            Refusal::Other(what) => what,
        });
        assert_eq!(told.as_deref(), expected);
    }

    #[test]
    fn the_same_repository_and_folder_are_the_same_deployment_and_no_other_is() {
        let own = service(json!({}), json!({}));
        check(&own, (Some(URL), true), true, None);
        // Its GitRepository was deleted.
        check(&own, (None, false), true, None);
        let other = "https://git.example.com/other.git";
        check(
            &own,
            (Some(other), false),
            true,
            Some("it deploys folder apps/web of https://git.example.com/other.git"),
        );
        let moved = service(json!({}), json!({"path": "apps/api"}));
        check(
            &moved,
            (Some(URL), true),
            true,
            Some("it deploys folder apps/api of https://git.example.com/infra.git"),
        );
        let chart = service(
            json!({}),
            json!({"sourceRef": {"kind": "HelmRepository", "name": "charts"}, "chart": {"name": "web"}, "path": ""}),
        );
        check(
            &chart,
            (None, false),
            true,
            Some("it deploys chart web of HelmRepository charts"),
        );
    }

    #[test]
    fn what_another_program_or_controller_made_is_left_to_it() {
        let fields = json!({"f:spec": {"f:sourceRef": {"f:name": {}}}});
        let by_kubectl = json!([{"manager": "kubectl-create", "operation": "Update", "fieldsV1": fields}]);
        let by_kubectl = service(json!({"managedFields": by_kubectl}), json!({}));
        check(&by_kubectl, (Some(URL), true), true, Some("kubectl-create made it"));
        check(&by_kubectl, (Some(URL), true), false, None);
        let owner = json!([{"apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceSet", "name": "site", "uid": "u", "controller": true}]);
        check(
            &service(json!({"ownerReferences": owner}), json!({})),
            (Some(URL), true),
            false,
            Some("is owned by ServiceSet site"),
        );
    }

    #[test]
    fn a_service_that_is_being_deleted_is_not_deployed_to() {
        let held = service(
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["farwater.dev/agent"]}),
            json!({}),
        );
        let told = "is being deleted: finalizer farwater.dev/agent, until the agent of its cluster has confirmed";
        check(&held, (Some(URL), true), false, Some(told));
    }
}
