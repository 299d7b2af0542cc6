//! Command line and environment.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{Parser, ValueEnum};
use farwater_api::Digest;

use crate::{
    HealthLimits, WatchLimits,
    limits::{DELETIONS_PER_MINUTE, Limits, Pattern},
};

/// Keeps one Kubernetes cluster as its hub's signed desired state says.
#[derive(Clone, Debug, Parser)]
#[command(name = "farwater-agent", version)]
pub struct Options {
    /// The hub's URL, https://HOST[:PORT]; remembered after the join.
    #[arg(long, env = "FARWATER_HUB", value_name = "URL")]
    pub hub: Option<String>,
    /// One-time token printed by `farwater cluster join`; needed at the first start only.
    #[arg(long, env = "FARWATER_JOIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub join_token: Option<JoinToken>,
    /// File that holds the one-time token.
    #[arg(long, value_name = "FILE", conflicts_with = "join_token")]
    pub join_token_file: Option<PathBuf>,
    /// Digest of the hub's certificate authority, sha256:HEX; remembered after the join.
    #[arg(long, env = "FARWATER_CA_PIN", value_name = "DIGEST")]
    pub ca_pin: Option<Digest>,
    /// PEM file of further certificate authorities that may vouch for the hub: a company's, for what stands in between.
    #[arg(long, env = "FARWATER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Kubeconfig of the cluster; the pod's service account if absent.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Identity, last accepted state and bundles. May be lost: the cluster holds copies.
    #[arg(long, env = "FARWATER_STATE_DIR", value_name = "DIR", default_value = "/var/lib/farwater-agent")]
    pub state_dir: PathBuf,
    /// Address and port that answer /livez, /readyz and /metrics, over plain HTTP; none if absent.
    #[arg(long, env = "FARWATER_HEALTH_LISTEN", value_name = "ADDR")]
    pub health_listen: Option<SocketAddr>,
    /// The Deployment, in the agent's namespace, that starts it: what the hub may change to another version.
    #[arg(long, env = "FARWATER_DEPLOYMENT", value_name = "NAME")]
    pub deployment: Option<String>,
    /// YAML file with the plugins that services may name.
    #[arg(long, env = "FARWATER_PLUGINS", value_name = "FILE")]
    pub plugins: Option<PathBuf>,
    /// The renderer program and its arguments, separated by spaces; farwater-render beside the agent if absent.
    #[arg(long, env = "FARWATER_RENDERER", value_name = "COMMAND")]
    pub renderer: Option<String>,
    /// Service accounts that services may act as, whatever the hub says: NAMESPACE/NAME with `*`; repeated or separated by commas. Those
    /// of kube-system, kube-public and kube-node-lease only by the full name of their namespace [default: */*]
    #[arg(long, env = "FARWATER_ALLOW_ACCOUNTS", value_name = "PATTERN", value_delimiter = ',')]
    pub allow_accounts: Vec<Pattern>,
    /// Namespaces that services may touch, whatever the hub says, with `*`; kube-system, kube-public and kube-node-lease only by their
    /// full names [default: *]
    #[arg(long, env = "FARWATER_ALLOW_NAMESPACES", value_name = "PATTERN", value_delimiter = ',')]
    pub allow_namespaces: Vec<Pattern>,
    /// Kinds that services may not change, whatever the hub says: RESOURCE[.GROUP] with `*` [default: none]
    #[arg(long, env = "FARWATER_DENY_KINDS", value_name = "PATTERN", value_delimiter = ',')]
    pub deny_kinds: Vec<Pattern>,
    /// Objects that are deleted for services per minute; further ones wait.
    #[arg(long, env = "FARWATER_MAX_DELETIONS", value_name = "N", default_value_t = DELETIONS_PER_MINUTE)]
    pub max_deletions: u32,
    /// Set by the agent itself when it changes its Deployment.
    #[arg(long, env = "FARWATER_AGENT_SETTINGS", value_name = "DIGEST", hide = true)]
    pub agent_settings: Option<Digest>,
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// How long watches are trusted. Not set on the command line, but by tests.
    #[arg(skip)]
    pub watches: WatchLimits,
    /// How long unhealthy objects are waited for. Not set on the command line, but by tests.
    #[arg(skip)]
    pub health: HealthLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// A one-time token. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken(String);

impl JoinToken {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl FromStr for JoinToken {
    type Err = EmptyToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() { Err(EmptyToken) } else { Ok(Self(text.to_owned())) }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("read join token: it is empty")]
pub struct EmptyToken;

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken(…)")
    }
}

impl Options {
    /// The agent's own limits.
    pub fn limits(&self) -> Limits {
        let Self { allow_accounts, allow_namespaces, deny_kinds, max_deletions, .. } = self;
        Limits::new(allow_accounts.clone(), allow_namespaces.clone(), deny_kinds.clone(), *max_deletions)
    }

    /// The token, from its option or file. None: none was given.
    pub fn token(&self) -> Result<Option<JoinToken>, TokenFileError> {
        let Some(path) = &self.join_token_file else { return Ok(self.join_token.clone()) };
        let error = |source| TokenFileError { path: path.clone(), source };
        let text = std::fs::read_to_string(path).map_err(error)?;
        text.parse().map(Some).map_err(|e| error(std::io::Error::other(e)))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("read join token from {}", path.display())]
pub struct TokenFileError {
    path: PathBuf,
    source: std::io::Error,
}
