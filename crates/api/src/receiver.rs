//! Receiver: where a Git host tells the hub that something was pushed.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{SourceKind, git_repository::LocalReference, schemas};

/// What `status.webhookPath` begins with.
pub const WEBHOOK_ROOT: &str = "/hook/";
/// Key of the Secret under which the token lies.
pub const TOKEN_KEY: &str = "token";
/// Bytes of a token: fewer can be guessed, and no host takes more.
pub const MIN_TOKEN: usize = 16;
pub const MAX_TOKEN: usize = 512;
/// The `name` of a resource that stands for every source of its kind in the namespace.
pub const EVERY: &str = "*";

/// A path of the hub at which a Git host says that something was pushed, so that sources are asked at once. What is said is a
/// hint: it decides when a source is asked, and nothing else.
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
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
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
    /// Who delivers, which says how deliveries are signed.
    pub r#type: ReceiverType,
    /// Events that are acted upon, as the host names them, such as `push` or `Push Hook`; if empty, its pushes of branches and
    /// tags. Ignored where `type` is `generic-hmac`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 64)))]
    pub events: Vec<String>,
    /// Sources of this namespace that deliveries are about. Of these are asked whose repository and reference a delivery names;
    /// one that names no repository is about all that are listed by name.
    #[schemars(length(min = 1, max = 100))]
    pub resources: Vec<ReceiverResource>,
    /// A Secret in the same namespace whose `token` the host signs with: between 16 and 512 bytes.
    pub secret_ref: LocalReference,
    /// Acts upon no delivery.
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
    /// Anything that sends `X-Signature: sha256=<HMAC of the body in hex>`, or `sha512=…`.
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

/// Sources that deliveries are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReceiverResource {
    #[serde(default)]
    #[schemars(schema_with = "schemas::fetched_source_kind")]
    pub kind: SourceKind,
    /// One source's name, or `*` for all of the namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Beside the name `*`: only those with these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReceiverStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: deliveries are taken, at the address that its message names. `Delivered`: what became of the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Where the host delivers to, below the hub's address: `/hook/` and a digest of token, namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_path: Option<String>,
    /// When a delivery with the right signature came last; told within a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery_time: Option<Time>,
    /// When a delivery was refused last; told within a minute.
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
