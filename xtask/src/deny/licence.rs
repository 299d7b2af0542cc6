//! SPDX licence expressions, as far as crates use them: AND, OR, WITH, parentheses, and the old `/` for OR.

/// Whether licences that `allowed` accepts satisfy the expression.
pub fn is_satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut parser = Parser {
        tokens: text.split_whitespace().collect(),
        next: 0,
        allowed,
    };
    let result = parser.any()?;
    match parser.peek() {
        None => Ok(result),
        Some(token) => Err(format!("unexpected {token:?} in {expression:?}")),
    }
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    next: usize,
    allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).copied()
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }

    /// Parses OR, which binds weaker than AND.
    fn any(&mut self) -> Result<bool, String> {
        let mut result = self.all()?;
        while self.take("OR") {
            result |= self.all()?;
        }
        Ok(result)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut result = self.one()?;
        while self.take("AND") {
            result &= self.one()?;
        }
        Ok(result)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let result = self.any()?;
            return if self.take(")") {
                Ok(result)
            } else {
                Err("a parenthesis is not closed".to_owned())
            };
        }
        let licence = self.peek().ok_or("the expression ends too early")?;
        if matches!(licence, "OR" | "AND" | "WITH" | ")") {
            return Err(format!("a licence is missing before {licence:?}"));
        }
        self.next += 1;
        if !self.take("WITH") {
            return Ok((self.allowed)(licence));
        }
        let exception = self.peek().ok_or("an exception is missing after WITH")?;
        self.next += 1;
        Ok((self.allowed)(&format!("{licence} WITH {exception}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expression: &str, expected: Result<bool, ()>) {
        let allowed = |licence: &str| matches!(licence, "MIT" | "ISC" | "Apache-2.0 WITH LLVM-exception");
        assert_eq!(
            is_satisfied(expression, &allowed).map_err(|_| ()),
            expected,
            "{expression}"
        );
    }

    #[test]
    fn expressions_are_judged_as_spdx_says() {
        check("MIT", Ok(true));
        check("GPL-3.0", Ok(false));
        check("MIT/GPL-3.0", Ok(true));
        check("MIT AND GPL-3.0", Ok(false));
        check("GPL-3.0 OR MIT AND ISC", Ok(true));
        check("(GPL-3.0 OR MIT) AND (ISC)", Ok(true));
        check("Apache-2.0 WITH LLVM-exception", Ok(true));
        check("Apache-2.0", Ok(false));
    }

    #[test]
    fn what_is_no_expression_is_an_error_not_a_yes() {
        for wrong in ["", "OR MIT", "MIT OR", "(MIT", "MIT )", "MIT ISC", "MIT WITH"] {
            check(wrong, Err(()));
        }
    }
}
