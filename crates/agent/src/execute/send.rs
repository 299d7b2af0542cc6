//! Sends one object: applies it, writes it as a whole or recreates it, by its options and the plan.

use farwater_api::apply_options::ConflictPolicy;
use farwater_fleet::plan::{
    Cause, Change, GroupVersionKind, ResolvedObject, Wait,
    differences::{leave_ignored, overruled},
    is_aggregated,
};
use serde_json::Value;

use super::{Applied, Executor, Notice, TRIES, Tried};
use crate::{
    judge::judge,
    kubernetes::{ApiError, ApplyMode, Fault, to_bytes},
    live::{
        add_time, live_object, migration,
        versions::{Move, move_fields},
    },
};

impl Executor<'_> {
    pub(super) async fn apply(&self, change: &Change, object: &ResolvedObject) -> Tried {
        let gvk = GroupVersionKind::from(&object.object);
        let Some(resource) = self.kinds.get(&gvk) else {
            return Tried::Ended(Applied::Waiting(Wait::Kind.to_string()));
        };
        let path = resource.path_of(&object.object);
        if change.cause == Cause::AdoptUnchanged {
            let checked = self.check_adoption(&path, object).await;
            if let Some(refused) = checked.unwrap_or_else(|error| Some(explain_uncompared(&error))) {
                return Tried::Ended(Applied::Refused(refused));
            }
        }
        if change.migrate
            && let Err(error) = self.migrate(&path, false).await
        {
            return Tried::Ended(unapplied(&error, format!("take over from client-side apply: {error}")));
        }

        let exists = !matches!(change.cause, Cause::Create | Cause::Restore);
        let mut sent = self.write(&path, object, exists).await;
        if let Err(error) = &sent
            && *error.fault() == Fault::OtherVersion
        {
            let version = object.object.api_version();
            match self.move_fields(&path, &version).await {
                Ok(Move::Patch(_)) => sent = self.write(&path, object, exists).await,
                Ok(Move::Done) => {}
                Ok(Move::Held(others)) => {
                    return Tried::Ended(Applied::Refused(explain_held(error, &others, &version)));
                }
                Err(error) => {
                    return Tried::Ended(unapplied(&error, format!("move its fields to {version}: {error}")));
                }
            }
        }

        if let Err(error) = sent {
            sent = self.write_around(&path, (change, object), error, false).await;
        }
        if let Err(error) = &sent
            && *error.fault() == Fault::Immutable
        {
            return match &change.recreate {
                Some(uid) => self.try_replacement(&path, uid, error).await,
                None => Tried::Ended(Applied::Refused(explain_immutable(error, change, object))),
            };
        }
        Tried::Ended(self.conclude(&path, object, sent).await)
    }

    /// The result of a write.
    pub(super) async fn conclude(
        &self,
        path: &str,
        object: &ResolvedObject,
        sent: Result<(Value, Notice), ApiError>,
    ) -> Applied {
        let gvk = GroupVersionKind::from(&object.object);
        match sent {
            Ok((applied, notice)) => {
                let health = judge(self.kinds, &self.rules, &gvk, &applied);
                Applied::Done {
                    live: live_object(&applied),
                    health,
                    notice: Box::new(notice),
                }
            }
            Err(error) if error.is_not_found() => {
                if !is_about_namespace(&error) {
                    self.kinds.forget(&gvk);
                }
                Applied::Waiting(explain_absence(&error))
            }
            Err(error) => {
                let live = match error.fault() {
                    Fault::FieldConflicts(_) => self.kubernetes.look(Some(self.account), path).await.ok(),
                    _ => None,
                };
                unapplied(&error, explain_refusal(&error, live.as_ref()))
            }
        }
    }

    /// The object after the write, and the observations.
    pub(super) async fn write(
        &self,
        path: &str,
        object: &ResolvedObject,
        exists: bool,
    ) -> Result<(Value, Notice), ApiError> {
        let mut tries = 1;
        loop {
            let written = self.write_once(path, object, exists).await;
            match written {
                // Another writer changed it after the ignored fields were read: read them again.
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
                if object.object.kind == "ClusterRole" && is_aggregated(&manifest) {
                    manifest["rules"] = live["rules"].clone();
                }
                self.persist(|| self.kubernetes.replace(Some(self.account), path, &manifest, false))
                    .await?;
                let applied = self.own_whole(path, &object.body).await?;
                let overruled = find_overruled(&body, &applied);
                return Ok((
                    applied,
                    Notice {
                        overruled,
                        ..Notice::default()
                    },
                ));
            }
            leave_ignored(&mut manifest, &live, &options.ignore, &options.ignore_managers);
            body = to_bytes(&manifest)?;
        }
        let (applied, taken) = self.send(path, &body, options.conflicts, false).await?;
        let overruled = find_overruled(&body, &applied);
        Ok((
            applied,
            Notice {
                taken,
                overruled,
                whole: None,
            },
        ))
    }

    /// The object after the write or dry run, and the fields that it takes over if it may.
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
                // Fields that the agent itself wrote other than by applies are its own.
                Fault::FieldConflicts(conflicts) if conflicts.is_empty() => Ok((send(true).await?, None)),
                Fault::FieldConflicts(conflicts) if policy == ConflictPolicy::Force => {
                    // Read the managers first: afterwards their entries with the times are gone. A dry run leaves them.
                    let live = if dry_run {
                        None
                    } else {
                        self.kubernetes.look(Some(self.account), path).await.ok()
                    };
                    let taken = add_time(conflicts, live.as_ref());
                    Ok((send(true).await?, Some(taken)))
                }
                _ => Err(error),
            },
        }
    }

    /// `with_updates` as in [`migration`].
    pub(super) async fn migrate(&self, path: &str, with_updates: bool) -> Result<(), ApiError> {
        for _ in 0..TRIES {
            let object = match self.kubernetes.get(Some(self.account), path, true).await {
                Err(e) if e.is_not_found() => return Ok(()),
                other => other?,
            };
            if !with_updates && !live_object(&object).moves {
                return Ok(());
            }
            let Some(patch) = migration(&object, with_updates) else {
                return Ok(());
            };
            match self.kubernetes.patch(Some(self.account), path, &patch).await {
                // Another writer changed it in between: read it again.
                Err(e) if e.code() == 409 => {}
                other => return other.map(drop),
            }
        }
        Ok(())
    }

    /// Returns what was done. Defaults of the new version then count as ours too, which does no harm.
    async fn move_fields(&self, path: &str, api_version: &str) -> Result<Move, ApiError> {
        let mut tries = 1;
        loop {
            let object = self.kubernetes.get(Some(self.account), path, true).await?;
            let patch = match move_fields(&object, api_version) {
                Move::Patch(patch) => patch,
                other => return Ok(other),
            };
            match self.kubernetes.patch(Some(self.account), path, &patch).await {
                // Another writer changed it in between: read it again.
                Err(error) if error.code() == 409 && tries < TRIES => tries += 1,
                other => return other.map(|_| Move::Patch(patch)),
            }
        }
    }
}

/// An overloaded API server or a lost connection is no refusal, so the change waits.
fn unapplied(error: &ApiError, message: String) -> Applied {
    if error.is_passing() {
        Applied::Waiting(message)
    } else {
        Applied::Refused(message)
    }
}

/// `others`: fields that have other versions, with their managers.
fn explain_held(error: &ApiError, others: &str, api_version: &str) -> String {
    format!(
        "{error}: the API server reads the object by the schemas of others' fields too ({others}); it can be applied once these are in \
         {api_version} in metadata.managedFields, or gone from there"
    )
}

pub(super) fn is_about_namespace(error: &ApiError) -> bool {
    error.to_string().contains("namespaces ")
}

/// The message for an object that was not found although an apply creates it.
pub(super) fn explain_absence(error: &ApiError) -> String {
    format!(
        "waits for its {}: {error}",
        if is_about_namespace(error) { "namespace" } else { "kind" }
    )
}

/// The message for an object that is adopted only if it needs no change.
pub(super) fn explain_uncompared(error: &ApiError) -> String {
    format!("compare with what exists: {error}")
}

/// The refusal of an immutable field, with the annotation that would allow the agent to recreate the object.
pub(super) fn explain_immutable(error: &ApiError, change: &Change, object: &ResolvedObject) -> String {
    match object
        .options
        .offer_recreation(&object.object)
        .filter(|_| !change.cause.is_adoption())
    {
        Some(offer) => format!("{error}; {offer}"),
        None => error.to_string(),
    }
}

/// `live`: the object that it was to change, where it was read.
pub(super) fn explain_refusal(error: &ApiError, live: Option<&Value>) -> String {
    match error.fault() {
        Fault::FieldConflicts(conflicts) => format!("others own fields of it: {}", add_time(conflicts, live)),
        _ => error.to_string(),
    }
}

/// Compares with the answer to the apply, so that nothing is read for it.
fn find_overruled(sent: &[u8], answer: &Value) -> Vec<String> {
    let Ok(sent) = from_bytes(sent) else { return Vec::new() };
    overruled(&sent, answer)
}

pub(super) fn from_bytes(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|e| ApiError::Unusable(e.to_string()))
}
