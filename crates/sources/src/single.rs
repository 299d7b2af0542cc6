//! A single file on a web server, named by a kustomization.

use std::time::Duration;

use farwater_api::Digest;
use farwater_bundle::limits::FILE_BYTES;
use http::{StatusCode, header};
use serde::{Deserialize, Serialize};

use crate::{
    artifacts::{ArtifactError, Artifacts, Holds, Label},
    fetch_error::{FetchError, FetchReason},
    helm::chain,
    web::{Ask, Site, Step},
};

const HEAD: &str = "file.json";

/// Metadata of the last fetched file.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    url: String,
    digest: Digest,
    etag: Option<String>,
}

/// Fetches the file if it has changed. Returns the digest under which [`Artifacts`] stores it.
pub async fn sync_file(
    site: &Site,
    artifacts: &Artifacts,
    name: String,
    timeout: Duration,
) -> Result<Digest, FetchError> {
    let (url, step) = (site.url().clone(), Step::new("fetch", timeout));
    let known = load(artifacts).filter(|head| head.url == url.as_str() && artifacts.contains(&head.digest));
    let mut ask = Ask::get(url.clone());
    if let Some(etag) = known.as_ref().and_then(|head| head.etag.as_deref()) {
        ask = ask.header(header::IF_NONE_MATCH, etag);
    }
    let answer = site.send(step, ask).await?;
    if let Some(head) = known.filter(|_| answer.status == StatusCode::NOT_MODIFIED) {
        return Ok(head.digest);
    }
    let answer = answer.success(site)?;
    let etag = answer.header(header::ETAG).map(str::to_owned);
    let disk = |error: ArtifactError| FetchError::new(step.what, &url, FetchReason::Disk, chain(&error));
    let mut file = artifacts.temporary().map_err(disk)?;
    let digest = answer.save(file.as_file_mut(), FILE_BYTES).await?;
    let label = Label {
        file: digest,
        holds: Holds::File(name),
    };
    let admitted = artifacts.admit(digest, label, file, |_| Ok(())).await.map_err(disk)?;
    admitted.map_err(|problem| FetchError::new(step.what, &url, FetchReason::Archive, problem))?;
    let head = Head {
        url: url.to_string(),
        digest,
        etag,
    };
    let text = serde_json::to_vec(&head).unwrap_or_default();
    artifacts.write(HEAD, &text).map_err(disk)?;
    Ok(digest)
}

fn load(artifacts: &Artifacts) -> Option<Head> {
    serde_json::from_slice(&std::fs::read(artifacts.path(HEAD)).ok()?).ok()
}
