//! Saves the result of a fetch.

use farwater_store::{
    StoreError, Tx,
    delivery::{
        ChartRow, Revision, assignments_of_source, delete_chart, move_revision, save_chart, save_revision,
        save_source_origin, services_of_chart, withdraw_revision,
    },
};
use jiff::Timestamp;

use super::{
    Source,
    status::{write_failure, write_ready},
};
use crate::{
    errors::SourceFailure,
    memory::counters::FetchResult,
    replica::Replica,
    resources::{self, Name},
    sources::{SourceSpec, artifacts::Outcome, git},
};

/// Withdraws a revision that was never verified if signatures are required now. Services that have nothing assigned get
/// nothing until a revision is verified.
pub(super) async fn withdraw_unverified(
    replica: &Replica,
    source: &Source,
    served: Option<Revision>,
) -> Result<Option<Revision>, StoreError> {
    if !source.is_doubtful(served.as_ref()) {
        return Ok(served);
    }
    tracing::warn!(source = %source.object.name, "a revision that was never verified is no longer served");
    let uid = source.uid.clone();
    replica
        .store
        .transact(move |tx| Box::pin(async move { withdraw_revision(tx, &uid).await }))
        .await?;
    wake_services(replica, &source.uid).await?;
    Ok(None)
}

pub(super) fn judge(served: Option<&Revision>, fetched: &Result<Outcome, SourceFailure>) -> FetchResult {
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
pub(super) async fn record(
    replica: &Replica,
    source: &Source,
    served: Option<Revision>,
    fetched: Result<Outcome, SourceFailure>,
) -> Result<bool, StoreError> {
    let now = Timestamp::now();

    let outcome = match fetched {
        Ok(outcome) => outcome,
        Err(failure) => {
            let served = withdraw_unverified(replica, source, served).await?;
            return write_failure(replica, source, served.as_ref(), failure, now)
                .await
                .map(|()| true);
        }
    };

    let (moved, asked_again) = (
        is_moved(served.as_ref(), &outcome),
        source.is_unasked() && !outcome.origin.unasked,
    );
    let (changed, verdicts, failure) = (outcome.changed, outcome.verdicts.clone(), outcome.failure.clone());
    let charts = outcome.charts.clone();

    let Some((revision, concerned)) = save_outcome(replica, source, served, outcome, now).await? else {
        return Ok(false);
    };

    for row in &charts {
        let services = services_of_chart(
            &mut *replica.store.tables().await?,
            &source.uid,
            (&row.chart, &row.wanted),
        )
        .await?;
        replica.wake_after_fetch(services.into_iter().map(Name::from));
    }

    match failure {
        Some(failure) => write_failure(replica, source, revision.as_ref(), failure, now).await?,
        None => write_ready(replica, source, revision.as_ref(), verdicts, moved, now).await?,
    }

    // A new index concerns no service by itself; its charts do.
    let concerns_all = moved && concerned.is_none() && !matches!(source.object.spec, SourceSpec::Helm(_));
    if concerns_all || changed || asked_again {
        wake_services(replica, &source.uid).await?;
    }

    replica.wake_after_fetch(concerned.into_iter().flatten().map(Name::from));
    Ok(true)
}

pub(super) async fn wake_services(replica: &Replica, source_uid: &str) -> Result<(), StoreError> {
    let rows = assignments_of_source(&mut *replica.store.tables().await?, source_uid).await?;
    replica.wake_after_fetch(rows.into_iter().map(Name::from));
    Ok(())
}

/// The served revision, and the services that a move concerns; None: all services of the source.
type Saved = (Option<Revision>, Option<Vec<(String, String)>>);

/// Saves what differs from what is known, in one transaction. None: the source was changed since it was read.
async fn save_outcome(
    replica: &Replica,
    source: &Source,
    served: Option<Revision>,
    outcome: Outcome,
    now: Timestamp,
) -> Result<Option<Saved>, StoreError> {
    let moved = is_moved(served.as_ref(), &outcome);
    let Outcome {
        served: found,
        taken,
        origin,
        differs,
        charts,
        unwanted,
        ..
    } = outcome;
    let origin = (source.origin.as_ref() != Some(&origin)).then_some(origin);
    // Other keys may have verified the same revision: that is saved, and moves nothing.
    let is_written = !moved && served.as_ref().is_none_or(|served| served.taken == taken);
    let revision = match found {
        Some((reference, commit)) if !is_written => Some(Revision {
            source_uid: source.uid.clone(),
            reference,
            commit,
            fetched: fetched_at(served.as_ref(), moved, now),
            taken,
        }),
        _ => served,
    };
    if is_written && origin.is_none() && charts.is_empty() && unwanted.is_empty() {
        return Ok(Some((revision, None)));
    }

    let differs = if moved { differs } else { Some(Vec::new()) };
    let (row, uid) = (revision.clone().filter(|_| !is_written), source.uid.clone());
    let (key, generation) = (source.object.name.key(), source.object.metadata.generation);

    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            if let Some(key) = &key
                && !resources::is_current(tx, key, (&uid, generation)).await?
            {
                return Ok(None);
            }
            if let Some(origin) = &origin {
                save_source_origin(tx, origin).await?;
            }
            write_charts(tx, &uid, &charts, &unwanted).await?;
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

/// Seconds since 1970 at which the revision was first fetched.
fn fetched_at(served: Option<&Revision>, moved: bool, now: Timestamp) -> i64 {
    served
        .filter(|_| !moved)
        .map_or(now.as_second(), |served| served.fetched)
}

async fn write_charts(
    tx: &mut Tx,
    source_uid: &str,
    charts: &[ChartRow],
    unwanted: &[(String, String)],
) -> Result<(), StoreError> {
    for chart in charts {
        save_chart(tx, chart).await?;
    }
    for (chart, wanted) in unwanted {
        delete_chart(tx, source_uid, (chart, wanted)).await?;
    }
    Ok(())
}

pub(super) fn revision_text(revision: &Revision) -> String {
    git::format_revision(&revision.reference, &revision.commit)
}
