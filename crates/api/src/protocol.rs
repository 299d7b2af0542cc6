//! What an agent and the hub say to each other, as JSON over HTTPS.
//!
//! | request | authorization | answer |
//! |---|---|---|
//! | `POST /agent/v1/join` [`JoinRequest`] | the one-time token | [`JoinAnswer`], 401, 403 |
//! | `POST /agent/v1/token` [`SignedAssertion`] | the agent's key | [`TokenAnswer`], 401 |
//! | `GET /agent/v1/desired`, `If-None-Match: "<etag>"` | access token | 304 without a body, or [`DesiredState`] |
//! | `GET /agent/v1/bundles/<digest>` | access token | the bundle, zstd-compressed; 403 unless desired |
//! | `GET /agent/v1/secrets/<service uid>/<mac>` | access token | [`SealedSecrets`]; 403 unless desired |
//! | `POST /agent/v1/status` [`StatusReport`] | access token | [`StatusAnswer`], or 409 to send everything |
//!
//! Errors are [`ProtocolError`]. A state that can't be loaded is 503, never an empty list. The ETag of a desired
//! state is `"<epoch>.<generation>.<tag's hex>"`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{Digest, canonical_json, objects::ServiceReport, service_deployment::DeletionPolicy};

/// Header of the hub's answers: seconds until the next poll.
pub const POLL_INTERVAL_HEADER: &str = "farwater-poll-interval";
/// Longest desired state that an agent accepts, uncompressed: 10,000 services of under 1 KiB.
pub const MAX_DESIRED_BYTES: usize = 16 << 20;
/// The Secrets of one service, as JSON: with what an agent keeps of them they fit one Secret of its own.
pub const MAX_SECRET_BYTES: usize = 384 << 10;
/// Longest report that the hub accepts in one request.
pub const MAX_STATUS_BYTES: usize = 8 << 20;
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningKey {
    /// First 16 hex digits of the public key's sha256.
    pub id: String,
    /// Ed25519 public key, base64.
    pub public_key: String,
}

/// What an agent signs to get an access token.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assertion {
    pub cluster_uid: String,
    pub installation: String,
    /// Seconds since 1970 by the agent's clock, corrected by the hub's time; valid for 120 s either way.
    pub time: i64,
    /// 16 random bytes, hex: an assertion is used once.
    pub nonce: String,
    pub agent_version: String,
    pub kubernetes_version: String,
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
pub const REASON_NOT_DESIRED: &str = "NotDesired";
pub const REASON_BASE_UNKNOWN: &str = "BaseUnknown";
pub const REASON_UNAVAILABLE: &str = "Unavailable";
pub const REASON_INVALID: &str = "Invalid";

/// The signed list of services of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredState {
    pub statement: Statement,
    /// Ed25519 over [`Statement::message`], base64.
    pub signature: String,
    /// Sorted by service uid.
    pub entries: Vec<Entry>,
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
    pub key_id: String,
}

impl Statement {
    pub fn message(&self) -> Vec<u8> {
        let mut message = b"farwater-desired-v1\n".to_vec();
        let value = serde_json::to_value(self).expect("a statement is plain JSON");
        message.extend(canonical_json(&value));
        message
    }

    pub fn etag(&self) -> String {
        format!("\"{}.{}.{}\"", self.epoch, self.generation, self.tag.to_hex())
    }
}

/// sha256 over the sorted lines `service uid, entry digest`.
pub fn tag(entries: &[Entry]) -> Digest {
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
#[serde(tag = "type")]
#[expect(clippy::large_enum_variant, reason = "nearly every action is the large one")]
pub enum Action {
    /// Keep this applied.
    Apply(Deployment),
    /// Change nothing: what the agent has goes on being kept. `reason` is for people.
    Hold { reason: String },
    /// The service was deleted. Stays listed until the agent has confirmed; absence alone deletes nothing.
    Remove {
        policy: DeletionPolicy,
        #[serde(default, rename = "approvedPrune", skip_serializing_if = "Option::is_none")]
        approved_prune: Option<Digest>,
    },
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
    pub target_namespace: String,
    pub prune: bool,
    /// What the tenant may do in the cluster, from its grant.
    pub ceiling: Ceiling,
    /// MAC by the hub of the Secrets that the service has in its cluster: changes when they do, and tells nobody what
    /// they are. The values are only in [`SealedSecrets`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Digest>,
    /// The digest of the one prune plan that was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_prune: Option<Digest>,
}

/// The Secrets of one service, sealed to one cluster's agent: HPKE (RFC 9180) in base mode with X25519, HKDF-SHA256 and
/// AES-256-GCM. The plaintext is the JSON of [`Secrets`].
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
    /// By service uid; `None` forgets a service.
    pub services: BTreeMap<String, Option<ServiceReport>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedStatement {
    pub statement: Statement,
    pub signature: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusAnswer {
    pub sequence: u64,
}
