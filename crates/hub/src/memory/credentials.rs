//! Which Secrets serve the sources below a prefix.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use farwater_api::{SOURCE_CREDENTIALS, URL_PREFIX};
use farwater_sources::UrlPrefix;
use farwater_store::{ListQuery, Store, StoreError};
use serde_json::Value;

use crate::resources::{self, Name};

/// Secrets per page.
const PAGE: usize = 200;

/// The Secrets of each namespace, by the prefix of the addresses that they serve. Only names and prefixes are kept; the
/// Secrets are read when they are needed.
#[derive(Default)]
pub struct SharedCredentials(Mutex<State>);

#[derive(Default)]
struct State {
    known: HashMap<String, Arc<Vec<Shared>>>,
    /// Counts invalidations, so that a list that was read before one is not kept after it.
    changes: u64,
}

struct Shared {
    prefix: UrlPrefix,
    secret: String,
}

/// Whether a Secret serves all sources of its namespace below a prefix.
pub fn is_shared(secret: &Value) -> bool {
    secret["type"] == SOURCE_CREDENTIALS
}

/// The prefix that a Secret serves; None: it serves none.
pub fn read_prefix(secret: &Value) -> Option<&str> {
    is_shared(secret)
        .then(|| secret["metadata"]["annotations"][URL_PREFIX].as_str())
        .flatten()
}

impl SharedCredentials {
    /// The Secret that serves an address: the one with the longest prefix, and of several the first by name.
    pub async fn find(&self, store: &Store, namespace: &str, url: &str) -> Result<Option<String>, StoreError> {
        let known = self.state().known.get(namespace).cloned();
        let shared = match known {
            Some(shared) => shared,
            None => {
                let before = self.state().changes;
                let shared = Arc::new(list(store, namespace).await?);
                let mut state = self.state();
                if state.changes == before {
                    state.known.insert(namespace.to_owned(), Arc::clone(&shared));
                }
                shared
            }
        };
        let serving = shared.iter().filter(|shared| shared.prefix.covers(url));
        let best = serving.reduce(|best, next| {
            if next.prefix.length() > best.prefix.length() {
                next
            } else {
                best
            }
        });
        Ok(best.map(|shared| shared.secret.clone()))
    }

    /// A Secret was written or deleted. Returns whether it serves a prefix, or did.
    pub fn note_secret(&self, name: &Name, secret: &Value) -> bool {
        let mut state = self.state();
        let did = state
            .known
            .get(&name.namespace)
            .is_some_and(|all| all.iter().any(|one| one.secret == name.name));
        let concerns = did || is_shared(secret);
        if concerns {
            state.changes += 1;
            state.known.remove(&name.namespace);
        }
        concerns
    }

    /// Call this after changes that may have been missed.
    pub fn forget_all(&self) {
        let mut state = self.state();
        state.changes += 1;
        state.known.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn list(store: &Store, namespace: &str) -> Result<Vec<Shared>, StoreError> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let namespace = Some(namespace.to_owned());
        let query = ListQuery {
            namespace,
            limit: PAGE,
            after,
            ..ListQuery::all(resources::secrets())
        };
        let page = store.list(&query).await?;
        for secret in page.items {
            // Skip a Secret that is older than prefixes and that admission did not check.
            let prefix = read_prefix(&secret.object).and_then(|text| UrlPrefix::parse(text).ok());
            found.extend(prefix.map(|prefix| Shared {
                prefix,
                secret: secret.key.name.clone(),
            }));
        }
        after = page.next;
        if after.is_none() {
            found.sort_by(|a, b| a.secret.cmp(&b.secret));
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_read_before_a_change_is_not_remembered_after_it() {
        let shared = SharedCredentials::default();
        shared.state().known.insert("a".to_owned(), Arc::default());
        let secret = |kind: &str| json!({"type": kind});
        assert!(!shared.note_secret(&Name::new("a", "x"), &secret("Opaque")));
        assert!(shared.state().known.contains_key("a"));
        let before = shared.state().changes;
        assert!(shared.note_secret(&Name::new("a", "x"), &secret(SOURCE_CREDENTIALS)));
        assert!(!shared.state().known.contains_key("a") && shared.state().changes > before);
        let prefix = UrlPrefix::parse("https://h").unwrap();
        let one = Shared {
            prefix,
            secret: "x".to_owned(),
        };
        shared.state().known.insert("a".to_owned(), Arc::new(vec![one]));
        assert!(
            shared.note_secret(&Name::new("a", "x"), &json!({})),
            "it served a prefix before it was deleted"
        );
    }
}
