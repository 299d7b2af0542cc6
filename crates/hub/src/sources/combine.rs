//! The files of a service that is made of more than one folder: sources mounted into one another, charts with their
//! dependencies, and kustomizations with their remote bases. Only the bundle is written; its parts are read where they
//! are.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    rc::Rc,
};

use farwater_api::Digest;
use farwater_bundle::{
    BASES, Base, Closure, ClosureError, ClosureReason, GraftError, InflatedChart, Limits, ObjectId, Overlay, PackError,
    RelPath, TreeError, archive,
    charts::{self, ChartError, ChartReason, Missing},
    closure_of, members,
};
use farwater_fleet::namespaces;
use farwater_sources::{ArtifactError, Artifacts, LargeFile, Mirror, MirrorError, PackedBundle, Reads, Snapshot};
use serde::{Deserialize, Serialize};

use super::git::{BundleFailure, parse_commit};
use crate::{errors::chain, memory::mirrors::Mirrors};

/// Maximum number of charts in one bundle: those of a service, and local ones that they depend on.
const MAX_CHARTS: usize = 64;
/// Maximum number of remote bases of one service: each repository is a mirror.
const MAX_BASES: usize = 16;
/// Maximum bytes of charts and artifacts that are held in memory while a bundle is made, as a multiple of the largest
/// bundle.
const MAX_OPENED: u64 = 2;

/// How a bundle is made and rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// The service's own source, whose files keep their places.
    pub first: Piece,
    /// In the order in which they are mounted.
    pub mounts: Vec<Piece>,
    /// The folders that are needed, with everything that they lead to.
    pub paths: Vec<RelPath>,
}

/// Some files of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    pub source_uid: String,
    pub files: Files,
    /// Folder of the source.
    #[serde(default)]
    pub path: RelPath,
    /// Where it is mounted.
    #[serde(default)]
    pub mount: RelPath,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Files {
    /// In a mirror.
    Commit {
        commit: String,
        #[serde(default, skip_serializing_if = "Reads::is_plain")]
        reads: Reads,
    },
    /// In an archive on the disk.
    Artifact(Digest),
    /// Built into the hub.
    BuiltIn,
}

/// A chart that has to come from a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// File and field that name it.
    pub named_by: String,
    pub missing: Missing,
    pub place: Place,
}

/// Where a chart is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In `charts/` of the chart in this folder, under any name.
    DependencyOf(RelPath),
    /// In this folder.
    At(RelPath),
}

impl Need {
    fn dependency(folder: &RelPath, missing: Missing) -> Self {
        let file = if folder.is_root() {
            String::new()
        } else {
            format!("{folder}/")
        };
        let named_by = format!("{file}Chart.yaml: dependency {}", missing.name);
        Self {
            named_by,
            missing,
            place: Place::DependencyOf(folder.clone()),
        }
    }

    /// A chart that a kustomization inflates.
    fn inflated(chart: &InflatedChart) -> Self {
        let InflatedChart {
            file,
            name,
            repository,
            version,
            place,
        } = chart;
        let version = if version.is_empty() {
            "*".to_owned()
        } else {
            version.clone()
        };
        let missing = Missing {
            name: name.clone(),
            range: version.clone(),
            version,
            locked: false,
            repository: repository.clone(),
        };
        Self {
            named_by: format!("{file}: helmCharts: {name}"),
            missing,
            place: Place::At(place.clone()),
        }
    }
}

/// The charts and bases to fetch from elsewhere.
#[derive(Debug, Default)]
pub struct Lacks {
    pub charts: Vec<Need>,
    pub bases: BTreeSet<Base>,
}

/// Large files of a source that are not on this node, by the URL of the repository that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    pub source_uid: String,
    pub files: Vec<(String, Vec<LargeFile>)>,
}

#[derive(Debug, thiserror::Error)]
pub enum CombineError {
    /// A fault of the sources, shown to people as it is.
    #[error("{0}")]
    Content(String),
    /// The stored copy of a source is missing or damaged. It is whole again after the next fetch.
    #[error("the cache of source {source_uid} is incomplete")]
    Damaged {
        source_uid: String,
        /// Whether all of the copy has to be recreated.
        whole: bool,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A fault of this machine.
    #[error(transparent)]
    Machine(Box<dyn std::error::Error + Send + Sync>),
}

impl From<CombineError> for BundleFailure {
    fn from(error: CombineError) -> Self {
        match error {
            CombineError::Content(message) => Self::Content(message),
            CombineError::Damaged { source, .. } => Self::Damaged(source),
            CombineError::Machine(error) => Self::Machine(error),
        }
    }
}

impl From<PackError> for CombineError {
    fn from(error: PackError) -> Self {
        Self::Content(chain(&error))
    }
}

impl From<ChartError> for CombineError {
    fn from(error: ChartError) -> Self {
        match error.reason {
            ChartReason::Tree(TreeError::Missing(_) | TreeError::Unreadable { .. }) => Self::Machine(error.into()),
            _ => Self::Content(chain(&error)),
        }
    }
}

impl From<GraftError> for CombineError {
    fn from(error: GraftError) -> Self {
        match error {
            GraftError::Tree { .. } => Self::Machine(error.into()),
            error => Self::Content(error.to_string()),
        }
    }
}

/// Result of a recipe.
pub enum Combined {
    /// These have to be found first.
    Lacks(Lacks),
    /// These have to be fetched first, for this content.
    Waits(Digest, Vec<Absent>),
    Bundle {
        content_id: Digest,
        /// The paths at which the assembled files must differ for the bundle to differ.
        roots: BTreeSet<RelPath>,
        /// None: a bundle with this content exists already.
        packed: Option<PackedBundle>,
    },
}

/// Makes a bundle. `is_known`: whether this content was packed before.
pub async fn make(
    mirrors: &Mirrors,
    recipe: &Recipe,
    is_known: impl AsyncFnOnce(Digest) -> Result<bool, CombineError>,
) -> Result<Combined, CombineError> {
    let _place = mirrors.packing_place().await;
    let limits = mirrors.limits();
    let shelf = Shelf::of(mirrors, recipe)?;
    let gathered = blocking(move || shelf.gather(&limits)).await?;
    let (content_id, roots, absent) = match gathered {
        Gathered::Lacks(lacks) => return Ok(Combined::Lacks(lacks)),
        Gathered::Whole {
            content_id,
            roots,
            absent,
        } => (content_id, roots, absent),
    };

    if is_known(content_id).await? {
        return Ok(Combined::Bundle {
            content_id,
            roots,
            packed: None,
        });
    }
    if !absent.is_empty() {
        return Ok(Combined::Waits(content_id, absent));
    }

    // Open it again: the objects of a mirror belong to one thread.
    let shelf = Shelf::of(mirrors, recipe)?;
    match blocking(move || shelf.pack(&limits)).await? {
        Again::Packed(packed) => Ok(Combined::Bundle {
            content_id,
            roots,
            packed: Some(packed),
        }),
        Again::Waits(absent) => Ok(Combined::Waits(content_id, absent)),
    }
}

/// Result of a recipe that has made a bundle before.
pub enum Again {
    Packed(PackedBundle),
    /// These have to be fetched first.
    Waits(Vec<Absent>),
}

/// Rebuilds a bundle.
pub async fn pack_again(mirrors: &Mirrors, recipe: &str) -> Result<Again, BundleFailure> {
    let recipe: Recipe = serde_json::from_str(recipe).map_err(|error| BundleFailure::Machine(error.into()))?;
    let limits = mirrors.limits();
    let shelf = Shelf::of(mirrors, &recipe)?;
    Ok(blocking(move || shelf.pack(&limits)).await?)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CombineError> + Send + 'static,
) -> Result<T, CombineError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(CombineError::Machine(error.into())),
        },
    }
}

/// A recipe, and where its sources are on this node.
struct Shelf {
    recipe: Recipe,
    /// Folder of the first piece, then of the mounts.
    places: Vec<PathBuf>,
}

enum Gathered {
    Lacks(Lacks),
    Whole {
        content_id: Digest,
        roots: BTreeSet<RelPath>,
        absent: Vec<Absent>,
    },
}

/// All pieces in their places.
struct Assembled {
    overlay: Overlay,
    root: ObjectId,
    /// Snapshots whose pointers to large files are followed, with their sources' uids.
    snapshots: Vec<(String, Rc<Snapshot>)>,
}

impl Shelf {
    fn of(mirrors: &Mirrors, recipe: &Recipe) -> Result<Self, CombineError> {
        let pieces = std::iter::once(&recipe.first).chain(&recipe.mounts);
        let places = pieces
            .map(|piece| mirrors.path(&piece.source_uid))
            .collect::<std::io::Result<_>>();
        Ok(Self {
            recipe: recipe.clone(),
            places: places.map_err(|error| CombineError::Machine(error.into()))?,
        })
    }

    /// Adds the tree of a piece's source to the overlay and returns its root. `left`: bytes that may still be opened.
    fn open(
        overlay: &mut Overlay,
        snapshots: &mut Vec<(String, Rc<Snapshot>)>,
        piece: &Piece,
        place: &Path,
        (left, limits): (&mut u64, &Limits),
    ) -> Result<ObjectId, CombineError> {
        let source_uid = || piece.source_uid.clone();
        match &piece.files {
            Files::Commit { commit, reads } => {
                let broken = |error: MirrorError| match error.is_damage() {
                    true => CombineError::Damaged {
                        source_uid: source_uid(),
                        whole: true,
                        source: error.into(),
                    },
                    false => CombineError::Machine(error.into()),
                };
                let commit = parse_commit(commit).map_err(|error| CombineError::Machine(error.to_string().into()))?;
                let mirror = Mirror::open(place).map_err(broken)?;
                if reads.is_plain() {
                    overlay.add(mirror.objects());
                    return mirror.root_tree(&commit).map_err(broken);
                }
                let (snapshot, root) = Snapshot::open(&mirror, commit, *reads).map_err(broken)?;
                let snapshot = Rc::new(snapshot);
                overlay.add(Rc::clone(&snapshot));
                snapshots.push((source_uid(), snapshot));
                Ok(root)
            }
            Files::BuiltIn => {
                let (name, text) = namespaces::FILE;
                let members = members::single(name, text.as_bytes(), limits)
                    .map_err(|error| CombineError::Machine(error.into()))?;
                overlay.add(members.tree);
                Ok(members.root)
            }
            Files::Artifact(key) => {
                let members = Artifacts::at(place).open(key).map_err(|error| match error {
                    ArtifactError::Missing(_) => CombineError::Damaged {
                        source_uid: source_uid(),
                        whole: false,
                        source: error.into(),
                    },
                    ArtifactError::Members(error) => CombineError::Content(error.to_string()),
                    error => CombineError::Machine(error.into()),
                })?;
                *left = left.checked_sub(members.tree.bytes()).ok_or_else(|| {
                    let message = "the charts and artifacts that it is made of are too large together: leave out some, or smaller ones";
                    CombineError::Content(message.to_owned())
                })?;
                overlay.add(members.tree);
                Ok(members.root)
            }
        }
    }

    /// Only a mirror can lack objects, because an archive is read as a whole.
    fn blame(&self, error: Box<ClosureError>) -> CombineError {
        if !matches!(
            error.reason,
            ClosureReason::Tree(TreeError::Missing(_) | TreeError::Unreadable { .. })
        ) {
            return CombineError::Content(chain(&*error));
        }
        let mut pieces = std::iter::once(&self.recipe.first).chain(&self.recipe.mounts);
        match pieces.find(|piece| matches!(piece.files, Files::Commit { .. })) {
            Some(piece) => CombineError::Damaged {
                source_uid: piece.source_uid.clone(),
                whole: true,
                source: error,
            },
            None => CombineError::Machine(error),
        }
    }

    fn assemble(&self, limits: &Limits) -> Result<Assembled, CombineError> {
        let (mut overlay, mut snapshots) = (Overlay::default(), Vec::new());
        let mut places = self.places.iter();
        let nowhere = PathBuf::new();
        let place = places.next().unwrap_or(&nowhere);
        let mut left = MAX_OPENED * limits.total_bytes;
        let mut root = Self::open(
            &mut overlay,
            &mut snapshots,
            &self.recipe.first,
            place,
            (&mut left, limits),
        )?;
        for (piece, place) in self.recipe.mounts.iter().zip(places) {
            let own = Self::open(&mut overlay, &mut snapshots, piece, place, (&mut left, limits))?;
            let folder = overlay
                .folder(&own, &piece.path)
                .map_err(|error| CombineError::Machine(error.into()))?;
            let missing = || CombineError::Content(format!("{}: the source has no such folder", piece.path));
            root = overlay.graft(&root, &piece.mount, &folder.ok_or_else(missing)?)?;
        }
        Ok(Assembled {
            overlay,
            root,
            snapshots,
        })
    }

    fn gather(&self, limits: &Limits) -> Result<Gathered, CombineError> {
        Ok(match self.complete(self.assemble(limits)?, limits)? {
            Completed::Lacks(lacks) => Gathered::Lacks(lacks),
            Completed::Whole { closure, absent, .. } => Gathered::Whole {
                content_id: closure.content_id,
                roots: closure.roots,
                absent,
            },
        })
    }

    fn pack(&self, limits: &Limits) -> Result<Again, CombineError> {
        match self.complete(self.assemble(limits)?, limits)? {
            Completed::Lacks(_) => Err(CombineError::Content(
                "a chart or a base lost files that it had before".to_owned(),
            )),
            Completed::Whole { absent, .. } if !absent.is_empty() => Ok(Again::Waits(absent)),
            Completed::Whole { overlay, closure, .. } => {
                let bytes = archive::pack(&overlay, &closure, limits)?;
                let compressed = archive::compress(&bytes)?;
                let digest = Digest::of(&bytes);
                Ok(Again::Packed(PackedBundle {
                    digest,
                    bytes: bytes.len() as u64,
                    compressed,
                }))
            }
        }
    }

    /// Mounts local charts where the charts that depend on them look for them.
    fn complete(&self, assembled: Assembled, limits: &Limits) -> Result<Completed, CombineError> {
        let Assembled {
            mut overlay,
            mut root,
            snapshots,
        } = assembled;
        loop {
            let mut closure =
                closure_of(&overlay, &root, &self.recipe.paths, limits).map_err(|error| self.blame(error))?;
            if closure.charts.len() + closure.inflated.len() > MAX_CHARTS {
                return Err(CombineError::Content(format!("over {MAX_CHARTS} charts hang together")));
            }

            let laid_in = self.recipe.mounts.iter().filter(|piece| is_base(piece)).count();
            let missing: BTreeSet<RelPath> = closure.bases.iter().map(Base::mount).collect();
            if laid_in + missing.len() > MAX_BASES {
                let message = format!("kustomizations name over {MAX_BASES} remote bases");
                return Err(CombineError::Content(message));
            }

            let (mut needs, mut local) = (Vec::new(), Vec::new());
            for folder in &closure.charts {
                for missing in charts::missing_dependencies(&overlay, &root, folder, limits)? {
                    match missing.repository.strip_prefix("file://") {
                        Some(path) => local.push((folder.clone(), missing.name.clone(), path.to_owned())),
                        None => needs.push(Need::dependency(folder, missing)),
                    }
                }
            }
            needs.extend(closure.inflated.iter().map(Need::inflated));

            // First what has to be fetched: a local chart is mounted with everything that it needs itself.
            if !needs.is_empty() || !closure.bases.is_empty() {
                return Ok(Completed::Lacks(Lacks {
                    charts: needs,
                    bases: closure.bases,
                }));
            }

            if local.is_empty() {
                let absent = follow_pointers(&mut closure, &snapshots, limits)?;
                return Ok(Completed::Whole {
                    overlay,
                    closure,
                    absent,
                });
            }
            root = lay_in_local(&mut overlay, &root, &local)?;
        }
    }
}

fn is_base(piece: &Piece) -> bool {
    RelPath::parse(BASES).is_ok_and(|folder| piece.mount.is_within(&folder))
}

#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum Completed {
    Lacks(Lacks),
    Whole {
        overlay: Overlay,
        closure: Closure,
        absent: Vec<Absent>,
    },
}

/// Replaces pointers to large files by the files. Content with such files gets another id than content without.
fn follow_pointers(
    closure: &mut Closure,
    snapshots: &[(String, Rc<Snapshot>)],
    limits: &Limits,
) -> Result<Vec<Absent>, CombineError> {
    let mut absent = Vec::new();
    for (source_uid, snapshot) in snapshots {
        let files = snapshot
            .resolve_pointers(closure, limits)
            .map_err(|error| CombineError::Content(chain(&error)))?;
        if !files.is_empty() {
            absent.push(Absent {
                source_uid: source_uid.clone(),
                files,
            });
        }
    }
    if snapshots.iter().any(|(_, snapshot)| snapshot.has_large_files()) {
        closure.content_id = Digest::of(format!("large files\n{}\n", closure.content_id));
    }
    Ok(absent)
}

/// Mounts the local charts that need nothing more themselves. If there is none, charts depend on one another.
fn lay_in_local(
    overlay: &mut Overlay,
    root: &ObjectId,
    local: &[(RelPath, String, String)],
) -> Result<ObjectId, CombineError> {
    let unfinished: BTreeSet<&RelPath> = local.iter().map(|(folder, ..)| folder).collect();
    let mut next = *root;
    let mut laid_in = false;

    for (folder, name, path) in local {
        let content = |why: String| CombineError::Content(format!("{folder}/Chart.yaml: dependency {name}: {why}"));
        let from = folder.join_clean(path).map_err(|error| content(error.to_string()))?;
        if unfinished.contains(&from) {
            continue;
        }
        let found = overlay
            .folder(root, &from)
            .map_err(|error| CombineError::Machine(error.into()))?;
        let found = found.ok_or_else(|| content(format!("{from} is no folder")))?;
        let place = charts::place_of(folder, name).ok_or_else(|| content("its name is no folder's".to_owned()))?;
        next = overlay.graft(&next, &place, &found)?;
        laid_in = true;
    }

    match laid_in {
        true => Ok(next),
        false => {
            let names: Vec<_> = unfinished.iter().map(ToString::to_string).collect();
            Err(CombineError::Content(format!(
                "charts depend on one another: {}",
                names.join(", ")
            )))
        }
    }
}
