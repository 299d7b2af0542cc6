//! Jobs of a run: a single test in its own process, or several tests in one process that share an expensive setup.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Result, ensure};
use farwater_testkit::postgres;

use super::{
    programs::TestProgram,
    rules::{Book, Engine, Needs},
};

/// The crate with black-box tests of the hub's API and controllers, which run on two database engines.
const HUB: &str = "hub";
/// Packages whose tests are grouped by module. All other tests are grouped by program.
const BY_MODULE: [&str; 2] = ["e2e", "agent"];
/// Variables for running tests by hand. They are removed here, because they would silently change the tests.
const BY_HAND: [&str; 5] = [
    postgres::CHOICE,
    "FARWATER_WRITE",
    "FARWATER_BIN_DIR",
    "JUDGE_COURSES",
    "FARWATER_ORDER_EVENTS",
];
/// Expected duration of a test without a recorded one.
const UNKNOWN_SECONDS: f64 = 2.0;

/// One process that runs tests.
#[derive(Clone)]
pub struct Job {
    /// Index of its program.
    pub program: usize,
    /// Names of the tests in the program. If `is_all`, all of its tests.
    pub tests: Vec<String>,
    is_all: bool,
    pub engine: Engine,
    pub needs: Needs,
    /// Duration in the last record.
    pub expected_seconds: f64,
}

impl Job {
    pub fn new(program: usize, tests: Vec<String>, engine: Engine, needs: Needs) -> Self {
        Self {
            program,
            tests,
            is_all: false,
            engine,
            needs,
            expected_seconds: 0.0,
        }
    }

    /// Name for people.
    pub fn title(&self, programs: &[TestProgram]) -> String {
        let program = &programs[self.program];
        let name = match &self.tests[..] {
            [one] => program.id_of(one),
            _ if self.is_all => program.title(),
            [first, ..] => program.id_of(module(first)),
            [] => program.title(),
        };
        name + self.suffix()
    }

    fn suffix(&self) -> &'static str {
        if self.engine == Engine::Postgres {
            " on PostgreSQL"
        } else {
            ""
        }
    }

    /// Id of one of its tests, with the engine.
    pub fn id(&self, programs: &[TestProgram], test: &str) -> String {
        programs[self.program].id_of(test) + self.suffix()
    }

    /// Group that its time is added to.
    pub fn group(&self, programs: &[TestProgram]) -> String {
        let program = &programs[self.program];
        match self.tests.first() {
            Some(test) if program.is_black_box && BY_MODULE.contains(&&*program.folder) => {
                format!("{} {}", program.folder, module(test))
            }
            _ if program.is_black_box => format!("{} {}", program.folder, program.name),
            _ => program.title(),
        }
    }

    /// A job for one of its tests alone.
    pub fn only(&self, test: &str) -> Self {
        let needs = Needs {
            whole: false,
            threads: 1,
            ..self.needs.clone()
        };
        Self {
            tests: vec![test.to_owned()],
            is_all: false,
            needs,
            ..self.clone()
        }
    }

    pub fn command(&self, programs: &[TestProgram]) -> Command {
        let mut command = programs[self.program].command();
        // The harness prints the time of each test only if unstable options are allowed.
        command
            .args(["-Zunstable-options", "--report-time", "--color", "never"])
            .env("RUSTC_BOOTSTRAP", "1");
        command.arg(format!("--test-threads={}", self.needs.threads));
        if !self.is_all {
            command.arg("--exact").args(&self.tests);
        }
        for variable in BY_HAND {
            command.env_remove(variable);
        }
        if self.engine == Engine::Postgres {
            command.env(postgres::CHOICE, "postgres");
        }
        command
    }
}

/// Module of a black-box test: the first part of its name. Empty: the program has no modules.
fn module(test: &str) -> &str {
    test.split_once("::").map_or("", |(module, _)| module)
}

/// The tests to run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Parts of ids. Empty: all tests.
    pub parts: Vec<String>,
    /// Only tests of the hub that run on one engine, each on the other engine.
    pub swapped_engines: bool,
    /// Only tests that took at least this long in the last record. One such test selects its whole process.
    pub at_least_seconds: f64,
    /// One process at a time.
    pub alone: bool,
    /// Only tests that `xtask/slow.toml` leaves to a campaign.
    pub slow: bool,
}

impl Selection {
    fn takes(&self, id: &str, book: &Book) -> bool {
        let is_named = self.parts.is_empty() || self.parts.iter().any(|part| id.contains(part.as_str()));
        is_named && book.slow.is_in_campaign(id) == self.slow
    }
}

/// Names of each program's tests.
pub fn tests(programs: &[TestProgram]) -> Result<Vec<Vec<String>>> {
    programs.iter().map(TestProgram::tests).collect()
}

pub fn ids<'a>(programs: &'a [TestProgram], tests: &'a [Vec<String>]) -> impl Iterator<Item = String> + 'a {
    let of_one = |(program, tests): (&'a TestProgram, &'a Vec<String>)| tests.iter().map(|test| program.id_of(test));
    programs.iter().zip(tests).flat_map(of_one)
}

/// All jobs, the longest first, so that the last one to end is short.
pub fn plan(
    programs: &[TestProgram],
    tests: &[Vec<String>],
    book: &Book,
    expected: &BTreeMap<String, f64>,
    selection: &Selection,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (index, (program, all)) in programs.iter().zip(tests).enumerate() {
        let chosen: Vec<&String> = all
            .iter()
            .filter(|test| selection.takes(&program.id_of(test), book))
            .collect();
        let is_of_hub = program.folder == HUB && program.is_black_box;
        if selection.swapped_engines && !is_of_hub || chosen.is_empty() {
            continue;
        }
        let job = |tests: Vec<String>, engine: Engine, needs: Needs| {
            let is_all = tests.len() == all.len();
            Job {
                is_all,
                ..Job::new(index, tests, engine, needs)
            }
        };
        if !program.is_black_box {
            let tests: Vec<String> = chosen.iter().map(|test| (*test).clone()).collect();
            let needs = Needs {
                whole: true,
                ..book.needs(&program.id_of(""))
            };
            jobs.push(job(tests, Engine::Sqlite, needs));
            continue;
        }
        let mut together: BTreeMap<&str, (Vec<String>, Needs)> = BTreeMap::new();
        for test in chosen {
            let id = program.id_of(test);
            let needs = book.needs(&id);
            if needs.whole {
                together
                    .entry(module(test))
                    .or_insert_with(|| (Vec::new(), needs))
                    .0
                    .push(test.clone());
                continue;
            }
            let engines = match is_of_hub {
                true if selection.slow => book.all_engines(&id),
                true => book.engines(&id, selection.swapped_engines),
                false => vec![Engine::Sqlite],
            };
            jobs.extend(engines.into_iter().map(|engine| {
                job(
                    vec![test.clone()],
                    engine,
                    Needs {
                        threads: 1,
                        ..needs.clone()
                    },
                )
            }));
        }
        jobs.extend(
            together
                .into_values()
                .map(|(tests, needs)| job(tests, Engine::Sqlite, needs)),
        );
    }
    let ids: Vec<String> = ids(programs, tests).collect();
    let unmatched = book.unmatched(&ids);
    ensure!(
        unmatched.is_empty(),
        "files in xtask name tests that don't exist: {}",
        unmatched.join(", ")
    );
    for job in &mut jobs {
        let seconds = job.tests.iter().map(|test| {
            let usual = if programs[job.program].is_black_box {
                UNKNOWN_SECONDS
            } else {
                0.0
            };
            expected.get(&job.id(programs, test)).copied().unwrap_or(usual)
        });
        job.expected_seconds = seconds.sum::<f64>() / job.needs.threads as f64;
    }
    jobs.retain(|job| {
        let seconds = |test: &String| expected.get(&job.id(programs, test)).copied().unwrap_or_default();
        job.tests.iter().any(|test| seconds(test) >= selection.at_least_seconds)
    });
    ensure!(!jobs.is_empty(), "the selection matches no test: {selection:?}");
    jobs.sort_by(|a, b| b.expected_seconds.total_cmp(&a.expected_seconds));
    Ok(jobs)
}
