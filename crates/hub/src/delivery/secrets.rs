//! `GET /agent/v1/secrets/<service uid>/<mac>`: the Secrets of a service, sealed to the agent that requests them.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Digest, ServiceDeployment,
    protocol::{Action, Entry, SealedSecrets},
};
use farwater_store::delivery::{Agent, load_agent, load_desired};
use http::HeaderMap;
use rustls::crypto::{
    aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256,
    hpke::{Hpke as _, HpkePublicKey},
};

use crate::{
    delivery::{answer::Refusal, desired, token::authenticate},
    replica::Replica,
    resources::{self, Name},
    services::{
        held_specs,
        secrets::{load, mac},
    },
};

pub async fn get_secrets(
    State(replica): State<Arc<Replica>>,
    Path((service, mac)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<SealedSecrets>, Refusal> {
    let cluster = authenticate(&replica, &headers)?;
    let wanted: Digest = mac.parse().map_err(|error| Refusal::Invalid(format!("{error}")))?;
    let (row, agent) = {
        let mut tables = replica.store.tables().await?;
        (
            load_desired(&mut tables, &cluster.uid).await?,
            load_agent(&mut tables, &cluster.uid).await?,
        )
    };
    let not_desired = || Refusal::SecretsNotDesired {
        service: service.clone(),
    };
    let (row, agent) = (row.ok_or_else(not_desired)?, agent.ok_or(Refusal::IdentityUnknown)?);
    let entries = desired::read_content(&row)?.entries;
    let entry = entries.into_iter().find(|entry| names(entry, &service, &wanted));
    let planned = || replica.memory.plans.entry_with_secrets(&cluster.uid, &service, &wanted);
    let entry = entry.or_else(planned).ok_or_else(not_desired)?;
    let name = Name::new(&entry.service.namespace, &entry.service.name);
    let found = resources::load::<ServiceDeployment>(&replica.store, &name).await?;
    let (_, resource) = found
        .filter(|(resource, _)| resource.uid == service)
        .ok_or_else(not_desired)?;
    let resource = held_specs::load_effective(&replica, &service, resource).await?;
    let loaded = load(&replica.store, &name.namespace, &resource.spec.secrets).await?;
    // If a Secret was edited since, a new state is about to be published.
    let json = loaded
        .ok()
        .filter(|json| self::mac(&replica.identity, &service, json) == wanted);
    let info = SealedSecrets::info(replica.identity.installation(), &cluster.uid, &service, &wanted);
    Ok(Json(seal(&agent, &info, &json.ok_or_else(not_desired)?)?))
}

fn names(entry: &Entry, service: &str, mac: &Digest) -> bool {
    let named = match &entry.action {
        Action::Apply(deployment) => deployment.secrets,
        Action::Hold { .. } | Action::Remove { .. } | Action::Unreadable(_) => None,
    };
    entry.service.uid == service && named == Some(*mac)
}

/// Seals values to an agent's key.
pub fn seal(agent: &Agent, info: &[u8], json: &[u8]) -> Result<SealedSecrets, Refusal> {
    let key = HpkePublicKey(agent.sealing_key.clone());
    let sealed = DH_KEM_X25519_HKDF_SHA256_AES_256.seal(info, &[], json, &key);
    // When the agent joined, only the key's length was checked.
    let (encapsulated, ciphertext) = sealed.map_err(|error| {
        Refusal::Invalid(format!(
            "nothing can be sealed to this agent's key ({error}); join again"
        ))
    })?;
    Ok(SealedSecrets {
        encapsulated: BASE64.encode(encapsulated.0),
        ciphertext: BASE64.encode(ciphertext),
    })
}
