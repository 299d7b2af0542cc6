//! route_changes: what was written → the work queues.
//!
//! Maps each kind to the controllers that depend on it. Keys are queued, never objects: a controller reads the object
//! again. Changes of rows have no events; `wakes` maps those.

mod cluster_rows;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, atomic::Ordering},
    time::Duration,
};

use farwater_api::{
    ADMIN_NAMESPACE, AgentPolicy, ChangeWindow, Cluster, ClusterGrant, HealthRule, ManagedNamespace,
    NotificationProvider, NotificationRule, Pipeline, Receiver, ServiceContext, ServiceDeployment, ServiceSet,
    SourceKind, managed_namespace::maker_name,
};
use farwater_fleet::{
    assignment::{Trouble, Why},
    duration::POLL_INTERVAL,
};
use farwater_sources::UrlPrefix;
use farwater_store::{
    Kind, Operation, StoreError, WatchError, WatchEvent,
    delivery::{
        Assignment, assignments_of_cluster, assignments_of_namespace, assignments_of_source, assignments_unplaced,
        linked_sources, mark_all, mark_cluster, members_waiting_for, services_gone, services_of_secret,
        services_under_grants, sets_of_cluster,
    },
};
use futures::StreamExt as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::resume::Resume;
use crate::{
    errors::chain,
    guards::{follow_windows, freeze_prunes},
    kinds::meta::labels,
    memory::{clusters::ClusterState, credentials::read_prefix, pipelines::Part, seen::News, sets::Scope},
    notify::send_notifications,
    receivers::serve_receivers,
    replica::Replica,
    resources::{self, Name, SourceName, Stored as _},
    services::{rows::TypedRow as _, select_health_rules},
    sources::{self, access::may_use},
};
use cluster_rows::ClusterRows;

const RETRY: Duration = Duration::from_secs(1);
const DEFAULT_POLL: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum RouteError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Watch(#[from] WatchError),
}

/// Continues where the last process stopped, or loads everything; then follows changes until shutdown. If it falls too
/// far behind, it loads everything again.
pub async fn run(replica: Arc<Replica>, mut left: Option<Resume>, shutdown: CancellationToken) {
    loop {
        match shutdown.run_until_cancelled(follow(&replica, left.take())).await {
            None | Some(Ok(())) => return,
            Some(Err(error)) => tracing::warn!(error = %chain(&error), "follow changes; loading everything again"),
        }
        if shutdown.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_none() {
            return;
        }
    }
}

async fn follow(replica: &Replica, left: Option<Resume>) -> Result<(), RouteError> {
    replica.memory.seen.forget_all();
    replica.access.credentials.forget_all();
    replica.signals.routed.store(0, Ordering::Release);
    let resumed = left.and_then(|left| Some((replica.store.watch(None, left.routed).ok()?, left)));
    let mut watch = match resumed {
        Some((watch, left)) => {
            load_memory(replica, left.routed).await?;
            left.services
                .into_iter()
                .for_each(|name| replica.queues.services.add(name));
            left.summaries
                .into_iter()
                .for_each(|name| replica.queues.summaries.add(name));
            learn_sets(replica).await?;
            left.sets
                .into_iter()
                .for_each(|name| replica.memory.sets.add(name, Scope::All));
            watch
        }
        None => {
            let from = replica.store.position();
            // All services are queued below, so every change of a cluster up to now counts as handled.
            load_memory(replica, u64::MAX).await?;
            queue_services(replica).await?;
            learn_sets(replica).await?;
            resources::each_name::<ServiceSet>(&replica.store, |name| replica.memory.sets.add(name, Scope::All))
                .await?;
            replica.store.watch(None, from)?
        }
    };

    replica.signals.dirty.notify_one();
    replica.signals.collect.notify_one();
    replica.signals.routed.store(watch.position(), Ordering::Release);

    while let Some(event) = watch.next().await {
        let event = event?;
        route(replica, &event).await?;
        replica.signals.routed.store(event.version, Ordering::Release);
    }
    Ok(())
}

/// Loads what is kept in memory only, e.g. clusters, and queues the sources. `acted_upon`: changes up to this version
/// were handled before, so they are no news.
async fn load_memory(replica: &Replica, acted_upon: u64) -> Result<(), StoreError> {
    freeze_prunes::load(replica).await?;
    follow_windows::load(replica).await?;
    send_notifications::load(replica).await?;
    select_health_rules::write_statuses(&replica.store).await?;
    load_clusters(replica, acted_upon).await?;
    replica.memory.clusters.set_loaded();
    serve_receivers::load(replica).await?;
    // There are few, and only a reconcile of their set shows what they lack.
    resources::each_name::<ManagedNamespace>(&replica.store, |name| replica.queues.namespaces.add(name)).await?;
    resources::each_name::<Pipeline>(&replica.store, |name| replica.memory.pipelines.queue.add(name)).await?;
    sources::each_name(&replica.store, |name| replica.queues.sources.add(name)).await?;
    let linked = linked_sources(&mut *replica.store.tables().await?).await?;
    linked
        .into_iter()
        .for_each(|source| replica.queues.sources.add(source.into()));
    Ok(())
}

/// Queues every service and marks every cluster.
async fn queue_services(replica: &Replica) -> Result<(), StoreError> {
    let store = &replica.store;
    resources::each_name::<ServiceDeployment>(store, |name| replica.queues.services.add(name)).await?;
    // Also the rows of services that were deleted while no hub was running. No other rows: a service that was
    // reconciled since it was queued would be reconciled again.
    for service in services_gone(&mut *store.tables().await?, &ServiceDeployment::kind()).await? {
        replica.queues.services.add(service.into());
    }
    store.transact(|tx| Box::pin(async move { mark_all(tx).await })).await
}

/// Learns which clusters each set selects.
async fn learn_sets(replica: &Replica) -> Result<(), StoreError> {
    let mut found = Vec::new();
    resources::list_pages::<ServiceSet>(&replica.store, None, |resource| found.push(resource)).await?;
    for resource in found {
        let set: ServiceSet = resources::parse(&resource)?;
        let name = Name::new(&resource.key.namespace, &resource.key.name);
        replica
            .memory
            .sets
            .know(&name, &resource.uid, &set.spec.cluster_selector);
    }
    Ok(())
}

/// Fills the replica's memory, and forgets what it knows of clusters without a resource.
async fn load_clusters(replica: &Replica, acted_upon: u64) -> Result<(), StoreError> {
    let clusters = &replica.memory.clusters;
    let mut found = Vec::new();
    resources::list_pages::<Cluster>(&replica.store, None, |resource| found.push(resource)).await?;
    let rows = ClusterRows::load(&mut *replica.store.tables().await?).await?;

    for resource in found.iter().filter(|resource| resource.version <= acted_upon) {
        replica.memory.seen.note_object(&resource.object["metadata"]);
    }
    let states = found
        .iter()
        .map(|resource| (resource.uid.clone(), cluster_state(&resource.object)));
    let states = rows.complete(states.collect());
    let known = clusters.all().iter().map(|state| state.uid.to_string()).collect();
    let orphans = rows.orphans(&states, known);

    for (uid, state) in states {
        // The state in memory is never older than the rows that were read.
        if clusters.get(&uid).is_some() {
            clusters.change(&uid, |known| {
                (known.poll_interval, known.labels) = (state.poll_interval, state.labels);
            });
        } else {
            clusters.insert(state);
        }
        replica.check_cluster(&uid);
    }
    for row in &rows.quarantines {
        if let Some(state) = clusters.get(&row.cluster_uid) {
            state.set_quarantined(true);
        }
    }
    clusters.set_saved(&rows.heartbeats);
    for uid in orphans {
        clusters.remove(&uid);
        replica.check_cluster(&uid);
    }
    Ok(())
}

fn cluster_state(object: &Value) -> ClusterState {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let interval = object["spec"]["pollInterval"]
        .as_str()
        .and_then(|text| POLL_INTERVAL.check(text).ok());
    let interval = interval.unwrap_or(DEFAULT_POLL);
    let mut state = ClusterState::new(
        &text(&metadata["uid"]),
        &text(&metadata["namespace"]),
        &text(&metadata["name"]),
        interval,
    );
    state.labels = Arc::new(labels(object));
    state
}

async fn route(replica: &Replica, event: &WatchEvent) -> Result<(), StoreError> {
    let Some(kind) = Followed::of(&event.key.kind) else {
        return Ok(());
    };
    let name = Name::new(&event.key.namespace, &event.key.name);
    match kind {
        Followed::Secret => return route_secret(replica, &name, &event.object).await,
        Followed::Context | Followed::ConfigMap => {
            // The write itself has marked the services whose parameters changed.
            replica.signals.dirty.notify_one();
            return Ok(());
        }
        Followed::Namespace if name.name != ADMIN_NAMESPACE => return Ok(()),
        // A ManagedNamespace copies its set's status, and may wait for the name of a set that is deleted.
        Followed::Set => {
            if let Some(maker) = maker_name(&name.name) {
                replica.queues.namespaces.add(Name::new(&name.namespace, maker));
            }
        }
        _ => {}
    }

    // A change of the status counts too, because stages are judged by it.
    note_pipelines(replica, kind, &name);
    match news(replica, kind, event) {
        News::Nothing => Ok(()),
        news => route_news(replica, (kind, name), event, news).await,
    }
}

/// Requeues the controllers of a kind for a change that no controller made itself.
async fn route_news(
    replica: &Replica,
    (kind, name): (Followed, Name),
    event: &WatchEvent,
    news: News,
) -> Result<(), StoreError> {
    match kind {
        // Reconciling twice changes nothing.
        Followed::AgentPolicy => replica.signals.agents.notify_one(),
        Followed::Cluster => route_cluster(replica, event).await?,
        Followed::Grant => route_grant(replica).await?,
        Followed::HealthRule => select_health_rules::follow(replica).await?,
        Followed::Managed => replica.queues.namespaces.add(name),
        // The first event since the start is always news, even if the Namespace was loaded.
        Followed::Namespace => freeze_prunes::follow(replica, present(event)).await?,
        Followed::Pipeline => replica.memory.pipelines.queue.add(name),
        Followed::Provider => route_provider(replica, &name, event).await?,
        Followed::Receiver => replica.queues.receivers.add(name),
        Followed::Rule => route_rule(replica, &name, event)?,
        Followed::Service => route_service(replica, name, event).await?,
        Followed::Set => replica.memory.sets.add(name, Scope::All),
        Followed::Source(kind) => route_source(replica, SourceName::Resource(kind, name), event, news).await?,
        Followed::Window if news == News::Desired => follow_windows::follow(replica).await?,
        Followed::Window | Followed::Secret | Followed::Context | Followed::ConfigMap => {}
    }
    Ok(())
}

/// The object after the change. None: it was deleted.
fn present(event: &WatchEvent) -> Option<&Value> {
    (event.operation != Operation::Deleted).then_some(&*event.object)
}

fn note_pipelines(replica: &Replica, kind: Followed, name: &Name) {
    let part = match kind {
        Followed::Source(SourceKind::GitRepository) => Part::Repository,
        Followed::Set => Part::Set,
        Followed::Service => Part::Service,
        _ => return,
    };
    replica.memory.pipelines.note_change(part, name);
}

async fn route_service(replica: &Replica, name: Name, event: &WatchEvent) -> Result<(), StoreError> {
    let service = name.clone();
    replica.queues.services.add(name);
    replica.signals.dirty.notify_one();
    match event.operation {
        Operation::Deleted => refill_sets(replica, &service).await,
        _ => Ok(()),
    }
}

async fn route_grant(replica: &Replica) -> Result<(), StoreError> {
    for service in services_under_grants(&mut *replica.store.tables().await?).await? {
        replica.queues.services.add(service.into());
    }
    replica.memory.sets.note_grants();
    replica.signals.dirty.notify_one();
    Ok(())
}

fn route_rule(replica: &Replica, name: &Name, event: &WatchEvent) -> Result<(), StoreError> {
    let spec = present(event)
        .map(|rule| serde_json::from_value(rule["spec"].clone()))
        .transpose();
    replica.notifications.know_rule(name, spec.map_err(StoreError::abort)?);
    Ok(())
}

async fn route_provider(replica: &Replica, name: &Name, event: &WatchEvent) -> Result<(), StoreError> {
    let uid = event.object["metadata"]["uid"].as_str().unwrap_or_default();
    if event.operation == Operation::Deleted {
        replica.notifications.know_provider(name, None);
        return send_notifications::forget(replica, uid).await;
    }
    let spec = serde_json::from_value(event.object["spec"].clone()).map_err(StoreError::abort)?;
    replica.notifications.paces().of(uid).hurry();
    replica.notifications.know_provider(name, Some((uid, spec)));
    Ok(())
}

/// Requeues sets that wait for the name of a service that is gone.
async fn refill_sets(replica: &Replica, service: &Name) -> Result<(), StoreError> {
    for (set_uid, cluster_uid) in members_waiting_for(&mut *replica.store.tables().await?, &service.name).await? {
        replica.memory.sets.refill(&set_uid, &service.namespace, cluster_uid);
    }
    Ok(())
}

/// How an object differs from the last one seen. Changes that controllers make themselves don't count: the status, and
/// the finalizer once it is set.
fn news(replica: &Replica, kind: Followed, event: &WatchEvent) -> News {
    let metadata = &event.object["metadata"];
    if event.operation == Operation::Deleted {
        replica.memory.seen.forget(metadata);
        return News::Desired;
    }
    // Only one finalizer concerns a controller: its own. Where that is missing, the controller has to set it.
    let is_held = kind != Followed::Service || resources::is_held(metadata);
    match replica.memory.seen.note_object(metadata) {
        News::Nothing if !is_held => News::Metadata,
        news => news,
    }
}

/// The kinds that concern a controller.
#[derive(Clone, Copy, PartialEq)]
enum Followed {
    AgentPolicy,
    Cluster,
    ConfigMap,
    Context,
    Grant,
    HealthRule,
    Managed,
    Namespace,
    Pipeline,
    Provider,
    Receiver,
    Rule,
    Secret,
    Service,
    Set,
    Source(SourceKind),
    Window,
}

impl Followed {
    fn of(kind: &Kind) -> Option<Self> {
        static KINDS: LazyLock<HashMap<Kind, Followed>> = LazyLock::new(|| {
            HashMap::from([
                (AgentPolicy::kind(), Followed::AgentPolicy),
                (Cluster::kind(), Followed::Cluster),
                (resources::config_maps(), Followed::ConfigMap),
                (ServiceContext::kind(), Followed::Context),
                (ClusterGrant::kind(), Followed::Grant),
                (HealthRule::kind(), Followed::HealthRule),
                (ManagedNamespace::kind(), Followed::Managed),
                (resources::namespaces(), Followed::Namespace),
                (Pipeline::kind(), Followed::Pipeline),
                (NotificationProvider::kind(), Followed::Provider),
                (Receiver::kind(), Followed::Receiver),
                (NotificationRule::kind(), Followed::Rule),
                (resources::secrets(), Followed::Secret),
                (ServiceDeployment::kind(), Followed::Service),
                (ServiceSet::kind(), Followed::Set),
                (ChangeWindow::kind(), Followed::Window),
            ])
        });
        let source = sources::kind_of(kind).map(Self::Source);
        source.or_else(|| KINDS.get(kind).copied())
    }
}

/// Sources that name changed credentials are fetched at once. The write itself has marked the clusters whose services
/// name the Secret.
async fn route_secret(replica: &Replica, secret: &Name, object: &Value) -> Result<(), StoreError> {
    let is_shared = replica.access.credentials.note_secret(secret, object);
    let prefix = read_prefix(object).and_then(|text| UrlPrefix::parse(text).ok());

    let services = services_of_secret(&mut *replica.store.tables().await?, &secret.namespace, &secret.name).await?;
    for service in services {
        replica.queues.summaries.add(service.into());
    }
    replica.signals.dirty.notify_one();

    let mut users = Vec::new();
    sources::each(&replica.store, Some(&secret.namespace), |kind, resource| {
        if may_use(&resource.object["spec"], &secret.name, is_shared, prefix.as_ref()) {
            users.push((kind, resource));
        }
    })
    .await?;

    for (kind, user) in users {
        let name = Name::new(&user.key.namespace, &user.key.name);
        replica.fetch_now(&user.uid, SourceName::Resource(kind, name));
    }

    replica
        .receivers
        .of_secret(secret)
        .into_iter()
        .for_each(|name| replica.queues.receivers.add(name));
    replica.notifications.hurry_users_of(secret);
    Ok(())
}

/// Whether a service may be helped by a source that was just created.
fn waits_for_source(row: &Assignment) -> bool {
    if row.source_uid.is_empty() {
        return true;
    }
    let Ok(decided) = row.read_decided() else {
        return false;
    };
    let is_lacking = matches!(
        decided.why,
        Why::Trouble(Trouble::SourceMissing { .. } | Trouble::ChartPending { .. } | Trouble::ChartMissing { .. })
    );
    // This includes services whose source was recreated: their rows name the old source, whose mirror they need.
    decided.sourceless || is_lacking
}

async fn route_source(replica: &Replica, source: SourceName, event: &WatchEvent, news: News) -> Result<(), StoreError> {
    let namespace = &event.key.namespace;
    replica.receivers.forget_sources(namespace);
    let uid = event.object["metadata"]["uid"].as_str().unwrap_or_default();
    let mut affected = Vec::new();
    // A request to fetch only changes an annotation. The fetch itself requeues the services that it concerns.
    if news == News::Desired {
        let mut tables = replica.store.tables().await?;
        affected.extend(assignments_of_source(&mut tables, uid).await?);
        if event.operation == Operation::Created {
            let rest = assignments_of_namespace(&mut tables, namespace).await?;
            affected.extend(rest.into_iter().filter(waits_for_source));
        }
    }
    for row in affected {
        replica.queues.services.add(row.into());
    }
    if event.operation == Operation::Deleted {
        replica.memory.checks.forget(uid);
        replica.memory.pipelines.forget_hurry(uid);
        replica.signals.collect.notify_one();
    }
    replica.queues.sources.add(source);
    Ok(())
}

async fn route_cluster(replica: &Replica, event: &WatchEvent) -> Result<(), StoreError> {
    let next = cluster_state(&event.object);
    let uid = next.uid.to_string();
    if event.operation == Operation::Deleted {
        replica.memory.clusters.remove(&uid);
        replica.check_cluster(&uid);
        return note_sets(replica, event, &uid).await;
    }

    let mut affected = Vec::new();
    if replica.memory.clusters.get(&uid).is_none() {
        replica.memory.clusters.insert(next);
        // `compute_desired` may have cleared the mark of the write before this replica knew the cluster, so mark it
        // again.
        let marked = uid.clone();
        replica
            .store
            .transact(move |tx| Box::pin(async move { mark_cluster(tx, &marked).await }))
            .await?;
        affected.extend(assignments_unplaced(&mut *replica.store.tables().await?).await?);
    } else {
        replica.memory.clusters.change(&uid, |state| {
            (state.poll_interval, state.labels) = (next.poll_interval, next.labels);
        });
    }

    affected.extend(assignments_of_cluster(&mut *replica.store.tables().await?, &uid).await?);
    for row in affected {
        replica.queues.services.add(row.into());
    }
    replica.check_cluster(&uid);
    replica.signals.dirty.notify_one();
    // Its labels may select another AgentPolicy.
    replica.signals.agents.notify_one();
    note_sets(replica, event, &uid).await
}

/// Call this after the replica's memory of the cluster was updated.
async fn note_sets(replica: &Replica, event: &WatchEvent, uid: &str) -> Result<(), StoreError> {
    let has = sets_of_cluster(&mut *replica.store.tables().await?, uid).await?;
    let name = Name::new(&event.key.namespace, &event.key.name);
    replica
        .memory
        .sets
        .note_cluster(&name, uid, &labels(&event.object), &has);
    Ok(())
}
