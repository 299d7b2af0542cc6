//! From options to an identity, stored or new by the one-time token, and to being the only acting agent of the cluster.

use std::time::Duration;

use farwater_api::{
    Digest,
    protocol::{JoinAnswer, JoinRequest, REASON_IDENTITY_UNKNOWN, REASON_QUARANTINED, REASON_UNAVAILABLE},
};

use crate::{
    health::Health,
    hub::{Caller, HubClient, HubError},
    identity::{Identity, KeyError, Keys, Presence},
    lease::{Asked, Lease},
    options::{JoinToken, Options, TokenFileError},
    secrets,
    state::{StateError, StateStore},
    succeed::{self, Process},
    sync::Backoff,
    tls::{Trust, TrustError},
};

/// Pause between two attempts to get the Lease.
const STAND_BY: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Token(#[from] TokenFileError),
    #[error(
        "join: this cluster has not joined a hub yet; give --hub, --join-token and --ca-pin (or --ca-file) as printed by \
         `farwater cluster join`"
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
    #[error(
        "join: this cluster is kept by another hub, {hub}, as {cluster}, and its agent acts ({holder}); let it leave that hub first: farwater cluster leave"
    )]
    KeptByOtherHub {
        hub: String,
        cluster: String,
        holder: String,
    },
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    State(#[from] StateError),
}

pub struct Joined {
    pub hub: HubClient,
    pub identity: Identity,
    pub presence: Presence,
    pub kubernetes_version: String,
}

/// The cluster that the agent is in, and its stored identity.
pub struct Ground {
    /// uid of `kube-system`.
    pub cluster_id: String,
    pub kubernetes_version: String,
    pub stored: Option<Identity>,
}

impl Ground {
    /// Reads the cluster's identity. Waits for the API server.
    pub async fn read(store: &StateStore<'_>, token: Option<&JoinToken>) -> Result<Self, JoinError> {
        let kubernetes = store.kubernetes;
        let cluster_id = crate::retry("read the cluster's identity", || async {
            kubernetes
                .get(None, "/api/v1/namespaces/kube-system", true)
                .await
                .and_then(|namespace| {
                    let uid = namespace["metadata"]["uid"].as_str().map(str::to_owned);
                    uid.ok_or_else(|| crate::kubernetes::ApiError::Unusable("kube-system has no uid".into()))
                })
        })
        .await;
        let version = crate::retry("read the cluster's version", || kubernetes.get(None, "/version", false)).await;
        let kubernetes_version = version["gitVersion"].as_str().unwrap_or("unknown").to_owned();
        crate::retry("make the agent's namespace and accounts", || {
            secrets::ensure_ground(kubernetes)
        })
        .await;
        let stored = load_identity(store, token).await?;
        if let Some(identity) = stored.as_ref().filter(|identity| identity.cluster_id != cluster_id) {
            return Err(JoinError::OtherCluster {
                stored: identity.cluster_id.clone(),
                actual: cluster_id,
            });
        }
        Ok(Self {
            cluster_id,
            kubernetes_version,
            stored,
        })
    }
}

/// Loads the identity. A damaged one is no reason to wait: with a token the agent joins again, without one a person
/// must act.
async fn load_identity(store: &StateStore<'_>, token: Option<&JoinToken>) -> Result<Option<Identity>, JoinError> {
    match store.load_identity().await {
        Err(error @ StateError::Damaged { .. }) if token.is_some() => {
            tracing::warn!(error = crate::hub::chain(&error), "joining again");
            Ok(None)
        }
        Err(StateError::Cluster { .. }) => {
            Ok(Some(crate::retry("read the agent's identity", || store.load_identity()).await).flatten())
        }
        other => Ok(other?),
    }
}

/// Waits until this process is the only acting agent of the cluster. Meanwhile it shows that it could act: that it
/// reaches the hub and is known there.
pub async fn stand_by(
    options: &Options,
    store: &StateStore<'_>,
    ground: &mut Ground,
    lease: &Lease,
    health: &Health,
) -> Result<(), JoinError> {
    let token = options.token()?;
    let presence = Presence::of(lease.name(), true)?;
    let mut told = None;

    loop {
        match crate::retry("ask for the agents' Lease", || lease.ask(store.kubernetes)).await {
            Asked::Taken => break,
            Asked::HeldBy(holder) => {
                refuse_other_hub(options, store, ground.stored.as_ref(), &holder).await?;
                if told.as_ref() != Some(&holder) {
                    tracing::info!(holder, "another agent acts in this cluster; standing by");
                    told = Some(holder);
                }
            }
        }
        if let Some(identity) = ground.stored.as_ref().filter(|_| !health.is_ready()) {
            let caller = Caller {
                identity,
                kubernetes_version: &ground.kubernetes_version,
                presence: &presence,
            };
            let trust = Trust::named(identity.pins(), options.ca_file.as_deref())?;
            // The hub that it will use once it acts: a new version with a wrong address must not replace one that
            // works.
            let url = options.hub.as_ref().unwrap_or(&identity.hub);
            match HubClient::new(url, trust)?.authenticate(&caller).await {
                Ok(()) => health.set_ready(),
                Err(error) => tracing::warn!(error = error.text(), "not known to the hub yet"),
            }
        }
        tokio::time::sleep(STAND_BY).await;
    }
    if told.is_some() {
        // The agent that acted until now may have joined, or joined again.
        ground.stored = load_identity(store, token.as_ref()).await?;
    }
    Ok(())
}

/// Refuses another hub than that of the agent that acts in the cluster, because two hubs would undo each other's work.
async fn refuse_other_hub(
    options: &Options,
    store: &StateStore<'_>,
    stored: Option<&Identity>,
    holder: &str,
) -> Result<(), JoinError> {
    let pin = options.ca_pin.or(stored.and_then(|identity| identity.ca_pin));
    let url = options.hub.as_ref().or(stored.map(|identity| &identity.hub));
    let is_other = |keeper: &Identity| match (pin, keeper.ca_pin) {
        (Some(asked), Some(_)) => !keeper.is_of_authority(asked),
        // Without a pin on one of the sides, only the address distinguishes hubs.
        _ => url.is_some_and(|url| *url != keeper.hub),
    };
    let keeper = crate::retry("read the agent's identity", || store.load_cluster_identity()).await;
    match keeper.filter(is_other) {
        Some(keeper) => Err(JoinError::KeptByOtherHub {
            hub: keeper.hub,
            cluster: format!("{}/{}", keeper.cluster.namespace, keeper.cluster.name),
            holder: holder.to_owned(),
        }),
        None => Ok(()),
    }
}

/// Finds or creates the identity. Waits for the hub only if there is none yet. `host`: the host of this process.
pub async fn join(options: &Options, store: &StateStore<'_>, ground: Ground, host: &str) -> Result<Joined, JoinError> {
    let token = options.token()?;
    let presence = Presence::of(host, false)?;
    let Ground {
        cluster_id,
        kubernetes_version,
        stored,
    } = ground;
    let joined = |hub, identity| Joined {
        hub,
        identity,
        presence: presence.clone(),
        kubernetes_version: kubernetes_version.clone(),
    };

    let mut doubted = None;
    if let Some(mut identity) = stored {
        // Restores a lost state directory, and the copy of a cluster that never had it.
        crate::retry("store the agent's identity", || store.save_identity(&identity)).await;
        let at = (store, &presence);
        match reuse(options, &mut identity, &kubernetes_version, token.as_ref(), at).await? {
            Stored::Good(hub) => return Ok(joined(*hub, identity)),
            Stored::Doubted(hub) => doubted = Some((hub, identity)),
            Stored::Useless => {}
        }
        tracing::info!("the stored identity is of no use any more; joining with the token");
    }

    let (Some(url), Some(token)) = (&options.hub, token) else {
        return Err(JoinError::NotJoined);
    };
    let pin = options.ca_pin;
    let trust = Trust::named(pin.into_iter().collect(), options.ca_file.as_deref())?;
    let hub = HubClient::new(url, trust)?;
    let keys = Keys::generate()?;
    let request = join_request(&token, &keys, &kubernetes_version, &cluster_id)?;
    let answer = match (ask_to_join(&hub, &request).await, doubted) {
        (Ok(answer), _) => answer,
        // The token is an old one. Only the stored identity is left, and running services continue.
        (Err(error), Some((hub, identity))) => {
            tracing::warn!(
                error = error.text(),
                "can't join again; keeping the identity that two agents use"
            );
            return Ok(joined(*hub, identity));
        }
        (Err(error), None) => return Err(error.into()),
    };

    let identity = Identity::new(url, pin, &cluster_id, keys, answer);
    hub.pins().set(identity.pins());
    // The token is used up: without a stored identity a restart could not continue.
    crate::retry("store the agent's identity", || store.save_identity(&identity)).await;
    tracing::info!(
        cluster = format!("{}/{}", identity.cluster.namespace, identity.cluster.name),
        "joined"
    );
    Ok(joined(hub, identity))
}

/// Sends the request until the hub accepts or refuses it.
async fn ask_to_join(hub: &HubClient, request: &JoinRequest) -> Result<JoinAnswer, HubError> {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    loop {
        match hub.join(request).await {
            Err(error) if is_passing(&error) => {
                tracing::warn!(error = error.text(), "can't join yet; trying again");
                tokio::time::sleep(error.retry_after().unwrap_or_else(|| backoff.advance())).await;
            }
            answer => return answer,
        }
    }
}

/// Whether a stored identity can be used.
enum Stored {
    Good(Box<HubClient>),
    /// Two agents use it. A token that still works makes this one the cluster's agent.
    Doubted(Box<HubClient>),
    /// It belongs to another hub, or is no longer known, and there is a token.
    Useless,
}

async fn reuse(
    options: &Options,
    identity: &mut Identity,
    kubernetes_version: &str,
    token: Option<&JoinToken>,
    (store, presence): (&StateStore<'_>, &Presence),
) -> Result<Stored, JoinError> {
    match (options.ca_pin, identity.ca_pin) {
        (Some(asked), Some(stored)) if !identity.is_of_authority(asked) => {
            return if token.is_some() {
                Ok(Stored::Useless)
            } else {
                Err(JoinError::OtherHub { stored, asked })
            };
        }
        (Some(asked), None) => {
            identity.ca_pin = Some(asked);
            identity.authorities.retain(|authority| *authority == asked);
        }
        _ => {}
    }

    if let Some(url) = options.hub.as_ref().filter(|url| **url != identity.hub) {
        // The same authority has another address.
        identity.hub.clone_from(url);
        crate::retry("store the hub's address", || store.save_identity(identity)).await;
    }

    let trust = Trust::named(identity.pins(), options.ca_file.as_deref())?;
    let hub = Box::new(HubClient::new(&identity.hub, trust)?);
    if token.is_none() {
        return Ok(Stored::Good(hub));
    }
    let caller = Caller {
        identity,
        kubernetes_version,
        presence,
    };
    Ok(match hub.authenticate(&caller).await {
        Err(error) if error.is_reason(REASON_IDENTITY_UNKNOWN) => {
            let process = Process {
                kubernetes_version,
                presence,
            };
            match succeed::find_keys(&hub, store, identity, &process).await {
                Ok(Some(known)) => {
                    *identity = known;
                    Stored::Good(hub)
                }
                Ok(None) => Stored::Useless,
                // The hub has just answered; polls will retry.
                Err(_) => Stored::Good(hub),
            }
        }
        Err(error) if error.is_reason(REASON_QUARANTINED) => Stored::Doubted(hub),
        // The identity is known, or the hub is away; then the last accepted state is kept.
        _ => Stored::Good(hub),
    })
}

/// The join request of a new agent with these keys.
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
