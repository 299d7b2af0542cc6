//! make_sets: ManagedNamespaces → the ServiceSets that bring them to their clusters, and the status of these → their
//! own status.
//!
//! Such a set is deleted through its owner reference: the garbage collector deletes the set, and the set deletes its
//! services.

use std::sync::Arc;

use farwater_api::{GROUP, ManagedNamespace, ServiceSet, ServiceSetStatus, VERSION};
use farwater_fleet::{
    conditions::{self, Verdict, whole_seconds},
    namespaces::{maker_of, plan_set},
};
use farwater_store::{Change, Resource, StoreError, Write, WriteError};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    kinds::{managers::manage, stamped::complete_set},
    queue::Next,
    replica::Replica,
    resources::{self, Name, Stored as _},
};

pub async fn make_set(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    let store = &replica.store;
    let Some((resource, namespace)) = resources::load::<ManagedNamespace>(store, &name).await? else {
        return Ok(Next::OnChange);
    };
    if namespace.metadata.deletion_timestamp.is_some() {
        return Ok(Next::OnChange);
    }

    let (set, spec) = plan_set(&name.name, &namespace.spec);
    let key = ServiceSet::key(&Name::new(&name.namespace, &set));
    let found = store.get(&key).await?;

    let stands = match &found {
        Some(found) if maker_of(&found.object["spec"]) != Some(&name.name) => Err(Verdict::stalled(
            "NameTaken",
            format!("ServiceSet {set} exists and is not made of it: delete that, or give this another name"),
        )),
        Some(found) if found.object["metadata"]["deletionTimestamp"].is_string() => Err(Verdict::reconciling(
            "Leaving",
            format!("ServiceSet {set} is being deleted; another is made when it is gone"),
        )),
        found => Ok(found.as_ref()),
    };
    let stands = match stands {
        Ok(stands) => stands,
        Err(verdicts) => return write_status(&replica, &name, (&resource, &namespace), Err(verdicts)).await,
    };

    let mut spec = serde_json::to_value(&spec).map_err(StoreError::abort)?;
    complete_set(&mut spec);

    match (plan_write(&resource, &set, spec, stands), stands) {
        (Some(change), _) => match store.write(Write { key, change }).await {
            // This change, or that of the faster writer, requeues the namespace.
            Ok(_) | Err(WriteError::Conflict { .. } | WriteError::Missing | WriteError::Exists) => Ok(Next::OnChange),
            Err(WriteError::Store(error)) => Err(error),
        },
        (None, Some(set)) => {
            let said = resources::parse::<ServiceSet>(set)?;
            write_status(&replica, &name, (&resource, &namespace), Ok(said)).await
        }
        (None, None) => Ok(Next::OnChange),
    }
}

/// The write that the set needs; None: none.
fn plan_write(resource: &Resource, set: &str, spec: Value, found: Option<&Resource>) -> Option<Change> {
    let now = Timestamp::now();
    let kind = ServiceSet::kind();
    let (metadata, author) = (&resource.object["metadata"], &resource.object["status"]["changedBy"]);
    let mut object = match found {
        Some(found) => (*found.object).clone(),
        None => json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ServiceSet",
            "metadata": {
                "name": set, "namespace": resource.key.namespace, "uid": uuid::Uuid::new_v4().to_string(), "generation": 1,
                "creationTimestamp": whole_seconds(now),
            },
        }),
    };

    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ManagedNamespace", "name": resource.key.name,
        "uid": resource.uid, "controller": true, "blockOwnerDeletion": true,
    }]);
    // Notifications select sets by labels.
    match metadata.get("labels") {
        Some(labels) => object["metadata"]["labels"] = labels.clone(),
        None => drop(
            object["metadata"]
                .as_object_mut()
                .and_then(|metadata| metadata.remove("labels")),
        ),
    }

    let is_new_spec = object["spec"] != spec;
    object["spec"] = spec;
    let Some(found) = found else {
        // The author of the namespace is the author of its set.
        if author.is_string() {
            object["status"]["changedBy"] = author.clone();
        }
        return Some(Change::Create(manage(&kind, "", None, object, now)));
    };

    if object == *found.object {
        return None;
    }
    if is_new_spec {
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        object["metadata"]["generation"] = (generation + 1).into();
        if author.is_string() {
            object["status"]["changedBy"] = author.clone();
        }
    }

    let object = manage(&kind, "", Some(&found.object), object, now);
    Some(Change::Replace {
        uid: found.uid.clone(),
        version: found.version,
        object,
    })
}

/// `said`: the set that was made, or the conditions that say why there is none.
async fn write_status(
    replica: &Replica,
    name: &Name,
    (resource, namespace): (&Resource, &ManagedNamespace),
    said: Result<ServiceSet, Vec<Verdict>>,
) -> Result<Next, StoreError> {
    let previous = namespace.status.clone().unwrap_or_default();
    let generation = namespace.metadata.generation.unwrap_or_default();
    let status = match said {
        Ok(set) => {
            let of_set = set.status.unwrap_or_default();
            let is_current =
                of_set.observed_generation.is_some() && of_set.observed_generation == set.metadata.generation;
            let mut status = ServiceSetStatus {
                observed_generation: previous.observed_generation,
                ..of_set
            };
            if is_current {
                status.observed_generation = Some(generation);
                status
                    .conditions
                    .iter_mut()
                    .for_each(|condition| condition.observed_generation = Some(generation));
            }
            status
        }
        Err(verdicts) => ServiceSetStatus {
            observed_generation: Some(generation),
            conditions: conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now()),
            ..previous
        },
    };
    resources::write_status::<ManagedNamespace>(&replica.store, name, &resource.uid, &status).await?;
    Ok(Next::OnChange)
}
