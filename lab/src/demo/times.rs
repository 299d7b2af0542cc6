//! How long each phase of the demo took: the table at its end.

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
            Self::Lab => ("lab", "the program that shows the demo is built"),
            Self::Tools => ("tools", "Kubernetes, kwok and kubectl from their Go modules"),
            Self::Page => ("page", "the page, where its sources are newer"),
            Self::Programs => ("programs", "farwater and farwater-agent are built"),
            Self::Planes => ("planes", "two control planes and a Git server start"),
            Self::Hub => ("hub", "the hub starts"),
            Self::Agents => ("agents", "the fleet is stated, two agents start"),
            Self::Healthy => ("healthy", "until everything is healthy"),
            Self::Commit => ("commit", "from a second commit until both clusters run it"),
        }
    }
}

impl Times {
    /// The first phase begins now.
    pub fn start() -> Self {
        Self { phases: Vec::new(), since: Instant::now() }
    }

    /// A phase that ran before the start.
    pub fn add(&mut self, phase: Phase, time: Duration) {
        self.phases.push((phase, time));
    }

    /// The phase ends and the next one begins.
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
        write!(f, "{:<10} {:>8}", "in all", seconds(all))
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
                "lab           1m01s  the program that shows the demo is built",
                "commit         2.3s  from a second commit until both clusters run it",
                "in all        1m03s",
            ]
        );
    }
}
