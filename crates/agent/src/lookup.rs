//! Looks up the objects that a plan is about.

use std::collections::BTreeMap;

use farwater_api::{SERVICE_LABEL, protocol::ServiceAccount};
use farwater_fleet::{
    ownership::service_label,
    plan::{GroupVersionKind, Live, ObjectKey, Writer},
};
use futures::{StreamExt as _, stream};

use crate::{
    kinds::{Kinds, Served},
    kubernetes::{ApiError, Kubernetes, Resource},
    live::{last_writer, live_object},
};

/// Up to this many names of one kind and namespace are read one by one; more are found in one list.
const SINGLY: usize = 8;
const PARALLEL: usize = 16;

/// An object to look up.
#[derive(Clone, Debug)]
pub struct Query {
    pub key: ObjectKey,
    pub version: String,
    /// If it exists it has our label, so a list by label finds it.
    pub labelled: bool,
}

pub struct Lookup<'a> {
    pub kubernetes: &'a Kubernetes,
    pub kinds: &'a Kinds,
    pub account: &'a ServiceAccount,
    pub service_uid: &'a str,
}

impl Lookup<'_> {
    /// Looks up all of them, in as few requests as possible.
    pub async fn run(&self, queries: Vec<Query>) -> BTreeMap<ObjectKey, Live> {
        let mut found = BTreeMap::new();
        let mut groups: BTreeMap<(Resource, String, bool), Vec<ObjectKey>> = BTreeMap::new();
        for query in queries {
            let gvk = GroupVersionKind {
                group: query.key.group().to_owned(),
                version: query.version,
                kind: query.key.kind().to_owned(),
            };
            match self.kinds.find(self.kubernetes, &gvk).await {
                Ok(Served::As(resource)) => {
                    let place = (resource, query.key.namespace().to_owned(), query.labelled);
                    groups.entry(place).or_default().push(query.key);
                }
                Ok(Served::No) => {
                    found.insert(query.key, Live::Absent);
                }
                Err(error) => {
                    found.insert(query.key, Live::Unknown(error.to_string()));
                }
            }
        }

        let mut singly = Vec::new();
        for ((resource, namespace, labelled), keys) in groups {
            let mut rest = keys;
            if rest.len() > SINGLY {
                rest = self
                    .find_in_list(&resource, &namespace, labelled, rest, &mut found)
                    .await;
            }
            singly.extend(rest.into_iter().map(|key| (resource.clone(), key)));
        }
        let gets: Vec<_> = singly
            .into_iter()
            .map(|(resource, key)| self.get_one(resource, key))
            .collect();
        let answers: Vec<_> = stream::iter(gets).buffer_unordered(PARALLEL).collect().await;
        found.extend(answers);
        found
    }

    async fn get_one(&self, resource: Resource, key: ObjectKey) -> (ObjectKey, Live) {
        let (live, _) = self.get(&resource, &key).await;
        (key, live)
    }

    /// Reads an object of a kind that may no longer be served, and its last writer if that was not us.
    pub async fn find(&self, gvk: &GroupVersionKind, key: &ObjectKey) -> (Live, Option<Box<Writer>>) {
        match self.kinds.find(self.kubernetes, gvk).await {
            Ok(Served::As(resource)) => self.get(&resource, key).await,
            Ok(Served::No) => (Live::Absent, None),
            Err(error) => (Live::Unknown(error.to_string()), None),
        }
    }

    /// Reads an object, and its last writer if that was not us.
    pub async fn get(&self, resource: &Resource, key: &ObjectKey) -> (Live, Option<Box<Writer>>) {
        let path = resource.path(key.namespace(), key.name());
        match self.kubernetes.get(Some(self.account), &path, true).await {
            Ok(object) => (Live::Present(live_object(&object)), last_writer(&object["metadata"])),
            Err(error) => (missing(&error), None),
        }
    }

    /// Reads one list. Returns the names that it leaves open. A list without a label selector proves absence; one by
    /// label doesn't, because the label may have been removed.
    async fn find_in_list(
        &self,
        resource: &Resource,
        namespace: &str,
        labelled: bool,
        keys: Vec<ObjectKey>,
        found: &mut BTreeMap<ObjectKey, Live>,
    ) -> Vec<ObjectKey> {
        let selector = if labelled {
            format!("{SERVICE_LABEL}={}", service_label(self.service_uid))
        } else {
            String::new()
        };
        let mut listed = BTreeMap::new();
        let collection = resource.collection(namespace);
        let result = self
            .kubernetes
            .list(Some(self.account), &collection, &selector, true, |object| {
                let metadata = &object["metadata"];
                let place = metadata["namespace"].as_str().unwrap_or_default();
                if let Some(name) = metadata["name"].as_str().filter(|_| place == namespace) {
                    listed.insert(name.to_owned(), live_object(&object));
                }
            })
            .await;
        let complete = result.is_ok() && !labelled;

        // If the API server is too busy for a list, its objects are not read one by one either.
        let passing = result.err().filter(ApiError::is_passing);
        let mut open = Vec::new();
        for key in keys {
            match listed.remove(key.name()) {
                Some(live) => {
                    found.insert(key, Live::Present(live));
                }
                None if complete => {
                    found.insert(key, Live::Absent);
                }
                None => match &passing {
                    Some(error) => {
                        found.insert(key, Live::Unknown(error.to_string()));
                    }
                    None => open.push(key),
                },
            }
        }
        open
    }
}

fn missing(error: &ApiError) -> Live {
    if error.is_not_found() {
        Live::Absent
    } else if error.is_forbidden() {
        Live::Forbidden(error.to_string())
    } else {
        Live::Unknown(error.to_string())
    }
}
