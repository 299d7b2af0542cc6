//! `--wait`: waits until the deleted objects are gone, or can't go without a person.

use std::time::{Duration, Instant};

use farwater_fleet::{deletion::holders, why::Standing};

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
struct Left {
    why: String,
    /// `why` without its times: it differs only if more than the time has changed.
    state: String,
    /// A person must act first.
    is_stuck: bool,
}

impl Left {
    fn waits(why: String) -> Self {
        Self {
            state: why.clone(),
            why,
            is_stuck: false,
        }
    }
}

/// Prints each object that is gone. A failure for one object doesn't end the wait for the others.
pub async fn wait(session: &Session, going: &[Doomed], timeout: Duration) -> Result<u8> {
    let deadline = Instant::now() + timeout;
    let mut code = exit::YES;
    for doomed in going {
        match until_gone(session, doomed, deadline).await? {
            None => print(&format!("{} deleted\n", doomed.qualified()))?,
            Some(left) => {
                let (told, of_this) = match left.is_stuck {
                    true => (format!("is not going to be gone by itself: {}", left.why), exit::NO),
                    false => (
                        format!("is still there after {}s: {}", timeout.as_secs(), left.why),
                        exit::TIMEOUT,
                    ),
                };
                say(&format!("{} {}", doomed.place(), text::plain(&told)));
                say(&format!("  next: {}", next_look(session, doomed)));
                code = code.max(of_this);
            }
        }
    }
    Ok(code)
}

/// None: it is gone, or another one has its name.
async fn until_gone(session: &Session, doomed: &Doomed, deadline: Instant) -> Result<Option<Left>> {
    let mut looks = Looks::until(deadline);
    let began = jiff::Timestamp::now();
    loop {
        let left = match look(session, doomed, began).await {
            Ok(None) => return Ok(None),
            Ok(Some(left)) => left,
            // A hub that is unreachable for a moment is no result.
            Err(failure) if failure.code == exit::UNREACHABLE => Left::waits(failure.cause),
            Err(failure) => return Err(failure),
        };
        if looks
            .note_as(&doomed.place(), &left.state, &left.why, left.is_stuck)
            .is_some()
        {
            return Ok(Some(left));
        }
        looks.pause().await;
    }
}

async fn look(session: &Session, doomed: &Doomed, began: jiff::Timestamp) -> Result<Option<Left>> {
    let attempt = format!("read {} {}", doomed.kind.kind, doomed.place());
    let missing = |failure: &Failure| failure.is_missing();
    let found = match session.read(&attempt, &doomed.path()).await {
        Err(failure) if missing(&failure) => return Ok(None),
        found => found?,
    };
    if found["metadata"]["uid"] != doomed.uid.as_str() {
        return Ok(None);
    }
    if !is_explained(doomed) {
        let finalizers: Vec<String> =
            serde_json::from_value(found["metadata"]["finalizers"].clone()).unwrap_or_default();
        return Ok(Some(Left::waits(match holders(&finalizers) {
            holders if holders.is_empty() => "it is being deleted".to_owned(),
            holders => format!("it is being deleted, and held by {holders}"),
        })));
    }
    match why::look(session, &doomed.kind, &doomed.namespace, &doomed.name).await {
        Err(failure) if missing(&failure) => Ok(None),
        Err(failure) => Err(failure),
        Ok(judge) => {
            let finding = judge(jiff::Timestamp::now());
            let is_stuck = finding.standing == Standing::Broken;
            Ok(Some(Left {
                why: finding.sentence,
                state: judge(began).sentence,
                is_stuck,
            }))
        }
    }
}

/// Whether `why` says what the deletion waits for.
fn is_explained(doomed: &Doomed) -> bool {
    matches!(doomed.kind.plural.as_str(), "servicedeployments" | "servicesets")
}

fn next_look(session: &Session, doomed: &Doomed) -> String {
    match is_explained(doomed) {
        true => format!("{} why {}", session.program.name(), doomed.argument()),
        false => {
            let namespace = if doomed.kind.namespaced {
                format!(" -n {}", doomed.namespace)
            } else {
                String::new()
            };
            session.kubectl(&format!("describe {}{namespace}", doomed.qualified()))
        }
    }
}
