//! Other clients that apply the same objects.

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::flux::Flux;
use farwater_testkit::{Plane, temporary_folder};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    LONGEST,
    timing::{Meter, Run, Span},
};
use crate::bench::agent::maps::{self, PER_FILE, PHASES, Phase, Seen};

const FLUX_NAMESPACE: &str = "flux-system";
/// Arguments that Flux's documentation recommends for many Kustomizations.
const FLUX_ARGUMENTS: [&str; 3] = ["--concurrent=20", "--kube-api-qps=500", "--kube-api-burst=1000"];
/// Number of concurrent requests that create Kustomizations.
const IN_FLIGHT: usize = 32;

/// Waits until the last of the objects was seen.
type Looking = JoinHandle<Result<Seen>>;

/// Starts to watch for so many objects, unless nothing will be written.
async fn look(plane: &Plane, namespace: &str, count: usize, phase: Phase) -> Result<Option<Looking>> {
    if phase == Phase::Unchanged {
        return Ok(None);
    }
    let watch = maps::watch(plane.client().await?, namespace, count).await?;
    Ok(Some(tokio::spawn(watch)))
}

/// A bare client with so many requests in flight. The time starts with its first request, in an existing namespace.
/// `marked`: it sends what the agent sends, so that the API server has the same work for each object.
pub async fn bare(plane: &mut Plane, name: &str, count: usize, in_flight: usize, marked: bool) -> Result<Vec<Run>> {
    let namespace = plane.namespace(name).await?;
    let client = plane.client().await?;
    let mut runs = Vec::new();
    for phase in PHASES {
        let objects = maps::objects(count, phase)?;
        let objects = if marked {
            maps::marked(&namespace, objects)
        } else {
            objects
        };
        let looking = look(plane, &namespace, count, phase).await?;
        let meter = Meter::start(plane, None)?;
        let began = Timestamp::now();
        maps::apply(client.clone(), &namespace, &objects, in_flight).await?;
        let span = match looking {
            Some(seen) => {
                let seen = tokio::time::timeout(LONGEST, seen)
                    .await
                    .context("wait for the objects of the bare client")???;
                Span::seen(began, &seen)
            }
            None => Span::until(began, Timestamp::now()),
        };
        runs.push(meter.stop(plane, count, &span)?);
    }
    Ok(runs)
}

/// Measures `kubectl apply --server-side` of the folder, from its start to its end.
pub async fn kubectl(plane: &mut Plane, name: &str, count: usize) -> Result<Vec<Run>> {
    let namespace = plane.namespace(name).await?;
    let dir = temporary_folder("farwater-bench-")?;
    let mut runs = Vec::new();
    for phase in PHASES {
        for n in 0..count / PER_FILE {
            std::fs::write(dir.path().join(format!("{n:04}.yaml")), maps::file(n, phase))?;
        }
        let mut command = tokio::process::Command::from(plane.kubectl()?);
        command
            .args(["apply", "--server-side", "--namespace", &namespace, "--filename"])
            .arg(dir.path());
        let meter = Meter::start(plane, None)?;
        let began = Timestamp::now();
        let output = command.output().await.context("run kubectl")?;
        let span = Span::until(began, Timestamp::now());
        ensure!(
            output.status.success(),
            "kubectl apply: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        runs.push(meter.stop(plane, count, &span)?);
    }
    Ok(runs)
}

/// Flux, with a Kustomization for every four objects, as in Flux's own benchmark. The time starts before the source
/// names the archive that a source-controller would create. All Kustomizations unpack this small archive and prefix its
/// names. A repository with a folder for each would be slower.
pub async fn flux(plane: &mut Plane, name: &str, count: usize) -> Result<Vec<Run>> {
    let namespace = plane.namespace(name).await?;
    let flux = Flux::start(
        &plane.client().await?,
        plane.kubeconfig(),
        FLUX_NAMESPACE,
        &FLUX_ARGUMENTS,
    )
    .await?;
    let process = flux.process().id();
    let archive = |phase| [("app/maps.yaml", maps::file(0, phase))];
    // Warm up: Flux has started and discovered the cluster's API before the measurement.
    flux.publish(&commit(0), &archive(Phase::Created)).await?;
    flux.add("warm-up", kustomization("warm-up-", FLUX_NAMESPACE)).await?;
    flux.until_applied(&commit(0), LONGEST).await?;
    let mut runs = Vec::new();
    for (n, phase) in PHASES.into_iter().enumerate() {
        let commit = commit(n + 1);
        let looking = look(plane, &namespace, count, phase).await?;
        let meter = Meter::start(plane, Some(process))?;
        let began = Timestamp::now();
        flux.publish(&commit, &archive(phase)).await?;
        if phase == Phase::Created {
            add_all(&flux, count / PER_FILE, &namespace).await?;
        }
        let span = match looking {
            Some(seen) => {
                let seen = tokio::time::timeout(LONGEST, seen)
                    .await
                    .with_context(|| flux.process().tail())???;
                Span::seen(began, &seen)
            }
            None => {
                flux.until_applied(&commit, LONGEST).await?;
                Span::until(began, Timestamp::now())
            }
        };
        runs.push(meter.stop(plane, count, &span)?);
        flux.until_applied(&commit, LONGEST).await?;
    }
    Ok(runs)
}

fn commit(n: usize) -> String {
    format!("{n:040x}")
}

fn kustomization(prefix: &str, namespace: &str) -> Value {
    json!({
        "interval": "1h", "retryInterval": "5s", "timeout": "4m", "prune": true, "wait": false, "path": "./app",
        "namePrefix": prefix, "targetNamespace": namespace,
    })
}

async fn add_all(flux: &Flux, count: usize, namespace: &str) -> Result<()> {
    let names = (0..count).map(|n| format!("app-{n:04}"));
    stream::iter(names)
        .map(|name| async move { flux.add(&name, kustomization(&format!("{name}-"), namespace)).await })
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await
}
