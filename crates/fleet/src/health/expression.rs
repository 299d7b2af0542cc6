//! CEL expressions over one object, bounded before they are evaluated.
//!
//! CEL ends always, and may take long: a loop in a loop over a list is its square. Nobody can interrupt the interpreter, so an expression is bounded by its
//! size and depth, and refuses an object that its loops would take too long over.

use std::{collections::HashMap, sync::Arc};

use cel::{
    Context, ExecutionError, IdedExpr, Value as Cel,
    common::ast::{EntryExpr, Expr},
    objects::{Key, Map},
    parser::{ParseErrors, PrattParser},
};
use farwater_api::health_rule::MAX_EXPRESSION;
use serde_json::Value;

/// The name that an expression sees the object by.
const OBJECT: &str = "self";
/// And the field that it is asked about, if it is about fields.
const FIELD: &str = "field";
/// Parentheses, calls and operators in each other.
const MAX_DEPTH: u16 = 32;
const MAX_NODES: usize = 400;
/// Loops in each other.
const MAX_LOOPS: u32 = 3;
/// Rounds of all loops together; 100,000 take some tens of milliseconds.
const MAX_ROUNDS: u64 = 100_000;
/// Largest object, in bytes of its strings and number of its parts.
const MAX_OBJECT: usize = 512 << 10;

/// Types are names too.
const TYPES: [&str; 10] = ["bool", "bytes", "double", "dyn", "int", "list", "map", "null_type", "string", "uint"];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("is longer than {MAX_EXPRESSION} bytes")]
    TooLong,
    #[error("line {line}, column {column}: {cause}")]
    Syntax { line: isize, column: isize, cause: String },
    #[error("is too deep: more than {MAX_DEPTH} levels, {MAX_NODES} parts or {MAX_LOOPS} loops in each other")]
    TooDeep,
    #[error("knows no {0:?}: the object is \"self\"")]
    UnknownName(String),
}

/// Why an expression has no value. No values of the object are in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    #[error("{0}")]
    Failed(String),
    #[error("its value is no {0}")]
    WrongType(&'static str),
    #[error("the object is too large for it")]
    TooLarge,
}

/// One that was compiled.
#[derive(Clone, Debug)]
pub struct Expression {
    ast: IdedExpr,
    parts: u64,
    loops: u32,
    sums: u64,
    /// Elements of its longest literal.
    literal: u64,
}

impl Expression {
    pub fn compile(text: &str) -> Result<Self, ExpressionError> {
        Self::compile_with(text, &[OBJECT])
    }

    /// One that is asked about fields of an object, see [`Subject::set_field`].
    pub fn compile_for_fields(text: &str) -> Result<Self, ExpressionError> {
        Self::compile_with(text, &[OBJECT, FIELD])
    }

    fn compile_with(text: &str, names: &'static [&'static str]) -> Result<Self, ExpressionError> {
        if text.len() > MAX_EXPRESSION {
            return Err(ExpressionError::TooLong);
        }
        let parser = PrattParser::new().max_recursion_depth(MAX_DEPTH).max_expression_node_count(MAX_NODES);
        let ast = parser.parse(text).map_err(|errors| explain_syntax(&errors))?;
        let mut walk = Walk { names, ..Walk::default() };
        walk.visit(&ast, 0, 0)?;
        Ok(Self { ast, parts: walk.parts, loops: walk.loops, sums: walk.sums, literal: walk.literal })
    }

    pub fn is_true(&self, object: &Subject) -> Result<bool, EvaluationError> {
        match self.evaluate(object)? {
            Cel::Bool(value) => Ok(value),
            _ => Err(EvaluationError::WrongType("boolean")),
        }
    }

    pub fn text(&self, object: &Subject) -> Result<String, EvaluationError> {
        match self.evaluate(object)? {
            Cel::String(text) => Ok(text.to_string()),
            _ => Err(EvaluationError::WrongType("string")),
        }
    }

    /// What it takes to ask it once, in parts that are evaluated and KiB that they may compare.
    pub fn cost(&self, object: &Subject) -> u64 {
        if self.is_too_large(object) {
            return 1;
        }
        self.rounds(object).saturating_mul(self.parts).saturating_add(object.bytes as u64 / 1024)
    }

    /// Of all its loops together; 1 without any.
    fn rounds(&self, object: &Subject) -> u64 {
        let longest = object.longest.saturating_mul(self.sums + 1).max(self.literal);
        longest.saturating_pow(self.loops).max(1)
    }

    fn is_too_large(&self, object: &Subject) -> bool {
        object.bytes > MAX_OBJECT || self.rounds(object) > MAX_ROUNDS
    }

    fn evaluate(&self, object: &Subject) -> Result<Cel, EvaluationError> {
        if self.is_too_large(object) {
            return Err(EvaluationError::TooLarge);
        }
        Cel::resolve(&self.ast, &object.context).map_err(|error| EvaluationError::Failed(explain(&error)))
    }
}

/// The object, ready for many expressions.
pub struct Subject {
    context: Context<'static, 'static>,
    bytes: usize,
    /// Parts of its largest list or map.
    longest: u64,
}

impl Subject {
    pub fn new(object: &Value) -> Self {
        let mut subject = Self { context: Context::default(), bytes: 0, longest: 0 };
        let value = subject.convert(object, 0);
        subject.context.add_variable_from_value(OBJECT, value);
        subject
    }

    /// The field that an expression is asked about next.
    pub fn set_field(&mut self, pointer: &str) {
        self.context.add_variable_from_value(FIELD, Cel::String(Arc::new(pointer.to_owned())));
    }

    fn convert(&mut self, value: &Value, depth: u16) -> Cel {
        self.bytes += 1;
        if self.bytes > MAX_OBJECT || depth > 2 * MAX_DEPTH {
            return Cel::Null;
        }
        match value {
            Value::Null => Cel::Null,
            Value::Bool(value) => Cel::Bool(*value),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Cel::Int(number),
                (None, Some(number)) => Cel::UInt(number),
                (None, None) => Cel::Float(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => {
                self.bytes += text.len();
                Cel::String(Arc::new(text.clone()))
            }
            Value::Array(items) => {
                self.longest = self.longest.max(items.len() as u64);
                Cel::List(Arc::new(items.iter().map(|item| self.convert(item, depth + 1)).collect()))
            }
            Value::Object(fields) => {
                self.longest = self.longest.max(fields.len() as u64);
                let fields = fields.iter().map(|(name, value)| {
                    self.bytes += name.len();
                    (Key::String(Arc::new(name.clone())), self.convert(value, depth + 1))
                });
                Cel::Map(Map { map: Arc::new(fields.collect::<HashMap<_, _>>()) })
            }
        }
    }
}

/// What of an expression says how long it may take.
#[derive(Default)]
struct Walk {
    /// Of what an expression may ask.
    names: &'static [&'static str],
    parts: u64,
    loops: u32,
    /// Additions, which make longer lists.
    sums: u64,
    literal: u64,
    scope: Vec<String>,
}

impl Walk {
    fn visit(&mut self, node: &IdedExpr, depth: u16, loops: u32) -> Result<(), ExpressionError> {
        // Loops are several levels of the tree each.
        if depth > 4 * MAX_DEPTH {
            return Err(ExpressionError::TooDeep);
        }
        let depth = depth + 1;
        self.parts += 1;
        match &node.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => {
                let mut known = self.names.iter().chain(&TYPES);
                let is_known = known.any(|known| known == name) || self.scope.contains(name);
                if is_known { Ok(()) } else { Err(ExpressionError::UnknownName(name.clone())) }
            }
            Expr::Select(select) => self.visit(&select.operand, depth, loops),
            Expr::Call(call) => {
                self.sums += u64::from(call.func_name == cel::common::ast::operators::ADD);
                call.target
                    .iter()
                    .map(AsRef::as_ref)
                    .chain(&call.args)
                    .try_for_each(|part| self.visit(part, depth, loops))
            }
            Expr::List(list) => {
                self.literal = self.literal.max(list.elements.len() as u64);
                list.elements.iter().try_for_each(|part| self.visit(part, depth, loops))
            }
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| self.visit_entry(&entry.expr, depth, loops)),
            Expr::Struct(made) => made.entries.iter().try_for_each(|entry| self.visit_entry(&entry.expr, depth, loops)),
            Expr::Comprehension(comprehension) => {
                self.visit(&comprehension.iter_range, depth, loops)?;
                self.loops = self.loops.max(loops + 1);
                if self.loops > MAX_LOOPS {
                    return Err(ExpressionError::TooDeep);
                }
                let before = self.scope.len();
                self.scope.extend([comprehension.iter_var.clone(), comprehension.accu_var.clone()]);
                self.scope.extend(comprehension.iter_var2.clone());
                let parts = [
                    &comprehension.accu_init,
                    &comprehension.loop_cond,
                    &comprehension.loop_step,
                    &comprehension.result,
                ];
                let visited = parts.into_iter().try_for_each(|part| self.visit(part, depth, loops + 1));
                self.scope.truncate(before);
                visited
            }
        }
    }

    fn visit_entry(&mut self, entry: &EntryExpr, depth: u16, loops: u32) -> Result<(), ExpressionError> {
        match entry {
            EntryExpr::StructField(field) => self.visit(&field.value, depth, loops),
            EntryExpr::MapEntry(entry) => {
                self.visit(&entry.key, depth, loops)?;
                self.visit(&entry.value, depth, loops)
            }
        }
    }
}

fn explain_syntax(errors: &ParseErrors) -> ExpressionError {
    let Some(first) = errors.errors.first() else { return ExpressionError::TooDeep };
    let (line, column) = first.pos;
    ExpressionError::Syntax { line, column, cause: crate::conditions::cut(first.msg.trim(), 200) }
}

/// Many of the interpreter's errors quote values.
fn explain(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("there is no {key:?}"),
        ExecutionError::NoSuchOverload(error) => error.to_string(),
        ExecutionError::UndeclaredReference(name) => format!("there is no function {name:?}"),
        ExecutionError::IndexOutOfBounds(_) => "an index is out of bounds".to_owned(),
        ExecutionError::InvalidArgumentCount { expected, actual } => {
            format!("a function got {actual} arguments and takes {expected}")
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "it divides by zero".to_owned(),
        _ => "it can't be evaluated".to_owned(),
    }
}
