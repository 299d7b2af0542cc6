//! Rules on `metadata`, as in `k8s.io/apimachinery/pkg/api/validation` and `pkg/util/validation`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::status::FieldError;

/// Maximum bytes of all annotation keys and values (`TotalAnnotationSizeLimitB`).
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// More than anyone needs; bounds the work of each delete.
const FINALIZERS_LIMIT: usize = 64;
/// More than anyone needs; bounds the garbage collector's lookups per object.
const OWNERS_LIMIT: usize = 64;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
pub const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// The form of a kind's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    Subdomain,
    Label,
    /// RBAC's: anything that is one segment of a path.
    PathSegment,
}

fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let alnum = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.first().is_some_and(alnum) && bytes.last().is_some_and(alnum) && bytes.iter().all(|b| alnum(b) || *b == b'-')
}

pub fn check_subdomain(name: &str) -> Option<String> {
    if name.len() > 253 {
        return Some("must be no more than 253 bytes".into());
    }
    (!name.split('.').all(is_dns_label)).then(|| SUBDOMAIN.into())
}

pub fn check_label(name: &str) -> Option<String> {
    if name.len() > 63 {
        return Some("must be no more than 63 characters".into());
    }
    if is_dns_label(name) {
        return None;
    }
    Some(if check_subdomain(name).is_none() {
        "must not contain dots".into()
    } else {
        LABEL.into()
    })
}

fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// The key of a label or an annotation: an optional DNS prefix and a name.
pub fn check_qualified_name(key: &str) -> Option<String> {
    let name = match key.split_once('/') {
        Some((_, rest)) if rest.contains('/') => {
            let rule = QUALIFIED.strip_prefix("name part ").unwrap_or_default();
            let prefix = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return Some(format!("a valid label key {rule} {prefix}"));
        }
        None => key,
        Some(("", _)) => return Some("prefix part must be non-empty".into()),
        Some((prefix, name)) => {
            if let Some(problem) = check_subdomain(prefix) {
                return Some(format!("prefix part {problem}"));
            }
            name
        }
    };
    if name.is_empty() {
        Some("name part must be non-empty".into())
    } else if name.len() > 63 {
        Some("name part must be no more than 63 bytes".into())
    } else {
        (!is_word(name)).then(|| QUALIFIED.into())
    }
}

pub fn check_label_value(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes".into());
    }
    (!value.is_empty() && !is_word(value)).then(|| LABEL_VALUE.into())
}

impl NameRule {
    pub fn check(self, name: &str) -> Option<String> {
        match self {
            Self::Subdomain => check_subdomain(name),
            Self::Label => check_label(name),
            Self::PathSegment => match name {
                "." | ".." => Some(format!("may not be '{name}'")),
                _ if name.len() > 253 => Some("must be no more than 253 bytes".into()),
                _ => ['/', '%']
                    .into_iter()
                    .find(|c| name.contains(*c))
                    .map(|c| format!("may not contain '{c}'")),
            },
        }
    }
}

impl NameRule {
    /// Checks the prefix of generated names: a dash at its end won't be the end of the name.
    pub fn check_prefix(self, prefix: &str) -> Option<String> {
        match self {
            Self::PathSegment if matches!(prefix, "." | "..") => None,
            Self::Subdomain | Self::Label if prefix.len() > 1 && prefix.ends_with('-') => {
                // Like Go, with a letter before the dash.
                let kept: String = prefix.chars().take(prefix.chars().count() - 2).collect();
                self.check(&(kept + "a"))
            }
            _ => self.check(prefix),
        }
    }
}

/// The labels of an object.
pub fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object();
    labels
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
        .collect()
}

pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Keeps the items of a list that `keep` accepts. An empty list is removed, because Kubernetes writes none.
pub fn retain(parent: &mut Value, list: &str, keep: impl Fn(&Value) -> bool) {
    let Some(parent) = parent.as_object_mut() else { return };
    let Some(items) = parent.get_mut(list).and_then(Value::as_array_mut) else {
        return;
    };
    items.retain(keep);
    if items.is_empty() {
        parent.remove(list);
    }
}

pub fn check_labels(labels: Option<&Map<String, Value>>, path: &str, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.into_iter().flatten() {
        if let Some(problem) = check_qualified_name(key) {
            errors.push(FieldError::invalid(path, &json!(key), &problem));
        }
        if let Some(problem) = check_label_value(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(path, value, &problem));
        }
    }
}

pub fn check_annotations(annotations: Option<&Map<String, Value>>, path: &str, errors: &mut Vec<FieldError>) {
    let mut total = 0;
    for (key, value) in annotations.into_iter().flatten() {
        // Annotation keys are compared in lower case, because of keys from Kubernetes' early days.
        if let Some(problem) = check_qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid(path, &json!(key), &problem));
        }
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long(path, ANNOTATIONS_LIMIT as u64));
    }
}

/// A reference as Go writes it: its fields in the order of the struct, absent text as empty.
fn shown_owner(owner: &Value) -> String {
    let always = ["apiVersion", "kind", "name", "uid"].map(|field| (field, owner[field].as_str().unwrap_or_default()));
    let mut fields: Vec<String> = always
        .iter()
        .map(|(field, text)| format!("{field:?}:{}", json!(text)))
        .collect();
    let flags = ["controller", "blockOwnerDeletion"]
        .into_iter()
        .filter(|field| owner[*field].is_boolean());
    fields.extend(flags.map(|field| format!("{field:?}:{}", owner[field])));
    format!("{{{}}}", fields.join(","))
}

/// The version of `group/version`; empty if it can't be read, as in `schema.ParseGroupVersion`.
fn version_of(api_version: &str) -> &str {
    match api_version.split('/').collect::<Vec<_>>()[..] {
        [version] | [_, version] => version,
        _ => "",
    }
}

fn check_owner(owner: &Value, errors: &mut Vec<FieldError>) {
    const PATH: &str = "metadata.ownerReferences";
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    let version = version_of(text("apiVersion"));
    for (field, absent, detail) in [
        ("apiVersion", version.is_empty(), "version must not be empty"),
        ("kind", text("kind").is_empty(), "must not be empty"),
        ("name", text("name").is_empty(), "must not be empty"),
        ("uid", text("uid").is_empty(), "must not be empty"),
    ] {
        if absent {
            errors.push(FieldError::invalid(
                format!("{PATH}.{field}"),
                &json!(text(field)),
                detail,
            ));
        }
    }
    if text("apiVersion") == "v1" && text("kind") == "Event" {
        let detail = "/v1, Kind=Event is disallowed from being an owner";
        errors.push(FieldError::invalid_as(PATH, &shown_owner(owner), detail));
    }
}

fn check_owners(owners: Option<&Vec<Value>>, errors: &mut Vec<FieldError>) {
    let owners = owners.map_or(&[][..], Vec::as_slice);
    if owners.len() > OWNERS_LIMIT {
        errors.push(FieldError::too_many(
            "metadata.ownerReferences",
            owners.len(),
            OWNERS_LIMIT as u64,
        ));
        return;
    }
    let mut first: Option<String> = None;
    for owner in owners {
        check_owner(owner, errors);
        if owner["controller"] == json!(true) {
            let text = |field: &str| owner[field].as_str().unwrap_or_default();
            let name = format!("{}/{}", text("kind"), text("name"));
            let Some(first) = &first else {
                first = Some(name);
                continue;
            };
            let detail = format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
            );
            let all: Vec<String> = owners.iter().map(shown_owner).collect();
            let all = format!("[{}]", all.join(","));
            errors.push(FieldError::invalid_as("metadata.ownerReferences", &all, &detail));
        }
    }
}

/// Removes duplicate references and returns their uids.
pub fn drop_duplicate_owners(object: &mut Value) -> Vec<String> {
    let Some(owners) = object
        .pointer_mut("/metadata/ownerReferences")
        .and_then(Value::as_array_mut)
    else {
        return Vec::new();
    };
    let (mut kept, mut dropped) = (Vec::<Value>::with_capacity(owners.len()), Vec::new());
    // More than the limit is refused in any case.
    for owner in owners.iter().take(OWNERS_LIMIT + 1) {
        if kept.contains(owner) {
            dropped.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        } else {
            kept.push(owner.clone());
        }
    }
    if !dropped.is_empty() {
        *owners = kept;
    }
    dropped
}

fn check_finalizers(list: Option<&Vec<Value>>, qualified: bool, errors: &mut Vec<FieldError>) {
    let list = list.map_or(&[][..], Vec::as_slice);
    if list.len() > FINALIZERS_LIMIT {
        errors.push(FieldError::too_many(
            "metadata.finalizers",
            list.len(),
            FINALIZERS_LIMIT as u64,
        ));
        return;
    }
    for (n, finalizer) in list.iter().enumerate() {
        check_finalizer(finalizer, format!("metadata.finalizers[{n}]"), qualified, errors);
    }
}

pub fn check_finalizer(finalizer: &Value, path: String, qualified: bool, errors: &mut Vec<FieldError>) {
    let name = finalizer.as_str().unwrap_or_default();
    if let Some(problem) = check_qualified_name(name) {
        errors.push(FieldError::invalid(path.clone(), finalizer, &problem));
    }
    if qualified && !name.contains('/') && !matches!(name, "orphan" | "foregroundDeletion" | "kubernetes") {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(path, finalizer, detail));
    }
}

/// Custom resources may have any finalizer; adding one without a domain gives a warning.
pub fn finalizer_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let had = old.map(finalizers).unwrap_or_default();
    let bare = finalizers(object)
        .into_iter()
        .filter(|f| !f.contains('/') && !had.contains(f));
    bare.filter(|f| !matches!(*f, "orphan" | "foregroundDeletion"))
        .map(|f| {
            format!(
                "metadata.finalizers: {f:?}: prefer a domain-qualified finalizer name to avoid accidental conflicts \
                 with other finalizer writers"
            )
        })
        .collect()
}

/// Rules for every write of an object. `qualified`: finalizers must name a domain, as in built-in kinds.
pub fn validate(object: &Value, rule: NameRule, qualified: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let metadata = &object["metadata"];
    let (name, prefix) = (text(object, "name"), text(object, "generateName"));
    if let Some(problem) = rule.check_prefix(prefix).filter(|_| !prefix.is_empty()) {
        errors.push(FieldError::invalid("metadata.generateName", &json!(prefix), &problem));
    }
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else if let Some(problem) = rule.check(name) {
        errors.push(FieldError::invalid("metadata.name", &json!(name), &problem));
    }
    check_labels(metadata["labels"].as_object(), "metadata.labels", &mut errors);
    check_annotations(metadata["annotations"].as_object(), "metadata.annotations", &mut errors);
    check_owners(metadata["ownerReferences"].as_array(), &mut errors);
    check_finalizers(metadata["finalizers"].as_array(), qualified, &mut errors);
    errors
}

/// Rules for replacing an object. The server's fields are carried over before this is called, so a difference means
/// that the client set another value.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let value = &new["metadata"][field];
        if value != &old["metadata"][field] {
            errors.push(FieldError::invalid(
                format!("metadata.{field}"),
                value,
                "field is immutable",
            ));
        }
    }
    if old["metadata"].get("deletionTimestamp").is_some() {
        let had = finalizers(old);
        let added: Vec<_> = finalizers(new).into_iter().filter(|f| !had.contains(f)).collect();
        if !added.is_empty() {
            // Go's spelling of a list of strings.
            let names = added.iter().map(|f| format!("{f:?}")).collect::<Vec<_>>().join(", ");
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{names}}}"
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &detail));
        }
    }
    errors
}

/// RFC 3339 with whole seconds, as `metav1.Time`.
pub fn timestamp(now: Timestamp) -> Value {
    Value::from(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(errors: &[FieldError]) -> Vec<&str> {
        errors.iter().map(|e| e.field.as_str()).collect()
    }

    #[test]
    fn names_follow_their_kinds_rule() {
        for (rule, good, bad) in [
            (NameRule::Subdomain, "a.b-c.1", "A_b"),
            (NameRule::Subdomain, "0", "a..b"),
            (NameRule::Label, "a-b", "a.b"),
            (NameRule::PathSegment, "system:x Y", "a/b"),
            (NameRule::PathSegment, "...", ".."),
        ] {
            assert_eq!(rule.check(good), None);
            assert!(rule.check(bad).is_some(), "{bad}");
        }
        assert!(NameRule::Label.check(&"a".repeat(64)).is_some());
        assert!(NameRule::Subdomain.check(&"a".repeat(254)).is_some());
    }

    #[test]
    fn a_prefix_may_end_in_a_dash() {
        for (rule, good, bad) in [
            (NameRule::Subdomain, "a.b-", "a."),
            (NameRule::Label, "a-", "a.b-"),
            (NameRule::PathSegment, ".", "a/"),
        ] {
            assert_eq!(rule.check_prefix(good), None, "{good}");
            assert!(rule.check_prefix(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn metadata_is_checked_field_by_field() {
        let object = json!({"metadata": {
            "name": "X", "labels": {"a b": "c d"}, "annotations": {"a b": "c", "Ok/x": "any thing"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n"}], "finalizers": ["a", "example.com/x"],
        }});
        let expected = [
            "metadata.name",
            "metadata.labels",
            "metadata.labels",
            "metadata.annotations",
            "metadata.ownerReferences.uid",
            "metadata.finalizers[0]",
        ];
        assert_eq!(fields(&validate(&object, NameRule::Subdomain, true)), expected);
    }

    #[test]
    fn an_object_that_is_being_deleted_takes_no_new_finalizer() {
        let old = json!({"metadata": {"uid": "1", "deletionTimestamp": "t", "finalizers": ["a/b"]}});
        let new = json!({"metadata": {"uid": "2", "deletionTimestamp": "t", "finalizers": ["a/b", "c/d"]}});
        assert_eq!(
            fields(&validate_update(&new, &old)),
            ["metadata.uid", "metadata.finalizers"]
        );
        assert!(validate_update(&old, &old).is_empty());
    }
}
