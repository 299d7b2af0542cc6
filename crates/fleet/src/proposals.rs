//! Proposals: a promotion to a stage, as an edit in Git that people merge.
//!
//! 1. Each promotion is pushed once, to the hub's own branch. After that the branch belongs to people: it is not pushed
//!    again.
//! 2. The hub replaces a commit on the branch only if the hub made it, or if it is already merged. Any other commit is
//!    a person's work, and is reported.
//! 3. A commit is recorded before it is pushed, so a hub that is killed in between recognizes it as its own.

use farwater_api::pipeline::{PipelineStage, PullRequest, StageFailure};
use serde::{Deserialize, Serialize};

use crate::promotion::Promoted;

/// Commits remembered for a branch. One of them is on it; earlier ones may be, if the result of a push was never known.
const MOST_MADE: usize = 8;

/// The state of a promotion's proposal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Proposal {
    /// The promoted commit; `at`: when it was promoted.
    pub commit: String,
    pub at: i64,
    /// Name with the hub's prefix.
    pub branch: String,
    pub url: String,
    /// The commits that the hub made for the branch, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub made: Vec<String>,
    pub phase: Phase,
    /// Why it was not pushed. None: no problem is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// CamelCase, for programs.
    pub reason: String,
    pub message: String,
    /// A person has to change something.
    pub lasting: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    #[default]
    Open,
    Pushed,
    /// The target branch contains it.
    Merged,
}

impl Proposal {
    /// The proposal for a promotion. It keeps what is known of the branch.
    pub fn of(promoted: &Promoted, known: Option<&Self>, (url, branch): (&str, &str)) -> Self {
        let is_there = |known: &Self| known.branch == branch && known.url == url;
        match known {
            Some(known) if known.is_of(promoted) && (known.phase != Phase::Open || is_there(known)) => known.clone(),
            known => Self {
                commit: promoted.what.commit.clone(),
                at: promoted.at,
                branch: branch.to_owned(),
                url: url.to_owned(),
                // Commits of another branch are unknown here.
                made: known
                    .filter(|known| is_there(known))
                    .map(|known| known.made.clone())
                    .unwrap_or_default(),
                phase: Phase::Open,
                problem: None,
            },
        }
    }

    pub fn is_of(&self, promoted: &Promoted) -> bool {
        self.commit == promoted.what.commit && self.at == promoted.at
    }

    /// The commit that was pushed. None: none was.
    pub fn pushed(&self) -> Option<&str> {
        self.made
            .last()
            .map(String::as_str)
            .filter(|_| self.phase == Phase::Pushed)
    }

    /// Records a commit before it is pushed.
    pub fn note_made(&mut self, made: &str) {
        self.made.retain(|known| known != made);
        self.made.push(made.to_owned());
        let more = self.made.len().saturating_sub(MOST_MADE);
        self.made.drain(..more);
    }

    /// What may be done with a branch so that it points to `made`. `is_at`: the branch's commit; none: the branch does
    /// not exist. `is_merged`: that commit is part of the target branch.
    pub fn judge(&self, made: &str, is_at: Option<&str>, is_merged: bool) -> Way {
        match is_at {
            Some(is_at) if is_at == made => Way::Done,
            Some(is_at) if !is_merged && !self.made.iter().any(|known| known == is_at) => Way::Taken,
            _ => Way::Free,
        }
    }
}

/// Whether a branch may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Done,
    Free,
    /// It points to a person's commit.
    Taken,
}

/// What is invalid in a stage's pull request: field below the stage, and reason.
pub fn check(stage: &PipelineStage, is_first: bool) -> Option<(&'static str, &'static str)> {
    let PullRequest { path, branch, from, .. } = stage.pull_request.as_ref()?;
    let is_outside = |path: &str| path.starts_with('/') || path.split('/').any(|name| ["", ".", ".."].contains(&name));
    if is_first {
        return Some((
            "pullRequest",
            "the first stage follows its repository: nothing is promoted to it",
        ));
    }
    if stage.on_failure != StageFailure::Halt {
        return Some((
            "onFailure",
            "what people have merged is not taken back: they revert it in Git",
        ));
    }
    if is_outside(path) {
        return Some((
            "pullRequest.path",
            "say it from the root of the repository, without . and ..",
        ));
    }
    if from.as_ref().is_some_and(|from| is_outside(&from.path)) {
        return Some((
            "pullRequest.from.path",
            "say it from the root of the repository, without . and ..",
        ));
    }
    let is_bad_part = |part: &str| part.starts_with('.') || part.ends_with(".lock");
    let is_bad = |branch: &str| is_outside(branch) || branch.contains("..") || branch.split('/').any(is_bad_part);
    if branch.as_deref().is_some_and(is_bad) {
        return Some(("pullRequest.branch", "it is not a name that Git takes"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promotion::Promotable;

    fn promoted(commit: &str, at: i64) -> Promoted {
        Promoted {
            what: Promotable {
                commit: commit.to_owned(),
                ..Promotable::default()
            },
            at,
            by: Vec::new(),
            before: None,
            repository: String::new(),
        }
    }

    #[test]
    fn a_branch_is_moved_from_where_the_hub_left_it_and_from_nowhere_else() {
        let place = ("https://h/a", "farwater/promote/p/s");
        let mut first = Proposal::of(&promoted("c1", 1), None, place);
        assert_eq!(first.judge("m1", None, false), Way::Free);
        assert_eq!(first.judge("m1", Some("x"), false), Way::Taken);
        assert_eq!(
            first.judge("m1", Some("x"), true),
            Way::Free,
            "what is merged is lost by nobody"
        );
        first.note_made("m1");
        // The hub was killed before or after the push, and the target branch moved on.
        assert_eq!(first.judge("m1", Some("m1"), false), Way::Done);
        assert_eq!(first.judge("m2", Some("m1"), false), Way::Free);
        first.note_made("m2");
        first.problem = Some(Problem {
            reason: "X".to_owned(),
            message: "x".to_owned(),
            lasting: false,
        });
        first.phase = Phase::Pushed;
        assert_eq!(first.pushed(), Some("m2"));
        assert_eq!(Proposal::of(&promoted("c1", 1), Some(&first), place), first);

        let next = Proposal::of(&promoted("c2", 2), Some(&first), place);
        assert_eq!(
            (next.phase, next.pushed(), next.problem.clone()),
            (Phase::Open, None, None)
        );
        assert_eq!(next.judge("m3", Some("m2"), false), Way::Free);
        assert_eq!(next.judge("m3", Some("m2+"), false), Way::Taken);
        assert_eq!(
            Proposal::of(&promoted("c2", 2), Some(&next), ("https://h/a", "farwater/promote/x")).problem,
            None
        );
        let elsewhere = Proposal::of(
            &promoted("c2", 2),
            Some(&first),
            ("https://h/a", "farwater/promote/other"),
        );
        assert_eq!(elsewhere.judge("m3", Some("m2"), false), Way::Taken);
        for n in 0..20 {
            first.note_made(&n.to_string());
        }
        assert_eq!(
            (first.made.len(), first.made.last().unwrap().as_str()),
            (MOST_MADE, "19")
        );
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        fn field(change: impl Fn(&mut PipelineStage), is_first: bool) -> Option<&'static str> {
            let pull = PullRequest {
                path: "a/b.yaml".to_owned(),
                ..PullRequest::default()
            };
            let mut stage = PipelineStage {
                pull_request: Some(pull),
                ..PipelineStage::default()
            };
            change(&mut stage);
            check(&stage, is_first).map(|(field, _)| field)
        }
        let with = |edit: fn(&mut PullRequest)| field(|stage| edit(stage.pull_request.as_mut().unwrap()), false);
        assert_eq!(field(|_| {}, false), None);
        assert_eq!(field(|_| {}, true), Some("pullRequest"));
        assert_eq!(
            field(|stage| stage.on_failure = StageFailure::Rollback, false),
            Some("onFailure")
        );
        assert_eq!(with(|pull| pull.path = "../a".to_owned()), Some("pullRequest.path"));
        assert_eq!(with(|pull| pull.path = "/a".to_owned()), Some("pullRequest.path"));
        assert_eq!(
            with(|pull| pull.branch = Some("a..b".to_owned())),
            Some("pullRequest.branch")
        );
        assert_eq!(
            with(|pull| pull.branch = Some("a//b".to_owned())),
            Some("pullRequest.branch")
        );
    }
}
