//! Rollback to a working version from a service's history, whatever happened to its source.

use anyhow::{Context as _, Result, ensure};
use farwater_api::{GitRepository, ServiceDeployment};
use farwater_e2e::{Fleet, condition, config_map};
use farwater_testkit::{Plane, git::Repository, shared};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::Value;

const GOOD: &str = "good";
/// A name that the API server refuses.
const BAD: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name}\n";

/// Versions as `farwater history` prints them, the newest first.
fn versions(fleet: &Fleet) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(
        &fleet.cli().expect(0, &["history", "app", "-o", "json"])?.stdout,
    )?)
}

/// Number, cause and result of each version.
fn history(fleet: &Fleet) -> Result<Vec<(u64, String, String)>> {
    let entries = versions(fleet)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(entries
        .iter()
        .map(|e| (e["number"].as_u64().unwrap_or(0), text(&e["cause"]), text(&e["result"])))
        .collect())
}

fn told(history: &[(u64, String, String)]) -> Vec<(u64, &str, &str)> {
    history
        .iter()
        .map(|(number, cause, result)| (*number, cause.as_str(), result.as_str()))
        .collect()
}

/// A service whose first version is healthy and whose second one fails.
async fn failing(plane: &Plane) -> Result<(Fleet, Repository, [String; 2])> {
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", GOOD))])
        .await?;
    let first = repository.branch("main").context("a commit")?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet.until_applied("app", &first).await?;
    let second = repository.change(
        "main",
        &[("app/a.yaml", Some(&config_map("a", "bad"))), ("app/b.yaml", Some(BAD))],
    )?;
    fleet.reconcile("infra").await?;
    fleet.until_condition("app", "Stalled", "True", "Not_A_Name").await?;
    fleet.until_value(plane, "bad").await?;
    Ok((fleet, repository, [first, second]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_outlives_its_upstream_and_the_hubs_restart() -> Result<()> {
    let plane = shared(1).await?;
    let (mut fleet, repository, [first, second]) = failing(plane).await?;
    let before = [(2, "Commit", "Failed"), (1, "Created", "Healthy")];
    fleet
        .until("the history to say it", || async {
            Ok((told(&history(&fleet)?) == before).then_some(()))
        })
        .await?;

    let cli = fleet.cli();
    let ran = cli.expect(
        0,
        &[
            "rollback",
            "app",
            "--reason",
            "it crashes",
            "--wait",
            "--timeout",
            "90s",
        ],
    )?;
    ensure!(
        ran.stdout.contains(&format!("pinned to version 1: main@sha1:{first}")),
        "{ran:?}"
    );
    ensure!(
        fleet.value(plane).await?.as_deref() == Some(GOOD),
        "the rolled back version does not run"
    );
    let service = fleet.until_condition("app", "Pinned", "True", "it crashes").await?;
    let status = service.status.unwrap_or_default();
    ensure!(condition(&status.conditions, "Ready") == Some("True"));
    ensure!(
        status.held_revision.is_some_and(|held| held.ends_with(&second)),
        "the held revision is not named"
    );
    let by = status.pinned_by.context("who pinned it")?;
    ensure!(history(&fleet)?[0].1 == "Pinned");
    let entries = versions(&fleet)?;
    ensure!(
        entries[0]["by"] == by.as_str() && entries[2]["by"] == by.as_str(),
        "{entries:#?}"
    );
    ensure!(
        entries[1]["by"].is_null() && entries[1]["author"] == "Test <test@example.com>",
        "{entries:#?}"
    );
    let ran = cli.expect(0, &["history", "app"])?;
    ensure!(ran.stdout.contains(&format!("rollback by {by}")), "{ran:?}");
    let why = cli.why("app")?;
    let pinned = why["evidence"][0].as_str().unwrap_or_default();
    ensure!(
        why["standing"] == "healthy" && pinned.contains(&by) && pinned.contains(&second),
        "{why:#}"
    );

    // The repository and its resource are deleted, hub and agent restart, and the agent has lost its state.
    fleet.git.stop().await;
    fleet
        .api::<GitRepository>()
        .delete("infra", &DeleteParams::default())
        .await?;
    fleet.hub.restart().await?;
    fleet.agent("east")?.kill9();
    std::fs::remove_dir_all(fleet.state_dir("east").join("bundles"))?;
    fleet.agent("east")?.restart()?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    maps.delete("a", &DeleteParams::default()).await?;
    fleet.until_value(plane, GOOD).await?;
    fleet
        .stays("the pinned version stands", "app", || async {
            let ready = fleet.service("app").await?.status.unwrap_or_default();
            Ok(fleet.value(plane).await?.as_deref() == Some(GOOD)
                && ready.pinned_by.as_deref() == Some(by.as_str())
                && condition(&ready.conditions, "Stalled").is_none())
        })
        .await?;

    // The repository is back with a fix. The service gets it when the pin is removed, and not before.
    fleet.git.resume().await?;
    let fixed = repository.change(
        "main",
        &[("app/a.yaml", Some(&config_map("a", "fixed"))), ("app/b.yaml", None)],
    )?;
    let spec = serde_json::from_value(serde_json::json!({"url": fleet.git.url("infra")}))?;
    fleet
        .api()
        .create(&Default::default(), &GitRepository::new("infra", spec))
        .await?;
    fleet
        .until_service("app", "hold the fix back", |s| {
            s.status
                .as_ref()
                .and_then(|s| s.held_revision.as_deref())
                .is_some_and(|held| held.ends_with(&fixed))
        })
        .await?;
    ensure!(fleet.value(plane).await?.as_deref() == Some(GOOD));
    let ran = cli.expect(0, &["rollback", "app", "--clear", "--wait", "--timeout", "90s"])?;
    ensure!(ran.stdout.contains("unpinned"), "{ran:?}");
    fleet.until_applied("app", &fixed).await?;
    fleet.until_value(plane, "fixed").await?;
    let status = fleet.service("app").await?.status.unwrap_or_default();
    ensure!(status.pinned_by.is_none() && status.held_revision.is_none());
    let unpinned = &versions(&fleet)?[0];
    ensure!(
        unpinned["cause"] == "Unpinned" && unpinned["by"] == by.as_str(),
        "{unpinned:#}"
    );

    // Another folder with the same files is also a version, of the user who set it.
    let copied = repository.change("main", &[("lib/a.yaml", Some(&config_map("a", "moved")))])?;
    fleet.reconcile("infra").await?;
    let patch = Patch::Merge(serde_json::json!({"spec": {"path": "lib"}}));
    fleet
        .api::<ServiceDeployment>()
        .patch("app", &PatchParams::default(), &patch)
        .await?;
    fleet.until_assigned("app", &copied).await?;
    let moved = &versions(&fleet)?[0];
    ensure!(moved["cause"] == "Spec" && moved["by"] == by.as_str(), "{moved:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_is_named_by_hand_and_one_that_never_was_is_refused() -> Result<()> {
    let plane = shared(2).await?;
    let (fleet, _repository, [first, second]) = failing(plane).await?;
    let cli = fleet.cli();
    let ran = cli.run(&["rollback", "app", "--to", "99"])?;
    ensure!(
        ran.code != 0 && ran.stderr.contains("its history has no version \"99\""),
        "{ran:?}"
    );
    cli.expect(0, &["rollback", "app", "--to", &second[..10]])?;
    fleet.until_condition("app", "Pinned", "True", &second).await?;
    cli.expect(0, &["rollback", "app", "--to", &first[..10]])?;
    fleet.until_applied("app", &first).await?;

    // With kubectl, like any field. A digest that was never assigned is refused with the reason.
    let none = format!("sha256:{}", "0".repeat(64));
    let pin = |bundle: &str| format!("{{\"spec\":{{\"pin\":{{\"bundle\":\"{bundle}\"}}}}}}");
    let refused = cli.kubectl(&[
        "patch",
        "sd",
        "app",
        "-n",
        "farwater-admin",
        "--type=merge",
        "-p",
        &pin(&none),
    ]);
    let refused = format!("{:#}", refused.err().context("the pin was taken")?);
    ensure!(
        refused.contains("spec.pin.bundle") && refused.contains("is not in the history"),
        "{refused}"
    );
    let path = "/apis/farwater.dev/v1alpha1/namespaces/farwater-admin/servicedeployments/app/history";
    let list: Value = serde_json::from_str(&cli.kubectl(&["get", "--raw", path])?)?;
    ensure!(list["kind"] == "HistoryEntryList", "{list:#}");
    let newest = list["items"][0]["bundle"].as_str().context("a bundle")?;
    cli.kubectl(&[
        "patch",
        "sd",
        "app",
        "-n",
        "farwater-admin",
        "--type=merge",
        "-p",
        &pin(newest),
    ])?;
    let remove = [
        "patch",
        "sd",
        "app",
        "-n",
        "farwater-admin",
        "--type=json",
        "-p",
        "[{\"op\":\"remove\",\"path\":\"/spec/pin\"}]",
    ];
    cli.kubectl(&remove)?;
    fleet.until_condition("app", "Stalled", "True", "Not_A_Name").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspension_keeps_what_stands_and_goes_on_when_it_is_over() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", GOOD))])
        .await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let cli = fleet.cli();
    cli.expect(0, &["suspend", "app", "--reason", "a move", "--for", "15s"])?;
    let service = fleet.until_condition("app", "Ready", "Unknown", "a move").await?;
    ensure!(service.status.unwrap_or_default().suspended_by.is_some());
    let next = repository.change("main", &[("app/a.yaml", Some(&config_map("a", "next")))])?;
    fleet.reconcile("infra").await?;
    let why = cli.why("app")?;
    ensure!(
        why["sentence"].as_str().unwrap_or_default().contains("a move"),
        "{why:#}"
    );
    // The pinned version is kept: drift is corrected.
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    api.delete("a", &DeleteParams::default()).await?;
    fleet.until_value(plane, GOOD).await?;
    fleet.until_applied("app", &next).await?;
    fleet.until_value(plane, "next").await?;

    cli.expect(0, &["suspend", "app", "--reason", "for good", "--indefinitely"])?;
    fleet.until_condition("app", "Ready", "Unknown", "for good").await?;
    cli.expect(0, &["resume", "app"])?;
    let is_resumed = |s: &ServiceDeployment| s.status.as_ref().is_some_and(|s| s.suspended_by.is_none());
    fleet.until_service("app", "be resumed", is_resumed).await?;
    fleet.until_applied("app", &next).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_database_holds_back_what_depends_on_it_and_goes_last() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let files = [
        ("db/a.yaml", config_map("db", "one")),
        ("web/a.yaml", config_map("web", "one")),
    ];
    let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let repository = fleet.repository("infra", &files).await?;
    let delete = serde_json::json!({"deletionPolicy": "Delete"});
    let on_db = serde_json::json!({"deletionPolicy": "Delete", "dependsOn": [{"name": "db"}]});
    fleet.deploy_with("web", "west", "infra", "web", on_db).await?;
    fleet
        .until_condition(
            "web",
            "Reconciling",
            "True",
            "waits for service db, which does not exist",
        )
        .await?;
    fleet.deploy_with("db", "west", "infra", "db", delete).await?;
    fleet
        .until_applied("web", &repository.branch("main").unwrap_or_default())
        .await?;

    let cli = fleet.cli();
    let cycle = "{\"spec\":{\"dependsOn\":[{\"name\":\"web\"}]}}";
    let refused = cli.kubectl(&["patch", "sd", "db", "-n", "farwater-admin", "--type=merge", "-p", cycle]);
    let refused = format!("{:#}", refused.err().context("the cycle was taken")?);
    ensure!(refused.contains("db → web → db"), "{refused}");

    let next = config_map("web", "two");
    let newer = repository.change("main", &[("db/b.yaml", Some(BAD)), ("web/a.yaml", Some(&next))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_condition("web", "Reconciling", "True", "waits for service db")
        .await?;
    let why = cli.run(&["why", "web"])?;
    ensure!(why.stdout.contains("waits for service db"), "{why:?}");
    fleet.until_condition("db", "Stalled", "True", "Not_A_Name").await?;
    fleet.until_condition("web", "Ready", "False", "Not_A_Name").await?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("web"));
    let web = maps.get("web").await?.data.unwrap_or_default();
    ensure!(
        web.get("value").is_some_and(|value| value == "one"),
        "a waiting change was delivered: {web:?}"
    );
    let fixed = repository.change("main", &[("db/b.yaml", None)])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("db", &fixed).await?;
    fleet.until_applied("web", &newer).await?;
    ensure!(
        maps.get("web")
            .await?
            .data
            .unwrap_or_default()
            .get("value")
            .is_some_and(|value| value == "two")
    );

    cli.kubectl(&["delete", "sd", "db", "-n", "farwater-admin", "--wait=false"])?;
    fleet
        .until_condition("db", "Ready", "False", "web depends on it and goes first")
        .await?;
    let database: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("db"));
    ensure!(database.get_opt("db").await?.is_some());
    cli.kubectl(&["delete", "sd", "web", "-n", "farwater-admin"])?;
    let services: Api<ServiceDeployment> = fleet.api();
    fleet
        .until("db to be gone", || async {
            Ok(services.get_opt("db").await?.is_none().then_some(()))
        })
        .await?;
    ensure!(database.get_opt("db").await?.is_none() && maps.get_opt("web").await?.is_none());
    Ok(())
}
