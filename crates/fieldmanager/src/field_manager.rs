//! Field management of one kind, or of one of its subresources.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    last_applied,
    managers::{ManagedFieldsError, Manager, Managers, Operation, Owned, same_but_times},
    path::{Element, Path},
    schema::Type,
    set::Set,
    typed::{Duplicates, Mismatches, validate},
    updater::{Conflicts, Updater},
};

/// Manager of the fields that an object had before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Fields without owners: type, identity, and fields of the server.
const UNOWNED: [&[&str]; 12] = [
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

#[derive(Clone, Debug)]
pub struct FieldManager {
    ty: Type,
    api_version: String,
    kind: String,
    subresource: String,
    /// An empty object of the kind, for the comparison with a new one.
    blank: Value,
    reset: Set,
    unowned: Set,
}

/// Why an apply was refused.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("invalid object type: {0}")]
    Kind(String),
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// `object` is `namespace/name; group/version, Kind=kind`.
    #[error("failed to create typed patch object ({object}): {mismatches}")]
    Config { object: String, mismatches: Mismatches },
    #[error("failed to create typed live object ({object}): {mismatches}")]
    Live { object: String, mismatches: Mismatches },
    #[error("the object has too many managers; clear metadata.managedFields of those that are gone")]
    TooManyManagers,
    #[error("failed to decode managed fields: {0}")]
    Managers(ManagedFieldsError),
    #[error(transparent)]
    Conflicts(#[from] Conflicts),
}

/// An object after an apply, with its managed fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub object: Value,
    /// Whether more than the managed fields has changed.
    pub changed: bool,
}

fn field_path(names: &[&str]) -> Path {
    Path(names.iter().map(|name| Element::field(name)).collect())
}

fn managed_fields(object: &Value) -> Option<&Value> {
    object
        .get("metadata")?
        .get("managedFields")
        .filter(|value| !value.is_null())
}

fn set_managed_fields(object: &mut Value, managers: Option<&Managers>) {
    let entries = managers.map(Managers::encode).filter(|entries| !entries.is_empty());
    match (entries, object.get_mut("metadata").and_then(Value::as_object_mut)) {
        (Some(entries), Some(metadata)) => {
            metadata.insert("managedFields".to_owned(), entries.into());
        }
        (Some(entries), None) => object["metadata"] = serde_json::json!({"managedFields": entries}),
        (None, Some(metadata)) => {
            metadata.remove("managedFields");
        }
        (None, None) => {}
    }
}

/// Whether the client removes all managers: it sends an empty list, or one empty entry.
fn forgets_managers(entries: Option<&Value>) -> bool {
    match entries.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(|entry| entry.is_empty()),
        _ => false,
    }
}

impl FieldManager {
    /// `blank`: an empty object of the kind. `reset`: top-level fields that a write through this resource or
    /// subresource can't change.
    pub fn new(ty: Type, blank: Value, subresource: &str, reset: &[&str]) -> Self {
        let text = |field: &str| blank[field].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let reset = reset.iter().map(|name| field_path(&[name]));
        let reset = Set::of(reset.chain([field_path(&["metadata", "managedFields"])]));
        let unowned = Set::of(UNOWNED.iter().map(|names| field_path(names)));
        Self {
            ty,
            api_version,
            kind,
            subresource: subresource.to_owned(),
            blank,
            reset,
            unowned,
        }
    }

    fn updater(&self) -> Updater<'_> {
        Updater {
            ty: &self.ty,
            api_version: &self.api_version,
            reset: &self.reset,
        }
    }

    /// `group/version, Kind=kind`; the core group is empty.
    fn shown_kind(api_version: &str, kind: &str) -> String {
        if api_version.contains('/') {
            format!("{api_version}, Kind={kind}")
        } else {
            format!("/{api_version}, Kind={kind}")
        }
    }

    fn shown(&self, object: &Value) -> String {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        format!(
            "{}/{}; {}",
            text("namespace"),
            text("name"),
            Self::shown_kind(&self.api_version, &self.kind)
        )
    }

    /// Sets the managed fields of an object before it replaces `live` or is created. If the managers can't be computed,
    /// or are too many, the object gets none.
    pub fn update(&self, live: Option<&Value>, mut new: Value, manager: &str, now: Timestamp) -> Value {
        let mut managers = self.managers_of(live, &new);
        set_managed_fields(&mut new, None);
        let live = live.unwrap_or(&self.blank);
        let exists = live["metadata"]["uid"].as_str().is_some_and(|uid| !uid.is_empty());
        // An existing object without managers stays untracked until the first apply.
        let is_tracked = !exists || !managers.0.is_empty();
        let told = is_tracked
            && self.take_changes(live, &new, &mut managers, manager, now).is_ok()
            && !managers.is_too_large();
        set_managed_fields(&mut new, told.then_some(&managers));
        new
    }

    /// The managers that the client sent, because it may change them on purpose. If they can't be read, the live ones,
    /// because most clients don't know them.
    fn managers_of(&self, live: Option<&Value>, new: &Value) -> Managers {
        let live = || Managers::decode(live.and_then(managed_fields)).unwrap_or_default();
        if !self.subresource.is_empty() {
            return live();
        }
        let sent = managed_fields(new);
        if forgets_managers(sent) {
            return Managers::default();
        }
        match Managers::decode(sent) {
            Ok(managers) if !managers.0.is_empty() => managers,
            _ => live(),
        }
    }

    /// Makes the manager of a write the owner of the changed fields.
    fn take_changes(
        &self,
        live: &Value,
        new: &Value,
        managers: &mut Managers,
        name: &str,
        now: Timestamp,
    ) -> Result<(), Mismatches> {
        validate(new, &self.ty, Duplicates::Allowed)?;
        validate(live, &self.ty, Duplicates::Allowed)?;
        let taken = self.updater().update(live, new, managers).difference(&self.unowned);
        if !taken.is_empty() {
            let manager = Manager::new(name, Operation::Update, &self.api_version, &self.subresource);
            let owned = managers.0.entry(manager).or_insert_with(|| Owned {
                set: Set::new(),
                api_version: self.api_version.clone(),
                time: None,
            });
            owned.set = owned.set.union(&taken);
            owned.time = Some(now);
        }
        managers.cap();
        Ok(())
    }

    /// Merges an applied configuration into an object, or creates an object from it.
    pub fn apply(
        &self,
        live: Option<&Value>,
        config: &Value,
        manager: &str,
        force: bool,
        now: Timestamp,
    ) -> Result<Applied, ApplyError> {
        let text = |field: &str| config[field].as_str().unwrap_or_default();
        if (text("apiVersion"), text("kind")) != (self.api_version.as_str(), self.kind.as_str()) {
            return Err(ApplyError::Kind(Self::shown_kind(text("apiVersion"), text("kind"))));
        }
        let managers = Managers::decode(live.and_then(managed_fields)).map_err(ApplyError::Managers)?;
        let live = live.unwrap_or(&self.blank);
        let result = match self.merge(live, config, managers.clone(), manager, force, now) {
            Err(ApplyError::Conflicts(conflicts)) if manager == last_applied::MANAGER => {
                let ours = last_applied::owned_by_kubectl(live, &self.ty, &self.api_version);
                let left: Vec<_> = conflicts
                    .0
                    .iter()
                    .filter(|c| !ours.contains(&c.path))
                    .cloned()
                    .collect();
                if left.is_empty() {
                    self.merge(live, config, managers, manager, true, now)
                } else {
                    Err(Conflicts(left).into())
                }
            }
            other => other,
        };
        let mut applied = result?;
        if manager == last_applied::MANAGER {
            last_applied::refresh(&mut applied.object, config);
        }
        Ok(applied)
    }

    fn merge(
        &self,
        live: &Value,
        config: &Value,
        mut managers: Managers,
        name: &str,
        force: bool,
        now: Timestamp,
    ) -> Result<Applied, ApplyError> {
        let live_mismatch = |mismatches| ApplyError::Live {
            object: self.shown(live),
            mismatches,
        };
        if managers.0.is_empty() {
            let tracked = self.take_changes(&self.blank, live, &mut managers, BEFORE_FIRST_APPLY, now);
            tracked.map_err(live_mismatch)?;
        }
        if managed_fields(config).is_some() {
            return Err(ApplyError::ManagedFields);
        }
        validate(config, &self.ty, Duplicates::Refused).map_err(|mismatches| ApplyError::Config {
            object: self.shown(config),
            mismatches,
        })?;
        validate(live, &self.ty, Duplicates::Allowed).map_err(live_mismatch)?;
        let own = Manager::new(name, Operation::Apply, &self.api_version, &self.subresource);
        let merged = self.updater().apply(live, config, &mut managers, &own, force)?;
        let changed = merged.is_some();
        if let Some(owned) = managers.0.get_mut(&own) {
            owned.set = owned.set.difference(&self.unowned);
            if changed {
                owned.time = Some(now);
            }
        }
        managers.0.retain(|_, owned| !owned.set.is_empty());
        if managers.is_too_large() {
            return Err(ApplyError::TooManyManagers);
        }
        let mut object = merged.unwrap_or_else(|| live.clone());
        set_managed_fields(&mut object, Some(&managers));
        Ok(Applied { object, changed })
    }

    /// Restores the times of the managers if nothing else changed, so that the object need not be written.
    pub fn keep_times(old: &Value, new: &mut Value) {
        let entries = |object: &Value| {
            managed_fields(object)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let (before, after) = (entries(old), entries(new));
        if after.is_empty() || before == after || !same_but_times(&before, &after) {
            return;
        }
        let mut kept = new.clone();
        kept["metadata"]["managedFields"] = before.into();
        if kept == *old {
            *new = kept;
        }
    }
}
