//! Messages between this version's agent and hub, recorded between the real programs and kept under `tests/wire`.
//!
//! The traces of released versions never change. Those of this version are written with `FARWATER_WRITE=1`.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{
    AGENT_NAMESPACE, APPROVE_PRUNE, AgentPolicy, Cluster, ClusterGrant, GitRepository, ServiceDeployment,
    protocol::PROTOCOL,
};
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::{
    Launch, Plane,
    recorder::Recorder,
    shared,
    wire::{Exchange, Trace, common_members},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Secret},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Objects of the services: one that the API server refuses, and one of a kind that does not exist.
const REFUSED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: refused}\ndata: {value: [1]}\n";
const UNSERVED: &str = "apiVersion: nowhere.example.com/v1\nkind: Ghost\nmetadata: {name: ghost}\n";

fn services(exchange: &Exchange) -> Vec<Value> {
    let services = exchange.asked()["services"].as_object().cloned().unwrap_or_default();
    services.into_iter().map(|(_, report)| report).collect()
}

/// Whether the exchange is an accepted report with a service that matches.
fn reported(exchange: &Exchange, is_it: impl Fn(&Value) -> bool) -> bool {
    exchange.is("status", 200) && services(exchange).iter().any(is_it)
}

/// Whether the exchange is a desired state with an action that matches.
fn desired(exchange: &Exchange, is_it: impl Fn(&Value) -> bool) -> bool {
    let state = exchange.answered();
    let mut entries = state["entries"].as_array().into_iter().flatten();
    exchange.is("desired", 200) && entries.any(|entry| is_it(&entry["action"]))
}

fn has_object(report: &Value, member: &str, word: &str) -> bool {
    report["objects"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|object| object[member] == word)
}

fn refused(exchange: &Exchange, status: u16, reason: &str) -> Result<()> {
    let body = exchange.answered();
    ensure!(
        exchange.answer.status == status && body["reason"] == reason,
        "{}: {body}",
        exchange.name
    );
    Ok(())
}

struct Recording {
    fleet: Fleet,
    recorder: Recorder,
    plane: &'static Plane,
    /// Folder with the recorder's authority.
    _dir: tempfile::TempDir,
}

impl Recording {
    /// A cluster whose agent reaches its hub through the recorder. The agent believes that it runs in a Deployment.
    async fn start() -> Result<Self> {
        let plane = shared(1).await?;
        // The recorder only forwards requests and their answers.
        let mut fleet = Fleet::launch(Launch::arguments(&["--max-connected-agents", "0"])).await?;
        fleet.take_turn(plane).await?;
        let recorder = Recorder::start(&fleet.hub).await?;
        let deployment = own_deployment(plane, &fleet.unique).await?;
        let dir = tempfile::tempdir()?;
        let authority = dir.path().join("authority.pem");
        fs::write(&authority, recorder.authority())?;
        let launch = Launch::arguments(&["--ca-file", &authority.display().to_string()])
            .variable("FARWATER_DEPLOYMENT", &deployment);
        let url = recorder.url();
        let joined = fleet.join_in("east", plane, plane.kubeconfig(), launch, |token| {
            token.hub = url;
            token.ca_pin.clear();
        });
        joined.await?;
        Ok(Self {
            fleet,
            recorder,
            plane,
            _dir: dir,
        })
    }

    async fn keep(&self, name: &str, is_example: impl Fn(&Exchange) -> bool) -> Result<Exchange> {
        self.recorder.keep(name, is_example).await
    }

    async fn joining(&self) -> Result<()> {
        self.keep("join", |x| x.is("join", 200)).await?;
        self.keep("access token", |x| x.is("token", 200)).await?;
        self.keep("first report", |x| x.is("status", 200) && x.asked()["base"] == 0)
            .await?;
        for kind in ["join", "token"] {
            let (name, path) = (format!("{kind}, used twice"), format!("/agent/v1/{kind}"));
            let again = self.recorder.ask(&name, "POST", &path, Some(&self.last(kind)?)).await?;
            refused(&again, 401, "TokenUsed")?;
        }
        Ok(())
    }

    /// The agent's last message of this kind among the kept ones.
    fn last(&self, kind: &str) -> Result<Value> {
        let kept = self.recorder.kept();
        let found = kept.into_iter().rfind(|x| x.is(kind, 200)).map(|x| x.asked());
        found.with_context(|| format!("no {kind} is kept"))
    }

    /// Services that are applied, with all their settings.
    async fn applying(&self) -> Result<()> {
        let secret = json!({"metadata": {"name": "database"}, "stringData": {"password": "of the recording"}});
        self.fleet
            .api::<Secret>()
            .create(&PostParams::default(), &serde_json::from_value(secret)?)
            .await?;
        let more = json!({"secrets": [{"name": "database"}]});
        self.fleet.deploy_with("app", "east", "infra", "app", more).await?;
        self.keep("desired state to apply", |x| {
            desired(x, |action| action["secrets"].is_string())
        })
        .await?;
        self.keep("bundle", |x| x.is("bundles", 200)).await?;
        self.keep("secrets", |x| x.is("secrets", 200)).await?;
        let is_applied = |report: &Value| report["outcome"] == "Applied" && has_object(report, "health", "Current");
        self.keep("report of what was applied", |x| reported(x, is_applied))
            .await?;
        self.keep("unchanged desired state", |x| x.is("desired", 304)).await?;

        self.fleet.deploy("broken", "east", "infra", "broken").await?;
        let is_refused =
            |report: &Value| has_object(report, "sync", "Refused") && has_object(report, "sync", "Waiting");
        self.keep("report of what was refused", |x| reported(x, is_refused))
            .await?;
        Ok(())
    }

    /// A tenant with a full grant, and its service without a grant.
    async fn granting(&self) -> Result<()> {
        let (client, create) = (self.fleet.client.clone(), PostParams::default());
        let namespace = serde_json::from_value(json!({"metadata": {"name": "team-a"}}))?;
        Api::<Namespace>::all(client.clone())
            .create(&create, &namespace)
            .await?;
        let target = self.fleet.namespace("theirs");
        let grant = serde_json::from_value(json!({
            "clusterSelector": {}, "namespaces": ["team-a"], "verbs": ["deploy"], "serviceAccountName": "deployer",
            "targetNamespaces": [target], "allowedKinds": ["ConfigMap"], "deniedKinds": ["Secret"],
        }))?;
        let grants: Api<ClusterGrant> = Api::all(client.clone());
        grants.create(&create, &ClusterGrant::new("team-a", grant)).await?;
        let source = serde_json::from_value(json!({"url": self.fleet.git.url("infra")}))?;
        Api::namespaced(client.clone(), "team-a")
            .create(&create, &GitRepository::new("infra", source))
            .await?;
        let service = serde_json::from_value(json!({
            "clusterRef": {"name": "east"}, "targetNamespace": target, "sourceRef": {"name": "infra"}, "path": "app",
        }))?;
        Api::namespaced(client.clone(), "team-a")
            .create(&create, &ServiceDeployment::new("theirs", service))
            .await?;
        let is_bounded = |action: &Value| action["ceiling"]["deniedKinds"].is_array();
        self.keep("desired state under a grant", |x| desired(x, is_bounded))
            .await?;
        grants.delete("team-a", &DeleteParams::default()).await?;
        let is_held = |action: &Value| {
            action["type"] == "Hold" && action["reason"].as_str().is_some_and(|reason| reason.contains("Grant"))
        };
        self.keep("desired state to hold", |x| desired(x, is_held)).await?;
        Ok(())
    }

    /// A held and approved prune, and deleted services.
    async fn removing(&self, repository: &farwater_testkit::git::Repository) -> Result<()> {
        let commit = repository.branch("main").unwrap_or_default();
        self.fleet.deploy("pruned", "east", "infra", "pruned").await?;
        self.fleet
            .deploy_with("gone", "east", "infra", "gone", json!({"deletionPolicy": "Delete"}))
            .await?;
        self.fleet.until_applied("pruned", &commit).await?;
        self.fleet.until_applied("gone", &commit).await?;
        let emptied = [
            ("pruned/a.yaml", None),
            ("pruned/b.yaml", None),
            ("pruned/keep.yaml", Some("---\n")),
        ];
        repository.change("main", &emptied)?;
        self.fleet.reconcile("infra").await?;
        let held = self
            .keep("report of a held prune", |x| {
                reported(x, |report| report["heldPrune"].is_object())
            })
            .await?;
        let digest = services(&held)
            .iter()
            .find_map(|report| report["heldPrune"]["digest"].as_str().map(str::to_owned));
        self.fleet
            .annotate("pruned", APPROVE_PRUNE, &digest.context("a plan's digest")?)
            .await?;
        self.keep("desired state with an approval", |x| {
            desired(x, |action| action["approvedPrune"].is_string())
        })
        .await?;

        self.fleet.delete_service("gone").await?;
        self.keep("desired state to remove", |x| {
            desired(x, |action| action["policy"] == "Delete")
        })
        .await?;
        self.keep("report of a removal", |x| {
            reported(x, |report| report["outcome"] == "Removed")
        })
        .await?;
        self.fleet.delete_service("pruned").await?;
        self.keep("desired state to leave behind", |x| {
            desired(x, |action| action["policy"] == "Orphan")
        })
        .await?;
        Ok(())
    }

    /// A version of the agent that does not start, because no node runs its pods.
    async fn updating(&self) -> Result<()> {
        let spec = serde_json::from_value(json!({
            "image": "registry.example/agent:2", "log": "debug", "memoryLimit": "512Mi", "deadline": "30s",
        }))?;
        let policies: Api<AgentPolicy> = Api::all(self.fleet.client.clone());
        policies
            .create(&PostParams::default(), &AgentPolicy::new("all", spec))
            .await?;
        self.keep("desired state with the agent's settings", |x| {
            x.is("desired", 200) && x.answered()["agent"].is_object()
        })
        .await?;
        for state in ["Updating", "Failed"] {
            let is_it = |x: &Exchange| x.is("status", 200) && x.asked()["agent"]["update"]["state"] == state;
            self.keep(&format!("report of the agent's update: {state}"), is_it)
                .await?;
        }
        Ok(())
    }

    /// Refused messages. They are sent in the agent's place, except for the report that builds on an unknown one.
    async fn refusing(&self, repository: &farwater_testkit::git::Repository) -> Result<()> {
        let recorder = &self.recorder;
        let nobody = recorder
            .ask_as_nobody("poll with another token", "/agent/v1/desired")
            .await?;
        refused(&nobody, 401, "TokenUnknown")?;
        let unknown = format!("/agent/v1/bundles/sha256:{}", "0".repeat(64));
        refused(
            &recorder
                .ask("bundle that is not desired", "GET", &unknown, None)
                .await?,
            403,
            "NotDesired",
        )?;
        refused(
            &recorder
                .ask("path of a newer version", "GET", "/agent/v9/desired", None)
                .await?,
            404,
            "PathUnknown",
        )?;
        let mut report = self.last("status")?;
        report["base"] = report["sequence"].clone();
        let status = "/agent/v1/status";
        refused(
            &recorder
                .ask("report that goes back", "POST", status, Some(&report))
                .await?,
            400,
            "Invalid",
        )?;

        // As if the hub had lost some reports: the agent's next one builds on a report that the hub does not know.
        let last = report["sequence"].as_u64().context("a sequence")?;
        (report["base"], report["sequence"], report["services"]) = (0.into(), (last + 1000).into(), json!({}));
        let ahead = recorder
            .ask("report of another agent", "POST", status, Some(&report))
            .await?;
        ensure!(ahead.answer.status == 200, "{}", ahead.answered());
        repository.change("main", &[("app/a.yaml", Some(&config_map("a", "two")))])?;
        self.fleet.reconcile("infra").await?;
        let is_unknown = |x: &Exchange| x.is("status", 409);
        let unknown = self
            .keep("report on a base that the hub does not know", is_unknown)
            .await?;
        refused(&unknown, 409, "BaseUnknown")?;
        let is_everything = |x: &Exchange| x.is("status", 200) && x.asked()["base"] == 0 && services(x).len() > 1;
        self.keep("report of everything", is_everything).await?;
        Ok(())
    }

    /// Ends the agent, and returns its stored data.
    async fn end(mut self) -> Result<Trace> {
        let deployments: Api<Deployment> = Api::namespaced(self.plane.client().await?, AGENT_NAMESPACE);
        deployments.delete(&self.fleet.unique, &DeleteParams::default()).await?;
        self.fleet.agent("east")?.stop()?;
        let dir = self.fleet.state_dir("east");
        let read = |name: &str| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(dir.join(name))?)?) };
        Ok(Trace {
            version: VERSION.to_owned(),
            protocol: PROTOCOL,
            exchanges: self.recorder.kept(),
            identity: read("identity.json")?,
            state: read("state.json")?,
        })
    }
}

/// The Deployment that an AgentPolicy changes. No node runs its pods.
async fn own_deployment(plane: &Plane, name: &str) -> Result<String> {
    let client = plane.client().await?;
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": AGENT_NAMESPACE}}))?;
    match Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
    {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        other => drop(other?),
    }
    let labels = json!({"app": name});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "agent", "image": "registry.example/agent:1"}]},
            },
        },
    }))?;
    Api::namespaced(client, AGENT_NAMESPACE)
        .create(&PostParams::default(), &deployment)
        .await?;
    Ok(name.to_owned())
}

/// All members of all messages, each from an example of its kind. For refused ones only the answer counts, because they
/// were sent in the agent's place or are an arbitrary next report.
fn shape(trace: &Trace) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for exchange in &trace.exchanges {
        let status = exchange.answer.status;
        let asked = (status < 400).then(|| ("asked", exchange.asked()));
        for (side, mut message) in asked.into_iter().chain([("answered", exchange.answered())]) {
            if let Some(services) = message.get_mut("services") {
                // Members with uids as names differ between two recordings, so replace them.
                *services = services
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(_, report)| report.clone())
                    .collect();
            }
            let members = common_members(&[message]).into_iter();
            all.extend(members.map(|member| format!("{} {side} {status} {member}", exchange.kind())));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_this_versions_agent_and_hub_say_is_kept() -> Result<()> {
    let recording = Recording::start().await?;
    let (a, b) = (config_map("a", "one"), config_map("b", "one"));
    let files = [
        ("app/a.yaml", a.as_str()),
        ("broken/refused.yaml", REFUSED),
        ("broken/unserved.yaml", UNSERVED),
        ("pruned/a.yaml", &a),
        ("pruned/b.yaml", &b),
        ("gone/a.yaml", &a),
    ];
    let repository = recording.fleet.repository("infra", &files).await?;
    recording.joining().await?;
    recording.applying().await?;
    recording.granting().await?;
    recording.removing(&repository).await?;
    recording.updating().await?;
    recording.refusing(&repository).await?;
    let clusters: Api<Cluster> = recording.fleet.api();
    let conditions = clusters.get("east").await?.status.unwrap_or_default().conditions;
    ensure!(
        conditions.iter().all(|condition| condition.type_ != "VersionSkew"),
        "{conditions:?}"
    );
    let trace = recording.end().await?;

    if std::env::var_os("FARWATER_WRITE").is_some() {
        return trace.save();
    }
    let folder = Trace::folder(VERSION);
    if folder.is_dir() {
        let (kept, now) = (shape(&Trace::load(&folder)?), shape(&trace));
        let differ: Vec<_> = kept.symmetric_difference(&now).collect();
        ensure!(
            differ.is_empty(),
            "{VERSION} says something else than its trace: {differ:#?}\nBefore its release: FARWATER_WRITE=1. After it: this is \
             another version; see docs/protocol.md"
        );
    }
    Ok(())
}
