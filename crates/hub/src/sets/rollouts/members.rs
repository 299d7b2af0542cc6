//! Members as a decision sees them.

use std::{collections::BTreeMap, sync::Arc};

use farwater_fleet::{
    rollout::{
        ChangeId, Clock, Cluster, Evidence, Member, ParseChangeError, Policy, Published, Reach, Resting, Stands, Track,
        place,
    },
    windows::Closed,
};
use farwater_store::{
    StoreError,
    delivery::{MemberRollout, RollingMember},
};

use super::{
    observe::Gate,
    row::{read, read_some},
};
use crate::{
    clusters::track_clusters::silence_deadline, memory::clusters::ClusterState, replica::Replica,
    sets::stamp_services::cluster_name,
};

/// Members, with the values that [`Member`] borrows.
pub(super) struct Members<'r> {
    pub(super) rows: &'r [RollingMember],
    names: Vec<String>,
    partitions: Vec<Option<String>>,
    pub(super) steps: Vec<u16>,
    reaches: Vec<Reach>,
    pub(super) tracks: Vec<Track>,
    pub(super) wanted: Vec<Option<ChangeId>>,
    published: Vec<Option<Published>>,
    pub(super) evidence: Vec<Option<Evidence>>,
    pub(super) stands: Vec<Option<Stands>>,
}

impl<'r> Members<'r> {
    pub(super) fn read(
        replica: &Replica,
        policy: &Policy,
        (rows, resting): (&'r [RollingMember], &Resting),
        sources: &[String],
        (clock, gate): (Clock, &Gate),
    ) -> Result<Self, StoreError> {
        let mut all = Self::of(rows);
        let mut labels: Vec<Arc<BTreeMap<String, String>>> = Vec::with_capacity(rows.len());
        for member in rows {
            let row = &member.row;
            let state = replica.memory.clusters.get(&row.cluster_uid);
            let of_cluster = state
                .as_ref()
                .map(|state| Arc::clone(&state.labels))
                .unwrap_or_default();
            let partition = policy.partition_by.as_ref().and_then(|key| of_cluster.get(key));
            let name = cluster_name(replica, &row.cluster_uid);

            all.names.push(name.unwrap_or_else(|| row.cluster_uid.clone()));
            all.partitions.push(partition.cloned());
            labels.push(of_cluster);
            all.reaches.push(reach_of(state.as_deref(), row, clock));
            all.tracks.push(read(row, "track", &row.track)?);
            all.wanted.push(read_wanted(member, sources)?);
            all.published.push(read_some(row, "published entry", &row.published)?);
            all.evidence.push(read_some(row, "evidence", &row.evidence)?);
            let stands: Option<Stands> = read_some(row, "standing", &row.stands)?;
            all.stands.push(match stands {
                None | Some(Stands::Waiting(_)) => gate.closed(replica, row).map(Stands::Window).or(stands),
                stands => stands,
            });
        }

        all.steps = all.place(policy, &labels, resting);
        Ok(all)
    }

    fn of(rows: &'r [RollingMember]) -> Self {
        Self {
            rows,
            names: Vec::with_capacity(rows.len()),
            partitions: Vec::with_capacity(rows.len()),
            steps: Vec::new(),
            reaches: Vec::with_capacity(rows.len()),
            tracks: Vec::with_capacity(rows.len()),
            wanted: Vec::with_capacity(rows.len()),
            published: Vec::with_capacity(rows.len()),
            evidence: Vec::with_capacity(rows.len()),
            stands: Vec::with_capacity(rows.len()),
        }
    }

    /// Returns the step of each member.
    fn place(&self, policy: &Policy, labels: &[Arc<BTreeMap<String, String>>], resting: &Resting) -> Vec<u16> {
        let clusters: Vec<Cluster<'_>> = self
            .rows
            .iter()
            .enumerate()
            .map(|(index, member)| Cluster {
                name: &self.names[index],
                labels: &labels[index],
                // A cluster that has nothing yet ranks with the healthy ones.
                is_healthy: member.row.ready == 1 || self.tracks[index].released.is_none(),
                reach: self.reaches[index],
                is_canary: member.row.step == 0,
                has_begun: self.wanted[index].is_some() && self.tracks[index].released == self.wanted[index],
            })
            .collect();
        place(policy, &clusters, resting)
    }

    /// Counts the members that a closed window keeps from starting, with the window of the first.
    pub(super) fn frozen(&self) -> Option<(usize, Closed)> {
        let waiting = self
            .stands
            .iter()
            .enumerate()
            .filter_map(|(index, stands)| match stands {
                Some(Stands::Window(closed)) => {
                    let is_there = self.published[index].map(|published| published.change) == self.wanted[index];
                    (self.wanted[index].is_some() && !is_there).then_some(closed)
                }
                _ => None,
            });
        let waiting: Vec<&Closed> = waiting.collect();
        waiting.first().map(|first| (waiting.len(), (*first).clone()))
    }

    pub(super) fn of_set(&self) -> Vec<Member<'_>> {
        (0..self.rows.len())
            .map(|index| Member {
                cluster: &self.rows[index].row.cluster_uid,
                name: &self.names[index],
                step: self.steps[index],
                partition: self.partitions[index].as_deref(),
                wanted: self.wanted[index],
                track: self.tracks[index],
                published: self.published[index],
                evidence: self.evidence[index].as_ref(),
                reach: self.reaches[index],
                stands: self.stands[index].clone(),
            })
            .collect()
    }
}

/// Whether a member's cluster is heard. None: memory does not know the cluster.
fn reach_of(state: Option<&ClusterState>, row: &MemberRollout, clock: Clock) -> Reach {
    let Some(state) = state else {
        return Reach::Silent {
            since: 0,
            has_entry: false,
        };
    };
    let heard = state.heard().unwrap_or_default();
    if silence_deadline(state, 0) > clock.now {
        Reach::Heard { at: heard }
    } else if silence_deadline(state, clock.started) > clock.now {
        Reach::NotYet
    } else {
        Reach::Silent {
            since: heard,
            has_entry: row.published_at > 0 && heard >= row.published_at,
        }
    }
}

/// The change that a member wants. None: it wants none, or its result is for another spec, or for older sources or
/// parameters.
fn read_wanted(member: &RollingMember, sources: &[String]) -> Result<Option<ChangeId>, StoreError> {
    let row = &member.row;
    let is_behind = member.seen.is_none_or(|seen| seen < row.generation)
        || (member.touched && !sources.contains(&row.looked_at))
        || member.parameters_changed
        || !row.is_of_pin();
    if is_behind || row.wanted.is_empty() {
        return Ok(None);
    }
    let wanted = row.wanted.parse().map_err(|error: ParseChangeError| StoreError::Row {
        what: format!("wanted change of service {}", row.service_uid),
        problem: error.to_string(),
    });
    wanted.map(Some)
}
