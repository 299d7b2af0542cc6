//! Hostile input ends with an error or harmlessly, within the limits, and without an effect on other renders.

#![allow(clippy::unwrap_used)]

mod charts;
mod opened;
mod others;
mod overlays;
mod plugins;
mod processes;
mod sample;
#[path = "../support/mod.rs"]
mod support;
mod values;

use std::time::{Duration, Instant};

use farwater_render::{Limits, Program};
use sample::Sample;
use support::{Bench, Job, strict};

/// Most time and memory of one render: the limits of `strict`, and the time to notice.
const LONGEST: Duration = Duration::from_secs(20);
const MOST_MEMORY: u64 = 512 << 20;

/// A render and its expected result.
pub struct Case {
    name: String,
    job: Job,
    /// A part of the error. None: any result is harmless.
    error: Option<&'static str>,
}

pub fn case(name: impl Into<String>, job: Job, error: impl Into<Option<&'static str>>) -> Case {
    Case {
        name: name.into(),
        job,
        error: error.into(),
    }
}

/// Runs the cases one after the other, so that each has the child for itself.
async fn run_all(bench: &Bench, cases: Vec<Case>) {
    let mut failures = Vec::new();
    for Case { name, job, error } in cases {
        let sample = Sample::begin();
        let begun = Instant::now();
        let rendered = bench.try_render(&job).await;
        let (took, (memory, _)) = (begun.elapsed(), sample.end());
        let (said, count) = match rendered {
            Ok(output) if output.errors.is_empty() => (String::new(), output.objects.len()),
            Ok(output) => (support::errors(&output), output.objects.len()),
            Err(refused) => (refused, 0),
        };
        eprintln!(
            "{name}: {:.2} s, {} MiB, {:.150}",
            took.as_secs_f64(),
            memory >> 20,
            said
        );
        if took > LONGEST {
            failures.push(format!("{name} took {took:?}"));
        }
        if memory > MOST_MEMORY {
            failures.push(format!("{name} took {} MiB", memory >> 20));
        }
        if error.is_some_and(|error| !said.contains(error)) {
            failures.push(format!("{name}: expected {error:?}, not {said:?}, {count} objects"));
        }
        if said.contains("the renderer failed: ") {
            failures.push(format!("{name}: {said}"));
        }
    }
    // Afterwards a normal render works as before.
    let plain = Job::new(support::charts::small(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
    ));
    assert_eq!(support::values(bench.render(&plain).await).len(), 1);
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The first of each list. All of them take minutes, and run in `campaign slow`.
pub fn some(cases: Vec<Case>) -> Vec<Case> {
    cases.into_iter().take(1).collect()
}

#[tokio::test]
async fn some_of_each_kind_end_with_an_error_or_harmlessly() {
    let _alone = others::ALONE.lock().await;
    let limits = Limits {
        cpu: Duration::from_secs(1),
        ..strict().limits
    };
    let bench = Bench::with(Program { limits, ..strict() }, "");
    let lists = [
        charts::loops(),
        charts::memory(),
        charts::output(),
        charts::functions(),
        charts::archives(),
        charts::metadata(),
        overlays::overlays(),
        overlays::templates(),
        overlays::patches(),
        values::bombs(),
        values::schemas(),
    ];
    run_all(&bench, lists.into_iter().flat_map(some).collect()).await;
}
