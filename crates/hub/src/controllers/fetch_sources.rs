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

use farwater_api::{GitRepositorySpec, SourceStatus, git_repository::LocalReference, oci_repository::Verification};
use farwater_fleet::{
    conditions::{self, Verdict, whole_seconds},
    duration::{SOURCE_INTERVAL, SOURCE_TIMEOUT},
};
use farwater_sources::{Named, oci::cosign::Keys};
use farwater_store::{
    Connection, StoreError,
    delivery::{
        ChartRow, Revision, SourceOrigin, assignments_of_source, charts_of_source, delete_chart, delete_revision,
        load_revision, load_source_origin, save_chart, save_revision, save_source_origin, services_of_chart,
        wanted_charts,
    },
};
use farwater_telemetry::traces::Interval;
use jiff::Timestamp;
use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::Time};
use serde::Deserialize as _;

use super::{
    artifacts::{self, Credentials, Failed, Outcome},
    git::{self, Fetch, SourceFailure, Way},
    queue::Next,
    requests::Requests,
    resources::{self, Name},
    sources::{self, SourceName, SourceObject, SourceSpec},
    trace_deliveries::Fetched,
};
use crate::delivery::{Delivery, FetchResult};

const DEFAULT_INTERVAL: Duration = Duration::from_secs(120);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests to one host at the same time: hosts throttle, and a stuck one must not take all places.
const PER_HOST: usize = 8;
/// When a source whose host is busy comes again.
const HOST_BUSY: Duration = Duration::from_millis(250);
/// The reason of a failure of which nobody knows more than that no given key has signed.
const UNVERIFIED: &str = "VerificationFailed";
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
    object: SourceObject,
    uid: String,
    generation: i64,
    requested: Option<String>,
    interval: Duration,
    /// What was known of its repository.
    origin: Option<SourceOrigin>,
    /// Somebody wants a chart that was never looked for.
    wants_more: bool,
}

impl Source {
    fn status(&self) -> SourceStatus {
        self.object.any.status.clone()
    }

    /// Whether something of it is served: of charts, each is.
    fn is_served(&self) -> bool {
        self.object.any.status.revision.is_some() || matches!(self.object.spec, SourceSpec::Helm(_))
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
                    && self.is_served()
                    && !self.wants_more
                    && (self.requested.is_none() || status.last_handled_reconcile_at == self.requested);
                !settled || self.is_unasked()
            }
        }
    }
}

pub async fn fetch_source(delivery: Arc<Delivery>, name: SourceName) -> Result<Next, StoreError> {
    let Some(object) = sources::load(&delivery.store, &name).await? else { return Ok(Next::OnChange) };
    if object.metadata.deletion_timestamp.is_some() {
        answer_requests(&delivery, &object.uid);
        return Ok(Next::OnChange);
    }
    let (served, origin, charts) = {
        let mut tables = delivery.store.tables().await?;
        let served = load_revision(&mut tables, &object.uid).await?;
        (served, load_source_origin(&mut tables, &object.uid).await?, Charts::load(&mut tables, &object).await?)
    };
    let source = Source {
        uid: object.uid.clone(),
        origin,
        generation: object.metadata.generation.unwrap_or(0),
        requested: resources::requested_at(&object.metadata).map(str::to_owned),
        interval: SOURCE_INTERVAL.check(&object.any.interval).unwrap_or(DEFAULT_INTERVAL),
        wants_more: charts.wants_more(),
        object,
    };
    if source.object.any.suspend {
        delivery.checks.forget(&source.uid);
        write_suspended(&delivery, &source, served.as_ref()).await?;
        answer_requests(&delivery, &source.uid);
        return Ok(Next::OnChange);
    }
    let check = delivery.checks.last().get(&source.uid).cloned();
    let urgent = delivery.checks.take_urgent(&source.uid);
    if !urgent && !source.is_due(check.as_ref()) {
        return Ok(wait_for_turn(&delivery, &source, check));
    }
    let host = git::host(&source.object.any.url);
    let Some(_guard) = delivery.checks.enter(&host) else {
        if urgent {
            delivery.checks.hurry(&source.uid);
        }
        return Ok(Next::After(HOST_BUSY));
    };
    if source.status().observed_generation != Some(source.generation) {
        write_reconciling(&delivery, &source, served.as_ref()).await?;
    }
    delivery.checks.requests.ask(&source.uid);
    let begun = SystemTime::now();
    let fetched = ask_remote(&delivery, &source, served.as_ref(), charts).await;
    let interval = Interval::since(begun);
    let result = judge(served.as_ref(), &fetched);
    delivery.counters.count_fetch(result, interval.ended.duration_since(begun).unwrap_or_default());
    if let (FetchResult::Moved, Ok(Outcome { served: Some((reference, commit)), .. })) = (result, &fetched) {
        let revision = git::format_revision(reference, commit);
        delivery.timeline.note_fetch(&source.uid, || Fetched { source: name.to_string(), revision, interval });
    }
    let wait = finish_check(&delivery, &source, check, result == FetchResult::Failed);
    record(&delivery, &source, served, fetched).await?;
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

/// What of a repository of charts is wanted, and what was found.
#[derive(Default)]
struct Charts {
    wanted: Vec<(String, String)>,
    known: Vec<ChartRow>,
}

impl Charts {
    async fn load(tables: &mut Connection, source: &SourceObject) -> Result<Self, StoreError> {
        if !matches!(source.spec, SourceSpec::Helm(_)) {
            return Ok(Self::default());
        }
        let (wanted, known) = (wanted_charts(tables, &source.uid).await?, charts_of_source(tables, &source.uid).await?);
        Ok(Self { wanted, known })
    }

    fn wants_more(&self) -> bool {
        let is_known = |(chart, wanted): &(String, String)| {
            self.known.iter().any(|row| row.chart == *chart && row.wanted == *wanted)
        };
        !self.wanted.iter().all(is_known)
    }
}

async fn ask_remote(
    delivery: &Arc<Delivery>,
    source: &Source,
    served: Option<&Revision>,
    charts: Charts,
) -> Result<Outcome, Failed> {
    let timeout = SOURCE_TIMEOUT.check(&source.object.any.timeout).unwrap_or(DEFAULT_TIMEOUT);
    let (namespace, uid) = (source.object.namespace(), source.uid.as_str());
    let origin = source.origin.clone();
    match &source.object.spec {
        SourceSpec::Git(spec) => {
            // Each is a child process.
            let _place = delivery.mirrors.git_place().await;
            let SourceName::Resource(_, name) = &source.object.name else {
                return Err(SourceFailure::lasting("SpecInvalid", "only a resource states a Git repository").into());
            };
            let way = load_way(delivery, name, spec).await?;
            let fetch = git::fetch(delivery, uid, spec, way, origin).await?;
            Ok(outcome_of(fetch))
        }
        SourceSpec::Helm(spec) => {
            let with = load_credentials(delivery, namespace, spec.secret_ref.as_ref(), spec.cert_secret_ref.as_ref());
            let Charts { wanted, known } = charts;
            let is_link = source.object.is_link();
            let helm = artifacts::Helm { uid, spec, is_link, wanted, known, origin, timeout };
            Ok(artifacts::fetch_charts(&delivery.mirrors, helm, &with.await?).await?)
        }
        SourceSpec::Oci(spec) => {
            let keys = match &spec.verify {
                Some(verify) => Some(load_keys(delivery, namespace, verify).await),
                None => None,
            };
            let with = load_credentials(delivery, namespace, spec.secret_ref.as_ref(), spec.cert_secret_ref.as_ref());
            let oci = artifacts::Oci { uid, spec, served, origin, timeout, keys };
            match with.await {
                Ok(with) => artifacts::fetch_artifact(&delivery.mirrors, oci, &with).await,
                Err(failure) => Err(artifacts::not_asked(&delivery.mirrors, &oci, failure)),
            }
        }
    }
}

fn outcome_of(fetch: Fetch) -> Outcome {
    let Fetch { reference, commit, origin } = fetch;
    Outcome {
        served: Some((reference, commit)),
        origin,
        charts: Vec::new(),
        unwanted: Vec::new(),
        changed: false,
        verdicts: Vec::new(),
        failure: None,
    }
}

async fn load_credentials(
    delivery: &Delivery,
    namespace: &str,
    secret: Option<&LocalReference>,
    tls: Option<&LocalReference>,
) -> Result<Credentials, SourceFailure> {
    let load = async |reference: Option<&LocalReference>| match reference {
        Some(reference) => load_secret(delivery, &Name::new(namespace, &reference.name)).await.map(Some),
        None => Ok(None),
    };
    Ok(Credentials { secret: load(secret).await?, tls: load(tls).await? })
}

async fn load_keys(delivery: &Delivery, namespace: &str, verify: &Verification) -> Result<Keys, SourceFailure> {
    let data = load_secret(delivery, &Name::new(namespace, &verify.secret_ref.name)).await?;
    Keys::read(&data).map_err(|error| SourceFailure::lasting("SecretInvalid", error.to_string()))
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

fn judge(served: Option<&Revision>, fetched: &Result<Outcome, Failed>) -> FetchResult {
    let outcome = match fetched {
        Err(_) | Ok(Outcome { failure: Some(_), .. }) => return FetchResult::Failed,
        Ok(outcome) => outcome,
    };
    match is_moved(served, outcome) || !outcome.charts.is_empty() {
        true => FetchResult::Moved,
        false => FetchResult::Unchanged,
    }
}

/// Whether a source has another revision than before.
fn is_moved(served: Option<&Revision>, outcome: &Outcome) -> bool {
    outcome.served.as_ref().is_some_and(|(reference, commit)| {
        served.is_none_or(|old| old.commit != *commit || old.reference != *reference)
    })
}

/// Saves what moved, says how it went, and wakes the services that it concerns.
async fn record(
    delivery: &Delivery,
    source: &Source,
    served: Option<Revision>,
    fetched: Result<Outcome, Failed>,
) -> Result<(), StoreError> {
    let now = Timestamp::now();
    let outcome = match fetched {
        Ok(outcome) => outcome,
        Err(Failed { failure, withdraws }) => {
            let served = served.filter(|_| !withdraws);
            if withdraws {
                let uid = source.uid.clone();
                delivery.store.transact(move |tx| Box::pin(async move { delete_revision(tx, &uid).await })).await?;
                wake_services(delivery, &source.uid).await?;
            }
            return write_failure(delivery, source, served.as_ref(), failure, now).await;
        }
    };
    let (moved, asked_again) = (is_moved(served.as_ref(), &outcome), source.is_unasked() && !outcome.origin.unasked);
    let (changed, verdicts, failure) = (outcome.changed, outcome.verdicts.clone(), outcome.failure.clone());
    let charts = outcome.charts.clone();
    let revision = save_outcome(delivery, source, served, outcome, now).await?;
    for row in &charts {
        let services =
            services_of_chart(&mut *delivery.store.tables().await?, &source.uid, (&row.chart, &row.wanted)).await?;
        for (namespace, name) in services {
            delivery.services.add(Name { namespace, name });
        }
    }
    match failure {
        Some(failure) => write_failure(delivery, source, revision.as_ref(), failure, now).await?,
        None => write_ready(delivery, source, revision.as_ref(), verdicts, moved, now).await?,
    }
    // An index that moved concerns nobody by itself; its charts do.
    let concerns_all = moved && !matches!(source.object.spec, SourceSpec::Helm(_));
    if concerns_all || changed || asked_again {
        wake_services(delivery, &source.uid).await?;
    }
    Ok(())
}

async fn wake_services(delivery: &Delivery, source_uid: &str) -> Result<(), StoreError> {
    for row in assignments_of_source(&mut *delivery.store.tables().await?, source_uid).await? {
        delivery.services.add(Name { namespace: row.namespace, name: row.name });
    }
    Ok(())
}

async fn write_ready(
    delivery: &Delivery,
    source: &Source,
    revision: Option<&Revision>,
    more: Vec<Verdict>,
    moved: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let text = revision.map(revision_text);
    let mut verdicts = match &text {
        Some(text) => Verdict::ready("Fetched", format!("serves {text}")),
        None => Vec::new(),
    };
    verdicts.extend(more);
    let status = SourceStatus {
        conditions: source.conditions(verdicts, now),
        stale_since: None,
        ..source.settled_status(revision)
    };
    sources::write_status(&delivery.store, &source.object, &status).await?;
    if let Some(revision) = text.filter(|_| moved) {
        tracing::info!(source = %source.object.name, revision, "fetched");
    }
    Ok(())
}

/// Saves what differs from what is known, in one transaction; what is served then.
async fn save_outcome(
    delivery: &Delivery,
    source: &Source,
    served: Option<Revision>,
    outcome: Outcome,
    now: Timestamp,
) -> Result<Option<Revision>, StoreError> {
    let moved = is_moved(served.as_ref(), &outcome);
    let Outcome { served: found, origin, charts, unwanted, .. } = outcome;
    let origin = (source.origin.as_ref() != Some(&origin)).then_some(origin);
    let revision = match found.filter(|_| moved) {
        Some((reference, commit)) => {
            Some(Revision { source_uid: source.uid.clone(), reference, commit, fetched: now.as_second() })
        }
        None => served,
    };
    if !moved && origin.is_none() && charts.is_empty() && unwanted.is_empty() {
        return Ok(revision);
    }
    let (row, uid) = (revision.clone().filter(|_| moved), source.uid.clone());
    let saved = delivery.store.transact(move |tx| {
        Box::pin(async move {
            if let Some(origin) = &origin {
                save_source_origin(tx, origin).await?;
            }
            for chart in &charts {
                save_chart(tx, chart).await?;
            }
            for (chart, wanted) in &unwanted {
                delete_chart(tx, &uid, (chart, wanted)).await?;
            }
            match &row {
                Some(row) => save_revision(tx, row).await,
                None => Ok(()),
            }
        })
    });
    saved.await?;
    Ok(revision)
}

fn revision_text(revision: &Revision) -> String {
    git::format_revision(&revision.reference, &revision.commit)
}

impl Source {
    fn conditions(&self, verdicts: Vec<Verdict>, now: Timestamp) -> Vec<farwater_api::Condition> {
        conditions::resolve(&self.status().conditions, verdicts, self.generation, now)
    }

    /// The status of a source whose request was handled, but for its conditions.
    fn settled_status(&self, served: Option<&Revision>) -> SourceStatus {
        let time = served.and_then(|revision| Timestamp::from_second(revision.fetched).ok()).map(Time);
        SourceStatus {
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
    source: &Source,
    served: Option<&Revision>,
    failure: SourceFailure,
    now: Timestamp,
) -> Result<(), StoreError> {
    let since = source.status().stale_since.unwrap_or_else(|| whole_seconds(now));
    let kept = match (served, &source.object.spec) {
        (Some(revision), _) => {
            format!("{} goes on being served, unchecked since {}", revision_text(revision), since.0)
        }
        (None, SourceSpec::Helm(spec)) if spec.is_registry() => {
            format!("what was found goes on being served, unchecked since {}", since.0)
        }
        (None, _) => "nothing was fetched yet".to_owned(),
    };
    let message = format!("{}; {kept}", failure.message);
    let mut verdicts = if failure.lasting {
        Verdict::stalled(failure.reason, message)
    } else {
        vec![Verdict::new("Ready", Some(false), failure.reason, message)]
    };
    if failure.reason == UNVERIFIED {
        verdicts.push(Verdict::new("SourceVerified", Some(false), failure.reason, failure.message.clone()));
    }
    let status = SourceStatus {
        conditions: source.conditions(verdicts, now),
        stale_since: Some(since),
        ..source.settled_status(served)
    };
    let name = &source.object.name;
    tracing::warn!(source = %name, reason = failure.reason, error = failure.message, "a source can't be asked");
    sources::write_status(&delivery.store, &source.object, &status).await
}

async fn write_reconciling(delivery: &Delivery, source: &Source, served: Option<&Revision>) -> Result<(), StoreError> {
    let message = format!("asking {}", source.object.any.url);
    let status = SourceStatus {
        conditions: source.conditions(Verdict::reconciling("Fetching", message), Timestamp::now()),
        last_handled_reconcile_at: source.status().last_handled_reconcile_at,
        ..source.settled_status(served)
    };
    sources::write_status(&delivery.store, &source.object, &status).await
}

async fn write_suspended(delivery: &Delivery, source: &Source, served: Option<&Revision>) -> Result<(), StoreError> {
    let message = served.map_or_else(
        || "suspended; nothing was fetched yet".to_owned(),
        |revision| format!("suspended; {} goes on being served", revision_text(revision)),
    );
    let verdict = Verdict::new("Ready", served.map(|_| true), "Suspended", message);
    let status = SourceStatus {
        conditions: source.conditions(vec![verdict], Timestamp::now()),
        ..source.settled_status(served)
    };
    sources::write_status(&delivery.store, &source.object, &status).await
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
