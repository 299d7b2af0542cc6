//! The files that the renderer opens, as the kernel sees them.

use std::{collections::BTreeSet, fs, path::Path};

use farwater_render::Program;
use farwater_testkit::packages::{self, Package};

use super::{
    Case, charts, overlays, run_all, some,
    support::{self, Bench, Job, charts::small, strict},
};

const STRACE: Package = Package {
    program: "strace",
    debian: "strace",
};
const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

/// The renderer, with a log of the files that it and its children open and run.
fn traced(log: &Path) -> Program {
    let calls = "trace=open,openat,openat2,creat,execve,execveat";
    let strace = [
        "strace",
        "-f",
        "-A",
        "-qq",
        "-y",
        "-e",
        "signal=none",
        "-e",
        calls,
        "-o",
    ];
    let mut command: Vec<String> = strace.map(str::to_owned).into();
    command.extend([log.display().to_string(), support::renderer()]);
    Program {
        limits: strict().limits,
        ..Program::new(command)
    }
}

/// Reads lines such as `1234 openat(AT_FDCWD</there>, "path", …`.
fn opened(log: &str) -> BTreeSet<String> {
    let path = |line: &str| {
        let (call, rest) = line.split_once('"')?;
        let folder = call
            .split_once('<')
            .and_then(|(_, rest)| rest.split_once('>'))
            .map_or("", |(folder, _)| folder);
        Some(Path::new(folder).join(rest.split_once('"')?.0).display().to_string())
    };
    log.lines().filter_map(path).collect()
}

#[tokio::test]
async fn hostile_charts_and_overlays_open_no_file_that_good_ones_do_not() {
    check([
        charts::functions(),
        charts::archives(),
        charts::metadata(),
        overlays::overlays(),
    ])
    .await;
}

#[tokio::test]
async fn some_hostile_charts_and_overlays_open_no_file_that_good_ones_do_not() {
    let all = [
        charts::functions(),
        charts::archives(),
        charts::metadata(),
        overlays::overlays(),
    ];
    check(all.map(some)).await;
}

async fn check(cases: [Vec<Case>; 4]) {
    let _alone = super::others::ALONE.lock().await;
    packages::require(&[STRACE]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("strace.log");
    let bench = Bench::with(traced(&log), "");
    // A chart that takes long and asks for the time, with another chart in it, and an overlay.
    let lasting = "{{ range until 1000 }}{{ range until 1000 }}{{ end }}{{ end }}{{ $now := now | date \"2006\" }}";
    let mut chart = small(&format!("{lasting}\n{MAP}"));
    chart.extend(support::files([(
        "charts/c/Chart.yaml",
        "apiVersion: v2\nname: c\nversion: 1.0.0\n",
    )]));
    let overlay = Job::of([
        ("kustomization.yaml", "resources: [a.yaml]\nnamePrefix: k-\n"),
        ("a.yaml", MAP),
    ]);
    for job in [Job::new(chart), overlay] {
        assert_eq!(support::values(bench.render(&job).await).len(), 1);
    }
    let usual = opened(&fs::read_to_string(&log).unwrap());
    let started = usual.iter().any(|path| path == &support::renderer());
    assert!(started && usual.len() < 100, "{usual:#?}");

    for cases in cases {
        run_all(&bench, cases).await;
    }
    let all = opened(&fs::read_to_string(&log).unwrap());
    let strange: Vec<_> = all.difference(&usual).collect();
    assert!(strange.is_empty(), "{strange:#?}");
}
