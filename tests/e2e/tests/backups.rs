//! Backups of a running hub, and what a restore means to watchers and agents.

use std::{path::Path, process::Output};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{Hub, Postgres, postgres, process::bare_command};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{PostParams, WatchEvent, WatchParams},
};
use serde_json::json;

/// `farwater admin …` as an operator runs it.
fn admin(arguments: &[&str]) -> Result<Output> {
    let mut command = bare_command(farwater_testkit::farwater::program("farwater")?);
    command.arg("admin").args(arguments).output().context("run farwater admin")
}

fn done(arguments: &[&str]) -> Result<String> {
    let output = admin(arguments)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "farwater admin {arguments:?}: {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &said)
}

fn refused(arguments: &[&str], code: i32, why: &str) -> Result<()> {
    let output = admin(arguments)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(code) && said.contains(why), "{arguments:?}: {}: {said}", output.status);
    ensure!(!said.contains(postgres::PASSWORD), "the password is in {said}");
    Ok(())
}

fn config_map(name: &str, value: &str) -> Result<ConfigMap> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": value}}))?)
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
    let (data, file) = (hub.dir().display().to_string(), dir.join("backup").display().to_string());
    let store = [&["--data-dir", &*data], database].concat();
    let with = |name: &'static str, more: &[&'static str]| [vec![name], store.clone(), more.to_vec()].concat();
    let api = maps(&hub).await?;
    api.create(&PostParams::default(), &config_map("kept", "old")?).await?;
    done(&[with("backup", &[]), vec![&*file]].concat())?;
    refused(&[with("backup", &[]), vec![&*file]].concat(), 2, "there is a file already")?;
    done(&with("fsck", &[]))?;
    api.create(&PostParams::default(), &config_map("forgotten", "new")?).await?;
    let version = api.list(&Default::default()).await?.metadata.resource_version.context("a version")?;
    refused(&[with("restore", &["--force"]), vec![&*file]].concat(), 5, "stop the hub first")?;

    hub.stop()?;
    refused(&[with("restore", &[]), vec![&*file]].concat(), 5, "--force replaces it")?;
    let said = done(&[with("restore", &["--force"]), vec![&*file]].concat())?;
    ensure!(said.contains("confirm-restored="), "{said}");
    done(&with("fsck", &[]))?;
    hub.restart().await?;

    let api = maps(&hub).await?;
    ensure!(api.get_opt("forgotten").await?.is_none());
    ensure!(api.get("kept").await?.data.context("data")?["value"] == "old");
    // Whoever watched before the restore is told to list again, not shown the past.
    let stream = api.watch(&WatchParams::default().timeout(5), &version).await?;
    let first = std::pin::pin!(stream).next().await.context("an answer")?;
    let gone = match &first {
        Ok(WatchEvent::Error(status)) => status.code == 410,
        Err(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    };
    ensure!(gone, "{first:?}");
    let list = api.list(&Default::default()).await?.metadata.resource_version.context("a version")?;
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
    let (passwords, file) = (passwords.display().to_string(), data.join("hub.db").display().to_string());

    let mut hub = Hub::start(&data).await?;
    let api = maps(&hub).await?;
    let made = api.create(&PostParams::default(), &config_map("a", "1")?).await?;
    let copy = ["copy-store", "--from", &file, "--to", &url, "--to-password-file", &passwords];
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
    api.create(&PostParams::default(), &config_map("b", "2")?).await?;
    let log = hub.process().output();
    ensure!(!log.contains(postgres::PASSWORD), "the password is in the log");
    hub.stop()?;
    drop(hub);
    // The directory knows where its database lies.
    let data_dir = data.display().to_string();
    refused(&["fsck", "--data-dir", &data_dir], 2, "name it with --database")?;
    done(&["copy-store", "--from", &url, "--from-password-file", &passwords, "--to", &file])?;

    let hub = Hub::start(&data).await?;
    ensure!(maps(&hub).await?.get("b").await?.data.context("data")?["value"] == "2");
    Ok(())
}
