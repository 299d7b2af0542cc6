//! The hub's configuration of backends: their names, how to reach them, and which namespaces may read which paths.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

/// Maximum number of backends of one hub.
const MAX_BACKENDS: usize = 100;
/// Reserved names: `hub` for the hub's Secrets, and those of the target cluster.
pub const RESERVED: [&str; 2] = ["hub", "cluster"];

/// A file of the hub's.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    #[serde(default)]
    pub backends: Vec<Named>,
    /// Interval in seconds at which references in use are refreshed.
    #[serde(default = "default_refresh")]
    pub refresh_seconds: u32,
}

fn default_refresh() -> u32 {
    300
}

/// One backend, by the name that references use.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Named {
    pub name: String,
    /// Paths that may be read. Empty: none.
    #[serde(default)]
    pub allow: Vec<Allow>,
    #[serde(default)]
    pub files: Option<Files>,
    #[serde(default)]
    pub environment: Option<Environment>,
    #[serde(default)]
    pub vault: Option<Vault>,
    #[serde(default)]
    pub program: Option<Program>,
}

/// Paths that objects of some namespaces may read.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Allow {
    /// Names of namespaces. A `*` at the end matches any rest.
    pub namespaces: Vec<String>,
    /// Paths, with everything below them. `{namespace}` stands for the namespace's name.
    pub paths: Vec<String>,
}

/// A folder with a folder for each path, and a file for each value, as Kubernetes mounts Secrets.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Files {
    pub folder: PathBuf,
}

/// Variables of the hub's environment, by path.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Environment {
    /// Names of the variables, by path.
    pub variables: BTreeMap<String, Vec<String>>,
}

/// A server of Vault, or another one with Vault's HTTP API.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Vault {
    /// `https://HOST[:PORT]`. `http` is allowed only for this machine.
    pub address: String,
    /// PEM file of the authorities that issue the server's certificate. Empty: those of the machine.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Vault namespace. Empty: the root namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Mounts of key-value engines, each with its version, 1 or 2.
    pub mounts: BTreeMap<String, u8>,
    pub auth: Auth,
}

/// How the hub signs in to Vault. All secret parts are in files, which the hub reads each time.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Auth {
    #[serde(rename_all = "camelCase")]
    Token { file: PathBuf },
    #[serde(rename_all = "camelCase")]
    AppRole {
        #[serde(default = "default_app_role")]
        mount: String,
        role_id: String,
        secret_id_file: PathBuf,
    },
    #[serde(rename_all = "camelCase")]
    Kubernetes {
        #[serde(default = "default_kubernetes")]
        mount: String,
        role: String,
        #[serde(default = "default_token_file")]
        token_file: PathBuf,
    },
}

fn default_app_role() -> String {
    "approle".to_owned()
}

fn default_kubernetes() -> String {
    "kubernetes".to_owned()
}

fn default_token_file() -> PathBuf {
    PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/token")
}

/// A program that reads a reference and prints its values.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Program {
    /// Absolute path of the program, and its arguments.
    pub command: Vec<String>,
    /// All variables of its environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("there are {0} backends; the maximum is {MAX_BACKENDS}")]
    TooMany(usize),
    #[error("backend {0:?} is defined twice")]
    Twice(String),
    #[error("{0:?} can't be a backend's name: use at most 63 lower-case letters, digits and '-'")]
    Name(String),
    #[error("{0:?} is a backend of every hub: choose another name")]
    Reserved(String),
    #[error("backend {name}: it has {found} kinds; set exactly one of files, environment, vault and program")]
    Kind { name: String, found: usize },
    #[error("backend {name}: {problem}")]
    Setting { name: String, problem: String },
    #[error("refreshSeconds is {0}; it must be between 10 and 86400")]
    Refresh(u32),
}

impl Config {
    pub fn refresh(&self) -> Duration {
        Duration::from_secs(self.refresh_seconds.into())
    }

    /// Finds errors that need no request to a backend.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(10..=86_400).contains(&self.refresh_seconds) {
            return Err(ConfigError::Refresh(self.refresh_seconds));
        }
        if self.backends.len() > MAX_BACKENDS {
            return Err(ConfigError::TooMany(self.backends.len()));
        }
        for (at, backend) in self.backends.iter().enumerate() {
            let name = &backend.name;
            let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            if name.is_empty() || name.len() > 63 || !name.bytes().all(is_word) {
                return Err(ConfigError::Name(name.clone()));
            }
            if RESERVED.contains(&name.as_str()) {
                return Err(ConfigError::Reserved(name.clone()));
            }
            if self.backends[..at].iter().any(|other| other.name == *name) {
                return Err(ConfigError::Twice(name.clone()));
            }
            let kinds = [
                backend.files.is_some(),
                backend.environment.is_some(),
                backend.vault.is_some(),
                backend.program.is_some(),
            ];
            let found = kinds.into_iter().filter(|kind| *kind).count();
            if found != 1 {
                return Err(ConfigError::Kind {
                    name: name.clone(),
                    found,
                });
            }
        }
        Ok(())
    }
}

impl Allow {
    /// Whether an object of this namespace may read this path.
    pub(crate) fn covers(&self, namespace: &str, path: &str) -> bool {
        let is_named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => namespace.starts_with(start),
            None => pattern == namespace,
        };
        let is_below = |allowed: &String| {
            let allowed = allowed.replace("{namespace}", namespace);
            let allowed = allowed.trim_end_matches('/');
            let rest = path.strip_prefix(allowed);
            allowed.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.namespaces.iter().any(is_named) && self.paths.iter().any(is_below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_reads_what_is_allowed_and_what_is_below_it() {
        let allow = |namespaces: &[&str], paths: &[&str]| Allow {
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        };
        let own = allow(&["team-*"], &["kv/{namespace}/", "kv/shared"]);
        for (namespace, path, expected) in [
            ("team-a", "kv/team-a/web", true),
            ("team-a", "kv/team-a", true),
            ("team-a", "kv/shared/x", true),
            ("team-a", "kv/team-b/web", false),
            ("team-a", "kv/team-ab", false),
            ("team-a", "kv/sharedx", false),
            ("other", "kv/shared", false),
        ] {
            assert_eq!(own.covers(namespace, path), expected, "{namespace} {path}");
        }
        assert!(allow(&["farwater-admin"], &[""]).covers("farwater-admin", "anything"));
        assert!(!allow(&[], &[""]).covers("a", "b") && !allow(&["*"], &[]).covers("a", "b"));
    }

    #[test]
    fn a_backend_is_of_one_kind_and_has_a_name_of_its_own() {
        let check = |text: &str, expected: &str| {
            let config: Result<Config, _> = serde_saphyr::from_str(text);
            let error = match config {
                Ok(config) => config.check().err().map(|error| error.to_string()).unwrap_or_default(),
                Err(error) => error.to_string(),
            };
            assert!(
                error.contains(expected) && error.is_empty() == expected.is_empty(),
                "{text}: {error}"
            );
        };
        check("backends: [{name: a, files: {folder: /x}}]", "");
        check("backends: [{name: a}]", "it has 0 kinds");
        check(
            "backends: [{name: a, files: {folder: /x}, environment: {variables: {}}}]",
            "it has 2 kinds",
        );
        check("backends: [{name: hub, files: {folder: /x}}]", "a backend of every hub");
        check(
            "backends: [{name: A, files: {folder: /x}}]",
            "can't be a backend's name",
        );
        check(
            "backends: [{name: a, files: {folder: /x}}, {name: a, files: {folder: /y}}]",
            "is defined twice",
        );
        check("refreshSeconds: 1", "between 10 and 86400");
        check("backends: [{name: a, file: {folder: /x}}]", "file");
        check(
            "backends: [{name: a, vault: {address: 'https://x', mounts: {kv: 2}, auth: {appRole: {roleId: r, secretIdFile: /s}}}}]",
            "",
        );
    }
}
