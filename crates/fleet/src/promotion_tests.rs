use proptest::prelude::*;
use serde_json::json;

use super::*;

const DAY: i64 = 24 * 3600;

fn read(text: &str) -> Result<Vec<Gates>, Vec<String>> {
    let spec: PipelineSpec = serde_saphyr::from_str(text).unwrap();
    read_gates(&spec).map_err(|all| all.into_iter().map(|one| format!("{}: {}", one.field, one.why)).collect())
}

/// Two stages; `gates` are those of the second.
fn two(gates: &str) -> String {
    format!(
        "stages: [{{name: a, sourceRef: {{name: a}}, sets: [a]}}, {{name: b, sourceRef: {{name: b}}, services: [b], gates: {gates}}}]"
    )
}

#[test]
fn what_makes_no_sense_is_named_with_its_field() {
    let check = |gates: &str, expected: &[&str]| assert_eq!(read(&two(gates)).unwrap_err(), expected, "{gates}");
    assert!(read(&two("[]")).is_ok());
    assert!(read(&two("[{type: Soak, duration: 1h}, {type: Approval, quorum: 2, groups: [ops]}]")).is_ok());
    assert!(read(&two("[{type: Window, schedule: '0 9 * * 1-5', duration: 8h, timeZone: Europe/Berlin}]")).is_ok());
    check("[{type: Soak}]", &["stages[1].gates[0].duration: say for how long"]);
    check(
        "[{type: Soak, duration: 1h}, {type: Soak, duration: 2h}]",
        &["stages[1].gates[1].type: Soak is stated twice"],
    );
    check("[{type: Soak, duration: 1h, quorum: 2}]", &["stages[1].gates[0].quorum: a gate Soak has none"]);
    check("[{type: Approval, expires: 1s}]", &["stages[1].gates[0].expires: must be between 1m and 720h"]);
    check("[{type: Window, duration: 1h}]", &["stages[1].gates[0].schedule: say when it begins"]);
    let wrong = "stages: [{name: a, sourceRef: {name: x}, gates: [{type: Approval}]}, {name: a, sourceRef: {name: x}, sets: [b, b]}]";
    assert_eq!(
        read(wrong).unwrap_err(),
        [
            "stages[0].sets: a stage has a set or a service: of nothing nobody can say that it is healthy",
            "stages[0].gates: the first stage follows its repository: nothing is promoted to it",
            "stages[1].name: another stage is called so",
            "stages[1].sourceRef: another stage has it: each has a GitRepository of its own",
            "stages[1].sets: what is named twice can't be at two revisions",
        ]
    );
    let newer = json!({"stages": [{"name": "a"}, {"name": "b", "gates": [{"type": "Approval", "notAuthor": true}]}]});
    assert_eq!(unknown_gate_field(&newer).as_deref(), Some("notAuthor"));
    assert_eq!(unknown_gate_field(&json!({"stages": [{"gates": [{"type": "Soak", "duration": "1h"}]}]})), None);
}

/// What there is, and what an observer who saw all of it knows.
struct World {
    gates: Gates,
    on_failure: StageFailure,
    follows: bool,
    now: i64,
    serves: [Option<String>; 2],
    lacks: bool,
    heard: i64,
    failed: bool,
    template: u8,
    state: State,
    /// The commit that the first stage was found well at in each look, and since when.
    well: Option<(String, i64)>,
    /// Commits that were well for the soak.
    proven: std::collections::BTreeSet<String>,
}

impl World {
    fn new(gates: &str) -> Self {
        let gates = read(&two(gates)).unwrap().remove(1);
        Self {
            gates,
            on_failure: StageFailure::Halt,
            follows: true,
            now: 1000,
            serves: [Some("c0".to_owned()), None],
            lacks: false,
            heard: 1000,
            failed: false,
            template: 0,
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
            follows: false,
            serves: self.serves[0].as_deref(),
            lacks: self.lacks.then_some("it is not healthy"),
            since: 0,
            heard: self.heard,
            failed: false,
            content: Ok(content),
        };
        let second = Stage {
            name: "b",
            gates: &self.gates,
            on_failure: self.on_failure,
            follows: self.follows,
            serves: self.serves[1].as_deref(),
            failed: self.failed,
            ..stage.clone()
        };
        [stage, second]
    }

    fn look(&mut self) -> Decision {
        let (first, content) = (Gates::default(), self.content());
        let clock = Timestamp::from_second(self.now).unwrap();
        let decision = decide("uid", &self.stages(&first, &content), &self.state, (self.now, clock));
        let again = decide("uid", &self.stages(&first, &content), &decision.state, (self.now, clock));
        assert!(again.promoted.is_empty() && again.rolled_back.is_empty(), "what was done is done again: {again:#?}");
        self.state = serde_json::from_str(&serde_json::to_string(&decision.state).unwrap()).unwrap();
        decision
    }

    fn approve(&mut self, by: &str, commit: &str) {
        let (first, content) = (Gates::default(), self.content());
        let digest = digest("uid", &self.stages(&first, &content)[1], commit).unwrap();
        let approval = Approval { by: by.to_owned(), at: self.now, digest, reason: String::new() };
        self.state.stages.entry("b".to_owned()).or_default().approve(approval);
    }

    fn promoted(&self) -> Option<&str> {
        self.state.promoted("b")
    }

    fn candidate(&mut self) -> Option<(String, Vec<String>)> {
        let candidate = self.look().candidates.pop()??;
        Some((candidate.commit, candidate.gates.into_iter().map(|held| held.message).collect()))
    }
}

#[test]
fn a_commit_soaks_is_approved_by_two_and_goes_on() {
    let mut world = World::new("[{type: Soak, duration: 1h}, {type: Approval, quorum: 2}]");
    let (commit, told) = world.candidate().unwrap();
    assert_eq!((commit.as_str(), told[0].as_str()), ("c0", "stage a is healthy at it; 1h to go"));
    world.now += 3600;
    let (_, told) = world.candidate().unwrap();
    assert_eq!(told, ["stage a is healthy at it; a cluster has not been heard since the soak ended"]);
    world.heard = world.now;
    let (_, told) = world.candidate().unwrap();
    assert_eq!(told, ["the stage before was healthy at it for 1h", "0 of 2 have approved"]);
    world.approve("ada", "c0");
    world.approve("ada", "c0");
    assert_eq!(world.candidate().unwrap().1[1], "1 of 2 have approved: ada");
    // Something else would be deployed now.
    world.template = 1;
    assert_eq!(world.candidate().unwrap().1[1], "0 of 2 have approved");
    world.approve("ada", "c0");
    world.now += 72 * 3600;
    world.approve("bob", "c0");
    assert_eq!(world.candidate().unwrap().1[1], "1 of 2 have approved: bob");
    world.approve("ada", "c0");
    let decision = world.look();
    assert_eq!((decision.promoted.as_slice(), world.promoted()), ([1].as_slice(), Some("c0")));
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
    world.serves[0] = Some("c1".to_owned());
    world.lacks = true;
    assert_eq!(world.candidate().unwrap().0, "c0");
    world.approve("ada", "c0");
    world.look();
    assert_eq!(world.promoted(), Some("c0"));
}

#[test]
fn a_stage_that_fails_goes_back_and_takes_that_commit_no_more() {
    let mut world = World::new("[]");
    world.on_failure = StageFailure::Rollback;
    world.look();
    assert_eq!(world.promoted(), Some("c0"));
    world.serves = [Some("c1".to_owned()), Some("c0".to_owned())];
    world.heard = world.now;
    world.look();
    assert_eq!(world.promoted(), Some("c1"));
    // Of the commit before.
    world.failed = true;
    assert!(world.look().rolled_back.is_empty());
    world.serves[1] = Some("c1".to_owned());
    assert_eq!(world.look().rolled_back, [1]);
    assert_eq!(world.promoted(), Some("c0"));
    world.serves[1] = Some("c0".to_owned());
    world.failed = false;
    assert_eq!((world.candidate(), world.promoted()), (None, Some("c0")));
    world.serves[0] = Some("c2".to_owned());
    world.look();
    assert_eq!(world.promoted(), Some("c2"));
}

#[test]
fn a_stage_that_somebody_took_into_their_own_hands_goes_on_from_what_it_serves() {
    let mut world = World::new("[{type: Approval}]");
    world.look();
    world.approve("ada", "c0");
    world.look();
    assert_eq!(world.promoted(), Some("c0"));
    world.follows = false;
    world.serves = [Some("c1".to_owned()), Some("urgent".to_owned())];
    world.look();
    assert_eq!(world.promoted(), None);
    world.approve("ada", "c1");
    world.look();
    assert_eq!(world.promoted(), None, "it is not the pipeline's");
    world.follows = true;
    world.look();
    assert_eq!(world.promoted(), Some("c1"));
    assert_eq!(world.state.stages["b"].promoted.as_ref().unwrap().before.as_deref(), Some("urgent"));
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

    /// The observer keeps books of its own and knows nothing of candidates.
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
                Step::Commit(commit) => world.serves[0] = Some(format!("c{commit}")),
                Step::Health(lacks) => world.lacks = lacks,
                Step::Hear => world.heard = world.heard.max(world.now),
                Step::Approve(by, commit) => {
                    let commit = format!("c{commit}");
                    world.approve(&by.to_string(), &commit);
                    approvals.push((by, commit, world.template, world.now));
                }
                Step::Edit(template) => world.template = template,
                Step::Fetch => world.serves[1] = world.promoted().map(str::to_owned),
                Step::Fail(failed) => world.failed = failed,
                Step::Look => {
                    let known = world.well.take();
                    let serves = world.serves[0].clone().filter(|_| !world.lacks);
                    world.well = serves.map(|commit| match known {
                        Some((known, since)) if known == commit && since <= world.now => (commit, since),
                        _ => (commit, world.now),
                    });
                    let is_over = |since: i64| world.now >= since + 3600 && world.heard >= since + 3600;
                    let proven = world.well.clone().filter(|(_, since)| is_over(*since)).map(|(commit, _)| commit);
                    world.proven.extend(proven.clone());
                    let decision = world.look();
                    if decision.promoted.is_empty() {
                        prop_assert!(decision.rolled_back.len() < 2);
                        continue;
                    }
                    let commit = world.promoted().unwrap().to_owned();
                    prop_assert!(world.proven.contains(&commit), "{commit} was never proven");
                    if world.serves[0].as_deref() == Some(&commit) {
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
}
