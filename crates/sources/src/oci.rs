//! Registries: artifacts by tag, range or digest, charts, and their signatures.
//!
//! Implements the part of the OCI distribution specification that pulling needs: manifests, blobs, lists of tags and
//! both ways of signing in. All input is bounded, and used only once its digest is verified.

mod challenge;
pub mod cosign;
mod manifest;
mod place;
mod registry;

use std::time::Duration;

use farwater_api::{
    Digest,
    oci_repository::{LayerOperation, LayerSelector, OCIReference},
};
use farwater_bundle::{Members, path::escape};

use self::{cosign::Keys, manifest::Manifest};
pub use self::{
    manifest::{CHART_CONFIG, CHART_LAYER, FLUX_CONFIG, FLUX_LAYER},
    place::{Place, PlaceError},
    registry::Registry,
};
use crate::{
    artifacts::{ArtifactError, Artifacts, Holds, Label},
    fetch_error::{FetchError, FetchReason},
    helm::{FoundChart, MAX_ARCHIVE, WantedChart, chain, choose_version},
    range::{Range, RangeError},
    web::Step,
};

/// The followed revision of a repository.
#[derive(Clone, Debug, PartialEq)]
pub enum Follow {
    Tag(String),
    /// The tag with the highest version in the range.
    Semver(Range),
    Digest(Digest),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    #[error("ref has {0} fields set; set one of tag, semver and digest")]
    Several(usize),
    #[error("tag {0:?} is none: up to 128 letters, digits, `_`, `.` and `-`, and neither `.` nor `-` at its beginning")]
    Tag(String),
    #[error("digest {0:?} is not `sha256:` and 64 hex digits")]
    Digest(String),
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl Follow {
    /// What an OCIRepository follows. None: the tag `latest`.
    pub fn parse(reference: Option<&OCIReference>) -> Result<Self, FollowError> {
        let Some(OCIReference { tag, semver, digest }) = reference else {
            return Ok(Self::Tag("latest".to_owned()));
        };
        match [tag, semver, digest].into_iter().flatten().count() {
            0 | 1 => {}
            set => return Err(FollowError::Several(set)),
        }
        if let Some(range) = semver {
            return Ok(Self::Semver(range.parse()?));
        }
        if let Some(digest) = digest {
            return digest
                .parse()
                .map(Self::Digest)
                .map_err(|_| FollowError::Digest(digest.chars().take(80).collect()));
        }
        let tag = tag.as_deref().unwrap_or("latest");
        if is_tag(tag) {
            Ok(Self::Tag(tag.to_owned()))
        } else {
            Err(FollowError::Tag(tag.chars().take(80).collect()))
        }
    }
}

/// Whether a text is a tag by the distribution specification.
pub fn is_tag(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    !text.is_empty() && text.len() <= 128 && text.bytes().all(plain) && !text.starts_with(['.', '-'])
}

/// A tag can't contain a plus, so Helm writes an underscore.
pub fn tag_of_version(version: &str) -> String {
    version.replace('+', "_")
}

/// The layer to read, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub media_type: Option<String>,
    pub copies: bool,
}

impl Selection {
    /// Key of an artifact read by this selection: two selections of one manifest give two artifacts.
    pub fn key(&self, manifest: &Digest) -> Digest {
        if *self == Self::default() {
            *manifest
        } else {
            Digest::of(format!("{manifest}\n{self:?}"))
        }
    }
}

impl From<Option<&LayerSelector>> for Selection {
    fn from(selector: Option<&LayerSelector>) -> Self {
        let Some(LayerSelector { media_type, operation }) = selector else {
            return Self::default();
        };
        Self {
            media_type: media_type.clone(),
            copies: *operation == LayerOperation::Copy,
        }
    }
}

/// The revision that a repository is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The tag. Empty: a digest was requested.
    pub reference: String,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Whether something was downloaded.
    pub fetched: bool,
}

/// The revision that was served before.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub digest: Digest,
    /// It was pulled with the same selection, and if there are keys, verified with the same ones.
    pub same_terms: bool,
}

/// Checks the registry, and pulls the followed artifact if it has changed. With keys, only an artifact that they have
/// signed is pulled.
pub async fn sync(
    registry: &Registry,
    artifacts: &Artifacts,
    (follow, selection, keys): (&Follow, &Selection, Option<&Keys>),
    known: Option<Known>,
    timeout: Duration,
) -> Result<Pulled, FetchError> {
    let step = Step::new("pull", timeout);
    let (reference, digest) = find(registry, follow, step).await?;
    let key = selection.key(&digest);
    let is_known = known.is_some_and(|known| known.digest == digest && known.same_terms);
    if is_known && artifacts.contains(&key) {
        return Ok(Pulled {
            reference,
            digest,
            fetched: false,
        });
    }

    let manifest = registry.manifest(step, &digest.to_string()).await?;
    if let Some(keys) = keys {
        cosign::verify(registry, step, &digest, keys).await?;
    }
    let layer = manifest
        .layer(selection)
        .map_err(|problem| registry.fail(step, FetchReason::Manifest, problem))?;
    let holds = if manifest.is_chart() && layer.media_type == CHART_LAYER {
        Holds::Chart
    } else if selection.copies {
        let title = layer.title().ok_or_else(|| {
            let problem = "the layer has no annotation org.opencontainers.image.title to name its file".to_owned();
            registry.fail(step, FetchReason::Manifest, problem)
        })?;
        Holds::File(title.to_owned())
    } else {
        Holds::Files
    };

    download(registry, artifacts, step, (key, layer.digest), holds, |_| Ok(())).await?;
    Ok(Pulled {
        reference,
        digest,
        fetched: true,
    })
}

/// The followed tag and its digest. A digest has no tag.
async fn find(registry: &Registry, follow: &Follow, step: Step) -> Result<(String, Digest), FetchError> {
    match follow {
        Follow::Digest(digest) => Ok((String::new(), *digest)),
        Follow::Tag(tag) => Ok((tag.clone(), registry.digest_of(step, tag).await?)),
        Follow::Semver(range) => {
            let tags = registry.tags(step).await?;
            let Some(tag) = range
                .choose(tags.iter().map(String::as_str))
                .filter(|tag| is_tag(tag))
                .map(str::to_owned)
            else {
                let reason = FetchReason::ReferenceMissing(format!("a tag in the range {range}"));
                return Err(registry.fail(step, reason, format!("{} tags, none in the range", tags.len())));
            };
            let digest = registry.digest_of(step, &tag).await?;
            Ok((tag, digest))
        }
    }
}

/// Finds the wanted chart, in the repository of its name.
pub async fn find_chart(
    registry: &Registry,
    artifacts: &Artifacts,
    wanted: &WantedChart,
    known: Option<&FoundChart>,
    timeout: Duration,
) -> Result<FoundChart, FetchError> {
    let step = Step::new("fetch a chart of", timeout);
    let asked = || {
        format!(
            "chart {} {}",
            escape(wanted.name.as_bytes()),
            escape(wanted.version.as_bytes())
        )
    };
    let missing = |evidence: String| registry.fail(step, FetchReason::ReferenceMissing(asked()), evidence);
    let choose = async || {
        let tags = registry.tags(step).await?;
        let versions: Vec<String> = tags.iter().map(|tag| tag.replace('_', "+")).collect();
        let chosen = choose_version(&wanted.version, versions.iter().map(String::as_str)).map_err(missing)?;
        chosen
            .map(str::to_owned)
            .ok_or_else(|| missing(format!("{} tags, none in the range", versions.len())))
    };
    let find = async |version: String| {
        let tag = tag_of_version(&version);
        match is_tag(&tag) {
            true => registry.digest_of(step, &tag).await.map(|digest| (version, digest)),
            false => Err(missing("it is no tag".to_owned())),
        }
    };
    let (version, digest) = match semver::Version::parse(&wanted.version) {
        // A single version needs no list, which may be long or forbidden.
        Ok(exact) => match find(wanted.version.clone()).await {
            // The version may exist with build metadata only, as in an index.
            Err(error) if error.is_missing() && exact.build.is_empty() => match choose().await {
                Ok(version) => find(version).await?,
                Err(_) => return Err(error),
            },
            found => found?,
        },
        Err(_) => find(choose().await?).await?,
    };
    let entry = digest.to_string();
    if let Some(known) = known.filter(|known| known.entry == entry && artifacts.contains(&known.digest)) {
        // The same artifact may have another tag now.
        return Ok(FoundChart {
            version,
            ..known.clone()
        });
    }

    let check = crate::helm::chart_check(wanted.name.clone(), Some(version.clone()));
    let digest = fetch_chart(registry, artifacts, step, &entry, check).await?;
    Ok(FoundChart { version, digest, entry })
}

/// Fetches a chart by its tag or its manifest's digest.
pub(crate) async fn fetch_chart(
    registry: &Registry,
    artifacts: &Artifacts,
    step: Step,
    reference: &str,
    check: impl FnOnce(&Members) -> Result<(), String> + Send + 'static,
) -> Result<Digest, FetchError> {
    let digest = match reference.parse() {
        Ok(digest) => digest,
        Err(_) => registry.digest_of(step, reference).await?,
    };
    if artifacts.contains(&digest) {
        return Ok(digest);
    }
    let manifest = registry.manifest(step, &digest.to_string()).await?;
    let selection = Selection {
        media_type: Some(CHART_LAYER.to_owned()),
        copies: false,
    };
    let layer = manifest
        .layer(&selection)
        .map_err(|problem| registry.fail(step, FetchReason::Manifest, problem))?;
    download(registry, artifacts, step, (digest, layer.digest), Holds::Chart, check).await?;
    Ok(digest)
}

async fn download(
    registry: &Registry,
    artifacts: &Artifacts,
    step: Step,
    (key, layer): (Digest, Digest),
    holds: Holds,
    check: impl FnOnce(&Members) -> Result<(), String> + Send + 'static,
) -> Result<(), FetchError> {
    let disk = |error: ArtifactError| registry.fail(step, FetchReason::Disk, chain(&error));
    let mut file = artifacts.temporary().map_err(disk)?;
    registry.blob_to(step, &layer, file.as_file_mut(), MAX_ARCHIVE).await?;
    let admitted = artifacts
        .admit(key, Label { file: layer, holds }, file, check)
        .await
        .map_err(disk)?;
    admitted.map_err(|problem| registry.fail(step, FetchReason::Archive, problem))
}

impl Manifest {
    fn is_chart(&self) -> bool {
        self.config.media_type == CHART_CONFIG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_field_or_none_is_taken() {
        assert_eq!(Follow::parse(None), Ok(Follow::Tag("latest".into())));
        let tag = |tag: &str| {
            Follow::parse(Some(&OCIReference {
                tag: Some(tag.into()),
                ..OCIReference::default()
            }))
        };
        assert_eq!(tag("v1.2.3_x-y"), Ok(Follow::Tag("v1.2.3_x-y".into())));
        for bad in ["", ".a", "-a", "a/b", "a:b", "a b", "a\n", "ä", &"a".repeat(129)] {
            assert!(tag(bad).is_err(), "{bad:?}");
        }
        let digest = |digest: &str| {
            Follow::parse(Some(&OCIReference {
                digest: Some(digest.into()),
                ..OCIReference::default()
            }))
        };
        assert_eq!(
            digest(&Digest::of("x").to_string()),
            Ok(Follow::Digest(Digest::of("x")))
        );
        assert!(digest("sha256:abc").is_err());
        let both = OCIReference {
            tag: Some("a".into()),
            semver: Some("*".into()),
            digest: None,
        };
        assert_eq!(Follow::parse(Some(&both)), Err(FollowError::Several(2)));
    }
}
