//! Members as a decision sees them.

use std::{collections::BTreeMap, sync::Arc};

use farwater_fleet::{
    rollout::{ChangeId, Clock, Cluster, Evidence, Member, Policy, Published, Reach, Resting, Stands, Track, place},
    windows::Closed,
};
use farwater_store::{StoreError, delivery::RollingMember};

use super::{
    observe::Gate,
    row::{read, read_some},
};
use crate::{clusters::track_clusters::silence_deadline, replica::Replica, sets::stamp_services::cluster_name};

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
        let mut all = Self {
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
        };

        let mut labels: Vec<Arc<BTreeMap<String, String>>> = Vec::with_capacity(rows.len());
        for RollingMember {
            row,
            seen,
            touched,
            parameters_changed,
            ..
        } in rows
        {
            let state = replica.memory.clusters.get(&row.cluster_uid);
            let of_cluster = state
                .as_ref()
                .map(|state| Arc::clone(&state.labels))
                .unwrap_or_default();
            all.names
                .push(cluster_name(replica, &row.cluster_uid).unwrap_or_else(|| row.cluster_uid.clone()));
            all.partitions.push(
                policy
                    .partition_by
                    .as_ref()
                    .and_then(|key| of_cluster.get(key).cloned()),
            );
            labels.push(of_cluster);
            all.reaches.push(match &state {
                None => Reach::Silent {
                    since: 0,
                    has_entry: false,
                },
                Some(state) => match state.heard() {
                    heard if silence_deadline(state, 0) > clock.now => Reach::Heard {
                        at: heard.unwrap_or_default(),
                    },
                    _ if silence_deadline(state, clock.started) > clock.now => Reach::NotYet,
                    heard => {
                        let since = heard.unwrap_or_default();
                        Reach::Silent {
                            since,
                            has_entry: row.published_at > 0 && since >= row.published_at,
                        }
                    }
                },
            });
            all.tracks.push(read(row, "track", &row.track)?);
            // A result for another spec, or for older sources or parameters, does not count.
            let is_behind = seen.is_none_or(|seen| seen < row.generation)
                || (*touched && !sources.contains(&row.looked_at))
                || *parameters_changed
                || !row.is_of_pin();
            let wanted = if is_behind || row.wanted.is_empty() {
                None
            } else {
                Some(&row.wanted)
            };
            let damaged = |error: farwater_fleet::rollout::ParseChangeError| StoreError::Row {
                what: format!("wanted change of service {}", row.service_uid),
                problem: error.to_string(),
            };
            all.wanted
                .push(wanted.map(|text| text.parse().map_err(damaged)).transpose()?);
            all.published.push(read_some(row, "published entry", &row.published)?);
            all.evidence.push(read_some(row, "evidence", &row.evidence)?);
            let stands: Option<Stands> = read_some(row, "standing", &row.stands)?;
            all.stands.push(match stands {
                None | Some(Stands::Waiting(_)) => gate.closed(replica, row).map(Stands::Window).or(stands),
                stands => stands,
            });
        }

        let clusters: Vec<Cluster<'_>> = rows
            .iter()
            .enumerate()
            .map(|(index, member)| Cluster {
                name: &all.names[index],
                labels: &labels[index],
                // A cluster that has nothing yet ranks with the healthy ones.
                is_healthy: member.row.ready == 1 || all.tracks[index].released.is_none(),
                reach: all.reaches[index],
                is_canary: member.row.step == 0,
                has_begun: all.wanted[index].is_some() && all.tracks[index].released == all.wanted[index],
            })
            .collect();

        all.steps = place(policy, &clusters, resting);
        Ok(all)
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
