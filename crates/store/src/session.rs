//! Who may write to a PostgreSQL database: locks of the server that end with the connection that writes, so that whoever
//! loses the lock has lost the way to write with it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    StoreError,
    engine::{Connection, Database, Engine},
    open::Settings,
    read,
};

/// Who else may use the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody; a second one is refused. For whoever keeps in memory what others would change.
    Alone,
    /// Other stores that were opened so, of one database of a PostgreSQL server.
    Replicas,
}

/// Of PostgreSQL's advisory locks, which are the database's own: `farwater` as bytes.
const LOCK: i64 = i64::from_be_bytes(*b"farwater");

/// The meta entry that names the last one who had the database alone.
pub(crate) const OWNER: &str = "owner";

/// A connection that ended some moments ago may still hold its lock: until the server has noticed.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// A connection that may write; none while somebody else has the database.
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

/// Says whose the database is from now on.
pub(crate) async fn own(connection: &mut Connection, settings: &Settings) -> Result<(), StoreError> {
    if settings.is_owned() {
        read::save_meta(connection, OWNER, &settings.owner).await?;
    }
    Ok(())
}

/// The way to write again, after its connection was lost.
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

/// Between the loss of a lock and its return another one may have had the database, and then what this one remembers is
/// wrong.
async fn check_owner(connection: &mut Connection, settings: &Settings) -> Result<(), StoreError> {
    if !settings.is_owned() {
        return Ok(());
    }
    let owner = settings.database.answered(async { Ok(read::load_meta(connection, OWNER).await?) }).await?;
    if owner.as_deref() != Some(&*settings.owner) {
        return Err(StoreError::Taken { location: settings.database.location.clone() });
    }
    Ok(())
}
