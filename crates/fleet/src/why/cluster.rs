//! Whether the hub hears a cluster, by its Cluster, or by its GrantedCluster for a tenant.

use farwater_api::{
    Cluster, Condition,
    granted_cluster::{GrantedCluster, GrantedClusterStatus},
};
use jiff::Timestamp;

use super::{Evidence, Finding, Link, Lookup, NextStep, ago, find, set::in_order};

/// The part of a cluster that people are told.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterEvidence {
    pub name: String,
    /// Namespace of the Cluster in the hub. Empty: unknown.
    pub namespace: String,
    pub is_ready: bool,
    /// The condition `Ready`. None: there is none yet, or a tenant may not read it.
    pub ready: Option<Condition>,
    /// Time of the agent's last request.
    pub heard: Option<Timestamp>,
    pub suspended: bool,
    pub kubernetes_version: Option<String>,
    /// A ClusterGrant shows it to a tenant, who can't read the Cluster.
    pub is_granted: bool,
}

impl From<&Cluster> for ClusterEvidence {
    fn from(cluster: &Cluster) -> Self {
        let status = cluster.status.clone().unwrap_or_default();
        let ready = find(&status.conditions, "Ready");
        Self {
            name: cluster.metadata.name.clone().unwrap_or_default(),
            namespace: cluster.metadata.namespace.clone().unwrap_or_default(),
            is_ready: ready.is_some_and(|ready| ready.status == "True"),
            ready: ready.cloned(),
            heard: status.last_heard_time.map(|time| time.0),
            suspended: cluster.spec.suspend,
            kubernetes_version: status.kubernetes_version,
            is_granted: false,
        }
    }
}

impl From<&GrantedCluster> for ClusterEvidence {
    fn from(granted: &GrantedCluster) -> Self {
        let GrantedClusterStatus {
            ready, last_heard_time, ..
        } = granted.status.clone().unwrap_or_default();
        let reference = &granted.spec.cluster_ref;
        Self {
            name: reference.name.clone(),
            namespace: reference.namespace.clone().unwrap_or_default(),
            is_ready: ready == "True",
            ready: None,
            heard: last_heard_time.map(|time| time.0),
            suspended: false,
            kubernetes_version: None,
            is_granted: true,
        }
    }
}

/// Explains a cluster by itself.
pub fn explain_cluster(cluster: &ClusterEvidence, now: Timestamp) -> Finding {
    if let Some(finding) = judge_one_cluster(cluster, now) {
        return finding;
    }
    let heard = cluster.heard.map(|time| format!("heard {} ago", ago(time, now)));
    let suspended = if cluster.suspended {
        "the cluster is suspended: its agent holds changes"
    } else {
        ""
    };
    in_order(format!("the cluster {} is ready", cluster.name))
        .because(heard.unwrap_or_default())
        .because(suspended)
}

pub(super) fn judge_cluster(evidence: &Evidence<'_>) -> Option<Finding> {
    let reference = &evidence.service.spec.cluster_ref;
    match evidence.cluster {
        Lookup::Found(cluster) => judge_one_cluster(cluster, evidence.now),
        Lookup::Missing => Some(
            Finding::broken(
                Link::Cluster,
                format!("the cluster {:?} does not exist", reference.name),
            )
            .because(format!("spec.clusterRef.name is {:?}", reference.name))
            .next(NextStep::Farwater("get clusters -A".to_owned())),
        ),
        Lookup::Unreadable => None,
    }
}

/// None: the hub hears the agent of the cluster.
fn judge_one_cluster(cluster: &ClusterEvidence, now: Timestamp) -> Option<Finding> {
    let ClusterEvidence { name, namespace, .. } = cluster;
    if cluster.is_ready {
        return None;
    }
    let heard = cluster.heard.map(|time| ago(time, now));
    if cluster.is_granted {
        return Some(judge_granted(cluster, heard));
    }

    let (ready, of) = (cluster.ready.as_ref(), format!("Cluster {name}"));
    Some(match heard {
        None => Finding::broken(Link::Cluster, format!("the cluster {name} has never joined"))
            .condition(&of, ready)
            .next(NextStep::Farwater(format!("cluster join {name} -n {namespace}"))),
        Some(age) => Finding::broken(
            Link::Cluster,
            format!("the hub has not heard from the cluster {name} for {age}"),
        )
        .condition(&of, ready)
        .because(STILL_RUNNING)
        .next(NextStep::InCluster(format!(
            "get pods,events -n {} # or the log of farwater-agent",
            farwater_api::AGENT_NAMESPACE
        ))),
    })
}

const STILL_RUNNING: &str = "workloads there keep running as last reported";

/// A tenant may not read the cause and can't remove it, so the next step is an administrator's.
fn judge_granted(cluster: &ClusterEvidence, heard: Option<String>) -> Finding {
    let ClusterEvidence { name, namespace, .. } = cluster;
    let (told, runs) = match heard {
        Some(age) => (format!("its agent was last heard {age} ago"), STILL_RUNNING),
        None => ("its agent was not heard yet".to_owned(), ""),
    };
    Finding::broken(Link::Cluster, format!("the cluster {name} is not ready: {told}"))
        .because(runs)
        .because(format!(
            "an administrator of the hub sees the cause: farwater why cluster/{namespace}/{name}"
        ))
}
