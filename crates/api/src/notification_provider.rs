//! NotificationProvider: where the hub sends notifications, and how.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::git_repository::LocalReference;

/// Maximum number of providers of a namespace that receive anything: the first by name.
pub const MAX_PROVIDERS: usize = 64;
/// Keys of the Secret.
pub const TOKEN_KEY: &str = "token";
pub const ADDRESS_KEY: &str = "address";
pub const USERNAME_KEY: &str = "username";
pub const PASSWORD_KEY: &str = "password";
/// Minimum size of a token that signs messages, in bytes. Shorter ones can be guessed.
pub const MIN_SIGNING_TOKEN: usize = 16;
/// Maximum number of recipients of one message.
pub const MAX_RECIPIENTS: usize = 32;

/// Destination of the hub's messages, or a repository whose commits receive a status. NotificationRules select what is
/// sent.
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
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.address", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct NotificationProviderSpec {
    /// Type of the destination.
    pub r#type: ProviderType,
    /// Address of the destination, without secrets: `https://…`; for a mail server `smtp://HOST` or `smtps://HOST`; for
    /// a Git host the repository. If the address itself is secret, as for webhooks of Slack and Teams, put it in the
    /// Secret's `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub address: Option<String>,
    /// Id or name of a Slack channel. Only for messages sent with a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub channel: Option<String>,
    /// Name of a Secret in the same namespace with `token` or `address`, or with `username` and `password` for a mail
    /// server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// Name of a Secret in the same namespace with `ca.crt`, and `tls.crt` and `tls.key` for a client certificate.
    /// Empty: no additional authorities and no client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<LocalReference>,
    /// Sender and recipients. Only for type `email`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<EmailOptions>,
    /// Names and number of commit statuses. Only for Git hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_status: Option<CommitStatusOptions>,
    /// Suspend sends nothing. The newest message of each thread waits.
    #[serde(default)]
    pub suspend: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProviderType {
    /// JSON, signed with the Secret's `token` by the rules of Standard Webhooks.
    #[default]
    #[serde(rename = "generic")]
    Generic,
    /// Slack, or a compatible service. With a token, one message is edited; with a webhook address, several are sent.
    #[serde(rename = "slack")]
    Slack,
    /// Webhook of a Microsoft Teams workflow.
    #[serde(rename = "msteams")]
    MsTeams,
    /// Mail over SMTP.
    #[serde(rename = "email")]
    Email,
    /// Commit statuses on GitHub.
    #[serde(rename = "github")]
    GitHub,
    /// Commit statuses on GitLab.
    #[serde(rename = "gitlab")]
    GitLab,
    /// Commit statuses on Gitea or Forgejo.
    #[serde(rename = "gitea")]
    Gitea,
}

impl ProviderType {
    pub const ALL: [Self; 7] = [
        Self::Generic,
        Self::Slack,
        Self::MsTeams,
        Self::Email,
        Self::GitHub,
        Self::GitLab,
        Self::Gitea,
    ];

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

    /// Whether the provider sets commit statuses and sends no messages.
    pub fn is_git_host(self) -> bool {
        matches!(self, Self::GitHub | Self::GitLab | Self::Gitea)
    }
}

/// Sender and recipients of mails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmailOptions {
    /// Address of the sender, such as `farwater@example.com`.
    #[schemars(length(min = 3, max = 254))]
    pub from: String,
    /// Addresses of the recipients.
    #[schemars(length(min = 1, max = 32), inner(length(min = 3, max = 254)))]
    pub to: Vec<String>,
    /// Whether to send without encryption if the server offers no STARTTLS. Credentials are never sent that way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_clear_text: bool,
}

/// Names and number of commit statuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommitStatusOptions {
    /// First part of each context: `farwater/NAMESPACE/SET`. Hubs that share a repository need different ones.
    #[serde(default = "default_context")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub context: String,
    /// Whether to set a status for each cluster, `farwater/NAMESPACE/SET/CLUSTER`, beside the set's.
    #[serde(default)]
    pub per_cluster: bool,
}

impl Default for CommitStatusOptions {
    fn default() -> Self {
        Self {
            context: default_context(),
            per_cluster: false,
        }
    }
}

fn default_context() -> String {
    "farwater".to_owned()
}

/// Observed state of the NotificationProvider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationProviderStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is True while messages are sent and the destination accepted the last one. Otherwise its message says
    /// what happened to that one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Value of the last handled annotation `farwater.dev/requestedAt`, which requests a test message.
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
        assert_eq!(
            (status.context.as_str(), status.per_cluster, spec.suspend),
            ("farwater", true, false)
        );
        for kind in ProviderType::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
