//! The hub in a cluster. The hub needs no rights there, because it never calls the API server of that cluster.

use serde_json::{Value, json};

use crate::objects::{Part, environment, merge, probe};
use names::DATA;

pub mod names {
    pub const NAME: &str = "farwater-hub";
    pub const NAMESPACE: &str = "farwater-hub";
    /// The container's name, needed to run a command in it.
    pub const CONTAINER: &str = "hub";
    pub const SERVICE_PORT: u16 = 443;
    /// Mount path of the volume with all of the hub's data.
    pub const DATA: &str = "/var/lib/farwater";
}

/// Mount path of the Secret with the server's certificate.
const TLS: &str = "/etc/farwater/tls";
const PORT: u16 = 8443;
/// File mode 0440: readable by the pod's group, which is the hub's.
const SECRET_MODE: u32 = 0o440;
/// Running requests get 10 s to finish, and the rest is for closing the database.
const GRACE_SECONDS: u64 = 30;

/// Settings of an installation.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Full image reference, with a tag or digest.
    pub image: String,
    /// URL at which agents and people reach the hub: `https://HOST[:PORT]`. None: its Service, for this cluster alone.
    pub url: Option<String>,
    pub exposure: Exposure,
    pub database: Database,
    pub tls: Tls,
    /// Size of the volume with keys, mirrors and, without PostgreSQL, the database.
    pub storage: String,
    pub storage_class: Option<String>,
}

/// Type of the hub's Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    #[default]
    ClusterIp,
    /// Uses the port of the hub's URL, if the URL names one.
    NodePort,
    LoadBalancer,
}

impl Exposure {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Database {
    /// A file on the volume.
    #[default]
    Sqlite,
    /// A Secret in the hub's namespace: `url` has the URL, and `password` the password if the URL has none.
    Postgres { secret: String },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// A certificate of the hub's own authority.
    #[default]
    Own,
    /// A Secret of type `kubernetes.io/tls` in the hub's namespace, as cert-manager creates it. Its `ca.crt` or a
    /// public authority has issued the certificate. The hub reads the certificate again when it changes.
    Secret { name: String },
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            image: String::new(),
            url: None,
            exposure: Exposure::default(),
            database: Database::default(),
            tls: Tls::default(),
            storage: "10Gi".to_owned(),
            storage_class: None,
        }
    }
}

/// Port of `https://HOST:PORT`. None: the URL has no port.
fn port_of(url: &str) -> Option<u16> {
    url.trim_end_matches('/').rsplit_once(':')?.1.parse().ok()
}

impl Hub {
    fn part() -> Part {
        Part {
            name: names::NAME,
            component: names::CONTAINER,
            namespace: names::NAMESPACE,
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// URL of the Service inside the cluster.
    pub fn service_url() -> String {
        format!("https://{}.{}.svc", names::NAME, names::NAMESPACE)
    }

    /// The objects, in the order in which they must be created.
    pub fn objects(&self) -> Vec<Value> {
        let part = Self::part();
        let mut port = json!({"name": "https", "port": names::SERVICE_PORT, "targetPort": "https"});
        if let (Exposure::NodePort, Some(number)) = (self.exposure, self.url.as_deref().and_then(port_of)) {
            merge(&mut port, json!({"nodePort": number}));
        }
        vec![
            part.namespace_object(),
            part.object(
                "v1",
                "ServiceAccount",
                names::NAME,
                json!({"automountServiceAccountToken": false}),
            ),
            part.object(
                "v1",
                "Service",
                names::NAME,
                json!({"spec": {
                    "type": self.exposure.as_str(), "selector": part.selector(), "ports": [port],
                }}),
            ),
            part.network_policy(json!([{"ports": [{"port": "https"}]}])),
            part.disruption_budget(),
            self.stateful_set(),
        ]
    }

    fn environment(&self) -> Vec<Value> {
        let name = format!("{}.{}", names::NAME, names::NAMESPACE);
        let alternatives = [
            format!("{name}.svc"),
            format!("{name}.svc.cluster.local"),
            name,
            "localhost".to_owned(),
        ];
        let mut variables = environment([
            ("FARWATER_LOG_FORMAT", "json".to_owned()),
            ("FARWATER_ADVERTISE", self.url.clone().unwrap_or_else(Self::service_url)),
            ("FARWATER_TLS_SAN", alternatives.join(",")),
        ]);
        if let Database::Postgres { secret } = &self.database {
            let url = json!({"name": secret, "key": "url"});
            variables.push(json!({"name": "FARWATER_DATABASE", "valueFrom": {"secretKeyRef": url}}));
            let password = json!({"name": secret, "key": "password", "optional": true});
            variables.push(json!({"name": "FARWATER_DATABASE_PASSWORD", "valueFrom": {"secretKeyRef": password}}));
        }
        if matches!(self.tls, Tls::Secret { .. }) {
            let file = |name: &str| format!("{TLS}/{name}");
            variables.extend(environment([
                ("FARWATER_TLS_CERT", file("tls.crt")),
                ("FARWATER_TLS_KEY", file("tls.key")),
            ]));
        }
        variables
    }

    fn stateful_set(&self) -> Value {
        let part = Self::part();
        let timing = |period: u64, failures: u64| {
            [
                ("periodSeconds".to_owned(), json!(period)),
                ("failureThreshold".to_owned(), json!(failures)),
            ]
            .into_iter()
            .collect()
        };
        let mut mounts = vec![
            json!({"name": "data", "mountPath": DATA}),
            json!({"name": "tmp", "mountPath": "/tmp"}),
        ];
        let mut volumes = vec![json!({"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}})];
        if let Tls::Secret { name } = &self.tls {
            // Mount the whole folder, because the node never updates files that are mounted one by one.
            mounts.push(json!({"name": "tls", "mountPath": TLS, "readOnly": true}));
            volumes.push(json!({"name": "tls", "secret": {"secretName": name, "defaultMode": SECRET_MODE}}));
        }
        let container = json!({
            "image": self.image,
            "env": self.environment(),
            "ports": [{"name": "https", "containerPort": PORT}],
            // The first start with many objects may take a while, and so may a migration.
            "startupProbe": probe("/readyz", "https", "HTTPS", timing(2, 150)),
            "livenessProbe": probe("/livez", "https", "HTTPS", timing(20, 3)),
            "readinessProbe": probe("/readyz", "https", "HTTPS", timing(5, 2)),
            "resources": {
                "requests": {"cpu": "100m", "memory": "128Mi"},
                "limits": {"memory": "2Gi"},
            },
            "volumeMounts": mounts,
        });
        let pod = json!({
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "volumes": volumes,
        });
        let mut claim = json!({
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": self.storage}},
        });
        if let Some(class) = &self.storage_class {
            merge(&mut claim, json!({"storageClassName": class}));
        }
        part.object(
            "apps/v1",
            "StatefulSet",
            names::NAME,
            json!({"spec": {
                "replicas": 1,
                "serviceName": names::NAME,
                "revisionHistoryLimit": 2,
                "selector": {"matchLabels": part.selector()},
                "template": part.pod(pod, container),
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
            }}),
        )
    }
}
