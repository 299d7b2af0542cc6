//! Starts a task per service and passes it its newest assignment.

use std::{collections::BTreeMap, sync::Arc};

use farwater_api::{
    protocol::{Action, DesiredState, Entry, Verbatim},
    service_deployment::DeletionPolicy,
};
use farwater_fleet::{ownership::service_label, transfer::Holdings};
use tokio::{sync::watch, task::AbortHandle};

use crate::{
    Agent,
    inventory::Stored,
    service::{Assignment, ServiceTask},
    sync::lock,
    watches::Mailbox,
};

struct Service {
    assignment: watch::Sender<Assignment>,
    task: AbortHandle,
}

pub struct Supervisor {
    agent: Arc<Agent>,
    services: BTreeMap<String, Service>,
    /// Inventories of services without a task yet.
    inventories: BTreeMap<String, Stored>,
}

impl Supervisor {
    pub fn new(agent: Arc<Agent>, inventories: BTreeMap<String, Stored>) -> Self {
        let bundle = |stored: &Stored| stored.deployment.as_ref().map(|deployment| deployment.bundle);
        let running = inventories
            .iter()
            .filter_map(|(uid, stored)| Some((uid.clone(), bundle(stored)?)));
        lock(&agent.running).extend(running);
        for (uid, stored) in &inventories {
            let name = format!("{}/{}", stored.service.namespace, stored.service.name);
            agent
                .leaving
                .hold(uid, &name, Holdings::of(stored.inventory.entries.keys()));
        }
        Self {
            agent,
            services: BTreeMap::new(),
            inventories,
        }
    }

    /// Passes on a new state. Absence deletes nothing: a service that is no longer listed is kept as it is, unless the
    /// hub had asked to remove it and it is gone.
    pub fn assign(&mut self, state: &DesiredState) {
        let listed: BTreeMap<&str, &Verbatim<Entry>> =
            state.entries.iter().map(|e| (e.service.uid.as_str(), e)).collect();
        self.name_services(&listed);
        let unlisted: Vec<String> = self
            .services
            .keys()
            .filter(|uid| !listed.contains_key(uid.as_str()))
            .cloned()
            .collect();
        for uid in unlisted {
            self.drop_or_keep(&uid);
        }

        // Announce all of them before starting any, so that none deletes what another one of this state takes over.
        self.announce(&listed);
        for (uid, entry) in listed {
            self.pass_on(uid, entry);
        }
        for (uid, stored) in &self.inventories {
            let service = &stored.service;
            tracing::warn!(
                uid,
                service = format!("{}/{}", service.namespace, service.name),
                objects = stored.inventory.entries.len(),
                "the hub does not list this service and has not asked to remove it: its objects are kept"
            );
        }
    }

    /// Tells other services which of the listed ones have news, and which are leaving.
    fn announce(&self, listed: &BTreeMap<&str, &Verbatim<Entry>>) {
        for (uid, entry) in listed {
            let is_news = self
                .services
                .get(*uid)
                .is_none_or(|service| service.assignment.borrow().digest != entry.digest());
            if is_news {
                let name = format!("{}/{}", entry.service.namespace, entry.service.name);
                self.agent.leaving.expect(uid, &name, entry.digest());
            }
        }
        for (uid, entry) in listed {
            if matches!(
                entry.action,
                Action::Remove {
                    policy: DeletionPolicy::Delete,
                    ..
                }
            ) {
                self.agent.retry(&self.agent.leaving.mark_leaving(uid));
            }
        }
    }

    /// Gives an entry to the task of its service, which is started if there is none.
    fn pass_on(&mut self, uid: &str, entry: &Verbatim<Entry>) {
        let assignment = Assignment {
            entry: Entry::clone(entry),
            digest: entry.digest(),
            unlisted: false,
        };
        match self.services.get(uid) {
            Some(service) => {
                service.assignment.send_if_modified(|current| {
                    let changed = *current != assignment;
                    if changed {
                        *current = assignment;
                    }
                    changed
                });
            }
            None => self.start(assignment),
        }
    }

    /// Names of services that count as owners when two state one object: those that are listed, and those that have
    /// objects.
    fn name_services(&self, listed: &BTreeMap<&str, &Verbatim<Entry>>) {
        let mut names = lock(&self.agent.services);
        names.retain(|uid, _| listed.contains_key(uid.as_str()) || self.services.contains_key(uid));
        for (uid, entry) in listed {
            names.insert(
                (*uid).to_owned(),
                format!("{}/{}", entry.service.namespace, entry.service.name),
            );
        }
        for (uid, stored) in &self.inventories {
            names
                .entry(uid.clone())
                .or_insert_with(|| format!("{}/{}", stored.service.namespace, stored.service.name));
        }
    }

    fn drop_or_keep(&mut self, uid: &str) {
        let Some(service) = self.services.get(uid) else { return };
        let removing = matches!(service.assignment.borrow().entry.action, Action::Remove { .. });
        if removing {
            service.task.abort();
            self.services.remove(uid);
            self.agent.watches.unregister(&service_label(uid));
            self.agent.reports.forget(uid);
            self.agent.leaving.forget(uid);
            self.agent.retry(&self.agent.leaving.release(uid));
            lock(&self.agent.running).remove(uid);
            lock(&self.agent.services).remove(uid);
            return;
        }
        service
            .assignment
            .send_if_modified(|current| !std::mem::replace(&mut current.unlisted, true));
    }

    fn start(&mut self, assignment: Assignment) {
        let identity = assignment.entry.service.clone();
        let uid = identity.uid.clone();
        let mut stored = self
            .inventories
            .remove(&uid)
            .unwrap_or_else(|| Stored::new(identity.clone()));
        // The hub may have renamed it; the uid identifies it.
        stored.service = identity;
        let mailbox = Arc::new(Mailbox::default());
        self.agent.watches.register(&service_label(&uid), mailbox.clone());
        let (sender, receiver) = watch::channel(assignment);
        let task = ServiceTask::new(self.agent.clone(), receiver, stored, mailbox);
        let task = tokio::spawn(task.run()).abort_handle();
        self.services.insert(
            uid,
            Service {
                assignment: sender,
                task,
            },
        );
    }
}
