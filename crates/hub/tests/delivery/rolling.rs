//! How a change of a ServiceSet spreads over its clusters.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use farwater_api::{
    ADMIN_NAMESPACE, Digest, OVERRIDE_FREEZE, RolloutPhase, ServiceSet,
    objects::{Health, Outcome},
    protocol::Entry,
    service_set::{Member, Progress, ProgressCounts, RolloutSurvey, SetVersion, VERSIONS_KEPT},
};
use farwater_hub::{
    memory::sets::Scope,
    resources::Name,
    sets::{
        plan_sets::{self, Place, Selected},
        rollouts, set_versions,
    },
};
use farwater_store::{Resource, delivery::save_heartbeats};
use farwater_testkit::git::{GitServer, Repository};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    agent::{Agent, said},
    delivering::applied,
    parameters::handed,
    promoting::test_run,
    rig::{PATIENCE, Rig, WEB, condition, key, message, repository},
};

mod orders;
mod places;

pub const SET: &str = "web";

/// Clusters whose agents do at once what they are told, and say so.
pub struct Fleet {
    pub rig: Rig,
    pub git: Repository,
    _server: GitServer,
    pub agents: BTreeMap<&'static str, Agent>,
    /// Bundles that don't get healthy.
    bad: BTreeSet<Digest>,
    /// Target namespaces in which nothing does.
    bad_places: BTreeSet<&'static str>,
    /// Everything but these is bad.
    pub good: Option<BTreeSet<Digest>>,
    /// What each was last seen with, by the cluster.
    pub last: HashMap<&'static str, Entry>,
    /// The colour that each is handed by the context `shared`, and the colours that nothing gets healthy with.
    pub colours: BTreeMap<&'static str, String>,
    pub bad_colours: BTreeSet<&'static str>,
    /// (cluster, colour) in the order in which they came.
    pub painted: Vec<(&'static str, String)>,
    /// (cluster, bundle) in the order in which they came.
    course: Vec<(&'static str, Digest)>,
    /// How tests end; none: they are not run.
    tests_end: Option<&'static str>,
    /// Seconds that pass when all is done that could be. Zero: no more than really pass.
    pub pace: u64,
}

impl Fleet {
    pub async fn start(names: &[&'static str], rollout: Value) -> Self {
        Self::start_with(names, rollout, json!({}), Vec::new()).await
    }

    /// `template`: beside what each has. `objects`: by kind and name, in the set's namespace.
    pub async fn start_with(
        names: &[&'static str],
        rollout: Value,
        template: Value,
        objects: Vec<(&str, &str, Value)>,
    ) -> Self {
        let (server, _) = repository().await;
        // In a folder, as Git hosts have them.
        let git = server.create("team/infra").unwrap();
        git.commit("main", &[("apps/web/web.yaml", WEB)]).unwrap();
        let rig = Rig::start().await;
        rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
        rig.repository(ADMIN_NAMESPACE, "infra", &server.url("team/infra"))
            .await;
        let mut fleet = Self {
            rig,
            git,
            _server: server,
            agents: BTreeMap::new(),
            bad: BTreeSet::new(),
            bad_places: BTreeSet::new(),
            good: None,
            last: HashMap::new(),
            colours: BTreeMap::new(),
            bad_colours: BTreeSet::new(),
            painted: Vec::new(),
            course: Vec::new(),
            tests_end: None,
            pace: 1,
        };
        for (kind, name, object) in objects {
            fleet.rig.create(kind, ADMIN_NAMESPACE, name, object).await;
        }
        for name in names {
            fleet.join(name).await;
        }
        let mut policy = json!({"soak": "1s", "failAfter": "1s", "maxUnavailable": 1});
        policy
            .as_object_mut()
            .unwrap()
            .extend(rollout.as_object().unwrap().clone());
        let mut spec = json!({
            "clusterSelector": {"matchLabels": {"env": "prod"}},
            "rollout": policy,
            "template": {"spec": {"targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "apps/web"}},
        });
        let stated = spec["template"]["spec"].as_object_mut().unwrap();
        stated.extend(template.as_object().unwrap().clone());
        fleet
            .rig
            .create("ServiceSet", ADMIN_NAMESPACE, SET, json!({"spec": spec}))
            .await;
        fleet
    }

    async fn join(&mut self, name: &'static str) {
        let region = if name < "c" { "eu" } else { "us" };
        let labels = json!({"env": "prod", "name": name, "region": region});
        // Silent after three minutes.
        let spec = json!({"spec": {"pollInterval": "60s"}, "labels": labels});
        self.rig.create("Cluster", ADMIN_NAMESPACE, name, spec).await;
        let agent = Agent::join(&self.rig, name).await;
        self.agents.insert(name, agent);
    }

    /// Each agent looks once. When there is nothing for any of them, and nothing to be done by the hub, time passes.
    pub async fn step(&mut self) {
        let is_news = self.look().await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        if !is_news && self.rig.is_at_rest().await {
            self.pass(self.pace);
        }
    }

    /// Each agent looks once, and does what it is told. Whether there was anything.
    async fn look(&mut self) -> bool {
        let mut is_news = false;
        for (name, agent) in &mut self.agents {
            let Some(entry) = agent.news(&self.rig, self.last.get(name)).await else {
                continue;
            };
            is_news = true;
            let bundle = applied(&entry).unwrap().bundle;
            if self
                .last
                .get(name)
                .and_then(applied)
                .is_none_or(|last| last.bundle != bundle)
            {
                self.course.push((name, bundle));
            }
            let place = applied(&entry).unwrap().target_namespace.as_str();
            let uid = entry.service.uid.clone();
            let mut is_bad = false;
            if let Some(mac) = applied(&entry).unwrap().parameters {
                let colour = handed(&self.rig, agent, &uid, &mac).await.values["contexts"]["shared"]["colour"].clone();
                let colour = colour.as_str().unwrap_or_default().to_owned();
                is_bad = self.bad_colours.contains(&*colour);
                if self.colours.insert(name, colour.clone()).as_ref() != Some(&colour) {
                    self.painted.push((name, colour));
                }
            }
            let is_bad = is_bad
                || self.bad_places.contains(place)
                || self.bad.contains(&bundle)
                || self.good.as_ref().is_some_and(|good| !good.contains(&bundle));
            let health = if is_bad { Health::Failed } else { Health::Current };
            // An agent whose test has failed says that of the attempt, too.
            let outcome = if self.tests_end == Some("Failed") {
                Outcome::Failed
            } else {
                Outcome::Applied
            };
            let mut report = said(&entry, outcome, &[("web", health)]);
            if let Some(state) = self.tests_end {
                report.hooks = applied(&entry)
                    .unwrap()
                    .tests
                    .iter()
                    .map(|test| test_run(&test.name, state))
                    .collect();
            }
            agent.say(&self.rig, &uid, report).await;
            self.last.insert(name, entry);
        }
        is_news
    }

    /// The set is looked at, so many seconds later.
    fn pass(&self, seconds: u64) {
        self.rig.pass(seconds);
        self.rig.replica.memory.sets.queue.add(Name::new(ADMIN_NAMESPACE, SET));
    }

    /// The hub is killed and started again.
    pub async fn crash(mut self) -> Self {
        self.rig = self.rig.crash(self.agents.values_mut()).await;
        self
    }

    pub async fn set(&self) -> Value {
        self.rig.get("ServiceSet", ADMIN_NAMESPACE, SET).await.unwrap()
    }

    pub async fn until(&mut self, what: &str, holds: impl Fn(&Self, &Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            self.step().await;
            let set = self.set().await;
            if holds(self, &set) {
                return set;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "waited in vain until {what}: {:#}\n{:?}\n{:#?}",
                set["status"],
                self.course,
                self.rows().await
            );
        }
    }

    async fn rows(&self) -> Vec<farwater_store::delivery::RollingMember> {
        let uid = self.set().await["metadata"]["uid"].as_str().unwrap().to_owned();
        farwater_store::delivery::rolling_members(&mut self.rig.store.tables().await.unwrap(), &uid)
            .await
            .unwrap()
    }

    async fn survey(&self) -> RolloutSurvey {
        let (name, set) = self.named().await;
        plan_sets::survey(&self.rig.replica, (&name, &set)).await.unwrap()
    }

    async fn named(&self) -> (Name, Resource) {
        let set = self
            .rig
            .store
            .get(&key("ServiceSet", ADMIN_NAMESPACE, SET))
            .await
            .unwrap()
            .unwrap();
        (Name::new(ADMIN_NAMESPACE, SET), set)
    }

    /// Everything goes its way for half a minute, which is longer than soaks and what fails are waited for, and shorter than it takes
    /// to be silent. The set is looked at again and again, and the agents get what comes of it.
    pub async fn go_on(&mut self) {
        for _ in 0..6 {
            let before = self.rig.replica.memory.sets.queue.counts().done;
            self.pass(5);
            let sets = &self.rig.replica.memory.sets;
            self.rig
                .wait_until("the set is looked at", async || sets.queue.counts().done > before)
                .await;
            self.rig
                .wait_until("what comes of it is done", async || self.rig.is_at_rest().await)
                .await;
            self.look().await;
        }
    }

    pub async fn until_complete(&mut self) -> Digest {
        let count = i64::try_from(self.agents.len()).unwrap();
        self.until("the rollout is complete", |fleet, set| {
            let status = &set["status"]["rollout"];
            let bundles: BTreeSet<_> = fleet.bundles().into_values().collect();
            status["phase"] == "Complete" && status["updated"] == count && bundles.len() == 1
        })
        .await;
        *self.bundles().values().next().unwrap()
    }

    /// Once all have one bundle, and it is such a one.
    async fn until_complete_with(&mut self, holds: impl Fn(Digest) -> bool) -> Digest {
        self.until("all have it", |fleet, set| {
            let bundles: BTreeSet<_> = fleet.bundles().into_values().collect();
            set["status"]["rollout"]["phase"] == "Complete" && bundles.len() == 1 && bundles.into_iter().all(&holds)
        })
        .await;
        *self.bundles().values().next().unwrap()
    }

    async fn versions(&self) -> Vec<SetVersion> {
        let uid = self.set().await["metadata"]["uid"].as_str().unwrap().to_owned();
        set_versions::list(&mut self.rig.store.tables().await.unwrap(), &uid)
            .await
            .unwrap()
    }

    /// In the order of their clusters' names.
    async fn members(&self) -> Vec<Member> {
        let (name, set) = self.named().await;
        let all = (&Place::default(), 100);
        let (mut members, _) = plan_sets::members(&self.rig.replica, (&name, &set), Selected::All, all)
            .await
            .unwrap();
        members.sort_by(|a, b| a.cluster.cmp(&b.cluster));
        members
    }

    /// By the cluster.
    async fn standings(&self) -> BTreeMap<String, String> {
        let members = self.members().await;
        members
            .into_iter()
            .map(|member| (member.cluster, member.standing))
            .collect()
    }

    fn bundles(&self) -> BTreeMap<&'static str, Digest> {
        self.last
            .iter()
            .map(|(name, entry)| (*name, applied(entry).unwrap().bundle))
            .collect()
    }

    pub async fn commit(&self, text: &str) {
        self.git
            .change(
                "main",
                &[("apps/web/web.yaml", Some(&format!("{WEB}data: {{text: {text}}}\n")))],
            )
            .unwrap();
        self.rig.ask(ADMIN_NAMESPACE, "infra").await;
    }

    /// Clusters that have ever had another bundle than this since.
    fn reached(&self, since: usize) -> BTreeSet<&'static str> {
        self.course[since..].iter().map(|(name, _)| *name).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_commit_reaches_the_canary_and_nobody_else_and_its_fix_comes_there_first() {
    let mut fleet = Fleet::start(&["a", "b", "c", "d"], json!({})).await;
    let first = fleet.until_complete().await;
    assert_eq!(fleet.course[0].0, "a", "the canary is the first by name");
    fleet.good = Some([first].into());
    let before = fleet.course.len();
    fleet.commit("bad").await;
    let halted = fleet
        .until("it is halted", |_, set| set["status"]["rollout"]["phase"] == "Halted")
        .await;
    assert_eq!(halted["status"]["rollout"]["haltedBy"], "farwater-admin/a");
    fleet.go_on().await;
    assert_eq!(fleet.reached(before), ["a"].into());

    let bad = fleet.bundles()["a"];
    (fleet.bad, fleet.good) = ([bad].into(), None);
    let before = fleet.course.len();
    fleet.commit("fix").await;
    let fixed = fleet.until_complete().await;
    assert!(fixed != first && fixed != bad);
    assert_eq!(fleet.course[before], ("a", fixed));
    assert_eq!(fleet.course.len(), before + 4, "{:?}", fleet.course);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_template_spreads_as_a_commit_does() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({})).await;
    fleet.until_complete().await;
    let before = fleet.last.clone();
    let edit = async |fleet: &Fleet, kind: Value| {
        fleet
            .rig
            .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
                set["spec"]["template"]["spec"]["targetNamespace"] = kind.clone()
            })
            .await;
    };
    let place = |fleet: &Fleet, name| applied(&fleet.last[name]).unwrap().target_namespace.clone();
    edit(&fleet, json!("other")).await;
    let seen = fleet
        .until("the canary has it", |fleet, _| place(fleet, "a") == "other")
        .await;
    assert_ne!(seen["status"]["rollout"]["phase"], "Complete");
    for name in ["b", "c"] {
        assert_eq!(
            fleet.last[name].digest(),
            before[name].digest(),
            "{name} got something of it"
        );
    }
    // Its service says what it shall be, and runs what it may.
    let service = fleet
        .rig
        .get("ServiceDeployment", ADMIN_NAMESPACE, "web-c")
        .await
        .unwrap();
    assert_eq!(service["spec"]["targetNamespace"], "other");
    fleet
        .until("all have it", |fleet, set| {
            set["status"]["rollout"]["phase"] == "Complete"
                && ["a", "b", "c"].iter().all(|name| place(fleet, name) == "other")
        })
        .await;

    // Taken back before it came further than the canary, it was nowhere else.
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["rollout"]["soak"] = "1h".into()
        })
        .await;
    let before = fleet.last.clone();
    edit(&fleet, json!("third")).await;
    fleet
        .until("the canary has it", |fleet, _| place(fleet, "a") == "third")
        .await;
    edit(&fleet, json!("other")).await;
    fleet.until("it is gone", |fleet, _| place(fleet, "a") == "other").await;
    for name in ["b", "c"] {
        assert_eq!(
            fleet.last[name].digest(),
            before[name].digest(),
            "{name} got something of it"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_about_the_version_before_opens_no_step() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    fleet.until_complete().await;
    let old = fleet.last["a"].clone();
    // The canary's agent says nothing of what it gets.
    let silent = fleet.agents.remove("a").unwrap();
    let mut canary = silent;
    fleet.commit("two").await;
    let uid = old.service.uid.clone();
    let (_, new) = canary
        .wait_entry(&fleet.rig, &uid, |entry| entry.digest() != old.digest())
        .await;
    let before = fleet.course.len();
    for _ in 0..2 {
        canary
            .say(
                &fleet.rig,
                &uid,
                said(&old, Outcome::Applied, &[("web", Health::Current)]),
            )
            .await;
        fleet.go_on().await;
    }
    assert!(fleet.reached(before).is_empty(), "{:?}", fleet.course);
    canary
        .say(
            &fleet.rig,
            &uid,
            said(&new, Outcome::Applied, &[("web", Health::Current)]),
        )
        .await;
    fleet.agents.insert("a", canary);
    fleet.last.insert("a", new);
    fleet.until_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_commit_takes_the_place_of_one_under_way() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({"soak": "10s"})).await;
    let first = fleet.until_complete().await;
    let before = fleet.course.len();
    fleet.commit("two").await;
    fleet
        .until("the canary has it", |fleet, _| fleet.bundles()["a"] != first)
        .await;
    let second = fleet.bundles()["a"];
    fleet.commit("three").await;
    let third = fleet.until_complete().await;
    assert!(third != second && third != first);
    let course: Vec<_> = fleet.course[before..].to_vec();
    assert_eq!(course[..2], [("a", second), ("a", third)]);
    assert!(
        course[2..]
            .iter()
            .all(|(name, bundle)| *name != "a" && *bundle == third),
        "{course:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_killed_in_mid_rollout_goes_on() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({})).await;
    let first = fleet.until_complete().await;
    let before = fleet.course.len();
    fleet.commit("two").await;
    for reached in [1, 2] {
        fleet
            .until("it has come there", |fleet, _| fleet.course.len() == before + reached)
            .await;
        fleet = fleet.crash().await;
    }
    fleet.until_complete().await;
    assert!(
        fleet.course[before].0 == "a" && fleet.course.len() == before + 3,
        "{:?}",
        fleet.course
    );
    assert_ne!(fleet.bundles()["a"], first);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_the_place_of_a_canary_that_a_hub_that_was_killed_has_not_heard_yet() {
    let canary = json!({"clusterSelector": {"matchLabels": {"name": "b"}}, "count": 1});
    let mut fleet = Fleet::start(&["a", "b"], json!({"canary": canary})).await;
    fleet.until_complete().await;
    let before = fleet.course.len();
    let mut unheard = fleet.agents.remove("b").unwrap();
    fleet.rig.kill_controllers().await;
    // Heard for the last time so long ago that it may be silent by now.
    let rows = fleet
        .rows()
        .await
        .into_iter()
        .map(|member| (member.row.cluster_uid, 1))
        .collect::<Vec<_>>();
    fleet
        .rig
        .store
        .transact(move |tx| Box::pin(async move { save_heartbeats(tx, &rows).await }))
        .await
        .unwrap();
    fleet = fleet.crash().await;
    fleet.commit("two").await;
    fleet.go_on().await;
    assert_eq!(fleet.reached(before), [].into());
    unheard.renew(&fleet.rig).await;
    fleet.agents.insert("b", unheard);
    fleet.until_complete().await;
    assert_eq!(fleet.course[before].0, "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_come_one_after_the_other_and_nothing_moves_while_it_is_paused() {
    let selects = |name: &str| json!({"matchLabels": {"name": name}});
    let steps =
        json!([{"name": "late", "clusterSelector": selects("b")}, {"name": "later", "clusterSelector": selects("a")}]);
    let mut fleet = Fleet::start(
        &["a", "b", "c", "d"],
        json!({
            "canary": {"clusterSelector": selects("d")}, "steps": steps, "maxUnavailable": "100%",
        }),
    )
    .await;
    let first = fleet.until_complete().await;
    let order = |fleet: &Fleet, since: usize| fleet.course[since..].iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(order(&fleet, 0), ["d", "b", "a", "c"]);
    let pause = async |fleet: &Fleet, on: bool| {
        fleet
            .rig
            .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
                set["spec"]["rollout"]["paused"] = on.into()
            })
            .await;
    };
    let before = fleet.course.len();
    fleet.commit("two").await;
    fleet
        .until("the canary has it", |fleet, _| fleet.bundles()["d"] != first)
        .await;
    pause(&fleet, true).await;
    fleet
        .until("it is paused", |_, set| set["status"]["rollout"]["phase"] == "Paused")
        .await;
    fleet.go_on().await;
    assert_eq!(order(&fleet, before), ["d"]);
    pause(&fleet, false).await;
    fleet.until_complete().await;
    assert_eq!(order(&fleet, before), ["d", "b", "a", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_pauses_a_set_wants_nothing_decided_by_what_it_was_before() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    fleet.until_complete().await;
    let (name, before) = fleet.named().await;
    let edit = |set: &mut Value| set["spec"]["template"]["spec"]["targetNamespace"] = "other".into();
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["rollout"]["paused"] = true.into()
        })
        .await;
    fleet.rig.edit("ServiceSet", ADMIN_NAMESPACE, SET, edit).await;
    fleet
        .until("it is paused", |_, set| set["status"]["rollout"]["phase"] == "Paused")
        .await;
    fleet.rig.kill_controllers().await;
    // As by a look that had begun before.
    let set: ServiceSet = serde_json::from_value((*before.object).clone()).unwrap();
    let rows = fleet.rows().await;
    let advance = rollouts::advance(&fleet.rig.replica, &name, (&before, &set), &Scope::All)
        .await
        .unwrap();
    assert!(advance.is_none());
    assert_eq!(fleet.rows().await, rows);
    let (name, now) = fleet.named().await;
    let set: ServiceSet = serde_json::from_value((*now.object).clone()).unwrap();
    let advance = rollouts::advance(&fleet.rig.replica, &name, (&now, &set), &Scope::All)
        .await
        .unwrap();
    assert_eq!(advance.unwrap().status.phase, RolloutPhase::Paused);
}

/// What counts is read in several statements, and written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_stated_while_a_set_is_paused_reaches_nobody_however_often() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    fleet.until_complete().await;
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["rollout"]["paused"] = true.into()
        })
        .await;
    let place =
        |name: &'static str| move |set: &mut Value| set["spec"]["template"]["spec"]["targetNamespace"] = name.into();
    let stated = async |fleet: &Fleet, name: &str| {
        let service = fleet
            .rig
            .get("ServiceDeployment", ADMIN_NAMESPACE, "web-b")
            .await
            .unwrap();
        service["spec"]["targetNamespace"] == name
    };
    for n in 0..50 {
        // Back at what counts nothing is held, and the next is held anew.
        for name in ["other", "web"] {
            fleet.rig.edit("ServiceSet", ADMIN_NAMESPACE, SET, place(name)).await;
            fleet
                .rig
                .wait_until("it is stated", async || stated(&fleet, name).await)
                .await;
            for (cluster, agent) in &fleet.agents {
                let last = fleet.last.get(cluster);
                let news = agent.news(&fleet.rig, last).await;
                assert!(news.is_none(), "{n}: {cluster} got {news:?} and had {last:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn how_services_go_is_stated_at_once_and_is_no_rollout() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    let first = fleet.until_complete().await;
    let number = async |fleet: &Fleet| {
        let set = fleet.rig.get("ServiceSet", ADMIN_NAMESPACE, SET).await.unwrap();
        set["status"]["rollout"]["number"].as_u64().unwrap()
    };
    let before = number(&fleet).await;
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["deletionPolicy"] = "Delete".into()
        })
        .await;
    for name in ["web-a", "web-b"] {
        let states = |service: &Value| service["spec"]["deletionPolicy"] == "Delete";
        fleet
            .rig
            .wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, states)
            .await;
    }
    // All are looked at, and are done with what they have.
    fleet.rig.wait_idle().await;
    fleet
        .until("it says so", |_, set| set["status"]["rollout"]["updated"] == 2)
        .await;
    assert_eq!(number(&fleet).await, before);
    fleet.commit("two").await;
    fleet.until_complete_with(|bundle| bundle != first).await;
    assert_eq!(number(&fleet).await, before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joins_a_set_at_rest_waits_for_nobody_and_all_at_once_waits_for_nothing() {
    let mut fleet = Fleet::start(&["a", "b"], json!({"soak": "1h", "strategy": "AllAtOnce"})).await;
    let first = fleet.until("all have it", |fleet, _| fleet.bundles().len() == 2).await;
    assert!(first["status"]["rollout"]["number"].as_u64() >= Some(1));
    let before = fleet.course.len();
    fleet.commit("two").await;
    fleet
        .until("all have the next", |fleet, _| fleet.reached(before).len() == 2)
        .await;
    fleet.join("c").await;
    fleet
        .until("the new one has it", |fleet, _| fleet.bundles().contains_key("c"))
        .await;
    assert_eq!(fleet.bundles()["c"], fleet.bundles()["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_comes_back_is_as_new_as_any() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    let first = fleet.until_complete().await;
    let label = async |fleet: &Fleet, env: &str| {
        fleet
            .rig
            .edit("Cluster", ADMIN_NAMESPACE, "b", |cluster| {
                cluster["metadata"]["labels"]["env"] = env.into()
            })
            .await;
    };
    label(&fleet, "gone").await;
    let uid = fleet.last["b"].service.uid.clone();
    let b = fleet.agents.get_mut("b").unwrap();
    let (_, removal) = b.wait_entry(&fleet.rig, &uid, |entry| applied(entry).is_none()).await;
    b.say(&fleet.rig, &uid, said(&removal, Outcome::Removed, &[])).await;
    let mut returning = fleet.agents.remove("b").unwrap();
    fleet.last.remove("b");
    fleet.commit("two").await;
    fleet
        .until("the other has the next", |fleet, _| fleet.bundles()["a"] != first)
        .await;
    let second = fleet.until_complete().await;

    returning.renew(&fleet.rig).await;
    fleet.agents.insert("b", returning);
    label(&fleet, "prod").await;
    fleet
        .until("it has what the others have", |fleet, _| {
            fleet.bundles().get("b") == Some(&second)
        })
        .await;
    // What the service before had is nothing that this one could go back to.
    let rows = fleet.rows().await;
    let back = rows.iter().find(|member| member.row.service_name == "web-b").unwrap();
    let track: Value = serde_json::from_str(&back.row.track).unwrap();
    assert!(track["released"].is_string() && track["back"].is_null(), "{back:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_goes_back_by_itself_where_that_is_asked_for() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({"onFailure": "Rollback"})).await;
    let first = fleet.until_complete().await;
    fleet.good = Some([first].into());
    let before = fleet.course.len();
    fleet.commit("bad").await;
    fleet
        .until("the canary is back", |fleet, _| {
            fleet.course.len() == before + 2 && fleet.bundles()["a"] == first
        })
        .await;
    fleet.go_on().await;
    assert_eq!(fleet.course[before].0, "a");
    assert_eq!(fleet.course.len(), before + 2, "{:?}", fleet.course);
    for (name, reason) in [("web-a", "True/RolledBack"), ("web-b", "True/NotReleased")] {
        let is_held = |service: &Value| {
            condition(service, "RolloutHeld") == reason && service["status"]["heldRevision"].is_string()
        };
        let rig = &fleet.rig;
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, is_held).await;
    }

    // A template too, with what it was.
    fleet.good = None;
    let is_there = |fleet: &Fleet| {
        fleet
            .last
            .values()
            .any(|entry| applied(entry).unwrap().target_namespace == "other")
    };
    fleet.commit("good").await;
    let good = fleet.until_complete().await;
    fleet.bad_places.insert("other");
    let edited = fleet.rig.edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        set["spec"]["template"]["spec"]["targetNamespace"] = "other".into();
    });
    edited.await;
    fleet.until("the canary has it", |fleet, _| is_there(fleet)).await;
    fleet.until("the canary is back", |fleet, _| !is_there(fleet)).await;
    assert!(fleet.bundles().values().all(|bundle| *bundle == good));
    fleet.go_on().await;
    assert!(!is_there(&fleet));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_word_counts_for_the_rollout_that_it_names() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({"soak": "1s", "maxUnavailable": "100%"})).await;
    let first = fleet.until_complete().await;
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["rollout"]["soak"] = "1h".into()
        })
        .await;
    let order = async |fleet: &Fleet, order: Value| {
        fleet
            .rig
            .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
                set["spec"]["rollout"]["order"] = order.clone()
            })
            .await;
    };
    let number = async |fleet: &Fleet| fleet.set().await["status"]["rollout"]["number"].as_u64().unwrap();
    let before = fleet.course.len();
    fleet.commit("two").await;
    fleet
        .until("the canary has it", |fleet, _| fleet.course.len() == before + 1)
        .await;
    let now = number(&fleet).await;
    order(
        &fleet,
        json!({"number": now - 1, "promote": "Soak", "reason": "an old one"}),
    )
    .await;
    fleet.go_on().await;
    assert_eq!(fleet.course.len(), before + 1, "an order of another rollout");
    order(
        &fleet,
        json!({"number": now, "promote": "Soak", "reason": "looked at it"}),
    )
    .await;
    fleet
        .until("all have it", |fleet, _| {
            fleet.bundles().values().all(|bundle| *bundle != first)
        })
        .await;

    // The next one needs another word.
    let second = fleet.bundles()["a"];
    let before = fleet.course.len();
    fleet.commit("three").await;
    fleet
        .until("a canary has it", |fleet, _| fleet.course.len() == before + 1)
        .await;
    fleet.go_on().await;
    assert_eq!(fleet.course.len(), before + 1);
    let now = number(&fleet).await;
    order(&fleet, json!({"number": now, "abort": true, "reason": "not today"})).await;
    fleet
        .until("it is back", |fleet, _| {
            fleet.bundles().values().all(|bundle| *bundle == second)
        })
        .await;
    // Until that has soaked.
    fleet
        .until("it says so", |_, set| {
            set["status"]["rollout"]["phase"] == "RollingBack"
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_goes_back_to_a_version_with_its_repository_gone_and_on_again() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({})).await;
    let first = fleet.until_complete().await;
    let one = fleet.set().await["status"]["lastGood"].as_u64().unwrap();
    let edit = async |fleet: &Fleet, edit: &dyn Fn(&mut Value)| {
        fleet
            .rig
            .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| edit(&mut set["spec"]))
            .await;
    };
    let place = |fleet: &Fleet, name: &str| applied(&fleet.last[name]).unwrap().target_namespace.clone();
    let everywhere = |fleet: &Fleet, bundle: Digest, wanted: &str| {
        fleet.bundles().values().all(|now| *now == bundle)
            && ["a", "b", "c"].iter().all(|name| place(fleet, name) == wanted)
    };
    // Another template and another content, one after the other.
    edit(&fleet, &|spec| {
        spec["template"]["spec"]["targetNamespace"] = "other".into()
    })
    .await;
    fleet
        .until("all have the template", |fleet, set| {
            set["status"]["rollout"]["phase"] == "Complete" && everywhere(fleet, first, "other")
        })
        .await;
    fleet.commit("two").await;
    fleet
        .until("somebody has the commit", |fleet, _| fleet.bundles()["a"] != first)
        .await;
    let second = fleet.until_complete().await;
    let two = fleet.set().await["status"]["lastGood"].as_u64().unwrap();
    assert!(two > one);

    // Nothing is asked of Git any more.
    fleet
        .rig
        .edit("GitRepository", ADMIN_NAMESPACE, "infra", |source| {
            source["spec"]["url"] = "https://127.0.0.1:1/gone.git".into();
        })
        .await;
    let before = fleet.course.len();
    edit(&fleet, &|spec| {
        spec["pin"] = json!({"version": one, "reason": "two is slow"});
        // For long enough to be seen.
        spec["rollout"]["soak"] = "5s".into();
    })
    .await;
    fleet
        .until("the canary is back", |fleet, _| {
            place(fleet, "a") == "web" && fleet.bundles()["a"] == first
        })
        .await;
    assert_eq!(
        fleet.reached(before),
        ["a"].into(),
        "it goes back as by any other change"
    );
    let of_one = fleet
        .versions()
        .await
        .into_iter()
        .find(|version| version.number == one)
        .unwrap()
        .revision;
    let wanted = async |fleet: &Fleet| {
        let members = fleet.members().await.into_iter();
        members.map(|member| member.wanted_revision).collect::<Vec<_>>()
    };
    assert_eq!(
        wanted(&fleet).await,
        ["", &of_one, &of_one],
        "what it is pinned to is wanted, and not what Git has"
    );
    let set = fleet
        .until("the canary soaks", |_, set| {
            condition(set, "Ready") == "False/RolloutOpen"
        })
        .await;
    let told = message(&set, "Ready");
    assert!(
        told.starts_with("healthy on 3 clusters, at version 1, pinned: two is slow; rollout "),
        "{told}"
    );
    assert!(
        told.contains(" is in progress: ") && told.ends_with(" of 3 clusters at what the set asks for"),
        "{told}"
    );
    let back = fleet
        .until("all are back", |fleet, set| {
            set["status"]["rollout"]["phase"] == "Complete" && everywhere(fleet, first, "web")
        })
        .await;
    assert_eq!(wanted(&fleet).await, ["", "", ""]);
    assert_eq!(
        message(&back, "Ready"),
        "healthy on 3 clusters, at version 1, pinned: two is slow"
    );
    // A cluster that has never had that version gets what the others have.
    fleet.join("d").await;
    fleet
        .until("the new one has it, too", |fleet, set| {
            set["status"]["rollout"]["updated"] == 4
                && fleet.last.contains_key("d")
                && fleet.bundles()["d"] == first
                && place(fleet, "d") == "web"
        })
        .await;

    fleet.rig = fleet.rig.restart().await;
    fleet.rig.wait_loaded().await;
    fleet.go_on().await;
    assert!(
        fleet.bundles().values().all(|now| *now == first),
        "{:?}",
        fleet.bundles()
    );
    edit(&fleet, &|spec| drop(spec.as_object_mut().unwrap().remove("pin"))).await;
    fleet
        .until("all are at the newest again", |fleet, set| {
            set["status"]["rollout"]["phase"] == "Complete"
                && everywhere(fleet, second, "other")
                && fleet.bundles()["d"] == second
        })
        .await;
    let versions = fleet.versions().await;
    let back = versions.iter().find(|version| version.pin == Some(one)).unwrap();
    assert_eq!(
        (back.orders[0].what.as_str(), back.orders[0].reason.as_str()),
        ("roll back to 1", "two is slow")
    );
    assert!(
        versions.iter().all(|version| version.good && version.ended.is_some()),
        "{versions:#?}"
    );
}

/// Of which nothing else is known by then: each has been no good.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_good_version_is_kept_however_many_come_behind_it() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    fleet.until_complete().await;
    let good = fleet.set().await["status"]["lastGood"].as_u64().unwrap();
    let last = good + u64::try_from(VERSIONS_KEPT).unwrap() + 3;
    for number in good + 1..=last {
        let place = format!("place-{number}");
        fleet
            .rig
            .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
                set["spec"]["template"]["spec"]["targetNamespace"] = place.clone().into();
            })
            .await;
        let begun = |set: &Value| set["status"]["rollout"]["number"].as_u64() >= Some(number);
        fleet.rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, begun).await;
    }
    let set = fleet.set().await;
    assert_eq!(set["status"]["lastGood"], good);
    let uid = set["metadata"]["uid"].as_str().unwrap();
    let versions = set_versions::list(&mut fleet.rig.store.tables().await.unwrap(), uid)
        .await
        .unwrap();
    let numbers: Vec<u64> = versions.iter().map(|version| version.number).collect();
    assert_eq!(numbers.last(), Some(&good), "{numbers:?}");
    assert_eq!(numbers.len(), VERSIONS_KEPT + 1, "{numbers:?}");
    let pin = json!({"version": good, "reason": "none of these is any good"});
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["pin"] = pin.clone()
        })
        .await;
    fleet
        .until("all are back", |fleet, set| {
            set["status"]["rollout"]["phase"] == "Complete"
                && fleet
                    .last
                    .values()
                    .all(|entry| applied(entry).unwrap().target_namespace == "web")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_not_done_before_its_tests_have_passed() {
    let tests = json!({"tests": [{"name": "smoke", "image": "smoke:1"}]});
    let mut fleet = Fleet::start_with(&["a", "b"], json!({}), tests, Vec::new()).await;
    fleet
        .until("the canary has it", |fleet, _| fleet.last.contains_key("a"))
        .await;
    // Healthy, for longer than the soak, and not tested.
    fleet.go_on().await;
    assert_eq!(fleet.reached(0), ["a"].into());
    let set = fleet.set().await;
    assert_eq!(
        (&set["status"]["rollout"]["phase"], &set["status"]["rollout"]["updated"]),
        (&json!("Progressing"), &json!(0))
    );
    fleet.tests_end = Some("Succeeded");
    // Its agent says it again, with that.
    fleet.last.clear();
    let first = fleet.until_complete().await;
    assert_eq!(fleet.bundles()["b"], first);

    // Healthy, and its test fails.
    fleet.tests_end = Some("Failed");
    let before = fleet.course.len();
    fleet.commit("two").await;
    let halted = fleet
        .until("it is halted", |_, set| set["status"]["rollout"]["phase"] == "Halted")
        .await;
    assert_eq!(halted["status"]["rollout"]["haltedBy"], "farwater-admin/a");
    fleet.go_on().await;
    assert_eq!(fleet.reached(before), ["a"].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_knows_what_a_version_was_nothing_takes_its_place() {
    let mut fleet = Fleet::start(&[], json!({})).await;
    fleet
        .git
        .change("main", &[("apps/db/db.yaml", Some(&WEB.replace("web", "db")))])
        .unwrap();
    fleet.rig.ask(ADMIN_NAMESPACE, "infra").await;
    let edit = async |fleet: &Fleet, edit: &dyn Fn(&mut Value)| {
        fleet
            .rig
            .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| edit(&mut set["spec"]))
            .await;
    };
    // A folder for clusters that there are none of yet.
    let rare = json!([{"clusterSelector": {"matchLabels": {"name": "z"}}, "patch": {"path": "apps/db"}}]);
    edit(&fleet, &|spec| spec["overrides"] = rare.clone()).await;
    fleet.join("a").await;
    fleet
        .until("somebody has it", |fleet, _| fleet.last.contains_key("a"))
        .await;
    let first = fleet.until_complete().await;
    let one = fleet.set().await["status"]["lastGood"].as_u64().unwrap();
    fleet.commit("bad, as it turns out").await;
    fleet
        .until("it is there", |fleet, _| fleet.bundles()["a"] != first)
        .await;
    fleet.until_complete().await;
    edit(&fleet, &|spec| {
        spec["pin"] = json!({"version": one, "reason": "it is bad"})
    })
    .await;
    fleet
        .until("it is back", |fleet, _| fleet.bundles()["a"] == first)
        .await;

    fleet.join("z").await;
    let part = format!("its set is pinned at version {one}, and the hub has no revision");
    let says_why = |service: &Value| message(service, "Ready").contains(&part);
    fleet
        .rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web-z", says_why)
        .await;
    fleet.go_on().await;
    assert!(!fleet.last.contains_key("z"), "{:?}", fleet.course);
    edit(&fleet, &|spec| drop(spec.as_object_mut().unwrap().remove("pin"))).await;
    fleet
        .until("it gets what there is now", |fleet, _| fleet.last.contains_key("z"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_say_of_a_rollout_is_written_down() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    let first = fleet.until_complete().await;
    let pause = async |fleet: &Fleet, reason: Option<&str>| {
        fleet
            .rig
            .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
                set["spec"]["rollout"]["paused"] = reason.is_some().into();
                set["spec"]["rollout"]["pauseReason"] = json!(reason);
            })
            .await;
    };
    fleet.good = Some([first].into());
    fleet.commit("bad").await;
    let halted = fleet
        .until("it is halted", |_, set| set["status"]["rollout"]["phase"] == "Halted")
        .await;
    let number = halted["status"]["rollout"]["number"].as_u64().unwrap();
    pause(&fleet, Some("lunch")).await;
    fleet
        .until("it is paused", |_, set| set["status"]["rollout"]["phase"] == "Paused")
        .await;
    pause(&fleet, None).await;
    fleet
        .until("it goes on", |_, set| set["status"]["rollout"]["phase"] == "Halted")
        .await;
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["rollout"]["order"] = json!({"number": number, "abort": true, "reason": "it is bad"});
        })
        .await;
    fleet
        .until("it is aborted", |fleet, _| {
            fleet.bundles().values().all(|now| *now == first)
        })
        .await;
    let set = fleet.set().await;
    let uid = set["metadata"]["uid"].as_str().unwrap();
    let versions = set_versions::list(&mut fleet.rig.store.tables().await.unwrap(), uid)
        .await
        .unwrap();
    let version = versions.iter().find(|version| version.number == number).unwrap();
    let said: Vec<_> = version
        .orders
        .iter()
        .map(|order| (order.what.as_str(), order.reason.as_str()))
        .collect();
    assert_eq!(said, [("pause", "lunch"), ("resume", ""), ("abort", "it is bad")]);
    assert_eq!(
        (version.good, version.halted_by.as_deref()),
        (false, Some("farwater-admin/a"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_survey_tells_by_step_and_version_how_far_everybody_is() {
    let early = json!({"name": "early", "clusterSelector": {"matchExpressions": [{"key": "name", "operator": "In", "values": ["a", "b"]}]}});
    let mut fleet = Fleet::start(&["a", "b", "c", "d"], json!({"steps": [early]})).await;
    let first = fleet.until_complete().await;
    let done = |count| ProgressCounts {
        done: count,
        ..ProgressCounts::default()
    };
    let waiting = |count| ProgressCounts {
        waiting: count,
        ..ProgressCounts::default()
    };
    let failed = ProgressCounts {
        failed: 1,
        ..ProgressCounts::default()
    };
    let stages = |survey: &RolloutSurvey| -> Vec<(String, ProgressCounts)> {
        survey
            .stages
            .iter()
            .map(|stage| (stage.step.clone(), stage.counts))
            .collect()
    };
    let named = |counts: [ProgressCounts; 3]| -> Vec<(String, ProgressCounts)> {
        ["canary", "early", "rest"]
            .map(str::to_owned)
            .into_iter()
            .zip(counts)
            .collect()
    };
    let survey = fleet.survey().await;
    assert_eq!(stages(&survey), named([done(1), done(1), done(2)]));
    assert_eq!(
        (survey.versions.len(), survey.open.len(), survey.waits_for.is_none()),
        (1, 0, true),
        "{survey:?}"
    );
    let old = survey.versions[0].revision.clone();

    fleet.good = Some([first].into());
    fleet.commit("bad").await;
    fleet
        .until("it is halted", |_, set| set["status"]["rollout"]["phase"] == "Halted")
        .await;
    fleet.rig.wait_idle().await;
    let survey = fleet.survey().await;
    let counts = [failed, waiting(1), waiting(2)];
    assert_eq!(stages(&survey), named(counts), "{survey:?}");
    let [new, kept] = &survey.versions[..] else {
        panic!("{survey:?}")
    };
    assert!(new.revision != old && kept.revision == old, "{survey:?}");
    let of = |stages: &[farwater_api::service_set::VersionStage]| -> Vec<(String, ProgressCounts, u64)> {
        stages
            .iter()
            .map(|stage| (stage.step.clone(), stage.counts, stage.kept))
            .collect()
    };
    let expected: Vec<_> = named(counts)
        .into_iter()
        .map(|(step, counts)| (step, counts, 0))
        .collect();
    assert_eq!(of(&new.stages), expected);
    let nothing = ProgressCounts::default();
    assert_eq!(
        of(&kept.stages),
        [("early".to_owned(), nothing, 1), ("rest".to_owned(), nothing, 2)]
    );
    // The worst first, with its cause; the others name it.
    let told: Vec<(&str, Option<Progress>, &str)> = survey
        .open
        .iter()
        .map(|member| (&*member.cluster, member.progress, &*member.step))
        .collect();
    let admin = |name: &str| format!("{ADMIN_NAMESPACE}/{name}");
    let clusters = ["a", "b", "c", "d"].map(admin);
    let waits = Some(Progress::Waiting);
    assert_eq!(
        told,
        [
            (&*clusters[0], Some(Progress::Failed), "canary"),
            (&*clusters[1], waits, "early"),
            (&*clusters[2], waits, "rest"),
            (&*clusters[3], waits, "rest"),
        ]
    );
    let halted = &survey.open[0];
    assert!(
        halted.standing.starts_with("failed: ") && halted.since.is_some(),
        "{halted:?}"
    );
    assert_eq!((&halted.revision, halted.wanted_revision.as_str()), (&new.revision, ""));
    let other = &survey.open[1];
    assert_eq!((&other.revision, &other.wanted_revision), (&old, &new.revision));
    assert_eq!(
        other.standing,
        "waits: the rollout is halted, since farwater-admin/a failed"
    );

    // A step is listed by name, page by page.
    let (name, set) = fleet.named().await;
    let rest = Selected::Step(2);
    let page = async |place: &str| {
        let place = Place::parse(place, rest).unwrap();
        let (members, next) = plan_sets::members(&fleet.rig.replica, (&name, &set), rest, (&place, 1))
            .await
            .unwrap();
        (
            members.into_iter().map(|member| member.cluster).collect::<Vec<_>>(),
            next,
        )
    };
    let (members, next) = page("").await;
    assert_eq!(members, [admin("c")]);
    let (members, next) = page(&next.unwrap()).await;
    assert_eq!(members, [admin("d")]);
    assert_eq!(page(&next.unwrap()).await, (vec![], None));
    assert_eq!(Place::parse("nobody gave it", rest), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_releases_nothing_into_a_closed_window_and_goes_on_when_it_opens() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({})).await;
    let first = fleet.until_complete().await;
    let hours = |hours| (Timestamp::now() + SignedDuration::from_hours(hours)).to_string();
    let spec = json!({"type": "Deny", "start": hours(-1), "end": hours(1), "reason": "holidays"});
    fleet
        .rig
        .create("ChangeWindow", ADMIN_NAMESPACE, "holidays", json!({"spec": spec}))
        .await;
    let in_force = |window: &Value| window["status"]["inForce"] == true;
    fleet
        .rig
        .wait_for("ChangeWindow", ADMIN_NAMESPACE, "holidays", in_force)
        .await;
    let before = fleet.course.len();
    fleet.commit("new").await;
    let all = |_: &Fleet, set: &Value| {
        message(set, "Frozen").starts_with("3 clusters wait: ChangeWindow farwater-admin/holidays")
    };
    let set = fleet.until("the set says what it waits for", all).await;
    assert_eq!(set["status"]["rollout"]["waiting"], 3, "{set:#}");
    let standings = fleet.standings().await;
    for (cluster, standing) in &standings {
        assert!(
            standing.starts_with("waits: ChangeWindow farwater-admin/holidays lets no change begin until"),
            "{cluster} {standing}"
        );
    }
    assert_eq!(standings.len(), 3);
    // A changed template neither.
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["template"]["spec"]["targetNamespace"] = "elsewhere".into();
        })
        .await;
    fleet.go_on().await;
    assert_eq!(fleet.course.len(), before, "{:?}", fleet.course);
    assert!(fleet.bundles().into_values().all(|bundle| bundle == first));

    fleet.rig.set_clock(2.0);
    let is_there = |fleet: &Fleet, set: &Value| {
        set["status"]["rollout"]["phase"] == "Complete"
            && fleet
                .last
                .values()
                .all(|entry| applied(entry).unwrap().target_namespace == "elsewhere")
    };
    fleet.until("it goes on", is_there).await;
    assert_eq!(
        fleet.course[before].0, "a",
        "the canary is first as ever: {:?}",
        fleet.course
    );
    assert_eq!(condition(&fleet.set().await, "Frozen"), "absent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_on_a_set_lets_its_rollout_begin_in_a_freeze() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    let first = fleet.until_complete().await;
    let spec = json!({"type": "Deny", "reason": "holidays"});
    fleet
        .rig
        .create("ChangeWindow", ADMIN_NAMESPACE, "holidays", json!({"spec": spec}))
        .await;
    let in_force = |window: &Value| window["status"]["inForce"] == true;
    fleet
        .rig
        .wait_for("ChangeWindow", ADMIN_NAMESPACE, "holidays", in_force)
        .await;
    fleet.commit("fix").await;
    fleet
        .until("it waits", |_, set| condition(set, "Frozen") == "True/WindowClosed")
        .await;
    assert!(fleet.bundles().into_values().all(|bundle| bundle == first));
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["metadata"]["annotations"][OVERRIDE_FREEZE] = "a hole".into();
            set["status"]["overriddenBy"] = "ada".into();
            set["status"]["overriddenAt"] = Timestamp::now().to_string().into();
        })
        .await;
    let fixed = fleet.until_complete_with(|bundle| bundle != first).await;
    assert_ne!(fixed, first);
    let set = fleet.set().await;
    assert_eq!(set["status"]["overriddenBy"], "ada");
    let uid = set["metadata"]["uid"].as_str().unwrap();
    let versions = set_versions::list(&mut fleet.rig.store.tables().await.unwrap(), uid)
        .await
        .unwrap();
    let words: Vec<_> = versions[0]
        .orders
        .iter()
        .map(|order| (&*order.what, &*order.by, &*order.reason))
        .collect();
    assert_eq!(words, [("override change windows", "ada", "a hole")]);
    // Of each member that began.
    let events = fleet.rig.events().await;
    let told = events.iter().filter(|event| event["reason"] == "FreezeOverridden");
    let told: Vec<&str> = told.map(|event| event["message"].as_str().unwrap()).collect();
    assert!(
        !told.is_empty() && told.iter().all(|told| told.contains("by ada: a hole; ChangeWindow")),
        "{events:#?}"
    );
}
