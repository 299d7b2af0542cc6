//! Answers: content negotiation, single objects, lists, `metav1.Status`, warnings.

use axum::{body::Body, response::Response};
use farwater_store::JsonResource;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{
    request::Query,
    table::{self, IncludeObject},
};
use crate::kinds::{ResourceKind, status::ApiError};

/// The form of an answer, as the request's Accept header asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    Partial,
    /// For lists.
    Partials,
    Table(IncludeObject),
}

const OFFERED: &str = "application/json, application/json;as=Table;v=v1;g=meta.k8s.io, \
     application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

impl Form {
    /// The first acceptable form in the header's own order, which is how Kubernetes' clients rank them.
    pub fn negotiate(headers: &HeaderMap, query: &Query) -> Result<Self, ApiError> {
        let accept = accept(headers);
        if accept.trim().is_empty() {
            return Ok(Self::Plain);
        }
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            if !matches!(parts.next(), Some("application/json" | "application/*" | "*/*")) {
                continue;
            }
            let parameter = |name: &str| {
                range
                    .split(';')
                    .skip(1)
                    .find_map(|p| p.trim().strip_prefix(name)?.trim_start().strip_prefix('='))
            };
            let meta_v1 = parameter("g") == Some("meta.k8s.io") && parameter("v") == Some("v1");
            match parameter("as") {
                None => return Ok(Self::Plain),
                Some("Table") if meta_v1 => return Ok(Self::Table(include_object(query)?)),
                Some("PartialObjectMetadata") if meta_v1 => return Ok(Self::Partial),
                Some("PartialObjectMetadataList") if meta_v1 => return Ok(Self::Partials),
                Some(_) => {}
            }
        }
        Err(ApiError::not_acceptable(OFFERED))
    }
}

impl Form {
    /// Forms of lists don't fit objects, and forms of objects don't fit lists.
    pub fn fits(self, verb: &str) -> Result<(), ApiError> {
        let fits = match self {
            Self::Partial => !matches!(verb, "list" | "deletecollection"),
            Self::Partials => matches!(verb, "list" | "deletecollection"),
            Self::Plain | Self::Table(_) => true,
        };
        if fits {
            Ok(())
        } else {
            Err(ApiError::not_acceptable(OFFERED))
        }
    }
}

fn include_object(query: &Query) -> Result<IncludeObject, ApiError> {
    match query.get("includeObject") {
        None | Some("" | "Metadata") => Ok(IncludeObject::Metadata),
        Some("None") => Ok(IncludeObject::None),
        Some("Object") => Ok(IncludeObject::Object),
        Some(other) => Err(ApiError::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', \
             'None', or empty"
        ))),
    }
}

/// All Accept headers as one list.
pub fn accept(headers: &HeaderMap) -> String {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    values.collect::<Vec<_>>().join(",")
}

/// The content type without parameters, in lower case.
pub fn content_type(headers: &HeaderMap) -> String {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub fn bytes(code: u16, content_type: &'static str, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub fn json(code: u16, value: &Value) -> Response {
    bytes(code, "application/json", value.to_string().into_bytes())
}

pub fn error(error: &ApiError) -> Response {
    let mut response = json(error.code, &error.to_value());
    if let Some(seconds) = error.retry_after() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    add_warnings(&mut response, &error.warnings);
    response
}

/// Adds `Warning: 299` headers, which kubectl prints. Characters that a header can't contain are left out.
pub fn add_warnings(response: &mut Response, warnings: &[String]) {
    // A limit, because a body could cause any number.
    const MOST: usize = 32;
    for warning in warnings.iter().take(MOST) {
        let clean: String = warning.chars().filter(|c| matches!(c, ' '..='~')).take(512).collect();
        let quoted = clean.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// An object as a list or a watch shows it.
pub fn shown(kind: &ResourceKind, object: &Value, form: Form, columns: bool, now: Timestamp) -> Value {
    match form {
        Form::Plain => object.clone(),
        Form::Partial | Form::Partials => table::partial(object),
        Form::Table(include) => {
            let list_meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            table::table(
                list_meta,
                columns.then(|| table::columns(kind)),
                vec![table::row(kind, object, include, now)],
            )
        }
    }
}

pub fn object(code: u16, kind: &ResourceKind, object: &Value, form: Form, now: Timestamp) -> Response {
    match form {
        Form::Plain => json(code, object),
        other => json(code, &shown(kind, object, other, true, now)),
    }
}

/// Writes a list. Items are written without a copy in between, because lists are the largest answers.
pub fn list<'a>(
    kind: &ResourceKind,
    items: impl Iterator<Item = std::borrow::Cow<'a, Value>>,
    list_meta: &Value,
    form: Form,
    now: Timestamp,
) -> Result<Response, ApiError> {
    if let Form::Table(include) = form {
        let rows = items.map(|item| table::row(kind, &item, include, now)).collect();
        return Ok(json(
            200,
            &table::table(list_meta.clone(), Some(table::columns(kind)), rows),
        ));
    }
    let (list_kind, version) = match form {
        Form::Partial | Form::Partials => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        _ => (format!("{}List", kind.kind), kind.api_version()),
    };
    let mut body = list_head(&list_kind, &version, list_meta);
    for (n, item) in items.enumerate() {
        if n > 0 {
            body.push(b',');
        }
        let written = match form {
            Form::Partial | Form::Partials => serde_json::to_writer(&mut body, &table::partial(&item)),
            // Items of typed lists don't repeat the list's apiVersion and kind; items of custom resources do.
            _ if !kind.ours => serde_json::to_writer(&mut body, &Untyped(&item)),
            _ => serde_json::to_writer(&mut body, &*item),
        };
        written.map_err(ApiError::internal)?;
    }
    body.extend_from_slice(b"]}");
    Ok(bytes(200, "application/json", body))
}

/// Writes a list of objects as they are stored.
pub fn json_list(kind: &ResourceKind, items: &[JsonResource], list_meta: &Value) -> Response {
    let mut body = list_head(&format!("{}List", kind.kind), &kind.api_version(), list_meta);
    body.reserve_exact(items.iter().map(|item| item.json.len() + 1).sum::<usize>() + 2);
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&item.json);
    }
    body.extend_from_slice(b"]}");
    bytes(200, "application/json", body)
}

fn list_head(kind: &str, version: &str, list_meta: &Value) -> Vec<u8> {
    let (kind, version) = (json!(kind), json!(version));
    format!("{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{list_meta},\"items\":[").into_bytes()
}

/// An object without its apiVersion and kind.
struct Untyped<'a>(&'a Value);

impl Serialize for Untyped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.0.as_object().into_iter().flatten();
        serializer.collect_map(fields.filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind")))
    }
}

/// The answer to a completed delete.
pub fn deleted(kind: &ResourceKind, name: &str, uid: &str) -> Value {
    let mut details = json!({"name": name, "kind": kind.plural, "uid": uid});
    if !kind.group.is_empty() {
        details["group"] = json!(kind.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiate(accept: &str) -> Result<Form, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        Form::negotiate(&headers, &Query::default()).map_err(|e| e.code)
    }

    #[test]
    fn the_first_acceptable_form_is_taken() {
        let table = Form::Table(IncludeObject::Metadata);
        for (accept, expected) in [
            ("", Ok(Form::Plain)),
            ("*/*", Ok(Form::Plain)),
            ("application/vnd.kubernetes.protobuf,application/json", Ok(Form::Plain)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Ok(table),
            ),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Ok(Form::Plain),
            ),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Ok(Form::Partial),
            ),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Ok(Form::Partials),
            ),
            ("application/json;stream=watch", Ok(Form::Plain)),
            ("text/html", Err(406)),
            ("application/vnd.kubernetes.protobuf", Err(406)),
        ] {
            assert_eq!(negotiate(accept), expected, "{accept}");
        }
    }

    #[test]
    fn warnings_can_not_break_out_of_their_header() {
        let mut response = json(200, &Value::Null);
        add_warnings(&mut response, &["unknown field \"a\\b\"\r\nX: 1".into()]);
        assert_eq!(
            response.headers()[header::WARNING],
            "299 - \"unknown field \\\"a\\\\b\\\"X: 1\""
        );
    }
}
