//! SQLite's own speed for the same work: a row of 3 KB and its log entry, synced at each commit.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

/// Rows per second, with `batch` rows in a transaction.
pub async fn writes(dir: &Path, batch: usize, span: Duration) -> Result<f64> {
    let path = dir.join(format!("raw-{batch}.db"));
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let options = options
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let mut connection = options.connect().await?;
    for table in [
        "resources (name TEXT PRIMARY KEY, body BLOB NOT NULL)",
        "changes (version INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    ] {
        sqlx::query(sqlx::AssertSqlSafe(format!("CREATE TABLE {table}")))
            .execute(&mut connection)
            .await?;
    }
    let (begun, mut rows) = (Instant::now(), 0_usize);
    while begun.elapsed() < span {
        write(&mut connection, rows, batch).await?;
        rows += batch;
    }
    let rate = rows as f64 / begun.elapsed().as_secs_f64();
    connection.close().await?;
    Ok(rate)
}

async fn write(connection: &mut SqliteConnection, first: usize, batch: usize) -> Result<()> {
    let body = vec![b'x'; 3_000];
    let mut transaction = connection.begin().await?;
    for n in first..first + batch {
        let insert = sqlx::query("INSERT INTO resources (name, body) VALUES ($1, $2)");
        insert
            .bind(format!("service-{n:09}"))
            .bind(&body)
            .execute(&mut *transaction)
            .await?;
        let log = sqlx::query("INSERT INTO changes (version, body) VALUES ($1, $2)");
        log.bind(n as i64).bind(&body).execute(&mut *transaction).await?;
    }
    Ok(transaction.commit().await?)
}
