//! Paths inside a repository or an archive, parsed at the edge so that no other code gets a hostile name.

use std::{borrow::Cow, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Longest path in bytes, and most names: more than any real repository has, and less than what any file system or tar
/// reader supports.
pub const MAX_PATH_BYTES: usize = 1024;
pub const MAX_DEPTH: usize = 64;
/// `NAME_MAX` of every common file system.
pub const MAX_NAME_BYTES: usize = 255;

/// A relative path with `/` between its names. Empty: the root.
///
/// Each name is UTF-8 without control characters, `/` or `\`, is not `.` or `..`, and is no variant of `.git`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(String);

/// Why a path was refused. The path is shown escaped and shortened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("path \"{shown}\" {reason}")]
pub struct PathError {
    shown: String,
    pub reason: PathReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathReason {
    #[error("is not UTF-8")]
    NotUtf8,
    #[error("has an empty name")]
    EmptyName,
    #[error("is absolute")]
    Absolute,
    #[error("has `.` or `..` as a name")]
    Dots,
    #[error("has a control character")]
    Control,
    #[error("has a slash or backslash in a name")]
    Separator,
    #[error("has a name that some systems take for `.git`")]
    DotGit,
    #[error("has a name longer than {MAX_NAME_BYTES} bytes")]
    LongName,
    #[error("is longer than {MAX_PATH_BYTES} bytes")]
    Long,
    #[error("is deeper than {MAX_DEPTH} names")]
    Deep,
    #[error("leads out of the repository")]
    Escapes,
}

impl PathError {
    pub(crate) fn new(path: &[u8], reason: PathReason) -> Self {
        Self {
            shown: escape(path),
            reason,
        }
    }
}

/// The bytes as one printable line of at most about 200 characters. Everything except printable ASCII and letters is
/// escaped.
pub fn escape(bytes: &[u8]) -> String {
    const SHOWN: usize = 160;
    let mut out = String::new();
    for chunk in bytes[..bytes.len().min(SHOWN)].utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '"' || c == '\\' || !(c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ') {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    if bytes.len() > SHOWN {
        out.push('…');
    }
    out
}

impl RelPath {
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// Parses a path in its canonical form: without `./` and trailing slash.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Ok(Self::root());
        }
        let fail = |reason| PathError::new(text.as_bytes(), reason);
        if text.starts_with('/') {
            return Err(fail(PathReason::Absolute));
        }
        if text.len() > MAX_PATH_BYTES {
            return Err(fail(PathReason::Long));
        }
        if text.split('/').count() > MAX_DEPTH {
            return Err(fail(PathReason::Deep));
        }
        text.split('/').try_for_each(check_name).map_err(fail)?;
        Ok(Self(text.to_owned()))
    }

    /// Parses a folder as people write it in `spec.path`; `.`, `./apps/web` and `apps/web/` are accepted too.
    pub fn parse_folder(text: &str) -> Result<Self, PathError> {
        let mut rest = text;
        while let Some(shorter) = rest.strip_prefix("./") {
            rest = shorter;
        }
        if rest == "." {
            rest = "";
        }
        Self::parse(rest.strip_suffix('/').filter(|r| !r.is_empty()).unwrap_or(rest))
            .map_err(|e| PathError::new(text.as_bytes(), e.reason))
    }

    /// This path and one more name, as found in a Git tree.
    pub fn join_name(&self, name: &[u8]) -> Result<Self, PathError> {
        let full = || {
            let mut full = self.0.clone().into_bytes();
            if !full.is_empty() {
                full.push(b'/');
            }
            full.extend_from_slice(name);
            full
        };
        let fail = |reason| PathError::new(&full(), reason);
        let text = std::str::from_utf8(name).map_err(|_| fail(PathReason::NotUtf8))?;
        check_name(text).map_err(fail)?;
        let joined = if self.0.is_empty() {
            text.to_owned()
        } else {
            format!("{}/{text}", self.0)
        };
        if joined.len() > MAX_PATH_BYTES {
            return Err(fail(PathReason::Long));
        }
        if joined.split('/').count() > MAX_DEPTH {
            return Err(fail(PathReason::Deep));
        }
        Ok(Self(joined))
    }

    /// The path to which `reference` leads from this folder by text alone, as in `path.Join` and kustomize.
    pub fn join_clean(&self, reference: &str) -> Result<Self, PathError> {
        let fail = |reason| PathError::new(reference.as_bytes(), reason);
        if reference.starts_with('/') {
            return Err(fail(PathReason::Absolute));
        }
        let mut names: Vec<&str> = self.names().collect();
        for name in reference.split('/') {
            match name {
                "" | "." => {}
                ".." => {
                    names.pop().ok_or_else(|| fail(PathReason::Escapes))?;
                }
                name => names.push(name),
            }
        }
        Self::parse(&names.join("/")).map_err(|e| fail(e.reason))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The last name. Empty for the root.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The folder that contains this path. None for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        Some(Self(
            self.0
                .rsplit_once('/')
                .map(|(parent, _)| parent.to_owned())
                .unwrap_or_default(),
        ))
    }

    /// Whether this is `folder` or lies below it.
    pub fn is_within(&self, folder: &Self) -> bool {
        folder.is_root()
            || self
                .0
                .strip_prefix(folder.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// This path relative to `folder`. None: it is elsewhere.
    pub fn strip(&self, folder: &Self) -> Option<&str> {
        if !self.is_within(folder) {
            return None;
        }
        Some(self.0[folder.0.len()..].trim_start_matches('/'))
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { "." } else { &self.0 })
    }
}

impl FromStr for RelPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        Self::parse(text)
    }
}

impl Serialize for RelPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

fn check_name(name: &str) -> Result<(), PathReason> {
    if name.is_empty() {
        return Err(PathReason::EmptyName);
    }
    if name == "." || name == ".." {
        return Err(PathReason::Dots);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(PathReason::LongName);
    }
    if name.chars().any(char::is_control) {
        return Err(PathReason::Control);
    }
    if name.contains(['/', '\\']) {
        return Err(PathReason::Separator);
    }
    if is_dot_git(name) {
        return Err(PathReason::DotGit);
    }
    Ok(())
}

/// Git's own rules: `is_hfs_dotgit` and `is_ntfs_dotgit` (utf8.c, path.c). Nothing is checked out here, but an archive
/// may later be written to a file system, where another reading of a name would be a security hole.
fn is_dot_git(name: &str) -> bool {
    let ntfs = name.split(':').next().unwrap_or_default().trim_end_matches([' ', '.']);
    if ntfs.eq_ignore_ascii_case(".git") || ntfs.eq_ignore_ascii_case("git~1") {
        return true;
    }
    // Code points that HFS+ ignores when it compares names.
    let hfs: String = name
        .chars()
        .filter(
            |c| !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}'),
        )
        .collect();
    hfs.eq_ignore_ascii_case(".git") || hfs == "." || hfs == ".."
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_names_are_refused_and_shown_escaped() {
        use PathReason::*;
        for (text, reason) in [
            ("../x", Dots),
            ("a/../b", Dots),
            ("a/./b", Dots),
            ("/etc/passwd", Absolute),
            ("a//b", EmptyName),
            ("a/", EmptyName),
            ("a\nb", Control),
            ("a\rb", Control),
            ("a\0b", Control),
            ("a\u{7f}", Control),
            ("a\u{85}", Control),
            ("a\\b", Separator),
            (".git/config", DotGit),
            ("x/.GIT", DotGit),
            (".git ", DotGit),
            (".git...", DotGit),
            (".git. .", DotGit),
            ("GIT~1", DotGit),
            (".git::$INDEX_ALLOCATION", DotGit),
            (".g\u{200c}it", DotGit),
            ("\u{feff}.git", DotGit),
            (".\u{200d}.", DotGit),
        ] {
            let error = RelPath::parse(text).unwrap_err();
            assert_eq!(error.reason, reason, "{text:?}");
            assert!(!error.to_string().contains(char::is_control), "{error}");
        }
        for text in [".gitignore", ".gitmodules", "git", "a.git", "…", "..a", "a..", "git~2"] {
            assert!(RelPath::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn long_and_deep_paths_are_refused() {
        assert_eq!(
            RelPath::parse(&"a".repeat(256)).unwrap_err().reason,
            PathReason::LongName
        );
        assert_eq!(
            RelPath::parse(&["a"; 65].join("/")).unwrap_err().reason,
            PathReason::Deep
        );
        assert!(RelPath::parse(&["a"; 64].join("/")).is_ok());
        let long = vec!["a".repeat(200); 6].join("/");
        assert_eq!(RelPath::parse(&long).unwrap_err().reason, PathReason::Long);
        assert!(RelPath::parse(&long).unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn names_of_trees_may_be_any_bytes_and_only_good_ones_join() {
        let base = RelPath::parse("apps").unwrap();
        assert_eq!(base.join_name(b"web").unwrap().as_str(), "apps/web");
        let error = base.join_name(b"\xff\xfe\n").unwrap_err();
        assert_eq!(error.to_string(), r#"path "apps/\xff\xfe\n" is not UTF-8"#);
        assert_eq!(base.join_name(b"a/b").unwrap_err().reason, PathReason::Separator);
        assert_eq!(base.join_name(b"..").unwrap_err().reason, PathReason::Dots);
    }

    #[test]
    fn folders_are_read_as_people_write_them() {
        for (text, want) in [
            ("", ""),
            (".", ""),
            ("./", ""),
            ("./a/b", "a/b"),
            ("a/b/", "a/b"),
            ("././a", "a"),
        ] {
            assert_eq!(RelPath::parse_folder(text).unwrap().as_str(), want, "{text}");
        }
        for text in ["/", "..", "a/..", "a//", "./../a"] {
            assert!(RelPath::parse_folder(text).is_err(), "{text}");
        }
    }

    #[test]
    fn references_are_joined_by_text_and_stay_inside() {
        let dir = RelPath::parse("overlays/east").unwrap();
        assert_eq!(dir.join_clean("../../base").unwrap().as_str(), "base");
        assert_eq!(dir.join_clean("./x//y/../z").unwrap().as_str(), "overlays/east/x/z");
        assert_eq!(dir.join_clean("../../../etc").unwrap_err().reason, PathReason::Escapes);
        assert_eq!(dir.join_clean("/etc").unwrap_err().reason, PathReason::Absolute);
    }

    proptest! {
        #[test]
        fn what_parses_is_clean_and_parses_again(text in "\\PC{0,40}|[a-c./\\\\]{0,12}") {
            if let Ok(path) = RelPath::parse(&text) {
                prop_assert_eq!(path.as_str(), &text);
                prop_assert!(path.names().all(|n| n != ".." && n != "." && !n.is_empty()));
                prop_assert!(!path.as_str().starts_with('/'));
                let mut rebuilt = RelPath::root();
                for name in path.names() {
                    rebuilt = rebuilt.join_name(name.as_bytes()).unwrap();
                }
                prop_assert_eq!(rebuilt, path);
            }
        }

        #[test]
        fn joined_references_never_escape(dir in "[ab]{1,2}(/[ab]{1,2}){0,3}", reference in "[ab./]{0,16}") {
            let dir = RelPath::parse(&dir).unwrap();
            if let Ok(path) = dir.join_clean(&reference) {
                prop_assert!(RelPath::parse(path.as_str()).is_ok());
            }
        }
    }
}
