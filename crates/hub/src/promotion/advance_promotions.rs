//! advance_promotions: stages that are healthy and gates that hold → the commit that the next stage's repository
//! serves.
//!
//! Only the pipeline's row says what was promoted, and `fetch_sources` reads it there: a repository that follows a
//! pipeline gets commits in no other way. A decision replaces exactly the row that it was made from, and only while the
//! pipeline's spec is the one that was read.

mod approve;
mod examine;

use std::{sync::Arc, time::Duration};

use farwater_api::{
    Pipeline, PipelineStatus,
    pipeline::{GateStatus, PipelineStage, PromotionApproval, PromotionCandidate, PullRequestStatus, StageStatus},
};
use farwater_fleet::{
    conditions::{self, Verdict, cut},
    promotion::{self, Decision, Promotable, StageState},
};
use farwater_store::{
    Resource, StoreError,
    delivery::{delete_orphaned_pipelines, load_pipeline},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::propose_promotions;
use crate::{
    memory::pipelines::AskingGate,
    notify::events::EventText,
    queue::Next,
    replica::Replica,
    resources::{self, Name, Stored as _},
    sources::git,
};

pub use approve::{Refusal, approve};
use examine::Seen;
pub use examine::{ExamineError, Examined, read_state};

const NOT_LOADED: Duration = Duration::from_millis(200);

const SOON: Duration = Duration::from_millis(500);

/// Requeue early enough for clocks that are set and clusters that poll without any write.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Maximum bytes of what a stage lacks.
const MAX_LACK: usize = 512;

/// Maximum lengths in a status, in bytes.
pub(super) const LONGEST_NAME: usize = 128;

pub(super) const LONGEST_REASON: usize = 512;

/// How often an approval is retried when another writer was faster.
pub(super) const ATTEMPTS: usize = 8;

/// Returns what a repository that follows a pipeline serves, or why there is nothing, in one sentence.
pub async fn find_promoted(
    replica: &Replica,
    repository: &Name,
    pipeline: &str,
) -> Result<Result<Promotable, String>, StoreError> {
    let name = Name::new(&repository.namespace, pipeline);
    let Some((resource, found)) = resources::load::<Pipeline>(&replica.store, &name).await? else {
        return Ok(Err(format!("Pipeline {pipeline} does not exist")));
    };
    let stages = found.spec.stages.iter().skip(1);
    let Some(stage) = stages
        .into_iter()
        .find(|stage| stage.source_ref.name == repository.name)
    else {
        return Ok(Err(format!(
            "Pipeline {pipeline} has no stage after its first with this repository"
        )));
    };
    if stage.pull_request.is_some() {
        return Ok(Err(format!(
            "what Pipeline {pipeline} promotes to stage {} is merged by people",
            stage.name
        )));
    }
    let written = load_pipeline(&mut *replica.store.tables().await?, &resource.uid).await?;
    let state = read_state(&name, written.as_deref())?;
    let promoted = state.stages.get(&stage.name).and_then(|state| state.promoted.as_ref());
    Ok(
        match promoted.filter(|promoted| promoted.repository == repository.name) {
            Some(promoted) => Ok(promoted.what.clone()),
            None => Err(format!(
                "Pipeline {pipeline} has promoted nothing to stage {} yet",
                stage.name
            )),
        },
    )
}

pub async fn advance_promotions(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    // Before clusters are loaded, an unknown cluster may well exist.
    if !replica.memory.clusters.is_loaded() {
        return Ok(Next::After(NOT_LOADED));
    }
    let Some((resource, pipeline)) = resources::load::<Pipeline>(&replica.store, &name).await? else {
        return forget_pipeline(&replica, &name).await;
    };
    replica.memory.pipelines.know(&name, &pipeline.spec);
    if pipeline.metadata.deletion_timestamp.is_some() {
        return Ok(Next::OnChange);
    }

    let status = pipeline.status.as_ref();
    let is_news = status.and_then(|status| status.observed_generation) != pipeline.metadata.generation;
    let examined = match Examined::load(&replica, &name, (resource.clone(), pipeline.clone())).await {
        Ok(examined) => examined,
        Err(ExamineError::Store(error)) => return Err(error),
        Err(ExamineError::Invalid(why)) => {
            let stages = status.map(|status| status.stages.clone()).unwrap_or_default();
            let verdicts = Verdict::stalled("SpecInvalid", why);
            write_status(&replica, &name, (&resource, &pipeline), (verdicts, stages)).await?;
            return Ok(Next::OnChange);
        }
    };

    let decision = examined.decide(&replica);
    let told = examined.tell(&decision);
    if !examined.save(&replica, &decision.state, told).await? {
        return Ok(Next::After(SOON));
    }
    examined.hand_over(&replica, &name, &decision, is_news);
    for question in &decision.questions {
        replica.memory.pipelines.asking.add(AskingGate {
            pipeline: name.clone(),
            stage: pipeline.spec.stages[question.stage].name.clone(),
            gate: question.gate,
        });
    }

    let (verdicts, stages) = (examined.judge(&decision), examined.describe(&decision));
    write_status(&replica, &name, (&resource, &pipeline), (verdicts, stages)).await?;
    let Some(time) = decision.next_look else {
        return Ok(Next::OnChange);
    };
    let left = time.saturating_sub(replica.clock.now().as_second()).max(0);
    let rest = Duration::from_secs(left.unsigned_abs());
    Ok(Next::After(rest.clamp(SOON, LONGEST_REST)))
}

/// Deletes the rows of pipelines that no longer exist.
async fn forget_pipeline(replica: &Replica, name: &Name) -> Result<Next, StoreError> {
    replica.memory.pipelines.forget(name);
    let kind = Pipeline::kind();
    let cleaned = replica
        .store
        .transact(move |tx| Box::pin(async move { delete_orphaned_pipelines(tx, kind.as_str()).await }));
    cleaned.await?;
    Ok(Next::OnChange)
}

impl Examined {
    pub(super) fn tell(&self, decision: &Decision) -> Vec<EventText> {
        let told = |index: &usize, is_warning, reason: &'static str, what: &str| {
            let PipelineStage {
                name: stage,
                pull_request,
                ..
            } = &self.pipeline.spec.stages[*index];
            let what = if pull_request.is_some() {
                "is to get, by what people merge,"
            } else {
                what
            };
            let promoted = decision
                .state
                .promoted(stage)
                .map(describe_promotable)
                .unwrap_or_default();
            EventText {
                is_warning,
                reason: reason.into(),
                message: format!("stage {stage} {what} {promoted}"),
            }
        };
        let promoted = decision
            .promoted
            .iter()
            .map(|index| told(index, false, "Promoted", "gets"));
        let back = decision
            .rolled_back
            .iter()
            .map(|index| told(index, true, "RolledBack", "failed and goes back to"));
        promoted.chain(back).collect()
    }

    /// Requeues the repositories that do not serve yet what was promoted to them.
    fn hand_over(&self, replica: &Replica, name: &Name, decision: &Decision, is_news: bool) {
        for (stage, seen) in self.pipeline.spec.stages.iter().zip(&self.seen).skip(1) {
            if stage.pull_request.is_some() {
                let state = decision.state.stages.get(&stage.name);
                if state.is_some_and(|state| propose_promotions::is_open(stage, state)) {
                    replica.memory.pipelines.proposals.add(name.clone());
                }
                continue;
            }
            let promoted = decision.state.promoted(&stage.name);
            let Some(uid) = &seen.repository_uid else { continue };
            if (promoted.is_some() && promoted != seen.serves.as_ref()) || is_news {
                // Fetch at once only for the first time. After a failure the source retries on its own schedule,
                // however often the pipeline is reconciled.
                if let Some(promoted) = promoted
                    && (replica.memory.pipelines.is_first_hurry(uid, promoted) || is_news)
                {
                    replica.memory.checks.hurry(uid);
                }
                replica.wake_after_promotion(Name::new(&name.namespace, &stage.source_ref.name));
            }
        }
    }

    fn describe(&self, decision: &Decision) -> Vec<StageStatus> {
        let default = StageState::default();
        let stages = self
            .pipeline
            .spec
            .stages
            .iter()
            .zip(&self.seen)
            .zip(&decision.candidates);
        stages
            .map(|((stage, seen), candidate)| {
                let state = decision.state.stages.get(&stage.name).unwrap_or(&default);
                let promoted = state.promoted.as_ref();
                StageStatus {
                    name: stage.name.clone(),
                    revision: seen
                        .serves
                        .as_ref()
                        .map(|what| git::format_revision(&seen.reference, &what.commit)),
                    configuration: seen
                        .serves
                        .as_ref()
                        .map(|what| what.configuration.clone())
                        .unwrap_or_default(),
                    healthy_since: state.well.as_ref().and_then(|well| time(well.since)),
                    lacks: seen
                        .content
                        .as_ref()
                        .err()
                        .or(seen.lacks.as_ref())
                        .map(|text| cut(text, MAX_LACK)),
                    promoted_at: promoted.and_then(|promoted| time(promoted.at)),
                    approved_by: promoted.map(|promoted| promoted.by.clone()).unwrap_or_default(),
                    refused: state.refused.as_ref().map(describe_promotable),
                    candidate: candidate.as_ref().map(|candidate| describe_candidate(candidate, state)),
                    pull_request: propose_promotions::describe(&self.resource.key.name, stage, state, seen.commit()),
                }
            })
            .collect()
    }

    pub(super) fn judge(&self, decision: &Decision) -> Vec<Verdict> {
        self.judge_stages()
            .or_else(|| self.judge_pushes(decision))
            .or_else(|| self.judge_promotions(decision))
            .or_else(|| self.judge_gates(decision))
            .or_else(|| self.judge_proposals(decision))
            .unwrap_or_else(|| Verdict::ready("Settled", "nothing waits to be promoted"))
    }

    fn looked_at(&self) -> impl Iterator<Item = (&PipelineStage, &Seen)> {
        self.pipeline.spec.stages.iter().zip(&self.seen)
    }

    /// A stage that is wrongly stated, or that stopped at the promoted revision.
    fn judge_stages(&self) -> Option<Vec<Verdict>> {
        let invalid = |(stage, seen): (&PipelineStage, &Seen)| {
            let why = seen.content.as_ref().err()?;
            Some(format!("stage {}: {why}", stage.name))
        };
        if let Some(message) = self.looked_at().find_map(invalid) {
            return Some(Verdict::stalled("StageInvalid", message));
        }
        let (stage, _) = self.looked_at().skip(1).find(|(_, seen)| seen.failed)?;
        let message = format!("stage {} stopped at the promoted revision", stage.name);
        Some(Verdict::stalled("StageFailed", message))
    }

    /// A proposal that can't be pushed.
    fn judge_pushes(&self, decision: &Decision) -> Option<Vec<Verdict>> {
        self.looked_at().find_map(|(stage, seen)| {
            let (state, proposed) = self.proposed(decision, stage, seen)?;
            let problem = state.proposed()?.problem.as_ref()?;
            let message = format!("the proposal on branch {}: {}", proposed.branch, problem.message);
            Some(match problem.lasting {
                true => Verdict::stalled("PushFailed", message),
                false => Verdict::reconciling("PushFailed", message),
            })
        })
    }

    /// A stage that does not have the promoted revision yet.
    fn judge_promotions(&self, decision: &Decision) -> Option<Vec<Verdict>> {
        let under_way = |(stage, seen): &(&PipelineStage, &Seen)| {
            let Some(state) = decision.state.stages.get(&stage.name) else {
                return false;
            };
            let promoted = decision.state.promoted(&stage.name);
            let is_late = match stage.pull_request {
                // People merge it when they like.
                Some(_) if propose_promotions::is_open(stage, state) => return false,
                Some(_) => false,
                None => promoted != seen.serves.as_ref(),
            };
            promoted.is_some() && (is_late || seen.lacks.is_some())
        };
        let (stage, _) = self.looked_at().find(under_way)?;
        let message = format!("stage {} gets the promoted revision", stage.name);
        Some(Verdict::reconciling("Promoting", message))
    }

    /// A candidate that a gate holds.
    fn judge_gates(&self, decision: &Decision) -> Option<Vec<Verdict>> {
        let mut stages = self.pipeline.spec.stages.iter().zip(&decision.candidates);
        stages.find_map(|(stage, candidate)| {
            let gates = &candidate.as_ref()?.gates;
            if let Some(held) = gates.iter().find(|held| held.failed) {
                let (gate, why) = (held.gate, &held.message);
                let message = format!("stage {} does not get the next commit: {gate}: {why}", stage.name);
                return Some(Verdict::ready("GateFailed", message));
            }
            let held = gates.iter().find(|held| !held.holds)?;
            let message = format!("stage {} waits for {}: {}", stage.name, held.gate, held.message);
            Some(Verdict::ready("Waiting", message))
        })
    }

    /// A promotion that people have to merge.
    fn judge_proposals(&self, decision: &Decision) -> Option<Vec<Verdict>> {
        let (_, proposed) = self
            .looked_at()
            .find_map(|(stage, seen)| self.proposed(decision, stage, seen))?;
        let (branch, url) = (proposed.branch, proposed.url);
        Some(match proposed.commit {
            Some(_) => Verdict::ready("Proposed", format!("branch {branch} of {url} waits to be merged")),
            None => Verdict::reconciling("Proposing", format!("branch {branch} of {url} is pushed")),
        })
    }

    fn proposed<'d>(
        &self,
        decision: &'d Decision,
        stage: &PipelineStage,
        seen: &Seen,
    ) -> Option<(&'d StageState, PullRequestStatus)> {
        let state = decision.state.stages.get(&stage.name)?;
        let proposed = propose_promotions::describe(&self.resource.key.name, stage, state, seen.commit())?;
        Some((state, proposed))
    }
}

fn describe_candidate(candidate: &promotion::Candidate, state: &StageState) -> PromotionCandidate {
    let approvals = state
        .approvals
        .iter()
        .filter(|approval| Some(approval.digest) == candidate.digest);
    let gates = candidate.gates.iter().map(|held| GateStatus {
        r#type: held.gate,
        holds: held.holds,
        failed: held.failed,
        message: cut(&held.message, MAX_LACK),
    });
    PromotionCandidate {
        revision: git::format_revision("", &candidate.what.commit),
        configuration: candidate.what.configuration.clone(),
        digest: candidate.digest,
        gates: gates.collect(),
        approvals: approvals
            .filter_map(|approval| {
                Some(PromotionApproval {
                    by: approval.by.clone(),
                    at: time(approval.at)?,
                    reason: approval.reason.clone(),
                })
            })
            .collect(),
    }
}

/// `sha1:… with imageTag=1.2.3`
fn describe_promotable(what: &Promotable) -> String {
    let texts: Vec<String> = what
        .configuration
        .iter()
        .map(|(name, text)| format!("{name}={text}"))
        .collect();
    let with = if texts.is_empty() {
        String::new()
    } else {
        format!(" with {}", texts.join(", "))
    };
    cut(&format!("{}{with}", git::format_revision("", &what.commit)), MAX_LACK)
}

fn time(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}

async fn write_status(
    replica: &Replica,
    name: &Name,
    (resource, pipeline): (&Resource, &Pipeline),
    (verdicts, stages): (Vec<Verdict>, Vec<StageStatus>),
) -> Result<(), StoreError> {
    let previous = pipeline.status.clone().unwrap_or_default();
    let generation = pipeline.metadata.generation.unwrap_or_default();
    let conditions = conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now());
    let status = PipelineStatus {
        observed_generation: Some(generation),
        conditions,
        stages,
    };
    resources::write_status::<Pipeline>(&replica.store, name, &resource.uid, &status).await
}
