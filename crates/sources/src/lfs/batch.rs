//! The batch protocol of Git LFS: asks a server for the addresses of files.

use std::collections::HashMap;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use url::Url;
use zeroize::Zeroizing;

use super::{Endpoint, LargeFile};
use crate::{
    address::Scheme,
    git::{GitReason, Problem},
    secret::Secret,
    web::{Ask, Site, Step},
};

/// Objects in one request. Hosts accept 100.
pub(super) const BATCH: usize = 100;

/// Most bytes of a batch API's answer.
pub(super) const MAX_ANSWER: usize = 4 << 20;

const MEDIA_TYPE: &str = "application/vnd.git-lfs+json";

#[derive(Serialize)]
struct BatchRequest<'a> {
    operation: &'static str,
    transfers: [&'static str; 1],
    hash_algo: &'static str,
    objects: Vec<Asked<'a>>,
}

#[derive(Serialize)]
struct Asked<'a> {
    oid: &'a str,
    size: u64,
}

#[derive(Deserialize)]
pub(super) struct BatchAnswer {
    transfer: Option<String>,
    #[serde(default)]
    objects: Vec<Described>,
}

#[derive(Deserialize)]
struct Described {
    oid: String,
    actions: Option<Actions>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Actions {
    download: Option<Action>,
}

/// Also the output of `git-lfs-authenticate`.
#[derive(Deserialize)]
pub(super) struct Action {
    pub(super) href: String,
    #[serde(default)]
    pub(super) header: HashMap<String, Secret>,
}

#[derive(Deserialize)]
struct Refusal {
    code: u16,
    #[serde(default)]
    message: String,
}

/// Only the position of a syntax error is reported, because a parser quotes unexpected text, which may be a token.
pub(super) fn read_batch(body: &[u8]) -> Result<BatchAnswer, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let why = format!(
            "the batch API's answer can't be read at line {}, column {}",
            error.line(),
            error.column()
        );
        Problem::new(GitReason::ServerError, why)
    })
}

pub(super) async fn ask_batch(
    site: &Site,
    step: Step,
    endpoint: &Endpoint<'_>,
    files: &[LargeFile],
) -> Result<Vec<(LargeFile, Action)>, Problem> {
    let bad = |why: String| Problem::new(GitReason::ServerError, why);
    let question = question(files).map_err(|error| bad(error.to_string()))?;
    let mut url = endpoint.url.clone();
    url.set_path(&format!("{}/objects/batch", endpoint.url.path().trim_end_matches('/')));
    let ask = Ask::post(url, question)
        .header(header::ACCEPT, MEDIA_TYPE)
        .header(header::CONTENT_TYPE, MEDIA_TYPE);
    let answer = site
        .send_unredirected(step, endpoint.ask(ask, endpoint.headers.clone()))
        .await?;
    if answer.status != StatusCode::OK {
        return Err(endpoint.refusal(&answer));
    }

    let body = Zeroizing::new(answer.bytes(MAX_ANSWER).await?);
    let answer = read_batch(&body)?;
    if answer.transfer.as_deref().is_some_and(|transfer| transfer != "basic") {
        return Err(bad(
            "the batch API wants a way of transfer that was not offered".to_owned()
        ));
    }

    downloads(answer, files, endpoint)
}

/// The body of a request for downloads.
fn question(files: &[LargeFile]) -> Result<Vec<u8>, serde_json::Error> {
    let objects = files.iter().map(|file| Asked {
        oid: &file.oid,
        size: file.size,
    });
    serde_json::to_vec(&BatchRequest {
        operation: "download",
        transfers: ["basic"],
        hash_algo: "sha256",
        objects: objects.collect(),
    })
}

/// The download of each file. An answer that refuses one of them, or leaves one out, is an error.
fn downloads(
    answer: BatchAnswer,
    files: &[LargeFile],
    endpoint: &Endpoint<'_>,
) -> Result<Vec<(LargeFile, Action)>, Problem> {
    let mut described: HashMap<String, Described> = answer
        .objects
        .into_iter()
        .map(|object| (object.oid.clone(), object))
        .collect();
    let silent = |file: &LargeFile| {
        let why = format!("the batch API says nothing of {}", file.oid);
        Problem::new(GitReason::ServerError, why)
    };
    let mut found = Vec::new();
    for file in files {
        let described = described.remove(&file.oid);
        let (actions, error) = described.map_or((None, None), |object| (object.actions, object.error));
        if let Some(Refusal { code, message }) = error {
            let reason = if matches!(code, 404 | 410) {
                GitReason::NotFound
            } else {
                GitReason::ServerError
            };
            return Err(Problem::new(
                reason,
                format!("{}: {code} {}", file.oid, endpoint.evidence(&message)),
            ));
        }
        let action = actions.and_then(|actions| actions.download);
        found.push((file.clone(), action.ok_or_else(|| silent(file))?));
    }
    Ok(found)
}

/// An address that a server names. http is only allowed if the repository itself uses it.
pub(super) fn parse_href(href: &str, scheme: Scheme) -> Option<Url> {
    let url = Url::parse(href)
        .ok()
        .filter(|url| url.username().is_empty() && url.password().is_none())?;
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && scheme == Scheme::Http);
    (is_safe && url.has_host()).then_some(url)
}

/// The headers that a server requests. Headers for the transport are set by us.
pub(super) fn headers_of(action: &Action) -> Result<HeaderMap, Problem> {
    const OURS: [&str; 6] = [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "upgrade",
        "te",
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in &action.header {
        let bad = || Problem::new(GitReason::ServerError, "the server wants a header that is none");
        let name = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
        if OURS.contains(&name.as_str()) || name.as_str().starts_with("proxy-") {
            continue;
        }
        headers.insert(name, secret_value(value.reveal())?);
    }
    Ok(headers)
}

fn secret_value(text: &str) -> Result<HeaderValue, Problem> {
    let bad = |_| Problem::new(GitReason::ServerError, "credentials that fit into no header");
    let mut value = HeaderValue::from_str(text).map_err(bad)?;
    value.set_sensitive(true);
    Ok(value)
}
