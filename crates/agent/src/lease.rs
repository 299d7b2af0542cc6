//! One acting agent at a time: the holder of the Lease acts, others stand by. So a new version can show that it works
//! while the old one still does, and two agents of one cluster never undo each other's work.
//!
//! A `coordination.k8s.io/v1` Lease by the rules of client-go's leader election: a candidate takes it when it is free,
//! or when it was not renewed for its duration by the candidate's own clock. A holder that can't reach the API server
//! continues: it can't change anything there either, and its first request shows who holds the Lease.

use std::{path::Path, sync::Mutex, time::Duration};

use farwater_api::AGENT_NAMESPACE;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    kubernetes::{ApiError, Kubernetes, Resource},
    sync::{jitter, lock},
};

const NAME: &str = "farwater-agent";
/// A pod whose node has died is replaced after five minutes; one more does not matter.
const DURATION: Duration = Duration::from_secs(60);
/// Three requests a minute, of which two may fail.
const RENEW: Duration = Duration::from_secs(20);

fn resource() -> Resource {
    Resource {
        group: "coordination.k8s.io".into(),
        version: "v1".into(),
        kind: "Lease".into(),
        plural: "leases".into(),
        namespaced: true,
    }
}

/// The result of asking for the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Taken,
    HeldBy(String),
}

/// The Lease that this process asks for or holds.
pub struct Lease {
    holder: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last observed version of the Lease, and since when.
    seen: Option<(String, Instant)>,
    held: bool,
}

/// Another agent took the Lease, so this one's knowledge may be stale.
#[derive(Debug, thiserror::Error)]
#[error("{holder} has taken the Lease {AGENT_NAMESPACE}/{NAME}: another agent acts in this cluster now")]
pub struct Lost {
    holder: String,
}

impl Lease {
    pub fn new(holder: String) -> Self {
        Self {
            holder,
            state: Mutex::default(),
        }
    }

    /// Holder name. It is the same after a restart in the same pod or with the same state directory, so that an agent
    /// never waits for itself.
    pub fn holder(in_pod: bool, state_dir: &Path) -> String {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim();
        if in_pod {
            return host.to_owned();
        }
        let dir = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
        format!("{host}:{}", dir.display())
    }

    /// Name of this process' host.
    pub fn name(&self) -> &str {
        &self.holder
    }

    /// Takes the Lease if it is free.
    pub async fn ask(&self, kubernetes: &Kubernetes) -> Result<Asked, ApiError> {
        let found = match kubernetes
            .get(None, &resource().path(AGENT_NAMESPACE, NAME), false)
            .await
        {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return self.create(kubernetes).await,
            Err(error) => return Err(error),
        };
        let version = text(&found["metadata"]["resourceVersion"]);
        let since = self.watch(&version);
        if let Some(holder) = held_by(&found, &self.holder, since.elapsed()) {
            return Ok(Asked::HeldBy(holder));
        }
        let transitions = found["spec"]["leaseTransitions"].as_i64().unwrap_or(0);
        let mut spec = self.spec(Timestamp::now());
        if found["spec"]["holderIdentity"] != *self.holder {
            spec["leaseTransitions"] = json!(transitions + 1);
        }
        match self.write(kubernetes, &version, spec).await {
            Ok(()) => {
                lock(&self.state).held = true;
                Ok(Asked::Taken)
            }
            // Another candidate was faster; the next request shows which.
            Err(error) if error.code() == 409 => Ok(Asked::HeldBy("another candidate".to_owned())),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, kubernetes: &Kubernetes) -> Result<Asked, ApiError> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": NAME, "namespace": AGENT_NAMESPACE},
            "spec": self.spec(Timestamp::now()),
        });
        match kubernetes
            .create(None, &resource().collection(AGENT_NAMESPACE), &lease)
            .await
        {
            Ok(made) => {
                self.watch(&text(&made["metadata"]["resourceVersion"]));
                lock(&self.state).held = true;
                Ok(Asked::Taken)
            }
            Err(error) if error.code() == 409 => Ok(Asked::HeldBy("another candidate".to_owned())),
            Err(error) => Err(error),
        }
    }

    fn spec(&self, now: Timestamp) -> Value {
        json!({
            "holderIdentity": self.holder, "leaseDurationSeconds": DURATION.as_secs(),
            "acquireTime": format!("{now:.6}"), "renewTime": format!("{now:.6}"),
        })
    }

    /// Renews it for ever. Returns when another agent holds it.
    pub async fn keep(&self, kubernetes: &Kubernetes) -> Lost {
        loop {
            sleep(RENEW).await;
            while let Err(error) = self.renew(kubernetes).await {
                match error {
                    RenewError::Lost(lost) => {
                        lock(&self.state).held = false;
                        return lost;
                    }
                    RenewError::Api(error) => {
                        tracing::debug!(error = crate::hub::chain(&error), "can't renew the Lease; trying again");
                        sleep(jitter(RENEW / 4, 0.2)).await;
                    }
                }
            }
        }
    }

    async fn renew(&self, kubernetes: &Kubernetes) -> Result<(), RenewError> {
        let version = lock(&self.state)
            .seen
            .as_ref()
            .map(|(version, _)| version.clone())
            .unwrap_or_default();
        let spec = json!({"holderIdentity": self.holder, "renewTime": format!("{:.6}", Timestamp::now())});
        match self.write(kubernetes, &version, spec).await {
            Ok(()) => Ok(()),
            // The Lease was changed or deleted. It is still ours, unless another agent holds it.
            Err(error) if error.code() == 409 || error.is_not_found() => match self.ask(kubernetes).await? {
                Asked::Taken => Ok(()),
                Asked::HeldBy(holder) => Err(RenewError::Lost(Lost { holder })),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Releases the Lease if it is ours, so that the next agent can take it at once.
    pub async fn release(&self, kubernetes: &Kubernetes) {
        let version = {
            let state = lock(&self.state);
            match &state.seen {
                Some((version, _)) if state.held => version.clone(),
                _ => return,
            }
        };
        let spec = json!({"holderIdentity": "", "leaseDurationSeconds": 1});
        if let Err(error) = self.write(kubernetes, &version, spec).await {
            tracing::debug!(error = crate::hub::chain(&error), "can't release the Lease");
        }
    }

    /// Changes the Lease if it is still at `version`.
    async fn write(&self, kubernetes: &Kubernetes, version: &str, spec: Value) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
        let written = kubernetes
            .patch(None, &resource().path(AGENT_NAMESPACE, NAME), &patch)
            .await?;
        self.watch(&text(&written["metadata"]["resourceVersion"]));
        Ok(())
    }

    /// Since when this version of the Lease has been observed.
    fn watch(&self, version: &str) -> Instant {
        let mut state = lock(&self.state);
        match &state.seen {
            Some((seen, since)) if seen == version => *since,
            _ => {
                let now = Instant::now();
                state.seen = Some((version.to_owned(), now));
                now
            }
        }
    }
}

enum RenewError {
    Lost(Lost),
    Api(ApiError),
}

impl From<ApiError> for RenewError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The holder of the Lease. None: it is `me`, there is none, or it was not renewed for its duration.
fn held_by(lease: &Value, me: &str, unchanged_for: Duration) -> Option<String> {
    let spec = &lease["spec"];
    let holder = spec["holderIdentity"]
        .as_str()
        .filter(|holder| !holder.is_empty() && *holder != me)?;
    let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or(DURATION.as_secs());
    (unchanged_for < Duration::from_secs(seconds)).then(|| holder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_when_it_is_free_ours_or_forgotten() {
        let lease = |holder: &str| json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 60}});
        let seconds = Duration::from_secs;
        assert_eq!(held_by(&lease("other"), "me", seconds(0)), Some("other".to_owned()));
        assert_eq!(held_by(&lease("other"), "me", seconds(59)), Some("other".to_owned()));
        assert_eq!(held_by(&lease("other"), "me", seconds(60)), None);
        assert_eq!(held_by(&lease("me"), "me", seconds(0)), None);
        assert_eq!(held_by(&lease(""), "me", seconds(0)), None);
        assert_eq!(held_by(&json!({}), "me", seconds(0)), None);
    }
}
