//! What an agent takes while nothing happens: memory and processor time, with one service of 200 objects kept.

use std::time::Duration;

use anyhow::{Result, ensure};
use farwater_testkit::PlaneOptions;

use super::{Figure, ground::Ground, usage};

/// What the hub asks for unless a cluster says otherwise.
const POLL: &str = "30s";
/// Megabytes, from the issue that asked for it.
const GOAL: f64 = 12.0;
/// Thousandths of a core.
const PROCESSOR_GOAL: f64 = 1.0;
/// Names in the figure what decides it: a change of the allocator must change this text.
const ALLOCATOR: &str = "system allocator (glibc malloc)";
const AGENT: &str = include_str!("../../../crates/agent/src/main.rs");

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    ensure!(!AGENT.contains("global_allocator"), "the agent has another allocator than this bench says");
    let rest = Duration::from_secs(if quick { 10 } else { 600 });
    let mut ground = Ground::start(PlaneOptions::default(), POLL, &files()).await?;
    ground.deploy("web", "apps/web").await?;
    ground.healthy("web").await?;
    eprintln!("200 objects are healthy; at rest for {rest:?}");
    let process = ground.agent().process().id();
    let before = usage::processor_time(process)?;
    tokio::time::sleep(rest).await;
    let used = usage::processor_time(process)?.saturating_sub(before);
    let memory = usage::memory(process)?;
    let workload = format!(
        "200 objects of 5 kinds in one service, healthy, {} s at rest, poll {POLL}, {ALLOCATOR}, one thread",
        rest.as_secs()
    );
    let figure = |metric, bytes| Figure::new(metric, &workload, usage::megabytes(bytes), "MB");
    let processor = used.as_secs_f64() / rest.as_secs_f64() * 1000.0;
    Ok(vec![
        figure("agent_resident", memory.resident).at_most(GOAL),
        figure("agent_proportional", memory.proportional),
        figure("agent_anonymous", memory.anonymous),
        Figure::new("agent_processor", &workload, (processor * 100.0).round() / 100.0, "mCPU").at_most(PROCESSOR_GOAL),
    ])
}

/// 200 objects as a service has them: mostly settings, some of everything else.
fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for n in 0..10 {
        let text = format!(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: app-{n}}}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: app-{n}}}\nrules: []\n---\n\
             apiVersion: v1\nkind: Service\nmetadata: {{name: app-{n}}}\n\
             spec: {{selector: {{app: app-{n}}}, ports: [{{port: 80}}]}}\n---\n\
             apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: app-{n}}}\nspec:\n  replicas: 1\n  \
             selector: {{matchLabels: {{app: app-{n}}}}}\n  template:\n    metadata: {{labels: {{app: app-{n}}}}}\n    \
             spec: {{serviceAccountName: app-{n}, containers: [{{name: app, image: app}}]}}\n"
        );
        files.push((format!("apps/web/app-{n}.yaml"), text));
    }
    for n in 0..160 {
        files.push((format!("apps/web/settings-{n}.yaml"), super::config_map(n)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_is_what_its_name_says() {
        let objects: usize = files().iter().map(|(_, text)| text.matches("kind:").count()).sum();
        assert_eq!(objects, 200);
    }
}
