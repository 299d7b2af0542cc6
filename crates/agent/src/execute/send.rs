//! One object: applied, written as a whole or made anew, as its options and the plan say.

use farwater_api::apply_options::ConflictPolicy;
use farwater_fleet::plan::{
    Cause, Change, GroupVersionKind, ResolvedObject, Wait,
    differences::{leave_ignored, overruled},
};
use serde_json::Value;

use super::{Applied, Deleted, Executor, Notice, TRIES};
use crate::{
    judge::judge,
    kubernetes::{ApiError, ApplyMode, Fault, to_bytes},
    live::{add_time, live_object, migration},
    plans::redact::{fold_string_data, is_secret},
};

impl Executor<'_> {
    pub(super) async fn apply(&self, change: &Change, object: &ResolvedObject) -> Applied {
        let gvk = GroupVersionKind::from(&object.object);
        let Some(resource) = self.kinds.get(&gvk) else {
            return Applied::Waiting(Wait::Kind.to_string());
        };
        let path = resource.path_of(&object.object);
        if change.cause == Cause::AdoptUnchanged
            && let Some(refused) = self.check_adoption(&path, object).await
        {
            return refused;
        }
        if change.migrate
            && let Err(error) = self.migrate(&path).await
        {
            return Applied::Refused(format!("take over from client-side apply: {error}"));
        }
        let exists = !matches!(change.cause, Cause::Create | Cause::Restore);
        let mut sent = self.write(&path, object, exists).await;
        if let (Err(error), Some(uid)) = (&sent, &change.recreate)
            && *error.fault() == Fault::Immutable
        {
            tracing::info!(object = %object.object, %error, "made anew");
            match self.delete_replaced(&object.object, uid).await {
                Ok(Deleted::Gone) => sent = self.write(&path, object, false).await,
                Ok(_) => return Applied::Waiting("is made anew: waits until the old one is gone".to_owned()),
                Err(error) => return Applied::Refused(format!("make anew: {error}")),
            }
        }
        match sent {
            Ok((applied, notice)) => {
                let health = judge(self.kinds, &self.rules, &gvk, &applied);
                Applied::Done { live: live_object(&applied), health, notice: Box::new(notice) }
            }
            Err(error) if error.is_not_found() => {
                if !is_about_namespace(&error) {
                    self.kinds.forget(&gvk);
                }
                Applied::Waiting(explain_absence(&error))
            }
            Err(error) => {
                let live = match error.fault() {
                    Fault::FieldConflicts(_) => self.kubernetes.look(Some(self.account), &path).await.ok(),
                    _ => None,
                };
                Applied::Refused(explain_refusal(&error, live.as_ref()))
            }
        }
    }

    /// The object as it is then, and what was noticed.
    async fn write(&self, path: &str, object: &ResolvedObject, exists: bool) -> Result<(Value, Notice), ApiError> {
        let mut tries = 1;
        loop {
            let written = self.write_once(path, object, exists).await;
            match written {
                // Somebody wrote after the ignored fields were read: read them again.
                Err(e) if e.code() == 409 && *e.fault() == Fault::Other && tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    async fn write_once(&self, path: &str, object: &ResolvedObject, exists: bool) -> Result<(Value, Notice), ApiError> {
        let options = &object.options;
        let mut body = object.body.clone();
        if exists && (options.ignores() || options.replace) {
            let live = self.kubernetes.get(Some(self.account), path, false).await?;
            let mut manifest = from_bytes(&object.body)?;
            if options.replace {
                manifest["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                // Its fields become ours by the apply that follows.
                self.persist(|| self.kubernetes.replace(Some(self.account), path, &manifest, false)).await?;
            } else {
                leave_ignored(&mut manifest, &live, &options.ignore, &options.ignore_managers);
                body = to_bytes(&manifest)?;
            }
        }
        let (applied, taken) = self.send(path, &body, options.conflicts, false).await?;
        let overruled = find_overruled(object, &body, &applied);
        Ok((applied, Notice { taken, overruled }))
    }

    /// The object as it is or would be then, and the fields that it takes from others where it may.
    pub(super) async fn send(
        &self,
        path: &str,
        body: &[u8],
        policy: ConflictPolicy,
        dry_run: bool,
    ) -> Result<(Value, Option<String>), ApiError> {
        let send = |force| {
            let mode = ApplyMode { force, dry_run };
            self.persist(move || self.kubernetes.apply(Some(self.account), path, body.to_vec(), mode))
        };
        match send(false).await {
            Ok(applied) => Ok((applied, None)),
            Err(error) => match error.fault() {
                Fault::FieldConflicts(conflicts) if policy == ConflictPolicy::Force => {
                    // Afterwards nobody knows any more when they wrote. A dry run leaves that as it is.
                    let live = if dry_run { None } else { self.kubernetes.look(Some(self.account), path).await.ok() };
                    let taken = add_time(conflicts, live.as_ref());
                    Ok((send(true).await?, Some(taken)))
                }
                _ => Err(error),
            },
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
}

fn is_about_namespace(error: &ApiError) -> bool {
    error.to_string().contains("namespaces ")
}

/// Of an object that was not found, though it is made if it is not there.
pub(super) fn explain_absence(error: &ApiError) -> String {
    format!("waits for its {}: {error}", if is_about_namespace(error) { "namespace" } else { "kind" })
}

/// `live`: the object that it was to change, where it was read.
pub(super) fn explain_refusal(error: &ApiError, live: Option<&Value>) -> String {
    match error.fault() {
        Fault::FieldConflicts(conflicts) => format!("others own fields of it: {}", add_time(conflicts, live)),
        _ => error.to_string(),
    }
}

/// Of what was just applied, so that nothing is read for it.
fn find_overruled(object: &ResolvedObject, sent: &[u8], answer: &Value) -> Vec<String> {
    let Ok(mut sent) = from_bytes(sent) else { return Vec::new() };
    if is_secret(&object.key()) {
        fold_string_data(&mut sent);
    }
    overruled(&sent, answer)
}

pub(super) fn from_bytes(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|e| ApiError::Transport(e.to_string()))
}
