//! Semver ranges as in Flux and Helm: the syntax and meaning of github.com/Masterminds/semver.
//!
//! `||` is or; a comma or a space is and; `= != > < >= <=` and `=> =<`; `~1.2`, `^1.2`, `1.2 - 1.4`; `x`, `X` and `*`
//! for any number. A pre-release matches only if one of the comparisons joined by and names a pre-release: `>=1.2.3-0
//! <2` includes `1.3.0-rc.1`, `>=1.2.3 <2` doesn't.

use std::{cmp::Ordering, fmt, str::FromStr};

use semver::{BuildMetadata, Prerelease, Version};

/// Most bytes of a range, because ranges are untrusted too.
const MAX_LENGTH: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    text: String,
    any_of: Vec<Vec<Comparison>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("semver range {text:?} is not one: {reason}")]
pub struct RangeError {
    text: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
struct Comparison {
    operator: Operator,
    version: Version,
    /// How many of major, minor and patch were written.
    written: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
    Tilde,
    Caret,
}

/// Longest first.
const OPERATORS: [(&str, Operator); 12] = [
    (">=", Operator::GreaterOrEqual),
    ("=>", Operator::GreaterOrEqual),
    ("<=", Operator::LessOrEqual),
    ("=<", Operator::LessOrEqual),
    ("!=", Operator::NotEqual),
    ("~>", Operator::Tilde),
    ("=", Operator::Equal),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("~", Operator::Tilde),
    ("^", Operator::Caret),
    ("", Operator::Equal),
];

impl Range {
    pub fn matches(&self, version: &Version) -> bool {
        self.any_of.iter().any(|all| {
            let speaks_of_it = version.pre.is_empty() || all.iter().any(|one| !one.version.pre.is_empty());
            speaks_of_it && all.iter().all(|one| one.matches(version))
        })
    }

    /// The highest of these versions in the range. Names that aren't versions are skipped; a leading `v` is ignored.
    pub fn choose<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
        names
            .into_iter()
            .filter_map(|name| Some((Version::parse(name.strip_prefix('v').unwrap_or(name)).ok()?, name)))
            .filter(|(version, _)| self.matches(version))
            // Two tags of one version differ in build metadata or in the `v`; this order makes the result stable.
            .max_by(|(a, a_name), (b, b_name)| a.cmp_precedence(b).then(a.build.cmp(&b.build)).then(a_name.cmp(b_name)))
            .map(|(_, name)| name)
    }

    /// The same for versions in the form of charts: `1.2` is 1.2.0.
    pub fn choose_loosely<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
        names
            .into_iter()
            .filter_map(|name| Some((read_loosely(name)?, name)))
            .filter(|(version, _)| self.matches(version))
            .max_by(|(a, a_name), (b, b_name)| a.cmp_precedence(b).then(a.build.cmp(&b.build)).then(a_name.cmp(b_name)))
            .map(|(_, name)| name)
    }

    /// Whether a version, in the form of charts, is in the range.
    pub fn contains(&self, version: &str) -> bool {
        read_loosely(version).is_some_and(|version| self.matches(&version))
    }
}

/// Missing numbers are 0, as in Masterminds' NewVersion.
fn read_loosely(text: &str) -> Option<Version> {
    let text = text.strip_prefix('v').unwrap_or(text);
    if let Ok(version) = Version::parse(text) {
        return Some(version);
    }
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let missing = match numbers.split('.').count() {
        1 => ".0.0",
        2 => ".0",
        _ => return None,
    };
    Version::parse(&format!("{numbers}{missing}{rest}")).ok()
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let fail = |reason| RangeError {
            text: text.chars().take(80).collect(),
            reason,
        };
        if text.len() > MAX_LENGTH {
            return Err(fail("longer than 256 characters"));
        }
        let any_of = text
            .split("||")
            .map(|part| parse_all(part).map_err(fail))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            text: text.to_owned(),
            any_of,
        })
    }
}

fn parse_all(part: &str) -> Result<Vec<Comparison>, &'static str> {
    let mut words = part.split([' ', ',']).filter(|w| !w.is_empty()).peekable();
    let mut all = Vec::new();
    while let Some(word) = words.next() {
        // An operator may be separated from its version.
        let (operator, rest) = split_operator(word);
        let version = match rest {
            "" => words.next().ok_or("an operator without a version")?,
            rest => rest,
        };
        if words.peek() == Some(&"-") {
            words.next();
            let upper = words.next().ok_or("a hyphen without an upper end")?;
            all.push(Comparison::parse(Operator::GreaterOrEqual, version)?);
            all.push(Comparison::parse(Operator::LessOrEqual, upper)?);
        } else {
            all.push(Comparison::parse(operator, version)?);
        }
    }
    if all.is_empty() {
        Err("nothing between the bars")
    } else {
        Ok(all)
    }
}

fn split_operator(word: &str) -> (Operator, &str) {
    OPERATORS
        .into_iter()
        .find_map(|(text, operator)| Some((operator, word.strip_prefix(text)?)))
        .unwrap_or((Operator::Equal, word))
}

impl Comparison {
    fn parse(operator: Operator, text: &str) -> Result<Self, &'static str> {
        let text = text.strip_prefix('v').unwrap_or(text);
        if text.ends_with(['-', '+']) {
            return Err("nothing after its dash or plus");
        }
        let (text, build) = text.split_once('+').map_or((text, ""), |(t, b)| (t, b));
        let (numbers, pre) = text.split_once('-').map_or((text, ""), |(n, p)| (n, p));
        let mut parsed = [0; 3];
        let mut written = 0;
        let mut wild = false;
        for (n, number) in numbers.split('.').enumerate() {
            let slot = parsed.get_mut(n).ok_or("a version of more than three numbers")?;
            if matches!(number, "x" | "X" | "*") {
                wild = true;
            } else if wild {
                return Err("a number after a wildcard");
            } else {
                *slot = number.parse().map_err(|_| "a part that is neither a number nor x")?;
                written += 1;
            }
        }
        let [major, minor, patch] = parsed;
        let pre = Prerelease::new(pre).map_err(|_| "a malformed pre-release")?;
        let build = BuildMetadata::new(build).map_err(|_| "malformed build metadata")?;
        Ok(Self {
            operator,
            version: Version {
                major,
                minor,
                patch,
                pre,
                build,
            },
            written,
        })
    }

    fn matches(&self, v: &Version) -> bool {
        let c = &self.version;
        let order = v.cmp_precedence(c);
        match self.operator {
            Operator::Equal if self.written < 3 => self.same_written(v) && order != Ordering::Less,
            Operator::Equal => order == Ordering::Equal,
            Operator::NotEqual if self.written == 2 => !self.same_written(v) || v.pre != c.pre,
            Operator::NotEqual if self.written < 2 => !self.same_written(v),
            Operator::NotEqual => order != Ordering::Equal,
            Operator::Greater if self.written < 3 => order == Ordering::Greater && !self.same_written(v),
            Operator::Greater => order == Ordering::Greater,
            Operator::Less => order == Ordering::Less,
            Operator::GreaterOrEqual => order != Ordering::Less,
            Operator::LessOrEqual if self.written < 3 => order != Ordering::Greater || self.same_written(v),
            Operator::LessOrEqual => order != Ordering::Greater,
            Operator::Tilde => {
                // A complete ~0.0.0 means anything, like ~*.
                let is_any = self.written == 0 || (self.written == 3 && (c.major, c.minor, c.patch) == (0, 0, 0));
                let same = v.major == c.major && (self.written < 2 || v.minor == c.minor);
                order != Ordering::Less && (is_any || same)
            }
            Operator::Caret => order != Ordering::Less && self.same_caret(v),
        }
    }

    /// Whether the written numbers are equal.
    fn same_written(&self, v: &Version) -> bool {
        let pairs = [
            (v.major, self.version.major),
            (v.minor, self.version.minor),
            (v.patch, self.version.patch),
        ];
        pairs.into_iter().take(usize::from(self.written)).all(|(a, b)| a == b)
    }

    /// The leftmost nonzero number must be equal.
    fn same_caret(&self, v: &Version) -> bool {
        let c = &self.version;
        if self.written == 0 {
            return true;
        }
        if c.major > 0 || self.written == 1 {
            return v.major == c.major;
        }
        if c.minor > 0 || self.written == 2 {
            return v.major == 0 && v.minor == c.minor;
        }
        v.major == 0 && v.minor == 0 && v.patch == c.patch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(range: &str, inside: &[&str], outside: &[&str]) {
        let range: Range = range.parse().unwrap();
        for version in inside {
            assert!(range.matches(&version.parse().unwrap()), "{version} in {range}");
        }
        for version in outside {
            assert!(!range.matches(&version.parse().unwrap()), "{version} not in {range}");
        }
    }

    #[test]
    fn ranges_mean_what_masterminds_means() {
        check("1.2.3", &["1.2.3", "1.2.3+b"], &["1.2.4", "1.2.3-rc.1"]);
        check("1.2", &["1.2.0", "1.2.9"], &["1.3.0", "1.1.9"]);
        check("1.2.x", &["1.2.0", "1.2.9"], &["1.3.0"]);
        check("*", &["0.0.0", "9.9.9"], &["1.0.0-rc.1"]);
        check("^1.2.3", &["1.2.3", "1.9.0"], &["1.2.2", "2.0.0", "1.3.0-rc.1"]);
        check("^0.2.3", &["0.2.3", "0.2.9"], &["0.3.0", "1.0.0"]);
        check("^0.0.3", &["0.0.3"], &["0.0.4"]);
        check("^0.0", &["0.0.9"], &["0.1.0"]);
        check("^0", &["0.9.0"], &["1.0.0"]);
        check("~1.2.3", &["1.2.3", "1.2.9"], &["1.3.0"]);
        check("~1", &["1.0.0", "1.9.9"], &["2.0.0"]);
        check("~> 1.2", &["1.2.5"], &["1.3.0"]);
        check(">=1.2.0 <2.0.0", &["1.2.0", "1.99.0"], &["2.0.0", "1.1.0"]);
        check(">= 1.2, < 3", &["2.9.9"], &["3.0.0"]);
        check("<1.0 || >=2.0.0", &["0.9.0", "2.1.0"], &["1.5.0"]);
        check("1.2 - 1.4.5", &["1.2.0", "1.4.5"], &["1.4.6", "1.1.9"]);
        check("1.2 - 1.4", &["1.4.9"], &["1.5.0"]);
        check(">1.2", &["1.3.0"], &["1.2.5"]);
        check("<=1.2", &["1.2.9", "0.1.0"], &["1.3.0"]);
        check("!=1.2.3", &["1.2.4"], &["1.2.3"]);
        check("!=1.2.x", &["1.3.0"], &["1.2.3"]);
    }

    #[test]
    fn prereleases_match_only_where_named() {
        check(">=1.2.3-0", &["1.2.3-rc.1", "1.3.0-alpha", "1.3.0"], &["1.2.2"]);
        check("^1.2.3-0", &["1.2.3-rc.1", "1.9.0-rc.1"], &["2.0.0-rc.1"]);
        check("1.0.0-rc.1", &["1.0.0-rc.1"], &["1.0.0", "1.0.0-rc.2"]);
        check(
            ">=1.0.0-0 <2 || >=3",
            &["1.0.0-rc.1", "2.0.0-rc.1", "1.5.0"],
            &["3.0.0-rc.1", "2.0.0"],
        );
    }

    #[test]
    fn the_highest_version_is_chosen_and_other_names_are_passed_over() {
        let range: Range = ">=1.0.0".parse().unwrap();
        let names = ["latest", "v1.10.0", "1.9.0", "v2.0.0-rc.1", "release-3", "01.0.0"];
        assert_eq!(range.choose(names), Some("v1.10.0"));
        assert_eq!(range.choose(["v0.1.0"]), None);
    }

    #[test]
    fn versions_of_charts_may_lack_numbers() {
        let range: Range = "~1.2".parse().unwrap();
        assert_eq!(
            range.choose_loosely(["1", "1.2", "v1.2.1", "1.2-rc.1", "1.3", "x", "1.2.3.4"]),
            Some("v1.2.1")
        );
        assert_eq!(range.choose(["1.2"]), None);
        assert!(
            range.contains("1.2") && range.contains("v1.2.9") && !range.contains("1.2.0-rc.1") && !range.contains("")
        );
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            ">=",
            "a.b.c",
            "1.2.3.4",
            "1.x.3",
            "||",
            "1 -",
            ">> 1",
            "1.2.3-",
            &"1".repeat(300),
        ] {
            assert!(text.parse::<Range>().is_err(), "{text}");
        }
    }
}
