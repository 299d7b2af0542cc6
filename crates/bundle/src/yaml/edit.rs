//! Reads or replaces one scalar of a text. All other bytes stay as they are, because comments, order and style belong
//! to their author.

use std::{fmt, ops::Range, str::FromStr};

use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::Scalar;

/// Most bytes of a value: longer than any tag, version, digest or image.
pub const MAX_VALUE: usize = 512;
/// Most nested collections, as in manifests.
const MAX_DEPTH: usize = 100;
/// Most steps of a field.
const MAX_STEPS: usize = 32;

/// The path of a value in a document: `spec.ref.commit`, `images[0].newTag`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath {
    text: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {0:?} is not one: write it as spec.ref.commit or images[0].newTag")]
pub struct FieldPathError(String);

impl FromStr for FieldPath {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<Self, FieldPathError> {
        let bad = || FieldPathError(text.chars().take(80).collect());
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-/".contains(c);
        let mut steps = Vec::new();
        for part in text.split('.') {
            let (name, mut rest) = part.split_at(part.find('[').unwrap_or(part.len()));
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(bad());
            }
            steps.push(Step::Key(name.to_owned()));
            while !rest.is_empty() {
                let (index, more) = rest
                    .strip_prefix('[')
                    .and_then(|rest| rest.split_once(']'))
                    .ok_or_else(bad)?;
                steps.push(Step::Index(index.parse().map_err(|_| bad())?));
                rest = more;
            }
        }
        if steps.len() > MAX_STEPS {
            Err(bad())
        } else {
            Ok(Self {
                text: text.to_owned(),
                steps,
            })
        }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldValue {
    pub text: String,
    /// Whether it is text, even if it looks like a number.
    pub is_string: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    #[error("not valid YAML, line {line}: {why}")]
    Syntax { line: usize, why: String },
    #[error("no document has this field")]
    Missing,
    #[error("it is there {0} times; it must be there once")]
    Several(usize),
    #[error("on line {line} it is {what}; write it as one plain or quoted text on one line")]
    Shape { line: usize, what: &'static str },
    #[error("a value has 1 to {MAX_VALUE} bytes on one line")]
    Value,
    #[error("line {line} can't be edited without changing more than the field; edit it by hand once")]
    Unsafe { line: usize },
}

struct Found {
    value: FieldValue,
    style: ScalarStyle,
    place: Range<usize>,
    line: usize,
}

/// The value of a field, which must be in exactly one of the text's documents.
pub fn read_field(text: &str, field: &FieldPath) -> Result<FieldValue, FieldError> {
    find(text, field).map(|found| found.value)
}

/// The text with another value of a field. None: it already has that value.
pub fn replace_field(text: &str, field: &FieldPath, value: &FieldValue) -> Result<Option<String>, FieldError> {
    check_value(&value.text)?;
    let Found {
        value: before,
        style,
        place,
        line,
    } = find(text, field)?;
    if before.text == value.text {
        return Ok(None);
    }
    let (head, tail) = (&text[..place.start], &text[place.end..]);
    let edited = format!("{head}{}{tail}", write(value, style));
    // Verify that the edited text has the intended value.
    match find(&edited, field) {
        Ok(now) if now.value.text == value.text && edited[now.place.end..] == *tail => Ok(Some(edited)),
        _ => Err(FieldError::Unsafe { line }),
    }
}

fn check_value(text: &str) -> Result<(), FieldError> {
    let is_good = (1..=MAX_VALUE).contains(&text.len()) && !text.chars().any(char::is_control);
    if is_good { Ok(()) } else { Err(FieldError::Value) }
}

fn write(value: &FieldValue, style: ScalarStyle) -> String {
    let text = &value.text;
    match style {
        ScalarStyle::SingleQuoted => format!("'{}'", text.replace('\'', "''")),
        ScalarStyle::Plain if is_plain(value) => text.clone(),
        _ => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

/// Whether the value is read correctly without quotes, wherever it is.
fn is_plain(value: &FieldValue) -> bool {
    let text = &value.text;
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "._-+/@:".contains(c);
    // `1:20` is a number to old readers.
    let has_time = text.contains(':') && !text.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_safe = text.chars().all(is_safe)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.ends_with(':')
        && !has_time;
    is_safe && (!value.is_string || matches!(Scalar::resolve(text), Scalar::String(_)))
}

/// The position of a node in its collection.
enum Place {
    Item(usize),
    /// The next node is a key.
    Key,
    /// The next node is the value of this key. None: the key is no text.
    Value(Option<String>),
}

struct Walk<'f> {
    field: &'f FieldPath,
    stack: Vec<Place>,
    found: Vec<Result<Found, FieldError>>,
}

fn find(text: &str, field: &FieldPath) -> Result<Found, FieldError> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut walk = Walk {
        field,
        stack: Vec::new(),
        found: Vec::new(),
    };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let why = error.info().chars().filter(|c| !c.is_control()).take(200).collect();
            FieldError::Syntax {
                line: error.marker().line(),
                why,
            }
        })?;
        walk.take(text, event, &span);
    }
    match walk.found.len() {
        0 | 1 => walk.found.pop().unwrap_or(Err(FieldError::Missing)),
        several => Err(FieldError::Several(several)),
    }
}

impl Walk<'_> {
    fn take(&mut self, text: &str, event: Event<'_>, span: &Span) {
        let line = span.start.line();
        let shape = |what| FieldError::Shape { line, what };
        match event {
            Event::DocumentStart(..) => self.stack.clear(),
            Event::Scalar(scalar, style, anchor, tag) => {
                if self.is_there() {
                    let found = match tag.is_some() || anchor != 0 {
                        true => Err(shape("a value with a tag or an anchor")),
                        false => look_at(text, (&*scalar, style), span).map_err(shape),
                    };
                    self.found.push(found);
                }
                self.end(Some(&*scalar));
            }
            Event::SequenceStart(..) => self.open(Place::Item(0), shape("a list")),
            Event::MappingStart(..) => self.open(Place::Key, shape("a mapping")),
            Event::SequenceEnd | Event::MappingEnd => {
                self.stack.pop();
                self.end(None);
            }
            Event::Alias(_) => {
                if self.is_there() {
                    self.found.push(Err(shape("an alias")));
                }
                self.end(None);
            }
            _ => {}
        }
    }

    /// Whether the next node is that of the field.
    fn is_there(&self) -> bool {
        let is_step = |(place, step): (&Place, &Step)| match (place, step) {
            (Place::Item(index), Step::Index(wanted)) => index == wanted,
            (Place::Value(Some(key)), Step::Key(wanted)) => key == wanted,
            _ => false,
        };
        let steps = &self.field.steps;
        self.stack.len() == steps.len() && self.stack.iter().zip(steps).all(is_step)
    }

    fn open(&mut self, inside: Place, otherwise: FieldError) {
        if self.is_there() {
            self.found.push(Err(otherwise));
        }
        self.stack.push(inside);
    }

    /// Ends a node.
    fn end(&mut self, text: Option<&str>) {
        if let Some(place) = self.stack.last_mut() {
            *place = match place {
                Place::Item(index) => Place::Item(*index + 1),
                Place::Key => Place::Value(text.map(str::to_owned)),
                Place::Value(_) => Place::Key,
            };
        }
    }
}

fn look_at(text: &str, (scalar, style): (&str, ScalarStyle), span: &Span) -> Result<Found, &'static str> {
    let place = span.byte_range().ok_or("at no known place")?;
    let source = text.get(place.clone()).ok_or("at no known place")?;
    let is_quoted = |quote: char| source.len() > 1 && source.starts_with(quote) && source.ends_with(quote);
    let is_whole = match style {
        ScalarStyle::Plain => source == scalar,
        ScalarStyle::SingleQuoted => is_quoted('\''),
        ScalarStyle::DoubleQuoted => is_quoted('"'),
        _ => return Err("a block"),
    };
    // The parser returns `~` for an empty node.
    if source.is_empty() || (style == ScalarStyle::Plain && scalar == "~" && source != "~") {
        return Err("empty");
    }
    if !is_whole || source.contains(['\n', '\r']) {
        return Err("on several lines");
    }
    let is_string = style != ScalarStyle::Plain || matches!(Scalar::resolve(scalar), Scalar::String(_));
    let value = FieldValue {
        text: scalar.to_owned(),
        is_string,
    };
    Ok(Found {
        value,
        style,
        place,
        line: span.start.line(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(text: &str) -> FieldPath {
        text.parse().unwrap()
    }

    fn check(text: &str, at: &str, value: &str, expected: &str) {
        let value = FieldValue {
            text: value.to_owned(),
            is_string: true,
        };
        let edited = replace_field(text, &field(at), &value).map(|edited| edited.unwrap_or_default());
        let edited = edited.unwrap_or_else(|error| error.to_string());
        assert_eq!(edited, expected, "{at} of {text:?}");
    }

    #[test]
    fn one_value_changes_and_every_other_byte_stays() {
        let text = "# head é\n---\nkind: A\n---\nspec:   # why\n  ref: {commit: abc ,  x: 'y'} # c\n  other: [ {tag: \"1\"} ]\r\n";
        check(text, "spec.ref.commit", "abd", &text.replace("abc", "abd"));
        check(text, "spec.ref.x", "it's", &text.replace("'y'", "'it''s'"));
        check(text, "spec.other[0].tag", "a\"2", &text.replace("\"1\"", "\"a\\\"2\""));
        check(text, "kind", "B", &text.replace("kind: A", "kind: B"));
        check(text, "spec.ref.commit", "abc", "");
        check("a: b # c", "a", "c", "a: c # c");
        check("a: b", "a", "registry:5000/x@sha256:1f", "a: registry:5000/x@sha256:1f");
        check("? [k]\n: v\na: b\n", "a", "c", "? [k]\n: v\na: c\n");
    }

    #[test]
    fn text_that_looks_like_something_else_is_quoted() {
        for value in [
            "1234567", "12e45", "true", "1.10", "null", "1:20", "a: b", "- a", "a,b", "ä", "x:",
        ] {
            check("a: b\n", "a", value, &format!("a: \"{value}\"\n"));
        }
        // A copied number stays a number, except where text was.
        let number = read_field("tag: 1.10", &field("tag")).unwrap();
        assert!(!number.is_string);
        assert_eq!(
            replace_field("tag: 1.9", &field("tag"), &number).unwrap().unwrap(),
            "tag: 1.10"
        );
        assert_eq!(
            replace_field("tag: '1.9'", &field("tag"), &number).unwrap().unwrap(),
            "tag: '1.10'"
        );
    }

    #[test]
    fn what_can_not_be_edited_is_told_and_not_guessed() {
        let shape =
            |line, what| format!("on line {line} it is {what}; write it as one plain or quoted text on one line");
        check("a: b", "b", "c", "no document has this field");
        check(
            "a: b\n---\na: c",
            "a",
            "d",
            "it is there 2 times; it must be there once",
        );
        check("a: {b: c}", "a", "d", &shape(1, "a mapping"));
        check("a: [b]", "a", "d", &shape(1, "a list"));
        check("x: &x y\na: *x", "a", "d", &shape(2, "an alias"));
        check("a: &x b", "a", "d", &shape(1, "a value with a tag or an anchor"));
        check("a: !!str b", "a", "d", &shape(1, "a value with a tag or an anchor"));
        check("a: |\n  b\n", "a", "d", &shape(2, "a block"));
        check("a: b\n  c\n", "a", "d", &shape(1, "on several lines"));
        let empty = read_field("a:\nb: c\n", &field("a"));
        assert!(
            matches!(empty, Err(FieldError::Shape { what: "empty", .. })),
            "{empty:?}"
        );
        check("a: b", "a", "c\nd: e", "a value has 1 to 512 bytes on one line");
        assert!(matches!(
            read_field("a: [", &field("a")),
            Err(FieldError::Syntax { .. })
        ));
        for wrong in ["", "a..b", "[0]", "a[", "a[x]", "a[0]b", "a b", ".a"] {
            assert!(wrong.parse::<FieldPath>().is_err(), "{wrong:?}");
        }
    }
}
