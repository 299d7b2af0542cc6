//! follow_windows: ChangeWindows → whether a change may start now, and which services are requeued when that changes.
//!
//! Windows are evaluated with each decision, as a function of the time, so a clock that jumps is only another time. The
//! rows of held services are kept, and only those services are requeued when a window opens.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use farwater_api::{
    ADMIN_NAMESPACE, ChangeWindow, ChangeWindowStatus, Digest,
    change_window::{HandedWindow, MAX_HANDED, WindowType, Windows as HandedWindows},
};
use farwater_fleet::{
    conditions::{self, Verdict},
    placement::selects,
    windows::{Standing, Subject, Window},
};
use farwater_store::{
    Key, Resource, StoreError,
    delivery::{assignments_of_namespace, held_by, held_services, held_until, mark_cluster},
};
use jiff::Timestamp;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::approvals::{OVERRIDE, Override, override_of_set, owning_set};
use crate::{
    errors::chain,
    memory::clusters::ClusterState,
    replica::Replica,
    resources::{self, Name},
};
use crate::{
    memory::windows::{Known, Windows},
    services::{ClusterFacts, ServiceFacts},
};

/// If there are windows, a clock that was set is noticed this late. Nothing is read for that.
const LONGEST_REST: Duration = Duration::from_secs(2);
const NOTHING_TO_FOLLOW: Duration = Duration::from_secs(600);
/// Timers run on another clock than windows.
const SOON: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_secs(5);

/// Windows for one agent, with the services of its cluster that each one concerns.
pub struct Handing {
    windows: Vec<(Known, Vec<String>)>,
    cluster: ClusterFacts,
    overrides: BTreeMap<String, Digest>,
    count: usize,
    /// Overrides of sets.
    sets: HashMap<Name, Option<Override>>,
}

impl Handing {
    /// The windows for the agent of a cluster.
    pub fn new(known: &Windows, cluster: &ClusterFacts) -> Self {
        let (all, now) = (known.all(), known.now());
        let concerns = |known: &&Known| {
            let is_over = known.window.at(now)
                == Standing {
                    in_force: false,
                    until: None,
                };
            // A window of type Allow that is over still keeps changes from starting at other times.
            !(is_over && known.spec.r#type == WindowType::Deny)
                && selects(&known.spec.cluster_selector, &cluster.labels)
                && (known.spec.clusters.is_empty() || known.spec.clusters.contains(&cluster.name.name))
        };
        let windows = all
            .iter()
            .filter(concerns)
            .map(|known| (known.clone(), Vec::new()))
            .collect();
        Self {
            windows,
            cluster: cluster.clone(),
            overrides: BTreeMap::new(),
            count: 0,
            sets: HashMap::new(),
        }
    }

    pub async fn add(&mut self, replica: &Replica, facts: &ServiceFacts, entry: Digest) -> Result<(), StoreError> {
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

        if is_concerned && self.is_overridden(replica, facts).await? {
            self.overrides.insert(facts.uid.clone(), entry);
        }
        Ok(())
    }

    async fn is_overridden(&mut self, replica: &Replica, facts: &ServiceFacts) -> Result<bool, StoreError> {
        let now = Timestamp::now();
        let (metadata, status) = (&facts.service.metadata, &facts.service.status);
        if metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.contains_key(farwater_api::OVERRIDE_FREEZE))
        {
            let object = json!({"metadata": {"annotations": metadata.annotations}, "status": status});
            if OVERRIDE.counting(&object, now).is_some() {
                return Ok(true);
            }
        }
        let Some(owners) = &metadata.owner_references else {
            return Ok(false);
        };
        let owners = owners.iter().map(|owner| (owner.name.as_str(), owner.uid.as_str()));
        let found = owning_set(replica, &facts.uid, &facts.name.namespace, owners).await?;

        let Some((set, uid)) = found else { return Ok(false) };
        if let Some(known) = self.sets.get(&set) {
            return Ok(known.is_some());
        }
        let said = override_of_set(replica, &set, &uid, now).await?;
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
                (
                    window.r#type == WindowType::Allow.to_string(),
                    window.namespace.clone(),
                    window.name.clone(),
                )
            };
            place(a).cmp(&place(b))
        });
        windows.truncate(MAX_HANDED);
        (!windows.is_empty()).then_some(HandedWindows {
            windows,
            overrides: self.overrides,
        })
    }
}

/// Called before anything is decided.
pub async fn load(replica: &Replica) -> Result<(), StoreError> {
    read(replica).await.map(drop)
}

/// Reads all windows. Returns those that differ, both as they were and as they are.
async fn read(replica: &Replica) -> Result<Vec<Known>, StoreError> {
    let now: Vec<Known> = list(replica).await?.into_iter().map(Listed::known).collect();
    let before = replica.memory.windows.set(now.clone());
    replica.memory.windows.edited.store(true, Ordering::Release);
    replica.memory.windows.look_again();

    let is_in = |all: &[Known], one: &Known| {
        all.iter()
            .any(|known| (&known.namespace, &known.name, &known.spec) == (&one.namespace, &one.name, &one.spec))
    };
    let gone = before.iter().filter(|known| !is_in(&now, known)).cloned();
    let come = now.iter().filter(|known| !is_in(&before, known)).cloned();
    Ok(gone.chain(come).collect())
}

/// A window was written or deleted: marks the clusters that it concerns, because their agents need the new windows.
pub async fn follow(replica: &Replica) -> Result<(), StoreError> {
    let mut clusters = BTreeSet::new();
    for known in read(replica).await? {
        let (namespace, spec) = (&known.namespace, &known.spec);
        let mut of_services = BTreeSet::new();
        if namespace != ADMIN_NAMESPACE {
            let rows = assignments_of_namespace(&mut *replica.store.tables().await?, namespace).await?;
            of_services.extend(rows.into_iter().map(|row| row.cluster_uid));
        }
        let concerns = |state: &ClusterState| {
            (namespace == ADMIN_NAMESPACE || *namespace == *state.namespace || of_services.contains(&*state.uid))
                && (spec.clusters.is_empty() || spec.clusters.iter().any(|name| *name == *state.name))
                && selects(&spec.cluster_selector, &state.labels)
        };
        let all = replica.memory.clusters.all();
        clusters.extend(
            all.iter()
                .filter(|state| concerns(state))
                .map(|state| state.uid.to_string()),
        );
    }

    if clusters.is_empty() {
        return Ok(());
    }
    let marked = replica.store.transact(move |tx| {
        Box::pin(async move {
            for uid in &clusters {
                mark_cluster(tx, uid).await?;
            }
            Ok(())
        })
    });
    marked.await?;
    replica.wake_after_mark();
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
        Known {
            namespace,
            name,
            spec: self.typed.spec,
            window: self.window,
        }
    }
}

async fn list(replica: &Replica) -> Result<Vec<Listed>, StoreError> {
    let mut rows = Vec::new();
    resources::list_pages::<ChangeWindow>(&replica.store, None, |resource| rows.push(resource)).await?;
    let read = |resource: Resource| {
        let typed: ChangeWindow = resources::parse(&resource)?;
        let (namespace, name) = (&resource.key.namespace, &resource.key.name);
        let (window, problem) = match Window::read(namespace, name, &typed.spec) {
            Ok(window) => (window, None),
            // Admission refuses these; another version of the hub accepted it.
            Err(problems) => {
                let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
                (
                    Window::unreadable(namespace, name, &typed.spec, &problems),
                    Some(told.join("; ")),
                )
            }
        };
        Ok(Listed {
            resource,
            typed,
            window,
            problem,
        })
    };
    rows.into_iter().map(read).collect()
}

/// Wakes with the next change of what windows say, and at least every [`LONGEST_REST`] to notice a clock that was set.
pub async fn run(replica: Arc<Replica>, shutdown: CancellationToken) {
    let mut known = HashMap::new();
    loop {
        let wait = match advance(&replica, &mut known).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "follow change windows");
                RETRY
            }
        };
        let woken = async {
            tokio::select! { () = replica.memory.windows.woken.notified() => {} () = tokio::time::sleep(wait) => {} }
        };
        if shutdown.run_until_cancelled(woken).await.is_none() {
            return;
        }
    }
}

/// `known`: which windows were in force when services were last requeued. Returns how long there is nothing to do.
async fn advance(replica: &Replica, known: &mut HashMap<String, bool>) -> Result<Duration, StoreError> {
    let windows = &replica.memory.windows;
    let edited = windows.edited.swap(false, Ordering::AcqRel);
    let now = windows.now();
    let standings: Vec<(String, Standing)> = windows
        .all()
        .iter()
        .map(|known| (known.window.name().to_owned(), known.window.at(now)))
        .collect();
    let turned: Vec<&str> = standings
        .iter()
        .filter(|(name, standing)| known.get(name) != Some(&standing.in_force))
        .map(|(name, _)| name.as_str())
        .collect();

    if edited || !turned.is_empty() {
        let done = async {
            wake(replica, edited, &turned, now).await?;
            write_statuses(replica, now).await
        };
        if let Err(error) = done.await {
            windows.edited.fetch_or(edited, Ordering::AcqRel);
            return Err(error);
        }
        *known = standings
            .iter()
            .map(|(name, standing)| (name.clone(), standing.in_force))
            .collect();
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
async fn wake(replica: &Replica, edited: bool, turned: &[&str], now: Timestamp) -> Result<(), StoreError> {
    let names = {
        let mut tables = replica.store.tables().await?;
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
    replica.wake_after_hold(names.into_iter().map(Name::from));
    replica.memory.sets.look_at_all();
    Ok(())
}

/// Writes the status of each window, if it differs.
async fn write_statuses(replica: &Replica, now: Timestamp) -> Result<(), StoreError> {
    for Listed {
        resource,
        typed,
        window,
        problem,
    } in list(replica).await?
    {
        let standing = window.at(now);
        let previous = typed
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        let generation = typed.metadata.generation.unwrap_or(0);
        let verdicts = judge(standing, problem);
        let status = ChangeWindowStatus {
            observed_generation: Some(generation),
            conditions: conditions::resolve(previous, verdicts, generation, now),
            in_force: standing.in_force,
            next_change: standing.until.map(|until| until.to_string()),
        };
        let name = Name::new(&resource.key.namespace, &resource.key.name);
        resources::write_status::<ChangeWindow>(&replica.store, &name, &resource.uid, &status).await?;
    }
    Ok(())
}

fn judge(standing: Standing, problem: Option<String>) -> Vec<Verdict> {
    match (problem, standing) {
        (Some(problem), _) => Verdict::stalled("SpecInvalid", format!("nothing that it concerns changes: {problem}")),
        (
            None,
            Standing {
                in_force: true,
                until: Some(until),
            },
        ) => Verdict::ready("InForce", format!("in force until {until}")),
        (
            None,
            Standing {
                in_force: true,
                until: None,
            },
        ) => Verdict::ready("InForce", "in force until a person ends it"),
        (
            None,
            Standing {
                in_force: false,
                until: Some(begin),
            },
        ) => Verdict::ready("Waiting", format!("in force from {begin} on")),
        (
            None,
            Standing {
                in_force: false,
                until: None,
            },
        ) => Verdict::ready("Over", "over: it is never in force again, and can be deleted"),
    }
}
