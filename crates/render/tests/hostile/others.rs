//! Other renders at the same time.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::Mutex;

use super::support::{Bench, Job, charts::small, strict, values};

/// One test at a time: memory is measured over all children of this process, and time on a machine with few processors.
pub static ALONE: Mutex<()> = Mutex::const_new(());

fn plain(n: usize) -> Job {
    Job::new(small(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: n{n}}}\n"
    )))
}

async fn measure(bench: &Bench, from: usize) -> Duration {
    let mut times = Vec::new();
    for n in from..from + 100 {
        let begun = Instant::now();
        assert_eq!(values(bench.render(&plain(n)).await).len(), 1);
        times.push(begun.elapsed());
    }
    times.sort();
    times[98]
}

#[tokio::test]
async fn services_beside_a_hostile_one_are_rendered_all_the_while() {
    let _alone = ALONE.lock().await;
    let bomb = ["/bin/sh", "-c", "b() { b | b & b; }; b"];
    let bench = Bench::with(
        strict(),
        &json!({"plugins": [{"name": "bomb", "command": bomb}]}).to_string(),
    );
    let quiet = measure(&bench, 0).await;
    let hostile = async {
        for template in [
            "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}",
            "{{ $s := \"xxxxxxxx\" }}{{ range until 64 }}{{ $s = printf \"%s%s\" $s $s }}{{ end }}",
            "{{ range until 10000 }}{{ range until 1000 }}{{ repeat 1000 \"x\" }}{{ end }}{{ end }}",
        ] {
            assert!(!bench.render(&Job::new(small(template))).await.errors.is_empty());
        }
        let plugin = Job::of([("a", "")]).renderers(json!([{"type": "Plugin", "plugin": "bomb"}]));
        assert!(!bench.render(&plugin).await.errors.is_empty());
    };
    let others = async {
        let mut worst = Duration::ZERO;
        for round in 1..4 {
            worst = worst.max(measure(&bench, round * 100).await);
        }
        worst
    };
    let ((), worst) = tokio::join!(hostile, others);
    eprintln!("p99 of others: {quiet:?} alone, {worst:?} beside hostile ones");
    // The others share two processors with the hostile render, and one of them had to start a child.
    assert!(
        worst < (2 * quiet).max(Duration::from_secs(1)),
        "{quiet:?} became {worst:?}"
    );
}
