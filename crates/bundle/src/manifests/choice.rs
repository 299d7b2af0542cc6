//! Selects the manifests of a folder: by their names, the renderer's options and `.sourceignore` files.

use std::collections::HashMap;

use farwater_api::{
    path_pattern::{PathPattern, alternatives},
    renderer::RawOptions,
};

use super::{FolderReason, KUSTOMIZATIONS};
use crate::{archive::Archive, closure::Lost, path::RelPath};

/// Flux's file with rules like `.gitignore`: ignored files are no manifests. Its patterns are relative to its own
/// folder.
pub const IGNORE_FILE: &str = ".sourceignore";
/// Most bytes of such a file; the error names the limit.
const MAX_IGNORE_BYTES: usize = 64 << 10;
/// Most work for comparing: bytes of all patterns × bytes of all paths × names of the longest path, because each folder
/// of a path is compared too. About one second of a processor at worst; 20,000 paths of 50 bytes and 5 names leave room
/// for 400 bytes of patterns.
const MAX_WORK: usize = 1 << 31;
/// Most names that an error shows.
const SHOWN: usize = 5;

/// The selection for one folder.
pub(super) struct Choice<'a> {
    folder: &'a RelPath,
    recurse: bool,
    include: Vec<PathPattern>,
    exclude: Vec<PathPattern>,
    ignore: Vec<IgnoreFile>,
    /// Whether an [`IgnoreFile`] excludes a folder, by path.
    known: HashMap<RelPath, bool>,
}

struct IgnoreFile {
    folder: RelPath,
    rules: Vec<Rule>,
}

struct Rule {
    pattern: PathPattern,
    /// Whether the line begins with `!`.
    is_kept: bool,
}

/// Whether a file has the name of a manifest.
pub(super) fn is_manifest(path: &RelPath) -> bool {
    let name = path.file_name();
    !is_kustomization(path) && [".yaml", ".yml", ".json"].iter().any(|suffix| name.ends_with(suffix))
}

fn is_kustomization(path: &RelPath) -> bool {
    KUSTOMIZATIONS.contains(&path.file_name())
}

impl<'a> Choice<'a> {
    /// `folder` must be a real folder; `paths` are its contents.
    pub fn new(
        archive: &Archive,
        folder: &'a RelPath,
        paths: &[&RelPath],
        options: &RawOptions,
    ) -> Result<Self, FolderReason> {
        // Bytes of all patterns, each that braces stand for.
        let mut patterns = 0;
        let mut parse = |texts: &[String]| -> Result<Vec<PathPattern>, FolderReason> {
            let mut parsed = Vec::new();
            for text in texts {
                let problem = |problem| FolderReason::Pattern {
                    pattern: text.clone(),
                    problem,
                };
                for one in alternatives(text).map_err(problem)? {
                    patterns += one.len();
                    parsed.push(PathPattern::parse(&one).map_err(problem)?);
                }
            }
            Ok(parsed)
        };
        let (include, exclude) = (parse(&options.include)?, parse(&options.exclude)?);
        let texts = read_ignore_files(archive, folder, paths)?;
        patterns += texts.iter().map(|(_, text)| text.len()).sum::<usize>();
        let cost = |path: &&&RelPath| path.as_str().len().saturating_mul(path.names().count());
        let compared = paths
            .iter()
            .filter(|path| is_manifest(path) || is_kustomization(path))
            .map(|path| cost(&path))
            .fold(0, usize::saturating_add);
        if patterns.saturating_mul(compared) > MAX_WORK {
            return Err(FolderReason::TooManyPatterns);
        }
        let ignore = texts
            .into_iter()
            .map(|(folder, text)| IgnoreFile {
                folder,
                rules: rules(text),
            })
            .collect();
        Ok(Self {
            folder,
            recurse: options.recurse,
            include,
            exclude,
            ignore,
            known: HashMap::new(),
        })
    }

    /// Whether a manifest in the folder is selected.
    pub fn takes(&mut self, path: &RelPath) -> bool {
        let within = path.strip(self.folder).unwrap_or_else(|| path.as_str());
        let names: Vec<&str> = within.split('/').collect();
        let fits = |patterns: &[PathPattern]| {
            (1..=names.len()).any(|depth| {
                patterns
                    .iter()
                    .any(|pattern| pattern.fits(&names[..depth], depth < names.len()))
            })
        };
        (self.recurse || names.len() == 1)
            && (self.include.is_empty() || fits(&self.include))
            && !fits(&self.exclude)
            && !self.is_ignored(path, false)
    }

    /// The outermost subfolders with a kustomization, each with the name of that file. An excluded kustomization does not
    /// count. Neither does one in the folder itself, because the renderer reads that folder as raw manifests.
    pub fn kustomized(&mut self, paths: &[&RelPath]) -> Vec<(RelPath, String)> {
        let mut found: Vec<(RelPath, String)> = Vec::new();
        let mut kustomizations: Vec<&RelPath> = paths.iter().copied().filter(|path| is_kustomization(path)).collect();
        kustomizations.sort_by_key(|path| path.names().count());
        for path in kustomizations {
            let parent = path.parent().unwrap_or_default();
            let is_known = found.iter().any(|(outer, _)| parent.is_within(outer));
            if parent != *self.folder && !is_known && self.takes(path) {
                found.push((parent, path.file_name().to_owned()));
            }
        }
        found
    }

    /// As in Git: the last matching line counts, of the deepest file first, and no rule re-includes the contents of an
    /// excluded folder.
    fn is_ignored(&mut self, path: &RelPath, is_folder: bool) -> bool {
        if self.ignore.is_empty() || path.is_root() {
            return false;
        }
        if let Some(known) = self.known.get(path) {
            return *known;
        }
        let above = path.parent().unwrap_or_default();
        let ignored = self.is_ignored(&above, true) || self.is_named(path, is_folder);
        if is_folder {
            self.known.insert(path.clone(), ignored);
        }
        ignored
    }

    fn is_named(&self, path: &RelPath, is_folder: bool) -> bool {
        for file in self.ignore.iter().rev() {
            let Some(within) = path.strip(&file.folder).filter(|within| !within.is_empty()) else {
                continue;
            };
            let names: Vec<&str> = within.split('/').collect();
            if let Some(rule) = file
                .rules
                .iter()
                .rev()
                .find(|rule| rule.pattern.fits(&names, is_folder))
            {
                return !rule.is_kept;
            }
        }
        false
    }
}

/// The texts of the folder's ignore files, each with the folder that it applies to.
fn read_ignore_files<'t>(
    archive: &'t Archive,
    folder: &RelPath,
    paths: &[&RelPath],
) -> Result<Vec<(RelPath, &'t str)>, FolderReason> {
    let mut texts = Vec::new();
    for place in ignore_files(folder, paths) {
        match archive.file(&place) {
            Ok(text) if text.len() > MAX_IGNORE_BYTES => return Err(FolderReason::IgnoreTooLarge(place)),
            Ok(text) => {
                let text = std::str::from_utf8(text).map_err(|_| FolderReason::IgnoreNotText(place.clone()))?;
                texts.push((place.parent().unwrap_or_default(), text));
            }
            // Most folders have no ignore file.
            Err(Lost::Missing(missing)) if missing == place => {}
            // A broken link would include files that it is meant to exclude.
            Err(lost) => return Err(FolderReason::IgnoreLost { file: place, lost }),
        }
    }
    Ok(texts)
}

/// Places of ignore files: from the root to the folder, then in it, outer folders first.
fn ignore_files(folder: &RelPath, paths: &[&RelPath]) -> Vec<RelPath> {
    let above = std::iter::successors(folder.parent(), RelPath::parent);
    let mut places: Vec<RelPath> = above
        .filter_map(|above| above.join_name(IGNORE_FILE.as_bytes()).ok())
        .collect();
    places.reverse();
    let below = paths
        .iter()
        .copied()
        .filter(|path| path.file_name() == IGNORE_FILE)
        .cloned();
    places.extend(below);
    places.sort_by_key(|place| place.names().count());
    places
}

/// The rules of a file. As in Git, an invalid pattern matches nothing.
fn rules(text: &str) -> Vec<Rule> {
    let rule = |line: &str| {
        let line = trim_end(line);
        if line.starts_with('#') {
            return None;
        }
        let (text, is_kept) = match line.strip_prefix('!') {
            Some(kept) => (kept, true),
            None => (line, false),
        };
        Some(Rule {
            pattern: PathPattern::parse(text).ok()?,
            is_kept,
        })
    };
    text.strip_prefix('\u{feff}')
        .unwrap_or(text)
        .lines()
        .filter_map(rule)
        .collect()
}

/// Removes trailing spaces, unless a backslash precedes the first of them.
fn trim_end(line: &str) -> &str {
    let trimmed = line.trim_end_matches([' ', '\t']);
    let is_escaped = trimmed.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
    if is_escaped && trimmed.len() < line.len() {
        &line[..=trimmed.len()]
    } else {
        trimmed
    }
}

/// Describes the files of a folder from which nothing is read, for people.
pub(super) fn explain_nothing(folder: &RelPath, paths: &[&RelPath]) -> String {
    let within = |path: &RelPath| path.strip(folder).unwrap_or_else(|| path.as_str()).to_owned();
    let manifests: Vec<String> = paths
        .iter()
        .filter(|path| is_manifest(path))
        .map(|path| within(path))
        .collect();
    let others: Vec<String> = paths.iter().map(|path| within(path)).collect();
    match (manifests.len(), others.len()) {
        (0, 0) => "has no files".to_owned(),
        (0, _) => format!(
            "has no manifests, which are named *.yaml, *.yml and *.json; it has {}. Name another path, or the renderer of these files",
            list(&others)
        ),
        _ => format!(
            "has no manifests but {}, left out by recurse, include or exclude of its renderer or by {IGNORE_FILE}",
            list(&manifests)
        ),
    }
}

fn list(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        1 => format!("{shown} and 1 more"),
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryTree, archive, closure, limits::Limits};

    fn chosen(files: &[(&str, &str)], at: &str, options: RawOptions) -> Result<Vec<String>, String> {
        let mut tree = MemoryTree::default();
        let root = tree.add_files(files.iter().copied());
        let (limits, folder) = (Limits::default(), RelPath::parse_folder(at).unwrap());
        let closure = closure(&tree, &root, &folder, &limits).unwrap();
        let archive = Archive::read(archive::pack(&tree, &closure, &limits).unwrap(), &limits).unwrap();
        let paths = archive.walk(&folder);
        let mut choice = Choice::new(&archive, &folder, &paths, &options).map_err(|error| error.to_string())?;
        let taken = paths.iter().filter(|path| is_manifest(path) && choice.takes(path));
        Ok(taken.map(ToString::to_string).collect())
    }

    fn options(include: &[&str], exclude: &[&str]) -> RawOptions {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        RawOptions {
            include: owned(include),
            exclude: owned(exclude),
            ..RawOptions::ALL
        }
    }

    const FILES: [(&str, &str); 6] = [
        ("m/a.yaml", ""),
        ("m/setup/crd.yaml", ""),
        ("m/setup/deep/b.yaml", ""),
        ("m/image/files/cassandra.yaml", ""),
        ("m/kustomization.yml", ""),
        ("m/README.md", ""),
    ];

    #[test]
    fn a_folder_is_read_without_those_below_or_by_patterns() {
        let check = |options: RawOptions, expected: &[&str]| {
            assert_eq!(chosen(&FILES, "m", options).unwrap(), expected);
        };
        check(
            RawOptions::ALL,
            &[
                "m/a.yaml",
                "m/image/files/cassandra.yaml",
                "m/setup/crd.yaml",
                "m/setup/deep/b.yaml",
            ],
        );
        check(
            RawOptions {
                recurse: false,
                ..RawOptions::ALL
            },
            &["m/a.yaml"],
        );
        check(options(&[], &["setup/", "image/**/cassandra.yaml"]), &["m/a.yaml"]);
        check(options(&["setup"], &[]), &["m/setup/crd.yaml", "m/setup/deep/b.yaml"]);
        check(
            options(&["setup", "/a.yaml"], &["deep"]),
            &["m/a.yaml", "m/setup/crd.yaml"],
        );
        check(options(&["*.json"], &[]), &[]);
        check(
            options(&["{a.yaml,setup/d*}"], &[]),
            &["m/a.yaml", "m/setup/deep/b.yaml"],
        );
    }

    #[test]
    fn sourceignore_files_count_from_where_they_lie_as_in_git() {
        let check = |ignore: &[(&str, &str)], expected: &[&str]| {
            let files = [&FILES[..], ignore].concat();
            assert_eq!(chosen(&files, "m", RawOptions::ALL).unwrap(), expected, "{ignore:?}");
        };
        let (a, image, setup, deep) = (
            "m/a.yaml",
            "m/image/files/cassandra.yaml",
            "m/setup/crd.yaml",
            "m/setup/deep/b.yaml",
        );
        check(&[(".sourceignore", "# all\n/*\n!/m\n")], &[a, image, setup, deep]);
        check(&[(".sourceignore", "*\n")], &[]);
        check(&[(".sourceignore", "/m/*  \r\n!/m/setup/\n")], &[setup, deep]);
        check(&[("m/.sourceignore", "image\nsetup/*\n!crd.yaml\n")], &[a, setup]);
        // Files in an excluded folder are not re-included.
        check(&[("m/.sourceignore", "setup\n!crd.yaml\n")], &[a, image]);
        // The deeper file counts.
        check(
            &[(".sourceignore", "*.yaml\n"), ("m/setup/.sourceignore", "!b.yaml\n")],
            &[deep],
        );
        check(&[(".sourceignore", "/a.yaml\n[\n\\\n")], &[a, image, setup, deep]);
    }

    #[test]
    fn what_can_not_be_judged_is_an_error() {
        let check = |ignore: &str, options: RawOptions, expected: &str| {
            let said = chosen(&[("m/a.yaml", ""), ("m/.sourceignore", ignore)], "m", options).unwrap_err();
            assert!(said.contains(expected), "{said}");
        };
        check(
            &"#".repeat(MAX_IGNORE_BYTES + 1),
            RawOptions::ALL,
            "m/.sourceignore is over 65536 bytes",
        );
        check("", options(&[], &["["]), "pattern \"[\" has a [ without its ]");
        let long = "a".repeat(200);
        let mut many = Vec::new();
        for n in 0..200 {
            many.push(format!("m/{long}/{long}/{n}.yaml"));
        }
        let ignore = "x".repeat(MAX_IGNORE_BYTES);
        let mut files: Vec<(&str, &str)> = many.iter().map(|path| (path.as_str(), "")).collect();
        files.push(("m/.sourceignore", &ignore));
        assert!(chosen(&files, "m", RawOptions::ALL).unwrap_err().contains("patterns"));
    }

    #[test]
    fn spaces_at_the_end_count_only_behind_a_backslash() {
        for (line, expected) in [
            ("a ", "a"),
            ("a", "a"),
            (r"a\  ", r"a\ "),
            (r"a\\ ", r"a\\"),
            ("  ", ""),
            (r"\", r"\"),
        ] {
            assert_eq!(trim_end(line), expected, "{line:?}");
        }
    }
}
