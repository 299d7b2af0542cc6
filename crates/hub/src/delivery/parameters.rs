//! `GET /agent/v1/parameters/<service uid>/<mac>`: the parameters of a service, sealed to the agent that requests them.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use farwater_api::{
    Digest, ServiceDeployment,
    protocol::{Action, Entry, SealedSecrets, Verbatim},
};
use farwater_store::delivery::{Agent, load_agent, load_desired, load_document, mark_parameters};
use http::HeaderMap;

use crate::{
    delivery::{answer::Refusal, desired, secrets::seal, token::authenticate},
    replica::Replica,
    resources::{self, Name},
    services::{
        ClusterFacts, held_specs,
        parameters::{InputCache, encode, load, mac},
    },
};

pub async fn get_parameters(
    State(replica): State<Arc<Replica>>,
    Path((service, mac)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<SealedSecrets>, Refusal> {
    let cluster = authenticate(&replica, &headers)?;
    let wanted: Digest = mac.parse().map_err(|error| Refusal::Invalid(format!("{error}")))?;
    let not_desired = || Refusal::ParametersNotDesired {
        service: service.clone(),
    };
    let (agent, entry) = find_entry(&replica, &cluster.uid, &service, &wanted).await?;
    let entry = entry.ok_or_else(not_desired)?;

    let info = SealedSecrets::info_of_parameters(replica.identity.installation(), &cluster.uid, &service, &wanted);
    if let Some(json) = load_document(&replica.store, &service, &wanted.to_string()).await? {
        return Ok(Json(seal(&agent, &info, &json)?));
    }

    let name = Name::new(&entry.service.namespace, &entry.service.name);
    let found = resources::load::<ServiceDeployment>(&replica.store, &name).await?;
    let (_, resource) = found
        .filter(|(resource, _)| resource.uid == service)
        .ok_or_else(not_desired)?;
    let resource = held_specs::load_effective(&replica, &service, resource).await?;
    let place = Name::new(&cluster.namespace, &cluster.name);
    let facts = ClusterFacts::load(&replica, &place)
        .await?
        .filter(|facts| *facts.uid == *cluster.uid);
    let facts = facts.ok_or_else(not_desired)?;

    let mut cache = InputCache::default();
    let (resolution, _) = load(&replica, &service, &name, &resource.spec, &facts, &mut cache).await?;
    let json = encode(&resolution.parameters);
    if !resolution.problems.is_empty() || self::mac(&replica.identity, &service, &json) != wanted {
        // An object was edited since, and a new state is about to be published. Mark the service again in case it is
        // not.
        let (uid, place) = (service.clone(), cluster.uid.to_string());
        replica
            .store
            .transact(move |tx| Box::pin(async move { mark_parameters(tx, &uid, &place).await }))
            .await?;
        replica.wake_after_mark();
        return Err(not_desired());
    }

    Ok(Json(seal(&agent, &info, &json)?))
}

/// Returns the agent of a cluster, and its entry that names the parameters, in its desired state or in a plan.
async fn find_entry(
    replica: &Replica,
    cluster_uid: &str,
    service: &str,
    wanted: &Digest,
) -> Result<(Agent, Option<Verbatim<Entry>>), Refusal> {
    let (row, agent) = {
        let mut tables = replica.store.tables().await?;
        (
            load_desired(&mut tables, cluster_uid).await?,
            load_agent(&mut tables, cluster_uid).await?,
        )
    };
    let row = row.ok_or_else(|| Refusal::ParametersNotDesired {
        service: service.to_owned(),
    })?;
    let agent = agent.ok_or(Refusal::IdentityUnknown)?;
    let entries = desired::read_content(&row)?.entries;
    let entry = entries.into_iter().find(|entry| names(entry, service, wanted));
    let planned = || replica.memory.plans.entry_with_parameters(cluster_uid, service, wanted);
    Ok((agent, entry.or_else(planned)))
}

fn names(entry: &Entry, service: &str, mac: &Digest) -> bool {
    let named = match &entry.action {
        Action::Apply(deployment) => deployment.parameters,
        Action::Hold { .. } | Action::Remove { .. } | Action::Unreadable(_) => None,
    };
    entry.service.uid == service && named == Some(*mac)
}
