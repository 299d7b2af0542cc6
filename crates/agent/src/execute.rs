//! Carries a plan out. Decides nothing: what the plan doesn't say isn't done.

mod around;
mod delete;
mod hook;
mod rehearse;
mod replace;
mod send;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use farwater_api::{deletion::Deletion, objects::Health, protocol::ServiceAccount};
use farwater_fleet::{
    health::{self, rules::Rules},
    plan::{Change, GroupVersionKind, LiveObject, ObjectKey, ResolvedObject, Stage},
};
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use serde_json::json;

pub use self::{
    delete::Deleted,
    hook::{HookError, Output, Way, time_to_live},
    rehearse::{Inspected, Rehearsed},
};
use crate::{
    judge::{Judgement, judge},
    kinds::Kinds,
    kubernetes::{ApiError, Kubernetes, TRIES},
    live::live_object,
    service::{Leaving, Superseded},
    tombstones::Tombstones,
};

/// Deletions in flight, of one service.
const PARALLEL: usize = 64;
/// How long a definition may take to be established and served.
const ESTABLISH_PATIENCE: Duration = Duration::from_secs(30);

/// What became of one change.
#[derive(Clone, Debug)]
pub enum Applied {
    Done {
        live: LiveObject,
        health: Judgement,
        notice: Box<Notice>,
    },
    Refused(String),
    Waiting(String),
    /// A newer assignment came first.
    Superseded,
}

/// What came of sending an object once.
enum Tried {
    Ended(Applied),
    /// It can't be changed, and the object with this uid may be deleted and recreated. `why`: what the API server said.
    Immutable {
        uid: String,
        why: String,
    },
}

/// What is noticed of an object when it is applied, whatever its health is.
#[derive(Clone, Debug, Default)]
pub struct Notice {
    /// Fields that it took from others, and from whom.
    pub taken: Option<String>,
    /// The reason for a write as a whole, and the fields of others that were left out.
    pub whole: Option<String>,
    /// Fields that the API server keeps with another value than was sent.
    pub overruled: Vec<String>,
}

pub struct Executor<'a> {
    pub kubernetes: &'a Kubernetes,
    pub kinds: &'a Kinds,
    pub account: &'a ServiceAccount,
    /// The service's uid.
    pub service: &'a str,
    pub tombstones: Tombstones<'a>,
    /// By which what was applied is judged.
    pub rules: Arc<Rules>,
    /// What other services of the cluster state, asked before a namespace or a definition is deleted.
    pub leaving: &'a Leaving,
    /// Asked at each safe point: between two requests, and in each wait.
    pub superseded: Superseded,
}

impl Executor<'_> {
    pub async fn create_namespace(&self, name: &str) -> Result<(), ApiError> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        match self.kubernetes.create(Some(self.account), "/api/v1/namespaces", &namespace).await {
            Ok(_) => Ok(()),
            Err(e) if e.code() == 409 => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Applies changes of one stage; `results` holds what was applied before and gets these. `blocked`: a namespace that could
    /// not be made, and why. Gives the deletion whose objects could not be made anew.
    pub async fn apply_stage(
        &self,
        stage: Stage,
        changes: &[&Change],
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        blocked: Option<(&str, &str)>,
        results: &mut BTreeMap<ObjectKey, Applied>,
    ) -> Option<Deletion> {
        // Begun one by one: a request that waits for its turn would take kilobytes, and a wave may hold thousands. By hand,
        // because a lazily mapped stream of these futures is not Send to the compiler.
        let mut waiting = changes.iter().copied();
        let mut running = FuturesUnordered::new();
        let (mut done, mut immutable) = (Vec::new(), Vec::new());
        loop {
            // One needs no turn: what the API server keeps others waiting for must not stop this service.
            let turn = if running.is_empty() {
                None
            } else {
                tokio::select! {
                    biased;
                    Some((key, tried)) = running.next() => {
                        match tried {
                            Tried::Ended(applied) => done.push((key, applied)),
                            Tried::Immutable { uid, why } => immutable.push((key, uid, why)),
                        }
                        continue;
                    }
                    Ok(turn) = self.kubernetes.applies.acquire(), if waiting.len() > 0 => Some(turn),
                }
            };
            let Some(change) = waiting.next() else { break };
            let apply = self.apply_change(change, objects, blocked, results);
            running.push(apply.inspect(move |_| drop(turn)));
        }
        drop(running);
        results.extend(done);
        let lost = self.replace(immutable, objects, results).await;
        if stage == Stage::Definitions {
            self.establish(changes, objects, results).await;
        }
        lost
    }

    async fn apply_change(
        &self,
        change: &Change,
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        blocked: Option<(&str, &str)>,
        earlier: &BTreeMap<ObjectKey, Applied>,
    ) -> (ObjectKey, Tried) {
        let failed = |need: &&ObjectKey| earlier.get(need).is_some_and(|r| !matches!(r, Applied::Done { .. }));
        let applied = match (change.needs.iter().find(failed), objects.get(&change.object)) {
            _ if self.superseded.has_come() => Applied::Superseded,
            _ if blocked.is_some_and(|(namespace, _)| namespace == change.object.namespace()) => {
                let (namespace, error) = blocked.unwrap_or_default();
                Applied::Waiting(format!("waits for namespace {namespace}, which can't be made: {error}"))
            }
            (Some(need), _) => Applied::Waiting(format!("waits for {need}")),
            (None, Some(object)) => return (change.object.clone(), self.apply(change, object).await),
            (None, None) => Applied::Refused("not in the plan's source".into()),
        };
        (change.object.clone(), Tried::Ended(applied))
    }

    /// Repeats what the API server asked to be repeated.
    async fn persist<T, F: Future<Output = Result<T, ApiError>>>(&self, send: impl Fn() -> F) -> Result<T, ApiError> {
        let mut tries = 1;
        loop {
            match send().await {
                Err(error) if tries < TRIES && error.pause(tries).is_some() && !self.superseded.has_come() => {
                    self.pause(error.pause(tries).unwrap_or_default()).await;
                    // The rest of the time that the API server asked for is still to be kept.
                    if self.superseded.has_come() {
                        return Err(error);
                    }
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// Ended early by a newer assignment.
    async fn pause(&self, time: Duration) {
        tokio::select! { () = tokio::time::sleep(time) => {} () = self.superseded.comes() => {} }
    }

    /// Waits until definitions are established and their kinds served. Those that are not by then turn
    /// into waiting ones, so that what needs them waits too.
    async fn establish(
        &self,
        changes: &[&Change],
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        results: &mut BTreeMap<ObjectKey, Applied>,
    ) {
        let deadline = tokio::time::Instant::now() + ESTABLISH_PATIENCE;
        for change in changes {
            let Some(object) = objects.get(&change.object) else { continue };
            if !matches!(results.get(&change.object), Some(Applied::Done { .. })) {
                continue;
            }
            let mut pause = Duration::from_millis(50);
            let applied = loop {
                match self.is_established(object).await {
                    Ok(Some(done)) => break done,
                    _ if self.superseded.has_come() => break Applied::Superseded,
                    _ if tokio::time::Instant::now() >= deadline => {
                        break Applied::Waiting("not established within 30 s".into());
                    }
                    Ok(None) | Err(_) => {
                        self.pause(pause).await;
                        pause = (pause * 2).min(Duration::from_secs(1));
                    }
                }
            };
            // What was noticed then is not seen again.
            let applied = match (applied, results.remove(&change.object)) {
                (Applied::Done { live, health, .. }, Some(Applied::Done { notice, .. })) => {
                    Applied::Done { live, health, notice }
                }
                (applied, _) => applied,
            };
            results.insert(change.object.clone(), applied);
        }
    }

    async fn is_established(&self, object: &ResolvedObject) -> Result<Option<Applied>, ApiError> {
        let gvk = GroupVersionKind::from(&object.object);
        let Some(resource) = self.kinds.get(&gvk) else { return Ok(None) };
        let live = self.kubernetes.get(Some(self.account), &resource.path_of(&object.object), false).await?;
        // Whether its kinds are served is the API server's own word; rules say how well it does beside that.
        let (health, message) = health::evaluate(&live);
        if health == Health::Failed {
            return Ok(Some(Applied::Refused(message)));
        }
        if health != Health::Current {
            return Ok(None);
        }
        let spec = &live["spec"];
        let (Some(group), Some(kind)) = (spec["group"].as_str(), spec["names"]["kind"].as_str()) else {
            return Ok(None);
        };
        for version in spec["versions"].as_array().into_iter().flatten().filter(|v| v["served"] == true) {
            let gvk = GroupVersionKind {
                group: group.to_owned(),
                version: version["name"].as_str().unwrap_or_default().to_owned(),
                kind: kind.to_owned(),
            };
            self.kinds.learn(self.kubernetes, [gvk.clone()]).await?;
            if self.kinds.get(&gvk).is_none() {
                return Ok(None);
            }
        }
        let health = judge(self.kinds, &self.rules, &gvk, &live);
        Ok(Some(Applied::Done { live: live_object(&live), health, notice: Box::default() }))
    }
}
