//! `farwater wait`: until services are healthy or applied, or honestly are not.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use farwater_api::{REQUESTED_AT, ServiceDeployment};
use farwater_fleet::why::{Link, Standing};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::json;

use crate::{
    commands::why,
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::{NamespaceArgs, service_name},
    terminal::{print, say},
    text,
};

#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    /// Services: NAME or NAMESPACE/NAME.
    #[arg(required_unless_present = "all")]
    services: Vec<String>,
    /// Every service of the namespace.
    #[arg(long, conflicts_with = "services")]
    all: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// What to wait for.
    #[arg(long = "for", value_enum, value_name = "GOAL", default_value_t)]
    goal: Goal,
    /// Have their sources asked first, as after a push. One that does not answer is a no.
    #[arg(long)]
    fetch: bool,
    /// How long, for example 90s or 10m; then the exit code is 6.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Goal {
    /// What is assigned is applied and every object is healthy.
    #[default]
    Healthy,
    /// What is assigned is applied.
    Applied,
}

impl Goal {
    fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Applied => "applied",
        }
    }
}

/// How long the hub must have said that it is stuck: a source that was just made, or an agent that tries again, gets
/// over it.
const GRACE: Duration = Duration::from_secs(10);

/// The services of one namespace that are waited for; no names means all that exist at the start.
pub struct Wanted {
    pub namespace: String,
    pub names: Vec<String>,
    /// Whether what their sources have is waited for, and not only what is assigned.
    pub newest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    Reached,
    NotYet(String),
    /// The hub says that it will not happen by itself.
    Refused(String),
}

/// What a service's own status says; a status about an older spec says nothing.
/// `newest`: waits for the revision of the source, and not only for the assigned one.
fn judge(service: &ServiceDeployment, goal: Goal, newest: bool) -> Progress {
    let Some(status) = &service.status else { return Progress::NotYet("not seen by the hub yet".to_owned()) };
    let seen = status.observed_generation.unwrap_or_default() >= service.metadata.generation.unwrap_or_default();
    if !seen {
        return Progress::NotYet("its new spec is not seen by the hub yet".to_owned());
    }
    let condition = |type_: &str| status.conditions.iter().find(|c| c.type_ == type_);
    let text = |c: &farwater_api::Condition| if c.message.is_empty() { c.reason.clone() } else { c.message.clone() };
    // A fetch from before the push does not show it.
    if service.open_request().is_some() {
        return Progress::NotYet("its source is being asked".to_owned());
    }
    if let Some(stalled) = condition("Stalled").filter(|c| c.status == "True") {
        return Progress::Refused(text(stalled));
    }
    if let Some(held) = status.held_revision.as_ref().filter(|_| newest) {
        let holds = |type_: &str| condition(type_).filter(|c| c.status == "True").map(text);
        let suspended = service.spec.suspend.then(|| "the service is suspended".to_owned());
        return match holds("Pinned").or_else(|| holds("Frozen")).or(suspended) {
            Some(why) => Progress::Refused(format!("{held} is held back: {why}")),
            None => Progress::NotYet(format!(
                "{held} is not assigned yet: {}",
                condition("Ready").map_or_else(String::new, text)
            )),
        };
    }
    let applied = status.applied_revision.is_some() && status.applied_revision == status.assigned_revision;
    let ready = condition("Ready");
    let reached = match goal {
        Goal::Applied => applied,
        Goal::Healthy => applied && ready.is_some_and(|c| c.status == "True"),
    };
    if reached { Progress::Reached } else { Progress::NotYet(ready.map_or_else(|| "no status yet".to_owned(), text)) }
}

/// `90s`, `5m`, `1h30m`, or a bare number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let wrong = || format!("{text:?} is no duration; for example 90s or 5m");
    let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(span).map_err(|_| wrong())
}

pub async fn run(args: WaitArgs, session: &Session) -> Result<u8> {
    let default = args.namespace.or_default(session);
    let mut by_namespace: BTreeMap<String, Vec<String>> = BTreeMap::new();
    if args.all {
        by_namespace.insert(default.to_owned(), Vec::new());
    }
    for service in &args.services {
        let (namespace, name) = service_name(service, default)?;
        by_namespace.entry(namespace.to_owned()).or_default().push(name.to_owned());
    }
    let waits = by_namespace.into_iter().map(|(namespace, names)| async move {
        let wanted = Wanted { namespace, names, newest: args.fetch };
        match args.fetch {
            true => until_fetched(session, &wanted, args.goal, args.timeout).await,
            false => until(session, &wanted, args.goal, args.timeout).await,
        }
    });
    let codes: Vec<u8> = futures::future::try_join_all(waits).await?;
    Ok(codes.into_iter().max().unwrap_or(exit::YES))
}

/// Has the sources asked first, and then waits for what they have.
pub async fn until_fetched(session: &Session, wanted: &Wanted, goal: Goal, timeout: Duration) -> Result<u8> {
    ask(session, wanted).await?;
    match until(session, wanted, goal, timeout).await? {
        exit::YES => answered(session, wanted).await,
        code => Ok(code),
    }
}

/// Requests that the hub asks the services' sources now.
async fn ask(session: &Session, wanted: &Wanted) -> Result<()> {
    let now = jiff::Timestamp::now().to_string();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {REQUESTED_AT: now}}}));
    let api: Api<ServiceDeployment> = Api::namespaced(session.client.clone(), &wanted.namespace);
    for name in waited_for(session, wanted).await?.keys() {
        session.bounded("ask for it", api.patch(name, &PatchParams::default(), &patch)).await?;
    }
    Ok(())
}

/// Whether the sources have answered: what runs is healthy also while they don't.
async fn answered(session: &Session, wanted: &Wanted) -> Result<u8> {
    let mut code = exit::YES;
    for name in waited_for(session, wanted).await?.keys() {
        let finding = why::explain(session, &wanted.namespace, name).await?;
        if finding.link == Some(Link::Source) && finding.standing == Standing::Broken {
            say(&format!("{name} may not be at what was pushed: {}", text::plain(&finding.sentence)));
            code = exit::NO;
        }
    }
    Ok(code)
}

/// Says on standard output which services got there, and returns 0, 1 or 6.
pub async fn until(session: &Session, wanted: &Wanted, goal: Goal, timeout: Duration) -> Result<u8> {
    let mut missing = waited_for(session, wanted).await?;
    if missing.is_empty() {
        return Err(Failure::new(exit::MISSING, format!("there is no service in namespace {}", wanted.namespace))
            .next("{program} deploy GIT-URL --path FOLDER --cluster NAME"));
    }
    let watched = watch(session, wanted, goal, &mut missing);
    let outcome = tokio::time::timeout(timeout, watched).await;
    match outcome {
        Ok(result) => result,
        Err(_) => {
            say(&format!("timed out after {}s; {} of them not {}:", timeout.as_secs(), missing.len(), goal.word()));
            for name in missing.keys() {
                let line = match why::explain(session, &wanted.namespace, name).await {
                    Ok(finding) => finding.sentence,
                    Err(failure) => failure.cause,
                };
                say(&format!("  {name}: {}", text::plain(&line)));
            }
            Ok(exit::TIMEOUT)
        }
    }
}

/// What was last said of a service, and since when the hub says that it is stuck.
#[derive(Default)]
struct Said {
    state: String,
    stuck: Option<(Instant, String)>,
}

async fn waited_for(session: &Session, wanted: &Wanted) -> Result<BTreeMap<String, Said>> {
    if wanted.names.is_empty() {
        let services = session.list::<ServiceDeployment>(Some(&wanted.namespace)).await?;
        return Ok(services.into_iter().map(|service| (service.name_any(), Said::default())).collect());
    }
    for name in &wanted.names {
        session.get::<ServiceDeployment>(&wanted.namespace, name).await?;
    }
    Ok(wanted.names.iter().map(|name| (name.clone(), Said::default())).collect())
}

async fn watch(session: &Session, wanted: &Wanted, goal: Goal, missing: &mut BTreeMap<String, Said>) -> Result<u8> {
    let (namespace, newest) = (wanted.namespace.as_str(), wanted.newest);
    let api: Api<ServiceDeployment> = Api::namespaced(session.client.clone(), namespace);
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
                if give_up(session, namespace, goal, missing) {
                    code = exit::NO;
                }
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
                    say(&format!("connection trouble, trying again: {}", text::plain(&error.to_string())));
                }
                continue;
            }
        };
        let name = service.name_any();
        let Some(said) = missing.get_mut(&name) else { continue };
        let progress =
            if deleted { Progress::Refused("it was deleted".to_owned()) } else { judge(&service, goal, newest) };
        let (state, stuck) = match progress {
            Progress::Reached => {
                print(&format!("{namespace}/{name} {}\n", goal.word()))?;
                missing.remove(&name);
                continue;
            }
            Progress::Refused(state) => (state, true),
            Progress::NotYet(state) => (state, false),
        };
        if state != said.state {
            say(&format!("{name}: {}", text::plain(&state)));
        }
        let since = said.stuck.take().map_or_else(Instant::now, |(since, _)| since);
        said.stuck = stuck.then(|| (since, state.clone()));
        said.state = state;
    }
    Ok(code)
}

/// Drops the services that have been stuck for longer than the grace; says so.
fn give_up(session: &Session, namespace: &str, goal: Goal, missing: &mut BTreeMap<String, Said>) -> bool {
    let before = missing.len();
    missing.retain(|name, said| {
        let Some((_, reason)) = said.stuck.as_ref().filter(|(since, _)| since.elapsed() > GRACE) else { return true };
        say(&format!("{name} is not going to be {} by itself: {}", goal.word(), text::plain(reason)));
        say(&format!("  next: {} why {name} -n {namespace}", session.program.name()));
        false
    });
    missing.len() < before
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(status: serde_json::Value) -> ServiceDeployment {
        serde_json::from_value(json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": "web", "namespace": "team-a", "generation": 2},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}},
            "status": status
        }))
        .unwrap()
    }

    fn condition(type_: &str, status: &str) -> serde_json::Value {
        json!({"type": type_, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn healthy_means_the_assigned_revision_and_the_current_spec() {
        let ready = [condition("Ready", "True")];
        let now =
            json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b", "conditions": ready});
        assert_eq!(judge(&service(now), Goal::Healthy, false), Progress::Reached);
        let old_spec =
            json!({"observedGeneration": 1, "assignedRevision": "b", "appliedRevision": "b", "conditions": ready});
        assert!(matches!(judge(&service(old_spec), Goal::Healthy, false), Progress::NotYet(_)));
        let old_news =
            json!({"observedGeneration": 2, "assignedRevision": "c", "appliedRevision": "b", "conditions": ready});
        assert!(matches!(judge(&service(old_news), Goal::Healthy, false), Progress::NotYet(_)));
    }

    #[test]
    fn a_request_that_is_open_is_waited_for() {
        let status = |handled: &str| {
            json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                   "lastHandledReconcileAt": handled, "conditions": [condition("Ready", "True")]})
        };
        let asked = |handled| {
            let mut service = service(status(handled));
            service.metadata.annotations = Some([(REQUESTED_AT.to_owned(), "2".to_owned())].into());
            judge(&service, Goal::Healthy, false)
        };
        assert_eq!(asked("1"), Progress::NotYet("its source is being asked".to_owned()));
        assert_eq!(asked("2"), Progress::Reached);
    }

    #[test]
    fn what_was_fetched_and_is_held_back_is_not_there() {
        let check = |conditions: serde_json::Value, newest: bool| {
            let status = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b", "heldRevision": "c",
                                "conditions": conditions});
            judge(&service(status), Goal::Healthy, newest)
        };
        let ready = condition("Ready", "True");
        assert_eq!(check(json!([ready]), false), Progress::Reached);
        assert_eq!(check(json!([ready]), true), Progress::NotYet("c is not assigned yet: m".to_owned()));
        let frozen = json!([ready, condition("Frozen", "True")]);
        assert_eq!(check(frozen, true), Progress::Refused("c is held back: m".to_owned()));
    }

    #[test]
    fn applied_does_not_ask_for_health() {
        let status = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                            "conditions": [condition("Ready", "False")]});
        assert_eq!(judge(&service(status.clone()), Goal::Applied, false), Progress::Reached);
        assert_eq!(judge(&service(status), Goal::Healthy, false), Progress::NotYet("m".to_owned()));
    }

    #[test]
    fn a_stalled_service_is_an_honest_no() {
        let status = json!({"observedGeneration": 2, "conditions": [condition("Stalled", "True")]});
        assert_eq!(judge(&service(status), Goal::Applied, false), Progress::Refused("m".to_owned()));
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert!(parse_duration("soon").is_err());
        assert!(parse_duration("-5s").is_err());
    }
}
