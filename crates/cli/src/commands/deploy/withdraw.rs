//! A failed deployment leaves nothing behind: the objects that this run created are deleted again.

use std::time::Duration;

use farwater_api::{SourceKind, service_sources::SourceReference};
use http::Method;
use serde_json::json;

use super::{
    Plan,
    objects::{Made, collection, named, qualified},
};
use crate::{
    commands::delete::{Doomed, users, wait_until_gone},
    connection::Session,
    exit,
    failure::Result,
    kinds,
    terminal::say,
    text,
};

/// How long a deleted object is waited for. The hub removes a service that it never assigned at its next pass; what
/// another program holds may stay for ever.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often an object is read and deleted again that the hub writes in between. It writes a new source a few times.
const ATTEMPTS: u32 = 20;

/// Deletes the service before its source, and says of each object that it is deleted, is being deleted, or stays.
pub(super) async fn withdraw(session: &Session, plan: &Plan, made: &[Made]) {
    for one in made.iter().rev() {
        let (_, namespace, name) = named(&one.object);
        let told = qualified(one.plural, &one.object);
        match remove(session, plan, made, one).await {
            Ok(None) => {}
            Ok(Some(why)) => say(&format!("{told} stays: {}", text::plain(&why))),
            Err(failure) => {
                say(&format!(
                    "{told} was created, and may still be there: {}",
                    text::plain(&failure.cause)
                ));
                let kind = one.plural;
                say(&format!(
                    "  next: {} delete {kind}/{namespace}/{name}",
                    session.program.name()
                ));
            }
        }
    }
}

/// Returns why the object stays. None: it is deleted, and what became of it is said.
async fn remove(session: &Session, plan: &Plan, made: &[Made], one: &Made) -> Result<Option<String>> {
    if let Some(user) = other_user(session, plan, made, one).await? {
        return Ok(Some(format!("{user} uses it")));
    }
    if let Some(why) = delete(session, one).await? {
        return Ok(Some(why));
    }
    if let Some(kind) = kinds::find(one.plural) {
        wait_until_gone(session, &[Doomed::of(kind, &one.object)], PATIENCE).await?;
    }
    Ok(None)
}

/// A service or set that uses the source and was not created by this run.
async fn other_user(session: &Session, plan: &Plan, made: &[Made], one: &Made) -> Result<Option<String>> {
    let (kind, namespace, name) = named(&one.object);
    if kind != SourceKind::GitRepository.as_str() {
        return Ok(None);
    }
    let source = SourceReference {
        kind: SourceKind::GitRepository,
        name: name.to_owned(),
    };
    let is_new = made.iter().any(|one| one.plural == "servicedeployments");
    let is_own = |user: &String| is_new && *user == plan.service_name;
    let users = users(session, namespace, &source).await?;
    Ok(users.into_iter().find(|user| !is_own(user)))
}

/// Deletes exactly the object that was created. Returns why it stays.
async fn delete(session: &Session, one: &Made) -> Result<Option<String>> {
    let (kind, namespace, name) = named(&one.object);
    let path = format!("{}/{name}", collection(one.plural, namespace));
    let attempt = format!("delete {kind} {namespace}/{name}");
    let mut tries = 1;
    loop {
        let current = match session.read(&attempt, &path).await {
            Err(failure) if failure.is_missing() => return Ok(None),
            current => current?,
        };
        let metadata = &current["metadata"];
        let same = |field: &str| metadata[field] == one.object["metadata"][field];
        if metadata["deletionTimestamp"].is_string() || !same("uid") {
            return Ok(None);
        }
        if !same("generation") {
            return Ok(Some("it was changed meanwhile".to_owned()));
        }

        let preconditions = json!({"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]});
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
        let accept = "application/json";
        match session
            .ask(&attempt, Method::DELETE, &path, accept, Some(&options))
            .await
        {
            Ok(_) => return Ok(None),
            Err(failure) if failure.is_missing() => return Ok(None),
            // The hub has written its status since it was read.
            Err(failure) if failure.code == exit::CONFLICT && tries < ATTEMPTS => tries += 1,
            Err(failure) => return Err(failure),
        }
    }
}
