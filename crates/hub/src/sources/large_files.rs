//! Large files that bundles need are fetched apart from the controllers: a service waits for its own files and delays
//! no other.

use std::{sync::Arc, time::Duration};

use farwater_api::Digest;
use farwater_fleet::words::counted;
use farwater_sources::LargeFile;
use tokio::time::Instant;

use crate::memory::large_fetches::Fetch;
use crate::sources::{
    self, SourceObject, SourceSpec,
    access::{Way, store_failed},
    git::mirror_path,
};
use crate::{
    errors::SourceFailure,
    memory::turns::Asks,
    replica::Replica,
    resources::{Name, SourceName},
};

/// After a failure, no fetch is tried again for this long.
const REST: Duration = Duration::from_secs(10);
/// Maximum number of remembered failures; beyond it, all are forgotten.
const MAX_KEPT: usize = 10_000;

/// Large files to fetch for a bundle.
pub struct Wanted<'a> {
    pub source: &'a SourceName,
    pub source_uid: String,
    pub content: Digest,
    /// By the URL of the repository that has them.
    pub files: Vec<(String, Vec<LargeFile>)>,
}

/// Fetches large files, unless that is under way or has just failed. Returns the message of a service that waits for
/// them. The service is requeued when the files are there, or when the fetch has failed.
pub fn want(replica: &Arc<Replica>, wanted: Wanted<'_>, service: Option<&Name>) -> String {
    let key = (wanted.source_uid, wanted.content);
    let (count, bytes) = wanted
        .files
        .iter()
        .flat_map(|(_, files)| files)
        .fold((0, 0), |(n, b), f| (n + 1, b + f.size));
    let message = format!(
        "fetching {} of {} in total",
        counted(count, "large file"),
        counted(bytes, "byte")
    );

    let fetches = &replica.access.large_fetches;
    {
        let mut state = fetches.state();
        if state.len() >= MAX_KEPT {
            state.retain(|_, fetch| matches!(fetch, Fetch::Running(_)));
        }
        match state.get_mut(&key) {
            Some(Fetch::Running(waiting)) => {
                waiting.extend(service.cloned());
                return message;
            }
            Some(Fetch::Failed { message, until }) if *until > Instant::now() => return message.clone(),
            _ => {}
        }
        state.insert(key.clone(), Fetch::Running(service.cloned().into_iter().collect()));
    }

    let (replica, source) = (Arc::clone(replica), wanted.source.clone());
    let files = wanted.files;
    tokio::spawn(async move {
        let fetched = fetch(&replica, &source, &key.0, files).await;
        let next = fetched.as_ref().err().map(|failure| {
            tracing::warn!(source = %source, reason = failure.reason, error = failure.message, "large files can't be fetched");
            Fetch::Failed { message: failure.message.clone(), until: Instant::now() + REST }
        });
        let before = {
            let mut state = replica.access.large_fetches.state();
            match next {
                Some(next) => state.insert(key, next),
                None => state.remove(&key),
            }
        };
        if let Some(Fetch::Running(waiting)) = before {
            replica.wake_after_large_files(waiting);
        }
    });

    message
}

async fn fetch(
    replica: &Replica,
    source: &SourceName,
    source_uid: &str,
    files: Vec<(String, Vec<LargeFile>)>,
) -> Result<(), SourceFailure> {
    let object = sources::load(&replica.store, source).await.map_err(store_failed)?;
    let (
        SourceName::Resource(_, name),
        Some(SourceObject {
            spec: SourceSpec::Git(spec),
            ..
        }),
    ) = (source, object)
    else {
        return Err(SourceFailure::lasting(
            "SourceNotFound",
            format!("{source} does not exist any more"),
        ));
    };
    let way = Way::load(replica, &name.namespace, &spec).await?;
    let mirror = mirror_path(&replica.access.mirrors, source_uid)?;
    for (url, files) in files {
        let remote = way.to(replica, &url).await?;
        let turn = replica
            .memory
            .checks
            .turns
            .wait_to_enter(&url, Asks::LargeFiles, way.timeout)
            .await?;
        let fetched = {
            let _place = replica.access.large_fetches.places.acquire().await;
            replica
                .access
                .mirrors
                .git
                .fetch_large_files(&remote, &files, &mirror, way.timeout)
                .await
        };
        turn.end(fetched.as_ref().err().map(|error| error.reason.code()));
        fetched?;
    }
    Ok(())
}
