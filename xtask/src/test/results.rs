//! Reads the output of Rust's test harness: counts, results and messages of failures.

use std::collections::BTreeMap;

/// Counts of tests. A phase without tests counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
}

impl Counts {
    pub const ONE_PASSED: Self = Self { passed: 1, failed: 0 };
    pub const ONE_FAILED: Self = Self { passed: 0, failed: 1 };

    pub fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
        }
    }
}

/// Results of the tests of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub passed: Vec<String>,
    pub failed: Vec<String>,
    /// Tests that had not ended when the process ended or was killed.
    pub not_ended: Vec<String>,
    /// How the process ended, if tests had not ended.
    pub unended: Option<String>,
    /// Seconds by test.
    pub seconds: BTreeMap<String, f64>,
}

impl Outcome {
    /// All tests that did not pass.
    pub fn faults(&self) -> impl Iterator<Item = &String> {
        self.failed.iter().chain(&self.not_ended)
    }
}

/// Reads the output of a process that had to run these tests.
pub fn read(output: &str, tests: &[String], succeeded: bool) -> Outcome {
    let mut outcome = Outcome::default();
    let mut said: BTreeMap<&str, bool> = BTreeMap::new();
    for line in output.lines() {
        let Some((name, result)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) else {
            continue;
        };
        let name = name.trim_end_matches(" - should panic");
        let mut words = result.split_whitespace();
        match words.next() {
            Some("ok") => said.insert(name, true),
            Some("FAILED") => said.insert(name, false),
            _ => continue,
        };
        let seconds = words
            .next()
            .and_then(|time| time.strip_prefix('<')?.strip_suffix("s>")?.parse().ok());
        outcome
            .seconds
            .extend(seconds.map(|seconds: f64| (name.to_owned(), seconds)));
    }
    // Programs that a test starts may print into the line of a test. The summary at the end repeats the failed tests.
    let end = output.rfind("\ntest result: ");
    let (listed, _) = end.map_or(("", ""), |end| output.split_at(end));
    let listed: Vec<&str> = listed
        .rsplit("\nfailures:\n")
        .next()
        .unwrap_or_default()
        .lines()
        .map(str::trim)
        .collect();
    let ran = end.map_or(0, |end| {
        number_before(&output[end..], " passed") + number_before(&output[end..], " failed")
    });
    for test in tests {
        let passed = match said.get(test.as_str()) {
            Some(passed) => Some(*passed),
            None if ran == tests.len() as u64 => Some(!listed.contains(&test.as_str())),
            None => None,
        };
        match passed {
            Some(true) => outcome.passed.push(test.clone()),
            Some(false) => outcome.failed.push(test.clone()),
            None => outcome.not_ended.push(test.clone()),
        }
    }
    // The process failed after its last test, or while it ended.
    if !succeeded && outcome.faults().next().is_none() {
        outcome.not_ended = std::mem::take(&mut outcome.passed);
    }
    outcome
}

fn number_before(line: &str, word: &str) -> u64 {
    let Some((before, _)) = line.split_once(word) else {
        return 0;
    };
    before
        .rsplit([' ', ';'])
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// Reads vitest's line `Tests  1 failed | 24 passed (25)`, which contains colour codes.
pub fn count_vitest(output: &str) -> Counts {
    let line = output
        .lines()
        .map(uncoloured)
        .rfind(|line| line.trim_start().starts_with("Tests "));
    line.map_or(Counts::default(), |line| Counts {
        passed: number_before(&line, " passed"),
        failed: number_before(&line, " failed"),
    })
}

/// Removes terminal escapes.
fn uncoloured(line: &str) -> String {
    console::strip_ansi_codes(line).into_owned()
}

/// The message of each failed test, at most `lines_each` lines. It starts at the panic or the returned error, wherever
/// that is in the output, and has no backtrace.
pub fn failures(output: &str, lines_each: usize) -> Vec<String> {
    let mut lines = output.lines().peekable();
    let mut failures = Vec::new();
    while let Some(line) = lines.next() {
        let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        else {
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

/// Whether the line is the first one of a panic's message or of a returned error.
fn says_why(line: &str) -> bool {
    line.starts_with("Error: ") || line.starts_with("thread '") && line.contains(" panicked at ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 2 tests
test a::works ... ok <0.250s>
test a::breaks ... FAILED <1.000s>

failures:

---- a::breaks stdout ----

thread 'a::breaks' panicked at src/a.rs:3:5:
left is not right
stack backtrace:
   0: rust_begin_unwind

failures:
    a::breaks

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn tests_are_told_apart_by_their_lines() {
        let outcome = read(OUTPUT, &names(&["a::works", "a::breaks"]), false);
        assert_eq!(
            (outcome.passed, outcome.failed),
            (names(&["a::works"]), names(&["a::breaks"]))
        );
        assert_eq!(outcome.seconds["a::works"], 0.25);
    }

    #[test]
    fn a_line_that_another_program_printed_into_is_made_up_for_by_the_closing_lines() {
        let output = OUTPUT
            .replace("... ok <0.250s>", "... noise\nok <0.250s>")
            .replace("... FAILED", "... noise\nFAILED");
        let outcome = read(&output, &names(&["a::works", "a::breaks"]), false);
        assert_eq!(
            (outcome.passed, outcome.failed),
            (names(&["a::works"]), names(&["a::breaks"]))
        );
    }

    #[test]
    fn what_had_not_ended_when_the_process_did_is_named() {
        let outcome = read(
            "test a::works ... ok <0.250s>\ntest a::hangs ... ",
            &names(&["a::works", "a::hangs"]),
            false,
        );
        assert_eq!(
            (outcome.passed, outcome.not_ended),
            (names(&["a::works"]), names(&["a::hangs"]))
        );
        let crashed_late = read(
            &OUTPUT[..OUTPUT.find("test a::breaks").unwrap()],
            &names(&["a::works"]),
            false,
        );
        assert_eq!(crashed_late.not_ended, names(&["a::works"]));
        // A test that does not exist must not count as passed.
        let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
        assert_eq!(read(none, &names(&["a::typo"]), true).not_ended, names(&["a::typo"]));
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
        assert_eq!(
            failures(output, 3),
            ["  a::breaks\n  | Error: start the hub\n  | Caused by:\n  |     no"]
        );
        let silent = output.replace("Error: ", "");
        assert_eq!(failures(&silent, 2), ["  a::breaks\n  | one\n  | two"]);
    }
}
