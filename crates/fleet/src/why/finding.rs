//! A finding: the broken link, the evidence, and the next step.

use farwater_api::Condition;
use serde::Serialize;

/// Maximum number of lines of evidence for one link. The next step shows the rest.
pub(super) const MAX_EVIDENCE: usize = 6;

/// A step on the way from a commit to healthy objects, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Link {
    Source,
    Bundle,
    /// Parameters and Secrets that the hub supplies to the service.
    Parameters,
    Dependencies,
    Placement,
    Cluster,
    Agent,
    Hooks,
    Objects,
    Health,
    Prune,
    Window,
    Rollout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// Every link is in order.
    Healthy,
    /// The link is not in order yet, and there is no evidence that it stays so.
    Progressing,
    /// A person has to act, or another system has to recover.
    Broken,
}

/// The result of a lookup. A forbidden lookup is not the same as a missing object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lookup<T> {
    Found(T),
    Missing,
    Unreadable,
}

impl<T> Lookup<T> {
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(value) => Some(value),
            Self::Missing | Self::Unreadable => None,
        }
    }
}

/// The next step. The caller adds how its user starts each program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NextStep {
    /// Arguments of `farwater`.
    Farwater(String),
    /// Arguments of kubectl, against the hub.
    Kubectl(String),
    /// Arguments of kubectl, against the cluster that the service runs on.
    InCluster(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub standing: Standing,
    /// The first link that is not in order. None: all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// One sentence without a full stop.
    pub sentence: String,
    pub evidence: Vec<String>,
    /// A step that comes before `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<NextStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<NextStep>,
}

impl Finding {
    pub(super) fn new(standing: Standing, link: Link, sentence: impl Into<String>) -> Self {
        Self {
            standing,
            link: Some(link),
            sentence: sentence.into(),
            evidence: Vec::new(),
            first: None,
            next: None,
        }
    }

    pub(super) fn broken(link: Link, sentence: impl Into<String>) -> Self {
        Self::new(Standing::Broken, link, sentence)
    }

    pub(super) fn progressing(link: Link, sentence: impl Into<String>) -> Self {
        Self::new(Standing::Progressing, link, sentence)
    }

    pub(super) fn because(mut self, line: impl Into<String>) -> Self {
        let line = line.into();
        if !line.is_empty() && self.evidence.len() < MAX_EVIDENCE {
            self.evidence.push(line);
        }
        self
    }

    /// Adds several lines. If there are too many, the last line says how many are left out.
    pub(super) fn because_all(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        let mut lines: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
        let room = MAX_EVIDENCE.saturating_sub(self.evidence.len());
        if lines.len() > room {
            let left_out = lines.split_off(room.saturating_sub(1)).len();
            lines.push(format!("and {left_out} more"));
        }
        self.evidence.extend(lines);
        self
    }

    /// Adds the first problem of a later link. It is told even if there is no room for more evidence.
    pub(super) fn besides(mut self, other: Option<Finding>) -> Self {
        let other = other.filter(|other| other.standing == Standing::Broken && other.link != self.link);
        self.evidence
            .extend(other.map(|other| format!("besides, {}", other.sentence)));
        self
    }

    pub(super) fn condition(self, of: &str, condition: Option<&Condition>) -> Self {
        let Some(condition) = condition else { return self };
        let message = if condition.message.is_empty() {
            String::new()
        } else {
            format!(": {}", condition.message)
        };
        self.because(format!(
            "{of} {}={} ({}){message}",
            condition.type_, condition.status, condition.reason
        ))
    }

    pub(super) fn next(mut self, step: NextStep) -> Self {
        self.next = Some(step);
        self
    }

    pub(super) fn first(mut self, step: NextStep) -> Self {
        self.first = Some(step);
        self
    }
}
