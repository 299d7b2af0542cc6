//! Foreign archives as trees: charts and artifacts of registries, read in memory without writing a file.
//!
//! A tar, plain or compressed with gzip or zstd: the first bytes decide, whatever its media type says. Content that two
//! readers could interpret differently is an error: a duplicate name, headers that disagree, or a path below another
//! file. So is a member that is neither a file, a folder nor a link.

mod pax;

use std::{
    collections::BTreeMap,
    io::{self, Cursor, Read},
};

use crate::{
    archive::{BLOCK, MAX_RATIO, MAX_WINDOW_LOG, archive_limit, exceeds_ratio},
    limits::Limits,
    path::{MAX_PATH_BYTES, PathError, PathReason, RelPath, escape},
    tree::{Entry, MemoryTree, Mode, ObjectId, Tree as _},
};
use pax::Pax;

/// Most bytes of a long name or target in GNU's format.
const MAX_LONG_NAME: u64 = 4 * MAX_PATH_BYTES as u64;

/// The layout of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Members keep their names.
    Plain,
    /// All members are in one folder, which is removed: a chart's archive.
    OneFolder,
}

/// An archive's files.
#[derive(Clone, Debug)]
pub struct Members {
    pub tree: MemoryTree,
    pub root: ObjectId,
}

/// Why an archive is not accepted. Paths are in printable form.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    #[error("the archive can't be decompressed")]
    Decompress { source: io::Error },
    #[error("the archive is over {limit} bytes when it is decompressed")]
    TooLarge { limit: u64 },
    #[error("{path} is over {limit} bytes")]
    FileTooLarge { path: String, limit: u64 },
    #[error("the archive expands more than {MAX_RATIO} to 1, which no manifests do")]
    Ratio,
    #[error("the archive has over {limit} members")]
    TooMany { limit: usize },
    #[error("the archive is damaged")]
    Tar { source: io::Error },
    #[error("the archive ends in the middle")]
    Cut,
    #[error("{0}")]
    Name(PathError),
    #[error("{path} has two headers that disagree on its {what}")]
    Disagree { path: String, what: &'static str },
    #[error("{path} is in the archive twice")]
    Twice { path: String },
    #[error("{path} lies below something that is no folder")]
    Below { path: String },
    #[error("{path} is a {what}, which is not taken")]
    Kind { path: String, what: &'static str },
    #[error("{path} is a link to {target}, which is not in the archive before it")]
    HardLink { path: String, target: String },
    #[error("{path} is a symlink without a target, or with one that is not UTF-8 or too long")]
    Target { path: String },
    #[error("a malformed extended header")]
    Extended,
    #[error("a chart's archive holds one folder, and this one holds {first} and {second}")]
    TwoFolders { first: String, second: String },
    #[error("the archive holds no file")]
    Empty,
}

/// Reads an archive.
pub fn read(bytes: &[u8], shape: Shape, limits: &Limits) -> Result<Members, MembersError> {
    let plain = decompress(bytes, limits)?;
    let mut reader = Reader {
        limits,
        files: BTreeMap::new(),
        folders: 0,
        left: limits.total_bytes,
        tree: MemoryTree::default(),
    };
    reader.read(&plain)?;
    let Reader {
        mut files, mut tree, ..
    } = reader;
    if files.is_empty() {
        return Err(MembersError::Empty);
    }
    check_shape(&files)?;
    if shape == Shape::OneFolder {
        files = strip(files)?;
    }
    let listed: Vec<_> = files
        .iter()
        .map(|(path, (mode, id))| (path.as_str(), *mode, *id))
        .collect();
    let root = build(&mut tree, &listed);
    Ok(Members { tree, root })
}

/// An artifact that is a single file and no archive.
pub fn single(name: &str, bytes: &[u8], limits: &Limits) -> Result<Members, MembersError> {
    let path = RelPath::root().join_name(name.as_bytes()).map_err(MembersError::Name)?;
    if bytes.len() as u64 > limits.file_bytes {
        return Err(MembersError::FileTooLarge {
            path: path.to_string(),
            limit: limits.file_bytes,
        });
    }
    let mut tree = MemoryTree::default();
    let id = tree.add_blob(bytes);
    let root = build(&mut tree, &[(path.as_str(), Mode::File, id)]);
    Ok(Members { tree, root })
}

/// Decompresses within the limits and to the end, where gzip's checksum is.
fn decompress(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, MembersError> {
    let fail = |source| MembersError::Decompress { source };
    let mut decoder: Box<dyn Read + '_> = match bytes {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(bytes)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes).map_err(fail)?;
            decoder.window_log_max(MAX_WINDOW_LOG).map_err(fail)?;
            Box::new(decoder)
        }
        plain => Box::new(plain),
    };

    // Folders have headers too.
    let limit = archive_limit(limits) + 4 * limits.files as u64 * BLOCK as u64;
    let mut out = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let n = decoder.read(&mut chunk).map_err(fail)?;
        if n == 0 {
            return Ok(out);
        }
        if (out.len() + n) as u64 > limit {
            return Err(MembersError::TooLarge { limit });
        }
        out.extend_from_slice(&chunk[..n]);
        if exceeds_ratio(out.len() as u64, bytes.len() as u64) {
            return Err(MembersError::Ratio);
        }
    }
}

struct Reader<'l> {
    limits: &'l Limits,
    files: BTreeMap<RelPath, (Mode, ObjectId)>,
    folders: usize,
    /// Bytes left for files.
    left: u64,
    tree: MemoryTree,
}

/// Extended headers for the next member.
#[derive(Default)]
struct Extended {
    pax: Pax,
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

impl Reader<'_> {
    fn read(&mut self, plain: &[u8]) -> Result<(), MembersError> {
        let damaged = |source| MembersError::Tar { source };
        let mut archive = tar::Archive::new(Cursor::new(plain));
        let mut extended = Extended::default();
        for entry in archive.entries().map_err(damaged)?.raw(true) {
            let mut entry = entry.map_err(damaged)?;
            let kind = entry.header().entry_type();
            if kind.is_pax_local_extensions() || kind.is_pax_global_extensions() {
                let pax = Pax::parse(&content(&mut entry, pax::MAX_BYTES)?).ok_or(MembersError::Extended)?;
                if kind.is_pax_local_extensions() {
                    extended.pax = pax;
                } else if !pax.is_empty() {
                    // A global header for all following members; no tool writes names and sizes so.
                    return Err(MembersError::Extended);
                }
            } else if kind.is_gnu_longname() {
                extended.name = Some(long_name(&mut entry)?);
            } else if kind.is_gnu_longlink() {
                extended.target = Some(long_name(&mut entry)?);
            } else {
                self.add(&mut entry, std::mem::take(&mut extended))?;
            }
        }

        // Without its last block, an archive that was cut between two members would look whole.
        let end = usize::try_from(archive.into_inner().position())
            .unwrap_or(plain.len())
            .min(plain.len());
        let last = end.checked_sub(BLOCK).and_then(|start| plain.get(start..end));
        if last.is_none_or(|block| block.iter().any(|byte| *byte != 0)) {
            return Err(MembersError::Cut);
        }
        Ok(())
    }

    fn add(&mut self, entry: &mut tar::Entry<'_, impl Read>, extended: Extended) -> Result<(), MembersError> {
        let header = entry.header();
        let name = chosen(
            extended.pax.path.as_deref(),
            extended.name.as_deref(),
            &header.path_bytes(),
            "name",
        )?;
        let shown = escape(&name);
        let kind = header.entry_type();
        // Old archives have no type for folders.
        let is_folder = kind.is_dir() || (kind.is_file() && name.ends_with(b"/"));
        let Some(path) = clean(&name)? else { return Ok(()) };
        if self.files.len() + self.folders >= 4 * self.limits.files {
            return Err(MembersError::TooMany {
                limit: 4 * self.limits.files,
            });
        }
        if is_folder {
            self.folders += 1;
            return Ok(());
        }

        let size = entry.size();
        if extended.pax.size.is_some_and(|told| told != size) {
            return Err(MembersError::Disagree {
                path: shown,
                what: "size",
            });
        }
        let member = self.member(entry, &extended, &shown)?;
        if self.files.len() >= self.limits.files {
            return Err(MembersError::TooMany {
                limit: self.limits.files,
            });
        }
        match self.files.insert(path, member) {
            None => Ok(()),
            Some(_) => Err(MembersError::Twice { path: shown }),
        }
    }

    /// Mode and content of a file or link. A hard link is another name of an earlier file.
    fn member(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        extended: &Extended,
        shown: &str,
    ) -> Result<(Mode, ObjectId), MembersError> {
        let (header, size) = (entry.header(), entry.size());
        let kind = header.entry_type();
        let refused = |what| {
            Err(MembersError::Kind {
                path: shown.to_owned(),
                what,
            })
        };
        if kind.is_file() || kind.is_contiguous() {
            let executable = header.mode().is_ok_and(|mode| mode & 0o100 != 0);
            let bytes = self.file(entry, shown, size)?;
            let mode = if executable { Mode::Executable } else { Mode::File };
            Ok((mode, self.tree.add_blob(&bytes)))
        } else if kind.is_symlink() {
            let target = target_of(header, extended, shown)?;
            let usable = !target.is_empty() && target.len() <= MAX_PATH_BYTES && std::str::from_utf8(&target).is_ok();
            if !usable {
                return Err(MembersError::Target { path: shown.to_owned() });
            }
            Ok((Mode::Symlink, self.tree.add_blob(&target)))
        } else if kind.is_hard_link() {
            let target = target_of(header, extended, shown)?;
            let missing = || MembersError::HardLink {
                path: shown.to_owned(),
                target: escape(&target),
            };
            let found = clean(&target)?.and_then(|path| self.files.get(&path)).copied();
            found.filter(|(mode, _)| *mode != Mode::Symlink).ok_or_else(missing)
        } else if kind.is_gnu_sparse() {
            refused("sparse file")
        } else if kind.is_character_special() || kind.is_block_special() {
            refused("device")
        } else if kind.is_fifo() {
            refused("pipe")
        } else {
            refused("member of an unknown kind")
        }
    }

    fn file(&mut self, entry: &mut impl Read, shown: &str, size: u64) -> Result<Vec<u8>, MembersError> {
        if size > self.limits.file_bytes {
            return Err(MembersError::FileTooLarge {
                path: shown.to_owned(),
                limit: self.limits.file_bytes,
            });
        }
        self.left = self.left.checked_sub(size).ok_or(MembersError::TooLarge {
            limit: self.limits.total_bytes,
        })?;
        let mut bytes = Vec::new();
        entry
            .read_to_end(&mut bytes)
            .map_err(|source| MembersError::Tar { source })?;
        if bytes.len() as u64 == size {
            Ok(bytes)
        } else {
            Err(MembersError::Cut)
        }
    }
}

/// The data of an extended header.
fn content(entry: &mut tar::Entry<'_, impl Read>, limit: u64) -> Result<Vec<u8>, MembersError> {
    if entry.size() > limit {
        return Err(MembersError::Extended);
    }
    let (size, mut bytes) = (entry.size(), Vec::new());
    entry
        .read_to_end(&mut bytes)
        .map_err(|source| MembersError::Tar { source })?;
    if bytes.len() as u64 == size {
        Ok(bytes)
    } else {
        Err(MembersError::Cut)
    }
}

fn long_name(entry: &mut tar::Entry<'_, impl Read>) -> Result<Vec<u8>, MembersError> {
    let mut bytes = content(entry, MAX_LONG_NAME)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

/// The name to use: POSIX's format takes precedence over GNU's, and both over the short field. The two must not
/// disagree.
fn chosen(pax: Option<&[u8]>, gnu: Option<&[u8]>, short: &[u8], what: &'static str) -> Result<Vec<u8>, MembersError> {
    match (pax, gnu) {
        (Some(pax), Some(gnu)) if pax != gnu => Err(MembersError::Disagree {
            path: escape(pax),
            what,
        }),
        (Some(long), _) | (None, Some(long)) => Ok(long.to_vec()),
        (None, None) => Ok(short.to_vec()),
    }
}

/// The target of a link.
fn target_of(header: &tar::Header, extended: &Extended, shown: &str) -> Result<Vec<u8>, MembersError> {
    let short = header.link_name_bytes().unwrap_or_default();
    let (pax, gnu) = (extended.pax.target.as_deref(), extended.target.as_deref());
    chosen(pax, gnu, &short, "target").map_err(|_| MembersError::Disagree {
        path: shown.to_owned(),
        what: "target",
    })
}

/// Normalizes `./a/b` and `a/b/`, as common tools write them. None: the root itself.
fn clean(name: &[u8]) -> Result<Option<RelPath>, MembersError> {
    let mut rest = name;
    while let Some(shorter) = rest.strip_prefix(b"./") {
        rest = shorter;
    }
    if rest == b"." {
        rest = b"";
    }
    let rest = rest.strip_suffix(b"/").filter(|rest| !rest.is_empty()).unwrap_or(rest);
    let text = std::str::from_utf8(rest).map_err(|_| MembersError::Name(PathError::new(name, PathReason::NotUtf8)))?;
    let path = RelPath::parse(text).map_err(MembersError::Name)?;
    Ok(Some(path).filter(|path| !path.is_root()))
}

/// Checks that no path is below a file or a link.
fn check_shape(files: &BTreeMap<RelPath, (Mode, ObjectId)>) -> Result<(), MembersError> {
    for path in files.keys() {
        let mut above = path.parent();
        while let Some(folder) = above.filter(|folder| !folder.is_root()) {
            if files.contains_key(&folder) {
                return Err(MembersError::Below { path: path.to_string() });
            }
            above = folder.parent();
        }
    }
    Ok(())
}

fn strip(files: BTreeMap<RelPath, (Mode, ObjectId)>) -> Result<BTreeMap<RelPath, (Mode, ObjectId)>, MembersError> {
    let mut folder: Option<RelPath> = None;
    let mut stripped = BTreeMap::new();
    for (path, member) in files {
        let first = path.names().next().unwrap_or_default();
        let first = RelPath::parse(first).map_err(MembersError::Name)?;
        let known = folder.get_or_insert_with(|| first.clone());
        if *known != first || path == first {
            return Err(MembersError::TwoFolders {
                first: known.to_string(),
                second: path.to_string(),
            });
        }
        let rest = RelPath::parse(path.strip(known).unwrap_or_default()).map_err(MembersError::Name)?;
        stripped.insert(rest, member);
    }
    Ok(stripped)
}

/// Builds trees from files sorted by path: paths with the same first name are adjacent.
fn build(tree: &mut MemoryTree, files: &[(&str, Mode, ObjectId)]) -> ObjectId {
    let mut entries = Vec::new();
    let mut rest = files;
    while let Some((path, mode, id)) = rest.first() {
        let Some((folder, _)) = path.split_once('/') else {
            entries.push(Entry {
                name: path.as_bytes().to_vec(),
                mode: *mode,
                id: *id,
            });
            rest = &rest[1..];
            continue;
        };
        let inside: Vec<_> = rest
            .iter()
            .map_while(|(path, mode, id)| Some((path.strip_prefix(folder)?.strip_prefix('/')?, *mode, *id)))
            .collect();
        rest = &rest[inside.len()..];
        let id = build(tree, &inside);
        entries.push(Entry {
            name: folder.as_bytes().to_vec(),
            mode: Mode::Tree,
            id,
        });
    }
    tree.add_tree(entries)
}

impl Members {
    /// The file at a path without links, of at most `limit` bytes. None: there is none.
    pub fn file(&self, path: &str, limit: u64) -> Option<Vec<u8>> {
        let mut id = self.root;
        let mut names = path.split('/').peekable();
        while let Some(name) = names.next() {
            let entries = self.tree.entries(&id).ok()?;
            let entry = entries.into_iter().find(|entry| entry.name == name.as_bytes())?;
            id = match (entry.mode, names.peek()) {
                (Mode::Tree, Some(_)) => entry.id,
                (Mode::File | Mode::Executable, None) => return self.tree.blob(&entry.id, limit).ok(),
                _ => return None,
            };
        }
        None
    }
}

#[cfg(test)]
mod tests;
