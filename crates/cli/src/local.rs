//! Packs a folder on this machine as the archive that a source would have: the closure of its path, without a commit.
//!
//! In a Git checkout, references may lead anywhere within the checkout (`../../base`). Outside of one, they may not
//! leave the folder if the archive is sent to the hub; if it is only read here, they may lead anywhere. Files that Git
//! ignores are included, and `.git` is not.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use farwater_api::{Digest, plan::MAX_LOCAL_BYTES};
use farwater_bundle::{Archive, Entry, Limits, Mode, ObjectId, RelPath, Tree, TreeError, archive, closure};
use sha2::{Digest as _, Sha256};

use crate::failure::{Failure, Result};

/// The archive of a folder, to be sent.
pub struct Packed {
    /// Digest of the uncompressed archive.
    pub digest: Digest,
    /// Path of the folder in the archive.
    pub path: String,
    pub compressed: Vec<u8>,
}

/// The files of a folder, to be read here.
pub struct Local {
    pub archive: Archive,
    /// Path of the folder in the archive.
    pub path: RelPath,
}

/// `stated`: the service's own path, at which the folder is packed if it is in no checkout.
pub fn pack(folder: &Path, stated: &str) -> Result<Packed> {
    let (bytes, path) = gather(folder, stated, MAX_LOCAL_BYTES, Reach::Folder)?;
    let compressed = archive::compress(&bytes).map_err(|error| unusable(folder, &error))?;
    Ok(Packed {
        digest: Digest::of(&bytes),
        path: path.as_str().to_owned(),
        compressed,
    })
}

pub fn read(folder: &Path, stated: &str) -> Result<Local> {
    let limits = Limits::default();
    let (bytes, path) = gather(folder, stated, limits.total_bytes, Reach::Machine)?;
    let archive = Archive::read(bytes, &limits).map_err(|error| unusable(folder, &error))?;
    Ok(Local { archive, path })
}

fn unusable(folder: &Path, problem: &dyn std::error::Error) -> Failure {
    Failure::usage(format!("the files of {} can't be used", folder.display())).evidence(crate::failure::chain(problem))
}

/// Where references may lead from a folder that is in no checkout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Only within the folder: nothing around it is sent.
    Folder,
    /// Anywhere on this machine, as with `kustomize build`.
    Machine,
}

/// Returns the uncompressed archive, and the path of the folder in it.
fn gather(folder: &Path, stated: &str, most: u64, reach: Reach) -> Result<(Vec<u8>, RelPath)> {
    let real = folder
        .canonicalize()
        .map_err(|error| Failure::file("read", folder, &error))?;
    if !real.is_dir() {
        return Err(Failure::usage(format!("{} is no folder", folder.display())));
    }
    let limits = Limits {
        total_bytes: most,
        ..Limits::default()
    };
    let find = |(tree, root): (Folders, ObjectId), path: RelPath| {
        closure(&tree, &root, &path, &limits).map(|needed| (tree, needed, path))
    };
    let below = |root: &Path| {
        let path = real.strip_prefix(root).unwrap_or(&real).to_string_lossy();
        RelPath::parse_folder(&path).map_err(|error| unusable(folder, &error))
    };

    let found = match real.ancestors().find(|above| above.join(".git").exists()) {
        Some(root) => find(Folders::at(root, &RelPath::root()), below(root)?),
        None => {
            let path = RelPath::parse_folder(stated).map_err(|error| unusable(folder, &error))?;
            let mut found = find(Folders::at(&real, &path), path);
            // Goes up only as far as the references lead, so that no other folder is read.
            let mut around = real.ancestors().skip(1).take_while(|_| reach == Reach::Machine);
            while found.as_ref().is_err_and(|error| error.leads_out())
                && let Some(root) = around.next()
            {
                found = find(Folders::at(root, &RelPath::root()), below(root)?);
            }
            found
        }
    };

    let (tree, needed, path) = found.map_err(|error| unusable(folder, &*error))?;
    let bytes = archive::pack(&tree, &needed, &limits).map_err(|error| unusable(folder, &error))?;
    Ok((bytes, path))
}

/// A tree of folders and files. The ids are hashes of their paths, so that only what is needed is read.
struct Folders(RefCell<HashMap<ObjectId, Node>>);

#[derive(Clone)]
enum Node {
    Folder(PathBuf),
    File(PathBuf),
    Link(PathBuf),
    /// For example a socket. It is an error only if it is needed.
    Other(PathBuf),
    /// A folder that doesn't exist on disk, above the real one. It holds the names that lead down to the real one.
    Above(Vec<String>, PathBuf),
}

impl Folders {
    /// Puts a real folder at a path of the archive. Returns the tree and the id of its root.
    fn at(folder: &Path, path: &RelPath) -> (Self, ObjectId) {
        let names: Vec<String> = path
            .as_str()
            .split('/')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        let folders = Self(RefCell::default());
        let root = folders.add(above(names, folder));
        (folders, root)
    }

    fn add(&self, node: Node) -> ObjectId {
        let mut hash = Sha256::new();
        let (kind, path) = match &node {
            Node::Folder(path) => ("folder".to_owned(), path),
            Node::File(path) => ("file".to_owned(), path),
            Node::Link(path) => ("link".to_owned(), path),
            Node::Other(path) => ("other".to_owned(), path),
            Node::Above(names, path) => (format!("above {}", names.len()), path),
        };
        hash.update(kind);
        hash.update([0]);
        hash.update(path.as_os_str().as_bytes());
        let id = ObjectId::from_bytes(&hash.finalize()).expect("a sha256 has 32 bytes");
        self.0.borrow_mut().insert(id, node);
        id
    }

    fn get(&self, id: &ObjectId) -> Result<Node, TreeError> {
        self.0.borrow().get(id).cloned().ok_or(TreeError::Missing(*id))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if name == ".git" {
                continue;
            }
            let metadata = match entry.metadata() {
                // It was deleted after the folder was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            let (mode, node) = if metadata.is_dir() {
                (Mode::Tree, Node::Folder(path))
            } else if metadata.is_symlink() {
                (Mode::Symlink, Node::Link(path))
            } else if metadata.is_file() {
                let runs = metadata.permissions().mode() & 0o100 != 0;
                (if runs { Mode::Executable } else { Mode::File }, Node::File(path))
            } else {
                (Mode::File, Node::Other(path))
            };
            entries.push(Entry {
                name: name.as_bytes().to_vec(),
                mode,
                id: self.add(node),
            });
        }

        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}

fn above(names: Vec<String>, folder: &Path) -> Node {
    if names.is_empty() {
        Node::Folder(folder.to_owned())
    } else {
        Node::Above(names, folder.to_owned())
    }
}

impl Tree for Folders {
    fn entries(&self, id: &ObjectId) -> Result<Vec<Entry>, TreeError> {
        let unreadable = |error: io::Error| TreeError::Unreadable {
            id: *id,
            source: error.into(),
        };
        match self.get(id)? {
            Node::Folder(path) => self.list(&path).map_err(unreadable),
            Node::Above(mut names, folder) => {
                let name = names.remove(0).into_bytes();
                Ok(vec![Entry {
                    name,
                    mode: Mode::Tree,
                    id: self.add(above(names, &folder)),
                }])
            }
            Node::File(_) | Node::Link(_) | Node::Other(_) => Err(TreeError::Missing(*id)),
        }
    }

    fn blob(&self, id: &ObjectId, limit: u64) -> Result<Vec<u8>, TreeError> {
        let unreadable = |error: io::Error| TreeError::Unreadable {
            id: *id,
            source: error.into(),
        };
        match self.get(id)? {
            Node::Link(path) => Ok(fs::read_link(path)
                .map_err(unreadable)?
                .into_os_string()
                .as_bytes()
                .to_vec()),
            Node::File(path) => {
                let size = fs::metadata(&path).map_err(unreadable)?.len();
                if size > limit {
                    return Err(TreeError::TooLarge { id: *id, size, limit });
                }
                fs::read(path).map_err(unreadable)
            }
            Node::Other(path) => {
                let problem = format!("{} is neither a file nor a folder nor a link", path.display());
                Err(unreadable(io::Error::other(problem)))
            }
            Node::Folder(_) | Node::Above(..) => Err(TreeError::Missing(*id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn files(packed: &Packed) -> Vec<String> {
        let archive = Archive::open(&packed.compressed, &packed.digest, &Limits::default()).unwrap();
        archive.files().map(|(path, _)| path.to_string()).collect()
    }

    #[test]
    fn a_folder_of_a_checkout_keeps_its_place_and_what_it_refers_to() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                (".git/HEAD", "x"),
                ("apps/web/kustomization.yaml", "resources: [../../base, a.yaml]"),
                ("apps/web/a.yaml", "a: 1"),
                ("apps/other/b.yaml", "b: 1"),
                ("base/kustomization.yaml", "resources: [c.yaml]"),
                ("base/c.yaml", "c: 1"),
            ],
        );
        let packed = pack(&dir.path().join("apps/web"), "else/where").unwrap();
        assert_eq!(packed.path, "apps/web");
        let expected = [
            "apps/web/a.yaml",
            "apps/web/kustomization.yaml",
            "base/c.yaml",
            "base/kustomization.yaml",
        ];
        assert_eq!(files(&packed), expected);
        // The digest depends only on the files: not on where the folder is, nor on when it is packed.
        assert_eq!(pack(&dir.path().join("apps/web"), "").unwrap().digest, packed.digest);
    }

    #[test]
    fn any_other_folder_takes_the_services_path_and_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("mine/a.yaml", "a: 1"),
                ("mine/sub/b.yaml", "b: 1"),
                ("beside.yaml", "c: 1"),
            ],
        );
        let packed = pack(&dir.path().join("mine"), "apps/web").unwrap();
        assert_eq!(
            (packed.path.as_str(), files(&packed)),
            (
                "apps/web",
                vec!["apps/web/a.yaml".to_owned(), "apps/web/sub/b.yaml".to_owned()]
            )
        );
        let at_root = pack(&dir.path().join("mine"), ".").unwrap();
        assert_eq!(files(&at_root), ["a.yaml", "sub/b.yaml"]);
        std::os::unix::fs::symlink("../beside.yaml", dir.path().join("mine/out.yaml")).unwrap();
        let refused = pack(&dir.path().join("mine"), ".").err().unwrap();
        assert!(refused.evidence.unwrap().contains("out.yaml"));
        let missing = pack(&dir.path().join("none"), ".").err().unwrap();
        assert_eq!(missing.code, crate::exit::USAGE);
    }

    #[test]
    fn what_is_only_read_here_may_lead_out_of_a_folder_that_is_in_no_checkout() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("x/overlays/prod/kustomization.yaml", "resources: [../../base]"),
                ("x/base/kustomization.yaml", "resources: [c.yaml]"),
                ("x/base/c.yaml", "c: 1"),
                ("x/other.yaml", "a: 1"),
            ],
        );
        let socket = std::os::unix::net::UnixListener::bind(dir.path().join("x/socket")).unwrap();
        let folder = dir.path().join("x/overlays/prod");
        let read = super::read(&folder, "").unwrap();
        let names: Vec<_> = read.archive.files().map(|(path, _)| path.to_string()).collect();
        assert_eq!(
            names,
            [
                "base/c.yaml",
                "base/kustomization.yaml",
                "overlays/prod/kustomization.yaml"
            ]
        );
        assert_eq!(read.path.as_str(), "overlays/prod");
        let refused = pack(&folder, "").err().unwrap();
        assert!(refused.evidence.unwrap().contains("leads out of the repository"));
        let refused = super::read(&dir.path().join("x"), "").err().unwrap();
        assert!(
            refused
                .evidence
                .unwrap()
                .contains("socket is neither a file nor a folder")
        );
        drop(socket);
    }
}
