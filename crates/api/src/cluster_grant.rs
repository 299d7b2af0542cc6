//! ClusterGrant: what tenants may deploy to clusters, and as which account.

use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Right of tenants (namespaces of the hub) to deploy to clusters. Without a grant, a tenant reaches no cluster. A
/// grant takes effect as soon as it is written, like a RoleBinding, so it has no status.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "ClusterGrant",
    plural = "clustergrants",
    category = "farwater",
    derive = "PartialEq",
    printcolumn(name = "Namespaces", type_ = "string", json_path = ".spec.namespaces"),
    printcolumn(name = "Verbs", type_ = "string", json_path = ".spec.verbs"),
    printcolumn(name = "Account", type_ = "string", json_path = ".spec.serviceAccountName"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ClusterGrantSpec {
    /// Label selector for clusters. Empty: every cluster.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Names of the hub's namespaces that hold the right.
    #[schemars(length(min = 1, max = 1000), extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// Allowed actions: `deploy` services.
    #[schemars(length(min = 1), extend("x-kubernetes-list-type" = "set"))]
    pub verbs: Vec<GrantVerb>,
    /// URL prefixes of sources that the tenants may deploy from. Absent: any source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allowed_sources: Option<Vec<String>>,
    /// Namespaces of the cluster that the tenants may deploy to. A trailing `*` matches a prefix. Absent: any
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub target_namespaces: Option<Vec<String>>,
    /// Kinds that the tenants may deploy, as `Kind` or `Kind.group`. Absent: any kind that is not denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allowed_kinds: Option<Vec<String>>,
    /// Kinds that the tenants may not deploy, as `Kind` or `Kind.group`. Takes precedence over `allowedKinds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub denied_kinds: Option<Vec<String>>,
    /// Service account of the cluster that the agent acts as: `NAME` in the service's target namespace, or
    /// `NAMESPACE/NAME`.
    #[schemars(length(min = 1, max = 507))]
    pub service_account_name: String,
    /// Number of people who must approve actions of the tenants' services on these clusters. Absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<Approvals>,
}

/// Numbers of people who must approve. If two, the first proposes with an annotation, and the second approves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Approvals {
    /// For a held prune: `farwater.dev/propose-prune`, then `farwater.dev/approve-prune`. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2))]
    pub prunes: Option<u8>,
    /// For changes in spite of a ChangeWindow: `farwater.dev/propose-override`, then `farwater.dev/override-freeze`.
    /// Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2))]
    pub freeze_overrides: Option<u8>,
}

/// Reads the value of an annotation, such as `prunes=2,freezeOverrides=1`.
impl FromStr for Approvals {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "must be prunes=N, freezeOverrides=N or both with a comma between them, where N is 1 or 2";
        let mut approvals = Self::default();
        for part in text.split(',') {
            let (name, number) = part.split_once('=').ok_or(FORM)?;
            let field = match name.trim() {
                "prunes" => &mut approvals.prunes,
                "freezeOverrides" => &mut approvals.freeze_overrides,
                _ => return Err(FORM),
            };
            let people = number
                .trim()
                .parse()
                .ok()
                .filter(|people| (1..=2).contains(people))
                .ok_or(FORM)?;
            if field.replace(people).is_some() {
                return Err(FORM);
            }
        }
        Ok(approvals)
    }
}

/// Only verbs that a grant has an effect on. A verb without an effect would be a promise that nothing enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GrantVerb {
    Deploy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approvals_are_read_from_an_annotation() {
        let read = |text: &str| {
            text.parse::<Approvals>()
                .ok()
                .map(|read| (read.prunes, read.freeze_overrides))
        };
        assert_eq!(read("prunes=2"), Some((Some(2), None)));
        assert_eq!(read("freezeOverrides=1, prunes=2"), Some((Some(2), Some(1))));
        for text in [
            "",
            "prunes",
            "prunes=0",
            "prunes=3",
            "prunes=2,prunes=1",
            "overrides=2",
            "prunes=2,",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
