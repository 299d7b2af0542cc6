//! Hub and agent as shipped: the images of `cargo xtask image` as pods of a real node.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use farwater_api::{GitRepository, ServiceDeployment};
use farwater_testkit::{
    Site,
    site::{CLUSTER, HUB_NAMESPACE, HUB_POD},
    wait_for,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;
use tokio::time::Instant;

use super::{Figure, many_kinds, usage};
use crate::image::Shipped;

/// Limits in megabytes, from the issue.
const AGENT_IMAGE: f64 = 20.0;
const HUB_IMAGE: f64 = 60.0;
const AGENT_POD: f64 = 25.0;
const AGENT_RESIDENT: f64 = 12.0;
/// Limit in thousandths of a core.
const AGENT_PROCESSOR: f64 = 1.0;
const HEALTHY: Duration = Duration::from_secs(180);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (rounds, rest) = if quick {
        (1, Duration::from_secs(10))
    } else {
        (3, Duration::from_secs(600))
    };
    let shipped = Shipped::make()?;
    let compressed = |image: &farwater_image::Image| usage::megabytes(image.compressed as u64);
    let mut figures = vec![
        Figure::new("agent_image", "layer, gzip", compressed(&shipped.made.agent), "MB").at_most(AGENT_IMAGE),
        Figure::new("hub_image", "layer with git, gzip", compressed(&shipped.made.hub), "MB").at_most(HUB_IMAGE),
    ];
    let (mut installed, mut joined) = (Vec::new(), Vec::new());
    let mut last = None;
    for round in 1..=rounds {
        // End the node of the previous round first, because two nodes would share the machine.
        drop(last.take());
        let site = shipped.site().await?;
        let begun = Instant::now();
        site.install()?;
        installed.push(begun.elapsed());
        let begun = Instant::now();
        site.join()?;
        joined.push(begun.elapsed());
        eprintln!("round {round} of {rounds}");
        last = Some(site);
    }
    let site = last.context("there was a round")?;
    let workload = format!("{rounds} new clusters of one node, images on the node, SQLite");
    let seconds = |mut times: Vec<Duration>| (super::percentile(&mut times, 0.5).as_secs_f64() * 10.0).round() / 10.0;
    figures.push(Figure::new("install_to_ready", &workload, seconds(installed), "s"));
    figures.push(Figure::new("join_to_first_heartbeat", &workload, seconds(joined), "s"));
    figures.extend(at_rest(&site, rest).await?);
    Ok(figures)
}

async fn at_rest(site: &Site, rest: Duration) -> Result<Vec<Figure>> {
    deploy(site).await?;
    eprintln!("200 objects are healthy; at rest for {rest:?}");
    let agent = Container::of(&site.agent_pod().await?)?;
    let pods: Api<Pod> = site.theirs(HUB_NAMESPACE).await?;
    let hub = Container::of(&pods.get(HUB_POD).await?)?;
    let before = (agent.processor_time()?, hub.processor_time()?);
    tokio::time::sleep(rest).await;
    let used = (agent.processor_time()? - before.0, hub.processor_time()? - before.1);
    let content = many_kinds::workload(many_kinds::DEFINITIONS, many_kinds::SERVICES);
    let workload = format!("one cluster with {content}, {} s at rest, poll 30 s", rest.as_secs());
    let memory = |metric: &str, bytes: u64| Figure::new(metric, &workload, usage::megabytes(bytes), "MB");
    let processor =
        |metric: &str, used: Duration| Figure::new(metric, &workload, usage::millicores(used, rest), "mCPU");
    Ok(vec![
        memory("agent_pod_memory", agent.working_set()?).at_most(AGENT_POD),
        memory("agent_resident", usage::memory(agent.process)?.resident).at_most(AGENT_RESIDENT),
        processor("agent_processor", used.0).at_most(AGENT_PROCESSOR),
        memory("hub_pod_memory", hub.working_set()?),
        memory("hub_resident", usage::memory(hub.process)?.resident),
        processor("hub_processor", used.1),
    ])
}

async fn deploy(site: &Site) -> Result<()> {
    many_kinds::define(&site.node.client().await?, many_kinds::DEFINITIONS).await?;
    let repository = site.git.create("settings")?;
    let files = many_kinds::files(many_kinds::SERVICES);
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    repository.commit("main", &files)?;
    let spec = serde_json::from_value(json!({"url": site.git.url("settings")}))?;
    site.ours()
        .await?
        .create(&PostParams::default(), &GitRepository::new("settings", spec))
        .await?;
    let services: Api<ServiceDeployment> = site.ours().await?;
    let names: Vec<String> = (0..many_kinds::SERVICES).map(many_kinds::service).collect();
    for (n, name) in names.iter().enumerate() {
        let spec = json!({
            "clusterRef": {"name": CLUSTER}, "targetNamespace": name, "sourceRef": {"name": "settings"},
            "path": many_kinds::folder(n),
        });
        let service = ServiceDeployment::new(name, serde_json::from_value(spec)?);
        services.create(&PostParams::default(), &service).await?;
    }
    for name in &names {
        wait_for(&format!("{name} to be healthy"), HEALTHY, || async {
            let conditions = services.get(name).await?.status.unwrap_or_default().conditions;
            Ok(conditions
                .iter()
                .any(|one| one.type_ == "Ready" && one.status == "True")
                .then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// The kernel's counters of a pod's only container. The pause container belongs to the node, so it is not counted.
struct Container {
    process: u32,
    /// Its cgroup paths by controller. cgroup v2 has one path for all controllers.
    groups: Vec<(String, String)>,
}

impl Container {
    fn of(pod: &Pod) -> Result<Self> {
        let states = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        let id = states
            .and_then(|states| states.first()?.container_id.as_deref())
            .context("no container runs")?;
        let id = id.rsplit('/').next().unwrap_or(id);
        for entry in fs::read_dir("/proc").context("list processes")? {
            let Some(process) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // Skip a process that has ended meanwhile.
            let Ok(groups) = fs::read_to_string(format!("/proc/{process}/cgroup")) else {
                continue;
            };
            if groups.contains(id) {
                return Ok(Self {
                    process,
                    groups: parse_groups(&groups),
                });
            }
        }
        anyhow::bail!("no process of the container {id} found")
    }

    fn file(&self, controller: &str, v1: &str, v2: &str) -> Result<String> {
        let of = |wanted: &str| {
            self.groups
                .iter()
                .find(|(controllers, _)| controllers.split(',').any(|c| c == wanted))
        };
        let path = match (of(controller), of("")) {
            (Some((_, group)), _) => format!("/sys/fs/cgroup/{controller}{group}/{v1}"),
            (None, Some((_, group))) => format!("/sys/fs/cgroup{group}/{v2}"),
            (None, None) => anyhow::bail!("the kernel has no counters for {controller}"),
        };
        fs::read_to_string(&path).with_context(|| format!("read {path}"))
    }

    /// Memory as `kubectl top` reports it: usage without the inactive file cache.
    fn working_set(&self) -> Result<u64> {
        let used: u64 = self
            .file("memory", "memory.usage_in_bytes", "memory.current")?
            .trim()
            .parse()?;
        let stat = self.file("memory", "memory.stat", "memory.stat")?;
        let value = |name: &str| {
            stat.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let inactive = value("total_inactive_file ")
            .or_else(|| value("inactive_file "))
            .context("no inactive files")?;
        Ok(used.saturating_sub(inactive))
    }

    fn processor_time(&self) -> Result<Duration> {
        let text = self.file("cpuacct", "cpuacct.usage", "cpu.stat")?;
        match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
            Some(micros) => Ok(Duration::from_micros(micros.trim().parse()?)),
            None => Ok(Duration::from_nanos(text.trim().parse()?)),
        }
    }
}

/// Parses lines `ID:CONTROLLERS:PATH`.
fn parse_groups(text: &str) -> Vec<(String, String)> {
    let parsed = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_read() {
        let groups = parse_groups("4:memory:/k8s.io/abc\n2:cpu,cpuacct:/k8s.io/abc\n0::/pod\n");
        assert_eq!(groups[1], ("cpu,cpuacct".to_owned(), "/k8s.io/abc".to_owned()));
        assert_eq!(groups[2], (String::new(), "/pod".to_owned()));
    }
}
