//! Durations as Go writes them: `90s`, `1m30s`, `1.5h`.

use std::time::Duration;

/// Allowed range of a duration field.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub least: Duration,
    pub most: Duration,
}

/// `Cluster.spec.pollInterval`. Polling more than once a second gains nothing, because applying takes longer. A cluster
/// that polls less than every ten minutes would be silent for half an hour before a person is notified.
pub const POLL_INTERVAL: Bounds = Bounds::of(1, 600);
/// `AgentPolicy.spec.deadline`. A pod takes some seconds to start; waiting for more than an hour has no use.
pub const AGENT_DEADLINE: Bounds = Bounds::of(30, 3600);
/// `GitRepository.spec.interval`. Git hosts throttle clients that ask more often; an annotation asks at once.
pub const SOURCE_INTERVAL: Bounds = Bounds::of(10, 24 * 3600);
/// `GitRepository.spec.timeout`. A fetch occupies one of the places for all sources, so it ends after half an hour.
pub const SOURCE_TIMEOUT: Bounds = Bounds::of(1, 1800);

/// `ServiceDeployment.spec.tests[].timeout`. A test of a version takes less than a day.
pub const TEST_TIMEOUT: Bounds = Bounds::of(1, 24 * 3600);
/// `rollout.soak`. Faults that appear after more than a day are not found by a rollout.
pub const ROLLOUT_SOAK: Bounds = Bounds::of(1, 24 * 3600);
/// `rollout.progressDeadline`. An agent polls and pods start in half a minute; a migration of data may take hours.
pub const ROLLOUT_DEADLINE: Bounds = Bounds::of(30, 24 * 3600);
/// `rollout.failAfter`. A change that has failed for an hour will not recover by itself.
pub const ROLLOUT_FAIL_AFTER: Bounds = Bounds::of(1, 3600);

/// `ChangeWindow.spec.duration`. At most a month; a longer one is a freeze with a start and an end.
pub const WINDOW_DURATION: Bounds = Bounds::of(60, 744 * 3600);

/// For a pipeline's gates. Soaks and waits of more than a month don't suit a pipeline.
pub const PROMOTION_SOAK: Bounds = Bounds::of(1, 720 * 3600);
pub const APPROVAL_EXPIRES: Bounds = Bounds::of(60, 720 * 3600);
pub const GATE_INTERVAL: Bounds = Bounds::of(1, 24 * 3600);

impl Bounds {
    const fn of(least: u64, most: u64) -> Self {
        Self {
            least: Duration::from_secs(least),
            most: Duration::from_secs(most),
        }
    }

    /// Parses the duration, or says which range is allowed.
    pub fn check(&self, text: &str) -> Result<Duration, String> {
        let within = parse(text).filter(|duration| (self.least..=self.most).contains(duration));
        within.ok_or_else(|| format!("must be between {} and {}", show(self.least), show(self.most)))
    }
}

/// The duration in the largest unit in which it is a whole number.
pub fn show(duration: Duration) -> String {
    match duration.as_secs() {
        seconds if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        seconds if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

/// None: the text is not a positive Go duration in the units that our schemas allow (ms, s, m, h).
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let (unit, seconds) = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]
            .into_iter()
            .find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        total += number * seconds;
    }
    (total > 0.0).then(|| Duration::try_from_secs_f64(total).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let check =
            |text, expected: Option<u64>| assert_eq!(parse(text).map(|d| d.as_millis() as u64), expected, "{text}");
        check("30s", Some(30_000));
        check("1m30s", Some(90_000));
        check("1.5h", Some(5_400_000));
        check("250ms", Some(250));
        for wrong in ["", "0s", "30", "s", "1d", "-1s", "1.2.3s"] {
            check(wrong, None);
        }
    }

    #[test]
    fn bounds_are_told_as_people_write_them() {
        let check = |bounds: Bounds, text: &str, expected: Result<u64, &str>| {
            assert_eq!(
                bounds.check(text).map(|d| d.as_secs()),
                expected.map_err(str::to_owned),
                "{text}"
            );
        };
        check(SOURCE_INTERVAL, "10s", Ok(10));
        check(SOURCE_INTERVAL, "24h", Ok(86_400));
        check(SOURCE_INTERVAL, "9999ms", Err("must be between 10s and 24h"));
        check(SOURCE_INTERVAL, "24h1s", Err("must be between 10s and 24h"));
        check(POLL_INTERVAL, "0s", Err("must be between 1s and 10m"));
        check(POLL_INTERVAL, "1s", Ok(1));
        check(SOURCE_TIMEOUT, "5h", Err("must be between 1s and 30m"));
    }
}
