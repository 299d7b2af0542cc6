//! Many rows in one statement: each statement costs a hand-over to the connection's thread, or a round trip to the
//! server.

use std::fmt::Write as _;

use sqlx::{Row as _, ValueRef as _};

use crate::engine::Row;

/// A row of one table inside a statement's row.
pub(crate) trait Part: Sized {
    const COLUMNS: &'static [&'static str];

    /// Reads it from columns that begin at `first`.
    fn read(row: &Row, first: usize) -> Result<Self, sqlx::Error>;
}

/// Reads the parts of a row one after the other.
pub(crate) struct Parts<'r> {
    row: &'r Row,
    next: usize,
}

impl<'r> Parts<'r> {
    pub(crate) fn of(row: &'r Row) -> Self {
        Self { row, next: 0 }
    }

    /// None: an outer join found nothing. Otherwise the first column of a part is never NULL.
    pub(crate) fn next<T: Part>(&mut self) -> Result<Option<T>, sqlx::Error> {
        let first = self.next;
        self.next += T::COLUMNS.len();
        if self.row.try_get_raw(first)?.is_null() {
            return Ok(None);
        }
        T::read(self.row, first).map(Some)
    }
}

/// Rows per statement. Few sizes, so that each is prepared once.
const SIZES: [usize; 3] = [64, 8, 1];

/// Splits `items` into chunks of these sizes.
pub(crate) fn chunks<T>(items: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size <= rest.len())?;
        let (some, others) = rest.split_at(size);
        rest = others;
        Some(some)
    })
}

/// Placeholders for so many rows and columns: `($1, $2), ($3, $4)`.
pub(crate) fn parameters(rows: usize, columns: usize) -> String {
    let mut text = String::new();
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 1..=columns {
            let comma = if column == 1 { "" } else { ", " };
            let _ = write!(text, "{comma}${}", row * columns + column);
        }
        text.push(')');
    }
    text
}

/// `count` placeholders beginning with `first`: `$3, $4`.
pub(crate) fn list(first: usize, count: usize) -> String {
    let places: Vec<String> = (first..first + count).map(|n| format!("${n}")).collect();
    places.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_in_one_chunk_of_a_known_size() {
        let items: Vec<u32> = (0..150).collect();
        let sizes: Vec<usize> = chunks(&items).map(<[u32]>::len).collect();
        assert_eq!(sizes, [64, 64, 8, 8, 1, 1, 1, 1, 1, 1]);
        assert_eq!(chunks(&items).flatten().copied().collect::<Vec<_>>(), items);
        assert_eq!(chunks(&items[..0]).count(), 0);
    }

    #[test]
    fn parameters_are_numbered_row_by_row() {
        assert_eq!(parameters(1, 3), "($1, $2, $3)");
        assert_eq!(parameters(2, 2), "($1, $2), ($3, $4)");
    }

    #[test]
    fn a_list_is_numbered_from_its_first() {
        assert_eq!(
            (list(3, 2), list(1, 1), list(2, 0)),
            ("$3, $4".to_owned(), "$1".to_owned(), String::new())
        );
    }
}
