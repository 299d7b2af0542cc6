//! What is refused when an expression is read: unknown names and functions, and too much depth.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr};

use super::{ExpressionError, MAX_DEPTH};

/// Most nested loops.
pub(super) const MAX_LOOPS: u32 = 3;

/// The functions, for messages. The parser expands the first six.
pub(super) const FUNCTIONS: &str = "has, all, exists, exists_one, filter and map; size, contains, startsWith and endsWith; \
                                    string, int, uint, double, bool, bytes, dyn and type";
/// Functions called as `f(x)`.
const GLOBAL: [&str; 9] = [
    "bool", "bytes", "double", "dyn", "int", "size", "string", "type", "uint",
];
/// Functions called as `x.f()`, with their number of arguments.
const MEMBERS: [(&str, usize); 4] = [("contains", 1), ("endsWith", 1), ("size", 0), ("startsWith", 1)];
/// Types, which are names too.
const TYPES: [&str; 10] = [
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

/// `names`: the variables that it may use.
pub(super) fn check(expression: &IdedExpr, names: &[&str]) -> Result<(), ExpressionError> {
    Walk {
        names,
        scope: Vec::new(),
    }
    .visit(expression, 0, 0)
}

struct Walk<'a> {
    names: &'a [&'a str],
    /// Variables of the enclosing loops.
    scope: Vec<&'a str>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, node: &'a IdedExpr, depth: u16, loops: u32) -> Result<(), ExpressionError> {
        if depth > MAX_DEPTH {
            return Err(ExpressionError::TooDeep);
        }
        let depth = depth + 1;
        match &node.expr {
            // The parser produces this only together with an error.
            Expr::Unspecified => Err(ExpressionError::Syntax {
                line: 1,
                column: 1,
                cause: "it can't be read".to_owned(),
            }),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => {
                let name = name.as_str();
                let is_known = self.names.contains(&name) || self.scope.contains(&name) || TYPES.contains(&name);
                if is_known {
                    Ok(())
                } else {
                    Err(ExpressionError::UnknownName(name.to_owned()))
                }
            }
            Expr::Select(select) => self.visit(&select.operand, depth, loops),
            Expr::Call(call) => {
                check_function(call)?;
                let mut operands = call.target.as_deref().into_iter().chain(&call.args);
                operands.try_for_each(|operand| self.visit(operand, depth, loops))
            }
            Expr::List(list) => list
                .elements
                .iter()
                .try_for_each(|element| self.visit(element, depth, loops)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::StructField(field) => self.visit(&field.value, depth, loops),
                EntryExpr::MapEntry(entry) => {
                    self.visit(&entry.key, depth, loops)?;
                    self.visit(&entry.value, depth, loops)
                }
            }),
            Expr::Struct(made) => Err(ExpressionError::UnknownName(made.type_name.clone())),
            Expr::Comprehension(comprehension) => self.visit_loop(comprehension, depth, loops),
        }
    }

    fn visit_loop(&mut self, node: &'a ComprehensionExpr, depth: u16, loops: u32) -> Result<(), ExpressionError> {
        if loops >= MAX_LOOPS {
            return Err(ExpressionError::TooDeep);
        }
        self.visit(&node.iter_range, depth, loops)?;
        let before = self.scope.len();
        self.scope.extend([node.iter_var.as_str(), node.accu_var.as_str()]);
        let parts = [&node.accu_init, &node.loop_cond, &node.loop_step, &node.result];
        let visited = parts
            .into_iter()
            .try_for_each(|part| self.visit(part, depth, loops + 1));
        self.scope.truncate(before);
        visited
    }
}

fn check_function(call: &CallExpr) -> Result<(), ExpressionError> {
    let (name, arguments) = (call.func_name.as_str(), call.args.len());
    let is_known = match call.target {
        Some(_) => MEMBERS.contains(&(name, arguments)),
        None => is_operator(name) || (GLOBAL.contains(&name) && arguments == 1),
    };
    if is_known {
        Ok(())
    } else {
        Err(ExpressionError::UnknownFunction {
            name: name.to_owned(),
            arguments,
        })
    }
}

/// Whether a function's name is the parser's name of an operator. No written function can have such a name.
fn is_operator(name: &str) -> bool {
    !name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
}
