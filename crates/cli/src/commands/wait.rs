//! `farwater wait`: waits until services are healthy or applied, or sets, clusters and sources are ready. Ends early if
//! they can't get there by themselves.

mod others;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use farwater_api::{REQUESTED_AT, ServiceDeployment};
use farwater_fleet::{
    conditions::find,
    summary::FROZEN,
    why::{Finding, HeldBack, Link, NextStep, Standing, held_back},
};
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
    scope::{NamespaceArgs, object_name},
    terminal::{print, say},
    text,
};

#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    /// Services (NAME or NAMESPACE/NAME), serviceset/NAME, cluster/NAME, or sources such as gitrepository/NAME.
    #[arg(required_unless_present = "all", value_name = "SERVICE|KIND/NAME")]
    services: Vec<String>,
    /// Every service of the namespace.
    #[arg(long, conflicts_with = "services")]
    all: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// State to wait for.
    #[arg(long = "for", value_enum, value_name = "GOAL", default_value_t)]
    goal: Goal,
    /// Fetches the sources first, as after a push. Fails if one is unreachable.
    #[arg(long)]
    fetch: bool,
    /// Time limit, for example 90s or 10m; then the exit code is 6.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Goal {
    /// The agent has applied the assigned revision, and every object is healthy.
    #[default]
    Healthy,
    /// The agent has applied the assigned revision.
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

/// An object must have been stuck for this long. A source that was just made and an agent that tries again are stuck
/// for a moment only.
const GRACE: Duration = Duration::from_secs(10);
/// Pause between two reads of one object.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// The services of one namespace to wait for. No names: all that exist at the start.
pub struct Wanted {
    pub namespace: String,
    pub names: Vec<String>,
    /// Whether to wait for the newest version of their sources. False: the assigned version is enough.
    pub newest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    Reached,
    NotYet(String),
    /// The hub reports that the object won't get there by itself.
    Refused(String),
}

/// Judges a service by its status. A status of an older generation doesn't count. `newest`: waits for the newest
/// revision of the source, and not only for the assigned one.
fn judge(service: &ServiceDeployment, goal: Goal, newest: bool) -> Progress {
    let Some(status) = &service.status else {
        return Progress::NotYet("the hub has not processed it yet".to_owned());
    };
    let seen = status.observed_generation.unwrap_or_default() >= service.metadata.generation.unwrap_or_default();
    if !seen {
        return Progress::NotYet("the hub has not processed the new spec yet".to_owned());
    }
    let condition = |kind: &str| find(&status.conditions, kind);
    let text = |c: &farwater_api::Condition| {
        if c.message.is_empty() {
            c.reason.clone()
        } else {
            c.message.clone()
        }
    };
    // A fetch that began before the push doesn't include it.
    if service.open_request().is_some() {
        return Progress::NotYet("its source is being asked".to_owned());
    }
    if service.metadata.deletion_timestamp.is_some() {
        return Progress::Refused("it is being deleted".to_owned());
    }

    let held = held_back(service).filter(|_| newest).or_else(|| held_pin(service));
    // A changed spec of the same revision is another entry. A held service has no entry to apply.
    let applied = match status.assigned_entry {
        Some(entry) => status.applied_entry == Some(entry),
        None => status.applied_revision.is_some() && status.applied_revision == status.assigned_revision,
    };
    // An applied service may have failed since.
    if goal == Goal::Applied && applied && held.is_none() {
        return Progress::Reached;
    }
    if let Some(stalled) = condition("Stalled").filter(|c| c.status == "True") {
        return Progress::Refused(text(stalled));
    }
    if let Some(HeldBack { sentence, by_people }) = held {
        return if by_people {
            Progress::Refused(sentence)
        } else {
            Progress::NotYet(sentence)
        };
    }
    if let Some(prune) = condition("PruneHeld").filter(|c| c.status == "True") {
        return Progress::Refused(text(prune));
    }

    let ready = condition("Ready");
    if applied && ready.is_some_and(|c| c.status == "True") {
        Progress::Reached
    } else {
        Progress::NotYet(ready.map_or_else(|| "no status yet".to_owned(), text))
    }
}

/// A pin whose version is not assigned: not yet, or a ChangeWindow holds it.
fn held_pin(service: &ServiceDeployment) -> Option<HeldBack> {
    let (pin, status) = (service.spec.pin.as_ref()?, service.status.as_ref()?);
    if status.bundle_digest == Some(pin.bundle) {
        return None;
    }
    let frozen = find(&status.conditions, FROZEN).filter(|c| c.status == "True");
    Some(HeldBack {
        sentence: match frozen {
            Some(frozen) => format!("the pinned version is held back: {}", frozen.message),
            None => "the pinned version is not assigned yet".to_owned(),
        },
        by_people: frozen.is_some(),
    })
}

/// Parses `90s`, `5m`, `1h30m`, or a number of seconds without a unit.
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
    let mut others = Vec::new();
    for argument in &args.services {
        let named = object_name(argument, default)?;
        match named.kind.plural.as_str() {
            "servicedeployments" => {
                by_namespace
                    .entry(named.namespace.to_owned())
                    .or_default()
                    .push(named.name.to_owned());
            }
            _ => others.push(others::Awaited::new(named, args.fetch)?),
        }
    }
    let waits = by_namespace.into_iter().map(|(namespace, names)| async move {
        let wanted = Wanted {
            namespace,
            names,
            newest: args.fetch,
        };
        match args.fetch {
            true => until_fetched(session, &wanted, args.goal, args.timeout).await,
            false => until(session, &wanted, args.goal, args.timeout).await,
        }
    });
    let others = others
        .iter()
        .map(|awaited| others::until(session, awaited, args.goal, args.timeout));
    let (codes, more): (Vec<u8>, Vec<u8>) = futures::future::try_join(
        futures::future::try_join_all(waits),
        futures::future::try_join_all(others),
    )
    .await?;
    Ok(codes.into_iter().chain(more).max().unwrap_or(exit::YES))
}

/// Requests a fetch of the sources first, and then waits for the fetched versions.
pub async fn until_fetched(session: &Session, wanted: &Wanted, goal: Goal, timeout: Duration) -> Result<u8> {
    ask(session, wanted).await?;
    match until(session, wanted, goal, timeout).await? {
        exit::YES => answered(session, wanted).await,
        code => Ok(code),
    }
}

/// Requests that the hub fetches the services' sources now.
async fn ask(session: &Session, wanted: &Wanted) -> Result<()> {
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

/// Returns 0 if the sources could be fetched, else 1. A service is healthy also while its source can't be fetched.
async fn answered(session: &Session, wanted: &Wanted) -> Result<u8> {
    let mut code = exit::YES;
    for name in waited_for(session, wanted).await?.keys() {
        let finding = why::explain(session, &wanted.namespace, name).await?;
        if finding.link == Some(Link::Source) && finding.standing == Standing::Broken {
            say(&format!(
                "{name} may not have the pushed revision: {}",
                text::plain(&finding.sentence)
            ));
            code = exit::NO;
        }
    }
    Ok(code)
}

/// Prints the services that got there on standard output, and returns exit code 0, 1 or 6.
pub async fn until(session: &Session, wanted: &Wanted, goal: Goal, timeout: Duration) -> Result<u8> {
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
            let noun = if missing.len() == 1 {
                "service is"
            } else {
                "services are"
            };
            say(&format!(
                "timed out after {}s; {} {noun} not {}:",
                timeout.as_secs(),
                missing.len(),
                goal.word()
            ));
            for name in missing.keys() {
                match why::explain(session, &wanted.namespace, name).await {
                    Ok(finding) => tell(session, name, &finding),
                    Err(failure) => say(&format!("  {name}: {}", text::plain(&failure.cause))),
                }
            }
            Ok(exit::TIMEOUT)
        }
    }
}

/// How the wait for one object ends without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The object won't get there by itself.
    Stuck,
    TimedOut,
}

/// State of the wait for one object, which is read repeatedly.
pub struct Looks {
    deadline: Instant,
    said: String,
    stuck: Option<Instant>,
}

impl Looks {
    pub fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            said: String::new(),
            stuck: None,
        }
    }

    /// Prints a state that differs from the last one. None: wait with [`Self::pause`] and read the object again.
    pub fn note(&mut self, name: &str, state: &str, is_stuck: bool) -> Option<Over> {
        self.note_as(name, state, state, is_stuck)
    }

    /// The same where `told` counts seconds: it is printed when `state`, which doesn't, differs from the last one.
    pub fn note_as(&mut self, name: &str, state: &str, told: &str, is_stuck: bool) -> Option<Over> {
        if self.is_news(state) {
            say(&format!("{name}: {}", text::plain(told)));
        }
        self.stuck = is_stuck.then(|| self.stuck.unwrap_or_else(Instant::now));
        if self.stuck.is_some_and(|since| since.elapsed() > GRACE) {
            return Some(Over::Stuck);
        }
        (Instant::now() >= self.deadline).then_some(Over::TimedOut)
    }

    fn is_news(&mut self, state: &str) -> bool {
        let is_news = state != self.said;
        state.clone_into(&mut self.said);
        is_news
    }

    pub async fn pause(&self) {
        tokio::time::sleep(LOOK_PAUSE.min(self.deadline.saturating_duration_since(Instant::now()))).await;
    }
}

/// Prints the cause and the next command, unless that is another `wait`.
fn tell(session: &Session, name: &str, finding: &Finding) {
    say(&format!("  {name}: {}", text::plain(&finding.sentence)));
    if let Some(first) = &finding.first {
        say(&format!("  first: {}", text::plain(&why::command(first, session))));
    }
    let next = finding
        .next
        .as_ref()
        .filter(|next| !matches!(next, NextStep::Farwater(next) if next.starts_with("wait ")));
    if let Some(next) = next {
        say(&format!("  next: {}", text::plain(&why::command(next, session))));
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
                refuse_at_sources(session, wanted, missing).await;
                for (name, reason) in give_up(missing) {
                    code = exit::NO;
                    say(&format!("{name} is not going to be {} by itself: {}", goal.word(), text::plain(&reason)));
                    match why::explain(session, namespace, &name).await {
                        Ok(finding) => tell(session, &name, &finding),
                        Err(_) => say(&format!("  next: {} why {name} -n {namespace}", session.program.name())),
                    }
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
        let progress = if deleted {
            Progress::Refused("it was deleted".to_owned())
        } else {
            judge(&service, goal, newest)
        };
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

/// Removes the services that were stuck for longer than the grace period, and returns their names with the reasons.
fn give_up(missing: &mut BTreeMap<String, Said>) -> Vec<(String, String)> {
    let reason = |said: &Said| {
        let stuck = said.stuck.as_ref().filter(|(since, _)| since.elapsed() > GRACE);
        stuck.map(|(_, reason)| reason.clone()).or_else(|| said.refused.clone())
    };
    let over: Vec<(String, String)> = missing
        .iter()
        .filter_map(|(name, said)| Some((name.clone(), reason(said)?)))
        .collect();
    for (name, _) in &over {
        missing.remove(name);
    }
    over
}

#[cfg(test)]
mod tests {
    use farwater_api::{Digest, service_deployment::Pin};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
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
        assert!(matches!(
            judge(&service(old_spec), Goal::Healthy, false),
            Progress::NotYet(_)
        ));
        let old_news =
            json!({"observedGeneration": 2, "assignedRevision": "c", "appliedRevision": "b", "conditions": ready});
        assert!(matches!(
            judge(&service(old_news), Goal::Healthy, false),
            Progress::NotYet(_)
        ));
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
        assert_eq!(
            check(json!([ready]), true),
            Progress::NotYet("c is not assigned yet: m".to_owned())
        );
        let frozen = json!([ready, condition("Frozen", "True")]);
        assert_eq!(check(frozen, true), Progress::Refused("c is held back: m".to_owned()));
    }

    #[test]
    fn applied_does_not_ask_for_health() {
        let status = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                            "conditions": [condition("Ready", "False")]});
        assert_eq!(judge(&service(status.clone()), Goal::Applied, false), Progress::Reached);
        assert_eq!(
            judge(&service(status), Goal::Healthy, false),
            Progress::NotYet("m".to_owned())
        );
    }

    /// terraform-provider-argocd#110, ksail#5578.
    #[test]
    fn a_changed_spec_of_the_same_revision_and_a_removal_are_not_applied() {
        let status = |assigned: &str| {
            json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                   "assignedEntry": Digest::of(assigned), "appliedEntry": Digest::of("old"),
                   "conditions": [condition("Ready", "Unknown")]})
        };
        assert_eq!(judge(&service(status("old")), Goal::Applied, false), Progress::Reached);
        assert_eq!(
            judge(&service(status("new")), Goal::Applied, false),
            Progress::NotYet("m".to_owned())
        );
        let mut leaving = service(status("old"));
        leaving.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(
            judge(&leaving, Goal::Applied, false),
            Progress::Refused("it is being deleted".to_owned())
        );
    }

    #[test]
    fn what_is_applied_and_failed_later_is_applied() {
        let status = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                            "conditions": [condition("Ready", "False"), condition("Stalled", "True")]});
        assert_eq!(judge(&service(status.clone()), Goal::Applied, false), Progress::Reached);
        assert_eq!(
            judge(&service(status), Goal::Healthy, false),
            Progress::Refused("m".to_owned())
        );
    }

    #[test]
    fn a_pin_that_a_freeze_holds_and_a_prune_that_waits_for_a_person_are_no_success() {
        let mut pinned = service(
            json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
            "bundleDigest": Digest::of("b"), "conditions": [condition("Ready", "True"), condition("Frozen", "True")]}),
        );
        assert_eq!(judge(&pinned, Goal::Healthy, false), Progress::Reached);
        pinned.spec.pin = Some(Pin {
            bundle: Digest::of("a"),
            reason: None,
        });
        let held = Progress::Refused("the pinned version is held back: m".to_owned());
        assert_eq!(judge(&pinned, Goal::Healthy, false), held);
        assert_eq!(judge(&pinned, Goal::Applied, false), held);

        let waits = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "a",
                           "conditions": [condition("Ready", "False"), condition("PruneHeld", "True")]});
        assert_eq!(
            judge(&service(waits), Goal::Healthy, false),
            Progress::Refused("m".to_owned())
        );
    }

    #[test]
    fn a_stalled_service_is_an_honest_no() {
        let status = json!({"observedGeneration": 2, "conditions": [condition("Stalled", "True")]});
        assert_eq!(
            judge(&service(status), Goal::Applied, false),
            Progress::Refused("m".to_owned())
        );
    }

    #[test]
    fn a_state_is_printed_when_it_differs_from_the_last_one() {
        let mut looks = Looks::until(Instant::now());
        let news = ["a", "a", "b", "a"].map(|state| looks.is_news(state));
        assert_eq!(news, [true, false, true, true]);
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert!(parse_duration("soon").is_err());
        assert!(parse_duration("-5s").is_err());
    }
}
