//! fetch_sources: remotes → revisions that are served.
//!
//! A remote that can't be asked, refuses us or lacks what is followed changes nothing but the source's conditions: what was
//! fetched last goes on being served, also after a restart, because revision and mirror are on the disk.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use farwater_api::{GitRepository, GitRepositorySpec, GitRepositoryStatus};
use farwater_fleet::{
    conditions::{self, Verdict, whole_seconds},
    duration::{SOURCE_INTERVAL, SOURCE_TIMEOUT, show},
    webhooks::announcements::Found,
};
use farwater_sources::Named;
use farwater_store::{
    StoreError,
    delivery::{
        Revision, SourceOrigin, assignments_of_source, load_revision, load_source_origin, save_revision,
        save_source_origin,
    },
};
use farwater_telemetry::traces::Interval;
use jiff::Timestamp;
use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::Time};
use serde::Deserialize as _;

use super::{
    announced::Announced,
    git::{self, Fetch, SourceFailure, Way},
    queue::Next,
    requests::Requests,
    resources::{self, Name},
    trace_deliveries::Fetched,
};
use crate::delivery::{Delivery, FetchResult};

const DEFAULT_INTERVAL: Duration = Duration::from_secs(120);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests to one host at the same time: hosts throttle, and a stuck one must not take all places.
const PER_HOST: usize = 4;
/// When a source whose host is busy comes again.
const HOST_BUSY: Duration = Duration::from_millis(250);
/// First wait after a failure; doubles up to the interval.
const MIN_RETRY: Duration = Duration::from_secs(2);

/// When each source was asked last, and which hosts are busy. Lost at a restart, which only means asking earlier.
#[derive(Default)]
pub struct Checks {
    last: Mutex<HashMap<String, Check>>,
    hosts: Mutex<HashMap<String, usize>>,
    urgent: Mutex<HashSet<String>>,
    /// Of services.
    pub requests: Requests,
    /// By webhooks.
    pub announced: Announced,
}

#[derive(Clone, Debug)]
struct Check {
    generation: i64,
    requested: Option<String>,
    next: tokio::time::Instant,
    failures: u32,
}

impl Checks {
    fn last(&self) -> MutexGuard<'_, HashMap<String, Check>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn forget(&self, uid: &str) {
        self.last().remove(uid);
        self.announced.forget(uid);
    }

    /// Has a source asked at once, whatever is known of it.
    pub fn hurry(&self, uid: &str) {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
    }

    fn take_urgent(&self, uid: &str) -> bool {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }

    fn enter(self: &Checks, host: &str) -> Option<HostGuard<'_>> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = hosts.entry(host.to_owned()).or_default();
        if *count >= PER_HOST {
            return None;
        }
        *count += 1;
        Some(HostGuard { checks: self, host: host.to_owned() })
    }
}

struct HostGuard<'a> {
    checks: &'a Checks,
    host: String,
}

impl Drop for HostGuard<'_> {
    fn drop(&mut self) {
        let mut hosts = self.checks.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = hosts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                hosts.remove(&self.host);
            }
        }
    }
}

/// How long until the next of the moments at which this source is asked. They lie an interval apart, at an offset of the
/// source's own, so that a thousand sources made together are not asked together.
fn until_next(uid: &str, interval: Duration, now: Timestamp) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let interval_ms = interval.as_millis().max(1) as u64;
    let offset = hasher.finish() % interval_ms;
    let now_ms = now.as_millisecond().unsigned_abs();
    let since = (now_ms + interval_ms - offset) % interval_ms;
    Duration::from_millis(interval_ms - since)
}

struct Source {
    uid: String,
    generation: i64,
    repository: GitRepository,
    requested: Option<String>,
    interval: Duration,
    /// What was known of its repository.
    origin: Option<SourceOrigin>,
}

impl Source {
    fn status(&self) -> GitRepositoryStatus {
        self.repository.status.clone().unwrap_or_default()
    }

    /// What the database says of it was restored, and may be older than what agents have seen.
    fn is_unasked(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.unasked)
    }

    /// What a check teaches about webhooks: nothing, where it was the first at what is followed now.
    fn found(&self, served: Option<&Revision>, result: FetchResult) -> Found {
        match result {
            FetchResult::Failed => Found::Failed,
            FetchResult::Unchanged => Found::Nothing,
            FetchResult::Moved if served.is_none() || self.status().observed_generation != Some(self.generation) => {
                Found::First
            }
            FetchResult::Moved => Found::Moved,
        }
    }

    /// What of a request is news: one that the status acknowledges already was handled before a restart.
    fn is_due(&self, check: Option<&Check>) -> bool {
        let status = self.status();
        match check {
            Some(check) => {
                check.generation != self.generation
                    || check.requested != self.requested
                    || check.next <= tokio::time::Instant::now()
            }
            None => {
                // After a restart what was asked lately waits for its turn, so that not all are asked at once.
                let settled = status.observed_generation == Some(self.generation)
                    && status.stale_since.is_none()
                    && status.revision.is_some()
                    && (self.requested.is_none() || status.last_handled_reconcile_at == self.requested);
                !settled || self.is_unasked()
            }
        }
    }
}

pub async fn fetch_source(delivery: Arc<Delivery>, name: Name) -> Result<Next, StoreError> {
    let found = resources::load::<GitRepository>(&delivery.store, &name).await?;
    let Some((resource, repository)) = found else { return Ok(Next::OnChange) };
    if repository.metadata.deletion_timestamp.is_some() {
        answer_requests(&delivery, &resource.uid);
        return Ok(Next::OnChange);
    }
    let (served, origin) = {
        let mut tables = delivery.store.tables().await?;
        (load_revision(&mut tables, &resource.uid).await?, load_source_origin(&mut tables, &resource.uid).await?)
    };
    let source = Source {
        uid: resource.uid,
        origin,
        generation: repository.metadata.generation.unwrap_or(0),
        requested: resources::requested_at(&repository.metadata).map(str::to_owned),
        interval: SOURCE_INTERVAL.check(&repository.spec.interval).unwrap_or(DEFAULT_INTERVAL),
        repository,
    };
    if source.repository.spec.suspend {
        delivery.checks.forget(&source.uid);
        write_suspended(&delivery, &name, &source, served.as_ref()).await?;
        answer_requests(&delivery, &source.uid);
        return Ok(Next::OnChange);
    }
    let check = delivery.checks.last().get(&source.uid).cloned();
    let announced = &delivery.checks.announced;
    if check.as_ref().is_some_and(|check| check.generation != source.generation) {
        // What was proven was so of another repository or reference.
        announced.forget(&source.uid);
    }
    let urgent = delivery.checks.take_urgent(&source.uid);
    let is_announced = announced.begin(&source.uid);
    if !urgent && !is_announced && !source.is_due(check.as_ref()) {
        return Ok(wait_for_turn(&delivery, &source, check));
    }
    let host = git::host(&source.repository.spec.url);
    let Some(_guard) = delivery.checks.enter(&host) else {
        if urgent {
            delivery.checks.hurry(&source.uid);
        }
        if is_announced {
            announced.put_back(&source.uid);
        }
        return Ok(Next::After(HOST_BUSY));
    };
    if source.status().observed_generation != Some(source.generation) {
        write_reconciling(&delivery, &name, &source, served.as_ref()).await?;
    }
    delivery.checks.requests.ask(&source.uid);
    let begun = SystemTime::now();
    let fetched = ask_remote(&delivery, &name, &source).await;
    let interval = Interval::since(begun);
    let result = judge(served.as_ref(), &fetched);
    delivery.counters.count_fetch(result, interval.ended.duration_since(begun).unwrap_or_default());
    if let (FetchResult::Moved, Ok(fetch)) = (result, &fetched) {
        let revision = git::format_revision(&fetch.reference, &fetch.commit);
        delivery.timeline.note_fetch(&source.uid, || Fetched { source: name.to_string(), revision, interval });
    }
    announced.finish(&source.uid, is_announced, source.found(served.as_ref(), result));
    let wait = finish_check(&delivery, &source, check, fetched.is_err());
    record(&delivery, &name, &source, served, fetched).await?;
    for service in delivery.checks.requests.answer(&source.uid) {
        delivery.services.add(service);
    }
    Ok(Next::After(wait))
}

/// A source that is not asked any more has given its last answer.
fn answer_requests(delivery: &Delivery, uid: &str) {
    delivery.checks.requests.ask(uid);
    for service in delivery.checks.requests.answer(uid) {
        delivery.services.add(service);
    }
}

fn wait_for_turn(delivery: &Delivery, source: &Source, check: Option<Check>) -> Next {
    let now = tokio::time::Instant::now();
    let check = check.unwrap_or_else(|| Check {
        generation: source.generation,
        requested: source.requested.clone(),
        next: now + until_turn(delivery, source),
        failures: 0,
    });
    let wait = check.next.saturating_duration_since(now);
    delivery.checks.last().insert(source.uid.clone(), check);
    Next::After(sooner(delivery, source, wait))
}

/// Its own moments lie further apart while webhooks announce what is pushed.
fn until_turn(delivery: &Delivery, source: &Source) -> Duration {
    let (interval, _) = delivery.checks.announced.stretch(&source.uid, source.interval);
    until_next(&source.uid, interval, Timestamp::now())
}

/// Until its turn, or until it may be asked because of a delivery.
fn sooner(delivery: &Delivery, source: &Source, turn: Duration) -> Duration {
    delivery.checks.announced.wait(&source.uid).map_or(turn, |wait| turn.min(wait))
}

fn finish_check(delivery: &Delivery, source: &Source, old: Option<Check>, failed: bool) -> Duration {
    let failures = if failed { old.map_or(0, |check| check.failures).saturating_add(1) } else { 0 };
    let turn = until_turn(delivery, source);
    let wait = match failures {
        0 => turn,
        n => turn.min(MIN_RETRY.saturating_mul(1 << (n - 1).min(16))),
    };
    let check = Check {
        generation: source.generation,
        requested: source.requested.clone(),
        next: tokio::time::Instant::now() + wait,
        failures,
    };
    delivery.checks.last().insert(source.uid.clone(), check);
    sooner(delivery, source, wait)
}

async fn ask_remote(delivery: &Arc<Delivery>, name: &Name, source: &Source) -> Result<Fetch, SourceFailure> {
    let spec = &source.repository.spec;
    let way = load_way(delivery, name, spec).await?;
    git::fetch(delivery, &source.uid, spec, way, source.origin.clone()).await
}

/// How a source's remote is asked.
pub async fn load_way(delivery: &Delivery, name: &Name, spec: &GitRepositorySpec) -> Result<Way, SourceFailure> {
    let secret = match &spec.secret_ref {
        Some(reference) => Some(load_secret(delivery, &Name::new(&name.namespace, &reference.name)).await?),
        None => None,
    };
    Ok(Way { secret, timeout: SOURCE_TIMEOUT.check(&spec.timeout).unwrap_or(DEFAULT_TIMEOUT) })
}

/// Looks at another revision of a source than the one that is followed. Its host is asked as often as ever at the same time.
pub async fn find_revision(
    delivery: &Delivery,
    name: &Name,
    (source_uid, spec): (&str, &GitRepositorySpec),
    named: &Named,
) -> Result<Fetch, SourceFailure> {
    let way = load_way(delivery, name, spec).await?;
    let host = git::host(&spec.url);
    let _guard = loop {
        match delivery.checks.enter(&host) {
            Some(guard) => break guard,
            None => tokio::time::sleep(HOST_BUSY).await,
        }
    };
    let known = load_source_origin(&mut *delivery.store.tables().await.map_err(store_failed)?, source_uid).await;
    git::find(delivery, source_uid, spec, way, (named, known.map_err(store_failed)?)).await
}

fn store_failed(error: StoreError) -> SourceFailure {
    SourceFailure::passing("StoreFailed", super::chain(&error))
}

async fn load_secret(delivery: &Delivery, name: &Name) -> Result<git::SecretData, SourceFailure> {
    let secret = resources::load_secret(&delivery.store, name).await.map_err(store_failed)?;
    let Some(secret) = secret else {
        return Err(SourceFailure::lasting("SecretNotFound", format!("Secret {} does not exist", name.name)));
    };
    let data = &secret.object["data"];
    if data.is_null() {
        return Ok(git::SecretData::new());
    }
    let data = std::collections::BTreeMap::<String, ByteString>::deserialize(data).map_err(|_| {
        SourceFailure::lasting("SecretUnreadable", format!("Secret {} holds data that is not base64", name.name))
    })?;
    Ok(data.into_iter().map(|(key, value)| (key, value.0)).collect())
}

fn judge(served: Option<&Revision>, fetched: &Result<Fetch, SourceFailure>) -> FetchResult {
    match fetched {
        Err(_) => FetchResult::Failed,
        Ok(fetch) if served.is_none_or(|old| old.commit != fetch.commit || old.reference != fetch.reference) => {
            FetchResult::Moved
        }
        Ok(_) => FetchResult::Unchanged,
    }
}

/// Saves the revision if it moved, says how it went, and wakes the services of a source that moved.
async fn record(
    delivery: &Delivery,
    name: &Name,
    source: &Source,
    served: Option<Revision>,
    fetched: Result<Fetch, SourceFailure>,
) -> Result<(), StoreError> {
    let now = Timestamp::now();
    let moved = judge(served.as_ref(), &fetched) == FetchResult::Moved;
    let fetch = match fetched {
        Ok(fetch) => fetch,
        Err(failure) => return write_failure(delivery, name, source, served.as_ref(), failure, now).await,
    };
    let asked_again = source.is_unasked();
    let origin = (source.origin.as_ref() != Some(&fetch.origin)).then_some(fetch.origin);
    let revision = if moved {
        let revision = Revision {
            source_uid: source.uid.clone(),
            reference: fetch.reference,
            commit: fetch.commit,
            fetched: now.as_second(),
        };
        let row = revision.clone();
        let saved = delivery.store.transact(move |tx| {
            Box::pin(async move {
                if let Some(origin) = &origin {
                    save_source_origin(tx, origin).await?;
                }
                save_revision(tx, &row).await
            })
        });
        saved.await?;
        revision
    } else {
        if let Some(origin) = origin {
            delivery.store.transact(move |tx| Box::pin(async move { save_source_origin(tx, &origin).await })).await?;
        }
        served.unwrap_or_else(|| unreachable!("a revision that did not move is served"))
    };
    let text = revision_text(&revision);
    let said = match delivery.checks.announced.stretch(&source.uid, source.interval) {
        (interval, true) => format!("serves {text}; webhooks announce pushes, so it is asked every {}", show(interval)),
        (_, false) => format!("serves {text}"),
    };
    let status = GitRepositoryStatus {
        conditions: source.conditions(Verdict::ready("Fetched", said), now),
        stale_since: None,
        ..source.settled_status(Some(&revision))
    };
    resources::write_status::<GitRepository>(&delivery.store, name, &source.uid, &status).await?;
    if moved {
        tracing::info!(source = %name, revision = text, "fetched");
    }
    if moved || asked_again {
        for row in assignments_of_source(&mut *delivery.store.tables().await?, &source.uid).await? {
            delivery.services.add(Name { namespace: row.namespace, name: row.name });
        }
    }
    Ok(())
}

fn revision_text(revision: &Revision) -> String {
    git::format_revision(&revision.reference, &revision.commit)
}

impl Source {
    fn conditions(&self, verdicts: Vec<Verdict>, now: Timestamp) -> Vec<farwater_api::Condition> {
        conditions::resolve(&self.status().conditions, verdicts, self.generation, now)
    }

    /// The status of a source whose request was handled, but for its conditions.
    fn settled_status(&self, served: Option<&Revision>) -> GitRepositoryStatus {
        let time = served.and_then(|revision| Timestamp::from_second(revision.fetched).ok()).map(Time);
        GitRepositoryStatus {
            observed_generation: Some(self.generation),
            conditions: Vec::new(),
            revision: served.map(revision_text),
            last_fetch_time: time,
            stale_since: self.status().stale_since,
            last_handled_reconcile_at: self.requested.clone(),
        }
    }
}

async fn write_failure(
    delivery: &Delivery,
    name: &Name,
    source: &Source,
    served: Option<&Revision>,
    failure: SourceFailure,
    now: Timestamp,
) -> Result<(), StoreError> {
    let since = source.status().stale_since.unwrap_or_else(|| whole_seconds(now));
    let kept = served.map_or_else(
        || "nothing was fetched yet".to_owned(),
        |revision| format!("{} goes on being served, unchecked since {}", revision_text(revision), since.0),
    );
    let message = format!("{}; {kept}", failure.message);
    let verdicts = if failure.lasting {
        Verdict::stalled(failure.reason, message)
    } else {
        vec![Verdict::new("Ready", Some(false), failure.reason, message)]
    };
    let status = GitRepositoryStatus {
        conditions: source.conditions(verdicts, now),
        stale_since: Some(since),
        ..source.settled_status(served)
    };
    tracing::warn!(source = %name, reason = failure.reason, error = failure.message, "a source can't be asked");
    resources::write_status::<GitRepository>(&delivery.store, name, &source.uid, &status).await
}

async fn write_reconciling(
    delivery: &Delivery,
    name: &Name,
    source: &Source,
    served: Option<&Revision>,
) -> Result<(), StoreError> {
    let message = format!("asking {}", source.repository.spec.url);
    let status = GitRepositoryStatus {
        conditions: source.conditions(Verdict::reconciling("Fetching", message), Timestamp::now()),
        last_handled_reconcile_at: source.status().last_handled_reconcile_at,
        ..source.settled_status(served)
    };
    resources::write_status::<GitRepository>(&delivery.store, name, &source.uid, &status).await
}

async fn write_suspended(
    delivery: &Delivery,
    name: &Name,
    source: &Source,
    served: Option<&Revision>,
) -> Result<(), StoreError> {
    let message = served.map_or_else(
        || "suspended; nothing was fetched yet".to_owned(),
        |revision| format!("suspended; {} goes on being served", revision_text(revision)),
    );
    let verdict = Verdict::new("Ready", served.map(|_| true), "Suspended", message);
    let status = GitRepositoryStatus {
        conditions: source.conditions(vec![verdict], Timestamp::now()),
        ..source.settled_status(served)
    };
    resources::write_status::<GitRepository>(&delivery.store, name, &source.uid, &status).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_asked_an_interval_apart_at_their_own_offset() {
        let interval = Duration::from_secs(120);
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut offsets = std::collections::BTreeSet::new();
        for n in 0..100 {
            let uid = format!("source-{n}");
            let first = until_next(&uid, interval, now);
            assert!(first > Duration::ZERO && first <= interval);
            let then = now + jiff::SignedDuration::try_from(first).unwrap();
            assert_eq!(until_next(&uid, interval, then), interval, "{uid}");
            offsets.insert(first);
        }
        assert!(offsets.len() > 95, "{} different offsets", offsets.len());
    }

    #[test]
    fn a_host_is_asked_by_a_few_at_once() {
        let checks = Checks::default();
        let guards: Vec<_> = (0..PER_HOST).map(|_| checks.enter("slow").unwrap()).collect();
        assert!(checks.enter("slow").is_none());
        assert!(checks.enter("other").is_some());
        drop(guards);
        assert!(checks.enter("slow").is_some());
    }
}
