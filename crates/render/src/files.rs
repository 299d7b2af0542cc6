//! An archive as plain files with symlinks resolved, for programs that support no links.

use std::collections::BTreeMap;

use farwater_bundle::{Archive, Limits, RelPath};

/// A bundle's files by path.
pub(crate) type Files<'a> = BTreeMap<RelPath, File<'a>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File<'a> {
    pub bytes: &'a [u8],
    pub executable: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("symlink {link} leads to {to}, which holds it")]
    Circle { link: RelPath, to: RelPath },
    #[error("symlink {link}: {problem}")]
    Link { link: RelPath, problem: String },
    #[error("with symlinks resolved there are over {0} files")]
    TooMany(usize),
    #[error("with symlinks resolved the files have over {0} bytes")]
    TooLarge(u64),
}

/// All files, with symlinks replaced by their targets. Links multiply, so the result has the limits of an archive.
pub(crate) fn resolve<'a>(archive: &'a Archive, limits: &Limits) -> Result<Files<'a>, FilesError> {
    let mut found = Resolved {
        archive,
        limits,
        files: BTreeMap::new(),
        bytes: 0,
    };
    for (path, bytes) in archive.files() {
        found.add(
            path.clone(),
            File {
                bytes,
                executable: archive.is_executable(path),
            },
        )?;
    }
    for (link, _) in archive.links() {
        found.follow(link, link)?;
    }
    Ok(found.files)
}

struct Resolved<'a, 'l> {
    archive: &'a Archive,
    limits: &'l Limits,
    files: Files<'a>,
    bytes: u64,
}

impl<'a> Resolved<'a, '_> {
    /// `at`: where the link's target is put.
    fn follow(&mut self, link: &RelPath, at: &RelPath) -> Result<(), FilesError> {
        if let Ok(bytes) = self.archive.file(link) {
            return self.add(
                at.clone(),
                File {
                    bytes,
                    executable: false,
                },
            );
        }
        let fail = |problem: String| FilesError::Link {
            link: at.clone(),
            problem,
        };
        let folder = self.archive.folder(link).map_err(|lost| fail(lost.to_string()))?;
        if at.is_within(&folder) {
            return Err(FilesError::Circle {
                link: at.clone(),
                to: folder,
            });
        }
        for path in self.archive.walk(&folder) {
            let below = path.strip(&folder).unwrap_or_default();
            let place = RelPath::parse(&format!("{}/{below}", at.as_str())).map_err(|error| fail(error.to_string()))?;
            match self.archive.links().find(|(inner, _)| *inner == path) {
                Some((inner, _)) => self.follow(&inner.clone(), &place)?,
                None => {
                    let bytes = self.archive.file(path).map_err(|lost| fail(lost.to_string()))?;
                    self.add(
                        place,
                        File {
                            bytes,
                            executable: self.archive.is_executable(path),
                        },
                    )?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: RelPath, file: File<'a>) -> Result<(), FilesError> {
        self.bytes += file.bytes.len() as u64;
        if self.bytes > self.limits.total_bytes {
            return Err(FilesError::TooLarge(self.limits.total_bytes));
        }
        self.files.insert(path, file);
        if self.files.len() > self.limits.files {
            return Err(FilesError::TooMany(self.limits.files));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use farwater_bundle::{MemoryTree, archive, closure};

    use super::*;

    fn check(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let mut tree = MemoryTree::default();
        let root = tree.add_files(files.iter().copied());
        let limits = Limits {
            files: 200,
            ..Limits::default()
        };
        let closure = closure(&tree, &root, &RelPath::root(), &limits).unwrap();
        let archive = Archive::read(archive::pack(&tree, &closure, &limits).unwrap(), &limits).unwrap();
        let shown = |(path, file): (&RelPath, &File<'_>)| format!("{path}={}", String::from_utf8_lossy(file.bytes));
        resolve(&archive, &limits)
            .map(|files| files.iter().map(shown).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn links_become_what_they_lead_to() {
        let files = [
            ("a/x", "X"),
            ("b/y", "-> ../a/x"),
            ("b/d", "-> ../a"),
            ("c", "-> b"),
            ("a/z", "-> x"),
        ];
        let expected = [
            "a/x=X", "a/z=X", "b/d/x=X", "b/d/z=X", "b/y=X", "c/d/x=X", "c/d/z=X", "c/y=X",
        ]
        .map(str::to_owned);
        assert_eq!(check(&files).unwrap(), expected);
    }

    #[test]
    fn circles_and_links_that_multiply_end() {
        assert!(
            check(&[("a/x", "X"), ("a/me", "-> .")])
                .unwrap_err()
                .contains("which holds it")
        );
        assert!(
            check(&[("a/x", "X"), ("a/b/up", "-> ../../a")])
                .unwrap_err()
                .contains("which holds it")
        );
        let names: Vec<String> = (0..20).map(|n| format!("d{n}")).collect();
        let mut files = vec![("d0/f".to_owned(), "X".to_owned())];
        for pair in names.windows(2) {
            for twin in ["l", "r"] {
                files.push((format!("{}/{twin}", pair[1]), format!("-> ../{}", pair[0])));
            }
        }
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        assert_eq!(
            check(&files).unwrap_err(),
            "with symlinks resolved there are over 200 files"
        );
    }
}
