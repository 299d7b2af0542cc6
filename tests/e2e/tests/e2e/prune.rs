//! An object that leaves the source is deleted from the cluster, but never by mistake.

use anyhow::{Context as _, Result, ensure};
use farwater_api::{APPROVE_PRUNE, objects::SyncState};
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::{Plane, shared};
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

/// More than a status lists.
const MANY: usize = 25;

async fn names(plane: &Plane, namespace: &str) -> Result<Vec<String>> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, namespace);
    let list = api.list(&ListParams::default()).await?;
    let names = list.items.into_iter().filter_map(|c| c.metadata.name);
    Ok(names.filter(|name| name != "kube-root-ca.crt").collect())
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_folder_is_held_until_exactly_that_plan_is_approved() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let all: Vec<String> = (0..MANY).map(|n| format!("m{n:02}")).collect();
    let files: Vec<_> = all
        .iter()
        .map(|name| (format!("app/{name}.yaml"), config_map(name, "one")))
        .collect();
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let namespace = fleet.namespace("app");

    let gone = files.iter().map(|(path, _)| (*path, None));
    let gone: Vec<_> = gone.chain([("app/keep.yaml", Some("---\n"))]).collect();
    repository.change("main", &gone)?;
    fleet.reconcile("infra").await?;
    let service = fleet.until_service("app", "hold its prune", |s| {
        s.status.as_ref().is_some_and(|s| s.held_prune.is_some())
    });
    let held = service
        .await?
        .status
        .and_then(|s| s.held_prune)
        .context("a held prune")?;
    // The status has the first ten. A command shows the whole list.
    ensure!(
        usize::try_from(held.count)? == MANY && held.objects.len() == 10,
        "{held:?}"
    );
    let objects = fleet
        .objects("app")
        .await?
        .into_iter()
        .filter(|one| one.sync == SyncState::PruneHeld);
    ensure!(sorted(objects.map(|one| one.object.name)) == all);
    let told = fleet.cli().expect(1, &["plan", "app", "-o", "json"])?.stdout;
    let told: Value = serde_json::from_str(&told).with_context(|| told.clone())?;
    let deletes = told["plan"]["deletes"]
        .as_array()
        .context("deletes")?
        .iter()
        .filter(|one| one["held"] == true);
    ensure!(
        sorted(deletes.filter_map(|one| Some(one["name"].as_str()?.to_owned()))) == all,
        "{told:#}"
    );
    ensure!(
        told["plan"]["heldPrune"]["digest"] == held.digest.to_string(),
        "{told:#}"
    );
    let shown = fleet.cli().expect(1, &["plan", "app"])?.stdout;
    ensure!(
        all.iter()
            .all(|name| shown.contains(&format!("- ConfigMap {namespace}/{name}  held"))),
        "{shown}"
    );
    fleet
        .stays("all objects exist", "app", || async {
            Ok(names(plane, &namespace).await? == all)
        })
        .await?;

    let wrong = farwater_api::Digest::of("another plan").to_string();
    fleet.annotate("app", APPROVE_PRUNE, &wrong).await?;
    fleet
        .stays("all objects exist", "app", || async {
            Ok(names(plane, &namespace).await? == all)
        })
        .await?;
    // Without a terminal for the question, the command shows what would be deleted and names the plan that it showed.
    let cli = fleet.cli();
    let asked = cli.expect(2, &["approve", "app"])?.stderr;
    ensure!(
        asked.contains(&format!("an approval deletes {MANY} objects:")),
        "{asked}"
    );
    let next = format!("approve app -n farwater-admin --digest {}\n", held.digest);
    ensure!(asked.ends_with(&next), "{asked}");
    cli.expect(5, &["approve", "app", "--digest", &wrong])?;
    cli.expect(0, &["approve", "app", "--digest", &held.digest.to_string()])?;
    fleet
        .until("the objects to go", || async {
            Ok(names(plane, &namespace).await?.is_empty().then_some(()))
        })
        .await?;
    fleet
        .until_service("app", "hold nothing", |s| {
            s.status.as_ref().is_some_and(|s| s.held_prune.is_none())
        })
        .await?;
    let deleted = fleet.until_service("app", "name its deletion", |s| {
        let status = s.status.as_ref();
        status.is_some_and(|status| {
            status
                .last_deletion
                .as_ref()
                .is_some_and(|one| one.digest == held.digest)
        })
    });
    let status = deleted.await?.status.context("a status")?;
    ensure!(
        status.approved_by.is_some() && status.approved_at.is_some(),
        "{status:?}"
    );
    let approver = status.last_deletion.and_then(|deletion| deletion.approved_by);
    ensure!(approver == status.approved_by, "{approver:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_left_git_while_the_agent_was_down_and_lost_its_state_is_pruned() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let maps: Vec<_> = (0..4)
        .map(|n| (format!("app/m{n}.yaml"), config_map(&format!("m{n}"), "one")))
        .collect();
    let files: Vec<_> = maps.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("app", "west", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;

    fleet.agent("west")?.kill9();
    std::fs::remove_dir_all(fleet.state_dir("west"))?;
    let next = repository.change("main", &[("app/m3.yaml", None)])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_service("app", "be assigned the next commit", |s| {
            s.status
                .as_ref()
                .and_then(|s| s.assigned_revision.as_deref())
                .is_some_and(|r| r.ends_with(&next))
        })
        .await?;
    fleet.agent("west")?.restart()?;
    fleet.until_applied("app", &next).await?;
    let namespace = fleet.namespace("app");
    ensure!(names(plane, &namespace).await? == ["m0", "m1", "m2"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_service_orphans_or_deletes_as_it_says() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (map, kept) = (config_map("a", "one"), config_map("kept", "one"));
    let files = [
        ("stays/a.yaml", map.as_str()),
        ("goes/a.yaml", &map),
        ("goes/kept.yaml", &kept),
    ];
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("stays", "east", "infra", "stays").await?;
    fleet
        .deploy_with("goes", "east", "infra", "goes", json!({"deletionPolicy": "Delete"}))
        .await?;
    let commit = repository.branch("main").unwrap_or_default();
    fleet.until_applied("stays", &commit).await?;
    fleet.until_applied("goes", &commit).await?;

    // A person has protected one by hand.
    let maps = async |service: &str| -> Result<Api<ConfigMap>> {
        Ok(Api::namespaced(plane.client().await?, &fleet.namespace(service)))
    };
    let protect = Patch::Merge(json!({"metadata": {"annotations": {"farwater.dev/prune": "disabled"}}}));
    maps("goes")
        .await?
        .patch("kept", &PatchParams::default(), &protect)
        .await?;

    fleet.delete_service("stays").await?;
    fleet.delete_service("goes").await?;
    ensure!(names(plane, &fleet.namespace("stays")).await? == ["a"]);
    ensure!(names(plane, &fleet.namespace("goes")).await? == ["kept"]);
    for (service, name) in [("stays", "a"), ("goes", "kept")] {
        let left = maps(service).await?.get(name).await?.metadata;
        ensure!(
            left.labels
                .unwrap_or_default()
                .keys()
                .all(|key| !key.contains("farwater")),
            "an orphan still has our labels"
        );
    }
    // A protected object is reported.
    let events = fleet
        .api::<Event>()
        .list(&ListParams::default())
        .await?
        .items
        .into_iter();
    let told = events
        .filter(|event| event.reason.as_deref() == Some("Orphaned"))
        .filter_map(|event| event.message);
    let told = sorted(told);
    for (service, name) in [("stays", "a"), ("goes", "kept")] {
        let message = format!(
            "1 object stays in cluster east without a service: ConfigMap {}/{name}",
            fleet.namespace(service)
        );
        ensure!(told.contains(&message), "{told:?}");
    }
    Ok(())
}
