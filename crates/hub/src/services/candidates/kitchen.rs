//! Makes the bundle of a candidate.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use farwater_api::{SourceKind, service_sources::ChartReference};
use farwater_bundle::{Base, RelPath};
use farwater_fleet::assignment::{Part, Trouble};
use farwater_sources::{Range, Reads};
use farwater_store::{
    StoreError,
    delivery::{bundle_of_content, load_chart, load_revision},
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
                } => {
                    let (digest, bytes) = (packed.digest, packed.bytes);
                    replica
                        .access
                        .mirrors
                        .cache()
                        .put(&digest, packed.compressed)
                        .await
                        .map_err(machine)?;
                    return Ok(Some((
                        PackedAway {
                            content_id,
                            digest,
                            bytes,
                        },
                        roots,
                    )));
                }
                Combined::Bundle {
                    content_id,
                    roots,
                    packed: None,
                } => {
                    let row = known.ok_or_else(|| machine("a bundle that is known has no row"))?;
                    return Ok(Some((
                        PackedAway {
                            content_id,
                            digest: row.digest,
                            bytes: row.bytes,
                        },
                        roots,
                    )));
                }
                Combined::Waits(content, absent) => {
                    let revision = self.parts.first().map(|part| part.revision.clone()).unwrap_or_default();
                    let mut message = String::new();
                    for Absent { source_uid, files } in absent {
                        let Some(source) = self.names.get(&source_uid) else {
                            continue;
                        };
                        message = large_files::want(
                            replica,
                            Wanted {
                                source,
                                source_uid,
                                content,
                                files,
                            },
                            service,
                        );
                    }
                    resolved.candidate = Err(Trouble::Files { revision, message });
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

    /// Adds the charts that others depend on to the recipe. False: some of them are not here yet.
    async fn fetch_charts(
        &mut self,
        replica: &Replica,
        needs: &[Need],
        resolved: &mut Resolved,
    ) -> Result<bool, CookError> {
        let mut trouble = None;
        for need in needs {
            let Need {
                named_by,
                missing,
                place,
            } = need;
            let content = |why: String| CombineError::Content(format!("{named_by}: {why}"));

            let found = self.find_repository(replica, &missing.repository).await?;
            let (source_uid, name, url) = match found {
                Ok(found) => found,
                // Creating the missing HelmRepository requeues the service.
                Err(why) => {
                    trouble = Some(Trouble::ChartMissing {
                        message: content(why).to_string(),
                    });
                    continue;
                }
            };
            let source = match name.as_str() {
                "" => SourceName::Link {
                    namespace: self.namespace.clone(),
                    url: url.clone(),
                },
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
                let what = format!("chart {} {} of {url}", chart.name, chart.version);
                let message = say_pending(replica, &source_uid, &what);
                resolved.ask.push((source_uid, source));
                trouble = trouble.or(Some(Trouble::ChartPending { message }));
                continue;
            };

            let (revision, key) = match take_chart(&row) {
                Ok(taken) => taken,
                Err(message) => {
                    trouble = Some(Trouble::ChartMissing {
                        message: content(message).to_string(),
                    });
                    continue;
                }
            };

            if missing.locked
                && !missing
                    .range
                    .parse::<Range>()
                    .is_ok_and(|range| range.contains(&row.version))
            {
                let why = format!(
                    "the lock has {}, which is not in the range {}",
                    row.version, missing.range
                );
                return Err(content(why).into());
            }

            let mount = match place {
                Place::DependencyOf(folder) => {
                    let directory = format!("{}-{}", missing.name, row.version);
                    farwater_bundle::charts::place_of(folder, &directory)
                        .ok_or_else(|| content(format!("{directory:?} is no name of a folder")))?
                }
                // Two kustomizations may inflate the same chart.
                Place::At(place) if self.recipe.mounts.iter().any(|piece| piece.mount == *place) => continue,
                Place::At(place) => place.clone(),
            };

            self.names.insert(source_uid.clone(), source);
            self.parts.push(Part {
                kind: SourceKind::HelmRepository,
                name,
                source_uid: source_uid.clone(),
                url,
                chart: Some(chart),
                revision,
                reads: String::new(),
                path: String::new(),
                mount_path: mount.to_string(),
                dependency: true,
            });
            self.recipe.mounts.push(Piece {
                source_uid,
                files: Files::Artifact(key),
                path: RelPath::root(),
                mount,
            });
        }

        match trouble {
            None => Ok(true),
            Some(trouble) => {
                resolved.candidate = Err(trouble);
                Ok(false)
            }
        }
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
            let (mount, url) = (base.mount(), base.link());
            // Another folder of this base added it already.
            if self.recipe.mounts.iter().any(|piece| piece.mount == mount) {
                continue;
            }

            let source_uid = SourceName::link_uid(&self.namespace, &url);
            let source = SourceName::Link {
                namespace: self.namespace.clone(),
                url: url.clone(),
            };
            resolved.wants.push(want(&source_uid, None, &url));

            let revision = load_revision(&mut *replica.store.tables().await?, &source_uid).await?;
            let Some(revision) = revision else {
                is_whole = false;
                let message = say_pending(replica, &source_uid, &format!("base {base}"));
                resolved.candidate = Err(Trouble::ChartPending { message });
                resolved.ask.push((source_uid, source));
                continue;
            };

            self.names.insert(source_uid.clone(), source);
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
        }
        Ok(is_whole)
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

/// Says what is not here yet, and the reason if it is known.
fn say_pending(replica: &Replica, source_uid: &str, what: &str) -> String {
    match replica.memory.checks.problem(source_uid) {
        Some(problem) => format!("{what} can't be had: {problem}"),
        None => format!("{what} is looked for"),
    }
}

fn machine(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CombineError {
    CombineError::Machine(error.into())
}
