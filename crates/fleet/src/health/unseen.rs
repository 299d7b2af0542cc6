//! Custom resources that no controller has observed yet.
//!
//! kstatus calls them Current from their creation until their controller writes another status, so later waves would
//! begin too early. A kind with a status subresource may have no controller that writes it, so waiting is limited.

use jiff::Timestamp;
use serde_json::Value;

use super::{group_of, is_built_in};

/// Message while the object waits.
pub const UNSEEN: &str = "no controller has looked at it yet";
/// Message when no controller has written a status in time.
pub const NEVER_SEEN: &str = "no controller has written a status";
/// Seconds that a controller usually needs for its first status, with a restart and a leader election.
pub const GRACE_SECONDS: i64 = 60;
/// Most seconds that the API server's clock may be ahead.
const SKEW_SECONDS: i64 = 5;

/// Whether a controller should have written a status and has not. `has_status`: the kind has the subresource.
pub fn is_unseen(object: &Value, has_status: bool) -> bool {
    let status = &object["status"];
    has_status
        && !is_built_in(group_of(object))
        && (status.is_null() || status.as_object().is_some_and(|s| s.is_empty()))
}

/// Seconds until an unseen object is accepted as it is. None: now. If the clocks differ by more than a little there is
/// no waiting, because a wrong clock must delay nothing.
pub fn grace_left(object: &Value, grace_seconds: i64, now: Timestamp) -> Option<i64> {
    let created: Timestamp = object["metadata"]["creationTimestamp"].as_str()?.parse().ok()?;
    let age = now.as_second() - created.as_second();
    (-SKEW_SECONDS..grace_seconds)
        .contains(&age)
        .then(|| grace_seconds - age.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(object: &str, has_status: bool, seconds_later: i64, expected: Option<i64>) {
        let object: Value = serde_saphyr::from_str(object).unwrap();
        let created: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let now = Timestamp::from_second(created.as_second() + seconds_later).unwrap();
        let left = is_unseen(&object, has_status)
            .then(|| grace_left(&object, GRACE_SECONDS, now))
            .flatten();
        assert_eq!(left, expected, "{object}");
    }

    #[test]
    fn what_nobody_has_looked_at_is_given_a_minute() {
        let boat = |rest: &str| {
            format!(
                "{{apiVersion: example.com/v1, kind: Boat, metadata: {{creationTimestamp: '2026-01-01T00:00:00Z'}}{rest}}}"
            )
        };
        check(&boat(""), true, 0, Some(60));
        check(&boat(", status: {}"), true, 59, Some(1));
        check(&boat(""), true, 60, None);
        // A wrong clock delays nothing.
        check(&boat(""), true, -3, Some(60));
        check(&boat(""), true, -3600, None);
        check(&boat(", status: {phase: Afloat}"), true, 0, None);
        // The kind has no status that a controller could write.
        check(&boat(""), false, 0, None);
        check(
            "{apiVersion: v1, kind: Namespace, metadata: {creationTimestamp: '2026-01-01T00:00:00Z'}}",
            true,
            0,
            None,
        );
        check("{apiVersion: example.com/v1, kind: Boat}", true, 0, None);
    }
}
