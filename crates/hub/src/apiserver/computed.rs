//! Objects that are computed for a request and stored nowhere: their requests and answers.

use axum::response::Response;
use farwater_store::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    apiserver::{
        body::{self, Encoding},
        call::Call,
        respond,
    },
    kinds::status::ApiError,
};

pub fn our_api_version() -> String {
    format!("{}/{}", farwater_api::GROUP, farwater_api::VERSION)
}

/// The `spec` of a request that isn't stored; None: it has none.
pub fn read_spec<T: DeserializeOwned>(call: &Call, bytes: &[u8], kind: &str) -> Result<Option<T>, ApiError> {
    let wrong = |why: String| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why}"
        ))
    };
    let encoding = Encoding::of(&respond::content_type(&call.headers))?;
    let mut request = body::decode(bytes, encoding).map_err(wrong)?.value;
    let Some(request) = request.as_object_mut() else {
        return Err(wrong("it is no object".to_owned()));
    };
    match request.remove("spec") {
        None | Some(Value::Null) => Ok(None),
        Some(spec) => serde_json::from_value(spec)
            .map(Some)
            .map_err(|error| wrong(format!("spec: {error}"))),
    }
}

pub fn answer_list(kind: &str, of: &Resource, items: &impl Serialize) -> Response {
    let answer = json!({
        "apiVersion": our_api_version(),
        "kind": kind,
        "metadata": {"resourceVersion": of.version.to_string()},
        "items": items,
    });
    respond::json(200, &answer)
}
