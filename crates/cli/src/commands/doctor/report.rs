//! The report for people: within 80 columns, with the remedy below each problem.

use super::{Check, Grade, Part};
use crate::{
    terminal::{Colour, Terminal},
    text,
};

/// Default and largest width: longer lines are hard to read.
const WIDTH: usize = 80;
/// Columns before a finding: the grade and the name.
const INDENT: usize = 22;
/// Indent of a word that has no room there: a digest has 71 columns.
const NARROW: usize = 8;

pub fn render(checks: &[Check], terminal: Terminal) -> String {
    let width = terminal.width.unwrap_or(WIDTH).min(WIDTH);
    let mut lines = String::new();
    let mut part = None;
    for check in checks {
        if part != Some(check.part) {
            part = Some(check.part);
            lines += &format!("{}\n", heading(check.part));
        }
        let (word, colour) = match check.finding.grade {
            Grade::Ok => ("ok  ", Colour::Good),
            Grade::Warn => ("WARN", Colour::Doubtful),
            Grade::Fail => ("FAIL", Colour::Bad),
        };
        let mut found = wrap(&text::plain(&check.finding.found), width - INDENT).into_iter();
        let first = found.next().unwrap_or_default();
        lines += &format!("  {}  {:<13} {first}\n", terminal.paint(colour, word), check.name);
        for line in found {
            let indent = if text::width(&line) > width - INDENT {
                NARROW
            } else {
                INDENT
            };
            lines += &format!("{:indent$}{line}\n", "");
        }
        if let Some(remedy) = &check.finding.remedy {
            let remedy = wrap(&text::plain(remedy), width - INDENT - 2);
            let marks = std::iter::once("> ").chain(std::iter::repeat("  "));
            lines.extend(
                marks
                    .zip(remedy)
                    .map(|(mark, line)| format!("{:INDENT$}{mark}{line}\n", "")),
            );
        }
    }

    lines + &summary(checks)
}

fn heading(part: Part) -> &'static str {
    match part {
        Part::Local => "this machine",
        Part::Hub => "the hub",
        Part::Cluster => "the cluster",
    }
}

fn summary(checks: &[Check]) -> String {
    let count = |grade: Grade| checks.iter().filter(|check| check.finding.grade == grade).count();
    format!(
        "{} ok, {} to watch, {} failed\n",
        count(Grade::Ok),
        count(Grade::Warn),
        count(Grade::Fail)
    )
}

/// Wraps between words. A word that is longer than a line, e.g. a digest, stays whole so that it can be copied.
fn wrap(sentence: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text::width(line) + 1 + text::width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{super::Finding, *};

    #[test]
    fn everything_fits_80_columns_and_the_remedy_stands_below() {
        let long = format!("{} sha256:{} end", "word ".repeat(40), "a".repeat(64));
        let checks = [
            Check::new(Part::Local, "kubeconfig", Finding::ok("fine")),
            Check::new(Part::Hub, "certificate", Finding::fail(long, "word ".repeat(40))),
        ];
        let text = render(&checks, Terminal::default());
        assert!(text.lines().all(|line| text::width(line) <= WIDTH), "{text}");
        assert!(
            text.starts_with("this machine\n  ok    kubeconfig    fine\nthe hub\n  FAIL  certificate   word"),
            "{text}"
        );
        assert!(text.contains(&format!("\n{:INDENT$}> word", "")), "{text}");
        assert!(text.ends_with("1 ok, 0 to watch, 1 failed\n"), "{text}");
    }

    #[test]
    fn what_is_to_be_copied_is_not_broken() {
        let digest = "a".repeat(64);
        assert_eq!(
            wrap(&format!("the pin is {digest} here"), 40),
            ["the pin is", &digest, "here"]
        );
        assert_eq!(wrap("", 40), [""; 0]);
    }
}
