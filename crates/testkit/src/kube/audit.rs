//! What one user asks an API server for, as that server notes it down itself. Its metrics count by verb and kind, but not
//! by who asked.

use std::fs;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::{AUDITED, Plane, PlaneOptions};

/// One request, noted when it came in.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Request {
    #[serde(rename = "requestReceivedTimestamp")]
    pub at: Timestamp,
    /// As in the rules of a role; for what is no resource, HTTP's method in small letters.
    pub verb: String,
    #[serde(rename = "requestURI")]
    pub uri: String,
    /// Empty for what is no resource.
    #[serde(default, rename = "objectRef")]
    pub object: Object,
}

/// What a request is about. A list has no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Object {
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

impl Request {
    /// A list whose size others decide: no label says whose objects are meant.
    pub fn is_unfiltered_list(&self) -> bool {
        let mut selectors = self.uri.split(['?', '&']).filter_map(|parameter| parameter.strip_prefix("labelSelector="));
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
    /// What [`AUDITED`] has asked for since then. Only of a plane of one's own, started with [`PlaneOptions::audited`].
    pub fn requests(&self, since: Timestamp) -> Result<Vec<Request>> {
        let running = self.running.as_ref().context("the plane is shared: nobody has its log")?;
        let path = running.settings.audit_log();
        let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        // The last line may be half written.
        let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let requests = lines.map(|line| serde_json::from_str(line).with_context(|| format!("read {line}")));
        let requests = requests.collect::<Result<Vec<Request>>>()?;
        Ok(requests.into_iter().filter(|request| request.at >= since).collect())
    }
}

/// One line for each request, whatever comes of it and however long it takes.
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
        let object = Object { resource: "configmaps".to_owned(), ..Object::default() };
        Request { at: Timestamp::UNIX_EPOCH, verb: "list".to_owned(), uri: uri.to_owned(), object }
    }

    #[test]
    fn a_list_is_filtered_by_a_label_that_says_something() {
        assert!(list("/api/v1/configmaps?limit=500").is_unfiltered_list());
        assert!(list("/api/v1/configmaps?limit=500&labelSelector=").is_unfiltered_list());
        assert!(!list("/api/v1/configmaps?limit=500&labelSelector=a%3Db").is_unfiltered_list());
        assert!(!Request { verb: "watch".to_owned(), ..list("/api/v1/configmaps?watch=1") }.is_unfiltered_list());
    }

    #[tokio::test]
    async fn one_users_requests_are_noted_and_nobody_elses() {
        let plane = Plane::start_with(PlaneOptions::without_nodes().audited()).await.unwrap();
        let since = Timestamp::now();
        for user in [ADMIN, AUDITED] {
            let maps: Api<ConfigMap> = Api::namespaced(plane.client_as(user).await.unwrap(), "default");
            maps.list(&ListParams::default()).await.unwrap();
            assert!(maps.get_opt("none").await.unwrap().is_none());
        }
        let requests = plane.requests(since).unwrap();
        let seen: Vec<_> = requests.iter().map(|one| (one.verb.as_str(), one.object.name.as_str())).collect();
        assert_eq!(seen, [("list", ""), ("get", "none")]);
        assert_eq!(requests[0].object.resource, "configmaps");
        assert!(plane.requests(Timestamp::now()).unwrap().is_empty());
    }
}
