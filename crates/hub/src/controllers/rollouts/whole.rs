//! Whether a whole set is healthy, for pipelines and dependents.

use farwater_api::{RolloutPhase, ServiceSet};
use farwater_fleet::{
    conditions::holding,
    rollout::{Clock, Evidence},
};
use farwater_store::{
    StoreError,
    delivery::{RollingMember, load_rollout, rolling_members},
};

use super::{
    observe::Target,
    row::{read_some, read_written},
};
use crate::{
    controllers::{resources::Name, track_clusters::silence_deadline},
    delivery::Delivery,
};

/// Whether a whole set is healthy at what its sources have now.
#[derive(Debug, Default)]
pub struct Whole {
    /// Why it is not; None: it is.
    pub lacks: Option<String>,

    /// Its rollout has halted or is rolling back.
    pub failed: bool,
    /// The set must be requeued: a commit that concerns none of its members requeues it in no other way.
    pub is_behind: bool,
    pub heard: Heard,
}

/// Health of the members whose clusters are heard. Silent clusters are passed over, as in rollouts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// Number of members, silent ones included.
    pub(super) all: usize,
    pub(super) heard: usize,
    pub(super) healthy: usize,
    /// When the last of them became healthy, in seconds since 1970.
    pub since: i64,
    /// When the cluster that was heard least recently was heard, in seconds since 1970; 0: one was not heard since the
    /// hub started.
    pub at: i64,
}

impl Heard {
    /// The reason why not all members that are heard are healthy, as a phrase about the set; None: they are.
    pub fn lacks(&self) -> Option<String> {
        match self {
            Self { all: 0, .. } => None,
            Self { heard: 0, .. } => Some("has no cluster that is heard".to_owned()),
            Self { heard, healthy, .. } if healthy < heard => {
                Some(format!("is healthy on {healthy} of {heard} clusters that are heard"))
            }
            _ => None,
        }
    }
}

pub async fn look_at_heard(delivery: &Delivery, set_uid: &str) -> Result<Heard, StoreError> {
    let rows = rolling_members(&mut *delivery.store.tables().await?, set_uid).await?;
    let Clock { now, started } = delivery.clock.read();

    let mut found = Heard { all: rows.len(), at: i64::MAX, ..Heard::default() };
    for RollingMember { row, .. } in &rows {
        let state = delivery.clusters.get(&row.cluster_uid);
        let Some(state) = state.filter(|state| silence_deadline(state, started) > now) else { continue };
        let evidence: Option<Evidence> = read_some(row, "evidence", &row.evidence)?;
        let since = evidence.as_ref().and_then(Evidence::healthy_since);
        found.heard += 1;
        found.healthy += usize::from(row.ready == 1);
        found.since = found.since.max(since.unwrap_or(now));
        found.at = found.at.min(state.heard().unwrap_or(0));
    }
    Ok(found)
}

/// Judges by the saved decision, not by the status alone, which may be older. `set`: read before the call.
pub async fn look_at_whole(
    delivery: &Delivery,
    name: &Name,
    set_uid: &str,
    set: &ServiceSet,
) -> Result<Whole, StoreError> {
    let lacks =
        |what: String| Ok(Whole { lacks: Some(format!("ServiceSet {} {what}", name.name)), ..Whole::default() });
    if set.metadata.deletion_timestamp.is_some() {
        return lacks("is being deleted".to_owned());
    }
    if let Some(pin) = &set.spec.pin {
        return lacks(format!("is kept at its version {}", pin.version));
    }

    let status = set.status.clone().unwrap_or_default();
    let written = load_rollout(&mut *delivery.store.tables().await?, set_uid).await?;
    let state = written.map(|text| read_written(name, &text)).transpose()?.unwrap_or_default().state;
    let target = Target::find(delivery, name, set).await?.digest;
    let rollout = status.rollout.unwrap_or_default();

    let is_known = state.target == Some(target)
        && rollout.number == state.number
        && status.observed_generation == set.metadata.generation;
    if !is_known {
        let is_behind = state.target != Some(target);
        let what = "was not looked at since it or its source changed".to_owned();
        return Ok(Whole { is_behind, ..lacks(what)? });
    }

    if state.open {
        let failed = matches!(rollout.phase, RolloutPhase::Halted | RolloutPhase::RollingBack);
        let what = format!("is not through with rollout {}: it is {}", rollout.number, rollout.phase);
        return Ok(Whole { failed, ..lacks(what)? });
    }
    if state.last_good.is_none_or(|good| good.target != target) || rollout.updated == 0 {
        return lacks("has no cluster that is done".to_owned());
    }

    // Only silent clusters are passed over.
    if rollout.waiting + rollout.progressing + rollout.failed > 0 {
        return lacks("has clusters that are suspended or held".to_owned());
    }
    if let Some(stalled) = holding(&status.conditions, "Stalled") {
        return lacks(format!("is not ready: {}", stalled.message));
    }

    let heard = look_at_heard(delivery, set_uid).await?;
    match heard.lacks() {
        Some(what) => lacks(what),
        None => Ok(Whole { heard, ..Whole::default() }),
    }
}
