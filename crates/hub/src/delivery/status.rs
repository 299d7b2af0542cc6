//! `POST /agent/v1/status`: agents' reports on their services, and how they are read from the database.

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
    StoreError, Tx,
    delivery::{
        Report, assignments_of_cluster, change_agent, delete_released, delete_report, delete_reports, distrust_sources,
        linked_sources, load_agent, load_desired, load_report, mark_cluster, mark_restored, names_of_services,
        released_of_cluster, save_agent_report, save_desired, save_report, sources_of_service,
    },
};
use http::HeaderMap;
use jiff::Timestamp;

use super::{
    answer::{Refusal, read_json},
    token::{authenticate, check_versions, note_clock, verify_signature},
};
use crate::{
    memory::clusters::ClusterState,
    replica::Replica,
    resources::{Name, SourceName},
    services::released_entry,
    sources,
};

/// The limit of protocol.rs for an object's message.
const MAX_MESSAGE_BYTES: usize = 1024;
const ZSTD_LEVEL: i32 = 3;
/// Maximum patterns that are shown of each of an agent's own limits.
const MAX_LIMITS: usize = 100;
/// Maximum JSON bytes of a stored report.
const MAX_REPORT_BYTES: usize = 16 << 20;

pub async fn post_status(
    State(replica): State<Arc<Replica>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<StatusAnswer>, Refusal> {
    let cluster = authenticate(&replica, &headers)?;
    let report: StatusReport = read_json(body)?;
    check_versions(&report.agent_version, &report.kubernetes_version)?;

    if report.sequence <= report.base || i64::try_from(report.sequence).is_err() {
        return Err(Refusal::Invalid(
            "a report's sequence must be above its base".to_owned(),
        ));
    }
    if report.services.len() > MAX_REPORTED_SERVICES {
        return Err(Refusal::Invalid(format!(
            "a report speaks of more than {MAX_REPORTED_SERVICES} services"
        )));
    }

    if let Some(accepted) = &report.accepted {
        prove_epoch(&replica, &cluster, accepted).await?;
    }
    note_clock(&replica, &cluster.uid, report.system_time, Timestamp::now().as_second());

    let sequence = report.sequence;
    let saved = save_services(&replica, &cluster, report).await?;

    replica.memory.counters.reported.inc_by(saved.services.len() as u64);
    replica.wake_after_report(saved.services);
    if saved.versions_changed || saved.agent_changed {
        replica.check_cluster(&cluster.uid);
    }
    if saved.agent_changed {
        replica.wake_after_agent_report();
    }
    if saved.let_go {
        replica.wake_after_mark();
    }

    Ok(Json(StatusAnswer { sequence }))
}

/// Rows are encoded outside the transaction, because compressing inside it would delay all writers of the hub.
fn encode(service: &mut ServiceReport) -> Result<Vec<u8>, Refusal> {
    if service.objects.len() > MAX_REPORTED_OBJECTS {
        return Err(Refusal::Invalid(format!(
            "a service's report holds more than {MAX_REPORTED_OBJECTS} objects"
        )));
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
            patterns
                .iter_mut()
                .for_each(|pattern| *pattern = cut(pattern, MAX_MESSAGE_BYTES));
        }
    }
    serde_json::to_string(&report).map_err(|error| Refusal::Invalid(error.to_string()))
}

pub fn decode(row: &Report) -> Result<ServiceReport, StoreError> {
    let damaged = |problem: String| StoreError::Row {
        what: format!("report about service {}", row.service_uid),
        problem,
    };
    let json = zstd::bulk::decompress(&row.body, MAX_REPORT_BYTES).map_err(|error| damaged(error.to_string()))?;
    serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))
}

struct Saved {
    /// The services that the report is about.
    services: Vec<Name>,
    /// Whether the agent or its cluster was upgraded.
    versions_changed: bool,
    /// Whether the agent reports something new about itself.
    agent_changed: bool,
    /// Whether it has released a service that is gone here.
    let_go: bool,
}

/// Saves what the report says about this cluster's own services; other and unknown services are skipped.
async fn save_services(replica: &Replica, cluster: &ClusterState, report: StatusReport) -> Result<Saved, Refusal> {
    let uid = cluster.uid.to_string();
    // Outside the transaction, so that reports on invented services don't delay the hub's other writers.
    let known = services_of(replica, &uid, report.services.keys()).await?;
    let reported = report
        .services
        .into_iter()
        .filter(|(service_uid, _)| known.contains(service_uid));
    let rows = reported.map(NewReport::of).collect::<Result<Vec<_>, _>>()?;

    let received = Timestamp::now().as_second();
    let (sequence, base) = (report.sequence, report.base);
    let (agent_version, kubernetes_version) = (report.agent_version, report.kubernetes_version);
    let said_of_itself = report.agent.map(encode_agent).transpose()?;

    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            let agent = load_agent(tx, &uid).await?;
            let last = agent.as_ref().map_or(0, |agent| agent.report_sequence.unsigned_abs());
            if base != 0 && base != last {
                return Ok(Err(Refusal::BaseUnknown { last, base }));
            }

            let own = load_own(tx, &uid, (base != 0).then_some(&rows[..])).await?;
            if base == 0 {
                delete_reports(tx, &uid).await?;
            }
            let let_go = save_rows(tx, (&uid, received), &own, rows).await?;

            change_agent(tx, &uid, &agent_version, &kubernetes_version, Some(sequence)).await?;
            let versions_changed = agent.is_some_and(|agent| {
                agent.agent_version != agent_version || agent.kubernetes_version != kubernetes_version
            });
            let agent_changed = match &said_of_itself {
                Some(text) => save_agent_report(tx, &uid, text).await?,
                None => false,
            };
            let services = own.into_values().collect();
            Ok(Ok(Saved {
                services,
                versions_changed,
                agent_changed,
                let_go,
            }))
        })
    });

    saved.await?
}

/// The part of a report about one service.
struct NewReport {
    service_uid: String,
    /// None: the report withdraws the earlier one.
    body: Option<Vec<u8>>,
    /// Digest of the entry by which the agent has removed or released the service.
    removed: Option<Digest>,
}

impl NewReport {
    fn of((service_uid, service): (String, Option<ServiceReport>)) -> Result<Self, Refusal> {
        let removed = service
            .as_ref()
            .filter(|said| said.outcome == Outcome::Removed)
            .map(|said| said.entry);
        Ok(Self {
            service_uid,
            body: service.map(|mut service| encode(&mut service)).transpose()?,
            removed,
        })
    }
}

/// The names of the cluster's services that a report is about, by uid. `rows`: the reported services. None: the report
/// is complete, so it also withdraws reports on services that it does not contain.
async fn load_own(tx: &mut Tx, uid: &str, rows: Option<&[NewReport]>) -> Result<HashMap<String, Name>, StoreError> {
    let own = match rows {
        None => assignments_of_cluster(tx, uid)
            .await?
            .into_iter()
            .map(|row| (row.service_uid, row.namespace, row.name))
            .collect(),
        Some(rows) => {
            let reported: Vec<_> = rows.iter().map(|row| row.service_uid.as_str()).collect();
            names_of_services(tx, uid, &reported).await?
        }
    };
    let named = |(uid, namespace, name)| (uid, Name { namespace, name });
    Ok(own.into_iter().map(named).collect())
}

/// Saves the reports on a cluster's own services. Returns whether the agent has released a service that is gone here.
async fn save_rows(
    tx: &mut Tx,
    (uid, received): (&str, i64),
    own: &HashMap<String, Name>,
    rows: Vec<NewReport>,
) -> Result<bool, StoreError> {
    let released: HashMap<String, Digest> = released_of_cluster(tx, uid)
        .await?
        .into_iter()
        .map(|row| (row.service_uid.clone(), released_entry(&row, false).digest()))
        .collect();

    let mut let_go = false;
    for row in rows {
        if row.removed.is_some() && row.removed == released.get(&row.service_uid).copied() {
            delete_released(tx, &row.service_uid).await?;
            mark_cluster(tx, uid).await?;
            let_go = true;
        }
        if !own.contains_key(&row.service_uid) {
            continue;
        }
        let Some(body) = row.body else {
            delete_report(tx, &row.service_uid).await?;
            continue;
        };
        let report = Report {
            service_uid: row.service_uid,
            cluster_uid: uid.to_owned(),
            received,
            body,
        };
        save_report(tx, &report).await?;
    }
    Ok(let_go)
}

/// Those of these services that belong to the cluster, or that it has to release.
async fn services_of(
    replica: &Replica,
    cluster_uid: &str,
    reported: impl Iterator<Item = &String>,
) -> Result<HashSet<String>, StoreError> {
    let reported: Vec<&str> = reported.map(String::as_str).collect();
    let mut tables = replica.store.tables().await?;
    let own = names_of_services(&mut tables, cluster_uid, &reported).await?;
    let released = released_of_cluster(&mut tables, cluster_uid).await?;
    Ok(own
        .into_iter()
        .map(|(uid, ..)| uid)
        .chain(released.into_iter().map(|row| row.service_uid))
        .collect())
}

/// A statement of this hub that is newer than its database proves that the database was restored from a backup. The
/// epoch is raised above it, and nothing is deleted in this cluster until a person has confirmed the backup.
async fn prove_epoch(replica: &Replica, cluster: &ClusterState, accepted: &AcceptedStatement) -> Result<(), Refusal> {
    let statement = &accepted.statement;
    let own = statement.installation == replica.identity.installation() && statement.cluster_uid == *cluster.uid;
    if !own {
        return Ok(());
    }
    let current = {
        let mut tables = replica.store.tables().await?;
        load_desired(&mut tables, &cluster.uid)
            .await?
            .map(|row| (row.epoch, row.generation, row.tag))
    };
    let Some((epoch, generation, tag)) = current else {
        return Ok(());
    };
    let newer = (statement.epoch, statement.generation) > (epoch, generation);
    let forked = (statement.epoch, statement.generation) == (epoch, generation) && statement.tag != tag;
    if !newer && !forked {
        return Ok(());
    }
    let key = replica
        .identity
        .signing_key(&statement.key_id)
        .and_then(SigningKey::bytes);
    let proven = key.and_then(|key| verify_signature(&key, &statement.message(), &accepted.signature));
    if proven.is_none() {
        tracing::warn!(cluster = %cluster.name, "an agent shows a newer statement that this hub did not sign");
        return Ok(());
    }
    raise_epoch(replica, cluster, statement.epoch.saturating_add(1)).await
}

async fn raise_epoch(replica: &Replica, cluster: &ClusterState, epoch: u64) -> Result<(), Refusal> {
    tracing::error!(
        cluster = %cluster.name, epoch,
        "this hub's database is older than what it signed before: it was restored from a backup. Nothing is deleted in \
         the cluster until its Cluster is annotated {}={epoch}", farwater_api::CONFIRM_RESTORED
    );

    let uid = cluster.uid.to_string();
    let raised = replica.store.transact(move |tx| {
        Box::pin(async move {
            let Some(mut row) = load_desired(tx, &uid).await? else {
                return Ok(());
            };
            if row.epoch < epoch {
                // The state gets its signature and number when it is computed; the old row only says where those
                // continue.
                row.epoch = epoch;
                row.signature = String::new();
                let entries = super::desired::read_content(&row)?.entries;
                row.bundles = entries
                    .iter()
                    .filter_map(|entry| super::desired::bundle(entry))
                    .collect();
                save_desired(tx, &row).await?;
            }
            mark_restored(tx, &uid, epoch).await?;
            distrust_sources(tx, Some(&uid)).await?;
            mark_cluster(tx, &uid).await
        })
    });

    raised.await?;
    // Until the state is computed again, no answer is better than an unsigned one.
    replica.memory.clusters.change(&cluster.uid, |state| state.etag = None);
    replica.check_cluster(&cluster.uid);
    ask_sources(replica, &cluster.uid).await?;
    Ok(replica.wake_after_new_entries(&cluster.uid).await?)
}

/// Fetches the sources of a cluster's services at once, because the database's revisions are old.
async fn ask_sources(replica: &Replica, cluster_uid: &str) -> Result<(), StoreError> {
    let rows = assignments_of_cluster(&mut *replica.store.tables().await?, cluster_uid).await?;
    let mut uids: HashSet<String> = HashSet::new();
    for row in rows {
        let further = sources_of_service(&mut *replica.store.tables().await?, &row.service_uid).await?;
        uids.extend(further.into_iter().map(|source| source.source_uid));
        uids.insert(row.source_uid);
    }
    sources::each(&replica.store, None, |kind, resource| {
        if uids.contains(&resource.uid) {
            let name = Name::new(&resource.key.namespace, &resource.key.name);
            replica.fetch_now(&resource.uid, SourceName::Resource(kind, name));
        }
    })
    .await?;
    for source in linked_sources(&mut *replica.store.tables().await?).await? {
        if uids.contains(&source.source_uid) {
            let uid = source.source_uid.clone();
            replica.fetch_now(&uid, source.into());
        }
    }
    Ok(())
}

/// Answer of `GET servicedeployments/NAME/objects`: each object's state from the agent's last report; empty: there is
/// none yet.
pub async fn load_objects(replica: &Replica, service_uid: &str) -> Result<Vec<ObjectReport>, StoreError> {
    let mut tables = replica.store.tables().await?;
    let Some(row) = load_report(&mut tables, service_uid).await? else {
        return Ok(Vec::new());
    };
    Ok(decode(&row)?.objects)
}
