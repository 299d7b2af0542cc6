//! Logs and traces over OTLP (HTTP, protobuf). OpenTelemetry's standard variables configure it; without an endpoint it
//! is off.

mod environment;
mod sender;

use std::{sync::Arc, time::Duration};

use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{ExporterBuildError, LogExporter, SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    logs::{SdkLogger, SdkLoggerProvider},
    trace::{
        BatchSpanProcessor, Sampler, SamplingDecision, ShouldSample as _, SpanData, SpanEvents, SpanLinks,
        SpanProcessor as _,
    },
};

pub use environment::{Environment, EnvironmentError};
use sender::Sender;
pub use sender::SenderError;

use crate::traces::{self, Span};

/// Maximum time to send the rest when the program ends.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Layer of `tracing_subscriber` that sends events as logs.
pub type LogLayer = OpenTelemetryTracingBridge<SdkLoggerProvider, SdkLogger>;

#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Sender(#[from] SenderError),
    #[error("set up OTLP")]
    Build(#[from] ExporterBuildError),
}

/// The configured exporters. Keep it until the program ends, then call [`Otlp::close`].
pub struct Otlp {
    logs: Option<SdkLoggerProvider>,
    spans: Option<Arc<Spans>>,
}

impl Otlp {
    /// Configures the exporters by the variables. None: they name no endpoint. Call it in a Tokio runtime, which sends
    /// the requests.
    ///
    /// `service`: name of the program, unless a variable names it.
    pub fn start(service: &'static str, version: &'static str) -> Result<Option<Self>, OtlpError> {
        let environment = Environment::read(|name| std::env::var(name).ok())?;
        if environment.is_off() {
            return Ok(None);
        }
        let sender = Sender::new(environment.certificate.as_deref())?;
        let resource = resource(service, version, &environment);
        let logs = match environment.logs {
            true => {
                let exporter = LogExporter::builder()
                    .with_http()
                    .with_http_client(sender.clone())
                    .build()?;
                Some(
                    SdkLoggerProvider::builder()
                        .with_resource(resource.clone())
                        .with_batch_exporter(exporter)
                        .build(),
                )
            }
            false => None,
        };
        let spans = match environment.traces {
            true => {
                let exporter = SpanExporter::builder().with_http().with_http_client(sender).build()?;
                let mut processor = BatchSpanProcessor::builder(exporter).build();
                processor.set_resource(&resource);
                let scope = InstrumentationScope::builder("farwater").with_version(version).build();
                Some(Arc::new(Spans {
                    processor,
                    scope,
                    sampler: environment.sampler,
                }))
            }
            false => None,
        };
        if let Some(spans) = &spans {
            traces::set_sink(Box::new(Arc::clone(spans)));
        }
        Ok(Some(Self { logs, spans }))
    }

    pub fn log_layer(&self) -> Option<LogLayer> {
        self.logs.as_ref().map(OpenTelemetryTracingBridge::new)
    }

    /// Sends the waiting batches for a short time. It blocks while the runtime sends, so call it where blocking is
    /// allowed.
    pub fn close(self) {
        if let Some(spans) = self.spans {
            let _ = spans.processor.shutdown_with_timeout(LAST_WORDS);
        }
        if let Some(logs) = self.logs {
            let _ = logs.shutdown_with_timeout(LAST_WORDS);
        }
    }
}

/// Whether an event is sent. Events of the sender itself are not, because each would cause further ones.
pub fn is_sent(metadata: &tracing::Metadata<'_>) -> bool {
    const OWN: [&str; 6] = ["opentelemetry", "hyper", "h2", "tower", "rustls", "farwater_telemetry"];
    !OWN.iter().any(|own| metadata.target().starts_with(own))
}

fn resource(service: &'static str, version: &'static str, environment: &Environment) -> Resource {
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", version));
    match environment.names_service {
        true => resource.build(),
        false => resource.with_service_name(service).build(),
    }
}

struct Spans {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    sampler: Sampler,
}

impl traces::Sink for Arc<Spans> {
    fn take(&self, span: Span) {
        let trace = TraceId::from_bytes(span.trace);
        // Depends only on the trace's id, which both programs know, so a trace is sampled as a whole or not at all.
        let sampled = self
            .sampler
            .should_sample(None, trace, span.name, &SpanKind::Internal, &[], &[]);
        if sampled.decision == SamplingDecision::RecordAndSample {
            self.processor.on_end(data(span, self.scope.clone()));
        }
    }
}

fn data(span: Span, scope: InstrumentationScope) -> SpanData {
    let id = span.id.unwrap_or_else(rand::random);
    let attributes = span
        .attributes
        .into_iter()
        .map(|(name, value)| KeyValue::new(name, value))
        .collect();
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(span.trace),
            SpanId::from_bytes(id),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: span.name.into(),
        start_time: span.interval.begun,
        end_time: span.interval.ended,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.error.map_or(Status::Unset, Status::error),
        instrumentation_scope: scope,
    }
}
