//! A plan for people and programs: each change with its effect, the rest with reasons. Everything that a source or a
//! cluster can make large is bounded.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{
    objects::{ObjectRef, SyncState},
    plan::{
        Effect, LeftOut, MAX_PLAN_BYTES, MAX_PLANNED_OBJECTS, PlannedCause, PlannedChange, PlannedDelete, PlannedHook,
        ServicePlan,
    },
};
use farwater_fleet::{
    plan::{
        Again, Cause, Change, Inventory, ObjectKey, Plan, ResolvedObject, SkipReason, Stage,
        fields::{Sides, Veiled, compare},
        namespaces::{creates_namespace, explain_missing_namespace},
        settle,
        veil::Veil,
    },
    prune::Verdict,
};
use futures::{StreamExt as _, stream};
use serde_json::Value;

use super::redact::{Redactor, is_secret};
use crate::{
    execute::{Executor, Inspected, Rehearsed},
    messages::shorten,
};

/// Concurrent requests: far fewer than for an apply, because only people wait for a plan.
const PARALLEL: usize = 8;
/// Changes that are tried by dry run; people don't read the fields of more.
const MAX_REHEARSED: usize = 500;
/// Objects whose drift is compared.
const MAX_INSPECTED: usize = 50;
/// Most bytes of the fields of all changes. Names and reasons of objects are bounded by their number.
const FIELDS_BYTES: usize = MAX_PLAN_BYTES / 4;
/// Most bytes of a reason or a message: with 3 × 2,000 objects the total is far below the limit.
const MAX_TEXT: usize = 256;

pub struct Teller<'a> {
    executor: &'a Executor<'a>,
    redactor: &'a Redactor,
    objects: BTreeMap<ObjectKey, &'a ResolvedObject>,
    /// The last applied manifests.
    applied: BTreeMap<ObjectKey, Vec<u8>>,
    /// Another render of the same files.
    again: Option<&'a Again>,
    /// Secret values in these manifests, which no output may show.
    veil: Veil,
    /// Bytes left for fields.
    room: usize,
}

impl<'a> Teller<'a> {
    pub fn new(
        executor: &'a Executor<'a>,
        redactor: &'a Redactor,
        objects: BTreeMap<ObjectKey, &'a ResolvedObject>,
        (applied, veil): (BTreeMap<ObjectKey, Vec<u8>>, Veil),
        again: Option<&'a Again>,
    ) -> Self {
        Self {
            executor,
            redactor,
            objects,
            applied,
            again,
            veil,
            room: FIELDS_BYTES,
        }
    }

    pub async fn tell(&mut self, plan: &Plan, inventory: &Inventory, hooks: Vec<PlannedHook>) -> ServicePlan {
        let (changes, homeless) = self.tell_changes(plan, &hooks).await;
        let mut left_out = tell_skipped(plan);
        left_out.extend(homeless);
        let mut told = ServicePlan {
            create_namespace: plan.create_namespace.clone(),
            changes,
            deletes: tell_deletes(plan),
            held_prune: plan.prune.held(),
            hooks,
            left_out,
            unchanged: count(plan.unchanged.len()),
            forgotten: count(plan.forgotten.len()),
            ..ServicePlan::default()
        };

        told.left_out.extend(self.tell_drifted(plan).await);
        let kept = plan.kept.iter().filter_map(|(key, keep)| {
            let object = inventory.entries.get(key)?.object.clone();
            Some(LeftOut {
                object,
                sync: SyncState::Synced,
                reason: text(&keep.to_string()),
            })
        });
        told.left_out.extend(kept);
        told.hidden = told.changes.iter().map(|change| change.hidden).sum();

        let limit = |length: usize| count(length.saturating_sub(MAX_PLANNED_OBJECTS));
        let listed = [
            told.changes.len(),
            told.deletes.len(),
            told.hooks.len(),
            told.left_out.len(),
        ];
        told.unlisted = listed.into_iter().map(limit).sum();
        told.changes.truncate(MAX_PLANNED_OBJECTS);
        told.deletes.truncate(MAX_PLANNED_OBJECTS);
        told.hooks.truncate(MAX_PLANNED_OBJECTS);
        told.hooks
            .iter_mut()
            .for_each(|hook| hook.message = text(&hook.message));
        told.left_out.truncate(MAX_PLANNED_OBJECTS);
        told
    }

    /// The changes, and the objects that are not created because nothing creates their namespace.
    async fn tell_changes(&mut self, plan: &Plan, hooks: &[PlannedHook]) -> (Vec<PlannedChange>, Vec<LeftOut>) {
        let changes = plan
            .waves
            .iter()
            .flat_map(|wave| wave.changes.iter().map(move |change| (wave.number, change)));
        let changes: Vec<_> = changes
            .filter_map(|(wave, change)| Some((wave, change, *self.objects.get(&change.object)?)))
            .collect();
        let redefined: BTreeSet<Kind> = changes
            .iter()
            .filter_map(|(_, _, object)| defined_kind(object))
            .collect();
        let is_redefined = |object: &ObjectRef| redefined.contains(&(object.group.clone(), object.kind.clone()));
        let executor = self.executor;
        let asked = changes.iter().take(MAX_REHEARSED);
        let asked: Vec<_> = asked
            .map(|(_, change, object)| executor.rehearse(change, object, is_redefined(&object.object)))
            .collect();
        let mut asked = stream::iter(asked).buffered(PARALLEL);
        let (mut told, mut homeless) = (Vec::with_capacity(changes.len()), Vec::new());
        let mut missing: BTreeSet<&str> = BTreeSet::new();
        for (wave, change, object) in &changes {
            let rehearsed = match asked.next().await {
                Some(rehearsed) => rehearsed,
                None => Rehearsed::Untried(format!("more than {MAX_REHEARSED} objects change")),
            };
            let namespace = object.object.namespace.as_str();
            let is_missing = match &rehearsed {
                Rehearsed::NoNamespace(_) => !creates_namespace(plan, hooks.iter().map(|hook| &hook.object), namespace),
                Rehearsed::Untried(_) => missing.contains(namespace),
                _ => false,
            };
            if is_missing {
                missing.insert(namespace);
                homeless.push(LeftOut {
                    object: object.object.clone(),
                    sync: SyncState::Waiting,
                    reason: text(&explain_missing_namespace(namespace)),
                });
                continue;
            }
            let made_up = self.again.is_some_and(|again| again.names_otherwise(&change.object));
            let mut planned = PlannedChange {
                wave: *wave,
                made_up,
                ..of_change(change, &object.object)
            };
            self.describe(&mut planned, change, object, rehearsed);
            told.push(planned);
        }
        (told, homeless)
    }

    fn describe(
        &mut self,
        planned: &mut PlannedChange,
        change: &Change,
        object: &ResolvedObject,
        rehearsed: Rehearsed,
    ) {
        let (effect, message) = match rehearsed {
            Rehearsed::Refused(why) => (Effect::Refused, why),
            Rehearsed::NoNamespace(why) | Rehearsed::Untried(why) => (Effect::Untried, why),
            Rehearsed::Recreated { why } => (Effect::Recreate, why),
            Rehearsed::Done { live: None, .. } => (Effect::Create, String::new()),
            Rehearsed::Done {
                live: Some(live),
                planned: after,
                note,
            } => {
                let effect = self.compare(planned, change, object, (&live, &after));
                (effect, note.unwrap_or_default())
            }
        };
        planned.effect = effect;
        let migrated =
            "fields that a client-side tool applied become the service's, and go where the source lacks them";
        let migrated = change.migrate.then_some(migrated);
        let parts: Vec<&str> = migrated
            .into_iter()
            .chain(Some(&*message))
            .filter(|part| !part.is_empty())
            .collect();
        planned.message = text(&self.veil.conceal(&parts.join("; ")));
    }

    fn compare(
        &mut self,
        planned: &mut PlannedChange,
        change: &Change,
        object: &ResolvedObject,
        (live, after): (&Value, &Value),
    ) -> Effect {
        let key = &change.object;
        let read = |body: &[u8]| {
            let mut manifest = serde_json::from_slice(body).unwrap_or_default();
            settle(&mut manifest, &object.object);
            manifest
        };
        let (source, applied): (Value, Option<Value>) =
            (read(&object.body), self.applied.get(key).map(|body| read(body)));
        let hash = |path: &str, value: &Value| self.redactor.hash(key, path, value);
        let redact: Option<farwater_fleet::plan::fields::Redact<'_>> = if is_secret(key) { Some(&hash) } else { None };
        let veiled = (!self.veil.is_empty()).then_some(Veiled {
            veil: &self.veil,
            redact: &hash,
        });
        let again = self.again.and_then(|again| again.body(key)).map(read);
        let (applied, again) = (applied.as_ref(), again.as_ref());
        let sides = Sides {
            live,
            planned: after,
            source: &source,
            applied,
            again,
            redact,
            veiled,
        };
        let compared = compare(sides, &mut self.room);
        (planned.more_fields, planned.hidden) = (compared.more, compared.hidden);
        planned.fields = compared.fields;
        let changes = compared.marked || planned.more_fields > 0 || !planned.fields.is_empty();
        if changes { Effect::Change } else { Effect::Nothing }
    }

    async fn tell_drifted(&self, plan: &Plan) -> Vec<LeftOut> {
        let mut told = Vec::new();
        for (index, object) in plan.drifted.iter().filter_map(|key| self.objects.get(key)).enumerate() {
            let what = match index < MAX_INSPECTED {
                true => match self.executor.inspect(object).await {
                    Ok(Inspected::Same(_)) => continue,
                    Ok(Inspected::Differs { fields, .. }) => format!("others changed it: {fields}"),
                    Ok(Inspected::Gone) => "others deleted it".to_owned(),
                    Err(error) => format!("others changed it; the differences are unknown: {error}"),
                },
                false => "others changed it".to_owned(),
            };
            let reason = text(&format!(
                "{what}; it stays so: its drift mode is {:?}",
                object.options.drift
            ));
            told.push(LeftOut {
                object: object.object.clone(),
                sync: SyncState::Drifted,
                reason,
            });
        }
        told
    }
}

/// Group and kind.
type Kind = (String, String);

/// The kind that an object defines.
fn defined_kind(object: &ResolvedObject) -> Option<Kind> {
    if object.stage != Stage::Definitions {
        return None;
    }
    let definition: Value = serde_json::from_slice(&object.body).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some((
        text(&definition["spec"]["group"])?,
        text(&definition["spec"]["names"]["kind"])?,
    ))
}

fn of_change(change: &Change, object: &ObjectRef) -> PlannedChange {
    PlannedChange {
        object: object.clone(),
        wave: 0,
        cause: match change.cause {
            Cause::Create => PlannedCause::Create,
            Cause::Restore => PlannedCause::Restore,
            Cause::Update => PlannedCause::Update,
            Cause::Drift => PlannedCause::Drift,
            Cause::Adopt | Cause::AdoptUnchanged => PlannedCause::Adopt,
        },
        effect: Effect::Untried,
        fields: Vec::new(),
        more_fields: 0,
        hidden: 0,
        message: String::new(),
        made_up: false,
    }
}

/// The deletes in their order, the last waves first.
fn tell_deletes(plan: &Plan) -> Vec<PlannedDelete> {
    let waits = matches!(plan.prune.verdict, Verdict::Hold(_));
    let doomed = plan.doomed.iter().map(|candidate| (candidate, false));
    // Objects that wait for other services are listed elsewhere, with the reason.
    let pruned = plan
        .prune
        .candidates
        .iter()
        .filter(|it| !it.waits)
        .map(|candidate| (candidate, waits));
    let told = doomed.chain(pruned);
    let told = told.map(|(one, held)| PlannedDelete {
        object: one.object.clone(),
        wave: one.wave,
        held,
    });
    let mut told: Vec<PlannedDelete> = told.collect();
    told.sort_by(|a, b| b.wave.cmp(&a.wave).then_with(|| a.object.cmp(&b.object)));
    told
}

fn tell_skipped(plan: &Plan) -> Vec<LeftOut> {
    let told = plan.skipped.iter().map(|skip| LeftOut {
        object: skip.object.clone(),
        sync: match &skip.reason {
            SkipReason::Refused(_) => SyncState::Refused,
            SkipReason::Waiting(_) => SyncState::Waiting,
            SkipReason::Left(_) => SyncState::Synced,
        },
        reason: text(&skip.reason.to_string()),
    });
    told.collect()
}

fn text(message: &str) -> String {
    farwater_fleet::conditions::cut(&shorten(message), MAX_TEXT)
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
