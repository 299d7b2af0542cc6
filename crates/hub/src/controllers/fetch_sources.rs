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
    duration::SOURCE_INTERVAL,
};
use farwater_sources::{Address, GitError, GitReason, Named};
use farwater_store::{
    StoreError,
    delivery::{
        Revision, SourceOrigin, assignments_of_source, load_revision, load_source_origin, save_revision,
        save_source_origin, withdraw_revision,
    },
};
use farwater_telemetry::traces::Interval;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    git::{self, Fetch, SourceFailure},
    queue::Next,
    requests::Requests,
    resources::{self, Name},
    source_access::{Way, store_failed},
    trace_deliveries::Fetched,
    verify_revisions,
};
use crate::delivery::{Delivery, FetchResult};

const DEFAULT_INTERVAL: Duration = Duration::from_secs(120);
/// Requests to one host at the same time: hosts throttle, and a stuck one must not take all places.
const PER_HOST: usize = 4;
/// Requests to all hosts together that did not answer the last time.
const SILENT: usize = 8;
/// Hosts that are remembered as silent; more are forgotten together.
const MAX_SILENT: usize = 10_000;
/// When a source whose host is busy comes again.
const HOST_BUSY: Duration = Duration::from_millis(250);
/// First wait after a failure; doubles up to the interval.
const MIN_RETRY: Duration = Duration::from_secs(2);

/// When each source was asked last, and which hosts are busy. Lost at a restart, which only means asking earlier.
#[derive(Default)]
pub struct Checks {
    last: Mutex<HashMap<String, Check>>,
    hosts: Mutex<Hosts>,
    urgent: Mutex<HashSet<String>>,
    /// Of services.
    pub requests: Requests,
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
    }

    /// Has a source asked at once, whatever is known of it.
    pub fn hurry(&self, uid: &str) {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
    }

    fn take_urgent(&self, uid: &str) -> bool {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }

    /// A turn at a repository, if its host has one left.
    fn enter(&self, address: &Address) -> Option<Turn<'_>> {
        let (host, repository) = (format!("{}:{}", address.host(), address.port()), address.identity());
        let mut hosts = self.hosts();
        let is_silent = hosts.silent.contains(&host);
        let (most, silent) = if is_silent { (1, hosts.busy_silent) } else { (PER_HOST, 0) };
        let busy = hosts.busy.get(&host).copied().unwrap_or(0);
        if busy >= most || silent >= SILENT || hosts.repositories.contains(&repository) {
            return None;
        }
        *hosts.busy.entry(host.clone()).or_default() += 1;
        hosts.busy_silent += usize::from(is_silent);
        hosts.repositories.insert(repository.clone());
        Some(Turn { checks: self, host, repository, is_silent })
    }

    /// The same, when it is there.
    pub async fn wait_to_enter(&self, address: &Address) -> Turn<'_> {
        loop {
            match self.enter(address) {
                Some(turn) => return turn,
                None => tokio::time::sleep(HOST_BUSY).await,
            }
        }
    }

    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is being asked, and who did not answer.
#[derive(Default)]
struct Hosts {
    busy: HashMap<String, usize>,
    /// However many sources are of one repository.
    repositories: HashSet<String>,
    silent: HashSet<String>,
    busy_silent: usize,
}

/// One request to a host at a time of its own. Ends when dropped.
pub struct Turn<'a> {
    checks: &'a Checks,
    host: String,
    repository: String,
    is_silent: bool,
}

impl Turn<'_> {
    /// Notes whether the host answered: one that didn't is asked by one at a time until it does.
    pub fn end(self, failure: Option<&GitError>) {
        use GitReason::{Stalled, Timeout, Unreachable};
        let mut hosts = self.checks.hosts();
        if failure.is_some_and(|error| matches!(error.reason, Stalled | Timeout(_) | Unreachable)) {
            if hosts.silent.len() >= MAX_SILENT {
                hosts.silent.clear();
            }
            hosts.silent.insert(self.host.clone());
        } else {
            hosts.silent.remove(&self.host);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut hosts = self.checks.hosts();
        hosts.repositories.remove(&self.repository);
        hosts.busy_silent -= usize::from(self.is_silent);
        if let Some(count) = hosts.busy.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                hosts.busy.remove(&self.host);
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
        let served = withdraw_unverified(&delivery, &source, served).await?;
        write_suspended(&delivery, &name, &source, served.as_ref()).await?;
        answer_requests(&delivery, &source.uid);
        return Ok(Next::OnChange);
    }
    let check = delivery.checks.last().get(&source.uid).cloned();
    let urgent = delivery.checks.take_urgent(&source.uid);
    if !urgent && !source.is_due(check.as_ref()) {
        return Ok(wait_for_turn(&delivery, &source, check));
    }
    let address = Address::parse(&source.repository.spec.url);
    let turn = match &address {
        Ok(address) => match delivery.checks.enter(address) {
            Some(turn) => Some(turn),
            None => {
                if urgent {
                    delivery.checks.hurry(&source.uid);
                }
                return Ok(Next::After(HOST_BUSY));
            }
        },
        Err(_) => None,
    };
    if source.status().observed_generation != Some(source.generation) {
        write_reconciling(&delivery, &name, &source, served.as_ref()).await?;
    }
    delivery.checks.requests.ask(&source.uid);
    let begun = SystemTime::now();
    let fetched = match (address, turn) {
        (Ok(_), Some(turn)) => ask_remote(&delivery, &name, &source, turn).await,
        (Err(error), _) => Err(SourceFailure::lasting("SpecInvalid", error.to_string())),
        (Ok(_), None) => unreachable!("an address has a turn"),
    };
    let interval = Interval::since(begun);
    let result = judge(served.as_ref(), &fetched);
    delivery.counters.count_fetch(result, interval.ended.duration_since(begun).unwrap_or_default());
    if let (FetchResult::Moved, Ok(fetch)) = (result, &fetched) {
        let revision = git::format_revision(&fetch.reference, &fetch.commit);
        delivery.timeline.note_fetch(&source.uid, || Fetched { source: name.to_string(), revision, interval });
    }
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
        next: now + until_next(&source.uid, source.interval, Timestamp::now()),
        failures: 0,
    });
    let wait = check.next.saturating_duration_since(now);
    delivery.checks.last().insert(source.uid.clone(), check);
    Next::After(wait)
}

fn finish_check(delivery: &Delivery, source: &Source, old: Option<Check>, failed: bool) -> Duration {
    let failures = if failed { old.map_or(0, |check| check.failures).saturating_add(1) } else { 0 };
    let turn = until_next(&source.uid, source.interval, Timestamp::now());
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
    wait
}

async fn ask_remote(
    delivery: &Arc<Delivery>,
    name: &Name,
    source: &Source,
    turn: Turn<'_>,
) -> Result<Fetch, SourceFailure> {
    let spec = &source.repository.spec;
    let way = Way::load(delivery, name, spec).await?;
    git::fetch(delivery, &source.uid, spec, (&way, turn), source.origin.clone()).await
}

/// Looks at another revision of a source than the one that is followed. Its host is asked as often as ever at the same time.
pub async fn find_revision(
    delivery: &Delivery,
    name: &Name,
    (source_uid, spec): (&str, &GitRepositorySpec),
    named: &Named,
) -> Result<Fetch, SourceFailure> {
    let way = Way::load(delivery, name, spec).await?;
    let address =
        Address::parse(&spec.url).map_err(|error| SourceFailure::lasting("SpecInvalid", error.to_string()))?;
    let turn = delivery.checks.wait_to_enter(&address).await;
    let known = load_source_origin(&mut *delivery.store.tables().await.map_err(store_failed)?, source_uid).await;
    git::find(delivery, source_uid, spec, (&way, turn), (named, known.map_err(store_failed)?)).await
}

/// What is served was never verified, and is to be now: until that has been done nothing is served to whoever has nothing yet.
async fn withdraw_unverified(
    delivery: &Delivery,
    source: &Source,
    served: Option<Revision>,
) -> Result<Option<Revision>, StoreError> {
    let is_wanting = source.repository.spec.verify.is_some();
    let revision = match served {
        Some(served) if is_wanting && served.taken.verified.is_none() => served,
        served => return Ok(served),
    };
    tracing::warn!(
        source = source.uid,
        revision = revision_text(&revision),
        "an unverified revision is not served any more"
    );
    let uid = source.uid.clone();
    delivery.store.transact(move |tx| Box::pin(async move { withdraw_revision(tx, &uid).await })).await?;
    Ok(None)
}

fn judge(served: Option<&Revision>, fetched: &Result<Fetch, SourceFailure>) -> FetchResult {
    match fetched {
        Err(_) => FetchResult::Failed,
        Ok(fetch) if served.is_none_or(|old| differs(old, fetch)) => FetchResult::Moved,
        Ok(_) => FetchResult::Unchanged,
    }
}

/// Whether services have to look at what was fetched. By which keys it was verified is nothing to them.
fn differs(old: &Revision, new: &Fetch) -> bool {
    let reads = |submodules, lfs| (submodules, lfs);
    old.commit != new.commit
        || old.reference != new.reference
        || reads(old.taken.submodules, old.taken.lfs) != reads(new.taken.submodules, new.taken.lfs)
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
        Err(failure) => {
            let served = withdraw_unverified(delivery, source, served).await?;
            return write_failure(delivery, name, source, served.as_ref(), failure, now).await;
        }
    };
    let asked_again = source.is_unasked();
    let origin = (source.origin.as_ref() != Some(&fetch.origin)).then_some(fetch.origin);
    // The same revision may have been verified by other keys, which is written down and no news.
    let known = served.as_ref().filter(|_| !moved);
    let is_written = known.is_some_and(|served| served.taken == fetch.taken);
    let revision = if !is_written {
        let revision = Revision {
            source_uid: source.uid.clone(),
            reference: fetch.reference,
            commit: fetch.commit,
            fetched: known.map_or(now.as_second(), |served| served.fetched),
            taken: fetch.taken,
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
    let mut verdicts = Verdict::ready("Fetched", format!("serves {text}"));
    verdicts.extend(source.verified(Some(&revision), None));
    let status = GitRepositoryStatus {
        conditions: source.conditions(verdicts, now),
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

    /// What is said of signatures, where some are demanded.
    fn verified(&self, served: Option<&Revision>, failure: Option<&SourceFailure>) -> Option<Verdict> {
        const KIND: &str = "SourceVerified";
        let demanded = self.repository.spec.verify.as_ref()?;
        if let Some(failure) = failure.filter(|failure| failure.reason == verify_revisions::FAILED) {
            return Some(Verdict::new(KIND, Some(false), failure.reason, failure.message.clone()));
        }
        let mode = verify_revisions::mode(demanded.mode).as_str();
        Some(match served {
            Some(revision) => {
                let message = format!("{} was verified: {mode}", revision_text(revision));
                Verdict::new(KIND, Some(true), "Succeeded", message)
            }
            None => Verdict::new(KIND, None, "NotVerified", "nothing was verified yet"),
        })
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
            source_verification_mode: served
                .and_then(|revision| revision.taken.verified.as_deref())
                .and_then(|policy| policy.split(' ').next())
                .map(str::to_owned),
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
    let is_refused = failure.reason == verify_revisions::FAILED;
    let kept = match served {
        None if source.repository.spec.verify.is_some() => "nothing that was verified is there to serve".to_owned(),
        None => "nothing was fetched yet".to_owned(),
        Some(revision) if is_refused => format!("{}, the last verified, goes on being served", revision_text(revision)),
        Some(revision) => format!("{} goes on being served, unchecked since {}", revision_text(revision), since.0),
    };
    let message = format!("{}; {kept}", failure.message);
    let mut verdicts = if failure.lasting {
        Verdict::stalled(failure.reason, message)
    } else {
        vec![Verdict::new("Ready", Some(false), failure.reason, message)]
    };
    verdicts.extend(source.verified(served, Some(&failure)));
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
    let mut verdicts = Verdict::reconciling("Fetching", message);
    let verified = served.filter(|served| served.taken.verified.is_some());
    verdicts.extend(source.verified(verified, None));
    let status = GitRepositoryStatus {
        conditions: source.conditions(verdicts, Timestamp::now()),
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
    let mut verdicts = vec![Verdict::new("Ready", served.map(|_| true), "Suspended", message)];
    verdicts.extend(source.verified(served, None));
    let status = GitRepositoryStatus {
        conditions: source.conditions(verdicts, Timestamp::now()),
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

    fn address(host: &str, repository: usize) -> Address {
        Address::parse(&format!("https://{host}/{repository}")).unwrap()
    }

    #[test]
    fn a_host_is_asked_by_a_few_at_once() {
        let checks = Checks::default();
        let turns: Vec<_> = (0..PER_HOST).map(|n| checks.enter(&address("slow", n)).unwrap()).collect();
        assert!(checks.enter(&address("slow", 100)).is_none());
        assert!(checks.enter(&address("other", 100)).is_some());
        drop(turns);
        assert!(checks.enter(&address("slow", 100)).is_some());
    }

    #[test]
    fn a_repository_is_asked_by_one_at_a_time_however_many_sources_are_of_it() {
        let checks = Checks::default();
        let turn = checks.enter(&Address::parse("https://h/a.git").unwrap()).unwrap();
        for url in ["https://h/a", "https://H:443/a.git/"] {
            assert!(checks.enter(&Address::parse(url).unwrap()).is_none(), "{url}");
        }
        drop(turn);
        assert!(checks.enter(&Address::parse("https://h/a").unwrap()).is_some());
    }

    #[test]
    fn hosts_that_do_not_answer_are_asked_by_one_and_take_few_places() {
        let checks = Checks::default();
        let failure = |reason| GitError { what: "x", url: String::new(), reason, evidence: String::new() };
        let hosts: Vec<_> = (0..=SILENT).map(|n| format!("silent-{n}")).collect();
        for host in &hosts {
            checks.enter(&address(host, 0)).unwrap().end(Some(&failure(GitReason::Timeout(1))));
        }
        let turns: Vec<_> = hosts[..SILENT].iter().map(|host| checks.enter(&address(host, 0)).unwrap()).collect();
        assert!(checks.enter(&address(&hosts[0], 1)).is_none(), "one at a time");
        assert!(checks.enter(&address(&hosts[SILENT], 0)).is_none(), "the others' places are not theirs");
        assert!(checks.enter(&address("other", 0)).is_some());
        drop(turns);
        checks.enter(&address(&hosts[0], 0)).unwrap().end(Some(&failure(GitReason::NotFound)));
        let _one = checks.enter(&address(&hosts[0], 0)).unwrap();
        assert!(checks.enter(&address(&hosts[0], 1)).is_some(), "it answered");
    }
}
