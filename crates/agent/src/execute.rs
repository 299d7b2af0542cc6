//! Carries a plan out. Decides nothing: what the plan doesn't say isn't done.

use std::{collections::BTreeMap, time::Duration};

use farwater_api::{
    objects::{Health, ObjectRef},
    protocol::ServiceAccount,
};
use farwater_fleet::{
    health,
    ownership::proven_owner,
    plan::{Change, GroupVersionKind, LiveObject, ObjectKey, ResolvedObject, Stage, Wait, Wave},
    prune::Candidate,
};
use futures::{
    StreamExt as _,
    stream::{self, FuturesUnordered},
};
use serde_json::json;

use crate::{
    kinds::{Kinds, Served},
    kubernetes::{ApiError, Kubernetes, TRIES},
    live::{live_object, migration},
};

/// Applies in flight. A bare client gains nothing beyond them, and each takes 15 KB here.
const PARALLEL: usize = 64;
/// How long a definition may take to be established and served.
const ESTABLISH_PATIENCE: Duration = Duration::from_secs(30);

/// What became of one change.
#[derive(Clone, Debug)]
pub enum Applied {
    Done {
        live: LiveObject,
        health: Health,
        message: String,
    },
    Refused(String),
    Waiting(String),
    /// A newer assignment came first.
    Superseded,
}

pub struct Executor<'a> {
    pub kubernetes: &'a Kubernetes,
    pub kinds: &'a Kinds,
    pub account: &'a ServiceAccount,
    /// The service's uid.
    pub service: &'a str,
    /// Asked at each safe point: between two requests.
    pub superseded: &'a (dyn Fn() -> bool + Sync),
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

    /// Applies one wave; `results` holds the earlier waves' and gets this one's. `blocked`: a namespace that could not
    /// be made, and why.
    pub async fn apply_wave(
        &self,
        wave: &Wave,
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        blocked: Option<(&str, &str)>,
        results: &mut BTreeMap<ObjectKey, Applied>,
    ) {
        // Begun one by one: a request that waits for its turn would take kilobytes, and a wave may hold thousands. By hand,
        // because a lazily mapped stream of these futures is not Send to the compiler.
        let mut waiting = wave.changes.iter();
        let mut running = FuturesUnordered::new();
        let mut done = Vec::new();
        loop {
            while running.len() < PARALLEL
                && let Some(change) = waiting.next()
            {
                running.push(self.apply_change(change, objects, blocked, results));
            }
            let Some(applied) = running.next().await else { break };
            done.push(applied);
        }
        drop(running);
        results.extend(done);
        if wave.stage == Stage::Definitions {
            self.establish(wave, objects, results).await;
        }
    }

    async fn apply_change(
        &self,
        change: &Change,
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        blocked: Option<(&str, &str)>,
        earlier: &BTreeMap<ObjectKey, Applied>,
    ) -> (ObjectKey, Applied) {
        let failed = |need: &&ObjectKey| earlier.get(need).is_some_and(|r| !matches!(r, Applied::Done { .. }));
        let applied = match (change.needs.iter().find(failed), objects.get(&change.object)) {
            _ if (self.superseded)() => Applied::Superseded,
            _ if blocked.is_some_and(|(namespace, _)| namespace == change.object.namespace) => {
                let (namespace, error) = blocked.unwrap_or_default();
                Applied::Waiting(format!("waits for namespace {namespace}, which can't be made: {error}"))
            }
            (Some(need), _) => Applied::Waiting(format!("waits for {need}")),
            (None, Some(object)) => self.apply(change, object).await,
            (None, None) => Applied::Refused("not in the plan's source".into()),
        };
        (change.object.clone(), applied)
    }

    async fn apply(&self, change: &Change, object: &ResolvedObject) -> Applied {
        let gvk = GroupVersionKind::from(&object.object);
        let Some(resource) = self.kinds.get(&gvk) else {
            return Applied::Waiting(Wait::Kind.to_string());
        };
        let path = resource.path_of(&object.object);
        if change.migrate
            && let Err(error) = self.migrate(&path).await
        {
            return Applied::Refused(format!("take over from client-side apply: {error}"));
        }
        match self.persist(|| self.kubernetes.apply(Some(self.account), &path, object.body.clone())).await {
            Ok(applied) => {
                let (health, message) = health::evaluate(&applied);
                Applied::Done { live: live_object(&applied), health, message: crate::messages::shorten(&message) }
            }
            Err(error) if error.is_not_found() && !error.to_string().contains("namespaces ") => {
                self.kinds.forget(&gvk);
                Applied::Waiting(format!("waits for its kind: {error}"))
            }
            Err(error) if error.is_not_found() => Applied::Waiting(format!("waits for its namespace: {error}")),
            Err(error) => Applied::Refused(error.to_string()),
        }
    }

    /// Repeats what the API server asked to be repeated.
    async fn persist<T, F: Future<Output = Result<T, ApiError>>>(&self, send: impl Fn() -> F) -> Result<T, ApiError> {
        let mut tries = 1;
        loop {
            match send().await {
                Err(error) if tries < TRIES && error.pause(tries).is_some() && !(self.superseded)() => {
                    tokio::time::sleep(error.pause(tries).unwrap_or_default()).await;
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    async fn migrate(&self, path: &str) -> Result<(), ApiError> {
        for _ in 0..TRIES {
            let object = match self.kubernetes.get(Some(self.account), path, true).await {
                Err(e) if e.is_not_found() => return Ok(()),
                other => other?,
            };
            if !live_object(&object).client_side {
                return Ok(());
            }
            let Some(patch) = migration(&object) else { return Ok(()) };
            match self.kubernetes.patch(Some(self.account), path, &patch).await {
                // Somebody wrote in between: read again.
                Err(e) if e.code() == 409 => {}
                other => return other.map(drop),
            }
        }
        Ok(())
    }

    /// Waits until the definitions of a wave are established and their kinds served. Those that are not by then turn
    /// into waiting ones, so that what needs them waits too.
    async fn establish(
        &self,
        wave: &Wave,
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        results: &mut BTreeMap<ObjectKey, Applied>,
    ) {
        let deadline = tokio::time::Instant::now() + ESTABLISH_PATIENCE;
        for change in &wave.changes {
            let Some(object) = objects.get(&change.object) else { continue };
            if !matches!(results.get(&change.object), Some(Applied::Done { .. })) {
                continue;
            }
            let mut pause = Duration::from_millis(50);
            let applied = loop {
                match self.is_established(object).await {
                    Ok(Some(done)) => break done,
                    _ if (self.superseded)() => break Applied::Superseded,
                    _ if tokio::time::Instant::now() >= deadline => {
                        break Applied::Waiting("not established within 30 s".into());
                    }
                    Ok(None) | Err(_) => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(Duration::from_secs(1));
                    }
                }
            };
            results.insert(change.object.clone(), applied);
        }
    }

    async fn is_established(&self, object: &ResolvedObject) -> Result<Option<Applied>, ApiError> {
        let gvk = GroupVersionKind::from(&object.object);
        let Some(resource) = self.kinds.get(&gvk) else { return Ok(None) };
        let live = self.kubernetes.get(Some(self.account), &resource.path_of(&object.object), false).await?;
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
        Ok(Some(Applied::Done { live: live_object(&live), health, message }))
    }

    /// Deletes, what was applied last first. Each object only with the uid that the plan names.
    pub async fn delete(&self, candidates: &[Candidate]) -> BTreeMap<ObjectKey, Result<bool, ApiError>> {
        let mut by_stage: BTreeMap<Stage, Vec<&Candidate>> = BTreeMap::new();
        for candidate in candidates {
            by_stage.entry(farwater_fleet::plan::stage_of(&candidate.object)).or_default().push(candidate);
        }
        let mut results = BTreeMap::new();
        for stage in by_stage.into_values().rev() {
            let deletes: Vec<_> = stage.into_iter().map(|candidate| self.delete_one(candidate)).collect();
            let done: Vec<_> = stream::iter(deletes).buffer_unordered(PARALLEL).collect().await;
            results.extend(done);
        }
        results
    }

    async fn delete_one(&self, candidate: &Candidate) -> (ObjectKey, Result<bool, ApiError>) {
        (ObjectKey::from(&candidate.object), self.delete_object(&candidate.object, &candidate.uid).await)
    }

    async fn delete_object(&self, object: &ObjectRef, uid: &str) -> Result<bool, ApiError> {
        match self.kinds.find(self.kubernetes, &GroupVersionKind::from(object)).await? {
            Served::No => Ok(true),
            Served::As(resource) => self.delete_own(&resource.path_of(object), &ObjectKey::from(object), uid).await,
        }
    }

    /// Only while it is the planned object and our own, as it was read a moment ago: it may have gone to another service since it was
    /// planned, under the same uid.
    async fn delete_own(&self, path: &str, key: &ObjectKey, uid: &str) -> Result<bool, ApiError> {
        let mut tries = 1;
        loop {
            let live = match self.kubernetes.get(Some(self.account), path, true).await {
                Ok(object) => live_object(&object),
                Err(error) if error.is_not_found() => return Ok(true),
                Err(error) => return Err(error),
            };
            let ours = live.owner.as_deref().and_then(|owner| proven_owner(owner, key)) == Some(self.service);
            if live.uid != uid || !ours {
                return Ok(true);
            }
            let exactly = Some((uid, live.resource_version.as_str()));
            match self.persist(|| self.kubernetes.delete(Some(self.account), path, exactly)).await {
                // Somebody wrote in between: look again.
                Err(error) if error.code() == 409 && tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }
}
