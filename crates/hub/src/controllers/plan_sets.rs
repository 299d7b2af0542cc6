//! What a ServiceSet would make of its clusters, without making it.

use std::collections::HashMap;

use farwater_api::{
    ServiceSet,
    service_set::{MAX_PLANNED, Member, MemberState, PlannedChange, SetError, SetPlan},
};
use farwater_fleet::stamping::{SpecProblem, Template};
use farwater_store::{
    Resource, StoreError,
    delivery::{SetMember, member_named, members_of_set, page_of_members},
};

use super::{
    resources::{self, Name},
    rollouts,
    services::{SourceUrls, load_grants_for},
    stamp_services::{ClusterPages, Stamper, Step, cluster_name, find_brake},
};
use crate::delivery::Delivery;

/// `set_uid`: of the set that is there; empty: none is.
pub async fn plan(
    delivery: &Delivery,
    name: &Name,
    set_uid: &str,
    set: &ServiceSet,
) -> Result<Result<SetPlan, Vec<SpecProblem>>, StoreError> {
    let template = match Template::read(&name.name, &set.spec) {
        Ok(template) => template,
        Err(problems) => return Ok(Err(problems)),
    };
    let grants = load_grants_for(&delivery.store, &name.namespace).await?;
    let rows = members_of_set(&mut *delivery.store.tables().await?, set_uid).await?;
    let mut rows: HashMap<String, SetMember> = rows.into_iter().map(|row| (row.cluster_uid.clone(), row)).collect();
    let mut stamper = Stamper { delivery, name, set_uid, set, template, grants, urls: SourceUrls::default() };
    let mut plan = SetPlan::default();
    let mut pages = ClusterPages::of(&name.namespace);
    while let Some(clusters) = pages.next(&delivery.store).await? {
        for (cluster, found) in stamper.select(clusters).await? {
            let row = rows.get(&cluster.uid);
            let step = stamper.examine(&cluster, row, found).await?;
            if !matches!(step, Step::NotGranted) {
                rows.remove(&cluster.uid);
                note(&mut plan, format!("{}/{}", cluster.key.namespace, cluster.key.name), step);
            }
        }
    }
    let losing = rows.values().filter(|row| !row.has_left() && row.has_service());
    plan.dropped = losing.filter_map(|row| cluster_name(delivery, &row.cluster_uid)).collect();
    let counts = &mut plan.counts;
    counts.dropped = plan.dropped.len();
    let kept = counts.added + counts.changed + counts.unchanged + counts.errors;
    plan.brake = find_brake(counts.dropped, i64::try_from(kept).unwrap_or(i64::MAX));
    for names in [&mut plan.added, &mut plan.dropped] {
        names.sort_unstable();
        names.truncate(MAX_PLANNED);
    }
    plan.changed.sort_unstable_by(|a, b| a.cluster.cmp(&b.cluster));
    plan.errors.sort_unstable_by(|a, b| a.cluster.cmp(&b.cluster));
    plan.changed.truncate(MAX_PLANNED);
    plan.errors.truncate(MAX_PLANNED);
    Ok(Ok(plan))
}

fn note(plan: &mut SetPlan, cluster: String, step: Step) {
    match step {
        Step::NotGranted => {}
        Step::Same => plan.counts.unchanged += 1,
        Step::Add(_) => {
            plan.counts.added += 1;
            plan.added.push(cluster);
        }
        Step::Change { fields, .. } => {
            plan.counts.changed += 1;
            plan.changed.push(PlannedChange { cluster, fields });
        }
        Step::Problem(message) | Step::Taken { problem: message, .. } => {
            plan.counts.errors += 1;
            plan.errors.push(SetError { cluster, message });
        }
    }
}

/// Some members of a set behind a place that an earlier call gave, and the place for the next call; none: these were the last.
pub async fn members(
    delivery: &Delivery,
    (name, resource): (&Name, &Resource),
    (after, limit): (&str, u32),
) -> Result<(Vec<Member>, Option<String>), StoreError> {
    let rows = page_of_members(&mut *delivery.store.tables().await?, &resource.uid, after, limit).await?;
    let last = rows.last().map(|row| row.cluster_uid.clone());
    let page = (after, last.as_deref().unwrap_or_default());
    let is_whole = rows.len() == limit as usize;
    let told = tell(delivery, (name, resource), rows, page).await?;
    Ok((told, last.filter(|_| is_whole)))
}

/// The member whose service is called so.
pub async fn member(
    delivery: &Delivery,
    (name, resource): (&Name, &Resource),
    service: &str,
) -> Result<Option<Member>, StoreError> {
    let Some(row) = member_named(&mut *delivery.store.tables().await?, &resource.uid, service).await? else {
        return Ok(None);
    };
    let uid = row.cluster_uid.clone();
    // Nothing shorter than it lies between.
    let page = (&uid[..uid.len().saturating_sub(1)], uid.as_str());
    Ok(tell(delivery, (name, resource), vec![row], page).await?.pop())
}

/// `page`: the clusters that all of the rows lie between.
async fn tell(
    delivery: &Delivery,
    (name, resource): (&Name, &Resource),
    rows: Vec<SetMember>,
    page: (&str, &str),
) -> Result<Vec<Member>, StoreError> {
    let set: ServiceSet = resources::parse(resource)?;
    let mut standings = rollouts::tell_standings(delivery, name, (resource, &set), page).await?;
    // What has left and has nothing any more is only counted.
    let told = rows.into_iter().filter(|row| !row.has_left() || row.has_service()).map(|row| {
        let (step, standing) = standings.remove(&row.cluster_uid).unwrap_or_default();
        member_of(delivery, row, (step, standing))
    });
    Ok(told.collect())
}

fn member_of(delivery: &Delivery, row: SetMember, (step, standing): (String, String)) -> Member {
    Member {
        cluster: cluster_name(delivery, &row.cluster_uid).unwrap_or_default(),
        state: match () {
            () if row.has_left() => MemberState::Leaving,
            () if !row.problem.is_empty() => MemberState::Failed,
            () if row.ready == 1 => MemberState::Ready,
            () => MemberState::Progressing,
        },
        service: if row.has_service() { row.service_name } else { String::new() },
        message: row.problem,
        step,
        standing,
    }
}
