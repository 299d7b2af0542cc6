//! The cause of an unhealthy object is often in the objects that it owns: this says where to look for them, and which
//! is the worst.
//!
//! Owner references lead upwards only. Downwards, built-in kinds have selectors; the children of other kinds are found
//! among the workloads of their namespace.

use farwater_api::objects::Health;
use serde_json::Value;

use super::{group_of, is_built_in, pod, rules::Rules};
use crate::conditions::cut;

/// Most bytes of an event's message that are quoted.
const MAX_QUOTED: usize = 400;

/// A built-in kind of owned objects.
#[derive(Debug, PartialEq, Eq)]
pub struct ChildKind {
    /// Path of its group and version in the API.
    pub root: &'static str,
    pub plural: &'static str,
    /// Its name in a sentence, singular and plural.
    nouns: (&'static str, &'static str),
}

impl ChildKind {
    const fn new(root: &'static str, plural: &'static str, nouns: (&'static str, &'static str)) -> Self {
        Self { root, plural, nouns }
    }

    /// `2 more pods are not ready`.
    pub fn count_more(&self, others: usize) -> String {
        match others {
            1 => format!("1 more {} is not ready", self.nouns.0),
            _ => format!("{others} more {} are not ready", self.nouns.1),
        }
    }
}

const POD: ChildKind = ChildKind::new("/api/v1", "pods", ("pod", "pods"));
const CLAIM: ChildKind = ChildKind::new(
    "/api/v1",
    "persistentvolumeclaims",
    ("PersistentVolumeClaim", "PersistentVolumeClaims"),
);
const REPLICA_SET: ChildKind = ChildKind::new("/apis/apps/v1", "replicasets", ("ReplicaSet", "ReplicaSets"));
const DEPLOYMENT: ChildKind = ChildKind::new("/apis/apps/v1", "deployments", ("Deployment", "Deployments"));
const STATEFUL_SET: ChildKind = ChildKind::new("/apis/apps/v1", "statefulsets", ("StatefulSet", "StatefulSets"));
const DAEMON_SET: ChildKind = ChildKind::new("/apis/apps/v1", "daemonsets", ("DaemonSet", "DaemonSets"));
const JOB: ChildKind = ChildKind::new("/apis/batch/v1", "jobs", ("Job", "Jobs"));

/// Kinds that objects of other kinds usually own.
const WORKLOADS: [&ChildKind; 7] = [
    &DEPLOYMENT,
    &STATEFUL_SET,
    &DAEMON_SET,
    &JOB,
    &REPLICA_SET,
    &POD,
    &CLAIM,
];

/// A list in the owner's namespace that contains an object's children.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    pub kind: &'static ChildKind,
    /// Label selector. Empty: all objects of the namespace.
    pub selector: String,
}

impl Place {
    /// Whether the list is read with whole objects. Pods are judged as they are listed. Objects of other kinds may be
    /// large, and most of a list belongs to other owners.
    pub fn is_read_whole(&self) -> bool {
        *self.kind == POD && !self.selector.is_empty()
    }

    /// Adds the kind to an item of a list, where items lack it.
    pub fn complete(&self, child: &mut Value) {
        if *self.kind == POD {
            child["apiVersion"] = "v1".into();
            child["kind"] = "Pod".into();
        }
    }
}

/// Whether the children of such an object may explain more than its own status.
pub fn may_explain(group: &str, kind: &str, namespace: &str) -> bool {
    if namespace.is_empty() {
        return false;
    }
    match group {
        "apps" => matches!(kind, "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet"),
        "batch" => kind == "Job",
        "" => matches!(kind, "Pod" | "PersistentVolumeClaim" | "ReplicationController"),
        group => !is_built_in(group),
    }
}

/// The lists that contain an object's children. Empty for kinds that own nothing that runs.
pub fn places(object: &Value) -> Vec<Place> {
    let group = group_of(object);
    let kind = object["kind"].as_str().unwrap_or_default();
    let selector = match (group, kind) {
        ("", "ReplicationController") => select(&serde_json::json!({"matchLabels": object["spec"]["selector"]})),
        _ => select(&object["spec"]["selector"]),
    };
    let selected = |kind| {
        selector
            .clone()
            .map(|selector| Place { kind, selector })
            .into_iter()
            .collect()
    };
    match (group, kind) {
        ("apps", "Deployment") => selected(&REPLICA_SET),
        ("apps", "StatefulSet" | "DaemonSet" | "ReplicaSet") | ("batch", "Job") | ("", "ReplicationController") => {
            selected(&POD)
        }
        (group, _) if is_built_in(group) => Vec::new(),
        _ => WORKLOADS
            .iter()
            .map(|kind| Place {
                kind,
                selector: String::new(),
            })
            .collect(),
    }
}

/// A label selector as text. None: it would select everything, or can't be expressed.
fn select(selector: &Value) -> Option<String> {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut terms = labels
        .map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect::<Option<Vec<_>>>()?;
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str()?;
        let values = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let values = values.collect::<Vec<_>>().join(",");
        terms.push(match expression["operator"].as_str()? {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        });
    }
    (!terms.is_empty()).then(|| terms.join(","))
}

/// Whether an owner reference of `child` names the object with this uid.
pub fn is_owned_by(child: &Value, uid: &str) -> bool {
    let owners = child["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    !uid.is_empty() && owners.into_iter().any(|owner| owner["uid"] == uid)
}

/// The children (as metadata) to read: of a Deployment's ReplicaSets the newest, of others the first `most` by name.
pub fn choose(place: &Place, mut children: Vec<Value>, most: usize) -> Vec<Value> {
    if *place.kind == REPLICA_SET && !place.selector.is_empty() {
        let revision = |child: &Value| {
            let text = child["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str();
            text.and_then(|text| text.parse::<u64>().ok()).unwrap_or_default()
        };
        return children.into_iter().max_by_key(revision).into_iter().collect();
    }
    children.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    children.truncate(most);
    children
}

/// The child that most likely delays its owner, and the number of others that are not ready. Among equals the first by
/// name, so that the same one is always named.
pub fn worst(rules: &Rules, owner: &Value, children: Vec<Value>) -> Option<(Value, usize)> {
    let ranked = children
        .into_iter()
        .filter_map(|child| Some((rank(rules, owner, &child)?, child)));
    let mut ranked: Vec<(u8, Value)> = ranked.collect();
    ranked.sort_by(|(a, one), (b, other)| (a, name_of(one)).cmp(&(b, name_of(other))));
    let others = ranked.len().saturating_sub(1);
    ranked.into_iter().next().map(|(_, child)| (child, others))
}

/// How well a child explains why its owner is not ready; the lowest value explains most. None: it is healthy.
pub fn rank(rules: &Rules, owner: &Value, child: &Value) -> Option<u8> {
    let (health, _) = rules.evaluate(child);
    // Failed pods are replaced, except by a Job, which a failed pod may delay.
    let is_replaced = child["status"]["phase"] == "Failed" && owner["kind"] != "Job";
    match health {
        Health::Current => None,
        Health::Failed if is_replaced => Some(2),
        Health::Failed => Some(0),
        _ if tells(rules, child) => Some(1),
        Health::Terminating => Some(4),
        Health::InProgress | Health::Unknown => Some(3),
    }
}

/// Whether the object itself says why it is not ready. If not, its events may.
pub fn tells(rules: &Rules, object: &Value) -> bool {
    let (health, message) = rules.evaluate(object);
    let (group, kind) = (group_of(object), object["kind"].as_str().unwrap_or_default());
    if rules.cover(group, kind) {
        return health != Health::Terminating && !message.is_empty();
    }
    match (group, kind) {
        ("", "Pod") => health != Health::Terminating && pod::tells(object),
        ("apps", "ReplicaSet") => super::condition(object, "ReplicaFailure").is_some_and(|c| c.holds),
        ("batch", "Job") => health == Health::Failed,
        (group, _) => !is_built_in(group),
    }
}

/// `Pod web-0`.
pub fn title(object: &Value) -> String {
    format!("{} {}", object["kind"].as_str().unwrap_or("?"), name_of(object))
}

/// The newest warning among an object's events. For a claim other events count too, because its waiting is no warning.
pub fn explain_events(object: &Value, events: &[Value]) -> Option<String> {
    let event = newest_event(object, events)?;
    let (reason, message) = (event["reason"].as_str()?, event["message"].as_str().unwrap_or_default());
    // The output of a probe is the program's own and may hold anything, so it is not quoted.
    if reason == "Unhealthy" {
        let (what, output) = message.split_once("probe failed")?;
        let code = output.rsplit_once("statuscode: ").map(|(_, code)| cut(code.trim(), 3));
        let code = code.map(|code| format!(" with status code {code}")).unwrap_or_default();
        return Some(format!("{reason}: {what}probe failed{code}"));
    }
    Some(if message.is_empty() {
        reason.to_owned()
    } else {
        format!("{reason}: {}", cut(message, MAX_QUOTED))
    })
}

/// Whether a claim is bound only when its first consumer is scheduled. Waiting for such a claim would block the
/// consumer. False if a rule of the user defines the health of claims.
pub fn waits_for_consumer(rules: &Rules, object: &Value, events: &[Value]) -> bool {
    let selected = &object["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    is_claim(object)
        && !rules.cover("", "PersistentVolumeClaim")
        && object["status"]["phase"] == "Pending"
        && selected.is_null()
        && newest_event(object, events).is_some_and(|event| event["reason"] == "WaitForFirstConsumer")
}

fn newest_event<'a>(object: &Value, events: &'a [Value]) -> Option<&'a Value> {
    let counts = |event: &&Value| event["type"] == "Warning" || is_claim(object);
    events.iter().filter(counts).max_by_key(|event| {
        let times = [
            &event["series"]["lastObservedTime"],
            &event["lastTimestamp"],
            &event["eventTime"],
            &event["metadata"]["creationTimestamp"],
        ];
        times.into_iter().find_map(Value::as_str).unwrap_or_default()
    })
}

fn is_claim(object: &Value) -> bool {
    group_of(object).is_empty() && object["kind"] == "PersistentVolumeClaim"
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
#[path = "children_tests.rs"]
mod tests;
