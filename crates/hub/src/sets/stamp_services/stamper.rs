//! Makes and changes the services of a set.

use std::collections::{BTreeMap, HashMap, VecDeque};

use farwater_api::{AGENT_FINALIZER, Cluster, GROUP, ServiceDeployment, ServiceDeploymentSpec, ServiceSet, VERSION};
use farwater_fleet::{
    conditions::{cut, whole_seconds},
    parameters::ClusterInput,
    placement::{self, Denied, NamedGrant},
    stamping::{FREE_FIELDS, Template, cluster_namespaces, service_name},
};
use farwater_store::{
    Change, Key, ListQuery, Resource, Store, StoreError, Tx, Write,
    delivery::{
        SetMember, delete_member, hold_spec, load_member, members_of_set, rollout_of_service, save_generation,
        save_member,
    },
};
use futures::future::join_all;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::status::MAX_PROBLEM;
use crate::{
    kinds::{managers::manage, meta::labels, stamped::complete},
    memory::sets::Scope,
    replica::Replica,
    resources::{self, Name, Stored as _},
    services::SourceUrls,
    sets::rollouts,
};

/// Clusters that are read, and services that are written, at a time.
const CHUNK: usize = 200;

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
        let Some(query) = self.0.pop_front() else {
            return Ok(None);
        };
        let page = store.list(&query).await?;
        if page.next.is_some() {
            self.0.push_front(ListQuery {
                after: page.next,
                ..query
            });
        }
        Ok(Some(page.items))
    }
}

/// A set while its services are created.
pub struct Stamper<'a> {
    pub replica: &'a Replica,
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
    pub(super) async fn stamp_scope(&mut self, scope: &Scope) -> Result<(), StoreError> {
        match scope {
            Scope::All => self.stamp_all().await,
            Scope::Some(clusters) => {
                for uid in clusters {
                    self.stamp_one(uid).await?;
                }
                Ok(())
            }
        }
    }

    async fn stamp_all(&mut self) -> Result<(), StoreError> {
        let rows = members_of_set(&mut *self.replica.store.tables().await?, self.set_uid).await?;
        let mut rows: HashMap<String, SetMember> = rows.into_iter().map(|row| (row.cluster_uid.clone(), row)).collect();
        let mut pages = ClusterPages::of(&self.name.namespace);
        while let Some(clusters) = pages.next(&self.replica.store).await? {
            self.stamp(clusters, &mut rows).await?;
        }
        mark_left(&self.replica.store, rows.into_values()).await
    }

    async fn stamp_one(&mut self, cluster_uid: &str) -> Result<(), StoreError> {
        let row = load_member(&mut *self.replica.store.tables().await?, self.set_uid, cluster_uid).await?;
        let mut rows: HashMap<String, SetMember> = row.into_iter().map(|row| (row.cluster_uid.clone(), row)).collect();
        if let Some(state) = self.replica.memory.clusters.get(cluster_uid)
            && cluster_namespaces(&self.name.namespace).contains(&&*state.namespace)
        {
            let key = Cluster::key(&Name::new(&state.namespace, &state.name));
            let found = self
                .replica
                .store
                .get(&key)
                .await?
                .filter(|found| found.uid == cluster_uid);
            self.stamp(found.into_iter().collect(), &mut rows).await?;
        }
        mark_left(&self.replica.store, rows.into_values()).await
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
        let mut found = self.replica.store.get_all(&keys).await?;
        Ok(selected
            .into_iter()
            .zip(keys)
            .map(|(cluster, key)| (cluster, found.remove(&key)))
            .collect())
    }

    fn key_on(&self, cluster: &str) -> Key {
        ServiceDeployment::key(&Name::new(
            &self.name.namespace,
            &service_name(&self.name.name, cluster),
        ))
    }

    /// `found`: the existing object of the service's name.
    pub async fn examine(
        &mut self,
        cluster: &Resource,
        row: Option<&SetMember>,
        found: Option<Resource>,
    ) -> Result<Step, StoreError> {
        let typed: Cluster = resources::parse(cluster)?;
        let (labels, annotations) = (
            typed.metadata.labels.unwrap_or_default(),
            typed.metadata.annotations.unwrap_or_default(),
        );
        let has_service = row.is_some_and(SetMember::has_service);
        let problem = |text: String| Ok(Step::Problem(cut(&text, MAX_PROBLEM)));

        if let Err(Denied::NoGrant { .. }) = self.check_placement(cluster, &labels, &[], "")
            && !has_service
        {
            return Ok(Step::NotGranted);
        }

        let status = typed.status.as_ref();
        let input = ClusterInput {
            uid: &cluster.uid,
            namespace: &cluster.key.namespace,
            name: &cluster.key.name,
            labels: &labels,
            annotations: &annotations,
            metadata: &typed.spec.metadata,
            version: status.and_then(|status| status.kubernetes_version.as_deref()),
        };
        let (object, spec) = match self.make_service(input) {
            Ok(made) => made,
            Err(why) => return problem(why),
        };

        let urls = self
            .urls
            .of_spec(&self.replica.store, &self.name.namespace, &spec)
            .await?;
        if let Err(denied) = self.check_placement(cluster, &labels, &urls, &spec.target_namespace) {
            return problem(denied.to_string());
        }

        match found {
            None => Ok(Step::Add(object)),
            Some(found) if row.is_some_and(|row| row.service_uid == found.uid) => Ok(self.compare(found, object)),
            Some(found) => {
                let problem = describe_taken(&found);
                Ok(Step::Taken { problem, by: found.uid })
            }
        }
    }

    /// Makes the object of a service and its spec, or says why the template has none for the cluster.
    fn make_service(&self, input: ClusterInput<'_>) -> Result<(Value, ServiceDeploymentSpec), String> {
        let stamped = self.template.stamp(input).map_err(|error| error.to_string())?;
        let mut object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "ServiceDeployment",
            "metadata": {"name": stamped.name, "namespace": self.name.namespace, "labels": stamped.labels},
            "spec": stamped.spec,
        });
        complete(&mut object).map_err(|errors| {
            let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
            told.join("; ")
        })?;
        let spec = serde_json::from_value(object["spec"].clone()).map_err(|error| error.to_string())?;
        Ok((object, spec))
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
    pub(super) fn write(
        &self,
        cluster: &Resource,
        known: SetMember,
        step: Step,
    ) -> Option<impl Future<Output = Result<(), StoreError>> + use<'a>> {
        let now = Timestamp::now();
        let mut row = SetMember {
            left_at: 0,
            braked: 0,
            problem: String::new(),
            service_name: service_name(&self.name.name, &cluster.key.name),
            ..known.clone()
        };
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
            Step::Add(object) => {
                row.service_uid = uuid::Uuid::new_v4().to_string();
                row.ready = 0;
                let object = self.complete_new(object, &row.service_uid, now);
                Some(Change::Create(manage(&key.kind, "", None, object, now)))
            }
            Step::Change { found, object, .. } => {
                let object = manage(&key.kind, "", Some(&found.object), object, now);
                Some(Change::Replace {
                    uid: found.uid.clone(),
                    version: found.version,
                    object,
                })
            }
        };
        if change.is_none() && row == known && taken_by.is_none() {
            return None;
        }

        let (replica, name) = (self.replica, self.name);
        Some(async move {
            let cluster_uid = row.cluster_uid.clone();
            if write_member(&replica.store, row, (key, change), taken_by).await? {
                let scope = Scope::Some([cluster_uid].into());
                replica.memory.sets.add(name.clone(), scope);
            }
            Ok(())
        })
    }

    /// Sets the metadata that the API server would set on a new object.
    fn complete_new(&self, mut object: Value, uid: &str, now: Timestamp) -> Value {
        let metadata = &mut object["metadata"];
        metadata["uid"] = uid.into();
        metadata["generation"] = 1.into();
        metadata["creationTimestamp"] = json!(whole_seconds(now));
        metadata["finalizers"] = json!([AGENT_FINALIZER]);
        metadata["ownerReferences"] = self.owner();
        self.sign(&mut object);
        object
    }
}

/// Writes a member's row and its service. Returns whether the cluster has to be examined again. `taken_by`: uid of
/// another service that has the member's name.
async fn write_member(
    store: &Store,
    row: SetMember,
    (key, change): (Key, Option<Change>),
    taken_by: Option<String>,
) -> Result<bool, StoreError> {
    let place = key.clone();
    let saved = store.transact(move |tx| {
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
    match (saved.await, taken_by) {
        // Another writer was faster.
        (Err(StoreError::Refused(_)), _) => Ok(true),
        (Err(error), _) => Err(error),
        // `refill_sets` finds this set by its row when the other service is deleted. It may have run before this row
        // was committed, so check once more whether that service still exists.
        (Ok(()), Some(by)) => Ok(store.get(&place).await?.is_none_or(|now| now.uid != by)),
        (Ok(()), None) => Ok(false),
    }
}

fn describe_taken(found: &Resource) -> String {
    let name = &found.key.name;
    match found.object["metadata"]["deletionTimestamp"].is_string() {
        true => format!("ServiceDeployment {name} is being deleted; another is made when it is gone"),
        false => {
            format!("ServiceDeployment {name} exists and is not the set's: delete it, or give the set another name")
        }
    }
}

/// Marks the rows of clusters that the set no longer selects.
pub(super) async fn mark_left(store: &Store, rows: impl Iterator<Item = SetMember>) -> Result<(), StoreError> {
    let now = Timestamp::now().as_second();
    let left: Vec<SetMember> = rows
        .filter(|row| !row.has_left())
        .map(|row| SetMember {
            left_at: now,
            problem: String::new(),
            ..row
        })
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
async fn write_service(tx: &mut Tx, key: Key, change: Change) -> Result<(), StoreError> {
    let before = tx.get(&key).await?;
    let written = tx.write(Write { key, change }).await?;
    save_generation(
        tx,
        &written.uid,
        written.object["metadata"]["generation"].as_i64().unwrap_or_default(),
    )
    .await?;
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
    names
        .into_iter()
        .filter(|name| known.get(*name) != wanted.get(*name))
        .cloned()
        .collect()
}
