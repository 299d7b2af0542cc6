//! A program of the administrator that supplies credentials, for cloud identities, whose tools need no password.
//!
//! It is named in the hub's configuration with its addresses and namespaces, never in a resource. It uses the protocol
//! of git's credential helpers: `get` as its argument, lines of `key=value` in both directions.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::Stdio,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::{sys::signal, unistd::Pid};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
};
use zeroize::Zeroizing;

use crate::{
    address::UrlPrefix,
    git::{GitReason, Problem},
    minted::{Fingerprint, Minted, fingerprint},
    secret::Secret,
};

const PATIENCE: Duration = Duration::from_secs(15);
const MAX_OUTPUT: u64 = 64 << 10;
/// Prefix of the hub's own variables, which a program does not get.
const OWN: &str = "FARWATER_";

/// Which program serves which addresses: `PREFIX PROGRAM [NAMESPACE …]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRule {
    prefix: UrlPrefix,
    path: PathBuf,
    /// Namespaces that it serves. Empty: only the administrators' namespace.
    namespaces: BTreeSet<String>,
}

impl FromStr for ProgramRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let (Some(prefix), Some(path)) = (words.next(), words.next()) else {
            return Err("expected PREFIX PROGRAM [NAMESPACE …], for example \
                        https://dev.azure.com/example /usr/local/bin/azure-token team-a"
                .to_owned());
        };
        if !prefix.starts_with("https://") {
            return Err(format!("{prefix:?} is no prefix that begins with https://"));
        }
        let prefix = UrlPrefix::parse(prefix).map_err(|error| error.to_string())?;
        if !path.starts_with('/') {
            return Err(format!("{path:?} is no absolute path of a program"));
        }
        Ok(Self {
            prefix,
            path: path.into(),
            namespaces: words.map(str::to_owned).collect(),
        })
    }
}

/// A program, for one namespace.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    namespace: String,
}

impl Program {
    /// The program with the longest matching prefix for an address and a namespace. `own`: the administrators'
    /// namespace.
    pub fn choose(rules: &[ProgramRule], url: &str, namespace: &str, own: &str) -> Option<Arc<Self>> {
        let serves = |rule: &&ProgramRule| {
            let is_meant = match rule.namespaces.is_empty() {
                true => namespace == own,
                false => rule.namespaces.contains(namespace) || rule.namespaces.contains("*"),
            };
            is_meant && rule.prefix.covers(url)
        };
        let rule = rules.iter().filter(serves).max_by_key(|rule| rule.prefix.length())?;
        Some(Arc::new(Self {
            path: rule.path.clone(),
            namespace: namespace.to_owned(),
        }))
    }

    pub(crate) fn fingerprint(&self, host: &str, path: &str) -> Fingerprint {
        fingerprint(&["program", &self.path.to_string_lossy(), &self.namespace, host, path])
    }

    pub(crate) async fn ask(&self, host: &str, path: &str) -> Result<Minted, Problem> {
        let failed = |why: String| {
            tracing::warn!(program = %self.path.display(), error = why, "a program for credentials failed");
            // The program's output is for the administrator, not for the tenant.
            Problem::new(GitReason::ProgramFailed, "")
        };
        let question = format!(
            "capability[]=authtype\nprotocol=https\nhost={host}\npath={}\nnamespace={}\n\n",
            path.trim_start_matches('/'),
            self.namespace
        );
        let output = self.run(question).await.map_err(failed)?;
        parse(&output).ok_or_else(|| failed("it said neither password nor credential".to_owned()))
    }

    async fn run(&self, question: String) -> Result<Zeroizing<String>, String> {
        let own = |(name, _): &(std::ffi::OsString, _)| !name.to_string_lossy().starts_with(OWN);
        let mut command = Command::new(&self.path);
        command.arg("get").env_clear().envs(std::env::vars_os().filter(own));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| error.to_string())?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());

        let talk = async {
            if let Some(mut stdin) = stdin {
                // A program that doesn't read its input may still answer.
                let _ = stdin.write_all(question.as_bytes()).await;
            }
            let mut text = Zeroizing::new(String::new());
            if let Some(stdout) = stdout {
                stdout.take(MAX_OUTPUT).read_to_string(&mut text).await?;
            }
            Ok::<_, std::io::Error>((text, child.wait().await?))
        };

        let ended = tokio::time::timeout(PATIENCE, talk).await;
        if let (Err(_), Some(group)) = (&ended, group) {
            let _ = signal::killpg(group, signal::Signal::SIGKILL);
        }
        match ended {
            Err(_) => Err(format!("it has not ended within {PATIENCE:?}")),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok((_, status))) if !status.success() => Err(format!("it ended with {status}")),
            Ok(Ok((text, _))) => Ok(text),
        }
    }
}

/// Parses `username` and `password`, or `authtype=Bearer` and `credential`; `password_expiry_utc` is in seconds since
/// 1970.
fn parse(output: &str) -> Option<Minted> {
    let value = |key: &str| {
        let mut lines = output
            .lines()
            .filter_map(|line| line.trim_end_matches('\r').split_once('='));
        lines
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
            .filter(|value| !value.is_empty())
    };
    let printable = |text: &&str| !text.chars().any(char::is_control);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let end = value("password_expiry_utc")
        .and_then(|text| text.parse().ok())
        .map(Duration::from_secs);
    let left = end.map(|end| end.saturating_sub(now));
    if let (Some(kind), Some(token)) = (value("authtype"), value("credential").filter(printable)) {
        return kind
            .eq_ignore_ascii_case("bearer")
            .then(|| Minted::new(None, Secret::new(token), left));
    }
    let password = value("password").filter(printable)?;
    let username = value("username").filter(printable).unwrap_or("git");
    Some(Minted::new(Some(username.to_owned()), Secret::new(password), left))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_program_serves_the_namespaces_that_it_was_given() {
        let rules: Vec<ProgramRule> = [
            "https://h/a /bin/one",
            "https://h /bin/two team-a team-b",
            "https://h/a/b /bin/three *",
        ]
        .map(|rule| rule.parse().unwrap())
        .into();
        let check = |url: &str, namespace: &str, expected: Option<&str>| {
            let chosen = Program::choose(&rules, url, namespace, "admins");
            let path = chosen.map(|program| program.path.display().to_string());
            assert_eq!(path.as_deref(), expected, "{url} {namespace}");
        };
        check("https://h/a/x", "admins", Some("/bin/one"));
        check("https://h/a/x", "team-a", Some("/bin/two"));
        check("https://h/x", "admins", None);
        check("https://h/a/b", "anybody", Some("/bin/three"));
        check("https://other/a", "admins", None);
        for rule in ["", "https://h", "http://h /bin/x", "https://h bin/x", "ssh://h /bin/x"] {
            assert!(rule.parse::<ProgramRule>().is_err(), "{rule:?}");
        }
    }

    #[test]
    fn answers_are_read_as_gits_helpers_write_them() {
        let check = |output: &str, expected: Option<(Option<&str>, &str)>| {
            let minted = parse(output);
            let read = minted
                .as_ref()
                .map(|minted| (minted.username.as_deref(), minted.token.reveal()));
            assert_eq!(read, expected, "{output:?}");
        };
        check("username=u\npassword=p=q\n", Some((Some("u"), "p=q")));
        check("password=p\r\n", Some((Some("git"), "p")));
        check("authtype=Bearer\ncredential=t\n", Some((None, "t")));
        check("authtype=Negotiate\ncredential=t\n", None);
        check("username=u\n", None);
        check("password=\u{1b}\n", None);
        check("quit=1\n", None);
        let minted = parse("password=p\npassword_expiry_utc=1\n").unwrap();
        assert!(
            minted.until <= tokio::time::Instant::now(),
            "one that has ended is used once"
        );
    }

    #[tokio::test]
    async fn a_program_is_asked_with_the_address_and_the_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("helper");
        let make = |script: &str| {
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let program = Program {
            path: path.clone(),
            namespace: "team-a".to_owned(),
        };
        make(r#"[ "$1" = get ] || exit 1; echo password=$(tr '\n' ,)"#);
        let minted = program.ask("h:8443", "/a/b.git").await.unwrap();
        let expected = "capability[]=authtype,protocol=https,host=h:8443,path=a/b.git,namespace=team-a,,";
        assert_eq!(minted.token.reveal(), expected);
        for script in [
            "exit 3",
            "echo nothing",
            "yes password=p | head -c 1000000 | tr -d '\\n'; exit 1",
        ] {
            make(script);
            let problem = program.ask("h", "/a").await.unwrap_err();
            assert_eq!(problem.reason, GitReason::ProgramFailed, "{script}");
        }
    }
}
