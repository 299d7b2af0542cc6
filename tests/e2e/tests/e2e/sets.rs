//! One service on several clusters, with the real hub, agents and API servers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, Cluster, ServiceSet};
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::{Plane, git::Repository, shared};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// A name that the API server refuses.
const BAD: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name}\n";

/// Output and exit code of `farwater rollout status`.
fn status(fleet: &Fleet) -> Result<(i32, Value)> {
    let ran = fleet
        .cli()
        .run(&["rollout", "status", "web", "-n", ADMIN_NAMESPACE, "-o", "json"])?;
    Ok((ran.code, serde_json::from_str(&ran.stdout).unwrap_or_default()))
}

async fn until_phase(fleet: &Fleet, phase: &str) -> Result<Value> {
    fleet
        .until(&format!("the rollout to be {phase}"), || async {
            let (_, told) = status(fleet)?;
            Ok((told["rollout"]["phase"] == phase).then_some(told))
        })
        .await
}

/// A person's commands, one after the other. Only the latest one counts.
async fn take_orders(fleet: &Fleet, repository: &Repository, (east, west): (&Plane, &Plane)) -> Result<()> {
    let soak = async |soak: &str| {
        let patch = Patch::Merge(json!({"spec": {"rollout": {"soak": soak}}}));
        fleet
            .api::<ServiceSet>()
            .patch("web", &PatchParams::default(), &patch)
            .await
            .map(drop)
    };
    let commit = async |value: &str| {
        repository.change("main", &[("app/a.yaml", Some(&config_map("a", value)))])?;
        fleet.reconcile("infra").await?;
        fleet.until_value(east, value).await?;
        until_phase(fleet, "Progressing").await.map(drop)
    };
    let order = |words: &[&str]| {
        let all = [&["rollout"], words, &["-n", ADMIN_NAMESPACE]].concat();
        fleet.cli().expect(0, &all).map(drop)
    };
    // A cluster that is healthy at that moment stops soaking. The next one may become healthy a moment later.
    let promote = async |reason: &str| {
        fleet
            .until("the rollout to be promoted", || async {
                let is_over = status(fleet)?.1["rollout"]["phase"] == "Complete";
                if !is_over {
                    order(&["promote", "web", "--reason", reason])?;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Ok(is_over.then_some(()))
            })
            .await
    };
    soak("1h").await?;
    commit("one").await?;
    promote("it is urgent").await?;
    fleet.until_value(west, "one").await?;

    commit("two").await?;
    order(&["abort", "web", "--reason", "it is slow"])?;
    fleet.until_value(east, "one").await?;
    until_phase(fleet, "Aborted").await?;

    commit("three").await?;
    order(&[
        "skip",
        "web",
        "--cluster",
        "farwater-admin/east",
        "--reason",
        "it is mended by hand",
    ])?;
    fleet.until_value(west, "three").await?;
    ensure!(
        fleet.value(east).await?.as_deref() == Some("three"),
        "nothing is taken back by an order that is over"
    );
    promote("the other is fine").await?;
    let history = fleet
        .cli()
        .expect(0, &["history", "serviceset/web", "-n", ADMIN_NAMESPACE])?
        .stdout;
    for said in [
        "it is urgent",
        "it is slow",
        "skip farwater-admin/east",
        "it is mended by hand",
        "the other is fine",
    ] {
        ensure!(history.contains(said), "{said}: {history}");
    }
    soak("2s").await?;
    repository.change("main", &[("app/a.yaml", Some(&config_map("a", "good")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_value(west, "good").await
}

/// A set of one service on two clusters. The first one is the canary, and both have the first commit.
async fn set_on(east: &Plane, west: &Plane) -> Result<(Fleet, Repository)> {
    let mut fleet = Fleet::start().await?;
    for (name, plane) in [("east", east), ("west", west)] {
        fleet.join(name, plane).await?;
        let patch = Patch::Merge(json!({"metadata": {"labels": {"env": "prod", "zone": name}}}));
        fleet
            .api::<Cluster>()
            .patch(name, &PatchParams::default(), &patch)
            .await?;
    }
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "good"))])
        .await?;
    let spec = json!({
        "clusterSelector": {"matchLabels": {"env": "prod"}},
        "parameters": [{"name": "zone", "fromLabel": "zone"}],
        "rollout": {"soak": "2s", "failAfter": "1s", "canary": {"clusterSelector": {"matchLabels": {"zone": "east"}}}},
        "template": {"spec": {"targetNamespace": fleet.namespace("app"), "sourceRef": {"name": "infra"}, "path": "app"}},
    });
    let set = ServiceSet::new("web", serde_json::from_value(spec)?);
    fleet.api::<ServiceSet>().create(&PostParams::default(), &set).await?;
    fleet.until_value(east, "good").await?;
    fleet.until_value(west, "good").await?;
    until_phase(&fleet, "Complete").await?;
    Ok((fleet, repository))
}

/// The canary fails with a commit that the API server refuses.
async fn commit_what_is_bad(fleet: &Fleet, repository: &Repository) -> Result<Value> {
    repository.change(
        "main",
        &[("app/a.yaml", Some(&config_map("a", "bad"))), ("app/b.yaml", Some(BAD))],
    )?;
    fleet.reconcile("infra").await?;
    until_phase(fleet, "Halted").await
}

async fn commit_the_fix(fleet: &Fleet, repository: &Repository, clusters: [&Plane; 2]) -> Result<()> {
    repository.change(
        "main",
        &[("app/a.yaml", Some(&config_map("a", "fixed"))), ("app/b.yaml", None)],
    )?;
    fleet.reconcile("infra").await?;
    for cluster in clusters {
        fleet.until_value(cluster, "fixed").await?;
    }
    until_phase(fleet, "Complete").await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_commit_stays_on_one_cluster_while_the_other_is_kept_as_it_was() -> Result<()> {
    let (east, west) = (shared(1).await?, shared(2).await?);
    let (fleet, repository) = set_on(east, west).await?;
    ensure!(status(&fleet)?.0 == 0);
    let service = fleet.service("web-west").await?;
    ensure!(
        service.spec.configuration.get("zone").map(String::as_str) == Some("west"),
        "{service:#?}"
    );
    let quiet = fleet
        .cli()
        .expect(0, &["plan", "serviceset/web", "-n", ADMIN_NAMESPACE])?;
    ensure!(quiet.stdout.contains("2 unchanged"), "{quiet:?}");

    let halted = commit_what_is_bad(&fleet, &repository).await?;
    ensure!(halted["rollout"]["haltedBy"] == "farwater-admin/east", "{halted:#}");
    let ran = fleet.cli().run(&["rollout", "status", "web", "-n", ADMIN_NAMESPACE])?;
    ensure!(
        ran.code == 1 && ran.stdout.contains("halted by farwater-admin/east"),
        "{ran:?}"
    );
    ensure!(ran.stdout.contains("farwater-admin/west"), "{ran:?}");
    let why = fleet.cli().run(&["why", "web-west", "-n", ADMIN_NAMESPACE])?;
    ensure!(
        why.code == 1
            && why
                .stdout
                .contains("the rollout is halted, since farwater-admin/east failed"),
        "{why:?}"
    );
    // Meanwhile the other cluster keeps its version.
    let maps: Api<ConfigMap> = Api::namespaced(west.client().await?, &fleet.namespace("app"));
    maps.delete("a", &DeleteParams::default()).await?;
    fleet.until_value(west, "good").await?;
    fleet
        .stays("the other cluster is as it was", "web-west", || async {
            Ok(fleet.value(west).await?.as_deref() == Some("good"))
        })
        .await?;

    commit_the_fix(&fleet, &repository, [east, west]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_takes_orders_says_what_a_branch_reaches_and_goes_back() -> Result<()> {
    let (east, west) = (shared(1).await?, shared(2).await?);
    let (fleet, repository) = set_on(east, west).await?;
    take_orders(&fleet, &repository, (east, west)).await?;
    let good = until_phase(&fleet, "Complete").await?["rollout"]["number"].clone();
    commit_what_is_bad(&fleet, &repository).await?;
    commit_the_fix(&fleet, &repository, [east, west]).await?;

    // The impact of a branch is shown before it is merged, with the plan for one of the clusters.
    repository.set_ref(
        "refs/heads/feature",
        &repository.branch("main").context("there is no main")?,
    )?;
    repository.change("feature", &[("app/a.yaml", Some(&config_map("a", "next")))])?;
    let reach = fleet
        .cli()
        .expect(1, &["impact", "feature", "-n", ADMIN_NAMESPACE, "--plan"])?;
    ensure!(
        reach.stdout.contains("2 of 2 services change, on 2 clusters"),
        "{reach:?}"
    );
    ensure!(reach.stdout.contains("\"fixed\" → \"next\""), "{reach:?}");
    let reach = fleet
        .cli()
        .expect(0, &["impact", "main", "-n", ADMIN_NAMESPACE, "--source", "infra"])?;
    ensure!(reach.stdout.contains("0 of 2 services change"), "{reach:?}");
    let unknown = fleet.cli().run(&["impact", "nowhere", "-n", ADMIN_NAMESPACE])?;
    ensure!(
        unknown.code > 1 && unknown.stderr.contains("branch or tag nowhere"),
        "{unknown:?}"
    );

    // One command rolls the whole set back, whatever happened to the repository.
    let patch = Patch::Merge(json!({"spec": {"url": "https://127.0.0.1:1/gone.git"}}));
    fleet
        .api::<farwater_api::GitRepository>()
        .patch("infra", &PatchParams::default(), &patch)
        .await?;
    let back = fleet.cli().expect(
        0,
        &[
            "rollback",
            "serviceset/web",
            "-n",
            ADMIN_NAMESPACE,
            "--reason",
            "it is slow",
        ],
    )?;
    ensure!(
        back.stdout.contains(&format!("rolls back to version {good}")),
        "{back:?}"
    );
    fleet.until_value(east, "good").await?;
    fleet.until_value(west, "good").await?;
    until_phase(&fleet, "Complete").await?;
    let history = fleet
        .cli()
        .expect(0, &["history", "serviceset/web", "-n", ADMIN_NAMESPACE])?;
    ensure!(
        history.stdout.contains(&format!("roll back to {good} by")) && history.stdout.contains("it is slow"),
        "{history:?}"
    );
    ensure!(history.stdout.contains("halted by farwater-admin/east"), "{history:?}");
    fleet
        .cli()
        .expect(0, &["rollback", "serviceset/web", "-n", ADMIN_NAMESPACE, "--clear"])?;
    fleet.until_value(east, "fixed").await?;
    fleet.until_value(west, "fixed").await?;

    // A cluster that leaves loses the set's objects, if the set says so.
    let patch = Patch::Merge(json!({"spec": {"deletionPolicy": "Delete"}}));
    fleet
        .api::<ServiceSet>()
        .patch("web", &PatchParams::default(), &patch)
        .await?;
    let patch = Patch::Merge(json!({"metadata": {"labels": {"env": "none"}}}));
    fleet
        .api::<Cluster>()
        .patch("west", &PatchParams::default(), &patch)
        .await?;
    fleet
        .until("the object to go", || async {
            Ok(fleet.value(west).await?.is_none().then_some(()))
        })
        .await?;
    ensure!(fleet.value(east).await?.as_deref() == Some("fixed"));
    Ok(())
}
