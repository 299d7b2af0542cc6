//! ask_gates: gates that ask external systems → their answers, in the pipeline's row.
//!
//! Nothing is locked during the request. The answer is saved only if the pipeline still asks exactly this question, and
//! replaces exactly the row that this was read from. So a late answer never overwrites newer decisions.

use std::{sync::Arc, time::Duration};

use farwater_api::Pipeline;
use farwater_fleet::promotion::answers::{Question, Said};
use farwater_store::StoreError;

use super::{
    advance_promotions::{ExamineError, Examined},
    gates,
};
use crate::{memory::pipelines::AskingGate, queue::Next, replica::Replica, resources};

/// How often an answer is saved again when another writer was faster.
const ATTEMPTS: usize = 8;
/// Wait before the question is asked again if its answer could not be saved.
const SOON: Duration = Duration::from_secs(1);

pub async fn ask_gate(replica: Arc<Replica>, asking: AskingGate) -> Result<Next, StoreError> {
    let Some((examined, question)) = find(&replica, &asking).await? else {
        return Ok(Next::OnChange);
    };
    let of = (&asking.pipeline, asking.stage.as_str());
    let heard = gates::ask(&replica, of, &examined.gates[question.stage], &question).await?;
    if heard.said == Said::Error {
        tracing::warn!(pipeline = %asking.pipeline, stage = asking.stage, gate = %asking.gate, error = heard.message, "a gate got no answer");
    }
    for _ in 0..ATTEMPTS {
        let Some((examined, now)) = find(&replica, &asking).await? else {
            return Ok(Next::OnChange);
        };
        if now.of != question.of {
            break;
        }
        let answer = now.answer(&examined.gates[now.stage], &heard, replica.clock.now().as_second());
        let Some(answer) = answer else {
            return Ok(Next::OnChange);
        };
        if examined.note_answer(&replica, &asking, answer).await? {
            replica.memory.pipelines.queue.add(asking.pipeline);
            return Ok(Next::OnChange);
        }
    }
    Ok(Next::After(SOON))
}

/// Returns the question of a gate as it is now, with the pipeline's state. None: there is none.
async fn find(replica: &Replica, asking: &AskingGate) -> Result<Option<(Examined, Question)>, StoreError> {
    let Some(found) = resources::load::<Pipeline>(&replica.store, &asking.pipeline).await? else {
        return Ok(None);
    };
    if found.1.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let examined = match Examined::load(replica, &asking.pipeline, found).await {
        Ok(examined) => examined,
        Err(ExamineError::Store(error)) => return Err(error),
        // The pipeline's status says so.
        Err(ExamineError::Invalid(_)) => return Ok(None),
    };
    let question = examined.decide(replica).questions.into_iter().find(|question| {
        question.gate == asking.gate && examined.pipeline.spec.stages[question.stage].name == asking.stage
    });
    Ok(question.map(|question| (examined, question)))
}
