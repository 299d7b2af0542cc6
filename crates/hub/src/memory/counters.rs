//! Counters of the delivery from a source to a cluster.

use farwater_api::receiver::ReceiverType;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// In seconds: from a remote on the same machine to the longest time that a fetch may take.
const FETCH_BUCKETS: [f64; 9] = [0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0];

/// Result of fetching a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchResult {
    Moved,
    Unchanged,
    Failed,
}

impl FetchResult {
    const ALL: [Self; 3] = [Self::Moved, Self::Unchanged, Self::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Unchanged => "unchanged",
            Self::Failed => "failed",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FetchLabels {
    result: &'static str,
}

/// Why an agent's connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The agent closed it.
    Closed,
    /// Mostly by something in the network.
    Broken,
    /// A ping had no answer.
    Silent,
    /// The same agent has opened another one, or another process speaks for its cluster.
    Replaced,
    /// The agent's polls are refused too.
    Refused,
    /// The agent sent more messages than agents do.
    Noisy,
    HubStops,
}

impl Ended {
    const ALL: [Self; 7] = [
        Self::Closed,
        Self::Broken,
        Self::Silent,
        Self::Replaced,
        Self::Refused,
        Self::Noisy,
        Self::HubStops,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Broken => "broken",
            Self::Silent => "silent",
            Self::Replaced => "replaced",
            Self::Refused => "refused",
            Self::Noisy => "noisy",
            Self::HubStops => "hub_stops",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    reason: &'static str,
}

/// Result of a webhook's delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    Taken,
    /// An event that its receiver does not act upon.
    Ignored,
    /// Its signature is wrong or missing, or there is no such receiver.
    Unsigned,
    Unreadable,
    TooLarge,
    TooSlow,
}

impl DeliveryResult {
    const ALL: [Self; 6] = [
        Self::Taken,
        Self::Ignored,
        Self::Unsigned,
        Self::Unreadable,
        Self::TooLarge,
        Self::TooSlow,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Ignored => "ignored",
            Self::Unsigned => "unsigned",
            Self::Unreadable => "unreadable",
            Self::TooLarge => "too_large",
            Self::TooSlow => "too_slow",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    r#type: &'static str,
    result: &'static str,
}

/// Label of a delivery to a path that no receiver has.
const NO_TYPE: &str = "none";

fn type_label(kind: Option<ReceiverType>) -> &'static str {
    kind.map_or(NO_TYPE, ReceiverType::as_str)
}

pub struct Counters {
    fetches: Family<FetchLabels, Counter>,
    fetch_time: Histogram,
    /// Services whose parameters were resolved.
    pub parameters_resolved: Counter,
    /// New desired states of clusters.
    pub published: Counter,
    /// Services that agents have reported on.
    pub reported: Counter,
    /// Bundles that were sent to agents.
    pub bundles: Counter,
    /// Connections that agents have opened.
    pub connected: Counter,
    ends: Family<EndLabels, Counter>,
    /// Hints that connected agents got, besides the first message.
    pub hints: Counter,
    deliveries: Family<DeliveryLabels, Counter>,
}

impl Default for Counters {
    fn default() -> Self {
        let counters = Self {
            fetches: Family::default(),
            fetch_time: Histogram::new(FETCH_BUCKETS),
            parameters_resolved: Counter::default(),
            published: Counter::default(),
            reported: Counter::default(),
            bundles: Counter::default(),
            connected: Counter::default(),
            ends: Family::default(),
            hints: Counter::default(),
            deliveries: Family::default(),
        };
        // Create all labels at the start: a rate then begins with the first failure, not with the second.
        for result in FetchResult::ALL {
            drop(counters.fetches.get_or_create(&FetchLabels {
                result: result.as_str(),
            }));
        }
        for reason in Ended::ALL {
            drop(counters.ends.get_or_create(&EndLabels {
                reason: reason.as_str(),
            }));
        }
        for kind in ReceiverType::ALL.into_iter().map(Some).chain([None]) {
            for result in DeliveryResult::ALL {
                let labels = DeliveryLabels {
                    r#type: type_label(kind),
                    result: result.as_str(),
                };
                drop(counters.deliveries.get_or_create(&labels));
            }
        }
        counters
    }
}

impl Counters {
    pub fn count_fetch(&self, result: FetchResult, took: std::time::Duration) {
        self.fetches
            .get_or_create(&FetchLabels {
                result: result.as_str(),
            })
            .inc();
        self.fetch_time.observe(took.as_secs_f64());
    }

    pub fn count_ended(&self, reason: Ended) {
        self.ends
            .get_or_create(&EndLabels {
                reason: reason.as_str(),
            })
            .inc();
    }

    /// `kind`: type of the receiver at the delivery's path.
    pub fn count_delivery(&self, kind: Option<ReceiverType>, result: DeliveryResult) {
        self.deliveries
            .get_or_create(&DeliveryLabels {
                r#type: type_label(kind),
                result: result.as_str(),
            })
            .inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "fetches",
            "Fetches from remotes of sources, by result",
            self.fetches.clone(),
        );
        let help = "Duration of fetches from remotes of sources, in seconds";
        registry.register("fetch_duration_seconds", help, self.fetch_time.clone());
        let help = "Services whose parameters were resolved again";
        registry.register("parameters_resolved", help, self.parameters_resolved.clone());
        registry.register(
            "desired_published",
            "Desired states published for clusters",
            self.published.clone(),
        );
        registry.register(
            "services_reported",
            "Services in reports of agents",
            self.reported.clone(),
        );
        registry.register("bundles_sent", "Bundles sent to agents", self.bundles.clone());
        registry.register(
            "agent_connections",
            "Connections opened by agents",
            self.connected.clone(),
        );
        let help = "Connections of agents that ended, by reason";
        registry.register("agent_connections_ended", help, self.ends.clone());
        registry.register("agent_hints", "Hints sent to connected agents", self.hints.clone());
        let help = "Deliveries of webhooks, by receiver type and result";
        registry.register("webhook_deliveries", help, self.deliveries.clone());
    }
}
