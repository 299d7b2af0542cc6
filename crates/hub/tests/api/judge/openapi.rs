//! OpenAPI v3 by group, and v2: every schema, and every operation that is offered. What is left out of the comparison
//! stands among the deliberate differences (`differences`).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::support::Served;

use super::{court::*, documents::GROUPS, verdict::normalized};

/// What a client reads of a schema; references are followed.
const KEYWORDS: [&str; 22] = [
    "type",
    "format",
    "enum",
    "pattern",
    "required",
    "nullable",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-group-version-kind",
    "x-kubernetes-unions",
    "x-kubernetes-embedded-resource",
];
/// Of our own kinds, whose one source is the CRD, also what v3 alone may have, and all words.
const OWN_KEYWORDS: [&str; 3] = ["default", "description", "title"];
const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];
/// Parameters and a field that a hub doesn't offer.
const NOT_OFFERED: [&str; 4] = [
    "shardSelector",
    "shardInfo",
    "pretty",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
];

/// Names in a path to a field, the schema's own included: some types contain themselves.
const DEEPEST: usize = 20;

/// A document of either version.
struct Document {
    value: Value,
    schemas: Map<String, Value>,
}

fn name_of(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap()
}

impl Document {
    fn new(mut value: Value) -> Self {
        // No CustomResourceDefinition can state a kind that is computed when it is read.
        if let Some(paths) = value["paths"].as_object_mut() {
            paths.retain(|path, _| !path.contains("/grantedclusters"));
        }
        let schemas = [value.get("definitions"), value.pointer("/components/schemas")]
            .into_iter()
            .flatten()
            .next();
        let mut schemas = schemas.and_then(Value::as_object).cloned().unwrap_or_default();
        schemas.retain(|name, _| !name.contains(".GrantedCluster"));
        Self { value, schemas }
    }

    fn is_v2(&self) -> bool {
        self.value["swagger"] == "2.0"
    }

    /// The schema behind references, which stand beside a description, alone, or in an `allOf` of one.
    fn resolve<'a>(&'a self, mut schema: &'a Value) -> &'a Value {
        loop {
            let one = schema["allOf"]
                .as_array()
                .filter(|all| all.len() == 1)
                .map(|all| &all[0]);
            let inner = one.unwrap_or(schema);
            match inner["$ref"].as_str() {
                Some(reference) => {
                    let name = name_of(reference);
                    schema = self.schemas.get(name).unwrap_or_else(|| panic!("no schema {name}"));
                }
                None => return inner,
            }
        }
    }

    fn paths(&self) -> &Map<String, Value> {
        self.value["paths"].as_object().unwrap()
    }

    /// The parameters of a path or an operation, whichever way they are written.
    fn parameters(&self, of: &Value) -> Vec<Value> {
        let shared = |parameter: &Value| match parameter["$ref"].as_str() {
            Some(reference) => self.value["parameters"][name_of(reference)].clone(),
            None => parameter.clone(),
        };
        of["parameters"].as_array().into_iter().flatten().map(shared).collect()
    }

    /// What clients read of an operation: its name, what it is for, its parameters, the body, and the answers.
    fn read(&self, path: &Value, operation: &Value) -> Value {
        let mut parameters = [self.parameters(path), self.parameters(operation)].concat();
        let body = parameters
            .iter()
            .position(|p| p["in"] == "body")
            .map(|place| parameters.remove(place));
        let schema = |value: &Value| value["schema"]["$ref"].as_str().map(name_of).map(str::to_owned);
        let content = &operation["requestBody"]["content"];
        let sent = body
            .as_ref()
            .and_then(schema)
            .or_else(|| schema(content.as_object()?.values().next()?));
        let required = body.as_ref().unwrap_or(&operation["requestBody"])["required"] == true;
        let types: BTreeSet<String> = match content.as_object() {
            Some(content) => content.keys().cloned().collect(),
            None => serde_json::from_value(operation["consumes"].clone()).unwrap_or_default(),
        };
        let parameters: BTreeSet<String> = parameters
            .iter()
            .filter(|parameter| !NOT_OFFERED.contains(&parameter["name"].as_str().unwrap()))
            .map(|p| {
                let kind = p["type"].as_str().or(p["schema"]["type"].as_str());
                json!([p["in"], p["name"], p["required"], kind]).to_string()
            })
            .collect();
        let answers = operation["responses"].as_object().unwrap().iter();
        let answers = answers.map(|(code, answer)| {
            let content = answer["content"].get("application/json");
            (
                code.clone(),
                json!([answer["description"], schema(content.unwrap_or(answer))]),
            )
        });
        json!({
            "id": operation["operationId"], "tags": operation["tags"], "action": operation["x-kubernetes-action"],
            "gvk": operation["x-kubernetes-group-version-kind"], "parameters": parameters,
            "body": sent, "required": required, "types": types, "answers": answers.collect::<Map<_, _>>(),
        })
    }

    fn kinds(&self) -> BTreeSet<String> {
        let operations = self
            .paths()
            .values()
            .flat_map(|path| METHODS.map(|method| &path[method]));
        let kinds = operations.map(|operation| &operation["x-kubernetes-group-version-kind"]);
        kinds.filter(|kind| kind.is_object()).map(ToString::to_string).collect()
    }
}

/// Of what many groups share, such as DeleteOptions, each server names those that it serves.
fn kinds_in_both(ours: &mut Value, real: &mut Value) {
    let ours_too = ours.clone();
    for list in [ours, real].into_iter().filter_map(Value::as_array_mut) {
        list.retain(|kind| ours_too.as_array().is_some_and(|all| all.contains(kind)));
        list.sort_by_key(ToString::to_string);
    }
}

struct Comparison<'a> {
    ours: &'a Document,
    real: &'a Document,
    differences: &'a mut Vec<String>,
}

impl Comparison<'_> {
    fn schemas(&mut self, place: &str, ours: &Value, real: &Value) {
        if place.split('.').count() > DEEPEST {
            return;
        }
        let (ours_in, real_in) = (self.ours, self.real);
        let (ours, real) = (ours_in.resolve(ours), real_in.resolve(real));
        let own = place.starts_with("dev.farwater.") && !place.contains("List") && !place.contains(".metadata");
        for keyword in KEYWORDS.into_iter().chain(OWN_KEYWORDS.into_iter().filter(|_| own)) {
            let (mut a, mut b) = (ours[keyword].clone(), real[keyword].clone());
            match keyword {
                "x-kubernetes-group-version-kind" => kinds_in_both(&mut a, &mut b),
                "required" => [&mut a, &mut b]
                    .into_iter()
                    .filter_map(|list| list.as_array_mut())
                    .for_each(|list| list.sort_by_key(ToString::to_string)),
                _ => {}
            }
            if a != b {
                self.differences
                    .push(format!("{place}: {keyword}\n  real: {b}\n  ours: {a}"));
            }
        }
        let names = |schema: &Value| {
            let names = schema["properties"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone());
            names
                .filter(|name| !NOT_OFFERED.contains(&name.as_str()))
                .collect::<BTreeSet<_>>()
        };
        let (a, b) = (names(ours), names(real));
        if a != b {
            let (real, ours) = (
                b.difference(&a).collect::<Vec<_>>(),
                a.difference(&b).collect::<Vec<_>>(),
            );
            self.differences
                .push(format!("{place}: properties; only real: {real:?}, only ours: {ours:?}"));
        }
        for name in a.intersection(&b) {
            self.schemas(
                &format!("{place}.{name}"),
                &ours["properties"][name],
                &real["properties"][name],
            );
        }
        for part in ["items", "additionalProperties"] {
            match (
                ours.get(part).filter(|s| s.is_object()),
                real.get(part).filter(|s| s.is_object()),
            ) {
                (Some(a), Some(b)) => self.schemas(&format!("{place}.{part}"), a, b),
                (None, None) => {}
                (a, b) => self
                    .differences
                    .push(format!("{place}: {part}: real {}, ours {}", b.is_some(), a.is_some())),
            }
        }
    }

    fn all_schemas(&mut self) {
        let (ours, real) = (self.ours, self.real);
        for (name, schema) in &ours.schemas {
            match real.schemas.get(name) {
                Some(other) => self.schemas(name, schema, other),
                None => self.differences.push(format!("only ours has the schema {name}")),
            }
        }
    }

    fn operation(&self, method: &str, path: &str) -> [Option<Value>; 2] {
        let custom = path.starts_with("/apis/farwater.dev/");
        [self.ours, self.real].map(|document| {
            let path = document.paths().get(path)?;
            let mut read = document.read(path, path.get(method)?);
            let fields = read.as_object_mut().unwrap();
            if method != "patch" {
                fields.remove("types");
            } else if let Some(types) = fields["types"].as_array_mut() {
                types.retain(|name| !name.as_str().unwrap().contains("cbor"));
            }
            if custom && fields["action"] == "deletecollection" {
                fields.remove("parameters");
                fields.remove("body");
            }
            Some(read)
        })
    }

    /// Every operation of ours, and of the real server every one of a kind that we have.
    fn operations(&mut self) {
        let kinds = self.ours.kinds();
        let (ours, real) = (self.ours.paths(), self.real.paths());
        let is_watch = |path: &str| path.split('/').any(|part| part == "watch");
        let served = real.iter().filter(|(path, _)| !is_watch(path));
        let served = served.filter(|(_, operations)| {
            let of = |method| operations[method]["x-kubernetes-group-version-kind"].to_string();
            METHODS.iter().any(|method| kinds.contains(&of(method)))
        });
        let paths: BTreeSet<&String> = ours.keys().chain(served.map(|(path, _)| path)).collect();
        for path in paths {
            for method in METHODS {
                let [ours, real] = self.operation(method, path);
                if ours != real {
                    let shown = |v: &Option<Value>| v.as_ref().map(ToString::to_string).unwrap_or_default();
                    let text = format!("{method} {path}\n  real: {}\n  ours: {}", shown(&real), shown(&ours));
                    self.differences.push(text);
                }
            }
        }
    }

    fn security(&mut self) {
        let [ours, real] = [self.ours, self.real].map(|document| {
            let at = if document.is_v2() {
                "/securityDefinitions"
            } else {
                "/components/securitySchemes"
            };
            [
                document.value.pointer(at).cloned().unwrap_or_default(),
                document.value["security"].clone(),
            ]
            .map(normalized)
        });
        if ours != real {
            self.differences
                .push(format!("security\n  real: {real:?}\n  ours: {ours:?}"));
        }
    }
}

/// What the servers publish at `path`, once the real one has all of our kinds in it.
async fn compare(court: &Court, path: &str, differences: &mut Vec<String>) {
    let step = Step::get(path).accept(JSON);
    let whole = |answer: &Answer| {
        let paths = answer.value["paths"].as_object();
        let has = |plural: &str| {
            paths.is_some_and(|paths| paths.contains_key(&format!("/apis/farwater.dev/v1alpha1/{plural}")))
        };
        let ours = ["clusters", "clustergrants", "gitrepositories", "servicedeployments"];
        answer.code == 200 && (path.contains("/v3/") && !path.contains("farwater") || ours.into_iter().all(has))
    };
    // Of custom resources it is published some time after they are.
    court.wait_until(step.clone(), whole).await;
    let (real, ours) = (court.real.ask(&step).await.value, court.ours.ask(&step).await.value);
    let (real, ours) = (Document::new(real), Document::new(ours));
    assert_eq!(ours.is_v2(), real.is_v2());
    let mut comparison = Comparison {
        ours: &ours,
        real: &real,
        differences,
    };
    comparison.all_schemas();
    comparison.operations();
    comparison.security();
}

fn sentence(mut differences: Vec<String>) {
    differences.sort();
    differences.dedup();
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_describes_each_kind_as_kubernetes_does() {
    let served = Served::start().await;
    let court = Court::sit(&served).await;
    let mut differences = Vec::new();
    for group in GROUPS {
        compare(&court, &format!("/openapi/v3/{group}"), &mut differences).await;
    }
    sentence(differences);
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_describes_each_kind_as_kubernetes_does() {
    let served = Served::start().await;
    let court = Court::sit(&served).await;
    let mut differences = Vec::new();
    compare(&court, "/openapi/v2", &mut differences).await;
    sentence(differences);
    court.sentence();
    served.stop().await;
}
