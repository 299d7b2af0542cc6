//! Users' health rules: HealthRules of the hub, and those of a service.

use std::sync::Arc;

use farwater_api::{
    health_rule::{HealthRuleSpec, NamedRule},
    objects::Health,
};
use serde_json::Value;

use super::{
    Verdict, current, evaluate, evaluate_bookkeeping,
    expression::{EvaluationError, Expression, ExpressionError, Subject},
    failed, group_of, progress,
};
use crate::conditions::cut;

/// Most bytes of a message that an expression makes.
const MAX_MESSAGE: usize = 512;

/// What is wrong with a rule, by field.
pub fn problems(rule: &HealthRuleSpec) -> Vec<(&'static str, ExpressionError)> {
    rule.expressions()
        .filter_map(|(field, text)| Some((field, Expression::compile(text).err()?)))
        .collect()
}

/// The hub's rules, compiled once for all services.
#[derive(Debug, Default)]
pub struct HubRules {
    /// The rules they were compiled from.
    pub named: Vec<NamedRule>,
    rules: Vec<Rule>,
}

impl HubRules {
    pub fn compile(named: Vec<NamedRule>) -> Self {
        let rules = named
            .iter()
            .map(|named| Rule::compile(format!("HealthRule {}", named.name), &named.rule));
        Self {
            rules: rules.collect(),
            named,
        }
    }
}

/// The rules for the objects of one service.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The service's own rules, which come first.
    own: Vec<Rule>,
    hubs: Arc<HubRules>,
}

#[derive(Clone, Debug)]
struct Rule {
    /// Name of the rule in messages.
    name: String,
    group: String,
    kind: String,
    /// A rule that can't be compiled judges nothing, and holds the reason.
    expressions: Result<Expressions, String>,
}

#[derive(Clone, Debug)]
struct Expressions {
    in_progress: Option<Expression>,
    failed: Option<Expression>,
    current: Expression,
    message: Option<Expression>,
}

impl Rules {
    pub fn compile(own: &[HealthRuleSpec], hubs: Arc<HubRules>) -> Self {
        let own = own
            .iter()
            .map(|rule| Rule::compile("health rule of the service".to_owned(), rule));
        Self {
            own: own.collect(),
            hubs,
        }
    }

    /// Whether one of these rules judges a kind.
    pub fn cover(&self, group: &str, kind: &str) -> bool {
        self.find(group, kind).is_some()
    }

    fn find(&self, group: &str, kind: &str) -> Option<&Rule> {
        self.own
            .iter()
            .chain(&self.hubs.rules)
            .find(|rule| rule.group == group && rule.kind == kind)
    }

    /// Like [`evaluate`], but by the first rule for the object's kind if there is one.
    pub fn evaluate(&self, object: &Value) -> Verdict {
        match self.find(group_of(object), object["kind"].as_str().unwrap_or_default()) {
            Some(rule) => evaluate_bookkeeping(object).unwrap_or_else(|| rule.evaluate(object)),
            None => evaluate(object),
        }
    }
}

impl Rule {
    fn compile(name: String, rule: &HealthRuleSpec) -> Self {
        let expressions = Expressions::compile(rule).map_err(|(field, error)| format!("{field}: {error}"));
        Self {
            name,
            group: rule.group.clone(),
            kind: rule.kind.clone(),
            expressions,
        }
    }

    /// If one expression has no value the verdict is Unknown, whatever the others say.
    fn evaluate(&self, object: &Value) -> Verdict {
        let judged = match &self.expressions {
            Ok(expressions) => expressions.judge(object),
            Err(problem) => Err(problem.clone()),
        };
        judged.unwrap_or_else(|problem| {
            (
                Health::Unknown,
                cut(&format!("{} can't judge it: {problem}", self.name), MAX_MESSAGE),
            )
        })
    }
}

impl Expressions {
    fn compile(rule: &HealthRuleSpec) -> Result<Self, (&'static str, ExpressionError)> {
        let one = |field: &'static str, text: &str| Expression::compile(text).map_err(|error| (field, error));
        let optional =
            |field: &'static str, text: &Option<String>| text.as_deref().map(|text| one(field, text)).transpose();
        Ok(Self {
            in_progress: optional("inProgress", &rule.in_progress)?,
            failed: optional("failed", &rule.failed)?,
            current: one("current", &rule.current)?,
            message: optional("message", &rule.message)?,
        })
    }

    fn judge(&self, object: &Value) -> Result<Verdict, String> {
        let seen = visible(object);
        let subject = Subject::new(&seen);
        let holds = |field: &str, expression: &Expression| {
            expression
                .is_true(&subject)
                .map_err(|error: EvaluationError| format!("{field}: {error}"))
        };
        let optional =
            |field: &str, expression: &Option<Expression>| expression.as_ref().map_or(Ok(false), |e| holds(field, e));
        let health = if optional("inProgress", &self.in_progress)? {
            Health::InProgress
        } else if optional("failed", &self.failed)? {
            Health::Failed
        } else if holds("current", &self.current)? {
            return Ok(current());
        } else {
            Health::InProgress
        };
        // A message that can't be made does not change the verdict.
        let message = self.message.as_ref().map(|message| message.text(&subject));
        let message = match message {
            Some(Ok(text)) => cut(&text, MAX_MESSAGE),
            Some(Err(error)) => format!("message: {error}"),
            None => String::new(),
        };
        Ok(if health == Health::Failed {
            failed(message)
        } else {
            progress(message)
        })
    }
}

/// The object as expressions see it: without values of a Secret, and without `managedFields`.
pub(crate) fn visible(object: &Value) -> Value {
    let is_secret = group_of(object).is_empty() && object["kind"] == "Secret";
    let fields = object.as_object().into_iter().flatten();
    let fields =
        fields.filter(|(name, _)| !is_secret || matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "type"));
    let mut seen = Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect());
    if let Some(metadata) = seen.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if is_secret && let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            // kubectl's copy of what it applied, which holds the values.
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    seen
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
