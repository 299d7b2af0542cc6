//! Change windows that an agent enforces by its own clock.

use crate::support::{FakeHub, PATIENCE, Service, config_map, config_maps, ground::Ground, outcome, report, value};
use farwater_api::{
    change_window::{HandedWindow, Windows},
    objects::{Outcome, ServiceReport},
    protocol::Entry,
};
use farwater_testkit::wait_for;
use jiff::{SignedDuration, Timestamp};
use kube::api::DeleteParams;

/// A freeze of these services for this many seconds from now.
fn freeze(seconds: i64, services: &[&Service]) -> Windows {
    let end = Timestamp::now() + SignedDuration::from_secs(seconds);
    let window = HandedWindow {
        namespace: "ops".to_owned(),
        name: "holidays".to_owned(),
        r#type: "Deny".to_owned(),
        time_zone: "UTC".to_owned(),
        end: Some(end.to_string()),
        reason: Some("holidays".to_owned()),
        services: Some(services.iter().map(|service| service.uid().to_owned()).collect()),
        ..HandedWindow::default()
    };
    Windows {
        windows: vec![window],
        ..Windows::default()
    }
}

async fn waiting(hub: &FakeHub, entry: &Entry) -> ServiceReport {
    let is_held = |report: &ServiceReport| {
        report
            .message
            .contains("held: ChangeWindow ops/holidays lets no change begin")
    };
    report(hub, entry, |report| {
        report.outcome == Outcome::Superseded && is_held(report)
    })
    .await
}

#[tokio::test]
async fn a_version_that_has_not_begun_waits_for_the_window_while_drift_is_undone() {
    let ground = Ground::new().await;
    let hub = &ground.hub;
    let place = hub.place("frozen");
    let maps = config_maps(&ground.plane.client().await.unwrap(), &place);
    let service = Service::new(hub, "frozen", &[("a.yaml", &config_map("a", "1"))]);
    ground.applied(&service).await;
    hub.set_windows(Some(freeze(3600, &[&service])));
    let newer = service.with(hub, &[("a.yaml", &config_map("a", "2"))]);
    let entry = hub.set(newer.entry());
    waiting(hub, &entry).await;
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    value(&maps, "a", "1").await;
    // The new version has not begun. Only the clock will start it.
    let windows = freeze(5, &[&service]);
    let end: Timestamp = windows.windows[0].end.as_ref().unwrap().parse().unwrap();
    hub.set_windows(Some(windows));
    let generation = hub.generation();
    value(&maps, "a", "2").await;
    // The agent uses the hub's clock, which it knows to the second.
    assert!(Timestamp::now() >= end - SignedDuration::from_secs(1), "before {end}");
    outcome(hub, &entry, Outcome::Applied).await;
    assert_eq!(hub.generation(), generation, "nothing was sent for that");
}

#[tokio::test]
async fn a_first_version_waits_too_and_one_that_is_let_through_does_not() {
    let ground = Ground::new().await;
    let hub = &ground.hub;
    let place = hub.place("held");
    let client = ground.plane.client().await.unwrap();
    let (held, urgent) = (
        Service::new(hub, "held", &[("a.yaml", &config_map("a", "1"))]),
        Service::new(hub, "urgent", &[("a.yaml", &config_map("a", "1"))]),
    );
    let mut windows = freeze(3600, &[&held, &urgent]);
    windows
        .overrides
        .insert(urgent.uid().to_owned(), urgent.entry().digest());
    hub.set_windows(Some(windows));
    let (first, second) = (hub.set(held.entry()), hub.set(urgent.entry()));
    outcome(hub, &second, Outcome::Applied).await;
    waiting(hub, &first).await;
    assert!(config_maps(&client, &place).get_opt("a").await.unwrap().is_none());
    // Another entry of the service is another change.
    let newer = hub.set(urgent.with(hub, &[("a.yaml", &config_map("a", "2"))]).entry());
    waiting(hub, &newer).await;
    hub.set_windows(None);
    outcome(hub, &newer, Outcome::Applied).await;
    outcome(hub, &first, Outcome::Applied).await;
}

#[tokio::test]
async fn a_restart_while_the_hub_is_away_begins_nothing_that_a_window_holds() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("alone");
    let service = Service::new(&ground.hub, "alone", &[("a.yaml", &config_map("a", "1"))]);
    ground.applied(&service).await;
    let maps = config_maps(&ground.plane.client().await.unwrap(), &place);
    ground.hub.set_windows(Some(freeze(3600, &[&service])));
    let entry = ground
        .hub
        .set(service.with(&ground.hub, &[("a.yaml", &config_map("a", "2"))]).entry());
    waiting(&ground.hub, &entry).await;
    ground.kill();
    ground.hub.go_away(true);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    ground.start(false);
    value(&maps, "a", "1").await;
    // Nothing else is sent afterwards.
    let turned_away = ground.hub.turned_away();
    wait_for("polls in vain", PATIENCE, || async {
        Ok((ground.hub.turned_away() >= turned_away + 3).then_some(()))
    })
    .await
    .unwrap();
    value(&maps, "a", "1").await;
    ground.hub.go_away(false);
    waiting(&ground.hub, &entry).await;
    ground.hub.set_windows(None);
    value(&maps, "a", "2").await;
}
