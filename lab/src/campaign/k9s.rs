//! k9s in a terminal against a hub: the hub's tests that need k9s, which takes minutes to build.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::Tools;
use serde_json::json;
use xtask::repository;

use super::Round;

const TESTS: [&str; 2] = [
    "k9s::k9s_shows_follows_and_deletes_our_kinds",
    "k9s::k9s_shows_a_reader_of_one_namespace_what_it_may_read",
];

/// Counts tests.
pub fn round(seed: u64) -> Result<Round> {
    // The tests also need kubectl and the renderer.
    Tools::build_all()?;
    Tools::build_k9s()?;
    let mut cargo = repository::cargo()?;
    cargo
        .args(["test", "--locked", "-p", "farwater-hub", "--test", "api", "--"])
        .args(["--ignored", "--exact"])
        .args(TESTS)
        .stderr(Stdio::inherit());
    let output = cargo.output().context("run cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let ended = |test: &&str, how: &str| text.lines().any(|line| line == format!("test {test} ... {how}"));
    let failures: Vec<_> = TESTS
        .iter()
        .filter(|test| ended(test, "FAILED"))
        .map(|test| format!("{test} failed"))
        .collect();
    if !failures.is_empty() {
        eprintln!("{text}");
    }
    let passed = TESTS.iter().filter(|test| ended(test, "ok")).count();
    ensure!(passed + failures.len() == TESTS.len(), "not all tests ran:\n{text}");
    Ok(Round {
        count: TESTS.len() as u64,
        failures,
        figures: json!({"seed": seed, "passed": passed}),
    })
}
