//! `farwater why`: finds the first broken link of a service between Git and health, or the first problem of a set, a
//! cluster or a source.

use farwater_api::{
    ADMIN_NAMESPACE, AnySource, Cluster, GitRepository, HelmRepository, ManagedNamespace, OCIRepository,
    ServiceDeployment, ServiceSet, SourceKind, managed_namespace,
    objects::ObjectReport,
    service_set::{Member, RolloutStatus},
    service_sources::SourceReference,
};
use farwater_fleet::{
    conditions::holding,
    why::{self, ClusterEvidence, Evidence, Finding, Link, Lookup, NextStep, SetEvidence, Standing, Turn},
};
use kube::ResourceExt as _;

use crate::{
    commands::{objects, rollout},
    connection::Session,
    exit,
    failure::{Failure, Result},
    format::{self, Answer},
    granted,
    kinds::Kind,
    scope::{NamedObject, NamespaceArgs, object_name},
    terminal::{Colour, Terminal, print},
    text,
};

#[derive(Debug, clap::Args)]
pub struct WhyArgs {
    /// The service (NAME or NAMESPACE/NAME), or serviceset/NAME, managednamespace/NAME, cluster/NAME, or a source such as
    /// gitrepository/NAME.
    #[arg(value_name = "SERVICE|KIND/NAME")]
    what: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

pub async fn run(args: WhyArgs, session: &Session) -> Result<u8> {
    let NamedObject { kind, namespace, name } = object_name(&args.what, args.namespace.or_default(session))?;
    let finding = explain_named(session, &kind, namespace, name).await?;
    match args.output {
        Answer::Json => print(&format::json(&finding)?)?,
        Answer::Yaml => print(&format::yaml(&finding)?)?,
        Answer::Text => print(&render(&finding, session, Terminal::detect()))?,
    }
    Ok(if finding.standing == Standing::Healthy {
        exit::YES
    } else {
        exit::NO
    })
}

/// Explains an object from evidence that was read before, as of a moment.
pub type Judge = Box<dyn Fn(jiff::Timestamp) -> Finding + Send>;

/// Explains an object of any kind that `why` knows.
pub async fn explain_named(session: &Session, kind: &Kind, namespace: &str, name: &str) -> Result<Finding> {
    let judge = look(session, kind, namespace, name).await?;
    Ok(judge(jiff::Timestamp::now()))
}

/// Reads what the judgement needs.
pub async fn look(session: &Session, kind: &Kind, namespace: &str, name: &str) -> Result<Judge> {
    match kind.plural.as_str() {
        "servicedeployments" => look_at_service(session, namespace, name).await,
        "servicesets" => look_at_set(session, namespace, name).await,
        "managednamespaces" => {
            session.get::<ManagedNamespace>(namespace, name).await?;
            look_at_set(session, namespace, &managed_namespace::set_name(name)).await
        }
        "clusters" | "grantedclusters" => {
            let cluster = granted::see(session, namespace, name).await?;
            Ok(Box::new(move |now| why::explain_cluster(&cluster, now)))
        }
        plural => {
            let Some(kind) = SourceKind::ALL.into_iter().find(|source| source.plural() == plural) else {
                return Err(Failure::usage(format!("a {} has no health to explain", kind.kind))
                    .evidence("expected a service, or serviceset/NAME, cluster/NAME or a source")
                    .next(format!("{{program}} get {plural} {name} -n {namespace} -o yaml")));
            };
            let reference = SourceReference {
                kind,
                name: name.to_owned(),
            };
            let source = find_source(session, namespace, &reference).await?;
            let namespace = namespace.to_owned();
            Ok(Box::new(move |now| {
                why::explain_source(&source, &reference, &namespace, now)
            }))
        }
    }
}

async fn look_at_set(session: &Session, namespace: &str, name: &str) -> Result<Judge> {
    let set: ServiceSet = session.get(namespace, name).await?;
    let members = rollout::members(session, (namespace, name)).await?;
    Ok(Box::new(move |now| {
        why::explain_set(&SetEvidence {
            set: &set,
            members: &members,
            now,
        })
    }))
}

/// Why the sources of a service have no version for it until a person changes something. None: they work, they fail
/// only for a while, or the service needs nothing from them. `newest`: whether it needs something newer than the
/// assigned version.
pub async fn refused_by_source(session: &Session, namespace: &str, name: &str, newest: bool) -> Result<Option<String>> {
    let service: ServiceDeployment = session.get(namespace, name).await?;
    let has_some = service
        .status
        .as_ref()
        .is_some_and(|status| status.assigned_revision.is_some());
    if service.spec.pin.is_some() || (has_some && !newest) {
        return Ok(None);
    }
    let now = jiff::Timestamp::now();
    let sources = find_sources(session, namespace, &service).await?;
    Ok(sources.into_iter().find_map(|(reference, found)| {
        let source = found.found()?;
        let is_stalled = holding(&source.status.conditions, "Stalled").is_some();
        is_stalled.then(|| {
            let told = why::explain_source(&source, &reference, namespace, now).sentence;
            why::with_suspension(&service, told, now)
        })
    }))
}

/// Reads the evidence about a service and explains it.
pub async fn explain(session: &Session, namespace: &str, name: &str) -> Result<Finding> {
    let judge = look_at_service(session, namespace, name).await?;
    Ok(judge(jiff::Timestamp::now()))
}

async fn look_at_service(session: &Session, namespace: &str, name: &str) -> Result<Judge> {
    let service: ServiceDeployment = session.get(namespace, name).await?;
    let (sources, cluster, objects, turn) = tokio::join!(
        find_sources(session, namespace, &service),
        see_cluster(session, &service),
        objects::fetch(session, namespace, name),
        find_turn(session, &service),
    );
    let (sources, cluster, objects) = (sources?, lookup(cluster)?, lookup(objects)?);
    // A user who may read a service may lack the right to read its set.
    let turn = lookup(turn)?.found().flatten();
    Ok(Box::new(move |now| {
        why::explain(&Evidence {
            service: &service,
            sources: &sources,
            cluster: borrow(&cluster),
            objects: match &objects {
                Lookup::Found(objects) => Lookup::Found(objects.as_slice()),
                // The service exists, so a missing report means that there are no objects yet.
                Lookup::Missing => Lookup::Found(&[] as &[ObjectReport]),
                Lookup::Unreadable => Lookup::Unreadable,
            },
            rollout: turn
                .as_ref()
                .map(|(set, rollout, member)| Turn { set, rollout, member }),
            now,
        })
    }))
}

/// The set that owns the service, with the service's place in the rollout. None: no set owns it, or the set has never
/// rolled anything out.
async fn find_turn(session: &Session, service: &ServiceDeployment) -> Result<Option<(String, RolloutStatus, Member)>> {
    let owners = service.owner_references();
    let Some(owner) = owners
        .iter()
        .find(|owner| owner.kind == "ServiceSet" && owner.controller == Some(true))
    else {
        return Ok(None);
    };
    let (namespace, name) = (service.namespace().unwrap_or_default(), &owner.name);
    let set: ServiceSet = session.get(&namespace, name).await?;
    let attempt = format!("read the members of {namespace}/{name}");
    let path = format!(
        "{}/members?service={}",
        rollout::path(&namespace, name),
        service.name_any()
    );
    let mut page = session.read(&attempt, &path).await?;
    let members: Vec<Member> = serde_json::from_value(page["items"].take())
        .map_err(|error| session.failure(&attempt, &kube::Error::SerdeError(error)))?;
    let rollout = set.status.and_then(|status| status.rollout);
    Ok(rollout
        .zip(members.into_iter().next())
        .map(|(rollout, member)| (owner.name.clone(), rollout, member)))
}

/// A source of any of the kinds.
pub async fn find_source(session: &Session, namespace: &str, reference: &SourceReference) -> Result<AnySource> {
    Ok(match reference.kind {
        SourceKind::GitRepository => session.get::<GitRepository>(namespace, &reference.name).await?.into(),
        SourceKind::HelmRepository => session.get::<HelmRepository>(namespace, &reference.name).await?.into(),
        SourceKind::OciRepository => session.get::<OCIRepository>(namespace, &reference.name).await?.into(),
        SourceKind::ManagedNamespace => session
            .get::<ManagedNamespace>(namespace, &reference.name)
            .await?
            .into(),
    })
}

/// All sources that a service names, in the order of its spec.
async fn find_sources(
    session: &Session,
    namespace: &str,
    service: &ServiceDeployment,
) -> Result<Vec<(SourceReference, Lookup<AnySource>)>> {
    let mut found: Vec<(SourceReference, Lookup<AnySource>)> = Vec::new();
    for stated in service.spec.all_sources() {
        let known = found
            .iter()
            .find(|(known, _)| known == stated.reference)
            .map(|(_, source)| source.clone());
        let source = match known {
            Some(source) => source,
            None => lookup(find_source(session, namespace, stated.reference).await)?,
        };
        found.push((stated.reference.clone(), source));
    }
    Ok(found)
}

/// The service's cluster: in the named namespace, else in the service's own, else in the administrators'.
pub async fn find_cluster(session: &Session, service: &ServiceDeployment) -> Result<Cluster> {
    let reference = &service.spec.cluster_ref;
    if let Some(namespace) = &reference.namespace {
        return session.get(namespace, &reference.name).await;
    }
    match session
        .get::<Cluster>(&service.namespace().unwrap_or_default(), &reference.name)
        .await
    {
        Err(failure) if failure.is_missing() || failure.is_denied() => {
            session.get(ADMIN_NAMESPACE, &reference.name).await
        }
        found => found,
    }
}

/// What the user may see of the service's cluster.
pub async fn see_cluster(session: &Session, service: &ServiceDeployment) -> Result<ClusterEvidence> {
    let reference = &service.spec.cluster_ref;
    let own = service.namespace().unwrap_or_default();
    let namespace = reference.namespace.as_deref().unwrap_or(&own);
    let read = find_cluster(session, service).await;
    let tenants = [own.as_str(), namespace, &session.namespace];
    granted::or_granted(session, read, &tenants, (namespace, &reference.name)).await
}

fn lookup<T>(result: Result<T>) -> Result<Lookup<T>> {
    match result {
        Ok(value) => Ok(Lookup::Found(value)),
        Err(failure) if failure.is_missing() => Ok(Lookup::Missing),
        Err(failure) if failure.is_denied() => Ok(Lookup::Unreadable),
        Err(failure) => Err(failure),
    }
}

fn borrow<T>(lookup: &Lookup<T>) -> Lookup<&T> {
    match lookup {
        Lookup::Found(value) => Lookup::Found(value),
        Lookup::Missing => Lookup::Missing,
        Lookup::Unreadable => Lookup::Unreadable,
    }
}

fn render(finding: &Finding, session: &Session, terminal: Terminal) -> String {
    let (mark, colour) = match finding.standing {
        Standing::Healthy => ("ok", Colour::Good),
        Standing::Progressing => ("waiting", Colour::Doubtful),
        Standing::Broken => ("broken", Colour::Bad),
    };
    let at = finding
        .link
        .map(|link| format!(" at {}", station(link)))
        .unwrap_or_default();
    let mut lines = format!(
        "{}: {}\n",
        terminal.paint(colour, &format!("{mark}{at}")),
        text::plain(&finding.sentence)
    );
    for evidence in &finding.evidence {
        lines += &format!("  {}\n", text::plain(evidence));
    }
    for (word, step) in [("first", &finding.first), ("next", &finding.next)] {
        if let Some(step) = step {
            lines += &format!("{word}: {}\n", text::plain(&command(step, session)));
        }
    }
    lines
}

/// A next step as the user has to type it.
pub fn command(step: &NextStep, session: &Session) -> String {
    match step {
        NextStep::Farwater(arguments) => format!("{} {arguments}", session.program.name()),
        NextStep::Kubectl(arguments) => session.kubectl(arguments),
        NextStep::InCluster(arguments) => format!("in the cluster: kubectl {arguments}"),
    }
}

fn station(link: Link) -> &'static str {
    match link {
        Link::Source => "the source",
        Link::Bundle => "the bundle",
        Link::Parameters => "its parameters and Secrets",
        Link::Dependencies => "a dependency",
        Link::Placement => "placement",
        Link::Cluster => "the cluster",
        Link::Agent => "the agent",
        Link::Hooks => "a hook or test",
        Link::Objects => "the objects",
        Link::Health => "health",
        Link::Prune => "the prune",
        Link::Window => "a change window",
        Link::Rollout => "the rollout",
    }
}
