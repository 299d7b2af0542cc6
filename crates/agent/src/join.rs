//! From options to an identity: the stored one, or a new one by the one-time token.

use std::time::Duration;

use farwater_api::{
    Digest,
    protocol::{JoinRequest, REASON_IDENTITY_UNKNOWN, REASON_UNAVAILABLE},
};

use crate::{
    hub::{Caller, HubClient, HubError},
    identity::{Identity, KeyError, Keys},
    kubernetes::Kubernetes,
    options::{JoinToken, Options, TokenFileError},
    secrets,
    state::{StateError, StateStore},
    sync::Backoff,
};

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Token(#[from] TokenFileError),
    #[error(
        "join: this cluster has not joined a hub yet; give --hub, --ca-pin and --join-token as printed by `farwater cluster join`"
    )]
    NotJoined,
    #[error(
        "start: the identity belongs to another cluster (kube-system uid {stored}, this one is {actual}); give each cluster a state directory of its own"
    )]
    OtherCluster { stored: String, actual: String },
    #[error(
        "start: joined to a hub with certificate authority {stored}, asked for {asked}; give a join token to join the other hub"
    )]
    OtherHub { stored: Digest, asked: Digest },
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    State(#[from] StateError),
}

pub struct Joined {
    pub hub: HubClient,
    pub identity: Identity,
    pub kubernetes_version: String,
}

/// Finds or makes the identity. Waits for the API server; waits for the hub only if there is no identity yet.
pub async fn join(options: &Options, kubernetes: &Kubernetes) -> Result<Joined, JoinError> {
    let token = options.token()?;
    let store = StateStore { dir: &options.state_dir, kubernetes };
    store.prepare()?;
    let cluster_id = crate::retry("read the cluster's identity", || async {
        kubernetes.get(None, "/api/v1/namespaces/kube-system", true).await.and_then(|namespace| {
            let uid = namespace["metadata"]["uid"].as_str().map(str::to_owned);
            uid.ok_or_else(|| crate::kubernetes::ApiError::Transport("kube-system has no uid".into()))
        })
    })
    .await;
    let version = crate::retry("read the cluster's version", || kubernetes.get(None, "/version", false)).await;
    let kubernetes_version = version["gitVersion"].as_str().unwrap_or("unknown").to_owned();
    crate::retry("make the agent's namespace and accounts", || secrets::ensure_ground(kubernetes)).await;
    // A damaged identity is no reason to wait: with a token the agent joins again, without one a person must act.
    let stored = match store.load_identity().await {
        Err(error @ StateError::Damaged { .. }) if token.is_some() => {
            tracing::warn!(error = crate::hub::chain(&error), "joining again");
            None
        }
        Err(StateError::Cluster { .. }) => {
            Some(crate::retry("read the agent's identity", || store.load_identity()).await).flatten()
        }
        other => other?,
    };
    if let Some(identity) = stored {
        if identity.cluster_id != cluster_id {
            return Err(JoinError::OtherCluster { stored: identity.cluster_id, actual: cluster_id });
        }
        // A state directory that was lost is filled again; a cluster that never had the copy gets it.
        crate::retry("store the agent's identity", || store.save_identity(&identity)).await;
        match reuse(options, identity, &kubernetes_version, token.as_ref(), &store).await? {
            Some(joined) => return Ok(joined),
            None => tracing::info!("the stored identity is of no use any more; joining with the token"),
        }
    }
    let (Some(url), Some(pin), Some(token)) = (&options.hub, options.ca_pin, token) else {
        return Err(JoinError::NotJoined);
    };
    let hub = HubClient::new(url, pin)?;
    let keys = Keys::generate()?;
    let request = join_request(&token, &keys, &kubernetes_version, &cluster_id)?;
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    let answer = loop {
        match hub.join(&request).await {
            Ok(answer) => break answer,
            Err(error) if is_passing(&error) => {
                tracing::warn!(error = error.text(), "can't join yet; trying again");
                tokio::time::sleep(error.retry_after().unwrap_or_else(|| backoff.advance())).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    let identity = Identity::new(url, pin, &cluster_id, keys, answer);
    // The token is spent: without a stored identity a restart could not go on.
    crate::retry("store the agent's identity", || store.save_identity(&identity)).await;
    tracing::info!(cluster = format!("{}/{}", identity.cluster.namespace, identity.cluster.name), "joined");
    Ok(Joined { hub, identity, kubernetes_version })
}

/// A stored identity, unless a token is given and the identity is another hub's or not known any more.
async fn reuse(
    options: &Options,
    mut identity: Identity,
    kubernetes_version: &str,
    token: Option<&JoinToken>,
    store: &StateStore<'_>,
) -> Result<Option<Joined>, JoinError> {
    if let Some(asked) = options.ca_pin.filter(|pin| *pin != identity.ca_pin) {
        if token.is_some() {
            return Ok(None);
        }
        return Err(JoinError::OtherHub { stored: identity.ca_pin, asked });
    }
    if let Some(url) = options.hub.as_ref().filter(|url| **url != identity.hub) {
        // The same authority at another address.
        identity.hub.clone_from(url);
        crate::retry("store the hub's address", || store.save_identity(&identity)).await;
    }
    let hub = HubClient::new(&identity.hub, identity.ca_pin)?;
    if token.is_some() {
        let caller = Caller { identity: &identity, kubernetes_version };
        match hub.authenticate(&caller).await {
            Err(error) if error.is_reason(REASON_IDENTITY_UNKNOWN) => return Ok(None),
            // Known, or the hub is away: then the last accepted state is kept meanwhile.
            _ => {}
        }
    }
    Ok(Some(Joined { hub, identity, kubernetes_version: kubernetes_version.to_owned() }))
}

/// What a new agent with these keys asks for.
pub fn join_request(
    token: &JoinToken,
    keys: &Keys,
    kubernetes_version: &str,
    cluster_id: &str,
) -> Result<JoinRequest, KeyError> {
    let sealing_key = keys.sealing_public_key()?;
    Ok(JoinRequest {
        token: token.expose().to_owned(),
        public_key: keys.public_key()?,
        proof: keys.sign(&JoinRequest::proof_message(token.expose(), &sealing_key))?,
        sealing_key,
        agent_version: crate::VERSION.to_owned(),
        kubernetes_version: kubernetes_version.to_owned(),
        cluster_id: cluster_id.to_owned(),
    })
}

fn is_passing(error: &HubError) -> bool {
    match error {
        HubError::Unreachable { .. } => true,
        HubError::Refused { status, .. } => {
            status.is_server_error() || status.as_u16() == 429 || error.is_reason(REASON_UNAVAILABLE)
        }
        _ => false,
    }
}
