//! Change windows, with the real hub, agent and API server.

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::shared;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::DeleteParams};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_freeze_holds_what_is_new_and_keeps_what_runs_also_while_the_hub_is_away() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("app", "west", "infra", "app").await?;
    fleet.until_value(plane, "one").await?;

    let cli = fleet.cli();
    let reason = ["--reason", "holidays", "-n", "farwater-admin"];
    cli.expect(
        0,
        &[&["freeze", "--for", "1h", "--name", "winter"][..], &reason[..]].concat(),
    )?;
    repository.change("main", &[("app/a.yaml", Some(&config_map("a", "two")))])?;
    fleet.reconcile("infra").await?;
    let told = "ChangeWindow farwater-admin/winter lets no change begin";
    fleet.until_condition("app", "Frozen", "True", told).await?;
    let why = cli.run(&["why", "app", "-n", "farwater-admin"])?;
    ensure!(
        why.stdout.contains(" waits: ChangeWindow farwater-admin/winter") && why.stdout.contains("holidays"),
        "{why:?}"
    );

    // Drift is corrected, with and without the hub.
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    maps.delete("a", &DeleteParams::default()).await?;
    fleet.until_value(plane, "one").await?;
    fleet.hub.kill9();
    maps.delete("a", &DeleteParams::default()).await?;
    fleet.until_value(plane, "one").await?;
    fleet.hub.restart().await?;
    fleet
        .stays("what runs is as it was", "app", || async {
            Ok(fleet.value(plane).await?.as_deref() == Some("one"))
        })
        .await?;

    cli.expect(
        0,
        &[
            "freeze",
            "--override",
            "app",
            "--reason",
            "a hole",
            "-n",
            "farwater-admin",
        ],
    )?;
    fleet.until_value(plane, "two").await?;
    let status = fleet.service("app").await?.status.context("a status")?;
    ensure!(status.overridden_by.is_some(), "{status:?}");
    Ok(())
}
