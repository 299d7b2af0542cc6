use std::collections::BTreeSet;

use farwater_api::pipeline::{PipelineSpec, PromotionGate};
use proptest::prelude::*;
use serde_json::json;

use super::{
    answers::{Heard, Said},
    gates::{GATE_FIELDS, foreign_fields},
    *,
};

const DAY: i64 = 24 * 3600;

/// Reads `c1`, or `c1/2` for a commit with a text.
fn what(text: &str) -> Promotable {
    let (commit, tag) = text.split_once('/').unwrap_or((text, ""));
    let tag = (!tag.is_empty()).then(|| ("tag".to_owned(), tag.to_owned()));
    Promotable {
        commit: commit.to_owned(),
        configuration: tag.into_iter().collect(),
    }
}

fn show_what(what: &Promotable) -> String {
    let tag = what
        .configuration
        .get("tag")
        .map(|tag| format!("/{tag}"))
        .unwrap_or_default();
    format!("{}{tag}", what.commit)
}

fn read(text: &str) -> Result<Vec<Gates>, Vec<String>> {
    let spec: PipelineSpec = serde_saphyr::from_str(text).unwrap();
    read_gates(&spec).map_err(|all| {
        all.into_iter()
            .map(|one| format!("{}: {}", one.field, one.why))
            .collect()
    })
}

/// A pipeline of two stages. `gates` are those of the second.
fn two(gates: &str) -> String {
    format!(
        "stages: [{{name: a, sourceRef: {{name: a}}, sets: [a]}}, {{name: b, sourceRef: {{name: b}}, services: [b], gates: {gates}}}]"
    )
}

#[test]
fn what_makes_no_sense_is_named_with_its_field() {
    let check = |gates: &str, expected: &[&str]| assert_eq!(read(&two(gates)).unwrap_err(), expected, "{gates}");
    assert!(read(&two("[]")).is_ok());
    assert!(
        read(&two(
            "[{type: Soak, duration: 1h}, {type: Approval, quorum: 2, groups: [ops]}]"
        ))
        .is_ok()
    );
    assert!(
        read(&two(
            "[{type: Window, schedule: '0 9 * * 1-5', duration: 8h, timeZone: Europe/Berlin}]"
        ))
        .is_ok()
    );
    check("[{type: Soak}]", &["stages[1].gates[0].duration: say for how long"]);
    check(
        "[{type: Soak, duration: 1h}, {type: Soak, duration: 2h}]",
        &["stages[1].gates[1].type: Soak is stated twice"],
    );
    check(
        "[{type: Soak, duration: 1h, quorum: 2}]",
        &["stages[1].gates[0].quorum: a gate Soak has none"],
    );
    check(
        "[{type: Approval, expires: 1s}]",
        &["stages[1].gates[0].expires: must be between 1m and 720h"],
    );
    check(
        "[{type: Window, duration: 1h}]",
        &["stages[1].gates[0].schedule: say when it begins"],
    );
    assert!(read(&two(ASKING)).is_ok(), "{:?}", read(&two(ASKING)));
    assert!(read(&two("[{type: Test}]")).is_ok());
    check(
        "[{type: Webhook, secretRef: {name: a}}]",
        &["stages[1].gates[0].address: say whom it asks"],
    );
    check(
        "[{type: Webhook, address: 'https://x/y?token=z', secretRef: {name: a}}]",
        &[
            "stages[1].gates[0].address: it has a user, a query or a fragment: put secrets into the Secret, as token or address",
        ],
    );
    check(
        "[{type: Webhook, address: 'https://x'}]",
        &["stages[1].gates[0].secretRef: name a Secret with the token that requests are signed with"],
    );
    check(
        "[{type: Webhook, address: 'https://x', secretRef: {name: a}, query: up}]",
        &["stages[1].gates[0].query: a gate Webhook has none"],
    );
    check(
        "[{type: Metric, address: 'https://x', query: up}]",
        &["stages[1].gates[0].condition: state a condition"],
    );
    check(
        "[{type: Metric, address: 'https://x', query: up, condition: 'self.value > limit'}]",
        &["stages[1].gates[0].condition: knows no \"limit\": the object is \"self\""],
    );
    check(
        "[{type: Metric, address: 'https://x', query: up, condition: 'true', interval: 10ms}]",
        &["stages[1].gates[0].interval: must be between 1s and 24h"],
    );
    check(
        "[{type: Test, duration: 1h}]",
        &["stages[1].gates[0].duration: a gate Test has none"],
    );
    let wrong = "stages: [{name: a, sourceRef: {name: x}, gates: [{type: Approval}]}, {name: a, sourceRef: {name: x}, sets: [b, b]}]";
    assert_eq!(
        read(wrong).unwrap_err(),
        [
            "stages[0].sets: a stage needs at least one set or service: an empty stage can't be proven healthy",
            "stages[0].gates: the first stage follows its repository: nothing is promoted to it",
            "stages[1].name: another stage is called so",
            "stages[1].sourceRef: another stage uses it: each stage needs its own GitRepository",
            "stages[1].sets: it is named twice and can't be at two revisions",
        ]
    );
    let newer = json!({"stages": [{"name": "a"}, {"name": "b", "gates": [{"type": "Approval", "notAuthor": true}]}]});
    assert_eq!(unknown_gate_field(&newer).as_deref(), Some("notAuthor"));
    assert_eq!(
        unknown_gate_field(&json!({"stages": [{"gates": [{"type": "Soak", "duration": "1h"}]}]})),
        None
    );
}

#[test]
fn each_field_of_a_gate_is_known_and_belongs_to_a_type() {
    let all = json!({
        "type": "Soak", "duration": "1h", "quorum": 1, "groups": ["a"], "expires": "1h", "schedule": "a", "timeZone": "a",
        "address": "a", "secretRef": {"name": "a"}, "certSecretRef": {"name": "a"}, "interval": "1h", "query": "a",
        "condition": "a", "count": 1, "failureLimit": 1, "tests": ["a"],
    });
    let gate: PromotionGate = serde_json::from_value(all.clone()).unwrap();
    assert_eq!(serde_json::to_value(&gate).unwrap(), all);
    let stated: BTreeSet<&str> = all.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(stated, BTreeSet::from(GATE_FIELDS));
    assert_eq!(
        foreign_fields(&gate).len(),
        GATE_FIELDS.len() - 2,
        "all but type and duration"
    );
}

const ASKING: &str = "[{type: Webhook, address: 'https://x', secretRef: {name: a}, interval: 10m, expires: 2h}, \
    {type: Metric, address: 'https://x', query: up, condition: 'self.value == 1', interval: 1h, count: 2, failureLimit: 2}]";

/// The stages and their state, and what an observer of all of it knows.
struct World {
    gates: Gates,
    on_failure: StageFailure,
    repository: &'static str,
    /// Whether the first stage's content can be read.
    is_valid: bool,
    follows: bool,
    now: i64,
    serves: [Option<Promotable>; 2],
    lacks: bool,
    /// Whether the second stage is on its way.
    is_on_its_way: bool,
    heard: i64,
    failed: bool,
    template: u8,
    tests: Tests,
    request: Option<String>,
    state: State,
    /// The commit at which the first stage was healthy in each look, and since when.
    well: Option<(Promotable, i64)>,
    /// Commits at which the first stage was healthy for the whole soak.
    proven: std::collections::BTreeSet<String>,
}

impl World {
    fn new(gates: &str) -> Self {
        let gates = read(&two(gates)).unwrap().remove(1);
        Self {
            gates,
            on_failure: StageFailure::Halt,
            repository: "b",
            is_valid: true,
            follows: true,
            now: 1000,
            serves: [Some(what("c0")), None],
            lacks: false,
            is_on_its_way: false,
            heard: 1000,
            failed: false,
            template: 0,
            tests: Tests::default(),
            request: None,
            state: State::default(),
            well: None,
            proven: std::collections::BTreeSet::new(),
        }
    }

    fn content(&self) -> Value {
        json!([self.template])
    }

    fn stages<'a>(&'a self, first: &'a Gates, content: &'a Value) -> [Stage<'a>; 2] {
        let stage = Stage {
            name: "a",
            gates: first,
            on_failure: StageFailure::Halt,
            repository: "a",
            promotes: &[],
            follows: false,
            serves: self.serves[0].as_ref(),
            lacks: self.lacks.then_some("it is not healthy"),
            since: 0,
            heard: self.heard,
            failed: false,
            content: if self.is_valid {
                Ok(content)
            } else {
                Err("it is invalid")
            },
            tests: &self.tests,
            request: self.request.as_deref(),
        };
        let second = Stage {
            name: "b",
            repository: self.repository,
            gates: &self.gates,
            on_failure: self.on_failure,
            follows: self.follows,
            serves: self.serves[1].as_ref(),
            lacks: self.is_on_its_way.then_some("it is on its way"),
            failed: self.failed,
            content: Ok(content),
            ..stage.clone()
        };
        [stage, second]
    }

    fn look(&mut self) -> Decision {
        let (first, content) = (Gates::default(), self.content());
        let clock = Timestamp::from_second(self.now).unwrap();
        let decision = decide("uid", &self.stages(&first, &content), &self.state, (self.now, clock));
        let again = decide(
            "uid",
            &self.stages(&first, &content),
            &decision.state,
            (self.now, clock),
        );
        assert!(
            again.promoted.is_empty() && again.rolled_back.is_empty(),
            "what was done is done again: {again:#?}"
        );
        self.state = serde_json::from_str(&serde_json::to_string(&decision.state).unwrap()).unwrap();
        decision
    }

    fn approve(&mut self, by: &str, commit: &str) {
        let (first, content) = (Gates::default(), self.content());
        let digest = digest("uid", &self.stages(&first, &content)[1], &what(commit)).unwrap();
        let approval = Approval {
            by: by.to_owned(),
            at: self.now,
            digest,
            reason: String::new(),
        };
        self.state.stages.entry("b".to_owned()).or_default().approve(approval);
    }

    /// The questions that the gates ask now.
    fn questions(&mut self) -> Vec<Question> {
        self.look().questions
    }

    /// Gives an answer if the question is still asked. Returns whether it is.
    fn answer(&mut self, question: &Question, said: Said) -> bool {
        let asked = self
            .questions()
            .into_iter()
            .find(|now| now.gate == question.gate && now.of == question.of);
        let Some(question) = asked else { return false };
        let heard = Heard {
            said,
            message: "m".to_owned(),
            after: None,
        };
        let answer = question.answer(&self.gates, &heard, self.now).unwrap();
        self.state
            .stages
            .entry("b".to_owned())
            .or_default()
            .answers
            .insert(question.gate, answer);
        true
    }

    /// Answers the question that a gate asks now.
    fn say(&mut self, gate: GateType, said: Said) {
        let question = self
            .questions()
            .into_iter()
            .find(|question| question.gate == gate)
            .unwrap();
        assert!(self.answer(&question, said));
    }

    fn promoted(&self) -> Option<String> {
        self.state.promoted("b").map(show_what)
    }

    fn candidate(&mut self) -> Option<(String, Vec<String>)> {
        let candidate = self.look().candidates.pop()??;
        Some((
            show_what(&candidate.what),
            candidate.gates.into_iter().map(|held| held.message).collect(),
        ))
    }
}

#[test]
fn a_commit_soaks_is_approved_by_two_and_goes_on() {
    let mut world = World::new("[{type: Soak, duration: 1h}, {type: Approval, quorum: 2}]");
    let (commit, told) = world.candidate().unwrap();
    assert_eq!(
        (commit.as_str(), told[0].as_str()),
        ("c0", "stage a is healthy at it; 1h to go")
    );
    world.now += 3600;
    let (_, told) = world.candidate().unwrap();
    assert_eq!(
        told,
        ["stage a is healthy at it; a cluster has not been heard since the soak ended"]
    );
    world.heard = world.now;
    let (_, told) = world.candidate().unwrap();
    assert_eq!(
        told,
        ["the stage before was healthy at it for 1h", "0 of 2 have approved"]
    );
    world.approve("ada", "c0");
    world.approve("ada", "c0");
    assert_eq!(world.candidate().unwrap().1[1], "1 of 2 have approved: ada");
    // The stage's template changed, so something else would be deployed now.
    world.template = 1;
    assert_eq!(world.candidate().unwrap().1[1], "0 of 2 have approved");
    world.approve("ada", "c0");
    world.now += 72 * 3600;
    world.approve("bob", "c0");
    assert_eq!(world.candidate().unwrap().1[1], "1 of 2 have approved: bob");
    world.approve("ada", "c0");
    let decision = world.look();
    assert_eq!(
        (decision.promoted.as_slice(), world.promoted().as_deref()),
        ([1].as_slice(), Some("c0"))
    );
    assert_eq!(world.state.stages["b"].promoted.as_ref().unwrap().by, ["bob", "ada"]);
}

#[test]
fn a_break_begins_the_soak_anew_and_what_was_proven_stays_so_when_the_stage_goes_on() {
    let mut world = World::new("[{type: Soak, duration: 1h}, {type: Approval}]");
    world.look();
    world.now += 3000;
    world.lacks = true;
    assert_eq!(world.candidate().unwrap().1, ["it is not healthy"]);
    world.lacks = false;
    world.look();
    world.now += 3000;
    world.heard = world.now;
    assert_eq!(world.candidate().unwrap().1, ["stage a is healthy at it; 10m to go"]);
    world.now += 600;
    world.heard = world.now;
    assert_eq!(world.candidate().unwrap().1.len(), 2);
    world.serves[0] = Some(what("c1"));
    world.lacks = true;
    assert_eq!(world.candidate().unwrap().0, "c0");
    world.approve("ada", "c0");
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c0"));
}

#[test]
fn a_stage_that_fails_goes_back_and_takes_that_commit_no_more() {
    let mut world = World::new("[]");
    world.on_failure = StageFailure::Rollback;
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c0"));
    world.serves = [Some(what("c1")), Some(what("c0"))];
    world.heard = world.now;
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c1"));
    // The failure is of the previous commit.
    world.failed = true;
    assert!(world.look().rolled_back.is_empty());
    world.serves[1] = Some(what("c1"));
    assert_eq!(world.look().rolled_back, [1]);
    assert_eq!(world.promoted().as_deref(), Some("c0"));
    world.serves[1] = Some(what("c0"));
    world.failed = false;
    assert_eq!((world.candidate(), world.promoted().as_deref()), (None, Some("c0")));
    world.serves[0] = Some(what("c2"));
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c2"));
}

#[test]
fn a_stage_that_somebody_took_into_their_own_hands_goes_on_from_what_it_serves() {
    let mut world = World::new("[{type: Approval}]");
    world.look();
    world.approve("ada", "c0");
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c0"));
    world.follows = false;
    world.serves = [Some(what("c1")), Some(what("urgent"))];
    world.look();
    assert_eq!(world.promoted(), None);
    world.approve("ada", "c1");
    world.look();
    assert_eq!(world.promoted(), None, "it is not the pipeline's");
    world.follows = true;
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c1"));
    assert_eq!(
        world.state.stages["b"].promoted.as_ref().unwrap().before,
        Some(what("urgent"))
    );
}

#[test]
fn texts_go_with_a_commit_and_others_are_another_commit() {
    let mut world = World::new("[{type: Soak, duration: 1h}, {type: Approval}]");
    world.serves[0] = Some(what("c0/1"));
    world.look();
    world.now += 3000;
    world.heard = world.now;
    world.serves[0] = Some(what("c0/2"));
    assert_eq!(world.candidate().unwrap().1, ["stage a is healthy at it; 1h to go"]);
    world.now += 3600;
    world.heard = world.now;
    world.approve("ada", "c0/1");
    assert_eq!(world.candidate().unwrap().1[1], "0 of 1 have approved");
    world.approve("ada", "c0/2");
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c0/2"));
    // The commit is the same, but somebody has changed the text in the previous stage.
    world.serves = [Some(what("c0/3")), Some(what("c0/2"))];
    world.look();
    world.now += 3600;
    world.heard = world.now;
    world.approve("ada", "c0/3");
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c0/3"));
    assert_eq!(
        world.state.stages["b"].promoted.as_ref().unwrap().before,
        Some(what("c0/2"))
    );
}

#[test]
fn what_was_proven_otherwise_is_proven_anew() {
    let mut world = World::new("[{type: Soak, duration: 1h}, {type: Approval}]");
    let told = |world: &mut World| world.candidate().unwrap().1.remove(0);
    world.look();
    world.now += 3600;
    world.heard = world.now;
    assert_eq!(told(&mut world), "the stage before was healthy at it for 1h");
    // The previous stage has gone on, and the required soak is longer now.
    world.serves[0] = Some(what("c1"));
    world.approve("ada", "c0");
    world.gates.soak = Some(2 * 3600);
    assert_eq!(told(&mut world), "stage a is healthy at it; 2h to go");
    assert_eq!(world.promoted(), None);
    world.now += 2 * 3600;
    world.heard = world.now;
    assert_eq!(told(&mut world), "the stage before was healthy at it for 2h");
    // Something is wrong with another stage.
    world.approve("ada", "c1");
    world.is_valid = false;
    world.look();
    assert_eq!(world.promoted(), None);
    world.is_valid = true;
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c1"));
    // The promotion was for another repository.
    world.repository = "other";
    world.look();
    assert_eq!(world.promoted(), None);
}

#[test]
fn a_stage_goes_back_to_what_it_was_well_at_and_not_to_what_was_on_its_way() {
    let mut world = World::new("[]");
    world.on_failure = StageFailure::Rollback;
    let promote = |world: &mut World, commit: &str| {
        world.serves[0] = Some(what(commit));
        world.look();
        assert_eq!(world.promoted().as_deref(), Some(commit));
        world.serves[1] = Some(what(commit));
    };
    promote(&mut world, "c0");
    world.look();
    // The next version is on its way when the one after it replaces it.
    world.is_on_its_way = true;
    promote(&mut world, "c1");
    promote(&mut world, "c2");
    world.failed = true;
    world.look();
    assert_eq!(world.promoted().as_deref(), Some("c0"));
}

#[test]
fn texts_do_not_go_by_a_pull_request() {
    let pull = "{sourceRef: {name: env}, url: 'https://g/env.git', secretRef: {name: s}, path: a.yaml, field: a}";
    let stages = format!(
        "stages: [{{name: a, sourceRef: {{name: a}}, sets: [a]}}, {{name: b, sourceRef: {{name: b}}, services: [b], pullRequest: {pull}}}]"
    );
    assert!(read(&stages).is_ok(), "{:?}", read(&stages));
    let told = read(&format!("{stages}\npromotes: {{configuration: [tag]}}")).unwrap_err();
    assert!(
        told[0].starts_with("stages[1].pullRequest: texts go with what"),
        "{told:?}"
    );
}

#[test]
fn a_service_is_asked_until_it_says_pass_or_fail_and_only_about_what_would_be_deployed_now() {
    let mut world = World::new("[{type: Webhook, address: 'https://x', secretRef: {name: a}}, {type: Approval}]");
    let told = |world: &mut World| world.candidate().unwrap().1.remove(1);
    assert_eq!(told(&mut world), "it is asked");
    let first = world.questions().remove(0);
    assert_eq!((first.commit.as_str(), first.before.as_ref()), ("c0", None));
    world.say(GateType::Webhook, Said::Error);
    assert_eq!(
        (told(&mut world).as_str(), world.questions().len()),
        ("it could not be asked: m", 0)
    );
    world.now += 2;
    assert_ne!(world.questions().remove(0).id(), first.id());
    world.say(GateType::Webhook, Said::Wait);
    world.now += 59;
    assert_eq!(
        (told(&mut world).as_str(), world.questions().len()),
        ("it says wait: m", 0)
    );
    world.now += 1;
    let late = world.questions().remove(0);
    world.say(GateType::Webhook, Said::Pass);
    assert_eq!(told(&mut world), "it says pass: m");
    // The answer to an earlier question comes late. After that, something else would be deployed.
    assert!(!world.answer(&late, Said::Fail));
    world.template = 1;
    assert_eq!(told(&mut world), "it is asked");
    assert!(!world.answer(&late, Said::Pass));
    world.say(GateType::Webhook, Said::Fail);
    world.now += 30 * DAY;
    assert_eq!(
        (told(&mut world).as_str(), world.questions().len()),
        ("it says fail: m", 0)
    );
    assert!(world.look().candidates[1].as_ref().unwrap().gates[1].failed);
    // A person has the question asked again. A pass counts for an hour.
    world.request = Some("now".to_owned());
    world.say(GateType::Webhook, Said::Pass);
    world.now += 3600;
    assert_eq!(told(&mut world), "its answer has expired; it is asked again");
    world.approve("ada", "c0");
    assert!(world.look().promoted.is_empty());
    world.say(GateType::Webhook, Said::Pass);
    assert_eq!(world.look().promoted, [1]);
    assert_eq!(world.state.stages["b"].answers.len(), 0);
}

#[test]
fn a_measurement_holds_in_a_row_without_silence_and_fails_at_its_limit() {
    let gate = "{type: Metric, address: 'https://x', query: up, condition: 'self.value == 1', interval: 1m, ";
    let mut world = World::new(&format!(
        "[{gate} count: 3, duration: 2m, failureLimit: 2}}, {{type: Approval}}]"
    ));
    let measured = |world: &mut World, said: Said| {
        world.say(GateType::Metric, said);
        world.candidate().unwrap().1.remove(1)
    };
    assert_eq!(
        measured(&mut world, Said::Pass),
        "it holds: m; 1 of 3 times in a row, 2m to go"
    );
    world.now += 60;
    assert_eq!(measured(&mut world, Said::Error), "it could not be measured: m");
    world.now += 2;
    assert_eq!(
        measured(&mut world, Said::Pass),
        "it holds: m; 2 of 3 times in a row, 58s to go"
    );
    world.now += 60;
    assert_eq!(measured(&mut world, Said::Fail), "it does not hold: m; 1 of 2 failures");
    // The hub is away.
    world.now += 60;
    assert_eq!(
        measured(&mut world, Said::Pass),
        "it holds: m; 1 of 3 times in a row, 2m to go"
    );
    world.now += 3600;
    assert_eq!(
        measured(&mut world, Said::Pass),
        "it holds: m; 1 of 3 times in a row, 2m to go"
    );
    for _ in 0..2 {
        world.now += 60;
        measured(&mut world, Said::Pass);
    }
    assert_eq!(world.candidate().unwrap().1[1], "it holds: m");
    world.now += 3600;
    world.approve("ada", "c0");
    assert!(world.look().promoted.is_empty(), "that was an hour ago");
    world.template = 1;
    for expected in ["it does not hold: m; 1 of 2 failures", "it did not hold 2 times: m"] {
        assert_eq!(measured(&mut world, Said::Fail), expected);
        world.now += 60;
    }
    assert!(world.questions().is_empty());
}

#[test]
fn tests_are_those_that_were_stated_when_the_commit_was_proven() {
    let stated = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let mut world = World::new("[{type: Test, tests: [smoke]}, {type: Approval}]");
    world.tests.add(|| "ServiceSet web".to_owned(), stated(&["load"]));
    let told = |world: &mut World| world.candidate().unwrap().1.remove(1);
    assert_eq!(told(&mut world), "nothing of stage a states a test smoke");
    world.tests.add(|| "ServiceDeployment db".to_owned(), stated(&[]));
    world
        .tests
        .add(|| "ServiceDeployment smoke".to_owned(), stated(&["smoke"]));
    assert_eq!(told(&mut world), "passed in stage a: smoke");
    // The previous stage has gone on, and no test is stated any more. The proven commit was tested.
    world.serves[0] = Some(what("c1"));
    world.lacks = true;
    world.tests = Tests::default();
    assert_eq!(told(&mut world), "passed in stage a: smoke");
    world.lacks = false;
    assert_eq!(told(&mut world), "nothing of stage a states a test smoke");
    world.gates.test = Some(Vec::new());
    world.tests.add(|| "ServiceSet web".to_owned(), stated(&["load"]));
    assert_eq!(told(&mut world), "passed in stage a: load");
    world.tests.add(|| "ServiceDeployment db".to_owned(), stated(&[]));
    assert_eq!(told(&mut world), "ServiceDeployment db states no test");
    world.state.stages.get_mut("b").unwrap().tested = None;
    world.serves[0] = Some(what("c2"));
    world.lacks = true;
    assert_eq!(told(&mut world), "the tested revision of it is unknown");
}

/// Two commits, each with two texts.
fn nth(n: u8) -> String {
    format!("c{}/{}", n / 2, n % 2)
}

#[derive(Clone, Debug)]
enum Step {
    Pass(i64),
    Commit(u8),
    Health(bool),
    Hear,
    Approve(u8, u8),
    Edit(u8),
    Look,
    Fetch,
    Fail(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (-4000..20_000i64).prop_map(Step::Pass),
        (0..4u8).prop_map(Step::Commit),
        any::<bool>().prop_map(Step::Health),
        Just(Step::Hear),
        (0..3u8, 0..4u8).prop_map(|(by, commit)| Step::Approve(by, commit)),
        (0..2u8).prop_map(Step::Edit),
        Just(Step::Look),
        Just(Step::Look),
        Just(Step::Fetch),
        any::<bool>().prop_map(Step::Fail),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The observer keeps its own records and knows nothing of candidates.
    #[test]
    fn nothing_reaches_a_stage_whose_gates_did_not_hold_for_exactly_that(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new(
            "[{type: Soak, duration: 1h}, {type: Approval, quorum: 2, expires: 24h}, \
              {type: Window, schedule: '0 0 * * *', duration: 12h}]",
        );
        world.on_failure = StageFailure::Rollback;
        let mut approvals: Vec<(u8, String, u8, i64)> = Vec::new();
        for step in steps {
            match step {
                Step::Pass(seconds) => world.now = (world.now + seconds).max(0),
                Step::Commit(commit) => world.serves[0] = Some(what(&nth(commit))),
                Step::Health(lacks) => world.lacks = lacks,
                Step::Hear => world.heard = world.heard.max(world.now),
                Step::Approve(by, commit) => {
                    let commit = nth(commit);
                    world.approve(&by.to_string(), &commit);
                    approvals.push((by, commit, world.template, world.now));
                }
                Step::Edit(template) => world.template = template,
                Step::Fetch => world.serves[1] = world.state.promoted("b").cloned(),
                Step::Fail(failed) => world.failed = failed,
                Step::Look => {
                    let known = world.well.take();
                    let serves = world.serves[0].clone().filter(|_| !world.lacks);
                    world.well = serves.map(|commit| match known {
                        Some((known, since)) if known == commit && since <= world.now => (commit, since),
                        _ => (commit, world.now),
                    });
                    let is_over = |since: i64| world.now >= since + 3600 && world.heard >= since + 3600;
                    let proven = world.well.clone().filter(|(_, since)| is_over(*since)).map(|(what, _)| show_what(&what));
                    world.proven.extend(proven.clone());
                    let decision = world.look();
                    if decision.promoted.is_empty() {
                        prop_assert!(decision.rolled_back.len() < 2);
                        continue;
                    }
                    let commit = world.promoted().unwrap();
                    prop_assert!(world.proven.contains(&commit), "{commit} was never proven");
                    if world.serves[0].as_ref().map(show_what).as_ref() == Some(&commit) {
                        prop_assert_eq!(proven.as_deref(), Some(&*commit), "it is broken now");
                    }
                    let by: BTreeSet<u8> = approvals
                        .iter()
                        .filter(|(_, of, template, at)| *of == commit && *template == world.template && *at + DAY > world.now)
                        .map(|(by, ..)| *by)
                        .collect();
                    prop_assert!(by.len() >= 2, "{by:?} approved {commit}");
                    prop_assert!(world.now % DAY < DAY / 2, "the window is closed");
                }
            }
        }
    }

    /// Answers come late, in any order, and while everything changes. The observer records each with its question.
    #[test]
    fn nothing_reaches_a_stage_while_the_last_answer_for_exactly_that_is_no_pass(
        steps in prop::collection::vec(asking_step(), 1..60)
    ) {
        let mut world = World::new(ASKING);
        let mut asked: Vec<(Question, u8)> = Vec::new();
        // (gate, commit, template, time, answer)
        let mut said: Vec<(GateType, String, u8, i64, Said)> = Vec::new();
        for step in steps {
            match step {
                AskingStep::Pass(seconds) => world.now = (world.now + seconds).max(0),
                AskingStep::Commit(commit) => world.serves[0] = Some(what(&format!("c{commit}"))),
                AskingStep::Health(lacks) => world.lacks = lacks,
                AskingStep::Edit(template) => world.template = template,
                AskingStep::Ask => {
                    world.heard = world.now;
                    let template = world.template;
                    asked.extend(world.questions().into_iter().map(|question| (question, template)));
                }
                AskingStep::Answer(which, what) if !asked.is_empty() => {
                    let (question, template) = asked.swap_remove(which % asked.len());
                    if world.answer(&question, what) {
                        said.push((question.gate, question.commit.clone(), template, world.now, what));
                    }
                }
                AskingStep::Answer(..) => {}
            }
            world.heard = world.now;
            let (before, template) = (world.promoted(), world.template);
            world.look();
            let Some(commit) = world.promoted().filter(|now| before.as_ref() != Some(now)) else {
                continue;
            };
            let of = |gate: GateType| {
                let said = said.iter().rev().filter(|one| one.0 == gate && one.1 == commit && one.2 == template);
                said.map(|one| (one.3, one.4)).collect::<Vec<_>>()
            };
            let webhook = of(GateType::Webhook);
            let (at, what) = webhook[0];
            prop_assert!(what == Said::Pass && (at..at + 7200).contains(&world.now), "{webhook:?} at {}", world.now);
            // Apart from errors it has held twice, not too far apart.
            let metric = of(GateType::Metric);
            prop_assert!(metric[0].1 == Said::Pass && (0..7230).contains(&(world.now - metric[0].0)), "{metric:?}");
            let mut measured = metric.iter().filter(|(_, what)| *what != Said::Error);
            let (last, earlier) = (measured.next().unwrap(), measured.next().unwrap());
            prop_assert!(earlier.1 == Said::Pass && (0..=7230).contains(&(last.0 - earlier.0)), "{metric:?}");
            said.clear();
        }
    }
}

#[derive(Clone, Debug)]
enum AskingStep {
    Pass(i64),
    Commit(u8),
    Health(bool),
    Edit(u8),
    Ask,
    Answer(usize, Said),
}

fn asking_step() -> impl Strategy<Value = AskingStep> {
    let others = prop_oneof![Just(Said::Fail), Just(Said::Wait), Just(Said::Error)];
    let said = prop_oneof![Just(Said::Pass), others];
    prop_oneof![
        2 => (-1000..5000i64).prop_map(AskingStep::Pass),
        1 => (0..2u8).prop_map(AskingStep::Commit),
        1 => any::<bool>().prop_map(AskingStep::Health),
        1 => (0..2u8).prop_map(AskingStep::Edit),
        4 => Just(AskingStep::Ask),
        4 => (any::<usize>(), said).prop_map(|(which, said)| AskingStep::Answer(which, said)),
    ]
}
