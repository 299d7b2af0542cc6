//! Candidates: what a service would run, made of all sources that its spec names at their served revisions.

mod ingredient;
mod kitchen;
mod take;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use farwater_api::{Digest, SourceKind, service_sources::ChartReference, source::BUILT_IN_REVISION};
use farwater_bundle::RelPath;
use farwater_fleet::assignment::{Candidate, Part, Trouble};
use farwater_store::{
    StoreError,
    delivery::{Bundle, ServicePath, ServiceSource},
};

use crate::{
    replica::Replica,
    resources::{Name, SourceName},
    sources::{
        combine::{CombineError, Files},
        git::{self, BundleFailure, Made, PackedAway},
    },
};

pub use ingredient::{FoundSource, Ingredient, find_ingredients};
use kitchen::{CookError, Kitchen};
use take::{Take, Taken, is_current};

/// Maximum rounds of adding charts and bases: each round fetches those that the previous one turned out to need.
pub(super) const MAX_ROUNDS: usize = 8;

/// Maximum number of paths kept per service. A service with more is requeued by every commit of its source.
const MOST_PATHS: usize = 64;

/// Result of resolving a service's sources.
pub struct Resolved {
    pub candidate: Result<Candidate, Trouble>,
    /// A new bundle, and its recipe if rebuilding it needs more than its row.
    pub bundle: Option<(Bundle, Option<String>)>,
    /// Sources that the service needs besides its own.
    pub wants: Vec<ServiceSource>,
    /// Paths whose commits concern the service. None: as before.
    pub paths: Option<Vec<ServicePath>>,
    /// Sources to fetch, because something in them was never looked for.
    pub ask: Vec<(String, SourceName)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Machine(Box<dyn std::error::Error + Send + Sync>),
    /// The stored copy of a source is incomplete; it must be fetched again.
    #[error("the cache of {name} is incomplete")]
    Damaged {
        name: SourceName,
        source_uid: String,
        whole: bool,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The candidate of the last reconcile.
pub struct Known {
    pub candidate: Candidate,
    /// No commit since then touched the service's paths, so its source still has the same content for it.
    pub is_untouched: bool,
}

/// Resolves what the service would run. `service`: requeued when files that are missing now have been fetched.
pub async fn resolve(
    replica: &Arc<Replica>,
    namespace: &str,
    service: Option<&Name>,
    ingredients: &[Ingredient],
    known: Option<Known>,
) -> Result<Resolved, ResolveError> {
    let mut resolved = Resolved {
        candidate: Err(Trouble::ChartPending { message: String::new() }),
        bundle: None,
        wants: stated_wants(ingredients),
        paths: Some(all_paths(ingredients)),
        ask: Vec::new(),
    };

    let mut taken = Vec::new();
    let mut trouble = None;
    for ingredient in ingredients {
        match ingredient.take() {
            Take::Files(files) => taken.push(*files),
            Take::Trouble(found) => trouble = trouble.or(Some(found)),
            Take::Pending(message) => {
                resolved
                    .ask
                    .extend(ingredient.uid().map(|uid| (uid.to_owned(), ingredient.name(namespace))));
                trouble = trouble.or(Some(Trouble::ChartPending { message }));
            }
        }
    }

    if let Some(trouble) = trouble {
        resolved.candidate = Err(trouble);
        return Ok(resolved);
    }

    let problem = taken.iter().find_map(|taken| taken.problem.clone());
    let rendered = ingredients
        .first()
        .map(|own| own.rendered.as_slice())
        .unwrap_or_default();
    if let Some(known) = known.filter(|known| known.candidate.rendered == rendered)
        && let Some(mut again) = is_current(replica, &known, &taken).await?
    {
        again.configuration = ingredients.first().map(Ingredient::promoted).unwrap_or_default();
        resolved.wants.extend(wants_of(&again));
        resolved.paths = None;
        // The candidate is what is served. The reason why nothing newer is served is reported here, because the source
        // itself is healthy.
        resolved.candidate = problem.map_or(Ok(again), |message| Err(Trouble::ChartMissing { message }));
        return Ok(resolved);
    }

    make_candidate(replica, (namespace, service), ingredients, &taken, &mut resolved).await?;
    Ok(resolved)
}

/// The sources that a service needs in any case, before its charts are known. A single Git repository is left out: the
/// assignment's own row names it.
fn stated_wants(ingredients: &[Ingredient]) -> Vec<ServiceSource> {
    if let [one] = ingredients
        && one.is_plain_git()
    {
        return Vec::new();
    }
    let want = |one: &Ingredient| Some(want(one.uid()?, one.chart.as_ref(), ""));
    ingredients.iter().filter_map(want).collect()
}

/// Paths that stand for each of its Git repositories as a whole.
pub fn all_paths(ingredients: &[Ingredient]) -> Vec<ServicePath> {
    let git = ingredients
        .iter()
        .filter(|one| one.reference.kind == SourceKind::GitRepository);
    let mut paths: Vec<_> = git.filter_map(|one| Some(ServicePath::all(one.uid()?))).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The sources of a candidate. They must stay available while the candidate is assigned, because its bundle may have to
/// be rebuilt.
pub fn wants_of(candidate: &Candidate) -> impl Iterator<Item = ServiceSource> {
    candidate.parts.iter().map(|part| {
        let url = if part.name.is_empty() { part.url.as_str() } else { "" };
        want(&part.source_uid, part.chart.as_ref(), url)
    })
}

pub(super) fn want(source_uid: &str, chart: Option<&ChartReference>, url: &str) -> ServiceSource {
    let (chart, wanted) = chart.map_or_else(Default::default, |chart| (chart.name.clone(), chart.version.clone()));
    ServiceSource {
        source_uid: source_uid.to_owned(),
        chart,
        wanted,
        url: url.to_owned(),
    }
}

/// Makes the candidate: the folder itself if that is all, otherwise a bundle of everything that it leads to.
async fn make_candidate(
    replica: &Arc<Replica>,
    (namespace, service): (&str, Option<&Name>),
    ingredients: &[Ingredient],
    taken: &[Taken],
    resolved: &mut Resolved,
) -> Result<(), ResolveError> {
    let (Some(first), Some(own)) = (taken.first(), ingredients.first()) else {
        return Ok(());
    };

    let plain = match make_plain(replica, ingredients, first).await {
        Ok(Some(made)) if !made.may_need_more && own.rendered.is_empty() => {
            resolved.paths = Some(paths_of(&first.part.source_uid, &made.roots));
            set_plain(resolved, own, first, made);
            return Ok(());
        }
        Ok(plain) => plain,
        Err(failure) => return refuse(resolved, first, own.name(namespace), failure),
    };

    let author = find_author(replica, plain.as_ref(), first).await;
    let mut kitchen = match Kitchen::new(namespace, ingredients, taken) {
        Ok(kitchen) => kitchen,
        Err(message) => {
            resolved.candidate = Err(bundle_trouble(first, message));
            return Ok(());
        }
    };
    let (packed, roots) = match kitchen.cook(replica, service, resolved).await {
        Ok(Some(cooked)) => cooked,
        // `resolved` says what is missing.
        Ok(None) => return Ok(()),
        Err(CookError::Resolve(error)) => return Err(error),
        Err(CookError::Combine(error)) => {
            return refuse_combined(resolved, first, (&kitchen.names, own.name(namespace)), error);
        }
    };

    // Dependencies are mounted only at paths that the repository does not use or that its own folder names, so they add
    // no roots.
    if let Some(made) = &plain {
        let all = made.roots.union(&roots).cloned().collect();
        resolved.paths = Some(paths_of(&first.part.source_uid, &all));
    }
    let is_alone = kitchen.parts.len() == 1 && own.is_plain_git();
    // A chart that lacks nothing is bundled as its folder.
    if let Some(made) = plain.filter(|_| is_alone) {
        set_plain(resolved, own, first, made);
        return Ok(());
    }

    let bundle = combined_bundle(packed, first);
    let recipe = serde_json::to_string(&kitchen.recipe).map_err(StoreError::abort)?;
    // Submodules and LFS files are no second part of a source.
    let parts = if is_alone { Vec::new() } else { kitchen.parts };
    resolved.candidate = Ok(candidate(own, first, &bundle, author, parts, artifact_keys(taken)));
    resolved.bundle = Some((bundle, Some(recipe)));
    Ok(())
}

/// Bundles the folder of a service whose only source is a plain Git repository. None: the service has more.
async fn make_plain(
    replica: &Replica,
    ingredients: &[Ingredient],
    first: &Taken,
) -> Result<Option<Made>, BundleFailure> {
    match (ingredients, &first.files) {
        ([one], Files::Commit { commit, reads }) if one.is_plain_git() && reads.is_plain() => {
            let made = git::make_bundle(replica, &first.part.source_uid, commit, &one.path).await;
            made.map(Some)
        }
        _ => Ok(None),
    }
}

fn set_plain(resolved: &mut Resolved, own: &Ingredient, first: &Taken, made: Made) {
    let Made { bundle, author, .. } = made;
    resolved.candidate = Ok(candidate(own, first, &bundle, author, Vec::new(), Vec::new()));
    resolved.bundle = Some((bundle, None));
}

/// The author of the served commit. Empty: the first source has no commits, or its author is unknown.
async fn find_author(replica: &Replica, plain: Option<&Made>, first: &Taken) -> String {
    match (plain, &first.files) {
        (Some(made), _) => made.author.clone(),
        (None, Files::Commit { commit, .. }) => git::author(replica, &first.part.source_uid, commit).await,
        (None, Files::Artifact(_) | Files::BuiltIn) => String::new(),
    }
}

fn combined_bundle(packed: PackedAway, first: &Taken) -> Bundle {
    let commit = match &first.files {
        Files::Commit { commit, .. } => commit.clone(),
        Files::Artifact(key) => key.to_hex(),
        Files::BuiltIn => BUILT_IN_REVISION.to_owned(),
    };
    Bundle {
        content_id: packed.content_id,
        digest: packed.digest,
        bytes: packed.bytes,
        source_uid: first.part.source_uid.clone(),
        commit,
        path: first.part.path.clone(),
    }
}

/// Keys of the artifacts that are no charts. A revision alone does not say which part of an artifact was read.
fn artifact_keys(taken: &[Taken]) -> Vec<Digest> {
    let key = |taken: &Taken| match (&taken.files, &taken.part.chart) {
        (Files::Artifact(key), None) => Some(*key),
        _ => None,
    };
    taken.iter().filter_map(key).collect()
}

fn bundle_trouble(first: &Taken, message: String) -> Trouble {
    Trouble::Bundle {
        revision: first.part.revision.clone(),
        message,
    }
}

/// Paths of one repository.
fn paths_of(source_uid: &str, roots: &BTreeSet<RelPath>) -> Vec<ServicePath> {
    if roots.len() > MOST_PATHS {
        return vec![ServicePath::all(source_uid)];
    }
    let path = |root: &RelPath| ServicePath {
        source_uid: source_uid.to_owned(),
        path: root.as_str().to_owned(),
    };
    roots.iter().map(path).collect()
}

/// A fault of the repository becomes the service's trouble; any other fault is an error.
fn refuse(
    resolved: &mut Resolved,
    first: &Taken,
    name: SourceName,
    failure: BundleFailure,
) -> Result<(), ResolveError> {
    match failure {
        BundleFailure::Content(message) => {
            resolved.candidate = Err(bundle_trouble(first, message));
            Ok(())
        }
        BundleFailure::Machine(error) => Err(ResolveError::Machine(error)),
        BundleFailure::Damaged(source) => Err(ResolveError::Damaged {
            name,
            source_uid: first.part.source_uid.clone(),
            whole: true,
            source,
        }),
    }
}

/// The same for several sources. `names`: the sources by uid. `own`: the name to use if the uid is unknown.
fn refuse_combined(
    resolved: &mut Resolved,
    first: &Taken,
    (names, own): (&BTreeMap<String, SourceName>, SourceName),
    error: CombineError,
) -> Result<(), ResolveError> {
    match error {
        CombineError::Content(message) => {
            resolved.candidate = Err(bundle_trouble(first, message));
            Ok(())
        }
        CombineError::Machine(error) => Err(ResolveError::Machine(error)),
        CombineError::Damaged {
            source_uid,
            whole,
            source,
        } => Err(ResolveError::Damaged {
            name: names.get(&source_uid).cloned().unwrap_or(own),
            source_uid,
            whole,
            source,
        }),
    }
}

fn candidate(
    own: &Ingredient,
    first: &Taken,
    bundle: &Bundle,
    author: String,
    parts: Vec<Part>,
    artifacts: Vec<Digest>,
) -> Candidate {
    let origin = own.found.as_ref().and_then(|found| found.origin.as_ref());
    let root = origin.map(|origin| origin.root.clone()).filter(|root| !root.is_empty());
    Candidate {
        revision: first.part.revision.clone(),
        content_id: bundle.content_id,
        bundle: bundle.digest,
        bundle_bytes: bundle.bytes,
        path: bundle.path.clone(),
        source: first.part.url.clone(),
        // One repository has many charts, and each chart is an origin of its own.
        origin: match &own.chart {
            Some(chart) => Some(format!("{}#{}", first.part.url.trim_end_matches('/'), chart.name)),
            None => root,
        },
        author,
        reads: first.part.reads.clone(),
        rendered: own.rendered.clone(),
        parts,
        artifacts,
        configuration: own.promoted(),
    }
}
