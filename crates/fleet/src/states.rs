//! States: how services, sources and clusters are counted, by their status alone.

use serde::{Deserialize, de::IgnoredAny};

/// Must be changed when the meaning of a state changes; then everything is counted again.
pub const VERSION: &str = "2";

pub const SERVICES: &str = "servicedeployments.farwater.dev";
pub const SOURCES: [&str; 3] = [
    "gitrepositories.farwater.dev",
    "helmrepositories.farwater.dev",
    "ocirepositories.farwater.dev",
];
pub const CLUSTERS: &str = "clusters.farwater.dev";
/// The counted kinds.
pub const KINDS: &[&str] = &[SERVICES, SOURCES[0], SOURCES[1], SOURCES[2], CLUSTERS];

/// States of a service or a source. Each is in exactly one.
pub const READINESS: &[&str] = &[READY, PROGRESSING, FAILING, NOT_READY, HELD, NEW];
pub const READY: &str = "ready";
/// Not ready, but progressing without a person's action.
pub const PROGRESSING: &str = "progressing";
/// Not ready, and it stays so until a person changes something.
pub const FAILING: &str = "failing";
/// Not ready for another reason, e.g. an unreachable remote or a prune that waits.
pub const NOT_READY: &str = "not_ready";
/// Its readiness is unknown, because it is suspended or held.
pub const HELD: &str = "held";
/// Not reconciled yet.
pub const NEW: &str = "new";

/// Additional state: a service's prune waits for an approval.
pub const PRUNE_HELD: &str = "prune_held";
/// Additional state: a source's remote could not be reached the last time.
pub const STALE: &str = "stale";
/// Additional state: a cluster's agent has proven that the hub's database was restored, and no person has confirmed it
/// yet.
pub const RESTORED: &str = "restored";

/// The parts of a status that decide the states.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: Vec<Condition>,
    stale_since: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Status {
    fn condition(&self, kind: &str) -> Option<&str> {
        self.conditions
            .iter()
            .find(|condition| condition.kind == kind)
            .map(|condition| &*condition.status)
    }

    fn holds(&self, kind: &str) -> bool {
        self.condition(kind) == Some("True")
    }

    fn readiness(&self) -> &'static str {
        match self.condition("Ready") {
            None => NEW,
            Some("True") => READY,
            Some("False") if self.holds("Stalled") => FAILING,
            Some("False") if self.holds("Reconciling") => PROGRESSING,
            Some("False") => NOT_READY,
            Some(_) => HELD,
        }
    }
}

/// The states of a resource, from its kind and its status as JSON. An unreadable status counts as an empty one.
pub fn states(kind: &str, status: Option<&[u8]>) -> Vec<&'static str> {
    let status: Status = status
        .and_then(|json| serde_json::from_slice(json).ok())
        .unwrap_or_default();
    let besides = match kind {
        SERVICES => status.holds("PruneHeld").then_some(PRUNE_HELD),
        kind if SOURCES.contains(&kind) => status.stale_since.is_some().then_some(STALE),
        CLUSTERS => status.holds("Restored").then_some(RESTORED),
        _ => None,
    };
    // Whether a cluster polls changes every minute and is not in its status.
    let readiness = (kind != CLUSTERS).then(|| status.readiness());
    readiness.into_iter().chain(besides).collect()
}

#[cfg(test)]
mod tests {
    use farwater_api::Condition;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::conditions::{Verdict, resolve};

    fn conditions(verdicts: Vec<Verdict>) -> Vec<Condition> {
        resolve(&[], verdicts, 1, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_resource_is_counted_by_what_its_conditions_say() {
        let check = |kind: &str, verdicts: Vec<Verdict>, expected: &[&str]| {
            let status = json!({"conditions": conditions(verdicts)}).to_string();
            assert_eq!(states(kind, Some(status.as_bytes())), expected, "{status}");
        };
        check(SERVICES, Verdict::ready("Applied", ""), &[READY]);
        check(SERVICES, Verdict::reconciling("Progressing", ""), &[PROGRESSING]);
        check(SERVICES, Verdict::stalled("Unhealthy", ""), &[FAILING]);
        check(SERVICES, vec![Verdict::new("Ready", None, "Held", "")], &[HELD]);
        let held = |holds| Verdict::new("PruneHeld", Some(holds), "ApprovalNeeded", "");
        check(
            SERVICES,
            vec![Verdict::new("Ready", Some(false), "PruneHeld", ""), held(true)],
            &[NOT_READY, PRUNE_HELD],
        );
        check(SERVICES, vec![held(false)], &[NEW]);
        check(SOURCES[1], Verdict::stalled("Unauthorized", ""), &[FAILING]);
        check(CLUSTERS, Verdict::ready("Connected", ""), &[]);
        check(
            CLUSTERS,
            vec![Verdict::new("Restored", Some(true), "DatabaseOlderThanAgent", "")],
            &[RESTORED],
        );
    }

    #[test]
    fn a_source_that_can_not_be_asked_is_stale() {
        let status =
            json!({"staleSince": "2026-01-01T00:00:00Z", "conditions": conditions(Verdict::ready("Fetched", ""))});
        assert_eq!(states(SOURCES[0], Some(status.to_string().as_bytes())), [READY, STALE]);
        assert_eq!(states(SERVICES, Some(status.to_string().as_bytes())), [READY]);
    }

    #[test]
    fn what_nobody_has_looked_at_is_new() {
        assert_eq!(states(SERVICES, None), [NEW]);
        assert_eq!(states(SOURCES[0], Some(b"{}")), [NEW]);
        assert_eq!(states(SOURCES[0], Some(b"[]")), [NEW]);
    }

    #[test]
    fn every_state_is_listed() {
        for state in [READY, PROGRESSING, FAILING, NOT_READY, HELD, NEW] {
            assert!(READINESS.contains(&state));
        }
    }
}
