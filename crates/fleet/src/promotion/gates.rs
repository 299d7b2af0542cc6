//! The gates of a pipeline, read from its spec, and the fields that are invalid.

use std::collections::BTreeSet;

use farwater_api::{
    change_window::{ChangeWindowSpec, WindowType},
    notification_provider::ProviderType,
    pipeline::{GateType, MAX_OF_STAGE, MAX_STAGES, PipelineSpec, PipelineStage, PromotionGate, StageFailure},
};
use serde_json::Value;

use crate::{
    duration::{APPROVAL_EXPIRES, Bounds, GATE_INTERVAL, PROMOTION_SOAK},
    health::expression::Expression,
    notify::check_address,
    promotion::{answers::Asking, metric::Measuring},
    proposals,
    windows::Window,
};

/// Seconds that an approval counts, if the gate doesn't say.
const EXPIRES: i64 = 72 * 3600;

/// Seconds that a pass of a webhook counts, if the gate doesn't say.
const PASS_EXPIRES: i64 = 3600;

/// Seconds between two questions of a gate, if it doesn't say.
const INTERVAL: i64 = 60;

/// Fields that a gate may have. A field of a newer version would be ignored, and an ignored condition leaves the gate
/// open.
pub(super) const GATE_FIELDS: [&str; 16] = [
    "type",
    "duration",
    "quorum",
    "groups",
    "expires",
    "schedule",
    "timeZone",
    "address",
    "secretRef",
    "certSecretRef",
    "interval",
    "query",
    "condition",
    "count",
    "failureLimit",
    "tests",
];

/// The gates before a stage, parsed.
#[derive(Clone, Debug, Default)]
pub struct Gates {
    /// Seconds. None: it is enough that the previous stage is well.
    pub soak: Option<i64>,
    pub approval: Option<Approving>,
    pub window: Option<Window>,
    pub webhook: Option<Asking>,
    pub metric: Option<Measuring>,
    /// Names of tests. None: no test gate. Empty: each service of the previous stage must state at least one.
    pub test: Option<Vec<String>>,
}

/// How many approvals are needed, and from which groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approving {
    pub quorum: usize,
    pub groups: Vec<String>,
    /// Seconds that an approval counts.
    pub expires: i64,
}

/// An invalid field of a pipeline's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPipeline {
    /// Path below `spec`.
    pub field: String,
    pub why: String,
}

impl InvalidPipeline {
    fn new(field: &str, why: &str) -> Self {
        Self {
            field: field.to_owned(),
            why: why.to_owned(),
        }
    }

    /// The same problem of a field below `at`.
    fn below(self, at: &str) -> Self {
        Self {
            field: format!("{at}.{}", self.field),
            why: self.why,
        }
    }
}

/// The names that earlier stages of the pipeline use.
#[derive(Default)]
struct Used<'a> {
    names: BTreeSet<&'a str>,
    repositories: BTreeSet<&'a str>,
    members: BTreeSet<(&'static str, &'a str)>,
}

/// The gates of each stage. The first stage has none.
pub fn read_gates(spec: &PipelineSpec) -> Result<Vec<Gates>, Vec<InvalidPipeline>> {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    if !(2..=MAX_STAGES).contains(&spec.stages.len()) {
        problems.push(InvalidPipeline::new("stages", "a pipeline has 2 to 16 of them"));
    }

    let mut used = Used::default();
    for (index, stage) in spec.stages.iter().enumerate() {
        let mut found = check_names(stage, &mut used);
        found.extend(check_members(stage, &mut used));
        if index == 0 {
            found.extend(check_first_stage(stage));
        }
        found.extend(check_pull_request(spec, stage, index == 0));
        match read_stage(stage) {
            Ok(gates) => all.push(gates),
            Err(of_gates) => found.extend(of_gates),
        }

        let at = format!("stages[{index}]");
        problems.extend(found.into_iter().map(|problem| problem.below(&at)));
    }

    if problems.is_empty() { Ok(all) } else { Err(problems) }
}

/// The name and the repository of a stage are its own.
fn check_names<'a>(stage: &'a PipelineStage, used: &mut Used<'a>) -> Vec<InvalidPipeline> {
    let mut problems = Vec::new();
    if !used.names.insert(&stage.name) {
        problems.push(InvalidPipeline::new("name", "another stage is called so"));
    }
    if !used.repositories.insert(&stage.source_ref.name) {
        problems.push(InvalidPipeline::new(
            "sourceRef",
            "another stage uses it: each stage needs its own GitRepository",
        ));
    }
    problems
}

/// A stage has sets or services, not too many, and each of them is in one stage only.
fn check_members<'a>(stage: &'a PipelineStage, used: &mut Used<'a>) -> Vec<InvalidPipeline> {
    let mut problems = Vec::new();
    if stage.sets.is_empty() && stage.services.is_empty() {
        problems.push(InvalidPipeline::new(
            "sets",
            "a stage needs at least one set or service: an empty stage can't be proven healthy",
        ));
    }
    for (field, kind, of_stage) in [("sets", "set", &stage.sets), ("services", "service", &stage.services)] {
        if of_stage.len() > MAX_OF_STAGE {
            problems.push(InvalidPipeline::new(field, "a stage has at most 32 of them"));
        }
        if !of_stage.iter().all(|name| used.members.insert((kind, name))) {
            problems.push(InvalidPipeline::new(
                field,
                "it is named twice and can't be at two revisions",
            ));
        }
    }
    problems
}

/// Nothing is promoted to the first stage, so it can't state how.
fn check_first_stage(stage: &PipelineStage) -> Vec<InvalidPipeline> {
    let mut problems = Vec::new();
    if !stage.gates.is_empty() {
        problems.push(InvalidPipeline::new(
            "gates",
            "the first stage follows its repository: nothing is promoted to it",
        ));
    }
    if stage.on_failure != StageFailure::Halt {
        problems.push(InvalidPipeline::new(
            "onFailure",
            "the first stage follows its repository: revert the commit",
        ));
    }
    problems
}

fn check_pull_request(spec: &PipelineSpec, stage: &PipelineStage, is_first: bool) -> Vec<InvalidPipeline> {
    let mut problems = Vec::new();
    if let Some((field, why)) = proposals::check(stage, is_first) {
        problems.push(InvalidPipeline::new(field, why));
    }
    if stage.pull_request.is_some() && !spec.promotes().is_empty() {
        problems.push(InvalidPipeline::new(
            "pullRequest",
            "texts go with what the stage's repository serves by the pipeline's word, and this one serves what people merge: copy a \
             field of a file with pullRequest.from, or state nothing in promotes",
        ));
    }
    problems
}

fn read_stage(stage: &PipelineStage) -> Result<Gates, Vec<InvalidPipeline>> {
    let (mut gates, mut problems) = (Gates::default(), Vec::new());
    let mut types = BTreeSet::new();
    for (index, gate) in stage.gates.iter().enumerate() {
        let at = format!("gates[{index}]");
        if !types.insert(gate.r#type) {
            let why = format!("{} is stated twice", gate.r#type);
            problems.push(InvalidPipeline::new("type", &why).below(&at));
            continue;
        }

        let mut found = foreign_fields(gate);
        if found.is_empty() {
            found = read_gate(gate, &mut gates).err().unwrap_or_default();
        }
        problems.extend(found.into_iter().map(|problem| problem.below(&at)));
    }
    if problems.is_empty() { Ok(gates) } else { Err(problems) }
}

/// Fields that only gates of other types have. They are refused, because ignoring them would not do what the author
/// meant.
pub(super) fn foreign_fields(gate: &PromotionGate) -> Vec<InvalidPipeline> {
    let PromotionGate {
        r#type,
        duration,
        quorum,
        groups,
        expires,
        schedule,
        time_zone,
        ..
    } = gate;
    let PromotionGate {
        address,
        secret_ref,
        cert_secret_ref,
        interval,
        query,
        condition,
        ..
    } = gate;
    let PromotionGate {
        count,
        failure_limit,
        tests,
        ..
    } = gate;
    let asking: &[GateType] = &[GateType::Webhook, GateType::Metric];
    let stated = [
        (
            "duration",
            duration.is_some(),
            &[GateType::Soak, GateType::Window, GateType::Metric][..],
        ),
        ("quorum", quorum.is_some(), &[GateType::Approval]),
        ("groups", !groups.is_empty(), &[GateType::Approval]),
        ("expires", expires.is_some(), &[GateType::Approval, GateType::Webhook]),
        ("schedule", schedule.is_some(), &[GateType::Window]),
        ("timeZone", time_zone.is_some(), &[GateType::Window]),
        ("address", address.is_some(), asking),
        ("secretRef", secret_ref.is_some(), asking),
        ("certSecretRef", cert_secret_ref.is_some(), asking),
        ("interval", interval.is_some(), asking),
        ("query", query.is_some(), &[GateType::Metric]),
        ("condition", condition.is_some(), &[GateType::Metric]),
        ("count", count.is_some(), &[GateType::Metric]),
        ("failureLimit", failure_limit.is_some(), &[GateType::Metric]),
        ("tests", !tests.is_empty(), &[GateType::Test]),
    ];
    let foreign = stated
        .into_iter()
        .filter(|(_, is_stated, types)| *is_stated && !types.contains(r#type));
    foreign
        .map(|(field, ..)| InvalidPipeline {
            field: field.to_owned(),
            why: format!("a gate {} has none", r#type),
        })
        .collect()
}

fn read_gate(gate: &PromotionGate, gates: &mut Gates) -> Result<(), Vec<InvalidPipeline>> {
    match gate.r#type {
        GateType::Soak => gates.soak = Some(read_soak(gate)?),
        GateType::Approval => gates.approval = Some(read_approval(gate)?),
        GateType::Window => gates.window = Some(read_window(gate)?),
        GateType::Webhook => gates.webhook = Some(read_webhook(gate)?),
        GateType::Metric => gates.metric = Some(read_metric(gate)?),
        GateType::Test => gates.test = Some(gate.tests.clone()),
    }
    Ok(())
}

fn read_soak(gate: &PromotionGate) -> Result<i64, Vec<InvalidPipeline>> {
    let text = gate
        .duration
        .as_deref()
        .ok_or_else(|| invalid("duration", "say for how long"))?;
    read_seconds("duration", text, PROMOTION_SOAK)
}

fn read_approval(gate: &PromotionGate) -> Result<Approving, Vec<InvalidPipeline>> {
    let expires = read_optional("expires", &gate.expires, APPROVAL_EXPIRES, EXPIRES)?;
    let quorum = gate.quorum.unwrap_or(1).clamp(1, 20) as usize;
    Ok(Approving {
        quorum,
        groups: gate.groups.clone(),
        expires,
    })
}

fn read_window(gate: &PromotionGate) -> Result<Window, Vec<InvalidPipeline>> {
    if gate.schedule.is_none() {
        return Err(invalid("schedule", "say when it begins"));
    }
    let spec = ChangeWindowSpec {
        r#type: WindowType::Allow,
        schedule: gate.schedule.clone(),
        duration: gate.duration.clone(),
        time_zone: gate.time_zone.clone().unwrap_or_else(|| "UTC".to_owned()),
        ..ChangeWindowSpec::default()
    };
    Window::read("", "", &spec).map_err(|problems| {
        problems
            .into_iter()
            .map(|problem| InvalidPipeline {
                field: problem.field.to_owned(),
                why: problem.why,
            })
            .collect::<Vec<_>>()
    })
}

fn read_webhook(gate: &PromotionGate) -> Result<Asking, Vec<InvalidPipeline>> {
    check_gate_address(gate, "say whom it asks")?;
    if gate.secret_ref.is_none() {
        return Err(invalid(
            "secretRef",
            "name a Secret with the token that requests are signed with",
        ));
    }
    Ok(Asking {
        stated: gate.clone(),
        interval: read_optional("interval", &gate.interval, GATE_INTERVAL, INTERVAL)?,
        expires: read_optional("expires", &gate.expires, APPROVAL_EXPIRES, PASS_EXPIRES)?,
    })
}

fn read_metric(gate: &PromotionGate) -> Result<Measuring, Vec<InvalidPipeline>> {
    check_gate_address(gate, "state the address of Prometheus")?;
    if gate.query.is_none() {
        return Err(invalid("query", "state a query in PromQL"));
    }
    let text = gate
        .condition
        .as_deref()
        .ok_or_else(|| invalid("condition", "state a condition"))?;
    let condition = Expression::compile(text).map_err(|error| invalid("condition", &error.to_string()))?;
    Ok(Measuring {
        stated: gate.clone(),
        condition,
        interval: read_optional("interval", &gate.interval, GATE_INTERVAL, INTERVAL)?,
        duration: read_optional("duration", &gate.duration, PROMOTION_SOAK, 0)?,
        count: gate.count.unwrap_or(1).max(1),
        failure_limit: gate.failure_limit,
    })
}

fn invalid(field: &str, why: &str) -> Vec<InvalidPipeline> {
    vec![InvalidPipeline::new(field, why)]
}

fn read_seconds(field: &str, text: &str, bounds: Bounds) -> Result<i64, Vec<InvalidPipeline>> {
    bounds
        .check(text)
        .map(|duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
        .map_err(|why| invalid(field, &why))
}

fn read_optional(
    field: &str,
    text: &Option<String>,
    bounds: Bounds,
    default: i64,
) -> Result<i64, Vec<InvalidPipeline>> {
    text.as_deref()
        .map_or(Ok(default), |text| read_seconds(field, text, bounds))
}

/// `missing`: what to do if the gate states no address.
fn check_gate_address(gate: &PromotionGate, missing: &str) -> Result<(), Vec<InvalidPipeline>> {
    let address = gate.address.as_deref().ok_or_else(|| invalid("address", missing))?;
    check_address(ProviderType::Generic, address).map_err(|why| invalid("address", &why))
}

/// A field of a stored spec that this version does not know, and would ignore.
pub fn unknown_gate_field(spec: &Value) -> Option<String> {
    let stages = spec["stages"].as_array().into_iter().flatten();
    let gates = stages.flat_map(|stage| stage["gates"].as_array().into_iter().flatten());
    let fields = gates.filter_map(Value::as_object).flat_map(|gate| gate.keys());
    let mut unknown = fields.filter(|field| !GATE_FIELDS.contains(&field.as_str()));
    unknown.next().cloned()
}
