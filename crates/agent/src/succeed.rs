//! Keys that change: the agent follows the hub's successions, and goes over to new keys of its own.
//!
//! Whatever is to be remembered is stored before it is acted upon, so that the agent may be killed at any point.

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

/// Answers with successions that are asked for in a row.
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

/// Goes over to the keys that the hub has now. `accepted`: the key that has signed the last accepted state.
pub async fn follow_hub(agent: &Agent, store: &StateStore<'_>, accepted: Option<&str>) -> Result<(), SuccessionError> {
    for _ in 0..MAX_ANSWERS {
        let identity = agent.identity();
        let Position { sequence, .. } = identity.position;
        let successions = agent.hub.successions(&agent.caller(&identity), sequence).await?;
        let next = identity.follow(&successions, accepted)?;
        if next.position == identity.position {
            break;
        }
        // Before it counts: what the new key signs is stored from here on, and a restart must know that key.
        store.save_identity(&next).await?;
        let (position, key) = (next.position.sequence, next.signing_keys.first().map(|key| key.id.clone()));
        agent.hub.pins().set(next.pins());
        agent.set_identity(next);
        tracing::info!(succession = position, signing_key = key, "followed the hub to its new keys");
    }
    // The next one is asked for with the new position.
    agent.hub.forget_token();
    Ok(())
}

/// Makes new keys of the agent's own, has the hub take them, and goes by them. What was begun is gone on with.
pub async fn renew_keys(agent: &Agent, store: &StateStore<'_>) -> Result<(), SuccessionError> {
    let begun = agent.identity().next_keys.is_some();
    let identity = agent.identity().prepare_keys()?;
    if !begun {
        // In both places before the hub may ask for them: one of them may be lost.
        store.save_identity_twice(&identity).await?;
        agent.set_identity(identity.clone());
    }
    let Some(handover) = identity.handover()? else { return Ok(()) };
    let request = KeysRequest { cluster_uid: identity.cluster.uid.clone(), handovers: vec![handover] };
    agent.hub.hand_over(&request).await?;
    let process = Process { kubernetes_version: &agent.kubernetes_version, presence: &agent.presence };
    match try_next(&agent.hub, &identity, &process).await? {
        Some(promoted) => {
            save_promoted(store, &promoted).await;
            agent.set_identity(promoted);
            Ok(())
        }
        // Until then the present ones are good.
        None => Ok(()),
    }
}

/// Which process of the agent asks.
pub struct Process<'a> {
    pub kubernetes_version: &'a str,
    pub presence: &'a Presence,
}

/// The hub doesn't know the present keys. Perhaps it goes by the next ones, and its answer was lost; or it was restored and knows
/// older ones, which have handed over to these. None: neither.
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
    let request = KeysRequest { cluster_uid: identity.cluster.uid.clone(), handovers: identity.handovers.clone() };
    match hub.hand_over(&request).await {
        Ok(()) => Ok(Some(identity.clone())),
        Err(error) if error.is_reason(REASON_IDENTITY_UNKNOWN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Asks for a token with the next keys; from the hub's answer on only those count. None: the hub has not heard this process for long
/// enough.
async fn try_next(
    hub: &HubClient,
    identity: &Identity,
    process: &Process<'_>,
) -> Result<Option<Identity>, SuccessionError> {
    let Some(next) = &identity.next_keys else { return Ok(None) };
    let Process { kubernetes_version, presence } = *process;
    let caller = Caller { identity, kubernetes_version, presence };
    match hub.ask_token(&caller, next).await {
        Ok(_) => {}
        Err(error) if error.is_reason(REASON_KEYS_EARLY) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    tracing::info!("the agent goes by new keys");
    Ok(Some(identity.promote_keys()?))
}

/// What is stored still holds the keys as the next ones, so this may fail: after a restart they are found again.
async fn save_promoted(store: &StateStore<'_>, identity: &Identity) {
    if let Err(error) = store.save_identity(identity).await {
        tracing::warn!(error = crate::hub::chain(&error), "can't store that the new keys are in use");
    }
}
