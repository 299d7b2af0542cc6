//! Patterns of paths, with the rules of a line of `.gitignore`.
//!
//! `*` and `?` match text within one name, `**` any folders, `[a-z]` and `[!a-z]` one character, and `\` escapes the
//! next character. A pattern with a slash at its beginning or within it is relative to its folder. Any other pattern
//! matches names at any depth. A pattern with a slash at its end matches only folders.
//!
//! No library is used: Git's own is not available to agents, and small ones take unbounded time for hostile patterns.
//! Here, a path costs at most the product of both lengths for each of its names.

use std::fmt;

/// Maximum size of a pattern, in bytes.
pub const MAX_PATTERN: usize = 256;
/// Most patterns that one text with braces expands to: six pairs of alternatives. Each is compared with each path.
pub const MAX_ALTERNATIVES: usize = 64;

/// A parsed pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    steps: Vec<Step>,
    folders_only: bool,
}

/// Why a text is not a pattern. It follows the field's name: "is empty".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternProblem(pub &'static str);

const TOO_LONG: PatternProblem = PatternProblem("is over 256 bytes long");

impl fmt::Display for PatternProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// `**`: any number of folders.
    Folders,
    Name(Vec<Piece>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// `*`
    Text,
    /// `?`
    Any,
    One(char),
    /// `[…]`, or `[!…]` if `is_negated`.
    OneOf {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl PathPattern {
    pub fn parse(text: &str) -> Result<Self, PatternProblem> {
        if text.len() > MAX_PATTERN {
            return Err(TOO_LONG);
        }
        let (text, folders_only) = match text.strip_suffix('/') {
            Some(folder) => (folder, true),
            None => (text, false),
        };
        let (text, is_anchored) = match text.strip_prefix('/') {
            Some(rest) => (rest, true),
            None => (text, text.contains('/')),
        };
        if text.is_empty() {
            return Err(PatternProblem("names nothing"));
        }
        let mut steps = if is_anchored { Vec::new() } else { vec![Step::Folders] };
        for name in text.split('/') {
            steps.push(match name {
                "" | "." | ".." => {
                    return Err(PatternProblem(
                        "has an empty name, or one of dots alone, between slashes",
                    ));
                }
                // Any number of stars.
                stars if stars.len() > 1 && stars.bytes().all(|byte| byte == b'*') => Step::Folders,
                name => Step::Name(pieces(name)?),
            });
        }
        // Matches all below a folder, and not the folder itself.
        if steps.last() == Some(&Step::Folders) {
            steps.push(Step::Name(vec![Piece::Text]));
        }
        Ok(Self { steps, folders_only })
    }

    /// Whether the pattern matches exactly this path, given by its names from the pattern's folder on. The caller
    /// checks the folders around it.
    pub fn fits(&self, names: &[&str], is_folder: bool) -> bool {
        (is_folder || !self.folders_only)
            && fit(
                &self.steps,
                names,
                |step| matches!(step, Step::Folders),
                |step, name| match step {
                    Step::Folders => false,
                    Step::Name(pieces) => fits_name(pieces, name),
                },
            )
    }
}

/// Expands braces as shells and Argo CD do: `a/{b,c}.yaml` is `a/b.yaml` and `a/c.yaml`. A brace after a backslash is a
/// plain character. `parse` knows no braces, because lines of `.gitignore` have none.
pub fn alternatives(text: &str) -> Result<Vec<String>, PatternProblem> {
    if text.len() > MAX_PATTERN {
        return Err(TOO_LONG);
    }
    let mut found = vec![String::new()];
    // The alternatives inside the open brace, and the patterns before it.
    let mut open: Option<(Vec<String>, Vec<String>)> = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let mut plain = String::from(character);
        match (character, &mut open) {
            ('\\', _) => plain.extend(characters.next()),
            ('{', None) => {
                open = Some((vec![String::new()], std::mem::take(&mut found)));
                continue;
            }
            ('{', Some(_)) => return Err(PatternProblem("has braces within braces: write each pattern by itself")),
            (',', Some((inner, _))) => {
                inner.push(String::new());
                continue;
            }
            ('}', Some((inner, before))) => {
                if before.len() * inner.len() > MAX_ALTERNATIVES {
                    return Err(PatternProblem("stands for over 64 patterns: use fewer braces"));
                }
                found = before
                    .iter()
                    .flat_map(|before| inner.iter().map(move |one| format!("{before}{one}")))
                    .collect();
                open = None;
                continue;
            }
            ('}', None) => return Err(PatternProblem("has a } without its {; the character itself is \\}")),
            _ => {}
        }
        match &mut open {
            Some((inner, _)) => inner.last_mut().into_iter().for_each(|last| last.push_str(&plain)),
            None => found.iter_mut().for_each(|one| one.push_str(&plain)),
        }
    }
    if open.is_some() {
        return Err(PatternProblem("has a { without its }; the character itself is \\{"));
    }
    Ok(found)
}

fn fits_name(pieces: &[Piece], name: &str) -> bool {
    let characters: Vec<char> = name.chars().collect();
    fit(
        pieces,
        &characters,
        |piece| matches!(piece, Piece::Text),
        |piece, character| match piece {
            Piece::Text => false,
            Piece::Any => true,
            Piece::One(one) => one == character,
            Piece::OneOf { is_negated, ranges } => {
                ranges.iter().any(|(first, last)| (first..=last).contains(&character)) != *is_negated
            }
        },
    )
}

/// Whether a pattern, some of whose parts match any number of items, matches all items. Only the latest such part is
/// retried: the items before it match already, and a longer match there could not gain anything.
fn fit<P, I>(pattern: &[P], items: &[I], is_many: impl Fn(&P) -> bool, fits: impl Fn(&P, &I) -> bool) -> bool {
    let (mut at, mut next) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    loop {
        match pattern.get(at) {
            None if next == items.len() => return true,
            Some(part) if is_many(part) => {
                at += 1;
                again = Some((at, next));
                continue;
            }
            Some(part) if items.get(next).is_some_and(|item| fits(part, item)) => {
                (at, next) = (at + 1, next + 1);
                continue;
            }
            _ => {}
        }
        match again {
            Some((from, taken)) if taken < items.len() => {
                again = Some((from, taken + 1));
                (at, next) = (from, taken + 1);
            }
            _ => return false,
        }
    }
}

fn pieces(name: &str) -> Result<Vec<Piece>, PatternProblem> {
    let mut pieces = Vec::new();
    let mut characters = name.chars();
    while let Some(character) = characters.next() {
        pieces.push(match character {
            '*' if pieces.last() == Some(&Piece::Text) => continue,
            '*' => Piece::Text,
            '?' => Piece::Any,
            '\\' => Piece::One(characters.next().ok_or(PatternProblem("ends with a backslash"))?),
            '[' => one_of(&mut characters)?,
            other => Piece::One(other),
        });
    }
    Ok(pieces)
}

/// Parses the text after `[`.
fn one_of(characters: &mut std::str::Chars<'_>) -> Result<Piece, PatternProblem> {
    let unclosed = PatternProblem("has a [ without its ]");
    let rest = characters.as_str();
    let is_negated = rest.starts_with(['!', '^']);
    if is_negated {
        characters.next();
    }
    let mut ranges: Vec<(char, char)> = Vec::new();
    loop {
        // The first one is a character, even if it is a bracket.
        if characters.as_str().starts_with(']') && !ranges.is_empty() {
            characters.next();
            return Ok(Piece::OneOf { is_negated, ranges });
        }
        let first = next_of(characters).ok_or(unclosed)?;
        let mut ahead = characters.clone();
        let is_range = ahead.next() == Some('-') && !ahead.as_str().starts_with(']') && !ahead.as_str().is_empty();
        if is_range {
            *characters = ahead;
        }
        let last = if is_range {
            next_of(characters).ok_or(unclosed)?
        } else {
            first
        };
        ranges.push((first, last));
    }
}

fn next_of(characters: &mut std::str::Chars<'_>) -> Option<char> {
    match characters.next() {
        Some('\\') => characters.next(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, fitting: &[&str], others: &[&str]) {
        let parsed = PathPattern::parse(pattern).unwrap();
        for (paths, expected) in [(fitting, true), (others, false)] {
            for path in paths {
                let names: Vec<&str> = path.trim_end_matches('/').split('/').collect();
                assert_eq!(parsed.fits(&names, path.ends_with('/')), expected, "{pattern} {path}");
            }
        }
    }

    #[test]
    fn patterns_fit_as_those_of_gitignore() {
        check(
            "setup",
            &["setup", "a/setup", "setup/"],
            &["setup/a", "setups", "a.setup"],
        );
        check("setup/", &["setup/", "a/b/setup/"], &["setup", "a/setup"]);
        check("/setup", &["setup"], &["a/setup"]);
        check(
            "a/*.yaml",
            &["a/x.yaml", "a/.yaml"],
            &["a/b/x.yaml", "b/a/x.yaml", "a/x.yml"],
        );
        check("*.yaml", &["x.yaml", "a/b/x.yaml"], &["x.yaml.liquid"]);
        check(
            "**/test/*.yaml",
            &["test/a.yaml", "x/y/test/a.yaml"],
            &["test/x/a.yaml"],
        );
        check("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["b", "x/a/b"]);
        check("a/**", &["a/b", "a/b/c"], &["a", "b"]);
        check("**", &["a", "a/b"], &[]);
        check("a?c", &["abc", "aäc"], &["ac", "abbc", "a/c"]);
        check("[a-c]x", &["ax", "cx"], &["dx", "x", "-x"]);
        check("[!a-c]x", &["dx"], &["ax"]);
        check("[]x-]", &["]", "x", "-"], &["a"]);
        check(r"\*\[a", &["*[a"], &["xx[a"]);
        check("*a*b*", &["ab", "xaxbx", "aab"], &["ba", "a"]);
        check("*/*/c", &["a/b/c"], &["a/c", "a/b/d/c"]);
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        let check = |text: &str, why: &str| assert_eq!(PathPattern::parse(text).unwrap_err().0, why, "{text}");
        for nothing in ["", "/"] {
            check(nothing, "names nothing");
        }
        for dots in ["../a", "a//b", "./a", "a/.."] {
            check(dots, "has an empty name, or one of dots alone, between slashes");
        }
        check("[a", "has a [ without its ]");
        check("[]", "has a [ without its ]");
        check("a\\", "ends with a backslash");
        check(&"a".repeat(257), "is over 256 bytes long");
    }

    #[test]
    fn braces_stand_for_one_pattern_each() {
        let check = |text: &str, expected: &[&str]| assert_eq!(alternatives(text).unwrap(), expected, "{text}");
        check("a/*.yaml", &["a/*.yaml"]);
        check("{config.yaml,env-*/*}", &["config.yaml", "env-*/*"]);
        check(
            "a/{b,c}{,-d}.yaml",
            &["a/b.yaml", "a/b-d.yaml", "a/c.yaml", "a/c-d.yaml"],
        );
        check("a,{b}", &["a,b"]);
        check(r"\{a,b\}{c\,d,e}", &[r"\{a,b\}c\,d", r"\{a,b\}e"]);
        assert_eq!(alternatives(&"{a,b}".repeat(6)).unwrap().len(), MAX_ALTERNATIVES);
        let refused = |text: &str, why: &str| {
            let said = alternatives(text).unwrap_err().0;
            assert!(said.contains(why), "{text}: {said}");
        };
        refused("{a", "has a { without its }");
        refused("a}", "has a } without its {");
        refused("{a,{b,c}}", "has braces within braces");
        refused(&"{a,b}".repeat(7), "stands for over 64 patterns");
        refused(&"{a,b}".repeat(60), "is over 256 bytes long");
    }

    #[test]
    fn a_hostile_pattern_ends() {
        let pattern = PathPattern::parse(&format!("{}b", "*a".repeat(127))).unwrap();
        assert!(!pattern.fits(&["a".repeat(255).as_str(); 64], false));
        let deep = PathPattern::parse(&format!("{}b", "**/*a*/".repeat(36))).unwrap();
        assert!(!deep.fits(&["a".repeat(15).as_str(); 64], false));
    }
}
