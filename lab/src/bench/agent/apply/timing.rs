//! Time and processor time of a client in one phase.

use std::{fmt, time::Duration};

use anyhow::Result;
use farwater_testkit::Plane;
use jiff::Timestamp;

use crate::bench::{agent::maps::Seen, usage};

#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Objects per second.
    pub rate: f64,
    /// Objects per second from the first seen object on, without the work before it.
    pub sustained: Option<f64>,
    /// Processor time of the API server and its database, in milliseconds per object.
    pub server: f64,
    /// Processor time of the client. None: the program has ended.
    pub own: Option<f64>,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} objects/s, {:.2} ms of the API server each",
            self.rate, self.server
        )
    }
}

/// Start and end of a phase, and the time of the first seen object if it was watched.
pub struct Span {
    began: Timestamp,
    first: Option<Timestamp>,
    last: Timestamp,
}

impl Span {
    pub fn seen(began: Timestamp, seen: &Seen) -> Self {
        Self {
            began,
            first: Some(seen.first),
            last: seen.last,
        }
    }

    pub fn until(began: Timestamp, last: Timestamp) -> Self {
        Self {
            began,
            first: None,
            last,
        }
    }

    fn rate_since(&self, start: Timestamp, count: usize) -> Result<f64> {
        let time = Duration::try_from(self.last.duration_since(start))?;
        Ok(count as f64 / time.as_secs_f64())
    }
}

/// Starts to measure processor time.
pub struct Meter {
    own: Option<u32>,
    before: (Duration, Option<Duration>),
}

impl Meter {
    /// `own`: the process of the client.
    pub fn start(plane: &mut Plane, own: Option<u32>) -> Result<Self> {
        Ok(Self {
            own,
            before: taken(plane, own)?,
        })
    }

    pub fn stop(self, plane: &mut Plane, count: usize, span: &Span) -> Result<Run> {
        let (server, own) = taken(plane, self.own)?;
        let each = |used: Duration| used.as_secs_f64() * 1000.0 / count as f64;
        let sustained = span.first.map(|first| span.rate_since(first, count - 1)).transpose()?;
        Ok(Run {
            rate: span.rate_since(span.began, count)?,
            sustained,
            server: each(server.saturating_sub(self.before.0)),
            own: own
                .zip(self.before.1)
                .map(|(after, before)| each(after.saturating_sub(before))),
        })
    }
}

fn taken(plane: &mut Plane, own: Option<u32>) -> Result<(Duration, Option<Duration>)> {
    Ok((usage::server_time(plane)?, own.map(usage::processor_time).transpose()?))
}
