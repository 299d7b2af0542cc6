//! Reads and changes one service.

use farwater_api::{GROUP, ServiceDeployment, VERSION};
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{connection::Session, failure::Result, kinds};

fn path(namespace: &str, name: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/servicedeployments/{name}")
}

/// For example `servicedeployment.farwater.dev/web`.
pub fn qualified(name: &str) -> String {
    let kind = kinds::ours()
        .into_iter()
        .find(|kind| kind.plural == "servicedeployments");
    kind.map_or_else(|| name.to_owned(), |kind| kind.qualified(name))
}

/// Merges fields into a service's spec.
pub async fn change(
    session: &Session,
    namespace: &str,
    name: &str,
    verb: &str,
    spec: Value,
) -> Result<ServiceDeployment> {
    let path = format!(
        "{}?fieldManager=farwater-cli&fieldValidation=Strict",
        path(namespace, name)
    );
    let attempt = format!("{verb} {namespace}/{name}");
    let patch = json!({"spec": spec});
    let changed = session
        .ask(&attempt, Method::PATCH, &path, "application/json", Some(&patch))
        .await;
    read(session, &attempt, named(session, namespace, name, changed).await?)
}

/// Sets annotations. `verb` is read before the service's name.
pub async fn annotate(
    session: &Session,
    (namespace, name): (&str, &str),
    verb: &str,
    annotations: Value,
) -> Result<()> {
    let path = format!(
        "{}?fieldManager=farwater-cli&fieldValidation=Strict",
        path(namespace, name)
    );
    let attempt = format!("{verb} {namespace}/{name}");
    let patch = json!({"metadata": {"annotations": annotations}});
    session
        .ask(&attempt, Method::PATCH, &path, "application/json", Some(&patch))
        .await
        .map(drop)
}

/// Sends something to what lies below a service.
pub async fn send(
    session: &Session,
    (namespace, name): (&str, &str),
    subresource: &str,
    kind: &str,
    spec: Value,
) -> Result<Value> {
    let path = format!("{}/{subresource}", path(namespace, name));
    let body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "spec": spec});
    let attempt = format!("{subresource} {namespace}/{name}");
    let sent = session
        .ask(&attempt, Method::POST, &path, "application/json", Some(&body))
        .await;
    named(session, namespace, name, sent).await
}

/// Reads a subresource of a service. `query` is appended to its path.
pub async fn below(
    session: &Session,
    (namespace, name): (&str, &str),
    subresource: &str,
    query: &str,
) -> Result<Value> {
    let attempt = format!("read the {subresource} of {namespace}/{name}");
    session
        .read(&attempt, &format!("{}/{subresource}{query}", path(namespace, name)))
        .await
}

/// The items of a subresource that is a list.
pub async fn items<T: DeserializeOwned>(
    session: &Session,
    namespace: &str,
    name: &str,
    subresource: &str,
) -> Result<Vec<T>> {
    let attempt = format!("read the {subresource} of {namespace}/{name}");
    let found = session
        .read(&attempt, &format!("{}/{subresource}", path(namespace, name)))
        .await;
    let mut answer = named(session, namespace, name, found).await?;
    read(session, &attempt, answer["items"].take())
}

/// The status of a subresource that is not a list.
pub async fn status<T: DeserializeOwned>(
    session: &Session,
    namespace: &str,
    name: &str,
    subresource: &str,
) -> Result<T> {
    let attempt = format!("read the {subresource} of {namespace}/{name}");
    let found = session
        .read(&attempt, &format!("{}/{subresource}", path(namespace, name)))
        .await;
    let mut answer = named(session, namespace, name, found).await?;
    read(session, &attempt, answer["status"].take())
}

/// If the answer is a 404, the service is read as a typed object: that failure suggests a similar name.
async fn named(session: &Session, namespace: &str, name: &str, answer: Result<Value>) -> Result<Value> {
    if answer.as_ref().is_err_and(|failure| failure.is_missing()) {
        session.get::<ServiceDeployment>(namespace, name).await?;
    }
    answer
}

fn read<T: DeserializeOwned>(session: &Session, attempt: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| session.failure(attempt, &kube::Error::SerdeError(error)))
}
