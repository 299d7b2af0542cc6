//! Paths that are not resources: discovery and OpenAPI.

use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};
use serde_json::Value;

use super::{
    discovery::{self, AGGREGATED},
    openapi,
    request::RequestInfo,
    respond,
};
use crate::kinds::{REGISTRY, status::ApiError};

pub fn answer(info: &RequestInfo, headers: &HeaderMap) -> Result<Response, ApiError> {
    if !matches!(info.verb.as_str(), "get" | "head") {
        return Err(ApiError::method_not_allowed());
    }
    let segments: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    let found = match segments.as_slice() {
        ["api" | "apis"] if wants_aggregated(headers) => {
            let body = discovery::aggregated(&REGISTRY, segments[0] == "api")
                .to_string()
                .into_bytes();
            return Ok(vary(respond::bytes(200, AGGREGATED, body)));
        }
        ["api"] => Some(discovery::core_versions(host(headers))),
        ["apis"] => Some(discovery::groups(&REGISTRY)),
        ["api", version] => discovery::resources(&REGISTRY, "", version),
        ["apis", group] => discovery::group(&REGISTRY, group),
        ["apis", group, version] => discovery::resources(&REGISTRY, group, version),
        ["openapi", "v3"] => Some(openapi::index()),
        ["openapi", "v3", rest @ ..] => return document(openapi::V3.get(&rest.join("/")), headers),
        ["openapi", "v2"] => return openapi_v2(headers),
        _ => None,
    };
    found
        .map(|value: Value| vary(respond::json(200, &value)))
        .ok_or_else(ApiError::no_such_path)
}

/// The form of discovery depends on the Accept header, which caches in between must know.
fn vary(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn host(headers: &HeaderMap) -> &str {
    headers
        .get(header::HOST)
        .and_then(|h| h.to_str().ok())
        .unwrap_or_default()
}

/// Only clients that request v2 of the aggregated form get it; those of Kubernetes 1.27 to 1.29 request only v2beta1.
fn wants_aggregated(headers: &HeaderMap) -> bool {
    respond::accept(headers).split(',').any(|range| {
        let parts: Vec<&str> = range.split(';').map(str::trim).collect();
        [
            "application/json",
            "g=apidiscovery.k8s.io",
            "v=v2",
            "as=APIGroupDiscoveryList",
        ]
        .iter()
        .all(|part| parts.contains(part))
    })
}

fn document(found: Option<&openapi::Document>, headers: &HeaderMap) -> Result<Response, ApiError> {
    let found = found.ok_or_else(ApiError::no_such_path)?;
    let etag = format!("\"{}\"", found.hash);
    let unchanged = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|v| v.as_bytes() == etag.as_bytes());
    let mut response = if unchanged {
        respond::bytes(304, "application/json", Vec::new())
    } else {
        respond::bytes(200, "application/json", found.body.clone())
    };
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Ok(response)
}

/// JSON if the client accepts JSON. kubectl requests only protobuf and continues without an answer; JSON labelled as
/// protobuf would be an error to it.
fn openapi_v2(headers: &HeaderMap) -> Result<Response, ApiError> {
    let accept = respond::accept(headers);
    let json = |range: &str| {
        matches!(
            range.split(';').next().map(str::trim),
            Some("application/json" | "*/*" | "application/*")
        )
    };
    if !accept.is_empty() && !accept.split(',').any(json) {
        return Err(ApiError::not_acceptable("application/json"));
    }
    document(Some(&openapi::V2), headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, accept: &str) -> (u16, String) {
        let info = RequestInfo {
            verb: "get".into(),
            path: path.into(),
            ..RequestInfo::default()
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        let response = match answer(&info, &headers) {
            Ok(response) => response,
            Err(error) => respond::error(&error),
        };
        let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        (response.status().as_u16(), kind)
    }

    #[test]
    fn aggregated_discovery_is_only_for_who_asks_for_it() {
        let v2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        let v2 = format!("{AGGREGATED},{v2beta1}");
        assert_eq!(get("/apis", &v2), (200, AGGREGATED.into()));
        assert_eq!(get("/apis", v2beta1), (200, "application/json".into()));
        assert_eq!(get("/api", "application/json"), (200, "application/json".into()));
    }

    #[test]
    fn openapi_v2_is_json_or_nothing() {
        assert_eq!(
            get(
                "/openapi/v2",
                "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
            )
            .0,
            406
        );
        assert_eq!(get("/openapi/v2", "application/json").0, 200);
        assert_eq!(get("/openapi/v3/apis/farwater.dev/v1alpha1", "application/json").0, 200);
        assert_eq!(get("/openapi/v3/apis/none/v1", "application/json").0, 404);
        assert_eq!(get("/apis/none", "application/json").0, 404);
    }
}
