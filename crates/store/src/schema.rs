//! The tables as their migrations define them, for copies of a whole store. Parsed from the migrations' text, so that
//! no table is forgotten.

use crate::{engine::Engine, migrations::HISTORY};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub name: String,
    pub columns: Vec<Column>,
    /// Names of the primary key's columns.
    pub key: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub name: String,
    pub kind: ColumnKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// SMALLINT and BIGINT.
    Number,
    Text,
    Bytes,
}

/// Number of migrations that this program knows.
pub(crate) fn newest() -> usize {
    HISTORY.len()
}

/// The tables after so many migrations, in the order of their creation.
pub(crate) fn tables(migrations: usize) -> Vec<Table> {
    let text: String = HISTORY
        .iter()
        .take(migrations)
        .map(|text| text.of(Engine::Sqlite))
        .collect();
    let code: String = text
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut tables: Vec<Table> = Vec::new();
    for statement in code.split(';').map(str::trim) {
        if let Some(table) = parse_table(statement) {
            tables.push(table);
        } else if let Some((name, column)) = parse_addition(statement)
            && let Some(table) = tables.iter_mut().find(|table| table.name == name)
        {
            table.columns.push(column);
        }
    }
    tables
}

/// Parses `ALTER TABLE name ADD COLUMN column TYPE …`.
fn parse_addition(statement: &str) -> Option<(&str, Column)> {
    let words: Vec<&str> = statement.split_whitespace().collect();
    let ["ALTER", "TABLE", table, "ADD", "COLUMN", name, kind, ..] = words[..] else {
        return None;
    };
    Some((
        table,
        Column {
            name: name.to_owned(),
            kind: read_kind(kind),
        },
    ))
}

fn read_kind(word: &str) -> ColumnKind {
    match word {
        "TEXT" => ColumnKind::Text,
        "BLOB" => ColumnKind::Bytes,
        _ => ColumnKind::Number,
    }
}

/// Parses `CREATE TABLE name (column TYPE …, PRIMARY KEY (…))`. It only reads our own text; a test compares the result
/// with SQLite's.
fn parse_table(statement: &str) -> Option<Table> {
    let (name, rest) = statement.strip_prefix("CREATE TABLE ")?.split_once('(')?;
    let body = rest.strip_suffix(')')?;
    let mut table = Table {
        name: name.trim().to_owned(),
        columns: Vec::new(),
        key: Vec::new(),
    };
    for part in split_outside_parentheses(body) {
        let words: Vec<&str> = part.split_whitespace().collect();
        let [name, kind, ..] = words[..] else { continue };
        if (name, kind) == ("PRIMARY", "KEY") {
            let list = part
                .split_once('(')
                .and_then(|(_, list)| list.split_once(')'))
                .map_or("", |(list, _)| list);
            table.key = list.split(',').map(|name| name.trim().to_owned()).collect();
            continue;
        }
        let kind = read_kind(kind);
        if part.contains("PRIMARY KEY") {
            table.key = vec![name.to_owned()];
        }
        table.columns.push(Column {
            name: name.to_owned(),
            kind,
        });
    }
    Some(table)
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, Row as _};

    use super::*;
    use crate::{Location, engine::Database, migrations::run_migrations};

    #[tokio::test]
    async fn the_tables_are_those_that_the_migrations_make() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.db");
        std::fs::write(&path, "").unwrap();
        let database = Database {
            location: Location::from(&*path),
            patience: std::time::Duration::from_secs(5),
        };
        let mut connection = database.connect_writer().await.unwrap();
        run_migrations(&mut connection, Engine::Sqlite, newest()).await.unwrap();
        let names: Vec<String> = sqlx::query_scalar(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE '_sqlx%' \
             ORDER BY rowid",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        let tables = tables(newest());
        assert_eq!(
            tables.iter().map(|table| &table.name).collect::<Vec<_>>(),
            names.iter().collect::<Vec<_>>()
        );
        for table in tables {
            let info = format!(
                "SELECT name, type, pk FROM pragma_table_info('{}') ORDER BY cid",
                table.name
            );
            let rows = sqlx::query(sqlx::AssertSqlSafe(info))
                .fetch_all(&mut connection)
                .await
                .unwrap();
            let mut key: Vec<(i64, String)> = Vec::new();
            let found: Vec<Column> = rows
                .iter()
                .map(|row| {
                    let (name, kind, pk): (String, String, i64) = (row.get(0), row.get(1), row.get(2));
                    if pk > 0 {
                        key.push((pk, name.clone()));
                    }
                    let kind = match kind.as_str() {
                        "TEXT" => ColumnKind::Text,
                        "BLOB" => ColumnKind::Bytes,
                        "SMALLINT" | "BIGINT" => ColumnKind::Number,
                        other => panic!("{}.{name} is a {other}", table.name),
                    };
                    Column { name, kind }
                })
                .collect();
            assert_eq!(table.columns, found, "{}", table.name);
            key.sort();
            assert_eq!(
                table.key,
                key.into_iter().map(|(_, name)| name).collect::<Vec<_>>(),
                "{}",
                table.name
            );
        }
        connection.close().await.unwrap();
    }
}
