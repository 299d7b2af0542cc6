//! The state that is remembered of a pipeline, by the names of its stages.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{Digest, pipeline::GateType};
use serde::{Deserialize, Serialize};

use crate::{promotion::answers::Answer, proposals::Proposal};

/// Most approvals kept of one candidate: more than any quorum can require.
const MOST_APPROVALS: usize = 64;

/// The remembered state of a pipeline, by the names of its stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    pub stages: BTreeMap<String, StageState>,
}

impl State {
    /// The commit that a stage's repository is to serve.
    pub fn promoted(&self, stage: &str) -> Option<&Promotable> {
        Some(&self.stages.get(stage)?.promoted.as_ref()?.what)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StageState {
    /// The last commit that all of the stage was well at. A rollback returns to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub good: Option<Promotable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub well: Option<Well>,
    /// Proven in the previous stage, by the observations since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Well>,
    /// Digest of what had to be proven for the candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<Digest>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// Answers to gates that ask outside services.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub answers: BTreeMap<GateType, Answer>,
    /// Tests of the candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tested: Option<Tests>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promoted: Option<Promoted>,
    /// The commit that it failed at and was rolled back from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Promotable>,
    /// Status of the promotion's pull request, where people merge it. Written by `propose_promotions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposal: Option<Proposal>,
}

impl StageState {
    /// The proposal for the last promotion. None: there is none.
    pub fn proposed(&self) -> Option<&Proposal> {
        let promoted = self.promoted.as_ref()?;
        self.proposal.as_ref().filter(|proposal| proposal.is_of(promoted))
    }
}

/// A commit with its texts: what moves from stage to stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Promotable {
    pub commit: String,
    /// Texts that belong to the commit, by their names in `configuration`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
}

/// Since when all of a stage is healthy at a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Well {
    #[serde(flatten)]
    pub what: Promotable,
    /// Seconds since 1970.
    pub since: i64,
}

/// Tests of a stage. If all of the stage is healthy, they have passed: an agent reports no service healthy before its
/// tests have run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tests {
    /// Tests that services, or a whole set, state.
    pub names: BTreeSet<String>,
    /// Name of the first service or set that states none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without: Option<String>,
}

impl Tests {
    /// Adds the tests of one more service or set. `what` gives its name for people.
    pub fn add(&mut self, what: impl FnOnce() -> String, names: BTreeSet<String>) {
        if names.is_empty() && self.without.is_none() {
            self.without = Some(what());
        }
        self.names.extend(names);
    }
}

/// One person's approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    pub by: String,
    /// Seconds since 1970.
    pub at: i64,
    pub digest: Digest,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Promoted {
    #[serde(flatten)]
    pub what: Promotable,
    /// Seconds since 1970.
    pub at: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<String>,
    /// The commit that the stage was at before, for a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Promotable>,
    /// Name of the GitRepository that is to serve it. No other may.
    pub repository: String,
}

impl StageState {
    /// Adds a person's approval, in place of their earlier one.
    pub fn approve(&mut self, approval: Approval) {
        self.approvals.retain(|known| known.by != approval.by);
        self.approvals.push(approval);
        let more = self.approvals.len().saturating_sub(MOST_APPROVALS);
        self.approvals.drain(..more);
    }
}
