//! follow_windows: ChangeWindows → whether a change may start now, and which services are requeued when that changes.
//!
//! Windows are evaluated with each decision, as a function of the time, so a clock that jumps is only another time. The
//! rows of held services are kept, and only those services are requeued when a window opens.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use farwater_api::{
    ADMIN_NAMESPACE, ChangeWindow, ChangeWindowSpec, ChangeWindowStatus, Digest,
    change_window::{HandedWindow, MAX_HANDED, WindowType, Windows as HandedWindows},
};
use farwater_fleet::{
    conditions::{self, Verdict},
    placement::selects,
    windows::{Closed, Standing, Subject, Window, decide},
};
use farwater_store::{
    Key, Resource, StoreError,
    delivery::{assignments_of_namespace, held_by, held_services, held_until, mark_cluster},
};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    approvals::{OVERRIDE, Said, override_of_set, owning_set},
    chain,
    resources::{self, Name},
    services::{ClusterFacts, ServiceFacts},
};
use crate::delivery::{Delivery, clusters::ClusterState};

/// If there are windows, a clock that was set is noticed this late. Nothing is read for that.
const LONGEST_REST: Duration = Duration::from_secs(2);
const NOTHING_TO_FOLLOW: Duration = Duration::from_secs(600);
/// Timers run on another clock than windows.
const SOON: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_secs(5);

/// A window, as it is stated and as it is parsed.
#[derive(Clone)]
struct Known {
    namespace: String,
    name: String,
    spec: ChangeWindowSpec,
    window: Window,
}

/// All windows, in memory.
pub struct Windows {
    all: Mutex<Arc<[Known]>>,
    /// Counts the reads.
    edition: AtomicU64,
    /// A window was written or deleted, and no service was requeued for that yet.
    edited: AtomicBool,
    woken: Notify,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Default for Windows {
    fn default() -> Self {
        Self::by(Timestamp::now)
    }
}

impl Windows {
    pub fn by(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            all: Mutex::new(Arc::new([])),
            edition: AtomicU64::new(0),
            edited: AtomicBool::new(false),
            woken: Notify::new(),
            clock: Box::new(clock),
        }
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn all(&self) -> Arc<[Known]> {
        Arc::clone(&self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces all windows and returns the earlier ones.
    fn set(&self, windows: Vec<Known>) -> Arc<[Known]> {
        let before = std::mem::replace(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner), windows.into());
        self.edition.fetch_add(1, Ordering::AcqRel);
        before
    }

    /// The windows for the agent of a cluster.
    pub fn handing(&self, cluster: &ClusterFacts) -> Handing {
        let (all, now) = (self.all(), self.now());
        let concerns = |known: &&Known| {
            let is_over = known.window.at(now) == Standing { in_force: false, until: None };
            // A window of type Allow that is over still keeps changes from starting at other times.
            !(is_over && known.spec.r#type == WindowType::Deny)
                && selects(&known.spec.cluster_selector, &cluster.labels)
                && (known.spec.clusters.is_empty() || known.spec.clusters.contains(&cluster.name.name))
        };
        let windows = all.iter().filter(concerns).map(|known| (known.clone(), Vec::new())).collect();
        Handing { windows, cluster: cluster.clone(), overrides: BTreeMap::new(), count: 0, sets: HashMap::new() }
    }

    /// A decision made under one edition is made again under the next.
    pub fn edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// The window that keeps changes of `subject` from starting now; None: they may start.
    pub fn closed(&self, subject: Subject<'_>) -> Option<Closed> {
        let all = self.all();
        let windows = all.iter().map(|known| &known.window);
        decide(windows.filter(|window| window.concerns(subject)), self.now()).closed()
    }

    /// Evaluates all windows again: the clock may have been set.
    pub fn look_again(&self) {
        self.woken.notify_one();
    }
}

/// Windows for one agent, with the services of its cluster that each one concerns.
pub struct Handing {
    windows: Vec<(Known, Vec<String>)>,
    cluster: ClusterFacts,
    overrides: BTreeMap<String, Digest>,
    count: usize,
    /// Overrides of sets.
    sets: HashMap<Name, Option<Said>>,
}

impl Handing {
    pub async fn add(&mut self, delivery: &Delivery, facts: &ServiceFacts, entry: Digest) -> Result<(), StoreError> {
        self.count += 1;

        if self.windows.is_empty() {
            return Ok(());
        }
        let none = BTreeMap::new();
        let metadata = &facts.service.metadata;
        let subject = Subject {
            namespace: &facts.name.namespace,
            name: &facts.name.name,
            labels: metadata.labels.as_ref().unwrap_or(&none),
            cluster_namespace: &self.cluster.name.namespace,
            cluster_name: &self.cluster.name.name,
            cluster_labels: &self.cluster.labels,
        };

        let mut is_concerned = false;
        for (known, uids) in &mut self.windows {
            if known.window.concerns(subject) {
                is_concerned = true;
                uids.push(facts.uid.clone());
            }
        }

        if is_concerned && self.is_overridden(delivery, facts).await? {
            self.overrides.insert(facts.uid.clone(), entry);
        }
        Ok(())
    }

    async fn is_overridden(&mut self, delivery: &Delivery, facts: &ServiceFacts) -> Result<bool, StoreError> {
        let now = Timestamp::now();
        let (metadata, status) = (&facts.service.metadata, &facts.service.status);
        if metadata.annotations.as_ref().is_some_and(|all| all.contains_key(farwater_api::OVERRIDE_FREEZE)) {
            let object = json!({"metadata": {"annotations": metadata.annotations}, "status": status});
            if OVERRIDE.counting(&object, now).is_some() {
                return Ok(true);
            }
        }
        let Some(owners) = &metadata.owner_references else { return Ok(false) };
        let owners = owners.iter().map(|owner| (owner.name.as_str(), owner.uid.as_str()));
        let found = owning_set(delivery, &facts.uid, &facts.name.namespace, owners).await?;

        let Some((set, uid)) = found else { return Ok(false) };
        if let Some(known) = self.sets.get(&set) {
            return Ok(known.is_some());
        }
        let said = override_of_set(delivery, &set, &uid, now).await?;
        let is_said = said.is_some();
        self.sets.insert(set, said);
        Ok(is_said)
    }

    /// None: no window concerns a service of this cluster.
    pub fn end(self) -> Option<HandedWindows> {
        let count = self.count;
        let mut windows: Vec<HandedWindow> = self
            .windows
            .into_iter()
            .filter(|(_, uids)| !uids.is_empty())
            .map(|(known, mut uids)| {
                uids.sort_unstable();
                let some = (uids.len() < count).then_some(uids);
                HandedWindow::of(&known.namespace, &known.name, &known.spec, some)
            })
            .collect();

        windows.sort_by(|a, b| {
            let place = |window: &HandedWindow| {
                (window.r#type == WindowType::Allow.to_string(), window.namespace.clone(), window.name.clone())
            };
            place(a).cmp(&place(b))
        });
        windows.truncate(MAX_HANDED);
        (!windows.is_empty()).then_some(HandedWindows { windows, overrides: self.overrides })
    }
}

/// Called before anything is decided.
pub async fn load(delivery: &Delivery) -> Result<(), StoreError> {
    read(delivery).await.map(drop)
}

/// Reads all windows. Returns those that differ, both as they were and as they are.
async fn read(delivery: &Delivery) -> Result<Vec<Known>, StoreError> {
    let now: Vec<Known> = list(delivery).await?.into_iter().map(Listed::known).collect();
    let before = delivery.windows.set(now.clone());
    delivery.windows.edited.store(true, Ordering::Release);
    delivery.windows.look_again();

    let is_in = |all: &[Known], one: &Known| {
        all.iter().any(|known| (&known.namespace, &known.name, &known.spec) == (&one.namespace, &one.name, &one.spec))
    };
    let gone = before.iter().filter(|known| !is_in(&now, known)).cloned();
    let come = now.iter().filter(|known| !is_in(&before, known)).cloned();
    Ok(gone.chain(come).collect())
}

/// A window was written or deleted: marks the clusters that it concerns, because their agents need the new windows.
pub async fn follow(delivery: &Delivery) -> Result<(), StoreError> {
    let mut clusters = BTreeSet::new();
    for known in read(delivery).await? {
        let (namespace, spec) = (&known.namespace, &known.spec);
        let mut of_services = BTreeSet::new();
        if namespace != ADMIN_NAMESPACE {
            let rows = assignments_of_namespace(&mut *delivery.store.tables().await?, namespace).await?;
            of_services.extend(rows.into_iter().map(|row| row.cluster_uid));
        }
        let concerns = |state: &ClusterState| {
            (namespace == ADMIN_NAMESPACE || *namespace == *state.namespace || of_services.contains(&*state.uid))
                && (spec.clusters.is_empty() || spec.clusters.iter().any(|name| *name == *state.name))
                && selects(&spec.cluster_selector, &state.labels)
        };
        let all = delivery.clusters.all();
        clusters.extend(all.iter().filter(|state| concerns(state)).map(|state| state.uid.to_string()));
    }

    if clusters.is_empty() {
        return Ok(());
    }
    let marked = delivery.store.transact(move |tx| {
        Box::pin(async move {
            for uid in &clusters {
                mark_cluster(tx, uid).await?;
            }
            Ok(())
        })
    });
    marked.await?;
    delivery.dirty.notify_one();
    Ok(())
}

struct Listed {
    resource: Resource,
    typed: ChangeWindow,
    window: Window,
    /// Why its spec can't be parsed; None: it can.
    problem: Option<String>,
}

impl Listed {
    fn known(self) -> Known {
        let Key { namespace, name, .. } = self.resource.key;
        Known { namespace, name, spec: self.typed.spec, window: self.window }
    }
}

async fn list(delivery: &Delivery) -> Result<Vec<Listed>, StoreError> {
    let mut rows = Vec::new();
    resources::list_pages::<ChangeWindow>(&delivery.store, None, |resource| rows.push(resource)).await?;
    let read = |resource: Resource| {
        let typed: ChangeWindow = resources::parse(&resource)?;
        let (namespace, name) = (&resource.key.namespace, &resource.key.name);
        let (window, problem) = match Window::read(namespace, name, &typed.spec) {
            Ok(window) => (window, None),
            // Admission refuses these; another version of the hub accepted it.
            Err(problems) => {
                let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
                (Window::unreadable(namespace, name, &typed.spec, &problems), Some(told.join("; ")))
            }
        };
        Ok(Listed { resource, typed, window, problem })
    };
    rows.into_iter().map(read).collect()
}

/// Wakes with the next change of what windows say, and at least every [`LONGEST_REST`] to notice a clock that was set.
pub async fn run(delivery: Arc<Delivery>, shutdown: CancellationToken) {
    let mut known = HashMap::new();
    loop {
        let wait = match advance(&delivery, &mut known).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "follow change windows");
                RETRY
            }
        };
        let woken = async {
            tokio::select! { () = delivery.windows.woken.notified() => {} () = tokio::time::sleep(wait) => {} }
        };
        if shutdown.run_until_cancelled(woken).await.is_none() {
            return;
        }
    }
}

/// `known`: which windows were in force when services were last requeued. Returns how long there is nothing to do.
async fn advance(delivery: &Delivery, known: &mut HashMap<String, bool>) -> Result<Duration, StoreError> {
    let windows = &delivery.windows;
    let edited = windows.edited.swap(false, Ordering::AcqRel);
    let now = windows.now();
    let standings: Vec<(String, Standing)> =
        windows.all().iter().map(|known| (known.window.name().to_owned(), known.window.at(now))).collect();
    let turned: Vec<&str> = standings
        .iter()
        .filter(|(name, standing)| known.get(name) != Some(&standing.in_force))
        .map(|(name, _)| name.as_str())
        .collect();

    if edited || !turned.is_empty() {
        let done = async {
            wake(delivery, edited, &turned, now).await?;
            tell(delivery, now).await
        };
        if let Err(error) = done.await {
            windows.edited.fetch_or(edited, Ordering::AcqRel);
            return Err(error);
        }
        *known = standings.iter().map(|(name, standing)| (name.clone(), standing.in_force)).collect();
    }

    if standings.is_empty() {
        // The first window that is created wakes this controller.
        return Ok(NOTHING_TO_FOLLOW);
    }

    let next = standings.iter().filter_map(|(_, standing)| standing.until).min();
    let rest = next.map(|next| Duration::try_from(next.duration_since(now)).unwrap_or(SOON));
    Ok(rest.map_or(LONGEST_REST, |rest| rest.clamp(SOON, LONGEST_REST)))
}

/// Requeues held services that may start their changes now, and all sets.
async fn wake(delivery: &Delivery, edited: bool, turned: &[&str], now: Timestamp) -> Result<(), StoreError> {
    let names = {
        let mut tables = delivery.store.tables().await?;
        if edited {
            held_services(&mut tables).await?
        } else {
            // Include services whose hold should have ended by now: after the clock was set, their window may look
            // unchanged.
            let mut names = held_until(&mut tables, now.as_second()).await?;
            for window in turned {
                names.extend(held_by(&mut tables, window).await?);
            }
            names
        }
    };
    for (namespace, name) in names {
        delivery.services.add(Name { namespace, name });
    }
    delivery.sets.look_at_all();
    Ok(())
}

/// Writes the status of each window, if it differs.
async fn tell(delivery: &Delivery, now: Timestamp) -> Result<(), StoreError> {
    for Listed { resource, typed, window, problem } in list(delivery).await? {
        let standing = window.at(now);
        let previous = typed.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let generation = typed.metadata.generation.unwrap_or(0);
        let verdicts = judge(standing, problem);
        let status = ChangeWindowStatus {
            observed_generation: Some(generation),
            conditions: conditions::resolve(previous, verdicts, generation, now),
            in_force: standing.in_force,
            next_change: standing.until.map(|until| until.to_string()),
        };
        let name = Name::new(&resource.key.namespace, &resource.key.name);
        resources::write_status::<ChangeWindow>(&delivery.store, &name, &resource.uid, &status).await?;
    }
    Ok(())
}

fn judge(standing: Standing, problem: Option<String>) -> Vec<Verdict> {
    match (problem, standing) {
        (Some(problem), _) => Verdict::stalled("SpecInvalid", format!("nothing that it concerns changes: {problem}")),
        (None, Standing { in_force: true, until: Some(until) }) => {
            Verdict::ready("InForce", format!("in force until {until}"))
        }
        (None, Standing { in_force: true, until: None }) => {
            Verdict::ready("InForce", "in force until a person ends it")
        }
        (None, Standing { in_force: false, until: Some(begin) }) => {
            Verdict::ready("Waiting", format!("in force from {begin} on"))
        }
        (None, Standing { in_force: false, until: None }) => {
            Verdict::ready("Over", "over: it is never in force again, and can be deleted")
        }
    }
}
