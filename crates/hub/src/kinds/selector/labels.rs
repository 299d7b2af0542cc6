//! The syntax of label selectors: tokens, grammar and words of `k8s.io/apimachinery/pkg/labels/selector.go`.

use farwater_store::LabelRequirement;
use serde_json::json;

use super::{
    super::{
        meta,
        status::{ApiError, FieldError},
    },
    Comparison, Filter, LONGEST,
};

const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

pub fn parse(text: &str, filter: &mut Filter) -> Result<(), ApiError> {
    if text.len() > LONGEST {
        return Err(ApiError::bad_request("the label selector is too long"));
    }
    Parser {
        tokens: tokens(text),
        at: 0,
    }
    .parse(filter)
    .map_err(ApiError::bad_request)
}

/// Symbols and words; whitespace only separates them.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let symbol = ["==", "!=", "=", "!", ",", "(", ")", ">", "<"]
            .into_iter()
            .find(|s| rest.starts_with(s));
        let length = symbol.map_or_else(
            || {
                rest.find(|c: char| c.is_whitespace() || "=!,()><".contains(c))
                    .unwrap_or(rest.len())
            },
            str::len,
        );
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// A key or a value: anything except a symbol and the end.
fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.contains(['=', '!', ',', '(', ')', '>', '<'])
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or("")
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn parse(mut self, filter: &mut Filter) -> Result<(), String> {
        loop {
            match self.peek() {
                "" => return Ok(()),
                token if is_word(token) || token == "!" => {}
                other => return Err(format!("found '{other}', expected: !, identifier, or 'end of string'")),
            }
            self.requirement(filter)
                .map_err(|why| format!("unable to parse requirement: {why}"))?;
            match self.next() {
                "" => return Ok(()),
                "," if is_word(self.peek()) || self.peek() == "!" => {}
                "," => return Err(format!("found '{}', expected: identifier after ','", self.peek())),
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self, filter: &mut Filter) -> Result<(), String> {
        let absent = self.peek() == "!";
        self.at += usize::from(absent);
        let key = self.next();
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        if let Some(problem) = meta::check_qualified_name(key) {
            return Err(FieldError::invalid("<nil>", &json!(key), &problem).to_string());
        }
        let key = key.to_owned();

        if matches!(self.peek(), "" | ",") {
            let exists = if absent {
                LabelRequirement::NotExists
            } else {
                LabelRequirement::Exists
            };
            filter.labels.0.push(exists(key));
            return Ok(());
        }

        let operator = self.next();
        let values = match operator {
            "in" | "notin" => self.values()?,
            "=" | "==" | "!=" | ">" | "<" => vec![self.value()?],
            other => return Err(format!("found '{other}', expected: {OPERATORS}")),
        };
        check_values(&key, operator, &values)?;

        match operator {
            ">" | "<" => {
                let number = values[0].parse().unwrap_or_default();
                filter.compared.push(Comparison {
                    key,
                    greater: operator == ">",
                    number,
                });
            }
            "!=" | "notin" => filter.labels.0.push(LabelRequirement::NotIn(key, values)),
            _ => filter.labels.0.push(LabelRequirement::In(key, values)),
        }
        Ok(())
    }

    /// One value; an empty one is allowed (`a=`).
    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            "" | "," => Ok(String::new()),
            word if is_word(word) => Ok(self.next().to_owned()),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// Sorted, without duplicates.
    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            "(" => {}
            other => return Err(format!("found '{other}' expected: '('")),
        }
        let mut values = Vec::new();
        match self.peek() {
            ")" => values.push(String::new()),
            token if token == "," || is_word(token) => self.list(&mut values)?,
            other => return Err(format!("found '{other}', expected: ',', ')' or identifier")),
        }
        self.at += 1;
        values.sort();
        values.dedup();
        Ok(values)
    }

    /// Reads up to the closing parenthesis; nothing between two commas is the empty value.
    fn list(&mut self, values: &mut Vec<String>) -> Result<(), String> {
        loop {
            match self.next() {
                "," => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    if matches!(self.peek(), ")" | ",") {
                        values.push(String::new());
                    }
                    if self.peek() == ")" {
                        return Ok(());
                    }
                }
                word if is_word(word) => {
                    values.push(word.to_owned());
                    match self.peek() {
                        "," => {}
                        ")" => return Ok(()),
                        other => return Err(format!("found '{other}', expected: ',' or ')'")),
                    }
                }
                other => return Err(format!("found '{other}', expected: ',', or identifier")),
            }
        }
    }
}

fn check_values(key: &str, operator: &str, values: &[String]) -> Result<(), String> {
    let mut errors = Vec::new();
    for (n, value) in values.iter().enumerate() {
        if matches!(operator, ">" | "<") && value.parse::<i64>().is_err() {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            errors.push(FieldError::invalid(format!("values[{n}]"), &json!(value), why).to_string());
        }
    }
    for (n, value) in values.iter().enumerate() {
        if let Some(problem) = meta::check_label_value(value) {
            errors.push(FieldError::invalid(format!("values[{n}][{key}]"), &json!(value), &problem).to_string());
        }
    }
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}
