//! Everything stored for one cluster and its services, read together.

use std::collections::{HashMap, HashSet};

use sqlx::Connection as _;

use super::{
    AgentUpdateRow, Assignment, Desired, HeldService, MemberRollout, ParameterRow, Released, ServiceOrigin,
    held_services::held_of_cluster, load_agent_update, load_desired, origins::service_origins_of_cluster,
    parameters_of_cluster, released_of_cluster, rollouts::rollouts_of_cluster, touched_assignments_of_cluster,
};
use crate::{Connection, StoreError};

/// The rows of a cluster's services, as of one moment: the assignment and the spec in effect are written together.
/// Keyed by the service's uid; assignments are in its order.
#[derive(Clone, Debug, Default)]
pub struct ClusterRows {
    pub assignments: Vec<Assignment>,
    /// Services that must be reconciled to know whether changes of their sources concern them.
    pub touched: HashSet<String>,
    pub origins: HashMap<String, ServiceOrigin>,
    pub parameters: HashMap<String, ParameterRow>,
    /// Members of sets.
    pub members: HashMap<String, MemberRollout>,
    pub held: HashMap<String, HeldService>,
    pub released: Vec<Released>,
    pub desired: Option<Desired>,
    pub update: Option<AgentUpdateRow>,
}

pub async fn load_cluster_rows(connection: &mut Connection, cluster_uid: &str) -> Result<ClusterRows, StoreError> {
    let mut snapshot = connection.begin().await?;
    let (assignments, touched) = touched_assignments_of_cluster(&mut snapshot, cluster_uid).await?;
    let members = rollouts_of_cluster(&mut snapshot, cluster_uid).await?;
    let held = held_of_cluster(&mut snapshot, cluster_uid).await?;
    Ok(ClusterRows {
        assignments,
        touched,
        origins: service_origins_of_cluster(&mut snapshot, cluster_uid).await?,
        parameters: parameters_of_cluster(&mut snapshot, cluster_uid).await?,
        members: members.into_iter().map(|row| (row.service_uid.clone(), row)).collect(),
        held: held.into_iter().map(|row| (row.service_uid.clone(), row)).collect(),
        released: released_of_cluster(&mut snapshot, cluster_uid).await?,
        desired: load_desired(&mut snapshot, cluster_uid).await?,
        update: load_agent_update(&mut snapshot, cluster_uid).await?,
    })
}
