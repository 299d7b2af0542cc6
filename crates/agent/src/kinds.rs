//! The kinds that the cluster serves, and their names in the API.
//!
//! Discovery is requested per group and version that a service uses: the whole discovery of a cluster with hundreds of
//! definitions is megabytes that the agent doesn't need.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use farwater_fleet::plan::{GroupVersionKind, Scopes};
use serde_json::Value;

use crate::{
    kubernetes::{ApiError, Kubernetes, Resource},
    sync::lock,
};

type GroupVersion = (String, String);

/// A cache of discovery. Kinds are only added. A kind that vanished answers 404 when used, and is removed then.
pub struct Kinds {
    known: Mutex<BTreeMap<GroupVersionKind, Resource>>,
    /// Kinds with a status subresource.
    with_status: Mutex<BTreeSet<GroupVersionKind>>,
    grace_seconds: i64,
}

impl Kinds {
    /// `grace`: time that controllers have to write the first status of an object.
    pub fn new(grace: Duration) -> Self {
        let grace_seconds = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        Self {
            known: Mutex::default(),
            with_status: Mutex::default(),
            grace_seconds,
        }
    }

    pub fn grace_seconds(&self) -> i64 {
        self.grace_seconds
    }

    /// Discovers kinds that are not known yet. An error means that nothing is known about a kind, not that it is
    /// missing.
    pub async fn learn(
        &self,
        kubernetes: &Kubernetes,
        wanted: impl IntoIterator<Item = GroupVersionKind>,
    ) -> Result<(), ApiError> {
        let missing: BTreeSet<GroupVersion> = {
            let known = lock(&self.known);
            wanted
                .into_iter()
                .filter(|gvk| !known.contains_key(gvk))
                .map(|gvk| (gvk.group, gvk.version))
                .collect()
        };
        for (group, version) in missing {
            let path = if group.is_empty() {
                format!("/api/{}", crate::kubernetes::escape(&version))
            } else {
                format!(
                    "/apis/{}/{}",
                    crate::kubernetes::escape(&group),
                    crate::kubernetes::escape(&version)
                )
            };
            match kubernetes.get(None, &path, false).await {
                Ok(list) => self.add(&group, &version, &list),
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn add(&self, group: &str, version: &str, list: &Value) {
        let mut known = lock(&self.known);
        for resource in list["resources"].as_array().into_iter().flatten() {
            let (Some(plural), Some(kind)) = (resource["name"].as_str(), resource["kind"].as_str()) else {
                continue;
            };
            let gvk = GroupVersionKind {
                group: group.into(),
                version: version.into(),
                kind: kind.into(),
            };
            if plural.ends_with("/status") {
                lock(&self.with_status).insert(gvk.clone());
            }
            let can_apply = resource["verbs"]
                .as_array()
                .is_some_and(|verbs| verbs.iter().any(|v| v == "patch"));
            if plural.contains('/') || !can_apply {
                continue;
            }
            let found = Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: kind.to_owned(),
                plural: plural.to_owned(),
                namespaced: resource["namespaced"] == true,
            };
            known.insert(gvk, found);
        }
    }

    pub fn get(&self, gvk: &GroupVersionKind) -> Option<Resource> {
        lock(&self.known).get(gvk).cloned()
    }

    /// Removes a kind whose collection answered 404.
    pub fn forget(&self, gvk: &GroupVersionKind) {
        lock(&self.known).remove(gvk);
    }

    /// Whether such objects have a status that a controller may write.
    pub fn has_status(&self, gvk: &GroupVersionKind) -> bool {
        lock(&self.with_status).contains(gvk)
    }

    pub fn scopes(&self, wanted: impl IntoIterator<Item = GroupVersionKind>) -> Scopes {
        let known = lock(&self.known);
        wanted
            .into_iter()
            .filter_map(|gvk| known.get(&gvk).map(|r| (gvk, r.scope())))
            .collect()
    }
}

/// How the objects of a kind are served now, in whichever version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    As(Resource),
    /// The API server answered, and has no such kind: there can be no such object.
    No,
}

impl Kinds {
    /// Finds a kind in its own version, otherwise in any other of its group.
    pub async fn find(&self, kubernetes: &Kubernetes, gvk: &GroupVersionKind) -> Result<Served, ApiError> {
        self.learn(kubernetes, [gvk.clone()]).await?;
        if let Some(resource) = self.get(gvk) {
            return Ok(Served::As(resource));
        }
        if gvk.group.is_empty() {
            return Ok(Served::No);
        }
        let group = match kubernetes
            .get(None, &format!("/apis/{}", crate::kubernetes::escape(&gvk.group)), false)
            .await
        {
            Ok(group) => group,
            Err(e) if e.is_not_found() => return Ok(Served::No),
            Err(e) => return Err(e),
        };
        for version in group["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| v["version"].as_str())
        {
            let other = GroupVersionKind {
                version: version.to_owned(),
                ..gvk.clone()
            };
            self.learn(kubernetes, [other.clone()]).await?;
            if let Some(resource) = self.get(&other) {
                return Ok(Served::As(resource));
            }
        }
        Ok(Served::No)
    }
}
