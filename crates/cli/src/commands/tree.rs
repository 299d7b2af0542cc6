//! `farwater tree`: shows clusters, their services and the services' objects, with health, once or live.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use farwater_api::{
    Cluster, ServiceDeployment, ServiceSet, SourceKind, managed_namespace, objects::ObjectReport,
    service_sources::SourceReference,
};
use farwater_fleet::why::ClusterEvidence;
use futures::{StreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Resource, ResourceExt as _, core::NamespaceResourceScope, runtime::watcher};
use serde::de::DeserializeOwned;

use crate::{
    commands::{objects, why},
    connection::Session,
    exit,
    failure::{Failure, Result},
    forest, granted,
    scope::{NamedObject, ScopeArgs, is_label, object_name},
    terminal::{Terminal, print, say},
};

/// Reading objects takes a request per service. With more services than this, objects are shown only on request.
const OBJECTS_UP_TO: usize = 50;
/// Requests for objects that run at the same time.
const CONCURRENCY: usize = 8;
/// Changes within this time are drawn together.
const SETTLE: Duration = Duration::from_millis(150);
/// An agent's last contact causes no watch event, so the clusters are read again at this interval.
const REFRESH: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub struct TreeArgs {
    /// A service (NAME or NAMESPACE/NAME), cluster/NAME, serviceset/NAME, managednamespace/NAME, or a source such as gitrepository/NAME
    /// with the services that use it; everything if absent.
    target: Option<String>,
    #[command(flatten)]
    scope: ScopeArgs,
    /// Shows every service's objects, however many services there are.
    #[arg(long)]
    objects: bool,
    /// Shows changes until interrupted.
    #[arg(short, long)]
    watch: bool,
}

/// The part of the fleet that is shown.
#[derive(Debug)]
enum Target {
    All {
        namespace: Option<String>,
    },
    Cluster {
        namespace: String,
        name: String,
    },
    Service {
        namespace: String,
        name: String,
    },
    /// The services of a set.
    Set {
        namespace: String,
        name: String,
    },
    /// The services that use a source.
    Source {
        namespace: String,
        reference: SourceReference,
    },
}

/// All objects that a picture shows.
#[derive(Default)]
pub struct Fleet {
    pub clusters: BTreeMap<(String, String), ClusterEvidence>,
    pub services: Vec<ServiceDeployment>,
    /// By uid of the service.
    pub objects: HashMap<String, Vec<ObjectReport>>,
}

pub async fn run(args: TreeArgs, session: &Session) -> Result<u8> {
    let target = parse(&args, session)?;
    let terminal = Terminal::detect();
    let mut loader = Loader {
        session,
        target,
        always_objects: args.objects,
        reports: HashMap::new(),
    };
    let fleet = loader.load().await?;
    if !args.watch {
        print(&forest::render(&fleet, terminal, jiff::Timestamp::now()))?;
        if fleet.services.is_empty() {
            say(&format!(
                "no service here; next: {} deploy GIT-URL --path FOLDER --cluster NAME",
                session.program.name()
            ));
        } else if fleet.objects.is_empty() && fleet.services.len() > OBJECTS_UP_TO {
            say("objects are left out: give a service, or --objects");
        }
        return Ok(exit::YES);
    }
    live(&mut loader, fleet, terminal).await
}

fn parse(args: &TreeArgs, session: &Session) -> Result<Target> {
    let default = args.scope.namespace.or_default(session).to_owned();
    if !is_label(&default) {
        return Err(Failure::usage(format!("{default:?} can't be a namespace")));
    }
    let Some(target) = args.target.as_deref() else {
        return Ok(Target::All {
            namespace: args.scope.namespace(session).map(str::to_owned),
        });
    };
    let NamedObject { kind, namespace, name } = object_name(target, &default)?;
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Ok(match kind.plural.as_str() {
        "servicedeployments" => Target::Service { namespace, name },
        "clusters" | "grantedclusters" => Target::Cluster { namespace, name },
        "servicesets" => Target::Set { namespace, name },
        "managednamespaces" => Target::Set {
            namespace,
            name: managed_namespace::set_name(&name),
        },
        plural => match SourceKind::ALL.into_iter().find(|source| source.plural() == plural) {
            Some(kind) => Target::Source {
                namespace,
                reference: SourceReference { kind, name },
            },
            None => {
                return Err(Failure::usage(format!("a {} has no services to show", kind.kind))
                    .evidence("expected a service, or cluster/NAME, serviceset/NAME or a source"));
            }
        },
    })
}

struct Loader<'a> {
    session: &'a Session,
    target: Target,
    always_objects: bool,
    /// By uid of the service. With the service's resourceVersion at which the report was read.
    reports: HashMap<String, (String, Vec<ObjectReport>)>,
}

impl Loader<'_> {
    async fn load(&mut self) -> Result<Fleet> {
        let mut fleet = Fleet::default();
        match &self.target {
            Target::Service { namespace, name } => {
                fleet.services.push(self.session.get(namespace, name).await?);
            }
            Target::Cluster { namespace, name } => {
                let cluster = granted::see(self.session, namespace, name).await?;
                let home = match cluster.is_granted && *namespace == cluster.namespace {
                    true => &self.session.namespace,
                    false => namespace,
                };
                let services = self.services_anywhere(home).await?;
                fleet.services = services
                    .into_iter()
                    .filter(|service| {
                        let (reference, place) = (&service.spec.cluster_ref, cluster.namespace.as_str());
                        let own = service.namespace().unwrap_or_default();
                        let admin = place == farwater_api::ADMIN_NAMESPACE && reference.namespace.is_none();
                        reference.name == *name && (admin || reference.namespace.as_deref().unwrap_or(&own) == place)
                    })
                    .collect();
                fleet
                    .clusters
                    .insert((cluster.namespace.clone(), name.clone()), cluster);
            }
            Target::Set { namespace, name } => {
                self.session.get::<ServiceSet>(namespace, name).await?;
                let is_of_set = |owner: &OwnerReference| owner.kind == "ServiceSet" && owner.name == *name;
                fleet.services = self.session.list::<ServiceDeployment>(Some(namespace)).await?;
                fleet
                    .services
                    .retain(|service| service.owner_references().iter().any(is_of_set));
            }
            Target::Source { namespace, reference } => {
                why::find_source(self.session, namespace, reference).await?;
                fleet.services = self.session.list::<ServiceDeployment>(Some(namespace)).await?;
                fleet.services.retain(|service| service.spec.uses(reference));
            }
            Target::All { namespace } => {
                let namespace = namespace.as_deref();
                let (services, clusters) =
                    tokio::try_join!(self.session.list(namespace), self.session.list::<Cluster>(namespace))?;
                fleet.services = services;
                fleet.clusters = clusters
                    .into_iter()
                    .map(|cluster| {
                        let key = (cluster.namespace().unwrap_or_default(), cluster.name_any());
                        (key, (&cluster).into())
                    })
                    .collect();
            }
        }

        self.add_referenced_clusters(&mut fleet).await?;
        self.add_objects(&mut fleet).await?;
        Ok(fleet)
    }

    /// The services of all namespaces, or of `namespace` if the user may not list them all.
    async fn services_anywhere(&self, namespace: &str) -> Result<Vec<ServiceDeployment>> {
        match self.session.list(None).await {
            Err(failure) if failure.is_denied() => self.session.list(Some(namespace)).await,
            other => other,
        }
    }

    /// Adds the clusters that are in another namespace than their services. A cluster that can't be read is shown by
    /// its name.
    async fn add_referenced_clusters(&self, fleet: &mut Fleet) -> Result<()> {
        let mut asked: Vec<(String, String)> = Vec::new();
        for service in &fleet.services {
            let reference = &service.spec.cluster_ref;
            let own = reference.namespace.clone().or(service.namespace()).unwrap_or_default();
            let key = (own, reference.name.clone());
            if fleet.clusters.contains_key(&key) || asked.contains(&key) {
                continue;
            }
            asked.push(key);
            match why::see_cluster(self.session, service).await {
                Ok(cluster) => {
                    let key = (cluster.namespace.clone(), cluster.name.clone());
                    fleet.clusters.insert(key, cluster);
                }
                Err(failure) if failure.is_missing() || failure.is_denied() => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Adds the object reports. A report is read again only if its service has changed.
    async fn add_objects(&mut self, fleet: &mut Fleet) -> Result<()> {
        if fleet.services.len() > OBJECTS_UP_TO && !self.always_objects {
            return Ok(());
        }

        let session = self.session;
        let known = &self.reports;
        let stale = fleet.services.iter().filter(|service| {
            let version = service.resource_version().unwrap_or_default();
            known
                .get(&service.uid().unwrap_or_default())
                .is_none_or(|(read_at, _)| *read_at != version)
        });
        let requests = stale.map(|service| async move {
            let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
            (service, objects::fetch(session, &namespace, &name).await)
        });
        let answers: Vec<_> = stream::iter(requests).buffer_unordered(CONCURRENCY).collect().await;
        for (service, answer) in answers {
            let report = match answer {
                Ok(report) => report,
                Err(failure) if failure.is_missing() || failure.is_denied() => Vec::new(),
                Err(failure) => return Err(failure),
            };
            let version = service.resource_version().unwrap_or_default();
            self.reports
                .insert(service.uid().unwrap_or_default(), (version, report));
        }

        fleet.objects = fleet
            .services
            .iter()
            .filter_map(|service| {
                let uid = service.uid()?;
                let (_, report) = self.reports.get(&uid)?;
                Some((uid, report.clone()))
            })
            .collect();
        let shown = &fleet.objects;
        self.reports.retain(|uid, _| shown.contains_key(uid));
        Ok(())
    }
}

/// Draws again after each change. If the hub can't be reached, the picture says that it is not up to date.
async fn live(loader: &mut Loader<'_>, mut fleet: Fleet, terminal: Terminal) -> Result<u8> {
    let session = loader.session;
    let namespace = match &loader.target {
        Target::All { namespace } => namespace.clone(),
        Target::Service { namespace, .. } | Target::Set { namespace, .. } | Target::Source { namespace, .. } => {
            Some(namespace.clone())
        }
        Target::Cluster { .. } => None,
    };

    let changes = stream::select(
        changes::<ServiceDeployment>(session, namespace.as_deref()),
        changes::<Cluster>(session, namespace.as_deref()),
    );
    let mut changes = changes.boxed();
    let mut refresh = tokio::time::interval(REFRESH);
    refresh.tick().await;
    if terminal.interactive() {
        print("\x1b[2J")?;
    }

    let mut drawn = String::new();
    let mut trouble: Option<String> = None;
    loop {
        let mut picture = forest::render(&fleet, terminal, jiff::Timestamp::now());
        if let Some(trouble) = &trouble {
            picture += &format!("\n! not up to date: {trouble}\n");
        }
        if picture != drawn {
            terminal.redraw(&picture)?;
            drawn = picture;
        }
        tokio::select! {
            change = changes.next() => {
                if change.is_none() {
                    return Ok(exit::UNREACHABLE);
                }
                tokio::time::sleep(SETTLE).await;
                while futures::FutureExt::now_or_never(changes.next()).flatten().is_some() {}
            }
            _ = refresh.tick() => {}
        }
        match loader.load().await {
            Ok(loaded) => (fleet, trouble) = (loaded, None),
            Err(failure) if failure.code == exit::UNREACHABLE => trouble = Some(failure.cause),
            Err(failure) => return Err(failure),
        }
    }
}

/// Yields after each change of an object of this kind. The caller reads the objects again to see what changed.
fn changes<K>(session: &Session, namespace: Option<&str>) -> impl futures::Stream<Item = ()> + use<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(session.client.clone(), namespace),
        None => Api::all(session.client.clone()),
    };
    let events = kube::runtime::WatchStreamExt::default_backoff(watcher(api, watcher::Config::default()));
    events.filter_map(|event| async move {
        match event {
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => None,
            Ok(_) | Err(_) => Some(()),
        }
    })
}
