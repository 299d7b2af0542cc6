//! The life of a real node's cluster with Farwater: install, join, deploy, upgrade, failed upgrades, leave.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{AGENT_NAMESPACE, AgentPolicy, Cluster, GitRepository, ServiceDeployment};
use farwater_testkit::{
    Site,
    images::{AGENT_BROKEN, AGENT_LOST, AGENT_NEXT, BUSYBOX, HUB, Images, JSONNET},
    node::PAUSE,
    site::CLUSTER,
    tools::repository_root,
    wait_for,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::condition;

const PATIENCE: Duration = Duration::from_secs(60);

/// Seconds for the steps.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Durations {
    pub install: f64,
    /// Seconds until the first heartbeat.
    pub join: f64,
    pub upgrade: f64,
    /// Seconds from a version that can't run back to the previous one.
    pub back: f64,
}

/// Starts with an empty node and ends with only a workload on it, which never changes.
pub async fn run(site: &Site) -> Result<Durations> {
    let begun = Instant::now();
    let printed = site.install()?;
    let install = begun.elapsed().as_secs_f64();
    ensure!(printed.trim() == site.url(), "{printed:?} is not the hub's address");
    // Run it again: it changes nothing.
    site.install()?;
    let before = ours(site)?;
    let mounts = provide_plugin(site)?.display().to_string();
    let plugins = repository_root()?
        .join(EXAMPLE)
        .join("plugins.yaml")
        .display()
        .to_string();
    let begun = Instant::now();
    site.join_with(&["--plugins", &plugins, "--mounts", &mounts])?;
    let join = begun.elapsed().as_secs_f64();
    site.poll_every("1s").await?;
    site.deploy().await?;
    let uids = site.uids().await?;
    ensure!(uids.len() == 3, "a Deployment and two pods, not {uids:?}");
    render(site).await?;

    let begun = Instant::now();
    let settings = json!({"log": "info,farwater_agent=debug", "memoryLimit": "300Mi"});
    want_agent(site, AGENT_NEXT, &settings, "True", "Updated").await?;
    let upgrade = begun.elapsed().as_secs_f64();
    ensure!(
        site.cluster().await?.agent_image.as_deref() == Some(AGENT_NEXT),
        "the hub is told of the new version"
    );
    let updated = agent_container(site).await?;
    let log = json!({"name": "FARWATER_LOG", "value": settings["log"]});
    let is_set = updated["image"] == AGENT_NEXT
        && updated["env"]
            .as_array()
            .is_some_and(|variables| variables.contains(&log))
        && updated["resources"]["limits"]["memory"] == settings["memoryLimit"];
    ensure!(is_set, "the agent's container is {updated:#}");

    let begun = Instant::now();
    stays(site, AGENT_BROKEN, "this version is broken", &updated).await?;
    let back = begun.elapsed().as_secs_f64();
    stays(site, AGENT_LOST, "it did not report in time", &updated).await?;
    ensure!(site.uids().await? == uids, "the workload has changed");

    site.leave()?;
    let after = ours(site)?;
    ensure!(
        after == before,
        "leave takes what join made, not {before:?} to {after:?}"
    );
    let namespaces: Api<Namespace> = Api::all(site.node.client().await?);
    ensure!(
        namespaces.get_opt(AGENT_NAMESPACE).await?.is_none(),
        "the agent's namespace is still there"
    );
    ensure!(
        site.ours::<Cluster>().await?.get_opt("east").await?.is_none(),
        "the Cluster is still there"
    );
    ensure!(site.uids().await? == uids, "the workload has changed");
    Ok(Durations {
        install,
        join,
        upgrade,
        back,
    })
}

/// The example of a plugin in `examples/jsonnet`.
const EXAMPLE: &str = "examples/jsonnet";
const CHART: &str = "apiVersion: v2\nname: shop\nversion: 1.0.0\n";
const FACTS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: facts}\ndata:\n  \
                     kubernetes: {{ .Capabilities.KubeVersion.Version }}\n  install: {{ .Release.IsInstall | quote }}\n  \
                     size: {{ .Values.size }}\n";
const BEFORE: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: before, annotations: {helm.sh/hook: pre-install}}\n\
                      spec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [\
                      {name: main, image: {{ .Values.image }}, imagePullPolicy: Never, command: [test, -d, /bin]}]}}}\n";

/// Imports the example's program into the node. Returns how it gets into the agent's pod.
fn provide_plugin(site: &Site) -> Result<PathBuf> {
    site.node.import(&Images::make_jsonnet(&site.path(""))?)?;
    let stated = fs::read_to_string(repository_root()?.join(EXAMPLE).join("mounts.yaml"))?;
    let (before, rest) = stated
        .split_once("image: ")
        .context("the example has an init container")?;
    let (_, after) = rest.split_once('\n').context("the example has more lines")?;
    let mounts = site.path("mounts.yaml");
    fs::write(&mounts, format!("{before}image: {JSONNET}\n{after}"))?;
    Ok(mounts)
}

/// The rights of the agent's pod are enough for a chart with a hook, and for a plugin.
async fn render(site: &Site) -> Result<()> {
    let example = repository_root()?.join(EXAMPLE);
    let read = |name: &str| fs::read_to_string(example.join(name)).with_context(|| format!("read {name}"));
    let (main, library) = (read("apps/web/main.jsonnet")?, read("apps/lib/workload.libsonnet")?);
    let files = [
        ("apps/web/main.jsonnet", main.as_str()),
        ("apps/lib/workload.libsonnet", &library),
        ("chart/Chart.yaml", CHART),
        ("chart/values.yaml", "size: small\n"),
        ("chart/templates/facts.yaml", FACTS),
        ("chart/templates/before.yaml", BEFORE),
    ];
    site.publish("rendered", &files).await?;
    let services = site.ours::<ServiceDeployment>().await?;
    let chart = json!({
        "clusterRef": {"name": CLUSTER}, "targetNamespace": "charted", "sourceRef": {"name": "rendered"}, "path": "chart",
        "renderers": [{"helm": {"values": {"size": "large", "image": BUSYBOX}}}],
    });
    let charted = ServiceDeployment::new("charted", serde_json::from_value(chart)?);
    services.create(&PostParams::default(), &charted).await?;
    let mut stated: Value = serde_saphyr::from_str(&read("service.yaml")?)?;
    let mut spec = stated["spec"].take();
    spec["sourceRef"]["name"] = json!("rendered");
    spec["targetNamespace"] = json!("plugged");
    spec["configuration"] = json!({"image": PAUSE, "replicas": "1"});
    let plugged = ServiceDeployment::new("plugged", serde_json::from_value(spec)?);
    services.create(&PostParams::default(), &plugged).await?;

    site.until_service("charted").await?;
    let facts = site
        .theirs::<ConfigMap>("charted")
        .await?
        .get("facts")
        .await?
        .data
        .unwrap_or_default();
    let fact = |name: &str| facts.get(name).map(String::as_str);
    ensure!(
        (fact("size"), fact("install")) == (Some("large"), Some("true")),
        "{facts:?}"
    );
    ensure!(
        fact("kubernetes").is_some_and(|version| version.starts_with("v1.")),
        "{facts:?}"
    );
    site.until_service("plugged").await?;
    let made = site.theirs::<Deployment>("plugged").await?.get("plugged").await?;
    ensure!(
        made.status.and_then(|status| status.ready_replicas) == Some(1),
        "its pod does not run"
    );
    site.theirs::<Service>("plugged").await?.get("plugged").await?;
    Ok(())
}

/// The steps of a user with only a cluster and the program. The agent reaches the hub, and the hub a source, by names
/// of the cluster itself.
pub async fn by_names(site: &Site) -> Result<()> {
    let installed = site.run(&["install", "--image", HUB])?;
    let said = String::from_utf8_lossy(&installed.stderr).into_owned();
    ensure!(
        installed.status.success() && said.contains("the hub is ready"),
        "{said}"
    );
    let address = String::from_utf8_lossy(&installed.stdout).trim().to_owned();
    ensure!(address == "https://localhost:8443", "the way in is {address:?}");
    let way = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("kubectl "))
        .context("no way in is printed")?;
    let words: Vec<&str> = way.split_whitespace().collect();
    let _forwarded = Forwarded::start(site, &words).await.with_context(|| said.clone())?;

    site.join()?;
    let agent = agent_container(site).await?;
    let hub = json!({"name": "FARWATER_HUB", "value": "https://farwater-hub.farwater-hub.svc"});
    let is_named = agent["env"]
        .as_array()
        .is_some_and(|variables| variables.contains(&hub));
    ensure!(is_named, "the agent's container is {agent:#}");
    site.poll_every("1s").await?;
    site.deploy().await?;
    let url = name_git(site).await?;
    let repositories = site.ours::<GitRepository>().await?;
    let patch = Patch::Merge(json!({"spec": {"url": url}}));
    let patched = repositories.patch("apps", &PatchParams::default(), &patch).await?;
    wait_for("the source to be found by its name", PATIENCE, || async {
        let status = repositories.get("apps").await?.status.unwrap_or_default();
        let current = status.observed_generation == patched.metadata.generation;
        Ok((current && condition(&status.conditions, "Ready") == Some("True")).then_some(()))
    })
    .await?;
    site.until_ready().await
}

/// Gives the Git server, which runs outside the cluster, a name in it: a Service with a manual address.
async fn name_git(site: &Site) -> Result<String> {
    let url = site.git.url("apps");
    let (host, rest) = url
        .strip_prefix("http://")
        .and_then(|url| url.split_once('/'))
        .context("a URL over http")?;
    let (address, port) = host.rsplit_once(':').context("a port")?;
    let port: u16 = port.parse()?;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "git"}, "spec": {"ports": [{"name": "http", "port": port}]},
    }))?;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "git", "labels": {"kubernetes.io/service-name": "git"}},
        "addressType": "IPv4", "endpoints": [{"addresses": [address]}], "ports": [{"name": "http", "port": port}],
    }))?;
    site.theirs("default")
        .await?
        .create(&PostParams::default(), &service)
        .await?;
    site.theirs("default")
        .await?
        .create(&PostParams::default(), &slice)
        .await?;
    Ok(format!("http://git.default.svc:{port}/{rest}"))
}

/// Requests an unavailable version. The agent reports why, and stays at its version.
async fn stays(site: &Site, image: &str, why: &str, before: &Value) -> Result<()> {
    let halted = want_agent(site, image, &json!({}), "False", "Halted").await?;
    ensure!(
        halted.contains("farwater-admin/east") && halted.contains(why),
        "{image}: {halted}"
    );
    let agent = agent_container(site).await?;
    ensure!(agent == *before, "{image} was not taken back: {agent:#}");
    // The Cluster reports it a moment after its policy.
    wait_for("the cluster to say that its agent went back", PATIENCE, || async {
        let status = site.cluster().await?;
        ensure!(condition(&status.conditions, "Ready") == Some("True"), "{status:?}");
        Ok((condition(&status.conditions, "AgentUpdated") == Some("False")).then_some(()))
    })
    .await
}

async fn agent_container(site: &Site) -> Result<Value> {
    let deployments: Api<Deployment> = site.theirs(AGENT_NAMESPACE).await?;
    let mut deployment = serde_json::to_value(deployments.get("farwater-agent").await?)?;
    Ok(deployment["spec"]["template"]["spec"]["containers"][0].take())
}

/// Sets the version for agents and other fields, and waits until the policy has this `Ready` condition.
async fn want_agent(site: &Site, image: &str, more: &Value, ready: &str, reason: &str) -> Result<String> {
    let policies: Api<AgentPolicy> = Api::all(site.hub().await?);
    let mut spec = json!({"image": image, "deadline": "30s"});
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    let policy = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": "all"}, "spec": spec,
    });
    let made = policies
        .patch("all", &PatchParams::apply("test").force(), &Patch::Apply(policy))
        .await?;
    let what = format!("agents to be {image}, or not");
    let settled = wait_for(&what, 2 * PATIENCE, || async {
        let status = policies.get("all").await?.status.unwrap_or_default();
        let current = status.observed_generation == made.metadata.generation;
        let found = status
            .conditions
            .into_iter()
            .find(|c| c.type_ == "Ready" && c.status == ready && c.reason == reason);
        Ok(found.filter(|_| current).map(|condition| condition.message))
    });
    let error = match settled.await {
        Ok(message) => return Ok(message),
        Err(error) => error,
    };
    let policy = policies.get("all").await.map(|policy| json!(policy.status));
    let selector = "app.kubernetes.io/component=agent";
    let logs = kubectl(
        site,
        &[
            "logs",
            "--namespace",
            AGENT_NAMESPACE,
            "--selector",
            selector,
            "--prefix",
            "--tail",
            "40",
        ],
    );
    let logs = logs.unwrap_or_else(|error| format!("{error:#}"));
    Err(error.context(format!("the policy is {policy:?}\n{logs}")))
}

/// All objects in the cluster with our label.
pub fn ours(site: &Site) -> Result<BTreeSet<String>> {
    let kinds = kubectl(site, &["api-resources", "--verbs=list,delete", "-o", "name"])?;
    let kinds = kinds.split_whitespace().collect::<Vec<_>>().join(",");
    let label = "app.kubernetes.io/part-of=farwater";
    let found = kubectl(
        site,
        &[
            "get",
            &kinds,
            "--all-namespaces",
            "--selector",
            label,
            "--output",
            "name",
        ],
    )?;
    Ok(found.lines().map(str::to_owned).collect())
}

fn kubectl(site: &Site, arguments: &[&str]) -> Result<String> {
    let output = site.node.plane().kubectl()?.args(arguments).output()?;
    ensure!(
        output.status.success(),
        "kubectl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The hub through `kubectl port-forward`. Ends when dropped.
pub struct Forwarded(Child);

impl Forwarded {
    /// `words`: arguments of `kubectl`.
    pub async fn start(site: &Site, words: &[&str]) -> Result<Self> {
        let mut kubectl = site.node.plane().kubectl()?;
        let forwarded = Self(
            kubectl
                .args(words)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
        wait_for("the hub to be reached", PATIENCE, || async {
            let output = site.run(&["get", "clusters", "-A"])?;
            Ok(output.status.success().then_some(()))
        })
        .await?;
        Ok(forwarded)
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
