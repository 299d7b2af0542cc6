//! Rules for tests: their load, their second chance, their engines, and the tests that only a campaign runs. They are
//! in `xtask/tests.toml`, `xtask/shaky.toml`, `xtask/both-engines.toml` and `xtask/slow.toml`.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use jiff::civil::Date;
use serde::{Deserialize, de::DeserializeOwned};

use super::slow::Slow;
use crate::repository;

/// The id of a test, `folder/program::path::of::the_test`. With `*` at the end, all ids with this prefix.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

/// Whether one of the patterns matches.
pub fn matches(patterns: &[Pattern], id: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(id))
}

impl Pattern {
    pub fn matches(&self, id: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => id.starts_with(start),
            None => id == self.0,
        }
    }
}

/// How the matching tests are run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    tests: Vec<Pattern>,
    needs: Needs,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// Number of shared planes that the process uses exclusively: 0, 1 or 2.
    pub planes: usize,
    /// Average number of busy processors.
    pub load: f64,
    /// Whether the tests of a module run in one process, because they share an expensive setup.
    pub whole: bool,
    /// Number of tests that run at the same time in one process.
    pub threads: usize,
    /// Whether the process starts a node. Only one such process runs at a time.
    pub node: bool,
    /// Whether the process runs alone, at the end.
    pub quiet: bool,
}

impl Default for Needs {
    fn default() -> Self {
        Self {
            planes: 0,
            load: 0.5,
            whole: false,
            threads: 2,
            node: false,
            quiet: false,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    rule: Vec<Rule>,
}

/// A test that is known to fail sometimes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    test: Pattern,
    /// Last day of this exception. After it, the run fails until the test is fixed and the entry removed.
    until: Date,
    #[expect(dead_code, reason = "for people")]
    reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Shaky {
    known: Vec<Known>,
    no_second_chance: Vec<Pattern>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Engines {
    /// Tests that run on both engines.
    both: Vec<Pattern>,
    /// Tests that run only on the embedded engine, because they open a database themselves or need none.
    sqlite: Vec<Pattern>,
}

/// Content of all rule files.
pub struct Book {
    rules: Vec<Rule>,
    shaky: Shaky,
    engines: Engines,
    pub slow: Slow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    Postgres,
}

impl Book {
    pub fn load() -> Result<Self> {
        let book = Self {
            rules: read::<Rules>("tests.toml")?.rule,
            shaky: read("shaky.toml")?,
            engines: read("both-engines.toml")?,
            slow: Slow::load()?,
        };
        ensure!(
            book.rules.iter().all(|rule| rule.needs.planes <= 2),
            "tests.toml: a test can use at most two planes"
        );
        Ok(book)
    }

    /// The first rule that matches the test.
    pub fn needs(&self, id: &str) -> Needs {
        let rule = self.rules.iter().find(|rule| matches(&rule.tests, id));
        rule.map(|rule| rule.needs.clone()).unwrap_or_default()
    }

    /// Patterns that match no test. Without this check a renamed test would silently lose its rule.
    pub fn unmatched(&self, ids: &[String]) -> Vec<&str> {
        let rules = self.rules.iter().flat_map(|rule| &rule.tests);
        let shaky = self
            .shaky
            .known
            .iter()
            .map(|known| &known.test)
            .chain(&self.shaky.no_second_chance);
        let engines = self.engines.both.iter().chain(&self.engines.sqlite);
        let patterns = rules.chain(shaky).chain(engines).chain(self.slow.patterns());
        patterns
            .filter(|pattern| !ids.iter().any(|id| pattern.matches(id)))
            .map(|pattern| &*pattern.0)
            .collect()
    }

    pub fn has_second_chance(&self, id: &str) -> bool {
        !matches(&self.shaky.no_second_chance, id)
    }

    /// Known shaky tests whose exception has expired: the pattern and the last day.
    pub fn overdue(&self, today: Date) -> impl Iterator<Item = (&str, Date)> {
        let over = self.shaky.known.iter().filter(move |known| known.until < today);
        over.map(|known| (&*known.test.0, known.until))
    }

    /// Engines for a test of the hub: both, or one that depends on its name and is therefore the same in every run.
    pub fn engines(&self, id: &str, swapped: bool) -> Vec<Engine> {
        match (matches(&self.engines.sqlite, id), matches(&self.engines.both, id)) {
            (true, _) if swapped => Vec::new(),
            (true, _) => vec![Engine::Sqlite],
            (_, true) if swapped => Vec::new(),
            (_, true) => vec![Engine::Sqlite, Engine::Postgres],
            _ if is_odd(id) != swapped => vec![Engine::Postgres],
            _ => vec![Engine::Sqlite],
        }
    }
}

impl Book {
    /// All engines that a test of the hub can use. Slow tests use all of them, because only a campaign runs them.
    pub fn all_engines(&self, id: &str) -> Vec<Engine> {
        if matches(&self.engines.sqlite, id) {
            vec![Engine::Sqlite]
        } else {
            vec![Engine::Sqlite, Engine::Postgres]
        }
    }
}

/// True for half of all names: the last bit of the folded FNV-1a hash.
fn is_odd(name: &str) -> bool {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).count_ones() % 2 == 1
}

/// Reads a file of the folder `xtask`.
pub fn read<T: DeserializeOwned>(name: &str) -> Result<T> {
    let path = repository::root()?.join("xtask").join(name);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(rules: &str, shaky: &str, engines: &str) -> Book {
        let rules: Rules = toml::from_str(rules).unwrap();
        let (shaky, engines) = (toml::from_str(shaky).unwrap(), toml::from_str(engines).unwrap());
        Book {
            rules: rules.rule,
            shaky,
            engines,
            slow: Slow::default(),
        }
    }

    #[test]
    fn the_first_rule_that_names_a_test_counts_and_others_take_the_usual() {
        let rules = "
            [[rule]]
            tests = ['e2e/e2e::first_light::*']
            needs = {planes = 2}
            [[rule]]
            tests = ['e2e/e2e::*']
            needs = {planes = 1, load = 0.7}";
        let book = book(rules, "", "");
        let planes = ["e2e/e2e::first_light::a", "e2e/e2e::prune::a", "hub/api::a"].map(|id| book.needs(id).planes);
        assert_eq!(planes, [2, 1, 0]);
        assert_eq!(
            book.unmatched(&["e2e/e2e::prune::a".to_owned()]),
            ["e2e/e2e::first_light::*"]
        );
        assert!(toml::from_str::<Rules>("[[rule]]\ntests = []\nneeds = {planets = 1}").is_err());
    }

    #[test]
    fn deletions_get_no_second_chance_and_a_known_one_has_a_day_to_be_mended_by() {
        let shaky = "
            no_second_chance = ['e2e/e2e::prune::*']
            known = [{test = 'hub/api::a', until = '2026-03-01', reason = 'x'}]";
        let book = book("rule = []", shaky, "");
        assert!(!book.has_second_chance("e2e/e2e::prune::a") && book.has_second_chance("hub/api::a"));
        let day = |text: &str| text.parse::<Date>().unwrap();
        assert_eq!(book.overdue(day("2026-03-01")).count(), 0);
        assert!(book.overdue(day("2026-03-02")).eq([("hub/api::a", day("2026-03-01"))]));
    }

    #[test]
    fn a_test_of_the_hub_runs_on_one_engine_and_the_campaign_on_the_other() {
        let engines = "both = ['hub/api::watches::*']\nsqlite = ['hub/api::file']";
        let book = book("rule = []", "", engines);
        for id in ["hub/api::a", "hub/api::b", "hub/delivery::c"] {
            let (usual, swapped) = (book.engines(id, false), book.engines(id, true));
            assert!(usual.len() == 1 && swapped.len() == 1 && usual != swapped, "{id}");
        }
        assert_eq!(book.engines("hub/api::watches::a", false).len(), 2);
        assert!(book.engines("hub/api::watches::a", true).is_empty() && book.engines("hub/api::file", true).is_empty());
        let odd = (0..1000).filter(|n| is_odd(&format!("hub/api::test_{n}"))).count();
        assert!((400..600).contains(&odd), "{odd}");
    }
}
