//! Promotion: which commit may move on to the next stage of a pipeline, and when.
//!
//! [`decide`] is level-triggered: it gets the observed state, and only [`State`] is remembered. A promotion names a
//! commit together with its texts. A stage's repository serves exactly that, so a commit that arrives later waits for
//! its own gates. Below, *commit* means both: the same commit with other texts is another one.
//!
//! 1. A stage is *well* at the commit that its repository serves while all of it is healthy at exactly that commit,
//!    without interruption. One observation of another commit, or of an unhealthy period, restarts the count.
//! 2. A commit is a stage's *candidate* once all of the previous stage was well at it for the soak, and each counted
//!    cluster was heard when the soak ended. Neither silence, nor a clock that jumps, nor a hub that was away counts as
//!    success. The commit stays the candidate when the previous stage moves on to another commit. It stops being one
//!    when the previous stage is still at it but no longer well, or when the proof must be another: from another stage,
//!    for another time, or with other texts.
//! 3. The newest candidate replaces the one before. Approvals of the replaced one count for nothing.
//! 4. An approval names a [`digest`] of everything that would be deployed. When that changes, the approval lapses for
//!    good.
//! 5. A candidate is promoted by a decision in which all gates hold and no stage has a problem.
//! 6. A stage's last promotion is forgotten while its repository follows something else, because a person has taken it
//!    over. When the person gives it back, the stage continues from the commit that it serves then.
//! 7. An answer from outside is stored with exactly the question it was for, and counts for no other; see [`answers`].
//!    The tests are those that the previous stage stated, and passed, when the commit was proven there.
//! 8. With `Rollback`, a stage that failed at a promoted commit gets the commit before, and refuses the one it failed
//!    at.

pub mod answers;
pub mod metric;
pub mod texts;

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{
    Digest,
    change_window::{ChangeWindowSpec, WindowType},
    notification_provider::ProviderType,
    pipeline::{GateType, MAX_OF_STAGE, MAX_STAGES, PipelineSpec, PipelineStage, PromotionGate, StageFailure},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::{
    answers::{Answer, Asking, Question},
    metric::Measuring,
};
use crate::{
    duration::{APPROVAL_EXPIRES, Bounds, GATE_INTERVAL, PROMOTION_SOAK, show},
    health::expression::Expression,
    notify::check_address,
    proposals::{self, Proposal},
    windows::Window,
};

/// Seconds that an approval counts, if the gate doesn't say.
const EXPIRES: i64 = 72 * 3600;
/// Seconds that a pass of a webhook counts, if the gate doesn't say.
const PASS_EXPIRES: i64 = 3600;
/// Seconds between two questions of a gate, if it doesn't say.
const INTERVAL: i64 = 60;
/// Most approvals kept of one candidate: more than any quorum can require.
const MOST_APPROVALS: usize = 64;
/// Fields that a gate may have. A field of a newer version would be ignored, and an ignored condition leaves the gate
/// open.
const GATE_FIELDS: [&str; 16] = [
    "type",
    "duration",
    "quorum",
    "groups",
    "expires",
    "schedule",
    "timeZone",
    "address",
    "secretRef",
    "certSecretRef",
    "interval",
    "query",
    "condition",
    "count",
    "failureLimit",
    "tests",
];

/// The gates before a stage, parsed.
#[derive(Clone, Debug, Default)]
pub struct Gates {
    /// Seconds. None: it is enough that the previous stage is well.
    pub soak: Option<i64>,
    pub approval: Option<Approving>,
    pub window: Option<Window>,
    pub webhook: Option<Asking>,
    pub metric: Option<Measuring>,
    /// Names of tests. None: no test gate. Empty: each service of the previous stage must state at least one.
    pub test: Option<Vec<String>>,
}

/// How many approvals are needed, and from which groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approving {
    pub quorum: usize,
    pub groups: Vec<String>,
    /// Seconds that an approval counts.
    pub expires: i64,
}

/// An invalid field of a pipeline's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPipeline {
    /// Path below `spec`.
    pub field: String,
    pub why: String,
}

/// The gates of each stage. The first stage has none.
pub fn read_gates(spec: &PipelineSpec) -> Result<Vec<Gates>, Vec<InvalidPipeline>> {
    let mut problems = Vec::new();
    let mut all = Vec::new();
    let mut invalid = |field: String, why: &str| {
        problems.push(InvalidPipeline {
            field,
            why: why.to_owned(),
        })
    };
    if !(2..=MAX_STAGES).contains(&spec.stages.len()) {
        invalid("stages".to_owned(), "a pipeline has 2 to 16 of them");
    }

    let (mut names, mut repositories, mut members) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (index, stage) in spec.stages.iter().enumerate() {
        let at = format!("stages[{index}]");
        if !names.insert(&stage.name) {
            invalid(format!("{at}.name"), "another stage is called so");
        }
        if !repositories.insert(&stage.source_ref.name) {
            invalid(
                format!("{at}.sourceRef"),
                "another stage uses it: each stage needs its own GitRepository",
            );
        }
        if stage.sets.is_empty() && stage.services.is_empty() {
            invalid(
                format!("{at}.sets"),
                "a stage needs at least one set or service: an empty stage can't be proven healthy",
            );
        }
        for (field, kind, of_stage) in [("sets", "set", &stage.sets), ("services", "service", &stage.services)] {
            if of_stage.len() > MAX_OF_STAGE {
                invalid(format!("{at}.{field}"), "a stage has at most 32 of them");
            }
            if !of_stage.iter().all(|name| members.insert((kind, name))) {
                invalid(
                    format!("{at}.{field}"),
                    "it is named twice and can't be at two revisions",
                );
            }
        }
        if index == 0 && !stage.gates.is_empty() {
            invalid(
                format!("{at}.gates"),
                "the first stage follows its repository: nothing is promoted to it",
            );
        }
        if index == 0 && stage.on_failure != StageFailure::Halt {
            invalid(
                format!("{at}.onFailure"),
                "the first stage follows its repository: revert the commit",
            );
        }
        if let Some((field, why)) = proposals::check(stage, index == 0) {
            invalid(format!("{at}.{field}"), why);
        }
        if stage.pull_request.is_some() && !spec.promotes().is_empty() {
            invalid(
                format!("{at}.pullRequest"),
                "texts go with what the stage's repository serves by the pipeline's word, and this one serves what people merge: copy a \
                 field of a file with pullRequest.from, or state nothing in promotes",
            );
        }
        match read_stage(stage) {
            Ok(gates) => all.push(gates),
            Err(found) => found
                .into_iter()
                .for_each(|one| invalid(format!("{at}.{}", one.field), &one.why)),
        }
    }

    if problems.is_empty() { Ok(all) } else { Err(problems) }
}

fn read_stage(stage: &PipelineStage) -> Result<Gates, Vec<InvalidPipeline>> {
    let (mut gates, mut problems) = (Gates::default(), Vec::new());
    let mut types = BTreeSet::new();
    for (index, gate) in stage.gates.iter().enumerate() {
        let at = format!("gates[{index}]");
        if !types.insert(gate.r#type) {
            let why = format!("{} is stated twice", gate.r#type);
            problems.push(InvalidPipeline {
                field: format!("{at}.type"),
                why,
            });
            continue;
        }
        let mut found = foreign_fields(gate);
        if found.is_empty() {
            found = read_gate(gate, &mut gates).err().unwrap_or_default();
        }
        for InvalidPipeline { field, why } in found {
            problems.push(InvalidPipeline {
                field: format!("{at}.{field}"),
                why,
            });
        }
    }
    if problems.is_empty() { Ok(gates) } else { Err(problems) }
}

/// Fields that only gates of other types have. They are refused, because ignoring them would not do what the author
/// meant.
fn foreign_fields(gate: &PromotionGate) -> Vec<InvalidPipeline> {
    let PromotionGate {
        r#type,
        duration,
        quorum,
        groups,
        expires,
        schedule,
        time_zone,
        ..
    } = gate;
    let PromotionGate {
        address,
        secret_ref,
        cert_secret_ref,
        interval,
        query,
        condition,
        ..
    } = gate;
    let PromotionGate {
        count,
        failure_limit,
        tests,
        ..
    } = gate;
    let asking: &[GateType] = &[GateType::Webhook, GateType::Metric];
    let stated = [
        (
            "duration",
            duration.is_some(),
            &[GateType::Soak, GateType::Window, GateType::Metric][..],
        ),
        ("quorum", quorum.is_some(), &[GateType::Approval]),
        ("groups", !groups.is_empty(), &[GateType::Approval]),
        ("expires", expires.is_some(), &[GateType::Approval, GateType::Webhook]),
        ("schedule", schedule.is_some(), &[GateType::Window]),
        ("timeZone", time_zone.is_some(), &[GateType::Window]),
        ("address", address.is_some(), asking),
        ("secretRef", secret_ref.is_some(), asking),
        ("certSecretRef", cert_secret_ref.is_some(), asking),
        ("interval", interval.is_some(), asking),
        ("query", query.is_some(), &[GateType::Metric]),
        ("condition", condition.is_some(), &[GateType::Metric]),
        ("count", count.is_some(), &[GateType::Metric]),
        ("failureLimit", failure_limit.is_some(), &[GateType::Metric]),
        ("tests", !tests.is_empty(), &[GateType::Test]),
    ];
    let foreign = stated
        .into_iter()
        .filter(|(_, is_stated, types)| *is_stated && !types.contains(r#type));
    foreign
        .map(|(field, ..)| InvalidPipeline {
            field: field.to_owned(),
            why: format!("a gate {} has none", r#type),
        })
        .collect()
}

fn read_gate(gate: &PromotionGate, gates: &mut Gates) -> Result<(), Vec<InvalidPipeline>> {
    let seconds = |field: &str, text: &str, bounds: Bounds| {
        let checked = bounds
            .check(text)
            .map(|duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX));
        checked.map_err(|why| {
            vec![InvalidPipeline {
                field: field.to_owned(),
                why,
            }]
        })
    };
    let required = |field: &str, why: &str| {
        vec![InvalidPipeline {
            field: field.to_owned(),
            why: why.to_owned(),
        }]
    };
    let optional = |field: &str, text: &Option<String>, bounds: Bounds, default: i64| {
        text.as_deref().map_or(Ok(default), |text| seconds(field, text, bounds))
    };
    let address = |why: &str| {
        let address = gate.address.as_deref().ok_or_else(|| required("address", why))?;
        check_address(ProviderType::Generic, address).map_err(|why| required("address", &why))
    };

    match gate.r#type {
        GateType::Soak => {
            let text = gate
                .duration
                .as_deref()
                .ok_or_else(|| required("duration", "say for how long"))?;
            gates.soak = Some(seconds("duration", text, PROMOTION_SOAK)?);
        }
        GateType::Approval => {
            let expires = optional("expires", &gate.expires, APPROVAL_EXPIRES, EXPIRES)?;
            let quorum = gate.quorum.unwrap_or(1).clamp(1, 20) as usize;
            gates.approval = Some(Approving {
                quorum,
                groups: gate.groups.clone(),
                expires,
            });
        }
        GateType::Window => {
            if gate.schedule.is_none() {
                return Err(required("schedule", "say when it begins"));
            }
            let spec = ChangeWindowSpec {
                r#type: WindowType::Allow,
                schedule: gate.schedule.clone(),
                duration: gate.duration.clone(),
                time_zone: gate.time_zone.clone().unwrap_or_else(|| "UTC".to_owned()),
                ..ChangeWindowSpec::default()
            };
            let window = Window::read("", "", &spec).map_err(|problems| {
                problems
                    .into_iter()
                    .map(|problem| InvalidPipeline {
                        field: problem.field.to_owned(),
                        why: problem.why,
                    })
                    .collect::<Vec<_>>()
            })?;
            gates.window = Some(window);
        }
        GateType::Webhook => {
            address("say whom it asks")?;
            if gate.secret_ref.is_none() {
                return Err(required(
                    "secretRef",
                    "name a Secret with the token that requests are signed with",
                ));
            }
            let interval = optional("interval", &gate.interval, GATE_INTERVAL, INTERVAL)?;
            let expires = optional("expires", &gate.expires, APPROVAL_EXPIRES, PASS_EXPIRES)?;
            gates.webhook = Some(Asking {
                stated: gate.clone(),
                interval,
                expires,
            });
        }
        GateType::Metric => {
            address("state the address of Prometheus")?;
            if gate.query.is_none() {
                return Err(required("query", "state a query in PromQL"));
            }
            let text = gate
                .condition
                .as_deref()
                .ok_or_else(|| required("condition", "state a condition"))?;
            let condition = Expression::compile(text).map_err(|error| required("condition", &error.to_string()))?;
            let measuring = Measuring {
                stated: gate.clone(),
                condition,
                interval: optional("interval", &gate.interval, GATE_INTERVAL, INTERVAL)?,
                duration: optional("duration", &gate.duration, PROMOTION_SOAK, 0)?,
                count: gate.count.unwrap_or(1).max(1),
                failure_limit: gate.failure_limit,
            };
            gates.metric = Some(measuring);
        }
        GateType::Test => gates.test = Some(gate.tests.clone()),
    }
    Ok(())
}

/// A field of a stored spec that this version does not know, and would ignore.
pub fn unknown_gate_field(spec: &Value) -> Option<String> {
    let stages = spec["stages"].as_array().into_iter().flatten();
    let gates = stages.flat_map(|stage| stage["gates"].as_array().into_iter().flatten());
    let fields = gates.filter_map(Value::as_object).flat_map(|gate| gate.keys());
    let mut unknown = fields.filter(|field| !GATE_FIELDS.contains(&field.as_str()));
    unknown.next().cloned()
}

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

/// A stage as observed now.
#[derive(Clone, Debug)]
pub struct Stage<'a> {
    pub name: &'a str,
    pub gates: &'a Gates,
    pub on_failure: StageFailure,
    /// Name of its GitRepository.
    pub repository: &'a str,
    /// Names of the texts that belong to a commit.
    pub promotes: &'a [String],
    /// False: its repository exists, but follows something else than the pipeline.
    pub follows: bool,
    /// The commit its repository serves; for the first stage, with the texts that its services state.
    pub serves: Option<&'a Promotable>,
    /// Why not all of it is healthy at that commit. None: all of it is.
    pub lacks: Option<&'a str>,
    /// Latest time since which it is healthy without interruption, in seconds since 1970.
    pub since: i64,
    /// Earliest time at which any counted cluster was last heard, in seconds since 1970.
    pub heard: i64,
    /// A set was halted at the commit that the repository serves.
    pub failed: bool,
    /// Everything else that a promotion would deploy, or why nothing can be promoted.
    pub content: Result<&'a Value, &'a str>,
    pub tests: &'a Tests,
    /// When a person last discarded all answers, as the person wrote it.
    pub request: Option<&'a str>,
}

/// The new state and its effects.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub state: State,
    /// The candidate of each stage, by index.
    pub candidates: Vec<Option<Candidate>>,
    /// Indices of stages that get a promotion now.
    pub promoted: Vec<usize>,
    /// Indices of stages that are rolled back now.
    pub rolled_back: Vec<usize>,
    /// Questions to ask now. The caller stores each answer in the state, if the question is still open then.
    pub questions: Vec<Question>,
    /// When time alone may change the decision, in seconds since 1970.
    pub next_look: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub what: Promotable,
    /// None: what would be deployed is not known now.
    pub digest: Option<Digest>,
    pub gates: Vec<Held>,
}

/// Whether a gate holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub gate: GateType,
    pub holds: bool,
    /// Failed for good: the same question is not asked again.
    pub failed: bool,
    pub message: String,
}

impl Held {
    fn new(gate: GateType, holds: bool, message: String) -> Self {
        Self {
            gate,
            holds,
            failed: false,
            message,
        }
    }
}

/// What an approval is bound to: everything that would be deployed, and the groups that are asked.
pub fn digest(pipeline_uid: &str, stage: &Stage<'_>, what: &Promotable) -> Option<Digest> {
    let content = stage.content.ok()?;
    let groups = stage.gates.approval.as_ref().map(|approval| &approval.groups);
    Some(Digest::of_json(&json!([
        pipeline_uid,
        stage.name,
        what.commit,
        what.configuration,
        content,
        groups
    ])))
}

/// Pure. `now` counts for the soak, `clock` for windows and approvals. They differ only in tests.
pub fn decide(pipeline_uid: &str, stages: &[Stage<'_>], state: &State, (now, clock): (i64, Timestamp)) -> Decision {
    let mut all = Decision {
        state: State::default(),
        candidates: Vec::new(),
        promoted: Vec::new(),
        rolled_back: Vec::new(),
        questions: Vec::new(),
        next_look: None,
    };

    let mut looks = Vec::new();
    let is_valid = stages.iter().all(|stage| stage.content.is_ok());
    for (index, stage) in stages.iter().enumerate() {
        let mut next = state.stages.get(stage.name).cloned().unwrap_or_default();
        next.well = look_at_health(stage, next.well, now);
        if index == 0 {
            // The first stage keeps nothing else from a time when it was a later stage.
            next = StageState {
                well: next.well,
                ..StageState::default()
            };
            all.candidates.push(None);
        } else {
            if !stage.follows
                || next
                    .promoted
                    .as_ref()
                    .is_some_and(|known| known.repository != stage.repository)
            {
                (next.promoted, next.good) = (None, None);
            }
            if let Some(well) = &next.well {
                next.good = Some(well.what.clone());
            }
            if roll_back(stage, &mut next, now) {
                all.rolled_back.push(index);
            }

            let before = &stages[index - 1];
            let well = all.state.stages.get(before.name).and_then(|state| state.well.as_ref());
            let coming = find_candidate(stage, before, well, &mut next, (now, &mut looks));

            let mut questions = Vec::new();
            let candidate = next.candidate.clone().map(|Well { what, .. }| {
                let digest = digest(pipeline_uid, stage, &what);
                let mut gates = judge(stage, &mut next, digest, clock, &mut looks);
                gates.extend(judge_tests(stage, before, next.tested.as_ref()));
                for (held, question) in ask((index, stage), &mut next, (&what.commit, digest), (now, &mut looks)) {
                    gates.push(held);
                    questions.extend(question);
                }
                Candidate { what, digest, gates }
            });

            match candidate {
                Some(candidate) if is_valid && is_let_through(stage, &candidate) => {
                    let by = next.approvals.iter().map(|approval| approval.by.clone()).collect();
                    // There is no evidence that a commit the stage was never well at would be healthy.
                    let before = next
                        .good
                        .as_ref()
                        .or(stage.serves)
                        .filter(|before| **before != candidate.what);
                    let before = before.cloned();
                    let repository = stage.repository.to_owned();
                    next.promoted = Some(Promoted {
                        what: candidate.what,
                        at: now,
                        by,
                        before,
                        repository,
                    });
                    next.candidate = None;
                    next.approvals.clear();
                    next.answers.clear();
                    (next.tested, next.proof) = (None, None);
                    next.refused = None;
                    all.promoted.push(index);
                    all.candidates.push(None);
                }
                Some(candidate) => {
                    all.candidates.push(Some(candidate));
                    all.questions.extend(questions);
                }
                None => all.candidates.push(coming),
            }
        }
        all.state.stages.insert(stage.name.to_owned(), next);
    }

    all.next_look = looks.into_iter().min();
    all
}

fn is_let_through(stage: &Stage<'_>, candidate: &Candidate) -> bool {
    stage.follows && candidate.gates.iter().all(|held| held.holds)
}

fn look_at_health(stage: &Stage<'_>, known: Option<Well>, now: i64) -> Option<Well> {
    let what = stage.serves.filter(|_| stage.lacks.is_none())?;
    let since = match known {
        // A time in the future is from before the clock was set back, so it proves nothing.
        Some(known) if known.what == *what && known.since <= now => known.since.max(stage.since.min(now)),
        _ => now,
    };
    Some(Well {
        what: what.clone(),
        since,
    })
}

fn roll_back(stage: &Stage<'_>, next: &mut StageState, now: i64) -> bool {
    let Some(promoted) = next
        .promoted
        .as_ref()
        .filter(|_| stage.on_failure == StageFailure::Rollback)
    else {
        return false;
    };
    let has_failed = stage.failed && stage.serves == Some(&promoted.what);
    let Some(before) = promoted.before.clone().filter(|_| has_failed) else {
        return false;
    };
    next.refused = Some(promoted.what.clone());
    let repository = stage.repository.to_owned();
    next.promoted = Some(Promoted {
        what: before,
        at: now,
        by: Vec::new(),
        before: None,
        repository,
    });
    true
}

/// Updates the stage's candidate from the previous stage. Returns the commit that is still being proven, with the time
/// left.
fn find_candidate(
    stage: &Stage<'_>,
    before: &Stage<'_>,
    well: Option<&Well>,
    next: &mut StageState,
    (now, looks): (i64, &mut Vec<i64>),
) -> Option<Candidate> {
    let is_here = |what: &Promotable, next: &StageState| {
        next.promoted.as_ref().is_some_and(|promoted| promoted.what == *what) || next.refused.as_ref() == Some(what)
    };

    let soak = stage.gates.soak.unwrap_or(0);
    let proof = Digest::of_json(&json!([before.name, before.repository, soak, stage.promotes]));
    if next.proof != Some(proof) {
        next.candidate = None;
    }

    let is_proven = well.is_some_and(|well| now >= well.since + soak && before.heard >= well.since + soak);
    // The previous stage is still at it, but is no longer well or only well again: the proof is void.
    let is_over = |proven: &Well| before.serves == Some(&proven.what) && well != Some(proven);
    if next.candidate.as_ref().is_some_and(is_over) {
        next.candidate = None;
    }

    if let Some(well) = well.filter(|well| is_proven && !is_here(&well.what, next)) {
        next.candidate = Some(well.clone());
        next.proof = Some(proof);
        next.tested = Some(before.tests.clone());
    }
    if next
        .candidate
        .as_ref()
        .is_some_and(|proven| is_here(&proven.what, next))
    {
        next.candidate = None;
    }
    if next.candidate.is_none() {
        (next.tested, next.proof) = (None, None);
    }

    // A hub that has just started has heard no cluster yet; the candidate was proven before.
    let is_proven = is_proven || (well.is_some() && next.candidate.as_ref() == well);
    let what = before.serves.filter(|what| !is_proven && !is_here(what, next))?;
    let message = match well {
        None => before.lacks.unwrap_or("it is looked at").to_owned(),
        Some(well) if now < well.since + soak => {
            looks.push(well.since + soak);
            let left = u64::try_from(well.since + soak - now).unwrap_or_default();
            format!(
                "stage {} is healthy at it; {} to go",
                before.name,
                show(std::time::Duration::from_secs(left))
            )
        }
        Some(_) => {
            // A poll changes nothing else that this decision depends on, so look again soon.
            looks.push(now + 1);
            format!(
                "stage {} is healthy at it; a cluster has not been heard since the soak ended",
                before.name
            )
        }
    };
    let held = Held::new(GateType::Soak, false, message);
    Some(Candidate {
        what: what.clone(),
        digest: None,
        gates: vec![held],
    })
}

fn judge(
    stage: &Stage<'_>,
    next: &mut StageState,
    digest: Option<Digest>,
    clock: Timestamp,
    looks: &mut Vec<i64>,
) -> Vec<Held> {
    let mut gates = Vec::new();
    if let Some(soak) = stage.gates.soak {
        let message = format!("the stage before was healthy at it for {}", seconds(soak));
        gates.push(Held::new(GateType::Soak, true, message));
    }

    if let Some(approving) = &stage.gates.approval {
        let now = clock.as_second();
        // While the digest is unknown, keep the approvals: it may turn out to be the approved one.
        if let Some(digest) = digest {
            next.approvals
                .retain(|approval| approval.digest == digest && approval.at + approving.expires > now);
        }
        let count = if digest.is_some() { next.approvals.len() } else { 0 };
        looks.extend(next.approvals.iter().map(|approval| approval.at + approving.expires));
        let names: Vec<&str> = next.approvals.iter().map(|approval| approval.by.as_str()).collect();
        let by = if names.is_empty() {
            String::new()
        } else {
            format!(": {}", names.join(", "))
        };
        let message = format!("{count} of {} have approved{by}", approving.quorum);
        gates.push(Held::new(GateType::Approval, count >= approving.quorum, message));
    } else {
        next.approvals.clear();
    }

    if let Some(window) = &stage.gates.window {
        let standing = window.at(clock);
        looks.extend(standing.until.map(Timestamp::as_second));
        let message = match (standing.in_force, standing.until) {
            (true, _) => "it is open".to_owned(),
            (false, Some(until)) => format!("it opens at {until}"),
            (false, None) => "it never opens".to_owned(),
        };
        gates.push(Held::new(GateType::Window, standing.in_force, message));
    }
    gates
}

fn judge_tests(stage: &Stage<'_>, before: &Stage<'_>, tested: Option<&Tests>) -> Option<Held> {
    let wanted = stage.gates.test.as_ref()?;
    let lacks = match tested {
        None => Some("the tested revision of it is unknown".to_owned()),
        Some(tested) if wanted.is_empty() => tested.without.as_ref().map(|what| format!("{what} states no test")),
        Some(tested) => {
            let missing = wanted.iter().find(|name| !tested.names.contains(*name));
            missing.map(|name| format!("nothing of stage {} states a test {name}", before.name))
        }
    };
    let passed = || match (wanted.as_slice(), tested) {
        ([], Some(tested)) => tested.names.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        (wanted, _) => wanted.join(", "),
    };
    let message = lacks
        .clone()
        .unwrap_or_else(|| format!("passed in stage {}: {}", before.name, passed()));
    Some(Held::new(GateType::Test, lacks.is_none(), message))
}

/// How the gates that ask outside services stand, and what to ask now.
fn ask(
    (index, stage): (usize, &Stage<'_>),
    next: &mut StageState,
    (commit, digest): (&str, Option<Digest>),
    (now, looks): (i64, &mut Vec<i64>),
) -> Vec<(Held, Option<Question>)> {
    let mut all = Vec::new();
    for (gate, stated, counts_for) in answers::asked_gates(stage.gates) {
        let Some(digest) = digest else {
            all.push((
                Held::new(gate, false, "the candidate can't be determined".to_owned()),
                None,
            ));
            continue;
        };
        let of = answers::question(digest, stated, stage.request);
        let remembered = next.answers.get(&gate);
        let (held, is_due, look) = answers::stand((gate, of), remembered, (now, counts_for));
        looks.extend(look);
        let before = remembered.filter(|answer| answer.of == of).cloned();
        let question = Question {
            stage: index,
            gate,
            of,
            commit: commit.to_owned(),
            digest,
            before,
        };
        all.push((held, (is_due && stage.follows).then_some(question)));
    }
    next.answers
        .retain(|gate, _| answers::asked_gates(stage.gates).any(|(asked, ..)| asked == *gate));
    all
}

fn seconds(seconds: i64) -> String {
    show(std::time::Duration::from_secs(seconds.unsigned_abs()))
}

#[cfg(test)]
#[path = "promotion_tests.rs"]
mod tests;
