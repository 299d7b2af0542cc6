//! What the demo shows: redrawn in place on a terminal, a line per change elsewhere.

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

/// Notes that are remembered; how many are shown is the picture's business.
const NOTES: usize = 8;
/// Of plain lines: the narrowest terminal in use.
const COLUMNS: usize = 80;

pub struct Screen {
    in_place: bool,
    silent: bool,
    start: Instant,
    notes: VecDeque<String>,
    menu: String,
    /// The last line that was printed about each cluster and service.
    told: BTreeMap<String, String>,
}

/// A plain line, on standard error: standard output is for the tree. Nobody reads a closed one, so that fails nothing.
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

    /// Shows nothing: standard output is for figures.
    pub fn quiet() -> Self {
        Self { silent: true, ..Self::new(false) }
    }

    pub fn set_menu(&mut self, menu: String) {
        self.menu = menu;
    }

    /// Something that happened, or what to watch.
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

    /// Home, each line cleared to its end, then whatever is below: no flicker of an emptied screen.
    pub async fn redraw(&self, scene: &Scene) {
        let fleet = scene.picture().await.unwrap_or_else(|error| format!("{error:#}"));
        let notes: Vec<_> = self.notes.iter().cloned().collect();
        let (rows, columns) = Term::stdout().size();
        // One row stays free for the cursor: on the last one it would scroll the picture.
        let picture = Picture { fleet: &fleet, notes: &notes, footer: &self.menu };
        let lines = picture.lines(columns.into(), usize::from(rows).saturating_sub(1));
        let lines: String = lines.iter().map(|line| format!("{}\x1b[K\r\n", painted(line))).collect();
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "\x1b[H{lines}\x1b[J").and_then(|()| out.flush());
    }
}

/// The line with its mark in the mark's colour; the words say the same.
fn painted(line: &str) -> String {
    let colours =
        [("✓", Color::Green), ("●", Color::Green), ("✗", Color::Red), ("‖", Color::Yellow), ("⌫", Color::Yellow)];
    match colours.into_iter().find(|(mark, _)| line.contains(mark)) {
        Some((mark, colour)) => line.replacen(mark, &style(mark).fg(colour).to_string(), 1),
        None => line.to_owned(),
    }
}
