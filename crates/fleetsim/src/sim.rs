//! Clusters that follow the file [`BEHAVIOUR`] of a bundle.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use farwater_api::{
    ADMIN_NAMESPACE, Cluster, Digest,
    objects::{Health, ObjectRef, ObjectReport, Outcome, ServiceReport, SyncState},
    protocol::{
        AcceptedStatement, Action, Deployment, DesiredState, Entry, REASON_BASE_UNKNOWN, StatusReport, Verbatim,
    },
};
use farwater_bundle::{Archive, Limits};
use farwater_testkit::Hub;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::task::JoinSet;

use crate::agent::Poller;

/// Name of a file of a bundle, in any folder. Its content is `good` or `bad`. Without the file the bundle is good.
pub const BEHAVIOUR: &str = "behaviour";
/// Default interval between two polls of an agent.
const POLL: Duration = Duration::from_millis(500);
/// Number of agents that join at the same time.
const AT_ONCE: usize = 32;

/// What happens to a bundle in a simulated cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// It is healthy at once.
    Good,
    /// It is applied, and its objects fail.
    Bad,
}

/// A bundle that an agent got, at the time when the agent first saw it. A stop of deletions is not recorded, because it
/// reaches all agents at once.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub cluster: String,
    pub service: String,
    pub bundle: Digest,
    pub course: Course,
}

/// A simulated fleet. When dropped, its agents are silent.
pub struct Sim {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<()>>,
}

struct Shared {
    /// Courses of bundles that were already read.
    courses: tokio::sync::Mutex<HashMap<Digest, Course>>,
    ledger: Mutex<Vec<Arrival>>,
    silent: Mutex<BTreeSet<String>>,
    /// Clusters whose agents only report the previous version.
    late: Mutex<BTreeSet<String>>,
    folder: tempfile::TempDir,
}

impl Sim {
    /// Creates clusters with these names and labels, and agents for them.
    pub async fn join(hub: &Hub, clusters: Vec<(String, BTreeMap<String, String>)>) -> Result<Self> {
        Self::join_polling(hub, clusters, POLL).await
    }

    /// The same, with `poll` as the agents' interval.
    pub async fn join_polling(
        hub: &Hub,
        clusters: Vec<(String, BTreeMap<String, String>)>,
        poll: Duration,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            courses: tokio::sync::Mutex::default(),
            ledger: Mutex::default(),
            silent: Mutex::default(),
            late: Mutex::default(),
            folder: tempfile::tempdir().context("make a folder for bundles")?,
        });
        let api: Api<Cluster> = Api::namespaced(hub.client().await?, ADMIN_NAMESPACE);
        let joined = stream::iter(clusters).map(|(name, labels)| {
            let (api, shared) = (api.clone(), Arc::clone(&shared));
            async move {
                let poller = Poller::join(hub, &name).await?;
                let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
                api.patch(&name, &PatchParams::default(), &patch)
                    .await
                    .with_context(|| format!("label {name}"))?;
                Ok::<_, anyhow::Error>(SimAgent::new(name, poller, shared))
            }
        });
        let agents: Vec<SimAgent> = joined.buffer_unordered(AT_ONCE).try_collect().await?;
        let mut tasks = JoinSet::new();
        for agent in agents {
            tasks.spawn(agent.run(poll));
        }
        Ok(Self { shared, tasks })
    }

    /// Whether these clusters' agents are silent: they neither report nor poll.
    pub fn silence<'n>(&self, clusters: impl IntoIterator<Item = &'n str>, on: bool) {
        change(&self.shared.silent, clusters, on);
    }

    /// Whether these clusters' agents keep reporting their old version as healthy, and nothing about a newer one.
    pub fn delay<'n>(&self, clusters: impl IntoIterator<Item = &'n str>, on: bool) {
        change(&self.shared.late, clusters, on);
    }

    /// Deliveries so far, in order.
    pub fn ledger(&self) -> Vec<Arrival> {
        lock(&self.shared.ledger).clone()
    }

    /// Fails if an agent gave up.
    pub async fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => bail!(
                "a simulated agent has ended: {:?}",
                ended.context("a simulated agent panicked")?
            ),
        }
    }
}

fn change<'n>(names: &Mutex<BTreeSet<String>>, clusters: impl IntoIterator<Item = &'n str>, on: bool) {
    let mut names = lock(names);
    for cluster in clusters {
        match on {
            true => names.insert(cluster.to_owned()),
            false => names.remove(cluster),
        };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SimAgent {
    name: String,
    poller: Poller,
    shared: Arc<Shared>,
    accepted: Option<AcceptedStatement>,
    /// The last reports that the hub accepted, by uid.
    said: BTreeMap<String, ServiceReport>,
    /// Reports that the hub must still get, by uid.
    unsaid: BTreeMap<String, Option<ServiceReport>>,
    /// Digests of the last seen entries, by uid.
    seen: BTreeMap<String, Digest>,
    /// Digests of the parts that affect workloads ([`makings`]), by uid.
    makes: BTreeMap<String, Digest>,
    sequence: u64,
}

impl SimAgent {
    fn new(name: String, poller: Poller, shared: Arc<Shared>) -> Self {
        let (said, unsaid, seen, makes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            name,
            poller,
            shared,
            accepted: None,
            said,
            unsaid,
            seen,
            makes,
            sequence: 0,
        }
    }

    async fn run(mut self, poll: Duration) -> Result<()> {
        // Spread the polls: real agents don't all poll at the same moment.
        tokio::time::sleep(poll.mul_f64(rand::random_range(0.0..1.0))).await;
        loop {
            tokio::time::sleep(poll).await;
            if lock(&self.shared.silent).contains(&self.name) {
                continue;
            }
            // Retry, because the hub may be restarting.
            let Ok(news) = self.poller.poll().await else { continue };
            if let Some(state) = news {
                self.accept(state)
                    .await
                    .with_context(|| format!("{} accepts a state", self.name))?;
            }
            self.tell().await;
        }
    }

    async fn accept(&mut self, state: DesiredState) -> Result<()> {
        for entry in &state.entries {
            let uid = &entry.service.uid;
            if self.seen.get(uid) == Some(&entry.digest()) {
                continue;
            }
            let Some(course) = self.foresee(entry).await? else {
                // The hub was stopped meanwhile.
                self.poller.forget();
                return Ok(());
            };
            self.seen.insert(uid.clone(), entry.digest());
            if let Some(report) = self.act(entry, course)? {
                self.unsaid.insert(uid.clone(), Some(report));
            }
        }
        let listed: BTreeSet<&str> = state.entries.iter().map(|entry| entry.service.uid.as_str()).collect();
        let gone: Vec<String> = self
            .seen
            .keys()
            .filter(|uid| !listed.contains(uid.as_str()))
            .cloned()
            .collect();
        for uid in gone {
            self.seen.remove(&uid);
            self.makes.remove(&uid);
            self.unsaid.insert(uid, None);
        }
        self.accepted = Some(AcceptedStatement {
            statement: state.statement,
            signature: state.signature,
        });
        Ok(())
    }

    /// Course of an entry. None: its bundle can't be downloaded now.
    async fn foresee(&self, entry: &Entry) -> Result<Option<Course>> {
        match &entry.action {
            Action::Apply(deployment) => self.course(deployment.bundle).await,
            Action::Remove { .. } | Action::Hold { .. } | Action::Unreadable(_) => Ok(Some(Course::Good)),
        }
    }

    /// The report about a new entry.
    fn act(&mut self, entry: &Verbatim<Entry>, course: Course) -> Result<Option<ServiceReport>> {
        let digest = entry.digest();
        Ok(match &entry.action {
            Action::Apply(deployment) => {
                let makes = makings(deployment)?;
                if self.makes.insert(entry.service.uid.clone(), makes) != Some(makes) {
                    lock(&self.shared.ledger).push(Arrival {
                        at: Instant::now(),
                        cluster: self.name.clone(),
                        service: entry.service.name.clone(),
                        bundle: deployment.bundle,
                        course,
                    });
                }
                let health = if course == Course::Good {
                    Health::Current
                } else {
                    Health::Failed
                };
                Some(report(digest, Outcome::Applied, Some(health)))
            }
            Action::Remove { .. } => Some(report(digest, Outcome::Removed, None)),
            Action::Hold { .. } | Action::Unreadable(_) => None,
        })
    }

    /// The first agent that needs a bundle reads it for all others.
    async fn course(&self, bundle: Digest) -> Result<Option<Course>> {
        let mut courses = self.shared.courses.lock().await;
        if let Some(known) = courses.get(&bundle) {
            return Ok(Some(*known));
        }
        let path = self.shared.folder.path().join(bundle.to_hex());
        if self.poller.download(bundle, &path).await.is_err() {
            return Ok(None);
        }
        let archive = Archive::open(&std::fs::read(&path)?, &bundle, &Limits::default())?;
        let file = archive.files().find(|(path, _)| path.names().last() == Some(BEHAVIOUR));
        let course = match file.map(|(_, text)| text.trim_ascii()) {
            None | Some(b"good") => Course::Good,
            Some(b"bad") => Course::Bad,
            Some(other) => bail!("{BEHAVIOUR} is {:?}", String::from_utf8_lossy(other)),
        };
        courses.insert(bundle, course);
        Ok(Some(course))
    }

    /// Sends reports. Reports that the hub did not accept are sent again.
    async fn tell(&mut self) {
        if lock(&self.shared.late).contains(&self.name) {
            // Keep reporting the previous version.
            let old = self
                .said
                .clone()
                .into_iter()
                .map(|(uid, report)| (uid, Some(report)))
                .collect();
            self.send(self.sequence, old).await;
            return;
        }
        if self.unsaid.is_empty() {
            return;
        }
        let news = self.unsaid.clone();
        if self.send(self.sequence, news).await {
            return;
        }
        // The hub has forgotten earlier reports, so send all of them.
        let all = self
            .said
            .clone()
            .into_iter()
            .map(|(uid, report)| (uid, Some(report)))
            .chain(self.unsaid.clone())
            .collect();
        self.send(0, all).await;
    }

    /// Returns `false` if the hub does not know the report that this one is based on.
    async fn send(&mut self, base: u64, services: BTreeMap<String, Option<ServiceReport>>) -> bool {
        let said = StatusReport {
            sequence: self.sequence + 1,
            base,
            accepted: self.accepted.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            kubernetes_version: crate::agent::KUBERNETES.to_owned(),
            system_time: None,
            services: services.clone(),
            agent: None,
        };
        match self.poller.report(&said).await {
            Ok(()) => {
                self.sequence = said.sequence;
                for (uid, report) in services {
                    // The report may have changed meanwhile. Remove it only if it is still the same.
                    if self.unsaid.get(&uid) == Some(&report) {
                        self.unsaid.remove(&uid);
                    }
                    match report {
                        Some(report) => drop(self.said.insert(uid, report)),
                        None => drop(self.said.remove(&uid)),
                    }
                }
                true
            }
            Err(error) => !error.is_reason(REASON_BASE_UNKNOWN),
        }
    }
}

/// Digest of a deployment without its settings about deletions.
fn makings(deployment: &Deployment) -> Result<Digest> {
    let makes = Deployment {
        prune: false,
        hold_prune: None,
        approved_prune: None,
        ..deployment.clone()
    };
    Ok(Digest::of(serde_json::to_vec(&makes).context("write a deployment")?))
}

fn report(entry: Digest, outcome: Outcome, health: Option<Health>) -> ServiceReport {
    let object = |health| ObjectReport {
        object: ObjectRef {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: "simulated".to_owned(),
            name: "simulated".to_owned(),
        },
        sync: SyncState::Synced,
        health,
        message: String::new(),
        waits_for: None,
    };
    ServiceReport {
        entry,
        outcome,
        message: String::new(),
        held_prune: None,
        deletion: None,
        hooks: Vec::new(),
        objects: health.map(object).into_iter().collect(),
    }
}
