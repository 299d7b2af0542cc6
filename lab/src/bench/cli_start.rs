//! Time in which the CLI starts, prints its own version and ends. People and shells wait for that.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farwater_testkit::{farwater::program, process::bare_command};

use super::{Figure, milliseconds, percentile};

/// Limit in milliseconds, below what people notice.
const GOAL: f64 = 30.0;

pub fn measure(quick: bool) -> Result<Vec<Figure>> {
    let rounds = if quick { 20 } else { 200 };
    let program = program("farwater")?;
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let output = bare_command(&program).args(["version", "--client"]).output()?;
        took.push(start.elapsed());
        ensure!(output.status.success(), "{output:?}");
    }
    let workload = format!("farwater version --client, {rounds} times");
    let figure = |metric: &str, took: Duration| Figure::new(metric, &workload, milliseconds(took), "ms");
    Ok(vec![
        figure("cli_start_p50", percentile(&mut took, 0.5)).at_most(GOAL),
        figure("cli_start_max", percentile(&mut took, 1.0)),
    ])
}
