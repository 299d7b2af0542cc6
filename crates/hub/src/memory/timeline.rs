//! The steps that led to an entry of a cluster's desired state, reported as a trace once the state is published. Only
//! then is the trace known, because its id derives from the entry. Nothing is kept while traces are off.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use farwater_api::{
    Digest,
    protocol::{Action, Entry, ServiceIdentity, Verbatim},
    trace::{delivery_span_id, trace_id},
};
use farwater_telemetry::traces::{self, Interval, Span};

/// Maximum sources and services that are remembered; beyond it, traces are incomplete.
const REMEMBERED: usize = 100_000;
/// A fetch that ended longer ago than this when a service was assigned did not lead to that assignment.
const RELATED: Duration = Duration::from_secs(600);

/// When sources moved and services were assigned, until that is reported.
#[derive(Debug, Default)]
pub struct Timeline {
    fetches: Mutex<HashMap<String, Fetched>>,
    assignments: Mutex<HashMap<String, Assigned>>,
}

/// The newest revision of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    pub source: String,
    pub revision: String,
    pub interval: Interval,
}

/// A service's newest assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    pub source_uid: String,
    pub interval: Interval,
}

fn remember<K: Eq + Hash, V>(map: &Mutex<HashMap<K, V>>, key: K, value: V) {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    if map.len() < REMEMBERED || map.contains_key(&key) {
        map.insert(key, value);
    }
}

impl Timeline {
    pub fn note_fetch(&self, source_uid: &str, fetched: impl FnOnce() -> Fetched) {
        if traces::is_on() {
            remember(&self.fetches, source_uid.to_owned(), fetched());
        }
    }

    pub fn note_assignment(&self, service_uid: &str, assigned: impl FnOnce() -> Assigned) {
        if traces::is_on() {
            remember(&self.assignments, service_uid.to_owned(), assigned());
        }
    }

    /// Takes what led to a service's new entry, and forgets the assignment.
    fn take_spans(&self, service_uid: &str) -> (Option<Fetched>, Option<Assigned>) {
        let assigned = self
            .assignments
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(service_uid);
        let fetches = self.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        let fetched = assigned
            .as_ref()
            .and_then(|assigned| fetches.get(&assigned.source_uid).cloned());
        (fetched, assigned)
    }
}

/// An entry that a cluster has not had before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    pub service: ServiceIdentity,
    pub digest: Digest,
}

/// The entries to apply that are in `entries` and not in what the cluster has.
pub fn new_entries(entries: &[Verbatim<Entry>], current: &[Verbatim<Entry>]) -> Vec<NewEntry> {
    let known: HashMap<&str, Digest> = current
        .iter()
        .map(|entry| (entry.service.uid.as_str(), entry.digest()))
        .collect();
    let to_apply = entries.iter().filter(|entry| matches!(entry.action, Action::Apply(_)));
    let new = to_apply.map(|entry| NewEntry {
        service: entry.service.clone(),
        digest: entry.digest(),
    });
    new.filter(|entry| known.get(entry.service.uid.as_str()) != Some(&entry.digest))
        .collect()
}

/// Where an entry was published.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    pub cluster_uid: &'a str,
    /// `namespace/name`.
    pub cluster: &'a str,
    pub generation: u64,
    /// From the start of the computation to the commit.
    pub interval: Interval,
}

/// Reports the hub's part of each entry's trace.
pub fn report_traces(timeline: &Timeline, published: Published<'_>, entries: &[NewEntry]) {
    for entry in entries {
        let (fetched, assigned) = timeline.take_spans(&entry.service.uid);
        spans(published, entry, fetched, assigned)
            .into_iter()
            .for_each(traces::tell);
    }
}

fn spans(
    published: Published<'_>,
    entry: &NewEntry,
    fetched: Option<Fetched>,
    assigned: Option<Assigned>,
) -> Vec<Span> {
    let trace = trace_id(published.cluster_uid, &entry.digest);
    let delivery = delivery_span_id(published.cluster_uid, &entry.digest);
    let part = |name: &'static str, interval: Interval, attributes: Vec<(&'static str, String)>| Span {
        trace,
        id: None,
        parent: Some(delivery),
        name,
        interval,
        attributes,
        error: None,
    };
    let mut spans = Vec::new();
    if let Some(assigned) = &assigned {
        spans.push(part("assign", assigned.interval, Vec::new()));
    }
    let begun: SystemTime = assigned
        .as_ref()
        .map_or(published.interval.begun, |assigned| assigned.interval.begun);
    let is_related = |fetched: &Fetched| begun.duration_since(fetched.interval.ended).unwrap_or_default() < RELATED;
    if let Some(fetched) = fetched.filter(is_related) {
        let attributes = vec![
            ("farwater.source", fetched.source),
            ("farwater.revision", fetched.revision),
        ];
        spans.push(part("fetch", fetched.interval, attributes));
    }
    let generation = vec![("farwater.generation", published.generation.to_string())];
    spans.push(part("compute desired state", published.interval, generation));
    let begun = spans
        .iter()
        .map(|span| span.interval.begun)
        .min()
        .unwrap_or(published.interval.begun);
    spans.push(Span {
        trace,
        id: Some(delivery),
        parent: None,
        name: "deliver",
        interval: Interval {
            begun,
            ended: published.interval.ended,
        },
        attributes: vec![
            (
                "farwater.service",
                format!("{}/{}", entry.service.namespace, entry.service.name),
            ),
            ("farwater.cluster", published.cluster.to_owned()),
            ("farwater.entry", entry.digest.to_string()),
        ],
        error: None,
    });
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn interval(begun: u64, ended: u64) -> Interval {
        Interval {
            begun: at(begun),
            ended: at(ended),
        }
    }

    fn service(uid: &str) -> ServiceIdentity {
        ServiceIdentity {
            uid: uid.to_owned(),
            namespace: "team".to_owned(),
            name: uid.to_owned(),
        }
    }

    fn told(fetched: Option<Fetched>, assigned: Option<Assigned>) -> Vec<Span> {
        let entry = NewEntry {
            service: service("a"),
            digest: Digest::of("a"),
        };
        let published = Published {
            cluster_uid: "uid",
            cluster: "farwater-admin/east",
            generation: 7,
            interval: interval(1_020, 1_021),
        };
        spans(published, &entry, fetched, assigned)
    }

    #[test]
    fn a_delivery_is_one_trace_from_its_fetch_on() {
        let fetched = Fetched {
            source: "team/infra".into(),
            revision: "main".into(),
            interval: interval(1_000, 1_005),
        };
        let assigned = Assigned {
            source_uid: "s".into(),
            interval: interval(1_006, 1_010),
        };
        let spans = told(Some(fetched), Some(assigned));
        let names: Vec<_> = spans.iter().map(|span| span.name).collect();
        assert_eq!(names, ["assign", "fetch", "compute desired state", "deliver"]);
        let root = spans.last().unwrap();
        assert_eq!((root.parent, root.interval), (None, interval(1_000, 1_021)));
        let id = trace_id("uid", &Digest::of("a"));
        assert!(spans.iter().all(|span| span.trace == id));
        assert!(
            spans
                .iter()
                .filter(|span| span.name != "deliver")
                .all(|span| span.parent == root.id)
        );
    }

    #[test]
    fn a_fetch_of_long_ago_is_not_what_was_waited_for() {
        let fetched = Fetched {
            source: "team/infra".into(),
            revision: "main".into(),
            interval: interval(10, 20),
        };
        let assigned = Assigned {
            source_uid: "s".into(),
            interval: interval(1_006, 1_010),
        };
        let spans = told(Some(fetched), Some(assigned));
        assert!(spans.iter().all(|span| span.name != "fetch"));
        assert_eq!(spans.last().unwrap().interval, interval(1_006, 1_021));
        assert_eq!(told(None, None).last().unwrap().interval, interval(1_020, 1_021));
    }

    #[test]
    fn only_what_a_cluster_has_not_had_is_a_delivery() {
        let hold = |reason: &str| Action::Hold {
            reason: reason.to_owned(),
        };
        let held = Verbatim::from(Entry {
            service: service("held"),
            action: hold("x"),
        });
        assert_eq!(new_entries(std::slice::from_ref(&held), &[]), []);
        let apply = |path: &str| {
            let deployment = serde_json::json!({
                "type": "Apply", "bundle": Digest::of("x"), "bundleBytes": 1, "path": path, "targetNamespace": "a",
                "prune": true, "ceiling": {"serviceAccount": {"namespace": "a", "name": "b"}},
            });
            Verbatim::from(Entry {
                service: service("a"),
                action: serde_json::from_value(deployment).unwrap(),
            })
        };
        let (old, new) = (apply("old"), apply("new"));
        let found = new_entries(&[new.clone(), held.clone()], &[old, held.clone()]);
        assert_eq!(
            found,
            [NewEntry {
                service: service("a"),
                digest: new.digest()
            }]
        );
        assert_eq!(new_entries(std::slice::from_ref(&new), std::slice::from_ref(&new)), []);
    }
}
