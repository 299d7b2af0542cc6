//! Commit statuses at the Git host.

use serde::{Deserialize, Serialize};

use super::{Course, RolloutNews};
use crate::{
    conditions::cut,
    rollout::{ChangeId, Standing, Track},
};

/// Most bytes of a description: GitHub accepts 140 characters, GitLab and Gitea 255.
pub const MAX_DESCRIPTION: usize = 140;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommitState {
    Running,
    Succeeded,
    Failed,
    /// Another commit replaced it before it was through.
    Superseded,
}

/// The status of a commit under one context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitNews {
    pub commit: String,
    pub context: String,
    /// `namespace/name` of the ServiceSet.
    #[serde(default)]
    pub set: String,
    pub state: CommitState,
    pub description: String,
}

impl CommitNews {
    /// The status of a commit for the whole set.
    pub fn of_rollout(news: &RolloutNews, commit: &str, prefix: &str) -> Self {
        let state = match news.course {
            Course::Progressing | Course::Paused | Course::OnHold => CommitState::Running,
            Course::Complete => CommitState::Succeeded,
            Course::Halted | Course::RollingBack | Course::Aborted => CommitState::Failed,
            Course::Superseded => CommitState::Superseded,
        };
        let how = match news.course {
            Course::Progressing | Course::Complete => String::new(),
            Course::Halted => match &news.halted_by {
                Some(cluster) if news.cause.is_empty() => format!("; {cluster} failed"),
                Some(cluster) => format!("; {cluster}: {}", news.cause),
                None => format!("; {}", news.course),
            },
            other => format!("; {other}"),
        };
        Self {
            commit: commit.to_owned(),
            context: format!("{prefix}/{}/{}", news.namespace, news.set),
            set: format!("{}/{}", news.namespace, news.set),
            state,
            description: cut(&format!("{}{how}", news.progress()), MAX_DESCRIPTION),
        }
    }

    /// The same status after another commit replaced this one.
    pub fn superseded(self) -> Self {
        let description = cut(
            &format!("{}; {}", self.description, Course::Superseded),
            MAX_DESCRIPTION,
        );
        Self {
            state: CommitState::Superseded,
            description,
            ..self
        }
    }

    /// The status for one of the set's clusters.
    pub fn of_member(&self, cluster: &str, state: CommitState, standing: &Standing) -> Self {
        let description = match state {
            CommitState::Succeeded => "healthy".to_owned(),
            _ => cut(&standing.to_string(), MAX_DESCRIPTION),
        };
        let context = format!("{}/{cluster}", self.context);
        Self {
            commit: self.commit.clone(),
            context,
            set: self.set.clone(),
            state,
            description,
        }
    }
}

/// The state of a commit's status for one cluster. None: the commit has not reached the cluster.
pub fn member_state(track: &Track, wanted: Option<ChangeId>) -> Option<CommitState> {
    let wanted = wanted?;
    match track {
        _ if track.refused == Some(wanted) => Some(CommitState::Failed),
        _ if track.released != Some(wanted) => None,
        Track { is_done: true, .. } => Some(CommitState::Succeeded),
        _ => Some(CommitState::Running),
    }
}
