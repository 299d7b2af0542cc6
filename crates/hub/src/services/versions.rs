//! The versions of a service: saved when they are assigned and when the agent reports on them, and looked up for a pin.

use farwater_api::{
    Digest,
    history::HistoryEntry,
    objects::ServiceReport,
    protocol::{Action, Entry},
    service_deployment::Pin,
};
use farwater_fleet::{
    assignment::{Candidate, Trouble},
    history::{self, Handed, KEPT, Stated, Version},
};
use farwater_store::{
    Connection, StoreError,
    delivery::{VersionRow, load_history, load_newest_version, load_version, save_version, trim_history},
};
use jiff::Timestamp;

use super::{ServiceFacts, hook_runs};
use crate::replica::Replica;

fn read(row: &VersionRow) -> Result<Version, StoreError> {
    serde_json::from_str(&row.version).map_err(|error| StoreError::Row {
        what: format!("version {} of service {}", row.number, row.service_uid),
        problem: error.to_string(),
    })
}

fn row(service_uid: &str, version: &Version) -> Result<VersionRow, StoreError> {
    Ok(VersionRow {
        service_uid: service_uid.to_owned(),
        number: i64::try_from(version.told.number).map_err(StoreError::abort)?,
        bundle: version.told.bundle.to_string(),
        version: serde_json::to_string(version).map_err(StoreError::abort)?,
    })
}

/// Adds the assigned candidate to the history, in the transaction that assigns it.
pub async fn note_assignment(
    tx: &mut Connection,
    service_uid: &str,
    candidate: &Candidate,
    stated: Stated<'_>,
) -> Result<(), StoreError> {
    let now = Timestamp::now();
    let last = load_newest_version(tx, service_uid)
        .await?
        .as_ref()
        .map(read)
        .transpose()?;
    let next = Version::new(last.as_ref(), candidate, stated, now);
    append(tx, service_uid, (last, &next), now).await
}

/// Saves a version under a number of its own, and marks the one before as superseded.
async fn append(
    tx: &mut Connection,
    service_uid: &str,
    (last, next): (Option<Version>, &Version),
    now: Timestamp,
) -> Result<(), StoreError> {
    if let Some(mut last) = last
        && last.supersede(now)
    {
        save_version(tx, &row(service_uid, &last)?).await?;
    }
    let (next, good) = (
        row(service_uid, next)?,
        i64::try_from(next.good_before).unwrap_or_default(),
    );
    save_version(tx, &next).await?;
    trim_history(tx, service_uid, (next.number, good), KEPT).await
}

/// Saves which parameters the desired version was given, and the agent's report on it. A service without a history gets
/// one.
pub async fn note_report(
    replica: &Replica,
    facts: &ServiceFacts,
    entry: &Entry,
    report: Option<&ServiceReport>,
) -> Result<(), StoreError> {
    let (Action::Apply(deployment), Some(assigned)) = (&entry.action, &facts.assigned) else {
        return Ok(());
    };
    let now = Timestamp::now();
    let newest = load_newest_version(&mut *replica.store.tables().await?, &facts.uid).await?;
    let mut version = match &newest {
        Some(row) => read(row)?,
        None => Version::new(None, assigned, Stated::default(), now),
    };

    let is_its = version.told.bundle == deployment.bundle && version.configuration == deployment.configuration;
    let others = match is_its && version.parameters != deployment.parameters {
        true => load_versions(&mut *replica.store.tables().await?, &facts.uid).await?,
        false => Vec::new(),
    };
    let handed = if is_its {
        version.hand(deployment.parameters, &others, now)
    } else {
        Handed::Same
    };
    let is_handed = handed != Handed::Same;
    let last = take_over(&mut version, handed);

    let report = report.filter(|report| report.entry == entry.digest() && is_its);
    let number = i64::try_from(version.told.number).map_err(StoreError::abort)?;
    if let Some(report) = report {
        hook_runs::note_hooks(replica, &facts.uid, number, &report.hooks).await?;
    }

    let is_news = report.is_some_and(|report| version.note_report(report, &deployment.tests, now));
    if newest.is_some() && !is_news && !is_handed {
        return Ok(());
    }

    let uid = facts.uid.clone();
    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            // A newer version was saved meanwhile, and takes precedence.
            if load_newest_version(tx, &uid).await? != newest {
                return Ok(());
            }
            match last {
                Some(last) => append(tx, &uid, (Some(last), &version), now).await,
                None => save_version(tx, &row(&uid, &version)?).await,
            }
        })
    });
    saved.await
}

/// Replaces the newest version by the one with other parameters. Returns it if the next one has a number of its own.
fn take_over(version: &mut Version, handed: Handed) -> Option<Version> {
    match handed {
        Handed::Same => None,
        Handed::Noted(next) => {
            *version = *next;
            None
        }
        Handed::Next(next) => {
            let is_appended = next.told.number != version.told.number;
            Some(std::mem::replace(version, *next)).filter(|_| is_appended)
        }
    }
}

/// The version that a service is pinned at, from its history.
pub async fn load_pinned(
    tables: &mut Connection,
    service_uid: &str,
    bundle: &Digest,
) -> Result<Result<Version, Trouble>, StoreError> {
    let found = load_version(tables, service_uid, bundle)
        .await?
        .as_ref()
        .map(read)
        .transpose()?;
    let message = || {
        format!(
            "{bundle} is not in the history of this service, which holds the last {KEPT} versions that were assigned to it"
        )
    };
    Ok(found.ok_or_else(|| Trouble::Pin { message: message() }))
}

/// Candidates that were assigned before, newest first.
pub async fn load_candidates(tables: &mut Connection, service_uid: &str) -> Result<Vec<Candidate>, StoreError> {
    Ok(load_versions(tables, service_uid)
        .await?
        .iter()
        .map(Version::candidate)
        .collect())
}

/// All versions of the history, newest first.
pub async fn load_versions(tables: &mut Connection, service_uid: &str) -> Result<Vec<Version>, StoreError> {
    load_history(tables, service_uid).await?.iter().map(read).collect()
}

/// Candidate of a pin; None: there is no pin.
pub async fn resolve_pin(
    replica: &Replica,
    service_uid: &str,
    pin: Option<&Pin>,
) -> Result<Option<Result<Candidate, Trouble>>, StoreError> {
    let Some(pin) = pin else { return Ok(None) };
    let found = load_pinned(&mut *replica.store.tables().await?, service_uid, &pin.bundle).await?;
    Ok(Some(found.map(|version| version.candidate())))
}

/// How the newest version came back, for the Event about it. Called before [`note_report`] saves the result of the
/// version, because the Event about its first application alone tells it.
pub async fn describe_return(replica: &Replica, service_uid: &str) -> Result<Option<String>, StoreError> {
    let mut tables = replica.store.tables().await?;
    let newest = load_newest_version(&mut tables, service_uid).await?;
    let newest = newest.as_ref().map(read).transpose()?;
    // Most versions are no rollback, and need no more than this row.
    if !newest.is_some_and(|newest| newest.told.cause.is_return()) {
        return Ok(None);
    }
    let all: Vec<HistoryEntry> = load_versions(&mut tables, service_uid)
        .await?
        .into_iter()
        .map(|version| version.told)
        .collect();
    Ok(history::describe_return(&all))
}

/// Answer of `GET servicedeployments/NAME/history`, newest first.
pub async fn load_entries(replica: &Replica, service_uid: &str) -> Result<Vec<HistoryEntry>, StoreError> {
    let rows = load_history(&mut *replica.store.tables().await?, service_uid).await?;
    rows.iter().map(|row| Ok(read(row)?.told)).collect()
}
