//! Access tokens: an agent shows possession of its key once an hour, and a MAC in between.
//!
//! A token is `<cluster uid>.<key print>.<expiry>.<hex of the MAC over them>`. Any replica with the shared key verifies it
//! without a database; the key print ends it as soon as another agent joins for the cluster.

use std::sync::Arc;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::protocol::{Assertion, SignedAssertion, TokenAnswer};
use farwater_store::delivery::{change_agent, load_agent, use_nonce};
use http::{HeaderMap, header};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{
    Delivery,
    answer::{Refusal, read_json},
    clusters::ClusterState,
};
use crate::identity::Identity;

/// A clock that is further away is corrected first, by the time in the refusal.
pub const MAX_SKEW_SECONDS: i64 = 120;
const TOKEN_SECONDS: u64 = 3600;
const PURPOSE: &str = "agent-access-token-v1";
/// 16 bytes in hex.
const NONCE_LENGTH: usize = 32;
/// Longest text that an agent may call a version.
pub const MAX_VERSION_BYTES: usize = 128;

/// The first 16 hex digits of the sha256 of an agent's public key.
pub fn key_print(public_key: &[u8]) -> String {
    let mut print = hex::encode(Sha256::digest(public_key));
    print.truncate(16);
    print
}

pub fn issue(identity: &Identity, cluster_uid: &str, key_print: &str, expires: i64) -> String {
    let claims = format!("{cluster_uid}.{key_print}.{expires}");
    let mac = identity.mac(PURPOSE, claims.as_bytes());
    format!("{claims}.{}", hex::encode(mac))
}

struct Claims<'a> {
    cluster_uid: &'a str,
    key_print: &'a str,
    expires: i64,
}

fn verify<'a>(identity: &Identity, token: &'a str) -> Option<Claims<'a>> {
    let (claims, mac) = token.rsplit_once('.')?;
    let mac = hex::decode(mac).ok()?;
    if !identity.verify_mac(PURPOSE, claims.as_bytes(), &mac) {
        return None;
    }
    let mut parts = claims.split('.');
    let (cluster_uid, key_print, expires) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Claims { cluster_uid, key_print, expires: expires.parse().ok()? })
}

/// Which cluster's agent is asking. A request of it is its heartbeat.
pub fn authenticate(delivery: &Delivery, headers: &HeaderMap) -> Result<Arc<ClusterState>, Refusal> {
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let claims = token.and_then(|token| verify(&delivery.identity, token)).ok_or(Refusal::AccessTokenUnknown)?;
    let now = Timestamp::now().as_second();
    if claims.expires <= now {
        return Err(Refusal::AccessTokenExpired);
    }
    delivery.check_loaded()?;
    let state = delivery.clusters.get(claims.cluster_uid).ok_or(Refusal::IdentityUnknown)?;
    if state.key_print.as_deref() != Some(claims.key_print) {
        return Err(Refusal::IdentityUnknown);
    }
    state.hear(now);
    Ok(state)
}

/// `POST /agent/v1/token`
pub async fn post_token(
    State(delivery): State<Arc<Delivery>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<TokenAnswer>, Refusal> {
    let signed: SignedAssertion = read_json(body)?;
    let assertion = parse_assertion(&signed)?;
    delivery.check_loaded()?;
    if assertion.installation != delivery.identity.installation() {
        return Err(Refusal::IdentityUnknown);
    }
    let agent = {
        let mut tables = delivery.store.tables().await?;
        load_agent(&mut tables, &assertion.cluster_uid).await?.ok_or(Refusal::IdentityUnknown)?
    };
    // The signature first: what isn't signed by the agent may say anything, and gets no other answer.
    verify_signature(&agent.public_key, &SignedAssertion::message(&signed.assertion), &signed.signature)
        .ok_or(Refusal::IdentityUnknown)?;
    let now = Timestamp::now().as_second();
    let skew = assertion.time.saturating_sub(now);
    if skew.abs() > MAX_SKEW_SECONDS {
        return Err(Refusal::ClockSkew { seconds: skew });
    }
    let key_print = key_print(&agent.public_key);
    let upgraded =
        agent.agent_version != assertion.agent_version || agent.kubernetes_version != assertion.kubernetes_version;
    if !use_assertion(&delivery, assertion, now).await? {
        return Err(Refusal::AssertionUsed);
    }
    if upgraded {
        delivery.check_cluster(&agent.cluster_uid);
    }
    let expires = now + TOKEN_SECONDS as i64;
    let token = issue(&delivery.identity, &agent.cluster_uid, &key_print, expires);
    Ok(Json(TokenAnswer { token, expires_in: TOKEN_SECONDS, hub_time: now }))
}

fn parse_assertion(signed: &SignedAssertion) -> Result<Assertion, Refusal> {
    let bytes =
        BASE64.decode(&signed.assertion).map_err(|_| Refusal::Invalid("the assertion is not base64".to_owned()))?;
    let assertion: Assertion = serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::Invalid(format!("the assertion is not readable: {error}")))?;
    let nonce_ok = assertion.nonce.len() == NONCE_LENGTH && assertion.nonce.bytes().all(|b| b.is_ascii_hexdigit());
    if !nonce_ok {
        return Err(Refusal::Invalid("the assertion's nonce is not 16 bytes in hex".to_owned()));
    }
    check_versions(&assertion.agent_version, &assertion.kubernetes_version)?;
    Ok(assertion)
}

pub fn check_versions(agent: &str, kubernetes: &str) -> Result<(), Refusal> {
    let fits = |text: &str| text.len() <= MAX_VERSION_BYTES && !text.chars().any(char::is_control);
    if fits(agent) && fits(kubernetes) {
        return Ok(());
    }
    Err(Refusal::Invalid(format!("a version is longer than {MAX_VERSION_BYTES} bytes or holds control characters")))
}

pub fn verify_signature(public_key: &[u8], message: &[u8], signature: &str) -> Option<()> {
    let signature = BASE64.decode(signature).ok()?;
    UnparsedPublicKey::new(&ED25519, public_key).verify(message, &signature).ok()
}

async fn use_assertion(delivery: &Delivery, assertion: Assertion, now: i64) -> Result<bool, Refusal> {
    let fresh = delivery.store.transact(move |tx| {
        Box::pin(async move {
            let expires = now.max(assertion.time) + 2 * MAX_SKEW_SECONDS;
            if !use_nonce(tx, &assertion.cluster_uid, &assertion.nonce, expires).await? {
                return Ok(false);
            }
            let (agent, kubernetes) = (&assertion.agent_version, &assertion.kubernetes_version);
            change_agent(tx, &assertion.cluster_uid, agent, kubernetes, None).await?;
            Ok(true)
        })
    });
    Ok(fresh.await?)
}
