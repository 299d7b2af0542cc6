//! Parts that the objects of hub and agent share.

use serde_json::{Map, Value, json};

use crate::rules::Rule;

/// User id of containers: the user of the images.
const USER: u64 = 65532;

/// One program: its name, and the namespace of its objects.
#[derive(Clone, Copy)]
pub struct Part {
    pub name: &'static str,
    pub component: &'static str,
    pub namespace: &'static str,
    pub version: &'static str,
}

impl Part {
    /// Labels that select the program's pods.
    pub fn selector(self) -> Value {
        json!({"app.kubernetes.io/name": "farwater", "app.kubernetes.io/component": self.component})
    }

    pub fn labels(self) -> Value {
        let mut labels = self.selector();
        labels["app.kubernetes.io/part-of"] = json!("farwater");
        labels[crate::VERSION_LABEL] = json!(self.version);
        labels
    }

    /// A cluster-scoped object. `content` is everything except its type and metadata.
    pub fn cluster_object(self, api_version: &str, kind: &str, name: &str, content: Value) -> Value {
        let mut object = json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": self.labels()},
        });
        merge(&mut object, content);
        object
    }

    /// An object in the program's namespace.
    pub fn object(self, api_version: &str, kind: &str, name: &str, content: Value) -> Value {
        let mut object = self.cluster_object(api_version, kind, name, content);
        object["metadata"]["namespace"] = json!(self.namespace);
        object
    }

    /// The program's namespace. Its pods need no rights on their node, so it enforces the strictest pod security.
    pub fn namespace_object(self) -> Value {
        let mut namespace = self.cluster_object("v1", "Namespace", self.namespace, json!({}));
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = json!("restricted");
        namespace
    }

    pub fn cluster_role(self, rules: &[Rule]) -> [Value; 2] {
        let rules: Vec<_> = rules.iter().map(|rule| rule.value()).collect();
        let subject = json!([{"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}]);
        [
            self.cluster_object(RBAC, "ClusterRole", self.name, json!({"rules": rules})),
            self.cluster_object(
                RBAC,
                "ClusterRoleBinding",
                self.name,
                json!({
                    "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": self.name}, "subjects": subject,
                }),
            ),
        ]
    }

    pub fn role(self, rules: &[Rule]) -> [Value; 2] {
        let rules: Vec<_> = rules.iter().map(|rule| rule.value()).collect();
        let subject = json!([{"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}]);
        [
            self.object(RBAC, "Role", self.name, json!({"rules": rules})),
            self.object(
                RBAC,
                "RoleBinding",
                self.name,
                json!({
                    "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": self.name}, "subjects": subject,
                }),
            ),
        ]
    }

    /// A pod template with one container, and the fields that hub and agent share.
    pub fn pod(self, pod: Value, container: Value) -> Value {
        let mut only = guarded(json!({
            "name": self.component,
            "imagePullPolicy": "IfNotPresent",
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }));
        merge(&mut only, container);
        let mut spec = json!({
            "serviceAccountName": self.name,
            "enableServiceLinks": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [only],
            // Matters only with several pods: a single one may run on any node.
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": self.selector()},
            }],
        });
        merge(&mut spec, pod);
        json!({"metadata": {"labels": self.labels()}, "spec": spec})
    }

    /// Allows only the given `ingress`. Egress is not restricted, because repositories, databases and hubs may be
    /// anywhere.
    pub fn network_policy(self, ingress: Value) -> Value {
        self.object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            self.name,
            json!({"spec": {
                "podSelector": {"matchLabels": self.selector()}, "policyTypes": ["Ingress"], "ingress": ingress,
            }}),
        )
    }

    /// Allows the eviction of one pod at a time. A single pod must not block the drain of its node.
    pub fn disruption_budget(self) -> Value {
        self.object(
            "policy/v1",
            "PodDisruptionBudget",
            self.name,
            json!({"spec": {
                "maxUnavailable": 1, "selector": {"matchLabels": self.selector()},
            }}),
        )
    }
}

pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
pub const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// Adds a `securityContext` without any rights on the node, unless the container has its own.
pub fn guarded(mut container: Value) -> Value {
    if container["securityContext"].is_null()
        && let Some(fields) = container.as_object_mut()
    {
        let none = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        });
        fields.insert("securityContext".to_owned(), none);
    }
    container
}

/// Overwrites fields of `object` with those of `over`.
pub fn merge(object: &mut Value, over: Value) {
    if let (Some(fields), Value::Object(over)) = (object.as_object_mut(), over) {
        fields.extend(over);
    }
}

/// The `env` list of a container.
pub fn environment<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Vec<Value> {
    pairs
        .into_iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect()
}

/// A probe that requests an HTTP path.
pub fn probe(path: &str, port: &str, scheme: &str, timing: Map<String, Value>) -> Value {
    let mut probe = json!({"httpGet": {"path": path, "port": port, "scheme": scheme}});
    merge(&mut probe, Value::Object(timing));
    probe
}
