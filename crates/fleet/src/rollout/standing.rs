//! Says what a member waits for.

use std::fmt;

use farwater_api::{rollout::Strategy, service_set::Progress};
use serde::{Deserialize, Serialize};

use super::{
    Case, Clock, Evidence, Gates, Latch, Member, Phase, Policy, Reach, Said, Stands, State, View, gates::partition,
};

/// What the standing of one member depends on, of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outlook {
    pub phase: Phase,
    pub latch: Option<Latch>,
    /// Changed members go back.
    pub goes_back: bool,
    /// Name of the first member that failed. None: none has.
    pub halted_by: Option<String>,
    /// Index of the open step. None: all are open.
    pub step: Option<u16>,
    pub step_name: String,
    /// The first member of that step that others wait for.
    pub waits_for: Option<String>,
    /// The first unavailable member.
    pub unavailable_first: Option<String>,
    pub unavailable: usize,
    pub max: usize,
    /// The member that goes alone.
    pub alone: Option<String>,
    /// Partitions with members on their way.
    pub partitions: Vec<String>,
}

impl Outlook {
    pub(super) fn of(policy: &Policy, gates: &Gates, members: &[Member<'_>], views: &[View], phase: Phase) -> Self {
        let first = |holds: &dyn Fn(&Member<'_>, &View) -> bool| {
            let found = members.iter().zip(views).filter(|(member, view)| holds(member, view));
            found.map(|(member, _)| member.name).min().map(str::to_owned)
        };
        let moving = members
            .iter()
            .zip(views)
            .filter(|(_, view)| view.is_moving || view.case == Case::InFlight);
        let mut partitions: Vec<_> = moving.map(|(member, _)| partition(member).1.to_owned()).collect();
        partitions.sort_unstable();
        partitions.dedup();
        partitions.truncate(policy.max_partitions);
        Self {
            phase,
            latch: gates.latch,
            goes_back: gates.goes_back(policy),
            halted_by: gates.latch.and_then(|_| first(&|_, view| view.case == Case::Refused)),
            step: Some(gates.step).filter(|step| *step != u16::MAX),
            step_name: policy.step_name(gates.step).to_owned(),
            waits_for: first(&|member, view| member.step == gates.step && !view.case.lets_pass(member.step)),
            unavailable_first: first(&|_, view| view.is_unavailable),
            unavailable: gates.unavailable,
            max: gates.max,
            alone: first(&|_, view| view.is_hopeful).filter(|_| gates.is_alone),
            partitions: if policy.partition_by.is_some() {
                partitions
            } else {
                Vec::new()
            },
        }
    }
}

/// How far one member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Done,
    /// An input has moved and the member is to be reconciled, or it can't be made.
    Looking,
    /// Healthy, but not for the length of the soak, or not heard since.
    Soaking,
    Progressing,
    /// The hub was away and has not heard the cluster yet.
    Unheard,
    /// Its cluster has been silent since it got the change.
    Lost,
    Failed(String),
    /// It failed, and is healthy now.
    Recovered,
    TakenBack,
    /// Its cluster is silent and has not got the change.
    Deferred,
    Skipped,
    Stands(Stands),
    Held(Held),
}

/// Why a member is not released yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    Paused,
    OnHold,
    Halted {
        by: String,
    },
    Aborted,
    Step {
        name: String,
        waits_for: String,
    },
    Alone {
        with: String,
    },
    Partitions(Vec<String>),
    Unavailable {
        first: String,
        count: usize,
        max: usize,
    },
    /// The next decision releases it.
    Next,
}

/// What one member waits for after a decision. It always names one reason.
pub fn standing(policy: &Policy, state: &State, outlook: &Outlook, member: &Member<'_>, clock: Clock) -> Standing {
    let view = View::of(policy, state, member, member.track, clock);
    let said = member
        .evidence
        .and_then(|evidence| evidence.on(member.published))
        .map(|evidence| evidence.said());
    let is_released = member.track.released == member.wanted;
    // A closed window does not stop a change that has begun.
    let stands = match view.case {
        Case::InFlight => member.stopped_by(&member.track),
        _ => member.stands.as_ref(),
    };

    match (view.case, stands) {
        (Case::Still | Case::InFlight | Case::Pending, Some(stands)) => Standing::Stands(stands.clone()),
        (Case::Skipped, _) => Standing::Skipped,
        (Case::Looking, _) => Standing::Looking,
        (Case::Refused, _) if !is_released => Standing::TakenBack,
        (Case::Refused, _) => match (member.reach, said) {
            (Reach::Silent { .. }, _) => Standing::Lost,
            (_, Some(Said::Failed(message))) => Standing::Failed(message.clone()),
            _ if view.is_settled => Standing::Recovered,
            _ => Standing::Failed("it was not healthy in time".to_owned()),
        },
        (Case::Deferred, _) => Standing::Deferred,
        (Case::Done, _) => Standing::Done,
        (Case::InFlight, _) => match (member.reach, said) {
            (Reach::NotYet, _) => Standing::Unheard,
            (Reach::Silent { .. }, _) => Standing::Lost,
            _ if member.soaks(&member.track) => Standing::Soaking,
            (_, Some(Said::Failed(message))) => Standing::Failed(message.clone()),
            _ => Standing::Progressing,
        },
        (Case::Pending, _) if !view.is_ready => Standing::Unheard,
        (Case::Pending | Case::Still, _) => Standing::Held(hold(policy, state, outlook, member, &view)),
    }
}

/// How far one member is, as one of a few words, and since when (seconds, none if unknown). Counts of these equal those
/// of the decision.
pub fn progress(policy: &Policy, state: &State, member: &Member<'_>, clock: Clock) -> (Progress, Option<i64>) {
    let view = View::of(policy, state, member, member.track, clock);
    let said = member.evidence.and_then(|evidence| evidence.on(member.published));
    let silent_since = match member.reach {
        Reach::Silent { since, .. } => Some(since).filter(|since| *since > 0),
        Reach::Heard { .. } | Reach::NotYet => None,
    };
    match view.case {
        Case::Done => (Progress::Done, said.and_then(Evidence::healthy_since)),
        Case::InFlight if member.soaks(&member.track) => (Progress::Soaking, said.and_then(Evidence::healthy_since)),
        Case::InFlight => (Progress::Progressing, silent_since.or(member.track.clock)),
        Case::Refused => (Progress::Failed, silent_since.or(said.map(Evidence::since))),
        Case::Deferred => (Progress::Deferred, silent_since),
        Case::Still | Case::Skipped => (Progress::Still, None),
        Case::Pending | Case::Looking => (Progress::Waiting, None),
    }
}

fn hold(policy: &Policy, state: &State, outlook: &Outlook, member: &Member<'_>, view: &View) -> Held {
    let told = |name: &Option<String>| name.clone().unwrap_or_default();
    let is_newcomer =
        member.track.released.is_none() && state.last_good.is_some_and(|good| state.target == Some(good.target));
    let full = Held::Unavailable {
        first: told(&outlook.unavailable_first),
        count: outlook.unavailable,
        max: outlook.max,
    };
    let is_at_once = policy.strategy == Strategy::AllAtOnce;
    let key = partition(member).1;
    let is_elsewhere = !outlook.partitions.is_empty() && !outlook.partitions.iter().any(|open| open == key);
    match outlook.latch {
        _ if policy.paused => Held::Paused,
        _ if policy.strategy == Strategy::OnHold && !state.promoted && !outlook.goes_back => Held::OnHold,
        _ if is_at_once && !outlook.goes_back => Held::Next,
        _ if view.is_broken && !outlook.goes_back => full,
        Some(Latch::Aborted) => Held::Aborted,
        Some(Latch::Halted) => Held::Halted {
            by: told(&outlook.halted_by),
        },
        None if !is_newcomer && outlook.step.is_some_and(|open| member.step > open) => Held::Step {
            name: outlook.step_name.clone(),
            waits_for: told(&outlook.waits_for),
        },
        None if !is_newcomer && member.step > 0 && outlook.alone.is_some() => Held::Alone {
            with: told(&outlook.alone),
        },
        None if is_elsewhere => Held::Partitions(outlook.partitions.clone()),
        None if outlook.unavailable > 0 => full,
        None => Held::Next,
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "is done",
            Self::Looking => "is being looked at",
            Self::Soaking => "is healthy and soaks",
            Self::Progressing => "is on its way",
            Self::Unheard => "waits for its cluster to be heard, since the hub was away",
            Self::Lost => "is silent since it got the change",
            Self::Failed(message) => return write!(f, "failed: {message}"),
            Self::Recovered => "failed, and is healthy now: promote the rollout to continue",
            Self::TakenBack => "was taken back: it is not given this change again unless the rollout is promoted",
            Self::Deferred => "is silent: it gets the change when it is heard",
            Self::Skipped => "is skipped",
            Self::Stands(stands) => return stands.fmt(f),
            Self::Held(held) => return held.fmt(f),
        })
    }
}

impl fmt::Display for Stands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suspended => f.write_str("is suspended"),
            Self::Pinned => f.write_str("is pinned"),
            Self::Denied(reason) => write!(f, "may not be there: {reason}"),
            Self::NameTaken => f.write_str("can't be made: another service has its name"),
            Self::Window(closed) => write!(f, "waits: {closed}"),
            Self::Waiting(reason) => f.write_str(reason),
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("waits: the rollout is paused"),
            Self::OnHold => f.write_str("waits for the rollout to be promoted"),
            Self::Halted { by } => write!(f, "waits: the rollout is halted, since {by} failed"),
            Self::Aborted => f.write_str("waits: the rollout was aborted"),
            Self::Step { name, waits_for } => write!(f, "waits for step {name}: {waits_for} is not done"),
            Self::Alone { with } => write!(f, "waits for {with}, which goes first"),
            Self::Partitions(names) => write!(f, "waits for {} to be done", names.join(", ")),
            Self::Unavailable { first, count, max } => {
                write!(f, "waits: {count} of at most {max} are unavailable, {first} first")
            }
            Self::Next => f.write_str("goes next"),
        }
    }
}
