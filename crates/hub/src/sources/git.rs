//! The edge to `farwater_sources`: mirrors by source, bundles by content, and failures as conditions state them.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use farwater_api::{Digest, GitRepositorySpec};
use farwater_bundle::{Closure, ObjectId, PathError, RelPath};
use farwater_sources::{CacheError, Mirror, MirrorError, Named, PackedBundle, Reference, Revision};
use farwater_store::{
    StoreError,
    delivery::{
        Bundle, SourceOrigin, Taken, assignments_of_source, bundle_of_content, bundle_of_digest, load_recipe,
        touch_service,
    },
};

use super::{
    access::Way,
    combine::{self, Absent, Again},
    large_files::{self, Wanted},
    submodules::fetch_submodules,
    verify_revisions::verify_revision,
};
use crate::memory::mirrors::Mirrors;
use crate::{errors::SourceFailure, sources};
use crate::{
    errors::chain,
    memory::turns::Turn,
    replica::Replica,
    resources::{Name, SourceName},
};

/// Maximum number of paths in which two commits may differ. With more, every service of the source is requeued.
const MOST_CHANGES: usize = 1000;

/// The state of a remote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The branch or tag; empty for a commit.
    pub reference: String,
    pub commit: String,
    pub origin: SourceOrigin,
    pub taken: Taken,
}

/// Returns the origin of a repository that is at `commit`. It is the known origin if the two histories share a
/// beginning.
async fn find_origin(
    replica: &Replica,
    source_uid: &str,
    known: Option<SourceOrigin>,
    commit: &str,
) -> Result<SourceOrigin, BundleFailure> {
    let known = known.unwrap_or_default();
    let next = SourceOrigin {
        source_uid: source_uid.to_owned(),
        commit_id: commit.to_owned(),
        unasked: false,
        ..known
    };
    if !next.root.is_empty() && known.commit_id == commit {
        return Ok(next);
    }
    let (before, now) = (known.commit_id.parse().ok(), parse_commit(commit)?);
    let mirror = open_mirror(&replica.access.mirrors, source_uid).await?;
    let (root, is_known) = (next.root.clone(), !next.root.is_empty());
    let found = tokio::task::spawn_blocking(move || match before {
        Some(before) if is_known && mirror.are_related(&before, &now) => Ok(root),
        _ => mirror.first_commit(&now).map(|first| first.to_string()),
    });
    match found.await {
        Ok(root) => Ok(SourceOrigin { root: root?, ..next }),
        Err(error) => Err(BundleFailure::Machine(error.into())),
    }
}

/// Paths in which two commits of a mirror differ. `None`: more than [`MOST_CHANGES`], or unknown.
pub async fn find_changes(mirrors: &Mirrors, source_uid: &str, before: &str, after: &str) -> Option<Vec<String>> {
    let found = async {
        let (before, after) = (parse_commit(before)?, parse_commit(after)?);
        let mirror = open_mirror(mirrors, source_uid).await?;
        Ok::<_, BundleFailure>(mirror.changed_paths(before, after, MOST_CHANGES).await?)
    };
    match found.await {
        Ok(changed) => Some(changed?.into_iter().map(|path| path.as_str().to_owned()).collect()),
        // E.g. because the mirror was recreated.
        Err(error) => {
            tracing::info!(source_uid, %error, "can't compare two commits; reconciling all services of the source");
            None
        }
    }
}

/// As Flux writes revisions: `main@sha1:<commit>`.
pub fn format_revision(reference: &str, commit: &str) -> String {
    let algorithm = if commit.len() == 64 { "sha256" } else { "sha1" };
    if reference.is_empty() {
        format!("{algorithm}:{commit}")
    } else {
        format!("{reference}@{algorithm}:{commit}")
    }
}

/// `spec.path` as bundles name it.
pub fn clean_path(path: &str) -> Result<String, PathError> {
    RelPath::parse_folder(path).map(|path| path.as_str().to_owned())
}

pub fn mirror_path(mirrors: &Mirrors, source_uid: &str) -> Result<PathBuf, SourceFailure> {
    mirrors
        .path(source_uid)
        .map_err(|error| SourceFailure::passing("MirrorFailed", error.to_string()))
}

/// Asks the remote, and fetches into the mirror if the followed reference has moved. The host's turn ends with that,
/// because submodules have turns of their own.
pub async fn fetch(
    replica: &Replica,
    source_uid: &str,
    spec: &GitRepositorySpec,
    reference: &Reference,
    (way, turn): (&Way, Turn<'_>),
    known: Option<SourceOrigin>,
) -> Result<Fetch, SourceFailure> {
    let remote = way.own(replica).await?;
    let mirrors = &replica.access.mirrors;
    let path = mirror_path(mirrors, source_uid)?;
    let synced = {
        let _place = mirrors.git_place().await;
        mirrors.git.sync(&remote, reference, &path, way.timeout).await
    };
    turn.end(synced.as_ref().err().map(|error| error.reason.code()));
    let synced = synced?;
    if let Some(before) = synced.rewritten {
        tracing::warn!(url = spec.url, %before, now = %synced.revision.commit, "the branch's history was rewritten");
    }
    complete(replica, source_uid, spec, way, synced.revision, known).await
}

/// Finds a revision that is not followed, and fetches what the mirror lacks of it.
pub async fn find(
    replica: &Replica,
    source_uid: &str,
    spec: &GitRepositorySpec,
    (way, turn): (&Way, Turn<'_>),
    (named, known): (&Named, Option<SourceOrigin>),
) -> Result<Fetch, SourceFailure> {
    let (mirrors, remote) = (&replica.access.mirrors, way.own(replica).await?);
    let path = mirror_path(mirrors, source_uid)?;
    let found = {
        let _place = mirrors.git_place().await;
        mirrors.git.find(&remote, named, &path, way.timeout).await
    };
    turn.end(found.as_ref().err().map(|error| error.reason.code()));
    let revision = found.map_err(|error| {
        let evidence = if error.evidence.is_empty() {
            String::new()
        } else {
            format!(": {}", error.evidence)
        };
        // The requested name has to be corrected, not the source.
        let message = format!("{} {}: {}{evidence}", error.what, error.url, error.reason);
        SourceFailure {
            message,
            ..SourceFailure::from(error)
        }
    })?;
    complete(replica, source_uid, spec, way, revision, known).await
}

/// Completes a revision before it may be served: verifies it, then fetches its submodules.
async fn complete(
    replica: &Replica,
    source_uid: &str,
    spec: &GitRepositorySpec,
    way: &Way,
    revision: Revision,
    known: Option<SourceOrigin>,
) -> Result<Fetch, SourceFailure> {
    let verified = verify_revision(replica, source_uid, spec, way, &revision).await?;
    if spec.recurse_submodules {
        fetch_submodules(replica, source_uid, way, &spec.url, revision.commit).await?;
    }
    let commit = revision.commit.to_string();
    // The origin decides about deletions, so a revision of unknown origin is not served.
    let origin = find_origin(replica, source_uid, known, &commit)
        .await
        .map_err(|error| SourceFailure::passing("MirrorFailed", format!("read the history of {commit}: {error}")))?;
    let address = Some(spec.url.clone());
    let taken = Taken {
        submodules: spec.recurse_submodules,
        lfs: spec.lfs,
        address,
        verified,
        ..Taken::default()
    };
    Ok(Fetch {
        reference: revision.name.unwrap_or_default(),
        commit,
        origin,
        taken,
    })
}

#[derive(Debug)]
pub enum BundleFailure {
    /// A fault of the repository, shown to people as it is: file, line and reason.
    Content(String),
    /// The mirror lacks objects; a recreated mirror has them.
    Damaged(Box<dyn std::error::Error + Send + Sync>),
    /// A fault of this machine.
    Machine(Box<dyn std::error::Error + Send + Sync>),
}

impl std::fmt::Display for BundleFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Content(message) => f.write_str(message),
            Self::Damaged(error) | Self::Machine(error) => f.write_str(&chain(&**error)),
        }
    }
}

impl From<MirrorError> for BundleFailure {
    fn from(error: MirrorError) -> Self {
        match error {
            error if error.is_damage() => Self::Damaged(error.into()),
            MirrorError::Closure(error) => Self::Content(chain(&*error)),
            MirrorError::Pack(error) => Self::Content(chain(&error)),
            error => Self::Machine(error.into()),
        }
    }
}

impl From<StoreError> for BundleFailure {
    fn from(error: StoreError) -> Self {
        Self::Machine(error.into())
    }
}

impl From<CacheError> for BundleFailure {
    fn from(error: CacheError) -> Self {
        Self::Machine(error.into())
    }
}

/// A bundle, and the author of its commit.
pub struct Made {
    pub bundle: Bundle,
    pub author: String,
    /// The paths at which a commit must differ for the bundle to differ.
    pub roots: BTreeSet<RelPath>,
    /// It holds charts, or kustomizations with charts or remote bases, which may need more than what is in it.
    pub may_need_more: bool,
}

/// A bundle that was packed just now or before.
#[derive(Clone, Copy, Debug)]
pub struct PackedAway {
    pub content_id: Digest,
    pub digest: Digest,
    pub bytes: u64,
}

/// The author of a commit; empty: unknown.
pub async fn author(replica: &Replica, source_uid: &str, commit: &str) -> String {
    let (Ok(id), Ok(mirror)) = (
        parse_commit(commit),
        open_mirror(&replica.access.mirrors, source_uid).await,
    ) else {
        return String::new();
    };
    mirror.author(id).await.unwrap_or_default()
}

/// Makes the bundle of a folder at a commit. If the content was packed before, its row has the digest and no archive is
/// made.
pub async fn make_bundle(replica: &Replica, source_uid: &str, commit: &str, path: &str) -> Result<Made, BundleFailure> {
    let folder = RelPath::parse_folder(path).map_err(|error| BundleFailure::Content(format!("spec.path: {error}")))?;
    let id = parse_commit(commit)?;
    let mirrors = &replica.access.mirrors;

    let _place = mirrors.packing_place().await;
    let mirror = open_mirror(mirrors, source_uid).await?;
    let mut closure = mirror.closure(id, folder.clone(), mirrors.limits()).await?;
    let author = mirror.author(id).await?;

    let roots = std::mem::take(&mut closure.roots);
    let may_need_more = !is_whole(&closure);
    let made = |content_id, digest, bytes| {
        let (source_uid, commit, path) = (source_uid.to_owned(), commit.to_owned(), folder.as_str().to_owned());
        Made {
            bundle: Bundle {
                content_id,
                digest,
                bytes,
                source_uid,
                commit,
                path,
            },
            author,
            roots,
            may_need_more,
        }
    };

    let content_id = closure.content_id;
    if let Some(row) = bundle_of_content(&mut *replica.store.tables().await?, &content_id).await? {
        return Ok(made(content_id, row.digest, row.bytes));
    }

    let packed = mirror.pack(closure, mirrors.limits()).await?;
    let PackedBundle {
        digest,
        bytes,
        compressed,
    } = packed;
    mirrors.cache().put(&digest, compressed).await?;
    Ok(made(content_id, digest, bytes))
}

/// Content id of a folder at a commit; nothing is packed. None: charts or bases in it may need more than the folder.
pub async fn content_of(
    mirrors: &Mirrors,
    mirror: &Mirror,
    commit: ObjectId,
    path: &str,
) -> Result<Option<Digest>, BundleFailure> {
    let folder = RelPath::parse_folder(path).map_err(|error| BundleFailure::Content(format!("spec.path: {error}")))?;
    let _place = mirrors.packing_place().await;
    let closure = mirror.closure(commit, folder, mirrors.limits()).await?;
    Ok(is_whole(&closure).then_some(closure.content_id))
}

/// Whether it names nothing of other repositories.
fn is_whole(closure: &Closure) -> bool {
    closure.charts.is_empty() && closure.bases.is_empty() && closure.inflated.is_empty()
}

pub fn parse_commit(commit: &str) -> Result<ObjectId, BundleFailure> {
    commit
        .parse()
        .map_err(|_| BundleFailure::Machine(format!("{commit:?} is no commit id").into()))
}

pub async fn open_mirror(mirrors: &Mirrors, source_uid: &str) -> Result<Mirror, BundleFailure> {
    let path = mirrors
        .path(source_uid)
        .map_err(|error| BundleFailure::Machine(error.into()))?;
    match tokio::task::spawn_blocking(move || Mirror::open(&path)).await {
        Ok(opened) => Ok(opened?),
        Err(error) => Err(BundleFailure::Machine(error.into())),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("no source on this hub can make it again: {0}")]
    Lost(String),
}

/// Returns a compressed bundle, verified. It is rebuilt from its mirror if the cache has lost it.
pub async fn load_bundle(replica: &Arc<Replica>, digest: &Digest) -> Result<Vec<u8>, LoadError> {
    if let Some(bytes) = read_cache(&replica.access.mirrors, digest).await? {
        return Ok(bytes);
    }

    let lock = replica.access.mirrors.lock(digest);
    let _one_at_a_time = lock.lock().await;
    if let Some(bytes) = read_cache(&replica.access.mirrors, digest).await? {
        return Ok(bytes);
    }

    let mut problem = "none has it".to_owned();
    let rows = bundle_of_digest(&mut *replica.store.tables().await?, digest).await?;
    for row in rows {
        let packed = match load_recipe(&mut *replica.store.tables().await?, &row.content_id).await? {
            Some(recipe) => combine::pack_again(&replica.access.mirrors, &recipe).await,
            None => pack_again(&replica.access.mirrors, &row).await.map(Again::Packed),
        };
        match packed {
            Ok(Again::Packed(packed)) if packed.digest == *digest => {
                replica
                    .access
                    .mirrors
                    .cache()
                    .put(digest, packed.compressed.clone())
                    .await?;
                return Ok(packed.compressed);
            }
            // The caller retries once the files have been fetched.
            Ok(Again::Waits(absent)) => {
                return Err(LoadError::Lost(want_again(replica, row.content_id, absent).await?));
            }
            Ok(Again::Packed(_)) => problem = format!("commit {} makes another one now", row.commit),
            Err(BundleFailure::Content(message)) => problem = message,
            Err(BundleFailure::Damaged(error) | BundleFailure::Machine(error)) => problem = chain(&*error),
        }
    }

    look_again(replica, digest).await?;
    Err(LoadError::Lost(problem))
}

/// Requests the large files that this node has lost, and returns a message about that.
async fn want_again(replica: &Arc<Replica>, content: Digest, absent: Vec<Absent>) -> Result<String, StoreError> {
    let mut message = "a source of its large files is gone".to_owned();
    for Absent { source_uid, files } in absent {
        let mut source = None;
        sources::each(&replica.store, None, |kind, resource| {
            if resource.uid == source_uid {
                let name = Name::new(&resource.key.namespace, &resource.key.name);
                source = Some(SourceName::Resource(kind, name));
            }
        })
        .await?;
        let Some(source) = source else { continue };
        message = large_files::want(
            replica,
            Wanted {
                source: &source,
                source_uid,
                content,
                files,
            },
            None,
        );
    }
    Ok(message)
}

/// The commit that a bundle was made of may be gone, while the source's current commit makes the same bundle. So
/// requeue the services that run it.
async fn look_again(replica: &Replica, digest: &Digest) -> Result<(), StoreError> {
    let (text, mut found) = (digest.to_string(), Vec::new());
    {
        let mut tables = replica.store.tables().await?;
        let sources: BTreeSet<String> = bundle_of_digest(&mut tables, digest)
            .await?
            .into_iter()
            .map(|row| row.source_uid)
            .collect();
        for source in sources {
            let rows = assignments_of_source(&mut tables, &source).await?;
            found.extend(
                rows.into_iter()
                    .filter(|row| row.assigned.as_ref().is_some_and(|one| one.contains(&text))),
            );
        }
    }
    for row in found {
        let (service, source) = (row.service_uid, row.source_uid);
        replica
            .store
            .transact(move |tx| Box::pin(async move { touch_service(tx, &service, &source).await }))
            .await?;
        replica.wake_after_loss(Name::new(&row.namespace, &row.name));
    }
    Ok(())
}

/// The cache sets a damaged file aside, so it counts as missing here.
async fn read_cache(mirrors: &Mirrors, digest: &Digest) -> Result<Option<Vec<u8>>, CacheError> {
    match mirrors.cache().get(digest).await {
        Err(error @ CacheError::Corrupt { .. }) => {
            tracing::error!(error = %chain(&error), "making the bundle again");
            Ok(None)
        }
        other => other,
    }
}

async fn pack_again(mirrors: &Mirrors, row: &Bundle) -> Result<PackedBundle, BundleFailure> {
    let folder = RelPath::parse_folder(&row.path).map_err(|error| BundleFailure::Content(error.to_string()))?;
    let mirror = open_mirror(mirrors, &row.source_uid).await?;
    let closure = mirror
        .closure(parse_commit(&row.commit)?, folder, mirrors.limits())
        .await?;
    Ok(mirror.pack(closure, mirrors.limits()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_written_as_flux_does() {
        let commit = "a".repeat(40);
        assert_eq!(format_revision("main", &commit), format!("main@sha1:{commit}"));
        assert_eq!(format_revision("", &commit), format!("sha1:{commit}"));
        assert!(format_revision("v1", &"b".repeat(64)).starts_with("v1@sha256:"));
    }
}
