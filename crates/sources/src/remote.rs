//! A repository with everything for requests to it: its address, credentials, trusted authorities, and proxy.

use std::sync::Arc;

use crate::{
    access::SecretData,
    address::{Address, Scheme},
    credentials::{Proxy, is_loopback, read_proxy, read_secret},
    program::Program,
};
pub use crate::{
    credentials::{Credentials, RemoteError},
    secret::Secret,
};

#[derive(Clone, Debug)]
pub struct Remote {
    address: Address,
    credentials: Option<Credentials>,
    ca: Option<String>,
    proxy: Option<Proxy>,
    link: Option<Link>,
}

/// The origin of a remote that no spec states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// A repository on another host.
    Of(String),
    /// An unknown origin.
    Anybody,
}

impl Remote {
    /// `secret`: decoded data of the Secret that the repository names.
    pub fn new(url: &str, secret: Option<&SecretData>) -> Result<Self, RemoteError> {
        let address = Address::parse(url)?;
        let (credentials, ca) = match secret {
            Some(data) => read_secret(address.scheme, data)?,
            None if address.scheme == Scheme::Ssh => return Err(RemoteError::SshSecret),
            None => (None, None),
        };
        if credentials.is_some() && address.scheme == Scheme::Http && !is_loopback(&address) {
            return Err(RemoteError::ClearText);
        }
        Ok(Self {
            address,
            credentials,
            ca,
            proxy: None,
            link: None,
        })
    }

    /// Marks the address as named by a file of the repository at `from`, not by a spec.
    #[must_use]
    pub fn linked(mut self, from: &Address) -> Self {
        self.link = (from.host() != self.address.host()).then(|| Link::Of(from.host().to_owned()));
        self
    }

    /// Marks the address as named by an unknown origin, so it must be public.
    #[must_use]
    pub fn public(mut self) -> Self {
        self.link = Some(Link::Anybody);
        self
    }

    /// Uses a proxy. `data`: the Secret that `spec.proxySecretRef` names.
    pub fn with_proxy(mut self, data: &SecretData) -> Result<Self, RemoteError> {
        if !self.is_http() {
            return Err(RemoteError::ProxySsh);
        }
        self.proxy = Some(read_proxy(data)?);
        Ok(self)
    }

    /// Uses a program for credentials if there are no others.
    #[must_use]
    pub fn with_program(mut self, program: Arc<Program>) -> Self {
        if self.credentials.is_none() && self.address.scheme == Scheme::Https {
            self.credentials = Some(Credentials::Program(program));
        }
        self
    }

    pub fn url(&self) -> &str {
        self.address.as_str()
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether it is reached over http or https.
    pub fn is_http(&self) -> bool {
        self.address.scheme != Scheme::Ssh
    }

    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    pub(crate) fn ca(&self) -> Option<&str> {
        self.ca.as_deref()
    }

    /// The origin of the address, if that is not the repository's own host. None: it is.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    pub(crate) fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::basic;

    fn secret(data: &[(&str, &str)]) -> SecretData {
        data.iter()
            .map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()))
            .collect()
    }

    fn http(data: &[(&str, &str)]) -> Result<Option<Credentials>, RemoteError> {
        Remote::new("https://h/a", Some(&secret(data))).map(|remote| remote.credentials)
    }

    fn ssh(data: &[(&str, &str)]) -> Result<Option<Credentials>, RemoteError> {
        Remote::new("git@h:a", Some(&secret(data))).map(|remote| remote.credentials)
    }

    #[test]
    fn secrets_hold_one_kind_of_credentials() {
        let Some(Credentials::Basic { username, password }) = http(&[("username", "u"), ("password", "p\n")]).unwrap()
        else {
            panic!("no basic credentials")
        };
        assert_eq!(*basic(&username, &password), "Basic dTpw");
        assert!(matches!(
            http(&[("bearerToken", "t")]),
            Ok(Some(Credentials::Bearer(_)))
        ));
        let check = |data: &[(&str, &str)], error| assert_eq!(http(data).unwrap_err(), error, "{data:?}");
        check(&[], RemoteError::SecretEmpty);
        check(&[("username", "u")], RemoteError::SecretHalf);
        check(&[("bearerToken", "t"), ("username", "u")], RemoteError::SecretBoth);
        check(&[("bearerToken", "a\nX: b")], RemoteError::SecretText("bearerToken"));
        check(&[("ca.crt", "x")], RemoteError::Ca);
    }

    #[test]
    fn an_app_has_three_parts_and_asks_a_safe_api() {
        let app = [
            ("githubAppID", "7"),
            ("githubAppInstallationID", "8"),
            ("githubAppPrivateKey", "pem"),
        ];
        let Some(Credentials::App(read)) = http(&app).unwrap() else {
            panic!("no app")
        };
        assert_eq!(
            (read.id.as_str(), read.installation.as_str(), read.api.as_str()),
            ("7", "8", GITHUB)
        );
        assert_eq!(
            http(&app[..2]).unwrap_err(),
            RemoteError::AppHalf("githubAppPrivateKey")
        );
        let with = |key, value| http(&[&app[..], &[(key, value)]].concat());
        assert_eq!(
            with("githubAppBaseURL", "http://ghe.example/api").unwrap_err(),
            RemoteError::AppApi
        );
        assert!(with("githubAppBaseURL", "https://ghe.example/api/v3/").is_ok());
        assert_eq!(with("bearerToken", "t").unwrap_err(), RemoteError::SecretBoth);
    }
    const GITHUB: &str = "https://api.github.com";

    #[test]
    fn ssh_needs_a_key_and_known_hosts() {
        assert_eq!(Remote::new("git@h:a", None).unwrap_err(), RemoteError::SshSecret);
        assert_eq!(
            ssh(&[("known_hosts", "x")]).unwrap_err(),
            RemoteError::SshHalf("identity")
        );
        let error = ssh(&[("identity", "x"), ("known_hosts", " \n")]).unwrap_err();
        assert!(error.to_string().contains("ssh-keyscan"), "{error}");
        let both = [
            ("identity", "x"),
            ("known_hosts", "y"),
            ("password", "z"),
            ("bearerToken", "t"),
        ];
        assert!(matches!(ssh(&both), Ok(Some(Credentials::Ssh(_)))));
        assert!(
            matches!(http(&both), Ok(Some(Credentials::Bearer(_)))),
            "one Secret for both kinds of addresses"
        );
    }

    #[test]
    fn credentials_need_https_and_are_never_printed() {
        let data = secret(&[("username", "u"), ("password", "hunter2")]);
        assert_eq!(
            Remote::new("http://example.com/a", Some(&data)).unwrap_err(),
            RemoteError::ClearText
        );
        let remote = Remote::new("https://example.com/a", Some(&data)).unwrap();
        let proxy = secret(&[
            ("address", "http://proxy:3128"),
            ("username", "p"),
            ("password", "hunter3"),
        ]);
        let remote = remote.with_proxy(&proxy).unwrap();
        let printed = format!("{remote:?}");
        assert!(
            !printed.contains("hunter2") && !printed.contains("hunter3"),
            "{printed}"
        );
    }

    #[test]
    fn a_proxy_is_an_origin_with_a_login() {
        let proxy = |data: &[(&str, &str)]| {
            Remote::new("https://h/a", None)
                .unwrap()
                .with_proxy(&secret(data))
                .map(|r| r.proxy.unwrap().url())
        };
        let login = [
            ("address", "http://proxy.corp/"),
            ("username", "a@b"),
            ("password", "p:w/"),
        ];
        assert_eq!(**proxy(&login).unwrap(), *"http://a%40b:p%3Aw%2F@proxy.corp:80");
        assert_eq!(
            **proxy(&[("address", "https://[::1]:3128")]).unwrap(),
            *"https://[::1]:3128"
        );
        for address in [
            "proxy:3128",
            "ssh://proxy",
            "http://u:p@proxy",
            "http://proxy/path",
            "socks5://proxy",
        ] {
            assert_eq!(
                proxy(&[("address", address)]).unwrap_err(),
                RemoteError::ProxyAddress,
                "{address}"
            );
        }
        let data = secret(&[("identity", "x"), ("known_hosts", "y")]);
        let remote = Remote::new("git@h:a", Some(&data)).unwrap();
        assert_eq!(remote.with_proxy(&secret(&login)).unwrap_err(), RemoteError::ProxySsh);
    }
}
