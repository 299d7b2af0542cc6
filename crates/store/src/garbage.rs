//! Owner references, and the marks of resources that the garbage collector has yet to reconcile.
//!
//! Both are written in the transaction that writes a resource: only [`Tx`](crate::Tx) calls [`RelationChange::follow`].
//! The collector decides what a mark leads to, and reads everything again for that.
//!
//! Functions of a connection, as in [`delivery`](crate::delivery).

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::Row as _;

use crate::{Connection, Key, Kind, StoreError, engine::Row};

/// The entries of `metadata.finalizers` that a garbage collector removes.
const FINALIZERS: [&str; 2] = ["orphan", "foregroundDeletion"];

/// A resource to reconcile: the resource itself, or its dependents if it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GarbageMark {
    pub key: Key,
    pub uid: String,
    /// Number of marks. [`clear_garbage`] keeps a row that was marked again.
    pub marks: i64,
}

/// A resource that names an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependent {
    pub key: Key,
    /// Whether the owner waits for it.
    pub blocks: bool,
}

/// The parts of an object's metadata that the collector uses.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Relations {
    /// `metadata.ownerReferences` as stored.
    references: Value,
    /// Whether it has a finalizer that the collector is to remove.
    waits: bool,
}

impl Relations {
    pub(crate) fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let mut finalizers = metadata["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let waits = metadata.get("deletionTimestamp").is_some() && finalizers.any(|name| FINALIZERS.contains(&name));
        Self {
            references: metadata["ownerReferences"].clone(),
            waits,
        }
    }

    /// Reads a stored body. It is parsed only if it can name an owner.
    pub(crate) fn of_body(body: &[u8]) -> Self {
        const FIELD: &[u8] = b"\"ownerReferences\"";
        if !body.windows(FIELD.len()).any(|window| window == FIELD) {
            return Self::default();
        }
        serde_json::from_slice(body)
            .map(|object| Self::of(&object))
            .unwrap_or_default()
    }

    /// uids of the owners, and whether they wait for this resource.
    fn owners(&self) -> BTreeMap<&str, bool> {
        let mut owners = BTreeMap::new();
        for reference in self.references.as_array().into_iter().flatten() {
            let uid = reference["uid"].as_str().unwrap_or_default();
            *owners.entry(uid).or_default() |= reference["blockOwnerDeletion"] == true;
        }
        owners
    }
}

/// A write that may concern the collector.
pub(crate) struct RelationChange {
    key: Key,
    uid: String,
    /// Before the write; the default if the resource was created.
    old: Relations,
    /// After the write. None: the resource is gone.
    new: Option<Relations>,
}

impl RelationChange {
    /// None: the write does not concern the collector, as nearly all don't.
    pub(crate) fn of(key: &Key, uid: &str, old: Relations, new: Option<Relations>) -> Option<Self> {
        let concerns = new
            .as_ref()
            .is_none_or(|new| new.waits || old.references != new.references);
        concerns.then(|| Self {
            key: key.clone(),
            uid: uid.to_owned(),
            old,
            new,
        })
    }

    pub(crate) async fn follow(&self, connection: &mut Connection) -> Result<(), sqlx::Error> {
        let Self { key, uid, old, new } = self;
        match new {
            Some(new) => follow_write(connection, key, uid, old, new).await,
            None => follow_delete(connection, key, uid, old).await,
        }
    }
}

/// Updates the rows after a resource was created (`old` is the default) or replaced.
async fn follow_write(
    connection: &mut Connection,
    key: &Key,
    uid: &str,
    old: &Relations,
    new: &Relations,
) -> Result<(), sqlx::Error> {
    if old.references != new.references {
        let (before, after) = (old.owners(), new.owners());
        for (owner, blocks) in &before {
            if after.get(owner) != Some(blocks) {
                delete_reference(connection, owner, key).await?;
                mark_again(connection, owner).await?;
            }
        }
        for (owner, blocks) in &after {
            if before.get(owner) != Some(blocks) {
                insert_reference(connection, owner, key, *blocks).await?;
            }
        }
    }
    // References with the same uids but other changes may name another object now.
    if new.waits || (old.references != new.references && !new.owners().is_empty()) {
        mark(connection, key, uid).await?;
    }
    Ok(())
}

/// Updates the rows after a resource was removed.
async fn follow_delete(connection: &mut Connection, key: &Key, uid: &str, last: &Relations) -> Result<(), sqlx::Error> {
    for owner in last.owners().into_keys() {
        delete_reference(connection, owner, key).await?;
        mark_again(connection, owner).await?;
    }
    let has_dependents: Option<i64> = sqlx::query_scalar("SELECT 1 FROM owner_references WHERE owner_uid = $1 LIMIT 1")
        .bind(uid)
        .fetch_optional(&mut *connection)
        .await?;
    if has_dependents.is_some() {
        mark(connection, key, uid).await?;
    }
    Ok(())
}

async fn insert_reference(
    connection: &mut Connection,
    owner: &str,
    key: &Key,
    blocks: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO owner_references (owner_uid, kind, namespace, name, blocks) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (owner_uid, kind, namespace, name) DO UPDATE SET blocks = excluded.blocks",
    )
    .bind(owner)
    .bind(key.kind.as_str())
    .bind(&key.namespace)
    .bind(&key.name)
    .bind(i16::from(blocks))
    .execute(connection)
    .await?;
    Ok(())
}

async fn delete_reference(connection: &mut Connection, owner: &str, key: &Key) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM owner_references WHERE owner_uid = $1 AND kind = $2 AND namespace = $3 AND name = $4")
        .bind(owner)
        .bind(key.kind.as_str())
        .bind(&key.namespace)
        .bind(&key.name)
        .execute(connection)
        .await?;
    Ok(())
}

async fn mark(connection: &mut Connection, key: &Key, uid: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO garbage (uid, kind, namespace, name, marks) VALUES ($1, $2, $3, $4, 1) \
         ON CONFLICT (uid) DO UPDATE SET marks = garbage.marks + 1",
    )
    .bind(uid)
    .bind(key.kind.as_str())
    .bind(&key.namespace)
    .bind(&key.name)
    .execute(connection)
    .await?;
    Ok(())
}

/// Marks an owner only if it waits for its dependents; to other owners it doesn't matter that a dependent is gone.
async fn mark_again(connection: &mut Connection, uid: &str) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE garbage SET marks = marks + 1 WHERE uid = $1")
        .bind(uid)
        .execute(connection)
        .await?;
    Ok(())
}

fn key_of(row: &Row) -> Result<Key, sqlx::Error> {
    Ok(Key {
        kind: Kind::from(row.try_get::<&str, _>("kind")?),
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
    })
}

/// Marks in the order of their uids, after `after`.
pub async fn load_garbage(
    connection: &mut Connection,
    after: &str,
    limit: usize,
) -> Result<Vec<GarbageMark>, StoreError> {
    let select = "SELECT uid, kind, namespace, name, marks FROM garbage WHERE uid > $1 ORDER BY uid LIMIT $2";
    let rows = sqlx::query(select)
        .bind(after)
        .bind(limit as i64)
        .fetch_all(connection)
        .await?;
    let mark = |row: &Row| -> Result<_, sqlx::Error> {
        Ok(GarbageMark {
            key: key_of(row)?,
            uid: row.try_get("uid")?,
            marks: row.try_get("marks")?,
        })
    };
    Ok(rows.iter().map(mark).collect::<Result<_, _>>()?)
}

/// Removes a handled mark, unless it was made again meanwhile.
pub async fn clear_garbage(connection: &mut Connection, mark: &GarbageMark) -> Result<(), StoreError> {
    let delete = sqlx::query("DELETE FROM garbage WHERE uid = $1 AND marks = $2");
    delete.bind(&mark.uid).bind(mark.marks).execute(connection).await?;
    Ok(())
}

/// Resources that name this owner, in the order of their keys, after `after`. Resources in other namespaces than the
/// owner's are not its dependents, whatever uid they name; an owner without a namespace may have dependents in all.
pub async fn load_dependents(
    connection: &mut Connection,
    owner_uid: &str,
    owner_namespace: &str,
    after: Option<&Key>,
    limit: usize,
) -> Result<Vec<Dependent>, StoreError> {
    let (kind, namespace, name) = after.map_or(("", "", ""), |key| {
        (key.kind.as_str(), key.namespace.as_str(), key.name.as_str())
    });
    let rows = sqlx::query(
        "SELECT kind, namespace, name, blocks FROM owner_references \
         WHERE owner_uid = $1 AND (kind, namespace, name) > ($2, $3, $4) AND ($6 = '' OR namespace = $6) \
         ORDER BY kind, namespace, name LIMIT $5",
    )
    .bind(owner_uid)
    .bind(kind)
    .bind(namespace)
    .bind(name)
    .bind(limit as i64)
    .bind(owner_namespace)
    .fetch_all(connection)
    .await?;
    let dependent = |row: &Row| -> Result<_, sqlx::Error> {
        Ok(Dependent {
            key: key_of(row)?,
            blocks: row.try_get::<i64, _>("blocks")? != 0,
        })
    };
    Ok(rows.iter().map(dependent).collect::<Result<_, _>>()?)
}

/// Whether an owner that is deleted in the foreground still waits for one of its dependents.
pub async fn blocks_owner(
    connection: &mut Connection,
    owner_uid: &str,
    owner_namespace: &str,
) -> Result<bool, StoreError> {
    let select = "SELECT 1 FROM owner_references \
                  WHERE owner_uid = $1 AND blocks = 1 AND ($2 = '' OR namespace = $2) LIMIT 1";
    let found: Option<i64> = sqlx::query_scalar(select)
        .bind(owner_uid)
        .bind(owner_namespace)
        .fetch_optional(connection)
        .await?;
    Ok(found.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_to_one_owner_count_once_and_block_if_one_does() {
        let object = json!({"metadata": {"ownerReferences": [
            {"uid": "a"}, {"uid": "b", "blockOwnerDeletion": false}, {"uid": "a", "blockOwnerDeletion": true},
        ]}});
        let relations = Relations::of(&object);
        assert_eq!(relations.owners(), BTreeMap::from([("a", true), ("b", false)]));
        assert_eq!(Relations::of_body(object.to_string().as_bytes()), relations);
        assert_eq!(Relations::of_body(b"{\"metadata\":{}}"), Relations::default());
    }

    #[test]
    fn only_a_deleted_object_waits_for_a_collector() {
        let waits = |metadata: Value| Relations::of(&json!({"metadata": metadata})).waits;
        assert!(!waits(json!({"finalizers": ["orphan"]})));
        assert!(!waits(json!({"finalizers": ["a/b"], "deletionTimestamp": "t"})));
        assert!(waits(
            json!({"finalizers": ["a/b", "orphan"], "deletionTimestamp": "t"})
        ));
        assert!(waits(
            json!({"finalizers": ["foregroundDeletion"], "deletionTimestamp": "t"})
        ));
    }
}
