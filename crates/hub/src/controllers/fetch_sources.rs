//! fetch_sources: remotes → revisions that are served.
//!
//! If a remote can't be reached, refuses the hub or lacks what the source follows, only the source's conditions change.
//! The revision that was fetched last stays in use, also after a restart, because revision and mirror are on the disk.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use farwater_api::{
    GitRepositorySpec, SourceStatus,
    git_repository::{GitReference, LocalReference},
    oci_repository::Verification,
    service_sources::read_git_link,
};
use farwater_fleet::{
    conditions::{self, Verdict, whole_seconds},
    duration::{SOURCE_INTERVAL, SOURCE_TIMEOUT, show},
    promotion::Promotable,
    webhooks::announcements::Found,
};
use farwater_sources::{Named, Reference, ReferenceError, oci::cosign::Keys};
use farwater_store::{
    Connection, StoreError,
    delivery::{
        ChartRow, Revision, SourceOrigin, Taken, assignments_of_source, charts_of_source, delete_chart, load_revision,
        load_source_origin, move_revision, save_chart, save_revision, save_source_origin, services_of_chart,
        wanted_charts, withdraw_revision,
    },
};
use farwater_telemetry::traces::Interval;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    advance_promotions,
    announced::Announced,
    artifacts::{self, Credentials, Outcome},
    git::{self, Fetch, SourceFailure},
    queue::Next,
    requests::Requests,
    resources::{self, Name},
    source_access::{DEFAULT_TIMEOUT, Way, load_secret, shared_secret, store_failed},
    sources::{self, SourceName, SourceObject, SourceSpec},
    trace_deliveries::Fetched,
    turns::{Asks, Turn, Turns},
};
use crate::delivery::{Delivery, FetchResult};

const DEFAULT_INTERVAL: Duration = Duration::from_secs(120);
/// Reason of a failure if no more is known than that none of the given keys has signed the revision.
pub const UNVERIFIED: &str = "VerificationFailed";
/// First wait after a failure; doubles up to the interval.
const MIN_RETRY: Duration = Duration::from_secs(2);

/// When each source was fetched last. Lost at a restart, which only means an earlier fetch.
#[derive(Default)]
pub struct Checks {
    last: Mutex<HashMap<String, Check>>,
    urgent: Mutex<HashSet<String>>,
    /// By uid: why a source that no resource states can't be fetched. It has no status of its own.
    problems: Mutex<HashMap<String, String>>,
    /// Requests of services to fetch at once.
    pub requests: Requests,
    pub turns: Turns,
    /// Deliveries of webhooks.
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

    /// Why a repository that a chart or a kustomization names can't be fetched; None: no problem is known.
    pub fn problem(&self, uid: &str) -> Option<String> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    /// Returns true if no problem was known before.
    fn note_problem(&self, uid: &str, problem: String) -> bool {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), problem).is_none()
    }

    fn forget_problem(&self, uid: &str) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Makes the next reconcile of a source fetch it, even if it is not due.
    pub fn hurry(&self, uid: &str) {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
    }

    fn take_urgent(&self, uid: &str) -> bool {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }
}

/// Time until the source is due next. Due times are an interval apart, at an offset of the source's own, so that a
/// thousand sources created together are not fetched together.
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
    /// The origin of its repository before this fetch; None: it was never fetched.
    origin: Option<SourceOrigin>,
    /// A service needs a chart that was never looked for.
    wants_more: bool,
    /// The commit that a pipeline has promoted to it, or why there is none. None: it follows no pipeline.
    promoted: Option<Result<Promotable, String>>,
}

impl Source {
    fn status(&self) -> SourceStatus {
        self.object.any.status.clone()
    }

    /// Whether something of it is served. A Helm repository always counts as served: its charts are served one by one.
    fn is_served(&self) -> bool {
        self.object.any.status.revision.is_some() || matches!(self.object.spec, SourceSpec::Helm(_))
    }

    /// Whether signatures are required, and the served revision was never verified.
    fn is_doubtful(&self, served: Option<&Revision>) -> bool {
        self.is_signed() && served.is_some_and(|served| served.taken.verified.is_none())
    }

    fn is_signed(&self) -> bool {
        match &self.object.spec {
            SourceSpec::Git(spec) => spec.verify.is_some(),
            SourceSpec::Oci(spec) => spec.verify.is_some(),
            SourceSpec::Helm(_) | SourceSpec::File(_) | SourceSpec::BuiltIn => false,
        }
    }

    /// Whether its rows come from a restored backup, so that agents may have seen something newer.
    fn is_unasked(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.unasked)
    }

    /// The result of a fetch as evidence about webhooks. The first fetch after a change of the spec is no evidence.
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

    /// Whether it has to be fetched now. A request that the status acknowledges was handled before a restart and is no
    /// reason.
    fn is_due(&self, check: Option<&Check>) -> bool {
        let status = self.status();
        match check {
            Some(check) => {
                check.generation != self.generation
                    || check.requested != self.requested
                    || check.next <= tokio::time::Instant::now()
            }
            None => {
                // After a restart, a source that was fetched lately waits until it is due, so that not all are fetched
                // at once.
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
    if object.metadata.deletion_timestamp.is_some() || matches!(object.spec, SourceSpec::BuiltIn) {
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
        requested: farwater_api::requested_at(&object.metadata).map(str::to_owned),
        interval: SOURCE_INTERVAL.check(&object.any.interval).unwrap_or(DEFAULT_INTERVAL),
        wants_more: charts.wants_more(),
        promoted: find_promoted(&delivery, &object).await?,
        object,
    };

    if source.object.any.suspend {
        delivery.checks.forget(&source.uid);
        let served = withdraw_unverified(&delivery, &source, served).await?;
        write_suspended(&delivery, &source, served.as_ref()).await?;
        answer_requests(&delivery, &source.uid);
        return Ok(Next::OnChange);
    }

    if let Some(Err(why)) = &source.promoted {
        delivery.checks.forget(&source.uid);
        let served = withdraw_unverified(&delivery, &source, served).await?;
        write_unpromoted(&delivery, &source, served.as_ref(), why).await?;
        answer_requests(&delivery, &source.uid);
        return Ok(Next::OnChange);
    }

    let check = delivery.checks.last().get(&source.uid).cloned();
    let announced = &delivery.checks.announced;
    if check.as_ref().is_some_and(|check| check.generation != source.generation) {
        // Webhooks were proven for another repository or reference.
        announced.forget(&source.uid);
    }
    let urgent = delivery.checks.take_urgent(&source.uid);
    let is_announced = announced.begin(&source.uid);
    if !urgent && !is_announced && !source.is_due(check.as_ref()) {
        return Ok(wait_for_turn(&delivery, &source, check));
    }

    let turn = match delivery.checks.turns.enter(&source.object.any.url, Asks::Repository) {
        Ok(turn) => turn,
        Err(wait) => {
            if urgent {
                delivery.checks.hurry(&source.uid);
            }
            if is_announced {
                announced.put_back(&source.uid);
            }
            return Ok(Next::After(wait));
        }
    };

    if source.status().observed_generation != Some(source.generation) {
        write_reconciling(&delivery, &source, served.as_ref()).await?;
    }

    delivery.checks.requests.ask(&source.uid);
    let begun = SystemTime::now();
    let fetched = ask_remote(&delivery, &source, served.as_ref(), charts, turn).await;
    let interval = Interval::since(begun);

    let result = judge(served.as_ref(), &fetched);
    delivery.counters.count_fetch(result, interval.ended.duration_since(begun).unwrap_or_default());
    if let (FetchResult::Moved, Ok(Outcome { served: Some((reference, commit)), .. })) = (result, &fetched) {
        let revision = git::format_revision(reference, commit);
        delivery.timeline.note_fetch(&source.uid, || Fetched { source: name.to_string(), revision, interval });
    }

    announced.finish(&source.uid, is_announced, source.found(served.as_ref(), result));
    let wait = finish_check(&delivery, &source, check, result == FetchResult::Failed);

    if !record(&delivery, &source, served, fetched).await? {
        // The source was changed meanwhile. That change requeues it.
        return Ok(Next::OnChange);
    }

    for service in delivery.checks.requests.answer(&source.uid) {
        delivery.services.add(service);
    }
    Ok(Next::After(wait))
}

/// Answers all requests of a source that is not fetched any more.
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

/// Due times are further apart while webhooks announce pushes.
fn until_turn(delivery: &Delivery, source: &Source) -> Duration {
    let (interval, _) = delivery.checks.announced.stretch(&source.uid, source.interval);
    until_next(&source.uid, interval, Timestamp::now())
}

/// Until the source is due, or until a webhook's delivery lets it be fetched, whichever comes first.
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

/// Charts of a repository that services want, and those that were found.
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
    turn: Turn<'_>,
) -> Result<Outcome, SourceFailure> {
    let timeout = SOURCE_TIMEOUT.check(&source.object.any.timeout).unwrap_or(DEFAULT_TIMEOUT);
    let (namespace, uid, url) = (source.object.namespace(), source.uid.as_str(), source.object.any.url.as_str());
    let origin = source.origin.clone();
    let asked = match &source.object.spec {
        SourceSpec::Git(spec) => {
            let reference = match (&source.object.name, &source.promoted) {
                // Only the promoted commit, not the branch's current one.
                (_, Some(Ok(promoted))) => {
                    let commit = Some(promoted.commit.clone());
                    Reference::parse(Some(&GitReference { commit, ..GitReference::default() }))
                }
                (SourceName::Resource(..), _) => Reference::parse(spec.r#ref.as_ref()),
                (SourceName::Link { url, .. }, _) => Reference::of_base(read_git_link(url).unwrap_or_default().1),
            };
            let reference = reference.map_err(|error| SourceFailure::lasting("SpecInvalid", error.to_string()))?;
            let mut way = Way::load(delivery, namespace, spec).await?;
            way.is_public = source.object.is_link() && !source.object.is_lent;
            let known = origin.clone();
            let mut outcome =
                git::fetch(delivery, uid, spec, &reference, (&way, turn), origin).await.map(outcome_of)?;
            if let Some(Ok(promoted)) = &source.promoted {
                outcome.taken.configuration.clone_from(&promoted.configuration);
            }
            // A service that needs a base of a kustomization has no paths in that repository.
            if !source.object.is_link() {
                outcome.differs = find_changes(delivery, served, known.as_ref(), &outcome).await;
            }
            return Ok(outcome);
        }
        SourceSpec::Helm(spec) => {
            let secrets = (spec.secret_ref.as_ref(), spec.cert_secret_ref.as_ref());
            let with = load_credentials(delivery, namespace, url, secrets).await?;
            let Charts { wanted, known } = charts;
            let is_link = source.object.is_link();
            let helm = artifacts::Helm { uid, spec, is_link, wanted, known, origin, timeout };
            artifacts::fetch_charts(&delivery.mirrors, helm, &with).await
        }
        SourceSpec::BuiltIn => return Err(SourceFailure::lasting("BuiltIn", "there is nothing to fetch".to_owned())),
        SourceSpec::File(address) => artifacts::fetch_file(&delivery.mirrors, uid, address, served, timeout).await,
        SourceSpec::Oci(spec) => {
            let keys = match &spec.verify {
                Some(verify) => Some(load_keys(delivery, namespace, verify).await?),
                None => None,
            };
            let secrets = (spec.secret_ref.as_ref(), spec.cert_secret_ref.as_ref());
            let with = load_credentials(delivery, namespace, url, secrets).await?;
            let oci = artifacts::Oci { uid, spec, served, timeout, keys };
            artifacts::fetch_artifact(&delivery.mirrors, oci, &with).await
        }
    };

    let failure = match &asked {
        Ok(outcome) => outcome.failure.as_ref(),
        Err(failure) => Some(failure),
    };
    turn.end(failure.map(|failure| failure.reason));
    asked
}

/// Paths in which a commit differs from the served one. None: unknown, or more than files differs.
async fn find_changes(
    delivery: &Delivery,
    served: Option<&Revision>,
    known: Option<&SourceOrigin>,
    outcome: &Outcome,
) -> Option<Vec<String>> {
    let (served, (reference, commit)) = (served?, outcome.served.as_ref()?);
    // A commit's own files do not show what differs in submodules and LFS files.
    let is_plain = |taken: &Taken| !taken.submodules && !taken.lfs;
    let is_plain = is_plain(&served.taken) && is_plain(&outcome.taken);
    let is_plain = is_plain && served.taken.configuration == outcome.taken.configuration;
    let is_same_history = known?.root == outcome.origin.root;
    if !is_plain || !is_same_history || served.reference != *reference || served.commit == *commit {
        return None;
    }
    git::find_changes(&delivery.mirrors, &served.source_uid, &served.commit, commit).await
}

fn outcome_of(fetch: Fetch) -> Outcome {
    let Fetch { reference, commit, origin, taken } = fetch;
    Outcome {
        served: Some((reference, commit)),
        taken,
        origin,
        differs: None,
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
    url: &str,
    (secret, tls): (Option<&LocalReference>, Option<&LocalReference>),
) -> Result<Credentials, SourceFailure> {
    let load = async |reference: Option<&LocalReference>| match reference {
        Some(reference) => load_secret(delivery, &Name::new(namespace, &reference.name)).await.map(Some),
        None => Ok(None),
    };
    let secret = match secret {
        Some(_) => load(secret).await?,
        None => shared_secret(delivery, namespace, url).await?,
    };
    Ok(Credentials { secret, tls: load(tls).await? })
}

async fn load_keys(delivery: &Delivery, namespace: &str, verify: &Verification) -> Result<Keys, SourceFailure> {
    let data = load_secret(delivery, &Name::new(namespace, &verify.secret_ref.name)).await?;
    Keys::read(&data).map_err(|error| SourceFailure::lasting("SecretInvalid", error.to_string()))
}

/// Finds another revision of a source than the one that it follows, within the limits on requests to its host.
pub async fn find_revision(
    delivery: &Delivery,
    name: &Name,
    (source_uid, spec): (&str, &GitRepositorySpec),
    named: &Named,
) -> Result<Fetch, SourceFailure> {
    let way = Way::load(delivery, &name.namespace, spec).await?;
    let turn = delivery.checks.turns.wait_to_enter(&spec.url, Asks::Repository, way.timeout).await?;
    let known = load_source_origin(&mut *delivery.store.tables().await.map_err(store_failed)?, source_uid).await;
    git::find(delivery, source_uid, spec, (&way, turn), (named, known.map_err(store_failed)?)).await
}

/// Withdraws a revision that was never verified if signatures are required now. Services that have nothing assigned get
/// nothing until a revision is verified.
async fn withdraw_unverified(
    delivery: &Delivery,
    source: &Source,
    served: Option<Revision>,
) -> Result<Option<Revision>, StoreError> {
    if !source.is_doubtful(served.as_ref()) {
        return Ok(served);
    }
    tracing::warn!(source = %source.object.name, "a revision that was never verified is no longer served");
    let uid = source.uid.clone();
    delivery.store.transact(move |tx| Box::pin(async move { withdraw_revision(tx, &uid).await })).await?;
    wake_services(delivery, &source.uid).await?;
    Ok(None)
}

fn judge(served: Option<&Revision>, fetched: &Result<Outcome, SourceFailure>) -> FetchResult {
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
        served.is_none_or(|old| {
            let (was, now) = (&old.taken, &outcome.taken);
            // Services do not depend on which keys have verified a revision.
            old.commit != *commit
                || old.reference != *reference
                || (was.submodules, was.lfs, was.artifact) != (now.submodules, now.lfs, now.artifact)
                || was.configuration != now.configuration
        })
    })
}

/// Saves what moved, writes the status, and requeues the services concerned. False: the source was changed since it was
/// read (e.g. suspended), so nothing of this fetch is saved.
async fn record(
    delivery: &Delivery,
    source: &Source,
    served: Option<Revision>,
    fetched: Result<Outcome, SourceFailure>,
) -> Result<bool, StoreError> {
    let now = Timestamp::now();

    let outcome = match fetched {
        Ok(outcome) => outcome,
        Err(failure) => {
            let served = withdraw_unverified(delivery, source, served).await?;
            return write_failure(delivery, source, served.as_ref(), failure, now).await.map(|()| true);
        }
    };

    let (moved, asked_again) = (is_moved(served.as_ref(), &outcome), source.is_unasked() && !outcome.origin.unasked);
    let (changed, verdicts, failure) = (outcome.changed, outcome.verdicts.clone(), outcome.failure.clone());
    let charts = outcome.charts.clone();

    let Some((revision, concerned)) = save_outcome(delivery, source, served, outcome, now).await? else {
        return Ok(false);
    };

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

    // A new index concerns no service by itself; its charts do.
    let concerns_all = moved && concerned.is_none() && !matches!(source.object.spec, SourceSpec::Helm(_));
    if concerns_all || changed || asked_again {
        wake_services(delivery, &source.uid).await?;
    }

    for (namespace, name) in concerned.into_iter().flatten() {
        delivery.services.add(Name { namespace, name });
    }
    Ok(true)
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
    let said = |text: &String| match delivery.checks.announced.stretch(&source.uid, source.interval) {
        (interval, true) => {
            format!("serves {text}; webhooks announce pushes, so it is fetched only every {}", show(interval))
        }
        (_, false) => format!("serves {text}"),
    };
    let mut verdicts = text.as_ref().map(|text| Verdict::ready("Fetched", said(text))).unwrap_or_default();
    verdicts.extend(more);
    verdicts.extend(source.verified(revision, None));
    delivery.checks.forget_problem(&source.uid);
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

/// The served revision, and the services that a move concerns; None: all services of the source.
type Saved = (Option<Revision>, Option<Vec<(String, String)>>);

/// Saves what differs from what is known, in one transaction. None: the source was changed since it was read.
async fn save_outcome(
    delivery: &Delivery,
    source: &Source,
    served: Option<Revision>,
    outcome: Outcome,
    now: Timestamp,
) -> Result<Option<Saved>, StoreError> {
    let moved = is_moved(served.as_ref(), &outcome);
    let Outcome { served: found, taken, origin, differs, charts, unwanted, .. } = outcome;
    let origin = (source.origin.as_ref() != Some(&origin)).then_some(origin);
    // Other keys may have verified the same revision: that is saved, and moves nothing.
    let is_written = !moved && served.as_ref().is_none_or(|served| served.taken == taken);
    let fetched = served.as_ref().filter(|_| !moved).map_or(now.as_second(), |served| served.fetched);
    let revision = match found {
        Some((reference, commit)) if !is_written => {
            Some(Revision { source_uid: source.uid.clone(), reference, commit, fetched, taken })
        }
        _ => served,
    };
    if is_written && origin.is_none() && charts.is_empty() && unwanted.is_empty() {
        return Ok(Some((revision, None)));
    }

    let differs = if moved { differs } else { Some(Vec::new()) };
    let (row, uid) = (revision.clone().filter(|_| !is_written), source.uid.clone());
    let (key, generation) = (source.object.name.key(), source.object.metadata.generation);

    let saved = delivery.store.transact(move |tx| {
        Box::pin(async move {
            if let Some(key) = &key
                && !resources::is_current(tx, key, (&uid, generation)).await?
            {
                return Ok(None);
            }
            if let Some(origin) = &origin {
                save_source_origin(tx, origin).await?;
            }
            for chart in &charts {
                save_chart(tx, chart).await?;
            }
            for (chart, wanted) in &unwanted {
                delete_chart(tx, &uid, (chart, wanted)).await?;
            }
            let concerned = match (&row, &differs) {
                (Some(row), Some(differs)) => Some(move_revision(tx, row, differs).await?),
                (Some(row), None) => save_revision(tx, row).await.map(|()| None)?,
                (None, _) => None,
            };
            Ok(Some((revision, concerned)))
        })
    });
    saved.await
}

fn revision_text(revision: &Revision) -> String {
    git::format_revision(&revision.reference, &revision.commit)
}

impl Source {
    fn conditions(&self, verdicts: Vec<Verdict>, now: Timestamp) -> Vec<farwater_api::Condition> {
        conditions::resolve(&self.status().conditions, verdicts, self.generation, now)
    }

    /// Condition about signatures; None: no signatures are required.
    fn verified(&self, served: Option<&Revision>, failure: Option<&SourceFailure>) -> Option<Verdict> {
        const KIND: &str = "SourceVerified";
        if !self.is_signed() {
            return None;
        }
        if let Some(failure) = failure.filter(|failure| failure.reason == UNVERIFIED) {
            return Some(Verdict::new(KIND, Some(false), failure.reason, failure.message.clone()));
        }
        let by = served.and_then(|revision| Some((revision, revision.taken.verified.as_deref()?.split(' ').next()?)));
        Some(match by {
            Some((revision, by)) => {
                let message = format!("{} was verified: {by}", revision_text(revision));
                Verdict::new(KIND, Some(true), "Succeeded", message)
            }
            None => Verdict::new(KIND, None, "NotVerified", "nothing was verified yet"),
        })
    }

    /// Status of a source whose request was handled, without its conditions.
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
    let is_refused = failure.reason == UNVERIFIED;
    let kept = match (served, &source.object.spec) {
        (Some(revision), _) if is_refused => {
            format!("{}, the last verified, stays in use", revision_text(revision))
        }
        (Some(revision), _) => {
            format!("{} stays in use, unchecked since {}", revision_text(revision), since.0)
        }
        (None, SourceSpec::Helm(spec)) if spec.is_registry() => {
            format!("the last revision stays in use, unchecked since {}", since.0)
        }
        (None, _) if source.is_signed() => "nothing that was verified is there to serve".to_owned(),
        (None, _) => "nothing was fetched yet".to_owned(),
    };

    let message = format!("{}; {kept}", failure.message);
    let mut verdicts = if failure.lasting {
        Verdict::stalled(failure.reason, message)
    } else {
        vec![Verdict::new("Ready", Some(false), failure.reason, message)]
    };
    verdicts.extend(source.verified(served, Some(&failure)));

    let status = SourceStatus {
        conditions: source.conditions(verdicts, now),
        stale_since: Some(since),
        ..source.settled_status(served)
    };

    let name = &source.object.name;
    tracing::warn!(source = %name, reason = failure.reason, error = failure.message, "a source can't be asked");
    if source.object.is_link() {
        // Requeue only once per problem: a requeued service requests this fetch again, and then reads the problem
        // itself.
        if delivery.checks.note_problem(&source.uid, failure.message) {
            wake_services(delivery, &source.uid).await?;
        }
        return Ok(());
    }
    sources::write_status(&delivery.store, &source.object, &status).await
}

async fn write_reconciling(delivery: &Delivery, source: &Source, served: Option<&Revision>) -> Result<(), StoreError> {
    let message = format!("asking {}", source.object.any.url);
    let mut verdicts = Verdict::reconciling("Fetching", message);
    verdicts.extend(source.verified(served, None));
    let status = SourceStatus {
        conditions: source.conditions(verdicts, Timestamp::now()),
        last_handled_reconcile_at: source.status().last_handled_reconcile_at,
        ..source.settled_status(served)
    };
    sources::write_status(&delivery.store, &source.object, &status).await
}

/// The commit that a pipeline has promoted to a source that follows one. None: it follows no pipeline.
async fn find_promoted(
    delivery: &Delivery,
    object: &SourceObject,
) -> Result<Option<Result<Promotable, String>>, StoreError> {
    let (SourceSpec::Git(spec), SourceName::Resource(_, name)) = (&object.spec, &object.name) else { return Ok(None) };
    // A pipeline beside another field is no valid reference, and is reported as such.
    match Reference::parse(spec.r#ref.as_ref()) {
        Err(ReferenceError::Pipeline(pipeline)) => {
            advance_promotions::find_promoted(delivery, name, &pipeline).await.map(Some)
        }
        _ => Ok(None),
    }
}

async fn write_unpromoted(
    delivery: &Delivery,
    source: &Source,
    served: Option<&Revision>,
    why: &str,
) -> Result<(), StoreError> {
    let message = match served {
        Some(revision) => format!("{why}; {} stays in use", revision_text(revision)),
        None => format!("{why}; nothing is served"),
    };
    let mut verdicts = vec![Verdict::new("Ready", Some(served.is_some()), "NotPromoted", message)];
    verdicts.extend(source.verified(served, None));
    let status =
        SourceStatus { conditions: source.conditions(verdicts, Timestamp::now()), ..source.settled_status(served) };
    sources::write_status(&delivery.store, &source.object, &status).await
}

async fn write_suspended(delivery: &Delivery, source: &Source, served: Option<&Revision>) -> Result<(), StoreError> {
    let message = served.map_or_else(
        || "suspended; nothing was fetched yet".to_owned(),
        |revision| format!("suspended; {} stays in use", revision_text(revision)),
    );
    let mut verdicts = vec![Verdict::new("Ready", served.map(|_| true), "Suspended", message)];
    verdicts.extend(source.verified(served, None));
    let status =
        SourceStatus { conditions: source.conditions(verdicts, Timestamp::now()), ..source.settled_status(served) };
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
}
