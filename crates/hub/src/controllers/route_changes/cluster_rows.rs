//! The rows of clusters that the replica keeps in memory.

use std::collections::{HashMap, HashSet};

use farwater_store::{
    Connection, StoreError,
    delivery::{
        Agent, AgentKeys, Desired, Quarantine, load_agents, load_all_agent_keys, load_desired_heads, load_heartbeats,
        load_quarantines,
    },
};

use crate::{
    delivery::{desired, keys, token::key_print},
    memory::clusters::ClusterState,
};

/// The rows of all clusters.
pub(super) struct ClusterRows {
    agents: Vec<Agent>,
    keys: Vec<AgentKeys>,
    heads: Vec<Desired>,
    /// Each cluster's last heartbeat, in seconds since 1970.
    pub(super) heartbeats: Vec<(String, i64)>,
    pub(super) quarantines: Vec<Quarantine>,
}

impl ClusterRows {
    pub(super) async fn load(tables: &mut Connection) -> Result<Self, StoreError> {
        Ok(Self {
            agents: load_agents(tables).await?,
            keys: load_all_agent_keys(tables).await?,
            heads: load_desired_heads(tables).await?,
            heartbeats: load_heartbeats(tables).await?,
            quarantines: load_quarantines(tables).await?,
        })
    }

    /// Adds keys and the etags of desired states to the states, which are by uid.
    pub(super) fn complete(&self, mut states: HashMap<String, ClusterState>) -> HashMap<String, ClusterState> {
        for agent in &self.agents {
            if let Some(state) = states.get_mut(&agent.cluster_uid) {
                state.key_print = Some(key_print(&agent.public_key));
                keys::remember(state, &keys::first_keys(agent));
            }
        }
        for row in &self.keys {
            if let Some(state) = states.get_mut(&row.cluster_uid) {
                keys::remember(state, row);
            }
        }
        for head in &self.heads {
            if let Some(state) = states.get_mut(&head.cluster_uid) {
                state.etag = desired::etag(head);
            }
        }
        states
    }

    /// Uids of clusters that memory or rows know, and that have no resource.
    pub(super) fn orphans(&self, states: &HashMap<String, ClusterState>, known: Vec<String>) -> HashSet<String> {
        let agents = self.agents.iter().map(|agent| agent.cluster_uid.clone());
        let heads = self.heads.iter().map(|head| head.cluster_uid.clone());
        known
            .into_iter()
            .chain(agents)
            .chain(heads)
            .filter(|uid| !states.contains_key(uid))
            .collect()
    }
}
