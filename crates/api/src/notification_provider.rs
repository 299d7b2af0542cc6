//! NotificationProvider: whom the hub tells what happens, and how.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::git_repository::LocalReference;

/// Providers of a namespace that are told anything: the first by name.
pub const MAX_PROVIDERS: usize = 64;
/// Keys of the Secret.
pub const TOKEN_KEY: &str = "token";
pub const ADDRESS_KEY: &str = "address";
pub const USERNAME_KEY: &str = "username";
pub const PASSWORD_KEY: &str = "password";
/// Bytes of a token that messages are signed with: fewer can be guessed.
pub const MIN_SIGNING_TOKEN: usize = 16;
/// Recipients of one message.
pub const MAX_RECIPIENTS: usize = 32;

/// A place that the hub sends messages to, or a repository whose commits it gives a status. What is sent there
/// NotificationRules say.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "NotificationProvider",
    plural = "notificationproviders",
    category = "farwater",
    namespaced,
    status = "NotificationProviderStatus",
    derive = "PartialEq",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.address", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct NotificationProviderSpec {
    pub r#type: ProviderType,
    /// Where messages go, without anything secret: `https://…`; of a mail server `smtp://HOST` or `smtps://HOST`; of a Git host the
    /// repository. An address that is a secret itself, as those of Slack's and Teams' webhooks, is the Secret's `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub address: Option<String>,
    /// Of Slack, where messages are sent with a token: the channel's id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub channel: Option<String>,
    /// A Secret in the same namespace: `token`, `address`, or `username` and `password` of a mail server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// A Secret in the same namespace with `ca.crt`, `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<LocalReference>,
    /// Of type `email`: from whom and to whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<EmailOptions>,
    /// Of a Git host: what its commits' statuses are called, and how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_status: Option<CommitStatusOptions>,
    /// Sends nothing. What is to be told waits, the newest of each thread.
    #[serde(default)]
    pub suspend: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProviderType {
    /// JSON, signed with the Secret's `token` as Standard Webhooks has it.
    #[default]
    #[serde(rename = "generic")]
    Generic,
    /// Slack, or what speaks like it: with a token one message that is edited, with the address of a webhook several.
    #[serde(rename = "slack")]
    Slack,
    /// Microsoft Teams: a workflow's webhook.
    #[serde(rename = "msteams")]
    MsTeams,
    #[serde(rename = "email")]
    Email,
    /// Statuses of commits.
    #[serde(rename = "github")]
    GitHub,
    #[serde(rename = "gitlab")]
    GitLab,
    /// Gitea and Forgejo.
    #[serde(rename = "gitea")]
    Gitea,
}

impl ProviderType {
    pub const ALL: [Self; 7] =
        [Self::Generic, Self::Slack, Self::MsTeams, Self::Email, Self::GitHub, Self::GitLab, Self::Gitea];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Slack => "slack",
            Self::MsTeams => "msteams",
            Self::Email => "email",
            Self::GitHub => "github",
            Self::GitLab => "gitlab",
            Self::Gitea => "gitea",
        }
    }

    /// Whether commits get a status there, and nobody a message.
    pub fn is_git_host(self) -> bool {
        matches!(self, Self::GitHub | Self::GitLab | Self::Gitea)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmailOptions {
    /// `farwater@example.com`
    #[schemars(length(min = 3, max = 254))]
    pub from: String,
    #[schemars(length(min = 1, max = 32), inner(length(min = 3, max = 254)))]
    pub to: Vec<String>,
    /// Sends in the clear where the server offers no STARTTLS. Credentials are never sent so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_clear_text: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommitStatusOptions {
    /// What contexts begin with: `farwater/NAMESPACE/SET`. Hubs that share a repository each need one of their own.
    #[serde(default = "default_context")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub context: String,
    /// Beside the set's status one of each cluster: `farwater/NAMESPACE/SET/CLUSTER`.
    #[serde(default)]
    pub per_cluster: bool,
}

impl Default for CommitStatusOptions {
    fn default() -> Self {
        Self { context: default_context(), per_cluster: false }
    }
}

fn default_context() -> String {
    "farwater".to_owned()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationProviderStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: pending notifications are sent, and the last message was taken. Else its message says what became of that one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The last request for a message that says nothing: the value of the annotation `farwater.dev/requestedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_provider_is_read_as_people_write_it() {
        let spec =
            json!({"type": "github", "address": "https://github.com/team/infra", "commitStatus": {"perCluster": true}});
        let spec: NotificationProviderSpec = serde_json::from_value(spec).unwrap();
        let status = spec.commit_status.unwrap();
        assert_eq!((status.context.as_str(), status.per_cluster, spec.suspend), ("farwater", true, false));
        for kind in ProviderType::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
