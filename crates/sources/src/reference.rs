//! The followed reference of a repository.

use std::fmt;

use farwater_api::git_repository::GitReference;
use farwater_bundle::ObjectId;

use crate::range::{Range, RangeError};

#[derive(Clone, Debug, PartialEq)]
pub enum Reference {
    Branch(String),
    Tag(String),
    /// A reference by its full name, such as `refs/pull/1/head`.
    Full(String),
    /// The tag with the highest version in the range.
    Semver(Range),
    Commit(ObjectId),
    /// A branch, otherwise a tag.
    Named(String),
    /// The branch that the remote's HEAD names; `main` if HEAD has no target.
    Default,
}

/// A name whose kind is not stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A branch or a tag.
    Name(String),
    Commit(ObjectId),
}

impl Named {
    /// A full commit id is a commit; anything else is a name.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        match text.parse() {
            Ok(id) => Ok(Self::Commit(id)),
            Err(_) => check_name("ref", text).map(Self::Name),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("ref has {0} fields set; set one of branch, tag, semver, name, commit and pipeline")]
    Several(usize),
    #[error("{kind} {name:?} is not a name that Git takes")]
    Name { kind: &'static str, name: String },
    #[error("commit {0:?} is not a full commit id: 40 or 64 hex digits in lower case")]
    Commit(String),
    /// The hub replaces it by the promoted commit.
    #[error("the promoted commit of pipeline {0:?} is not known here")]
    Pipeline(String),
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl Reference {
    /// The reference of a kustomization's base, as in kustomize's `ref`.
    pub fn of_base(text: &str) -> Result<Self, ReferenceError> {
        Ok(match text {
            "" | "HEAD" => Self::Default,
            text => match Named::parse(text)? {
                Named::Commit(id) => Self::Commit(id),
                Named::Name(name) => Self::Named(name),
            },
        })
    }

    /// The reference that a GitRepository follows; the remote's default branch if it names none.
    pub fn parse(reference: Option<&GitReference>) -> Result<Self, ReferenceError> {
        let Some(GitReference {
            branch,
            tag,
            semver,
            name,
            commit,
            pipeline,
        }) = reference
        else {
            return Ok(Self::Default);
        };
        let set = [branch, tag, semver, name, commit, pipeline]
            .into_iter()
            .flatten()
            .count();
        if set > 1 {
            return Err(ReferenceError::Several(set));
        }

        if let Some(pipeline) = pipeline {
            return Err(ReferenceError::Pipeline(pipeline.clone()));
        }
        if let Some(name) = name {
            let checked = check_name("reference", name)?;
            let is_full = checked.starts_with("refs/") && checked.split('/').count() > 2;
            let bad = ReferenceError::Name {
                kind: "full reference",
                name: name.chars().take(80).collect(),
            };
            return is_full.then_some(Self::Full(checked)).ok_or(bad);
        }
        if let Some(name) = branch {
            return Ok(Self::Branch(check_name("branch", name)?));
        }
        if let Some(name) = tag {
            return Ok(Self::Tag(check_name("tag", name)?));
        }
        if let Some(range) = semver {
            return Ok(Self::Semver(range.parse()?));
        }

        match commit {
            Some(id) => id
                .parse()
                .map(Self::Commit)
                .map_err(|_| ReferenceError::Commit(id.chars().take(80).collect())),
            None => Ok(Self::Default),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Branch(name) => write!(f, "branch {name}"),
            Self::Tag(name) => write!(f, "tag {name}"),
            Self::Full(name) => write!(f, "reference {name}"),
            Self::Semver(range) => write!(f, "a tag in the range {range}"),
            Self::Commit(id) => write!(f, "commit {id}"),
            Self::Named(name) => write!(f, "branch or tag {name}"),
            Self::Default => write!(f, "the default branch"),
        }
    }
}

/// The rules of `git check-ref-format --branch`, without its shorthands.
pub(crate) fn check_name(kind: &'static str, name: &str) -> Result<String, ReferenceError> {
    let bad_part = |part: &str| part.is_empty() || part.starts_with('.') || part.ends_with(".lock");
    let bad_char = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let bad = name.len() > 255
        || name.starts_with('-')
        || name.ends_with('.')
        || name == "@"
        || name.contains("..")
        || name.contains("@{")
        || name.chars().any(bad_char)
        || name.split('/').any(bad_part);
    if bad {
        return Err(ReferenceError::Name {
            kind,
            name: name.chars().take(80).collect(),
        });
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_commit_only_as_a_whole() {
        let id = "a1".repeat(20);
        assert_eq!(Named::parse(&id), Ok(Named::Commit(id.parse().unwrap())));
        assert_eq!(Named::parse("a1a1a1"), Ok(Named::Name("a1a1a1".into())));
        assert_eq!(Named::parse("release/1.2"), Ok(Named::Name("release/1.2".into())));
        for name in ["", "-upload-pack=x", "a..b", "HEAD^", "a:b", "refs/heads/\u{0}"] {
            assert!(Named::parse(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn one_field_or_none_is_taken() {
        assert_eq!(Reference::parse(None), Ok(Reference::Default));
        assert_eq!(Reference::parse(Some(&GitReference::default())), Ok(Reference::Default));
        let branch = |name: &str| {
            Reference::parse(Some(&GitReference {
                branch: Some(name.into()),
                ..Default::default()
            }))
        };
        assert_eq!(branch("release/1.2"), Ok(Reference::Branch("release/1.2".into())));
        for name in [
            "", "-x", "a..b", "a b", "a^", "x.lock", "a//b", "/a", "a/", "@", "a@{1}", ".a", "a\n", "a*", "a:b",
        ] {
            assert!(branch(name).is_err(), "{name:?}");
        }
        let both = GitReference {
            branch: Some("a".into()),
            tag: Some("b".into()),
            ..Default::default()
        };
        assert_eq!(Reference::parse(Some(&both)), Err(ReferenceError::Several(2)));
        let full = |name: &str| {
            Reference::parse(Some(&GitReference {
                name: Some(name.into()),
                ..Default::default()
            }))
        };
        assert_eq!(full("refs/pull/1/head"), Ok(Reference::Full("refs/pull/1/head".into())));
        for name in [
            "main",
            "refs/",
            "refs/heads",
            "HEAD",
            "refs/heads/a..b",
            "/refs/heads/a",
        ] {
            assert!(full(name).is_err(), "{name:?}");
        }
        assert_eq!(Reference::of_base(""), Ok(Reference::Default));
        assert_eq!(Reference::of_base("v1"), Ok(Reference::Named("v1".into())));
        assert!(matches!(Reference::of_base(&"a1".repeat(20)), Ok(Reference::Commit(_))));
        assert!(Reference::of_base("--upload-pack=x").is_err());
        let commit = GitReference {
            commit: Some("abc".into()),
            ..Default::default()
        };
        assert!(Reference::parse(Some(&commit)).is_err());
    }
}
