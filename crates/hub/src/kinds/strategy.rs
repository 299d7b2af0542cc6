//! The fields that a kind's objects get and keep when they are written, and the rules of built-in kinds: the
//! counterparts of `k8s.io/kubernetes/pkg/registry/*/strategy.go` and `pkg/apis/*/validation`.

use serde_json::{Value, json};

use super::{ResourceKind, meta, schema, status::FieldError};
use validation::{
    validate_binding, validate_config_map, validate_lease, validate_namespace, validate_rules, validate_secret,
};

mod defaults;
mod events;
mod managed_namespaces;
mod rules;
mod sets;
mod validation;

pub use defaults::{fill, normalize};
pub use managed_namespaces::set_of;
pub use rules::rules;

const RBAC: &str = "rbac.authorization.k8s.io";

/// The part of an object that a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Main,
    Status,
    /// `namespaces/NAME/finalize`: only `spec.finalizers`.
    Finalize,
}

/// Before an object is created: sets the server's fields, and drops fields that a client may not set.
pub fn prepare_create(object: &mut Value, kind: &ResourceKind) {
    if kind.ours {
        if kind.has_status() {
            object.as_object_mut().map(|o| o.remove("status"));
        }
        object["metadata"]["generation"] = json!(1);
    }
    drop_unkept(object, kind);
    if kind.kind == "Namespace" {
        // A generated name is known only now.
        defaults::label_namespace(object);
        let given = object.pointer_mut("/spec/finalizers").map(Value::take);
        let mut finalizers = given.and_then(|list| list.as_array().cloned()).unwrap_or_default();
        if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
            finalizers.push(json!("kubernetes"));
        }
        object["spec"] = json!({"finalizers": finalizers});
        object["status"] = json!({"phase": "Active"});
    }
}

/// Before an object is replaced: takes the fields that this part may not change from the old one.
pub fn prepare_update(object: &mut Value, old: &Value, kind: &ResourceKind, part: Part) {
    drop_unkept(object, kind);
    match part {
        Part::Main if kind.kind == "Namespace" => {
            keep(object, old, "spec");
            keep(object, old, "status");
        }
        Part::Main if kind.has_status() => keep(object, old, "status"),
        Part::Main => {}
        Part::Status if kind.ours => {
            let mut new = std::mem::replace(object, old.clone());
            for field in ["resourceVersion", "managedFields"] {
                let value = new["metadata"]
                    .as_object_mut()
                    .and_then(|metadata| metadata.remove(field));
                set(&mut object["metadata"], field, value);
            }
            set(
                object,
                "status",
                new.as_object_mut().and_then(|new| new.remove("status")),
            );
        }
        Part::Status => keep(object, old, "spec"),
        Part::Finalize => keep(object, old, "status"),
    }
    carry_metadata(object, old);
    if kind.ours && part == Part::Main && !same_desire(object, old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default();
        object["metadata"]["generation"] = json!(generation + 1);
    }
}

/// Drops fields that are not stored, although a client wrote them and so owns them.
fn drop_unkept(object: &mut Value, kind: &ResourceKind) {
    match kind.kind.as_str() {
        // A reference by name, in the account's own namespace.
        "ServiceAccount" => {
            let secrets = object.get_mut("secrets").and_then(Value::as_array_mut);
            for secret in secrets.into_iter().flatten().filter_map(Value::as_object_mut) {
                secret.retain(|field, _| field == "name");
            }
        }
        // Used by the feature gate CoordinatedLeaderElection, which is off by default.
        "Lease" => {
            for field in ["strategy", "preferredHolder"] {
                set(&mut object["spec"], field, None);
            }
        }
        "Role" | "ClusterRole" if object["rules"].as_array().is_none_or(Vec::is_empty) => {
            object["rules"] = Value::Null;
        }
        _ => {}
    }
}

fn set(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(map) = object.as_object_mut() else { return };
    match value {
        Some(value) => {
            map.insert(field.to_owned(), value);
        }
        None => {
            map.remove(field);
        }
    }
}

fn keep(object: &mut Value, old: &Value, field: &str) {
    set(object, field, old.get(field).cloned());
}

/// The server's fields: absent means unchanged; generation and creation time are never taken from the client.
fn carry_metadata(object: &mut Value, old: &Value) {
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if object["metadata"].get(field).is_none() {
            set(&mut object["metadata"], field, old["metadata"].get(field).cloned());
        }
    }
    for field in ["creationTimestamp", "generation"] {
        set(&mut object["metadata"], field, old["metadata"].get(field).cloned());
    }
}

/// Whether two objects differ only in metadata and status.
fn same_desire(a: &Value, b: &Value) -> bool {
    let others = |v: &Value| {
        let fields = v.as_object().into_iter().flatten();
        fields
            .filter(|(k, _)| !matches!(k.as_str(), "metadata" | "status"))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect::<Vec<_>>()
    };
    others(a) == others(b)
}

/// Returns every rule that an object breaks; `old`: the object that it replaces.
pub fn validate(object: &Value, old: Option<&Value>, kind: &ResourceKind, part: Part) -> Vec<FieldError> {
    let mut errors = meta::validate(object, kind.names, !kind.ours);
    if let Some(old) = old {
        errors.extend(meta::validate_update(object, old));
    }

    if kind.ours {
        // Metadata was decoded and checked by its own rules.
        let mut body = object.clone();
        if let Some(map) = body.as_object_mut() {
            map.remove("metadata");
        }
        schema::validate(&body, &kind.schema, "", &mut errors);
        if part == Part::Main {
            rules::check(object, old, kind, &mut errors);
        }
        if part == Part::Status {
            relate_to_status(&mut errors);
        }
        return errors;
    }

    match kind.kind.as_str() {
        "Namespace" => validate_namespace(object, old, part, &mut errors),
        "ConfigMap" => validate_config_map(object, old, &mut errors),
        "Secret" => validate_secret(object, old, &mut errors),
        "Role" => validate_rules(object, true, &mut errors),
        "ClusterRole" => {
            validate_rules(object, false, &mut errors);
            if object["aggregationRule"].is_object() {
                // The hub has no controller that would fill in the selected rules.
                errors.push(FieldError::forbidden(
                    "aggregationRule",
                    "aggregated cluster roles are not supported",
                ));
            }
        }
        "RoleBinding" | "ClusterRoleBinding" => validate_binding(object, old, kind, &mut errors),
        "Event" => events::validate(object, old, kind, &mut errors),
        "Lease" => validate_lease(object, &mut errors),
        _ => {}
    }

    errors
}

/// Kubernetes validates a status by itself: its messages reflect that, its fields don't.
fn relate_to_status(errors: &mut [FieldError]) {
    for error in errors {
        if let Some(short) = error.field.strip_prefix("status.") {
            error.message = error
                .message
                .replacen(&format!("{} in body", error.field), &format!("{short} in body"), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    fn kind(plural: &str) -> &'static ResourceKind {
        REGISTRY.kinds.iter().find(|k| k.plural == plural).unwrap()
    }

    fn check(plural: &str, mut object: Value, expected: &[&str]) {
        object["metadata"] = json!({"name": "a", "namespace": "ns"});
        normalize(&mut object, kind(plural));
        prepare_create(&mut object, kind(plural));
        let errors = validate(&object, None, kind(plural), Part::Main);
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            expected,
            "{object}"
        );
    }

    #[test]
    fn roles_and_bindings_are_checked_as_kubernetes_checks_them() {
        check(
            "roles",
            json!({"rules": [{"resources": ["x"]}, {"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
            &[
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[1].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
            ],
        );
        check(
            "clusterroles",
            json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
            &[],
        );
        check(
            "rolebindings",
            json!({"roleRef": {"kind": "Foo", "name": "a"}, "subjects": [
                {"kind": "User"}, {"kind": "ServiceAccount", "name": "x"}, {"kind": "Foo", "name": "x"}]}),
            &[
                "roleRef.kind: Unsupported value: \"Foo\": supported values: \"Role\", \"ClusterRole\"",
                "subjects[0].name: Required value",
                "subjects[2].kind: Unsupported value: \"Foo\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
            ],
        );
    }

    #[test]
    fn durations_out_of_bounds_are_refused_and_stored_ones_stay() {
        let source = |interval: &str, timeout: &str| json!({"spec": {"url": "https://x/y", "interval": interval, "timeout": timeout}});
        check("gitrepositories", source("10s", "30m"), &[]);
        check(
            "gitrepositories",
            source("1s", "5h"),
            &[
                "spec.interval: Invalid value: \"1s\": must be between 10s and 24h",
                "spec.timeout: Invalid value: \"5h\": must be between 1s and 30m",
            ],
        );
        let cluster = |interval: &str| json!({"spec": {"pollInterval": interval}});
        check("clusters", cluster("1s"), &[]);
        check(
            "clusters",
            cluster("1h"),
            &["spec.pollInterval: Invalid value: \"1h\": must be between 1s and 10m"],
        );

        let mut old = cluster("1h");
        old["metadata"] = json!({"name": "a", "namespace": "ns"});
        assert_eq!(validate(&old, Some(&old), kind("clusters"), Part::Main), []);
    }

    #[test]
    fn expressions_about_ignored_fields_are_compiled_and_stored_ones_stay() {
        let service = |expression: &str| {
            let apply = json!({"ignoreDifferences": [{"kind": "Job"}, {"expression": expression}]});
            json!({"spec": {"clusterRef": {"name": "a"}, "targetNamespace": "a", "sourceRef": {"name": "a"}, "apply": apply}})
        };
        check(
            "servicedeployments",
            service("field == '/spec/replicas' && has(self.spec)"),
            &[],
        );
        let unknown = "spec.apply.ignoreDifferences[1].expression: Invalid value: \"object.a\": knows no \"object\": \
                       the object is \"self\"";
        check("servicedeployments", service("object.a"), &[unknown]);
        let mut old = service("object.a");
        old["metadata"] = json!({"name": "a", "namespace": "ns"});
        normalize(&mut old, kind("servicedeployments"));
        assert_eq!(validate(&old, Some(&old), kind("servicedeployments"), Part::Main), []);
    }

    #[test]
    fn expressions_that_can_not_be_read_are_refused_with_their_place() {
        let rule = |current: &str| json!({"kind": "Boat", "current": current});
        check(
            "healthrules",
            json!({"spec": rule("self.status.phase == 'Afloat'")}),
            &[],
        );
        check(
            "healthrules",
            json!({"spec": rule("self.status.phase = 'Afloat'")}),
            &[
                "spec.current: Invalid value: \"self.status.phase = 'Afloat'\": line 1, column 19: mismatched input '=' expecting <EOF>",
            ],
        );
        let service = |rules: Vec<Value>| json!({"spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}, "health": rules}});
        check(
            "servicedeployments",
            service(vec![rule("true"), rule("status.phase == 'Afloat'")]),
            &[
                "spec.health[1].current: Invalid value: \"status.phase == 'Afloat'\": knows no \"status\": the object is \"self\"",
            ],
        );
        let long = "true && ".repeat(120) + "true";
        check(
            "servicedeployments",
            service(vec![rule(&long); 17]),
            &["spec.health: Too long: may not be more than 16384 bytes"],
        );
        // A spec that an older hub admitted may stay.
        let mut old = json!({"spec": rule("self.")});
        old["metadata"] = json!({"name": "a"});
        assert_eq!(validate(&old, Some(&old), kind("healthrules"), Part::Main), []);
    }

    #[test]
    fn a_provider_that_nothing_could_be_sent_to_is_refused_without_a_word_of_its_address() {
        let provider =
            |kind: &str, address: &str| json!({"spec": {"type": kind, "address": address, "secretRef": {"name": "a"}}});
        check(
            "notificationproviders",
            provider("generic", "https://hooks.example.com/a"),
            &[],
        );
        let secret = "spec.address: Invalid value: it has a user, a query or a fragment: put secrets into the Secret, as token or address";
        check(
            "notificationproviders",
            provider("generic", "https://hooks.example.com/a?sig=hunter2"),
            &[secret],
        );
        let mut old = provider("generic", "https://hooks.example.com/a?sig=hunter2");
        old["metadata"] = json!({"name": "a", "namespace": "ns"});
        normalize(&mut old, kind("notificationproviders"));
        assert_eq!(
            validate(&old, Some(&old), kind("notificationproviders"), Part::Main),
            []
        );
    }

    #[test]
    fn secrets_take_text_and_keep_bytes() {
        let mut secret = json!({"metadata": {"name": "a"}, "stringData": {"a": "b"}});
        normalize(&mut secret, kind("secrets"));
        assert_eq!(
            secret,
            json!({"metadata": {"name": "a"}, "data": {"a": "Yg=="}, "type": "Opaque"})
        );
        check(
            "secrets",
            json!({"type": "kubernetes.io/tls", "data": {"a b": ""}}),
            &[
                "data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
                "data[tls.crt]: Required value",
                "data[tls.key]: Required value",
            ],
        );
    }

    #[test]
    fn immutable_secrets_stay_as_they_are() {
        let old = json!({"metadata": {"name": "a"}, "type": "Opaque", "immutable": true, "data": {"a": "eA=="}});
        let new = json!({"metadata": {"name": "a"}, "type": "x", "immutable": false, "data": {}});
        let errors = validate(&new, Some(&old), kind("secrets"), Part::Main);
        assert_eq!(
            errors.iter().map(|e| e.field.as_str()).collect::<Vec<_>>(),
            ["type", "immutable", "data"]
        );
    }

    #[test]
    fn spec_and_status_are_written_apart() {
        let kind = kind("servicedeployments");
        let old =
            json!({"metadata": {"name": "a", "uid": "1", "generation": 3}, "spec": {"path": "a"}, "status": {"x": 1}});
        let update = |new: Value, part| {
            let mut new = new;
            prepare_update(&mut new, &old, kind, part);
            (
                new["spec"].clone(),
                new["status"].clone(),
                new["metadata"]["generation"].clone(),
            )
        };
        let new = json!({"metadata": {"name": "a", "generation": 9}, "spec": {"path": "b"}, "status": {"x": 2}});
        assert_eq!(
            update(new.clone(), Part::Main),
            (json!({"path": "b"}), json!({"x": 1}), json!(4))
        );
        assert_eq!(
            update(new, Part::Status),
            (json!({"path": "a"}), json!({"x": 2}), json!(3))
        );
        let labels = json!({"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {"path": "a"}});
        assert_eq!(update(labels, Part::Main).2, json!(3));
    }
}
