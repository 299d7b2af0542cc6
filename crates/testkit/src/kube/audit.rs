//! Requests of one user to an API server, from the server's audit log. Its metrics count by verb and kind, but not by
//! user.

use std::fs;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::{AUDITED, Plane, PlaneOptions};

/// A request, logged when it arrived.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Request {
    #[serde(rename = "requestReceivedTimestamp")]
    pub at: Timestamp,
    /// Verb as in the rules of a role. For a non-resource request, the HTTP method in lower case.
    pub verb: String,
    #[serde(rename = "requestURI")]
    pub uri: String,
    /// Object of the request. Empty for a non-resource request.
    #[serde(default, rename = "objectRef")]
    pub object: Object,
}

/// Object of a request. A list has no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Object {
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

impl Request {
    /// Whether it is a list without a label selector, whose size depends on other users' objects.
    pub fn is_unfiltered_list(&self) -> bool {
        let mut selectors = self
            .uri
            .split(['?', '&'])
            .filter_map(|parameter| parameter.strip_prefix("labelSelector="));
        self.verb == "list" && selectors.all(str::is_empty)
    }
}

impl PlaneOptions {
    #[must_use]
    pub fn audited(self) -> Self {
        Self { audited: true, ..self }
    }
}

impl Plane {
    /// Requests of [`AUDITED`] since then. Only for an own plane with [`PlaneOptions::audited`].
    pub fn requests(&self, since: Timestamp) -> Result<Vec<Request>> {
        let running = self
            .running
            .as_ref()
            .context("the plane is shared: its log is not available")?;
        let path = running.settings.audit_log();
        let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        // The last line may be incomplete.
        let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let requests = lines.map(|line| serde_json::from_str(line).with_context(|| format!("read {line}")));
        let requests = requests.collect::<Result<Vec<Request>>>()?;
        Ok(requests.into_iter().filter(|request| request.at >= since).collect())
    }
}

/// Policy that logs one line for each request, whatever its result and duration.
pub(super) fn policy() -> String {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
        "rules": [{"level": "Metadata", "users": [AUDITED]}],
    });
    policy.to_string()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, api::ListParams};

    use super::*;
    use crate::kube::ADMIN;

    fn list(uri: &str) -> Request {
        let object = Object {
            resource: "configmaps".to_owned(),
            ..Object::default()
        };
        Request {
            at: Timestamp::UNIX_EPOCH,
            verb: "list".to_owned(),
            uri: uri.to_owned(),
            object,
        }
    }

    #[test]
    fn a_list_is_filtered_by_a_label_that_says_something() {
        assert!(list("/api/v1/configmaps?limit=500").is_unfiltered_list());
        assert!(list("/api/v1/configmaps?limit=500&labelSelector=").is_unfiltered_list());
        assert!(!list("/api/v1/configmaps?limit=500&labelSelector=a%3Db").is_unfiltered_list());
        assert!(
            !Request {
                verb: "watch".to_owned(),
                ..list("/api/v1/configmaps?watch=1")
            }
            .is_unfiltered_list()
        );
    }

    #[tokio::test]
    async fn one_users_requests_are_noted_and_nobody_elses() {
        let plane = Plane::start_with(PlaneOptions::without_nodes().audited())
            .await
            .unwrap();
        let since = Timestamp::now();
        for user in [ADMIN, AUDITED] {
            let maps: Api<ConfigMap> = Api::namespaced(plane.client_as(user).await.unwrap(), "default");
            maps.list(&ListParams::default()).await.unwrap();
            assert!(maps.get_opt("none").await.unwrap().is_none());
        }
        let requests = plane.requests(since).unwrap();
        let seen: Vec<_> = requests
            .iter()
            .map(|one| (one.verb.as_str(), one.object.name.as_str()))
            .collect();
        assert_eq!(seen, [("list", ""), ("get", "none")]);
        assert_eq!(requests[0].object.resource, "configmaps");
        assert!(plane.requests(Timestamp::now()).unwrap().is_empty());
    }
}
