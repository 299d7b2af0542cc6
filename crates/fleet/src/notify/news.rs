//! The content of notifications, in words.

use std::fmt;

use farwater_api::{RolloutPhase, notification_rule::EventSeverity};
use serde::{Deserialize, Serialize};

use super::CommitNews;
use crate::rollout::Counts;

/// The newest state of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "camelCase")]
pub enum News {
    Rollout(RolloutNews),
    Service(ServiceNews),
    Commit(CommitNews),
}

/// The state of a rollout, as people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Course {
    Progressing,
    Paused,
    OnHold,
    Halted,
    RollingBack,
    Aborted,
    Complete,
    /// Another rollout has replaced it.
    Superseded,
}

impl From<RolloutPhase> for Course {
    fn from(phase: RolloutPhase) -> Self {
        match phase {
            RolloutPhase::Complete => Self::Complete,
            RolloutPhase::Progressing => Self::Progressing,
            RolloutPhase::Paused => Self::Paused,
            RolloutPhase::OnHold => Self::OnHold,
            RolloutPhase::Halted => Self::Halted,
            RolloutPhase::RollingBack => Self::RollingBack,
            RolloutPhase::Aborted => Self::Aborted,
        }
    }
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Progressing => "is under way",
            Self::Paused => "is paused",
            Self::OnHold => "waits to be promoted",
            Self::Halted => "is halted",
            Self::RollingBack => "goes back",
            Self::Aborted => "was aborted",
            Self::Complete => "is complete",
            Self::Superseded => "gave way to a newer one",
        })
    }
}

impl Course {
    pub fn severity(self) -> EventSeverity {
        match self {
            Self::Halted | Self::RollingBack | Self::Aborted => EventSeverity::Error,
            _ => EventSeverity::Info,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutNews {
    pub namespace: String,
    /// Name of the ServiceSet.
    pub set: String,
    pub number: u64,
    pub course: Course,
    /// Name of the open step. Empty: all are open.
    pub step: String,
    pub clusters: Counts,
    /// The first failed cluster, if its failure stops the others.
    pub halted_by: Option<String>,
    /// What is wrong on that cluster.
    pub cause: String,
    /// Revision of the set's first source. Empty: unknown.
    pub revision: String,
    /// Summary of the rule.
    pub summary: String,
}

impl RolloutNews {
    pub fn total(&self) -> usize {
        let Counts {
            updated,
            progressing,
            failed,
            deferred,
            waiting,
            standing,
            soaking: _,
        } = self.clusters;
        updated + progressing + failed + deferred + waiting + standing
    }

    /// `212/300 healthy`
    pub fn progress(&self) -> String {
        format!("{}/{} healthy", self.clusters.updated, self.total())
    }

    /// The headline.
    pub fn title(&self) -> String {
        let Self {
            namespace,
            set,
            number,
            course,
            ..
        } = self;
        format!("{namespace}/{set}: rollout {number} {course}, {}", self.progress())
    }

    /// Further details, one per line.
    pub fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(cluster) = &self.halted_by {
            let cause = if self.cause.is_empty() { "failed" } else { &self.cause };
            lines.push(format!("{cluster}: {cause}"));
        }
        let counts = self.clusters;
        let told = [
            (counts.progressing, "on their way"),
            (counts.failed, "failed"),
            (counts.deferred, "silent"),
            (counts.waiting, "waiting"),
            (counts.standing, "left out"),
        ];
        let told = told
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"));
        let told = told.collect::<Vec<_>>().join(", ");
        let step = if self.step.is_empty() {
            String::new()
        } else {
            format!("step {}", self.step)
        };
        let line = [step, told]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(": ");
        lines.extend((!line.is_empty()).then_some(line));
        lines.extend((!self.revision.is_empty()).then(|| self.revision.clone()));
        lines.extend((!self.summary.is_empty()).then(|| self.summary.clone()));
        lines
    }

    /// Whether it is worth a new message where messages can't be edited: a start, a stop or an end.
    pub fn is_turn_from(&self, before: Option<&Self>, with_steps: bool) -> bool {
        let Some(before) = before else { return true };
        let is_elsewhere = self.halted_by != before.halted_by && self.halted_by.is_some();
        // A superseded rollout is reported only if its failure was reported before.
        (self.course != Course::Superseded || before.course.severity() == EventSeverity::Error)
            && (self.course != before.course || is_elsewhere || (with_steps && self.step != before.step))
    }
}

/// A service that became unhealthy, or healthy again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceNews {
    pub namespace: String,
    pub name: String,
    pub cluster: String,
    pub is_well: bool,
    /// What is wrong. For a healthy service: why it is healthy, if it has not simply recovered.
    pub message: String,
    /// Summary of the rule.
    pub summary: String,
}

impl ServiceNews {
    fn line(&self) -> String {
        let Self {
            namespace,
            name,
            cluster,
            is_well,
            message,
            ..
        } = self;
        let how = if *is_well && message.is_empty() {
            "is well again"
        } else {
            message.as_str()
        };
        format!("{namespace}/{name} on {cluster}: {how}")
    }
}

/// Many services in one message: a headline for all, and a line for each of the first `most`. Failed ones come first.
pub fn tell_services(services: &[ServiceNews], most: usize) -> (String, Vec<String>) {
    let (well, ill): (Vec<_>, Vec<_>) = services.iter().partition(|service| service.is_well);
    let noun = |count: usize| {
        if count == 1 {
            "1 service".to_owned()
        } else {
            format!("{count} services")
        }
    };
    let verb = |count: usize, one: &'static str, many: &'static str| if count == 1 { one } else { many };
    let title = match (ill.len(), well.len()) {
        (0, well) => format!("{} {} well again", noun(well), verb(well, "is", "are")),
        (ill, 0) => format!("{} {}", noun(ill), verb(ill, "fails", "fail")),
        (ill, well) => {
            format!(
                "{} {}, {well} {} well again",
                noun(ill),
                verb(ill, "fails", "fail"),
                verb(well, "is", "are")
            )
        }
    };
    let mut lines: Vec<String> = ill
        .iter()
        .chain(&well)
        .take(most)
        .map(|service| service.line())
        .collect();
    let more = services.len().saturating_sub(most);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let mut summaries: Vec<&str> = services
        .iter()
        .map(|service| service.summary.as_str())
        .filter(|text| !text.is_empty())
        .collect();
    summaries.sort_unstable();
    summaries.dedup();
    lines.extend(summaries.into_iter().take(3).map(str::to_owned));
    (title, lines)
}
