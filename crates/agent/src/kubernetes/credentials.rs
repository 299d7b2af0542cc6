//! The agent's credentials for the API server, apart from a client certificate.

use std::path::{Path, PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue, header, request};
use zeroize::Zeroizing;

use super::{
    As,
    files::{Rotating, read_at_most},
    kubeconfig::User,
    resource::percent_encode,
};

/// Most bytes of a token: no API server accepts a larger header.
const MAX_TOKEN: u64 = 1 << 20;
/// Characters that a header's name may contain besides letters and digits, without `%` (as in client-go).
const NAME: &[u8] = b"!#$&'*+-.^_`|~";

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error(
        "the kubeconfig's user gets credentials from the program {0:?} (exec), and the agent starts none: give it a \
         ServiceAccount's token, a tokenFile or a client certificate"
    )]
    Exec(String),
    #[error(
        "the kubeconfig's user gets credentials from the auth-provider {0:?}, and the agent has none: give it a ServiceAccount's \
         token, a tokenFile or a client certificate"
    )]
    AuthProvider(String),
    #[error("read the token in {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("read the token in {}: {problem}", path.display())]
    Token { path: PathBuf, problem: &'static str },
    #[error("use {0} of the kubeconfig's user: it has characters that no header can have")]
    Header(&'static str),
}

#[derive(Debug)]
pub struct Credentials {
    authorization: Authorization,
    /// Headers for the user that the kubeconfig's user acts as.
    acting_as: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Debug)]
enum Authorization {
    None,
    Fixed(HeaderValue),
    File(Rotating<HeaderValue, CredentialsError>),
}

impl Credentials {
    pub fn new(user: &User) -> Result<Self, CredentialsError> {
        if let Some(exec) = &user.exec {
            return Err(CredentialsError::Exec(exec.command.clone()));
        }
        if let Some(provider) = &user.auth_provider {
            return Err(CredentialsError::AuthProvider(provider.name.clone()));
        }
        let authorization = match user {
            User {
                username: Some(name),
                password: Some(password),
                ..
            } => {
                let pair = Zeroizing::new(format!("{name}:{}", password.expose()));
                let header = secret_header("Basic", &STANDARD.encode(pair.as_bytes()));
                Authorization::Fixed(header.ok_or(CredentialsError::Header("username"))?)
            }
            // As in kubectl, the file is newer than a token in the kubeconfig itself.
            User {
                token_file: Some(path),
                token,
                ..
            } => match (Rotating::new(path, read_token), token) {
                (Ok(file), _) => Authorization::File(file),
                (Err(_), Some(token)) => Authorization::Fixed(bearer(token.expose())?),
                (Err(error), None) => return Err(error),
            },
            User { token: Some(token), .. } => Authorization::Fixed(bearer(token.expose())?),
            _ => Authorization::None,
        };
        Ok(Self {
            authorization,
            acting_as: acting_as(user)?,
        })
    }

    /// Reads the file again. Returns whether its content has changed.
    pub fn read_again(&self) -> bool {
        match &self.authorization {
            Authorization::File(file) => file.read_again(),
            Authorization::None | Authorization::Fixed(_) => false,
        }
    }

    /// Adds the credentials to a request. Impersonation in the kubeconfig does not apply to a service's account.
    pub fn sign(&self, who: As<'_>, mut request: request::Builder) -> request::Builder {
        request = match &self.authorization {
            Authorization::None => request,
            Authorization::Fixed(value) => request.header(header::AUTHORIZATION, value),
            Authorization::File(file) => request.header(header::AUTHORIZATION, file.get()),
        };
        if let Some(account) = who {
            let user = format!("system:serviceaccount:{}:{}", account.namespace, account.name);
            return request.header("impersonate-user", user);
        }
        for (name, value) in &self.acting_as {
            request = request.header(name, value);
        }
        request
    }
}

fn bearer(token: &str) -> Result<HeaderValue, CredentialsError> {
    secret_header("Bearer", token.trim()).ok_or(CredentialsError::Header("token"))
}

fn read_token(path: &Path) -> Result<HeaderValue, CredentialsError> {
    let wrong = |problem| CredentialsError::Token {
        path: path.to_owned(),
        problem,
    };
    let bytes = read_at_most(path, MAX_TOKEN);
    let bytes = bytes.map_err(|source| CredentialsError::File {
        path: path.to_owned(),
        source,
    })?;
    let token = Zeroizing::new(bytes);
    let token = std::str::from_utf8(&token).map_err(|_| wrong("it is no text"))?.trim();
    if token.is_empty() {
        return Err(wrong("it is empty"));
    }
    secret_header("Bearer", token).ok_or_else(|| wrong("it has characters that no header can have"))
}

fn secret_header(scheme: &str, secret: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("{scheme} {secret}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn acting_as(user: &User) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialsError> {
    let mut headers = Vec::new();
    if let Some(name) = &user.as_user {
        headers.push(plain_header("impersonate-user", name, "as")?);
    }
    if let Some(uid) = &user.as_uid {
        headers.push(plain_header("impersonate-uid", uid, "as-uid")?);
    }
    for group in &user.as_groups {
        headers.push(plain_header("impersonate-group", group, "as-groups")?);
    }
    for (key, values) in &user.as_user_extra {
        let name = format!("impersonate-extra-{}", percent_encode(key, NAME));
        for value in values {
            headers.push(plain_header(&name, value, "as-user-extra")?);
        }
    }
    Ok(headers)
}

fn plain_header(name: &str, value: &str, field: &'static str) -> Result<(HeaderName, HeaderValue), CredentialsError> {
    let name = HeaderName::try_from(name).map_err(|_| CredentialsError::Header(field))?;
    let value = HeaderValue::try_from(value).map_err(|_| CredentialsError::Header(field))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        fs,
        time::{Duration, Instant},
    };

    use farwater_api::protocol::ServiceAccount;
    use http::{HeaderMap, Request};

    use super::*;
    use crate::{
        hub::chain,
        kubernetes::kubeconfig::{AuthProvider, Exec, Secret},
    };

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::from(text.to_owned()))
    }

    fn headers(user: &User, who: As<'_>) -> HeaderMap {
        let request = Credentials::new(user).unwrap().sign(who, Request::builder());
        request.body(()).unwrap().headers().clone()
    }

    fn authorization(user: &User) -> Option<String> {
        let headers = headers(user, None);
        let value = headers.get(header::AUTHORIZATION)?;
        assert!(value.is_sensitive());
        Some(value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_token_or_a_password_is_sent_and_never_shown() {
        assert_eq!(authorization(&User::default()), None);
        let token = User {
            token: secret("canary\n"),
            token_file: Some("/nowhere".into()),
            ..User::default()
        };
        assert_eq!(authorization(&token).unwrap(), "Bearer canary");
        let basic = User {
            username: Some("al".to_owned()),
            password: secret("canary"),
            ..User::default()
        };
        assert_eq!(
            authorization(&basic).unwrap(),
            format!("Basic {}", STANDARD.encode("al:canary"))
        );
        let damaged = User {
            token: secret("canary\nB"),
            ..User::default()
        };
        for shown in [
            format!("{:?}", Credentials::new(&token).unwrap()),
            format!("{:?}", Credentials::new(&basic).unwrap()),
            format!("{:?}", Credentials::new(&damaged).unwrap_err()),
            Credentials::new(&damaged).unwrap_err().to_string(),
        ] {
            assert!(
                !shown.contains("canary") && !shown.contains(&STANDARD.encode("al:canary")),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_token_file_is_followed_and_outlived() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let user = User {
            token_file: Some(path.clone()),
            ..User::default()
        };
        let refused = || chain(&Credentials::new(&user).unwrap_err());
        assert!(refused().contains("token: No such file"), "{}", refused());
        fs::write(&path, " \n").unwrap();
        assert!(refused().ends_with("token: it is empty"), "{}", refused());
        fs::write(&path, "one\n").unwrap();

        let credentials = Credentials::new(&user).unwrap();
        let Authorization::File(file) = &credentials.authorization else {
            panic!("{credentials:?}")
        };
        let start = Instant::now();
        let at = |seconds| {
            file.get_at(start + Duration::from_secs(seconds))
                .to_str()
                .unwrap()
                .to_owned()
        };
        fs::write(&path, "two\n").unwrap();
        assert_eq!(at(30), "Bearer one");
        assert_eq!(at(61), "Bearer two");
        fs::write(&path, "").unwrap();
        assert_eq!(at(130), "Bearer two");
        fs::remove_file(&path).unwrap();
        assert_eq!(at(200), "Bearer two");
        fs::write(&path, "three").unwrap();
        assert_eq!(at(270), "Bearer three");
        assert!(!format!("{credentials:?}").contains("three"), "{credentials:?}");
        fs::write(&path, "four").unwrap();
        assert!(credentials.read_again() && !credentials.read_again());
        // A token in the kubeconfig is older than the file.
        let both = User {
            token: secret("old"),
            ..user
        };
        assert_eq!(authorization(&both).unwrap(), "Bearer four");
    }

    #[test]
    fn programs_are_refused_by_name_whatever_else_there_is() {
        let refused = |user: User| Credentials::new(&user).unwrap_err().to_string();
        let exec = Some(Exec {
            command: "aws".to_owned(),
        });
        let error = refused(User {
            exec,
            token: secret("t"),
            ..User::default()
        });
        assert!(
            error.contains("\"aws\" (exec)") && error.contains("a tokenFile"),
            "{error}"
        );
        let auth_provider = Some(AuthProvider { name: "gcp".to_owned() });
        let error = refused(User {
            auth_provider,
            ..User::default()
        });
        assert!(
            error.contains("auth-provider \"gcp\"") && error.contains("client certificate"),
            "{error}"
        );
    }

    #[test]
    fn whom_the_user_acts_as_is_said_of_the_agents_own_requests_alone() {
        let user = User {
            token: secret("t"),
            as_user: Some("al".to_owned()),
            as_uid: Some("7".to_owned()),
            as_groups: vec!["a".to_owned(), "b".to_owned()],
            as_user_extra: BTreeMap::from([("Example.com/a%".to_owned(), vec!["x".to_owned()])]),
            ..User::default()
        };
        let own = headers(&user, None);
        assert_eq!(own["impersonate-user"], "al");
        assert_eq!(own["impersonate-uid"], "7");
        assert_eq!(own.get_all("impersonate-group").iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(own["impersonate-extra-example.com%2fa%25"], "x");
        let account = ServiceAccount {
            namespace: "team".to_owned(),
            name: "web".to_owned(),
        };
        let others = headers(&user, Some(&account));
        assert_eq!(others.len(), 2, "{others:?}");
        assert_eq!(others["impersonate-user"], "system:serviceaccount:team:web");
        assert_eq!(others["authorization"], "Bearer t");
        let damaged = User {
            as_groups: vec!["a\nb".to_owned()],
            ..User::default()
        };
        assert!(
            Credentials::new(&damaged)
                .unwrap_err()
                .to_string()
                .contains("as-groups")
        );
    }
}
