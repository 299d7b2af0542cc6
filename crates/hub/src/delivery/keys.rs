//! Changes of keys: an agent follows the hub's successions, and hands over to new keys of its own.
//!
//! An agent's new keys are registered by a statement of the key that the hub knows, and kept beside it. They become the
//! agent's keys with the first token that is requested with them. Answers may be lost at any point: before that request
//! the old key is valid, after it only the new one, and repeating a request changes nothing.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Digest,
    succession::{Handover, KeysAnswer, KeysRequest, MAX_HANDOVERS, Position, Successions, follow_handovers},
};
use farwater_store::{
    StoreError,
    delivery::{Agent, AgentKeys, load_agent, load_agent_keys, save_agent_keys},
};
use http::HeaderMap;
use jiff::Timestamp;

use super::{
    answer::{Refusal, read_json},
    join::KEY_BYTES,
    token::{authenticate, verify_signature},
};
use crate::{memory::clusters::ClusterState, replica::Replica};

/// Age of an agent's keys at which the hub asks for new ones, in seconds.
const RENEW_SECONDS: i64 = 90 * 24 * 3600;

/// A cluster's keys as long as there is no row.
pub fn first_keys(agent: &Agent) -> AgentKeys {
    AgentKeys {
        cluster_uid: agent.cluster_uid.clone(),
        since: agent.joined,
        ..AgentKeys::default()
    }
}

/// How far an agent has followed the hub's successions, according to its row.
pub fn position_of(row: &AgentKeys) -> Position {
    read_position(row.sequence, &row.link)
}

/// The same from its columns.
pub fn read_position(sequence: i64, link: &str) -> Position {
    Position {
        sequence: u64::try_from(sequence).unwrap_or(0),
        link: link.parse::<Digest>().ok(),
    }
}

/// Puts a row about a cluster's keys into the replica's memory.
pub fn remember(state: &mut ClusterState, row: &AgentKeys) {
    state.position = position_of(row);
    state.keys_since = row.since;
}

/// Whether an agent should make new keys: they are old, or a person requests it.
pub fn wants_keys(state: &ClusterState, now: i64) -> bool {
    state.keys_request.is_some() || now.saturating_sub(state.keys_since) >= RENEW_SECONDS && state.keys_since > 0
}

/// `GET /agent/v1/successions/<sequence>`
pub async fn get_successions(
    State(replica): State<Arc<Replica>>,
    Path(sequence): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Successions>, Refusal> {
    let cluster = authenticate(&replica, &headers)?;
    let sequence = sequence
        .parse()
        .map_err(|_| Refusal::Invalid("a succession has a number".to_owned()))?;
    let successions = replica.identity.successions_after(sequence);
    let successions = successions
        .ok_or_else(|| Refusal::KeysRevoked {
            name: cluster.name.to_string(),
        })?
        .to_vec();
    Ok(Json(Successions { successions }))
}

/// `POST /agent/v1/keys`
pub async fn post_keys(
    State(replica): State<Arc<Replica>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<KeysAnswer>, Refusal> {
    let KeysRequest { cluster_uid, handovers } = read_json(body)?;
    if handovers.len() > MAX_HANDOVERS {
        return Err(Refusal::Invalid(format!("more than {MAX_HANDOVERS} handovers")));
    }

    super::check_loaded(&replica)?;
    let (agent, row) = {
        let mut tables = replica.store.tables().await?;
        let agent = load_agent(&mut tables, &cluster_uid)
            .await?
            .ok_or(Refusal::IdentityUnknown)?;
        (agent, load_agent_keys(&mut tables, &cluster_uid).await?)
    };

    let now = Timestamp::now().as_second();
    let known = BASE64.encode(&agent.public_key);
    if handovers.last().is_some_and(|last| last.handover.public_key == known) {
        // They are in use already, and the answer that confirmed it was lost.
        return Ok(Json(KeysAnswer { hub_time: now }));
    }

    let identity = (replica.identity.installation(), &*cluster_uid);
    let verifies = |key: &str, message: &[u8], signature: &str| {
        BASE64
            .decode(key)
            .is_ok_and(|key| verify_signature(&key, message, signature).is_some())
    };
    let last = follow_handovers(identity, &known, &handovers, verifies).ok_or(Refusal::IdentityUnknown)?;
    let next = read_keys(last)?;

    let mut row = row.unwrap_or_else(|| first_keys(&agent));
    if (&row.next_key, &row.next_sealing_key) != (&next.0, &next.1) {
        (row.next_key, row.next_sealing_key) = next;
        register(&replica, agent, row).await?;
        tracing::info!(cluster = cluster_uid, "an agent has registered new keys");
    }

    Ok(Json(KeysAnswer { hub_time: now }))
}

fn read_keys(handover: &Handover) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
    let key = |text: &str, what: &str| {
        let bytes = BASE64.decode(text).ok().filter(|bytes| bytes.len() == KEY_BYTES);
        bytes.ok_or_else(|| Refusal::Invalid(format!("{what} is not {KEY_BYTES} bytes in base64")))
    };
    Ok((
        key(&handover.public_key, "publicKey")?,
        key(&handover.sealing_key, "sealingKey")?,
    ))
}

/// Registers new keys, only while the key that signed is still the agent's.
async fn register(replica: &Replica, agent: Agent, row: AgentKeys) -> Result<(), Refusal> {
    let saved: Result<bool, StoreError> = replica
        .store
        .transact(move |tx| {
            Box::pin(async move {
                let current = load_agent(tx, &agent.cluster_uid).await?;
                if current.is_none_or(|current| current.public_key != agent.public_key) {
                    return Ok(false);
                }
                let present = load_agent_keys(tx, &agent.cluster_uid)
                    .await?
                    .unwrap_or_else(|| row.clone());
                let (next_key, next_sealing_key) = (row.next_key, row.next_sealing_key);
                save_agent_keys(
                    tx,
                    &AgentKeys {
                        next_key,
                        next_sealing_key,
                        ..present
                    },
                )
                .await?;
                Ok(true)
            })
        })
        .await;
    if saved? { Ok(()) } else { Err(Refusal::IdentityUnknown) }
}
