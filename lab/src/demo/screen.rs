//! The demo's output: redrawn in place on a terminal, otherwise one line per change.

use std::{
    collections::{BTreeMap, VecDeque},
    io::Write as _,
    time::Instant,
};

use console::{Color, Term, style};

use super::{
    picture::{Picture, wrap},
    progress::Fleet,
    scene::Scene,
};

/// Maximum number of notes that are kept. The picture decides how many it shows.
const NOTES: usize = 8;
/// Width of plain lines: that of the narrowest terminal in use.
const COLUMNS: usize = 80;

pub struct Screen {
    in_place: bool,
    silent: bool,
    start: Instant,
    notes: VecDeque<String>,
    menu: String,
    /// Last printed line by cluster and service.
    told: BTreeMap<String, String>,
}

/// Prints a plain line to standard error, because standard output is for the tree. Ignores a closed standard error.
pub fn say(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
}

impl Screen {
    pub fn new(in_place: bool) -> Self {
        Self {
            in_place,
            silent: false,
            start: Instant::now(),
            notes: VecDeque::new(),
            menu: String::new(),
            told: BTreeMap::new(),
        }
    }

    /// A screen that shows nothing, because standard output is for figures.
    pub fn quiet() -> Self {
        Self {
            silent: true,
            ..Self::new(false)
        }
    }

    pub fn set_menu(&mut self, menu: String) {
        self.menu = menu;
    }

    /// Shows a note on what happened or what to watch.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = format!("{:>6.1} s  {}", self.start.elapsed().as_secs_f64(), text.into());
        if self.in_place {
            self.notes.push_back(text);
            if self.notes.len() > NOTES {
                self.notes.pop_front();
            }
        } else {
            wrap(&text, COLUMNS).iter().for_each(|line| say(line));
        }
    }

    pub async fn show(&mut self, scene: &Scene, fleet: &Fleet) {
        if self.silent {
            return;
        }
        if self.in_place {
            return self.redraw(scene).await;
        }
        for line in fleet.lines() {
            let subject: String = line.chars().take(23).collect();
            if self.told.get(&subject) != Some(&line) {
                self.note(line.clone());
                self.told.insert(subject, line);
            }
        }
    }

    /// Redraws the screen without flicker: moves the cursor home, clears the end of each line, then the rest below.
    pub async fn redraw(&self, scene: &Scene) {
        let fleet = scene.picture().await.unwrap_or_else(|error| format!("{error:#}"));
        let notes: Vec<_> = self.notes.iter().cloned().collect();
        let (rows, columns) = Term::stdout().size();
        // Leave the last row free: the cursor there would scroll the picture.
        let picture = Picture {
            fleet: &fleet,
            notes: &notes,
            footer: &self.menu,
        };
        let lines = picture.lines(columns.into(), usize::from(rows).saturating_sub(1));
        let lines: String = lines
            .iter()
            .map(|line| format!("{}\x1b[K\r\n", painted(line)))
            .collect();
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "\x1b[H{lines}\x1b[J").and_then(|()| out.flush());
    }
}

/// Colours the mark of a line. The words say the same.
fn painted(line: &str) -> String {
    let colours = [
        ("✓", Color::Green),
        ("●", Color::Green),
        ("✗", Color::Red),
        ("‖", Color::Yellow),
        ("⌫", Color::Yellow),
    ];
    match colours.into_iter().find(|(mark, _)| line.contains(mark)) {
        Some((mark, colour)) => line.replacen(mark, &style(mark).fg(colour).to_string(), 1),
        None => line.to_owned(),
    }
}
