use farwater_api::change_window::HandedWindow;
use serde_json::{Value, json};

use super::*;

fn read(spec: Value) -> Result<Window, Vec<InvalidWindow>> {
    Window::read(ADMIN_NAMESPACE, "nights", &serde_json::from_value(spec).unwrap())
}

fn window(spec: Value) -> Window {
    read(spec).unwrap()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// `+` if the window is in force, `-` if not, and when that changes.
fn tell(window: &Window, now: &str) -> String {
    let Standing { in_force, until } = window.at(time(now));
    format!(
        "{}{}",
        if in_force { '+' } else { '-' },
        until.map(|until| until.to_string()).unwrap_or_default()
    )
}

fn check(spec: Value, cases: &[(&str, &str)]) {
    let window = window(spec.clone());
    for (now, expected) in cases {
        assert_eq!(tell(&window, now), *expected, "at {now} of {spec}");
    }
}

#[test]
fn a_schedule_is_in_force_for_its_duration() {
    let nights = json!({"type": "Allow", "schedule": "0 22 * * 1-5", "duration": "8h"});
    check(
        nights,
        &[
            // A Monday.
            ("2026-11-23T21:59:59Z", "-2026-11-23T22:00:00Z"),
            ("2026-11-23T22:00:00Z", "+2026-11-24T06:00:00Z"),
            ("2026-11-24T05:59:59Z", "+2026-11-24T06:00:00Z"),
            ("2026-11-24T06:00:00Z", "-2026-11-24T22:00:00Z"),
            // Friday's turn ends on Saturday, and the next one is on Monday.
            ("2026-11-28T05:00:00Z", "+2026-11-28T06:00:00Z"),
            ("2026-11-28T06:00:00Z", "-2026-11-30T22:00:00Z"),
        ],
    );
    // Each turn begins before the previous one has ended.
    check(
        json!({"type": "Allow", "schedule": "0 8-16/4 * * *", "duration": "5h"}),
        &[
            ("2026-11-23T09:00:00Z", "+2026-11-23T21:00:00Z"),
            ("2026-11-23T21:00:00Z", "-2026-11-24T08:00:00Z"),
        ],
    );
    check(
        json!({"type": "Allow", "schedule": "0 * * * *", "duration": "1h"}),
        &[("2026-11-23T09:30:00Z", "+")],
    );
}

#[test]
fn a_freeze_is_in_force_from_its_start_to_its_end() {
    let freeze = json!({"start": "2026-12-20T00:00:00+01:00", "end": "2027-01-04T06:00:00Z", "reason": "holidays"});
    check(
        freeze,
        &[
            ("2026-12-19T22:59:59Z", "-2026-12-19T23:00:00Z"),
            ("2026-12-19T23:00:00Z", "+2027-01-04T06:00:00Z"),
            ("2027-01-04T06:00:00Z", "-"),
        ],
    );
    check(
        json!({"reason": "until somebody ends it"}),
        &[("2026-11-23T09:30:00Z", "+")],
    );
    // A schedule counts only between start and end.
    let bounded = json!({"schedule": "0 22 * * *", "duration": "8h", "reason": "x",
        "start": "2026-11-23T23:00:00Z", "end": "2026-11-24T23:00:00Z"});
    check(
        bounded,
        &[
            ("2026-11-23T22:30:00Z", "-2026-11-23T23:00:00Z"),
            ("2026-11-23T23:00:00Z", "+2026-11-24T06:00:00Z"),
            ("2026-11-24T07:00:00Z", "-2026-11-24T22:00:00Z"),
            ("2026-11-24T22:00:00Z", "+2026-11-24T23:00:00Z"),
            ("2026-11-24T23:00:00Z", "-"),
        ],
    );
}

/// Daylight saving time follows the IANA database: Berlin and New York change by an hour in March and in autumn, Lord
/// Howe by half an hour, Kolkata never.
#[test]
fn schedules_go_by_the_clocks_of_their_zone() {
    let daily =
        |schedule: &str, zone: &str| json!({"schedule": schedule, "duration": "2h", "timeZone": zone, "reason": "x"});
    // On 29 March there is no 2:30: the clock goes from 2:00 to 3:00, which is 1:00 UTC.
    check(
        daily("30 2 * * *", "Europe/Berlin"),
        &[
            ("2026-03-28T01:30:00Z", "+2026-03-28T03:30:00Z"),
            ("2026-03-29T00:59:59Z", "-2026-03-29T01:00:00Z"),
            ("2026-03-29T01:00:00Z", "+2026-03-29T03:00:00Z"),
            ("2026-03-29T03:00:00Z", "-2026-03-30T00:30:00Z"),
            // On 25 October there are two 2:30, the first at 0:30 UTC.
            ("2026-10-25T00:29:59Z", "-2026-10-25T00:30:00Z"),
            ("2026-10-25T00:30:00Z", "+2026-10-25T02:30:00Z"),
            ("2026-10-25T02:30:00Z", "-2026-10-26T01:30:00Z"),
        ],
    );
    check(
        daily("0 9 * * *", "America/New_York"),
        &[("2026-03-08T12:00:00Z", "-2026-03-08T13:00:00Z")],
    );
    check(
        daily("0 9 * * *", "America/New_York"),
        &[("2026-03-07T12:00:00Z", "-2026-03-07T14:00:00Z")],
    );
    check(
        daily("0 9 * * *", "Asia/Kolkata"),
        &[("2026-03-29T00:00:00Z", "-2026-03-29T03:30:00Z")],
    );
    check(
        daily("0 9 * * *", "Australia/Lord_Howe"),
        &[("2026-04-04T12:00:00Z", "-2026-04-04T22:30:00Z")],
    );
    check(
        daily("0 9 * * *", "Australia/Lord_Howe"),
        &[("2026-04-03T12:00:00Z", "-2026-04-03T22:00:00Z")],
    );
}

#[test]
fn what_makes_no_sense_is_named() {
    let fields = |spec: Value| {
        read(spec)
            .unwrap_err()
            .into_iter()
            .map(|problem| problem.field)
            .collect::<Vec<_>>()
    };
    assert_eq!(fields(json!({})), ["reason"]);
    assert_eq!(
        fields(json!({"type": "Allow", "schedule": "0 22 * *", "duration": "8h"})),
        ["schedule"]
    );
    assert_eq!(
        fields(json!({"type": "Allow", "schedule": "0 0 22 * * *", "duration": "8h"})),
        ["schedule"]
    );
    assert_eq!(
        fields(json!({"type": "Allow", "schedule": "0 0 31 2 *", "duration": "8h"})),
        ["schedule"]
    );
    assert_eq!(fields(json!({"type": "Allow", "schedule": "0 22 * * *"})), ["duration"]);
    assert_eq!(
        fields(json!({"type": "Allow", "schedule": "0 22 * * *", "duration": "8000h"})),
        ["duration"]
    );
    assert_eq!(fields(json!({"type": "Allow", "duration": "8h"})), ["duration"]);
    let zone = json!({"type": "Allow", "schedule": "0 22 * * *", "duration": "8h", "timeZone": "Europe/Bonn"});
    assert_eq!(fields(zone), ["timeZone"]);
    let turned = json!({"reason": "x", "start": "2027-01-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"});
    assert_eq!(fields(turned), ["end"]);
    assert_eq!(fields(json!({"reason": " ", "start": "tomorrow"})), ["start", "reason"]);
    let tenants = serde_json::from_value(json!({"reason": "x", "namespaces": ["team-b"]})).unwrap();
    assert_eq!(
        Window::read("team-a", "w", &tenants).unwrap_err()[0].field,
        "namespaces"
    );
}

#[test]
fn a_window_concerns_what_its_namespace_and_its_selectors_reach() {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let (prod, web) = (labels(&[("env", "prod")]), labels(&[("app", "web")]));
    let subject = Subject {
        namespace: "team-a",
        name: "web",
        labels: &web,
        cluster_namespace: "team-c",
        cluster_name: "east",
        cluster_labels: &prod,
    };
    let of = |namespace: &str, mut spec: Value| {
        spec["reason"] = "x".into();
        Window::read(namespace, "w", &serde_json::from_value(spec).unwrap())
            .unwrap()
            .concerns(subject)
    };
    assert!(of(ADMIN_NAMESPACE, json!({})));
    assert!(of("team-a", json!({})), "whose service it is");
    assert!(of("team-c", json!({})), "whose cluster it is");
    assert!(!of("team-b", json!({})));
    assert!(of(ADMIN_NAMESPACE, json!({"namespaces": ["team-a", "team-b"]})));
    assert!(
        !of(ADMIN_NAMESPACE, json!({"namespaces": ["team-c"]})),
        "namespaces are of services"
    );
    assert!(of(
        "team-a",
        json!({"clusterSelector": {"matchLabels": {"env": "prod"}}})
    ));
    assert!(!of(
        "team-a",
        json!({"clusterSelector": {"matchLabels": {"env": "test"}}})
    ));
    assert!(!of(
        "team-a",
        json!({"serviceSelector": {"matchLabels": {"app": "db"}}})
    ));
    assert!(of("team-a", json!({"services": ["db", "web"], "clusters": ["east"]})));
    assert!(!of("team-a", json!({"services": ["db"]})) && !of("team-a", json!({"clusters": ["west"]})));
    let east = json!({"clusters": ["east"], "clusterSelector": {"matchLabels": {"env": "test"}}});
    assert!(!of("team-a", east), "both must hold");
}

#[test]
fn a_denial_closes_and_where_some_allow_one_must() {
    let named =
        |name: &str, spec: Value| Window::read(ADMIN_NAMESPACE, name, &serde_json::from_value(spec).unwrap()).unwrap();
    let nights = named(
        "nights",
        json!({"type": "Allow", "schedule": "0 22 * * *", "duration": "8h"}),
    );
    let noons = named(
        "noons",
        json!({"type": "Allow", "schedule": "0 12 * * *", "duration": "1h", "reason": "lunch"}),
    );
    let freeze = named(
        "freeze",
        json!({"start": "2026-12-20T00:00:00Z", "end": "2027-01-04T00:00:00Z", "reason": "holidays"}),
    );
    let audit = named(
        "audit",
        json!({"start": "2026-12-21T00:00:00Z", "end": "2026-12-22T00:00:00Z", "reason": "audit"}),
    );
    let tell = |windows: &[&Window], now: &str| match decide(windows.iter().copied(), time(now)) {
        Gate::Open { until } => format!("open {}", until.map(|until| until.to_string()).unwrap_or_default()),
        Gate::Closed(Closed { by, reason, until }) => {
            format!(
                "{by} {reason} {}",
                until.map(|until| until.to_string()).unwrap_or_default()
            )
        }
    };
    assert_eq!(tell(&[], "2026-12-21T12:30:00Z"), "open ");
    assert_eq!(tell(&[&freeze], "2026-12-01T00:00:00Z"), "open 2026-12-20T00:00:00Z");
    assert_eq!(
        tell(&[&freeze, &audit], "2026-12-21T12:30:00Z"),
        "farwater-admin/freeze holidays 2027-01-04T00:00:00Z"
    );
    assert_eq!(
        tell(&[&nights, &noons], "2026-12-01T12:30:00Z"),
        "open 2026-12-01T13:00:00Z"
    );
    assert_eq!(
        tell(&[&nights, &noons], "2026-12-01T07:00:00Z"),
        "farwater-admin/noons lunch 2026-12-01T12:00:00Z"
    );
    assert_eq!(
        tell(&[&nights, &noons, &freeze], "2026-12-21T12:30:00Z"),
        "farwater-admin/freeze holidays 2027-01-04T00:00:00Z"
    );
    // An open window closes with the next denial, if that comes first.
    assert_eq!(
        tell(&[&nights, &freeze], "2026-12-19T23:00:00Z"),
        "open 2026-12-20T00:00:00Z"
    );
    // An Allow window that is over doesn't open again, but still restricts changes to windows.
    let over = named("once", json!({"type": "Allow", "end": "2026-01-01T00:00:00Z"}));
    assert_eq!(tell(&[&over], "2026-12-01T00:00:00Z"), "farwater-admin/once  ");
}

#[test]
fn what_can_not_be_read_closes_what_it_concerns_and_says_why() {
    let spec = serde_json::from_value(json!({
        "type": "Allow", "schedule": "0 22 * * *", "duration": "8h", "timeZone": "Europe/Bonn",
        "serviceSelector": {"matchLabels": {"app": "web"}},
    }));
    let spec = spec.unwrap();
    let problems = Window::read("team-a", "nights", &spec).unwrap_err();
    let window = Window::unreadable("team-a", "nights", &spec, &problems);
    let closed = decide([&window], time("2026-12-21T23:00:00Z"))
        .closed()
        .unwrap()
        .to_string();
    assert!(
        closed.starts_with("ChangeWindow team-a/nights lets no change begin: it can't be read: spec.timeZone: "),
        "{closed}"
    );
    let (web, none) = ([("app".to_owned(), "web".to_owned())].into(), BTreeMap::new());
    let (namespace, cluster_namespace) = ("team-a", "team-a");
    let (name, cluster_name, cluster_labels) = ("web", "east", &none);
    let subject = |labels| Subject {
        namespace,
        name,
        labels,
        cluster_namespace,
        cluster_name,
        cluster_labels,
    };
    assert!(window.concerns(subject(&web)) && !window.concerns(subject(&none)));
}

#[test]
fn an_agent_goes_by_what_it_was_handed() {
    let spec = |spec: Value| serde_json::from_value::<ChangeWindowSpec>(spec).unwrap();
    let freeze = spec(json!({"end": "2027-01-04T00:00:00Z", "reason": "holidays"}));
    let nights =
        spec(json!({"type": "Allow", "schedule": "0 22 * * *", "duration": "8h", "timeZone": "Europe/Berlin"}));
    let (entry, other) = (Digest::of("entry"), Digest::of("other"));
    let handed = Windows {
        windows: vec![
            HandedWindow::of("ops", "freeze", &freeze, Some(vec!["a".to_owned()])),
            HandedWindow::of("ops", "nights", &nights, None),
        ],
        overrides: [("a".to_owned(), entry)].into(),
    };
    let text = serde_json::to_string(&handed).unwrap();
    assert_eq!(serde_json::from_str::<Windows>(&text).unwrap(), handed);
    let handed = Handed::read(&handed);
    let closed = |uid: &str, entry: &Digest, now: &str| handed.closed(uid, entry, time(now)).map(|closed| closed.by);
    // 23:00 in Berlin.
    assert_eq!(
        closed("a", &other, "2026-12-24T22:00:00Z").as_deref(),
        Some("ops/freeze")
    );
    assert_eq!(closed("a", &entry, "2026-12-24T22:00:00Z"), None);
    assert_eq!(closed("b", &other, "2026-12-24T22:00:00Z"), None);
    assert_eq!(
        closed("b", &other, "2026-12-24T12:00:00Z").as_deref(),
        Some("ops/nights")
    );
    assert_eq!(closed("a", &other, "2027-01-04T22:00:00Z"), None);
    let newer = HandedWindow {
        r#type: "Ask".to_owned(),
        ..HandedWindow::of("ops", "ask", &freeze, None)
    };
    let newer = Handed::read(&Windows {
        windows: vec![newer],
        ..Windows::default()
    });
    let told = newer
        .closed("a", &entry, time("2030-01-01T00:00:00Z"))
        .unwrap()
        .to_string();
    assert!(
        told.ends_with("it can't be read: spec.type: \"Ask\" is of a newer version"),
        "{told}"
    );
    assert!(Handed::default().is_empty() && !handed.is_empty());
}

/// Whatever the time, and however the clock jumps: a standing holds until the time that it names.
#[test]
fn what_is_told_holds_until_it_is_told_to_change() {
    let specs = [
        json!({"schedule": "30 1,2,3 * * *", "duration": "45m", "timeZone": "Europe/Berlin", "reason": "x"}),
        json!({"schedule": "*/7 * * * *", "duration": "3m", "timeZone": "America/New_York", "reason": "x"}),
        json!({"schedule": "0 0 1 * *", "duration": "100h", "timeZone": "Australia/Lord_Howe", "reason": "x"}),
        json!({"schedule": "0 12 * * 0", "duration": "24h", "reason": "x", "start": "2026-03-10T00:00:00Z", "end": "2026-11-01T00:00:00Z"}),
    ];
    for spec in specs {
        let window = window(spec.clone());
        for begin in [
            "2026-03-07T00:00:00Z",
            "2026-03-28T12:00:00Z",
            "2026-10-24T12:00:00Z",
            "2026-10-31T20:00:00Z",
        ] {
            let mut now = time(begin);
            for _ in 0..200 {
                let Standing { in_force, until } = window.at(now);
                let Some(until) = until else { break };
                assert!(until > now, "{spec} at {now}");
                let middle = now + (until.duration_since(now) / 2);
                let before = until - SignedDuration::from_secs(1);
                for within in [middle, before].into_iter().filter(|within| *within >= now) {
                    assert_eq!(
                        window.at(within),
                        Standing {
                            in_force,
                            until: Some(until)
                        },
                        "{spec} at {within} since {now}"
                    );
                }
                assert_ne!(window.at(until).in_force, in_force, "{spec} at {until}");
                now = until;
            }
        }
    }
}
