//! fetch_sources: remotes → revisions that are served.
//!
//! If a remote can't be reached, refuses the hub or lacks what the source follows, only the source's conditions change.
//! The revision that was fetched last stays in use, also after a restart, because revision and mirror are on the disk.

mod remote;
mod save;
mod status;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use farwater_api::{GitRepositorySpec, SourceStatus};
use farwater_fleet::{duration::SOURCE_INTERVAL, promotion::Promotable, webhooks::announcements::Found};
use farwater_sources::Named;
use farwater_store::{
    StoreError,
    delivery::{Revision, SourceOrigin, load_revision, load_source_origin},
};
use farwater_telemetry::traces::Interval;
use jiff::Timestamp;

use crate::memory::checks::{Check, until_next};
use crate::sources::{
    self, SourceObject, SourceSpec,
    access::{Way, store_failed},
    artifacts::Outcome,
    git::{self, Fetch},
};
use crate::{
    errors::SourceFailure,
    memory::{
        counters::FetchResult,
        timeline::Fetched,
        turns::{Asks, Turn},
    },
    queue::Next,
    replica::Replica,
    resources::{Name, SourceName},
};
use remote::{Charts, ask_remote};
use save::{judge, record, withdraw_unverified};
use status::{find_promoted, write_reconciling, write_suspended, write_unpromoted};

const DEFAULT_INTERVAL: Duration = Duration::from_secs(120);

/// Reason of a failure if no more is known than that none of the given keys has signed the revision.
pub const UNVERIFIED: &str = "VerificationFailed";

/// First wait after a failure; doubles up to the interval.
const MIN_RETRY: Duration = Duration::from_secs(2);

pub(super) struct Source {
    pub(super) object: SourceObject,
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) requested: Option<String>,
    pub(super) interval: Duration,
    /// The origin of its repository before this fetch; None: it was never fetched.
    pub(super) origin: Option<SourceOrigin>,
    /// A service needs a chart that was never looked for.
    pub(super) wants_more: bool,
    /// The commit that a pipeline has promoted to it, or why there is none. None: it follows no pipeline.
    pub(super) promoted: Option<Result<Promotable, String>>,
}

impl Source {
    pub(super) fn status(&self) -> SourceStatus {
        self.object.any.status.clone()
    }

    /// Whether something of it is served. A Helm repository always counts as served: its charts are served one by one.
    fn is_served(&self) -> bool {
        self.object.any.status.revision.is_some() || matches!(self.object.spec, SourceSpec::Helm(_))
    }

    /// Whether signatures are required, and the served revision was never verified.
    pub(super) fn is_doubtful(&self, served: Option<&Revision>) -> bool {
        self.is_signed() && served.is_some_and(|served| served.taken.verified.is_none())
    }

    pub(super) fn is_signed(&self) -> bool {
        match &self.object.spec {
            SourceSpec::Git(spec) => spec.verify.is_some(),
            SourceSpec::Oci(spec) => spec.verify.is_some(),
            SourceSpec::Helm(_) | SourceSpec::File(_) | SourceSpec::BuiltIn => false,
        }
    }

    /// Whether its rows come from a restored backup, so that agents may have seen something newer.
    pub(super) fn is_unasked(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.unasked)
    }

    /// The result of a fetch as evidence about webhooks. The first fetch after a change of the spec is no evidence.
    pub(super) fn found(&self, served: Option<&Revision>, result: FetchResult) -> Found {
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

pub async fn fetch_source(replica: Arc<Replica>, name: SourceName) -> Result<Next, StoreError> {
    let Some(object) = sources::load(&replica.store, &name).await? else {
        return Ok(Next::OnChange);
    };
    if object.metadata.deletion_timestamp.is_some() || matches!(object.spec, SourceSpec::BuiltIn) {
        answer_requests(&replica, &object.uid);
        return Ok(Next::OnChange);
    }

    let (source, served, charts) = load_source(&replica, object).await?;
    let checks = &replica.memory.checks;
    if source.object.any.suspend || matches!(source.promoted, Some(Err(_))) {
        stop_fetching(&replica, &source, served).await?;
        return Ok(Next::OnChange);
    }

    let check = checks.last().get(&source.uid).cloned();
    if check
        .as_ref()
        .is_some_and(|check| check.generation != source.generation)
    {
        // Webhooks were proven for another repository or reference.
        checks.announced.forget(&source.uid);
    }
    let urgent = checks.take_urgent(&source.uid);
    let is_announced = checks.announced.begin(&source.uid);
    if !urgent && !is_announced && !source.is_due(check.as_ref()) {
        return Ok(wait_for_turn(&replica, &source, check));
    }
    let turn = match checks.turns.enter(&source.object.any.url, Asks::Repository) {
        Ok(turn) => turn,
        Err(wait) => {
            if urgent {
                checks.hurry(&source.uid);
            }
            if is_announced {
                checks.announced.put_back(&source.uid);
            }
            return Ok(Next::After(wait));
        }
    };

    if source.status().observed_generation != Some(source.generation) {
        write_reconciling(&replica, &source, served.as_ref()).await?;
    }
    checks.requests.ask(&source.uid);
    let (result, fetched) = fetch_now(&replica, &source, served.as_ref(), charts, turn).await;
    let found = source.found(served.as_ref(), result);
    checks.announced.finish(&source.uid, is_announced, found);
    let wait = finish_check(&replica, &source, check, result == FetchResult::Failed);

    if !record(&replica, &source, served, fetched).await? {
        // The source was changed meanwhile. That change requeues it.
        return Ok(Next::OnChange);
    }
    replica.wake_after_request(checks.requests.answer(&source.uid));
    Ok(Next::After(wait))
}

/// Loads everything that decides about a fetch: the source, its served revision, and the charts that services want.
async fn load_source(
    replica: &Replica,
    object: SourceObject,
) -> Result<(Source, Option<Revision>, Charts), StoreError> {
    let (served, origin, charts) = {
        let mut tables = replica.store.tables().await?;
        let served = load_revision(&mut tables, &object.uid).await?;
        let origin = load_source_origin(&mut tables, &object.uid).await?;
        (served, origin, Charts::load(&mut tables, &object).await?)
    };
    let source = Source {
        uid: object.uid.clone(),
        origin,
        generation: object.metadata.generation.unwrap_or(0),
        requested: farwater_api::requested_at(&object.metadata).map(str::to_owned),
        interval: SOURCE_INTERVAL.check(&object.any.interval).unwrap_or(DEFAULT_INTERVAL),
        wants_more: charts.wants_more(),
        promoted: find_promoted(replica, &object).await?,
        object,
    };
    Ok((source, served, charts))
}

/// Writes why a source is not fetched: it is suspended, or its pipeline has promoted nothing to it.
async fn stop_fetching(replica: &Replica, source: &Source, served: Option<Revision>) -> Result<(), StoreError> {
    replica.memory.checks.forget(&source.uid);
    let served = withdraw_unverified(replica, source, served).await?;
    match &source.promoted {
        Some(Err(why)) if !source.object.any.suspend => {
            write_unpromoted(replica, source, served.as_ref(), why).await?;
        }
        _ => write_suspended(replica, source, served.as_ref()).await?,
    }
    answer_requests(replica, &source.uid);
    Ok(())
}

/// Fetches a source, counts the result, and notes the interval of a move for the timeline.
async fn fetch_now(
    replica: &Arc<Replica>,
    source: &Source,
    served: Option<&Revision>,
    charts: Charts,
    turn: Turn<'_>,
) -> (FetchResult, Result<Outcome, SourceFailure>) {
    let begun = SystemTime::now();
    let fetched = ask_remote(replica, source, served, charts, turn).await;
    let interval = Interval::since(begun);

    let result = judge(served, &fetched);
    let took = interval.ended.duration_since(begun).unwrap_or_default();
    replica.memory.counters.count_fetch(result, took);
    if result == FetchResult::Moved
        && let Ok(outcome) = &fetched
        && let Some((reference, commit)) = &outcome.served
    {
        let revision = git::format_revision(reference, commit);
        replica.memory.timeline.note_fetch(&source.uid, || Fetched {
            source: source.object.name.to_string(),
            revision,
            interval,
        });
    }
    (result, fetched)
}

/// Answers all requests of a source that is not fetched any more.
fn answer_requests(replica: &Replica, uid: &str) {
    replica.memory.checks.requests.ask(uid);
    replica.wake_after_request(replica.memory.checks.requests.answer(uid));
}

fn wait_for_turn(replica: &Replica, source: &Source, check: Option<Check>) -> Next {
    let now = tokio::time::Instant::now();
    let check = check.unwrap_or_else(|| Check {
        generation: source.generation,
        requested: source.requested.clone(),
        next: now + until_turn(replica, source),
        failures: 0,
    });
    let wait = check.next.saturating_duration_since(now);
    replica.memory.checks.last().insert(source.uid.clone(), check);
    Next::After(sooner(replica, source, wait))
}

/// Due times are further apart while webhooks announce pushes.
fn until_turn(replica: &Replica, source: &Source) -> Duration {
    let (interval, _) = replica.memory.checks.announced.stretch(&source.uid, source.interval);
    until_next(&source.uid, interval, Timestamp::now())
}

/// Until the source is due, or until a webhook's delivery lets it be fetched, whichever comes first.
fn sooner(replica: &Replica, source: &Source, turn: Duration) -> Duration {
    replica
        .memory
        .checks
        .announced
        .wait(&source.uid)
        .map_or(turn, |wait| turn.min(wait))
}

fn finish_check(replica: &Replica, source: &Source, old: Option<Check>, failed: bool) -> Duration {
    let failures = if failed {
        old.map_or(0, |check| check.failures).saturating_add(1)
    } else {
        0
    };
    let turn = until_turn(replica, source);
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
    replica.memory.checks.last().insert(source.uid.clone(), check);
    sooner(replica, source, wait)
}

/// Finds another revision of a source than the one that it follows, within the limits on requests to its host.
pub async fn find_revision(
    replica: &Replica,
    name: &Name,
    (source_uid, spec): (&str, &GitRepositorySpec),
    named: &Named,
) -> Result<Fetch, SourceFailure> {
    let way = Way::load(replica, &name.namespace, spec).await?;
    let turn = replica
        .memory
        .checks
        .turns
        .wait_to_enter(&spec.url, Asks::Repository, way.timeout)
        .await?;
    let known = load_source_origin(&mut *replica.store.tables().await.map_err(store_failed)?, source_uid).await;
    git::find(
        replica,
        source_uid,
        spec,
        (&way, turn),
        (named, known.map_err(store_failed)?),
    )
    .await
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
