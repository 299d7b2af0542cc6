//! Delete and deletecollection.

use axum::response::Response;
use bytes::Bytes;
use farwater_api::ADMIN_NAMESPACE;
use farwater_store::{Change, Resource, Store, StoreError, Write, WriteError};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    admission,
    body::Encoding,
    call::{Call, store_failed, timestamp},
    kinds::ResourceKind,
    meta,
    options::{DeleteOptions, ListOptions},
    read, respond,
    status::ApiError,
};

/// How often a delete without preconditions is tried again after a write came in between.
const ATTEMPTS: usize = 20;

/// What a delete does to an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// Nothing holds it.
    Remove,
    /// It stays, marked, until its finalizers are gone.
    Mark(Value),
    /// It is marked already.
    Wait,
}

/// Pure: what a delete of this object means now.
pub fn plan_removal(object: &Value, kind: &ResourceKind, now: Timestamp) -> Removal {
    let held = !meta::finalizers(object).is_empty()
        || (kind.kind == "Namespace" && object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty()));
    if object["metadata"].get("deletionTimestamp").is_some() && held {
        return Removal::Wait;
    }
    if !held {
        return Removal::Remove;
    }
    let mut marked = object.clone();
    marked["metadata"]["deletionTimestamp"] = timestamp(now);
    if kind.kind == "Namespace" {
        marked["status"]["phase"] = json!("Terminating");
    } else {
        marked["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    }
    if let Some(generation) = marked["metadata"]["generation"].as_i64() {
        marked["metadata"]["generation"] = json!(generation + 1);
    }
    Removal::Mark(marked)
}

/// Where a delete left an object.
pub enum Outcome {
    Removed(Resource),
    Held(Resource),
}

/// Deletes one object that was read before; `Conflict` if it has changed since.
pub async fn remove(
    store: &Store,
    kind: &ResourceKind,
    resource: Resource,
    now: Timestamp,
) -> Result<Outcome, WriteError> {
    let (uid, version, key) = (resource.uid.clone(), resource.version, resource.key.clone());
    match plan_removal(&resource.object, kind, now) {
        Removal::Wait => Ok(Outcome::Held(resource)),
        Removal::Remove => {
            store.write(Write { key, change: Change::Delete { uid, version } }).await?;
            Ok(Outcome::Removed(resource))
        }
        Removal::Mark(object) => {
            let change = Change::Replace { uid, version, object };
            store.write(Write { key, change }).await.map(Outcome::Held)
        }
    }
}

fn check_preconditions(options: &DeleteOptions, resource: &Resource, kind: &ResourceKind) -> Result<(), ApiError> {
    let conflict = |what: &str, asked: &str, actual: &str| {
        let why = format!(
            "the {what} in the precondition ({asked}) does not match the {what} in record ({actual}). The object might have been {}",
            if what == "UID" { "deleted and then recreated" } else { "modified" }
        );
        ApiError::conflict(&kind.group, &kind.kind, &resource.key.name, &why)
    };
    if let Some(uid) = options.uid.as_ref().filter(|uid| **uid != resource.uid) {
        return Err(conflict("UID", uid, &resource.uid));
    }
    let actual = resource.version.to_string();
    if let Some(version) = options.version.as_ref().filter(|version| **version != actual) {
        return Err(conflict("ResourceVersion", version, &actual));
    }
    Ok(())
}

pub fn delete_options(call: &Call, body: &[u8]) -> Result<DeleteOptions, ApiError> {
    let encoding = if body.is_empty() { Encoding::Json } else { Encoding::of(&respond::content_type(&call.headers))? };
    DeleteOptions::parse(&call.query, body, encoding)
}

pub async fn delete(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    let options = delete_options(call, &body)?;
    let outcome = delete_one(call, &call.info.name, &options).await?;
    // A namespace is answered whole, so that clients see that it is terminating.
    Ok(match outcome {
        Outcome::Removed(resource) => {
            respond::json(200, &respond::deleted(call.kind, &resource.key.name, &resource.uid))
        }
        Outcome::Held(resource) => {
            let object = admission::decorated(&call.hub, call.kind, &resource.object);
            respond::object(200, call.kind, &object, call.form, call.now)
        }
    })
}

async fn delete_one(call: &Call, name: &str, options: &DeleteOptions) -> Result<Outcome, ApiError> {
    if call.kind.kind == "Namespace" && name == ADMIN_NAMESPACE {
        return Err(call.forbidden(name, "this namespace may not be deleted"));
    }
    for _ in 0..ATTEMPTS {
        let resource = call.load(name).await?;
        check_preconditions(options, &resource, call.kind)?;
        if options.dry_run {
            return Ok(match plan_removal(&resource.object, call.kind, call.now) {
                Removal::Remove => Outcome::Removed(resource),
                Removal::Wait => Outcome::Held(resource),
                Removal::Mark(object) => Outcome::Held(Resource { object: object.into(), ..resource }),
            });
        }
        match remove(&call.hub.store, call.kind, resource, call.now).await {
            Err(WriteError::Conflict { .. }) => {}
            Err(WriteError::Missing | WriteError::Exists) => return Err(call.not_found(name)),
            Err(WriteError::Store(error)) => return Err(store_failed(error)),
            Ok(outcome) => return Ok(outcome),
        }
    }
    Err(ApiError::modified(&call.kind.group, &call.kind.plural, name))
}

/// DELETE on a collection: every object that the selectors let through; the answer lists them.
pub async fn delete_collection(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    if call.kind.kind == "Namespace" {
        // As in Kubernetes, which doesn't offer it either.
        return Err(ApiError::method_not_allowed());
    }
    let options = delete_options(call, &body)?;
    if options.uid.is_some() {
        return Err(ApiError::unsupported_parameter("preconditions.uid", "a collection has no uid"));
    }
    let list = ListOptions::parse(&call.query, call.kind, false)?;
    let found = read::find(call, &list.filter, None, list.limit).await?;
    let mut deleted: Vec<Resource> = Vec::with_capacity(found.items.len());
    for resource in found.items {
        let name = resource.key.name.clone();
        // Of all namespaces: each object is deleted where it is.
        let one = DeleteOptions { uid: Some(resource.uid.clone()), ..options.clone() };
        let outcome = match delete_at(call, resource, &one).await {
            Err(error) if error.code == 404 => continue,
            Err(error) if error.code == 409 && options.version.is_none() => {
                tracing::debug!(name, "changed while its collection was deleted: it is another object now");
                continue;
            }
            other => other?,
        };
        match outcome {
            Outcome::Removed(resource) | Outcome::Held(resource) => deleted.push(resource),
        }
    }
    let items = deleted.iter().map(|r| admission::decorated(&call.hub, call.kind, &r.object));
    let list_meta = json!({"resourceVersion": found.version.to_string()});
    respond::list(call.kind, items, list_meta, call.form, call.now)
}

async fn delete_at(call: &Call, resource: Resource, options: &DeleteOptions) -> Result<Outcome, ApiError> {
    let (key, name) = (resource.key.clone(), resource.key.name.clone());
    let mut current = Some(resource);
    for _ in 0..ATTEMPTS {
        let resource = match current.take() {
            Some(resource) => resource,
            None => {
                let found = call.hub.store.get(&key).await.map_err(store_failed)?;
                found.ok_or_else(|| call.not_found(&name))?
            }
        };
        check_preconditions(options, &resource, call.kind)?;
        if options.dry_run {
            return Ok(Outcome::Removed(resource));
        }
        match remove(&call.hub.store, call.kind, resource, call.now).await {
            Err(WriteError::Conflict { .. }) => {}
            Err(WriteError::Missing | WriteError::Exists) => return Err(call.not_found(&name)),
            Err(WriteError::Store(error)) => return Err(store_failed(error)),
            Ok(outcome) => return Ok(outcome),
        }
    }
    Err(ApiError::modified(&call.kind.group, &call.kind.plural, &name))
}

/// For controllers: deletes what was read, whatever happens to it in between is for their next pass.
pub async fn remove_quietly(
    store: &Store,
    kind: &ResourceKind,
    resource: Resource,
    now: Timestamp,
) -> Result<(), StoreError> {
    match remove(store, kind, resource, now).await {
        Ok(_) | Err(WriteError::Conflict { .. } | WriteError::Missing | WriteError::Exists) => Ok(()),
        Err(WriteError::Store(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::kinds::REGISTRY, *};

    #[test]
    fn finalizers_hold_an_object() {
        let kind = REGISTRY.find("farwater.dev", "v1alpha1", "clusters").unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let free = json!({"metadata": {"name": "a"}});
        assert_eq!(plan_removal(&free, kind, now), Removal::Remove);
        let held = json!({"metadata": {"name": "a", "generation": 1, "finalizers": ["a/b"]}});
        let Removal::Mark(marked) = plan_removal(&held, kind, now) else { panic!("not marked") };
        assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
        assert_eq!(marked["metadata"]["generation"], 2);
        assert_eq!(plan_removal(&marked, kind, now), Removal::Wait);
    }

    #[test]
    fn a_namespace_terminates_before_it_goes() {
        let kind = REGISTRY.find("", "v1", "namespaces").unwrap();
        let namespace =
            json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let Removal::Mark(marked) = plan_removal(&namespace, kind, Timestamp::UNIX_EPOCH) else { panic!("not marked") };
        assert_eq!(marked["status"]["phase"], "Terminating");
    }
}
