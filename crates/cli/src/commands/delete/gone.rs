//! `--wait`: waits until the deleted objects are gone, or can't go without a person.

use std::time::{Duration, Instant};

use farwater_fleet::why::Standing;

use super::Doomed;
use crate::{
    commands::{wait::Looks, why},
    connection::Session,
    exit,
    failure::{Failure, Result},
    terminal::{print, say},
    text,
};

/// Why an object still exists.
enum Left {
    Waits(String),
    /// A person must act first.
    Stuck(String),
}

/// Prints each object that is gone. A failure for one object doesn't end the wait for the others.
pub async fn wait(session: &Session, going: &[Doomed], timeout: Duration) -> Result<u8> {
    let deadline = Instant::now() + timeout;
    let mut code = exit::YES;
    for doomed in going {
        match until_gone(session, doomed, deadline).await? {
            None => print(&format!("{} deleted\n", doomed.qualified()))?,
            Some(left) => {
                let (told, of_this) = match left {
                    Left::Waits(why) => (format!("is still there after {}s: {why}", timeout.as_secs()), exit::TIMEOUT),
                    Left::Stuck(why) => (format!("is not going to be gone by itself: {why}"), exit::NO),
                };
                say(&format!("{} {}", doomed.place(), text::plain(&told)));
                say(&format!("  next: {} why {}", session.program.name(), doomed.argument()));
                code = code.max(of_this);
            }
        }
    }
    Ok(code)
}

/// None: it is gone, or another one has its name.
async fn until_gone(session: &Session, doomed: &Doomed, deadline: Instant) -> Result<Option<Left>> {
    let mut looks = Looks::until(deadline);
    loop {
        let left = match look(session, doomed).await {
            Ok(None) => return Ok(None),
            Ok(Some(left)) => left,
            // A hub that is away for a moment is no result.
            Err(failure) if failure.code == exit::UNREACHABLE => Left::Waits(failure.cause),
            Err(failure) => return Err(failure),
        };
        let over = match &left {
            Left::Waits(why) => looks.note(&doomed.place(), why, false),
            Left::Stuck(why) => looks.note(&doomed.place(), why, true),
        };
        if over.is_some() {
            return Ok(Some(left));
        }
        looks.pause().await;
    }
}

async fn look(session: &Session, doomed: &Doomed) -> Result<Option<Left>> {
    let attempt = format!("read {} {}", doomed.kind.kind, doomed.place());
    let missing = |failure: &Failure| failure.is_missing();
    let found = match session.read(&attempt, &doomed.path()).await {
        Err(failure) if missing(&failure) => return Ok(None),
        found => found?,
    };
    if found["metadata"]["uid"] != doomed.uid.as_str() {
        return Ok(None);
    }
    if doomed.kind.plural != "servicedeployments" {
        let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.filter(|condition| condition["type"] == "Ready").find_map(|one| one["message"].as_str());
        return Ok(Some(Left::Waits(
            ready.filter(|text| !text.is_empty()).unwrap_or("it is being deleted").to_owned(),
        )));
    }
    match why::explain(session, &doomed.namespace, &doomed.name).await {
        Err(failure) if missing(&failure) => Ok(None),
        Ok(finding) if finding.standing == Standing::Broken => Ok(Some(Left::Stuck(finding.sentence))),
        Ok(finding) => Ok(Some(Left::Waits(finding.sentence))),
        Err(failure) => Err(failure),
    }
}
