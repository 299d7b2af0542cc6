//! The agent in a cluster.

use farwater_api::{ADMIN_SERVICE_ACCOUNT, AGENT_NAMESPACE, Digest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    objects::{Part, RBAC, RBAC_GROUP, environment, guarded, probe},
    rules::{AGENT_IN_CLUSTER, AGENT_IN_NAMESPACE},
};

pub mod names {
    pub const NAME: &str = "farwater-agent";
    pub const NAMESPACE: &str = farwater_api::AGENT_NAMESPACE;
    /// The Secret with the one-time token, which is useless after the join.
    pub const JOIN: &str = "farwater-agent-join";
    /// The Secret with the proxy's URL, which may hold a password.
    pub const PROXY: &str = "farwater-agent-proxy";
    /// The ConfigMap with additional authorities.
    pub const AUTHORITIES: &str = "farwater-agent-ca";
    /// The ConfigMap with the plugins file.
    pub const PLUGINS: &str = "farwater-agent-plugins";
    /// The ClusterRoleBinding of the administrators' account to cluster-admin.
    pub const ADMINISTRATOR: &str = farwater_api::ADMIN_SERVICE_ACCOUNT;
}

const TOKEN: &str = "token";
/// Folder with the authorities that the agent trusts for the hub besides the pinned one.
const AUTHORITIES: &str = "/etc/farwater/ca";
const AUTHORITIES_FILE: &str = "ca.crt";
const PLUGINS: &str = "/etc/farwater/plugins";
const PLUGINS_FILE: &str = "plugins.yaml";
/// Annotation of the pod: the digest of the plugins file.
const PLUGINS_DIGEST: &str = "farwater.dev/plugins-digest";
const PROXY_KEY: &str = "url";
const STATE: &str = "/var/lib/farwater-agent";
const HEALTH_PORT: u16 = 8081;

/// Settings of one cluster's agent.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    /// Full image reference, with a tag or digest.
    pub image: String,
    /// URL of the hub: `https://HOST[:PORT]`.
    pub hub: String,
    /// Digest of the hub's authority: `sha256:HEX`.
    pub ca_pin: String,
    /// One-time token for the first start. None: the Secret exists already, or the agent has joined before.
    pub join_token: Option<String>,
    /// HTTP proxy to the hub: `http://[USER:PASSWORD@]HOST:PORT`. None: no proxy.
    pub https_proxy: Option<String>,
    /// PEM of further authorities that the agent trusts for the hub, such as a company's for a TLS proxy in between.
    pub authorities: Option<String>,
    /// YAML of the plugins file: the programs that services may use as renderers. `mounts` brings them into the pod.
    pub plugins: Option<String>,
    pub mounts: Mounts,
    pub limits: Limits,
    /// Additional environment variables, such as `NO_PROXY` and `FARWATER_LOG`.
    pub environment: Vec<(String, String)>,
    /// Whether services of the admin namespace may do anything in the cluster. The chart and `cluster join` default to
    /// true.
    pub bind_administrator: bool,
}

/// The agent's own limits. Each field is the agent's option of the same name. Empty: the agent's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub allow_accounts: Vec<String>,
    pub allow_namespaces: Vec<String>,
    pub deny_kinds: Vec<String>,
    pub max_deletions: Option<u32>,
}

impl Limits {
    fn environment(&self) -> Vec<(&'static str, String)> {
        let patterns = [
            ("FARWATER_ALLOW_ACCOUNTS", &self.allow_accounts),
            ("FARWATER_ALLOW_NAMESPACES", &self.allow_namespaces),
            ("FARWATER_DENY_KINDS", &self.deny_kinds),
        ];
        let patterns = patterns.into_iter().filter(|(_, patterns)| !patterns.is_empty());
        let deletions = self
            .max_deletions
            .map(|count| ("FARWATER_MAX_DELETIONS", count.to_string()));
        patterns
            .map(|(name, patterns)| (name, patterns.join(",")))
            .chain(deletions)
            .collect()
    }
}

/// Fields of the pod that bring other programs and files into it, as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mounts {
    /// A container without a `securityContext` gets the agent's, because the namespace refuses pods with a weaker one.
    pub init_containers: Vec<Value>,
    pub volumes: Vec<Value>,
    /// Mounts of the agent's container.
    pub volume_mounts: Vec<Value>,
}

impl Agent {
    fn part() -> Part {
        Part {
            name: names::NAME,
            component: "agent",
            namespace: AGENT_NAMESPACE,
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// The objects, in the order in which they must be created.
    pub fn objects(&self) -> Vec<Value> {
        let part = Self::part();
        let mut objects = vec![
            part.namespace_object(),
            part.object("v1", "ServiceAccount", names::NAME, json!({})),
            part.object(
                "v1",
                "ServiceAccount",
                ADMIN_SERVICE_ACCOUNT,
                json!({"automountServiceAccountToken": false}),
            ),
        ];
        if self.bind_administrator {
            objects.push(part.cluster_object(
                RBAC,
                "ClusterRoleBinding",
                names::ADMINISTRATOR,
                json!({
                    "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "cluster-admin"},
                    "subjects": [
                        {"kind": "ServiceAccount", "name": ADMIN_SERVICE_ACCOUNT, "namespace": AGENT_NAMESPACE},
                    ],
                }),
            ));
        }
        objects.extend(part.cluster_role(AGENT_IN_CLUSTER));
        objects.extend(part.role(AGENT_IN_NAMESPACE));
        if let Some(token) = &self.join_token {
            let secret = json!({"type": "Opaque", "stringData": {TOKEN: token}});
            objects.push(part.object("v1", "Secret", names::JOIN, secret));
        }
        if let Some(url) = &self.https_proxy {
            let secret = json!({"type": "Opaque", "stringData": {PROXY_KEY: url}});
            objects.push(part.object("v1", "Secret", names::PROXY, secret));
        }
        if let Some(pem) = &self.authorities {
            let map = json!({"data": {AUTHORITIES_FILE: pem}});
            objects.push(part.object("v1", "ConfigMap", names::AUTHORITIES, map));
        }
        if let Some(text) = &self.plugins {
            let map = json!({"data": {PLUGINS_FILE: text}});
            objects.push(part.object("v1", "ConfigMap", names::PLUGINS, map));
        }
        // Only the node probes the pod, and no policy blocks nodes.
        objects.extend([
            part.network_policy(json!([])),
            part.disruption_budget(),
            self.deployment(),
        ]);
        objects
    }

    fn deployment(&self) -> Value {
        let part = Self::part();
        let (mounts, volumes) = self.folders();
        let container = self.container(mounts);
        let mut pod = json!({"volumes": volumes});
        if !self.mounts.init_containers.is_empty() {
            pod["initContainers"] = self.mounts.init_containers.iter().cloned().map(guarded).collect();
        }
        let mut template = part.pod(pod, container);
        if let Some(text) = &self.plugins {
            // The agent reads plugins only at its start: the digest restarts the pod when they change.
            template["metadata"]["annotations"] = json!({PLUGINS_DIGEST: Digest::of(text).to_string()});
        }
        part.object(
            "apps/v1",
            "Deployment",
            names::NAME,
            json!({"spec": {
                "replicas": 1,
                // The old pod ends only after the new one has proven that it reaches the hub. Until then a Lease
                // decides which of the two is active.
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
                "minReadySeconds": 5,
                "revisionHistoryLimit": 2,
                "selector": {"matchLabels": part.selector()},
                "template": template,
            }}),
        )
    }

    fn container(&self, mounts: Vec<Value>) -> Value {
        let seconds = |period: u64, failures: u64| {
            [
                ("periodSeconds".to_owned(), json!(period)),
                ("failureThreshold".to_owned(), json!(failures)),
            ]
            .into_iter()
            .collect()
        };
        json!({
            "image": self.image,
            "args": ["--log-format", "json", "--health-listen", format!("[::]:{HEALTH_PORT}")],
            "env": self.variables(),
            "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
            // The agent answers these probes without its hub or API server, because a restart would fix neither.
            "livenessProbe": probe("/livez", "health", "HTTP", seconds(20, 3)),
            "readinessProbe": probe("/readyz", "health", "HTTP", seconds(5, 3)),
            "resources": {
                "requests": {"cpu": "10m", "memory": "32Mi"},
                "limits": {"memory": "512Mi"},
            },
            "volumeMounts": mounts,
        })
    }

    /// The container's environment, with the additional variables last.
    fn variables(&self) -> Vec<Value> {
        let token = json!({"name": names::JOIN, "key": TOKEN, "optional": true});
        let mut variables = environment([
            ("FARWATER_HUB", self.hub.clone()),
            ("FARWATER_CA_PIN", self.ca_pin.clone()),
            ("FARWATER_DEPLOYMENT", names::NAME.to_owned()),
        ]);
        variables.push(json!({"name": "FARWATER_JOIN_TOKEN", "valueFrom": {"secretKeyRef": token}}));
        if self.https_proxy.is_some() {
            let url = json!({"name": names::PROXY, "key": PROXY_KEY});
            variables.push(json!({"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": url}}));
        }
        if self.authorities.is_some() {
            let path = format!("{AUTHORITIES}/{AUTHORITIES_FILE}");
            variables.extend(environment([("FARWATER_CA_FILE", path)]));
        }
        if self.plugins.is_some() {
            variables.extend(environment([("FARWATER_PLUGINS", format!("{PLUGINS}/{PLUGINS_FILE}"))]));
        }
        variables.extend(environment(self.limits.environment()));
        let stated = self.environment.iter();
        variables.extend(environment(stated.map(|(name, value)| (name.as_str(), value.clone()))));
        variables
    }

    /// The container's mounts, and the pod's volumes for them.
    fn folders(&self) -> (Vec<Value>, Vec<Value>) {
        let mut mounts = vec![
            json!({"name": "state", "mountPath": STATE}),
            json!({"name": "tmp", "mountPath": "/tmp"}),
        ];
        let mut volumes = vec![
            json!({"name": "state", "emptyDir": {"sizeLimit": "1Gi"}}),
            json!({"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}),
        ];
        if self.authorities.is_some() {
            mounts.push(json!({"name": "ca", "mountPath": AUTHORITIES, "readOnly": true}));
            volumes.push(json!({"name": "ca", "configMap": {"name": names::AUTHORITIES}}));
        }
        if self.plugins.is_some() {
            mounts.push(json!({"name": "plugin-configuration", "mountPath": PLUGINS, "readOnly": true}));
            volumes.push(json!({"name": "plugin-configuration", "configMap": {"name": names::PLUGINS}}));
        }
        mounts.extend(self.mounts.volume_mounts.iter().cloned());
        volumes.extend(self.mounts.volumes.iter().cloned());
        (mounts, volumes)
    }
}
