//! Pipelines: how a commit gets from a stage to the next, and what never does.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    hooks::HookReport,
    objects::{Health, Outcome},
    pipeline::ApprovalRequest,
    protocol::Entry,
};
use farwater_hub::{promotion::advance_promotions, resources::Name};
use farwater_testkit::{
    Prometheus,
    fake::Said,
    gatekeeper::{Gatekeeper, Gauge},
    git::{GitServer, Repository},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{PATIENCE, Rig, WEB, condition, message, repository},
};

mod proposing;
mod texts;

const PIPELINE: &str = "web";

/// One service in staging, a set on two clusters in production, each with a repository of its own.
struct World {
    rig: Rig,
    git: Repository,
    _server: GitServer,
    agents: BTreeMap<&'static str, Agent>,
    last: BTreeMap<&'static str, Entry>,
    /// (cluster, bundle) in the order in which they came.
    course: Vec<(&'static str, Digest)>,
    /// (cluster, bundle, promoted `imageTag`) in the order in which they came.
    texts: Vec<(&'static str, Digest, String)>,
    /// What does not get healthy.
    bad: Vec<(&'static str, Digest)>,
    /// Clusters on which nothing new gets healthy.
    worse: Vec<&'static str>,
}

const SET: &str = "web-prod";

const STAGING: &str = "a-staging";
const PRODUCTION: [&str; 2] = ["b-prod", "c-prod"];

impl World {
    async fn start(gates: Value, on_failure: &str) -> Self {
        let (server, git) = repository().await;
        let rig = Rig::start().await;
        rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
        rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
        let promoted = json!({"url": server.url("infra.git"), "interval": "10m", "ref": {"pipeline": PIPELINE}});
        rig.create(
            "GitRepository",
            ADMIN_NAMESPACE,
            "infra-prod",
            json!({"spec": promoted}),
        )
        .await;
        let mut world = Self {
            rig,
            git,
            _server: server,
            agents: BTreeMap::new(),
            last: BTreeMap::new(),
            course: Vec::new(),
            texts: Vec::new(),
            bad: Vec::new(),
            worse: Vec::new(),
        };
        for name in [STAGING, PRODUCTION[0], PRODUCTION[1]] {
            let stage = if name == STAGING { "staging" } else { "prod" };
            let spec = json!({"spec": {"pollInterval": "30s"}, "labels": {"stage": stage}});
            world.rig.create("Cluster", ADMIN_NAMESPACE, name, spec).await;
            let agent = Agent::join(&world.rig, name).await;
            world.agents.insert(name, agent);
        }
        world
            .rig
            .service(ADMIN_NAMESPACE, "web-staging", STAGING, "apps/web")
            .await;
        let set = json!({
            "clusterSelector": {"matchLabels": {"stage": "prod"}},
            "rollout": {"soak": "1s", "failAfter": "1s", "maxUnavailable": 1},
            "template": {"spec": {"targetNamespace": "web", "sourceRef": {"name": "infra-prod"}, "path": "apps/web"}},
        });
        world
            .rig
            .create("ServiceSet", ADMIN_NAMESPACE, SET, json!({"spec": set}))
            .await;
        let stages = json!([
            {"name": "staging", "sourceRef": {"name": "infra"}, "services": ["web-staging"], "onFailure": "Halt"},
            {"name": "production", "sourceRef": {"name": "infra-prod"}, "sets": ["web-prod"], "gates": gates, "onFailure": on_failure},
        ]);
        world
            .rig
            .create(
                "Pipeline",
                ADMIN_NAMESPACE,
                PIPELINE,
                json!({"spec": {"stages": stages}}),
            )
            .await;
        world
    }

    /// Each agent looks once. When there is nothing for any of them, and nothing to be done by the hub, a second passes.
    async fn step(&mut self) {
        let is_news = self.look().await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        if !is_news && self.rig.is_at_rest().await {
            self.pass(1);
        }
    }

    /// The pipeline and its set are looked at, so many seconds later.
    fn pass(&self, seconds: u64) {
        self.rig.pass(seconds);
        self.rig.replica.memory.sets.queue.add(Name::new(ADMIN_NAMESPACE, SET));
        self.rig
            .replica
            .memory
            .pipelines
            .queue
            .add(Name::new(ADMIN_NAMESPACE, PIPELINE));
    }

    /// Each agent looks once, and says what it has. Whether that was anything new.
    async fn look(&mut self) -> bool {
        let mut is_news = false;
        for (name, agent) in &mut self.agents {
            let Some(entry) = agent.news(&self.rig, self.last.get(name)).await else {
                continue;
            };
            is_news = true;
            let bundle = applied(&entry).unwrap().bundle;
            let before = self.last.get(name).and_then(applied).map(|last| last.bundle);
            if before != Some(bundle) {
                self.course.push((name, bundle));
            }
            let tag = applied(&entry)
                .unwrap()
                .configuration
                .get("imageTag")
                .cloned()
                .unwrap_or_default();
            let last = self.texts.iter().rfind(|(cluster, ..)| cluster == name);
            if last.is_none_or(|last| (last.1, &last.2) != (bundle, &tag)) {
                self.texts.push((name, bundle, tag));
            }
            if self.worse.contains(name) && before.is_some_and(|before| before != bundle) {
                self.bad.push((name, bundle));
                self.worse.retain(|worse| worse != name);
            }
            let health = if self.bad.contains(&(name, bundle)) {
                Health::Failed
            } else {
                Health::Current
            };
            let uid = entry.service.uid.clone();
            let mut report = said(&entry, Outcome::Applied, &[("web", health)]);
            report.hooks = applied(&entry)
                .unwrap()
                .tests
                .iter()
                .map(|test| test_run(&test.name, "Succeeded"))
                .collect();
            agent.say(&self.rig, &uid, report).await;
            self.last.insert(name, entry);
        }
        is_news
    }

    async fn pipeline(&self) -> Value {
        self.rig.get("Pipeline", ADMIN_NAMESPACE, PIPELINE).await.unwrap()
    }

    async fn until(&mut self, what: &str, holds: impl Fn(&Self, &Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            self.step().await;
            let pipeline = self.pipeline().await;
            if holds(self, &pipeline) {
                return pipeline;
            }
            let waited = format!(
                "waited in vain until {what}: {:#}\n{:?}",
                pipeline["status"], self.course
            );
            assert!(begun.elapsed() < PATIENCE, "{waited}");
        }
    }

    async fn until_waiting_for(&mut self, commit: &str) -> Value {
        let is_it = |pipeline: &Value| {
            let candidate = &pipeline["status"]["stages"][1]["candidate"];
            candidate["revision"] == format!("sha1:{commit}") && candidate["digest"].is_string()
        };
        self.until("it is a candidate", |_, pipeline| is_it(pipeline)).await
    }

    async fn until_in_production(&mut self, bundle: Digest) {
        let has = |world: &Self| PRODUCTION.iter().all(|name| world.bundle(name) == Some(bundle));
        self.until("production has it", |world, pipeline| {
            has(world) && condition(pipeline, "Ready") == "True/Settled"
        })
        .await;
    }

    fn bundle(&self, name: &str) -> Option<Digest> {
        self.last
            .get(name)
            .and_then(applied)
            .map(|deployment| deployment.bundle)
    }

    /// Half a minute passes, which is longer than soaks and the intervals of gates. The pipeline and its set are looked at again and
    /// again, and the agents get what comes of it.
    async fn go_on(&mut self) {
        let looks = |world: &Self| {
            [
                &world.rig.replica.memory.sets.queue,
                &world.rig.replica.memory.pipelines.queue,
            ]
            .map(|queue| queue.counts().done)
        };
        for _ in 0..6 {
            let before = looks(self);
            self.pass(5);
            let have_looked = || looks(self).iter().zip(before).all(|(now, before)| *now > before);
            self.rig.wait_until("both are looked at", async || have_looked()).await;
            self.rig
                .wait_until("what comes of it is done", async || self.rig.is_at_rest().await)
                .await;
            self.look().await;
        }
    }

    async fn commit(&self, text: &str) -> String {
        let changed = format!("{WEB}data: {{text: {text}}}\n");
        let commit = self
            .git
            .change("main", &[("apps/web/web.yaml", Some(&changed))])
            .unwrap();
        self.rig.ask(ADMIN_NAMESPACE, "infra").await;
        commit
    }

    async fn approve(&self, by: &str, digest: &Value) {
        assert_eq!(self.say(by, &["release"], digest).await.err(), None);
    }

    /// A person of some groups; the commit that it was for, or why the word isn't taken.
    async fn say(&self, by: &str, groups: &[&str], digest: &Value) -> Result<String, String> {
        let digest = serde_json::from_value(digest.clone()).unwrap();
        let request = ApprovalRequest {
            stage: "production".to_owned(),
            digest,
            reason: "it is good".to_owned(),
        };
        let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        let name = Name::new(ADMIN_NAMESPACE, PIPELINE);
        let said = advance_promotions::approve(&self.rig.replica, &name, &request, (by, &groups)).await;
        said.map_err(|refusal| refusal.to_string())
    }

    async fn restart(mut self) -> Self {
        self.rig = self.rig.crash(self.agents.values_mut()).await;
        self
    }

    fn of_production(&self) -> Vec<Digest> {
        let mut found: Vec<Digest> = Vec::new();
        for (name, bundle) in &self.course {
            if *name != STAGING && found.last() != Some(bundle) {
                found.push(*bundle);
            }
        }
        found
    }
}

/// A test that has ended.
pub fn test_run(name: &str, state: &str) -> HookReport {
    serde_json::from_value(json!({
        "group": "batch", "version": "v1", "kind": "Job", "namespace": "web", "name": format!("web-test-{name}"),
        "phase": "Test", "run": Digest::of(name), "state": state, "test": name,
    }))
    .unwrap()
}

fn digest(pipeline: &Value) -> Value {
    pipeline["status"]["stages"][1]["candidate"]["digest"].clone()
}

fn gate(pipeline: &Value, index: usize) -> &str {
    pipeline["status"]["stages"][1]["candidate"]["gates"][index]["message"]
        .as_str()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_gets_to_production_once_its_gates_hold_and_no_other_does() {
    let gates = json!([{"type": "Soak", "duration": "1s"}, {"type": "Approval", "quorum": 2, "groups": ["release"]}]);
    let mut world = World::start(gates, "Halt").await;
    let first = world.git.branch("main").unwrap();
    let waiting = world.until_waiting_for(&first).await;
    assert_eq!(condition(&waiting, "Ready"), "True/Waiting");
    assert_eq!(
        message(&waiting, "Ready"),
        "stage production waits for Approval: 0 of 2 have approved"
    );
    assert_eq!(world.of_production(), []);
    let source = world
        .rig
        .get("GitRepository", ADMIN_NAMESPACE, "infra-prod")
        .await
        .unwrap();
    assert_eq!(condition(&source, "Ready"), "False/NotPromoted");
    let told = "Pipeline web has promoted nothing to stage production yet; nothing is served";
    assert_eq!(message(&source, "Ready"), told);

    let refused = world.say("eve", &["dev"], &digest(&waiting)).await.unwrap_err();
    assert_eq!(refused, "only members of release approve what gets to stage production");
    let refused = world
        .say("ada", &["release"], &json!(Digest::of("another")))
        .await
        .unwrap_err();
    assert_eq!(
        refused,
        "the candidate for stage production has changed: review it again"
    );

    // One word, a hub that is killed, the same word, and another one.
    world.approve("ada", &digest(&waiting)).await;
    world
        .until("it is known", |_, pipeline| {
            gate(pipeline, 1) == "1 of 2 have approved: ada"
        })
        .await;
    let mut world = world.restart().await;
    world.until_waiting_for(&first).await;
    world.approve("ada", &digest(&waiting)).await;
    world.go_on().await;
    assert_eq!(world.of_production(), []);
    world.approve("bob", &digest(&waiting)).await;
    let bundle = world.bundle(STAGING).unwrap();
    world.until_in_production(bundle).await;
    let stage = world.pipeline().await["status"]["stages"][1].clone();
    assert_eq!(stage["approvedBy"], json!(["ada", "bob"]));
    assert_eq!(stage["revision"], format!("sha1:{first}"));

    // What is broken in staging is no candidate, whoever approves; its fix is, and an approval is for what it was given to.
    world.worse.push(STAGING);
    let broken = world.commit("broken").await;
    world.until("it is broken", |world, _| !world.bad.is_empty()).await;
    world.go_on().await;
    assert_eq!(digest(&world.pipeline().await), Value::Null);
    let refused = world.say("ada", &["release"], &digest(&waiting)).await.unwrap_err();
    assert_eq!(refused, "nothing waits to be approved for stage production");
    let fix = world.commit("fix").await;
    let waiting = world.until_waiting_for(&fix).await;
    world.approve("ada", &digest(&waiting)).await;
    world
        .until("it is known", |_, pipeline| {
            gate(pipeline, 1) == "1 of 2 have approved: ada"
        })
        .await;
    world
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, "web-prod", |set| {
            set["spec"]["template"]["spec"]["prune"] = false.into();
        })
        .await;
    let lapsed = world
        .until("it has lapsed", |_, pipeline| {
            gate(pipeline, 1) == "0 of 2 have approved"
        })
        .await;
    assert_ne!(digest(&lapsed), digest(&waiting));
    for by in ["ada", "bob"] {
        world.approve(by, &digest(&lapsed)).await;
    }
    let fixed = world.bundle(STAGING).unwrap();
    world.until_in_production(fixed).await;
    assert_eq!(world.of_production(), [bundle, fixed], "{broken} got there");
    let events = world.rig.events().await;
    let told: Vec<&str> = events
        .iter()
        .filter(|event| event["reason"] == "Promoted")
        .map(|event| event["message"].as_str().unwrap())
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");

    // The branch is another one by now, and the hub is new: production stays at what it has, and a cluster that comes gets that.
    world.commit("newest").await;
    let mut world = world.restart().await;
    world.go_on().await;
    assert_eq!(world.of_production(), [bundle, fixed]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_fails_goes_back_and_takes_that_commit_no_more() {
    let mut world = World::start(json!([]), "Rollback").await;
    world
        .until("production has it", |world, _| {
            PRODUCTION.iter().all(|name| world.bundle(name).is_some())
        })
        .await;
    let first = world.bundle(STAGING).unwrap();
    world.until_in_production(first).await;
    // It is good in staging, and not on the first of production's clusters.
    world.worse.push(PRODUCTION[0]);
    let bad = world.commit("bad").await;
    let refused = |pipeline: &Value| pipeline["status"]["stages"][1]["refused"] == format!("sha1:{bad}");
    world.until("it is refused", |_, pipeline| refused(pipeline)).await;
    world.until_in_production(first).await;
    assert_eq!(
        world.course.iter().filter(|(name, _)| *name == PRODUCTION[1]).count(),
        1,
        "{:?}",
        world.course
    );
    let mut world = world.restart().await;
    world.go_on().await;
    assert_eq!(world.bundle(PRODUCTION[0]), Some(first));
    world.commit("good").await;
    world
        .until("staging has it", |world, _| {
            world.course.iter().filter(|(name, _)| *name == STAGING).count() == 3
        })
        .await;
    let good = world.bundle(STAGING).unwrap();
    world.until_in_production(good).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_silent_holds_up_no_stage_and_catches_up() {
    let mut world = World::start(json!([]), "Halt").await;
    world
        .until("production has it", |world, _| {
            PRODUCTION.iter().all(|name| world.bundle(name).is_some())
        })
        .await;
    let first = world.bundle(STAGING).unwrap();
    world.until_in_production(first).await;
    let [_, away] = PRODUCTION;
    // It counts as silent after nine seconds.
    world
        .rig
        .edit("Cluster", ADMIN_NAMESPACE, away, |cluster| {
            cluster["spec"]["pollInterval"] = "1s".into()
        })
        .await;
    let agent = world.agents.remove(away).unwrap();
    let is_silent = |cluster: &Value| condition(cluster, "Ready") == "False/AgentSilent";
    world.rig.pass(10);
    world.rig.wait_for("Cluster", ADMIN_NAMESPACE, away, is_silent).await;
    let second = world.commit("two").await;
    let is_whole = |pipeline: &Value| {
        let stage = &pipeline["status"]["stages"][1];
        stage["revision"] == format!("sha1:{second}") && condition(pipeline, "Ready") == "True/Settled"
    };
    world
        .until("all of production that is heard has it", |_, pipeline| {
            is_whole(pipeline)
        })
        .await;
    assert_eq!(world.bundle(away), Some(first));
    world.agents.insert(away, agent);
    world
        .until("the other has it too", |world, _| {
            world.bundle(away) == world.bundle(STAGING)
        })
        .await;
    assert_ne!(world.bundle(away), Some(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_concerns_nothing_of_a_stage_goes_through_it() {
    let mut world = World::start(json!([{"type": "Soak", "duration": "1s"}]), "Halt").await;
    world
        .until("production has it", |world, _| {
            PRODUCTION.iter().all(|name| world.bundle(name).is_some())
        })
        .await;
    let first = world.bundle(STAGING).unwrap();
    world.until_in_production(first).await;
    let came = world.course.len();
    for n in ["1", "2"] {
        let other = world.git.change("main", &[("README", Some(n))]).unwrap();
        world.rig.ask(ADMIN_NAMESPACE, "infra").await;
        let is_there = |pipeline: &Value| {
            pipeline["status"]["stages"][1]["revision"] == format!("sha1:{other}")
                && condition(pipeline, "Ready") == "True/Settled"
        };
        world
            .until("production is at it, and settled", |_, pipeline| is_there(pipeline))
            .await;
    }
    assert_eq!(world.course.len(), came, "nobody was told anything");
    let set = world.rig.get("ServiceSet", ADMIN_NAMESPACE, "web-prod").await.unwrap();
    assert_eq!(set["status"]["rollout"]["number"], 1, "{:#}", set["status"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_opens_the_way_and_what_is_wrong_with_a_stage_closes_it() {
    let (now, soon) = (Timestamp::now(), 2);
    let hour = (now + jiff::SignedDuration::from_hours(soon))
        .strftime("%H")
        .to_string();
    let gates = json!([{"type": "Window", "schedule": format!("0 {hour} * * *"), "duration": "1h"}]);
    let mut world = World::start(gates, "Halt").await;
    let first = world.git.branch("main").unwrap();
    let waiting = world.until_waiting_for(&first).await;
    assert!(gate(&waiting, 0).starts_with("it opens at 2"), "{waiting:#}");
    // It follows something else: nothing is promoted to it, though the window is open.
    world
        .rig
        .edit("GitRepository", ADMIN_NAMESPACE, "infra-prod", |source| {
            source["spec"]["suspend"] = true.into()
        })
        .await;
    world
        .rig
        .edit("GitRepository", ADMIN_NAMESPACE, "infra-prod", |source| {
            source["spec"]["ref"] = json!({"branch": "main"});
        })
        .await;
    let stalled = world
        .until("it says so", |_, pipeline| {
            condition(pipeline, "Stalled") == "True/StageInvalid"
        })
        .await;
    let told = message(&stalled, "Ready");
    assert!(
        told.ends_with("GitRepository infra-prod does not follow this pipeline: set spec.ref to {pipeline: web}"),
        "{told}"
    );
    let minutes = f64::from(now.to_zoned(jiff::tz::TimeZone::UTC).minute());
    world.rig.set_clock(2.5 - minutes / 60.0);
    world
        .rig
        .replica
        .memory
        .pipelines
        .queue
        .add(Name::new(ADMIN_NAMESPACE, PIPELINE));
    world.go_on().await;
    assert_eq!(world.of_production(), []);
    world
        .rig
        .edit("GitRepository", ADMIN_NAMESPACE, "infra-prod", |source| {
            source["spec"]["ref"] = json!({"pipeline": PIPELINE});
            source["spec"]["suspend"] = false.into();
        })
        .await;
    let bundle = world.bundle(STAGING).unwrap();
    world.until_in_production(bundle).await;

    // Nobody is left to guess which of two is meant.
    let follow = async |world: &World, reference: Value| {
        let edit = |source: &mut Value| source["spec"]["ref"] = reference.clone();
        world
            .rig
            .edit("GitRepository", ADMIN_NAMESPACE, "infra-prod", edit)
            .await;
    };
    follow(&world, json!({"pipeline": PIPELINE, "branch": "main"})).await;
    let is_told = |source: &Value| condition(source, "Stalled") == "True/SpecInvalid";
    let told = world
        .rig
        .wait_for("GitRepository", ADMIN_NAMESPACE, "infra-prod", is_told)
        .await;
    assert!(message(&told, "Ready").starts_with("ref has 2 fields set"), "{told:#}");

    // Somebody lets one through that is no good in staging, and then gives the stage back.
    world.worse.push(STAGING);
    let urgent = world.commit("urgent").await;
    follow(&world, json!({"commit": urgent})).await;
    let forgotten = |pipeline: &Value| {
        let stage = &pipeline["status"]["stages"][1];
        stage["revision"] == format!("sha1:{urgent}") && stage["promotedAt"].is_null()
    };
    world.until("it is there", |_, pipeline| forgotten(pipeline)).await;
    follow(&world, json!({"pipeline": PIPELINE})).await;
    let has = |world: &World| PRODUCTION.iter().all(|name| world.bundle(name) != Some(bundle));
    world
        .until("all have it", |world, pipeline| {
            has(world) && condition(pipeline, "Stalled") == "absent"
        })
        .await;
    let course = world.course.len();
    world.go_on().await;
    assert_eq!(world.course.len(), course, "{:?}", world.course);
}

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const QUERY: &str = "sum(rate(errors_total{job=\"web\"}[5m])) + 0";

async fn secret(world: &World, name: &str, key: &str, value: &str) {
    let data = json!({"data": {key: STANDARD.encode(value)}});
    world.rig.create("Secret", ADMIN_NAMESPACE, name, data).await;
}

async fn edit_pipeline(world: &World, edit: impl Fn(&mut Value)) {
    world.rig.edit("Pipeline", ADMIN_NAMESPACE, PIPELINE, edit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn others_let_exactly_this_pass_and_neither_an_error_nor_a_word_on_something_else_does() {
    let keeper = Gatekeeper::start(TOKEN).await.unwrap();
    let gauge = Gauge::start("let-me-in", QUERY, "5").await.unwrap();
    let gates = json!([
        {"type": "Webhook", "address": "http://10.1.2.3/ask", "secretRef": {"name": "keeper"}, "interval": "1s"},
        {"type": "Metric", "address": gauge.url(), "secretRef": {"name": "gauge"}, "interval": "1s", "count": 2,
         "query": QUERY, "condition": "self.value < 0.01"},
    ]);
    let mut world = World::start(gates, "Halt").await;
    secret(&world, "keeper", "token", TOKEN).await;
    secret(&world, "gauge", "bearerToken", "let-me-in").await;
    let first = world.git.branch("main").unwrap();
    world.until_waiting_for(&first).await;
    let private = "it could not be asked: 10.1.2.3: messages are not sent to addresses that are not public";
    world
        .until("it is refused", |_, pipeline| gate(pipeline, 0).starts_with(private))
        .await;

    keeper.set_fault(Some(Said::status(503)));
    edit_pipeline(&world, |pipeline| {
        pipeline["spec"]["stages"][1]["gates"][0]["address"] = keeper.url().into()
    })
    .await;
    world
        .until("it fails", |_, pipeline| gate(pipeline, 0).contains("failed (HTTP 503"))
        .await;
    keeper.set_fault(None);
    keeper.say("wait", "tests run");
    world
        .until("it waits", |_, pipeline| gate(pipeline, 0) == "it says wait: tests run")
        .await;
    keeper.say("pass", "");
    world
        .until("it passes", |_, pipeline| gate(pipeline, 0) == "it says pass")
        .await;
    world
        .until("it is measured", |_, pipeline| {
            gate(pipeline, 1) == "it does not hold: 5.0"
        })
        .await;
    let mut world = world.restart().await;
    world.go_on().await;
    assert_eq!(world.of_production(), []);
    gauge.set("0.002");
    let bundle = world.bundle(STAGING).unwrap();
    world.until_in_production(bundle).await;

    // A no is one to this commit, and it is not asked again, until a person wants that.
    keeper.say("fail", "CHG-7 is rejected");
    let second = world.commit("second").await;
    let failed = world
        .until("it fails", |_, pipeline| {
            condition(pipeline, "Ready") == "True/GateFailed"
        })
        .await;
    let told = "stage production does not get the next commit: Webhook: it says fail: CHG-7 is rejected";
    assert_eq!(message(&failed, "Ready"), told);
    keeper.say("pass", "CHG-7 is approved");
    let asked = keeper.taken().len();
    world.go_on().await;
    assert_eq!((keeper.taken().len(), world.of_production()), (asked, vec![bundle]));
    edit_pipeline(&world, |pipeline| {
        pipeline["metadata"]["annotations"]["farwater.dev/requestedAt"] = "now".into()
    })
    .await;
    let bundles = [bundle, world.bundle(STAGING).unwrap()];
    world.until_in_production(bundles[1]).await;
    assert_eq!(world.of_production(), bundles);
    let revisions: Vec<Value> = keeper
        .taken()
        .into_iter()
        .map(|body| body["revision"].clone())
        .collect();
    assert_eq!(revisions.first().unwrap(), &json!(format!("sha1:{first}")));
    assert_eq!(revisions.last().unwrap(), &json!(format!("sha1:{second}")));
    assert_eq!(
        (keeper.refused(), gauge.refused()),
        (Vec::<String>::new(), Vec::<String>::new())
    );
    let events = world.rig.events().await;
    assert_eq!(events.iter().filter(|event| event["reason"] == "GateFailed").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_tested_before_goes_nowhere_and_a_prometheus_that_is_away_holds_everything() {
    let prometheus = Prometheus::start("global: {scrape_interval: 1m}\n").await.unwrap();
    let gates = json!([
        {"type": "Test", "tests": ["smoke"]},
        {"type": "Metric", "address": prometheus.url(), "interval": "1s", "duration": "1s", "query": "vector(2)",
         "condition": "self.value > 1 && self.series.all(one, size(one.labels) == 0)"},
    ]);
    let mut world = World::start(gates, "Halt").await;
    let first = world.git.branch("main").unwrap();
    world.until_waiting_for(&first).await;
    world
        .until("it is measured", |_, pipeline| gate(pipeline, 1) == "it holds: 2.0")
        .await;
    let waiting = world.pipeline().await;
    assert_eq!(gate(&waiting, 0), "nothing of stage staging states a test smoke");
    assert_eq!(world.of_production(), []);
    let tests = json!([{"name": "smoke", "image": "curl", "timeout": "1m"}]);
    world
        .rig
        .edit("ServiceDeployment", ADMIN_NAMESPACE, "web-staging", |service| {
            service["spec"]["tests"] = tests.clone()
        })
        .await;
    let bundle = world.bundle(STAGING).unwrap();
    world.until_in_production(bundle).await;

    drop(prometheus);
    let second = world.commit("second").await;
    world.until_waiting_for(&second).await;
    let away = |pipeline: &Value| gate(pipeline, 1).starts_with("it could not be measured: 127.0.0.1:");
    let waiting = world.until("it is away", |_, pipeline| away(pipeline)).await;
    assert_eq!(gate(&waiting, 0), "passed in stage staging: smoke");
    world.go_on().await;
    assert_eq!(world.of_production(), [bundle]);
}
