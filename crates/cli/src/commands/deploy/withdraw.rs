//! A failed deployment leaves nothing behind: the objects that this run created are deleted again.

use std::time::Duration;

use farwater_api::{SourceKind, service_sources::SourceReference};
use http::Method;
use serde_json::{Value, json};

use super::objects::{Made, collection, named, qualified};
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
const SERVICES: &str = "servicedeployments";
/// How often an object is read and deleted again that the hub writes in between. It writes a new source a few times.
const ATTEMPTS: u32 = 20;

/// Deletes the service before its source, and says of each object that it is deleted, is being deleted, or stays. A
/// source stays with a service that stays.
pub(super) async fn withdraw(session: &Session, made: &[Made]) {
    let mut deleted = None;
    for one in made.iter().rev() {
        let (_, namespace, name) = named(&one.object);
        let told = qualified(one.plural, &one.object);
        match remove(session, deleted, one).await {
            Ok(None) if one.plural == SERVICES => deleted = Some(name),
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

/// Returns why the object stays. None: it is deleted, or is being deleted. `deleted`: the service of this run that was
/// deleted.
async fn remove(session: &Session, deleted: Option<&str>, one: &Made) -> Result<Option<String>> {
    if let Some(user) = other_user(session, deleted, one).await? {
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

/// A service or set that uses the source, except the service that was deleted.
async fn other_user(session: &Session, deleted: Option<&str>, one: &Made) -> Result<Option<String>> {
    let (kind, namespace, name) = named(&one.object);
    if kind != SourceKind::GitRepository.as_str() {
        return Ok(None);
    }
    let source = SourceReference {
        kind: SourceKind::GitRepository,
        name: name.to_owned(),
    };
    let users = users(session, namespace, &source).await?;
    Ok(users.into_iter().find(|user| Some(user.as_str()) != deleted))
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
        if let Some(why) = reason_to_stay(&one.object, &current) {
            return Ok(Some(why.to_owned()));
        }
        if metadata["deletionTimestamp"].is_string() {
            return Ok(None);
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

/// Why an object may not be deleted, although this run created it. `made`: the object after its creation.
fn reason_to_stay(made: &Value, current: &Value) -> Option<&'static str> {
    let same = |field: &str| current["metadata"][field] == made["metadata"][field];
    let status = &current["status"];
    if !same("uid") {
        Some("another object of this name was created meanwhile")
    } else if !same("generation") {
        Some("it was changed meanwhile")
    } else if status["assignedRevision"].is_string() || status["heldRevision"].is_string() {
        Some("it has got a version meanwhile")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_created_object_is_deleted_while_it_has_no_version() {
        let made = json!({"metadata": {"uid": "1", "generation": 1}});
        let check =
            |current: Value, stays: bool| assert_eq!(reason_to_stay(&made, &current).is_some(), stays, "{current}");
        check(
            json!({"metadata": {"uid": "1", "generation": 1, "resourceVersion": "7"}, "status": {"conditions": []}}),
            false,
        );
        check(json!({"metadata": {"uid": "2", "generation": 1}}), true);
        check(json!({"metadata": {"uid": "1", "generation": 2}}), true);
        check(
            json!({"metadata": {"uid": "1", "generation": 1}, "status": {"assignedRevision": "main@sha1:ab"}}),
            true,
        );
        check(
            json!({"metadata": {"uid": "1", "generation": 1}, "status": {"heldRevision": "main@sha1:ab"}}),
            true,
        );
    }
}
