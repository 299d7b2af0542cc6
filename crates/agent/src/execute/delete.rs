//! Deletes, each only with the uid that the plan names, and none before what must go first.

use std::collections::BTreeMap;

use farwater_api::objects::ObjectRef;
use farwater_fleet::{
    ownership::proven_owner,
    plan::{GroupVersionKind, ObjectKey, Stage, stage_of, waves::Departure},
    prune::Candidate,
};
use futures::{StreamExt as _, stream};

use super::{Executor, PARALLEL};
use crate::{
    kinds::Served,
    kubernetes::{ApiError, TRIES},
    live::live_object,
};

/// What became of one delete.
#[derive(Clone, Debug)]
pub enum Deleted {
    Gone,
    /// Asked to go; a finalizer holds it.
    Going,
    Refused(ApiError),
    /// Another one must be gone first.
    Waits(ObjectRef),
}

impl Executor<'_> {
    /// `going`: what is being deleted already.
    pub async fn delete(&self, deletes: &[Candidate], going: &[Candidate]) -> BTreeMap<ObjectKey, Deleted> {
        let mut departure = Departure::new(deletes, going);
        let mut results = BTreeMap::new();
        loop {
            let (open, waiting) = departure.sort();
            if open.is_empty() {
                let waits = waiting.into_iter().map(|(candidate, obstacle)| {
                    (ObjectKey::from(&candidate.object), Deleted::Waits(obstacle.object.clone()))
                });
                results.extend(waits);
                return results;
            }
            let mut by_stage: BTreeMap<Stage, Vec<Candidate>> = BTreeMap::new();
            for candidate in open {
                by_stage.entry(stage_of(&candidate.object)).or_default().push(candidate.clone());
            }
            for stage in by_stage.into_values().rev() {
                let asked: Vec<_> = stage.iter().map(|candidate| self.delete_one(candidate)).collect();
                let done: Vec<_> = stream::iter(asked).buffer_unordered(PARALLEL).collect().await;
                for (key, deleted) in done {
                    match deleted {
                        Deleted::Gone => departure.note_gone(&key),
                        _ => departure.note_tried(&key),
                    }
                    results.insert(key, deleted);
                }
            }
        }
    }

    async fn delete_one(&self, candidate: &Candidate) -> (ObjectKey, Deleted) {
        let deleted = match self.delete_object(&candidate.object, &candidate.uid).await {
            Ok(true) => Deleted::Gone,
            Ok(false) => Deleted::Going,
            Err(error) => Deleted::Refused(error),
        };
        (ObjectKey::from(&candidate.object), deleted)
    }

    /// `false`: it is still there.
    pub(super) async fn delete_object(&self, object: &ObjectRef, uid: &str) -> Result<bool, ApiError> {
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
