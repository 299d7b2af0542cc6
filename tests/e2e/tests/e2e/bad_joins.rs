//! Failures of joins. The agent's message names the thing, the cause and the remedy. It retries if that can help, ends
//! if a person must act, and a second run fixes what the first one left.

use std::{fs, net::Ipv4Addr};

use anyhow::{Context as _, Result, ensure};
use farwater_api::Cluster;
use farwater_e2e::{Fleet, PATIENCE, condition, config_map, volume::Volume};
use farwater_testkit::{
    Agent, Hub, Launch, Plane, PlaneOptions, faketime, farwater::JoinToken, ports, shared, wait_for,
};
use kube::Api;

/// Starts an agent that can never join. Returns its last messages after it has ended.
fn refused(fleet: &Fleet, name: &str, plane: &Plane, told: JoinToken) -> Result<String> {
    let mut agent = Agent::start(name, &fleet.state_dir(name), plane.kubeconfig(), told)?;
    agent.tolerate("");
    let ended = agent.process().wait(PATIENCE).with_context(|| agent.log_tail())?;
    let said = agent.process().output();
    ensure!(ended.code() == Some(2), "{ended}\n{said}");
    Ok(said)
}

fn check(said: &str, parts: &[&str]) -> Result<()> {
    let missing: Vec<_> = parts.iter().filter(|part| !said.contains(**part)).collect();
    ensure!(missing.is_empty(), "it does not say {missing:?}:\n{said}");
    Ok(())
}

async fn until_ready(fleet: &Fleet, cluster: &str) -> Result<()> {
    let clusters: Api<Cluster> = fleet.api();
    fleet
        .until(&format!("{cluster} to be ready"), || async {
            let status = clusters.get(cluster).await?.status.unwrap_or_default();
            Ok((condition(&status.conditions, "Ready") == Some("True")).then_some(()))
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_is_not_there_is_waited_for() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.take_turn(plane).await?;
    let token = fleet.invite("east").await?;
    fleet.hub.stop()?;
    let mut agent = Agent::start("east", &fleet.state_dir("east"), plane.kubeconfig(), token)?;
    let log = agent.process().log().to_owned();
    let said = wait_for("the agent to say so", PATIENCE, || async {
        let said = fs::read_to_string(&log)?;
        Ok(said.contains("trying again").then_some(said))
    });
    check(
        &said.await?,
        &["can't join yet", "reach the hub for join", "Connection refused"],
    )?;
    fleet.hub.restart().await?;
    until_ready(&fleet, "east").await.with_context(|| agent.log_tail())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_pin_a_wrong_name_and_no_authority_end_a_join() -> Result<()> {
    // In its own namespace: after an earlier join, the agent would use the stored pin.
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let dir = tempfile::tempdir()?;
    let everywhere = (Ipv4Addr::UNSPECIFIED, ports::free()?).into();
    let hub = Hub::start_on(everywhere, &dir.path().join("hub"), Launch::default()).await?;
    let fleet = Fleet::of(hub, dir).await?;
    let token = fleet.invite("east").await?;
    let right = token.ca_pin.clone();

    let wrong = format!("sha256:{}", "0".repeat(64));
    let told = JoinToken {
        ca_pin: wrong.clone(),
        ..token.clone()
    };
    let said = refused(&fleet, "pin", &plane, told)?;
    check(
        &said,
        &[
            "its certificate is not trusted",
            &wrong,
            &right,
            "compare --ca-pin",
            "farwater cluster join",
        ],
    )?;
    ensure!(!said.contains(&token.token), "{said}");

    // The same machine at an address that is not in its certificate.
    let told = JoinToken {
        hub: token.hub.replace("127.0.0.1", "127.0.0.2"),
        ..token.clone()
    };
    let said = refused(&fleet, "address", &plane, told)?;
    check(
        &said,
        &[
            "its certificate is not trusted",
            "not valid for name",
            "127.0.0.2",
            "127.0.0.1",
        ],
    )?;

    let told = JoinToken {
        ca_pin: String::new(),
        ..token.clone()
    };
    check(
        &refused(&fleet, "none", &plane, told)?,
        &["no authority is named", "--ca-pin", "--ca-file"],
    )?;

    let told = JoinToken {
        hub: "http://127.0.0.1:1".to_owned(),
        ..token.clone()
    };
    check(
        &refused(&fleet, "scheme", &plane, told)?,
        &["read hub URL", "http://127.0.0.1:1", "https://HOST[:PORT]"],
    )?;

    // None of these attempts has used up the token.
    let agent = Agent::start("east", &fleet.state_dir("east"), plane.kubeconfig(), token)?;
    until_ready(&fleet, "east").await.with_context(|| agent.log_tail())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_was_used_or_is_too_old_or_unknown_is_told_with_its_remedy() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.take_turn(plane).await?;
    fleet.take_turn(shared(2).await?).await?;
    let remedy = "make another with: farwater cluster join NAME";
    let used = fleet.invite("east").await?;
    let agent = Agent::start("east", &fleet.state_dir("east"), plane.kubeconfig(), used.clone())?;
    until_ready(&fleet, "east").await.with_context(|| agent.log_tail())?;
    check(
        &refused(&fleet, "used", shared(2).await?, used.clone())?,
        &["join token was used already", remedy],
    )?;
    let unknown = JoinToken {
        token: "fwj_unknown".to_owned(),
        ..used
    };
    let said = refused(&fleet, "unknown", shared(2).await?, unknown)?;
    check(&said, &["not one of this hub's", "farwater cluster join NAME"])?;

    let late = fleet.invite("west").await?;
    fleet.hub.stop()?;
    fleet.hub.set_environment(faketime::environment("+2h")?);
    fleet.hub.restart().await?;
    let said = refused(&fleet, "late", shared(2).await?, late.clone())?;
    check(&said, &["join token has expired", remedy])?;
    // A second run with a new token in the same directory.
    let token = fleet.hub.join_token(farwater_api::ADMIN_NAMESPACE, "west").await?;
    let mut second = Agent::start("late", &fleet.state_dir("late"), shared(2).await?.kubeconfig(), token)?;
    // Its log continues after that of the first run.
    second.tolerate("join token has expired");
    until_ready(&fleet, "west").await.with_context(|| second.log_tail())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_another_hub_keeps_is_refused_by_name_until_it_has_left() -> Result<()> {
    let plane = shared(1).await?;
    let mut keeper = Fleet::start().await?;
    keeper.join("east", plane).await?;
    let fleet = Fleet::start().await?;
    let token = fleet.invite("west").await?;
    let said = refused(&fleet, "west", plane, token.clone())?;
    let parts = [
        "kept by another hub",
        &keeper.hub.url(),
        "farwater-admin/east",
        "farwater cluster leave",
    ];
    check(&said, &parts)?;
    // It changed nothing: the first agent continues, and the token is still valid.
    keeper
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    keeper.deploy("web", "east", "infra", "app").await?;
    keeper.until_condition("web", "Ready", "True", "").await?;
    keeper.agent("east")?.stop()?;
    let mut agent = Agent::start("west", &fleet.state_dir("west"), plane.kubeconfig(), token)?;
    agent.tolerate("kept by another hub");
    until_ready(&fleet, "west").await.with_context(|| agent.log_tail())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_on_a_full_volume_joins_says_what_is_wrong_and_goes_on_when_there_is_room() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    let place = fleet.state_dir("east");
    let volume = Volume::mount(&place, "64k")?;
    let ballast = volume.fill();
    fleet.join("east", plane).await?;
    let said = fleet.agent("east")?.process().output();
    check(
        &said,
        &[
            "the identity is stored in one place only",
            "identity.json",
            "No space left on device",
        ],
    )?;

    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("web", "east", "infra", "app").await?;
    fleet
        .until_condition("web", "Ready", "False", "No space left on device")
        .await?;
    // The token is used up and the directory is empty, but the copy in the cluster is enough.
    fleet.agent("east")?.restart()?;
    fs::remove_file(&ballast)?;
    fleet
        .until_applied("web", &repository.branch("main").unwrap_or_default())
        .await?;
    fleet.agent("east")?.stop()?;
    ensure!(place.join("identity.json").exists());
    Ok(())
}
