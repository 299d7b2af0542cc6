//! stamp_services: ServiceSets and the clusters that they select → ServiceDeployments.
//!
//! Rows say which services a set owns. A row and its service are written in one transaction. A cluster that can't be
//! read, or for which the template has no value, keeps its service. A cluster that the selector no longer matches loses
//! it, unless many do at once.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use farwater_api::{
    AGENT_FINALIZER, Cluster, GROUP, RolloutPhase, SET_FINALIZER, ServiceDeployment, ServiceDeploymentSpec, ServiceSet,
    ServiceSetStatus, VERSION,
    service_set::{MAX_SET_ERRORS, SetCounts, SetError},
};
use farwater_fleet::{
    conditions::{self, Verdict, cut, whole_seconds},
    freeze::{WINDOW, describe_loss, is_mass_loss, release},
    parameters::ClusterInput,
    placement::{self, Denied, NamedGrant, describe_no_clusters},
    rollout::Policy,
    stamping::{FREE_FIELDS, Template, cluster_namespaces, service_name},
    summary::{FROZEN, NO_CLUSTERS, ROLLOUT_HALTED, set_news},
    words::{counted, signed, verb},
};
use farwater_store::{
    Change, ListQuery, Resource, Store, StoreError, Tx, Write,
    delivery::{
        MemberCounts, SetMember, brake_members, count_members, delete_member, delete_members, delete_rollout,
        held_of_set, hold_spec, load_member, members_of_set, members_that_left, rollout_of_service, save_generation,
        save_member, troubled_members,
    },
};
use futures::future::join_all;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    approvals::{self, OVERRIDE},
    dependencies,
    events::{self, Told},
    freeze_prunes,
    queue::Next,
    resources::{self, Name, Stored as _},
    rollouts::{self, Advance},
    services::{SourceUrls, load_grants_for},
    set_versions,
    sets::Scope,
};
use crate::{
    apiserver::{ORPHAN, complete_service, labels, manage, mark_deleted},
    delivery::Delivery,
};

/// Clusters that are read, and services that are written, at a time.
const CHUNK: usize = 200;
const NOT_LOADED: Duration = Duration::from_millis(200);
/// Rollouts count in whole seconds.
const SOON: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(60);
/// Maximum bytes of a member's problem.
const MAX_PROBLEM: usize = 512;

pub async fn stamp_services(delivery: Arc<Delivery>, name: Name) -> Result<Next, StoreError> {
    // Before clusters are loaded, an unknown cluster may well exist.
    if !delivery.clusters.is_loaded() {
        return Ok(Next::After(NOT_LOADED));
    }
    let scope = delivery.sets.take(&name);
    let stamped = stamp_set(&delivery, &name, &scope).await;
    if stamped.is_err() {
        delivery.sets.put_back(&name, scope);
    }
    stamped
}

async fn stamp_set(delivery: &Delivery, name: &Name, scope: &Scope) -> Result<Next, StoreError> {
    let Some((resource, set)) = resources::load::<ServiceSet>(&delivery.store, name).await? else {
        delivery.sets.forget(name);
        return Ok(Next::OnChange);
    };
    if set.metadata.deletion_timestamp.is_some() {
        return remove_set(delivery, name, &resource, &set).await;
    }

    delivery.sets.know(name, &resource.uid, &set.spec.cluster_selector);
    let overridden = OVERRIDE.check::<ServiceSet>(delivery, name, &resource).await?;
    match overridden {
        approvals::Standing::None => {}
        // The expired annotation was removed just now; that write requeues the set.
        approvals::Standing::Expired => return Ok(Next::OnChange),
        approvals::Standing::Open(_) => {
            for (namespace, name) in held_of_set(&mut *delivery.store.tables().await?, &resource.uid).await? {
                delivery.services.add(Name { namespace, name });
            }
        }
    }

    resources::hold::<ServiceSet>(&delivery.store, name, &resource, SET_FINALIZER).await?;
    let kept = set_versions::apply_pin(&mut *delivery.store.tables().await?, &resource.uid, set.clone()).await?;
    let set = match kept {
        Ok(kept) => kept,
        // Nothing is created and nothing is deleted.
        Err(problem) => {
            let verdicts = Verdict::stalled("VersionMissing", format!("spec.pin.version: {problem}"));
            let tally = Tally::load(delivery, &resource.uid).await?;
            write_status(delivery, name, (&resource, &set), (tally, verdicts, None)).await?;
            return Ok(Next::OnChange);
        }
    };

    // The pinned version may have another template.
    let is_turned = set_versions::follow_pin(delivery, &resource.uid, &set).await?;
    let scope = if is_turned { &Scope::All } else { scope };
    let template = match Template::read(&name.name, &set.spec) {
        Ok(template) => template,
        // A hub that accepted other expressions wrote this spec. Nothing is created and nothing is deleted.
        Err(problems) => {
            let told = problems.iter().map(|problem| format!("spec.{}: {}", problem.field, problem.why));
            let verdicts = Verdict::stalled("SpecInvalid", told.collect::<Vec<_>>().join("; "));
            let tally = Tally::load(delivery, &resource.uid).await?;
            write_status(delivery, name, (&resource, &set), (tally, verdicts, None)).await?;
            return Ok(Next::OnChange);
        }
    };

    let grants = load_grants_for(&delivery.store, &name.namespace).await?;
    let urls = SourceUrls::default();
    let mut stamper = Stamper { delivery, name, set_uid: &resource.uid, set: &set, template, grants, urls };
    match scope {
        Scope::All => stamper.stamp_all().await?,
        Scope::Some(clusters) => {
            for uid in clusters {
                stamper.stamp_one(uid).await?;
            }
        }
    }

    let has_left = let_go(delivery, name, &resource, &set).await?;
    let begun = Instant::now();
    let advance = rollouts::advance(delivery, name, (&resource, &set), scope).await?;
    delivery.sets.rest_after(name, begun.elapsed());
    if advance.is_none() && Policy::of(&set.spec.rollout).is_ok() {
        // The set was changed meanwhile. That change requeues it, and a status of the old spec would be stale.
        return Ok(Next::OnChange);
    }

    let tally = Tally::load(delivery, &resource.uid).await?;
    let verdicts = judge(delivery, &set, &tally, advance.as_ref());
    let next_look = advance.as_ref().and_then(|advance| advance.next_look);
    write_status(delivery, name, (&resource, &set), (tally, verdicts, advance)).await?;

    let until =
        |time: i64| Duration::from_secs(time.saturating_sub(delivery.clock.now().as_second()).max(0).unsigned_abs());
    let looks = [
        has_left.then(|| Duration::from_secs(WINDOW.as_secs().unsigned_abs() + 1)),
        // Requeue early enough for clocks that are set and clusters that fall silent.
        next_look.map(|time| until(time).clamp(SOON, LONGEST_REST)),
        overridden.left(),
    ];
    Ok(looks.into_iter().flatten().min().map_or(Next::OnChange, Next::After))
}

/// The clusters that a set of a namespace may select, [`CHUNK`] at a time.
pub struct ClusterPages(VecDeque<ListQuery>);

impl ClusterPages {
    pub fn of(namespace: &str) -> Self {
        let query = |namespace: &str| ListQuery {
            namespace: Some(namespace.to_owned()),
            limit: CHUNK,
            ..ListQuery::all(Cluster::kind())
        };
        Self(cluster_namespaces(namespace).into_iter().map(query).collect())
    }

    pub async fn next(&mut self, store: &Store) -> Result<Option<Vec<Resource>>, StoreError> {
        let Some(query) = self.0.pop_front() else { return Ok(None) };
        let page = store.list(&query).await?;
        if page.next.is_some() {
            self.0.push_front(ListQuery { after: page.next, ..query });
        }
        Ok(Some(page.items))
    }
}

/// A set while its services are created.
pub struct Stamper<'a> {
    pub delivery: &'a Delivery,
    pub name: &'a Name,
    pub set_uid: &'a str,
    pub set: &'a ServiceSet,
    pub template: Template<'a>,
    /// Grants that concern the set's namespace.
    pub grants: Vec<NamedGrant>,
    pub urls: SourceUrls,
}

/// The step for one cluster.
pub enum Step {
    /// The set's namespace has no grant there. Its users must not even learn that the cluster exists.
    NotGranted,
    /// The cluster keeps what it has.
    Problem(String),
    /// Another service has the name of this one.
    Taken {
        problem: String,
        /// Uid of that service.
        by: String,
    },
    Add(Value),
    Change {
        found: Resource,
        object: Value,
        /// Changed fields of the spec, or `labels`.
        fields: Vec<String>,
    },
    Same,
}

impl<'a> Stamper<'a> {
    async fn stamp_all(&mut self) -> Result<(), StoreError> {
        let rows = members_of_set(&mut *self.delivery.store.tables().await?, self.set_uid).await?;
        let mut rows: HashMap<String, SetMember> = rows.into_iter().map(|row| (row.cluster_uid.clone(), row)).collect();
        let mut pages = ClusterPages::of(&self.name.namespace);
        while let Some(clusters) = pages.next(&self.delivery.store).await? {
            self.stamp(clusters, &mut rows).await?;
        }
        mark_left(&self.delivery.store, rows.into_values()).await
    }

    async fn stamp_one(&mut self, cluster_uid: &str) -> Result<(), StoreError> {
        let row = load_member(&mut *self.delivery.store.tables().await?, self.set_uid, cluster_uid).await?;
        let mut rows: HashMap<String, SetMember> = row.into_iter().map(|row| (row.cluster_uid.clone(), row)).collect();
        if let Some(state) = self.delivery.clusters.get(cluster_uid)
            && cluster_namespaces(&self.name.namespace).contains(&&*state.namespace)
        {
            let key = Cluster::key(&Name::new(&state.namespace, &state.name));
            let found = self.delivery.store.get(&key).await?.filter(|found| found.uid == cluster_uid);
            self.stamp(found.into_iter().collect(), &mut rows).await?;
        }
        mark_left(&self.delivery.store, rows.into_values()).await
    }

    /// Creates and changes the services on some clusters. Removes from `rows` the rows of all clusters that the set
    /// selects.
    async fn stamp(
        &mut self,
        clusters: Vec<Resource>,
        rows: &mut HashMap<String, SetMember>,
    ) -> Result<(), StoreError> {
        let mut writes = Vec::new();
        for (cluster, found) in self.select(clusters).await? {
            let row = rows.get(&cluster.uid);
            let step = self.examine(&cluster, row, found).await?;
            if let Step::NotGranted = step {
                continue;
            }
            let row = rows.remove(&cluster.uid).unwrap_or_else(|| SetMember {
                set_uid: self.set_uid.to_owned(),
                cluster_uid: cluster.uid.clone(),
                ..SetMember::default()
            });
            writes.extend(self.write(&cluster, row, step));
        }
        // The store commits concurrent writes together.
        join_all(writes).await.into_iter().collect()
    }

    /// Returns the clusters that the set selects, each with the existing object of its service's name.
    pub async fn select(&self, clusters: Vec<Resource>) -> Result<Vec<(Resource, Option<Resource>)>, StoreError> {
        let is_selected = |cluster: &Resource| self.template.selects(&labels(&cluster.object));
        let selected: Vec<_> = clusters.into_iter().filter(is_selected).collect();
        let keys: Vec<_> = selected.iter().map(|cluster| self.key_on(&cluster.key.name)).collect();
        let mut found = self.delivery.store.get_all(&keys).await?;
        Ok(selected.into_iter().zip(keys).map(|(cluster, key)| (cluster, found.remove(&key))).collect())
    }

    fn key_on(&self, cluster: &str) -> farwater_store::Key {
        ServiceDeployment::key(&Name::new(&self.name.namespace, &service_name(&self.name.name, cluster)))
    }

    /// `found`: the existing object of the service's name.
    pub async fn examine(
        &mut self,
        cluster: &Resource,
        row: Option<&SetMember>,
        found: Option<Resource>,
    ) -> Result<Step, StoreError> {
        let typed: Cluster = resources::parse(cluster)?;
        let (labels, annotations) =
            (typed.metadata.labels.unwrap_or_default(), typed.metadata.annotations.unwrap_or_default());
        let has_service = row.is_some_and(SetMember::has_service);
        let problem = |text: String| Ok(Step::Problem(cut(&text, MAX_PROBLEM)));

        if let Err(Denied::NoGrant { .. }) = self.check_placement(cluster, &labels, &[], "")
            && !has_service
        {
            return Ok(Step::NotGranted);
        }

        let input = ClusterInput {
            uid: &cluster.uid,
            namespace: &cluster.key.namespace,
            name: &cluster.key.name,
            labels: &labels,
            annotations: &annotations,
            metadata: &typed.spec.metadata,
            version: typed.status.as_ref().and_then(|status| status.kubernetes_version.as_deref()),
        };

        let stamped = match self.template.stamp(input) {
            Ok(stamped) => stamped,
            Err(error) => return problem(error.to_string()),
        };

        let mut object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "ServiceDeployment",
            "metadata": {"name": stamped.name, "namespace": self.name.namespace, "labels": stamped.labels},
            "spec": stamped.spec,
        });
        if let Err(errors) = complete_service(&mut object) {
            let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
            return problem(told.join("; "));
        }
        let spec: ServiceDeploymentSpec = match serde_json::from_value(object["spec"].clone()) {
            Ok(spec) => spec,
            Err(error) => return problem(error.to_string()),
        };

        let urls = self.urls.of_spec(&self.delivery.store, &self.name.namespace, &spec).await?;
        if let Err(denied) = self.check_placement(cluster, &labels, &urls, &spec.target_namespace) {
            return problem(denied.to_string());
        }

        match found {
            None => Ok(Step::Add(object)),
            Some(found) if row.is_some_and(|row| row.service_uid == found.uid) => Ok(self.compare(found, object)),
            Some(found) => {
                let name = &found.key.name;
                let problem = match found.object["metadata"]["deletionTimestamp"].is_string() {
                    true => format!("ServiceDeployment {name} is being deleted; another is made when it is gone"),
                    false => format!(
                        "ServiceDeployment {name} exists and is not the set's: delete it, or give the set another name"
                    ),
                };
                Ok(Step::Taken { problem, by: found.uid })
            }
        }
    }

    fn check_placement(
        &self,
        cluster: &Resource,
        labels: &BTreeMap<String, String>,
        sources: &[String],
        target_namespace: &str,
    ) -> Result<(), Denied> {
        let request = placement::Request {
            namespace: &self.name.namespace,
            cluster: &cluster.key.name,
            cluster_labels: labels,
            sources,
            target_namespace,
        };
        placement::check(request, &self.grants).map(drop)
    }

    /// Compares the set's existing service with what it should be.
    fn compare(&self, found: Resource, wanted: Value) -> Step {
        let mut object: Value = (*found.object).clone();
        let mut spec = wanted["spec"].as_object().cloned().unwrap_or_default();
        for field in FREE_FIELDS {
            match found.object["spec"].get(field) {
                Some(value) => drop(spec.insert(field.to_owned(), value.clone())),
                None => drop(spec.remove(field)),
            }
        }

        let mut fields = differing(found.object["spec"].as_object(), &spec);
        object["spec"] = spec.into();
        if object["metadata"]["labels"] != wanted["metadata"]["labels"] {
            fields.push("labels".to_owned());
            object["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
        }
        object["metadata"]["ownerReferences"] = self.owner();

        if object == *found.object {
            return Step::Same;
        }
        if object["spec"] != found.object["spec"] {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
            object["metadata"]["generation"] = (generation + 1).into();
            self.sign(&mut object);
        }
        Step::Change { found, object, fields }
    }

    fn owner(&self) -> Value {
        json!([{
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ServiceSet", "name": self.name.name,
            "uid": self.set_uid, "controller": true, "blockOwnerDeletion": true,
        }])
    }

    /// The author of the set's last change is the author of its services' change.
    fn sign(&self, object: &mut Value) {
        if let Some(author) = self.set.status.as_ref().and_then(|status| status.changed_by.as_deref()) {
            object["status"]["changedBy"] = author.into();
        }
    }

    /// Returns the write of a step; None: there is nothing to write.
    fn write(
        &self,
        cluster: &Resource,
        known: SetMember,
        step: Step,
    ) -> Option<impl Future<Output = Result<(), StoreError>> + use<'a>> {
        let now = Timestamp::now();
        let mut row = SetMember { left_at: 0, braked: 0, problem: String::new(), ..known.clone() };
        let service_name = service_name(&self.name.name, &cluster.key.name);
        let key = self.key_on(&cluster.key.name);
        let mut taken_by = None;

        let change = match step {
            Step::NotGranted => return None,
            Step::Problem(problem) => {
                row.problem = problem;
                None
            }
            Step::Taken { problem, by } => {
                row.problem = problem;
                taken_by = Some(by);
                None
            }
            Step::Same => None,
            Step::Add(mut object) => {
                row.service_uid = uuid::Uuid::new_v4().to_string();
                row.ready = 0;
                let metadata = &mut object["metadata"];
                metadata["uid"] = row.service_uid.as_str().into();
                metadata["generation"] = 1.into();
                metadata["creationTimestamp"] = json!(whole_seconds(now));
                metadata["finalizers"] = json!([AGENT_FINALIZER]);
                metadata["ownerReferences"] = self.owner();
                self.sign(&mut object);
                Some(Change::Create(manage(&key.kind, "", None, object, now)))
            }
            Step::Change { found, object, .. } => {
                let object = manage(&key.kind, "", Some(&found.object), object, now);
                Some(Change::Replace { uid: found.uid.clone(), version: found.version, object })
            }
        };
        row.service_name = service_name;
        if change.is_none() && row == known && taken_by.is_none() {
            return None;
        }

        let place = key.clone();
        let (cluster_uid, delivery, name) = (cluster.uid.clone(), self.delivery, self.name);
        Some(async move {
            let saved = delivery.store.transact(move |tx| {
                Box::pin(async move {
                    // The rollout's row of an earlier service on this cluster does not apply to the new one.
                    if let Some(Change::Create(_)) = change {
                        delete_member(tx, &row.set_uid, &row.cluster_uid).await?;
                    }
                    save_member(tx, &row).await?;
                    match change {
                        Some(change) => write_service(tx, key, change).await,
                        None => Ok(()),
                    }
                })
            });

            let is_outdated = match saved.await {
                // Another writer was faster.
                Err(StoreError::Refused(_)) => true,
                Err(error) => return Err(error),
                // `refill_sets` finds this set by its row when the other service is deleted. It may have run before
                // this row was committed, so check once more whether that service still exists.
                Ok(()) => match taken_by {
                    Some(by) => delivery.store.get(&place).await?.is_none_or(|now| now.uid != by),
                    None => false,
                },
            };

            if is_outdated {
                delivery.sets.add(name.clone(), Scope::Some([cluster_uid].into()));
            }
            Ok(())
        })
    }
}

/// Marks the rows of clusters that the set no longer selects.
async fn mark_left(store: &Store, rows: impl Iterator<Item = SetMember>) -> Result<(), StoreError> {
    let now = Timestamp::now().as_second();
    let left: Vec<SetMember> = rows
        .filter(|row| !row.has_left())
        .map(|row| SetMember { left_at: now, problem: String::new(), ..row })
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    let saved = store.transact(move |tx| {
        Box::pin(async move {
            for row in &left {
                save_member(tx, row).await?;
            }
            Ok(())
        })
    });
    saved.await
}

/// Writes a member's service. The spec that counted before still counts until the rollout comes to the member.
async fn write_service(tx: &mut Tx, key: farwater_store::Key, change: Change) -> Result<(), StoreError> {
    let before = tx.get(&key).await?;
    let written = tx.write(Write { key, change }).await?;
    save_generation(tx, &written.uid, written.object["metadata"]["generation"].as_i64().unwrap_or_default()).await?;
    let row = rollout_of_service(tx, &written.uid).await?;
    if let (Some(before), Some(row)) = (before.filter(|before| before.uid == written.uid), row) {
        let held = rollouts::spec_to_hold(&row, &before.object["spec"], &written.object["spec"])?;
        if held != row.held_spec {
            hold_spec(tx, &written.uid, &held).await?;
        }
    }
    Ok(())
}

/// Names of the fields that differ.
fn differing(known: Option<&Map<String, Value>>, wanted: &Map<String, Value>) -> Vec<String> {
    let empty = Map::new();
    let known = known.unwrap_or(&empty);
    let names: std::collections::BTreeSet<&String> = known.keys().chain(wanted.keys()).collect();
    names.into_iter().filter(|name| known.get(*name) != wanted.get(*name)).cloned().collect()
}

/// Returns why a set that loses `lost` clusters and keeps `kept` may lose them by mistake; None: it loses few.
pub fn find_brake(lost: usize, kept: i64) -> Option<String> {
    let all = lost as u64 + kept.unsigned_abs();
    is_mass_loss(lost as u64, all).then(|| describe_loss(lost as u64, all))
}

/// Deletes the services of clusters that have left, unless too many left at once. Returns whether rows of such clusters
/// were found.
async fn let_go(delivery: &Delivery, name: &Name, resource: &Resource, set: &ServiceSet) -> Result<bool, StoreError> {
    let (left, counts) = {
        let mut tables = delivery.store.tables().await?;
        let left = members_that_left(&mut tables, &resource.uid).await?;
        if left.is_empty() {
            return Ok(false);
        }
        (left, count_members(&mut tables, &resource.uid).await?)
    };
    let since = Timestamp::now().as_second() - WINDOW.as_secs();
    // Members that have braked the fleet before do not count again, and nothing is deleted on a cluster whose resource
    // is gone.
    let counts_as_lost =
        |row: &&SetMember| row.left_at > since && row.braked == 0 && delivery.clusters.get(&row.cluster_uid).is_some();
    let lost = left.iter().filter(counts_as_lost).count();

    let is_new = left.iter().any(|row| row.has_service() && row.braked == 0);
    if let Some(why) = find_brake(lost, counts.matched).filter(|_| is_new) {
        brake(delivery, name, resource, &left, why).await?;
        return Ok(true);
    }

    let mut steps = Vec::new();
    for row in left {
        let is_old = row.left_at <= since;
        if row.has_service() {
            steps.push(drop_service(delivery, name, row, set));
        } else if is_old {
            let (set_uid, cluster_uid) = (row.set_uid, row.cluster_uid);
            let gone = delivery
                .store
                .transact(move |tx| Box::pin(async move { delete_member(tx, &set_uid, &cluster_uid).await }));
            gone.await?;
        }
    }
    join_all(steps).await.into_iter().collect::<Result<(), _>>()?;
    Ok(true)
}

async fn brake(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    left: &[SetMember],
    why: String,
) -> Result<(), StoreError> {
    const SHOWN: usize = 10;

    let waiting =
        left.iter().filter(|row| row.has_service()).filter_map(|row| cluster_name(delivery, &row.cluster_uid));
    let mut names: Vec<String> = waiting.collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };

    let message = format!(
        "the selector no longer finds {}{more}; all deletions of the fleet are stopped until an administrator reviews this: kubectl {}",
        names.join(", "),
        release()
    );
    tracing::error!(set = %name, why, next = format!("kubectl {}", release()), "nothing is deleted in the fleet any more");

    let (about, set_uid) = (resource.clone(), resource.uid.clone());
    let braked = delivery.store.transact(move |tx| {
        Box::pin(async move {
            if freeze_prunes::freeze(tx, &why, Timestamp::now()).await? {
                brake_members(tx, &set_uid).await?;
            }
            events::tell(tx, &about, &Told { is_warning: true, reason: "Braked".into(), message }).await
        })
    });
    braked.await
}

pub fn cluster_name(delivery: &Delivery, uid: &str) -> Option<String> {
    delivery.clusters.get(uid).map(|state| format!("{}/{}", state.namespace, state.name))
}

/// Deletes a member's service, unless deletions are frozen. A freeze does not matter if the cluster's resource is gone,
/// because nothing can be deleted there.
async fn drop_service(delivery: &Delivery, name: &Name, row: SetMember, set: &ServiceSet) -> Result<(), StoreError> {
    let key = ServiceDeployment::key(&Name::new(&name.namespace, &row.service_name));
    let is_gone = delivery.clusters.get(&row.cluster_uid).is_none();
    let (set_name, set_key) = (name.clone(), ServiceSet::key(name));
    let (policy, generation) = (set.spec.deletion_policy, set.metadata.generation);
    let dropped = delivery.store.transact(move |tx| {
        Box::pin(async move {
            if !is_gone && freeze_prunes::is_frozen(tx).await? {
                return Ok(());
            }
            // The set says what happens to workloads. If it was changed since it was read, do nothing: that change
            // requeues it.
            if !resources::is_current(tx, &set_key, (&row.set_uid, generation)).await? {
                return Ok(());
            }
            if let Some(found) = tx.get(&key).await?.filter(|found| found.uid == row.service_uid) {
                delete_service(tx, found, policy).await?;
            }
            tracing::info!(set = %set_name, service = row.service_name, "its cluster is no longer selected");
            save_member(tx, &SetMember { service_uid: String::new(), ready: 0, ..row }).await
        })
    });
    dropped.await
}

async fn delete_service(
    tx: &mut Tx,
    found: Resource,
    policy: farwater_api::service_deployment::DeletionPolicy,
) -> Result<(), StoreError> {
    let now = Timestamp::now();
    let mut object: Value = (*found.object).clone();
    object["spec"]["deletionPolicy"] = json!(policy);
    let Some(object) = mark_deleted(&object, now) else { return Ok(()) };
    let object = manage(&found.key.kind, "", Some(&found.object), object, now);
    let change = Change::Replace { uid: found.uid, version: found.version, object };
    tx.write(Write { key: found.key, change }).await?;
    Ok(())
}

/// Deletes all services of a set, or leaves them to the garbage collector if that orphans them. Then deletes the set.
async fn remove_set(
    delivery: &Delivery,
    name: &Name,
    resource: &Resource,
    set: &ServiceSet,
) -> Result<Next, StoreError> {
    delivery.sets.know(name, &resource.uid, &set.spec.cluster_selector);

    let finalizers = set.metadata.finalizers.iter().flatten();
    let is_orphaning = finalizers.clone().any(|finalizer| finalizer == ORPHAN);

    if !is_orphaning {
        let rows = members_of_set(&mut *delivery.store.tables().await?, &resource.uid).await?;
        mark_left(&delivery.store, rows.into_iter()).await?;
        let_go(delivery, name, resource, set).await?;
        let left = members_that_left(&mut *delivery.store.tables().await?, &resource.uid).await?;
        if left.iter().any(SetMember::has_service) {
            let tally = Tally::load(delivery, &resource.uid).await?;
            let verdicts = judge(delivery, set, &tally, None);
            write_status(delivery, name, (resource, set), (tally, verdicts, None)).await?;
            return Ok(Next::OnChange);
        }
    }

    let (uid, held) = (resource.uid.clone(), resource.clone());
    let removed = delivery.store.transact(move |tx| {
        Box::pin(async move {
            delete_members(tx, &uid).await?;
            delete_rollout(tx, &uid).await?;
            if let Some(change) = resources::without_finalizer(&held, SET_FINALIZER) {
                tx.write(Write { key: held.key.clone(), change }).await?;
            }
            Ok(())
        })
    });
    removed.await?;
    delivery.sets.forget(name);
    Ok(Next::OnChange)
}

/// Counts and problems of a set's members.
struct Tally {
    counts: MemberCounts,
    /// The first members that have a problem.
    troubled: Vec<SetMember>,
}

impl Tally {
    async fn load(delivery: &Delivery, set_uid: &str) -> Result<Self, StoreError> {
        let mut tables = delivery.store.tables().await?;
        let limit = u32::try_from(MAX_SET_ERRORS).unwrap_or(u32::MAX);
        let counts = count_members(&mut tables, set_uid).await?;
        Ok(Self { counts, troubled: troubled_members(&mut tables, set_uid, limit).await? })
    }
}

/// The set's conditions.

fn judge(delivery: &Delivery, set: &ServiceSet, tally: &Tally, advance: Option<&Advance>) -> Vec<Verdict> {
    let MemberCounts { matched, ready, failed, leaving, braked } = tally.counts;
    let differing = advance.and_then(|advance| describe_differing(advance, matched));
    let pinned = describe_pin(set);
    let mut verdicts = if let Some(first) = tally.troubled.first() {
        let cluster = cluster_name(delivery, &first.cluster_uid).unwrap_or_default();
        let message =
            format!("{failed} of {} can't be served: {cluster}: {}", counted(matched, "cluster"), first.problem);
        Verdict::stalled("MembersFailed", message)
    } else if let Some(halted) = advance.filter(|advance| advance.status.phase == RolloutPhase::Halted) {
        let by = halted.status.halted_by.as_deref().unwrap_or("a cluster");
        let message = format!("rollout {} is halted: {by} failed", halted.status.number);
        Verdict::stalled(ROLLOUT_HALTED, message)
    } else if leaving > 0 && braked == 0 {
        Verdict::reconciling("Leaving", format!("lets go of {}", counted(leaving, "cluster")))
    } else if matched == 0 {
        Verdict::reconciling(NO_CLUSTERS, describe_no_clusters(&set.spec.cluster_selector))
    } else if ready < matched {
        Verdict::reconciling("Progressing", format!("healthy on {ready} of {}{pinned}", counted(matched, "cluster")))
    } else if let Some((reason, message)) = differing {
        Verdict::reconciling(reason, format!("healthy on {}{pinned}; {message}", counted(matched, "cluster")))
    } else {
        Verdict::ready("Healthy", format!("healthy on {}{pinned}", counted(matched, "cluster")))
    };

    if let Some((count, closed)) = advance.and_then(|advance| advance.frozen.as_ref()) {
        let message = format!("{} wait: {closed}", counted(*count, "cluster"));
        verdicts.push(Verdict::new(FROZEN, Some(true), "WindowClosed", message));
    }
    if braked > 0 {
        let message = format!(
            "the selector no longer finds {}; they stay as they are until an administrator reviews this: kubectl {}",
            counted(braked, "cluster"),
            release()
        );
        verdicts.push(Verdict::new("Braked", Some(true), "ManyAtOnce", message));
    }
    verdicts
}

/// `, at version 1, pinned by ada: slow`; empty: the set has no pin.
fn describe_pin(set: &ServiceSet) -> String {
    let Some(pin) = &set.spec.pin else { return String::new() };
    let by = set.status.as_ref().and_then(|status| status.pinned_by.as_deref());
    let signed = signed(by, pin.reason.as_deref());
    cut(&format!(", at version {}, pinned{signed}", pin.version), MAX_PROBLEM)
}

/// Why healthy members are not all at what the set wants, with a reason in CamelCase. None: they are, though some may
/// still soak; or it is not known yet whether a new revision concerns them.
fn describe_differing(advance: &Advance, matched: i64) -> Option<(&'static str, String)> {
    let Advance { status, counts, .. } = advance;
    let there = status.updated + status.soaking;
    let phase = match status.phase {
        _ if there >= matched => return None,
        RolloutPhase::Complete => {
            let lists = [
                (counts.deferred, "is silent", "are silent"),
                (counts.standing, "is suspended, pinned or skipped", "are suspended, pinned or skipped"),
            ];
            let told: Vec<String> = lists
                .into_iter()
                .filter(|(count, ..)| *count > 0)
                .map(|(count, one, many)| format!("{} {}", counted(count, "cluster"), verb(&count, one, many)))
                .collect();
            let message = format!("{} and not at what the set asks for", told.join(", "));
            return (!told.is_empty()).then_some(("MembersDiffer", message));
        }
        RolloutPhase::Progressing => "in progress",
        RolloutPhase::Paused => "paused",
        RolloutPhase::OnHold => "on hold",
        RolloutPhase::Halted => "halted",
        RolloutPhase::RollingBack => "rolling back",
        RolloutPhase::Aborted => "aborted",
    };
    let message = format!(
        "rollout {} is {phase}: {there} of {} at what the set asks for",
        status.number,
        counted(matched, "cluster")
    );
    Some(("RolloutOpen", message))
}

async fn write_status(
    delivery: &Delivery,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
    (tally, verdicts, advance): (Tally, Vec<Verdict>, Option<Advance>),
) -> Result<(), StoreError> {
    let Tally { counts, troubled } = tally;
    let previous = set.status.clone().unwrap_or_default();
    let generation = set.metadata.generation.unwrap_or_default();

    let error = |row: SetMember| SetError {
        cluster: cluster_name(delivery, &row.cluster_uid).unwrap_or_default(),
        message: row.problem,
    };
    let status = ServiceSetStatus {
        observed_generation: Some(generation),
        conditions: conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now()),
        clusters: SetCounts {
            matched: counts.matched,
            ready: counts.ready,
            failed: counts.failed,
            leaving: counts.leaving,
        },
        last_good: advance.as_ref().map_or(previous.last_good, |advance| advance.last_good),
        rollout: advance.map(|advance| advance.status).or_else(|| previous.rollout.clone()),
        errors: troubled.into_iter().map(error).collect(),
        changed_by: None,
        pinned_by: None,
        overridden_by: None,
        overridden_at: None,
        override_proposed_by: None,
        override_proposed_at: None,
    };

    let is_news = dependencies::standing_of_set(&status) != dependencies::standing_of_set(&previous);
    let events = set_news(&previous, &status);
    resources::write_status::<ServiceSet>(&delivery.store, name, &resource.uid, &status).await?;
    events::raise(&delivery.store, resource, events).await?;
    if is_news {
        dependencies::wake_dependents_of_set(delivery, name).await?;
    }
    Ok(())
}
