//! An object's health, including what only its cluster knows: whether its kind has a status, and how old the object is.

use std::time::Duration;

use farwater_api::objects::Health;
use farwater_fleet::{
    health::{
        is_done,
        rules::Rules,
        unseen::{GRACE_SECONDS, NEVER_SEEN, UNSEEN, grace_left, is_unseen},
    },
    plan::GroupVersionKind,
};
use jiff::Timestamp;
use serde_json::Value;

use crate::kinds::Kinds;

/// How long the agent waits for unhealthy objects, and when it looks up the reason.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time that controllers have to write the first status of an object, in whole seconds.
    pub unseen: Duration,
    /// Time that an object is unhealthy before the first look at its children, so that objects that become ready
    /// normally cost no reads.
    pub first_look: Duration,
    /// Time until the next look. It doubles each time nothing has changed.
    pub next_look: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unseen: Duration::from_secs(GRACE_SECONDS.unsigned_abs()),
            first_look: Duration::from_secs(3),
            next_look: Duration::from_secs(5),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub health: Health,
    pub message: String,
    /// Time after which the judgement changes by itself. None: it does not.
    pub again: Option<Duration>,
    /// It is done, and its time to live may delete it.
    pub is_done: bool,
}

/// `object` is the whole object as the API server returns it.
pub fn judge(kinds: &Kinds, rules: &Rules, gvk: &GroupVersionKind, object: &Value) -> Judgement {
    let (health, message) = rules.evaluate(object);
    let is_done = is_done(object);
    // A rule for the kind says what counts.
    if rules.cover(&gvk.group, &gvk.kind) || health != Health::Current || !is_unseen(object, kinds.has_status(gvk)) {
        return Judgement {
            health,
            message,
            again: None,
            is_done,
        };
    }
    // By this machine's clock, which is closer to the API server's than the hub's.
    match grace_left(object, kinds.grace_seconds(), Timestamp::now()) {
        Some(left) => {
            let again = Duration::from_secs(left.unsigned_abs() + 1);
            Judgement {
                health: Health::InProgress,
                message: UNSEEN.to_owned(),
                again: Some(again),
                is_done,
            }
        }
        None => Judgement {
            health,
            message: NEVER_SEEN.to_owned(),
            again: None,
            is_done,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_is_told_nothing_else_asks_rarely_and_waits_a_minute() {
        let Limits {
            unseen,
            first_look,
            next_look,
        } = Limits::default();
        assert_eq!([unseen, first_look, next_look].map(|limit| limit.as_secs()), [60, 3, 5]);
    }
}
