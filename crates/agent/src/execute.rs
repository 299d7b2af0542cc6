//! Carries a plan out. It decides nothing, and does nothing that the plan doesn't contain.

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

/// Deletions in flight for one service.
const PARALLEL: usize = 64;
/// Time for a definition to be established and served.
const ESTABLISH_PATIENCE: Duration = Duration::from_secs(30);

/// The result of one change.
#[derive(Clone, Debug)]
pub enum Applied {
    Done {
        live: LiveObject,
        health: Judgement,
        notice: Box<Notice>,
    },
    Refused(String),
    Waiting(String),
    /// A newer assignment arrived before it.
    Superseded,
}

/// The result of sending an object once.
enum Tried {
    Ended(Applied),
    /// It can't be changed, and the object with this uid may be deleted and recreated. `why`: the API server's message.
    Immutable {
        uid: String,
        why: String,
    },
}

/// Observations when an object is applied, whatever its health.
#[derive(Clone, Debug, Default)]
pub struct Notice {
    /// Fields that were taken over from other managers, with their managers.
    pub taken: Option<String>,
    /// Why it was written as a whole, and the conflicting fields that were left out.
    pub whole: Option<String>,
    /// Fields that the API server returned with other values than were sent.
    pub overruled: Vec<String>,
}

pub struct Executor<'a> {
    pub kubernetes: &'a Kubernetes,
    pub kinds: &'a Kinds,
    pub account: &'a ServiceAccount,
    /// uid of the service.
    pub service: &'a str,
    pub tombstones: Tombstones<'a>,
    /// Rules by which applied objects are judged.
    pub rules: Arc<Rules>,
    /// Objects that other services state, checked before a namespace or a definition is deleted.
    pub leaving: &'a Leaving,
    /// Checked at each safe point: between two requests, and in each wait.
    pub superseded: Superseded,
}

impl Executor<'_> {
    pub async fn create_namespace(&self, name: &str) -> Result<(), ApiError> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        match self
            .kubernetes
            .create(Some(self.account), "/api/v1/namespaces", &namespace)
            .await
        {
            Ok(_) => Ok(()),
            Err(e) if e.code() == 409 => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Applies the changes of one stage and adds their results to `results`, which holds those of earlier stages.
    /// `blocked`: a namespace that could not be created, and why. Returns the deletion of objects that could not be
    /// recreated.
    pub async fn apply_stage(
        &self,
        stage: Stage,
        changes: &[&Change],
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        blocked: Option<(&str, &str)>,
        results: &mut BTreeMap<ObjectKey, Applied>,
    ) -> Option<Deletion> {
        // Requests are begun one by one, because a waiting request takes kilobytes and a wave may hold thousands. The
        // loop is explicit, because the compiler doesn't see that a lazily mapped stream of these futures is Send.
        let mut waiting = changes.iter().copied();
        let mut running = FuturesUnordered::new();
        let (mut done, mut immutable) = (Vec::new(), Vec::new());
        loop {
            // One request needs no turn, so that this service continues even while the API server delays the others.
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

    /// Retries a request as long as the API server asks for that.
    async fn persist<T, F: Future<Output = Result<T, ApiError>>>(&self, send: impl Fn() -> F) -> Result<T, ApiError> {
        let mut tries = 1;
        loop {
            match send().await {
                Err(error) if tries < TRIES && error.pause(tries).is_some() && !self.superseded.has_come() => {
                    self.pause(error.pause(tries).unwrap_or_default()).await;
                    // A newer assignment may have ended the pause early. Don't retry then, because the API server asked
                    // for the whole pause.
                    if self.superseded.has_come() {
                        return Err(error);
                    }
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// Sleeps, until a newer assignment arrives at the latest.
    async fn pause(&self, time: Duration) {
        tokio::select! { () = tokio::time::sleep(time) => {} () = self.superseded.comes() => {} }
    }

    /// Waits until definitions are established and their kinds served. Definitions that are not by then become waiting
    /// ones, so that their resources wait too.
    async fn establish(
        &self,
        changes: &[&Change],
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        results: &mut BTreeMap<ObjectKey, Applied>,
    ) {
        let deadline = tokio::time::Instant::now() + ESTABLISH_PATIENCE;
        for change in changes {
            let Some(object) = objects.get(&change.object) else {
                continue;
            };
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
            // The notice is from the apply and can't be observed again.
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
        let Some(resource) = self.kinds.get(&gvk) else {
            return Ok(None);
        };
        let live = self
            .kubernetes
            .get(Some(self.account), &resource.path_of(&object.object), false)
            .await?;

        // The API server decides whether the kinds are served; health rules only judge the definition besides.
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
        for version in spec["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|v| v["served"] == true)
        {
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
        Ok(Some(Applied::Done {
            live: live_object(&live),
            health,
            notice: Box::default(),
        }))
    }
}
