//! Which fields of an object others may change, from its service's `ignoreDifferences` and its own annotations. The
//! result is written as annotations of the object, so that every watch can tell from the live object what is no drift.
//!
//! Expressions are evaluated on the object as the source states it, before anything is sent. A watch sees metadata and
//! no values, so an expression on live values could not be evaluated when it is needed, and its result would depend on
//! what others have written.

use std::collections::BTreeMap;

use farwater_api::{
    apply_options::{IGNORE_DIFFERENCES, IGNORE_EXPRESSION, IGNORE_MANAGERS, IgnoreDifference},
    objects::ObjectRef,
};
use serde_json::{Map, Value};

use super::{
    differences::Pointer,
    options::{Annotations, BadOption, is_needed},
};
use crate::health::{
    expression::{EvaluationError, Expression, ExpressionError, Subject},
    rules::visible,
};

/// Most fields that one expression may pick of an object: as many as there may be JSON pointers.
const MAX_PICKED: usize = 64;
/// Most cost of all expressions of one service, see [`Expression::cost`]: some seconds at worst.
const MAX_COST: u64 = 20_000_000;

/// The `ignoreDifferences` of a service, compiled once for all of its objects.
pub struct Ignores<'a> {
    rules: Vec<Rule<'a>>,
    /// Cost that may still be spent.
    room: u64,
}

struct Rule<'a> {
    stated: &'a IgnoreDifference,
    /// Name of the rule in messages.
    name: String,
    expression: Option<Result<Expression, ExpressionError>>,
}

/// The ignored fields of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Annotations whose values differ from the object's own.
    pub annotations: BTreeMap<&'static str, String>,
    /// Expressions that could not be evaluated, each with the reason.
    pub unanswered: Vec<String>,
}

/// Why an expression ignores fewer fields than it might. An error ignores nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Unanswered {
    #[error("has no answer at {field}, which stays a difference: {cause}")]
    Field { field: String, cause: EvaluationError },
    #[error("ignores nothing: {0}")]
    Unreadable(ExpressionError),
    #[error("ignores nothing: it picks more than {MAX_PICKED} fields; let it pick the map that holds them")]
    TooMany,
    #[error("ignores nothing: the service's expressions take too long together; name fields by JSON pointers")]
    TooLong,
}

impl<'a> Ignores<'a> {
    pub fn compile(rules: &'a [IgnoreDifference]) -> Self {
        let rules = rules.iter().enumerate().map(|(n, stated)| Rule {
            stated,
            name: format!("ignoreDifferences[{n}].expression"),
            expression: stated.expression.as_deref().map(Expression::compile_for_fields),
        });
        Self {
            rules: rules.collect(),
            room: MAX_COST,
        }
    }

    /// The ignored fields of an object of the source, without our marks.
    pub fn of(&mut self, manifest: &Value, object: &ObjectRef) -> Result<Ignored, BadOption> {
        let annotations = Annotations::of(&manifest["metadata"]);
        let own = annotations.get(IGNORE_EXPRESSION).map(read_own).transpose()?;
        let rules: Vec<&Rule<'_>> = self.rules.iter().filter(|rule| matches(rule.stated, object)).collect();
        if own.is_none() && rules.is_empty() {
            return Ok(Ignored::default());
        }

        let (mut picked, mut unanswered) = (Vec::new(), Vec::new());
        let shown = visible(manifest);
        let mut subject = None;
        let of_rules = rules
            .iter()
            .filter_map(|rule| Some((rule.name.as_str(), rule.expression.as_ref()?.as_ref())));
        for (name, expression) in own.iter().map(|own| (IGNORE_EXPRESSION, Ok(own))).chain(of_rules) {
            let (fields, problem) = match expression {
                Ok(expression) => {
                    let subject = subject.get_or_insert_with(|| Subject::new(&shown));
                    ask(expression, manifest, subject, &mut self.room)
                }
                Err(error) => (Vec::new(), Some(Unanswered::Unreadable(error.clone()))),
            };
            picked.extend(fields);
            unanswered.extend(problem.map(|problem| format!("{name} {problem}")));
        }

        let pointers = rules.iter().flat_map(|rule| &rule.stated.json_pointers).chain(&picked);
        let managers = rules.iter().flat_map(|rule| &rule.stated.managed_fields_managers);
        let mut all = BTreeMap::new();
        for (name, more) in [
            (IGNORE_DIFFERENCES, pointers.map(String::as_str).collect::<Vec<_>>()),
            (IGNORE_MANAGERS, managers.map(String::as_str).collect()),
        ] {
            let mut items: Vec<&str> = annotations.list(name).collect();
            for item in more {
                if !items.contains(&item) {
                    items.push(item);
                }
            }
            if !items.is_empty() {
                all.insert(name, items.join(","));
            }
        }
        Ok(Ignored {
            annotations: all,
            unanswered,
        })
    }
}

fn read_own(text: &str) -> Result<Expression, BadOption> {
    Expression::compile_for_fields(text)
        .map_err(|error| BadOption::new(IGNORE_EXPRESSION, text, format!("a CEL expression: {error}")))
}

fn matches(rule: &IgnoreDifference, object: &ObjectRef) -> bool {
    let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is || wanted == "*");
    fits(&rule.group, &object.group)
        && fits(&rule.kind, &object.kind)
        && fits(&rule.namespace, &object.namespace)
        && fits(&rule.name, &object.name)
}

/// The fields that an expression picks, sorted, and the fields that it could not be evaluated for.
fn ask(
    expression: &Expression,
    manifest: &Value,
    subject: &mut Subject<'_>,
    room: &mut u64,
) -> (Vec<String>, Option<Unanswered>) {
    let Some(fields) = manifest.as_object() else {
        return (Vec::new(), None);
    };
    let mut question = Question {
        expression,
        subject,
        room,
        picked: Vec::new(),
        unanswered: None,
    };
    if let Err(problem) = question.visit(fields, "") {
        return (Vec::new(), Some(problem));
    }
    let Question {
        mut picked, unanswered, ..
    } = question;
    picked.sort_unstable();
    (picked, unanswered)
}

struct Question<'a, 'v> {
    expression: &'a Expression,
    subject: &'a mut Subject<'v>,
    room: &'a mut u64,
    picked: Vec<String>,
    /// The first field without a result.
    unanswered: Option<Unanswered>,
}

impl Question<'_, '_> {
    /// Visits fields from the outside in. Fields inside a picked map are not asked about. Lists are fields as a whole.
    fn visit(&mut self, fields: &Map<String, Value>, place: &str) -> Result<(), Unanswered> {
        for (name, value) in fields {
            if !fits_annotation(name) {
                continue;
            }
            let field = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
            if self.picks(&field)? {
                self.picked.push(field);
                if self.picked.len() > MAX_PICKED {
                    return Err(Unanswered::TooMany);
                }
            } else if let Value::Object(below) = value {
                self.visit(below, &field)?;
            }
        }
        Ok(())
    }

    fn picks(&mut self, field: &str) -> Result<bool, Unanswered> {
        if Pointer::parse(field).is_none_or(|pointer| is_needed(&pointer)) {
            return Ok(false);
        }
        let cost = self.expression.cost(self.subject);
        *self.room = self.room.checked_sub(cost).ok_or(Unanswered::TooLong)?;
        self.subject.set_field(field);
        Ok(self.expression.is_true(self.subject).unwrap_or_else(|cause| {
            self.unanswered.get_or_insert_with(|| Unanswered::Field {
                field: field.to_owned(),
                cause,
            });
            false
        }))
    }
}

/// Whether the annotation, a comma-separated list, can contain this field name.
fn fits_annotation(name: &str) -> bool {
    !name.is_empty() && name.trim() == name && !name.contains(',')
}

#[cfg(test)]
#[path = "ignored_tests.rs"]
mod tests;
