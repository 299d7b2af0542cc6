//! compute_desired: dirty clusters → signed desired states.
//!
//! A state is computed when something changes, never per request. It is published under a new generation only if its
//! tag differs, so that recomputing it has no effect.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ServiceDeployment,
    change_window::Windows,
    health_rule::HealthRules,
    protocol::{Action, Entry, MAX_DESIRED_BYTES, Statement, Verbatim, tag},
};
use farwater_fleet::{
    assignment::{Candidate, Why},
    placement::NamedGrant,
};
use farwater_store::{
    Key, Resource, StoreError, Tx,
    delivery::{
        Assignment, ClusterRows, Desired, DirtyMark, HeldService, InputVersion, MemberRollout, ServiceOrigin,
        ServiceRows, clear_mark, load_cluster_rows, load_desired, load_dirty, load_held, load_revision,
        load_service_rows, mark_parameters, rollout_of_service, save_desired, save_parameters, save_published,
        versions_of,
    },
};
use farwater_telemetry::traces::{self, Interval};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    ClusterFacts, ServiceFacts, SourceUrls, dependencies, held_specs, load_grants,
    parameters::{Fresh, InputCache, give},
    read_json, released_entry, secrets, select_health_rules,
};
use crate::{
    clusters::advance_agents,
    delivery::desired::{self, Content},
    errors::chain,
    guards::{follow_windows::Handing, freeze_prunes},
    memory::timeline::{self, NewEntry, Published, new_entries},
    replica::Replica,
    resources::{self, Name, Stored as _},
    secret_backends::SecretBackends,
    sets::rollouts,
    sources::git,
};

/// Clusters per round, to bound the transaction that publishes them.
const BATCH: u32 = 200;
/// How long a cluster rests after it was computed. Its first change is computed at once. All changes that arrive during
/// the rest are computed together, because each computation reads all services of the cluster.
const GATHER: Duration = Duration::from_millis(100);
/// A cluster rests this many times as long as its computation took, if that is longer than [`GATHER`], up to
/// [`LONGEST`]. While services arrive by the hundred, reading all of a cluster's services for each few of them would
/// otherwise be most of the work.
const REST: u32 = 4;
const LONGEST: Duration = Duration::from_secs(1);
/// Least pause between two rounds. The pause is as long as the last round took, up to [`GATHER`], so that clusters that
/// change one after the other are published in batches. After a round that left clusters for later, the pause begins
/// with this and doubles with each such round.
const PAUSE: Duration = Duration::from_millis(5);
/// Services that are read and held in memory at a time.
const READ_AT_ONCE: usize = 500;
/// How long after a fetch, in seconds, the services of a source are published together: large bundles take time to
/// build.
const HALFWAY_SECONDS: i64 = 5;
/// Backstop for a lost wake-up: marks are checked this often.
const IDLE: Duration = Duration::from_secs(5);

pub async fn run(replica: Arc<Replica>, shutdown: CancellationToken) {
    let (mut resting, mut almost) = (Resting::default(), PAUSE);
    loop {
        let begun = Instant::now();
        resting.wake(begun);
        // Before clusters are loaded, an unknown cluster may well exist, so its mark must stay.
        let computed = if replica.memory.clusters.is_loaded() {
            compute_batch(&replica, &mut resting).await
        } else {
            Ok(Round::default())
        };

        // How long to wait, and whether a new mark ends the wait.
        let (longest, is_woken) = match computed {
            Ok(Round { done: 0, held, .. }) => {
                let end = resting.first_end().filter(|_| held);
                (
                    end.map_or(IDLE, |end| end.saturating_duration_since(Instant::now())),
                    true,
                )
            }
            Ok(round) => (round.pause(begun.elapsed(), &mut almost), false),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "compute desired states");
                (IDLE, false)
            }
        };

        let wait = async {
            tokio::select! { () = replica.signals.dirty.notified(), if is_woken => {} () = tokio::time::sleep(longest) => {} }
        };
        if shutdown.run_until_cancelled(wait).await.is_none() {
            return;
        }
    }
}

/// Clusters that were computed a moment ago, and until when their further changes are gathered.
#[derive(Default)]
struct Resting(HashMap<String, Instant>);

impl Resting {
    /// `took`: how long the computation took.
    fn begin(&mut self, cluster_uid: String, took: Duration) {
        self.0
            .insert(cluster_uid, Instant::now() + (took * REST).clamp(GATHER, LONGEST));
    }

    fn wake(&mut self, now: Instant) {
        self.0.retain(|_, end| *end > now);
    }

    fn first_end(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }
}

/// Result of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    done: usize,
    /// Clusters of `done` that are left for a later round: a source of theirs has moved, and not all of its services
    /// are assigned.
    later: usize,
    /// Other clusters are marked, but rest.
    held: bool,
}

impl Round {
    /// Pause before the next round. `took`: how long this round took; `almost`: the pause if this round left clusters
    /// for later.
    fn pause(self, took: Duration, almost: &mut Duration) -> Duration {
        if self.later > 0 {
            let next = (*almost * 2).min(GATHER);
            return std::mem::replace(almost, next);
        }
        *almost = PAUSE;
        took.clamp(PAUSE, GATHER)
    }
}

/// Recomputes some dirty clusters.
async fn compute_batch(replica: &Replica, resting: &mut Resting) -> Result<Round, StoreError> {
    let limit = BATCH.saturating_add(u32::try_from(resting.0.len()).unwrap_or(u32::MAX));
    let mut marks = load_dirty(&mut *replica.store.tables().await?, limit).await?;
    let all = marks.len();
    marks.retain(|mark| !resting.0.contains_key(&mark.cluster_uid));
    let mut round = Round {
        held: marks.len() < all,
        ..Round::default()
    };
    marks.truncate(BATCH as usize);
    if marks.is_empty() {
        return Ok(round);
    }

    let begun = SystemTime::now();
    let grants = load_grants(&replica.store).await?;
    let health = select_health_rules::load(&replica.store).await?.map(Verbatim::from);
    let (mut published, mut times) = (Vec::new(), Vec::new());
    let mut inputs = InputCache::default();

    for mark in marks {
        let started = Instant::now();
        match compute_cluster(replica, &mark, &grants, health.as_ref(), &mut inputs).await {
            Ok(Computed::Now { next, fresh, changes }) => {
                round.done += 1;
                times.push((mark.cluster_uid.clone(), started.elapsed()));
                published.push(Done {
                    mark,
                    next: next.map(|next| *next),
                    fresh,
                    changes,
                });
            }
            // The cluster keeps its mark for the next round.
            Ok(Computed::Later) => {
                round.done += 1;
                round.later += 1;
            }
            // A cluster that can't be computed keeps its mark and its current state, and does not hold up the others.
            Err(error) => {
                tracing::error!(cluster = mark.cluster_uid, error = %chain(&error), "compute a desired state")
            }
        }
    }

    let publishing = Instant::now();
    publish(replica, published, begun).await?;

    let each = publishing.elapsed() / u32::try_from(times.len()).unwrap_or(u32::MAX).max(1);
    for (cluster_uid, took) in times {
        resting.begin(cluster_uid, took + each);
    }
    Ok(round)
}

/// A cluster's next state.
struct Next {
    row: Desired,
    /// Its new entries, for traces; empty if traces are off.
    news: Vec<NewEntry>,
}

enum Computed {
    Now {
        /// The cluster's next state, if it differs from the current one.
        next: Option<Box<Next>>,
        fresh: Vec<Fresh>,
        changes: Vec<MemberChange>,
    },
    /// A source has moved, and not all of its services are assigned from it.
    Later,
}

impl Computed {
    const NOTHING: Self = Self::Now {
        next: None,
        fresh: Vec::new(),
        changes: Vec::new(),
    };
}

/// The rows to save for one cluster.
struct Done {
    mark: DirtyMark,
    next: Option<Next>,
    /// Parameters of its services that were resolved in this round.
    fresh: Vec<Fresh>,
    changes: Vec<MemberChange>,
}

/// New content of a set member's entry.
struct MemberChange {
    set_uid: String,
    service_uid: String,
    /// As the member's row stores it.
    published: String,
}

async fn compute_cluster(
    replica: &Replica,
    mark: &DirtyMark,
    grants: &[NamedGrant],
    health: Option<&Verbatim<HealthRules>>,
    inputs: &mut InputCache,
) -> Result<Computed, StoreError> {
    let Some(state) = replica.memory.clusters.get(&mark.cluster_uid) else {
        return Ok(Computed::NOTHING);
    };
    let name = Name::new(&state.namespace, &state.name);
    let Some(cluster) = ClusterFacts::load(replica, &name)
        .await?
        .filter(|c| c.uid == mark.cluster_uid)
    else {
        return Ok(Computed::NOTHING);
    };

    let known = load_cluster_rows(&mut *replica.store.tables().await?, &cluster.uid).await?;
    if is_halfway(replica, &known.assignments, &known.touched).await? {
        return Ok(Computed::Later);
    }

    let handing = Handing::new(&replica.memory.windows, &cluster);
    let (mut entries, fresh, changes, windows) =
        resolve_entries(replica, &cluster, &known, grants, (inputs, handing)).await?;

    let ClusterRows {
        released,
        desired,
        update,
        ..
    } = known;
    entries.extend(
        released
            .iter()
            .map(|row| Verbatim::from(released_entry(row, cluster.suspended))),
    );
    entries.sort_by(|a, b| a.service.uid.cmp(&b.service.uid));
    let agent = update
        .map(|row| advance_agents::read_text(&row.cluster_uid, &row.settings))
        .transpose()?
        .flatten();

    let next = next_desired(
        replica,
        &cluster,
        Content {
            entries,
            agent,
            health: health.cloned(),
            windows,
        },
        desired,
    )?;
    Ok(Computed::Now {
        next: next.map(Box::new),
        fresh,
        changes,
    })
}

/// Whether a commit has reached some of the services that it concerns and not all. They are published together, because
/// one service may take over what another gives up. Services that can't be assigned are not waited for, and no service
/// for longer than [`HALFWAY_SECONDS`].
async fn is_halfway(replica: &Replica, rows: &[Assignment], touched: &HashSet<String>) -> Result<bool, StoreError> {
    let mut by_source: HashMap<&str, Vec<&Assignment>> = HashMap::new();
    for row in rows.iter().filter(|row| !row.source_uid.is_empty()) {
        by_source.entry(&row.source_uid).or_default().push(row);
    }
    for (source, rows) in by_source.into_iter().filter(|(_, rows)| rows.len() > 1) {
        let Some(revision) = load_revision(&mut *replica.store.tables().await?, source).await? else {
            continue;
        };
        if Timestamp::now().as_second() - revision.fetched > HALFWAY_SECONDS {
            continue;
        }
        if is_split(
            &rows,
            touched,
            &git::format_revision(&revision.reference, &revision.commit),
        )? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether some services are at a revision of their source while others that it concerns are not.
fn is_split(rows: &[&Assignment], touched: &HashSet<String>, revision: &str) -> Result<bool, StoreError> {
    let (mut here, mut waits) = (false, false);
    for row in rows {
        let why: Why = read_json(&row.service_uid, &row.why)?;
        let candidate = row
            .candidate
            .as_deref()
            .map(|text| read_json::<Candidate>(&row.service_uid, text));
        match candidate.transpose()? {
            Some(candidate) if candidate.revision == revision => here = true,
            _ => {
                waits |= touched.contains(&row.service_uid)
                    && !matches!(why, Why::Trouble(_) | Why::Rollout | Why::Frozen(_))
            }
        }
    }
    Ok(here && waits)
}

/// Entries, parameters that were resolved in this round, changes of members, and windows.
type Resolved = (
    Vec<Verbatim<Entry>>,
    Vec<Fresh>,
    Vec<MemberChange>,
    Option<Verbatim<Windows>>,
);

/// Resolves the entries of a cluster's services, and the parameters that they need.
async fn resolve_entries(
    replica: &Replica,
    cluster: &ClusterFacts,
    rows: &ClusterRows,
    grants: &[NamedGrant],
    (inputs, mut handing): (&mut InputCache, Handing),
) -> Result<Resolved, StoreError> {
    let mut urls = SourceUrls::default();
    let (mut entries, mut fresh, mut changes) = (Vec::with_capacity(rows.assignments.len()), Vec::new(), Vec::new());
    for some in rows.assignments.chunks(READ_AT_ONCE) {
        let keys: Vec<_> = some.iter().map(key_of).collect();
        let mut services = replica.store.get_all(&keys).await?;
        let mut last_word = None;
        for (row, key) in some.iter().zip(keys) {
            let uid = &row.service_uid;
            let specs = (rows.members.get(uid), rows.held.get(uid));
            let known = (row, rows.origins.get(uid), rows.parameters.get(uid), specs);
            let found = services.remove(&key).filter(|found| found.uid == *uid);
            // `assign_revisions` deletes the rows of a service that is gone or was recreated.
            let Some(found) = found else { continue };
            let Some(Service { found, newer }) = load_newer(replica, row, found).await? else {
                continue;
            };
            let (row, origin, parameters, (member, held)) = match newer.as_deref() {
                None => known,
                Some((row, rows)) => {
                    let specs = (rows.member.as_ref(), rows.held.as_ref());
                    (row, rows.origin.as_ref(), rows.parameters.as_ref(), specs)
                }
            };

            let service = resources::take(found)?;
            let facts = facts_of(replica, row, service, (origin, (member, held)), &mut urls).await?;
            // A service that was read a second time may have been deleted after these were loaded for another service.
            if facts.deleting() && (last_word.is_none() || newer.is_some()) {
                last_word = Some(LastWord::load(replica, cluster).await?);
            }
            let (cluster, grants) = match last_word.as_ref().filter(|_| facts.deleting()) {
                Some(last) => (&last.cluster, last.grants.as_slice()),
                None => (cluster, grants),
            };

            let secrets = secrets::resolve(replica, &facts).await?;
            let (given, resolved) = give(replica, &facts, cluster, parameters, inputs).await?;
            fresh.extend(resolved);
            let entry = Verbatim::from(facts.resolve_entry(cluster, grants, &secrets, &given).0);

            changes.extend(
                member
                    .map(|member| note_member(member, &facts, &entry))
                    .transpose()?
                    .flatten(),
            );
            handing.add(replica, &facts, entry.digest()).await?;
            entries.push(entry);
        }
    }
    Ok((entries, fresh, changes, handing.end().map(Verbatim::from)))
}

/// A service, and its rows if those that were read before may not match it.
struct Service {
    found: Resource,
    newer: Option<Box<(Assignment, ServiceRows)>>,
}

/// The spec that counts and the assignment are decided after a service is written, and saved with it or later. So the
/// rows are read after the service. None: the service no longer belongs to the cluster.
async fn load_newer(replica: &Replica, row: &Assignment, found: Resource) -> Result<Option<Service>, StoreError> {
    let mut found = found;
    let generation = |found: &Resource| found.object["metadata"]["generation"].as_i64().unwrap_or(0);
    if generation(&found) == row.generation {
        return Ok(Some(Service { found, newer: None }));
    }
    loop {
        let mut rows = load_service_rows(&mut *replica.store.tables().await?, &row.service_uid).await?;
        let assignment = rows.assignment.take().filter(|now| now.cluster_uid == row.cluster_uid);
        let Some(assignment) = assignment else { return Ok(None) };
        let known = rows
            .member
            .as_ref()
            .map_or(0, |member| member.generation)
            .max(assignment.generation);
        if known <= generation(&found) {
            return Ok(Some(Service {
                found,
                newer: Some(Box::new((assignment, rows))),
            }));
        }
        // The service was written once more, and the rows may belong to that.
        let again = replica
            .store
            .get(&key_of(row))
            .await?
            .filter(|found| found.uid == row.service_uid);
        let Some(again) = again else { return Ok(None) };
        found = again;
    }
}

/// The inputs of removals. A removal is never taken back, so they are read after the deletion of its service.
struct LastWord {
    grants: Vec<NamedGrant>,
    cluster: ClusterFacts,
}

impl LastWord {
    async fn load(replica: &Replica, cluster: &ClusterFacts) -> Result<Self, StoreError> {
        let cluster = ClusterFacts {
            frozen: freeze_prunes::find(&replica.store).await?,
            ..cluster.clone()
        };
        Ok(Self {
            grants: load_grants(&replica.store).await?,
            cluster,
        })
    }
}

/// Returns the change of a member whose entry differs from before.
fn note_member(
    member: &MemberRollout,
    facts: &ServiceFacts,
    entry: &Verbatim<Entry>,
) -> Result<Option<MemberChange>, StoreError> {
    let published = match (&entry.action, &facts.assigned) {
        (Action::Apply(deployment), Some(assigned)) => {
            rollouts::published(&facts.service.spec, assigned, entry.digest(), deployment.parameters)?
        }
        _ => String::new(),
    };
    let change = || MemberChange {
        set_uid: member.set_uid.clone(),
        service_uid: member.service_uid.clone(),
        published: published.clone(),
    };
    Ok((published != member.published).then(change))
}

fn key_of(row: &Assignment) -> Key {
    ServiceDeployment::key(&Name::new(&row.namespace, &row.name))
}

/// Loads what decides about the entry of a row's service. None: the service is gone or was recreated.
pub async fn load_facts(
    replica: &Replica,
    row: &Assignment,
    origin: Option<&ServiceOrigin>,
    urls: &mut SourceUrls,
) -> Result<Option<ServiceFacts>, StoreError> {
    let found = replica.store.get(&key_of(row)).await?;
    let (member, held) = {
        let mut tables = replica.store.tables().await?;
        (
            rollout_of_service(&mut tables, &row.service_uid).await?,
            load_held(&mut tables, &row.service_uid).await?,
        )
    };
    let Some(service) = take_service(row, found)? else {
        return Ok(None);
    };
    facts_of(replica, row, service, (origin, (member.as_ref(), held.as_ref())), urls)
        .await
        .map(Some)
}

/// None: the service is gone or was recreated.
fn take_service(row: &Assignment, found: Option<Resource>) -> Result<Option<ServiceDeployment>, StoreError> {
    found
        .filter(|resource| resource.uid == row.service_uid)
        .map(resources::take)
        .transpose()
}

/// The inputs of a service's entry, with the spec that counts.
pub async fn facts_of(
    replica: &Replica,
    row: &Assignment,
    service: ServiceDeployment,
    (origin, (member, held)): (Option<&ServiceOrigin>, (Option<&MemberRollout>, Option<&HeldService>)),
    urls: &mut SourceUrls,
) -> Result<ServiceFacts, StoreError> {
    let own = member
        .filter(|member| !member.held_spec.is_empty())
        .map(|_| service.spec.clone());
    let service = held_specs::effective(service, member, held)?;
    let urls = urls.of_service(&replica.store, &row.namespace, &service).await?;
    let mut facts = ServiceFacts::new(service, row, urls)?
        .from_origin(origin)?
        .of_member(member, own)?;
    dependencies::find_dependents(&replica.store, &mut facts).await?;
    Ok(facts)
}

fn next_desired(
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

    let entries = &content.entries;
    let bytes = desired::measure(&content);
    if bytes > MAX_DESIRED_BYTES - desired::STATEMENT_BYTES {
        let problem = format!(
            "{} services and {} rules of health make a desired state of {bytes} bytes; agents accept {MAX_DESIRED_BYTES}",
            entries.len(),
            content.health.as_ref().map_or(0, |health| health.rules.len())
        );
        return Err(StoreError::Row {
            what: format!("desired state of cluster {}", cluster.name),
            problem,
        });
    }

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

/// Saves resolved parameters. An input may have changed after it was read, when no index named its users yet. Its
/// services are then marked to be resolved once more.
async fn save_fresh(tx: &mut Tx, backends: &SecretBackends, fresh: Vec<(String, Fresh)>) -> Result<(), StoreError> {
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

/// Saves what changed and clears the marks, in one transaction; then wakes the polls.
async fn publish(replica: &Replica, published: Vec<Done>, begun: SystemTime) -> Result<(), StoreError> {
    let names = |holds: fn(&Fresh) -> bool| -> Vec<Name> {
        let fresh = published
            .iter()
            .flat_map(|done| &done.fresh)
            .filter(|fresh| holds(fresh));
        fresh.map(|fresh| fresh.service.clone()).collect()
    };
    let (news, of_rollouts) = (names(|fresh| fresh.is_news), names(|fresh| fresh.is_of_rollout));
    let backends = Arc::clone(&replica.secret_backends);
    let changed = replica.store.transact(move |tx| {
        Box::pin(async move {
            let (mut changed, mut resolved, mut moved) = (Vec::new(), Vec::new(), HashSet::new());
            let now = Timestamp::now().as_second();
            for Done {
                mark,
                next,
                fresh,
                changes,
            } in published
            {
                // If the epoch was raised meanwhile, this state must not be published. The cluster is marked again.
                let raised = match &next {
                    Some(Next { row, .. }) => load_desired(tx, &row.cluster_uid)
                        .await?
                        .is_some_and(|now| now.epoch > row.epoch),
                    None => false,
                };
                if let Some(next) = next.filter(|_| !raised) {
                    save_desired(tx, &next.row).await?;
                    changed.push(next);
                }
                for change in changes.into_iter().filter(|_| !raised) {
                    save_published(tx, &change.service_uid, &change.published, now).await?;
                    moved.insert(change.set_uid);
                }
                clear_mark(tx, &mark).await?;
                resolved.extend(fresh.into_iter().map(|fresh| (mark.cluster_uid.clone(), fresh)));
            }

            save_fresh(tx, &backends, resolved).await?;
            Ok((changed, moved))
        })
    });

    let (changed, moved) = changed.await?;
    moved
        .iter()
        .for_each(|set_uid| replica.memory.sets.note_member(set_uid));
    // Their candidates may now be other changes, which wait for their turn. That was unknown until the parameters were
    // resolved.
    of_rollouts
        .into_iter()
        .for_each(|name| replica.queues.services.add(name));
    // Their conditions may change.
    news.into_iter().for_each(|name| replica.queues.summaries.add(name));

    let interval = Interval::since(begun);
    for Next { row, news } in changed {
        replica.memory.counters.published.inc();
        tracing::debug!(
            cluster = row.cluster_uid,
            epoch = row.epoch,
            generation = row.generation,
            "published"
        );
        let etag = desired::etag(&row);
        replica
            .memory
            .clusters
            .change(&row.cluster_uid, |state| state.etag = etag);
        if !news.is_empty() {
            let state = replica.memory.clusters.get(&row.cluster_uid);
            let cluster = state
                .map(|state| format!("{}/{}", state.namespace, state.name))
                .unwrap_or_default();
            let (cluster_uid, generation) = (&*row.cluster_uid, row.generation);
            timeline::tell(
                &replica.memory.timeline,
                Published {
                    cluster_uid,
                    cluster: &cluster,
                    generation,
                    interval,
                },
                &news,
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use farwater_fleet::assignment::Trouble;
    use serde_json::json;

    use super::*;

    fn row(name: &str, revision: &str, why: &Why) -> Assignment {
        let digest = farwater_api::Digest::of("");
        let candidate =
            json!({"revision": revision, "contentId": digest, "bundle": digest, "bundleBytes": 1, "path": "."});
        Assignment {
            service_uid: name.to_owned(),
            namespace: "team-a".to_owned(),
            name: name.to_owned(),
            cluster_uid: "east".to_owned(),
            source_uid: "infra".to_owned(),
            generation: 1,
            stamp: String::new(),
            candidate: Some(candidate.to_string()),
            assigned: None,
            why: serde_json::to_string(why).unwrap(),
        }
    }

    #[test]
    fn services_that_a_commit_concerns_wait_for_one_another_and_for_no_others() {
        let split = |second: &Assignment, touched: &[&str]| {
            let touched = touched.iter().map(|name| (*name).to_owned()).collect();
            is_split(&[&row("a", "new", &Why::Current), second], &touched, "new").unwrap()
        };
        let old = row("b", "old", &Why::Current);
        assert!(split(&old, &["b"]));
        assert!(!split(&old, &[]), "it stays at the old one");
        assert!(!split(&row("b", "new", &Why::Current), &["b"]));
        let gone = Why::Trouble(Trouble::Secret {
            message: "x".to_owned(),
        });
        assert!(!split(&row("b", "old", &gone), &["b"]));
        let none_yet = is_split(&[&old, &old], &["b".to_owned()].into(), "new");
        assert!(!none_yet.unwrap());
    }

    #[test]
    fn rounds_pause_as_long_as_they_take_and_less_where_something_is_left() {
        let (quick, heavy) = (Duration::from_millis(3), Duration::from_millis(150));
        let mut almost = PAUSE;
        let mut pause = |done, later, took| {
            Round {
                done,
                later,
                held: false,
            }
            .pause(took, &mut almost)
        };
        assert_eq!(pause(1, 0, quick), PAUSE);
        assert_eq!(pause(BATCH as usize, 0, heavy), GATHER);
        let left: Vec<_> = (0..7).map(|_| pause(2, 1, heavy).as_millis()).collect();
        assert_eq!(left, [5, 10, 20, 40, 80, 100, 100]);
        assert_eq!(pause(2, 0, quick), PAUSE);
        assert_eq!(pause(2, 1, quick), PAUSE, "from the beginning again");
    }

    #[test]
    fn a_cluster_rests_as_it_was_heavy_and_no_other_waits_for_it() {
        let rest = |took| {
            let mut resting = Resting::default();
            let before = Instant::now();
            resting.begin("a".to_owned(), took);
            resting.first_end().unwrap() - before
        };
        let about = |duration: Duration| duration..duration + Duration::from_millis(50);
        assert!(about(GATHER).contains(&rest(Duration::from_millis(3))));
        assert!(about(Duration::from_millis(600)).contains(&rest(Duration::from_millis(150))));
        assert!(about(LONGEST).contains(&rest(Duration::from_secs(9))));
        let mut resting = Resting::default();
        resting.begin("a".to_owned(), Duration::ZERO);
        resting.wake(Instant::now());
        assert!(resting.0.contains_key("a") && !resting.0.contains_key("b"));
        resting.wake(Instant::now() + GATHER);
        assert!(resting.0.is_empty());
    }
}
