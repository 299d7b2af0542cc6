//! Requests for plans: the hub asks an agent what it would do, and the agent says it and does nothing.

use serde::{Deserialize, Serialize};

use super::{Entry, Verbatim};
use crate::{Digest, plan::ServicePlan};

/// Header of an answer to a poll: somebody waits for a plan, to be had at [`PLANS_PATH`].
pub const PLAN_HEADER: &str = "farwater-plan";
/// `GET`: the oldest [`PlanRequest`] that waits, or 204. `POST` to `…/<id>`: the [`PlanReport`].
pub const PLANS_PATH: &str = "/agent/v1/plans";

/// What an agent shall plan. Its bundle and its Secrets are to be had as those of a desired state, as long as the request is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    pub statement: Verbatim<PlanStatement>,
    /// Ed25519 over [`PlanStatement::PREFIX`] and the statement's canonical JSON, base64.
    pub signature: String,
    pub entry: Verbatim<Entry>,
}

/// What is signed: the entry says as which account the agent reads and asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatement {
    pub installation: String,
    pub cluster_uid: String,
    /// 32 hex digits.
    pub id: String,
    /// Digest of the entry.
    pub entry: Digest,
    pub key_id: String,
}

impl PlanStatement {
    /// Keeps its signatures from being those of a desired state.
    pub const PREFIX: &[u8] = b"farwater-plan-v1\n";
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanReport {
    #[serde(rename = "plan")]
    Planned(Box<ServicePlan>),
    /// Why there is no plan, for people.
    #[serde(rename = "problem")]
    Failed(String),
}
