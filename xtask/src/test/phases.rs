//! The phases of `cargo xtask test`, in the order in which they run.

use std::sync::PoisonError;

use anyhow::{Context as _, Result};
use farwater_testkit::{
    Plane, Postgres, Tools, faketime, images, kube::plane_variable, packages, postgres, prometheus, squid,
};
use futures::future::try_join_all;

use super::{
    Run,
    results::{self, Counts},
    runner::Servers,
    slow, suite,
};
use crate::{codegen, deny, invariants, lab, page, repository, step, waits};

pub struct Phase {
    pub name: &'static str,
    pub about: &'static str,
    /// Phases that must have run before it. If one of them fails, this one would fail too.
    pub needs: &'static [&'static str],
    pub run: fn(&Run) -> Result<Counts>,
}

/// All phases, in the order in which they start. Two run at the same time if neither needs the other.
pub const PHASES: &[Phase] = &[
    Phase {
        name: "fmt",
        about: "cargo fmt --check",
        needs: &[],
        run: fmt,
    },
    Phase {
        name: "web",
        about: "the page: npm ci, build, unit tests",
        needs: &[],
        run: web,
    },
    Phase {
        name: "clippy",
        about: "cargo clippy, warnings are errors",
        needs: &[],
        run: clippy,
    },
    Phase {
        name: "tools",
        about: "Kubernetes, kwok and kubectl from their Go modules, PostgreSQL, Prometheus, Chromium, containerd, squid",
        needs: &[],
        run: tools,
    },
    Phase {
        name: "build",
        about: "programs and tests",
        needs: &["web"],
        run: build,
    },
    Phase {
        name: "deny",
        about: "banned crates, licences, crates that the agent links, advisories if cargo-deny is installed",
        needs: &[],
        run: denied,
    },
    Phase {
        name: "generated",
        about: "generated files are up to date, the tests of ARCHITECTURE.md's invariants exist, tests wait for conditions, slow tests have a reason",
        needs: &["build"],
        run: generated,
    },
    Phase {
        name: "test",
        about: "unit and black-box tests against shared control planes and PostgreSQL",
        needs: &["tools", "build"],
        run: test,
    },
    Phase {
        name: "demo",
        about: "cargo xtask demo --once",
        needs: &["test"],
        run: demo,
    },
];

/// Number of shared control planes, each for one process at a time. An idle one takes 0.5 GB and a tenth of a
/// processor.
const PLANES: usize = 3;

fn tools(_: &Run) -> Result<Counts> {
    packages::require(&[packages::GIT, postgres::POSTGRES])?;
    packages::require(&prometheus::PROMETHEUS)?;
    // Install everything now that tests would otherwise request by themselves, several at a time.
    packages::require(&packages::NODE)?;
    packages::require(&squid::SQUID)?;
    packages::require(&[faketime::library()?])?;
    if std::env::var_os("FARWATER_CHROMIUM").is_none() {
        packages::require(&[packages::CHROMIUM])?;
    }
    Tools::build_all()?;
    Ok(Counts::ONE_PASSED)
}

fn web(run: &Run) -> Result<Counts> {
    let log = run.log("web");
    page::build(&log)?;
    let tests = page::test(&log);
    counted(tests, results::count_vitest(&step::read_from(&log, 0)?))
}

/// A test program that failed without a counted failure has crashed or did not start: return its error.
fn counted(result: Result<()>, counts: Counts) -> Result<Counts> {
    match result {
        Err(error) if counts.failed > 0 => {
            eprintln!("    {error:#}");
            Ok(counts)
        }
        Err(error) => Err(error),
        Ok(()) => Ok(if counts.passed == 0 { Counts::ONE_PASSED } else { counts }),
    }
}

fn fmt(run: &Run) -> Result<Counts> {
    cargo(run, "fmt", &["fmt", "--all", "--check"]).context("run cargo fmt --all to fix the format")?;
    Ok(Counts::ONE_PASSED)
}

fn clippy(run: &Run) -> Result<Counts> {
    cargo(
        run,
        "clippy",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    Ok(Counts::ONE_PASSED)
}

fn denied(_: &Run) -> Result<Counts> {
    deny::check()?;
    Ok(Counts::ONE_PASSED)
}

fn generated(_: &Run) -> Result<Counts> {
    codegen::check()?;
    invariants::check()?;
    waits::check()?;
    slow::check()?;
    Ok(Counts::ONE_PASSED)
}

fn build(run: &Run) -> Result<Counts> {
    // One build for both: cargo then unifies the features of programs and tests, and builds shared crates once.
    cargo(run, "build", &["build", "--workspace", "--locked", "--bins", "--tests"])?;
    Ok(Counts::ONE_PASSED)
}

fn test(run: &Run) -> Result<Counts> {
    Tools::find_all()?;
    let runtime = tokio::runtime::Runtime::new()?;
    // These servers live until the tests have ended. Tests use their own namespaces and databases.
    let (planes, database) = runtime.block_on(async {
        tokio::try_join!(
            try_join_all((0..PLANES).map(|_| Plane::start())),
            Postgres::start_unsynced()
        )
    })?;

    let (url, own) = (database.first_url(), tempfile::tempdir()?);
    let folder = own.path().join("images");
    let servers = Servers {
        planes: planes.iter().map(|plane| plane.kubeconfig().to_owned()).collect(),
        prepare: Box::new(move |command| {
            command.env(postgres::VARIABLE, &url).env(images::FOLDER, &folder);
        }),
        plane_variable,
    };
    let log = run.log("test");
    suite::clear(&log)?;
    let (counts, report) = suite::run(&servers, &log, &run.selection)?;
    *run.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    Ok(counts)
}

/// Runs the demo as users do.
fn demo(run: &Run) -> Result<Counts> {
    let mut command = lab::command(&run.log("demo"))?;
    command.args(["demo", "--once"]);
    step::run("demo", command, &run.log("demo"))?;
    Ok(Counts::ONE_PASSED)
}

fn cargo(run: &Run, phase: &str, arguments: &[&str]) -> Result<()> {
    let mut command = repository::cargo()?;
    command.args(arguments).env("CARGO_TERM_COLOR", "never");
    step::run(&format!("cargo {}", arguments[0]), command, &run.log(phase))
}
