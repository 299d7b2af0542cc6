//! Follows a path through symlinks inside a repository or an archive, as a kernel does.

use std::collections::VecDeque;

use crate::path::{PathError, PathReason, RelPath};

/// As many symlinks as Linux follows in one path.
const MAX_HOPS: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Folder,
    File,
    /// With the text of its target.
    Link(Vec<u8>),
}

pub(crate) trait Lookup {
    type Error;
    /// The entry at a path whose parent is a real folder.
    fn find(&mut self, path: &RelPath) -> Result<Option<Found>, Self::Error>;
    /// Called for each path that the result depends on, besides its target and the target's folders.
    fn note(&mut self, _path: &RelPath) {}
}

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub path: RelPath,
    pub folder: bool,
    /// The symlinks on the way.
    pub links: Vec<RelPath>,
}

/// Why a path has no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("{0} does not exist")]
    Missing(RelPath),
    #[error("{0} is not a folder")]
    NotAFolder(RelPath),
    #[error("symlinks lead in a circle, or through more than {MAX_HOPS} others")]
    Loop,
    #[error("{0}")]
    Path(PathError),
}

impl Lost {
    /// Whether the path leads out of the repository, rather than to a missing target in it.
    pub fn escapes(&self) -> bool {
        matches!(self, Self::Path(e) if matches!(e.reason, PathReason::Escapes | PathReason::Absolute))
    }
}

/// Follows `reference` from `base`, a real folder.
pub(crate) fn follow<L: Lookup>(
    lookup: &mut L,
    base: &RelPath,
    reference: &[u8],
) -> Result<Result<Resolved, Lost>, L::Error> {
    let lost = |bytes: &[u8], reason| Ok(Err(Lost::Path(PathError::new(bytes, reason))));
    let Some(mut names) = split(reference) else {
        return lost(reference, PathReason::Absolute);
    };

    let mut at = Resolved {
        path: base.clone(),
        folder: true,
        links: Vec::new(),
    };
    // The text being followed, for the error.
    let mut via = reference.to_vec();
    while let Some(name) = names.pop_front() {
        if name.is_empty() || name == b"." {
            continue;
        }
        if !at.folder {
            lookup.note(&at.path);
            return Ok(Err(Lost::NotAFolder(at.path)));
        }
        if name == b".." {
            if !at.go_up(lookup, base) {
                return lost(&via, PathReason::Escapes);
            }
            continue;
        }
        let next = match at.path.join_name(&name) {
            Ok(next) => next,
            Err(error) => {
                lookup.note(&at.path);
                return Ok(Err(Lost::Path(error)));
            }
        };
        match lookup.find(&next)? {
            None => {
                lookup.note(&next);
                return Ok(Err(Lost::Missing(next)));
            }
            Some(Found::Folder) => at.path = next,
            Some(Found::File) => (at.path, at.folder) = (next, false),
            Some(Found::Link(target)) => {
                lookup.note(&next);
                match at.enter(next, &target) {
                    Ok(ahead) => ahead.into_iter().rev().for_each(|name| names.push_front(name)),
                    Err(lost) => return Ok(Err(lost)),
                }
                via = target;
            }
        }
    }
    Ok(Ok(at))
}

impl Resolved {
    /// Moves to the parent folder, and notes the folder that it leaves unless the base or a link is in it. False: there
    /// is no parent.
    fn go_up(&mut self, lookup: &mut impl Lookup, base: &RelPath) -> bool {
        let is_around = base.is_within(&self.path) || self.links.iter().any(|link| link.is_within(&self.path));
        if !is_around {
            lookup.note(&self.path);
        }
        self.path.parent().map(|parent| self.path = parent).is_some()
    }

    /// Adds a link, and returns the names of its target.
    fn enter(&mut self, link: RelPath, target: &[u8]) -> Result<VecDeque<Vec<u8>>, Lost> {
        let lost = |reason| Lost::Path(PathError::new(target, reason));
        self.links.push(link);
        if self.links.len() > MAX_HOPS {
            return Err(Lost::Loop);
        }
        // A Git tree can contain one, but no kernel follows it and no archive accepts it.
        if target.is_empty() {
            return Err(lost(PathReason::EmptyName));
        }
        split(target).ok_or_else(|| lost(PathReason::Absolute))
    }
}

/// The names of a relative path. None: it is absolute.
fn split(path: &[u8]) -> Option<VecDeque<Vec<u8>>> {
    (!path.starts_with(b"/")).then(|| path.split(|b| *b == b'/').map(<[u8]>::to_vec).collect())
}
