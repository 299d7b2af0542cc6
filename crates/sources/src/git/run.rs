//! Running git against strangers.
//!
//! - The environment is empty but for what is set here: no configuration of the system or the user, no proxy, no
//!   certificate variables, no prompts, no credential helpers, English messages.
//! - Configuration goes through `GIT_CONFIG_COUNT`, and so do credentials, bound to the remote's origin: nothing
//!   secret is ever on a command line, in a URL or in a file.
//! - Only http and https; no redirects; no hooks; received objects are checked.
//! - A process group of its own, killed as a whole at the end of the time, at too much output or too much disk, and
//!   when the caller goes away.

use std::{path::Path, process::Stdio, time::Duration};

use nix::{sys::signal, unistd::Pid};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
};

use super::{Git, GitError, GitReason, leftovers};
use crate::remote::Remote;

/// Of standard error only this much is kept.
const MAX_STDERR: usize = 64 << 10;
/// How often the mirror is measured during a fetch. At 1 GB/s that is 250 MB over the limit at the worst.
const WATCH_PAUSE: Duration = Duration::from_millis(250);
/// A transfer below this many bytes per second for this many seconds is given up by curl. A server that counts
/// objects sends 5 bytes every 5 seconds to show that it lives, and that must be enough.
const LOW_SPEED: (&str, &str) = ("1", "60");

/// One run of git.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// For the error: "fetch from".
    pub what: &'static str,
    pub timeout: Duration,
    pub max_output: usize,
    /// A folder and the most bytes that it may take.
    pub watch: Option<(&'a Path, u64)>,
}

/// Kills the whole group when dropped before it was disarmed.
struct Group(Option<Pid>);

impl Group {
    fn kill(&self) {
        if let Some(pid) = self.0 {
            // Already gone is as good.
            let _ = signal::killpg(pid, signal::Signal::SIGKILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Git {
    /// Runs git and gives its standard output.
    pub(super) async fn run(&self, call: Call<'_>, remote: &Remote, args: &[&str]) -> Result<Vec<u8>, GitError> {
        let fail = |reason, evidence| GitError::new(call.what, remote, reason, evidence);
        let no_git = |error: std::io::Error| fail(GitReason::NoGit, error.to_string());
        let ca = self.write_ca(remote).map_err(|error| fail(GitReason::Disk, error.to_string()))?;
        let mut command = self.command(remote, ca.as_ref().map(|file| file.path()));
        let mut child = command.args(args).spawn().map_err(no_git)?;
        let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
        let outcome = tokio::select! {
            outcome = drive(&mut child, call.max_output) => outcome.map_err(no_git)?,
            () = tokio::time::sleep(call.timeout) => Err(GitReason::Timeout(call.timeout.as_secs())),
            reason = watch(call.watch) => Err(reason),
        };
        let (status, stdout, stderr) = match outcome {
            Ok(ended) => ended,
            Err(reason) => {
                // Killed before it is waited for, so the id can't be another's yet.
                group.kill();
                group.0 = None;
                let _ = child.wait().await;
                return Err(fail(reason, String::new()));
            }
        };
        group.0 = None;
        if status.success() {
            return Ok(stdout);
        }
        let stderr = String::from_utf8_lossy(&stderr);
        Err(GitError::from_stderr(call.what, remote, remote.authorization().is_some(), &stderr))
    }

    fn command(&self, remote: &Remote, ca: Option<&Path>) -> Command {
        let home = &self.0.home;
        let mut command = Command::new(&self.0.program);
        command.env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()));
        for (name, value) in
            [("HOME", home.as_os_str()), ("XDG_CONFIG_HOME", home.as_os_str()), ("TMPDIR", home.as_os_str())]
        {
            command.env(name, value);
        }
        for (name, value) in [
            ("LC_ALL", "C"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", "false"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_PROTOCOL_FROM_USER", "0"),
        ] {
            command.env(name, value);
        }
        let settings = settings(remote, ca);
        command.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (n, (key, value)) in settings.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{n}"), key).env(format!("GIT_CONFIG_VALUE_{n}"), value);
        }
        command.current_dir(home).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        command
    }

    /// git takes a private authority only from a file.
    fn write_ca(&self, remote: &Remote) -> std::io::Result<Option<tempfile::NamedTempFile>> {
        let Some(pem) = remote.ca() else { return Ok(None) };
        let file = tempfile::Builder::new().prefix("ca-").suffix(".pem").tempfile_in(&self.0.home)?;
        std::fs::write(file.path(), pem)?;
        Ok(Some(file))
    }
}

fn settings(remote: &Remote, ca: Option<&Path>) -> Vec<(String, String)> {
    let fixed = [
        ("protocol.allow", "never"),
        ("protocol.http.allow", "always"),
        ("protocol.https.allow", "always"),
        ("protocol.version", "2"),
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("core.alternateRefsCommand", "true"),
        ("credential.helper", ""),
        ("http.followRedirects", "false"),
        ("http.lowSpeedLimit", LOW_SPEED.0),
        ("http.lowSpeedTime", LOW_SPEED.1),
        ("http.sslVerify", "true"),
        ("http.emptyAuth", "false"),
        ("transfer.fsckObjects", "true"),
        ("transfer.bundleURI", "false"),
        ("transfer.credentialsInUrl", "die"),
        // Old mistakes of dates, modes and names that harm nobody who checks nothing out. Without these the history
        // of many a large repository can't be fetched. Names that lead out of a tree stay errors.
        ("fetch.fsck.badTimezone", "ignore"),
        ("fetch.fsck.missingSpaceBeforeDate", "ignore"),
        ("fetch.fsck.missingNameBeforeEmail", "ignore"),
        ("fetch.fsck.zeroPaddedFilemode", "ignore"),
        ("fetch.fsck.zeroPaddedDate", "ignore"),
        ("fetch.fsck.multipleAuthors", "ignore"),
        ("fetch.recurseSubmodules", "false"),
        ("fetch.writeCommitGraph", "false"),
        ("submodule.recurse", "false"),
        ("gc.auto", "0"),
        ("gc.autoDetach", "false"),
        ("maintenance.auto", "false"),
        ("pack.threads", "1"),
        ("core.logAllRefUpdates", "false"),
        ("init.defaultBranch", "main"),
        ("advice.detachedHead", "false"),
        // The data directory may belong to another user than a container runs as; what is in it is ours all the same.
        ("safe.directory", "*"),
    ];
    let mut settings: Vec<_> = fixed.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    if let Some(header) = remote.authorization() {
        // Bound to scheme, host and port.
        settings.push((format!("http.{}/.extraHeader", remote.origin()), format!("Authorization: {}", *header)));
    }
    if let Some(path) = ca {
        settings.push(("http.sslCAInfo".to_owned(), path.to_string_lossy().into_owned()));
    }
    settings
}

type Ended = (std::process::ExitStatus, Vec<u8>, Vec<u8>);

/// Reads both outputs to their end. The inner error is a limit.
async fn drive(child: &mut Child, max_output: usize) -> std::io::Result<Result<Ended, GitReason>> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let bounded = async { read(stdout, max_output, true).await.map_err(Some)?.ok_or(None) };
    let stderr = async { read(stderr, MAX_STDERR, false).await.map_err(Some) };
    // The first failure ends both: a git that writes without end must not be read to its end.
    match tokio::try_join!(bounded, stderr) {
        Ok((stdout, stderr)) => Ok(Ok((child.wait().await?, stdout, stderr.unwrap_or_default()))),
        Err(None) => Ok(Err(GitReason::AnswerTooLarge { limit: max_output })),
        Err(Some(error)) => Err(error),
    }
}

/// At most `limit` bytes: past them `None` at once if `strict`, else the rest is read and dropped.
async fn read(stream: Option<impl AsyncRead + Unpin>, limit: usize, strict: bool) -> std::io::Result<Option<Vec<u8>>> {
    let Some(mut stream) = stream else { return Ok(Some(Vec::new())) };
    let mut kept = Vec::new();
    let mut chunk = vec![0; 16 << 10];
    loop {
        let n = stream.read(&mut chunk).await?;
        if n == 0 {
            return Ok(Some(kept));
        }
        let room = limit - kept.len();
        if n > room && strict {
            return Ok(None);
        }
        kept.extend_from_slice(&chunk[..n.min(room)]);
    }
}

/// Ends when the folder has grown over its limit.
async fn watch(watched: Option<(&Path, u64)>) -> GitReason {
    let Some((folder, limit)) = watched else { return std::future::pending().await };
    loop {
        tokio::time::sleep(WATCH_PAUSE).await;
        let path = folder.to_owned();
        if super::spawn(move || leftovers::size(&path)).await > limit {
            return GitReason::TooLarge { limit };
        }
    }
}
