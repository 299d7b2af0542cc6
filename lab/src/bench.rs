//! `cargo xtask bench NAME`: runs a benchmark. Standard output has one JSON object per metric and line, and standard
//! error the progress. The last full run of each benchmark is kept under docs/performance with its machine.

mod agent;
mod api;
mod cli_start;
mod connections;
mod fleet;
mod ground;
mod hub_start;
mod list_services;
mod many_kinds;
mod parameters;
mod pod;
mod render;
mod sources;
pub mod usage;

use std::{
    fmt, fs,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures::future::LocalBoxFuture;
use serde::Serialize;
use xtask::{machine, repository, step};

use crate::campaign;

/// Run a benchmark; print one JSON object per metric and line
#[derive(clap::Args)]
pub struct Arguments {
    /// Name of the benchmark, or `agent` for all named `agent-…` [default: list all benchmarks]
    name: Option<String>,
    /// Do less work, and keep the record under docs/performance unchanged
    #[arg(long)]
    quick: bool,
}

struct Bench {
    name: &'static str,
    about: &'static str,
    needs: Needs,
    /// Runs the benchmark. If true, with less work.
    run: fn(bool) -> LocalBoxFuture<'static, Result<Vec<Figure>>>,
}

/// Release builds that a benchmark needs before it starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Programs,
    /// Also this program, because it contains a measured client. Without optimizations that client would be too slow.
    ProgramsAndThis,
    /// None: the benchmark builds the images itself.
    Images,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "agent-commit",
        about: "time from a commit to changed objects, with and without hints",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(agent::commit_to_applied::measure(quick)),
    },
    Bench {
        name: "agent-apply",
        about: "applying 4,000 new, changed and unchanged objects, compared with a bare client, kubectl and Flux",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(agent::apply::measure(quick)),
    },
    Bench {
        name: "agent-drift",
        about: "drift correction of 1,000 objects for ten minutes, compared with Flux: requests, processor time, delay",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(agent::drift::measure(quick)),
    },
    Bench {
        name: "agent-rest",
        about: "memory and processor time of an idle agent with 200, 2,000, and 5,000 of 105,000 objects",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(agent::at_rest::measure(quick)),
    },
    Bench {
        name: "hub-start",
        about: "time of the hub's first and later starts until it is ready, and its memory then",
        needs: Needs::Programs,
        run: |quick| Box::pin(hub_start::measure(quick)),
    },
    Bench {
        name: "cli-start",
        about: "time in which the CLI prints its own version",
        needs: Needs::Programs,
        run: |quick| Box::pin(async move { cli_start::measure(quick) }),
    },
    Bench {
        name: "connections",
        about: "memory and processor time of a hub with 5,000 idle connected agents",
        needs: Needs::Programs,
        run: |quick| Box::pin(connections::measure(quick)),
    },
    Bench {
        name: "api",
        about: "10,000, 200,000 and 1,000,000 ServiceDeployments of 3 KB: pages, gets, watches, writes, memory, start \
                time",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(api::measure(quick)),
    },
    Bench {
        name: "list-storm",
        about: "agents' polls during 100,000 lists of services, compared with rounds without lists",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(api::measure_storm(quick)),
    },
    Bench {
        name: "pod",
        about: "hub and agent as pods of a real node: image sizes, time to install and join, memory and processor time \
                when idle",
        needs: Needs::Images,
        run: |quick| Box::pin(pod::measure(quick)),
    },
    Bench {
        name: "sources-bundles",
        about: "serving bundles, compared with nginx and the same files",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(sources::serving::measure(quick)),
    },
    Bench {
        name: "sources-checks",
        about: "requests to a Git host for 1, 100 and 1,000 clusters, and while webhooks announce pushes",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(sources::checks(quick)),
    },
    Bench {
        name: "sources-deliveries",
        about: "cost of a webhook's delivery",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(sources::deliveries::measure(quick)),
    },
    Bench {
        name: "sources-monorepo",
        about: "cost of a commit in a monorepo of 10,000 services",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(sources::monorepo::measure(quick)),
    },
    Bench {
        name: "sources-neighbours",
        about: "time from a commit to a cluster, beside sources that stall, drip, fail or are harmful",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(sources::neighbours::measure(quick)),
    },
    Bench {
        name: "parameters",
        about: "10,000 services that share one context: processor time of a changed key, by the number of services \
                that use it",
        needs: Needs::Programs,
        run: |quick| Box::pin(parameters::measure(quick)),
    },
    Bench {
        name: "fleet-commit",
        about: "one commit to 10,000 simulated clusters without a rollout",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(fleet::commit::measure(quick)),
    },
    Bench {
        name: "fleet-impact",
        about: "the impact of a branch on 10,000 services",
        needs: Needs::Programs,
        run: |quick| Box::pin(fleet::impact::measure(quick)),
    },
    Bench {
        name: "fleet-stamping",
        about: "100 sets on 10,000 clusters: creating their services, and those of one cluster with a new label",
        needs: Needs::Programs,
        run: |quick| Box::pin(fleet::stamping::measure(quick)),
    },
    Bench {
        name: "list-services",
        about: "listing 10,000 ServiceDeployments with kubectl",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(list_services::measure(quick)),
    },
    Bench {
        name: "render",
        about: "rendering a chart and an overlay of other projects, compared with the helm and kustomize commands; the \
                cache; the child's memory",
        needs: Needs::ProgramsAndThis,
        run: |quick| Box::pin(render::measure(quick)),
    },
];

/// A measured value: one line of the result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    pub metric: String,
    pub workload: String,
    pub value: f64,
    pub unit: &'static str,
    pub peer: Option<String>,
    pub peer_value: Option<f64>,
    pub ratio: Option<f64>,
    pub goal: Option<String>,
    pub holds: Option<bool>,
}

impl Figure {
    pub fn new(metric: &str, workload: &str, value: f64, unit: &'static str) -> Self {
        Self {
            metric: metric.to_owned(),
            workload: workload.to_owned(),
            value,
            unit,
            ..Self::default()
        }
    }

    /// Sets a maximum value as goal.
    pub fn at_most(mut self, limit: f64) -> Self {
        self.goal = Some(format!("<= {limit} {}", self.unit));
        self.holds = Some(self.value <= limit);
        self
    }

    /// Adds another program's value for the same work, with a minimum share of it as goal.
    pub fn beside(mut self, peer: String, peer_value: f64, share: f64) -> Self {
        let ratio = (self.value / peer_value * 100.0).round() / 100.0;
        (self.peer, self.peer_value, self.ratio) = (Some(peer), Some(peer_value), Some(ratio));
        self.goal = Some(format!(">= {share} x the peer"));
        self.holds = Some(ratio >= share);
        self
    }

    /// Adds another program's value for the same work, without a goal.
    pub fn compared(mut self, peer: &str, peer_value: f64) -> Self {
        (self.peer, self.peer_value) = (Some(peer.to_owned()), Some(peer_value));
        self.ratio = (peer_value > 0.0).then(|| (self.value / peer_value * 1000.0).round() / 1000.0);
        self
    }

    /// Adds another program's value for the same work, with a maximum share of it as goal.
    pub fn at_most_of(self, peer: &str, peer_value: f64, share: f64) -> Self {
        let mut figure = self.compared(peer, peer_value);
        figure.goal = Some(format!("<= {share} x the peer"));
        figure.holds = Some(figure.value <= peer_value * share);
        figure
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.metric, self.value, self.unit)?;
        if let (Some(peer), Some(value)) = (&self.peer, self.peer_value) {
            write!(f, ", {peer} {value}")?;
        }
        if let (Some(goal), Some(holds)) = (&self.goal, self.holds) {
            write!(f, ": {goal} {}", if holds { "holds" } else { "is missed" })?;
        }
        Ok(())
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Some(name) = &arguments.name else {
        for bench in BENCHES {
            println!("{:<18} {}", bench.name, bench.about);
        }
        return Ok(ExitCode::SUCCESS);
    };
    let is_meant = |bench: &&Bench| match bench.name.strip_prefix(name.as_str()) {
        Some(rest) => rest.is_empty() || rest.starts_with('-'),
        None => false,
    };
    let benches: Vec<&Bench> = BENCHES.iter().filter(is_meant).collect();
    if benches.is_empty() {
        let names: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
        bail!("there is no benchmark {name:?}; choose one of {}", names.join(", "));
    }
    if cfg!(debug_assertions) && benches.iter().any(|bench| bench.needs == Needs::ProgramsAndThis) {
        return run_in_release(name, arguments.quick);
    }
    // A quick run may use programs that exist already.
    let are_there = arguments.quick && std::env::var_os("FARWATER_BIN_DIR").is_some();
    if benches.iter().any(|bench| bench.needs != Needs::Images) && !are_there {
        campaign::build_programs()?;
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let mut missed = false;
    for bench in benches {
        eprintln!("{}", bench.name);
        let figures = runtime
            .block_on((bench.run)(arguments.quick))
            .with_context(|| format!("measure {}", bench.name))?;
        for figure in &figures {
            println!("{}", serde_json::to_string(figure)?);
            eprintln!("  {figure}");
        }
        // Print each figure at once, because the next benchmark may take long.
        if !arguments.quick {
            keep(bench.name, &figures)?;
        }
        missed |= figures.iter().any(|figure| figure.holds == Some(false));
    }
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds this program with the profile of the measured programs, and runs it.
fn run_in_release(name: &str, quick: bool) -> Result<ExitCode> {
    let target = repository::target_directory()?;
    eprintln!("building a release lab, because it contains the measured client");
    let mut cargo = repository::cargo()?;
    cargo.args(["build", "--release", "--locked", "-p", "lab"]);
    step::run(
        "cargo build --release -p lab",
        cargo,
        &repository::log("release-build")?,
    )?;
    let mut command = Command::new(target.join("release/lab"));
    command.args(["bench", name]).args(quick.then_some("--quick"));
    let status = command.status().context("start the release lab")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn keep(name: &str, figures: &[Figure]) -> Result<()> {
    let folder = repository::root()?.join("docs/performance");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.json"));
    let record = serde_json::json!({
        "commit": machine::commit()?, "machine": machine::describe(), "profile": "release, the agent's: agent", "figures": figures,
    });
    fs::write(&path, format!("{record:#}\n")).with_context(|| format!("write {}", path.display()))
}

/// The percentile of the samples by nearest rank: the value that `share` of them don't exceed.
pub fn percentile(samples: &mut [Duration], share: f64) -> Duration {
    samples.sort_unstable();
    let rank = (share * samples.len() as f64).ceil() as usize;
    samples.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 100_000.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut samples: Vec<_> = (1..=50).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut samples, 0.5), Duration::from_millis(25));
        assert_eq!(percentile(&mut samples, 0.99), Duration::from_millis(50));
        assert_eq!(percentile(&mut [], 0.5), Duration::ZERO);
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn a_goal_that_is_missed_says_so() {
        assert_eq!(Figure::new("m", "w", 2.0, "s").at_most(1.0).holds, Some(false));
        let figure = Figure::new("m", "w", 80.0, "1/s").beside("peer".to_owned(), 100.0, 0.85);
        assert_eq!((figure.ratio, figure.holds), (Some(0.8), Some(false)));
        let figure = Figure::new("m", "w", 6.0, "requests").at_most_of("peer", 100.0, 0.05);
        assert_eq!(
            figure.to_string(),
            "m 6 requests, peer 100: <= 0.05 x the peer is missed"
        );
        assert_eq!(Figure::new("m", "w", 6.0, "requests").compared("peer", 0.0).ratio, None);
    }
}
