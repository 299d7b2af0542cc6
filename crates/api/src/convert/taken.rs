//! Which names are taken, so that nothing that comes of one object takes the place of another's.

use std::collections::BTreeMap;

use super::NotConverted;

/// By kind, namespace and name of ours.
#[derive(Debug, Default)]
pub(super) struct Taken(BTreeMap<(String, String, String), Owner>);

#[derive(Debug)]
struct Owner {
    /// Equal for what may share the name.
    key: String,
    /// For people.
    shown: String,
}

impl Taken {
    /// An error if the name is another one's already. `key` is equal for what may share it; `shown` says what it comes of.
    pub fn claim(&mut self, (kind, namespace, name): Place<'_>, key: &str, shown: &str) -> Result<(), NotConverted> {
        let owner = || Owner { key: key.to_owned(), shown: shown.to_owned() };
        let known = self.0.entry((kind.to_owned(), namespace.to_owned(), name.to_owned())).or_insert_with(owner);
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
