use std::collections::{BTreeMap, BTreeSet};

use farwater_api::Digest;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn candidate(commit: &str) -> Candidate {
    Candidate {
        path: "database".to_owned(),
        ..Candidate::of_commit(commit)
    }
}

/// A service that is healthy at its assigned version. A case changes parts of it.
struct Case {
    service: serde_json::Value,
    generation: i64,
    candidate: Candidate,
    assigned: Option<Candidate>,
    why: Why,
    newest: Option<String>,
}

fn case() -> Case {
    let one = candidate("1");
    Case {
        service: json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": "database", "namespace": "team-a", "generation": 2},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}},
            "status": {
                "observedGeneration": 2, "bundleDigest": one.bundle, "assignedRevision": one.revision,
                "appliedRevision": one.revision, "objects": {"total": 2, "healthy": 2, "progressing": 0, "failed": 0},
                "conditions": [ready("True", "Applied")],
            },
        }),
        generation: 2,
        candidate: one.clone(),
        newest: Some(one.revision.clone()),
        assigned: Some(one),
        why: Why::Current,
    }
}

fn ready(status: &str, reason: &str) -> serde_json::Value {
    json!({"type": "Ready", "status": status, "reason": reason, "message": "1 of 2 objects failed",
           "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[track_caller]
fn check(change: impl FnOnce(&mut Case), expected: Option<&str>) {
    let mut case = case();
    change(&mut case);
    let service: ServiceDeployment = serde_json::from_value(case.service).unwrap();
    let decided = Decided {
        generation: case.generation,
        candidate: Some(&case.candidate),
        assigned: case.assigned.as_ref(),
        why: &case.why,
        newest: case.newest.as_deref(),
    };
    let told = judge(Dependency {
        name: "database",
        service: Some(&service),
        decided: Some(decided),
    });
    assert_eq!(
        told,
        expected.map(|what| format!("waits for service database, which {what}"))
    );
}

#[test]
fn a_service_is_there_when_it_is_healthy_at_its_own_newest_version() {
    check(|_| {}, None);
    check(
        |c| c.service["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        Some("is being deleted"),
    );
    check(|c| c.generation = 1, Some("was not looked at yet"));
    check(
        |c| c.newest = Some("main@sha1:2".to_owned()),
        Some("was not looked at since main@sha1:2 came"),
    );
    check(|c| c.assigned = None, Some("has nothing assigned yet"));
    // A status about the previous version says nothing about this one.
    check(
        |c| c.assigned = Some(candidate("2")),
        Some("is not healthy at main@sha1:2"),
    );
    check(
        |c| c.service["status"]["observedGeneration"] = json!(1),
        Some("is not healthy at main@sha1:1"),
    );
    check(
        |c| c.service["status"]["conditions"] = json!([ready("False", "Unhealthy")]),
        Some("is not healthy at main@sha1:1: 1 of 2 objects failed"),
    );
    // The tests have failed, although all objects are healthy.
    check(
        |c| c.service["status"]["conditions"] = json!([ready("False", "TestFailed")]),
        Some("is not healthy at main@sha1:1: 1 of 2 objects failed"),
    );
    check(
        |c| c.why = Why::Waiting("waits for service disk, which does not exist".to_owned()),
        Some("itself waits for service disk, which does not exist"),
    );
    let broken = Trouble::Bundle {
        revision: "main@sha1:2".to_owned(),
        message: "a.yaml:3: bad".to_owned(),
    };
    check(|c| c.why = Why::Trouble(broken), Some("is stuck: a.yaml:3: bad"));
    check(
        |c| c.why = Why::NotGranted("no grant".to_owned()),
        Some("is held: no grant"),
    );
    assert_eq!(
        judge(Dependency {
            name: "database",
            service: None,
            decided: None
        })
        .unwrap(),
        "waits for service database, which does not exist"
    );
}

#[test]
fn what_is_held_on_purpose_counts_at_what_it_runs() {
    let held = |c: &mut Case| c.service["status"]["conditions"] = json!([ready("Unknown", "Held")]);
    let newer = |c: &mut Case| {
        c.candidate = candidate("2");
        c.newest = Some("main@sha1:3".to_owned());
    };
    check(
        |c| {
            c.why = Why::Suspended;
            held(c);
            newer(c)
        },
        None,
    );
    check(
        |c| {
            c.service["spec"]["pin"] = json!({"bundle": Digest::of("1")});
            newer(c)
        },
        None,
    );
    check(
        |c| c.service["status"]["conditions"] = json!([ready("False", "PruneHeld")]),
        None,
    );
    let ill = |c: &mut Case| c.service["status"]["objects"]["healthy"] = json!(1);
    check(
        |c| {
            c.why = Why::Suspended;
            held(c);
            ill(c)
        },
        Some("is not healthy at main@sha1:1: 1 of 2 objects failed"),
    );
}

fn graph(edges: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let owned = |(name, to): &(&str, &[&str])| ((*name).to_owned(), to.iter().map(|name| (*name).to_owned()).collect());
    edges.iter().map(owned).collect()
}

#[test]
fn a_cycle_is_shown_from_end_to_end() {
    let check = |edges: &[(&str, &[&str])], expected: Option<&str>| {
        assert_eq!(
            find_cycle("web", &graph(edges))
                .map(|cycle| show_cycle(&cycle))
                .as_deref(),
            expected
        );
    };
    check(&[("web", &["database"])], None);
    check(&[("web", &["web"])], Some("web → web"));
    check(
        &[
            ("web", &["cache", "database"]),
            ("cache", &["disk"]),
            ("database", &["disk", "web"]),
        ],
        Some("web → database → web"),
    );
    check(&[("web", &["a", "b"]), ("a", &["c"]), ("b", &["c"]), ("c", &[])], None);
    // A cycle that doesn't include the service is a matter of the services in it.
    check(&[("web", &["a"]), ("a", &["b"]), ("b", &["a"])], None);
}

fn graphs() -> impl Strategy<Value = BTreeMap<String, Vec<String>>> {
    prop::collection::vec(prop::collection::vec(0..8usize, 0..3), 8).prop_map(|edges| {
        let names = |to: Vec<usize>| to.into_iter().map(|n| format!("s{n}")).collect();
        edges
            .into_iter()
            .enumerate()
            .map(|(n, to)| (format!("s{n}"), names(to)))
            .collect()
    })
}

/// All services that can be reached.
fn reached(from: &str, graph: &BTreeMap<String, Vec<String>>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&String> = graph[from].iter().collect();
    while let Some(name) = open.pop() {
        if found.insert(name.clone()) {
            open.extend(&graph[name]);
        }
    }
    found
}

proptest! {
    #[test]
    fn a_cycle_is_found_exactly_where_there_is_one(graph in graphs()) {
        for name in graph.keys() {
            let found = find_cycle(name, &graph);
            prop_assert_eq!(found.is_some(), reached(name, &graph).contains(name));
            for pair in found.unwrap_or_default().windows(2) {
                prop_assert!(graph[&pair[0]].contains(&pair[1]));
            }
        }
    }

    /// Whatever has failed: once every service has a version that becomes healthy, all of them are delivered. A service
    /// without dependencies is delivered at once.
    #[test]
    fn a_version_that_mends_is_always_delivered(graph in graphs(), failing in prop::collection::vec(any::<bool>(), 8)) {
        // Admission refuses cycles: an edge that would close one is left out.
        let mut admitted: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, to) in &graph {
            for other in to {
                admitted.entry(name.clone()).or_default().push(other.clone());
                if find_cycle(name, &admitted).is_some() {
                    admitted.get_mut(name).unwrap().pop();
                }
            }
        }
        let mut cases: BTreeMap<&String, Case> = graph.keys().map(|name| (name, case())).collect();
        for (case, fails) in cases.values_mut().zip(&failing) {
            if *fails {
                case.service["status"]["conditions"] = json!([ready("False", "Unhealthy")]);
            }
            // The version that becomes healthy is available, and nothing has been decided about it.
            case.candidate = candidate("2");
            case.newest = Some("main@sha1:2".to_owned());
            case.why = Why::Waiting("waits".to_owned());
        }
        let mut delivered: BTreeSet<&String> = BTreeSet::new();
        for round in 0..=graph.len() {
            let waits = |name: &String| admitted.get(name).into_iter().flatten().any(|other| {
                let case = &cases[other];
                let service: ServiceDeployment = serde_json::from_value(case.service.clone()).unwrap();
                let decided = Decided {
                    generation: case.generation,
                    candidate: Some(&case.candidate),
                    assigned: case.assigned.as_ref(),
                    why: &case.why,
                    newest: case.newest.as_deref(),
                };
                judge(Dependency { name: other, service: Some(&service), decided: Some(decided) }).is_some()
            });
            let next: Vec<&String> = graph.keys().filter(|name| !delivered.contains(name) && !waits(name)).collect();
            if round == 0 {
                let free = |name: &&String| admitted.get(*name).is_none_or(Vec::is_empty);
                prop_assert!(graph.keys().filter(free).all(|name| next.contains(&name)));
            }
            for name in next {
                // A service is never delivered before its dependencies.
                prop_assert!(admitted.get(name).into_iter().flatten().all(|other| delivered.contains(other)));
                delivered.insert(name);
                let case = cases.get_mut(name).unwrap();
                let two = candidate("2");
                case.service["status"] = json!({
                    "observedGeneration": 2, "bundleDigest": two.bundle, "conditions": [ready("True", "Applied")],
                });
                case.assigned = Some(two);
                case.why = Why::Current;
            }
        }
        prop_assert_eq!(delivered.len(), graph.len());
    }
}
