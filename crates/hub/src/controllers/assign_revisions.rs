//! assign_revisions: services of a source that moved → assignments.
//!
//! One decision, `fleet::assignment::decide`, says whether a candidate becomes the assignment. What is missing or broken is
//! a reason to keep the old one, and is told in the service's status.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use farwater_api::{
    AGENT_FINALIZER, APPROVE_PRUNE, Digest, GitRepository, ServiceDeployment,
    git_repository::LocalReference,
    protocol::Action,
    service_deployment::{ClusterReference, DeletionPolicy, Pin},
};
use farwater_fleet::{
    assignment::{Candidate, Decided, Decision, Inputs, Trouble, Why, decide, is_suspended, suspension_end},
    conditions::whole_seconds,
    dependencies::cycle_trouble,
    history,
    placement::cluster_candidates,
    prune::APPROVAL_LASTS,
};
use farwater_store::{
    Change, Resource, StoreError, Write,
    delivery::{
        Assignment, Bundle, Released, Revision, ServiceOrigin, SourceOrigin, asks_for_the_same, assignments_named,
        delete_assignment, delete_report, dependencies_of, load_assignment, load_report, load_served,
        load_service_origin, mark_cluster, save_assignment, save_bundle, save_dependencies, save_released,
        save_service_origin, save_service_secrets, stamp,
    },
};
use farwater_telemetry::traces::Interval;
use jiff::Timestamp;
use serde_json::Value;

use super::{
    chain,
    dependencies::{self, Waits},
    events::{self, Told},
    git::{self, BundleFailure},
    orphans,
    queue::Next,
    resources::{self, APPROVED_AT, Name, Stored as _},
    services::{ClusterFacts, ServiceFacts, load_grants_for, read_json},
    summarize_reports::is_removed,
    trace_deliveries::Assigned,
    track_clusters::until_silent,
    versions,
};
use crate::{
    apiserver::manage,
    delivery::{Delivery, secrets, status},
};

/// A service that waits for others is woken by them; this is for a wake-up that was lost.
const RECHECK: Duration = Duration::from_secs(60);
/// Timers and the clock of suspensions are two: what is due is looked at this late, and what is not for this long at most.
const SOON: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub enum AssignError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Of this machine, not of the repository: tried again, and no word about it in the service's status.
    #[error("gather the files of {service}")]
    Bundle {
        service: Name,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A service's source, and what is served of it.
struct Source {
    uid: String,
    url: String,
    revision: Option<Revision>,
    origin: Option<SourceOrigin>,
}

pub async fn assign_revision(delivery: Arc<Delivery>, name: Name) -> Result<Next, AssignError> {
    let begun = SystemTime::now();
    let found = resources::load::<ServiceDeployment>(&delivery.store, &name).await?;
    forget_old_rows(&delivery, &name, found.as_ref().map(|(resource, _)| resource.uid.as_str())).await?;
    let Some((resource, service)) = found else {
        delivery.checks.requests.forget(&name);
        return Ok(Next::OnChange);
    };
    // What comes of this is not to wake us again; whoever changes more in the meantime does.
    if delivery.seen.note(&resource.object["metadata"]) {
        // The write has marked the cluster, and its event will be no news.
        delivery.dirty.notify_one();
    }
    let approval = match check_approval(&delivery, &name, &resource, &service).await? {
        // Its annotation is off now, which is the next thing to look at.
        Approval::Expired => return Ok(Next::OnChange),
        Approval::Open(wait) => Some(wait),
        Approval::None => None,
    };
    let row = load_assignment(&mut *delivery.store.tables().await?, &resource.uid).await?;
    let cluster = find_cluster(&delivery, &name, &service.spec.cluster_ref, row.as_ref()).await?;
    if service.metadata.deletion_timestamp.is_some() {
        let again = remove_service(&delivery, &name, &resource, service, row, cluster).await?;
        return Ok(sooner(again, approval));
    }
    hold_resource(&delivery, &name, &resource).await?;
    let request = open_request(&service);
    // Before the revision is read: it is the answer's, or newer.
    let answered = request.as_deref().is_some_and(|value| delivery.checks.requests.is_answered(&name, value));
    // Before the source is read: one that was asked since this was written has what it has now.
    let known = load_service_origin(&mut *delivery.store.tables().await?, &resource.uid).await?;
    let source_name = Name::new(&name.namespace, &service.spec.source_ref.name);
    let source = find_source(&delivery, &source_name).await?;
    let (candidate, bundle) = resolve_candidate(&delivery, &name, &service, source.as_ref(), row.as_ref()).await?;
    let is_found = candidate.is_ok();
    let source_uid = source.as_ref().map(|source| source.uid.clone());
    let is_asked = source.as_ref().is_some_and(|source| source.origin.as_ref().is_none_or(|origin| !origin.unasked));
    let references = (service.spec.cluster_ref.clone(), source_name.clone());
    let led_to = LedTo::of(&cluster, source.as_ref());
    let stated = Stated::of(&service);
    let found = Found {
        cluster,
        source,
        pinned: versions::resolve_pin(&delivery, &resource.uid, service.spec.pin.as_ref()).await?,
        candidate,
        // Behind the source: what it depends on is held against what that has now, or something newer.
        waits: dependencies::load_waits(&delivery, &name, &service).await?,
    };
    let next = decide_row(&delivery, &name, &resource, service, found, row.as_ref()).await?;
    let again = stated.next_look(&next)?;
    // Not with what was assigned before, because what the source has can't be, or may not.
    let is_current = is_found && next.assigned.is_some() && next.assigned == next.candidate;
    let found_by = |row: &Assignment| (row.cluster_uid.clone(), row.source_uid.clone());
    let is_new = row.as_ref().map(found_by) != Some(found_by(&next));
    let is_denied = is_new && matches!(read_json::<Decided>(&next.service_uid, &next.why)?.why, Why::NotGranted(_));
    save_row(&delivery, row, next, bundle, stated, begun).await?;
    // Who wakes it finds it by its row: what came before that was written has woken nobody.
    if is_denied || (is_new && LedTo::load(&delivery, &name, &references).await? != led_to) {
        delivery.services.add(name.clone());
    }
    if let Some(known) = known.filter(|known| known.unasked && is_asked && is_current) {
        trust_source(&delivery, known).await?;
    }
    if let Some(value) = request {
        match source_uid {
            Some(uid) if !answered => pass_on(&delivery, &name, &value, &uid, source_name),
            _ => delivery.checks.requests.assign(&name, &value),
        }
    }
    delivery.summaries.add(name);
    Ok(sooner(again, approval))
}

/// What a service's references led to when they were looked at.
#[derive(PartialEq, Eq)]
struct LedTo {
    cluster_uid: Option<String>,
    source_uid: Option<String>,
    revision: Option<Revision>,
}

impl LedTo {
    fn of(cluster: &Result<ClusterFacts, Trouble>, source: Option<&Source>) -> Self {
        Self {
            cluster_uid: cluster.as_ref().ok().map(|cluster| cluster.uid.clone()),
            source_uid: source.map(|source| source.uid.clone()),
            revision: source.and_then(|source| source.revision.clone()),
        }
    }

    async fn load(
        delivery: &Delivery,
        name: &Name,
        (cluster, source): &(ClusterReference, Name),
    ) -> Result<Self, StoreError> {
        let cluster = find_cluster(delivery, name, cluster, None).await?;
        Ok(Self::of(&cluster, find_source(delivery, source).await?.as_ref()))
    }
}

fn sooner(next: Next, wait: Option<Duration>) -> Next {
    match (next, wait) {
        (next, None) => next,
        (Next::OnChange, Some(wait)) => Next::After(wait.min(LONGEST_REST)),
        (Next::After(next), Some(wait)) => Next::After(next.min(wait).min(LONGEST_REST)),
    }
}

/// The annotation that approves a prune.
enum Approval {
    None,
    /// It counts for this long.
    Open(Duration),
    /// It was taken off.
    Expired,
}

/// Who approves a prune has looked at it now: after a day it must be looked at again.
async fn check_approval(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    service: &ServiceDeployment,
) -> Result<Approval, StoreError> {
    if service.metadata.annotations.as_ref().is_none_or(|all| !all.contains_key(APPROVE_PRUNE)) {
        return Ok(Approval::None);
    }
    let now = Timestamp::now();
    let approved = service.status.as_ref().and_then(|status| status.approved_at.as_ref()).map(|time| time.0);
    let Some(approved) = approved else {
        // Of a hub that did not write that down: from now on.
        resources::change::<ServiceDeployment>(&delivery.store, name, &resource.uid, "status", |object| {
            if object["status"][APPROVED_AT].is_null() {
                object["status"][APPROVED_AT] = serde_json::json!(whole_seconds(now));
            }
        })
        .await?;
        return Ok(Approval::Open(LONGEST_REST));
    };
    let age = now.duration_since(approved);
    if age < APPROVAL_LASTS {
        return Ok(Approval::Open(Duration::try_from(APPROVAL_LASTS - age).unwrap_or(SOON).max(SOON)));
    }
    let known = resource.object["status"][APPROVED_AT].clone();
    resources::change::<ServiceDeployment>(&delivery.store, name, &resource.uid, "", |object| {
        // Somebody may have approved it again meanwhile.
        if object["status"][APPROVED_AT] != known {
            return;
        }
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(APPROVE_PRUNE);
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|field, value| field != "annotations" || *value != serde_json::json!({}));
        }
        if let Some(status) = object["status"].as_object_mut() {
            status.retain(|field, _| !["approvedBy", APPROVED_AT].contains(&field.as_str()));
        }
    })
    .await?;
    tracing::info!(service = %name, "an approval of a prune is a day old and counts no more");
    Ok(Approval::Expired)
}

/// What of a spec has rows of its own, and who wrote it.
struct Stated {
    secrets: Vec<String>,
    depends_on: Vec<String>,
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
            depends_on: names(&spec.depends_on),
            source_name: spec.source_ref.name.clone(),
            pin: spec.pin.clone(),
            pinned_by: status.and_then(|status| status.pinned_by.clone()),
            changed_by: status.and_then(|status| status.changed_by.clone()),
            suspended_until: suspension_end(spec),
        }
    }

    /// As the history takes it.
    fn of_version(&self) -> history::Stated<'_> {
        history::Stated {
            source_name: &self.source_name,
            pin: self.pin.as_ref(),
            pinned_by: self.pinned_by.as_deref(),
            changed_by: self.changed_by.as_deref(),
        }
    }

    /// When time alone may change the decision.
    fn next_look(&self, row: &Assignment) -> Result<Next, StoreError> {
        let decided: Decided = read_json(&row.service_uid, &row.why)?;
        let end = self.suspended_until.filter(|_| decided.suspended == Some(true));
        let rest = end.map(|end| Duration::try_from(end.duration_since(Timestamp::now())).unwrap_or(SOON).max(SOON));
        let recheck = matches!(decided.why, Why::Waiting(_)).then_some(RECHECK);
        Ok(match rest.into_iter().chain(recheck).min() {
            Some(wait) => Next::After(wait.min(LONGEST_REST)),
            None => Next::OnChange,
        })
    }
}

/// After a restore: what the source has now is what is assigned now.
async fn trust_source(delivery: &Delivery, known: ServiceOrigin) -> Result<(), StoreError> {
    let trusted = delivery.store.transact(move |tx| {
        Box::pin(async move {
            save_service_origin(tx, &ServiceOrigin { unasked: false, ..known.clone() }).await?;
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

/// The request annotation, unless the status acknowledges it already.
fn open_request(service: &ServiceDeployment) -> Option<String> {
    let handled = service.status.as_ref().and_then(|status| status.last_handled_reconcile_at.as_deref());
    resources::requested_at(&service.metadata).filter(|value| Some(*value) != handled).map(str::to_owned)
}

/// Has the source of a service asked at once, because somebody asked that of the service. It comes back when that is done.
fn pass_on(delivery: &Delivery, name: &Name, value: &str, source_uid: &str, source: Name) {
    if delivery.checks.requests.want(name, value, source_uid) {
        delivery.checks.hurry(source_uid);
        delivery.sources.add(source);
    }
}

/// Rows of services that are gone without their finalizer, or that were made again under the same name.
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

/// The cluster that the row names as long as it exists; else what the reference finds now.
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

async fn find_source(delivery: &Delivery, name: &Name) -> Result<Option<Source>, StoreError> {
    let Some((resource, repository)) = resources::load::<GitRepository>(&delivery.store, name).await? else {
        return Ok(None);
    };
    let (origin, revision) = load_served(&mut *delivery.store.tables().await?, &resource.uid).await?;
    Ok(Some(Source { uid: resource.uid, url: repository.spec.url, revision, origin }))
}

/// The resource stays until the agent has confirmed the removal, so it is held before anything is assigned.
async fn hold_resource(delivery: &Delivery, name: &Name, resource: &Resource) -> Result<(), StoreError> {
    if resources::is_held(&resource.object["metadata"]) {
        return Ok(());
    }
    resources::change::<ServiceDeployment>(&delivery.store, name, &resource.uid, "", |object| {
        let metadata = &mut object["metadata"];
        if resources::is_held(metadata) || metadata["deletionTimestamp"].is_string() {
            return;
        }
        match metadata["finalizers"].as_array_mut() {
            Some(finalizers) => finalizers.push(AGENT_FINALIZER.into()),
            None => metadata["finalizers"] = serde_json::json!([AGENT_FINALIZER]),
        }
    })
    .await
}

/// What the service would run. A revision that the row knows already is not looked at again.
async fn resolve_candidate(
    delivery: &Arc<Delivery>,
    name: &Name,
    service: &ServiceDeployment,
    source: Option<&Source>,
    row: Option<&Assignment>,
) -> Result<(Result<Candidate, Trouble>, Option<Bundle>), AssignError> {
    let source_name = service.spec.source_ref.name.clone();
    let Some(source) = source else { return Ok((Err(Trouble::SourceMissing { name: source_name }), None)) };
    let Some(revision) = &source.revision else { return Ok((Err(Trouble::SourceEmpty { name: source_name }), None)) };
    let text = git::format_revision(&revision.reference, &revision.commit);
    let path = git::clean_path(&service.spec.path);
    let known = match row {
        Some(row) if row.source_uid == source.uid => known_candidate(row)?,
        _ => None,
    };
    if let Some(known) = known.filter(|known| known.revision == text && Some(&known.path) == path.as_ref().ok()) {
        return Ok((Ok(Candidate { source: source.url.clone(), ..known }), None));
    }
    match git::make_bundle(delivery, &source.uid, &revision.commit, &service.spec.path).await {
        Ok(git::Made { bundle, author }) => {
            let candidate = Candidate {
                revision: text,
                content_id: bundle.content_id,
                bundle: bundle.digest,
                bundle_bytes: bundle.bytes,
                path: bundle.path.clone(),
                source: source.url.clone(),
                origin: source.origin.as_ref().map(|origin| origin.root.clone()).filter(|root| !root.is_empty()),
                author,
            };
            Ok((Ok(candidate), Some(bundle)))
        }
        Err(BundleFailure::Content(message)) => Ok((Err(Trouble::Bundle { revision: text, message }), None)),
        Err(BundleFailure::Machine(source)) => Err(AssignError::Bundle { service: name.clone(), source }),
        Err(BundleFailure::Damaged(error)) => {
            // Fetched anew, it is whole; what is assigned stays.
            tracing::error!(source = %source_name, error = %chain(&*error), "the mirror is damaged and is made anew");
            let removed = delivery.mirrors.remove(&source.uid).await;
            removed.map_err(|source| AssignError::Bundle { service: name.clone(), source: source.into() })?;
            delivery.checks.hurry(&source.uid);
            delivery.sources.add(Name::new(&name.namespace, &source_name));
            Err(AssignError::Bundle { service: name.clone(), source: error })
        }
    }
}

fn known_candidate(row: &Assignment) -> Result<Option<Candidate>, StoreError> {
    row.candidate.as_deref().map(|text| read_json(&row.service_uid, text)).transpose()
}

/// What a service's references lead to.
struct Found {
    cluster: Result<ClusterFacts, Trouble>,
    source: Option<Source>,
    pinned: Option<Result<Candidate, Trouble>>,
    candidate: Result<Candidate, Trouble>,
    waits: Waits,
}

async fn decide_row(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    service: ServiceDeployment,
    Found { cluster, source, pinned, mut candidate, waits }: Found,
    row: Option<&Assignment>,
) -> Result<Assignment, StoreError> {
    let is_suspended = is_suspended(&service.spec, Timestamp::now());
    let sourceless = source.is_none();
    let turn = row.map(read_turn).transpose()?.unwrap_or_default();
    let write_why = |why: Why| write_json(&Decided { why, suspended: Some(is_suspended), sourceless, turn });
    let mut next = Assignment {
        service_uid: resource.uid.clone(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        cluster_uid: cluster.as_ref().map_or(String::new(), |cluster| cluster.uid.clone()),
        source_uid: source.as_ref().map_or(String::new(), |source| source.uid.clone()),
        generation: resource.object["metadata"]["generation"].as_i64().unwrap_or(0),
        stamp: stamp(&resource.object),
        candidate: row.and_then(|row| row.candidate.clone()),
        assigned: row.and_then(|row| row.assigned.clone()),
        why: write_why(Why::Current)?,
    };
    // A source that went away is still the one whose mirror the assignment needs.
    if source.is_none() {
        next.source_uid = row.map_or(String::new(), |row| row.source_uid.clone());
    }
    if let Ok(candidate) = &candidate {
        next.candidate = Some(write_json(candidate)?);
    }
    if let Some(cycle) = &waits.cycle {
        candidate = Err(cycle_trouble(cycle));
    }
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(trouble) => {
            next.why = write_why(Why::Trouble(trouble))?;
            return Ok(next);
        }
    };
    let mut facts = ServiceFacts::new(resource, service, &next, source.map(|source| source.url))?;
    if let Some(Ok(pinned)) = pinned.as_ref().filter(|pinned| pinned.as_ref().is_ok_and(|one| !one.source.is_empty())) {
        facts.source_url = Some(pinned.source.clone());
    }
    let ceiling = facts.check_placement(&cluster, &load_grants_for(&delivery.store, &name.namespace).await?);
    let decision = decide(Inputs {
        suspended: is_suspended || cluster.suspended,
        pinned: pinned.as_ref().map(Result::as_ref),
        candidate: candidate.as_ref(),
        waits: &waits.reasons,
        ceiling: ceiling.as_ref(),
        assigned: facts.assigned.as_ref(),
    });
    match decision {
        Decision::Assign(candidate) => next.assigned = Some(write_json(&candidate)?),
        Decision::Keep(why) => next.why = write_why(why)?,
    }
    Ok(next)
}

fn write_json(value: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(StoreError::abort)
}

/// What is assigned now, where it has another content than before.
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

/// Counts a change of what is asked for: of the spec, of the content, or of the cluster. An approval is none: what it allows has begun by
/// then, and would be ended by an entry that differs.
fn count_turn(old: &Assignment, new: &mut Assignment) -> Result<(), StoreError> {
    let same = old.cluster_uid == new.cluster_uid && asks_for_the_same(&old.stamp, &new.stamp);
    if !same || assigned_content(old)? != assigned_content(new)? {
        let decided: Decided = read_json(&new.service_uid, &new.why)?;
        new.why = write_json(&Decided { turn: decided.turn + 1, ..decided })?;
    }
    Ok(())
}

/// What of an assignment an agent is told.
fn assigned_content(row: &Assignment) -> Result<Option<(Digest, String, Option<String>)>, StoreError> {
    let candidate: Option<Candidate> =
        row.assigned.as_deref().map(|text| read_json(&row.service_uid, text)).transpose()?;
    Ok(candidate.map(|candidate| (candidate.bundle, candidate.path, candidate.origin)))
}

/// Whether a cluster's desired state may differ because of a row's change. Another revision of the same content changes
/// nothing there.
fn changes_entry(old: &Assignment, new: &Assignment) -> Result<bool, StoreError> {
    let same_row = old.cluster_uid == new.cluster_uid && old.stamp == new.stamp && old.why == new.why;
    Ok(!same_row || assigned_content(old)? != assigned_content(new)?)
}

/// Writes the row if it differs, and marks the cluster in the same transaction. `begun`: when the service was looked at.
async fn save_row(
    delivery: &Delivery,
    old: Option<Assignment>,
    mut new: Assignment,
    bundle: Option<Bundle>,
    stated: Stated,
    begun: SystemTime,
) -> Result<(), StoreError> {
    if let Some(old) = &old {
        count_turn(old, &mut new)?;
    }
    if old.as_ref() == Some(&new) {
        return Ok(());
    }
    let version = new_version(old.as_ref(), &new)?;
    let mark = version.is_some() || old.as_ref().map_or(Ok(true), |old| changes_entry(old, &new))?;
    // What a service depends on is of its spec.
    let is_restated = old.as_ref().is_none_or(|old| old.stamp != new.stamp);
    let name = Name::new(&new.namespace, &new.name);
    if mark {
        // Before it is written: what comes of it may be told at once.
        let (source_uid, interval) = (new.source_uid.clone(), Interval::since(begun));
        delivery.timeline.note_assignment(&new.service_uid, || Assigned { source_uid, interval });
    }
    let clusters = [old.map(|old| old.cluster_uid), Some(new.cluster_uid.clone())];
    let saved = delivery.store.transact(move |tx| {
        Box::pin(async move {
            if let Some(bundle) = &bundle {
                save_bundle(tx, bundle).await?;
            }
            save_assignment(tx, &new).await?;
            save_service_secrets(tx, &new, &stated.secrets).await?;
            let mut freed = Vec::new();
            if is_restated {
                freed = dependencies_of(tx, &new.service_uid).await?;
                save_dependencies(tx, &new.service_uid, &new.namespace, &stated.depends_on).await?;
            }
            if let Some(version) = &version {
                versions::note_assignment(tx, &new.service_uid, version, stated.of_version()).await?;
            }
            for uid in clusters.into_iter().flatten().filter(|uid| mark && !uid.is_empty()) {
                mark_cluster(tx, &uid).await?;
            }
            freed.retain(|name| !stated.depends_on.contains(name));
            Ok(freed)
        })
    });
    dependencies::wake(delivery, &name.namespace, saved.await?);
    dependencies::wake_dependents(delivery, &name).await?;
    if mark {
        delivery.dirty.notify_one();
    }
    Ok(())
}

/// A deleted service: listed as removed until the agent has confirmed. Where there is nobody to confirm, the resource goes; so does
/// that of a service whose objects stay, where the agent says nothing: it is told when it is back.
async fn remove_service(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    service: ServiceDeployment,
    row: Option<Assignment>,
    cluster: Result<ClusterFacts, Trouble>,
) -> Result<Next, StoreError> {
    // Without a row nothing was ever assigned. A Cluster made again under the name never had this service.
    let Some(row) = row else { return finish_removal(delivery, name, resource, Farewell::default()).await };
    let cluster = match cluster {
        Ok(cluster) if cluster.uid == row.cluster_uid && cluster.agent.is_some() => cluster,
        _ => return finish_removal(delivery, name, resource, Farewell::default()).await,
    };
    let source = find_source(delivery, &Name::new(&name.namespace, &service.spec.source_ref.name)).await?;
    let stated = Stated { secrets: Vec::new(), ..Stated::of(&service) };
    let mut facts = ServiceFacts::new(resource, service, &row, source.map(|source| source.url))?;
    dependencies::find_dependents(&delivery.store, &mut facts).await?;
    let secrets = secrets::resolve(delivery, &facts).await?;
    // A removal takes what there is, wherever it came from.
    let (entry, _) = facts.resolve_entry(&cluster, &load_grants_for(&delivery.store, &name.namespace).await?, &secrets);
    let report = load_report(&mut *delivery.store.tables().await?, &resource.uid).await?;
    let said = report.as_ref().map(status::decode).transpose()?;
    let objects = said.as_ref().map(|said| said.objects.as_slice()).unwrap_or_default();
    if is_removed(said.as_ref(), &entry) {
        let farewell = Farewell { told: orphans::left_by_agent(&cluster.name.name, objects), released: None };
        return finish_removal(delivery, name, resource, farewell).await;
    }
    let quiet = delivery.clusters.get(&cluster.uid).map(|state| until_silent(&state, delivery.started));
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
    // So that the cluster is marked when the last of them has gone.
    let why = match facts.dependents.is_empty() {
        true => Why::Current,
        false => Why::Waiting(format!("waits until {} are gone", facts.dependents.join(", "))),
    };
    next.why =
        write_json(&Decided { why, suspended: Some(facts.suspended), sourceless: false, turn: read_turn(&row)? })?;
    save_row(delivery, Some(row), next, None, stated, SystemTime::now()).await?;
    delivery.summaries.add(name.clone());
    // Then the agent counts as silent, unless it has been heard.
    let wait = quiet.map(|left| left.map_or(LONGEST_REST, |left| left + Duration::from_secs(1)));
    Ok(sooner(Next::OnChange, wait))
}

/// What is still to be done and said of a service when its resource goes.
#[derive(Debug, Default)]
struct Farewell {
    told: Option<Told>,
    /// Its agent does not know yet.
    released: Option<Released>,
}

/// Lets the resource go and forgets its rows, in one transaction.
async fn finish_removal(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    farewell: Farewell,
) -> Result<Next, StoreError> {
    let key = ServiceDeployment::key(name);
    let about = resource.clone();
    let (uid, version) = (resource.uid.clone(), resource.version);
    let mut object: Value = (*resource.object).clone();
    let held = resources::is_held(&object["metadata"]);
    let change = match object["metadata"]["finalizers"].as_array_mut() {
        Some(finalizers) if held => {
            finalizers.retain(|finalizer| finalizer != AGENT_FINALIZER);
            if finalizers.is_empty() {
                Some(Change::Delete { uid: uid.clone(), version })
            } else {
                let object = manage(&key.kind, "", Some(&resource.object), object, Timestamp::now());
                Some(Change::Replace { uid: uid.clone(), version, object })
            }
        }
        _ => None,
    };
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
    dependencies::wake_dependents(delivery, name).await?;
    delivery.dirty.notify_one();
    delivery.collect.notify_one();
    tracing::info!(service = %name, "removed");
    Ok(Next::OnChange)
}
