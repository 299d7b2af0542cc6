//! Whether a whole set is healthy, for pipelines and dependents.

use farwater_api::{Digest, RolloutPhase, ServiceSet};
use farwater_fleet::{
    conditions::holding,
    rollout::{Clock, Evidence, State},
};
use farwater_store::{
    StoreError,
    delivery::{RollingMember, load_rollout, rolling_members},
};

use super::{
    observe::Target,
    row::{read_some, read_written},
};
use crate::{clusters::track_clusters::silence_deadline, memory::sets::Heard, replica::Replica, resources::Name};

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

pub async fn look_at_heard(replica: &Replica, set_uid: &str) -> Result<Heard, StoreError> {
    let rows = rolling_members(&mut *replica.store.tables().await?, set_uid).await?;
    let Clock { now, started } = replica.clock.read();

    let mut found = Heard {
        all: rows.len(),
        at: i64::MAX,
        ..Heard::default()
    };
    for RollingMember { row, .. } in &rows {
        let state = replica.memory.clusters.get(&row.cluster_uid);
        let Some(state) = state.filter(|state| silence_deadline(state, started) > now) else {
            continue;
        };
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
    replica: &Replica,
    name: &Name,
    set_uid: &str,
    set: &ServiceSet,
) -> Result<Whole, StoreError> {
    let named = |whole: Whole| Whole {
        lacks: whole.lacks.map(|lack| format!("ServiceSet {} {lack}", name.name)),
        ..whole
    };
    if let Some(lack) = judge_spec(set) {
        return Ok(named(Whole::lacking(lack)));
    }

    let written = load_rollout(&mut *replica.store.tables().await?, set_uid).await?;
    let state = written
        .map(|text| read_written(name, &text))
        .transpose()?
        .unwrap_or_default()
        .state;
    let target = Target::find(replica, name, set).await?.digest;
    if let Some(whole) = judge_rollout(set, &state, target) {
        return Ok(named(whole));
    }

    let heard = look_at_heard(replica, set_uid).await?;
    Ok(match heard.lacks() {
        Some(lack) => named(Whole::lacking(lack)),
        None => Whole {
            heard,
            ..Whole::default()
        },
    })
}

impl Whole {
    fn lacking(lack: String) -> Self {
        Self {
            lacks: Some(lack),
            ..Self::default()
        }
    }
}

/// Why a set can't be healthy at the content of its sources, regardless of its rollout.
fn judge_spec(set: &ServiceSet) -> Option<String> {
    if set.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".to_owned());
    }
    let pin = set.spec.pin.as_ref()?;
    Some(format!("is kept at its version {}", pin.version))
}

/// Why a set is not healthy at `target`, by its saved rollout and its status. None: it is, if its clusters are heard.
fn judge_rollout(set: &ServiceSet, state: &State, target: Digest) -> Option<Whole> {
    let status = set.status.clone().unwrap_or_default();
    let rollout = status.rollout.unwrap_or_default();
    let is_known = state.target == Some(target)
        && rollout.number == state.number
        && status.observed_generation == set.metadata.generation;
    if !is_known {
        let lack = "was not looked at since it or its source changed".to_owned();
        return Some(Whole {
            is_behind: state.target != Some(target),
            ..Whole::lacking(lack)
        });
    }
    if state.open {
        let lack = format!(
            "is not through with rollout {}: it is {}",
            rollout.number, rollout.phase
        );
        return Some(Whole {
            failed: matches!(rollout.phase, RolloutPhase::Halted | RolloutPhase::RollingBack),
            ..Whole::lacking(lack)
        });
    }

    let lack = if state.last_good.is_none_or(|good| good.target != target) || rollout.updated == 0 {
        "has no cluster that is done".to_owned()
    } else if rollout.waiting + rollout.progressing + rollout.failed > 0 {
        // Only silent clusters are passed over.
        "has clusters that are suspended or held".to_owned()
    } else {
        let stalled = holding(&status.conditions, "Stalled")?;
        format!("is not ready: {}", stalled.message)
    };
    Some(Whole::lacking(lack))
}
