//! The hub's view of the fleet, read through its API as any client would.

use anyhow::{Context as _, Result};
use farwater_api::{ADMIN_NAMESPACE, Cluster, Condition, ServiceDeployment};
use kube::{Api, Client, ResourceExt as _, api::ListParams};

/// Numbers of clusters and services in the example's farwater.yaml.
const CLUSTERS: usize = 2;
const SERVICES: usize = 5;

pub struct Fleet {
    pub clusters: Vec<Cluster>,
    pub services: Vec<ServiceDeployment>,
}

impl Fleet {
    pub async fn load(client: &Client) -> Result<Self> {
        let list = ListParams::default();
        let clusters = Api::namespaced(client.clone(), ADMIN_NAMESPACE)
            .list(&list)
            .await
            .context("list clusters")?;
        let services = Api::namespaced(client.clone(), ADMIN_NAMESPACE)
            .list(&list)
            .await
            .context("list services")?;
        Ok(Self {
            clusters: clusters.items,
            services: services.items,
        })
    }

    /// Whether every cluster and every service is ready.
    pub fn is_healthy(&self) -> bool {
        let clusters = self.clusters.iter().filter(|cluster| {
            cluster
                .status
                .as_ref()
                .is_some_and(|status| ready(&status.conditions).is_some_and(is_true))
        });
        let services = self.services.iter().filter(|service| service_is_ready(service));
        clusters.count() >= CLUSTERS && services.count() >= SERVICES
    }

    /// Whether the services whose files the demo changes run this commit.
    pub fn web_is_at(&self, commit: &str) -> bool {
        let mut web = self
            .services
            .iter()
            .filter(|service| service.spec.path == "apps/web")
            .peekable();
        web.peek().is_some() && web.all(|service| applied(service).is_some_and(|revision| revision.ends_with(commit)))
    }

    /// One line per cluster and service, for logs.
    pub fn lines(&self) -> Vec<String> {
        let clusters = self.clusters.iter().map(|cluster| {
            let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice());
            format!(
                "cluster {:<15} {}",
                cluster.name_any(),
                words(conditions.unwrap_or_default())
            )
        });
        let services = self.services.iter().map(|service| {
            let conditions = service.status.as_ref().map(|status| status.conditions.as_slice());
            format!(
                "service {:<15} {}",
                service.name_any(),
                words(conditions.unwrap_or_default())
            )
        });
        clusters.chain(services).collect()
    }
}

fn service_is_ready(service: &ServiceDeployment) -> bool {
    let Some(status) = &service.status else { return false };
    status.observed_generation == service.metadata.generation && ready(&status.conditions).is_some_and(is_true)
}

fn applied(service: &ServiceDeployment) -> Option<&str> {
    service.status.as_ref()?.applied_revision.as_deref()
}

fn ready(conditions: &[Condition]) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == "Ready")
}

fn is_true(condition: &Condition) -> bool {
    condition.status == "True"
}

fn words(conditions: &[Condition]) -> String {
    match ready(conditions) {
        None => "not reported yet".to_owned(),
        Some(condition) if is_true(condition) => format!("ready: {}", condition.message),
        Some(condition) => format!("not ready ({}): {}", condition.reason, condition.message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fleet(ready: &str, observed: i64, revision: &str) -> Fleet {
        let conditions = json!([{"type": "Ready", "status": ready, "reason": "R", "message": "m",
                                 "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let cluster = json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "east"},
                             "spec": {}, "status": {"conditions": conditions}});
        let service = json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": "web", "generation": 2},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "fleet"},
                     "path": "apps/web"},
            "status": {"conditions": conditions, "observedGeneration": observed, "appliedRevision": revision},
        });
        let clusters = vec![serde_json::from_value(cluster).unwrap(); CLUSTERS];
        Fleet {
            clusters,
            services: vec![serde_json::from_value(service).unwrap(); SERVICES],
        }
    }

    #[test]
    fn a_fleet_is_healthy_only_when_the_conditions_speak_of_the_present_generation() {
        assert!(fleet("True", 2, "main@sha1:abc").is_healthy());
        assert!(!fleet("True", 1, "main@sha1:abc").is_healthy());
        assert!(!fleet("False", 2, "main@sha1:abc").is_healthy());
    }

    #[test]
    fn a_commit_has_arrived_when_it_is_applied_not_when_it_is_assigned() {
        assert!(fleet("True", 2, "main@sha1:abc").web_is_at("abc"));
        assert!(!fleet("True", 2, "main@sha1:abc").web_is_at("def"));
    }
}
