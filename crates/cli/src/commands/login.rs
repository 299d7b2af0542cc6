//! `farwater login`: stores a hub and a token, after the hub has confirmed the token's user.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Uri;
use kube::{Config, config::KubeConfigOptions};
use serde_json::{Value, json};

use crate::{
    commands::version::who_am_i,
    connection::{Session, own_config},
    failure::{Failure, Result},
    format,
    program::Program,
    scope::is_label,
    terminal::{print, say},
    text,
};

/// Tokens and certificates are small; anything else is a mistaken path.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub struct LoginArgs {
    /// The hub's address, for example https://hub.example.com:8443.
    url: String,
    /// File with the token; `-` reads standard input. There is no option for the token itself: other users can see
    /// arguments.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// The authority that signed the hub's certificate, PEM [default: the system's].
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The namespace of the context [default: that of the service account that signs in, else farwater-admin].
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Name of the context [default: the hub's host and port].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub async fn run(args: LoginArgs, program: Program) -> Result<u8> {
    let url = parse_url(&args.url)?;
    if let Some(namespace) = args.namespace.as_ref().filter(|namespace| !is_label(namespace)) {
        return Err(Failure::usage(format!("{namespace:?} can't be a namespace")));
    }
    let token = read_small(&args.token_file, "token")?.trim().to_owned();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(Failure::usage(format!("{} holds no token", args.token_file.display()))
            .evidence("expected one word, the token itself"));
    }
    let ca = args
        .ca
        .as_deref()
        .map(|path| read_small(path, "certificate authority"))
        .transpose()?;
    if ca
        .as_ref()
        .is_some_and(|pem| !pem.contains("-----BEGIN CERTIFICATE-----"))
    {
        return Err(Failure::usage("--ca holds no certificate").evidence("expected PEM: -----BEGIN CERTIFICATE-----"));
    }
    let name = args
        .name
        .unwrap_or_else(|| url.authority().map(ToString::to_string).unwrap_or_default());
    let target = config_file()?;

    let mut config = Login {
        name: &name,
        url: &args.url,
        ca: ca.as_deref(),
        token: &token,
        namespace: farwater_api::ADMIN_NAMESPACE,
    };
    config.url = args.url.trim_end_matches('/');
    let alone = serde_json::from_value(config.merged_into(json!({})))
        .map_err(|error| Failure::usage("can't make a configuration").evidence(error.to_string()))?;
    let checked = Config::from_custom_kubeconfig(alone, &KubeConfigOptions::default())
        .await
        .map_err(|error| Failure::usage("the hub's address or authority can't be used").evidence(error.to_string()))?;
    let user = who_am_i(&Session::with_config(checked, program)?).await?;

    let namespace = args.namespace.unwrap_or_else(|| namespace_of(&user));
    config.namespace = &namespace;
    save(&target, &config)?;
    say(&format!(
        "signed in at {} as {}; written to {}",
        config.url,
        text::plain(&user),
        target.display()
    ));
    print(&format!("{}\n", text::plain(&user)))?;
    Ok(crate::exit::YES)
}

/// The namespace in which an account has rights: for `system:serviceaccount:NAMESPACE:NAME` its own.
fn namespace_of(user: &str) -> String {
    let account = user
        .strip_prefix("system:serviceaccount:")
        .and_then(|account| account.split_once(':'));
    account
        .map_or(farwater_api::ADMIN_NAMESPACE, |(namespace, _)| namespace)
        .to_owned()
}

/// Stores the content of an administrator's kubeconfig of a hub, under `name` and with `server` as its address. Returns
/// the file's path.
pub fn remember(name: &str, server: &str, kubeconfig: &Value) -> Result<PathBuf> {
    let target = config_file()?;
    let authority = kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]
        .as_str()
        .unwrap_or_default();
    let authority = STANDARD
        .decode(authority)
        .ok()
        .and_then(|pem| String::from_utf8(pem).ok());
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap_or_default();
    let login = Login {
        name,
        url: server,
        ca: authority.as_deref(),
        token,
        namespace: farwater_api::ADMIN_NAMESPACE,
    };
    save(&target, &login)?;
    Ok(target)
}

fn config_file() -> Result<PathBuf> {
    own_config().ok_or_else(|| Failure::usage("neither HOME nor XDG_CONFIG_HOME is set"))
}

pub fn parse_url(text: &str) -> Result<Uri> {
    let uri: Uri = text.parse().map_err(|error: http::uri::InvalidUri| {
        Failure::usage(format!("{text:?} is no address")).evidence(error.to_string())
    })?;
    let local = matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if local => Ok(uri),
        Some("http") => Err(Failure::usage("a token is not sent without TLS").evidence(format!("{text} is http"))),
        _ => Err(Failure::usage(format!("{text:?} is no address of a hub"))
            .next(format!("{{program}} login https://{text} …"))),
    }
}

fn read_small(path: &Path, what: &str) -> Result<String> {
    let read = |reader: &mut dyn io::Read| {
        let mut text = String::new();
        reader.take(MAX_FILE_BYTES).read_to_string(&mut text).map(|_| text)
    };
    let text = if path == Path::new("-") {
        read(&mut io::stdin().lock())
    } else {
        fs::File::open(path).and_then(|mut file| read(&mut file))
    };
    text.map_err(|error| Failure::file(&format!("read the {what} from"), path, &error))
}

struct Login<'a> {
    name: &'a str,
    url: &'a str,
    ca: Option<&'a str>,
    token: &'a str,
    namespace: &'a str,
}

impl Login<'_> {
    /// The configuration with this context replacing one of the same name, and made current.
    fn merged_into(&self, mut config: Value) -> Value {
        let mut cluster = json!({"server": self.url});
        if let Some(ca) = self.ca {
            cluster["certificate-authority-data"] = STANDARD.encode(ca).into();
        }
        let context = json!({"cluster": self.name, "user": self.name, "namespace": self.namespace});
        let entries = [
            ("clusters", json!({"name": self.name, "cluster": cluster})),
            ("users", json!({"name": self.name, "user": {"token": self.token}})),
            ("contexts", json!({"name": self.name, "context": context})),
        ];
        config["apiVersion"] = "v1".into();
        config["kind"] = "Config".into();
        config["current-context"] = self.name.into();
        for (list, entry) in entries {
            let mut kept = config[list].as_array().cloned().unwrap_or_default();
            kept.retain(|known| known["name"] != self.name);
            kept.push(entry);
            config[list] = kept.into();
        }
        config
    }
}

/// Written beside and renamed: a reader sees the old or the new file, and only its owner may read either.
fn save(path: &Path, login: &Login<'_>) -> Result<()> {
    let existing = match fs::read_to_string(path) {
        Ok(text) => serde_saphyr::from_str(&text).map_err(|error| {
            Failure::usage(format!("{} is no kubeconfig; it is left as it is", path.display()))
                .evidence(error.to_string())
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => json!({}),
        Err(error) => return Err(Failure::file("read", path, &error)),
    };
    let text = format::yaml(&login.merged_into(existing))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        // Temporary files are made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|error| Failure::file("write", path, &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn login<'a>(name: &'a str, token: &'a str) -> Login<'a> {
        Login {
            name,
            url: "https://hub:8443",
            ca: None,
            token,
            namespace: "team-a",
        }
    }

    #[test]
    fn a_service_account_works_in_its_namespace() {
        assert_eq!(namespace_of("system:serviceaccount:team-a:alice"), "team-a");
        assert_eq!(namespace_of("ada"), "farwater-admin");
    }

    #[test]
    fn a_second_hub_keeps_the_first_and_becomes_current() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("farwater/config");
        save(&path, &login("one", "1e3")).unwrap();
        save(&path, &login("two", "b")).unwrap();
        save(&path, &login("one", "0x10")).unwrap();
        let config = kube::config::Kubeconfig::read_from(&path).unwrap();
        let names: Vec<_> = config.contexts.iter().map(|context| context.name.as_str()).collect();
        assert_eq!(names, ["two", "one"]);
        assert_eq!(config.current_context.as_deref(), Some("one"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        let raw: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(raw["users"][1]["user"]["token"], "0x10", "{text}");
    }

    #[test]
    fn a_file_that_is_no_kubeconfig_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(&path, "[unclosed").unwrap();
        assert!(save(&path, &login("one", "a")).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "[unclosed");
    }

    #[test]
    fn a_token_is_not_sent_in_the_clear() {
        assert!(parse_url("http://hub.example.com").is_err());
        assert!(parse_url("hub.example.com").is_err());
        assert!(parse_url("http://127.0.0.1:8080").is_ok());
        assert!(parse_url("https://hub.example.com:8443").is_ok());
    }
}
