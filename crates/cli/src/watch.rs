//! Follows a collection from a resourceVersion, in whatever form its objects are sent.

use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Request;
use serde_json::Value;

use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result},
    terminal::say,
};

/// Timeout of one watch. The next one goes on from the last version.
const WATCH_SECONDS: u32 = 300;
/// Time without the hub after which the watch fails. It is longer than an upgrade of the hub.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub enum Change {
    /// The object as it was sent. If it was deleted: its last state.
    Event { object: Value, deleted: bool },
    /// The version was compacted, so the collection must be listed again.
    Relist,
}

/// Follows `path` (with its query) and passes every change to `act`. After a re-list, `act` returns the version to go
/// on from. Ends only with a failure.
pub async fn follow<F>(session: &Session, path: &str, accept: &str, mut version: String, mut act: F) -> Result<()>
where
    F: AsyncFnMut(Change) -> Result<Option<String>>,
{
    let mut failing_since: Option<Instant> = None;
    loop {
        match stream(session, path, accept, &mut version, &mut failing_since, &mut act).await {
            Ok(()) => {}
            Err(Interrupted::Compacted) => {
                if let Some(listed) = act(Change::Relist).await? {
                    version = listed;
                }
            }
            Err(Interrupted::Fatal(failure)) => return Err(failure),
            Err(Interrupted::Away(failure)) => {
                let since = *failing_since.get_or_insert_with(|| {
                    say(&format!(
                        "connection lost ({}); trying again",
                        failure.evidence.as_deref().unwrap_or("no reason")
                    ));
                    Instant::now()
                });
                if since.elapsed() > PATIENCE {
                    return Err(failure);
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

enum Interrupted {
    Compacted,
    Away(Failure),
    Fatal(Failure),
}

async fn stream<F>(
    session: &Session,
    path: &str,
    accept: &str,
    version: &mut String,
    failing_since: &mut Option<Instant>,
    act: &mut F,
) -> Result<(), Interrupted>
where
    F: AsyncFnMut(Change) -> Result<Option<String>>,
{
    let joint = if path.contains('?') { '&' } else { '?' };
    let uri = format!(
        "{path}{joint}watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
    );
    let request = Request::get(uri)
        .header("Accept", accept)
        .body(Vec::new())
        .map_err(|error| Interrupted::Fatal(Failure::usage("can't watch").evidence(error.to_string())))?;
    let body = session
        .client
        .request_stream(request)
        .await
        .map_err(|error| classify(session, &error))?;

    // The hub answered, so the next interruption is a new one.
    *failing_since = None;
    let mut lines = body.lines();
    while let Some(line) = lines.next().await {
        let line = line.map_err(|error| {
            let error = kube::Error::ReadEvents(error);
            Interrupted::Away(session.failure("watch", &error))
        })?;
        let mut event: Value =
            serde_json::from_str(&line).map_err(|error| classify(session, &kube::Error::SerdeError(error)))?;
        let object = event["object"].take();
        let type_ = event["type"].as_str().unwrap_or_default();
        if type_ == "ERROR" {
            return Err(if object["code"] == 410 {
                Interrupted::Compacted
            } else {
                classify(session, &status(object))
            });
        }
        if let Some(seen) = version_of(&object) {
            seen.clone_into(version);
        }
        if type_ != "BOOKMARK" {
            act(Change::Event {
                deleted: type_ == "DELETED",
                object,
            })
            .await
            .map_err(Interrupted::Fatal)?;
        }
    }
    Ok(())
}

/// The resourceVersion of an object, or of the only row of a Table.
pub fn version_of(object: &Value) -> Option<&str> {
    let own = object["metadata"]["resourceVersion"]
        .as_str()
        .filter(|version| !version.is_empty());
    own.or_else(|| object["rows"][0]["object"]["metadata"]["resourceVersion"].as_str())
}

fn status(object: Value) -> kube::Error {
    match serde_json::from_value::<kube::core::Status>(object) {
        Ok(status) => kube::Error::Api(Box::new(status)),
        Err(error) => kube::Error::SerdeError(error),
    }
}

fn classify(session: &Session, error: &kube::Error) -> Interrupted {
    if let kube::Error::Api(status) = error
        && status.code == 410
    {
        return Interrupted::Compacted;
    }
    let failure = session.failure("watch", error);
    if failure.code == exit::UNREACHABLE {
        Interrupted::Away(failure)
    } else {
        Interrupted::Fatal(failure)
    }
}
