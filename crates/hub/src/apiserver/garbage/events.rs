//! Events of the garbage collector.

use farwater_api::ADMIN_NAMESPACE;
use farwater_store::{Change, Key, Kind, Resource, Store, StoreError, Write, WriteError};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::{
    managers::manage,
    meta::{self, timestamp},
};

/// As Kubernetes' collector calls itself.
const REPORTER: &str = "garbage-collector-controller";

/// Writes an Event about an owner that can't exist where the object says.
pub async fn report_misplaced_owner(
    store: &Store,
    resource: &Resource,
    reference: &Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    let object = misplaced_owner(resource, reference, now);
    let name = meta::text(&object, "name").to_owned();
    let key = Key {
        kind: Kind::new("events", ""),
        namespace: namespace_of(resource).to_owned(),
        name,
    };
    let object = manage(&key.kind, "", None, object, now);
    match store
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

/// Events of cluster-scoped objects are in the admin namespace.
fn namespace_of(resource: &Resource) -> &str {
    if resource.key.namespace.is_empty() {
        ADMIN_NAMESPACE
    } else {
        &resource.key.namespace
    }
}

fn misplaced_owner(resource: &Resource, reference: &Value, now: Timestamp) -> Value {
    let namespace = &resource.key.namespace;
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let message = format!(
        "ownerRef [{}/{}, namespace: {namespace}, name: {}, uid: {}] does not exist in namespace {namespace:?}",
        text("apiVersion"),
        text("kind"),
        text("name"),
        text("uid"),
    );
    let mut involved = json!({
        "apiVersion": resource.object["apiVersion"], "kind": resource.object["kind"],
        "name": resource.key.name, "uid": resource.uid,
    });
    if !namespace.is_empty() {
        involved["namespace"] = json!(namespace);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{:x}", resource.key.name, now.as_nanosecond()),
            "namespace": namespace_of(resource),
            "uid": uuid::Uuid::new_v4().to_string(),
            "creationTimestamp": timestamp(now),
        },
        "involvedObject": involved,
        "reason": "OwnerRefInvalidNamespace",
        "message": message,
        "source": {"component": REPORTER},
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
        "type": "Warning",
        "eventTime": null,
        "reportingComponent": REPORTER,
        "reportingInstance": "",
    })
}
