//! Values of Vault in a service of a cluster: they are sealed in transit, stay in use while Vault is away, and follow
//! changes in Vault.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, parameters::ParametersAnswer};
use farwater_e2e::{Fleet, condition, config_map, files_with};
use farwater_testkit::{Launch, Vault, shared};
use serde_json::{Value, json};

const FIRST: &str = "canary-of-vault-31c7";
const SECOND: &str = "canary-of-vault-8e02";

async fn write(vault: &Vault, password: &str) -> Result<Value> {
    vault
        .put(
            "kv/data/team/db",
            &json!({"data": {"password": password, "port": 5432}}),
        )
        .await
}

fn explain(fleet: &Fleet) -> Result<ParametersAnswer> {
    let explained = fleet.cli().expect(0, &["explain", "parameters", "app", "-o", "json"])?;
    Ok(serde_json::from_str(&explained.stdout)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_keeps_the_values_of_a_vault_that_is_away_and_gets_its_new_ones() -> Result<()> {
    let (plane, mut vault) = (shared(1).await?, Vault::start().await?);
    vault
        .put("sys/mounts/kv", &json!({"type": "kv", "options": {"version": "2"}}))
        .await?;
    write(&vault, FIRST).await?;
    let folder = tempfile::tempdir()?;
    let (token, file) = (folder.path().join("token"), folder.path().join("backends.yaml"));
    fs::write(&token, vault.token())?;
    let settings = json!({
        "address": vault.url(), "caFile": vault.ca_file(), "mounts": {"kv": 2}, "auth": {"token": {"file": token}},
    });
    let allow = json!([{"namespaces": [ADMIN_NAMESPACE], "paths": ["kv/team"]}]);
    let backends = json!({"refreshSeconds": 10, "backends": [{"name": "vault", "vault": settings, "allow": allow}]});
    fs::write(&file, backends.to_string())?;
    let launch = Launch::environment(&[("FARWATER_SECRET_BACKENDS", file.to_str().context("a path")?)]);
    let mut fleet = Fleet::launch(launch).await?;
    fleet.join("east", plane).await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    let from = json!({"parameters": [{"from": {"secret": "kv/team/db", "backend": "vault"}, "prefix": "db_"}]});
    fleet.deploy_with("app", "east", "infra", "app", from).await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let answer = explain(&fleet)?;
    let named = |name: &str| {
        answer
            .values
            .iter()
            .find(|value| value.name == name)
            .context("it is handed over")
    };
    let (password, port) = (named("configuration.db_password")?, named("configuration.db_port")?);
    ensure!(
        password.secret && port.secret && password.value.is_none(),
        "{answer:#?}"
    );
    ensure!(password.origin.backend.as_deref() == Some("vault"), "{answer:#?}");

    vault.kill();
    fleet
        .until_condition("app", "SecretsStale", "True", "backend vault: Vault can't be reached")
        .await?;
    ensure!(fleet.counted("farwater_secret_backends_away").await? == 1);
    ensure!(fleet.counted("farwater_secret_references_stale").await? == 1);
    // A hub that restarts meanwhile still has the values.
    fleet.hub.restart().await?;
    let answer = explain(&fleet)?;
    ensure!(
        answer.problems.is_empty()
            && answer
                .values
                .iter()
                .any(|value| value.name == "configuration.db_password")
    );
    let status = fleet.service("app").await?.status.unwrap_or_default();
    ensure!(condition(&status.conditions, "Ready") == Some("True"), "{status:#?}");

    let resolved = fleet.counted("farwater_parameters_resolved_total").await?;
    vault.restart().await?;
    write(&vault, SECOND).await?;
    fleet
        .until("the new value to be taken up", || async {
            Ok((fleet.counted("farwater_parameters_resolved_total").await? > resolved).then_some(()))
        })
        .await?;
    fleet
        .until("nothing to be old any more", || async {
            let status = fleet.service("app").await?.status.unwrap_or_default();
            let is_well = condition(&status.conditions, "SecretsStale").is_none();
            Ok((is_well && condition(&status.conditions, "Ready") == Some("True")).then_some(()))
        })
        .await?;
    let all = fleet.hub.dir().parent().context("a folder")?;
    let found = files_with(all, &[FIRST, SECOND])?;
    ensure!(found.is_empty(), "in the clear: {found:?}");
    Ok(())
}
