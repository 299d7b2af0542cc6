use proptest::prelude::*;

use super::*;

fn object(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn map(name: &str) -> ObjectRef {
    object("", "ConfigMap", "web", name)
}

#[test]
fn a_wave_waits_for_what_is_not_healthy_and_names_what_is_stuck_first() {
    let check = |states: &[(i32, &str, SyncState, Health)], expected: Option<&str>| {
        let before: Vec<(i32, ObjectRef)> = states.iter().map(|(wave, name, ..)| (*wave, map(name))).collect();
        let found = holder(before.iter().map(|(wave, object)| (*wave, object)), |key| {
            let (_, _, sync, health) = states.iter().find(|(_, name, ..)| *name == key.name())?;
            Some(State {
                sync: *sync,
                health: *health,
                message: "why".to_owned(),
            })
        });
        assert_eq!(found.map(|holder| holder.explain()).as_deref(), expected);
    };
    let fine = (0, "a", SyncState::Synced, Health::Current);
    check(&[], None);
    check(&[fine, (0, "b", SyncState::Drifted, Health::Current)], None);
    let going_on = (0, "b", SyncState::Synced, Health::InProgress);
    check(
        &[fine, going_on],
        Some("waits for wave 0: ConfigMap web/b is not ready: why"),
    );
    let stuck = (1, "c", SyncState::Synced, Health::Failed);
    check(
        &[fine, going_on, stuck],
        Some("waits for wave 1: ConfigMap web/c has failed: why"),
    );
    check(
        &[(0, "b", SyncState::Refused, Health::Unknown)],
        Some("waits for wave 0: ConfigMap web/b was refused: why"),
    );
    check(
        &[(-1, "b", SyncState::Waiting, Health::Unknown)],
        Some("waits for wave -1: ConfigMap web/b is not applied: why"),
    );
}

fn candidate(wave: i32, object: ObjectRef) -> Candidate {
    Candidate {
        uid: format!("uid-{}", object.name),
        object,
        wave,
        confirm: false,
        waits: false,
    }
}

/// The rounds in which objects are deleted, if each one is gone as soon as it is asked for.
fn rounds(deletes: &[Candidate]) -> Vec<Vec<String>> {
    let mut departure = Departure::new(deletes, &[]);
    let mut rounds = Vec::new();
    loop {
        let (open, waiting) = departure.sort();
        if open.is_empty() {
            assert!(waiting.is_empty(), "{waiting:?}");
            return rounds;
        }
        let names = open.iter().map(|candidate| candidate.object.name.clone()).collect();
        let keys: Vec<ObjectKey> = open
            .iter()
            .map(|candidate| ObjectKey::from(&candidate.object))
            .collect();
        rounds.push(names);
        keys.iter().for_each(|key| departure.note_gone(key));
    }
}

fn definition() -> ObjectRef {
    object("apiextensions.k8s.io", "CustomResourceDefinition", "", "boats.sea.io")
}

fn boat() -> ObjectRef {
    object("sea.io", "Boat", "web", "ark")
}

fn namespace() -> ObjectRef {
    object("", "Namespace", "", "web")
}

#[test]
fn what_came_last_goes_first_and_content_before_what_holds_it() {
    let all = [candidate(0, map("a")), candidate(1, map("b")), candidate(-1, map("c"))];
    assert_eq!(rounds(&all), [["b"], ["a"], ["c"]]);
    let all = [
        candidate(0, definition()),
        candidate(0, boat()),
        candidate(0, namespace()),
        candidate(0, map("a")),
    ];
    assert_eq!(rounds(&all), [vec!["a", "ark"], vec!["web", "boats.sea.io"]]);
    // A definition of a later wave than its resources counts as one of their wave: otherwise each would wait for the
    // other.
    let all = [
        candidate(5, definition()),
        candidate(0, boat()),
        candidate(7, namespace()),
    ];
    assert_eq!(rounds(&all), [["ark"], ["web"], ["boats.sea.io"]]);
}

#[test]
fn what_is_on_its_way_out_is_waited_for_and_one_that_is_refused_too() {
    let mut departure = Departure::new(
        &[candidate(0, namespace()), candidate(0, map("a"))],
        &[candidate(0, boat())],
    );
    let (open, waiting) = departure.sort();
    assert_eq!(open.len(), 1);
    assert_eq!(waiting[0].0.object, namespace());
    departure.note_tried(&ObjectKey::from(&map("a")));
    let (open, waiting) = departure.sort();
    assert!(open.is_empty());
    assert_eq!((&waiting[0].0.object, waiting.len()), (&namespace(), 1));
}

proptest! {
    /// Whatever the waves are, everything is deleted in the end, and nothing before its contents.
    #[test]
    fn everything_goes_and_in_order(waves in proptest::collection::vec(-2i32..3, 6)) {
        let objects = [definition(), boat(), namespace(), map("a"), map("b"), object("sea.io", "Boat", "other", "b2")];
        let all: Vec<Candidate> = objects.iter().zip(&waves).map(|(object, wave)| candidate(*wave, object.clone())).collect();
        let order: Vec<String> = rounds(&all).concat();
        prop_assert_eq!(order.len(), 6);
        let place = |name: &str| order.iter().position(|other| other == name).unwrap();
        prop_assert!(place("ark") < place("boats.sea.io") && place("b2") < place("boats.sea.io"));
        prop_assert!(place("ark") < place("web") && place("a") < place("web") && place("b") < place("web"));
        if waves[3] > waves[4] {
            prop_assert!(place("a") < place("b"));
        }
    }
}
