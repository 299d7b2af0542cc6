//! A child process with its own process group, an empty environment, and output in a file.

use std::{
    fs,
    future::Future,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::watchdog;

/// Number of log lines in a failure.
const TAIL: usize = 25;
/// Pause between two checks of a starting program.
const READY_PAUSE: Duration = Duration::from_millis(30);

/// A running program. It is killed when dropped, or by the watchdog if this process ends first.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Set when the child was waited for. After that its id is meaningless.
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` with its output appended to `log`. `name` is its name in failures.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        watchdog::ensure()?;
        let file = fs::OpenOptions::new().create(true).append(true).open(log);
        let file = file.with_context(|| format!("open the log {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0);
        let program = command.get_program().to_owned();
        let child = command
            .spawn()
            .with_context(|| format!("start {name} ({})", program.display()))?;
        Self::started(name, child, log)
    }

    /// A child that was started as the leader of its own process group and writes its log itself.
    pub(crate) fn started(name: &str, child: Child, log: &Path) -> Result<Self> {
        watchdog::watch(child.id())?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            status: None,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The program's whole output so far.
    pub fn output(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Its exit status. None: it is running.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.status.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            watchdog::forget(self.child.id());
            self.status = Some(status);
        }
        self.status
    }

    /// Fails with the end of the log if the program is not running any more.
    pub fn check_running(&mut self) -> Result<()> {
        match self.exited() {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}\n{}", self.name, self.tail()),
        }
    }

    /// The last lines of the log, and its path.
    pub fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<_> = output.lines().collect();
        let shown = lines[lines.len().saturating_sub(TAIL)..].join("\n");
        format!("{shown}\n(log: {})", self.log.display())
    }

    /// Kills the whole group with SIGKILL and waits for the end. As in a power failure, nothing is flushed or sent.
    pub fn kill9(&mut self) {
        if self.exited().is_some() {
            return;
        }
        if signal("KILL", &format!("-{}", self.child.id())).is_err() {
            let _ = self.child.kill();
        }
        watchdog::forget(self.child.id());
        self.status = self.child.wait().ok().or(Some(ExitStatus::from_raw(9)));
    }

    /// Sends SIGTERM and waits at most `bound`. If the program is still running, it is killed and an error returned.
    pub fn stop(&mut self, bound: Duration) -> Result<ExitStatus> {
        if self.exited().is_none() {
            signal("TERM", &self.child.id().to_string())?;
        }
        match self.wait(bound) {
            Some(status) => Ok(status),
            None => {
                self.kill9();
                bail!(
                    "{} was still running {bound:?} after SIGTERM\n{}",
                    self.name,
                    self.tail()
                )
            }
        }
    }

    /// Waits at most `bound` until it ends by itself.
    pub fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while self.exited().is_none() && start.elapsed() <= bound {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.status
    }

    /// Pauses the program; `resume` continues it. To its peers it looks like a dead network or a stuck disk.
    pub fn pause(&self) -> Result<()> {
        signal("STOP", &self.child.id().to_string())
    }

    pub fn resume(&self) -> Result<()> {
        signal("CONT", &self.child.id().to_string())
    }

    /// Resident memory in bytes, from the kernel.
    pub fn resident_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("no VmRSS line")?;
        let kilobytes: u64 = line
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .with_context(|| format!("read {line:?}"))?;
        Ok(kilobytes * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Retries `probe` until it succeeds. Fails at once if one of the programs that it asks has ended, with the last lines
/// of that one's log. Fails after `bound` with the last lines of all logs.
pub async fn wait_ready<F, P>(processes: &mut [&mut Process], bound: Duration, mut probe: F) -> Result<()>
where
    F: FnMut() -> P,
    P: Future<Output = Result<()>>,
{
    let start = Instant::now();
    loop {
        for process in processes.iter_mut() {
            process.check_running()?;
        }
        match tokio::time::timeout(bound, probe())
            .await
            .unwrap_or_else(|_| bail!("no answer"))
        {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > bound => {
                let logs: Vec<_> = processes
                    .iter()
                    .map(|p| format!("--- {}\n{}", p.name, p.tail()))
                    .collect();
                bail!("not ready after {bound:?}: {error:#}\n{}", logs.join("\n"));
            }
            Err(_) => tokio::time::sleep(READY_PAUSE).await,
        }
    }
}

/// The shell's builtin, because every machine has `sh` but not every one a `kill` program.
pub(crate) fn signal(name: &str, target: &str) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", "kill -s \"$1\" -- \"$2\"", "sh", name, target])
        .stderr(Stdio::null())
        .status()
        .context("run sh")?;
    if !status.success() {
        bail!("send SIG{name} to {target}: kill {status}");
    }
    Ok(())
}

/// A command that inherits only the variables that find programs. TLS, proxy, Git and cargo variables of the machine
/// must not change the result of a test.
pub fn bare_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env(
        "PATH",
        std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()),
    );
    command
}

/// The same command in some namespaces of another process: `--net`, `--mount`, `--pid` as in util-linux. Its
/// environment is only what the command itself sets.
pub fn within(process: u32, namespaces: &[&str], command: &Command) -> Command {
    let mut inside = bare_command("nsenter");
    inside
        .arg("--target")
        .arg(process.to_string())
        .args(namespaces)
        .arg("--");
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            inside.env(name, value);
        }
    }
    if let Some(folder) = command.get_current_dir() {
        inside.current_dir(folder);
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = bare_command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_dropped_process_takes_its_children_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let process = Process::spawn("parent", shell("sleep 600 & echo $!; wait"), &dir.path().join("log")).unwrap();
        let start = Instant::now();
        let child = loop {
            match process.output().trim().parse::<u32>() {
                Ok(pid) => break pid,
                Err(_) => assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "the child's id was never printed"
                ),
            }
        };
        drop(process);
        // The process was killed at once, but its entry may stay a moment until init has waited for it.
        let gone = || fs::read_to_string(format!("/proc/{child}/stat")).map_or(true, |stat| stat.contains(") Z "));
        while !gone() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "the child outlived its parent"
            );
        }
    }

    #[test]
    fn a_program_that_died_is_shown_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::spawn("fortune", shell("echo no luck; exit 3"), &dir.path().join("log")).unwrap();
        let start = Instant::now();
        while process.exited().is_none() {
            assert!(start.elapsed() < Duration::from_secs(10));
        }
        let error = process.check_running().unwrap_err().to_string();
        assert!(
            error.contains("fortune") && error.contains("exit status: 3") && error.contains("no luck"),
            "{error}"
        );
    }

    #[test]
    fn a_program_that_ignores_sigterm_is_killed_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
        let mut process = Process::spawn("mule", shell(script), &dir.path().join("log")).unwrap();
        while !process.output().contains("ready") {}
        let error = process.stop(Duration::from_millis(100)).unwrap_err().to_string();
        assert!(error.contains("mule was still running"), "{error}");
    }
}
