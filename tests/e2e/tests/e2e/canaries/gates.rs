//! Gates that the hub asks before a commit reaches the next stage, and the host where it opens pull requests.

use anyhow::{Result, ensure};
use farwater_api::Pipeline;
use farwater_e2e::Fleet;
use farwater_testkit::{
    fake::Said,
    gatekeeper::{Gatekeeper, Gauge},
    git::{Auth, GitServer, Repository},
};
use serde_json::{Value, json};

use super::{
    canary::{Marks, right, wrong},
    objects::{change_secret, create, put_secret, reconcile, until},
};

const PIPELINE: &str = "web";
const QUERY: &str = "sum(errors)";
const BOT: &str = "bot";
const FILE: &str = "repos/beyond.yaml";

pub struct Gates {
    keeper: Gatekeeper,
    gauge: Gauge,
    /// Git server with the repository that people merge into.
    server: GitServer,
    env: Repository,
}

fn login(password: &str) -> Value {
    json!({"username": BOT, "password": password})
}

impl Gates {
    pub async fn start() -> Result<Self> {
        let keeper = Gatekeeper::start(&right("keeper")).await?;
        let gauge = Gauge::start(&right("gauge"), QUERY, "5").await?;
        let server = GitServer::start().await?;
        let env = server.create("env")?;
        env.git(&["config", "http.receivepack", "true"], b"")?;
        env.commit(
            "main",
            &[(FILE, &format!("spec: {{ref: {{commit: \"{}\"}}}}\n", "0".repeat(40)))],
        )?;
        server.set_auth(Auth::Basic {
            username: BOT.to_owned(),
            password: right("pusher"),
        });
        Ok(Self {
            keeper,
            gauge,
            server,
            env,
        })
    }

    /// Promotes from the service `app` to the set `web`, and with a commit to the service `beyond`, which is at an
    /// older commit. All tokens are refused at first.
    pub async fn create(&self, fleet: &Fleet, url: &str, older: &str) -> Result<()> {
        let secrets = [
            ("keeper", json!({"token": wrong("keeper")})),
            ("gauge", json!({"bearerToken": wrong("gauge")})),
            ("pusher", login(&wrong("pusher"))),
            ("env", login(&right("pusher"))),
        ];
        for (name, texts) in &secrets {
            put_secret(fleet, name, texts).await?;
        }
        let env = self.server.url("env");
        let sources = [
            ("web", json!({"url": url, "ref": {"pipeline": PIPELINE}})),
            ("beyond", json!({"url": url, "ref": {"commit": older}})),
            ("env", json!({"url": env, "secretRef": {"name": "env"}})),
        ];
        for (name, spec) in sources {
            create(fleet, "GitRepository", name, spec).await?;
        }
        let template = json!({"targetNamespace": fleet.namespace("web"), "sourceRef": {"name": "web"}, "path": "web"});
        let rollout = json!({"soak": "1s", "failAfter": "1s"});
        let set = json!({"clusterSelector": {}, "rollout": rollout, "template": {"spec": template}});
        create(fleet, "ServiceSet", "web", set).await?;
        fleet.deploy("beyond", "east", "beyond", "web").await?;
        let of = |name: &str| json!({"name": name});
        let gates = json!([
            {"type": "Webhook", "address": self.keeper.url(), "secretRef": of("keeper"), "interval": "1s"},
            {"type": "Metric", "address": self.gauge.url(), "secretRef": of("gauge"), "interval": "1s",
             "query": QUERY, "condition": "self.value < 0.01"},
        ]);
        let pull = json!({
            "sourceRef": of("env"), "url": env, "secretRef": of("pusher"), "path": FILE, "field": "spec.ref.commit",
        });
        let stages = json!([
            {"name": "staging", "sourceRef": of("infra"), "services": ["app"]},
            {"name": "production", "sourceRef": of("web"), "sets": ["web"], "gates": gates},
            {"name": "beyond", "sourceRef": of("beyond"), "services": ["beyond"], "pullRequest": pull},
        ]);
        create(fleet, "Pipeline", PIPELINE, json!({"stages": stages})).await
    }

    /// Messages of each gate of the second stage, once both are as expected.
    async fn until_gates(
        &self,
        fleet: &Fleet,
        marks: &Marks,
        what: &str,
        is_expected: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let pipelines = fleet.api::<Pipeline>();
        let gates = fleet.until(what, || async {
            let stages = pipelines.get(PIPELINE).await?.status.unwrap_or_default().stages;
            let gates = stages
                .into_iter()
                .nth(1)
                .and_then(|stage| stage.candidate)
                .unwrap_or_default()
                .gates;
            Ok((gates.len() == 2 && gates.iter().all(|gate| is_expected(&gate.message))).then_some(gates))
        });
        marks.check("a gate", &format!("{:?}", gates.await?))
    }

    /// No gate succeeds before its Secret is right, or while it fails and returns what it received.
    pub async fn ask(&self, fleet: &Fleet, marks: &Marks) -> Result<()> {
        let is_refused = |said: &str| said.contains("HTTP 401");
        self.until_gates(fleet, marks, "the gates to be refused", is_refused)
            .await?;
        change_secret(fleet, "keeper", &json!({"token": right("keeper")})).await?;
        change_secret(fleet, "gauge", &json!({"bearerToken": right("gauge")})).await?;
        reconcile(fleet, "Pipeline", PIPELINE).await?;
        self.until_gates(fleet, marks, "the gates to answer", |said| !is_refused(said))
            .await?;
        // A server can only repeat what it received. Until now it received other credentials.
        let said = |token: &str| {
            Some(Said {
                status: 503,
                body: format!("not with {token}"),
                headers: Vec::new(),
            })
        };
        self.keeper.set_fault(said(&right("keeper")));
        self.gauge.set_fault(said(&right("gauge")));
        reconcile(fleet, "Pipeline", PIPELINE).await?;
        self.until_gates(fleet, marks, "the gates to fail", |said| said.contains("(HTTP 503"))
            .await?;
        self.keeper.say("pass", "");
        self.gauge.set("0.001");
        self.keeper.set_fault(None);
        self.gauge.set_fault(None);
        reconcile(fleet, "Pipeline", PIPELINE).await?;
        fleet
            .until_service("web-east", "be assigned", |service| {
                service
                    .status
                    .as_ref()
                    .is_some_and(|status| status.assigned_revision.is_some())
            })
            .await?;
        ensure!(!self.keeper.taken().is_empty());
        Ok(())
    }

    /// Nothing is pushed for the last stage before its Secret is right.
    pub async fn push(&self, fleet: &Fleet, marks: &Marks) -> Result<()> {
        until(fleet, marks, "Pipeline", PIPELINE, "False/PushFailed").await?;
        change_secret(fleet, "pusher", &login(&right("pusher"))).await?;
        reconcile(fleet, "Pipeline", PIPELINE).await?;
        let branch = "farwater/promote/web/beyond";
        fleet
            .until("the branch to be pushed", || async {
                Ok(self.env.branch(branch).map(drop))
            })
            .await
    }
}
