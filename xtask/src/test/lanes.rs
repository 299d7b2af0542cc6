//! The compiled tests, two programs at a time: most of them wait for clocks and for other programs more than they compute. What acts in
//! the same servers takes turns, one program after another; the rest goes wherever there is room.

use std::{
    collections::VecDeque,
    fs,
    io::Write as _,
    num::NonZero,
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use farwater_testkit::postgres;

use super::{
    programs::TestProgram,
    results::{self, Counts},
};
use crate::{repository, step};

/// The programs of e2e that start a node, or a slow server, of their own.
const ON_A_NODE: [&str; 6] = ["bad_installs", "health", "hooks", "hostile", "hub_in_cluster", "node"];
/// The crate whose tests go through the hub's API and its controllers: once more on the other engine.
const ON_BOTH_ENGINES: &str = "hub";
/// Of its tests that run at the same time, for each processor: they wait for clocks and for other programs most of their time.
const WAITING_TESTS: usize = 2;
const AGENT: &str = "agent";
const E2E: &str = "e2e";

/// A program and what it is called.
type Step = (String, Command);

/// What is left to run.
struct Queue {
    /// Agents in the two planes that all tests share: one program at a time.
    planes: Mutex<VecDeque<Step>>,
    /// Of the machine's other half: one node is enough for it.
    node: Mutex<VecDeque<Step>>,
    anywhere: Mutex<VecDeque<Step>>,
}

/// Runs everything; `servers` tells a command where the servers are that all tests share. What was printed is in the logs.
pub fn run([log, log_beside]: [&Path; 2], servers: impl Fn(&mut Command)) -> Result<Counts> {
    let mut queue = Queue::of(TestProgram::all()?)?;
    for steps in [&mut queue.planes, &mut queue.node, &mut queue.anywhere] {
        for (_, command) in steps.get_mut().unwrap_or_else(PoisonError::into_inner) {
            command.env("CARGO_TERM_COLOR", "never");
            servers(command);
        }
    }
    thread::scope(|scope| {
        let beside = scope.spawn(|| {
            run_lane(|| queue.next(&queue.node), log_beside, |_, command| step::run_beside(command, log_beside))
        });
        let counts = run_lane(|| queue.next(&queue.planes), log, |title, command| step::run(title, command, log))?;
        step::wait("the last tests beside", log_beside, || beside.is_finished());
        let counts_beside = beside.join().map_err(|_| anyhow!("the tests beside ended early"))??;
        Ok(counts.plus(counts_beside))
    })
}

impl Queue {
    fn of(programs: Vec<TestProgram>) -> Result<Self> {
        let mut documents = repository::cargo()?;
        documents.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
        // The longest first: whoever comes last has a short one left.
        let (mut anywhere, mut short) = (VecDeque::new(), vec![("tests in the documentation".to_owned(), documents)]);
        let (mut planes, mut node, mut end_to_end) = (VecDeque::new(), VecDeque::new(), Vec::new());
        for program in programs {
            let (title, command) = (program.title(), command_of(&program));
            match &*program.folder {
                E2E if ON_A_NODE.contains(&&*program.name) => node.push_back((title, command)),
                E2E => end_to_end.push((title, command)),
                AGENT => planes.push_back((title, command)),
                ON_BOTH_ENGINES if program.is_black_box => {
                    let mut again = command_of(&program);
                    again.env(postgres::CHOICE, "postgres");
                    let again = (format!("{title} on PostgreSQL"), again);
                    anywhere.extend([(title, command), again]);
                }
                _ => short.push((title, command)),
            }
        }
        ensure!(node.len() == ON_A_NODE.len(), "{E2E} has not all of {ON_A_NODE:?}");
        planes.extend(end_to_end);
        anywhere.extend(short);
        let [planes, node, anywhere] = [planes, node, anywhere].map(Mutex::new);
        Ok(Self { planes, node, anywhere })
    }

    /// Its own first.
    fn next(&self, own: &Mutex<VecDeque<Step>>) -> Option<Step> {
        let take = |steps: &Mutex<VecDeque<Step>>| steps.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        take(own).or_else(|| take(&self.anywhere))
    }
}

fn command_of(program: &TestProgram) -> Command {
    let mut command = program.command();
    if program.is_black_box && program.folder == ON_BOTH_ENGINES {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        command.env("RUST_TEST_THREADS", (processors * WAITING_TESTS).to_string());
    }
    command
}

/// One after another, whatever becomes of each.
fn run_lane(next: impl Fn() -> Option<Step>, log: &Path, run: impl Fn(&str, Command) -> Result<()>) -> Result<Counts> {
    let mut all = Counts::default();
    while let Some((title, command)) = next() {
        let from = begin(&title, log)?;
        let result = run(&title, command);
        let counts = results::count(&step::read_from(log, from)?);
        all = all.plus(counts);
        if let Err(error) = result
            && counts.failed == 0
        {
            // It crashed or did not start, and prints no result of its own.
            eprintln!("    {error:#}");
            all = all.plus(Counts::ONE_FAILED);
        }
    }
    Ok(all)
}

/// The byte of the log at which the step's output begins.
fn begin(title: &str, log: &Path) -> Result<u64> {
    let open = fs::OpenOptions::new().create(true).append(true).open(log);
    let mut file = open.with_context(|| format!("open {}", log.display()))?;
    writeln!(file, "\n     Running {title}")?;
    Ok(file.metadata()?.len())
}
