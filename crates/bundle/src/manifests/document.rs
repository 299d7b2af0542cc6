//! From a file's bytes to objects: documents, lists, and the fields that every object must have.

use farwater_api::{hooks, objects::ObjectRef};
use serde_json::Value;

use super::{DocumentReason, MAX_DOCUMENT_BYTES, json};
use crate::{
    path::escape,
    yaml::{self, Budget, YamlReason},
};

/// Most nested lists; kubectl itself prints none.
const MAX_LIST_DEPTH: u8 = 4;

pub(super) struct FoundObject {
    pub object: ObjectRef,
    pub value: Value,
    pub line: u32,
    pub document: u32,
}

pub(super) struct FileError {
    pub line: u32,
    pub document: u32,
    pub reason: DocumentReason,
}

/// The objects of a value that was not read from a text.
pub(super) fn take_value(value: Value, (line, document): (u32, u32)) -> Vec<Result<FoundObject, FileError>> {
    let mut reader = FileReader {
        is_json: true,
        document,
        out: Vec::new(),
    };
    reader.take(value, line, 0, None);
    reader.out
}

/// A part of a file between separators.
struct Chunk<'t> {
    text: &'t str,
    /// Number of lines before it.
    skipped: u32,
}

/// Every object of a file, and every error.
pub(super) fn read_file(bytes: &[u8], is_json: bool) -> Vec<Result<FoundObject, FileError>> {
    let whole = |reason| {
        vec![Err(FileError {
            line: 1,
            document: 1,
            reason,
        })]
    };
    let Ok(text) = std::str::from_utf8(bytes) else {
        return whole(DocumentReason::NotText);
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.starts_with("version https://git-lfs.github.com/spec/") {
        return whole(DocumentReason::LfsPointer);
    }
    let mut reader = FileReader {
        is_json,
        document: 0,
        out: Vec::new(),
    };
    for chunk in split(text) {
        match chunk {
            Ok(chunk) => reader.read_chunk(&chunk),
            Err((line, rest)) => {
                reader.document += 1;
                reader.fail(line, DocumentReason::Separator(rest));
            }
        }
    }
    reader.out
}

/// Splits at lines that begin with `---`, as kubectl's reader does, so that one broken document doesn't affect the
/// others. Only a comment may follow on such a line.
fn split(text: &str) -> Vec<Result<Chunk<'_>, (u32, String)>> {
    let mut chunks = Vec::new();
    let (mut start, mut at, mut skipped) = (0, 0, 0);
    for (n, line) in text.split_inclusive('\n').enumerate() {
        let here = u32::try_from(n).unwrap_or(u32::MAX);
        if let Some(rest) = line.strip_prefix("---")
            && !is_directive_prologue(&text[start..at])
        {
            chunks.push(Ok(Chunk {
                text: &text[start..at],
                skipped,
            }));
            (start, skipped) = (at + line.len(), here + 1);
            let rest = rest.trim();
            if !rest.is_empty() && !rest.starts_with('#') {
                chunks.push(Err((here + 1, escape(rest.as_bytes()))));
            }
        }
        at += line.len();
    }
    chunks.push(Ok(Chunk {
        text: &text[start..],
        skipped,
    }));
    chunks
}

/// `%YAML 1.2` belongs to the document that the next separator begins.
fn is_directive_prologue(text: &str) -> bool {
    let mut lines = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .peekable();
    lines.peek().is_some() && lines.all(|line| line.starts_with('%'))
}

struct FileReader {
    is_json: bool,
    document: u32,
    out: Vec<Result<FoundObject, FileError>>,
}

impl FileReader {
    fn read_chunk(&mut self, chunk: &Chunk<'_>) {
        let trimmed = chunk.text.trim_start();
        if trimmed.is_empty() {
            return;
        }

        // The first line of the object itself, after comments and blank lines.
        let first = chunk.skipped + first_line(chunk.text);
        if chunk.text.trim().len() > MAX_DOCUMENT_BYTES {
            self.document += 1;
            return self.fail(first, DocumentReason::TooLarge(chunk.text.trim().len()));
        }

        if trimmed.starts_with('{') || self.is_json {
            match json::parse(chunk.text) {
                Ok(values) => {
                    for (line, value) in values {
                        self.document += 1;
                        self.take(value, chunk.skipped + line, 0, None);
                    }
                    return;
                }
                // `{a: b}` is YAML.
                Err(error) if self.is_json || error.is_semantic => {
                    self.document += 1;
                    return self.fail(chunk.skipped + error.line, DocumentReason::Json(error.message));
                }
                Err(_) => {}
            }
        }
        self.read_yaml(chunk);
    }

    fn read_yaml(&mut self, chunk: &Chunk<'_>) {
        let nodes = match yaml::parse(chunk.text, &Budget::default()) {
            Ok(nodes) => nodes,
            Err(error) => {
                self.document += 1;
                return self.fail(chunk.skipped + error.line, explain(chunk.text, error.reason));
            }
        };
        for node in nodes {
            if node.is_null() {
                continue;
            }
            self.document += 1;
            let line = chunk.skipped + node.line;
            match node.into_json() {
                Ok(value) => self.take(value, line, 0, None),
                Err(error) => self.fail(chunk.skipped + error.line, explain(chunk.text, error.reason)),
            }
        }
    }

    /// `item_of`: apiVersion and kind that a typed list (`ConfigMapList`) gives to items without their own.
    fn take(&mut self, mut value: Value, line: u32, depth: u8, item_of: Option<(&str, &str)>) {
        let Value::Object(map) = &mut value else {
            return self.fail(line, DocumentReason::NotAnObject(type_name(&value)));
        };
        if let Some((api_version, kind)) = item_of
            && !map.contains_key("kind")
            && !kind.is_empty()
        {
            map.insert("kind".to_owned(), kind.into());
            map.entry("apiVersion").or_insert_with(|| api_version.into());
        }

        let kind = map.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(item_kind) = kind.strip_suffix("List")
            && matches!(map.get("items"), Some(Value::Array(_) | Value::Null))
        {
            if depth >= MAX_LIST_DEPTH {
                return self.fail(line, DocumentReason::NestedLists);
            }
            let api_version = map
                .get("apiVersion")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            if let Some(Value::Array(items)) = map.remove("items") {
                for item in items {
                    self.take(item, line, depth + 1, Some((&api_version, item_kind)));
                }
            }
            return;
        }

        if hooks::is_hook(&value["metadata"]["annotations"]) {
            hooks::name_generated(&mut value);
        }
        match identify(&value) {
            Ok(object) => self.out.push(Ok(FoundObject {
                object,
                value,
                line,
                document: self.document,
            })),
            Err(reason) => self.fail(line, reason),
        }
    }

    fn fail(&mut self, line: u32, reason: DocumentReason) {
        self.out.push(Err(FileError {
            line,
            document: self.document,
            reason,
        }));
    }
}

/// Explains an error by a common mistake, if it is recognized; the parser's own message is only about YAML.
fn explain(text: &str, reason: YamlReason) -> DocumentReason {
    if text
        .lines()
        .any(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "))
    {
        DocumentReason::Conflict
    } else if text.contains("{{") {
        DocumentReason::Template(reason)
    } else {
        DocumentReason::Yaml(reason)
    }
}

fn first_line(text: &str) -> u32 {
    let blank = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    u32::try_from(text.lines().take_while(blank).count())
        .unwrap_or(u32::MAX)
        .saturating_add(1)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn identify(value: &Value) -> Result<ObjectRef, DocumentReason> {
    let kind = required(value.get("kind"), "kind")?;
    let api_version = required(value.get("apiVersion"), "apiVersion")?;
    let metadata = match value.get("metadata") {
        None | Some(Value::Null) => return Err(DocumentReason::Missing("metadata.name")),
        Some(metadata @ Value::Object(_)) => metadata,
        Some(other) => return Err(DocumentReason::NotAnObject(type_name(other))),
    };
    if metadata.get("generateName").is_some_and(|v| !v.is_null() && v != "") {
        return Err(DocumentReason::GenerateName);
    }

    let name = required(metadata.get("name"), "metadata.name")?;
    let namespace = match metadata.get("namespace") {
        None | Some(Value::Null) => "",
        Some(Value::String(namespace)) => namespace,
        Some(_) => return Err(DocumentReason::NotAString("metadata.namespace")),
    };

    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // The longest values that Kubernetes accepts. Other syntax is not checked, because kinds differ and the API server
    // knows.
    let fields = [
        ("kind", kind, 63),
        ("apiVersion", api_version, 317),
        ("metadata.name", name, 253),
    ];
    for (field, text, longest) in fields.into_iter().chain([("metadata.namespace", namespace, 63)]) {
        if text.len() > longest || text.chars().any(|c| c.is_control() || c == '\\') {
            return Err(DocumentReason::Malformed {
                field,
                value: escape(text.as_bytes()),
            });
        }
    }
    if version.is_empty() || version.contains('/') || (group.is_empty() && api_version.contains('/')) {
        return Err(DocumentReason::Malformed {
            field: "apiVersion",
            value: escape(api_version.as_bytes()),
        });
    }
    if kind.contains('/') || name.contains('/') || namespace.contains('/') {
        return Err(DocumentReason::Malformed {
            field: "kind, name or namespace",
            value: escape(name.as_bytes()),
        });
    }
    Ok(ObjectRef {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

fn required<'v>(value: Option<&'v Value>, field: &'static str) -> Result<&'v str, DocumentReason> {
    match value {
        None | Some(Value::Null) => Err(DocumentReason::Missing(field)),
        Some(Value::String(text)) if text.is_empty() => Err(DocumentReason::Missing(field)),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(DocumentReason::NotAString(field)),
    }
}
