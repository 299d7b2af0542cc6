//! advance_promotions: stages that are healthy and gates that hold → the commit that the next stage's repository
//! serves.
//!
//! Only the pipeline's row says what was promoted, and `fetch_sources` reads it there: a repository that follows a
//! pipeline gets commits in no other way. A decision replaces exactly the row that it was made from, and only while the
//! pipeline's spec is the one that was read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use farwater_api::{
    GitRepository, Pipeline, PipelineStatus, ServiceDeployment, ServiceDeploymentSpec, ServiceSet, SourceKind,
    git_repository::GitReference,
    pipeline::{ApprovalRequest, GateStatus, PipelineStage, PromotionApproval, PromotionCandidate, StageStatus},
    requested_at,
};
use farwater_fleet::{
    conditions::{self, Verdict, cut},
    promotion::{
        self, Approval, Decision, Gates, Promotable, Stage, StageState, State, Tests,
        answers::{Answer, Said},
        decide, read_gates, texts, unknown_gate_field,
    },
    stamping::Template,
};
use farwater_store::{
    Resource, StoreError,
    delivery::{Revision, delete_orphaned_pipelines, load_assignment, load_pipeline, load_revision, save_pipeline},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{
    dependencies,
    events::{self, Told},
    git,
    pipelines::AskingGate,
    propose_promotions,
    queue::Next,
    resources::{self, Name, Stored as _},
    rollouts::{self, Whole},
    sources::SourceName,
};
use crate::{apiserver::check_template, delivery::Delivery};

const NOT_LOADED: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_millis(500);
/// Requeue early enough for clocks that are set and clusters that poll without any write.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// Maximum bytes of what a stage lacks.
const MAX_LACK: usize = 512;
/// Maximum lengths in a status, in bytes.
const LONGEST_NAME: usize = 128;
const LONGEST_REASON: usize = 512;
/// How often an approval is retried when another writer was faster.
const ATTEMPTS: usize = 8;

/// A pipeline with all that its decision depends on.
pub(super) struct Examined {
    resource: Resource,
    pub(super) pipeline: Pipeline,
    pub(super) gates: Vec<Gates>,
    seen: Vec<Seen>,
    state: State,
    /// The row that it was read from; None: there is none yet.
    written: Option<String>,
}

/// Observed state of a stage.
struct Seen {
    repository_uid: Option<String>,
    /// Whether its repository follows what it should. A repository that is gone counts as following.
    follows: bool,
    serves: Option<Promotable>,
    reference: String,
    lacks: Option<String>,
    since: i64,
    heard: i64,
    failed: bool,
    content: Result<Value, String>,
    tests: Tests,
    /// Texts that the sets and services of the first stage state.
    stated: Vec<texts::Stated>,
}

/// Why a pipeline can't be decided.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExamineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Invalid(String),
}

impl Examined {
    pub(super) async fn load(
        delivery: &Delivery,
        name: &Name,
        (resource, pipeline): (Resource, Pipeline),
    ) -> Result<Self, ExamineError> {
        if let Some(field) = unknown_gate_field(&resource.object["spec"]) {
            let why = format!("a gate has a field {field} that this hub does not know: nothing is promoted");
            return Err(ExamineError::Invalid(why));
        }
        let gates = read_gates(&pipeline.spec).map_err(|problems| {
            let told: Vec<String> = problems.iter().map(|one| format!("spec.{}: {}", one.field, one.why)).collect();
            ExamineError::Invalid(told.join("; "))
        })?;
        // Read the row first. If another decision is saved meanwhile, this one then replaces nothing.
        let written = load_pipeline(&mut *delivery.store.tables().await?, &resource.uid).await?;
        let state = read_state(name, written.as_deref())?;
        let mut seen = Vec::new();
        for (index, stage) in pipeline.spec.stages.iter().enumerate() {
            seen.push(look_at_stage(delivery, name, (index, stage), pipeline.spec.promotes()).await?);
        }
        Ok(Self { resource, pipeline, gates, seen, state, written })
    }

    fn stages(&self) -> Vec<Stage<'_>> {
        let stages = self.pipeline.spec.stages.iter().zip(&self.gates).zip(&self.seen);
        stages
            .map(|((stage, gates), seen)| Stage {
                name: &stage.name,
                gates,
                on_failure: stage.on_failure,
                repository: &stage.source_ref.name,
                promotes: self.pipeline.spec.promotes(),
                follows: seen.follows,
                serves: seen.serves.as_ref(),
                lacks: seen.lacks.as_deref(),
                since: seen.since,
                heard: seen.heard,
                failed: seen.failed,
                content: seen.content.as_ref().map_err(String::as_str),
                tests: &seen.tests,
                request: requested_at(&self.pipeline.metadata),
            })
            .collect()
    }

    pub(super) fn decide(&self, delivery: &Delivery) -> Decision {
        let times = (delivery.clock.now().as_second(), delivery.windows.now());
        decide(&self.resource.uid, &self.stages(), &self.state, times)
    }

    /// Replaces the row that this was read from. False: the row or the spec has changed since.
    async fn save(&self, delivery: &Delivery, state: &State, told: Vec<Told>) -> Result<bool, StoreError> {
        let text = serde_json::to_string(state).map_err(StoreError::abort)?;
        if self.written.as_ref() == Some(&text) {
            return Ok(true);
        }
        let (resource, written) = (self.resource.clone(), self.written.clone());
        let saved = delivery.store.transact(move |tx| {
            Box::pin(async move {
                let now = tx.get(&resource.key).await?;
                let generation = |object: &Value| object["metadata"]["generation"].clone();
                let is_same = now.as_ref().is_some_and(|now| {
                    now.uid == resource.uid && generation(&now.object) == generation(&resource.object)
                });
                if !is_same || !save_pipeline(tx, &resource.uid, (written.as_deref(), &text)).await? {
                    return Ok(false);
                }
                for told in &told {
                    events::tell(tx, &resource, told).await?;
                }
                Ok(true)
            })
        });
        saved.await
    }

    /// Saves a person's approval of a stage's candidate. False: the row or the spec has changed since it was read.
    async fn note(mut self, delivery: &Delivery, stage: &str, approval: Approval) -> Result<bool, StoreError> {
        let told = Told {
            is_warning: false,
            reason: "Approved".into(),
            message: format!("{} approves the promotion to stage {stage}: {}", approval.by, approval.reason),
        };
        self.state.stages.entry(stage.to_owned()).or_default().approve(approval);
        let state = std::mem::take(&mut self.state);
        self.save(delivery, &state, vec![told]).await
    }

    /// Saves a gate's answer. False: the row or the spec has changed since it was read.
    pub(super) async fn note_answer(
        mut self,
        delivery: &Delivery,
        AskingGate { stage, gate, .. }: &AskingGate,
        answer: Answer,
    ) -> Result<bool, StoreError> {
        let told = (answer.said == Said::Fail).then(|| Told {
            is_warning: true,
            reason: "GateFailed".into(),
            message: format!("{gate} lets nothing to stage {stage}: {}", answer.message),
        });
        self.state.stages.entry(stage.clone()).or_default().answers.insert(*gate, answer);
        let state = std::mem::take(&mut self.state);
        self.save(delivery, &state, told.into_iter().collect()).await
    }
}

pub(super) fn read_state(name: &Name, text: Option<&str>) -> Result<State, StoreError> {
    let parsed = text.map(serde_json::from_str).transpose();
    parsed
        .map(Option::unwrap_or_default)
        .map_err(|error| StoreError::Row { what: format!("state of Pipeline {name}"), problem: error.to_string() })
}

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
    delivery: &Delivery,
    name: &Name,
    request: &ApprovalRequest,
    (by, groups): (&str, &[String]),
) -> Result<String, Refusal> {
    // The pipeline's controller may write the row meanwhile.
    for _ in 0..ATTEMPTS {
        let found = resources::load::<Pipeline>(&delivery.store, name).await?.ok_or(Refusal::Missing)?;
        let examined = Examined::load(delivery, name, found).await.map_err(|error| match error {
            ExamineError::Store(error) => Refusal::Store(error),
            ExamineError::Invalid(why) => Refusal::Conflict(why),
        })?;
        let commit = examined.check_word(delivery, request, groups)?;
        let approval = Approval {
            by: cut(by, LONGEST_NAME),
            at: delivery.windows.now().as_second(),
            digest: request.digest,
            reason: cut(&request.reason, LONGEST_REASON),
        };
        if examined.note(delivery, &request.stage, approval).await? {
            delivery.pipelines.queue.add(name.clone());
            return Ok(commit);
        }
    }
    Err(Refusal::Conflict("it keeps changing; try again".to_owned()))
}

impl Examined {
    /// Returns the commit that the approval is for.
    fn check_word(&self, delivery: &Delivery, request: &ApprovalRequest, groups: &[String]) -> Result<String, Refusal> {
        let (stage, stages) = (&request.stage, &self.pipeline.spec.stages);
        let Some(index) = stages.iter().position(|known| known.name == *stage) else {
            let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
            return Err(Refusal::NoStage(format!(
                "spec.stage: there is no stage {stage:?}; there are {}",
                names.join(", ")
            )));
        };
        let Some(approving) = &self.gates[index].approval else {
            return Err(Refusal::Conflict(format!("stage {stage} has no gate that asks for approval")));
        };

        if !approving.groups.is_empty() && !groups.iter().any(|group| approving.groups.contains(group)) {
            let of = approving.groups.join(", ");
            return Err(Refusal::NotAsked(format!("only members of {of} approve what gets to stage {stage}")));
        }

        let decision = self.decide(delivery);
        let waiting = decision.candidates[index].as_ref().and_then(|one| Some((one.digest?, one.what.commit.clone())));
        match waiting {
            None => Err(Refusal::Conflict(format!("nothing waits to be approved for stage {stage}"))),
            Some((digest, _)) if digest != request.digest => {
                let why = format!("the candidate for stage {stage} has changed: review it again");
                Err(Refusal::Conflict(why))
            }
            Some((_, commit)) => Ok(commit),
        }
    }
}

/// Returns what a repository that follows a pipeline serves, or why there is nothing, in one sentence.
pub async fn find_promoted(
    delivery: &Delivery,
    repository: &Name,
    pipeline: &str,
) -> Result<Result<Promotable, String>, StoreError> {
    let name = Name::new(&repository.namespace, pipeline);
    let Some((resource, found)) = resources::load::<Pipeline>(&delivery.store, &name).await? else {
        return Ok(Err(format!("Pipeline {pipeline} does not exist")));
    };
    let stages = found.spec.stages.iter().skip(1);
    let Some(stage) = stages.into_iter().find(|stage| stage.source_ref.name == repository.name) else {
        return Ok(Err(format!("Pipeline {pipeline} has no stage after its first with this repository")));
    };
    if stage.pull_request.is_some() {
        return Ok(Err(format!("what Pipeline {pipeline} promotes to stage {} is merged by people", stage.name)));
    }
    let written = load_pipeline(&mut *delivery.store.tables().await?, &resource.uid).await?;
    let state = read_state(&name, written.as_deref())?;
    let promoted = state.stages.get(&stage.name).and_then(|state| state.promoted.as_ref());
    Ok(match promoted.filter(|promoted| promoted.repository == repository.name) {
        Some(promoted) => Ok(promoted.what.clone()),
        None => Err(format!("Pipeline {pipeline} has promoted nothing to stage {} yet", stage.name)),
    })
}

pub async fn advance_promotions(delivery: Arc<Delivery>, name: Name) -> Result<Next, StoreError> {
    // Before clusters are loaded, an unknown cluster may well exist.
    if !delivery.clusters.is_loaded() {
        return Ok(Next::After(NOT_LOADED));
    }
    let Some((resource, pipeline)) = resources::load::<Pipeline>(&delivery.store, &name).await? else {
        delivery.pipelines.forget(&name);
        let kind = Pipeline::kind();
        let cleaned = delivery
            .store
            .transact(move |tx| Box::pin(async move { delete_orphaned_pipelines(tx, kind.as_str()).await }));
        cleaned.await?;
        return Ok(Next::OnChange);
    };

    delivery.pipelines.know(&name, &pipeline.spec);
    if pipeline.metadata.deletion_timestamp.is_some() {
        return Ok(Next::OnChange);
    }

    let is_news =
        pipeline.status.as_ref().and_then(|status| status.observed_generation) != pipeline.metadata.generation;
    let examined = match Examined::load(&delivery, &name, (resource.clone(), pipeline.clone())).await {
        Ok(examined) => examined,
        Err(ExamineError::Store(error)) => return Err(error),
        Err(ExamineError::Invalid(why)) => {
            let stages = pipeline.status.as_ref().map(|status| status.stages.clone()).unwrap_or_default();
            write_status(&delivery, &name, (&resource, &pipeline), (Verdict::stalled("SpecInvalid", why), stages))
                .await?;
            return Ok(Next::OnChange);
        }
    };

    let decision = examined.decide(&delivery);
    if !examined.save(&delivery, &decision.state, examined.tell(&decision)).await? {
        return Ok(Next::After(SOON));
    }

    examined.hand_over(&delivery, &name, &decision, is_news);
    for question in &decision.questions {
        let stage = pipeline.spec.stages[question.stage].name.clone();
        delivery.pipelines.asking.add(AskingGate { pipeline: name.clone(), stage, gate: question.gate });
    }

    let stages = examined.describe(&decision);
    let verdicts = examined.judge(&decision);
    write_status(&delivery, &name, (&resource, &pipeline), (verdicts, stages)).await?;

    let rest = |time: i64| {
        let left = time.saturating_sub(delivery.clock.now().as_second()).max(0).unsigned_abs();
        Duration::from_secs(left).clamp(SOON, LONGEST_REST)
    };
    Ok(decision.next_look.map_or(Next::OnChange, |time| Next::After(rest(time))))
}

impl Examined {
    fn tell(&self, decision: &Decision) -> Vec<Told> {
        let told = |index: &usize, is_warning, reason: &'static str, what: &str| {
            let PipelineStage { name: stage, pull_request, .. } = &self.pipeline.spec.stages[*index];
            let what = if pull_request.is_some() { "is to get, by what people merge," } else { what };
            let promoted = decision.state.promoted(stage).map(describe_promotable).unwrap_or_default();
            Told { is_warning, reason: reason.into(), message: format!("stage {stage} {what} {promoted}") }
        };
        let promoted = decision.promoted.iter().map(|index| told(index, false, "Promoted", "gets"));
        let back = decision.rolled_back.iter().map(|index| told(index, true, "RolledBack", "failed and goes back to"));
        promoted.chain(back).collect()
    }

    /// Requeues the repositories that do not serve yet what was promoted to them.
    fn hand_over(&self, delivery: &Delivery, name: &Name, decision: &Decision, is_news: bool) {
        for (stage, seen) in self.pipeline.spec.stages.iter().zip(&self.seen).skip(1) {
            if stage.pull_request.is_some() {
                let state = decision.state.stages.get(&stage.name);
                if state.is_some_and(|state| propose_promotions::is_open(stage, state)) {
                    delivery.pipelines.proposals.add(name.clone());
                }
                continue;
            }
            let promoted = decision.state.promoted(&stage.name);
            let Some(uid) = &seen.repository_uid else { continue };
            if (promoted.is_some() && promoted != seen.serves.as_ref()) || is_news {
                // Fetch at once only for the first time. After a failure the source retries on its own schedule,
                // however often the pipeline is reconciled.
                if let Some(promoted) = promoted
                    && (delivery.pipelines.is_first_hurry(uid, promoted) || is_news)
                {
                    delivery.checks.hurry(uid);
                }
                delivery.sources.add(SourceName::git(Name::new(&name.namespace, &stage.source_ref.name)));
            }
        }
    }

    fn describe(&self, decision: &Decision) -> Vec<StageStatus> {
        let default = StageState::default();
        let stages = self.pipeline.spec.stages.iter().zip(&self.seen).zip(&decision.candidates);
        stages
            .map(|((stage, seen), candidate)| {
                let state = decision.state.stages.get(&stage.name).unwrap_or(&default);
                let promoted = state.promoted.as_ref();
                StageStatus {
                    name: stage.name.clone(),
                    revision: seen.serves.as_ref().map(|what| git::format_revision(&seen.reference, &what.commit)),
                    configuration: seen.serves.as_ref().map(|what| what.configuration.clone()).unwrap_or_default(),
                    healthy_since: state.well.as_ref().and_then(|well| time(well.since)),
                    lacks: seen.content.as_ref().err().or(seen.lacks.as_ref()).map(|text| cut(text, MAX_LACK)),
                    promoted_at: promoted.and_then(|promoted| time(promoted.at)),
                    approved_by: promoted.map(|promoted| promoted.by.clone()).unwrap_or_default(),
                    refused: state.refused.as_ref().map(describe_promotable),
                    candidate: candidate.as_ref().map(|candidate| describe_candidate(candidate, state)),
                    pull_request: propose_promotions::describe(&self.resource.key.name, stage, state, seen.commit()),
                }
            })
            .collect()
    }

    fn judge(&self, decision: &Decision) -> Vec<Verdict> {
        let stages = || self.pipeline.spec.stages.iter().zip(&self.seen);
        if let Some((stage, why)) = stages().find_map(|(stage, seen)| Some((stage, seen.content.as_ref().err()?))) {
            return Verdict::stalled("StageInvalid", format!("stage {}: {why}", stage.name));
        }
        if let Some((stage, _)) = stages().skip(1).find(|(_, seen)| seen.failed) {
            return Verdict::stalled("StageFailed", format!("stage {} stopped at the promoted revision", stage.name));
        }
        let proposed = |(stage, seen): (&PipelineStage, &Seen)| {
            let state = decision.state.stages.get(&stage.name)?;
            let pipeline = &self.resource.key.name;
            Some((state, propose_promotions::describe(pipeline, stage, state, seen.commit())?))
        };
        let failing = |(stage, seen): (&PipelineStage, &Seen)| {
            let (state, told) = proposed((stage, seen))?;
            Some((told.branch, state.proposed()?.problem.as_ref()?))
        };

        if let Some((branch, problem)) = stages().find_map(failing) {
            let told = format!("the proposal on branch {branch}: {}", problem.message);
            return match problem.lasting {
                true => Verdict::stalled("PushFailed", told),
                false => Verdict::reconciling("PushFailed", told),
            };
        }
        let under_way = |(stage, seen): &(&PipelineStage, &Seen)| {
            let Some(state) = decision.state.stages.get(&stage.name) else { return false };
            let promoted = decision.state.promoted(&stage.name);
            let is_late = match stage.pull_request {
                // People merge it when they like.
                Some(_) if propose_promotions::is_open(stage, state) => return false,
                Some(_) => false,
                None => promoted != seen.serves.as_ref(),
            };
            promoted.is_some() && (is_late || seen.lacks.is_some())
        };

        if let Some((stage, _)) = stages().find(under_way) {
            return Verdict::reconciling("Promoting", format!("stage {} gets the promoted revision", stage.name));
        }

        for ((stage, _), candidate) in stages().zip(&decision.candidates) {
            let gates = || candidate.iter().flat_map(|candidate| &candidate.gates);
            if let Some(held) = gates().find(|held| held.failed) {
                let (gate, why) = (held.gate, &held.message);
                let told = format!("stage {} does not get the next commit: {gate}: {why}", stage.name);
                return Verdict::ready("GateFailed", told);
            }
            if let Some(held) = gates().find(|held| !held.holds) {
                return Verdict::ready(
                    "Waiting",
                    format!("stage {} waits for {}: {}", stage.name, held.gate, held.message),
                );
            }
        }

        if let Some((_, proposed)) = stages().find_map(proposed) {
            let (branch, url) = (proposed.branch, proposed.url);
            return match proposed.commit {
                Some(_) => Verdict::ready("Proposed", format!("branch {branch} of {url} waits to be merged")),
                None => Verdict::reconciling("Proposing", format!("branch {branch} of {url} is pushed")),
            };
        }
        Verdict::ready("Settled", "nothing waits to be promoted")
    }
}

fn describe_candidate(candidate: &promotion::Candidate, state: &StageState) -> PromotionCandidate {
    let approvals = state.approvals.iter().filter(|approval| Some(approval.digest) == candidate.digest);
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
    let texts: Vec<String> = what.configuration.iter().map(|(name, text)| format!("{name}={text}")).collect();
    let with = if texts.is_empty() { String::new() } else { format!(" with {}", texts.join(", ")) };
    cut(&format!("{}{with}", git::format_revision("", &what.commit)), MAX_LACK)
}

fn time(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}

async fn write_status(
    delivery: &Delivery,
    name: &Name,
    (resource, pipeline): (&Resource, &Pipeline),
    (verdicts, stages): (Vec<Verdict>, Vec<StageStatus>),
) -> Result<(), StoreError> {
    let previous = pipeline.status.clone().unwrap_or_default();
    let generation = pipeline.metadata.generation.unwrap_or_default();
    let conditions = conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now());
    let status = PipelineStatus { observed_generation: Some(generation), conditions, stages };
    resources::write_status::<Pipeline>(&delivery.store, name, &resource.uid, &status).await
}

async fn look_at_stage(
    delivery: &Delivery,
    name: &Name,
    (index, stage): (usize, &PipelineStage),
    promotes: &[String],
) -> Result<Seen, StoreError> {
    let namespace = &name.namespace;
    // Texts that later stages state do not count.
    let promotes = if index == 0 { promotes } else { &[] };

    let mut seen = Seen {
        repository_uid: None,
        follows: true,
        serves: None,
        reference: String::new(),
        lacks: None,
        since: 0,
        heard: i64::MAX,
        failed: false,
        content: Ok(Value::Null),
        tests: Tests::default(),
        stated: Vec::new(),
    };

    let source = Name::new(namespace, &stage.source_ref.name);
    let Some((resource, repository)) = resources::load::<GitRepository>(&delivery.store, &source).await? else {
        seen.content = Err(format!("GitRepository {} does not exist", source.name));
        seen.lacks = Some("it has no repository".to_owned());
        return Ok(seen);
    };
    let uid = resource.uid.clone();
    seen.repository_uid = Some(uid.clone());
    let revision = async || load_revision(&mut *delivery.store.tables().await?, &uid).await;

    // Read the served revision before and after all else, so that what is found in between is true of that revision.
    let before = revision().await?;
    let mut content = vec![json!([uid, repository.spec.url, repository.spec.recurse_submodules, repository.spec.lfs])];
    let mut problem = match &stage.pull_request {
        Some(pull) => {
            content.push(json!(["pullRequest", pull]));
            let is_good = propose_promotions::branch_of(&name.name, stage, pull).is_some();
            let no_branch = || "pullRequest.branch is not a name that Git takes; state a short one".to_owned();
            check_own_reference(&source, repository.spec.r#ref.as_ref()).or_else(|| (!is_good).then(no_branch))
        }
        None => check_reference(&source, repository.spec.r#ref.as_ref(), (index, &name.name)),
    };
    seen.follows = problem.is_none();

    for (is_set, member) in members(stage) {
        let member = Name::new(namespace, member);
        let found = match is_set {
            true => look_at_set(delivery, &member, (&source.name, promotes), &mut seen).await?,
            false => look_at_service(delivery, &member, &source.name, &mut seen).await?,
        };
        match found {
            Ok(deployed) => content.push(deployed),
            Err(why) => problem = problem.or(Some(why)),
        }
    }

    let after = revision().await?;
    if before.as_ref().map(promotable) != after.as_ref().map(promotable) || after.is_none() {
        seen.lack(|| format!("GitRepository {} is on its way", source.name));
        // The failure was one of the revision served before.
        seen.failed = false;
    }

    seen.reference = after.as_ref().map(|revision| revision.reference.clone()).unwrap_or_default();
    seen.serves = after.as_ref().map(promotable);
    if index == 0 {
        // The texts that the first stage states are promoted with its commits.
        let stated = std::mem::take(&mut seen.stated);
        match (texts::agree(promotes, &stated), &mut seen.serves) {
            (Ok(texts), Some(serves)) => serves.configuration = texts,
            (Ok(_), None) => {}
            (Err(why), _) => problem = problem.or(Some(why)),
        }
    }

    if seen.heard == i64::MAX {
        seen.heard = 0;
    }

    if let Some(why) = problem {
        // A stage that may run something else proves nothing.
        seen.lacks = Some(why.clone());
        seen.content = Err(why);
    } else {
        seen.content = Ok(Value::Array(content));
    }
    Ok(seen)
}

/// For each member: whether it is a set, and its name.
fn members(stage: &PipelineStage) -> impl Iterator<Item = (bool, &str)> {
    let sets = stage.sets.iter().map(|set| (true, set.as_str()));
    sets.chain(stage.services.iter().map(|service| (false, service.as_str())))
}

/// The commit and the texts that a repository serves.
fn promotable(revision: &Revision) -> Promotable {
    Promotable { commit: revision.commit.clone(), configuration: revision.taken.configuration.clone() }
}

impl Seen {
    fn commit(&self) -> Option<&str> {
        self.serves.as_ref().map(|what| what.commit.as_str())
    }

    fn lack(&mut self, what: impl FnOnce() -> String) {
        if self.lacks.is_none() {
            self.lacks = Some(what());
        }
    }

    fn note_ready(&mut self, conditions: Option<&Vec<Condition>>) {
        let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
        if let Some(ready) = ready {
            self.since = self.since.max(ready.last_transition_time.0.as_second());
        }
    }

    fn note_heard(&mut self, delivery: &Delivery, cluster_uid: &str) {
        let Some(state) = delivery.clusters.get(cluster_uid) else { return };
        self.heard = self.heard.min(state.heard().unwrap_or(0));
    }
}

/// The first stage follows its repository, and the repositories of the others follow the pipeline.
fn check_reference(
    source: &Name,
    reference: Option<&GitReference>,
    (index, pipeline): (usize, &str),
) -> Option<String> {
    let follows = reference.and_then(|reference| reference.pipeline.as_deref());
    match (index, follows) {
        (0, None) => None,
        (0, Some(other)) => Some(format!(
            "GitRepository {} serves what Pipeline {other} promotes; the first stage's follows a branch",
            source.name
        )),
        (_, Some(follows)) if follows == pipeline => None,
        _ => Some(format!(
            "GitRepository {} does not follow this pipeline: set spec.ref to {{pipeline: {pipeline}}}",
            source.name
        )),
    }
}

fn tests_of(spec: &ServiceDeploymentSpec) -> BTreeSet<String> {
    spec.tests.iter().map(|test| test.name.clone()).collect()
}

/// If people merge a stage's promotions, its repository must follow what they merge.
fn check_own_reference(source: &Name, reference: Option<&GitReference>) -> Option<String> {
    let follows = reference.and_then(|reference| reference.pipeline.as_deref())?;
    Some(format!(
        "GitRepository {} follows Pipeline {follows}, but people merge the promotions of this stage: set spec.ref to a branch or a commit",
        source.name
    ))
}

fn is_made_of(spec: &ServiceDeploymentSpec, repository: &str) -> bool {
    let own = &spec.source_ref;
    own.kind == SourceKind::GitRepository && own.name == repository
}

/// The texts that all services of a set's variant share.
fn stated_texts(set: &ServiceSet, template: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let stated = set.spec.parameters.iter().filter_map(|one| Some((one.name.clone(), one.value.clone()?)));
    template.clone().into_iter().chain(stated).collect()
}

/// Whether a text may differ between the services of a set.
fn is_computed(set: &ServiceSet, name: &str) -> bool {
    set.spec.parameters.iter().any(|one| one.name == name && one.value.is_none())
}

/// Returns what a set deploys besides the commit, or why nothing can be promoted to it.
async fn look_at_set(
    delivery: &Delivery,
    name: &Name,
    (repository, promotes): (&str, &[String]),
    seen: &mut Seen,
) -> Result<Result<Value, String>, StoreError> {
    let Some((resource, set)) = resources::load::<ServiceSet>(&delivery.store, name).await? else {
        return Ok(Err(format!("ServiceSet {} does not exist", name.name)));
    };
    // Tests that every service of the set has.
    let mut tests: Option<BTreeSet<String>> = None;
    for (at, template) in Template::variants(&set.spec) {
        let Some(spec) = check_template(&template).ok().filter(|spec| is_made_of(spec, repository)) else {
            return Ok(Err(format!(
                "ServiceSet {} is not made of GitRepository {repository}: see spec.{at}.sourceRef",
                name.name
            )));
        };
        seen.stated.push((format!("ServiceSet {} (spec.{at})", name.name), stated_texts(&set, &spec.configuration)));
        let stated = tests_of(&spec);
        tests = Some(tests.map_or_else(|| stated.clone(), |known| known.intersection(&stated).cloned().collect()));
    }
    if let Some(computed) = promotes.iter().find(|promoted| is_computed(&set, promoted)) {
        return Ok(Err(format!(
            "ServiceSet {} has configuration.{computed} computed for each cluster, and it is to be promoted: state it once",
            name.name
        )));
    }

    seen.tests.add(|| format!("ServiceSet {}", name.name), tests.unwrap_or_default());
    let Whole { lacks, failed, is_behind, heard } =
        rollouts::look_at_whole(delivery, name, &resource.uid, &set).await?;
    seen.failed |= failed;
    if is_behind {
        delivery.sets.queue.add(name.clone());
    }

    if let Some(lacks) = lacks {
        seen.lack(|| lacks);
    } else {
        seen.since = seen.since.max(heard.since);
        seen.heard = seen.heard.min(heard.at);
    }

    let spec = &resource.object["spec"];
    let fields = ["clusterSelector", "template", "parameters", "overrides"].map(|field| &spec[field]);
    Ok(Ok(json!(["ServiceSet", name.name, resource.uid, fields])))
}

/// The same for a service.
async fn look_at_service(
    delivery: &Delivery,
    name: &Name,
    repository: &str,
    seen: &mut Seen,
) -> Result<Result<Value, String>, StoreError> {
    let Some((resource, service)) = resources::load::<ServiceDeployment>(&delivery.store, name).await? else {
        return Ok(Err(format!("ServiceDeployment {} does not exist", name.name)));
    };
    if !is_made_of(&service.spec, repository) {
        return Ok(Err(format!(
            "ServiceDeployment {} is not made of GitRepository {repository}: see its spec.sourceRef",
            name.name
        )));
    }

    seen.stated.push((format!("ServiceDeployment {}", name.name), service.spec.configuration.clone()));
    seen.tests.add(|| format!("ServiceDeployment {}", name.name), tests_of(&service.spec));
    seen.note_ready(service.status.as_ref().map(|status| &status.conditions));
    if service.spec.pin.is_some() || service.spec.suspend {
        seen.lack(|| format!("ServiceDeployment {} is pinned or suspended", name.name));
    } else if let Some(lacks) = dependencies::judge(delivery, name).await? {
        let lacks = lacks.strip_prefix("waits for ").map(str::to_owned).unwrap_or(lacks);
        seen.lack(|| lacks);
    } else if let Some(row) = load_assignment(&mut *delivery.store.tables().await?, &resource.uid).await? {
        seen.note_heard(delivery, &row.cluster_uid);
    }

    let mut spec = resource.object["spec"].clone();
    for field in ["suspend", "suspension", "pin"] {
        spec.as_object_mut().and_then(|spec| spec.remove(field));
    }
    Ok(Ok(json!(["ServiceDeployment", name.name, resource.uid, spec])))
}
