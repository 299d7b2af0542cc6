//! The entries of a cluster's services.

use farwater_api::{
    ServiceDeployment,
    change_window::Windows,
    protocol::{Action, Entry, Verbatim},
};
use farwater_fleet::placement::NamedGrant;
use farwater_store::{
    Key, Resource, StoreError,
    delivery::{
        Assignment, ClusterRows, HeldService, MemberRollout, ServiceOrigin, ServiceRows, load_held, load_service_rows,
        rollout_of_service,
    },
};

use crate::{
    guards::{follow_windows::Handing, freeze_prunes},
    replica::Replica,
    resources::{self, Name, Stored as _},
    services::{
        ClusterFacts, ServiceFacts, SourceUrls,
        compute_desired::{READ_AT_ONCE, publish::MemberChange},
        dependencies, held_specs, load_grants,
        parameters::{Fresh, InputCache, give},
        secrets,
    },
    sets::rollouts,
};

/// Entries, parameters that were resolved in this round, changes of members, and windows.
pub(super) type Resolved = (
    Vec<Verbatim<Entry>>,
    Vec<Fresh>,
    Vec<MemberChange>,
    Option<Verbatim<Windows>>,
);

/// Resolves the entries of a cluster's services, and the parameters that they need.
pub(super) async fn resolve_entries(
    replica: &Replica,
    cluster: &ClusterFacts,
    rows: &ClusterRows,
    grants: &[NamedGrant],
    (inputs, mut handing): (&mut InputCache, Handing),
) -> Result<Resolved, StoreError> {
    let mut urls = SourceUrls::default();
    let (mut entries, mut fresh, mut changes) = (Vec::with_capacity(rows.assignments.len()), Vec::new(), Vec::new());
    for some in rows.assignments.chunks(READ_AT_ONCE) {
        let keys: Vec<_> = some.iter().map(key_of).collect();
        let mut services = replica.store.get_all(&keys).await?;
        let mut last_word = None;
        for (row, key) in some.iter().zip(keys) {
            let uid = &row.service_uid;
            let specs = (rows.members.get(uid), rows.held.get(uid));
            let known = (row, rows.origins.get(uid), rows.parameters.get(uid), specs);
            let found = services.remove(&key).filter(|found| found.uid == *uid);
            // `assign_revisions` deletes the rows of a service that is gone or was recreated.
            let Some(found) = found else { continue };
            let Some(Service { found, newer }) = load_newer(replica, row, found).await? else {
                continue;
            };
            let (row, origin, parameters, (member, held)) = match newer.as_deref() {
                None => known,
                Some((row, rows)) => {
                    let specs = (rows.member.as_ref(), rows.held.as_ref());
                    (row, rows.origin.as_ref(), rows.parameters.as_ref(), specs)
                }
            };

            let service = resources::parse_owned(found)?;
            let facts = facts_of(replica, row, service, (origin, (member, held)), &mut urls).await?;
            // A service that was read a second time may have been deleted after these were loaded for another service.
            if facts.deleting() && (last_word.is_none() || newer.is_some()) {
                last_word = Some(LastWord::load(replica, cluster).await?);
            }
            let (cluster, grants) = match last_word.as_ref().filter(|_| facts.deleting()) {
                Some(last) => (&last.cluster, last.grants.as_slice()),
                None => (cluster, grants),
            };

            let secrets = secrets::resolve(replica, &facts).await?;
            let (given, resolved) = give(replica, &facts, cluster, parameters, inputs).await?;
            fresh.extend(resolved);
            let entry = Verbatim::from(facts.resolve_entry(cluster, grants, &secrets, &given).0);

            changes.extend(
                member
                    .map(|member| note_member(member, &facts, &entry))
                    .transpose()?
                    .flatten(),
            );
            handing.add(replica, &facts, entry.digest()).await?;
            entries.push(entry);
        }
    }
    Ok((entries, fresh, changes, handing.end().map(Verbatim::from)))
}

/// A service, and its rows if those that were read before may not match it.
pub(super) struct Service {
    pub(super) found: Resource,
    pub(super) newer: Option<Box<(Assignment, ServiceRows)>>,
}

/// The spec that counts and the assignment are decided after a service is written, and saved with it or later. So the
/// rows are read after the service. None: the service no longer belongs to the cluster.
pub(super) async fn load_newer(
    replica: &Replica,
    row: &Assignment,
    found: Resource,
) -> Result<Option<Service>, StoreError> {
    let mut found = found;
    let generation = |found: &Resource| found.object["metadata"]["generation"].as_i64().unwrap_or(0);
    if generation(&found) == row.generation {
        return Ok(Some(Service { found, newer: None }));
    }
    loop {
        let mut rows = load_service_rows(&mut *replica.store.tables().await?, &row.service_uid).await?;
        let assignment = rows.assignment.take().filter(|now| now.cluster_uid == row.cluster_uid);
        let Some(assignment) = assignment else { return Ok(None) };
        let known = rows
            .member
            .as_ref()
            .map_or(0, |member| member.generation)
            .max(assignment.generation);
        if known <= generation(&found) {
            return Ok(Some(Service {
                found,
                newer: Some(Box::new((assignment, rows))),
            }));
        }
        // The service was written once more, and the rows may belong to that.
        let again = replica
            .store
            .get(&key_of(row))
            .await?
            .filter(|found| found.uid == row.service_uid);
        let Some(again) = again else { return Ok(None) };
        found = again;
    }
}

/// The inputs of removals. A removal is never taken back, so they are read after the deletion of its service.
pub(super) struct LastWord {
    pub(super) grants: Vec<NamedGrant>,
    pub(super) cluster: ClusterFacts,
}

impl LastWord {
    pub(super) async fn load(replica: &Replica, cluster: &ClusterFacts) -> Result<Self, StoreError> {
        let cluster = ClusterFacts {
            frozen: freeze_prunes::find(&replica.store).await?,
            ..cluster.clone()
        };
        Ok(Self {
            grants: load_grants(&replica.store).await?,
            cluster,
        })
    }
}

/// Returns the change of a member whose entry differs from before.
pub(super) fn note_member(
    member: &MemberRollout,
    facts: &ServiceFacts,
    entry: &Verbatim<Entry>,
) -> Result<Option<MemberChange>, StoreError> {
    let published = match (&entry.action, &facts.assigned) {
        (Action::Apply(deployment), Some(assigned)) => {
            rollouts::published(&facts.service.spec, assigned, entry.digest(), deployment.parameters)?
        }
        _ => String::new(),
    };
    let change = || MemberChange {
        set_uid: member.set_uid.clone(),
        service_uid: member.service_uid.clone(),
        published: published.clone(),
    };
    Ok((published != member.published).then(change))
}

pub(super) fn key_of(row: &Assignment) -> Key {
    ServiceDeployment::key(&Name::new(&row.namespace, &row.name))
}

/// Loads what decides about the entry of a row's service. None: the service is gone or was recreated.
pub async fn load_facts(
    replica: &Replica,
    row: &Assignment,
    origin: Option<&ServiceOrigin>,
    urls: &mut SourceUrls,
) -> Result<Option<ServiceFacts>, StoreError> {
    let found = replica.store.get(&key_of(row)).await?;
    let (member, held) = {
        let mut tables = replica.store.tables().await?;
        (
            rollout_of_service(&mut tables, &row.service_uid).await?,
            load_held(&mut tables, &row.service_uid).await?,
        )
    };
    let Some(service) = take_service(row, found)? else {
        return Ok(None);
    };
    facts_of(replica, row, service, (origin, (member.as_ref(), held.as_ref())), urls)
        .await
        .map(Some)
}

/// None: the service is gone or was recreated.
pub(super) fn take_service(row: &Assignment, found: Option<Resource>) -> Result<Option<ServiceDeployment>, StoreError> {
    found
        .filter(|resource| resource.uid == row.service_uid)
        .map(resources::parse_owned)
        .transpose()
}

/// The inputs of a service's entry, with the spec that counts.
pub async fn facts_of(
    replica: &Replica,
    row: &Assignment,
    service: ServiceDeployment,
    (origin, (member, held)): (Option<&ServiceOrigin>, (Option<&MemberRollout>, Option<&HeldService>)),
    urls: &mut SourceUrls,
) -> Result<ServiceFacts, StoreError> {
    let own = member
        .filter(|member| !member.held_spec.is_empty())
        .map(|_| service.spec.clone());
    let service = held_specs::effective(service, member, held)?;
    let urls = urls.of_service(&replica.store, &row.namespace, &service).await?;
    let mut facts = ServiceFacts::new(service, row, urls)?
        .from_origin(origin)?
        .of_member(member, own)?;
    dependencies::find_dependents(&replica.store, &mut facts).await?;
    Ok(facts)
}
