//! propose_plans: a request for a plan → the entry that the agent would get.
//!
//! The entry is made as [`compute_desired`](crate::services::compute_desired) makes it, except that another revision or local
//! files replace what is assigned. Nothing is written.

use std::sync::Arc;

use axum::body::Bytes;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ServiceDeployment, SourceKind,
    plan::{MAX_LOCAL_ARCHIVE, MAX_LOCAL_BYTES, PlanProblem, PlanQuery},
    protocol::Verbatim,
    renderer::LocalFiles,
};
use farwater_bundle::{Archive, Limits, RelPath, archive::decompress};
use farwater_fleet::assignment::{Candidate, Trouble, Why};
use farwater_sources::Named;
use farwater_store::{
    Resource, StoreError,
    delivery::{Assignment, Revision, Taken, load_assignment, load_parameters, load_service_origin},
};

use crate::{
    delivery::plans,
    errors::chain,
    memory::plans::{AskError, Asked, Proposed},
    replica::Replica,
    resources::Name,
    services::{
        ClusterFacts, ServiceFacts, SourceUrls,
        candidates::{self, find_ingredients},
        compute_desired::load_facts,
        load_grants_for,
        parameters::{InputCache, give},
        secrets,
    },
    sources::{SourceSpec, fetch_sources::find_revision},
};

#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Ask(#[from] AskError),
    /// A fault of the request.
    #[error("{0}")]
    Invalid(String),
    /// A fault of the service's present state.
    #[error("{0}")]
    NotYet(String),
}

/// The replacement for the assignment.
enum Instead {
    Nothing,
    Revision(Named),
    Files { local: LocalFiles, archive: Vec<u8> },
}

/// Begins a request for a plan of a service, and returns its id.
pub async fn propose(replica: &Arc<Replica>, service: &Resource, query: PlanQuery) -> Result<String, ProposeError> {
    let instead = read_query(query)?;
    let row = load_assignment(&mut *replica.store.tables().await?, &service.uid).await?;
    let not_yet = |problem: &str| ProposeError::NotYet(problem.to_owned());
    let row = row.filter(|row| !row.cluster_uid.is_empty());
    let row = row.ok_or_else(|| not_yet("the service has no cluster yet; why says what it lacks"))?;
    let cluster = replica
        .memory
        .clusters
        .get(&row.cluster_uid)
        .ok_or_else(|| not_yet("the service's cluster is not known"))?;
    let name = Name::new(&cluster.namespace, &cluster.name);
    let facts = ClusterFacts::load(replica, &name)
        .await?
        .filter(|facts| facts.uid == row.cluster_uid);
    let facts = facts.ok_or_else(|| not_yet("the service's cluster does not exist any more"))?;
    let Some(agent) = &facts.agent else {
        return Err(ProposeError::NotYet(format!(
            "no agent has joined cluster {} yet",
            name.name
        )));
    };
    let agent_version = agent.agent_version.clone();
    let asked = Asked {
        service_uid: &service.uid,
        cluster: &cluster,
        agent_version: &agent_version,
    };
    let prepare = prepare(Arc::clone(replica), row, facts, instead);
    Ok(plans::ask(replica, &asked, prepare)?)
}

fn read_query(query: PlanQuery) -> Result<Instead, ProposeError> {
    let invalid = |problem: String| ProposeError::Invalid(problem);
    match (query.reference, query.local) {
        (None, None) => Ok(Instead::Nothing),
        (Some(_), Some(_)) => Err(invalid("ref and local exclude each other".to_owned())),
        (Some(name), None) => Named::parse(&name)
            .map(Instead::Revision)
            .map_err(|error| invalid(error.to_string())),
        (None, Some(mut local)) => {
            let archive = BASE64.decode(std::mem::take(&mut local.archive));
            let archive = archive.map_err(|error| invalid(format!("local.archive is not base64: {error}")))?;
            if archive.len() > MAX_LOCAL_ARCHIVE {
                let (bytes, most) = (archive.len(), MAX_LOCAL_ARCHIVE);
                return Err(invalid(format!(
                    "local.archive has {bytes} bytes; at most {most} are taken"
                )));
            }
            RelPath::parse_folder(&local.path).map_err(|error| invalid(format!("local.path: {error}")))?;
            Ok(Instead::Files { local, archive })
        }
    }
}

async fn prepare(
    replica: Arc<Replica>,
    row: Assignment,
    cluster: ClusterFacts,
    instead: Instead,
) -> Result<Proposed, (PlanProblem, String)> {
    let failed = |error: StoreError| (PlanProblem::Unavailable, chain(&error));
    let gone = || (PlanProblem::Refused, "the service does not exist any more".to_owned());
    let origin = {
        let mut tables = replica.store.tables().await.map_err(failed)?;
        load_service_origin(&mut tables, &row.service_uid)
            .await
            .map_err(failed)?
    };
    let facts = load_facts(&replica, &row, origin.as_ref(), &mut SourceUrls::default())
        .await
        .map_err(failed)?;
    let mut facts = facts.ok_or_else(gone)?;

    let (revision, archive) = replace_assigned(&replica, &mut facts, instead).await?;
    let secrets = secrets::resolve(&replica, &facts).await.map_err(failed)?;
    let given = {
        let mut tables = replica.store.tables().await.map_err(failed)?;
        load_parameters(&mut tables, &facts.uid).await.map_err(failed)?
    };
    let given = give(&replica, &facts, &cluster, given.as_ref(), &mut InputCache::default())
        .await
        .map_err(failed)?;
    let grants = load_grants_for(&replica.store, &facts.name.namespace)
        .await
        .map_err(failed)?;

    let (entry, _) = facts.resolve_entry(&cluster, &grants, &secrets, &given.0);
    Ok(Proposed {
        entry: Verbatim::from(entry),
        revision,
        archive,
    })
}

/// Returns the revision that the plan is about, and the bundle of local files.
async fn replace_assigned(
    replica: &Arc<Replica>,
    facts: &mut ServiceFacts,
    instead: Instead,
) -> Result<(String, Option<Bytes>), (PlanProblem, String)> {
    match instead {
        Instead::Nothing => {
            let assigned = facts.assigned.as_ref();
            let revision = assigned.map(|assigned| assigned.revision.clone());
            Ok((revision.unwrap_or_default(), None))
        }
        Instead::Revision(named) => {
            let candidate = find_candidate(replica, &facts.name, &facts.service, &named).await?;
            facts.source_urls = candidate.urls();
            Ok((take_place(facts, candidate), None))
        }
        Instead::Files { local, archive } => {
            // Assume the repository of what is assigned.
            let known = facts.candidate.as_ref().or(facts.assigned.as_ref());
            let of_known = known.map(|known| (known.origin.clone(), known.configuration.clone()));
            let (origin, configuration) = of_known.unwrap_or_default();
            let (candidate, archive) = open_files(local, archive).await?;
            let candidate = Candidate {
                origin,
                configuration,
                ..candidate
            };
            Ok((take_place(facts, candidate), Some(archive.into())))
        }
    }
}

/// The reason that holds the assignment says nothing about what replaces it.
fn take_place(facts: &mut ServiceFacts, candidate: Candidate) -> String {
    let revision = candidate.revision.clone();
    (facts.assigned, facts.why, facts.suspended) = (Some(candidate), Why::Current, false);
    revision
}

async fn find_candidate(
    replica: &Arc<Replica>,
    name: &Name,
    service: &ServiceDeployment,
    named: &Named,
) -> Result<Candidate, (PlanProblem, String)> {
    let refused = |message: String| (PlanProblem::Refused, message);
    let unavailable = |message: String| (PlanProblem::Unavailable, message);
    let found = find_ingredients(replica, &name.namespace, &service.spec).await;
    let mut ingredients = found.map_err(|error| unavailable(chain(&error)))?;
    let Some(own) = ingredients.first_mut() else {
        return Err(refused("the service has no source".to_owned()));
    };
    let (kind, source) = (own.reference.kind, Name::new(&name.namespace, &own.reference.name));
    let Some(found) = &mut own.found else {
        return Err(refused(format!("{kind} {} does not exist", source.name)));
    };
    let SourceSpec::Git(spec) = &found.object.spec else {
        return Err(refused(format!(
            "another revision is looked at of a {} only, and the service has a {kind}",
            SourceKind::GitRepository
        )));
    };

    let fetched = find_revision(replica, &source, (&found.object.uid, spec), named).await;
    let fetch = fetched.map_err(|failure| {
        let problem = match failure.reason {
            "ReferenceNotFound" => PlanProblem::RefMissing,
            _ if failure.lasting => PlanProblem::Refused,
            _ => PlanProblem::Unavailable,
        };
        (problem, failure.message)
    })?;

    let configuration = found
        .revision
        .take()
        .map(|served| served.taken.configuration)
        .unwrap_or_default();
    found.revision = Some(Revision {
        source_uid: found.object.uid.clone(),
        reference: fetch.reference,
        commit: fetch.commit,
        fetched: 0,
        // Another commit has no texts of its own: the present ones stay.
        taken: Taken {
            configuration,
            ..fetch.taken
        },
    });
    found.origin = Some(fetch.origin);

    let resolved = candidates::resolve(replica, &name.namespace, None, &ingredients, None).await;
    let resolved = resolved.map_err(|error| unavailable(chain(&error)))?;
    resolved.candidate.map_err(problem_of)
}

fn problem_of(trouble: Trouble) -> (PlanProblem, String) {
    match trouble {
        Trouble::ChartPending { message } => {
            let message = format!(
                "{message}; the hub fetches the dependencies of charts and kustomizations once a service uses them"
            );
            (PlanProblem::Refused, message)
        }
        Trouble::Files { message, .. } => {
            let message = format!("{message}; retry once the hub has fetched them");
            (PlanProblem::Unavailable, message)
        }
        trouble => (PlanProblem::Refused, trouble.to_string()),
    }
}

/// Returns an archive as it was sent if an agent would accept it; otherwise the reason.
async fn open_files(local: LocalFiles, archive: Vec<u8>) -> Result<(Candidate, Vec<u8>), (PlanProblem, String)> {
    let LocalFiles { digest, path, .. } = local;
    let opened = tokio::task::spawn_blocking(move || {
        let limits = Limits {
            total_bytes: MAX_LOCAL_BYTES,
            ..Limits::default()
        };
        let bytes = decompress(&archive, &digest, &limits)?;
        let length = bytes.len() as u64;
        Archive::read(bytes, &limits).map(|_| (length, archive))
    });

    let opened = opened
        .await
        .map_err(|error| (PlanProblem::Unavailable, error.to_string()))?;
    let (bundle_bytes, archive) =
        opened.map_err(|error| (PlanProblem::Refused, format!("local.archive: {}", chain(&error))))?;

    let candidate = Candidate {
        revision: "local files".to_owned(),
        // This id is used for no lookup.
        content_id: digest,
        bundle: digest,
        bundle_bytes,
        path,
        source: String::new(),
        origin: None,
        author: String::new(),
        reads: String::new(),
        rendered: Vec::new(),
        parts: Vec::new(),
        artifacts: Vec::new(),
        configuration: Default::default(),
    };
    Ok((candidate, archive))
}
