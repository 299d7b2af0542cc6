//! The objects that a hub creates at its first start and completes at later starts: the admin namespace, the default
//! roles, and the administrator's kubeconfig.

mod kubeconfig;

use std::collections::BTreeMap;

use farwater_api::ADMIN_NAMESPACE;
use farwater_fleet::access::{PolicyKind, RBAC_GROUP, Rule, escalation::missing_rules};
use farwater_store::{Change, Key, Kind, Resource, Store, StoreError, Write, WriteError};
use jiff::Timestamp;
use serde_json::{Value, json};
use thiserror::Error;

use crate::kinds::managers::manage;

pub use kubeconfig::{KubeconfigError, ensure_admin_kubeconfig};

const DEFAULT_ROLES: &str = include_str!("bootstrap/roles.yaml");
/// If this is "false" on a default role or binding, the hub does not change it.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

#[derive(Debug, Error)]
pub enum BootstrapError {
    #[error("read the default roles: {0}")]
    Defaults(String),
    #[error("make {kind} {name:?}")]
    Write {
        kind: String,
        name: String,
        source: WriteError,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Creates missing default objects, and completes existing ones.
pub async fn ensure_defaults(store: &Store, now: Timestamp) -> Result<(), BootstrapError> {
    ensure(
        store,
        namespace_object(ADMIN_NAMESPACE),
        Kind::new("namespaces", ""),
        now,
    )
    .await?;
    let roles: Vec<Value> =
        serde_saphyr::from_str(DEFAULT_ROLES).map_err(|error| BootstrapError::Defaults(error.to_string()))?;
    for mut object in roles {
        let Some(kind) = object["kind"].as_str().and_then(PolicyKind::of) else {
            return Err(BootstrapError::Defaults(format!(
                "{} is no role or binding",
                object["kind"]
            )));
        };
        object["metadata"]["labels"] = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
        object["metadata"]["annotations"] = json!({AUTOUPDATE: "true"});
        ensure(store, object, Kind::new(kind.plural(), RBAC_GROUP), now).await?;
    }
    Ok(())
}

fn namespace_object(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    })
}

async fn ensure(store: &Store, mut object: Value, kind: Kind, now: Timestamp) -> Result<(), BootstrapError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let key = Key {
        kind,
        namespace: String::new(),
        name: name.clone(),
    };
    let change = match store.get(&key).await? {
        None => {
            object["metadata"]["uid"] = json!(uuid::Uuid::new_v4().to_string());
            object["metadata"]["creationTimestamp"] = json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            Change::Create(manage(&key.kind, "", None, object, now))
        }
        Some(current) => match complete(&current, &object) {
            Some(object) => {
                let object = manage(&key.kind, "", Some(&current.object), object, now);
                Change::Replace {
                    uid: current.uid,
                    version: current.version,
                    object,
                }
            }
            None => return Ok(()),
        },
    };
    let write = Write {
        key: key.clone(),
        change,
    };
    let made = store.write(write).await;
    made.map_err(|source| BootstrapError::Write {
        kind: key.kind.to_string(),
        name,
        source,
    })?;
    Ok(())
}

/// The stored object with missing rules and subjects of the default added; None: it lacks none. The role of a binding
/// is never changed.
fn complete(current: &Resource, default: &Value) -> Option<Value> {
    let annotations: BTreeMap<String, String> =
        serde_json::from_value(current.object["metadata"]["annotations"].clone()).unwrap_or_default();
    if annotations.get(AUTOUPDATE).is_none_or(|value| value == "false") {
        return None;
    }
    let rules = |object: &Value| serde_json::from_value::<Vec<Rule>>(object["rules"].clone()).unwrap_or_default();
    let lacking = missing_rules(&rules(&current.object), &rules(default)).unwrap_or_default();
    let no_subjects = Vec::new();
    let subjects = |object: &Value| object["subjects"].as_array().unwrap_or(&no_subjects).clone();
    let present = subjects(&current.object);
    let absent: Vec<Value> = subjects(default)
        .into_iter()
        .filter(|subject| !present.contains(subject))
        .collect();
    if lacking.is_empty() && absent.is_empty() {
        return None;
    }
    let mut object = (*current.object).clone();
    if !lacking.is_empty() {
        let all: Vec<Rule> = rules(&current.object).into_iter().chain(lacking).collect();
        object["rules"] = json!(all);
    }
    if !absent.is_empty() {
        object["subjects"] = Value::Array(present.into_iter().chain(absent).collect());
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farwater_fleet::access::{Attributes, Policy, User};

    fn defaults() -> Vec<Value> {
        serde_saphyr::from_str(DEFAULT_ROLES).unwrap()
    }

    fn policy(extra: &[Value]) -> Policy {
        let mut policy = Policy::default();
        for object in defaults().iter().chain(extra) {
            let kind = PolicyKind::of(object["kind"].as_str().unwrap()).unwrap();
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            policy.apply(kind, &text("namespace"), &text("name"), Some(object));
        }
        policy
    }

    /// Binds each default role to a user of its name in namespace `team-a`.
    #[test]
    fn default_roles_allow_what_their_names_say() {
        let bindings: Vec<Value> = ["view", "edit", "admin"]
            .map(|role| {
                json!({
                    "kind": "RoleBinding",
                    "metadata": {"name": role, "namespace": "team-a"},
                    "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": role},
                    "subjects": [{"kind": "User", "name": role}],
                })
            })
            .to_vec();
        let policy = policy(&bindings);
        let check = |name: &str, verb: &str, resource: &str, namespace: &str, expected: bool| {
            let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
            let (resource, subresource) = plural.split_once('/').unwrap_or((plural, ""));
            let user = User {
                name: name.to_owned(),
                ..User::default()
            };
            let request = Attributes {
                verb: verb.to_owned(),
                group: group.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                namespace: namespace.to_owned(),
                ..Attributes::default()
            };
            let allowed = policy.authorize(&user, &request).is_allowed();
            assert_eq!(allowed, expected, "{name} {verb} {plural} in {namespace:?}");
        };
        check("view", "list", "servicedeployments.farwater.dev", "team-a", true);
        check("view", "get", "servicedeployments/objects.farwater.dev", "team-a", true);
        check("view", "get", "servicedeployments/history.farwater.dev", "team-a", true);
        check("view", "get", "servicedeployments/bundle.farwater.dev", "team-a", false);
        check("edit", "get", "servicedeployments/bundle.farwater.dev", "team-a", true);
        check("view", "get", "receivers.farwater.dev", "team-a", true);
        // A window of a namespace applies to everything on its clusters.
        check("view", "get", "changewindows.farwater.dev", "team-a", true);
        check("edit", "create", "changewindows.farwater.dev", "team-a", false);
        check("admin", "create", "changewindows.farwater.dev", "team-a", true);
        check("admin", "create", "changewindows.farwater.dev", "team-b", false);
        check("edit", "create", "pipelines.farwater.dev", "team-a", false);
        check("admin", "create", "pipelines.farwater.dev", "team-a", true);
        check(
            "view",
            "get",
            "servicedeployments/parameters.farwater.dev",
            "team-a",
            true,
        );
        check("view", "get", "secrets", "team-a", false);
        check("view", "get", "servicecontexts.farwater.dev", "team-a", false);
        check("edit", "get", "servicecontexts.farwater.dev", "team-a", true);
        check("edit", "create", "servicecontexts.farwater.dev", "team-a", true);
        check("view", "create", "configmaps", "team-a", false);
        check("view", "list", "servicedeployments.farwater.dev", "team-b", false);
        check("view", "list", "servicedeployments.farwater.dev", "", false);
        check("edit", "get", "secrets", "team-a", true);
        check("edit", "patch", "servicedeployments.farwater.dev", "team-a", true);
        check(
            "edit",
            "patch",
            "servicedeployments/status.farwater.dev",
            "team-a",
            false,
        );
        check("edit", "create", "serviceaccounts/token", "team-a", true);
        check("edit", "create", "receivers.farwater.dev", "team-a", true);
        check("edit", "create", "clusters.farwater.dev", "team-a", false);
        check("edit", "create", "roles.rbac.authorization.k8s.io", "team-a", false);
        check("admin", "create", "clusters/join.farwater.dev", "team-a", true);
        check(
            "admin",
            "create",
            "rolebindings.rbac.authorization.k8s.io",
            "team-a",
            true,
        );
        check("admin", "create", "clustergrants.farwater.dev", "team-a", false);
        check("admin", "create", "healthrules.farwater.dev", "team-a", false);
        check("admin", "create", "clusters.farwater.dev", "team-b", false);
    }

    #[test]
    fn everyone_authenticated_may_discover_and_ask_about_themselves() {
        let policy = policy(&[]);
        let user = User::service_account("a", "b", "u");
        let path = |path: &str| {
            policy
                .authorize(&user, &Attributes::non_resource("get", path))
                .is_allowed()
        };
        assert!(path("/api") && path("/apis/farwater.dev/v1alpha1") && path("/openapi/v3"));
        assert!(!path("/metrics") && !path("/apish"));
        let anonymous = User {
            name: "system:anonymous".to_owned(),
            ..User::default()
        };
        assert!(
            !policy
                .authorize(&anonymous, &Attributes::non_resource("get", "/api"))
                .is_allowed()
        );
    }

    #[test]
    fn defaults_are_completed_and_additions_kept() {
        let default = json!({"rules": [{"apiGroups": [""], "resources": ["a", "b"], "verbs": ["get"]}]});
        let check = |annotations: Value, rules: Value, expected: Option<Value>| {
            let object = json!({"metadata": {"annotations": annotations}, "rules": rules});
            let key = Key {
                kind: Kind::new("clusterroles", RBAC_GROUP),
                namespace: String::new(),
                name: "r".into(),
            };
            let current = Resource {
                key,
                uid: "u".into(),
                version: 1,
                object: std::sync::Arc::new(object),
            };
            assert_eq!(
                complete(&current, &default).map(|object| object["rules"].clone()),
                expected
            );
        };
        let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
        check(
            json!({AUTOUPDATE: "true"}),
            json!([rule("c"), rule("a")]),
            Some(json!([rule("c"), rule("a"), rule("b")])),
        );
        check(json!({AUTOUPDATE: "true"}), json!([rule("*")]), None);
        check(json!({AUTOUPDATE: "false"}), json!([]), None);
        check(Value::Null, json!([]), None);
    }
}
