//! Stores the objects that a plan is about to delete, and restores them on request.
//!
//! Restored objects belong to no service: without our marks and outside the inventory no later plan prunes them, and a
//! source that states them again adopts them.

use std::{collections::BTreeMap, time::Duration};

use farwater_api::{
    deletion::{Deletion, MAX_LISTED, Undone, Unrestored, requested_deletion},
    objects::ObjectRef,
    protocol::{Deployment, ServiceAccount},
};
use farwater_fleet::{
    conditions::cut,
    plan::{GroupVersionKind, Stage, check_ceiling, stage_of},
    prune::PrunePlan,
    revive::{give_back, revive},
};
use futures::{StreamExt as _, stream};
use tokio::time::Instant;

use super::{Ended, ServiceTask, Superseded, basis::Stopped};
use crate::{
    hub::chain,
    kinds::Served,
    kubernetes::{ApiError, As},
    tombstones::{self, Series, State, Tombstones},
};

/// Objects that are created at the same time.
const PARALLEL: usize = 16;
/// Time for kinds of restored definitions to be served, for deletions to end, and for retries that the API server asks
/// for.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);
const MAX_REASON_BYTES: usize = 256;

/// Results of a request before a newer version ended the attempt; the next attempt continues from there.
pub(super) struct Undoing {
    request: String,
    results: BTreeMap<ObjectRef, Result<(), String>>,
}

impl ServiceTask {
    fn tombstones(&self) -> Tombstones<'_> {
        self.basis().tombstones()
    }

    /// Stores the last states of deleted objects, and records the deletion. The caller saves the inventory.
    pub(super) async fn keep_states(&mut self, account: &ServiceAccount, prune: &PrunePlan) -> Result<(), Stopped> {
        let kept = self
            .tombstones()
            .keep(account, prune.digest, &prune.going(), Series::Deleted)
            .await;
        self.stored.deletion = Some(kept.map_err(|error| Stopped(format!("nothing is pruned: {}", chain(&error))))?);
        let kubernetes = self.agent.kubernetes.clone();
        tokio::spawn(async move { tombstones::collect(&kubernetes).await });
        Ok(())
    }

    /// A service that is new here may have had a predecessor with its name.
    pub(super) async fn find_predecessor(&mut self) {
        if self.stored.deletion.is_some() || self.stored.deployment.is_some() || self.progress.last.is_some() {
            return;
        }
        match self.tombstones().newest().await {
            Ok(deletion) => self.stored.deletion = deletion,
            Err(error) => tracing::debug!(service = %self.name(), error = chain(&error), "can't look for deletions"),
        }
    }

    /// Answers a request once: what it restored, what it could not, and why. None: the attempt continues.
    pub(super) async fn undo(&mut self, deployment: &Deployment) -> Result<Option<Ended>, Stopped> {
        let Some((request, deletion)) = self.unanswered(deployment) else {
            return Ok(None);
        };
        let loaded = self
            .tombstones()
            .load(deletion.digest)
            .await
            .map_err(|error| Stopped(chain(&error)))?;
        let mut undone = Undone {
            request: request.to_owned(),
            restored: 0,
            failed: 0,
            failures: Vec::new(),
        };
        match loaded {
            Some(states) => {
                let begun = self.undoing.take().filter(|begun| begun.request == *request);
                let mut results = begun.map(|begun| begun.results).unwrap_or_default();
                if !self.restore(states, deployment, &mut results).await {
                    self.undoing = Some(Undoing {
                        request: request.to_owned(),
                        results,
                    });
                    return Ok(Some(Ended::Superseded));
                }
                for (object, result) in results {
                    match result {
                        Ok(()) => undone.restored += 1,
                        Err(reason) => undone.note_failure(object, &reason),
                    }
                }
                undone.failed += deletion.lost;
            }
            None => {
                undone.failed = deletion.count;
                if let Some(object) = deletion.objects.first() {
                    undone
                        .failures
                        .push(unrestored(object.clone(), "its last state is no longer kept"));
                }
            }
        }
        tracing::info!(service = %self.name(), restored = undone.restored, failed = undone.failed, "undone");
        let has_restored = undone.restored > 0;
        if let Some(deletion) = &mut self.stored.deletion {
            deletion.undone = Some(undone);
        }
        self.save_inventory().await?;
        Ok(has_restored.then_some(Ended::Restored))
    }

    /// A request that has no answer yet, with the deletion that it names.
    fn unanswered<'d>(&self, deployment: &'d Deployment) -> Option<(&'d str, Deletion)> {
        let request = deployment.undo.as_deref()?;
        let deletion = self.stored.deletion.clone()?;
        let is_answered = deletion
            .undone
            .as_ref()
            .is_some_and(|undone| undone.request == *request);
        (!is_answered && requested_deletion(request) == Some(deletion.digest)).then_some((request, deletion))
    }

    /// Restores in the order of a sync, so that dependencies come first. Adds the result of each object that is not in
    /// `results` yet. False: superseded.
    async fn restore(
        &self,
        states: Vec<State>,
        deployment: &Deployment,
        results: &mut BTreeMap<ObjectRef, Result<(), String>>,
    ) -> bool {
        let mut stages: BTreeMap<Stage, Vec<State>> = BTreeMap::new();
        for state in states.into_iter().filter(|state| !results.contains_key(&state.object)) {
            stages.entry(stage_of(&state.object)).or_default().push(state);
        }
        let deadline = Instant::now() + PATIENCE;
        let newer = self.supersession();
        for stage in stages.into_values() {
            let count = stage.len();
            let objects: Vec<_> = stage
                .into_iter()
                .map(|state| self.restore_one(state, deployment, deadline, &newer))
                .collect();
            let restored: Vec<_> = stream::iter(objects).buffer_unordered(PARALLEL).collect().await;
            let restored: Vec<_> = restored.into_iter().flatten().collect();
            let is_ended = restored.len() < count;
            results.extend(restored);
            if is_ended {
                return false;
            }
        }
        true
    }

    /// None: superseded.
    async fn restore_one(
        &self,
        State { object, state }: State,
        deployment: &Deployment,
        deadline: Instant,
        newer: &Superseded,
    ) -> Option<(ObjectRef, Result<(), String>)> {
        if newer.has_come() {
            return None;
        }
        if let Some(refusal) = check_ceiling(&deployment.ceiling, &object) {
            return Some((object, Err(refusal.to_string())));
        }
        let mut result = self.make_again(&object, &state, deployment).await;
        while let Err(error) = &result
            && error.may_pass()
            && Instant::now() < deadline
        {
            tokio::select! {
                () = newer.comes() => return None,
                () = tokio::time::sleep(error.retry_after().max(PAUSE)) => {}
            }
            result = self.make_again(&object, &state, deployment).await;
        }
        Some((object, result.map_err(|error| error.to_string())))
    }

    async fn make_again(
        &self,
        object: &ObjectRef,
        state: &serde_json::Value,
        deployment: &Deployment,
    ) -> Result<(), RestoreError> {
        let (agent, account) = (&self.agent, Some(&deployment.ceiling.service_account));
        let body = revive(state.clone()).map_err(RestoreError::Unfit)?;
        let found = agent
            .kinds
            .find(&agent.kubernetes, &GroupVersionKind::from(object))
            .await?;
        let Served::As(resource) = found else {
            return Err(RestoreError::NotServed);
        };
        let path = resource.path_of(object);
        let made = match agent
            .kubernetes
            .create(account, &resource.collection(&object.namespace), &body)
            .await
        {
            Err(error) if error.code() == 409 => {
                let is_leaving = self.is_leaving(account, &path).await;
                return Err(if is_leaving {
                    RestoreError::Leaving
                } else {
                    error.into()
                });
            }
            made => made?,
        };
        let Some(patch) = give_back(state, &made) else {
            return Ok(());
        };
        // The object is restored with its content; the owners of its fields matter only for the next apply.
        if let Err(error) = agent.kubernetes.patch(account, &path, &patch).await {
            tracing::debug!(%object, %error, "can't give the fields of a restored object back to their managers");
        }
        Ok(())
    }

    async fn is_leaving(&self, account: As<'_>, path: &str) -> bool {
        let found = self.agent.kubernetes.get(account, path, true).await;
        found.is_ok_and(|object| object["metadata"]["deletionTimestamp"].is_string())
    }
}

#[derive(Debug, thiserror::Error)]
enum RestoreError {
    #[error("{0}")]
    Unfit(String),
    #[error("the cluster does not serve its kind")]
    NotServed,
    /// E.g. a workload whose pods have not ended.
    #[error("the earlier object of this name is still being deleted")]
    Leaving,
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl RestoreError {
    fn retry_after(&self) -> Duration {
        match self {
            Self::Api(error) => error.retry_after().unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// Whether a retry may succeed: a kind may be served soon after its definition was restored. A conflict means that
    /// the object exists.
    fn may_pass(&self) -> bool {
        match self {
            Self::Unfit(_) => false,
            Self::NotServed | Self::Leaving => true,
            Self::Api(error) => error.is_transient() && error.code() != 409,
        }
    }
}

fn unrestored(object: ObjectRef, reason: &str) -> Unrestored {
    Unrestored {
        object,
        message: cut(reason, MAX_REASON_BYTES),
    }
}

trait NoteFailure {
    fn note_failure(&mut self, object: ObjectRef, reason: &str);
}

impl NoteFailure for Undone {
    fn note_failure(&mut self, object: ObjectRef, reason: &str) {
        self.failed += 1;
        if self.failures.len() < MAX_LISTED {
            self.failures.push(unrestored(object, reason));
        }
    }
}
