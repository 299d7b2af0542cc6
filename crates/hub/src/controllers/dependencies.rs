//! Services that depend on one another: what a newer version waits for, what a removal waits for, and whom to wake.

use std::collections::BTreeMap;

use farwater_api::{ServiceDeployment, ServiceDeploymentStatus, service_deployment::DeletionPolicy};
use farwater_fleet::{
    assignment::{Candidate, Decided},
    dependencies::{self, Dependency, find_cycle},
};
use farwater_store::{
    Connection, Store, StoreError,
    delivery::{Assignment, dependents_of, is_untouched, load_assignment, load_chart, load_revision, paths_of_service},
};

use super::{
    git,
    resources::{self, Name},
    services::{ServiceFacts, read_json},
};
use crate::delivery::Delivery;

/// Services that are followed from one to the next. A namespace in which more hang together has no order that anybody knows.
const MOST: usize = 1000;

/// What keeps a newer version of a service from being delivered.
#[derive(Debug, Default)]
pub struct Waits {
    pub reasons: Vec<String>,
    pub cycle: Option<Vec<String>>,
}

pub async fn load_waits(delivery: &Delivery, name: &Name, service: &ServiceDeployment) -> Result<Waits, StoreError> {
    let mut waits = Waits::default();
    for reference in &service.spec.depends_on {
        waits.reasons.extend(judge(delivery, &Name::new(&name.namespace, &reference.name)).await?);
    }
    if !waits.reasons.is_empty() {
        let names = names(service);
        let graph = load_graph(&delivery.store, name, names).await?.unwrap_or_default();
        waits.cycle = find_cycle(&name.name, &graph);
    }
    Ok(waits)
}

fn names(service: &ServiceDeployment) -> Vec<String> {
    service.spec.depends_on.iter().map(|reference| reference.name.clone()).collect()
}

async fn judge(delivery: &Delivery, name: &Name) -> Result<Option<String>, StoreError> {
    // The row first: a status that is newer than it is of no harm.
    let Some((resource, _)) = resources::load::<ServiceDeployment>(&delivery.store, name).await? else {
        return Ok(dependencies::judge(Dependency { name: &name.name, service: None, decided: None }));
    };
    let (row, newest) = {
        let mut tables = delivery.store.tables().await?;
        let row = load_assignment(&mut tables, &resource.uid).await?;
        let newest = match &row {
            Some(row) => find_newest(&mut tables, row).await?,
            None => None,
        };
        (row, newest)
    };
    let found = resources::load::<ServiceDeployment>(&delivery.store, name).await?;
    let service = found.map(|(_, service)| service);
    let read = |text: &Option<String>| -> Result<Option<Candidate>, StoreError> {
        text.as_deref().map(|text| read_json(&resource.uid, text)).transpose()
    };
    let Some(row) = row else {
        return Ok(dependencies::judge(Dependency { name: &name.name, service: service.as_ref(), decided: None }));
    };
    let (candidate, assigned) = (read(&row.candidate)?, read(&row.assigned)?);
    let why = read_json::<Decided>(&row.service_uid, &row.why)?.why;
    let decided = dependencies::Decided {
        generation: row.generation,
        candidate: candidate.as_ref(),
        assigned: assigned.as_ref(),
        why: &why,
        newest: newest.as_deref(),
    };
    Ok(dependencies::judge(Dependency { name: &name.name, service: service.as_ref(), decided: Some(decided) }))
}

/// The revision that a service's sources have now: of several, one that it was not looked at with, if there is one.
async fn find_newest(tables: &mut Connection, row: &Assignment) -> Result<Option<String>, StoreError> {
    let candidate: Option<Candidate> =
        row.candidate.as_deref().map(|text| read_json(&row.service_uid, text)).transpose()?;
    // After the row: who writes a candidate writes with it what touches that.
    let is_untouched = is_untouched(&paths_of_service(tables, &row.service_uid).await?);
    let Some(candidate) = candidate.filter(|candidate| is_untouched || !candidate.parts.is_empty()) else {
        let newest = load_revision(tables, &row.source_uid).await?;
        return Ok(newest.map(|newest| git::format_revision(&newest.reference, &newest.commit)));
    };
    for part in &candidate.parts {
        if is_untouched && part.source_uid == row.source_uid {
            continue;
        }
        let now = match &part.chart {
            Some(chart) => {
                let row = load_chart(tables, &part.source_uid, (&chart.name, &chart.version)).await?;
                row.filter(|row| !row.version.is_empty()).map(|row| format!("{}@{}", row.version, row.digest))
            }
            None => {
                let newest = load_revision(tables, &part.source_uid).await?;
                newest.map(|newest| git::format_revision(&newest.reference, &newest.commit))
            }
        };
        if let Some(now) = now.filter(|now| *now != part.revision) {
            return Ok(Some(now));
        }
    }
    Ok(Some(candidate.revision))
}

/// What each service that is reached from one depends on; `names` is what that one itself does. None if there are too many.
pub async fn load_graph(
    store: &Store,
    from: &Name,
    names: Vec<String>,
) -> Result<Option<BTreeMap<String, Vec<String>>>, StoreError> {
    let mut open = names.clone();
    let mut graph = BTreeMap::from([(from.name.clone(), names)]);
    while let Some(name) = open.pop() {
        if graph.contains_key(&name) {
            continue;
        }
        if graph.len() == MOST {
            return Ok(None);
        }
        let found = resources::load::<ServiceDeployment>(store, &Name::new(&from.namespace, &name)).await?;
        let next = found.map(|(_, service)| self::names(&service)).unwrap_or_default();
        open.extend(next.iter().cloned());
        graph.insert(name, next);
    }
    Ok(Some(graph))
}

/// Who is to go before a service that is deleted with its objects. Who waits for itself waits for nobody.
pub async fn find_dependents(store: &Store, facts: &mut ServiceFacts) -> Result<(), StoreError> {
    if !facts.deleting() || facts.service.spec.deletion_policy != DeletionPolicy::Delete {
        return Ok(());
    }
    let Name { namespace, name } = &facts.name;
    facts.dependents = dependents_of(&mut *store.tables().await?, namespace, name).await?;
    if !facts.dependents.is_empty() {
        let graph = load_graph(store, &facts.name, names(&facts.service)).await?.unwrap_or_default();
        if find_cycle(name, &graph).is_some() {
            facts.dependents.clear();
        }
    }
    Ok(())
}

/// What of a status others go by: where it changes, they are looked at.
pub fn standing(status: &ServiceDeploymentStatus) -> impl PartialEq + use<'_> {
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    let counts = status.objects.map(|objects| objects.healthy == objects.total);
    (
        status.observed_generation,
        status.bundle_digest,
        counts,
        ready.map(|ready| (&ready.status, &ready.reason)),
        status.applied_revision == status.assigned_revision,
    )
}

/// Has the services looked at that depend on one.
pub async fn wake_dependents(delivery: &Delivery, name: &Name) -> Result<(), StoreError> {
    let names = dependents_of(&mut *delivery.store.tables().await?, &name.namespace, &name.name).await?;
    wake(delivery, &name.namespace, names);
    Ok(())
}

pub fn wake(delivery: &Delivery, namespace: &str, names: impl IntoIterator<Item = String>) {
    for name in names {
        delivery.services.add(Name::new(namespace, &name));
    }
}
