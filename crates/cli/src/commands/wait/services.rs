//! Waits until services are healthy or applied.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use farwater_api::{REQUESTED_AT, ServiceDeployment};
use farwater_fleet::{
    why::{Link, Standing, with_suspension},
    words::{counted, verb},
};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::json;

use super::{
    GRACE, Goal, Wanted,
    judge::{Progress, judge},
    members, print_finding,
};
use crate::{
    commands::why,
    connection::Session,
    exit,
    failure::{Failure, Result},
    terminal::{print, say},
    text,
};

/// Requests that the hub fetches the services' sources now.
pub async fn ask(session: &Session, wanted: &Wanted) -> Result<()> {
    let now = jiff::Timestamp::now().to_string();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {REQUESTED_AT: now}}}));
    let api: Api<ServiceDeployment> = Api::namespaced(session.client.clone(), &wanted.namespace);
    for name in waited_for(session, wanted).await?.keys() {
        session
            .bounded("ask for it", api.patch(name, &PatchParams::default(), &patch))
            .await?;
    }
    Ok(())
}

/// Prints the services that got there on standard output, and returns exit code 0, 1 or 6.
pub async fn until(session: &Session, wanted: &Wanted, goal: Goal, timeout: Duration) -> Result<u8> {
    if wanted.newest {
        ask(session, wanted).await?;
    }
    let mut missing = waited_for(session, wanted).await?;
    if missing.is_empty() {
        return Err(Failure::new(
            exit::MISSING,
            format!("there is no service in namespace {}", wanted.namespace),
        )
        .next("{program} deploy GIT-URL --path FOLDER --cluster NAME"));
    }
    let watched = watch(session, wanted, goal, &mut missing);
    let outcome = tokio::time::timeout(timeout, watched).await;
    match outcome {
        Ok(result) => result,
        Err(_) => {
            let (services, are) = (counted(missing.len(), "service"), verb(&missing.len(), "is", "are"));
            say(&format!(
                "timed out after {}s; {services} {are} not {}:",
                timeout.as_secs(),
                goal.word()
            ));
            for name in missing.keys() {
                match why::explain(session, &wanted.namespace, name).await {
                    Ok(finding) => print_finding(session, name, &finding, ""),
                    Err(failure) => say(&format!("  {name}: {}", text::plain(&failure.cause))),
                }
            }
            Ok(exit::TIMEOUT)
        }
    }
}

/// The last printed state of a service. `stuck`: since when the hub reports it as stuck, and why.
#[derive(Default)]
struct Said {
    state: String,
    stuck: Option<(Instant, String)>,
    /// When its sources were last read.
    looked: Option<Instant>,
    /// Why its source has no version for it.
    refused: Option<String>,
}

impl Said {
    /// Prints a state that differs from the last one.
    fn note(&mut self, service: &ServiceDeployment, state: String, is_stuck: bool) {
        let state = with_suspension(service, state, jiff::Timestamp::now());
        if state != self.state {
            say(&format!("{}: {}", service.name_any(), text::plain(&state)));
        }
        let since = self.stuck.take().map_or_else(Instant::now, |(since, _)| since);
        self.stuck = is_stuck.then(|| (since, state.clone()));
        self.state = state;
    }

    /// Why it was stuck for longer than the grace period. None: it was not.
    fn lasting(&self) -> Option<String> {
        let stuck = self.stuck.as_ref().filter(|(since, _)| since.elapsed() > GRACE);
        stuck.map(|(_, reason)| reason.clone()).or_else(|| self.refused.clone())
    }
}

async fn waited_for(session: &Session, wanted: &Wanted) -> Result<BTreeMap<String, Said>> {
    if wanted.names.is_empty() {
        let services = session.list::<ServiceDeployment>(Some(&wanted.namespace)).await?;
        return Ok(services
            .into_iter()
            .map(|service| (service.name_any(), Said::default()))
            .collect());
    }
    for name in &wanted.names {
        session.get::<ServiceDeployment>(&wanted.namespace, name).await?;
    }
    Ok(wanted
        .names
        .iter()
        .map(|name| (name.clone(), Said::default()))
        .collect())
}

async fn watch(session: &Session, wanted: &Wanted, goal: Goal, missing: &mut BTreeMap<String, Said>) -> Result<u8> {
    let api: Api<ServiceDeployment> = Api::namespaced(session.client.clone(), &wanted.namespace);
    let config = match missing.len() {
        1 => watcher::Config::default().fields(&format!("metadata.name={}", missing.keys().next().map_or("", |n| n))),
        _ => watcher::Config::default(),
    };
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut code = exit::YES;
    let mut complained = false;
    while !missing.is_empty() {
        let event = tokio::select! {
            event = events.try_next() => event,
            _ = tick.tick() => {
                refuse_at_sources(session, wanted, missing).await;
                code = code.max(give_up(session, wanted, goal, missing).await);
                continue;
            }
        };
        let (service, deleted) = match event {
            Ok(Some(watcher::Event::Apply(service) | watcher::Event::InitApply(service))) => (service, false),
            Ok(Some(watcher::Event::Delete(service))) => (service, true),
            Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => continue,
            Ok(None) => break,
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    say(&format!(
                        "connection trouble, trying again: {}",
                        text::plain(&error.to_string())
                    ));
                }
                continue;
            }
        };

        let name = service.name_any();
        let Some(said) = missing.get_mut(&name) else { continue };
        let progress = match deleted {
            true => Progress::Refused("it was deleted".to_owned()),
            false => judge(&service, goal, wanted.newest),
        };
        match progress {
            Progress::Reached => {
                code = code.max(arrive(session, wanted, goal, &name).await?);
                missing.remove(&name);
            }
            Progress::Refused(state) => said.note(&service, state, true),
            Progress::NotYet(state) => said.note(&service, state, false),
        }
    }
    Ok(code)
}

/// Prints a service that got there, and returns 0. A service is also healthy while its source can't be fetched; if the
/// newest version was asked for, the answer is then 1.
async fn arrive(session: &Session, wanted: &Wanted, goal: Goal, name: &str) -> Result<u8> {
    if wanted.newest {
        let finding = why::explain(session, &wanted.namespace, name).await?;
        let refused = match finding.link == Some(Link::Source) && finding.standing == Standing::Broken {
            true => Some(finding.sentence),
            false => {
                let service: ServiceDeployment = session.get(&wanted.namespace, name).await?;
                members::refused_by_sources(session, &wanted.namespace, &[service]).await?
            }
        };
        if let Some(why) = refused {
            say(&format!(
                "{name} may not have the pushed revision: {}",
                text::plain(&why)
            ));
            return Ok(exit::NO);
        }
    }
    print(&format!("{}/{name} {}\n", wanted.namespace, goal.word()))?;
    Ok(exit::YES)
}

/// Notes the services whose source fails until a person changes something: their own status only says that they wait
/// for the source. A service that needs nothing newer doesn't need its source.
async fn refuse_at_sources(session: &Session, wanted: &Wanted, missing: &mut BTreeMap<String, Said>) {
    for (name, said) in missing.iter_mut() {
        let is_due = said.looked.get_or_insert_with(Instant::now).elapsed() > GRACE;
        if !is_due || said.stuck.is_some() {
            continue;
        }
        said.looked = Some(Instant::now());
        // If the sources can't be read, they are read again after the next grace period.
        let refused = why::refused_by_source(session, &wanted.namespace, name, wanted.newest)
            .await
            .ok()
            .flatten();
        said.refused = refused;
    }
}

/// Removes the services that were stuck for longer than the grace period, and prints why. Returns 1 if there are any.
async fn give_up(session: &Session, wanted: &Wanted, goal: Goal, missing: &mut BTreeMap<String, Said>) -> u8 {
    let namespace = wanted.namespace.as_str();
    let over: Vec<(String, String)> = missing
        .iter()
        .filter_map(|(name, said)| Some((name.clone(), said.lasting()?)))
        .collect();
    for (name, reason) in &over {
        missing.remove(name);
        say(&format!(
            "{name} is not going to be {} by itself: {}",
            goal.word(),
            text::plain(reason)
        ));
        match why::explain(session, namespace, name).await {
            Ok(finding) => print_finding(session, name, &finding, reason),
            Err(_) => say(&format!("  next: {} why {name} -n {namespace}", session.program.name())),
        }
    }
    if over.is_empty() { exit::YES } else { exit::NO }
}
