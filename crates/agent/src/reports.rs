//! Status reports to the hub: changes are sent when they happen.

mod conceal;
mod fit;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

pub use conceal::conceal;
use farwater_api::{
    objects::ServiceReport,
    protocol::{AcceptedStatement, AgentReport, MAX_STATUS_BYTES, StatusReport},
};
pub use fit::fit;
use tokio::sync::Notify;

use crate::{
    Agent,
    clock::system_seconds,
    sync::{Backoff, lock},
};

/// Changes within this time are sent together.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Most bytes of one request; the rest follows in the next. Leaves enough room for the envelope.
const MAX_BYTES: usize = MAX_STATUS_BYTES - (1 << 20);
/// Refusals after which a service's report is sent alone, and then without its objects.
const ALONE: u32 = 1;
const WITHOUT_OBJECTS: u32 = 2;

#[derive(Debug, Default)]
pub struct Reports {
    state: Mutex<State>,
    changed: Notify,
    /// Notified when a poll succeeds after failures.
    back: Notify,
}

#[derive(Debug, Default)]
struct State {
    current: BTreeMap<String, ServiceReport>,
    changed: BTreeSet<String>,
    /// Reports of attempts that a newer one follows at once. They are sent first, because otherwise they would be
    /// replaced unseen.
    superseded: BTreeMap<String, ServiceReport>,
    /// Number of refusals because of content, by the services in the refused requests. After the first refusal a
    /// service is sent alone, after the second without its objects.
    refusals: BTreeMap<String, u32>,
    accepted: Option<AcceptedStatement>,
    agent: Option<AgentReport>,
    /// Whether the hub has accepted a report since the start.
    delivered: bool,
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
            // The hub refused an earlier report of this service.
            if let Some(refusals) = state.refusals.get_mut(service_uid) {
                *refusals = 1;
            }
            self.changed.notify_one();
        }
    }

    pub fn supersede(&self, service_uid: &str, report: ServiceReport) {
        lock(&self.state).superseded.insert(service_uid.to_owned(), report);
        self.changed.notify_one();
    }

    /// Forgets a service that the hub no longer lists.
    pub fn forget(&self, service_uid: &str) {
        let mut state = lock(&self.state);
        state.current.remove(service_uid);
        state.refusals.remove(service_uid);
        state.changed.insert(service_uid.to_owned());
        self.changed.notify_one();
    }

    /// Sets the agent's report about itself.
    pub fn set_agent(&self, report: AgentReport) {
        let mut state = lock(&self.state);
        if state.agent.as_ref() != Some(&report) {
            state.agent = Some(report);
            state.poked = true;
            self.changed.notify_one();
        }
    }

    pub fn is_delivered(&self) -> bool {
        lock(&self.state).delivered
    }

    /// The last report of each service.
    pub fn each(&self, look: impl FnMut(&ServiceReport)) {
        lock(&self.state).current.values().for_each(look);
    }

    pub fn accept(&self, accepted: AcceptedStatement) {
        lock(&self.state).accepted = Some(accepted);
    }

    /// Sends a report even if nothing changed: the hub returned a state older than the accepted one, and the signed
    /// statement in the report proves that to it.
    pub fn poke(&self) {
        lock(&self.state).poked = true;
        self.changed.notify_one();
    }

    /// Retries at once what could not be sent, because a poll has succeeded after failures.
    pub fn hub_is_back(&self) {
        self.back.notify_waiters();
    }

    /// Sends reports for ever.
    pub async fn run(&self, agent: &Agent) {
        let hub = &agent.hub;
        // Numbers grow across restarts too, so that a report from an earlier run is never taken for a newer one.
        let mut sequence = u64::try_from(hub.clock.now()).unwrap_or(1) * 1000;
        let mut base = 0;
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        lock(&self.state).everything = true;

        loop {
            self.changed.notified().await;
            tokio::time::sleep(DEBOUNCE).await;
            while let Some(mut report) = self.next_report(sequence + 1, base, &agent.kubernetes_version) {
                report.system_time = Some(system_seconds());
                let is_part = self.has_more();
                let identity = agent.identity();
                match hub.report(&agent.caller(&identity), &report).await {
                    Ok(answer) => {
                        sequence += 1;
                        base = answer.sequence.max(sequence);
                        sequence = base;
                        backoff.reset();
                        lock(&self.state).delivered = true;
                        self.trust_again(&report);
                        if !is_part {
                            // Changes that happened meanwhile are sent together again.
                            break;
                        }
                    }
                    Err(error) if error.wants_everything() && report.base != 0 => {
                        tracing::info!("the hub wants every report again");
                        lock(&self.state).everything = true;
                    }
                    Err(error) if error.blames_content() && self.isolate(&report, &error.text()) => {
                        self.put_back(report);
                    }
                    Err(error) => {
                        self.put_back(report);
                        let wait = error.retry_after().unwrap_or_else(|| backoff.advance());
                        tracing::warn!(error = error.text(), "can't send a report; trying again");
                        tokio::select! { () = tokio::time::sleep(wait) => {} () = self.back.notified() => {} }
                    }
                }
            }
        }
    }

    /// Whether something is left that was not in the last report.
    fn has_more(&self) -> bool {
        let state = lock(&self.state);
        !state.changed.is_empty() || !state.superseded.is_empty()
    }

    /// Takes the next report, up to the limit.
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
        let services = if state.superseded.is_empty() || everything {
            state.superseded.clear();
            state.take_changed()
        } else {
            std::mem::take(&mut state.superseded)
                .into_iter()
                .map(|(uid, report)| (uid, Some(report)))
                .collect()
        };

        state.everything = false;
        Some(StatusReport {
            sequence,
            base: if everything { 0 } else { base },
            accepted: state.accepted.clone(),
            agent_version: crate::VERSION.to_owned(),
            kubernetes_version: kubernetes_version.to_owned(),
            system_time: None,
            services,
            agent: state.agent.clone(),
        })
    }

    /// Marks the content of a failed report to be sent again, in its then current form.
    fn put_back(&self, report: StatusReport) {
        let mut state = lock(&self.state);
        state.everything |= report.base == 0;
        state.poked |= report.services.is_empty();
        state.changed.extend(report.services.into_keys());
    }

    /// Isolates services after the hub refused a request because of its content: from now on they are sent alone, so
    /// that the others get through, and a service that was alone is sent without its objects. False: nothing else can
    /// be done.
    fn isolate(&self, report: &StatusReport, why: &str) -> bool {
        let mut state = lock(&self.state);
        let together = report.services.len() > 1;
        let mut helped = false;
        for uid in report.services.keys() {
            let refusals = state.refusals.entry(uid.clone()).or_default();
            helped |= *refusals < ALONE || (!together && *refusals < WITHOUT_OBJECTS);
            *refusals = if together {
                (*refusals).max(ALONE)
            } else {
                (*refusals + 1).max(WITHOUT_OBJECTS)
            };
            if !together && *refusals == WITHOUT_OBJECTS {
                tracing::warn!(
                    service = uid,
                    error = why,
                    "the hub refuses this service's report; sending its outcome only"
                );
            }
        }
        helped
    }

    /// After a success: services that were isolated only because of others are sent together again.
    fn trust_again(&self, report: &StatusReport) {
        let mut state = lock(&self.state);
        for uid in report.services.keys() {
            if state.refusals.get(uid) == Some(&ALONE) {
                state.refusals.remove(uid);
            }
        }
    }
}

impl State {
    /// All changes, up to the limit of a request. Services that were refused before come last, one at a time, the least
    /// often refused first.
    fn take_changed(&mut self) -> BTreeMap<String, Option<ServiceReport>> {
        let mut services = BTreeMap::new();
        let mut bytes = 0;
        let trusted: Vec<String> = self
            .changed
            .iter()
            .filter(|uid| !self.refusals.contains_key(*uid))
            .cloned()
            .collect();
        for uid in trusted {
            let report = self.current.get(&uid).cloned();
            let size = report.as_ref().map_or(0, fit::json_bytes) + uid.len() + 8;
            if bytes > 0 && bytes + size > MAX_BYTES {
                break;
            }
            bytes += size;
            self.changed.remove(&uid);
            services.insert(uid, report);
        }
        if services.is_empty()
            && let Some(uid) = self.changed.iter().min_by_key(|uid| self.refusals.get(*uid)).cloned()
        {
            self.changed.remove(&uid);
            let mut report = self.current.get(&uid).cloned();
            if self
                .refusals
                .get(&uid)
                .is_some_and(|refusals| *refusals >= WITHOUT_OBJECTS)
            {
                report = report.map(fit::without_objects);
            }
            services.insert(uid, report);
        }
        services
    }
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        Digest,
        objects::{Health, ObjectRef, ObjectReport, Outcome, SyncState},
    };

    use super::*;

    fn report(message: &str) -> ServiceReport {
        let object = ObjectRef {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "web".into(),
            name: "a".into(),
        };
        let object = ObjectReport {
            object,
            sync: SyncState::Synced,
            health: Health::Current,
            message: message.to_owned(),
            waits_for: None,
        };
        let entry = Digest::of(message.as_bytes());
        ServiceReport {
            entry,
            outcome: Outcome::Applied,
            message: String::new(),
            held_prune: None,
            deletion: None,
            hooks: Vec::new(),
            objects: vec![object],
        }
    }

    /// Delivers to a hub that refuses every request with a message "poison". Returns what it got, in order.
    fn deliver(reports: &Reports) -> Vec<(String, Option<ServiceReport>)> {
        let mut got = Vec::new();
        for _ in 0..20 {
            let Some(request) = reports.next_report(1, 0, "v1.36.3") else {
                return got;
            };
            let objects = request.services.values().flatten().flat_map(|service| &service.objects);
            if objects.into_iter().any(|object| object.message == "poison") {
                assert!(reports.isolate(&request, "400"));
                reports.put_back(request);
            } else {
                reports.trust_again(&request);
                got.extend(request.services);
            }
        }
        panic!("the queue does not get empty: {got:?}");
    }

    #[test]
    fn a_report_that_the_hub_refuses_holds_up_nobody() {
        let reports = Reports::default();
        for (uid, message) in [("a", "fine"), ("b", "poison"), ("c", "fine")] {
            reports.set(uid, report(message));
        }
        let got: BTreeMap<_, _> = deliver(&reports).into_iter().collect();
        assert_eq!(got["a"], Some(report("fine")));
        assert_eq!(got["c"], Some(report("fine")));
        let cut = got["b"].as_ref().unwrap();
        assert_eq!(
            (cut.entry, cut.outcome, cut.objects.len()),
            (report("poison").entry, Outcome::Applied, 0)
        );
        assert!(cut.message.contains("refused"), "{}", cut.message);

        // The others are sent together again, and an accepted report is sent whole.
        reports.set("a", report("finer"));
        reports.set("c", report("finer"));
        assert_eq!(reports.next_report(1, 0, "v1.36.3").unwrap().services.len(), 2);
        reports.set("b", report("cured"));
        assert_eq!(deliver(&reports), [("b".to_owned(), Some(report("cured")))]);
    }

    #[test]
    fn what_is_refused_without_its_objects_too_is_no_reason_to_hurry() {
        let reports = Reports::default();
        reports.set("a", report("fine"));
        let mut hurry = Vec::new();
        for _ in 0..3 {
            let request = reports.next_report(1, 0, "v1.36.3").unwrap();
            hurry.push(reports.isolate(&request, "400"));
            reports.put_back(request);
        }
        assert_eq!(hurry, [true, false, false]);
    }

    #[test]
    fn what_happens_while_the_hub_is_away_is_one_report_of_each_service() {
        let reports = Reports::default();
        let uids = ["a", "b", "c"];
        for round in 0..1001 {
            // A failed delivery.
            if round % 10 == 0
                && let Some(request) = reports.next_report(1, 7, "v1.36.3")
            {
                assert!(request.services.len() <= uids.len());
                reports.put_back(request);
            }
            for uid in uids {
                reports.supersede(uid, report("earlier"));
                reports.set(uid, report(&round.to_string()));
            }
        }
        let got = deliver(&reports);
        assert_eq!(
            got.len(),
            2 * uids.len(),
            "how the last attempt ended, and what is: {got:?}"
        );
        assert_eq!(
            got[uids.len()..],
            uids.map(|uid| (uid.to_owned(), Some(report("1000"))))
        );
    }

    #[test]
    fn a_report_that_is_too_large_is_cut_and_holds_up_nobody() {
        let reports = Reports::default();
        let mut large = report("");
        let object = large.objects[0].clone();
        large.objects = (0..12_000)
            .map(|n| ObjectReport {
                object: ObjectRef {
                    name: format!("object-{n:05}"),
                    ..object.object.clone()
                },
                sync: if n % 2 == 1 {
                    SyncState::Refused
                } else {
                    SyncState::Synced
                },
                message: "x".repeat(1024),
                ..object.clone()
            })
            .collect();
        reports.set("a", fit(large.clone()));
        reports.set("b", report("fine"));
        let request = reports.next_report(1, 0, "v1.36.3").unwrap();
        assert_eq!(request.services.len(), 2);
        assert!(serde_json::to_vec(&request).unwrap().len() < MAX_STATUS_BYTES);
        let cut = request.services["a"].as_ref().unwrap();
        let refused = |report: &ServiceReport| report.objects.iter().filter(|o| o.sync == SyncState::Refused).count();
        assert_eq!((cut.objects.len(), refused(cut)), (10_000, refused(&large)));
        assert!(cut.message.contains("10000 of 12000 objects"), "{}", cut.message);
    }
}
