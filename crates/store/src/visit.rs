//! Reads a store that a hub may have open.

use crate::{
    Location, OpenError, StoreError,
    engine::{Connection, Database, PATIENCE, Pool, PooledConnection},
    migrations::count_migrations,
    schema,
};

/// One reading connection.
pub(crate) struct Visit {
    pool: Pool,
    connection: PooledConnection,
}

impl Visit {
    /// Opens a store of any schema.
    pub(crate) async fn of(location: &Location) -> Result<Self, OpenError> {
        let database = Database {
            location: location.clone(),
            patience: PATIENCE,
        };
        let pool = database.reader_pool().map_err(|error| error.at(location))?;
        let connection = pool
            .acquire()
            .await
            .map_err(|error| StoreError::from(error).at(location))?;
        Ok(Self { pool, connection })
    }

    /// Opens a store of the newest schema.
    ///
    /// # Errors
    ///
    /// Also if the schema is not that of this program.
    pub(crate) async fn of_newest(location: &Location) -> Result<Self, OpenError> {
        let mut visit = Self::of(location).await?;
        let found = count_migrations(visit.connection()).await;
        let found = found.map_err(|error| StoreError::from(error).at(location))?;
        if found != schema::newest() {
            return Err(OpenError::Schema {
                location: location.clone(),
                found,
                known: schema::newest(),
            });
        }
        Ok(visit)
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub(crate) async fn end(self) {
        drop(self.connection);
        self.pool.close().await;
    }
}
