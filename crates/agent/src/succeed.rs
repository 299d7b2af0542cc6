//! Changes of keys: the agent follows the hub's successions, and replaces its own keys.
//!
//! Everything is stored before it is acted upon, so the agent may be killed at any point.

use farwater_api::{
    protocol::{REASON_IDENTITY_UNKNOWN, REASON_KEYS_EARLY},
    succession::{Broken, KeysRequest, Position},
};

use crate::{
    Agent,
    hub::{Caller, HubClient, HubError},
    identity::{Identity, KeyError, Presence},
    state::{StateError, StateStore},
};

/// Most answers with successions that are requested in a row.
const MAX_ANSWERS: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum SuccessionError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Follows the hub to its present keys. `accepted`: the key that signed the last accepted state.
pub async fn follow_hub(agent: &Agent, store: &StateStore<'_>, accepted: Option<&str>) -> Result<(), SuccessionError> {
    for _ in 0..MAX_ANSWERS {
        let identity = agent.identity();
        let Position { sequence, .. } = identity.position;
        let successions = agent.hub.successions(&agent.caller(&identity), sequence).await?;
        let next = identity.follow(&successions, accepted)?;
        if next.position == identity.position {
            break;
        }
        // Store it first: states signed with the new key are stored from here on, and a restart must know that key.
        store.save_identity(&next).await?;
        let (position, key) = (
            next.position.sequence,
            next.signing_keys.first().map(|key| key.id.clone()),
        );
        agent.hub.pins().set(next.pins());
        agent.set_identity(next);
        tracing::info!(
            succession = position,
            signing_key = key,
            "followed the hub to its new keys"
        );
    }
    // The next token is requested with the new position.
    agent.hub.forget_token();
    Ok(())
}

/// Generates new keys, hands them over to the hub, and uses them. Continues what was begun.
pub async fn renew_keys(agent: &Agent, store: &StateStore<'_>) -> Result<(), SuccessionError> {
    let begun = agent.identity().next_keys.is_some();
    let identity = agent.identity().prepare_keys()?;
    if !begun {
        // In both places before the hub may ask for them, because one of the places may be lost.
        store.save_identity_twice(&identity).await?;
        agent.set_identity(identity.clone());
    }
    let Some(handover) = identity.handover()? else {
        return Ok(());
    };
    let request = KeysRequest {
        cluster_uid: identity.cluster.uid.clone(),
        handovers: vec![handover],
    };
    agent.hub.hand_over(&request).await?;
    let process = Process {
        kubernetes_version: &agent.kubernetes_version,
        presence: &agent.presence,
    };
    match try_next(&agent.hub, &identity, &process).await? {
        Some(promoted) => {
            save_promoted(store, &promoted).await;
            agent.set_identity(promoted);
            Ok(())
        }
        // The present keys stay valid until then.
        None => Ok(()),
    }
}

/// The agent's process that makes requests.
pub struct Process<'a> {
    pub kubernetes_version: &'a str,
    pub presence: &'a Presence,
}

/// Finds keys that the hub accepts, because it doesn't know the present ones. Either it uses the next ones and its
/// answer was lost, or it was restored and knows older ones, which have handed over to these. None: neither.
pub async fn find_keys(
    hub: &HubClient,
    store: &StateStore<'_>,
    identity: &Identity,
    process: &Process<'_>,
) -> Result<Option<Identity>, SuccessionError> {
    if identity.next_keys.is_some() {
        match try_next(hub, identity, process).await {
            Ok(Some(promoted)) => {
                save_promoted(store, &promoted).await;
                return Ok(Some(promoted));
            }
            Err(SuccessionError::Hub(error)) if error.is_reason(REASON_IDENTITY_UNKNOWN) => {}
            Err(error) => return Err(error),
            Ok(None) => {}
        }
    }
    if identity.handovers.is_empty() {
        return Ok(None);
    }
    let request = KeysRequest {
        cluster_uid: identity.cluster.uid.clone(),
        handovers: identity.handovers.clone(),
    };
    match hub.hand_over(&request).await {
        Ok(()) => Ok(Some(identity.clone())),
        Err(error) if error.is_reason(REASON_IDENTITY_UNKNOWN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Requests a token with the next keys. From the hub's answer on, only they are valid. None: the hub has not heard this
/// process for long enough.
async fn try_next(
    hub: &HubClient,
    identity: &Identity,
    process: &Process<'_>,
) -> Result<Option<Identity>, SuccessionError> {
    let Some(next) = &identity.next_keys else {
        return Ok(None);
    };
    let Process {
        kubernetes_version,
        presence,
    } = *process;
    let caller = Caller {
        identity,
        kubernetes_version,
        presence,
    };
    match hub.ask_token(&caller, next).await {
        Ok(_) => {}
        Err(error) if error.is_reason(REASON_KEYS_EARLY) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    tracing::info!("the agent goes by new keys");
    Ok(Some(identity.promote_keys()?))
}

/// Stores the promoted keys. This may fail: the stored identity still has them as the next ones, so a restart finds
/// them again.
async fn save_promoted(store: &StateStore<'_>, identity: &Identity) {
    if let Err(error) = store.save_identity(identity).await {
        tracing::warn!(
            error = crate::hub::chain(&error),
            "can't store that the new keys are in use"
        );
    }
}
