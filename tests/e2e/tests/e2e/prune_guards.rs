//! Guards that hold a prune, in the hub and in the agent, and objects that move, hang or take others with them.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use farwater_api::{
    APPROVE_PRUNE, CONFIRM_RESTORED, Cluster, GitRepository, ServiceDeployment, service_deployment::HeldPrune,
};
use farwater_e2e::{Fleet, PATIENCE, config_map};
use farwater_testkit::{Plane, farwater::program, shared, wait_for};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Event, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

/// Uid of each ConfigMap.
async fn uids(plane: &Plane, namespace: &str) -> Result<BTreeMap<String, String>> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, namespace);
    let maps = api.list(&ListParams::default()).await?.items.into_iter();
    let maps = maps.filter_map(|map| Some((map.metadata.name?, map.metadata.uid?)));
    Ok(maps.filter(|(name, _)| name != "kube-root-ca.crt").collect())
}

/// ConfigMaps as files of a folder.
fn maps(folder: &str, names: std::ops::Range<usize>) -> Vec<(String, String)> {
    names
        .map(|n| (format!("{folder}/m{n:02}.yaml"), config_map(&format!("m{n:02}"), "one")))
        .collect()
}

fn borrowed(files: &[(String, String)]) -> Vec<(&str, &str)> {
    files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect()
}

async fn held(fleet: &Fleet, service: &str) -> Result<HeldPrune> {
    let found = fleet.until_service(service, "hold its prune", |s| {
        s.status.as_ref().is_some_and(|status| status.held_prune.is_some())
    });
    found
        .await?
        .status
        .and_then(|status| status.held_prune)
        .context("a held prune")
}

async fn point_at(fleet: &Fleet, source: &str, url: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"url": url}}));
    fleet
        .api::<GitRepository>()
        .patch(source, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

async fn point_to(fleet: &Fleet, service: &str, path: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"path": path}}));
    fleet
        .api::<ServiceDeployment>()
        .patch(service, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// One object of twenty is missing: no guard by numbers notices that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_repository_history_or_folder_holds_what_it_lacks() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let files = maps("app", 0..20);
    let mut all = files.clone();
    all.extend(maps("lib", 0..19));
    let repository = fleet.repository("infra", &borrowed(&all)).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    let first = repository.branch("main").unwrap_or_default();
    fleet.until_applied("app", &first).await?;
    let namespace = fleet.namespace("app");
    let before = uids(plane, &namespace).await?;
    let same = || async { Ok(uids(plane, &namespace).await? == before) };

    // The repository moved to another address and is the same: nothing is held.
    let copy = fleet.git.root().join("moved");
    let copied = Command::new("cp")
        .arg("-r")
        .arg(repository.path())
        .arg(&copy)
        .status()?;
    ensure!(copied.success());
    point_at(&fleet, "infra", &fleet.git.url("moved")).await?;
    fleet.until_applied("app", &first).await?;

    let other = fleet.git.create("other")?;
    other.commit("main", &borrowed(&files[..19]))?;
    point_at(&fleet, "infra", &fleet.git.url("other")).await?;
    let swapped = held(&fleet, "app").await?;
    ensure!(
        swapped.count == 1 && swapped.reason.contains("another repository"),
        "{swapped:?}"
    );
    fleet.stays("nothing goes", "app", same).await?;
    point_at(&fleet, "infra", &fleet.git.url("infra")).await?;
    fleet.until_applied("app", &first).await?;
    fleet
        .until_service("app", "hold nothing", |s| {
            s.status.as_ref().is_some_and(|s| s.held_prune.is_none())
        })
        .await?;

    // A new root on the same branch.
    repository.rewrite("main", &borrowed(&files[..19]))?;
    fleet.reconcile("infra").await?;
    ensure!(held(&fleet, "app").await?.reason.contains("another repository"));
    fleet.stays("nothing goes", "app", same).await?;
    repository.set_ref("refs/heads/main", &first)?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &first).await?;

    point_to(&fleet, "app", "lib").await?;
    let moved = held(&fleet, "app").await?;
    ensure!(moved.count == 1 && moved.reason.contains("folder \"lib\""), "{moved:?}");
    // The agent also holds by itself, whatever happens to the hub.
    let agent = fleet.agent("east")?;
    agent.restart()?;
    fleet.stays("nothing goes", "app", same).await?;

    // After the approval exactly these objects are deleted, and this is the new origin.
    fleet.annotate("app", APPROVE_PRUNE, &moved.digest.to_string()).await?;
    fleet
        .until("the object to go", || async {
            Ok((uids(plane, &namespace).await?.len() == 19).then_some(()))
        })
        .await?;
    fleet.until_applied("app", &first).await?;
    repository.change("main", &[("lib/m00.yaml", None)])?;
    fleet.reconcile("infra").await?;
    fleet
        .until("a prune to be made unasked", || async {
            Ok((uids(plane, &namespace).await?.len() == 18).then_some(()))
        })
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_target_namespace_holds_what_is_in_the_one_before() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let repository = fleet.repository("infra", &borrowed(&maps("app", 0..3))).await?;
    fleet.deploy("app", "west", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let (old, new) = (fleet.namespace("app"), fleet.namespace("renamed"));
    let before = uids(plane, &old).await?;
    let patch = Patch::Merge(json!({"spec": {"targetNamespace": new}}));
    fleet
        .api::<ServiceDeployment>()
        .patch("app", &PatchParams::default(), &patch)
        .await?;
    let held = held(&fleet, "app").await?;
    ensure!(
        held.count == 3 && held.reason.contains("3 of 3 objects would be deleted"),
        "{held:?}"
    );

    // New objects go to the new place, and nothing in the old place is deleted for that.
    repository.change("main", &[("app/m03.yaml", Some(&config_map("m03", "one")))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until("the next object to be made", || async {
            Ok((uids(plane, &new).await?.len() == 4).then_some(()))
        })
        .await?;
    ensure!(uids(plane, &old).await? == before);
    fleet.annotate("app", APPROVE_PRUNE, &held.digest.to_string()).await?;
    fleet
        .until("what was approved to go", || async {
            Ok(uids(plane, &old).await?.is_empty().then_some(()))
        })
        .await?;
    ensure!(uids(plane, &new).await?.len() == 4);
    Ok(())
}

/// The hub is restored from a backup that is older than a commit. It is confirmed at once, while Git is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_hub_that_is_confirmed_early_asks_its_sources_first() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let repository = fleet.repository("infra", &borrowed(&maps("app", 0..10))).await?;
    fleet.deploy("app", "west", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let data = fleet.hub.dir().display().to_string();
    let file = fleet.hub.dir().with_extension("backup").display().to_string();
    admin(&["backup", "--data-dir", &data, &file])?;
    let files = maps("app", 10..12);
    let more: Vec<_> = files
        .iter()
        .map(|(path, text)| (path.as_str(), Some(text.as_str())))
        .collect();
    let commit = repository.change("main", &more)?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    let namespace = fleet.namespace("app");
    let before = uids(plane, &namespace).await?;
    ensure!(before.len() == 12);

    fleet.git.stop().await;
    fleet.hub.stop()?;
    let said = admin(&["restore", "--data-dir", &data, "--force", &file])?;
    let (_, confirmation) = said
        .split_once(&format!("{CONFIRM_RESTORED}="))
        .with_context(|| said.clone())?;
    let epoch: String = confirmation.chars().take_while(char::is_ascii_digit).collect();
    fleet.hub.restart().await?;
    fleet.client = fleet.hub.client().await?;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {CONFIRM_RESTORED: epoch}}}));
    fleet
        .api::<Cluster>()
        .patch("west", &PatchParams::default(), &patch)
        .await?;
    let held = held(&fleet, "app").await?;
    ensure!(
        held.count == 2
            && held
                .reason
                .contains("the hub was restored from a backup, and what GitRepository"),
        "{held:?}"
    );
    fleet
        .stays("what is newer than the backup stays", "app", || async {
            Ok(uids(plane, &namespace).await? == before)
        })
        .await?;

    // After a fetch it knows the current content, and nothing has to be deleted.
    fleet.git.resume().await?;
    fleet.until_applied("app", &commit).await?;
    ensure!(uids(plane, &namespace).await? == before);
    repository.change("main", &[("app/m00.yaml", None)])?;
    fleet.reconcile("infra").await?;
    fleet
        .until("prunes to go on", || async {
            Ok((uids(plane, &namespace).await?.len() == 11).then_some(()))
        })
        .await?;
    Ok(())
}

fn admin(arguments: &[&str]) -> Result<String> {
    let output = Command::new(program("farwater")?)
        .arg("admin")
        .args(arguments)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "farwater admin {arguments:?}: {said}");
    Ok(said)
}

/// Objects move from one service to another and back, in one commit each, whichever service is reconciled first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_move_between_services_are_neither_deleted_nor_made_again() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let mut files = maps("one", 0..10);
    files.extend(maps("two", 20..30));
    let repository = fleet.repository("infra", &borrowed(&files)).await?;
    let namespace = fleet.namespace("shared");
    let target = json!({"targetNamespace": namespace});
    for name in ["one", "two"] {
        fleet.deploy_with(name, "east", "infra", name, target.clone()).await?;
        fleet
            .until_applied(name, &repository.branch("main").unwrap_or_default())
            .await?;
    }
    let before = uids(plane, &namespace).await?;
    ensure!(before.len() == 20);
    for (n, (from, to)) in [("one", "two"), ("two", "one"), ("one", "two")].into_iter().enumerate() {
        let text = config_map("m03", &format!("moved {n}"));
        let text = text.replace("moved ", "moved-");
        let (old, new) = (format!("{from}/m03.yaml"), format!("{to}/m03.yaml"));
        let commit = repository.change("main", &[(&old, None), (&new, Some(&text))])?;
        fleet.reconcile("infra").await?;
        for name in ["one", "two"] {
            fleet.until_applied(name, &commit).await?;
        }
        ensure!(uids(plane, &namespace).await? == before, "move {n}");
        let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
        let data = api.get("m03").await?.data.unwrap_or_default();
        ensure!(data["value"] == format!("moved-{n}"), "{data:?}");
    }
    // At first both services contain it: it is refused until the other one releases it.
    let text = config_map("m05", "taken");
    let taken = repository.change("main", &[("two/m05.yaml", Some(&text))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_condition("two", "Ready", "False", "owned by service farwater-admin/one")
        .await?;
    let left = repository.change("main", &[("one/m05.yaml", None)])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("one", &left).await?;
    fleet.until_applied("two", &taken).await?;
    ensure!(uids(plane, &namespace).await? == before);
    // The new owner may prune it.
    repository.change("main", &[("two/m05.yaml", None)])?;
    fleet.reconcile("infra").await?;
    fleet
        .until("it to be pruned", || async {
            Ok((uids(plane, &namespace).await?.len() == 19).then_some(()))
        })
        .await?;
    // A deleted service leaves objects that other services contain.
    let patch = Patch::Merge(json!({"spec": {"deletionPolicy": "Delete"}}));
    fleet
        .api::<ServiceDeployment>()
        .patch("one", &PatchParams::default(), &patch)
        .await?;
    repository.change("main", &[("two/m07.yaml", Some(&config_map("m07", "heir")))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_condition("two", "Ready", "False", "owned by service farwater-admin/one")
        .await?;
    fleet.delete_service("one").await?;
    fleet.until_condition("two", "Ready", "True", "").await?;
    let left = uids(plane, &namespace).await?;
    ensure!(left.get("m07") == before.get("m07"), "{left:?}");
    Ok(())
}

const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: boats.PLACE.example.com}\n\
    spec:\n  group: PLACE.example.com\n  scope: Namespaced\n  names: {kind: Boat, plural: boats, singular: boat}\n  versions:\n  \
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_namespace_and_definition_show_what_goes_with_them_and_a_finalizer_that_hangs_is_named() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let place = fleet.unique.clone();
    let (definition, extra) = (DEFINITION.replace("PLACE", &place), fleet.namespace("extra"));
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {extra}}}\n");
    let mut files = maps("app", 0..20);
    files.push(("app/definition.yaml".into(), definition));
    files.push(("app/namespace.yaml".into(), namespace));
    let repository = fleet.repository("infra", &borrowed(&files)).await?;
    fleet.deploy("app", "west", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let client = plane.client().await?;
    let inside: Api<ConfigMap> = Api::namespaced(client.clone(), &extra);
    for n in 0..4 {
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": format!("others-{n}")}}))?;
        inside.create(&Default::default(), &map).await?;
    }
    let kind = kube::core::GroupVersionKind::gvk(&format!("{place}.example.com"), "v1", "Boat");
    let boats: Api<kube::api::DynamicObject> =
        Api::namespaced_with(client.clone(), &extra, &kube::api::ApiResource::from_gvk(&kind));
    for n in 0..3 {
        let boat = json!({"apiVersion": format!("{place}.example.com/v1"), "kind": "Boat", "metadata": {"name": format!("boat-{n}")}});
        boats
            .create(&Default::default(), &serde_json::from_value(boat)?)
            .await?;
    }

    let gone = [
        ("app/definition.yaml", None),
        ("app/namespace.yaml", None),
        ("app/m00.yaml", None),
    ];
    repository.change("main", &gone)?;
    fleet.reconcile("infra").await?;
    let held = held(&fleet, "app").await?;
    ensure!(held.count == 3, "{held:?}");
    let counted = |kind: &str| {
        let contents = held.contents.iter().find(|contents| contents.object.kind == kind);
        contents.map(|contents| contents.counts.clone()).unwrap_or_default()
    };
    let boats_of = |counts: &[farwater_api::service_deployment::KindCount]| {
        counts
            .iter()
            .find(|one| one.kind.starts_with("Boat."))
            .map(|one| one.count)
    };
    ensure!(
        boats_of(&counted("CustomResourceDefinition")) == Some(3),
        "{:?}",
        held.contents
    );
    // kube-root-ca.crt is the fifth.
    let in_namespace = counted("Namespace");
    ensure!(
        in_namespace.iter().any(|one| one.kind == "ConfigMap" && one.count == 5),
        "{:?}",
        held.contents
    );
    ensure!(boats_of(&in_namespace) == Some(3), "{:?}", held.contents);
    let why = fleet.cli().run(&["why", "app"])?;
    ensure!(
        why.stdout.contains("5 ConfigMap") && why.stdout.contains("3 Boat."),
        "{why:?}"
    );

    // A finalizer that is never removed.
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &fleet.namespace("app"));
    let hang = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/stuck"]}}));
    maps.patch("m00", &PatchParams::default(), &hang).await?;
    fleet.annotate("app", APPROVE_PRUNE, &held.digest.to_string()).await?;
    wait_for("the report to name the finalizer", PATIENCE, || async {
        let objects = fleet.objects("app").await?;
        let stuck = objects.into_iter().find(|one| one.object.name == "m00");
        Ok(stuck
            .filter(|one| one.message.contains("example.com/stuck") && one.message.contains("since 20"))
            .map(drop))
    })
    .await?;
    maps.patch(
        "m00",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"finalizers": null}})),
    )
    .await?;
    let (namespaces, definitions): (Api<Namespace>, Api<CustomResourceDefinition>) =
        (Api::all(client.clone()), Api::all(client));
    let left = || async {
        let namespace = namespaces.get_opt(&extra).await?.map(|one| json!(one.status));
        let definition = definitions
            .get_opt(&format!("boats.{place}.example.com"))
            .await?
            .map(|one| json!(one.metadata));
        let map = maps.get_opt("m00").await?.map(|one| json!(one.metadata));
        anyhow::Ok([namespace, definition, map].into_iter().flatten().collect::<Vec<_>>())
    };
    let gone = fleet
        .until("all three to be gone", || async {
            Ok(left().await?.is_empty().then_some(()))
        })
        .await;
    match gone {
        Err(error) => bail!(
            "{error}; left: {:#?}; said: {:#?}",
            left().await?,
            fleet.objects("app").await?
        ),
        Ok(()) => Ok(()),
    }
}

/// If a cluster's agent is gone, its service is deleted together with the Cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_cluster_blocks_no_deletion_and_loses_no_workload() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let repository = fleet.repository("infra", &borrowed(&maps("app", 0..3))).await?;
    fleet
        .deploy_with("app", "east", "infra", "app", json!({"deletionPolicy": "Delete"}))
        .await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let namespace = fleet.namespace("app");
    let before = uids(plane, &namespace).await?;
    fleet.agent("east")?.kill9();
    fleet
        .api::<ServiceDeployment>()
        .delete("app", &DeleteParams::default())
        .await?;
    fleet
        .until_service("app", "say what it waits for", |s| {
            let conditions = s.status.iter().flat_map(|status| &status.conditions);
            conditions
                .into_iter()
                .any(|one| one.message.contains("to confirm the removal"))
        })
        .await?;
    fleet.api::<Cluster>().delete("east", &DeleteParams::default()).await?;
    let services = fleet.api::<ServiceDeployment>();
    fleet
        .until("the service to go", || async {
            Ok(services.get_opt("app").await?.is_none().then_some(()))
        })
        .await?;
    ensure!(uids(plane, &namespace).await? == before, "its workload stays");
    Ok(())
}

/// If the objects stay anyway, the deletion does not wait for a missing agent. When it is back, it releases them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_agent_holds_up_no_service_that_leaves_its_objects() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let repository = fleet.repository("infra", &borrowed(&maps("app", 0..3))).await?;
    fleet
        .deploy_with("app", "west", "infra", "app", json!({"deletionPolicy": "Delete"}))
        .await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let namespace = fleet.namespace("app");
    let before = uids(plane, &namespace).await?;
    ensure!(before.len() == 3);
    fleet.agent("west")?.kill9();
    let services = fleet.api::<ServiceDeployment>();
    services.delete("app", &DeleteParams::default()).await?;
    fleet
        .until_service("app", "name the way out", |s| {
            let mut conditions = s.status.iter().flat_map(|status| &status.conditions);
            conditions.any(|one| {
                one.message
                    .contains("set spec.deletionPolicy to Orphan or delete the Cluster")
            })
        })
        .await?;
    let orphan = Patch::Merge(json!({"spec": {"deletionPolicy": "Orphan"}}));
    services.patch("app", &PatchParams::default(), &orphan).await?;
    fleet
        .until("the service to go", || async {
            Ok(services.get_opt("app").await?.is_none().then_some(()))
        })
        .await?;
    ensure!(uids(plane, &namespace).await? == before, "its workload stays");
    let events = fleet
        .api::<Event>()
        .list(&ListParams::default())
        .await?
        .items
        .into_iter();
    let told: Vec<_> = events
        .filter(|event| event.reason.as_deref() == Some("Orphaned"))
        .filter_map(|event| event.message)
        .collect();
    let [told] = told.as_slice() else {
        anyhow::bail!("{told:?}")
    };
    ensure!(
        told.contains(&format!("3 objects stay: ConfigMap {namespace}/m00, ")),
        "{told}"
    );

    // Without an entry the agent would keep and correct the objects, so it is told to release them.
    fleet.agent("west")?.restart()?;
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    fleet
        .until("the objects to be nobody's", || async {
            let maps = api.list(&ListParams::default()).await?.items.into_iter();
            let labels = maps.filter_map(|map| map.metadata.labels);
            Ok(labels
                .flatten()
                .all(|(label, _)| !label.contains("farwater"))
                .then_some(()))
        })
        .await?;
    ensure!(uids(plane, &namespace).await? == before, "they are the same ones");
    Ok(())
}
