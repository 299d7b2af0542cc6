//! The two resources of a deployment, created or changed.

use farwater_fleet::takeover::CLI_MANAGER;
use http::Method;
use serde_json::{Value, json};

use crate::{connection::Session, failure::Result, kinds, terminal::print};

/// A resource that this run created.
pub(super) struct Made {
    pub plural: &'static str,
    /// As the hub returned it.
    pub object: Value,
}

pub(super) fn collection(plural: &str, namespace: &str) -> String {
    format!(
        "/apis/{}/{}/namespaces/{namespace}/{plural}",
        farwater_api::GROUP,
        farwater_api::VERSION
    )
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    DryRun,
    Write,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Created,
    Configured,
    Unchanged,
}

pub(super) fn named(document: &Value) -> (&str, &str, &str) {
    let text = |place: &str| document.pointer(place).and_then(Value::as_str).unwrap_or_default();
    (text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
}

/// Creates the resource, or merges the spec into the existing one. Returns the outcome and the resource.
pub(super) async fn apply(session: &Session, plural: &str, document: &Value, mode: Mode) -> Result<(Outcome, Value)> {
    let (kind, namespace, name) = named(document);
    let path = collection(plural, namespace);
    let dry_run = if mode == Mode::DryRun { "&dryRun=All" } else { "" };
    let flags = format!("fieldManager={CLI_MANAGER}&fieldValidation=Strict{dry_run}");
    let existing = session
        .read(&format!("read {kind} {namespace}/{name}"), &format!("{path}/{name}"))
        .await;
    match existing {
        Err(failure) if failure.is_missing() => {
            let attempt = format!("make {kind} {namespace}/{name}");
            let path = format!("{path}?{flags}");
            let made = session
                .ask(&attempt, Method::POST, &path, "application/json", Some(document))
                .await?;
            Ok((Outcome::Created, made))
        }
        existing => {
            let existing = existing?;
            let attempt = format!("change {kind} {namespace}/{name}");
            let patch = json!({"spec": document["spec"]});
            let path = format!("{path}/{name}?{flags}");
            let changed = session
                .ask(&attempt, Method::PATCH, &path, "application/json", Some(&patch))
                .await?;
            // Don't compare the resourceVersion: a controller may have written the status in between.
            let same = changed["metadata"]["generation"] == existing["metadata"]["generation"];
            Ok((if same { Outcome::Unchanged } else { Outcome::Configured }, changed))
        }
    }
}

pub(super) fn print_outcome(plural: &str, document: &Value, outcome: Outcome, suffix: &str) -> Result<()> {
    let outcome = match outcome {
        Outcome::Created => "created",
        Outcome::Configured => "configured",
        Outcome::Unchanged => "unchanged",
    };
    print(&format!("{} {outcome}{suffix}\n", qualified(plural, document)))
}

pub(super) fn qualified(plural: &str, document: &Value) -> String {
    let (_, _, name) = named(document);
    let label = kinds::ours()
        .into_iter()
        .find(|known| known.plural == plural)
        .map(|known| known.qualified(name));
    label.unwrap_or_else(|| name.to_owned())
}
