//! `farwater freeze`: stops changes in the fleet or in a part of it; or lets one begin nevertheless.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use farwater_api::{
    ADMIN_NAMESPACE, ChangeWindow, GROUP, OVERRIDE_FREEZE, PROPOSE_OVERRIDE, SET_LABEL, ServiceDeployment, ServiceSet,
    VERSION,
};
use farwater_fleet::stamping::set_label;
use http::Method;
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    commands::wait,
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::{NamespaceArgs, any_name, is_name, parse_label, service_name, set_name},
    terminal::{print, say},
};

/// Time for the hub to apply a new freeze, which takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
const SET_PREFIX: &str = "serviceset/";

#[derive(Debug, clap::Args)]
pub struct FreezeArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// The reason, for later readers.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// When it ends, for example 2027-01-04T06:00:00Z or 2027-01-04T06:00+01:00.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Timestamp>,
    /// How long it lasts, instead of an end time.
    #[arg(long = "for", value_name = "DURATION", value_parser = wait::parse_duration, conflicts_with = "until")]
    duration: Option<Duration>,
    /// Until a person ends it.
    #[arg(long, conflicts_with_all = ["until", "duration"])]
    indefinitely: bool,
    /// When it begins [default: now].
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    from: Option<Timestamp>,
    /// Only this cluster, or clusters with this label: NAME or KEY=VALUE. Several names: any of them. Several labels,
    /// or a label and a name: all must match.
    #[arg(long = "cluster", value_name = "CLUSTER")]
    clusters: Vec<String>,
    /// Only this service, a set's services, or services with this label: NAME, serviceset/NAME or KEY=VALUE. Several
    /// names: any of them. Several labels or sets, or one and a name: all must match.
    #[arg(long = "service", value_name = "SERVICE")]
    services: Vec<String>,
    /// Name of the freeze [default: generated].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Starts the pending changes of a service or a set despite the freeze: NAME, serviceset/NAME or
    /// managednamespace/NAME. Valid for a day.
    #[arg(
        long = "override",
        value_name = "SERVICE",
        conflicts_with_all = ["until", "duration", "indefinitely", "from", "clusters", "services", "name"]
    )]
    let_through: Option<String>,
    /// With --override, if two people are required: proposes the override. Another person then runs the same command
    /// without this option.
    #[arg(long, requires = "let_through")]
    propose: bool,
}

#[derive(Debug, clap::Args)]
pub struct UnfreezeArgs {
    /// The freeze: NAME or NAMESPACE/NAME.
    name: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

fn parse_time(text: &str) -> std::result::Result<Timestamp, String> {
    let time: Timestamp = text
        .parse()
        .map_err(|_| format!("{text:?} is no time; for example 2027-01-04T06:00:00Z"))?;
    // Whole seconds, like times in Kubernetes.
    Timestamp::from_second(time.as_second()).map_err(|error| error.to_string())
}

fn path(namespace: &str, plural: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}")
}

pub async fn run(args: FreezeArgs, session: &Session) -> Result<u8> {
    if args.reason.trim().is_empty() {
        return Err(Failure::usage(
            "--reason is empty: state why; people with pending changes read it",
        ));
    }
    match &args.let_through {
        Some(named) => let_through(named, &args, session).await,
        None => freeze(&args, session).await,
    }
}

async fn freeze(args: &FreezeArgs, session: &Session) -> Result<u8> {
    let namespace = args.namespace.or_default(session);
    if let Some(name) = args.name.as_ref().filter(|name| !is_name(name)) {
        return Err(Failure::usage(format!("{name:?} can't be a name")));
    }
    let spec = spec(args, Timestamp::now())?;
    let metadata = match &args.name {
        Some(name) => json!({"name": name, "namespace": namespace}),
        None => json!({"generateName": "freeze-", "namespace": namespace}),
    };
    let body = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ChangeWindow", "metadata": metadata, "spec": spec,
    });
    let path = format!(
        "{}?fieldManager=farwater-cli&fieldValidation=Strict",
        path(namespace, "changewindows")
    );
    let made = session
        .ask("make a freeze", Method::POST, &path, "application/json", Some(&body))
        .await?;
    let name = made["metadata"]["name"].as_str().unwrap_or_default();
    print(&format!("changewindow.{GROUP}/{name} created\n"))?;
    if !is_followed(session, namespace, name).await {
        let look = session.kubectl(&format!("get changewindows.{GROUP} {name} -n {namespace}"));
        say(&format!("the hub has not confirmed it yet; see {look}"));
    }
    say(&describe(namespace, &spec));
    note_missing(session, namespace, &spec).await;
    say(&format!(
        "next: {} unfreeze {name} -n {namespace}",
        session.program.name()
    ));
    Ok(exit::YES)
}

/// Whether the hub reports the freeze as applied within the time; until then a change that was decided before may
/// begin. False also for users who may create a freeze but not read it.
async fn is_followed(session: &Session, namespace: &str, name: &str) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let Ok(window) = session.get::<ChangeWindow>(namespace, name).await else {
            return false;
        };
        if window.status.is_some_and(|status| status.observed_generation.is_some()) {
            return true;
        }
        tokio::time::sleep(PAUSE).await;
    }
    false
}

/// Names clusters and services that don't exist, because a name with a typing error protects nothing.
async fn note_missing(session: &Session, namespace: &str, spec: &Value) {
    for (field, plural, kind) in [
        ("clusters", "clusters", "Cluster"),
        ("services", "servicedeployments", "ServiceDeployment"),
    ] {
        for name in spec[field].as_array().into_iter().flatten().filter_map(Value::as_str) {
            // A freeze of the administrators' namespace concerns all namespaces.
            let place = match namespace {
                ADMIN_NAMESPACE => format!("/apis/{GROUP}/{VERSION}/{plural}"),
                namespace => path(namespace, plural),
            };
            let query = format!("{place}?fieldSelector=metadata.name%3D{name}&limit=1");
            let found = session.read(&format!("look for {kind} {name}"), &query).await;
            if found.is_ok_and(|list| list["items"].as_array().is_some_and(Vec::is_empty)) {
                say(&format!(
                    "note: no {kind} is named {name}; the freeze concerns one that gets this name"
                ));
            }
        }
    }
}

fn spec(args: &FreezeArgs, now: Timestamp) -> Result<Value> {
    let end = resolve_end(args, args.from.unwrap_or(now))?;
    let mut spec = json!({"type": "Deny", "reason": args.reason.trim()});
    let mut set = |field: &str, value: Value| spec[field] = value;
    if let Some(from) = args.from {
        set("start", json!(from));
    }
    if let Some(end) = end {
        set("end", json!(end));
    }
    for (given, names, selector) in [
        (&args.clusters, "clusters", "clusterSelector"),
        (&args.services, "services", "serviceSelector"),
    ] {
        let (named, labels) = read_selection(given, names == "services")?;
        if !named.is_empty() {
            set(names, json!(named));
        }
        if !labels.is_empty() {
            set(selector, json!({"matchLabels": labels}));
        }
    }
    Ok(spec)
}

/// The end of a freeze, in whole seconds. None: a person ends it.
fn resolve_end(args: &FreezeArgs, begin: Timestamp) -> Result<Option<Timestamp>> {
    let end = match (args.until, args.duration, args.indefinitely) {
        (Some(until), ..) => Some(until),
        (None, Some(duration), _) => {
            let end = begin.checked_add(duration);
            let end = end.map_err(|_| Failure::usage("--for is longer than the calendar goes"))?;
            Some(Timestamp::from_second(end.as_second()).unwrap_or(end))
        }
        (None, None, true) => None,
        (None, None, false) => {
            return Err(Failure::usage(
                "say when it ends: --until TIME, --for DURATION or --indefinitely",
            ));
        }
    };
    if end.is_some_and(|end| end <= begin) {
        return Err(Failure::usage("it would end before it begins"));
    }
    Ok(end)
}

/// Splits the values of --cluster or --service into names and labels. `sets`: a set counts as its label.
fn read_selection(given: &[String], sets: bool) -> Result<(Vec<&String>, BTreeMap<String, String>)> {
    let (mut named, mut labels) = (Vec::new(), BTreeMap::new());
    for given in given {
        let of_set = given.strip_prefix(SET_PREFIX).filter(|name| sets && is_name(name));
        let (key, value) = match of_set {
            Some(name) => (SET_LABEL.to_owned(), set_label(name)),
            None if given.contains('=') => parse_label(given).map_err(Failure::usage)?,
            None if is_name(given) => {
                named.push(given);
                continue;
            }
            None => {
                let told = format!("{given:?} names nothing");
                return Err(Failure::usage(told).evidence("expected NAME or KEY=VALUE"));
            }
        };
        let told = format!("nothing has two values of the label {key}");
        if labels.insert(key, value.clone()).is_some_and(|other| other != value) {
            return Err(Failure::usage(told).evidence("make a freeze of each"));
        }
    }
    Ok((named, labels))
}

/// `no change of service web starts on cluster east until …`
fn describe(namespace: &str, spec: &Value) -> String {
    let services = describe_named("service", &spec["services"], &spec["serviceSelector"]);
    let clusters = describe_named("cluster", &spec["clusters"], &spec["clusterSelector"]);
    let from = spec["start"]
        .as_str()
        .map(|start| format!(" from {start}"))
        .unwrap_or_default();
    let until = spec["end"]
        .as_str()
        .map_or_else(|| " until a person ends it".to_owned(), |end| format!(" until {end}"));

    let is_fleets = namespace == ADMIN_NAMESPACE;
    let place = match (&services, clusters) {
        (_, Some(clusters)) => format!(" on {clusters}"),
        (None, None) if is_fleets => " in the whole fleet".to_owned(),
        (Some(_), None) if is_fleets => " in any namespace".to_owned(),
        (_, None) => String::new(),
    };
    let scope = match is_fleets {
        true => String::new(),
        false => format!("; this holds for the services of namespace {namespace} and for all services on its clusters"),
    };
    let of = services.map(|services| format!(" of {services}")).unwrap_or_default();
    format!("no change{of} starts{place}{from}{until}{scope}")
}

/// `service web or api with tier=front`. None: the freeze names none, so it holds for all.
fn describe_named(noun: &str, names: &Value, selector: &Value) -> Option<String> {
    let names: Vec<&str> = names
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels: Vec<String> = labels
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let (names, labels) = (names.join(" or "), labels.join(" and "));
    match (names.is_empty(), labels.is_empty()) {
        (true, true) => None,
        (true, false) => Some(format!("{noun}s with {labels}")),
        (false, true) => Some(format!("{noun} {names}")),
        (false, false) => Some(format!("{noun} {names} with {labels}")),
    }
}

async fn let_through(named: &str, args: &FreezeArgs, session: &Session) -> Result<u8> {
    let default = args.namespace.or_default(session);
    let annotation = if args.propose {
        PROPOSE_OVERRIDE
    } else {
        OVERRIDE_FREEZE
    };
    let (plural, singular, (namespace, name), standing) = match set_name(named, default) {
        Some(set) => {
            let named = set?;
            let (namespace, name) = named.names();
            let set: ServiceSet = session.get(namespace, name).await?;
            let standing = set.annotations().get(annotation).cloned();
            (
                "servicesets",
                "serviceset",
                (namespace.to_owned(), name.to_owned()),
                standing,
            )
        }
        None => {
            let (namespace, name) = service_name(named, default)?;
            let service: ServiceDeployment = session.get(namespace, name).await?;
            refuse_owned(&service, (namespace, name))?;
            let standing = service.annotations().get(annotation).cloned();
            (
                "servicedeployments",
                "servicedeployment",
                (namespace.to_owned(), name.to_owned()),
                standing,
            )
        }
    };

    let reason = args.reason.trim();
    // A proposal counts from its time, so it is made again.
    if !args.propose && standing.as_deref() == Some(reason) {
        print(&format!("{singular}.{GROUP}/{name} unchanged: this counts already\n"))?;
        return Ok(exit::YES);
    }

    let attempt = match args.propose {
        true => format!("propose that changes of {namespace}/{name} begin"),
        false => format!("let changes of {namespace}/{name} begin"),
    };
    let path = format!("{}/{name}", path(&namespace, plural));
    annotate(session, &attempt, &path, (annotation, reason))
        .await
        .map_err(|failure| match args.propose && failure.code == exit::CONFLICT {
            true => failure.next("give the command without --propose"),
            false => failure,
        })?;

    let told = match args.propose {
        true => "proposed: within a day another person can give the same command without --propose",
        false => "overridden: its changes begin, for a day",
    };
    print(&format!("{singular}.{GROUP}/{name} {told}\n"))?;
    Ok(exit::YES)
}

/// Refuses a service of a set, because the set's rollout decides when the service changes.
fn refuse_owned(service: &ServiceDeployment, (namespace, name): (&str, &str)) -> Result<()> {
    let owners = service.owner_references();
    let Some(set) = owners
        .iter()
        .find(|owner| owner.kind == "ServiceSet" && owner.controller == Some(true))
    else {
        return Ok(());
    };
    let told = format!(
        "{namespace}/{name} is of ServiceSet {}, whose rollout says when it changes",
        set.name
    );
    let next = format!(
        "{{program}} freeze --override serviceset/{} -n {namespace} --reason TEXT",
        set.name
    );
    Err(Failure::new(exit::CONFLICT, told).next(next))
}

/// Sets one annotation of the object at a path.
async fn annotate(session: &Session, attempt: &str, path: &str, (key, value): (&str, &str)) -> Result<Value> {
    let path = format!("{path}?fieldManager=farwater-cli&fieldValidation=Strict");
    let patch = json!({"metadata": {"annotations": {key: value}}});
    session
        .ask(attempt, Method::PATCH, &path, "application/json", Some(&patch))
        .await
}

pub async fn end(args: UnfreezeArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = any_name(&args.name, args.namespace.or_default(session), "freeze")?;
    let window: ChangeWindow = session.get(namespace, name).await?;
    if window.spec.schedule.is_some() {
        let told = format!("{namespace}/{name} is no freeze: it comes again, by its schedule");
        let next = session.kubectl(&format!("delete changewindows.{GROUP} {name} -n {namespace}"));
        return Err(Failure::new(exit::CONFLICT, told).next(next));
    }
    let path = format!("{}/{name}", path(namespace, "changewindows"));
    session
        .ask(
            &format!("end {namespace}/{name}"),
            Method::DELETE,
            &path,
            "application/json",
            None,
        )
        .await?;
    print(&format!("changewindow.{GROUP}/{name} deleted\n"))?;
    Ok(exit::YES)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        freeze: FreezeArgs,
    }

    fn read(words: &[&str]) -> std::result::Result<Value, String> {
        let line = Line::try_parse_from(std::iter::once(&"freeze").chain(words)).map_err(|error| error.to_string())?;
        spec(&line.freeze, "2026-12-20T12:00:00.5Z".parse().unwrap()).map_err(|failure| failure.render("farwater"))
    }

    #[test]
    fn a_freeze_is_a_window_that_denies() {
        let spec = read(&["--reason", " holidays ", "--until", "2027-01-04T06:00+01:00"]).unwrap();
        assert_eq!(
            spec,
            json!({"type": "Deny", "reason": "holidays", "end": "2027-01-04T05:00:00Z"})
        );
        assert_eq!(
            describe(ADMIN_NAMESPACE, &spec),
            "no change starts in the whole fleet until 2027-01-04T05:00:00Z"
        );
        let narrow = [
            "--cluster",
            "east",
            "--cluster",
            "env=prod",
            "--service",
            "web",
            "--service",
            "tier=front",
        ];
        let spec = read(&[&["--reason", "x", "--for", "2h"][..], &narrow].concat()).unwrap();
        let expected = json!({
            "type": "Deny", "reason": "x", "end": "2026-12-20T14:00:00Z", "clusters": ["east"], "services": ["web"],
            "clusterSelector": {"matchLabels": {"env": "prod"}}, "serviceSelector": {"matchLabels": {"tier": "front"}},
        });
        assert_eq!(spec, expected);
        assert_eq!(
            describe("team-a", &spec),
            "no change of service web with tier=front starts on cluster east with env=prod until 2026-12-20T14:00:00Z; this holds for \
             the services of namespace team-a and for all services on its clusters"
        );
        let spec = read(&["--reason", "x", "--for", "2h", "--service", "serviceset/web"]).unwrap();
        assert_eq!(
            spec["serviceSelector"],
            json!({"matchLabels": {"farwater.dev/set": "web"}})
        );
        let later = ["--reason", "x", "--from", "2026-12-24T00:00:00Z", "--indefinitely"];
        assert_eq!(read(&later).unwrap()["start"], "2026-12-24T00:00:00Z");
    }

    #[test]
    fn a_freeze_says_what_it_holds_and_where() {
        let check = |namespace: &str, words: &[&str], expected: &str| {
            let spec = read(&[&["--reason", "x", "--indefinitely"][..], words].concat()).unwrap();
            assert_eq!(describe(namespace, &spec), expected);
        };
        let admin = ADMIN_NAMESPACE;
        check(
            admin,
            &["--service", "web", "--service", "api"],
            "no change of service web or api starts in any namespace until a person ends it",
        );
        check(
            admin,
            &["--cluster", "east"],
            "no change starts on cluster east until a person ends it",
        );
        check(
            admin,
            &["--cluster", "env=prod", "--service", "web"],
            "no change of service web starts on clusters with env=prod until a person ends it",
        );
        check(
            "team-a",
            &["--from", "2027-01-04T06:00:00Z"],
            "no change starts from 2027-01-04T06:00:00Z until a person ends it; this holds for the services of namespace team-a and \
             for all services on its clusters",
        );
    }

    #[test]
    fn what_would_be_no_freeze_is_refused() {
        let refused = |words: &[&str], expected: &str| {
            let told = read(words).unwrap_err();
            assert!(told.contains(expected), "{told}");
        };
        refused(&["--until", "2027-01-04T06:00:00Z"], "--reason <TEXT>");
        refused(
            &["--reason", "x"],
            "say when it ends: --until TIME, --for DURATION or --indefinitely",
        );
        refused(
            &["--reason", "x", "--until", "tomorrow"],
            "is no time; for example 2027-01-04T06:00:00Z",
        );
        refused(
            &["--reason", "x", "--until", "2026-12-20T11:00:00Z"],
            "it would end before it begins",
        );
        refused(
            &["--reason", "x", "--for", "1h", "--indefinitely"],
            "cannot be used with",
        );
        refused(
            &["--reason", "x", "--for", "1h", "--cluster", "../east"],
            "names nothing",
        );
        refused(
            &["--reason", "x", "--for", "1h", "--cluster", "serviceset/web"],
            "names nothing",
        );
        let two = [
            "--reason",
            "x",
            "--for",
            "1h",
            "--cluster",
            "env=a",
            "--cluster",
            "env=b",
        ];
        refused(&two, "nothing has two values of the label env");
        refused(
            &["--reason", "x", "--for", "1h", "--service", "a b=c"],
            "\"a b=c\" is no label",
        );
        refused(
            &["--reason", "x", "--override", "web", "--for", "1h"],
            "cannot be used with",
        );
    }
}
