//! The phases of `cargo xtask test`, in the order in which they run.

use std::{fs, path::Path, process::Command, time::SystemTime};

use anyhow::{Context as _, Result};
use farwater_testkit::{Plane, Postgres, Tools, faketime, kube::plane_variable, packages, postgres, prometheus, squid};

use super::{
    Run, lanes,
    results::{self, Counts},
};
use crate::{codegen, deny, invariants, repository, step};

pub struct Phase {
    pub name: &'static str,
    pub about: &'static str,
    /// Without it the later ones can only fail too.
    pub needed_by_the_rest: bool,
    /// None: there is nothing to do in this clone.
    pub run: fn(&Run) -> Result<Option<Counts>>,
}

pub const PHASES: &[Phase] = &[
    Phase {
        name: "tools",
        about: "Kubernetes, kwok and kubectl from their Go modules, PostgreSQL, Prometheus, Chromium, containerd, squid",
        needed_by_the_rest: true,
        run: tools,
    },
    Phase { name: "web", about: "the page: npm ci, build, unit tests", needed_by_the_rest: false, run: web },
    Phase { name: "fmt", about: "cargo fmt --check", needed_by_the_rest: false, run: fmt },
    Phase { name: "clippy", about: "cargo clippy, warnings are errors", needed_by_the_rest: false, run: clippy },
    Phase {
        name: "deny",
        about: "banned crates, licences, what the agent links, advisories where cargo-deny is installed",
        needed_by_the_rest: false,
        run: denied,
    },
    Phase {
        name: "generated",
        about: "checked-in generated files are fresh, the tests of ARCHITECTURE.md's invariants exist",
        needed_by_the_rest: false,
        run: generated,
    },
    Phase { name: "build", about: "programs and tests", needed_by_the_rest: true, run: build },
    Phase {
        name: "test",
        about: "unit and black-box tests against two control planes and PostgreSQL",
        needed_by_the_rest: false,
        run: test,
    },
    Phase { name: "demo", about: "cargo xtask demo --once", needed_by_the_rest: false, run: demo },
];

/// Lines of each failed test that are repeated on the terminal.
const LINES_OF_A_FAILURE: usize = 12;

fn tools(_: &Run) -> Result<Option<Counts>> {
    packages::require(&[packages::GIT, postgres::POSTGRES])?;
    packages::require(&prometheus::PROMETHEUS)?;
    // All that tests would ask for themselves, several at a time.
    packages::require(&packages::NODE)?;
    packages::require(&squid::SQUID)?;
    packages::require(&[faketime::library()?])?;
    if std::env::var_os("FARWATER_CHROMIUM").is_none() {
        packages::require(&[packages::CHROMIUM])?;
    }
    Tools::build_all()?;
    Ok(Some(Counts::ONE_PASSED))
}

fn web(run: &Run) -> Result<Option<Counts>> {
    let folder = run.root.join("web");
    let package = folder.join("package.json");
    if !package.exists() {
        return Ok(None);
    }
    let log = run.log("web");
    let first = !folder.join("dist/index.html").exists();
    let npm = |arguments: &[&str]| {
        let mut command = Command::new("npm");
        command.current_dir(&folder).args(arguments);
        step::run(&format!("npm {}", arguments.join(" ")), command, &log)
    };
    npm(&["ci", "--no-audit", "--no-fund"]).context("npm and Node 20 or newer build the page")?;
    npm(&["run", "build"])?;
    if first {
        // The hub embeds the page, and Cargo can't watch for a folder that was not there when it last built.
        fs::File::open(run.root.join("crates/hub/build.rs"))?.set_modified(SystemTime::now())?;
    }
    if !has_script(&package, "test")? {
        return Ok(Some(Counts::ONE_PASSED));
    }
    let tests = npm(&["test"]);
    counted(tests, results::count_vitest(&step::read_from(&log, 0)?))
}

/// A test program that fails without having counted a failure crashed, or did not start.
fn counted(result: Result<()>, counts: Counts) -> Result<Option<Counts>> {
    match result {
        Err(error) if counts.failed > 0 => {
            eprintln!("    {error:#}");
            Ok(Some(counts))
        }
        Err(error) => Err(error),
        Ok(()) => Ok(Some(if counts.passed == 0 { Counts::ONE_PASSED } else { counts })),
    }
}

fn has_script(package: &Path, name: &str) -> Result<bool> {
    let text = fs::read(package).with_context(|| format!("read {}", package.display()))?;
    let json: serde_json::Value = serde_json::from_slice(&text)?;
    Ok(json["scripts"][name].is_string())
}

fn fmt(run: &Run) -> Result<Option<Counts>> {
    cargo(run, "fmt", &["fmt", "--all", "--check"]).context("cargo fmt --all puts it right")?;
    Ok(Some(Counts::ONE_PASSED))
}

fn clippy(run: &Run) -> Result<Option<Counts>> {
    cargo(run, "clippy", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    Ok(Some(Counts::ONE_PASSED))
}

fn denied(_: &Run) -> Result<Option<Counts>> {
    deny::check()?;
    Ok(Some(Counts::ONE_PASSED))
}

fn generated(_: &Run) -> Result<Option<Counts>> {
    codegen::check()?;
    invariants::check()?;
    Ok(Some(Counts::ONE_PASSED))
}

fn build(run: &Run) -> Result<Option<Counts>> {
    // In one go: cargo then unites the features of programs and tests, and builds what they share once.
    cargo(run, "build", &["build", "--workspace", "--locked", "--bins", "--tests"])?;
    Ok(Some(Counts::ONE_PASSED))
}

fn test(run: &Run) -> Result<Option<Counts>> {
    Tools::find_all()?;
    let runtime = tokio::runtime::Runtime::new()?;
    // They live until the tests have ended; tests take namespaces and databases of their own.
    let (plane_1, plane_2, database) =
        runtime.block_on(async { tokio::try_join!(Plane::start(), Plane::start(), Postgres::start_unsynced()) })?;

    let servers = |command: &mut Command| {
        command
            .env(plane_variable(1), plane_1.kubeconfig())
            .env(plane_variable(2), plane_2.kubeconfig())
            .env(postgres::VARIABLE, database.first_url());
    };
    let (log, log_of_the_node) = (run.log("test"), run.log("test-node"));
    // The log of this run only; the other one's was removed when the phase began.
    let _ = fs::remove_file(&log_of_the_node);
    let counts = lanes::run(&log, &log_of_the_node, servers)?;
    if counts.failed > 0 {
        for log in [&log, &log_of_the_node] {
            eprintln!("{}", results::failures(&step::read_from(log, 0)?, LINES_OF_A_FAILURE).join("\n"));
        }
        eprintln!("  everything that the tests printed: {} and {}", log.display(), log_of_the_node.display());
    }
    Ok(Some(counts))
}

/// The demo as users start it.
fn demo(run: &Run) -> Result<Option<Counts>> {
    let mut command = repository::cargo()?;
    command.args(["xtask", "demo", "--once"]);
    step::run("demo", command, &run.log("demo"))?;
    Ok(Some(Counts::ONE_PASSED))
}

fn cargo(run: &Run, phase: &str, arguments: &[&str]) -> Result<()> {
    let mut command = repository::cargo()?;
    command.args(arguments).env("CARGO_TERM_COLOR", "never");
    step::run(&format!("cargo {}", arguments[0]), command, &run.log(phase))
}
