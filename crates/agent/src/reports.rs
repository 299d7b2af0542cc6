//! Status on its way to the hub: what changed, when it changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use farwater_api::{
    objects::ServiceReport,
    protocol::{AcceptedStatement, MAX_STATUS_BYTES, StatusReport},
};
use tokio::sync::Notify;

use crate::{
    hub::{Caller, HubClient},
    sync::{Backoff, lock},
};

/// Changes within this time travel together.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Of one request; the rest follows in the next. Far enough below the limit for the envelope.
const MAX_BYTES: usize = MAX_STATUS_BYTES - (1 << 20);

#[derive(Default)]
pub struct Reports {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    current: BTreeMap<String, ServiceReport>,
    changed: BTreeSet<String>,
    /// Ended attempts that a newer one follows at once: sent first, or nobody would ever see them.
    superseded: BTreeMap<String, ServiceReport>,
    accepted: Option<AcceptedStatement>,
    /// The hub lacks the report that the next one would build on.
    everything: bool,
    poked: bool,
}

impl Reports {
    pub fn set(&self, service_uid: &str, report: ServiceReport) {
        let mut state = lock(&self.state);
        if state.current.get(service_uid) != Some(&report) {
            state.current.insert(service_uid.to_owned(), report);
            state.changed.insert(service_uid.to_owned());
            self.changed.notify_one();
        }
    }

    pub fn supersede(&self, service_uid: &str, report: ServiceReport) {
        lock(&self.state).superseded.insert(service_uid.to_owned(), report);
        self.changed.notify_one();
    }

    /// The hub doesn't list the service any more.
    pub fn forget(&self, service_uid: &str) {
        let mut state = lock(&self.state);
        state.current.remove(service_uid);
        state.changed.insert(service_uid.to_owned());
        self.changed.notify_one();
    }

    pub fn accept(&self, accepted: AcceptedStatement) {
        lock(&self.state).accepted = Some(accepted);
    }

    /// Sends a report even if nothing changed: the hub showed a state older than the accepted one, and the signed
    /// statement in the report proves that to it.
    pub fn poke(&self) {
        lock(&self.state).poked = true;
        self.changed.notify_one();
    }

    /// Sends reports for ever.
    pub async fn run(&self, hub: &HubClient, caller: Caller<'_>) {
        // Grows over restarts too, so that a report of an earlier life is never taken for a newer one.
        let mut sequence = u64::try_from(hub.clock.now()).unwrap_or(1) * 1000;
        let mut base = 0;
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        lock(&self.state).everything = true;
        loop {
            self.changed.notified().await;
            tokio::time::sleep(DEBOUNCE).await;
            while let Some(report) = self.next_report(sequence + 1, base, caller.kubernetes_version) {
                match hub.report(&caller, &report).await {
                    Ok(answer) => {
                        sequence += 1;
                        base = answer.sequence.max(sequence);
                        sequence = base;
                        backoff.reset();
                    }
                    Err(error) if error.wants_everything() && report.base != 0 => {
                        tracing::info!("the hub wants every report again");
                        lock(&self.state).everything = true;
                    }
                    Err(error) => {
                        self.put_back(report);
                        let wait = error.retry_after().unwrap_or_else(|| backoff.advance());
                        tracing::warn!(error = error.text(), "can't send a report; trying again");
                        tokio::time::sleep(wait).await;
                    }
                }
            }
        }
    }

    /// Takes what is to be sent next, up to the limit.
    fn next_report(&self, sequence: u64, base: u64, kubernetes_version: &str) -> Option<StatusReport> {
        let mut state = lock(&self.state);
        let everything = state.everything;
        if everything {
            state.changed = state.current.keys().cloned().collect();
        }
        let poked = std::mem::take(&mut state.poked);
        if state.changed.is_empty() && state.superseded.is_empty() && !poked {
            return None;
        }
        let mut services = BTreeMap::new();
        if state.superseded.is_empty() || everything {
            state.superseded.clear();
            let mut bytes = 0;
            while bytes < MAX_BYTES {
                let Some(uid) = state.changed.pop_first() else { break };
                let report = state.current.get(&uid).cloned();
                let size = report.as_ref().map_or(0, |r| serde_json::to_vec(r).map_or(0, |b| b.len()));
                if bytes > 0 && bytes + size > MAX_BYTES {
                    state.changed.insert(uid);
                    break;
                }
                bytes += size + uid.len() + 8;
                services.insert(uid, report);
            }
        } else {
            services.extend(std::mem::take(&mut state.superseded).into_iter().map(|(uid, r)| (uid, Some(r))));
        }
        state.everything = false;
        Some(StatusReport {
            sequence,
            base: if everything { 0 } else { base },
            accepted: state.accepted.clone(),
            agent_version: crate::VERSION.to_owned(),
            kubernetes_version: kubernetes_version.to_owned(),
            services,
        })
    }

    /// After a failure: whatever was in it is sent again, as it is by then.
    fn put_back(&self, report: StatusReport) {
        let mut state = lock(&self.state);
        state.everything |= report.base == 0;
        state.poked |= report.services.is_empty();
        state.changed.extend(report.services.into_keys());
    }
}
