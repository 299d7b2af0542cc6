//! The compiled tests in two lanes side by side: those with a real node, a slow server or a fleet wait for it most of their time and take
//! long, the others go on meanwhile. Within a lane one program runs at a time. What starts the most programs of its own comes last: by then
//! the other lane has mostly ended.

use std::{fs, io::Write as _, num::NonZero, path::Path, process::Command, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use farwater_testkit::postgres;

use super::{
    programs::TestProgram,
    results::{self, Counts},
};
use crate::{repository, step};

/// The programs of e2e that start a kubelet, one whose API server is slow, and one whose rollouts soak.
const OF_THE_NODES_LANE: [&str; 7] = ["bad_installs", "fleet", "health", "hooks", "hostile", "hub_in_cluster", "node"];
/// The crate whose tests go through the hub's API and its controllers: once more on the other engine.
const ON_BOTH_ENGINES: &str = "hub";
/// Of its tests that run at the same time, for each processor: they wait for clocks and for other programs most of their time.
const WAITING_TESTS: usize = 2;
const E2E: &str = "e2e";

/// A program and what it is called.
type Step = (String, Command);

/// Runs everything; `servers` tells a command where the servers are that all tests share. What was printed is in the logs.
pub fn run(log: &Path, log_of_the_node: &Path, servers: impl Fn(&mut Command)) -> Result<Counts> {
    let mut lanes = share_out(TestProgram::all()?)?;
    for (_, command) in lanes.iter_mut().flatten() {
        command.env("CARGO_TERM_COLOR", "never");
        servers(command);
    }
    let [main, node] = lanes;
    thread::scope(|scope| {
        let node =
            scope.spawn(|| run_lane(node, log_of_the_node, |_, command| step::run_beside(command, log_of_the_node)));
        let counts = run_lane(main, log, |title, command| step::run(title, command, log))?;
        step::wait("tests with a real node", log_of_the_node, || node.is_finished());
        let of_the_node = node.join().map_err(|_| anyhow!("the lane of the real node ended early"))??;
        Ok(counts.plus(of_the_node))
    })
}

/// The steps of the main lane and of the node's.
fn share_out(programs: Vec<TestProgram>) -> Result<[Vec<Step>; 2]> {
    let mut documents = repository::cargo()?;
    documents.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
    let mut main = vec![("tests in the documentation".to_owned(), documents)];
    let (mut node, mut end_to_end) = (Vec::new(), Vec::new());
    for program in programs {
        let (title, command) = (program.title(), command_of(&program));
        match &*program.folder {
            E2E if OF_THE_NODES_LANE.contains(&&*program.name) => node.push((title, command)),
            E2E => end_to_end.push((title, command)),
            ON_BOTH_ENGINES if program.is_black_box => {
                let mut again = command_of(&program);
                again.env(postgres::CHOICE, "postgres");
                let again = (format!("{title} on PostgreSQL"), again);
                main.extend([(title, command), again]);
            }
            _ => main.push((title, command)),
        }
    }
    ensure!(node.len() == OF_THE_NODES_LANE.len(), "{E2E} has not all of {OF_THE_NODES_LANE:?}");
    main.append(&mut end_to_end);
    Ok([main, node])
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
fn run_lane(steps: Vec<Step>, log: &Path, run: impl Fn(&str, Command) -> Result<()>) -> Result<Counts> {
    let mut all = Counts::default();
    for (title, command) in steps {
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
