//! `POST /agent/v1/status`: what an agent says of its services, and how it is read again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
};
use farwater_api::{
    Digest,
    hooks::{MAX_JUNIT_BYTES, MAX_LOG_BYTES, MAX_REPORTED_HOOKS},
    objects::{ObjectReport, Outcome, ServiceReport},
    protocol::{
        AcceptedStatement, AgentReport, AgentUpdate, MAX_REPORTED_OBJECTS, MAX_REPORTED_SERVICES, SigningKey,
        StatusAnswer, StatusReport,
    },
};
use farwater_fleet::conditions::cut;
use farwater_store::{
    StoreError,
    delivery::{
        Report, assignments_of_cluster, change_agent, delete_released, delete_report, delete_reports, distrust_sources,
        linked_sources, load_agent, load_desired, load_report, mark_cluster, mark_restored, names_of_services,
        released_of_cluster, save_agent_report, save_desired, save_report, sources_of_service,
    },
};
use http::HeaderMap;
use jiff::Timestamp;

use super::{
    Delivery,
    answer::{Refusal, read_json},
    clusters::ClusterState,
    token::{authenticate, check_versions, note_clock, verify_signature},
};
use crate::controllers::{
    resources::Name,
    services::released_entry,
    sources::{self, SourceName},
};

/// As protocol.rs says of an object's message.
const MAX_MESSAGE_BYTES: usize = 1024;
const ZSTD_LEVEL: i32 = 3;
/// Patterns of each of an agent's own limits that are shown.
const MAX_LIMITS: usize = 100;
/// Longest JSON of one stored report.
const MAX_REPORT_BYTES: usize = 16 << 20;

pub async fn post_status(
    State(delivery): State<Arc<Delivery>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<StatusAnswer>, Refusal> {
    let cluster = authenticate(&delivery, &headers)?;
    let report: StatusReport = read_json(body)?;
    check_versions(&report.agent_version, &report.kubernetes_version)?;
    if report.sequence <= report.base || i64::try_from(report.sequence).is_err() {
        return Err(Refusal::Invalid("a report's sequence must be above its base".to_owned()));
    }
    if report.services.len() > MAX_REPORTED_SERVICES {
        return Err(Refusal::Invalid(format!("a report speaks of more than {MAX_REPORTED_SERVICES} services")));
    }
    if let Some(accepted) = &report.accepted {
        prove_epoch(&delivery, &cluster, accepted).await?;
    }
    note_clock(&delivery, &cluster.uid, report.system_time, Timestamp::now().as_second());
    let sequence = report.sequence;
    let saved = save_services(&delivery, &cluster, report).await?;
    delivery.counters.reported.inc_by(saved.services.len() as u64);
    for name in saved.services {
        delivery.summaries.add(name);
    }
    if saved.versions_changed || saved.agent_changed {
        delivery.check_cluster(&cluster.uid);
    }
    if saved.agent_changed {
        delivery.agents.notify_one();
    }
    if saved.let_go {
        delivery.dirty.notify_one();
    }
    Ok(Json(StatusAnswer { sequence }))
}

/// Rows are made outside the transaction: compressing there would make all writers of the hub wait.
fn encode(service: &mut ServiceReport) -> Result<Vec<u8>, Refusal> {
    if service.objects.len() > MAX_REPORTED_OBJECTS {
        return Err(Refusal::Invalid(format!("a service's report holds more than {MAX_REPORTED_OBJECTS} objects")));
    }
    service.message = cut(&service.message, MAX_MESSAGE_BYTES);
    service.hooks.truncate(MAX_REPORTED_HOOKS);
    for hook in &mut service.hooks {
        hook.message = cut(&hook.message, MAX_MESSAGE_BYTES);
        hook.log.take_if(|log| log.len() > MAX_LOG_BYTES);
        hook.junit.take_if(|junit| junit.len() > MAX_JUNIT_BYTES);
    }
    for object in &mut service.objects {
        object.message = cut(&object.message, MAX_MESSAGE_BYTES);
    }
    let json = serde_json::to_vec(service).map_err(|error| Refusal::Invalid(error.to_string()))?;
    zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(|error| Refusal::Invalid(error.to_string()))
}

fn encode_agent(mut report: AgentReport) -> Result<String, Refusal> {
    if let AgentUpdate::Failed { reason, .. } | AgentUpdate::Unmanaged { reason } = &mut report.update {
        *reason = cut(reason, MAX_MESSAGE_BYTES);
    }
    report.image = report.image.map(|image| cut(&image, MAX_MESSAGE_BYTES));
    if let Some(limits) = &mut report.limits {
        for patterns in [&mut limits.accounts, &mut limits.namespaces, &mut limits.denied_kinds] {
            patterns.truncate(MAX_LIMITS);
            patterns.iter_mut().for_each(|pattern| *pattern = cut(pattern, MAX_MESSAGE_BYTES));
        }
    }
    serde_json::to_string(&report).map_err(|error| Refusal::Invalid(error.to_string()))
}

pub fn decode(row: &Report) -> Result<ServiceReport, StoreError> {
    let damaged =
        |problem: String| StoreError::Row { what: format!("report about service {}", row.service_uid), problem };
    let json = zstd::bulk::decompress(&row.body, MAX_REPORT_BYTES).map_err(|error| damaged(error.to_string()))?;
    serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))
}

struct Saved {
    /// Those that the report speaks of.
    services: Vec<Name>,
    /// Whether the agent or its cluster was upgraded.
    versions_changed: bool,
    /// Whether the agent says something new of itself.
    agent_changed: bool,
    /// Whether it has let go of a service that is gone here.
    let_go: bool,
}

/// Saves what the report says of this cluster's own services; others' and unknown ones are passed over.
async fn save_services(delivery: &Delivery, cluster: &ClusterState, report: StatusReport) -> Result<Saved, Refusal> {
    let uid = cluster.uid.to_string();
    // Outside of the transaction: invented services must not keep the hub's other writers waiting.
    let known = services_of(delivery, &uid, report.services.keys()).await?;
    let mut rows = Vec::with_capacity(known.len());
    for (service_uid, service) in report.services.into_iter().filter(|(service_uid, _)| known.contains(service_uid)) {
        let removed = service.as_ref().filter(|said| said.outcome == Outcome::Removed).map(|said| said.entry);
        let body = service.map(|mut service| encode(&mut service)).transpose()?;
        rows.push((service_uid, body, removed));
    }
    let received = Timestamp::now().as_second();
    let (sequence, base) = (report.sequence, report.base);
    let (agent_version, kubernetes_version) = (report.agent_version, report.kubernetes_version);
    let said_of_itself = report.agent.map(encode_agent).transpose()?;
    let saved = delivery.store.transact(move |tx| {
        Box::pin(async move {
            let agent = load_agent(tx, &uid).await?;
            let last = agent.as_ref().map_or(0, |agent| agent.report_sequence.unsigned_abs());
            if base != 0 && base != last {
                return Ok(Err(Refusal::BaseUnknown { last, base }));
            }
            // A whole report takes back what it does not speak of.
            let own = if base == 0 {
                assignments_of_cluster(tx, &uid)
                    .await?
                    .into_iter()
                    .map(|row| (row.service_uid, row.namespace, row.name))
                    .collect()
            } else {
                let reported: Vec<_> = rows.iter().map(|(service_uid, ..)| service_uid.as_str()).collect();
                names_of_services(tx, &uid, &reported).await?
            };
            let own: HashMap<String, Name> =
                own.into_iter().map(|(uid, namespace, name)| (uid, Name { namespace, name })).collect();
            let released: HashMap<String, Digest> = released_of_cluster(tx, &uid)
                .await?
                .into_iter()
                .map(|row| (row.service_uid.clone(), released_entry(&row, false).digest()))
                .collect();
            let mut let_go = false;
            if base == 0 {
                delete_reports(tx, &uid).await?;
            }
            for (service_uid, body, removed) in rows {
                if removed.is_some() && removed == released.get(&service_uid).copied() {
                    delete_released(tx, &service_uid).await?;
                    mark_cluster(tx, &uid).await?;
                    let_go = true;
                }
                if !own.contains_key(&service_uid) {
                    continue;
                }
                match body {
                    Some(body) => {
                        let (service_uid, cluster_uid) = (service_uid.clone(), uid.clone());
                        save_report(tx, &Report { service_uid, cluster_uid, received, body }).await?;
                    }
                    None => delete_report(tx, &service_uid).await?,
                }
            }
            change_agent(tx, &uid, &agent_version, &kubernetes_version, Some(sequence)).await?;
            let versions_changed = agent.is_some_and(|agent| {
                agent.agent_version != agent_version || agent.kubernetes_version != kubernetes_version
            });
            let agent_changed = match &said_of_itself {
                Some(text) => save_agent_report(tx, &uid, text).await?,
                None => false,
            };
            let services = own.into_values().collect();
            Ok(Ok(Saved { services, versions_changed, agent_changed, let_go }))
        })
    });
    saved.await?
}

/// Those of these services that are the cluster's, or that it has to let go of.
async fn services_of(
    delivery: &Delivery,
    cluster_uid: &str,
    reported: impl Iterator<Item = &String>,
) -> Result<HashSet<String>, StoreError> {
    let reported: Vec<&str> = reported.map(String::as_str).collect();
    let mut tables = delivery.store.tables().await?;
    let own = names_of_services(&mut tables, cluster_uid, &reported).await?;
    let released = released_of_cluster(&mut tables, cluster_uid).await?;
    Ok(own.into_iter().map(|(uid, ..)| uid).chain(released.into_iter().map(|row| row.service_uid)).collect())
}

/// A statement of this hub that is newer than its database proves that the database was restored from a backup: the epoch
/// rises above it, and nothing is deleted in this cluster until somebody has confirmed that the backup is right.
async fn prove_epoch(delivery: &Delivery, cluster: &ClusterState, accepted: &AcceptedStatement) -> Result<(), Refusal> {
    let statement = &accepted.statement;
    let own = statement.installation == delivery.identity.installation() && statement.cluster_uid == *cluster.uid;
    if !own {
        return Ok(());
    }
    let current = {
        let mut tables = delivery.store.tables().await?;
        load_desired(&mut tables, &cluster.uid).await?.map(|row| (row.epoch, row.generation, row.tag))
    };
    let Some((epoch, generation, tag)) = current else { return Ok(()) };
    let newer = (statement.epoch, statement.generation) > (epoch, generation);
    let forked = (statement.epoch, statement.generation) == (epoch, generation) && statement.tag != tag;
    if !newer && !forked {
        return Ok(());
    }
    let key = delivery.identity.signing_key(&statement.key_id).and_then(SigningKey::bytes);
    let proven = key.and_then(|key| verify_signature(&key, &statement.message(), &accepted.signature));
    if proven.is_none() {
        tracing::warn!(cluster = %cluster.name, "an agent shows a newer statement that this hub did not sign");
        return Ok(());
    }
    raise_epoch(delivery, cluster, statement.epoch.saturating_add(1)).await
}

async fn raise_epoch(delivery: &Delivery, cluster: &ClusterState, epoch: u64) -> Result<(), Refusal> {
    tracing::error!(
        cluster = %cluster.name, epoch,
        "this hub's database is older than what it signed before: it was restored from a backup. Nothing is deleted in \
         the cluster until its Cluster is annotated {}={epoch}", farwater_api::CONFIRM_RESTORED
    );
    let uid = cluster.uid.to_string();
    let raised = delivery.store.transact(move |tx| {
        Box::pin(async move {
            let Some(mut row) = load_desired(tx, &uid).await? else { return Ok(()) };
            if row.epoch < epoch {
                // Signed and numbered when it is computed; the old row only says where that starts.
                row.epoch = epoch;
                row.signature = String::new();
                let entries = super::desired::read_content(&row)?.entries;
                row.bundles = entries.iter().filter_map(|entry| super::desired::bundle(entry)).collect();
                save_desired(tx, &row).await?;
            }
            mark_restored(tx, &uid, epoch).await?;
            distrust_sources(tx, Some(&uid)).await?;
            mark_cluster(tx, &uid).await
        })
    });
    raised.await?;
    // Until it is computed anew, there is no answer rather than an unsigned one.
    delivery.clusters.change(&cluster.uid, |state| state.etag = None);
    delivery.check_cluster(&cluster.uid);
    ask_sources(delivery, &cluster.uid).await?;
    Ok(delivery.note_new_entries(&cluster.uid).await?)
}

/// Has the sources of a cluster's services asked at once: what the database says of them is old.
async fn ask_sources(delivery: &Delivery, cluster_uid: &str) -> Result<(), StoreError> {
    let rows = assignments_of_cluster(&mut *delivery.store.tables().await?, cluster_uid).await?;
    let mut uids: HashSet<String> = HashSet::new();
    for row in rows {
        let further = sources_of_service(&mut *delivery.store.tables().await?, &row.service_uid).await?;
        uids.extend(further.into_iter().map(|source| source.source_uid));
        uids.insert(row.source_uid);
    }
    sources::each(&delivery.store, None, |kind, resource| {
        if uids.contains(&resource.uid) {
            delivery.checks.hurry(&resource.uid);
            let name = Name::new(&resource.key.namespace, &resource.key.name);
            delivery.sources.add(SourceName::Resource(kind, name));
        }
    })
    .await?;
    for source in linked_sources(&mut *delivery.store.tables().await?).await? {
        if uids.contains(&source.source_uid) {
            delivery.checks.hurry(&source.source_uid);
            delivery.sources.add(source.into());
        }
    }
    Ok(())
}

/// Answer of `GET servicedeployments/NAME/objects`: the state of each object as the agent said last; none if it has said
/// nothing yet.
pub async fn load_objects(delivery: &Delivery, service_uid: &str) -> Result<Vec<ObjectReport>, StoreError> {
    let mut tables = delivery.store.tables().await?;
    let Some(row) = load_report(&mut tables, service_uid).await? else { return Ok(Vec::new()) };
    Ok(decode(&row)?.objects)
}
