//! Empties namespaces that are terminating, and then removes them.
//!
//! Woken by changes of namespaces and by a timer; each pass rereads everything. Nothing can be made in a terminating
//! namespace (`write::insert` looks in the same transaction), so a namespace that was found empty stays empty.

use std::{sync::Arc, time::Duration};

use farwater_store::{Change, Kind, ListQuery, Resource, Selector, Store, StoreError, Write, WriteError};
use futures::StreamExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    call::timestamp,
    delete::remove_quietly,
    kinds::{REGISTRY, ResourceKind},
    managed::manage,
    meta,
};
use crate::Hub;

/// Pause between looks at a namespace whose contents wait for their finalizers.
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
                tracing::error!(error = &error as &dyn std::error::Error, "terminating namespaces can't be looked at");
                true
            }
        };
        if left {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        if let Ok(mut changes) = store.watch(Some(namespaces.clone()), from) {
            // An error means that changes were missed: look again.
            if changes.next().await.is_none() {
                return;
            }
        }
    }
}

fn all(kind: &ResourceKind, namespace: Option<&str>) -> ListQuery {
    ListQuery {
        kind: kind.store.clone(),
        namespace: namespace.map(str::to_owned),
        name: None,
        labels: Selector::default(),
        limit: PAGE,
        after: None,
    }
}

fn namespace_kind() -> Option<&'static ResourceKind> {
    REGISTRY.find("", "v1", "namespaces")
}

/// One look at every terminating namespace; whether any is left.
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

/// Deletes a namespace's contents; when none are left, the namespace. True once it is gone.
async fn remove_one(store: &Store, namespace: Resource) -> Result<bool, StoreError> {
    let name = namespace.key.name.clone();
    let mut remaining = Vec::new();
    for kind in REGISTRY.kinds.iter().filter(|k| k.is_kept() && k.namespaced) {
        let mut query = all(kind, Some(&name));
        loop {
            let page = store.list(&query).await?;
            for resource in page.items {
                remove_quietly(store, kind, resource, Timestamp::now()).await?;
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        remaining.extend(first_left(store, kind, &name).await?);
    }
    let (uid, version) = (namespace.uid.clone(), namespace.version);
    let change = if remaining.is_empty() {
        let mut object = (*namespace.object).clone();
        drop_kubernetes_finalizer(&mut object);
        let held = !meta::finalizers(&object).is_empty()
            || object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        let finalized = || manage(&namespace.key.kind, "finalize", Some(&namespace.object), object, Timestamp::now());
        if held { Change::Replace { uid, version, object: finalized() } } else { Change::Delete { uid, version } }
    } else {
        let now = Timestamp::now();
        let object = explained(&namespace.object, &remaining, now);
        let object = manage(&namespace.key.kind, "status", Some(&namespace.object), object, now);
        Change::Replace { uid, version, object }
    };
    let gone = matches!(change, Change::Delete { .. });
    match store.write(Write { key: namespace.key.clone(), change }).await {
        Ok(_) => Ok(gone),
        Err(WriteError::Missing) => Ok(true),
        Err(WriteError::Conflict { .. } | WriteError::Exists) => Ok(false),
        Err(WriteError::Store(error)) => Err(error),
    }
}

/// An object of this kind that is still there, for the condition.
async fn first_left(store: &Store, kind: &ResourceKind, namespace: &str) -> Result<Option<String>, StoreError> {
    let page = store.list(&ListQuery { limit: 1, ..all(kind, Some(namespace)) }).await?;
    Ok(page.items.first().map(|resource| {
        let finalizers = meta::finalizers(&resource.object).join(", ");
        format!("{} {} waits for finalizers [{finalizers}]", kind.plural, resource.key.name)
    }))
}

fn drop_kubernetes_finalizer(object: &mut Value) {
    if let Some(finalizers) = object["spec"]["finalizers"].as_array_mut() {
        finalizers.retain(|f| f != "kubernetes");
    }
}

/// The namespace with conditions that say what holds it; unchanged if they say so already.
fn explained(namespace: &Value, remaining: &[String], now: Timestamp) -> Value {
    let mut object = namespace.clone();
    let message = format!("Some resources are remaining: {}", remaining.join("; "));
    let conditions: Vec<Value> = [(CONTENT, "SomeResourcesRemain"), (FINALIZERS, "SomeFinalizersRemain")]
        .into_iter()
        .map(|(kind, reason)| {
            let old = namespace["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == kind);
            let since = old.map_or_else(|| timestamp(now), |c| c["lastTransitionTime"].clone());
            json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since})
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
        let first = explained(&namespace, &["configmaps a waits".into()], Timestamp::UNIX_EPOCH);
        assert_eq!(first["status"]["conditions"][0]["type"], CONTENT);
        let later = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(explained(&first, &["configmaps a waits".into()], later), first);
    }
}
