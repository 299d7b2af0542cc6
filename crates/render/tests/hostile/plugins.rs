//! Plugins that misbehave. Administrators install them, but their input decides what they do.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use farwater_render::{Limits, Program};
use farwater_testkit::wait_for;
use serde_json::json;

use super::{
    LONGEST, MOST_MEMORY,
    sample::Sample,
    support::{Bench, Job, errors, strict},
};

/// Number of processes whose command line has this text.
fn running(mark: &str) -> usize {
    let has =
        |path: &Path| fs::read(path.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark));
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| has(&entry.path()))
        .count()
}

async fn check(name: &str, script: &str, expected: &str) {
    let mark = format!("farwater-mark-{name}");
    let command = ["/bin/sh", "-c", script, mark.as_str(), "{scratch}"];
    let configuration = json!({"plugins": [{"name": "p", "command": command, "timeoutSeconds": 4}]}).to_string();
    let bench = Bench::with(strict(), &configuration);
    let job = Job::of([("a", "x")]).renderers(json!([{"type": "Plugin", "plugin": "p"}]));
    let (sample, begun) = (Sample::begin(), Instant::now());
    let output = bench.render(&job).await;
    let (took, (memory, processes)) = (begun.elapsed(), sample.end());
    let said = errors(&output);
    eprintln!(
        "{name}: {:.2} s, {} MiB, {processes} processes, {said:.200}",
        took.as_secs_f64(),
        memory >> 20
    );
    assert!(said.contains(expected), "{name}: {said}");
    assert!(took < LONGEST, "{name} took {took:?}");
    assert!(memory < MOST_MEMORY, "{name} took {} MiB", memory >> 20);
    // The kernel's own limit, plus the processes that render and watch.
    assert!(processes < 200, "{name} had {processes} processes");
    wait_for("its processes to be gone", Duration::from_secs(10), || async {
        Ok((running(&mark) == 0).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(fs::read_dir(bench.folder.path()).unwrap().count(), 0, "{name}");
}

#[tokio::test]
async fn plugins_end_within_their_limits_and_leave_nothing_behind() {
    let _alone = super::others::ALONE.lock().await;
    check("hangs", "sleep 1000", "took over 4 s").await;
    check(
        "ignores-signals",
        "trap '' TERM INT HUP; while :; do sleep 1; done",
        "took over 4 s",
    )
    .await;
    check("spins", "while :; do :; done", "took").await;
    // The shell reports that it can't fork, or the watcher reports that there are too many processes.
    check("forks", "b() { b | b & b; }; b", "").await;
    check(
        "forks-aside",
        "b() { setsid sh -c \"$0\" & }; while :; do setsid sh -c 'while :; do sleep 1; done' $0 & done",
        "",
    )
    .await;
    check(
        "goes-aside",
        "setsid sh -c 'sleep 1000' $0 </dev/null >/dev/null 2>&1 & setsid sh -c 'sleep 1000' $0 & exit 3",
        "",
    )
    .await;
    check("fills-memory", "x=x; while :; do x=$x$x; done", "").await;
    check(
        "fills-memory-together",
        "for i in 1 2 3 4 5 6 7 8; do (x=$(head -c 100000000 /dev/zero | tr '\\0' x); sleep 10) & done; wait",
        "",
    )
    .await;
    check(
        "prints-without-end",
        "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "printed over",
    )
    .await;
    check(
        "complains-without-end",
        "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx >&2",
        "took over 4 s",
    )
    .await;
    check("fills-the-disk", "head -c 200000000 /dev/zero > $1/x; exit 1", "failed").await;
    check(
        "writes-elsewhere",
        "echo x > /tmp/farwater-hostile-plugin && echo wrote; exit 1",
        "failed",
    )
    .await;
    assert!(!Path::new("/tmp/farwater-hostile-plugin").exists());
    check(
        "changes-its-input",
        "chmod u+w a && echo changed > a && exit 0; exit 1",
        "failed",
    )
    .await;
    check(
        "reads-secrets",
        "cat /etc/shadow /proc/1/environ /root/.bashrc && exit 0; exit 1",
        "failed",
    )
    .await;
    // The first process of a namespace ignores these signals if it sends them itself.
    check("stops-itself", "sh -c 'kill -STOP $$' $0; exit 1", "took over 4 s").await;
    check("dies", "sh -c 'kill -SEGV $$' $0 || exit 1", "").await;
}

#[tokio::test]
async fn a_plugins_processor_time_has_a_limit_of_its_own() {
    let _alone = super::others::ALONE.lock().await;
    // So long that even on a busy machine the time limit doesn't end it.
    let long = Duration::from_secs(300);
    let limits = Limits {
        time: long,
        cpu: Duration::from_secs(2),
        ..strict().limits
    };
    let command = ["/bin/sh", "-c", "while :; do :; done"];
    let plugins = json!({"plugins": [{"name": "p", "command": command, "timeoutSeconds": 300}]}).to_string();
    let bench = Bench::with(Program { limits, ..strict() }, &plugins);
    let job = Job::of([("a", "x")]).renderers(json!([{"type": "Plugin", "plugin": "p"}]));
    let said = errors(&bench.render(&job).await);
    assert!(said.contains("it took too much of the processor's time"), "{said}");
}

#[tokio::test]
async fn a_plugin_that_nobody_waits_for_any_more_is_ended() {
    let _alone = super::others::ALONE.lock().await;
    let mark = "farwater-mark-cancelled";
    let command = ["/bin/sh", "-c", "sh -c 'sleep 1000' $0; sleep 1000", mark];
    let bench = Bench::with(
        strict(),
        &json!({"plugins": [{"name": "p", "command": command}]}).to_string(),
    );
    let job = Job::of([("a", "x")]).renderers(json!([{"type": "Plugin", "plugin": "p"}]));
    assert!(
        tokio::time::timeout(Duration::from_secs(2), bench.render(&job))
            .await
            .is_err()
    );
    wait_for("its processes to be gone", Duration::from_secs(10), || async {
        Ok((running(mark) == 0).then_some(()))
    })
    .await
    .unwrap();
}
