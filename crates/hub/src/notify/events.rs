//! Events: what controllers tell people about an object of the hub, even one that has been deleted since.

use std::borrow::Cow;

use farwater_api::ADMIN_NAMESPACE;
use farwater_fleet::{
    conditions::{cut, whole_seconds},
    summary::News,
};
use farwater_store::{Change, Key, Kind, Resource, Store, StoreError, Tx, Write, WriteError};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{kinds::managers::manage, resources};

const REPORTER: &str = "farwater-hub";
/// The API server's limit for events of the older form.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Kubernetes' limit for names.
const MAX_NAME: usize = 253;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventText {
    /// A person should look at it.
    pub is_warning: bool,
    /// CamelCase, for programs.
    pub reason: Cow<'static, str>,
    pub message: String,
}

/// Writes an Event beside its object, unless the namespace is being removed, where nothing can be created.
pub async fn write_event(tx: &mut Tx, about: &Resource, told: &EventText) -> Result<(), StoreError> {
    let Some(namespace) = place_of(tx, about).await? else {
        return Ok(());
    };
    let now = Timestamp::now();
    let key = key_of(about, namespace, &format!("{:x}", now.as_nanosecond()));
    let object = manage(&key.kind, "", None, event(about, &key, told, now), now);
    match tx
        .write(Write {
            key,
            change: Change::Create(object),
        })
        .await
    {
        Ok(_) | Err(WriteError::Exists) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The same for what happens to an object repeatedly: it has one Event per reason, with a count, so that their number
/// is limited.
pub async fn tell_again(tx: &mut Tx, about: &Resource, told: &EventText) -> Result<(), StoreError> {
    let Some(namespace) = place_of(tx, about).await? else {
        return Ok(());
    };
    let now = Timestamp::now();
    let key = key_of(about, namespace, &suffix_of(about, &told.reason));
    let mut next = event(about, &key, told, now);
    let change = match tx.get(&key).await? {
        None => Change::Create(manage(&key.kind, "", None, next, now)),
        Some(found) => {
            let before = &found.object;
            next["metadata"] = before["metadata"].clone();
            if before["involvedObject"]["uid"] == about.uid {
                next["firstTimestamp"] = before["firstTimestamp"].clone();
                // Clients read it as an int32.
                let count = before["count"]
                    .as_i64()
                    .unwrap_or(0)
                    .saturating_add(1)
                    .clamp(1, i32::MAX.into());
                next["count"] = json!(count);
            }
            let object = manage(&key.kind, "", Some(before), next, now);
            Change::Replace {
                uid: found.uid,
                version: found.version,
                object,
            }
        }
    };
    match tx.write(Write { key, change }).await {
        Ok(_) | Err(WriteError::Exists) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Raises all Events of one change of a status.
pub async fn raise(store: &Store, about: &Resource, all: Vec<News>) -> Result<(), StoreError> {
    if all.is_empty() {
        return Ok(());
    }
    let about = about.clone();
    let raised = store.transact(move |tx| {
        Box::pin(async move {
            for News {
                is_warning,
                reason,
                message,
            } in all
            {
                tell_again(
                    tx,
                    &about,
                    &EventText {
                        is_warning,
                        reason: reason.into(),
                        message,
                    },
                )
                .await?;
            }
            Ok(())
        })
    });
    raised.await
}

/// The namespace of an object's Events. None: it is being removed.
async fn place_of<'a>(tx: &mut Tx, about: &'a Resource) -> Result<Option<&'a str>, StoreError> {
    let namespace: &str = if about.key.namespace.is_empty() {
        ADMIN_NAMESPACE
    } else {
        &about.key.namespace
    };
    let found = tx.get(&resources::namespace_key(namespace)).await?;
    let is_removed = found.is_some_and(|found| found.object["metadata"]["deletionTimestamp"].is_string());
    Ok((!is_removed).then_some(namespace))
}

/// Names the reason, and the kind unless it is a service: objects of different kinds may have one name and one reason.
fn suffix_of(about: &Resource, reason: &str) -> String {
    let reason = reason.to_lowercase();
    match about.object["kind"].as_str() {
        Some(kind) if kind != "ServiceDeployment" => format!("{}.{reason}", kind.to_lowercase()),
        _ => reason,
    }
}

/// The object's name with the suffix. If that would be too long, the end of the name is replaced by the object's uid.
fn key_of(about: &Resource, namespace: &str, suffix: &str) -> Key {
    let (name, uid) = (&about.key.name, &about.uid);
    let room = MAX_NAME.saturating_sub(suffix.len() + 1);
    let name = match name.len() > room {
        true => {
            let own: String = name.chars().take(room.saturating_sub(uid.len() + 1)).collect();
            format!("{}.{uid}.{suffix}", own.trim_end_matches(['.', '-']))
        }
        false => format!("{name}.{suffix}"),
    };
    Key {
        kind: Kind::new("events", ""),
        namespace: namespace.to_owned(),
        name,
    }
}

fn event(about: &Resource, key: &Key, told: &EventText, now: Timestamp) -> Value {
    let mut involved = json!({
        "apiVersion": about.object["apiVersion"], "kind": about.object["kind"],
        "name": about.key.name, "uid": about.uid,
    });
    if !about.key.namespace.is_empty() {
        involved["namespace"] = json!(about.key.namespace);
    }
    let time = whole_seconds(now);
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "uid": uuid::Uuid::new_v4().to_string(),
            "creationTimestamp": time,
        },
        "involvedObject": involved,
        "reason": told.reason,
        "message": cut(&told.message, MAX_MESSAGE_BYTES),
        "source": {"component": REPORTER},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "type": if told.is_warning { "Warning" } else { "Normal" },
        "eventTime": null,
        "reportingComponent": REPORTER,
        "reportingInstance": "",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_different_kinds_share_no_event() {
        let name = |kind: &str| {
            let key = Key {
                kind: Kind::new("any", ""),
                namespace: "team-a".to_owned(),
                name: "web".to_owned(),
            };
            let object = json!({"kind": kind}).into();
            let about = Resource {
                key,
                uid: "1".to_owned(),
                version: 1,
                object,
            };
            key_of(&about, "team-a", &suffix_of(&about, "Recovered")).name
        };
        assert_eq!(name("ServiceDeployment"), "web.recovered");
        assert_eq!(name("GitRepository"), "web.gitrepository.recovered");
    }
}
