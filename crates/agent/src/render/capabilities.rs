//! The cluster's capabilities for charts: its version, and all APIs that it serves.

use std::collections::{BTreeMap, BTreeSet};

use farwater_render::Capabilities;
use serde_json::Value;

use crate::kubernetes::{ApiError, Kubernetes};

/// The kinds of each API version, as the API server last returned them.
pub type KnownKinds = BTreeMap<String, BTreeSet<String>>;

/// The capabilities of the cluster.
#[derive(Clone, Debug)]
pub struct Found {
    pub capabilities: Capabilities,
    /// Versions whose aggregated API servers don't answer and whose kinds were never seen, so they are unknown.
    pub unknown: Vec<String>,
}

/// Reads `.Capabilities` as `helm install` fills them: versions, and each version with each of its kinds.
pub async fn read(kubernetes: &Kubernetes, known: &mut KnownKinds) -> Result<Found, ApiError> {
    // An API server that starts returns incomplete lists of APIs, and objects that a chart omits because of them would
    // be pruned.
    kubernetes.check_ready().await?;
    let version = kubernetes.get(None, "/version", false).await?;
    let (mut api_versions, mut unknown) = (BTreeSet::new(), Vec::new());
    for path in ["/api", "/apis"] {
        unknown.extend(take_kinds(&kubernetes.discover(path).await?, known, &mut api_versions));
    }
    let kube_version = version["gitVersion"].as_str().unwrap_or_default().to_owned();
    let capabilities = Capabilities {
        kube_version,
        api_versions: api_versions.into_iter().collect(),
        complete: true,
    };
    Ok(Found { capabilities, unknown })
}

/// Reads an APIGroupDiscoveryList. A version whose API server is away is listed as stale, by newer API servers without
/// its kinds; then the last known kinds are used. Returns the versions without known kinds.
fn take_kinds(list: &Value, known: &mut KnownKinds, found: &mut BTreeSet<String>) -> Vec<String> {
    let mut unknown = Vec::new();
    for group in list["items"].as_array().into_iter().flatten() {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        for version in group["versions"].as_array().into_iter().flatten() {
            let Some(version_name) = version["version"].as_str() else {
                continue;
            };
            let full = if name.is_empty() {
                version_name.to_owned()
            } else {
                format!("{name}/{version_name}")
            };
            let resources = version["resources"].as_array().into_iter().flatten();
            let kinds = resources.filter_map(|resource| resource["responseKind"]["kind"].as_str().map(str::to_owned));
            let mut kinds: BTreeSet<String> = kinds.collect();
            if version["freshness"] == "Stale" && kinds.is_empty() {
                match known.get(&full) {
                    Some(before) => kinds.clone_from(before),
                    None => unknown.push(full.clone()),
                }
            } else {
                known.insert(full.clone(), kinds.clone());
            }
            found.extend(kinds.into_iter().map(|kind| format!("{full}/{kind}")));
            found.insert(full);
        }
    }
    unknown
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
        let (mut known, mut found) = (KnownKinds::new(), BTreeSet::new());
        assert!(take_kinds(&core, &mut known, &mut found).is_empty());
        assert_eq!(
            take_kinds(&groups, &mut known, &mut found),
            ["apps/v1beta1"],
            "it never answered"
        );
        let expected = ["apps/v1", "apps/v1/Deployment", "apps/v1beta1", "v1", "v1/Pod"];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
        let away =
            json!({"items": [{"metadata": {"name": "apps"}, "versions": [{"version": "v1", "freshness": "Stale"}]}]});
        let mut found = BTreeSet::new();
        assert!(take_kinds(&away, &mut known, &mut found).is_empty());
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["apps/v1", "apps/v1/Deployment"],
            "as before it was away"
        );
    }
}
