//! The paths of each kind, with the parameters, bodies and answers of their operations.

use serde_json::{Map, Value, json};

use super::{super::patch::PatchType, DELETE_OPTIONS, STATUS, path_of};
use crate::kinds::{Registry, ResourceKind, Subresource, published::PATCH};

const WRITTEN: &[&str] = &["application/json", "application/yaml"];

/// A kind by group, version and name.
pub fn gvk_of((group, version, kind): (&str, &str, &str)) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

pub fn gvk(kind: &ResourceKind) -> Value {
    gvk_of((&kind.group, &kind.version, &kind.kind))
}

/// The schema of a built-in kind that is only sent to a subresource.
pub fn schema_of<'a>(registry: &'a Registry, (group, version, kind): (&str, &str, &str)) -> Option<&'a str> {
    let name = format!("io.k8s.api.{}.{version}.{kind}", group.split('.').next()?);
    registry.definitions.get_key_value(&name).map(|(name, _)| name.as_str())
}

fn parameter(name: &str, kind: &str, description: &str) -> Value {
    json!({"name": name, "in": "query", "description": description, "schema": {"type": kind, "uniqueItems": true}})
}

fn dry_run() -> Value {
    let text = "All: the hub makes every check and saves nothing.";
    parameter("dryRun", "string", text)
}

fn write_parameters() -> Vec<Value> {
    vec![
        dry_run(),
        parameter(
            "fieldManager",
            "string",
            "Name of the manager of the written fields; required for an apply.",
        ),
        parameter(
            "fieldValidation",
            "string",
            "Handling of unknown and duplicate fields: Ignore, Warn (the default) or Strict.",
        ),
    ]
}

fn delete_parameters() -> Vec<Value> {
    let mut parameters = vec![dry_run()];
    parameters.extend(
        [
            (
                "gracePeriodSeconds",
                "integer",
                "Accepted, without effect: no object of the hub has a grace period.",
            ),
            ("orphanDependents", "boolean", "Deprecated; use propagationPolicy."),
            (
                "propagationPolicy",
                "string",
                "Deletion of dependents: Background, Foreground or Orphan.",
            ),
        ]
        .map(|(name, kind, text)| parameter(name, kind, text)),
    );
    parameters
}

/// Kubernetes lists it for custom resources only.
fn read_parameters(kind: &ResourceKind) -> Vec<Value> {
    let version = || parameter("resourceVersion", "string", "The answer is at least as new as this.");
    kind.ours.then(version).into_iter().collect()
}

fn patch_parameters() -> Vec<Value> {
    let force = parameter(
        "force",
        "boolean",
        "An apply takes fields that others own instead of being refused.",
    );
    write_parameters().into_iter().chain([force]).collect()
}

fn list_parameters() -> Vec<Value> {
    [
        (
            "allowWatchBookmarks",
            "boolean",
            "Whether a watch also sends BOOKMARK events.",
        ),
        ("continue", "string", "The token of the page before."),
        ("fieldSelector", "string", "Narrows by fields."),
        ("labelSelector", "string", "Narrows by labels."),
        ("limit", "integer", "Most items of one answer."),
        ("resourceVersion", "string", "The state to list or to watch from."),
        (
            "resourceVersionMatch",
            "string",
            "How resourceVersion is meant: Exact or NotOlderThan.",
        ),
        ("sendInitialEvents", "boolean", "A watch begins with the present state."),
        ("timeoutSeconds", "integer", "Ends a watch."),
        ("watch", "boolean", "Stream changes instead of listing."),
    ]
    .map(|(name, kind, text)| parameter(name, kind, text))
    .into()
}

fn delete_collection_parameters() -> Vec<Value> {
    let of_watches = |parameter: &Value| matches!(parameter["name"].as_str(), Some("watch" | "allowWatchBookmarks"));
    list_parameters()
        .into_iter()
        .filter(|p| !of_watches(p))
        .chain(delete_parameters())
        .collect()
}

fn path_parameters(kind: &ResourceKind, item: bool) -> Vec<Value> {
    let path = |name: &str, text: &str| {
        let schema = json!({"type": "string", "uniqueItems": true});
        json!({"name": name, "in": "path", "required": true, "description": text, "schema": schema})
    };
    let name = item.then(|| path("name", &format!("The name of the {}.", kind.kind)));
    let namespace = kind
        .namespaced
        .then(|| path("namespace", "The namespace that it is in."));
    name.into_iter().chain(namespace).collect()
}

fn patch_types(kind: &ResourceKind) -> &'static [&'static str] {
    const OURS: &[&str] = &[PatchType::JSON, PatchType::MERGE, PatchType::APPLY];
    const BUILT_IN: &[&str] = &[
        PatchType::JSON,
        PatchType::MERGE,
        PatchType::STRATEGIC,
        PatchType::APPLY,
    ];
    if kind.ours { OURS } else { BUILT_IN }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
        .unwrap_or_default()
}

/// A group in the names of operations, as in Kubernetes: `rbac.authorization.k8s.io` is `rbacAuthorization`.
fn group_word(group: &str) -> String {
    let short = if group.is_empty() {
        "core"
    } else {
        group.strip_suffix(".k8s.io").unwrap_or(group)
    };
    let mut words = short.split('.');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| all + &capital(word))
}

/// A path of a kind, and what distinguishes it in names of operations.
#[derive(Clone, Copy)]
struct KindPath<'a> {
    kind: &'a ResourceKind,
    /// Kind of the request and the answer.
    gvk: (&'a str, &'a str, &'a str),
    schema: &'a str,
    /// The subresource.
    sub: &'a str,
    everywhere: bool,
}

struct Body<'a> {
    schema: &'a str,
    types: &'a [&'a str],
    required: bool,
}

struct Operation<'a> {
    action: &'a str,
    parameters: Vec<Value>,
    body: Option<Body<'a>>,
    /// Schema of the answer, and its possible codes.
    answer: &'a str,
    codes: &'a [u16],
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

impl<'a> KindPath<'a> {
    fn of(kind: &'a ResourceKind) -> Self {
        let gvk = (&*kind.group, &*kind.version, &*kind.kind);
        Self {
            kind,
            gvk,
            schema: &kind.schema_name,
            sub: "",
            everywhere: false,
        }
    }

    /// Unique in a document of all groups, because clients are generated with functions of these names.
    fn id(&self, action: &str) -> String {
        let (verb, all) = match action {
            "get" => ("read", ""),
            "put" => ("replace", ""),
            "post" => ("create", ""),
            "deletecollection" => ("delete", "Collection"),
            other => (other, ""),
        };
        let group = capital(&group_word(&self.kind.group)) + &capital(&self.kind.version);
        let scope = if self.kind.namespaced && !self.everywhere {
            "Namespaced"
        } else {
            ""
        };
        let end = if self.everywhere { "ForAllNamespaces" } else { "" };
        format!("{verb}{group}{all}{scope}{}{}{end}", self.kind.kind, capital(self.sub))
    }

    fn operation(&self, op: Operation<'_>) -> Value {
        let says = |code: &u16| match code {
            200 => "OK",
            201 => "Created",
            _ => "Accepted",
        };
        let content = json!({"application/json": {"schema": reference(op.answer)}});
        let answers = op
            .codes
            .iter()
            .map(|code| (code.to_string(), json!({"description": says(code), "content": content})));
        let refused = ("401".to_owned(), json!({"description": "Unauthorized"}));
        let responses: Map<String, Value> = answers.chain([refused]).collect();

        let mut value = json!({
            "operationId": self.id(op.action),
            "tags": [format!("{}_{}", group_word(&self.kind.group), self.kind.version)],
            "parameters": op.parameters,
            "responses": responses,
            "x-kubernetes-action": op.action,
            "x-kubernetes-group-version-kind": gvk_of(self.gvk),
        });

        if let Some(body) = op.body {
            let schema = json!({"schema": reference(body.schema)});
            let content: Map<_, _> = body.types.iter().map(|t| ((*t).to_owned(), schema.clone())).collect();
            value["requestBody"] = json!({"content": content});
            if body.required {
                value["requestBody"]["required"] = true.into();
            }
        }
        value
    }

    fn get(&self) -> Value {
        let parameters = read_parameters(self.kind);
        self.operation(Operation {
            action: "get",
            parameters,
            body: None,
            answer: self.schema,
            codes: &[200],
        })
    }

    fn list(&self, answer: &str) -> Value {
        let parameters = list_parameters();
        self.operation(Operation {
            action: "list",
            parameters,
            body: None,
            answer,
            codes: &[200],
        })
    }

    fn write(&self, action: &str, codes: &[u16]) -> Value {
        let body = Some(Body {
            schema: self.schema,
            types: WRITTEN,
            required: true,
        });
        self.operation(Operation {
            action,
            parameters: write_parameters(),
            body,
            answer: self.schema,
            codes,
        })
    }

    fn put(&self) -> Value {
        self.write("put", &[200, 201])
    }

    fn post(&self) -> Value {
        self.write("post", &[200, 201, 202])
    }

    fn patch(&self) -> Value {
        let body = Some(Body {
            schema: PATCH,
            types: patch_types(self.kind),
            required: true,
        });
        // An apply creates missing objects; Kubernetes doesn't state that for custom resources.
        let codes: &[u16] = if self.kind.ours { &[200] } else { &[200, 201] };
        let parameters = patch_parameters();
        self.operation(Operation {
            action: "patch",
            parameters,
            body,
            answer: self.schema,
            codes,
        })
    }

    fn delete(&self, action: &str, parameters: Vec<Value>) -> Value {
        let body = Some(Body {
            schema: DELETE_OPTIONS,
            types: WRITTEN,
            required: false,
        });
        let (answer, codes): (_, &[u16]) = match action {
            "deletecollection" => (STATUS, &[200]),
            // The answer is a Namespace, too; but clients expect what Kubernetes publishes.
            _ if self.kind.answers_deleted && self.kind.kind != "Namespace" => (self.schema, &[200, 202]),
            _ => (STATUS, &[200, 202]),
        };
        self.operation(Operation {
            action,
            parameters,
            body,
            answer,
            codes,
        })
    }
}

fn collection_path(root: &str, kind: &ResourceKind) -> String {
    let scope = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    format!("{root}{scope}/{}", kind.plural)
}

/// A subresource is sent either a kind with a schema of its own, or the resource itself.
fn subresource<'a>(registry: &'a Registry, kind: &'a ResourceKind, sub: &'a Subresource) -> Option<Value> {
    let mut place = KindPath {
        sub: sub.name,
        ..KindPath::of(kind)
    };
    if let Some(gvk) = sub.kind {
        (place.gvk, place.schema) = (gvk, schema_of(registry, gvk)?);
    }
    let mut path = json!({"parameters": path_parameters(kind, true)});
    for verb in sub.verbs {
        let (method, operation) = match *verb {
            "create" => ("post", place.post()),
            "get" => ("get", place.get()),
            "update" => ("put", place.put()),
            "patch" => ("patch", place.patch()),
            _ => continue,
        };
        path[method] = operation;
    }
    Some(path)
}

pub fn paths(registry: &Registry, kind: &ResourceKind, paths: &mut Map<String, Value>) {
    let root = format!("/{}", path_of(&kind.group, &kind.version));
    let (collection, place) = (collection_path(&root, kind), KindPath::of(kind));
    if !kind.stored {
        let (method, operation) = match kind.is_listed() {
            true => ("get", place.list(&kind.list_schema_name())),
            false => ("post", place.post()),
        };
        if kind.is_listed() {
            let item = json!({"parameters": path_parameters(kind, true), "get": place.get()});
            paths.insert(format!("{collection}/{{name}}"), item);
        }
        paths.insert(
            collection,
            json!({"parameters": path_parameters(kind, false), method: operation}),
        );
        return;
    }

    let list = kind.list_schema_name();
    let mut all = json!({"parameters": path_parameters(kind, false), "get": place.list(&list), "post": place.post()});
    if kind.verbs.contains(&"deletecollection") {
        all["delete"] = place.delete("deletecollection", delete_collection_parameters());
    }
    paths.insert(collection.clone(), all);
    if kind.namespaced {
        let everywhere = KindPath {
            everywhere: true,
            ..place
        };
        paths.insert(
            format!("{root}/{}", kind.plural),
            json!({"get": everywhere.list(&list)}),
        );
    }

    let item = json!({
        "parameters": path_parameters(kind, true),
        "get": place.get(),
        "put": place.put(),
        "patch": place.patch(),
        "delete": place.delete("delete", delete_parameters()),
    });
    paths.insert(format!("{collection}/{{name}}"), item);

    for sub in &kind.subresources {
        if let Some(path) = subresource(registry, kind, sub) {
            paths.insert(format!("{collection}/{{name}}/{}", sub.name), path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_words_of_generated_clients() {
        assert_eq!(group_word(""), "core");
        assert_eq!(group_word("rbac.authorization.k8s.io"), "rbacAuthorization");
        assert_eq!(group_word("farwater.dev"), "farwaterDev");
        assert_eq!(capital("v1alpha1"), "V1alpha1");
    }
}
