//! The observed state that a decision about one service is made of.

use std::sync::Arc;

use farwater_api::{
    ServiceDeployment, ServiceDeploymentSpec,
    service_deployment::ClusterReference,
    service_sources::{ChartReference, SourceReference},
};
use farwater_fleet::{
    assignment::{Candidate, Trouble},
    parameters::is_handed,
    placement::{NamedGrant, cluster_candidates},
    windows::{Closed, Subject},
};
use farwater_store::{
    Resource, StoreError,
    delivery::{
        Assignment, ChartRow, MemberRollout, Revision, ServiceOrigin, ServicePath, ServiceRows, is_untouched,
        load_chart, load_parameters, load_revision, load_service_rows, paths_of_service, sources_of_service,
    },
};
use jiff::Timestamp;

use super::AssignError;
use crate::{
    errors::chain,
    guards::approvals::{OVERRIDE, Override, override_of_set, owning_set},
    replica::Replica,
    resources::{Name, SourceName},
    services::{
        ClusterFacts, SourceUrls,
        candidates::{self, FoundSource, Ingredient, Known, ResolveError, Resolved, find_ingredients},
        dependencies::{self, Waits},
        held_specs::HeldLook,
        load_grants_for,
        parameters::Newest,
        rows::TypedRow as _,
        versions,
    },
    sets::{
        rollouts::{Look, Looking},
        set_versions,
    },
};

/// A service, its rows, and the objects that its references resolve to.
pub struct Observed {
    pub name: Name,
    pub resource: Resource,
    pub service: ServiceDeployment,
    /// Edition of the windows before the rows were loaded.
    pub edition: u64,
    pub row: Option<Assignment>,
    pub origin: Option<ServiceOrigin>,
    pub request: Option<Request>,
    pub cluster: Result<ClusterFacts, Trouble>,
    pub ingredients: Vec<Ingredient>,
    pub resolved: Resolved,
    /// Candidate of the version that its set is pinned at, instead of the one of its sources. None: the set has no
    /// pin.
    pub kept: Option<Result<Candidate, Trouble>>,
    /// The pinned version, or the one that a rollout rolls back to.
    pub pinned: Option<Result<Candidate, Trouble>>,
    /// State of its rollout. None: the service is no member of a set.
    pub look: Option<Look>,
    pub held: HeldLook,
    pub waits: Waits,
    /// Addresses of the sources in its spec.
    pub urls: Vec<String>,
    pub grants: Vec<NamedGrant>,
    /// The window that keeps its changes from starting. None: they may start.
    pub closed: Option<Closed>,
    /// The override that lets changes start despite `closed`.
    pub overridden: Option<Override>,
}

/// A request to fetch the service's sources (`reconcile` annotation).
pub struct Request {
    pub value: String,
    /// Its own source was fetched since.
    pub is_answered: bool,
}

impl Observed {
    /// Loads in this order: the rows, then the sources, then the dependencies. A source that was fetched after the
    /// origin row was written is then read with its current revision, and a dependency is compared with that revision,
    /// or a newer one.
    pub async fn load(
        replica: &Arc<Replica>,
        name: &Name,
        resource: Resource,
        service: ServiceDeployment,
    ) -> Result<Self, AssignError> {
        let edition = replica.memory.windows.edition();
        let (rows, known_paths) = load_rows(replica, &resource.uid).await?;
        let ServiceRows {
            assignment: row,
            held,
            member,
            origin,
            ..
        } = rows;
        let cluster = find_cluster(replica, name, &service.spec.cluster_ref, row.as_ref()).await?;
        let request = Request::load(replica, name, &service);

        let ingredients = find_ingredients(replica, &name.namespace, &service.spec).await?;
        let resolved = resolve_candidate(replica, name, &ingredients, (row.as_ref(), &known_paths)).await?;
        let resolved = with_new_paths(resolved, &known_paths, &ingredients);
        let of_sources = resolved.candidate.as_ref();
        let kept = find_kept(replica, member.as_ref(), of_sources.ok()).await?;
        let candidate = kept.as_ref().map_or(of_sources, Result::as_ref).ok();
        let has = (row.as_ref(), candidate, ingredients.as_slice());
        let look = find_look(replica, member, (&service.spec, &cluster), has).await?;

        let pinned = versions::resolve_pin(replica, &resource.uid, service.spec.pin.as_ref()).await?;
        // A member that is rolled back gets an earlier assignment again, as with a pin.
        let pinned = pinned.or_else(|| look.as_ref()?.back().cloned().map(Ok));
        let held = HeldLook::of(&resource, &service, held)?;
        let waits = dependencies::load_waits(replica, name, &service).await?;
        let mut urls = SourceUrls::default();
        let urls = urls.of_service(&replica.store, &name.namespace, &service).await?;
        let grants = load_grants_for(&replica.store, &name.namespace).await?;
        let (closed, overridden) = find_window(replica, &resource, &service, cluster.as_ref().ok()).await?;
        Ok(Self {
            name: name.clone(),
            resource,
            service,
            edition,
            row,
            origin,
            request,
            cluster,
            ingredients,
            resolved,
            kept,
            pinned,
            look,
            held,
            waits,
            urls,
            grants,
            closed,
            overridden,
        })
    }

    /// Whether the service's turn in its set's rollout has not come.
    pub fn is_held(&self) -> bool {
        self.look.as_ref().is_some_and(Look::is_held)
    }

    /// Whether its set is pinned, or the rollout of its set goes back.
    pub fn goes_back(&self) -> bool {
        self.kept.is_some() || self.look.as_ref().is_some_and(|look| look.back().is_some())
    }

    /// Uid of its own source.
    pub fn source_uid(&self) -> Option<&str> {
        self.ingredients.first().and_then(Ingredient::uid)
    }

    /// The other sources that it needs, with those that only its charts and kustomizations name.
    pub fn other_sources(&self) -> Vec<(String, SourceName)> {
        let namespace = &self.name.namespace;
        let others = self.ingredients.iter().skip(1);
        let others = others.filter_map(|one| Some((one.uid()?.to_owned(), one.name(namespace))));
        let linked = self
            .resolved
            .wants
            .iter()
            .filter(|want| !want.url.is_empty())
            .map(|want| {
                let link = SourceName::Link {
                    namespace: namespace.clone(),
                    url: want.url.clone(),
                };
                (want.source_uid.clone(), link)
            });
        others.chain(linked).collect()
    }
}

impl Request {
    /// Runs before the revision is read, so that the revision is the answer's, or newer.
    fn load(replica: &Replica, name: &Name, service: &ServiceDeployment) -> Option<Self> {
        let value = service.open_request()?.to_owned();
        let is_answered = replica.memory.checks.requests.is_answered(name, &value);
        Some(Self { value, is_answered })
    }
}

async fn load_rows(replica: &Replica, uid: &str) -> Result<(ServiceRows, Vec<ServicePath>), StoreError> {
    let mut tables = replica.store.tables().await?;
    let rows = load_service_rows(&mut tables, uid).await?;
    Ok((rows, paths_of_service(&mut tables, uid).await?))
}

/// Leaves the paths out that are known already.
fn with_new_paths(mut resolved: Resolved, known: &[ServicePath], ingredients: &[Ingredient]) -> Resolved {
    // Only a database that another program wrote has a service without paths. Any commit may concern such a service.
    let paths = resolved
        .paths
        .or_else(|| known.is_empty().then(|| candidates::all_paths(ingredients)));
    resolved.paths = paths.filter(|paths| *paths != known);
    resolved
}

/// Returns the window that keeps changes from starting, and the override that lets them start despite it.
async fn find_window(
    replica: &Replica,
    resource: &Resource,
    service: &ServiceDeployment,
    cluster: Option<&ClusterFacts>,
) -> Result<(Option<Closed>, Option<Override>), StoreError> {
    let labels = service.metadata.labels.clone().unwrap_or_default();
    let closed = cluster.and_then(|cluster| {
        replica.memory.windows.closed(Subject {
            namespace: &resource.key.namespace,
            name: &resource.key.name,
            labels: &labels,
            cluster_namespace: &cluster.name.namespace,
            cluster_name: &cluster.name.name,
            cluster_labels: &cluster.labels,
        })
    });
    let overridden = match closed {
        Some(_) => find_override(replica, resource).await?,
        None => None,
    };
    Ok((closed, overridden))
}

/// The candidate of the version that the set of a member is pinned at. It replaces `own`, the candidate of its sources.
async fn find_kept(
    replica: &Replica,
    member: Option<&MemberRollout>,
    own: Option<&Candidate>,
) -> Result<Option<Result<Candidate, Trouble>>, StoreError> {
    let Some(member) = member.filter(|member| member.set_pin > 0) else {
        return Ok(None);
    };
    set_versions::find_candidate(replica, member, own).await.map(Some)
}

async fn find_look(
    replica: &Replica,
    member: Option<MemberRollout>,
    (spec, cluster): (&ServiceDeploymentSpec, &Result<ClusterFacts, Trouble>),
    (row, candidate, ingredients): (Option<&Assignment>, Option<&Candidate>, &[Ingredient]),
) -> Result<Option<Look>, StoreError> {
    let Some(member) = member else { return Ok(None) };
    let assigned = row.map(Assignment::read_assigned).transpose()?.flatten();
    let newest = find_newest(replica, &member.service_uid, spec, cluster).await?;
    let looking = Looking {
        spec,
        candidate,
        assigned: assigned.as_ref(),
        ingredients,
        newest,
    };
    Look::of(replica, member, looking).await.map(Some)
}

/// Returns what is known of the newest parameter document of a set's member.
async fn find_newest(
    replica: &Replica,
    uid: &str,
    spec: &ServiceDeploymentSpec,
    cluster: &Result<ClusterFacts, Trouble>,
) -> Result<Newest, StoreError> {
    if !is_handed(spec) {
        return Ok(Newest::Own);
    }
    // Without a cluster no document is put together, and nothing is assigned.
    let Ok(cluster) = cluster else { return Ok(Newest::Wrong) };
    let row = load_parameters(&mut *replica.store.tables().await?, uid).await?;
    Newest::of(&replica.identity, spec, &cluster.uid, row.as_ref())
}

/// Returns the override that lets changes of the service start despite windows: its own, or its set's.
async fn find_override(replica: &Replica, resource: &Resource) -> Result<Option<Override>, StoreError> {
    let now = Timestamp::now();
    if let Some(said) = OVERRIDE.counting(&resource.object, now) {
        return Ok(Some(said));
    }
    let Some(owners) = resource.object["metadata"]["ownerReferences"].as_array() else {
        return Ok(None);
    };
    let owners = owners
        .iter()
        .filter_map(|owner| Some((owner["name"].as_str()?, owner["uid"].as_str()?)));
    match owning_set(replica, &resource.uid, &resource.key.namespace, owners).await? {
        Some((set, uid)) => override_of_set(replica, &set, &uid, now).await,
        None => Ok(None),
    }
}

/// Returns the cluster that the row names while it exists; otherwise the one that the reference finds now.
pub async fn find_cluster(
    replica: &Replica,
    name: &Name,
    reference: &ClusterReference,
    row: Option<&Assignment>,
) -> Result<Result<ClusterFacts, Trouble>, StoreError> {
    let candidates = cluster_candidates(reference, &name.namespace);
    let mut first = None;
    for (namespace, cluster) in &candidates {
        let Some(facts) = ClusterFacts::load(replica, &Name::new(namespace, cluster)).await? else {
            continue;
        };
        if row.is_some_and(|row| row.cluster_uid == facts.uid) {
            return Ok(Ok(facts));
        }
        first.get_or_insert(facts);
    }
    Ok(first.ok_or_else(|| {
        let places: Vec<_> = candidates.iter().map(|(namespace, _)| *namespace).collect();
        let message = format!(
            "cluster {} does not exist in namespace {}",
            reference.name,
            places.join(" or ")
        );
        Trouble::ClusterMissing { message }
    }))
}

/// Resolves what the service would run. Content that the row already names is not rebuilt.
async fn resolve_candidate(
    replica: &Arc<Replica>,
    name: &Name,
    ingredients: &[Ingredient],
    (row, known_paths): (Option<&Assignment>, &[ServicePath]),
) -> Result<Resolved, AssignError> {
    let own = ingredients.first().and_then(Ingredient::uid);
    let candidate = match row {
        Some(row) if Some(row.source_uid.as_str()) == own => row.read_candidate()?,
        _ => None,
    };
    let known = candidate.map(|candidate| Known {
        candidate,
        is_untouched: is_untouched(known_paths),
    });
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| AssignError::Bundle {
        service: name.clone(),
        source,
    };
    match candidates::resolve(replica, &name.namespace, Some(name), ingredients, known).await {
        Ok(resolved) => Ok(resolved),
        Err(ResolveError::Store(error)) => Err(error.into()),
        Err(ResolveError::Machine(error)) => Err(failed(error)),
        Err(ResolveError::Damaged {
            name: source,
            source_uid,
            whole,
            source: error,
        }) => {
            // The next fetch makes the source whole again. The assignment stays.
            tracing::error!(%source, error = %chain(&*error), "the cache of a source is damaged and is rebuilt");
            if whole {
                replica
                    .access
                    .mirrors
                    .remove(&source_uid)
                    .await
                    .map_err(|error| failed(error.into()))?;
            }
            replica.fetch_now(&source_uid, source);
            Err(failed(error))
        }
    }
}

/// The references of a service, to resolve them a second time after the save.
pub struct References {
    cluster: ClusterReference,
    sources: Vec<(SourceReference, Option<ChartReference>)>,
}

impl References {
    pub fn of(cluster: &ClusterReference, ingredients: &[Ingredient]) -> Self {
        let sources = ingredients
            .iter()
            .map(|one| (one.reference.clone(), one.chart.clone()))
            .collect();
        Self {
            cluster: cluster.clone(),
            sources,
        }
    }
}

/// The objects that a service's references resolved to.
#[derive(PartialEq, Eq)]
pub struct LedTo {
    cluster_uid: Option<String>,
    sources: Vec<Option<SeenSource>>,
}

/// Uid of a source, and the revision and the chart that it serves.
type SeenSource = (String, Option<Revision>, Option<ChartRow>);

impl LedTo {
    pub fn of<'a>(
        cluster: &Result<ClusterFacts, Trouble>,
        sources: impl Iterator<Item = Option<&'a FoundSource>>,
    ) -> Self {
        let seen = |one: &FoundSource| (one.object.uid.clone(), one.revision.clone(), one.chart.clone());
        let cluster_uid = cluster.as_ref().ok().map(|cluster| cluster.uid.clone());
        Self {
            cluster_uid,
            sources: sources.map(|one| one.map(seen)).collect(),
        }
    }

    pub async fn load(replica: &Replica, name: &Name, references: &References) -> Result<Self, StoreError> {
        let cluster = find_cluster(replica, name, &references.cluster, None).await?;
        let mut sources = Vec::new();
        for (reference, chart) in &references.sources {
            sources.push(FoundSource::load(replica, &name.namespace, reference, chart.as_ref()).await?);
        }
        Ok(Self::of(&cluster, sources.iter().map(Option::as_ref)))
    }
}

/// Whether a chart or base that the service needs and did not find has arrived since. `asked`: repositories that were
/// missing it.
pub async fn is_any_there(
    replica: &Replica,
    service_uid: &str,
    asked: &[(String, SourceName)],
) -> Result<bool, StoreError> {
    if asked.is_empty() {
        return Ok(false);
    }
    let mut tables = replica.store.tables().await?;
    for want in sources_of_service(&mut tables, service_uid).await? {
        if !asked.iter().any(|(uid, _)| *uid == want.source_uid) {
            continue;
        }
        let is_there = match want.chart.is_empty() {
            true => load_revision(&mut tables, &want.source_uid).await?.is_some(),
            false => load_chart(&mut tables, &want.source_uid, (&want.chart, &want.wanted))
                .await?
                .is_some(),
        };
        if is_there {
            return Ok(true);
        }
    }
    Ok(false)
}
