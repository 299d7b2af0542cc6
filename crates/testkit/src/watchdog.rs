//! Ends the processes that we started when we die, in whatever way.
//!
//! Each of our processes has a small shell that reads process ids and folders from a pipe. Only we hold the pipe's
//! other end. When we exit, panic, are interrupted or killed, the pipe closes. Then the shell kills the process groups
//! and removes the folders that are still listed. (`PR_SET_PDEATHSIG` would need unsafe code and ends with the *thread*
//! that spawned.)

use std::{
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{ChildStdin, Command, Stdio},
    sync::{LazyLock, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, anyhow};

/// Lines: `+PID` watches a process, `-PID` forgets it, `/PATH` removes the folder at the end. Folders are removed last,
/// because processes write there.
const SCRIPT: &str = r#"
pids=" "
while IFS= read -r line; do
  case "$line" in
    +*) pids="$pids${line#+} " ;;
    -*) p="${line#-}"; case "$pids" in *" $p "*) pids="${pids%% "$p" *} ${pids#* "$p" }" ;; esac ;;
    /*) set -- "$@" "$line" ;;
  esac
done
for p in $pids; do kill -s KILL -- "-$p" 2>/dev/null; done
[ $# -gt 0 ] && { sleep 0.2; rm -rf -- "$@"; }
"#;

static WATCHDOG: LazyLock<std::result::Result<Mutex<ChildStdin>, String>> =
    LazyLock::new(|| start().map_err(|e| format!("{e:#}")));

fn start() -> Result<Mutex<ChildStdin>> {
    let mut child = Command::new("sh")
        .args(["-c", SCRIPT, "farwater-watchdog"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // In its own group, so that an interrupt from the terminal does not reach it before it has done its work.
        .process_group(0)
        .spawn()
        .context("start the watchdog shell")?;
    child
        .stdin
        .take()
        .map(Mutex::new)
        .context("the watchdog shell has no standard input")
}

fn tell(line: String) -> Result<()> {
    let pipe = WATCHDOG.as_ref().map_err(|error| anyhow!("{error}"))?;
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    pipe.write_all(line.as_bytes()).context("talk to the watchdog shell")
}

/// Starts the watchdog if it isn't running, so that a failure shows up early.
pub fn ensure() -> Result<()> {
    tell("\n".to_owned())
}

/// Kills the process group with leader `pid` when we are gone.
pub fn watch(pid: u32) -> Result<()> {
    tell(format!("+{pid}\n"))
}

/// Call this before waiting for `pid`, because its number may be reused after that.
pub fn forget(pid: u32) {
    // Ignore a watchdog that has ended: it only acts after us.
    let _ = tell(format!("-{pid}\n"));
}

/// A temporary folder that is removed when the returned value is dropped, or when we are gone.
pub fn temporary_folder(prefix: &str) -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new()
        .prefix(prefix)
        .tempdir()
        .with_context(|| format!("create a folder {prefix}…"))?;
    let path = dir
        .path()
        .to_str()
        .filter(|path| path.starts_with('/') && !path.contains('\n'));
    let path = path.with_context(|| format!("{} is not an absolute path in plain text", dir.path().display()))?;
    tell(format!("{path}\n"))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn sleeper() -> std::process::Child {
        Command::new("sleep").arg("600").process_group(0).spawn().unwrap()
    }

    #[test]
    fn when_the_pipe_closes_what_is_still_listed_goes_and_what_was_forgotten_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (mut listed, mut forgotten) = (sleeper(), sleeper());
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = format!(
            "+{}\n+{}\n-{1}\n{}\n",
            listed.id(),
            forgotten.id(),
            folder.path().display()
        );
        shell.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();

        let start = Instant::now();
        while listed.try_wait().unwrap().is_none() || folder.path().exists() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "the process or the folder outlived us"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(forgotten.try_wait().unwrap().is_none());
        forgotten.kill().unwrap();
        forgotten.wait().unwrap();
        shell.wait().unwrap();
    }
}
