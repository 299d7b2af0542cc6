//! The effect of sending an object, from dry runs by the API server: nothing is changed.

use farwater_api::{apply_options::ConflictPolicy, objects::Health};
use farwater_fleet::plan::{
    Cause, Change, GroupVersionKind, LiveObject, ResolvedObject, Wait,
    differences::{differences, leave_ignored},
};
use serde_json::Value;

use super::{
    Executor,
    replace::{explain_kept, forbids},
    send::{explain_absence, explain_immutable, explain_refusal, explain_uncompared, from_bytes, is_about_namespace},
};
use crate::{
    judge::judge,
    kubernetes::{ApiError, Fault, to_bytes},
    live::{
        add_time, live_object,
        versions::{Move, move_fields},
    },
    messages::shorten,
};

/// How a live object differs from its source.
#[derive(Clone, Debug)]
pub enum Inspected {
    Gone,
    /// Applying the source would change nothing.
    Same(LiveObject),
    /// The fields that differ, and if known their managers and since when.
    Differs {
        live: LiveObject,
        health: Health,
        fields: String,
    },
}

/// The effect of a change.
#[derive(Debug)]
pub enum Rehearsed {
    Done {
        /// None: it is created.
        live: Option<Box<Value>>,
        planned: Box<Value>,
        /// The managers whose fields it takes over, or why it is written as a whole.
        note: Option<String>,
    },
    /// It is deleted and recreated.
    Recreated {
        why: String,
    },
    Refused(String),
    /// Its namespace does not exist. Holds why it can't be tried.
    NoNamespace(String),
    /// An object that the change depends on does not exist yet, or not in its new form.
    Untried(String),
}

impl Executor<'_> {
    /// Makes the same requests as [`Executor::apply`], but as dry runs. `redefined`: the definition of its kind changes
    /// first.
    pub async fn rehearse(&self, change: &Change, object: &ResolvedObject, redefined: bool) -> Rehearsed {
        let Some(resource) = self.kinds.get(&GroupVersionKind::from(&object.object)) else {
            return Rehearsed::Untried(Wait::Kind.to_string());
        };
        let path = resource.path_of(&object.object);

        if change.cause == Cause::AdoptUnchanged {
            match self.check_adoption(&path, object).await {
                Ok(None) => {}
                Ok(Some(differs)) => return Rehearsed::Refused(differs),
                Err(error) if redefined && error.is_about_schema() => return too_early(&error),
                Err(error) => return Rehearsed::Refused(explain_uncompared(&error)),
            }
        }
        let live = match self.kubernetes.get(Some(self.account), &path, false).await {
            Ok(live) => Some(live),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Rehearsed::Refused(format!("read what exists: {error}")),
        };

        let written = self.rehearse_write(&path, object, live.as_ref()).await;
        let tell = |fields: String| format!("takes fields of others: {}", add_time(&fields, live.as_ref()));
        let written = match written {
            Ok((planned, taken)) => Ok((planned, taken.map(tell))),
            Err(error) => {
                let around = self.write_around(&path, (change, object), error, true).await;
                around.map(|(planned, notice)| (planned, notice.whole))
            }
        };
        match written {
            Ok((planned, note)) => Rehearsed::Done {
                live: live.map(Box::new),
                planned: Box::new(planned),
                note,
            },
            Err(error) if *error.fault() == Fault::Immutable => {
                if change.recreate.is_none() {
                    return Rehearsed::Refused(explain_immutable(&error, change, object));
                }
                let why = error.to_string();
                match live.as_ref().and_then(|live| forbids(&live_object(live))) {
                    Some(keep) => Rehearsed::Refused(explain_kept(&why, &keep)),
                    None => Rehearsed::Recreated { why },
                }
            }
            Err(error) if error.is_not_found() && is_about_namespace(&error) => {
                Rehearsed::NoNamespace(explain_absence(&error))
            }
            Err(error) if error.is_not_found() => Rehearsed::Untried(explain_absence(&error)),
            Err(error) if redefined && error.is_about_schema() => too_early(&error),
            Err(error) if *error.fault() == Fault::OtherVersion && moves(live.as_ref(), object) => {
                let version = object.object.api_version();
                Rehearsed::Untried(format!(
                    "the fields that it owns in an older version are moved to {version} first"
                ))
            }
            Err(error) => Rehearsed::Refused(explain_refusal(&error, live.as_ref())),
        }
    }

    async fn rehearse_write(
        &self,
        path: &str,
        object: &ResolvedObject,
        live: Option<&Value>,
    ) -> Result<(Value, Option<String>), ApiError> {
        let options = &object.options;
        let Some(live) = live.filter(|_| options.ignores() || options.replace) else {
            return self.send(path, &object.body, options.conflicts, true).await;
        };
        let mut manifest = from_bytes(&object.body)?;
        if options.replace {
            manifest["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            let replaced = self.persist(|| self.kubernetes.replace(Some(self.account), path, &manifest, true));
            return Ok((replaced.await?, None));
        }
        leave_ignored(&mut manifest, live, &options.ignore, &options.ignore_managers);
        self.send(path, &to_bytes(&manifest)?, options.conflicts, true).await
    }

    /// The difference that prevents adopting an object that belongs to no service. None: there is none.
    pub(super) async fn check_adoption(&self, path: &str, object: &ResolvedObject) -> Result<Option<String>, ApiError> {
        Ok(match self.compare(path, object).await? {
            Inspected::Gone | Inspected::Same(_) => None,
            Inspected::Differs { fields, .. } => Some(format!(
                "it exists, belongs to no service, and differs: {fields}; the adopt policy is IfNoDifference"
            )),
        })
    }

    pub async fn inspect(&self, object: &ResolvedObject) -> Result<Inspected, ApiError> {
        match self.kinds.get(&GroupVersionKind::from(&object.object)) {
            Some(resource) => self.compare(&resource.path_of(&object.object), object).await,
            None => Ok(Inspected::Gone),
        }
    }

    /// Asks the API server what an apply would change, whichever manager owns the fields.
    async fn compare(&self, path: &str, object: &ResolvedObject) -> Result<Inspected, ApiError> {
        let live = match self.kubernetes.get(Some(self.account), path, false).await {
            Err(e) if e.is_not_found() => return Ok(Inspected::Gone),
            other => other?,
        };
        let mut manifest = from_bytes(&object.body)?;
        if object.options.ignores() {
            leave_ignored(
                &mut manifest,
                &live,
                &object.options.ignore,
                &object.options.ignore_managers,
            );
        }
        let (applied, conflicts) = self
            .send(path, &to_bytes(&manifest)?, ConflictPolicy::Force, true)
            .await?;
        let mut fields: Vec<String> = conflicts.into_iter().collect();
        let health = judge(self.kinds, &self.rules, &GroupVersionKind::from(&object.object), &live).health;
        let owned = |name: &String| {
            fields
                .first()
                .is_none_or(|conflicts| !conflicts.contains(&format!("{name} (")))
        };
        let others: Vec<String> = differences(&live, &applied).into_iter().filter(owned).collect();
        fields.extend(others);
        if fields.is_empty() {
            return Ok(Inspected::Same(live_object(&live)));
        }
        let fields = add_time(&shorten(&fields.join(", ")), Some(&live));
        Ok(Inspected::Differs {
            live: live_object(&live),
            health,
            fields,
        })
    }
}

fn too_early(error: &ApiError) -> Rehearsed {
    Rehearsed::Untried(format!(
        "its definition changes in the same plan, and before that it would be refused: {error}"
    ))
}

/// Whether our fields must first be moved to the version that is sent.
fn moves(live: Option<&Value>, object: &ResolvedObject) -> bool {
    live.is_some_and(|live| matches!(move_fields(live, &object.object.api_version()), Move::Patch(_)))
}
