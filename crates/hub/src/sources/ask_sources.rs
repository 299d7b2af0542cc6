//! ask_sources: deliveries of webhooks → sources that are fetched now.
//!
//! A delivery is a hint. It makes the next fetch of a source come sooner, within limits, and changes nothing else: the
//! remote says what it has.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use farwater_fleet::webhooks::hint::Hint;
use farwater_store::{StoreError, delivery::load_revision};
use jiff::Timestamp;

use crate::{
    memory::announced::Telling,
    queue::Next,
    receivers::{DeliveryNote, Live, sources::Source},
    replica::Replica,
    resources::Name,
};

pub async fn ask_sources(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    let Some(receiver) = replica.receivers.live(&name) else {
        return Ok(Next::OnChange);
    };
    let hints = receiver.take_hints();
    match act(&replica, &receiver, &hints).await {
        Ok(()) => Ok(Next::OnChange),
        Err(error) => {
            receiver.put(hints);
            Err(error)
        }
    }
}

async fn act(replica: &Replica, receiver: &Live, hints: &[Hint]) -> Result<(), StoreError> {
    let sources = replica
        .receivers
        .sources(&replica.store, &receiver.name.namespace)
        .await?;
    let mut concerned: BTreeMap<&str, (&Source, Vec<&Hint>)> = BTreeMap::new();
    for hint in hints {
        let Some(found) = sources.concerned(&receiver.spec, hint) else {
            note_foreign(replica, receiver, hint);
            continue;
        };
        for source in found {
            concerned
                .entry(&source.uid)
                .or_insert_with(|| (source, Vec::new()))
                .1
                .push(hint);
        }
    }

    for (uid, (source, hints)) in concerned {
        let served = load_revision(&mut *replica.store.tables().await?, uid).await?;
        let is_known = |hint: &&Hint| {
            served
                .as_ref()
                .is_some_and(|served| hint.is_known(&served.reference, &served.commit))
        };
        let telling = Telling {
            uid,
            source: &source.name,
            receiver: &receiver.uid,
        };
        let announced = &replica.memory.checks.announced;

        if hints.iter().all(is_known) {
            announced.confirm(telling);
            continue;
        }

        let wait = announced.announce(telling);
        replica.wake_after_hint(&source.name, wait);
    }
    Ok(())
}

/// Number of addresses of one repository that are shown.
const TOLD: usize = 3;

/// Shows a receiver's author that the host names another address than its sources have.
fn note_foreign(replica: &Replica, receiver: &Live, hint: &Hint) {
    // Hosts name several addresses: of a page, of a clone and others.
    let addresses: Vec<String> = hint.repositories.iter().take(TOLD).map(ToString::to_string).collect();
    if addresses.is_empty() {
        return;
    }
    let repository = addresses.join(" or ");
    let wait = receiver
        .log
        .note_delivery(DeliveryNote::Foreign { repository }, Timestamp::now(), Instant::now());
    replica.wake_after_receipt(&receiver.name, wait);
}
