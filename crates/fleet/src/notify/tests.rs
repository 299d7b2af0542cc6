use std::time::Duration;

use farwater_api::{
    RolloutPhase,
    notification_provider::NotificationProviderSpec,
    notification_rule::{EventKind, EventSource},
};
use serde_json::{Value, json};

use super::*;
use crate::rollout::{ChangeId, Counts, Standing, Track};

fn rollout(course: Course, updated: usize) -> RolloutNews {
    RolloutNews {
        namespace: "team-a".to_owned(),
        set: "web".to_owned(),
        number: 7,
        course,
        step: "canary".to_owned(),
        clusters: Counts {
            updated,
            waiting: 300 - updated,
            ..Counts::default()
        },
        halted_by: None,
        cause: String::new(),
        revision: "main@sha1:abc".to_owned(),
        summary: "production".to_owned(),
    }
}

#[test]
fn a_rollout_is_told_in_a_line_and_its_details() {
    let mut news = rollout(Course::Halted, 212);
    (news.halted_by, news.cause) = (Some("farwater-admin/east".to_owned()), "failed: it crashes".to_owned());
    news.clusters.failed = 1;
    news.clusters.waiting -= 1;
    assert_eq!(news.title(), "team-a/web: rollout 7 is halted, 212/300 healthy");
    assert_eq!(
        news.details(),
        [
            "farwater-admin/east: failed: it crashes",
            "step canary: 1 failed, 87 waiting",
            "main@sha1:abc",
            "production",
        ]
    );
    let mut done = rollout(Course::Complete, 300);
    (done.step, done.revision, done.summary) = Default::default();
    assert_eq!(
        (done.title().as_str(), done.details().len()),
        ("team-a/web: rollout 7 is complete, 300/300 healthy", 0)
    );
}

#[test]
fn where_nothing_can_be_edited_a_rollout_is_a_few_messages() {
    let begun = rollout(Course::Progressing, 0);
    let more = rollout(Course::Progressing, 100);
    let halted = RolloutNews {
        halted_by: Some("east".to_owned()),
        ..rollout(Course::Halted, 100)
    };
    let elsewhere = RolloutNews {
        halted_by: Some("west".to_owned()),
        ..halted.clone()
    };
    let step = RolloutNews {
        step: "rest".to_owned(),
        ..more.clone()
    };
    assert!(begun.is_turn_from(None, false));
    assert!(!more.is_turn_from(Some(&begun), true));
    assert!(halted.is_turn_from(Some(&more), false) && elsewhere.is_turn_from(Some(&halted), false));
    assert!(step.is_turn_from(Some(&more), true) && !step.is_turn_from(Some(&more), false));
    assert!(rollout(Course::Complete, 300).is_turn_from(Some(&begun), false));
    assert!(!rollout(Course::Superseded, 3).is_turn_from(Some(&begun), false));
    assert!(
        rollout(Course::Superseded, 3).is_turn_from(Some(&halted), false),
        "nobody stands before it any more"
    );
}

#[test]
fn a_commit_has_a_status_under_a_context_of_its_own() {
    let check = |course: Course, state: CommitState, description: &str| {
        let mut news = rollout(course, 212);
        if course == Course::Halted {
            news.halted_by = Some("east".to_owned());
        }
        let status = CommitNews::of_rollout(&news, "abc", "farwater");
        assert_eq!(
            (status.state, status.description.as_str()),
            (state, description),
            "{course:?}"
        );
        assert_eq!(
            (status.commit.as_str(), status.context.as_str()),
            ("abc", "farwater/team-a/web")
        );
    };
    check(Course::Progressing, CommitState::Running, "212/300 healthy");
    check(Course::Paused, CommitState::Running, "212/300 healthy; is paused");
    check(Course::Halted, CommitState::Failed, "212/300 healthy; east failed");
    check(Course::RollingBack, CommitState::Failed, "212/300 healthy; goes back");
    check(Course::Complete, CommitState::Succeeded, "212/300 healthy");

    let mut long = rollout(Course::Halted, 1);
    (long.halted_by, long.cause) = (Some("east".to_owned()), "ä".repeat(500));
    let status = CommitNews::of_rollout(&long, "abc", "hub-2");
    assert!(status.description.len() <= MAX_DESCRIPTION && status.context == "hub-2/team-a/web");
    let later = CommitNews::of_rollout(&rollout(Course::Progressing, 3), "abc", "farwater").superseded();
    assert_eq!(later.description, "3/300 healthy; gave way to a newer one");
    let member = status.of_member(
        "farwater-admin/east",
        CommitState::Failed,
        &Standing::Failed("it crashes".to_owned()),
    );
    assert_eq!(member.context, "hub-2/team-a/web/farwater-admin/east");
    assert_eq!(member.description, "failed: it crashes");
}

#[test]
fn a_clusters_status_follows_what_it_was_released_for() {
    let change = |n: u8| -> ChangeId { format!("{n:032x}").parse().unwrap() };
    let track = |released: u8, is_done: bool, refused: Option<u8>| Track {
        released: Some(change(released)),
        is_done,
        refused: refused.map(change),
        ..Track::default()
    };
    let check = |track: Track, expected| assert_eq!(member_state(&track, Some(change(2))), expected);
    check(track(1, true, None), None);
    check(track(2, false, None), Some(CommitState::Running));
    check(track(2, true, None), Some(CommitState::Succeeded));
    check(track(2, false, Some(2)), Some(CommitState::Failed));
    check(track(1, true, Some(2)), Some(CommitState::Failed));
    assert_eq!(member_state(&track(1, true, None), None), None);
}

#[test]
fn many_services_are_one_message() {
    let service = |n: usize, is_well: bool| ServiceNews {
        namespace: "team-a".to_owned(),
        name: format!("s{n}"),
        cluster: "east".to_owned(),
        is_well,
        message: if is_well {
            String::new()
        } else {
            "Deployment web: it crashes".to_owned()
        },
        summary: "production".to_owned(),
    };
    let (title, lines) = tell_services(&[service(1, true), service(2, false)], 20);
    assert_eq!(title, "1 service fails, 1 is well again");
    assert_eq!(
        lines,
        [
            "team-a/s2 on east: Deployment web: it crashes",
            "team-a/s1 on east: is well again",
            "production"
        ]
    );
    let gone = ServiceNews {
        message: "was deleted".to_owned(),
        ..service(3, true)
    };
    assert_eq!(tell_services(&[gone], 20).1[0], "team-a/s3 on east: was deleted");
    let many: Vec<_> = (0..5000).map(|n| service(n, false)).collect();
    let (title, lines) = tell_services(&many, 20);
    assert_eq!(
        (title.as_str(), lines.len(), lines[20].as_str()),
        ("5000 services fail", 22, "and 4980 more")
    );
    assert_eq!(tell_services(&[service(1, true)], 20).0, "1 service is well again");
}

#[test]
fn of_a_thread_the_newest_waits_and_what_was_told_is_not_told_again() {
    assert!(is_news(None, "1", true) && !is_news(None, "1", false));
    assert!(!is_news(Some(("1", "")), "1", true) && is_news(Some(("1", "")), "2", false));
    assert!(!is_news(Some(("", "2")), "2", true) && is_news(Some(("3", "2")), "2", true));
    assert!(is_news(Some(("ill", "")), "well", false) && is_news(Some(("", "ill")), "well", false));
    assert!(has_lapsed(("2", "2"), false) && !has_lapsed(("3", "2"), false) && !has_lapsed(("3", ""), false));
    // It was over before its beginning was sent.
    assert!(has_lapsed(("well", ""), true) && !has_lapsed(("well", "ill"), true));
}

#[test]
fn waits_grow_to_an_hour_and_heed_what_is_asked_for() {
    let seconds = |failures, asked| wait_after(failures, asked).as_secs();
    assert_eq!(
        [1, 2, 3, 11, 12, 99].map(|failures| seconds(failures, None)),
        [2, 4, 8, 2048, 3600, 3600]
    );
    assert_eq!(seconds(1, Some(Duration::from_secs(30))), 30);
    assert_eq!(seconds(1, Some(Duration::from_secs(1 << 20))), 3600);
}

#[test]
fn a_rule_selects_by_kind_name_and_labels() {
    let source = |name: &str, labels: Value| EventSource {
        kind: EventKind::ServiceSet,
        name: name.to_owned(),
        match_labels: serde_json::from_value(labels).unwrap(),
    };
    let labels = [("team".to_owned(), "a".to_owned())].into();
    let check = |source: EventSource, expected| {
        assert_eq!(selects(&[source], EventKind::ServiceSet, "web", &labels), expected);
    };
    check(source("web", json!({})), true);
    check(source("db", json!({})), false);
    check(source("*", json!({"team": "a"})), true);
    check(source("*", json!({"team": "b"})), false);
    assert!(!selects(
        &[source("*", json!({}))],
        EventKind::ServiceDeployment,
        "web",
        &labels
    ));
    assert_eq!(
        Course::from(RolloutPhase::Halted).severity(),
        farwater_api::notification_rule::EventSeverity::Error
    );
}

#[test]
fn what_makes_no_sense_is_named_by_its_field_and_no_value_is_quoted() {
    let check = |spec: Value, expected: &[&str]| {
        let spec: NotificationProviderSpec = serde_json::from_value(spec).unwrap();
        let found: Vec<String> = problems(&spec)
            .into_iter()
            .map(|(field, why)| format!("{field}: {why}"))
            .collect();
        assert_eq!(found, expected, "{spec:?}");
    };
    let secret = json!({"name": "x"});
    check(
        json!({"type": "generic", "address": "https://x/y", "secretRef": secret}),
        &[],
    );
    check(
        json!({"type": "github", "address": "https://github.com/a/b", "secretRef": secret}),
        &[],
    );
    check(
        json!({"type": "email", "address": "smtp://mail:587", "email": {"from": "a@b", "to": ["c@d"]}}),
        &[],
    );
    check(
        json!({"type": "generic", "address": "https://user:hunter2@x/y", "secretRef": secret}),
        &["address: it has a user, a query or a fragment: put secrets into the Secret, as token or address"],
    );
    check(
        json!({"type": "gitlab", "address": "ftp://x", "channel": "a"}),
        &[
            "address: it begins with https:// or http://",
            "secretRef: name a Secret with a token",
            "channel: only Slack has channels",
        ],
    );
    check(
        json!({"type": "github", "address": "https://github.com/a", "secretRef": secret}),
        &["address: it names no repository: https://HOST/OWNER/NAME"],
    );
    check(
        json!({"type": "email", "email": {"from": "a b", "to": ["x\r\nRCPT"]}}),
        &[
            "address: name the mail server: smtp://HOST or smtps://HOST",
            "email.from: it is no address of the form NAME@HOST",
            "email.to: each is an address of the form NAME@HOST",
        ],
    );
}
