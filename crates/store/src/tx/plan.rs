//! Computes the rows after a series of writes: pure, before any statement.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value;

use super::Pending;
use crate::{
    Change, Key, Kind, Operation, Resource, StoreError, WatchEvent, Write, WriteError,
    garbage::{RelationChange, Relations},
    row::{FromParts, Labels, Parts, PlainParts, StoredParts, encode_labels, labels_of_object},
    seal::Sealer,
    tallies::TallyChanges,
};

/// The rows after the writes so far, and the changes for watchers.
pub(super) struct Plan {
    sealer: Arc<Sealer>,
    ownerless: Arc<[Kind]>,
    /// The last assigned version.
    pub number: u64,
    pub changes: Vec<Pending>,
    pub rows: HashMap<Key, Slot>,
    /// Changes for the garbage collector.
    pub relations: Vec<RelationChange>,
    /// Changes of the number of resources by state.
    pub tallied: TallyChanges,
}

/// What a change replaces.
#[derive(Default)]
struct Old {
    labels: Labels,
    /// Only for an update.
    parts: Option<Arc<PlainParts>>,
}

/// The row of one key, and whether it differs from the database.
#[derive(Default)]
pub(super) struct Slot {
    pub row: Option<StoredParts>,
    pub changed: bool,
}

impl Plan {
    pub(super) fn new(
        rows: HashMap<Key, StoredParts>,
        number: u64,
        sealer: Arc<Sealer>,
        ownerless: Arc<[Kind]>,
        tallied: TallyChanges,
    ) -> Self {
        let slot = |(key, row)| {
            (
                key,
                Slot {
                    row: Some(row),
                    changed: false,
                },
            )
        };
        let rows = rows.into_iter().map(slot).collect();
        Self {
            sealer,
            ownerless,
            number,
            changes: Vec::new(),
            rows,
            relations: Vec::new(),
            tallied,
        }
    }

    /// One compare-and-swap. A refused write uses no version.
    pub(super) fn write(&mut self, write: Write) -> Result<Resource, WriteError> {
        let Write { key, change } = write;
        match change {
            Change::Create(object) => {
                let parts = Parts::of(object, &key)?;
                self.create(key, parts)
            }
            Change::Replace { uid, version, object } => {
                let current = self.expect(&key, &uid, version)?;
                let parts = Parts::of(object, &key)?;
                self.replace(key, current, parts)
            }
            Change::Delete { uid, version } => {
                let current = self.expect(&key, &uid, version)?;
                self.delete(key, current)
            }
        }
    }

    fn expect(&self, key: &Key, uid: &str, version: u64) -> Result<StoredParts, WriteError> {
        let row = self
            .rows
            .get(key)
            .and_then(|slot| slot.row.clone())
            .ok_or(WriteError::Missing)?;
        if row.uid == uid && row.version == version {
            return Ok(row);
        }
        let current = Box::new(Resource::from_parts(row.open(key, &self.sealer)?, key.clone())?);
        Err(WriteError::Conflict { current })
    }

    fn create(&mut self, key: Key, parts: Parts) -> Result<Resource, WriteError> {
        if self.rows.get(&key).is_some_and(|slot| slot.row.is_some()) {
            return Err(WriteError::Exists);
        }
        let version = self.number + 1;
        let row = StoredParts::new(&parts, &key, version, &self.sealer);
        self.tallied.add(&key.kind, parts.status.as_deref(), 1);
        let object = Arc::new(parts.into_object(version));
        self.relate(&key, &row.uid, Relations::default(), Some(Relations::of(&object)));
        Ok(self.append(key, Operation::Created, row, Old::default(), object)?)
    }

    fn replace(&mut self, key: Key, current: StoredParts, parts: Parts) -> Result<Resource, WriteError> {
        if parts.uid != current.uid {
            let problem = "its metadata has another uid than the resource".to_owned();
            return Err(StoreError::Object {
                key: Box::new(key),
                problem,
            }
            .into());
        }
        let seal_changed = (current.sealed != 0) != self.sealer.seals(&key.kind);
        let old_labels = current.labels(&key, &self.sealer)?;
        let plain = current.open(&key, &self.sealer)?;
        if plain.body == parts.body && plain.status == parts.status && !seal_changed {
            return Ok(Resource::from_parts(plain, key)?);
        }
        let version = self.number + 1;
        let row = StoredParts::new(&parts, &key, version, &self.sealer);
        if plain.status != parts.status {
            self.tallied.add(&key.kind, plain.status.as_deref(), -1);
            self.tallied.add(&key.kind, parts.status.as_deref(), 1);
        }
        let object = Arc::new(parts.into_object(version));
        self.relate(
            &key,
            &row.uid,
            Relations::of_body(&plain.body),
            Some(Relations::of(&object)),
        );
        let old = Old {
            labels: old_labels,
            parts: Some(Arc::new(plain)),
        };
        Ok(self.append(key, Operation::Updated, row, old, object)?)
    }

    fn delete(&mut self, key: Key, mut row: StoredParts) -> Result<Resource, WriteError> {
        row.version = self.number + 1;
        let plain = row.clone().open(&key, &self.sealer)?;
        let status = plain.status.clone();
        let last = Resource::from_parts(plain, key.clone())?;
        self.tallied.add(&key.kind, status.as_deref(), -1);
        self.relate(&key, &row.uid, Relations::of(&last.object), None);
        let old = Old {
            labels: labels_of_object(&last.object),
            parts: None,
        };
        Ok(self.append(key, Operation::Deleted, row, old, last.object)?)
    }

    /// Records a change of relations. Without `new` the resource is gone.
    fn relate(&mut self, key: &Key, uid: &str, old: Relations, new: Option<Relations>) {
        if !self.ownerless.contains(&key.kind) {
            self.relations.extend(RelationChange::of(key, uid, old, new));
        }
    }

    /// Assigns the next version to a change.
    fn append(
        &mut self,
        key: Key,
        operation: Operation,
        row: StoredParts,
        Old {
            labels: old_labels,
            parts: before,
        }: Old,
        object: Arc<Value>,
    ) -> Result<Resource, StoreError> {
        let stored_labels = encode_labels(&old_labels, row.sealed, &key, &row.uid, &self.sealer)?;
        self.number = row.version;
        let left = (operation != Operation::Deleted).then(|| row.clone());
        self.rows.insert(
            key.clone(),
            Slot {
                row: left,
                changed: true,
            },
        );
        let resource = Resource {
            key,
            uid: row.uid.clone(),
            version: row.version,
            object,
        };
        let object = Arc::clone(&resource.object);
        let event = WatchEvent::new(resource.key.clone(), row.version, operation, object, old_labels);
        self.changes.push(Pending {
            event,
            row,
            old_labels: stored_labels,
            before,
        });
        Ok(resource)
    }
}
