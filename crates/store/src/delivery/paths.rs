//! The paths of its sources that concern a service. While the rows of a service exist, the served revision of its
//! source gives the same candidate as when the rows were written: a transaction that moves a source also removes the
//! rows that the move concerns.

use sqlx::AssertSqlSafe;

use crate::{
    Connection, StoreError,
    rows::{chunks, parameters},
};

/// The whole source: every change of it concerns the service.
const ALL: &str = "";

/// A path that a service's candidate is made from. Folders have no trailing slash; the source's root is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePath {
    pub source_uid: String,
    pub path: String,
}

from_row!(ServicePath, [source_uid, path]);

impl ServicePath {
    pub fn all(source_uid: &str) -> Self {
        Self {
            source_uid: source_uid.to_owned(),
            path: ALL.to_owned(),
        }
    }

    pub fn is_all(&self) -> bool {
        self.path == ALL
    }
}

/// Whether no part of the source that the candidate was made from has changed since.
pub fn is_untouched(paths: &[ServicePath]) -> bool {
    !paths.is_empty() && !paths.iter().any(ServicePath::is_all)
}

/// The paths of a service, sorted.
pub async fn paths_of_service(connection: &mut Connection, service_uid: &str) -> Result<Vec<ServicePath>, StoreError> {
    let sql = "SELECT source_uid, path FROM service_paths WHERE service_uid = $1 ORDER BY source_uid, path";
    Ok(sqlx::query_as(sql).bind(service_uid).fetch_all(connection).await?)
}

pub async fn save_service_paths(
    connection: &mut Connection,
    service_uid: &str,
    paths: &[ServicePath],
) -> Result<(), StoreError> {
    delete_service_paths(connection, service_uid).await?;
    for some in chunks(paths) {
        let sql = format!(
            "INSERT INTO service_paths (service_uid, source_uid, path) VALUES {} ON CONFLICT DO NOTHING",
            parameters(some.len(), 3)
        );
        let insert = some.iter().fold(sqlx::query(AssertSqlSafe(sql)), |insert, path| {
            insert
                .bind(service_uid.to_owned())
                .bind(&path.source_uid)
                .bind(&path.path)
        });
        insert.execute(&mut *connection).await?;
    }
    Ok(())
}

pub(super) async fn delete_service_paths(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM service_paths WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Records that anything in a source may have changed.
pub async fn touch_source(connection: &mut Connection, source_uid: &str) -> Result<(), StoreError> {
    for sql in [
        "INSERT INTO service_paths (service_uid, source_uid, path) SELECT DISTINCT service_uid, source_uid, '' \
         FROM service_paths WHERE source_uid = $1 ON CONFLICT DO NOTHING",
        "DELETE FROM service_paths WHERE source_uid = $1 AND path <> ''",
    ] {
        sqlx::query(sql).bind(source_uid).execute(&mut *connection).await?;
    }
    Ok(())
}

/// uids of the services that a change of these files and folders of a source concerns, sorted. None: of all services of
/// the source.
pub async fn services_concerned(
    connection: &mut Connection,
    source_uid: &str,
    changed: Option<&[String]>,
) -> Result<Vec<String>, StoreError> {
    let Some(changed) = changed else {
        let sql = "SELECT DISTINCT service_uid FROM service_paths WHERE source_uid = $1 ORDER BY service_uid";
        return Ok(sqlx::query_scalar(sql).bind(source_uid).fetch_all(connection).await?);
    };

    let mut concerned = Vec::new();
    for some in chunks(&around(changed)) {
        let places: Vec<String> = (2..some.len() + 2).map(|place| format!("${place}")).collect();
        let sql = format!(
            "SELECT DISTINCT service_uid FROM service_paths WHERE source_uid = $1 AND path IN ({})",
            places.join(", ")
        );
        let select = sqlx::query_scalar(AssertSqlSafe(sql)).bind(source_uid);
        let found: Vec<String> = some
            .iter()
            .fold(select, |select, path| select.bind(*path))
            .fetch_all(&mut *connection)
            .await?;
        concerned.extend(found);
    }
    for path in changed {
        // Paths inside it. The character after a slash is a zero.
        let found: Vec<String> = sqlx::query_scalar(
            "SELECT DISTINCT service_uid FROM service_paths WHERE source_uid = $1 AND path > $2 AND path < $3",
        )
        .bind(source_uid)
        .bind(format!("{path}/"))
        .bind(format!("{path}0"))
        .fetch_all(&mut *connection)
        .await?;
        concerned.extend(found);
    }

    concerned.sort_unstable();
    concerned.dedup();
    Ok(concerned)
}

/// Records changed paths of a source: files, and folders that were added or removed. Returns (namespace, name) of the
/// services concerned.
pub async fn touch_paths(
    connection: &mut Connection,
    source_uid: &str,
    changed: &[String],
) -> Result<Vec<(String, String)>, StoreError> {
    let mut names = Vec::new();
    for service_uid in services_concerned(connection, source_uid, Some(changed)).await? {
        touch_service(connection, &service_uid, source_uid).await?;
        let name: Option<(String, String)> =
            sqlx::query_as("SELECT namespace, name FROM assignments WHERE service_uid = $1")
                .bind(service_uid)
                .fetch_optional(&mut *connection)
                .await?;
        names.extend(name);
    }
    Ok(names)
}

/// Records that any change of a source may concern a service.
pub async fn touch_service(connection: &mut Connection, service_uid: &str, source_uid: &str) -> Result<(), StoreError> {
    for sql in [
        "INSERT INTO service_paths (service_uid, source_uid, path) VALUES ($1, $2, '') ON CONFLICT DO NOTHING",
        "DELETE FROM service_paths WHERE service_uid = $1 AND source_uid = $2 AND path <> ''",
    ] {
        sqlx::query(sql)
            .bind(service_uid)
            .bind(source_uid)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// These paths and the folders that contain them, each once, beginning with the source's root.
fn around(changed: &[String]) -> Vec<&str> {
    let folders = |path: &'_ String| -> Vec<usize> { path.match_indices('/').map(|(at, _)| at).collect() };
    let mut all: Vec<&str> = changed
        .iter()
        .flat_map(|path| folders(path).into_iter().map(|at| &path[..at]).chain([path.as_str()]))
        .collect();
    all.push(ALL);
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_lies_in_all_folders_above_it() {
        let changed = ["a/b/c".to_owned(), "a/d".to_owned()];
        assert_eq!(around(&changed), ["", "a", "a/b", "a/b/c", "a/d"]);
        assert_eq!(around(&[]), [""]);
    }
}
