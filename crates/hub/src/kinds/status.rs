//! Refusals in Kubernetes' form: `metav1.Status` with field causes.
//!
//! Texts and reasons follow `k8s.io/apimachinery/pkg/api/errors` and `pkg/util/validation/field`, because clients match
//! on them. Tests compare them with the real kube-apiserver.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

/// The message of a refusal while too many answers to a user are unread.
pub const TOO_MUCH: &str = "too much that was sent to this user is not read yet; try again";

/// A request that was refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Box<Details>>,
    /// Warnings about the request, for `Warning` headers.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<FieldError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// An error about one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    pub reason: &'static str,
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn with_detail(head: String, detail: &str) -> String {
    if detail.is_empty() {
        head
    } else {
        format!("{head}: {detail}")
    }
}

/// A value as an error repeats it. Long ones are cut, so that an answer never grows with the request.
fn shown(value: &Value) -> String {
    cut(&value.to_string())
}

fn cut(text: &str) -> String {
    const LONGEST: usize = 1024;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl FieldError {
    fn new(reason: &'static str, field: impl Into<String>, message: String) -> Self {
        Self {
            reason,
            field: field.into(),
            message,
        }
    }

    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(
            "FieldValueRequired",
            field,
            with_detail("Required value".into(), detail),
        )
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(
            "FieldValueInvalid",
            field,
            with_detail(format!("Invalid value: {}", shown(value)), detail),
        )
    }

    /// For a value that may be secret.
    pub fn invalid_unquoted(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueInvalid", field, with_detail("Invalid value".into(), detail))
    }

    /// For a value that is not shown as JSON with sorted fields.
    pub fn invalid_as(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::new(
            "FieldValueInvalid",
            field,
            with_detail(format!("Invalid value: {}", cut(value)), detail),
        )
    }

    pub fn wrong_type(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(
            "FieldValueTypeInvalid",
            field,
            with_detail(format!("Invalid value: {}", shown(value)), detail),
        )
    }

    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list = supported
            .iter()
            .map(|s| format!("{s:?}"))
            .collect::<Vec<_>>()
            .join(", ");
        let head = format!("Unsupported value: {}", shown(value));
        Self::new(
            "FieldValueNotSupported",
            field,
            with_detail(head, &format!("supported values: {list}")),
        )
    }

    pub fn too_long(field: impl Into<String>, max: u64) -> Self {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        Self::new(
            "FieldValueTooLong",
            field,
            format!("Too long: may not be more than {max} {bytes}"),
        )
    }

    pub fn too_many(field: impl Into<String>, actual: usize, max: u64) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::new(
            "FieldValueTooMany",
            field,
            format!("Too many: {actual}: must have at most {max} {items}"),
        )
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new(
            "FieldValueDuplicate",
            field,
            format!("Duplicate value: {}", shown(value)),
        )
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueForbidden", field, with_detail("Forbidden".into(), detail))
    }
}

/// `resource.group`, or the bare resource in the core group.
pub fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}

fn details(group: &str, kind: &str, name: &str) -> Details {
    Details {
        name: name.into(),
        group: group.into(),
        kind: kind.into(),
        ..Details::default()
    }
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            warnings: Vec::new(),
        }
    }

    pub fn with_warnings(mut self, warnings: &[String]) -> Self {
        self.warnings = warnings.to_vec();
        self
    }

    fn with(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// An error without a reason in Kubernetes.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// A conflict about fields that other managers own.
    pub fn apply_conflict(message: impl Into<String>, causes: Vec<FieldError>) -> Self {
        Self::new(409, "Conflict", message).with(Details {
            causes,
            ..Details::default()
        })
    }

    /// A parameter that Kubernetes has and this server doesn't support. Ignoring it would change the meaning of the
    /// request.
    pub fn unsupported_parameter(name: &str, why: &str) -> Self {
        Self::bad_request(format!("the parameter {name:?} is not supported here: {why}"))
    }

    pub fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with(Details::default())
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} not found", qualified(resource, group));
        Self::new(404, "NotFound", message).with(details(group, resource, name))
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let what = qualified(resource, group);
        let message = if resource.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {name:?} is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).with(details(group, resource, name))
    }

    /// Adds a cause of [`farwater_api::refusal`].
    pub fn because(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        self.details.get_or_insert_default().causes.push(FieldError {
            reason,
            message: message.into(),
            field: String::new(),
        });
        self
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", qualified(resource, group));
        Self::new(409, "AlreadyExists", message).with(details(group, resource, name))
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            qualified(resource, group)
        );
        Self::new(409, "Conflict", message).with(details(group, resource, name))
    }

    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, resource, name, why)
    }

    /// `kind` is the kind (`Secret`), not the resource, as in Kubernetes.
    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<FieldError>) -> Self {
        let mut lines: Vec<String> = Vec::with_capacity(causes.len());
        for cause in &causes {
            let line = cause.to_string();
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let list = if lines.len() == 1 {
            lines.remove(0)
        } else {
            format!("[{}]", lines.join(", "))
        };
        let message = format!("{} {name:?} is invalid: {list}", qualified(kind, group));
        Self::new(422, "Invalid", message).with(Details {
            causes,
            ..details(group, kind, name)
        })
    }

    /// Invalid options of a request. `kind`: `ListOptions`, `DeleteOptions` and the like.
    pub fn invalid_options(kind: &str, causes: Vec<FieldError>) -> Self {
        Self::invalid("meta.k8s.io", kind, "", causes)
    }

    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message).with(Details::default())
    }

    pub fn not_acceptable(offered: &str) -> Self {
        let message = format!("only the following media types are accepted: {offered}");
        Self::new(406, "NotAcceptable", message)
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// For a patch of a built-in kind: Kubernetes' router refuses it before any other check.
    pub fn wrong_media_type() -> Self {
        Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type").with(Details::default())
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn version_too_large(asked: u64, current: u64) -> Self {
        let cause = FieldError {
            reason: "ResourceVersionTooLarge",
            message: "Too large resource version".into(),
            field: String::new(),
        };
        Self::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {asked}, current: {current}"),
        )
        .with(Details {
            causes: vec![cause],
            retry_after_seconds: Some(1),
            ..Details::default()
        })
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// It is unknown whether the write was committed.
    pub fn outcome_unknown(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message).with(Details {
            retry_after_seconds: Some(1),
            ..Details::default()
        })
    }

    pub fn too_many_watches_of_user() -> Self {
        let message = "this user has a quarter of all watches of the server already; try again";
        Self::new(429, "TooManyRequests", message).with(Details {
            retry_after_seconds: Some(1),
            ..Details::default()
        })
    }

    pub fn too_many_unread() -> Self {
        Self::new(429, "TooManyRequests", TOO_MUCH).with(Details {
            retry_after_seconds: Some(1),
            ..Details::default()
        })
    }

    pub fn too_many_watches(limit: usize) -> Self {
        let message = format!("the server serves {limit} watches already, as many as max-watches allows; try again");
        Self::new(429, "TooManyRequests", message).with(Details {
            retry_after_seconds: Some(1),
            ..Details::default()
        })
    }

    pub fn retry_after(&self) -> Option<u32> {
        self.details.as_ref().and_then(|d| d.retry_after_seconds)
    }

    /// The `metav1.Status` body.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            status["details"] = json!(details);
        }
        status
    }
}
