//! The subset of kubectl's JSONPath that printer columns and `-o jsonpath=` use.
//!
//! A [`Path`] takes fields, quoted fields, indices, slices, unions of them, `*`, `..name` and filters that compare one
//! field with a literal. A [`Template`] is text with paths, quoted texts and `range` … `end` in braces. Other parts of
//! kubectl's syntax are refused with a reason. The rules are those of `k8s.io/client-go/util/jsonpath`.

mod template;

use std::{borrow::Cow, cmp::Ordering};

use serde_json::Value;
pub use template::Template;

/// Maximum nesting of brackets and parentheses: a filter contains a path, which is parsed recursively. A pair is two
/// levels.
const MAX_NESTING: usize = 64;
/// Maximum length of a refused path in messages, in characters.
const SHOWN: usize = 60;

/// A path or a template that cannot be parsed, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {why}")]
pub struct PathError {
    /// The part that cannot be parsed.
    pub text: String,
    pub why: &'static str,
}

fn refuse<T>(text: &str, why: &'static str) -> Result<T, PathError> {
    Err(PathError {
        text: text.to_owned(),
        why,
    })
}

/// A query of one object: it yields none, one or several values.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    steps: Vec<Step>,
    /// Whether it begins with `$`. Inside a `range`, such a path starts at the whole object.
    absolute: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// `['a.b']`: the field of this name, and where there is none, what the text means as a path, as kubectl reads it.
    Quoted {
        name: String,
        path: Path,
    },
    Index(i64),
    /// `[start:end:step]`
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        step: usize,
    },
    All,
    /// `..`: the value and all values below it.
    Descend,
    /// `[a,b]`
    Union(Vec<Step>),
    /// `[?(@.a.b=="x")]`. Without a comparison: elements that have the field.
    Filter {
        path: Path,
        comparison: Option<(Comparison, Value)>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// Two-character operators first, because the shorter ones are their prefixes.
    const SIGNS: [(&str, Self); 6] = [
        ("==", Self::Equal),
        ("!=", Self::Unequal),
        ("<=", Self::LessOrEqual),
        (">=", Self::GreaterOrEqual),
        ("<", Self::Less),
        (">", Self::Greater),
    ];

    fn holds(self, found: Option<&Value>, wanted: &Value) -> bool {
        let ordered = |holds: fn(Ordering) -> bool| found.and_then(|found| compare(found, wanted)).is_some_and(holds);
        match self {
            Self::Equal => found == Some(wanted),
            Self::Unequal => found != Some(wanted),
            Self::Less => ordered(Ordering::is_lt),
            Self::LessOrEqual => ordered(Ordering::is_le),
            Self::Greater => ordered(Ordering::is_gt),
            Self::GreaterOrEqual => ordered(Ordering::is_ge),
        }
    }
}

/// Numbers are ordered, and texts are ordered. Other values are not.
fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// The first value of the path. None also if the path cannot be parsed.
pub fn first<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    Path::parse(path).ok()?.find(object).into_iter().next()
}

impl Path {
    /// `.spec.url`, `{.spec.url}`, `$.spec['a.b']`, `spec.url`.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if nesting(text) > MAX_NESTING {
            return refuse(
                &text.chars().take(SHOWN).collect::<String>(),
                "brackets are nested more than 32 levels deep",
            );
        }
        let text = text.trim();
        let text = text
            .strip_prefix('{')
            .and_then(|inner| inner.strip_suffix('}'))
            .unwrap_or(text)
            .trim();
        let absolute = text.starts_with('$');
        let mut rest = text.strip_prefix(['$', '@']).unwrap_or(text);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let Some(end) = closing(inner) else {
                    return refuse(text, "a bracket is not closed");
                };
                steps.push(bracket(&inner[..end])?);
                rest = &inner[end + 1..];
                continue;
            }
            if let Some(below) = rest.strip_prefix("..") {
                steps.push(Step::Descend);
                rest = below;
            } else {
                rest = rest.strip_prefix('.').unwrap_or(rest);
            }
            // `.` alone is the object, and `.[0]` is `[0]`.
            if rest.starts_with('[') || (rest.is_empty() && steps.is_empty()) {
                continue;
            }
            let (name, after) = field(rest);
            match name.as_str() {
                "" => return refuse(text, "a field has no name"),
                "*" => steps.push(Step::All),
                _ if name.contains([' ', '(', ')', '|', '"', '\'']) => {
                    return refuse(text, "put a name with such characters into brackets and quotes: ['…']");
                }
                _ => steps.push(Step::Field(name)),
            }
            rest = after;
        }
        Ok(Self { steps, absolute })
    }

    /// All values of the path, in the order of the object.
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        self.steps.iter().fold(vec![object], |found, step| {
            // As kubectl does, the first part of a union is looked for in all values before the second one is.
            let parts = if let Step::Union(parts) = step {
                parts.as_slice()
            } else {
                std::slice::from_ref(step)
            };
            let mut next = Vec::new();
            parts
                .iter()
                .for_each(|part| found.iter().for_each(|value| part.apply(value, &mut next)));
            next
        })
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value, found: &mut Vec<&'a Value>) {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        match self {
            Self::Field(name) => found.extend(value.get(name)),
            Self::Quoted { name, path } => match value.get(name) {
                Some(named) => found.push(named),
                None => found.extend(path.find(value)),
            },
            Self::Index(n) => found.extend(place(*n, items.len()).and_then(|at| items.get(at))),
            Self::Slice { start, end, step } => {
                let bound = |n: i64| place(n, items.len()).unwrap_or(0).min(items.len());
                let (start, end) = (start.map_or(0, bound), end.map_or(items.len(), bound));
                found.extend(items.get(start..end).unwrap_or_default().iter().step_by(*step));
            }
            Self::All => found.extend(children(value)),
            Self::Descend => {
                found.push(value);
                children(value).for_each(|below| self.apply(below, found));
            }
            Self::Union(steps) => steps.iter().for_each(|step| step.apply(value, found)),
            Self::Filter { path, comparison } => found.extend(items.iter().filter(|item| {
                let has = path.find(item).into_iter().next();
                comparison
                    .as_ref()
                    .map_or(has.is_some(), |(comparison, wanted)| comparison.holds(has, wanted))
            })),
        }
    }
}

/// Position of an index. A negative one counts from the end.
fn place(n: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if n < 0 { length + n } else { n }).ok()
}

fn children(value: &Value) -> impl Iterator<Item = &Value> {
    let fields = value.as_object().into_iter().flat_map(serde_json::Map::values);
    fields.chain(value.as_array().into_iter().flatten())
}

/// Name of a field. `\.` is a dot in it.
fn field(text: &str) -> (String, &str) {
    let (mut name, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (name, &text[at..]),
            other => name.push(other),
        }
    }
    (name, "")
}

/// Positions of all `sign` outside quotes and brackets.
fn outside(text: &str, sign: &str) -> impl Iterator<Item = usize> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    text.char_indices().filter_map(move |(at, c)| {
        let plain = quote.is_none() && depth == 0;
        match (quote, c) {
            _ if std::mem::take(&mut escaped) => return None,
            (_, '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '(') => depth += 1,
            (None, ']' | ')') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        (plain && text[at..].starts_with(sign)).then_some(at)
    })
}

/// Position of the bracket that closes the one before `text`.
fn closing(text: &str) -> Option<usize> {
    outside(text, "]").next()
}

fn literal(text: &str) -> Option<Value> {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote)) {
            return Some(Value::from(unescape(inner).into_owned()));
        }
    }
    serde_json::from_str(text).ok()
}

/// Depth of brackets and parentheses, including quoted ones.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for c in text.chars() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// `\n`, `\t`, and any other character after a backslash unchanged.
fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return text.into();
    }
    let (mut plain, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.extend(chars.next().map(|c| match c {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                other => other,
            })),
            other => plain.push(other),
        }
    }
    plain.into()
}

fn bracket(inner: &str) -> Result<Step, PathError> {
    let inner = inner.trim();
    if let Some(filter) = inner.strip_prefix('?') {
        let filter = filter
            .trim()
            .strip_prefix('(')
            .and_then(|filter| filter.strip_suffix(')'));
        return filter.map_or_else(|| refuse(inner, "a filter is [?(@.field==\"value\")]"), parse_filter);
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut from = 0;
    for at in outside(inner, ",") {
        parts.push(&inner[from..at]);
        from = at + 1;
    }
    parts.push(&inner[from..]);
    let mut steps = parts.into_iter().map(one_of_bracket).collect::<Result<Vec<_>, _>>()?;
    Ok(if steps.len() == 1 {
        steps.remove(0)
    } else {
        Step::Union(steps)
    })
}

fn one_of_bracket(part: &str) -> Result<Step, PathError> {
    let part = part.trim();
    if part == "*" {
        return Ok(Step::All);
    }
    if let Ok(index) = part.parse() {
        return Ok(Step::Index(index));
    }
    if let Some(Value::String(name)) = literal(part) {
        let inner = &part[1..part.len() - 1];
        let has_dot = inner.contains('.') && !inner.starts_with('.');
        return Ok(match Path::parse(inner) {
            Ok(path) if has_dot => Step::Quoted { name, path },
            _ => Step::Field(name),
        });
    }
    let bounds: Vec<&str> = part.split(':').map(str::trim).collect();
    let number = |text: &str| (!text.is_empty()).then(|| text.parse::<i64>()).transpose();
    if let ([start, end] | [start, end, _], Some(step)) = (
        bounds.as_slice(),
        bounds
            .get(2)
            .map_or(Some(1), |step| step.parse().ok().filter(|step| *step > 0)),
    ) && let (Ok(start), Ok(end)) = (number(start), number(end))
    {
        return Ok(Step::Slice { start, end, step });
    }
    refuse(part, "brackets hold *, an index, a slice, a quoted name or a filter")
}

fn parse_filter(filter: &str) -> Result<Step, PathError> {
    if outside(filter, "&&").next().is_some() || outside(filter, "||").next().is_some() {
        return refuse(filter, "a filter makes one comparison");
    }
    let path = |text: &str| match text.trim().starts_with('@') {
        true => Path::parse(text),
        false => refuse(filter, "the left side of a filter begins with @"),
    };
    let found = Comparison::SIGNS.iter().find_map(|(sign, comparison)| {
        let at = outside(filter, sign).next()?;
        Some((&filter[..at], *comparison, &filter[at + sign.len()..]))
    });
    let Some((left, comparison, right)) = found else {
        return Ok(Step::Filter {
            path: path(filter)?,
            comparison: None,
        });
    };
    match literal(right) {
        Some(value) => Ok(Step::Filter {
            path: path(left)?,
            comparison: Some((comparison, value)),
        }),
        None => refuse(
            filter,
            "the right side of a filter is a quoted text, a number, true, false or null",
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({
            "kind": "List",
            "spec": {"url": "u", "list": [1, 2, 3], "a.b": "dotted", "on": true},
            "items": [
                {"metadata": {"name": "web", "labels": {"tier": "a"}}, "size": 3},
                {"metadata": {"name": "db"}, "size": 10},
            ],
            "status": {"conditions": [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True"}]},
        })
    }

    #[test]
    fn paths_of_printer_columns_are_followed() {
        for (path, expected) in [
            (".spec.url", json!("u")),
            ("{.spec.url}", json!("u")),
            ("$.spec['a.b']", json!("dotted")),
            (r".spec.a\.b", json!("dotted")),
            (".spec.list[-1]", json!(3)),
            (".spec.list[*]", json!(1)),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!("True")),
            (".status.conditions[?(@.type!='Ready')].status", json!("False")),
        ] {
            assert_eq!(first(&object(), path), Some(&expected), "{path}");
        }
        for path in [
            ".spec.none",
            ".spec[",
            ".status.conditions[?(x)]",
            ".spec.list[9]",
            "..",
            ".spec.list[-9]",
        ] {
            assert_eq!(first(&object(), path), None, "{path}");
        }
    }

    #[test]
    fn templates_print_what_kubectl_prints() {
        for (template, expected) in [
            ("{.items[*].metadata.name}", "web db"),
            (
                r#"{range .items[*]}{.metadata.name}{"\t"}{.size}{"\n"}{end}"#,
                "web\t3\ndb\t10\n",
            ),
            ("{range .items[*]}{.metadata.name}={$.kind} {end}", "web=List db=List "),
            ("name: {.items[0].metadata.name}.", "name: web."),
            ("{.items[?(@.size>3)].metadata.name}", "db"),
            ("{.items[?(@.metadata.labels.tier)].metadata.name}", "web"),
            (
                "{.items[?(@.size<=3)]['metadata','size']}",
                r#"{"labels":{"tier":"a"},"name":"web"} 3"#,
            ),
            (
                "{.spec.list[0:2]}|{.spec.list[::2]}|{.spec.list[-1:]}|{.spec.list[0,2]}",
                "1 2|1 3|3|1 3",
            ),
            ("{..name}", "web db"),
            ("{['kind','none']}", "List"),
            ("{.items[*]['metadata.name', 'size']}", "web db 3 10"),
            (
                "{.items[0]['metadata.labels.tier']}{.spec['a.b']}{.spec['a\\.b']}",
                "adotteddotted",
            ),
            ("{.spec.on} {.spec.list} {.none}", "true [1,2,3] "),
            ("{$.kind}{@.kind}{'}'}", "ListList}"),
        ] {
            let parsed = Template::parse(template).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parsed.render(&object()), expected, "{template}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_reason() {
        for (template, why) in [
            (".metadata.name", "put a path into braces: {.metadata.name}"),
            ("{.a", "a brace is not closed"),
            ("{.a[0}", "a brace is not closed"),
            ("{}", "braces are empty"),
            ("{range .items[*]}{.a}", "a range has no end"),
            ("{end}", "an end has no range"),
            (
                "{.a[x]}",
                "brackets hold *, an index, a slice, a quoted name or a filter",
            ),
            (
                "{.a[::0]}",
                "brackets hold *, an index, a slice, a quoted name or a filter",
            ),
            (
                "{.a[?(@.b==c)]}",
                "the right side of a filter is a quoted text, a number, true, false or null",
            ),
            ("{.a[?(b)]}", "the left side of a filter begins with @"),
            ("{.a[?(@.b==1 && @.c==2)]}", "a filter makes one comparison"),
            ("{.a..}", "a field has no name"),
            (
                "{.a .b}",
                "put a name with such characters into brackets and quotes: ['…']",
            ),
            (
                "{if .a}",
                "put a name with such characters into brackets and quotes: ['…']",
            ),
        ] {
            assert_eq!(
                Template::parse(template).map(drop).map_err(|error| error.why),
                Err(why),
                "{template}"
            );
        }
    }
}
