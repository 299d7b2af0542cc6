//! The edge to Helm repositories and registries: their present charts and artifacts, and the stored copies.

use std::{path::PathBuf, time::Duration};

use farwater_api::{Digest, HelmRepositorySpec, OCIRepositorySpec};
use farwater_bundle::Base;
use farwater_fleet::conditions::Verdict;
use farwater_sources::{
    Access, Artifacts, FetchError, FetchReason, FoundChart, Retry, SecretData, Site, WantedChart, helm,
    oci::{self, Follow, Known, Place, Registry, Selection, cosign::Keys},
    single,
};
use farwater_store::delivery::{ChartRow, Revision, SourceOrigin, Taken};
use jiff::Timestamp;
use url::Url;

use crate::{errors::SourceFailure, memory::mirrors::Mirrors};

impl From<FetchError> for SourceFailure {
    fn from(error: FetchError) -> Self {
        let lasting = error.retry() == Retry::AfterChange;
        Self {
            reason: error.reason.code(),
            message: error.to_string(),
            lasting,
        }
    }
}

/// The present state of a source.
#[derive(Debug)]
pub struct Outcome {
    /// Reference, and digest or commit. None: it is a registry of charts, and each chart has its own.
    pub served: Option<(String, String)>,
    pub taken: Taken,
    pub origin: SourceOrigin,
    /// Files that differ from what is served, and folders that came or went. None: unknown.
    pub differs: Option<Vec<String>>,
    /// Charts that have another version than before, or a problem.
    pub charts: Vec<ChartRow>,
    /// Charts that no service wants any more.
    pub unwanted: Vec<(String, String)>,
    /// The same revision contains something else than before.
    pub changed: bool,
    /// Conditions besides `Ready`.
    pub verdicts: Vec<Verdict>,
    /// The failure that ended the fetch part of the way; None: it was completed.
    pub failure: Option<SourceFailure>,
}

impl Outcome {
    /// A completed fetch of one revision. Nothing else is known to have changed.
    pub fn of(served: (String, String), taken: Taken, origin: SourceOrigin) -> Self {
        Self {
            served: Some(served),
            taken,
            origin,
            differs: None,
            charts: Vec::new(),
            unwanted: Vec::new(),
            changed: false,
            verdicts: Vec::new(),
            failure: None,
        }
    }
}

/// Secrets that a source names, read.
#[derive(Default)]
pub struct Credentials {
    pub secret: Option<SecretData>,
    pub tls: Option<SecretData>,
}

impl Credentials {
    fn access(&self, host: &str) -> Result<Access, SourceFailure> {
        let read = Access::read(host, self.secret.as_ref(), self.tls.as_ref());
        read.map_err(|error| SourceFailure::lasting("SecretInvalid", error.to_string()))
    }
}

/// Where a source's artifacts are on this node.
pub fn artifacts(mirrors: &Mirrors, source_uid: &str) -> Result<Artifacts, SourceFailure> {
    let path: Result<PathBuf, _> = mirrors.path(source_uid);
    let path = path.map_err(|error| SourceFailure::passing("MirrorFailed", error.to_string()))?;
    Ok(Artifacts::at(&path))
}

fn invalid(error: impl std::fmt::Display) -> SourceFailure {
    SourceFailure::lasting("SpecInvalid", error.to_string())
}

/// A Helm repository, and the charts that are wanted.
pub struct Helm<'a> {
    pub uid: &'a str,
    pub spec: &'a HelmRepositorySpec,
    /// No resource states it: a chart names it.
    pub is_link: bool,
    pub wanted: Vec<(String, String)>,
    pub known: Vec<ChartRow>,
    pub origin: Option<SourceOrigin>,
    pub timeout: Duration,
}

/// Fetches a Helm repository's index, and each chart that a service wants.
pub async fn fetch_charts(mirrors: &Mirrors, source: Helm<'_>, with: &Credentials) -> Result<Outcome, SourceFailure> {
    let artifacts = artifacts(mirrors, source.uid)?;
    let index = sync_index(mirrors, &source, with, &artifacts).await?;
    let site = index.as_ref().map(|(site, _)| site);

    // Artifacts that were found at the old address don't count: the new address may serve others.
    let moved = source
        .origin
        .as_ref()
        .is_some_and(|origin| !origin.root.is_empty() && origin.root != source.spec.url);
    let mut charts = Vec::new();
    let (mut failure, mut found) = (None, 0);
    for (name, version) in &source.wanted {
        let wanted = WantedChart {
            name: name.clone(),
            version: version.clone(),
        };
        let known = source
            .known
            .iter()
            .find(|row| row.chart == *name && row.wanted == *version)
            .filter(|_| !moved);
        match find_chart(mirrors, &source, with, site, &artifacts, &wanted, known).await {
            Ok(chart) => {
                found += 1;
                charts.extend(moved_chart(source.uid, &wanted, known, chart));
            }
            Err(error) if is_of_chart(&error.reason) => {
                charts.extend(missing_chart(source.uid, &wanted, known, &error))
            }
            // A repository that does not answer now will not answer the next request either.
            Err(error) => {
                failure = Some(SourceFailure::from(error));
                break;
            }
        }
    }

    if moved {
        charts.extend(forgotten_charts(&source, &charts));
    }
    if failure.is_none() {
        tidy_files(&source, &charts, &artifacts).await;
    }
    let digest = index.map(|(_, digest)| digest);
    Ok(charts_outcome(&source, digest, charts, found, failure))
}

/// Fetches the index of a repository of charts. None: it is a registry, which has no index.
async fn sync_index(
    mirrors: &Mirrors,
    source: &Helm<'_>,
    with: &Credentials,
    artifacts: &Artifacts,
) -> Result<Option<(Site, Digest)>, SourceFailure> {
    if source.spec.is_registry() {
        return match source.spec.url.starts_with("oci://") {
            true => Ok(None),
            false => Err(invalid("type oci wants a URL with oci://")),
        };
    }

    let url = Url::parse(&source.spec.url).map_err(invalid)?;
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(invalid(
            "the URL holds credentials or a query; credentials belong into a Secret",
        ));
    }
    let site = match source.is_link {
        true => mirrors.web().linked_site(&url)?,
        false => mirrors
            .web()
            .site(&url, with.access(url.host_str().unwrap_or_default())?)?
            .passing_credentials(source.spec.pass_credentials),
    };
    let digest = helm::sync_index(&site, artifacts, source.timeout).await?;
    Ok(Some((site, digest)))
}

/// Removes the files of charts that are no longer needed.
async fn tidy_files(source: &Helm<'_>, charts: &[ChartRow], artifacts: &Artifacts) {
    let of = |row: &ChartRow| row.digest.parse::<Digest>().ok();
    let kept = source.known.iter().chain(charts).filter_map(of).collect();
    if let Err(error) = artifacts.tidy(kept).await {
        tracing::warn!(source = source.uid, error = %crate::errors::chain(&error), "remove files that are no longer needed");
    }
}

/// `digest`: of the index. `found`: number of charts that were found.
fn charts_outcome(
    source: &Helm<'_>,
    digest: Option<Digest>,
    charts: Vec<ChartRow>,
    found: usize,
    failure: Option<SourceFailure>,
) -> Outcome {
    let is_wanted = |row: &ChartRow| {
        source
            .wanted
            .iter()
            .any(|(chart, wanted)| (chart, wanted) == (&row.chart, &row.wanted))
    };
    let unwanted = source.known.iter().filter(|row| !is_wanted(row));
    let message = digest.is_none().then(|| format!("charts that are followed: {found}"));
    Outcome {
        served: digest.map(|digest| (String::new(), digest.to_hex())),
        taken: Taken::default(),
        origin: SourceOrigin {
            source_uid: source.uid.to_owned(),
            root: source.spec.url.clone(),
            commit_id: digest.map(|digest| digest.to_hex()).unwrap_or_default(),
            unasked: source.origin.as_ref().is_some_and(|origin| origin.unasked) && failure.is_some(),
        },
        differs: None,
        charts,
        unwanted: unwanted.map(|row| (row.chart.clone(), row.wanted.clone())).collect(),
        changed: false,
        verdicts: message
            .map(|message| Verdict::ready("Fetched", message))
            .unwrap_or_default(),
        failure,
    }
}

async fn find_chart(
    mirrors: &Mirrors,
    source: &Helm<'_>,
    with: &Credentials,
    site: Option<&Site>,
    artifacts: &Artifacts,
    wanted: &WantedChart,
    known: Option<&ChartRow>,
) -> Result<FoundChart, FetchError> {
    let known = known.and_then(|row| {
        let digest = row.digest.parse().ok()?;
        Some(FoundChart {
            version: row.version.clone(),
            digest,
            entry: row.entry.clone(),
        })
    });

    if let Some(site) = site {
        return helm::find_chart(mirrors.web(), site, artifacts, wanted, known.as_ref(), source.timeout).await;
    }
    let what = "fetch a chart of";
    let url = source.spec.url.clone();
    let fail = |evidence: String| FetchError {
        what,
        url: url.clone(),
        reason: FetchReason::Index,
        evidence,
    };

    let place = Place::of_chart(&source.spec.url, &wanted.name).map_err(|error| fail(error.to_string()))?;
    let base = place.base(source.spec.insecure);
    let site = match source.is_link {
        true => mirrors.web().linked_site(&base)?,
        false => {
            let access = with.access(&place.name());
            let unusable = |failure: SourceFailure| FetchError {
                what,
                url: url.clone(),
                reason: FetchReason::Unauthorized,
                evidence: failure.message,
            };
            mirrors.web().site(&base, access.map_err(unusable)?)?
        }
    };
    oci::find_chart(
        &Registry::new(site, &place),
        artifacts,
        wanted,
        known.as_ref(),
        source.timeout,
    )
    .await
}

/// Whether an error concerns one chart and says nothing about the others.
fn is_of_chart(reason: &FetchReason) -> bool {
    use FetchReason as Of;
    match reason {
        Of::ReferenceMissing(_) | Of::NotFound | Of::Forbidden | Of::Archive | Of::Manifest | Of::Index => true,
        Of::Digest { .. } | Of::TooLarge { .. } | Of::LinkRefused | Of::Redirected => true,
        Of::Unauthorized | Of::CredentialsMissing | Of::Timeout(_) | Of::Unreachable | Of::ServerError => false,
        Of::HostUnknown | Of::BrokenOff | Of::Throttled | Of::Unexpected | Of::Untrusted | Of::CertificateExpired => {
            false
        }
        Of::ProxyRefused | Of::ClearText | Of::Unverified | Of::Disk => false,
    }
}

fn moved_chart(uid: &str, wanted: &WantedChart, known: Option<&ChartRow>, found: FoundChart) -> Option<ChartRow> {
    let digest = found.digest.to_string();
    let same = |row: &&ChartRow| {
        row.version == found.version && row.digest == digest && row.entry == found.entry && row.problem.is_empty()
    };
    if known.filter(same).is_some() {
        return None;
    }
    Some(ChartRow {
        source_uid: uid.to_owned(),
        chart: wanted.name.clone(),
        wanted: wanted.version.clone(),
        version: found.version,
        digest,
        entry: found.entry,
        problem: String::new(),
        fetched: Timestamp::now().as_second(),
    })
}

/// Charts that were found at another address, and not at the current one.
fn forgotten_charts(source: &Helm<'_>, found: &[ChartRow]) -> Vec<ChartRow> {
    let is_found = |row: &ChartRow| {
        found
            .iter()
            .any(|new| (&new.chart, &new.wanted) == (&row.chart, &row.wanted))
    };
    let forget = |row: &ChartRow| ChartRow {
        source_uid: row.source_uid.clone(),
        chart: row.chart.clone(),
        wanted: row.wanted.clone(),
        problem: format!(
            "chart {} {} was found at another address than spec.url has now",
            row.chart, row.wanted
        ),
        ..ChartRow::default()
    };
    source.known.iter().filter(|row| !is_found(row)).map(forget).collect()
}

/// The chart that was served stays in use; the row names the reason why there is no newer one.
fn missing_chart(uid: &str, wanted: &WantedChart, known: Option<&ChartRow>, error: &FetchError) -> Option<ChartRow> {
    let problem = error.to_string();
    let mut row = known.cloned().unwrap_or_else(|| ChartRow {
        source_uid: uid.to_owned(),
        chart: wanted.name.clone(),
        wanted: wanted.version.clone(),
        ..ChartRow::default()
    });
    if row.problem == problem {
        return None;
    }
    row.problem = problem;
    Some(row)
}

/// An OCI repository, and what is known of it.
pub struct Oci<'a> {
    pub uid: &'a str,
    pub spec: &'a OCIRepositorySpec,
    pub served: Option<&'a Revision>,
    pub timeout: Duration,
    /// Public keys; None: no signature is required.
    pub keys: Option<Keys>,
}

/// The key under which the artifact of a revision is stored on the disk.
pub fn artifact_key(revision: &Revision) -> Option<Digest> {
    revision.taken.artifact.or_else(|| manifest_digest(revision))
}

fn manifest_digest(revision: &Revision) -> Option<Digest> {
    format!("sha256:{}", revision.commit).parse().ok()
}

/// Fetches an artifact from a registry. An artifact that no key verifies is refused.
pub async fn fetch_artifact(mirrors: &Mirrors, source: Oci<'_>, with: &Credentials) -> Result<Outcome, SourceFailure> {
    let Oci {
        uid,
        spec,
        served,
        timeout,
        keys,
    } = source;
    let artifacts = artifacts(mirrors, uid)?;
    let place = Place::parse_untagged(&spec.url).map_err(invalid)?;
    let follow = Follow::parse(spec.r#ref.as_ref()).map_err(invalid)?;
    let selection = Selection::from(spec.layer_selector.as_ref());

    let site = mirrors
        .web()
        .site(&place.base(spec.insecure), with.access(&place.name())?)?;
    let registry = Registry::new(site, &place);
    let verified = keys.as_ref().map(|keys| format!("cosign {}", keys.print()));
    let known = served.and_then(|served| {
        let same_terms = keys.is_none() || served.taken.verified == verified;
        Some(Known {
            digest: manifest_digest(served)?,
            same_terms,
        })
    });

    let pulled = oci::sync(
        &registry,
        &artifacts,
        (&follow, &selection, keys.as_ref()),
        known,
        timeout,
    )
    .await?;
    let digest = pulled.digest;
    let key = selection.key(&digest);
    let kept = served.and_then(artifact_key).into_iter().chain([key]).collect();
    if let Err(error) = artifacts.tidy(kept).await {
        tracing::warn!(source = uid, error = %crate::errors::chain(&error), "remove files that are no longer needed");
    }

    let taken = Taken {
        verified,
        artifact: (key != digest).then_some(key),
        ..Taken::default()
    };
    let changed = pulled.fetched && served.and_then(manifest_digest) == Some(digest);
    let origin = origin_of(uid, &spec.url, digest);
    Ok(Outcome {
        changed,
        ..Outcome::of((pulled.reference, digest.to_hex()), taken, origin)
    })
}

/// Fetches a file that a kustomization names: without credentials, and only from a public address.
pub async fn fetch_file(
    mirrors: &Mirrors,
    uid: &str,
    address: &str,
    served: Option<&Revision>,
    timeout: Duration,
) -> Result<Outcome, SourceFailure> {
    let artifacts = artifacts(mirrors, uid)?;
    let url = Url::parse(address).map_err(invalid)?;
    let name = Base::parse(address)
        .filter(|base| base.is_file)
        .map(|base| base.path.to_string());
    let name = name.ok_or_else(|| invalid("it is no address of a file"))?;
    let digest = single::sync_file(&mirrors.web().linked_site(&url)?, &artifacts, name, timeout).await?;
    let kept = served.and_then(artifact_key).into_iter().chain([digest]).collect();
    if let Err(error) = artifacts.tidy(kept).await {
        tracing::warn!(source = uid, error = %crate::errors::chain(&error), "remove files that are no longer needed");
    }
    Ok(Outcome::of(
        (String::new(), digest.to_hex()),
        Taken::default(),
        origin_of(uid, address, digest),
    ))
}

/// The origin of an artifact that was fetched now.
fn origin_of(uid: &str, address: &str, digest: Digest) -> SourceOrigin {
    SourceOrigin {
        source_uid: uid.to_owned(),
        root: address.to_owned(),
        commit_id: digest.to_hex(),
        unasked: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(version: &str, problem: &str) -> ChartRow {
        ChartRow {
            source_uid: "u".into(),
            chart: "web".into(),
            wanted: "*".into(),
            version: version.into(),
            digest: Digest::of(version).to_string(),
            entry: "e".into(),
            problem: problem.into(),
            fetched: 1,
        }
    }

    #[test]
    fn a_chart_that_is_gone_keeps_what_was_found_and_says_so_once() {
        let wanted = WantedChart {
            name: "web".into(),
            version: "*".into(),
        };
        let found = |version: &str| FoundChart {
            version: version.into(),
            digest: Digest::of(version),
            entry: "e".into(),
        };
        let error = FetchError {
            what: "fetch a chart of",
            url: "https://h".into(),
            reason: FetchReason::ReferenceMissing("chart web *".into()),
            evidence: String::new(),
        };
        assert_eq!(moved_chart("u", &wanted, Some(&row("1", "")), found("1")), None);
        assert_eq!(
            moved_chart("u", &wanted, Some(&row("1", "")), found("2"))
                .unwrap()
                .version,
            "2"
        );
        let gone = missing_chart("u", &wanted, Some(&row("1", "")), &error).unwrap();
        assert!(
            gone.version == "1" && gone.problem.contains("does not exist"),
            "{gone:?}"
        );
        assert_eq!(missing_chart("u", &wanted, Some(&gone), &error), None);
        assert_eq!(moved_chart("u", &wanted, Some(&gone), found("1")).unwrap().problem, "");
        assert_eq!(missing_chart("u", &wanted, None, &error).unwrap().version, "");
    }
}
