//! Helm repositories over http and https: an index that lists charts, and the charts' archives.
//!
//! The index is requested conditionally (ETag, Last-Modified), saved without being held in memory, and parsed on
//! threads that nothing waits on. Only a line for each chart is kept.

mod index;

use std::{io::Read as _, time::Duration};

use farwater_api::Digest;
use farwater_bundle::{Members, path::escape};
use http::{StatusCode, header};
use serde::{Deserialize, Serialize};
use url::Url;

pub use self::index::{ChartVersion, IndexError};
use crate::{
    artifacts::{ArtifactError, Artifacts, Holds, Label, io_error},
    fetch_error::{FetchError, FetchReason},
    heavy, oci,
    range::Range,
    web::{Answer, Ask, Sign, Site, Step, Web},
};

/// Most bytes of an index: twice the largest public one. It is parsed in one piece.
const MAX_INDEX: u64 = 64 << 20;
/// Most bytes of an archive; a bundle may contain more than its archive.
pub(crate) const MAX_ARCHIVE: u64 = 64 << 20;
const HEAD: &str = "index.json";
const LINES: &str = "index.jsonl";

/// Size from which parsing an index takes a second or more.
const LARGE: u64 = 1 << 20;

/// Metadata of the last fetched index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexHead {
    pub url: String,
    /// Digest of the file as sent.
    pub digest: Option<Digest>,
    #[serde(default)]
    etag: Option<String>,
    #[serde(default)]
    last_modified: Option<String>,
    /// Format of its lines.
    #[serde(default)]
    format: u32,
}

const FORMAT: u32 = 1;

/// A chart at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundChart {
    pub version: String,
    /// Digest of its archive, or of its manifest in a registry. A revision names it, and [`Artifacts`] stores the chart
    /// under it.
    pub digest: Digest,
    /// Changes when there is something else to fetch.
    pub entry: String,
}

/// A wanted chart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WantedChart {
    pub name: String,
    /// A version or a range.
    pub version: String,
}

/// Fetches the index of a repository if it has changed. Returns its digest.
pub async fn sync_index(site: &Site, artifacts: &Artifacts, timeout: Duration) -> Result<Digest, FetchError> {
    let url = index_url(site.url());
    let known = load_head(artifacts).filter(|head| head.url == url.as_str() && head.format == FORMAT);
    let known = known.filter(|_| artifacts.path(LINES).is_file());
    let step = Step::new("fetch the index of", timeout);
    let ask = ask_if_changed(url.clone(), known.as_ref());
    let answer = site.send(step, ask).await?;
    if let Some(digest) = known
        .as_ref()
        .and_then(|head| head.digest)
        .filter(|_| answer.status == StatusCode::NOT_MODIFIED)
    {
        return Ok(digest);
    }

    let answer = answer.success(site)?;
    let text = |name| answer.header(name).map(str::to_owned);
    let head = IndexHead {
        url: url.to_string(),
        digest: None,
        etag: text(header::ETAG),
        last_modified: text(header::LAST_MODIFIED),
        format: FORMAT,
    };
    let is_compressed = is_compressed(&answer)?;

    let disk = |error: ArtifactError| FetchError::new(step.what, &url, FetchReason::Disk, chain(&error));
    let mut file = artifacts.temporary().map_err(disk)?;
    let sent = answer.save(file.as_file_mut(), MAX_INDEX).await?;
    // An index that was compressed again is still the same one.
    if !is_compressed && known.as_ref().and_then(|head| head.digest) == Some(sent) {
        save_head(
            artifacts,
            &IndexHead {
                digest: Some(sent),
                ..head
            },
        )
        .map_err(disk)?;
        return Ok(sent);
    }
    let known = known.and_then(|head| head.digest);
    let read = read_index(artifacts.clone(), file, is_compressed, known, head)
        .await
        .map_err(disk)?;
    read.map_err(|error| FetchError::new(step.what, &url, FetchReason::Index, error.to_string()))
}

/// A request that is answered by *not modified* if the known index is still the newest.
fn ask_if_changed(url: Url, known: Option<&IndexHead>) -> Ask {
    let mut ask = Ask::get(url).header(header::ACCEPT_ENCODING, "gzip");
    if let Some(head) = known {
        ask = head
            .etag
            .iter()
            .fold(ask, |ask, etag| ask.header(header::IF_NONE_MATCH, etag));
        ask = head
            .last_modified
            .iter()
            .fold(ask, |ask, time| ask.header(header::IF_MODIFIED_SINCE, time));
    }
    ask
}

fn is_compressed(answer: &Answer) -> Result<bool, FetchError> {
    match answer.header(header::CONTENT_ENCODING) {
        None | Some("identity") => Ok(false),
        Some("gzip") => Ok(true),
        Some(other) => Err(answer.fail(
            FetchReason::Index,
            format!("it is encoded as {}", escape(other.as_bytes())),
        )),
    }
}

/// Parses an index and writes its lines.
async fn read_index(
    artifacts: Artifacts,
    file: tempfile::NamedTempFile,
    is_compressed: bool,
    known: Option<Digest>,
    head: IndexHead,
) -> Result<Result<Digest, IndexError>, ArtifactError> {
    let size = file.as_file().metadata().map_or(u64::MAX, |metadata| metadata.len());
    // Uncompressed it is about ten times as large.
    let is_large = size > if is_compressed { LARGE / 10 } else { LARGE };
    let _place = if is_large { heavy::place().await } else { None };

    let work = tokio::task::spawn_blocking(move || {
        let read = io_error("read", file.path());
        let opened = std::fs::File::open(file.path());
        let mut reader: Box<dyn std::io::Read> = match opened {
            Ok(file) if is_compressed => Box::new(flate2::read::MultiGzDecoder::new(file)),
            Ok(file) => Box::new(file),
            Err(error) => return Err(read(error)),
        };
        let mut text = Vec::new();
        match reader.by_ref().take(MAX_INDEX + 1).read_to_end(&mut text) {
            Ok(size) if size as u64 > MAX_INDEX => return Ok(Err(IndexError::TooLarge { limit: MAX_INDEX })),
            Ok(_) => {}
            Err(error) if is_compressed => return Ok(Err(IndexError::Encoding(error.to_string()))),
            Err(error) => return Err(read(error)),
        }
        let digest = Digest::of(&text);
        if known != Some(digest) {
            let lines = match index::parse(text) {
                Ok(lines) => lines,
                Err(error) => return Ok(Err(error)),
            };
            artifacts.write(LINES, lines.as_bytes())?;
        }
        // Written last, because it says which index the lines are from.
        save_head(
            &artifacts,
            &IndexHead {
                digest: Some(digest),
                ..head
            },
        )?;
        Ok(Ok(digest))
    });
    match work.await {
        Ok(read) => read,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ArtifactError::Stopped),
        },
    }
}

fn load_head(artifacts: &Artifacts) -> Option<IndexHead> {
    serde_json::from_slice(&std::fs::read(artifacts.path(HEAD)).ok()?).ok()
}

fn save_head(artifacts: &Artifacts, head: &IndexHead) -> Result<(), ArtifactError> {
    let text = serde_json::to_vec(head).map_err(|error| io_error("write", &artifacts.path(HEAD))(error.into()))?;
    artifacts.write(HEAD, &text)
}

/// Finds the wanted chart in the last fetched index, and downloads it if it is not here. `known`: the result of the
/// last call.
pub async fn find_chart(
    web: &Web,
    site: &Site,
    artifacts: &Artifacts,
    wanted: &WantedChart,
    known: Option<&FoundChart>,
    timeout: Duration,
) -> Result<FoundChart, FetchError> {
    let step = Step::new("fetch a chart of", timeout);
    let fail = |reason, evidence: String| FetchError::new(step.what, site.url(), reason, evidence);
    let found = look_up(artifacts, wanted)
        .await
        .map_err(|error| fail(FetchReason::Disk, chain(&error)))?;
    let (versions, chosen) = found.map_err(|error| fail(FetchReason::Index, error.to_string()))?;
    let Some(version) = chosen.map_err(|problem| fail(FetchReason::ReferenceMissing(asked(wanted)), problem))? else {
        let evidence = match versions.as_slice() {
            [] => "the index has no such chart".to_owned(),
            versions => format!("the index has {}", some_of(versions)),
        };
        return Err(fail(FetchReason::ReferenceMissing(asked(wanted)), evidence));
    };
    let entry = version.entry();
    if let Some(known) = known.filter(|known| known.entry == entry && artifacts.contains(&known.digest)) {
        return Ok(known.clone());
    }
    let download = Download {
        web,
        site,
        artifacts,
        step,
        wanted,
        version: &version,
    };
    let mut last = None;
    // One of several URLs is enough.
    for url in &version.urls {
        match download.fetch(url).await {
            Ok(digest) => {
                return Ok(FoundChart {
                    version: version.version.clone(),
                    digest,
                    entry,
                });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| fail(FetchReason::Index, format!("{} has no address", asked(wanted)))))
}

fn asked(wanted: &WantedChart) -> String {
    format!(
        "chart {} {}",
        escape(wanted.name.as_bytes()),
        escape(wanted.version.as_bytes())
    )
}

fn some_of(versions: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<_> = versions
        .iter()
        .take(SHOWN)
        .map(|version| escape(version.as_bytes()))
        .collect();
    match versions.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

type Chosen = Result<Option<ChartVersion>, String>;

/// All versions of a chart, and the chosen one.
async fn look_up(
    artifacts: &Artifacts,
    wanted: &WantedChart,
) -> Result<Result<(Vec<String>, Chosen), IndexError>, ArtifactError> {
    let (artifacts, wanted) = (artifacts.clone(), wanted.clone());
    let work = tokio::task::spawn_blocking(move || {
        let path = artifacts.path(LINES);
        let file = std::fs::File::open(&path).map_err(io_error("read", &path))?;
        let versions = match index::versions_of(std::io::BufReader::new(file), &wanted.name) {
            Ok(Ok(versions)) => versions,
            Ok(Err(error)) => return Ok(Err(error)),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let names: Vec<String> = versions.iter().map(|version| version.version.clone()).collect();
        let chosen = choose_version(&wanted.version, names.iter().map(String::as_str)).map(|chosen| {
            let chosen = chosen.map(str::to_owned);
            versions
                .into_iter()
                .find(|version| Some(&version.version) == chosen.as_ref())
        });
        Ok(Ok((names, chosen)))
    });
    work.await.map_err(|_| ArtifactError::Stopped)?
}

/// Chooses like Helm: a version that is written exactly so, otherwise the highest in the range.
pub fn choose_version<'n>(
    wanted: &str,
    names: impl Iterator<Item = &'n str> + Clone,
) -> Result<Option<&'n str>, String> {
    if let Some(exact) = names.clone().find(|name| *name == wanted) {
        return Ok(Some(exact));
    }
    let range: Range = wanted
        .parse()
        .map_err(|error: crate::range::RangeError| error.to_string())?;
    Ok(range.choose_loosely(names))
}

struct Download<'a> {
    web: &'a Web,
    site: &'a Site,
    artifacts: &'a Artifacts,
    step: Step,
    wanted: &'a WantedChart,
    version: &'a ChartVersion,
}

impl Download<'_> {
    async fn fetch(&self, url: &str) -> Result<Digest, FetchError> {
        let stated = self.site.url();
        let fail = |reason, evidence: String| FetchError::new(self.step.what, stated, reason, evidence);
        if url.starts_with("oci://") {
            return self.fetch_from_registry(url).await;
        }
        let url = resolve(stated, url)
            .ok_or_else(|| fail(FetchReason::Index, format!("{} is no address", escape(url.as_bytes()))))?;
        let answer: Answer = self
            .site
            .send(self.step, Ask::get(url.clone()).sign(Sign::Login))
            .await?
            .success(self.site)?;
        let disk = |error: ArtifactError| FetchError::new(self.step.what, &url, FetchReason::Disk, chain(&error));
        let mut file = self.artifacts.temporary().map_err(disk)?;
        let found = answer.save(file.as_file_mut(), MAX_ARCHIVE).await?;
        if let Some(wanted) = self.version.digest.filter(|wanted| *wanted != found) {
            let reason = FetchReason::Digest {
                wanted: wanted.into(),
                found: found.into(),
            };
            return Err(FetchError::new(self.step.what, &url, reason, String::new()));
        }
        let label = Label {
            file: found,
            holds: Holds::Chart,
        };
        let check = chart_check(self.wanted.name.clone(), Some(self.version.version.clone()));
        let admitted = self.artifacts.admit(found, label, file, check).await.map_err(disk)?;
        admitted.map_err(|problem| FetchError::new(self.step.what, &url, FetchReason::Archive, problem))?;
        Ok(found)
    }

    /// Indexes may name registries too. The credentials are for another host, so they are not used.
    async fn fetch_from_registry(&self, url: &str) -> Result<Digest, FetchError> {
        let fail = |problem: String| FetchError::new(self.step.what, self.site.url(), FetchReason::Index, problem);
        let place = oci::Place::parse(url).map_err(|error| fail(error.to_string()))?;
        let tag = place
            .tag()
            .map_or_else(|| oci::tag_of_version(&self.version.version), str::to_owned);
        let site = self.site.lead_to(self.web, &place.base(false)).await?;
        let registry = oci::Registry::new(site, &place);
        let check = chart_check(self.wanted.name.clone(), Some(self.version.version.clone()));
        oci::fetch_chart(&registry, self.artifacts, self.step, &tag, check).await
    }
}

/// Checks that an archive has the name and version under which it was found.
pub(crate) fn chart_check(
    name: String,
    version: Option<String>,
) -> impl FnOnce(&Members) -> Result<(), String> + Send + 'static {
    /// Far above the largest Chart.yaml.
    const MAX_CHART_YAML: u64 = 1 << 20;
    move |members| {
        let file = members
            .file("Chart.yaml", MAX_CHART_YAML)
            .ok_or("it has no Chart.yaml")?;
        let chart = index::read_chart_yaml(&file).map_err(|error| format!("Chart.yaml: {error}"))?;
        let last = name.rsplit('/').next().unwrap_or_default();
        if chart.name != last {
            return Err(format!(
                "it is chart {}, not {}",
                escape(chart.name.as_bytes()),
                escape(last.as_bytes())
            ));
        }
        let same = |a: &str, b: &str| a.trim_start_matches('v') == b.trim_start_matches('v');
        match version.filter(|version| !same(version, &chart.version)) {
            Some(version) => Err(format!(
                "it is version {}, not {}",
                escape(chart.version.as_bytes()),
                escape(version.as_bytes())
            )),
            None => Ok(()),
        }
    }
}

fn index_url(repository: &Url) -> Url {
    let mut url = folder(repository);
    let path = format!("{}index.yaml", url.path());
    url.set_path(&path);
    url
}

/// The URL with a trailing slash, to which relative addresses are appended.
fn folder(repository: &Url) -> Url {
    let mut url = repository.clone();
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    url
}

/// An address in an index, relative to the repository's own.
fn resolve(repository: &Url, address: &str) -> Option<Url> {
    let url = match Url::parse(address) {
        Ok(url) => url,
        Err(url::ParseError::RelativeUrlWithoutBase) => folder(repository).join(address).ok()?,
        Err(_) => return None,
    };
    let usable = matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
    usable.then_some(url)
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_relative_to_the_repository_or_whole() {
        let check = |repository: &str, address: &str, expected: Option<&str>| {
            let found = resolve(&Url::parse(repository).unwrap(), address).map(|url| url.to_string());
            assert_eq!(found.as_deref(), expected, "{repository} {address}");
        };
        check("https://h/charts", "a-1.tgz", Some("https://h/charts/a-1.tgz"));
        check(
            "https://h/charts/",
            "sub/a-1.tgz?x=y",
            Some("https://h/charts/sub/a-1.tgz?x=y"),
        );
        check("https://h/charts", "/a-1.tgz", Some("https://h/a-1.tgz"));
        check("https://h/charts", "../a-1.tgz", Some("https://h/a-1.tgz"));
        check(
            "https://h/charts",
            "https://other/a-1.tgz",
            Some("https://other/a-1.tgz"),
        );
        check("https://h/charts", "//other/a-1.tgz", Some("https://other/a-1.tgz"));
        for address in [
            "file:///etc/passwd",
            "ftp://h/a",
            "https://user:pw@h/a",
            "http://",
            "gopher://x",
        ] {
            check("https://h/charts", address, None);
        }
        let index = |url: &str| index_url(&Url::parse(url).unwrap()).to_string();
        assert_eq!(index("https://h"), "https://h/index.yaml");
        assert_eq!(index("https://h/charts"), "https://h/charts/index.yaml");
        assert_eq!(index("https://h/charts/"), "https://h/charts/index.yaml");
    }

    #[test]
    fn an_exact_version_comes_before_a_range() {
        let names = ["1.2.3", "1.2.4", "1.3", "2.0.0-rc.1", "v3.0.0", "latest", "1.2.3+build"];
        let choose = |wanted: &str| choose_version(wanted, names.into_iter());
        assert_eq!(choose("1.2.3"), Ok(Some("1.2.3")));
        assert_eq!(choose("1.2.3+build"), Ok(Some("1.2.3+build")));
        assert_eq!(choose("latest"), Ok(Some("latest")));
        assert_eq!(choose("~1.2"), Ok(Some("1.2.4")));
        assert_eq!(choose("1.x"), Ok(Some("1.3")));
        assert_eq!(choose("*"), Ok(Some("v3.0.0")));
        assert_eq!(choose(">=2.0.0-0 <3"), Ok(Some("2.0.0-rc.1")));
        assert_eq!(choose("4.x"), Ok(None));
        assert!(choose("nightly").is_err());
    }
}
