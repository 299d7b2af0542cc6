//! Each rule of each kind of ours refuses over HTTP what breaks it, and names the field: those that a schema states are generated from it,
//! and the others are those of the hub's table, each with an object that breaks it.

use std::{collections::BTreeSet, fs, path::Path};

use farwater_hub::kinds::strategy::rules;
use farwater_testkit::kube::client;
use http::Request;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::support::Served;

/// Resource, rule, the field that is named, and what is merged into the example of the kind's documentation.
fn broken() -> Vec<(&'static str, &'static str, &'static str, Value)> {
    let spec = |spec: Value| json!({"spec": spec});
    let expression = json!("self.");
    let service = "servicedeployments";
    vec![
        (
            "agentpolicies",
            "durations",
            "spec.deadline",
            spec(json!({"deadline": "1s"})),
        ),
        (
            "agentpolicies",
            "limit",
            "spec.maxUnavailable",
            spec(json!({"maxUnavailable": "nonsense"})),
        ),
        (
            "changewindows",
            "window",
            "spec.timeZone",
            spec(json!({"timeZone": "Europe/Bonn"})),
        ),
        (
            "clusters",
            "durations",
            "spec.pollInterval",
            spec(json!({"pollInterval": "1h"})),
        ),
        (
            "clusters",
            "parameters",
            "spec.metadata",
            spec(json!({"metadata": {"a": "a".repeat(1 << 20)}})),
        ),
        (
            "gitrepositories",
            "durations",
            "spec.interval",
            spec(json!({"interval": "1s"})),
        ),
        (
            "healthrules",
            "health",
            "spec.current",
            spec(json!({"current": expression})),
        ),
        (
            "helmrepositories",
            "durations",
            "spec.timeout",
            spec(json!({"timeout": "5h"})),
        ),
        (
            "managednamespaces",
            "managed namespace",
            "spec.labels",
            spec(json!({"labels": {"a b": "c"}})),
        ),
        (
            "notificationproviders",
            "provider",
            "spec.address",
            spec(json!({"type": "generic", "address": "https://a/?b=c"})),
        ),
        (
            "ocirepositories",
            "durations",
            "spec.interval",
            spec(json!({"interval": "25h"})),
        ),
        (
            "pipelines",
            "pipeline",
            "spec.stages[1].gates[0]",
            spec(json!({"stages": [
                {"name": "a", "sourceRef": {"name": "a"}, "sets": ["a"]},
                {"name": "b", "sourceRef": {"name": "b"}, "sets": ["b"], "gates": [{"type": "Soak", "duration": "a"}]},
            ]})),
        ),
        (
            "servicecontexts",
            "parameters",
            "spec.secretRefs[1]",
            spec(json!({"secretRefs": [{"name": "a", "keys": ["a"]}, {"name": "b", "keys": ["a"]}]})),
        ),
        (
            service,
            "dependencies",
            "spec.dependsOn[0].readyExpr",
            spec(json!({"dependsOn": [{"name": "a", "readyExpr": expression}]})),
        ),
        (
            service,
            "freeze override",
            "metadata.annotations[farwater.dev/override-freeze]",
            json!({"metadata": {"annotations": {"farwater.dev/override-freeze": " "}}}),
        ),
        (
            service,
            "health",
            "spec.health[0].current",
            spec(json!({"health": [{"kind": "Boat", "current": expression}]})),
        ),
        (
            service,
            "ignored fields",
            "spec.apply.ignoreDifferences[0].expression",
            spec(json!({"apply": {"ignoreDifferences": [{"expression": expression}]}})),
        ),
        (
            service,
            "parameters",
            "spec.configuration[a b]",
            spec(json!({"configuration": {"a b": "c"}})),
        ),
        (
            service,
            "renderers",
            "spec.renderers[0]",
            spec(json!({"renderers": [{"type": "Helm", "kustomize": {}}]})),
        ),
        (
            "servicesets",
            "freeze override",
            "metadata.annotations[farwater.dev/override-freeze]",
            json!({"metadata": {"annotations": {"farwater.dev/override-freeze": " "}}}),
        ),
        (
            "servicesets",
            "set",
            "spec.rollout.maxUnavailable",
            spec(json!({"rollout": {"maxUnavailable": "nonsense"}})),
        ),
    ]
}

struct Kind {
    plural: String,
    namespaced: bool,
    schema: Value,
    /// As its documentation states it, with defaults.
    example: Value,
}

struct World {
    served: Served,
    admin: Client,
}

impl World {
    async fn start() -> Self {
        let served = Served::start().await;
        let admin = client(&served.running.admin_kubeconfig, None).await.unwrap();
        let world = Self { served, admin };
        let (code, answer) = world
            .post(
                "/api/v1/namespaces",
                "application/json",
                json!({"metadata": {"name": "team-a"}}).to_string(),
            )
            .await;
        assert_eq!(code, 201, "{answer:#}");
        world
    }

    async fn post(&self, path: &str, kind: &str, body: String) -> (u16, Value) {
        let request = Request::post(path)
            .header("content-type", kind)
            .body(Body::from(body.into_bytes()))
            .unwrap();
        let answer = self.admin.send(request).await.unwrap();
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for crd in farwater_api::custom_resource_definitions() {
            let crd = serde_json::to_value(crd).unwrap();
            let name = |field: &str| crd["spec"]["names"][field].as_str().unwrap().to_owned();
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kinds");
            let page = fs::read_to_string(page.join(name("kind").to_lowercase()).with_extension("md")).unwrap();
            let (_, example) = page.split_once("```yaml\n").unwrap();
            let example = example.split("```").next().unwrap().split("\n---\n").next().unwrap();
            let mut kind = Kind {
                plural: name("plural"),
                namespaced: crd["spec"]["scope"] == "Namespaced",
                schema: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone(),
                example: Value::Null,
            };
            let namespace = if example.contains("namespace: team-a") {
                "team-a"
            } else {
                "farwater-admin"
            };
            let (code, answer) = self
                .post(&kind.path(namespace), "application/yaml", example.to_owned())
                .await;
            assert_eq!(code, 201, "the example of {}: {answer:#}", kind.plural);
            let metadata = json!({"name": answer["metadata"]["name"], "namespace": answer["metadata"]["namespace"]});
            kind.example = json!({
                "apiVersion": answer["apiVersion"], "kind": answer["kind"], "metadata": metadata, "spec": answer["spec"],
            });
            kinds.push(kind);
        }
        kinds
    }

    /// Posts what breaks a rule, for the answer's message if another field is named, or none.
    async fn expect(&self, kind: &Kind, object: &Value, field: &str) -> Option<String> {
        let namespace = kind.example["metadata"]["namespace"].as_str().unwrap_or_default();
        let (code, answer) = self
            .post(&kind.path(namespace), "application/json", object.to_string())
            .await;
        let causes = answer["details"]["causes"].as_array().into_iter().flatten();
        let mut fields = causes.filter_map(|cause| cause["field"].as_str());
        let is_named = code == 422 && fields.any(|named| named.starts_with(field));
        (!is_named).then(|| format!("{} {field}: {code} {}", kind.plural, answer["message"]))
    }
}

impl Kind {
    fn path(&self, namespace: &str) -> String {
        let place = if self.namespaced {
            format!("namespaces/{namespace}/")
        } else {
            String::new()
        };
        format!("/apis/farwater.dev/v1alpha1/{place}{}?dryRun=All", self.plural)
    }

    /// Objects that each break one thing that the schema states, with the field.
    fn broken_by_schema(&self) -> Vec<(String, Value)> {
        let mut broken = Vec::new();
        break_value(&self.schema, Some(&self.example["spec"]), "/spec", &mut broken);
        let object = |(pointer, value): (String, Option<Value>)| {
            let mut object = self.example.clone();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let place = object.pointer_mut(parent).unwrap();
            match (value, place) {
                (Some(value), Value::Array(items)) => items[name.parse::<usize>().unwrap()] = value,
                (Some(value), place) => place[name] = value,
                (None, place) => drop(place.as_object_mut().unwrap().remove(name)),
            }
            (field_of(&pointer), object)
        };
        broken.into_iter().map(object).collect()
    }
}

/// `/spec/a/0/b` as Kubernetes names it.
fn field_of(pointer: &str) -> String {
    let parts = pointer.trim_start_matches('/').split('/').enumerate();
    parts.fold(String::new(), |field, (n, part)| match part.parse::<usize>() {
        Ok(index) => format!("{field}[{index}]"),
        Err(_) if n == 0 => part.to_owned(),
        Err(_) => format!("{field}.{part}"),
    })
}

/// Pointers with a value that the schema forbids there; none: that it is left out.
fn break_value(schema: &Value, example: Option<&Value>, at: &str, broken: &mut Vec<(String, Option<Value>)>) {
    let mut add = |value: Value| broken.push((at.to_owned(), Some(value)));
    if schema["x-kubernetes-int-or-string"] == true {
        return add(json!(true));
    }
    match schema["type"].as_str() {
        Some("string") => add(json!(1)),
        Some(_) => add(json!("no")),
        None => {}
    }
    if schema["enum"].is_array() {
        add(json!("NoSuchValue"));
    }
    let number = |name: &str| schema[name].as_f64().map(|number| number as i64);
    let text = |length: i64| json!("a".repeat(usize::try_from(length).unwrap()));
    number("minLength")
        .filter(|least| *least > 0)
        .into_iter()
        .for_each(|least| add(text(least - 1)));
    number("maxLength").into_iter().for_each(|most| add(text(most + 1)));
    number("minimum").into_iter().for_each(|least| add(json!(least - 1)));
    number("maximum").into_iter().for_each(|most| add(json!(most + 1)));
    if schema["pattern"].is_string() {
        add(json!("\n"));
    }
    if let Some(Value::Array(items)) = example {
        if number("minItems").is_some_and(|least| least > 0) {
            add(json!([]));
        }
        if let (Some(most), Some(first)) = (number("maxItems"), items.first()) {
            add(vec![first.clone(); usize::try_from(most).unwrap() + 1].into());
        }
        if let Some(first) = items.first() {
            break_value(&schema["items"], Some(first), &format!("{at}/0"), broken);
        }
    }
    let required: BTreeSet<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    // What the example leaves out has a place only where it has the parent.
    let Some(Value::Object(fields)) = example else { return };
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}/{name}");
        if required.contains(name.as_str()) && property.get("default").is_none() {
            broken.push((at.clone(), None));
        }
        break_value(property, fields.get(name), &at, broken);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_of_each_kind_refuses_over_http_and_names_the_field() {
    let world = World::start().await;
    let kinds = world.kinds().await;
    let mut failures = Vec::new();
    let mut count = 0;
    for kind in &kinds {
        for (field, object) in kind.broken_by_schema() {
            count += 1;
            failures.extend(world.expect(kind, &object, &field).await);
        }
    }
    let broken = broken();
    for (resource, rule, field, change) in &broken {
        let kind = kinds.iter().find(|kind| kind.plural == *resource).unwrap();
        let mut object = kind.example.clone();
        json_patch::merge(&mut object, change);
        failures.extend(
            world
                .expect(kind, &object, field)
                .await
                .map(|failure| format!("{rule}: {failure}")),
        );
    }
    assert!(
        failures.is_empty(),
        "{} of {count}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    let stated: BTreeSet<_> = broken.iter().map(|(resource, rule, ..)| (*resource, *rule)).collect();
    assert_eq!(stated, rules().collect(), "each rule of the table, with each resource");
    assert!(count > 300, "{count} objects that a schema refuses");
    world.served.stop().await;
}
