//! The agent's metrics for its node's scraper: a few families, each with a fixed set of series. Counters are numbers in
//! memory; services are counted on each scrape.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use farwater_api::{
    objects::{Outcome, ServiceReport},
    protocol::Statement,
};
use farwater_telemetry::{
    exposition::{Exposition, Kind},
    process::Usage,
};

use crate::reports::Reports;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollResult {
    Unchanged,
    New,
    Failed,
}

/// How an attempt at a service's entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyResult {
    Applied,
    Failed,
    Superseded,
}

#[derive(Debug, Default)]
pub struct Metrics {
    started: AtomicU64,
    epoch: AtomicU64,
    generation: AtomicU64,
    polls: [AtomicU64; 3],
    /// Seconds since 1970. 0: none yet.
    last_poll: AtomicU64,
    applies: [AtomicU64; 3],
    /// Opened connections, and failed attempts.
    connections: [AtomicU64; 2],
    /// 1 while there is a connection, otherwise 0.
    connected: AtomicU64,
    hints: AtomicU64,
    /// Set once the agent has joined.
    reports: OnceLock<Arc<Reports>>,
}

const POLLS: [&str; 3] = ["unchanged", "new", "failed"];
const APPLIES: [&str; 3] = ["applied", "failed", "superseded"];
const CONNECTIONS: [&str; 2] = ["opened", "failed"];
const OUTCOMES: [&str; 5] = ["applying", "applied", "failed", "superseded", "removed"];

impl Metrics {
    pub fn start() -> Arc<Self> {
        let metrics = Self::default();
        metrics.started.store(now(), Ordering::Relaxed);
        Arc::new(metrics)
    }

    pub fn follow(&self, reports: &Arc<Reports>) {
        // A second call changes nothing.
        let _ = self.reports.set(Arc::clone(reports));
    }

    pub fn count_poll(&self, result: PollResult) {
        self.polls[result as usize].fetch_add(1, Ordering::Relaxed);
        if result != PollResult::Failed {
            self.last_poll.store(now(), Ordering::Relaxed);
        }
    }

    pub fn count_apply(&self, result: ApplyResult) {
        self.applies[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_connection(&self, opened: bool) {
        self.connections[usize::from(!opened)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected.into(), Ordering::Relaxed);
    }

    pub fn count_hint(&self) {
        self.hints.fetch_add(1, Ordering::Relaxed);
    }

    pub fn set_accepted(&self, statement: &Statement) {
        self.epoch.store(statement.epoch, Ordering::Relaxed);
        self.generation.store(statement.generation, Ordering::Relaxed);
    }

    pub fn text(&self) -> String {
        let mut text = Exposition::default();
        let build = [(crate::VERSION, 1)];
        text.many(
            "farwater_agent_build_info",
            Kind::Gauge,
            "The running program.",
            "version",
            build,
        );
        let help = "Epoch of the desired state that was accepted last.";
        text.one("farwater_agent_accepted_epoch", Kind::Gauge, help, read(&self.epoch));
        let help = "Generation, within its epoch, of the desired state that was accepted last.";
        text.one(
            "farwater_agent_accepted_generation",
            Kind::Gauge,
            help,
            read(&self.generation),
        );
        self.add_polls(&mut text);
        self.add_connections(&mut text);
        self.add_services(&mut text);

        text.one(
            "process_start_time_seconds",
            Kind::Gauge,
            "Start time of the process.",
            read(&self.started),
        );
        if let Some(usage) = Usage::read() {
            let help = "Processor time, user and system.";
            text.one("process_cpu_seconds_total", Kind::Counter, help, usage.cpu_seconds);
            text.one(
                "process_resident_memory_bytes",
                Kind::Gauge,
                "Resident memory.",
                usage.resident_bytes,
            );
        }
        text.into_text()
    }

    fn add_polls(&self, text: &mut Exposition) {
        let polls = POLLS.into_iter().zip(self.polls.iter().map(read));
        text.many(
            "farwater_agent_polls_total",
            Kind::Counter,
            "Polls, by what came of them.",
            "result",
            polls,
        );
        let help = "When the hub last answered a poll; 0 if it has not since the start.";
        text.one(
            "farwater_agent_last_poll_timestamp_seconds",
            Kind::Gauge,
            help,
            read(&self.last_poll),
        );
    }

    fn add_connections(&self, text: &mut Exposition) {
        let help = "1 while the hub tells of changes over a connection.";
        text.one("farwater_agent_connected", Kind::Gauge, help, read(&self.connected));
        let connections = CONNECTIONS.into_iter().zip(self.connections.iter().map(read));
        let help = "Connections to the hub, by what came of the attempt.";
        text.many(
            "farwater_agent_connections_total",
            Kind::Counter,
            help,
            "result",
            connections,
        );
        let help = "How often the hub has hinted at something to poll for.";
        text.one("farwater_agent_hints_total", Kind::Counter, help, read(&self.hints));
    }

    /// Attempts and, once the agent has joined, services by their last report.
    fn add_services(&self, text: &mut Exposition) {
        let applies = APPLIES.into_iter().zip(self.applies.iter().map(read));
        let help = "Attempts to apply a service, by how they ended.";
        text.many("farwater_agent_applies_total", Kind::Counter, help, "result", applies);
        if let Some(reports) = self.reports.get() {
            let mut counts = Counts::default();
            reports.each(|report| counts.add(report));
            let help = "Services by the outcome of the last attempt.";
            let outcomes = OUTCOMES.into_iter().zip(counts.outcomes);
            text.many("farwater_agent_services", Kind::Gauge, help, "outcome", outcomes);
            let help = "Services with a prune that waits for an approval.";
            text.one("farwater_agent_prunes_held", Kind::Gauge, help, counts.held);
        }
    }
}

fn read(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

#[derive(Default)]
struct Counts {
    outcomes: [u64; 5],
    held: u64,
}

impl Counts {
    fn add(&mut self, report: &ServiceReport) {
        let place = match report.outcome {
            Outcome::Applying => 0,
            Outcome::Applied => 1,
            Outcome::Failed => 2,
            Outcome::Superseded => 3,
            Outcome::Removed => 4,
            // An agent never reports this about itself.
            Outcome::Unknown => return,
        };
        self.outcomes[place] += 1;
        self.held += u64::from(report.held_prune.is_some());
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use farwater_api::Digest;

    use super::*;

    #[test]
    fn what_happens_is_counted_under_its_name() {
        let metrics = Metrics::start();
        metrics.count_poll(PollResult::Failed);
        let line = |metrics: &Metrics, name: &str| {
            let text = metrics.text();
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.unwrap_or_else(|| panic!("{name} is missing:\n{text}")).to_owned()
        };
        assert_eq!(line(&metrics, "farwater_agent_last_poll_timestamp_seconds"), "0");
        metrics.count_poll(PollResult::New);
        metrics.count_apply(ApplyResult::Superseded);
        assert_eq!(line(&metrics, "farwater_agent_polls_total{result=\"failed\"}"), "1");
        assert_eq!(line(&metrics, "farwater_agent_polls_total{result=\"new\"}"), "1");
        assert_eq!(
            line(&metrics, "farwater_agent_applies_total{result=\"superseded\"}"),
            "1"
        );
        assert_ne!(line(&metrics, "farwater_agent_last_poll_timestamp_seconds"), "0");

        assert!(
            !metrics.text().contains("farwater_agent_services"),
            "nothing is known before the join"
        );
        let reports = Arc::new(Reports::default());
        metrics.follow(&reports);
        let entry = Digest::of("x");
        let outcome = Outcome::Failed;
        let report = ServiceReport {
            entry,
            outcome,
            message: String::new(),
            held_prune: None,
            deletion: None,
            hooks: Vec::new(),
            objects: Vec::new(),
        };
        reports.set("a", report);
        assert_eq!(line(&metrics, "farwater_agent_services{outcome=\"failed\"}"), "1");
        assert_eq!(line(&metrics, "farwater_agent_services{outcome=\"applied\"}"), "0");
        assert_eq!(line(&metrics, "farwater_agent_prunes_held"), "0");
    }
}
