//! Candidates: what a service would run, made of all sources that its spec names at their served revisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use farwater_api::{
    Digest, ServiceDeploymentSpec, SourceKind,
    renderer::{Renderer, RendererType},
    service_sources::{ChartReference, SourceReference},
    source::BUILT_IN_REVISION,
};
use farwater_bundle::{Base, RelPath};
use farwater_fleet::assignment::{Candidate, Part, Trouble};
use farwater_sources::{Range, Reads};
use farwater_store::{
    StoreError,
    delivery::{
        Bundle, ChartRow, Revision, ServicePath, ServiceSource, SourceOrigin, bundle_of_content, load_chart,
        load_revision, load_served,
    },
};

use super::{
    artifacts,
    combine::{self, Absent, CombineError, Combined, Files, Lacks, Need, Piece, Place, Recipe},
    git::{self, BundleFailure, PackedAway},
    large_files::{self, Wanted},
    resources::Name,
    sources::{self, SourceName, SourceObject, SourceSpec},
};
use crate::delivery::Delivery;

/// Maximum rounds of adding charts and bases: each round fetches those that the previous one turned out to need.
const MAX_ROUNDS: usize = 8;
/// Maximum number of paths kept per service. A service with more is requeued by every commit of its source.
const MOST_PATHS: usize = 64;

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
        self.found.as_ref().is_some_and(|found| found.origin.as_ref().is_none_or(|origin| !origin.unasked))
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
    fn promoted(&self) -> BTreeMap<String, String> {
        let revision = self.found.as_ref().and_then(|found| found.revision.as_ref());
        revision.map(|revision| revision.taken.configuration.clone()).unwrap_or_default()
    }

    fn is_plain_git(&self) -> bool {
        self.reference.kind == SourceKind::GitRepository && self.chart.is_none()
    }
}

impl FoundSource {
    fn is_built_in(&self) -> bool {
        matches!(self.object.spec, SourceSpec::BuiltIn)
    }

    /// Address that the served revision came from. The spec may name another address that was not fetched yet. So a
    /// grant that forbids the served address still applies after such an edit.
    fn address(&self) -> &str {
        let fetched = match &self.object.spec {
            SourceSpec::Git(_) => self.revision.as_ref().and_then(|revision| revision.taken.address.as_deref()),
            SourceSpec::Helm(_) | SourceSpec::Oci(_) | SourceSpec::File(_) => {
                self.origin.as_ref().map(|origin| origin.root.as_str()).filter(|root| !root.is_empty())
            }
            SourceSpec::BuiltIn => None,
        };
        fetched.unwrap_or(&self.object.any.url)
    }

    /// Loads a source with what is served of it now.
    pub async fn load(
        delivery: &Delivery,
        namespace: &str,
        reference: &SourceReference,
        chart: Option<&ChartReference>,
    ) -> Result<Option<Self>, StoreError> {
        let Some(object) = sources::load(&delivery.store, &SourceName::of(namespace, reference)).await? else {
            return Ok(None);
        };
        let mut tables = delivery.store.tables().await?;
        loop {
            let (origin, revision) = load_served(&mut tables, &object.uid).await?;
            let chart = match chart {
                Some(chart) => load_chart(&mut tables, &object.uid, (&chart.name, &chart.version)).await?,
                None => return Ok(Some(Self { object, revision, chart: None, origin })),
            };
            // A fetch writes origin and chart together. If the origin is the same after the chart was read, the chart
            // belongs to it.
            let (again, _) = load_served(&mut tables, &object.uid).await?;
            if again == origin {
                return Ok(Some(Self { object, revision, chart, origin }));
            }
        }
    }
}

/// Loads all sources that a spec names, with what is served of them now.
pub async fn find_ingredients(
    delivery: &Delivery,
    namespace: &str,
    spec: &ServiceDeploymentSpec,
) -> Result<Vec<Ingredient>, StoreError> {
    let mut all = Vec::new();
    for stated in spec.all_sources() {
        let found = FoundSource::load(delivery, namespace, stated.reference, stated.chart).await?;
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
        matches!(renderer.kind, RendererType::Auto | RendererType::Helm | RendererType::Kustomize)
    };
    let folder = |renderer: &Renderer| {
        let own = RelPath::parse_folder(&spec.path).ok()?;
        own.join_clean(&renderer.path).ok().filter(|folder| folder.is_within(&own) && *folder != own)
    };
    let folders: BTreeSet<RelPath> = spec.renderers.iter().filter(may_need_more).filter_map(folder).collect();
    folders.iter().map(ToString::to_string).collect()
}

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

/// Files of a source at its served revision, and their description.
struct Taken {
    part: Part,
    files: Files,
    /// A problem that exists although something is served.
    problem: Option<String>,
}

enum Take {
    Files(Box<Taken>),
    Trouble(Trouble),
    /// No fetch has looked for it yet.
    Pending(String),
}

impl Ingredient {
    fn take(&self) -> Take {
        let SourceReference { kind, name } = &self.reference;
        let Some(found) = &self.found else {
            return Take::Trouble(Trouble::SourceMissing { kind: *kind, name: name.clone() });
        };
        let part = |revision: String| Part {
            kind: *kind,
            name: name.clone(),
            source_uid: found.object.uid.clone(),
            url: found.address().to_owned(),
            chart: self.chart.clone(),
            revision,
            reads: found.revision.as_ref().map(|revision| word_of(reads_of(revision))).unwrap_or_default(),
            path: git::clean_path(&self.path).unwrap_or_else(|_| self.path.clone()),
            mount_path: self.mount_path.clone().unwrap_or_default(),
            dependency: false,
        };
        let Some(chart) = &self.chart else { return self.take_revision(found, part) };
        let Some(row) = &found.chart else {
            return Take::Pending(format!("chart {} {} of {kind} {name} is looked for", chart.name, chart.version));
        };
        match take_chart(row) {
            Ok((revision, key)) => {
                let problem = Some(row.problem.clone()).filter(|problem| !problem.is_empty());
                Take::Files(Box::new(Taken { part: part(revision), files: Files::Artifact(key), problem }))
            }
            Err(message) => Take::Trouble(Trouble::ChartMissing { message }),
        }
    }

    fn take_revision(&self, found: &FoundSource, part: impl FnOnce(String) -> Part) -> Take {
        let SourceReference { kind, name } = &self.reference;
        if found.is_built_in() {
            let part = part(BUILT_IN_REVISION.to_owned());
            return Take::Files(Box::new(Taken { part, files: Files::BuiltIn, problem: None }));
        }
        let Some(revision) = &found.revision else {
            return Take::Trouble(Trouble::SourceEmpty { kind: *kind, name: name.clone() });
        };
        let text = git::format_revision(&revision.reference, &revision.commit);
        let files = match &found.object.spec {
            SourceSpec::Git(_) => Files::Commit { commit: revision.commit.clone(), reads: reads_of(revision) },
            SourceSpec::Oci(_) | SourceSpec::File(_) => match artifacts::artifact_key(revision) {
                Some(key) => Files::Artifact(key),
                None => return Take::Trouble(Trouble::SourceEmpty { kind: *kind, name: name.clone() }),
            },
            SourceSpec::BuiltIn => Files::BuiltIn,
            SourceSpec::Helm(_) => {
                let message = format!("{kind} {name} holds charts; say which one in chart");
                return Take::Trouble(Trouble::Bundle { revision: text, message });
            }
        };
        Take::Files(Box::new(Taken { part: part(text), files, problem: None }))
    }
}

/// Returns the version as `1.2.3@sha256:…`, and the key of the archive.
fn take_chart(row: &ChartRow) -> Result<(String, Digest), String> {
    match row.digest.parse() {
        Ok(digest) if !row.version.is_empty() => Ok((format!("{}@{digest}", row.version), digest)),
        _ => Err(row.problem.clone()),
    }
}

fn reads_of(revision: &Revision) -> Reads {
    Reads { submodules: revision.taken.submodules, lfs: revision.taken.lfs }
}

/// The parts of a commit that were read besides its own files, as a candidate stores it, e.g. `submodules lfs`.
fn word_of(reads: Reads) -> String {
    let words = [(reads.submodules, "submodules"), (reads.lfs, "lfs")];
    words.into_iter().filter(|(is_read, _)| *is_read).map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// The candidate of the last reconcile.
pub struct Known {
    pub candidate: Candidate,
    /// No commit since then touched the service's paths, so its source still has the same content for it.
    pub is_untouched: bool,
}

/// Resolves what the service would run. `service`: requeued when files that are missing now have been fetched.
pub async fn resolve(
    delivery: &Arc<Delivery>,
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
                resolved.ask.extend(ingredient.uid().map(|uid| (uid.to_owned(), ingredient.name(namespace))));
                trouble = trouble.or(Some(Trouble::ChartPending { message }));
            }
        }
    }

    if let Some(trouble) = trouble {
        resolved.candidate = Err(trouble);
        return Ok(resolved);
    }

    let problem = taken.iter().find_map(|taken| taken.problem.clone());
    let rendered = ingredients.first().map(|own| own.rendered.as_slice()).unwrap_or_default();
    if let Some(known) = known.filter(|known| known.candidate.rendered == rendered)
        && let Some(mut again) = is_current(delivery, &known, &taken).await?
    {
        again.configuration = ingredients.first().map(Ingredient::promoted).unwrap_or_default();
        resolved.wants.extend(wants_of(&again));
        resolved.paths = None;
        // The candidate is what is served. The reason why nothing newer is served is reported here, because the source
        // itself is healthy.
        resolved.candidate = problem.map_or(Ok(again), |message| Err(Trouble::ChartMissing { message }));
        return Ok(resolved);
    }

    make_candidate(delivery, (namespace, service), ingredients, &taken, &mut resolved).await?;
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
    let git = ingredients.iter().filter(|one| one.reference.kind == SourceKind::GitRepository);
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

fn want(source_uid: &str, chart: Option<&ChartReference>, url: &str) -> ServiceSource {
    let (chart, wanted) = chart.map_or_else(Default::default, |chart| (chart.name.clone(), chart.version.clone()));
    ServiceSource { source_uid: source_uid.to_owned(), chart, wanted, url: url.to_owned() }
}

/// Returns the known candidate, with the addresses that it was fetched from last, if it is still made of exactly what
/// is served now.
async fn is_current(delivery: &Delivery, known: &Known, taken: &[Taken]) -> Result<Option<Candidate>, StoreError> {
    let Known { candidate: known, is_untouched } = known;
    let stated: Vec<&Part> = known.parts.iter().filter(|part| !part.dependency).collect();
    let Some(first) = taken.first() else { return Ok(None) };
    let mut next = known.clone();
    next.source.clone_from(&first.part.url);
    if stated.is_empty() {
        // A single folder of a Git repository.
        let is_plain = taken.len() == 1 && matches!(first.files, Files::Commit { .. });
        let is_same = (*is_untouched || known.revision == first.part.revision) && known.path == first.part.path;
        let same = is_plain && is_same && known.reads == first.part.reads;
        return Ok(same.then_some(next));
    }

    if stated.len() != taken.len() {
        return Ok(None);
    }
    for (part, now) in stated.iter().zip(taken) {
        let mut same = Part { url: part.url.clone(), ..now.part.clone() };
        if *is_untouched {
            same.revision.clone_from(&part.revision);
        }
        if **part != same || !is_same_artifact(known, part, &now.files) {
            return Ok(None);
        }
    }

    for part in known.parts.iter().filter(|part| part.dependency) {
        let Some(chart) = &part.chart else {
            let revision = load_revision(&mut *delivery.store.tables().await?, &part.source_uid).await?;
            let now = revision.map(|revision| git::format_revision(&revision.reference, &revision.commit));
            if now.as_deref() == Some(part.revision.as_str()) {
                continue;
            }
            return Ok(None);
        };
        let wanted = (chart.name.as_str(), chart.version.as_str());
        let row = load_chart(&mut *delivery.store.tables().await?, &part.source_uid, wanted).await?;
        let is_same = row.is_some_and(|row| take_chart(&row).is_ok_and(|(revision, _)| revision == part.revision));
        if !is_same {
            return Ok(None);
        }
    }

    let mut urls = taken.iter().map(|taken| &taken.part.url);
    for part in next.parts.iter_mut().filter(|part| !part.dependency) {
        if let Some(url) = urls.next() {
            part.url.clone_from(url);
        }
    }
    Ok(Some(next))
}

/// The revision identifies an artifact's manifest. The source's spec says which part of the artifact is read, so the
/// keys are compared too.
fn is_same_artifact(known: &Candidate, part: &Part, files: &Files) -> bool {
    match files {
        Files::Commit { .. } | Files::BuiltIn => true,
        Files::Artifact(key) => part.chart.is_some() || known.artifacts.is_empty() || known.artifacts.contains(key),
    }
}

async fn make_candidate(
    delivery: &Arc<Delivery>,
    (namespace, service): (&str, Option<&Name>),
    ingredients: &[Ingredient],
    taken: &[Taken],
    resolved: &mut Resolved,
) -> Result<(), ResolveError> {
    let (Some(first), Some(own)) = (taken.first(), ingredients.first()) else { return Ok(()) };

    let mut plain = None;
    if let ([one], Files::Commit { commit, reads }) = (ingredients, &first.files)
        && one.is_plain_git()
        && reads.is_plain()
    {
        let made = git::make_bundle(delivery, &first.part.source_uid, commit, &one.path).await;
        match made {
            Ok(made) if !made.may_need_more && one.rendered.is_empty() => {
                resolved.paths = Some(paths_of(&first.part.source_uid, &made.roots));
                resolved.candidate = Ok(candidate(own, first, &made.bundle, made.author, Vec::new(), Vec::new()));
                resolved.bundle = Some((made.bundle, None));
                return Ok(());
            }
            Ok(made) => plain = Some(made),
            Err(failure) => return refuse(resolved, first, own.name(namespace), failure),
        }
    }

    let author = match (&plain, &first.files) {
        (Some(made), _) => made.author.clone(),
        (None, Files::Commit { commit, .. }) => git::author(delivery, &first.part.source_uid, commit).await,
        (None, Files::Artifact(_) | Files::BuiltIn) => String::new(),
    };

    let mut kitchen = match Kitchen::new(namespace, ingredients, taken) {
        Ok(kitchen) => kitchen,
        Err(message) => {
            resolved.candidate = Err(Trouble::Bundle { revision: first.part.revision.clone(), message });
            return Ok(());
        }
    };

    match kitchen.cook(delivery, service, resolved).await {
        Ok(Some((PackedAway { content_id, digest, bytes }, roots))) => {
            let is_alone = kitchen.parts.len() == 1 && own.is_plain_git();
            // Dependencies are mounted only at paths that the repository does not use or that its own folder names, so
            // they add no roots.
            if let Some(made) = &plain {
                resolved.paths = Some(paths_of(&first.part.source_uid, &made.roots.union(&roots).cloned().collect()));
            }
            // A chart that lacks nothing is bundled as its folder.
            if let Some(made) = plain.filter(|_| is_alone) {
                resolved.candidate = Ok(candidate(own, first, &made.bundle, author, Vec::new(), Vec::new()));
                resolved.bundle = Some((made.bundle, None));
                return Ok(());
            }
            let commit = match &first.files {
                Files::Commit { commit, .. } => commit.clone(),
                Files::Artifact(key) => key.to_hex(),
                Files::BuiltIn => BUILT_IN_REVISION.to_owned(),
            };
            let (source_uid, path) = (first.part.source_uid.clone(), first.part.path.clone());
            let bundle = Bundle { content_id, digest, bytes, source_uid, commit, path };
            let recipe = serde_json::to_string(&kitchen.recipe).map_err(StoreError::abort)?;
            let keys = taken.iter().filter_map(|taken| match (&taken.files, &taken.part.chart) {
                (Files::Artifact(key), None) => Some(*key),
                _ => None,
            });
            // Submodules and LFS files are no second part of a source.
            let parts = if is_alone { Vec::new() } else { kitchen.parts };
            resolved.candidate = Ok(candidate(own, first, &bundle, author, parts, keys.collect()));
            resolved.bundle = Some((bundle, Some(recipe)));
            Ok(())
        }
        // `resolved` says what is missing.
        Ok(None) => Ok(()),
        Err(CookError::Resolve(error)) => Err(error),
        Err(CookError::Combine(CombineError::Content(message))) => {
            resolved.candidate = Err(Trouble::Bundle { revision: first.part.revision.clone(), message });
            Ok(())
        }
        Err(CookError::Combine(CombineError::Machine(error))) => Err(ResolveError::Machine(error)),
        Err(CookError::Combine(CombineError::Damaged { source_uid, whole, source })) => {
            let name = kitchen.names.get(&source_uid).cloned().unwrap_or_else(|| own.name(namespace));
            Err(ResolveError::Damaged { name, source_uid, whole, source })
        }
    }
}

/// Paths of one repository.
fn paths_of(source_uid: &str, roots: &BTreeSet<RelPath>) -> Vec<ServicePath> {
    if roots.len() > MOST_PATHS {
        return vec![ServicePath::all(source_uid)];
    }
    let path = |root: &RelPath| ServicePath { source_uid: source_uid.to_owned(), path: root.as_str().to_owned() };
    roots.iter().map(path).collect()
}

fn refuse(
    resolved: &mut Resolved,
    first: &Taken,
    name: SourceName,
    failure: BundleFailure,
) -> Result<(), ResolveError> {
    match failure {
        BundleFailure::Content(message) => {
            resolved.candidate = Err(Trouble::Bundle { revision: first.part.revision.clone(), message });
            Ok(())
        }
        BundleFailure::Machine(error) => Err(ResolveError::Machine(error)),
        BundleFailure::Damaged(source) => {
            Err(ResolveError::Damaged { name, source_uid: first.part.source_uid.clone(), whole: true, source })
        }
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

/// A recipe that is being completed.
struct Kitchen {
    namespace: String,
    recipe: Recipe,
    parts: Vec<Part>,
    /// Names of sources, by uid.
    names: BTreeMap<String, SourceName>,
}

enum CookError {
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
    fn new(namespace: &str, ingredients: &[Ingredient], taken: &[Taken]) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut paths = Vec::new();
        for (n, (ingredient, taken)) in ingredients.iter().zip(taken).enumerate() {
            let field = if n == 0 { "spec".to_owned() } else { format!("spec.sources[{}]", n - 1) };
            let path = RelPath::parse_folder(&ingredient.path).map_err(|error| format!("{field}.path: {error}"))?;
            let mount = ingredient.mount_path.as_deref().unwrap_or_default();
            let mount = RelPath::parse_folder(mount).map_err(|error| format!("{field}.mountPath: {error}"))?;
            paths.push(if n == 0 { path.clone() } else { mount.clone() });
            paths.extend(ingredient.rendered.iter().filter_map(|folder| RelPath::parse(folder).ok()));
            let (source_uid, files) = (taken.part.source_uid.clone(), taken.files.clone());
            pieces.push(Piece { source_uid, files, path, mount });
        }
        let names = ingredients.iter().filter_map(|one| Some((one.uid()?.to_owned(), one.name(namespace)))).collect();
        let mut pieces = pieces.into_iter();
        let first = pieces.next().ok_or("no source")?;
        Ok(Self {
            namespace: namespace.to_owned(),
            recipe: Recipe { first, mounts: pieces.collect(), paths },
            parts: taken.iter().map(|taken| taken.part.clone()).collect(),
            names,
        })
    }

    /// Makes the bundle, with all charts and bases that it turns out to need. None: some of them are not here yet;
    /// `resolved` says which.
    async fn cook(
        &mut self,
        delivery: &Arc<Delivery>,
        service: Option<&Name>,
        resolved: &mut Resolved,
    ) -> Result<Option<(PackedAway, BTreeSet<RelPath>)>, CookError> {
        for _ in 0..MAX_ROUNDS {
            let mut known = None;
            let is_known = async |content_id| {
                let mut tables = delivery.store.tables().await.map_err(machine)?;
                known = bundle_of_content(&mut tables, &content_id).await.map_err(machine)?;
                Ok(known.is_some())
            };

            match combine::make(&delivery.mirrors, &self.recipe, is_known).await? {
                Combined::Bundle { content_id, roots, packed: Some(packed) } => {
                    let (digest, bytes) = (packed.digest, packed.bytes);
                    delivery.mirrors.cache().put(&digest, packed.compressed).await.map_err(machine)?;
                    return Ok(Some((PackedAway { content_id, digest, bytes }, roots)));
                }
                Combined::Bundle { content_id, roots, packed: None } => {
                    let row = known.ok_or_else(|| machine("a bundle that is known has no row"))?;
                    return Ok(Some((PackedAway { content_id, digest: row.digest, bytes: row.bytes }, roots)));
                }
                Combined::Waits(content, absent) => {
                    let revision = self.parts.first().map(|part| part.revision.clone()).unwrap_or_default();
                    let mut message = String::new();
                    for Absent { source_uid, files } in absent {
                        let Some(source) = self.names.get(&source_uid) else { continue };
                        message = large_files::want(delivery, Wanted { source, source_uid, content, files }, service);
                    }
                    resolved.candidate = Err(Trouble::Files { revision, message });
                    return Ok(None);
                }
                Combined::Lacks(Lacks { charts, bases }) => {
                    let has_bases = self.fetch_bases(delivery, &bases, resolved).await?;
                    if !self.fetch_charts(delivery, &charts, resolved).await? || !has_bases {
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
        delivery: &Delivery,
        needs: &[Need],
        resolved: &mut Resolved,
    ) -> Result<bool, CookError> {
        let mut trouble = None;
        for need in needs {
            let Need { named_by, missing, place } = need;
            let content = |why: String| CombineError::Content(format!("{named_by}: {why}"));

            let found = self.find_repository(delivery, &missing.repository).await?;
            let (source_uid, name, url) = match found {
                Ok(found) => found,
                // Creating the missing HelmRepository requeues the service.
                Err(why) => {
                    trouble = Some(Trouble::ChartMissing { message: content(why).to_string() });
                    continue;
                }
            };
            let source = match name.as_str() {
                "" => SourceName::Link { namespace: self.namespace.clone(), url: url.clone() },
                name => SourceName::Resource(SourceKind::HelmRepository, Name::new(&self.namespace, name)),
            };

            let chart = ChartReference { name: missing.name.clone(), version: missing.version.clone() };
            let link = if name.is_empty() { url.as_str() } else { "" };
            resolved.wants.push(want(&source_uid, Some(&chart), link));

            let wanted = (chart.name.as_str(), chart.version.as_str());
            let row = load_chart(&mut *delivery.store.tables().await?, &source_uid, wanted).await?;
            let Some(row) = row else {
                let what = format!("chart {} {} of {url}", chart.name, chart.version);
                let message = say_pending(delivery, &source_uid, &what);
                resolved.ask.push((source_uid, source));
                trouble = trouble.or(Some(Trouble::ChartPending { message }));
                continue;
            };

            let (revision, key) = match take_chart(&row) {
                Ok(taken) => taken,
                Err(message) => {
                    trouble = Some(Trouble::ChartMissing { message: content(message).to_string() });
                    continue;
                }
            };

            if missing.locked && !missing.range.parse::<Range>().is_ok_and(|range| range.contains(&row.version)) {
                let why = format!("the lock has {}, which is not in the range {}", row.version, missing.range);
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
            self.recipe.mounts.push(Piece { source_uid, files: Files::Artifact(key), path: RelPath::root(), mount });
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
        delivery: &Delivery,
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
            let source = SourceName::Link { namespace: self.namespace.clone(), url: url.clone() };
            resolved.wants.push(want(&source_uid, None, &url));

            let revision = load_revision(&mut *delivery.store.tables().await?, &source_uid).await?;
            let Some(revision) = revision else {
                is_whole = false;
                let message = say_pending(delivery, &source_uid, &format!("base {base}"));
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
                path: if base.is_file { String::new() } else { base.path.to_string() },
                mount_path: mount.to_string(),
                dependency: true,
            });

            let files = match base.is_file {
                true => Files::Artifact(artifacts::artifact_key(&revision).ok_or_else(|| machine("no digest"))?),
                false => Files::Commit { commit: revision.commit, reads: Reads::default() },
            };
            self.recipe.mounts.push(Piece { source_uid, files, path: RelPath::root(), mount });
        }
        Ok(is_whole)
    }

    /// Returns uid, name and address of a repository. A resource that states it comes first, because of its
    /// credentials; otherwise the name is empty.
    async fn find_repository(
        &self,
        delivery: &Delivery,
        repository: &str,
    ) -> Result<Result<(String, String, String), String>, StoreError> {
        if let Some(found) = sources::find_repository(&delivery.store, &self.namespace, repository).await? {
            return Ok(Ok(found));
        }
        if ["https://", "http://", "oci://"].iter().any(|scheme| repository.starts_with(scheme)) {
            let uid = SourceName::link_uid(&self.namespace, repository);
            return Ok(Ok((uid, String::new(), repository.to_owned())));
        }
        let shown = farwater_bundle::path::escape(repository.as_bytes());
        Ok(Err(format!("there is no HelmRepository {shown} in namespace {}", self.namespace)))
    }
}

/// Says what is not here yet, and the reason if it is known.
fn say_pending(delivery: &Delivery, source_uid: &str, what: &str) -> String {
    match delivery.checks.problem(source_uid) {
        Some(problem) => format!("{what} can't be had: {problem}"),
        None => format!("{what} is looked for"),
    }
}

fn machine(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CombineError {
    CombineError::Machine(error.into())
}
