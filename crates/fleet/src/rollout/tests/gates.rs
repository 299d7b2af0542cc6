//! How many members are released at a time and in which order, and what orders of people do.

use farwater_api::objects::Health::{Current, InProgress};

use super::*;

#[test]
fn no_more_are_unavailable_than_may_be_whatever_they_want_by_then() {
    let mut set = set("abcdef", json!({"canary": {"count": 0}}));
    set.row('a').step = 1;
    set.want("1");
    let first = set.released();
    assert_eq!((first.len(), set.released().as_str()), (2, ""));
    // The next version comes before these members are through. They get it, and no other member.
    set.all_say(&first, InProgress);
    set.want("2");
    assert_eq!(set.released(), first);
    set.get_through(&first[..1]);
    assert_eq!(set.released().len(), 1);
}

#[test]
fn what_is_ill_anyway_takes_a_place() {
    let mut set = set("abcd", json!({"maxUnavailable": 1}));
    set.want("1");
    set.row('d').wanted = Some(id("0"));
    set.fail("d");
    assert_eq!(set.released(), "");
    assert_eq!(
        set.standing('a'),
        "waits: 1 of at most 1 are unavailable, fleet/d first"
    );
    set.order(json!({"skip": ["fleet/d"]}));
    assert_eq!(set.released(), "a");
}

#[test]
fn steps_open_one_after_the_other_each_with_its_own_number() {
    let steps =
        json!([{"name": "eu", "clusterSelector": {}, "maxUnavailable": 1}, {"name": "us", "clusterSelector": {}}]);
    let mut set = set("abcde", json!({"steps": steps}));
    for name in ['d', 'e'] {
        set.row(name).step = 2;
    }
    set.want("1");
    set.look();
    set.get_through("a");
    let first = set.released();
    assert_eq!(
        (first.len(), set.standing('d').as_str()),
        (1, "waits for step eu: fleet/b is not done")
    );
    set.get_through(&first);
    let second = set.released();
    assert_eq!(
        format!("{}{}", first.clone().min(second.clone()), first.max(second.clone())),
        "bc"
    );
    // A member whose wanted change is unknown closes the next step too.
    set.get_through(&second);
    set.row('b').wanted = None;
    assert_eq!(set.released(), "");
    set.row('b').wanted = Some(id("1"));
    assert_eq!(set.released(), "de");
}

#[test]
fn failures_are_borne_up_to_a_number_but_of_no_canary() {
    let mut set = set("abcdef", json!({"haltAfter": 2, "maxUnavailable": 3}));
    set.want("1");
    set.look();
    set.fail("a");
    assert_eq!(set.look().phase, Phase::Halted);
    set.want("2");
    set.look();
    set.get_through("a");
    let three = set.released();
    set.fail(&three[..1]);
    assert_eq!(set.look().phase, Phase::Progressing);
    set.get_through(&three[1..]);
    let rest = set.released();
    assert_eq!(rest.len(), 2);
    set.fail(&rest[..1]);
    assert_eq!(set.look().phase, Phase::Halted);
}

#[test]
fn where_no_canary_can_go_another_goes_alone() {
    let mut set = set("abcd", json!({}));
    set.silence('a', true);
    set.want("1");
    let first = set.released();
    assert_eq!((first.len(), set.released().as_str()), (1, ""));
    set.get_through(&first);
    assert_eq!(set.released().len(), 2);
}

#[test]
fn who_is_new_to_a_good_set_waits_for_no_step() {
    let mut set = set("ab", json!({}));
    set.say('a', InProgress);
    set.join('c');
    assert_eq!(set.released(), "c");
    // If the set isn't known to be good, a new member waits for its turn.
    let mut set = super::set("ab", json!({}));
    set.want("1");
    set.join('c');
    set.row('c').wanted = Some(id("1"));
    assert_eq!(set.released(), "a");
}

#[test]
fn one_partition_is_gone_through_before_the_next_begins() {
    let mut set = set("abcdef", json!({"partitionBy": "region", "maxUnavailable": 1}));
    for (name, region) in [('b', "us"), ('c', "eu"), ('d', "us"), ('e', "eu")] {
        set.row(name).partition = Some(region.to_owned());
    }
    set.want("1");
    let mut order = String::new();
    for _ in 0..6 {
        let next = set.released();
        set.get_through(&next);
        order.push_str(&next);
    }
    assert_eq!(order[..1], *"a");
    let sorted = |text: &str| {
        let mut names: Vec<char> = text.chars().collect();
        names.sort_unstable();
        names.into_iter().collect::<String>()
    };
    assert_eq!(
        (sorted(&order[1..3]), sorted(&order[3..5]), &order[5..]),
        ("ce".to_owned(), "bd".to_owned(), "f")
    );
}

#[test]
fn nothing_moves_while_it_is_paused_or_held() {
    let mut set = set("ab", json!({"paused": true}));
    set.want("1");
    assert_eq!(
        (set.released(), set.standing('a')),
        (String::new(), "waits: the rollout is paused".to_owned())
    );
    set.policy.paused = false;
    let closed = Closed {
        by: "ops/nights".to_owned(),
        reason: "people sleep".to_owned(),
        until: None,
    };
    let told = "waits: ChangeWindow ops/nights lets no change begin: people sleep".to_owned();
    set.row('a').stands = Some(Stands::Window(closed));
    assert_eq!((set.released(), set.standing('a')), (String::new(), told));
    // A rollout doesn't wait for a service that a person suspended.
    set.row('a').stands = Some(Stands::Suspended);
    assert_eq!(set.released(), "b");
}

#[test]
fn what_is_on_hold_begins_when_it_is_promoted() {
    let mut set = set("abc", json!({"strategy": "OnHold"}));
    set.want("1");
    assert_eq!(
        (set.released(), set.standing('a')),
        (String::new(), "waits for the rollout to be promoted".to_owned())
    );
    set.order(json!({"promote": "Step"}));
    assert_eq!(set.released(), "a");
    set.get_through("a");
    assert_eq!(set.released(), "bc");
    set.get_through("bc");
    set.look();
    set.want("2");
    assert_eq!(set.look().phase, Phase::OnHold);
}

#[test]
fn an_order_counts_once_and_for_its_number() {
    let mut set = set("abcd", json!({}));
    set.want("1");
    set.look();
    set.order(json!({"promote": "Soak"}));
    // A commit arrives before the order is obeyed.
    set.want("2");
    set.look();
    set.say('a', Current);
    assert_eq!((set.state.number, set.released().as_str()), (2, ""));
    set.order(json!({"promote": "Soak"}));
    assert_eq!(set.released().len(), 2);
    set.want("3");
    set.look();
    set.say('a', Current);
    assert_eq!(set.released(), "");
}

#[test]
fn a_person_goes_past_a_step() {
    let mut set = set("abc", json!({}));
    set.want("1");
    set.look();
    set.order(json!({"promote": "Step"}));
    assert_eq!(set.released().len(), 1);
}

#[test]
fn an_order_waits_until_it_is_known_which_rollout_it_is_for() {
    let mut set = set("ab", json!({}));
    set.want("1");
    set.look();
    set.order(json!({"promote": "Step"}));
    set.want("2");
    set.rows.iter_mut().for_each(|row| row.wanted = None);
    assert_eq!(set.released(), "");
    assert_eq!(set.state.obeyed, None);
    set.want("2");
    assert_eq!(set.released(), "a");
    assert_eq!((set.state.number, set.state.passed.len()), (2, 0));
}

#[test]
fn a_number_names_what_the_set_asks_for() {
    let mut set = set("ab", json!({}));
    assert_eq!(set.state.number, 0);
    set.want("1");
    set.look();
    assert_eq!((set.state.number, set.state.open), (1, true));
    // A commit that changes nothing for the members.
    set.get_through("a");
    set.look();
    set.target = Digest::of("1, and a file of others");
    set.get_through("b");
    assert_eq!(set.look().phase, Phase::Complete);
    assert_eq!((set.state.number, set.state.open), (1, false));
    assert_eq!(
        set.state.last_good,
        Some(LastGood {
            number: 1,
            target: set.target
        })
    );
    set.row('b').wanted = Some(id("of its own"));
    set.look();
    assert_eq!(set.state.number, 2);
}

#[test]
fn a_commit_that_concerns_no_member_is_no_other_rollout() {
    let mut set = set("abcd", json!({"maxUnavailable": 1}));
    set.want("1");
    set.look();
    set.publish('a');
    set.get_through("a");
    let next = set.look().released;
    let (next, last) = (next.chars().next().unwrap(), if next == "b" { 'c' } else { 'b' });
    set.publish(next);
    // More such commits than a soak allows, while members still wait. One member hasn't been looked at with the commit
    // yet.
    for n in 0..5 {
        set.target = Digest::of(format!("1, and file {n} of others"));
        let wanted = set.row(last).wanted.take();
        set.look();
        set.row(last).wanted = wanted;
        set.look();
        assert_eq!((set.state.number, set.state.target), (1, Some(set.target)), "after {n}");
        set.pass(3);
    }
    set.get_through(&next.to_string());
    assert_eq!(set.look().released.len(), 1, "a completed member is not proven again");
    // The member is looked at late and wants something else, so that is another rollout.
    set.target = Digest::of("2");
    set.row(last).wanted = None;
    set.look();
    assert_eq!(set.state.number, 1);
    set.row(last).wanted = Some(id("2"));
    set.look();
    assert_eq!((set.state.number, set.state.target), (2, Some(set.target)));
}
