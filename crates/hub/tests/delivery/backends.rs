//! Secrets of other places than the hub: handed over as its own are, in use while their place is away, and looked at by key when
//! they change.

use std::{fs, path::Path};

use farwater_api::{ADMIN_NAMESPACE, protocol::Entry};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    parameters::{Count, handed, mac_of, service},
    rig::{Rig, condition, message, repository},
};

const NS: &str = ADMIN_NAMESPACE;
const CANARY: &str = "canary-8d21f0";

fn configuration(folder: &Path) -> String {
    format!(
        "refreshSeconds: 10\nbackends:\n- name: mounted\n  files: {{folder: {}}}\n  \
         allow: [{{namespaces: ['{NS}'], paths: [team]}}]\n",
        folder.display()
    )
}

/// Values at `team/db`.
fn put(folder: &Path, values: &[(&str, &str)]) {
    let place = folder.join("team/db");
    fs::create_dir_all(&place).unwrap();
    values
        .iter()
        .for_each(|(name, value)| fs::write(place.join(name), value).unwrap());
}

fn from(path: &str, keys: &[&str]) -> Value {
    json!({"parameters": [{"from": {"secret": path, "backend": "mounted"}, "keys": keys}]})
}

fn files(folder: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![fs::read(path).unwrap_or_default()]
            }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_a_backend_reach_who_is_handed_them_and_stay_while_it_is_away() {
    let (server, _repository) = repository().await;
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), &[("password", CANARY), ("user", "web")]);
    let rig = Rig::start_with_backends(&configuration(folder.path())).await;
    rig.cluster("east").await;
    rig.repository(NS, "infra", &server.url("infra.git")).await;
    let references = json!([{"name": "team/db", "backend": "mounted", "keys": ["user"]}]);
    rig.create(
        "ServiceContext",
        NS,
        "shared",
        json!({"spec": {"secretRefs": references}}),
    )
    .await;
    let agent = Agent::join(&rig, "east").await;
    let password = service(&rig, "password", "east", from("team/db", &["password"])).await;
    let user = service(&rig, "user", "east", from("team/db", &["user"])).await;
    let through = json!({"parameters": [{"from": {"context": "shared"}}]});
    let through = service(&rig, "through", "east", through).await;
    service(&rig, "foreign", "east", from("other/db", &["a"])).await;
    service(&rig, "lacking", "east", from("team/db", &["absent"])).await;
    let entry = async |rig: &Rig, uid: &str| agent.wait_entry(rig, uid, |entry| mac_of(entry).is_some()).await.1;
    let values = async |rig: &Rig, uid: &str, entry: &Entry| handed(rig, &agent, uid, &mac_of(entry).unwrap()).await;

    let first = entry(&rig, &password).await;
    let document = values(&rig, &password, &first).await;
    assert_eq!(document.values["configuration"], json!({"password": CANARY}));
    assert_eq!(document.secret, ["/configuration/password"]);
    let others = [entry(&rig, &user).await, entry(&rig, &through).await];
    assert_eq!(
        values(&rig, &through, &others[1]).await.values["contexts"],
        json!({"shared": {"user": "web"}})
    );
    for (name, why) in [
        (
            "foreign",
            "namespace farwater-admin may not read other/db of backend mounted",
        ),
        ("lacking", "Secret team/db of backend mounted has no key absent"),
    ] {
        rig.wait_for("ServiceDeployment", NS, name, |service| {
            condition(service, "Stalled") == "True/ParametersNotReady" && message(service, "Ready").contains(why)
        })
        .await;
    }
    rig.wait_idle().await;

    let mut count = Count::new(&rig);
    put(folder.path(), &[("password", "second")]);
    let (_, second) = agent
        .wait_entry(&rig, &password, |entry| mac_of(entry) != mac_of(&first))
        .await;
    assert_eq!(
        values(&rig, &password, &second).await.values["configuration"]["password"],
        "second"
    );
    rig.wait_idle().await;
    assert_eq!([entry(&rig, &user).await, entry(&rig, &through).await], others);
    assert_eq!(
        count.since(),
        1,
        "no more are looked at than are handed what has changed"
    );

    fs::remove_dir_all(folder.path().join("team")).unwrap();
    let is_stale = |service: &Value| condition(service, "SecretsStale") == "True/BackendFailed";
    for name in ["password", "user", "through"] {
        let told = rig.wait_for("ServiceDeployment", NS, name, is_stale).await;
        assert!(
            message(&told, "SecretsStale").contains("team/db is as it was read at 20"),
            "{told:#}"
        );
        assert!(
            message(&told, "SecretsStale").contains("backend mounted: there is no team/db"),
            "{told:#}"
        );
    }
    assert_eq!(entry(&rig, &password).await, second);
    assert_eq!(count.since(), 0, "that a value is old makes it no other");

    // A hub that starts meanwhile has them too, for those of before and for others.
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    assert_eq!(
        values(&rig, &password, &second).await.values["configuration"]["password"],
        "second"
    );
    let late = service(&rig, "late", "east", from("team/db", &["user"])).await;
    let (_, there) = agent.wait_entry(&rig, &late, |entry| mac_of(entry).is_some()).await;
    assert_eq!(
        values(&rig, &late, &there).await.values["configuration"],
        json!({"user": "web"})
    );

    put(folder.path(), &[("password", "third"), ("user", "web")]);
    let (_, third) = agent
        .wait_entry(&rig, &password, |entry| mac_of(entry) != mac_of(&second))
        .await;
    assert_eq!(
        values(&rig, &password, &third).await.values["configuration"]["password"],
        "third"
    );
    rig.wait_for("ServiceDeployment", NS, "user", |service| {
        condition(service, "SecretsStale") == "absent"
    })
    .await;

    // Nobody asks for the values after a start; what is in use is read on all the same.
    fs::remove_dir_all(folder.path().join("team")).unwrap();
    rig.wait_for("ServiceDeployment", NS, "user", is_stale).await;
    rig.kill_controllers().await;
    put(folder.path(), &[("password", CANARY), ("user", "web")]);
    let rig = rig.crash_before(async |_, _| {}).await;
    rig.wait_for("ServiceDeployment", NS, "user", |service| {
        condition(service, "SecretsStale") == "absent"
    })
    .await;
    let (_, fourth) = agent
        .wait_entry(&rig, &password, |entry| mac_of(entry) != mac_of(&third))
        .await;
    assert_eq!(
        values(&rig, &password, &fourth).await.values["configuration"]["password"],
        CANARY
    );
    rig.wait_idle().await;
    let text = |bytes: &[u8]| bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
    assert!(
        !files(rig.path()).iter().any(|bytes| text(bytes)),
        "a value lies in the clear"
    );

    // A configuration that allows it no more, and then does again.
    let configured = configuration(folder.path());
    rig.configure_backends(&configured.replace("[team]", "[elsewhere]"));
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    rig.wait_for("ServiceDeployment", NS, "password", |service| {
        condition(service, "Stalled") == "True/ParametersNotReady"
            && message(service, "Ready").contains("may not read team/db of backend mounted")
    })
    .await;
    rig.configure_backends(&configured);
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    let (_, again) = agent
        .wait_entry(&rig, &password, |entry| mac_of(entry) == mac_of(&fourth))
        .await;
    assert_eq!(
        values(&rig, &password, &again).await.values["configuration"]["password"],
        CANARY
    );

    // What nobody is handed any more is kept no longer.
    for name in ["password", "user", "through", "lacking", "late"] {
        rig.edit("ServiceDeployment", NS, name, |service| {
            service["spec"]["parameters"] = json!([])
        })
        .await;
    }
    rig.wait_until("nothing is kept", async || {
        rig.store.kept_ids().await.unwrap().is_empty()
    })
    .await;
}
