//! summarize_reports: a service's assignment and its agent's report → the service's status.

use std::sync::Arc;

use farwater_api::{
    Condition, ServiceDeployment, ServiceDeploymentStatus,
    notification_rule::EventKind,
    objects::{Outcome, ServiceReport},
    protocol::{Action, Entry, ServiceIdentity},
};
use farwater_fleet::{
    assignment::Why,
    conditions::holding,
    notify::ServiceNews,
    parameters::SecretName,
    summary::{self, Inputs},
};
use farwater_secrets::Stale;
use farwater_store::{
    Resource, StoreError,
    delivery::{
        Assignment, MemberRollout, ParameterRow, ServiceRows, backend_secrets_of_service, load_service_rows,
        mark_cluster, note_ready, save_evidence, save_service_origin,
    },
};
use jiff::Timestamp;

use super::{
    ClusterFacts, ServiceFacts, SourceUrls, compute_desired::facts_of, dependencies, load_grants_for, parameters,
    secrets, versions,
};
use crate::{
    clusters::track_clusters::until_silent,
    delivery::status,
    guards::freeze_prunes,
    kinds::meta::labels,
    notify::{events, service_posting},
    queue::Next,
    replica::Replica,
    resources::{self, Name},
    sets::rollouts,
};

pub async fn summarize_report(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    let Some(observed) = Observed::load(&replica, &name).await? else {
        return Ok(Next::OnChange);
    };
    let (resource, facts) = (&observed.resource, &observed.facts);
    let requests = &replica.memory.checks.requests;
    let handled =
        farwater_api::requested_at(&facts.service.metadata).filter(|value| requests.is_assigned(&name, value));

    let previous = facts.service.status.clone().unwrap_or_default();
    let stale = describe_stale(&replica, &resource.uid).await?;
    let pinned = find_pinned(&replica, facts).await?;
    let found = (stale.as_deref(), pinned.as_deref());
    let status = summary::summarize(observed.inputs(&replica, &previous, handled, found));

    // Both before the status is written: if one of them fails, the next reconcile still sees the change. A notification
    // that is saved twice is sent once.
    if !facts.deleting() {
        note_held(&replica, &observed, &previous).await?;
        tell_others(&replica, resource, facts, (&previous.conditions, &status.conditions)).await?;
    }
    resources::write_status::<ServiceDeployment>(&replica.store, &name, &resource.uid, &status).await?;
    if !facts.deleting() {
        let returned = match summary::newly_applied(&previous, &status) {
            Some(_) => versions::describe_return(&replica, &resource.uid).await?,
            None => None,
        };
        let news = summary::news(&previous, &status, returned.as_deref());
        events::raise(&replica.store, resource, news).await?;
    }

    note_outcome(&replica, &observed, &status).await?;
    if dependencies::standing(&previous) != dependencies::standing(&status) {
        dependencies::wake_dependents(&replica, &name).await?;
    }
    if handled.is_some() {
        requests.forget(&name);
    }
    if facts.deleting() && is_removed(observed.said.as_ref(), &observed.entry) {
        replica.wake_after_removal(name);
    }
    Ok(Next::OnChange)
}

/// A service with its entry and the report about it.
struct Observed {
    resource: Resource,
    row: Assignment,
    facts: ServiceFacts,
    cluster: Option<ClusterFacts>,
    member: Option<MemberRollout>,
    entry: Entry,
    why: Why,
    said: Option<ServiceReport>,
    said_at: Option<Timestamp>,
}

impl Observed {
    /// None: another controller has to finish first, and requeues the summary when it is done.
    async fn load(replica: &Replica, name: &Name) -> Result<Option<Self>, StoreError> {
        let found = resources::load::<ServiceDeployment>(&replica.store, name).await?;
        let Some((resource, service)) = found else {
            return Ok(None);
        };
        let ServiceRows {
            assignment: row,
            held,
            member,
            origin: known,
            parameters: handed,
            report,
        } = load_service_rows(&mut *replica.store.tables().await?, &resource.uid).await?;
        // `assign_revisions` runs first.
        let generation = resource.object["metadata"]["generation"].as_i64();
        let Some(row) = row.filter(|row| Some(row.generation) == generation) else {
            return Ok(None);
        };

        let with = (known.as_ref(), (member.as_ref(), held.as_ref()));
        let facts = facts_of(replica, &row, service, with, &mut SourceUrls::default()).await?;
        let cluster = load_cluster(replica, &row).await?;
        let resolved = match &cluster {
            Some(cluster) => resolve_entry(replica, &facts, cluster, handed.as_ref()).await?,
            None => Some(unplaced_entry(&facts)),
        };
        // `compute_desired` resolves the parameters the first time.
        let Some((entry, why)) = resolved else { return Ok(None) };
        Ok(Some(Self {
            resource,
            row,
            facts,
            cluster,
            member,
            entry,
            why,
            said: report.as_ref().map(status::decode).transpose()?,
            said_at: report.and_then(|report| Timestamp::from_second(report.received).ok()),
        }))
    }

    fn is_frozen(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.frozen.is_some())
    }

    fn inputs<'a>(
        &'a self,
        replica: &Replica,
        previous: &'a ServiceDeploymentStatus,
        handled: Option<&'a str>,
        (stale, pinned): (Option<&'a str>, Option<&'a str>),
    ) -> Inputs<'a> {
        let spec = &self.facts.service.spec;
        let state = replica.memory.clusters.get(&self.row.cluster_uid);
        Inputs {
            generation: self.row.generation,
            deleting: self.facts.deleting(),
            cluster: &spec.cluster_ref.name,
            joined: self.cluster.as_ref().is_some_and(|cluster| cluster.agent.is_some()),
            silent: state.is_some_and(|state| until_silent(&state, replica.clock.read()).is_none()),
            frozen: self.is_frozen(),
            assigned: self.facts.assigned.as_ref(),
            held: self.facts.held.as_deref(),
            pin: spec.pin.as_ref(),
            pinned,
            why: &self.why,
            action: &self.entry.action,
            entry: self.entry.digest(),
            report: self.said.as_ref(),
            report_time: self.said_at,
            requested_at: handled.or(previous.last_handled_reconcile_at.as_deref()),
            stale,
            previous,
            // Pipelines measure by this time how long a service is healthy.
            now: replica.clock.now(),
        }
    }
}

/// The entry of a service on its cluster. None: its parameters were never resolved.
async fn resolve_entry(
    replica: &Replica,
    facts: &ServiceFacts,
    cluster: &ClusterFacts,
    handed: Option<&ParameterRow>,
) -> Result<Option<(Entry, Why)>, StoreError> {
    let secrets = secrets::resolve(replica, facts).await?;
    let given = parameters::published(replica, facts, cluster, handed).await?;
    let Some(given) = given else { return Ok(None) };
    let grants = load_grants_for(&replica.store, &facts.name.namespace).await?;
    Ok(Some(facts.resolve_entry(cluster, &grants, &secrets, &given)))
}

/// Notes whether the prune of a service is held, if its agent has reported this entry.
async fn note_held(
    replica: &Replica,
    observed: &Observed,
    previous: &ServiceDeploymentStatus,
) -> Result<(), StoreError> {
    let entry = observed.entry.digest();
    let Some(report) = observed.said.as_ref().filter(|report| report.entry == entry) else {
        return Ok(());
    };
    let standing = freeze_prunes::Standing {
        service_uid: &observed.resource.uid,
        report,
        was_held: previous.held_prune.is_some(),
        by_hub: observed.is_frozen() || observed.facts.is_unasked(),
    };
    freeze_prunes::note_report(replica, standing).await
}

/// Saves the result for the service's set, its history and its origin.
async fn note_outcome(
    replica: &Replica,
    observed: &Observed,
    status: &ServiceDeploymentStatus,
) -> Result<(), StoreError> {
    let (facts, entry, said) = (&observed.facts, &observed.entry, observed.said.as_ref());
    if let Some(member) = &observed.member {
        note_member(replica, member, facts, (said, &status.conditions)).await?;
    }
    versions::note_report(replica, facts, entry, said).await?;
    if is_in_sync(said, entry) {
        trust_origin(replica, facts, &observed.row.cluster_uid).await?;
    }
    Ok(())
}

/// Notifies that a service needs attention, or is healthy again.
async fn tell_others(
    replica: &Replica,
    resource: &Resource,
    facts: &ServiceFacts,
    (before, now): (&[Condition], &[Condition]),
) -> Result<(), StoreError> {
    let notifications = &replica.notifications;
    if !notifications.is_anybody_told(&resource.key.namespace) {
        return Ok(());
    }

    let (ill, well) = (holding(now, "Stalled"), holding(now, "Ready"));
    let is_news = (ill.is_some() && holding(before, "Stalled").is_none())
        || (well.is_some() && holding(before, "Ready").is_none());
    if !is_news {
        return Ok(());
    }

    let (namespace, name) = (&resource.key.namespace, &resource.key.name);
    for target in notifications.targets(
        namespace,
        (EventKind::ServiceDeployment, name),
        &labels(&resource.object),
    ) {
        if target.spec.r#type.is_git_host() {
            continue;
        }
        let news = ServiceNews {
            namespace: namespace.clone(),
            name: name.clone(),
            cluster: facts.service.spec.cluster_ref.name.clone(),
            is_well: ill.is_none(),
            message: ill.map(|ill| ill.message.clone()).unwrap_or_default(),
            summary: String::new(),
        };
        let posting = service_posting(notifications, &target, &resource.uid, news);
        let told = posting.clone();
        replica
            .store
            .transact(move |tx| Box::pin(async move { told.save(tx).await }))
            .await?;
        posting.wake(notifications);
    }
    Ok(())
}

/// Saves what a set counts of its member, and what its rollout decides by.
async fn note_member(
    replica: &Replica,
    member: &MemberRollout,
    facts: &ServiceFacts,
    (said, conditions): (Option<&ServiceReport>, &[Condition]),
) -> Result<(), StoreError> {
    let is_ready = holding(conditions, "Ready").is_some();
    let now = replica.clock.now().as_second();
    let noted = said.map(|said| rollouts::note_report(member, said, &facts.service.spec, now));
    let evidence = noted.transpose()?.flatten();
    if member.ready == i64::from(is_ready) && evidence.is_none() {
        return Ok(());
    }
    let uid = member.service_uid.clone();
    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            note_ready(tx, &uid, is_ready).await?;
            match evidence {
                Some(evidence) => save_evidence(tx, &uid, &evidence).await,
                None => Ok(()),
            }
        })
    });
    saved.await?;
    replica.memory.sets.note_member(&member.set_uid);
    Ok(())
}

/// Revision of the version that the service is pinned to. None: it has no pin, or its history lacks the version.
async fn find_pinned(replica: &Replica, facts: &ServiceFacts) -> Result<Option<String>, StoreError> {
    let Some(pin) = &facts.service.spec.pin else {
        return Ok(None);
    };
    if let Some(assigned) = facts.assigned.as_ref().filter(|one| one.bundle == pin.bundle) {
        return Ok(Some(assigned.revision.clone()));
    }
    let found = versions::load_pinned(&mut *replica.store.tables().await?, &facts.uid, &pin.bundle).await?;
    Ok(found.ok().map(|version| version.told.revision))
}

/// Names the secrets of backends that the service gets as they were read earlier, because they can't be read now. None:
/// there are none.
async fn describe_stale(replica: &Replica, uid: &str) -> Result<Option<String>, StoreError> {
    const SHOWN: usize = 3;
    if replica.secret_backends.external().is_none() {
        return Ok(None);
    }
    let handed = backend_secrets_of_service(&mut *replica.store.tables().await?, uid).await?;
    let mut told = Vec::new();
    for (kind, namespace, name) in handed {
        let Some(secret) = SecretName::of_index(&kind, &name) else {
            continue;
        };

        let Some(Stale { since, error }) = replica.secret_backends.stale(&namespace, &secret) else {
            continue;
        };
        let since = Timestamp::from_second(since).map_or_else(|_| "before".to_owned(), |since| since.to_string());
        told.push(format!("{} is as it was read at {since}: {error}", secret.name));
    }

    let more = told.len().saturating_sub(SHOWN);
    told.truncate(SHOWN);
    let mut text = told.join("; ");
    if more > 0 {
        text += &format!("; and {more} more");
    }
    Ok((!text.is_empty()).then_some(text))
}

/// Whether the agent has applied exactly this entry, and found nothing to prune.
fn is_in_sync(report: Option<&ServiceReport>, entry: &Entry) -> bool {
    let Action::Apply(deployment) = &entry.action else {
        return false;
    };
    let may_prune = deployment.prune || deployment.hold_prune.is_some();
    may_prune
        && report.is_some_and(|report| {
            report.outcome == Outcome::Applied && report.held_prune.is_none() && report.entry == entry.digest()
        })
}

/// No object of another origin is left, so save the assigned origin as the one that the objects come from.
async fn trust_origin(replica: &Replica, facts: &ServiceFacts, cluster_uid: &str) -> Result<(), StoreError> {
    let Some(assigned) = facts.assigned_origin() else {
        return Ok(());
    };
    let origin = assigned.or(facts.origin.as_ref());
    if facts.origin.as_ref() == Some(&origin) {
        return Ok(());
    }
    let was_held = facts.origin.is_some();
    let origin = serde_json::to_string(&origin).map_err(StoreError::abort)?;
    let (service_uid, cluster_uid) = (facts.uid.clone(), cluster_uid.to_owned());
    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            save_service_origin(tx, &service_uid, &origin).await?;
            if was_held {
                mark_cluster(tx, &cluster_uid).await
            } else {
                Ok(())
            }
        })
    });
    saved.await?;
    if was_held {
        replica.wake_after_mark();
    }
    Ok(())
}

/// Whether the agent has confirmed exactly this removal.
pub fn is_removed(report: Option<&ServiceReport>, entry: &Entry) -> bool {
    matches!(entry.action, Action::Remove { .. })
        && report.is_some_and(|report| report.outcome == Outcome::Removed && report.entry == entry.digest())
}

async fn load_cluster(replica: &Replica, row: &Assignment) -> Result<Option<ClusterFacts>, StoreError> {
    let Some(state) = replica.memory.clusters.get(&row.cluster_uid) else {
        return Ok(None);
    };
    let name = Name::new(&state.namespace, &state.name);
    Ok(ClusterFacts::load(replica, &name)
        .await?
        .filter(|cluster| cluster.uid == row.cluster_uid))
}

/// A service without a cluster has no agent; this entry is only for its status.
fn unplaced_entry(facts: &ServiceFacts) -> (Entry, Why) {
    let service = ServiceIdentity {
        uid: facts.uid.clone(),
        namespace: facts.name.namespace.clone(),
        name: facts.name.name.clone(),
    };
    let action = Action::Hold {
        reason: "the cluster does not exist".to_owned(),
    };
    (Entry { service, action }, facts.why.clone())
}
