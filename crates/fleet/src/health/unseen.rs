//! Custom resources that no controller has looked at.
//!
//! kstatus calls them Current from their creation until their controller writes something else, so that what follows begins too
//! early. That a kind has a status doesn't say that somebody writes it: they are given some time, and no more.

use jiff::Timestamp;
use serde_json::Value;

use super::{group_of, is_built_in};

/// What is said of one meanwhile.
pub const UNSEEN: &str = "no controller has looked at it yet";
/// What is said of one when nobody has come.
pub const NEVER_SEEN: &str = "no controller has written a status";
/// How long a controller usually has to write the first word: a restart of it and the election of a new leader.
pub const GRACE_SECONDS: i64 = 60;
/// By how much the API server's clock may be ahead.
const SKEW_SECONDS: i64 = 5;

/// Whether somebody should have written a status, and nobody has. `has_status`: the kind has the subresource.
pub fn is_unseen(object: &Value, has_status: bool) -> bool {
    let status = &object["status"];
    has_status
        && !is_built_in(group_of(object))
        && (status.is_null() || status.as_object().is_some_and(|s| s.is_empty()))
}

/// Seconds until an unseen object is taken as it is. Where clocks differ by more than a little there is no waiting: what is wrong
/// with a clock must hold up nothing.
pub fn grace_left(object: &Value, grace_seconds: i64, now: Timestamp) -> Option<i64> {
    let created: Timestamp = object["metadata"]["creationTimestamp"].as_str()?.parse().ok()?;
    let age = now.as_second() - created.as_second();
    (-SKEW_SECONDS..grace_seconds).contains(&age).then(|| grace_seconds - age.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(object: &str, has_status: bool, seconds_later: i64, expected: Option<i64>) {
        let object: Value = serde_saphyr::from_str(object).unwrap();
        let created: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let now = Timestamp::from_second(created.as_second() + seconds_later).unwrap();
        let left = is_unseen(&object, has_status).then(|| grace_left(&object, GRACE_SECONDS, now)).flatten();
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
        // A clock that is wrong holds up nothing.
        check(&boat(""), true, -3, Some(60));
        check(&boat(""), true, -3600, None);
        check(&boat(", status: {phase: Afloat}"), true, 0, None);
        // Nobody could write one.
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
