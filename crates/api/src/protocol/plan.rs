//! Requests for plans: the agent reports what it would do for a service, and changes nothing.

use serde::{Deserialize, Serialize};

use super::{Entry, Verbatim};
use crate::{Digest, plan::ServicePlan};

/// Header of an answer to a poll: a request for a plan waits at [`PLANS_PATH`].
pub const PLAN_HEADER: &str = "farwater-plan";
/// `GET`: the oldest waiting [`PlanRequest`], or 204. `POST` to `…/<id>`: the [`PlanReport`].
pub const PLANS_PATH: &str = "/agent/v1/plans";

/// Request for a plan. While it is open, its bundle and Secrets can be fetched like those of a desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    pub statement: Verbatim<PlanStatement>,
    /// Ed25519 over [`PlanStatement::PREFIX`] and the statement's canonical JSON, base64.
    pub signature: String,
    pub entry: Verbatim<Entry>,
}

/// The signed statement. Its entry names the account with which the agent reads and runs dry runs.
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
    /// Prefix that keeps its signatures distinct from those of a desired state.
    pub const PREFIX: &[u8] = b"farwater-plan-v1\n";
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanReport {
    #[serde(rename = "plan")]
    Planned(Box<ServicePlan>),
    /// Why there is no plan, for people.
    #[serde(rename = "problem")]
    Failed(String),
}
