//! One object: applied, written as a whole or made anew, as its options and the plan say.

use farwater_api::{apply_options::ConflictPolicy, objects::Health};
use farwater_fleet::{
    health,
    plan::{
        Cause, Change, GroupVersionKind, LiveObject, ResolvedObject, Wait,
        differences::{differences, leave_ignored},
    },
};
use serde_json::Value;

use super::{Applied, Executor, TRIES};
use crate::{
    kubernetes::{ApiError, ApplyMode, Fault, to_bytes},
    live::{live_object, migration},
    messages::shorten,
};

const UNFORCED: ApplyMode = ApplyMode { force: false, dry_run: false };
const FORCED: ApplyMode = ApplyMode { force: true, dry_run: false };

/// How a live object stands to its source.
#[derive(Clone, Debug)]
pub enum Inspected {
    Gone,
    /// Applying it would change nothing.
    Same(LiveObject),
    /// Which fields differ, and whose they are where that is known.
    Differs {
        live: LiveObject,
        health: Health,
        fields: String,
    },
}

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
            match self.delete_object(&object.object, uid).await {
                Ok(true) => sent = self.write(&path, object, false).await,
                Ok(false) => return Applied::Waiting("is made anew: waits until the old one is gone".to_owned()),
                Err(error) => return Applied::Refused(format!("make anew: {error}")),
            }
        }
        match sent {
            Ok((applied, note)) => {
                let (health, message) = health::evaluate(&applied);
                Applied::Done { live: live_object(&applied), health, message: shorten(&message), note }
            }
            Err(error) if error.is_not_found() && !error.to_string().contains("namespaces ") => {
                self.kinds.forget(&gvk);
                Applied::Waiting(format!("waits for its kind: {error}"))
            }
            Err(error) if error.is_not_found() => Applied::Waiting(format!("waits for its namespace: {error}")),
            Err(error) => match error.fault() {
                Fault::FieldConflicts(conflicts) => Applied::Refused(format!("others own fields of it: {conflicts}")),
                _ => Applied::Refused(error.to_string()),
            },
        }
    }

    /// The object as it is then, and whose fields it took.
    async fn write(&self, path: &str, object: &ResolvedObject, exists: bool) -> Result<(Value, String), ApiError> {
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

    async fn write_once(&self, path: &str, object: &ResolvedObject, exists: bool) -> Result<(Value, String), ApiError> {
        let options = &object.options;
        let mut body = object.body.clone();
        if exists && (options.ignores() || options.replace) {
            let live = self.kubernetes.get(Some(self.account), path, false).await?;
            let mut manifest = from_bytes(&object.body)?;
            if options.replace {
                manifest["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                // Its fields become ours by the apply that follows.
                self.persist(|| self.kubernetes.replace(Some(self.account), path, &manifest)).await?;
            } else {
                leave_ignored(&mut manifest, &live, &options.ignore, &options.ignore_managers);
                body = to_bytes(&manifest)?;
            }
        }
        let send = |mode| {
            let body = &body;
            self.persist(move || self.kubernetes.apply(Some(self.account), path, body.clone(), mode))
        };
        match send(UNFORCED).await {
            Ok(applied) => Ok((applied, String::new())),
            Err(error) => match error.fault() {
                Fault::FieldConflicts(conflicts) if options.conflicts == ConflictPolicy::Force => {
                    let note = format!("took fields of others: {conflicts}");
                    Ok((send(FORCED).await?, note))
                }
                _ => Err(error),
            },
        }
    }

    /// What keeps an object that belongs to nobody from being adopted.
    async fn check_adoption(&self, path: &str, object: &ResolvedObject) -> Option<Applied> {
        match self.compare(path, object).await {
            Ok(Inspected::Gone | Inspected::Same(_)) => None,
            Ok(Inspected::Differs { fields, .. }) => Some(Applied::Refused(format!(
                "it exists, belongs to no service, and differs: {fields}; the adopt policy is IfNoDifference"
            ))),
            Err(error) => Some(Applied::Refused(format!("compare with what exists: {error}"))),
        }
    }

    pub async fn inspect(&self, object: &ResolvedObject) -> Result<Inspected, ApiError> {
        match self.kinds.get(&GroupVersionKind::from(&object.object)) {
            Some(resource) => self.compare(&resource.path_of(&object.object), object).await,
            None => Ok(Inspected::Gone),
        }
    }

    /// Asks the API server what an apply would change.
    async fn compare(&self, path: &str, object: &ResolvedObject) -> Result<Inspected, ApiError> {
        let live = match self.kubernetes.get(Some(self.account), path, false).await {
            Err(e) if e.is_not_found() => return Ok(Inspected::Gone),
            other => other?,
        };
        let mut manifest = from_bytes(&object.body)?;
        if object.options.ignores() {
            leave_ignored(&mut manifest, &live, &object.options.ignore, &object.options.ignore_managers);
        }
        let body = to_bytes(&manifest)?;
        let send = |force| {
            let mode = ApplyMode { force, dry_run: true };
            let body = &body;
            self.persist(move || self.kubernetes.apply(Some(self.account), path, body.clone(), mode))
        };
        let mut fields = Vec::new();
        let applied = match send(false).await {
            Err(error) => match error.fault() {
                Fault::FieldConflicts(conflicts) => {
                    fields.push(conflicts.clone());
                    send(true).await?
                }
                _ => return Err(error),
            },
            Ok(applied) => applied,
        };
        let (health, _) = health::evaluate(&live);
        let owned = |name: &String| fields.first().is_none_or(|conflicts| !conflicts.contains(&format!("{name} (")));
        let others: Vec<String> = differences(&live, &applied).into_iter().filter(owned).collect();
        fields.extend(others);
        let live = live_object(&live);
        if fields.is_empty() {
            return Ok(Inspected::Same(live));
        }
        Ok(Inspected::Differs { live, health, fields: shorten(&fields.join(", ")) })
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

pub(super) fn from_bytes(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|e| ApiError::Transport(e.to_string()))
}
