//! The answer of `git ls-remote`.

use std::collections::BTreeMap;

use farwater_bundle::ObjectId;

use super::GitReason;

#[derive(Debug)]
pub(super) struct RemoteRefs(BTreeMap<String, ObjectId>);

impl RemoteRefs {
    /// Lines of `<id>\t<name>`. A name that is not UTF-8 can't be what anybody asked for and is passed over.
    pub(super) fn parse(output: &[u8], limit: usize) -> Result<Self, GitReason> {
        let mut refs = BTreeMap::new();
        for (n, line) in output.split(|b| *b == b'\n').filter(|line| !line.is_empty()).enumerate() {
            if n >= limit {
                return Err(GitReason::TooManyRefs { limit });
            }
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let Some((id, name)) = line.split_once('\t') else { continue };
            if let Ok(id) = id.parse() {
                refs.insert(name.to_owned(), id);
            }
        }
        Ok(Self(refs))
    }

    /// Exactly this name: the patterns of ls-remote match the ends of names too.
    pub(super) fn get(&self, name: &str) -> Option<ObjectId> {
        self.0.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
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
        assert!(matches!(RemoteRefs::parse(output.as_bytes(), 1), Err(GitReason::TooManyRefs { limit: 1 })));
        assert_eq!(RemoteRefs::parse(b"garbage\n\xff\t\xff\n", 10).unwrap().len(), 0);
    }
}
