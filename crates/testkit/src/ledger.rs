//! Proves that an acknowledged write survives `kill -9`. Clients write, keep a ledger, and compare the server with it.
//!
//! Each writer owns a few names, so it knows the expected value of each. A write without an answer is *open*: after the
//! restart both results are correct, and a read decides which. Watchers resume from the last version that they saw and
//! never list again. They must see every acknowledged change exactly once, in order and with the right type. Replaying
//! their events must make sense at each step, and end with the actual objects.

mod watcher;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;

use crate::wait_for;
use watcher::{Picture, Watcher, compare};

/// Maximum time for the writes before a kill.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Parameters of the load.
#[derive(Clone, Debug)]
pub struct Load {
    pub namespace: String,
    pub writers: usize,
    /// Number of names for each writer.
    pub names: usize,
    pub watchers: usize,
    pub kills: u32,
    /// The kill comes at a random moment within this time after the server is ready, or when `writes` are done.
    pub between: Duration,
    /// Minimum number of acknowledged writes before each kill, so that it proves something even on a slow machine.
    pub writes: u64,
    pub seed: u64,
}

/// Results. Every list of faults must be empty.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub kills: u32,
    pub acknowledged: u64,
    /// Writes without an answer.
    pub open: u64,
    /// Writes per second while the server was up.
    pub writes_per_second: f64,
    pub events: u64,
    pub lost: Vec<String>,
    pub resurrected: Vec<String>,
    pub watch_faults: Vec<String>,
}

impl Outcome {
    pub fn check(&self) -> Result<()> {
        ensure!(self.lost.is_empty(), "acknowledged writes were lost: {:?}", self.lost);
        ensure!(
            self.resurrected.is_empty(),
            "acknowledged deletes came back: {:?}",
            self.resurrected
        );
        ensure!(
            self.watch_faults.is_empty(),
            "watches had gaps or went back: {:?}",
            self.watch_faults
        );
        Ok(())
    }
}

/// A server that can be killed without warning and restarted with the same data and address.
pub trait Killable {
    fn client(&self) -> Client;
    /// Kills it with SIGKILL and restarts it. Returns when the server is ready.
    fn kill_and_restart(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// The product's hub, with a client that survives restarts.
pub struct KillableHub {
    hub: crate::Hub,
    client: Client,
}

impl KillableHub {
    /// Creates the namespace for the load.
    pub async fn new(hub: crate::Hub, namespace: &str) -> Result<Self> {
        let client = hub.client().await?;
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        Ok(Self { hub, client })
    }
}

impl KillableHub {
    pub fn hub(&mut self) -> &mut crate::Hub {
        &mut self.hub
    }
}

impl Killable for KillableHub {
    fn client(&self) -> Client {
        self.client.clone()
    }

    async fn kill_and_restart(&mut self) -> Result<()> {
        self.hub.restart().await
    }
}

/// The same hub, but its database server is killed instead.
pub struct KillableDatabase {
    pub hub: KillableHub,
    pub server: crate::Postgres,
}

impl Killable for KillableDatabase {
    fn client(&self) -> Client {
        self.hub.client()
    }

    async fn kill_and_restart(&mut self) -> Result<()> {
        self.server.restart().await
    }
}

/// Runs the load. Calls `progress` after each kill with the number of kills so far.
pub async fn run(server: &mut impl Killable, load: &Load, mut progress: impl FnMut(u32, u64)) -> Result<Outcome> {
    let state = Arc::new(Shared::default());
    let client = server.client();
    let (first, start) = list(&client, &load.namespace).await.context("list before the load")?;

    let mut tasks = Vec::new();
    for writer in 0..load.writers {
        let mut writer = Writer {
            api: Api::namespaced(client.clone(), &load.namespace),
            random: StdRng::seed_from_u64(load.seed ^ (writer as u64) << 32),
            names: (0..load.names).map(|n| format!("w{writer}-{n}")).collect(),
            known: HashMap::new(),
            state: state.clone(),
            serial: 0,
        };
        tasks.push(tokio::spawn(async move { writer.run().await }));
    }
    let mut watchers = Vec::new();
    for _ in 0..load.watchers {
        let mut watcher = Watcher {
            api: Api::namespaced(client.clone(), &load.namespace),
            version: start,
            seen: Vec::new(),
            faults: Vec::new(),
        };
        let state = state.clone();
        watchers.push(tokio::spawn(async move {
            watcher.run(&state).await;
            watcher
        }));
    }

    let mut random = StdRng::seed_from_u64(load.seed);
    let mut up = Duration::ZERO;
    for kill in 1..=load.kills {
        let ready = Instant::now();
        let before = state.acknowledged.load(Ordering::Relaxed);
        tokio::time::sleep(load.between.mul_f64(random.random_range(0.1..1.0))).await;
        wait_for(
            &format!("{} writes before kill {kill}", load.writes),
            LONGEST_WAIT,
            async || {
                let since = state.acknowledged.load(Ordering::Relaxed) - before;
                Ok((since >= load.writes).then_some(()))
            },
        )
        .await?;
        up += ready.elapsed();
        server
            .kill_and_restart()
            .await
            .with_context(|| format!("restart after kill {kill}"))?;
        progress(kill, state.acknowledged.load(Ordering::Relaxed));
    }
    let ready = Instant::now();
    tokio::time::sleep(load.between / 2).await;
    up += ready.elapsed();
    state.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }

    let mut outcome = Outcome {
        kills: load.kills,
        acknowledged: state.acknowledged.load(Ordering::Relaxed),
        open: state.open.load(Ordering::Relaxed),
        writes_per_second: state.acknowledged.load(Ordering::Relaxed) as f64 / up.as_secs_f64(),
        lost: state.lock(&state.lost).clone(),
        resurrected: state.lock(&state.resurrected).clone(),
        ..Outcome::default()
    };
    let (last, end) = list(&client, &load.namespace).await.context("list after the load")?;
    state.end.store(end, Ordering::Relaxed);
    for watcher in watchers {
        let watcher = tokio::time::timeout(Duration::from_secs(60), watcher)
            .await
            .context("a watcher did not reach the end")??;
        outcome.events += watcher.seen.len() as u64;
        outcome.watch_faults.extend(watcher.faults.iter().cloned());
        outcome
            .watch_faults
            .extend(compare(&state.lock(&state.ledger), &first, &watcher.seen, &last));
    }
    Ok(outcome)
}

/// The existing objects, and the version of the list.
async fn list(client: &Client, namespace: &str) -> Result<(Picture, u64)> {
    let list = Api::<ConfigMap>::namespaced(client.clone(), namespace)
        .list(&ListParams::default())
        .await?;
    let version = list.metadata.resource_version.context("a list has a resourceVersion")?;
    let picture = list
        .items
        .iter()
        .map(|object| (object.name_any(), value_of(object)))
        .collect();
    Ok((picture, version.parse().context("a resourceVersion is a number")?))
}

fn value_of(object: &ConfigMap) -> String {
    object
        .data
        .as_ref()
        .and_then(|data| data.get("value"))
        .cloned()
        .unwrap_or_default()
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Last version that watchers must reach. 0 while writers run.
    end: AtomicU64,
    acknowledged: AtomicU64,
    open: AtomicU64,
    ledger: Mutex<Ledger>,
    lost: Mutex<Vec<String>>,
    resurrected: Mutex<Vec<String>>,
}

impl Shared {
    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Writes that certainly took effect. Each value is written only once, so it identifies one state of a name.
#[derive(Default)]
struct Ledger {
    /// Creates and updates: name and value, by version.
    written: BTreeMap<u64, (String, String)>,
    /// Deletes: name and last value. The answer to a delete has no version.
    deleted: BTreeSet<(String, String)>,
}

/// A writer's knowledge of one name.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    Absent,
    Present {
        value: String,
        version: String,
    },
    /// The last write had no answer: the value before, and the value if it took effect.
    Open {
        before: Option<String>,
        after: Option<String>,
    },
}

struct Writer {
    api: Api<ConfigMap>,
    random: StdRng,
    names: Vec<String>,
    known: HashMap<String, Known>,
    state: Arc<Shared>,
    serial: u64,
}

impl Writer {
    async fn run(&mut self) -> Result<()> {
        while !self.state.stop.load(Ordering::Relaxed) {
            let name = self.names[self.random.random_range(0..self.names.len())].clone();
            match self.known.get(&name).cloned().unwrap_or(Known::Absent) {
                open @ Known::Open { .. } => self.settle(&name, open).await?,
                Known::Absent => self.create(&name).await?,
                Known::Present { value, .. } if self.random.random_bool(0.2) => self.delete(&name, value).await?,
                Known::Present { value, version } => self.update(&name, value, version).await?,
            }
            // Sometimes a name is read back. The acknowledged value must be there.
            if self.random.random_bool(0.05) {
                let known = self.known.get(&name).cloned().unwrap_or(Known::Absent);
                self.settle(&name, known).await?;
            }
        }
        for name in self.names.clone() {
            let known = self.known.get(&name).cloned().unwrap_or(Known::Absent);
            self.settle(&name, known).await?;
        }
        Ok(())
    }

    fn object(&mut self, name: &str, version: Option<String>) -> (ConfigMap, String) {
        self.serial += 1;
        let value = format!("{}-{}", name, self.serial);
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: version,
            ..ObjectMeta::default()
        };
        let data = Some(BTreeMap::from([("value".to_owned(), value.clone())]));
        (
            ConfigMap {
                metadata,
                data,
                ..ConfigMap::default()
            },
            value,
        )
    }

    async fn create(&mut self, name: &str) -> Result<()> {
        let (object, value) = self.object(name, None);
        let answer = self.api.create(&PostParams::default(), &object).await;
        self.record(name, None, Some(value), answer.map(Some))
    }

    async fn update(&mut self, name: &str, before: String, version: String) -> Result<()> {
        let (object, value) = self.object(name, Some(version));
        let answer = self.api.replace(name, &PostParams::default(), &object).await;
        self.record(name, Some(before), Some(value), answer.map(Some))
    }

    async fn delete(&mut self, name: &str, before: String) -> Result<()> {
        let answer = self.api.delete(name, &DeleteParams::default()).await;
        self.record(name, Some(before), None, answer.map(|_| None))
    }

    fn record(
        &mut self,
        name: &str,
        before: Option<String>,
        after: Option<String>,
        answer: kube::Result<Option<ConfigMap>>,
    ) -> Result<()> {
        let known = match (answer, after) {
            (Ok(Some(object)), Some(value)) => {
                let version = object
                    .resource_version()
                    .context("a written object has a resourceVersion")?;
                self.note_written(name, &version, &value)?;
                self.state.acknowledged.fetch_add(1, Ordering::Relaxed);
                Known::Present { value, version }
            }
            (Ok(_), _) => {
                self.note_deleted(name, before);
                self.state.acknowledged.fetch_add(1, Ordering::Relaxed);
                Known::Absent
            }
            // The server answered that it did nothing, or (504) that it doesn't know. Only a server that shuts down, is
            // overloaded or has lost its database may do so here.
            (Err(kube::Error::Api(status)), after) if matches!(status.code, 429 | 503 | 504) => {
                self.state.open.fetch_add(1, Ordering::Relaxed);
                Known::Open { before, after }
            }
            (Err(kube::Error::Api(status)), _) => bail!("{name} was refused: {status}"),
            (Err(_), after) => {
                self.state.open.fetch_add(1, Ordering::Relaxed);
                Known::Open { before, after }
            }
        };
        self.known.insert(name.to_owned(), known);
        Ok(())
    }

    fn note_written(&self, name: &str, version: &str, value: &str) -> Result<()> {
        let version = version.parse().context("a resourceVersion is a number")?;
        self.state
            .lock(&self.state.ledger)
            .written
            .insert(version, (name.to_owned(), value.to_owned()));
        Ok(())
    }

    fn note_deleted(&self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            self.state
                .lock(&self.state.ledger)
                .deleted
                .insert((name.to_owned(), value));
        }
    }

    /// Reads a name and compares the answer with the known value.
    async fn settle(&mut self, name: &str, known: Known) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let found = loop {
            match self.api.get_opt(name).await {
                Ok(found) => break found,
                Err(error) if Instant::now() > deadline => return Err(error).context("the server did not come back"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let value = found.as_ref().and_then(|o| o.data.as_ref()?.get("value").cloned());
        let fine = match &known {
            Known::Absent => value.is_none(),
            Known::Present {
                value: acknowledged, ..
            } => value.as_ref() == Some(acknowledged),
            Known::Open { before, after } => value == *before || value == *after,
        };
        if !fine {
            let report = format!("{name}: known {known:?}, found {value:?}");
            let list = if matches!(known, Known::Absent) {
                &self.state.resurrected
            } else {
                &self.state.lost
            };
            self.state.lock(list).push(report);
        }
        // The write took effect, although its answer was lost. Watchers must see it too.
        let known = match (value, found.and_then(|o| o.metadata.resource_version), known) {
            (Some(value), Some(version), _) => {
                self.note_written(name, &version, &value)?;
                Known::Present { value, version }
            }
            (_, _, Known::Open { before, after: None }) => {
                self.note_deleted(name, before);
                Known::Absent
            }
            _ => Known::Absent,
        };
        self.known.insert(name.to_owned(), known);
        Ok(())
    }
}
