//! The outbox of notification providers. It holds the newest waiting message and the last sent message of each thread.

use crate::{Connection, StoreError};

/// Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    pub provider_uid: String,
    pub thread: String,
    /// JSON of the message to send. Empty: none.
    pub waiting: String,
    /// Counts the messages to send.
    pub version: i64,
    /// Since when a message waits.
    pub since: i64,
    /// Not sent before this time.
    pub due: i64,
    /// JSON of the last sent message. Empty: none yet.
    pub told: String,
    pub told_at: i64,
    /// The provider's id of the thread's message.
    pub remote: String,
}

from_row!(
    Thread,
    [
        provider_uid,
        thread,
        waiting,
        version,
        since,
        due,
        told,
        told_at,
        remote
    ]
);

const SELECT: &str = "SELECT provider_uid, thread, waiting, version, since, due, told, told_at, remote FROM threads WHERE provider_uid = $1";

pub async fn load_thread(
    connection: &mut Connection,
    provider_uid: &str,
    thread: &str,
) -> Result<Option<Thread>, StoreError> {
    let sql = format!("{SELECT} AND thread = $2");
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(provider_uid.to_owned())
        .bind(thread.to_owned());
    Ok(select.fetch_optional(connection).await?)
}

/// Threads whose names begin with `prefix`, up to a slash, and that have a given text in one of their messages.
pub async fn threads_below(
    connection: &mut Connection,
    provider_uid: &str,
    prefix: &str,
    text: &str,
) -> Result<Vec<Thread>, StoreError> {
    let sql =
        format!("{SELECT} AND thread >= $2 AND thread < $3 AND (waiting LIKE $4 OR told LIKE $4) ORDER BY thread");
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(provider_uid.to_owned());
    let select = select
        .bind(prefix.to_owned())
        .bind(end_of(prefix))
        .bind(format!("%{text}%"));
    Ok(select.fetch_all(connection).await?)
}

/// The first threads that are due.
pub async fn due_threads(
    connection: &mut Connection,
    provider_uid: &str,
    now: i64,
    limit: u32,
) -> Result<Vec<Thread>, StoreError> {
    let sql = format!("{SELECT} AND waiting <> '' AND due <= $2 ORDER BY due, thread LIMIT $3");
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(provider_uid.to_owned())
        .bind(now);
    Ok(select.bind(i64::from(limit)).fetch_all(connection).await?)
}

/// Threads that have waited since `since` or longer, due or not. `prefix`: beginning of their names, up to a slash.
pub async fn waiting_threads(
    connection: &mut Connection,
    provider_uid: &str,
    prefix: &str,
    since: i64,
) -> Result<Vec<Thread>, StoreError> {
    let sql = format!("{SELECT} AND thread >= $2 AND thread < $3 AND waiting <> '' AND since <= $4 ORDER BY thread");
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(provider_uid.to_owned());
    Ok(select
        .bind(prefix.to_owned())
        .bind(end_of(prefix))
        .bind(since)
        .fetch_all(connection)
        .await?)
}

/// Delays waiting threads until a time.
pub async fn delay_threads(
    connection: &mut Connection,
    provider_uid: &str,
    prefix: &str,
    due: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE threads SET due = $4 \
         WHERE provider_uid = $1 AND thread >= $2 AND thread < $3 AND waiting <> '' AND due < $4",
    )
    .bind(provider_uid)
    .bind(prefix)
    .bind(end_of(prefix))
    .bind(due)
    .execute(connection)
    .await?;
    Ok(())
}

/// The end of the range of names that begin with `prefix`: a zero follows the slash.
fn end_of(prefix: &str) -> String {
    format!("{}0", prefix.trim_end_matches('/'))
}

/// When the next message is due. None: nothing waits.
pub async fn next_due(connection: &mut Connection, provider_uid: &str) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT MIN(due) FROM threads WHERE provider_uid = $1 AND waiting <> ''";
    Ok(sqlx::query_scalar::<_, Option<i64>>(sql)
        .bind(provider_uid)
        .fetch_one(connection)
        .await?)
}

pub async fn save_thread(connection: &mut Connection, row: &Thread) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO threads (provider_uid, thread, waiting, version, since, due, told, told_at, remote) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
         ON CONFLICT (provider_uid, thread) DO UPDATE SET waiting = excluded.waiting, version = excluded.version, \
         since = excluded.since, due = excluded.due, told = excluded.told, told_at = excluded.told_at, \
         remote = excluded.remote",
    )
    .bind(&row.provider_uid)
    .bind(&row.thread)
    .bind(&row.waiting)
    .bind(row.version)
    .bind(row.since)
    .bind(row.due)
    .bind(&row.told)
    .bind(row.told_at)
    .bind(&row.remote)
    .execute(connection)
    .await?;
    Ok(())
}

pub async fn delete_thread(connection: &mut Connection, provider_uid: &str, thread: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM threads WHERE provider_uid = $1 AND thread = $2")
        .bind(provider_uid)
        .bind(thread)
        .execute(connection)
        .await?;
    Ok(())
}

/// Deletes all threads of a provider that is gone.
pub async fn delete_threads(connection: &mut Connection, provider_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM threads WHERE provider_uid = $1")
        .bind(provider_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Deletes the threads of providers that were deleted while no hub ran. `kind`: kind of providers.
pub async fn delete_orphaned_threads(connection: &mut Connection, kind: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM threads WHERE provider_uid NOT IN (SELECT uid FROM resources WHERE kind = $1)")
        .bind(kind)
        .execute(connection)
        .await?;
    Ok(())
}

/// Deletes threads without a waiting message whose last message was sent before a time.
pub async fn delete_old_threads(
    connection: &mut Connection,
    provider_uid: &str,
    before: i64,
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM threads WHERE provider_uid = $1 AND waiting = '' AND told_at < $2")
        .bind(provider_uid)
        .bind(before)
        .execute(connection)
        .await?;
    Ok(())
}

/// Drops messages that have waited since before a time. Returns their number.
pub async fn give_up_threads(connection: &mut Connection, provider_uid: &str, before: i64) -> Result<u64, StoreError> {
    let update =
        sqlx::query("UPDATE threads SET waiting = '' WHERE provider_uid = $1 AND waiting <> '' AND since < $2");
    Ok(update
        .bind(provider_uid)
        .bind(before)
        .execute(connection)
        .await?
        .rows_affected())
}
