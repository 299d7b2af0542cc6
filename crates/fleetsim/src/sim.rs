//! Clusters that do what the file [`BEHAVIOUR`] of a bundle says.

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

/// The name of a file of a bundle, in any folder: `good`, `bad`. Without one it is good.
pub const BEHAVIOUR: &str = "behaviour";
/// Between two polls of an agent, where nothing else is said.
const POLL: Duration = Duration::from_millis(500);
/// Agents that join at the same time.
const AT_ONCE: usize = 32;

/// What becomes of a bundle in a simulated cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// It is healthy at once.
    Good,
    /// It is applied, and its objects fail.
    Bad,
}

/// What an agent was handed, when it first saw it. That nothing may be deleted now is none: the fleet's brake reaches all at once.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub cluster: String,
    pub service: String,
    pub bundle: Digest,
    pub course: Course,
}

/// A fleet. Dropped, it is silent.
pub struct Sim {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<()>>,
}

struct Shared {
    /// Of bundles that somebody has looked into.
    courses: tokio::sync::Mutex<HashMap<Digest, Course>>,
    ledger: Mutex<Vec<Arrival>>,
    silent: Mutex<BTreeSet<String>>,
    /// Clusters whose agents speak of the version before only.
    late: Mutex<BTreeSet<String>>,
    folder: tempfile::TempDir,
}

impl Sim {
    /// Makes clusters with these names and labels, and agents for them.
    pub async fn join(hub: &Hub, clusters: Vec<(String, BTreeMap<String, String>)>) -> Result<Self> {
        Self::join_polling(hub, clusters, POLL).await
    }

    /// The same, with `poll` between two polls of an agent.
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
                api.patch(&name, &PatchParams::default(), &patch).await.with_context(|| format!("label {name}"))?;
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

    /// Whether these clusters' agents say nothing, and ask for nothing.
    pub fn silence<'n>(&self, clusters: impl IntoIterator<Item = &'n str>, on: bool) {
        change(&self.shared.silent, clusters, on);
    }

    /// Whether these clusters' agents go on saying of their old version that it is healthy, and nothing of a newer one.
    pub fn delay<'n>(&self, clusters: impl IntoIterator<Item = &'n str>, on: bool) {
        change(&self.shared.late, clusters, on);
    }

    /// What reached whom so far, in the order in which it did.
    pub fn ledger(&self) -> Vec<Arrival> {
        lock(&self.shared.ledger).clone()
    }

    /// An agent that gave up is an error of whoever simulates.
    pub async fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => bail!("a simulated agent has ended: {:?}", ended.context("a simulated agent panicked")?),
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
    /// By uid: what the hub was told last.
    said: BTreeMap<String, ServiceReport>,
    /// By uid: what the hub is to be told.
    unsaid: BTreeMap<String, Option<ServiceReport>>,
    /// By uid: the entry that was seen last.
    seen: BTreeMap<String, Digest>,
    /// By uid: what of it makes workloads ([`makings`]).
    makes: BTreeMap<String, Digest>,
    sequence: u64,
}

impl SimAgent {
    fn new(name: String, poller: Poller, shared: Arc<Shared>) -> Self {
        let (said, unsaid, seen, makes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { name, poller, shared, accepted: None, said, unsaid, seen, makes, sequence: 0 }
    }

    async fn run(mut self, poll: Duration) -> Result<()> {
        // All at the same time would be a storm that no fleet makes.
        tokio::time::sleep(poll.mul_f64(rand::random_range(0.0..1.0))).await;
        loop {
            tokio::time::sleep(poll).await;
            if lock(&self.shared.silent).contains(&self.name) {
                continue;
            }
            // A hub that is away comes back.
            let Ok(news) = self.poller.poll().await else { continue };
            if let Some(state) = news {
                self.accept(state).await.with_context(|| format!("{} accepts a state", self.name))?;
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
                // The hub went away meanwhile.
                self.poller.forget();
                return Ok(());
            };
            self.seen.insert(uid.clone(), entry.digest());
            if let Some(report) = self.act(entry, course)? {
                self.unsaid.insert(uid.clone(), Some(report));
            }
        }
        let listed: BTreeSet<&str> = state.entries.iter().map(|entry| entry.service.uid.as_str()).collect();
        let gone: Vec<String> = self.seen.keys().filter(|uid| !listed.contains(uid.as_str())).cloned().collect();
        for uid in gone {
            self.seen.remove(&uid);
            self.makes.remove(&uid);
            self.unsaid.insert(uid, None);
        }
        self.accepted = Some(AcceptedStatement { statement: state.statement, signature: state.signature });
        Ok(())
    }

    /// What will become of an entry; none: its bundle can't be had now.
    async fn foresee(&self, entry: &Entry) -> Result<Option<Course>> {
        match &entry.action {
            Action::Apply(deployment) => self.course(deployment.bundle).await,
            Action::Remove { .. } | Action::Hold { .. } | Action::Unreadable(_) => Ok(Some(Course::Good)),
        }
    }

    /// What there is to say of a new entry.
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
                let health = if course == Course::Good { Health::Current } else { Health::Failed };
                Some(report(digest, Outcome::Applied, Some(health)))
            }
            Action::Remove { .. } => Some(report(digest, Outcome::Removed, None)),
            Action::Hold { .. } | Action::Unreadable(_) => None,
        })
    }

    /// Each bundle is looked into once, by whoever comes first.
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

    /// What the hub did not take comes again.
    async fn tell(&mut self) {
        if lock(&self.shared.late).contains(&self.name) {
            // Of what it knew before it goes on speaking.
            let old = self.said.clone().into_iter().map(|(uid, report)| (uid, Some(report))).collect();
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
        // It has forgotten what was said before.
        let all =
            self.said.clone().into_iter().map(|(uid, report)| (uid, Some(report))).chain(self.unsaid.clone()).collect();
        self.send(0, all).await;
    }

    /// `false`: the hub does not know the report that this one is based on.
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
                    // An old word is not the new one.
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

/// All of a deployment but what it says of deletions.
fn makings(deployment: &Deployment) -> Result<Digest> {
    let makes = Deployment { prune: false, hold_prune: None, approved_prune: None, ..deployment.clone() };
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
