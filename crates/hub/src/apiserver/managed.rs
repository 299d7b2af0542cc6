//! Ownership of an object's fields: names of managers, and the answer to a refused apply.

use farwater_fieldmanager::{ApplyError, Conflict, FieldManager};
use http::header;
use serde_json::Value;

use super::{
    call::Call,
    options::{MANAGER_LIMIT, WriteOptions, is_printable},
};
use crate::kinds::{
    status::{ApiError, FieldError},
    views,
};

/// The manager for the resource or subresource of a request.
pub fn manager_of(call: &Call) -> Result<&'static FieldManager, ApiError> {
    let found = call.kind.managers.get(call.info.subresource.as_str());
    found.ok_or_else(|| ApiError::internal("a resource without field managers is written"))
}

/// Name of the writer: from the request, or the program that sends it.
fn name(call: &Call, options: &WriteOptions) -> String {
    if !options.manager.is_empty() {
        return options.manager.clone();
    }
    let agent = call
        .headers
        .get(header::USER_AGENT)
        .map(|agent| String::from_utf8_lossy(agent.as_bytes()));
    name_of_agent(agent.as_deref().unwrap_or_default())
}

/// The part before the first slash.
fn name_of_agent(agent: &str) -> String {
    let mut name = String::new();
    for c in agent
        .split('/')
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| is_printable(*c))
    {
        if name.len() + c.len_utf8() > MANAGER_LIMIT {
            break;
        }
        name.push(c);
    }
    name
}

/// Returns an object that is about to be written, with its managers.
pub fn track(call: &Call, options: &WriteOptions, live: Option<&Value>, new: Value) -> Result<Value, ApiError> {
    let manager = manager_of(call)?;
    if call.kind.view.is_none() {
        return Ok(manager.update(live, new, &name(call, options), call.now));
    }
    // Fields are owned under the names that the client used.
    let live = live.map(|live| views::show(call.kind, live));
    let shown = views::show(call.kind, &new).into_owned();
    let mut tracked = manager.update(live.as_deref(), shown, &name(call, options), call.now);
    let (mut new, owned) = (new, tracked["metadata"]["managedFields"].take());
    if let Some(metadata) = new["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.extend((!owned.is_null()).then(|| ("managedFields".to_owned(), owned)));
    }
    Ok(new)
}

/// The answer to a refused apply, in Kubernetes' words.
pub fn refusal(error: &ApplyError) -> ApiError {
    let message = error.to_string();
    match error {
        ApplyError::Kind(_) | ApplyError::ManagedFields => ApiError::bad_request(message),
        ApplyError::Config { .. } | ApplyError::Live { .. } | ApplyError::Managers(_) => ApiError::unknown(message),
        ApplyError::TooManyManagers => ApiError::new(413, "RequestEntityTooLarge", message),
        ApplyError::Conflicts(conflicts) => {
            let cause = |conflict: &Conflict| FieldError {
                reason: "FieldManagerConflict",
                message: format!("conflict with {}", conflict.manager),
                field: conflict.path.to_string(),
            };
            ApiError::apply_conflict(message, conflicts.0.iter().map(cause).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_what_stands_before_the_slash() {
        for (agent, expected) in [
            ("kubectl/v1.36.3 (linux/amd64)", "kubectl".to_owned()),
            ("", String::new()),
            ("a\u{7}b", "ab".to_owned()),
            (&"x".repeat(200), "x".repeat(128)),
            (&"\u{e9}".repeat(100), "\u{e9}".repeat(64)),
        ] {
            assert_eq!(name_of_agent(agent), expected);
        }
    }
}
