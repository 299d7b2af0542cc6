//! Checks row by row that a store is as this program writes it, without changing anything. A hub may run meanwhile.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::{
    Key, Kind, Location, OpenError, Operation, Resource, StoreError,
    engine::{Connection, Engine},
    read::{self, stored_parts},
    row::{FromParts, labels_of_object},
    seal::{Master, Sealer, sealed_kinds},
    seal_keys,
    visit::Visit,
};

/// Rows that are read at a time.
const ROWS: i64 = 500;
/// Most findings that are listed; of the others only the number is given.
const FINDINGS: usize = 1_000;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A reference to a deleted row. A running hub leaves such rows for moments, and an old one may have left some for
    /// good.
    Leftover,
    /// A row that this program never writes: restore a backup, or ask for support.
    Damage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub table: &'static str,
    /// Identifies the row.
    pub row: String,
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.table, self.row, self.problem)
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Number of findings that are not listed.
    pub more: u64,
    /// Whether any finding, listed or not, is damage.
    pub is_damaged: bool,
    pub resources: u64,
    pub changes: u64,
}

impl Report {
    fn add(&mut self, severity: Severity, table: &'static str, row: impl fmt::Display, problem: impl Into<String>) {
        self.is_damaged |= severity == Severity::Damage;
        if self.findings.len() == FINDINGS {
            self.more += 1;
            return;
        }
        self.findings.push(Finding {
            severity,
            table,
            row: row.to_string(),
            problem: problem.into(),
        });
    }

    /// The listed findings that are damage.
    pub fn damage(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.severity == Severity::Damage)
    }

    fn damaged(&mut self, table: &'static str, row: impl fmt::Display, problem: impl Into<String>) {
        self.add(Severity::Damage, table, row, problem);
    }
}

/// Checks the store at `location` as of one moment, with the key of its sealed rows.
pub async fn fsck(location: &Location, seal_key: &[u8; 32]) -> Result<Report, OpenError> {
    let mut visit = Visit::of_newest(location).await?;
    let snapshot = visit.connection().begin().await;
    let mut snapshot = snapshot.map_err(|error| StoreError::from(error).at(location))?;
    let report = check(&mut snapshot, location, seal_key).await?;
    drop(snapshot);
    visit.end().await;
    Ok(report)
}

/// Whether this key opens the sealed rows at `location`.
pub async fn check_key(location: &Location, seal_key: &[u8; 32]) -> Result<(), OpenError> {
    let mut visit = Visit::of(location).await?;
    let checked = check_seal(visit.connection(), &Master::new(seal_key), location).await;
    visit.end().await;
    checked
}

/// Like [`fsck`], for the tables that a connection sees, which must have the newest schema.
pub(crate) async fn check(
    connection: &mut Connection,
    location: &Location,
    seal_key: &[u8; 32],
) -> Result<Report, OpenError> {
    let master = Master::new(seal_key);
    check_seal(connection, &master, location).await?;
    let keys = seal_keys::load(connection, &master)
        .await
        .map_err(|error| StoreError::from(error).at(location))?;
    let keys = keys.ok_or_else(|| OpenError::WrongKey {
        location: location.clone(),
    })?;
    let sealer = Sealer::new(master, keys, sealed_kinds());
    let mut check = Check {
        sealer,
        counter: 0,
        report: Report::default(),
        services: HashSet::new(),
        clusters: HashSet::new(),
    };
    check
        .all(connection, Engine::of(location))
        .await
        .map_err(|error| error.at(location))?;
    Ok(check.report)
}

async fn check_seal(connection: &mut Connection, master: &Master, location: &Location) -> Result<(), OpenError> {
    let is_ours = seal_keys::is_master(connection, master).await;
    let is_ours = is_ours.map_err(|error| StoreError::from(error).at(location))?;
    is_ours.then_some(()).ok_or_else(|| OpenError::WrongKey {
        location: location.clone(),
    })
}

struct Check {
    sealer: Sealer,
    counter: u64,
    report: Report,
    /// uids that other rows may refer to.
    services: HashSet<String>,
    clusters: HashSet<String>,
}

impl Check {
    async fn all(&mut self, connection: &mut Connection, engine: Engine) -> Result<(), StoreError> {
        if engine == Engine::Sqlite {
            self.file(connection).await?;
        }
        self.counter = read::load_counter(connection).await?;
        self.resources(connection).await?;
        self.changes(connection).await?;
        for id in seal_keys::check_kept(connection, &self.sealer).await? {
            self.report
                .damaged("kept_values", id, "it was sealed with another key or under another id");
        }
        self.references(connection).await?;
        Ok(())
    }

    /// Checks SQLite's own structures.
    async fn file(&mut self, connection: &mut Connection) -> Result<(), StoreError> {
        let lines: Vec<String> = sqlx::query_scalar("PRAGMA quick_check").fetch_all(connection).await?;
        for line in lines.into_iter().filter(|line| line != "ok") {
            self.report.damaged("file", "", line);
        }
        Ok(())
    }

    async fn resources(&mut self, connection: &mut Connection) -> Result<(), StoreError> {
        let (mut kind, mut namespace, mut name) = (String::new(), String::new(), String::new());
        loop {
            let rows = sqlx::query(
                "SELECT kind, namespace, name, uid, version, sealed, labels, body, status FROM resources \
                 WHERE (kind, namespace, name) > ($1, $2, $3) ORDER BY kind, namespace, name LIMIT $4",
            )
            .bind(&kind)
            .bind(&namespace)
            .bind(&name)
            .bind(ROWS)
            .fetch_all(&mut *connection)
            .await?;
            for row in &rows {
                (kind, namespace, name) = (row.try_get("kind")?, row.try_get("namespace")?, row.try_get("name")?);
                let key = Key {
                    kind: Kind::from(&*kind),
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                self.report.resources += 1;
                if let Err(problem) = self.resource(row, &key) {
                    self.report.damaged("resources", shown(&key), problem);
                }
            }
            if (rows.len() as i64) < ROWS {
                return Ok(());
            }
        }
    }

    fn resource(&mut self, row: &crate::engine::Row, key: &Key) -> Result<(), String> {
        let stored = stored_parts(row).map_err(|error| error.to_string())?;
        if stored.version > self.counter {
            return Err(format!(
                "its version {} is above the counter, {}",
                stored.version, self.counter
            ));
        }
        if self.sealer.seals(&key.kind) && stored.sealed == 0 {
            return Err("it is not sealed".to_owned());
        }

        let (uid, sealed, labels) = (stored.uid.clone(), stored.sealed, stored.labels.clone());
        let plain = stored.open(key, &self.sealer).map_err(problem)?;
        let resource = Resource::from_parts(plain, key.clone()).map_err(problem)?;
        let metadata = &resource.object["metadata"];
        let is = |field: &str, expected: &str| metadata[field].as_str().unwrap_or_default() == expected;
        if !is("name", &key.name) || !is("namespace", &key.namespace) || !is("uid", &uid) {
            return Err("its object has another name, namespace or uid".to_owned());
        }
        let column: Result<crate::row::Labels, _> = serde_json::from_str(&labels);
        let expected = if sealed != 0 {
            Default::default()
        } else {
            labels_of_object(&resource.object)
        };
        if !column.is_ok_and(|column| column == expected) {
            return Err("its column of labels is not what its object says".to_owned());
        }

        match key.kind.as_str() {
            "servicedeployments.farwater.dev" => drop(self.services.insert(uid)),
            "clusters.farwater.dev" => drop(self.clusters.insert(uid)),
            _ => {}
        }
        Ok(())
    }

    /// Checks the log: all rows are readable, newer than the last compaction, not above the counter, and the last entry
    /// of each resource matches its row.
    async fn changes(&mut self, connection: &mut Connection) -> Result<(), StoreError> {
        let compacted = read::load_compacted(connection).await?;
        if compacted > self.counter {
            self.report.damaged(
                "meta",
                "compacted",
                format!("{compacted} is above the counter, {}", self.counter),
            );
        }

        let mut last: HashMap<Key, (u64, Operation)> = HashMap::new();
        let mut seen = 0_u64;
        loop {
            let rows = sqlx::query(
                "SELECT version, kind, namespace, name, uid, operation, sealed, old_labels, body, status FROM changes \
                 WHERE version > $1 ORDER BY version LIMIT $2",
            )
            .bind(seen as i64)
            .bind(ROWS)
            .fetch_all(&mut *connection)
            .await?;
            for row in &rows {
                let version = read::version(row, "version")?;
                self.report.changes += 1;
                if version > self.counter || version <= compacted {
                    let bounds = format!("the log is of the versions from {} to {}", compacted + 1, self.counter);
                    self.report.damaged("changes", version, bounds);
                }
                match self.change(row) {
                    Ok((key, operation)) => drop(last.insert(key, (version, operation))),
                    Err(problem) => self.report.damaged("changes", version, problem),
                }
                seen = version;
            }
            if (rows.len() as i64) < ROWS {
                break;
            }
        }

        for (key, (version, operation)) in last {
            let found = read::load_row(connection, &key).await?.map(|row| row.version);
            let expected = (operation != Operation::Deleted).then_some(version);
            if found != expected {
                let problem = format!("the log's last version of it is {expected:?}, the row's is {found:?}");
                self.report.damaged("resources", shown(&key), problem);
            }
        }
        Ok(())
    }

    fn change(&self, row: &crate::engine::Row) -> Result<(Key, Operation), String> {
        let text = |column: &str| row.try_get::<String, _>(column).map_err(|error| error.to_string());
        let key = Key {
            kind: Kind::from(&*text("kind")?),
            namespace: text("namespace")?,
            name: text("name")?,
        };
        // Opens and parses the whole row.
        let committed = read::committed(row, &self.sealer).map_err(problem)?;
        Ok((key, committed.event.operation))
    }

    /// Finds rows of the delivery tables whose service or cluster is gone.
    async fn references(&mut self, connection: &mut Connection) -> Result<(), StoreError> {
        const OF_SERVICES: [&str; 12] = [
            "assignments",
            "reports",
            "service_secrets",
            "service_sources",
            "service_paths",
            "service_dependencies",
            "history",
            "hook_runs",
            "prune_holds",
            "held_services",
            "service_parameters",
            "parameter_keys",
        ];
        const OF_CLUSTERS: [&str; 10] = [
            "assignments",
            "desired",
            "desired_bundles",
            "dirty",
            "agents",
            "agent_keys",
            "join_tokens",
            "heartbeats",
            "reports",
            "released_services",
        ];

        for table in OF_SERVICES {
            self.refer(connection, table, "service_uid", |check, uid| {
                check.services.contains(uid)
            })
            .await?;
        }
        for table in OF_CLUSTERS {
            // A service whose cluster reference has no target has no uid here.
            let exists = |check: &Self, uid: &str| uid.is_empty() || check.clusters.contains(uid);
            self.refer(connection, table, "cluster_uid", exists).await?;
        }
        Ok(())
    }

    async fn refer(
        &mut self,
        connection: &mut Connection,
        table: &'static str,
        column: &str,
        exists: impl Fn(&Self, &str) -> bool,
    ) -> Result<(), StoreError> {
        let sql = format!("SELECT DISTINCT {column} FROM {table} WHERE {column} > $1 ORDER BY {column} LIMIT {ROWS}");
        let mut last = String::new();
        loop {
            let select = sqlx::query_scalar(AssertSqlSafe(&*sql)).bind(&last);
            let uids: Vec<String> = select.fetch_all(&mut *connection).await?;
            for uid in &uids {
                if !exists(self, uid) {
                    let what = if column == "service_uid" { "service" } else { "cluster" };
                    self.report.add(
                        Severity::Leftover,
                        table,
                        uid,
                        format!("there is no {what} of this uid"),
                    );
                }
            }
            match uids.last() {
                Some(uid) if uids.len() as i64 == ROWS => last.clone_from(uid),
                _ => return Ok(()),
            }
        }
    }
}

fn shown(key: &Key) -> String {
    format!("{} {}/{}", key.kind, key.namespace, key.name)
}

fn problem(error: StoreError) -> String {
    match error {
        StoreError::Row { problem, .. } => problem,
        other => other.to_string(),
    }
}
