//! Conditions as kstatus reads them: `Ready` always, `Reconciling` and `Stalled` only while they are true.

use farwater_api::Condition;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Most bytes of a condition's message: a status has at most 4 KB, and holds up to four of them.
pub const MAX_MESSAGE_BYTES: usize = 640;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub kind: &'static str,
    /// Status of the condition. None: `Unknown`.
    pub holds: Option<bool>,
    /// CamelCase, for programs.
    pub reason: &'static str,
    /// One sentence, for people.
    pub message: String,
}

impl Verdict {
    pub fn new(kind: &'static str, holds: Option<bool>, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            holds,
            reason,
            message: message.into(),
        }
    }

    pub fn ready(reason: &'static str, message: impl Into<String>) -> Vec<Self> {
        vec![Self::new("Ready", Some(true), reason, message)]
    }

    /// Not ready, but progressing without a person's action.
    pub fn reconciling(reason: &'static str, message: impl Into<String>) -> Vec<Self> {
        let message = message.into();
        vec![
            Self::new("Ready", Some(false), reason, message.clone()),
            Self::new("Reconciling", Some(true), reason, message),
        ]
    }

    /// Not ready, and it stays so until a person changes something.
    pub fn stalled(reason: &'static str, message: impl Into<String>) -> Vec<Self> {
        let message = message.into();
        vec![
            Self::new("Ready", Some(false), reason, message.clone()),
            Self::new("Stalled", Some(true), reason, message),
        ]
    }
}

/// The conditions for `verdicts`. A condition whose status is unchanged keeps its transition time, so that writing it
/// again is no change.
pub fn resolve(previous: &[Condition], verdicts: Vec<Verdict>, generation: i64, now: Timestamp) -> Vec<Condition> {
    let resolve_one = |verdict: Verdict| {
        let status = match verdict.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let since = previous
            .iter()
            .find(|old| old.type_ == verdict.kind && old.status == status)
            .map_or_else(|| whole_seconds(now), |old| old.last_transition_time.clone());
        Condition {
            type_: verdict.kind.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.to_owned(),
            message: cut(&verdict.message, MAX_MESSAGE_BYTES),
            observed_generation: Some(generation),
            last_transition_time: since,
        }
    };
    verdicts.into_iter().map(resolve_one).collect()
}

/// The condition of a type, whatever its status. None: it was not set yet.
pub fn find<'c>(conditions: impl IntoIterator<Item = &'c Condition>, kind: &str) -> Option<&'c Condition> {
    conditions.into_iter().find(|condition| condition.type_ == kind)
}

/// The condition of a type, if it is true.
pub fn holding<'c>(conditions: impl IntoIterator<Item = &'c Condition>, kind: &str) -> Option<&'c Condition> {
    find(conditions, kind).filter(|condition| condition.status == "True")
}

/// Times in Kubernetes have no fractions of a second. Rounding makes a time equal to itself after it was written and
/// read.
pub fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// At most `limit` bytes of a text, cut at a character boundary.
pub fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_says_the_same_keeps_its_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = resolve(&[], Verdict::ready("Fetched", "one"), 1, at(10));
        let second = resolve(&first, Verdict::ready("Fetched", "two"), 2, at(20));
        assert_eq!(second[0].last_transition_time, first[0].last_transition_time);
        assert_eq!(
            (second[0].message.as_str(), second[0].observed_generation),
            ("two", Some(2))
        );
        let third = resolve(&second, Verdict::stalled("Unauthorized", "401"), 2, at(30));
        assert_eq!(
            third.iter().map(|c| c.last_transition_time.0).collect::<Vec<_>>(),
            [at(30), at(30)]
        );
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("äöüäöü", 8), "äö…");
        assert!(cut(&"ä".repeat(500), 256).len() <= 256);
    }
}
