//! Settings that the parts of an open store share.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::{
    CompactAfter, Sharing, Written,
    engine::{Connection, Database, Engine},
    seal::Sealer,
};

/// Writes that accompany changes of resources in the same transaction, e.g. marking clusters: a reader that sees the
/// change also sees the mark, and a crash keeps both or neither.
pub trait ChangeHook: Send + Sync {
    /// `changes` contains every change of the transaction, in order. Called after all its writes and before its commit;
    /// an error fails the whole transaction. Write only to narrow tables, and wait for nothing but `connection`.
    fn mark_changes<'a>(
        &'a self,
        connection: &'a mut Connection,
        changes: &'a [Written],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;
}

/// Settings shared by the parts of a store.
pub(crate) struct Settings {
    pub database: Database,
    pub sharing: Sharing,
    /// Identifies this opening of the database.
    pub owner: String,
    pub sealer: Arc<Sealer>,
    pub compact_after: CompactAfter,
    pub on_change: Option<Arc<dyn ChangeHook>>,
}

impl Settings {
    /// Whether only this store may write, by a lock that can be lost. The lock of a file can't.
    pub(crate) fn is_owned(&self) -> bool {
        self.sharing == Sharing::Alone && self.database.engine() == Engine::Postgres
    }
}
