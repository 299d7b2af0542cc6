//! Checks that tests wait for conditions, not for times. `xtask/waits.toml` lists each place where a test sleeps or
//! compares an elapsed time, with the reason.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::repository;

const LIST: &str = "xtask/waits.toml";
/// Text that a line of a test must not contain.
const TIMES: [&str; 2] = ["sleep(", "elapsed() <"];
/// Name of the limit for waits on a condition. Lines with it are allowed.
const BOUND: &str = "PATIENCE";
/// Longest allowed pause between two checks of a condition, in milliseconds.
const LOOK: u64 = 100;
/// Folders with only tests and code for tests. In other files, the tests follow [`UNIT_TESTS`].
const TEST_FOLDERS: [&str; 2] = ["/tests/", "tests/e2e/"];
const UNIT_TESTS: [&str; 2] = ["#[cfg(test)]", "mod tests {"];
/// Tests with this attribute use a simulated clock, so a sleep takes no time.
const TURNED_CLOCK: &str = "start_paused = true";
/// The code that waits for conditions. It must sleep between two checks.
const WAITS_FOR_CONDITIONS: &str = "crates/testkit/";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    wait: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    file: String,
    places: usize,
    #[expect(dead_code, reason = "for people")]
    reason: String,
}

/// Fails with all files that have more or fewer such places than the list says.
pub fn check() -> Result<()> {
    let root = repository::root()?;
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("read {LIST}"))?;
    let list: List = toml::from_str(&text).with_context(|| format!("read {LIST}"))?;
    let output = Command::new("git")
        .current_dir(&root)
        .args(["ls-files", "-z", "*.rs"])
        .output()
        .context("run git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let mut found = BTreeMap::new();
    for file in String::from_utf8(output.stdout)?
        .split('\0')
        .filter(|file| !file.is_empty())
    {
        // The file was removed but is still in the index.
        let Ok(source) = fs::read_to_string(root.join(file)) else {
            continue;
        };
        found.insert(file.to_owned(), places(file, &source));
    }
    let faults = faults(&list.wait, found);
    ensure!(
        faults.is_empty(),
        "tests must wait for conditions (testkit::wait_for); list exceptions in {LIST} with a reason:\n  {}",
        faults.join("\n  ")
    );
    Ok(())
}

/// Line numbers of the places in a file.
fn places(file: &str, source: &str) -> Vec<usize> {
    if file.starts_with(WAITS_FOR_CONDITIONS) || file.starts_with("xtask/src/waits.rs") {
        return Vec::new();
    }
    let is_test = TEST_FOLDERS.iter().any(|folder| file.contains(folder))
        || file.ends_with("/tests.rs")
        || file.ends_with("_tests.rs");
    let lines: Vec<&str> = source.lines().collect();
    let first = match lines.windows(2).position(|pair| pair == UNIT_TESTS) {
        _ if is_test => 0,
        Some(line) => line,
        None => return Vec::new(),
    };
    let is_turned = source.contains(TURNED_CLOCK);
    let lines = lines
        .iter()
        .enumerate()
        .skip(first)
        .filter(|(_, line)| !line.trim_start().starts_with("//"));
    let lines = lines.filter(|(_, line)| !(is_turned && line.contains("tokio::time::")));
    lines
        .filter(|(_, line)| waits_for_a_time(line))
        .map(|(number, _)| number + 1)
        .collect()
}

fn waits_for_a_time(line: &str) -> bool {
    let pause = line
        .split_once("sleep(")
        .and_then(|(_, rest)| rest.split_once("from_millis(")?.1.split_once(')'));
    let is_look = pause
        .and_then(|(millis, _)| millis.parse().ok())
        .is_some_and(|millis: u64| millis <= LOOK);
    TIMES.iter().any(|time| line.contains(time)) && !is_look && !line.contains(BOUND)
}

fn faults(list: &[Listed], mut found: BTreeMap<String, Vec<usize>>) -> Vec<String> {
    let mut faults = Vec::new();
    for Listed { file, places, .. } in list {
        let lines = found.remove(file).unwrap_or_default();
        if lines.len() != *places {
            faults.push(format!(
                "{file}: {} places, but {places} are listed: lines {lines:?}",
                lines.len()
            ));
        }
    }
    let unlisted = found.into_iter().filter(|(_, lines)| !lines.is_empty());
    faults.extend(unlisted.map(|(file, lines)| format!("{file}: lines {lines:?}")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_waits_for_a_time_is_listed_or_a_fault() {
        assert!(
            !waits_for_a_time("sleep(Duration::from_millis(20)).await;")
                && waits_for_a_time("sleep(Duration::from_millis(200))")
        );
        assert!(!waits_for_a_time("assert!(start.elapsed() < PATIENCE)"));
        let source = "fn a() { sleep(x) }\n#[cfg(test)]\nmod tests {\n  // sleep(x)\n  sleep(x);\n  assert!(start.elapsed() < LIMIT);\n}";
        assert_eq!(places("crates/hub/src/a.rs", source), [5, 6]);
        assert_eq!(places("crates/hub/tests/api/a.rs", source), [1, 5, 6]);
        assert_eq!(
            places("crates/hub/src/a.rs", "fn a() { sleep(x) }"),
            Vec::<usize>::new()
        );
        let found = || BTreeMap::from([("a.rs".to_owned(), vec![5, 6]), ("b.rs".to_owned(), vec![])]);
        let listed = |places| Listed {
            file: "a.rs".to_owned(),
            places,
            reason: String::new(),
        };
        assert_eq!(faults(&[listed(2)], found()), Vec::<String>::new());
        assert_eq!(
            faults(&[listed(1)], found()),
            ["a.rs: 2 places, but 1 are listed: lines [5, 6]"]
        );
        assert_eq!(faults(&[], found()), ["a.rs: lines [5, 6]"]);
    }
}
