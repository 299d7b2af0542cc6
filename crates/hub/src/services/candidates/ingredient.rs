//! The sources that a service's spec names, and what is served of each.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{
    ServiceDeploymentSpec, SourceKind,
    renderer::{Renderer, RendererType},
    service_sources::{ChartReference, SourceReference},
    source::BUILT_IN_REVISION,
};
use farwater_bundle::RelPath;
use farwater_store::{
    StoreError,
    delivery::{ChartRow, Revision, SourceOrigin, load_chart, load_served},
};

use crate::{
    replica::Replica,
    resources::SourceName,
    sources::{self, SourceObject, SourceSpec, git},
};

/// One of a service's sources, with its served revision.
#[derive(Clone, Debug)]
pub struct Ingredient {
    pub reference: SourceReference,
    pub chart: Option<ChartReference>,
    pub path: String,
    /// None: the service's own source.
    pub mount_path: Option<String>,
    /// Folders of the source that have renderers of their own.
    pub rendered: Vec<String>,
    pub found: Option<FoundSource>,
}

#[derive(Clone, Debug)]
pub struct FoundSource {
    pub object: SourceObject,
    pub revision: Option<Revision>,
    /// The served version of the chart that the service names.
    pub chart: Option<ChartRow>,
    pub origin: Option<SourceOrigin>,
}

impl Ingredient {
    pub fn uid(&self) -> Option<&str> {
        self.found.as_ref().map(|found| found.object.uid.as_str())
    }

    /// Whether its remote was fetched since a restore.
    pub fn is_asked(&self) -> bool {
        self.found
            .as_ref()
            .is_some_and(|found| found.origin.as_ref().is_none_or(|origin| !origin.unasked))
    }

    pub fn name(&self, namespace: &str) -> SourceName {
        SourceName::of(namespace, &self.reference)
    }

    /// The served revision, as sources write it; empty: nothing is served.
    pub fn describe_revision(&self) -> String {
        let Some(found) = &self.found else { return String::new() };
        match (&found.chart, &found.revision) {
            (Some(chart), _) if !chart.version.is_empty() => format!("{} {}", chart.chart, chart.version),
            (_, Some(revision)) => git::format_revision(&revision.reference, &revision.commit),
            _ if found.is_built_in() => BUILT_IN_REVISION.to_owned(),
            _ => String::new(),
        }
    }

    /// Texts that a pipeline promoted together with the served revision.
    pub(super) fn promoted(&self) -> BTreeMap<String, String> {
        let revision = self.found.as_ref().and_then(|found| found.revision.as_ref());
        revision
            .map(|revision| revision.taken.configuration.clone())
            .unwrap_or_default()
    }

    pub(super) fn is_plain_git(&self) -> bool {
        self.reference.kind == SourceKind::GitRepository && self.chart.is_none()
    }
}

impl FoundSource {
    pub(super) fn is_built_in(&self) -> bool {
        matches!(self.object.spec, SourceSpec::BuiltIn)
    }

    /// Address that the served revision came from. The spec may name another address that was not fetched yet. So a
    /// grant that forbids the served address still applies after such an edit.
    pub(super) fn address(&self) -> &str {
        let fetched = match &self.object.spec {
            SourceSpec::Git(_) => self
                .revision
                .as_ref()
                .and_then(|revision| revision.taken.address.as_deref()),
            SourceSpec::Helm(_) | SourceSpec::Oci(_) | SourceSpec::File(_) => self
                .origin
                .as_ref()
                .map(|origin| origin.root.as_str())
                .filter(|root| !root.is_empty()),
            SourceSpec::BuiltIn => None,
        };
        fetched.unwrap_or(&self.object.any.url)
    }

    /// Loads a source with what is served of it now.
    pub async fn load(
        replica: &Replica,
        namespace: &str,
        reference: &SourceReference,
        chart: Option<&ChartReference>,
    ) -> Result<Option<Self>, StoreError> {
        let Some(object) = sources::load(&replica.store, &SourceName::of(namespace, reference)).await? else {
            return Ok(None);
        };
        let mut tables = replica.store.tables().await?;
        loop {
            let (origin, revision) = load_served(&mut tables, &object.uid).await?;
            let chart = match chart {
                Some(chart) => load_chart(&mut tables, &object.uid, (&chart.name, &chart.version)).await?,
                None => {
                    return Ok(Some(Self {
                        object,
                        revision,
                        chart: None,
                        origin,
                    }));
                }
            };
            // A fetch writes origin and chart together. If the origin is the same after the chart was read, the chart
            // belongs to it.
            let (again, _) = load_served(&mut tables, &object.uid).await?;
            if again == origin {
                return Ok(Some(Self {
                    object,
                    revision,
                    chart,
                    origin,
                }));
            }
        }
    }
}

/// Loads all sources that a spec names, with what is served of them now.
pub async fn find_ingredients(
    replica: &Replica,
    namespace: &str,
    spec: &ServiceDeploymentSpec,
) -> Result<Vec<Ingredient>, StoreError> {
    let mut all = Vec::new();
    for stated in spec.all_sources() {
        let found = FoundSource::load(replica, namespace, stated.reference, stated.chart).await?;
        all.push(Ingredient {
            reference: stated.reference.clone(),
            chart: stated.chart.cloned(),
            path: stated.path.to_owned(),
            mount_path: stated.mount_path.map(str::to_owned),
            rendered: Vec::new(),
            found,
        });
    }
    if let Some(own) = all.first_mut() {
        own.rendered = rendered_folders(spec);
    }
    Ok(all)
}

/// Folders that may hold a chart or a kustomization that only a renderer leads to. A path that is not valid is reported
/// at admission and when rendering.
fn rendered_folders(spec: &ServiceDeploymentSpec) -> Vec<String> {
    let may_need_more = |renderer: &&Renderer| {
        matches!(
            renderer.kind,
            RendererType::Auto | RendererType::Helm | RendererType::Kustomize
        )
    };
    let folder = |renderer: &Renderer| {
        let own = RelPath::parse_folder(&spec.path).ok()?;
        own.join_clean(&renderer.path)
            .ok()
            .filter(|folder| folder.is_within(&own) && *folder != own)
    };
    let folders: BTreeSet<RelPath> = spec.renderers.iter().filter(may_need_more).filter_map(folder).collect();
    folders.iter().map(ToString::to_string).collect()
}
