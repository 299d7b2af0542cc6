//! Who wakes whom: the controllers that depend on a change of rows, of the replica's memory or of time. Such changes have
//! no events, so the code that commits one calls its function here. `route_changes` does the same for resources.
//!
//! Call these after the commit: a controller that is woken before reads the old rows, and is not woken again.

use std::time::Duration;

use farwater_store::{StoreError, delivery::assignments_of_cluster};

use crate::{
    replica::Replica,
    resources::{Name, SourceName},
};

/// Changes that a service's assignment depends on: they wake `assign_revisions`.
impl Replica {
    /// The service was changed while its version was decided.
    pub fn decide_again(&self, service: &Name) {
        self.queues.services.add(service.clone());
    }

    /// A source serves another revision, or another version of a chart.
    pub fn wake_after_fetch(&self, services: impl IntoIterator<Item = Name>) {
        self.add_services(services);
    }

    /// The fetch that a service's `reconcile` annotation requested has ended.
    pub fn wake_after_request(&self, services: impl IntoIterator<Item = Name>) {
        self.add_services(services);
    }

    /// The large files of a bundle were fetched, or can't be.
    pub fn wake_after_large_files(&self, services: impl IntoIterator<Item = Name>) {
        self.add_services(services);
    }

    /// The files of an assigned bundle are lost, and are built again.
    pub fn wake_after_loss(&self, service: Name) {
        self.queues.services.add(service);
    }

    /// A window or a set's change may no longer hold these services.
    pub fn wake_after_hold(&self, services: impl IntoIterator<Item = Name>) {
        self.add_services(services);
    }

    /// The rollout of its set has released or retracted the service's change.
    pub fn wake_after_turn(&self, service: Name) {
        self.queues.services.add(service);
    }

    /// A service or set that these services depend on has changed.
    pub fn wake_after_dependency(&self, services: impl IntoIterator<Item = Name>) {
        self.add_services(services);
    }

    /// The agent has confirmed that the objects of a deleted service are gone.
    pub fn wake_after_removal(&self, service: Name) {
        self.queues.services.add(service);
    }

    /// The cluster of these services is gone.
    pub fn wake_after_departure(&self, services: impl IntoIterator<Item = Name>) {
        self.add_services(services);
    }

    fn add_services(&self, services: impl IntoIterator<Item = Name>) {
        services.into_iter().for_each(|name| self.queues.services.add(name));
    }
}

/// Changes that a service's status depends on: they wake `summarize_reports`.
impl Replica {
    /// The version of a service was decided, or its removal.
    pub fn wake_after_decision(&self, service: &Name) {
        self.queues.summaries.add(service.clone());
    }

    /// An agent has reported on these services.
    pub fn wake_after_report(&self, services: impl IntoIterator<Item = Name>) {
        self.add_summaries(services);
    }

    /// Values of secret backends that these services use became stale, or are fresh again.
    pub fn wake_after_secrets(&self, services: impl IntoIterator<Item = Name>) {
        self.add_summaries(services);
    }

    /// All prunes were frozen or released; reports are compared with entries that may have changed.
    pub fn wake_after_freeze(&self, service: Name) {
        self.queues.summaries.add(service);
    }

    /// The desired state of a cluster was published. `resolved`: members of rollouts whose parameters were unknown, so
    /// that their candidates may now be other changes. `described`: services whose conditions may change.
    pub fn wake_after_publication(&self, resolved: Vec<Name>, described: Vec<Name>) {
        self.add_services(resolved);
        self.add_summaries(described);
    }

    fn add_summaries(&self, services: impl IntoIterator<Item = Name>) {
        services.into_iter().for_each(|name| self.queues.summaries.add(name));
    }
}

/// Changes of clusters and their desired state.
impl Replica {
    /// Clusters were marked dirty: wakes `compute_desired`.
    pub fn wake_after_mark(&self) {
        self.signals.dirty.notify_one();
    }

    /// The entries of a marked cluster may change: wakes `compute_desired`, and requeues the summaries of the cluster's
    /// services, which compare reports with entries. That is also needed if the entries return to those that the agent
    /// has reported on, because then it sends nothing.
    pub async fn wake_after_new_entries(&self, uid: &str) -> Result<(), StoreError> {
        self.wake_after_mark();
        let rows = assignments_of_cluster(&mut *self.store.tables().await?, uid).await?;
        self.add_summaries(rows.into_iter().map(Name::from));
        Ok(())
    }

    /// Something about a Cluster has changed: wakes its agent's poll, and `track_clusters`.
    pub fn check_cluster(&self, uid: &str) {
        if let Some(state) = self.memory.clusters.get(uid) {
            state.settle(false);
            state.wake();
        }
        self.queues.clusters.add(uid.to_owned());
    }

    pub async fn wake_after_join(&self, uid: &str) -> Result<(), StoreError> {
        self.check_cluster(uid);
        self.wake_after_agent_report();
        self.wake_after_new_entries(uid).await
    }

    /// An agent has reported another version or other settings of itself: wakes `advance_agents`.
    pub fn wake_after_agent_report(&self) {
        self.signals.agents.notify_one();
    }
}

/// Changes of sources and receivers.
impl Replica {
    /// Fetches a source now, even if it failed lately.
    pub fn fetch_now(&self, uid: &str, source: SourceName) {
        self.memory.checks.hurry(uid);
        self.queues.sources.add(source);
    }

    /// A receiver's delivery names the source. `wait`: time until its fetch may begin.
    pub fn wake_after_hint(&self, source: &SourceName, wait: Duration) {
        if wait.is_zero() {
            self.queues.sources.add(source.clone());
        } else {
            self.queues.sources.add_after(source.clone(), wait);
        }
    }

    /// A commit was promoted to this repository. It is fetched on its own schedule, which also spaces its retries.
    pub fn wake_after_promotion(&self, repository: Name) {
        self.queues.sources.add(SourceName::git(repository));
    }

    /// A delivery was put into a receiver's inbox: wakes `ask_sources`. `wait`: time for further deliveries of one push.
    pub fn wake_after_delivery(&self, receiver: &Name, wait: Duration) {
        self.queues.inboxes.add_after(receiver.clone(), wait);
    }

    /// A receiver's status has news. `wait`: time until it may be written.
    pub fn wake_after_receipt(&self, receiver: &Name, wait: Duration) {
        self.queues.receivers.add_after(receiver.clone(), wait);
    }

    /// A service has left a source: wakes `collect_mirrors`, because the source's mirror may be unused.
    pub fn wake_after_release(&self) {
        self.signals.collect.notify_one();
    }
}
