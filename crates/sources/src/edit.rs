//! Edits one field of one file, as a commit on top of another. It is made from objects in the mirror; nothing is
//! checked out.

use std::error::Error;

use farwater_bundle::{
    Mode, ObjectId, RelPath, TreeError,
    yaml::edit::{FieldError, FieldPath, FieldValue, read_field, replace_field},
};
use gix::objs::Kind;

use crate::{
    git::spawn,
    mirror::{MAX_TREE_BYTES, Mirror, MirrorError, MirrorObjects, parse_entry},
};

/// Most bytes of an edited file. A manifest in which people state one field is far smaller.
const MAX_EDITED: u64 = 1 << 20;
/// Author of such commits. With the promotion's time and the parent commit, the same edit gives the same commit.
const AUTHOR: &str = "Farwater <noreply@farwater.dev>";

/// One field of one file, and its new value.
#[derive(Clone, Debug)]
pub struct Edit {
    pub path: RelPath,
    pub field: FieldPath,
    pub value: FieldValue,
    pub message: String,
    /// Time of the commit, in seconds since 1970.
    pub time: i64,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    #[error("{path} {why}")]
    File { path: RelPath, why: &'static str },
    #[error("field {field} of {path}")]
    Field {
        path: RelPath,
        field: String,
        source: FieldError,
    },
    #[error("write to mirror")]
    Write(#[source] Box<dyn Error + Send + Sync>),
}

impl FileError {
    /// Whether the mirror is at fault, and not the file.
    pub fn is_of_mirror(&self) -> bool {
        matches!(self, Self::Mirror(_) | Self::Write(_))
    }
}

impl Mirror {
    /// The value of a file's field at a commit.
    pub async fn field_at(&self, commit: ObjectId, path: RelPath, field: FieldPath) -> Result<FieldValue, FileError> {
        let mirror = self.clone();
        spawn(move || {
            let file = File::find(&mirror, commit, &path)?;
            read_field(&file.text, &field).map_err(|source| refuse_field(path, &field, source))
        })
        .await
    }

    /// Creates the commit. None: the field already has that value.
    pub async fn commit_edit(&self, base: ObjectId, edit: Edit) -> Result<Option<ObjectId>, FileError> {
        let mirror = self.clone();
        spawn(move || {
            let Edit {
                path,
                field,
                value,
                message,
                time,
            } = edit;
            let file = File::find(&mirror, base, &path)?;
            let edited = replace_field(&file.text, &field, &value);
            let Some(text) = edited.map_err(|source| refuse_field(path, &field, source))? else {
                return Ok(None);
            };
            let write = |kind, data: &[u8]| file.objects.write(kind, data).map_err(FileError::Write);
            let mut id = write(Kind::Blob, text.as_bytes())?;
            for (mut tree, end) in file.trees.into_iter().rev() {
                // The new id has the length of the old one and the name is unchanged, so the order stays.
                tree[end - id.as_bytes().len()..end].copy_from_slice(id.as_bytes());
                id = write(Kind::Tree, &tree)?;
            }
            let by = format!("{AUTHOR} {} +0000", time.max(0));
            let commit = format!("tree {id}\nparent {base}\nauthor {by}\ncommitter {by}\n\n{message}\n");
            write(Kind::Commit, commit.as_bytes()).map(Some)
        })
        .await
    }
}

fn refuse_field(path: RelPath, field: &FieldPath, source: FieldError) -> FileError {
    FileError::Field {
        path,
        field: field.to_string(),
        source,
    }
}

struct File {
    objects: MirrorObjects,
    /// The trees that lead to the file, from the root, each with the end of the next id in it.
    trees: Vec<(Vec<u8>, usize)>,
    text: String,
}

impl File {
    fn find(mirror: &Mirror, commit: ObjectId, path: &RelPath) -> Result<Self, FileError> {
        let refuse = |why| FileError::File {
            path: path.clone(),
            why,
        };
        let unreadable = |source: TreeError| MirrorError::Commit { id: commit, source };
        let (objects, mut id) = (mirror.objects(), mirror.root_tree(&commit)?);
        let (mut trees, mut names) = (Vec::new(), path.names().peekable());
        while let Some(name) = names.next() {
            let (kind, tree) = objects.read(&id, MAX_TREE_BYTES).map_err(unreadable)?;
            if kind != Kind::Tree {
                return Err(refuse("does not exist"));
            }
            let (mode, next, end) = find_entry(&tree, name, &id).ok_or_else(|| refuse("does not exist"))?;
            match (mode, names.peek().is_some()) {
                (Mode::Tree, true) | (Mode::File | Mode::Executable, false) => {}
                (Mode::Tree, false) => return Err(refuse("is a folder")),
                (Mode::Symlink, _) => return Err(refuse("is a link, or behind one; name the file that it leads to")),
                (Mode::Commit, _) => return Err(refuse("is in a submodule; name the repository that this is of")),
                (Mode::File | Mode::Executable, true) => return Err(refuse("does not exist")),
            }
            trees.push((tree, end));
            id = next;
        }

        if trees.is_empty() {
            return Err(refuse("is no file"));
        }
        let text = match objects.read(&id, MAX_EDITED) {
            Ok((Kind::Blob, data)) => String::from_utf8(data).map_err(|_| refuse("is not UTF-8 text"))?,
            Ok(_) => return Err(refuse("is no file")),
            Err(TreeError::TooLarge { .. }) => return Err(refuse("has over 1 MiB; name a smaller file")),
            Err(error) => return Err(unreadable(error).into()),
        };
        Ok(Self { objects, trees, text })
    }
}

/// The entry with a name: its mode, its id, and where that ends.
fn find_entry(tree: &[u8], name: &str, of: &ObjectId) -> Option<(Mode, ObjectId, usize)> {
    let mut at = 0;
    while at < tree.len() {
        let (entry, end) = parse_entry(tree, at, of.as_bytes().len())?;
        if entry.name == name.as_bytes() {
            return Some((entry.mode, entry.id, end));
        }
        at = end;
    }
    None
}
