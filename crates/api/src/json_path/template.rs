//! Templates of kubectl: text with paths in braces.

use std::borrow::Cow;

use serde_json::Value;

use super::{Path, PathError, literal, outside, refuse};

/// Text with paths in braces, as in `kubectl -o jsonpath=`.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Node>);

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Text(String),
    Values(Path),
    /// `{range PATH}` … `{end}`
    Each(Path, Vec<Node>),
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, PathError> {
        // The open ranges, the whole template first.
        let mut open: Vec<(Option<Path>, Vec<Node>)> = vec![(None, Vec::new())];
        let mut rest = text;
        let mut has_braces = false;
        while !rest.is_empty() {
            let Some(begin) = rest.find('{') else {
                push(&mut open, Node::Text(rest.to_owned()));
                break;
            };
            if begin > 0 {
                push(&mut open, Node::Text(rest[..begin].to_owned()));
            }
            let inner = &rest[begin + 1..];
            let Some(end) = outside(inner, "}").next() else {
                return refuse(&rest[begin..], "a brace is not closed");
            };
            has_braces = true;
            rest = &inner[end + 1..];
            let action = inner[..end].trim();
            match action
                .split_once(char::is_whitespace)
                .map_or((action, ""), |(word, more)| (word, more.trim()))
            {
                ("range", path) => open.push((Some(Path::parse(path)?), Vec::new())),
                ("end", "") => match open.pop() {
                    Some((Some(path), nodes)) => push(&mut open, Node::Each(path, nodes)),
                    _ => return refuse(text, "an end has no range"),
                },
                _ => match literal(action) {
                    Some(Value::String(text)) => push(&mut open, Node::Text(text)),
                    _ if action.is_empty() => return refuse(text, "braces are empty"),
                    _ => push(&mut open, Node::Values(Path::parse(action)?)),
                },
            }
        }
        match open.pop() {
            Some((None, _)) if !has_braces => refuse(text, "put a path into braces: {.metadata.name}"),
            Some((None, nodes)) => Ok(Self(nodes)),
            _ => refuse(text, "a range has no end"),
        }
    }

    /// As in kubectl, spaces separate several values of one path, and missing fields are empty.
    pub fn render(&self, object: &Value) -> String {
        let mut text = String::new();
        render(&self.0, object, object, &mut text);
        text
    }
}

fn push(open: &mut [(Option<Path>, Vec<Node>)], node: Node) {
    if let Some((_, nodes)) = open.last_mut() {
        nodes.push(node);
    }
}

fn render(nodes: &[Node], root: &Value, current: &Value, text: &mut String) {
    for node in nodes {
        let start = |path: &Path| if path.absolute { root } else { current };
        match node {
            Node::Text(plain) => text.push_str(plain),
            Node::Values(path) => {
                let found: Vec<Cow<'_, str>> = path.find(start(path)).into_iter().map(show).collect();
                text.push_str(&found.join(" "));
            }
            Node::Each(path, nodes) => path
                .find(start(path))
                .into_iter()
                .for_each(|one| render(nodes, root, one, text)),
        }
    }
}

/// Texts unchanged, other values as JSON.
fn show(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => text.as_str().into(),
        Value::Null => "".into(),
        other => other.to_string().into(),
    }
}
