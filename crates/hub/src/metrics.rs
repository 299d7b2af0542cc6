//! The hub's metrics, in OpenMetrics' text form. Every label has a fixed set of values: no value comes from a client,
//! and no object of the fleet has a series of its own.

mod figures;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use farwater_store::Store;
use farwater_telemetry::process::Usage;
use http::Method;
use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric as _, text::encode},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
        info::Info,
    },
    registry::Registry,
};

use crate::{replica::Replica, server::Certificate};
use figures::{Figures, Shown};

/// In seconds: from a cached answer to a list of all objects.
const BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
];

/// The kind of a request, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Route {
    Api,
    Discovery,
    Agent,
    Webhook,
    Health,
    Metrics,
    Web,
    Other,
}

impl Route {
    pub fn of(path: &str) -> Self {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        match segments.next() {
            Some("api") if segments.clone().count() <= 1 => Self::Discovery,
            Some("apis") if segments.clone().count() <= 2 => Self::Discovery,
            Some("openapi") => Self::Discovery,
            Some("api" | "apis") => Self::Api,
            Some("agent") => Self::Agent,
            Some("hook") => Self::Webhook,
            Some("healthz" | "livez" | "readyz" | "version") => Self::Health,
            Some("metrics") => Self::Metrics,
            None | Some("ui") => Self::Web,
            _ => Self::Other,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Discovery => "discovery",
            Self::Agent => "agent",
            Self::Webhook => "webhook",
            Self::Health => "health",
            Self::Metrics => "metrics",
            Self::Web => "web",
            Self::Other => "other",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    method: &'static str,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: &'static str,
}

/// The hub's counters.
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter<u64, AtomicU64>>,
    durations: Family<RouteLabels, Histogram>,
    in_flight: Family<RouteLabels, Gauge<i64, AtomicI64>>,
    watches: Gauge<i64, AtomicI64>,
    connections: Gauge<i64, AtomicI64>,
    figures: Arc<Figures>,
    /// 1 while the files of a mounted certificate can't be served.
    pub(crate) tls_reload_failing: Gauge<i64, AtomicI64>,
}

impl Metrics {
    /// `data_dir`: its file system is measured.
    pub fn new(replica: Arc<Replica>, certificate: Arc<Certificate>, data_dir: PathBuf) -> Self {
        let mut root = Registry::default();
        // Under the usual names, for existing dashboards.
        root.register_collector(Box::new(OwnProcess {
            started: Timestamp::now().as_second(),
        }));

        let registry = root.sub_registry_with_prefix("farwater");
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of the running program", build);

        let requests = Family::default();
        registry.register("http_requests", "Answered HTTP requests", requests.clone());
        let durations = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let help = "Time from the head of a request to the head of its response, in seconds";
        registry.register("http_request_duration_seconds", help, durations.clone());
        let in_flight = Family::default();
        registry.register(
            "http_requests_in_flight",
            "HTTP requests in progress",
            in_flight.clone(),
        );
        let watches = Gauge::default();
        registry.register("watches", "Open watches", watches.clone());
        let connections = Gauge::default();
        registry.register("connections", "Open connections of clients", connections.clone());
        let tls_reload_failing = Gauge::default();
        let help = "1 while the files of the server's certificate have a new one that can't be used";
        registry.register("tls_reload_failing", help, tls_reload_failing.clone());

        registry.register_collector(Box::new(StorePosition(replica.store.clone())));
        replica.memory.counters.register(registry);
        registry.register_collector(Box::new(Certificates {
            server: certificate,
            replica: Arc::clone(&replica),
        }));

        let figures = Arc::new(Figures::new(Arc::clone(&replica), data_dir));
        registry.register_collector(Box::new(Shown(Arc::clone(&figures))));
        registry.register_collector(Box::new(SecretPlaces(Arc::clone(&replica))));
        registry.register_collector(Box::new(ControllerWork(replica)));

        Self {
            registry: root,
            requests,
            durations,
            in_flight,
            watches,
            connections,
            figures,
            tls_reload_failing,
        }
    }

    /// All metrics, as they are now.
    pub async fn scrape(&self) -> Result<String, std::fmt::Error> {
        self.figures.refresh().await;
        self.encode()
    }

    fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    pub(crate) fn count_request(&self, route: Route, method: &Method, code: u16, took: Duration) {
        let route = route.as_str();
        self.requests
            .get_or_create(&RequestLabels {
                route,
                method: method_label(method),
                code,
            })
            .inc();
        self.durations
            .get_or_create(&RouteLabels { route })
            .observe(took.as_secs_f64());
    }

    /// Counts a request as long as its answer lives.
    pub(crate) fn in_flight(&self, route: Route) -> Counted {
        Counted::new(
            self.in_flight
                .get_or_create(&RouteLabels { route: route.as_str() })
                .clone(),
        )
    }

    pub(crate) fn watch(&self) -> Counted {
        Counted::new(self.watches.clone())
    }

    pub(crate) fn connection(&self) -> Counted {
        Counted::new(self.connections.clone())
    }
}

/// Adds one to a gauge until it is dropped.
pub(crate) struct Counted(Gauge<i64, AtomicI64>);

impl Counted {
    pub fn new(gauge: Gauge<i64, AtomicI64>) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// Read for each scrape, because the store counts already.
struct StorePosition(Store);

impl std::fmt::Debug for StorePosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StorePosition(..)")
    }
}

impl Collector for StorePosition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = ConstGauge::new(self.0.position());
        let help = "Newest resource version that watches can see";
        gauge.encode(encoder.encode_descriptor("store_position", help, None, gauge.metric_type())?)
    }
}

/// When the certificates end that clients rely on.
struct Certificates {
    server: Arc<Certificate>,
    replica: Arc<Replica>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates(..)")
    }
}

impl Collector for Certificates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "End of a certificate, in Unix seconds: the hub's, and its own authority's, which agents pin";
        let mut metric =
            encoder.encode_descriptor("certificate_end_timestamp_seconds", help, None, MetricType::Gauge)?;
        let ends = [
            ("server", self.server.end()),
            ("authority", self.replica.identity.authority_end()),
        ];
        for (certificate, end) in ends {
            let Some(end) = end else { continue };
            ConstGauge::new(end).encode(metric.encode_family(&[("certificate", certificate)])?)?;
        }
        Ok(())
    }
}

/// Metrics of the process, under the names of Prometheus' own clients.
#[derive(Debug)]
struct OwnProcess {
    /// Seconds since 1970.
    started: i64,
}

impl Collector for OwnProcess {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let started = ConstGauge::new(self.started);
        let help = "Start time of the process, in Unix seconds";
        started.encode(encoder.encode_descriptor("process_start_time_seconds", help, None, MetricType::Gauge)?)?;
        let Some(usage) = Usage::read() else { return Ok(()) };
        let help = "User and system CPU time, in seconds";
        let cpu = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(usage.cpu_seconds).encode(cpu)?;
        let help = "Resident memory, in bytes";
        let memory = encoder.encode_descriptor("process_resident_memory_bytes", help, None, MetricType::Gauge)?;
        ConstGauge::new(usage.resident_bytes).encode(memory)
    }
}

/// State of the places besides the hub's database that secrets are read from.
struct SecretPlaces(Arc<Replica>);

impl std::fmt::Debug for SecretPlaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretPlaces(..)")
    }
}

impl Collector for SecretPlaces {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let conditions = self.0.secret_backends.conditions();
        let mut show = |name: &str, help: &str, count: u64| {
            let gauge = ConstGauge::new(count);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let away = conditions.iter().filter(|condition| condition.is_away).count();
        show(
            "secret_backends_away",
            "Secret backends that can't be reached; their last values stay in use",
            count(away),
        )?;
        let stale = conditions.iter().map(|condition| condition.stale).sum();
        show(
            "secret_references_stale",
            "References to secret backends whose last refresh failed; their last values stay in use",
            count(stale),
        )
    }
}

/// The work of the controllers, done and queued.
struct ControllerWork(Arc<Replica>);

impl std::fmt::Debug for ControllerWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ControllerWork(..)")
    }
}

impl Collector for ControllerWork {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let work = self.0.controller_work();
        let help = "Reconciles of a controller";
        let mut metric = encoder.encode_descriptor("reconciles", help, None, MetricType::Counter)?;
        for &(controller, counts) in &work {
            ConstCounter::new(counts.done).encode(metric.encode_family(&[("controller", controller)])?)?;
        }
        let help = "Failed reconciles of a controller; each is retried";
        let mut metric = encoder.encode_descriptor("reconcile_errors", help, None, MetricType::Counter)?;
        for &(controller, counts) in &work {
            ConstCounter::new(counts.failed).encode(metric.encode_family(&[("controller", controller)])?)?;
        }
        let help = "Objects that wait in a controller's queue";
        let mut metric = encoder.encode_descriptor("queue_depth", help, None, MetricType::Gauge)?;
        for &(controller, counts) in &work {
            ConstGauge::new(counts.ready as u64).encode(metric.encode_family(&[("controller", controller)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_told_by_the_path_alone() {
        let check = |path: &str, expected: Route| assert_eq!(Route::of(path), expected, "{path}");
        check("/", Route::Web);
        check("/ui/assets/a.js", Route::Web);
        check("/api", Route::Discovery);
        check("/api/v1", Route::Discovery);
        check("/apis/farwater.dev/v1alpha1", Route::Discovery);
        check("/openapi/v3/apis/farwater.dev/v1alpha1", Route::Discovery);
        check("/api/v1/namespaces", Route::Api);
        check("/apis/farwater.dev/v1alpha1/clusters", Route::Api);
        check("/agent/v1/desired", Route::Agent);
        check("/hook/0123", Route::Webhook);
        check("/readyz", Route::Health);
        check("/metrics", Route::Metrics);
        check("/anything/else", Route::Other);
    }
}
