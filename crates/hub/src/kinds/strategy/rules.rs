//! Rules of our kinds that their schemas don't state.

use farwater_api::{
    ChangeWindowSpec, HealthRuleSpec, OVERRIDE_FREEZE,
    health_rule::MAX_OWN_BYTES,
    parameters::{MAX_METADATA_BYTES, check_free_form},
    renderer::{self, MAX_RENDER_BYTES, Renderer},
};
use farwater_fleet::{
    agents::Limit,
    duration::{self, Bounds},
    health::{expression::Expression, rules as health_rules},
    notify, parameters, promotion,
    windows::Window,
};
use serde_json::{Value, json};

use super::super::{meta, status::FieldError};
use crate::kinds::ResourceKind;

/// The object, what it replaces, and its kind.
type Check = fn(&Value, Option<&Value>, &ResourceKind, &mut Vec<FieldError>);

struct Rule {
    name: &'static str,
    /// Plurals of the resources that it applies to.
    resources: &'static [&'static str],
    check: Check,
}

/// In this order. The last two skip what another rule, or the schema, has refused.
const RULES: [Rule; 13] = [
    Rule {
        name: "durations",
        resources: &[
            "agentpolicies",
            "clusters",
            "gitrepositories",
            "helmrepositories",
            "ocirepositories",
        ],
        check: check_durations,
    },
    Rule {
        name: "health",
        resources: &["healthrules", "servicedeployments"],
        check: check_health,
    },
    Rule {
        name: "renderers",
        resources: &["servicedeployments"],
        check: check_renderers,
    },
    Rule {
        name: "ignored fields",
        resources: &["servicedeployments"],
        check: check_ignored_fields,
    },
    Rule {
        name: "parameters",
        resources: &["servicedeployments", "servicecontexts", "clusters"],
        check: check_parameters,
    },
    Rule {
        name: "dependencies",
        resources: &["servicedeployments"],
        check: check_dependencies,
    },
    Rule {
        name: "window",
        resources: &["changewindows"],
        check: check_window,
    },
    Rule {
        name: "freeze override",
        resources: &["servicedeployments", "servicesets"],
        check: check_freeze_override,
    },
    Rule {
        name: "provider",
        resources: &["notificationproviders"],
        check: check_provider,
    },
    Rule {
        name: "pipeline",
        resources: &["pipelines"],
        check: check_pipeline,
    },
    Rule {
        name: "limit",
        resources: &["agentpolicies"],
        check: check_limit,
    },
    Rule {
        name: "set",
        resources: &["servicesets"],
        check: |object, old, _, errors| super::sets::validate(object, old, errors),
    },
    Rule {
        name: "managed namespace",
        resources: &["managednamespaces"],
        check: |object, old, _, errors| super::managed_namespaces::validate(object, old, errors),
    },
];

/// Each rule with each resource, by its plural, that it applies to.
pub fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    RULES
        .iter()
        .flat_map(|rule| rule.resources.iter().map(|resource| (*resource, rule.name)))
}

pub(super) fn check(object: &Value, old: Option<&Value>, kind: &ResourceKind, errors: &mut Vec<FieldError>) {
    for rule in RULES
        .iter()
        .filter(|rule| rule.resources.contains(&kind.plural.as_str()))
    {
        (rule.check)(object, old, kind, errors);
    }
}

/// Durations in our kinds, by resource.
const DURATIONS: [(&str, &str, Bounds); 8] = [
    ("agentpolicies", "deadline", duration::AGENT_DEADLINE),
    ("clusters", "pollInterval", duration::POLL_INTERVAL),
    ("gitrepositories", "interval", duration::SOURCE_INTERVAL),
    ("gitrepositories", "timeout", duration::SOURCE_TIMEOUT),
    ("helmrepositories", "interval", duration::SOURCE_INTERVAL),
    ("helmrepositories", "timeout", duration::SOURCE_TIMEOUT),
    ("ocirepositories", "interval", duration::SOURCE_INTERVAL),
    ("ocirepositories", "timeout", duration::SOURCE_TIMEOUT),
];

/// Refuses a duration that no controller would keep to, instead of silently cutting it. A stored one may stay, as in
/// Kubernetes when a rule becomes stricter: otherwise not even the object's finalizers could be removed.
fn check_durations(object: &Value, old: Option<&Value>, kind: &ResourceKind, errors: &mut Vec<FieldError>) {
    for (_, field, bounds) in DURATIONS.iter().filter(|(plural, ..)| *plural == kind.plural) {
        let (path, value) = (format!("spec.{field}"), &object["spec"][*field]);
        let known = old.is_some_and(|old| old["spec"][*field] == *value) || errors.iter().any(|e| e.field == path);
        let Some(text) = value.as_str().filter(|_| !known) else {
            continue;
        };
        if let Err(why) = bounds.check(text) {
            errors.push(FieldError::invalid(path, value, &why));
        }
    }
}

/// Refuses options that no renderer reads, and more of them than an entry can have. Stored ones may stay, as with
/// durations.
fn check_renderers(object: &Value, old: Option<&Value>, _: &ResourceKind, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let is_new = |field: &str| !spec[field].is_null() && old.is_none_or(|old| old["spec"][field] != spec[field]);
    let bytes = |field: &str| {
        if spec[field].is_null() {
            0
        } else {
            spec[field].to_string().len()
        }
    };
    if (is_new("renderers") || is_new("patches")) && bytes("renderers") + bytes("patches") > MAX_RENDER_BYTES {
        errors.push(FieldError::too_long("spec.renderers", MAX_RENDER_BYTES as u64));
    }
    // The schema refused a value that can't be read.
    if is_new("renderers")
        && let Ok(renderers) = serde_json::from_value::<Vec<Renderer>>(spec["renderers"].clone())
    {
        for found in renderer::problems(&renderers) {
            let field = format!("spec.renderers[{}]{}", found.index, found.field);
            errors.push(FieldError::invalid(field, &spec["renderers"][found.index], found.why));
        }
    }
}

/// Refuses expressions that agents can't parse, with their position. Stored ones may stay, as with durations.
fn check_health(object: &Value, old: Option<&Value>, kind: &ResourceKind, errors: &mut Vec<FieldError>) {
    let rules: Vec<(String, &Value)> = match kind.plural.as_str() {
        "healthrules" => vec![("spec".to_owned(), &object["spec"])],
        "servicedeployments" => {
            let own = &object["spec"]["health"];
            let is_new = old.is_none_or(|old| old["spec"]["health"] != *own);
            if is_new && own.is_array() && own.to_string().len() > MAX_OWN_BYTES {
                errors.push(FieldError::too_long("spec.health", MAX_OWN_BYTES as u64));
            }
            let rules = own.as_array().into_iter().flatten();
            rules
                .enumerate()
                .map(|(n, rule)| (format!("spec.health[{n}]"), rule))
                .collect()
        }
        _ => return,
    };

    let was_there = |rule: &Value| {
        old.is_some_and(|old| match &old["spec"]["health"] {
            Value::Array(rules) => rules.contains(rule),
            _ => old["spec"] == *rule,
        })
    };

    for (path, value) in rules.into_iter().filter(|(_, rule)| !was_there(rule)) {
        // The schema has refused a rule that can't be parsed.
        let Ok(rule) = serde_json::from_value::<HealthRuleSpec>(value.clone()) else {
            continue;
        };
        for (field, error) in health_rules::problems(&rule) {
            errors.push(FieldError::invalid(
                format!("{path}.{field}"),
                &value[field],
                &error.to_string(),
            ));
        }
    }
}

/// The same for expressions that say when a dependency is ready.
fn check_dependencies(object: &Value, old: Option<&Value>, _: &ResourceKind, errors: &mut Vec<FieldError>) {
    let references = object["spec"]["dependsOn"].as_array();
    let before = old.and_then(|old| old["spec"]["dependsOn"].as_array());
    for (n, reference) in references.into_iter().flatten().enumerate() {
        let is_known = before.is_some_and(|before| before.contains(reference));
        if !is_known && reference["kind"] != "ServiceSet" && reference["clusters"].is_string() {
            let field = format!("spec.dependsOn[{n}].clusters");
            errors.push(FieldError::forbidden(field, "only a ServiceSet has clusters"));
        }
        let Some(text) = reference["readyExpr"].as_str().filter(|_| !is_known) else {
            continue;
        };
        if let Err(error) = Expression::compile(text) {
            let field = format!("spec.dependsOn[{n}].readyExpr");
            errors.push(FieldError::invalid(field, &reference["readyExpr"], &error.to_string()));
        }
    }
}

/// The same for expressions that say which fields of a service's objects are ignored.
fn check_ignored_fields(object: &Value, old: Option<&Value>, _: &ResourceKind, errors: &mut Vec<FieldError>) {
    let rules = object["spec"]["apply"]["ignoreDifferences"].as_array();
    let before = old.and_then(|old| old["spec"]["apply"]["ignoreDifferences"].as_array());
    for (n, rule) in rules.into_iter().flatten().enumerate() {
        let is_known = before.is_some_and(|before| before.contains(rule));
        let Some(text) = rule["expression"].as_str().filter(|_| !is_known) else {
            continue;
        };
        if let Err(error) = Expression::compile_for_fields(text) {
            let field = format!("spec.apply.ignoreDifferences[{n}].expression");
            errors.push(FieldError::invalid(field, &rule["expression"], &error.to_string()));
        }
    }
}

/// Refuses a spec that makes no sense whatever objects it names. No value is quoted, because it may be a secret.
fn check_parameters(object: &Value, old: Option<&Value>, kind: &ResourceKind, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let is_known =
        |fields: &[&str]| old.is_some_and(|old| fields.iter().all(|field| old["spec"][*field] == spec[*field]));
    // The schema has refused a spec that can't be parsed.
    let wrong = match kind.plural.as_str() {
        "servicedeployments" if !is_known(&["configuration", "parameters"]) => {
            let stated = json!({
                "clusterRef": {"name": ""}, "sourceRef": {"name": ""}, "targetNamespace": "",
                "configuration": spec.get("configuration").cloned().unwrap_or_else(|| json!({})),
                "parameters": spec.get("parameters").cloned().unwrap_or_else(|| json!([])),
            });
            serde_json::from_value(stated)
                .map(|spec| parameters::check_service(&spec))
                .unwrap_or_default()
        }
        "servicecontexts" if !is_known(&["configuration", "secretRefs"]) => serde_json::from_value(spec.clone())
            .map(|spec| parameters::check_context(&spec))
            .unwrap_or_default(),
        "clusters" if !is_known(&["metadata"]) => {
            let metadata = spec["metadata"].as_object().cloned().unwrap_or_default();
            let checked = check_free_form(&metadata, MAX_METADATA_BYTES);
            checked
                .err()
                .map(|why| ("metadata".to_owned(), why))
                .into_iter()
                .collect()
        }
        _ => Vec::new(),
    };
    errors.extend(
        wrong
            .into_iter()
            .map(|(field, why)| FieldError::invalid_unquoted(format!("spec.{field}"), &why)),
    );
}

/// Refuses a window that would never be in force as intended. Stored ones may stay, as with durations.
fn check_window(object: &Value, old: Option<&Value>, _: &ResourceKind, errors: &mut Vec<FieldError>) {
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        return;
    }
    // The schema has refused a spec that can't be parsed.
    let Ok(spec) = serde_json::from_value::<ChangeWindowSpec>(object["spec"].clone()) else {
        return;
    };
    let (namespace, name) = (meta::text(object, "namespace"), meta::text(object, "name"));
    for problem in Window::read(namespace, name, &spec).err().unwrap_or_default() {
        let (field, value) = (format!("spec.{}", problem.field), &object["spec"][problem.field]);
        errors.push(match value {
            Value::Null => FieldError::required(field, &problem.why),
            value => FieldError::invalid(field, value, &problem.why),
        });
    }
}

/// An override of windows needs a reason that others can read.
fn check_freeze_override(object: &Value, old: Option<&Value>, _: &ResourceKind, errors: &mut Vec<FieldError>) {
    let said = |object: &Value| {
        object["metadata"]["annotations"][OVERRIDE_FREEZE]
            .as_str()
            .map(str::to_owned)
    };
    let is_new = old.is_none_or(|old| said(old) != said(object));
    if is_new && said(object).is_some_and(|reason| reason.trim().is_empty()) {
        let field = format!("metadata.annotations[{OVERRIDE_FREEZE}]");
        errors.push(FieldError::required(
            field,
            "the reason why a change begins in spite of windows",
        ));
    }
}

/// Refuses a pipeline with an unreachable stage, or with settings that would have no effect.
fn check_pipeline(object: &Value, old: Option<&Value>, _: &ResourceKind, errors: &mut Vec<FieldError>) {
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        return;
    }
    // The schema has refused a spec that can't be parsed.
    let Ok(spec) = serde_json::from_value(object["spec"].clone()) else {
        return;
    };
    let wrong = promotion::read_gates(&spec).err().unwrap_or_default();
    errors.extend(
        wrong
            .into_iter()
            .map(|one| FieldError::invalid_unquoted(format!("spec.{}", one.field), &one.why)),
    );
}

/// Refuses providers that can't be sent to. No value is quoted, because a secret may be in the wrong field.
fn check_provider(object: &Value, old: Option<&Value>, _: &ResourceKind, errors: &mut Vec<FieldError>) {
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        return;
    }
    // The schema has refused a spec that can't be parsed.
    let Ok(spec) = serde_json::from_value(object["spec"].clone()) else {
        return;
    };
    let wrong = notify::problems(&spec);
    errors.extend(
        wrong
            .into_iter()
            .map(|(field, why)| FieldError::invalid_unquoted(format!("spec.{field}"), &why)),
    );
}

fn check_limit(object: &Value, old: Option<&Value>, _: &ResourceKind, errors: &mut Vec<FieldError>) {
    let limit = |object: &Value| object["spec"]["maxUnavailable"].clone();
    let value = limit(object);
    let text = match &value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let known = value.is_null() || old.is_some_and(|old| limit(old) == value);
    if !known && Limit::parse(&text).is_none() {
        errors.push(FieldError::invalid(
            "spec.maxUnavailable",
            &value,
            "must be a number above 0, or 1% to 100%",
        ));
    }
}
