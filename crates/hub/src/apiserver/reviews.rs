//! Answers about the sender: its identity, and its rights.

use axum::response::Response;
use bytes::Bytes;
use serde_json::{Value, json};

use super::{body::Encoding, call::Call, decide, intake, managed, options::WriteOptions, respond};
use crate::{
    auth::{Attributes, Rule},
    kinds::{
        meta::timestamp,
        status::{ApiError, FieldError},
    },
};

pub async fn create(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    let options = WriteOptions::parse(&call.query, "CreateOptions")?;
    let encoding = Encoding::of(&respond::content_type(&call.headers))?;
    let intake = intake::read(&body, encoding, call.kind, options.validation)?;
    let mut review = managed::track(call, &options, None, intake.object)?;
    review["status"] = match call.kind.kind.as_str() {
        "SelfSubjectAccessReview" => access(call, &review).await?,
        "SelfSubjectRulesReview" => rules(call, &review).await?,
        _ => {
            review["metadata"]["creationTimestamp"] = timestamp(call.now);
            json!({"userInfo": user_info(call)})
        }
    };
    let mut response = respond::json(201, &review);
    respond::add_warnings(&mut response, &intake.warnings);
    Ok(response)
}

fn user_info(call: &Call) -> Value {
    let user = &call.user;
    let mut info = json!({"username": user.name});
    for (field, value, empty) in [
        ("uid", json!(user.uid), user.uid.is_empty()),
        ("groups", json!(user.groups), user.groups.is_empty()),
        ("extra", json!(user.extra), user.extra.is_empty()),
    ] {
        if !empty {
            info[field] = value;
        }
    }
    info
}

/// The attributes that a review asks about. RBAC has no selectors, so a review with one asks about the whole
/// collection.
fn asked(spec: &Value) -> Result<Attributes, FieldError> {
    const ONE: &str = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
    let text = |part: &str, field: &str| spec[part][field].as_str().unwrap_or_default().to_owned();
    match (
        spec["resourceAttributes"].is_object(),
        spec["nonResourceAttributes"].is_object(),
    ) {
        (true, false) => {
            let text = |field| text("resourceAttributes", field);
            Ok(Attributes {
                verb: text("verb"),
                group: text("group"),
                version: text("version"),
                resource: text("resource"),
                subresource: text("subresource"),
                namespace: text("namespace"),
                name: text("name"),
                path: String::new(),
            })
        }
        (false, true) => {
            let text = |field| text("nonResourceAttributes", field);
            Ok(Attributes::non_resource(&text("verb"), &text("path")))
        }
        (both, _) => {
            let field = if both {
                "spec.nonResourceAttributes"
            } else {
                "spec.resourceAttributes"
            };
            Err(FieldError::invalid(field, &Value::Null, ONE))
        }
    }
}

async fn access(call: &Call, review: &Value) -> Result<Value, ApiError> {
    let attributes = asked(&review["spec"])
        .map_err(|cause| ApiError::invalid(&call.kind.group, &call.kind.kind, "", vec![cause]))?;
    let decision = decide(&call.hub, &call.user, &attributes).await?;
    let mut status = json!({"allowed": decision.is_allowed()});
    let reason = decision.reason();
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    Ok(status)
}

async fn rules(call: &Call, review: &Value) -> Result<Value, ApiError> {
    let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let held = call.hub.access.rules(&call.user, namespace).await;
    let held = held.map_err(|error| ApiError::unavailable(error.to_string()))?;
    Ok(rules_status(&held))
}

fn rules_status(held: &[Rule]) -> Value {
    let (mut resource_rules, mut non_resource_rules) = (Vec::new(), Vec::new());
    for rule in held {
        if !rule.non_resource_urls.is_empty() {
            non_resource_rules.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
        if !rule.resources.is_empty() {
            let mut entry = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                entry["resourceNames"] = json!(rule.resource_names);
            }
            resource_rules.push(entry);
        }
    }
    json!({"resourceRules": resource_rules, "nonResourceRules": non_resource_rules, "incomplete": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_asks_about_exactly_one_thing() {
        let resource = json!({"resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "a"}});
        assert_eq!(
            asked(&resource).map(|a| (a.verb, a.resource, a.namespace)),
            Ok(("get".into(), "secrets".into(), "a".into()))
        );
        let path = json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}});
        assert_eq!(asked(&path).map(|a| a.path), Ok("/metrics".into()));
        assert_eq!(
            asked(&json!({})).map_err(|e| e.field),
            Err("spec.resourceAttributes".into())
        );
        let both = json!({"resourceAttributes": {}, "nonResourceAttributes": {}});
        assert!(asked(&both).is_err());
    }

    #[test]
    fn rules_are_told_apart_by_what_they_are_about() {
        let rule = Rule {
            verbs: vec!["get".into()],
            resources: vec!["secrets".into()],
            api_groups: vec![String::new()],
            ..Rule::default()
        };
        let path = Rule {
            verbs: vec!["get".into()],
            non_resource_urls: vec!["/api".into()],
            ..Rule::default()
        };
        let status = rules_status(&[rule, path]);
        assert_eq!(
            status["resourceRules"],
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}])
        );
        assert_eq!(
            status["nonResourceRules"],
            json!([{"verbs": ["get"], "nonResourceURLs": ["/api"]}])
        );
    }
}
