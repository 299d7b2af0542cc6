//! An OTLP endpoint over HTTP that records all received data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use farwater_testkit::{Launch, wait_for};
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

use crate::PATIENCE;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub service: String,
    pub trace: Vec<u8>,
    pub id: Vec<u8>,
    pub parent: Vec<u8>,
    pub name: String,
    pub begun: u64,
    pub ended: u64,
}

#[derive(Debug, Default)]
pub struct Told {
    pub spans: Vec<Span>,
    /// Service and text of each log record.
    pub logs: Vec<(String, String)>,
    /// All received bytes.
    pub bodies: Vec<bytes::Bytes>,
}

#[derive(Debug)]
pub struct Collector {
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
    resource
        .map(|resource| text(&resource.attributes, "service.name"))
        .unwrap_or_default()
}

impl Told {
    fn take(&mut self, path: &str, body: bytes::Bytes) -> Result<()> {
        match path {
            "/v1/traces" => {
                for resource in ExportTraceServiceRequest::decode(&*body)?.resource_spans {
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
                for resource in ExportLogsServiceRequest::decode(&*body)?.resource_logs {
                    let service = service(resource.resource.as_ref());
                    for record in resource.scope_logs.into_iter().flat_map(|scope| scope.log_records) {
                        let body = record.body.and_then(|body| body.value);
                        let Some(Any::StringValue(text)) = body else { continue };
                        self.logs.push((service.clone(), text));
                    }
                }
            }
            other => anyhow::bail!("{other} is not a path of OTLP"),
        }
        self.bodies.push(body);
        Ok(())
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector {
    pub async fn start() -> Result<Self> {
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
                        lock(&taken).take(&path, body)?;
                        anyhow::Ok(Response::new(Full::<bytes::Bytes>::default()))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Ok(Self { url, told })
    }

    /// Settings for a program that sends soon.
    pub fn launch(&self) -> Launch {
        Launch::default()
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", &self.url)
            .variable("OTEL_BSP_SCHEDULE_DELAY", "200")
            .variable("OTEL_BLRP_SCHEDULE_DELAY", "200")
    }

    pub fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }

    pub fn spans(&self, name: &str) -> Vec<Span> {
        self.told()
            .spans
            .iter()
            .filter(|span| span.name == name)
            .cloned()
            .collect()
    }

    pub async fn until(&self, name: &str, number: usize) -> Result<Vec<Span>> {
        let what = format!("{number} spans {name:?}");
        let found = wait_for(&what, PATIENCE, || async {
            let found = self.spans(name);
            Ok((found.len() >= number).then_some(found))
        });
        found.await.with_context(|| format!("{:#?}", self.told().spans))
    }
}
