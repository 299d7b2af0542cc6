//! Runs the `ssh` program for git.
//!
//! git does not start it: git gets one end of a socket ([`Link`]), and ssh the other. So there is no shell and no
//! configuration of a user or a machine, and each program reports its own errors. ssh signs in with a key that it never
//! sees: our own agent answers only that process, as long as it runs ([`agent`]).

mod agent;
mod identity;

use std::{
    net::SocketAddr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use nix::{sys::signal, unistd::Pid};
use tokio::{
    io::AsyncReadExt as _,
    net::UnixListener,
    process::{Child, ChildStderr, Command},
    task::JoinHandle,
};

pub(crate) use self::identity::{Identities, Identity};
use crate::{address::Address, credentials::Credentials, session::Session};

/// Most bytes of standard error that are kept.
const MAX_STDERR: u64 = 64 << 10;
/// Files in ssh's own folder. ssh runs there, so that no path of ours is part of an option.
const KNOWN_HOSTS: &str = "known_hosts";
const AGENT: &str = "agent";
/// Longest path of a socket (`sun_path`), with a margin.
const MAX_SOCKET_PATH: usize = 100;
/// Time for ssh to end after git has.
const END: Duration = Duration::from_secs(2);
/// Interval of keep-alives. A silent connection is given up after four of them.
const ALIVE: Duration = Duration::from_secs(15);

/// A running ssh. It is killed when dropped.
pub(crate) struct Link {
    child: Child,
    group: Option<Pid>,
    stderr: JoinHandle<String>,
    agent: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.agent.abort();
        self.stderr.abort();
        if let Some(group) = self.group {
            // Not waited for yet, so the id can't belong to another process.
            let _ = signal::killpg(group, signal::Signal::SIGKILL);
        }
    }
}

/// The end of an ssh.
pub(crate) struct Ended {
    pub is_success: bool,
    pub stderr: String,
}

/// Starts ssh with a command for the remote side, and returns our end of its standard input and output.
pub(crate) fn connect(
    program: &Path,
    home: &Path,
    session: &Session<'_>,
    to: SocketAddr,
    remote_command: &str,
) -> std::io::Result<(Link, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    let stdin = Stdio::from(theirs.try_clone()?);
    let link = spawn(program, home, session, to, remote_command, stdin, Stdio::from(theirs))?;
    Ok((link, ours.into()))
}

/// Runs one command at the remote side, and returns its output.
pub(crate) async fn ask(
    program: &Path,
    home: &Path,
    session: &Session<'_>,
    to: SocketAddr,
    remote_command: &str,
    limit: u64,
) -> std::io::Result<(Vec<u8>, Ended)> {
    let mut link = spawn(
        program,
        home,
        session,
        to,
        remote_command,
        Stdio::null(),
        Stdio::piped(),
    )?;
    let mut output = Vec::new();
    if let Some(stdout) = link.child.stdout.take() {
        stdout.take(limit).read_to_end(&mut output).await?;
    }
    Ok((output, link.end().await))
}

fn spawn(
    program: &Path,
    home: &Path,
    session: &Session<'_>,
    to: SocketAddr,
    remote_command: &str,
    stdin: Stdio,
    stdout: Stdio,
) -> std::io::Result<Link> {
    let (Some(Credentials::Ssh(access)), Some(identity)) = (session.remote.credentials(), &session.identity) else {
        return Err(std::io::Error::other("no key was unlocked"));
    };
    let folder = make_folder(home)?;
    std::fs::write(folder.path().join(KNOWN_HOSTS), &access.known_hosts)?;
    let listener = UnixListener::bind(folder.path().join(AGENT))?;
    let address = session.remote.address();
    let mut command = Command::new(program);
    command.env_clear();
    command.env(
        "PATH",
        std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
    );
    command
        .envs([("LC_ALL", "C"), ("GIT_PROTOCOL", "version=2")])
        .env("HOME", folder.path());
    command
        .args(options(address, to))
        .arg("--")
        .arg(address.host())
        .arg(remote_command);
    command
        .current_dir(folder.path())
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::piped());
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let stderr = tokio::spawn(read_stderr(child.stderr.take()));
    let agent = tokio::spawn(agent::serve(listener, Arc::clone(identity), group.map(Pid::as_raw)));
    Ok(Link {
        child,
        group,
        stderr,
        agent,
        _folder: folder,
    })
}

/// A folder for one run. If the path of the data directory is too long for a socket, the system's temporary folder is
/// used.
fn make_folder(home: &Path) -> std::io::Result<tempfile::TempDir> {
    // Appended are a separator, the prefix, six letters, and the socket.
    let is_short = home.as_os_str().len() + "/ssh-xxxxxx/agent".len() <= MAX_SOCKET_PATH;
    let place = if is_short {
        home.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new().prefix("ssh-").rand_bytes(6).tempdir_in(place)
}

/// Switches off by name everything that ssh would read elsewhere or do besides. It connects to an address.
fn options(address: &Address, to: SocketAddr) -> Vec<String> {
    let mut options: Vec<String> = ["-F", "/dev/null", "-T", "-a", "-x"].map(str::to_owned).into();
    let alias = match address.port() {
        22 => address.host().to_owned(),
        port => format!("[{}]:{port}", address.host()),
    };
    let settings = [
        ("HostName", to.ip().to_string()),
        ("HostKeyAlias", alias),
        ("Port", to.port().to_string()),
        ("User", address.user().to_owned()),
        ("BatchMode", "yes".to_owned()),
        ("StrictHostKeyChecking", "yes".to_owned()),
        ("UserKnownHostsFile", KNOWN_HOSTS.to_owned()),
        ("GlobalKnownHostsFile", "/dev/null".to_owned()),
        ("UpdateHostKeys", "no".to_owned()),
        ("VerifyHostKeyDNS", "no".to_owned()),
        ("CheckHostIP", "no".to_owned()),
        ("CanonicalizeHostname", "no".to_owned()),
        ("PreferredAuthentications", "publickey".to_owned()),
        ("PubkeyAuthentication", "yes".to_owned()),
        ("PasswordAuthentication", "no".to_owned()),
        ("KbdInteractiveAuthentication", "no".to_owned()),
        ("HostbasedAuthentication", "no".to_owned()),
        ("IdentityFile", "none".to_owned()),
        ("IdentitiesOnly", "no".to_owned()),
        ("IdentityAgent", format!("./{AGENT}")),
        ("AddKeysToAgent", "no".to_owned()),
        ("ForwardAgent", "no".to_owned()),
        ("ClearAllForwardings", "yes".to_owned()),
        ("PermitLocalCommand", "no".to_owned()),
        ("ProxyCommand", "none".to_owned()),
        ("ProxyJump", "none".to_owned()),
        ("ControlMaster", "no".to_owned()),
        ("ControlPath", "none".to_owned()),
        ("Tunnel", "no".to_owned()),
        ("RequestTTY", "no".to_owned()),
        ("EscapeChar", "none".to_owned()),
        ("SendEnv", "GIT_PROTOCOL".to_owned()),
        ("ConnectTimeout", "10".to_owned()),
        ("ConnectionAttempts", "1".to_owned()),
        ("ServerAliveInterval", ALIVE.as_secs().to_string()),
        ("ServerAliveCountMax", "4".to_owned()),
        ("LogLevel", "ERROR".to_owned()),
    ];

    for (name, value) in settings {
        options.extend(["-o".to_owned(), format!("{name}={value}")]);
    }
    options
}

async fn read_stderr(stream: Option<ChildStderr>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let mut kept = Vec::new();
    // An error ends the output like its end does.
    let _ = (&mut stream).take(MAX_STDERR).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&kept).into_owned()
}

impl Link {
    /// Waits a short time for its end, which git's end causes.
    pub async fn end(mut self) -> Ended {
        let status = tokio::time::timeout(END, self.child.wait()).await;
        let is_success = matches!(&status, Ok(Ok(status)) if status.success());
        if status.is_ok() {
            self.group = None;
        } else if let Some(group) = self.group.take() {
            let _ = signal::killpg(group, signal::Signal::SIGKILL);
            let _ = self.child.wait().await;
        }
        let stderr = tokio::time::timeout(END, &mut self.stderr).await;
        Ended {
            is_success,
            stderr: stderr.ok().and_then(Result::ok).unwrap_or_default(),
        }
    }
}

/// Quotes for the remote shell, like git.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::from("'");
    for c in text.chars() {
        match c {
            '\'' | '!' => {
                quoted.push_str("'\\");
                quoted.push(c);
                quoted.push('\'');
            }
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_as_git_does() {
        assert_eq!(quote("/a b.git"), "'/a b.git'");
        assert_eq!(quote("it's!"), r"'it'\''s'\!''");
    }

    #[test]
    fn the_name_is_known_by_its_port_and_connected_by_its_address() {
        let check = |url: &str, alias: &str, user: &str| {
            let options = options(&Address::parse(url).unwrap(), "192.0.2.1:22".parse().unwrap());
            for expected in [
                format!("HostKeyAlias={alias}"),
                format!("User={user}"),
                "HostName=192.0.2.1".to_owned(),
            ] {
                assert!(options.contains(&expected), "{url}: {expected}");
            }
        };
        check("git@Git.example.com:a", "git.example.com", "git");
        check("ssh://me@git.example.com:2222/a", "[git.example.com]:2222", "me");
        check("ssh://[2a00::1]/a", "2a00::1", "git");
    }
}
