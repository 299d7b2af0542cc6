//! Layout of the demo's screen. Pure, so that tests can check small screens.

/// Minimum number of lines for notes on a small screen.
const FEWEST_NOTES: usize = 3;
const MOST_NOTES: usize = 8;
/// Column at which the text of a note starts, on all of its lines.
const INDENT: usize = 10;

pub struct Picture<'a> {
    /// Lines with the source and the tree.
    pub fleet: &'a str,
    /// Notes on what happened, the newest last.
    pub notes: &'a [String],
    /// Lines that are always shown: how to reach the fleet from elsewhere, and the keys.
    pub footer: &'a str,
}

impl Picture<'_> {
    /// At most `rows` lines of at most `columns` characters. On a small screen it drops older notes first, then healthy
    /// objects, then the other objects, and last the end of the tree.
    pub fn lines(&self, columns: usize, rows: usize) -> Vec<String> {
        let footer: Vec<_> = self.footer.lines().flat_map(|line| wrap(line, columns)).collect();
        let notes: Vec<_> = self.notes.iter().flat_map(|note| wrap(note, columns)).collect();
        let room = rows.saturating_sub(footer.len() + 2);
        let mut lines = fit(self.fleet, room.saturating_sub(notes.len().min(FEWEST_NOTES)), columns);
        let shown = room.saturating_sub(lines.len()).min(MOST_NOTES).min(notes.len());
        lines.push(String::new());
        lines.extend_from_slice(&notes[notes.len() - shown..]);
        lines.push(String::new());
        lines.extend(footer);
        lines.truncate(rows);
        lines
    }
}

fn fit(fleet: &str, room: usize, columns: usize) -> Vec<String> {
    let mut lines: Vec<&str> = fleet.lines().collect();
    if lines.len() > room {
        lines.retain(|line| !line.ends_with("  Current"));
    }
    if lines.len() > room {
        // Only lines of objects are indented.
        lines.retain(|line| !line.starts_with(['│', ' ']));
    }
    let mut shown: Vec<String> = lines.iter().take(room).map(|line| cut(line, columns)).collect();
    if lines.len() > room
        && let Some(last) = shown.last_mut()
    {
        *last = format!("… {} more lines on a larger screen", lines.len() - room + 1);
    }
    shown
}

fn cut(line: &str, columns: usize) -> String {
    match line.char_indices().nth(columns) {
        None => line.to_owned(),
        Some(_) => line.chars().take(columns.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Wraps a note at spaces into lines of at most `columns` characters. Further lines start under the text, not the time.
pub fn wrap(line: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = line.to_owned();
    while rest.chars().count() > columns {
        let end = rest.char_indices().nth(columns).map_or(rest.len(), |(at, _)| at);
        let Some(space) = rest[..=end]
            .rfind(' ')
            .filter(|at| !rest[..*at].trim().is_empty() && *at > INDENT)
        else {
            rest = cut(&rest, columns);
            break;
        };
        let next = format!("{:INDENT$}{}", "", &rest[space + 1..]);
        rest.truncate(space);
        lines.push(std::mem::replace(&mut rest, next));
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: &str = "\
source fleet  fresh  main@4bc29bea0ab5
● farwater-admin/east  Ready  v1.36.3  heard 2s ago
├─ ✓ platform-east  Healthy  main@4bc29bea0ab5  2/2 healthy
│  ├─ ✓ CustomResourceDefinition backuppolicies.platform.example.com  Current
│  └─ ✓ BackupPolicy nightly  Current
└─ ✗ web-east  Stalled  main@4bc29bea0ab5  2/3 healthy  main@ce0f04da91e9 was not applied completely: 1 of 3 objects
   ├─ ✓ ConfigMap web  Current
   └─ ✗ Deployment web  Refused  Error: .spec.replicas: expected numeric (int or float)";

    fn lines(columns: usize, rows: usize) -> Vec<String> {
        let note = |n| {
            format!("{n:>6}.1 s  pushed ce0f04da91: `replicas` is not a number; watch web report the refused object")
        };
        let notes: Vec<_> = (0..5).map(note).collect();
        Picture {
            fleet: FLEET,
            notes: &notes,
            footer: "The page: here\n keys",
        }
        .lines(columns, rows)
    }

    #[test]
    fn it_fits_every_screen() {
        for (columns, rows) in [(80, 24), (100, 40), (60, 12), (20, 5), (200, 60)] {
            let lines = lines(columns, rows);
            assert!(lines.len() <= rows, "{columns}x{rows}: {lines:#?}");
            assert!(
                lines.iter().all(|line| line.chars().count() <= columns),
                "{columns}x{rows}: {lines:#?}"
            );
        }
    }

    #[test]
    fn on_a_small_screen_healthy_objects_give_way_and_the_newest_note_stays() {
        let small = lines(80, 14).join("\n");
        assert!(
            !small.contains("ConfigMap web") && small.contains("Deployment web  Refused"),
            "{small}"
        );
        assert!(
            small.contains("     4.1 s  pushed") && small.ends_with("The page: here\n keys"),
            "{small}"
        );
        assert!(lines(100, 40).join("\n").contains("ConfigMap web  Current"));
        let smaller = lines(80, 11).join("\n");
        assert!(
            !smaller.contains("Deployment web") && smaller.contains("web-east  Stalled"),
            "{smaller}"
        );
    }

    #[test]
    fn long_notes_go_on_under_their_text() {
        assert_eq!(
            wrap("   1.0 s  one two three", 16),
            ["   1.0 s  one", "          two", "          three"]
        );
    }
}
