//! A cluster that was copied with its Secrets: two real agents with one identity, each with its own control plane.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Cluster, Condition};
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::{Agent, Plane, PlaneOptions, farwater::JoinToken};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

/// The hub's message to both.
const REFUSED: &str = "403 Forbidden Quarantined";
/// Number of refused polls of each agent.
const REFUSALS: u32 = 2;

async fn ready(fleet: &Fleet) -> Result<Option<Condition>> {
    let status = fleet.api::<Cluster>().get("east").await?.status.unwrap_or_default();
    Ok(status
        .conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready"))
}

async fn is_ready(fleet: &Fleet) -> Result<bool> {
    Ok(ready(fleet).await?.is_some_and(|ready| ready.status == "True"))
}

/// Waits until the Cluster is ready, or not ready for this reason.
async fn until_ready(fleet: &Fleet, reason: &str) -> Result<Condition> {
    fleet
        .until(&format!("the Cluster to be {reason}"), || async {
            Ok(ready(fleet).await?.filter(|ready| ready.reason == reason))
        })
        .await
}

/// Waits until an agent's log has this text after so many bytes.
async fn until_says(fleet: &Fleet, agent: &mut Agent, bytes: usize, words: &str) -> Result<()> {
    let log = agent.process().log().to_owned();
    fleet
        .until(&format!("the agent to say {words:?}"), || async {
            let said = fs::read_to_string(&log)?;
            Ok(said.get(bytes..).is_some_and(|said| said.contains(words)).then_some(()))
        })
        .await
        .with_context(|| agent.log_tail())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_clusters_agents_are_both_refused_until_one_joins_anew() -> Result<()> {
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let mut fleet = Fleet::start().await?;
    let told = fleet.invite("east").await?;
    let mut east = Agent::start("east", &fleet.state_dir("east"), plane.kubeconfig(), told.clone())?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("web", "east", "infra", "app").await?;
    let first = repository.branch("main").context("a commit")?;
    fleet
        .until_applied("web", &first)
        .await
        .with_context(|| east.log_tail())?;

    let copy = plane.copy().await?;
    let namespace = fleet.namespace("web");
    let original: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    let copied: Api<ConfigMap> = Api::namespaced(copy.client().await?, &namespace);
    let before = original.get("a").await?;
    ensure!(copied.get("a").await? == before, "the copy holds the same");

    // The identity is in the copied Secret, and the token was used. The copied Lease belongs to the first agent for up
    // to a minute. Until then the second agent stands by and does no harm.
    let mut twin = Agent::start("twin", &fleet.state_dir("twin"), copy.kubeconfig(), told)?;
    until_says(&fleet, &mut twin, 0, "standing by").await?;
    until_ready(&fleet, "Connected").await?;
    fleet.stays("the cluster is ready", "web", || is_ready(&fleet)).await?;
    // Without waiting for the minute.
    fleet.take_turn(&copy).await?;

    for agent in [&mut east, &mut twin] {
        until_says(&fleet, agent, 0, REFUSED).await?;
    }
    let shown = until_ready(&fleet, "DuplicateIdentity").await?;
    ensure!(shown.status == "False", "{shown:?}");
    for agent in [&east, &twin] {
        ensure!(shown.message.contains(&agent.dir().display().to_string()), "{shown:?}");
    }
    let table = fleet.cli().expect(0, &["get", "clusters"])?.stdout;
    ensure!(table.contains("two agents use this cluster's identity"), "{table}");

    // Running objects stay, and neither cluster gets changes. A copied state directory makes no difference.
    let second = repository.commit("main", &[("app/a.yaml", &config_map("a", "two"))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_service("web", "be assigned the next commit", |s| {
            s.status
                .as_ref()
                .and_then(|s| s.assigned_revision.as_deref())
                .is_some_and(|r| r.ends_with(&second))
        })
        .await?;
    twin.kill9();
    fs::remove_dir_all(twin.dir())?;
    ensure!(
        Command::new("cp")
            .arg("-a")
            .args([east.dir(), twin.dir()])
            .status()?
            .success()
    );
    let bytes = twin.process().output().len();
    twin.restart()?;
    until_says(&fleet, &mut twin, bytes, REFUSED).await?;
    let as_before = || async { anyhow::Ok(original.get("a").await? == before && copied.get("a").await? == before) };
    for _ in 0..REFUSALS {
        for agent in [&mut east, &mut twin] {
            let bytes = agent.process().output().len();
            until_says(&fleet, agent, bytes, REFUSED).await?;
        }
        ensure!(as_before().await?, "an agent that was refused has changed its cluster");
    }

    // The agent that shall stay joins again, with the command in the message.
    let told = fleet
        .cli()
        .expect(0, &["cluster", "join", "east", "-o", "json"])?
        .stdout;
    let told: JoinToken = serde_json::from_str(&told)?;
    east.stop()?;
    east = Agent::start("east", &fleet.state_dir("east"), plane.kubeconfig(), told)?;
    fleet
        .until_applied("web", &second)
        .await
        .with_context(|| east.log_tail())?;
    let after = original.get("a").await?;
    ensure!(
        after.metadata.uid == before.metadata.uid && after.data != before.data,
        "{after:?}"
    );

    until_ready(&fleet, "Connected").await?;
    let bytes = twin.process().output().len();
    until_says(&fleet, &mut twin, bytes, "401 Unauthorized IdentityUnknown").await?;
    let as_before = || async { Ok(copied.get("a").await? == before && is_ready(&fleet).await?) };
    fleet
        .stays("the copy is as it was, and the cluster is ready", "web", as_before)
        .await
}
