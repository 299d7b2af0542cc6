//! Submodules: which ones a commit has, where they are fetched to, and their objects under their parent's paths.
//!
//! Git's own support for them is not used: `.gitmodules` is read as a file of the commit, only its paths and URLs are
//! used, and each submodule is a mirror of its own below the source's.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use farwater_bundle::{ObjectId, RelPath, TreeError, path::escape};
use sha2::{Digest as _, Sha256};

use crate::{
    address::{Address, AddressError},
    mirror::{Mirror, MirrorError},
};

/// Most submodules of one commit, including nested ones. Only a few repositories in the world have hundreds, and none
/// of them is a source of manifests.
pub const MAX_MODULES: usize = 100;
/// Most nested submodules.
pub const MAX_DEPTH: usize = 5;
/// Most bytes of a `.gitmodules`.
const MAX_FILE: u64 = 256 << 10;
const FILE: &[u8] = b".gitmodules";
/// Folder below a source's mirror. Git uses no such folder.
const FOLDER: &str = "farwater-modules";

/// A submodule of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submodule {
    pub path: RelPath,
    pub address: Address,
    pub commit: ObjectId,
}

#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    #[error("read the submodules of commit {commit}")]
    Mirror { commit: ObjectId, source: Box<MirrorError> },
    #[error("read .gitmodules of commit {commit}")]
    File { commit: ObjectId, source: TreeError },
    #[error(".gitmodules of commit {commit} is no file that Git could read: {why}")]
    Syntax { commit: ObjectId, why: String },
    #[error("submodule {path:?}: {source}")]
    Address { path: String, source: AddressError },
    #[error("commit {commit} has over {MAX_MODULES} submodules")]
    TooMany { commit: ObjectId },
}

impl ModulesError {
    /// Whether the mirror lacks objects.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Mirror { source, .. } => source.is_damage(),
            Self::File { source, .. } => matches!(source, TreeError::Missing(_) | TreeError::Unreadable { .. }),
            _ => false,
        }
    }
}

/// The folder of a submodule's mirror, by its URL, so that equal ones share it.
pub(crate) fn mirror_of(source: &Path, address: &Address) -> PathBuf {
    source.join(FOLDER).join(hex::encode(Sha256::digest(address.as_str())))
}

/// Removes the mirrors of all other submodules.
pub(crate) fn retain(source: &Path, used: &[Address]) -> io::Result<()> {
    let used: Vec<_> = used.iter().map(|address| mirror_of(source, address)).collect();
    let folder = source.join(FOLDER);
    if !folder.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !used.contains(&path) {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// The submodules that a commit names in `.gitmodules` and has in its tree. `base`: the repository's own address.
pub(crate) fn read(mirror: &Mirror, base: &Address, commit: &ObjectId) -> Result<Vec<Submodule>, ModulesError> {
    let commit = *commit;
    let objects = mirror.objects();
    let unreadable = |error: MirrorError| ModulesError::Mirror {
        commit,
        source: error.into(),
    };
    let root = mirror.root_tree(&commit).map_err(unreadable)?;
    let fail = |source| ModulesError::File { commit, source };
    let Some(file) = objects.file(&root, FILE, MAX_FILE).map_err(fail)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for (path, url) in parse(&file).map_err(|why| ModulesError::Syntax { commit, why })? {
        // A closure can't reach an invalid path either.
        let Ok(folder) = RelPath::parse_folder(&path) else {
            continue;
        };
        let Some(at) = objects.commit_at(&root, &folder).map_err(fail)? else {
            continue;
        };
        let address = base.join(&url).map_err(|source| ModulesError::Address {
            path: escape(path.as_bytes()),
            source,
        })?;
        found.push(Submodule {
            path: folder,
            address,
            commit: at,
        });
        if found.len() > MAX_MODULES {
            return Err(ModulesError::TooMany { commit });
        }
    }
    Ok(found)
}

/// Paths and URLs in the order of the file; includes are not followed.
fn parse(file: &[u8]) -> Result<Vec<(String, String)>, String> {
    let file =
        gix::config::File::from_bytes_no_includes(file, gix::config::file::Metadata::default(), Default::default())
            .map_err(|error| escape(error.to_string().as_bytes()))?;
    let sections = file.sections_by_name("submodule").into_iter().flatten();
    let text = |value: Option<gix::bstr::BString>| value.and_then(|value| String::from_utf8(value.into()).ok());
    Ok(sections
        .filter_map(|section| Some((text(section.value("path"))?, text(section.value("url"))?)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_and_url_are_read_and_nothing_else() {
        let file = b"[submodule \"a\"]\n\tpath = libs/a\n\turl = ../a.git ; comment\n\tupdate = !touch /tmp/x\n\
            [submodule \"b\"]\n\tpath = \"libs/b c\"\n[submodule \"d\"]\n\turl = https://h/d\n[include]\n\tpath = /etc/passwd\n\
            [submodule \"e\"]\n\turl = https://h/e\n\tpath = e\n";
        let expected = [("libs/a", "../a.git"), ("e", "https://h/e")].map(|(p, u)| (p.to_owned(), u.to_owned()));
        assert_eq!(parse(file).unwrap(), expected);
        assert!(parse(b"[submodule \"a\npath").is_err());
        assert_eq!(parse(b"").unwrap(), []);
    }
}
