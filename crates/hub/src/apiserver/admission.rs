//! What must hold beyond an object's own schema before it is written, and what is merged in when it is read.

use std::borrow::Cow;

use farwater_api::{Cluster, ServiceDeployment};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    call::{Call, store_failed},
    kinds::ResourceKind,
    meta,
    status::{ApiError, FieldError},
};
use crate::{
    Hub,
    auth::EscalationError,
    controllers::resources::Stored as _,
    delivery::admission::{Inadmissible, check_service},
};

/// Refuses a write that its sender has no right to make although they may write the kind.
pub async fn admit(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if call.kind.group == "rbac.authorization.k8s.io" {
        return check_escalation(call, object, old).await;
    }
    if call.kind.store == ServiceDeployment::kind() {
        return check_placement(call, object, old).await;
    }
    Ok(())
}

/// A right on the hub's API is none on a cluster: that is a ClusterGrant's.
async fn check_placement(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let name = meta::text(object, "name");
    let service = ServiceDeployment::deserialize(object).map_err(ApiError::internal)?;
    let old = old.map(ServiceDeployment::deserialize).transpose().map_err(ApiError::internal)?;
    let checked = check_service(&call.hub.store, &call.info.namespace, &service.spec, old.as_ref()).await;
    checked.map_err(|error| match error {
        Inadmissible::Denied(denied) => call.forbidden(name, &denied.to_string()),
        Inadmissible::ClusterChanged => {
            let cause = FieldError::invalid("spec.clusterRef", &object["spec"]["clusterRef"], &error.to_string());
            ApiError::invalid(&call.kind.group, &call.kind.kind, name, vec![cause])
        }
        Inadmissible::Store(error) => store_failed(error),
    })
}

/// Nobody grants what they don't hold. A write that leaves the grant as it is may pass: labels are no rights.
async fn check_escalation(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let grants = ["rules", "aggregationRule", "roleRef", "subjects"];
    if old.is_some_and(|old| grants.iter().all(|field| old.get(*field) == object.get(*field))) {
        return Ok(());
    }
    call.hub.access.check_escalation(&call.user, object).await.map_err(|error| match error {
        EscalationError::Refused(why) => call.forbidden(meta::text(object, "name"), &why.to_string()),
        EscalationError::Access(error) => ApiError::unavailable(error.to_string()),
    })
}

/// An object as it is read: with what is kept beside it.
pub fn decorated<'a>(hub: &Hub, kind: &ResourceKind, object: &'a Value) -> Cow<'a, Value> {
    if kind.store != Cluster::kind() {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    hub.delivery.merge_last_heard(&mut object);
    Cow::Owned(object)
}
