//! Reads a bare mirror with gix: commits, trees and blobs as stored. Nothing is ever checked out.

use std::path::{Path, PathBuf};

use farwater_api::Digest;
use farwater_bundle::{
    Closure, ClosureError, Entry, Limits, Mode, ObjectId, PackError, RelPath, Tree, TreeError, archive, changed_paths,
    closure,
};

/// Most bytes of a tree object: 32 MiB is about 700,000 entries in one folder.
pub(crate) const MAX_TREE_BYTES: u64 = 32 << 20;
/// Most bytes of a commit or tag.
const MAX_COMMIT_BYTES: u64 = 4 << 20;
/// Most bytes of an author's name and address.
const MAX_AUTHOR: usize = 128;
/// Most nested tags.
const MAX_PEEL: usize = 8;
/// Bytes of decoded objects that are cached during a walk, so that deltas are resolved once.
const OBJECT_CACHE: usize = 8 << 20;

/// A bare mirror. Cheap to clone and to share.
#[derive(Clone)]
pub struct Mirror {
    repository: gix::ThreadSafeRepository,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    #[error("open mirror {}", path.display())]
    Open {
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("read commit {id} of the mirror")]
    Commit { id: ObjectId, source: TreeError },
    #[error("{id} is no commit")]
    NotACommit { id: ObjectId },
    #[error(transparent)]
    Closure(Box<ClosureError>),
    #[error(transparent)]
    Pack(#[from] PackError),
    #[error("{path}: {why}")]
    LargeFile { path: RelPath, why: String },
    #[error("the work was stopped")]
    Stopped,
}

impl MirrorError {
    /// Whether the mirror lacks objects. Removing its folder makes the next fetch complete again.
    pub fn is_damage(&self) -> bool {
        use farwater_bundle::ClosureReason::Tree;
        match self {
            Self::Open { .. } => true,
            Self::Commit {
                source: TreeError::Missing(_) | TreeError::Unreadable { .. },
                ..
            } => true,
            Self::Closure(error) => matches!(error.reason, Tree(TreeError::Missing(_) | TreeError::Unreadable { .. })),
            Self::Pack(PackError::Read { source, .. }) => {
                matches!(source, TreeError::Missing(_) | TreeError::Unreadable { .. })
            }
            _ => false,
        }
    }
}

/// A bundle as stored and sent.
#[derive(Clone, Debug)]
pub struct PackedBundle {
    /// Digest of the uncompressed archive.
    pub digest: Digest,
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    /// zstd.
    pub compressed: Vec<u8>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mirror").field(&self.path).finish()
    }
}

impl Mirror {
    /// Opens a mirror that [`crate::Git::sync`] made. Blocking, like all functions here that are not `async`.
    pub fn open(path: &Path) -> Result<Self, MirrorError> {
        let options = gix::open::Options::isolated()
            .open_path_as_is(true)
            .with(gix::sec::Trust::Full);
        let repository = gix::ThreadSafeRepository::open_opts(path, options).map_err(|error| MirrorError::Open {
            path: path.to_owned(),
            source: error.into(),
        })?;
        Ok(Self {
            repository,
            path: path.to_owned(),
        })
    }

    /// The id in a reference, not peeled.
    pub(crate) fn reference(&self, name: &str) -> Option<ObjectId> {
        let repository = self.repository.to_thread_local();
        let reference = repository.try_find_reference(name).ok()??;
        ObjectId::from_bytes(reference.try_id()?.as_bytes()).ok()
    }

    /// The commit with this id, or the one that an annotated tag leads to.
    pub fn peel_to_commit(&self, id: &ObjectId) -> Result<ObjectId, MirrorError> {
        let objects = self.objects();
        let mut id = *id;
        for _ in 0..MAX_PEEL {
            match objects
                .read(&id, MAX_COMMIT_BYTES)
                .map_err(|source| MirrorError::Commit { id, source })?
            {
                (gix::objs::Kind::Commit, _) => return Ok(id),
                (gix::objs::Kind::Tag, data) => id = header(&data, "object").ok_or(MirrorError::NotACommit { id })?,
                _ => return Err(MirrorError::NotACommit { id }),
            }
        }
        Err(MirrorError::NotACommit { id })
    }

    /// The root tree of a commit.
    pub fn root_tree(&self, commit: &ObjectId) -> Result<ObjectId, MirrorError> {
        let id = *commit;
        match self
            .objects()
            .read(&id, MAX_COMMIT_BYTES)
            .map_err(|source| MirrorError::Commit { id, source })?
        {
            (gix::objs::Kind::Commit, data) => header(&data, "tree").ok_or(MirrorError::NotACommit { id }),
            _ => Err(MirrorError::NotACommit { id }),
        }
    }

    /// Whether `before` is in the history of `now`. False also if this is unknown.
    pub(crate) fn is_ancestor(&self, before: &ObjectId, now: &ObjectId) -> bool {
        let repository = self.repository.to_thread_local();
        let (Ok(before), Ok(now)) = (to_gix(before), to_gix(now)) else {
            return false;
        };
        repository
            .merge_base(before, now)
            .is_ok_and(|base| base.is_some_and(|base| base.detach() == before))
    }

    /// The merge base of two commits. If one is an ancestor of the other, that one. None also if this is unknown.
    pub async fn merge_base(&self, one: ObjectId, other: ObjectId) -> Option<ObjectId> {
        let mirror = self.clone();
        let found = tokio::task::spawn_blocking(move || {
            let repository = mirror.repository.to_thread_local();
            let base = repository.merge_base(to_gix(&one).ok()?, to_gix(&other).ok()?).ok()??;
            base.detach().to_string().parse().ok()
        });
        found.await.ok().flatten()
    }

    /// Whether two commits have a common ancestor. False also if this is unknown, e.g. for a commit of another mirror.
    pub fn are_related(&self, before: &ObjectId, now: &ObjectId) -> bool {
        let repository = self.repository.to_thread_local();
        let (Ok(before), Ok(now)) = (to_gix(before), to_gix(now)) else {
            return false;
        };
        repository.merge_base(before, now).is_ok_and(|base| base.is_some())
    }

    /// The first commit of a history, by first parents. It is the same for as long as the repository is.
    pub fn first_commit(&self, commit: &ObjectId) -> Result<ObjectId, MirrorError> {
        let objects = self.objects();
        let mut id = *commit;
        loop {
            match objects
                .read(&id, MAX_COMMIT_BYTES)
                .map_err(|source| MirrorError::Commit { id, source })?
            {
                (gix::objs::Kind::Commit, data) => match first_parent(&data) {
                    Some(parent) => id = parent,
                    None => return Ok(id),
                },
                _ => return Err(MirrorError::NotACommit { id }),
            }
        }
    }

    /// The object database, for [`closure`] and [`archive::pack`].
    pub fn objects(&self) -> MirrorObjects {
        let mut repository = self.repository.to_thread_local();
        repository.object_cache_size_if_unset(OBJECT_CACHE);
        MirrorObjects { repository }
    }

    /// The closure of a folder at a commit.
    pub async fn closure(&self, commit: ObjectId, path: RelPath, limits: Limits) -> Result<Closure, MirrorError> {
        let mirror = self.clone();
        blocking(move || {
            let root = mirror.root_tree(&commit)?;
            closure(&mirror.objects(), &root, &path, &limits).map_err(MirrorError::Closure)
        })
        .await
    }

    /// The paths at which two commits differ. None: there are more than `most`, or they are unknown.
    pub async fn changed_paths(
        &self,
        before: ObjectId,
        after: ObjectId,
        most: usize,
    ) -> Result<Option<Vec<RelPath>>, MirrorError> {
        let mirror = self.clone();
        blocking(move || {
            let (old, new) = (mirror.root_tree(&before)?, mirror.root_tree(&after)?);
            changed_paths(&mirror.objects(), &old, &new, most)
                .map_err(|source| MirrorError::Commit { id: after, source })
        })
        .await
    }

    /// Author of a commit, as it states: `Name <address>`. Empty: it states none.
    pub async fn author(&self, id: ObjectId) -> Result<String, MirrorError> {
        let mirror = self.clone();
        blocking(move || {
            let objects = mirror.objects();
            match objects
                .read(&id, MAX_COMMIT_BYTES)
                .map_err(|source| MirrorError::Commit { id, source })?
            {
                (gix::objs::Kind::Commit, data) => Ok(author(&data)),
                _ => Err(MirrorError::NotACommit { id }),
            }
        })
        .await
    }

    /// The archive of a closure.
    pub async fn pack(&self, closure: Closure, limits: Limits) -> Result<PackedBundle, MirrorError> {
        let mirror = self.clone();
        blocking(move || {
            let bytes = archive::pack(&mirror.objects(), &closure, &limits)?;
            let compressed = archive::compress(&bytes)?;
            Ok(PackedBundle {
                digest: Digest::of(&bytes),
                bytes: bytes.len() as u64,
                compressed,
            })
        })
        .await
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MirrorError> + Send + 'static,
) -> Result<T, MirrorError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(MirrorError::Stopped),
        },
    }
}

/// Objects of a mirror, for one thread.
pub struct MirrorObjects {
    repository: gix::Repository,
}

impl MirrorObjects {
    /// The id for this repository. Where several kinds of sources are combined, ids of another length are requested,
    /// which gix does not accept.
    fn own(&self, id: &ObjectId) -> Result<gix::ObjectId, TreeError> {
        let wanted = to_gix(id).map_err(|source| TreeError::Unreadable { id: *id, source })?;
        if wanted.kind() == self.repository.object_hash() {
            Ok(wanted)
        } else {
            Err(TreeError::Missing(*id))
        }
    }

    /// Checks the size first, so that a blob that is too large is never inflated.
    pub(crate) fn read(&self, id: &ObjectId, limit: u64) -> Result<(gix::objs::Kind, Vec<u8>), TreeError> {
        let unreadable = |error: gix::Error| TreeError::Unreadable {
            id: *id,
            source: error.into(),
        };
        let wanted = self.own(id)?;
        let header = self
            .repository
            .try_find_header(wanted)
            .map_err(unreadable)?
            .ok_or(TreeError::Missing(*id))?;
        if header.size() > limit {
            return Err(TreeError::TooLarge {
                id: *id,
                size: header.size(),
                limit,
            });
        }
        let object = self
            .repository
            .try_find_object(wanted)
            .map_err(unreadable)?
            .ok_or(TreeError::Missing(*id))?;
        Ok((object.kind, object.detach().data))
    }

    /// Adds an object if it is missing. Without a reference to it, it is deleted when the mirror is tidied.
    pub(crate) fn write(
        &self,
        kind: gix::objs::Kind,
        data: &[u8],
    ) -> Result<ObjectId, Box<dyn std::error::Error + Send + Sync>> {
        use gix::objs::Write as _;
        let id = self.repository.objects.write_buf(kind, data)?;
        Ok(ObjectId::from_bytes(id.as_bytes())?)
    }

    /// The size of an object, without reading it.
    pub(crate) fn size(&self, id: &ObjectId) -> Result<u64, TreeError> {
        let header = self.repository.try_find_header(self.own(id)?);
        let header = header.map_err(|error| TreeError::Unreadable {
            id: *id,
            source: error.into(),
        })?;
        Ok(header.ok_or(TreeError::Missing(*id))?.size())
    }

    /// A commit or tag as stored, and whether it is a commit.
    pub(crate) fn signed_object(&self, id: &ObjectId) -> Result<(bool, Vec<u8>), TreeError> {
        match self.read(id, MAX_COMMIT_BYTES)? {
            (gix::objs::Kind::Commit, data) => Ok((true, data)),
            (gix::objs::Kind::Tag, data) => Ok((false, data)),
            (kind, _) => Err(TreeError::Unreadable {
                id: *id,
                source: format!("it is a {kind}").into(),
            }),
        }
    }

    /// A file at the root of a tree.
    pub(crate) fn file(&self, root: &ObjectId, name: &[u8], limit: u64) -> Result<Option<Vec<u8>>, TreeError> {
        let entry = self.entries(root)?.into_iter().find(|entry| entry.name == name);
        let file = entry.filter(|entry| matches!(entry.mode, Mode::File | Mode::Executable));
        file.map(|entry| self.blob(&entry.id, limit)).transpose()
    }

    /// The commit of a submodule at a path of a tree.
    pub(crate) fn commit_at(&self, root: &ObjectId, path: &RelPath) -> Result<Option<ObjectId>, TreeError> {
        let (mut tree, mut names) = (*root, path.names().peekable());
        while let Some(name) = names.next() {
            let Some(entry) = self
                .entries(&tree)?
                .into_iter()
                .find(|entry| entry.name == name.as_bytes())
            else {
                return Ok(None);
            };
            match (entry.mode, names.peek()) {
                (Mode::Tree, Some(_)) => tree = entry.id,
                (Mode::Commit, None) => return Ok(Some(entry.id)),
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    fn expect(&self, id: &ObjectId, kind: gix::objs::Kind, limit: u64) -> Result<Vec<u8>, TreeError> {
        let (found, data) = self.read(id, limit)?;
        if found != kind {
            let source = format!("it is a {found}, not a {kind}").into();
            return Err(TreeError::Unreadable { id: *id, source });
        }
        Ok(data)
    }
}

impl Tree for MirrorObjects {
    fn entries(&self, id: &ObjectId) -> Result<Vec<Entry>, TreeError> {
        let data = self.expect(id, gix::objs::Kind::Tree, MAX_TREE_BYTES)?;
        parse_tree(&data, id.as_bytes().len()).ok_or_else(|| TreeError::Unreadable {
            id: *id,
            source: "it is not a well-formed tree".into(),
        })
    }

    fn blob(&self, id: &ObjectId, limit: u64) -> Result<Vec<u8>, TreeError> {
        self.expect(id, gix::objs::Kind::Blob, limit)
    }
}

/// Parses a sequence of `<octal mode> <name>\0<id>`. Our own parser keeps names as they are: the closure decides what
/// they may contain.
fn parse_tree(data: &[u8], id_len: usize) -> Option<Vec<Entry>> {
    let (mut entries, mut at) = (Vec::new(), 0);
    while at < data.len() {
        let (entry, end) = parse_entry(data, at, id_len)?;
        entries.push(entry);
        at = end;
    }
    Some(entries)
}

/// The entry that begins at `at`, and where it ends; its id comes last.
pub(crate) fn parse_entry(data: &[u8], at: usize, id_len: usize) -> Option<(Entry, usize)> {
    let rest = data.get(at..)?;
    let space = rest.iter().position(|b| *b == b' ')?;
    let end = space + rest[space..].iter().position(|b| *b == 0)?;
    let mode = u32::from_str_radix(std::str::from_utf8(&rest[..space]).ok()?, 8).ok()?;
    let name = rest[space + 1..end].to_vec();
    let id = ObjectId::from_bytes(rest.get(end + 1..end + 1 + id_len)?).ok()?;
    let mode = match mode & 0o170_000 {
        0o040_000 => Mode::Tree,
        0o120_000 => Mode::Symlink,
        0o160_000 => Mode::Commit,
        0o100_000 if mode & 0o100 != 0 => Mode::Executable,
        0o100_000 => Mode::File,
        _ => return None,
    };
    Some((Entry { name, mode, id }, at + end + 1 + id_len))
}

/// The id in a header line of a commit or tag.
fn header(data: &[u8], name: &str) -> Option<ObjectId> {
    let line = data.split(|b| *b == b'\n').next()?;
    std::str::from_utf8(line)
        .ok()?
        .strip_prefix(name)?
        .strip_prefix(' ')?
        .parse()
        .ok()
}

/// The first parent, in the line after a commit's tree. None: there is none.
fn first_parent(commit: &[u8]) -> Option<ObjectId> {
    let (_, rest) = commit.split_at_checked(commit.iter().position(|byte| *byte == b'\n')? + 1)?;
    header(rest, "parent")
}

/// The line `author Name <address> <seconds> <zone>` before the first empty line. Its content is arbitrary.
fn author(commit: &[u8]) -> String {
    let mut header = commit.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    let line = header
        .find_map(|line| line.strip_prefix(b"author "))
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let who = line.rsplit_once('>').map_or("", |(who, _)| who).trim();
    if who.is_empty() {
        return String::new();
    }
    let shown: String = who.chars().filter(|c| !c.is_control()).take(MAX_AUTHOR - 1).collect();
    format!("{shown}>")
}

fn to_gix(id: &ObjectId) -> Result<gix::ObjectId, Box<dyn std::error::Error + Send + Sync>> {
    gix::ObjectId::try_from(id.as_bytes()).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_author_is_a_name_and_an_address() {
        let check = |line: &str, expected: &str| {
            let commit =
                format!("tree abc\nparent def\n{line}\ncommitter Bot <bot@example.com> 1 +0000\n\nauthor X <x>\n");
            assert_eq!(author(commit.as_bytes()), expected, "{line:?}");
        };
        check(
            "author Ann Example <ann@example.com> 1700000000 +0100",
            "Ann Example <ann@example.com>",
        );
        check("author <ann@example.com> 1700000000 +0100", "<ann@example.com>");
        check(
            "author Ann > Co <ann@example.com> 1 +0000",
            "Ann > Co <ann@example.com>",
        );
        check(
            "author A\u{1b}[31mnn <a@example.com> 1 +0000",
            "A[31mnn <a@example.com>",
        );
        check("author nobody", "");
        check("encoding UTF-8", "");
        assert_eq!(
            author(format!("author {} <a> 1 +0000\n\n", "n".repeat(500)).as_bytes()).len(),
            MAX_AUTHOR
        );
    }
}
