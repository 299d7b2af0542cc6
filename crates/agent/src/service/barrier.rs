//! The barrier between two waves: new objects of the later one wait until everything before it is healthy.
//!
//! No attempt waits for that: it ends, watches report the objects' health, and a new attempt begins when the barrier
//! opens. So a newer assignment never has to interrupt a wait.

use std::collections::BTreeSet;

use farwater_api::{
    hooks::HookPhase,
    objects::{Health, ObjectRef, Outcome, SyncState},
};
use farwater_fleet::plan::{
    GroupVersionKind, ObjectKey, Plan, Resolved,
    waves::{Holder, State, holder},
};
use tokio::time::Instant;

use super::ServiceTask;

/// Where an attempt stopped.
#[derive(Debug)]
pub(super) struct Barrier {
    behind: Behind,
    holder: Holder,
    /// The objects of earlier waves, with their wave.
    before: Vec<(i32, ObjectRef)>,
    /// The objects that wait.
    pub held: Vec<ObjectRef>,
}

/// The wave, phase or hook that has not begun, or not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Wave(i32),
    /// A phase that runs once everything is healthy.
    Closing(HookPhase),
    /// Changes after a hook. Only a look at the hook shows whether they may begin.
    Hook,
}

impl Barrier {
    pub fn of_hook(object: &ObjectRef, is_stuck: bool, message: String) -> Self {
        let holder = Holder {
            object: object.clone(),
            wave: 0,
            is_stuck,
            message,
        };
        Self {
            behind: Behind::Hook,
            holder,
            before: Vec::new(),
            held: Vec::new(),
        }
    }

    /// The same barrier, before a phase.
    pub fn before_phase(self, phase: HookPhase) -> Self {
        Self {
            behind: Behind::Closing(phase),
            ..self
        }
    }

    pub fn is_of_hook(&self) -> bool {
        self.behind == Behind::Hook
    }

    pub fn is_stuck(&self) -> bool {
        self.holder.is_stuck
    }

    pub fn explain(&self) -> String {
        let Self {
            behind, holder, held, ..
        } = self;
        let objects = if held.len() == 1 {
            "1 object waits".to_owned()
        } else {
            format!("{} objects wait", held.len())
        };
        match behind {
            Behind::Wave(wave) => format!("wave {wave} has not begun, {objects}: {}", holder.message),
            Behind::Closing(phase) => format!("{phase} hooks have not begun: {}", holder.message),
            Behind::Hook if held.is_empty() => holder.message.clone(),
            Behind::Hook => format!("{objects}: {}", holder.message),
        }
    }

    /// The message for an object that waits.
    fn explain_to_held(&self) -> String {
        match self.behind {
            Behind::Hook => format!("waits for a hook: {}", self.holder.message),
            Behind::Wave(_) | Behind::Closing(_) => self.holder.explain(),
        }
    }

    /// Outcome of an attempt that stopped here.
    pub fn outcome(&self) -> Outcome {
        if self.holder.is_stuck {
            Outcome::Failed
        } else {
            Outcome::Applying
        }
    }
}

impl ServiceTask {
    /// The barrier that keeps `wave` from beginning. None: it may begin.
    pub(super) async fn stop_before(&mut self, wave: i32, resolved: &Resolved, plan: &Plan) -> Option<Barrier> {
        let stated = resolved.objects.iter().filter(|object| object.wave < wave);
        let mut before: Vec<(i32, ObjectRef)> = stated.map(|object| (object.wave, object.object.clone())).collect();
        // An object that others fight over was applied.
        let fought: BTreeSet<&ObjectRef> = plan
            .skipped
            .iter()
            .filter(|skip| !skip.reason.is_unapplied())
            .map(|skip| &skip.object)
            .collect();
        before.retain(|(_, object)| !fought.contains(object));
        // Objects that were skipped before planning are not among the objects.
        let skipped = resolved.skipped.iter().filter(|skip| skip.wave < wave);
        before.extend(skipped.map(|skip| (skip.wave, skip.object.clone())));
        if before.is_empty() {
            return None;
        }
        self.read_first_health().await;
        let holder = self.find_holder(&before)?;
        Some(Barrier {
            behind: Behind::Wave(wave),
            holder,
            before,
            held: Vec::new(),
        })
    }

    fn find_holder(&self, before: &[(i32, ObjectRef)]) -> Option<Holder> {
        holder(before.iter().map(|(wave, object)| (*wave, object)), |key| {
            let status = self.observed.statuses.get(key)?;
            Some(State {
                sync: status.sync,
                health: status.health,
                message: self.explain_health(key, status),
            })
        })
    }

    /// Records on each waiting object what it waits for.
    pub(super) fn record_barrier(&mut self) {
        let Some(barrier) = &self.progress.barrier else { return };
        let (held, holder, message) = (barrier.held.clone(), barrier.holder.clone(), barrier.explain_to_held());
        for object in &held {
            self.set_waiting(object, &holder.object, message.clone());
        }
    }

    /// Called when objects' health has changed: whether the waiting waves may begin. They may now wait for another
    /// object.
    pub(super) fn pass_barrier(&mut self) -> bool {
        let Some(barrier) = self.progress.barrier.take_if(|barrier| barrier.behind != Behind::Hook) else {
            return false;
        };
        let Some(holder) = self.find_holder(&barrier.before) else {
            return true;
        };
        let changed = holder != barrier.holder;
        let has_failed = holder.is_stuck && !barrier.holder.is_stuck;
        let barrier = self.progress.barrier.insert(Barrier { holder, ..barrier });
        if changed && let Some((digest, outcome, _)) = self.progress.last.clone() {
            let (now, message) = (barrier.outcome(), barrier.explain());
            self.record_barrier();
            // The following attempt reports what else went wrong.
            if matches!(outcome, Outcome::Applying) || now == Outcome::Failed {
                self.progress.last = Some((digest, now, message));
            }
        }
        self.ask_unwatched();
        // There may be hooks for failures.
        has_failed && self.has_hooks()
    }

    /// Reads what is waited for again where no watch covers it, at growing intervals.
    fn ask_unwatched(&mut self) {
        let (Some(barrier), Some(account)) = (&self.progress.barrier, self.account()) else {
            return;
        };
        let is_open = |object: &ObjectRef| {
            let status = self.observed.statuses.get(&ObjectKey::from(object));
            status.is_some_and(|status| status.sync == SyncState::Synced && status.health != Health::Current)
        };
        let is_watched = |object: &ObjectRef| {
            let resource = self.agent.kinds.get(&GroupVersionKind::from(object));
            resource.is_some_and(|r| self.agent.watches.covers(&account, &r, &object.namespace))
        };
        let unwatched: Vec<ObjectKey> = barrier
            .before
            .iter()
            .filter(|(_, object)| is_open(object) && !is_watched(object))
            .map(|(_, object)| ObjectKey::from(object))
            .collect();
        let now = Instant::now();
        for key in unwatched {
            self.health.ask(&key, now);
        }
    }
}
