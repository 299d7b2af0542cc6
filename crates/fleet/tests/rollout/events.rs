//! The events of a history as data. A history consists of a setting and events.

use farwater_api::rollout::{OnFailure, Promote, Strategy as Way};
use proptest::prelude::*;
use serde_json::{Value, json};

/// How a change turns out where it is applied. Times are seconds from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    Good,
    Slow,
    Bad,
    /// Healthy at first, failed later.
    BadLater,
    /// Failed at first, healthy later.
    BadAtFirst,
    /// Neither healthy nor failed, ever.
    Stuck,
    /// Bad on some clusters: bit N of the mask is cluster N modulo 16.
    BadSomewhere(u16),
    /// On some clusters (a mask as above) the agent is not heard any more.
    CutOff(u16),
}

impl Quality {
    pub fn is_bad_everywhere(self) -> bool {
        matches!(self, Self::Bad | Self::Stuck)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Suspended,
    Window,
    Denied,
    Waiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Promote(Promote),
    Abort,
    Skip(u8),
}

/// Members are given by their number in the set, modulo its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Nothing,
    /// Members are looked at one after the other, beginning with `first`.
    Commit {
        quality: Quality,
        first: u8,
    },
    /// A commit that changes nothing for any member.
    Foreign,
    /// The previous content again.
    Revert,
    /// A change of one member: a label, an override, or a parameter of its own.
    Change {
        member: u8,
        quality: Quality,
    },
    /// Another entry for the same change.
    Renew(u8),
    Join,
    Leave(u8),
    GoSilent(u8),
    ComeBack(u8),
    /// The member's reports are delayed by this many ticks from now on.
    Delay {
        member: u8,
        ticks: u8,
    },
    /// The last report is delivered once more.
    Repeat(u8),
    /// Something else fails on the member for some ticks.
    Crash {
        member: u8,
        ticks: u8,
    },
    /// The hub is away for some ticks. Afterwards its clock differs by `jump` seconds.
    Restart {
        ticks: u8,
        jump: i16,
    },
    Pause(bool),
    Stop {
        member: u8,
        stop: Stop,
        on: bool,
    },
    /// An order for the current number. `is_stale`: for the previous one.
    Command {
        command: Command,
        is_stale: bool,
    },
}

#[derive(Clone, Debug)]
pub struct Setting {
    pub members: u8,
    /// The policy as users write it.
    pub policy: Value,
    /// Members, as a mask, that stay silent at the end if they are silent then.
    pub lost: u16,
}

#[derive(Clone, Debug)]
pub struct History {
    pub setting: Setting,
    /// Each event, with the number of ticks after it.
    pub events: Vec<(Event, u8)>,
}

pub fn histories() -> impl Strategy<Value = History> {
    let events = prop::collection::vec((event(), prop_oneof![4 => 0..4_u8, 2 => 4..20_u8]), 1..24);
    (setting(), events).prop_map(|(setting, events)| History { setting, events })
}

fn setting() -> impl Strategy<Value = Setting> {
    let limit =
        || prop_oneof![2 => Just(json!(1)), 1 => Just(json!(2)), 1 => Just(json!("30%")), 1 => Just(json!("100%"))];
    let canary = prop_oneof![
        4 => Just(json!({})),
        2 => Just(json!({"clusterSelector": {"matchLabels": {"canary": "yes"}}})),
        1 => Just(json!({"clusterSelector": {"matchLabels": {"canary": "yes"}}, "count": 1})),
        1 => Just(json!({"count": 0})),
    ];
    let step = |name: &str| json!({"name": name, "clusterSelector": {"matchLabels": {"ring": name}}});
    let steps = prop_oneof![
        2 => Just(json!([])),
        1 => Just(json!([step("one")])),
        1 => Just(json!([step("one"), step("two")])),
        1 => limit().prop_map(move |limit| {
            let mut first = step("one");
            first["maxUnavailable"] = limit;
            first["soak"] = json!("30s");
            json!([first, step("two")])
        }),
    ];
    let ways = prop_oneof![8 => Just(Way::Progressive), 1 => Just(Way::OnHold), 1 => Just(Way::AllAtOnce)];
    let failure = prop_oneof![Just(OnFailure::Halt), Just(OnFailure::Rollback)];
    let times = (
        prop_oneof![Just("10s"), Just("60s")],
        prop_oneof![Just("100s"), Just("200s")],
        prop_oneof![Just("1s"), Just("30s")],
    );
    let partitions = prop_oneof![2 => Just(Value::Null), 1 => Just(json!("region"))];
    let all = (ways, limit(), canary, steps, limit(), failure, times, partitions);
    (1..=9_u8, any::<u16>(), all).prop_map(
        |(members, lost, (way, max, canary, steps, halt, failure, times, partition))| {
            let mut policy = json!({
                "strategy": way, "maxUnavailable": max, "canary": canary, "steps": steps, "haltAfter": halt,
                "onFailure": failure, "soak": times.0, "progressDeadline": times.1, "failAfter": times.2,
            });
            if !partition.is_null() {
                policy["partitionBy"] = partition;
            }
            Setting { members, policy, lost }
        },
    )
}

fn quality() -> impl Strategy<Value = Quality> {
    prop_oneof![
        4 => Just(Quality::Good),
        1 => Just(Quality::Slow),
        4 => Just(Quality::Bad),
        1 => Just(Quality::BadLater),
        1 => Just(Quality::BadAtFirst),
        1 => Just(Quality::Stuck),
        2 => any::<u16>().prop_map(Quality::BadSomewhere),
        1 => any::<u16>().prop_map(Quality::CutOff),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let member = || 0..12_u8;
    let stop = prop_oneof![
        Just(Stop::Suspended),
        Just(Stop::Window),
        Just(Stop::Denied),
        Just(Stop::Waiting)
    ];
    let promote = prop_oneof![Just(Promote::Soak), Just(Promote::Step), Just(Promote::Halt)];
    let command = prop_oneof![
        3 => promote.prop_map(Command::Promote),
        1 => Just(Command::Abort),
        1 => member().prop_map(Command::Skip),
    ];
    let jump = prop_oneof![2 => Just(0_i16), 1 => Just(3600), 1 => Just(-3600)];
    prop_oneof![
        2 => Just(Event::Nothing),
        8 => (quality(), member()).prop_map(|(quality, first)| Event::Commit { quality, first }),
        3 => Just(Event::Foreign),
        1 => Just(Event::Revert),
        2 => (member(), quality()).prop_map(|(member, quality)| Event::Change { member, quality }),
        1 => member().prop_map(Event::Renew),
        1 => Just(Event::Join),
        1 => member().prop_map(Event::Leave),
        2 => member().prop_map(Event::GoSilent),
        2 => member().prop_map(Event::ComeBack),
        1 => (member(), 0..6_u8).prop_map(|(member, ticks)| Event::Delay { member, ticks }),
        1 => member().prop_map(Event::Repeat),
        2 => (member(), 1..8_u8).prop_map(|(member, ticks)| Event::Crash { member, ticks }),
        1 => (0..30_u8, jump).prop_map(|(ticks, jump)| Event::Restart { ticks, jump }),
        1 => any::<bool>().prop_map(Event::Pause),
        3 => (member(), stop, any::<bool>()).prop_map(|(member, stop, on)| Event::Stop { member, stop, on }),
        3 => (command, prop::bool::weighted(0.2)).prop_map(|(command, is_stale)| Event::Command { command, is_stale }),
    ]
}
