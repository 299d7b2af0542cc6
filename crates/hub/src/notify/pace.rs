//! How often a provider is spoken to. In memory: after a restart it is tried at once.

use std::{collections::HashMap, time::Duration};

use farwater_fleet::notify::wait_after;
use tokio::time::Instant;

/// Services that fail or recover are told together, once in this time.
const SERVICES_EVERY: Duration = Duration::from_secs(60);
const CLEAN_EVERY: Duration = Duration::from_secs(3600);
/// A service that fails and recovers within this was well.
const GATHER: Duration = Duration::from_secs(10);

pub struct Paces {
    /// By the provider's uid.
    known: HashMap<String, Pace>,
    /// For so long what a service says waits for what comes after it.
    pub gather: Duration,
    /// The least time between two messages of a thread is divided by it, for tests.
    pub haste: u32,
}

impl Default for Paces {
    fn default() -> Self {
        Self { known: HashMap::new(), gather: GATHER, haste: 1 }
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
    /// In a row.
    failures: u32,
    paused: Option<Instant>,
    services: Option<Instant>,
    cleaned: Option<Instant>,
}

impl Pace {
    /// It failed; how long nothing is sent.
    pub fn fail(&mut self, asked: Option<Duration>) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let wait = wait_after(self.failures, asked);
        self.paused = Some(Instant::now() + wait);
        wait
    }

    pub fn succeed(&mut self) {
        (self.failures, self.paused) = (0, None);
    }

    /// What it failed by may have been mended.
    pub fn hurry(&mut self) {
        self.paused = None;
    }

    /// How long nothing is sent yet.
    pub fn pause(&self) -> Option<Duration> {
        self.paused.map(|until| until.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
    }

    pub fn note_services(&mut self) {
        self.services = Some(Instant::now() + SERVICES_EVERY);
    }

    /// How long services are not told of yet.
    pub fn until_services(&self) -> Duration {
        self.services.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether old threads are to be looked for again.
    pub fn is_to_be_cleaned(&mut self) -> bool {
        let is_due = self.cleaned.is_none_or(|at| at.elapsed() > CLEAN_EVERY);
        if is_due {
            self.cleaned = Some(Instant::now());
        }
        is_due
    }
}
