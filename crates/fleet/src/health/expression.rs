//! CEL expressions on one object, bounded before they are evaluated.
//!
//! CEL always terminates but may take long: a loop in a loop over a list is quadratic in time, and so may be the size
//! of its result. The interpreter can't be interrupted, so an expression is bounded by length and depth when it is
//! read, and by its cost with each object.

mod check;
mod cost;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, ExecutionError, IdedExpr, Value as Cel,
    common::{
        types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt},
        value::{CowVal, Val},
    },
    parser::{ParseErrors, PrattParser},
};
use farwater_api::health_rule::MAX_EXPRESSION;
use serde_json::Value;

use self::check::{FUNCTIONS, MAX_LOOPS};
use crate::conditions::cut;

/// The variable for the object.
const OBJECT: &str = "self";
/// The variable for the field, in expressions about fields.
const FIELD: &str = "field";
/// Most nested parentheses, calls, operators and loops: parser and interpreter recurse for each, and tokio's threads
/// have 2 MiB.
const MAX_DEPTH: u16 = 32;
/// Most values of an object; each takes about 100 bytes.
const MAX_PARTS: usize = 100_000;
/// Most nested lists and maps.
const MAX_NESTING: u16 = 64;
/// Most bytes of a name that an error quotes.
const MAX_QUOTED: usize = 80;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("is longer than {MAX_EXPRESSION} bytes")]
    TooLong,
    #[error("line {line}, column {column}: {cause}")]
    Syntax { line: isize, column: isize, cause: String },
    #[error("is too deep: more than {MAX_DEPTH} levels, or {MAX_LOOPS} loops in each other")]
    TooDeep,
    #[error("knows no {0:?}: the object is \"self\"")]
    UnknownName(String),
    #[error("knows no function {name:?} of {arguments} arguments; there are {FUNCTIONS}")]
    UnknownFunction { name: String, arguments: usize },
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    #[error("{0}")]
    Failed(String),
    #[error("its value is no {0}")]
    WrongType(&'static str),
    #[error("the object is too large for it")]
    TooLarge,
}

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression(IdedExpr);

impl Expression {
    pub fn compile(text: &str) -> Result<Self, ExpressionError> {
        Self::compile_with(text, &[OBJECT])
    }

    /// Compiles an expression about fields of an object, see [`Subject::set_field`].
    pub fn compile_for_fields(text: &str) -> Result<Self, ExpressionError> {
        Self::compile_with(text, &[OBJECT, FIELD])
    }

    fn compile_with(text: &str, names: &'static [&'static str]) -> Result<Self, ExpressionError> {
        if text.len() > MAX_EXPRESSION {
            return Err(ExpressionError::TooLong);
        }
        let parser = PrattParser::new().max_recursion_depth(MAX_DEPTH);
        let parsed = parser.parse(text).map_err(|errors| explain_syntax(&errors))?;
        check::check(&parsed, names)?;
        Ok(Self(parsed))
    }

    pub fn is_true(&self, subject: &Subject<'_>) -> Result<bool, EvaluationError> {
        let value = self.evaluate(subject)?;
        let found = value.downcast_ref::<CelBool>().map(|value| *value.inner());
        found.ok_or(EvaluationError::WrongType("boolean"))
    }

    pub fn text(&self, subject: &Subject<'_>) -> Result<String, EvaluationError> {
        let value = self.evaluate(subject)?;
        let found = value.downcast_ref::<CelString>().map(|value| value.inner().to_owned());
        found.ok_or(EvaluationError::WrongType("string"))
    }

    /// Upper bound of the cost of one evaluation; 1 if it is not evaluated at all. Two million take some tenths of a
    /// second.
    pub fn cost(&self, subject: &Subject<'_>) -> u64 {
        subject
            .context
            .as_ref()
            .and_then(|_| cost::count(&self.0, subject.object))
            .unwrap_or(1)
    }

    fn evaluate<'e, 'v>(&'e self, subject: &'e Subject<'v>) -> Result<CowVal<'e, 'v>, EvaluationError> {
        let context = subject
            .context
            .as_ref()
            .filter(|_| cost::count(&self.0, subject.object).is_some());
        let context = context.ok_or(EvaluationError::TooLarge)?;
        Cel::resolve_val(&self.0, context).map_err(|error| EvaluationError::Failed(explain(&error)))
    }
}

/// An object, prepared for many expressions.
pub struct Subject<'v> {
    object: &'v Value,
    /// None: the object is too large.
    context: Option<Context<'v, 'v>>,
}

impl<'v> Subject<'v> {
    pub fn new(object: &'v Value) -> Self {
        let context = convert(object, 0, &mut 0).map(|value| {
            let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
            context.add_variable_as_val(OBJECT, value);
            context
        });
        Self { object, context }
    }

    /// Sets the field for the next evaluation.
    pub fn set_field(&mut self, pointer: &str) {
        if let Some(context) = &mut self.context {
            context.add_variable_as_val(FIELD, Box::new(CelString::from(pointer.to_owned())));
        }
    }
}

/// CEL's own functions only: no extensions, no optional values.
static ENVIRONMENT: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(Env::default().with_optional_support(false).with_stdlib()));

/// Converts a value; texts are borrowed. None: it is too large. `parts` counts the values.
fn convert<'v>(value: &'v Value, nesting: u16, parts: &mut usize) -> Option<Box<dyn Val + 'v>> {
    *parts += 1;
    if *parts > MAX_PARTS || nesting > MAX_NESTING {
        return None;
    }

    let value: Box<dyn Val + 'v> = match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(value) => Box::new(CelBool::from(*value)),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Box::new(CelInt::from(number)),
            (None, Some(number)) => Box::new(CelUInt::from(number)),
            (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or_default())),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(items) => {
            let items = items.iter().map(|item| convert(item, nesting + 1, parts));
            Box::new(CelList::from(items.collect::<Option<Vec<_>>>()?))
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let value = convert(value, nesting + 1, parts)?;
                Some((CelMapKey::from(name.as_str()), value))
            });
            Box::new(CelMap::from(fields.collect::<Option<HashMap<_, _>>>()?))
        }
    };
    Some(value)
}

fn explain_syntax(errors: &ParseErrors) -> ExpressionError {
    // This error has no position, and the errors after it are its consequences.
    let is_too_deep = errors.errors.iter().any(|error| error.msg.contains("recursion limit"));
    match errors.errors.iter().find(|error| error.pos.0 > 0) {
        Some(first) if !is_too_deep => {
            let cause = first.msg.trim().trim_start_matches("Syntax error: ");
            ExpressionError::Syntax {
                line: first.pos.0,
                column: first.pos.1,
                cause: cut(cause, 200),
            }
        }
        _ => ExpressionError::TooDeep,
    }
}

/// Explains an error without the values that many of the interpreter's errors quote: they may be large or secret.
fn explain(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("there is no {:?}", cut(key, MAX_QUOTED)),
        ExecutionError::NoSuchOverload(error) => error.to_string(),
        ExecutionError::UndeclaredReference(name) => format!("there is no {:?}", cut(name, MAX_QUOTED)),
        ExecutionError::UnexpectedType { got, want } => format!("it has a {got} where it needs a {want}"),
        ExecutionError::UnsupportedBinaryOperator(operator, ..) => format!("{operator}: not for values of these types"),
        ExecutionError::FunctionError { function, .. } => format!("{function}() can't read its argument"),
        ExecutionError::IndexOutOfBounds(_) => "an index is out of bounds".to_owned(),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "it divides by zero".to_owned(),
        ExecutionError::Overflow(..) => "a number is too large".to_owned(),
        _ => "it can't be evaluated".to_owned(),
    }
}
