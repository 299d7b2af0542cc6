//! Write access to a PostgreSQL database: a lock of the server that ends with the writing connection, so a process that
//! loses the lock also loses its connection for writing.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    StoreError,
    engine::{Connection, Database, Engine},
    read,
    settings::Settings,
};

/// Which other processes may use the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// None: a second one is refused. For hubs that keep state in memory that others would change.
    Alone,
    /// Other stores opened in this mode, on one database of a PostgreSQL server.
    Replicas,
}

/// Key of PostgreSQL's advisory lock, which is per database: `farwater` as bytes.
const LOCK: i64 = i64::from_be_bytes(*b"farwater");

/// Meta entry with the last exclusive owner of the database.
pub(crate) const OWNER: &str = "owner";

/// A connection that just ended may still hold its lock until the server notices.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// A writing connection. None: another process has the database.
pub(crate) async fn take(database: &Database, sharing: Sharing) -> Result<Option<Connection>, StoreError> {
    let mut connection = database.connect_writer().await?;
    if database.engine() == Engine::Sqlite {
        return Ok(Some(connection));
    }
    let lock = match sharing {
        Sharing::Alone => "SELECT CASE WHEN pg_try_advisory_lock($1) THEN 1 ELSE 0 END",
        Sharing::Replicas => "SELECT CASE WHEN pg_try_advisory_lock_shared($1) THEN 1 ELSE 0 END",
    };
    let start = Instant::now();
    loop {
        let taken = database.answered(async {
            let taken: i32 = sqlx::query_scalar(lock).bind(LOCK).fetch_one(&mut connection).await?;
            Ok(taken == 1)
        });
        if taken.await? {
            return Ok(Some(connection));
        }
        if start.elapsed() > PATIENCE {
            return Ok(None);
        }
        sleep(PAUSE).await;
    }
}

/// Records this store as the owner of the database.
pub(crate) async fn own(connection: &mut Connection, settings: &Settings) -> Result<(), StoreError> {
    if settings.is_owned() {
        read::save_meta(connection, OWNER, &settings.owner).await?;
    }
    Ok(())
}

/// A new writing connection after the last one was lost.
pub(crate) async fn retake(settings: &Settings) -> Result<Connection, StoreError> {
    let database = &settings.database;
    let Some(mut connection) = take(database, settings.sharing).await? else {
        let mut look = database.connect_writer().await?;
        check_owner(&mut look, settings).await?;
        let held = std::io::Error::other("an earlier connection still holds the lock of the database");
        return Err(StoreError::from(sqlx::Error::Io(held)));
    };
    check_owner(&mut connection, settings).await?;
    Ok(connection)
}

/// Checks that no other process owned the database between the loss of the lock and its return; otherwise the state in
/// memory would be wrong.
async fn check_owner(connection: &mut Connection, settings: &Settings) -> Result<(), StoreError> {
    if !settings.is_owned() {
        return Ok(());
    }
    let owner = settings
        .database
        .answered(async { Ok(read::load_meta(connection, OWNER).await?) })
        .await?;
    if owner.as_deref() != Some(&*settings.owner) {
        return Err(StoreError::Taken {
            location: settings.database.location.clone(),
        });
    }
    Ok(())
}
