//! assign_revisions: services of a source that moved → assignments.
//!
//! One decision, `fleet::assignment::decide`, says whether a candidate becomes the assignment. If something is
//! missing or broken, the old assignment stays and the service's status says why.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use farwater_api::{
    AGENT_FINALIZER, Digest, ServiceDeployment, ServiceDeploymentSpec, SourceKind,
    git_repository::LocalReference,
    protocol::Action,
    service_deployment::{ClusterReference, DeletionPolicy, Pin},
    service_sources::{ChartReference, SourceReference, StatedSource},
};
use farwater_fleet::{
    assignment::{Candidate, Decided, Decision, Inputs, Trouble, Why, decide, is_suspended, suspension_end},
    conditions::cut,
    dependencies::cycle_trouble,
    history,
    parameters::is_handed,
    placement::cluster_candidates,
    windows::{Closed, Subject},
};
use farwater_store::{
    Connection, Resource, StoreError, Write,
    delivery::{
        Assignment, Bundle, ChartRow, Released, Revision, ServiceOrigin, ServicePath, ServiceRows, ServiceSource,
        asks_for_the_same, assignments_named, delete_assignment, delete_report, dependencies_of, is_untouched,
        load_assignment, load_chart, load_parameters, load_report, load_revision, load_service_rows, mark_cluster,
        paths_of_service, save_assignment, save_bundle, save_dependencies, save_recipe, save_released,
        save_service_paths, save_service_secrets, save_service_sources, sources_of_service, stamp,
        trust_service_origin,
    },
};
use farwater_telemetry::traces::Interval;
use jiff::Timestamp;

use super::{
    approvals::{self, APPROVAL, OVERRIDE, Said, override_of_set, owning_set},
    candidates::{self, FoundSource, Ingredient, Known, ResolveError, Resolved, find_ingredients},
    chain,
    dependencies::{self, Waits},
    events::{self, Told},
    held_specs::{HeldLook, HeldNext},
    orphans,
    queue::Next,
    resources::{self, Name, Stored as _},
    rollouts::{Look, Looked, Looking},
    seen::News,
    services::{ClusterFacts, ServiceFacts, SourceUrls, load_grants_for, read_json},
    set_versions,
    sources::SourceName,
    summarize_reports::is_removed,
    trace_deliveries::Assigned,
    track_clusters::until_silent,
    versions,
};
use crate::{
    delivery::{
        Delivery,
        parameters::{Given, Newest},
        secrets, status,
    },
    notify::farewell_postings,
};

/// Backstop for a lost wake-up: a service that waits for others is normally requeued by them.
const RECHECK: Duration = Duration::from_secs(60);
/// A `readyExpr` may read any field of a dependency, also fields whose changes requeue no dependents.
const EXPRESSION_RECHECK: Duration = Duration::from_secs(5);
/// Retry of a service whose files could not be fetched.
const FILES_RECHECK: Duration = Duration::from_secs(15);
/// Requeue timers and the ends of suspensions use different clocks. If a timer fires before the end, the service is
/// requeued after `SOON`; a distant end is checked every `LONGEST_REST`.
const SOON: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub enum AssignError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A fault of this machine, not of the repository: retried, and not reported in the service's status.
    #[error("gather the files of {service}")]
    Bundle {
        service: Name,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

pub async fn assign_revision(delivery: Arc<Delivery>, name: Name) -> Result<Next, AssignError> {
    let begun = SystemTime::now();
    let found = resources::load::<ServiceDeployment>(&delivery.store, &name).await?;
    forget_old_rows(&delivery, &name, found.as_ref().map(|(resource, _)| resource.uid.as_str())).await?;

    let Some((resource, service)) = found else {
        delivery.checks.requests.forget(&name);
        return Ok(Next::OnChange);
    };
    // Record this object as seen, so that our own writes do not requeue the service. Any other change still does.
    if delivery.seen.note(&resource.object["metadata"]) > News::Nothing {
        // The write that brought this news has marked the cluster. `route_changes` will find nothing new in its
        // event, so wake `compute_desired` here.
        delivery.dirty.notify_one();
    }

    let mut words = Vec::new();
    for word in [&APPROVAL, &OVERRIDE] {
        match word.check::<ServiceDeployment>(&delivery, &name, &resource).await? {
            // The expired annotation was removed just now; that write requeues the service.
            approvals::Standing::Expired => return Ok(Next::OnChange),
            standing => words.extend(standing.left()),
        }
    }
    let approval = words.into_iter().min();

    let edition = delivery.windows.edition();
    let (rows, known_paths) = {
        let mut tables = delivery.store.tables().await?;
        let rows = load_service_rows(&mut tables, &resource.uid).await?;
        (rows, paths_of_service(&mut tables, &resource.uid).await?)
    };
    // These rows were loaded before the source, so a source fetched after the origin row was written is read with
    // its current revision.
    let ServiceRows { assignment: row, held, member, origin: known, .. } = rows;
    let cluster = find_cluster(&delivery, &name, &service.spec.cluster_ref, row.as_ref()).await?;
    if service.metadata.deletion_timestamp.is_some() {
        let again = remove_service(&delivery, &name, &resource, service, row, cluster).await?;
        return Ok(sooner(again, approval));
    }

    // Set the finalizer before anything is assigned: the resource must stay until its agent has confirmed the removal.
    resources::hold::<ServiceDeployment>(&delivery.store, &name, &resource, AGENT_FINALIZER).await?;

    let request = service.open_request().map(str::to_owned);
    // Check for the answer before the revision is read, so that the revision is the answer's, or newer.
    let answered = request.as_deref().is_some_and(|value| delivery.checks.requests.is_answered(&name, value));

    let ingredients = find_ingredients(&delivery, &name.namespace, &service.spec).await?;
    let resolved = resolve_candidate(&delivery, &name, &ingredients, (row.as_ref(), &known_paths)).await?;
    let Resolved { candidate, bundle, mut wants, paths, ask } = resolved;
    // Only a database that another program wrote has a service without paths. Any commit may concern such a service.
    let paths = paths.or_else(|| known_paths.is_empty().then(|| candidates::all_paths(&ingredients)));
    let paths = paths.filter(|paths| *paths != known_paths);

    let looked_at = ingredients.first().and_then(|one| one.found.as_ref()?.revision.clone());
    let is_found = candidate.is_ok();
    let source_uid = ingredients.first().and_then(Ingredient::uid).map(str::to_owned);
    let is_asked = ingredients.iter().all(Ingredient::is_asked);
    let references = References::of(&service.spec.cluster_ref, &ingredients);
    let led_to = LedTo::of(&cluster, ingredients.iter().map(|one| one.found.as_ref()));
    let stated = Stated::of(&service);

    let others = ingredients.iter().skip(1).filter_map(|one| Some((one.uid()?.to_owned(), one.name(&name.namespace))));
    // Includes sources that only its charts and kustomizations name.
    let linked = wants.iter().filter(|want| !want.url.is_empty()).map(|want| {
        let link = SourceName::Link { namespace: name.namespace.clone(), url: want.url.clone() };
        (want.source_uid.clone(), link)
    });
    let others: Vec<(String, SourceName)> = others.chain(linked).collect();
    let source_name = SourceName::of(&name.namespace, &service.spec.source_ref);
    let is_pinned = service.spec.pin.is_some();

    let assigned: Option<Candidate> = match row.as_ref().and_then(|row| row.assigned.as_deref()) {
        Some(text) => Some(read_json(&resource.uid, text)?),
        None => None,
    };

    // The version that its set is pinned at replaces the candidate of its sources.
    let kept = match member.as_ref().filter(|member| member.set_pin > 0) {
        Some(member) => Some(set_versions::find_candidate(&delivery, member, candidate.as_ref().ok()).await?),
        None => None,
    };

    let look = match member {
        Some(member) => {
            let (candidate, assigned) = (kept.as_ref().unwrap_or(&candidate).as_ref().ok(), assigned.as_ref());
            let newest = find_newest(&delivery, &resource.uid, &service.spec, &cluster).await?;
            let looking = Looking { spec: &service.spec, candidate, assigned, ingredients: &ingredients, newest };
            Some(Look::of(&delivery, member, looking).await?)
        }
        None => None,
    };

    let pinned = versions::resolve_pin(&delivery, &resource.uid, service.spec.pin.as_ref()).await?;
    let held = HeldLook::of(&resource, &service, held)?;

    let found = Found {
        cluster,
        ingredients,
        // A member that is rolled back gets an earlier assignment again, as with a pin.
        pinned: pinned.or_else(|| look.as_ref()?.back().cloned().map(Ok)),
        kept,
        candidate,
        // Load dependencies after the source: each is then compared with the source's current revision, or a newer
        // one.
        waits: dependencies::load_waits(&delivery, &name, &service).await?,
        held: look.as_ref().is_some_and(Look::is_held),
        restated: held.restated,
    };
    let Outcome { next, closed, told } = decide_row(&delivery, &name, &resource, service, found, row.as_ref()).await?;

    // Keep the sources of the assigned version too, even if the candidate needs others: its bundle may have to be
    // rebuilt.
    let assigned: Option<Candidate> =
        next.assigned.as_deref().map(|text| read_json(&next.service_uid, text)).transpose()?;
    wants.extend(assigned.iter().flat_map(candidates::wants_of));
    let again = stated.next_look(&next)?;
    // False if an earlier version stays assigned because the source's current one can't be built or may not run here.
    let is_current = is_found && next.assigned.is_some() && next.assigned == next.candidate;
    let found_by = |row: &Assignment| (row.cluster_uid.clone(), row.source_uid.clone());
    let is_new = row.as_ref().map(found_by) != Some(found_by(&next));
    let why = read_json::<Decided>(&next.service_uid, &next.why)?.why;
    let is_denied = is_new && matches!(why, Why::NotGranted(_));
    let member = look.map(|look| look.end(&why, is_pinned, &resource.object)).transpose()?;
    let held = Some(held.end(closed.as_ref(), matches!(why, Why::Frozen(_))));
    let told = told.map(|told| (resource.clone(), told));

    let making = Making { bundle, wants, paths, looked_at, member, held, told };
    let Some(is_rewired) = save_row(&delivery, row, next, making, stated, begun).await? else {
        delivery.services.add(name);
        return Ok(sooner(Next::OnChange, approval));
    };

    // `follow_windows` finds held services by their rows. It may have scanned before this row was committed, so check
    // the window once more and requeue.
    let is_over = |closed: Closed| closed.until.is_some_and(|until| until <= delivery.windows.now());
    if edition != delivery.windows.edition() || closed.is_some_and(is_over) {
        delivery.services.add(name.clone());
    }
    // Wakers look services up by these rows. A change that arrived before the commit found no row, so compare what
    // this reconcile read with what is there now.
    if is_denied
        || (is_rewired && is_any_there(&delivery, &resource.uid, &ask).await?)
        || ((is_new || is_rewired) && LedTo::load(&delivery, &name, &references).await? != led_to)
    {
        delivery.services.add(name.clone());
    }

    // Only after the commit, because a fetch looks up the users of its source by these rows.
    for (uid, source) in ask {
        delivery.checks.hurry(&uid);
        delivery.sources.add(source);
    }

    if let Some(known) = known.filter(|known| known.unasked && is_asked && is_current) {
        trust_source(&delivery, known).await?;
    }

    if let Some(value) = request {
        match source_uid {
            Some(uid) if !answered => pass_on(&delivery, &name, &value, (&uid, source_name), others),
            _ => delivery.checks.requests.assign(&name, &value),
        }
    }

    delivery.summaries.add(name);
    Ok(sooner(again, approval))
}

/// Returns what is known of the newest parameter document of a set's member.
async fn find_newest(
    delivery: &Delivery,
    uid: &str,
    spec: &ServiceDeploymentSpec,
    cluster: &Result<ClusterFacts, Trouble>,
) -> Result<Newest, StoreError> {
    if !is_handed(spec) {
        return Ok(Newest::Own);
    }
    // Without a cluster no document is put together, and nothing is assigned.
    let Ok(cluster) = cluster else { return Ok(Newest::Wrong) };
    let row = load_parameters(&mut *delivery.store.tables().await?, uid).await?;
    Newest::of(&delivery.identity, spec, &cluster.uid, row.as_ref())
}

/// The references of a service, to resolve them a second time after the save.
struct References {
    cluster: ClusterReference,
    sources: Vec<(SourceReference, Option<ChartReference>)>,
}

impl References {
    fn of(cluster: &ClusterReference, ingredients: &[Ingredient]) -> Self {
        let sources = ingredients.iter().map(|one| (one.reference.clone(), one.chart.clone())).collect();
        Self { cluster: cluster.clone(), sources }
    }
}

/// The objects that a service's references resolved to.
#[derive(PartialEq, Eq)]
struct LedTo {
    cluster_uid: Option<String>,
    sources: Vec<Option<SeenSource>>,
}

/// Uid of a source, and the revision and the chart that it serves.
type SeenSource = (String, Option<Revision>, Option<ChartRow>);

impl LedTo {
    fn of<'a>(cluster: &Result<ClusterFacts, Trouble>, sources: impl Iterator<Item = Option<&'a FoundSource>>) -> Self {
        let seen = |one: &FoundSource| (one.object.uid.clone(), one.revision.clone(), one.chart.clone());
        let cluster_uid = cluster.as_ref().ok().map(|cluster| cluster.uid.clone());
        Self { cluster_uid, sources: sources.map(|one| one.map(seen)).collect() }
    }

    async fn load(delivery: &Delivery, name: &Name, references: &References) -> Result<Self, StoreError> {
        let cluster = find_cluster(delivery, name, &references.cluster, None).await?;
        let mut sources = Vec::new();
        for (reference, chart) in &references.sources {
            sources.push(FoundSource::load(delivery, &name.namespace, reference, chart.as_ref()).await?);
        }
        Ok(Self::of(&cluster, sources.iter().map(Option::as_ref)))
    }
}

/// Whether a chart or base that the service needs and did not find has arrived since. `asked`: repositories that were
/// missing it.
async fn is_any_there(
    delivery: &Delivery,
    service_uid: &str,
    asked: &[(String, SourceName)],
) -> Result<bool, StoreError> {
    if asked.is_empty() {
        return Ok(false);
    }
    let mut tables = delivery.store.tables().await?;
    for want in sources_of_service(&mut tables, service_uid).await? {
        if !asked.iter().any(|(uid, _)| *uid == want.source_uid) {
            continue;
        }
        let is_there = match want.chart.is_empty() {
            true => load_revision(&mut tables, &want.source_uid).await?.is_some(),
            false => load_chart(&mut tables, &want.source_uid, (&want.chart, &want.wanted)).await?.is_some(),
        };
        if is_there {
            return Ok(true);
        }
    }
    Ok(false)
}

fn sooner(next: Next, wait: Option<Duration>) -> Next {
    match (next, wait) {
        (next, None) => next,
        (Next::OnChange, Some(wait)) => Next::After(wait.min(LONGEST_REST)),
        (Next::After(next), Some(wait)) => Next::After(next.min(wait).min(LONGEST_REST)),
    }
}

/// The parts of a spec that have rows of their own, and the authors of the spec.
struct Stated {
    secrets: Vec<String>,
    depends_on: Vec<String>,
    /// Whether one of its dependencies has a `readyExpr`.
    waits_for_expression: bool,
    source_name: String,
    pin: Option<Pin>,
    pinned_by: Option<String>,
    changed_by: Option<String>,
    suspended_until: Option<Timestamp>,
}

impl Stated {
    fn of(service: &ServiceDeployment) -> Self {
        let names = |all: &[LocalReference]| all.iter().map(|reference| reference.name.clone()).collect();
        let (spec, status) = (&service.spec, service.status.as_ref());
        Self {
            secrets: names(&spec.secrets),
            depends_on: dependencies::names(spec),
            waits_for_expression: spec.depends_on.iter().any(|reference| reference.ready_expr.is_some()),
            source_name: source_name(spec),
            pin: spec.pin.clone(),
            pinned_by: status.and_then(|status| status.pinned_by.clone()),
            changed_by: status.and_then(|status| status.changed_by.clone()),
            suspended_until: suspension_end(spec),
        }
    }

    /// As the history stores it. `rollout`: number of its set's rollout; 0 without a set.
    fn of_version(&self, rollout: u64) -> history::Stated<'_> {
        history::Stated {
            rollout,
            source_name: &self.source_name,
            pin: self.pin.as_ref(),
            pinned_by: self.pinned_by.as_deref(),
            changed_by: self.changed_by.as_deref(),
        }
    }

    /// When to requeue the service although nothing changes.
    fn next_look(&self, row: &Assignment) -> Result<Next, StoreError> {
        let decided: Decided = read_json(&row.service_uid, &row.why)?;
        let end = self.suspended_until.filter(|_| decided.suspended == Some(true));
        let rest = end.map(|end| Duration::try_from(end.duration_since(Timestamp::now())).unwrap_or(SOON).max(SOON));
        let recheck = match decided.why {
            Why::Waiting(_) if self.waits_for_expression => Some(EXPRESSION_RECHECK),
            Why::Waiting(_) => Some(RECHECK),
            Why::Trouble(Trouble::Files { .. }) => Some(FILES_RECHECK),
            _ => None,
        };
        Ok(match rest.into_iter().chain(recheck).min() {
            Some(wait) => Next::After(wait.min(LONGEST_REST)),
            None => Next::OnChange,
        })
    }
}

/// The names of all sources of a spec, for the history. Other names mean that a person changed the spec.
fn source_name(spec: &ServiceDeploymentSpec) -> String {
    let name = |stated: StatedSource<'_>| {
        let SourceReference { kind, name } = stated.reference;
        let kind = if *kind == SourceKind::GitRepository { String::new() } else { format!("{kind} ") };
        let chart = stated.chart.map(|chart| format!(" {}", chart.name)).unwrap_or_default();
        format!("{kind}{name}{chart}")
    };
    spec.all_sources().map(name).collect::<Vec<_>>().join(", ")
}

/// After a restore: records that the assignment comes from a revision fetched since then.
async fn trust_source(delivery: &Delivery, known: ServiceOrigin) -> Result<(), StoreError> {
    let trusted = delivery.store.transact(move |tx| {
        Box::pin(async move {
            trust_service_origin(tx, &known.service_uid).await?;
            match load_assignment(tx, &known.service_uid).await?.filter(|row| !row.cluster_uid.is_empty()) {
                Some(row) => mark_cluster(tx, &row.cluster_uid).await,
                None => Ok(()),
            }
        })
    });
    trusted.await?;
    delivery.dirty.notify_one();
    Ok(())
}

/// Requests an immediate fetch of the service's sources (`reconcile` annotation). The service is requeued when its
/// own source answers.
fn pass_on(
    delivery: &Delivery,
    name: &Name,
    value: &str,
    (source_uid, source): (&str, SourceName),
    others: Vec<(String, SourceName)>,
) {
    if delivery.checks.requests.want(name, value, source_uid) {
        for (uid, source) in others.into_iter().chain([(source_uid.to_owned(), source)]) {
            delivery.checks.hurry(&uid);
            delivery.sources.add(source);
        }
    }
}

/// Deletes the rows of services that are gone without their finalizer, or were recreated under the same name.
async fn forget_old_rows(delivery: &Delivery, name: &Name, current: Option<&str>) -> Result<(), StoreError> {
    let rows = assignments_named(&mut *delivery.store.tables().await?, &name.namespace, &name.name).await?;
    let old: Vec<_> = rows.into_iter().filter(|row| Some(row.service_uid.as_str()) != current).collect();
    if old.is_empty() {
        return Ok(());
    }
    let mut freed = Vec::new();
    let forget = delivery.store.transact(move |tx| {
        Box::pin(async move {
            for row in old {
                freed.extend(dependencies_of(tx, &row.service_uid).await?);
                delete_assignment(tx, &row.service_uid).await?;
                delete_report(tx, &row.service_uid).await?;
                if !row.cluster_uid.is_empty() {
                    mark_cluster(tx, &row.cluster_uid).await?;
                }
            }
            Ok(freed)
        })
    });
    dependencies::wake(delivery, &name.namespace, forget.await?);
    dependencies::wake_dependents(delivery, name).await?;
    delivery.dirty.notify_one();
    Ok(())
}

/// Returns the cluster that the row names while it exists; otherwise the one that the reference finds now.
async fn find_cluster(
    delivery: &Delivery,
    name: &Name,
    reference: &ClusterReference,
    row: Option<&Assignment>,
) -> Result<Result<ClusterFacts, Trouble>, StoreError> {
    let candidates = cluster_candidates(reference, &name.namespace);
    let mut first = None;
    for (namespace, cluster) in &candidates {
        let Some(facts) = ClusterFacts::load(delivery, &Name::new(namespace, cluster)).await? else { continue };
        if row.is_some_and(|row| row.cluster_uid == facts.uid) {
            return Ok(Ok(facts));
        }
        first.get_or_insert(facts);
    }
    Ok(first.ok_or_else(|| {
        let places: Vec<_> = candidates.iter().map(|(namespace, _)| *namespace).collect();
        let message = format!("cluster {} does not exist in namespace {}", reference.name, places.join(" or "));
        Trouble::ClusterMissing { message }
    }))
}

/// Resolves what the service would run. Content that the row already names is not rebuilt.
async fn resolve_candidate(
    delivery: &Arc<Delivery>,
    name: &Name,
    ingredients: &[Ingredient],
    (row, known_paths): (Option<&Assignment>, &[ServicePath]),
) -> Result<Resolved, AssignError> {
    let own = ingredients.first().and_then(Ingredient::uid);
    let candidate = match row {
        Some(row) if Some(row.source_uid.as_str()) == own => known_candidate(row)?,
        _ => None,
    };
    let known = candidate.map(|candidate| Known { candidate, is_untouched: is_untouched(known_paths) });
    let failed =
        |source: Box<dyn std::error::Error + Send + Sync>| AssignError::Bundle { service: name.clone(), source };
    match candidates::resolve(delivery, &name.namespace, Some(name), ingredients, known).await {
        Ok(resolved) => Ok(resolved),
        Err(ResolveError::Store(error)) => Err(error.into()),
        Err(ResolveError::Machine(error)) => Err(failed(error)),
        Err(ResolveError::Damaged { name: source, source_uid, whole, source: error }) => {
            // The next fetch makes the source whole again. The assignment stays.
            tracing::error!(%source, error = %chain(&*error), "the cache of a source is damaged and is rebuilt");
            if whole {
                delivery.mirrors.remove(&source_uid).await.map_err(|error| failed(error.into()))?;
            }
            delivery.checks.hurry(&source_uid);
            delivery.sources.add(source);
            Err(failed(error))
        }
    }
}

fn known_candidate(row: &Assignment) -> Result<Option<Candidate>, StoreError> {
    row.candidate.as_deref().map(|text| read_json(&row.service_uid, text)).transpose()
}

/// The objects that a service's references resolved to, and the state of its rollout.
struct Found {
    cluster: Result<ClusterFacts, Trouble>,
    ingredients: Vec<Ingredient>,
    pinned: Option<Result<Candidate, Trouble>>,
    /// Candidate of the version that its set is pinned at, instead of the one of its sources. None: the set has no
    /// pin.
    kept: Option<Result<Candidate, Trouble>>,
    candidate: Result<Candidate, Trouble>,
    waits: Waits,
    /// Its turn in the set's rollout has not come.
    held: bool,
    /// A held spec counts instead of its own.
    restated: bool,
}

/// Result of the decision.
struct Outcome {
    next: Assignment,
    /// The window that keeps changes from starting; None: they may start.
    closed: Option<Closed>,
    /// Event about a change that starts despite closed windows.
    told: Option<Told>,
}

impl Outcome {
    fn of(next: Assignment) -> Self {
        Self { next, closed: None, told: None }
    }
}

/// Returns the override that lets changes of the service start despite windows: its own, or its set's.
async fn find_override(delivery: &Delivery, resource: &Resource) -> Result<Option<Said>, StoreError> {
    let now = Timestamp::now();
    if let Some(said) = OVERRIDE.counting(&resource.object, now) {
        return Ok(Some(said));
    }
    let Some(owners) = resource.object["metadata"]["ownerReferences"].as_array() else { return Ok(None) };
    let owners = owners.iter().filter_map(|owner| Some((owner["name"].as_str()?, owner["uid"].as_str()?)));
    match owning_set(delivery, &resource.uid, &resource.key.namespace, owners).await? {
        Some((set, uid)) => override_of_set(delivery, &set, &uid, now).await,
        None => Ok(None),
    }
}

fn tell_override(candidate: &Candidate, closed: &Closed, said: &Said) -> Told {
    const LONGEST: usize = 1024;
    let message = format!("{} begins, by {}: {}; {closed}", candidate.revision, said.by, said.reason);
    Told { is_warning: true, reason: "FreezeOverridden".into(), message: cut(&message, LONGEST) }
}

async fn decide_row(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    service: ServiceDeployment,
    Found { cluster, ingredients, pinned, kept, mut candidate, waits, held, restated }: Found,
    row: Option<&Assignment>,
) -> Result<Outcome, StoreError> {
    let is_suspended = is_suspended(&service.spec, Timestamp::now());
    let own = ingredients.first().and_then(Ingredient::uid);
    let sourceless = own.is_none();
    let turn = row.map(read_turn).transpose()?.unwrap_or_default();
    let write_why = |why: Why| write_json(&Decided { why, suspended: Some(is_suspended), sourceless, turn });

    let mut next = Assignment {
        service_uid: resource.uid.clone(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        cluster_uid: cluster.as_ref().map_or(String::new(), |cluster| cluster.uid.clone()),
        source_uid: own.unwrap_or_default().to_owned(),
        generation: resource.object["metadata"]["generation"].as_i64().unwrap_or(0),
        stamp: stamp(&resource.object),
        candidate: row.and_then(|row| row.candidate.clone()),
        assigned: row.and_then(|row| row.assigned.clone()),
        why: write_why(Why::Current)?,
    };
    // The assignment still needs the mirror of a source that was deleted.
    if sourceless {
        next.source_uid = row.map_or(String::new(), |row| row.source_uid.clone());
    }

    if let Ok(candidate) = &candidate {
        next.candidate = Some(write_json(candidate)?);
    }
    if let Some(kept) = kept {
        candidate = kept;
    }
    if let Some(cycle) = &waits.cycle {
        candidate = Err(cycle_trouble(cycle));
    }

    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(trouble) => {
            next.why = write_why(Why::Trouble(trouble))?;
            return Ok(Outcome::of(next));
        }
    };

    let urls = SourceUrls::default().of_service(&delivery.store, &name.namespace, &service).await?;
    let mut facts = ServiceFacts::new(service, &next, urls)?;
    match &pinned {
        Some(Ok(pinned)) if !pinned.source.is_empty() => facts.source_urls = pinned.urls(),
        Some(_) => {}
        // Includes what its charts depend on: grants apply to those sources too.
        None => facts.source_urls.extend(candidate.iter().flat_map(Candidate::urls)),
    }
    let ceiling = facts.check_placement(&cluster, &load_grants_for(&delivery.store, &name.namespace).await?);
    let labels = facts.service.metadata.labels.clone().unwrap_or_default();

    let mut closed = delivery.windows.closed(Subject {
        namespace: &name.namespace,
        name: &name.name,
        labels: &labels,
        cluster_namespace: &cluster.name.namespace,
        cluster_name: &cluster.name.name,
        cluster_labels: &cluster.labels,
    });

    let said = if closed.is_some() { find_override(delivery, resource).await? } else { None };
    let overridden = said.and_then(|said| Some((closed.take()?, said)));
    let inputs = Inputs {
        suspended: is_suspended || cluster.suspended,
        pinned: pinned.as_ref().map(Result::as_ref),
        candidate: candidate.as_ref(),
        waits: &waits.reasons,
        ceiling: ceiling.as_ref(),
        assigned: facts.assigned.as_ref(),
        held,
        closed: closed.as_ref(),
        restated,
    };

    let decision = decide(inputs);
    let begins = matches!(decision, Decision::Assign(_)) || (restated && decision == Decision::Keep(Why::Current));
    let told = overridden.as_ref().filter(|_| begins).and_then(|(closed, said)| {
        // Only if a window would have held this change.
        let is_held = matches!(decide(Inputs { closed: Some(closed), ..inputs }), Decision::Keep(Why::Frozen(_)));
        let candidate = inputs.pinned.unwrap_or(inputs.candidate).ok()?;
        is_held.then(|| tell_override(candidate, closed, said))
    });

    match decision {
        Decision::Assign(candidate) => next.assigned = Some(write_json(&candidate)?),
        Decision::Keep(why) => next.why = write_why(why)?,
    }
    Ok(Outcome { next, closed, told })
}

fn write_json(value: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(StoreError::abort)
}

/// Returns the assigned candidate if its content differs from the one assigned before.
fn new_version(old: Option<&Assignment>, new: &Assignment) -> Result<Option<Candidate>, StoreError> {
    let assigned = |row: &Assignment| -> Result<Option<Candidate>, StoreError> {
        row.assigned.as_deref().map(|text| read_json(&row.service_uid, text)).transpose()
    };
    let before = old.map(assigned).transpose()?.flatten();
    Ok(assigned(new)?.filter(|now| before.is_none_or(|before| !before.is_same_content(now))))
}

fn read_turn(row: &Assignment) -> Result<u64, StoreError> {
    Ok(read_json::<Decided>(&row.service_uid, &row.why)?.turn)
}

/// Raises the turn if the spec, the content or the cluster differs. An approval does not raise it: by that time the
/// agent has started the prune that it allows, and an entry that differs would end that prune.
fn count_turn(
    old: &Assignment,
    new: &mut Assignment,
    member: Option<&Looked>,
    held: Option<&HeldNext>,
) -> Result<(), StoreError> {
    // A spec counts when its turn has come, not when it is written.
    let is_same_spec = match (member, held) {
        (Some(member), _) => !member.released,
        (None, Some(held)) if held.is_released() => false,
        (None, Some(held)) if held.keeps_spec() => true,
        (None, _) => asks_for_the_same(&old.stamp, &new.stamp),
    };
    let same = old.cluster_uid == new.cluster_uid && is_same_spec;
    if !same || assigned_content(old)? != assigned_content(new)? {
        let decided: Decided = read_json(&new.service_uid, &new.why)?;
        new.why = write_json(&Decided { turn: decided.turn + 1, ..decided })?;
    }
    Ok(())
}

/// The parts of an assignment that the agent gets: bundle, path, origin and the promoted texts.
type Content = (Digest, String, Option<String>, BTreeMap<String, String>);

fn assigned_content(row: &Assignment) -> Result<Option<Content>, StoreError> {
    let candidate: Option<Candidate> =
        row.assigned.as_deref().map(|text| read_json(&row.service_uid, text)).transpose()?;
    Ok(candidate.map(|candidate| (candidate.bundle, candidate.path, candidate.origin, candidate.configuration)))
}

/// Whether a row's change may change its cluster's desired state. Another revision with the same content does not.
///
/// `held`: the service's own spec and content wait for the set's rollout, or a window holds its spec.
fn changes_entry(old: &Assignment, new: &Assignment, held: bool) -> Result<bool, StoreError> {
    let asked = |row: &Assignment| row.stamp.split(' ').skip(usize::from(held)).map(str::to_owned).collect::<Vec<_>>();
    // The agent does not need the reason why a rollout or a window holds a newer change.
    let why = |row: &Assignment| -> Result<Decided, StoreError> {
        let decided: Decided = read_json(&row.service_uid, &row.why)?;
        Ok(match decided.why {
            Why::Rollout => Decided { why: Why::Current, ..decided },
            Why::Frozen(_) if row.assigned.is_some() => Decided { why: Why::Current, ..decided },
            _ => decided,
        })
    };
    let same_row = old.cluster_uid == new.cluster_uid && asked(old) == asked(new) && why(old)? == why(new)?;
    Ok(!same_row || assigned_content(old)? != assigned_content(new)?)
}

/// The new content of a service, and the sources that it is built from.
#[derive(Debug, Default)]
struct Making {
    bundle: Option<(Bundle, Option<String>)>,
    wants: Vec<ServiceSource>,
    /// Paths whose commits concern the service. None: as before. They count only while the source is still at
    /// `looked_at`.
    paths: Option<Vec<ServicePath>>,
    looked_at: Option<Revision>,
    /// None: the service is no member of a set.
    member: Option<Looked>,
    /// The spec that a window holds, if any.
    held: Option<HeldNext>,
    /// The Event to write, and its subject.
    told: Option<(Resource, Told)>,
}

/// Writes the row if it differs, and marks the cluster in the same transaction. Returns whether the service needs other
/// sources than before. None: nothing was written, because the member's turn has changed since it was read; the caller
/// requeues the service. `begun`: start of this reconcile.
async fn save_row(
    delivery: &Delivery,
    old: Option<Assignment>,
    mut new: Assignment,
    Making { bundle, mut wants, paths, looked_at, member, held, told }: Making,
    stated: Stated,
    begun: SystemTime,
) -> Result<Option<bool>, StoreError> {
    if let Some(old) = &old {
        count_turn(old, &mut new, member.as_ref(), held.as_ref())?;
    }

    wants.sort();
    wants.dedup();
    let known = sources_of_service(&mut *delivery.store.tables().await?, &new.service_uid).await?;
    let is_rewired = known != wants || paths.is_some();

    // This service may have been the last user of a source.
    let leaves_source = known.iter().any(|source| !wants.contains(source))
        || old.as_ref().is_some_and(|old| old.source_uid != new.source_uid);
    let is_known = member.as_ref().is_none_or(Looked::is_known) && held.as_ref().is_none_or(HeldNext::is_known);
    if old.as_ref() == Some(&new) && !is_rewired && is_known {
        return Ok(Some(false));
    }

    let version = new_version(old.as_ref(), &new)?;
    let is_held = member.as_ref().is_some_and(|member| member.held) || held.as_ref().is_some_and(HeldNext::is_held);
    let is_released = version.is_some()
        || member.as_ref().is_some_and(|member| member.released)
        || held.as_ref().is_some_and(HeldNext::is_released)
        || old.as_ref().map_or(Ok(true), |old| changes_entry(old, &new, is_held))?;
    let mark = is_released || member.as_ref().is_some_and(|member| member.is_unresolved);

    // Dependencies are part of the spec, so they are saved when that changes.
    let is_restated = old.as_ref().is_none_or(|old| old.stamp != new.stamp);
    // After an edit the set must look at its member again, also if the edit changes nothing.
    let is_news = |member: &&Looked| is_restated || !member.is_known();
    let moved = member.as_ref().filter(is_news).map(|member| member.set_uid.clone());
    let key = ServiceDeployment::key(&Name::new(&new.namespace, &new.name));
    let rollout = member.as_ref().map_or(0, |member| member.rollout);
    let name = Name::new(&new.namespace, &new.name);

    if is_released {
        // Before the commit, because agents may report on this assignment right after it.
        let (source_uid, interval) = (new.source_uid.clone(), Interval::since(begun));
        delivery.timeline.note_assignment(&new.service_uid, || Assigned { source_uid, interval });
    }

    let clusters = [old.map(|old| old.cluster_uid), Some(new.cluster_uid.clone())];
    let kept = version.as_ref().map(|version| version.bundle);
    let saved = delivery.store.transact(move |tx| {
        Box::pin(async move {
            // The rollout may have retracted the release after this reconcile read it. Then nothing is written.
            if let Some(member) = member.as_ref().filter(|_| is_released)
                && !member.is_current(tx).await?
            {
                return Ok(None);
            }
            if let Some((bundle, recipe)) = &bundle {
                save_bundle(tx, bundle).await?;
                if let Some(recipe) = recipe {
                    save_recipe(tx, &bundle.content_id, recipe).await?;
                }
            }
            save_assignment(tx, &new).await?;
            if let Some(member) = member {
                member.save(tx, &key).await?;
            }
            if let Some(held) = held {
                held.save(tx, &key).await?;
            }
            if let Some((about, told)) = &told {
                events::tell(tx, about, told).await?;
            }
            if is_rewired {
                save_service_sources(tx, &new, &wants).await?;
            }
            if let Some(paths) = paths {
                save_paths(tx, &new.service_uid, paths, looked_at.as_ref()).await?;
            }
            save_service_secrets(tx, &new, &stated.secrets).await?;
            let mut freed = Vec::new();
            if is_restated {
                freed = dependencies_of(tx, &new.service_uid).await?;
                save_dependencies(tx, &new.service_uid, &new.namespace, &stated.depends_on).await?;
            }
            if let Some(version) = &version {
                versions::note_assignment(tx, &new.service_uid, version, stated.of_version(rollout)).await?;
            }
            for uid in clusters.into_iter().flatten().filter(|uid| mark && !uid.is_empty()) {
                mark_cluster(tx, &uid).await?;
            }
            freed.retain(|name| !stated.depends_on.contains(name));
            Ok(Some(freed))
        })
    });

    let Some(freed) = saved.await? else { return Ok(None) };
    dependencies::wake(delivery, &name.namespace, freed);
    if let Some(bundle) = kept {
        delivery.mirrors.cache().pin(bundle);
    }
    if leaves_source {
        delivery.collect.notify_one();
    }
    if let Some(set_uid) = moved {
        delivery.sets.note_member(&set_uid);
    }
    dependencies::wake_dependents(delivery, &name).await?;
    if mark {
        delivery.dirty.notify_one();
    }
    Ok(Some(is_rewired))
}

/// If the source moved after it was read, that commit was compared with the old paths, not with these. Then any path
/// counts as changed.
async fn save_paths(
    tx: &mut Connection,
    service_uid: &str,
    mut paths: Vec<ServicePath>,
    looked_at: Option<&Revision>,
) -> Result<(), StoreError> {
    if let Some(path) = paths.iter().find(|path| !path.is_all())
        && load_revision(tx, &path.source_uid).await?.as_ref() != looked_at
    {
        paths = vec![ServicePath::all(&path.source_uid)];
    }
    save_service_paths(tx, service_uid, &paths).await
}

/// Handles a deleted service: it is listed as removed until the agent has confirmed. The resource is deleted at once
/// if no agent can confirm. The same holds if the service's objects stay and its agent is silent: the agent learns of
/// the removal when it is back.
async fn remove_service(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    service: ServiceDeployment,
    row: Option<Assignment>,
    cluster: Result<ClusterFacts, Trouble>,
) -> Result<Next, StoreError> {
    // Without a row nothing was ever assigned. A Cluster that was recreated under the same name never had this
    // service.
    let Some(row) = row else { return finish_removal(delivery, name, resource, Farewell::default()).await };
    let cluster = match cluster {
        Ok(cluster) if cluster.uid == row.cluster_uid && cluster.agent.is_some() => cluster,
        _ => return finish_removal(delivery, name, resource, Farewell::default()).await,
    };

    let urls = SourceUrls::default().of_service(&delivery.store, &name.namespace, &service).await?;
    let stated = Stated { secrets: Vec::new(), ..Stated::of(&service) };
    let mut facts = ServiceFacts::new(service, &row, urls)?;
    dependencies::find_dependents(&delivery.store, &mut facts).await?;
    let secrets = secrets::resolve(delivery, &facts).await?;

    // A removal deletes what was applied, so it needs no parameters.
    let grants = load_grants_for(&delivery.store, &name.namespace).await?;
    let (entry, _) = facts.resolve_entry(&cluster, &grants, &secrets, &Given::default());

    let report = load_report(&mut *delivery.store.tables().await?, &resource.uid).await?;
    let said = report.as_ref().map(status::decode).transpose()?;
    let objects = said.as_ref().map(|said| said.objects.as_slice()).unwrap_or_default();
    if is_removed(said.as_ref(), &entry) {
        let farewell = Farewell { told: orphans::left_by_agent(&cluster.name.name, objects), released: None };
        return finish_removal(delivery, name, resource, farewell).await;
    }

    let quiet = delivery.clusters.get(&cluster.uid).map(|state| until_silent(&state, delivery.clock.read()));
    if matches!(quiet, Some(None)) && matches!(entry.action, Action::Remove { policy: DeletionPolicy::Orphan, .. }) {
        let released = Released {
            service_uid: resource.uid.clone(),
            cluster_uid: cluster.uid.clone(),
            namespace: name.namespace.clone(),
            name: name.name.clone(),
        };
        let told = orphans::left_by_hub(&cluster.name.name, objects);
        tracing::warn!(service = %name, cluster = %cluster.name, "removed without a word of the silent agent");
        let farewell = Farewell { told: Some(told), released: Some(released) };
        return finish_removal(delivery, name, resource, farewell).await;
    }

    let mut next = row.clone();
    next.stamp = stamp(&resource.object);
    next.generation = resource.object["metadata"]["generation"].as_i64().unwrap_or(0);
    // The reason changes when the last dependent is gone, and that change marks the cluster.
    let why = match facts.dependents.is_empty() {
        true => Why::Current,
        false => Why::Waiting(format!("waits until {} are gone", facts.dependents.join(", "))),
    };
    next.why =
        write_json(&Decided { why, suspended: Some(facts.suspended), sourceless: false, turn: read_turn(&row)? })?;

    let wants = sources_of_service(&mut *delivery.store.tables().await?, &row.service_uid).await?;
    save_row(delivery, Some(row), next, Making { wants, ..Making::default() }, stated, SystemTime::now()).await?;
    delivery.summaries.add(name.clone());
    // After this wait the agent counts as silent, unless it polls before.
    let wait = quiet.map(|left| left.map_or(LONGEST_REST, |left| left + Duration::from_secs(1)));
    Ok(sooner(Next::OnChange, wait))
}

/// The rows and Events to write when a service's resource is deleted.
#[derive(Debug, Default)]
struct Farewell {
    told: Option<Told>,
    /// Set if its agent has not confirmed the removal.
    released: Option<Released>,
}

/// Removes the finalizer and deletes the service's rows, in one transaction.
async fn finish_removal(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    farewell: Farewell,
) -> Result<Next, StoreError> {
    let key = ServiceDeployment::key(name);
    let about = resource.clone();
    let uid = resource.uid.clone();
    let change = resources::without_finalizer(resource, AGENT_FINALIZER);
    let postings = farewell_postings(&delivery.notifications, resource);
    let told = postings.clone();

    let finished = delivery.store.transact(move |tx| {
        Box::pin(async move {
            if let Some(row) = load_assignment(tx, &uid).await?.filter(|row| !row.cluster_uid.is_empty()) {
                mark_cluster(tx, &row.cluster_uid).await?;
            }
            let freed = dependencies_of(tx, &uid).await?;
            delete_assignment(tx, &uid).await?;
            delete_report(tx, &uid).await?;
            if let Some(released) = &farewell.released {
                save_released(tx, released).await?;
            }
            for posting in &told {
                posting.save(tx).await?;
            }
            if let Some(told) = &farewell.told {
                events::tell(tx, &about, told).await?;
            }
            if let Some(change) = change {
                tx.write(Write { key, change }).await?;
            }
            Ok(freed)
        })
    });

    dependencies::wake(delivery, &name.namespace, finished.await?);
    postings.into_iter().for_each(|posting| posting.wake(&delivery.notifications));
    dependencies::wake_dependents(delivery, name).await?;
    delivery.dirty.notify_one();
    delivery.collect.notify_one();
    tracing::info!(service = %name, "removed");
    Ok(Next::OnChange)
}
