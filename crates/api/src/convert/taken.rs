//! Names that are in use, so that no object overwrites the result of another.

use std::collections::BTreeMap;

use super::NotConverted;

/// Owners by kind, namespace and name.
#[derive(Debug, Default)]
pub(super) struct Taken(BTreeMap<(String, String, String), Owner>);

#[derive(Debug)]
struct Owner {
    /// Equal for objects that may share the name.
    key: String,
    /// Origin, for people.
    shown: String,
}

impl Taken {
    /// Claims a name. Fails if it has another owner already. `key` is equal for objects that may share the name;
    /// `shown` is the origin, for messages.
    pub fn claim(&mut self, (kind, namespace, name): Place<'_>, key: &str, shown: &str) -> Result<(), NotConverted> {
        let owner = || Owner {
            key: key.to_owned(),
            shown: shown.to_owned(),
        };
        let known = self
            .0
            .entry((kind.to_owned(), namespace.to_owned(), name.to_owned()))
            .or_insert_with(owner);
        if known.key == key {
            return Ok(());
        }
        let why = format!(
            "{kind} {namespace}/{name} is what {} becomes; convert one of them by itself, with another --namespace or --name-suffix",
            known.shown
        );
        Err(NotConverted::impossible("metadata.name", why))
    }

    /// Whether the name is free, or has this key.
    pub fn is_free_for(&self, (kind, namespace, name): Place<'_>, key: &str) -> bool {
        let place = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        self.0.get(&place).is_none_or(|known| known.key == key)
    }
}

/// Kind, namespace and name.
pub(super) type Place<'a> = (&'a str, &'a str, &'a str);
