//! Parameters of services: put together when something changes that a service is handed, named by a MAC, sealed to one agent, and
//! nowhere in the clear.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    parameters::Parameters,
    protocol::{Action, Entry, SealedSecrets},
};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    delivering::applied,
    rig::{Rig, condition, message, repository},
};

const NS: &str = ADMIN_NAMESPACE;
const PASSWORD: &str = "correct horse battery staple";

pub async fn service(rig: &Rig, name: &str, cluster: &str, stated: Value) -> String {
    let mut spec = json!({
        "clusterRef": {"name": cluster}, "targetNamespace": name, "path": "apps/web", "sourceRef": {"name": "infra"},
        "deletionPolicy": "Delete",
    });
    spec.as_object_mut()
        .unwrap()
        .extend(stated.as_object().unwrap().clone());
    rig.create("ServiceDeployment", NS, name, json!({"spec": spec})).await
}

pub fn mac_of(entry: &Entry) -> Option<Digest> {
    applied(entry)?.parameters
}

/// What an agent gets for the entry of a service.
pub async fn handed(rig: &Rig, agent: &Agent, uid: &str, mac: &Digest) -> Parameters {
    let answer = agent.parameters(rig, uid, mac).await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    let sealed: SealedSecrets = serde_json::from_slice(&answer.body).unwrap();
    serde_json::from_slice(&agent.open_parameters(&sealed, uid, mac).unwrap()).unwrap()
}

fn context(configuration: Value) -> Value {
    json!({"spec": {"configuration": configuration}})
}

pub fn secret(values: &[(&str, &str)]) -> Value {
    let data: serde_json::Map<String, Value> = values
        .iter()
        .map(|(key, value)| ((*key).to_owned(), BASE64.encode(value).into()))
        .collect();
    json!({"data": data})
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_travel_sealed_to_one_agent_and_are_nowhere_else() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    rig.repository(NS, "infra", &server.url("infra.git")).await;
    rig.create(
        "Secret",
        NS,
        "database",
        secret(&[("password", PASSWORD), ("user", "web")]),
    )
    .await;
    rig.create("ConfigMap", NS, "sizes", json!({"data": {"cpu": "1"}}))
        .await;
    let spec =
        json!({"configuration": {"domain": "example.com"}, "secretRefs": [{"name": "database", "keys": ["user"]}]});
    rig.create("ServiceContext", NS, "shared", json!({"spec": spec})).await;
    let stated = json!({"configuration": {"host": "web"}, "secrets": [{"name": "database"}], "parameters": [
        {"from": {"context": "shared"}}, {"from": {"configMap": "sizes"}}, {"from": {"secret": "database"}, "keys": ["password"]},
        {"from": {"cluster": "Labels"}}]});
    let uid = service(&rig, "web", "east", stated.clone()).await;
    let other = service(&rig, "other", "east", stated).await;
    let plain = rig.service(NS, "plain", "east", "apps/db").await;
    let (east, west) = (Agent::join(&rig, "east").await, Agent::join(&rig, "west").await);
    let (_, entry) = east.wait_entry(&rig, &uid, |entry| mac_of(entry).is_some()).await;
    let (state, neighbour) = east.wait_entry(&rig, &other, |entry| mac_of(entry).is_some()).await;
    let (_, without) = east.wait_entry(&rig, &plain, |entry| applied(entry).is_some()).await;
    let mac = mac_of(&entry).unwrap();
    assert_ne!(
        mac_of(&neighbour),
        Some(mac),
        "two services that are handed the same are not told apart by it"
    );
    let kind = |entry: &Entry| serde_json::to_value(entry).unwrap()["action"]["type"].clone();
    assert_eq!(
        (kind(&entry), kind(&without)),
        (json!("ApplyWithParameters"), json!("Apply"))
    );

    let parameters = handed(&rig, &east, &uid, &mac).await;
    assert_eq!(
        parameters.values["configuration"],
        json!({"host": "web", "cpu": "1", "password": PASSWORD})
    );
    assert_eq!(
        parameters.values["contexts"],
        json!({"shared": {"domain": "example.com", "user": "web"}})
    );
    assert_eq!(parameters.values["cluster"]["tags"], json!({"env": "test"}));
    assert_eq!(
        parameters.values["service"],
        json!({"id": uid, "name": "web", "namespace": "web"})
    );
    assert_eq!(parameters.secret, ["/configuration/password", "/contexts/shared/user"]);

    let answer = east.parameters(&rig, &uid, &mac).await;
    let sealed: SealedSecrets = serde_json::from_slice(&answer.body).unwrap();
    assert!(
        east.open_parameters(&sealed, &other, &mac).is_none(),
        "what is sealed for one service opens for no other"
    );
    assert!(east.open(&sealed, &uid, &mac).is_none(), "nor as its Secrets");
    assert!(west.open_parameters(&sealed, &uid, &mac).is_none());
    for (agent, uid) in [(&west, &uid), (&east, &other), (&east, &plain)] {
        assert_eq!(agent.parameters(&rig, uid, &mac).await.refusal(), "403 NotDesired");
    }
    assert_eq!(east.secrets(&rig, &uid, &mac).await.refusal(), "403 NotDesired");

    let clear = [PASSWORD.to_owned(), BASE64.encode(PASSWORD), "example.com".to_owned()];
    for bytes in [serde_json::to_vec(&state).unwrap(), answer.body] {
        let text = String::from_utf8_lossy(&bytes);
        assert!(clear.iter().all(|clear| !text.contains(clear)), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_hands_another_context_to_the_services_of_some_clusters() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.create("Namespace", "", NS, json!({})).await;
    rig.repository(NS, "infra", &server.url("infra.git")).await;
    for (name, colour) in [("usual", "blue"), ("eu", "green")] {
        rig.create("ServiceContext", NS, name, context(json!({"colour": colour})))
            .await;
    }
    let from = |context: &str| json!([{"from": {"context": context}}]);
    let spec = json!({
        "clusterSelector": {}, "rollout": {"strategy": "AllAtOnce"},
        "template": {"spec": {
            "targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "apps/web", "parameters": from("usual"),
        }},
        "overrides": [{"clusterSelector": {"matchLabels": {"region": "eu"}}, "patch": {"parameters": from("eu")}}],
    });
    rig.create("ServiceSet", NS, "web", json!({"spec": spec})).await;
    for (name, region, contexts) in [
        ("a", "eu", json!({"eu": {"colour": "green"}})),
        ("b", "us", json!({"usual": {"colour": "blue"}})),
    ] {
        let cluster = json!({"spec": {"pollInterval": "30s"}, "labels": {"region": region}});
        rig.create("Cluster", NS, name, cluster).await;
        let agent = Agent::join(&rig, name).await;
        let service = rig
            .wait_for("ServiceDeployment", NS, &format!("web-{name}"), Value::is_object)
            .await;
        let uid = service["metadata"]["uid"].as_str().unwrap();
        let (_, entry) = agent.wait_entry(&rig, uid, |entry| mac_of(entry).is_some()).await;
        let parameters = handed(&rig, &agent, uid, &mac_of(&entry).unwrap()).await;
        assert_eq!(parameters.values["contexts"], contexts);
    }
}

/// How many services were looked at since the last time.
pub struct Count<'a>(&'a Rig, u64);

impl<'a> Count<'a> {
    pub fn new(rig: &'a Rig) -> Self {
        Self(rig, rig.replica.memory.counters.parameters_resolved.get())
    }

    pub fn since(&mut self) -> u64 {
        let now = self.0.replica.memory.counters.parameters_resolved.get();
        now - std::mem::replace(&mut self.1, now)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_key_reaches_exactly_the_services_that_are_handed_it() {
    const CLUSTERS: usize = 4;
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.repository(NS, "infra", &server.url("infra.git")).await;
    rig.create(
        "ServiceContext",
        NS,
        "shared",
        context(json!({"one": 1, "two": 1, "all": 1, "none": 1})),
    )
    .await;
    rig.create("ConfigMap", NS, "sizes", json!({"data": {"cpu": "1", "memory": "1"}}))
        .await;
    rig.create("Secret", NS, "keys", secret(&[("one", "1"), ("two", "1")]))
        .await;
    let mut agents = Vec::new();
    for n in 0..CLUSTERS {
        rig.cluster(&format!("c{n}")).await;
        agents.push(Agent::join(&rig, &format!("c{n}")).await);
    }
    // Of the eight services of each cluster the first is handed one key, the second two, the last the whole context.
    let mut uids = Vec::new();
    for n in 0..CLUSTERS * 8 {
        let from = |keys: Value| json!({"from": {"context": "shared"}, "keys": keys});
        let parameters = match n % 8 {
            0 => json!([from(json!(["all", "one"])), {"from": {"secret": "keys"}, "keys": ["one"]}]),
            1 => json!([from(json!(["all", "one", "two"])), {"from": {"cluster": "Labels"}, "keys": ["env"]}]),
            7 => json!([from(json!([])), {"from": {"configMap": "sizes"}, "keys": ["cpu"]}]),
            _ => json!([from(json!(["all"]))]),
        };
        let cluster = format!("c{}", n / 8);
        uids.push((
            n,
            service(&rig, &format!("s{n}"), &cluster, json!({"parameters": parameters})).await,
        ));
    }
    let entries = async || {
        let mut found = Vec::new();
        for (n, uid) in &uids {
            let (state, entry) = agents[n / 8]
                .wait_entry(&rig, uid, |entry| mac_of(entry).is_some())
                .await;
            found.push((state.statement.generation, entry));
        }
        found
    };
    let mut before = entries().await;
    rig.wait_idle().await;
    let mut count = Count::new(&rig);

    // Which services, by their number in their cluster; of which cluster, if not of all.
    let mut check = async |what: &str, expected: &[usize], cluster: Option<usize>| {
        let is_meant = |n: usize| expected.contains(&(n % 8)) && cluster.is_none_or(|cluster| n / 8 == cluster);
        let mut after = before.clone();
        for (n, uid) in uids.iter().filter(|(n, _)| is_meant(*n)) {
            let old = mac_of(&before[*n].1);
            let (state, entry) = agents[n / 8].wait_entry(&rig, uid, |entry| mac_of(entry) != old).await;
            after[*n] = (state.statement.generation, entry);
        }
        rig.wait_idle().await;
        let now = entries().await;
        for (n, _) in &uids {
            let changed = now[*n].1 != before[*n].1;
            assert_eq!(changed, is_meant(*n), "{what}: s{n}");
        }
        let meant = uids.iter().filter(|(n, _)| is_meant(*n)).count();
        assert_eq!(
            count.since(),
            meant as u64,
            "{what}: no more are looked at than are handed what has changed"
        );
        for cluster in 0..CLUSTERS {
            let is_quiet = !(0..8).any(|n| is_meant(cluster * 8 + n));
            assert_eq!(
                now[cluster * 8].0 == before[cluster * 8].0,
                is_quiet,
                "{what}: state of c{cluster}"
            );
        }
        before = now;
    };
    let edit = async |field: &str, value: Value| {
        rig.edit("ServiceContext", NS, "shared", |object| {
            object["spec"]["configuration"][field] = value.clone()
        })
        .await;
    };
    edit("one", json!(2)).await;
    check("one key of a context", &[0, 1, 7], None).await;
    edit("two", json!({"a": [1]})).await;
    check("another", &[1, 7], None).await;
    edit("new", json!(1)).await;
    check("a new key", &[7], None).await;
    rig.edit("ServiceContext", NS, "shared", |object| {
        object["metadata"]["labels"] = json!({"a": "b"})
    })
    .await;
    check("no content", &[], None).await;
    rig.edit("Secret", NS, "keys", |object| {
        object["data"] = secret(&[("one", "2"), ("two", "1")])["data"].clone()
    })
    .await;
    check("a key of a Secret", &[0], None).await;
    rig.edit("Secret", NS, "keys", |object| {
        object["data"] = secret(&[("one", "2"), ("two", "2")])["data"].clone()
    })
    .await;
    check("a key that nobody is handed", &[], None).await;
    rig.edit("ConfigMap", NS, "sizes", |object| object["data"]["cpu"] = json!("2"))
        .await;
    check("a key of a ConfigMap", &[7], None).await;
    rig.edit("Cluster", NS, "c1", |object| {
        object["metadata"]["labels"]["env"] = json!("other")
    })
    .await;
    check("a label of a cluster", &[1], Some(1)).await;
    edit("all", json!(2)).await;
    check("what all are handed", &[0, 1, 2, 3, 4, 5, 6, 7], None).await;
    // Equal values are no change.
    edit("all", json!(2)).await;
    check("the same once more", &[], None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_holds_its_services_and_wakes_them_when_it_comes() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(NS, "infra", &server.url("infra.git")).await;
    rig.create("ServiceContext", NS, "shared", context(json!({"a": 1})))
        .await;
    let from = |key: &str| json!({"parameters": [{"from": {"context": "shared"}, "keys": [key]}]});
    let fine = service(&rig, "fine", "east", from("a")).await;
    let uid = service(&rig, "web", "east", from("b")).await;
    let agent = Agent::join(&rig, "east").await;
    let stalled = async |text: &str| {
        let is_told = |service: &Value| {
            condition(service, "Stalled") == "True/ParametersNotReady" && message(service, "Ready").contains(text)
        };
        rig.wait_for("ServiceDeployment", NS, "web", is_told).await;
        // Before that it may be held for want of a revision.
        let is_held = |entry: &Entry| matches!(&entry.action, Action::Hold { reason } if reason.contains(text));
        agent.wait_entry(&rig, &uid, is_held).await;
    };
    stalled("ServiceContext shared has no key b").await;
    let (_, untouched) = agent.wait_entry(&rig, &fine, |entry| mac_of(entry).is_some()).await;

    rig.edit("ServiceContext", NS, "shared", |object| {
        object["spec"]["configuration"]["b"] = json!("x")
    })
    .await;
    let (_, first) = agent.wait_entry(&rig, &uid, |entry| mac_of(entry).is_some()).await;
    rig.wait_for("ServiceDeployment", NS, "web", |service| {
        condition(service, "Stalled") == "absent"
    })
    .await;

    rig.delete("ServiceContext", NS, "shared").await;
    stalled("ServiceContext shared does not exist in namespace farwater-admin").await;
    rig.create("ServiceContext", NS, "shared", context(json!({"a": 1, "b": "x"})))
        .await;
    let (_, second) = agent.wait_entry(&rig, &uid, |entry| mac_of(entry).is_some()).await;
    assert_eq!(mac_of(&second), mac_of(&first));
    let (_, same) = agent.wait_entry(&rig, &fine, |entry| mac_of(entry).is_some()).await;
    assert_eq!(mac_of(&same), mac_of(&untouched));

    rig.edit("ServiceDeployment", NS, "web", |service| {
        service["spec"]["parameters"] = json!([{"from": {"secret": "s", "backend": "vault"}, "keys": ["a"]}]);
    })
    .await;
    stalled("Secret s of backend vault can't be read: the hub's configuration has no backend \"vault\"").await;
    // Without parameters it is as if it never had any.
    rig.edit("ServiceDeployment", NS, "web", |service| {
        service["spec"]["parameters"] = json!([])
    })
    .await;
    let (_, plain) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    assert_eq!(mac_of(&plain), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_too_large_together_hold_their_service_until_one_of_them_changes() {
    const OBJECTS: usize = 17;
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(NS, "infra", &server.url("infra.git")).await;
    let map = |large: usize| json!({"data": {"small": "1", "large": "x".repeat(large)}});
    let mut parameters = Vec::new();
    for n in 0..OBJECTS {
        let name = format!("m{n}");
        rig.create("ConfigMap", NS, &name, map((1 << 20) - 100)).await;
        parameters.push(json!({"from": {"configMap": name}, "keys": ["small"], "prefix": format!("{name}-")}));
    }
    let uid = service(&rig, "web", "east", json!({"parameters": parameters})).await;
    let agent = Agent::join(&rig, "east").await;
    let text = "have more than 16777216 bytes";
    let is_held = |entry: &Entry| matches!(&entry.action, Action::Hold { reason } if reason.contains(text));
    agent.wait_entry(&rig, &uid, is_held).await;
    // No key changes that it is handed.
    rig.edit("ConfigMap", NS, "m16", |object| object["data"] = map(1)["data"].clone())
        .await;
    let (_, entry) = agent.wait_entry(&rig, &uid, |entry| mac_of(entry).is_some()).await;
    let parameters = handed(&rig, &agent, &uid, &mac_of(&entry).unwrap()).await;
    assert_eq!(parameters.values["configuration"].as_object().unwrap().len(), OBJECTS);
    rig.wait_idle().await;
    let mut count = Count::new(&rig);
    rig.edit("ConfigMap", NS, "m16", |object| object["data"] = map(2)["data"].clone())
        .await;
    rig.wait_idle().await;
    assert_eq!(count.since(), 0, "what it is handed is known by its keys again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_comes_back_is_another_entry() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(NS, "infra", &server.url("infra.git")).await;
    rig.create("ConfigMap", NS, "sizes", json!({"data": {"cpu": "1"}}))
        .await;
    let uid = service(
        &rig,
        "web",
        "east",
        json!({"parameters": [{"from": {"configMap": "sizes"}}]}),
    )
    .await;
    let agent = Agent::join(&rig, "east").await;
    let (_, first) = agent.wait_entry(&rig, &uid, |entry| mac_of(entry).is_some()).await;
    let mut last = first.clone();
    let mut digests = vec![first.digest()];
    for cpu in ["2", "1", "2", "1"] {
        rig.edit("ConfigMap", NS, "sizes", |object| object["data"]["cpu"] = cpu.into())
            .await;
        let (_, entry) = agent
            .wait_entry(&rig, &uid, |entry| mac_of(entry) != mac_of(&last))
            .await;
        assert!(
            !digests.contains(&entry.digest()),
            "a report on what was before says nothing of it"
        );
        digests.push(entry.digest());
        last = entry;
    }
    assert_eq!(mac_of(&last), mac_of(&first));
    let stale = agent.parameters(&rig, &uid, &Digest::of("other")).await;
    assert_eq!(stale.refusal(), "403 NotDesired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_looks_at_no_parameters_again_and_a_change_before_it_is_not_lost() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(NS, "infra", &server.url("infra.git")).await;
    rig.create("ConfigMap", NS, "sizes", json!({"data": {"cpu": "1"}}))
        .await;
    let stated = json!({"parameters": [{"from": {"configMap": "sizes"}}]});
    let uid = service(&rig, "web", "east", stated.clone()).await;
    let other = service(&rig, "other", "east", json!({"configuration": {"a": "b"}})).await;
    let agent = Agent::join(&rig, "east").await;
    let (_, first) = agent.wait_entry(&rig, &uid, |entry| mac_of(entry).is_some()).await;
    agent.wait_entry(&rig, &other, |entry| mac_of(entry).is_some()).await;
    rig.wait_idle().await;

    // Its state is computed anew, whatever was left; the rows say that nothing has changed.
    let rig = rig.crash_before(async |_, _| {}).await;
    rig.wait_loaded().await;
    rig.edit("Cluster", NS, "east", |object| {
        object["spec"]["pollInterval"] = "20s".into()
    })
    .await;
    rig.wait_idle().await;
    let (_, same) = agent.wait_entry(&rig, &uid, |_| true).await;
    assert_eq!(same, first);
    assert_eq!(rig.replica.memory.counters.parameters_resolved.get(), 0);

    rig.kill_controllers().await;
    rig.edit("ConfigMap", NS, "sizes", |object| object["data"]["cpu"] = "2".into())
        .await;
    let rig = rig.crash_before(async |_, _| {}).await;
    let (_, next) = agent
        .wait_entry(&rig, &uid, |entry| mac_of(entry) != mac_of(&first))
        .await;
    let parameters = handed(&rig, &agent, &uid, &mac_of(&next).unwrap()).await;
    assert_eq!(parameters.values["configuration"]["cpu"], "2");
    assert_eq!(
        rig.replica.memory.counters.parameters_resolved.get(),
        1,
        "the other one was left alone"
    );
}
