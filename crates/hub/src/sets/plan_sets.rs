//! Plans of ServiceSets: the services that a set would create, change and delete, without doing so.

use std::collections::HashMap;

use farwater_api::{
    ServiceSet,
    service_set::{MAX_PLANNED, Member, MemberState, PlannedChange, RolloutSurvey, SetError, SetPlan},
};
use farwater_fleet::stamping::{SpecProblem, Template};
use farwater_store::{
    Resource, StoreError,
    delivery::{SetMember, member_named, members_of_set, members_on, page_of_members, page_of_step},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    rollouts::{self, Count, MemberProgress},
    set_versions,
    stamp_services::{ClusterPages, Stamper, Step, cluster_name, find_brake},
};
use crate::{
    replica::Replica,
    resources::{self, Name},
    services::{SourceUrls, load_grants_for},
};

/// `set_uid`: uid of the existing set; empty: there is none.
pub async fn plan(
    replica: &Replica,
    name: &Name,
    set_uid: &str,
    set: &ServiceSet,
) -> Result<Result<SetPlan, Vec<SpecProblem>>, StoreError> {
    let kept = set_versions::apply_pin(&mut *replica.store.tables().await?, set_uid, set.clone()).await?;
    let set = &match kept {
        Ok(kept) => kept,
        Err(why) => {
            return Ok(Err(vec![SpecProblem {
                field: "pin.version".to_owned(),
                why,
            }]));
        }
    };
    let template = match Template::read(&name.name, &set.spec) {
        Ok(template) => template,
        Err(problems) => return Ok(Err(problems)),
    };

    let grants = load_grants_for(&replica.store, &name.namespace).await?;
    let rows = members_of_set(&mut *replica.store.tables().await?, set_uid).await?;
    let mut rows: HashMap<String, SetMember> = rows.into_iter().map(|row| (row.cluster_uid.clone(), row)).collect();
    let mut stamper = Stamper {
        replica,
        name,
        set_uid,
        set,
        template,
        grants,
        urls: SourceUrls::default(),
    };

    let mut plan = SetPlan::default();
    let mut pages = ClusterPages::of(&name.namespace);
    while let Some(clusters) = pages.next(&replica.store).await? {
        for (cluster, found) in stamper.select(clusters).await? {
            let row = rows.get(&cluster.uid);
            let step = stamper.examine(&cluster, row, found).await?;
            if !matches!(step, Step::NotGranted) {
                rows.remove(&cluster.uid);
                let place = format!("{}/{}", cluster.key.namespace, cluster.key.name);
                count_step(&mut plan, place, step);
            }
        }
    }

    let losing = rows.values().filter(|row| !row.has_left() && row.has_service());
    let dropped = losing.filter_map(|row| cluster_name(replica, &row.cluster_uid));
    Ok(Ok(finish(plan, dropped.collect())))
}

/// Adds the clusters that lose their service, and sorts and cuts all lists.
fn finish(mut plan: SetPlan, dropped: Vec<String>) -> SetPlan {
    plan.dropped = dropped;
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
    plan
}

fn count_step(plan: &mut SetPlan, cluster: String, step: Step) {
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

/// The members to return.
#[derive(Clone, Copy, Debug)]
pub enum Selected {
    /// In no meaningful order, including those that leave.
    All,
    /// The members of one step, by the names of their services.
    Step(u16),
}

/// A position in the list of members; the next page begins after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Empty unless members are sorted by it.
    service_name: String,
    cluster_uid: String,
}

impl Place {
    /// None: it was not returned by an earlier call.
    pub fn parse(text: &str, selected: Selected) -> Option<Self> {
        let (service_name, cluster_uid) = match selected {
            Selected::All => ("", text),
            Selected::Step(_) if text.is_empty() => ("", ""),
            Selected::Step(_) => text.split_once('/')?,
        };
        Some(Self {
            service_name: service_name.to_owned(),
            cluster_uid: cluster_uid.to_owned(),
        })
    }

    fn behind(row: &SetMember, selected: Selected) -> String {
        match selected {
            Selected::All => row.cluster_uid.clone(),
            Selected::Step(_) => format!("{}/{}", row.service_name, row.cluster_uid),
        }
    }
}

/// Returns some members after a position that an earlier call returned, and the position for the next call. None: these
/// were the last.
pub async fn members(
    replica: &Replica,
    (name, resource): (&Name, &Resource),
    selected: Selected,
    (after, limit): (&Place, u32),
) -> Result<(Vec<Member>, Option<String>), StoreError> {
    let rows = {
        let mut tables = replica.store.tables().await?;
        match selected {
            Selected::All => page_of_members(&mut tables, &resource.uid, &after.cluster_uid, limit).await?,
            Selected::Step(step) => {
                let place = (&*after.service_name, &*after.cluster_uid);
                page_of_step(&mut tables, (&resource.uid, i64::from(step)), place, limit).await?
            }
        }
    };
    let is_whole = rows.len() == limit as usize;
    let next = rows
        .last()
        .filter(|_| is_whole)
        .map(|last| Place::behind(last, selected));
    Ok((tell(replica, (name, resource), rows).await?, next))
}

/// The member with a service of this name.
pub async fn member(
    replica: &Replica,
    (name, resource): (&Name, &Resource),
    service: &str,
) -> Result<Option<Member>, StoreError> {
    let row = member_named(&mut *replica.store.tables().await?, &resource.uid, service).await?;
    Ok(tell(replica, (name, resource), row.into_iter().collect()).await?.pop())
}

/// Counts the rollout of a set; reads all of its members.
pub async fn survey(replica: &Replica, (name, resource): (&Name, &Resource)) -> Result<RolloutSurvey, StoreError> {
    let set: ServiceSet = resources::parse(resource)?;
    let Count {
        survey,
        open,
        waits_for,
    } = rollouts::count(replica, name, (resource, &set)).await?;
    let mut named: Vec<&str> = open.iter().chain(&waits_for).map(String::as_str).collect();
    named.sort_unstable();
    named.dedup();
    let rows = members_on(&mut *replica.store.tables().await?, &resource.uid, &named).await?;
    let uids: Vec<String> = rows.iter().map(|row| row.cluster_uid.clone()).collect();
    let told: HashMap<String, Member> = uids
        .into_iter()
        .zip(tell(replica, (name, resource), rows).await?)
        .collect();
    Ok(RolloutSurvey {
        waits_for: waits_for.and_then(|uid| told.get(&uid).cloned()),
        // A member that has finished since it was counted is shown as it is now.
        open: open.iter().filter_map(|uid| told.get(uid).cloned()).collect(),
        ..survey
    })
}

async fn tell(
    replica: &Replica,
    (name, resource): (&Name, &Resource),
    mut rows: Vec<SetMember>,
) -> Result<Vec<Member>, StoreError> {
    // A member that has left and has no service is only counted.
    rows.retain(|row| !row.has_left() || row.has_service());
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let set: ServiceSet = resources::parse(resource)?;
    let uids: Vec<&str> = rows.iter().map(|row| row.cluster_uid.as_str()).collect();
    let mut told = rollouts::tell_members(replica, name, (resource, &set), &uids).await?;
    Ok(rows
        .into_iter()
        .map(|row| member_of(replica, told.remove(&row.cluster_uid), row))
        .collect())
}

fn member_of(replica: &Replica, told: Option<MemberProgress>, row: SetMember) -> Member {
    let is_rolled = told.is_some();
    let MemberProgress {
        step,
        standing,
        progress,
        since,
        versions,
    } = told.unwrap_or_default();
    Member {
        cluster: cluster_name(replica, &row.cluster_uid).unwrap_or_default(),
        state: match () {
            () if row.has_left() => MemberState::Leaving,
            () if !row.problem.is_empty() => MemberState::Failed,
            () if row.ready == 1 => MemberState::Ready,
            () => MemberState::Progressing,
        },
        service: if row.has_service() {
            row.service_name
        } else {
            String::new()
        },
        message: row.problem,
        step,
        standing,
        progress: is_rolled.then_some(progress),
        since: since.and_then(|since| Timestamp::from_second(since).ok()).map(Time),
        revision: versions.revision,
        wanted_revision: versions.wanted,
    }
}
