//! Answers from outside services: which question is asked, what is stored of the answer, and when it is asked again.
//!
//! An answer belongs to one question: everything that would be deployed, the gate as stated, and the last time a person
//! discarded the answers. If any of these changes there is no answer yet, and a gate without an answer is closed. An
//! error is an answer, but never a pass.

use std::time::Duration;

use farwater_api::{
    Digest,
    pipeline::{GateType, PromotionGate},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Gates, Held, metric::Measuring, seconds};
use crate::{conditions::cut, notify::wait_after};

/// Most bytes kept of another service's message.
const MAX_MESSAGE: usize = 256;
/// Longest pause in seconds before a question is asked again that could not be asked: its Secret may have been
/// corrected.
const LONGEST_PAUSE: i64 = 300;
/// Seconds that asking, and waiting for a turn, may take beyond an interval.
const SLACK: i64 = 30;

/// A gate that asks a service, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Asking {
    pub stated: PromotionGate,
    /// Seconds between two questions.
    pub interval: i64,
    /// Seconds that a pass counts.
    pub expires: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    Pass,
    /// Final: the question is not asked again.
    Fail,
    Wait,
    Error,
}

/// Result of asking once. For a `Metric`, `Pass` and `Fail` are about one measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub said: Said,
    pub message: String,
    /// When the other side wants to be asked again. None: it does not say.
    pub after: Option<Duration>,
}

impl Heard {
    pub fn error(why: impl Into<String>) -> Self {
        Self {
            said: Said::Error,
            message: why.into(),
            after: None,
        }
    }
}

/// The stored answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Digest of the question.
    pub of: Digest,
    pub said: Said,
    /// One sentence, for people.
    pub message: String,
    /// Seconds since 1970.
    pub at: i64,
    /// When it is asked again, in seconds since 1970. None: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
    /// Number of errors in a row.
    #[serde(default, skip_serializing_if = "farwater_api::is_zero")]
    pub errors: u32,
    /// Only for a `Metric`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub course: Option<Course>,
}

/// The measurements so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Course {
    /// Number of times in a row that the condition has held.
    pub held: u32,
    /// Start of that run, in seconds since 1970.
    pub since: i64,
    /// Time of the last measurement, in seconds since 1970.
    pub last: i64,
    /// Number of times that the condition has not held.
    pub failed: u32,
}

/// A question to ask now.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Index of the stage.
    pub stage: usize,
    pub gate: GateType,
    pub of: Digest,
    pub commit: String,
    /// Digest of everything that would be deployed.
    pub digest: Digest,
    /// The stored answer.
    pub before: Option<Answer>,
}

impl Question {
    /// An id that stays the same until an answer is stored, also across a crash.
    pub fn id(&self) -> String {
        let before = self.before.as_ref().map(|before| before.at);
        Digest::of_json(&json!([self.of, before])).to_hex()
    }

    /// The answer to store from now on. None: the gate no longer exists.
    pub fn answer(&self, gates: &Gates, heard: &Heard, now: i64) -> Option<Answer> {
        let errors = match heard.said {
            Said::Error => self.before.as_ref().map_or(0, |before| before.errors).saturating_add(1),
            _ => 0,
        };
        let told: String = heard.message.chars().filter(|one| !one.is_control()).collect();
        let told = cut(&told, MAX_MESSAGE);

        let answer = Answer {
            of: self.of,
            said: heard.said,
            message: String::new(),
            at: now,
            next: None,
            errors,
            course: self.before.as_ref().and_then(|before| before.course),
        };

        match self.gate {
            GateType::Webhook => Some(answer_webhook(gates.webhook.as_ref()?, answer, (heard, &told), now)),
            GateType::Metric => Some(answer_metric(gates.metric.as_ref()?, answer, (heard, &told), now)),
            GateType::Soak | GateType::Approval | GateType::Window | GateType::Test => None,
        }
    }
}

fn answer_webhook(asking: &Asking, answer: Answer, (heard, told): (&Heard, &str), now: i64) -> Answer {
    let next = match heard.said {
        Said::Pass => Some(now.saturating_add(asking.expires)),
        Said::Fail => None,
        Said::Wait => Some(now.saturating_add(asking.interval)),
        Said::Error => Some(ask_again(answer.errors, heard, LONGEST_PAUSE, now)),
    };
    let word = match heard.said {
        Said::Pass => "it says pass",
        Said::Fail => "it says fail",
        Said::Wait => "it says wait",
        Said::Error => "it could not be asked",
    };
    let message = if told.is_empty() {
        word.to_owned()
    } else {
        format!("{word}: {told}")
    };
    Answer {
        next,
        message,
        course: None,
        ..answer
    }
}

fn answer_metric(measuring: &Measuring, answer: Answer, (heard, told): (&Heard, &str), now: i64) -> Answer {
    if heard.said == Said::Error {
        let longest = LONGEST_PAUSE.min(measuring.interval);
        return Answer {
            next: Some(ask_again(answer.errors, heard, longest, now)),
            message: format!("it could not be measured: {told}"),
            ..answer
        };
    }
    go_on(measuring, answer, (heard.said == Said::Pass, told), now)
}

/// When to ask again after an error: later with every error in a row, and not before the time that the answer asked
/// for.
fn ask_again(errors: u32, heard: &Heard, longest: i64, now: i64) -> i64 {
    let wait = i64::try_from(wait_after(errors, None).as_secs())
        .unwrap_or(i64::MAX)
        .min(longest);
    let asked = heard.after.map_or(0, |after| {
        i64::try_from(wait_after(0, Some(after)).as_secs()).unwrap_or(0)
    });
    now.saturating_add(wait.max(asked))
}

/// The course with one more measurement.
fn go_on(measuring: &Measuring, answer: Answer, (holds, told): (bool, &str), now: i64) -> Answer {
    let mut course = answer.course.unwrap_or_default();
    // Nothing is known about the time between two measurements that are too far apart, or during which the clock went
    // back.
    let goes_on = course.held > 0 && course.last <= now && now - course.last <= fresh_for(measuring.interval);
    if !goes_on {
        (course.held, course.since) = (0, now);
    }
    course.last = now;
    if holds {
        course.held = course.held.saturating_add(1);
    } else {
        course.held = 0;
        course.failed = course.failed.saturating_add(1);
    }

    let has_failed = measuring.failure_limit.is_some_and(|limit| course.failed >= limit);
    let lasted = now - course.since;
    let said = match holds {
        _ if has_failed => Said::Fail,
        true if course.held >= measuring.count && lasted >= measuring.duration => Said::Pass,
        _ => Said::Wait,
    };
    let message = match said {
        Said::Fail => format!("it did not hold {} times: {told}", course.failed),
        Said::Pass => format!("it holds: {told}"),
        _ if holds => {
            let mut lacks = Vec::new();
            if course.held < measuring.count {
                lacks.push(format!("{} of {} times in a row", course.held, measuring.count));
            }
            if lasted < measuring.duration {
                lacks.push(format!("{} to go", seconds(measuring.duration - lasted)));
            }
            format!("it holds: {told}; {}", lacks.join(", "))
        }
        _ => match measuring.failure_limit {
            Some(limit) => format!("it does not hold: {told}; {} of {limit} failures", course.failed),
            None => format!("it does not hold: {told}"),
        },
    };

    let next = (said != Said::Fail).then(|| now.saturating_add(measuring.interval));
    Answer {
        said,
        message,
        next,
        course: Some(course),
        ..answer
    }
}

/// Seconds for which a measurement counts as current.
fn fresh_for(interval: i64) -> i64 {
    interval.saturating_mul(2).saturating_add(SLACK)
}

/// Gates that ask, and how long a pass of each counts in seconds.
pub(super) fn asked_gates(gates: &Gates) -> impl Iterator<Item = (GateType, &PromotionGate, i64)> {
    let webhook = gates
        .webhook
        .as_ref()
        .map(|one| (GateType::Webhook, &one.stated, one.expires));
    let metric = gates
        .metric
        .as_ref()
        .map(|one| (GateType::Metric, &one.stated, fresh_for(one.interval)));
    webhook.into_iter().chain(metric)
}

/// Digest of the question that an answer is bound to. `request`: when a person last discarded the answers.
pub(super) fn question(digest: Digest, stated: &PromotionGate, request: Option<&str>) -> Digest {
    Digest::of_json(&json!([digest, stated, request]))
}

/// How a gate stands by the stored answer, whether to ask now, and when to look again.
pub(super) fn stand(
    (gate, of): (GateType, Digest),
    remembered: Option<&Answer>,
    (now, counts_for): (i64, i64),
) -> (Held, bool, Option<i64>) {
    let known = remembered.filter(|answer| answer.of == of);
    let held = |holds, failed, message: &str| Held {
        gate,
        holds,
        failed,
        message: message.to_owned(),
    };
    let Some(answer) = known else {
        return (held(false, false, "it is asked"), true, Some(now.saturating_add(SLACK)));
    };
    let Some(next) = answer.next else {
        return (held(false, answer.said == Said::Fail, &answer.message), false, None);
    };
    // An answer from the future was stored before the clock was set back; its age is unknown.
    let is_of_now = answer.at <= now;
    let ends = answer.at.saturating_add(counts_for);
    let is_due = !is_of_now || next <= now;
    let look = if is_due { now.saturating_add(SLACK) } else { next };
    match answer.said {
        Said::Pass if is_of_now && now < ends => (held(true, false, &answer.message), is_due, Some(look.min(ends))),
        Said::Pass => (
            held(false, false, "its answer has expired; it is asked again"),
            is_due,
            Some(look),
        ),
        _ => (held(false, false, &answer.message), is_due, Some(look)),
    }
}

/// Parses a service's reply: `{"result": "pass", "message": "…"}`, or `fail`, or `wait`.
pub fn read_reply(body: &[u8]) -> Heard {
    if body.is_empty() {
        return Heard::error("its answer is empty, or longer than anybody reads");
    }
    let Ok(reply) = serde_json::from_slice::<Value>(body) else {
        return Heard::error("its answer is no JSON");
    };
    let said = match reply["result"].as_str() {
        Some("pass") => Said::Pass,
        Some("fail") => Said::Fail,
        Some("wait") => Said::Wait,
        _ => return Heard::error("its answer has no \"result\" that is pass, fail or wait"),
    };
    Heard {
        said,
        message: reply["message"].as_str().unwrap_or_default().to_owned(),
        after: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_does_not_say_pass_is_none() {
        let check = |body: &str, expected: (Said, &str)| {
            let heard = read_reply(body.as_bytes());
            assert_eq!((heard.said, heard.message.as_str()), expected, "{body}");
        };
        check(r#"{"result": "pass", "ticket": 7}"#, (Said::Pass, ""));
        check(r#"{"result": "fail", "message": "rejected"}"#, (Said::Fail, "rejected"));
        check(r#"{"result": "wait", "message": 1}"#, (Said::Wait, ""));
        let unclear = "its answer has no \"result\" that is pass, fail or wait";
        for body in [r#"{"result": "PASS"}"#, r#"{"result": true}"#, r#""pass""#, "[]", "{}"] {
            check(body, (Said::Error, unclear));
        }
        check("", (Said::Error, "its answer is empty, or longer than anybody reads"));
        check("pass", (Said::Error, "its answer is no JSON"));
    }
}
