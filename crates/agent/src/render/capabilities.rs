//! What charts are told of the cluster: its version, and every API that it serves.

use std::collections::BTreeSet;

use farwater_render::Capabilities;
use serde_json::Value;

use crate::kubernetes::{ApiError, Kubernetes};

/// As `.Capabilities` has them after `helm install`: versions, and each with each of its kinds.
pub async fn read(kubernetes: &Kubernetes) -> Result<Capabilities, ApiError> {
    // One that starts serves lists of APIs to which not all were added yet: what a chart makes for those that lack would be pruned.
    kubernetes.check_ready().await?;
    let version = kubernetes.get(None, "/version", false).await?;
    let mut api_versions = BTreeSet::new();
    for path in ["/api", "/apis"] {
        take(&kubernetes.discover(path).await?, &mut api_versions);
    }
    let kube_version = version["gitVersion"].as_str().unwrap_or_default().to_owned();
    Ok(Capabilities { kube_version, api_versions: api_versions.into_iter().collect(), complete: true })
}

/// From an APIGroupDiscoveryList. A version whose API server is away is there, with the kinds that it had or, if it never answered,
/// with none.
fn take(list: &Value, found: &mut BTreeSet<String>) {
    for group in list["items"].as_array().into_iter().flatten() {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        for version in group["versions"].as_array().into_iter().flatten() {
            let Some(version_name) = version["version"].as_str() else { continue };
            let full = if name.is_empty() { version_name.to_owned() } else { format!("{name}/{version_name}") };
            for resource in version["resources"].as_array().into_iter().flatten() {
                if let Some(kind) = resource["responseKind"]["kind"].as_str() {
                    found.insert(format!("{full}/{kind}"));
                }
            }
            found.insert(full);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_and_their_kinds_are_named_as_helm_names_them() {
        let core = json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [
            {"resource": "pods", "responseKind": {"group": "", "version": "v1", "kind": "Pod"}},
        ]}]}]});
        let groups = json!({"items": [{"metadata": {"name": "apps"}, "versions": [
            {"version": "v1", "resources": [{"resource": "deployments", "responseKind": {"kind": "Deployment"}}]},
            {"version": "v1beta1", "freshness": "Stale"},
        ]}]});
        let mut found = BTreeSet::new();
        take(&core, &mut found);
        take(&groups, &mut found);
        let expected = ["apps/v1", "apps/v1/Deployment", "apps/v1beta1", "v1", "v1/Pod"];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
