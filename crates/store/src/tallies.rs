//! Number of resources by state, updated by the transactions that change them. Counting a million rows on request would
//! take a second; this reads a few rows, and writes only when a resource changes its state.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Row as _};

use crate::{
    Kind,
    engine::{Connection, Engine},
    read,
    rows::parameters,
};

/// The states to count.
#[derive(Clone, Copy, Debug)]
pub struct Classes {
    /// Version of the rules. Change it when the meaning of a state changes: then the next start counts everything
    /// again.
    pub version: &'static str,
    /// The counted kinds; sealed kinds are not allowed.
    pub kinds: &'static [&'static str],
    /// The states of a resource, from its kind and its status as JSON. It may have several. The set of states must be
    /// small.
    pub states: fn(&str, Option<&[u8]>) -> Vec<&'static str>,
}

/// Number of resources of a kind in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    pub kind: String,
    pub state: String,
    pub number: u64,
}

/// Meta entry with the version of [`Classes`] by which the numbers were counted.
const TALLIED: &str = "tallied";

/// Rows that are read at a time when everything is counted.
const ROWS: i64 = 1_000;

/// Changes of the numbers by writes.
pub(crate) struct TallyChanges {
    classes: Option<Classes>,
    changes: BTreeMap<(&'static str, &'static str), i64>,
}

impl TallyChanges {
    pub(crate) fn new(classes: Option<Classes>) -> Self {
        Self {
            classes,
            changes: BTreeMap::new(),
        }
    }

    /// Adds `number` resources with this status; a negative number subtracts.
    pub(crate) fn add(&mut self, kind: &Kind, status: Option<&[u8]>, number: i64) {
        let Some(classes) = &self.classes else { return };
        let Some(kind) = classes.kinds.iter().find(|known| **known == kind.as_str()) else {
            return;
        };
        for state in (classes.states)(kind, status) {
            *self.changes.entry((*kind, state)).or_default() += number;
        }
    }

    pub(crate) async fn save(self, connection: &mut Connection) -> Result<(), sqlx::Error> {
        let changes: Vec<_> = self.changes.into_iter().filter(|(_, number)| *number != 0).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "INSERT INTO tallies (kind, state, number) VALUES {} \
             ON CONFLICT (kind, state) DO UPDATE SET number = tallies.number + excluded.number",
            parameters(changes.len(), 3)
        );
        let mut upsert = sqlx::query(AssertSqlSafe(sql));
        for ((kind, state), number) in changes {
            upsert = upsert.bind(kind).bind(state).bind(number);
        }
        upsert.execute(connection).await?;
        Ok(())
    }
}

pub(crate) async fn load(connection: &mut Connection) -> Result<Vec<Tally>, sqlx::Error> {
    let rows = sqlx::query("SELECT kind, state, number FROM tallies ORDER BY kind, state")
        .fetch_all(connection)
        .await?;
    let tally = |row: &crate::engine::Row| {
        let number: i64 = row.try_get("number")?;
        Ok(Tally {
            kind: row.try_get("kind")?,
            state: row.try_get("state")?,
            number: number.unsigned_abs(),
        })
    };
    rows.iter().map(tally).collect()
}

/// Counts everything, unless that was done by the same rules. Other writers wait meanwhile.
pub(crate) async fn ensure(connection: &mut Connection, engine: Engine, classes: &Classes) -> Result<(), sqlx::Error> {
    if read::load_meta(connection, TALLIED).await?.as_deref() == Some(classes.version) {
        return Ok(());
    }
    sqlx::raw_sql(engine.begin()).execute(&mut *connection).await?;
    let counted = count_all(connection, classes).await;
    let end = if counted.is_ok() { "COMMIT" } else { "ROLLBACK" };
    sqlx::raw_sql(end).execute(connection).await?;
    counted
}

async fn count_all(connection: &mut Connection, classes: &Classes) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM tallies").execute(&mut *connection).await?;
    let mut all = TallyChanges::new(Some(*classes));
    for kind in classes.kinds {
        let (mut namespace, mut name) = (String::new(), String::new());
        loop {
            let rows = sqlx::query(
                "SELECT namespace, name, status FROM resources WHERE kind = $1 AND (namespace, name) > ($2, $3) \
                 ORDER BY namespace, name LIMIT $4",
            )
            .bind(*kind)
            .bind(&namespace)
            .bind(&name)
            .bind(ROWS)
            .fetch_all(&mut *connection)
            .await?;
            for row in &rows {
                all.add(
                    &Kind::from(*kind),
                    row.try_get::<Option<Vec<u8>>, _>("status")?.as_deref(),
                    1,
                );
            }
            let Some(last) = rows.last() else { break };
            (namespace, name) = (last.try_get("namespace")?, last.try_get("name")?);
            if (rows.len() as i64) < ROWS {
                break;
            }
        }
    }

    all.save(connection).await?;
    read::save_meta(connection, TALLIED, classes.version).await
}
