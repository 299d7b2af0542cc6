//! Collects objects that have lost their owners, and finishes deletions that wait for dependents.
//!
//! It works on marks that the store makes with each write (`farwater_store::garbage`), so that nothing is scanned and a
//! crash in between loses nothing. An unreadable object deletes nothing: each decision is made twice, the second time
//! in the transaction that carries it out, and an error leaves the mark for another pass.

mod decide;
mod events;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use farwater_store::{
    Change, Key, Operation, Resource, Store, StoreError, Tx, WatchEvent, Write,
    garbage::{Dependent, GarbageMark, blocks_owner, clear_garbage, load_dependents, load_garbage},
};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;

use self::decide::{Dependents, Lead, Owner, Verdict, carry_out, classify, decide, lead, references, released};
use super::delete;
use crate::kinds::removal;
use crate::{
    Hub,
    kinds::{
        REGISTRY, ResourceKind,
        managers::manage,
        meta,
        removal::{FOREGROUND, ORPHAN, Removal, is_marked},
    },
};

const PAGE: usize = 256;
/// Objects that are decided at the same time: their writes share commits.
const AT_ONCE: usize = 32;
/// First and longest wait after a pass in which something failed.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Runs until it is dropped.
pub async fn collect_garbage(hub: Arc<Hub>) {
    let mut collector = Collector {
        store: hub.store.clone(),
        waiting: HashMap::new(),
    };
    let mut pause = RETRY.0;
    loop {
        let from = hub.store.position();
        match collector.pass().await {
            Ok(()) => pause = RETRY.0,
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "garbage can't be collected; trying again"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
                continue;
            }
        }
        if !wait_for_news(&hub.store, from).await {
            return;
        }
    }
}

/// Returns once a write may have left a mark. False: the store is closed.
async fn wait_for_news(store: &Store, from: u64) -> bool {
    // An error means that changes were missed, so look again.
    let Ok(mut changes) = store.watch(None, from) else {
        return true;
    };
    loop {
        match changes.next().await {
            Some(Ok(event)) if !may_mark(&event) => {}
            Some(_) => return true,
            None => return false,
        }
    }
}

fn may_mark(event: &WatchEvent) -> bool {
    event.operation == Operation::Deleted || is_marked(&event.object) || !references(&event.object).is_empty()
}

fn kind_of(key: &Key) -> Option<&'static ResourceKind> {
    REGISTRY
        .kinds
        .iter()
        .find(|kind| kind.is_kept() && kind.store == key.kind)
}

/// The state of a mark after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// It waits for dependents; the mark is set again when one of them is gone.
    Waits,
}

struct Collector {
    store: Store,
    /// Marks of owners that wait, as they were read last.
    waiting: HashMap<String, i64>,
}

impl Collector {
    /// Handles all marks; the error is the last one that occurred.
    async fn pass(&mut self) -> Result<(), StoreError> {
        let (mut after, mut failure, mut waiting) = (String::new(), None, HashMap::new());
        loop {
            let page = load_garbage(&mut *self.store.tables().await?, &after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after.clone_from(&last.uid);
            let looked_at: Vec<_> = stream::iter(page)
                .map(|mark| async { (self.look_at(&mark).await, mark) })
                .buffer_unordered(AT_ONCE)
                .collect()
                .await;
            let mut done = Vec::new();
            for (outcome, mark) in looked_at {
                match outcome {
                    Ok(Outcome::Done) => done.push(mark),
                    Ok(Outcome::Waits) => drop(waiting.insert(mark.uid, mark.marks)),
                    Err(error) => failure = Some(error),
                }
            }
            if !done.is_empty() {
                self.store.transact(move |tx| Box::pin(clear(tx, done))).await?;
            }
        }
        self.waiting = waiting;
        failure.map_or(Ok(()), Err)
    }

    async fn look_at(&self, mark: &GarbageMark) -> Result<Outcome, StoreError> {
        if self.waiting.get(&mark.uid) == Some(&mark.marks) {
            return Ok(Outcome::Waits);
        }
        let found = self
            .store
            .get(&mark.key)
            .await?
            .filter(|resource| resource.uid == mark.uid);
        let Some(resource) = found else {
            // It is gone for good: uids are never reused.
            self.for_dependents(mark, |key| self.judge(key)).await?;
            return Ok(Outcome::Done);
        };
        if !is_marked(&resource.object) {
            self.judge(mark.key.clone()).await?;
            self.report_misplaced(&resource).await?;
            return Ok(Outcome::Done);
        }
        let finalizers = meta::finalizers(&resource.object);
        if finalizers.contains(&ORPHAN) {
            self.for_dependents(mark, |key| self.orphan(key, &mark.uid)).await?;
            return self.finish(mark, ORPHAN).await;
        }
        if finalizers.contains(&FOREGROUND) {
            self.for_dependents(mark, |key| self.judge(key)).await?;
            return self.finish(mark, FOREGROUND).await;
        }
        Ok(Outcome::Done)
    }

    /// Tries all dependents even if one of them fails; the error is the last one.
    async fn for_dependents<F>(&self, owner: &GarbageMark, act: impl Fn(Key) -> F + Send) -> Result<(), StoreError>
    where
        F: Future<Output = Result<(), StoreError>> + Send,
    {
        let (mut after, mut failure) = (None, None);
        loop {
            let page = self.dependents_page(&owner.uid, &owner.key, after.as_ref()).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            let acts: Vec<_> = page.into_iter().map(|dependent| act(dependent.key)).collect();
            let results: Vec<_> = stream::iter(acts).buffer_unordered(AT_ONCE).collect().await;
            failure = results.into_iter().filter_map(Result::err).last().or(failure);
        }
        failure.map_or(Ok(()), Err)
    }

    async fn dependents_page(&self, uid: &str, owner: &Key, after: Option<&Key>) -> Result<Vec<Dependent>, StoreError> {
        load_dependents(&mut *self.store.tables().await?, uid, &owner.namespace, after, PAGE).await
    }

    /// Does with an object what its owners require.
    async fn judge(&self, key: Key) -> Result<(), StoreError> {
        let Some(resource) = self.store.get(&key).await? else {
            return Ok(());
        };
        let Some(leads) = leads(&resource) else { return Ok(()) };
        let mut owners = Vec::with_capacity(leads.len());
        for (reference, lead) in references(&resource.object).iter().zip(&leads) {
            let found = self.store.get(lead).await?;
            owners.push(classify(reference, found.as_ref().map(|owner| &*owner.object)));
        }
        let mut dependents = Dependents::default();
        if owners.contains(&Owner::WaitsForDependents) {
            dependents = self.dependents_of(&resource).await?;
        }
        if decide(&resource.object, &owners, dependents) == Verdict::Keep {
            return Ok(());
        }
        self.store
            .transact(move |tx| Box::pin(judge_again(tx, key, dependents)))
            .await
    }

    async fn dependents_of(&self, owner: &Resource) -> Result<Dependents, StoreError> {
        let (mut after, mut found) = (None, Dependents::default());
        loop {
            let page = self.dependents_page(&owner.uid, &owner.key, after.as_ref()).await?;
            let Some(last) = page.last() else { return Ok(found) };
            after = Some(last.key.clone());
            found.any = true;
            for dependent in page {
                let dependent = self.store.get(&dependent.key).await?;
                let waits = |resource: &Resource| {
                    is_marked(&resource.object) && meta::finalizers(&resource.object).contains(&FOREGROUND)
                };
                if dependent.as_ref().is_some_and(waits) {
                    return Ok(Dependents {
                        any: true,
                        may_be_a_cycle: true,
                    });
                }
            }
        }
    }

    /// Removes the reference to this owner from a dependent.
    async fn orphan(&self, key: Key, owner: &str) -> Result<(), StoreError> {
        let owners = [owner.to_owned()].into();
        self.store.transact(move |tx| Box::pin(release(tx, key, owners))).await
    }

    /// Removes the collector's finalizer from an owner, unless dependents hold it.
    async fn finish(&self, mark: &GarbageMark, finalizer: &'static str) -> Result<Outcome, StoreError> {
        let (key, uid) = (mark.key.clone(), mark.uid.clone());
        self.store
            .transact(move |tx| Box::pin(finish(tx, key, uid, finalizer)))
            .await
    }

    /// A cluster-scoped object whose owner would be in a namespace is left alone and reported.
    async fn report_misplaced(&self, resource: &Resource) -> Result<(), StoreError> {
        for reference in references(&resource.object) {
            if lead(&REGISTRY, reference, &resource.key) == Lead::NoNamespace {
                events::report_misplaced_owner(&self.store, resource, reference, Timestamp::now()).await?;
            }
        }
        Ok(())
    }
}

/// The keys of all owners of an object. None: one of its references can't be looked up.
fn leads(resource: &Resource) -> Option<Vec<Key>> {
    let leads = references(&resource.object)
        .iter()
        .map(|reference| match lead(&REGISTRY, reference, &resource.key) {
            Lead::To(key) => Some(key),
            Lead::UnknownKind | Lead::NoNamespace => None,
        });
    leads.collect()
}

async fn clear(tx: &mut Tx, done: Vec<GarbageMark>) -> Result<(), StoreError> {
    for mark in &done {
        clear_garbage(tx, mark).await?;
    }
    Ok(())
}

async fn release(tx: &mut Tx, key: Key, owners: BTreeSet<String>) -> Result<(), StoreError> {
    let Some(resource) = tx.get(&key).await? else {
        return Ok(());
    };
    let object = released(&resource.object, &owners);
    let object = manage(&key.kind, "", Some(&resource.object), object, Timestamp::now());
    let change = Change::Replace {
        uid: resource.uid,
        version: resource.version,
        object,
    };
    tx.write(Write { key, change }).await?;
    Ok(())
}

async fn finish(tx: &mut Tx, key: Key, uid: String, finalizer: &'static str) -> Result<Outcome, StoreError> {
    let found = tx.get(&key).await?.filter(|resource| resource.uid == uid);
    let (Some(resource), Some(kind)) = (found, kind_of(&key)) else {
        return Ok(Outcome::Done);
    };
    if finalizer == FOREGROUND && blocks_owner(tx, &uid, &key.namespace).await? {
        return Ok(Outcome::Waits);
    }
    let mut object = (*resource.object).clone();
    meta::retain(&mut object["metadata"], "finalizers", |name| name != finalizer);
    let object = manage(&key.kind, "", Some(&resource.object), object, Timestamp::now());
    let change = removal::settled(&resource, object, kind);
    tx.write(Write { key, change }).await?;
    Ok(Outcome::Done)
}

/// Makes the decision again with what the transaction reads, and carries it out.
async fn judge_again(tx: &mut Tx, key: Key, mut dependents: Dependents) -> Result<(), StoreError> {
    let (Some(resource), Some(kind)) = (tx.get(&key).await?, kind_of(&key)) else {
        return Ok(());
    };
    let Some(leads) = leads(&resource) else { return Ok(()) };
    let mut owners = Vec::with_capacity(leads.len());
    for (reference, lead) in references(&resource.object).iter().zip(&leads) {
        let found = tx.get(lead).await?;
        owners.push(classify(reference, found.as_ref().map(|owner| &*owner.object)));
    }
    dependents.any = !load_dependents(tx, &resource.uid, &key.namespace, None, 1)
        .await?
        .is_empty();
    let verdict = decide(&resource.object, &owners, dependents);
    if !delete::is_deletable(kind, &key.name) && !matches!(verdict, Verdict::Release(_)) {
        return Ok(());
    }
    let removal = carry_out(&verdict, &resource.object, kind, Timestamp::now());
    if verdict != Verdict::Keep && removal != Removal::Wait {
        tracing::info!(
            kind = kind.kind,
            key.namespace,
            key.name,
            ?verdict,
            "an object lost its owners"
        );
    }
    let Some(change) = removal::change_of(removal, &resource) else {
        return Ok(());
    };
    tx.write(Write { key, change }).await?;
    Ok(())
}

#[cfg(test)]
mod tests;
