//! Approvals and promotions by people.

use farwater_api::{Pipeline, pipeline::ApprovalRequest};
use farwater_fleet::{conditions::cut, promotion::Approval};
use farwater_store::StoreError;

use super::{
    ATTEMPTS, LONGEST_NAME, LONGEST_REASON,
    examine::{ExamineError, Examined},
};
use crate::{
    replica::Replica,
    resources::{self, Name},
};

/// Why an approval is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("there is no such pipeline")]
    Missing,
    #[error("{0}")]
    NoStage(String),
    /// Only other people may approve.
    #[error("{0}")]
    NotAsked(String),
    #[error("{0}")]
    Conflict(String),
}

/// Saves a person's approval of exactly the pending candidate, and returns its commit. `by`: the person; `groups`: the
/// person's groups.
pub async fn approve(
    replica: &Replica,
    name: &Name,
    request: &ApprovalRequest,
    (by, groups): (&str, &[String]),
) -> Result<String, Refusal> {
    // The pipeline's controller may write the row meanwhile.
    for _ in 0..ATTEMPTS {
        let found = resources::load::<Pipeline>(&replica.store, name)
            .await?
            .ok_or(Refusal::Missing)?;
        let examined = Examined::load(replica, name, found)
            .await
            .map_err(|error| match error {
                ExamineError::Store(error) => Refusal::Store(error),
                ExamineError::Invalid(why) => Refusal::Conflict(why),
            })?;
        let commit = examined.check_word(replica, request, groups)?;
        let approval = Approval {
            by: cut(by, LONGEST_NAME),
            at: replica.memory.windows.now().as_second(),
            digest: request.digest,
            reason: cut(&request.reason, LONGEST_REASON),
        };
        if examined.note(replica, &request.stage, approval).await? {
            replica.memory.pipelines.queue.add(name.clone());
            return Ok(commit);
        }
    }
    Err(Refusal::Conflict("it keeps changing; try again".to_owned()))
}

impl Examined {
    /// Returns the commit that the approval is for.
    fn check_word(&self, replica: &Replica, request: &ApprovalRequest, groups: &[String]) -> Result<String, Refusal> {
        let (stage, stages) = (&request.stage, &self.pipeline.spec.stages);
        let Some(index) = stages.iter().position(|known| known.name == *stage) else {
            let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
            return Err(Refusal::NoStage(format!(
                "spec.stage: there is no stage {stage:?}; there are {}",
                names.join(", ")
            )));
        };
        let Some(approving) = &self.gates[index].approval else {
            return Err(Refusal::Conflict(format!(
                "stage {stage} has no gate that asks for approval"
            )));
        };

        if !approving.groups.is_empty() && !groups.iter().any(|group| approving.groups.contains(group)) {
            let of = approving.groups.join(", ");
            return Err(Refusal::NotAsked(format!(
                "only members of {of} approve what gets to stage {stage}"
            )));
        }

        let decision = self.decide(replica);
        let waiting = decision.candidates[index]
            .as_ref()
            .and_then(|one| Some((one.digest?, one.what.commit.clone())));
        match waiting {
            None => Err(Refusal::Conflict(format!(
                "nothing waits to be approved for stage {stage}"
            ))),
            Some((digest, _)) if digest != request.digest => {
                let why = format!("the candidate for stage {stage} has changed: review it again");
                Err(Refusal::Conflict(why))
            }
            Some((_, commit)) => Ok(commit),
        }
    }
}
