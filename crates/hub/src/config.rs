//! The hub's options: from flags, then the environment, then a file, all by the same names.

mod advertise;
pub(crate) mod database;
pub mod environment;
mod file;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, ValueEnum};
use farwater_sources::{Links, Network, ProgramRule};
use farwater_store::PostgresUrl;
use thiserror::Error;

use crate::{identity::MountedFiles, memory::mirrors::SourceSettings};
pub use advertise::Advertise;
use advertise::{parse_advertise, parse_san};
use file::{MAX_FILE_BYTES, parse_file, read_file};

pub use database::{DatabaseError, DatabasePassword, DatabaseUrl, locate, store_location};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8443);

const LOOPBACK: [Network; 2] = [
    Network::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    Network::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
];

/// Options of `farwater hub`. Each can also be set by its environment variable, or by its name in the file of --config.
#[derive(Args, Clone, Debug, Default)]
pub struct HubArgs {
    /// Directory for the hub's data: the SQLite database, keys, Git mirrors and the administrator's kubeconfig
    #[arg(long, value_name = "DIR", env = "FARWATER_DATA_DIR")]
    pub data_dir: Option<PathBuf>,

    /// URL of a PostgreSQL database, postgres://USER@HOST[:PORT]/DATABASE [default: SQLite, hub.db in --data-dir]
    #[arg(long, value_name = "URL", env = "FARWATER_DATABASE", hide_env_values = true)]
    pub database: Option<DatabaseUrl>,

    /// Password of the database. Other users of the machine can read a command line: prefer the variable or
    /// --database-password-file
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "FARWATER_DATABASE_PASSWORD",
        hide_env_values = true
    )]
    pub database_password: Option<DatabasePassword>,

    /// File with the password of the database, one line
    #[arg(long, value_name = "FILE", env = "FARWATER_DATABASE_PASSWORD_FILE")]
    pub database_password_file: Option<PathBuf>,

    /// IP address and port to listen on; port 0 takes a free port [default: 127.0.0.1:8443]
    #[arg(long, value_name = "ADDR", env = "FARWATER_LISTEN")]
    pub listen: Option<SocketAddr>,

    /// YAML file with these options by their names; flags and variables take precedence [default: none]
    #[arg(long, value_name = "FILE", env = "FARWATER_CONFIG")]
    pub config: Option<PathBuf>,

    /// URL of the hub for agents and kubeconfigs, https://HOST[:PORT] [default: https://<listen>]
    #[arg(long, value_name = "URL", env = "FARWATER_ADVERTISE", value_parser = parse_advertise)]
    pub advertise: Option<Advertise>,

    /// Additional DNS names and IP addresses of the certificate that the hub issues, comma-separated [default: none]
    #[arg(long, value_name = "NAME", env = "FARWATER_TLS_SAN", value_delimiter = ',', value_parser = parse_san)]
    pub tls_san: Vec<String>,

    /// PEM file with the server's certificate and its chain; the hub reloads it when it changes [default: issued by the
    /// hub]
    #[arg(long, value_name = "FILE", env = "FARWATER_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", env = "FARWATER_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// PEM file with the authority that issued --tls-cert [default: ca.crt beside it, else the root in its chain, else
    /// a public authority]
    #[arg(long, value_name = "FILE", env = "FARWATER_TLS_CA")]
    pub tls_ca: Option<PathBuf>,

    /// Format of the log on standard error [default: text]
    #[arg(long, value_name = "FORMAT", env = "FARWATER_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Most detailed level of log lines [default: info]
    #[arg(long, value_name = "LEVEL", env = "FARWATER_LOG_LEVEL")]
    pub log_level: Option<LogLevel>,

    /// Loopback address and port that serve /metrics over plain HTTP without a token [default: none]
    #[arg(long, value_name = "ADDR", env = "FARWATER_METRICS_LISTEN", value_parser = parse_loopback)]
    pub metrics_listen: Option<SocketAddr>,

    /// Maximum number of open connections [default: 10000]
    #[arg(long, value_name = "N", env = "FARWATER_MAX_CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: Option<u32>,

    /// Maximum number of API requests in progress; further requests wait [default: 64]
    #[arg(long, value_name = "N", env = "FARWATER_MAX_API_REQUESTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_api_requests: Option<u32>,

    /// Maximum number of watches; the hub answers further ones with 429, and the client retries [default: 10000]
    #[arg(long, value_name = "N", env = "FARWATER_MAX_WATCHES", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_watches: Option<u32>,

    /// Maximum number of agents' requests in progress; further requests wait [default: 256]
    #[arg(long, value_name = "N", env = "FARWATER_MAX_AGENT_REQUESTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_agent_requests: Option<u32>,

    /// Maximum number of agents with an open connection for hints of changes; further agents only poll. 0: all agents
    /// only poll [default: 10000]
    #[arg(long, value_name = "N", env = "FARWATER_MAX_CONNECTED_AGENTS", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub max_connected_agents: Option<u32>,

    /// Private networks that the hub may connect to, e.g. 10.1.0.0/16, comma-separated: for links in repositories,
    /// indexes and charts, for notifications and gates, and for sources on the hub's machine [default: none; the
    /// loopback networks if --listen and --advertise are loopback addresses]
    #[arg(
        long,
        value_name = "NETWORK",
        env = "FARWATER_ALLOW_PRIVATE_LINKS",
        value_delimiter = ','
    )]
    pub allow_private_links: Vec<Network>,

    /// Program that returns the credentials of sources whose URL begins with PREFIX: "PREFIX PROGRAM [NAMESPACE ...]",
    /// comma-separated. Without a NAMESPACE only for sources of the administrators [default: none]
    #[arg(
        long,
        value_name = "RULE",
        env = "FARWATER_CREDENTIAL_PROGRAM",
        value_delimiter = ','
    )]
    pub credential_program: Vec<ProgramRule>,

    /// YAML file that names the secret backends outside the hub [default: none]
    #[arg(long, value_name = "FILE", env = "FARWATER_SECRET_BACKENDS")]
    pub secret_backends: Option<PathBuf>,

    /// Time for requests in progress to finish when the hub stops, in seconds [default: 10]
    #[arg(long, value_name = "SECONDS", env = "FARWATER_DRAIN_SECONDS", value_parser = clap::value_parser!(u32).range(0..=600))]
    pub drain_seconds: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

/// The options in force.
#[derive(Clone, Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    /// None: a file in the data directory.
    pub database: Option<PostgresUrl>,
    pub listen: SocketAddr,
    pub advertise: Option<Advertise>,
    pub tls_san: Vec<String>,
    /// None: the hub issues its certificate itself.
    pub tls: Option<MountedFiles>,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
    pub metrics_listen: Option<SocketAddr>,
    pub max_connections: usize,
    pub max_api_requests: usize,
    pub max_watches: usize,
    pub max_agent_requests: usize,
    pub max_connected_agents: usize,
    pub sources: SourceSettings,
    pub secret_backends: Option<PathBuf>,
    pub drain: Duration,
    pub patience: Patience,
}

/// How long clients may take before their connections are closed. These are no options, because other values are not
/// needed.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// From the handshake to the head of the first request.
    pub first_request: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(30),
        }
    }
}

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("read the configuration file {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("read the configuration file {}: it is longer than {MAX_FILE_BYTES} bytes", .path.display())]
    TooLong { path: PathBuf },
    #[error("parse the configuration file {}: {message}", .path.display())]
    Parse { path: PathBuf, message: String },
    #[error("{}: unknown option {name:?}; valid options: {valid}", .path.display())]
    Unknown { path: PathBuf, name: String, valid: String },
    #[error("{}: {message}", .path.display())]
    Value { path: PathBuf, message: String },
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("option {option} is missing: give --{option}, {variable} or {option} in the configuration file")]
    Missing {
        option: &'static str,
        variable: &'static str,
    },
    #[error("option {given} is given without {lacking}: a certificate needs both tls-cert and tls-key")]
    Pair { given: &'static str, lacking: &'static str },
}

impl HubArgs {
    /// Reads the file, if one is named, and sets the options that are unset.
    pub fn resolve(self) -> Result<Config, ConfigError> {
        let file = match &self.config {
            Some(path) => parse_file(path, &read_file(path)?)?,
            None => Self::default(),
        };
        let set = self.or(file);

        let data_dir = set.data_dir.ok_or(ConfigError::Missing {
            option: "data-dir",
            variable: "FARWATER_DATA_DIR",
        })?;
        let password = set.database_password;
        let database = database::resolve(set.database, password, set.database_password_file.as_deref())?;
        let tls = pair(set.tls_cert, set.tls_key, set.tls_ca)?;

        let listen = set.listen.unwrap_or(DEFAULT_LISTEN);
        let mut allowed = set.allow_private_links;
        // A hub on a developer's machine, next to its Git server. A hub behind a proxy is advertised by the proxy's
        // name.
        let is_tried_out = listen.ip().is_loopback() && set.advertise.as_ref().is_none_or(Advertise::is_loopback);
        if allowed.is_empty() && is_tried_out {
            allowed = LOOPBACK.to_vec();
        }

        Ok(Config {
            data_dir,
            database,
            listen,
            advertise: set.advertise,
            tls_san: set.tls_san,
            tls,
            log_format: set.log_format.unwrap_or_default(),
            log_level: set.log_level.unwrap_or_default(),
            metrics_listen: set.metrics_listen,
            max_connections: set.max_connections.unwrap_or(10_000) as usize,
            max_api_requests: set.max_api_requests.unwrap_or(64) as usize,
            max_watches: set.max_watches.unwrap_or(10_000) as usize,
            max_agent_requests: set.max_agent_requests.unwrap_or(256) as usize,
            max_connected_agents: set.max_connected_agents.unwrap_or(10_000) as usize,
            sources: SourceSettings {
                links: Links::new(allowed),
                programs: set.credential_program,
            },
            secret_backends: set.secret_backends,
            drain: Duration::from_secs(set.drain_seconds.unwrap_or(10).into()),
            patience: Patience::default(),
        })
    }

    /// The options of `self`, and those of `other` where they are unset.
    fn or(self, other: Self) -> Self {
        Self {
            data_dir: self.data_dir.or(other.data_dir),
            database: self.database.or(other.database),
            database_password: self.database_password.or(other.database_password),
            database_password_file: self.database_password_file.or(other.database_password_file),
            listen: self.listen.or(other.listen),
            config: self.config,
            advertise: self.advertise.or(other.advertise),
            tls_san: first(self.tls_san, other.tls_san),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            tls_ca: self.tls_ca.or(other.tls_ca),
            log_format: self.log_format.or(other.log_format),
            log_level: self.log_level.or(other.log_level),
            metrics_listen: self.metrics_listen.or(other.metrics_listen),
            max_connections: self.max_connections.or(other.max_connections),
            max_api_requests: self.max_api_requests.or(other.max_api_requests),
            max_watches: self.max_watches.or(other.max_watches),
            max_agent_requests: self.max_agent_requests.or(other.max_agent_requests),
            max_connected_agents: self.max_connected_agents.or(other.max_connected_agents),
            allow_private_links: first(self.allow_private_links, other.allow_private_links),
            credential_program: first(self.credential_program, other.credential_program),
            secret_backends: self.secret_backends.or(other.secret_backends),
            drain_seconds: self.drain_seconds.or(other.drain_seconds),
        }
    }
}

fn first<T>(list: Vec<T>, other: Vec<T>) -> Vec<T> {
    if list.is_empty() { other } else { list }
}

fn pair(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    authority: Option<PathBuf>,
) -> Result<Option<MountedFiles>, ConfigError> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(MountedFiles {
            certificate,
            key,
            authority,
        })),
        (None, None) if authority.is_some() => Err(ConfigError::Pair {
            given: "tls-ca",
            lacking: "tls-cert",
        }),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ConfigError::Pair {
            given: "tls-cert",
            lacking: "tls-key",
        }),
        (None, Some(_)) => Err(ConfigError::Pair {
            given: "tls-key",
            lacking: "tls-cert",
        }),
    }
}

fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "expected IP:PORT".to_owned())?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(
        "the metrics listener serves without a token, so it must be a loopback address; for another address use \
         /metrics of the hub with a token"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Result<HubArgs, String> {
        parse_file(Path::new("hub.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn file_sets_the_options_of_the_flags() {
        let args = parse(
            "data-dir: /srv/hub\nlisten: 0.0.0.0:443\nadvertise: https://hub.example.com\ntls-san: [a.example, 10.0.0.1]\n\
             log-format: json\nmax-connections: 12\n",
        )
        .unwrap();
        assert_eq!(args.data_dir.unwrap(), Path::new("/srv/hub"));
        assert_eq!(args.listen.unwrap().to_string(), "0.0.0.0:443");
        assert_eq!(args.advertise.unwrap().host(), "hub.example.com");
        assert_eq!(args.tls_san, ["a.example", "10.0.0.1"]);
        assert_eq!(args.log_format, Some(LogFormat::Json));
        assert_eq!(args.max_connections, Some(12));
    }

    #[test]
    fn what_sources_may_do_is_said_in_lists() {
        let text = "data-dir: /srv\nallow-private-links: [10.0.0.0/8, fd00::/8]\n\
                    credential-program: https://dev.example/org /usr/bin/token team-a\n";
        let config = parse(text).unwrap().resolve().unwrap();
        let networks = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap());
        assert_eq!(config.sources.links, Links::new(networks));
        assert_eq!(
            config.sources.programs,
            ["https://dev.example/org /usr/bin/token team-a".parse().unwrap()]
        );
        let links = |text: &str| {
            parse(&format!("data-dir: /srv\n{text}"))
                .unwrap()
                .resolve()
                .unwrap()
                .sources
                .links
        };
        // On a developer's machine, and elsewhere.
        for (text, is_tried_out) in [
            ("", true),
            ("advertise: https://localhost:8443\n", true),
            ("advertise: https://hub.example.com\n", false),
            ("listen: 0.0.0.0:8443\n", false),
            ("listen: 10.0.0.1:8443\n", false),
            ("allow-private-links: [10.0.0.0/8]\n", false),
        ] {
            assert_eq!(links(text).allows("127.0.0.1".parse().unwrap()), is_tried_out, "{text}");
            assert!(!links(text).allows("169.254.169.254".parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn empty_file_sets_nothing() {
        assert!(parse("").unwrap().data_dir.is_none());
        assert!(parse("# nothing yet\n").unwrap().data_dir.is_none());
    }

    #[test]
    fn unknown_option_is_named_with_the_valid_ones() {
        let error = parse("lisen: 127.0.0.1:1\n").unwrap_err();
        assert_eq!(
            error,
            "hub.yaml: unknown option \"lisen\"; valid options: data-dir, database, \
             database-password, database-password-file, listen, advertise, tls-san, tls-cert, tls-key, tls-ca, log-format, \
             log-level, metrics-listen, max-connections, max-api-requests, max-watches, max-agent-requests, \
             max-connected-agents, allow-private-links, credential-program, secret-backends, drain-seconds"
        );
        assert!(
            parse("config: other.yaml\n")
                .unwrap_err()
                .contains("unknown option \"config\"")
        );
    }

    #[test]
    fn wrong_values_name_the_option() {
        let check = |text: &str, part: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        };
        check("listen: nowhere\n", "--listen");
        check("log-format: xml\n", "--log-format");
        check("log-format: xml\n", "json");
        check("advertise: http://hub.example.com\n", "--advertise");
        check(
            "advertise: https://user@hub.example.com\n",
            "expected https://HOST[:PORT]",
        );
        check("metrics-listen: 0.0.0.0:9090\n", "must be a loopback address");
        check("max-connections: 0\n", "--max-connections");
        check("tls-san: ['bad name']\n", "--tls-san");
        check("allow-private-links: [10.0.0.0/33]\n", "--allow-private-links");
        check("credential-program: https://h\n", "expected PREFIX PROGRAM");
        check("listen: {port: 1}\n", "option listen: expected a scalar");
        check("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", "duplicate");
        check("- listen\n", "expected a mapping");
    }

    #[test]
    fn every_option_is_documented_with_its_variable() {
        let page = include_str!("../../../docs/hub.md");
        let command = HubArgs::augment_args(clap::Command::new("hub"));
        for arg in command.get_arguments() {
            let (Some(name), Some(variable)) = (arg.get_long(), arg.get_env()) else {
                continue;
            };
            if name != "config" {
                let row = format!("| `{name}` | `{}` |", variable.to_string_lossy());
                assert!(page.contains(&row), "docs/hub.md lacks {row}");
            }
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub.yaml");
        std::fs::write(&path, "data-dir: /from-file\nlisten: 127.0.0.1:1\n").unwrap();
        let args = HubArgs {
            config: Some(path),
            listen: Some("127.0.0.1:2".parse().unwrap()),
            ..HubArgs::default()
        };
        let config = args.resolve().unwrap();
        assert_eq!(config.data_dir, Path::new("/from-file"));
        assert_eq!(config.listen.port(), 2);
    }

    #[test]
    fn a_certificate_is_mounted_with_its_key() {
        let resolve = |text: &str| parse(&format!("data-dir: /srv\n{text}")).unwrap().resolve();
        let files = resolve("tls-cert: /tls/tls.crt\ntls-key: /tls/tls.key\n")
            .unwrap()
            .tls
            .unwrap();
        assert_eq!(
            (files.key.as_path(), files.authority),
            (Path::new("/tls/tls.key"), None)
        );
        assert!(resolve("").unwrap().tls.is_none());
        for (text, lacking) in [
            ("tls-cert: a\n", "tls-key"),
            ("tls-key: a\n", "tls-cert"),
            ("tls-ca: a\n", "tls-cert"),
        ] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(&format!("without {lacking}")), "{error}");
        }
    }

    #[test]
    fn data_directory_must_be_given() {
        let error = HubArgs::default().resolve().unwrap_err().to_string();
        assert!(error.contains("--data-dir, FARWATER_DATA_DIR or data-dir"), "{error}");
    }

    #[test]
    fn unspecified_listener_is_advertised_as_loopback() {
        let check = |address: &str, url: &str, host: &str| {
            let advertise = Advertise::of_listener(address.parse().unwrap());
            assert_eq!((advertise.url(), advertise.host()), (url, host));
        };
        check("0.0.0.0:8443", "https://127.0.0.1:8443", "127.0.0.1");
        check("[::]:8443", "https://[::1]:8443", "::1");
        check("10.1.2.3:8443", "https://10.1.2.3:8443", "10.1.2.3");
    }
}
