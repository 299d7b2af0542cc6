//! Hints: they make changes arrive faster, and pass everything that polls pass.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use farwater_api::Cluster;
use farwater_e2e::{Fleet, PATIENCE, condition, config_map};
use farwater_testkit::{
    Agent, Hub, Launch, Plane,
    authority::Authority,
    farwater::JoinToken,
    git::Repository,
    nginx::{Nginx, WebSockets},
    shared,
    squid::{Options, Squid},
    wait_for,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// Poll interval: without a hint, no change would arrive within our patience.
const RARELY: &str = "10m";
const LIMIT: &str = "FARWATER_MAX_CONNECTED_AGENTS";
/// Poll interval. The hub sends a ping after one and a half intervals, if it sends nothing else.
const OFTEN: &str = "2s";
/// nginx closes a connection without data from the hub after this time. As with its own 60 s, that is somewhat longer
/// than the 45 s after which the hub sends a ping at the latest.
const SILENCE: Duration = Duration::from_secs(10);
/// Longer than that time.
const REST: Duration = Duration::from_secs(12);

async fn poll_every(fleet: &Fleet, cluster: &str, interval: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"pollInterval": interval}}));
    fleet
        .api::<Cluster>()
        .patch(cluster, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

async fn until_connected(fleet: &Fleet, cluster: &str, wanted: bool) -> Result<()> {
    let clusters: Api<Cluster> = fleet.api();
    fleet
        .until(&format!("{cluster} to be connected: {wanted}"), || async {
            let status = clusters.get(cluster).await?.status.unwrap_or_default();
            Ok((status.connected == wanted.then_some(true)).then_some(()))
        })
        .await
}

async fn deploy(fleet: &Fleet, cluster: &str) -> Result<Repository> {
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("web", cluster, "infra", "app").await?;
    fleet
        .until_applied("web", &repository.branch("main").unwrap_or_default())
        .await?;
    Ok(repository)
}

/// Commits, and waits until the cluster has it. The bench `agent-commit` measures the time.
async fn deliver(fleet: &Fleet, plane: &Plane, repository: &Repository, value: &str) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("web"));
    repository.commit("main", &[("app/a.yaml", &config_map("a", value))])?;
    fleet.reconcile("infra").await?;
    fleet
        .until(&format!("{value:?} to be in the cluster"), || async {
            let data = api.get("a").await?.data.unwrap_or_default();
            Ok((data.get("value").map(String::as_str) == Some(value)).then_some(()))
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_applied_at_once_with_hints_and_at_the_next_poll_without() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    until_connected(&fleet, "east", true).await?;
    let repository = deploy(&fleet, "east").await?;
    poll_every(&fleet, "east", RARELY).await?;
    deliver(&fleet, plane, &repository, "hint").await?;
    deliver(&fleet, plane, &repository, "another-hint").await?;
    let shown = fleet.cli().expect(0, &["get", "clusters", "-o", "wide"])?.stdout;
    ensure!(shown.contains("CONNECTED") && shown.contains("true"), "{shown}");

    // When a hub stops, its agents reconnect by themselves, whatever their interval.
    poll_every(&fleet, "east", "2s").await?;
    ensure!(fleet.hub.stop()?.success(), "{}", fleet.hub.log_tail());
    fleet.hub.set_environment(vec![(LIMIT.to_owned(), "0".to_owned())]);
    fleet.hub.restart().await?;
    until_connected(&fleet, "east", false).await?;
    deliver(&fleet, plane, &repository, "poll").await?;
    ensure!(
        fleet.agent("east")?.process().output().contains("the hub stops"),
        "{}",
        fleet.agent("east")?.log_tail()
    );
    until_connected(&fleet, "east", false).await?;

    // They connect again as soon as that is allowed.
    ensure!(fleet.hub.stop()?.success());
    fleet.hub.set_environment(Vec::new());
    fleet.hub.restart().await?;
    until_connected(&fleet, "east", true).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_come_through_a_proxy() -> Result<()> {
    const NAME: &str = "hub.corp.test";
    let plane = shared(1).await?;
    let squid = Squid::start(&Options {
        names: vec![NAME.to_owned()],
        ..Options::default()
    })
    .await?;
    let dir = tempfile::tempdir()?;
    let hub = Hub::start_with(&dir.path().join("hub"), &["--tls-san", NAME]).await?;
    let mut fleet = Fleet::of(hub, dir).await?;
    let url = format!("https://{NAME}:{}", fleet.hub.port());
    let launch = Launch::environment(&[("HTTPS_PROXY", &squid.url(""))]);
    let told = |token: &mut JoinToken| token.hub = url;
    fleet
        .join_in("east", plane, plane.kubeconfig(), launch, told)
        .await
        .with_context(|| squid.tail())?;
    until_connected(&fleet, "east", true)
        .await
        .with_context(|| squid.tail())?;
    let repository = deploy(&fleet, "east").await?;
    poll_every(&fleet, "east", RARELY).await?;
    deliver(&fleet, plane, &repository, "hint")
        .await
        .with_context(|| squid.tail())
}

/// An agent of a hub behind nginx uses nginx's authority.
struct Behind {
    fleet: Fleet,
    nginx: Nginx,
    launch: Launch,
}

impl Behind {
    async fn start(websockets: WebSockets) -> Result<Self> {
        let authority = Authority::new("front authority")?;
        let dir = tempfile::tempdir()?;
        let hub = Hub::start(&dir.path().join("hub")).await?;
        let nginx = Nginx::start(hub.port(), &authority.issue(&["127.0.0.1"], 24)?, websockets).await?;
        let file = dir.path().join("front.pem");
        fs::write(&file, authority.pem())?;
        let launch = Launch::arguments(&["--ca-file", &file.display().to_string()]);
        Ok(Self {
            fleet: Fleet::of(hub, dir).await?,
            nginx,
            launch,
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_come_through_an_nginx_that_passes_websockets_also_after_a_rest() -> Result<()> {
    let plane = shared(2).await?;
    let Behind {
        mut fleet,
        nginx,
        launch,
    } = Behind::start(WebSockets::Passed(SILENCE)).await?;
    let told = |token: &mut JoinToken| (token.hub, token.ca_pin) = (nginx.url(), String::new());
    fleet
        .join_in("east", plane, plane.kubeconfig(), launch, told)
        .await
        .with_context(|| nginx.tail())?;
    until_connected(&fleet, "east", true)
        .await
        .with_context(|| nginx.tail())?;

    // A connected agent polls at most every five minutes, so a fast change came by a hint. nginx logs a connection when
    // it has ended.
    poll_every(&fleet, "east", OFTEN).await?;
    let ended = || {
        nginx
            .access_log()
            .lines()
            .filter(|line| line.contains("\" 101 "))
            .count()
    };
    let before = ended();
    let repository = deploy(&fleet, "east").await?;
    let held = fleet.always("the one connection", REST, || async { Ok(ended() == before) });
    held.await.with_context(|| nginx.tail())?;
    deliver(&fleet, plane, &repository, "after-a-rest")
        .await
        .with_context(|| nginx.tail())?;
    ensure!(ended() == before, "{}", nginx.tail());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_an_nginx_that_passes_no_websockets_polls_go_on() -> Result<()> {
    let plane = shared(1).await?;
    let Behind {
        mut fleet,
        nginx,
        launch,
    } = Behind::start(WebSockets::Refused).await?;
    fleet.take_turn(plane).await?;
    let token = fleet.invite("east").await?;
    let told = JoinToken {
        hub: nginx.url(),
        ca_pin: String::new(),
        ..token
    };
    let mut agent = Agent::launch("east", &fleet.state_dir("east"), plane.kubeconfig(), told, launch)?;
    let clusters: Api<Cluster> = fleet.api();
    let joined = fleet.until("east to be ready", || async {
        let status = clusters.get("east").await?.status.unwrap_or_default();
        Ok((condition(&status.conditions, "Ready") == Some("True")).then_some(()))
    });
    joined
        .await
        .with_context(|| format!("{}\n{}", agent.log_tail(), nginx.tail()))?;
    let log = agent.process().log().to_owned();
    let said = wait_for("the agent to say why it only polls", PATIENCE, || async {
        let text = fs::read_to_string(&log)?;
        let words = ["no connection to the hub", "proxies in between must pass them on"];
        Ok(words.iter().all(|part| text.contains(part)).then_some(()))
    });
    said.await.with_context(|| agent.log_tail())?;
    let repository = deploy(&fleet, "east").await?;
    deliver(&fleet, plane, &repository, "poll").await?;
    ensure!(
        clusters
            .get("east")
            .await?
            .status
            .unwrap_or_default()
            .connected
            .is_none()
    );
    agent.stop()?;
    Ok(())
}
