//! A service's sealed documents from the hub, its Secrets and its parameters. They are looked up in the state
//! directory, then the cluster, then the hub, and are sealed in each of them.
//!
//! They are opened for an attempt and dropped after it. For times when the hub is away the ciphertext is stored, which
//! only this agent's key opens.
//!
//! At most two documents are stored: the one that the remembered deployment names, with which a held service continues,
//! and the one that was fetched for a newer entry. The first is deleted when the newer entry is remembered.

use std::{fmt, path::PathBuf};

use farwater_api::{
    Digest,
    parameters::Parameters,
    protocol::{Deployment, SealedSecrets, Secrets},
};
use farwater_fleet::{ownership::service_label, plan::RenderedObject};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    bundles::Shelf,
    hub::{Caller, HubClient, HubError, chain},
    identity::{Identity, KeyError, write_private},
    kubernetes::{ApiError, Kubernetes},
    secrets::{self, Held},
};

const PURPOSE: &str = "sealed";

/// The kinds of documents of a service, each sealed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Secrets,
    Parameters,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secrets => "Secrets",
            Self::Parameters => "parameters",
        })
    }
}

impl Part {
    const ALL: [Self; 2] = [Self::Secrets, Self::Parameters];

    fn file_name(self, service: &str) -> String {
        match self {
            Self::Secrets => format!("{}.json", service_label(service)),
            Self::Parameters => format!("{}.parameters.json", service_label(service)),
        }
    }

    /// Name of the Secret in the agent's namespace.
    fn secret_name(self, service: &str) -> String {
        match self {
            Self::Secrets => format!("farwater-sealed-{}", service_label(service)),
            Self::Parameters => format!("farwater-parameters-{}", service_label(service)),
        }
    }

    fn named_by(self, deployment: &Deployment) -> Option<Digest> {
        match self {
            Self::Secrets => deployment.secrets,
            Self::Parameters => deployment.parameters,
        }
    }

    fn info(self, identity: &Identity, service: &str, mac: Digest) -> Vec<u8> {
        let (installation, cluster) = (&identity.installation, &identity.cluster.uid);
        match self {
            Self::Secrets => SealedSecrets::info(installation, cluster, service, &mac),
            Self::Parameters => SealedSecrets::info_of_parameters(installation, cluster, service, &mac),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("open the service's {0}: they are not sealed to this agent")]
    NotOurs(Part),
    #[error("read the service's {0}")]
    Content(Part, #[source] serde_json::Error),
    #[error("store the service's {0}")]
    Store(Part, #[source] std::io::Error),
    #[error("the service's {0} are not kept here any more")]
    NotKept(Part),
    #[error("look for the service's {0} in the cluster")]
    Look(Part, #[source] ApiError),
    #[error("store the service's {0} in the cluster")]
    Copy(Part, #[source] ApiError),
    #[error("remove the service's {0} from the cluster")]
    Remove(Part, #[source] ApiError),
}

/// One document, as received.
#[derive(Clone, Serialize, Deserialize)]
struct Document {
    mac: Digest,
    sealed: SealedSecrets,
}

/// The stored form of a service's documents, in a file and in a Secret. Both are in one, so that a crash leaves no half
/// change.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// If there are two, the one that the remembered deployment names. An older agent reads only this one, and fetches
    /// the other again.
    #[serde(flatten)]
    first: Document,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Document>,
}

/// Where a document may be fetched from, and whether it is stored.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    pub shelf: Shelf,
    pub hub: &'a HubClient,
    pub caller: &'a Caller<'a>,
    pub kubernetes: &'a Kubernetes,
    /// The remembered deployment. Its document is not deleted in favour of another one's.
    pub last: Option<&'a Deployment>,
}

pub struct Sealed {
    folder: PathBuf,
}

impl Sealed {
    /// `folder` must exist and be readable only by its owner.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Opens the Secrets that a deployment names.
    pub async fn open(
        &self,
        service: &str,
        deployment: &Deployment,
        access: Access<'_>,
    ) -> Result<Secrets, SealedError> {
        let opened = self.open_part(Part::Secrets, service, deployment, access).await?;
        Ok(opened.unwrap_or_default())
    }

    /// Opens the parameters that a deployment names. None: it names none.
    pub async fn open_parameters(
        &self,
        service: &str,
        deployment: &Deployment,
        access: Access<'_>,
    ) -> Result<Option<Parameters>, SealedError> {
        self.open_part(Part::Parameters, service, deployment, access).await
    }

    async fn open_part<T: DeserializeOwned>(
        &self,
        part: Part,
        service: &str,
        deployment: &Deployment,
        access: Access<'_>,
    ) -> Result<Option<T>, SealedError> {
        let Access { shelf, last, .. } = access;
        // A preview deletes nothing.
        let last = last
            .filter(|_| shelf == Shelf::Kept)
            .and_then(|last| part.named_by(last));
        let mac = part.named_by(deployment);
        let (documents, opened) = self.find(part, service, [last, mac], access).await?;

        let Some(mac) = mac else { return Ok(None) };
        let (opened, is_former) = match (opened, shelf) {
            (Some(opened), _) => opened,
            (None, Shelf::Kept) => {
                return self
                    .fetch(part, service, mac, (documents, last), access)
                    .await
                    .map(Some);
            }
            (None, Shelf::Passing) => return Ok(Some(get(part, service, mac, access).await?.1)),
            (None, Shelf::Nothing) => return Err(SealedError::NotKept(part)),
        };
        if is_former && shelf == Shelf::Kept {
            // Sealed to a former key: replaced as soon as the hub answers, and valid until then.
            if let Err(error) = self.fetch::<T>(part, service, mac, (documents, last), access).await {
                tracing::debug!(
                    error = chain(&error),
                    service,
                    "can't get {part} sealed to the new key yet"
                );
            }
        }
        Ok(Some(opened))
    }

    /// The kept documents of these names, and the opened one of the second name. The copy in the cluster is read, and
    /// stored here, if a document is missing here.
    async fn find<T: DeserializeOwned>(
        &self,
        part: Part,
        service: &str,
        [last, mac]: [Option<Digest>; 2],
        access: Access<'_>,
    ) -> Result<(Vec<Document>, Option<(T, bool)>), SealedError> {
        let open = |documents: &[Document]| {
            let mut named = documents.iter().filter(|document| Some(document.mac) == mac);
            named.find_map(|document| document.open(part, service, access.caller.identity))
        };
        let mut documents = pick(self.load(part, service), [last, mac]);
        let opened = open(&documents);
        let has_last = last.is_none_or(|last| documents.iter().any(|document| document.mac == last));
        if has_last && (mac.is_none() || opened.is_some()) {
            return Ok((documents, opened));
        }

        if opened.is_none() {
            documents.retain(|document| Some(document.mac) != mac);
        }
        let here = documents.len();
        documents.append(&mut load_copy(part, service, access.kubernetes).await?);
        let documents = pick(documents, [last, mac]);
        let opened = opened.or_else(|| open(&documents));
        if access.shelf == Shelf::Kept && documents.len() > here {
            self.store(part, service, &documents)?;
        }
        Ok((documents, opened))
    }

    /// Fetches a document from the hub, and stores it beside the one named `last`.
    async fn fetch<T: DeserializeOwned>(
        &self,
        part: Part,
        service: &str,
        mac: Digest,
        (mut documents, last): (Vec<Document>, Option<Digest>),
        access: Access<'_>,
    ) -> Result<T, SealedError> {
        let (document, opened) = get(part, service, mac, access).await?;
        documents.insert(0, document);
        let bytes = self.store(part, service, &pick(documents, [last, Some(mac)]))?;
        if let Err(error) = save_copy(part, service, &bytes, access.kubernetes).await {
            // The stored copy stays, even if it is an older one.
            tracing::warn!(
                error = chain(&error),
                service,
                "can't keep a service's sealed {part} in the cluster"
            );
        }
        Ok(opened)
    }

    /// Deletes documents that neither of these deployments names: the remembered one, and the present one.
    pub async fn settle(
        &self,
        service: &str,
        deployments: [Option<&Deployment>; 2],
        kubernetes: &Kubernetes,
    ) -> Result<(), SealedError> {
        for part in Part::ALL {
            let named = deployments.map(|deployment| part.named_by(deployment?));
            if named == [None, None] {
                if self.path(part, service).exists() {
                    self.discard_part(part, service, kubernetes).await?;
                }
                continue;
            }
            let documents = self.load(part, service);
            let count = documents.len();
            let left = pick(documents, named);
            if !left.is_empty() && left.len() < count {
                // The file is written last: as long as it has both, this is retried.
                save_copy(part, service, &encode(part, &left)?, kubernetes).await?;
                self.store(part, service, &left)?;
            }
        }
        Ok(())
    }

    /// Deletes the documents of a service that is gone.
    pub async fn discard(&self, service: &str, kubernetes: &Kubernetes) -> Result<(), SealedError> {
        for part in Part::ALL {
            self.discard_part(part, service, kubernetes).await?;
        }
        Ok(())
    }

    /// The file is deleted last, because it shows that there may be a Secret.
    async fn discard_part(&self, part: Part, service: &str, kubernetes: &Kubernetes) -> Result<(), SealedError> {
        match secrets::remove(kubernetes, &part.secret_name(service)).await {
            Err(error) if !error.is_not_found() => return Err(SealedError::Remove(part, error)),
            _ => {}
        }
        match std::fs::remove_file(self.path(part, service)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(SealedError::Store(part, error)),
            _ => Ok(()),
        }
    }

    fn load(&self, part: Part, service: &str) -> Vec<Document> {
        std::fs::read(self.path(part, service))
            .map(|bytes| decode(&bytes))
            .unwrap_or_default()
    }

    /// Stores documents. Returns the written bytes.
    fn store(&self, part: Part, service: &str, documents: &[Document]) -> Result<Vec<u8>, SealedError> {
        let bytes = encode(part, documents)?;
        write_private(&self.path(part, service), &bytes).map_err(|error| SealedError::Store(part, error))?;
        Ok(bytes)
    }

    fn path(&self, part: Part, service: &str) -> PathBuf {
        self.folder.join(part.file_name(service))
    }
}

impl Document {
    /// The content, and whether it is sealed to a former key. None: damaged, or sealed to a key that is gone; another
    /// copy may be better.
    fn open<T: DeserializeOwned>(&self, part: Part, service: &str, identity: &Identity) -> Option<(T, bool)> {
        let opened = identity
            .keys
            .open(&self.sealed, &part.info(identity, service, self.mac))
            .ok()??;
        Some((serde_json::from_slice(&opened.plain).ok()?, opened.is_former))
    }
}

/// One document for each named MAC, in that order.
fn pick(mut documents: Vec<Document>, named: [Option<Digest>; 2]) -> Vec<Document> {
    let [first, second] = named;
    let distinct = [first, second.filter(|_| second != first)];
    let places = distinct.into_iter().flatten().filter_map(|mac| {
        let place = documents.iter().position(|document| document.mac == mac)?;
        Some(documents.remove(place))
    });
    places.collect()
}

/// The stored documents. Empty: they are damaged; another copy may be better.
fn decode(bytes: &[u8]) -> Vec<Document> {
    let kept: Option<Kept> = serde_json::from_slice(bytes).ok();
    kept.into_iter()
        .flat_map(|kept| [Some(kept.first), kept.next])
        .flatten()
        .collect()
}

fn encode(part: Part, documents: &[Document]) -> Result<Vec<u8>, SealedError> {
    let mut documents = documents.iter().cloned();
    let kept = documents.next().map(|first| Kept {
        first,
        next: documents.next(),
    });
    serde_json::to_vec(&kept).map_err(|error| SealedError::Content(part, error))
}

async fn load_copy(part: Part, service: &str, kubernetes: &Kubernetes) -> Result<Vec<Document>, SealedError> {
    match secrets::load(kubernetes, &part.secret_name(service)).await {
        Ok(bytes) => Ok(bytes.map(|bytes| decode(&bytes)).unwrap_or_default()),
        // Damaged, as above.
        Err(ApiError::Unusable(_)) => Ok(Vec::new()),
        // An unreadable copy may be the one that must not be lost.
        Err(error) => Err(SealedError::Look(part, error)),
    }
}

async fn save_copy(part: Part, service: &str, bytes: &[u8], kubernetes: &Kubernetes) -> Result<(), SealedError> {
    let saved = secrets::save(kubernetes, PURPOSE, &part.secret_name(service), bytes, Held::Already).await;
    saved.map_err(|error| SealedError::Copy(part, error))
}

/// Fetches a document from the hub. Returns it sealed and opened.
async fn get<T: DeserializeOwned>(
    part: Part,
    service: &str,
    mac: Digest,
    Access { hub, caller, .. }: Access<'_>,
) -> Result<(Document, T), SealedError> {
    let sealed = match part {
        Part::Secrets => hub.secrets(caller, service, mac).await?,
        Part::Parameters => hub.parameters(caller, service, mac).await?,
    };
    let identity = caller.identity;
    let document = Document { mac, sealed };
    let opened = identity
        .keys
        .open(&document.sealed, &part.info(identity, service, mac))?;
    let opened = opened.ok_or(SealedError::NotOurs(part))?;
    let content = serde_json::from_slice(&opened.plain).map_err(|error| SealedError::Content(part, error))?;
    Ok((document, content))
}

/// The Secrets as objects of the service, in addition to those of its bundle.
pub fn render(secrets: Secrets, target_namespace: &str) -> impl Iterator<Item = RenderedObject> {
    let namespace = target_namespace.to_owned();
    secrets.0.into_iter().map(move |(name, value)| RenderedObject {
        origin: format!("Secret {name} of the hub"),
        manifest: json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "type": value.secret_type,
            "data": value.data,
        }),
    })
}

#[cfg(test)]
#[path = "sealed_tests.rs"]
mod tests;
