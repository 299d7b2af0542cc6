//! Standard output is data, standard error is talk. Colour, width and redrawing only where a person looks.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::Path,
};

use crate::{
    exit,
    failure::{Failure, Result},
};

/// Asks a question; none where standard input is not a terminal.
pub fn confirm(question: &str) -> Result<Option<bool>> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    say(&format!("{question} [y/N]"));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::file("read", Path::new("-"), &error))?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes")))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Good,
    Bad,
    Doubtful,
    Faint,
}

/// How standard output is to be written to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terminal {
    pub colour: bool,
    /// Columns; none where the output goes to a file or a pipe, which take lines of any length.
    pub width: Option<usize>,
    /// Lines, where there are columns.
    pub height: usize,
}

impl Terminal {
    pub fn detect() -> Self {
        if !io::stdout().is_terminal() {
            return Self::default();
        }
        let unset = |name| std::env::var_os(name).is_none_or(|value| value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let (width, height) = terminal_size::terminal_size()
            .map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)));
        Self { colour: unset("NO_COLOR") && !dumb, width: Some(width.max(40)), height: height.max(4) }
    }

    pub fn interactive(self) -> bool {
        self.width.is_some()
    }

    pub fn paint(self, colour: Colour, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match colour {
            Colour::Good => "32",
            Colour::Bad => "31",
            Colour::Doubtful => "33",
            Colour::Faint => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Replaces what an earlier call drew; where nobody looks, each picture follows the other.
    pub fn redraw(self, picture: &str) -> Result<()> {
        if !self.interactive() {
            return print(&format!("{picture}\n"));
        }
        // Home, then each line cleared to its end, then what is left below: no flicker of an emptied screen. A picture
        // that is taller than the screen would scroll it, so the rest is counted.
        let total = picture.lines().count();
        let room = if total < self.height { total } else { self.height.saturating_sub(2) };
        let mut lines: String = picture.lines().take(room).map(|line| format!("{line}\x1b[K\n")).collect();
        if room < total {
            lines += &format!("… {} more lines: name a service or a cluster\x1b[K\n", total - room);
        }
        print(&format!("\x1b[H{lines}\x1b[J"))
    }
}

/// A reader that went away (`| head`) has what it wanted.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(i32::from(exit::YES)),
        Err(error) => Err(Failure::usage("can't write to standard output").evidence(error.to_string())),
    }
}

/// Progress and hints. Nobody reads a closed standard error, so failing to write there fails nothing.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
