//! Hints: the repository and the reference that a delivery names, whichever host sent it.
//!
//! The fields are those that the hosts document for pushes:
//! [GitHub](https://docs.github.com/webhooks/webhook-events-and-payloads#push),
//! [GitLab](https://docs.gitlab.com/user/project/integrations/webhook_events/),
//! [Gitea](https://docs.gitea.com/usage/webhooks). None of them uses a field with another meaning, so the sender of a
//! payload doesn't matter.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt,
};

use farwater_api::git_repository::GitReference;
use serde::{
    Deserialize, Deserializer as _,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use thiserror::Error;

/// Most bytes of a text in a payload, as JSON: the longest URL that a source may have.
const MAX_TEXT: usize = 2050;
/// Most addresses of one repository: hosts name up to seven.
const MAX_ADDRESSES: usize = 16;
/// Fields that contain a repository's addresses.
const REPOSITORY: [&str; 2] = ["repository", "project"];
const ADDRESSES: [&str; 9] = [
    "clone_url",
    "ssh_url",
    "html_url",
    "git_url",
    "url",
    "git_http_url",
    "git_ssh_url",
    "http_url",
    "web_url",
];
/// Field next to them that names the default branch.
const DEFAULT_BRANCH: &str = "default_branch";
/// The commit of a deleted reference consists of zeros.
const NOTHING: char = '0';

/// A repository's location, whatever the protocol: host and path, without scheme, user, port and `.git`, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub host: String,
    pub path: String,
}

impl Address {
    /// Parses a URL, or `user@host:path`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (authority, path) = match text.split_once("://") {
            Some((_, rest)) => rest.split_once('/')?,
            None => text.split_once(':').filter(|(host, _)| !host.contains('/'))?,
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let host = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => name,
            _ => host,
        };
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path).trim_end_matches('/');
        let known = !host.is_empty() && !path.is_empty();
        known.then(|| Self {
            host: host.to_ascii_lowercase(),
            path: path.to_ascii_lowercase(),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.path)
    }
}

/// What moved according to one delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Addresses of one repository. Empty: the delivery names none.
    pub repositories: BTreeSet<Address>,
    /// E.g. `refs/heads/main`. None: any.
    pub reference: Option<String>,
    /// The commit of the reference after the push, in hex.
    pub after: Option<String>,
    /// Short name of the repository's default branch. None: the delivery does not name it.
    pub default_branch: Option<String>,
}

#[derive(Debug, Error)]
#[error("the payload is no JSON object: {0}")]
pub struct Unreadable(#[from] serde_json::Error);

impl Hint {
    /// Parses a payload. If `is_whole` is false the payload is cut off, and the fields before the cut count.
    pub fn parse(payload: &[u8], is_whole: bool) -> Result<Self, Unreadable> {
        let mut hint = Self::default();
        let mut json = serde_json::Deserializer::from_slice(payload);
        let wanted = |name: &str| matches!(name, "ref" | "after" | "url") || REPOSITORY.contains(&name);
        let parsed = json.deserialize_map(Fields {
            wanted,
            take: |name: &str, value: &RawValue| hint.take(name, value),
        });
        match parsed.and_then(|()| json.end()) {
            Err(error) if is_whole => Err(error.into()),
            _ => Ok(hint),
        }
    }

    fn take(&mut self, name: &str, value: &RawValue) {
        match name {
            "ref" => self.reference = text(value).filter(|text| !text.is_empty()),
            "after" => self.after = text(value).filter(|text| text.chars().any(|digit| digit != NOTHING)),
            "url" => self.take_address(value),
            _ => {
                let mut json = serde_json::Deserializer::from_str(value.get());
                let fields = Fields {
                    wanted: |name: &str| name == DEFAULT_BRANCH || ADDRESSES.contains(&name),
                    take: |name: &str, value: &RawValue| match name {
                        DEFAULT_BRANCH => self.default_branch = text(value).filter(|text| !text.is_empty()),
                        _ => self.take_address(value),
                    },
                };
                // If a host puts something other than an object here, it doesn't say where the repository is.
                let _ = json.deserialize_map(fields);
            }
        }
    }

    fn take_address(&mut self, value: &RawValue) {
        if self.repositories.len() < MAX_ADDRESSES {
            self.repositories
                .extend(text(value).and_then(|text| Address::parse(&text)));
        }
    }

    /// Whether the reference that a source follows may have moved.
    pub fn concerns(&self, followed: Option<&GitReference>) -> bool {
        let Some(moved) = self.reference.as_deref() else {
            return true;
        };
        let Some(followed) = followed else {
            return match &self.default_branch {
                Some(branch) => is_named(moved, "refs/heads/", branch),
                None => !moved.starts_with("refs/tags/"),
            };
        };
        if let Some(branch) = &followed.branch {
            return is_named(moved, "refs/heads/", branch);
        }
        if let Some(tag) = &followed.tag {
            return is_named(moved, "refs/tags/", tag);
        }
        // A missing commit may have come with any reference.
        followed.semver.is_none() || !moved.starts_with("refs/heads/")
    }

    /// Whether a source that serves this commit of this branch is already at the announced state.
    pub fn is_known(&self, branch: &str, commit: &str) -> bool {
        let is_branch = self
            .reference
            .as_deref()
            .and_then(|name| name.strip_prefix("refs/heads/"))
            == Some(branch);
        is_branch && self.after.as_deref() == Some(commit)
    }
}

/// Hosts name a reference in full for pushes, and in short for events such as `create`.
fn is_named(moved: &str, kind: &str, name: &str) -> bool {
    moved.strip_prefix(kind).unwrap_or(moved) == name
}

fn text(value: &RawValue) -> Option<String> {
    let json = value.get();
    if json.len() > MAX_TEXT || !json.starts_with('"') {
        return None;
    }
    serde_json::from_str(json).ok()
}

/// Passes some fields of an object on one by one, so that fields before an error count.
struct Fields<W, T> {
    wanted: W,
    take: T,
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, W: Fn(&str) -> bool, T: FnMut(&str, &'de RawValue)> Visitor<'de> for Fields<W, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<(), M::Error> {
        while let Some(Name(name)) = map.next_key()? {
            if (self.wanted)(&name) {
                (self.take)(&name, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Hints that wait to be processed: each repository and reference once, however often it was delivered.
#[derive(Debug, Default)]
pub struct Inbox(BTreeMap<Moved, Option<String>>);

/// Repositories, reference and default branch.
type Moved = (BTreeSet<Address>, Option<String>, Option<String>);

impl Inbox {
    /// Most distinct hints that wait. If a host delivers more than that, every source is checked instead.
    const MOST: usize = 256;

    pub fn add(&mut self, hint: Hint) {
        let Hint {
            repositories,
            reference,
            after,
            default_branch,
        } = hint;
        let is_full = self.0.len() >= Self::MOST;
        match self.0.entry((repositories, reference, default_branch)) {
            // Which of two commits came first is unknown.
            Entry::Occupied(mut known) if *known.get() != after => drop(known.insert(None)),
            Entry::Occupied(_) => {}
            Entry::Vacant(place) if !is_full => drop(place.insert(after)),
            Entry::Vacant(_) => drop(self.0.insert((BTreeSet::new(), None, None), None)),
        }
    }

    /// Removes and returns the hints that were added since the last call.
    pub fn take(&mut self) -> Vec<Hint> {
        let hint = |((repositories, reference, default_branch), after)| Hint {
            repositories,
            reference,
            after,
            default_branch,
        };
        std::mem::take(&mut self.0).into_iter().map(hint).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const COMMIT: &str = "bffeb74224043ba2feb48d137756c8a9331c449a";

    fn parse(payload: &Value) -> Hint {
        Hint::parse(payload.to_string().as_bytes(), true).unwrap()
    }

    fn addresses(hint: &Hint) -> Vec<String> {
        hint.repositories.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_repository_has_one_address_however_it_is_reached() {
        let check = |text: &str, expected: &str| {
            let address = Address::parse(text)
                .map(|address| address.to_string())
                .unwrap_or_default();
            assert_eq!(address, expected, "{text}");
        };
        for same in [
            "https://git.example.com/team/infra.git",
            "https://git.example.com/Team/Infra",
            "http://git.example.com:3000/team/infra/",
            "ssh://git@git.example.com:2222/team/infra.git",
            "git@git.example.com:team/infra.git",
            "git.example.com:/team/infra",
            "git://GIT.example.com/team/infra.git?x=1",
        ] {
            check(same, "git.example.com/team/infra");
        }
        check("https://[::1]:8443/a.git", "[::1]/a");
        for wrong in [
            "",
            "https://git.example.com",
            "https:///a",
            "team/infra",
            "/a:b",
            "https://git.example.com/.git",
        ] {
            check(wrong, "");
        }
    }

    #[test]
    fn each_hosts_push_names_repository_reference_and_commit() {
        let github = json!({
            "ref": "refs/heads/main", "before": "0".repeat(40), "after": COMMIT,
            "repository": {
                "id": 1, "full_name": "team/infra", "owner": {"name": "team", "url": "https://api.github.com/users/team"},
                "html_url": "https://github.com/team/infra", "url": "https://github.com/team/infra",
                "git_url": "git://github.com/team/infra.git", "ssh_url": "git@github.com:team/infra.git",
                "clone_url": "https://github.com/team/infra.git", "homepage": null, "default_branch": "trunk",
            },
            "commits": [{"id": COMMIT, "url": "https://github.com/team/infra/commit/1", "added": []}],
        });
        let hint = parse(&github);
        assert_eq!(addresses(&hint), ["github.com/team/infra"]);
        assert_eq!(
            (hint.reference.as_deref(), hint.after.as_deref()),
            (Some("refs/heads/main"), Some(COMMIT))
        );
        assert_eq!(hint.default_branch.as_deref(), Some("trunk"));

        let gitlab = json!({
            "object_kind": "push", "event_name": "push", "after": COMMIT, "ref": "refs/heads/main", "checkout_sha": COMMIT,
            "project": {
                "id": 15, "name": "infra", "web_url": "https://git.example.com/team/infra",
                "git_ssh_url": "git@git.example.com:team/infra.git", "git_http_url": "https://git.example.com/team/infra.git",
                "homepage": "https://git.example.com/team/infra", "url": "git@git.example.com:team/infra.git",
            },
            "repository": {"name": "infra", "git_http_url": "https://git.example.com/team/infra.git"},
        });
        assert_eq!(addresses(&parse(&gitlab)), ["git.example.com/team/infra"]);

        let gitea = json!({
            "ref": "refs/tags/v1.2.0", "after": COMMIT, "compare_url": "https://git.example.com/x",
            "repository": {"clone_url": "http://gitea:3000/team/infra.git", "ssh_url": "ssh://git@git.example.com:22/team/infra.git"},
        });
        assert_eq!(
            addresses(&parse(&gitea)),
            ["git.example.com/team/infra", "gitea/team/infra"]
        );

        let deleted =
            parse(&json!({"ref": "refs/heads/old", "after": "0".repeat(40), "url": "https://git.example.com/a"}));
        assert_eq!((deleted.after, deleted.repositories.len()), (None, 1));
    }

    #[test]
    fn what_is_no_object_is_unreadable_and_strange_fields_are_left_out() {
        for wrong in [&b"[]"[..], b"", b"{\"ref\": \"refs/heads/main\"", b"{} {}", b"\xff"] {
            assert!(Hint::parse(wrong, true).is_err(), "{wrong:?}");
        }
        let strange = json!({"ref": {"a": 1}, "after": 5, "repository": [1], "project": {"url": ["x"], "web_url": 7}});
        assert_eq!(parse(&strange), Hint::default());
        let long = json!({"ref": "x".repeat(MAX_TEXT), "repository": {"url": "https://h/".to_owned() + &"a".repeat(MAX_TEXT)}});
        assert_eq!(parse(&long), Hint::default());
        let deep = format!(
            "{{\"a\": {}1{}, \"ref\": \"r\"}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(
            Hint::parse(deep.as_bytes(), true).unwrap().reference.as_deref(),
            Some("r")
        );
    }

    #[test]
    fn of_a_payload_that_is_cut_off_the_beginning_counts() {
        let text = json!({"ref": "refs/heads/main", "repository": {"url": "https://h/a"}, "z": [1, 2]}).to_string();
        let hint = Hint::parse(&text.as_bytes()[..text.len() - 3], false).unwrap();
        assert_eq!(
            (hint.reference.as_deref(), addresses(&hint)),
            (Some("refs/heads/main"), vec!["h/a".to_owned()])
        );
    }

    #[test]
    fn a_moved_reference_concerns_those_who_follow_it() {
        let check = |moved: &str, followed: Option<Value>, expected: bool| {
            let reference = followed
                .clone()
                .map(|json| serde_json::from_value::<GitReference>(json).unwrap());
            let hint = Hint {
                reference: Some(moved.to_owned()),
                ..Hint::default()
            };
            assert_eq!(hint.concerns(reference.as_ref()), expected, "{moved}, {followed:?}");
        };
        check("refs/heads/main", None, true);
        check("refs/tags/v1", None, false);
        // The host decides which branch is the default one.
        check("refs/heads/next", None, true);
        let hint = |moved: &str| Hint {
            reference: Some(moved.to_owned()),
            default_branch: Some("trunk".to_owned()),
            ..Hint::default()
        };
        assert!(hint("refs/heads/trunk").concerns(None) && !hint("refs/heads/main").concerns(None));
        check("refs/heads/a/b", Some(json!({"branch": "a/b"})), true);
        check("refs/tags/main", Some(json!({"branch": "main"})), false);
        check("main", Some(json!({"branch": "main"})), true);
        check("refs/tags/v1", Some(json!({"tag": "v1"})), true);
        check("refs/heads/v1", Some(json!({"tag": "v1"})), false);
        check("refs/tags/v9", Some(json!({"semver": ">=1.0.0"})), true);
        check("refs/heads/main", Some(json!({"semver": ">=1.0.0"})), false);
        check("refs/heads/main", Some(json!({"commit": COMMIT})), true);
        assert!(Hint::default().concerns(None));
    }

    #[test]
    fn only_a_branch_at_the_named_commit_is_known_already() {
        let hint = |reference: &str, after: Option<&str>| Hint {
            reference: Some(reference.to_owned()),
            after: after.map(str::to_owned),
            ..Hint::default()
        };
        assert!(hint("refs/heads/main", Some(COMMIT)).is_known("main", COMMIT));
        assert!(!hint("refs/heads/main", Some(COMMIT)).is_known("main", "other"));
        assert!(!hint("refs/heads/main", None).is_known("main", COMMIT));
        assert!(!hint("refs/tags/main", Some(COMMIT)).is_known("main", COMMIT));
        assert!(!Hint::default().is_known("", ""));
    }

    #[test]
    fn an_inbox_holds_each_reference_once_and_never_what_could_silence_another() {
        let hint = |name: &str, after: &str| Hint {
            repositories: Address::parse(&format!("https://h/{name}")).into_iter().collect(),
            reference: Some("refs/heads/main".to_owned()),
            after: Some(after.to_owned()),
            default_branch: None,
        };
        let mut inbox = Inbox::default();
        for _ in 0..10_000 {
            inbox.add(hint("a", "1"));
        }
        inbox.add(hint("b", "1"));
        assert_eq!(inbox.take(), [hint("a", "1"), hint("b", "1")]);
        // The order in which a commit and its successor were delivered is unknown.
        inbox.add(hint("a", "1"));
        inbox.add(hint("a", "2"));
        inbox.add(hint("a", "1"));
        assert_eq!(
            inbox.take(),
            [Hint {
                after: None,
                ..hint("a", "")
            }]
        );
    }

    #[test]
    fn an_inbox_that_is_full_means_any_repository() {
        let mut inbox = Inbox::default();
        for n in 0..10_000 {
            let repositories = Address::parse(&format!("https://h/{n}")).into_iter().collect();
            inbox.add(Hint {
                repositories,
                ..Hint::default()
            });
        }
        let hints = inbox.take();
        assert_eq!((hints.len(), &hints[0]), (Inbox::MOST + 1, &Hint::default()));
        assert_eq!(inbox.take(), []);
    }
}
