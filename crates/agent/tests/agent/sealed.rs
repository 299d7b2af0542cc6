//! Sealed documents: those of the running version are kept until a newer version is stored.

use std::{collections::BTreeMap, fs};

use crate::support::{FakeHub, PATIENCE, Service, config_map, config_maps, ground::Ground, outcome, report, value};
use farwater_api::{
    Digest,
    objects::Outcome,
    parameters::{FromCluster, Parameters},
    protocol::{Action, Deployment, Entry, SecretValue, Secrets},
};
use farwater_fleet::ownership::service_label;
use farwater_testkit::wait_for;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

const TEMPLATE: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {value: \"{{ configuration.value }}\"}\n";
/// A Secret of the cluster. A version that takes a value from it can't begin without it.
const NEEDED: &str = "made-later";

/// A service whose versions each get another value, as a parameter and as a Secret.
fn service(hub: &FakeHub, name: &str) -> Service {
    Service::new(hub, name, &[("a.yaml.liquid", TEMPLATE)])
}

fn version(hub: &FakeHub, service: &Service, value: &str, needs: Option<&str>) -> Service {
    let from = |secret: &str| FromCluster {
        secret: secret.to_owned(),
        key: "uri".to_owned(),
        name: "uri".to_owned(),
    };
    let values = json!({"configuration": {"value": value}}).as_object().unwrap().clone();
    let from_cluster = needs.into_iter().map(from).collect();
    let parameters = Parameters {
        values,
        secret: vec!["/configuration/value".to_owned()],
        from_cluster,
    };
    let data = json!({"password": ByteString(value.as_bytes().to_vec())});
    let data = serde_json::from_value(data).unwrap();
    let secret = SecretValue {
        secret_type: "Opaque".to_owned(),
        data,
    };
    let secrets = Secrets(BTreeMap::from([("database".to_owned(), secret)]));
    let (parameters, secrets) = (Some(hub.add_parameters(&parameters)), Some(hub.add_secrets(&secrets)));
    let deployment = Deployment {
        parameters,
        secrets,
        ..service.deployment.clone()
    };
    Service {
        deployment,
        ..service.clone()
    }
}

fn held(service: &Service) -> Entry {
    let action = Action::Hold {
        reason: "somebody wants it so".to_owned(),
    };
    Entry {
        service: service.identity.clone(),
        action,
    }
}

/// The documents of a file or Secret: their MACs and ciphertexts.
fn documents(bytes: &[u8]) -> Vec<(Digest, String)> {
    let kept: Value = serde_json::from_slice(bytes).unwrap();
    let document = |kept: &Value| {
        let mac = serde_json::from_value(kept["mac"].clone()).unwrap();
        (mac, kept["sealed"]["ciphertext"].as_str().unwrap().to_owned())
    };
    [&kept, &kept["next"]]
        .into_iter()
        .filter(|kept| kept.is_object())
        .map(document)
        .collect()
}

fn macs(bytes: &[u8]) -> Vec<Digest> {
    documents(bytes).into_iter().map(|(mac, _)| mac).collect()
}

/// Waits until the parameters of these services are kept, on the disk and in the cluster.
async fn until_kept(ground: &Ground, services: &[&Service]) {
    let label = service_label(services[0].uid());
    let file = ground.state_dir().join(format!("sealed/{label}.parameters.json"));
    let expected: Vec<Digest> = services
        .iter()
        .map(|service| service.deployment.parameters.unwrap())
        .collect();
    wait_for(
        &format!("{} documents to be kept", services.len()),
        PATIENCE,
        || async {
            let secret = own(ground).await.get(&format!("farwater-parameters-{label}")).await?;
            let content = secret.data.into_iter().flatten().next().unwrap().1;
            let here = fs::read(&file).map(|bytes| macs(&bytes)).unwrap_or_default();
            Ok((here == expected && macs(&content.0) == expected).then_some(()))
        },
    )
    .await
    .unwrap();
}

/// The agent's own Secrets.
async fn own(ground: &Ground) -> Api<Secret> {
    Api::namespaced(ground.plane.client().await.unwrap(), "farwater-system")
}

/// Deletes the objects that the service states.
async fn take_away(ground: &Ground, name: &str) {
    let client = ground.plane.client().await.unwrap();
    config_maps(&client, name)
        .delete("a", &DeleteParams::default())
        .await
        .unwrap();
    Api::<Secret>::namespaced(client, name)
        .delete("database", &DeleteParams::default())
        .await
        .unwrap();
}

/// Waits until the service's objects exist with this value.
async fn has(ground: &Ground, name: &str, expected: &str) {
    let client = ground.plane.client().await.unwrap();
    value(&config_maps(&client, name), "a", expected).await;
    let secrets: Api<Secret> = Api::namespaced(client, name);
    wait_for(&format!("the password to be {expected}"), PATIENCE, || async {
        let data = secrets
            .get_opt("database")
            .await?
            .and_then(|secret| secret.data)
            .unwrap_or_default();
        Ok(data
            .get("password")
            .filter(|password| password.0 == expected.as_bytes())
            .map(drop))
    })
    .await
    .unwrap();
}

/// Sets a version whose documents are downloaded, but which can't begin.
async fn gets_stuck(ground: &Ground, service: &Service) {
    let entry = ground.hub.set(service.entry());
    let report = outcome(&ground.hub, &entry, Outcome::Failed).await;
    assert!(
        report.message.contains("Secret made-later does not exist"),
        "{report:#?}"
    );
}

#[tokio::test]
async fn a_held_service_goes_on_with_its_own_values_whatever_came_for_a_newer_version() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("held");
    let first = service(&ground.hub, "held");
    let (one, two) = (
        version(&ground.hub, &first, "one", None),
        version(&ground.hub, &first, "two", Some(NEEDED)),
    );
    ground.applied(&one).await;
    gets_stuck(&ground, &two).await;
    until_kept(&ground, &[&one, &two]).await;

    let entry = ground.hub.set(held(&one));
    report(&ground.hub, &entry, |report| {
        report.message.starts_with("held: somebody")
    })
    .await;
    take_away(&ground, &place).await;
    has(&ground, &place, "one").await;
    // The documents of the version that never began are dropped.
    until_kept(&ground, &[&one]).await;

    // The hold comes while the agent is down, and then the hub is away.
    gets_stuck(&ground, &two).await;
    until_kept(&ground, &[&one, &two]).await;
    ground.kill();
    let entry = ground.hub.set(held(&one));
    take_away(&ground, &place).await;
    ground.start(false);
    has(&ground, &place, "one").await;
    report(&ground.hub, &entry, |report| {
        report.message.starts_with("held: somebody")
    })
    .await;
    ground.hub.go_away(true);
    ground.kill();
    take_away(&ground, &place).await;
    ground.start(false);
    has(&ground, &place, "one").await;
    ground.kill();
    fs::remove_dir_all(ground.state_dir()).unwrap();
    take_away(&ground, &place).await;
    ground.start(false);
    has(&ground, &place, "one").await;
}

#[tokio::test]
async fn a_crash_between_getting_and_applying_loses_no_value_and_leaves_none_behind() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("crashed");
    let first = service(&ground.hub, "crashed");
    let (one, two) = (
        version(&ground.hub, &first, "one", None),
        version(&ground.hub, &first, "two", Some(NEEDED)),
    );
    ground.applied(&one).await;
    let folder = ground.state_dir().join("sealed");
    let contents = || {
        fs::read_dir(&folder)
            .unwrap()
            .map(|file| fs::read(file.unwrap().path()).unwrap())
    };
    let older: Vec<String> = contents()
        .flat_map(|bytes| documents(&bytes))
        .map(|(_, ciphertext)| ciphertext)
        .collect();
    assert_eq!(older.len(), 2, "Secrets and parameters");
    gets_stuck(&ground, &two).await;
    until_kept(&ground, &[&one, &two]).await;

    // The hub is away from now on. The agent reads the documents from its folder first, and then from the cluster
    // alone.
    ground.hub.go_away(true);
    ground.kill();
    ground.start(false);
    until_kept(&ground, &[&one, &two]).await;
    ground.kill();
    fs::remove_dir_all(ground.state_dir()).unwrap();
    ground.start(false);
    until_kept(&ground, &[&one, &two]).await;
    has(&ground, &place, "one").await;
    // The Secrets of the newer version were not requested while it could not begin.
    ground.hub.go_away(false);
    let needed = json!({"metadata": {"name": NEEDED}, "stringData": {"uri": "anywhere"}});
    let secrets: Api<Secret> = Api::namespaced(ground.plane.client().await.unwrap(), &place);
    secrets
        .create(&PostParams::default(), &serde_json::from_value(needed).unwrap())
        .await
        .unwrap();
    has(&ground, &place, "two").await;
    outcome(&ground.hub, &two.entry(), Outcome::Applied).await;
    until_kept(&ground, &[&two]).await;

    let has_older = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        older.iter().any(|ciphertext| text.contains(ciphertext))
    };
    wait_for("nothing of the older version to be left", PATIENCE, || async {
        let secrets = own(&ground).await.list(&ListParams::default()).await?.items;
        let mut there = secrets
            .into_iter()
            .flat_map(|secret| secret.data.unwrap_or_default().into_values());
        let is_left = contents().any(|bytes| has_older(&bytes)) || there.any(|content| has_older(&content.0));
        Ok((!is_left).then_some(()))
    })
    .await
    .unwrap();

    // A version without parameters and Secrets leaves no documents.
    ground.hub.set(
        first
            .with(&ground.hub, &[("a.yaml", &config_map("a", "plain"))])
            .entry(),
    );
    wait_for("nothing to be kept", PATIENCE, || async {
        let secrets = own(&ground)
            .await
            .list(&ListParams::default().labels("farwater.dev/agent=sealed"))
            .await?
            .items;
        Ok((contents().count() == 0 && secrets.is_empty()).then_some(()))
    })
    .await
    .unwrap();
}
