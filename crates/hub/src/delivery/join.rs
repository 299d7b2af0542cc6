//! Joining: a one-time token, made for one Cluster, is exchanged for an agent's identity.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64, engine::general_purpose::URL_SAFE_NO_PAD};
use farwater_api::{
    Cluster,
    protocol::{ClusterIdentity, JoinAnswer, JoinRequest},
};
use farwater_store::{
    StoreError, Tx,
    delivery::{
        Agent, AgentKeys, JoinToken, RedeemError, delete_quarantine, delete_reports, load_agent_of, mark_cluster,
        redeem_token, save_agent, save_agent_keys, save_join_token,
    },
};
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{
    answer::{Refusal, read_json},
    keys,
    token::{check_versions, key_print, verify_signature},
};
use crate::{
    replica::Replica,
    resources::{self, Name},
};

/// Long enough to get to the other cluster's terminal.
const JOIN_TOKEN_SECONDS: i64 = 3600;
/// How long a join waits until its Cluster is known, and how often it checks.
const ROUTED_WITHIN: Duration = Duration::from_secs(2);
const ROUTED_SOON: Duration = Duration::from_millis(10);
const PREFIX: &str = "fwj_";
/// Length of each of the agent's public keys, in bytes.
pub const KEY_BYTES: usize = 32;

/// Answer of `POST clusters/NAME/join`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinInvitation {
    /// Shown once; the hub keeps its hash.
    pub token: String,
    pub ca_pin: String,
    pub hub: String,
    pub expires_at: Timestamp,
    /// The command to run where the cluster can be reached.
    pub command: String,
}

#[derive(Debug, thiserror::Error)]
pub enum InviteError {
    #[error("make a join token: cluster {0} does not exist")]
    Missing(Name),
    #[error("make a join token: the system's random source failed")]
    Random,
    #[error("make a join token")]
    Store(#[from] StoreError),
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Creates a one-time token for a Cluster. The caller has authorized it, as the subresource `clusters/join`.
pub async fn create_invitation(replica: &Replica, cluster: &Name) -> Result<JoinInvitation, InviteError> {
    let found = resources::load::<Cluster>(&replica.store, cluster).await?;
    let (resource, _) = found.ok_or_else(|| InviteError::Missing(cluster.clone()))?;
    let mut secret = [0; 32];
    aws_lc_rs::rand::fill(&mut secret).map_err(|_| InviteError::Random)?;
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
    let now = Timestamp::now().as_second();
    let row = JoinToken {
        hash: hash(&token),
        cluster_uid: resource.uid,
        expires: now + JOIN_TOKEN_SECONDS,
    };
    replica
        .store
        .transact(move |tx| Box::pin(async move { save_join_token(tx, &row).await }))
        .await?;
    let (hub, ca_pin) = (replica.url.clone(), replica.identity.ca_pin());
    Ok(JoinInvitation {
        command: format!("farwater-agent --hub {hub} --join-token {token} --ca-pin {ca_pin}"),
        token,
        ca_pin,
        hub,
        expires_at: Timestamp::from_second(now + JOIN_TOKEN_SECONDS).unwrap_or(Timestamp::MAX),
    })
}

/// A join request, checked as far as possible without the database.
struct Candidate {
    hash: [u8; 32],
    agent: Agent,
}

/// `POST /agent/v1/join`
pub async fn post_join(
    State(replica): State<Arc<Replica>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<JoinAnswer>, Refusal> {
    let request: JoinRequest = read_json(body)?;
    let now = Timestamp::now().as_second();
    let candidate = check_request(&request, now)?;

    super::check_loaded(&replica)?;
    until_routed(&replica).await;

    let print = key_print(&candidate.agent.public_key);
    let trusted = replica.identity.trusted();
    let row = AgentKeys {
        sequence: i64::try_from(trusted.position.sequence).unwrap_or(i64::MAX),
        link: trusted.position.link.map(|link| link.to_string()).unwrap_or_default(),
        ..keys::first_keys(&candidate.agent)
    };

    let (cluster_uid, name) = redeem(&replica, candidate, row.clone(), now).await?;
    replica.memory.clusters.change(&cluster_uid, |state| {
        state.key_print = Some(print);
        state.keys_request = None;
        keys::remember(state, &row);
        state.set_quarantined(false);
    });

    replica.wake_after_join(&cluster_uid).await?;
    tracing::info!(cluster = %name, cluster_id = %request.cluster_id, "an agent joined");

    Ok(Json(JoinAnswer {
        cluster: ClusterIdentity {
            uid: cluster_uid,
            namespace: name.namespace,
            name: name.name,
        },
        installation: replica.identity.installation().to_owned(),
        signing_keys: vec![trusted.signing_key.clone()],
        authorities: trusted.authorities.clone(),
        position: trusted.position,
        ca: replica.identity.ca_pem().to_owned(),
        hub_time: now,
    }))
}

fn check_request(request: &JoinRequest, now: i64) -> Result<Candidate, Refusal> {
    let key = |text: &str, what: &str| {
        let bytes = BASE64.decode(text).ok().filter(|bytes| bytes.len() == KEY_BYTES);
        bytes.ok_or_else(|| Refusal::Invalid(format!("{what} is not {KEY_BYTES} bytes in base64")))
    };

    let public_key = key(&request.public_key, "publicKey")?;
    let sealing_key = key(&request.sealing_key, "sealingKey")?;
    let id_ok = (1..=64).contains(&request.cluster_id.len())
        && request
            .cluster_id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !id_ok {
        return Err(Refusal::Invalid("clusterId is not the uid of a namespace".to_owned()));
    }
    check_versions(&request.agent_version, &request.kubernetes_version)?;

    let message = JoinRequest::proof_message(&request.token, &request.sealing_key);
    verify_signature(&public_key, &message, &request.proof).ok_or(Refusal::ProofWrong)?;

    let agent = Agent {
        cluster_uid: String::new(),
        public_key,
        sealing_key,
        cluster_id: request.cluster_id.clone(),
        agent_version: request.agent_version.clone(),
        kubernetes_version: request.kubernetes_version.clone(),
        joined: now,
        report_sequence: 0,
        restored_epoch: 0,
    };
    Ok(Candidate {
        hash: hash(&request.token),
        agent,
    })
}

/// Waits until every Cluster that was created is known, but not longer than an agent may wait.
async fn until_routed(replica: &Replica) {
    let (position, begun) = (replica.store.position(), Instant::now());
    while replica.signals.routed.load(Ordering::Acquire) < position && begun.elapsed() < ROUTED_WITHIN {
        tokio::time::sleep(ROUTED_SOON).await;
    }
}

/// Uses up the token and saves the identity, in one transaction. A refusal leaves the token usable.
async fn redeem(
    replica: &Arc<Replica>,
    candidate: Candidate,
    keys: AgentKeys,
    now: i64,
) -> Result<(String, Name), Refusal> {
    let known = Arc::clone(replica);
    let joined = replica
        .store
        .transact(move |tx| Box::pin(async move { save_join(tx, &known, candidate, keys, now).await }));
    let uid = match joined.await {
        Ok(Ok(uid)) => uid,
        Ok(Err(RedeemError::Unknown)) => return Err(Refusal::JoinTokenUnknown),
        Ok(Err(RedeemError::Used)) => return Err(Refusal::JoinTokenUsed),
        Ok(Err(RedeemError::Expired)) => return Err(Refusal::JoinTokenExpired),
        Err(StoreError::Aborted(reason)) => {
            return Err(match reason.downcast_ref::<JoinedAs>() {
                Some(JoinedAs(uid)) => joined_elsewhere(replica, uid),
                None if reason.is::<Unsettled>() => {
                    Refusal::Unavailable("the Cluster was made or deleted this moment".to_owned())
                }
                None => StoreError::Aborted(reason).into(),
            });
        }
        Err(error) => return Err(error.into()),
    };
    let state = replica.memory.clusters.get(&uid).ok_or(Refusal::JoinTokenUnknown)?;
    Ok((uid, Name::new(&state.namespace, &state.name)))
}

/// Returns the Cluster's uid. Fails with [`JoinedAs`] or [`Unsettled`] if the join has to be rolled back.
async fn save_join(
    tx: &mut Tx,
    replica: &Replica,
    Candidate { hash, mut agent }: Candidate,
    mut keys: AgentKeys,
    now: i64,
) -> Result<Result<String, RedeemError>, StoreError> {
    // Check this first, because a refusal must leave the token usable.
    let elsewhere = load_agent_of(tx, &agent.cluster_id).await?;
    let cluster_uid = match redeem_token(tx, &hash, now).await? {
        Err(refused) => return Ok(Err(refused)),
        Ok(uid) => uid,
    };
    // The Cluster was created or deleted a moment ago. Roll back, so that the token works once that is known.
    if replica.memory.clusters.get(&cluster_uid).is_none() {
        return Err(StoreError::abort(Unsettled));
    }
    if let Some(other) = elsewhere.filter(|other| other.cluster_uid != cluster_uid) {
        return Err(StoreError::abort(JoinedAs(other.cluster_uid)));
    }
    agent.cluster_uid.clone_from(&cluster_uid);
    save_agent(tx, &agent).await?;
    keys.cluster_uid.clone_from(&cluster_uid);
    save_agent_keys(tx, &keys).await?;
    delete_reports(tx, &cluster_uid).await?;
    delete_quarantine(tx, &cluster_uid).await?;
    mark_cluster(tx, &cluster_uid).await?;
    Ok(Ok(cluster_uid))
}

fn joined_elsewhere(replica: &Replica, uid: &str) -> Refusal {
    match replica.memory.clusters.get(uid) {
        Some(state) => Refusal::JoinedElsewhere {
            namespace: state.namespace.to_string(),
            name: state.name.to_string(),
        },
        None => Refusal::Unavailable("the other Cluster is being deleted".to_owned()),
    }
}

/// Rolls a join back: the cluster has an agent under another Cluster.
#[derive(Debug, thiserror::Error)]
#[error("the cluster has joined as {0}")]
struct JoinedAs(String);

/// Rolls a join back: the token's Cluster is not known here yet, or not any more.
#[derive(Debug, thiserror::Error)]
#[error("the cluster is not known")]
struct Unsettled;
