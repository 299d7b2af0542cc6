//! Runs an external command of a task: output in a log, progress on the terminal, an error with the end of the log.

use std::{
    fmt::Write as _,
    fs,
    io::{IsTerminal as _, Read as _, Seek as _, SeekFrom},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use farwater_testkit::watchdog;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal};

/// Without a terminal, one line in this time shows that a long step is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);
/// Maximum length of that line.
const SIGN_COLUMNS: usize = 100;
const LOOK: Duration = Duration::from_millis(100);
/// Time after which a command is killed. The longest builds take half of it.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// Number of lines of the log that an error shows.
const TAIL: usize = 30;
/// Maximum length of each line: a linker's command line would fill a screen.
const LINE: usize = 300;

/// Output for progress: a spinner on a terminal, plain lines in CI.
pub fn is_interactive() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("CI").is_none()
}

/// A failed command, with the end of its log for people.
#[derive(Debug, thiserror::Error)]
#[error("{command}\n  {status}; the last lines of {log}:\n{tail}", log = log.display())]
pub struct Failure {
    command: String,
    status: String,
    tail: String,
    pub log: PathBuf,
}

/// Runs `command` with its output appended to `log`.
///
/// # Errors
///
/// A [`Failure`] if the command failed. Another error if it could not be started or took longer than [`LIMIT`].
pub fn run(what: &str, command: Command, log: &Path) -> Result<()> {
    run_within(LIMIT, what, command, log)
}

fn run_within(limit: Duration, what: &str, command: Command, log: &Path) -> Result<()> {
    let start = Instant::now();
    Step::start(command, log)?.end(|group| {
        let mut status = Ok(None);
        wait(what, log, || {
            status = group.try_wait();
            !matches!(status, Ok(None)) || start.elapsed() > limit
        });
        let Some(status) = status? else {
            group.kill()?;
            bail!(
                "{what} was killed: it took longer than {}; its output is in {}",
                seconds(limit),
                log.display()
            );
        };
        Ok(status)
    })
}

/// A child and all processes in its group. They are killed when the child ends or this is dropped. If this process ends
/// first, the watchdog kills them.
#[derive(Debug)]
pub struct Group {
    child: Child,
    has_ended: bool,
}

impl Group {
    pub fn spawn(command: &mut Command) -> Result<Self> {
        watchdog::ensure()?;
        let child = command.process_group(0).spawn()?;
        watchdog::watch(child.id())?;
        Ok(Self {
            child,
            has_ended: false,
        })
    }

    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() && !self.has_ended {
            // Kill the processes that the child left behind. The number of a group is not reused while it has members.
            // Without members this fails.
            let _ = self.kill();
            self.has_ended = true;
            watchdog::forget(self.child.id());
        }
        Ok(status)
    }

    /// Kills the group. The caller must still wait for the child.
    pub fn kill(&mut self) -> Result<()> {
        if let (false, Some(leader)) = (self.has_ended, Pid::from_raw(self.child.id().cast_signed())) {
            rustix::process::kill_process_group(leader, Signal::KILL).context("kill a process group")?;
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.kill().is_ok() && !self.has_ended {
            let _ = self.child.wait();
            watchdog::forget(self.child.id());
        }
    }
}

/// Waits for a command that writes to `log`, and shows that it is alive.
pub fn wait(what: &str, log: &Path, mut has_ended: impl FnMut() -> bool) {
    let mut life = Life::new(what);
    while !has_ended() {
        std::thread::sleep(LOOK);
        life.show(|| last_line(log));
    }
    life.end();
}

struct Step<'a> {
    shown: String,
    group: Group,
    log: &'a Path,
    start_of_output: u64,
}

impl<'a> Step<'a> {
    fn start(mut command: Command, log: &'a Path) -> Result<Self> {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(log)?;
        let start_of_output = file.seek(SeekFrom::End(0))?;
        let shown = describe(&command);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let group = Group::spawn(&mut command).with_context(|| format!("start {shown}"))?;
        Ok(Self {
            shown,
            group,
            log,
            start_of_output,
        })
    }

    fn end(mut self, wait: impl FnOnce(&mut Group) -> Result<ExitStatus>) -> Result<()> {
        let status = wait(&mut self.group)?;
        if status.success() {
            return Ok(());
        }
        let output = read_from(self.log, self.start_of_output)?;
        let lines: Vec<_> = output.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..]
            .iter()
            .map(|line| format!("  | {}", cut(line)));
        let tail = tail.collect::<Vec<_>>().join("\n");
        Err(Failure {
            command: self.shown,
            status: status.to_string(),
            tail,
            log: self.log.to_owned(),
        }
        .into())
    }
}

/// A duration for people: `12.3s`, `4m05s`.
pub fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    if whole >= 60 {
        format!("{}m{:02}s", whole / 60, whole % 60)
    } else {
        format!("{:.1}s", time.as_secs_f64())
    }
}

/// Content of `log` from byte `position` on.
pub fn read_from(log: &Path, position: u64) -> Result<String> {
    let mut file = fs::File::open(log)?;
    file.seek(SeekFrom::Start(position))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(LINE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    if let Some(name) = Path::new(&text).file_name() {
        text = name.to_string_lossy().into_owned();
    }
    for argument in command.get_args() {
        let _ = write!(text, " {}", argument.to_string_lossy());
    }
    text
}

/// Prints one line for people, above the progress lines.
pub fn say(line: &str) {
    BARS.suspend(|| eprintln!("{line}"));
}

/// Progress lines of all running steps.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Shows that a long step is alive: with a changing line on a terminal, otherwise with one line per minute.
pub struct Life {
    what: String,
    start: Instant,
    told: Instant,
    bar: Option<ProgressBar>,
}

impl Life {
    pub fn new(what: &str) -> Self {
        let bar = is_interactive().then(|| BARS.add(ProgressBar::new_spinner()));
        if let Some(bar) = &bar
            && let Ok(style) = ProgressStyle::with_template("  {spinner} {elapsed} {prefix}: {wide_msg}")
        {
            bar.set_style(style);
            bar.set_prefix(what.to_owned());
        }
        Self {
            what: what.to_owned(),
            start: Instant::now(),
            told: Instant::now(),
            bar,
        }
    }

    /// `state` returns the current activity.
    pub fn show(&mut self, state: impl FnOnce() -> String) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(state());
                bar.tick();
            }
            None if self.told.elapsed() > SIGN_OF_LIFE => {
                self.told = Instant::now();
                let line = format!("      {}, {} s: {}", self.what, self.start.elapsed().as_secs(), state());
                say(&line.chars().take(SIGN_COLUMNS).collect::<String>());
            }
            None => {}
        }
    }

    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn last_line(log: &Path) -> String {
    let length = fs::metadata(log).map_or(0, |file| file.len());
    let end = read_from(log, length.saturating_sub(2000)).unwrap_or_default();
    end.lines().last().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_that_takes_too_long_is_killed_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let (log, pid) = (folder.path().join("log"), folder.path().join("pid"));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $! > \"$0\"; wait"]).arg(&pid);
        let limit = Duration::from_millis(300);
        let error = run_within(limit, "a wait", command, &log).unwrap_err().to_string();
        assert!(
            error.starts_with("a wait was killed: it took longer than 0.3s"),
            "{error}"
        );
        let sleeper = fs::read_to_string(pid).unwrap();
        let state = || fs::read_to_string(format!("/proc/{}/stat", sleeper.trim())).unwrap_or_default();
        let begun = Instant::now();
        while !state().is_empty() && !state().contains(") Z ") {
            assert!(begun.elapsed() < PATIENCE, "{}", state());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
