//! Rows of one table on their way from one place to another, in the order of its columns.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize, de, ser};
use sqlx::{AssertSqlSafe, Row as _, query::Query};

use crate::{
    engine::{Connection, Row},
    rows::{chunks, parameters},
    schema::{ColumnKind, Table},
};

/// Rows that are read or written at a time.
const ROWS: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// As JSON: null, a number or a string. Bytes are base64 after `b:`; a text that begins with `b:` or `t:` is written
/// after `t:`.
impl Serialize for Cell {
    fn serialize<S: ser::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::Text(text) if text.starts_with("b:") || text.starts_with("t:") => {
                serializer.serialize_str(&format!("t:{text}"))
            }
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_str(&format!("b:{}", BASE64.encode(bytes))),
        }
    }
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Plain {
            Null(()),
            Number(i64),
            Text(String),
        }
        Ok(match Plain::deserialize(deserializer)? {
            Plain::Null(()) => Self::Null,
            Plain::Number(number) => Self::Number(number),
            Plain::Text(text) => match (text.strip_prefix("b:"), text.strip_prefix("t:")) {
                (Some(bytes), _) => Self::Bytes(BASE64.decode(bytes).map_err(de::Error::custom)?),
                (_, Some(rest)) => Self::Text(rest.to_owned()),
                _ => Self::Text(text),
            },
        })
    }
}

/// All rows of one table, page by page, in the order of its key.
pub(crate) struct Pages<'a> {
    table: &'a Table,
    /// The last row that was returned.
    after: Option<Vec<Cell>>,
    is_at_end: bool,
}

impl<'a> Pages<'a> {
    pub fn of(table: &'a Table) -> Self {
        Self {
            table,
            after: None,
            is_at_end: false,
        }
    }

    /// Returns the next rows. A table without rows returns one empty page, so that it is counted.
    pub async fn next(&mut self, connection: &mut Connection) -> Result<Option<Vec<Vec<Cell>>>, sqlx::Error> {
        if self.is_at_end {
            return Ok(None);
        }
        let rows = self.read(connection).await?;
        self.is_at_end = rows.len() < ROWS;
        self.after = rows.last().cloned();
        Ok(Some(rows))
    }

    async fn read(&self, connection: &mut Connection) -> Result<Vec<Vec<Cell>>, sqlx::Error> {
        let Table { name, columns, key } = self.table;
        let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
        let order = key.join(", ");
        let condition = match self.after {
            None => String::new(),
            Some(_) => format!("WHERE ({order}) > {}", parameters(1, key.len())),
        };
        let sql = format!(
            "SELECT {} FROM {name} {condition} ORDER BY {order} LIMIT {ROWS}",
            names.join(", ")
        );
        let mut select = sqlx::query(AssertSqlSafe(sql));
        if let Some(row) = &self.after {
            let cells = key
                .iter()
                .filter_map(|part| row.iter().zip(columns).find(|(_, column)| column.name == *part));
            for (cell, column) in cells {
                select = bind(select, cell.clone(), column.kind);
            }
        }
        let rows = select.fetch_all(connection).await?;
        rows.iter().map(|row| cells(row, self.table)).collect()
    }
}

fn cells(row: &Row, table: &Table) -> Result<Vec<Cell>, sqlx::Error> {
    let cell = |(at, kind): (usize, ColumnKind)| {
        Ok(match kind {
            ColumnKind::Number => row.try_get::<Option<i64>, _>(at)?.map_or(Cell::Null, Cell::Number),
            ColumnKind::Text => row.try_get::<Option<String>, _>(at)?.map_or(Cell::Null, Cell::Text),
            ColumnKind::Bytes => row.try_get::<Option<Vec<u8>>, _>(at)?.map_or(Cell::Null, Cell::Bytes),
        })
    };
    table
        .columns
        .iter()
        .map(|column| column.kind)
        .enumerate()
        .map(cell)
        .collect()
}

/// Writes rows. Each must have a cell of the right kind for every column of the table.
pub(crate) async fn write_rows(
    connection: &mut Connection,
    table: &Table,
    rows: Vec<Vec<Cell>>,
) -> Result<(), sqlx::Error> {
    let columns: Vec<&str> = table.columns.iter().map(|column| &*column.name).collect();
    for some in chunks(&rows) {
        let values = parameters(some.len(), columns.len());
        let sql = format!("INSERT INTO {} ({}) VALUES {values}", table.name, columns.join(", "));
        let mut insert = sqlx::query(AssertSqlSafe(sql));
        for row in some {
            for (cell, column) in row.iter().zip(&table.columns) {
                insert = bind(insert, cell.clone(), column.kind);
            }
        }
        insert.execute(&mut *connection).await?;
    }
    Ok(())
}

type AnyQuery<'q> = Query<'q, sqlx::Any, sqlx::any::AnyArguments>;

/// PostgreSQL needs the type of a null.
fn bind(query: AnyQuery<'_>, cell: Cell, kind: ColumnKind) -> AnyQuery<'_> {
    match (cell, kind) {
        (Cell::Number(number), _) => query.bind(number),
        (Cell::Text(text), _) => query.bind(text),
        (Cell::Bytes(bytes), _) => query.bind(bytes),
        (Cell::Null, ColumnKind::Number) => query.bind(None::<i64>),
        (Cell::Null, ColumnKind::Text) => query.bind(None::<String>),
        (Cell::Null, ColumnKind::Bytes) => query.bind(None::<Vec<u8>>),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_read_as_it_was_written() {
        for (cell, json) in [
            (Cell::Null, "null"),
            (Cell::Number(i64::MIN), "-9223372036854775808"),
            (Cell::Text("b:x".to_owned()), "\"t:b:x\""),
            (Cell::Text("plain\n".to_owned()), "\"plain\\n\""),
            (Cell::Bytes(vec![0, 255]), "\"b:AP8=\""),
        ] {
            assert_eq!(serde_json::to_string(&cell).unwrap(), json);
            assert_eq!(serde_json::from_str::<Cell>(json).unwrap(), cell);
        }
    }
}
