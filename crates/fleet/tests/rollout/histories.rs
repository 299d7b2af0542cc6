//! Runs one history from its beginning to its end, and compares each look with the oracle.

use farwater_api::rollout::{Promote, RolloutOrder, Strategy};
use farwater_fleet::rollout::{Decision, Held, Member, Outlook, Phase, Reach, Standing, Track, standing};

use crate::{
    events::{Command, Event, History, Quality},
    resting,
    world::World,
};

type Verdict = Result<(), String>;

/// What a history covered, which shows how much the count of histories is worth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub looks: u64,
    /// Looks that were also decided by the numbers of resting members.
    pub by_numbers: u64,
    pub released: u64,
    pub retracted: u64,
    pub halted: u64,
    /// Most ticks from the last fault until all members were done.
    pub longest_end: u64,
}

impl Figures {
    pub fn add(&mut self, other: Self) {
        self.looks += other.looks;
        self.by_numbers += other.by_numbers;
        self.released += other.released;
        self.retracted += other.retracted;
        self.halted += other.halted;
        self.longest_end = self.longest_end.max(other.longest_end);
    }
}

pub fn run(history: &History) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut world = World::new(&history.setting);
    for (event, ticks) in &history.events {
        apply(&mut world, *event);
        look(&mut world, &mut figures, true)?;
        for _ in 0..*ticks {
            world.tick();
            look(&mut world, &mut figures, false)?;
        }
    }
    end(&mut world, history.setting.lost, &mut figures)?;
    figures.released = world.oracle.released;
    figures.retracted = world.oracle.retracted;
    Ok(figures)
}

fn apply(world: &mut World, event: Event) {
    if let Some(bad) = world.oracle.bad.as_mut().filter(|_| event != Event::Nothing) {
        bad.faults += 1;
    }
    let count = world.rows.len();
    let row = |member: u8| usize::from(member) % count.max(1);
    match event {
        Event::Commit { quality, first } => {
            let is_at_rest = world.is_at_rest();
            world.commit(quality, first);
            let mut bad = crate::oracle::BadCommit::new(world.target(), world.has_canary());
            // Members that are silent without the hub having noticed.
            bad.faults = world.rows.iter().filter(|row| !row.agent.is_heard()).count();
            world.oracle.bad = Some(bad).filter(|_| is_at_rest && quality.is_bad_everywhere());
        }
        Event::Foreign => {
            world.commit_foreign();
            world.oracle.bad = None;
        }
        Event::Revert => world.revert(),
        Event::Join if count < 12 => world.join(),
        Event::Restart { ticks, jump } => world.restart(ticks, i64::from(jump)),
        Event::Pause(paused) => world.pause(paused),
        Event::Command {
            command: what,
            is_stale,
        } => command(world, what, is_stale),
        _ if count == 0 => {}
        Event::Change { member, quality } => {
            world.change(row(member), quality);
            // A canary that gets a change of its own may get through with it, and then opens the next step.
            world.oracle.bad = None;
        }
        Event::Renew(member) => world.renew(row(member)),
        Event::Leave(member) => {
            world.rows.remove(row(member));
        }
        Event::GoSilent(member) => world.rows[row(member)].agent.is_silent = true,
        Event::ComeBack(member) => world.rows[row(member)].agent.is_silent = false,
        Event::Delay { member, ticks } => world.rows[row(member)].agent.delay = i64::from(ticks) * crate::world::TICK,
        Event::Repeat(member) => world.repeat(row(member)),
        Event::Crash { member, ticks } => world.crash(row(member), ticks),
        Event::Stop { member, stop, on } => {
            let stops = &mut world.rows[row(member)].stops;
            stops.retain(|other| *other != stop);
            stops.extend(on.then_some(stop));
        }
        Event::Nothing | Event::Join => {}
    }
}

/// Gives an order.
fn command(world: &mut World, command: Command, is_stale: bool) {
    let number = world.state.number.saturating_sub(u64::from(is_stale));
    let mut order = RolloutOrder {
        number,
        requested_at: world.clock.now.to_string(),
        ..RolloutOrder::default()
    };
    match command {
        Command::Promote(what) => order.promote = Some(what),
        Command::Abort => order.abort = true,
        Command::Skip(member) => {
            let count = world.rows.len().max(1);
            order
                .skip
                .extend(world.rows.get(usize::from(member) % count).map(|row| row.name.clone()));
        }
    }
    world.order(Some(order));
}

/// Tells the oracle what an order means, if it counts.
fn note_order(world: &mut World, decision: &Decision) {
    let (before, number) = (world.state.clone(), decision.state.number);
    let Some(order) = world.stated.order.clone().filter(|order| order.number == number) else {
        return;
    };
    if decision.state.obeyed == before.obeyed {
        return;
    }
    // After a step is passed by order, the commit may reach any member.
    world.oracle.bad = None;
    for name in &order.skip {
        world.note_skip(name);
    }
    match order.promote {
        Some(_) if world.policy.strategy == Strategy::OnHold && !(before.promoted && before.number == number) => {}
        Some(Promote::Soak) => world.note_soak(),
        Some(Promote::Step) => world.oracle.passed = number,
        Some(Promote::Halt) => {
            world.oracle.aborted = 0;
            world.note_go_on();
        }
        None => {}
    }
    if order.abort && decision.state.open {
        world.oracle.aborted = number;
        world.note_abort();
    }
}

fn look(world: &mut World, figures: &mut Figures, is_thorough: bool) -> Result<Decision, String> {
    figures.looks += 1;
    world.settle();
    let decision = world.decide();
    figures.halted += u64::from(decision.phase == Phase::Halted && world.state.open);
    figures.by_numbers += u64::from(resting::judge(world, &decision)?);
    note_order(world, &decision);
    world.judge(&decision)?;
    if is_thorough {
        judge_order(world, &decision)?;
        judge_flip(world, &decision, figures.looks)?;
    }
    judge_number(world, &decision)?;
    let has_changed = !decision.tracks.is_empty() || decision.state != world.state;
    world.save(&decision);
    // A member that is given the change that it still has is done at once, and the next look continues with that.
    let has_it = |index: &usize| world.rows[*index].published.map(|it| it.change) == world.rows[*index].track.released;
    if (has_changed || is_thorough) && !decision.released.iter().chain(&decision.retracted).any(has_it) {
        let again = world.decide();
        if !again.tracks.is_empty() || again.state != world.state {
            return Err(format!("P8: {decision:?} and then {again:?}"));
        }
        judge_words(world, &again)?;
    }
    Ok(decision)
}

/// P15: while a rollout is under way, another one begins only if a member wants something new.
fn judge_number(world: &mut World, decision: &Decision) -> Verdict {
    let wants_new_change = world
        .rows
        .iter()
        .any(|row| row.wanted.is_some() && row.wanted != row.asked);
    if world.state.open && decision.state.number > world.state.number && !wants_new_change {
        return Err(format!("P15: nobody wants anything else: {decision:?}"));
    }
    if decision.state.target == Some(world.target()) {
        for row in &mut world.rows {
            row.asked = row.wanted.or(row.asked);
        }
    }
    Ok(())
}

/// P11: the decision doesn't depend on the order of the members.
fn judge_order(world: &World, decision: &Decision) -> Verdict {
    let mut members = world.members();
    members.reverse();
    let mut other = world.decide_of(&members);
    let last = members.len().saturating_sub(1);
    for index in other.tracks.iter_mut().map(|(index, _)| index) {
        *index = last - *index;
    }
    let sorted = |decision: &Decision| {
        let mut decision = decision.clone();
        decision.tracks.sort_by_key(|(index, _)| *index);
        decision.released.sort_unstable();
        decision.retracted.sort_unstable();
        decision
    };
    other.rests.reverse();
    for index in other.released.iter_mut().chain(&mut other.retracted) {
        *index = last - *index;
    }
    let (one, other) = (sorted(decision), sorted(&other));
    if one == other {
        Ok(())
    } else {
        Err(format!("P11: {one:?} or {other:?}"))
    }
}

/// P10: if one member wants something else, nothing changes for the others, except that one of them may take its place.
fn judge_flip(world: &World, decision: &Decision, nth: u64) -> Verdict {
    let mut members = world.members();
    let Some(index) = usize::try_from(nth).unwrap().checked_rem(members.len()) else {
        return Ok(());
    };
    let Member { wanted, track, .. } = members[index];
    let order = world
        .policy
        .order
        .as_ref()
        .filter(|order| world.state.obeyed != Some(order.id));
    // A member that is silent with its change is waited for. It is passed over once it wants another.
    let is_silent = matches!(members[index].reach, Reach::Silent { .. });
    if wanted.is_none()
        || is_silent
        || track.refused == wanted
        // A percentage of all members counts one member more once this one is no longer skipped.
        || track.skipped == wanted
        || decision.tracks.iter().any(|(at, track)| *at == index && track.refused == wanted)
        || order.is_some()
    {
        return Ok(());
    }
    members[index].wanted = Some(flipped());
    let other = world.decide_of(&members);
    if other.state.number != decision.state.number {
        // This began another rollout, which is judged by itself.
        return Ok(());
    }
    let others = |list: &[usize]| list.iter().copied().filter(|at| *at != index).collect::<Vec<_>>();
    let (released, before) = (others(&other.released), others(&decision.released));
    let more = released.iter().filter(|at| !before.contains(at)).count();
    let learned = |decision: &Decision| -> Vec<_> {
        // `asked` belongs to the rollout and not to the member.
        let is_more = |at: usize, track: &Track| {
            Track {
                asked: members[at].track.asked,
                ..*track
            } != members[at].track
        };
        let changed = decision.tracks.iter().filter(|(at, track)| {
            *at != index && !decision.released.contains(at) && !decision.retracted.contains(at) && is_more(*at, track)
        });
        changed
            .map(|(at, track)| (*at, track.refused, track.good, track.skipped))
            .collect()
    };
    let is_same = |(at, ..): &&(usize, _, _, _)| !released.contains(at) && !before.contains(at);
    let (one, two) = (learned(decision), learned(&other));
    let same = one.iter().filter(is_same).eq(two.iter().filter(is_same)) || decision.retracted != other.retracted;
    if more <= 1 && same {
        Ok(())
    } else {
        Err(format!(
            "P10: {} wants another: {decision:?} or {other:?}",
            members[index].name
        ))
    }
}

fn flipped() -> farwater_fleet::rollout::ChangeId {
    "00000000000000000000000000000000".parse().unwrap()
}

/// P14: no waiting member is announced as next and then not released.
fn judge_words(world: &World, decision: &Decision) -> Verdict {
    let outlook: &Outlook = &decision.outlook;
    for member in world.members() {
        let standing = standing(&world.policy, &decision.state, outlook, &member, world.clock);
        if standing == Standing::Held(Held::Next) {
            return Err(format!("P14: {} goes next and doesn't: {decision:?}", member.name));
        }
    }
    Ok(())
}

/// P7: the faults stop and a good commit comes. Then all members that are heard get done with it.
fn end(world: &mut World, lost: u16, figures: &mut Figures) -> Verdict {
    world.pause(false);
    world.order(None);
    for row in &mut world.rows {
        row.stops.clear();
        row.agent.delay = 0;
        row.agent.crash(0);
        row.agent.is_silent &= lost & (1 << (row.number % 16)) != 0;
    }
    world.commit(Quality::Good, 0);
    let soak: i64 = world.rows.iter().map(|row| world.soak_of(row)).max().unwrap_or(0);
    // Members go one after the other, each with its poll, report and soak. Before that, stuck members have to be
    // noticed, at most twice.
    let each = (soak + 8 * crate::world::TICK) / crate::world::TICK;
    let most =
        each * i64::try_from(world.rows.len() + 2).unwrap() + 3 * world.policy.progress_deadline / crate::world::TICK;
    let mut unfinished = None;
    for tick in 0..most {
        world.tick();
        let decision = look(world, figures, false)?;
        if decision.phase == Phase::OnHold {
            command(world, Command::Promote(Promote::Step), false);
            look(world, figures, false)?;
        }
        unfinished = world.unfinished(&decision);
        if unfinished.is_none() {
            figures.longest_end = figures.longest_end.max(tick.unsigned_abs());
            return Ok(());
        }
    }
    match unfinished {
        None => Ok(()),
        Some(told) => Err(format!("P7: after {most} ticks {told}: {:?}", world.decide())),
    }
}
