//! The files of an image.

use std::{collections::BTreeMap, io, path::PathBuf};

/// What lies at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// `owner`: user and group.
    Folder { mode: u32, owner: u64 },
    /// Of root.
    File { mode: u32, content: Vec<u8> },
    /// Symbolic.
    Link { target: PathBuf },
}

impl Node {
    pub fn program(content: Vec<u8>) -> Self {
        Self::File { mode: 0o755, content }
    }

    pub fn text(content: impl Into<Vec<u8>>) -> Self {
        Self::File {
            mode: 0o644,
            content: content.into(),
        }
    }
}

/// A root file system, by path without the leading slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root(BTreeMap<PathBuf, Node>);

impl Root {
    /// Puts something at a path, and folders above it where there are none.
    pub fn add(&mut self, path: impl Into<PathBuf>, node: Node) {
        let path = path.into();
        for folder in path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
            self.0
                .entry(folder.to_owned())
                .or_insert(Node::Folder { mode: 0o755, owner: 0 });
        }
        self.0.insert(path, node);
    }

    pub fn contains(&self, path: impl Into<PathBuf>) -> bool {
        self.0.contains_key(&path.into())
    }

    /// As a tar file of the form that POSIX calls ustar, with GNU's way for paths that are longer.
    pub fn tar(&self) -> io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, node) in &self.0 {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(0);
            header.set_size(0);
            header.set_uid(0);
            header.set_gid(0);
            match node {
                Node::Folder { mode, owner } => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_uid(*owner);
                    header.set_gid(*owner);
                    archive.append_data(&mut header, path, io::empty())?;
                }
                Node::File { mode, content } => {
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    archive.append_data(&mut header, path, &**content)?;
                }
                Node::Link { target } => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    archive.append_link(&mut header, path, target)?;
                }
            }
        }
        archive.into_inner()
    }
}
