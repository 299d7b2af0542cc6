//! Command line and environment.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{Parser, ValueEnum};
use farwater_api::Digest;

use crate::{
    HealthLimits, WatchLimits,
    limits::{DELETIONS_PER_MINUTE, Limits, Pattern},
};

/// Applies the hub's signed desired state to one Kubernetes cluster, and reports.
#[derive(Clone, Debug, Parser)]
#[command(name = "farwater-agent", version)]
pub struct Options {
    /// URL of the hub, https://HOST[:PORT]. If absent, the agent uses the URL of its join.
    #[arg(long, env = "FARWATER_HUB", value_name = "URL")]
    pub hub: Option<String>,
    /// One-time token that `farwater cluster join` prints. Only the first start needs it.
    #[arg(long, env = "FARWATER_JOIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub join_token: Option<JoinToken>,
    /// File with the one-time token.
    #[arg(long, value_name = "FILE", conflicts_with = "join_token")]
    pub join_token_file: Option<PathBuf>,
    /// Digest of the hub's certificate authority, sha256:HEX. If absent, the agent uses the digest of its join.
    #[arg(long, env = "FARWATER_CA_PIN", value_name = "DIGEST")]
    pub ca_pin: Option<Digest>,
    /// PEM file with additional certificate authorities for the hub, e.g. that of a proxy that inspects TLS; none if
    /// absent.
    #[arg(long, env = "FARWATER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Kubeconfig of the cluster, whose current context is used; the pod's service account if absent.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Directory for the identity, the last desired state and bundles. It may be lost: the cluster holds copies.
    #[arg(
        long,
        env = "FARWATER_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/farwater-agent"
    )]
    pub state_dir: PathBuf,
    /// IP address and port that serve /livez, /readyz and /metrics over plain HTTP; none if absent.
    #[arg(long, env = "FARWATER_HEALTH_LISTEN", value_name = "ADDR")]
    pub health_listen: Option<SocketAddr>,
    /// Name of the Deployment that starts the agent, in the agent's namespace. An AgentPolicy of the hub may change its
    /// version. If absent, the hub can't update the agent.
    #[arg(long, env = "FARWATER_DEPLOYMENT", value_name = "NAME")]
    pub deployment: Option<String>,
    /// YAML file with the plugins that services may name as renderers; none if absent.
    #[arg(long, env = "FARWATER_PLUGINS", value_name = "FILE")]
    pub plugins: Option<PathBuf>,
    /// Renderer program and its arguments, separated by spaces; farwater-render beside the agent if absent.
    #[arg(long, env = "FARWATER_RENDERER", value_name = "COMMAND")]
    pub renderer: Option<String>,
    /// Service accounts that services may act as: NAMESPACE/NAME with `*`, repeated or comma-separated. The hub can't
    /// widen this. Accounts of kube-system, kube-public and kube-node-lease need the full name of their namespace
    /// [default: */*]
    #[arg(long, env = "FARWATER_ALLOW_ACCOUNTS", value_name = "PATTERN", value_delimiter = ',')]
    pub allow_accounts: Vec<Pattern>,
    /// Namespaces that services may touch: names with `*`, repeated or comma-separated. The hub can't widen this.
    /// kube-system, kube-public and kube-node-lease need their full names [default: *]
    #[arg(
        long,
        env = "FARWATER_ALLOW_NAMESPACES",
        value_name = "PATTERN",
        value_delimiter = ','
    )]
    pub allow_namespaces: Vec<Pattern>,
    /// Kinds that services must not change: RESOURCE[.GROUP] with `*`, repeated or comma-separated. The hub can't allow
    /// them [default: none]
    #[arg(long, env = "FARWATER_DENY_KINDS", value_name = "PATTERN", value_delimiter = ',')]
    pub deny_kinds: Vec<Pattern>,
    /// Maximum number of objects that the agent deletes for services per minute; further deletions wait.
    #[arg(long, env = "FARWATER_MAX_DELETIONS", value_name = "N", default_value_t = DELETIONS_PER_MINUTE)]
    pub max_deletions: u32,
    /// Digest of the settings in the agent's Deployment. The agent sets it itself when it changes the Deployment.
    #[arg(long, env = "FARWATER_AGENT_SETTINGS", value_name = "DIGEST", hide = true)]
    pub agent_settings: Option<Digest>,
    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// How long the agent trusts watches. Only tests set it.
    #[arg(skip)]
    pub watches: WatchLimits,
    /// How long the agent waits for unhealthy objects. Only tests set it.
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
        if text.is_empty() {
            Err(EmptyToken)
        } else {
            Ok(Self(text.to_owned()))
        }
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
        let Self {
            allow_accounts,
            allow_namespaces,
            deny_kinds,
            max_deletions,
            ..
        } = self;
        Limits::new(
            allow_accounts.clone(),
            allow_namespaces.clone(),
            deny_kinds.clone(),
            *max_deletions,
        )
    }

    /// The token, from its option or file. None: neither is set.
    pub fn token(&self) -> Result<Option<JoinToken>, TokenFileError> {
        let Some(path) = &self.join_token_file else {
            return Ok(self.join_token.clone());
        };
        let error = |source| TokenFileError {
            path: path.clone(),
            source,
        };
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
