//! When a member is done, passed over, failed or broken.

use farwater_api::objects::Health::{Current, Failed, InProgress};

use super::*;

#[test]
fn a_canary_goes_first_and_the_others_when_it_has_soaked() {
    let mut set = set("abcd", json!({}));
    set.want("1");
    assert_eq!(set.released(), "a");
    set.say('a', InProgress);
    set.pass(50);
    assert_eq!(set.released(), "");
    set.say('a', Current);
    set.pass(9);
    assert_eq!(set.released(), "");
    set.pass(1);
    assert_eq!(set.released().len(), 2);
}

#[test]
fn what_was_said_of_another_entry_is_no_word_on_this_one() {
    let mut set = set("ab", json!({}));
    set.want("1");
    assert_eq!(set.released(), "a");
    // The member was healthy with its previous change.
    set.pass(50);
    assert_eq!(
        (set.released(), set.standing('a')),
        (String::new(), "is on its way".to_owned())
    );
    // Content that returns is another entry.
    set.get_through("a");
    assert_eq!(set.released(), "b");
    set.get_through("b");
    set.look();
    set.want("0");
    assert_eq!(set.released(), "a");
    assert_eq!(set.released(), "");
}

#[test]
fn neither_silence_nor_a_clock_ends_a_soak() {
    let mut set = set("ab", json!({}));
    set.want("1");
    set.look();
    set.say('a', Current);
    set.pass(5);
    set.silence('a', true);
    set.pass(50);
    assert_eq!(
        (set.released(), set.standing('a')),
        (String::new(), "is silent since it got the change".to_owned())
    );
    set.hear('a');
    assert_eq!(set.released(), "b");
    // The hub restarts with a clock that is an hour ahead or behind.
    for jump in [3600, -3600] {
        let mut set = super::set("ab", json!({}));
        set.want("1");
        set.look();
        set.say('a', Current);
        set.clock = Clock {
            now: set.clock.now + jump,
            started: set.clock.now + jump,
        };
        assert_eq!(set.released(), "", "{jump}");
        set.pass(10);
        assert_eq!(set.released(), "b", "{jump}");
    }
}

#[test]
fn what_was_done_once_need_not_soak_again() {
    let mut set = set("ab", json!({}));
    set.want("1");
    set.look();
    set.get_through("a");
    assert_eq!(set.released(), "b");
    set.get_through("b");
    assert_eq!(set.look().phase, Phase::Complete);
    set.say('b', InProgress);
    assert_eq!(set.standing('b'), "is on its way");
    set.say('b', Current);
    assert_eq!(set.standing('b'), "is done");
}

#[test]
fn a_silent_cluster_is_passed_over_and_gets_it_when_it_is_back() {
    let mut set = set("abc", json!({}));
    set.silence('b', true);
    set.want("1");
    assert_eq!(set.released(), "a");
    set.get_through("a");
    assert_eq!(set.released(), "c");
    set.get_through("c");
    assert_eq!(
        (set.look().phase, set.standing('b')),
        (
            Phase::Complete,
            "is silent: it gets the change when it is heard".to_owned()
        )
    );
    assert_eq!(set.state.last_good.map(|good| good.number), Some(1));
    set.hear('b');
    assert_eq!(set.released(), "b");
    // A change that the member did not fetch is no failure either.
    set.silence('b', false);
    set.pass(1000);
    assert_eq!(set.look().phase, Phase::Complete);
}

#[test]
fn a_cluster_that_falls_silent_with_its_change_halts_the_rest() {
    let mut set = set("abc", json!({}));
    set.want("1");
    set.look();
    set.silence('a', true);
    set.pass(99);
    assert_eq!(set.look().phase, Phase::Progressing);
    set.pass(1);
    assert_eq!((set.look().phase, set.released()), (Phase::Halted, String::new()));
    // The change may have cut the cluster off. With the next version, the cluster is passed over.
    set.want("2");
    assert_eq!(set.released().len(), 1);
}

#[test]
fn nobody_follows_before_a_hub_that_was_away_has_heard_them() {
    let mut set = set("abc", json!({}));
    set.want("1");
    set.look();
    set.get_through("a");
    set.clock.started = set.clock.now;
    set.rows.iter_mut().for_each(|row| row.reach = Some(Reach::NotYet));
    assert_eq!(
        (set.released(), set.standing('b')),
        (
            String::new(),
            "waits for its cluster to be heard, since the hub was away".to_owned()
        )
    );
    let next = set.look().next_look;
    assert!(
        next.is_some_and(|next| next <= set.clock.now + 5),
        "a poll wakes nobody: {next:?}"
    );
    set.rows.iter_mut().for_each(|row| row.reach = None);
    assert_eq!(set.released(), "");
    set.pass(10);
    assert_eq!(set.released(), "bc");
}

#[test]
fn a_hub_that_was_away_for_long_has_seen_no_failure() {
    let mut set = set("ab", json!({}));
    set.want("1");
    set.look();
    set.say('a', InProgress);
    set.pass(10_000);
    set.clock.started = set.clock.now;
    assert_eq!(set.look().phase, Phase::Progressing);
    set.pass(100);
    assert_eq!(set.look().phase, Phase::Halted);
}

#[test]
fn a_failure_is_borne_for_a_while_and_then_halts() {
    let mut set = set("ab", json!({}));
    set.want("1");
    set.look();
    set.say('a', Failed);
    set.pass(4);
    assert_eq!(set.look().phase, Phase::Progressing);
    set.pass(1);
    let looked = set.look();
    assert_eq!((looked.phase, looked.released.as_str()), (Phase::Halted, ""));
    assert_eq!(set.standing('a'), "failed: Pod web/web: crashes");
    assert_eq!(set.standing('b'), "waits: the rollout is halted, since fleet/a failed");
}

#[test]
fn a_halt_outlasts_a_recovery_and_ends_with_another_change() {
    let mut set = set("abc", json!({}));
    set.want("1");
    set.look();
    set.fail("a");
    assert_eq!(set.look().phase, Phase::Halted);
    set.get_through("a");
    assert_eq!(set.look().phase, Phase::Halted);
    assert_eq!(
        set.standing('a'),
        "failed, and is healthy now: promote the rollout to continue"
    );
    set.want("2");
    assert_eq!(set.released(), "a");
    set.get_through("a");
    assert_eq!(set.released(), "bc");
}

#[test]
fn what_is_not_healthy_in_time_has_failed_but_for_the_time_that_it_waits() {
    let mut set = set("ab", json!({}));
    set.want("1");
    set.look();
    set.pass(50);
    set.row('a').stands = Some(Stands::Waiting("waits for service database".to_owned()));
    set.look();
    set.pass(1000);
    assert_eq!(
        (set.look().phase, set.standing('a')),
        (Phase::Progressing, "waits for service database".to_owned())
    );
    set.row('a').stands = None;
    set.look();
    set.pass(99);
    assert_eq!(set.look().phase, Phase::Progressing);
    set.pass(1);
    assert_eq!(set.look().phase, Phase::Halted);
}

#[test]
fn in_a_closed_window_what_has_begun_goes_on_in_its_time_and_what_has_not_waits() {
    let closed = || {
        Stands::Window(Closed {
            by: "ops/nights".to_owned(),
            reason: String::new(),
            until: None,
        })
    };
    let mut set = set("ab", json!({}));
    set.want("1");
    set.look();
    // The change was handed over, but the agent has not begun.
    set.row('a').stands = Some(closed());
    set.look();
    set.pass(1000);
    let waits = "waits: ChangeWindow ops/nights lets no change begin".to_owned();
    assert_eq!(
        (set.look().phase, set.standing('a')),
        (Phase::Progressing, waits.clone())
    );
    set.say('a', Health::InProgress);
    set.look();
    assert_eq!(set.standing('a'), "is on its way");
    set.pass(100);
    assert_eq!(set.look().phase, Phase::Halted, "it is not healthy in time");
    // The other members wait for the window, whatever happens to the first.
    set.row('b').stands = Some(closed());
    set.get_through("a");
    assert_eq!((set.released(), set.standing('b')), (String::new(), waits));
}

#[test]
fn what_is_broken_gets_its_fix_before_the_canary_and_while_others_have_failed() {
    let mut set = set("abc", json!({}));
    set.fail("c");
    assert_eq!(set.look().phase, Phase::Complete);
    set.want("1");
    assert_eq!(set.released(), "ac");
    // A member that is on its way is not broken.
    let mut set = super::set("abc", json!({}));
    set.say('c', InProgress);
    set.pass(1000);
    set.want("1");
    assert_eq!(set.released(), "a");
    set.fail("a");
    assert_eq!(set.look().phase, Phase::Halted);
    set.fail("b");
    assert_eq!(set.released(), "b");
}

#[test]
fn a_wrong_fix_reaches_no_more_broken_clusters_at_a_time_than_may_be_unavailable() {
    let mut set = set("abcdef", json!({}));
    set.fail("abcdef");
    set.want("1");
    assert_eq!(set.released().len(), 2);
    assert_eq!(set.released().len(), 0);
}

#[test]
fn the_next_look_is_when_time_alone_changes_something() {
    let mut set = set("ab", json!({}));
    assert_eq!(set.decide().next_look, None);
    set.want("1");
    set.look();
    assert_eq!(set.decide().next_look, Some(set.clock.now + 100));
    set.say('a', Current);
    assert_eq!(set.decide().next_look, Some(set.clock.now + 10));
    set.say('a', Failed);
    assert_eq!(set.decide().next_look, Some(set.clock.now + 5));
}
