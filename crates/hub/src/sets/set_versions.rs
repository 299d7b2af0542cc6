//! The versions of a set: what each of its rollouts deployed, which orders people gave, and how the set returns to one.
//!
//! A version is a template and the number of a rollout. The history of each service has the content that the set's
//! sources had for its cluster, and the rollout that released it. So a set can be rolled back without its sources.

use farwater_api::{
    ServiceSet,
    service_set::{ORDERS_KEPT, SetOrder, SetVersion, VERSIONS_KEPT},
};
use farwater_fleet::{
    assignment::{Candidate, Trouble},
    conditions::whole_seconds,
    history::version_at,
    rollout::{Decision, Phase, State},
};
use farwater_store::{
    Connection, StoreError, Tx,
    delivery::{
        MemberRollout, load_set_pin, load_set_version, load_set_versions, save_set_pin, save_set_version,
        some_services_of_set, trim_set_versions,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{guards::approvals::Override, replica::Replica, resources::Name, services::versions};

/// The order of [`SetOrder`] for an override.
const OVERRIDE: &str = "override change windows";
/// Maximum number of members whose histories are searched for a member that has no such version itself.
const SIBLINGS: u32 = 1024;

#[derive(Debug, Serialize, Deserialize)]
struct Version {
    #[serde(flatten)]
    told: SetVersion,
    /// The fields of the set's spec that the rollout was about.
    stated: Value,
}

impl Version {
    fn begin(set: &ServiceSet, number: u64, revision: &str, now: &Time) -> Self {
        Self {
            told: SetVersion {
                number,
                revision: revision.to_owned(),
                pin: set.spec.pin.as_ref().map(|pin| pin.version),
                began: now.clone(),
                ended: None,
                phase: Phase::Progressing,
                good: false,
                halted_by: None,
                orders: Vec::new(),
            },
            stated: stated(set),
        }
    }
}

/// The fields of a set's spec that its services are made of.
fn stated(set: &ServiceSet) -> Value {
    let spec = &set.spec;
    json!({"template": spec.template, "parameters": spec.parameters, "overrides": spec.overrides})
}

fn read(set_uid: &str, text: &str) -> Result<Version, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Row {
        what: format!("a version of ServiceSet {set_uid}"),
        problem: error.to_string(),
    })
}

fn key(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// All versions, newest first.
pub async fn list(tables: &mut Connection, set_uid: &str) -> Result<Vec<SetVersion>, StoreError> {
    let rows = load_set_versions(tables, set_uid).await?;
    rows.iter().map(|(_, text)| Ok(read(set_uid, text)?.told)).collect()
}

/// Revision of a version; None: the version is not known.
pub async fn load_revision(replica: &Replica, set_uid: &str, number: u64) -> Result<Option<String>, StoreError> {
    let text = load_set_version(&mut *replica.store.tables().await?, set_uid, key(number)).await?;
    Ok(text
        .map(|text| read(set_uid, &text))
        .transpose()?
        .map(|version| version.told.revision))
}

/// Returns a set with its pinned version applied, or what is wrong with the pin.
pub async fn apply_pin(
    tables: &mut Connection,
    set_uid: &str,
    mut set: ServiceSet,
) -> Result<Result<ServiceSet, String>, StoreError> {
    let Some(pin) = &set.spec.pin else { return Ok(Ok(set)) };

    let Some(text) = load_set_version(tables, set_uid, key(pin.version)).await? else {
        let known = list(tables, set_uid).await?;
        return Ok(Err(describe_missing(pin.version, &known)));
    };

    let Version { stated, .. } = read(set_uid, &text)?;
    let damaged = |error: serde_json::Error| StoreError::Row {
        what: format!("version {} of ServiceSet {set_uid}", pin.version),
        problem: error.to_string(),
    };

    let field = |name: &str| stated[name].clone();
    set.spec.template = serde_json::from_value(field("template")).map_err(damaged)?;
    set.spec.parameters = serde_json::from_value(field("parameters")).map_err(damaged)?;
    set.spec.overrides = serde_json::from_value(field("overrides")).map_err(damaged)?;
    Ok(Ok(set))
}

/// `the set has no version 9; it has 3, 4`
pub fn describe_missing(version: u64, known: &[SetVersion]) -> String {
    let numbers: Vec<String> = known.iter().rev().map(|known| known.number.to_string()).collect();
    match numbers.is_empty() {
        true => format!("the set has no version {version}: nothing of it was ever rolled out"),
        false => format!("the set has no version {version}; it has {}", numbers.join(", ")),
    }
}

/// Saves which version a set is pinned at. Returns whether that differs from before.
pub async fn follow_pin(replica: &Replica, set_uid: &str, set: &ServiceSet) -> Result<bool, StoreError> {
    let pin = set.spec.pin.as_ref().map_or(0, |pin| key(pin.version));
    if load_set_pin(&mut *replica.store.tables().await?, set_uid).await? == pin {
        return Ok(false);
    }
    let set_uid = set_uid.to_owned();
    replica
        .store
        .transact(move |tx| Box::pin(async move { save_set_pin(tx, &set_uid, pin).await }))
        .await?;
    Ok(true)
}

/// The candidate of a member for the version that its set is pinned at. `own`: the candidate of its sources. A member
/// that has joined since gets the candidate that others had of the same folder. If none had one, the member gets
/// nothing, because the set was rolled back from the present content of its sources.
pub async fn find_candidate(
    replica: &Replica,
    member: &MemberRollout,
    own: Option<&Candidate>,
) -> Result<Result<Candidate, Trouble>, StoreError> {
    let rollout = member.set_pin.unsigned_abs();
    let mut tables = replica.store.tables().await?;

    let history = versions::load_versions(&mut tables, &member.service_uid).await?;
    if let Some(version) = version_at(&history, rollout) {
        return Ok(Ok(version.candidate()));
    }

    for sibling in some_services_of_set(&mut tables, &member.set_uid, SIBLINGS).await? {
        let history = versions::load_versions(&mut tables, &sibling).await?;
        // Another variant of the template deploys something else.
        let is_same = |candidate: &Candidate| own.is_some_and(|own| own.path == candidate.path);
        if let Some(candidate) = version_at(&history, rollout)
            .map(|version| version.candidate())
            .filter(is_same)
        {
            return Ok(Ok(candidate));
        }
    }

    let message = format!(
        "its set is pinned at version {rollout}, and the hub has no revision of the service for that version: the service \
         did not exist then, and no member that did exist has the same folder"
    );
    Ok(Err(Trouble::Pin { message }))
}

/// News of a set's rollout, to save with the decision.
pub struct Note {
    number: u64,
    version: String,
    /// Other versions that were still open, as number and text.
    ended: Vec<(u64, String)>,
    /// Versions to keep however old they are: the one the set is pinned at, and the one it can be rolled back to.
    needed: [i64; 2],
}

/// Returns the news of a rollout and the orders about it; None: they are saved already. `before`: the state before the
/// decision. `overridden`: the override that lets its changes start despite windows.
pub async fn note_rollout(
    replica: &Replica,
    (name, set_uid, set): (&Name, &str, &ServiceSet),
    (before, decision): (&State, &Decision),
    (revision, overridden): (&str, Option<&Override>),
) -> Result<Option<Note>, StoreError> {
    let state = &decision.state;
    if state.number == 0 {
        return Ok(None);
    }

    let now = whole_seconds(Timestamp::now());
    let mut tables = replica.store.tables().await?;
    let text = load_set_version(&mut tables, set_uid, key(state.number)).await?;
    let known = text.as_deref().map(|text| read(set_uid, text)).transpose()?;
    let is_new = known.is_none();
    let mut version = known.unwrap_or_else(|| Version::begin(set, state.number, revision, &now));

    let overrides = overridden
        .filter(|word| state.open && is_new_override(&version.told, word))
        .map(|Override { by, reason }| (by.clone(), OVERRIDE.to_owned(), reason.clone()));
    let orders = new_orders(&version.told, set, before, state, is_new);
    let by = set.status.as_ref().and_then(|status| status.changed_by.clone());
    let by = by.unwrap_or_default();
    for (order, reason) in &orders {
        tracing::info!(set = %name, number = state.number, by, what = order, reason, "an order for a rollout");
    }
    let orders = orders.into_iter().map(|(order, reason)| (by.clone(), order, reason));
    add_orders(&mut version.told, overrides.into_iter().chain(orders), &now);
    note_outcome(&mut version.told, decision, &now);

    let next = serde_json::to_string(&version).map_err(StoreError::abort)?;
    if text.as_ref() == Some(&next) {
        return Ok(None);
    }
    let ended = match is_new {
        true => end_others(&mut tables, set_uid, &now).await?,
        false => Vec::new(),
    };
    let pin = set.spec.pin.as_ref().map_or(0, |pin| key(pin.version));
    let good = state.last_good.map_or(0, |good| key(good.number));
    Ok(Some(Note {
        number: state.number,
        version: next,
        ended,
        needed: [pin, good],
    }))
}

/// Whether the version does not list this override yet.
fn is_new_override(version: &SetVersion, word: &Override) -> bool {
    let is_same = |order: &SetOrder| order.what == OVERRIDE && order.by == word.by && order.reason == word.reason;
    !version.orders.iter().any(is_same)
}

/// The orders in the set's spec that were not noted before, each with its reason.
fn new_orders(
    version: &SetVersion,
    set: &ServiceSet,
    before: &State,
    state: &State,
    is_new: bool,
) -> Vec<(String, String)> {
    let policy = &set.spec.rollout;
    let reason = |stated: &Option<String>| stated.clone().unwrap_or_default();

    let pin = set.spec.pin.as_ref().filter(|_| is_new);
    let back = pin.map(|pin| (format!("roll back to {}", pin.version), reason(&pin.reason)));
    let order = policy
        .order
        .as_ref()
        .filter(|order| before.obeyed != state.obeyed && order.number == state.number)
        .map(|order| (describe(order), order.reason.clone()));
    let pause = match (is_paused(version), policy.paused) {
        (false, true) => Some(("pause".to_owned(), reason(&policy.pause_reason))),
        (true, false) => Some(("resume".to_owned(), String::new())),
        _ => None,
    };
    [back, order, pause].into_iter().flatten().collect()
}

/// Adds orders, each as its user, text and reason, and drops the oldest ones over the limit.
fn add_orders(version: &mut SetVersion, orders: impl Iterator<Item = (String, String, String)>, now: &Time) {
    version.orders.extend(orders.map(|(by, what, reason)| SetOrder {
        at: now.clone(),
        by,
        what,
        reason,
    }));
    let extra = version.orders.len().saturating_sub(ORDERS_KEPT);
    version.orders.drain(..extra);
}

fn note_outcome(version: &mut SetVersion, decision: &Decision, now: &Time) {
    let state = &decision.state;
    version.phase = decision.phase;
    version.good |= !state.open && state.last_good.is_some_and(|good| good.number == state.number);
    if let Some(by) = &decision.outlook.halted_by {
        version.halted_by = Some(by.clone());
    }
    if !state.open {
        version.ended.get_or_insert_with(|| now.clone());
    }
}

/// Ends the versions of a set that are still open, because a new one begins. Returns number and text of each.
async fn end_others(tables: &mut Connection, set_uid: &str, now: &Time) -> Result<Vec<(u64, String)>, StoreError> {
    let mut ended = Vec::new();
    for (number, text) in load_set_versions(tables, set_uid).await? {
        let mut left = read(set_uid, &text)?;
        if left.told.ended.is_none() {
            left.told.ended = Some(now.clone());
            let text = serde_json::to_string(&left).map_err(StoreError::abort)?;
            ended.push((number.unsigned_abs(), text));
        }
    }
    Ok(ended)
}

/// Whether the last order of this kind paused the rollout.
fn is_paused(version: &SetVersion) -> bool {
    let said = |order: &&SetOrder| matches!(order.what.as_str(), "pause" | "resume");
    version
        .orders
        .iter()
        .rev()
        .find(said)
        .is_some_and(|order| order.what == "pause")
}

fn describe(order: &farwater_api::rollout::RolloutOrder) -> String {
    let promoted = order.promote.map(|past| format!("promote past {past:?}"));
    let aborted = order.abort.then(|| "abort".to_owned());
    let skipped = (!order.skip.is_empty()).then(|| format!("skip {}", order.skip.join(", ")));
    let all: Vec<String> = [promoted, aborted, skipped].into_iter().flatten().collect();
    all.join(", ")
}

/// Called in the transaction that saves the decision.
pub async fn save(tx: &mut Tx, set_uid: &str, note: &Note) -> Result<(), StoreError> {
    let Note {
        number,
        version,
        ended,
        needed,
    } = note;
    for (number, version) in ended {
        save_set_version(tx, set_uid, (key(*number), version)).await?;
    }
    save_set_version(tx, set_uid, (key(*number), version)).await?;
    let last = key(*number).saturating_sub(i64::try_from(VERSIONS_KEPT).unwrap_or(i64::MAX));
    trim_set_versions(tx, set_uid, (last, *needed)).await
}
