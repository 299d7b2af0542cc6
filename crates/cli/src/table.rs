//! Tables that fit the terminal. Long texts are cut; names and other values that people copy are not.

use crate::{
    terminal::{Colour, Terminal},
    text,
};

const GAP: usize = 3;
/// An elastic column is not cut to fewer columns of the terminal: shorter texts are useless.
const FLOOR: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub header: String,
    /// Whether cells of the column may be cut.
    pub elastic: bool,
}

impl Column {
    pub fn fixed(header: &str) -> Self {
        Self {
            header: header.to_uppercase(),
            elastic: false,
        }
    }

    pub fn elastic(header: &str) -> Self {
        Self {
            header: header.to_uppercase(),
            elastic: true,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<String>>,
    /// Widths of the part that was printed before, for rows that are added later.
    pub widths: Vec<usize>,
}

impl Table {
    pub fn new(columns: Vec<Column>) -> Self {
        Self {
            columns,
            ..Self::default()
        }
    }

    pub fn push(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows
            .push(row.into_iter().map(|cell| text::plain(&cell).into_owned()).collect());
    }

    /// Renders the header and all rows.
    pub fn render(&mut self, terminal: Terminal) -> String {
        let headers: Vec<String> = self.columns.iter().map(|column| column.header.clone()).collect();
        self.widths = self.fit(terminal.width);
        let header = self.line(&headers, terminal, true);
        header + &self.render_rows(terminal)
    }

    /// Renders the rows alone, with the widths of the last [`Table::render`]. A cell that may not be cut widens its
    /// column.
    pub fn render_rows(&mut self, terminal: Terminal) -> String {
        for row in &self.rows {
            for ((width, cell), column) in self.widths.iter_mut().zip(row).zip(&self.columns) {
                if !column.elastic {
                    *width = (*width).max(text::width(cell));
                }
            }
        }
        self.rows.iter().map(|row| self.line(row, terminal, false)).collect()
    }

    /// The width of each column. If they don't fit, the widest elastic column is narrowed first.
    fn fit(&self, available: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| text::width(&column.header)).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(text::width(cell));
            }
        }
        let Some(available) = available else { return widths };
        let gaps = GAP * widths.len().saturating_sub(1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(available);
        while excess > 0 {
            let floor = |i: usize| FLOOR.max(text::width(&self.columns[i].header));
            let widest = (0..widths.len())
                .filter(|&i| self.columns[i].elastic && widths[i] > floor(i))
                .max_by_key(|&i| widths[i]);
            let Some(widest) = widest else { break };
            widths[widest] -= 1;
            excess -= 1;
        }
        widths
    }

    fn line(&self, cells: &[String], terminal: Terminal, header: bool) -> String {
        let mut line = String::new();
        for (i, cell) in cells.iter().enumerate() {
            let limit = self.widths.get(i).copied().unwrap_or(usize::MAX);
            let elastic = self.columns.get(i).is_some_and(|column| column.elastic);
            let shown = if elastic && terminal.interactive() {
                text::fit(cell, limit)
            } else {
                cell.as_str().into()
            };
            let padding = if i + 1 == cells.len() {
                0
            } else {
                limit.saturating_sub(text::width(&shown)) + GAP
            };
            match colour_of(cell).filter(|_| !header) {
                Some(colour) => line += &terminal.paint(colour, &shown),
                None => line += &shown,
            }
            line.extend(std::iter::repeat_n(' ', padding));
        }
        format!("{}\n", line.trim_end())
    }
}

/// The colour of a condition's status or an object's state. None: any other text.
fn colour_of(cell: &str) -> Option<Colour> {
    match cell {
        "True" | "Synced" | "Healthy" | "Active" => Some(Colour::Good),
        "False" | "Failed" | "Refused" => Some(Colour::Bad),
        "Unknown" | "Progressing" | "Terminating" | "Waiting" | "PruneHeld" => Some(Colour::Doubtful),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(vec![
            Column::fixed("Name"),
            Column::elastic("Status"),
            Column::fixed("Age"),
        ]);
        table.push(["a-rather-long-name", "a sentence that goes on and on and on", "5m"].map(String::from));
        table.push(["web", "ok\u{1b}[0m", "1h"].map(String::from));
        table
    }

    fn at(width: usize) -> Terminal {
        Terminal {
            width: Some(width),
            ..Terminal::default()
        }
    }

    #[test]
    fn a_pipe_gets_every_character() {
        let text = table().render(Terminal::default());
        assert_eq!(
            text,
            "NAME                 STATUS                                  AGE\n\
             a-rather-long-name   a sentence that goes on and on and on   5m\n\
             web                  ok[0m                                   1h\n"
        );
    }

    #[test]
    fn a_narrow_terminal_cuts_the_sentence_and_never_the_name() {
        let text = table().render(at(44));
        assert_eq!(text.lines().nth(1), Some("a-rather-long-name   a sentence that …   5m"));
        assert!(text.lines().all(|line| text::width(line) <= 44), "{text}");
    }

    #[test]
    fn a_terminal_too_narrow_for_the_names_still_shows_them() {
        let text = table().render(at(20));
        assert!(text.contains("a-rather-long-name"), "{text}");
    }
}
