//! Notifications about a set's rollout.

use farwater_api::notification_rule::EventKind;
use farwater_fleet::{
    notify::{RolloutNews, member_state},
    rollout::{Clock, Decision, Member, Policy, Standing, State, Track, standing},
};
use farwater_store::Resource;

use super::observe::{Target, describe_commit};
use crate::{
    kinds::meta::labels,
    notify::{MemberNews, Postings, RolloutChange},
    replica::Replica,
    resources::Name,
};

/// The parts of a decision that notifications report.
pub(super) struct News<'a> {
    pub(super) policy: &'a Policy,
    pub(super) before: &'a State,
    pub(super) decision: &'a Decision,
    pub(super) members: &'a [Member<'a>],
    pub(super) clock: Clock,
}

impl News<'_> {
    pub(super) fn find(&self, replica: &Replica, name: &Name, resource: &Resource, target: &Target) -> Postings {
        let commit = target.commit.as_ref();
        let notifications = &replica.notifications;
        // The end of this rollout was notified already.
        let moves = self.before.open || self.decision.state.open;
        if !moves || !notifications.is_anybody_told(&name.namespace) {
            return Postings::default();
        }

        let targets = notifications.targets(
            &name.namespace,
            (EventKind::ServiceSet, &name.name),
            &labels(&resource.object),
        );
        if targets.is_empty() {
            return Postings::default();
        }

        let Decision { state, outlook, .. } = self.decision;
        let halted_by = outlook.halted_by.clone();
        let failed = halted_by
            .as_ref()
            .and_then(|name| self.members.iter().position(|member| member.name == name));
        let news = RolloutNews {
            namespace: name.namespace.clone(),
            set: name.name.clone(),
            number: state.number,
            course: self.decision.phase.into(),
            step: if outlook.step.is_some() && state.open {
                outlook.step_name.clone()
            } else {
                String::new()
            },
            clusters: self.decision.counts,
            cause: failed.map(|index| self.standing(index).to_string()).unwrap_or_default(),
            halted_by,
            revision: commit.map_or_else(|| target.revision.clone(), describe_commit),
            summary: String::new(),
        };

        let options =
            |target: &crate::notify::Target| target.spec.commit_status.as_ref().is_some_and(|of| of.per_cluster);
        let members = if targets.iter().any(options) {
            self.find_members()
        } else {
            Vec::new()
        };

        let change = RolloutChange {
            set_uid: &resource.uid,
            news,
            commit,
            members,
            before: (self.before.open && self.before.number != state.number).then_some(self.before.number),
        };
        Postings::of_rollout(&targets, &change)
    }

    /// Members whose state has changed.
    fn find_members(&self) -> Vec<MemberNews> {
        let changed = self.decision.tracks.iter();
        let one = |(index, track): &(usize, Track)| {
            let member = &self.members[*index];
            let state = member_state(track, member.wanted)?;
            let (cluster_uid, cluster) = (member.cluster.to_owned(), member.name.to_owned());
            Some(MemberNews {
                cluster_uid,
                cluster,
                state,
                standing: self.standing(*index),
            })
        };
        changed.filter_map(one).collect()
    }

    /// Standing of a member after the decision.
    pub(super) fn standing(&self, index: usize) -> Standing {
        let Decision {
            tracks, state, outlook, ..
        } = self.decision;
        let track = tracks
            .iter()
            .find(|(other, _)| *other == index)
            .map(|(_, track)| *track);
        let mut member = self.members[index].clone();
        member.track = track.unwrap_or(member.track);
        standing(self.policy, state, outlook, &member, self.clock)
    }
}
