//! What services of a set are handed by objects that they share spreads as a commit does.

use std::collections::BTreeMap;

use farwater_api::{ADMIN_NAMESPACE, Digest};
use farwater_store::delivery::load_document;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    parameters::{handed, mac_of, secret},
    rig::{condition, message},
    rolling::{Fleet, SET},
};

const SHARED: &str = "shared";

async fn start(names: &[&'static str], rollout: Value) -> Fleet {
    let context = json!({"spec": {"configuration": {"colour": "red", "other": 1}}});
    let parameters = json!([
        {"from": {"context": SHARED}, "keys": ["colour"]},
        {"from": {"secret": "keys"}, "keys": ["token"]},
    ]);
    let objects = vec![
        ("ServiceContext", SHARED, context),
        ("Secret", "keys", secret(&[("token", "one")])),
    ];
    let mut fleet = Fleet::start_with(names, rollout, json!({"parameters": parameters}), objects).await;
    fleet.until_complete().await;
    fleet.painted.clear();
    fleet
}

async fn paint(fleet: &Fleet, key: &str, value: Value) {
    let edit = |context: &mut Value| context["spec"]["configuration"][key] = value.clone();
    fleet.rig.edit("ServiceContext", ADMIN_NAMESPACE, SHARED, edit).await;
}

async fn edit_set(fleet: &Fleet, edit: impl Fn(&mut Value)) {
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| edit(&mut set["spec"]))
        .await;
}

fn digests(fleet: &Fleet) -> BTreeMap<&'static str, Digest> {
    fleet.last.iter().map(|(name, entry)| (*name, entry.digest())).collect()
}

fn all_have(fleet: &Fleet, colour: &str) -> bool {
    fleet.colours.values().all(|one| one == colour)
}

fn is_complete(set: &Value) -> bool {
    set["status"]["rollout"]["phase"] == "Complete"
}

/// What an agent gets that has lost its copy of what it was handed last.
async fn fetch(fleet: &Fleet, name: &str) -> Value {
    let (entry, agent) = (&fleet.last[name], &fleet.agents[name]);
    handed(&fleet.rig, agent, &entry.service.uid, &mac_of(entry).unwrap())
        .await
        .values
        .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_context_reaches_the_canary_first() {
    let mut fleet = start(&["a", "b", "c"], json!({})).await;
    assert!(all_have(&fleet, "red"), "{:?}", fleet.colours);
    // Time stands still while the canary alone has something.
    fleet.pace = 0;
    edit_set(&fleet, |spec| spec["rollout"]["soak"] = "1m".into()).await;
    fleet.rig.wait_idle().await;
    let resolved = |fleet: &Fleet| fleet.rig.replica.memory.counters.parameters_resolved.get();
    let (before, count) = (digests(&fleet), resolved(&fleet));
    // What nobody is handed is nothing to anybody.
    paint(&fleet, "other", json!(2)).await;
    fleet.go_on().await;
    assert_eq!((digests(&fleet), resolved(&fleet)), (before.clone(), count));

    let number = fleet.set().await["status"]["rollout"]["number"].as_u64().unwrap();
    paint(&fleet, "colour", json!("blue")).await;
    let set = fleet
        .until("the canary has it", |fleet, _| fleet.colours["a"] == "blue")
        .await;
    assert_eq!(set["status"]["rollout"]["number"], number + 1);
    fleet
        .rig
        .wait_until("all is done", async || fleet.rig.is_at_rest().await)
        .await;
    fleet.step().await;
    assert_eq!(resolved(&fleet), count + 3, "each is put together once");
    for name in ["b", "c"] {
        assert_eq!(digests(&fleet)[name], before[name], "{name} got something of it");
    }
    // What counts for them is nowhere else any more.
    assert_eq!(fetch(&fleet, "b").await["contexts"][SHARED]["colour"], "red");
    fleet = fleet.crash().await;
    assert_eq!(fetch(&fleet, "c").await["contexts"][SHARED]["colour"], "red");
    assert_eq!(fetch(&fleet, "c").await["configuration"]["token"], "one");
    fleet.pace = 30;
    fleet
        .until("all have it", |fleet, set| is_complete(set) && all_have(fleet, "blue"))
        .await;
    let course: Vec<_> = fleet
        .painted
        .iter()
        .map(|(name, colour)| (*name, colour.as_str()))
        .collect();
    assert_eq!(course[0], ("a", "blue"));
    assert_eq!(course.len(), 3, "{course:?}");

    // A Secret that services are handed values of is one of their parameters.
    let before = digests(&fleet);
    let renew = |object: &mut Value| object["data"] = secret(&[("token", "two")])["data"].clone();
    fleet.rig.edit("Secret", ADMIN_NAMESPACE, "keys", renew).await;
    fleet
        .until("the canary has it", |fleet, _| digests(fleet)["a"] != before["a"])
        .await;
    assert_eq!(fetch(&fleet, "a").await["configuration"]["token"], "two");
    assert_eq!(digests(&fleet)["c"], before["c"]);
    assert_eq!(fetch(&fleet, "c").await["configuration"]["token"], "one");
    let is_there = |fleet: &Fleet| digests(fleet).iter().all(|(name, digest)| before[name] != *digest);
    fleet
        .until("all have it", |fleet, set| is_complete(set) && is_there(fleet))
        .await;

    // A window holds it as it holds the rest of a rollout.
    let hours = |hours| (Timestamp::now() + SignedDuration::from_hours(hours)).to_string();
    let spec = json!({"type": "Deny", "start": hours(-1), "end": hours(1), "reason": "holidays"});
    fleet
        .rig
        .create("ChangeWindow", ADMIN_NAMESPACE, "holidays", json!({"spec": spec}))
        .await;
    let in_force = |window: &Value| window["status"]["inForce"] == true;
    fleet
        .rig
        .wait_for("ChangeWindow", ADMIN_NAMESPACE, "holidays", in_force)
        .await;
    paint(&fleet, "colour", json!("white")).await;
    fleet
        .until("all wait", |_, set| {
            message(set, "Frozen").starts_with("3 clusters wait")
        })
        .await;
    assert!(all_have(&fleet, "blue"), "{:?}", fleet.colours);
    fleet.rig.delete("ChangeWindow", ADMIN_NAMESPACE, "holidays").await;
    fleet.until("it begins", |fleet, _| fleet.colours["a"] == "white").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_bad_or_missing_takes_nothing_from_the_others_and_its_fix_comes_to_the_broken_first() {
    let mut fleet = start(&["a", "b", "c"], json!({})).await;
    let (before, red) = (digests(&fleet), mac_of(&fleet.last["a"]));
    fleet.bad_colours.insert("black");
    paint(&fleet, "colour", json!("black")).await;
    let halted = fleet
        .until("it is halted", |_, set| set["status"]["rollout"]["phase"] == "Halted")
        .await;
    assert_eq!(halted["status"]["rollout"]["haltedBy"], "farwater-admin/a");
    fleet.go_on().await;
    assert_eq!(fleet.painted, [("a", "black".to_owned())]);
    let black = mac_of(&fleet.last["a"]);
    fleet = fleet.crash().await;
    fleet.go_on().await;
    assert_eq!(fleet.painted, [("a", "black".to_owned())], "and is after a crash");

    // Gone altogether: all keep what they have, and say so.
    let context = async |fleet: &Fleet, configuration: Value| {
        let edit = |context: &mut Value| context["spec"]["configuration"] = configuration.clone();
        fleet.rig.edit("ServiceContext", ADMIN_NAMESPACE, SHARED, edit).await;
    };
    context(&fleet, json!({"other": 1})).await;
    for name in ["web-a", "web-b", "web-c"] {
        let lacks = |service: &Value| {
            condition(service, "Stalled") == "True/ParametersNotReady" && message(service, "Ready").contains("colour")
        };
        fleet
            .rig
            .wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, lacks)
            .await;
    }
    fleet.step().await;
    assert_eq!((digests(&fleet)["b"], digests(&fleet)["c"]), (before["b"], before["c"]));

    context(&fleet, json!({"colour": "green"})).await;
    fleet
        .until("all have the fix", |fleet, set| {
            is_complete(set) && all_have(fleet, "green")
        })
        .await;
    assert_eq!(fleet.painted[1], ("a", "green".to_owned()), "{:?}", fleet.painted);
    assert_eq!(fleet.painted.len(), 4);
    // What failed is kept no more, and what it replaced is.
    let uid = &fleet.last["a"].service.uid;
    for (mac, is_kept) in [(mac_of(&fleet.last["a"]), true), (red, true), (black, false)] {
        let found = load_document(&fleet.rig.store, uid, &mac.unwrap().to_string())
            .await
            .unwrap();
        assert_eq!(found.is_some(), is_kept, "{mac:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_back_gets_its_parameters_of_before() {
    // Where nobody says which, it is one that is healthy at that moment.
    let canary = json!({"clusterSelector": {"matchLabels": {"name": "a"}}});
    let mut fleet = start(&["a", "b"], json!({"onFailure": "Rollback", "canary": canary})).await;
    let red = mac_of(&fleet.last["a"]);
    fleet.bad_colours.insert("black");
    // With another template and another content, which go back with it.
    edit_set(&fleet, |spec| {
        spec["template"]["spec"]["configuration"] = json!({"size": "2"})
    })
    .await;
    paint(&fleet, "colour", json!("black")).await;
    fleet
        .until("the canary has it", |fleet, _| fleet.colours["a"] == "black")
        .await;
    let size = async |fleet: &Fleet| fetch(fleet, "a").await["configuration"]["size"].clone();
    assert_eq!(size(&fleet).await, "2");
    fleet
        .until("the canary is back", |fleet, _| fleet.colours["a"] == "red")
        .await;
    assert_eq!((mac_of(&fleet.last["a"]), size(&fleet).await), (red, Value::Null));
    fleet.go_on().await;
    let course: Vec<_> = fleet
        .painted
        .iter()
        .map(|(name, colour)| (*name, colour.as_str()))
        .collect();
    assert_eq!(course, [("a", "black"), ("a", "red")]);

    // The template goes on with the value that is good.
    paint(&fleet, "colour", json!("blue")).await;
    fleet
        .until("all have both", |fleet, set| {
            is_complete(set) && all_have(fleet, "blue")
        })
        .await;
    assert_eq!(size(&fleet).await, "2");

    edit_set(&fleet, |spec| spec["rollout"]["soak"] = "1h".into()).await;
    paint(&fleet, "colour", json!("white")).await;
    let set = fleet
        .until("the canary has it", |fleet, _| fleet.colours["a"] == "white")
        .await;
    let number = &set["status"]["rollout"]["number"];
    edit_set(&fleet, |spec| {
        spec["rollout"]["order"] = json!({"number": number, "abort": true, "reason": "not today"});
    })
    .await;
    fleet.until("it is back", |fleet, _| all_have(fleet, "blue")).await;
    assert_eq!(fetch(&fleet, "a").await["contexts"][SHARED]["colour"], "blue");
}
