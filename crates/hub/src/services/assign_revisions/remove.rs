//! The removal of a deleted service.

use std::time::{Duration, SystemTime};

use farwater_api::{
    AGENT_FINALIZER, ServiceDeployment,
    objects::ServiceReport,
    protocol::{Action, Entry},
    service_deployment::DeletionPolicy,
};
use farwater_fleet::assignment::{Decided, Trouble, Why};
use farwater_store::{
    Resource, StoreError, Write,
    delivery::{
        Assignment, Released, delete_assignment, delete_report, dependencies_of, load_assignment, load_report,
        mark_cluster, save_released, sources_of_service, stamp,
    },
};

use super::{
    LONGEST_REST,
    save::{Making, save_row},
    sooner,
    stated::Stated,
};
use crate::{
    clusters::track_clusters::until_silent,
    delivery::status,
    notify::{
        events::{self, EventText},
        farewell_postings,
    },
    queue::Next,
    replica::Replica,
    resources::{self, Name, Stored as _},
    services::{
        ClusterFacts, ServiceFacts, SourceUrls, dependencies, load_grants_for, orphans,
        parameters::Given,
        rows::{TypedRow as _, write_json},
        secrets,
        summarize_reports::is_removed,
    },
};

/// Handles a deleted service: it is listed as removed until the agent has confirmed. The resource is deleted at once
/// if no agent can confirm. The same holds if the service's objects stay and its agent is silent: the agent learns of
/// the removal when it is back.
pub async fn remove_service(
    replica: &Replica,
    name: &Name,
    resource: &Resource,
    service: ServiceDeployment,
    row: Option<Assignment>,
    cluster: Result<ClusterFacts, Trouble>,
) -> Result<Next, StoreError> {
    // Without a row nothing was ever assigned. A Cluster that was recreated under the same name never had this
    // service.
    let cluster = cluster.ok().filter(|cluster| cluster.agent.is_some());
    let (row, cluster) = match (row, cluster) {
        (Some(row), Some(cluster)) if cluster.uid == row.cluster_uid => (row, cluster),
        _ => return finish_removal(replica, name, resource, Farewell::default()).await,
    };

    let stated = Stated::of(&service).without_secrets();
    let facts = load_facts(replica, name, service, &row).await?;
    let entry = resolve_removal(replica, &facts, &cluster).await?;
    let report = load_report(&mut *replica.store.tables().await?, &resource.uid).await?;
    let said = report.as_ref().map(status::decode).transpose()?;
    let quiet = replica
        .memory
        .clusters
        .get(&cluster.uid)
        .map(|state| until_silent(&state, replica.clock.read()));

    let is_silent = matches!(quiet, Some(None));
    if let Some(farewell) = find_farewell(&facts, &cluster, &entry, said.as_ref(), is_silent) {
        if farewell.released.is_some() {
            tracing::warn!(service = %name, cluster = %cluster.name, "removed without a word of the silent agent");
        }
        return finish_removal(replica, name, resource, farewell).await;
    }

    let next = removal_row(&row, resource, &facts)?;
    let wants = sources_of_service(&mut *replica.store.tables().await?, &row.service_uid).await?;
    let making = Making {
        wants,
        ..Making::default()
    };
    save_row(replica, Some(row), next, making, stated, SystemTime::now()).await?;
    replica.wake_after_decision(name);
    // After this wait the agent counts as silent, unless it polls before.
    let wait = quiet.map(|left| left.map_or(LONGEST_REST, |left| left + Duration::from_secs(1)));
    Ok(sooner(Next::OnChange, wait))
}

async fn load_facts(
    replica: &Replica,
    name: &Name,
    service: ServiceDeployment,
    row: &Assignment,
) -> Result<ServiceFacts, StoreError> {
    let urls = SourceUrls::default()
        .of_service(&replica.store, &name.namespace, &service)
        .await?;
    let mut facts = ServiceFacts::new(service, row, urls)?;
    dependencies::find_dependents(&replica.store, &mut facts).await?;
    Ok(facts)
}

/// The entry by which the agent removes the service. It deletes the objects that were applied, so it needs no
/// parameters.
async fn resolve_removal(replica: &Replica, facts: &ServiceFacts, cluster: &ClusterFacts) -> Result<Entry, StoreError> {
    let secrets = secrets::resolve(replica, facts).await?;
    let grants = load_grants_for(&replica.store, &facts.name.namespace).await?;
    let (entry, _) = facts.resolve_entry(cluster, &grants, &secrets, &Given::default());
    Ok(entry)
}

/// None: the agent still has to confirm the removal.
fn find_farewell(
    facts: &ServiceFacts,
    cluster: &ClusterFacts,
    entry: &Entry,
    said: Option<&ServiceReport>,
    is_silent: bool,
) -> Option<Farewell> {
    let objects = said.map(|said| said.objects.as_slice()).unwrap_or_default();
    if is_removed(said, entry) {
        return Some(Farewell {
            told: orphans::left_by_agent(&cluster.name.name, objects),
            released: None,
        });
    }
    let is_orphaned = matches!(
        entry.action,
        Action::Remove {
            policy: DeletionPolicy::Orphan,
            ..
        }
    );
    (is_silent && is_orphaned).then(|| Farewell {
        told: Some(orphans::left_by_hub(&cluster.name.name, objects)),
        released: Some(Released {
            service_uid: facts.uid.clone(),
            cluster_uid: cluster.uid.clone(),
            namespace: facts.name.namespace.clone(),
            name: facts.name.name.clone(),
        }),
    })
}

/// The row of a service that its agent has to remove.
fn removal_row(row: &Assignment, resource: &Resource, facts: &ServiceFacts) -> Result<Assignment, StoreError> {
    // The reason changes when the last dependent is gone, and that change marks the cluster.
    let why = match facts.dependents.is_empty() {
        true => Why::Current,
        false => Why::Waiting(format!("waits until {} are gone", facts.dependents.join(", "))),
    };
    let decided = Decided {
        why,
        suspended: Some(facts.suspended),
        sourceless: false,
        turn: row.read_decided()?.turn,
        held: None,
    };
    Ok(Assignment {
        stamp: stamp(&resource.object),
        generation: resource.object["metadata"]["generation"].as_i64().unwrap_or(0),
        why: write_json(&decided)?,
        ..row.clone()
    })
}

/// The rows and Events to write when a service's resource is deleted.
#[derive(Debug, Default)]
struct Farewell {
    told: Option<EventText>,
    /// Set if its agent has not confirmed the removal.
    released: Option<Released>,
}

/// Removes the finalizer and deletes the service's rows, in one transaction.
async fn finish_removal(
    replica: &Replica,
    name: &Name,
    resource: &Resource,
    farewell: Farewell,
) -> Result<Next, StoreError> {
    let key = ServiceDeployment::key(name);
    let about = resource.clone();
    let uid = resource.uid.clone();
    let change = resources::without_finalizer(resource, AGENT_FINALIZER);
    let postings = farewell_postings(&replica.notifications, resource);
    let told = postings.clone();

    let finished = replica.store.transact(move |tx| {
        Box::pin(async move {
            if let Some(row) = load_assignment(tx, &uid)
                .await?
                .filter(|row| !row.cluster_uid.is_empty())
            {
                mark_cluster(tx, &row.cluster_uid).await?;
            }
            let freed = dependencies_of(tx, &uid).await?;
            delete_assignment(tx, &uid).await?;
            delete_report(tx, &uid).await?;
            if let Some(released) = &farewell.released {
                save_released(tx, released).await?;
            }
            for posting in &told {
                posting.save(tx).await?;
            }
            if let Some(told) = &farewell.told {
                events::write_event(tx, &about, told).await?;
            }
            if let Some(change) = change {
                tx.write(Write { key, change }).await?;
            }
            Ok(freed)
        })
    });

    dependencies::wake(replica, &name.namespace, finished.await?);
    postings
        .into_iter()
        .for_each(|posting| posting.wake(&replica.notifications));
    dependencies::wake_dependents(replica, name).await?;
    replica.wake_after_mark();
    replica.wake_after_release();
    tracing::info!(service = %name, "removed");
    Ok(Next::OnChange)
}
