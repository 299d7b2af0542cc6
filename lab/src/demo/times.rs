//! Durations of the demo's phases, for the table at its end.

use std::{
    fmt,
    time::{Duration, Instant},
};

use xtask::step::seconds;

pub struct Times {
    phases: Vec<(Phase, Duration)>,
    since: Instant,
}

#[derive(Clone, Copy)]
pub enum Phase {
    Lab,
    Tools,
    Page,
    Programs,
    Planes,
    Hub,
    Agents,
    Healthy,
    Commit,
}

impl Phase {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Lab => ("lab", "build the demo's own program"),
            Self::Tools => ("tools", "build Kubernetes, kwok and kubectl from their Go modules"),
            Self::Page => ("page", "build the page, if its sources are newer"),
            Self::Programs => ("programs", "build farwater and farwater-agent"),
            Self::Planes => ("planes", "start two control planes and a Git server"),
            Self::Hub => ("hub", "start the hub"),
            Self::Agents => ("agents", "apply the fleet, start two agents"),
            Self::Healthy => ("healthy", "wait until everything is healthy"),
            Self::Commit => ("commit", "push a second commit, wait until both clusters run it"),
        }
    }
}

impl Times {
    /// Starts the first phase.
    pub fn start() -> Self {
        Self {
            phases: Vec::new(),
            since: Instant::now(),
        }
    }

    /// Adds a phase that ran before the start.
    pub fn add(&mut self, phase: Phase, time: Duration) {
        self.phases.push((phase, time));
    }

    /// Ends a phase and starts the next one.
    pub fn end(&mut self, phase: Phase) {
        let now = Instant::now();
        self.add(phase, now - self.since);
        self.since = now;
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<10} {:>8}", "PHASE", "TIME")?;
        for (phase, time) in &self.phases {
            let (name, about) = phase.words();
            writeln!(f, "{name:<10} {:>8}  {about}", seconds(*time))?;
        }
        let all = self.phases.iter().map(|(_, time)| *time).sum();
        write!(f, "{:<10} {:>8}", "total", seconds(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_a_line_and_the_last_one_is_the_sum() {
        let mut times = Times::start();
        times.add(Phase::Lab, Duration::from_millis(61_200));
        times.add(Phase::Commit, Duration::from_millis(2_300));
        let text = times.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "PHASE          TIME",
                "lab           1m01s  build the demo's own program",
                "commit         2.3s  push a second commit, wait until both clusters run it",
                "total         1m03s",
            ]
        );
    }
}
