//! Dependencies between services: what a newer version waits for, what a removal waits for, and which services to
//! requeue.

use std::collections::BTreeMap;

use farwater_api::{
    RolloutPhase, ServiceDeployment, ServiceDeploymentSpec, ServiceDeploymentStatus, ServiceSet, ServiceSetSpec,
    ServiceSetStatus,
    service_deployment::{DeletionPolicy, DependencyReference},
};
use farwater_fleet::{
    conditions::{find, holding},
    dependencies::{
        self, Dependency, SetDependency, find_cycle, judge_by_expression, resolve, resolve_of_set, set_key, set_of_key,
    },
    stamping::Template,
};
use farwater_store::{
    Connection, Resource, Store, StoreError,
    delivery::{Assignment, dependents_of, is_untouched, load_assignment, load_chart, load_revision, paths_of_service},
};

use super::{ServiceFacts, rows::TypedRow as _};
use crate::{
    replica::Replica,
    resources::{self, Name, Stored as _},
    sets::rollouts,
    sources::git,
};

/// Maximum number of services followed from one to the next. If a service depends on more, directly or through others,
/// its order is unknown.
const MOST: usize = 1000;

/// Why a newer version of a service is not delivered yet.
#[derive(Debug, Default)]
pub struct Waits {
    pub reasons: Vec<String>,
    pub cycle: Option<Vec<String>>,
}

pub async fn load_waits(replica: &Replica, name: &Name, service: &ServiceDeployment) -> Result<Waits, StoreError> {
    let mut waits = Waits::default();
    for reference in &service.spec.depends_on {
        let key = resolve(reference, &service.spec.cluster_ref.name);
        let of = Name::new(&name.namespace, set_of_key(&key).unwrap_or(&key));
        let reason = match (&reference.ready_expr, set_of_key(&key)) {
            (Some(text), found) => {
                let place = if found.is_some() {
                    ServiceSet::key(&of)
                } else {
                    ServiceDeployment::key(&of)
                };
                let object = replica.store.get(&place).await?.map(|found| found.object);
                judge_by_expression(&key, text, object.as_deref())
            }
            (None, Some(_)) => judge_set(replica, &of).await?,
            (None, None) => judge(replica, &of).await?,
        };
        waits.reasons.extend(reason);
    }
    if !waits.reasons.is_empty() {
        let names = names(&service.spec);
        let graph = load_graph(&replica.store, name, names).await?.unwrap_or_default();
        waits.cycle = find_cycle(&name.name, &graph);
    }
    Ok(waits)
}

/// The dependencies of a service, by their names in the graph.
pub fn names(spec: &ServiceDeploymentSpec) -> Vec<String> {
    spec.depends_on
        .iter()
        .map(|reference| resolve(reference, &spec.cluster_ref.name))
        .collect()
}

/// The dependencies of a set's services, in any variant of its template.
pub fn names_of_set(spec: &ServiceSetSpec) -> Vec<String> {
    let mut names = Vec::new();
    for (_, template) in Template::variants(spec) {
        let stated = template.0.get("dependsOn").cloned().unwrap_or_default();
        // The schema refuses a template that can't be read.
        let references: Vec<DependencyReference> = serde_json::from_value(stated).unwrap_or_default();
        names.extend(references.iter().map(resolve_of_set));
    }
    names.sort_unstable();
    names.dedup();
    names
}

async fn judge_set(replica: &Replica, name: &Name) -> Result<Option<String>, StoreError> {
    let Some((resource, set)) = resources::load::<ServiceSet>(&replica.store, name).await? else {
        return Ok(dependencies::judge_set(SetDependency {
            name: &name.name,
            set: None,
            is_looked_at: false,
            unhealthy: None,
        }));
    };
    let is_looked_at = rollouts::is_looked_at(replica, name, &resource.uid, &set).await?;
    if !is_looked_at {
        replica.memory.sets.queue.add(name.clone());
    }
    let conditions = set.status.iter().flat_map(|status| &status.conditions);
    let is_ready = holding(conditions, "Ready").is_some();
    let lacks = if is_ready {
        None
    } else {
        look_at_heard(replica, name, &resource).await?.lacks()
    };
    let unhealthy = lacks.as_deref();
    Ok(dependencies::judge_set(SetDependency {
        name: &name.name,
        set: Some(&set),
        is_looked_at,
        unhealthy,
    }))
}

/// Counted once for all services that wait for the set.
async fn look_at_heard(replica: &Replica, name: &Name, resource: &Resource) -> Result<rollouts::Heard, StoreError> {
    if let Some(known) = replica.memory.sets.heard(name, resource.version) {
        return Ok(known);
    }
    let heard = rollouts::look_at_heard(replica, &resource.uid).await?;
    replica.memory.sets.note_heard(name, resource.version, heard);
    Ok(heard)
}

/// The reason why a service is not healthy at the revision that its sources have now, in one sentence. None: it is.
pub async fn judge(replica: &Replica, name: &Name) -> Result<Option<String>, StoreError> {
    let Some((resource, _)) = resources::load::<ServiceDeployment>(&replica.store, name).await? else {
        return Ok(dependencies::judge(Dependency {
            name: &name.name,
            service: None,
            decided: None,
        }));
    };

    // Read first what touches the service, then its row, then its status: each is written together with the one before,
    // or later. An older row beside newer paths would look as if no commit had touched it since.
    let (row, newest) = {
        let mut tables = replica.store.tables().await?;
        let is_untouched = is_untouched(&paths_of_service(&mut tables, &resource.uid).await?);
        let row = load_assignment(&mut tables, &resource.uid).await?;
        let newest = match &row {
            Some(row) => find_newest(&mut tables, row, is_untouched).await?,
            None => None,
        };
        (row, newest)
    };

    let found = resources::load::<ServiceDeployment>(&replica.store, name).await?;
    let service = found.map(|(_, service)| service);

    let Some(row) = row else {
        return Ok(dependencies::judge(Dependency {
            name: &name.name,
            service: service.as_ref(),
            decided: None,
        }));
    };

    let (candidate, assigned, why) = (row.read_candidate()?, row.read_assigned()?, row.read_decided()?.why);
    let decided = dependencies::Decided {
        generation: row.generation,
        candidate: candidate.as_ref(),
        assigned: assigned.as_ref(),
        why: &why,
        newest: newest.as_deref(),
    };

    Ok(dependencies::judge(Dependency {
        name: &name.name,
        service: service.as_ref(),
        decided: Some(decided),
    }))
}

/// The revision that a service's sources have now. If there are several sources, it is one that differs from the
/// candidate's, if any does.
async fn find_newest(
    tables: &mut Connection,
    row: &Assignment,
    is_untouched: bool,
) -> Result<Option<String>, StoreError> {
    let candidate = row.read_candidate()?;

    // A pipeline may promote other texts with the same commit, and the revision's name does not show that.
    let served = load_revision(tables, &row.source_uid).await?;
    if let (Some(served), Some(candidate)) = (&served, &candidate)
        && served.taken.configuration != candidate.configuration
    {
        let revision = git::format_revision(&served.reference, &served.commit);
        return Ok(Some(format!("{revision} with other texts")));
    }

    let Some(candidate) = candidate.filter(|candidate| is_untouched || !candidate.parts.is_empty()) else {
        return Ok(served.map(|served| git::format_revision(&served.reference, &served.commit)));
    };

    for part in &candidate.parts {
        if is_untouched && part.source_uid == row.source_uid {
            continue;
        }
        let now = match &part.chart {
            Some(chart) => {
                let row = load_chart(tables, &part.source_uid, (&chart.name, &chart.version)).await?;
                row.filter(|row| !row.version.is_empty())
                    .map(|row| format!("{}@{}", row.version, row.digest))
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

/// Returns what each service reachable from `from` depends on; `names`: the dependencies of `from` itself. None: there
/// are too many.
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
        let next = match set_of_key(&name) {
            Some(set) => {
                let found = resources::load::<ServiceSet>(store, &Name::new(&from.namespace, set)).await?;
                found.map(|(_, set)| names_of_set(&set.spec)).unwrap_or_default()
            }
            None => {
                let found = resources::load::<ServiceDeployment>(store, &Name::new(&from.namespace, &name)).await?;
                found.map(|(_, service)| self::names(&service.spec)).unwrap_or_default()
            }
        };
        open.extend(next.iter().cloned());
        graph.insert(name, next);
    }
    Ok(Some(graph))
}

/// Finds the services that must be removed before a service that is deleted with its objects. A service in a cycle
/// waits for none.
pub async fn find_dependents(store: &Store, facts: &mut ServiceFacts) -> Result<(), StoreError> {
    if !facts.deleting() || facts.service.spec.deletion_policy != DeletionPolicy::Delete {
        return Ok(());
    }
    let Name { namespace, name } = &facts.name;
    facts.dependents = dependents_of(&mut *store.tables().await?, namespace, name).await?;
    if !facts.dependents.is_empty() {
        let graph = load_graph(store, &facts.name, names(&facts.service.spec))
            .await?
            .unwrap_or_default();
        if find_cycle(name, &graph).is_some() {
            facts.dependents.clear();
        }
    }
    Ok(())
}

/// The part of a service's status that other services depend on. If it changes, they are requeued.
pub fn standing(status: &ServiceDeploymentStatus) -> impl PartialEq + use<'_> {
    let ready = find(&status.conditions, "Ready");
    let counts = status.objects.map(|objects| objects.healthy == objects.total);
    (
        status.observed_generation,
        status.bundle_digest,
        &status.configuration,
        counts,
        ready.map(|ready| (&ready.status, &ready.reason)),
        status.applied_revision == status.assigned_revision,
    )
}

/// The part of a set's status that services depend on. If it changes, they are requeued.
pub fn standing_of_set(status: &ServiceSetStatus) -> impl PartialEq + use<'_> {
    let stalled = find(&status.conditions, "Stalled");
    let rollout = status.rollout.as_ref();
    (
        status.observed_generation,
        stalled.map(|stalled| &stalled.status),
        rollout.map(|rollout| {
            let is_complete = rollout.phase == RolloutPhase::Complete;
            (
                rollout.number,
                is_complete.then_some((status.clusters.ready, rollout.deferred)),
            )
        }),
    )
}

/// Requeues the services that depend on a whole set.
pub async fn wake_dependents_of_set(replica: &Replica, name: &Name) -> Result<(), StoreError> {
    let key = set_key(&name.name);
    let names = dependents_of(&mut *replica.store.tables().await?, &name.namespace, &key).await?;
    wake(replica, &name.namespace, names);
    Ok(())
}

/// Requeues the services that depend on this one.
pub async fn wake_dependents(replica: &Replica, name: &Name) -> Result<(), StoreError> {
    let names = dependents_of(&mut *replica.store.tables().await?, &name.namespace, &name.name).await?;
    wake(replica, &name.namespace, names);
    Ok(())
}

pub fn wake(replica: &Replica, namespace: &str, names: impl IntoIterator<Item = String>) {
    let services = names.into_iter().filter(|name| set_of_key(name).is_none());
    replica.wake_after_dependency(services.map(|name| Name::new(namespace, &name)));
}
