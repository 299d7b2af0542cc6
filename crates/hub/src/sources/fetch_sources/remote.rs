//! Asks the remotes of a source.

use std::sync::Arc;

use farwater_api::{
    GitRepositorySpec,
    git_repository::{GitReference, LocalReference},
    oci_repository::Verification,
    service_sources::read_git_link,
};
use farwater_fleet::duration::SOURCE_TIMEOUT;
use farwater_sources::{Reference, ReferenceError, oci::cosign::Keys};
use farwater_store::{
    Connection, StoreError,
    delivery::{ChartRow, Revision, SourceOrigin, Taken, charts_of_source, wanted_charts},
};

use super::Source;
use crate::{
    errors::SourceFailure,
    memory::turns::Turn,
    replica::Replica,
    resources::{Name, SourceName},
    sources::{
        SourceObject, SourceSpec,
        access::{DEFAULT_TIMEOUT, Way, load_secret, shared_secret},
        artifacts::{self, Credentials, Outcome},
        git::{self, Fetch},
    },
};

/// Charts of a repository that services want, and those that were found.
#[derive(Default)]
pub(super) struct Charts {
    pub(super) wanted: Vec<(String, String)>,
    pub(super) known: Vec<ChartRow>,
}

impl Charts {
    pub(super) async fn load(tables: &mut Connection, source: &SourceObject) -> Result<Self, StoreError> {
        if !matches!(source.spec, SourceSpec::Helm(_)) {
            return Ok(Self::default());
        }
        let (wanted, known) = (
            wanted_charts(tables, &source.uid).await?,
            charts_of_source(tables, &source.uid).await?,
        );
        Ok(Self { wanted, known })
    }

    pub(super) fn wants_more(&self) -> bool {
        let is_known = |(chart, wanted): &(String, String)| {
            self.known
                .iter()
                .any(|row| row.chart == *chart && row.wanted == *wanted)
        };
        !self.wanted.iter().all(is_known)
    }
}

/// Fetches a source. A failure to load its Secrets says nothing about the host, so it leaves the turn open.
pub(super) async fn ask_remote(
    replica: &Arc<Replica>,
    source: &Source,
    served: Option<&Revision>,
    charts: Charts,
    turn: Turn<'_>,
) -> Result<Outcome, SourceFailure> {
    let timeout = SOURCE_TIMEOUT
        .check(&source.object.any.timeout)
        .unwrap_or(DEFAULT_TIMEOUT);
    let (namespace, url) = (source.object.namespace(), source.object.any.url.as_str());
    let (mirrors, uid) = (&replica.access.mirrors, source.uid.as_str());

    let asked = match &source.object.spec {
        SourceSpec::Git(spec) => return ask_repository(replica, source, spec, served, turn).await,
        SourceSpec::Helm(spec) => {
            let secrets = (spec.secret_ref.as_ref(), spec.cert_secret_ref.as_ref());
            let with = load_credentials(replica, namespace, url, secrets).await?;
            let Charts { wanted, known } = charts;
            let helm = artifacts::Helm {
                uid,
                spec,
                is_link: source.object.is_link(),
                wanted,
                known,
                origin: source.origin.clone(),
                timeout,
            };
            artifacts::fetch_charts(mirrors, helm, &with).await
        }
        SourceSpec::BuiltIn => {
            let message = "there is nothing to fetch".to_owned();
            return Err(SourceFailure::lasting("BuiltIn", message));
        }
        SourceSpec::File(address) => artifacts::fetch_file(mirrors, uid, address, served, timeout).await,
        SourceSpec::Oci(spec) => {
            let keys = match &spec.verify {
                Some(verify) => Some(load_keys(replica, namespace, verify).await?),
                None => None,
            };
            let secrets = (spec.secret_ref.as_ref(), spec.cert_secret_ref.as_ref());
            let with = load_credentials(replica, namespace, url, secrets).await?;
            let oci = artifacts::Oci {
                uid,
                spec,
                served,
                timeout,
                keys,
            };
            artifacts::fetch_artifact(mirrors, oci, &with).await
        }
    };

    let failure = match &asked {
        Ok(outcome) => outcome.failure.as_ref(),
        Err(failure) => Some(failure),
    };
    turn.end(failure.map(|failure| failure.reason));
    asked
}

/// Fetches a Git repository, which ends the turn.
async fn ask_repository(
    replica: &Arc<Replica>,
    source: &Source,
    spec: &GitRepositorySpec,
    served: Option<&Revision>,
    turn: Turn<'_>,
) -> Result<Outcome, SourceFailure> {
    let is_link = source.object.is_link();
    let reference =
        followed_reference(source, spec).map_err(|error| SourceFailure::lasting("SpecInvalid", error.to_string()))?;
    let mut way = Way::load(replica, source.object.namespace(), spec).await?;
    way.is_public = is_link && !source.object.is_lent;

    let known = source.origin.clone();
    let mut outcome = git::fetch(replica, &source.uid, spec, &reference, (&way, turn), known)
        .await
        .map(outcome_of)?;
    if let Some(Ok(promoted)) = &source.promoted {
        outcome.taken.configuration.clone_from(&promoted.configuration);
    }
    // A service that needs a base of a kustomization has no paths in that repository.
    if !is_link {
        outcome.differs = find_changes(replica, served, source.origin.as_ref(), &outcome).await;
    }
    Ok(outcome)
}

fn followed_reference(source: &Source, spec: &GitRepositorySpec) -> Result<Reference, ReferenceError> {
    match (&source.object.name, &source.promoted) {
        // Only the promoted commit, not the branch's current one.
        (_, Some(Ok(promoted))) => Reference::parse(Some(&GitReference {
            commit: Some(promoted.commit.clone()),
            ..GitReference::default()
        })),
        (SourceName::Resource(..), _) => Reference::parse(spec.r#ref.as_ref()),
        (SourceName::Link { url, .. }, _) => Reference::of_base(read_git_link(url).unwrap_or_default().1),
    }
}

/// Paths in which a commit differs from the served one. None: unknown, or more than files differs.
async fn find_changes(
    replica: &Replica,
    served: Option<&Revision>,
    known: Option<&SourceOrigin>,
    outcome: &Outcome,
) -> Option<Vec<String>> {
    let (served, (reference, commit)) = (served?, outcome.served.as_ref()?);
    // A commit's own files do not show what differs in submodules and LFS files.
    let is_plain = |taken: &Taken| !taken.submodules && !taken.lfs;
    let is_plain = is_plain(&served.taken) && is_plain(&outcome.taken);
    let is_plain = is_plain && served.taken.configuration == outcome.taken.configuration;
    let is_same_history = known?.root == outcome.origin.root;
    if !is_plain || !is_same_history || served.reference != *reference || served.commit == *commit {
        return None;
    }
    git::find_changes(&replica.access.mirrors, &served.source_uid, &served.commit, commit).await
}

fn outcome_of(fetch: Fetch) -> Outcome {
    let Fetch {
        reference,
        commit,
        origin,
        taken,
    } = fetch;
    Outcome::of((reference, commit), taken, origin)
}

async fn load_credentials(
    replica: &Replica,
    namespace: &str,
    url: &str,
    (secret, tls): (Option<&LocalReference>, Option<&LocalReference>),
) -> Result<Credentials, SourceFailure> {
    let load = async |reference: Option<&LocalReference>| match reference {
        Some(reference) => load_secret(replica, &Name::new(namespace, &reference.name))
            .await
            .map(Some),
        None => Ok(None),
    };
    let secret = match secret {
        Some(_) => load(secret).await?,
        None => shared_secret(replica, namespace, url).await?,
    };
    Ok(Credentials {
        secret,
        tls: load(tls).await?,
    })
}

async fn load_keys(replica: &Replica, namespace: &str, verify: &Verification) -> Result<Keys, SourceFailure> {
    let data = load_secret(replica, &Name::new(namespace, &verify.secret_ref.name)).await?;
    Keys::read(&data).map_err(|error| SourceFailure::lasting("SecretInvalid", error.to_string()))
}
