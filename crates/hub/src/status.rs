//! Answers of the server itself in the form that Kubernetes clients read: `metav1.Status`.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use crate::auth::Unauthenticated;

pub fn failure(code: StatusCode, reason: &str, message: &str) -> Response {
    let body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code.as_u16(),
    });
    (code, Json(body)).into_response()
}

/// With the pause that clients keep before a retry.
pub fn try_later(code: StatusCode, reason: &str, message: &str) -> Response {
    let mut response = failure(code, reason, message);
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The message is kube-apiserver's and does not reveal which part of the credentials was right.
pub fn unauthenticated(error: &Unauthenticated) -> Response {
    if let Unauthenticated::Unavailable(source) = error {
        tracing::error!(
            error = source as &dyn std::error::Error,
            "a token could not be looked up"
        );
        return try_later(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "the token could not be looked up",
        );
    }
    let mut response = failure(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized");
    response.headers_mut().insert(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Bearer realm=\"farwater\""),
    );
    response
}

pub fn forbidden(message: &str) -> Response {
    failure(StatusCode::FORBIDDEN, "Forbidden", message)
}

pub fn not_found() -> Response {
    failure(
        StatusCode::NOT_FOUND,
        "NotFound",
        "the server could not find the requested resource",
    )
}
