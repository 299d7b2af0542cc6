//! Why a Helm repository or a registry returned nothing: typed, with evidence and a remedy, and without secrets.

use farwater_api::Digest;
use url::Url;

/// An attempt at a remote failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {url}: {reason}{}; {}", if evidence.is_empty() { String::new() } else { format!(" ({evidence})") }, reason.remedy())]
pub struct FetchError {
    /// What was attempted: "fetch the index of".
    pub what: &'static str,
    /// Without its query, which may contain a token.
    pub url: String,
    pub reason: FetchReason,
    /// The observation, on one line, without secrets.
    pub evidence: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchReason {
    #[error("the server refused the credentials")]
    Unauthorized,
    #[error("the server wants credentials and the source names none")]
    CredentialsMissing,
    #[error("the credentials are valid and may not read this")]
    Forbidden,
    #[error("there is nothing at this address, or nothing that these credentials may see")]
    NotFound,
    #[error("no answer within {0} s")]
    Timeout(u64),
    #[error("the answer is over {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the server can't be reached")]
    Unreachable,
    #[error("the name of the server's host is not known")]
    HostUnknown,
    #[error("the server's answer broke off")]
    BrokenOff,
    #[error("the server failed")]
    ServerError,
    #[error("the server asks to come later")]
    Throttled,
    #[error("the server answered with something else")]
    Unexpected,
    #[error("the server's certificate is not trusted")]
    Untrusted,
    #[error("the server's certificate has expired, or is not valid yet")]
    CertificateExpired,
    #[error("the server redirects too often, or from https to http")]
    Redirected,
    #[error("it leads to an address that the hub may not connect to")]
    LinkRefused,
    #[error("the proxy refused us")]
    ProxyRefused,
    #[error("credentials would cross the network in clear text")]
    ClearText,
    #[error("{0} does not exist")]
    ReferenceMissing(String),
    #[error("the index can't be read")]
    Index,
    #[error("the manifest can't be read")]
    Manifest,
    #[error("the archive is not taken")]
    Archive,
    #[error("it has the digest {found}, and {wanted} was promised")]
    Digest { wanted: Box<Digest>, found: Box<Digest> },
    #[error("no given key has signed it")]
    Unverified,
    #[error("the disk can't be written")]
    Disk,
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

impl FetchReason {
    /// CamelCase, for a condition's reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unauthorized | Self::CredentialsMissing | Self::Forbidden | Self::ClearText => "AuthenticationFailed",
            Self::NotFound => "RepositoryNotFound",
            Self::ReferenceMissing(_) => "ReferenceNotFound",
            Self::Timeout(_) => "Timeout",
            Self::TooLarge { .. } => "RepositoryTooLarge",
            Self::Unreachable => "Unreachable",
            Self::HostUnknown => "HostNotFound",
            Self::BrokenOff => "AnswerBrokenOff",
            Self::ServerError | Self::Unexpected => "ServerError",
            Self::Throttled => "Throttled",
            Self::Untrusted => "CertificateNotTrusted",
            Self::CertificateExpired => "CertificateExpired",
            Self::Redirected => "Redirected",
            Self::LinkRefused => "AddressNotAllowed",
            Self::ProxyRefused => "ProxyRefused",
            Self::Index => "IndexMalformed",
            Self::Manifest | Self::Archive | Self::Digest { .. } => "ArtifactMalformed",
            Self::Unverified => "VerificationFailed",
            Self::Disk => "MirrorFailed",
        }
    }

    pub fn retry(&self) -> Retry {
        match self {
            Self::Timeout(_)
            | Self::Unreachable
            | Self::HostUnknown
            | Self::BrokenOff
            | Self::ServerError
            | Self::Throttled
            | Self::Unexpected
            | Self::CertificateExpired
            | Self::Disk => Retry::Later,
            _ => Retry::AfterChange,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Unauthorized => "correct the Secret that spec.secretRef names",
            Self::CredentialsMissing => {
                "set spec.secretRef, and check spec.url: some hosts ask for a password where there is nothing"
            }
            Self::Forbidden => "give them read access, or name others in spec.secretRef",
            Self::NotFound => "check spec.url and the credentials",
            Self::HostUnknown => "check spec.url, and the name server of the hub; it will be tried again",
            Self::ReferenceMissing(_) => "correct the reference, or push it",
            Self::Timeout(_) => "raise spec.timeout if it is large; it will be tried again",
            Self::TooLarge { .. } => "use a smaller one",
            Self::Untrusted => "put the certificate authority as ca.crt into the Secret that spec.certSecretRef names",
            Self::CertificateExpired => "have it renewed, or set the clock of the hub or the server right",
            Self::Redirected => "set spec.url to the final address",
            Self::LinkRefused => {
                "if the hub may connect there, an administrator allows its network with the option --allow-private-links"
            }
            Self::ProxyRefused => "correct the Secret that spec.proxySecretRef names, or what the proxy allows",
            Self::ClearText => "use https",
            Self::Index => "make it again with `helm repo index`",
            Self::Manifest | Self::Archive => "push another one; the last fetched revision stays in use",
            Self::Digest { .. } => "make the index or push the artifact again; the last fetched revision stays in use",
            Self::Unverified => "sign it, or correct the keys; the last verified revision stays in use",
            Self::Disk => "check the data directory's disk",
            Self::Unreachable | Self::BrokenOff | Self::ServerError | Self::Throttled | Self::Unexpected => {
                "it will be tried again"
            }
        }
    }
}

impl FetchError {
    pub(crate) fn new(what: &'static str, url: &Url, reason: FetchReason, evidence: impl Into<String>) -> Self {
        Self {
            what,
            url: show(url),
            reason,
            evidence: evidence.into(),
        }
    }

    pub fn retry(&self) -> Retry {
        self.reason.retry()
    }

    /// Whether the server says that it does not have what was asked for.
    pub fn is_missing(&self) -> bool {
        matches!(self.reason, FetchReason::ReferenceMissing(_))
    }
}

/// A printable URL: the query is removed, because it may be a signature that grants access.
pub(crate) fn show(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url.to_string().trim_end_matches('/').to_owned()
}
