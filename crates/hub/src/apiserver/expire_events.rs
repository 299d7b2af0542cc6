//! Deletes events: after an hour, as Kubernetes does, and the oldest of a namespace that has too many.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use farwater_store::{ListQuery, Resource, Store, StoreError};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::delete::remove_quietly;
use crate::{
    Hub,
    kinds::{REGISTRY, ResourceKind},
};

const TTL: SignedDuration = SignedDuration::from_hours(1);
/// Maximum events per namespace, so that a chatty controller can't fill the hub.
const MOST: usize = 2000;
const EVERY: Duration = Duration::from_secs(60);
const PAGE: usize = 500;

/// Runs until it is dropped.
pub async fn expire_events(hub: Arc<Hub>) {
    let Some(kind) = REGISTRY.find("", "v1", "events") else {
        return;
    };
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = pass(&hub.store, kind, Timestamp::now()).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "old events can't be forgotten"
            );
        }
    }
}

async fn pass(store: &Store, kind: &ResourceKind, now: Timestamp) -> Result<(), StoreError> {
    let mut query = ListQuery {
        limit: PAGE,
        ..ListQuery::all(kind.store.clone())
    };
    let mut by_namespace: BTreeMap<String, Vec<Seen<Resource>>> = BTreeMap::new();
    loop {
        let page = store.list(&query).await?;
        for event in page.items {
            let (at, is_warning) = (
                last_seen(&event.object).unwrap_or(now),
                event.object["type"] == "Warning",
            );
            by_namespace
                .entry(event.key.namespace.clone())
                .or_default()
                .push(Seen { at, is_warning, event });
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    for events in by_namespace.into_values() {
        for event in surplus(events, now) {
            remove_quietly(store, kind, event, now).await?;
        }
    }
    Ok(())
}

/// When an event was last seen, in whichever field its writer uses.
fn last_seen(event: &Value) -> Option<Timestamp> {
    let at = |path: &str| {
        event
            .pointer(path)
            .and_then(Value::as_str)
            .and_then(|t| t.parse::<Timestamp>().ok())
    };
    [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/eventTime",
        "/metadata/creationTimestamp",
    ]
    .into_iter()
    .filter_map(at)
    .max()
}

/// Returns the events of a namespace to delete. If there are too many, warnings are kept before others, and newer
/// events before older ones.
fn surplus<T>(events: Vec<Seen<T>>, now: Timestamp) -> Vec<T> {
    let (mut fresh, old): (Vec<_>, Vec<_>) = events.into_iter().partition(|event| now.duration_since(event.at) < TTL);
    fresh.sort_by_key(|event| std::cmp::Reverse((event.is_warning, event.at)));
    let left = fresh.split_off(fresh.len().min(MOST));
    old.into_iter().chain(left).map(|seen| seen.event).collect()
}

struct Seen<T> {
    at: Timestamp,
    is_warning: bool,
    event: T,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_events_and_the_oldest_of_too_many_go() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let ago = |minutes: i64| now - SignedDuration::from_mins(minutes);
        let seen = |at, event| Seen {
            at,
            is_warning: false,
            event,
        };
        assert_eq!(
            surplus(vec![seen(ago(5), 0), seen(ago(61), 1), seen(ago(0), 2)], now),
            [1]
        );
        let before = |n: usize| ago(0) - SignedDuration::from_millis(n as i64);
        let many: Vec<_> = (0..MOST + 2)
            .map(|n| Seen {
                is_warning: n == MOST + 1,
                ..seen(before(n), n)
            })
            .collect();
        assert_eq!(
            surplus(many, now),
            [MOST - 1, MOST],
            "the warning stays, though it is the oldest"
        );
    }
}
