//! The compiled tests in two lanes side by side: those with a real node wait for it most of their time and take long, the others
//! go on meanwhile. Within a lane one program runs at a time, and what measures time comes when the node's lane has ended.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context as _, Result, anyhow};
use farwater_testkit::postgres;

use super::{
    programs::TestProgram,
    results::{self, Counts},
};
use crate::{repository, step};

/// The programs of e2e that start a kubelet.
const OF_A_NODE: [&str; 2] = ["hub_in_cluster", "node"];
/// The crate whose tests go through the hub's API and its controllers: once more on the other engine.
const ON_BOTH_ENGINES: &str = "hub";
const E2E: &str = "e2e";

/// One program after another, and what they print.
struct Lane {
    steps: Vec<(String, Command)>,
    log: PathBuf,
}

/// Runs everything; `servers` tells a command where the servers are that all tests share. What was printed is in `logs`.
pub fn run(logs: [&Path; 2], servers: impl Fn(&mut Command)) -> Result<Counts> {
    let mut lanes = share_out(TestProgram::all()?)?;
    for (_, command) in lanes.iter_mut().flatten() {
        command.env("CARGO_TERM_COLOR", "never");
        servers(command);
    }
    let [main, node] = lanes;
    let main = Lane { steps: main, log: logs[0].to_owned() };
    let node = Lane { steps: node, log: logs[1].to_owned() };
    let log = node.log.clone();
    // The log of this run only.
    let _ = std::fs::remove_file(&log);
    thread::scope(|scope| {
        let node = scope.spawn(|| node.run(step::run_beside));
        let counts = main.run(step::run)?;
        step::wait("tests with a real node", &log, || node.is_finished());
        let of_the_node = node.join().map_err(|_| anyhow!("the lane of the real node ended early"))??;
        Ok(counts.plus(of_the_node))
    })
}

/// The steps of the main lane and of the node's.
fn share_out(programs: Vec<TestProgram>) -> Result<[Vec<(String, Command)>; 2]> {
    let mut documents = repository::cargo()?;
    documents.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
    let mut main = vec![("tests in the documentation".to_owned(), documents)];
    let (mut node, mut end_to_end) = (Vec::new(), Vec::new());
    for program in programs {
        let step = (program.title(), program.command());
        match &*program.folder {
            E2E if OF_A_NODE.contains(&&*program.name) => node.push(step),
            E2E => end_to_end.push(step),
            ON_BOTH_ENGINES if program.is_black_box => {
                let mut again = program.command();
                again.env(postgres::CHOICE, "postgres");
                main.extend([step, (format!("{} on PostgreSQL", program.title()), again)]);
            }
            _ => main.push(step),
        }
    }
    main.append(&mut end_to_end);
    Ok([main, node])
}

impl Lane {
    fn run(self, run: impl Fn(&str, Command, &Path) -> Result<()>) -> Result<Counts> {
        let mut all = Counts::default();
        let Self { steps, log } = self;
        for (title, command) in steps {
            let from = begin(&title, &log)?;
            let result = run(&title, command, &log);
            let counts = results::count(&step::read_from(&log, from)?);
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
}

/// The byte of the log at which the step's output begins.
fn begin(title: &str, log: &Path) -> Result<u64> {
    let open = std::fs::OpenOptions::new().create(true).append(true).open(log);
    let mut file = open.with_context(|| format!("open {}", log.display()))?;
    writeln!(file, "\n     Running {title}")?;
    Ok(file.metadata()?.len())
}
