//! The API with many objects: the cost of a page, a get, a write and a watcher, and the hub's memory.

mod fill;
mod raw_sql;
mod storm;
mod watching;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use farwater_testkit::{Hub, temporary_folder};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use super::{Figure, median, milliseconds, percentile, usage};
use fill::{NAMESPACES, name_of, namespace_of, service};

const PAGE: usize = 500;
const PAGES: usize = 100;
const GETS: usize = 1_000;
const WRITERS: usize = 64;
const WRITING: Duration = Duration::from_secs(5);
/// Time without work after which the hub counts as idle.
const LOOK: Duration = Duration::from_secs(2);
const STORM: usize = 100_000;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let sizes: &[usize] = if quick {
        &[10_000]
    } else {
        &[10_000, 200_000, 1_000_000]
    };
    let mut figures = Vec::new();
    for size in sizes {
        figures.extend(measure_size(*size).await?);
    }
    Ok(figures)
}

async fn measure_size(size: usize) -> Result<Vec<Figure>> {
    let workload = format!("{size} ServiceDeployments of 3 KB in {NAMESPACES} namespaces");
    // On a disk, because the database takes some gigabytes.
    let dir = temporary_folder("farwater-bench-")?;
    let mut hub = Hub::start(dir.path()).await?;
    fill::namespaces(&hub.client().await?).await?;
    hub.stop()?;
    fill::services(dir.path(), size).await?;

    let begun = Instant::now();
    hub.restart().await?;
    let started = begun.elapsed();
    eprintln!(
        "{size}: ready after {} ms; waiting until every service is reconciled",
        milliseconds(started)
    );
    let settled = rest(&mut hub).await?;
    let working = usage::memory(hub.process().id())?.resident;
    hub.stop()?;
    let begun = Instant::now();
    hub.restart().await?;
    let again = begun.elapsed();
    rest(&mut hub).await?;
    let client = hub.client().await?;

    let mut pages = pages(&client, size).await?;
    let mut gets = gets(&client, size).await?;
    let memory = usage::memory(hub.process().id())?.resident;
    eprintln!("{size}: {:.0} MB resident; watches", usage::megabytes(memory));
    let mut lags = watching::lags(&client, size).await?;
    rest(&mut hub).await?;
    eprintln!("{size}: writes");
    let single = writes(&client, config_map, 0, 1).await?;
    let batched = writes(&client, config_map, 1_000_000, WRITERS).await?;
    let services = writes(&client, new_service, size, WRITERS).await?;
    let raw_single = raw_sql::writes(dir.path(), 1, WRITING).await?;
    let raw_batched = raw_sql::writes(dir.path(), 50, WRITING).await?;
    let after = usage::memory(hub.process().id())?.resident;

    let figure = |metric: &str, value: f64, unit| Figure::new(metric, &workload, value, unit);
    let rate = |value: f64| value.round();
    Ok(vec![
        figure("start_of_unknown_services", milliseconds(started), "ms").at_most(10_000.0),
        figure("every_service_looked_at_after", settled.as_secs_f64().round(), "s"),
        figure("start", milliseconds(again), "ms").at_most(10_000.0),
        figure("page_of_500_p50", milliseconds(percentile(&mut pages, 0.5)), "ms").at_most(20.0),
        figure("page_of_500_p99", milliseconds(percentile(&mut pages, 0.99)), "ms"),
        figure("get_p50", milliseconds(percentile(&mut gets, 0.5)), "ms"),
        figure("get_p99", milliseconds(percentile(&mut gets, 0.99)), "ms"),
        figure("watch_lag_p50", milliseconds(percentile(&mut lags, 0.5)), "ms"),
        figure("watch_lag_p99", milliseconds(percentile(&mut lags, 0.99)), "ms").at_most(250.0),
        figure("config_maps_of_one_client", rate(single), "1/s").beside(
            "SQLite, one row each".to_owned(),
            rate(raw_single),
            0.1,
        ),
        figure("config_maps_of_64_clients", rate(batched), "1/s").beside(
            "SQLite, 50 rows each".to_owned(),
            rate(raw_batched),
            0.1,
        ),
        // Measured while the controllers hold, assign and summarize each new service.
        figure("services_of_64_clients", rate(services), "1/s"),
        figure("hub_resident_after_looking_at_all", usage::megabytes(working), "MB").at_most(1_500.0),
        figure("hub_resident", usage::megabytes(memory), "MB").at_most(1_500.0),
        figure("hub_resident_after_all", usage::megabytes(after), "MB").at_most(1_500.0),
    ])
}

/// Measures agents' polls during lists, with the services of a small fleet.
pub async fn measure_storm(quick: bool) -> Result<Vec<Figure>> {
    const SERVICES: usize = 10_000;
    let count = if quick { STORM / 10 } else { STORM };
    let dir = temporary_folder("farwater-bench-")?;
    let mut hub = Hub::start(dir.path()).await?;
    fill::namespaces(&hub.client().await?).await?;
    hub.stop()?;
    fill::services(dir.path(), SERVICES).await?;
    hub.restart().await?;
    rest(&mut hub).await?;
    let mut rounds = storm::storm(&hub, count).await?;
    let workload = format!(
        "{} polls a second, {count} lists of 50 of {SERVICES} services, median of {} rounds",
        storm::POLLS_A_SECOND,
        storm::ROUNDS
    );
    let figure = |metric: &str, value: f64, unit| Figure::new(metric, &workload, value, unit);
    let mut over = |what: fn(&mut storm::Round) -> f64| median(rounds.iter_mut().map(what).collect());
    Ok(vec![
        figure("lists", over(|round| round.lists).round(), "1/s"),
        figure(
            "poll_p50_without",
            over(|round| milliseconds(percentile(&mut round.quiet, 0.5))),
            "ms",
        ),
        figure(
            "poll_p50_in_storm",
            over(|round| milliseconds(percentile(&mut round.stormy, 0.5))),
            "ms",
        ),
        figure(
            "poll_p99_without",
            over(|round| milliseconds(percentile(&mut round.quiet, 0.99))),
            "ms",
        ),
        figure(
            "poll_p99_in_storm",
            over(|round| milliseconds(percentile(&mut round.stormy, 0.99))),
            "ms",
        ),
        figure("poll_p99_ratio", over(storm::Round::ratio), "").at_most(2.0),
    ])
}

/// Waits until the controllers have no work left.
async fn rest(hub: &mut Hub) -> Result<Duration> {
    const LONGEST: Duration = Duration::from_secs(3600);
    let (process, begun) = (hub.process().id(), Instant::now());
    loop {
        let before = usage::processor_time(process)?;
        tokio::time::sleep(LOOK).await;
        if usage::processor_time(process)? - before < LOOK.mul_f64(0.1) {
            return Ok(begun.elapsed());
        }
        ensure!(begun.elapsed() < LONGEST, "the hub is not idle after {LONGEST:?}");
    }
}

fn collection(n: usize) -> String {
    format!(
        "/apis/farwater.dev/v1alpha1/namespaces/{}/servicedeployments",
        namespace_of(n)
    )
}

/// The response as bytes. Parsing it is the client's cost, so it is not measured.
async fn fetch(client: &Client, path: &str) -> Result<Bytes> {
    let response = client.send(Request::get(path).body(Body::empty())?).await?;
    let code = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    ensure!(
        code == StatusCode::OK,
        "{path}: {code} {}",
        String::from_utf8_lossy(&body)
    );
    Ok(body)
}

/// Reads pages from random places of the whole list.
async fn pages(client: &Client, size: usize) -> Result<Vec<Duration>> {
    let mut random = StdRng::seed_from_u64(1);
    let mut times = Vec::new();
    for _ in 0..PAGES {
        let place = random.random_range(0..size);
        let path = format!("{}?limit={PAGE}", collection(place));
        let start = Instant::now();
        let body = fetch(client, &path).await?;
        times.push(start.elapsed());
        ensure!(
            body.len() > PAGE.min(size / NAMESPACES) * 2_000,
            "a page of {} bytes",
            body.len()
        );
    }
    Ok(times)
}

async fn gets(client: &Client, size: usize) -> Result<Vec<Duration>> {
    let mut random = StdRng::seed_from_u64(2);
    let mut times = Vec::new();
    for _ in 0..GETS {
        let n = random.random_range(0..size);
        let path = format!("{}/{}", collection(n), name_of(n));
        let start = Instant::now();
        fetch(client, &path).await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

fn new_service(n: usize) -> (String, Value) {
    (collection(n), service(n))
}

/// An object of a service's size that only the API server handles.
fn config_map(n: usize) -> (String, Value) {
    let data = json!({"text": "x".repeat(2_600)});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name_of(n)}, "data": data});
    (format!("/api/v1/namespaces/{}/configmaps", namespace_of(n)), object)
}

/// New objects per second, written by several concurrent clients.
async fn writes(client: &Client, new: fn(usize) -> (String, Value), first: usize, writers: usize) -> Result<f64> {
    let begun = Instant::now();
    let created = stream::iter(first..)
        .take_while(|_| async { begun.elapsed() < WRITING })
        .map(|n| async move {
            let (path, object) = new(n);
            let request = Request::post(path).header("content-type", "application/json");
            let response = client
                .send(request.body(Body::from(object.to_string().into_bytes()))?)
                .await?;
            ensure!(
                response.status() == StatusCode::CREATED,
                "create {n}: {}",
                response.status()
            );
            response.into_body().collect().await?;
            anyhow::Ok(())
        })
        .buffer_unordered(writers)
        .try_fold(0_u32, |count, ()| async move { Ok(count + 1) })
        .await?;
    Ok(f64::from(created) / begun.elapsed().as_secs_f64())
}
