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
mod gates;
pub mod metric;
mod state;
pub mod texts;

use farwater_api::{
    Digest,
    pipeline::{GateType, StageFailure},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use self::answers::Question;
use crate::duration::show;

pub use gates::{Approving, Gates, InvalidPipeline, read_gates, unknown_gate_field};
pub use state::{Approval, Promotable, Promoted, StageState, State, Tests, Well};

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
            follow_repository(stage, &mut next);
            if roll_back(stage, &mut next, now) {
                all.rolled_back.push(index);
            }

            let before = &stages[index - 1];
            let well = all.state.stages.get(before.name).and_then(|state| state.well.as_ref());
            let coming = find_candidate(stage, before, well, &mut next, (now, &mut looks));
            let judged = judge_candidate(
                pipeline_uid,
                (index, stage, before),
                &mut next,
                (now, clock, &mut looks),
            );

            match judged {
                Some((candidate, _)) if is_valid && is_let_through(stage, &candidate) => {
                    promote(stage, &mut next, candidate.what, now);
                    all.promoted.push(index);
                    all.candidates.push(None);
                }
                Some((candidate, questions)) => {
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

/// Forgets the promotion of a repository that the stage no longer has or that people have taken over, and notes the
/// commit that all of the stage is well at.
fn follow_repository(stage: &Stage<'_>, next: &mut StageState) {
    let is_other = |known: &Promoted| known.repository != stage.repository;
    if !stage.follows || next.promoted.as_ref().is_some_and(is_other) {
        (next.promoted, next.good) = (None, None);
    }
    if let Some(well) = &next.well {
        next.good = Some(well.what.clone());
    }
}

/// The stage's candidate with all of its gates, and the questions to ask if it is not promoted now.
fn judge_candidate(
    pipeline_uid: &str,
    (index, stage, before): (usize, &Stage<'_>, &Stage<'_>),
    next: &mut StageState,
    (now, clock, looks): (i64, Timestamp, &mut Vec<i64>),
) -> Option<(Candidate, Vec<Question>)> {
    let Well { what, .. } = next.candidate.clone()?;
    let digest = digest(pipeline_uid, stage, &what);
    let mut gates = judge(stage, next, digest, clock, looks);
    gates.extend(judge_tests(stage, before, next.tested.as_ref()));

    let mut questions = Vec::new();
    for (held, question) in ask((index, stage), next, (&what.commit, digest), (now, looks)) {
        gates.push(held);
        questions.extend(question);
    }
    Some((Candidate { what, digest, gates }, questions))
}

/// Records the promotion of the stage's candidate, and forgets what was remembered of the candidate.
fn promote(stage: &Stage<'_>, next: &mut StageState, what: Promotable, now: i64) {
    let by = next.approvals.iter().map(|approval| approval.by.clone()).collect();
    // There is no evidence that a commit the stage was never well at would be healthy.
    let before = next.good.as_ref().or(stage.serves).filter(|before| **before != what);
    let before = before.cloned();
    let repository = stage.repository.to_owned();
    next.promoted = Some(Promoted {
        what,
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
    let message = describe_proof(before, well, soak, (now, looks));
    let held = Held::new(GateType::Soak, false, message);
    Some(Candidate {
        what: what.clone(),
        digest: None,
        gates: vec![held],
    })
}

/// Why the commit that the previous stage is at is not proven yet.
fn describe_proof(before: &Stage<'_>, well: Option<&Well>, soak: i64, (now, looks): (i64, &mut Vec<i64>)) -> String {
    match well {
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
    }
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
