//! One member as a decision sees it.

use farwater_api::rollout::Strategy;

use super::{Clock, Evidence, Member, Policy, Reach, Rest, Said, Stands, State, Track};

/// Seconds until the hub looks again for a cluster that was not heard: a poll wakes no rollout.
const BETWEEN_LOOKS: i64 = 5;

/// The state of a member. Exactly one applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// Held by a person, or denied a place on the cluster.
    Still,
    Skipped,
    /// What it wants is not known.
    Looking,
    /// It wants a change that it refuses.
    Refused,
    /// Silent, and the change has not reached it.
    Deferred,
    Done,
    /// Released for what it wants, and not done.
    InFlight,
    /// Not released yet for what it wants.
    Pending,
}

impl Case {
    /// A list of rules: the first that fits decides. `is_away`: silent, and no member waits for it.
    fn of(member: &Member<'_>, track: &Track, word: &Word, is_away: bool) -> Self {
        let Member { wanted, .. } = *member;
        let is_still = matches!(
            member.stands,
            Some(Stands::Suspended | Stands::Pinned | Stands::Denied(_) | Stands::NameTaken)
        );
        let is_wanted = track.released == wanted;
        match () {
            () if is_still => Self::Still,
            () if wanted.is_some() && track.skipped == wanted => Self::Skipped,
            () if wanted.is_none() => Self::Looking,
            () if track.refused == wanted => Self::Refused,
            () if is_away => Self::Deferred,
            () if is_wanted && word.is_settled => Self::Done,
            () if is_wanted => Self::InFlight,
            () => Self::Pending,
        }
    }

    /// Whether a set can be at rest with such a member.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Still | Self::Skipped | Self::Deferred | Self::Done)
    }

    /// Whether later steps may open while a member is so.
    pub fn lets_pass(self, step: u16) -> bool {
        self.is_settled() || (self == Self::Refused && step > 0)
    }
}

pub(super) struct View {
    /// The track after what was learned.
    pub track: Track,
    pub case: Case,
    /// Done with what it is released for.
    pub is_settled: bool,
    /// Counts against `maxUnavailable`.
    pub is_unavailable: bool,
    /// Released for what it wants, and may still get there.
    pub is_hopeful: bool,
    /// Failed at what it is released for, and wants another change.
    pub is_broken: bool,
    /// May be released, as far as it depends on this member alone.
    pub is_ready: bool,
    /// May be taken back.
    pub may_go_back: bool,
    /// Was taken back, and has not got there yet.
    pub is_going_back: bool,
    /// On its way, released by this rollout.
    pub is_moving: bool,
    /// This rollout has released it for what it wants.
    pub is_through: bool,
    /// It fails now at what it wants.
    fails: bool,
    /// Time in seconds at which time alone changes the view. None: only an event changes it.
    pub due: Option<i64>,
}

impl View {
    pub fn of(policy: &Policy, state: &State, member: &Member<'_>, track: Track, clock: Clock) -> Self {
        let word = Word::of(policy, member, track, clock);
        let is_at_once = policy.strategy == Strategy::AllAtOnce;
        let is_silent = matches!(member.reach, Reach::Silent { .. });
        let is_away = is_silent && may_be_left(member, &track, &word, is_at_once);
        let case = Case::of(member, &track, &word, is_away);
        let is_wanted = track.released == member.wanted;
        let is_new = state.open && track.number >= state.began && track.released.is_some();

        let counts = !matches!(case, Case::Still | Case::Skipped) && !is_away;
        // Includes a change of an earlier rollout on a cluster that was silent meanwhile.
        let is_pressed = is_new || (track.released.is_some() && !track.is_done);
        let is_unavailable = counts && (word.has_failed || (is_pressed && !word.is_settled));

        let is_windowed = matches!(member.stands, Some(Stands::Window(_)));
        let is_heard = matches!(member.reach, Reach::Heard { .. });
        let is_ready = case == Case::Pending && !is_windowed && (is_heard || is_at_once);
        let goes_elsewhere = track.back.is_some() && track.back != track.released;
        let went_back = case == Case::Refused && !is_wanted;

        let unheard = look_at_unheard(case, member, is_at_once, clock.now).filter(|_| state.open);
        Self {
            is_settled: word.is_settled,
            is_unavailable,
            is_hopeful: case == Case::InFlight && is_unavailable,
            is_broken: is_ready && (word.has_failed_long || (is_pressed && word.is_late)),
            is_ready,
            may_go_back: is_new
                && counts
                && is_wanted
                && member.wanted.is_some()
                && goes_elsewhere
                && !is_windowed
                && (is_heard || word.is_lost),
            is_going_back: went_back && is_unavailable,
            fails: is_new && case == Case::InFlight && (word.has_failed_long || word.is_late || word.is_lost),
            due: [word.due.filter(|_| is_pressed || word.has_failed), unheard]
                .into_iter()
                .flatten()
                .min(),
            is_moving: is_new && is_unavailable && case != Case::Refused,
            is_through: is_new && matches!(case, Case::InFlight | Case::Done),
            case,
            // Done members are many, and none of them needs the clock.
            track: match is_pressed && !word.is_settled {
                true => Track {
                    clock: keep_clock(member, track, clock.now),
                    ..track
                },
                false => track,
            },
        }
    }

    /// The track with what this view shows, if the stored one lacks it.
    pub fn learn(&self) -> Option<Track> {
        let mut track = self.track;
        if self.fails {
            track.refused = track.released;
        }
        // This includes a change that it failed at first: it is not released for that again, but may go back to it.
        if self.is_settled {
            track.is_done = true;
            track.good = track.released;
        }
        // It has got through with another change, so it may try the refused one again if that is wanted again.
        if self.case == Case::Done {
            track.refused = None;
        }
        (track != self.track).then_some(track)
    }

    /// How the member rests after a decision. None: it does not rest.
    pub fn rests(&self, state: &State, member: &Member<'_>) -> Option<Rest> {
        let Track {
            released,
            asked,
            number,
            ..
        } = self.track;
        let all = [released, asked, member.published.map(|published| published.change)];
        let has_all = member.wanted.is_some() && all.iter().all(|change| *change == member.wanted);
        let is_of_this = state.open && number >= state.began;
        if !has_all || is_of_this || self.is_unavailable || self.due.is_some() {
            return None;
        }
        match self.case {
            Case::Done => Some(Rest::Done),
            Case::Deferred => Some(Rest::Deferred),
            _ => None,
        }
    }

    /// Whether the member wants a change that the rollout has not asked it for yet.
    pub fn wants_new_change(&self, member: &Member<'_>) -> bool {
        member.wanted.is_some() && self.track.asked != member.wanted
    }

    /// Records that the present rollout asks the member for what it wants.
    pub fn ask(&mut self, member: &Member<'_>) {
        self.track.asked = member.wanted.or(self.track.asked);
    }

    pub fn release(&mut self, member: &Member<'_>, number: u64, now: i64) {
        let Track {
            released,
            back,
            is_done,
            ..
        } = self.track;
        let back = if is_done { released } else { back };
        self.track = Track {
            released: member.wanted,
            is_done: false,
            back,
            number,
            clock: None,
            ..self.track
        };
        self.track.clock = keep_clock(member, self.track, now);
        let is_silent = matches!(member.reach, Reach::Silent { .. });
        self.case = if is_silent { Case::Deferred } else { Case::InFlight };
    }

    pub fn take_back(&mut self, member: &Member<'_>, number: u64, now: i64) {
        let Track { released, back, .. } = self.track;
        self.track = Track {
            released: back,
            is_done: false,
            good: back,
            refused: released,
            number,
            clock: None,
            ..self.track
        };
        self.track.clock = keep_clock(member, self.track, now);
        self.case = Case::Refused;
        self.is_going_back = true;
    }
}

/// Whether no other member waits for this one while it is silent.
fn may_be_left(member: &Member<'_>, track: &Track, word: &Word, is_at_once: bool) -> bool {
    let Member { wanted, .. } = *member;
    if track.released == wanted {
        !word.is_reached || word.is_settled || track.good == track.released
    } else {
        let is_refused = wanted.is_some() && track.refused == wanted;
        !is_at_once || wanted.is_none() || is_refused
    }
}

/// Time in seconds at which to look again at a member that the hub has not heard since its start. Neither a poll nor
/// its absence wakes the rollout then. None: no decision waits for the member.
fn look_at_unheard(case: Case, member: &Member<'_>, is_at_once: bool, now: i64) -> Option<i64> {
    let is_waited_for = match case {
        Case::Done | Case::Still | Case::Skipped => false,
        Case::Pending => !is_at_once,
        // A member without any evidence wakes the rollout by its first report.
        _ => member.evidence.is_some(),
    };
    (is_waited_for && member.reach == Reach::NotYet).then_some(now + BETWEEN_LOOKS)
}

/// The clock of the progress deadline: stopped while the member can't progress, and restarted afterwards.
fn keep_clock(member: &Member<'_>, track: Track, now: i64) -> Option<i64> {
    match track.clock {
        _ if member.stopped_by(&track).is_some() || matches!(member.reach, Reach::Silent { .. }) => None,
        None => Some(now),
        time => time,
    }
}

/// What the evidence says about the change that a member is released for.
struct Word {
    is_settled: bool,
    /// Its agent has polled since that change was published.
    is_reached: bool,
    /// The agent reports a failure of whatever is published.
    has_failed: bool,
    /// It has failed for longer than failures are tolerated (`failAfter`).
    has_failed_long: bool,
    /// Not healthy after the progress deadline.
    is_late: bool,
    /// Silent for the progress deadline, after it got the entry.
    is_lost: bool,
    due: Option<i64>,
}

impl Word {
    fn of(policy: &Policy, member: &Member<'_>, track: Track, clock: Clock) -> Self {
        let said = member.evidence.and_then(|evidence| evidence.on(member.published));
        let at_released = said.filter(|said| Some(said.change()) == track.released);
        let was_done = track.good.is_some() && track.good == track.released;
        let heard = heard_at(member, clock);
        let is_heard = matches!(member.reach, Reach::Heard { .. });
        let soaked = at_released.and_then(Evidence::healthy_since).map(|since| {
            if was_done {
                clock.started
            } else {
                clock.count_from(since) + policy.soak_of(member.step)
            }
        });
        let is_settled = soaked.is_some_and(|soaked| heard.is_some_and(|heard| heard >= soaked && soaked <= clock.now));
        let failed = said.filter(|said| matches!(said.said(), Said::Failed(_)));
        let failed_until = failed.map(|said| clock.count_from(said.since()) + policy.fail_after);

        // A change that was done before gets the whole deadline again when it falls back.
        let fell_back = at_released.filter(|_| was_done).map(Evidence::since);
        let deadline = track.clock.map(|time| {
            let from = clock
                .count_from(time)
                .max(fell_back.map_or(i64::MIN, |since| clock.count_from(since)));
            from + policy.progress_deadline
        });
        let deadline = deadline.filter(|_| soaked.is_none());
        let is_published = member
            .published
            .is_some_and(|published| Some(published.change) == track.released);
        let lost = match member.reach {
            Reach::Silent { since, has_entry: true } if is_published => {
                Some(clock.count_from(since) + policy.progress_deadline)
            }
            _ => None,
        };
        let has_passed = |time: Option<i64>| time.is_some_and(|time| time <= clock.now);

        let waits = soaked
            .filter(|_| !is_settled && is_heard)
            .map(|soaked| soaked.max(clock.now + BETWEEN_LOOKS));
        let later = |time: &i64| *time > clock.now;
        let due = [waits, failed_until, deadline.filter(|_| is_heard), lost]
            .into_iter()
            .flatten()
            .filter(later)
            .min();
        Self {
            is_settled,
            is_reached: lost.is_some(),
            has_failed: failed.is_some(),
            has_failed_long: is_heard && at_released.is_some() && has_passed(failed_until),
            is_late: is_heard && has_passed(deadline),
            is_lost: has_passed(lost),
            due,
        }
    }
}

/// Time in seconds at which the member was last heard, if this hub timed it.
fn heard_at(member: &Member<'_>, clock: Clock) -> Option<i64> {
    match member.reach {
        Reach::Heard { at } => Some(at),
        // Polls before the hub started were timed by another clock.
        Reach::Silent { since, .. } => Some(since).filter(|since| (clock.started..=clock.now).contains(since)),
        Reach::NotYet => None,
    }
}
