//! One trace contains a delivery from the fetch of its commit until it is healthy, written by two programs.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::{Fleet, PATIENCE, collector::Collector, config_map};
use farwater_testkit::{Launch, shared, wait_for};

/// A Secret's value.
const CANARY: &str = "canary-91d0e7";
/// Base64, as in a Secret's data.
const ENCODED: &str = "Y2FuYXJ5LTkxZDBlNw==";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_leads_from_the_fetch_to_a_healthy_service() -> Result<()> {
    let collector = Collector::start().await?;
    let mut fleet = Fleet::launch(collector.launch()).await?;
    fleet.join_with("east", shared(1).await?, collector.launch()).await?;
    let secret = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\ndata: {{password: {ENCODED}}}\n");
    let map = config_map("a", "one");
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &map), ("app/s.yaml", &secret)])
        .await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let first = collector.until("roll out", 1).await?.remove(0);

    let second = repository.change("main", &[("app/a.yaml", Some(&config_map("a", "two")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &second).await?;
    let rollouts = collector.until("roll out", 2).await?;
    let rollout = rollouts
        .iter()
        .find(|span| span.trace != first.trace)
        .context("another entry is another trace")?;
    let of_trace = |name: &'static str| {
        let trace = rollout.trace.clone();
        let collector = &collector;
        async move {
            wait_for(name, PATIENCE, || async {
                Ok(collector.spans(name).into_iter().find(|span| span.trace == trace))
            })
            .await
        }
    };
    let delivery = of_trace("deliver").await?;
    ensure!(
        delivery.service == "farwater-hub" && delivery.parent.is_empty(),
        "{delivery:?}"
    );
    ensure!(
        rollout.service == "farwater-agent" && rollout.parent == delivery.id,
        "{rollout:?}"
    );
    let mut begun = delivery.begun;
    for name in ["fetch", "assign", "compute desired state"] {
        let span = of_trace(name).await?;
        ensure!(span.service == "farwater-hub" && span.parent == delivery.id, "{span:?}");
        ensure!(
            begun <= span.begun && span.begun <= span.ended && span.ended <= delivery.ended,
            "{span:?}"
        );
        begun = span.begun;
    }
    for name in ["poll", "download", "plan", "apply", "wait for health"] {
        let span = of_trace(name).await?;
        ensure!(
            span.service == "farwater-agent" && span.parent == rollout.id,
            "{span:?}"
        );
        ensure!(
            rollout.begun <= span.begun && span.begun <= span.ended && span.ended <= rollout.ended,
            "{span:?}"
        );
    }
    ensure!(rollout.ended > delivery.ended, "it is healthy after it was published");

    // Logs are sent in the same way, except messages about sending.
    wait_for("the log of both", PATIENCE, || async {
        let told = collector.told();
        let said = |service: &str, text: &str| told.logs.iter().any(|(of, line)| of == service && line == text);
        Ok((said("farwater-hub", "fetched") && said("farwater-agent", "accepted")).then_some(()))
    })
    .await?;
    let services: BTreeSet<String> = collector
        .told()
        .logs
        .iter()
        .map(|(service, _)| service.clone())
        .collect();
    ensure!(services.len() == 2, "{services:?}");
    let bodies = collector.told().bodies.concat();
    for canary in [CANARY, ENCODED] {
        let is_told = bodies.windows(canary.len()).any(|part| part == canary.as_bytes());
        ensure!(!is_told, "a Secret's value has left hub or agent");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_is_away_holds_up_nothing() -> Result<()> {
    let away = Launch::default().variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let mut fleet = Fleet::launch(away.clone()).await?;
    fleet.join_with("east", shared(1).await?, away).await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    // A program that has not ended in time after SIGTERM is killed, and that is an error.
    ensure!(fleet.agent("east")?.stop()?.success());
    ensure!(fleet.hub.stop()?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_otlp_is_asked_for_and_can_not_do_stops_the_start() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::default()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let refused = farwater_testkit::Hub::launch(dir.path(), launch).await;
    let text = format!("{:#}", refused.err().context("a hub that speaks no gRPC started")?);
    ensure!(
        text.contains("OTEL_EXPORTER_OTLP_PROTOCOL") && text.contains("http/protobuf"),
        "{text}"
    );
    Ok(())
}
