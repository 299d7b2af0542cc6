//! The agent's part of a delivery's trace: from the poll that brought an entry until its objects are healthy. The ids
//! derive from the entry, so that the hub's part is in the same trace.

use std::{sync::Mutex, time::SystemTime};

use farwater_api::{
    Digest,
    trace::{delivery_span_id, trace_id},
};
use farwater_telemetry::traces::{self, Interval, Span};

use crate::sync::lock;

/// The time of the poll that brought the newest desired state.
#[derive(Debug, Default)]
pub struct LastPoll(Mutex<Option<Interval>>);

impl LastPoll {
    pub fn note(&self, interval: Interval) {
        *lock(&self.0) = Some(interval);
    }

    fn get(&self) -> Option<Interval> {
        *lock(&self.0)
    }
}

/// The trace of an entry until it is healthy. It spans failed attempts; a newer entry ends it.
#[derive(Debug)]
pub struct Rollout {
    trace: [u8; 16],
    delivery: [u8; 8],
    own: [u8; 8],
    begun: SystemTime,
    service: String,
    /// Since when everything is applied but not yet healthy.
    waiting: Option<SystemTime>,
}

impl Rollout {
    /// None: traces are not collected.
    pub fn begin(cluster_uid: &str, entry: &Digest, service: String, poll: &LastPoll) -> Option<Self> {
        if !traces::is_on() {
            return None;
        }
        let polled = poll.get();
        let rollout = Self {
            trace: trace_id(cluster_uid, entry),
            delivery: delivery_span_id(cluster_uid, entry),
            own: rand::random(),
            begun: polled.map_or_else(SystemTime::now, |polled| polled.begun),
            service,
            waiting: None,
        };
        if let Some(polled) = polled {
            rollout.report_span("poll", polled, None);
        }
        Some(rollout)
    }

    /// Records a step from `begun` until now.
    pub fn step(&self, name: &'static str, begun: SystemTime, error: Option<&str>) {
        self.report_span(name, Interval::since(begun), error);
    }

    pub fn wait_for_health(&mut self) {
        self.waiting.get_or_insert_with(SystemTime::now);
    }

    /// Ends the trace: the entry is healthy, or failed because of `error`.
    pub fn end(self, error: Option<&str>) {
        if let Some(waiting) = self.waiting {
            self.report_span("wait for health", Interval::since(waiting), error);
        }
        traces::tell(Span {
            trace: self.trace,
            id: Some(self.own),
            parent: Some(self.delivery),
            name: "roll out",
            interval: Interval::since(self.begun),
            attributes: vec![("farwater.service", self.service)],
            error: error.map(str::to_owned),
        });
    }

    fn report_span(&self, name: &'static str, interval: Interval, error: Option<&str>) {
        traces::tell(Span {
            trace: self.trace,
            id: None,
            parent: Some(self.own),
            name,
            interval,
            attributes: Vec::new(),
            error: error.map(str::to_owned),
        });
    }
}
