//! Credentials for the remotes of a source: its own, those that its namespace shares by prefix, or those that an
//! administrator's program returns.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use farwater_api::{
    ADMIN_NAMESPACE, GitRepositorySpec, SOURCE_CREDENTIALS, URL_PREFIX, git_repository::LocalReference,
};
use farwater_fleet::duration::SOURCE_TIMEOUT;
use farwater_sources::{Address, Program, ProgramRule, Remote, SecretData, UrlPrefix};
use farwater_store::{ListQuery, Store, StoreError};
use k8s_openapi::ByteString;
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    git::SourceFailure,
    resources::{self, Name},
};
use crate::delivery::Delivery;

pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
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
    is_shared(secret).then(|| secret["metadata"]["annotations"][URL_PREFIX].as_str()).flatten()
}

impl SharedCredentials {
    /// The Secret that serves an address: the one with the longest prefix, and of several the first by name.
    async fn find(&self, store: &Store, namespace: &str, url: &str) -> Result<Option<String>, StoreError> {
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
        let best = serving.reduce(|best, next| if next.prefix.length() > best.prefix.length() { next } else { best });
        Ok(best.map(|shared| shared.secret.clone()))
    }

    /// A Secret was written or deleted. Returns whether it serves a prefix, or did.
    pub fn note(&self, name: &Name, secret: &Value) -> bool {
        let mut state = self.state();
        let did = state.known.get(&name.namespace).is_some_and(|all| all.iter().any(|one| one.secret == name.name));
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
        let query = ListQuery { namespace, limit: PAGE, after, ..ListQuery::all(resources::secrets()) };
        let page = store.list(&query).await?;
        for secret in page.items {
            // Skip a Secret that is older than prefixes and that admission did not check.
            let prefix = read_prefix(&secret.object).and_then(|text| UrlPrefix::parse(text).ok());
            found.extend(prefix.map(|prefix| Shared { prefix, secret: secret.key.name.clone() }));
        }
        after = page.next;
        if after.is_none() {
            found.sort_by(|a, b| a.secret.cmp(&b.secret));
            return Ok(found);
        }
    }
}

/// How the remotes of a source are reached.
pub struct Way {
    namespace: String,
    /// Address of the source itself.
    url: String,
    secret: Option<SecretData>,
    proxy: Option<SecretData>,
    /// Time limit of each step.
    pub timeout: Duration,
    /// No resource states this source, so it must be in the public internet.
    pub is_public: bool,
}

impl Way {
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub async fn load(delivery: &Delivery, namespace: &str, spec: &GitRepositorySpec) -> Result<Self, SourceFailure> {
        let load = async |reference: &Option<LocalReference>| match reference {
            Some(reference) => load_secret(delivery, &Name::new(namespace, &reference.name)).await.map(Some),
            None => Ok(None),
        };
        Ok(Self {
            namespace: namespace.to_owned(),
            url: spec.url.clone(),
            secret: load(&spec.secret_ref).await?,
            proxy: load(&spec.proxy_secret_ref).await?,
            timeout: SOURCE_TIMEOUT.check(&spec.timeout).unwrap_or(DEFAULT_TIMEOUT),
            is_public: false,
        })
    }

    /// The remote of the source itself.
    pub async fn own(&self, delivery: &Delivery) -> Result<Remote, SourceFailure> {
        self.to(delivery, &self.url).await
    }

    /// A remote of the source: its own, or a submodule's. The source's own Secret is used for its own host only.
    pub async fn to(&self, delivery: &Delivery, url: &str) -> Result<Remote, SourceFailure> {
        let invalid = |reason, error: &dyn std::fmt::Display| SourceFailure::lasting(reason, error.to_string());
        let address = Address::parse(url).map_err(|error| invalid("SpecInvalid", &error))?;
        let is_own =
            Address::parse(&self.url).is_ok_and(|own| own.origin() == address.origin() && own.user() == address.user());
        let mut secret = self.secret.as_ref().filter(|_| is_own).cloned();
        if secret.is_none() {
            secret = shared_secret(delivery, &self.namespace, url).await?;
        }
        let reason = if secret.is_some() { "SecretInvalid" } else { "SpecInvalid" };
        let mut remote = Remote::new(url, secret.as_ref()).map_err(|error| invalid(reason, &error))?;
        if self.is_public {
            remote = remote.public();
        } else if let Ok(own) = Address::parse(&self.url) {
            remote = remote.linked(&own);
        }
        // A web proxy does not apply to a submodule that is reached by ssh.
        if let Some(proxy) = self.proxy.as_ref().filter(|_| url == self.url || remote.is_http()) {
            remote = remote.with_proxy(proxy).map_err(|error| invalid("SecretInvalid", &error))?;
        }
        match choose_program(&delivery.mirrors.programs, url, &self.namespace) {
            Some(program) => Ok(remote.with_program(program)),
            None => Ok(remote),
        }
    }
}

fn choose_program(rules: &[ProgramRule], url: &str, namespace: &str) -> Option<Arc<Program>> {
    Program::choose(rules, url, namespace, ADMIN_NAMESPACE)
}

/// The Secret of a namespace that serves an address by prefix.
pub async fn shared_secret(
    delivery: &Delivery,
    namespace: &str,
    url: &str,
) -> Result<Option<SecretData>, SourceFailure> {
    match delivery.shared.find(&delivery.store, namespace, url).await.map_err(store_failed)? {
        Some(shared) => load_secret(delivery, &Name::new(namespace, &shared)).await.map(Some),
        None => Ok(None),
    }
}

pub fn store_failed(error: StoreError) -> SourceFailure {
    SourceFailure::passing("StoreFailed", super::chain(&error))
}

pub async fn load_secret(delivery: &Delivery, name: &Name) -> Result<SecretData, SourceFailure> {
    let secret = resources::load_secret(&delivery.store, name).await.map_err(store_failed)?;
    let Some(secret) = secret else {
        return Err(SourceFailure::lasting("SecretNotFound", format!("Secret {} does not exist", name.name)));
    };
    let data = &secret.object["data"];
    if data.is_null() {
        return Ok(SecretData::new());
    }
    let data = BTreeMap::<String, ByteString>::deserialize(data).map_err(|_| {
        SourceFailure::lasting("SecretUnreadable", format!("Secret {} holds data that is not base64", name.name))
    })?;
    Ok(data.into_iter().map(|(key, value)| (key, value.0)).collect())
}

/// Whether a source may use a Secret: it names the Secret, or a prefix serves what it fetches. A submodule may be
/// anywhere.
pub fn may_use(spec: &Value, secret: &str, is_shared: bool, prefix: Option<&UrlPrefix>) -> bool {
    let fields = ["secretRef", "certSecretRef", "proxySecretRef"].map(|field| &spec[field]);
    if fields.into_iter().chain([&spec["verify"]["secretRef"]]).any(|field| field["name"] == secret) {
        return true;
    }
    // If a Secret served another prefix before, that prefix is no longer known.
    let is_served = || prefix.is_none_or(|prefix| spec["url"].as_str().is_some_and(|url| prefix.covers(url)));
    is_shared && (spec["recurseSubmodules"] == true || (spec["secretRef"].is_null() && is_served()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_concerns_the_sources_that_it_could_serve() {
        let prefix = UrlPrefix::parse("https://h/team").unwrap();
        let check = |spec: Value, is_shared: bool, prefix: Option<&UrlPrefix>, expected: bool| {
            assert_eq!(may_use(&spec, "git", is_shared, prefix), expected, "{spec}");
        };
        check(json!({"secretRef": {"name": "git"}}), false, None, true);
        check(json!({"proxySecretRef": {"name": "git"}}), false, None, true);
        check(json!({"verify": {"secretRef": {"name": "git"}}}), false, None, true);
        check(json!({"secretRef": {"name": "other"}, "url": "https://h/team/a"}), true, Some(&prefix), false);
        check(json!({"url": "https://h/team/a"}), true, Some(&prefix), true);
        check(json!({"url": "https://h/other/a"}), true, Some(&prefix), false);
        check(json!({"url": "https://h/other/a"}), true, None, true);
        check(json!({"url": "https://h/other/a", "recurseSubmodules": true}), true, Some(&prefix), true);
        check(json!({"url": "https://h/team/a"}), false, Some(&prefix), false);
    }

    #[test]
    fn what_was_read_before_a_change_is_not_remembered_after_it() {
        let shared = SharedCredentials::default();
        shared.state().known.insert("a".to_owned(), Arc::default());
        let secret = |kind: &str| json!({"type": kind});
        assert!(!shared.note(&Name::new("a", "x"), &secret("Opaque")));
        assert!(shared.state().known.contains_key("a"));
        let before = shared.state().changes;
        assert!(shared.note(&Name::new("a", "x"), &secret(SOURCE_CREDENTIALS)));
        assert!(!shared.state().known.contains_key("a") && shared.state().changes > before);
        let prefix = UrlPrefix::parse("https://h").unwrap();
        let one = Shared { prefix, secret: "x".to_owned() };
        shared.state().known.insert("a".to_owned(), Arc::new(vec![one]));
        assert!(shared.note(&Name::new("a", "x"), &json!({})), "it served a prefix before it was deleted");
    }
}
