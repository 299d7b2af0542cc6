//! The stages of a pipeline with their sets, services and gates.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{
    GitRepository, Pipeline, ServiceDeployment, ServiceDeploymentSpec, ServiceSet, SourceKind,
    git_repository::GitReference, pipeline::PipelineStage, requested_at,
};
use farwater_fleet::{
    promotion::{
        Approval, Decision, Gates, Promotable, Stage, State, Tests,
        answers::{Answer, Said},
        decide, read_gates, texts, unknown_gate_field,
    },
    stamping::Template,
};
use farwater_store::{
    Resource, StoreError,
    delivery::{Revision, load_assignment, load_pipeline, load_revision, save_pipeline},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use crate::{
    kinds::stamped::check_template,
    memory::pipelines::AskingGate,
    notify::events::{self, EventText},
    promotion::propose_promotions,
    replica::Replica,
    resources::{self, Name},
    services::dependencies,
    sets::rollouts::{self, Whole},
};

/// A pipeline with all that its decision depends on.
pub struct Examined {
    pub(super) resource: Resource,
    pub pipeline: Pipeline,
    pub gates: Vec<Gates>,
    pub(super) seen: Vec<Seen>,
    pub(super) state: State,
    /// The row that it was read from; None: there is none yet.
    pub(super) written: Option<String>,
}

/// Observed state of a stage.
pub(super) struct Seen {
    pub(super) repository_uid: Option<String>,
    /// Whether its repository follows what it should. A repository that is gone counts as following.
    follows: bool,
    pub(super) serves: Option<Promotable>,
    pub(super) reference: String,
    pub(super) lacks: Option<String>,
    pub(super) since: i64,
    heard: i64,
    pub(super) failed: bool,
    pub(super) content: Result<Value, String>,
    tests: Tests,
    /// Texts that the sets and services of the first stage state.
    stated: Vec<texts::Stated>,
}

/// Why a pipeline can't be decided.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Invalid(String),
}

impl Examined {
    pub async fn load(
        replica: &Replica,
        name: &Name,
        (resource, pipeline): (Resource, Pipeline),
    ) -> Result<Self, ExamineError> {
        if let Some(field) = unknown_gate_field(&resource.object["spec"]) {
            let why = format!("a gate has a field {field} that this hub does not know: nothing is promoted");
            return Err(ExamineError::Invalid(why));
        }
        let gates = read_gates(&pipeline.spec).map_err(|problems| {
            let told: Vec<String> = problems
                .iter()
                .map(|one| format!("spec.{}: {}", one.field, one.why))
                .collect();
            ExamineError::Invalid(told.join("; "))
        })?;
        // Read the row first. If another decision is saved meanwhile, this one then replaces nothing.
        let written = load_pipeline(&mut *replica.store.tables().await?, &resource.uid).await?;
        let state = read_state(name, written.as_deref())?;
        let mut seen = Vec::new();
        for (index, stage) in pipeline.spec.stages.iter().enumerate() {
            seen.push(look_at_stage(replica, name, (index, stage), pipeline.spec.promotes()).await?);
        }
        Ok(Self {
            resource,
            pipeline,
            gates,
            seen,
            state,
            written,
        })
    }

    pub(super) fn stages(&self) -> Vec<Stage<'_>> {
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

    pub fn decide(&self, replica: &Replica) -> Decision {
        let times = (replica.clock.now().as_second(), replica.memory.windows.now());
        decide(&self.resource.uid, &self.stages(), &self.state, times)
    }

    /// Replaces the row that this was read from. False: the row or the spec has changed since.
    pub(super) async fn save(
        &self,
        replica: &Replica,
        state: &State,
        told: Vec<EventText>,
    ) -> Result<bool, StoreError> {
        let text = serde_json::to_string(state).map_err(StoreError::abort)?;
        if self.written.as_ref() == Some(&text) {
            return Ok(true);
        }
        let (resource, written) = (self.resource.clone(), self.written.clone());
        let saved = replica.store.transact(move |tx| {
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
                    events::write_event(tx, &resource, told).await?;
                }
                Ok(true)
            })
        });
        saved.await
    }

    /// Saves a person's approval of a stage's candidate. False: the row or the spec has changed since it was read.
    pub(super) async fn note(mut self, replica: &Replica, stage: &str, approval: Approval) -> Result<bool, StoreError> {
        let told = EventText {
            is_warning: false,
            reason: "Approved".into(),
            message: format!(
                "{} approves the promotion to stage {stage}: {}",
                approval.by, approval.reason
            ),
        };
        self.state.stages.entry(stage.to_owned()).or_default().approve(approval);
        let state = std::mem::take(&mut self.state);
        self.save(replica, &state, vec![told]).await
    }

    /// Saves a gate's answer. False: the row or the spec has changed since it was read.
    pub async fn note_answer(
        mut self,
        replica: &Replica,
        AskingGate { stage, gate, .. }: &AskingGate,
        answer: Answer,
    ) -> Result<bool, StoreError> {
        let told = (answer.said == Said::Fail).then(|| EventText {
            is_warning: true,
            reason: "GateFailed".into(),
            message: format!("{gate} lets nothing to stage {stage}: {}", answer.message),
        });
        self.state
            .stages
            .entry(stage.clone())
            .or_default()
            .answers
            .insert(*gate, answer);
        let state = std::mem::take(&mut self.state);
        self.save(replica, &state, told.into_iter().collect()).await
    }
}

pub fn read_state(name: &Name, text: Option<&str>) -> Result<State, StoreError> {
    let parsed = text.map(serde_json::from_str).transpose();
    parsed.map(Option::unwrap_or_default).map_err(|error| StoreError::Row {
        what: format!("state of Pipeline {name}"),
        problem: error.to_string(),
    })
}

async fn look_at_stage(
    replica: &Replica,
    name: &Name,
    (index, stage): (usize, &PipelineStage),
    promotes: &[String],
) -> Result<Seen, StoreError> {
    // Texts that later stages state do not count.
    let promotes = if index == 0 { promotes } else { &[] };
    let mut seen = Seen::unread();
    let source = Name::new(&name.namespace, &stage.source_ref.name);
    let Some((resource, repository)) = resources::load::<GitRepository>(&replica.store, &source).await? else {
        seen.content = Err(format!("GitRepository {} does not exist", source.name));
        seen.lacks = Some("it has no repository".to_owned());
        return Ok(seen);
    };
    let uid = resource.uid;
    seen.repository_uid = Some(uid.clone());
    let revision = async || load_revision(&mut *replica.store.tables().await?, &uid).await;

    // Read the served revision before and after all else, so that what is found in between is true of that revision.
    let before = revision().await?;
    let wrong_reference = check_stage(&source, repository.spec.r#ref.as_ref(), (index, stage), &name.name);
    seen.follows = wrong_reference.is_none();
    let members = look_at_members(replica, (stage, &source), promotes, &mut seen).await?;
    let after = revision().await?;
    seen.note_served(&source, before, after);

    // The texts that the first stage states are promoted with its commits.
    let wrong_texts = if index == 0 {
        seen.agree_on_texts(promotes)
    } else {
        None
    };
    if seen.heard == i64::MAX {
        seen.heard = 0;
    }

    let spec = &repository.spec;
    let own = json!([uid, spec.url, spec.recurse_submodules, spec.lfs]);
    let pull = stage.pull_request.as_ref().map(|pull| json!(["pullRequest", pull]));
    let content = match (wrong_reference, members) {
        (Some(why), _) | (None, Err(why)) => Err(why),
        (None, Ok(deployed)) => Ok([own].into_iter().chain(pull).chain(deployed).collect()),
    };
    seen.content = content.and_then(|content| wrong_texts.map_or(Ok(content), Err));
    if let Err(why) = &seen.content {
        // A stage that may run something else proves nothing.
        seen.lacks = Some(why.clone());
    }
    Ok(seen)
}

/// Returns what is wrong with the reference of a stage's repository, or with its branch of proposals.
fn check_stage(
    source: &Name,
    reference: Option<&GitReference>,
    (index, stage): (usize, &PipelineStage),
    pipeline: &str,
) -> Option<String> {
    let Some(pull) = &stage.pull_request else {
        return check_reference(source, reference, (index, pipeline));
    };
    let is_good = propose_promotions::branch_of(pipeline, stage, pull).is_some();
    let no_branch = || "pullRequest.branch is not a name that Git takes; state a short one".to_owned();
    check_own_reference(source, reference).or_else(|| (!is_good).then(no_branch))
}

/// Returns what each member deploys besides the commit, or the first reason why nothing can be promoted. Looks at all
/// members in any case.
async fn look_at_members(
    replica: &Replica,
    (stage, source): (&PipelineStage, &Name),
    promotes: &[String],
    seen: &mut Seen,
) -> Result<Result<Vec<Value>, String>, StoreError> {
    let mut all = Vec::new();
    for (is_set, member) in members(stage) {
        let member = Name::new(&source.namespace, member);
        all.push(match is_set {
            true => look_at_set(replica, &member, (&source.name, promotes), seen).await?,
            false => look_at_service(replica, &member, &source.name, seen).await?,
        });
    }
    Ok(all.into_iter().collect())
}

/// For each member: whether it is a set, and its name.
fn members(stage: &PipelineStage) -> impl Iterator<Item = (bool, &str)> {
    let sets = stage.sets.iter().map(|set| (true, set.as_str()));
    sets.chain(stage.services.iter().map(|service| (false, service.as_str())))
}

/// The commit and the texts that a repository serves.
fn promotable(revision: &Revision) -> Promotable {
    Promotable {
        commit: revision.commit.clone(),
        configuration: revision.taken.configuration.clone(),
    }
}

impl Seen {
    fn unread() -> Self {
        Self {
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
        }
    }

    /// Notes the served revision. `before`, `after`: read before and after the members.
    fn note_served(&mut self, source: &Name, before: Option<Revision>, after: Option<Revision>) {
        let served = after.as_ref().map(promotable);
        if served.is_none() || before.as_ref().map(promotable) != served {
            self.lack(|| format!("GitRepository {} is on its way", source.name));
            // The failure was one of the revision served before.
            self.failed = false;
        }
        self.serves = served;
        self.reference = after.map(|revision| revision.reference).unwrap_or_default();
    }

    /// Adds the stated texts to the served commit, or returns why they differ.
    fn agree_on_texts(&mut self, promotes: &[String]) -> Option<String> {
        let stated = std::mem::take(&mut self.stated);
        let texts = match texts::agree(promotes, &stated) {
            Ok(texts) => texts,
            Err(why) => return Some(why),
        };
        if let Some(serves) = &mut self.serves {
            serves.configuration = texts;
        }
        None
    }

    pub(super) fn commit(&self) -> Option<&str> {
        self.serves.as_ref().map(|what| what.commit.as_str())
    }

    fn lack(&mut self, what: impl FnOnce() -> String) {
        if self.lacks.is_none() {
            self.lacks = Some(what());
        }
    }

    fn note_ready(&mut self, conditions: Option<&Vec<Condition>>) {
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "Ready");
        if let Some(ready) = ready {
            self.since = self.since.max(ready.last_transition_time.0.as_second());
        }
    }

    fn note_heard(&mut self, replica: &Replica, cluster_uid: &str) {
        let Some(state) = replica.memory.clusters.get(cluster_uid) else {
            return;
        };
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
    let stated = set
        .spec
        .parameters
        .iter()
        .filter_map(|one| Some((one.name.clone(), one.value.clone()?)));
    template.clone().into_iter().chain(stated).collect()
}

/// Whether a text may differ between the services of a set.
fn is_computed(set: &ServiceSet, name: &str) -> bool {
    set.spec
        .parameters
        .iter()
        .any(|one| one.name == name && one.value.is_none())
}

/// Returns what a set deploys besides the commit, or why nothing can be promoted to it.
async fn look_at_set(
    replica: &Replica,
    name: &Name,
    (repository, promotes): (&str, &[String]),
    seen: &mut Seen,
) -> Result<Result<Value, String>, StoreError> {
    let Some((resource, set)) = resources::load::<ServiceSet>(&replica.store, name).await? else {
        return Ok(Err(format!("ServiceSet {} does not exist", name.name)));
    };
    let tests = match look_at_variants(&set, &name.name, repository, &mut seen.stated) {
        Ok(tests) => tests,
        Err(why) => return Ok(Err(why)),
    };
    if let Some(computed) = promotes.iter().find(|promoted| is_computed(&set, promoted)) {
        return Ok(Err(format!(
            "ServiceSet {} has configuration.{computed} computed for each cluster, and it is to be promoted: state it once",
            name.name
        )));
    }
    seen.tests.add(|| format!("ServiceSet {}", name.name), tests);

    let Whole {
        lacks,
        failed,
        is_behind,
        heard,
    } = rollouts::look_at_whole(replica, name, &resource.uid, &set).await?;
    seen.failed |= failed;
    if is_behind {
        replica.memory.sets.queue.add(name.clone());
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

/// Adds the texts that the variants of a set state. Returns the tests that every service of the set has, or why nothing
/// can be promoted to it.
fn look_at_variants(
    set: &ServiceSet,
    name: &str,
    repository: &str,
    stated: &mut Vec<texts::Stated>,
) -> Result<BTreeSet<String>, String> {
    let mut tests: Option<BTreeSet<String>> = None;
    for (at, template) in Template::variants(&set.spec) {
        let spec = check_template(&template)
            .ok()
            .filter(|spec| is_made_of(spec, repository))
            .ok_or_else(|| {
                format!("ServiceSet {name} is not made of GitRepository {repository}: see spec.{at}.sourceRef")
            })?;
        let texts = stated_texts(set, &spec.configuration);
        stated.push((format!("ServiceSet {name} (spec.{at})"), texts));
        let own = tests_of(&spec);
        tests = Some(match tests {
            Some(known) => known.intersection(&own).cloned().collect(),
            None => own,
        });
    }
    Ok(tests.unwrap_or_default())
}

/// The same for a service.
async fn look_at_service(
    replica: &Replica,
    name: &Name,
    repository: &str,
    seen: &mut Seen,
) -> Result<Result<Value, String>, StoreError> {
    let Some((resource, service)) = resources::load::<ServiceDeployment>(&replica.store, name).await? else {
        return Ok(Err(format!("ServiceDeployment {} does not exist", name.name)));
    };
    if !is_made_of(&service.spec, repository) {
        return Ok(Err(format!(
            "ServiceDeployment {} is not made of GitRepository {repository}: see its spec.sourceRef",
            name.name
        )));
    }

    seen.stated.push((
        format!("ServiceDeployment {}", name.name),
        service.spec.configuration.clone(),
    ));
    seen.tests
        .add(|| format!("ServiceDeployment {}", name.name), tests_of(&service.spec));
    seen.note_ready(service.status.as_ref().map(|status| &status.conditions));
    if service.spec.pin.is_some() || service.spec.suspend {
        seen.lack(|| format!("ServiceDeployment {} is pinned or suspended", name.name));
    } else if let Some(lacks) = dependencies::judge(replica, name).await? {
        let lacks = lacks.strip_prefix("waits for ").map(str::to_owned).unwrap_or(lacks);
        seen.lack(|| lacks);
    } else if let Some(row) = load_assignment(&mut *replica.store.tables().await?, &resource.uid).await? {
        seen.note_heard(replica, &row.cluster_uid);
    }

    let mut spec = resource.object["spec"].clone();
    for field in ["suspend", "suspension", "pin"] {
        spec.as_object_mut().and_then(|spec| spec.remove(field));
    }
    Ok(Ok(json!(["ServiceDeployment", name.name, resource.uid, spec])))
}
