//! Change windows: what they hold, and what goes on when they open.

use farwater_api::{ADMIN_NAMESPACE, Digest, OVERRIDE_FREEZE, protocol::Entry};
use farwater_testkit::git::{GitServer, Repository};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    delivering::applied,
    parameters::mac_of,
    rig::{Rig, WEB, condition, message, repository},
};

/// A hub with one cluster and its agent, and a service on it.
struct World {
    rig: Rig,
    git: Repository,
    _server: GitServer,
    agent: Agent,
    uid: String,
}

fn hours(hours: i64) -> String {
    (Timestamp::now() + SignedDuration::from_hours(hours)).to_string()
}

/// From some hours on to others.
fn freeze(from: i64, to: i64) -> Value {
    json!({"spec": {"type": "Deny", "start": hours(from), "end": hours(to), "reason": "holidays"}})
}

impl World {
    async fn start() -> Self {
        let (server, git) = repository().await;
        let rig = Rig::start().await;
        rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
        rig.cluster("east").await;
        rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
        let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
        let agent = Agent::join(&rig, "east").await;
        let world = Self {
            rig,
            git,
            _server: server,
            agent,
            uid,
        };
        world.entry("it is assigned", |_| true).await;
        world
    }

    /// What the agent is told of the service, once it is so.
    async fn entry(&self, what: &str, holds: impl Fn(&Entry) -> bool) -> Entry {
        let found = self
            .agent
            .wait_entry(&self.rig, &self.uid, |entry| applied(entry).is_some() && holds(entry));
        let (_, entry) = found.await;
        assert!(holds(&entry), "{what}");
        entry
    }

    /// When all that was changed has been looked at.
    async fn now(&self) -> Entry {
        self.rig.wait_idle().await;
        self.rig.wait_computed().await;
        let state = self.agent.desired(&self.rig).await;
        Entry::clone(
            state
                .entries
                .iter()
                .find(|entry| entry.service.uid == self.uid)
                .unwrap(),
        )
    }

    async fn commit(&self, text: &str) {
        self.git
            .change(
                "main",
                &[("apps/web/web.yaml", Some(&format!("{WEB}data: {{text: {text}}}\n")))],
            )
            .unwrap();
        self.rig.ask(ADMIN_NAMESPACE, "infra").await;
    }

    async fn service(&self, holds: impl Fn(&Value) -> bool) -> Value {
        self.rig
            .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", holds)
            .await
    }

    async fn wait_frozen(&self) -> Value {
        self.service(|service| condition(service, "Frozen") == "True/WindowClosed")
            .await
    }

    async fn edit(&self, edit: impl Fn(&mut Value)) {
        self.rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", edit).await;
    }

    async fn wait_window(&self, name: &str, in_force: bool) -> Value {
        let holds = |window: &Value| window["status"]["inForce"] == in_force;
        self.rig.wait_for("ChangeWindow", ADMIN_NAMESPACE, name, holds).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_holds_versions_and_specs_and_its_end_has_only_these_looked_at() {
    let world = World::start().await;
    let rig = &world.rig;
    for n in 0..20 {
        rig.service(ADMIN_NAMESPACE, &format!("db-{n}"), "east", "apps/db")
            .await;
    }
    world
        .edit(|service| service["spec"]["configuration"] = json!({"size": "1"}))
        .await;
    world.entry("it has parameters", |entry| mac_of(entry).is_some()).await;
    let before = world.now().await;
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "holidays", freeze(-1, 1))
        .await;
    let window = world.wait_window("holidays", true).await;
    assert_eq!(condition(&window, "Ready"), "True/InForce");
    assert!(window["status"]["nextChange"].is_string(), "{window:#}");

    world.commit("new").await;
    let held = world.wait_frozen().await;
    let told = message(&held, "Frozen");
    assert!(
        told.starts_with("ChangeWindow farwater-admin/holidays lets no change begin until 2"),
        "{told}"
    );
    assert!(told.ends_with(": holidays"), "{told}");
    assert!(
        held["status"]["heldRevision"].is_string()
            && held["status"]["heldRevision"] != held["status"]["assignedRevision"]
    );
    world
        .edit(|service| service["spec"]["targetNamespace"] = "elsewhere".into())
        .await;
    rig.wait_idle().await;
    world
        .edit(|service| {
            service["spec"]["patches"] =
                json!([{"patch": "- {op: remove, path: /data}", "target": {"kind": "ConfigMap"}}]);
            service["spec"]["configuration"]["size"] = "2".into();
        })
        .await;
    // The cluster is computed meanwhile.
    let late = rig.service(ADMIN_NAMESPACE, "late", "east", "apps/db").await;
    world.agent.wait_entry(rig, &late, |_| true).await;
    assert_eq!(world.now().await, before, "of several edits none begins");

    let looks = rig.looks();
    rig.set_clock(2.0);
    let after = world
        .entry("both begin", |entry| {
            applied(entry).unwrap().target_namespace == "elsewhere"
        })
        .await;
    let (before, after) = (applied(&before).unwrap(), applied(&after).unwrap());
    assert!(after.bundle != before.bundle && after.patches.len() == 1);
    let (was, is) = (before.parameters.unwrap(), after.parameters.unwrap());
    assert_ne!(was, is, "what it says of parameters is of its spec");
    world
        .service(|service| condition(service, "Frozen") == "absent" && service["status"]["heldRevision"].is_null())
        .await;
    assert_eq!(
        condition(&world.wait_window("holidays", false).await, "Ready"),
        "True/Over"
    );
    rig.wait_idle().await;
    assert!(rig.looks() - looks < 10, "{} looks", rig.looks() - looks);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_that_a_freeze_holds_is_named_and_does_not_count_as_the_running_version() {
    let world = World::start().await;
    let rig = &world.rig;
    let first = applied(&world.now().await).unwrap().bundle;
    let service = world
        .service(|service| service["status"]["assignedRevision"].is_string())
        .await;
    let name = service["status"]["assignedRevision"].as_str().unwrap();
    world.commit("second").await;
    let is_second = |entry: &Entry| applied(entry).unwrap().bundle != first;
    world.entry("it has the second version", is_second).await;

    rig.create("ChangeWindow", ADMIN_NAMESPACE, "holidays", freeze(-1, 1))
        .await;
    world.wait_window("holidays", true).await;
    let pin = json!({"bundle": first, "reason": "second crashes"});
    world.edit(|service| service["spec"]["pin"] = pin.clone()).await;
    let held = world.wait_frozen().await;
    assert_eq!(held["status"]["heldRevision"], name);
    assert_eq!(
        message(&held, "Pinned"),
        format!("pinned to {name} (second crashes); {name} is held back")
    );
    assert!(is_second(&world.now().await));

    rig.set_clock(2.0);
    world.entry("the pin counts", |entry| !is_second(entry)).await;
    let name_of = |service: &Value| service["status"]["heldRevision"].as_str().map(str::to_owned);
    world
        .service(|service| name_of(service).is_some_and(|held| held != name))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stops_a_service_never_waits_and_an_edit_that_is_taken_back_is_none() {
    let world = World::start().await;
    let rig = &world.rig;
    let before = world.now().await;
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "holidays", freeze(-1, 1))
        .await;
    world.wait_window("holidays", true).await;
    world
        .edit(|service| service["spec"]["targetNamespace"] = "elsewhere".into())
        .await;
    world.wait_frozen().await;
    world
        .edit(|service| service["spec"]["targetNamespace"] = "web".into())
        .await;
    world.service(|service| condition(service, "Frozen") == "absent").await;
    rig.wait_idle().await;
    assert_eq!(world.now().await, before);

    world.edit(|service| service["spec"]["prune"] = false.into()).await;
    world
        .entry("less is deleted", |entry| !applied(entry).unwrap().prune)
        .await;
    world.edit(|service| service["spec"]["suspend"] = true.into()).await;
    let (_, held) = world
        .agent
        .wait_entry(rig, &world.uid, |entry| applied(entry).is_none())
        .await;
    assert!(format!("{:?}", held.action).contains("suspended"), "{held:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_around_an_edge_holds_and_lets_go_as_it_says() {
    let world = World::start().await;
    let rig = &world.rig;
    let bundle = async |world: &World| applied(&world.now().await).unwrap().bundle;
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "nights", freeze(2, 4))
        .await;
    world.wait_window("nights", false).await;
    let first = bundle(&world).await;
    world.commit("before").await;
    let before = applied(
        &world
            .entry("it is open", |entry| applied(entry).unwrap().bundle != first)
            .await,
    )
    .unwrap()
    .bundle;

    rig.set_clock(3.0);
    world.wait_window("nights", true).await;
    world.commit("within").await;
    world.wait_frozen().await;
    assert_eq!(bundle(&world).await, before);
    // Back before its beginning: what waits goes.
    rig.set_clock(0.0);
    let within = applied(
        &world
            .entry("it is open again", |entry| applied(entry).unwrap().bundle != before)
            .await,
    )
    .unwrap()
    .bundle;
    world.service(|service| condition(service, "Frozen") == "absent").await;

    rig.set_clock(3.9);
    world.wait_window("nights", true).await;
    world.commit("later").await;
    world.wait_frozen().await;
    // Over its end and back again: what has begun stays.
    rig.set_clock(4.1);
    let later = applied(
        &world
            .entry("it is over", |entry| applied(entry).unwrap().bundle != within)
            .await,
    )
    .unwrap()
    .bundle;
    rig.set_clock(3.0);
    world.wait_window("nights", true).await;
    rig.wait_idle().await;
    assert_eq!(bundle(&world).await, later);

    world.commit("last").await;
    world.wait_frozen().await;
    let end = (Timestamp::now() + SignedDuration::from_mins(150)).to_string();
    rig.edit("ChangeWindow", ADMIN_NAMESPACE, "nights", |window| {
        window["spec"]["end"] = end.clone().into()
    })
    .await;
    world
        .entry("its end was set back", |entry| applied(entry).unwrap().bundle != later)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_wait_for_a_window_that_allows_and_go_when_it_is_gone() {
    let world = World::start().await;
    let rig = &world.rig;
    let spec = json!({"type": "Allow", "start": hours(2), "end": hours(4), "services": ["web"]});
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "mornings", json!({"spec": spec}))
        .await;
    world.wait_window("mornings", false).await;
    let before = applied(&world.now().await).unwrap().bundle;
    world.commit("new").await;
    let told = message(&world.wait_frozen().await, "Frozen");
    assert!(
        told.starts_with("ChangeWindow farwater-admin/mornings lets no change begin until 2"),
        "{told}"
    );
    rig.delete("ChangeWindow", ADMIN_NAMESPACE, "mornings").await;
    world
        .entry("nothing says when", |entry| applied(entry).unwrap().bundle != before)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_a_cluster_or_a_namespace_holds_these_and_no_others() {
    let world = World::start().await;
    let rig = &world.rig;
    rig.cluster("west").await;
    let west = Agent::join(rig, "west").await;
    let url = rig.get("GitRepository", ADMIN_NAMESPACE, "infra").await.unwrap()["spec"]["url"].clone();
    rig.repository("team-a", "infra", url.as_str().unwrap()).await;
    let grant = json!({
        "clusterSelector": {}, "namespaces": ["team-a"], "verbs": ["deploy"], "serviceAccountName": "farwater-system/team-a",
    });
    rig.create("ClusterGrant", "", "team-a", json!({"spec": grant})).await;
    let beside = rig.service(ADMIN_NAMESPACE, "beside", "west", "apps/web").await;
    let of_team = rig.service("team-a", "web", "west", "apps/web").await;
    let bundle = |entry: &Entry| applied(entry).unwrap().bundle;
    let at_west = async |uid: &str, before: Option<Digest>| {
        let is_new = |entry: &Entry| applied(entry).is_some_and(|deployment| Some(deployment.bundle) != before);
        bundle(&west.wait_entry(rig, uid, is_new).await.1)
    };
    let first = at_west(&beside, None).await;
    assert_eq!(at_west(&of_team, None).await, first);

    let frozen = async |namespace: &str, name: &str| {
        let is_frozen = |service: &Value| condition(service, "Frozen") == "True/WindowClosed";
        rig.wait_for("ServiceDeployment", namespace, name, is_frozen).await
    };
    let deny = |more: Value| {
        let mut spec = json!({"type": "Deny", "reason": "look first"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"spec": spec})
    };
    rig.create(
        "ChangeWindow",
        ADMIN_NAMESPACE,
        "east",
        deny(json!({"clusters": ["east"]})),
    )
    .await;
    world.wait_window("east", true).await;
    world.commit("one").await;
    rig.ask("team-a", "infra").await;
    let one = at_west(&beside, Some(first)).await;
    assert_eq!(at_west(&of_team, Some(first)).await, one);
    world.wait_frozen().await;
    assert_eq!(bundle(&world.now().await), first);
    rig.delete("ChangeWindow", ADMIN_NAMESPACE, "east").await;
    world.entry("it is open", |entry| bundle(entry) == one).await;

    rig.create(
        "ChangeWindow",
        ADMIN_NAMESPACE,
        "team",
        deny(json!({"namespaces": ["team-a"]})),
    )
    .await;
    world.wait_window("team", true).await;
    world.commit("two").await;
    rig.ask("team-a", "infra").await;
    let two = at_west(&beside, Some(one)).await;
    world.entry("it is not concerned", |entry| bundle(entry) == two).await;
    frozen("team-a", "web").await;
    // The team's own says the same, and counts as well.
    rig.create("ChangeWindow", "team-a", "own", deny(json!({}))).await;
    let in_force = |window: &Value| window["status"]["inForce"] == true;
    rig.wait_for("ChangeWindow", "team-a", "own", in_force).await;
    rig.delete("ChangeWindow", ADMIN_NAMESPACE, "team").await;
    let is_own = |service: &Value| message(service, "Frozen").starts_with("ChangeWindow team-a/own lets no change");
    rig.wait_for("ServiceDeployment", "team-a", "web", is_own).await;
    rig.delete("ChangeWindow", "team-a", "own").await;
    assert_eq!(at_west(&of_team, Some(one)).await, two);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_against_a_freeze_lets_begin_what_waits_is_recorded_and_counts_for_a_day() {
    let world = World::start().await;
    let rig = &world.rig;
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "holidays", freeze(-1, 100))
        .await;
    world.wait_window("holidays", true).await;
    let before = applied(&world.now().await).unwrap().bundle;
    world.commit("fix").await;
    world.wait_frozen().await;
    // The override of a set counts for its own services: an owner reference alone, which any editor can write, makes none of them.
    let set = json!({
        "annotations": {OVERRIDE_FREEZE: "a hole"},
        "spec": {
            "clusterSelector": {"matchLabels": {"none": "matches"}},
            "template": {"spec": {"targetNamespace": "web", "sourceRef": {"name": "infra"}}},
        },
    });
    let set = rig.create("ServiceSet", ADMIN_NAMESPACE, "others", set).await;
    let owner = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceSet", "name": "others", "uid": set, "controller": true,
    });
    world
        .edit(|service| service["metadata"]["ownerReferences"] = json!([owner]))
        .await;
    assert_eq!(applied(&world.now().await).unwrap().bundle, before);
    world.wait_frozen().await;
    world
        .edit(|service| drop(service["metadata"].as_object_mut().unwrap().remove("ownerReferences")))
        .await;
    world
        .edit(|service| {
            service["metadata"]["annotations"][OVERRIDE_FREEZE] = "a hole".into();
            service["status"]["overriddenBy"] = "ada".into();
            service["status"]["overriddenAt"] = Timestamp::now().to_string().into();
        })
        .await;
    let fixed = applied(
        &world
            .entry("it begins", |entry| applied(entry).unwrap().bundle != before)
            .await,
    )
    .unwrap()
    .bundle;
    let service = world.service(|service| condition(service, "Frozen") == "absent").await;
    assert_eq!(service["status"]["overriddenBy"], "ada");
    let events = rig.events().await;
    let told: Vec<&str> = events
        .iter()
        .filter(|event| event["reason"] == "FreezeOverridden")
        .map(|event| event["message"].as_str().unwrap())
        .collect();
    let [told] = told.as_slice() else { panic!("{events:#?}") };
    assert!(
        told.contains(" begins, by ada: a hole; ChangeWindow farwater-admin/holidays lets no"),
        "{told}"
    );

    let yesterday = (Timestamp::now() - SignedDuration::from_hours(25)).to_string();
    world
        .edit(|service| {
            service["status"]["overriddenAt"] = yesterday.clone().into();
            // A label has it looked at now.
            service["metadata"]["labels"]["looked"] = "at".into();
        })
        .await;
    let is_off = |service: &Value| {
        service["metadata"]["annotations"][OVERRIDE_FREEZE].is_null() && service["status"]["overriddenBy"].is_null()
    };
    world.service(is_off).await;
    world.commit("next").await;
    world.wait_frozen().await;
    assert_eq!(applied(&world.now().await).unwrap().bundle, fixed);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_freeze_holds_stays_held_over_restarts_and_goes_when_it_is_over() {
    let World {
        rig,
        git,
        _server,
        agent,
        uid,
    } = World::start().await;
    let before = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await.1;
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "holidays", freeze(-1, 1))
        .await;
    rig.wait_for("ChangeWindow", ADMIN_NAMESPACE, "holidays", |window| {
        window["status"]["inForce"] == true
    })
    .await;
    let frozen = |service: &Value| condition(service, "Frozen") == "True/WindowClosed";
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        service["spec"]["targetNamespace"] = "elsewhere".into();
    })
    .await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", frozen).await;
    let rig = rig.restart().await;
    let rig = rig.crash_before(async |_, _| {}).await;
    rig.wait_loaded().await;
    rig.wait_idle().await;
    let after = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await.1;
    assert_eq!(after, before);
    rig.set_clock(2.0);
    agent
        .wait_entry(&rig, &uid, |entry| {
            applied(entry).is_some_and(|d| d.target_namespace == "elsewhere")
        })
        .await;
    drop((git, _server));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_can_not_be_read_says_so_and_opens_nothing() {
    let world = World::start().await;
    let rig = &world.rig;
    let spec = json!({"type": "Allow", "schedule": "0 22 * * *", "duration": "8h", "timeZone": "Europe/Bonn"});
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "nights", json!({"spec": spec}))
        .await;
    let stalled = |window: &Value| condition(window, "Stalled") == "True/SpecInvalid";
    let window = rig.wait_for("ChangeWindow", ADMIN_NAMESPACE, "nights", stalled).await;
    assert!(message(&window, "Stalled").contains("spec.timeZone: "), "{window:#}");
    world.commit("new").await;
    let told = message(&world.wait_frozen().await, "Frozen");
    assert!(
        told.contains("farwater-admin/nights lets no change begin: it can't be read: spec.timeZone"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_handed_the_windows_that_concern_them_and_nothing_when_one_opens() {
    let world = World::start().await;
    let rig = &world.rig;
    let before = world.agent.desired(rig).await;
    assert_eq!((&before.windows, before.statement.windows), (&None, None));
    let uid = rig.service(ADMIN_NAMESPACE, "db", "east", "apps/db").await;
    world
        .agent
        .wait_entry(rig, &uid, |entry| applied(entry).is_some())
        .await;
    rig.create(
        "ChangeWindow",
        ADMIN_NAMESPACE,
        "elsewhere",
        json!({"spec": {"reason": "x", "clusters": ["west"]}}),
    )
    .await;
    let spec = json!({"type": "Allow", "schedule": "0 22 * * *", "duration": "8h", "services": ["web"]});
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "nights", json!({"spec": spec}))
        .await;
    rig.create("ChangeWindow", ADMIN_NAMESPACE, "holidays", freeze(-1, 1))
        .await;
    let handed = async || {
        let state = world.agent.desired(rig).await;
        let windows = state.windows.map(|windows| windows.windows.clone()).unwrap_or_default();
        windows
            .into_iter()
            .map(|window| (window.name, window.services))
            .collect::<Vec<_>>()
    };
    let expected = [
        ("holidays".to_owned(), None),
        ("nights".to_owned(), Some(vec![world.uid.clone()])),
    ];
    rig.wait_until("those are signed that concern it", async || handed().await == expected)
        .await;
    let state = world.agent.desired(rig).await;
    assert_eq!(
        state.statement.windows,
        state.windows.as_ref().map(farwater_api::protocol::Verbatim::digest)
    );
    rig.wait_idle().await;
    rig.set_clock(2.0);
    world.wait_window("holidays", false).await;
    rig.wait_idle().await;
    assert_eq!(
        world.agent.desired(rig).await.statement.generation,
        state.statement.generation
    );
    for name in ["nights", "holidays"] {
        rig.delete("ChangeWindow", ADMIN_NAMESPACE, name).await;
    }
    rig.wait_until("none is left", async || handed().await.is_empty()).await;
}
