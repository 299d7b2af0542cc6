//! Objects that can't be applied because the merged result is invalid: they are written as a whole, without the
//! conflicting fields.

use farwater_api::apply_options::ConflictPolicy;
use farwater_fleet::plan::{
    Change, ResolvedObject,
    around::{clear, merge},
    differences::leave_ignored,
};
use serde_json::Value;

use super::{Executor, Notice, TRIES, send::from_bytes};
use crate::{
    kubernetes::{ApiError, Fault, to_bytes},
    live::live_object,
};

/// Most fields and elements that are removed from an object.
const MOST_REMOVED: usize = 16;

impl Executor<'_> {
    /// Writes an object as a whole that could not be applied because of `error`. Returns `error` if this is not the
    /// remedy or fails too. Nothing is written that the API server did not accept in a dry run.
    pub(super) async fn write_around(
        &self,
        path: &str,
        (change, object): (&Change, &ResolvedObject),
        error: ApiError,
        dry_run: bool,
    ) -> Result<(Value, Notice), ApiError> {
        if !matches!(error.fault(), Fault::Unmergeable(_)) {
            return Err(error);
        }
        if change.cause.is_adoption() || object.options.conflicts != ConflictPolicy::Force {
            return Err(error);
        }
        let mut tries = 1;
        loop {
            match self.write_around_once(path, object, &error, dry_run).await {
                // Another writer changed the object in between: read it again.
                Err(conflict) if conflict.code() == 409 && tries < TRIES => tries += 1,
                written => return written?.ok_or(error),
            }
        }
    }

    /// None: this is not the remedy.
    async fn write_around_once(
        &self,
        path: &str,
        object: &ResolvedObject,
        error: &ApiError,
        dry_run: bool,
    ) -> Result<Option<(Value, Notice)>, ApiError> {
        let live = match self.kubernetes.get(Some(self.account), path, false).await {
            Ok(live) => live,
            Err(gone) if gone.is_not_found() => return self.make_whole(path, object, error, dry_run).await,
            Err(error) => return Err(error),
        };

        let options = &object.options;
        let mut manifest = from_bytes(&object.body)?;
        if options.ignores() {
            leave_ignored(&mut manifest, &live, &options.ignore, &options.ignore_managers);
        }

        let Some(mut whole) = merge(&manifest, &live) else {
            return Ok(None);
        };
        let mut removed = Vec::new();
        let planned = loop {
            let wrong = match self
                .persist(|| self.kubernetes.replace(Some(self.account), path, &whole, true))
                .await
            {
                Ok(planned) => break planned,
                Err(wrong) if wrong.code() == 409 || wrong.is_passing() || *wrong.fault() == Fault::Immutable => {
                    return Err(wrong);
                }
                Err(wrong) => wrong,
            };
            // The first refusal explains the manifest better than this one.
            let Fault::Unmergeable(fields) = wrong.fault() else {
                return Ok(None);
            };
            let cleared: Vec<String> = fields
                .iter()
                .filter_map(|field| clear(&mut whole, &manifest, field))
                .collect();
            if cleared.is_empty() || removed.len() > MOST_REMOVED {
                return Ok(None);
            }
            removed.extend(cleared);
        };

        let notice = Notice {
            whole: Some(explain(error, &removed)),
            ..Notice::default()
        };
        if dry_run {
            return Ok(Some((planned, notice)));
        }
        self.persist(|| self.kubernetes.replace(Some(self.account), path, &whole, false))
            .await?;
        Ok(Some((self.own_whole(path, &to_bytes(&manifest)?).await?, notice)))
    }

    async fn make_whole(
        &self,
        path: &str,
        object: &ResolvedObject,
        error: &ApiError,
        dry_run: bool,
    ) -> Result<Option<(Value, Notice)>, ApiError> {
        let Some((collection, _)) = path.rsplit_once('/') else {
            return Ok(None);
        };
        let manifest = from_bytes(&object.body)?;
        let made = self
            .persist(|| self.kubernetes.make(Some(self.account), collection, &manifest, dry_run))
            .await;
        let made = match made {
            Err(error) if error.code() == 409 || error.is_passing() => return Err(error),
            Err(_) => return Ok(None),
            Ok(made) => made,
        };
        let made = if dry_run {
            made
        } else {
            self.own_whole(path, &object.body).await?
        };
        Ok(Some((
            made,
            Notice {
                whole: Some(explain(error, &[])),
                ..Notice::default()
            },
        )))
    }

    /// Moves the fields of the manifest to our apply manager after a write as a whole, so that fields that leave the
    /// manifest later are removed.
    pub(super) async fn own_whole(&self, path: &str, manifest: &[u8]) -> Result<Value, ApiError> {
        let applied = self.send(path, manifest, ConflictPolicy::Force, false).await;
        let with_updates = match applied {
            Ok((applied, _)) if !live_object(&applied).moves => return Ok(applied),
            Ok(_) => false,
            // The object can't be applied at all, but it is already as the manifest states.
            Err(error) if matches!(error.fault(), Fault::Unmergeable(_)) => true,
            Err(error) => return Err(error),
        };
        self.migrate(path, with_updates).await?;
        self.kubernetes.get(Some(self.account), path, false).await
    }
}

fn explain(error: &ApiError, removed: &[String]) -> String {
    let removed = match removed {
        [] => String::new(),
        removed => format!("; {} was taken out", removed.join(", ")),
    };
    format!("written as a whole, because merged it would not be valid ({error}){removed}")
}
