//! Rollouts in a simulated fleet: random histories of commits, failures, silence, restarts and orders. An oracle
//! records what really happened, independently of the code under test, and judges each decision.

#![allow(clippy::unwrap_used)]

mod agent;
mod events;
mod histories;
mod ledger;
mod oracle;
mod resting;
mod row;
mod world;

use std::{cell::RefCell, env};

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use serde_json::json;

use histories::Figures;

/// Variable with the number of histories in a campaign. Without it, the test's default counts.
const COUNT: &str = "FARWATER_ROLLOUT_HISTORIES";
const SEED: &str = "FARWATER_ROLLOUT_SEED";

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn whatever_happens_a_change_spreads_no_further_than_it_is_good_and_ends() {
    let (count, seed) = (number(COUNT, 2_000), number(SEED, 1));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: u32::try_from(count).unwrap(),
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let sum = RefCell::new((0_u64, Figures::default()));
    let result = runner.run(&events::histories(), |history| {
        let figures = histories::run(&history).map_err(proptest::test_runner::TestCaseError::fail)?;
        let (histories, sum) = &mut *sum.borrow_mut();
        *histories += 1;
        sum.add(figures);
        Ok(())
    });
    let faults: Vec<String> = match result {
        Ok(()) => Vec::new(),
        Err(TestError::Fail(reason, history)) => vec![format!("{reason}\n{history:#?}")],
        Err(TestError::Abort(reason)) => vec![reason.to_string()],
    };
    let (histories, figures) = sum.into_inner();
    let outcome = json!({
        "histories": histories,
        "looks": figures.looks,
        "looksByNumbers": figures.by_numbers,
        "released": figures.released,
        "retracted": figures.retracted,
        "haltedLooks": figures.halted,
        "longestEndTicks": figures.longest_end,
        "faults": faults,
    });
    println!("\nrollout-histories: {outcome}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
