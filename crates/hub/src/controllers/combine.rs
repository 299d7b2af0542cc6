//! The files of a service that is made of more than one folder: sources mounted in one another, and charts with what they depend
//! on. Nothing is written but the bundle; what it is made of is read where it lies.

use std::{collections::BTreeSet, path::PathBuf};

use farwater_api::Digest;
use farwater_bundle::{
    Closure, ClosureError, ClosureReason, GraftError, Limits, ObjectId, Overlay, PackError, RelPath, TreeError,
    archive,
    charts::{self, ChartError, ChartReason, Missing},
    closure_of,
};
use farwater_sources::{ArtifactError, Artifacts, Mirror, MirrorError, PackedBundle};
use serde::{Deserialize, Serialize};

use super::{
    chain,
    git::{BundleFailure, Mirrors, parse_commit},
};

/// Charts that are looked at for one bundle: those of a service, and local ones that they depend on.
const MAX_CHARTS: usize = 64;

/// How a bundle is made, and made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// The service's own source, whose files lie as they are.
    pub first: Piece,
    /// In the order in which they are laid in.
    pub mounts: Vec<Piece>,
    /// The folders that are needed, with all that they lead to.
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
    /// Where it is laid in.
    #[serde(default)]
    pub mount: RelPath,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Files {
    /// Of a mirror.
    Commit(String),
    /// Of an archive on the disk.
    Artifact(Digest),
}

/// A dependency of a chart that has to come from a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The chart's folder.
    pub folder: RelPath,
    pub missing: Missing,
}

#[derive(Debug, thiserror::Error)]
pub enum CombineError {
    /// Of the sources, told to people as it is.
    #[error("{0}")]
    Content(String),
    /// What was kept of a source is not there, or broken; fetched again it is whole.
    #[error("what is kept of source {source_uid} is not whole")]
    Damaged {
        source_uid: String,
        /// All of it is to be made anew.
        whole: bool,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Of this machine.
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

/// What a recipe makes.
pub enum Combined {
    /// These have to be found first.
    Lacks(Vec<Need>),
    Bundle {
        content_id: Digest,
        /// None where its content is known already.
        packed: Option<PackedBundle>,
    },
}

/// Makes a bundle. `is_known`: whether a content was packed before.
pub async fn make(
    mirrors: &Mirrors,
    recipe: &Recipe,
    is_known: impl AsyncFnOnce(Digest) -> Result<bool, CombineError>,
) -> Result<Combined, CombineError> {
    let _place = mirrors.packing_place().await;
    let limits = mirrors.limits();
    let shelf = Shelf::of(mirrors, recipe)?;
    let gathered = blocking(move || shelf.gather(&limits)).await?;
    let closure = match gathered {
        Gathered::Lacks(needs) => return Ok(Combined::Lacks(needs)),
        Gathered::Whole(closure) => closure,
    };
    let content_id = closure.content_id;
    if is_known(content_id).await? {
        return Ok(Combined::Bundle { content_id, packed: None });
    }
    // Opened anew: objects of a mirror are of one thread.
    let shelf = Shelf::of(mirrors, recipe)?;
    let packed = blocking(move || shelf.pack(&limits)).await?;
    Ok(Combined::Bundle { content_id, packed: Some(packed) })
}

/// Makes a bundle that was made before.
pub async fn pack_again(mirrors: &Mirrors, recipe: &str) -> Result<PackedBundle, BundleFailure> {
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

/// A recipe, and where what it names lies on this node.
struct Shelf {
    recipe: Recipe,
    /// Of the first piece, then of the mounts.
    places: Vec<PathBuf>,
}

enum Gathered {
    Lacks(Vec<Need>),
    Whole(Closure),
}

impl Shelf {
    fn of(mirrors: &Mirrors, recipe: &Recipe) -> Result<Self, CombineError> {
        let pieces = std::iter::once(&recipe.first).chain(&recipe.mounts);
        let places = pieces.map(|piece| mirrors.path(&piece.source_uid)).collect::<std::io::Result<_>>();
        Ok(Self { recipe: recipe.clone(), places: places.map_err(|error| CombineError::Machine(error.into()))? })
    }

    /// The tree of a piece's source, added to the overlay; its root.
    fn open(overlay: &mut Overlay, piece: &Piece, place: &PathBuf) -> Result<ObjectId, CombineError> {
        let source_uid = || piece.source_uid.clone();
        match &piece.files {
            Files::Commit(commit) => {
                let broken = |error: MirrorError| match error.is_damage() {
                    true => CombineError::Damaged { source_uid: source_uid(), whole: true, source: error.into() },
                    false => CombineError::Machine(error.into()),
                };
                let commit = parse_commit(commit).map_err(|error| CombineError::Machine(error.to_string().into()))?;
                let mirror = Mirror::open(place).map_err(broken)?;
                let root = mirror.root_tree(&commit).map_err(broken)?;
                overlay.add(mirror.objects());
                Ok(root)
            }
            Files::Artifact(key) => {
                let members = Artifacts::at(place).open(key).map_err(|error| match error {
                    ArtifactError::Missing(_) => {
                        CombineError::Damaged { source_uid: source_uid(), whole: false, source: error.into() }
                    }
                    ArtifactError::Members(error) => CombineError::Content(error.to_string()),
                    error => CombineError::Machine(error.into()),
                })?;
                overlay.add(members.tree);
                Ok(members.root)
            }
        }
    }

    /// Objects that are missing are a mirror's: an archive was read as a whole.
    fn blame(&self, error: Box<ClosureError>) -> CombineError {
        if !matches!(error.reason, ClosureReason::Tree(TreeError::Missing(_) | TreeError::Unreadable { .. })) {
            return CombineError::Content(chain(&*error));
        }
        let mut pieces = std::iter::once(&self.recipe.first).chain(&self.recipe.mounts);
        match pieces.find(|piece| matches!(piece.files, Files::Commit(_))) {
            Some(piece) => CombineError::Damaged { source_uid: piece.source_uid.clone(), whole: true, source: error },
            None => CombineError::Machine(error),
        }
    }

    /// All pieces in their places.
    fn assemble(&self) -> Result<(Overlay, ObjectId), CombineError> {
        let mut overlay = Overlay::default();
        let mut places = self.places.iter();
        let nowhere = PathBuf::new();
        let mut root = Self::open(&mut overlay, &self.recipe.first, places.next().unwrap_or(&nowhere))?;
        for (piece, place) in self.recipe.mounts.iter().zip(places) {
            let own = Self::open(&mut overlay, piece, place)?;
            let folder = overlay.folder(&own, &piece.path).map_err(|error| CombineError::Machine(error.into()))?;
            let missing = || CombineError::Content(format!("{}: the source has no such folder", piece.path));
            root = overlay.graft(&root, &piece.mount, &folder.ok_or_else(missing)?)?;
        }
        Ok((overlay, root))
    }

    fn gather(&self, limits: &Limits) -> Result<Gathered, CombineError> {
        let (overlay, root) = self.assemble()?;
        Ok(match self.complete(overlay, root, limits)? {
            Completed::Lacks(needs) => Gathered::Lacks(needs),
            Completed::Whole { closure, .. } => Gathered::Whole(closure),
        })
    }

    fn pack(&self, limits: &Limits) -> Result<PackedBundle, CombineError> {
        let (overlay, root) = self.assemble()?;
        match self.complete(overlay, root, limits)? {
            Completed::Lacks(_) => Err(CombineError::Content("a chart lacks what it had before".to_owned())),
            Completed::Whole { overlay, closure } => {
                let bytes = archive::pack(&overlay, &closure, limits)?;
                let compressed = archive::compress(&bytes)?;
                Ok(PackedBundle { digest: Digest::of(&bytes), bytes: bytes.len() as u64, compressed })
            }
        }
    }

    /// Lays local charts where those that depend on them look for them.
    fn complete(&self, mut overlay: Overlay, mut root: ObjectId, limits: &Limits) -> Result<Completed, CombineError> {
        loop {
            let closure = closure_of(&overlay, &root, &self.recipe.paths, limits).map_err(|error| self.blame(error))?;
            if closure.charts.len() > MAX_CHARTS {
                return Err(CombineError::Content(format!("over {MAX_CHARTS} charts hang together")));
            }
            let (mut needs, mut local) = (Vec::new(), Vec::new());
            for folder in &closure.charts {
                for missing in charts::missing_dependencies(&overlay, &root, folder, limits)? {
                    match missing.repository.strip_prefix("file://") {
                        Some(path) => local.push((folder.clone(), missing.name.clone(), path.to_owned())),
                        None => needs.push(Need { folder: folder.clone(), missing }),
                    }
                }
            }
            // First what comes from elsewhere: a local chart is laid in with all that it needs itself.
            if !needs.is_empty() {
                return Ok(Completed::Lacks(needs));
            }
            if local.is_empty() {
                return Ok(Completed::Whole { overlay, closure });
            }
            root = lay_in_local(&mut overlay, &root, &local)?;
        }
    }
}

enum Completed {
    Lacks(Vec<Need>),
    Whole { overlay: Overlay, closure: Closure },
}

/// Lays in the local charts that need nothing more themselves. Of charts that need one another there are none.
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
        let found = overlay.folder(root, &from).map_err(|error| CombineError::Machine(error.into()))?;
        let found = found.ok_or_else(|| content(format!("{from} is no folder")))?;
        let place = charts::place_of(folder, name).ok_or_else(|| content("its name is no folder's".to_owned()))?;
        next = overlay.graft(&next, &place, &found)?;
        laid_in = true;
    }
    match laid_in {
        true => Ok(next),
        false => {
            let names: Vec<_> = unfinished.iter().map(ToString::to_string).collect();
            Err(CombineError::Content(format!("charts depend on one another: {}", names.join(", "))))
        }
    }
}
