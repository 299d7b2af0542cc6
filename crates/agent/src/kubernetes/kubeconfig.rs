//! A kubeconfig, parsed like manifests: kube's own reader would add a second YAML parser, half a megabyte.
//!
//! Only the current context is read, and of it only what the agent can use.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

use farwater_bundle::yaml;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use zeroize::Zeroizing;

use super::files::read_at_most;

/// Most bytes: far more than a kubeconfig of a whole fleet has.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("{path}: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error("{path}, line {line}: {error}")]
    Yaml {
        path: String,
        line: u32,
        error: yaml::YamlError,
    },
    #[error("{0} holds several documents: keep one")]
    Several(String),
    #[error("{0} has no current-context: choose one with `kubectl config use-context`")]
    NoContext(String),
    #[error("{path}: there is no {name:?} in {list}, where the current context looks for it")]
    Missing {
        path: String,
        list: &'static str,
        name: String,
    },
    #[error("{path}: {name:?} of {list}: {problem}")]
    Shape {
        path: String,
        list: &'static str,
        name: String,
        problem: String,
    },
}

/// A cluster, and the agent's user on it.
#[derive(Debug)]
pub struct Access {
    pub cluster: Cluster,
    pub user: User,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Cluster {
    pub server: String,
    pub certificate_authority: Option<PathBuf>,
    pub certificate_authority_data: Option<String>,
    pub insecure_skip_tls_verify: bool,
    pub tls_server_name: Option<String>,
    pub proxy_url: Option<Secret>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct User {
    pub client_certificate: Option<PathBuf>,
    pub client_certificate_data: Option<String>,
    pub client_key: Option<PathBuf>,
    pub client_key_data: Option<Secret>,
    pub token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    pub token_file: Option<PathBuf>,
    pub username: Option<String>,
    pub password: Option<Secret>,
    #[serde(rename = "as")]
    pub as_user: Option<String>,
    pub as_uid: Option<String>,
    pub as_groups: Vec<String>,
    pub as_user_extra: BTreeMap<String, Vec<String>>,
    pub exec: Option<Exec>,
    pub auth_provider: Option<AuthProvider>,
}

/// A program that supplies credentials.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Exec {
    pub command: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct AuthProvider {
    pub name: String,
}

/// A token, a password or a key. Never printed.
#[derive(Deserialize)]
#[serde(from = "String")]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

/// The current context, with relative paths resolved against the file's folder.
pub fn read(path: &Path) -> Result<Access, KubeconfigError> {
    let kubeconfig = Kubeconfig::open(path)?;
    let Some(current) = kubeconfig.value["current-context"].as_str() else {
        return Err(KubeconfigError::NoContext(kubeconfig.path));
    };
    let context: Context = kubeconfig.required("contexts", "context", current)?;
    let mut cluster: Cluster = kubeconfig.required("clusters", "cluster", &context.cluster)?;
    // As in kubectl, a user that the file does not describe has no credentials.
    let mut user: User = kubeconfig.named("users", "user", &context.user)?.unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new(""));
    let files = [
        &mut cluster.certificate_authority,
        &mut user.client_certificate,
        &mut user.client_key,
        &mut user.token_file,
    ];
    for file in files.into_iter().flatten() {
        *file = folder.join(&*file);
    }
    Ok(Access { cluster, user })
}

struct Kubeconfig {
    path: String,
    value: Value,
}

impl Kubeconfig {
    fn open(path: &Path) -> Result<Self, KubeconfigError> {
        let name = || path.display().to_string();
        let unreadable = |error| KubeconfigError::Unreadable { path: name(), error };
        let bytes = read_at_most(path, MAX_BYTES).map_err(unreadable)?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable(io::Error::other("it is no text in UTF-8")))?;
        let broken = |error: yaml::YamlError| KubeconfigError::Yaml {
            path: name(),
            line: error.line,
            error,
        };
        let mut documents = yaml::parse(&text, &yaml::Budget::default()).map_err(broken)?;
        documents.retain(|document| !document.is_null());
        if documents.len() > 1 {
            return Err(KubeconfigError::Several(name()));
        }
        let document = documents.pop().map(yaml::Node::into_json).transpose().map_err(broken)?;
        let mut value = document.unwrap_or_default();
        drop_empty(&mut value);
        Ok(Self { path: name(), value })
    }

    fn required<T: DeserializeOwned>(&self, list: &'static str, field: &str, name: &str) -> Result<T, KubeconfigError> {
        let missing = || KubeconfigError::Missing {
            path: self.path.clone(),
            list,
            name: name.to_owned(),
        };
        self.named(list, field, name)?.ok_or_else(missing)
    }

    /// The entry with this name in a list of the file.
    fn named<T: DeserializeOwned>(
        &self,
        list: &'static str,
        field: &str,
        name: &str,
    ) -> Result<Option<T>, KubeconfigError> {
        let mut items = self.value[list].as_array().into_iter().flatten();
        let Some(item) = items.find(|item| item["name"].as_str().unwrap_or_default() == name) else {
            return Ok(None);
        };
        serde_json::from_value(item[field].clone()).map_err(|error| KubeconfigError::Shape {
            path: self.path.clone(),
            list,
            name: name.to_owned(),
            problem: expectation(&error),
        })
    }
}

/// Removes nulls and empty texts, which kubectl treats as absent.
fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| name == "current-context" || !(field.is_null() || *field == ""));
            fields.values_mut().for_each(drop_empty);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

/// serde's message without the value that it quotes, because that may be a secret.
fn expectation(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(", expected ")
        .map_or_else(|| text.clone(), |(_, expected)| format!("want {expected}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn read_text(text: &str) -> Result<Access, String> {
        let (_folder, path) = written(text);
        read(&path).map_err(|error| error.to_string())
    }

    /// A kubeconfig with this cluster and user, as flow mappings.
    fn with(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: east\n\
             clusters:\n- {{name: west, cluster: {{server: [1]}}}}\n- {{name: east, cluster: {cluster}}}\n\
             contexts: [{{name: east, context: {{cluster: east, user: agent, namespace: null}}}}]\n\
             users: [{{name: agent, user: {user}}}]\n"
        )
    }

    #[test]
    fn paths_are_meant_from_where_the_file_lies() {
        let (folder, path) = written(&with(
            "{server: 'https://10.0.0.1:6443', certificate-authority: ca.crt}",
            "{tokenFile: /run/token, client-certificate: agent.crt, client-key: keys/agent.key}",
        ));
        let Access { cluster, user } = read(&path).unwrap();
        let below = |name: &str| Some(folder.path().join(name));
        assert_eq!(cluster.server, "https://10.0.0.1:6443");
        assert_eq!(cluster.certificate_authority, below("ca.crt"));
        assert_eq!(user.client_certificate, below("agent.crt"));
        assert_eq!(user.client_key, below("keys/agent.key"));
        assert_eq!(user.token_file.as_deref(), Some(Path::new("/run/token")));
    }

    #[test]
    fn every_field_that_is_used_is_read() {
        let Access { cluster, user } = read_text(&with(
            "{server: 'https://a', certificate-authority-data: QQ==, insecure-skip-tls-verify: true, tls-server-name: b, \
             proxy-url: 'http://c', disable-compression: true, extensions: []}",
            "{client-certificate-data: Qg==, client-key-data: Qw==, token: t, username: u, password: p, as: a, as-uid: '1', \
             as-groups: [g], as-user-extra: {scopes: [s]}, exec: {command: login, args: null}, auth-provider: {name: oidc}}",
        ))
        .unwrap();
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("QQ=="));
        assert!(cluster.insecure_skip_tls_verify);
        assert_eq!(cluster.tls_server_name.as_deref(), Some("b"));
        assert_eq!(cluster.proxy_url.unwrap().expose(), "http://c");
        assert_eq!(user.client_certificate_data.as_deref(), Some("Qg=="));
        let secrets = [&user.client_key_data, &user.token, &user.password];
        assert_eq!(
            secrets.map(|secret| secret.as_ref().unwrap().expose()),
            ["Qw==", "t", "p"]
        );
        assert_eq!(
            [user.username, user.as_user, user.as_uid].map(Option::unwrap),
            ["u", "a", "1"]
        );
        assert_eq!(
            (user.as_groups[0].as_str(), user.as_user_extra["scopes"][0].as_str()),
            ("g", "s")
        );
        assert_eq!(
            (
                user.exec.unwrap().command.as_str(),
                user.auth_provider.unwrap().name.as_str()
            ),
            ("login", "oidc")
        );
    }

    #[test]
    fn what_is_null_or_empty_is_not_given() {
        let text = with(
            "{server: 'https://a', certificate-authority: '', insecure-skip-tls-verify: null}",
            "{token: '', as-groups: null, exec: null, auth-provider: ~}",
        );
        let Access { cluster, user } = read_text(&text).unwrap();
        assert!(cluster.certificate_authority.is_none() && !cluster.insecure_skip_tls_verify);
        assert!(user.token.is_none() && user.as_groups.is_empty() && user.exec.is_none());
        // As client-go writes one for a single cluster, with a user that is not described.
        let unnamed = "current-context: ''\nusers: null\ncontexts: [{name: '', context: {cluster: '', user: nobody}}]\n\
                       clusters: [{name: '', cluster: {server: http://b}}]\n";
        let Access { cluster, user } = read_text(unnamed).unwrap();
        assert_eq!(cluster.server, "http://b");
        assert!(user.token.is_none());
    }

    #[test]
    fn json_is_read_too() {
        let config = serde_json::json!({
            "current-context": "east",
            "clusters": [{"name": "east", "cluster": {"server": "https://a", "certificate-authority-data": "Q".repeat(4096)}}],
            "contexts": [{"name": "east", "context": {"cluster": "east", "user": "agent"}}],
            "users": [{"name": "agent", "user": {"token": "t"}}],
        });
        for text in [config.to_string(), serde_json::to_string_pretty(&config).unwrap()] {
            assert_eq!(read_text(&text).unwrap().user.token.unwrap().expose(), "t");
        }
    }

    #[test]
    fn what_is_no_kubeconfig_is_told_with_its_file_and_place() {
        let error = |text: &str| read_text(text).unwrap_err();
        let contains = |text: &str, expected: &str| assert!(error(text).contains(expected), "{}", error(text));
        contains("clusters: [\n", "kubeconfig, line ");
        contains("clusters: {}\n", "has no current-context: choose one");
        contains("current-context: ~\n", "has no current-context: choose one");
        contains("current-context: east\ncontexts: ~\n", "no \"east\" in contexts");
        contains(&with("~", "{}"), "no \"east\" in clusters");
        contains(&with("{server: {}}", "{}"), "\"east\" of clusters: want a string");
        contains("a: 1\n---\nb: 2\n", "several documents");
        contains(&"#".repeat((1 << 20) + 1), "over 1048576 bytes");
        let missing = read(Path::new("/nowhere/kubeconfig")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/kubeconfig: No such file"), "{missing}");
    }

    #[test]
    fn secrets_are_in_no_error_and_not_printed() {
        let server = "{server: 'https://a', proxy-url: 'http://me:canary@b'}";
        for user in [
            "canary",
            "{token: [canary]}",
            "{token: {canary: 1}}",
            "{client-key-data: [canary]}",
        ] {
            let error = read_text(&with(server, user)).unwrap_err();
            assert!(
                error.contains("\"agent\" of users: want ") && !error.contains("canary"),
                "{error}"
            );
        }
        let access = read_text(&with(
            server,
            "{token: canary, password: canary, client-key-data: canary}",
        ))
        .unwrap();
        assert!(!format!("{access:?}").contains("canary"), "{access:?}");
    }
}
