//! `farwater delete`: deletes services, sets, sources and other resources of the hub, after showing the consequences
//! for the clusters.

mod effects;
mod gone;

use std::time::Duration;

use farwater_api::{
    Cluster, ManagedNamespace, ServiceDeployment, ServiceSet, SourceKind, managed_namespace,
    service_sources::SourceReference,
};
use http::Method;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    commands::{objects, wait::parse_duration, why},
    connection::Session,
    exit,
    failure::{Failure, Result},
    kinds,
    scope::{NamedObject, NamespaceArgs, object_name},
    terminal::{self, print, say},
    text,
};

pub use gone::wait as wait_until_gone;

#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    /// Services (NAME or NAMESPACE/NAME), or KIND/NAME and KIND/NAMESPACE/NAME of any kind of Farwater.
    #[arg(required = true, value_name = "SERVICE|KIND/NAME")]
    what: Vec<String>,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Does not ask for confirmation. Required for a source that services use.
    #[arg(short, long)]
    yes: bool,
    /// Waits until everything is deleted. Exits with 1 if a person must act, and with 6 at the time limit.
    #[arg(long)]
    wait: bool,
    /// Time limit of --wait, for example 90s or 10m.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
}

/// An object to delete.
#[derive(Clone, Debug)]
pub struct Doomed {
    kind: kinds::Kind,
    namespace: String,
    name: String,
    /// uid of the object that was read. An object recreated with the same name is another one.
    uid: String,
}

impl Doomed {
    /// The object as it was read.
    pub fn of(kind: kinds::Kind, object: &Value) -> Self {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        Self {
            kind,
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
        }
    }

    fn path(&self) -> String {
        self.kind.path(Some(&self.namespace), Some(&self.name))
    }

    /// `servicedeployment.farwater.dev/web`
    fn qualified(&self) -> String {
        self.kind.qualified(&self.name)
    }

    /// `team-a/web`
    fn place(&self) -> String {
        if self.kind.namespaced {
            format!("{}/{}", self.namespace, self.name)
        } else {
            self.name.clone()
        }
    }

    /// The object as an argument of a command, with its namespace.
    fn argument(&self) -> String {
        let name = match self.kind.plural.as_str() {
            "servicedeployments" => self.name.clone(),
            _ => format!("{}/{}", self.kind.singular, self.name),
        };
        if self.kind.namespaced {
            format!("{name} -n {}", self.namespace)
        } else {
            name
        }
    }
}

/// Facts about one object, read before anything is deleted.
struct Outlook {
    doomed: Doomed,
    /// Consequences of the deletion, one line each.
    effects: Vec<String>,
    /// Services and sets that use the source.
    users: Vec<String>,
    /// Other objects that are deleted with it and waited for.
    with: Vec<Doomed>,
}

impl Outlook {
    /// The outlook of an object that has no users and is deleted alone.
    fn of(named: &NamedObject<'_>, uid: Option<String>, effects: Vec<String>) -> Self {
        Self {
            doomed: Doomed {
                kind: named.kind.clone(),
                namespace: named.namespace.to_owned(),
                name: named.name.to_owned(),
                uid: uid.unwrap_or_default(),
            },
            effects,
            users: Vec::new(),
            with: Vec::new(),
        }
    }
}

pub async fn run(args: DeleteArgs, session: &Session) -> Result<u8> {
    let default = args.namespace.or_default(session);
    let mut outlooks: Vec<Outlook> = Vec::new();
    for argument in &args.what {
        let named = object_name(argument, default)?;
        let outlook = look(session, &named).await?;
        if outlooks.iter().all(|known| known.doomed.uid != outlook.doomed.uid) {
            outlooks.push(outlook);
        }
    }
    // Missing rights, and objects that only their owner may delete, end the command before the question.
    for outlook in &outlooks {
        delete(session, &outlook.doomed, true).await?;
    }
    for outlook in &outlooks {
        say(&describe(outlook));
    }
    if !args.yes {
        refuse_in_use(&outlooks)?;
        match terminal::confirm("Delete?")? {
            Some(true) => {}
            Some(false) => return Ok(exit::NO),
            None => {
                return Err(Failure::usage("nothing was deleted: standard input is not a terminal")
                    .next(format!("{{program}} delete {} --yes", given(&args))));
            }
        }
    }
    let mut going = Vec::new();
    for outlook in &outlooks {
        let is_gone = delete(session, &outlook.doomed, false).await?;
        if is_gone || !args.wait {
            let told = if is_gone { "deleted" } else { "is being deleted" };
            print(&format!("{} {told}\n", outlook.doomed.qualified()))?;
        }
        going.extend((!is_gone).then(|| outlook.doomed.clone()));
        going.extend(outlook.with.iter().cloned());
    }
    if args.wait {
        return gone::wait(session, &going, args.timeout).await;
    }
    if let Some(first) = going.first() {
        let program = session.program.name();
        say(&format!(
            "next: {program} delete {} --yes --wait # returns when it is gone",
            first.argument()
        ));
    }
    Ok(exit::YES)
}

/// The arguments as given.
fn given(args: &DeleteArgs) -> String {
    let namespace = args
        .namespace
        .namespace
        .as_ref()
        .map(|namespace| format!(" -n {namespace}"))
        .unwrap_or_default();
    args.what.join(" ") + &namespace
}

fn describe(outlook: &Outlook) -> String {
    let lines: String = outlook
        .effects
        .iter()
        .map(|line| format!("\n  {}", text::plain(line)))
        .collect();
    format!("{} {}{lines}", outlook.doomed.kind.kind, outlook.doomed.place())
}

/// Refuses to delete a source in use. Only its own namespace is checked, because a source serves the services of its
/// namespace.
fn refuse_in_use(outlooks: &[Outlook]) -> Result<()> {
    // Users that are deleted by the same command don't count.
    let goes = |user: &String| {
        outlooks
            .iter()
            .any(|outlook| outlook.doomed.argument().split(' ').next() == Some(user))
    };
    let in_use = outlooks
        .iter()
        .find(|outlook| outlook.users.iter().any(|user| !goes(user)));
    let Some(Outlook { doomed, users, .. }) = in_use else {
        return Ok(());
    };
    let program = "{program}";
    Err(Failure::new(
        exit::CONFLICT,
        format!("{} {} is in use; nothing was deleted", doomed.kind.kind, doomed.place()),
    )
    .evidence(format!("used by {}", effects::list(users)))
    .next(format!(
        "delete these first, or give --yes: {program} delete {} --yes",
        doomed.argument()
    )))
}

/// Deletes exactly the object that was read. Returns whether it is gone at once. `trial`: only checks whether that is
/// allowed.
async fn delete(session: &Session, doomed: &Doomed, trial: bool) -> Result<bool> {
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": doomed.uid}});
    if trial {
        options["dryRun"] = json!(["All"]);
    }
    let attempt = format!("delete {} {}", doomed.kind.kind, doomed.place());
    match session
        .ask(
            &attempt,
            Method::DELETE,
            &doomed.path(),
            "application/json",
            Some(&options),
        )
        .await
    {
        Ok(answer) => Ok(answer["kind"] == "Status"),
        Err(failure) if failure.is_missing() => Ok(true),
        Err(failure) => Err(name_owner(doomed, failure)),
    }
}

/// An object that its owner would create again is deleted with its owner.
fn name_owner(doomed: &Doomed, failure: Failure) -> Failure {
    let Some(owner) = failure.owner.clone() else {
        return failure;
    };
    let is_service = doomed.kind.plural == "servicedeployments";
    let or = if is_service {
        ", or leave its cluster out of the selector there"
    } else {
        ""
    };
    failure.next(format!("{{program}} delete {owner}{or}"))
}

async fn look(session: &Session, named: &NamedObject<'_>) -> Result<Outlook> {
    match named.kind.plural.as_str() {
        "servicedeployments" => look_at_service(session, named).await,
        "servicesets" => look_at_set(session, named).await,
        "managednamespaces" => look_at_managed(session, named).await,
        "clusters" => look_at_cluster(session, named).await,
        plural => match SourceKind::ALL.into_iter().find(|source| source.plural() == plural) {
            Some(source) => look_at_source(session, named, source).await,
            None => look_at_other(session, named).await,
        },
    }
}

/// Reads the service's cluster, objects and dependents too, because the effects depend on them.
async fn look_at_service(session: &Session, named: &NamedObject<'_>) -> Result<Outlook> {
    let NamedObject { namespace, name, .. } = named;
    let service: ServiceDeployment = session.get(namespace, name).await?;
    let (cluster, reports, others) = tokio::join!(
        why::see_cluster(session, &service),
        objects::fetch(session, namespace, name),
        session.list::<ServiceDeployment>(Some(namespace)),
    );
    // A part that can't be read is named; the hub decides whether the deletion is allowed.
    let (reports, others) = (
        reports.map_err(|failure| failure.cause),
        others.map_err(|failure| failure.cause),
    );
    let told = effects::of_service(&effects::Looked {
        service: &service,
        cluster: cluster.ok().as_ref(),
        objects: reports.as_deref().map_err(String::as_str),
        others: others.as_deref().map_err(String::as_str),
    });
    Ok(Outlook::of(named, service.uid(), told))
}

/// The status of the set says how many services are deleted with it.
async fn look_at_set(session: &Session, named: &NamedObject<'_>) -> Result<Outlook> {
    let set: ServiceSet = session.get(named.namespace, named.name).await?;
    Ok(Outlook::of(named, set.uid(), effects::of_set(&set)))
}

/// Looks at a ManagedNamespace and at the set that it created, which is deleted with it.
async fn look_at_managed(session: &Session, named: &NamedObject<'_>) -> Result<Outlook> {
    let NamedObject { namespace, name, .. } = named;
    let managed: ManagedNamespace = session.get(namespace, name).await?;
    let set = managed_namespace::set_name(name);
    let made = match session.get::<ServiceSet>(namespace, &set).await {
        Err(failure) if failure.is_missing() => None,
        made => Some(made?),
    };
    let kind = kinds::find("servicesets");
    let with = made.zip(kind).map(|(made, kind)| Doomed {
        kind,
        namespace: (*namespace).to_owned(),
        name: set,
        uid: made.uid().unwrap_or_default(),
    });
    Ok(Outlook {
        with: with.into_iter().collect(),
        ..Outlook::of(named, managed.uid(), effects::of_managed_namespace(&managed))
    })
}

/// Names the services on the cluster, whose agent the hub refuses from then on.
async fn look_at_cluster(session: &Session, named: &NamedObject<'_>) -> Result<Outlook> {
    let NamedObject { namespace, name, .. } = named;
    let cluster: Cluster = session.get(namespace, name).await?;
    let services = services_on(session, (namespace, name))
        .await
        .map_err(|failure| failure.cause);
    let services = services
        .as_ref()
        .map(|(names, of_sets)| (names.as_slice(), *of_sets))
        .map_err(String::as_str);
    Ok(Outlook::of(named, cluster.uid(), effects::of_cluster(name, services)))
}

/// Names the users of the source, because they get no updates without it.
async fn look_at_source(session: &Session, named: &NamedObject<'_>, kind: SourceKind) -> Result<Outlook> {
    let object = read(session, named).await?;
    let source = SourceReference {
        kind,
        name: named.name.to_owned(),
    };
    let users = users(session, named.namespace, &source).await?;
    let told = effects::of_source(object["spec"]["url"].as_str().unwrap_or_default(), &users);
    Ok(Outlook {
        users,
        ..Outlook::of(named, uid(&object), told)
    })
}

/// The effects of other kinds depend on the kind alone.
async fn look_at_other(session: &Session, named: &NamedObject<'_>) -> Result<Outlook> {
    let object = read(session, named).await?;
    let told = effects::of_other(&named.kind.plural);
    Ok(Outlook::of(named, uid(&object), told))
}

/// Returns the object as JSON, for the kinds that are read by their path.
async fn read(session: &Session, NamedObject { kind, namespace, name }: &NamedObject<'_>) -> Result<Value> {
    let path = kind.path(Some(namespace), Some(name));
    session.read(&format!("read {} {name}", kind.kind), &path).await
}

/// None: the hub's answer states none.
fn uid(object: &Value) -> Option<String> {
    object["metadata"]["uid"].as_str().map(str::to_owned)
}

/// The services of all namespaces on a cluster, as `NAMESPACE/NAME`, and how many of them sets have made.
async fn services_on(session: &Session, cluster: (&str, &str)) -> Result<(Vec<String>, usize)> {
    let (services, clusters) = tokio::join!(session.list::<ServiceDeployment>(None), session.list::<Cluster>(None));
    let clusters = clusters?;
    let is_there = |(namespace, name): (&str, &str)| {
        let is_it = |one: &Cluster| one.name_any() == name && one.namespace().as_deref() == Some(namespace);
        clusters.iter().any(is_it)
    };
    let services = services?
        .into_iter()
        .filter(|service| effects::is_on(service, cluster, is_there));
    let services: Vec<ServiceDeployment> = services.collect();
    let of_sets = services
        .iter()
        .filter(|service| !service.owner_references().is_empty())
        .count();
    let names = services
        .iter()
        .map(|one| format!("{}/{}", one.namespace().unwrap_or_default(), one.name_any()));
    Ok((names.collect(), of_sets))
}

/// Services, and sets as `serviceset/NAME`, that name a source. A service of a set is represented by its set.
pub async fn users(session: &Session, namespace: &str, source: &SourceReference) -> Result<Vec<String>> {
    let (services, sets) = tokio::join!(
        session.list::<ServiceDeployment>(Some(namespace)),
        session.list::<ServiceSet>(Some(namespace)),
    );
    let services = services?.into_iter().filter(|service| service.spec.uses(source));
    let services = services
        .filter(|service| service.owner_references().is_empty())
        .map(|service| service.name_any());
    let sets = sets?.into_iter().filter(|set| effects::set_uses(set, source));
    let sets = sets.map(|set| format!("serviceset/{}", set.name_any()));
    Ok(services.chain(sets).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_owner_would_create_again_is_deleted_with_it() {
        let next = |kind: &str, owner: Option<&str>| {
            let doomed = Doomed {
                kind: kinds::find(kind).unwrap(),
                namespace: "team-a".to_owned(),
                name: "web-east".to_owned(),
                uid: String::new(),
            };
            let failure = Failure {
                owner: owner.map(str::to_owned),
                ..Failure::new(exit::CONFLICT, "no").next("as before")
            };
            name_owner(&doomed, failure).next.unwrap()
        };
        assert_eq!(
            next("servicedeployment", Some("serviceset/web -n team-a")),
            "{program} delete serviceset/web -n team-a, or leave its cluster out of the selector there"
        );
        assert_eq!(
            next("serviceset", Some("managednamespace/shop -n team-a")),
            "{program} delete managednamespace/shop -n team-a"
        );
        assert_eq!(next("servicedeployment", None), "as before");
    }
}
