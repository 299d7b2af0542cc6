//! How agents are updated to the settings of their policy: one cluster first, then several at a time. A failure stops
//! the rest.

use farwater_api::{
    Digest,
    protocol::{AgentReport, AgentSettings, AgentUpdate},
};

/// Seconds after its own deadline in which an agent's report may still arrive: the agent waits for its node, and polls.
const SLACK_SECONDS: i64 = 120;

/// Whether an agent polls in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heard {
    #[default]
    InTime,
    /// The hub was away, and has not heard the agent since it started. It has not waited long enough to call it silent.
    NotYet,
    No,
}

/// The agent of one cluster, as the hub knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAgent {
    /// `namespace/name` of the Cluster.
    pub name: String,
    pub heard: Heard,
    pub assigned: Assigned,
    /// The agent's last report about itself. None: the agent does not report this.
    pub report: Option<AgentReport>,
}

/// The settings that the hub assigned to an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// The settings in its desired state. None: as installed.
    pub settings: Option<AgentSettings>,
    /// The settings to go back to.
    pub previous: Option<AgentSettings>,
    /// Seconds since the settings were assigned.
    pub age: i64,
    /// Digest of the settings that it last went back from, and the reason.
    pub failed: Option<(Digest, String)>,
}

/// How far an agent's update is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Updated,
    /// Changed, but not heard since the hub was away.
    Unheard,
    Updating,
    /// Waits for its turn.
    Waiting,
    /// Not heard, and not changed: it is passed over until it is heard.
    Silent,
    /// Not heard since it was changed.
    Lost,
    Unmanaged(String),
    Failed(String),
}

/// What to do now, and what to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Indices of those that are assigned the settings now.
    pub assign: Vec<usize>,
    /// Those that go back to what was before, and why.
    pub retract: Vec<(usize, String)>,
    pub updated: usize,
    /// Of those that are updated, the ones that are to be heard first after the hub has been away.
    pub unheard: usize,
    pub updating: usize,
    pub failed: usize,
    pub silent: usize,
    /// Name of an agent that can't change itself, and the reason.
    pub unmanaged: Option<(String, String)>,
    /// Why the update stopped: the first agent that failed or was lost, and the reason.
    pub halted: Option<(String, String)>,
    pub waiting: usize,
}

/// How many may be changing at one time: a number, or a share of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Number(usize),
    Percent(usize),
}

impl Limit {
    /// Parses a limit like a Deployment's `maxUnavailable`: `3`, `"10%"`.
    pub fn parse(text: &str) -> Option<Self> {
        let limit = match text.strip_suffix('%') {
            Some(percent) => Self::Percent(percent.parse().ok().filter(|percent| (1..=100).contains(percent))?),
            None => Self::Number(text.parse().ok().filter(|number| *number > 0)?),
        };
        Some(limit)
    }

    /// The limit as a number, rounded down, but at least 1.
    pub fn of(self, total: usize) -> usize {
        match self {
            Self::Number(number) => number,
            Self::Percent(percent) => (total * percent / 100).max(1),
        }
    }
}

fn progress(agent: &ClusterAgent, wanted: &AgentSettings) -> Progress {
    let digest = wanted.digest();
    let assigned = &agent.assigned;
    if let Some((_, reason)) = assigned.failed.as_ref().filter(|(failed, _)| *failed == digest) {
        return Progress::Failed(reason.clone());
    }

    let update = agent.report.as_ref().map(|report| &report.update);
    let runs = agent.report.as_ref().and_then(|report| report.settings) == Some(digest);
    if let Some(AgentUpdate::Unmanaged { reason }) = update {
        return Progress::Unmanaged(reason.clone());
    }
    if assigned.settings.as_ref() != Some(wanted) {
        return if agent.heard == Heard::InTime {
            Progress::Waiting
        } else {
            Progress::Silent
        };
    }

    match update {
        Some(AgentUpdate::Failed { settings, reason }) if *settings == digest => Progress::Failed(reason.clone()),
        // A newer agent may report another state. The settings that it runs with decide.
        Some(AgentUpdate::Settled | AgentUpdate::Unknown) if runs => match agent.heard {
            Heard::InTime => Progress::Updated,
            Heard::NotYet => Progress::Unheard,
            Heard::No => Progress::Lost,
        },
        _ => {
            let patience = i64::try_from(wanted.deadline_seconds)
                .unwrap_or(i64::MAX)
                .saturating_add(SLACK_SECONDS);
            if assigned.age <= patience {
                Progress::Updating
            } else {
                Progress::Failed(format!(
                    "the agent has not reported under its new settings within {patience} s"
                ))
            }
        }
    }
}

/// Pure: the same agents and settings give the same decision.
pub fn decide(wanted: &AgentSettings, limit: Limit, suspended: bool, agents: &[ClusterAgent]) -> Decision {
    let mut decision = Decision::default();
    let mut waiting = Vec::new();
    for (index, agent) in agents.iter().enumerate() {
        match progress(agent, wanted) {
            Progress::Updated => decision.updated += 1,
            Progress::Unheard => {
                decision.updated += 1;
                decision.unheard += 1;
            }
            Progress::Updating => decision.updating += 1,
            Progress::Waiting => waiting.push(index),
            Progress::Silent => decision.silent += 1,
            Progress::Unmanaged(reason) => {
                decision.unmanaged.get_or_insert((agent.name.clone(), reason));
            }
            Progress::Lost => {
                decision.updated += 1;
                let reason = "its agent has not been heard since it was updated".to_owned();
                decision.halted.get_or_insert((agent.name.clone(), reason));
            }
            Progress::Failed(reason) => {
                decision.failed += 1;
                decision.halted.get_or_insert((agent.name.clone(), reason.clone()));
                if agent.assigned.settings.as_ref() == Some(wanted) {
                    decision.retract.push((index, reason));
                }
            }
        }
    }

    decision.waiting = waiting.len();
    if suspended || decision.halted.is_some() || decision.unheard > 0 {
        return decision;
    }

    // The first agent is changed alone, because a fault that all would share shows in one.
    let allowed = if decision.updated == 0 {
        1
    } else {
        limit.of(agents.len())
    };
    waiting.truncate(allowed.saturating_sub(decision.updating));
    decision.waiting -= waiting.len();
    decision.updating += waiting.len();
    decision.assign = waiting;
    decision
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> AgentSettings {
        AgentSettings {
            image: Some("agent:2".to_owned()),
            deadline_seconds: 300,
            ..AgentSettings::default()
        }
    }

    fn fresh(name: &str) -> ClusterAgent {
        let report = Some(AgentReport::default());
        ClusterAgent {
            name: name.to_owned(),
            report,
            ..ClusterAgent::default()
        }
    }

    fn updating(name: &str) -> ClusterAgent {
        let assigned = Assigned {
            settings: Some(wanted()),
            age: 10,
            ..Assigned::default()
        };
        ClusterAgent {
            assigned,
            ..fresh(name)
        }
    }

    fn updated(name: &str) -> ClusterAgent {
        let report = AgentReport {
            settings: Some(wanted().digest()),
            ..AgentReport::default()
        };
        ClusterAgent {
            report: Some(report),
            ..updating(name)
        }
    }

    fn failed(name: &str) -> ClusterAgent {
        let update = AgentUpdate::Failed {
            settings: wanted().digest(),
            reason: "ErrImagePull".to_owned(),
        };
        ClusterAgent {
            report: Some(AgentReport {
                update,
                ..AgentReport::default()
            }),
            ..updating(name)
        }
    }

    fn names(count: usize) -> Vec<ClusterAgent> {
        (0..count).map(|number| fresh(&format!("c{number}"))).collect()
    }

    fn step(agents: &[ClusterAgent]) -> Decision {
        decide(&wanted(), Limit::Percent(10), false, agents)
    }

    #[test]
    fn the_first_goes_alone_then_some_at_a_time() {
        let mut agents = names(30);
        assert_eq!(step(&agents).assign, [0]);
        agents[0] = updating("c0");
        assert_eq!(step(&agents).assign, [] as [usize; 0]);
        agents[0] = updated("c0");
        assert_eq!(step(&agents).assign, [1, 2, 3]);
        agents[1] = updating("c1");
        assert_eq!(step(&agents).assign, [2, 3]);
    }

    #[test]
    fn the_first_failure_stops_the_rest_and_goes_back() {
        let agents = [updated("a"), failed("b"), updating("c"), fresh("d")];
        let decision = step(&agents);
        assert_eq!(decision.assign, [] as [usize; 0]);
        assert_eq!(decision.retract, [(1, "ErrImagePull".to_owned())]);
        assert_eq!(decision.halted, Some(("b".to_owned(), "ErrImagePull".to_owned())));
        // Settings that were taken back stay recorded as failed, and halt the update until the settings change.
        let mut back = failed("b");
        back.assigned = Assigned {
            failed: Some((wanted().digest(), "ErrImagePull".to_owned())),
            ..Assigned::default()
        };
        let decision = step(&[updated("a"), back.clone(), fresh("d")]);
        assert_eq!(
            (decision.retract.len(), decision.assign.len(), decision.failed),
            (0, 0, 1)
        );
        let other = AgentSettings {
            image: Some("agent:3".to_owned()),
            ..wanted()
        };
        assert_eq!(decide(&other, Limit::Number(1), false, &[back]).assign, [0]);
    }

    #[test]
    fn a_cluster_that_falls_silent_after_its_update_stops_the_rest_until_it_is_heard() {
        let lost = ClusterAgent {
            heard: Heard::No,
            ..updated("a")
        };
        let decision = step(&[lost, fresh("b")]);
        assert_eq!(decision.halted.map(|(name, _)| name), Some("a".to_owned()));
        assert_eq!((decision.assign.len(), decision.retract.len()), (0, 0));
        assert_eq!(step(&[updated("a"), fresh("b")]).assign, [1]);
    }

    #[test]
    fn nobody_follows_until_those_before_are_heard_by_a_hub_that_was_away() {
        let unheard = ClusterAgent {
            heard: Heard::NotYet,
            ..updated("a")
        };
        let decision = step(&[unheard, fresh("b")]);
        assert_eq!((decision.assign.len(), decision.halted, decision.waiting), (0, None, 1));
        let away = ClusterAgent {
            heard: Heard::NotYet,
            ..fresh("a")
        };
        assert_eq!(step(&[away, fresh("b")]).assign, [1]);
    }

    #[test]
    fn a_cluster_that_was_silent_before_is_passed_over() {
        let silent = ClusterAgent {
            heard: Heard::No,
            ..fresh("a")
        };
        let decision = step(&[silent, fresh("b")]);
        assert_eq!((decision.assign, decision.silent), (vec![1], 1));
    }

    #[test]
    fn an_agent_without_a_word_goes_back_after_its_deadline() {
        let mut late = updating("a");
        late.assigned.age = 421;
        assert_eq!(step(&[late.clone()]).retract.len(), 1);
        late.assigned.age = 420;
        assert_eq!(step(&[late]).updating, 1);
    }

    #[test]
    fn a_newer_agent_that_runs_as_it_should_is_not_taken_back() {
        let mut newer = updated("a");
        newer.report.as_mut().unwrap().update = AgentUpdate::Unknown;
        newer.assigned.age = 1_000_000;
        assert_eq!(step(&[newer]).updated, 1);
    }

    #[test]
    fn a_suspended_policy_begins_nothing_and_takes_back_what_failed() {
        let decision = decide(&wanted(), Limit::Number(5), true, &[failed("a"), fresh("b")]);
        assert_eq!((decision.assign.len(), decision.retract.len()), (0, 1));
    }

    #[test]
    fn limits_are_numbers_or_shares() {
        assert_eq!(Limit::parse("3"), Some(Limit::Number(3)));
        assert_eq!(Limit::parse("10%").map(|limit| limit.of(5)), Some(1));
        for wrong in ["", "0", "0%", "101%", "-1", "x", "1.5"] {
            assert_eq!(Limit::parse(wrong), None, "{wrong}");
        }
    }
}
