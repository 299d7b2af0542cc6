//! Slow tests: `xtask/slow.toml` lists those that are in every run, and those that only `campaign slow` runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{
    record::{self, rounded},
    rules::{self, Pattern},
};
use crate::{
    machine::{self, Machine},
    repository,
};

/// A test with more seconds or processor seconds than this, on an otherwise idle machine, must be listed.
const SLOW: f64 = 5.0;
/// Limit for the processor seconds of all tests that are listed for every run. Waiting takes none: other tests run
/// then.
const ALL: f64 = 120.0;
/// A test that takes more seconds than this beside others must be measured alone.
const MEASURED: f64 = 12.0;
/// Suffix of an id on the second engine.
const ENGINE: &str = " on PostgreSQL";

/// Content of `xtask/slow.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    every_run: Vec<EveryRun>,
    campaign: Vec<Campaign>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EveryRun {
    tests: Vec<Pattern>,
    #[expect(dead_code, reason = "for people")]
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Campaign {
    tests: Vec<Pattern>,
    #[expect(dead_code, reason = "for people")]
    shown_below: String,
    /// The behaviour that only the campaign shows.
    #[serde(default)]
    #[expect(dead_code, reason = "for people")]
    only_here: String,
}

/// Times of tests on an otherwise idle machine: `docs/performance/tests-alone.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Alone {
    machine: Machine,
    tests: BTreeMap<String, Time>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Time {
    pub seconds: f64,
    /// Processor time, including children that were waited for. Tests in a shared process each get a share.
    pub processor_seconds: f64,
}

impl Slow {
    pub fn load() -> Result<Self> {
        rules::read("slow.toml")
    }

    pub fn is_in_campaign(&self, id: &str) -> bool {
        self.campaign.iter().any(|group| rules::matches(&group.tests, id))
    }

    fn is_in_every_run(&self, id: &str) -> bool {
        self.every_run.iter().any(|group| rules::matches(&group.tests, id))
    }

    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let every_run = self.every_run.iter().flat_map(|group| &group.tests);
        every_run.chain(self.campaign.iter().flat_map(|group| &group.tests))
    }

    /// Tests that were slow in a run and were never measured alone.
    pub fn unmeasured<'a>(&self, beside: &'a BTreeMap<String, f64>) -> Vec<&'a str> {
        let alone = Alone::load().map(|alone| alone.tests).unwrap_or_default();
        let is_new = |id: &str| !alone.contains_key(id) && !self.is_in_campaign(id.trim_end_matches(ENGINE));
        let slow = beside.iter().filter(|(id, seconds)| **seconds > MEASURED && is_new(id));
        slow.map(|(id, _)| id.as_str()).collect()
    }

    /// All violations. `beside`: seconds by test, from a run of all tests.
    fn faults(&self, alone: &BTreeMap<String, Time>, beside: &BTreeMap<String, f64>) -> Vec<String> {
        let of_run = |id: &String| !self.is_in_campaign(id.trim_end_matches(ENGINE));
        let is_listed = |id: &str| self.is_in_every_run(id.trim_end_matches(ENGINE));
        let mut faults = Vec::new();
        for (id, seconds) in beside.iter().filter(|(id, _)| of_run(id)) {
            if *seconds > MEASURED && !alone.contains_key(id) {
                faults.push(format!("{id} is slow beside other tests and was not measured alone"));
            }
        }
        let mut sum = 0.0;
        for (
            id,
            Time {
                seconds,
                processor_seconds,
            },
        ) in alone.iter().filter(|(id, _)| of_run(id))
        {
            if *seconds <= SLOW && *processor_seconds <= SLOW {
                continue;
            }
            if is_listed(id) {
                sum += processor_seconds;
            } else {
                let what = format!("{seconds} s, {processor_seconds} s of a processor");
                faults.push(format!("{id} takes {what}, but is not listed"));
            }
        }
        if sum > ALL {
            let what = "the tests that are listed for every run take";
            faults.push(format!(
                "{what} {sum:.0} s of a processor together; the limit is {ALL} s"
            ));
        }
        faults
    }
}

/// Fails if a slow test is in every run without a listed reason, or if all of these take too long together.
pub fn check() -> Result<()> {
    let faults = Slow::load()?.faults(&Alone::load()?.tests, &record::expected_seconds());
    ensure!(
        faults.is_empty(),
        "xtask/slow.toml lists the tests that take over {SLOW} s; what they take is measured by \
         `cargo xtask test --only test --alone --record --tests NAME`:\n  {}",
        faults.join("\n  ")
    );
    Ok(())
}

impl Alone {
    fn path() -> Result<PathBuf> {
        Ok(repository::root()?.join("docs/performance/tests-alone.json"))
    }

    fn load() -> Result<Self> {
        let path = Self::path()?;
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))
    }

    /// Adds new times, and keeps earlier ones of tests that still exist.
    pub fn add(measured: &BTreeMap<String, Time>, all: &BTreeSet<String>) -> Result<()> {
        let mut tests = Self::load().map(|alone| alone.tests).unwrap_or_default();
        tests.retain(|id, _| all.contains(id.trim_end_matches(ENGINE)));
        tests.extend(measured.iter().map(|(id, time)| {
            let [seconds, processor_seconds] = [time.seconds, time.processor_seconds].map(rounded);
            (
                id.clone(),
                Time {
                    seconds,
                    processor_seconds,
                },
            )
        }));
        let mut text = serde_json::to_string_pretty(&Self {
            machine: machine::describe(),
            tests,
        })?;
        text.push('\n');
        let path = Self::path()?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_test_is_listed_and_those_of_every_run_have_a_sum() {
        let slow: Slow = toml::from_str(
            "every_run = [{tests = ['e2e/a'], reason = 'x'}]
            campaign = [{tests = ['e2e/slow::*'], shown_below = 'y'}]",
        )
        .unwrap();
        let alone = |tests: &[(&str, f64, f64)]| -> BTreeMap<String, Time> {
            let time = |(id, seconds, processor_seconds): &(&str, f64, f64)| {
                (
                    (*id).to_owned(),
                    Time {
                        seconds: *seconds,
                        processor_seconds: *processor_seconds,
                    },
                )
            };
            tests.iter().map(time).collect()
        };
        let beside = |tests: &[(&str, f64)]| -> BTreeMap<String, f64> {
            tests.iter().map(|(id, seconds)| ((*id).to_owned(), *seconds)).collect()
        };
        let listed = alone(&[
            ("e2e/a", 160.0, 60.0),
            ("e2e/b", 4.0, 4.0),
            ("e2e/slow::c", 500.0, 500.0),
        ]);
        let run = beside(&[("e2e/a", 170.0), ("e2e/b on PostgreSQL", 11.0), ("e2e/slow::d", 70.0)]);
        assert_eq!(slow.faults(&listed, &run), Vec::<String>::new());
        let unlisted = alone(&[("e2e/a", 5.0, 121.0), ("e2e/b on PostgreSQL", 5.1, 1.0)]);
        assert_eq!(
            slow.faults(&unlisted, &beside(&[("e2e/c", 13.0)])),
            [
                "e2e/c is slow beside other tests and was not measured alone",
                "e2e/b on PostgreSQL takes 5.1 s, 1 s of a processor, but is not listed",
                "the tests that are listed for every run take 121 s of a processor together; the limit is 120 s"
            ]
        );
    }
}
