//! The schema's history, embedded. A migration that has left a release is never edited; add the next number.

use std::borrow::Cow;

use sqlx::{
    SqlSafeStr as _, SqliteConnection,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
};

const SQLITE: &[(i64, &str, &str)] = &[
    (1, "resources", include_str!("../migrations/sqlite/0001_resources.sql")),
    (2, "delivery", include_str!("../migrations/sqlite/0002_delivery.sql")),
    (3, "garbage", include_str!("../migrations/sqlite/0003_garbage.sql")),
];

/// Brings the schema to this program's version. A file that a newer program has migrated is refused.
pub(crate) async fn run_migrations(connection: &mut SqliteConnection) -> Result<(), MigrateError> {
    let migrations = SQLITE.iter().map(|(version, name, sql)| {
        Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, sql.into_sql_str(), false)
    });
    Migrator::with_migrations(migrations.collect()).run_direct(None, connection, false).await
}
