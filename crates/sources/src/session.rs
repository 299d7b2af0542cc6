//! A remote prepared for requests: its name resolved, its tokens minted, its key unlocked.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use zeroize::Zeroizing;

use crate::{
    credentials::{Credentials, basic},
    git::{Git, GitError, GitReason, Problem},
    links::{Links, ResolveError, resolve},
    mint::fingerprint_of_app,
    minted::Fingerprint,
    remote::{Link, Remote},
    ssh::Identity,
};

/// Most addresses of one name that are tried.
const MAX_PINNED: usize = 8;

/// Used for the requests and fetches of one check of a remote.
pub(crate) struct Session<'r> {
    pub remote: &'r Remote,
    /// Where it may be, if only a file of a repository names it.
    pub links: Option<Links>,
    /// Addresses of the host, or of its proxy.
    pub addresses: Vec<SocketAddr>,
    /// The value of the `Authorization` header.
    pub authorization: Option<Zeroizing<String>>,
    /// Minted credentials, which are dropped if they are refused.
    minted: Option<Fingerprint>,
    pub identity: Option<Arc<Identity>>,
    /// Whether it is for a push.
    pub pushes: bool,
    secrets: Vec<Zeroizing<String>>,
}

impl<'r> Session<'r> {
    /// A session for a remote to which no request is made.
    pub fn of(remote: &'r Remote) -> Self {
        let mut session = Self {
            remote,
            links: None,
            addresses: Vec::new(),
            authorization: None,
            minted: None,
            identity: None,
            pushes: false,
            secrets: Vec::new(),
        };
        match remote.credentials() {
            Some(Credentials::Basic { username, password }) => {
                session.hide(password.reveal());
                session.authorize(basic(username, password));
            }
            Some(Credentials::Bearer(token)) => {
                session.hide(token.reveal());
                session.authorize(Zeroizing::new(format!("Bearer {}", token.reveal())));
            }
            Some(Credentials::App(app)) => session.hide(app.key.reveal()),
            Some(Credentials::Ssh(access)) => {
                session.hide(access.identity.reveal());
                if let Some(passphrase) = &access.passphrase {
                    session.hide(passphrase.reveal());
                }
            }
            Some(Credentials::Program(_)) | None => {}
        }

        session
            .secrets
            .extend(remote.proxy().into_iter().flat_map(crate::credentials::Proxy::secrets));
        session
    }

    pub fn has_credentials(&self) -> bool {
        self.remote.credentials().is_some()
    }

    /// The text with secrets removed.
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.secrets.iter().filter(|secret| !secret.is_empty()) {
            text = text.replace(secret.as_str(), "***");
        }
        text
    }

    /// The resolved addresses for curl, `HOST:PORT:ADDRESS[,ADDRESS]`. None: the host is an address, or has none.
    pub fn pin(&self) -> Option<String> {
        let asked = self
            .remote
            .proxy()
            .map_or(self.remote.address(), |proxy| &proxy.address);
        if asked.ip().is_some() || self.addresses.is_empty() {
            return None;
        }
        let addresses: Vec<_> = self
            .addresses
            .iter()
            .take(MAX_PINNED)
            .map(|address| match address {
                SocketAddr::V4(address) => address.ip().to_string(),
                SocketAddr::V6(address) => format!("[{}]", address.ip()),
            })
            .collect();
        Some(format!("{}:{}:{}", asked.host(), asked.port(), addresses.join(",")))
    }

    fn hide(&mut self, text: &str) {
        self.secrets.push(Zeroizing::new(text.to_owned()));
    }

    fn authorize(&mut self, header: Zeroizing<String>) {
        if let Some((_, value)) = header.split_once(' ') {
            self.hide(value);
        }
        self.authorization = Some(header);
    }
}

impl Git {
    /// Prepares requests to a remote.
    pub(crate) async fn open<'r>(&self, remote: &'r Remote, timeout: Duration) -> Result<Session<'r>, GitError> {
        let mut session = Session::of(remote);
        session.links = match remote.link() {
            Some(Link::Of(host)) => Some(self.web().links_of(host).await),
            Some(Link::Anybody) => Some(self.web().links().clone()),
            None => None,
        };

        let resolved = self.resolve_session(&session).await;
        session.addresses = resolved.map_err(|error| Problem::from(error).at("reach", remote))?;
        if remote.proxy().is_none() {
            let reached = self.web().reached(remote.address().host());
            session.addresses.iter().for_each(|address| reached.note(address.ip()));
        }

        let minted = match remote.credentials() {
            Some(Credentials::App(app)) => {
                let minted = self.mint().of_app(app, self.web(), remote, timeout).await;
                Some((
                    minted.map_err(|problem| problem.at("mint a token for", remote))?,
                    fingerprint_of_app(app),
                ))
            }
            Some(Credentials::Program(program)) => {
                let (host, path) = (remote.address().authority(), remote.address().path());
                let minted = self.mint().of_program(program, &host, path).await;
                let minted = minted.map_err(|problem| problem.at("ask for credentials for", remote))?;
                Some((minted, program.fingerprint(&host, path)))
            }
            Some(Credentials::Ssh(access)) => {
                let identity = self.unlock(access).await;
                let unusable = |why| Problem::new(GitReason::KeyUnusable(why), "").at("sign in to", remote);
                session.identity = Some(identity.map_err(unusable)?);
                None
            }
            Some(Credentials::Basic { .. } | Credentials::Bearer(_)) | None => None,
        };
        if let Some((minted, fingerprint)) = minted {
            session.hide(minted.token.reveal());
            session.authorize(minted.header());
            session.minted = Some(fingerprint);
        }
        Ok(session)
    }

    /// The addresses to connect to: those of the remote, or of its proxy, which resolves the remote's name itself.
    async fn resolve_session(&self, session: &Session<'_>) -> Result<Vec<SocketAddr>, ResolveError> {
        let (remote, stated) = (session.remote, self.web().links().of_stated());
        let links = session.links.as_ref().unwrap_or(&stated);
        let Some(proxy) = remote.proxy() else {
            return resolve(links, remote.address().host(), remote.address().port()).await;
        };
        if remote.address().ip().is_some() {
            resolve(links, remote.address().host(), remote.address().port()).await?;
        }
        resolve(&stated, proxy.address.host(), proxy.address.port()).await
    }

    /// Drops minted credentials that were refused, because they may have been revoked.
    pub(crate) fn note_refusal(&self, session: &Session<'_>, error: &GitError) {
        if let (Some(minted), GitReason::Unauthorized | GitReason::NotFound) = (&session.minted, &error.reason) {
            self.mint().forget(minted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::SecretData;

    #[test]
    fn nothing_secret_is_left_in_a_text() {
        let data = |pairs: &[(&str, &str)]| -> SecretData {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()))
                .collect()
        };
        let remote = Remote::new(
            "https://h/a",
            Some(&data(&[("username", "u"), ("password", "hunter2")])),
        )
        .unwrap();
        let proxy = data(&[("address", "http://p"), ("username", "u"), ("password", "a/b")]);
        let remote = remote.with_proxy(&proxy).unwrap();
        let session = Session::of(&remote);
        assert_eq!(
            session.redact("x hunter2 dTpodW50ZXIy a/b a%2Fb dTphL2I="),
            "x *** *** *** *** ***"
        );
    }

    #[test]
    fn names_are_pinned_and_addresses_are_not() {
        let pin = |url: &str| {
            let remote = Remote::new(url, None).unwrap();
            let addresses = ["1.2.3.4:443", "[2a00::1]:443"]
                .map(|text| text.parse().unwrap())
                .into();
            Session {
                addresses,
                ..Session::of(&remote)
            }
            .pin()
        };
        assert_eq!(
            pin("https://Git.example.com/a").as_deref(),
            Some("git.example.com:443:1.2.3.4,[2a00::1]")
        );
        assert_eq!(pin("https://h:8443/a").as_deref(), Some("h:8443:1.2.3.4,[2a00::1]"));
        assert_eq!(pin("https://1.2.3.4/a"), None);
    }
}
