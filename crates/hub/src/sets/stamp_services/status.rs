//! The status of a set.

use farwater_api::{
    RolloutPhase, ServiceSet, ServiceSetStatus,
    service_set::{MAX_SET_ERRORS, SetCounts, SetError},
};
use farwater_fleet::{
    conditions::{self, Verdict, cut},
    freeze::release,
    placement::describe_no_clusters,
    summary::{FROZEN, NO_CLUSTERS, ROLLOUT_HALTED, set_news},
    words::{counted, signed, verb},
};
use farwater_store::{
    Resource, StoreError,
    delivery::{MemberCounts, SetMember, count_members, troubled_members},
};
use jiff::Timestamp;

use super::cluster_name;
use crate::{
    notify::events,
    replica::Replica,
    resources::{self, Name},
    services::dependencies,
    sets::rollouts::Advance,
};

/// Maximum bytes of a member's problem.
pub(super) const MAX_PROBLEM: usize = 512;

/// Counts and problems of a set's members.
pub(super) struct Tally {
    pub(super) counts: MemberCounts,
    /// The first members that have a problem.
    troubled: Vec<SetMember>,
}

impl Tally {
    pub(super) async fn load(replica: &Replica, set_uid: &str) -> Result<Self, StoreError> {
        let mut tables = replica.store.tables().await?;
        let limit = u32::try_from(MAX_SET_ERRORS).unwrap_or(u32::MAX);
        let counts = count_members(&mut tables, set_uid).await?;
        Ok(Self {
            counts,
            troubled: troubled_members(&mut tables, set_uid, limit).await?,
        })
    }
}

/// The set's conditions.
pub(super) fn judge(replica: &Replica, set: &ServiceSet, tally: &Tally, advance: Option<&Advance>) -> Vec<Verdict> {
    let MemberCounts {
        matched,
        ready,
        failed,
        leaving,
        braked,
    } = tally.counts;
    let differing = advance.and_then(|advance| describe_differing(advance, matched));
    let pinned = describe_pin(set);
    let mut verdicts = if let Some(first) = tally.troubled.first() {
        let cluster = cluster_name(replica, &first.cluster_uid).unwrap_or_default();
        let message = format!(
            "{failed} of {} can't be served: {cluster}: {}",
            counted(matched, "cluster"),
            first.problem
        );
        Verdict::stalled("MembersFailed", message)
    } else if let Some(halted) = advance.filter(|advance| advance.status.phase == RolloutPhase::Halted) {
        let by = halted.status.halted_by.as_deref().unwrap_or("a cluster");
        let message = format!("rollout {} is halted: {by} failed", halted.status.number);
        Verdict::stalled(ROLLOUT_HALTED, message)
    } else if leaving > 0 && braked == 0 {
        Verdict::reconciling("Leaving", format!("releases {}", counted(leaving, "cluster")))
    } else if matched == 0 {
        Verdict::reconciling(NO_CLUSTERS, describe_no_clusters(&set.spec.cluster_selector))
    } else if ready < matched {
        Verdict::reconciling(
            "Progressing",
            format!("healthy on {ready} of {}{pinned}", counted(matched, "cluster")),
        )
    } else if let Some((reason, message)) = differing {
        Verdict::reconciling(
            reason,
            format!("healthy on {}{pinned}; {message}", counted(matched, "cluster")),
        )
    } else {
        Verdict::ready("Healthy", format!("healthy on {}{pinned}", counted(matched, "cluster")))
    };

    if let Some((count, closed)) = advance.and_then(|advance| advance.frozen.as_ref()) {
        let message = format!("{} wait: {closed}", counted(*count, "cluster"));
        verdicts.push(Verdict::new(FROZEN, Some(true), "WindowClosed", message));
    }
    if braked > 0 {
        let message = format!(
            "the selector no longer finds {}; they stay as they are until an administrator reviews this: kubectl {}",
            counted(braked, "cluster"),
            release()
        );
        verdicts.push(Verdict::new("Braked", Some(true), "ManyAtOnce", message));
    }
    verdicts
}

/// `, at version 1, pinned by ada: slow`; empty: the set has no pin.
fn describe_pin(set: &ServiceSet) -> String {
    let Some(pin) = &set.spec.pin else { return String::new() };
    let by = set.status.as_ref().and_then(|status| status.pinned_by.as_deref());
    let signed = signed(by, pin.reason.as_deref());
    cut(&format!(", at version {}, pinned{signed}", pin.version), MAX_PROBLEM)
}

/// Why healthy members are not all at what the set wants, with a reason in CamelCase. None: they are, though some may
/// still soak; or it is not known yet whether a new revision concerns them.
fn describe_differing(advance: &Advance, matched: i64) -> Option<(&'static str, String)> {
    let Advance { status, counts, .. } = advance;
    let there = status.updated + status.soaking;
    let phase = match status.phase {
        _ if there >= matched => return None,
        RolloutPhase::Complete => {
            let lists = [
                (counts.deferred, "is silent", "are silent"),
                (
                    counts.standing,
                    "is suspended, pinned or skipped",
                    "are suspended, pinned or skipped",
                ),
            ];
            let told: Vec<String> = lists
                .into_iter()
                .filter(|(count, ..)| *count > 0)
                .map(|(count, one, many)| format!("{} {}", counted(count, "cluster"), verb(&count, one, many)))
                .collect();
            let message = format!("{} and not at what the set asks for", told.join(", "));
            return (!told.is_empty()).then_some(("MembersDiffer", message));
        }
        RolloutPhase::Progressing => "in progress",
        RolloutPhase::Paused => "paused",
        RolloutPhase::OnHold => "on hold",
        RolloutPhase::Halted => "halted",
        RolloutPhase::RollingBack => "rolling back",
        RolloutPhase::Aborted => "aborted",
    };
    let message = format!(
        "rollout {} is {phase}: {there} of {} at what the set asks for",
        status.number,
        counted(matched, "cluster")
    );
    Some(("RolloutOpen", message))
}

pub(super) async fn write_status(
    replica: &Replica,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
    (tally, verdicts, advance): (Tally, Vec<Verdict>, Option<Advance>),
) -> Result<(), StoreError> {
    let Tally { counts, troubled } = tally;
    let previous = set.status.clone().unwrap_or_default();
    let generation = set.metadata.generation.unwrap_or_default();

    let error = |row: SetMember| SetError {
        cluster: cluster_name(replica, &row.cluster_uid).unwrap_or_default(),
        message: row.problem,
    };
    let status = ServiceSetStatus {
        observed_generation: Some(generation),
        conditions: conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now()),
        clusters: SetCounts {
            matched: counts.matched,
            ready: counts.ready,
            failed: counts.failed,
            leaving: counts.leaving,
        },
        last_good: advance.as_ref().map_or(previous.last_good, |advance| advance.last_good),
        rollout: advance
            .map(|advance| advance.status)
            .or_else(|| previous.rollout.clone()),
        errors: troubled.into_iter().map(error).collect(),
        changed_by: None,
        pinned_by: None,
        overridden_by: None,
        overridden_at: None,
        override_proposed_by: None,
        override_proposed_at: None,
    };

    let is_news = dependencies::standing_of_set(&status) != dependencies::standing_of_set(&previous);
    let events = set_news(&previous, &status);
    resources::write_status::<ServiceSet>(&replica.store, name, &resource.uid, &status).await?;
    events::raise(&replica.store, resource, events).await?;
    if is_news {
        dependencies::wake_dependents_of_set(replica, name).await?;
    }
    Ok(())
}
