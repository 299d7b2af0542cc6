//! The cost of evaluating an expression with one object, computed before the evaluation.
//!
//! It is an upper bound: every loop runs over all of its list, every operand is evaluated, and comparisons and copies
//! run to the end. New values cost their size, so the bound holds for memory as well as time.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use serde_json::Value;

use super::OBJECT;

/// Takes some tenths of a second at worst. Allows one loop over 15,000 elements, two nested ones over 100, or three
/// over 25.
const MAX_COST: u64 = 2_000_000;
/// Cost of each part of the expression apart from its operation, e.g. for looking up names.
const STEP: u64 = 8;
/// Most digits of a number as text.
const LONGEST_NUMBER: u64 = 350;

/// None: evaluating it costs too much.
pub(super) fn count(expression: &IdedExpr, object: &Value) -> Option<u64> {
    let mut count = Count {
        object,
        scope: Vec::new(),
        rounds: 1,
        cost: 0,
    };
    count.visit(expression)?;
    (count.cost <= MAX_COST).then_some(count.cost)
}

/// Upper bounds of a value.
#[derive(Clone, Copy)]
struct Extent {
    /// Number of values in it plus bytes of its texts.
    size: u64,
    /// Number of elements.
    length: u64,
    /// Size of its largest element.
    element: u64,
    /// Number of elements of the longest list or map in it.
    longest: u64,
}

impl Extent {
    const SCALAR: Self = Self::of_text(0);

    const fn of_text(bytes: usize) -> Self {
        Self {
            size: 1 + bytes as u64,
            length: 0,
            element: 0,
            longest: 0,
        }
    }

    /// A list or map of such elements, or another value of that size.
    fn of_elements(elements: impl Iterator<Item = Self>) -> Self {
        elements.fold(Self::SCALAR, |all, one| Self {
            size: all.size.saturating_add(one.size),
            length: all.length + 1,
            element: all.element.max(one.size),
            longest: all.longest.max(one.longest).max(all.length + 1),
        })
    }

    /// An unknown part of it.
    fn part(self) -> Self {
        Self {
            length: self.longest,
            element: self.size,
            ..self
        }
    }

    /// One element of a loop over it.
    fn round(self) -> Self {
        Self {
            size: self.element,
            length: self.longest,
            element: self.element,
            longest: self.longest,
        }
    }
}

fn measure(value: &Value) -> Extent {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Extent::SCALAR,
        Value::String(text) => Extent::of_text(text.len()),
        Value::Array(items) => Extent::of_elements(items.iter().map(measure)),
        // A loop over a map iterates over its names.
        Value::Object(fields) => {
            let names = Extent::of_elements(fields.keys().map(|name| Extent::of_text(name.len())));
            let values = Extent::of_elements(fields.values().map(measure));
            Extent {
                size: names.size + values.size,
                longest: values.longest,
                ..names
            }
        }
    }
}

struct Count<'a> {
    object: &'a Value,
    /// Variables of the enclosing loops.
    scope: Vec<(&'a str, Extent)>,
    /// Number of iterations of all enclosing loops.
    rounds: u64,
    cost: u64,
}

impl<'a> Count<'a> {
    /// Adds cost. None: the limit is exceeded.
    fn spend(&mut self, cost: u64) -> Option<()> {
        self.cost = self.cost.saturating_add(self.rounds.saturating_mul(cost));
        (self.cost <= MAX_COST).then_some(())
    }

    /// The value at a path from the object, if the node is one. `Some(None)`: nothing is there.
    fn at_path(&self, node: &IdedExpr) -> Option<Option<&'a Value>> {
        match &node.expr {
            Expr::Ident(name) if name == OBJECT && self.scope.iter().all(|(variable, _)| variable != name) => {
                Some(Some(self.object))
            }
            Expr::Select(select) if !select.test => Some(
                self.at_path(&select.operand)?
                    .and_then(|value| value.get(&select.field)),
            ),
            _ => None,
        }
    }

    /// Adds the cost of looking up each name of a path.
    fn spend_path(&mut self, mut node: &IdedExpr) -> Option<()> {
        while let Expr::Select(select) = &node.expr {
            self.spend(STEP)?;
            node = &select.operand;
        }
        Some(())
    }

    /// Upper bound of a node's value. None: it costs too much.
    fn visit(&mut self, node: &'a IdedExpr) -> Option<Extent> {
        self.spend(STEP)?;
        if let Some(found) = self.at_path(node) {
            self.spend_path(node)?;
            let extent = found.map_or(Extent::SCALAR, measure);
            // Measuring takes time too, once per node.
            self.cost = self.cost.saturating_add(extent.size);
            return Some(extent);
        }
        match &node.expr {
            Expr::Literal(LiteralValue::String(text)) => Some(Extent::of_text(text.inner().len())),
            Expr::Literal(LiteralValue::Bytes(bytes)) => Some(Extent::of_text(bytes.inner().len())),
            Expr::Unspecified | Expr::Literal(_) | Expr::Struct(_) => Some(Extent::SCALAR),
            Expr::Ident(name) => {
                let variable = self.scope.iter().rev().find(|(variable, _)| variable == name);
                Some(variable.map_or(Extent::SCALAR, |(_, extent)| *extent))
            }
            Expr::Select(select) if select.test => {
                match self.at_path(&select.operand) {
                    Some(_) => self.spend_path(&select.operand)?,
                    None => {
                        self.visit(&select.operand)?;
                    }
                }
                Some(Extent::SCALAR)
            }
            Expr::Select(select) => Some(self.visit(&select.operand)?.part()),
            Expr::Call(call) => self.visit_call(call),
            Expr::List(list) => self.visit_elements(list.elements.iter()),
            Expr::Map(map) => self.visit_elements(map.entries.iter().flat_map(|entry| match &entry.expr {
                EntryExpr::StructField(field) => vec![&field.value],
                EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
            })),
            Expr::Comprehension(comprehension) => self.visit_loop(comprehension),
        }
    }

    fn visit_elements(&mut self, elements: impl Iterator<Item = &'a IdedExpr>) -> Option<Extent> {
        let elements = elements
            .map(|element| self.visit(element))
            .collect::<Option<Vec<Extent>>>()?;
        let made = Extent::of_elements(elements.into_iter());
        self.spend(made.size)?;
        Some(made)
    }

    fn visit_call(&mut self, call: &'a CallExpr) -> Option<Extent> {
        let operands = call.target.as_deref().into_iter().chain(&call.args);
        let operands = operands
            .map(|operand| self.visit(operand))
            .collect::<Option<Vec<Extent>>>()?;
        let sum = |of: fn(&Extent) -> u64| operands.iter().map(of).fold(0, u64::saturating_add);
        let most = |of: fn(&Extent) -> u64| operands.iter().map(of).max().unwrap_or_default();
        let size = sum(|operand| operand.size);

        let (cost, value) = match call.func_name.as_str() {
            operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT | operators::NOT_STRICTLY_FALSE => {
                (0, Extent::SCALAR)
            }
            // Values of different length are not compared further.
            operators::EQUALS | operators::NOT_EQUALS => (
                operands.iter().map(|operand| operand.size).min().unwrap_or_default(),
                Extent::SCALAR,
            ),
            operators::CONDITIONAL => {
                let most = Extent {
                    size: most(|operand| operand.size),
                    length: most(|operand| operand.length),
                    element: most(|operand| operand.element),
                    longest: most(|operand| operand.longest),
                };
                (0, most)
            }
            operators::ADD => {
                let length = sum(|operand| operand.length);
                let longest = most(|operand| operand.longest).max(length);
                (
                    size,
                    Extent {
                        size,
                        length,
                        element: most(|operand| operand.element),
                        longest,
                    },
                )
            }
            operators::INDEX => (size, operands.first().map_or(Extent::SCALAR, |operand| operand.part())),
            "dyn" => (size, operands.first().copied().unwrap_or(Extent::SCALAR)),
            "bytes" => (size, Extent { size, ..Extent::SCALAR }),
            "string" => (
                size,
                Extent {
                    size: size.saturating_add(LONGEST_NUMBER),
                    ..Extent::SCALAR
                },
            ),
            // The other functions return numbers and booleans. If one fails, its error holds copies of the arguments.
            _ => (size, Extent::SCALAR),
        };

        self.spend(cost)?;
        Some(value)
    }

    fn visit_loop(&mut self, node: &'a ComprehensionExpr) -> Option<Extent> {
        let range = self.visit(&node.iter_range)?;
        // Each element is copied for its iteration.
        self.spend(range.size)?;
        let (around, before) = (self.rounds, self.scope.len());
        self.rounds = around.saturating_mul(range.length);
        self.scope.push((node.iter_var.as_str(), range.round()));
        let made = match &node.accu_init.expr {
            // `map` and `filter` build a list.
            Expr::List(_) => self.visit_step(node, &node.loop_step, range),
            _ => {
                self.scope.push((node.accu_var.as_str(), Extent::SCALAR));
                self.visit(&node.loop_cond)?;
                self.visit(&node.loop_step)?;
                Some(Extent::SCALAR)
            }
        };
        self.rounds = around;
        self.scope.truncate(before);
        self.spend(STEP)?;
        made
    }

    /// `@result + [element]`, or `condition ? @result + [element] : @result`: the interpreter appends to one list.
    fn visit_step(&mut self, node: &'a ComprehensionExpr, step: &'a IdedExpr, range: Extent) -> Option<Extent> {
        let Expr::Call(call) = &step.expr else { return None };
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, step, _]) => {
                self.visit(condition)?;
                self.visit_step(node, step, range)
            }
            (operators::ADD, [_, made]) => {
                let Expr::List(list) = &made.expr else { return None };
                let [element] = list.elements.as_slice() else {
                    return None;
                };
                // Elements taken over from a list are no larger than the list.
                if matches!(&element.expr, Expr::Ident(name) if *name == node.iter_var) {
                    self.spend(STEP.saturating_add(range.element))?;
                    return Some(range);
                }
                let element = self.visit(element)?;
                // The element is built, and copied once.
                self.spend(element.size.saturating_mul(2))?;
                Some(Extent {
                    size: range.length.saturating_mul(element.size).saturating_add(1),
                    length: range.length,
                    element: element.size,
                    longest: range.length.max(element.longest),
                })
            }
            _ => None,
        }
    }
}
