//! Objects that can't be changed but may be recreated: they are deleted like all others, so tombstones are written
//! first, and sent again.

use std::collections::BTreeMap;

use farwater_api::deletion::Deletion;
use farwater_fleet::{
    plan::{GroupVersionKind, Keep, LiveObject, ObjectKey, ResolvedObject},
    prune::{Candidate, Purpose, digest_of},
};
use futures::{StreamExt as _, stream};

use super::{Applied, Deleted, Executor, PARALLEL, Tried};
use crate::{
    hub::chain,
    kubernetes::ApiError,
    live::live_object,
    tombstones::{self, Series},
};

/// An object, the old one to delete, and the API server's message on changing it.
struct Replacement<'a> {
    object: &'a ResolvedObject,
    old: Candidate,
    why: String,
}

impl Executor<'_> {
    /// Checked before a tombstone is written: a protected object is refused at each attempt.
    pub(super) async fn try_replacement(&self, path: &str, uid: &str, error: &ApiError) -> Tried {
        let refused = match self.kubernetes.get(Some(self.account), path, true).await {
            Ok(live) => forbids(&live_object(&live)).map(|keep| explain_kept(&error.to_string(), &keep)),
            Err(error) if error.is_not_found() => None,
            Err(error) => Some(format!("recreate: {error}")),
        };
        match refused {
            Some(refused) => Tried::Ended(Applied::Refused(refused)),
            None => Tried::Immutable {
                uid: uid.to_owned(),
                why: error.to_string(),
            },
        }
    }

    /// Recreates objects that can't be changed. Returns their deletion if some could not be recreated.
    pub(super) async fn replace(
        &self,
        immutable: Vec<(ObjectKey, String, String)>,
        objects: &BTreeMap<ObjectKey, &ResolvedObject>,
        results: &mut BTreeMap<ObjectKey, Applied>,
    ) -> Option<Deletion> {
        let mut replacements = Vec::new();
        for (key, uid, why) in immutable {
            let Some(object) = objects.get(&key).copied() else {
                continue;
            };
            let old = Candidate {
                object: object.object.clone(),
                uid,
                wave: object.wave,
                confirm: false,
                waits: false,
            };
            replacements.push(Replacement { object, old, why });
        }
        if replacements.is_empty() {
            return None;
        }

        let old: Vec<Candidate> = replacements.iter().map(|replacement| replacement.old.clone()).collect();
        let kept = self
            .tombstones
            .keep(self.account, digest_of(&old), &old, Series::Replaced)
            .await;
        let deletion = match kept {
            Ok(deletion) => deletion,
            Err(error) => {
                let refused = Applied::Refused(format!("not recreated: {}", chain(&error)));
                results.extend(
                    replacements
                        .iter()
                        .map(|replacement| (replacement.object.key(), refused.clone())),
                );
                return None;
            }
        };

        let asked: Vec<_> = replacements
            .iter()
            .map(|replacement| self.replace_one(replacement))
            .collect();
        let ended: Vec<_> = stream::iter(asked).buffer_unordered(PARALLEL).collect().await;
        tombstones::collect(self.kubernetes).await;
        let mut lost = false;
        for (key, is_gone, applied) in ended {
            lost |= is_gone && !matches!(applied, Applied::Done { .. });
            results.insert(key, applied);
        }
        lost.then_some(deletion)
    }

    /// Whether the old object is gone, and the result for the new one.
    async fn replace_one(&self, Replacement { object, old, why }: &Replacement<'_>) -> (ObjectKey, bool, Applied) {
        let guard = |live: &LiveObject| match forbids(live) {
            _ if self.superseded.has_come() => Some(Deleted::Superseded),
            keep => keep.map(Deleted::Kept),
        };
        let applied = match self.delete_object(&object.object, &old.uid, guard).await {
            Ok(Deleted::Gone) => {
                tracing::info!(object = %object.object, why, "recreated");
                return (object.key(), true, self.recreate(object).await);
            }
            Ok(Deleted::Superseded) => Applied::Superseded,
            Ok(Deleted::Kept(keep)) => Applied::Refused(explain_kept(why, &keep)),
            Ok(_) => Applied::Waiting("is recreated: waits until the old one is gone".to_owned()),
            Err(error) => Applied::Refused(format!("recreate: {error}")),
        };
        (object.key(), false, applied)
    }

    /// Creates the new object, even if a newer assignment has arrived: nothing may be left deleted.
    async fn recreate(&self, object: &ResolvedObject) -> Applied {
        let Some(resource) = self.kinds.get(&GroupVersionKind::from(&object.object)) else {
            return Applied::Refused("recreate: its kind is no longer served".to_owned());
        };
        let path = resource.path_of(&object.object);
        let sent = self.write(&path, object, false).await;
        self.conclude(&path, object, sent).await
    }
}

/// Why an object is not deleted, though it could be recreated. None: it may be.
pub(super) fn forbids(live: &LiveObject) -> Option<Keep> {
    live.protection.forbids(Purpose::Sync, false)
}

/// `why`: the API server's message on changing it.
pub(super) fn explain_kept(why: &str, keep: &Keep) -> String {
    match keep {
        Keep::Protected(annotation) => format!("{why}; it is not recreated: its annotation {annotation} protects it"),
        other => format!("{why}; it is not recreated: {other}"),
    }
}
