//! Admission: whether a service may be placed where its spec says, before it is written.
//!
//! The same decision is made again when desired states are computed, so that later changes are noticed. This check only
//! lets people know at once.

use std::sync::Arc;

use farwater_api::{
    Cluster, ServiceDeployment, ServiceDeploymentSpec, ServiceSetSpec, SourceKind,
    service_sources::{ChartReference, StatedSource},
};
use farwater_bundle::RelPath;
use farwater_fleet::{
    dependencies::{cycle_trouble, find_cycle, set_key},
    placement::{self, Denied},
    test_jobs::check_tests,
};
use farwater_sources::Range;
use farwater_store::{Store, StoreError};

use crate::{
    errors::chain,
    replica::Replica,
    resources::{self, Name},
    services::{
        SourceUrls,
        dependencies::{load_graph, names, names_of_set},
        load_grants, versions,
    },
    sources::git::{self, LoadError},
};

#[derive(Debug, thiserror::Error)]
pub enum Inadmissible {
    /// Answer 403.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Answer 422, for `spec.clusterRef`.
    #[error("clusterRef is immutable; delete the service and make it again")]
    ClusterChanged,
    /// Answer 422, for `spec.pin.bundle`.
    #[error("{0}")]
    Pin(String),
    /// Answer 422, for `spec.dependsOn`.
    #[error("{0}")]
    DependsOn(String),
    /// Answer 422, for the field of `spec`.
    #[error("{why}")]
    Sources { field: String, why: String },
    /// Answer 422, for what is named below `spec.tests`.
    #[error("{why}")]
    Tests { field: String, why: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Checks a ServiceDeployment before it is written; `old` is what it replaces. A missing cluster is a reason to refuse
/// the service only for tenants, who must not learn which clusters exist by trying.
pub async fn check_service(
    store: &Store,
    namespace: &str,
    service: &ServiceDeploymentSpec,
    old: Option<&ServiceDeployment>,
) -> Result<(), Inadmissible> {
    if let Some(old) = old
        && old.spec.cluster_ref != service.cluster_ref
    {
        return Err(Inadmissible::ClusterChanged);
    }

    if old.is_none_or(|old| old.spec.tests != service.tests) {
        check_own_tests(service)?;
    }
    if old.is_none_or(|old| !old.spec.all_sources().eq(service.all_sources())) {
        check_sources(service)?;
    }

    // A service that was admitted may always be deleted and suspended.
    let is_newly_placed = old.is_none_or(|old| {
        old.spec.target_namespace != service.target_namespace || !old.spec.all_sources().eq(service.all_sources())
    });
    if namespace == farwater_api::ADMIN_NAMESPACE || !is_newly_placed {
        return Ok(());
    }

    let labels = find_labels(store, namespace, service).await?.unwrap_or_default();
    let urls = SourceUrls::default().of_spec(store, namespace, service).await?;
    let request = placement::Request {
        namespace,
        cluster: &service.cluster_ref.name,
        cluster_labels: &labels,
        sources: &urls,
        target_namespace: &service.target_namespace,
    };
    placement::check(request, &load_grants(store).await?)?;
    Ok(())
}

/// Checks what does not depend on where the service is placed.
pub fn check_shape(service: &ServiceDeploymentSpec) -> Result<(), Inadmissible> {
    check_own_tests(service)?;
    check_sources(service)
}

fn check_own_tests(service: &ServiceDeploymentSpec) -> Result<(), Inadmissible> {
    check_tests(&service.tests).map_err(|(field, why)| Inadmissible::Tests { field, why })
}

/// A chart must come from a repository of charts, and each mount needs a place of its own.
fn check_sources(service: &ServiceDeploymentSpec) -> Result<(), Inadmissible> {
    let mut places: Vec<RelPath> = Vec::new();
    for (n, stated) in service.all_sources().enumerate() {
        let field = |name: &str| {
            if n == 0 {
                name.to_owned()
            } else {
                format!("sources[{}].{name}", n - 1)
            }
        };
        let invalid = |name: &str, why: String| Inadmissible::Sources {
            field: field(name),
            why,
        };
        if stated.reference.kind == SourceKind::ManagedNamespace {
            let why = "only the hub makes services of it; state a ManagedNamespace";
            return Err(invalid("sourceRef.kind", why.to_owned()));
        }
        check_chart(&stated).map_err(|why| invalid("chart", why))?;
        let Some(mount) = stated.mount_path else { continue };
        let place = RelPath::parse_folder(mount).map_err(|error| invalid("mountPath", error.to_string()))?;
        if place.is_root() {
            return Err(invalid(
                "mountPath",
                "the root is the service's own source's; name a folder".to_owned(),
            ));
        }
        RelPath::parse_folder(stated.path).map_err(|error| invalid("path", error.to_string()))?;
        let overlaps = |other: &&RelPath| place.is_within(other) || other.is_within(&place);
        if let Some(other) = places.iter().find(overlaps) {
            return Err(invalid(
                "mountPath",
                format!("{place} and {other} overlap; give each a folder of its own"),
            ));
        }
        places.push(place);
    }
    Ok(())
}

fn check_chart(stated: &StatedSource<'_>) -> Result<(), String> {
    let is_helm = stated.reference.kind == SourceKind::HelmRepository;
    match stated.chart {
        None if is_helm => Err("a HelmRepository holds charts; say which one".to_owned()),
        Some(_) if !is_helm => Err(format!(
            "a {} holds no charts by name; leave it out",
            stated.reference.kind
        )),
        Some(ChartReference { version, .. }) => match version.parse::<Range>() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        },
        None => Ok(()),
    }
}

/// A new pin must name an earlier assignment that is still available, from a source that the tenant may still deploy.
/// `uid`: uid of the service; empty: it does not exist yet.
pub async fn check_pin(
    replica: &Arc<Replica>,
    namespace: &str,
    uid: &str,
    service: &ServiceDeploymentSpec,
    old: Option<&ServiceDeployment>,
) -> Result<(), Inadmissible> {
    let Some(pin) = service
        .pin
        .as_ref()
        .filter(|_| old.is_none_or(|old| old.spec.pin != service.pin))
    else {
        return Ok(());
    };

    let found = versions::load_pinned(&mut *replica.store.tables().await?, uid, &pin.bundle).await?;
    let version = found.map_err(|trouble| Inadmissible::Pin(trouble.to_string()))?;
    if namespace != farwater_api::ADMIN_NAMESPACE {
        let labels = find_labels(&replica.store, namespace, service)
            .await?
            .unwrap_or_default();
        let urls = version.candidate().urls();
        let request = placement::Request {
            namespace,
            cluster: &service.cluster_ref.name,
            cluster_labels: &labels,
            sources: &urls,
            target_namespace: &service.target_namespace,
        };
        placement::check(request, &load_grants(&replica.store).await?)?;
    }

    let loaded = git::load_bundle(replica, &pin.bundle).await;
    let gone = |why: String| {
        let (bundle, number) = (&pin.bundle, version.told.number);
        Inadmissible::Pin(format!(
            "{bundle}, version {number} of this service, is gone from this hub: {why}"
        ))
    };

    match loaded {
        Ok(_) => Ok(()),
        Err(LoadError::Store(error)) => Err(error.into()),
        Err(error) => Err(gone(chain(&error))),
    }
}

/// Refuses services that would wait for one another forever.
pub async fn check_dependencies(
    store: &Store,
    name: &Name,
    service: &ServiceDeploymentSpec,
    old: Option<&ServiceDeployment>,
) -> Result<(), Inadmissible> {
    if service.depends_on.is_empty() || old.is_some_and(|old| old.spec.depends_on == service.depends_on) {
        return Ok(());
    }
    let Some(graph) = load_graph(store, name, names(service)).await? else {
        return Err(Inadmissible::DependsOn("too many services hang together".to_owned()));
    };
    match find_cycle(&name.name, &graph) {
        Some(cycle) => Err(Inadmissible::DependsOn(cycle_trouble(&cycle).to_string())),
        None => Ok(()),
    }
}

/// The same for a set, whose services wait for others on whatever cluster they are.
pub async fn check_set_dependencies(store: &Store, name: &Name, spec: &ServiceSetSpec) -> Result<(), Inadmissible> {
    let names = names_of_set(spec);
    if names.is_empty() {
        return Ok(());
    }
    let key = set_key(&name.name);
    let Some(graph) = load_graph(store, &Name::new(&name.namespace, &key), names).await? else {
        return Err(Inadmissible::DependsOn("too many services hang together".to_owned()));
    };
    match find_cycle(&key, &graph) {
        Some(cycle) => Err(Inadmissible::DependsOn(cycle_trouble(&cycle).to_string())),
        None => Ok(()),
    }
}

async fn find_labels(
    store: &Store,
    namespace: &str,
    service: &ServiceDeploymentSpec,
) -> Result<Option<std::collections::BTreeMap<String, String>>, StoreError> {
    for (namespace, name) in placement::cluster_candidates(&service.cluster_ref, namespace) {
        if let Some((_, cluster)) = resources::load::<Cluster>(store, &Name::new(namespace, name)).await? {
            return Ok(Some(cluster.metadata.labels.unwrap_or_default()));
        }
    }
    Ok(None)
}
