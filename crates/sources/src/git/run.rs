//! Runs git against untrusted remotes.
//!
//! - The environment is empty except for what is set here: no configuration of the system or the user, no proxy, no
//!   certificate variables, no prompts, no credential helpers, English messages.
//! - Configuration is passed by `GIT_CONFIG_COUNT`, and so are credentials, bound to the remote's origin: no secret is
//!   ever on a command line, in a URL or in a file.
//! - Only http and https are allowed, and a socket to an ssh that we run ourselves ([`crate::ssh`]). Names keep the
//!   addresses that were looked up ([`crate::links`]). No redirects, no hooks; received objects are checked.
//! - git runs in its own process group, which is killed as a whole at a timeout, at too much output or disk usage, and
//!   when the caller is dropped.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use command_fds::{CommandFdExt as _, FdMapping};
use nix::{sys::signal, unistd::Pid};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
};
use url::Url;

use super::{Git, GitError, GitReason, Problem, leftovers};
use crate::{
    access::Access,
    address::Scheme,
    remote::Remote,
    session::Session,
    ssh::{self, quote},
    web::{Ask, Route, Sign, Step},
};

/// Placeholder for the remote's URL in arguments.
pub(super) const URL: &str = "<remote>";
/// File descriptor of git's end of the socket to ssh.
const SOCKET: i32 = 3;
/// Most addresses of a name that ssh tries in turn. curl does this by itself.
const SSH_ADDRESSES: usize = 3;

/// Limit for checking a server whose certificate git has refused.
const CERTIFICATE: Duration = Duration::from_secs(10);
/// Most bytes of standard error that are kept.
const MAX_STDERR: usize = 64 << 10;
/// Interval of measuring the mirror during a fetch. At 1 GB/s it may exceed its limit by 250 MB.
const WATCH_PAUSE: Duration = Duration::from_millis(250);
/// curl gives up a transfer below this many bytes per second for this many seconds. A server that counts objects sends
/// 5 bytes every 5 seconds to show that it lives, and that must be enough.
const LOW_SPEED: (&str, &str) = ("1", "60");

/// One run of git.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// For the error: "fetch from".
    pub what: &'static str,
    pub timeout: Duration,
    pub max_output: usize,
    /// A folder, and the most bytes that it may have.
    pub watch: Option<(&'a Path, u64)>,
}

/// Kills the whole process group when dropped, unless it was disarmed.
struct Group(Option<Pid>);

impl Group {
    fn kill(&self) {
        if let Some(pid) = self.0 {
            // It may already be gone.
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
    /// Runs git against a remote and returns its standard output. [`URL`] in the arguments is replaced by the remote's
    /// URL.
    pub(super) async fn run(&self, call: Call<'_>, session: &Session<'_>, args: &[&str]) -> Result<Vec<u8>, GitError> {
        if session.remote.address().scheme != Scheme::Ssh {
            let mut result = self.attempt(call, Towards::Http(session), args).await;
            if let Err(error) = &mut result {
                self.note_refusal(session, error);
                if error.reason == GitReason::Untrusted
                    && let Some(problem) = self.judge_certificate(session).await
                {
                    (error.reason, error.evidence) = (problem.reason, problem.evidence);
                }
            }
            return result;
        }
        let mut failure = None;
        for address in session.addresses.iter().take(SSH_ADDRESSES) {
            match self.attempt(call, Towards::Ssh(session, *address), args).await {
                Err(error) if error.reason == GitReason::Unreachable => failure = Some(error),
                other => return other,
            }
        }
        let unknown = || GitError::new(call.what, session.remote, GitReason::Unreachable, String::new());
        Err(failure.unwrap_or_else(unknown))
    }

    /// What is wrong with a server's certificate. Not all of git's libraries say whether it has expired or was never
    /// valid.
    async fn judge_certificate(&self, session: &Session<'_>) -> Option<Problem> {
        let url = Url::parse(session.remote.url()).ok()?;
        let route = Route {
            links: session.links.clone(),
            proxy: session.remote.proxy(),
        };
        let site = self
            .web()
            .make_site(&url, Access::trusting(session.remote.ca()), route)
            .ok()?;
        let step = Step::new("look at the certificate of", CERTIFICATE);
        let refused = site
            .send_unredirected(step, Ask::get(url).sign(Sign::Nothing))
            .await
            .err()?;
        let problem = Problem::from(refused);
        matches!(problem.reason, GitReason::CertificateExpired | GitReason::Untrusted).then_some(problem)
    }

    /// Runs git without a network.
    pub(super) async fn run_here(&self, call: Call<'_>, remote: &Remote, args: &[&str]) -> Result<Vec<u8>, GitError> {
        self.attempt(call, Towards::Nobody(Box::new(Session::of(remote))), args)
            .await
    }

    /// Runs a command at the remote side of an ssh, and returns its output.
    pub(crate) async fn ask_over_ssh(
        &self,
        session: &Session<'_>,
        command: &str,
        limit: u64,
    ) -> Result<Vec<u8>, Problem> {
        let mut problem = Problem::new(GitReason::Unreachable, "");
        for address in session.addresses.iter().take(SSH_ADDRESSES) {
            let asked = ssh::ask(&self.0.ssh, &self.0.home, session, *address, command, limit).await;
            let (output, ended) = asked.map_err(|error| Problem::new(GitReason::NoGit, format!("ssh: {error}")))?;
            if ended.is_success {
                return Ok(output);
            }
            let said = GitError::from_ssh("ask", session, &ended.stderr);
            problem = match said {
                Some(error) => Problem::new(error.reason, error.evidence),
                None => Problem::new(
                    GitReason::Failed,
                    session.redact(ended.stderr.lines().next_back().unwrap_or("")),
                ),
            };
            if problem.reason != GitReason::Unreachable {
                break;
            }
        }
        Err(problem)
    }

    async fn attempt(&self, call: Call<'_>, towards: Towards<'_>, args: &[&str]) -> Result<Vec<u8>, GitError> {
        let session = towards.session();
        let fail = |reason, evidence| GitError::new(call.what, session.remote, reason, evidence);
        let no_git = |error: std::io::Error| fail(GitReason::NoGit, error.to_string());
        let no_disk = |error: std::io::Error| fail(GitReason::Disk, error.to_string());
        let files = Files::write(&self.0.home, session.remote).map_err(no_disk)?;
        let mut command = self.command(&settings(&towards, &files));
        let link = self
            .link(&mut command, &towards)
            .map_err(|evidence| fail(GitReason::NoGit, evidence))?;
        let url = if link.is_some() {
            format!("fd::{SOCKET}")
        } else {
            session.remote.url().to_owned()
        };
        let mut child = command
            .args(args.iter().map(|arg| if *arg == URL { &url } else { *arg }))
            .spawn()
            .map_err(no_git)?;
        // The command also holds our end of the socket, so ssh would never see the end.
        drop(command);
        let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
        let outcome = tokio::select! {
            outcome = drive(&mut child, call.max_output) => outcome.map_err(no_git)?,
            () = tokio::time::sleep(call.timeout) => Err(GitReason::Timeout(call.timeout.as_secs())),
            reason = watch(call.watch) => Err(reason),
        };
        let (status, stdout, stderr) = match outcome {
            Ok(ended) => ended,
            Err(reason) => {
                // Kill before waiting, so that the id can't belong to another process.
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
        // If the connection ended, ssh's message explains it, whatever git says.
        let said = match link {
            Some(link) => GitError::from_ssh(call.what, session, &link.end().await.stderr),
            None => None,
        };
        Err(said.unwrap_or_else(|| GitError::from_stderr(call.what, session, &String::from_utf8_lossy(&stderr))))
    }

    /// Starts ssh if the remote is reached by it, and passes the other end of its socket to the command.
    fn link(&self, command: &mut Command, towards: &Towards<'_>) -> Result<Option<ssh::Link>, String> {
        let Towards::Ssh(session, address) = towards else {
            return Ok(None);
        };
        let service = if session.pushes {
            "git-receive-pack"
        } else {
            "git-upload-pack"
        };
        let service = format!("{service} {}", quote(&session.remote.address().ssh_path()));
        let (link, socket) = ssh::connect(&self.0.ssh, &self.0.home, session, *address, &service)
            .map_err(|error| format!("ssh: {error}"))?;
        command
            .fd_mappings(vec![FdMapping {
                parent_fd: socket,
                child_fd: SOCKET,
            }])
            .map_err(|error| error.to_string())?;
        Ok(Some(link))
    }

    fn command(&self, settings: &[(String, String)]) -> Command {
        let home = &self.0.home;
        let mut command = Command::new(&self.0.program);
        command.env_clear();
        command.env(
            "PATH",
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
        );
        for (name, value) in [
            ("HOME", home.as_os_str()),
            ("XDG_CONFIG_HOME", home.as_os_str()),
            ("TMPDIR", home.as_os_str()),
        ] {
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

        command.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (n, (key, value)) in settings.iter().enumerate() {
            command
                .env(format!("GIT_CONFIG_KEY_{n}"), key)
                .env(format!("GIT_CONFIG_VALUE_{n}"), value);
        }

        command
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        command
    }
}

/// The other side of a git process.
enum Towards<'s> {
    Http(&'s Session<'s>),
    /// At one address.
    Ssh(&'s Session<'s>, SocketAddr),
    Nobody(Box<Session<'s>>),
}

impl<'s> Towards<'s> {
    fn session(&self) -> &Session<'s> {
        match self {
            Self::Http(session) | Self::Ssh(session, _) => session,
            Self::Nobody(session) => session,
        }
    }
}

/// git reads authorities only from files.
struct Files {
    ca: Option<tempfile::NamedTempFile>,
    proxy_ca: Option<tempfile::NamedTempFile>,
}

impl Files {
    fn write(home: &Path, remote: &Remote) -> std::io::Result<Self> {
        let write = |pem: Option<&str>| -> std::io::Result<Option<tempfile::NamedTempFile>> {
            let Some(pem) = pem else { return Ok(None) };
            let file = tempfile::Builder::new()
                .prefix("ca-")
                .suffix(".pem")
                .tempfile_in(home)?;
            std::fs::write(file.path(), pem)?;
            Ok(Some(file))
        };
        let proxy_ca = remote.proxy().and_then(|proxy| proxy.ca.as_deref());
        Ok(Self {
            ca: write(remote.ca())?,
            proxy_ca: write(proxy_ca)?,
        })
    }
}

/// Settings of every command.
const SETTINGS: [(&str, &str); 32] = [
    ("protocol.allow", "never"),
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
    // Old errors in dates, modes and names that do no harm without a checkout. Many large repositories couldn't be
    // fetched otherwise. Names that lead out of a tree stay errors.
    ("fetch.fsck.badTimezone", "ignore"),
    ("fetch.fsck.missingSpaceBeforeDate", "ignore"),
    ("fetch.fsck.missingNameBeforeEmail", "ignore"),
    ("fetch.fsck.zeroPaddedFilemode", "ignore"),
    ("fetch.fsck.zeroPaddedDate", "ignore"),
    ("fetch.fsck.multipleAuthors", "ignore"),
    ("fetch.recurseSubmodules", "false"),
    ("fetch.writeCommitGraph", "false"),
    ("submodule.recurse", "false"),
    // A fetch adds one pack, whose number is limited, instead of a file for each object.
    ("fetch.unpackLimit", "1"),
    ("gc.auto", "0"),
    ("gc.autoDetach", "false"),
    ("maintenance.auto", "false"),
    ("pack.threads", "1"),
    ("core.logAllRefUpdates", "false"),
    ("init.defaultBranch", "main"),
    ("advice.detachedHead", "false"),
    // The data directory may belong to another user than a container runs as; its content is ours nevertheless.
    ("safe.directory", "*"),
];

fn settings(towards: &Towards<'_>, files: &Files) -> Vec<(String, String)> {
    let mut settings: Vec<_> = SETTINGS
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    let mut set = |key: &str, value: String| settings.push((key.to_owned(), value));
    let session = match towards {
        Towards::Nobody(_) => return settings,
        Towards::Ssh(..) => {
            set("protocol.fd.allow", "always".to_owned());
            return settings;
        }
        Towards::Http(session) => session,
    };
    set(
        &format!("protocol.{}.allow", session.remote.address().scheme.as_str()),
        "always".to_owned(),
    );
    if let Some(header) = &session.authorization {
        // Bound to scheme, host and port.
        set(
            &format!("http.{}/.extraHeader", session.remote.address().origin()),
            format!("Authorization: {}", **header),
        );
    }
    if let Some(pin) = session.pin() {
        set("http.curloptResolve", pin);
    }
    if let Some(proxy) = session.remote.proxy() {
        set("http.proxy", proxy.url().to_string());
        set("http.proxyAuthMethod", "basic".to_owned());
    }

    let path = |file: &Option<tempfile::NamedTempFile>| file.as_ref().map(|file| PathBuf::from(file.path()));
    for (key, file) in [
        ("http.sslCAInfo", path(&files.ca)),
        ("http.proxySSLCAInfo", path(&files.proxy_ca)),
    ] {
        if let Some(file) = file {
            set(key, file.to_string_lossy().into_owned());
        }
    }
    settings
}

type Ended = (std::process::ExitStatus, Vec<u8>, Vec<u8>);

/// Reads both outputs to their end. The inner error is an exceeded limit.
async fn drive(child: &mut Child, max_output: usize) -> std::io::Result<Result<Ended, GitReason>> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let bounded = async { read(stdout, max_output, true).await.map_err(Some)?.ok_or(None) };
    let stderr = async { read(stderr, MAX_STDERR, false).await.map_err(Some) };
    // The first failure ends both: the output of a git that writes without end must not be read to its end.
    match tokio::try_join!(bounded, stderr) {
        Ok((stdout, stderr)) => Ok(Ok((child.wait().await?, stdout, stderr.unwrap_or_default()))),
        Err(None) => Ok(Err(GitReason::AnswerTooLarge { limit: max_output })),
        Err(Some(error)) => Err(error),
    }
}

/// Reads at most `limit` bytes. If there are more: None at once if `strict`, otherwise the rest is read and dropped.
async fn read(stream: Option<impl AsyncRead + Unpin>, limit: usize, strict: bool) -> std::io::Result<Option<Vec<u8>>> {
    let Some(mut stream) = stream else {
        return Ok(Some(Vec::new()));
    };
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

/// Returns when the folder exceeds its limit.
async fn watch(watched: Option<(&Path, u64)>) -> GitReason {
    let Some((folder, limit)) = watched else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(WATCH_PAUSE).await;
        let path = folder.to_owned();
        if super::spawn(move || leftovers::size(&path)).await > limit {
            return GitReason::TooLarge { limit };
        }
    }
}
