//! Why a Git remote returned nothing: typed, with evidence and a remedy, and without secrets.

use farwater_bundle::path::escape;

use crate::{
    fetch_error::{FetchError, FetchReason},
    links::ResolveError,
    remote::Remote,
    session::Session,
};

/// An attempt at a remote failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {url}: {reason}{}; {}", if evidence.is_empty() { String::new() } else { format!(" ({evidence})") }, reason.remedy())]
pub struct GitError {
    /// What was attempted: "fetch from".
    pub what: &'static str,
    pub url: String,
    pub reason: GitReason,
    /// The observation, on one line, with secrets removed.
    pub evidence: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GitReason {
    #[error("the server refused the credentials")]
    Unauthorized,
    #[error("the server wants credentials and the repository names none")]
    CredentialsMissing,
    #[error("the credentials are valid and may not read this repository")]
    Forbidden,
    #[error("there is no repository at this address, or none that these credentials may see")]
    NotFound,
    #[error("{0} does not exist")]
    ReferenceMissing(String),
    #[error("the server doesn't hand out this commit")]
    CommitRefused,
    #[error("the repository is empty")]
    Empty,
    #[error("no answer within {0} s")]
    Timeout(u64),
    #[error("the transfer stalled")]
    Stalled,
    #[error("the repository takes over {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the remote lists over {limit} references")]
    TooManyRefs { limit: usize },
    #[error("the remote's answer is over {limit} bytes")]
    AnswerTooLarge { limit: usize },
    #[error("the server can't be reached")]
    Unreachable,
    #[error("the name of the server's host is not known")]
    HostUnknown,
    #[error("the server's answer broke off")]
    BrokenOff,
    #[error("the server failed")]
    ServerError,
    #[error("the server asks to be asked less often")]
    Throttled,
    #[error("the server's certificate is not trusted")]
    Untrusted,
    #[error("the server's certificate has expired, or is not valid yet")]
    CertificateExpired,
    #[error("it leads to an address that the hub may not connect to")]
    LinkRefused,
    #[error("the proxy refused us")]
    ProxyRefused,
    #[error("the Secret's known_hosts has no key of this server")]
    HostKeyUnknown,
    #[error("the server shows another key than the one in the Secret's known_hosts")]
    HostKeyChanged,
    #[error("the key can't be used: {0}")]
    KeyUnusable(String),
    #[error("the program that says the credentials failed")]
    ProgramFailed,
    #[error("the server redirects to another address, which is not followed")]
    Redirected,
    #[error("the repository holds a malformed or hostile object")]
    Malformed,
    #[error("the mirror lacks objects that the remote should have sent")]
    MirrorIncomplete,
    #[error("the mirror can't be written")]
    Disk,
    #[error("the branch is not where it was a moment ago")]
    BranchMoved,
    #[error("the server rejected the push")]
    PushRefused,
    #[error("git can't be run")]
    NoGit,
    #[error("git failed")]
    Failed,
}

/// Whether a retry can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// At the next poll: a problem of the network or the server.
    Later,
    /// Something must be changed first: the source's spec, its Secret or the repository. Polling continues, because the
    /// repository may be what changes.
    AfterChange,
}

impl GitReason {
    /// CamelCase, for a condition's reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unauthorized | Self::CredentialsMissing | Self::Forbidden => "AuthenticationFailed",
            Self::NotFound => "RepositoryNotFound",
            Self::ReferenceMissing(_) | Self::CommitRefused => "ReferenceNotFound",
            Self::Empty => "RepositoryEmpty",
            Self::Timeout(_) | Self::Stalled => "Timeout",
            Self::TooLarge { .. } | Self::TooManyRefs { .. } | Self::AnswerTooLarge { .. } => "RepositoryTooLarge",
            Self::Unreachable => "Unreachable",
            Self::HostUnknown => "HostNotFound",
            Self::BrokenOff => "AnswerBrokenOff",
            Self::ServerError => "ServerError",
            Self::Throttled => "Throttled",
            Self::Untrusted => "CertificateNotTrusted",
            Self::CertificateExpired => "CertificateExpired",
            Self::LinkRefused => "AddressNotAllowed",
            Self::ProxyRefused => "ProxyRefused",
            Self::HostKeyUnknown | Self::HostKeyChanged => "HostKeyNotTrusted",
            Self::KeyUnusable(_) => "SecretInvalid",
            Self::ProgramFailed => "CredentialsUnavailable",
            Self::Redirected => "Redirected",
            Self::Malformed => "RepositoryMalformed",
            Self::MirrorIncomplete | Self::Disk => "MirrorFailed",
            Self::BranchMoved => "BranchMoved",
            Self::PushRefused => "PushRefused",
            Self::NoGit | Self::Failed => "GitFailed",
        }
    }

    pub fn retry(&self) -> Retry {
        match self {
            Self::Timeout(_)
            | Self::Stalled
            | Self::Unreachable
            | Self::HostUnknown
            | Self::BrokenOff
            | Self::ServerError
            | Self::Throttled
            | Self::CertificateExpired
            | Self::ProgramFailed
            | Self::MirrorIncomplete
            | Self::Disk
            | Self::BranchMoved
            | Self::NoGit
            | Self::Failed => Retry::Later,
            _ => Retry::AfterChange,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Unauthorized => "correct the Secret that spec.secretRef names",
            Self::CredentialsMissing => {
                "set spec.secretRef, and check spec.url: some hosts ask for a password where there is no repository"
            }
            Self::Forbidden => "give them read access, or name others in spec.secretRef",
            Self::NotFound => "check spec.url and the credentials",
            Self::HostUnknown => "check spec.url, and the name server of the hub; it will be tried again",
            Self::ReferenceMissing(_) | Self::CommitRefused => "correct spec.ref, or push it",
            Self::Empty => "push a commit",
            Self::Timeout(_) => "raise spec.timeout if the repository is large; it will be tried again",
            Self::TooLarge { .. } => "use a smaller repository: deploy from one without large files in its history",
            Self::TooManyRefs { .. } | Self::AnswerTooLarge { .. } => {
                "follow a branch or a tag instead of a range, or remove old references"
            }
            Self::CertificateExpired => "have it renewed, or set the clock of the hub or the server right",
            Self::LinkRefused => {
                "if the hub may connect there, an administrator allows its network with the option --allow-private-links"
            }
            Self::ProxyRefused => "correct the Secret that spec.proxySecretRef names, or what the proxy allows",
            Self::HostKeyUnknown => {
                "put into known_hosts what ssh-keyscan prints for the host, after comparing it with what the host publishes"
            }
            Self::HostKeyChanged => {
                "if the host says that it changed its key, put the new one into known_hosts; otherwise the connection is intercepted"
            }
            Self::KeyUnusable(_) => "correct the Secret that spec.secretRef names",
            Self::ProgramFailed => "see the hub's log and its option --credential-program; it will be tried again",
            Self::Untrusted => "put the certificate authority as ca.crt into the Secret that spec.secretRef names",
            Self::Redirected => "set spec.url to the final address",
            Self::Malformed => "run `git fsck` on the repository and rewrite the commit that it names",
            Self::Disk => "check the data directory's disk",
            Self::PushRefused => "let these credentials push to branches below farwater/promote/",
            Self::NoGit => "install git on the hub",
            Self::Stalled
            | Self::Unreachable
            | Self::BrokenOff
            | Self::ServerError
            | Self::Throttled
            | Self::MirrorIncomplete
            | Self::BranchMoved
            | Self::Failed => "it will be tried again",
        }
    }

    pub(super) fn is_refused_commit(&self) -> bool {
        matches!(self, Self::CommitRefused | Self::ReferenceMissing(_))
    }
}

impl GitError {
    pub(super) fn new(what: &'static str, remote: &Remote, reason: GitReason, evidence: String) -> Self {
        Self {
            what,
            url: remote.url().to_owned(),
            reason,
            evidence,
        }
    }

    pub fn retry(&self) -> Retry {
        self.reason.retry()
    }

    /// From git's output, which the environment makes English.
    pub(super) fn from_stderr(what: &'static str, session: &Session<'_>, stderr: &str) -> Self {
        let reason = classify(stderr, session.has_credentials());
        Self::new(what, session.remote, reason, evidence(session, stderr))
    }

    /// From ssh's output, which includes the remote host's. None: it explains nothing.
    pub(crate) fn from_ssh(what: &'static str, session: &Session<'_>, stderr: &str) -> Option<Self> {
        let (_, reason) = SSH_PHRASES.iter().find(|(phrase, _)| stderr.contains(phrase))?;
        Some(Self::new(
            what,
            session.remote,
            reason.clone(),
            ssh_evidence(session, stderr),
        ))
    }
}

/// A reason with its evidence, before the attempted action is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub reason: GitReason,
    pub evidence: String,
}

impl Problem {
    pub fn new(reason: GitReason, evidence: impl Into<String>) -> Self {
        Self {
            reason,
            evidence: evidence.into(),
        }
    }

    pub fn at(self, what: &'static str, remote: &Remote) -> GitError {
        GitError::new(what, remote, self.reason, self.evidence)
    }
}

impl From<ResolveError> for Problem {
    fn from(error: ResolveError) -> Self {
        let reason = match error {
            ResolveError::Unresolved { .. } => GitReason::HostUnknown,
            ResolveError::Refused(_) => GitReason::LinkRefused,
        };
        Self::new(reason, error.to_string())
    }
}

impl From<FetchError> for Problem {
    fn from(error: FetchError) -> Self {
        let reason = match error.reason {
            FetchReason::Unauthorized => GitReason::Unauthorized,
            FetchReason::CredentialsMissing => GitReason::CredentialsMissing,
            FetchReason::Forbidden => GitReason::Forbidden,
            FetchReason::NotFound => GitReason::NotFound,
            FetchReason::Timeout(seconds) => GitReason::Timeout(seconds),
            FetchReason::TooLarge { limit } => GitReason::AnswerTooLarge {
                limit: usize::try_from(limit).unwrap_or(usize::MAX),
            },
            FetchReason::Unreachable => GitReason::Unreachable,
            FetchReason::HostUnknown => GitReason::HostUnknown,
            FetchReason::BrokenOff => GitReason::BrokenOff,
            FetchReason::ServerError | FetchReason::Unexpected => GitReason::ServerError,
            FetchReason::Throttled => GitReason::Throttled,
            FetchReason::Untrusted => GitReason::Untrusted,
            FetchReason::CertificateExpired => GitReason::CertificateExpired,
            FetchReason::Redirected => GitReason::Redirected,
            FetchReason::LinkRefused => GitReason::LinkRefused,
            FetchReason::ProxyRefused => GitReason::ProxyRefused,
            FetchReason::Disk => GitReason::Disk,
            _ => GitReason::Failed,
        };
        Self::new(reason, error.evidence)
    }
}

/// Phrases of git 2.30 to 2.51 and of libcurl. Unknown output is `Failed`, with the evidence.
const PHRASES: [(&str, GitReason); 48] = [
    // Before phrases that a server's message may contain.
    ("(stale info)", GitReason::BranchMoved),
    ("[remote rejected]", GitReason::PushRefused),
    ("returned error: 403", GitReason::Forbidden),
    ("returned error: 404", GitReason::NotFound),
    ("not found", GitReason::NotFound),
    ("not valid: is this a git repository", GitReason::NotFound),
    ("returned error: 30", GitReason::Redirected),
    ("unable to update url base from redirection", GitReason::Redirected),
    ("returned error: 5", GitReason::ServerError),
    ("returned error: 429", GitReason::Throttled),
    ("from proxy after CONNECT", GitReason::ProxyRefused),
    ("CONNECT tunnel failed", GitReason::ProxyRefused),
    ("returned error: 407", GitReason::ProxyRefused),
    ("couldn't find remote ref", GitReason::CommitRefused),
    ("not our ref", GitReason::CommitRefused),
    ("unadvertised object", GitReason::CommitRefused),
    ("Operation too slow", GitReason::Stalled),
    ("fsck error", GitReason::Malformed),
    // Interrupted TLS connections, in the words of each library.
    (
        "gnutls_handshake() failed: The TLS connection was non-properly terminated",
        GitReason::Unreachable,
    ),
    ("non-properly terminated", GitReason::BrokenOff),
    ("GnuTLS recv error", GitReason::BrokenOff),
    ("SSL_read", GitReason::BrokenOff),
    ("SSL_ERROR_SYSCALL", GitReason::Unreachable),
    ("certificate has expired", GitReason::CertificateExpired),
    ("certificate expiration date", GitReason::CertificateExpired),
    ("certificate is not yet valid", GitReason::CertificateExpired),
    ("certificate", GitReason::Untrusted),
    ("SSL", GitReason::Untrusted),
    ("Could not resolve host", GitReason::HostUnknown),
    ("Failed to connect", GitReason::Unreachable),
    ("Couldn't connect", GitReason::Unreachable),
    ("Connection refused", GitReason::Unreachable),
    ("Connection reset", GitReason::Unreachable),
    ("Recv failure", GitReason::Unreachable),
    ("timed out", GitReason::Unreachable),
    // From here on the server was reached.
    ("Empty reply from server", GitReason::BrokenOff),
    ("transfer closed", GitReason::BrokenOff),
    ("early EOF", GitReason::BrokenOff),
    ("hung up unexpectedly", GitReason::BrokenOff),
    ("RPC failed", GitReason::BrokenOff),
    ("expected flush after ref listing", GitReason::BrokenOff),
    ("unexpected disconnect", GitReason::BrokenOff),
    ("invalid index-pack output", GitReason::BrokenOff),
    ("protocol error", GitReason::BrokenOff),
    ("No space left on device", GitReason::Disk),
    ("Permission denied", GitReason::Disk),
    ("Read-only file system", GitReason::Disk),
    ("missing necessary objects", GitReason::MirrorIncomplete),
];

/// Uses only git's own lines, because the server controls the others.
fn classify(stderr: &str, has_credentials: bool) -> GitReason {
    let own: Vec<&str> = stderr
        .lines()
        .filter(|line| !line.starts_with(SAID_BY_SERVER))
        .collect();
    let stderr = own.join("\n");
    let unauthorized = [
        "could not read Username",
        "could not read Password",
        "Authentication failed",
        "returned error: 401",
    ];
    if unauthorized.iter().any(|phrase| stderr.contains(phrase)) {
        return if has_credentials {
            GitReason::Unauthorized
        } else {
            GitReason::CredentialsMissing
        };
    }
    PHRASES
        .iter()
        .find(|(phrase, _)| stderr.contains(phrase))
        .map_or(GitReason::Failed, |(_, reason)| reason.clone())
}

/// Phrases of OpenSSH 8.4 to 10.0, and of large hosts instead of them.
const SSH_PHRASES: [(&str, GitReason); 20] = [
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", GitReason::HostKeyChanged),
    (
        "has changed and you have requested strict checking",
        GitReason::HostKeyChanged,
    ),
    ("host key is known for", GitReason::HostKeyUnknown),
    ("Host key verification failed", GitReason::HostKeyUnknown),
    ("Permission denied (", GitReason::Unauthorized),
    ("Too many authentication failures", GitReason::Unauthorized),
    ("does not appear to be a git repository", GitReason::NotFound),
    ("epository not found", GitReason::NotFound),
    ("could not be found", GitReason::NotFound),
    ("Connection refused", GitReason::Unreachable),
    ("Connection timed out", GitReason::Unreachable),
    ("Connection reset", GitReason::Unreachable),
    ("Connection closed by", GitReason::Unreachable),
    ("Connection to ", GitReason::Unreachable),
    ("No route to host", GitReason::Unreachable),
    ("Network is unreachable", GitReason::Unreachable),
    ("Timeout, server", GitReason::Unreachable),
    ("kex_exchange_identification", GitReason::Unreachable),
    ("banner exchange", GitReason::Unreachable),
    ("No user exists for uid", GitReason::NoGit),
];

/// Git's prefix of each line from the server.
const SAID_BY_SERVER: &str = "remote: ";
/// Lines of a server that are shown.
const SHOWN_LINES: usize = 3;

/// The first informative line of git's errors, and the server's own lines: printable, short, and without secrets.
fn evidence(session: &Session<'_>, stderr: &str) -> String {
    // `! [remote rejected] 1a2b -> branch (why)`
    // Git runs without a prompt for passwords: its line about that has no information about the remote.
    let telling = |line: &&str| {
        ["fatal: ", "error: ", "! ["]
            .iter()
            .any(|start| line.starts_with(start))
            && !line.contains("askpass")
    };
    let (said, own): (Vec<&str>, Vec<&str>) = stderr.lines().partition(|line| line.starts_with(SAID_BY_SERVER));
    let line = own
        .iter()
        .map(|line| line.trim())
        .find(telling)
        .or(own.iter().copied().find(|l| !l.trim().is_empty()));
    let said = server_words(session, &said);
    let line = match (line, said.is_empty()) {
        (Some(line), _) => line,
        (None, true) => "no output",
        (None, false) => return format!("the server says: {said}"),
    };
    let line = line.replace(session.remote.url(), "the repository");
    // Escape last, because escaping could hide a secret from the redaction.
    let line = escape(session.redact(&line).as_bytes());
    if said.is_empty() {
        line
    } else {
        format!("{line}; the server says: {said}")
    }
}

/// The last lines of a server, without its counts of objects, each as short as other evidence.
fn server_words(session: &Session<'_>, said: &[&str]) -> String {
    const PROGRESS: [&str; 4] = [
        "Enumerating objects",
        "Counting objects",
        "Compressing objects",
        "Total ",
    ];
    let lines = said
        .iter()
        .map(|line| line[SAID_BY_SERVER.len()..].trim_matches(|edge: char| edge.is_whitespace() || edge.is_control()));
    let lines: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !PROGRESS.iter().any(|start| line.starts_with(start)))
        .collect();
    let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].iter();
    let last = last.map(|line| {
        escape(
            session
                .redact(&line.replace(session.remote.url(), "the repository"))
                .as_bytes(),
        )
    });
    last.collect::<Vec<_>>().join(" / ")
}

/// The line with a known phrase, otherwise the last one: servers print greetings before it.
fn ssh_evidence(session: &Session<'_>, stderr: &str) -> String {
    let telling = |line: &&str| SSH_PHRASES.iter().any(|(phrase, _)| line.contains(phrase)) && !line.starts_with('@');
    let mut lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines
        .clone()
        .find(telling)
        .or_else(|| lines.next_back())
        .unwrap_or("no output");
    escape(session.redact(line).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn check(stderr: &str, reason: GitReason) {
        assert_eq!(classify(stderr, true), reason, "{stderr}");
    }

    #[test]
    fn what_git_prints_is_understood() {
        check(
            "fatal: could not read Username for 'https://h': terminal prompts disabled",
            GitReason::Unauthorized,
        );
        check("fatal: repository 'https://h/x/' not found", GitReason::NotFound);
        check(
            "fatal: unable to access 'https://h/': The requested URL returned error: 503",
            GitReason::ServerError,
        );
        check(
            "fatal: unable to access 'https://h/': The requested URL returned error: 301",
            GitReason::Redirected,
        );
        check(
            "fatal: unable to access 'https://h/': Failed to connect to h port 443: Connection refused",
            GitReason::Unreachable,
        );
        for (cut, reason) in [
            (
                "GnuTLS recv error (-110): The TLS connection was non-properly terminated.",
                GitReason::BrokenOff,
            ),
            (
                "gnutls_handshake() failed: The TLS connection was non-properly terminated.",
                GitReason::Unreachable,
            ),
            (
                "OpenSSL SSL_read: error:0A000126:SSL routines::unexpected eof while reading, errno 0",
                GitReason::BrokenOff,
            ),
            (
                "OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to h:443",
                GitReason::Unreachable,
            ),
        ] {
            check(&format!("fatal: unable to access 'https://h/': {cut}"), reason);
        }
        check(
            "fatal: unable to access 'https://h/': SSL certificate problem: self-signed",
            GitReason::Untrusted,
        );
        check(
            "error: object 1: hasDotdot: contains '..'\nfatal: fsck error in packed object",
            GitReason::Malformed,
        );
        check(
            "fatal: early EOF\nfatal: fetch-pack: invalid index-pack output",
            GitReason::BrokenOff,
        );
        check(
            "error: RPC failed; curl 18 transfer closed with outstanding read data remaining",
            GitReason::BrokenOff,
        );
        check("fatal: something new", GitReason::Failed);
        check("remote: repository not found\nfatal: something new", GitReason::Failed);
        assert_eq!(
            classify("The requested URL returned error: 401", false),
            GitReason::CredentialsMissing
        );
    }

    #[test]
    fn evidence_is_one_printable_line_without_secrets() {
        let secret = BTreeMap::from([
            ("username".into(), b"u".to_vec()),
            ("password".into(), b"hunter2".to_vec()),
        ]);
        let remote = Remote::new("https://h/a.git", Some(&secret)).unwrap();
        let session = Session::of(&remote);
        let stderr =
            "remote: \u{1b}[31mhello\nfatal: unable to access 'https://h/a.git/': hunter2 Basic dTpodW50ZXIy\u{7}\n";
        let error = GitError::from_stderr("fetch from", &session, stderr);
        let expected = r"fatal: unable to access 'the repository/': *** Basic ***\u{7}; the server says: [31mhello";
        assert_eq!(error.evidence, expected);
        assert_eq!(
            error.to_string(),
            format!("fetch from https://h/a.git: git failed ({expected}); it will be tried again")
        );
    }

    #[test]
    fn what_the_server_says_is_told_beside_what_git_says() {
        let secret = BTreeMap::from([
            ("username".into(), b"u".to_vec()),
            ("password".into(), b"hunter2".to_vec()),
        ]);
        let remote = Remote::new("https://h/a.git", Some(&secret)).unwrap();
        let session = Session::of(&remote);
        let check = |stderr: &str, expected: &str| {
            assert_eq!(GitError::from_stderr("fetch from", &session, stderr).evidence, expected);
        };
        check(
            "remote: Counting objects: 3, done.        \nremote: fatal: unable to read d8df\nremote: aborting for hunter2\n\
             fatal: early EOF\nfatal: fetch-pack: invalid index-pack output\n",
            "fatal: early EOF; the server says: fatal: unable to read d8df / aborting for ***",
        );
        check("remote: closed for repairs\n", "the server says: closed for repairs");
        check("", "no output");
        let long = format!("remote: {}\nfatal: early EOF\n", "x".repeat(1000));
        check(
            &long,
            &format!("fatal: early EOF; the server says: {}…", "x".repeat(160)),
        );
        let many = "remote: a\nremote: b\nremote: c\nremote: d\nfatal: early EOF\n";
        check(many, "fatal: early EOF; the server says: b / c / d");
    }
}
