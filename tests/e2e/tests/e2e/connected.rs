//! Hints: what they make faster, and that they pass what polls pass.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::Cluster;
use farwater_e2e::{Fleet, PATIENCE, condition, config_map};
use farwater_testkit::{
    Agent, Hub, Launch, Plane,
    authority::Authority,
    farwater::JoinToken,
    git::Repository,
    nginx::Nginx,
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

/// Without a hint nothing would come in time.
const RARELY: &str = "10m";
const LIMIT: &str = "FARWATER_MAX_CONNECTED_AGENTS";
/// A fraction of a second, which the bench measures; here debug builds share the machine with whatever else is tested.
const AT_ONCE: Duration = Duration::from_secs(5);
/// nginx ends a connection on which nothing has come from the hub for 60 s.
const IDLE: Duration = Duration::from_secs(70);

async fn poll_every(fleet: &Fleet, cluster: &str, interval: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"pollInterval": interval}}));
    fleet.api::<Cluster>().patch(cluster, &PatchParams::default(), &patch).await?;
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
    let repository = fleet.repository("infra", &[("app/a.yaml", &config_map("a", "one"))]).await?;
    fleet.deploy("web", cluster, "infra", "app").await?;
    fleet.until_applied("web", &repository.branch("main").unwrap_or_default()).await?;
    Ok(repository)
}

/// From the request to look at the repository until the cluster has the commit.
async fn commit_to_applied(fleet: &Fleet, plane: &Plane, repository: &Repository, value: &str) -> Result<Duration> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("web"));
    repository.commit("main", &[("app/a.yaml", &config_map("a", value))])?;
    let begun = Instant::now();
    fleet.reconcile("infra").await?;
    while api.get("a").await?.data.is_none_or(|data| data["value"] != value) {
        ensure!(begun.elapsed() < PATIENCE, "{value} has not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(begun.elapsed())
}

/// The quickest of some: others use the machine too.
async fn quickest(fleet: &Fleet, plane: &Plane, repository: &Repository, name: &str) -> Result<Duration> {
    let mut times = Vec::new();
    for round in 0..5 {
        times.push(commit_to_applied(fleet, plane, repository, &format!("{name}-{round}")).await?);
    }
    eprintln!("{name}: {times:?}");
    times.into_iter().min().context("no times")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_applied_at_once_with_hints_and_at_the_next_poll_without() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    until_connected(&fleet, "east", true).await?;
    let repository = deploy(&fleet, "east").await?;
    poll_every(&fleet, "east", RARELY).await?;
    let with = quickest(&fleet, plane, &repository, "hints").await?;
    ensure!(with < AT_ONCE, "{with:?}");
    let shown = fleet.cli().expect(0, &["get", "clusters", "-o", "wide"])?.stdout;
    ensure!(shown.contains("CONNECTED") && shown.contains("true"), "{shown}");

    // A hub that stops has its agents come back by themselves, whatever their interval is.
    poll_every(&fleet, "east", "2s").await?;
    ensure!(fleet.hub.stop()?.success(), "{}", fleet.hub.log_tail());
    fleet.hub.set_environment(vec![(LIMIT.to_owned(), "0".to_owned())]);
    fleet.hub.restart().await?;
    until_connected(&fleet, "east", false).await?;
    let without = commit_to_applied(&fleet, plane, &repository, "polls").await?;
    ensure!(without < Duration::from_secs(10), "{without:?}");
    ensure!(fleet.agent("east")?.process().output().contains("the hub stops"), "{}", fleet.agent("east")?.log_tail());
    until_connected(&fleet, "east", false).await?;

    // And connected again as soon as that is allowed.
    ensure!(fleet.hub.stop()?.success());
    fleet.hub.set_environment(Vec::new());
    fleet.hub.restart().await?;
    until_connected(&fleet, "east", true).await?;
    Ok(())
}

/// Joins with an agent that finds its hub elsewhere, and has a commit come at once.
async fn comes_at_once(
    fleet: &mut Fleet,
    plane: &Plane,
    launch: Launch,
    told: impl FnOnce(&mut JoinToken),
) -> Result<Repository> {
    fleet.join_in("east", plane, plane.kubeconfig(), launch, told).await?;
    until_connected(fleet, "east", true).await?;
    let repository = deploy(fleet, "east").await?;
    poll_every(fleet, "east", RARELY).await?;
    let with = quickest(fleet, plane, &repository, "hints").await?;
    ensure!(with < AT_ONCE, "{with:?}");
    Ok(repository)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_come_through_a_proxy() -> Result<()> {
    const NAME: &str = "hub.corp.test";
    let plane = shared(1).await?;
    let squid = Squid::start(&Options { names: vec![NAME.to_owned()], ..Options::default() }).await?;
    let dir = tempfile::tempdir()?;
    let hub = Hub::start_with(&dir.path().join("hub"), &["--tls-san", NAME]).await?;
    let mut fleet = Fleet::of(hub, dir).await?;
    let url = format!("https://{NAME}:{}", fleet.hub.port());
    let launch = Launch::environment(&[("HTTPS_PROXY", &squid.url(""))]);
    comes_at_once(&mut fleet, plane, launch, |token| token.hub = url).await.with_context(|| squid.tail())?;
    Ok(())
}

/// An agent of a hub behind nginx goes by nginx's authority.
struct Behind {
    fleet: Fleet,
    nginx: Nginx,
    launch: Launch,
}

impl Behind {
    async fn start(passes_websockets: bool) -> Result<Self> {
        let authority = Authority::new("front authority")?;
        let dir = tempfile::tempdir()?;
        let hub = Hub::start(&dir.path().join("hub")).await?;
        let nginx = Nginx::start(hub.port(), &authority.issue(&["127.0.0.1"], 24)?, passes_websockets).await?;
        let file = dir.path().join("front.pem");
        fs::write(&file, authority.pem())?;
        let launch = Launch::arguments(&["--ca-file", &file.display().to_string()]);
        Ok(Self { fleet: Fleet::of(hub, dir).await?, nginx, launch })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_come_through_an_nginx_that_passes_websockets_also_after_a_rest() -> Result<()> {
    // Not the others' plane: they take their turns while this one rests.
    let plane = shared(2).await?;
    let Behind { mut fleet, nginx, launch } = Behind::start(true).await?;
    let told = |token: &mut JoinToken| (token.hub, token.ca_pin) = (nginx.url(), String::new());
    let repository = comes_at_once(&mut fleet, plane, launch, told).await.with_context(|| nginx.tail())?;

    // The hub's pings keep it open where nothing else is said. nginx writes of a connection when it has ended.
    let ended = || nginx.access_log().lines().filter(|line| line.contains("\" 101 ")).count();
    let before = ended();
    let held = fleet.always("the one connection", IDLE, || async { Ok(ended() == before) });
    held.await.with_context(|| nginx.tail())?;
    let after = quickest(&fleet, plane, &repository, "after a rest").await.with_context(|| nginx.tail())?;
    ensure!(after < AT_ONCE, "{after:?}");
    ensure!(ended() == before, "{}", nginx.tail());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_an_nginx_that_passes_no_websockets_polls_go_on() -> Result<()> {
    let plane = shared(1).await?;
    let Behind { mut fleet, nginx, launch } = Behind::start(false).await?;
    fleet.take_turn(plane).await?;
    let token = fleet.invite("east").await?;
    let told = JoinToken { hub: nginx.url(), ca_pin: String::new(), ..token };
    let mut agent = Agent::launch("east", &fleet.state_dir("east"), plane.kubeconfig(), told, launch)?;
    let clusters: Api<Cluster> = fleet.api();
    let joined = fleet.until("east to be ready", || async {
        let status = clusters.get("east").await?.status.unwrap_or_default();
        Ok((condition(&status.conditions, "Ready") == Some("True")).then_some(()))
    });
    joined.await.with_context(|| format!("{}\n{}", agent.log_tail(), nginx.tail()))?;
    let log = agent.process().log().to_owned();
    let said = wait_for("the agent to say why it only polls", PATIENCE, || async {
        let text = fs::read_to_string(&log)?;
        let words = ["no connection to the hub", "what is in between must pass them on"];
        Ok(words.iter().all(|part| text.contains(part)).then_some(()))
    });
    said.await.with_context(|| agent.log_tail())?;
    let repository = deploy(&fleet, "east").await?;
    let time = commit_to_applied(&fleet, plane, &repository, "polls").await?;
    ensure!(time < Duration::from_secs(10), "{time:?}");
    ensure!(clusters.get("east").await?.status.unwrap_or_default().connected.is_none());
    agent.stop()?;
    Ok(())
}
