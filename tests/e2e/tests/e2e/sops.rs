//! Files in Git that SOPS has encrypted for a cluster. Only its agent opens them, and plain text is only in its API
//! server.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Cluster, RENEW_KEYS};
use farwater_e2e::{
    Fleet, condition, config_map, files_with,
    sops::{age_key, encrypt, until_age_key},
};
use farwater_testkit::{Tools, process::bare_command, shared};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const FIRST: &str = "canary-first-4b1c";
const SECOND: &str = "canary-second-9d2e";
const IN_MAP: &str = "canary-of-a-map-77f0";
/// Base64, as in a Secret's data.
const FIRST_BASE64: &str = "Y2FuYXJ5LWZpcnN0LTRiMWM=";
const SECOND_BASE64: &str = "Y2FuYXJ5LXNlY29uZC05ZDJl";
const ALL: [&str; 5] = [FIRST, SECOND, IN_MAP, FIRST_BASE64, SECOND_BASE64];

fn secret(password: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: database}}\nstringData: {{password: {password}}}\n")
}

/// Files of hub and agent, with their logs.
fn places_with(fleet: &Fleet) -> Result<Vec<String>> {
    let mut found = files_with(fleet.hub.dir().parent().unwrap_or(Path::new("/")), &ALL)?;
    found.extend(files_with(&fleet.state_dir("east"), &ALL)?);
    Ok(found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_sops_are_opened_by_their_cluster_and_are_plain_nowhere_else() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let recipient = until_age_key(&fleet, "east").await?;
    ensure!(recipient.starts_with("age1"), "{recipient}");
    let map =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{url: db://{IN_MAP}@db}}\n");
    let (first, map) = (encrypt(&recipient, &secret(FIRST))?, encrypt(&recipient, &map)?);
    ensure!(!first.contains(FIRST) && !map.contains(IN_MAP));
    let plain = config_map("plain", "one");
    let files = [
        ("app/secret.yaml", first.as_str()),
        ("app/map.yaml", &map),
        ("app/plain.yaml", &plain),
    ];
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").context("a branch")?)
        .await?;
    let namespace = fleet.namespace("app");
    let secrets: Api<Secret> = Api::namespaced(plane.client().await?, &namespace);
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    let password = async || -> Result<String> {
        let data = secrets.get("database").await?.data.unwrap_or_default();
        Ok(String::from_utf8_lossy(&data.get("password").context("a password")?.0).into_owned())
    };
    ensure!(password().await? == FIRST);
    ensure!(maps.get("settings").await?.data.unwrap_or_default()["url"] == format!("db://{IN_MAP}@db"));

    // A plan shows that values change, but not the new values, whatever kind of object has them.
    let local = tempfile::tempdir()?;
    fs::write(local.path().join("secret.yaml"), encrypt(&recipient, &secret(SECOND))?)?;
    let changed = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{url: db://{SECOND}@db, port: '1'}}\n"
    );
    fs::write(local.path().join("map.yaml"), encrypt(&recipient, &changed)?)?;
    fs::write(local.path().join("plain.yaml"), config_map("plain", "two"))?;
    let folder = local.path().to_str().context("a path")?;
    let told = fleet
        .cli()
        .expect(1, &["plan", "app", "-o", "json", "--local", folder])?;
    let told = format!("{}{}", told.stdout, told.stderr);
    ensure!(told.contains("hmac:") && told.contains("\"\\\"two\\\"\""), "{told}");
    ensure!(ALL.iter().all(|canary| !told.contains(canary)), "{told}");

    // A manipulated file changes only the service's condition.
    let altered = first.replace("name: database", "name: databases");
    repository.change("main", &[("app/secret.yaml", Some(&altered))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_condition(
            "app",
            "Ready",
            "False",
            "app/secret.yaml is encrypted with SOPS: its MAC is not",
        )
        .await?;
    fleet
        .stays("the Secret stays", "app", || async { Ok(password().await? == FIRST) })
        .await?;
    ensure!(secrets.get_opt("databases").await?.is_none());

    // A new value, and new keys of the agent: files for the old keys can still be opened.
    let commit = repository.change(
        "main",
        &[("app/secret.yaml", Some(&encrypt(&recipient, &secret(SECOND))?))],
    )?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    ensure!(password().await? == SECOND);
    let clusters: Api<Cluster> = fleet.api();
    let renew = json!({"metadata": {"annotations": {RENEW_KEYS: "now"}}});
    clusters
        .patch("east", &PatchParams::default(), &Patch::Merge(renew))
        .await?;
    fleet
        .until("the cluster's key to be another", || async {
            Ok((age_key(&fleet, "east")? != recipient).then_some(()))
        })
        .await?;
    let commit = repository.change("main", &[("app/plain.yaml", Some(&config_map("plain", "three")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    ensure!(password().await? == SECOND);
    let next = age_key(&fleet, "east")?;
    let commit = repository.change("main", &[("app/secret.yaml", Some(&encrypt(&next, &secret(FIRST))?))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    ensure!(password().await? == FIRST);

    // Without the hub and its state directory, the agent opens them again.
    fleet.hub.kill9();
    fleet.agent("east")?.kill9();
    fs::remove_dir_all(fleet.state_dir("east"))?;
    secrets.delete("database", &Default::default()).await?;
    fleet.agent("east")?.restart()?;
    fleet
        .until("the Secret to be made again", || async {
            Ok(password().await.is_ok().then_some(()))
        })
        .await?;
    fleet.hub.restart().await?;

    // A file only for another cluster.
    let other = bare_command(Tools::find_sops()?.age_keygen()).output()?;
    let other = String::from_utf8(other.stdout)?;
    let other = other
        .lines()
        .find_map(|line| line.strip_prefix("# public key: "))
        .context("a recipient")?;
    repository.change("main", &[("app/secret.yaml", Some(&encrypt(other, &secret(SECOND))?))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_condition("app", "Ready", "False", "and to no key of this cluster")
        .await?;
    fleet
        .stays("the Secret stays", "app", || async { Ok(password().await? == FIRST) })
        .await?;

    let shown = [
        fleet.cli().kubectl(&[
            "get",
            "servicedeployments.farwater.dev,clusters.farwater.dev,events",
            "-A",
            "-o",
            "yaml",
        ])?,
        fleet.cli().run(&["why", "app"])?.stdout,
        fleet.cli().run(&["objects", "app"])?.stdout,
        fleet.cli().run(&["history", "app"])?.stdout,
    ];
    ensure!(
        ALL.iter().all(|canary| shown.iter().all(|text| !text.contains(canary))),
        "{shown:?}"
    );
    let service = fleet.service("app").await?;
    ensure!(condition(&service.status.unwrap_or_default().conditions, "Ready") == Some("False"));
    let found = places_with(&fleet)?;
    ensure!(found.is_empty(), "in the clear: {found:?}");
    let own: Api<Secret> = Api::namespaced(plane.client().await?, "farwater-system");
    for secret in own.list(&ListParams::default()).await? {
        let text = serde_json::to_value(&secret)?;
        let held = text["data"]
            .as_object()
            .into_iter()
            .flatten()
            .any(|(_, value)| holds(value));
        ensure!(!held, "in the clear: {:?}", secret.metadata.name);
    }
    Ok(())
}

/// Whether the data of a Secret, which is base64, contains a value.
fn holds(value: &Value) -> bool {
    let bytes: k8s_openapi::ByteString = serde_json::from_value(value.clone()).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes.0).into_owned();
    ALL.iter().any(|canary| text.contains(canary))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_values_file_reaches_its_chart_and_no_disk() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let recipient = until_age_key(&fleet, "east").await?;
    let values = encrypt(&recipient, &format!("size: small\ndata: {{password: {FIRST}}}\n"))?;
    ensure!(values.contains("size: small") && !values.contains(FIRST), "{values}");
    let template = "apiVersion: v1\nkind: Secret\nmetadata: {name: database}\nstringData:\n  password: {{ .Values.data.password }}\n  \
                    url: db://{{ .Values.size }}:{{ .Values.data.password }}@db\n";
    let files = [
        ("shop/Chart.yaml", "apiVersion: v2\nname: shop\nversion: 1.0.0\n"),
        ("shop/secrets.yaml", values.as_str()),
        ("shop/templates/secret.yaml", template),
    ];
    let repository = fleet.repository("infra", &files).await?;
    let stated = json!({"renderers": [{"helm": {"valuesFiles": ["secrets.yaml"]}}]});
    fleet.deploy_with("shop", "east", "infra", "shop", stated).await?;
    fleet
        .until_applied("shop", &repository.branch("main").context("a commit")?)
        .await?;
    let secrets: Api<Secret> = Api::namespaced(plane.client().await?, &fleet.namespace("shop"));
    let data = secrets.get("database").await?.data.unwrap_or_default();
    let value = |key: &str| {
        data.get(key)
            .map(|value| String::from_utf8_lossy(&value.0).into_owned())
    };
    ensure!(value("password") == Some(FIRST.to_owned()), "{:?}", value("password"));
    ensure!(
        value("url") == Some(format!("db://small:{FIRST}@db")),
        "{:?}",
        value("url")
    );
    let found = places_with(&fleet)?;
    ensure!(found.is_empty(), "in the clear: {found:?}");
    let kept = fs::read_dir(fleet.state_dir("east").join("rendered"))?.count();
    ensure!(kept == 0, "{kept} renders are kept, and they are compressed");

    // A chart without these files reports that, and running objects stay.
    let other = bare_command(Tools::find_sops()?.age_keygen()).output()?;
    let other = String::from_utf8(other.stdout)?;
    let other = other
        .lines()
        .find_map(|line| line.strip_prefix("# public key: "))
        .context("a recipient")?;
    let foreign = encrypt(other, &format!("size: small\ndata: {{password: {SECOND}}}\n"))?;
    repository.change("main", &[("shop/secrets.yaml", Some(&foreign))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_condition(
            "shop",
            "Ready",
            "False",
            "value data.password of chart shop is still encrypted",
        )
        .await?;
    ensure!(secrets.get("database").await?.data.unwrap_or_default() == data);
    Ok(())
}
