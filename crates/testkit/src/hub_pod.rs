//! Deletes the hub's pod again and again while two agents poll. Counts missed polls and changes in their clusters.
//!
//! One agent is a pod beside the hub, and one is a process with another control plane. The counts are from their own
//! metrics: the time of the last answered poll, and the number of failed ones.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, AGENT_NAMESPACE, Cluster, GitRepository, ServiceDeployment};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PostParams},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    Agent, Launch, Plane, PlaneOptions, Site,
    farwater::join_token,
    ports,
    site::{CLUSTER, HUB_NAMESPACE, HUB_POD, PATIENCE, SERVICE, snapshot},
    wait_for,
};

/// Share of the interval that agents add or subtract at random, so that they don't poll at the same time.
const JITTER: f64 = 0.1;
/// Maximum time between the deletion of a pod and the next poll, so that the poll happens while the hub is away.
const AHEAD: Duration = Duration::from_secs(8);
/// The same limit as a divisor of the interval, for short intervals.
const AHEAD_OF_INTERVAL: u32 = 4;
const SAMPLE: Duration = Duration::from_millis(500);
/// Maximum time until a pod is replaced and agents are heard again.
const REPLACED: Duration = Duration::from_secs(180);

const WEST: &str = "west";
const SETTINGS: &str = "settings";

/// Polls of one agent.
#[derive(Clone, Debug, Serialize)]
pub struct Polls {
    pub agent: &'static str,
    pub answered: u64,
    /// All failed attempts, including retries after a second or two.
    pub failed: u64,
    /// Longest time between two answers, in seconds.
    pub longest_gap: u64,
    /// Maximum number of consecutive polls without an answer.
    pub missed: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub seed: u64,
    pub deletions: u32,
    pub interval_seconds: u64,
    /// Seconds without an answer of the hub, for each deletion.
    pub away: Vec<f64>,
    pub agents: Vec<Polls>,
    /// Objects in the services' namespaces that were replaced or changed, and agents that were restarted.
    pub changed: Vec<String>,
}

impl Outcome {
    /// Checks that no agent missed more than one poll, or more than were due while the hub was away, and that nothing
    /// changed.
    pub fn check(&self) -> Result<()> {
        let away = self.away.iter().copied().fold(0.0, f64::max);
        let bound = most_missed(self.interval_seconds, away);
        for agent in &self.agents {
            ensure!(
                agent.missed <= bound,
                "{} missed {} polls in a row, not {bound}: {} s without an answer, {away} s of them without a hub",
                agent.agent,
                agent.missed,
                agent.longest_gap
            );
        }
        ensure!(self.changed.is_empty(), "changed: {}", self.changed.join(", "));
        Ok(())
    }
}

/// Deletes the pod so many times, each at another moment before the next poll of one of the agents. They poll every
/// `interval`.
pub async fn run(
    site: &Site,
    interval: Duration,
    deletions: u32,
    seed: u64,
    mut told: impl FnMut(u32, f64),
) -> Result<Outcome> {
    let ground = Ground::make(site, interval).await?;
    let before = ground.settled().await?;
    let watched = [ground.watch_east().await?, ground.watch_west()?];
    for agent in &watched {
        agent.until_answered_after(now()).await?;
    }
    let ahead = AHEAD.min(interval / AHEAD_OF_INTERVAL);
    let mut random = StdRng::seed_from_u64(seed);
    let mut away = Vec::new();
    for number in 0..deletions {
        let next = &watched[number as usize % watched.len()];
        next.wait_until_before_poll(random.random_range(Duration::ZERO..ahead))
            .await;
        let seconds = ground.delete_pod().await?;
        for agent in &watched {
            agent.until_answered_after(now()).await?;
        }
        away.push(seconds);
        told(number + 1, seconds);
    }
    let changed = differences(&before, &ground.settled().await?);
    let agents = watched.iter().map(Watched::polls).collect();
    Ok(Outcome {
        seed,
        deletions,
        interval_seconds: interval.as_secs(),
        away,
        agents,
        changed,
    })
}

/// Two clusters with a service each.
struct Ground<'a> {
    site: &'a Site,
    hub: Client,
    /// Ends before its plane, because it would report errors without it.
    _agent: Agent,
    plane: Plane,
    port: u16,
    interval: Duration,
}

type Objects = Vec<(String, Value)>;

impl<'a> Ground<'a> {
    async fn make(site: &'a Site, interval: Duration) -> Result<Self> {
        let every = format!("{}s", interval.as_secs());
        // The lost connection makes the agent poll, and with that poll it learns its interval.
        site.poll_every(&every).await?;
        // Without connections, because a connected agent makes few polls.
        site.set_variable("FARWATER_MAX_CONNECTED_AGENTS", "0").await?;
        site.deploy().await?;
        let hub = crate::kube::client_that_asks_once(&site.kubeconfig()).await?;
        let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
        let spec = serde_json::from_value(json!({"pollInterval": every}))?;
        site.ours()
            .await?
            .create(&PostParams::default(), &Cluster::new(WEST, spec))
            .await?;
        let token = join_token(&hub, ADMIN_NAMESPACE, WEST).await?;
        let port = ports::free()?;
        let launch = Launch::arguments(&["--health-listen", &format!("127.0.0.1:{port}")]);
        let agent = Agent::launch(WEST, &site.path("west"), plane.kubeconfig(), token, launch)?;
        let ground = Self {
            site,
            hub,
            plane,
            _agent: agent,
            port,
            interval,
        };
        ground.deploy_settings().await?;
        Ok(ground)
    }

    async fn deploy_settings(&self) -> Result<()> {
        let repository = self.site.git.create(SETTINGS)?;
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {level: info}\n";
        repository.commit("main", &[("all/map.yaml", map)])?;
        let spec = serde_json::from_value(json!({"url": self.site.git.url(SETTINGS)}))?;
        self.site
            .ours()
            .await?
            .create(&PostParams::default(), &GitRepository::new(SETTINGS, spec))
            .await?;
        let spec = json!({
            "clusterRef": {"name": WEST}, "targetNamespace": SETTINGS, "sourceRef": {"name": SETTINGS}, "path": "all",
        });
        let service = ServiceDeployment::new(SETTINGS, serde_json::from_value(spec)?);
        let services: Api<ServiceDeployment> = self.site.ours().await?;
        services.create(&PostParams::default(), &service).await?;
        wait_for("the settings to be ready", PATIENCE, || async {
            let conditions = services.get(SETTINGS).await?.status.unwrap_or_default().conditions;
            Ok(conditions
                .iter()
                .any(|one| one.type_ == "Ready" && one.status == "True")
                .then_some(()))
        })
        .await
    }

    /// All objects of the services after the last write, and the processes of the agents.
    async fn settled(&self) -> Result<Objects> {
        let last: Mutex<Option<Objects>> = Mutex::new(None);
        let objects = wait_for("the services' objects to rest", PATIENCE, || async {
            let found = self.objects().await?;
            let before = last
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .replace(found.clone());
            Ok(before.filter(|before| *before == found))
        });
        objects.await
    }

    async fn objects(&self) -> Result<Objects> {
        let east = self.site.node.client().await?;
        let mut objects = snapshot(&east, SERVICE).await?;
        objects.extend(snapshot(&self.plane.client().await?, SETTINGS).await?);
        for (name, namespace) in [(SERVICE, "east"), (SETTINGS, WEST)] {
            let service: ServiceDeployment = self.site.ours().await?.get(name).await?;
            let stated = json!({"uid": service.metadata.uid, "generation": service.metadata.generation});
            objects.push((format!("service {name} of {namespace}"), stated));
        }
        let pod = self.site.agent_pod().await?;
        let starts: i32 = pod
            .status
            .iter()
            .flat_map(|status| &status.container_statuses)
            .flatten()
            .map(|c| c.restart_count)
            .sum();
        objects.push((
            "the agent's pod".to_owned(),
            json!({"uid": pod.metadata.uid, "starts": starts}),
        ));
        Ok(objects)
    }

    /// Deletes the pod like `kubectl delete pod`. Returns how long the hub was away, as seen from outside its cluster.
    async fn delete_pod(&self) -> Result<f64> {
        let pods: Api<Pod> = self.site.theirs(HUB_NAMESPACE).await?;
        let old = pods.get(HUB_POD).await?.metadata.uid;
        let silence = Silence::watch(self.hub.clone());
        pods.delete(HUB_POD, &DeleteParams::default()).await?;
        let replaced = wait_for("another pod of the hub to be ready", REPLACED, || async {
            let Some(pod) = pods.get_opt(HUB_POD).await? else {
                return Ok(None);
            };
            let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
            let is_ready = conditions
                .iter()
                .any(|one| one.type_ == "Ready" && one.status == "True");
            Ok((pod.metadata.uid != old && is_ready).then_some(()))
        });
        if let Err(error) = replaced.await {
            return Err(error.context(self.site.log_of(HUB_NAMESPACE, HUB_POD).await));
        }
        wait_for("the hub to answer again", REPLACED, || async {
            Ok(answers(&self.hub).await.then_some(()))
        })
        .await?;
        Ok(silence.end())
    }

    async fn watch_east(&self) -> Result<Watched> {
        let pod = self.site.agent_pod().await?.metadata.name.context("a pod has a name")?;
        let path = format!("/api/v1/namespaces/{AGENT_NAMESPACE}/pods/http:{pod}:8081/proxy/metrics");
        Ok(Watched::start(
            CLUSTER,
            self.interval,
            self.site.node.client().await?,
            path,
        ))
    }

    fn watch_west(&self) -> Result<Watched> {
        let config = Config::new(format!("http://127.0.0.1:{}", self.port).parse()?);
        Ok(Watched::start(
            WEST,
            self.interval,
            Client::try_from(config)?,
            "/metrics".to_owned(),
        ))
    }
}

fn differences(before: &Objects, after: &Objects) -> Vec<String> {
    let missing = |these: &Objects, those: &Objects| -> Vec<String> {
        these
            .iter()
            .filter(|one| !those.contains(one))
            .map(|(name, marks)| format!("{name} {marks}"))
            .collect()
    };
    let gone = missing(before, after).into_iter().map(|one| format!("was: {one}"));
    gone.chain(missing(after, before).into_iter().map(|one| format!("is: {one}")))
        .collect()
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

async fn answers(hub: &Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    matches!(
        tokio::time::timeout(Duration::from_secs(1), hub.request_text(request)).await,
        Ok(Ok(_))
    )
}

/// A task that ends when this is dropped.
struct Task(JoinHandle<()>);

impl Task {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Measures how long the hub does not answer.
struct Silence {
    asked: Arc<Mutex<(Option<Instant>, Duration)>>,
    _task: Task,
}

impl Silence {
    fn watch(hub: Client) -> Self {
        let asked = Arc::new(Mutex::new((None, Duration::ZERO)));
        let notes = Arc::clone(&asked);
        let task = Task::spawn(async move {
            loop {
                let is_there = answers(&hub).await;
                note_answer(&mut notes.lock().unwrap_or_else(PoisonError::into_inner), is_there);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { asked, _task: task }
    }

    /// Total silence in seconds.
    fn end(self) -> f64 {
        let (since, sum) = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let all = sum + since.map_or(Duration::ZERO, |since| since.elapsed());
        (all.as_secs_f64() * 10.0).round() / 10.0
    }
}

/// Updates the start of the current silence and the total of earlier ones.
fn note_answer(notes: &mut (Option<Instant>, Duration), is_there: bool) {
    match (*notes, is_there) {
        ((None, _), false) => notes.0 = Some(Instant::now()),
        ((Some(since), sum), true) => *notes = (None, sum + since.elapsed()),
        _ => {}
    }
}

/// An agent's metrics so far.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Times of answered polls in Unix seconds, without repeats.
    answered_at: Vec<u64>,
    first: Option<Counts>,
    last: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    answered: u64,
    failed: u64,
}

struct Watched {
    name: &'static str,
    interval: Duration,
    seen: Arc<Mutex<Seen>>,
    _task: Task,
}

impl Watched {
    fn start(name: &'static str, interval: Duration, client: Client, path: String) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let notes = Arc::clone(&seen);
        let task = Task::spawn(async move {
            loop {
                // A failed scrape is repeated, and the next one has the missing values.
                if let Ok(request) = http::Request::get(&path).body(Vec::new())
                    && let Ok(text) = client.request_text(request).await
                {
                    note(&mut notes.lock().unwrap_or_else(PoisonError::into_inner), &text);
                }
                tokio::time::sleep(SAMPLE).await;
            }
        });
        Self {
            name,
            interval,
            seen,
            _task: task,
        }
    }

    fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn until_answered_after(&self, time: u64) -> Result<()> {
        let what = format!("a poll of {} to be answered", self.name);
        let answered = wait_for(&what, REPLACED, || async {
            Ok(self
                .seen()
                .answered_at
                .last()
                .is_some_and(|last| *last > time)
                .then_some(()))
        });
        answered.await.with_context(|| format!("{:?}", self.seen()))
    }

    /// Waits until its next poll is about so far away.
    async fn wait_until_before_poll(&self, ahead: Duration) {
        let last = self.seen().answered_at.last().copied().unwrap_or_default();
        let wait = (last + self.interval.as_secs()).saturating_sub(now());
        tokio::time::sleep(Duration::from_secs(wait).saturating_sub(ahead)).await;
    }

    fn polls(&self) -> Polls {
        let seen = self.seen();
        let gaps = seen.answered_at.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let longest_gap = gaps.max().unwrap_or_default();
        let first = seen.first.unwrap_or_default();
        Polls {
            agent: self.name,
            answered: seen.last.answered.saturating_sub(first.answered),
            failed: seen.last.failed.saturating_sub(first.failed),
            longest_gap,
            missed: missed(self.interval, longest_gap),
        }
    }
}

/// Reads Prometheus' text format.
fn note(seen: &mut Seen, text: &str) {
    let value = |series: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|rest| rest.trim().parse::<f64>().ok())
            .map_or(0, |value| value as u64)
    };
    let polls = |result: &str| value(&format!("farwater_agent_polls_total{{result=\"{result}\"}}"));
    let last = value("farwater_agent_last_poll_timestamp_seconds");
    if last > 0 && seen.answered_at.last() != Some(&last) {
        seen.answered_at.push(last);
    }
    seen.last = Counts {
        answered: polls("unchanged") + polls("new"),
        failed: polls("failed"),
    };
    seen.first.get_or_insert(seen.last);
}

/// Number of consecutive polls without an answer in the seconds between two answered ones: one for each full interval
/// of maximum length beyond the first. Times are in whole seconds, so the result may be one too high.
fn missed(interval: Duration, gap: u64) -> u64 {
    let longest = interval.as_secs_f64() * (1.0 + JITTER);
    ((gap.saturating_sub(1) as f64 / longest).ceil() as u64).saturating_sub(1)
}

/// Maximum number of missed polls. A failed poll is retried after one, two and four seconds, so the agent finds the hub
/// after at most twice the time that it was away. If that is less than an interval, the limit is one.
fn most_missed(interval_seconds: u64, away: f64) -> u64 {
    let longest = interval_seconds as f64 * (1.0 + JITTER);
    (((2.0 * away + 1.0) / longest).ceil() as u64).max(1)
}

/// Runs so many deletions on a new site.
pub async fn on_a_new_site(
    interval: Duration,
    deletions: u32,
    seed: u64,
    told: impl FnMut(u32, f64),
) -> Result<Outcome> {
    let site = Site::start().await?;
    site.install()?;
    site.join()?;
    run(&site, interval, deletions, seed, told).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_is_missed_when_the_next_one_is_due() {
        for (gap, expected) in [(0, 0), (30, 0), (34, 0), (35, 1), (60, 1), (67, 1), (68, 2), (120, 3)] {
            assert_eq!(missed(Duration::from_secs(30), gap), expected, "{gap} s");
        }
    }

    #[test]
    fn one_poll_may_be_missed_and_more_where_the_hub_is_away_for_longer() {
        for (interval, away, expected) in [
            (30, 0.0, 1),
            (30, 5.7, 1),
            (30, 16.0, 1),
            (30, 17.0, 2),
            (10, 5.0, 1),
            (10, 9.0, 2),
        ] {
            assert_eq!(most_missed(interval, away), expected, "{away} s of {interval}");
        }
    }

    #[test]
    fn what_an_agent_says_is_noted_once() {
        let scrape = |time: u64, failed: u64| {
            format!(
                "# HELP farwater_agent_polls_total Polls.\nfarwater_agent_polls_total{{result=\"unchanged\"}} {time}\n\
                 farwater_agent_polls_total{{result=\"new\"}} 1\nfarwater_agent_polls_total{{result=\"failed\"}} {failed}\n\
                 farwater_agent_last_poll_timestamp_seconds {time}\n"
            )
        };
        let mut seen = Seen::default();
        for (time, failed) in [(100, 2), (100, 2), (130, 2), (130, 5), (175, 5)] {
            note(&mut seen, &scrape(time, failed));
        }
        assert_eq!(seen.answered_at, [100, 130, 175]);
        assert_eq!(
            (seen.last.failed - seen.first.unwrap().failed, seen.last.answered),
            (3, 176)
        );
    }

    #[test]
    fn what_differs_is_named() {
        let objects = |version: u64| vec![("pods web".to_owned(), json!({"resourceVersion": version}))];
        assert!(differences(&objects(1), &objects(1)).is_empty());
        let found = differences(&objects(1), &objects(2));
        assert_eq!(
            found,
            [
                "was: pods web {\"resourceVersion\":1}",
                "is: pods web {\"resourceVersion\":2}"
            ]
        );
    }
}
