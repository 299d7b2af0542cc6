//! One repository of a registry, with sign-in on request.

use std::sync::Mutex;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::Digest;
use farwater_bundle::path::escape;
use http::{HeaderName, Method, StatusCode, header};
use serde::Deserialize;
use url::Url;
use zeroize::Zeroizing;

use super::{
    Place,
    challenge::Challenge,
    manifest::{Manifest, accepted},
};
use crate::{
    access::{Login, read_secret},
    fetch_error::{FetchError, FetchReason},
    web::{Answer, Ask, Sign, Site, Step},
};

/// Limit of the distribution specification.
const MAX_MANIFEST: usize = 4 << 20;
/// Most bytes of a token service's answer, and of one page of tags.
const MAX_ANSWER: usize = 4 << 20;
/// Most tags: more than any registry lists in reasonable time.
const MAX_TAGS: usize = 100_000;
const TAGS_PER_PAGE: usize = 1000;
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

pub struct Registry {
    site: Site,
    place: Place,
    /// The `Authorization` header that answered the last challenge.
    signed: Mutex<Option<Zeroizing<String>>>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default, deserialize_with = "read_secret")]
    token: Option<Zeroizing<String>>,
    #[serde(default, deserialize_with = "read_secret")]
    access_token: Option<Zeroizing<String>>,
}

#[derive(Deserialize)]
struct Tags {
    #[serde(default)]
    tags: Option<Vec<String>>,
}

impl Registry {
    /// `site`: the place's registry.
    pub fn new(site: Site, place: &Place) -> Self {
        Self {
            site,
            place: place.clone(),
            signed: Mutex::default(),
        }
    }

    pub(crate) fn fail(&self, step: Step, reason: FetchReason, evidence: impl Into<String>) -> FetchError {
        let evidence = self.site.evidence(&evidence.into());
        FetchError {
            what: step.what,
            url: self.place.to_string(),
            reason,
            evidence,
        }
    }

    fn url(&self, rest: &str) -> Url {
        let mut url = self.site.url().clone();
        url.set_path(&format!("/v2/{}/{rest}", self.place.repository()));
        url
    }

    /// Sends a request; signs in and repeats it if the registry asks for that.
    async fn ask(&self, step: Step, ask: Ask) -> Result<Answer, FetchError> {
        let signed = self
            .signed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        let sign = signed.map_or(Sign::Nothing, Sign::Header);
        let answer = self
            .site
            .send(step, ask.clone().sign(sign))
            .await
            .map_err(|error| self.told(error))?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let headers = answer
            .headers
            .get_all(header::WWW_AUTHENTICATE)
            .iter()
            .filter_map(|header| header.to_str().ok());
        let login = self.site.access().login.as_ref();
        let header = match (Challenge::find(headers), login) {
            (Some(Challenge::Bearer { realm, service, scope }), login) => {
                // A token that is sent as it is needs no token service.
                match login {
                    Some(login @ Login::Bearer(_)) => login.header(),
                    login => Some(
                        self.fetch_token(step, &realm, service.as_deref(), scope.as_deref(), login)
                            .await?,
                    ),
                }
            }
            (Some(Challenge::Basic), Some(login)) => login.header(),
            (Some(Challenge::Basic), None) => return Err(self.fail(step, FetchReason::CredentialsMissing, "")),
            (None, _) => None,
        };
        let Some(header) = header else {
            return answer.success(&self.site).map_err(|error| self.told(error));
        };
        drop(answer);
        *self.signed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(header.clone());
        self.site
            .send(step, ask.sign(Sign::Header(header)))
            .await
            .map_err(|error| self.told(error))
    }

    /// An error of the registry's site, reported for the repository.
    fn told(&self, error: FetchError) -> FetchError {
        FetchError {
            url: self.place.to_string(),
            ..error
        }
    }

    /// Gets a token from the service that the registry names. The service gets the credentials like the registry
    /// itself.
    async fn fetch_token(
        &self,
        step: Step,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
        login: Option<&Login>,
    ) -> Result<Zeroizing<String>, FetchError> {
        let step = step.then("sign in to");
        let unusable = |why: &str| self.fail(step, FetchReason::Unexpected, format!("its token service {why}"));
        let url = self.token_url(step, realm, (service, scope), login)?;
        let mut ask = Ask::get(url);
        if let Some(header) = login.and_then(header_for_token) {
            // Set directly, because the service is another host, for which the registry vouches.
            let mut value =
                http::HeaderValue::from_str(&header).map_err(|_| unusable("can't be shown these credentials"))?;
            value.set_sensitive(true);
            ask.headers.insert(header::AUTHORIZATION, value);
        }

        let answer = self
            .site
            .send_unredirected(step, ask.sign(Sign::Nothing))
            .await
            .map_err(|error| self.told(error))?;
        let answer = match answer.status.as_u16() {
            // Some services answer wrong passwords so.
            400 | 401 | 403 if login.is_some() => {
                return Err(self.fail(
                    step,
                    FetchReason::Unauthorized,
                    format!("HTTP {}", answer.status.as_u16()),
                ));
            }
            401 | 403 => return Err(self.fail(step, FetchReason::CredentialsMissing, "")),
            _ => answer.success(&self.site).map_err(|error| self.told(error))?,
        };

        let bytes = Zeroizing::new(answer.bytes(MAX_ANSWER).await.map_err(|error| self.told(error))?);
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| unusable("answers with something else"))?;
        let token = token.token.or(token.access_token).filter(|token| !token.is_empty());
        Ok(Zeroizing::new(format!(
            "Bearer {}",
            *token.ok_or_else(|| unusable("answers without a token"))?
        )))
    }

    /// The address to ask for a token. Credentials for an https registry are never sent in clear text.
    fn token_url(
        &self,
        step: Step,
        realm: &str,
        (service, scope): (Option<&str>, Option<&str>),
        login: Option<&Login>,
    ) -> Result<Url, FetchError> {
        let no_address = || self.fail(step, FetchReason::Unexpected, "its token service has no address");
        let mut url = Url::parse(realm).map_err(|_| no_address())?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(no_address());
        }
        if login.is_some() && url.scheme() == "http" && self.site.url().scheme() == "https" {
            return Err(self.fail(step, FetchReason::ClearText, "its token service speaks http"));
        }

        let scope = scope.map_or_else(|| format!("repository:{}:pull", self.place.repository()), str::to_owned);
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("scope", &scope);
            if let Some(service) = service {
                query.append_pair("service", service);
            }
        }
        Ok(url)
    }

    fn success(&self, step: Step, answer: Answer, missing: impl FnOnce() -> FetchReason) -> Result<Answer, FetchError> {
        let status = answer.status;
        answer.success(&self.site).map_err(|error| match error.reason {
            FetchReason::NotFound => self.fail(step, missing(), format!("HTTP {}", status.as_u16())),
            _ => self.told(error),
        })
    }

    /// The digest of the manifest that a tag names now.
    pub(crate) async fn digest_of(&self, step: Step, tag: &str) -> Result<Digest, FetchError> {
        let url = self.url(&format!("manifests/{tag}"));
        let missing = || FetchReason::ReferenceMissing(format!("tag {}", escape(tag.as_bytes())));
        let mut ask = Ask::get(url.clone()).header(header::ACCEPT, &accepted());
        ask.method = Method::HEAD;
        let answer = self.ask(step, ask).await?;
        // Registries without HEAD answer with another status, and some omit the digest.
        if answer.status.is_success()
            && let Some(digest) = answer.header(CONTENT_DIGEST).and_then(|text| text.parse().ok())
        {
            return Ok(digest);
        }
        if !answer.status.is_success() && !matches!(answer.status.as_u16(), 400 | 405 | 501) {
            self.success(step, answer, missing)?;
        }
        let answer = self
            .ask(step, Ask::get(url).header(header::ACCEPT, &accepted()))
            .await?;
        let bytes = self
            .success(step, answer, missing)?
            .bytes(MAX_MANIFEST)
            .await
            .map_err(|error| self.told(error))?;
        Ok(Digest::of(bytes))
    }

    /// A manifest by its tag or digest. By digest, its content must have that digest.
    pub(crate) async fn manifest(&self, step: Step, reference: &str) -> Result<Manifest, FetchError> {
        let found = self.find_manifest(step, reference).await?;
        let missing = || {
            let what = if reference.starts_with("sha256:") {
                "manifest"
            } else {
                "tag"
            };
            self.fail(
                step,
                FetchReason::ReferenceMissing(format!("{what} {}", escape(reference.as_bytes()))),
                "",
            )
        };
        found.ok_or_else(missing)
    }

    /// The same. None: it does not exist.
    pub(crate) async fn find_manifest(&self, step: Step, reference: &str) -> Result<Option<Manifest>, FetchError> {
        let Some(bytes) = self
            .find_bytes(step, &format!("manifests/{reference}"), &accepted(), MAX_MANIFEST)
            .await?
        else {
            return Ok(None);
        };
        if let Ok(wanted) = reference.parse::<Digest>() {
            self.check_digest(step, wanted, Digest::of(&bytes))?;
        }
        Manifest::parse(&bytes)
            .map(Some)
            .map_err(|problem| self.fail(step, FetchReason::Manifest, problem))
    }

    /// The content at a path of the repository. None: it does not exist.
    pub(super) async fn find_bytes(
        &self,
        step: Step,
        path: &str,
        accept: &str,
        limit: usize,
    ) -> Result<Option<Vec<u8>>, FetchError> {
        let (path, query) = path
            .split_once('?')
            .map_or((path, None), |(path, query)| (path, Some(query)));
        let mut url = self.url(path);
        url.set_query(query);
        let answer = self.ask(step, Ask::get(url).header(header::ACCEPT, accept)).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let answer = answer.success(&self.site).map_err(|error| self.told(error))?;
        answer.bytes(limit).await.map(Some).map_err(|error| self.told(error))
    }

    fn check_digest(&self, step: Step, wanted: Digest, found: Digest) -> Result<(), FetchError> {
        if wanted == found {
            return Ok(());
        }
        Err(self.fail(
            step,
            FetchReason::Digest {
                wanted: wanted.into(),
                found: found.into(),
            },
            "",
        ))
    }

    /// Reads a small blob into memory.
    pub(super) async fn blob(&self, step: Step, digest: &Digest, limit: usize) -> Result<Vec<u8>, FetchError> {
        let bytes = self.find_bytes(step, &format!("blobs/{digest}"), "*/*", limit).await?;
        let missing = || self.fail(step, FetchReason::ReferenceMissing(format!("blob {digest}")), "");
        let bytes = bytes.ok_or_else(missing)?;
        self.check_digest(step, *digest, Digest::of(&bytes))?;
        Ok(bytes)
    }

    /// Downloads a blob into a file.
    pub(super) async fn blob_to(
        &self,
        step: Step,
        digest: &Digest,
        file: &mut std::fs::File,
        limit: u64,
    ) -> Result<(), FetchError> {
        let answer = self.ask(step, Ask::get(self.url(&format!("blobs/{digest}")))).await?;
        let answer = self.success(step, answer, || FetchReason::ReferenceMissing(format!("blob {digest}")))?;
        let found = answer.save(file, limit).await.map_err(|error| self.told(error))?;
        self.check_digest(step, *digest, found)
    }

    /// All tags, page by page.
    pub(crate) async fn tags(&self, step: Step) -> Result<Vec<String>, FetchError> {
        let mut url = self.url("tags/list");
        url.set_query(Some(&format!("n={TAGS_PER_PAGE}")));
        let mut tags = Vec::new();
        loop {
            let answer = self.ask(step, Ask::get(url.clone())).await?;
            let answer = self.success(step, answer, || FetchReason::NotFound)?;
            let next = answer
                .header(header::LINK)
                .and_then(next_page)
                .and_then(|next| url.join(next).ok());
            let bytes = answer.bytes(MAX_ANSWER).await.map_err(|error| self.told(error))?;
            let page: Tags = serde_json::from_slice(&bytes)
                .map_err(|error| self.fail(step, FetchReason::Unexpected, format!("its list of tags: {error}")))?;
            let page = page.tags.unwrap_or_default();
            let is_empty = page.is_empty();
            tags.extend(page);
            if tags.len() > MAX_TAGS {
                let reason = FetchReason::TooLarge { limit: MAX_TAGS as u64 };
                return Err(self.fail(step, reason, "tags; follow one of them, or remove old ones"));
            }
            match next.filter(|next| *next != url && !is_empty && self.site.is_stated(next)) {
                Some(next) => url = next,
                None => return Ok(tags),
            }
        }
    }
}

/// Parses `</v2/…?n=…&last=…>; rel="next"`, a link by RFC 8288.
fn next_page(header: &str) -> Option<&str> {
    let (address, rest) = header.strip_prefix('<')?.split_once('>')?;
    rest.contains("next").then_some(address)
}

/// The header that shows a login to a token service.
fn header_for_token(login: &Login) -> Option<Zeroizing<String>> {
    let Login::Identity(token) = login else {
        return login.header();
    };
    // Docker's form of an identity token where only name and password are accepted.
    let pair = Zeroizing::new(format!("<token>:{}", token.reveal()));
    Some(Zeroizing::new(format!(
        "Basic {}",
        *Zeroizing::new(STANDARD.encode(pair.as_bytes()))
    )))
}
