//! Output of git and ssh as errors.

use farwater_bundle::path::escape;

use super::error::{GitError, GitReason};
use crate::session::Session;

impl GitError {
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
    use crate::remote::Remote;

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
