//! From parser events to nodes: anchors, aliases, merge keys and the budget.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Tag};

use super::{Budget, Key, Node, NodeValue, Scalar, YamlError, YamlReason};

/// An open collection.
enum Open {
    Sequence { anchor: usize, line: u32, items: Vec<Node> },
    Mapping(OpenMapping),
}

struct OpenMapping {
    anchor: usize,
    line: u32,
    entries: Vec<(Key, Node)>,
    /// Index of each key in `entries`, and whether it was written here (not merged).
    index: HashMap<String, (usize, bool)>,
    /// The key whose value follows.
    key: Option<PendingKey>,
}

enum PendingKey {
    Key(Key),
    Merge,
}

/// The node of an anchor, with its cost per repetition.
struct Anchored {
    node: Node,
    nodes: usize,
    bytes: usize,
    depth: usize,
}

struct Composer<'b> {
    budget: &'b Budget,
    repeated: Repeated<'b>,
    nodes: usize,
    bytes: usize,
    stack: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    root: Option<Node>,
}

/// How duplicate keys in a mapping are handled.
pub(super) enum Repeated<'r> {
    Refused,
    /// The last one counts, and the duplicates are recorded here.
    Noted(&'r mut Vec<YamlError>),
}

pub(super) fn compose<'b>(text: &str, budget: &'b Budget, repeated: Repeated<'b>) -> Result<Vec<Node>, YamlError> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: budget.depth,
        block_nesting_limit: budget.depth,
    };
    let (stack, anchors) = (Vec::new(), HashMap::new());
    let mut composer = Composer {
        budget,
        repeated,
        nodes: 0,
        bytes: 0,
        stack,
        anchors,
        root: None,
    };

    let mut documents = Vec::new();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|e| YamlError {
            line: e.marker().line().try_into().unwrap_or(u32::MAX),
            reason: YamlReason::Syntax(e.info()),
        })?;
        let line = span.start.line().try_into().unwrap_or(u32::MAX);
        match event {
            Event::DocumentStart(..) => {
                composer.anchors.clear();
                (composer.nodes, composer.bytes) = (0, 0);
            }
            Event::DocumentEnd => {
                let empty = Node {
                    line,
                    value: NodeValue::Scalar(Scalar::Null),
                };
                documents.push(composer.root.take().unwrap_or(empty));
            }
            event => composer
                .take(event, line)
                .map_err(|reason| YamlError { line, reason })?,
        }
    }
    Ok(documents)
}

impl Composer<'_> {
    fn take(&mut self, event: Event<'_>, line: u32) -> Result<(), YamlReason> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.spend(1, text.len())?;
                if self.awaits_key() && text == "<<" && is_merge_key(style, tag.as_deref()) {
                    self.set_key(PendingKey::Merge);
                    return Ok(());
                }
                let scalar = resolve(&text, style, tag.as_deref())?;
                let node = Node {
                    line,
                    value: NodeValue::Scalar(scalar),
                };
                self.keep(anchor, &node)?;
                self.add(node)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.spend(1, 0)?;
                self.open(Open::Sequence {
                    anchor,
                    line,
                    items: Vec::new(),
                })
            }
            Event::MappingStart(_, anchor, _) => {
                self.spend(1, 0)?;
                let (entries, index) = (Vec::new(), HashMap::new());
                self.open(Open::Mapping(OpenMapping {
                    anchor,
                    line,
                    entries,
                    index,
                    key: None,
                }))
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => {
                let (nodes, bytes, depth) = match self.anchors.get(&anchor) {
                    Some(a) => (a.nodes, a.bytes, a.depth),
                    None => return Err(YamlReason::SelfAlias),
                };
                // Count before copying, so that a bomb is refused.
                self.spend(nodes, bytes)?;
                if self.stack.len() + depth > self.budget.depth {
                    return Err(YamlReason::Depth(self.budget.depth));
                }
                match self.anchors.get(&anchor) {
                    Some(anchored) => self.add(anchored.node.clone()),
                    None => Err(YamlReason::SelfAlias),
                }
            }
            _ => Ok(()),
        }
    }

    fn spend(&mut self, nodes: usize, bytes: usize) -> Result<(), YamlReason> {
        self.nodes = self.nodes.saturating_add(nodes);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.nodes > self.budget.nodes {
            return Err(YamlReason::Nodes(self.budget.nodes));
        }
        if self.bytes > self.budget.bytes {
            return Err(YamlReason::Bytes(self.budget.bytes));
        }
        Ok(())
    }

    fn open(&mut self, open: Open) -> Result<(), YamlReason> {
        if self.awaits_key() {
            return Err(YamlReason::Key(match open {
                Open::Sequence { .. } => "a sequence",
                Open::Mapping(_) => "a mapping",
            }));
        }
        if self.stack.len() >= self.budget.depth {
            return Err(YamlReason::Depth(self.budget.depth));
        }
        self.stack.push(open);
        Ok(())
    }

    fn close(&mut self) -> Result<(), YamlReason> {
        let (anchor, node) = match self.stack.pop() {
            Some(Open::Sequence { anchor, line, items }) => (
                anchor,
                Node {
                    line,
                    value: NodeValue::Sequence(items),
                },
            ),
            Some(Open::Mapping(m)) => (
                m.anchor,
                Node {
                    line: m.line,
                    value: NodeValue::Mapping(m.entries),
                },
            ),
            None => return Ok(()),
        };
        self.keep(anchor, &node)?;
        self.add(node)
    }

    /// The copy counts too: nested anchors are a bomb without any alias.
    fn keep(&mut self, anchor: usize, node: &Node) -> Result<(), YamlReason> {
        if anchor != 0 {
            let (nodes, bytes, depth) = measure(node);
            self.spend(nodes, bytes)?;
            self.anchors.insert(
                anchor,
                Anchored {
                    node: node.clone(),
                    nodes,
                    bytes,
                    depth,
                },
            );
        }
        Ok(())
    }

    fn awaits_key(&self) -> bool {
        matches!(self.stack.last(), Some(Open::Mapping(m)) if m.key.is_none())
    }

    fn set_key(&mut self, key: PendingKey) {
        if let Some(Open::Mapping(mapping)) = self.stack.last_mut() {
            mapping.key = Some(key);
        }
    }

    fn add(&mut self, node: Node) -> Result<(), YamlReason> {
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Open::Sequence { items, .. }) => items.push(node),
            Some(Open::Mapping(mapping)) => match mapping.key.take() {
                None => {
                    let key = to_key(node)?;
                    // Check at the key, because its value may end many lines below.
                    if let Some(reason) = mapping.find_repeated(&key) {
                        match &mut self.repeated {
                            Repeated::Refused => return Err(reason),
                            Repeated::Noted(noted) => noted.push(YamlError { line: key.line, reason }),
                        }
                    }
                    mapping.key = Some(PendingKey::Key(key));
                }
                Some(PendingKey::Key(key)) => mapping.insert(key, node),
                Some(PendingKey::Merge) => mapping.merge(node)?,
            },
        }
        Ok(())
    }
}

impl OpenMapping {
    fn find_repeated(&self, key: &Key) -> Option<YamlReason> {
        let (at, _) = self.index.get(&key.text).filter(|(_, is_written)| *is_written)?;
        let first = self.entries[*at].0.line;
        Some(YamlReason::DuplicateKey {
            key: key.text.chars().take(80).collect(),
            first,
        })
    }

    fn insert(&mut self, key: Key, node: Node) {
        match self.index.get(&key.text) {
            Some(&(at, _)) => {
                self.index.insert(key.text.clone(), (at, true));
                self.entries[at] = (key, node);
            }
            None => {
                self.index.insert(key.text.clone(), (self.entries.len(), true));
                self.entries.push((key, node));
            }
        }
    }

    /// In go-yaml v2 merged keys are set at the position of the merge: they override earlier keys, and later keys
    /// override them. In a sequence earlier mappings take precedence over later ones.
    fn merge(&mut self, node: Node) -> Result<(), YamlReason> {
        let merged = match node.value {
            NodeValue::Mapping(entries) => vec![entries],
            NodeValue::Sequence(items) => items
                .into_iter()
                .rev()
                .map(|item| match item.value {
                    NodeValue::Mapping(entries) => Ok(entries),
                    _ => Err(YamlReason::Merge),
                })
                .collect::<Result<_, _>>()?,
            NodeValue::Scalar(_) => return Err(YamlReason::Merge),
        };
        for (key, node) in merged.into_iter().flatten() {
            match self.index.get(&key.text) {
                Some(&(at, _)) => self.entries[at].1 = node,
                None => {
                    self.index.insert(key.text.clone(), (self.entries.len(), false));
                    self.entries.push((key, node));
                }
            }
        }
        Ok(())
    }
}

fn to_key(node: Node) -> Result<Key, YamlReason> {
    match node.value {
        NodeValue::Scalar(scalar) => Ok(Key {
            line: node.line,
            text: scalar.into_key()?,
        }),
        NodeValue::Sequence(_) => Err(YamlReason::Key("a sequence")),
        NodeValue::Mapping(_) => Err(YamlReason::Key("a mapping")),
    }
}

fn is_merge_key(style: ScalarStyle, tag: Option<&Tag>) -> bool {
    match tag {
        None => style == ScalarStyle::Plain,
        Some(tag) => core_name(tag).as_deref() == Some("merge"),
    }
}

fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Scalar, YamlReason> {
    match tag {
        None if style == ScalarStyle::Plain => Ok(Scalar::resolve(text)),
        None => Ok(Scalar::String(text.to_owned())),
        Some(tag) => match core_name(tag) {
            Some(name) => Scalar::resolve_tagged(&name, text),
            None => Ok(Scalar::String(text.to_owned())),
        },
    }
}

/// `int` for `!!int`, in any form of the tag.
fn core_name(tag: &Tag) -> Option<String> {
    tag.suffix_in_namespace("tag:yaml.org,2002:")
        .map(|name| name.into_owned())
}

fn measure(node: &Node) -> (usize, usize, usize) {
    let mut total = (1, 0, 0);
    let mut add = |child: &Node, key: usize| {
        let (nodes, bytes, depth) = measure(child);
        total = (
            total.0 + nodes + usize::from(key > 0),
            total.1 + bytes + key,
            total.2.max(depth),
        );
    };
    match &node.value {
        NodeValue::Scalar(Scalar::String(text)) => return (1, text.len(), 0),
        NodeValue::Scalar(_) => return (1, 8, 0),
        NodeValue::Sequence(items) => items.iter().for_each(|item| add(item, 0)),
        NodeValue::Mapping(entries) => entries
            .iter()
            .for_each(|(key, value)| add(value, key.text.len().max(1))),
    }
    (total.0, total.1, total.2 + 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{parse, parse_last},
        *,
    };

    fn read(text: &str) -> Result<Vec<serde_json::Value>, String> {
        let documents = parse(text, &Budget::default()).map_err(|e| format!("{}: {}", e.line, e.reason))?;
        documents
            .into_iter()
            .map(|d| d.into_json().map_err(|e| e.reason.to_string()))
            .collect()
    }

    #[test]
    fn documents_aliases_and_merges_are_composed() {
        assert_eq!(read("a: 1\n---\n- x\n").unwrap(), [json!({"a": 1}), json!(["x"])]);
        assert_eq!(
            read("a: &x {b: 1}\nc: *x\n").unwrap(),
            [json!({"a": {"b": 1}, "c": {"b": 1}})]
        );
        let text = "d: &d {a: 1, b: 1}\no: {b: 2, <<: *d, a: 2}\n";
        assert_eq!(read(text).unwrap()[0]["o"], json!({"a": 2, "b": 1}));
        assert_eq!(
            read("x: &x {a: 1}\ny: &y {a: 2, b: 2}\nz: {<<: [*x, *y]}").unwrap()[0]["z"],
            json!({"a": 1, "b": 2})
        );
        assert_eq!(read("\"<<\": 1").unwrap(), [json!({"<<": 1})]);
    }

    #[test]
    fn a_key_given_twice_names_both_lines() {
        assert_eq!(
            read("a: 1\nb: 2\na: 3\n").unwrap_err(),
            "3: key \"a\" is given twice, first on line 1; keep one"
        );
        assert!(read("{1: a, \"1\": b}").unwrap_err().contains("given twice"));
        // The line of the key, not the end of its value.
        let text = "a:\n- b: [1]\n  c: 2\n  b:\n  - 3\n  - 4\n";
        assert_eq!(
            read(text).unwrap_err(),
            "4: key \"b\" is given twice, first on line 2; keep one"
        );
    }

    #[test]
    fn where_the_last_of_two_counts_the_others_are_noted() {
        let (documents, noted) = parse_last("a: 1\nb: &b {c: 1}\na: 3\n<<: *b\n", &Budget::default()).unwrap();
        let values: Vec<_> = documents.into_iter().map(|node| node.into_json().unwrap()).collect();
        assert_eq!(values, [json!({"a": 3, "b": {"c": 1}, "c": 1})]);
        let noted: Vec<_> = noted.iter().map(|error| (error.line, error.reason.clone())).collect();
        assert_eq!(
            noted,
            [(
                3,
                YamlReason::DuplicateKey {
                    key: "a".to_owned(),
                    first: 1
                }
            )]
        );
    }

    #[test]
    fn an_alias_bomb_stops_at_the_budget() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let before = format!("*a{}", n - 1);
            text += &format!("a{n}: &a{n} [{}]\n", [before.as_str(); 9].join(", "));
        }
        assert!(read(&text).unwrap_err().contains("alias bomb"));
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), ["*a"; 20].join(","));
        assert!(read(&long).unwrap_err().contains("alias bomb"));
    }

    #[test]
    fn anchors_inside_each_other_count_too() {
        let text = format!("{}{}{}", "&a [".repeat(90), "x".repeat(1 << 20), "]".repeat(90));
        assert!(read(&text).unwrap_err().contains("over 8388608 bytes"));
    }

    #[test]
    fn deep_nesting_is_refused_whether_written_or_aliased() {
        assert!(read(&"[".repeat(5000)).is_err());
        assert!(read(&(0..300).map(|n| format!("{}a:\n", " ".repeat(n))).collect::<String>()).is_err());
        let mut text = "a0: &a0 [x]\n".to_owned();
        for n in 1..200 {
            text += &format!("a{n}: &a{n} [*a{}]\n", n - 1);
        }
        assert!(read(&text).unwrap_err().contains("nested"));
    }

    #[test]
    fn an_alias_inside_its_anchor_and_an_unknown_one_are_errors() {
        assert!(read("a: &a [*a]").is_err());
        assert!(read("a: *nope").is_err());
        assert!(read("? [a]\n: b").unwrap_err().contains("key is a sequence"));
        assert!(read("a: 1\n<<: 5").unwrap_err().contains("wants a mapping"));
    }
}
