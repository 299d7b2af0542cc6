//! Rules of built-in kinds: the counterparts of pkg/apis/*/validation of Kubernetes.

use farwater_api::{APPROVALS, SOURCE_CREDENTIALS, URL_PREFIX, cluster_grant::Approvals};
use farwater_sources::UrlPrefix;
use serde_json::{Value, json};

use crate::kinds::{
    ResourceKind, meta,
    status::FieldError,
    strategy::{Part, RBAC},
};

/// Maximum bytes of a ConfigMap's or Secret's values (`MaxSecretSize`).
pub(super) const DATA_LIMIT: usize = 1024 * 1024;

pub(super) fn check_data_keys(object: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    const WRONG: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    let mut total = 0;
    for field in fields {
        for (key, value) in object[*field].as_object().into_iter().flatten() {
            total += value.as_str().map_or(0, str::len);
            let problem = if key.len() > 253 {
                Some("must be no more than 253 bytes")
            } else if key == "." || key == ".." {
                Some("must not be '.' or '..'")
            } else {
                let wrong = key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
                wrong.then_some(WRONG)
            };
            if let Some(problem) = problem {
                errors.push(FieldError::invalid(format!("{field}[{key}]"), &json!(key), problem));
            }
        }
    }
    if total > DATA_LIMIT {
        errors.push(FieldError::too_long("", DATA_LIMIT as u64));
    }
}

/// Once `immutable` is true, the data and `immutable` itself can't change.
pub(super) fn check_immutable(object: &Value, old: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    const WHY: &str = "field is immutable when `immutable` is set";
    if old["immutable"] != json!(true) {
        return;
    }
    if object["immutable"] != json!(true) {
        errors.push(FieldError::forbidden("immutable", WHY));
    }
    let data = |v: &Value| v.as_object().cloned().unwrap_or_default();
    for field in fields {
        if data(&object[*field]) != data(&old[*field]) {
            errors.push(FieldError::forbidden(*field, WHY));
        }
    }
}

pub(super) fn validate_namespace(object: &Value, old: Option<&Value>, part: Part, errors: &mut Vec<FieldError>) {
    let approvals = |object: &Value| object["metadata"]["annotations"][APPROVALS].clone();
    let stated = approvals(object);
    if let Some(Err(why)) = stated.as_str().map(str::parse::<Approvals>)
        && old.is_none_or(|old| approvals(old) != stated)
    {
        errors.push(FieldError::invalid(
            format!("metadata.annotations[{APPROVALS}]"),
            &stated,
            why,
        ));
    }

    // Kubernetes names the index only if nothing else can be written.
    let path = |n: usize| {
        if part == Part::Finalize {
            format!("spec.finalizers[{n}]")
        } else {
            "spec.finalizers".into()
        }
    };
    if old.is_none() || part == Part::Finalize {
        for (n, finalizer) in object["spec"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            meta::check_finalizer(finalizer, path(n), true, errors);
        }
    }

    if part == Part::Status {
        let (phase, when) = match object["metadata"].get("deletionTimestamp") {
            None => ("Active", "is empty"),
            Some(_) => ("Terminating", "is not empty"),
        };
        if object["status"]["phase"] != phase {
            let detail = format!("may only be '{phase}' if `deletionTimestamp` {when}");
            let given = object["status"]["phase"].as_str().unwrap_or_default();
            errors.push(FieldError::invalid("status.Phase", &json!(given), &detail));
        }
    }
}

pub(super) fn validate_config_map(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check_data_keys(object, &["data", "binaryData"], errors);
    for key in object["binaryData"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| key)
    {
        if object["data"].get(key).is_some() {
            let why = format!("duplicate of key present in data: {key}");
            errors.push(FieldError::invalid(format!("binaryData[{key}]"), &json!(key), &why));
        }
    }
    if let Some(old) = old {
        check_immutable(object, old, &["data", "binaryData"], errors);
    }
}

pub(super) fn validate_secret(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check_data_keys(object, &["data"], errors);
    let required: &[&str] = match object["type"].as_str().unwrap_or_default() {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        _ => &[],
    };
    for key in required {
        if object["data"].get(*key).is_none() {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    }
    validate_prefix(object, old, errors);
    if let Some(old) = old {
        if object["type"] != old["type"] {
            errors.push(FieldError::invalid("type", &object["type"], "field is immutable"));
        }
        check_immutable(object, old, &["data"], errors);
    }
}

/// A Secret that serves sources must name a prefix; otherwise it would silently serve none. One that is stored already
/// may stay.
pub(super) fn validate_prefix(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let prefix = |object: &Value| object["metadata"]["annotations"][URL_PREFIX].clone();
    let value = prefix(object);
    if object["type"] != SOURCE_CREDENTIALS || old.is_some_and(|old| prefix(old) == value) {
        return;
    }
    let field = format!("metadata.annotations[{URL_PREFIX}]");
    match value.as_str().map(UrlPrefix::parse) {
        None => errors.push(FieldError::required(
            field,
            "the addresses that the credentials are for",
        )),
        Some(Err(error)) => errors.push(FieldError::invalid(field, &value, &error.to_string())),
        Some(Ok(_)) => {}
    }
}

pub(super) fn validate_rules(object: &Value, namespaced: bool, errors: &mut Vec<FieldError>) {
    for (n, rule) in object["rules"].as_array().into_iter().flatten().enumerate() {
        let path = format!("rules[{n}]");
        let empty = |field: &str| rule[field].as_array().is_none_or(Vec::is_empty);
        if empty("verbs") {
            errors.push(FieldError::required(
                format!("{path}.verbs"),
                "verbs must contain at least one value",
            ));
        }
        if !empty("nonResourceURLs") {
            let field = format!("{path}.nonResourceURLs");
            let urls = &rule["nonResourceURLs"];
            if namespaced {
                let why = "namespaced rules cannot apply to non-resource URLs";
                errors.push(FieldError::invalid(field.clone(), urls, why));
            }
            if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
                let why = "rules cannot apply to both regular resources and non-resource URLs";
                errors.push(FieldError::invalid(field, urls, why));
            }
            continue;
        }
        if empty("apiGroups") {
            let why = "resource rules must supply at least one api group";
            errors.push(FieldError::required(format!("{path}.apiGroups"), why));
        }
        if empty("resources") {
            let why = "resource rules must supply at least one resource";
            errors.push(FieldError::required(format!("{path}.resources"), why));
        }
    }
}

pub(super) fn validate_binding(object: &Value, old: Option<&Value>, kind: &ResourceKind, errors: &mut Vec<FieldError>) {
    let role = &object["roleRef"];
    if role["apiGroup"] != json!(RBAC) {
        errors.push(FieldError::not_supported(
            "roleRef.apiGroup",
            &role["apiGroup"],
            &[RBAC],
        ));
    }
    let kinds: &[&str] = if kind.namespaced {
        &["Role", "ClusterRole"]
    } else {
        &["ClusterRole"]
    };
    if !kinds.contains(&role["kind"].as_str().unwrap_or_default()) {
        errors.push(FieldError::not_supported("roleRef.kind", &role["kind"], kinds));
    }
    let name = role["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    } else if let Some(problem) = meta::NameRule::PathSegment.check(name) {
        errors.push(FieldError::invalid("roleRef.name", &json!(name), &problem));
    }
    for (n, subject) in object["subjects"].as_array().into_iter().flatten().enumerate() {
        validate_subject(subject, &format!("subjects[{n}]"), kind.namespaced, errors);
    }
    if old.is_some_and(|old| old["roleRef"] != *role) {
        errors.push(FieldError::invalid("roleRef", role, "cannot change roleRef"));
    }
}

pub(super) fn validate_subject(subject: &Value, path: &str, namespaced: bool, errors: &mut Vec<FieldError>) {
    let text = |field: &str| subject[field].as_str().unwrap_or_default();
    if text("name").is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let group = match text("kind") {
        "ServiceAccount" => {
            if let Some(problem) = meta::check_subdomain(text("name")).filter(|_| !text("name").is_empty()) {
                errors.push(FieldError::invalid(format!("{path}.name"), &subject["name"], &problem));
            }
            if !namespaced && text("namespace").is_empty() {
                errors.push(FieldError::required(format!("{path}.namespace"), ""));
            }
            ""
        }
        "User" | "Group" => RBAC,
        _ => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported(
                format!("{path}.kind"),
                &subject["kind"],
                &kinds,
            ));
            return;
        }
    };
    if text("apiGroup") != group {
        errors.push(FieldError::not_supported(
            format!("{path}.apiGroup"),
            &subject["apiGroup"],
            &[group],
        ));
    }
}

pub(super) fn validate_lease(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    for (field, least, detail) in [
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ] {
        if spec[field].as_i64().is_some_and(|number| number < least) {
            errors.push(FieldError::invalid(format!("spec.{field}"), &spec[field], detail));
        }
    }
}
