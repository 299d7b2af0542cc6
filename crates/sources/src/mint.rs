//! Short-lived credentials: tokens of a GitHub App, and those from a program. They stay in memory until shortly before
//! they expire; concurrent requests for the same are made once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderName, StatusCode, header};
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use url::Url;
use zeroize::Zeroizing;

use crate::{
    access::Access,
    credentials::App,
    git::{GitReason, Problem},
    minted::{Fingerprint, Minted, fingerprint},
    program::Program,
    remote::Remote,
    secret::Secret,
    web::{Ask, Route, Sign, Step, Web},
};

/// Lifetime of a signed request in seconds; GitHub allows ten minutes. It begins in the past, because clocks differ.
const JWT_LIFE: i64 = 9 * 60;
const JWT_SKEW: i64 = 60;
/// Most bytes of an API's answer.
const MAX_ANSWER: usize = 64 << 10;
/// With more entries, all are dropped and minted again on demand.
const MAX_KEPT: usize = 10_000;

type Place = Arc<tokio::sync::Mutex<Option<Minted>>>;

#[derive(Debug, Default)]
pub(crate) struct Mint(Mutex<HashMap<Fingerprint, Place>>);

impl Mint {
    /// A token that reads the remote's repository.
    pub async fn of_app(&self, app: &App, web: &Web, remote: &Remote, timeout: Duration) -> Result<Minted, Problem> {
        self.get(fingerprint_of_app(app), ask_api(app, web, remote, timeout))
            .await
    }

    /// `host`: `host[:port]`.
    pub async fn of_program(&self, program: &Program, host: &str, path: &str) -> Result<Minted, Problem> {
        self.get(program.fingerprint(host, path), program.ask(host, path)).await
    }

    /// Drops refused credentials, so that the next request mints new ones.
    pub fn forget(&self, fingerprint: &Fingerprint) {
        self.places().remove(fingerprint);
    }

    async fn get(
        &self,
        fingerprint: Fingerprint,
        mint: impl Future<Output = Result<Minted, Problem>>,
    ) -> Result<Minted, Problem> {
        let place = {
            let mut places = self.places();
            if places.len() >= MAX_KEPT {
                places.clear();
            }
            Arc::clone(places.entry(fingerprint).or_default())
        };
        let mut kept = place.lock().await;
        if let Some(minted) = kept.as_ref().filter(|minted| minted.until > Instant::now()) {
            return Ok(minted.clone());
        }
        let minted = mint.await?;
        *kept = Some(minted.clone());
        Ok(minted)
    }

    fn places(&self) -> std::sync::MutexGuard<'_, HashMap<Fingerprint, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn fingerprint_of_app(app: &App) -> Fingerprint {
    fingerprint(&["app", app.api.as_str(), &app.id, &app.installation, app.key.reveal()])
}

#[derive(Serialize)]
struct Claims<'a> {
    iat: i64,
    exp: i64,
    iss: &'a str,
}

#[derive(Deserialize)]
struct Token {
    token: Secret,
    expires_at: Option<Timestamp>,
}

/// <https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app>: a request signed with the
/// app's key returns a token for one installation.
async fn ask_api(app: &App, web: &Web, remote: &Remote, timeout: Duration) -> Result<Minted, Problem> {
    let unusable = |_| GitReason::KeyUnusable("githubAppPrivateKey is no RSA key in PEM".to_owned());
    let key = EncodingKey::from_rsa_pem(app.key.reveal().as_bytes()).map_err(|e| Problem::new(unusable(e), ""))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_secs().cast_signed());
    let claims = Claims {
        iat: now - JWT_SKEW,
        exp: now + JWT_LIFE,
        iss: &app.id,
    };
    let signed = jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &key);
    let signed = Zeroizing::new(signed.map_err(|error| Problem::new(unusable(error), ""))?);

    let url = format!(
        "{}/app/installations/{}/access_tokens",
        app.api.as_str(),
        app.installation
    );
    let url = Url::parse(&url).map_err(|error| Problem::new(GitReason::Failed, error.to_string()))?;
    let route = Route {
        links: None,
        proxy: remote.proxy(),
    };
    let site = web.make_site(&url, Access::trusting(remote.ca()), route)?;
    let ask = Ask::post(url, "").header(header::ACCEPT, "application/vnd.github+json");
    let ask = ask.header(HeaderName::from_static("x-github-api-version"), "2022-11-28");
    let ask = ask.sign(Sign::Header(Zeroizing::new(format!("Bearer {}", *signed))));
    let answer = site
        .send_unredirected(Step::new("mint a token at", timeout), ask)
        .await?;
    if answer.status != StatusCode::CREATED {
        let problem = Problem::from(answer.refusal(true));
        return Err(Problem::new(
            problem.reason,
            format!("{} of the app's API", problem.evidence),
        ));
    }

    let body = Zeroizing::new(answer.bytes(MAX_ANSWER).await?);
    let bad = || Problem::new(GitReason::ServerError, "the app's API answered without a token");
    let answer: Token = serde_json::from_slice(&body).map_err(|_| bad())?;
    let token = answer.token.reveal();
    if token.is_empty() || token.chars().any(|c| !c.is_ascii_graphic()) {
        return Err(bad());
    }

    let left = answer
        .expires_at
        .map(|end| Duration::try_from(end - Timestamp::now()).unwrap_or_default());
    Ok(Minted::new(Some("x-access-token".to_owned()), answer.token, left))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_minted_is_kept_until_shortly_before_its_end() {
        let (mint, asked) = (Mint::default(), AtomicUsize::new(0));
        let get = async |left: u64| {
            let ask = async {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Minted::new(None, Secret::new("t"), Some(Duration::from_secs(left))))
            };
            mint.get([0; 32], ask).await.unwrap();
            asked.load(Ordering::Relaxed)
        };
        let many = futures::future::join_all((0..10).map(|_| get(3600))).await;
        assert_eq!(many.last(), Some(&1), "ten at once ask once");
        tokio::time::advance(Duration::from_secs(3600 - 301)).await;
        assert_eq!(get(3600).await, 1);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(get(60).await, 2);
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(get(60).await, 3, "half of a short life");
        mint.forget(&[0; 32]);
        assert_eq!(get(60).await, 4);
    }

    #[test]
    fn parts_are_not_confused() {
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
    }
}
