//! Rollback, abort and promotion, and rollouts to all members at once.

use farwater_api::{
    objects::Health::{Current, Failed},
    protocol::{Ceiling, ServiceAccount},
};
use proptest::prelude::*;

use super::*;
use crate::{
    assignment::{self, Candidate, Trouble},
    placement::Denied,
};

fn rolling_back() -> Set {
    let mut set = set("abcdef", json!({"onFailure": "Rollback"}));
    set.want("1");
    set.look();
    set.get_through("a");
    let two = set.released();
    set.get_through(&two);
    let more = set.released();
    set.fail(&more[..1]);
    set
}

#[test]
fn with_rollback_all_that_have_changed_go_back_some_at_a_time() {
    let mut set = rolling_back();
    // The failed member and the one released with it go back at once.
    let looked = set.look();
    assert_eq!(
        (looked.phase, looked.retracted.len(), looked.released.as_str()),
        (Phase::RollingBack, 2, "")
    );
    let mut back = looked.retracted;
    for _ in 0..3 {
        let latest = back.clone();
        set.all_say(&latest, Current);
        back.push_str(&set.look().retracted);
    }
    assert_eq!(back.len(), 5);
    set.all_say(&back, Current);
    assert_eq!(set.look().phase, Phase::Halted);
    let good = set
        .rows
        .iter()
        .filter(|row| row.track.released == Some(id("0")))
        .count();
    assert_eq!(good, 6);
}

#[test]
fn what_was_taken_back_is_not_given_again_by_itself() {
    let mut set = rolling_back();
    for _ in 0..5 {
        set.look();
        set.all_say("abcdef", Current);
        set.pass(200);
    }
    assert_eq!(set.released(), "");
    assert!(set.standing('a').starts_with("was taken back"), "{}", set.standing('a'));
    set.want("2");
    assert_eq!(set.released(), "a");
    // The change is wanted again before the other one is through. It is known to fail.
    set.want("1");
    assert_eq!(set.look().phase, Phase::RollingBack);
}

#[test]
fn a_first_version_that_fails_stays_where_it_is() {
    let mut set = set("a", json!({"onFailure": "Rollback"}));
    set.rows.clear();
    set.join('a');
    set.want("1");
    set.look();
    set.fail("a");
    let looked = set.look();
    assert_eq!((looked.phase, looked.retracted.as_str()), (Phase::Halted, ""));
}

#[test]
fn an_abort_takes_back_what_has_changed_and_begins_nothing() {
    let mut set = set("abcd", json!({}));
    set.want("1");
    set.look();
    set.get_through("a");
    set.look();
    set.order(json!({"abort": true}));
    let looked = set.look();
    assert_eq!((looked.phase, looked.retracted.len()), (Phase::RollingBack, 2));
    set.all_say("bcd", Current);
    assert_eq!(set.look().retracted, "a");
    set.say('a', Current);
    assert_eq!(set.look().phase, Phase::Aborted);
    set.join('e');
    set.row('e').wanted = Some(id("1"));
    assert_eq!(
        (set.released(), set.standing('e')),
        (String::new(), "waits: the rollout was aborted".to_owned())
    );
    set.want("2");
    assert_eq!(set.released(), "a");
}

#[test]
fn a_promoted_halt_goes_on_without_what_failed() {
    let mut set = set("abcd", json!({}));
    set.want("1");
    set.look();
    set.fail("a");
    assert_eq!(set.look().phase, Phase::Halted);
    set.order(json!({"promote": "Halt"}));
    assert_eq!((set.released().len(), set.standing('a')), (1, "is skipped".to_owned()));
}

#[test]
fn a_promoted_halt_tries_again_what_was_taken_back() {
    let mut set = set("ab", json!({"onFailure": "Rollback"}));
    set.want("1");
    set.look();
    set.fail("a");
    assert_eq!(set.look().retracted, "a");
    set.say('a', Current);
    set.order(json!({"promote": "Halt"}));
    assert_eq!(set.released(), "a");
    set.fail("a");
    assert_eq!(set.look().retracted, "a");
}

#[test]
fn nothing_goes_back_while_it_is_paused() {
    let mut set = rolling_back();
    set.policy.paused = true;
    assert_eq!(set.look().retracted, "");
    set.policy.paused = false;
    assert_eq!(set.look().retracted.len(), 2);
}

#[test]
fn all_at_once_asks_for_nobodys_health_or_word() {
    let mut set = set("abc", json!({"strategy": "AllAtOnce"}));
    set.silence('b', true);
    set.say('c', Failed);
    set.want("1");
    assert_eq!(set.released(), "abc");
    set.want("2");
    assert_eq!(set.released(), "abc");
}

proptest! {
    /// P13: a set with one member and without gates assigns the same as a single service.
    #[test]
    fn all_at_once_is_what_a_service_alone_is_assigned(
        wanted in prop::option::of(0..3_u8),
        has in prop::option::of(0..3_u8),
        is_suspended: bool,
        is_denied: bool,
        is_silent: bool,
    ) {
        let candidates: Vec<Candidate> = (0..3).map(|number| Candidate::of_commit(&number.to_string())).collect();
        let of = |number: Option<u8>| number.map(|number| &candidates[usize::from(number)]);
        let trouble = Trouble::Pin { message: String::new() };
        let denied = Denied::AgentNamespace;
        let service_account = ServiceAccount { namespace: String::new(), name: String::new() };
        let ceiling = Ceiling { service_account, target_namespaces: None, allowed_kinds: None, denied_kinds: None };
        let alone = assignment::decide(assignment::Inputs {
            suspended: is_suspended,
            pinned: None,
            candidate: of(wanted).ok_or(&trouble),
            waits: &[],
            ceiling: if is_denied { Err(&denied) } else { Ok(&ceiling) },
            assigned: of(has),
            held: false,
            closed: None,
            restated: false,
        });
        let mut set = set("a", json!({"strategy": "AllAtOnce", "canary": {"count": 0}}));
        let change = |number: u8| id(&number.to_string());
        let row = set.row('a');
        row.wanted = wanted.map(change);
        row.track = Track { released: has.map(change), ..Track::default() };
        row.stands = match () {
            () if is_suspended => Some(Stands::Suspended),
            () if is_denied => Some(Stands::Denied(String::new())),
            () => None,
        };
        if is_silent {
            set.silence('a', false);
        }
        let is_assigned = matches!(alone, assignment::Decision::Assign(_));
        prop_assert_eq!(set.released() == "a", is_assigned);
    }
}
