//! For each field of an entry: whether a rollout and a change window hold a change of it. docs/rollouts.md and
//! docs/freezing.md explain the rules.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{
    Digest, ServiceDeploymentSpec,
    protocol::{Action, Ceiling, Deployment, ServiceAccount},
};
use farwater_fleet::{
    assignment::{Candidate, Decision, EntryInputs, Inputs, Why, resolve_action},
    held_spec::{WaitsFor, counting},
    rollout::{ChangeId, Track},
};
use farwater_store::delivery::MemberRollout;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    row::{Documents, change},
    *,
};
use crate::services::parameters::Newest;

/// All inputs of an entry.
#[derive(Clone)]
struct World {
    spec: ServiceDeploymentSpec,
    candidate: Candidate,
    parameters: Digest,
    secrets: Digest,
    ceiling: Ceiling,
    approved_prune: Option<Digest>,
    hold_prune: Option<String>,
    undo: Option<String>,
    retry_hook: Option<Digest>,
    turn: u64,
}

impl World {
    fn new() -> Self {
        let spec = json!({
            "clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "apps/web",
            "parameters": [{"from": {"context": "shared"}}],
        });
        let digest = Digest::of("");
        let candidate =
            json!({"revision": "1", "contentId": digest, "bundle": digest, "bundleBytes": 1, "path": "apps/web"});
        let service_account = ServiceAccount {
            namespace: "web".to_owned(),
            name: "deployer".to_owned(),
        };
        Self {
            spec: serde_json::from_value(spec).unwrap(),
            candidate: serde_json::from_value(candidate).unwrap(),
            parameters: digest,
            secrets: digest,
            ceiling: Ceiling {
                service_account,
                target_namespaces: None,
                allowed_kinds: None,
                denied_kinds: None,
            },
            approved_prune: None,
            hold_prune: None,
            undo: None,
            retry_hook: None,
            turn: 1,
        }
    }

    fn deployment(&self) -> Deployment {
        let spec = &self.spec;
        let action = resolve_action(EntryInputs {
            deleting: false,
            deletion_policy: spec.deletion_policy,
            dependents: &[],
            suspended: None,
            cluster_suspended: false,
            restored: false,
            frozen: None,
            assigned: Some(&self.candidate),
            why: &Why::Current,
            ceiling: Ok(&self.ceiling),
            target_namespace: &spec.target_namespace,
            renderers: &spec.renderers,
            patches: &spec.patches,
            prune: spec.prune,
            options: &spec.apply,
            secrets: Ok(Some(self.secrets)),
            parameters: Ok(Some(self.parameters)),
            approved_prune: self.approved_prune,
            hold_prune: self.hold_prune.as_deref(),
            undo: self.undo.as_deref(),
            retry_hook: self.retry_hook,
            turn: self.turn,
            tests: &spec.tests,
            health: &spec.health,
        });
        let Action::Apply(deployment) = action else {
            panic!("{action:?}")
        };
        deployment
    }

    fn change(&self) -> ChangeId {
        change(&self.spec, &self.candidate, Some(self.parameters)).unwrap()
    }

    /// The fields that count for a service of no set that was changed while a window is closed.
    fn in_closed_window(&self, before: &Self) -> Self {
        let closed = Closed {
            by: "ops/holidays".to_owned(),
            reason: "holidays".to_owned(),
            until: None,
        };
        let spec = counting(&self.spec, before.spec.clone(), WaitsFor::Window);
        let decision = farwater_fleet::assignment::decide(Inputs {
            suspended: false,
            pinned: None,
            candidate: Ok(&self.candidate),
            waits: &[],
            ceiling: Ok(&self.ceiling),
            assigned: Some(&before.candidate),
            held: false,
            closed: Some(&closed),
            restated: spec != self.spec,
        });
        let candidate = match decision {
            Decision::Assign(candidate) => *candidate,
            Decision::Keep(_) => before.candidate.clone(),
        };
        Self {
            spec,
            candidate,
            ..self.clone()
        }
    }
}

/// Lists each field by its name. A new field has to be added here, and then to the table.
macro_rules! each_field {
    ($($field:ident),*) => {
        fn each_field(deployment: &Deployment) -> BTreeMap<&'static str, String> {
            let Deployment { $($field),* } = deployment;
            BTreeMap::from([$((stringify!($field), format!("{:?}", $field))),*])
        }
    };
}

each_field!(
    bundle,
    bundle_bytes,
    path,
    renderers,
    patches,
    target_namespace,
    prune,
    ceiling,
    secrets,
    parameters,
    configuration,
    approved_prune,
    options,
    hold_prune,
    origin,
    undo,
    retry_hook,
    turn,
    tests,
    health
);

#[derive(Debug, PartialEq, Eq)]
enum Is {
    Held,
    /// With the reason.
    LetThrough(&'static str),
}
use Is::{Held, LetThrough};

const NARROWS: &str = "it narrows what may be done, or stops it";
const COUNTS: &str = "it is of a change that was let go on, and none itself";
const OF_THE_ROW: &str = "another revision of the same content changes nothing in the cluster";

/// Names of fields, a change of them, and whether that waits for the set's rollout, and for a window.
type Row = (&'static [&'static str], fn(&mut World), Is, Is);

fn table() -> Vec<Row> {
    fn parse<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }
    let rotates = LetThrough("a Secret that is renewed, or has leaked, must reach all");
    vec![
        (
            &["bundle", "bundle_bytes"],
            |w| (w.candidate.bundle, w.candidate.bundle_bytes) = (Digest::of("other"), 2),
            Held,
            Held,
        ),
        (&["path"], |w| w.candidate.path = "other".to_owned(), Held, Held),
        (
            &["origin"],
            |w| w.candidate.origin = Some("c0ffee".to_owned()),
            Held,
            LetThrough(OF_THE_ROW),
        ),
        (
            &["configuration"],
            |w| drop(w.candidate.configuration.insert("imageTag".to_owned(), "2".to_owned())),
            Held,
            Held,
        ),
        (
            &["renderers"],
            |w| w.spec.renderers = parse(json!([{"helm": {"values": {"a": 1}}}])),
            Held,
            Held,
        ),
        (
            &["patches"],
            |w| w.spec.patches = parse(json!([{"patch": "{kind: ConfigMap}"}])),
            Held,
            Held,
        ),
        (
            &["target_namespace"],
            |w| w.spec.target_namespace = "other".to_owned(),
            Held,
            Held,
        ),
        (
            &["options"],
            |w| w.spec.apply = parse(json!({"drift": "Report"})),
            Held,
            Held,
        ),
        (
            &["tests"],
            |w| w.spec.tests = parse(json!([{"name": "smoke", "image": "i"}])),
            Held,
            Held,
        ),
        (
            &["health"],
            |w| w.spec.health = parse(json!([{"kind": "Job", "current": "true"}])),
            Held,
            Held,
        ),
        // For a set, it is part of the template.
        (&["prune"], |w| w.spec.prune = !w.spec.prune, Held, LetThrough(NARROWS)),
        (
            &["parameters"],
            |w| w.parameters = Digest::of("other"),
            Held,
            LetThrough("of a service of no set: a value that has leaked is not kept for the holidays"),
        ),
        (
            &["secrets"],
            |w| w.secrets = Digest::of("other"),
            rotates,
            LetThrough("the same"),
        ),
        (
            &["ceiling"],
            |w| w.ceiling.allowed_kinds = Some(Vec::new()),
            LetThrough(NARROWS),
            LetThrough(NARROWS),
        ),
        (
            &["approved_prune"],
            |w| w.approved_prune = Some(Digest::of("other")),
            LetThrough("a person has said it of exactly this plan"),
            LetThrough("the same"),
        ),
        (
            &["hold_prune", "prune"],
            |w| w.hold_prune = Some("restored".to_owned()),
            LetThrough(NARROWS),
            LetThrough(NARROWS),
        ),
        (
            &["undo"],
            |w| w.undo = Some("digest".to_owned()),
            LetThrough("a person brings back what was deleted"),
            LetThrough("the same"),
        ),
        (
            &["retry_hook"],
            |w| w.retry_hook = Some(Digest::of("run")),
            LetThrough("a person has said it of a run of a version that has begun"),
            LetThrough("the same"),
        ),
        (&["turn"], |w| w.turn = 2, LetThrough(COUNTS), LetThrough(COUNTS)),
    ]
}

#[test]
fn each_field_of_a_deployment_waits_for_the_rollout_and_for_windows_or_is_let_through_for_a_reason() {
    let before = World::new();
    let mut told = BTreeSet::new();
    for (fields, edit, by_rollout, by_window) in table() {
        let mut after = before.clone();
        edit(&mut after);
        let (was, is) = (each_field(&before.deployment()), each_field(&after.deployment()));
        let differing: BTreeSet<_> = is
            .iter()
            .filter(|(field, value)| was[*field] != **value)
            .map(|(f, _)| *f)
            .collect();
        assert_eq!(differing, fields.iter().copied().collect(), "what the row changes");
        assert_eq!(
            after.change() != before.change(),
            by_rollout == Held,
            "{fields:?} by a rollout: {by_rollout:?}"
        );
        let in_window = each_field(&after.in_closed_window(&before).deployment());
        let is_held = fields.iter().all(|field| in_window[field] == was[field]);
        assert_eq!(is_held, by_window == Held, "{fields:?} by a window: {by_window:?}");
        for why in [by_rollout, by_window] {
            assert!(why != LetThrough(""), "{fields:?}");
        }
        told.extend(fields);
    }
    let all: BTreeSet<_> = each_field(&before.deployment()).into_keys().collect();
    assert_eq!(told, all, "fields that nobody has said a word about");
}

#[test]
fn of_a_set_those_clusters_count_that_are_heard() {
    let lacks = |all, heard, healthy| {
        Heard {
            all,
            heard,
            healthy,
            ..Heard::default()
        }
        .lacks()
    };
    assert_eq!((lacks(0, 0, 0), lacks(3, 2, 2)), (None, None));
    assert_eq!(
        lacks(3, 2, 1).as_deref(),
        Some("is healthy on 1 of 2 clusters that are heard")
    );
    assert_eq!(lacks(3, 0, 0).as_deref(), Some("has no cluster that is heard"));
}

/// The set was written after its service was read, and before its row was.
#[test]
fn a_row_that_holds_what_was_looked_at_lets_nothing_go() {
    let World {
        spec,
        candidate,
        parameters,
        ..
    } = World::new();
    let spec = serde_json::to_value(spec).unwrap();
    let mut older = spec.clone();
    older["path"] = "apps/older".into();
    for (held, is_released) in [(&spec, false), (&older, true)] {
        let wanted = Some(
            change(
                &serde_json::from_value(spec.clone()).unwrap(),
                &candidate,
                Some(parameters),
            )
            .unwrap(),
        );
        let look = Look {
            row: MemberRollout {
                held_spec: held.to_string(),
                ..MemberRollout::default()
            },
            rollout: 1,
            wanted,
            track: Track {
                released: wanted,
                ..Track::default()
            },
            looked_at: String::new(),
            newest: Newest::Own,
            documents: Documents::default(),
            back: None,
        };
        let looked = look
            .end(
                &Why::Current,
                false,
                &json!({"metadata": {"generation": 2}, "spec": spec}),
            )
            .unwrap();
        assert_eq!((looked.released, looked.release.is_some()), (is_released, is_released));
    }
}
