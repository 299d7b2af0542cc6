//! An id for what a member would run, or runs.

use std::{collections::BTreeMap, fmt, str::FromStr};

use farwater_api::Digest;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Identifies everything that a rollout delivers to one member: the first 16 bytes of a SHA-256. Members made of the
/// same content have the same id; nothing depends on that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId([u8; 16]);

/// The input of a [`ChangeId`].
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// Digest of the stamped spec without suspension and pin, which a person may change on one member.
    pub template: Digest,
    pub bundle: Digest,
    /// Folder inside the bundle.
    pub path: &'a str,
    /// As in the candidate.
    pub origin: Option<&'a str>,
    /// MAC of the parameters.
    pub parameters: Option<Digest>,
    /// As in the candidate.
    pub configuration: &'a BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse change {0:?}: want 32 lower-case hex digits")]
pub struct ParseChangeError(String);

impl ChangeId {
    pub fn of(content: &Content<'_>) -> Self {
        let Content {
            template,
            bundle,
            path,
            origin,
            parameters,
            configuration,
        } = *content;
        let mut parts = vec![
            json!(template),
            json!(bundle),
            json!(path),
            json!(origin),
            json!(parameters),
        ];
        // Most members have no configuration; leaving it out keeps the ids they already have.
        if !configuration.is_empty() {
            parts.push(json!(configuration));
        }
        let digest = Digest::of_json(&json!(parts));
        let mut id = [0; 16];
        id.copy_from_slice(&digest.as_bytes()[..16]);
        Self(id)
    }
}

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ChangeId {
    type Err = ParseChangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseChangeError(text.chars().take(40).collect());
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(error());
        }
        let mut id = [0; 16];
        hex::decode_to_slice(text, &mut id).map_err(|_| error())?;
        Ok(Self(id))
    }
}

impl Serialize for ChangeId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ChangeId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_it_is_made_of_changes_the_id() {
        let (none, some) = (
            BTreeMap::new(),
            BTreeMap::from([("imageTag".to_owned(), "2".to_owned())]),
        );
        let content = Content {
            template: Digest::of("template"),
            bundle: Digest::of("bundle"),
            path: "apps/web",
            origin: None,
            parameters: None,
            configuration: &none,
        };
        let others = [
            Content {
                template: Digest::of("x"),
                ..content
            },
            Content {
                bundle: Digest::of("x"),
                ..content
            },
            Content { path: "x", ..content },
            Content {
                origin: Some("x"),
                ..content
            },
            Content {
                parameters: Some(Digest::of("x")),
                ..content
            },
            Content {
                configuration: &some,
                ..content
            },
        ];
        let id = ChangeId::of(&content);
        assert!(others.iter().all(|other| ChangeId::of(other) != id));
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<ChangeId>(&text).unwrap(), id);
        for wrong in ["", "0", &id.to_string().to_uppercase(), &format!("{id}0")] {
            assert!(wrong.parse::<ChangeId>().is_err(), "{wrong}");
        }
    }
}
