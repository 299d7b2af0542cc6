//! A commit becomes running objects in two real clusters.

use anyhow::{Result, ensure};
use farwater_api::ServiceDeployment;
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::{Plane, shared};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

/// Number of bundles that agents have downloaded.
const SENT: &str = "farwater_bundles_sent_total";

async fn value(plane: &Plane, namespace: &str, name: &str) -> Result<Option<String>> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, namespace);
    Ok(api.get_opt(name).await?.and_then(|c| c.data?.remove("value")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_commit_reaches_two_clusters_and_only_what_it_touches() -> Result<()> {
    let planes = [shared(1).await?, shared(2).await?];
    let mut fleet = Fleet::start().await?;
    fleet.join("east", planes[0]).await?;
    fleet.join("west", planes[1]).await?;

    let files = [
        ("east/a.yaml", config_map("a", "one")),
        ("west/a.yaml", config_map("a", "one")),
    ];
    let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("in-east", "east", "infra", "east").await?;
    fleet.deploy("in-west", "west", "infra", "west").await?;
    let first = repository.branch("main").unwrap_or_default();
    for service in ["in-east", "in-west"] {
        fleet.until_applied(service, &first).await?;
    }
    ensure!(value(planes[0], &fleet.namespace("in-east"), "a").await?.as_deref() == Some("one"));
    ensure!(value(planes[1], &fleet.namespace("in-west"), "a").await?.as_deref() == Some("one"));

    // A commit that touches one folder changes one service. The other one stays at its commit.
    let before = fleet.service("in-west").await?;
    let sent = fleet.counted(SENT).await?;
    let second = repository.change("main", &[("east/a.yaml", Some(&config_map("a", "two")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("in-east", &second).await?;
    ensure!(value(planes[0], &fleet.namespace("in-east"), "a").await?.as_deref() == Some("two"));
    let after = fleet.service("in-west").await?;
    let parts = |service: &ServiceDeployment| {
        let status = service.status.clone()?;
        Some((status.assigned_revision?, status.bundle_digest?))
    };
    ensure!(
        parts(&before).is_some_and(|(revision, _)| revision.ends_with(&first)),
        "{before:?}"
    );
    ensure!(parts(&before) == parts(&after), "{before:?}\n{after:?}");
    ensure!(
        fleet.counted(SENT).await? == sent + 1,
        "more than the one that changed was downloaded"
    );
    Ok(())
}
