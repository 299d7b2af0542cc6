//! Why a Git remote returned nothing: typed, with evidence and a remedy, and without secrets.

use crate::{
    fetch_error::{FetchError, FetchReason, Retry},
    links::ResolveError,
    remote::Remote,
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
