//! Delete and deletecollection.

use axum::response::Response;
use bytes::Bytes;
use farwater_api::ADMIN_NAMESPACE;
use farwater_store::{Resource, Store, StoreError, Write, WriteError};
use jiff::Timestamp;

use super::{
    admission,
    body::Encoding,
    call::{Call, store_failed},
    options::{DeleteOptions, ListOptions},
    read, respond, sets,
};
use crate::kinds::{
    ResourceKind,
    removal::{Cascade, Propagation, Removal, change_of, plan_removal},
    status::ApiError,
};

/// How often a delete without preconditions is retried after another write.
const ATTEMPTS: usize = 20;

/// The admin namespace has the rights: without it, access could not be restored.
pub fn is_deletable(kind: &ResourceKind, name: &str) -> bool {
    kind.kind != "Namespace" || name != ADMIN_NAMESPACE
}

/// Where a delete has left an object.
pub enum Outcome {
    Removed(Resource),
    Held(Resource),
}

/// Deletes an object that was read before; `Conflict` if it has changed since.
async fn remove(
    store: &Store,
    kind: &ResourceKind,
    resource: Resource,
    cascade: Cascade,
    now: Timestamp,
) -> Result<Outcome, WriteError> {
    let removal = plan_removal(&resource.object, kind, cascade, now);
    let removed = removal == Removal::Remove;
    match change_of(removal, &resource) {
        None => Ok(Outcome::Held(resource)),
        Some(change) => {
            let written = store
                .write(Write {
                    key: resource.key,
                    change,
                })
                .await?;
            Ok(if removed {
                Outcome::Removed(written)
            } else {
                Outcome::Held(written)
            })
        }
    }
}

fn check_preconditions(options: &DeleteOptions, resource: &Resource, kind: &ResourceKind) -> Result<(), ApiError> {
    let conflict = |what: &str, asked: &str, actual: &str| {
        let name = &resource.key.name;
        if kind.kind == "Namespace" {
            let why = format!("Precondition failed: {what} in precondition: {asked}, {what} in object meta: {actual}");
            return ApiError::conflict(&kind.group, &kind.plural, name, &why);
        }
        let why = format!(
            "the {what} in the precondition ({asked}) does not match the {what} in record ({actual}). The object might have been {}",
            if what == "UID" {
                "deleted and then recreated"
            } else {
                "modified"
            }
        );
        ApiError::conflict(&kind.group, &kind.kind, name, &why)
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
    let encoding = if body.is_empty() {
        Encoding::Json
    } else {
        Encoding::of(&respond::content_type(&call.headers))?
    };
    DeleteOptions::parse(&call.query, body, encoding)
}

pub async fn delete(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    let options = delete_options(call, &body)?;
    let resource = call.load(&call.info.name).await?;
    let outcome = delete_at(call, resource, &options).await?;
    let whole = |code: u16, resource: &Resource| {
        let object = admission::decorated(&call.hub, call.kind, &resource.object);
        respond::object(code, call.kind, &object, call.form, call.now)
    };
    Ok(match outcome {
        Outcome::Removed(resource) if call.kind.answers_deleted => whole(200, &resource),
        Outcome::Removed(resource) => {
            respond::json(200, &respond::deleted(call.kind, &resource.key.name, &resource.uid))
        }
        // Kubernetes answers 202 only if the deprecated field is used.
        Outcome::Held(resource) if options.cascade.orphan_dependents == Some(false) => whole(202, &resource),
        Outcome::Held(resource) => whole(200, &resource),
    })
}

/// Deletes the object that was read before, in its current state.
async fn delete_at(call: &Call, resource: Resource, options: &DeleteOptions) -> Result<Outcome, ApiError> {
    let (key, name) = (resource.key.clone(), resource.key.name.clone());
    if !is_deletable(call.kind, &name) {
        return Err(call.forbidden(&name, "this namespace may not be deleted"));
    }

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
        sets::check_delete(call, &resource.object).await?;
        if options.dry_run {
            return Ok(
                match plan_removal(&resource.object, call.kind, options.cascade, call.now) {
                    Removal::Remove => Outcome::Removed(resource),
                    Removal::Wait => Outcome::Held(resource),
                    Removal::Mark(object) => Outcome::Held(Resource {
                        object: object.into(),
                        ..resource
                    }),
                },
            );
        }

        match remove(&call.hub.store, call.kind, resource, options.cascade, call.now).await {
            Err(WriteError::Conflict { .. }) => {}
            Err(WriteError::Missing | WriteError::Exists) => return Err(call.not_found(&name)),
            Err(WriteError::Store(error)) => return Err(store_failed(error)),
            Ok(outcome) => return Ok(outcome),
        }
    }

    Err(ApiError::modified(&call.kind.group, &call.kind.plural, &name))
}

/// DELETE on a collection: deletes every object that the selectors match; the answer lists them as they were.
pub async fn delete_collection(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    if !call.kind.verbs.contains(&"deletecollection") {
        return Err(ApiError::method_not_allowed());
    }
    let options = delete_options(call, &body)?;
    let list = ListOptions::parse(&call.query, call.kind, false)?;
    let page = read::page(call, &list).await?;
    for resource in &page.items {
        let uid = resource.uid.clone();
        match delete_at(call, resource.clone(), &options).await {
            Err(error) if error.code == 404 => {}
            Err(error) if error.code == 409 => {
                // An object that was recreated under the name is another one. An object that does not match the
                // preconditions stays.
                let found = call.hub.store.get(&resource.key).await.map_err(store_failed)?;
                if found.is_some_and(|now| now.uid == uid) {
                    return Err(error);
                }
            }
            other => drop(other?),
        }
    }
    page.answer(call)
}

/// For controllers: deletes an object that was read. If it changes in between, that is for the controller's next pass.
pub async fn remove_quietly(
    store: &Store,
    kind: &ResourceKind,
    resource: Resource,
    now: Timestamp,
) -> Result<(), StoreError> {
    match remove(store, kind, resource, Propagation::Background.into(), now).await {
        Ok(_) | Err(WriteError::Conflict { .. } | WriteError::Missing | WriteError::Exists) => Ok(()),
        Err(WriteError::Store(error)) => Err(error),
    }
}
