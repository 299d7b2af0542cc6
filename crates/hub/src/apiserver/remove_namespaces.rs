//! Empties namespaces that are terminating, then removes them.
//!
//! Woken by changes of namespaces and by a timer; each pass reads everything again. Objects can't be created in a
//! terminating namespace (`write::insert` checks that in its transaction), so a namespace that was found empty stays
//! empty.

use std::{collections::BTreeMap, future::ready, sync::Arc, time::Duration};

use farwater_store::{Change, Kind, ListQuery, Resource, Store, StoreError, Write, WriteError};
use futures::StreamExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::delete::remove_quietly;
use crate::{
    Hub,
    kinds::{
        REGISTRY, ResourceKind,
        managers::manage,
        meta::{self, timestamp},
        removal::is_held,
    },
};

/// Pause between passes while contents of a namespace wait for their finalizers.
const PAUSE: Duration = Duration::from_secs(1);
const PAGE: usize = 500;
const CONTENT: &str = "NamespaceContentRemaining";
const FINALIZERS: &str = "NamespaceFinalizersRemaining";

/// Runs until it is dropped.
pub async fn remove_namespaces(hub: Arc<Hub>) {
    let store = &hub.store;
    let namespaces = Kind::new("namespaces", "");
    loop {
        let from = store.position();
        let left = match pass(store).await {
            Ok(left) => left,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "terminating namespaces can't be looked at"
                );
                true
            }
        };
        if left {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        if let Ok(mut changes) = store.watch(Some(namespaces.clone()), from) {
            // An error means that changes were missed, so look again.
            if changes.next().await.is_none() {
                return;
            }
        }
    }
}

fn all(kind: &ResourceKind, namespace: Option<&str>) -> ListQuery {
    ListQuery {
        namespace: namespace.map(str::to_owned),
        limit: PAGE,
        ..ListQuery::all(kind.store.clone())
    }
}

fn namespace_kind() -> Option<&'static ResourceKind> {
    REGISTRY.find("", "v1", "namespaces")
}

/// One pass over all terminating namespaces. Returns whether any is left.
async fn pass(store: &Store) -> Result<bool, StoreError> {
    let Some(kind) = namespace_kind() else { return Ok(false) };
    let (mut query, mut left) = (all(kind, None), false);
    loop {
        let page = store.list(&query).await?;
        for namespace in page.items {
            if namespace.object["metadata"].get("deletionTimestamp").is_some() {
                left |= !remove_one(store, namespace).await?;
            }
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(left),
        }
    }
}

/// The contents that a namespace still waits for, counted as in Kubernetes.
#[derive(Debug, Default, PartialEq)]
struct Remaining {
    /// By `resource.group`.
    objects: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

impl Remaining {
    fn count(&mut self, kind: &ResourceKind, object: &Value) {
        *self
            .objects
            .entry(format!("{}.{}", kind.plural, kind.group))
            .or_default() += 1;
        for finalizer in meta::finalizers(object) {
            *self.finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
}

/// Calls `act` with each object of a kind in a namespace, page by page.
async fn for_each<F>(
    store: &Store,
    kind: &ResourceKind,
    namespace: &str,
    mut act: impl FnMut(Resource) -> F,
) -> Result<(), StoreError>
where
    F: Future<Output = Result<(), StoreError>>,
{
    let mut query = all(kind, Some(namespace));
    loop {
        let page = store.list(&query).await?;
        for resource in page.items {
            act(resource).await?;
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(()),
        }
    }
}

/// Deletes a namespace's contents, and then the namespace. True once it is gone.
async fn remove_one(store: &Store, namespace: Resource) -> Result<bool, StoreError> {
    let name = namespace.key.name.clone();
    let mut remaining = Remaining::default();
    for kind in REGISTRY.kinds.iter().filter(|k| k.is_kept() && k.namespaced) {
        for_each(store, kind, &name, |resource| {
            remove_quietly(store, kind, resource, Timestamp::now())
        })
        .await?;
        for_each(store, kind, &name, |resource| {
            remaining.count(kind, &resource.object);
            ready(Ok(()))
        })
        .await?;
    }
    let change = next_step(&namespace, &remaining, Timestamp::now());
    let gone = matches!(change, Change::Delete { .. });
    match store
        .write(Write {
            key: namespace.key.clone(),
            change,
        })
        .await
    {
        Ok(_) => Ok(gone),
        Err(WriteError::Missing) => Ok(true),
        Err(WriteError::Conflict { .. } | WriteError::Exists) => Ok(false),
        Err(WriteError::Store(error)) => Err(error),
    }
}

/// The next write of a namespace: conditions about its contents while there are any; then it is held only by its own
/// finalizers.
fn next_step(namespace: &Resource, remaining: &Remaining, now: Timestamp) -> Change {
    let (uid, version, kind) = (namespace.uid.clone(), namespace.version, &namespace.key.kind);
    let told = explained(&namespace.object, remaining, now);
    let told = manage(kind, "status", Some(&namespace.object), told, now);
    if !remaining.objects.is_empty() {
        return Change::Replace {
            uid,
            version,
            object: told,
        };
    }
    let mut freed = told.clone();
    meta::retain(&mut freed["spec"], "finalizers", |finalizer| finalizer != "kubernetes");
    match namespace_kind() {
        Some(kind) if !is_held(&freed, kind) => Change::Delete { uid, version },
        _ => Change::Replace {
            uid,
            version,
            object: manage(kind, "finalize", Some(&told), freed, now),
        },
    }
}

/// Types of conditions, in order, with the reason and message if they don't hold
/// (`k8s.io/kubernetes/pkg/controller/namespace/deletion/status_condition_utils.go`).
const CONDITIONS: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    (CONTENT, "ContentRemoved", "All content successfully removed"),
    (
        FINALIZERS,
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];

fn listed(counts: &BTreeMap<String, usize>, word: &str) -> String {
    let lines = counts
        .iter()
        .map(|(name, count)| format!("{name} {word} {count} resource instances"));
    lines.collect::<Vec<_>>().join(", ")
}

/// The namespace with conditions that say what holds it.
fn explained(namespace: &Value, remaining: &Remaining, now: Timestamp) -> Value {
    let mut object = namespace.clone();
    let old = |kind: &str| {
        namespace["status"]["conditions"]
            .as_array()?
            .iter()
            .find(|c| c["type"] == kind)
    };
    let conditions: Vec<Value> = CONDITIONS
        .into_iter()
        .map(|(kind, reason, message)| {
            let (objects, finalizers) = (&remaining.objects, &remaining.finalizers);
            let holds = match kind {
                CONTENT if !objects.is_empty() => {
                    let message = format!("Some resources are remaining: {}", listed(objects, "has"));
                    Some(("SomeResourcesRemain", message))
                }
                FINALIZERS if !finalizers.is_empty() => {
                    let list = listed(finalizers, "in");
                    Some((
                        "SomeFinalizersRemain",
                        format!("Some content in the namespace has finalizers remaining: {list}"),
                    ))
                }
                _ => None,
            };
            let status = if holds.is_some() { "True" } else { "False" };
            let (reason, message) = holds.unwrap_or_else(|| (reason, message.to_owned()));
            let since = old(kind)
                .filter(|c| c["status"] == status)
                .map(|c| c["lastTransitionTime"].clone());
            let since = since.unwrap_or_else(|| timestamp(now));
            json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
        })
        .collect();
    object["status"]["conditions"] = conditions.into();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_a_namespace_is_said_once() {
        let namespace = json!({"metadata": {"name": "a"}, "status": {"phase": "Terminating"}});
        let mut remaining = Remaining::default();
        let kind = REGISTRY.find("", "v1", "configmaps").unwrap();
        remaining.count(kind, &json!({"metadata": {"finalizers": ["a/b", "c/d"]}}));
        remaining.count(kind, &json!({"metadata": {"finalizers": ["a/b"]}}));
        let first = explained(&namespace, &remaining, Timestamp::UNIX_EPOCH);
        let message = |n: usize| first["status"]["conditions"][n]["message"].clone();
        assert_eq!(
            message(3),
            "Some resources are remaining: configmaps. has 2 resource instances"
        );
        assert_eq!(
            message(4),
            "Some content in the namespace has finalizers remaining: a/b in 2 resource instances, c/d in 1 resource instances"
        );
        let later = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(explained(&first, &remaining, later), first);
        let ended = explained(&first, &Remaining::default(), later);
        let times: Vec<_> = (0..5)
            .map(|n| ended["status"]["conditions"][n]["lastTransitionTime"].clone())
            .collect();
        assert_eq!(times[..3], vec![json!("1970-01-01T00:00:00Z"); 3]);
        assert_eq!(times[3..], vec![json!("2026-01-01T00:00:00Z"); 2]);
    }
}
