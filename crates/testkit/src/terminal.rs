//! A terminal for programs with a text interface. Tests read its screen as a person would, and press keys.

use std::{
    io::{Read as _, Write as _},
    num::NonZero,
    path::Path,
    process::{Command, ExitStatus},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use pty_process::{Size, blocking as pty};

use crate::{process::Process, wait_for, watchdog};

/// Wide enough to show all columns of a table.
const ROWS: NonZero<u16> = NonZero::new(50).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(200).unwrap();

/// A program in its own terminal. It ends when this is dropped.
pub struct Terminal {
    process: Process,
    pty: Arc<pty::Pty>,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Thread that ends when no program can draw any more.
    drawing: JoinHandle<()>,
}

impl Terminal {
    /// Starts `command`. `log` is the path of its log, if it writes one. `name` is its name in failures.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        watchdog::ensure()?;
        let (pty, end) = pty::open().context("open a terminal")?;
        pty.resize(Size::new(ROWS.get(), COLUMNS.get()))
            .context("size a terminal")?;
        command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8");
        let child = pty::Command::from(command)
            .spawn(end)
            .with_context(|| format!("start {name} in a terminal"))?;
        // It leads a session, and therefore a process group.
        let process = Process::started(name, child, log)?;
        let (pty, screen) = (
            Arc::new(pty),
            Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0))),
        );
        let drawing = thread::spawn({
            let (pty, screen) = (Arc::clone(&pty), Arc::clone(&screen));
            move || draw(&pty, &screen)
        });
        Ok(Self {
            process,
            pty,
            screen,
            drawing,
        })
    }

    /// The current text of the screen.
    pub fn screen(&self) -> String {
        self.screen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .screen()
            .contents()
    }

    /// Sends keys: text, and control characters for other keys.
    pub fn press(&self, keys: &str) -> Result<()> {
        (&*self.pty)
            .write_all(keys.as_bytes())
            .with_context(|| format!("press {keys:?}"))
    }

    /// Waits at most `bound` until the screen is as `expected`. A failure shows the screen and the end of the log.
    pub async fn wait_until(&self, what: &str, bound: Duration, expected: impl Fn(&str) -> bool) -> Result<()> {
        let looked = wait_for(what, bound, || async {
            // Check for the end first: everything that was drawn before it is then on the screen.
            let is_over = self.drawing.is_finished();
            let is_right = expected(&self.screen());
            Ok((is_right || is_over).then_some(is_right))
        });
        let looked = looked.await.and_then(|is_right| match is_right {
            true => Ok(()),
            false => bail!("the program ended before {what}"),
        });
        looked.with_context(|| format!("the screen shows\n{}\n{}", self.screen(), self.process.tail()))
    }

    /// Waits at most `bound` until the program ends by itself.
    pub fn wait_for_end(&mut self, bound: Duration) -> Option<ExitStatus> {
        self.process.wait(bound)
    }
}

/// Reads until all programs have closed the terminal. Linux reports that as an error, other systems as the end of the
/// file.
fn draw(pty: &pty::Pty, screen: &Mutex<vt100::Parser>) {
    let mut buffer = [0; 8192];
    while let Ok(length @ 1..) = { pty }.read(&mut buffer) {
        screen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .process(&buffer[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::bare_command;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Terminal {
        let mut command = bare_command("sh");
        command.args(["-c", script]);
        Terminal::start("the shell", command, Path::new("/dev/null")).unwrap()
    }

    #[tokio::test]
    async fn what_is_drawn_over_is_not_seen_and_keys_arrive() {
        // The second word begins where the first one did.
        let mut terminal =
            shell("printf 'old\\033[1;1Hnew'; read answer </dev/tty; printf '\\033[5;1Hgot %s' \"$answer\"");
        terminal
            .wait_until("the second word", PATIENCE, |screen| screen == "new")
            .await
            .unwrap();
        terminal.press("a key\r").unwrap();
        terminal
            .wait_until("the answer", PATIENCE, |screen| screen.ends_with("\n\n\ngot a key"))
            .await
            .unwrap();
        assert!(terminal.wait_for_end(PATIENCE).unwrap().success());
    }

    #[tokio::test]
    async fn a_program_that_ends_early_is_shown_with_what_it_drew() {
        let terminal = shell("echo no luck");
        let error = terminal
            .wait_until("luck to come", PATIENCE, |_| false)
            .await
            .unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("no luck") && error.contains("ended before luck to come"),
            "{error}"
        );
    }
}
