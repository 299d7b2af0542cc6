//! Whether a revision is signed as its source demands. A revision that is not is never served.

use std::sync::Arc;

use farwater_api::{GitRepositorySpec, git_repository::GitVerificationMode};
use farwater_sources::{Keys, Mirror, Revision, VerifyMode};

use super::{
    access::{Way, load_secret},
    fetch_sources::UNVERIFIED,
    git::mirror_path,
};
use crate::{errors::SourceFailure, replica::Replica, resources::Name};

fn mode(mode: GitVerificationMode) -> VerifyMode {
    match mode {
        GitVerificationMode::Head => VerifyMode::Head,
        GitVerificationMode::Tag => VerifyMode::Tag,
        GitVerificationMode::TagAndHead => VerifyMode::TagAndHead,
    }
}

/// The signature that verifies a revision; `None`: no signature is required.
pub async fn verify_revision(
    replica: &Replica,
    source_uid: &str,
    spec: &GitRepositorySpec,
    way: &Way,
    revision: &Revision,
) -> Result<Option<String>, SourceFailure> {
    let Some(demanded) = &spec.verify else { return Ok(None) };
    let mode = mode(demanded.mode);
    if mode != VerifyMode::Head && !follows_tag(spec) {
        let message = format!(
            "spec.verify.mode {} needs spec.ref to be a tag, or a range of tags",
            mode.as_str()
        );
        return Err(SourceFailure::lasting("SpecInvalid", message));
    }
    let name = &demanded.secret_ref.name;
    let data = load_secret(replica, &Name::new(way.namespace(), name)).await?;
    let keys = Keys::read(&data)
        .map_err(|error| SourceFailure::lasting("SecretInvalid", format!("Secret {name} of spec.verify: {error}")))?;
    let (path, keys) = (mirror_path(&replica.access.mirrors, source_uid)?, Arc::new(keys));
    let unreadable = |error: farwater_sources::MirrorError| {
        SourceFailure::passing(
            "MirrorFailed",
            format!("verify {}: {}", revision.commit, crate::errors::chain(&error)),
        )
    };
    let mirror = tokio::task::spawn_blocking(move || Mirror::open(&path)).await;
    let mirror = mirror.map_err(|error| SourceFailure::passing("MirrorFailed", error.to_string()))?;
    let refused = mirror
        .map_err(unreadable)?
        .verify(revision, mode, &keys)
        .await
        .map_err(unreadable)?;
    match refused {
        None => Ok(Some(keys.policy(mode))),
        Some(why) => {
            let remedy =
                format!("sign it with a key of the ones in Secret {name}, or put the signer's public key there");
            Err(SourceFailure::lasting(UNVERIFIED, format!("{why}; {remedy}")))
        }
    }
}

fn follows_tag(spec: &GitRepositorySpec) -> bool {
    spec.r#ref.as_ref().is_some_and(|reference| {
        let is_named = reference
            .name
            .as_ref()
            .is_some_and(|name| name.starts_with("refs/tags/"));
        reference.tag.is_some() || reference.semver.is_some() || is_named
    })
}
