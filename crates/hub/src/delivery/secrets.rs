//! `GET /agent/v1/secrets/<service uid>/<mac>`: a service's Secrets, sealed to the agent that requests them.
//!
//! Desired states, entries and bundles name a MAC and no value. Values leave the hub only here: they are read from the
//! store for each request, and sealed to the key that the agent made before it joined.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Digest, ServiceDeployment,
    git_repository::LocalReference,
    protocol::{Action, Entry, MAX_SECRET_BYTES, SealedSecrets, SecretValue, Secrets},
};
use farwater_store::{
    Store, StoreError,
    delivery::{Agent, load_agent, load_desired},
};
use http::HeaderMap;
use rustls::crypto::{
    aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256,
    hpke::{Hpke as _, HpkePublicKey},
};
use zeroize::Zeroizing;

use super::{Delivery, answer::Refusal, desired, token::authenticate};
use crate::{
    controllers::{
        held_specs,
        resources::{self, Name},
        services::ServiceFacts,
    },
    identity::Identity,
};

const MAC_PURPOSE: &str = "service-secrets";
/// Such a token is bound to one API server and useless to another.
const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";

/// The MAC for a service's entry; None: it names no Secrets. `Err`: which Secret is missing or can't be sent.
pub async fn resolve(delivery: &Delivery, facts: &ServiceFacts) -> Result<Result<Option<Digest>, String>, StoreError> {
    let names = &facts.service.spec.secrets;
    if names.is_empty() || facts.deleting() {
        return Ok(Ok(None));
    }
    let loaded = load(&delivery.store, &facts.name.namespace, names).await?;
    Ok(loaded.map(|json| Some(mac(&delivery.identity, &facts.uid, &json))))
}

/// Loads the Secrets as JSON, equal for equal content.
async fn load(
    store: &Store,
    namespace: &str,
    names: &[LocalReference],
) -> Result<Result<Zeroizing<Vec<u8>>, String>, StoreError> {
    let mut secrets = Secrets::default();
    let mut missing = Vec::new();
    for LocalReference { name } in names {
        let Some(resource) = resources::load_secret(store, &Name::new(namespace, name)).await? else {
            missing.push(format!("Secret {name} does not exist in namespace {namespace}"));
            continue;
        };
        let object = &resource.object;
        let secret_type = object["type"].as_str().unwrap_or("Opaque").to_owned();
        if secret_type == TOKEN_TYPE {
            return Ok(Err(format!("Secret {name} is of type {TOKEN_TYPE}, which no other API server takes")));
        }
        let data = object["data"].as_object().into_iter().flatten();
        let data: BTreeMap<_, _> =
            data.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect();
        secrets.0.insert(name.clone(), SecretValue { secret_type, data });
    }

    if !missing.is_empty() {
        return Ok(Err(missing.join("; ")));
    }

    let json = Zeroizing::new(serde_json::to_vec(&secrets).map_err(StoreError::abort)?);
    if json.len() > MAX_SECRET_BYTES {
        let problem =
            format!("the Secrets of the service have {} bytes; at most {MAX_SECRET_BYTES} are sent", json.len());
        return Ok(Err(problem));
    }
    Ok(Ok(json))
}

/// Includes the service, so that two services with the same password don't have equal MACs in their entries.
fn mac(identity: &Identity, service_uid: &str, json: &[u8]) -> Digest {
    let message = Zeroizing::new([service_uid.as_bytes(), b"\n", json].concat());
    Digest::from_bytes(identity.mac(MAC_PURPOSE, &message))
}

pub async fn get_secrets(
    State(delivery): State<Arc<Delivery>>,
    Path((service, mac)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<SealedSecrets>, Refusal> {
    let cluster = authenticate(&delivery, &headers)?;
    let wanted: Digest = mac.parse().map_err(|error| Refusal::Invalid(format!("{error}")))?;
    let (row, agent) = {
        let mut tables = delivery.store.tables().await?;
        (load_desired(&mut tables, &cluster.uid).await?, load_agent(&mut tables, &cluster.uid).await?)
    };
    let not_desired = || Refusal::SecretsNotDesired { service: service.clone() };
    let (row, agent) = (row.ok_or_else(not_desired)?, agent.ok_or(Refusal::IdentityUnknown)?);
    let entries = desired::read_content(&row)?.entries;
    let entry = entries.into_iter().find(|entry| names(entry, &service, &wanted));
    let planned = || delivery.plans.entry_with_secrets(&cluster.uid, &service, &wanted);
    let entry = entry.or_else(planned).ok_or_else(not_desired)?;
    let name = Name::new(&entry.service.namespace, &entry.service.name);
    let found = resources::load::<ServiceDeployment>(&delivery.store, &name).await?;
    let (_, resource) = found.filter(|(resource, _)| resource.uid == service).ok_or_else(not_desired)?;
    let resource = held_specs::load_effective(&delivery, &service, resource).await?;
    let loaded = load(&delivery.store, &name.namespace, &resource.spec.secrets).await?;
    // If a Secret was edited since, a new state is about to be published.
    let json = loaded.ok().filter(|json| self::mac(&delivery.identity, &service, json) == wanted);
    let info = SealedSecrets::info(delivery.identity.installation(), &cluster.uid, &service, &wanted);
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
        Refusal::Invalid(format!("nothing can be sealed to this agent's key ({error}); join again"))
    })?;
    Ok(SealedSecrets { encapsulated: BASE64.encode(encapsulated.0), ciphertext: BASE64.encode(ciphertext) })
}
