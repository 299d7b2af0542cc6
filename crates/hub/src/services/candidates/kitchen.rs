//! Makes the bundle of a candidate.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use farwater_api::{Digest, SourceKind, service_sources::ChartReference};
use farwater_bundle::{Base, RelPath, charts::Missing};
use farwater_fleet::assignment::{Part, Trouble};
use farwater_sources::{PackedBundle, Range, Reads};
use farwater_store::{
    StoreError,
    delivery::{Revision, bundle_of_content, load_chart, load_revision},
};

use super::{
    MAX_ROUNDS, ResolveError, Resolved,
    ingredient::Ingredient,
    take::{Taken, take_chart},
    want,
};
use crate::{
    replica::Replica,
    resources::{Name, SourceName},
    sources::{
        self, artifacts,
        combine::{self, Absent, CombineError, Combined, Files, Lacks, Need, Piece, Place, Recipe},
        git::{self, PackedAway},
        large_files::{self, Wanted},
    },
};

/// A recipe that is being completed.
pub(super) struct Kitchen {
    pub(super) namespace: String,
    pub(super) recipe: Recipe,
    pub(super) parts: Vec<Part>,
    /// Names of sources, by uid.
    pub(super) names: BTreeMap<String, SourceName>,
}

/// The served version of a chart that another one depends on.
struct FoundChart {
    source: SourceName,
    /// Without the path where it is mounted.
    part: Part,
    version: String,
    /// Digest of its archive.
    key: Digest,
}

pub(super) enum CookError {
    Combine(CombineError),
    Resolve(ResolveError),
}

impl From<StoreError> for CookError {
    fn from(error: StoreError) -> Self {
        Self::Resolve(error.into())
    }
}

impl From<CombineError> for CookError {
    fn from(error: CombineError) -> Self {
        Self::Combine(error)
    }
}

impl Kitchen {
    /// Fails with a message for people if a path is not valid.
    pub(super) fn new(namespace: &str, ingredients: &[Ingredient], taken: &[Taken]) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut paths = Vec::new();
        for (n, (ingredient, taken)) in ingredients.iter().zip(taken).enumerate() {
            let field = if n == 0 {
                "spec".to_owned()
            } else {
                format!("spec.sources[{}]", n - 1)
            };
            let path = RelPath::parse_folder(&ingredient.path).map_err(|error| format!("{field}.path: {error}"))?;
            let mount = ingredient.mount_path.as_deref().unwrap_or_default();
            let mount = RelPath::parse_folder(mount).map_err(|error| format!("{field}.mountPath: {error}"))?;
            paths.push(if n == 0 { path.clone() } else { mount.clone() });
            paths.extend(
                ingredient
                    .rendered
                    .iter()
                    .filter_map(|folder| RelPath::parse(folder).ok()),
            );
            let (source_uid, files) = (taken.part.source_uid.clone(), taken.files.clone());
            pieces.push(Piece {
                source_uid,
                files,
                path,
                mount,
            });
        }
        let names = ingredients
            .iter()
            .filter_map(|one| Some((one.uid()?.to_owned(), one.name(namespace))))
            .collect();
        let mut pieces = pieces.into_iter();
        let first = pieces.next().ok_or("no source")?;
        Ok(Self {
            namespace: namespace.to_owned(),
            recipe: Recipe {
                first,
                mounts: pieces.collect(),
                paths,
            },
            parts: taken.iter().map(|taken| taken.part.clone()).collect(),
            names,
        })
    }

    /// Makes the bundle, with all charts and bases that it turns out to need. None: some of them are not here yet;
    /// `resolved` says which.
    pub(super) async fn cook(
        &mut self,
        replica: &Arc<Replica>,
        service: Option<&Name>,
        resolved: &mut Resolved,
    ) -> Result<Option<(PackedAway, BTreeSet<RelPath>)>, CookError> {
        for _ in 0..MAX_ROUNDS {
            let mut known = None;
            let is_known = async |content_id| {
                let mut tables = replica.store.tables().await.map_err(machine)?;
                known = bundle_of_content(&mut tables, &content_id).await.map_err(machine)?;
                Ok(known.is_some())
            };

            match combine::make(&replica.access.mirrors, &self.recipe, is_known).await? {
                Combined::Bundle {
                    content_id,
                    roots,
                    packed: Some(packed),
                } => return Ok(Some((put_away(replica, content_id, packed).await?, roots))),
                Combined::Bundle {
                    content_id,
                    roots,
                    packed: None,
                } => {
                    let row = known.ok_or_else(|| machine("a bundle that is known has no row"))?;
                    let (digest, bytes) = (row.digest, row.bytes);
                    let packed = PackedAway {
                        content_id,
                        digest,
                        bytes,
                    };
                    return Ok(Some((packed, roots)));
                }
                Combined::Waits(content, absent) => {
                    resolved.candidate = Err(self.want_files(replica, service, content, absent));
                    return Ok(None);
                }
                Combined::Lacks(Lacks { charts, bases }) => {
                    let has_bases = self.fetch_bases(replica, &bases, resolved).await?;
                    if !self.fetch_charts(replica, &charts, resolved).await? || !has_bases {
                        return Ok(None);
                    }
                }
            }
        }
        Err(CombineError::Content(format!("charts and bases depend on others over {MAX_ROUNDS} deep")).into())
    }

    /// Fetches large files, and returns the trouble of a service that waits for them.
    fn want_files(
        &self,
        replica: &Arc<Replica>,
        service: Option<&Name>,
        content: Digest,
        absent: Vec<Absent>,
    ) -> Trouble {
        let mut message = String::new();
        for Absent { source_uid, files } in absent {
            if let Some(source) = self.names.get(&source_uid) {
                let wanted = Wanted {
                    source,
                    source_uid,
                    content,
                    files,
                };
                message = large_files::want(replica, wanted, service);
            }
        }
        let revision = self.parts.first().map(|part| part.revision.clone()).unwrap_or_default();
        Trouble::Files { revision, message }
    }

    /// Adds the charts that others depend on to the recipe. False: some of them are not here yet.
    async fn fetch_charts(
        &mut self,
        replica: &Replica,
        needs: &[Need],
        resolved: &mut Resolved,
    ) -> Result<bool, CookError> {
        let mut trouble = None;
        for need in needs {
            match self.find_chart(replica, need, resolved).await? {
                Ok(chart) => self.mount_chart(need, chart)?,
                Err(pending @ Trouble::ChartPending { .. }) => trouble = trouble.or(Some(pending)),
                Err(missing) => trouble = Some(missing),
            }
        }
        let is_whole = trouble.is_none();
        if let Some(trouble) = trouble {
            resolved.candidate = Err(trouble);
        }
        Ok(is_whole)
    }

    /// Finds the served version of a chart. If no fetch has looked for it yet, `resolved` has its repository fetched.
    async fn find_chart(
        &self,
        replica: &Replica,
        need: &Need,
        resolved: &mut Resolved,
    ) -> Result<Result<FoundChart, Trouble>, CookError> {
        let missing = &need.missing;
        let refuse = |why: String| {
            let message = content(need, why).to_string();
            Ok(Err(Trouble::ChartMissing { message }))
        };

        let (source_uid, name, url) = match self.find_repository(replica, &missing.repository).await? {
            Ok(found) => found,
            // Creating the missing HelmRepository requeues the service.
            Err(why) => return refuse(why),
        };
        let source = match name.as_str() {
            "" => self.link(&url),
            name => SourceName::Resource(SourceKind::HelmRepository, Name::new(&self.namespace, name)),
        };
        let chart = ChartReference {
            name: missing.name.clone(),
            version: missing.version.clone(),
        };
        let link = if name.is_empty() { url.as_str() } else { "" };
        resolved.wants.push(want(&source_uid, Some(&chart), link));

        let wanted = (chart.name.as_str(), chart.version.as_str());
        let row = load_chart(&mut *replica.store.tables().await?, &source_uid, wanted).await?;
        let Some(row) = row else {
            let sought = format!("chart {} {} of {url}", chart.name, chart.version);
            let message = say_pending(replica, &source_uid, &sought);
            resolved.ask.push((source_uid, source));
            return Ok(Err(Trouble::ChartPending { message }));
        };
        let (revision, key) = match take_chart(&row) {
            Ok(taken) => taken,
            Err(message) => return refuse(message),
        };

        let part = Part {
            kind: SourceKind::HelmRepository,
            name,
            source_uid,
            url,
            chart: Some(chart),
            revision,
            reads: String::new(),
            path: String::new(),
            mount_path: String::new(),
            dependency: true,
        };
        Ok(Ok(FoundChart {
            source,
            part,
            version: row.version,
            key,
        }))
    }

    fn mount_chart(&mut self, need: &Need, chart: FoundChart) -> Result<(), CombineError> {
        let missing = &need.missing;
        check_lock(missing, &chart.version).map_err(|why| content(need, why))?;
        let mount = match &need.place {
            Place::DependencyOf(folder) => {
                let directory = format!("{}-{}", missing.name, chart.version);
                farwater_bundle::charts::place_of(folder, &directory)
                    .ok_or_else(|| content(need, format!("{directory:?} is no name of a folder")))?
            }
            // Two kustomizations may inflate the same chart.
            Place::At(place) if self.is_mounted(place) => return Ok(()),
            Place::At(place) => place.clone(),
        };

        let source_uid = chart.part.source_uid.clone();
        self.names.insert(source_uid.clone(), chart.source);
        self.parts.push(Part {
            mount_path: mount.to_string(),
            ..chart.part
        });
        self.recipe.mounts.push(Piece {
            source_uid,
            files: Files::Artifact(chart.key),
            path: RelPath::root(),
            mount,
        });
        Ok(())
    }

    /// Adds the bases that kustomizations name in other repositories. False: some of them are not here yet.
    async fn fetch_bases(
        &mut self,
        replica: &Replica,
        bases: &BTreeSet<Base>,
        resolved: &mut Resolved,
    ) -> Result<bool, CookError> {
        let mut is_whole = true;
        for base in bases {
            // Another folder of this base added it already.
            if self.is_mounted(&base.mount()) {
                continue;
            }
            let url = base.link();
            let source_uid = SourceName::link_uid(&self.namespace, &url);
            resolved.wants.push(want(&source_uid, None, &url));

            let revision = load_revision(&mut *replica.store.tables().await?, &source_uid).await?;
            if let Some(revision) = revision {
                self.mount_base(base, revision)?;
                continue;
            }
            is_whole = false;
            let message = say_pending(replica, &source_uid, &format!("base {base}"));
            resolved.candidate = Err(Trouble::ChartPending { message });
            resolved.ask.push((source_uid, self.link(&url)));
        }
        Ok(is_whole)
    }

    fn mount_base(&mut self, base: &Base, revision: Revision) -> Result<(), CombineError> {
        let (mount, url) = (base.mount(), base.link());
        let source_uid = SourceName::link_uid(&self.namespace, &url);
        self.names.insert(source_uid.clone(), self.link(&url));
        self.parts.push(Part {
            kind: SourceKind::GitRepository,
            name: String::new(),
            source_uid: source_uid.clone(),
            url,
            chart: None,
            revision: git::format_revision(&revision.reference, &revision.commit),
            reads: String::new(),
            path: if base.is_file {
                String::new()
            } else {
                base.path.to_string()
            },
            mount_path: mount.to_string(),
            dependency: true,
        });

        let files = match base.is_file {
            true => Files::Artifact(artifacts::artifact_key(&revision).ok_or_else(|| machine("no digest"))?),
            false => Files::Commit {
                commit: revision.commit,
                reads: Reads::default(),
            },
        };
        self.recipe.mounts.push(Piece {
            source_uid,
            files,
            path: RelPath::root(),
            mount,
        });
        Ok(())
    }

    fn is_mounted(&self, place: &RelPath) -> bool {
        self.recipe.mounts.iter().any(|piece| piece.mount == *place)
    }

    fn link(&self, url: &str) -> SourceName {
        SourceName::Link {
            namespace: self.namespace.clone(),
            url: url.to_owned(),
        }
    }

    /// Returns uid, name and address of a repository. A resource that states it comes first, because of its
    /// credentials; otherwise the name is empty.
    async fn find_repository(
        &self,
        replica: &Replica,
        repository: &str,
    ) -> Result<Result<(String, String, String), String>, StoreError> {
        if let Some(found) = sources::find_repository(&replica.store, &self.namespace, repository).await? {
            return Ok(Ok(found));
        }
        if ["https://", "http://", "oci://"]
            .iter()
            .any(|scheme| repository.starts_with(scheme))
        {
            let uid = SourceName::link_uid(&self.namespace, repository);
            return Ok(Ok((uid, String::new(), repository.to_owned())));
        }
        let shown = farwater_bundle::path::escape(repository.as_bytes());
        Ok(Err(format!(
            "there is no HelmRepository {shown} in namespace {}",
            self.namespace
        )))
    }
}

/// Keeps an archive that was just packed.
async fn put_away(replica: &Replica, content_id: Digest, packed: PackedBundle) -> Result<PackedAway, CombineError> {
    let (digest, bytes) = (packed.digest, packed.bytes);
    let cache = replica.access.mirrors.cache();
    cache.put(&digest, packed.compressed).await.map_err(machine)?;
    Ok(PackedAway {
        content_id,
        digest,
        bytes,
    })
}

/// Fails with the reason if the locked version is not in the range stated beside the lock.
fn check_lock(missing: &Missing, version: &str) -> Result<(), String> {
    let range = missing.range.parse::<Range>();
    if !missing.locked || range.is_ok_and(|range| range.contains(version)) {
        return Ok(());
    }
    Err(format!(
        "the lock has {version}, which is not in the range {}",
        missing.range
    ))
}

fn content(need: &Need, why: String) -> CombineError {
    CombineError::Content(format!("{}: {why}", need.named_by))
}

/// The message about a chart or a base that is not fetched yet, with the reason if it is known.
fn say_pending(replica: &Replica, source_uid: &str, missing: &str) -> String {
    match replica.memory.checks.problem(source_uid) {
        Some(problem) => format!("{missing} can't be had: {problem}"),
        None => format!("{missing} is looked for"),
    }
}

fn machine(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CombineError {
    CombineError::Machine(error.into())
}
