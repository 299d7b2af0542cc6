//! The inputs of one service's entry. They are read again whenever they are needed.

pub mod assign_revisions;
pub mod candidates;
pub mod compute_desired;
pub mod dependencies;
pub mod digest_report;
pub mod held_specs;
pub mod hook_runs;
pub mod measure_impact;
pub mod orphans;
pub mod parameters;
pub mod refresh_secrets;
pub mod rows;
pub mod secrets;
pub mod select_health_rules;
pub mod summarize_reports;
pub mod versions;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use farwater_api::{
    ADMIN_NAMESPACE, APPROVE_PRUNE, Cluster, ClusterGrant, Digest, RETRY_HOOK, ServiceDeployment,
    ServiceDeploymentSpec, UNDO,
    deletion::MAX_UNDO_BYTES,
    protocol::{Action, Entry, ServiceIdentity},
    service_deployment::DeletionPolicy,
    service_sources::{SourceReference, StatedSource},
};
use farwater_fleet::{
    assignment::{Candidate, EntryInputs, Part, Trouble, Why, describe_suspension, is_suspended, resolve_action},
    origin::Origin,
    placement::{self, NamedGrant},
};
use farwater_store::{
    Resource, Store, StoreError,
    delivery::{Agent, Assignment, MemberRollout, Released, ServiceOrigin, load_agent},
};
use jiff::Timestamp;
use serde_json::{Map, Value};

use self::rows::TypedRow as _;
use super::sources;
use crate::{
    replica::Replica,
    resources::{self, Name, SourceName},
    sets::rollouts,
};
use parameters::Given;

/// A cluster as decisions see it.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    pub uid: String,
    pub name: Name,
    /// Version of the resource that this was read from.
    pub version: u64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub metadata: Map<String, Value>,
    pub kubernetes_version: Option<String>,
    pub suspended: bool,
    pub agent: Option<Agent>,
    /// Why all deletions of the fleet are frozen; None: they are not.
    pub frozen: Option<Arc<str>>,
}

impl ClusterFacts {
    pub async fn load(replica: &Replica, name: &Name) -> Result<Option<Self>, StoreError> {
        let store = &replica.store;
        let Some((resource, cluster)) = resources::load::<Cluster>(store, name).await? else {
            return Ok(None);
        };
        let agent = load_agent(&mut *store.tables().await?, &resource.uid).await?;
        Ok(Some(Self {
            uid: resource.uid,
            name: name.clone(),
            version: resource.version,
            labels: cluster.metadata.labels.unwrap_or_default(),
            annotations: cluster.metadata.annotations.unwrap_or_default(),
            metadata: cluster.spec.metadata,
            kubernetes_version: cluster.status.and_then(|status| status.kubernetes_version),
            suspended: cluster.spec.suspend,
            agent,
            frozen: replica.memory.freeze.reason(),
        }))
    }

    /// Whether deletions wait until a person confirms a restored backup.
    pub fn restored(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.restored_epoch != 0)
    }
}

/// Grants that may apply to services in `namespace`. Services in the admin namespace need no grant.
pub async fn load_grants_for(store: &Store, namespace: &str) -> Result<Vec<NamedGrant>, StoreError> {
    if namespace == ADMIN_NAMESPACE {
        Ok(Vec::new())
    } else {
        load_grants(store).await
    }
}

pub async fn load_grants(store: &Store) -> Result<Vec<NamedGrant>, StoreError> {
    let mut rows = Vec::new();
    resources::list_pages::<ClusterGrant>(store, None, |resource| rows.push(resource)).await?;
    let parse = |resource: &Resource| {
        Ok((
            resource.key.name.clone(),
            resources::parse::<ClusterGrant>(resource)?.spec,
        ))
    };
    rows.iter().map(parse).collect()
}

/// A service, its row and the addresses of its sources.
#[derive(Clone, Debug)]
pub struct ServiceFacts {
    pub uid: String,
    pub name: Name,
    pub service: ServiceDeployment,
    pub assigned: Option<Candidate>,
    /// The candidate of its sources.
    pub candidate: Option<Candidate>,
    pub why: Why,
    /// Revision that is held back. None: nothing is held back.
    pub held: Option<String>,
    /// As in [`Deployment::turn`](farwater_api::protocol::Deployment::turn).
    turn: u64,
    /// Whether its own suspension counts.
    pub suspended: bool,
    /// Services that must be removed before it.
    pub dependents: Vec<String>,
    /// Known addresses of all its sources.
    pub source_urls: Vec<String>,
    /// Origin of its objects at the last time when nothing was left to prune.
    pub origin: Option<Origin>,
    /// Whether the database was restored and no revision fetched since then is assigned.
    unasked: bool,
    /// None: it belongs to no set.
    pub member: Option<MemberFacts>,
}

/// The spec and the parameters of a member that wait for the rollout of its set.
#[derive(Clone, Debug)]
pub struct MemberFacts {
    /// Its own spec, if a held one counts.
    pub own: Option<Box<ServiceDeploymentSpec>>,
    /// MAC of the parameter document that counts; None: the newest one counts.
    pub counts: Option<Digest>,
}

impl ServiceFacts {
    /// `service`: the service of the row.
    pub fn new(service: ServiceDeployment, row: &Assignment, mut source_urls: Vec<String>) -> Result<Self, StoreError> {
        let (assigned, decided) = (row.read_assigned()?, row.read_decided()?);
        // A decision about this spec counts until the next one, even if a suspension has ended by the clock, because a
        // new decision marks the cluster.
        let known = decided
            .suspended
            .filter(|_| service.metadata.generation == Some(row.generation));
        let suspended = known.unwrap_or_else(|| is_suspended(&service.spec, Timestamp::now()));

        let pin = service.spec.pin.as_ref();
        let pinned = assigned
            .as_ref()
            .filter(|assigned| pin.is_some_and(|pin| pin.bundle == assigned.bundle));
        match pinned.filter(|pinned| !pinned.source.is_empty()) {
            Some(pinned) => source_urls = pinned.urls(),
            // The assigned version may come from more sources than the spec states: those that its charts depend on.
            None => {
                let dependencies = assigned
                    .iter()
                    .flat_map(|assigned| &assigned.parts)
                    .filter(|part| part.dependency);
                source_urls.extend(dependencies.map(Part::placed_url));
            }
        }
        Ok(Self {
            uid: row.service_uid.clone(),
            name: Name::new(&row.namespace, &row.name),
            service,
            candidate: row.read_candidate()?,
            why: decided.why,
            held: decided.held,
            turn: decided.turn,
            suspended,
            dependents: Vec::new(),
            source_urls,
            assigned,
            origin: None,
            unasked: false,
            member: None,
        })
    }

    /// `own`: its own spec, if a held one counts.
    pub fn of_member(
        mut self,
        row: Option<&MemberRollout>,
        own: Option<ServiceDeploymentSpec>,
    ) -> Result<Self, StoreError> {
        let Some(row) = row else { return Ok(self) };
        self.member = Some(MemberFacts {
            own: own.map(Box::new),
            counts: rollouts::counting_document(row)?,
        });
        Ok(self)
    }

    /// Adds the stored origin of its objects.
    pub fn from_origin(mut self, known: Option<&ServiceOrigin>) -> Result<Self, StoreError> {
        let Some(known) = known else { return Ok(self) };
        self.unasked = known.unasked;
        self.origin = match known.origin.as_str() {
            "" => None,
            text => Some(rows::read_json(&self.uid, text)?),
        };
        Ok(self)
    }

    /// Where the assigned objects come from.
    pub fn assigned_origin(&self) -> Option<Origin> {
        let assigned = self.assigned.as_ref()?;
        Some(Origin {
            root: assigned.origin.clone(),
            path: assigned.path.clone(),
        })
    }

    /// Why every prune needs an approval, even a small one; None: not every prune does.
    fn hold_prune(&self) -> Option<String> {
        if self.unasked {
            let SourceReference { kind, name } = &self.service.spec.source_ref;
            return Some(format!(
                "the hub was restored from a backup, and what {kind} {name} has since is not assigned yet"
            ));
        }
        Some(self.origin.as_ref()?.swapped_for(&self.assigned_origin()?)?.to_string())
    }

    /// Whether its prunes are held because of a restore.
    pub fn is_unasked(&self) -> bool {
        self.unasked
    }

    pub fn deleting(&self) -> bool {
        self.service.metadata.deletion_timestamp.is_some()
    }

    /// Returns the service's entry in its cluster's desired state, and the reason of its assignment. The reason may
    /// differ from the row's, because a grant may have come or gone since the row was written.
    ///
    /// `secrets`: MAC of the service's Secrets, or what is wrong with one of them. `given`: the same for its
    /// parameters.
    pub fn resolve_entry(
        &self,
        cluster: &ClusterFacts,
        grants: &[NamedGrant],
        secrets: &Result<Option<Digest>, String>,
        given: &Given,
    ) -> (Entry, Why) {
        let spec = &self.service.spec;
        let ceiling = self.check_placement(cluster, grants);
        let why = self.current_why(ceiling.as_ref().err(), secrets, given);
        let suspension = self.suspended.then(|| describe_suspension(spec));
        let annotation = |name: &str| Some(self.service.metadata.annotations.as_ref()?.get(name)?.as_str());
        let hold_prune = self.hold_prune();

        let action = resolve_action(EntryInputs {
            deleting: self.deleting(),
            deletion_policy: spec.deletion_policy,
            dependents: &self.dependents,
            suspended: suspension.as_deref(),
            cluster_suspended: cluster.suspended,
            restored: cluster.restored(),
            frozen: cluster.frozen.as_deref(),
            assigned: self.assigned.as_ref(),
            why: &why,
            ceiling: ceiling.as_ref(),
            target_namespace: &spec.target_namespace,
            renderers: &spec.renderers,
            patches: &spec.patches,
            prune: spec.prune,
            options: &spec.apply,
            secrets: secrets.as_ref().copied().map_err(String::as_str),
            parameters: given.mac.as_ref().copied().map_err(String::as_str),
            approved_prune: annotation(APPROVE_PRUNE).and_then(|digest| digest.parse().ok()),
            hold_prune: hold_prune.as_deref(),
            turn: self.turn + given.turn,
            retry_hook: annotation(RETRY_HOOK).and_then(|run| run.parse().ok()),
            undo: annotation(UNDO).filter(|request| request.len() <= MAX_UNDO_BYTES),
            tests: &spec.tests,
            health: &spec.health,
        });

        let service = ServiceIdentity {
            uid: self.uid.clone(),
            namespace: self.name.namespace.clone(),
            name: self.name.name.clone(),
        };
        (Entry { service, action }, why)
    }

    /// The row's reason, unless a grant, a Secret or the parameters give another one.
    fn current_why(
        &self,
        denied: Option<&placement::Denied>,
        secrets: &Result<Option<Digest>, String>,
        given: &Given,
    ) -> Why {
        match (&self.why, denied, secrets, given.problem()) {
            (Why::Trouble(_), ..) => self.why.clone(),
            (_, Some(denied), ..) => Why::NotGranted(denied.to_string()),
            // All errors at once, so that the second is not found only after the first is fixed.
            (_, None, Err(message), more) => {
                let all: Vec<&str> = std::iter::once(message.as_str()).chain(more).collect();
                Why::Trouble(Trouble::Secret {
                    message: all.join("; "),
                })
            }
            (_, None, Ok(_), Some(message)) => Why::Trouble(Trouble::Parameters {
                message: message.to_owned(),
            }),
            (why, None, Ok(_), None) => why.clone(),
        }
    }

    pub fn check_placement(
        &self,
        cluster: &ClusterFacts,
        grants: &[NamedGrant],
    ) -> Result<farwater_api::protocol::Ceiling, placement::Denied> {
        let request = placement::Request {
            namespace: &self.name.namespace,
            cluster: &cluster.name.name,
            cluster_labels: &cluster.labels,
            sources: &self.source_urls,
            target_namespace: &self.service.spec.target_namespace,
        };
        placement::check(request, grants)
    }
}

/// Entry for the agent of a cluster that was silent when the service was removed without its confirmation.
pub fn released_entry(row: &Released, cluster_suspended: bool) -> Entry {
    let service = ServiceIdentity {
        uid: row.service_uid.clone(),
        namespace: row.namespace.clone(),
        name: row.name.clone(),
    };
    let action = match cluster_suspended {
        true => Action::Hold {
            reason: "the cluster is suspended".to_owned(),
        },
        false => Action::Remove {
            policy: DeletionPolicy::Orphan,
            approved_prune: None,
        },
    };
    Entry { service, action }
}

/// Addresses of sources, read once per batch: many services share one source.
#[derive(Default)]
pub struct SourceUrls(HashMap<SourceName, Option<String>>);

impl SourceUrls {
    /// Addresses of all sources that a service states.
    pub async fn of_service(
        &mut self,
        store: &Store,
        namespace: &str,
        service: &ServiceDeployment,
    ) -> Result<Vec<String>, StoreError> {
        self.of_spec(store, namespace, &service.spec).await
    }

    pub async fn of_spec(
        &mut self,
        store: &Store,
        namespace: &str,
        spec: &ServiceDeploymentSpec,
    ) -> Result<Vec<String>, StoreError> {
        let mut urls = Vec::new();
        for stated in spec.all_sources() {
            urls.extend(
                self.get(store, namespace, &stated)
                    .await?
                    .map(|url| stated.placed_url(&url)),
            );
        }
        Ok(urls)
    }

    async fn get(
        &mut self,
        store: &Store,
        namespace: &str,
        stated: &StatedSource<'_>,
    ) -> Result<Option<String>, StoreError> {
        let name = SourceName::of(namespace, stated.reference);
        if let Some(url) = self.0.get(&name) {
            return Ok(url.clone());
        }
        let found = sources::load(store, &name).await?;
        // A source that is built into the hub has no address, so a grant's `allowedSources` does not apply to it.
        let url = found.map(|source| source.any.url).filter(|url| !url.is_empty());
        self.0.insert(name, url.clone());
        Ok(url)
    }
}
