//! Spans, recorded when they have ended. The parts of one delivery run in two programs, and no scope encloses them. So
//! a span is data with two times. It goes to the configured sink; without a sink it is dropped.

use std::{sync::OnceLock, time::SystemTime};

/// A part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub trace: [u8; 16],
    /// None: a new id.
    pub id: Option<[u8; 8]>,
    pub parent: Option<[u8; 8]>,
    pub name: &'static str,
    pub interval: Interval,
    pub attributes: Vec<(&'static str, String)>,
    /// Error of the operation. None: it succeeded.
    pub error: Option<String>,
}

/// Start and end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub begun: SystemTime,
    pub ended: SystemTime,
}

impl Interval {
    /// From `begun` until now.
    pub fn since(begun: SystemTime) -> Self {
        Self {
            begun,
            ended: SystemTime::now(),
        }
    }
}

/// Receiver of spans.
pub trait Sink: Send + Sync {
    fn take(&self, span: Span);
}

/// The sink of the process. There is one, as for its log.
static SINK: OnceLock<Box<dyn Sink>> = OnceLock::new();

/// Sets the sink. Only the first call has an effect.
pub fn set_sink(sink: Box<dyn Sink>) {
    let _ = SINK.set(sink);
}

/// Whether there is a sink. Without one, callers can skip the work for spans.
pub fn is_on() -> bool {
    SINK.get().is_some()
}

pub fn tell(span: Span) {
    if let Some(sink) = SINK.get() {
        sink.take(span);
    }
}
