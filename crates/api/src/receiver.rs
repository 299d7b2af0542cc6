//! Receiver: where a Git host announces pushes to the hub.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{SourceKind, git_repository::LocalReference, schemas};

/// Prefix of `status.webhookPath`.
pub const WEBHOOK_ROOT: &str = "/hook/";
/// Key of the token in the Secret.
pub const TOKEN_KEY: &str = "token";
/// Minimum and maximum size of a token, in bytes. Shorter ones can be guessed, and no host takes longer ones.
pub const MIN_TOKEN: usize = 16;
pub const MAX_TOKEN: usize = 512;
/// `name` of a resource that matches every source of its kind in the namespace.
pub const EVERY: &str = "*";

/// Path of the hub at which a Git host announces pushes, so that the hub polls the sources at once. A delivery is a
/// hint: it determines when a source is polled, and nothing else.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "Receiver",
    plural = "receivers",
    shortname = "fwrecv",
    category = "farwater",
    namespaced,
    status = "ReceiverStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#
    ),
    printcolumn(name = "Delivered", type_ = "date", json_path = ".status.lastDeliveryTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type", priority = 1),
    printcolumn(
        name = "Deliveries",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Delivered")].message"#,
        priority = 1
    )
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ReceiverSpec {
    /// Type of the sender, which determines how deliveries are signed.
    pub r#type: ReceiverType,
    /// Events to handle, by the host's names, such as `push` or `Push Hook`. Empty: the host's pushes of branches and
    /// tags. Ignored for type `generic-hmac`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 64)))]
    pub events: Vec<String>,
    /// Sources of this namespace that deliveries may announce. The hub polls those whose repository and reference a
    /// delivery names. A delivery without a repository polls all sources listed by name.
    #[schemars(length(min = 1, max = 100))]
    pub resources: Vec<ReceiverResource>,
    /// Name of a Secret in the same namespace. Its `token` of 16 to 512 bytes signs the deliveries.
    pub secret_ref: LocalReference,
    /// Suspend stops the handling of deliveries.
    #[serde(default)]
    pub suspend: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReceiverType {
    /// GitHub: `X-Hub-Signature-256`.
    #[default]
    #[serde(rename = "github")]
    GitHub,
    /// GitLab: `webhook-signature` where the token is a signing token (`whsec_…`), else `X-Gitlab-Token`.
    #[serde(rename = "gitlab")]
    GitLab,
    /// Gitea and Forgejo: `X-Gitea-Signature`.
    #[serde(rename = "gitea")]
    Gitea,
    /// Any sender of `X-Signature: sha256=<HMAC of the body in hex>`, or `sha512=…`.
    #[serde(rename = "generic-hmac")]
    GenericHmac,
}

impl ReceiverType {
    pub const ALL: [Self; 4] = [Self::GitHub, Self::GitLab, Self::Gitea, Self::GenericHmac];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::GitHub => "github",
            Self::GitLab => "gitlab",
            Self::Gitea => "gitea",
            Self::GenericHmac => "generic-hmac",
        }
    }
}

/// Sources that deliveries may announce.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReceiverResource {
    /// Kind of the sources.
    #[serde(default)]
    #[schemars(schema_with = "schemas::fetched_source_kind")]
    pub kind: SourceKind,
    /// Name of the source, or `*` for all of the kind in the namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// With the name `*`: labels that the sources must have. Empty: all sources.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// Observed state of the Receiver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReceiverStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is True while deliveries are accepted; its message has the address. `Delivered` describes the last
    /// delivery.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Path for deliveries, below the hub's address: `/hook/` and a digest of token, namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_path: Option<String>,
    /// Time of the last delivery with a valid signature. Updated within a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery_time: Option<Time>,
    /// Time of the last refused delivery. Updated within a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal_time: Option<Time>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_receiver_is_read_as_people_write_it() {
        let spec = json!({
            "type": "github", "events": ["push"], "secretRef": {"name": "hook"},
            "resources": [{"kind": "GitRepository", "name": "infra"}, {"name": "*", "matchLabels": {"team": "a"}}],
        });
        let spec: ReceiverSpec = serde_json::from_value(spec).unwrap();
        assert_eq!((spec.r#type, spec.suspend), (ReceiverType::GitHub, false));
        assert_eq!(spec.resources[1].match_labels["team"], "a");
        for kind in ReceiverType::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
