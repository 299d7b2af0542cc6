//! Checks that each invariant of ARCHITECTURE.md names the tests that prove it, and that these tests exist.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

use crate::repository;

const DOCUMENT: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Invariants";

/// Fails with all invariants that name no test, and all named tests that don't exist.
pub fn check() -> Result<()> {
    let root = repository::root()?;
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("read {DOCUMENT}"))?;
    let faults = find_faults(&text, &test_names(&root)?)?;
    ensure!(faults.is_empty(), "{DOCUMENT}, {SECTION}:\n  {}", faults.join("\n  "));
    Ok(())
}

fn find_faults(document: &str, tests: &[String]) -> Result<Vec<String>> {
    let Some((_, section)) = document.split_once(&format!("\n{SECTION}\n")) else {
        bail!("{DOCUMENT} has no section {SECTION:?}: restore it, or correct xtask/src/invariants.rs")
    };
    let section = section.split("\n## ").next().unwrap_or_default();
    let invariants: Vec<&str> = section.split("\n- ").skip(1).collect();
    ensure!(!invariants.is_empty(), "{DOCUMENT}, {SECTION}: no list of invariants");
    let mut faults = Vec::new();
    for invariant in invariants {
        let named: Vec<&str> = invariant
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|code| is_test_name(code))
            .collect();
        if named.is_empty() {
            faults.push(format!(
                "no test is named for: {}",
                invariant.split_whitespace().collect::<Vec<_>>().join(" ")
            ));
        }
        let missing = named.into_iter().filter(|name| !tests.iter().any(|test| test == name));
        faults.extend(missing.map(|name| format!("no test is called {name}")));
    }
    Ok(faults)
}

/// Whether the code is the name of a test: at least two words, such as `a_word`.
fn is_test_name(code: &str) -> bool {
    code.contains('_')
        && code
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

/// All functions with an attribute `#[test]` or one like `#[tokio::test(…)]`, in tracked and new files.
fn test_names(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .current_dir(root)
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            "*.rs",
        ])
        .output()
        .context("run git ls-files")?;
    ensure!(listed.status.success(), "git ls-files: {}", listed.status);
    let mut names = Vec::new();
    for path in String::from_utf8(listed.stdout)?
        .split('\0')
        .filter(|path| !path.is_empty())
    {
        // The file was removed but is still in the index.
        let Ok(source) = fs::read_to_string(root.join(path)) else {
            continue;
        };
        names.extend(tests_in(&source));
    }
    Ok(names)
}

/// Names of the test functions in a source file.
const ON_BOTH_ENGINES: &str = "on_both_engines!(";

fn tests_in(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut marked, mut listed) = (false, false);
    for line in source.lines().map(str::trim) {
        let is_attribute = line.starts_with("#[") || line.starts_with("//");
        if line == ON_BOTH_ENGINES {
            listed = true;
        } else if listed {
            listed = line != ");";
            names.extend(line.strip_suffix(',').map(str::to_owned));
        } else if line.starts_with("#[test]") || (line.starts_with("#[") && line.contains("::test")) {
            marked = true;
        } else if let (true, Some((_, rest))) = (marked && !is_attribute, line.split_once("fn ")) {
            names.extend(rest.split(['(', '<']).next().map(str::to_owned));
            marked = false;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
        #[test]
        fn a_is_held() {}
        #[tokio::test(flavor = \"multi_thread\")]
        // Why.
        #[allow(clippy::unwrap_used)]
        async fn b_is_held() {}
        fn c_is_no_test() {}
        on_both_engines!(
            d_is_held,
        );
    ";

    #[track_caller]
    fn check(section: &str, expected: &[&str]) {
        let document = format!("# X\n\n## Invariants\n\nEach names its test.\n\n{section}\n\n## More\n- `z_z`\n");
        assert_eq!(find_faults(&document, &tests_in(SOURCE)).unwrap(), expected);
    }

    #[test]
    fn an_invariant_names_a_test_that_exists() {
        check(
            "- A survives `kill -9`:\n  `a_is_held`, `b_is_held`.\n- B: `d_is_held`.",
            &[],
        );
        check("- C: `c_is_no_test`, `a_is_held`.", &["no test is called c_is_no_test"]);
        check(
            "- D survives\n  `kill -9`.",
            &["no test is named for: D survives `kill -9`."],
        );
    }
}
