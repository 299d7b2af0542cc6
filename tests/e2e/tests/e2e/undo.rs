//! Deleted objects are restored with their content, and no later plan deletes them again.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{APPROVE_PRUNE, deletion::LastDeletion};
use farwater_e2e::{Fleet, files_with};
use farwater_testkit::{Plane, shared};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

const MAPS: usize = 47;
/// A value that must only be in the cluster.
const PASSWORD: &str = "canary-7f3b";
/// Base64, as in a Secret's data.
const PASSWORD_BASE64: &str = "Y2FuYXJ5LTdmM2I=";

fn manifests() -> Vec<(String, String)> {
    let map = |n: usize| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m{n:02}}}\ndata: {{value: v{n}, n: \"{n}\"}}\n"
        );
        (format!("app/m{n:02}.yaml"), text)
    };
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: password}}\ntype: Opaque\nstringData: {{value: {PASSWORD}}}\n"
    );
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: runner}\n".to_owned();
    let service =
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n";
    let others = [
        ("secret", secret),
        ("account", account),
        ("service", service.to_owned()),
    ];
    let others = others.map(|(name, text)| (format!("app/{name}.yaml"), text));
    (0..MAPS).map(map).chain(others).collect()
}

/// The data of each ConfigMap, and of the Secret.
async fn contents(plane: &Plane, namespace: &str) -> Result<BTreeMap<String, String>> {
    let client = plane.client().await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut found = BTreeMap::new();
    for map in maps.list(&ListParams::default()).await?.items {
        let name = map.metadata.name.unwrap_or_default();
        if name != "kube-root-ca.crt" {
            found.insert(
                format!("map {name}"),
                format!(
                    "{:?} {:?}",
                    map.data,
                    map.metadata.annotations.unwrap_or_default().get("by")
                ),
            );
        }
    }
    for secret in secrets.list(&ListParams::default()).await?.items {
        found.insert(
            format!("secret {}", secret.metadata.name.unwrap_or_default()),
            format!("{:?}", secret.data),
        );
    }
    let services: Api<Service> = Api::namespaced(client, namespace);
    for service in services.list(&ListParams::default()).await?.items {
        let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
        found.insert(
            format!("service {}", service.metadata.name.unwrap_or_default()),
            format!("{ports:?}"),
        );
    }
    Ok(found)
}

async fn last_deletion(fleet: &Fleet) -> Result<LastDeletion> {
    fleet
        .service("app")
        .await?
        .status
        .and_then(|status| status.last_deletion)
        .context("a deletion in the status")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_objects_and_a_secret_come_back_and_stay() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let files = manifests();
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    ensure!(files.len() == 50);
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let namespace = fleet.namespace("app");
    fleet.cli().expect(1, &["undo", "app"])?;

    // Data that only the cluster had is restored, too.
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    let by_hand = Patch::Merge(json!({"metadata": {"annotations": {"by": "hand"}}}));
    maps.patch("m00", &PatchParams::default(), &by_hand).await?;
    let before = contents(plane, &namespace).await?;
    ensure!(before.len() == 49, "{before:#?}");

    let mut gone: Vec<_> = files.iter().map(|(path, _)| (*path, None)).collect();
    gone.push(("app/keep.yaml", Some("---\n")));
    repository.change("main", &gone)?;
    fleet.reconcile("infra").await?;
    let held = fleet.until_service("app", "hold its prune", |s| {
        s.status.as_ref().is_some_and(|s| s.held_prune.is_some())
    });
    let held = held.await?.status.and_then(|s| s.held_prune).context("a held prune")?;
    ensure!(held.count == 50, "{held:?}");
    fleet.annotate("app", APPROVE_PRUNE, &held.digest.to_string()).await?;
    fleet
        .until("the objects to go", || async {
            Ok(contents(plane, &namespace).await?.is_empty().then_some(()))
        })
        .await?;
    fleet
        .until_service("app", "name its deletion", |s| {
            s.status.as_ref().is_some_and(|s| s.last_deletion.is_some())
        })
        .await?;
    let deletion = last_deletion(&fleet).await?;
    ensure!(
        deletion.digest == held.digest && deletion.count == 50 && deletion.lost == 0,
        "{deletion:?}"
    );

    // One name is taken on purpose meanwhile. 49 of 50 objects are restored, the existing one is not overwritten, and
    // the command reports it.
    let taken: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "m01"}, "data": {"value": "another"}}))?;
    maps.create(&Default::default(), &taken).await?;
    let told = fleet.cli().expect(1, &["undo", "app", "--timeout", "60s"])?;
    ensure!(told.stdout.contains("49 objects restored"), "{told:?}");
    ensure!(
        told.stderr.contains("ConfigMap") && told.stderr.contains("m01"),
        "{told:?}"
    );
    let mut after = contents(plane, &namespace).await?;
    ensure!(after.remove("map m01").is_some_and(|data| data.contains("another")));
    let mut expected = before.clone();
    expected.remove("map m01");
    ensure!(after == expected, "{after:#?}");

    // They belong to no service: neither the next plan nor a restarted agent deletes them.
    fleet.agent("east")?.restart()?;
    repository.change(
        "main",
        &[(
            "app/new.yaml",
            Some("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: new}\n"),
        )],
    )?;
    fleet.reconcile("infra").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    fleet
        .stays("what was restored stays", "app", || async {
            Ok(contents(plane, &namespace).await?.len() == 50)
        })
        .await?;

    // A second run restores missing objects and does not touch existing ones.
    maps.delete("m01", &Default::default()).await?;
    maps.delete("m02", &Default::default()).await?;
    let told = fleet.cli().expect(1, &["undo", "app", "--timeout", "60s"])?;
    ensure!(told.stdout.contains("2 objects restored"), "{told:?}");

    // A source that contains them again adopts them. If an object then leaves the source, it is pruned as usual.
    let back: Vec<_> = files.iter().map(|(path, text)| (*path, Some(*text))).collect();
    let commit = repository.change("main", &back)?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    let commit = repository.change("main", &[("app/m05.yaml", None)])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    ensure!(maps.get_opt("m05").await?.is_none(), "adopted objects are pruned again");
    ensure!(
        maps.get("m00")
            .await?
            .metadata
            .annotations
            .unwrap_or_default()
            .contains_key("by"),
        "others' fields stay"
    );
    fleet.cli().expect(0, &["undo", "app", "--timeout", "60s"])?;
    ensure!(maps.get_opt("m05").await?.is_some());
    let told = fleet.cli().expect(0, &["undo", "app"])?;
    ensure!(told.stdout.contains("already"), "{told:?}");

    // The Secret's value is only in the cluster.
    let texts = [PASSWORD, PASSWORD_BASE64];
    for folder in [fleet.hub.dir().to_owned(), fleet.state_dir("east")] {
        let found = files_with(&folder, &texts)?;
        ensure!(found.is_empty(), "in the clear: {found:?}");
    }
    for log in [fleet.hub.process().output(), fleet.agent("east")?.process().output()] {
        ensure!(texts.iter().all(|text| !log.contains(text)), "in a log");
    }
    Ok(())
}

/// A service that is created again with the same name finds the objects that its predecessor's removal deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_removed_service_had_comes_back_to_one_of_its_name() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let (a, b) = (
        farwater_e2e::config_map("a", "one"),
        farwater_e2e::config_map("b", "one"),
    );
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &a), ("app/b.yaml", &b), ("less/a.yaml", &a)])
        .await?;
    let commit = repository.branch("main").unwrap_or_default();
    fleet
        .deploy_with("app", "west", "infra", "app", json!({"deletionPolicy": "Delete"}))
        .await?;
    fleet.until_applied("app", &commit).await?;
    fleet.delete_service("app").await?;
    let namespace = fleet.namespace("app");
    ensure!(contents(plane, &namespace).await?.is_empty());
    fleet.deploy("app", "west", "infra", "less").await?;
    fleet.until_applied("app", &commit).await?;
    let told = fleet.cli().expect(1, &["undo", "app", "--timeout", "60s"])?;
    ensure!(
        told.stdout.contains("1 object restored") && told.stderr.contains("a"),
        "{told:?}"
    );
    ensure!(contents(plane, &namespace).await?.len() == 2);
    Ok(())
}
