//! The Kubernetes-style API, served over the store.
//!
//! ```text
//!  request ─ RequestInfo ─ authorize ─┬─ discovery, openapi                      (documents)
//!                                     ├─ reviews                                 (answers about the user)
//!                                     ├─ read, watch                             ─┐
//!                                     └─ write, apply, delete ─ intake ─ managed ─ strategy ─ admission ─ store
//! ```
//!
//! Decisions from data alone are pure and have their own modules: `request`, `selector`, `body`, `schema`, `strategy`,
//! `patch`, `strategic`, `table`, `discovery`, `openapi`. All texts follow the real kube-apiserver.

mod admission;
mod apply;
mod body;
mod bundles;
mod call;
mod computed;
mod delete;
mod discovery;
mod documents;
mod expire_events;
mod garbage;
mod granted_clusters;
mod impact;
mod intake;
mod managed;
mod managed_namespaces;
mod openapi;
mod options;
mod parameters;
mod patch;
mod plans;
mod promotions;
mod protobuf;
mod read;
mod remove_namespaces;
mod request;
mod respond;
mod reviews;
mod second_person;
pub mod service_admission;
mod sets;
mod strategic;
mod subresources;
mod table;
mod watch;
mod write;

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use jiff::Timestamp;
use serde_json::Value;

use crate::{
    Hub,
    auth::{Attributes, Decision, ImpersonationError, Unauthenticated, User},
    bodies::BodyError,
    kinds::{REGISTRY, ResourceKind, schema, status::ApiError, strategy},
    turns::Turn,
};
use call::Call;
use request::{Query, RequestInfo};
use respond::Form;

pub use body::LIMIT as MAX_BODY;
pub use expire_events::expire_events;
pub use garbage::collect_garbage;
pub use remove_namespaces::remove_namespaces;

/// The errors that a person would get for creating this object of ours: one sentence each, beginning with the field.
/// Only the object itself is checked.
pub fn problems(object: &Value) -> Vec<String> {
    let is_its = |kind: &&ResourceKind| {
        kind.ours && object["kind"] == kind.kind.as_str() && object["apiVersion"] == kind.api_version().as_str()
    };
    let Some(kind) = REGISTRY.kinds.iter().find(is_its) else {
        return vec!["kind: the hub has no such kind of its own".to_owned()];
    };
    let mut object = object.clone();
    schema::default(&mut object, &kind.schema);
    let errors = strategy::validate(&object, None, kind, strategy::Part::Main);
    errors.iter().map(ToString::to_string).collect()
}

/// Answers everything under `/api`, `/apis` and `/openapi`. The turn ends when the answer is complete; a watch releases
/// it between the pages of its initial state.
pub async fn serve(hub: Arc<Hub>, user: User, turn: Turn, request: Request<Bytes>) -> Response {
    match answer(hub, user, turn, request).await {
        Ok(response) => response,
        Err(error) => respond::error(&error),
    }
}

/// The answer to a request whose body could not be read.
pub fn refuse_body(error: BodyError) -> Response {
    respond::error(&match error {
        BodyError::TooLarge(limit) => ApiError::too_large(limit),
        BodyError::Slow(_) => ApiError::new(408, "Timeout", error.to_string()),
        BodyError::Broken => ApiError::bad_request(format!("the body could not be read: {error}")),
        BodyError::NoRoom => ApiError::unavailable(error.to_string()),
    })
}

async fn answer(hub: Arc<Hub>, user: User, turn: Turn, request: Request<Bytes>) -> Result<Response, ApiError> {
    let query = Query::parse(request.uri())?;
    let info = RequestInfo::parse(request.method(), request.uri(), &query)?;
    let user = impersonate(&hub, user, request.headers()).await?;
    authorize(&hub, &user, &attributes(&info)).await?;
    if !info.is_resource {
        return documents::answer(&info, request.headers());
    }
    let kind = REGISTRY
        .find(&info.group, &info.version, &info.resource)
        .ok_or_else(ApiError::no_such_path)?;
    if !info.reaches(kind.namespaced) {
        return Err(ApiError::no_such_path());
    }
    if !info.subresource.is_empty() && kind.subresource(&info.subresource).is_none() {
        // Kubernetes serves custom resources by another handler, which takes the path as a name.
        let absent = ApiError::not_found(&info.group, &info.resource, &info.name);
        return Err(if kind.ours { absent } else { ApiError::no_such_path() });
    }
    let form = Form::negotiate(request.headers(), &query)?;
    form.fits(&info.verb)?;
    let (parts, body) = request.into_parts();
    let call = Call {
        hub,
        user,
        info,
        kind,
        query,
        headers: parts.headers,
        form,
        now: Timestamp::now(),
    };
    dispatch(call, turn, &parts.method, body).await
}

async fn dispatch(call: Call, turn: Turn, method: &Method, body: Bytes) -> Result<Response, ApiError> {
    let not_allowed = ApiError::method_not_allowed;
    // A request for one object of a namespaced kind always names its namespace.
    let needs_namespace = !matches!(call.info.verb.as_str(), "list" | "watch");
    if call.kind.namespaced && call.info.namespace.is_empty() && needs_namespace {
        return Err(not_allowed());
    }

    if !call.kind.stored {
        return match (call.info.verb.as_str(), call.kind.is_listed()) {
            ("list", true) => granted_clusters::list(&call).await,
            ("get", true) => granted_clusters::get(&call).await,
            (_, false) if *method == Method::POST && call.info.name.is_empty() => reviews::create(&call, body).await,
            _ => Err(not_allowed()),
        };
    }

    if let Some(subresource) = call.kind.subresource(&call.info.subresource) {
        if !subresource.verbs.contains(&call.info.verb.as_str()) {
            return Err(not_allowed());
        }
        if subresource.kind.is_some() {
            return subresources::answer(&call, body).await;
        }
    }

    match (call.info.verb.as_str(), call.info.is_collection()) {
        ("list", _) => read::list(&call).await,
        ("watch", _) => watch::watch(call, turn),
        ("get", false) => read::get(&call).await,
        ("create", true) => write::create(&call, body).await,
        ("update", false) => write::update(&call, body).await,
        ("patch", false) => write::patch(&call, body).await,
        ("delete", false) => delete::delete(&call, body).await,
        ("deletecollection", _) => delete::delete_collection(&call, body).await,
        _ => Err(not_allowed()),
    }
}

fn attributes(info: &RequestInfo) -> Attributes {
    if !info.is_resource {
        return Attributes::non_resource(&info.verb, &info.path);
    }
    Attributes {
        verb: info.verb.clone(),
        group: info.group.clone(),
        version: info.version.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        namespace: info.namespace.clone(),
        name: info.name.clone(),
        path: String::new(),
    }
}

async fn decide(hub: &Hub, user: &User, attributes: &Attributes) -> Result<Decision, ApiError> {
    hub.access
        .authorize(user, attributes)
        .await
        .map_err(|error| ApiError::unavailable(error.to_string()))
}

async fn impersonate(hub: &Hub, sender: User, headers: &HeaderMap) -> Result<User, ApiError> {
    match hub.access.impersonate(&sender, headers).await {
        Ok(wanted) => Ok(wanted.unwrap_or(sender)),
        Err(ImpersonationError::Headers(why)) => Err(ApiError::bad_request(why)),
        Err(ImpersonationError::Denied(attributes, decision)) => Err(denied(&sender, &attributes, &decision)),
        Err(ImpersonationError::Access(error)) => Err(ApiError::unavailable(error.to_string())),
    }
}

async fn authorize(hub: &Hub, user: &User, attributes: &Attributes) -> Result<(), ApiError> {
    let decision = decide(hub, user, attributes).await?;
    if decision.is_allowed() {
        Ok(())
    } else {
        Err(denied(user, attributes, &decision))
    }
}

/// Authorizes a request again while its answer is still being sent: its token, account or rights may be gone.
async fn decide_again(call: &Call) -> Result<(), ApiError> {
    let sender = call
        .hub
        .access
        .authenticate(&call.headers)
        .await
        .map_err(|error| match error {
            Unauthenticated::Unavailable(_) => ApiError::unavailable(error.to_string()),
            _ => ApiError::new(401, "Unauthorized", "Unauthorized"),
        })?;
    let user = impersonate(&call.hub, sender, &call.headers).await?;
    authorize(&call.hub, &user, &attributes(&call.info)).await
}

fn denied(user: &User, attributes: &Attributes, decision: &Decision) -> ApiError {
    let mut why = attributes.forbidden_message(user);
    let reason = decision.reason();
    if !reason.is_empty() {
        why = format!("{why}: {reason}");
    }
    ApiError::forbidden(&attributes.group, &attributes.resource, &attributes.name, &why)
}
