//! What Rust's test harness prints, as numbers and explained failures.

/// Tests, or whole phases that have no tests to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
}

impl Counts {
    pub const ONE_PASSED: Self = Self { passed: 1, failed: 0 };
    pub const ONE_FAILED: Self = Self { passed: 0, failed: 1 };

    pub fn plus(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

/// Sums the `test result:` lines of `cargo test`.
pub fn count(output: &str) -> Counts {
    let results = output.lines().filter_map(|line| line.trim().strip_prefix("test result: "));
    results.fold(Counts::default(), |sum, line| {
        sum.plus(Counts { passed: number_before(line, " passed"), failed: number_before(line, " failed") })
    })
}

fn number_before(line: &str, word: &str) -> u64 {
    let Some((before, _)) = line.split_once(word) else { return 0 };
    before.rsplit([' ', ';']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The `Tests  1 failed | 24 passed (25)` line of vitest, which colours it.
pub fn count_vitest(output: &str) -> Counts {
    let line = output.lines().map(uncoloured).rfind(|line| line.trim_start().starts_with("Tests "));
    line.map_or(Counts::default(), |line| Counts {
        passed: number_before(&line, " passed"),
        failed: number_before(&line, " failed"),
    })
}

/// The text without terminal escapes.
fn uncoloured(line: &str) -> String {
    console::strip_ansi_codes(line).into_owned()
}

/// What each failed test said went wrong, `lines_each` lines of it: from the panic or the returned error on, whatever was
/// printed before, and without the backtrace.
pub fn failures(output: &str, lines_each: usize) -> Vec<String> {
    let mut lines = output.lines().peekable();
    let mut failures = Vec::new();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) else {
            continue;
        };
        let mut printed = Vec::new();
        while let Some(next) = lines.next_if(|next| !next.starts_with("---- ") && *next != "failures:") {
            if next.starts_with("stack backtrace:") {
                break;
            }
            printed.push(next);
        }
        printed.retain(|line| !line.trim().is_empty());
        let start = printed.iter().position(|line| says_why(line)).unwrap_or(0);
        let shown = printed.iter().skip(start).take(lines_each);
        failures.push(shown.fold(format!("  {name}"), |text, line| text + "\n  | " + line));
    }
    failures
}

/// The first line of a panic's message, or of the error that a test returned.
fn says_why(line: &str) -> bool {
    line.starts_with("Error: ") || line.starts_with("thread '") && line.contains(" panicked at ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 2 tests
test a::works ... ok
test a::breaks ... FAILED

failures:

---- a::breaks stdout ----

thread 'a::breaks' panicked at src/a.rs:3:5:
left is not right
stack backtrace:
   0: rust_begin_unwind

failures:
    a::breaks

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 5.59s
";

    #[test]
    fn results_of_all_test_programs_are_summed() {
        assert_eq!(count(OUTPUT), Counts { passed: 13, failed: 1 });
    }

    #[test]
    fn results_of_the_page_are_counted_through_their_colours() {
        let vitest = " Test Files  1 failed | 2 passed (3)\n\u{1b}[2m      Tests \u{1b}[22m 1 failed | \u{1b}[32m24 passed\u{1b}[39m (25)\n";
        assert_eq!(count_vitest(vitest), Counts { passed: 24, failed: 1 });
    }

    #[test]
    fn a_failure_shows_its_message_and_not_its_backtrace() {
        let shown = "  a::breaks\n  | thread 'a::breaks' panicked at src/a.rs:3:5:\n  | left is not right";
        assert_eq!(failures(OUTPUT, 10), [shown]);
    }

    #[test]
    fn a_failure_is_explained_however_much_was_printed_before_it() {
        let output =
            "---- a::breaks stdout ----\none\ntwo\nthree\nError: start the hub\n\nCaused by:\n    no\n\nfailures:\n";
        assert_eq!(failures(output, 3), ["  a::breaks\n  | Error: start the hub\n  | Caused by:\n  |     no"]);
        let silent = output.replace("Error: ", "");
        assert_eq!(failures(&silent, 2), ["  a::breaks\n  | one\n  | two"]);
    }
}
