//! The options of reads and writes: what a query and a delete's body may contain, checked as kube-apiserver does.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{
    body::{self, Encoding},
    request::{Query, why_no_number},
};
use crate::kinds::{
    REGISTRY, ResourceKind,
    removal::{Cascade, Propagation},
    schema,
    selector::Filter,
    status::{ApiError, FieldError},
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub validation: FieldValidation,
    /// Name of the field manager; empty: the request names none.
    pub manager: String,
    /// For an apply: take fields from their managers.
    pub force: bool,
}

/// Maximum length of a manager's name (`FieldManagerMaxLength`).
pub const MANAGER_LIMIT: usize = 128;

fn check_dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<bool, FieldError> {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|v| *v != "All") {
        return Err(FieldError::not_supported("dryRun", &json!(values), &["All"]));
    }
    Ok(!values.is_empty())
}

/// Like Go's `unicode.IsPrint`, except for unassigned characters.
pub fn is_printable(c: char) -> bool {
    let invisible = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    c == ' ' || !(c.is_control() || c.is_whitespace() || invisible)
}

fn check_manager(manager: &str, errors: &mut Vec<FieldError>) {
    if manager.len() > MANAGER_LIMIT {
        errors.push(FieldError::too_long("fieldManager", MANAGER_LIMIT as u64));
    }
    for (place, c) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
        let why = format!("invalid character U+{:04X} (at position {place})", u32::from(c));
        errors.push(FieldError::invalid("fieldManager", &json!(manager), &why));
    }
}

impl WriteOptions {
    /// `kind` is `CreateOptions`, `UpdateOptions` or `PatchOptions`.
    pub fn parse(query: &Query, kind: &str) -> Result<Self, ApiError> {
        let force = query
            .get("force")
            .map(|_| FieldError::forbidden("force", "may not be specified for non-apply patch"));
        Self::check(query, kind, force.into_iter().collect())
    }

    /// For an apply, which must name its manager.
    pub fn parse_apply(query: &Query) -> Result<Self, ApiError> {
        let anonymous = query.get("fieldManager").is_none_or(str::is_empty);
        let required = anonymous.then(|| FieldError::required("fieldManager", "is required for apply patch"));
        Self::check(query, "PatchOptions", required.into_iter().collect())
    }

    fn check(query: &Query, kind: &str, mut errors: Vec<FieldError>) -> Result<Self, ApiError> {
        let manager = query.get("fieldManager").unwrap_or_default().to_owned();
        check_manager(&manager, &mut errors);
        let dry_run = check_dry_run(query.all("dryRun")).unwrap_or_else(|error| {
            errors.push(error);
            false
        });
        let validation = match query.get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                errors.push(FieldError::not_supported("fieldValidation", &json!(other), &supported));
                FieldValidation::Warn
            }
        };
        if !errors.is_empty() {
            return Err(ApiError::invalid_options(kind, errors));
        }
        Ok(Self {
            dry_run,
            validation,
            manager,
            force: query.flag("force"),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    Exact,
    NotOlderThan,
}

/// Options of list, watch and deletecollection.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub filter: Filter,
    pub limit: usize,
    pub after: Option<Continue>,
    /// None: the request gives no version.
    pub version: Option<u64>,
    pub version_match: Option<VersionMatch>,
    pub bookmarks: bool,
    pub send_initial: bool,
    pub timeout_seconds: Option<u64>,
}

/// Where a list continues: after this key, and with the version of the first page.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Continue {
    /// Version of the token's format.
    v: u8,
    rv: u64,
    ns: String,
    name: String,
}

impl Continue {
    pub fn new(version: u64, (namespace, name): (String, String)) -> Self {
        Self {
            v: 1,
            rv: version,
            ns: namespace,
            name,
        }
    }

    pub fn version(&self) -> u64 {
        self.rv
    }

    pub fn key(&self) -> (String, String) {
        (self.ns.clone(), self.name.clone())
    }

    pub fn token(&self) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json!(self).to_string())
    }

    fn parse(token: &str) -> Option<Self> {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).ok()?;
        serde_json::from_slice(&bytes).ok().filter(|c: &Self| c.v == 1)
    }
}

/// Parses a resourceVersion; an empty one counts as absent.
pub fn version(query: &Query) -> Result<Option<u64>, ApiError> {
    match query.get("resourceVersion") {
        None | Some("") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|error| {
            ApiError::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {}",
                why_no_number(&error)
            ))
        }),
    }
}

impl ListOptions {
    pub fn parse(query: &Query, kind: &ResourceKind, watch: bool) -> Result<Self, ApiError> {
        if query.get("shardSelector").is_some() {
            return Err(ApiError::unsupported_parameter(
                "shardSelector",
                "lists and watches aren't sharded",
            ));
        }
        let after = match query.get("continue") {
            None | Some("") => None,
            Some(token) => Some(Continue::parse(token).ok_or_else(|| {
                ApiError::bad_request("invalid continue token: it is not one that this server gave out")
            })?),
        };
        let options = Self {
            filter: Filter::parse(query.get("labelSelector"), query.get("fieldSelector"), kind.fields)?,
            // A negative limit means no limit, as in Kubernetes.
            limit: query
                .integer("limit")?
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(0),
            after,
            version: version(query)?,
            version_match: version_match(query),
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial: query.flag("sendInitialEvents"),
            timeout_seconds: query
                .integer("timeoutSeconds")?
                .and_then(|n| u64::try_from(n).ok())
                .filter(|n| *n > 0),
        };
        options.check(query, watch)?;
        Ok(options)
    }

    /// `k8s.io/apimachinery/pkg/apis/meta/internalversion/validation.ValidateListOptions`.
    fn check(&self, query: &Query, watch: bool) -> Result<(), ApiError> {
        const MATCH: &str = "resourceVersionMatch";
        let given = |name: &str| query.get(name).filter(|value| !value.is_empty());
        let (matched, initial) = (given(MATCH), query.get("sendInitialEvents").is_some());
        let known: &[&str] = if watch {
            &["NotOlderThan"]
        } else {
            &["Exact", "NotOlderThan", ""]
        };
        let older = matched == Some("NotOlderThan");
        let unknown = matched.is_some_and(|matched| !known.contains(&matched));

        let without_version = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        let with_continue = "resourceVersionMatch is forbidden when continue is provided";
        let exact_zero = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        let needs_match = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        let without_initial = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        let of_list = "sendInitialEvents is forbidden for list";

        let mut causes = Vec::new();
        let mut forbid = |wrong: bool, field: &str, why: &str| {
            if wrong {
                causes.push(FieldError::forbidden(field, why));
            }
        };

        let exact_at_zero = matched == Some("Exact") && self.version == Some(0);
        forbid(watch && initial && !older, MATCH, needs_match);
        forbid(watch && matched.is_some() && !initial, MATCH, without_initial);
        forbid(
            !watch && matched.is_some() && self.version.is_none(),
            MATCH,
            without_version,
        );
        forbid(matched.is_some() && self.after.is_some(), MATCH, with_continue);
        forbid(!watch && exact_at_zero, MATCH, exact_zero);
        forbid(!watch && initial, "sendInitialEvents", of_list);
        if unknown {
            causes.push(FieldError::not_supported(MATCH, &json!(matched), known));
        }

        if !causes.is_empty() {
            return Err(ApiError::invalid_options("ListOptions", causes));
        }

        if !watch && self.after.is_some() && self.version.is_some_and(|v| v != 0) {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(())
    }
}

fn version_match(query: &Query) -> Option<VersionMatch> {
    match query.get("resourceVersionMatch") {
        Some("Exact") => Some(VersionMatch::Exact),
        Some("NotOlderThan") => Some(VersionMatch::NotOlderThan),
        _ => None,
    }
}

/// Options of delete and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub cascade: Cascade,
}

impl DeleteOptions {
    /// From the body; without a body, from the query.
    pub fn parse(query: &Query, body: &[u8], encoding: Encoding) -> Result<Self, ApiError> {
        static SCHEMA: LazyLock<Value> =
            LazyLock::new(|| REGISTRY.body_schema("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"));
        let value = if body.is_empty() {
            from_query(query)?
        } else {
            let mut value = body::decode(body, encoding).map_err(ApiError::bad_request)?.value;
            if !value.is_object() {
                return Err(ApiError::bad_request(
                    "couldn't get version/kind; json parse error: it is not an object",
                ));
            }
            let kind = value["kind"]
                .as_str()
                .filter(|kind| !matches!(*kind, "" | "DeleteOptions"));
            if kind.is_some() {
                return Err(ApiError::bad_request(
                    "decoded object cannot be converted to DeleteOptions",
                ));
            }
            schema::prune(&mut value, &SCHEMA, "", &mut Vec::new());
            schema::decode(&mut value, &SCHEMA, "DeleteOptions").map_err(ApiError::bad_request)?;
            value
        };
        Self::check(&value)
    }

    /// `k8s.io/apimachinery/pkg/apis/meta/v1/validation.ValidateDeleteOptions`.
    fn check(value: &Value) -> Result<Self, ApiError> {
        const KIND: &str = "DeleteOptions";
        const UNSAFE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
        let mut causes = Vec::new();
        let (policy, orphan_dependents) = (value["propagationPolicy"].as_str(), value["orphanDependents"].as_bool());
        if let (Some(policy), Some(_)) = (policy, orphan_dependents) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            causes.push(FieldError::invalid("propagationPolicy", &json!(policy), why));
        }

        let known = policy.map(Propagation::parse);
        if known == Some(None) {
            let supported = ["Foreground", "Background", "Orphan", "nil"];
            causes.push(FieldError::not_supported(
                "propagationPolicy",
                &json!(policy),
                &supported,
            ));
        }

        let dry_runs = value["dryRun"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|v| v.as_str().unwrap_or("?"));
        let dry_run = check_dry_run(dry_runs).unwrap_or_else(|cause| {
            causes.push(cause);
            true
        });

        if !causes.is_empty() {
            return Err(ApiError::invalid_options(KIND, causes));
        }
        if value[UNSAFE] == json!(true) {
            return Err(ApiError::unsupported_parameter(
                UNSAFE,
                "objects that can't be read are not deleted",
            ));
        }

        let text = |field: &str| value["preconditions"][field].as_str().map(str::to_owned);
        let cascade = Cascade {
            policy: known.flatten(),
            orphan_dependents,
        };
        Ok(Self {
            dry_run,
            uid: text("uid"),
            version: text("resourceVersion"),
            cascade,
        })
    }
}

fn from_query(query: &Query) -> Result<Value, ApiError> {
    let dry_run: Vec<&str> = query.all("dryRun").collect();
    let mut value = json!({"dryRun": dry_run});
    if let Some(policy) = query.get("propagationPolicy") {
        value["propagationPolicy"] = json!(policy);
    }
    if let Some(seconds) = query.integer("gracePeriodSeconds")? {
        value["gracePeriodSeconds"] = json!(seconds);
    }
    for flag in ["orphanDependents", "ignoreStoreReadErrorWithClusterBreakingPotential"] {
        if query.get(flag).is_some() {
            value[flag] = json!(query.flag(flag));
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(&format!("/x?{text}").parse().unwrap()).unwrap()
    }

    fn list(text: &str, watch: bool) -> Result<ListOptions, (u16, String)> {
        let kind = REGISTRY.find("", "v1", "configmaps").unwrap();
        ListOptions::parse(&query(text), kind, watch).map_err(|e| (e.code, e.message))
    }

    #[test]
    fn combinations_without_a_meaning_are_refused() {
        for (text, watch) in [
            ("resourceVersionMatch=Exact", false),
            ("resourceVersionMatch=Foo&resourceVersion=1", false),
            ("resourceVersionMatch=Exact&resourceVersion=0", false),
            ("sendInitialEvents=true", true),
            ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", false),
            ("resourceVersionMatch=NotOlderThan", true),
        ] {
            assert_eq!(list(text, watch).unwrap_err().0, 422, "{text}");
        }
        for text in ["limit=x", "resourceVersion=x", "continue=abc", "shardSelector=a"] {
            assert_eq!(list(text, false).unwrap_err().0, 400, "{text}");
        }
        assert!(
            list(
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0",
                true
            )
            .is_ok()
        );
    }

    #[test]
    fn a_continue_token_is_read_back() {
        let token = Continue::new(7, ("ns".into(), "name".into())).token();
        let options = list(&format!("continue={token}&limit=2"), false).unwrap();
        let after = options.after.unwrap();
        assert_eq!(
            (after.version(), after.key(), options.limit),
            (7, ("ns".into(), "name".into()), 2)
        );
    }

    #[test]
    fn delete_options_come_from_the_body_or_the_query() {
        let parse =
            |q: &str, body: &str| DeleteOptions::parse(&query(q), body.as_bytes(), Encoding::Json).map_err(|e| e.code);
        assert_eq!(parse("dryRun=All", "").map(|o| o.dry_run), Ok(true));
        assert_eq!(
            parse("", r#"{"preconditions": {"uid": "x"}}"#).map(|o| o.uid),
            Ok(Some("x".into()))
        );
        assert_eq!(
            parse("", r#"{"propagationPolicy": "Background"}"#).map(|o| o.dry_run),
            Ok(false)
        );
        assert_eq!(parse("", r#"{"propagationPolicy": "Foo"}"#).err(), Some(422));
        let foreground = Some(Propagation::Foreground.into());
        assert_eq!(
            parse("propagationPolicy=Foreground", "").map(|o| o.cascade).ok(),
            foreground
        );
        assert_eq!(parse("", r#"{"propagationPolicy": 5}"#), Err(400));
        assert_eq!(parse("", r#"{"kind": "Status"}"#), Err(400));
        assert_eq!(
            parse("", r#"{"propagationPolicy": "Orphan", "orphanDependents": true}"#),
            Err(422)
        );
        assert_eq!(parse("dryRun=x", ""), Err(422));
        assert_eq!(parse("", "[]"), Err(400));
    }
}
