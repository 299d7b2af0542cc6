//! Standard output is for data, standard error for messages. Colour, width and redrawing are used only on a terminal.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::Path,
};

use farwater_fleet::words::counted;

use crate::{
    exit,
    failure::{Failure, Result},
};

/// Asks a yes-or-no question. None: standard input is not a terminal.
pub fn confirm(question: &str) -> Result<Option<bool>> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    say(&format!("{question} [y/N]"));
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::file("read", Path::new("-"), &error))?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes")))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Good,
    Bad,
    Doubtful,
    Faint,
}

/// Abilities of standard output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terminal {
    pub colour: bool,
    /// Columns. None: the output goes to a file or a pipe, where lines may have any length.
    pub width: Option<usize>,
    /// Lines; only meaningful if there is a width.
    pub height: usize,
}

impl Terminal {
    pub fn detect() -> Self {
        if !io::stdout().is_terminal() {
            return Self::default();
        }
        let unset = |name| std::env::var_os(name).is_none_or(|value| value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let (width, height) = terminal_size::terminal_size().map_or((80, 24), |(width, height)| {
            (usize::from(width.0), usize::from(height.0))
        });
        Self {
            colour: unset("NO_COLOR") && !dumb,
            width: Some(width.max(40)),
            height: height.max(4),
        }
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

    /// Replaces the picture that the last call drew. If the output is not a terminal, prints the pictures one after the
    /// other.
    pub fn redraw(self, picture: &str) -> Result<()> {
        if !self.interactive() {
            return print(&format!("{picture}\n"));
        }
        // Moves the cursor home, clears each line to its end, and then everything below. To empty the screen first
        // would flicker. A picture that is taller than the screen would scroll it, so the lines that don't fit are only
        // counted.
        let total = picture.lines().count();
        let room = if total < self.height {
            total
        } else {
            self.height.saturating_sub(2)
        };
        let mut lines: String = picture
            .lines()
            .take(room)
            .map(|line| format!("{line}\x1b[K\n"))
            .collect();
        if room < total {
            let more = counted(total - room, "more line");
            lines += &format!("… {more}: name a service or a cluster\x1b[K\n");
        }
        print(&format!("\x1b[H{lines}\x1b[J"))
    }
}

/// Prints to standard output. A closed pipe (`| head`) is a success: the reader has what it wanted.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(i32::from(exit::YES)),
        Err(error) => Err(Failure::usage("can't write to standard output").evidence(error.to_string())),
    }
}

/// Prints progress and hints to standard error. A failure to write there is ignored.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
