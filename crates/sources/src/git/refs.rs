//! The output of `git ls-remote`.

use std::collections::BTreeMap;

use farwater_bundle::ObjectId;

use super::{GitReason, HEAD};
use crate::reference::check_name;

#[derive(Debug)]
pub(super) struct RemoteRefs {
    ids: BTreeMap<String, ObjectId>,
    head: Option<String>,
}

impl RemoteRefs {
    /// Parses lines of `<id>\t<name>`, and with `--symref` of `ref: <name>\t<name>`. A name that is not UTF-8 can't be
    /// requested and is skipped.
    pub(super) fn parse(output: &[u8], limit: usize) -> Result<Self, GitReason> {
        let (mut refs, mut head) = (BTreeMap::new(), None);
        for (n, line) in output
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .enumerate()
        {
            if n >= limit {
                return Err(GitReason::TooManyRefs { limit });
            }
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let Some((id, name)) = line.split_once('\t') else {
                continue;
            };
            if let Some(target) = id.strip_prefix("ref: ").filter(|_| name == HEAD) {
                head = target
                    .strip_prefix("refs/heads/")
                    .and_then(|branch| check_name("branch", branch).ok());
            } else if let Ok(id) = id.parse() {
                refs.insert(name.to_owned(), id);
            }
        }
        Ok(Self { ids: refs, head })
    }

    /// The branch that HEAD names at the remote.
    pub(super) fn head(&self) -> Option<&str> {
        self.head.as_deref()
    }

    /// The id of exactly this name: patterns of ls-remote also match the ends of names.
    pub(super) fn get(&self, name: &str) -> Option<ObjectId> {
        self.ids.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.ids.keys().map(String::as_str)
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_exactly_and_counts_are_bounded() {
        let id = "1".repeat(40);
        let output = format!("{id}\trefs/heads/x/refs/heads/main\n{id}\trefs/heads/\u{e9}\n");
        let refs = RemoteRefs::parse(output.as_bytes(), 10).unwrap();
        assert_eq!(refs.get("refs/heads/main"), None);
        assert_eq!(refs.len(), 2);
        assert!(matches!(
            RemoteRefs::parse(output.as_bytes(), 1),
            Err(GitReason::TooManyRefs { limit: 1 })
        ));
        assert_eq!(RemoteRefs::parse(b"garbage\n\xff\t\xff\n", 10).unwrap().len(), 0);
    }

    #[test]
    fn head_is_the_branch_that_it_stands_for() {
        let id = "1".repeat(40);
        let check = |line: &str, expected: Option<&str>| {
            let refs = RemoteRefs::parse(format!("{line}\n{id}\tHEAD\n").as_bytes(), 10).unwrap();
            assert_eq!((refs.head(), refs.len()), (expected, 1), "{line}");
        };
        check("ref: refs/heads/trunk\tHEAD", Some("trunk"));
        for other in [
            "",
            "ref: refs/heads/a\trefs/remotes/origin/HEAD",
            "ref: refs/pull/1\tHEAD",
            "ref: refs/heads/-x\tHEAD",
        ] {
            check(other, None);
        }
    }
}
