//! Users' own health rules on a real API server: the hub's, and those of a service.

use crate::support::{
    FakeHub, Service, api, config_maps,
    custom::{create, custom, define, in_next_wave, set_status},
    object, outcome, report,
    world::world,
};
use farwater_api::{
    HealthRuleSpec,
    objects::{Health, ObjectReport, Outcome, ServiceReport, SyncState},
    protocol::Entry,
};
use kube::{Api, Client, api::DynamicObject};
use serde_json::{Value, json};

/// A rule for the Boats of a group: Afloat is healthy, Sunk is failed.
fn rule(group: &str) -> HealthRuleSpec {
    HealthRuleSpec {
        group: group.to_owned(),
        kind: "Boat".to_owned(),
        in_progress: Some("self.status.phase == 'Launching'".to_owned()),
        failed: Some("self.status.phase == 'Sunk'".to_owned()),
        current: "self.status.phase == 'Afloat'".to_owned(),
        message: Some("'its phase is ' + self.status.phase".to_owned()),
    }
}

fn boats(client: &Client, group: &str, namespace: &str) -> Api<DynamicObject> {
    api(client, group, "v1", "Boat", namespace)
}

async fn set_phase(boats: &Api<DynamicObject>, phase: Value) {
    set_status(boats, "ark", json!({"phase": phase})).await;
}

fn is(report: &ServiceReport, health: Health, text: &str) -> bool {
    report
        .objects
        .iter()
        .any(|o| o.object.kind == "Boat" && o.health == health && o.message.contains(text))
}

/// Waits until the boat has this health and message.
async fn judged(hub: &FakeHub, entry: &Entry, health: Health, text: &str) -> ObjectReport {
    object(
        &report(hub, entry, |report| is(report, health, text)).await,
        "Boat",
        "ark",
    )
    .clone()
}

#[tokio::test]
async fn a_rule_judges_its_kind_and_one_without_a_value_makes_nothing_healthy() {
    let world = world().await;
    let place = world.hub.place("judged");
    let client = world.client().await;
    let group = &world.hub.group("judged");
    define(&client, group, "Boat").await;
    world.hub.set_rule("judged", rule(group));
    let (ark, next) = (custom(group, "Boat", "ark"), in_next_wave("next"));
    let service = Service::new(&world.hub, "judged", &[("a.yaml", &ark), ("b.yaml", &next)]);
    let entry = world.hub.set(service.entry());
    let (boats, maps) = (boats(&client, group, &place), config_maps(&client, &place));

    // No status was written, so the health is unknown.
    let unknown = "HealthRule judged can't judge it: inProgress: there is no \"status\"";
    let waits = report(&world.hub, &entry, |r| {
        is(r, Health::Unknown, unknown) && r.outcome == Outcome::Applying
    })
    .await;
    assert_eq!(object(&waits, "ConfigMap", "next").sync, SyncState::Waiting);
    assert!(waits.message.contains("wave 1 has not begun"), "{}", waits.message);

    set_phase(&boats, json!("Launching")).await;
    judged(&world.hub, &entry, Health::InProgress, "its phase is Launching").await;
    set_phase(&boats, json!("Sunk")).await;
    judged(&world.hub, &entry, Health::Failed, "its phase is Sunk").await;
    assert!(
        maps.get_opt("next").await.unwrap().is_none(),
        "the wave behind it has begun"
    );
    set_phase(&boats, json!("Adrift")).await;
    judged(&world.hub, &entry, Health::InProgress, "its phase is Adrift").await;
    assert!(
        !world
            .hub
            .history(service.uid())
            .iter()
            .any(|report| is(report, Health::Current, ""))
    );
    set_phase(&boats, json!("Afloat")).await;
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(is(&applied, Health::Current, ""), "{applied:#?}");
    maps.get("next").await.unwrap();

    // An object that was healthy and can't be judged any more is not healthy.
    set_phase(&boats, Value::Null).await;
    judged(&world.hub, &entry, Health::Unknown, "there is no \"phase\"").await;
    // A rule from a hub that supports more than this agent.
    let newer = HealthRuleSpec {
        in_progress: None,
        failed: None,
        current: "self.isAfloat()".to_owned(),
        ..rule(group)
    };
    world.hub.set_rule("judged", newer);
    judged(&world.hub, &entry, Health::Unknown, "knows no function \"isAfloat\"").await;
}

#[tokio::test]
async fn a_services_own_rule_comes_before_the_hubs_until_it_is_removed() {
    let world = world().await;
    let place = world.hub.place("common");
    let client = world.client().await;
    let group = &world.hub.group("owned");
    define(&client, group, "Boat").await;
    world.hub.set_rule("owned", rule(group));
    let ark = custom(group, "Boat", "ark");
    let files: [(&str, &str); 1] = [("a.yaml", &ark)];
    let (common, mut special) = (
        Service::new(&world.hub, "common", &files),
        Service::new(&world.hub, "special", &files),
    );
    special.deployment.health = vec![HealthRuleSpec {
        in_progress: None,
        failed: Some("self.status.phase == 'Afloat'".to_owned()),
        message: Some("'a submarine that is ' + self.status.phase".to_owned()),
        ..rule(group)
    }];
    let (common_entry, special_entry) = (world.hub.set(common.entry()), world.hub.set(special.entry()));
    for (namespace, entry) in [("common", &common_entry), ("special", &special_entry)] {
        judged(&world.hub, entry, Health::Unknown, "there is no \"status\"").await;
        set_phase(&boats(&client, group, &world.hub.place(namespace)), json!("Afloat")).await;
    }
    judged(&world.hub, &common_entry, Health::Current, "").await;
    judged(&world.hub, &special_entry, Health::Failed, "a submarine that is Afloat").await;

    // Without the service's rule, the hub's applies.
    special.deployment.health.clear();
    let plain_entry = world.hub.set(special.entry());
    judged(&world.hub, &plain_entry, Health::Current, "").await;

    // If a rule changes, objects are judged again, and none is applied.
    let version = async || {
        boats(&client, group, &place)
            .get("ark")
            .await
            .unwrap()
            .metadata
            .resource_version
    };
    let before = version().await;
    let stricter = HealthRuleSpec {
        current: "self.status.phase == 'Moored'".to_owned(),
        ..rule(group)
    };
    world.hub.set_rule("owned", stricter);
    judged(&world.hub, &common_entry, Health::InProgress, "its phase is Afloat").await;
    judged(&world.hub, &plain_entry, Health::InProgress, "its phase is Afloat").await;
    // Without any rule, the built-in rules apply.
    world.hub.remove_rule("owned");
    let judged_last = judged(&world.hub, &common_entry, Health::Current, "").await;
    assert_eq!(judged_last.message, "");
    judged(&world.hub, &plain_entry, Health::Current, "").await;
    assert_eq!(version().await, before);
}

#[tokio::test]
async fn what_is_adopted_says_so_also_where_a_rule_judges_it() {
    let world = world().await;
    let place = world.hub.place("afloat");
    let client = world.client().await;
    let group = &world.hub.group("afloat");
    define(&client, group, "Boat").await;
    world.hub.set_rule("afloat", rule(group));
    create(&client, "", "v1", "Namespace", "", json!({"metadata": {"name": place}})).await;
    let ark = json!({"metadata": {"name": "ark"}, "spec": {"size": 1}});
    create(&client, group, "v1", "Boat", &place, ark).await;
    set_phase(&boats(&client, group, &place), json!("Afloat")).await;
    let service = Service::new(&world.hub, "afloat", &[("a.yaml", &custom(group, "Boat", "ark"))]);
    let entry = world.hub.set(service.entry());
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    let ark = object(&applied, "Boat", "ark");
    assert_eq!(
        (ark.health, ark.message.as_str()),
        (Health::Current, "adopted: it existed before, owned by no service")
    );
}
