//! Objects that move to another service of the tenant, and what a service must know of the others before it deletes
//! anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use farwater_api::Digest;
use farwater_fleet::{
    ownership::service_label,
    plan::{Keep, ObjectKey, Plan, Refusal, Resolved, SkipReason, Wait},
    transfer::{Holdings, Transfers, may_transfer},
    words::counted,
};
use tokio::sync::Notify;

use super::ServiceTask;
use crate::sync::lock;

/// How long a deletion waits for the other services to report what they state. A service that can't report it by then
/// has not taken over anything yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// Objects that services offer to others, and services that have not reported yet what they state.
#[derive(Default)]
pub struct Leaving {
    /// Owner's uid → object → name of the service that may take it over.
    offers: Mutex<BTreeMap<String, BTreeMap<ObjectKey, String>>>,
    /// uid → name, and the objects that it states or has applied.
    holdings: Mutex<BTreeMap<String, (String, Arc<Holdings>)>>,
    /// uids of services that keep a namespace or a definition because of other services' objects in it.
    keepers: Mutex<BTreeSet<String>>,
    /// uid → name, and the digest of the entry that it has not planned yet.
    unplanned: Mutex<BTreeMap<String, (String, Digest)>>,
    planned: Notify,
}

impl Leaving {
    /// Records that a service got an entry.
    pub fn expect(&self, uid: &str, name: &str, entry: Digest) {
        lock(&self.unplanned).insert(uid.to_owned(), (name.to_owned(), entry));
    }

    /// Records that a service has reported what an entry states, or can't.
    pub fn note_planned(&self, uid: &str, entry: Digest) {
        let mut unplanned = lock(&self.unplanned);
        if unplanned.get(uid).is_some_and(|(_, expected)| *expected == entry) {
            unplanned.remove(uid);
            self.planned.notify_waiters();
        }
    }

    /// Removes a service that is gone.
    pub fn forget(&self, uid: &str) {
        lock(&self.unplanned).remove(uid);
        lock(&self.offers).remove(uid);
        lock(&self.keepers).remove(uid);
        self.planned.notify_waiters();
    }

    /// Replaces the objects that a service states or has applied. Returns the services that may now delete what they
    /// kept because of it.
    pub fn hold(&self, uid: &str, name: &str, holdings: Holdings) -> BTreeSet<String> {
        let mut all = lock(&self.holdings);
        let before = all.insert(uid.to_owned(), (name.to_owned(), Arc::new(holdings)));
        let is_news = before.is_none_or(|(_, before)| all.get(uid).is_none_or(|(_, now)| *now != before));
        if is_news {
            lock(&self.keepers).clone()
        } else {
            BTreeSet::new()
        }
    }

    /// Records that a service is being removed with its objects. Returns the same.
    pub fn mark_leaving(&self, uid: &str) -> BTreeSet<String> {
        let known = lock(&self.holdings).get(uid).cloned();
        let Some((name, holdings)) = known.filter(|(_, holdings)| !holdings.is_leaving) else {
            return BTreeSet::new();
        };
        self.hold(uid, &name, Holdings::clone(&holdings).leaving(true))
    }

    /// Removes a service that is gone. Returns the same.
    pub fn release(&self, uid: &str) -> BTreeSet<String> {
        let held = lock(&self.holdings).remove(uid);
        held.map_or_else(BTreeSet::new, |_| lock(&self.keepers).clone())
    }

    /// Why a namespace or a definition is kept: a service that states objects in it. None: there is none.
    pub fn holds(&self, uid: &str, holder: &ObjectKey) -> Option<Keep> {
        let others = self.others(uid);
        let holding = others
            .iter()
            .find(|(_, held)| !held.is_leaving && held.within(holder) > 0);
        holding.map(|(name, held)| {
            Keep::HoldsStated(format!("{} of service {name}", counted(held.within(holder), "object")))
        })
    }

    pub(super) fn others(&self, uid: &str) -> Vec<(String, Arc<Holdings>)> {
        let all = lock(&self.holdings);
        all.iter()
            .filter(|(other, _)| *other != uid)
            .map(|(_, (name, held))| (name.clone(), Arc::clone(held)))
            .collect()
    }

    fn keep(&self, uid: &str, keeps: bool) {
        let mut keepers = lock(&self.keepers);
        if keeps {
            keepers.insert(uid.to_owned())
        } else {
            keepers.remove(uid)
        };
    }

    /// Waits until every other service of the tenant has reported what it states.
    async fn until_planned(&self, uid: &str, name: &str) {
        loop {
            let planned = self.planned.notified();
            let mut planned = std::pin::pin!(planned);
            planned.as_mut().enable();
            let waits = lock(&self.unplanned)
                .iter()
                .any(|(other, (of, _))| other != uid && may_transfer(name, of));
            if !waits {
                return;
            }
            planned.await;
        }
    }

    /// Replaces the offers of a service. Returns the services with a new offer.
    fn offer(&self, uid: &str, offers: BTreeMap<ObjectKey, String>) -> BTreeSet<String> {
        let mut all = lock(&self.offers);
        let before = all.remove(uid).unwrap_or_default();
        let news = offers
            .iter()
            .filter(|(key, to)| before.get(key) != Some(to))
            .map(|(_, to)| to.clone())
            .collect();
        if !offers.is_empty() {
            all.insert(uid.to_owned(), offers);
        }
        news
    }

    pub fn offers_something(&self, uid: &str) -> bool {
        lock(&self.offers).contains_key(uid)
    }

    pub(super) fn offered_to(&self, name: &str) -> BTreeMap<ObjectKey, String> {
        let all = lock(&self.offers);
        let offers = all
            .iter()
            .flat_map(|(owner, objects)| objects.iter().map(move |(key, to)| (owner, key, to)));
        offers
            .filter(|(_, _, to)| *to == name)
            .map(|(owner, key, _)| (key.clone(), owner.clone()))
            .collect()
    }
}

impl ServiceTask {
    pub(super) fn transfers(&self) -> Transfers {
        self.basis().transfers()
    }

    /// Reports which objects of others this service states, before any of them decides on a deletion.
    pub(super) fn declare(&self, entry: Digest, resolved: &Resolved, plan: &Plan) {
        self.set_claims(claims(plan, &self.transfers().offered));
        self.announce(resolved.stated_keys(), false);
        self.note_kept(plan);
        let is_open = |reason: &SkipReason| matches!(reason, SkipReason::Waiting(Wait::Lookup(_)));
        // The owner of an object that can't be looked up is found later.
        if !plan.skipped.iter().any(|skip| is_open(&skip.reason)) {
            self.agent.leaving.note_planned(self.uid(), entry);
        }
    }

    /// Reports the stated objects, and the applied ones that may still exist.
    pub(super) fn announce<'a>(&'a self, stated: impl Iterator<Item = &'a ObjectKey>, is_leaving: bool) {
        let keys: BTreeSet<&ObjectKey> = stated.chain(self.stored.inventory.entries.keys()).collect();
        let holdings = Holdings::of(keys.into_iter()).leaving(is_leaving);
        self.agent
            .retry(&self.agent.leaving.hold(self.uid(), &self.name(), holdings));
    }

    /// Records whether something is kept because other services state objects in it.
    pub(super) fn note_kept(&self, plan: &Plan) {
        let is_kept = |(_, keep): &(ObjectKey, Keep)| matches!(keep, Keep::HoldsStated(_) | Keep::HoldsLeaving(_));
        self.agent.leaving.keep(self.uid(), plan.kept.iter().any(is_kept));
    }

    /// Called before a deletion: waits until the other services have reported what they state.
    pub(super) async fn hear_others(&self) {
        let name = self.name();
        let heard = self.agent.leaving.until_planned(self.uid(), &name);
        tokio::select! {
            biased;
            () = self.until_superseded() => {}
            heard = tokio::time::timeout(PATIENCE, heard) => if heard.is_err() {
                tracing::warn!(service = %name, "other services have not reported their objects: deleting without them");
            }
        }
    }

    /// Offers objects to the services that claim them.
    pub(super) fn offer(&mut self, plan: &Plan) {
        let offers = plan.kept.iter().filter_map(|(key, keep)| match keep {
            Keep::Claimed(service) => Some((key.clone(), service.clone())),
            _ => None,
        });
        let offers: BTreeMap<ObjectKey, String> = offers.collect();
        // With the label of its new owner, its events no longer come to us.
        self.observed.live.retain(|key, _| !offers.contains_key(key));
        let news = self.agent.leaving.offer(self.uid(), offers);
        let uids = self
            .agent
            .service_names()
            .into_iter()
            .filter(|(_, name)| news.contains(name));
        for (uid, name) in uids {
            tracing::info!(service = %self.name(), to = name, "objects are left to another service");
            if let Some(mailbox) = self.agent.watches.mailbox(&service_label(&uid)) {
                mailbox.retry();
            }
        }
    }
}

/// Objects of others that a plan states, by owner's uid: the refused ones, and the offered ones that are not taken over
/// yet.
pub(super) fn claims(plan: &Plan, offered: &BTreeMap<ObjectKey, String>) -> BTreeMap<String, BTreeSet<ObjectKey>> {
    let mut claims: BTreeMap<String, BTreeSet<ObjectKey>> = BTreeMap::new();
    for change in plan.waves.iter().flat_map(|wave| &wave.changes) {
        if let Some(owner) = offered.get(&change.object) {
            claims.entry(owner.clone()).or_default().insert(change.object.clone());
        }
    }
    for skip in &plan.skipped {
        if let SkipReason::Refused(Refusal::OwnedBy { uid, .. }) = &skip.reason {
            claims
                .entry(uid.clone())
                .or_default()
                .insert(ObjectKey::from(&skip.object));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("", "ConfigMap", "web", name)
    }

    #[test]
    fn an_offer_is_news_to_its_taker_once() {
        let leaving = Leaving::default();
        let offers = BTreeMap::from([(key("a"), "team/new".to_owned())]);
        assert_eq!(
            leaving.offer("old", offers.clone()),
            BTreeSet::from(["team/new".to_owned()])
        );
        assert!(leaving.offer("old", offers).is_empty() && leaving.offers_something("old"));
        assert_eq!(
            leaving.offered_to("team/new"),
            BTreeMap::from([(key("a"), "old".to_owned())])
        );
        assert!(leaving.offered_to("team/other").is_empty());
        leaving.offer("old", BTreeMap::new());
        assert!(!leaving.offers_something("old") && leaving.offered_to("team/new").is_empty());
    }

    #[tokio::test]
    async fn a_deletion_waits_for_services_of_its_tenant_only() {
        let leaving = Leaving::default();
        let entry = Digest::of("entry");
        leaving.expect("self", "team/self", entry);
        leaving.expect("stranger", "other/web", entry);
        leaving.until_planned("self", "team/self").await;
        leaving.expect("beside", "team/beside", entry);
        let wait = leaving.until_planned("self", "team/self");
        tokio::pin!(wait);
        assert!(futures::poll!(&mut wait).is_pending());
        leaving.note_planned("beside", Digest::of("an older one"));
        assert!(futures::poll!(&mut wait).is_pending());
        leaving.note_planned("beside", entry);
        wait.await;
    }
}
