//! What an agent and the hub say to each other, as JSON over HTTPS.
//!
//! | request | authorization | answer |
//! |---|---|---|
//! | `POST /agent/v1/join` [`JoinRequest`] | the one-time token | [`JoinAnswer`], 401, 403 |
//! | `POST /agent/v1/token` [`SignedAssertion`] | the agent's key | [`TokenAnswer`], 401 |
//! | `GET /agent/v1/desired`, `If-None-Match: "<etag>"` | access token | 304 without a body, or [`DesiredState`] |
//! | `GET /agent/v1/bundles/<digest>` | access token | the bundle, zstd-compressed; 403 unless desired |
//! | `GET /agent/v1/secrets/<service uid>/<mac>` | access token | [`SealedSecrets`]; 403 unless desired |
//! | `GET /agent/v1/parameters/<service uid>/<mac>` | access token | [`SealedSecrets`] of [`Parameters`](crate::parameters::Parameters); 403 unless desired |
//! | `POST /agent/v1/status` [`StatusReport`] | access token | [`StatusAnswer`], or 409 to send everything |
//! | `GET /agent/v1/successions/<sequence>` | access token | [`Successions`](crate::succession::Successions), 403 where they were cut off |
//! | `GET /agent/v1/connection`, `Upgrade: websocket` | access token | 101 and [`Hint`]s, or 503: go on polling |
//! | `GET /agent/v1/plans` | access token | a [`PlanRequest`], or 204 |
//! | `POST /agent/v1/plans/<id>` [`PlanReport`] | access token | 204, or 410 where nobody waits any more |
//! | `POST /agent/v1/keys` [`KeysRequest`](crate::succession::KeysRequest) | the agent's former key | [`KeysAnswer`](crate::succession::KeysAnswer), 401 |
//!
//! Errors are [`ProtocolError`]; any other path under `/agent` is 404. A state that can't be loaded is 503, never an empty list. The ETag of a desired
//! state is `"<epoch>.<generation>.<tag's hex>"`. Every request and answer carries [`PROTOCOL_HEADER`].
//!
//! Hub and agent may be two releases apart, whichever is newer. What may change, and how, is in `docs/protocol.md`; the traces in
//! `tests/wire` hold us to it.

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
    service_test::ServiceTest,
    succession::Position,
};

/// Header of the hub's answers: seconds until the next poll.
pub const POLL_INTERVAL_HEADER: &str = "farwater-poll-interval";
/// Header of an answer to a poll: the number of the hub's last succession, for an agent that has not followed it yet.
pub const SUCCESSION_HEADER: &str = "farwater-succession";
/// Header of an answer to a poll: the agent shall make new keys of its own. A hint; it proves nothing and its value says nothing.
pub const RENEW_KEYS_HEADER: &str = "farwater-renew-keys";
/// Longest desired state that an agent accepts, uncompressed: 10,000 services of under 1 KiB.
pub const MAX_DESIRED_BYTES: usize = 16 << 20;
/// The Secrets of one service, as JSON: with what an agent keeps of them they fit one Secret of its own.
pub const MAX_SECRET_BYTES: usize = 384 << 10;
/// Longest report that the hub accepts in one request.
pub const MAX_STATUS_BYTES: usize = 8 << 20;
/// Services of one report: as many as a desired state has.
pub const MAX_REPORTED_SERVICES: usize = 10_000;
/// Objects of one service in a report. Ten thousand are a mistake, not a service; the agent cuts what is over it.
pub const MAX_REPORTED_OBJECTS: usize = 10_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// The one-time token, as printed by `farwater cluster join`.
    pub token: String,
    /// Ed25519 public key, base64.
    pub public_key: String,
    /// X25519 public key that secrets are sealed to, base64.
    pub sealing_key: String,
    /// Ed25519 signature by `public_key` over `"farwater-join-v1\n" + token + "\n" + sealing_key`, base64:
    /// proves possession and binds the second key to the first.
    pub proof: String,
    pub agent_version: String,
    pub kubernetes_version: String,
    /// uid of the cluster's `kube-system` namespace: tells two clusters apart whatever they are called.
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
    /// The hub's installation: one hub's statements mean nothing to another's agents.
    pub installation: String,
    /// Keys that desired states are signed with; the agent pins them.
    pub signing_keys: Vec<SigningKey>,
    /// Digests of the authorities that vouch for the hub; the agent pins them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<Digest>,
    /// The succession that these are of.
    #[serde(default, skip_serializing_if = "Position::is_first")]
    pub position: Position,
    /// The hub's certificate authority, PEM.
    pub ca: String,
    /// Seconds since 1970, for a wrong clock.
    pub hub_time: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterIdentity {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// Of the identity that an agent keeps in the Secret [`crate::IDENTITY_SECRET`], whose it is. The rest is for agents only.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Keeper {
    /// The hub's address.
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
        Self { id, public_key: BASE64.encode(public_key) }
    }

    /// The key's bytes; none where it is no key, or the id is another's.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let bytes = BASE64.decode(&self.public_key).ok().filter(|bytes| bytes.len() == 32)?;
        (Self::new(&bytes) == *self).then_some(bytes)
    }

    pub fn is_sound(&self) -> bool {
        self.bytes().is_some()
    }
}

/// What an agent signs to get an access token.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assertion {
    pub cluster_uid: String,
    pub installation: String,
    /// Seconds since 1970 by the agent's clock, corrected by the hub's time; valid for 120 s either way.
    pub time: i64,
    /// Seconds since 1970 by the clock of the agent's machine, whatever it says: the hub shows how far off it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_time: Option<i64>,
    /// 16 random bytes, hex: an assertion is used once.
    pub nonce: String,
    pub agent_version: String,
    pub kubernetes_version: String,
    /// 16 hex digits, made at each start: of two agents with one identity the hub sees two.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// Where it runs, for people: a pod's name, or a machine and a folder.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// It shows that it could act while another one does; the token is good for nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby: bool,
    /// How far it has followed the hub's successions.
    #[serde(default, skip_serializing_if = "Position::is_first")]
    pub position: Position,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SignedAssertion {
    /// The [`Assertion`], base64 of its JSON: what was signed is what is read.
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
    /// A MAC by the hub; opaque to the agent.
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
    /// Given with 401, so that a wrong clock can be corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub_time: Option<i64>,
}

pub const REASON_TOKEN_UNKNOWN: &str = "TokenUnknown";
pub const REASON_TOKEN_USED: &str = "TokenUsed";
pub const REASON_TOKEN_EXPIRED: &str = "TokenExpired";
pub const REASON_CLOCK_SKEW: &str = "ClockSkew";
pub const REASON_IDENTITY_UNKNOWN: &str = "IdentityUnknown";
pub const REASON_QUARANTINED: &str = "Quarantined";
/// The agent goes by keys of the hub that were taken out of use: it can only join again.
pub const REASON_KEYS_REVOKED: &str = "KeysRevoked";
/// New keys are not taken yet: the hub has not heard this process for long enough to know that there is only one.
pub const REASON_KEYS_EARLY: &str = "KeysEarly";
pub const REASON_NOT_DESIRED: &str = "NotDesired";
pub const REASON_BASE_UNKNOWN: &str = "BaseUnknown";
pub const REASON_UNAVAILABLE: &str = "Unavailable";
pub const REASON_INVALID: &str = "Invalid";
/// 404: the hub does not know the path. It is older than the agent.
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
    /// What the agent itself shall be; absent: as it was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Verbatim<AgentSettings>>,
    /// How objects of some kinds are judged; absent: by the built-in rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Verbatim<HealthRules>>,
    /// When changes may begin; absent: at any time. An agent that doesn't know them begins what it is handed: the hub hands it nothing
    /// that may not begin then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Verbatim<Windows>>,
}

/// What an AgentPolicy says of one cluster's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSettings {
    /// The whole reference, by tag or digest. An agent takes none from another repository than its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What it logs, as in `FARWATER_LOG`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Its container's limit, a Kubernetes quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<String>,
    /// An agent that has not reported by then under these settings goes back to those before.
    pub deadline_seconds: u64,
    /// A new value has settings tried again that an agent went back from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<String>,
}

impl AgentSettings {
    /// Of settings that were made here; those that were received have [`Verbatim::digest`].
    pub fn digest(&self) -> Digest {
        Digest::of_json(&serde_json::to_value(self).expect("settings are plain JSON"))
    }
}

/// What came of the settings in the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentReport {
    /// Digest of the settings that it runs with; none if it runs as installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub update: AgentUpdate,
    /// The agent's own limits; absent if its version has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all_fields = "camelCase")]
pub enum AgentUpdate {
    /// Nothing is under way.
    #[default]
    Settled,
    /// On the way to these settings.
    Updating { settings: Digest },
    /// It went back from these settings, or never went there.
    Failed { settings: Digest, reason: String },
    /// It can't change itself: nobody told it what starts it.
    Unmanaged { reason: String },
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}

/// What is signed. `(epoch, generation)` only grows; an older one is refused by the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Statement {
    pub installation: String,
    pub cluster_uid: String,
    pub epoch: u64,
    pub generation: u64,
    /// [`tag`] of the entries.
    pub tag: Digest,
    /// Digest of the agent's settings, where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Digest>,
    /// Digest of the rules of health, where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Digest>,
    /// Digest of the change windows, where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Digest>,
    pub key_id: String,
}

impl Statement {
    pub fn number(&self) -> Number {
        Number { epoch: self.epoch, generation: self.generation }
    }

    /// Of what is signed; the statement's canonical JSON follows.
    pub const PREFIX: &[u8] = b"farwater-desired-v1\n";

    /// Of a statement that was made here; one that was received has [`Verbatim::message`].
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
    let mut lines: Vec<String> = entries.iter().map(|e| format!("{} {}\n", e.service.uid, e.digest())).collect();
    lines.sort_unstable();
    Digest::of(lines.concat())
}

/// One service in a desired state. Its digest covers every field, so it holds only what changes what the agent does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub service: ServiceIdentity,
    pub action: Action,
}

impl Entry {
    /// Of an entry that was made here; one that was received has [`Verbatim::digest`].
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
    /// Bytes of the uncompressed archive, so that an agent can refuse before it downloads.
    pub bundle_bytes: u64,
    /// Folder inside the bundle whose manifests are applied.
    pub path: String,
    /// Where there are some, or patches, the action is `ApplyRendered`, unless there are parameters too: an agent that doesn't know
    /// them holds the service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub renderers: Vec<Renderer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<Patch>,
    pub target_namespace: String,
    pub prune: bool,
    /// What the tenant may do in the cluster, from its grant.
    pub ceiling: Ceiling,
    /// MAC by the hub of the Secrets that the service has in its cluster: changes when they do, and tells nobody what
    /// they are. The values are only in [`SealedSecrets`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Digest>,
    /// MAC by the hub of the service's [`Parameters`](crate::parameters::Parameters), which are fetched and kept as Secrets are.
    /// Where there is one the action is `ApplyWithParameters`: an agent that doesn't know them holds the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Digest>,
    /// Texts of `configuration` that were promoted with the revision: they count before those of the parameters. Where there are some
    /// the action is `ApplyPromoted`, whatever else there is: an agent that doesn't know them holds the service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// The digest of the one prune plan that was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_prune: Option<Digest>,
    /// Where they are not the defaults, the action is `ApplyWithOptions`: an agent that doesn't know them holds the service.
    #[serde(default, skip_serializing_if = "ApplyOptions::is_default")]
    pub options: ApplyOptions,
    /// Why every prune waits for an approval. `prune` is false beside it: an agent that doesn't know this keeps everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_prune: Option<String>,
    /// The first commit of the history that the bundle is of: whatever its address, that is the same repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// A request to bring back what a deletion took; see [`undo_request`](crate::deletion::undo_request).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// The run of a hook that failed, which is to run again: once, and of this version. An agent that doesn't know this runs nothing again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_hook: Option<Digest>,
    /// How often what the service asks for has changed. What returns to an earlier content is another entry, so that a report on that
    /// content from before says nothing of it.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub turn: u64,
    /// Run when all is healthy. An agent that doesn't know them reports none, and the hub calls the version healthy only with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<ServiceTest>,
    /// The service's own rules of health, which come before the hub's. An agent that doesn't know them judges by the built-in ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthRuleSpec>,
}

/// The Secrets or the parameters of one service, sealed to one cluster's agent: HPKE (RFC 9180) in base mode with X25519,
/// HKDF-SHA256 and AES-256-GCM. The plaintext is the JSON of [`Secrets`] or [`Parameters`](crate::parameters::Parameters).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedSecrets {
    /// The sender's encapsulated key, base64.
    pub encapsulated: String,
    /// Base64.
    pub ciphertext: String,
}

impl SealedSecrets {
    /// HPKE's `info`: for whom this was sealed. What was sealed for another cluster or service doesn't open.
    pub fn info(installation: &str, cluster_uid: &str, service_uid: &str, mac: &Digest) -> Vec<u8> {
        format!("farwater-secrets-v1\n{installation}\n{cluster_uid}\n{service_uid}\n{mac}").into_bytes()
    }

    /// The same of a service's parameters: neither opens as the other.
    pub fn info_of_parameters(installation: &str, cluster_uid: &str, service_uid: &str, mac: &Digest) -> Vec<u8> {
        format!("farwater-parameters-v1\n{installation}\n{cluster_uid}\n{service_uid}\n{mac}").into_bytes()
    }
}

/// By name. Neither printed nor kept in the clear.
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
    /// As in `Secret.type`.
    #[serde(rename = "type")]
    pub secret_type: String,
    /// As in `Secret.data`: base64.
    pub data: BTreeMap<String, String>,
}

/// The tenant's limits in the cluster. The agent acts as `service_account`, always.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ceiling {
    pub service_account: ServiceAccount,
    /// As in a ClusterGrant; absent: any that the service account may touch.
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

/// Changes since the report `base`. `base` 0 means: everything, forget what came before.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub sequence: u64,
    pub base: u64,
    /// The (epoch, generation) of the statement that the agent last accepted; none before its first. Signed by the
    /// hub, it proves to a restored hub that it is behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<AcceptedStatement>,
    pub agent_version: String,
    pub kubernetes_version: String,
    /// As in an [`Assertion`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_time: Option<i64>,
    /// By service uid; `None` forgets a service.
    pub services: BTreeMap<String, Option<ServiceReport>>,
    /// About the agent itself; absent: as it said before.
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
