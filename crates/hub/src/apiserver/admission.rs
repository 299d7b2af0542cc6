//! What must hold beyond an object's own schema before it is written, and what is merged in when it is read.

use std::borrow::Cow;

use serde_json::Value;

use super::{call::Call, kinds::ResourceKind, meta, status::ApiError};
use crate::{Hub, auth::EscalationError};

/// Refuses a write that its sender has no right to make although they may write the kind.
pub async fn admit(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if call.kind.group == "rbac.authorization.k8s.io" {
        return check_escalation(call, object, old).await;
    }
    Ok(())
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
pub fn decorated<'a>(_hub: &Hub, _kind: &ResourceKind, object: &'a Value) -> Cow<'a, Value> {
    Cow::Borrowed(object)
}
