//! Webhooks: from a push to the cluster long before a poll, and protection of other senders.

use anyhow::{Context as _, Result, ensure};
use farwater_api::{GitRepository, Receiver};
use farwater_e2e::{Fleet, condition, config_map};
use farwater_testkit::{
    deliveries::{Host, Push, Sender},
    git::Repository,
    shared,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::StatusCode;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, api::PostParams, client::Body};
use serde_json::json;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Number of concurrent deliveries.
const SENDERS: usize = 32;

/// Creates a host's receiver for the repository `infra`. Returns its path.
async fn receiver(fleet: &Fleet, name: &str, host: Host) -> Result<String> {
    let secret = json!({"metadata": {"name": name}, "stringData": {"token": TOKEN}});
    fleet
        .api::<Secret>()
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;
    let spec = json!({"type": host.receiver_type(), "resources": [{"name": "infra"}], "secretRef": {"name": name}});
    let receivers: Api<Receiver> = fleet.api();
    receivers
        .create(
            &PostParams::default(),
            &Receiver::new(name, serde_json::from_value(spec)?),
        )
        .await?;
    fleet
        .until(&format!("receiver {name} to be served"), || async {
            let status = receivers.get(name).await?.status.unwrap_or_default();
            ensure!(
                condition(&status.conditions, "Stalled").is_none(),
                "{:?}",
                status.conditions
            );
            Ok(status.webhook_path)
        })
        .await
}

/// A repository with an interval so long that this test never sees a regular poll.
async fn repository(fleet: &Fleet) -> Result<Repository> {
    let repository = fleet.git.create("infra")?;
    repository.commit("main", &[("app/a.yaml", &config_map("a", "one"))])?;
    let spec = serde_json::from_value(json!({"url": fleet.git.url("infra"), "interval": "24h"}))?;
    fleet
        .api()
        .create(&PostParams::default(), &GitRepository::new("infra", spec))
        .await?;
    Ok(repository)
}

/// Changes the service's object in the repository.
fn push(repository: &Repository, value: &str) -> Result<(String, String)> {
    let before = repository.branch("main").context("the branch is missing")?;
    let after = repository.commit("main", &[("app/a.yaml", &config_map("a", value))])?;
    Ok((before, after))
}

async fn deliver(fleet: &Fleet, request: http::Request<bytes::Bytes>) -> Result<(StatusCode, String)> {
    let response = fleet.client.send(request.map(Body::from)).await?;
    let code = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((code, String::from_utf8_lossy(&body).into_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_is_in_the_cluster_long_before_the_next_poll() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let repository = repository(&fleet).await?;
    fleet.deploy("web", "east", "infra", "app").await?;
    fleet
        .until_applied("web", &repository.branch("main").unwrap_or_default())
        .await?;

    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("web"));
    let url = fleet.git.url("infra");
    for host in Host::ALL {
        let name = host.receiver_type().as_str();
        let path = receiver(&fleet, name, host).await?;
        let (before, after) = push(&repository, name)?;
        let push = Push {
            url: &url,
            branch: "main",
            before: &before,
            after: &after,
            size: 2_000,
        };
        let (code, said) = deliver(&fleet, Sender::new(host, TOKEN).push(&path, push)).await?;
        ensure!(code == StatusCode::ACCEPTED, "{name}: {code} {said}");
        fleet
            .until(&format!("{name}'s push to be in the cluster"), || async {
                let data = maps.get("a").await?.data.unwrap_or_default();
                Ok((data.get("value").map(String::as_str) == Some(name)).then_some(()))
            })
            .await?;
    }
    // Each delivery shows in its receiver, and no log line contains the token.
    let shown = fleet.cli().expect(0, &["get", "receivers", "-o", "wide"])?.stdout;
    ensure!(
        Host::ALL
            .iter()
            .all(|host| shown.contains(host.receiver_type().as_str())),
        "{shown}"
    );
    ensure!(!fleet.hub.process().output().contains(TOKEN) && !shown.contains(TOKEN));
    ensure!(fleet.counted("farwater_sources_announced").await? == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_forged_deliveries_changes_nothing() -> Result<()> {
    const FORGED: usize = 500;
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let repository = repository(&fleet).await?;
    fleet.deploy("web", "east", "infra", "app").await?;
    fleet
        .until_applied("web", &repository.branch("main").unwrap_or_default())
        .await?;
    let path = receiver(&fleet, "github", Host::GitHub).await?;
    let url = fleet.git.url("infra");
    let (before, after) = push(&repository, "two")?;
    let push = Push {
        url: &url,
        branch: "main",
        before: &before,
        after: &after,
        size: 20_000,
    };
    let asked = fleet.git.counts();
    let forged = Sender::new(Host::GitHub, "another token of some length").push(&path, push);
    stream::iter(0..FORGED)
        .map(|_| deliver(&fleet, forged.clone()))
        .buffer_unordered(SENDERS)
        .try_for_each(|(code, said)| async move {
            ensure!(code == StatusCode::FORBIDDEN, "{code} {said}");
            Ok(())
        })
        .await?;
    ensure!(fleet.git.counts() == asked, "{asked:?}, {:?}", fleet.git.counts());
    let refused = fleet
        .counted("farwater_webhook_deliveries_total{type=\"github\",result=\"unsigned\"}")
        .await?;
    ensure!(refused == FORGED as u64, "{refused}");
    let receivers: Api<Receiver> = fleet.api();
    fleet
        .until("the receiver to say so", || async {
            let status = receivers.get("github").await?.status.unwrap_or_default();
            let told = status
                .conditions
                .iter()
                .any(|c| c.type_ == "Delivered" && c.reason == "SignatureWrong");
            Ok((told && status.last_refusal_time.is_some()).then_some(()))
        })
        .await?;
    // Valid deliveries still take effect at once.
    let (code, said) = deliver(&fleet, Sender::new(Host::GitHub, TOKEN).push(&path, push)).await?;
    ensure!(code == StatusCode::ACCEPTED, "{code} {said}");
    fleet.until_applied("web", &after).await?;
    Ok(())
}
