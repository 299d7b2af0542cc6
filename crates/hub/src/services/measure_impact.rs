//! measure_impact: another revision of a repository → the services whose files it would change.
//!
//! Services that it may concern are found by the paths that they are made of. Their files at both revisions are
//! compared by content id, once for all services with the same files. Nothing is rendered, packed or written, and no
//! agent is asked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use farwater_api::{
    Digest, GitRepositorySpec, ServiceDeployment,
    impact::{Impact, ImpactCounts, ImpactEffect, ImpactGroup, ImpactTarget, MAX_IMPACT_GROUPS, MAX_IMPACT_TARGETS},
};
use farwater_bundle::ObjectId;
use farwater_fleet::{
    assignment::{Candidate, Part, Trouble, Why},
    rollout::Clock,
};
use farwater_sources::{Mirror, Named};
use farwater_store::{
    StoreError,
    delivery::{
        Assignment, Revision, SourceOrigin, Taken, assignments_of, load_revision, services_concerned, sets_of_services,
    },
};
use serde_json::json;

use crate::{
    clusters::track_clusters::until_silent,
    errors::{SourceFailure, chain},
    replica::Replica,
    resources::{self, Name},
    services::{
        candidates::{self, ResolveError, find_ingredients},
        rows::TypedRow as _,
    },
    sets::stamp_services::cluster_name,
    sources::{
        fetch_sources::find_revision,
        git::{self, BundleFailure, find_changes, format_revision, open_mirror, parse_commit},
    },
};

/// Time limit for comparing contents, because a person waits for the answer. After that, services are reported by their
/// paths alone.
const COMPARED_FOR: Duration = Duration::from_secs(10);
/// The step of a rollout that has the canaries.
const CANARIES: i64 = 0;

#[derive(Debug, thiserror::Error)]
pub enum ImpactError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The revision can't be fetched.
    #[error("{}", .0.message)]
    Source(SourceFailure),
    #[error("{0}")]
    Machine(String),
}

impl From<ResolveError> for ImpactError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Store(error) => Self::Store(error),
            error => Self::Machine(chain(&error)),
        }
    }
}

/// Content id of a service at one of the two revisions.
type Content = Result<Digest, Problem>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    /// Its files can't be gathered at that revision.
    Fails(String),
    /// It can't be known without fetching something.
    Unknown,
}

/// Effect on services that are made of the same files.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Changes,
    Fails(String),
    /// Its paths differ; its content was not compared.
    Uncompared,
}

/// Both revisions of a repository.
struct Comparison<'a> {
    replica: &'a Arc<Replica>,
    namespace: &'a str,
    source_uid: &'a str,
    mirror: Mirror,
    /// None: nothing is served.
    base: Option<Side>,
    /// Whether the base is the served revision, for which the services' candidates are known.
    is_served: bool,
    other: Side,
    began: Instant,
}

struct Side {
    commit: ObjectId,
    revision: Revision,
    origin: Option<SourceOrigin>,
}

impl Side {
    fn new(
        source_uid: &str,
        (reference, commit): (&str, ObjectId),
        taken: &Taken,
        origin: Option<SourceOrigin>,
    ) -> Self {
        let revision = Revision {
            source_uid: source_uid.to_owned(),
            reference: reference.to_owned(),
            commit: commit.to_string(),
            fetched: 0,
            taken: taken.clone(),
        };
        Self {
            commit,
            revision,
            origin,
        }
    }

    fn name(&self) -> String {
        format_revision(&self.revision.reference, &self.revision.commit)
    }
}

/// Measures what a branch, tag or commit would change if it were followed, or merged into what is served.
pub async fn measure(
    replica: &Arc<Replica>,
    name: &Name,
    (source_uid, spec): (&str, &GitRepositorySpec),
    named: &Named,
) -> Result<Impact, ImpactError> {
    let comparison = Comparison::begin(replica, name, (source_uid, spec), named).await?;
    let changed = match &comparison.base {
        Some(base) => {
            let (before, after) = (&base.revision.commit, &comparison.other.revision.commit);
            find_changes(&replica.access.mirrors, source_uid, before, after).await
        }
        None => None,
    };

    let (services, rows, sets) = {
        let mut tables = replica.store.tables().await?;
        let all = services_concerned(&mut tables, source_uid, None).await?;
        let concerned = match &changed {
            Some(changed) => services_concerned(&mut tables, source_uid, Some(changed)).await?,
            None => all.clone(),
        };
        let rows = assignments_of(&mut tables, &concerned).await?;
        let sets = sets_of_services(&mut tables, &concerned).await?.into_iter();
        let sets: HashMap<_, _> = sets
            .map(|(service, set, step)| (service, (set, step == CANARIES)))
            .collect();
        (all.len(), rows, sets)
    };

    let mut impact = Impact {
        revision: comparison.other.name(),
        base: comparison.base.as_ref().map(Side::name).unwrap_or_default(),
        paths: changed.map(|changed| changed.len() as u64),
        services: services as u64,
        ..Impact::default()
    };

    let groups = comparison.judge(rows, &sets, &mut impact).await?;
    list(replica, groups, &mut impact).await?;
    Ok(impact)
}

/// A service, as far as its impact needs.
struct Concerned {
    row: Assignment,
    candidate: Option<Candidate>,
    /// Suspended, or pinned to something else.
    stands: bool,
}

impl Concerned {
    fn read(row: Assignment) -> Result<Self, StoreError> {
        let (candidate, assigned, why) = (row.read_candidate()?, row.read_assigned()?, row.read_decided()?.why);
        // A service that is current and has something else assigned than its candidate is pinned.
        let is_pinned = why == Why::Current && assigned.is_some() && assigned != candidate;
        Ok(Self {
            candidate,
            stands: why == Why::Suspended || is_pinned,
            row,
        })
    }

    /// Services of one shape are made of the same files, at any revision.
    fn shape(&self) -> String {
        let Some(candidate) = &self.candidate else {
            return self.row.service_uid.clone();
        };
        let stated: Vec<_> = candidate
            .parts
            .iter()
            .filter(|part| !part.dependency)
            .map(shape_of_part)
            .collect();
        let Candidate {
            path,
            content_id,
            rendered,
            reads,
            ..
        } = candidate;
        json!([path, content_id, rendered, reads, stated]).to_string()
    }

    fn path(&self) -> &str {
        let Some(candidate) = &self.candidate else { return "" };
        candidate.parts.first().map_or(&candidate.path, |part| &part.path)
    }
}

fn shape_of_part(part: &Part) -> serde_json::Value {
    json!([part.source_uid, part.chart, part.path, part.mount_path, part.reads])
}

/// Services that are affected alike, by effect, set and files.
type Groups = BTreeMap<(ImpactEffect, String, String), Group>;

#[derive(Default)]
struct Group {
    path: String,
    message: String,
    services: Vec<Affected>,
}

/// Sorted by name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Affected {
    name: String,
    namespace: String,
    cluster_uid: String,
    is_canary: bool,
}

impl Affected {
    fn target(&self, replica: &Replica) -> ImpactTarget {
        let cluster = cluster_name(replica, &self.cluster_uid).unwrap_or_default();
        ImpactTarget {
            service: self.name.clone(),
            cluster,
        }
    }

    fn is_heard(&self, replica: &Replica, clock: Clock) -> bool {
        let state = replica.memory.clusters.get(&self.cluster_uid);
        state.is_some_and(|state| until_silent(&state, clock).is_some())
    }
}

impl Comparison<'_> {
    async fn begin<'a>(
        replica: &'a Arc<Replica>,
        name: &'a Name,
        (source_uid, spec): (&'a str, &GitRepositorySpec),
        named: &Named,
    ) -> Result<Comparison<'a>, ImpactError> {
        let machine = |error: BundleFailure| ImpactError::Machine(error.to_string());
        let fetch = find_revision(replica, name, (source_uid, spec), named)
            .await
            .map_err(ImpactError::Source)?;
        let other = parse_commit(&fetch.commit).map_err(machine)?;
        let mirror = open_mirror(&replica.access.mirrors, source_uid)
            .await
            .map_err(machine)?;

        let served = load_revision(&mut *replica.store.tables().await?, source_uid).await?;
        let (mut base, mut is_served) = (None, false);
        if let Some(served) = served {
            let commit = parse_commit(&served.commit).map_err(machine)?;
            // Compare with the merge base: what was merged into the served branch since then is no change of this
            // revision.
            let common = mirror.merge_base(commit, other).await.unwrap_or(commit);
            is_served = common == commit;
            base = Some(Side::new(source_uid, (&served.reference, common), &served.taken, None));
        }

        let other = Side::new(source_uid, (&fetch.reference, other), &fetch.taken, Some(fetch.origin));
        let namespace = &name.namespace;
        Ok(Comparison {
            replica,
            namespace,
            source_uid,
            mirror,
            base,
            is_served,
            other,
            began: Instant::now(),
        })
    }

    /// Groups and counts the services that are affected.
    async fn judge(
        &self,
        rows: Vec<Assignment>,
        sets: &HashMap<String, (String, bool)>,
        impact: &mut Impact,
    ) -> Result<Groups, ImpactError> {
        let mut verdicts: HashMap<String, Verdict> = HashMap::new();
        let mut groups = Groups::new();
        let mut clusters: BTreeMap<ImpactEffect, BTreeSet<String>> = BTreeMap::new();
        for row in rows {
            let concerned = Concerned::read(row)?;
            let shape = concerned.shape();
            let verdict = match verdicts.entry(shape.clone()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.compare(&concerned).await?),
            };
            let Some((effect, message)) = effect_of(verdict, concerned.stands) else {
                continue;
            };
            impact.uncompared += u64::from(*verdict == Verdict::Uncompared && !concerned.stands);

            let path = concerned.path().to_owned();
            let Assignment {
                service_uid,
                namespace,
                name,
                cluster_uid,
                ..
            } = concerned.row;
            if !cluster_uid.is_empty() {
                clusters.entry(effect).or_default().insert(cluster_uid.clone());
            }

            count(impact, effect).services += 1;
            let (set, is_canary) = sets.get(&service_uid).cloned().unwrap_or_default();
            let group = groups.entry((effect, set, shape)).or_insert_with(|| Group {
                path,
                message,
                ..Group::default()
            });
            group.services.push(Affected {
                name,
                namespace,
                cluster_uid,
                is_canary,
            });
        }

        for (effect, clusters) in clusters {
            count(impact, effect).clusters = clusters.len() as u64;
        }
        Ok(groups)
    }

    async fn compare(&self, concerned: &Concerned) -> Result<Verdict, ImpactError> {
        if self.began.elapsed() > COMPARED_FOR {
            return Ok(Verdict::Uncompared);
        }
        let known = concerned.candidate.as_ref().filter(|_| self.is_served);
        let before = match (known, &self.base) {
            (Some(candidate), _) => Some(Ok(candidate.content_id)),
            (None, Some(base)) => Some(self.content(concerned, base).await?),
            (None, None) => None,
        };
        Ok(match (before, self.content(concerned, &self.other).await?) {
            (Some(Err(Problem::Unknown)), _) | (_, Err(Problem::Unknown)) => Verdict::Uncompared,
            (Some(before), after) if before == after => Verdict::Same,
            (_, Err(Problem::Fails(message))) => Verdict::Fails(message),
            (_, Ok(_)) => Verdict::Changes,
        })
    }

    async fn content(&self, concerned: &Concerned, side: &Side) -> Result<Content, ImpactError> {
        let is_plain = !side.revision.taken.submodules && !side.revision.taken.lfs;
        if let Some(candidate) = &concerned.candidate
            && is_plain
            && candidate.parts.is_empty()
            && candidate.rendered.is_empty()
        {
            match git::content_of(&self.replica.access.mirrors, &self.mirror, side.commit, &candidate.path).await {
                Ok(Some(content)) => return Ok(Ok(content)),
                // Charts in that folder have to be found first.
                Ok(None) => {}
                Err(BundleFailure::Content(message)) => return Ok(Err(Problem::Fails(message))),
                Err(error) => return Err(ImpactError::Machine(error.to_string())),
            }
        }
        self.resolve(concerned, side).await
    }

    /// Resolves the content as a candidate is resolved, with this revision instead of the served one.
    async fn resolve(&self, concerned: &Concerned, side: &Side) -> Result<Content, ImpactError> {
        let name = Name::new(self.namespace, &concerned.row.name);
        let Some((_, service)) = resources::load::<ServiceDeployment>(&self.replica.store, &name).await? else {
            return Ok(Err(Problem::Unknown));
        };

        let mut ingredients = find_ingredients(self.replica, self.namespace, &service.spec).await?;
        for found in ingredients
            .iter_mut()
            .filter_map(|ingredient| ingredient.found.as_mut())
        {
            if found.object.uid == self.source_uid {
                found.revision = Some(side.revision.clone());
                found.origin = side.origin.clone().or_else(|| found.origin.take());
            }
        }

        let resolved = candidates::resolve(self.replica, self.namespace, None, &ingredients, None).await?;
        Ok(match resolved.candidate {
            Ok(candidate) => Ok(candidate.content_id),
            Err(Trouble::ChartPending { .. } | Trouble::Files { .. }) => Err(Problem::Unknown),
            Err(trouble) => Err(Problem::Fails(trouble.to_string())),
        })
    }
}

/// The effect on a service, with the message of a failure. `stands`: the service keeps its version in any case. None: the
/// service is not affected.
fn effect_of(verdict: &Verdict, stands: bool) -> Option<(ImpactEffect, String)> {
    match verdict {
        Verdict::Same => None,
        _ if stands => Some((ImpactEffect::Stands, String::new())),
        Verdict::Fails(message) => Some((ImpactEffect::Fails, message.clone())),
        Verdict::Changes | Verdict::Uncompared => Some((ImpactEffect::Changes, String::new())),
    }
}

fn count(impact: &mut Impact, effect: ImpactEffect) -> &mut ImpactCounts {
    match effect {
        ImpactEffect::Fails => &mut impact.failing,
        ImpactEffect::Stands => &mut impact.standing,
        ImpactEffect::Changes | ImpactEffect::Unknown => &mut impact.changing,
    }
}

/// Lists the groups by effect, the largest first.
async fn list(replica: &Replica, groups: Groups, impact: &mut Impact) -> Result<(), StoreError> {
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|((effect, ..), group)| (*effect, std::cmp::Reverse(group.services.len())));
    impact.left_out = groups.len().saturating_sub(MAX_IMPACT_GROUPS) as u64;
    groups.truncate(MAX_IMPACT_GROUPS);

    // Also right after a start, only clusters that were heard lately count: a cluster without an agent could not show
    // anything.
    let clock = Clock {
        started: 0,
        ..replica.clock.read()
    };
    for ((effect, set_uid, _), mut group) in groups {
        group.services.sort_unstable();
        let clusters: BTreeSet<&str> = group
            .services
            .iter()
            .map(|service| service.cluster_uid.as_str())
            .collect();
        let first = group.services.iter().take(MAX_IMPACT_TARGETS);
        let targets = first.map(|service| service.target(replica));
        let is_heard = |service: &&Affected| service.is_heard(replica, clock);
        let mut canaries = group.services.iter().filter(|service| service.is_canary);
        let canary = canaries.find(is_heard).or_else(|| group.services.iter().find(is_heard));
        let set = match (set_uid.is_empty(), group.services.first()) {
            (false, Some(first)) => set_of(replica, &Name::new(&first.namespace, &first.name)).await?,
            _ => None,
        };

        impact.groups.push(ImpactGroup {
            set,
            effect,
            services: group.services.len() as u64,
            clusters: clusters.iter().filter(|cluster| !cluster.is_empty()).count() as u64,
            first: targets.collect(),
            canary: canary.map(|service| service.target(replica)),
            path: group.path,
            message: group.message,
        });
    }
    Ok(())
}

async fn set_of(replica: &Replica, name: &Name) -> Result<Option<String>, StoreError> {
    let Some((_, service)) = resources::load::<ServiceDeployment>(&replica.store, name).await? else {
        return Ok(None);
    };
    let owners = service.metadata.owner_references.unwrap_or_default();
    Ok(owners
        .into_iter()
        .find(|owner| owner.kind == "ServiceSet")
        .map(|owner| owner.name))
}
