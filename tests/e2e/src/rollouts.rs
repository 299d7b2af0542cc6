//! A set on a fleet: real clusters as canaries, and simulated ones that record their deliveries.
//!
//! Forbidden behaviour is checked against these records, not against the hub's reports: which cluster got which
//! version, how often, and how many within a soak.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use farwater_api::{ChangeWindow, Cluster, RolloutPhase, SET_LABEL, ServiceDeployment, ServiceSet};
use farwater_fleetsim::{Arrival, Course, Sim};
use farwater_testkit::{Plane, faketime::Clock, git::Repository, wait_for};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Fleet, condition, config_map};

const SET: &str = "web";
/// The other set, on the same clusters, from another folder.
const OTHER: &str = "api";
/// A name that the API server refuses. A real cluster fails with it, and simulated ones with a word.
const BAD: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name}\n";
/// The hub counts whole seconds, so two times that are a soak apart for the hub may be up to a second closer.
const ROUNDING: Duration = Duration::from_secs(1);
/// Maximum time for a rollout over the whole fleet.
const PATIENCE: Duration = Duration::from_secs(300);
/// Length of a freeze from the moment when its end is known. It must not end during the five checks.
const REST_OF_FREEZE: Duration = Duration::from_secs(60);
/// Jump of the clock in seconds: beyond the end of the freeze, but within the limits of agents.
const JUMP: i64 = 90;
/// Kills during one rollout.
const KILLS_EACH: u32 = 3;

/// All scenes, in order.
pub const SCENES: [&str; 9] = [
    "set", "bad", "mended", "late", "killed", "crossing", "clock", "slip", "labels",
];

/// Scenes and the clusters that play them.
#[derive(Clone, Copy, Debug)]
pub struct Play<'a> {
    pub simulated: usize,
    pub seed: u64,
    /// Some of [`SCENES`], "set" first. Two scenes are shorter than "killed": after "bad" comes "halt" with a kill, and
    /// "mended, killed" is "mended" with a kill in between.
    pub scenes: &'a [&'a str],
    /// Number of kills in the scene "killed".
    pub kills: u32,
    /// Soak in whole seconds, more than one. Clusters that changed within one second less count as changing at the same
    /// time.
    pub soak: Duration,
    /// Percentage of the fleet that may change at the same time.
    pub unavailable: usize,
    /// Time in which the hub would have made a wrong step: it checks at least once a second, and agents poll twice a
    /// second.
    pub watched: Duration,
}

/// Results.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub simulated: usize,
    pub real: usize,
    pub kills: u32,
    /// Entries that reached simulated clusters.
    pub arrivals: usize,
    /// Maximum number of simulated clusters that were reached within one soak.
    pub most_on_their_way: usize,
    pub allowed: usize,
    /// Duration in seconds.
    pub scenes: BTreeMap<String, f64>,
}

struct Stage<'a> {
    play: Play<'a>,
    fleet: Fleet,
    sim: Sim,
    repository: Repository,
    names: Vec<String>,
    real: usize,
    /// Client of the first canary.
    canary: kube::Client,
    /// Number of entries in the records that were already checked.
    seen: usize,
    turn: u32,
    /// Number of kills of the hub during rollouts so far.
    kills: u32,
}

/// Plays the scenes one after another on one fleet, with `planes` as its canaries.
pub async fn run(planes: &[&Plane], play: Play<'_>, mut progress: impl FnMut(&str)) -> Result<Outcome> {
    let mut begun = Instant::now();
    let mut stage = Stage::set(planes, play).await?;
    let Play { simulated, seed, .. } = play;
    let mut outcome = Outcome {
        simulated,
        real: planes.len(),
        allowed: stage.most(),
        ..Outcome::default()
    };
    let mut random = StdRng::seed_from_u64(seed);
    for &scene in play.scenes {
        let played = match scene {
            "set" => stage.until_all_have(SET).await,
            "bad" => stage.a_bad_commit_reaches_the_canaries_alone().await,
            "halt" => stage.a_halt_holds_over_a_restart().await,
            "mended" => {
                stage
                    .its_fix_arrives_while_all_stands_still_and_a_tenth_is_silent(false)
                    .await
            }
            "mended, killed" => {
                stage
                    .its_fix_arrives_while_all_stands_still_and_a_tenth_is_silent(true)
                    .await
            }
            "late" => stage.late_words_open_no_step().await,
            "killed" => stage.the_hub_is_killed(play.kills, &mut random).await,
            "crossing" => stage.two_rollouts_cross().await,
            "clock" => stage.the_clock_jumps_around_the_end_of_a_freeze().await,
            "labels" => stage.a_slip_in_labels_takes_few_and_stops_all_deletions().await,
            "slip" => stage.a_slip_in_the_selector_takes_nothing().await,
            other => bail!("there is no scene {other:?}"),
        };
        played.with_context(|| format!("scene {scene:?}; {}", stage.fleet.hub.log_tail()))?;
        stage.sim.check().await?;
        let account = stage.sim.ledger();
        let surely_soaking = play.soak.saturating_sub(ROUNDING);
        let at_once = |set| most_within(surely_soaking, of(&account, set));
        outcome.most_on_their_way = at_once(SET).max(at_once(OTHER));
        ensure!(
            outcome.most_on_their_way <= outcome.allowed,
            "scene {scene:?}: {outcome:?}"
        );
        outcome.arrivals = account.len();
        outcome.kills = stage.kills;
        outcome.scenes.insert(scene.to_owned(), begun.elapsed().as_secs_f64());
        progress(scene);
        begun = Instant::now();
    }
    Ok(outcome)
}

impl<'a> Stage<'a> {
    /// A new set on all clusters.
    async fn set(planes: &[&Plane], play: Play<'a>) -> Result<Self> {
        let mut fleet = Fleet::start().await?;
        for (nth, plane) in planes.iter().enumerate() {
            let name = format!("real-{nth}");
            fleet.join(&name, plane).await?;
            let patch = Patch::Merge(json!({"metadata": {"labels": {"env": "prod", "tier": "canary"}}}));
            fleet
                .api::<Cluster>()
                .patch(&name, &PatchParams::default(), &patch)
                .await?;
        }
        let names: Vec<String> = (0..play.simulated).map(|n| format!("sim-{n:03}")).collect();
        let labels = || BTreeMap::from([("env".to_owned(), "prod".to_owned())]);
        let sim = Sim::join(&fleet.hub, names.iter().map(|name| (name.clone(), labels())).collect()).await?;
        let files = [
            ("web/a.yaml", config_map("a", "turn-0")),
            ("web/behaviour", "good".to_owned()),
            ("api/a.yaml", config_map("a", "turn-0")),
        ];
        let repository = fleet
            .repository("infra", &files.each_ref().map(|(path, text)| (*path, text.as_str())))
            .await?;
        let canary = planes.first().context("there is no canary")?.client().await?;
        let real = planes.len();
        let stage = Self {
            play,
            fleet,
            sim,
            repository,
            names,
            real,
            canary,
            seen: 0,
            turn: 0,
            kills: 0,
        };
        stage.create(SET).await?;
        Ok(stage)
    }

    async fn create(&self, set: &str) -> Result<()> {
        let spec = json!({
            "clusterSelector": {"matchLabels": {"env": "prod"}},
            "rollout": {
                "soak": format!("{}s", self.play.soak.as_secs()), "failAfter": "1s",
                "maxUnavailable": format!("{}%", self.play.unavailable),
                "canary": {"clusterSelector": {"matchLabels": {"tier": "canary"}}, "count": self.real},
            },
            "template": {"spec": {"targetNamespace": self.fleet.namespace(set), "sourceRef": {"name": "infra"}, "path": set}},
        });
        let set = ServiceSet::new(set, serde_json::from_value(spec)?);
        self.fleet.api().create(&PostParams::default(), &set).await?;
        Ok(())
    }

    fn all(&self) -> usize {
        self.names.len() + self.real
    }

    /// Maximum number of clusters that may change at the same time.
    fn most(&self) -> usize {
        self.all() * self.play.unavailable / 100
    }

    async fn status(&self, set: &str) -> Result<Value> {
        let set = self.fleet.api::<ServiceSet>().get(set).await?;
        Ok(serde_json::to_value(set.status.and_then(|status| status.rollout))?)
    }

    async fn until(&self, set: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
        let what = format!("{set} to be {what}");
        let waited = wait_for(&what, PATIENCE, || async {
            Ok(is_so(&self.status(set).await?).then_some(()))
        });
        match waited.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(format!("it was {}", self.status(set).await?))),
        }
    }

    async fn until_all_have(&self, set: &str) -> Result<()> {
        let all = self.all();
        self.until(set, "everywhere", |status| {
            is(status, RolloutPhase::Complete) && status["updated"] == all
        })
        .await
    }

    /// A commit that changes only one set's folder.
    async fn commit(&mut self, sets: &[&str], course: Course) -> Result<()> {
        self.turn += 1;
        let map = config_map("a", &format!("turn-{}", self.turn));
        let (behaviour, bad) = match course {
            Course::Good => ("good", None),
            Course::Bad => ("bad", Some(BAD)),
        };
        let mut files = Vec::new();
        for set in sets {
            files.push((format!("{set}/a.yaml"), Some(map.as_str())));
            files.push((format!("{set}/behaviour"), Some(behaviour)));
            files.push((format!("{set}/b.yaml"), bad));
        }
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        self.repository.change("main", &files)?;
        self.seen = self.sim.ledger().len();
        self.fleet.reconcile("infra").await
    }

    /// Entries that arrived since the last commit.
    fn news(&self) -> Vec<Arrival> {
        self.sim.ledger().split_off(self.seen)
    }

    async fn until_reached(&self, many: usize) -> Result<()> {
        wait_for(&format!("{many} clusters to be reached"), PATIENCE, || async {
            Ok((self.news().len() >= many).then_some(()))
        })
        .await
    }

    async fn a_bad_commit_reaches_the_canaries_alone(&mut self) -> Result<()> {
        self.commit(&[SET], Course::Bad).await?;
        self.until(SET, "halted", |status| is(status, RolloutPhase::Halted))
            .await?;
        tokio::time::sleep(self.play.watched).await;
        ensure!(self.news().is_empty(), "{:?}", self.news());
        Ok(())
    }

    /// A silent cluster gets the change when it is back, but never a bad version.
    async fn its_fix_arrives_while_all_stands_still_and_a_tenth_is_silent(&mut self, kill: bool) -> Result<()> {
        let silent: BTreeSet<String> = self.names.iter().step_by(10).cloned().collect();
        self.sim.silence(silent.iter().map(String::as_str), true);
        self.commit(&[SET], Course::Good).await?;
        if kill {
            self.until_reached(1).await?;
            self.kill_hub().await?;
        }
        let rest = self.all() - silent.len();
        self.until(SET, "where somebody is", |status| status["updated"] == rest)
            .await?;
        let reached: BTreeSet<String> = self.news().into_iter().map(|arrival| arrival.cluster).collect();
        ensure!(
            reached.is_disjoint(&silent) && reached.len() == self.names.len() - silent.len(),
            "{reached:?}"
        );
        self.sim.silence(silent.iter().map(String::as_str), false);
        self.until_all_have(SET).await?;
        ensure!(self.sim.ledger().iter().all(|arrival| arrival.course == Course::Good));
        Ok(())
    }

    /// Agents that keep reporting the previous version as healthy.
    async fn late_words_open_no_step(&mut self) -> Result<()> {
        self.sim.delay(self.names.iter().map(String::as_str), true);
        self.commit(&[SET], Course::Good).await?;
        self.until_reached(1)
            .await
            .context("the canaries were done, but no cluster followed")?;
        tokio::time::sleep(self.play.watched + self.play.soak).await;
        ensure!(
            self.news().len() <= self.most(),
            "{} of at most {}",
            self.news().len(),
            self.most()
        );
        self.sim.delay(self.names.iter().map(String::as_str), false);
        self.until_all_have(SET).await
    }

    /// Rules for any time of a rollout: each cluster gets each version once, and a bad version stays with the canaries.
    async fn the_hub_is_killed(&mut self, kills: u32, random: &mut StdRng) -> Result<()> {
        let mut left = kills;
        while left > 0 {
            self.commit(&[SET], Course::Good).await?;
            for _ in 0..KILLS_EACH.min(left) {
                let so_far = self.news().len();
                // Also before the canaries are done.
                let more = random.random_range(0..=self.most());
                self.until_reached((so_far + more).min(self.names.len())).await?;
                self.kill_hub().await?;
                left -= 1;
            }
            self.until_all_have(SET).await?;
            self.each_was_reached_once()?;
        }
        self.commit(&[SET], Course::Bad).await?;
        self.fleet.hub.restart().await?;
        self.a_halt_holds_over_a_restart().await?;
        self.commit(&[SET], Course::Good).await?;
        self.until_all_have(SET).await
    }

    async fn kill_hub(&mut self) -> Result<()> {
        self.kills += 1;
        self.fleet.hub.restart().await
    }

    fn each_was_reached_once(&self) -> Result<()> {
        let mut times = BTreeMap::<String, usize>::new();
        for arrival in self.news() {
            *times.entry(arrival.cluster).or_default() += 1;
        }
        ensure!(
            times.len() == self.names.len() && times.values().all(|times| *times == 1),
            "{times:?}"
        );
        Ok(())
    }

    async fn a_halt_holds_over_a_restart(&mut self) -> Result<()> {
        self.until(SET, "halted", |status| is(status, RolloutPhase::Halted))
            .await?;
        self.fleet.hub.restart().await?;
        tokio::time::sleep(self.play.watched).await;
        ensure!(self.news().is_empty(), "{:?}", self.news());
        Ok(())
    }

    /// Two sets on the same clusters roll out the same commit, and one of them gets another template meanwhile.
    async fn two_rollouts_cross(&mut self) -> Result<()> {
        self.create(OTHER).await?;
        self.until_all_have(OTHER).await?;
        self.commit(&[SET, OTHER], Course::Good).await?;
        self.until_reached(1).await?;
        let patch =
            Patch::Merge(json!({"spec": {"template": {"spec": {"configuration": {"turn": self.turn.to_string()}}}}}));
        self.fleet
            .api::<ServiceSet>()
            .patch(SET, &PatchParams::default(), &patch)
            .await?;
        self.until_all_have(OTHER).await?;
        self.until_all_have(SET).await?;
        let last: BTreeMap<(String, String), Arrival> = self
            .sim
            .ledger()
            .into_iter()
            .map(|arrival| ((arrival.cluster.clone(), arrival.service.clone()), arrival))
            .collect();
        for set in [SET, OTHER] {
            let entries: BTreeSet<_> = last
                .values()
                .filter(|arrival| is_of(arrival, set))
                .map(|a| a.bundle)
                .collect();
            ensure!(
                entries.len() == 1,
                "the clusters have {} versions of {set}",
                entries.len()
            );
        }
        Ok(())
    }

    /// The canaries are not frozen. The clock jumps forward, so that the freeze seems over, then back, and then to
    /// before its creation.
    async fn the_clock_jumps_around_the_end_of_a_freeze(&mut self) -> Result<()> {
        let clock = Clock::new(&self.fleet.state_dir("clock"))?;
        self.fleet.hub.set_environment(clock.environment()?);
        self.fleet.hub.restart().await?;
        let windows = self.fleet.api::<ChangeWindow>();
        let freeze = json!({
            "reason": "it is tried", "clusterSelector": {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
        });
        windows
            .create(
                &PostParams::default(),
                &ChangeWindow::new("freeze", serde_json::from_value(freeze)?),
            )
            .await?;
        self.commit(&[SET], Course::Good).await?;
        let canaries = self.real;
        self.until(SET, "on the canaries", |status| status["updated"] == canaries)
            .await?;
        tokio::time::sleep(self.play.watched).await;
        ensure!(self.news().is_empty(), "{:?}", self.news());

        let end = Timestamp::now() + REST_OF_FREEZE;
        let patch = Patch::Merge(json!({"spec": {"end": end.to_string()}}));
        windows.patch("freeze", &PatchParams::default(), &patch).await?;
        clock.set(JUMP)?;
        self.until_reached(1).await?;
        clock.set(0)?;
        // Changes that started before the freeze are completed.
        tokio::time::sleep(self.play.watched).await;
        let begun = self.news().len();
        for off in [0, -JUMP] {
            clock.set(off)?;
            tokio::time::sleep(self.play.watched).await;
            // Make the hub check all services.
            let patch = Patch::Merge(json!({"spec": {"reason": format!("it is tried, {off} s off")}}));
            windows.patch("freeze", &PatchParams::default(), &patch).await?;
            tokio::time::sleep(self.play.watched).await;
            ensure!(
                self.news().len() == begun,
                "{} after {begun}, {off} s off",
                self.news().len()
            );
        }
        ensure!(
            begun < self.names.len() && Timestamp::now() < end,
            "the freeze was too short to see anything"
        );
        clock.set(0)?;
        self.until_all_have(SET).await?;
        self.each_was_reached_once()?;
        windows.delete("freeze", &DeleteParams::default()).await?;
        self.fleet.hub.set_environment(Vec::new());
        self.fleet.hub.restart().await
    }

    async fn until_braked(&self, set: &str, wanted: &str) -> Result<()> {
        let sets = self.fleet.api::<ServiceSet>();
        wait_for("the brake", PATIENCE, || async {
            let conditions = sets
                .get(set)
                .await?
                .status
                .map(|status| status.conditions)
                .unwrap_or_default();
            let braked = condition(&conditions, "Braked").unwrap_or("False");
            Ok((braked == wanted).then_some(()))
        })
        .await
    }

    /// Services of sets that must stay.
    async fn services(&self) -> Result<usize> {
        let services = self
            .fleet
            .api::<ServiceDeployment>()
            .list(&ListParams::default().labels(SET_LABEL))
            .await?;
        Ok(services
            .items
            .iter()
            .filter(|service| service.metadata.deletion_timestamp.is_none())
            .count())
    }

    async fn a_slip_in_labels_takes_few_and_stops_all_deletions(&mut self) -> Result<()> {
        self.fleet.release_prunes().await?;
        // A service without a set, which is to be deleted meanwhile.
        self.fleet
            .deploy_with("app", "real-0", "infra", OTHER, json!({"deletionPolicy": "Delete"}))
            .await?;
        self.fleet.until_condition("app", "Ready", "True", "").await?;
        let slipped: Vec<String> = self.names.iter().step_by(10).cloned().collect();
        let label = async |env: &str| -> Result<()> {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"env": env}}}));
            for name in &slipped {
                self.fleet
                    .api::<Cluster>()
                    .patch(name, &PatchParams::default(), &patch)
                    .await?;
            }
            Ok(())
        };
        label("pord").await?;
        for set in [SET, OTHER] {
            self.until_braked(set, "True").await?;
        }
        self.fleet
            .api::<ServiceDeployment>()
            .delete("app", &DeleteParams::default())
            .await?;
        tokio::time::sleep(self.play.watched).await;
        // Two services of each set, or 2 %.
        let lost = 2 * self.all() - self.services().await?;
        ensure!(
            lost <= 2 * (self.all() / 50).max(2),
            "{lost} services were lost of {}",
            slipped.len()
        );
        let maps: Api<ConfigMap> = Api::namespaced(self.canary.clone(), &self.fleet.namespace("app"));
        ensure!(
            maps.get_opt("a").await?.is_some(),
            "something was deleted while the brake was on"
        );

        label("prod").await?;
        for set in [SET, OTHER] {
            self.until_braked(set, "False").await?;
            self.until_all_have(set).await?;
        }
        ensure!(self.services().await? == 2 * self.all());
        ensure!(
            maps.get_opt("a").await?.is_some(),
            "something was deleted before anybody had released the brake"
        );
        ensure!(self.fleet.release_prunes().await?, "nothing had stopped the deletions");
        wait_for("what was to be deleted to be gone", PATIENCE, || async {
            Ok(maps.get_opt("a").await?.is_none().then_some(()))
        })
        .await
    }

    async fn a_slip_in_the_selector_takes_nothing(&mut self) -> Result<()> {
        let select = |env: &str| Patch::Merge(json!({"spec": {"clusterSelector": {"matchLabels": {"env": env}}}}));
        // The hub reports it with ERROR.
        self.fleet.hub.tolerate("nothing is deleted in the fleet any more");
        let sets = self.fleet.api::<ServiceSet>();
        self.seen = self.sim.ledger().len();
        sets.patch(SET, &PatchParams::default(), &select("pord")).await?;
        self.until_braked(SET, "True").await?;
        tokio::time::sleep(self.play.watched).await;
        ensure!(
            self.services().await? == 2 * self.all(),
            "{} services are left",
            self.services().await?
        );
        sets.patch(SET, &PatchParams::default(), &select("prod")).await?;
        self.until_braked(SET, "False").await?;
        self.until_all_have(SET).await?;
        ensure!(self.news().is_empty(), "{:?}", self.news());
        Ok(())
    }
}

fn is(status: &Value, phase: RolloutPhase) -> bool {
    status["phase"] == phase.to_string()
}

fn is_of(arrival: &Arrival, set: &str) -> bool {
    arrival
        .service
        .strip_prefix(set)
        .is_some_and(|rest| rest.starts_with('-'))
}

fn of<'a>(account: &'a [Arrival], set: &str) -> impl Iterator<Item = &'a Arrival> {
    account.iter().filter(move |arrival| is_of(arrival, set))
}

/// Maximum number of clusters that were reached within a time.
fn most_within<'a>(time: Duration, arrivals: impl Iterator<Item = &'a Arrival>) -> usize {
    let times: Vec<Instant> = arrivals.map(|arrival| arrival.at).collect();
    let within = |(nth, at): (usize, &Instant)| times[nth..].iter().take_while(|later| **later - *at < time).count();
    times.iter().enumerate().map(within).max().unwrap_or(0)
}
