//! Access tokens: an agent proves possession of its key once an hour, and uses a MAC in between.
//!
//! A token is `<cluster uid>.<key print>.<instance>.<expiry>.<hex of the MAC over them>`. Any replica with the shared
//! key verifies it without a database. The key print invalidates it as soon as another agent joins for the cluster or
//! the agent uses new keys. The instance distinguishes two processes with one identity.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::protocol::{Assertion, PROTOCOL_HEADER, SignedAssertion, TokenAnswer, parse_protocol};
use farwater_store::delivery::{
    Agent, AgentKeys, change_agent, load_agent, load_agent_keys, promote_keys, save_agent_keys, use_nonce,
};
use http::{HeaderMap, header};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{
    answer::{Refusal, read_json},
    keys::{self, first_keys, position_of},
};
use crate::{identity::Identity, memory::clusters::ClusterState, replica::Replica};

/// A clock that is off by more is corrected first, by the time in the refusal.
pub const MAX_SKEW_SECONDS: i64 = 120;
const TOKEN_SECONDS: u64 = 3600;
const PURPOSE: &str = "agent-access-token-v1";
/// 16 bytes in hex.
const NONCE_LENGTH: usize = 32;
/// 8 bytes in hex.
const INSTANCE_LENGTH: usize = 16;
/// Maximum bytes of a version that an agent names.
pub const MAX_VERSION_BYTES: usize = 128;

/// The first 16 hex digits of the sha256 of an agent's public key.
pub fn key_print(public_key: &[u8]) -> String {
    let mut print = hex::encode(Sha256::digest(public_key));
    print.truncate(16);
    print
}

pub fn issue(identity: &Identity, cluster_uid: &str, key_print: &str, instance: &str, expires: i64) -> String {
    let claims = format!("{cluster_uid}.{key_print}.{instance}.{expires}");
    let mac = identity.mac(PURPOSE, claims.as_bytes());
    format!("{claims}.{}", hex::encode(mac))
}

struct Claims<'a> {
    cluster_uid: &'a str,
    key_print: &'a str,
    /// Empty: it did not say.
    instance: &'a str,
    expires: i64,
}

fn verify<'a>(identity: &Identity, token: &'a str) -> Option<Claims<'a>> {
    let (claims, mac) = token.rsplit_once('.')?;
    let mac = hex::decode(mac).ok()?;
    if !identity.verify_mac(PURPOSE, claims.as_bytes(), &mac) {
        return None;
    }
    let mut parts = claims.split('.');
    let (cluster_uid, key_print, instance) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Claims {
        cluster_uid,
        key_print,
        instance,
        expires: parts.next()?.parse().ok()?,
    })
}

/// The cluster whose agent sends the request, which counts as its heartbeat.
pub fn authenticate(replica: &Replica, headers: &HeaderMap) -> Result<Arc<ClusterState>, Refusal> {
    identify(replica, headers).map(|(state, _)| state)
}

/// The same, with the process that sends it.
pub fn identify<'a>(replica: &Replica, headers: &'a HeaderMap) -> Result<(Arc<ClusterState>, &'a str), Refusal> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let claims = token
        .and_then(|token| verify(&replica.identity, token))
        .ok_or(Refusal::AccessTokenUnknown)?;
    let now = Timestamp::now().as_second();
    if claims.expires <= now {
        return Err(Refusal::AccessTokenExpired);
    }
    super::check_loaded(replica)?;
    let state = replica
        .memory
        .clusters
        .get(claims.cluster_uid)
        .ok_or(Refusal::IdentityUnknown)?;
    if state.key_print.as_deref() != Some(claims.key_print) {
        return Err(Refusal::IdentityUnknown);
    }
    check_instance(replica, &state, claims.instance, None)?;
    let protocol = headers
        .get(PROTOCOL_HEADER)
        .and_then(|value| parse_protocol(value.to_str().ok()?));
    if protocol.is_some_and(|protocol| state.note_protocol(protocol)) {
        replica.check_cluster(&state.uid);
    }
    state.hear(replica.clock.now().as_second());
    Ok((state, claims.instance))
}

/// The cluster of a request's access token, if the token is valid. This records no heartbeat and makes no further
/// checks.
pub fn cluster_of(replica: &Replica, headers: &HeaderMap) -> Option<String> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))?;
    let claims = verify(&replica.identity, token).filter(|claims| claims.expires > Timestamp::now().as_second())?;
    replica
        .memory
        .clusters
        .get(claims.cluster_uid)
        .map(|state| state.uid.to_string())
}

/// Refuses two processes with one identity, as in a copied cluster: both would act on one signed state in two places
/// and overwrite each other's reports.
fn check_instance(replica: &Replica, state: &ClusterState, instance: &str, host: Option<&str>) -> Result<(), Refusal> {
    if state.meet(instance, host) {
        tracing::warn!(cluster = %state.name, hosts = state.quarantine(), "two agents use one identity; answering neither");
        replica.check_cluster(&state.uid);
    }
    match state.quarantine() {
        Some(hosts) => Err(Refusal::Quarantined { hosts }),
        None => Ok(()),
    }
}

/// `POST /agent/v1/token`
pub async fn post_token(
    State(replica): State<Arc<Replica>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<TokenAnswer>, Refusal> {
    let signed: SignedAssertion = read_json(body)?;
    let assertion = parse_assertion(&signed)?;
    super::check_loaded(&replica)?;
    if assertion.installation != replica.identity.installation() {
        return Err(Refusal::IdentityUnknown);
    }

    let (agent, keys) = load_identity(&replica, &assertion.cluster_uid).await?;
    // Check the signature first: a request that the agent did not sign gets the same answer in all cases.
    let next = find_signer(&agent, keys.as_ref(), &signed, &assertion)?;
    let now = Timestamp::now().as_second();
    // Compare with the corrected time, which the agent signs with.
    let skew = assertion.time.saturating_sub(now);
    if skew.abs() > MAX_SKEW_SECONDS {
        return Err(Refusal::ClockSkew { seconds: skew });
    }

    let state = replica
        .memory
        .clusters
        .get(&agent.cluster_uid)
        .ok_or(Refusal::IdentityUnknown)?;
    check_sole(&replica, &state, &assertion, next.is_some())?;
    note_clock(&replica, &agent.cluster_uid, assertion.system_time, now);
    let key_print = key_print(next.as_deref().unwrap_or(&agent.public_key));
    let (instance, standby) = (assertion.instance.clone(), assertion.standby);
    let upgraded =
        agent.agent_version != assertion.agent_version || agent.kubernetes_version != assertion.kubernetes_version;
    let request = state.keys_request.as_deref().map(str::to_owned);
    let promotion = next.map(|key| Promotion { key, request });
    let promoted = promotion.is_some();
    let row = use_assertion(&replica, &agent, assertion, promotion, now).await?;

    // A standby process says nothing about the agent that acts.
    if let Some(row) = row.filter(|_| !standby) {
        note_keys(&replica, &state, &row, promoted.then(|| key_print.clone()));
        if upgraded || promoted || state.position != position_of(&row) {
            replica.check_cluster(&agent.cluster_uid);
        }
    }

    // A standby process learns that its identity is known, with a token that it can't use.
    let life = if standby { 0 } else { TOKEN_SECONDS };
    let expires = now.saturating_add_unsigned(life);
    let token = issue(&replica.identity, &agent.cluster_uid, &key_print, &instance, expires);
    Ok(Json(TokenAnswer {
        token,
        expires_in: life,
        hub_time: now,
    }))
}

async fn load_identity(replica: &Replica, cluster_uid: &str) -> Result<(Agent, Option<AgentKeys>), Refusal> {
    let mut tables = replica.store.tables().await?;
    let agent = load_agent(&mut tables, cluster_uid).await?;
    let agent = agent.ok_or(Refusal::IdentityUnknown)?;
    Ok((agent, load_agent_keys(&mut tables, cluster_uid).await?))
}

/// Refuses a second process with one identity, and new keys while another process may still use the old ones.
fn check_sole(
    replica: &Replica,
    state: &ClusterState,
    assertion: &Assertion,
    has_new_keys: bool,
) -> Result<(), Refusal> {
    if !assertion.standby {
        check_instance(replica, state, &assertion.instance, Some(&assertion.host))?;
    }
    let wait = match has_new_keys {
        true => state.until_sole(&assertion.instance),
        false => Duration::ZERO,
    };
    if wait.is_zero() {
        return Ok(());
    }
    Err(Refusal::KeysEarly {
        seconds: wait.as_secs() + 1,
    })
}

/// Notes how far off the clock of an agent's machine is.
pub fn note_clock(replica: &Replica, cluster_uid: &str, system_time: Option<i64>, now: i64) {
    let (Some(time), Some(state)) = (system_time, replica.memory.clusters.get(cluster_uid)) else {
        return;
    };
    if state.note_clock(time.saturating_sub(now)) {
        replica.check_cluster(cluster_uid);
    }
}

fn parse_assertion(signed: &SignedAssertion) -> Result<Assertion, Refusal> {
    let bytes = BASE64
        .decode(&signed.assertion)
        .map_err(|_| Refusal::Invalid("the assertion is not base64".to_owned()))?;
    let assertion: Assertion = serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::Invalid(format!("the assertion is not readable: {error}")))?;
    let nonce_ok = assertion.nonce.len() == NONCE_LENGTH && assertion.nonce.bytes().all(|b| b.is_ascii_hexdigit());
    if !nonce_ok {
        return Err(Refusal::Invalid(
            "the assertion's nonce is not 16 bytes in hex".to_owned(),
        ));
    }
    let instance_ok = assertion.instance.is_empty()
        || (assertion.instance.len() == INSTANCE_LENGTH && assertion.instance.bytes().all(|b| b.is_ascii_hexdigit()));
    if !instance_ok {
        return Err(Refusal::Invalid(
            "the assertion's instance is not 8 bytes in hex".to_owned(),
        ));
    }
    check_versions(&assertion.agent_version, &assertion.kubernetes_version)?;
    check_versions(&assertion.host, "")?;
    Ok(assertion)
}

pub fn check_versions(agent: &str, kubernetes: &str) -> Result<(), Refusal> {
    let fits = |text: &str| text.len() <= MAX_VERSION_BYTES && !text.chars().any(char::is_control);
    if fits(agent) && fits(kubernetes) {
        return Ok(());
    }
    Err(Refusal::Invalid(format!(
        "a version is longer than {MAX_VERSION_BYTES} bytes or holds control characters"
    )))
}

pub fn verify_signature(public_key: &[u8], message: &[u8], signature: &str) -> Option<()> {
    let signature = BASE64.decode(signature).ok()?;
    UnparsedPublicKey::new(&ED25519, public_key)
        .verify(message, &signature)
        .ok()
}

/// The new key that has signed; None: the key in use has.
fn find_signer(
    agent: &Agent,
    keys: Option<&AgentKeys>,
    signed: &SignedAssertion,
    assertion: &Assertion,
) -> Result<Option<Vec<u8>>, Refusal> {
    let message = SignedAssertion::message(&signed.assertion);
    let signs = |key: &[u8]| !key.is_empty() && verify_signature(key, &message, &signed.signature).is_some();
    if signs(&agent.public_key) {
        return Ok(None);
    }
    let keys = keys.ok_or(Refusal::IdentityUnknown)?;
    // A standby process does not decide when new keys are used.
    if signs(&keys.next_key) && !assertion.standby {
        return Ok(Some(keys.next_key.clone()));
    }
    if signs(&keys.former_key) {
        let (cluster, host) = (&agent.cluster_uid, &assertion.host);
        tracing::warn!(
            cluster,
            host,
            "an agent asks with keys that were replaced; it is a copy, or was restored from one"
        );
        return Err(Refusal::KeysReplaced);
    }
    Err(Refusal::IdentityUnknown)
}

/// An agent begins to use its new keys.
struct Promotion {
    key: Vec<u8>,
    /// The request for new keys that led to them.
    request: Option<String>,
}

/// Returns the agent's keys afterwards; None: the process is on standby.
async fn use_assertion(
    replica: &Replica,
    agent: &Agent,
    assertion: Assertion,
    promotion: Option<Promotion>,
    now: i64,
) -> Result<Option<AgentKeys>, Refusal> {
    let agent = agent.clone();
    let used = replica.store.transact(move |tx| {
        Box::pin(async move {
            let expires = now.max(assertion.time) + 2 * MAX_SKEW_SECONDS;
            if !use_nonce(tx, &assertion.cluster_uid, &assertion.nonce, expires).await? {
                return Ok(Err(Refusal::AssertionUsed));
            }
            if assertion.standby {
                return Ok(Ok(None));
            }
            let (version, kubernetes) = (&assertion.agent_version, &assertion.kubernetes_version);
            change_agent(tx, &assertion.cluster_uid, version, kubernetes, None).await?;
            if let Some(Promotion { key, request }) = promotion {
                if !promote_keys(tx, &agent, &key, request.as_deref(), now).await? {
                    return Ok(Err(Refusal::IdentityUnknown));
                }
                tracing::info!(cluster = agent.cluster_uid, "an agent has switched to new keys");
            }

            let row = load_agent_keys(tx, &agent.cluster_uid)
                .await?
                .unwrap_or_else(|| first_keys(&agent));
            let told = AgentKeys {
                sequence: i64::try_from(assertion.position.sequence).unwrap_or(i64::MAX),
                link: assertion.position.link.map(|link| link.to_string()).unwrap_or_default(),
                ..row.clone()
            };
            if told != row {
                save_agent_keys(tx, &told).await?;
            }
            Ok(Ok(Some(told)))
        })
    });

    used.await?
}

/// Saves the keys that a request for a token has shown in memory. After a change of keys, tokens of the old key are
/// invalid from here on.
fn note_keys(replica: &Replica, state: &ClusterState, row: &AgentKeys, key_print: Option<String>) {
    let known = state.position == position_of(row) && state.keys_since == row.since;
    if known && key_print.is_none() {
        return;
    }
    replica.memory.clusters.change(&row.cluster_uid, |state| {
        keys::remember(state, row);
        if key_print.is_some() {
            state.key_print = key_print;
            state.keys_request = None;
        }
    });
}
