//! JUnit files: finding them in a log, and counting their cases. They come from tenants' containers, so only their
//! outline is read.

use farwater_api::hooks::{MAX_JUNIT_BYTES, MAX_LOG_BYTES};

/// Most bytes of a log's line that are read; the rest is dropped.
const MAX_LINE_BYTES: usize = MAX_JUNIT_BYTES;
/// Most bytes of a test case's name that are repeated.
const MAX_NAME: usize = 128;

/// A log, reduced to its end and to the last JUnit file in it.
#[derive(Debug, Default)]
pub struct Log {
    line: Vec<u8>,
    tail: String,
    /// The file being read, and the end of its root element once that is known.
    open: Option<(String, &'static str)>,
    junit: Option<String>,
    /// Whether a file was larger than is kept.
    pub too_large: bool,
}

impl Log {
    pub fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.end_line();
            } else if self.line.len() < MAX_LINE_BYTES {
                self.line.push(*byte);
            }
        }
    }

    /// The end of the log without the file, and the file.
    pub fn finish(mut self) -> (String, Option<String>) {
        if !self.line.is_empty() {
            self.end_line();
        }
        if let Some((text, _)) = self.open.take() {
            self.add(&text);
        }
        (self.tail, self.junit)
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        // Terminals show it, so control characters are removed.
        let line = String::from_utf8_lossy(&line);
        let line: String = line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
        let line = line.as_str();
        match self.open.take() {
            Some((text, "")) => match root_end(line.trim_start()) {
                Some(end) => self.read_on(text, end, line),
                None => {
                    self.add(&text);
                    self.begin(line);
                }
            },
            Some((text, end)) => self.read_on(text, end, line),
            None => self.begin(line),
        }
    }

    fn begin(&mut self, line: &str) {
        let start = line.trim_start();
        match root_end(start) {
            Some(end) => self.read_on(String::new(), end, line),
            None if start.starts_with("<?xml") => {
                let rest = start.split_once("?>").map_or("", |(_, rest)| rest.trim_start());
                match root_end(rest) {
                    Some(end) => self.read_on(String::new(), end, line),
                    None if rest.is_empty() => self.open = Some((format!("{line}\n"), "")),
                    None => self.add(line),
                }
            }
            None => self.add(line),
        }
    }

    fn read_on(&mut self, mut text: String, end: &'static str, line: &str) {
        if text.len() + line.len() >= MAX_JUNIT_BYTES {
            self.too_large = true;
            return;
        }
        text.push_str(line);
        text.push('\n');
        let is_empty_root =
            text.matches('<').count() == 1 + text.matches("<?").count() && line.trim_end().ends_with("/>");
        if line.contains(end) || is_empty_root {
            self.junit = Some(text);
        } else {
            self.open = Some((text, end));
        }
    }

    fn add(&mut self, text: &str) {
        self.tail.push_str(text);
        if !self.tail.ends_with('\n') {
            self.tail.push('\n');
        }
        if self.tail.len() > MAX_LOG_BYTES {
            let mut from = self.tail.len() - MAX_LOG_BYTES;
            while !self.tail.is_char_boundary(from) {
                from += 1;
            }
            self.tail.drain(..from);
        }
    }
}

/// How the root element that begins here ends.
fn root_end(text: &str) -> Option<&'static str> {
    if text.starts_with("<testsuites") {
        Some("</testsuites>")
    } else if text.starts_with("<testsuite") {
        Some("</testsuite>")
    } else {
        None
    }
}

/// The counts of a JUnit file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub cases: usize,
    /// Cases with a failure or an error.
    pub failed: usize,
    pub skipped: usize,
    /// Name of the first failed case.
    pub first: Option<String>,
}

impl Summary {
    /// For people: `2 of 7 test cases failed: adds up`.
    pub fn explain(&self) -> String {
        let Self {
            cases, failed, first, ..
        } = self;
        let noun = if *cases == 1 { "test case" } else { "test cases" };
        match first {
            Some(first) => format!("{failed} of {cases} {noun} failed: {first}"),
            None => format!("{cases} {noun} passed"),
        }
    }
}

/// Counts the cases of a JUnit file. Comments and CDATA sections don't count.
pub fn summarize(junit: &str) -> Summary {
    let mut summary = Summary::default();
    let mut case = String::new();
    let mut has_failed = false;
    let mut rest = junit;
    while let Some(start) = rest.find('<') {
        rest = &rest[start..];
        let hidden = [("<!--", "-->"), ("<![CDATA[", "]]>")]
            .into_iter()
            .find(|(open, _)| rest.starts_with(open));
        if let Some((_, close)) = hidden {
            rest = rest.split_once(close).map_or("", |(_, after)| after);
            continue;
        }
        let end = tag_end(rest);
        let tag = &rest[1..end];
        match tag.split([' ', '\t', '\n', '/']).next().unwrap_or_default() {
            "testcase" => {
                summary.cases += 1;
                case = attribute(tag, "name");
                has_failed = false;
            }
            "failure" | "error" if !has_failed => {
                has_failed = true;
                summary.failed += 1;
                summary.first.get_or_insert_with(|| case.clone());
            }
            "skipped" => summary.skipped += 1,
            _ => {}
        }
        rest = &rest[end..];
    }

    summary
}

/// Position of a tag's closing `>`, ignoring those in quoted values.
fn tag_end(text: &str) -> usize {
    let mut quote = None;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (None, '>') => return i,
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    text.len()
}

fn attribute(tag: &str, name: &str) -> String {
    let after = tag.split_once(&format!(" {name}=")).map_or("", |(_, after)| after);
    let value = after
        .chars()
        .next()
        .and_then(|quote| after[quote.len_utf8()..].split(quote).next())
        .unwrap_or_default();
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    let value = entities
        .iter()
        .fold(value.to_owned(), |value, (entity, c)| value.replace(entity, c));
    value.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, Option<String>) {
        let mut log = Log::default();
        // In any chunks.
        for part in text.as_bytes().chunks(7) {
            log.push(part);
        }
        log.finish()
    }

    #[test]
    fn a_file_is_found_in_a_log_and_leaves_the_rest() {
        let file = "<testsuites>\n <testsuite name=\"a\">\n </testsuite>\n</testsuites>\n";
        let check = |text: &str, tail: &str, junit: Option<&str>| {
            assert_eq!(read(text), (tail.to_owned(), junit.map(str::to_owned)), "{text}");
        };
        check("one\ntwo", "one\ntwo\n", None);
        check("\u{1b}[31mred\u{7}\r\n", "[31mred\n", None);
        check(&format!("one\n{file}two\n"), "one\ntwo\n", Some(file));
        let declared = format!("<?xml version=\"1.0\"?>\n{file}");
        check(&format!("one\n{declared}"), "one\n", Some(&declared));
        let line = "<?xml version='1.0'?><testsuite><testcase name='x'/></testsuite>\n";
        check(line, "", Some(line));
        check("<testsuites/>\nend\n", "end\n", Some("<testsuites/>\n"));
        // The last one counts.
        check(&format!("<testsuite/>\n{file}"), "", Some(file));
        // Half a file is a log.
        check("<testsuites>\n<testsuite>\n", "<testsuites>\n<testsuite>\n", None);
        check(
            "<?xml version=\"1.0\"?>\n<html/>\n",
            "<?xml version=\"1.0\"?>\n<html/>\n",
            None,
        );
    }

    #[test]
    fn what_is_too_large_is_cut() {
        let (tail, junit) = read(&"0123456789\n".repeat(10_000));
        assert!(tail.len() <= MAX_LOG_BYTES && tail.ends_with("0123456789\n") && junit.is_none());
        let mut log = Log::default();
        log.push(format!("<testsuite>\n{}</testsuite>\n", "<testcase name='x'/>\n".repeat(10_000)).as_bytes());
        assert!(log.too_large && log.finish().1.is_none());
    }

    #[test]
    fn cases_are_counted_once_each() {
        let check = |text: &str, expected: &str| assert_eq!(summarize(text).explain(), expected);
        check(
            "<testsuite><testcase name='a'/><testcase name=\"b\"></testcase></testsuite>",
            "2 test cases passed",
        );
        check(
            "<testsuites><testsuite failures='1'><testcase classname='c' name='a > b &amp; c'><failure message=\"<x>\"/><error/>\
             </testcase><testcase name='d'/></testsuite></testsuites>",
            "1 of 2 test cases failed: a > b & c",
        );
        check(
            "<testsuite><testcase name='a'><!-- <failure/> --><system-out><![CDATA[<error/>]]></system-out></testcase>",
            "1 test case passed",
        );
        check("<testsuite", "0 test cases passed");
    }
}
