//! The protocol between agent and hub: JSON over HTTPS.
//!
//! | request | authorization | answer |
//! |---|---|---|
//! | `POST /agent/v1/join` [`JoinRequest`] | the one-time token | [`JoinAnswer`], 401, 403 |
//! | `POST /agent/v1/token` [`SignedAssertion`] | the agent's key | [`TokenAnswer`], 401 |
//! | `GET /agent/v1/desired`, `If-None-Match: "<etag>"` | access token | 304 without a body, or [`DesiredState`] |
//! | `GET /agent/v1/bundles/<digest>` | access token | the bundle, zstd-compressed; 403 unless desired |
//! | `GET /agent/v1/secrets/<service uid>/<mac>` | access token | [`SealedSecrets`]; 403 unless desired |
//! | `GET /agent/v1/parameters/<service uid>/<mac>` | access token | [`SealedSecrets`] of [`Parameters`](crate::parameters::Parameters); 403 unless desired |
//! | `POST /agent/v1/status` [`StatusReport`] | access token | [`StatusAnswer`], or 409: send everything |
//! | `GET /agent/v1/successions/<sequence>` | access token | [`Successions`](crate::succession::Successions), 403 where they were cut off |
//! | `GET /agent/v1/connection`, `Upgrade: websocket` | access token | 101 and [`Hint`]s, or 503: continue to poll |
//! | `GET /agent/v1/plans` | access token | a [`PlanRequest`], or 204 |
//! | `POST /agent/v1/plans/<id>` [`PlanReport`] | access token | 204, or 410 if the request is no longer open |
//! | `POST /agent/v1/keys` [`KeysRequest`](crate::succession::KeysRequest) | the agent's previous key | [`KeysAnswer`](crate::succession::KeysAnswer), 401 |
//!
//! Errors are [`ProtocolError`]; any other path under `/agent` is 404. A state that cannot be loaded is 503,
//! never an empty list. The ETag of a desired state is `"<epoch>.<generation>.<tag's hex>"`. Every request and answer
//! carries [`PROTOCOL_HEADER`].
//!
//! Hub and agent may be two releases apart, whichever is newer. `docs/protocol.md` lists the allowed
//! changes, and the traces in `tests/wire` check them.

mod action;
mod connection;
mod plan;
mod skew;
mod verbatim;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

pub use self::{
    action::{Action, Unreadable},
    connection::{CONNECTION_HEADER, CONNECTION_PATH, Hint, MAX_CONNECTION_MESSAGE, Number, close},
    plan::{PLAN_HEADER, PLANS_PATH, PlanReport, PlanRequest, PlanStatement},
    skew::{MAX_SKEW, PROTOCOL, PROTOCOL_HEADER, Skew, parse as parse_protocol},
    verbatim::Verbatim,
};
use crate::{
    Digest,
    apply_options::ApplyOptions,
    canonical_json,
    change_window::Windows,
    cluster::AgentLimits,
    health_rule::{HealthRuleSpec, HealthRules},
    objects::ServiceReport,
    renderer::{Patch, Renderer},
    succession::Position,
    test_container::ServiceTest,
};

/// Header of the hub's answers: seconds until the next poll.
pub const POLL_INTERVAL_HEADER: &str = "farwater-poll-interval";
/// Header of an answer to a poll: number of the hub's last succession, for an agent that has not followed it yet.
pub const SUCCESSION_HEADER: &str = "farwater-succession";
/// Header of an answer to a poll: the agent should make new keys. It is a hint; it proves nothing, and its value has no
/// meaning.
pub const RENEW_KEYS_HEADER: &str = "farwater-renew-keys";
/// Maximum size of a desired state that an agent accepts, uncompressed: 10,000 services of under 1 KiB.
pub const MAX_DESIRED_BYTES: usize = 16 << 20;
/// Maximum size of the Secrets of one service, as JSON. With the data that an agent keeps beside them, they fit one
/// Secret.
pub const MAX_SECRET_BYTES: usize = 384 << 10;
/// Maximum size of a report in one request to the hub.
pub const MAX_STATUS_BYTES: usize = 8 << 20;
/// Maximum number of services in one report, the same as in a desired state.
pub const MAX_REPORTED_SERVICES: usize = 10_000;
/// Maximum number of objects of one service in a report; the agent drops the rest. More than ten thousand are a
/// mistake.
pub const MAX_REPORTED_OBJECTS: usize = 10_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// The one-time token that `farwater cluster join` prints.
    pub token: String,
    /// Ed25519 public key, base64.
    pub public_key: String,
    /// X25519 public key that secrets are sealed to, base64.
    pub sealing_key: String,
    /// Ed25519 signature by `public_key` over `"farwater-join-v1\n" + token + "\n" + sealing_key`, base64. It proves
    /// possession and binds the second key to the first.
    pub proof: String,
    pub agent_version: String,
    pub kubernetes_version: String,
    /// uid of the cluster's `kube-system` namespace. It distinguishes clusters, whatever their names.
    pub cluster_id: String,
}

impl JoinRequest {
    pub fn proof_message(token: &str, sealing_key: &str) -> Vec<u8> {
        format!("farwater-join-v1\n{token}\n{sealing_key}").into_bytes()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinAnswer {
    pub cluster: ClusterIdentity,
    /// Id of the hub's installation. Agents of one hub reject statements of another.
    pub installation: String,
    /// Keys that sign desired states. The agent pins them.
    pub signing_keys: Vec<SigningKey>,
    /// Digests of the authorities that certify the hub. The agent pins them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<Digest>,
    /// Succession to which these keys and authorities belong.
    #[serde(default, skip_serializing_if = "Position::is_first")]
    pub position: Position,
    /// The hub's certificate authority, PEM.
    pub ca: String,
    /// Hub's time in seconds since 1970, to correct a wrong clock.
    pub hub_time: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterIdentity {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// Owner in the identity that an agent keeps in the Secret [`crate::IDENTITY_SECRET`]. Only agents read the rest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Keeper {
    /// Address of the hub.
    pub hub: String,
    pub cluster: ClusterIdentity,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningKey {
    /// First 16 hex digits of the public key's sha256.
    pub id: String,
    /// Ed25519 public key, base64.
    pub public_key: String,
}

impl SigningKey {
    pub fn new(public_key: &[u8]) -> Self {
        let mut id = Digest::of(public_key).to_hex();
        id.truncate(16);
        Self {
            id,
            public_key: BASE64.encode(public_key),
        }
    }

    /// Bytes of the key. None if it is no key, or the id does not match.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let bytes = BASE64.decode(&self.public_key).ok().filter(|bytes| bytes.len() == 32)?;
        (Self::new(&bytes) == *self).then_some(bytes)
    }

    pub fn is_sound(&self) -> bool {
        self.bytes().is_some()
    }
}

/// Statement that an agent signs to get an access token.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assertion {
    pub cluster_uid: String,
    pub installation: String,
    /// Agent's time in seconds since 1970, corrected by the hub's. Valid for 120 s either way.
    pub time: i64,
    /// Uncorrected time of the agent's machine in seconds since 1970. The hub shows the difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_time: Option<i64>,
    /// 16 random bytes, hex. An assertion is used once.
    pub nonce: String,
    pub agent_version: String,
    pub kubernetes_version: String,
    /// 16 hex digits, new at each start, by which the hub recognises two agents with one identity.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// Where the agent runs, for people: a pod's name, or a machine and a folder.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Whether the agent only shows that it could act while another one does. Such a token grants nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby: bool,
    /// How far the agent has followed the hub's successions.
    #[serde(default, skip_serializing_if = "Position::is_first")]
    pub position: Position,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SignedAssertion {
    /// The [`Assertion`], as base64 of the signed JSON.
    pub assertion: String,
    /// Ed25519 over `"farwater-assertion-v1\n" + assertion`, base64.
    pub signature: String,
}

impl SignedAssertion {
    pub fn message(assertion: &str) -> Vec<u8> {
        format!("farwater-assertion-v1\n{assertion}").into_bytes()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenAnswer {
    /// A MAC by the hub, opaque to the agent.
    pub token: String,
    pub expires_in: u64,
    pub hub_time: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtocolError {
    /// One of the `REASON_` constants.
    pub reason: String,
    /// For people: what was refused, why, and what to do.
    pub message: String,
    /// Hub's time with a 401, so that the agent can correct a wrong clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub_time: Option<i64>,
}

pub const REASON_TOKEN_UNKNOWN: &str = "TokenUnknown";
pub const REASON_TOKEN_USED: &str = "TokenUsed";
pub const REASON_TOKEN_EXPIRED: &str = "TokenExpired";
pub const REASON_CLOCK_SKEW: &str = "ClockSkew";
pub const REASON_IDENTITY_UNKNOWN: &str = "IdentityUnknown";
pub const REASON_QUARANTINED: &str = "Quarantined";
/// The agent uses revoked keys of the hub. It can only join again.
pub const REASON_KEYS_REVOKED: &str = "KeysRevoked";
/// The hub does not accept new keys yet. It has not heard this process for long enough to know that it is the only one.
pub const REASON_KEYS_EARLY: &str = "KeysEarly";
pub const REASON_NOT_DESIRED: &str = "NotDesired";
pub const REASON_BASE_UNKNOWN: &str = "BaseUnknown";
pub const REASON_UNAVAILABLE: &str = "Unavailable";
pub const REASON_INVALID: &str = "Invalid";
/// 404: the hub does not know the path, because it is older than the agent.
pub const REASON_PATH_UNKNOWN: &str = "PathUnknown";

/// The signed list of services of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredState {
    pub statement: Verbatim<Statement>,
    /// Ed25519 over [`Statement::message`], base64.
    pub signature: String,
    /// Sorted by service uid.
    pub entries: Vec<Verbatim<Entry>>,
    /// Settings of the agent itself. Absent: as it was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Verbatim<AgentSettings>>,
    /// Health rules for some kinds. Absent: only the built-in rules apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Verbatim<HealthRules>>,
    /// When changes may start. Absent: at any time. An agent without support for windows applies all it receives, so
    /// the hub sends it no change that must wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Verbatim<Windows>>,
}

/// Settings from an AgentPolicy for one cluster's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSettings {
    /// Whole image reference, by tag or digest. An agent accepts only its own repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Log filter, as in `FARWATER_LOG`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Memory limit of the container, a Kubernetes quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<String>,
    /// Seconds within which the agent must report under these settings, or it rolls back to the previous ones.
    pub deadline_seconds: u64,
    /// A new value makes the agent retry settings from which it rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<String>,
}

impl AgentSettings {
    /// For settings that were created here. Received ones have [`Verbatim::digest`].
    pub fn digest(&self) -> Digest {
        Digest::of_json(&serde_json::to_value(self).expect("settings are plain JSON"))
    }
}

/// The agent's settings, and the state of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentReport {
    /// Digest of the settings that the agent runs with. None if it runs as installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub update: AgentUpdate,
    /// The agent's own limits. Absent if its version has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all_fields = "camelCase")]
pub enum AgentUpdate {
    /// No update is in progress.
    #[default]
    Settled,
    /// The agent is updating to these settings.
    Updating { settings: Digest },
    /// The agent rolled back from these settings, or never applied them.
    Failed { settings: Digest, reason: String },
    /// The agent cannot update itself, because it does not know what starts it.
    Unmanaged { reason: String },
    /// State from a newer version.
    #[serde(other)]
    Unknown,
}

/// The signed statement. `(epoch, generation)` only grows; the agent refuses an older one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Statement {
    pub installation: String,
    pub cluster_uid: String,
    pub epoch: u64,
    pub generation: u64,
    /// [`tag`] of the entries.
    pub tag: Digest,
    /// Digest of the agent's settings, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Digest>,
    /// Digest of the health rules, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Digest>,
    /// Digest of the change windows, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Digest>,
    pub key_id: String,
}

impl Statement {
    pub fn number(&self) -> Number {
        Number {
            epoch: self.epoch,
            generation: self.generation,
        }
    }

    /// Prefix of the signed message. The statement's canonical JSON follows.
    pub const PREFIX: &[u8] = b"farwater-desired-v1\n";

    /// For a statement that was created here. A received one has [`Verbatim::message`].
    pub fn message(&self) -> Vec<u8> {
        let value = serde_json::to_value(self).expect("a statement is plain JSON");
        [Self::PREFIX, &canonical_json(&value)].concat()
    }

    pub fn etag(&self) -> String {
        format!("\"{}.{}.{}\"", self.epoch, self.generation, self.tag.to_hex())
    }
}

/// sha256 over the sorted lines `service uid, entry digest`.
pub fn tag(entries: &[Verbatim<Entry>]) -> Digest {
    let mut lines: Vec<String> = entries
        .iter()
        .map(|e| format!("{} {}\n", e.service.uid, e.digest()))
        .collect();
    lines.sort_unstable();
    Digest::of(lines.concat())
}

/// One service in a desired state. Its digest covers every field, so it holds only fields that change the agent's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub service: ServiceIdentity,
    pub action: Action,
}

impl Entry {
    /// For an entry that was created here. A received one has [`Verbatim::digest`].
    pub fn digest(&self) -> Digest {
        Digest::of_json(&serde_json::to_value(self).expect("an entry is plain JSON"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServiceIdentity {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deployment {
    /// Digest of the uncompressed canonical archive.
    pub bundle: Digest,
    /// Size of the uncompressed archive in bytes, so that an agent can refuse it before the download.
    pub bundle_bytes: u64,
    /// Folder inside the bundle with the manifests to apply.
    pub path: String,
    /// Renderers. With these or patches, the action is `ApplyRendered`, unless there are parameters too. An agent
    /// without support holds the service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub renderers: Vec<Renderer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<Patch>,
    pub target_namespace: String,
    pub prune: bool,
    /// Limits of the tenant in the cluster, from its grant.
    pub ceiling: Ceiling,
    /// MAC by the hub of the Secrets that the service has in its cluster. It changes with them, and reveals nothing.
    /// Only [`SealedSecrets`] has the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Digest>,
    /// MAC by the hub of the service's [`Parameters`](crate::parameters::Parameters), which are fetched and kept like
    /// Secrets. With it, the action is `ApplyWithParameters`. An agent without support holds the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Digest>,
    /// `configuration` values that were promoted with the revision. They take precedence over the parameters. With
    /// them, the action is always `ApplyPromoted`. An agent without support holds the service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Digest of the one approved prune plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_prune: Option<Digest>,
    /// Options. If they are not the defaults, the action is `ApplyWithOptions`. An agent without support holds the
    /// service.
    #[serde(default, skip_serializing_if = "ApplyOptions::is_default")]
    pub options: ApplyOptions,
    /// Why every prune waits for an approval. `prune` is false with it, so an agent without support keeps everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_prune: Option<String>,
    /// First commit of the bundle's history. It identifies the repository, whatever its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Request to restore the objects of a deletion; see [`undo_request`](crate::deletion::undo_request).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Failed run of a hook to retry once, for this version. Older agents ignore it. Empty: no retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_hook: Option<Digest>,
    /// How often what the service asks for has changed. What returns to an earlier content is another entry, so that a report on that
    /// content from before says nothing of it.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub turn: u64,
    /// Tests that run when all is healthy. The hub needs their reports to call the version healthy; an agent without
    /// support sends none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<ServiceTest>,
    /// Health rules of the service, which take precedence over the hub's. An agent without support uses the built-in
    /// ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthRuleSpec>,
}

/// Secrets or parameters of one service, sealed to one cluster's agent: HPKE (RFC 9180) in base mode with X25519,
/// HKDF-SHA256 and AES-256-GCM. The plaintext is the JSON of [`Secrets`] or
/// [`Parameters`](crate::parameters::Parameters).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedSecrets {
    /// The sender's encapsulated key, base64.
    pub encapsulated: String,
    /// Ciphertext, base64.
    pub ciphertext: String,
}

impl SealedSecrets {
    /// HPKE's `info`, which names the recipient. A value that is sealed for another cluster or service cannot be
    /// opened.
    pub fn info(installation: &str, cluster_uid: &str, service_uid: &str, mac: &Digest) -> Vec<u8> {
        format!("farwater-secrets-v1\n{installation}\n{cluster_uid}\n{service_uid}\n{mac}").into_bytes()
    }

    /// `info` for a service's parameters. Neither opens as the other.
    pub fn info_of_parameters(installation: &str, cluster_uid: &str, service_uid: &str, mac: &Digest) -> Vec<u8> {
        format!("farwater-parameters-v1\n{installation}\n{cluster_uid}\n{service_uid}\n{mac}").into_bytes()
    }
}

/// Secrets by name. Never printed, and never stored in plain text.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secrets(pub BTreeMap<String, SecretValue>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretValue {
    /// Type, as in `Secret.type`.
    #[serde(rename = "type")]
    pub secret_type: String,
    /// Values, as in `Secret.data`: base64.
    pub data: BTreeMap<String, String>,
}

/// Limits of the tenant in the cluster. The agent always acts as `service_account`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ceiling {
    pub service_account: ServiceAccount,
    /// Namespaces, as in a ClusterGrant. Absent: any that the service account may touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_namespaces: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_kinds: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_kinds: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceAccount {
    pub namespace: String,
    pub name: String,
}

/// Changes since the report `base`. `base` 0: a complete report that replaces all earlier ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub sequence: u64,
    pub base: u64,
    /// Statement that the agent last accepted. None before its first. The hub's signature proves to a restored hub that
    /// its database is behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<AcceptedStatement>,
    pub agent_version: String,
    pub kubernetes_version: String,
    /// Time, as in an [`Assertion`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_time: Option<i64>,
    /// Reports by service uid. `None` removes a service.
    pub services: BTreeMap<String, Option<ServiceReport>>,
    /// Report on the agent itself. Absent: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedStatement {
    pub statement: Verbatim<Statement>,
    pub signature: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusAnswer {
    pub sequence: u64,
}
