//! An object's health, with what only its cluster knows: whether its kind has a status, and how late it is.

use std::time::Duration;

use farwater_api::objects::Health;
use farwater_fleet::{
    health::{
        rules::Rules,
        unseen::{NEVER_SEEN, UNSEEN, grace_left, is_unseen},
    },
    plan::GroupVersionKind,
};
use jiff::Timestamp;
use serde_json::Value;

use crate::kinds::Kinds;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub health: Health,
    pub message: String,
    /// When time alone makes it another one.
    pub again: Option<Duration>,
}

/// `object` is the whole object as the API server returns it.
pub fn judge(kinds: &Kinds, rules: &Rules, gvk: &GroupVersionKind, object: &Value) -> Judgement {
    let (health, message) = rules.evaluate(object);
    // Whoever wrote a rule for the kind has said what counts.
    if rules.cover(&gvk.group, &gvk.kind) || health != Health::Current || !is_unseen(object, kinds.has_status(gvk)) {
        return Judgement { health, message, again: None };
    }
    // By this machine's clock: it is nearer to the API server's than the hub's is.
    match grace_left(object, Timestamp::now()) {
        Some(left) => {
            let again = Duration::from_secs(left.unsigned_abs() + 1);
            Judgement { health: Health::InProgress, message: UNSEEN.to_owned(), again: Some(again) }
        }
        None => Judgement { health, message: NEVER_SEEN.to_owned(), again: None },
    }
}
