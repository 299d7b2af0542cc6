//! Spans that are told once they are over. What belongs to one delivery happens in two programs and at times that nothing
//! encloses, so a span is data with two times, not a scope; it is told to whoever was set up to take it, or to nobody.

use std::{sync::OnceLock, time::SystemTime};

/// A piece of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub trace: [u8; 16],
    /// None: a new one.
    pub id: Option<[u8; 8]>,
    pub parent: Option<[u8; 8]>,
    pub name: &'static str,
    pub interval: Interval,
    pub attributes: Vec<(&'static str, String)>,
    /// Why it did not end well.
    pub error: Option<String>,
}

/// From when until when something was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub begun: SystemTime,
    pub ended: SystemTime,
}

impl Interval {
    /// Until now.
    pub fn since(begun: SystemTime) -> Self {
        Self {
            begun,
            ended: SystemTime::now(),
        }
    }
}

/// Where spans go.
pub trait Sink: Send + Sync {
    fn take(&self, span: Span);
}

/// Of the process, as its log is: nobody wants two in one.
static SINK: OnceLock<Box<dyn Sink>> = OnceLock::new();

/// From now on spans go there. The first call decides.
pub fn set_sink(sink: Box<dyn Sink>) {
    let _ = SINK.set(sink);
}

/// Whether anybody takes spans: what only they need is not worth doing else.
pub fn is_on() -> bool {
    SINK.get().is_some()
}

pub fn tell(span: Span) {
    if let Some(sink) = SINK.get() {
        sink.take(span);
    }
}
