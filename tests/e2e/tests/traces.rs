//! One trace holds a delivery from the fetch of its commit until it is healthy, written by two programs.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::{Fleet, PATIENCE, config_map};
use farwater_testkit::{Launch, shared, wait_for};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::{
    collector::{logs::v1::ExportLogsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{KeyValue, any_value::Value as Any},
    resource::v1::Resource,
};
use prost::Message as _;
use tokio::net::TcpListener;

/// A Secret's value.
const CANARY: &str = "canary-91d0e7";
/// In base64, as a Secret's data is written.
const ENCODED: &str = "Y2FuYXJ5LTkxZDBlNw==";

/// What an endpoint was told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    service: String,
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    name: String,
    begun: u64,
    ended: u64,
}

#[derive(Default)]
struct Told {
    /// All that came, as it came.
    bodies: Vec<Vec<u8>>,
    spans: Vec<Span>,
    /// Service and text.
    logs: Vec<(String, String)>,
}

/// An OTLP endpoint over HTTP.
struct Collector {
    url: String,
    told: Arc<Mutex<Told>>,
}

fn text(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Any::StringValue(text)) => text.clone(),
        _ => String::new(),
    }
}

fn service(resource: Option<&Resource>) -> String {
    resource.map(|resource| text(&resource.attributes, "service.name")).unwrap_or_default()
}

impl Told {
    fn take(&mut self, path: &str, body: &[u8]) -> Result<()> {
        self.bodies.push(body.to_vec());
        match path {
            "/v1/traces" => {
                for resource in ExportTraceServiceRequest::decode(body)?.resource_spans {
                    let service = service(resource.resource.as_ref());
                    let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                    self.spans.extend(spans.map(|span| Span {
                        service: service.clone(),
                        trace: span.trace_id,
                        id: span.span_id,
                        parent: span.parent_span_id,
                        name: span.name,
                        begun: span.start_time_unix_nano,
                        ended: span.end_time_unix_nano,
                    }));
                }
            }
            "/v1/logs" => {
                for resource in ExportLogsServiceRequest::decode(body)?.resource_logs {
                    let service = service(resource.resource.as_ref());
                    for record in resource.scope_logs.into_iter().flat_map(|scope| scope.log_records) {
                        let body = record.body.and_then(|body| body.value);
                        let Some(Any::StringValue(text)) = body else { continue };
                        self.logs.push((service.clone(), text));
                    }
                }
            }
            other => anyhow::bail!("{other} is no path of OTLP"),
        }
        Ok(())
    }
}

impl Collector {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let told: Arc<Mutex<Told>> = Arc::default();
        let taken = Arc::clone(&told);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let taken = Arc::clone(&taken);
                let answer = service_fn(move |request: Request<Incoming>| {
                    let taken = Arc::clone(&taken);
                    async move {
                        let path = request.uri().path().to_owned();
                        let body = request.into_body().collect().await?.to_bytes();
                        taken.lock().unwrap().take(&path, &body)?;
                        anyhow::Ok(Response::new(Full::<bytes::Bytes>::default()))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Ok(Self { url, told })
    }

    /// For a program that sends soon.
    fn launch(&self) -> Launch {
        Launch::default()
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", &self.url)
            .variable("OTEL_BSP_SCHEDULE_DELAY", "200")
            .variable("OTEL_BLRP_SCHEDULE_DELAY", "200")
    }

    fn spans(&self, name: &str) -> Vec<Span> {
        self.told.lock().unwrap().spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    async fn until(&self, name: &str, number: usize) -> Result<Vec<Span>> {
        let what = format!("{number} spans {name:?}");
        let found = wait_for(&what, PATIENCE, || async {
            let found = self.spans(name);
            Ok((found.len() >= number).then_some(found))
        });
        found.await.with_context(|| format!("{:#?}", self.told.lock().unwrap().spans))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_leads_from_the_fetch_to_a_healthy_service() -> Result<()> {
    let collector = Collector::start().await?;
    let mut fleet = Fleet::launch(collector.launch()).await?;
    fleet.join_with("east", shared(1).await?, collector.launch()).await?;
    let secret = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\ndata: {{password: {ENCODED}}}\n");
    let map = config_map("a", "one");
    let repository = fleet.repository("infra", &[("app/a.yaml", &map), ("app/s.yaml", &secret)]).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet.until_applied("app", &repository.branch("main").unwrap_or_default()).await?;
    let first = collector.until("roll out", 1).await?.remove(0);

    let second = repository.change("main", &[("app/a.yaml", Some(&config_map("a", "two")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &second).await?;
    let rollouts = collector.until("roll out", 2).await?;
    let rollout = rollouts.iter().find(|span| span.trace != first.trace).context("another entry is another trace")?;
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
    ensure!(delivery.service == "farwater-hub" && delivery.parent.is_empty(), "{delivery:?}");
    ensure!(rollout.service == "farwater-agent" && rollout.parent == delivery.id, "{rollout:?}");
    let mut begun = delivery.begun;
    for name in ["fetch", "assign", "compute desired state"] {
        let span = of_trace(name).await?;
        ensure!(span.service == "farwater-hub" && span.parent == delivery.id, "{span:?}");
        ensure!(begun <= span.begun && span.begun <= span.ended && span.ended <= delivery.ended, "{span:?}");
        begun = span.begun;
    }
    for name in ["poll", "download", "plan", "apply", "wait for health"] {
        let span = of_trace(name).await?;
        ensure!(span.service == "farwater-agent" && span.parent == rollout.id, "{span:?}");
        ensure!(rollout.begun <= span.begun && span.begun <= span.ended && span.ended <= rollout.ended, "{span:?}");
    }
    ensure!(rollout.ended > delivery.ended, "it is healthy after it was published");

    // The log goes the same way, and what sending writes to the log does not.
    wait_for("the log of both", PATIENCE, || async {
        let told = collector.told.lock().unwrap();
        let said = |service: &str, text: &str| told.logs.iter().any(|(of, line)| of == service && line == text);
        Ok((said("farwater-hub", "fetched") && said("farwater-agent", "accepted")).then_some(()))
    })
    .await?;
    let services: BTreeSet<String> =
        collector.told.lock().unwrap().logs.iter().map(|(service, _)| service.clone()).collect();
    ensure!(services.len() == 2, "{services:?}");
    let bodies = collector.told.lock().unwrap().bodies.concat();
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
    let repository = fleet.repository("infra", &[("app/a.yaml", &config_map("a", "one"))]).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet.until_applied("app", &repository.branch("main").unwrap_or_default()).await?;
    ensure!(fleet.agent("east")?.stop()?.success());
    let begun = std::time::Instant::now();
    ensure!(fleet.hub.stop()?.success());
    ensure!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
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
    ensure!(text.contains("OTEL_EXPORTER_OTLP_PROTOCOL") && text.contains("http/protobuf"), "{text}");
    Ok(())
}
