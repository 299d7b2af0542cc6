//! Generated courses of writes: several managers apply, update, patch and delete the same object on both servers, and each
//! answer must be the same. `JUDGE_SEED` begins elsewhere, `JUDGE_COURSES` asks for more than the tests have time for.

use std::{env, time::Duration};

use farwater_testkit::wait_for;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Map, Value, json};

use super::court::*;
use crate::support::Served;

/// Courses per kind, in every run and in `campaign slow`, and writes of each.
const COURSES: u64 = 2;
const MORE_COURSES: u64 = 4;
const STEPS: usize = 16;
const MANAGERS: [&str; 4] = ["ann", "bob", "kubectl", "zoe"];

/// What the hub's controllers do with the object in the course.
#[derive(Clone, Copy, PartialEq)]
enum Controllers {
    Nothing,
    /// It is made and deleted before the course: only a client's finalizer holds it, and no controller writes it any more. So
    /// all of it is compared, its status, too.
    Done,
    /// They write its status.
    Report,
    /// And they hold it by a finalizer: what clients do to the list isn't theirs alone, and a deletion takes its time.
    Hold,
}

impl Controllers {
    fn write(self) -> bool {
        matches!(self, Self::Report | Self::Hold)
    }
}

struct Subject {
    kind: &'static str,
    api_version: &'static str,
    list: &'static str,
    name: &'static str,
    ours: bool,
    controllers: Controllers,
    fields: fn(&mut StdRng) -> Map<String, Value>,
}

const SUBJECTS: [Subject; 10] = [
    Subject {
        kind: "ConfigMap",
        api_version: "v1",
        list: "CORE/configmaps",
        name: "g",
        ours: false,
        controllers: Controllers::Nothing,
        fields: config_map,
    },
    Subject {
        kind: "Secret",
        api_version: "v1",
        list: "CORE/secrets",
        name: "g",
        ours: false,
        controllers: Controllers::Nothing,
        fields: secret,
    },
    Subject {
        kind: "ServiceAccount",
        api_version: "v1",
        list: "CORE/serviceaccounts",
        name: "g",
        ours: false,
        controllers: Controllers::Nothing,
        fields: account,
    },
    Subject {
        kind: "Role",
        api_version: "rbac.authorization.k8s.io/v1",
        list: "RBAC/roles",
        name: "g",
        ours: false,
        controllers: Controllers::Nothing,
        fields: role,
    },
    Subject {
        kind: "RoleBinding",
        api_version: "rbac.authorization.k8s.io/v1",
        list: "RBAC/rolebindings",
        name: "g",
        ours: false,
        controllers: Controllers::Nothing,
        fields: binding,
    },
    Subject {
        kind: "ClusterGrant",
        api_version: "farwater.dev/v1alpha1",
        list: GRANTS,
        name: "NS-g",
        ours: true,
        controllers: Controllers::Nothing,
        fields: grant,
    },
    Subject {
        kind: "GitRepository",
        api_version: "farwater.dev/v1alpha1",
        list: "OWN/gitrepositories",
        name: "g",
        ours: true,
        controllers: Controllers::Done,
        fields: source,
    },
    Subject {
        kind: "ServiceDeployment",
        api_version: "farwater.dev/v1alpha1",
        list: "OWN/servicedeployments",
        name: "done",
        ours: true,
        controllers: Controllers::Done,
        fields: ended_service,
    },
    Subject {
        kind: "ServiceDeployment",
        api_version: "farwater.dev/v1alpha1",
        list: "OWN/servicedeployments",
        name: "g",
        ours: true,
        controllers: Controllers::Hold,
        fields: service,
    },
    Subject {
        kind: "Cluster",
        api_version: "farwater.dev/v1alpha1",
        list: "OWN/clusters",
        name: "g",
        ours: true,
        controllers: Controllers::Report,
        fields: cluster,
    },
];

fn maybe(random: &mut StdRng) -> bool {
    random.random_range(0..2) == 0
}

fn one_of<'a>(random: &mut StdRng, choices: &[&'a str]) -> &'a str {
    choices[random.random_range(0..choices.len())]
}

/// Some of the choices, none of them twice.
fn some_of(random: &mut StdRng, choices: &[&str]) -> Vec<String> {
    choices
        .iter()
        .filter(|_| maybe(random))
        .map(|choice| (*choice).to_owned())
        .collect()
}

fn texts(random: &mut StdRng, values: &[&str]) -> Value {
    let names = some_of(random, &["a", "b", "c"]);
    names
        .into_iter()
        .map(|name| (name, json!(one_of(random, values))))
        .collect::<Map<_, _>>()
        .into()
}

/// Each field is there or not.
fn picked(random: &mut StdRng, fields: Vec<(&str, Value)>) -> Map<String, Value> {
    fields
        .into_iter()
        .filter(|_| maybe(random))
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn config_map(random: &mut StdRng) -> Map<String, Value> {
    let fields = vec![
        ("data", texts(random, &["1", "2"])),
        ("binaryData", json!({"x": one_of(random, &["eA==", "eQ=="])})),
    ];
    picked(random, fields)
}

fn secret(random: &mut StdRng) -> Map<String, Value> {
    let fields = vec![
        ("data", texts(random, &["eA==", "eQ=="])),
        ("stringData", json!({"s": one_of(random, &["x", "y"])})),
        ("type", json!("Opaque")),
    ];
    picked(random, fields)
}

fn named(random: &mut StdRng) -> Value {
    some_of(random, &["one", "two", "three"])
        .into_iter()
        .map(|name| json!({"name": name}))
        .collect()
}

fn account(random: &mut StdRng) -> Map<String, Value> {
    let fields = vec![
        ("secrets", named(random)),
        ("imagePullSecrets", named(random)),
        ("automountServiceAccountToken", json!(maybe(random))),
    ];
    picked(random, fields)
}

fn role(random: &mut StdRng) -> Map<String, Value> {
    let rule = json!({"apiGroups": [""], "resources": [one_of(random, &["pods", "secrets"])], "verbs": ["get"]});
    picked(random, vec![("rules", json!([rule]))])
}

fn binding(random: &mut StdRng) -> Map<String, Value> {
    let subjects = some_of(random, &["u", "v"])
        .into_iter()
        .map(|name| json!({"kind": "User", "name": name}));
    let mut fields = vec![("subjects", subjects.collect())];
    fields.push((
        "subjects",
        json!([{"kind": "ServiceAccount", "name": "x", "namespace": "y"}]),
    ));
    let mut all = picked(random, fields);
    all.insert(
        "roleRef".to_owned(),
        json!({"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"}),
    );
    all
}

fn grant(random: &mut StdRng) -> Map<String, Value> {
    let list = |random: &mut StdRng, choices: &[&str]| json!(some_of(random, choices));
    let always = vec![
        (
            "clusterSelector",
            json!({"matchLabels": {"a": one_of(random, &["b", "c"])}}),
        ),
        ("namespaces", json!(["NS"])),
        ("verbs", json!(["deploy"])),
        ("serviceAccountName", json!(one_of(random, &["x", "y"]))),
    ];
    let extra = vec![
        (
            "allowedKinds",
            list(random, &["Secret", "ConfigMap", "apps/Deployment"]),
        ),
        ("deniedKinds", list(random, &["Role", "Secret"])),
        ("allowedSources", list(random, &["https://a/", "https://b/"])),
        ("namespaces", json!(["NS", "default"])),
    ];
    // Most are whole: what the schema refuses is tried often enough with the rest.
    let mut spec = if random.random_range(0..4) == 0 {
        picked(random, always)
    } else {
        always
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    };
    spec.extend(picked(random, extra));
    Map::from_iter([("spec".to_owned(), spec.into())])
}

fn source(random: &mut StdRng) -> Map<String, Value> {
    let spec = vec![
        ("timeout", json!(one_of(random, &["30s", "60s"]))),
        ("ref", json!({one_of(random, &["branch", "tag"]): "x"})),
    ];
    let mut spec = picked(random, spec);
    spec.extend([
        ("url".to_owned(), json!("https://x/y")),
        ("suspend".to_owned(), json!(true)),
    ]);
    with_status(random, spec, "revision")
}

/// A spec, and maybe a status.
fn with_status(random: &mut StdRng, spec: Map<String, Value>, revision: &str) -> Map<String, Value> {
    let condition = |kind: String, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let kinds = some_of(random, &["Ready", "Stalled", "Other"]);
    let conditions = kinds
        .into_iter()
        .map(|kind| condition(kind, one_of(random, &["True", "False"])))
        .collect();
    let status = vec![
        ("conditions", conditions),
        (revision, json!(one_of(random, &["r", "q"]))),
    ];
    let status = picked(random, status);
    let mut object = Map::from_iter([("spec".to_owned(), spec.into())]);
    // Not an empty one: what an apply leaves of an emptied status is null there and empty here, and equal to it only here.
    object.extend((!status.is_empty()).then(|| ("status".to_owned(), status.into())));
    object
}

fn service_spec(random: &mut StdRng) -> Map<String, Value> {
    let always = vec![
        ("clusterRef", json!({"name": "east"})),
        ("targetNamespace", json!(one_of(random, &["web", "api"]))),
        ("sourceRef", json!({"name": one_of(random, &["infra", "apps"])})),
    ];
    let extra = vec![
        ("path", json!(one_of(random, &["", "apps/web"]))),
        ("prune", json!(maybe(random))),
        ("deletionPolicy", json!(one_of(random, &["Orphan", "Delete", "Keep"]))),
        ("secrets", named(random)),
        ("suspend", json!(maybe(random))),
    ];
    let mut spec = if random.random_range(0..4) == 0 {
        picked(random, always)
    } else {
        always
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    };
    spec.extend(picked(random, extra));
    spec
}

fn service(random: &mut StdRng) -> Map<String, Value> {
    Map::from_iter([("spec".to_owned(), service_spec(random).into())])
}

fn ended_service(random: &mut StdRng) -> Map<String, Value> {
    let spec = service_spec(random);
    with_status(random, spec, "assignedRevision")
}

fn cluster(random: &mut StdRng) -> Map<String, Value> {
    let spec = vec![
        ("pollInterval", json!(one_of(random, &["30s", "1m", "often"]))),
        ("suspend", json!(maybe(random))),
    ];
    let mut spec = picked(random, spec);
    if random.random_range(0..8) == 0 {
        spec.insert("unknown".to_owned(), json!(1));
    }
    Map::from_iter([("spec".to_owned(), spec.into())])
}

impl Subject {
    fn is_done(&self) -> bool {
        self.controllers == Controllers::Done
    }

    /// Whether clients' finalizers and deletions are all there is of them.
    fn goes_freely(&self) -> bool {
        matches!(self.controllers, Controllers::Nothing | Controllers::Report)
    }

    /// A configuration of some fields.
    fn object(&self, random: &mut StdRng) -> Value {
        let mut metadata = json!({"name": self.name});
        for (field, value) in [
            ("labels", texts(random, &["1", "2"])),
            ("annotations", texts(random, &["x", "<y>"])),
        ] {
            if random.random_range(0..3) == 0 {
                metadata[field] = value;
            }
        }
        if self.goes_freely() && random.random_range(0..4) == 0 {
            metadata["finalizers"] = json!(some_of(random, &["example.com/x", "example.com/y"]));
        }
        let mut object = json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata});
        if let Some(object) = object.as_object_mut() {
            object.extend((self.fields)(random));
        }
        object
    }

    /// A merge patch: some fields, some of them taken away.
    fn patch(&self, random: &mut StdRng) -> Value {
        let mut patch = self.object(random);
        if let Some(patch) = patch.as_object_mut() {
            patch.retain(|field, _| !matches!(field.as_str(), "apiVersion" | "kind" | "roleRef"));
        }
        patch["metadata"]
            .as_object_mut()
            .map(|metadata| metadata.remove("name"));
        let part = one_of(random, &["metadata", "spec", "status", "data"]);
        if let Some(fields) = patch.get_mut(part).and_then(Value::as_object_mut) {
            let choice = random.random_range(0..3);
            if let Some((_, value)) = fields.iter_mut().filter(|(name, _)| *name != "finalizers").nth(choice) {
                *value = Value::Null;
            }
        }
        patch
    }

    /// The next write.
    fn step(&self, random: &mut StdRng, exists: bool) -> Step {
        let one = format!("{}/{}", self.list, self.name);
        let manager = one_of(random, &MANAGERS);
        let part = if self.is_done() && maybe(random) { "/status" } else { "" };
        let dry_run = if random.random_range(0..8) == 0 {
            "&dryRun=All"
        } else {
            ""
        };
        let path = format!("{one}{part}?fieldManager={manager}{dry_run}");
        match random.random_range(0..12) {
            0..6 => {
                let force = if random.random_range(0..3) == 0 {
                    "&force=true"
                } else {
                    ""
                };
                Step::new("PATCH", &format!("{path}{force}")).send(APPLY, &self.object(random).to_string())
            }
            6 if exists => {
                let mut object = self.object(random);
                if self.ours {
                    object["metadata"]["resourceVersion"] = json!("$VERSION");
                }
                if self.is_done() {
                    object["metadata"]["finalizers"] = json!(["example.com/x"]);
                }
                Step::new("PUT", &path).send(JSON, &object.to_string())
            }
            7 | 8 if exists => Step::new("PATCH", &path).send(MERGE, &self.patch(random).to_string()),
            9 if exists && !self.ours => Step::new("PATCH", &path).send(STRATEGIC, &self.patch(random).to_string()),
            9 | 10 if exists => {
                let operation = json!([{"op": "add", "path": "/metadata/labels", "value": texts(random, &["1", "3"])}]);
                Step::new("PATCH", &path).send(JSON_PATCH, &operation.to_string())
            }
            11 if exists && self.goes_freely() => Step::new("DELETE", &one),
            _ if exists && !self.goes_freely() => Step::get(&one).accept(JSON),
            _ => Step::new("POST", &format!("{}?fieldManager={manager}{dry_run}", self.list))
                .send(JSON, &self.object(random).to_string()),
        }
    }

    /// Lets the object of an earlier course go, or makes the one that waits for its finalizer.
    async fn prepare(&self, court: &mut Court) {
        let one = format!("{}/{}", self.list, self.name);
        let release = Step::new("PATCH", &one).send(MERGE, r#"{"metadata":{"finalizers":null}}"#);
        for side in [&court.real, &court.ours] {
            side.ask(&release).await;
            side.ask(&Step::new("DELETE", &one)).await;
        }
        court
            .wait_until(Step::get(&one).accept(JSON), |answer| answer.code == 404)
            .await;
        if !self.is_done() {
            return;
        }
        let spec = match self.kind {
            "GitRepository" => json!({"url": "https://x/y", "suspend": true}),
            _ => {
                json!({"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}})
            }
        };
        let metadata = json!({"name": self.name, "finalizers": ["example.com/x"]});
        let object = json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, "spec": spec});
        court
            .judge(Step::new("POST", self.list).send(JSON, &object.to_string()))
            .await;
        self.until_ours(court, "the controller's status", |object| {
            object["status"]["observedGeneration"] == 1
        })
        .await;
        for side in [&court.real, &court.ours] {
            side.ask(&Step::new("DELETE", &one)).await;
        }
        let left = |object: &Value| object["metadata"]["finalizers"] == json!(["example.com/x"]);
        self.until_ours(court, "the controllers to let go", left).await;
        for side in [&court.real, &court.ours] {
            side.ask(&Step::new("PATCH", &format!("{one}/status")).send(MERGE, r#"{"status":null}"#))
                .await;
            side.ask(&Step::new("PATCH", &one).send(MERGE, r#"{"metadata":{"managedFields":[{}]}}"#))
                .await;
        }
    }

    async fn until_ours(&self, court: &Court, what: &str, is_so: impl Fn(&Value) -> bool) {
        let one = Step::get(&format!("{}/{}", self.list, self.name)).accept(JSON);
        wait_for(what, Duration::from_secs(30), || async {
            Ok(is_so(&court.ours.ask(&one).await.value).then_some(()))
        })
        .await
        .unwrap();
    }

    async fn course(&self, court: &mut Court, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let one = format!("{}/{}", self.list, self.name);
        self.prepare(court).await;
        let mut told = Vec::new();
        for _ in 0..STEPS {
            let exists = court.real.ask(&Step::get(&one).accept(JSON)).await.code == 200;
            if exists {
                court.remember("VERSION", &one, "/metadata/resourceVersion").await;
            }
            let step = self.step(&mut random, exists);
            told.push(step.to_string());
            let clients_part = self.controllers.write();
            court
                .judge_persistently(step.clients_part(clients_part), "VERSION", &one)
                .await;
            court
                .judge(Step::get(&one).accept(JSON).clients_part(clients_part))
                .await;
            assert!(
                court.is_agreed(),
                "the servers differ; JUDGE_SEED={seed} begins here, on {}:\n{}\n\n{}",
                self.kind,
                told.join("\n"),
                court.differences()
            );
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn any_course_of_writes_goes_as_in_kubernetes() {
    judge_courses(number("JUDGE_SEED", 1), number("JUDGE_COURSES", COURSES)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_courses_of_writes_go_as_in_kubernetes() {
    judge_courses(1 + COURSES, MORE_COURSES).await;
}

async fn judge_courses(first: u64, courses: u64) {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    // Where services may be placed.
    court.same("POST", GRANTS, JSON, GRANT, Equal::All).await;
    let east = r#"{"apiVersion":"farwater.dev/v1alpha1","kind":"Cluster","metadata":{"name":"east"},"spec":{}}"#;
    court
        .judge(Step::new("POST", "OWN/clusters").send(JSON, east).clients_part(true))
        .await;
    for seed in first..first + courses {
        for subject in &SUBJECTS {
            subject.course(&mut court, seed).await;
        }
    }
    court.sentence();
    served.stop().await;
}
