//! The agent's own version and settings: from the signed desired state to its Deployment, and back if the new version
//! doesn't work.
//!
//! ```text
//! old agent:  change the Deployment ─► keep working, and watch ─── too late ──► change it back
//! new agent:      stand by ─► known to the hub, ready ─► (old one ends) ─► act ─► report ─► confirm
//!                                                                           └─ too late, or started too often ─► change it back
//! ```
//!
//! A change in progress is written into the Deployment, so that the agent that starts next knows of it.

mod deployment;

use std::{sync::Arc, time::Duration};

use farwater_api::{
    AGENT_NAMESPACE, Digest,
    protocol::{AgentReport, AgentSettings, AgentUpdate, Verbatim},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::timeout};

use crate::{
    Agent,
    kubernetes::{ApiError, Kubernetes},
    options::Options,
};
use deployment::write;
use deployment::{ATTEMPT, adopt, begin, confirm, deployments, go_back, read, to_text};

/// Number of starts that a new version may need without ever reporting.
const STARTS: u32 = 3;
/// Pause between two looks at a change in progress.
const LOOK: Duration = Duration::from_secs(3);

/// The parts of a Deployment that settings change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Template {
    image: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_limit: Option<String>,
}

impl Template {
    fn with(&self, settings: &AgentSettings) -> Self {
        let or = |new: &Option<String>, old: &Option<String>| new.clone().or_else(|| old.clone());
        Self {
            image: settings.image.clone().unwrap_or_else(|| self.image.clone()),
            log: or(&settings.log, &self.log),
            memory_limit: or(&settings.memory_limit, &self.memory_limit),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Attempt {
    settings: Digest,
    previous: Template,
    /// Seconds since 1970.
    deadline: i64,
    /// Starts of the new version.
    starts: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Refused {
    settings: Digest,
    reason: String,
}

/// The parts of the agent's Deployment that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    version: String,
    template: Template,
    applied: Option<Digest>,
    attempt: Option<Attempt>,
    refused: Option<Refused>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Settled,
    /// The Deployment already has these settings.
    Adopt(Digest),
    Begin(Template, Attempt),
    Wait(Digest),
    Confirm,
    GoBack(Attempt, &'static str),
    Failed(Refused),
}

/// Pure. `mine`: the settings that this process is the first to run with. `confirmed`: it has reported.
fn decide(
    wanted: Option<&Verbatim<AgentSettings>>,
    mine: Option<Digest>,
    seen: &Seen,
    confirmed: bool,
    now: i64,
) -> Step {
    if let Some(attempt) = &seen.attempt {
        let is_new = mine == Some(attempt.settings);
        return match () {
            () if is_new && confirmed => Step::Confirm,
            () if is_new && attempt.starts > STARTS => {
                Step::GoBack(attempt.clone(), "it was started again and again without ever reporting")
            }
            () if now >= attempt.deadline => Step::GoBack(attempt.clone(), "it did not report in time"),
            () if wanted.is_some_and(|wanted| wanted.digest() != attempt.settings) => {
                Step::GoBack(attempt.clone(), "other settings are wanted")
            }
            () => Step::Wait(attempt.settings),
        };
    }

    let Some(wanted) = wanted else { return Step::Settled };
    let digest = wanted.digest();
    if seen.applied == Some(digest) {
        return Step::Settled;
    }
    if let Some(refused) = seen.refused.as_ref().filter(|refused| refused.settings == digest) {
        return Step::Failed(refused.clone());
    }

    let next = seen.template.with(wanted);
    if repository(&next.image) != repository(&seen.template.image) {
        let reason = format!(
            "{} is not of the repository that this agent was installed from ({}); change that in the cluster",
            next.image,
            repository(&seen.template.image)
        );
        return Step::Failed(Refused {
            settings: digest,
            reason,
        });
    }
    if next == seen.template {
        return Step::Adopt(digest);
    }

    let deadline = now.saturating_add_unsigned(wanted.deadline_seconds.clamp(1, 24 * 3600));
    Step::Begin(
        next,
        Attempt {
            settings: digest,
            previous: seen.template.clone(),
            deadline,
            starts: 0,
        },
    )
}

/// An image's name without tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    match name.rfind(':') {
        // The colon is not before the port of a registry.
        Some(colon) if !name[colon..].contains('/') => &name[..colon],
        _ => name,
    }
}

/// The Deployment that starts this agent. None: it was started by hand.
pub struct Own {
    deployment: Option<String>,
    mine: Option<Digest>,
}

impl Own {
    pub fn new(options: &Options) -> Self {
        Self {
            deployment: options.deployment.clone(),
            mine: options.agent_settings,
        }
    }

    /// Keeps the agent at the settings of the desired state, for ever.
    pub async fn run(&self, agent: &Arc<Agent>, mut wanted: watch::Receiver<Option<Verbatim<AgentSettings>>>) {
        let Some(name) = &self.deployment else {
            let reason = "it was not started by a Deployment of ours (FARWATER_DEPLOYMENT is not set)".to_owned();
            let update = AgentUpdate::Unmanaged { reason };
            agent.reports.set_agent(AgentReport {
                update,
                limits: Some(agent.kubernetes.limits.describe()),
                ..AgentReport::default()
            });
            return std::future::pending().await;
        };

        let path = deployments().path(AGENT_NAMESPACE, name);
        if let Err(error) = self.count_start(&agent.kubernetes, &path).await {
            tracing::warn!(
                error = crate::hub::chain(&error),
                "can't write down that a new version of the agent started"
            );
        }
        loop {
            let settings = wanted.borrow_and_update().clone();
            let settled = match self.advance(agent, &path, settings.as_ref()).await {
                Ok(report) => {
                    let settled = !matches!(report.update, AgentUpdate::Updating { .. });
                    agent.reports.set_agent(report);
                    settled
                }
                Err(error) => {
                    tracing::warn!(
                        error = crate::hub::chain(&error),
                        "can't keep the agent's Deployment as the hub says"
                    );
                    false
                }
            };
            let changed = wanted.changed();
            let gone = if settled {
                changed.await.is_err()
            } else {
                matches!(timeout(LOOK, changed).await, Ok(Err(_)))
            };
            if gone {
                return std::future::pending().await;
            }
        }
    }

    async fn count_start(&self, kubernetes: &Kubernetes, path: &str) -> Result<(), ApiError> {
        let seen = read(kubernetes, path).await?;
        let Some(mut attempt) = seen
            .attempt
            .clone()
            .filter(|attempt| self.mine == Some(attempt.settings))
        else {
            return Ok(());
        };
        attempt.starts += 1;
        write(kubernetes, path, &seen, None, &[(ATTEMPT, Some(to_text(&attempt)))]).await
    }

    async fn advance(
        &self,
        agent: &Agent,
        path: &str,
        wanted: Option<&Verbatim<AgentSettings>>,
    ) -> Result<AgentReport, ApiError> {
        let kubernetes = &agent.kubernetes;
        let seen = read(kubernetes, path).await?;

        // The image of this process: during a change the old agent still runs the previous one.
        let running = match &seen.attempt {
            Some(attempt) if self.mine != Some(attempt.settings) => &attempt.previous.image,
            _ => &seen.template.image,
        };
        let report = |settings, update| AgentReport {
            settings,
            image: Some(running.clone()),
            update,
            limits: Some(kubernetes.limits.describe()),
        };

        let step = decide(
            wanted,
            self.mine,
            &seen,
            agent.reports.is_delivered(),
            Timestamp::now().as_second(),
        );
        match step {
            Step::Settled => Ok(report(seen.applied, AgentUpdate::Settled)),
            Step::Adopt(digest) => {
                adopt(kubernetes, path, &seen, digest).await?;
                Ok(report(Some(digest), AgentUpdate::Settled))
            }
            Step::Begin(template, attempt) => {
                begin(kubernetes, path, &seen, &template, &attempt).await?;
                let settings = attempt.settings;
                Ok(report(seen.applied, AgentUpdate::Updating { settings }))
            }
            Step::Wait(settings) => Ok(report(seen.applied, AgentUpdate::Updating { settings })),
            Step::Confirm => {
                confirm(kubernetes, path, &seen, self.mine).await?;
                Ok(report(self.mine, AgentUpdate::Settled))
            }
            Step::GoBack(attempt, why) => {
                let Refused { settings, reason } = go_back(kubernetes, path, &seen, &attempt, why).await?;
                Ok(report(seen.applied, AgentUpdate::Failed { settings, reason }))
            }
            Step::Failed(Refused { settings, reason }) => {
                Ok(report(seen.applied, AgentUpdate::Failed { settings, reason }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        deployment::{LOG_VARIABLE, REFUSED, parse},
        *,
    };

    const NOW: i64 = 1_000;

    fn settings(image: &str) -> Verbatim<AgentSettings> {
        AgentSettings {
            image: Some(image.to_owned()),
            deadline_seconds: 300,
            ..AgentSettings::default()
        }
        .into()
    }

    fn seen() -> Seen {
        Seen {
            template: Template {
                image: "r.example:5000/agent:1".to_owned(),
                ..Template::default()
            },
            ..Seen::default()
        }
    }

    fn attempted(image: &str) -> Seen {
        let attempt = Attempt {
            settings: settings(image).digest(),
            previous: seen().template,
            deadline: NOW + 300,
            starts: 1,
        };
        Seen {
            attempt: Some(attempt),
            ..seen()
        }
    }

    const NEW: &str = "r.example:5000/agent:2";

    #[test]
    fn what_is_wanted_is_begun_once() {
        let wanted = settings(NEW);
        let Step::Begin(template, attempt) = decide(Some(&wanted), None, &seen(), true, NOW) else {
            panic!()
        };
        assert_eq!(
            (template.image.as_str(), attempt.deadline, attempt.previous),
            (NEW, NOW + 300, seen().template)
        );
        assert_eq!(
            decide(Some(&wanted), None, &attempted(NEW), true, NOW),
            Step::Wait(wanted.digest())
        );
        assert_eq!(decide(None, None, &seen(), true, NOW), Step::Settled);
        let applied = Seen {
            applied: Some(wanted.digest()),
            ..seen()
        };
        assert_eq!(decide(Some(&wanted), None, &applied, true, NOW), Step::Settled);
    }

    #[test]
    fn settings_that_change_nothing_restart_nothing() {
        let wanted = settings("r.example:5000/agent:1");
        assert_eq!(
            decide(Some(&wanted), None, &seen(), true, NOW),
            Step::Adopt(wanted.digest())
        );
    }

    #[test]
    fn the_new_agent_confirms_once_it_has_reported() {
        let wanted = settings(NEW);
        let mine = Some(wanted.digest());
        assert_eq!(decide(Some(&wanted), mine, &attempted(NEW), true, NOW), Step::Confirm);
        assert_eq!(
            decide(Some(&wanted), mine, &attempted(NEW), false, NOW),
            Step::Wait(wanted.digest())
        );
    }

    #[test]
    fn what_does_not_report_is_taken_back_by_whoever_is_left() {
        let wanted = settings(NEW);
        let late = NOW + 300;
        for mine in [None, Some(wanted.digest())] {
            assert!(
                matches!(
                    decide(Some(&wanted), mine, &attempted(NEW), false, late),
                    Step::GoBack(..)
                ),
                "{mine:?}"
            );
        }
        let mut crashing = attempted(NEW);
        crashing.attempt.as_mut().unwrap().starts = STARTS + 1;
        assert!(matches!(
            decide(Some(&wanted), Some(wanted.digest()), &crashing, false, NOW),
            Step::GoBack(..)
        ));
        // The old agent is not the one that crashes.
        assert_eq!(
            decide(Some(&wanted), None, &crashing, true, NOW),
            Step::Wait(wanted.digest())
        );
    }

    #[test]
    fn what_went_back_stays_back_until_the_settings_are_others() {
        let wanted = settings(NEW);
        let refused = Refused {
            settings: wanted.digest(),
            reason: "ErrImagePull".to_owned(),
        };
        let back = Seen {
            refused: Some(refused.clone()),
            ..seen()
        };
        assert_eq!(decide(Some(&wanted), None, &back, true, NOW), Step::Failed(refused));
        let again = AgentSettings {
            requested_at: Some("now".to_owned()),
            ..wanted.into_value()
        }
        .into();
        assert!(matches!(decide(Some(&again), None, &back, true, NOW), Step::Begin(..)));
    }

    #[test]
    fn settings_of_a_newer_hub_are_taken_as_far_as_they_are_known_and_reported_as_they_came() {
        let json = json!({"image": NEW, "deadlineSeconds": 300, "cpuLimit": "1"});
        let wanted: Verbatim<AgentSettings> = serde_json::from_value(json.clone()).unwrap();
        let Step::Begin(template, attempt) = decide(Some(&wanted), None, &seen(), true, NOW) else {
            panic!()
        };
        assert_eq!(
            (template.image.as_str(), attempt.settings),
            (NEW, Digest::of_json(&json))
        );
    }

    #[test]
    fn other_wishes_end_an_attempt() {
        let other = settings("r.example:5000/agent:3");
        assert!(matches!(
            decide(Some(&other), None, &attempted(NEW), true, NOW),
            Step::GoBack(..)
        ));
    }

    #[test]
    fn an_image_of_another_repository_is_not_taken() {
        for image in [
            "evil.example/agent:2",
            "r.example:5000/other:1",
            "r.example:5000/agent/x:1",
        ] {
            let step = decide(Some(&settings(image)), None, &seen(), true, NOW);
            let Step::Failed(refused) = step else {
                panic!("{image}: {step:?}")
            };
            assert!(refused.reason.contains("r.example:5000/agent"), "{}", refused.reason);
        }
        let digest = format!("r.example:5000/agent@sha256:{}", "0".repeat(64));
        assert!(matches!(
            decide(Some(&settings(&digest)), None, &seen(), true, NOW),
            Step::Begin(..)
        ));
    }

    #[test]
    fn a_deployment_is_read_as_it_was_written() {
        let attempt = attempted(NEW).attempt.unwrap();
        let deployment = json!({
            "metadata": {"resourceVersion": "7", "annotations": {ATTEMPT: to_text(&attempt), REFUSED: "?"}},
            "spec": {"template": {"spec": {"containers": [
                {"name": "sidecar", "image": "x"},
                {"name": "agent", "image": NEW, "env": [{"name": LOG_VARIABLE, "value": "debug"}],
                 "resources": {"limits": {"memory": "512Mi"}}},
            ]}}},
        });
        let seen = parse(&deployment).unwrap();
        assert_eq!(seen.attempt, Some(attempt));
        assert_eq!((seen.version.as_str(), seen.refused), ("7", None));
        let template = Template {
            image: NEW.to_owned(),
            log: Some("debug".to_owned()),
            memory_limit: Some("512Mi".to_owned()),
        };
        assert_eq!(seen.template, template);
    }
}
