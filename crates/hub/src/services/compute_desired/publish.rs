//! The next desired state of a cluster, and its publication.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::SystemTime,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::protocol::{MAX_DESIRED_BYTES, Statement, Verbatim, tag};
use farwater_store::{
    Key, StoreError, Tx,
    delivery::{
        Desired, DirtyMark, InputVersion, clear_mark, load_desired, mark_parameters, save_desired, save_parameters,
        save_published, versions_of,
    },
};
use farwater_telemetry::traces::{self, Interval};
use jiff::Timestamp;

use crate::{
    delivery::desired::{self, Content},
    memory::timeline::{self, Published, new_entries},
    replica::Replica,
    resources::Name,
    secret_backends::SecretBackends,
    services::{ClusterFacts, compute_desired::Next, parameters::Fresh},
};

/// The rows to save for one cluster.
pub(super) struct Done {
    pub(super) mark: DirtyMark,
    pub(super) next: Option<Next>,
    /// Parameters of its services that were resolved in this round.
    pub(super) fresh: Vec<Fresh>,
    pub(super) changes: Vec<MemberChange>,
}

/// New content of a set member's entry.
pub(super) struct MemberChange {
    pub(super) set_uid: String,
    pub(super) service_uid: String,
    /// As the member's row stores it.
    pub(super) published: String,
}

pub(super) fn next_desired(
    replica: &Replica,
    cluster: &ClusterFacts,
    content: Content,
    current: Option<Desired>,
) -> Result<Option<Next>, StoreError> {
    let tag = tag(&content.entries);
    let identity = &replica.identity;
    let same = |row: &&Desired| row.tag == tag && row.key_id == identity.key_id() && !row.signature.is_empty();
    if let Some(row) = current.as_ref().filter(same)
        && let stored = desired::read_content(row)?
        && (&stored.agent, &stored.health, &stored.windows) == (&content.agent, &content.health, &content.windows)
    {
        return Ok(None);
    }
    let statement = Statement {
        installation: identity.installation().to_owned(),
        cluster_uid: cluster.uid.clone(),
        epoch: current
            .as_ref()
            .map_or(replica.epoch, |row| row.epoch.max(replica.epoch)),
        generation: current.as_ref().map_or(1, |row| row.generation + 1),
        tag,
        agent: content.agent.as_ref().map(Verbatim::digest),
        health: content.health.as_ref().map(Verbatim::digest),
        windows: content.windows.as_ref().map(Verbatim::digest),
        key_id: identity.key_id().to_owned(),
    };

    check_size(cluster, &content)?;

    let entries = &content.entries;
    let news = match traces::is_on() {
        true => {
            let previous = current.as_ref().map(desired::read_content).transpose()?;
            new_entries(entries, previous.as_ref().map_or(&[], |content| &content.entries))
        }
        false => Vec::new(),
    };

    let signature = BASE64.encode(identity.sign(&statement.message()));
    let row = Desired {
        cluster_uid: cluster.uid.clone(),
        epoch: statement.epoch,
        generation: statement.generation,
        tag,
        key_id: statement.key_id,
        signature,
        bundles: entries.iter().filter_map(|entry| desired::bundle(entry)).collect(),
        body: desired::encode(&content)?,
    };
    Ok(Some(Next { row, news }))
}

/// Fails if agents would not accept the desired state.
fn check_size(cluster: &ClusterFacts, content: &Content) -> Result<(), StoreError> {
    let bytes = desired::measure(content);
    if bytes <= MAX_DESIRED_BYTES - desired::STATEMENT_BYTES {
        return Ok(());
    }
    Err(StoreError::Row {
        what: format!("desired state of cluster {}", cluster.name),
        problem: format!(
            "{} services and {} rules of health make a desired state of {bytes} bytes; agents accept {MAX_DESIRED_BYTES}",
            content.entries.len(),
            content.health.as_ref().map_or(0, |health| health.rules.len())
        ),
    })
}

/// Saves resolved parameters. An input may have changed after it was read, when no index named its users yet. Its
/// services are then marked to be resolved once more.
pub(super) async fn save_fresh(
    tx: &mut Tx,
    backends: &SecretBackends,
    fresh: Vec<(String, Fresh)>,
) -> Result<(), StoreError> {
    let read: HashSet<&Key> = fresh
        .iter()
        .flat_map(|(_, fresh)| &fresh.inputs)
        .map(|input| &input.key)
        .collect();
    let read: Vec<Key> = read.into_iter().cloned().collect();
    let now = versions_of(tx, &read).await?;
    let now = now
        .into_iter()
        .map(|InputVersion { key, version }| (backends.version(&key).or(version), key));
    let now: HashMap<Key, Option<u64>> = now.map(|(version, key)| (key, version)).collect();
    let (mut again, mut documents) = (Vec::new(), Vec::new());
    let mut resolved = Vec::with_capacity(fresh.len());
    for (cluster_uid, fresh) in fresh {
        if fresh
            .inputs
            .iter()
            .any(|input| now.get(&input.key) != Some(&input.version))
        {
            again.push((cluster_uid, fresh.resolved.row.service_uid.clone()));
        }
        documents.extend(fresh.document());
        resolved.push(fresh.resolved);
    }

    save_parameters(tx, &resolved).await?;
    for document in documents {
        document.save(tx).await?;
    }
    for (cluster_uid, service_uid) in again {
        mark_parameters(tx, &service_uid, &cluster_uid).await?;
    }
    Ok(())
}

/// Saves the changes and clears the marks in one transaction. Then wakes the controllers and the polls.
pub(super) async fn publish(replica: &Replica, published: Vec<Done>, begun: SystemTime) -> Result<(), StoreError> {
    let names = |holds: fn(&Fresh) -> bool| -> Vec<Name> {
        let fresh = published
            .iter()
            .flat_map(|done| &done.fresh)
            .filter(|fresh| holds(fresh));
        fresh.map(|fresh| fresh.service.clone()).collect()
    };
    let (news, of_rollouts) = (names(|fresh| fresh.is_news), names(|fresh| fresh.is_of_rollout));
    let backends = Arc::clone(&replica.secret_backends);
    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            let now = Timestamp::now().as_second();
            let (mut saved, mut resolved) = (Saved::default(), Vec::new());
            for mut done in published {
                let fresh = std::mem::take(&mut done.fresh).into_iter();
                resolved.extend(fresh.map(|fresh| (done.mark.cluster_uid.clone(), fresh)));
                save_done(tx, done, now, &mut saved).await?;
            }
            save_fresh(tx, &backends, resolved).await?;
            Ok(saved)
        })
    });
    let Saved { changed, moved } = saved.await?;

    for set_uid in moved {
        replica.memory.sets.note_member(&set_uid);
    }
    replica.wake_after_publication(of_rollouts, news);
    let interval = Interval::since(begun);
    for next in &changed {
        announce(replica, next, interval);
    }
    Ok(())
}

/// The changes that a publication has saved.
#[derive(Default)]
struct Saved {
    changed: Vec<Next>,
    /// Uids of the sets whose members have other entries.
    moved: HashSet<String>,
}

/// Saves a cluster's desired state and the entries of its members, and clears the mark.
async fn save_done(tx: &mut Tx, done: Done, now: i64, saved: &mut Saved) -> Result<(), StoreError> {
    // If the epoch was raised meanwhile, this state must not be published. The cluster is marked again.
    let is_raised = match &done.next {
        Some(Next { row, .. }) => load_desired(tx, &row.cluster_uid)
            .await?
            .is_some_and(|now| now.epoch > row.epoch),
        None => false,
    };
    if !is_raised {
        if let Some(next) = done.next {
            save_desired(tx, &next.row).await?;
            saved.changed.push(next);
        }
        for change in done.changes {
            save_published(tx, &change.service_uid, &change.published, now).await?;
            saved.moved.insert(change.set_uid);
        }
    }
    clear_mark(tx, &done.mark).await
}

/// Wakes the polls of a cluster, and notes its new entries for traces.
fn announce(replica: &Replica, Next { row, news }: &Next, interval: Interval) {
    replica.memory.counters.published.inc();
    tracing::debug!(
        cluster = row.cluster_uid,
        epoch = row.epoch,
        generation = row.generation,
        "published"
    );
    let etag = desired::etag(row);
    let clusters = &replica.memory.clusters;
    clusters.change(&row.cluster_uid, |state| state.etag = etag);
    if news.is_empty() {
        return;
    }
    let state = clusters.get(&row.cluster_uid);
    let cluster = state
        .map(|state| format!("{}/{}", state.namespace, state.name))
        .unwrap_or_default();
    let published = Published {
        cluster_uid: &row.cluster_uid,
        cluster: &cluster,
        generation: row.generation,
        interval,
    };
    timeline::report_traces(&replica.memory.timeline, published, news);
}
