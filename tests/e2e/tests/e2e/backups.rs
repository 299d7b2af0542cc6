//! Backups of a running hub, and the effect of a restore on watchers and agents.

use std::{collections::BTreeMap, path::Path, process::Output, time::Duration};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{CONFIRM_RESTORED, Cluster, ServiceDeployment};
use farwater_e2e::{Fleet, PATIENCE, config_map};
use farwater_testkit::{Hub, Plane, Postgres, postgres, process::bare_command, shared, wait_for};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;

/// Runs `farwater admin …` as an operator does.
fn admin(arguments: &[&str]) -> Result<Output> {
    let mut command = bare_command(farwater_testkit::farwater::program("farwater")?);
    command
        .arg("admin")
        .args(arguments)
        .output()
        .context("run farwater admin")
}

fn done(arguments: &[&str]) -> Result<String> {
    let output = admin(arguments)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "farwater admin {arguments:?}: {}: {said}",
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &said)
}

fn refused(arguments: &[&str], code: i32, why: &str) -> Result<()> {
    let output = admin(arguments)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.code() == Some(code) && said.contains(why),
        "{arguments:?}: {}: {said}",
        output.status
    );
    ensure!(!said.contains(postgres::PASSWORD), "the password is in {said}");
    Ok(())
}

fn hub_map(name: &str, value: &str) -> Result<ConfigMap> {
    Ok(serde_json::from_value(
        json!({"metadata": {"name": name}, "data": {"value": value}}),
    )?)
}

async fn maps(hub: &Hub) -> Result<Api<ConfigMap>> {
    Ok(Api::namespaced(hub.client().await?, "farwater-admin"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_hub_shows_watchers_the_future_only() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hub = Hub::start(&dir.path().join("data")).await?;
    hold_to_the_future(dir.path(), hub, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_hub_on_postgresql_shows_watchers_the_future_only() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Postgres::start_unsynced().await?;
    let url = server.create_database().await?;
    let hub = Hub::start_with(&dir.path().join("data"), &["--database", &url]).await?;
    hold_to_the_future(dir.path(), hub, &["--database", &url]).await
}

async fn hold_to_the_future(dir: &Path, mut hub: Hub, database: &[&str]) -> Result<()> {
    let (data, file) = (
        hub.dir().display().to_string(),
        dir.join("backup").display().to_string(),
    );
    let store = [&["--data-dir", &*data], database].concat();
    let with = |name: &'static str, more: &[&'static str]| [vec![name], store.clone(), more.to_vec()].concat();
    let api = maps(&hub).await?;
    api.create(&PostParams::default(), &hub_map("kept", "old")?).await?;
    done(&[with("backup", &[]), vec![&*file]].concat())?;
    refused(
        &[with("backup", &[]), vec![&*file]].concat(),
        2,
        "there is a file already",
    )?;
    done(&with("fsck", &[]))?;
    api.create(&PostParams::default(), &hub_map("forgotten", "new")?)
        .await?;
    let version = api
        .list(&Default::default())
        .await?
        .metadata
        .resource_version
        .context("a version")?;
    refused(
        &[with("restore", &["--force"]), vec![&*file]].concat(),
        5,
        "stop the hub first",
    )?;

    hub.stop()?;
    refused(&[with("restore", &[]), vec![&*file]].concat(), 5, "--force replaces it")?;
    let said = done(&[with("restore", &["--force"]), vec![&*file]].concat())?;
    ensure!(said.contains("confirm-restored="), "{said}");
    done(&with("fsck", &[]))?;
    hub.restart().await?;

    let api = maps(&hub).await?;
    ensure!(api.get_opt("forgotten").await?.is_none());
    ensure!(api.get("kept").await?.data.context("data")?["value"] == "old");
    // Watchers from before the restore must list again, and don't see old events.
    let stream = api.watch(&WatchParams::default().timeout(5), &version).await?;
    let first = std::pin::pin!(stream).next().await.context("an answer")?;
    let gone = match &first {
        Ok(WatchEvent::Error(status)) => status.code == 410,
        Err(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    };
    ensure!(gone, "{first:?}");
    let list = api
        .list(&Default::default())
        .await?
        .metadata
        .resource_version
        .context("a version")?;
    ensure!(list.parse::<u64>()? > version.parse::<u64>()? + 1_000_000);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_moves_to_postgresql_and_back() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (data, passwords) = (dir.path().join("data"), dir.path().join("password"));
    let server = Postgres::start_unsynced().await?;
    let with_password = server.create_database().await?;
    let url = with_password.replace(&format!(":{}", postgres::PASSWORD), "");
    std::fs::write(&passwords, postgres::PASSWORD)?;
    let (passwords, file) = (
        passwords.display().to_string(),
        data.join("hub.db").display().to_string(),
    );

    let mut hub = Hub::start(&data).await?;
    let api = maps(&hub).await?;
    let made = api.create(&PostParams::default(), &hub_map("a", "1")?).await?;
    let copy = [
        "copy-store",
        "--from",
        &file,
        "--to",
        &url,
        "--to-password-file",
        &passwords,
    ];
    refused(&copy, 5, "stop the hub first")?;
    hub.stop()?;
    drop(hub);
    done(&copy)?;
    refused(&copy, 5, "--force replaces it")?;
    std::fs::remove_file(&file)?;

    let options = ["--database", &url, "--database-password-file", &passwords];
    let mut hub = Hub::start_with(&data, &options).await?;
    let api = maps(&hub).await?;
    ensure!(api.get("a").await?.metadata.resource_version == made.metadata.resource_version);
    api.create(&PostParams::default(), &hub_map("b", "2")?).await?;
    let log = hub.process().output();
    ensure!(!log.contains(postgres::PASSWORD), "the password is in the log");
    hub.stop()?;
    drop(hub);
    // The data directory contains the location of its database.
    let data_dir = data.display().to_string();
    refused(&["fsck", "--data-dir", &data_dir], 2, "name it with --database")?;
    done(&[
        "copy-store",
        "--from",
        &url,
        "--from-password-file",
        &passwords,
        "--to",
        &file,
    ])?;

    let hub = Hub::start(&data).await?;
    ensure!(maps(&hub).await?.get("b").await?.data.context("data")?["value"] == "2");
    Ok(())
}

/// The ConfigMaps of a service's namespace, and their uids.
async fn objects(plane: &Plane, namespace: &str) -> Result<BTreeMap<String, String>> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, namespace);
    let all = api.list(&Default::default()).await?.items.into_iter();
    let all = all.filter_map(|map| Some((map.metadata.name?, map.metadata.uid?)));
    Ok(all.filter(|(name, _)| name != "kube-root-ca.crt").collect())
}

/// Stops the hub, restores the backup and starts it again. Returns the annotation for the confirmation, as the command
/// prints it.
async fn go_back(fleet: &mut Fleet, data: &str, backup: &str) -> Result<String> {
    fleet.hub.stop()?;
    let said = done(&["restore", "--data-dir", data, "--force", backup])?;
    let (_, confirmation) = said
        .split_once(&format!("{CONFIRM_RESTORED}="))
        .with_context(|| said.clone())?;
    let epoch: String = confirmation.chars().take_while(char::is_ascii_digit).collect();
    fleet.hub.restart().await?;
    fleet.client = fleet.hub.client().await?;
    Ok(epoch)
}

async fn until_restored(fleet: &Fleet, epoch: Option<&str>) -> Result<()> {
    let clusters: Api<Cluster> = fleet.api();
    fleet
        .until(&format!("the cluster to be restored: {epoch:?}"), || async {
            let conditions = clusters.get("east").await?.status.unwrap_or_default().conditions;
            let restored = conditions.iter().find(|condition| condition.type_ == "Restored");
            Ok(match (restored, epoch) {
                (None, None) => Some(()),
                (Some(condition), Some(epoch)) => condition
                    .message
                    .contains(&format!("{CONFIRM_RESTORED}={epoch}"))
                    .then_some(()),
                _ => None,
            })
        })
        .await
}

const KEPT: &str = "the hub does not list this service and has not asked to remove it: its objects are kept";

async fn confirm(fleet: &Fleet, epoch: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {CONFIRM_RESTORED: epoch}}}));
    fleet
        .api::<Cluster>()
        .patch("east", &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// An agent starts and finds objects of a service that the hub doesn't know.
async fn restart_agent(fleet: &mut Fleet) -> Result<()> {
    let agent = fleet.agent("east")?;
    agent.kill9();
    agent.restart()?;
    wait_for("the agent to name the objects that it keeps", PATIENCE, || {
        let log = agent.process().output();
        async move { Ok((log.contains(KEPT) && log.contains("farwater-admin/later")).then_some(())) }
    })
    .await
}

/// The restored database lacks a service that an agent has applied. Its objects stay, even those that are now deleted
/// or leave the source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_of_a_restored_hub_delete_nothing_until_that_is_confirmed() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let map = config_map("a", "one");
    let files = [
        ("known/a.yaml", &*map),
        ("known/b.yaml", &*config_map("b", "one")),
        ("later/a.yaml", &*map),
    ];
    let repository = fleet.repository("infra", &files).await?;
    let commit = repository.branch("main").unwrap_or_default();
    let deleting = json!({"deletionPolicy": "Delete"});
    fleet
        .deploy_with("known", "east", "infra", "known", deleting.clone())
        .await?;
    fleet.until_applied("known", &commit).await?;

    let data = fleet.hub.dir().display().to_string();
    let file = fleet.hub.dir().with_extension("backup").display().to_string();
    done(&["backup", "--data-dir", &data, &file])?;
    fleet.deploy_with("later", "east", "infra", "later", deleting).await?;
    fleet.until_applied("later", &commit).await?;
    let (known, later) = (fleet.namespace("known"), fleet.namespace("later"));
    let before = (objects(plane, &known).await?, objects(plane, &later).await?);
    ensure!(before.0.len() == 2 && before.1.len() == 1, "{before:?}");

    let epoch = go_back(&mut fleet, &data, &file).await?;
    until_restored(&fleet, Some(&epoch)).await?;
    let services: Api<ServiceDeployment> = fleet.api();
    ensure!(services.get_opt("later").await?.is_none(), "the backup is older");
    let in_place = || async { Ok((objects(plane, &known).await?, objects(plane, &later).await?) == before) };
    // Objects that leave the source stay, and the agent reports it.
    repository.change("main", &[("known/b.yaml", None)])?;
    fleet.reconcile("infra").await?;
    let stays = |told: &str| told.contains("left the source and stays");
    fleet
        .until("the agent to report the object that stays", || async {
            let objects = fleet.objects("known").await?;
            ensure!(objects.iter().any(|object| stays(&object.message)), "{objects:?}");
            Ok(Some(()))
        })
        .await?;
    // Objects of deleted services stay, too.
    services.delete("known", &DeleteParams::default()).await?;
    fleet
        .stays("both services' objects are the same ones", "known", in_place)
        .await?;
    until_restored(&fleet, Some(&epoch)).await?;
    ensure!(services.get_opt("known").await?.is_some(), "its deletion waits");
    restart_agent(&mut fleet).await?;
    fleet
        .stays("both services' objects are the same ones", "known", in_place)
        .await?;

    confirm(&fleet, "1").await?;
    fleet.stays("another epoch confirms nothing", "known", in_place).await?;
    confirm(&fleet, &epoch).await?;
    until_restored(&fleet, None).await?;
    fleet
        .until("the deletion to go on", || async {
            Ok(services.get_opt("known").await?.is_none().then_some(()))
        })
        .await?;
    ensure!(objects(plane, &known).await?.is_empty(), "deleted by its policy");
    // Objects without a service are never deleted: the service was forgotten, not deleted. There is no service to plan,
    // so wait for a time.
    fleet
        .always("the forgotten service runs", Duration::from_secs(3), || async {
            Ok(objects(plane, &later).await? == before.1)
        })
        .await?;
    Ok(())
}
