//! The schema's history, embedded. A migration that was released is never edited; add the next number.
//!
//! SQLite's text is written by hand; PostgreSQL's is generated from it.

use std::borrow::Cow;

use sqlx::{
    SqlSafeStr as _,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
};

use crate::engine::{Connection, Engine};

pub(crate) struct Text {
    name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

impl Text {
    pub(crate) fn of(&self, engine: Engine) -> &'static str {
        match engine {
            Engine::Sqlite => self.sqlite,
            Engine::Postgres => self.postgres,
        }
    }
}

macro_rules! text {
    ($name:literal) => {
        Text {
            name: $name,
            sqlite: include_str!(concat!("../migrations/sqlite/", $name, ".sql")),
            postgres: include_str!(concat!("../migrations/postgres/", $name, ".sql")),
        }
    };
}

pub(crate) const HISTORY: &[Text] = &[
    text!("0001_resources"),
    text!("0002_delivery"),
    text!("0003_garbage"),
    text!("0004_assignments_name"),
    text!("0005_agents"),
    text!("0006_tallies"),
    text!("0007_agent_keys"),
    text!("0008_history"),
    text!("0009_origins"),
    text!("0010_hook_runs"),
    text!("0011_guards"),
    text!("0012_sources"),
    text!("0013_revision_terms"),
    text!("0014_service_paths"),
    text!("0015_parameters"),
    text!("0016_data_keys"),
    text!("0017_sets"),
    text!("0018_set_versions"),
    text!("0019_held_services"),
    text!("0020_threads"),
    text!("0021_member_parameters"),
    text!("0022_pipelines"),
    text!("0023_resting_members"),
];

/// Brings the schema to its state after `count` migrations. A database with more migrations is refused.
pub(crate) async fn run_migrations(
    connection: &mut Connection,
    engine: Engine,
    count: usize,
) -> Result<(), MigrateError> {
    let migrations = HISTORY.iter().take(count).zip(1..).map(|(text, version)| {
        let sql = text.of(engine);
        // The list is in the order of the numbers; the description is the part of the name after the number.
        let description = text
            .name
            .split_once('_')
            .map_or(text.name, |(_, description)| description);
        Migration::new(
            version,
            Cow::Borrowed(description),
            MigrationType::Simple,
            sql.into_sql_str(),
            false,
        )
    });
    Migrator::with_migrations(migrations.collect())
        .run_direct(None, connection, false)
        .await
}

/// Number of migrations of a database.
pub(crate) async fn count_migrations(connection: &mut Connection) -> Result<usize, sqlx::Error> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM _sqlx_migrations")
        .fetch_one(connection)
        .await?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys are compared byte by byte on both engines, whatever the server's locale, because a page continues after the
    /// last key.
    fn postgres_of(sqlite: &str) -> String {
        let column = |line: &str| {
            if line.trim_start().starts_with("--") {
                return line.to_owned();
            }
            line.replace(" TEXT", " TEXT COLLATE \"C\"").replace(" BLOB", " BYTEA")
        };
        let lines: Vec<String> = sqlite.lines().map(column).collect();
        format!(
            "-- Made from ../sqlite by a test of migrations.rs; don't edit.\n{}\n",
            lines.join("\n")
        )
    }

    /// With `FARWATER_WRITE=1` it writes them.
    #[test]
    fn the_text_for_postgresql_is_made_from_the_one_for_sqlite() {
        for text in HISTORY {
            let expected = postgres_of(text.sqlite);
            if std::env::var_os("FARWATER_WRITE").is_some() {
                let path = format!("{}/migrations/postgres/{}.sql", env!("CARGO_MANIFEST_DIR"), text.name);
                std::fs::write(path, &expected).unwrap();
            } else {
                assert_eq!(
                    text.postgres, expected,
                    "{}: run this test with FARWATER_WRITE=1",
                    text.name
                );
            }
        }
    }
}
