//! Why objects are not healthy, looked up in the background: no attempt, barrier or report waits for it.
//!
//! Nothing is read while all objects are healthy. The objects that a workload owns are not watched, so they are read
//! again, at growing intervals while nothing changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use farwater_api::{
    objects::{Health, SyncState},
    protocol::ServiceAccount,
};
use farwater_fleet::{
    health::{children, rules::Rules},
    plan::{GroupVersionKind, ObjectKey},
};
use tokio::{task::JoinSet, time::Instant};

use super::{ServiceTask, Status};
use crate::{
    Agent, HealthLimits,
    children::{Looked, explain},
    kubernetes::ApiError,
    messages::shorten,
    sync::jitter,
};

/// Longest pause between two looks. A pod that waits for its image finally retries every five minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Objects of one service that are explained at one time, failed ones first: hundreds of them mostly have the same
/// cause.
const EXPLAINED: usize = 24;
/// Concurrent looks of one service, within the agent's limit.
const LOOKS: usize = 2;

pub(super) struct Causes {
    limits: HealthLimits,
    known: BTreeMap<ObjectKey, Cause>,
    looks: JoinSet<(ObjectKey, Result<Looked, ApiError>)>,
}

struct Cause {
    text: String,
    /// None while it is being looked up.
    next: Option<Instant>,
    pause: Duration,
}

impl Causes {
    pub fn new(limits: HealthLimits) -> Self {
        Self {
            limits,
            known: BTreeMap::new(),
            looks: JoinSet::new(),
        }
    }

    /// Adds unhealthy objects and removes healthy ones.
    fn follow(&mut self, unhealthy: &[ObjectKey]) {
        self.known.retain(|key, _| unhealthy.contains(key));
        let HealthLimits {
            first_look, next_look, ..
        } = self.limits;
        for key in unhealthy {
            let first = || Cause {
                text: String::new(),
                next: Some(Instant::now() + first_look),
                pause: next_look,
            };
            self.known.entry(key.clone()).or_insert_with(first);
        }
    }

    /// The object's own message has changed, so the known cause may be outdated.
    pub fn hasten(&mut self, key: &ObjectKey) {
        if let Some(cause) = self.known.get_mut(key) {
            cause.pause = self.limits.next_look;
            cause.next = cause.next.map(|next| next.min(Instant::now() + self.limits.first_look));
        }
    }

    pub fn text(&self, key: &ObjectKey) -> &str {
        self.known.get(key).map_or("", |cause| &cause.text)
    }

    pub fn next(&self) -> Option<Instant> {
        if self.looks.len() >= LOOKS {
            return None;
        }
        self.known.values().filter_map(|cause| cause.next).min()
    }

    /// Returns when a look has ended. None: there is none.
    pub async fn ended(&mut self) -> Option<(ObjectKey, Result<Looked, ApiError>)> {
        loop {
            match self.looks.join_next().await? {
                Ok(ended) => return Some(ended),
                Err(error) => tracing::warn!(%error, "a look at what an object owns ended early"),
            }
        }
    }

    /// Stores the result of a look. Returns whether the cause changed.
    fn note(&mut self, key: &ObjectKey, text: Option<String>) -> bool {
        let Some(cause) = self.known.get_mut(key) else {
            return false;
        };
        // A failed read doesn't refute the earlier result.
        let text = text.unwrap_or_else(|| cause.text.clone());
        let changed = text != cause.text;
        cause.pause = if changed {
            self.limits.next_look
        } else {
            (cause.pause * 2).min(LONGEST_PAUSE)
        };
        cause.next = Some(Instant::now() + jitter(cause.pause, 0.1));
        cause.text = text;
        changed
    }
}

impl ServiceTask {
    pub(super) fn follow_causes(&mut self) {
        let is_open = |status: &Status| {
            matches!(status.sync, SyncState::Synced | SyncState::Drifted)
                && matches!(status.health, Health::Failed | Health::InProgress)
                && children::may_explain(&status.object.group, &status.object.kind, &status.object.namespace)
        };
        let mut open: Vec<(&ObjectKey, Health)> = self
            .observed
            .statuses
            .iter()
            .filter(|(_, status)| is_open(status))
            .map(|(key, status)| (key, status.health))
            .collect();
        open.sort_by_key(|(_, health)| *health);
        let open: Vec<ObjectKey> = open.into_iter().take(EXPLAINED).map(|(key, _)| key.clone()).collect();
        self.causes.follow(&open);
    }

    pub(super) fn begin_looks(&mut self) {
        let Some(account) = self.account() else {
            return self.causes.known.clear();
        };
        let now = Instant::now();
        for (key, cause) in &mut self.causes.known {
            if self.causes.looks.len() >= LOOKS {
                break;
            }
            if cause.next.is_none_or(|at| at > now) {
                continue;
            }
            let entry = self.stored.inventory.entries.get(key);
            let resource = entry.and_then(|entry| self.agent.kinds.get(&GroupVersionKind::from(&entry.object)));
            let Some(resource) = resource else {
                cause.next = Some(now + LONGEST_PAUSE);
                continue;
            };
            cause.next = None;
            let (agent, rules) = (Arc::clone(&self.agent), Arc::clone(&self.judges.rules));
            let (account, key) = (account.clone(), key.clone());
            let path = resource.path(key.namespace(), key.name());
            self.causes.looks.spawn(async move {
                let looked = look(&agent, &account, &rules, &path).await;
                (key, looked)
            });
        }
    }

    /// Stores the result of a look. Returns whether another attempt may proceed now.
    pub(super) fn hear_cause(&mut self, key: &ObjectKey, looked: Result<Looked, ApiError>) -> bool {
        let looked = match looked {
            Ok(looked) => Some(looked),
            Err(error) => {
                tracing::debug!(service = %self.name(), object = %key, %error, "can't list the objects that it owns");
                None
            }
        };
        let is_settled = looked.as_ref().is_some_and(|looked| looked.waits_for_consumer);
        let changed = self.causes.note(key, looked.map(|looked| shorten(&looked.text)));
        if is_settled && let Some(status) = self.observed.statuses.get_mut(key) {
            status.health = Health::Current;
            status.message = WAITS_FOR_CONSUMER.to_owned();
            self.causes.known.remove(key);
        } else if !changed {
            return false;
        }
        let goes_on = self.pass_barrier();
        self.follow_health();
        self.send_report();
        goes_on
    }

    /// The explanation of an object's health: its own message, and the cause among its children.
    pub(super) fn explain_health(&self, key: &ObjectKey, status: &Status) -> String {
        let cause = match status.health {
            Health::Failed | Health::InProgress => self.causes.text(key),
            _ => "",
        };
        match (status.message.as_str(), cause) {
            (message, "") => message.to_owned(),
            ("", cause) => cause.to_owned(),
            (message, cause) => format!("{message}; {cause}"),
        }
    }
}

/// Message for a claim that is bound by its first consumer.
const WAITS_FOR_CONSUMER: &str = "waits for its first consumer";

async fn look(agent: &Agent, account: &ServiceAccount, rules: &Rules, path: &str) -> Result<Looked, ApiError> {
    // Never closed.
    let _place = agent.looks.acquire().await;
    explain(&agent.kubernetes, account, rules, path).await
}
