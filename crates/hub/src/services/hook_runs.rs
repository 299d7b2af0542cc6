//! Hooks and tests of a service's versions: saved when its agent reports them, and read with their logs and results.

use std::collections::HashSet;

use farwater_api::{
    Digest,
    hooks::{HookReport, HookRun},
};
use farwater_store::{
    StoreError,
    delivery::{HookRow, delete_hook, load_hooks, load_hooks_of_version, save_hook},
};

use crate::replica::Replica;

const ZSTD_LEVEL: i32 = 3;
/// Maximum size of a row: a log and a JUnit file, each of their characters escaped.
const MAX_BYTES: usize = 2 << 20;

fn read(row: &HookRow) -> Result<HookReport, StoreError> {
    let damaged = |problem: String| StoreError::Row {
        what: format!("hook of service {}", row.service_uid),
        problem,
    };
    let json = zstd::bulk::decompress(&row.body, MAX_BYTES).map_err(|error| damaged(error.to_string()))?;
    serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))
}

fn row(service_uid: &str, number: i64, hook: &HookReport) -> Result<HookRow, StoreError> {
    let json = serde_json::to_vec(hook).map_err(StoreError::abort)?;
    Ok(HookRow {
        service_uid: service_uid.to_owned(),
        number,
        hook: name(hook),
        run: hook.run.to_string(),
        body: zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(StoreError::abort)?,
    })
}

fn name(hook: &HookReport) -> String {
    format!("{} {}", hook.phase, hook.object)
}

/// Saves what is reported about a version's hooks. A restarted agent reports how they ended, but not their logs and
/// results: those stay. A hook that is no longer reported was a test that the service no longer has.
pub async fn note_hooks(
    replica: &Replica,
    service_uid: &str,
    number: i64,
    hooks: &[HookReport],
) -> Result<(), StoreError> {
    if hooks.is_empty() {
        return Ok(());
    }

    let known = load_hooks_of_version(&mut *replica.store.tables().await?, service_uid, number).await?;
    let mut news = Vec::new();
    for hook in hooks {
        let mut hook = hook.clone();
        let before = known.iter().find(|row| row.hook == name(&hook)).map(read).transpose()?;
        if let Some(before) = before.as_ref().filter(|before| before.run == hook.run) {
            hook.log = hook.log.or_else(|| before.log.clone());
            hook.junit = hook.junit.or_else(|| before.junit.clone());
        }
        if before.as_ref() != Some(&hook) {
            news.push(row(service_uid, number, &hook)?);
        }
    }

    let named: HashSet<String> = hooks.iter().map(name).collect();
    let gone: Vec<HookRow> = known.into_iter().filter(|row| !named.contains(&row.hook)).collect();
    if news.is_empty() && gone.is_empty() {
        return Ok(());
    }

    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            for row in &gone {
                delete_hook(tx, &row.service_uid, row.number, &row.hook).await?;
            }
            for row in &news {
                save_hook(tx, row).await?;
            }
            Ok(())
        })
    });
    saved.await
}

/// Answer of `GET servicedeployments/NAME/hooks`: hooks of the newest version first, without logs and results. With
/// `run`: that hook, with both.
pub async fn load_runs(replica: &Replica, service_uid: &str, run: Option<&Digest>) -> Result<Vec<HookRun>, StoreError> {
    let mut rows = load_hooks(&mut *replica.store.tables().await?, service_uid).await?;
    if let Some(run) = run {
        let run = run.to_string();
        rows.retain(|row| row.run == run);
    }
    let mut all = Vec::with_capacity(rows.len());
    for row in rows {
        let mut report = read(&row)?;
        if run.is_none() {
            (report.log, report.junit) = (None, None);
        }
        all.push(HookRun {
            number: row.number.unsigned_abs(),
            report,
        });
    }
    Ok(all)
}
