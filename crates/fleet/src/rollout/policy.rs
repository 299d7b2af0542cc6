//! A [`RolloutPolicy`] in parsed form, with its limits checked.

use farwater_api::{
    Digest,
    rollout::{Canary, MAX_SKIPPED, MAX_STEPS, OnFailure, Promote, RolloutOrder, RolloutPolicy, RolloutStep, Strategy},
};
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};

use crate::{
    agents::Limit,
    duration::{Bounds, ROLLOUT_DEADLINE, ROLLOUT_FAIL_AFTER, ROLLOUT_SOAK},
};

/// Most partitions at a time. A fleet that changes more regions at once needs no partitions.
const MAX_PARTITIONS: u32 = 64;
/// Most canaries. More of them are better a step.
const MAX_CANARIES: u32 = 1000;
const MAX_NAME: usize = 63;
/// A label's key in Kubernetes: a prefix of 253, a slash, a name of 63.
const MAX_LABEL_KEY: usize = 317;
const MAX_REASON: usize = 1024;
const MAX_REQUESTED_AT: usize = 64;

/// How a change spreads. Durations are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub strategy: Strategy,
    pub max_unavailable: Limit,
    /// None: no cluster goes before the others.
    pub canary: Option<CanaryPolicy>,
    /// Steps from 1 on; canaries are step 0. Clusters that no step selects form one more step at the end.
    pub steps: Vec<StepPolicy>,
    /// Key of the label to partition by. None: no partitions.
    pub partition_by: Option<String>,
    pub max_partitions: usize,
    pub soak: i64,
    pub progress_deadline: i64,
    pub fail_after: i64,
    pub halt_after: Limit,
    pub on_failure: OnFailure,
    pub paused: bool,
    pub order: Option<Order>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CanaryPolicy {
    /// None: the canaries come from the first step.
    pub selector: Option<LabelSelector>,
    /// None: all selected clusters.
    pub count: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StepPolicy {
    pub name: String,
    pub selector: LabelSelector,
    pub max_unavailable: Option<Limit>,
    pub soak: Option<i64>,
}

/// A person's order for one rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Identifies the order. An order with another id counts as a new one.
    pub id: Digest,
    pub number: u64,
    pub promote: Option<Promote>,
    pub abort: bool,
    /// `namespace/name` of Clusters.
    pub skip: Vec<String>,
    pub reason: String,
}

/// A field of a policy that can't be accepted, and what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rollout.{field} is {value}: it must be {remedy}")]
pub struct InvalidPolicy {
    /// Path below `rollout`, e.g. `steps[1].soak`.
    pub field: String,
    pub value: String,
    pub remedy: String,
}

impl InvalidPolicy {
    fn new(field: impl Into<String>, value: impl ToString, remedy: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            value: value.to_string(),
            remedy: remedy.into(),
        }
    }
}

impl Policy {
    pub fn of(stated: &RolloutPolicy) -> Result<Self, InvalidPolicy> {
        if stated.steps.len() > MAX_STEPS {
            let told = format!("a list of {}", stated.steps.len());
            return Err(InvalidPolicy::new("steps", told, format!("one of at most {MAX_STEPS}")));
        }

        let mut steps = Vec::with_capacity(stated.steps.len());
        for (index, step) in stated.steps.iter().enumerate() {
            let read = read_step(index, step)?;
            if steps.iter().any(|earlier: &StepPolicy| earlier.name == read.name) {
                let remedy = "a name that no step before it has";
                return Err(InvalidPolicy::new(
                    format!("steps[{index}].name"),
                    quote(&read.name),
                    remedy,
                ));
            }
            steps.push(read);
        }

        let key_fits = |key: &String| (1..=MAX_LABEL_KEY).contains(&key.len());
        if let Some(key) = stated.partition_by.as_ref().filter(|key| !key_fits(key)) {
            let remedy = format!("a label's key of at most {MAX_LABEL_KEY} bytes, or absent");
            return Err(InvalidPolicy::new("partitionBy", quote(key), remedy));
        }

        let max_partitions = read_count("maxPartitions", stated.max_partitions, 1, MAX_PARTITIONS)?;
        Ok(Self {
            strategy: stated.strategy,
            max_unavailable: read_limit("maxUnavailable", &stated.max_unavailable)?,
            canary: read_canary(&stated.canary)?,
            steps,
            partition_by: stated.partition_by.clone(),
            max_partitions,
            soak: read_duration("soak", &stated.soak, ROLLOUT_SOAK)?,
            progress_deadline: read_duration("progressDeadline", &stated.progress_deadline, ROLLOUT_DEADLINE)?,
            fail_after: read_duration("failAfter", &stated.fail_after, ROLLOUT_FAIL_AFTER)?,
            halt_after: read_limit("haltAfter", &stated.halt_after)?,
            on_failure: stated.on_failure,
            paused: stated.paused,
            order: stated.order.as_ref().map(read_order).transpose()?,
        })
    }

    /// Seconds that a cluster of a step must have been healthy.
    pub(super) fn soak_of(&self, step: u16) -> i64 {
        self.step(step).and_then(|step| step.soak).unwrap_or(self.soak)
    }

    /// Policy of a step. None for canaries, and for clusters that no step selects.
    pub(super) fn step(&self, step: u16) -> Option<&StepPolicy> {
        usize::from(step).checked_sub(1).and_then(|index| self.steps.get(index))
    }

    /// Name of a step for people.
    pub fn step_name(&self, step: u16) -> &str {
        match step {
            0 => "canary",
            _ => self.step(step).map_or("rest", |step| &step.name),
        }
    }
}

fn read_step(index: usize, step: &RolloutStep) -> Result<StepPolicy, InvalidPolicy> {
    let field = |name: &str| format!("steps[{index}].{name}");
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = (1..=MAX_NAME).contains(&step.name.len())
        && step.name.bytes().all(is_plain)
        && !step.name.starts_with('-')
        && !step.name.ends_with('-');
    // `canary` and `rest` are the names of the built-in steps.
    if !is_name || ["canary", "rest"].contains(&step.name.as_str()) {
        let remedy = format!("lower-case letters, digits and dashes, at most {MAX_NAME}, and neither canary nor rest");
        return Err(InvalidPolicy::new(field("name"), quote(&step.name), remedy));
    }
    let max_unavailable = step
        .max_unavailable
        .as_ref()
        .map(|limit| read_limit(&field("maxUnavailable"), limit));
    let soak = step
        .soak
        .as_ref()
        .map(|text| read_duration(&field("soak"), text, ROLLOUT_SOAK));
    Ok(StepPolicy {
        name: step.name.clone(),
        selector: step.cluster_selector.clone(),
        max_unavailable: max_unavailable.transpose()?,
        soak: soak.transpose()?,
    })
}

fn read_canary(canary: &Canary) -> Result<Option<CanaryPolicy>, InvalidPolicy> {
    let count = canary
        .count
        .map(|count| read_count("canary.count", count, 0, MAX_CANARIES))
        .transpose()?;
    let selector = canary.cluster_selector.clone();
    Ok(match (count, &selector) {
        (Some(0), _) => None,
        (None, None) => Some(CanaryPolicy {
            selector,
            count: Some(1),
        }),
        _ => Some(CanaryPolicy { selector, count }),
    })
}

fn read_order(order: &RolloutOrder) -> Result<Order, InvalidPolicy> {
    if order.skip.len() > MAX_SKIPPED {
        let told = format!("a list of {}", order.skip.len());
        return Err(InvalidPolicy::new(
            "order.skip",
            told,
            format!("one of at most {MAX_SKIPPED}"),
        ));
    }
    let is_pair = |name: &&String| {
        name.split_once('/')
            .is_some_and(|(space, name)| !space.is_empty() && !name.is_empty())
    };
    if let Some(wrong) = order.skip.iter().find(|name| !is_pair(name)) {
        return Err(InvalidPolicy::new(
            "order.skip",
            quote(wrong),
            "NAMESPACE/NAME of a Cluster",
        ));
    }

    for (field, text, most) in [
        ("order.reason", &order.reason, MAX_REASON),
        ("order.requestedAt", &order.requested_at, MAX_REQUESTED_AT),
    ] {
        if text.len() > most {
            return Err(InvalidPolicy::new(
                field,
                format!("of {} bytes", text.len()),
                format!("at most {most} bytes"),
            ));
        }
    }
    if order.abort && order.promote.is_some() {
        return Err(InvalidPolicy::new(
            "order.abort",
            true,
            "false beside promote: a rollout can't continue and roll back",
        ));
    }

    Ok(Order {
        id: Digest::of_json(&serde_json::to_value(order).unwrap_or_default()),
        number: order.number,
        promote: order.promote,
        abort: order.abort,
        skip: order.skip.clone(),
        reason: order.reason.clone(),
    })
}

fn read_limit(field: &str, limit: &IntOrString) -> Result<Limit, InvalidPolicy> {
    let (text, told) = match limit {
        IntOrString::Int(number) => (number.to_string(), number.to_string()),
        IntOrString::String(text) => (text.clone(), quote(text)),
    };
    Limit::parse(&text).ok_or_else(|| InvalidPolicy::new(field, told, "a number above 0, or 1% to 100%"))
}

fn read_count(field: &str, count: u32, least: u32, most: u32) -> Result<usize, InvalidPolicy> {
    let within = (least..=most).contains(&count).then_some(count);
    let count = within.ok_or_else(|| InvalidPolicy::new(field, count, format!("between {least} and {most}")))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn read_duration(field: &str, text: &str, bounds: Bounds) -> Result<i64, InvalidPolicy> {
    let checked = bounds.check(text).map_err(|problem| {
        let remedy = problem.strip_prefix("must be ").unwrap_or(&problem);
        InvalidPolicy::new(field, quote(text), format!("a duration {remedy}"))
    })?;
    // Parts of a second are rounded up.
    Ok(i64::try_from(checked.as_millis().div_ceil(1000)).unwrap_or(i64::MAX))
}

/// Quotes the text, cut to the length that a message needs.
fn quote(text: &str) -> String {
    format!("{:?}", crate::conditions::cut(text, 80))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(stated: Value) -> Result<Policy, String> {
        Policy::of(&serde_json::from_value(stated).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_said_is_one_canary_and_a_tenth_at_a_time() {
        let policy = read(json!({})).unwrap();
        assert_eq!(
            (policy.max_unavailable, policy.halt_after),
            (Limit::Percent(10), Limit::Number(1))
        );
        assert_eq!(
            (policy.soak, policy.progress_deadline, policy.fail_after),
            (120, 600, 30)
        );
        assert_eq!(
            policy.canary,
            Some(CanaryPolicy {
                selector: None,
                count: Some(1)
            })
        );
        assert_eq!((policy.step_name(0), policy.step_name(1)), ("canary", "rest"));
    }

    #[test]
    fn canaries_are_all_that_are_selected_or_so_many_or_none() {
        let count = |canary: Value| {
            read(json!({"canary": canary}))
                .unwrap()
                .canary
                .map(|canary| canary.count)
        };
        assert_eq!(count(json!({"clusterSelector": {}})), Some(None));
        assert_eq!(count(json!({"clusterSelector": {}, "count": 2})), Some(Some(2)));
        assert_eq!(count(json!({"count": 3})), Some(Some(3)));
        assert_eq!(count(json!({"count": 0, "clusterSelector": {}})), None);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_value_and_what_would_be_right() {
        let check = |stated: Value, expected: &str| assert_eq!(read(stated).unwrap_err(), expected);
        check(
            json!({"soak": "0s"}),
            r#"rollout.soak is "0s": it must be a duration between 1s and 24h"#,
        );
        check(
            json!({"progressDeadline": "5s"}),
            r#"rollout.progressDeadline is "5s": it must be a duration between 30s and 24h"#,
        );
        check(
            json!({"failAfter": "2h"}),
            r#"rollout.failAfter is "2h": it must be a duration between 1s and 1h"#,
        );
        check(
            json!({"maxUnavailable": 0}),
            "rollout.maxUnavailable is 0: it must be a number above 0, or 1% to 100%",
        );
        check(
            json!({"haltAfter": "x"}),
            r#"rollout.haltAfter is "x": it must be a number above 0, or 1% to 100%"#,
        );
        check(
            json!({"maxPartitions": 0}),
            "rollout.maxPartitions is 0: it must be between 1 and 64",
        );
        check(
            json!({"canary": {"count": 1001}}),
            "rollout.canary.count is 1001: it must be between 0 and 1000",
        );
        check(
            json!({"partitionBy": ""}),
            r#"rollout.partitionBy is "": it must be a label's key of at most 317 bytes, or absent"#,
        );
        let order = |order: Value| json!({"order": order});
        check(
            order(json!({"number": 1, "skip": ["east"]})),
            r#"rollout.order.skip is "east": it must be NAMESPACE/NAME of a Cluster"#,
        );
        check(
            order(json!({"number": 1, "abort": true, "promote": "Halt"})),
            "rollout.order.abort is true: it must be false beside promote: a rollout can't continue and roll back",
        );
        check(
            order(json!({"number": 1, "requestedAt": "x".repeat(65)})),
            "rollout.order.requestedAt is of 65 bytes: it must be at most 64 bytes",
        );
    }

    #[test]
    fn steps_have_names_of_their_own_and_an_end() {
        let step = |name: &str| json!({"name": name, "clusterSelector": {}});
        let check = |names: &[&str], expected: &str| {
            let steps: Vec<Value> = names.iter().map(|name| step(name)).collect();
            assert_eq!(read(json!({"steps": steps})).unwrap_err(), expected);
        };
        check(
            &["eu", "eu"],
            r#"rollout.steps[1].name is "eu": it must be a name that no step before it has"#,
        );
        let plain = "lower-case letters, digits and dashes, at most 63, and neither canary nor rest";
        for name in ["", "canary", "rest", "EU", "-eu", "eu.west"] {
            check(
                &["us", name],
                &format!("rollout.steps[1].name is {name:?}: it must be {plain}"),
            );
        }
        let names: Vec<String> = (0..33).map(|number| format!("s{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check(&names, "rollout.steps is a list of 33: it must be one of at most 32");
        let late = json!({"name": "eu", "clusterSelector": {}, "soak": "25h"});
        let told = r#"rollout.steps[0].soak is "25h": it must be a duration between 1s and 24h"#;
        assert_eq!(read(json!({"steps": [late]})).unwrap_err(), told);
        let policy = read(json!({"steps": [{"name": "eu", "clusterSelector": {}, "soak": "1500ms"}]})).unwrap();
        assert_eq!((policy.soak_of(0), policy.soak_of(1), policy.soak_of(2)), (120, 2, 120));
    }

    #[test]
    fn another_request_of_the_same_is_another_order() {
        let id = |at: &str| {
            read(json!({"order": {"number": 1, "promote": "Soak", "requestedAt": at}}))
                .unwrap()
                .order
                .unwrap()
                .id
        };
        assert_eq!(id("a"), id("a"));
        assert_ne!(id("a"), id("b"));
    }
}
