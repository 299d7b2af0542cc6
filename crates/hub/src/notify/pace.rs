//! How often a provider is sent to. Kept in memory: after a restart, each is tried at once.

use std::{collections::HashMap, time::Duration};

use farwater_fleet::notify::wait_after;
use tokio::time::Instant;

/// Services that fail or recover are reported together, once in this time.
const SERVICES_EVERY: Duration = Duration::from_secs(60);
const CLEAN_EVERY: Duration = Duration::from_secs(3600);
/// A service that fails and recovers within this time is not reported.
const GATHER: Duration = Duration::from_secs(10);

pub struct Paces {
    /// By the provider's uid.
    known: HashMap<String, Pace>,
    /// How long news about a service waits for further news.
    pub gather: Duration,
    /// Divides the least time between two messages of a thread, for tests.
    pub haste: u32,
}

impl Default for Paces {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            gather: GATHER,
            haste: 1,
        }
    }
}

impl Paces {
    pub fn of(&mut self, provider_uid: &str) -> &mut Pace {
        self.known.entry(provider_uid.to_owned()).or_default()
    }

    pub fn forget(&mut self, provider_uid: &str) {
        self.known.remove(provider_uid);
    }
}

#[derive(Default)]
pub struct Pace {
    /// Failures in a row.
    failures: u32,
    paused: Option<Instant>,
    services: Option<Instant>,
    cleaned: Option<Instant>,
}

impl Pace {
    /// Notes a failure. Returns how long nothing is sent.
    pub fn fail(&mut self, asked: Option<Duration>) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let wait = wait_after(self.failures, asked);
        self.paused = Some(Instant::now() + wait);
        wait
    }

    pub fn succeed(&mut self) {
        (self.failures, self.paused) = (0, None);
    }

    /// The cause of the failure may have been fixed.
    pub fn hurry(&mut self) {
        self.paused = None;
    }

    /// How much longer nothing is sent; None: it may be sent now.
    pub fn pause(&self) -> Option<Duration> {
        self.paused
            .map(|until| until.saturating_duration_since(Instant::now()))
            .filter(|wait| !wait.is_zero())
    }

    pub fn note_services(&mut self) {
        self.services = Some(Instant::now() + SERVICES_EVERY);
    }

    /// How much longer services are not reported; zero: they may be now.
    pub fn until_services(&self) -> Duration {
        self.services
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether old threads should be looked for again.
    pub fn is_to_be_cleaned(&mut self) -> bool {
        let is_due = self.cleaned.is_none_or(|at| at.elapsed() > CLEAN_EVERY);
        if is_due {
            self.cleaned = Some(Instant::now());
        }
        is_due
    }
}
