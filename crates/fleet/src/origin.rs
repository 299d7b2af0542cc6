//! Where a service's objects come from, and whether that changed.
//!
//! An object that is missing in another repository or folder was not deleted on purpose, so a prune after such a change
//! waits for an approval.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The origin of objects. The address is not part of it: a repository that moved is the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The first commit of its history, or the address if it has no history. None: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The folder.
    pub path: String,
}

/// How two origins differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    Repository { before: String, now: String },
    Folder { before: String, now: String },
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repository { before, now } if is_commit(before) && is_commit(now) => write!(
                f,
                "the source is another repository: its history begins with {} and began with {}",
                short(now),
                short(before)
            ),
            Self::Repository { before, now } => {
                write!(f, "the source is another one: {} and not {}", short(now), short(before))
            }
            Self::Folder { before, now } => {
                write!(
                    f,
                    "the objects come from folder {:?} and came from {:?}",
                    shown(now),
                    shown(before)
                )
            }
        }
    }
}

/// Whether this is a commit. Sources without a history have their address here.
fn is_commit(root: &str) -> bool {
    root.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn short(root: &str) -> &str {
    if is_commit(root) {
        root.get(..12).unwrap_or(root)
    } else {
        root
    }
}

fn shown(path: &str) -> &str {
    if path.is_empty() { "." } else { path }
}

impl Origin {
    /// How `now` is another origin than this one. None: it is the same. Unknown parts differ from nothing.
    pub fn swapped_for(&self, now: &Self) -> Option<Swap> {
        if let (Some(before), Some(now)) = (&self.root, &now.root)
            && before != now
        {
            return Some(Swap::Repository {
                before: before.clone(),
                now: now.clone(),
            });
        }
        (self.path != now.path).then(|| Swap::Folder {
            before: self.path.clone(),
            now: now.path.clone(),
        })
    }

    /// This origin, with its unknown parts taken from an earlier one.
    pub fn or(self, earlier: Option<&Self>) -> Self {
        let root = self.root.or_else(|| earlier.and_then(|earlier| earlier.root.clone()));
        Self { root, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(root: &str, path: &str) -> Origin {
        Origin {
            root: (!root.is_empty()).then(|| root.to_owned()),
            path: path.to_owned(),
        }
    }

    #[test]
    fn another_history_or_folder_is_another_origin_and_what_is_unknown_is_not() {
        let check = |before: &Origin, now: &Origin, expected: Option<&str>| {
            let swap = before.swapped_for(now).map(|swap| swap.to_string());
            assert!(swap.is_some() == expected.is_some(), "{swap:?}");
            assert!(swap.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        check(&origin("a", "app"), &origin("a", "app"), None);
        check(
            &origin("a", "app"),
            &origin("b", "app"),
            Some("begins with b and began with a"),
        );
        check(
            &origin("a", "app"),
            &origin("a", ""),
            Some("folder \".\" and came from \"app\""),
        );
        let (chart, other) = (
            origin("https://h/charts#web", "app"),
            origin("https://h/charts#db", "app"),
        );
        check(
            &chart,
            &other,
            Some("another one: https://h/charts#db and not https://h/charts#web"),
        );
        check(
            &origin("a", "app"),
            &chart,
            Some("another one: https://h/charts#web and not a"),
        );
        check(&origin("", "app"), &origin("b", "app"), None);
        check(&origin("a", "app"), &origin("", "app"), None);
        assert_eq!(origin("", "app").or(Some(&origin("a", "x"))), origin("a", "app"));
    }
}
