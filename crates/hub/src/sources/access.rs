//! Credentials for the remotes of a source: its own, those that its namespace shares by prefix, or those that an
//! administrator's program returns.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use farwater_api::{ADMIN_NAMESPACE, GitRepositorySpec, git_repository::LocalReference};
use farwater_fleet::duration::SOURCE_TIMEOUT;
use farwater_sources::{Address, Program, ProgramRule, Remote, SecretData, UrlPrefix};
use farwater_store::StoreError;
use k8s_openapi::ByteString;
use serde::Deserialize as _;
use serde_json::Value;

use crate::{
    errors::SourceFailure,
    replica::Replica,
    resources::{self, Name},
};

pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

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

    pub async fn load(replica: &Replica, namespace: &str, spec: &GitRepositorySpec) -> Result<Self, SourceFailure> {
        let load = async |reference: &Option<LocalReference>| match reference {
            Some(reference) => load_secret(replica, &Name::new(namespace, &reference.name))
                .await
                .map(Some),
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
    pub async fn own(&self, replica: &Replica) -> Result<Remote, SourceFailure> {
        self.to(replica, &self.url).await
    }

    /// A remote of the source: its own, or a submodule's. The source's own Secret is used for its own host only.
    pub async fn to(&self, replica: &Replica, url: &str) -> Result<Remote, SourceFailure> {
        let invalid = |reason, error: &dyn std::fmt::Display| SourceFailure::lasting(reason, error.to_string());
        let address = Address::parse(url).map_err(|error| invalid("SpecInvalid", &error))?;
        let is_own =
            Address::parse(&self.url).is_ok_and(|own| own.origin() == address.origin() && own.user() == address.user());
        let mut secret = self.secret.as_ref().filter(|_| is_own).cloned();
        if secret.is_none() {
            secret = shared_secret(replica, &self.namespace, url).await?;
        }
        let reason = if secret.is_some() {
            "SecretInvalid"
        } else {
            "SpecInvalid"
        };
        let mut remote = Remote::new(url, secret.as_ref()).map_err(|error| invalid(reason, &error))?;
        if self.is_public {
            remote = remote.public();
        } else if let Ok(own) = Address::parse(&self.url) {
            remote = remote.linked(&own);
        }
        // A web proxy does not apply to a submodule that is reached by ssh.
        if let Some(proxy) = self.proxy.as_ref().filter(|_| url == self.url || remote.is_http()) {
            remote = remote
                .with_proxy(proxy)
                .map_err(|error| invalid("SecretInvalid", &error))?;
        }
        match choose_program(&replica.access.mirrors.programs, url, &self.namespace) {
            Some(program) => Ok(remote.with_program(program)),
            None => Ok(remote),
        }
    }
}

fn choose_program(rules: &[ProgramRule], url: &str, namespace: &str) -> Option<Arc<Program>> {
    Program::choose(rules, url, namespace, ADMIN_NAMESPACE)
}

/// The Secret of a namespace that serves an address by prefix.
pub async fn shared_secret(replica: &Replica, namespace: &str, url: &str) -> Result<Option<SecretData>, SourceFailure> {
    match replica
        .access
        .credentials
        .find(&replica.store, namespace, url)
        .await
        .map_err(store_failed)?
    {
        Some(shared) => load_secret(replica, &Name::new(namespace, &shared)).await.map(Some),
        None => Ok(None),
    }
}

pub fn store_failed(error: StoreError) -> SourceFailure {
    SourceFailure::passing("StoreFailed", crate::errors::chain(&error))
}

pub async fn load_secret(replica: &Replica, name: &Name) -> Result<SecretData, SourceFailure> {
    let secret = resources::load_secret(&replica.store, name)
        .await
        .map_err(store_failed)?;
    let Some(secret) = secret else {
        return Err(SourceFailure::lasting(
            "SecretNotFound",
            format!("Secret {} does not exist", name.name),
        ));
    };
    let data = &secret.object["data"];
    if data.is_null() {
        return Ok(SecretData::new());
    }
    let data = BTreeMap::<String, ByteString>::deserialize(data).map_err(|_| {
        SourceFailure::lasting(
            "SecretUnreadable",
            format!("Secret {} holds data that is not base64", name.name),
        )
    })?;
    Ok(data.into_iter().map(|(key, value)| (key, value.0)).collect())
}

/// Whether a source may use a Secret: it names the Secret, or a prefix serves what it fetches. A submodule may be
/// anywhere.
pub fn may_use(spec: &Value, secret: &str, is_shared: bool, prefix: Option<&UrlPrefix>) -> bool {
    let fields = ["secretRef", "certSecretRef", "proxySecretRef"].map(|field| &spec[field]);
    if fields
        .into_iter()
        .chain([&spec["verify"]["secretRef"]])
        .any(|field| field["name"] == secret)
    {
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
        check(
            json!({"secretRef": {"name": "other"}, "url": "https://h/team/a"}),
            true,
            Some(&prefix),
            false,
        );
        check(json!({"url": "https://h/team/a"}), true, Some(&prefix), true);
        check(json!({"url": "https://h/other/a"}), true, Some(&prefix), false);
        check(json!({"url": "https://h/other/a"}), true, None, true);
        check(
            json!({"url": "https://h/other/a", "recurseSubmodules": true}),
            true,
            Some(&prefix),
            true,
        );
        check(json!({"url": "https://h/team/a"}), false, Some(&prefix), false);
    }
}
