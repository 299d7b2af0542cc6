//! A parsed request, like kube-apiserver's `RequestInfo`. Authorization and the handlers both use this value, so they
//! can't disagree about what was requested.

use std::num::{IntErrorKind, ParseIntError};

use http::{Method, Uri};

use crate::kinds::status::ApiError;

/// The decoded query of a request. The first of repeated parameters counts, as in Go's `url.Values.Get`.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

/// In Go's words.
pub fn why_no_number(error: &ParseIntError) -> &'static str {
    match error.kind() {
        IntErrorKind::NegOverflow | IntErrorKind::PosOverflow => "value out of range",
        _ => "invalid syntax",
    }
}

impl Query {
    pub fn parse(uri: &Uri) -> Result<Self, ApiError> {
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|q| Self(q.0))
            .map_err(|e| ApiError::bad_request(format!("the query can't be read: {}", e.body_text())))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Like apimachinery's conversion of query parameters: an empty value is true for a flag; an absent one, `0` and
    /// `false` are false.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| !matches!(v, "0" | "false"))
    }

    pub fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|error| {
                ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {}", why_no_number(&error)))
            }),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
    pub path: String,
    /// False: discovery, OpenAPI and the like; only `verb` and `path` count.
    pub is_resource: bool,
}

/// Percent-decodes one segment. An encoded slash is refused, because a proxy before the hub could read the path
/// differently.
fn decode_segment(segment: &str) -> Result<String, ApiError> {
    let bad = || ApiError::bad_request(format!("the path segment {segment:?} can't be decoded"));
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next().ok_or_else(bad)?, rest.next().ok_or_else(bad)?];
        let mut decoded = [0];
        hex::decode_to_slice(digits, &mut decoded).map_err(|_| bad())?;
        bytes.push(decoded[0]);
    }
    let text = String::from_utf8(bytes).map_err(|_| bad())?;
    if text.contains('/') || text == "." || text == ".." || text.contains('\0') {
        return Err(bad());
    }
    Ok(text)
}

fn verb_of(method: &Method) -> String {
    match *method {
        Method::GET | Method::HEAD => "get".into(),
        Method::POST => "create".into(),
        Method::PUT => "update".into(),
        Method::PATCH => "patch".into(),
        Method::DELETE => "delete".into(),
        _ => method.as_str().to_ascii_lowercase(),
    }
}

impl RequestInfo {
    pub fn parse(method: &Method, uri: &Uri, query: &Query) -> Result<Self, ApiError> {
        let mut info = Self {
            path: uri.path().into(),
            ..Self::default()
        };
        let segments = uri
            .path()
            .trim_matches('/')
            .split('/')
            .map(decode_segment)
            .collect::<Result<Vec<_>, _>>()?;
        let mut rest = segments.as_slice();
        let resource_path = match rest {
            [api, version, tail @ ..] if api == "api" && !tail.is_empty() => {
                info.version.clone_from(version);
                rest = tail;
                true
            }
            [apis, group, version, tail @ ..] if apis == "apis" && !tail.is_empty() => {
                info.group.clone_from(group);
                info.version.clone_from(version);
                rest = tail;
                true
            }
            _ => false,
        };

        if !resource_path {
            info.verb = method.as_str().to_ascii_lowercase();
            return Ok(info);
        }
        if rest.iter().any(String::is_empty) {
            return Err(ApiError::no_such_path());
        }

        info.is_resource = true;
        info.verb = verb_of(method);
        if let ("namespaces", Some(namespace)) = (rest[0].as_str(), rest.get(1)) {
            info.namespace.clone_from(namespace);
            // `namespaces/NAME/status` is a subresource of the namespace; any other path is in the namespace.
            if rest.len() > 2 && !matches!(rest[2].as_str(), "status" | "finalize") {
                rest = &rest[2..];
                // Namespaces are in no namespace: the authorized namespace would differ from the one that is served.
                if rest[0] == "namespaces" {
                    return Err(ApiError::no_such_path());
                }
            }
        }

        // `/watch/...` and `/proxy/...` prefixes were deprecated in Kubernetes 1.11 and aren't served.
        if rest.len() > 3 || matches!(rest[0].as_str(), "watch" | "proxy") {
            return Err(ApiError::no_such_path());
        }

        info.resource.clone_from(&rest[0]);
        info.name = rest.get(1).cloned().unwrap_or_default();
        info.subresource = rest.get(2).cloned().unwrap_or_default();
        info.refine_collection_verb(query);
        Ok(info)
    }

    fn refine_collection_verb(&mut self, query: &Query) {
        if !self.name.is_empty() {
            return;
        }
        if self.verb == "get" {
            self.verb = if query.flag("watch") { "watch" } else { "list" }.into();
            // A role limited by resourceNames may thus list and watch the one object that it names.
            if let Some(name) = query
                .get("fieldSelector")
                .and_then(|s| s.strip_prefix("metadata.name="))
            {
                let name = name.strip_prefix('=').unwrap_or(name);
                if !name.contains([',', '=', '!', '\\']) {
                    self.name = name.to_owned();
                }
            }
        } else if self.verb == "delete" {
            self.verb = "deletecollection".into();
        }
    }

    /// Whether this path can name objects of a kind. Objects of cluster-scoped kinds have no namespace in their path,
    /// except a Namespace, whose own name is there. So the authorized namespace is the namespace of every object that
    /// the request touches.
    pub fn reaches(&self, is_namespaced: bool) -> bool {
        let is_itself = self.resource == "namespaces" && self.group.is_empty() && self.namespace == self.name;
        is_namespaced || self.namespace.is_empty() || is_itself
    }

    /// Whether the request is for a collection, even if a field selector adds a name.
    pub fn is_collection(&self) -> bool {
        matches!(self.verb.as_str(), "list" | "watch" | "deletecollection") || self.name.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    fn parse(method: Method, uri: &str) -> Result<RequestInfo, ApiError> {
        let uri: Uri = uri.parse().unwrap();
        RequestInfo::parse(&method, &uri, &Query::parse(&uri).unwrap())
    }

    fn check(method: Method, uri: &str, expected: &str) {
        let i = parse(method, uri).unwrap();
        let got = format!(
            "{} {}/{} {}/{}/{}/{}",
            i.verb, i.group, i.version, i.namespace, i.resource, i.name, i.subresource
        );
        assert_eq!(got, expected, "{uri}");
    }

    #[test]
    fn requests_are_parsed_as_kube_apiserver_does() {
        check(Method::GET, "/api/v1/namespaces", "list /v1 /namespaces//");
        check(Method::GET, "/api/v1/namespaces/a", "get /v1 a/namespaces/a/");
        check(
            Method::PUT,
            "/api/v1/namespaces/a/status",
            "update /v1 a/namespaces/a/status",
        );
        check(Method::GET, "/api/v1/namespaces/a/secrets", "list /v1 a/secrets//");
        check(
            Method::GET,
            "/api/v1/namespaces/a/secrets?watch=1",
            "watch /v1 a/secrets//",
        );
        check(Method::GET, "/api/v1/secrets?watch=false", "list /v1 /secrets//");
        check(
            Method::GET,
            "/api/v1/secrets?fieldSelector=metadata.name%3Dx",
            "list /v1 /secrets/x/",
        );
        check(
            Method::DELETE,
            "/apis/g.d/v1/namespaces/a/xs",
            "deletecollection g.d/v1 a/xs//",
        );
        check(
            Method::DELETE,
            "/apis/g.d/v1/namespaces/a/xs/b%3Ac",
            "delete g.d/v1 a/xs/b:c/",
        );
        check(
            Method::POST,
            "/api/v1/namespaces/a/serviceaccounts/b/token",
            "create /v1 a/serviceaccounts/b/token",
        );
        check(Method::GET, "/apis/g.d/v1", "get / ///");
    }

    #[test]
    fn paths_that_two_parsers_could_read_differently_are_refused() {
        for path in [
            "/api/v1/namespaces/a%2Fb/secrets",
            "/api/v1//secrets",
            "/api/v1/namespaces/../secrets",
            "/api/v1/a%zz",
        ] {
            assert!(parse(Method::GET, path).is_err(), "{path}");
        }
        assert!(parse(Method::GET, "/api/v1/watch/secrets").is_err());
        assert!(parse(Method::GET, "/api/v1/namespaces/a/pods/b/proxy/c").is_err());
    }

    /// Each kind × method × prefix, also doubled, foreign and encoded ones: the object that is served is in the
    /// authorized namespace.
    #[test]
    fn the_namespace_that_is_authorized_is_the_one_that_is_touched() {
        let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        let prefixes = [
            "",
            "/namespaces/mine",
            "/namespaces/namespaces",
            "/namespaces/mine/namespaces/other",
            "/namespaces/mine/namespaces",
            "/namespaces/mine/%6eamespaces",
            "/%6eamespaces/mine/namespaces",
            "/namespaces/m%69ne",
            "/namespaces/mine/status",
        ];
        let ends = [
            "",
            "/other",
            "/mine",
            "/namespaces",
            "/other/status",
            "/mine/finalize",
            "?fieldSelector=metadata.name=mine",
        ];
        let mut served = 0;
        let paths = prefixes
            .iter()
            .flat_map(|prefix| ends.iter().map(move |end| (prefix, end)));
        let asked = paths.flat_map(|path| methods.iter().map(move |method| (path, method)));
        let all = REGISTRY
            .kinds
            .iter()
            .flat_map(|kind| asked.clone().map(move |asked| (kind, asked)));
        for (kind, ((prefix, end), method)) in all {
            let place = if kind.group.is_empty() {
                "/api/v1".to_owned()
            } else {
                format!("/apis/{}", kind.api_version())
            };
            let path = format!("{place}{prefix}/{}{end}", kind.plural);
            let Ok(info) = parse(method.clone(), &path) else {
                continue;
            };
            let Some(kind) = REGISTRY.find(&info.group, &info.version, &info.resource) else {
                continue;
            };
            if !info.reaches(kind.namespaced) {
                continue;
            }
            served += 1;
            // A key has the namespace, if its kind is namespaced, and the name.
            let touched = if kind.namespaced { &info.namespace } else { "" };
            let is_itself = kind.plural == "namespaces" && info.name == info.namespace && !info.is_collection();
            assert!(info.namespace == touched || is_itself, "{method} {path}: {info:?}");
        }
        assert!(served > 1000, "{served}");
    }
}
